"""From strings to the three tensors that an encoder takes.

In: one or two string tensors [B], the segments. Out: `Features`, a dict of int32 [B, S] under the names of features.py:

    [CLS] a a a [SEP] b b [SEP] [PAD] [PAD]      input_word_ids
      1   1 1 1   1   1 1   1     0     0        input_mask
      0   0 0 0   0   1 1   1     0     0        input_type_ids
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS
from bert_keras.tokenizers import Tokenizer

Features = dict[str, tf.Tensor]
MAX_SEGMENTS = 2  # BERT has two type ids


def longest_first(first: tf.Tensor, second: tf.Tensor, *, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Lengths that are left when the longer segment loses its last piece until both fit; of two equals, the second does.

    first, second: int [B], pieces. The loop of google-research/bert run_classifier.py (`_truncate_seq_pair`) in
    closed form.
    """
    kept = tf.minimum(first, tf.maximum((room + 1) // 2, room - second))
    return kept, tf.minimum(second, room - kept)


def waterfall(first: tf.Tensor, second: tf.Tensor, *, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Lengths that are left when the first segment takes what it needs and the second gets the rest. int [B], pieces."""
    kept = tf.minimum(first, room)
    return kept, tf.minimum(second, room - kept)


TRUNCATION: dict[str, Callable[..., tuple[tf.Tensor, tf.Tensor]]] = {
    "longest_first": longest_first,
    "waterfall": waterfall,
}


class Preprocessor(tf.Module):
    """Tokenizes one or two segments, cuts them to fit, frames them with special tokens and pads.

    seq_length: positions S that an encoder will see, special tokens included.
    pad_to_longest: pad to the batch's longest row (S is then at most seq_length) instead of to seq_length.
    truncation: how two segments share the room, a key of TRUNCATION.
    Raises ValueError for a seq_length without room for one piece of each segment, or an unknown truncation.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        seq_length: int = 128,
        pad_to_longest: bool = False,
        truncation: str = "longest_first",
    ):
        super().__init__()
        shortest = 1 + 2 * MAX_SEGMENTS
        if seq_length < shortest:
            raise ValueError(
                f"seq_length is {seq_length}; give at least {shortest}, which holds [CLS] a [SEP] b [SEP]"
            )
        if truncation not in TRUNCATION:
            raise ValueError(f"truncation is {truncation!r}; choose one of {', '.join(TRUNCATION)}")
        self.tokenizer = tokenizer
        self.seq_length = seq_length
        self.pad_to_longest = pad_to_longest
        self.truncation = truncation

    def __call__(self, *segments: tf.Tensor) -> Features:
        """segments: one or two string [B] -> Features, int32 [B, S]. Raises as `pack` does."""
        return self.pack(*[self.tokenizer.tokenize(segment) for segment in segments])

    def pack(self, *segments: tf.RaggedTensor) -> Features:
        """The half after tokenizing. segments: one or two ragged int32 [B, (T)], ids -> Features, int32 [B, S].

        Raises ValueError for another number of segments, InvalidArgumentError for segments of different batch sizes.
        """
        if not 1 <= len(segments) <= MAX_SEGMENTS:
            raise ValueError(f"{len(segments)} segments were given; give one or two")
        cut = self._cut(segments)
        special = self.tokenizer.special
        rows = _frame(cut, opening=special.start, closing=special.end)
        word_ids = rows.to_tensor(
            special.padding, shape=[None, None if self.pad_to_longest else self.seq_length]
        )
        if self.pad_to_longest:
            # A batch without rows has no longest one, and an encoder reads position 0.
            word_ids = tf.pad(word_ids, [[0, 0], [0, tf.maximum(1 - tf.shape(word_ids)[1], 0)]])
        width = tf.shape(word_ids)[1] if self.pad_to_longest else self.seq_length
        mask = tf.sequence_mask(_lengths(rows), width, tf.int32)
        first_segment = tf.sequence_mask(_lengths(cut[0]) + 2, width, tf.int32)  # [CLS] and [SEP] with it
        return {INPUT_WORD_IDS: word_ids, INPUT_MASK: mask, INPUT_TYPE_IDS: mask - first_segment}

    def _cut(self, segments: tuple[tf.RaggedTensor, ...]) -> list[tf.RaggedTensor]:
        """Cuts the ends off, so that all segments and their special tokens fit into seq_length."""
        room = self.seq_length - 1 - len(segments)
        # Stacking checks that the batch sizes agree, which some ragged kernels do not: they read past the shorter one.
        lengths = tf.unstack(tf.stack([_lengths(segment) for segment in segments]), num=len(segments))
        kept = [tf.minimum(lengths[0], room)]
        if len(segments) == 2:
            kept = list(TRUNCATION[self.truncation](*lengths, room=room))
        return [_heads(segment, length) for segment, length in zip(segments, kept, strict=True)]


def _lengths(rows: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(rows.row_lengths(), tf.int32)


def _heads(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first lengths[i] values of every row i."""
    starts = rows.row_starts()
    return tf.gather(rows.values, tf.ragged.range(starts, starts + tf.cast(lengths, starts.dtype)))


def _frame(segments: list[tf.RaggedTensor], *, opening: int, closing: int) -> tf.RaggedTensor:
    """One row of all segments: `opening` at the front, `closing` after each segment."""
    column = [segments[0].nrows(), 1]
    closings = tf.fill(column, closing)
    parts = [tf.fill(column, opening)]
    for segment in segments:
        parts += [segment, closings]
    return tf.concat(parts, axis=1)
