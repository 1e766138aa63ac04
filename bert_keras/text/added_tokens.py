r"""Finds added tokens in text in graph, before the text between them is split, by the rules of the library `tokenizers`.

In: string [B], and a function that tokenizes the text between the tokens. Out: the columns of that function for whole texts.

    text      a <e>b</e>                       [B]
    parts     "a " "<e>" "b" "</e>" ""         [B, (P)]
    ids       a    <e>   b   </e>              [B, (T)]

Of several tokens at one place the longest is found, and found tokens do not overlap. The tokens are literals, and so a regular
expression of their alternatives finds them, each before its own prefixes.
Source: tokenizers, added_vocabulary.rs, `find_matches`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_keras.text.ragged import masked, row_numbers
from bert_keras.text.rules import AddedToken

# Unicode's White_Space, for a pattern of TensorFlow.
WHITE_SPACE = r"\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
# Rust's \w: Alphabetic, marks, decimal digits, connectors and joiners.
_WORD = (
    r"[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}"
    r"\x{1F170}-\x{1F189}]"
)
_BUCKETS = 2**63 - 1  # of the hash of a token
# No text in UTF-8 has these bytes, and both are dropped from other text.
_MARK, _NOT_A_MARK = b"\xff", b"\xfe"

Columns = Sequence[tf.RaggedTensor]


class Parts(NamedTuple):
    """The parts of texts, which join to the texts.

    text: ragged string [B, (P)]
    start: int32 [P] of all rows, the first byte of each part in its text
    found: bool [P] of all rows, True for a part that the pattern matches
    """

    text: tf.RaggedTensor
    start: tf.Tensor
    found: tf.Tensor


def cut(text: tf.Tensor, pattern: str) -> Parts:
    """Texts, string [B], cut before and after each match of a pattern, which matches no empty text."""
    clean = tf.strings.reduce_join(tf.strings.split(text, _MARK), axis=-1, separator=_NOT_A_MARK)
    marked = tf.strings.regex_replace(clean, f"({pattern})", _MARK + b"\\1" + _MARK)
    parts = tf.strings.split(marked, _MARK)
    number = tf.range(tf.size(parts.values, tf.int64)) - tf.gather(
        parts.row_splits, row_numbers(parts.row_splits)
    )
    return Parts(parts, _starts(parts), tf.equal(number % 2, 1))


def _starts(parts: tf.RaggedTensor) -> tf.Tensor:
    """The first byte of each part in its row: int32 [P]."""
    before = tf.cumsum(tf.strings.length(parts.values), exclusive=True)
    first = tf.gather(tf.pad(before, [[0, 1]]), parts.row_splits)  # a row without parts reads the padding
    return before - tf.gather(first, row_numbers(parts.row_splits))


class AddedTokens(tf.Module):
    """Tokens that are whole in text.

    tokens: content, as it stands in the text to search -> its flags and its id; an empty content is in no text
    trims: True leaves white space at the ends of a token out of its offsets, as byte-level BPE does
    """

    def __init__(self, tokens: Mapping[str, tuple[AddedToken, int]], *, trims: bool = False) -> None:
        super().__init__()
        self._trims = trims
        # In descending order a token stands before its prefixes.
        contents = sorted((content for content in tokens if content), reverse=True)
        self._pattern = "|".join(map(re.escape, contents))
        self._flags = {
            name: any(getattr(tokens[content][0], name) for content in contents)
            for name in ("single_word", "lstrip", "rstrip")
        }
        if not contents:
            return
        with tf.device("CPU"):
            keys = tf.strings.to_hash_bucket_fast(tf.constant(contents), _BUCKETS)
            order = tf.argsort(keys)
            self._keys = tf.gather(keys, order)
            self._ids = tf.gather(tf.constant([tokens[content][1] for content in contents], tf.int32), order)
            sizes = [[len(text.encode()) for text in (one, one.lstrip(), one.rstrip())] for one in contents]
            edges = [(whole - after, whole - before) for whole, after, before in sizes]
            self._edges = tf.gather(tf.constant(edges, tf.int32), order)
            self._flag = {
                name: tf.gather(tf.constant([getattr(tokens[one][0], name) for one in contents]), order)
                for name in self._flags
            }

    def __call__(self, text: tf.Tensor, tokenize: Callable[[tf.Tensor], Columns]) -> list[tf.RaggedTensor]:
        """string [B] -> ragged int32 [B, (T)] for each column of `tokenize`: ids, or ids, start bytes and end bytes.

        tokenize: the function for the text between the tokens: string [P] -> its columns, ragged int32 [P, (T)]
        """
        if not self._pattern:
            return list(tokenize(text))
        parts = cut(text, self._pattern)
        token = tf.searchsorted(self._keys, tf.strings.to_hash_bucket_fast(parts.text.values, _BUCKETS))
        token = tf.where(parts.found, token, 0)
        if self._flags["single_word"]:
            parts, token = self._without_parts_of_words(parts, token)
        ends = parts.start + tf.strings.length(parts.text.values)
        starts, stops = parts.start, ends
        if self._trims:
            edges = tf.gather(self._edges, token)
            starts, stops = starts + edges[:, 0], stops - edges[:, 1]
        if self._flags["lstrip"] or self._flags["rstrip"]:
            parts, ends = self._with_white_space(parts, ends, token)
            starts, stops = (starts, stops) if self._trims else (parts.start, ends)
        columns = tokenize(tf.where(parts.found, "", parts.text.values))
        return _merged(parts, columns, (tf.gather(self._ids, token), starts, stops))

    def _without_parts_of_words(self, parts: Parts, token: tf.Tensor) -> tuple[Parts, tf.Tensor]:
        """Makes a found `single_word` token text where it is a part of a word. Returns the parts, and the token of each."""
        text, splits = parts.text.values, parts.text.row_splits
        empty, beside = text == "", functools.partial(_beside, splits=splits)
        opens = tf.strings.regex_full_match(text, f"(?s){_WORD}.*")
        closes = tf.strings.regex_full_match(text, f"(?s).*{_WORD}")
        before = beside(closes, -1) | (beside(empty, -1) & beside(closes, -2))
        after = beside(opens, 1) | (beside(empty, 1) & beside(opens, 2))
        found = parts.found & ~(tf.gather(self._flag["single_word"], token) & (before | after))
        # Texts that now follow each other become one text.
        starts = found | ~beside(~found, -1)
        first, number = tf.where(starts)[:, 0], tf.cumsum(tf.cast(starts, tf.int64))
        joined = tf.strings.unsorted_segment_join(text, number - 1, tf.size(first, tf.int64))
        rows = tf.RaggedTensor.from_row_splits(
            joined, tf.gather(tf.pad(number, [[1, 0]]), splits), validate=False
        )
        return Parts(rows, tf.gather(parts.start, first), tf.gather(found, first)), tf.gather(token, first)

    def _with_white_space(self, parts: Parts, ends: tf.Tensor, token: tf.Tensor) -> tuple[Parts, tf.Tensor]:
        """Gives tokens with `rstrip` and `lstrip` the white space of the text beside them. Returns the parts and their ends."""
        text, beside = parts.text.values, functools.partial(_beside, splits=parts.text.row_splits)
        strips_after, strips_before = (
            beside(parts.found & tf.gather(self._flag[name], token), by) & ~parts.found
            for name, by in (("rstrip", -1), ("lstrip", 1))
        )
        rest = tf.where(strips_after, tf.strings.regex_replace(text, f"^[{WHITE_SPACE}]+", ""), text)
        inner = tf.where(strips_before, tf.strings.regex_replace(rest, f"[{WHITE_SPACE}]+$", ""), rest)
        lead = tf.strings.length(text) - tf.strings.length(rest)
        trail = tf.strings.length(rest) - tf.strings.length(inner)
        starts = parts.start + lead - beside(trail, -1)
        return Parts(parts.text.with_values(inner), starts, parts.found), ends - trail + beside(lead, 1)


def _beside(values: tf.Tensor, by: int, *, splits: tf.Tensor) -> tf.Tensor:
    """The value `by` places farther in the same row; False or 0 where there is none. splits: row_splits of the values."""
    row, place = row_numbers(splits), tf.range(splits[-1]) + by
    inside = (place >= tf.gather(splits, row)) & (place < tf.gather(splits, row + 1))
    return tf.where(inside, tf.roll(values, -by, 0), tf.zeros_like(values))


def _merged(parts: Parts, columns: Columns, added: Sequence[tf.Tensor]) -> list[tf.RaggedTensor]:
    """The columns of the text between the tokens, [P, (T)], with the tokens: [B, (T)].

    added: for each column the value of each part, int32 [P], which counts where the part is a token
    """
    inner = columns[0].row_splits
    tokens = tf.cast(parts.found, inner.dtype)
    before = tf.cumsum(tokens, exclusive=True)  # tokens before each part
    part = row_numbers(inner)
    places = [tf.range(inner[-1]) + tf.gather(before, part), masked(inner[:-1] + before, parts.found)]
    places = [tf.cast(one, tf.int32) for one in places]
    splits = tf.gather(inner + tf.pad(tf.cumsum(tokens), [[1, 0]]), parts.text.row_splits)
    merged = []
    for number, (column, values) in enumerate(zip(columns, added, strict=False)):
        shifted = column.values if number == 0 else column.values + tf.gather(parts.start, part)
        stitched = tf.dynamic_stitch(places, [shifted, masked(values, parts.found)])
        merged.append(tf.RaggedTensor.from_row_splits(stitched, splits, validate=False))
    return merged
