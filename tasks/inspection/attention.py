"""The attention of every head: the weights with which a token reads the others, and a summary over many texts.

In: a model that takes strings, and texts. Out: `Attention`, the weights of one text, which can be drawn; or a table of heads.
Sources: Vaswani et al. 2017, sec. 3.2; Clark et al. 2019, sec. 3.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import ATTENTION_PROBABILITIES, INPUT_MASK, INPUT_WORD_IDS
from bert_keras.io.files import atomic_file
from bert_keras.io.paths import to_path
from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.inspection.attention_drawing import draw_head, draw_heads, render_fragment, render_page
from bert_keras.tasks.inspection.offers import MEASURES, PAGE, PICTURES, check_output
from bert_keras.tasks.inspection.reading import (
    count_tokens,
    name_texts,
    one_row,
    one_run,
    read_examples,
    rows_of,
    token_names,
)
from bert_keras.tasks.report import Table
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.task import Features
from bert_keras.text.tokenizer import Tokenizer

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
        return render_fragment(self)

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
    Raises BertKerasError for an ensemble, and for an encoder of your own without attention probabilities.
    """
    run = one_run(model)
    texts = [one for one in (text, second) if one is not None]
    if wrong := [one for one in texts if not isinstance(one, str)]:
        raise BertKerasError(
            f"the text is a {type(wrong[0]).__name__}; give one string, or two for a pair. attention_summary takes a list."
        )
    named = name_texts(run, text, second)
    if named is None or any(spec.shape.rank != 1 for spec in run.task.signature().values()):
        features = run.preprocess(*(tf.constant([one]) for one in texts))
    else:
        features, _ = read_examples(run, {name: [value] for name, value in named.items()})
    rows, tokenizer = rows_of(features), run.preprocess.tokenizer
    row = one_row(rows, 0)
    (weights,) = _weights(run.encoder, row)
    windows, length = len(rows[INPUT_MASK]), row[INPUT_MASK].shape[1]
    note = f"the first of {windows} windows of a long text" if windows > 1 else ""
    if windows == 1 and (total := count_tokens(tokenizer, texts)) > run.preprocess.seq_length:
        note = f"a text of {total} tokens, cut to {length}"
    return Attention(tokens=tuple(token_names(tokenizer, row)), weights=weights, note=note)


def attention_summary(model: Any, texts: Any, *, batch_size: int = 32) -> Table:
    """A table of all heads: what each reads in many texts (Clark et al. 2019, sec. 3).

    texts: as `predict` takes them
    batch_size: texts that are computed at once

    Columns: layer, head, and the means over all tokens of their weights on the previous and the next token, [SEP], [CLS], the
    token itself and other tokens of the same word, and of the entropy in bits. A token without a previous token, a next token or
    a second occurrence of its word does not count for that column. Padding never counts. Every window of a long text counts.
    """
    run = one_run(model)
    return summarize(run, iter([run.task.given(texts)]), batch_size=batch_size)


def summarize(run: Run, columns: Iterable[Mapping[str, Any]], *, batch_size: int) -> Table:
    """As `attention_summary`, for texts in parts. columns: the texts of each part by name, [N]."""
    tokenizer = run.preprocess.tokenizer
    sums: Any = 0.0
    counts: Any = 0.0
    for part in columns:
        total = len(next(iter(part.values())))
        for start in range(0, total, batch_size):
            chosen = {name: column[start : start + batch_size] for name, column in part.items()}
            rows = rows_of(read_examples(run, chosen)[0])
            for ids, weights in zip(_real_ids(rows), _weights(run.encoder, rows), strict=True):
                more, tokens = _measure(weights, ids, tokenizer)
                sums, counts = sums + more, counts + tokens
    if isinstance(counts, float):
        raise BertKerasError("no texts were given; give at least one.")
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    rows_shown = [
        (layer + 1, head + 1, *(None if np.isnan(value) else float(value) for value in values))
        for layer, heads in enumerate(means)
        for head, values in enumerate(heads)
    ]
    return Table("What each head reads", ("layer", "head", *MEASURES), rows_shown, about=ABOUT)


def _real_ids(rows: Features) -> Iterator[np.ndarray]:
    for ids, mask in zip(rows[INPUT_WORD_IDS].numpy(), rows[INPUT_MASK].numpy(), strict=True):
        yield ids[: mask.sum()]


@contextlib.contextmanager
def _computing(encoder: BertEncoder, output: str) -> Iterator[None]:
    """Within it, the encoder computes one output alone; it reads the names at each call."""
    kept, encoder.outputs_wanted = encoder.outputs_wanted, (output,)
    try:
        yield
    finally:
        encoder.outputs_wanted = kept


def _weights(encoder: BertEncoder, rows: Features) -> Iterator[np.ndarray]:
    """The probabilities of each row without its padding, float32 [L, H, S, S]."""
    with _computing(encoder, ATTENTION_PROBABILITIES):
        outputs = encoder(rows, training=False)
    if ATTENTION_PROBABILITIES not in outputs:
        raise BertKerasError(
            f"{type(encoder).__name__} has a call of its own, which gives no {ATTENTION_PROBABILITIES}; return them from it."
        )
    layers = [tf.cast(one, tf.float32).numpy() for one in outputs[ATTENTION_PROBABILITIES]]
    for row, length in enumerate(rows[INPUT_MASK].numpy().sum(axis=1)):
        yield np.stack([layer[row, :, :length, :length] for layer in layers])


def _measure(weights: np.ndarray, ids: np.ndarray, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The sums of MEASURES over the tokens of a text, float64 [L, H, 7], and the tokens that count for each, [7]."""
    weights = weights.astype(np.float64)
    special, size = tokenizer.special, len(ids)
    content = ~np.isin(ids, (special.start, special.end))
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
