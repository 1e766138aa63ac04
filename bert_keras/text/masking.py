"""Which positions of a text are hidden and asked, inside the TensorFlow graph: functions of ids and a seed alone.

In: Features, int32 [B, S], framed and padded, and a seed, int [2]. Out: the same with pieces hidden, and what is asked:

    [CLS] the [MASK] sat ##s [SEP] [PAD]     input_word_ids
      2 0                                    masked_lm_positions  int32 [B, P], rising, filled up with 0
    cat 0                                    masked_lm_ids        int32 [B, P], what stood there
      1 0                                    masked_lm_weights    float32 [B, P], 0 on the filling

Equal features and an equal seed give equal results on every machine, so masks are as reproducible as their seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_keras.features import (
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    WORD_STARTS,
)
from bert_keras.settings import Masking
from bert_keras.text.tokenizers import SpecialTokens, Tokenizer

Features = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """What masking has to know of a vocabulary.

    special: the ids that are never asked. [UNK] is one of them; the original asks it too.
    continues: bool [V], pieces that go on with a word.
    real: int32 [R], ids that can occur in text: no special token, no [unused7].
    """

    special: SpecialTokens
    continues: np.ndarray
    real: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Pieces:
        """Of a tokenizer's vocabulary."""
        return cls(special=tokenizer.special, continues=tokenizer.continues, real=tokenizer.real)

    @property
    def is_special(self) -> np.ndarray:
        """Bool [V], which ids are never asked."""
        table = np.zeros(len(self.continues), bool)
        table[list(dataclasses.astuple(self.special))] = True
        return table


def mask(features: Features, *, seed: tf.Tensor, pieces: Pieces, masking: Masking) -> Features:
    """Features with pieces hidden, and `masked_lm_positions`, `masked_lm_ids` and `masked_lm_weights` [B, P].

    features: int32 [B, S]; with `word_starts` among them (1 where a word starts, from a segmenter), these count for whole
        words, not the vocabulary's. Of the result they are no part.
    seed: int32 or int64 [2].

    Asked are min(max_predictions, max(1, round(share * length))) positions, halves rounded to the even number as the
    original's Python does, fewer where no further whole word fits and none in a text of special tokens alone. Words are taken
    in random order; one whose pieces would pass the count is skipped, an n-gram that would is shortened first, and one that
    touches a word already taken is skipped. A special token ends a word and an n-gram.
    Source: google-research/bert and google-research/albert create_pretraining_data.py, create_masked_lm_predictions.
    """
    seeds = tf.unstack(tf.random.experimental.stateless_split(tf.cast(seed, tf.int64), 4), num=4)
    ids = features[INPUT_WORD_IDS]
    asked = _choose(features, seeds=seeds[:2], pieces=pieces, masking=masking)
    draw = tf.random.stateless_uniform(tf.shape(ids), seeds[2])
    hidden = tf.where(draw < 1 - masking.keep, _random_pieces(ids, seeds[3], pieces, masking), ids)
    hidden = tf.where(draw < masking.hide, pieces.special.mask, hidden)
    kept = {name: value for name, value in features.items() if name != WORD_STARTS}
    asked_of = _asked(ids, asked, most=masking.max_predictions)
    return kept | {INPUT_WORD_IDS: tf.where(asked, hidden, ids)} | asked_of


def ask_next(features: Features) -> Features:
    """Hides nothing and asks every position of the one before it: left-to-right, for an encoder that is `causal`.

    features: int32 [B, S] -> the same with P = S - 1: `masked_lm_positions` counts 0 .. S-2, the states that are read;
    `masked_lm_ids` holds the token after each, special tokens too; weights are 0 where that is padding.
    """
    ids, real = features[INPUT_WORD_IDS], features[INPUT_MASK]
    places = tf.range(tf.shape(ids)[1] - 1)
    return features | {
        MASKED_LM_POSITIONS: tf.broadcast_to(places, tf.shape(ids[:, 1:])),
        MASKED_LM_IDS: ids[:, 1:] * real[:, 1:],
        MASKED_LM_WEIGHTS: tf.cast(real[:, 1:], tf.float32),
    }


def count_asked(lengths: tf.Tensor, masking: Masking) -> tf.Tensor:
    """How many positions to ask of texts of so many tokens: int32 [B] -> int32 [B]."""
    # float64, so that 0.15 * 30 is the 4.5 it is in Python.
    rounded = tf.cast(tf.round(tf.cast(lengths, tf.float64) * masking.share), tf.int32)
    return tf.minimum(masking.max_predictions, tf.maximum(1, rounded))


def _asked(ids: tf.Tensor, asked: tf.Tensor, *, most: int) -> Features:
    """Positions, ids and weights [B, P] of what is asked, bool [B, S]."""
    length = tf.shape(ids)[1]
    places = tf.sort(tf.where(asked, tf.range(length), length), axis=1)[:, :most]
    places = tf.pad(places, [[0, 0], [0, most - tf.shape(places)[1]]], constant_values=length)
    places = tf.ensure_shape(places, [None, most])
    real = places < length
    places = tf.where(real, places, 0)
    return {
        MASKED_LM_POSITIONS: places,
        MASKED_LM_IDS: tf.where(real, tf.gather(ids, places, batch_dims=1), 0),
        MASKED_LM_WEIGHTS: tf.cast(real, tf.float32),
    }


def _random_pieces(ids: tf.Tensor, seed: tf.Tensor, pieces: Pieces, masking: Masking) -> tf.Tensor:
    """A random piece for every position: int32 [B, S]."""
    shape = tf.shape(ids)
    if masking.random_pieces == "vocabulary":
        return tf.random.stateless_uniform(shape, seed, 0, len(pieces.continues), tf.int32)
    draw = tf.random.stateless_uniform(shape, seed, 0, len(pieces.real), tf.int32)
    return tf.gather(pieces.real, draw)


def _choose(features: Features, *, seeds: Sequence[tf.Tensor], pieces: Pieces, masking: Masking) -> tf.Tensor:
    """Which positions are asked: bool [B, S]."""
    ids, real = features[INPUT_WORD_IDS], features[INPUT_MASK] > 0
    starts, lengths, exists = _units(features, pieces=pieces, masking=masking)
    # The longest n-gram that was drawn and its shorter ones, in random order.
    order = tf.argsort(tf.where(exists, tf.random.stateless_uniform(tf.shape(ids), seeds[0]), 2.0), axis=1)
    starts = tf.gather(starts, order, batch_dims=1)
    lengths = tf.gather(lengths, order, batch_dims=1)
    weights = 1 / np.arange(1, masking.max_ngram + 1)
    steps = np.cumsum(weights / weights.sum())[:-1].astype("float32")
    draw = tf.random.stateless_uniform(tf.shape(ids), seeds[1])
    shorter = 1 + tf.reduce_sum(tf.cast(draw[..., tf.newaxis] >= steps, tf.int32), axis=-1)
    lengths *= tf.sequence_mask(shorter, masking.max_ngram, tf.int32)
    return _take(
        starts,
        lengths,
        candidates=tf.reduce_sum(tf.cast(exists, tf.int32), axis=1),
        wanted=count_asked(tf.reduce_sum(tf.cast(real, tf.int32), axis=1), masking),
    )


def _units(features: Features, *, pieces: Pieces, masking: Masking) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Where words start: int32 [B, S]; how long 1 .. N of them are: int32 [B, S, N]; which exist: bool [B, S].

    Not whole words, each piece is a word. The three are in the order of the text, filled up at the end.
    """
    ids = features[INPUT_WORD_IDS]
    selectable = (features[INPUT_MASK] > 0) & ~tf.gather(pieces.is_special, ids)
    goes_on = tf.zeros_like(selectable)
    if masking.whole_word:
        goes_on = features[WORD_STARTS] < 1 if WORD_STARTS in features else tf.gather(pieces.continues, ids)
        before = tf.pad(selectable, [[0, 0], [1, 0]])[:, :-1]
        goes_on &= selectable & before
    length = tf.shape(ids)[1]
    places = tf.sort(tf.where(goes_on, length, tf.range(length)), axis=1)
    filling = [[0, 0], [0, masking.max_ngram]]
    places = tf.pad(places, filling, constant_values=length)
    exists = (places < length) & tf.gather(tf.pad(selectable, [[0, 0], [0, 1]]), places, batch_dims=1)
    ends: list[tf.Tensor] = []
    together = tf.ones_like(selectable)
    for n in range(masking.max_ngram):
        together &= exists[:, n : n + length]
        end = places[:, n + 1 : n + 1 + length]
        ends.append(tf.where(together, end, ends[-1]) if ends else end)
    starts = places[:, :length]
    return starts, tf.stack(ends, axis=-1) - starts[..., tf.newaxis], exists[:, :length]


def _take(starts: tf.Tensor, lengths: tf.Tensor, *, candidates: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Takes units in their order, each if it fits and is free: bool [B, S].

    starts: int32 [B, S]; lengths: int32 [B, S, N], the longest that fits is taken; candidates, wanted: int32 [B].
    """
    width = tf.shape(starts)[1]
    places = tf.range(width)

    def unfinished(step: tf.Tensor, taken: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any((left > 0) & (step < candidates))

    def take(step: tf.Tensor, taken: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, ...]:
        start, fitting = starts[:, step], lengths[:, step]
        length = tf.reduce_max(tf.where(fitting <= left[:, tf.newaxis], fitting, 0), axis=1)
        length = tf.where(step < candidates, length, 0)
        span = (places >= start[:, tf.newaxis]) & (places < (start + length)[:, tf.newaxis])
        free = ~tf.reduce_any(taken & span, axis=1)
        return step + 1, taken | (span & free[:, tf.newaxis]), left - tf.where(free, length, 0)

    nothing = tf.zeros_like(starts, tf.bool)
    return tf.while_loop(unfinished, take, (0, nothing, wanted))[1]
