"""Byte-pair encoding in graph: merges the bytes of all words of a batch at once.

In: string [W], words. Out: ragged int32 [W, (T)], the tokens of each word and their first bytes.

The rule (Sennrich et al. 2016, sec. 3.2; openai/gpt-2 encoder.py): of all adjacent pairs of a word, merge the one that is first
in the list of merges, the leftmost of several, until no pair is in the list. One step of our loop merges in every word all pairs
that are first, left to right. This gives the same tokens if the merges are in the order of learning: a pair with a new token
comes later in the list than the merge that makes the token. Else a step merges only the leftmost.

A word may be as long as a text, so it is cut into blocks of at least twice the longest token. A pair is merged if it is first
in its block and in the blocks beside it. A merge farther away changes nothing here: it could reach the pair only by a token
that is longer than any in the vocabulary.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bert_keras.text.ragged_ops import masked, repeats

_NEVER = np.iinfo("int32").max  # the rank of a pair that is not in the list


class Merges(tf.Module):
    """The merges of a vocabulary.

    pairs: int [R, 2], the tokens that each merge joins, in the order of the list; no pair twice
    joined: int [R], the tokens that they become
    lengths: int [V], the bytes of each token
    byte_ids: int [256], the token of each byte
    """

    def __init__(
        self, pairs: np.ndarray, joined: np.ndarray, *, lengths: np.ndarray, byte_ids: np.ndarray
    ) -> None:
        super().__init__()
        # The token between words, which no pair has.
        self._gap = len(lengths)
        self._in_order = _in_order(pairs, joined, len(lengths))
        longest = int(np.max(lengths[joined], initial=1))
        self._block = 2 * longest if self._in_order else np.iinfo("int32").max
        keys = pairs[:, 0].astype("int64") * (self._gap + 1) + pairs[:, 1]
        ranks = np.argsort(keys).astype("int32")
        with tf.device("CPU"):
            # The last key is larger than any pair's.
            self._keys = tf.constant(np.append(keys[ranks], np.iinfo("int64").max))
            self._ranks = tf.constant(np.append(ranks, _NEVER), tf.int32)
            self._joined = tf.constant(np.append(joined, 0), tf.int32)
            self._byte_ids = tf.constant(byte_ids, tf.int32)

    def __call__(self, words: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """words: string [W], none empty -> ragged int32 [W, (T)], ids and the first byte of each token in its word."""
        lengths = tf.strings.length(words)
        # A gap stands before each word.
        word = repeats(lengths + 1)
        gaps = tf.cumsum(lengths + 1, exclusive=True)
        places = tf.range(tf.size(word)) - tf.gather(gaps, word)  # 0 for a gap, else the byte's number from 1
        text = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8), tf.int32)
        ids = tf.tensor_scatter_nd_update(
            tf.fill([tf.size(word)], self._gap), tf.where(places > 0), tf.gather(self._byte_ids, text)
        )
        ids, kept = self._merged(ids, word, places)
        real = tf.where(ids != self._gap)[:, 0]
        ids, kept = tf.gather(ids, real), tf.gather(kept, real)
        row = tf.cast(tf.gather(word, kept), tf.int64)
        rows = tf.RaggedTensor.from_value_rowids(ids, row, nrows=tf.size(words, tf.int64), validate=False)
        return rows, rows.with_values(tf.gather(places, kept) - 1)

    def _merged(self, ids: tf.Tensor, word: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Tokens int32 [N] -> the tokens after all merges, and the index of the first of the given tokens in each."""
        opens = places % self._block == 0
        blocks = tf.cumsum(tf.cast(opens, tf.int32)) - 1
        words = masked(word, opens)  # the word of each block
        same = tf.cast(words[1:] == words[:-1], tf.int32)
        block = tf.range(tf.size(words))
        beside = (
            block - tf.pad(same, [[1, 0]])[: tf.size(words)],
            block + tf.pad(same, [[0, 1]])[: tf.size(words)],
        )

        def step(ids: tf.Tensor, kept: tf.Tensor, unfinished: tf.Tensor) -> tuple[tf.Tensor, ...]:
            ranks = self._ranks_of(ids)
            block = tf.gather(blocks, kept[:-1])
            least = tf.math.unsorted_segment_min(ranks, block, tf.size(words))
            least = tf.minimum(least, tf.minimum(tf.gather(least, beside[0]), tf.gather(least, beside[1])))
            first = tf.where((ranks == tf.gather(least, block)) & (ranks != _NEVER))[:, 0]
            chosen = self._without_overlap(first, ranks) if self._in_order else _leftmost(first, block)
            joined = tf.gather(self._joined, tf.gather(ranks, chosen))
            ids = tf.tensor_scatter_nd_update(ids, chosen[:, tf.newaxis], joined)
            stays = tf.tensor_scatter_nd_update(
                tf.ones_like(ids, tf.bool), chosen[:, tf.newaxis] + 1, tf.zeros_like(chosen, tf.bool)
            )
            left = tf.where(stays)[:, 0]
            return tf.gather(ids, left), tf.gather(kept, left), tf.size(chosen) > 0

        return tf.while_loop(
            lambda ids, kept, unfinished: unfinished,
            step,
            (ids, tf.range(tf.size(ids)), tf.size(ids) > 0),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None]), tf.TensorShape([])),
        )[:2]

    def _ranks_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Tokens int32 [N] -> int32 [N - 1], the rank of each pair of neighbours."""
        ids = tf.cast(ids, tf.int64)
        keys = ids[:-1] * (self._gap + 1) + ids[1:]
        at = tf.searchsorted(self._keys, keys)
        return tf.where(tf.gather(self._keys, at) == keys, tf.gather(self._ranks, at), _NEVER)

    def _without_overlap(self, pairs: tf.Tensor, ranks: tf.Tensor) -> tf.Tensor:
        """The pairs to merge, of the pairs that are first: every second of pairs that overlap, from the left."""
        before = tf.gather(ranks, tf.maximum(pairs - 1, 0))
        overlaps = (before == tf.gather(ranks, pairs)) & (pairs > 0)

        def thinned() -> tf.Tensor:
            follows = overlaps & (pairs == tf.concat([[-1], pairs[:-1] + 1], axis=0))
            run = tf.cumsum(tf.cast(~follows, tf.int32)) - 1
            head = masked(pairs, ~follows)
            # The pair before waits for a merge in a block farther to the left.
            waits = masked(overlaps, ~follows)
            odd = (pairs - tf.gather(head, run)) % 2 == 1
            return masked(pairs, ~odd & ~tf.gather(waits, run))

        return tf.cond(tf.reduce_any(overlaps), thinned, lambda: pairs)


def _leftmost(pairs: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
    """The first pair of each block."""
    blocks = tf.gather(block, pairs)
    return masked(pairs, tf.concat([[True], blocks[1:] != blocks[:-1]], axis=0)[: tf.size(pairs)])


def _in_order(pairs: np.ndarray, joined: np.ndarray, size: int) -> bool:
    """True if every merge comes after all merges that make its tokens."""
    rank = np.arange(len(pairs))
    last = np.full(size, -1)
    last[joined] = rank  # of equal indices, NumPy keeps the last
    return bool(np.all(last[pairs] < rank[:, np.newaxis]))
