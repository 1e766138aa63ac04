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

    first, second: int [B], pieces. The loop of google-research/bert create_pretraining_data.py (`_truncate_seq_pair`) in
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
        if len(segments) > 1:
            # Stacked first: batches of different sizes are an InvalidArgumentError before any kernel sees them.
            segments = tuple(tf.unstack(tf.stack(segments)))
        return self.pack(*[self.tokenizer.tokenize(segment) for segment in segments])

    def pack(self, *segments: tf.RaggedTensor) -> Features:
        """The half after tokenizing. segments: one or two ragged int32 [B, (T)], ids -> Features, int32 [B, S].

        Raises ValueError for another number of segments, InvalidArgumentError for segments of different batch sizes.
        """
        if not 1 <= len(segments) <= MAX_SEGMENTS:
            raise ValueError(f"{len(segments)} segments were given; give one or two")
        special = self.tokenizer.special
        start = tf.fill([segments[0].nrows(), 1], special.start)
        end = tf.fill(tf.shape(start), special.end)
        pieces, types = [start], [tf.zeros_like(start)]
        for i, segment in enumerate(self._cut(segments)):
            pieces += [segment, end]
            types += [tf.zeros_like(segment) + i, tf.zeros_like(end) + i]
        ids = tf.concat(pieces, axis=1)
        return {
            INPUT_WORD_IDS: self._pad(ids, special.padding),
            INPUT_MASK: self._pad(tf.ones_like(ids), 0),
            INPUT_TYPE_IDS: self._pad(tf.concat(types, axis=1), 0),
        }

    def _cut(self, segments: tuple[tf.RaggedTensor, ...]) -> list[tf.RaggedTensor]:
        room = self.seq_length - 1 - len(segments)
        lengths = [tf.cast(segment.row_lengths(), tf.int32) for segment in segments]
        if len(segments) == 1:
            kept = [tf.minimum(lengths[0], room)]
        else:
            kept = list(TRUNCATION[self.truncation](*lengths, room=room))
        return [
            tf.ragged.boolean_mask(segment, tf.ragged.range(length) < tf.expand_dims(keep, 1))
            for segment, length, keep in zip(segments, lengths, kept, strict=True)
        ]

    def _pad(self, rows: tf.RaggedTensor, value: int) -> tf.Tensor:
        """Ragged int32 [B, (T)] -> int32 [B, S]."""
        return rows.to_tensor(value, shape=[None, None if self.pad_to_longest else self.seq_length])
