"""Runs and predictions in the output of a notebook's cell: tables, as HTML from a template.

In: a Run, or texts with their predictions. Out: HTML, for `_repr_html_`, which a notebook asks for and a terminal does not.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bert_keras.pages.charts import shorten
from bert_keras.pages.page import render
from bert_keras.tasks.report import Table
from bert_keras.tasks.runs.facts import facts_of

ROWS = 10  # texts in a table of predictions
_CHARACTERS = 300  # of a cell
_FILES = ("SHA-256 of its file", "made with")  # facts that matter to a file alone


def show_run(run: Any, measures: Mapping[str, float], *, title: str, measured: str) -> str:
    """The facts about a run, and its measures where there are some.

    run: a Run; measured: the title of the measures, which says what was measured
    """
    facts = {name: value for name, value in facts_of(run).items() if value != "" and name not in _FILES}
    trained = sum(math.prod(one.shape) for one in run.model.trainable_variables)
    facts["parameters that train"] = f"{trained:,}"
    tables = [
        Table(
            title,
            ("property", "value"),
            [(name, shorten(value, _CHARACTERS)) for name, value in facts.items()],
        )
    ]
    if measures:
        rows = [(name, float(value)) for name, value in measures.items()]
        tables.append(Table(measured, ("measure", "value"), rows))
    return render("notebook.html", tables=tables)


def show_rows(rows: Sequence[Mapping[str, str]], count: int) -> str:
    """The first rows of `count` predictions, each as `Report.show` gives it."""
    title = f"predictions for {count:,} {'text' if count == 1 else 'texts'}"
    title += f", the first {len(rows)}" if len(rows) < count else ""
    cells = [tuple(shorten(value, _CHARACTERS) for value in row.values()) for row in rows]
    return render("notebook.html", tables=[Table(title, tuple(rows[0]), cells)])
