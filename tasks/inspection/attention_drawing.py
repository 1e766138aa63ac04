"""Pictures of attention weights, and a page to explore them.

In: an `Attention`. Out: PNG or SVG by matplotlib, or HTML that needs no other file. The page holds each
weight as a byte, compressed: 12 layers of 12 heads over 128 tokens take about a megabyte.
"""

import base64
import contextlib
import pathlib
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_keras.pages.page import render
from bert_keras.tasks.report import Table

LONGEST = 300  # characters of a text in the title of a picture


def render_page(attention: Any, layer: int = 1, head: int = 1) -> str:
    """The page as HTML, which begins with one head."""
    layers, heads, _, _ = attention.weights.shape
    levels = np.rint(255 * attention.weights).astype(np.uint8)
    packed = base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()
    data = {"tokens": attention.tokens, "layers": layers, "heads": heads, "weights": packed}
    strongest, share = attention.weights.argmax(axis=-1), attention.weights.max(axis=-1)
    columns = ("token", *(f"head {i + 1}" for i in range(heads)))
    tables = [
        Table(
            f"Layer {i + 1}: the token that each token reads most",
            columns,
            [
                (
                    token,
                    *(f"{attention.tokens[strongest[i, h, t]]} {share[i, h, t]:.0%}" for h in range(heads)),
                )
                for t, token in enumerate(attention.tokens)
            ],
        )
        for i in range(layers)
    ]
    values = {"data": data, "layer": layer, "head": head, "tables": tables, "note": attention.note}
    return render("attention.html", title="The attention of each head", **values)


def render_fragment(attention: Any) -> str:
    """The page in a frame, for a notebook, whose own style it then leaves alone."""
    height = min(260 + 24 * len(attention.tokens), 900)
    return render("frame.html", title="Attention weights", page=render_page(attention), height=height)


@contextlib.contextmanager
def _picture(file: pathlib.Path, width: float, height: float) -> Iterator[Any]:
    """Yields the axes of a picture in inches, and writes it. The warning about letters that no font has is one line."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure

    with (
        matplotlib.rc_context({"text.parse_math": False, "svg.fonttype": "none"}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots()
        figure.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else None)
    if any("Glyph" in str(one.message) for one in caught):
        warnings.warn(
            f"{file.name}: the font of pictures lacks letters of this text; the page, .html, has them",
            stacklevel=4,
        )


def draw_heads(attention: Any, file: pathlib.Path) -> None:
    """A square of S x S shades for each head: a row of squares for each layer."""
    weights = attention.weights
    layers, heads, size, _ = weights.shape
    step = size + max(1, size // 12)  # tokens of a square and of the gap after it
    mosaic = np.full((layers * step, heads * step), np.nan)
    for layer in range(layers):
        for head in range(heads):
            top, left = layer * step, head * step
            mosaic[top : top + size, left : left + size] = weights[layer, head]
    side = 0.75  # inches of a square
    with _picture(file, 1.3 + side * max(heads, 5), 1.4 + side * layers) as axes:
        _shade(axes, mosaic)
        axes.set_xticks(np.arange(heads) * step + size / 2, range(1, heads + 1))
        axes.set_yticks(np.arange(layers) * step + size / 2, range(1, layers + 1))
        axes.set(xlabel="head", ylabel="layer")
        axes.set_title(_shorten(" ".join(attention.tokens)), fontsize=8, wrap=True)


def draw_head(attention: Any, layer: int, head: int, file: pathlib.Path) -> None:
    """The shades of one head, with the token that reads at each row and the token that is read above each column."""
    names = [_shorten(token, 20) for token in attention.tokens]
    side = 1.6 + 0.2 * len(names)
    with _picture(file, side + 0.8, side) as axes:
        _shade(axes, attention.head(layer, head))
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set(xlabel="token that is read", ylabel="token that reads")
        axes.set_title(f"Layer {layer}, head {head}", fontsize=10)


def _shade(axes: Any, weights: np.ndarray) -> None:
    # By the square root: most weights are below 0.1.
    shades = axes.imshow(np.sqrt(weights), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bar = axes.figure.colorbar(shades, ax=axes, ticks=np.sqrt([0, 0.05, 0.25, 0.5, 1]), shrink=0.6)
    bar.ax.set_yticklabels(["0", "0.05", "0.25", "0.5", "1"], fontsize=8)
    bar.set_label("weight", fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _shorten(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
