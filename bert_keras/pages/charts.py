"""Charts of tables as SVG, in the colors and the font of their page. matplotlib draws them.

In: a table with title, columns, rows and the name of its chart. Out: an <svg> to put into a page. matplotlib draws in stand-in
colors, which become the variables of the style sheet: a chart follows light and dark without a second drawing.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from markupsafe import Markup, escape

# A color that matplotlib draws -> the variable of style.css that takes its place.
_VARIABLES = ("ink", "line", "quiet", *(f"series-{i}" for i in range(1, 7)))
_STAND_INS = {f"#0{i}0{i}0{i}": f"--{name}" for i, name in enumerate(_VARIABLES, start=1)}
INK, LINE, QUIET, *SERIES = _STAND_INS
SHAPES = "osD^vP"  # of marks
NAME = 28  # letters of a name beside a row
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it takes the page's font, and can be searched
    "text.parse_math": False,  # a label may have two dollars
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "grid.color": LINE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


class Drawable(Protocol):
    """A table with its chart: the fields of `tasks.report.Table`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    chart: str


def shorten(name: Any, longest: int = NAME) -> str:
    """A name, cut to so many letters, for the side of a chart."""
    text = str(name)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _bars(axes: Any, table: Drawable) -> None:
    """A bar for each row: the first column names it, the second is its length; a third and fourth are the ends of an interval."""
    places, values = range(len(table.rows)), [row[1] for row in table.rows]
    axes.barh(places, values, color=SERIES[0], height=0.6)
    axes.set_yticks(places, [shorten(row[0]) for row in table.rows])  # two rows may have one name
    if len(table.columns) >= 4:
        low, high = ([row[i] for row in table.rows] for i in (2, 3))
        axes.hlines(places, low, high, color=INK, linewidth=2)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(table.columns[1])


def _lines(axes: Any, table: Drawable) -> None:
    """The first column runs along x; each further column is a line. None leaves a point out. Counts stand above."""
    for i, name in enumerate(table.columns[1:]):
        if all(isinstance(row[i + 1], int) for row in table.rows):
            above = {
                "transform": axes.get_xaxis_transform(),
                "ha": "center",
                "va": "bottom",
                "fontsize": "small",
            }
            for row in table.rows:
                axes.text(row[0], 1.01, f"{row[i + 1]:,}", color=QUIET, **above)
            continue
        points = [(row[0], row[i + 1]) for row in table.rows if row[i + 1] is not None]
        if points:
            # No line is known by its color alone.
            style = SHAPES[i % len(SHAPES)] + ("-", "--", "-.", ":")[i % 4]
            color = SERIES[i % len(SERIES)]
            axes.plot(*zip(*points, strict=True), style, color=color, markersize=4, label=name)
    axes.set_xlabel(table.columns[0])
    if all(isinstance(row[0], int) for row in table.rows):
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize="small")


def _dots(axes: Any, table: Drawable) -> None:
    """A line for each row, which the first column names, with a mark for each column of fractions in its own shape and color."""
    places = range(len(table.rows))
    drawn = [i for i, value in enumerate(table.rows[0]) if isinstance(value, float)]
    for series, i in enumerate(drawn):
        values = [row[i] for row in table.rows]
        color, shape = SERIES[series % len(SERIES)], SHAPES[series % len(SHAPES)]
        axes.plot(values, places, shape, color=color, markersize=6, label=table.columns[i])
    axes.set_yticks(places, [shorten(row[0]) for row in table.rows])
    low, high = axes.get_xlim()
    axes.set_xlim(min(0, low), high + 0.03 * (high - min(0, low)))
    axes.invert_yaxis()
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12 * 6 / len(places)), "ncols": len(drawn)}
    axes.legend(fontsize="small", **below)


def _scatter(axes: Any, table: Drawable) -> None:
    """A point for each row: the first column along x, the second along y."""
    x, y = ([row[i] for row in table.rows] for i in (0, 1))
    axes.plot(x, y, "o", color=SERIES[0], markersize=4, alpha=0.6)
    axes.set(xlabel=table.columns[0], ylabel=table.columns[1])


def _heat(axes: Any, table: Drawable) -> None:
    """A square for each number, as dark as its share of its row: the first column names the rows, the others are the columns."""
    for y, row in enumerate(table.rows):
        total = sum(row[1:]) or 1
        for x, value in enumerate(row[1:]):
            shade = {"color": SERIES[0], "alpha": 0.5 * value / total, "linewidth": 0}
            axes.fill_between([x - 0.5, x + 0.5], y - 0.5, y + 0.5, **shade)
            axes.text(x, y, f"{value:g}", ha="center", va="center", fontsize=min(11, 110 / len(row)))
    names = [shorten(name) for name in table.columns[1:]]
    axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) * len(names) < 60 else 60)
    axes.set_yticks(range(len(table.rows)), [shorten(row[0]) for row in table.rows])
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(table.rows) - 0.5, -0.5))
    axes.grid(visible=False)


# The chart of a table -> its drawing on axes, and its height in inches for a number of rows; the width is 7 inches.
CHARTS: dict[str, tuple[Callable[[Any, Drawable], None], Callable[[int], float]]] = {
    "bars": (_bars, lambda rows: 0.9 + 0.32 * rows),
    "lines": (_lines, lambda rows: 3.6),
    "dots": (_dots, lambda rows: 1.3 + 0.3 * rows),
    "scatter": (_scatter, lambda rows: 4.2),
    "heat": (_heat, lambda rows: 1.0 + 0.45 * rows),
}


def draw(table: Drawable) -> Markup:
    """The chart of a table, which must have rows, as an <svg> element that names itself for screen readers."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure

    plot, height = CHARTS[table.chart]
    # Equal tables have equal charts, and others other ids: a page has many charts.
    with matplotlib.rc_context(_RC | {"svg.hashsalt": repr(table)}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the page has a font for it
        figure = Figure(figsize=(7, height(len(table.rows))))
        figure.patch.set_alpha(0)
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        plot(axes, table)
        file = io.StringIO()
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=none)
    return Markup(_for_page(file.getvalue(), table.title))  # matplotlib escapes its texts, and we the title


def _for_page(svg: str, title: str) -> str:
    """The <svg> element alone, with its title, with variables in place of the stand-in colors and the page's font."""
    svg = svg[svg.index("<svg") :]
    for color, name in _STAND_INS.items():
        svg = svg.replace(color, f"var({name})")
    svg = re.sub(r"<style .*?</style>", "", svg, flags=re.DOTALL)  # it would hold for the whole page
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # "axes_1" in every chart
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    svg = re.sub(r' (?:width|height)="[0-9.]+pt"', "", svg, count=2)
    return f'<svg role="img" aria-label="{escape(title)}"{svg[len("<svg") :]}'
