"""WordPiece's matching from TensorFlow's own ops, for all distinct words of a batch at once.

In: string [B], text in normal form. Out: ids, start bytes and end bytes, ragged int32 [B, (T)].

A regular expression splits the text into words. A word that is one token is looked up. The bytes of each other word walk
through a trie of the tokens, all words in step, and a walk that ends goes back to the end of the longest token that it met.
Source: google-research/bert tokenization.py, `WordpieceTokenizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.text.distinct_words import DistinctWords
from bert_keras.text.normal_forms import IDEOGRAPHS, PUNCTUATION
from bert_keras.text.ragged import masked, row_numbers
from bert_keras.text.rules import Rules
from bert_keras.text.vocabulary import CONTINUATION, matchable

# The first nodes of the trie: at the start of a word, of what continues it, and after its end.
_WORD, _INNER, _NOWHERE = range(3)
_BYTES = 256
_STEPS = 4  # bytes of each word in one turn of the loop, whose own cost is that of some bytes
_TRIES = 64  # places that are tried at once for the children of a node
_LOST = -1
_SPACE = ord(" ")
# The punctuation of Unicode 16, which TensorFlow Text's ICU knows, that TensorFlow's regular expressions do not.
_NEWER_PUNCTUATION = r"\x{1B4E}\x{1B4F}\x{1B7F}\x{10D6E}\x{113D4}\x{113D5}\x{113D7}\x{113D8}\x{11BE1}\x{16D6D}-\x{16D6F}\x{1E5FF}"
# Unicode's white space beyond ASCII, by the bytes of a character.
_WIDE_SPACES = {
    "  ": r"[\x{85}\x{A0}]",
    "   ": r"[\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]",
}


class Trie(NamedTuple):
    """The tokens, byte after byte, as a double array (Aoe 1989).

    Node n has the child `base[n] + b` by byte b if the parent of that node is n.

    base, parent: int32 [N]
    tokens: int32 [N], the id of the token that ends at each node, plus 1; 0 for none
    """

    base: np.ndarray
    parent: np.ndarray
    tokens: np.ndarray


def single_characters(rules: Rules) -> str:
    """A pattern of the characters that are words."""
    return (
        f"[{PUNCTUATION}{_NEWER_PUNCTUATION}{IDEOGRAPHS}]" if rules.splits_as_original else f"[{PUNCTUATION}]"
    )


class CoreWordPiece(tf.Module):
    """Splits text into words, and matches the longest token first.

    vocabulary: the tokens in the order of their ids
    unknown: the token of a word that no tokens make, and of a word over the limit
    """

    def __init__(self, vocabulary: Sequence[str], *, unknown: str, rules: Rules) -> None:
        super().__init__()
        pieces = matchable(vocabulary)
        self._unknown, self._max_word = pieces[unknown], rules.max_word
        self._single = single_characters(rules)
        inner = [piece.startswith(CONTINUATION) and piece != CONTINUATION for piece in pieces]
        texts = [
            piece.removeprefix(CONTINUATION) if cut else piece
            for piece, cut in zip(pieces, inner, strict=True)
        ]
        whole = {
            piece: id_
            for (piece, id_), cut in zip(pieces.items(), inner, strict=True)
            if not cut and len(piece) <= rules.max_word
        }
        trie = make_trie([text.encode("utf-8", "surrogatepass") for text in texts], inner, [*pieces.values()])
        with tf.device("CPU"):
            self._distinct = DistinctWords(
                tf.constant([*whole], tf.string), tf.constant([*whole.values()], tf.int32)
            )
            self._base, self._parent, self._tokens = map(tf.constant, trie)

    def __call__(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Valid UTF-8, string [B] -> ids, start bytes and end bytes."""
        ascii_only = tf.reduce_all(tf.strings.length(text) == tf.strings.length(text, "UTF8_CHAR"))
        text = tf.cond(ascii_only, lambda: text, lambda: _narrowed(text))
        words = tf.strings.split(tf.strings.regex_replace(text, self._single, r" \0 "))
        ids, word, places = self._distinct(words.values, words.row_splits, self._split)
        # The tokens cover all bytes that are not white space, without a gap.
        sizes = tf.strings.length(words.values)
        starts = tf.gather(tf.cumsum(sizes, exclusive=True), word) + places
        stops = tf.concat([starts, [tf.reduce_sum(sizes)]], 0)[1:]
        raw = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
        controls = raw - ord("\t")  # unsigned: under a tab is over 200
        letters = tf.where((raw != _SPACE) & (controls > ord("\r") - ord("\t")))[:, 0]
        row = tf.gather(tf.cumsum(tf.strings.length(text), exclusive=True), row_numbers(ids.row_splits))
        starts, ends = (tf.cast(tf.gather(letters, one), tf.int32) - row for one in (starts, stops - 1))
        return ids, ids.with_values(starts), ids.with_values(ends + 1)

    def _split(self, words: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Words that are not one token -> their ids and the first byte of each, ragged int32 [N, (T)]."""
        raw = tf.io.decode_raw(tf.strings.reduce_join(words, separator=" ") + " ", tf.uint8)
        raw = tf.cast(raw, tf.int32)
        first = tf.cumsum(tf.strings.length(words) + 1, exclusive=True)
        fits = tf.strings.length(words, "UTF8_CHAR") <= self._max_word
        too_long = masked(first, ~fits)[:, tf.newaxis]
        lost = tf.fill(tf.shape(too_long)[:1], _LOST)
        found = self._walk(raw, masked(first, fits), tf.scatter_nd(too_long, lost, tf.shape(raw) + 1))
        at = tf.cast(tf.where(found[:-1] != 0)[:, 0], tf.int32)
        ids = tf.gather(found, at)
        word = tf.searchsorted(first, at, side="right") - 1
        is_lost = tf.scatter_nd(word[:, tf.newaxis], tf.cast(ids == _LOST, tf.int32), tf.shape(first)) > 0
        place, is_lost = at - tf.gather(first, word), tf.gather(is_lost, word)
        kept = ~is_lost | (place == 0)
        ids = masked(tf.where(is_lost, self._unknown, ids - 1), kept)
        splits = tf.searchsorted(masked(word, kept), tf.range(tf.size(first) + 1), out_type=tf.int64)
        columns = ids, masked(place, kept)
        return tuple(tf.RaggedTensor.from_row_splits(one, splits, validate=False) for one in columns)

    def _walk(self, raw: tf.Tensor, first: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        """The tokens of words.

        raw: int32 [C], the bytes of the words, a space after each; first: int32 [N], the first byte of each word to walk
        found: int32 [C + 1], to which the ids are added, plus 1, at the first byte of each token, and _LOST where none matches
        """
        nowhere = tf.size(raw)

        def step(found, start, end, at, node):
            byte = tf.gather(raw, at)
            child = tf.gather(self._base, node) + byte
            goes_on = tf.gather(self._parent, child) == node
            token = tf.where(goes_on, tf.gather(self._tokens, child), 0)
            stops = ~goes_on & (end == start)
            token = tf.where(stops & ((byte != _SPACE) | (at > start)), _LOST, token)
            found = tf.tensor_scatter_nd_update(
                found, tf.where(token != 0, start, nowhere)[:, tf.newaxis], token
            )
            end = tf.where(token > 0, at + 1, end)
            start, at = tf.where(goes_on, start, end), tf.where(goes_on, at + 1, end)
            node = tf.where(goes_on, child, tf.where(stops, _NOWHERE, _INNER))
            return found, start, end, at, node

        def turn(found, *state):
            for _ in range(_STEPS):
                found, *state = step(found, *state)
            left = tf.where(state[-1] != _NOWHERE)
            return found, *(tf.gather_nd(column, left) for column in state)

        # The first byte of the token, the end of the longest token there, the byte to read, the node.
        state = found, first, first, first, tf.fill(tf.shape(first), _WORD)
        return tf.while_loop(
            lambda found, start, *rest: tf.size(start) > 0,
            turn,
            state,
            shape_invariants=(tf.TensorShape([None]),) * 5,
            parallel_iterations=1,
        )[0]


def make_trie(texts: list[bytes], inner: list[bool], ids: list[int]) -> Trie:
    """The trie of tokens. inner: for each token, True if it continues a word."""
    lengths, numbers = np.array([*map(len, texts)], "int64"), np.array(ids, "int32")
    raw = np.frombuffer(b"".join(texts), "uint8").astype("int64")
    first = np.cumsum(lengths) - lengths
    # The nodes in the order of their depth, with the node above each; each level of the trie at once.
    node = np.where(inner, _INNER, _WORD)
    size = _NOWHERE + 1
    above, by, tokens = [np.zeros(size, "int64")], [np.zeros(size, "int64")], [np.zeros(size, "int32")]
    for depth in range(1, int(np.max(lengths, initial=0)) + 1):
        rows = np.flatnonzero(lengths >= depth)
        keys, which = np.unique(node[rows] * _BYTES + raw[first[rows] + depth - 1], return_inverse=True)
        ends = np.zeros(len(keys), "int32")
        last = lengths[rows] == depth
        ends[which[last]] = numbers[rows[last]] + 1
        for column, values in ((above, keys // _BYTES), (by, keys % _BYTES), (tokens, ends)):
            column.append(values)
        node[rows] = size + which
        size += len(keys)
    parents, bytes_ = np.concatenate(above)[_NOWHERE + 1 :], np.concatenate(by)[_NOWHERE + 1 :]
    base = _places(parents, bytes_, size)
    place = np.concatenate([np.arange(_NOWHERE + 1), base[parents] + bytes_])
    trie = Trie(*(np.full(int(place.max()) + 1 + _BYTES, fill, "int32") for fill in (0, -1, 0)))
    trie.base[place], trie.tokens[place] = base, np.concatenate(tokens)
    trie.parent[place[_NOWHERE + 1 :]] = place[parents]
    return trie


def _places(parents: np.ndarray, bytes_: np.ndarray, size: int) -> np.ndarray:
    """For each of `size` nodes the number that gives its children places of their own, from _BYTES on: int64 [N].

    parents, bytes_: int64 [E], of each child, in the order of the parents
    """
    base = np.zeros(size, "int64")
    counts = np.bincount(parents, minlength=size)
    first = np.cumsum(counts) - counts
    taken, low = np.zeros(2 * len(parents) + _BYTES * _BYTES, bool), _BYTES
    tries = np.arange(_TRIES)[:, np.newaxis]
    for node in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts > 1)]:
        children = bytes_[first[node] : first[node] + counts[node]]
        while (full := taken[low + tries + children].any(axis=1)).all():
            low += _TRIES
        base[node] = low + np.argmin(full)
        taken[base[node] + children] = True
    # A node with one child takes any place that is left.
    single = np.flatnonzero(counts == 1)
    free = np.flatnonzero(~taken[_BYTES:])[: len(single)] + _BYTES
    base[single] = free - bytes_[first[single]]
    return base


def _narrowed(text: tf.Tensor) -> tf.Tensor:
    """Text with as many spaces for each white space as it has bytes."""
    for spaces, pattern in _WIDE_SPACES.items():
        text = tf.strings.regex_replace(text, pattern, spaces)
    return text
