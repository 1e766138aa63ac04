r"""Splits text into words in graph, as GPT-2 does for its tokenizer and as tagging needs them.

In: string [B], or its code points. Out: the words of each text. GPT-2's are those that its regular expression matches:

    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

TensorFlow's regular expressions have no lookahead, and their Unicode is older than that of other libraries. We compute from the
classes of a character and its neighbours whether a word starts there, for all characters at once.
Source: Radford et al. 2019 (GPT-2), sec. 2.2; openai/gpt-2 encoder.py.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# The classes of characters. OUTSIDE stands before the first and after the last character of a text.
OTHER, LETTER, NUMBER, WHITE, SPACE, OUTSIDE = range(6)

# Unicode's White_Space but the space itself.
_WHITE = "9-D 85 A0 1680 2000-200A 2028 2029 202F 205F 3000"
# The letters and numbers of Unicode 17 that Unicode 14 lacks: Python 3.11 knows 14, Python 3.13 15.1, tokenizers 0.23 17.
_NEWER_LETTERS = (
    "1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D4A-10D65 10D6F-10D85 10EC2-10EC4 1123F-11240 11380-11389 1138B 1138E "
    "11390-113B5 113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F 13441-13446 13460-143FA 16100-1611D "
    "16D40-16D6C 18CFF 1B132 1B155 1DF25-1DF2A 1E030-1E06D 1E4D0-1E4EB 1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF"
)
_NEWER_NUMBERS = (
    "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9 1D2C0-1D2D3 1E4F0-1E4F9 "
    "1E5F1-1E5FA"
)


def byte_alphabet() -> tuple[str, ...]:
    """The printable character that stands for each of the 256 bytes in the files of a vocabulary: "Ġ" for the space."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = (byte for byte in range(256) if byte not in printable)
    shifted = {byte: chr(256 + i) for i, byte in enumerate(others)}
    return tuple(shifted.get(byte, chr(byte)) for byte in range(256))


class Words(NamedTuple):
    """The words of a batch.

    text: string [W]
    first: int64 [W], the index of a word's first character among the characters of all rows
    row_splits: int64 [B + 1], as in a RaggedTensor of words
    """

    text: tf.Tensor
    first: tf.Tensor
    row_splits: tf.Tensor


class WordSplitter(tf.Module):
    """Splits code points into the words of GPT-2's regular expression."""

    def __init__(self) -> None:
        super().__init__()
        with tf.device("CPU"):
            self._classes = tf.constant(classes_of_code_points())

    def __call__(self, codes: tf.RaggedTensor) -> Words:
        """codes: ragged int32 [B, (C)], valid code points -> the words of all rows."""
        starts = self._starts(codes)
        first = tf.where(starts)[:, 0]
        splits = tf.concat([first, codes.row_splits[-1:]], axis=0)
        characters = tf.RaggedTensor.from_row_splits(codes.values, splits, validate=False)
        before = tf.cumsum(tf.cast(tf.pad(starts, [[1, 0]]), tf.int64))
        return Words(
            text=tf.strings.unicode_encode(characters, "UTF-8"),
            first=first,
            row_splits=tf.gather(before, codes.row_splits),
        )

    def _starts(self, codes: tf.RaggedTensor) -> tf.Tensor:
        """Bool [C] of all rows, the characters that start a word."""
        values = codes.values
        classes = tf.gather(self._classes, values)
        at, ones = codes.row_splits[:, tf.newaxis], tf.ones_like(codes.row_splits, tf.int32)
        # Before and after each character.
        borders = tf.scatter_nd(at, ones, [tf.size(values, tf.int64) + 1]) > 0
        opens, closes = borders[:-1], borders[1:]
        before = tf.where(opens, np.uint8(OUTSIDE), _shifted(classes, 1))
        after = tf.where(closes, np.uint8(OUTSIDE), tf.concat([classes[1:], classes[:1]], axis=0))
        white, white_before, white_after = map(_is_white, (classes, before, after))

        # A space opens the word after it. Of several white characters before a word, the last stands alone.
        starts = tf.where(
            white,
            ~white_before | ~(white_after | (after == OUTSIDE)),
            (before != classes) & (before != SPACE),
        )
        two, three = _contractions(values, before, closes)
        ends = _shifted(two, 2) | _shifted(three, 3)
        return (starts | ends) & ~_shifted(two | three, 1)


def _ranges(text: str) -> list[tuple[int, int]]:
    """Ranges of code points in hexadecimal, both ends included."""
    parts = (part.partition("-") for part in text.split())
    return [(int(first, 16), int(last or first, 16)) for first, _, last in parts]


def _is_white(classes: tf.Tensor) -> tf.Tensor:
    return (classes == WHITE) | (classes == SPACE)


def _shifted(values: tf.Tensor, by: int) -> tf.Tensor:
    """The values `by` places later, zeros before them."""
    return tf.pad(values, [[by, 0]])[: tf.size(values)]


def _contractions(codes: tf.Tensor, before: tf.Tensor, closes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Bool [C] each: the apostrophes that open a contraction of two characters ('s) and of three ('re)."""
    opens = (codes == ord("'")) & (before != OTHER) & (before != SPACE)
    second = tf.where(closes, 0, tf.concat([codes[1:], codes[:1]], axis=0))
    third = tf.where(closes, 0, tf.concat([second[1:], second[:1]], axis=0))

    def is_any(values: tf.Tensor, letters: str) -> tf.Tensor:
        return functools.reduce(tf.logical_or, [values == ord(letter) for letter in letters])

    two = opens & is_any(second, "stmd")
    three = opens & (
        (is_any(second, "rv") & (third == ord("e"))) | ((second == ord("l")) & (third == ord("l")))
    )
    return two, three


@functools.cache
def classes_of_code_points() -> np.ndarray:
    """The class of each code point: uint8 [1,114,112]."""
    classes = np.zeros(sys.maxunicode + 1, "uint8")
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))[0]
        if category in "LN":
            classes[code] = LETTER if category == "L" else NUMBER
    for ranges, kind in ((_NEWER_LETTERS, LETTER), (_NEWER_NUMBERS, NUMBER), (_WHITE, WHITE)):
        for first, last in _ranges(ranges):
            classes[first : last + 1] = kind
    classes[ord(" ")] = SPACE
    return classes


# -----------------------------------------------------------------------------------------------------------
# The words of a text for tagging, with byte offsets

TEXT, TOKENS = "text", "tokens"

# `_MARK` encloses each word of raw text. Marks in the text, which BERT drops, become another control character.
_MARK, _NOT_A_MARK = "\x01", "\x02"
_BLANK = r"\t\n\r\p{Z}"
_EDGE = r"\x22'`,;:!?\p{Ps}\p{Pe}\p{Pi}\p{Pf}…、。，；：！？¿¡"  # separate words at the ends of a word
_INNER = rf"[^{_BLANK}{_EDGE}\p{{Han}}]"
_RULES = (
    # A CJK ideograph and a separate "'s" are words; other words reach from the first to the last inner character.
    (rf"(['’][sS]\b|\p{{Han}}|{_INNER}(?:[^{_BLANK}\p{{Han}}]*{_INNER})?|[{_EDGE}])", rf"{_MARK}\1{_MARK}"),
    # "Hello..." ends in an ellipsis.
    (rf"{_MARK}([^{_MARK}]*[^{_MARK}.])(\.\.+){_MARK}", rf"{_MARK}\1{_MARK}\2{_MARK}"),
    # A final period, but not in "U.S." or "J."
    (rf"{_MARK}([^{_MARK}.]{{2,}}|[^{_MARK}.\pL])\.{_MARK}", rf"{_MARK}\1{_MARK}.{_MARK}"),
    (rf"{_MARK}([^{_MARK}]*[^{_MARK}'’])(['’][sS]){_MARK}", rf"{_MARK}\1{_MARK}\2{_MARK}"),
)

Spans = tuple[tf.RaggedTensor, tf.RaggedTensor]


def split_text(text: tf.Tensor) -> Spans:
    """The words of raw text: string [B] -> starts and ends (exclusive), ragged int32 [B, (N)], bytes.

    Words end at white space; quotes, brackets and , ; : ! ? at their ends, a final period, "'s" and CJK ideographs are words.
    """
    marked = tf.strings.regex_replace(text, _MARK, _NOT_A_MARK)
    for pattern, rewritten in _RULES:
        marked = tf.strings.regex_replace(marked, pattern, rewritten)
    parts = tf.strings.split(marked, _MARK)
    words = parts.with_values(tf.strings.regex_full_match(parts.values, f"[^{_BLANK}]+"))
    starts, ends = _offsets(parts, gap=0)
    return tf.ragged.boolean_mask(starts, words), tf.ragged.boolean_mask(ends, words)


def split_tokens(tokens: tf.Tensor) -> Spans:
    """Like `split_text`, for words separated by one space or newline."""
    return _offsets(split_words(tokens), gap=1)


def take_text(raw: dict[str, tf.Tensor]) -> tf.Tensor:
    """The text of raw examples, string [B]: the joined words, or raw text."""
    return raw[TOKENS] if TOKENS in raw else raw[TEXT]


def find_words(raw: dict[str, tf.Tensor]) -> Spans:
    """The words of raw examples: starts and ends, ragged int32 [B, (N)], bytes."""
    return split_tokens(raw[TOKENS]) if TOKENS in raw else split_text(raw[TEXT])


def split_words(tokens: tf.Tensor) -> tf.RaggedTensor:
    """Words separated by one space or newline: string [B] -> ragged string [B, (N)]."""
    return tf.strings.split(tf.strings.regex_replace(tokens, "\n", " "), " ")


def number_sentences(tokens: tf.Tensor) -> tf.Tensor:
    """The number of each word's sentence, among the sentences of all rows, which newlines separate: string [B] -> int64 [N]."""
    return tf.strings.split(tf.strings.split(tokens, "\n").values, " ").value_rowids()


def _offsets(parts: tf.RaggedTensor, *, gap: int) -> Spans:
    """Consecutive parts with `gap` bytes between them: string [B, (N)] -> start and end of each part in its row."""
    lengths = tf.strings.length(parts.values)
    total = tf.concat([[0], tf.cumsum(lengths + gap)], axis=0)
    starts = total[:-1] - tf.gather(tf.gather(total, parts.row_starts()), parts.value_rowids())
    return parts.with_values(starts), parts.with_values(starts + lengths)
