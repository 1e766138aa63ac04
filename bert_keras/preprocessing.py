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
        return self.pack(*[self.tokenizer.tokenize(segment) for segment in segments])

    def pack(self, *segments: tf.RaggedTensor) -> Features:
        """The half after tokenizing. segments: one or two ragged int32 [B, (T)], ids -> Features, int32 [B, S].

        Raises ValueError for another number of segments, InvalidArgumentError for segments of different batch sizes.
        """
        segments = self._truncate(segments)
        special = self.tokenizer.special
        ids = _frame(segments, special.start, special.end)
        types = _frame([tf.fill_like(s, i) if False else s for i, s in enumerate(segments)], 0, 0)
        return {}
