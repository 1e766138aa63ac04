"""Pictures of attention weights, and a page to explore them.

In: an `Attention`. Out: PNG or SVG by matplotlib, or HTML that needs no other file. The page holds each weight as a byte,
compressed: 12 layers of 12 heads over 128 tokens take about a megabyte.
"""

import base64
import pathlib
import warnings
import zlib
from typing import Any

import numpy as np

from bert_keras.pages.charts import shorten
from bert_keras.pages.page import render
from bert_keras.tasks.report import Table


def render_page(attention: Any, layer: int, head: int) -> str:
    """The page as HTML, which begins with one head."""
    tokens, weights = attention.tokens, attention.weights
    layers, heads, _, _ = weights.shape
    stored = np.rint(255 * weights).astype(np.uint8)
    packed = base64.b64encode(zlib.compress(stored.tobytes(), 9)).decode()
    data = {"tokens": tokens, "layers": layers, "heads": heads, "weights": packed}
    columns, best = ("token", *(f"head {i + 1}" for i in range(heads))), weights.argmax(axis=-1)
    tables = []
    for i, shares in enumerate(stored.max(axis=-1) / 2.55):  # the numbers that the drawing shows
        rows = [
            (token, *(f"{tokens[best[i, head, at]]} {shares[head, at]:.0f} %" for head in range(heads)))
            for at, token in enumerate(tokens)
        ]
        tables.append(Table(f"Layer {i + 1}: the token that each token reads most", columns, rows))
    values = {"data": data, "layer": layer, "head": head, "tables": tables, "note": attention.note}
    return render("attention.html", title="The attention of each head", **values)


def draw_heads(attention: Any, file: pathlib.Path) -> None:
    """A square of S x S shades for each head: a row of squares for each layer."""
    layers, heads, size, _ = attention.weights.shape
    step = size + max(1, size // 12)  # tokens of a square and of the gap after it
    mosaic = np.full((layers * step, heads * step), np.nan)
    for layer, head in np.ndindex(layers, heads):
        mosaic[layer * step :, head * step :][:size, :size] = attention.weights[layer, head]
    sides = (("head", heads), ("layer", layers))
    ticks = {name: (np.arange(count) * step + size / 2, range(1, count + 1)) for name, count in sides}
    _draw(file, mosaic, ticks, title=shorten(" ".join(attention.tokens), 300), unit=0.75)


def draw_head(attention: Any, layer: int, head: int, file: pathlib.Path) -> None:
    """The shades of one head, with the token that reads at each row and the token that is read below each column."""
    names = [shorten(token, 20) for token in attention.tokens]
    ticks = dict.fromkeys(("token that is read", "token that reads"), (range(len(names)), names))
    title = f"Layer {layer}, head {head}"
    _draw(file, attention.head(layer, head), ticks, title=title, unit=0.2, rotation=90)


def _draw(
    file: pathlib.Path, weights: np.ndarray, ticks: Any, *, title: str, unit: float, rotation: int = 0
) -> None:
    """Writes shades of weights. ticks: places and names by the label of x and of y; unit: the inches of a name."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure

    (x, columns), (y, rows) = ticks.items()
    width, height = (1.6 + max(unit * len(names), 4) for _, names in (columns, rows))
    settings: dict[Any, Any] = {"text.parse_math": False, "svg.fonttype": "none"}
    with matplotlib.rc_context(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = Figure(figsize=(width + 0.6, height), layout="constrained")
        axes = figure.subplots()
        # By the square root: most weights are below 0.1.
        shades = axes.imshow(np.sqrt(weights), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        levels = (0, 0.05, 0.25, 0.5, 1)
        bar = figure.colorbar(shades, ax=axes, ticks=np.sqrt(levels), shrink=0.6, label="weight")
        bar.ax.set_yticklabels([f"{level:g}" for level in levels])
        axes.set_xticks(*columns, rotation=rotation, fontsize=8)
        axes.set_yticks(*rows, fontsize=8)
        axes.tick_params(length=0)
        axes.set_frame_on(False)
        axes.set(xlabel=x, ylabel=y)
        axes.set_title(title, fontsize=9, wrap=True)
        figure.savefig(file, dpi=110)
    if any("Glyph" in str(one.message) for one in caught):
        message = f"{file.name}: its font lacks letters of this text; the page, .html, has them"
        warnings.warn(message, stacklevel=3)
