"""Tokenizes each distinct word of a batch once: words that are one token by a look-up, the others by a given function.

In: words, string [W], of rows [B]. Out: the tokens of all rows, ragged int32 [B, (T)], and the place of each in its word.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bert_keras.text.ragged import masked, row_numbers

_BUCKETS = 2**63 - 1  # of the hash of a word

# Distinct words, string [N] -> their ids and the first byte of each token in its word, ragged int32 [N, (T)].
Splits = Callable[[tf.Tensor], tuple[tf.RaggedTensor, tf.RaggedTensor]]


class DistinctWords(tf.Module):
    """The words that are one token.

    words: string [N], no word twice
    ids: int32 [N], their tokens
    """

    def __init__(self, words: tf.Tensor, ids: tf.Tensor) -> None:
        super().__init__()
        with tf.device("CPU"):
            keys = tf.strings.to_hash_bucket_fast(words, _BUCKETS)
            order = tf.argsort(keys)
            self._keys, self._words, self._ids = (tf.gather(one, order) for one in (keys, words, ids))

    def __call__(
        self, words: tf.Tensor, row_splits: tf.Tensor, split: Splits
    ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Ids, ragged int32 [B, (T)]; and of each token its word and its first byte in the word, int [T] of all rows.

        row_splits: int64 [B + 1], of the words; split: tokenizes words that are not one token
        """
        distinct, which = tf.unique(words)
        keys = tf.strings.to_hash_bucket_fast(distinct, _BUCKETS)
        at = tf.minimum(tf.searchsorted(self._keys, keys), tf.size(self._keys) - 1)
        whole = tf.gather(self._words, at) == distinct  # two words may have one hash
        others, places = split(masked(distinct, ~whole))
        known = tf.gather(self._ids, masked(at, whole))
        # The tokens of the distinct words: first the split words', then the whole words.
        values = tf.concat([others.values, known], axis=0)
        places = tf.pad(places.values, [[0, tf.size(known)]])
        before = tf.cumsum(tf.cast(~whole, tf.int64), exclusive=True)  # split words before each word
        splits = others.row_splits
        first = tf.where(
            whole, splits[-1] + tf.range(tf.size(before, tf.int64)) - before, tf.gather(splits, before)
        )
        lengths = tf.where(whole, np.int64(1), tf.gather(tf.pad(others.row_lengths(), [[0, 1]]), before))
        first, lengths = tf.gather(first, which), tf.gather(lengths, which)
        tokens = tf.ragged.range(first, first + lengths)
        rows = tf.gather(tokens.row_splits, row_splits)
        ids = tf.RaggedTensor.from_row_splits(tf.gather(values, tokens.values), rows, validate=False)
        return ids, row_numbers(tokens.row_splits), tf.gather(places, tokens.values)
