"""HTML pages and fragments from the templates beside this file. Jinja2 escapes every value.

In: the name of a template and its values. Out: HTML that needs no other file. base.html is the frame of a page, with style.css;
macros.html has tables and charts.
"""

import functools
from typing import Any

import jinja2

from bert_keras.pages.charts import draw


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("bert_keras.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["cell"] = show_cell
    made.globals["draw"] = draw
    return made


def show_cell(value: Any) -> str:
    """The text of a value in a table: floats with four decimals, and nothing for None."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value is None else str(value)


def render(template: str, **values: Any) -> str:
    """The HTML of a template with these values, each of which is escaped. Raises jinja2.UndefinedError for a missing value."""
    return _environment().get_template(template).render(**values)
