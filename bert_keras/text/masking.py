"""Masking in the TensorFlow graph: chooses the positions to predict, from ids and a seed alone.

In: Features, int32 [B, S], framed and padded, and a seed, int [2]. Out: Features with masked tokens, and the labels:

    [CLS] the [MASK] sat ##s [SEP] [PAD]     input_word_ids
      2 0                                    masked_lm_positions  int32 [B, P], ascending, padded with 0
    cat 0                                    masked_lm_ids        int32 [B, P], the original tokens
      1 0                                    masked_lm_weights    float32 [B, P], 0 on padding

The rates (15 % of the tokens, of which 80/10/10 are hidden, kept and replaced) are the fields of `bert_keras.fields.Masking`.
Equal features and an equal seed give equal results on every machine.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from bert_keras.features import (
    ALL_ROWS,
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    WORD_STARTS,
    WorkerRows,
)
from bert_keras.fields import Masking
from bert_keras.text.tokenizer import SpecialTokens, Tokenizer

Features = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """The facts about a vocabulary that the objectives need.

    special: the ids that are never predicted, [UNK] included; the original also predicts [UNK].
    continues: bool [V], tokens that continue a word.
    real: int32 [R], ids that can occur in text: no special tokens, no [unused7].
    texts: the bytes of each token in a text.
    """

    special: SpecialTokens
    continues: np.ndarray
    real: np.ndarray
    texts: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Pieces:
        """The facts about a tokenizer's vocabulary."""
        return cls(
            special=tokenizer.special,
            continues=tokenizer.continues,
            real=tokenizer.real,
            texts=tokenizer.texts,
        )

    @property
    def is_special(self) -> np.ndarray:
        """Bool [V], True for ids that are never predicted."""
        table = np.zeros(len(self.continues), bool)
        table[[*self.special.ids]] = True
        return table


def mask(
    features: Features,
    *,
    seed: tf.Tensor,
    pieces: Pieces,
    masking: Masking,
    worker_rows: WorkerRows = ALL_ROWS,
) -> Features:
    """Features with masked tokens, and `masked_lm_positions`, `masked_lm_ids` and `masked_lm_weights` [B, P].

    features: int32 [B, S]. `word_starts` (1 where a word starts, from a segmenter), if given, defines whole words in place of the
        vocabulary; the result does not include it.
    seed: int32 or int64 [2].
    worker_rows: the rows that the features are of a batch; the result has the same rows of the masked batch.

    We predict min(max_predictions, max(1, round(share * length))) positions, and round halves to the even number, as Python does
    in the original. There are fewer if no further whole word fits, and none in a text of special tokens alone. Words are taken
    in random order. A word with more tokens than are left is skipped; an n-gram is shortened first; a word or n-gram that
    overlaps a word already taken is skipped. A special token ends a word and an n-gram.
    Source: google-research/bert and google-research/albert create_pretraining_data.py, create_masked_lm_predictions.
    """
    seeds = tf.unstack(tf.random.experimental.stateless_split(tf.cast(seed, tf.int64), 4), num=4)
    ids = features[INPUT_WORD_IDS]
    uniform = functools.partial(_uniform, ids, worker_rows)
    positions, chosen = _choose(features, uniform, seeds=seeds[:2], pieces=pieces, masking=masking)
    originals = tf.where(chosen, _at(positions, ids), 0)
    draw = _at(positions, uniform(seeds[2]))
    random = _at(positions, _random_pieces(uniform, seeds[3], pieces, masking))
    hidden = tf.where(draw < 1 - masking.keep, random, originals)
    hidden = tf.where(draw < masking.hide, pieces.special.mask_id, hidden)
    places = tf.where(chosen)
    at = tf.stack([places[:, 0], tf.cast(tf.gather_nd(positions, places), places.dtype)], axis=1)
    kept = {name: value for name, value in features.items() if name != WORD_STARTS}
    return kept | {
        INPUT_WORD_IDS: tf.tensor_scatter_nd_update(ids, at, tf.gather_nd(hidden, places)),
        MASKED_LM_POSITIONS: positions,
        MASKED_LM_IDS: originals,
        MASKED_LM_WEIGHTS: tf.cast(chosen, tf.float32),
    }


def ask_next(features: Features) -> Features:
    """Left-to-right labels for a `causal` encoder: hides nothing, and predicts each token from the position before it.

    features: int32 [B, S] -> Features with P = S - 1: `masked_lm_positions` is 0 .. S-2, `masked_lm_ids` the token after each
    position, special tokens included; the weights of padding are 0.
    """
    ids, real = features[INPUT_WORD_IDS], features[INPUT_MASK]
    positions = tf.range(tf.shape(ids)[1] - 1)
    return features | {
        MASKED_LM_POSITIONS: tf.broadcast_to(positions, tf.shape(ids[:, 1:])),
        MASKED_LM_IDS: ids[:, 1:] * real[:, 1:],
        MASKED_LM_WEIGHTS: tf.cast(real[:, 1:], tf.float32),
    }


def count_asked(lengths: tf.Tensor, masking: Masking) -> tf.Tensor:
    """The number of positions to predict in texts of these lengths in tokens: int32 [B] -> int32 [B]."""
    # float64, so that 0.15 * 30 is 4.5, as in Python.
    rounded = tf.cast(tf.round(tf.cast(lengths, tf.float64) * masking.share), tf.int32)
    return tf.minimum(masking.max_predictions, tf.maximum(1, rounded))


def _at(positions: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """The values [B, S] at positions, int32 [B, P]: [B, P]."""
    return tf.gather(values, positions, batch_dims=1)


def _uniform(ids: tf.Tensor, worker_rows: WorkerRows, seed: tf.Tensor, limit: int | None = None) -> tf.Tensor:
    """Draws for the ids [B, S] of a worker's rows of a batch: float32 in [0, 1), or int32 below a limit.

    A draw depends on its position in the whole batch. The draws of all rows are much cheaper than masking them.
    """
    rows, length = tf.unstack(tf.shape(ids))
    kind = tf.float32 if limit is None else tf.int32
    drawn = tf.random.stateless_uniform([worker_rows.count * rows, length], seed, 0, limit, kind)
    return drawn[worker_rows.index * rows : (worker_rows.index + 1) * rows]


def _random_pieces(
    uniform: Callable[..., tf.Tensor], seed: tf.Tensor, pieces: Pieces, masking: Masking
) -> tf.Tensor:
    """A random token for every position: int32 [B, S]."""
    if masking.random_pieces == "vocabulary":
        return uniform(seed, len(pieces.continues))
    return tf.gather(pieces.real, uniform(seed, len(pieces.real)))


def _choose(
    features: Features,
    uniform: Callable[..., tf.Tensor],
    *,
    seeds: Sequence[tf.Tensor],
    pieces: Pieces,
    masking: Masking,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the positions to predict: int32 [B, P], ascending, padded with 0, and bool [B, P], False on padding.

    uniform: seed -> draws float32 [B, S]
    """
    ids, real = features[INPUT_WORD_IDS], features[INPUT_MASK] > 0
    wanted = count_asked(tf.reduce_sum(tf.cast(real, tf.int32), axis=1), masking)
    if masking.max_ngram == 1 and not masking.whole_word:
        draw = uniform(seeds[0])
        return _choose_tokens(features, wanted, draw=draw, pieces=pieces, masking=masking)
    starts, lengths, exists = _units(features, pieces=pieces, masking=masking)
    # In random order: the n-gram of the drawn length, and the shorter n-grams at the same start.
    order = tf.argsort(tf.where(exists, uniform(seeds[0]), 2.0), axis=1)
    starts = tf.gather(starts, order, batch_dims=1)
    lengths = tf.gather(lengths, order, batch_dims=1)
    weights = 1 / np.arange(1, masking.max_ngram + 1)
    steps = np.cumsum(weights / weights.sum())[:-1].astype("float32")
    draw = uniform(seeds[1])
    shorter = 1 + tf.reduce_sum(tf.cast(draw[..., tf.newaxis] >= steps, tf.int32), axis=-1)
    lengths *= tf.sequence_mask(shorter, masking.max_ngram, tf.int32)
    candidates = tf.reduce_sum(tf.cast(exists, tf.int32), axis=1)
    taken = _take(starts, lengths, candidates=candidates, wanted=wanted)
    length = tf.shape(ids)[1]
    # The first ones in order, for less than the cost of a sort.
    found = tf.math.top_k(
        tf.where(taken, -tf.range(length), -length), k=tf.minimum(masking.max_predictions, length)
    )
    return _padded(-found.values, length, masking.max_predictions)


def _choose_tokens(
    features: Features, wanted: tf.Tensor, *, draw: tf.Tensor, pieces: Pieces, masking: Masking
) -> tuple[tf.Tensor, tf.Tensor]:
    """`_choose` where each token is a word: those with the least draws. wanted: int32 [B]; draw: float32 [B, S]."""
    exists, length = _selectable(features, pieces), tf.shape(draw)[1]
    most = tf.minimum(masking.max_predictions, length)
    order = tf.math.top_k(-tf.where(exists, draw, 2.0), k=most).indices  # of equal draws the first
    taken = tf.minimum(wanted, tf.reduce_sum(tf.cast(exists, tf.int32), axis=1))
    positions = tf.sort(tf.where(tf.sequence_mask(taken, most), order, length), axis=1)
    return _padded(positions, length, masking.max_predictions)


def _padded(positions: tf.Tensor, length: tf.Tensor, most: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Ascending positions, int32 [B, at most P], `length` where there is none: int32 [B, P] and bool [B, P]."""
    added = [[0, 0], [0, most - tf.shape(positions)[1]]]
    positions = tf.ensure_shape(tf.pad(positions, added, constant_values=length), [None, most])
    chosen = positions < length
    return tf.where(chosen, positions, 0), chosen


def _selectable(features: Features, pieces: Pieces) -> tf.Tensor:
    """The tokens that may be predicted: bool [B, S]."""
    return (features[INPUT_MASK] > 0) & ~tf.gather(pieces.is_special, features[INPUT_WORD_IDS])


def _units(features: Features, *, pieces: Pieces, masking: Masking) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The starts of words, int32 [B, S]; the lengths of 1 .. N words, int32 [B, S, N]; a mask of those that exist, bool [B, S].

    Without `whole_word`, each token is a word. All three follow the order of the text, with padding at the end.
    """
    ids = features[INPUT_WORD_IDS]
    selectable = _selectable(features, pieces)
    continues = tf.zeros_like(selectable)
    if masking.whole_word:
        continues = features[WORD_STARTS] < 1 if WORD_STARTS in features else tf.gather(pieces.continues, ids)
        before = tf.pad(selectable, [[0, 0], [1, 0]])[:, :-1]
        continues &= selectable & before
    length = tf.shape(ids)[1]
    positions = tf.sort(tf.where(continues, length, tf.range(length)), axis=1)
    padding = [[0, 0], [0, masking.max_ngram]]
    positions = tf.pad(positions, padding, constant_values=length)
    exists = (positions < length) & tf.gather(tf.pad(selectable, [[0, 0], [0, 1]]), positions, batch_dims=1)
    ends: list[tf.Tensor] = []
    together = tf.ones_like(selectable)
    for n in range(masking.max_ngram):
        together &= exists[:, n : n + length]
        end = positions[:, n + 1 : n + 1 + length]
        ends.append(tf.where(together, end, ends[-1]) if ends else end)
    starts = positions[:, :length]
    return starts, tf.stack(ends, axis=-1) - starts[..., tf.newaxis], exists[:, :length]


def _take(starts: tf.Tensor, lengths: tf.Tensor, *, candidates: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Takes words in order, each if it fits and is free: bool [B, S].

    starts: int32 [B, S]; lengths: int32 [B, S, N], the longest that fits is taken; candidates, wanted: int32 [B].
    """
    width = tf.shape(starts)[1]
    positions = tf.range(width)

    def unfinished(step: tf.Tensor, taken: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any((left > 0) & (step < candidates))

    def take(step: tf.Tensor, taken: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, ...]:
        start, fitting = starts[:, step], lengths[:, step]
        length = tf.reduce_max(tf.where(fitting <= left[:, tf.newaxis], fitting, 0), axis=1)
        length = tf.where(step < candidates, length, 0)
        span = (positions >= start[:, tf.newaxis]) & (positions < (start + length)[:, tf.newaxis])
        free = ~tf.reduce_any(taken & span, axis=1)
        return step + 1, taken | (span & free[:, tf.newaxis]), left - tf.where(free, length, 0)

    nothing = tf.zeros_like(starts, tf.bool)
    return tf.while_loop(unfinished, take, (0, nothing, wanted))[1]
