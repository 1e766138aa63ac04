"""The attention of every head: the weights with which a token reads the others, and a summary over many texts.

In: a model that takes strings, and texts. Out: `Attention`, the weights of one text, which can be drawn; or a table of heads.
Sources: Vaswani et al. 2017, sec. 3.2; Clark et al. 2019, sec. 3.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import ATTENTION_PROBABILITIES, INPUT_MASK, INPUT_WORD_IDS
from bert_keras.io.files import atomic_file
from bert_keras.io.paths import to_path
from bert_keras.model.encoder import BertEncoder
from bert_keras.pages.page import render
from bert_keras.tasks.inspection import reading
from bert_keras.tasks.inspection.attention_drawing import draw_head, draw_heads, render_page
from bert_keras.tasks.inspection.offers import MEASURES, PAGE, PICTURES, check_output
from bert_keras.tasks.report import Table
from bert_keras.tasks.task import Features
from bert_keras.text.tokenizer import Tokenizer

PAIRS_AT_ONCE = 2**20  # of tokens: with 12 layers of 12 heads, 0.6 GB of weights
ABOUT = (
    "The mean weight that the tokens of all texts give to the previous and the next token, to [SEP], to [CLS], to themselves and "
    "to other tokens of the same word, and the entropy of their weights in bits: 0 where each token reads one token alone."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention weights of one text.

    tokens: the S tokens that the model reads, without padding
    weights: float32 [L, H, S, S] of L layers and H heads; row i has the weights with which token i reads each token, sum 1
    note: the part of a long text that this is; "" for a whole text

    Layers and heads are numbered from 1 wherever a person reads or gives a number.
    """

    tokens: tuple[str, ...]
    weights: np.ndarray
    note: str = ""

    def __repr__(self) -> str:
        layers, heads, size, _ = self.weights.shape
        return f"<Attention of {layers} layers with {heads} heads, {size} tokens{self.note and ', ' + self.note}>"

    def _repr_html_(self) -> str:
        height = min(420 + 26 * len(self.tokens), 900)
        return render("frame.html", title="Attention weights", page=render_page(self, 1, 1), height=height)

    def check_head(self, layer: int | None, head: int | None) -> None:
        """Raises BertKerasError for a layer without a head or the reverse, and for numbers that the model lacks."""
        if (layer is None) != (head is None):
            raise BertKerasError("a layer and a head belong together; give both, or neither.")
        for name, number, most in zip(("layer", "head"), (layer, head), self.weights.shape, strict=False):
            if number is not None and not 1 <= number <= most:
                raise BertKerasError(f"{name} is {number}; the model has {name}s 1 to {most}.")

    def head(self, layer: int, head: int) -> np.ndarray:
        """The weights of one head, float32 [S, S]. Raises BertKerasError for numbers that the model lacks."""
        self.check_head(layer, head)
        return self.weights[layer - 1, head - 1]

    def save(self, path: Any, *, layer: int | None = None, head: int | None = None) -> None:
        """Writes a picture, .png or .svg, or a page to explore, .html.

        layer, head: of one head, drawn large with its tokens; a page begins with it. Without them a picture has every head

        Raises BertKerasError for another ending, a missing folder and numbers that the model lacks.
        """
        check_output(path, (*PICTURES, PAGE))
        self.check_head(layer, head)
        with atomic_file(to_path(path)) as file:
            if file.suffix == PAGE:
                file.write_text(render_page(self, layer or 1, head or 1), encoding="utf-8")
            elif layer is None or head is None:
                draw_heads(self, file)
            else:
                draw_head(self, layer, head, file)


def attention(model: Any, text: str, second: str | None = None) -> Attention:
    """The weights with which every head of every layer reads a text, or a pair of texts.

    model: one that takes strings, such as `bert_keras.load(path)` or `bert_keras.classifier(...)`

    The weights are the encoder's own softmax probabilities, at inference. A text is read as the model reads it for a prediction,
    other numbers of texts as one sequence. Of a text in windows, the first window is read, and `note` says so.
    Returns `tokens`, `weights`, float32 [L, H, S, S], and `note`; `save(path, layer=..., head=...)` writes a picture, .png or
    .svg, or a page to explore, .html, which a notebook shows.
    Raises BertKerasError for an ensemble, and for an encoder of your own without attention probabilities.
    """
    run = reading.one_run(model)
    texts = [one for one in (text, second) if one is not None]
    if wrong := [one for one in texts if not isinstance(one, str)]:
        raise BertKerasError(
            f"the text is a {type(wrong[0]).__name__}; give one string, or two for a pair. attention_summary takes a list."
        )
    signature = run.task.signature()
    if [spec.shape.rank for spec in signature.values()] == [1] * len(texts):
        columns = {name: [one] for name, one in zip(signature, texts, strict=True)}
        features, _ = reading.read_examples(run, columns)
    else:
        features = run.preprocess(*(tf.constant([one]) for one in texts))
    rows, tokenizer = reading.rows_of(features), run.preprocess.tokenizer
    row = reading.one_row(rows, 0)
    (weights,) = _weights(run.encoder, row)
    windows, length = len(rows[INPUT_MASK]), row[INPUT_MASK].shape[1]
    note = f"the first of {windows} windows of a long text" if windows > 1 else ""
    whole = tokenizer.tokenize(tf.constant(texts)).row_lengths()
    total = int(tf.reduce_sum(whole)) + tokenizer.pair.added(len(texts))
    if windows == 1 and total > run.preprocess.seq_length:
        note = f"a text of {total} tokens, cut to {length}"
    return Attention(tokens=tuple(reading.token_names(tokenizer, row)), weights=weights, note=note)


def attention_summary(model: Any, texts: Any, *, batch_size: int = 32) -> Table:
    """A table of all heads: what each reads in many texts (Clark et al. 2019, sec. 3).

    texts: as `predict` takes them
    batch_size: texts that are computed at once

    Columns: layer, head, and the means over all tokens of their weights on the previous and the next token, [SEP], [CLS], the
    token itself and other tokens of the same word, and of the entropy in bits. A token without a previous token, a next token or
    a second occurrence of its word does not count for that column. Padding never counts. Every window of a long text counts.
    """
    run, sums, counts = reading.one_run(model), np.zeros(()), np.zeros(())
    columns = run.task.given(texts)
    for start in range(0, len(next(iter(columns.values()))), batch_size):
        part = {name: column[start : start + batch_size] for name, column in columns.items()}
        rows = reading.rows_of(reading.read_examples(run, part)[0])
        for ids, weights in zip(rows[INPUT_WORD_IDS].numpy(), _weights(run.encoder, rows), strict=True):
            more, tokens = _measure(weights, ids[: weights.shape[-1]], run.preprocess.tokenizer)
            sums, counts = sums + more, counts + tokens
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).tolist()
    shown = [
        (layer, head, *(None if value != value else value for value in values))
        for layer, heads in enumerate(means, start=1)
        for head, values in enumerate(heads, start=1)
    ]
    return Table("What each head reads", ("layer", "head", *MEASURES), shown, about=ABOUT)


def _weights(encoder: BertEncoder, rows: Features) -> Iterator[np.ndarray]:
    """The probabilities of each row without its padding, float32 [L, H, S, S]."""
    lengths = rows[INPUT_MASK].numpy().sum(axis=1)
    at_once = max(1, PAIRS_AT_ONCE // rows[INPUT_MASK].shape[1] ** 2)
    for start in range(0, len(lengths), at_once):
        kept, encoder.outputs_wanted = encoder.outputs_wanted, (ATTENTION_PROBABILITIES,)  # read at each call
        try:
            outputs = encoder(
                {name: one[start : start + at_once] for name, one in rows.items()}, training=False
            )
        finally:
            encoder.outputs_wanted = kept
        if ATTENTION_PROBABILITIES not in outputs:
            raise BertKerasError(
                f"{type(encoder).__name__} has a call of its own, which gives no {ATTENTION_PROBABILITIES}; return them from it."
            )
        layers = [tf.cast(one, tf.float32).numpy() for one in outputs[ATTENTION_PROBABILITIES]]
        for row, length in enumerate(lengths[start : start + at_once]):
            yield np.stack([layer[row, :, :length, :length] for layer in layers])


def _measure(weights: np.ndarray, ids: np.ndarray, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The sums of MEASURES over the tokens of a text, float64 [L, H, 7], and the tokens that count for each, [7]."""
    weights = weights.astype(np.float64)
    special, size = tokenizer.special, len(ids)
    content = ~np.isin(ids, (special.start, special.end, special.unknown))
    same = (ids[:, None] == ids[None, :]) & content & ~np.eye(size, dtype=bool)
    bits = -weights * np.log2(np.where(weights > 0, weights, 1))

    def diagonal(offset: int) -> np.ndarray:
        return np.diagonal(weights, offset, axis1=2, axis2=3).sum(axis=-1)

    def onto(columns: np.ndarray) -> np.ndarray:
        return (weights * columns).sum(axis=(2, 3))

    sums = [diagonal(-1), diagonal(1), onto(ids == special.end), onto(ids == special.start), diagonal(0)]
    sums += [onto(same), bits.sum(axis=(2, 3))]
    counts = (size - 1, size - 1, size, size, size, int(same.any(axis=1).sum()), size)
    return np.stack(sums, axis=-1), np.array(counts)
