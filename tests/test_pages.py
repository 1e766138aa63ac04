"""Pages: every value is escaped, charts take the colors of their page and need nothing from elsewhere."""

import re
import xml.etree.ElementTree as ET

import pytest
from browser import check_accessible, errors_of, requests_of, sideways, visit

from bert_keras.pages import page as page_module
from bert_keras.pages.charts import CHARTS, draw
from bert_keras.pages.page import show_cell
from bert_keras.tasks.report import Table

HOSTILE = '</script><b>"$x_1$'


@pytest.mark.parametrize("chart", CHARTS)
def test_a_chart_is_svg_in_the_colors_of_its_page_with_every_text_as_text(chart):
    rows = (
        [(1, 0.5, 0.4), (2, 0.25, 0.3)] if chart in ("lines", "scatter") else [(HOSTILE, 3, 1), ("b", 0, 4)]
    )
    drawn = draw(Table(HOSTILE, ("name", HOSTILE, "c"), rows, chart))
    root = ET.fromstring(drawn)
    assert root.get("aria-label") == HOSTILE
    if chart != "bars":
        assert HOSTILE in [*filter(None, root.itertext())], "a label is drawn as mathematics, or cut"
    assert "var(--ink)" in drawn and not re.search(r"#0[1-5]0[0-9]", drawn)
    assert not re.search(
        r"<(?:style|image|script)|(?:href|url)\W+(?!#)\w+:|pt\"", drawn.replace("<style type", "")
    )
    assert draw(Table(HOSTILE, ("name", HOSTILE, "c"), rows, chart)) == drawn


@pytest.mark.parametrize("value, shown", [(0.12345, "0.1235"), (3, "3"), (None, ""), ("a", "a")])
def test_cells(value, shown):
    assert show_cell(value) == shown


def test_a_page_in_a_browser_asks_for_nothing_and_is_accessible(browser, tmp_path):
    page = tmp_path / "page.html"
    table = Table("a wide table", ("text", "value"), [("</script> <b>" + "m" * 10_000, 0.5)])
    template = page_module._environment().from_string(
        '{% extends "base.html" %}{% from "macros.html" import cells %}'
        "{% block main %}<h2>h</h2>{{ cells(table) }}{% endblock %}"
    )
    page.write_text(template.render(title="a title", table=table), encoding="utf-8")
    for dark in (False, True):
        visit(browser, page, width=360, dark=dark)
        assert sideways(browser) == 0
        assert errors_of(browser) == []
        assert requests_of(browser) == [page.as_uri()]
        check_accessible(browser)
