"""Turns strings into the three tensors that an encoder takes.

In: one or two string tensors [B], the segments. Out: `Features`, a dict of int32 [B, S] under the names of features.py:

    [CLS] a a a [SEP] b b [SEP] [PAD] [PAD]      input_word_ids
      1   1 1 1   1   1 1   1     0     0        input_mask
      0   0 0 0   0   1 1   1     0     0        input_type_ids

A tokenizer's `pair` says how many [SEP] stand between two segments, and the type of the second.

A context [B] that is longer than the encoder's input, with an optional question [B], becomes overlapping windows [W].

`pad_batches` pads batches so that the replicas divide their rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    END_BYTES,
    EXAMPLE_INDEX,
    INPUT_CHARACTERS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MAX_CONTEXT,
    START_BYTES,
    WORD_INDEX,
    WorkerRows,
)
from bert_keras.text.ragged import repeats, row_numbers
from bert_keras.text.spelling import SENTENCE_END, SENTENCE_START, spell, spell_mark
from bert_keras.text.tokenizer import Tokenizer

Features = dict[str, tf.Tensor]
MAX_SEGMENTS = 2  # BERT has two type ids


def longest_first(first: tf.Tensor, second: tf.Tensor, *, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The lengths after the longer segment loses token by token until both fit; at equal lengths the second loses one.

    first, second: int [B], tokens. The loop of google-research/bert run_classifier.py (`_truncate_seq_pair`) in
    closed form.
    """
    kept = tf.minimum(first, tf.maximum((room + 1) // 2, room - second))
    return kept, tf.minimum(second, room - kept)


def waterfall(first: tf.Tensor, second: tf.Tensor, *, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The lengths if the first segment gets all the room it needs and the second the rest. int [B], tokens."""
    kept = tf.minimum(first, room)
    return kept, tf.minimum(second, room - kept)


TRUNCATION: dict[str, Callable[..., tuple[tf.Tensor, tf.Tensor]]] = {
    "longest_first": longest_first,
    "waterfall": waterfall,
}


def tail(length: tf.Tensor, *, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The tokens to keep of a text's start and of its end: the last `room` tokens. int [B]."""
    return tf.zeros_like(length), tf.minimum(length, room)


def head_tail(length: tf.Tensor, *, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """As `tail`: of a text that does not fit, the first 128 and the last 382 of 510 tokens, or as large a part of `room`.

    Source: Sun et al. 2019, sec. 5.3.1.
    """
    first = tf.minimum(length, (room * 128 + 255) // 510)
    return first, tf.minimum(length - first, room - first)


# The ways to shorten one text that does not fit, beside keeping its start.
ENDS: dict[str, Callable[..., tuple[tf.Tensor, tf.Tensor]]] = {"tail": tail, "head_tail": head_tail}


class Preprocessor(tf.Module):
    """Tokenizes one or two segments, cuts them to fit, frames them with special tokens and pads.

    The end of a segment is cut off, or its start if the tokenizer's rules say so.

    seq_length: S, in tokens, special tokens included; for `pack` in a graph, int32 [] is allowed too.
    pad_to_longest: pad to the batch's longest row (S is then at most seq_length) instead of to seq_length.
    multiple_of: with pad_to_longest, S is rounded up to a multiple of this, at most to seq_length.
    truncation: the way to shorten two segments: "longest_first", or "waterfall", which cuts the second segment first.
    Raises ValueError for a seq_length without room for one token of each segment, a multiple under 1 or an unknown truncation.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        seq_length: int | tf.Tensor = 128,
        pad_to_longest: bool = False,
        multiple_of: int = 1,
        truncation: str = "longest_first",
    ):
        super().__init__()
        if not tf.is_tensor(seq_length):
            seq_length = operator.index(seq_length)  # a number of NumPy could not be saved
        shortest = tokenizer.pair.added(MAX_SEGMENTS) + MAX_SEGMENTS
        if not tf.is_tensor(seq_length) and seq_length < shortest:
            raise BertKerasError(
                f"seq_length is {seq_length}; give at least {shortest}, which holds special tokens and one token of each segment"
            )
        if multiple_of < 1:
            raise BertKerasError(f"multiple_of is {multiple_of}; give at least 1")
        if truncation not in TRUNCATION:
            raise BertKerasError(f"truncation is {truncation!r}; choose one of {', '.join(TRUNCATION)}")
        self.tokenizer = tokenizer
        self.seq_length = seq_length
        self.pad_to_longest = pad_to_longest
        self.multiple_of = multiple_of
        self.truncation = truncation

    def __repr__(self) -> str:
        settings = ("seq_length", "pad_to_longest", "multiple_of", "truncation")
        named = ", ".join(f"{name}={getattr(self, name)!r}" for name in settings)
        return f"Preprocessor({self.tokenizer!r}, {named})"

    def __call__(self, *segments: tf.Tensor | str | Sequence[str], keep: str | None = None) -> Features:
        """segments: one or two string [B] -> Features, int32 [B, S]. A Python string is a batch of one.

        keep: "tail" or "head_tail", a key of ENDS: the part to keep of one text that does not fit; None keeps its start

        Raises as `pack` does, and ValueError for another `keep`, or beside two segments.
        """
        ids = [self._tokens(_strings(segment)) for segment in segments]
        if keep is not None:
            if keep not in ENDS or len(ids) != 1:
                raise BertKerasError(
                    f"keep is {keep!r} for {len(ids)} segment(s); give one of {', '.join(ENDS)} for one text, or leave it out"
                )
            ids = [_ends(ids[0], *ENDS[keep](_lengths(ids[0]), room=self.seq_length - 2))]
        return self.pack(*ids)

    def pack(self, *segments: tf.RaggedTensor) -> Features:
        """The part of `__call__` after tokenizing. segments: one or two ragged int32 [B, (T)], ids -> Features, int32 [B, S].

        Where the encoder reads characters, a token is a row of its id and its C characters: ragged int32 [B, (T), 1 + C].

        Raises ValueError for another number of segments, InvalidArgumentError for segments of different batch sizes.
        """
        if not 1 <= len(segments) <= MAX_SEGMENTS:
            raise BertKerasError(f"{len(segments)} segments were given; give one or two")
        return self._framed(self._cut(segments))

    def windows(
        self,
        context: tf.Tensor,
        *,
        question: tf.Tensor | None = None,
        doc_stride: int = 128,
        max_query_length: int | None = 64,
        word_starts: tf.RaggedTensor | None = None,
    ) -> Features:
        """Cuts each context into overlapping windows; each starts with the truncated question.

        context, question: string [B].
        doc_stride: tokens from the start of one window to the start of the next (fewer if fewer fit).
        max_query_length: the most tokens of the question; later tokens are cut off. None cuts it as `longest_first` would: only
            where the context does not fit beside it, and then to half of the window.
        word_starts: ragged int32 [B, (N)], the first byte of each word, ascending.
        Returns the encoder's inputs [W, S], `example_index` [W] in ascending order, and `start_bytes`, `end_bytes` and
        `max_context` [W, S]. Every token of a context is in at least one window, and has the maximum context in exactly one; an
        empty context has one window. With `word_starts` also `word_index` [W, S]: the word's index at its first token, in the
        one window with the most context for it; -1 elsewhere. A word without tokens (only control characters) has no index.
        Raises ValueError for a doc_stride under 1, or if no room is left for the context.
        Source: google-research/bert run_squad.py, convert_examples_to_features and _check_is_max_context.
        """
        room, special_tokens = self.window_room(question is not None, doc_stride, max_query_length)
        if question is not None:
            # Stacking refuses unequal batch sizes; some ragged kernels would read past the shorter batch.
            context, question = tf.unstack(tf.stack([context, question]))
        ids, starts, ends = self._tokens_with_offsets(context)
        rooms = tf.fill([ids.nrows()], self.seq_length - special_tokens)
        if question is None:
            window = _Windows(_lengths(ids), rooms=rooms, doc_stride=doc_stride)
            segments, before = [window.cut(ids)], tf.ones_like(window.example)
        else:
            query = self._tokens(question)
            if max_query_length is None:
                kept, _ = longest_first(_lengths(query), _lengths(ids), room=room)
            else:
                kept = tf.minimum(_lengths(query), max_query_length)
            window = _Windows(_lengths(ids), rooms=rooms - kept, doc_stride=doc_stride)
            segments = [tf.gather(_heads(query, kept), window.example), window.cut(ids)]
            # The positions before the context: [CLS], the question and the [SEP] after it.
            before = 1 + _lengths(segments[0]) + self.tokenizer.pair.separators
        features = self._framed(segments)
        placed = functools.partial(_placed, before=before, width=self._width(features[INPUT_WORD_IDS]))

        max_context = window.max_context()
        features |= {
            EXAMPLE_INDEX: window.example,
            START_BYTES: placed(window.cut(starts), -1),
            END_BYTES: placed(window.cut(ends), -1),
            MAX_CONTEXT: placed(max_context, 0),
        }
        if word_starts is not None:
            words = window.cut(_first_tokens(starts, word_starts))
            words = words.with_values(tf.where(max_context.values > 0, words.values, -1))
            features[WORD_INDEX] = placed(words, -1)
        return features

    def window_room(self, asks: bool, doc_stride: int, max_query_length: int | None) -> tuple[int, int]:
        """Positions of a window beside its question, at the least, and special tokens. Raises ValueError as `windows`.

        asks: True where the windows start with a question
        """
        special_tokens = self.tokenizer.pair.added(2 if asks else 1)
        room = self.seq_length - special_tokens - (max_query_length or 0 if asks else 0)
        if room < 1:
            raise BertKerasError(
                f"seq_length {self.seq_length} leaves no room for the context beside {max_query_length} tokens of "
                f"question; give at least {self.seq_length + 1 - room}, or a lower max_query_length"
            )
        if doc_stride < 1:
            raise BertKerasError(f"doc_stride is {doc_stride}; give at least 1")
        return room, special_tokens

    def words(self, text: tf.Tensor, starts: tf.RaggedTensor, *, doc_stride: int = 128) -> Features:
        """The `windows` of text, string [B], with known words: `starts`, ragged int32 [B, (N)], is its `word_starts`."""
        return self.windows(text, word_starts=starts, doc_stride=doc_stride, max_query_length=None)

    def _framed(self, segments: list[tf.RaggedTensor]) -> Features:
        """Adds special tokens, padding, mask and types to segments that fit."""
        special, pair = self.tokenizer.special, self.tokenizer.pair
        marks = special.start, special.between, special.end, special.padding
        start, between, end, padding = map(self._mark, marks)
        count = segments[0].nrows()

        def filled(width: int, mark: tf.Tensor) -> tf.Tensor:
            if mark.shape.rank == 0:
                return tf.fill([count, width], mark)
            return tf.tile(mark[tf.newaxis, tf.newaxis], [count, width, 1])

        parts = [filled(1, start), segments[0]]
        for segment in segments[1:]:
            parts += [filled(pair.separators, between), segment]
        rows = tf.concat([*parts, filled(1, end)], axis=1)
        shape = None if self.pad_to_longest else tf.stack([-1, self.seq_length, *padding.shape])
        tokens = rows.to_tensor(padding, shape=shape)
        if self.pad_to_longest:
            # An empty batch has no longest row, but an encoder reads position 0.
            longest = tf.maximum(tf.shape(tokens)[1], 1)
            rounded = tf.minimum(-(-longest // self.multiple_of) * self.multiple_of, self.seq_length)
            added = [[0, 0], [0, rounded - tf.shape(tokens)[1]], *[[0, 0] for _ in padding.shape]]
            tokens = tf.pad(tokens, added, constant_values=special.padding)
        width = self._width(tokens)
        mask = tf.sequence_mask(_lengths(rows), width, tf.int32)
        first_segment = tf.sequence_mask(_lengths(segments[0]) + 2, width, tf.int32)  # with [CLS] and [SEP]
        types = (mask - first_segment) * pair.second_type
        if not self.tokenizer.rules.characters:
            return {INPUT_WORD_IDS: tokens, INPUT_MASK: mask, INPUT_TYPE_IDS: types}
        characters = tokens[..., 1:] * mask[..., tf.newaxis]
        return {
            INPUT_WORD_IDS: tokens[..., 0],
            INPUT_MASK: mask,
            INPUT_TYPE_IDS: types,
            INPUT_CHARACTERS: characters,
        }

    def _tokens(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Ids ragged int32 [B, (T)], or [B, (T), 1 + C] with the characters of each token."""
        if self.tokenizer.rules.characters:
            return self._tokens_with_offsets(text)[0]
        return self.tokenizer.tokenize(text)

    def _tokens_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """As `_tokens`, with the start and the end of each token in bytes, ragged int32 [B, (T)]."""
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(text)
        if not (size := self.tokenizer.rules.characters):
            return ids, starts, ends
        of_token = tf.gather(text, row_numbers(ids.row_splits))
        words = tf.strings.substr(of_token, starts.values, ends.values - starts.values)
        spelled = tf.concat([ids.values[:, tf.newaxis], spell(words, size)], axis=1)
        return ids.with_values(spelled), starts, ends

    def _mark(self, id_: int) -> tf.Tensor:
        """A special token as `_tokens` has tokens: int32 [], or [1 + C]."""
        special, size = self.tokenizer.special, self.tokenizer.rules.characters
        if not size:
            return tf.constant(id_, tf.int32)
        marks = {special.start: SENTENCE_START, special.end: SENTENCE_END}
        spelled = spell_mark(marks[id_], size) if id_ in marks else [0] * size
        return tf.constant([id_, *spelled], tf.int32)

    def _width(self, word_ids: tf.Tensor) -> int | tf.Tensor:
        """S of int32 [B, S], as a Python number if it is known."""
        return tf.shape(word_ids)[1] if self.pad_to_longest else self.seq_length

    def _cut(self, segments: tuple[tf.RaggedTensor, ...]) -> list[tf.RaggedTensor]:
        """Truncates segments so that they and their special tokens fit into seq_length."""
        room = self.seq_length - self.tokenizer.pair.added(len(segments))
        # Stacking refuses unequal batch sizes; some ragged kernels would read past the shorter batch.
        lengths = tf.unstack(tf.stack([_lengths(segment) for segment in segments]), num=len(segments))
        kept = [tf.minimum(lengths[0], room)]
        if len(segments) == 2:
            kept = list(TRUNCATION[self.truncation](*lengths, room=room))
        cut = _tails if self.tokenizer.rules.left else _heads
        return [cut(segment, length) for segment, length in zip(segments, kept, strict=True)]


class _Windows:
    """The windows over rows of tokens.

    lengths, rooms: int32 [B], the tokens of each row and the tokens that fit into one of its windows.
    """

    def __init__(self, lengths: tf.Tensor, *, rooms: tf.Tensor, doc_stride: int) -> None:
        # At least 1: a question may fill the window of an empty context.
        strides = tf.maximum(tf.minimum(rooms, doc_stride), 1)
        counts = 1 + tf.maximum(lengths - rooms + strides - 1, 0) // strides
        self.example = repeats(counts)  # int32 [W]
        self._rank = tf.ragged.range(counts).values  # among the windows of its row
        self._start = self._rank * tf.gather(strides, self.example)
        left = tf.gather(lengths, self.example) - self._start
        self._lengths = tf.minimum(tf.gather(rooms, self.example), left)
        self._row_starts = tf.gather(tf.cumsum(lengths, exclusive=True), self.example)
        self._total = tf.reduce_sum(lengths)

    def _tokens(self) -> tf.RaggedTensor:
        """The index of each token among the tokens of all rows: ragged int32 [W, (T)]."""
        first = self._row_starts + self._start
        return tf.ragged.range(first, first + self._lengths)

    def cut(self, rows: tf.RaggedTensor) -> tf.RaggedTensor:
        """Ragged [B, (T)] -> ragged [W, (T)]."""
        return tf.gather(rows.values, self._tokens())

    def max_context(self) -> tf.RaggedTensor:
        """1 where a token has the most context (the smaller of both sides); ties go to the longer window, then to the first."""
        tokens = self._tokens()
        window = row_numbers(tokens.row_splits)
        left = tf.ragged.range(self._lengths).values
        lengths = tf.gather(self._lengths, window)
        # The original adds 0.01 times the window's length; times 100, the score is a whole number.
        score = tf.cast(100 * tf.minimum(left, lengths - 1 - left) + lengths, tf.int64)
        rank = tf.cast(tf.gather(self._rank, window), tf.int64)
        score = score * tf.cast(tf.size(self._rank) + 1, tf.int64) - rank
        best = tf.math.unsorted_segment_max(score, tokens.values, self._total)
        return tokens.with_values(tf.cast(score == tf.gather(best, tokens.values), tf.int32))


def _placed(values: tf.RaggedTensor, default: int, *, before: tf.Tensor, width: int | tf.Tensor) -> tf.Tensor:
    """The values of the context's tokens at their positions: ragged [W, (T)] -> [W, S]. before: int32 [W], positions."""
    positions = tf.ragged.range(before, before + _lengths(values))
    at = tf.stack([row_numbers(values.row_splits), positions.values], axis=1)
    return tf.tensor_scatter_nd_update(tf.fill([tf.size(before), width], default), at, values.values)


def _first_tokens(starts: tf.RaggedTensor, word_starts: tf.RaggedTensor) -> tf.RaggedTensor:
    """The word's index at its first token, -1 at other tokens. starts: ragged int32 [B, (T)], word_starts: [B, (N)], bytes."""
    # Rows are concatenated with gaps, so that one sorted list works for all rows.
    apart = 1 + tf.cast(tf.maximum(_last(starts.values), _last(word_starts.values)), tf.int64)
    rows = row_numbers(starts.row_splits)
    offsets = tf.cast(starts.values, tf.int64) + tf.cast(rows, tf.int64) * apart
    word_rows = tf.cast(row_numbers(word_starts.row_splits), tf.int64)
    words = tf.cast(word_starts.values, tf.int64) + word_rows * apart
    before = tf.searchsorted(words, offsets, side="right") - 1  # among the words of all rows
    row_starts = tf.cast(tf.gather(word_starts.row_splits, rows), tf.int32)
    first = tf.not_equal(before, tf.concat([[-1], before[:-1]], axis=0)) & (before >= row_starts)
    return starts.with_values(tf.where(first, before - row_starts, -1))


def pad_batches(dataset: tf.data.Dataset, *, multiple_of: int) -> tf.data.Dataset:
    """Pads batches with rows of weight 0, so that `fit` can split them among replicas.

    dataset: batches (features, labels) or (features, labels, weights), each a tensor or a nest of tensors [B, ...]
    multiple_of: rows: the number of replicas, or the batch size, which also fills the last batch of an epoch

    Returns (features, labels, weights) [B', ...], B' the next multiple. Missing weights become float32 [B], 1 in each row. An
    added row repeats the features and labels of the first row.

    With a weighted mean, such as `GlobalMean`, the added rows change neither loss nor gradients. Pass metrics as
    `weighted_metrics`; the `loss` that Keras logs for an epoch weighs each batch by its rows, added rows included.
    Raises ValueError for a `multiple_of` under 1.
    """
    if multiple_of < 1:
        raise BertKerasError(f"multiple_of is {multiple_of}; give at least 1 row.")

    def padded(features: Any, labels: Any, weights: Any = None) -> tuple[Any, Any, Any]:
        labelled = tf.nest.flatten(labels)[0]
        count = tf.shape(labelled)[0]
        if weights is None:
            weights = tf.ones([count])
        if multiple_of == 1 or (labelled.shape[0] is not None and labelled.shape[0] % multiple_of == 0):
            return features, labels, weights
        rows = tf.range(count + (-count) % multiple_of)
        added = rows >= count
        source = tf.where(added, 0, rows)
        features, labels, weights = tf.nest.map_structure(
            lambda x: tf.gather(x, source), (features, labels, weights)
        )
        return features, labels, tf.nest.map_structure(lambda x: _zero_where(added, x), weights)

    return dataset.map(padded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def own_rows(batches: tf.data.Dataset, worker_rows: WorkerRows) -> tf.data.Dataset:
    """A part of the rows of each batch."""

    def own(*batch: Any) -> Any:
        size = tf.shape(tf.nest.flatten(batch)[0])[0] // worker_rows.count
        return tf.nest.map_structure(
            lambda x: x[worker_rows.index * size : (worker_rows.index + 1) * size], batch
        )

    return batches.map(own)


def _zero_where(rows: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Weights [B, ...] with 0 in some rows, bool [B]."""
    mask = tf.reshape(rows, tf.concat([tf.shape(rows), tf.ones([tf.rank(weights) - 1], tf.int32)], axis=0))
    return tf.where(mask, tf.zeros([], weights.dtype), weights)


def _strings(text: tf.Tensor | str | Sequence[str]) -> tf.Tensor:
    return text if tf.is_tensor(text) else tf.reshape(tf.constant(text, tf.string), [-1])


def _last(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_max(tf.concat([[0], values], axis=0))


def _lengths(rows: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(rows.row_lengths(), tf.int32)


def _heads(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first lengths[i] values of every row i."""
    starts = rows.row_starts()
    return tf.gather(rows.values, tf.ragged.range(starts, starts + tf.cast(lengths, starts.dtype)))


def _tails(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The last lengths[i] values of every row i."""
    ends = rows.row_limits()
    return tf.gather(rows.values, tf.ragged.range(ends - tf.cast(lengths, ends.dtype), ends))


def _ends(rows: tf.RaggedTensor, first: tf.Tensor, last: tf.Tensor) -> tf.RaggedTensor:
    """The first first[i] and the last last[i] values of every row i."""
    return tf.concat([_heads(rows, first), _tails(rows, last)], axis=1)
