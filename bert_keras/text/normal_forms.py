"""Normalizes text in graph as BERT and ALBERT do, and moves offsets in the normal form back to offsets in the text.

In: string [B]. Out: string [B], the normal forms; and byte offsets in them, moved to byte offsets in the given strings.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Callable

import tensorflow as tf

from bert_keras.text.added_tokens import WHITE_SPACE
from bert_keras.text.ragged import encode_characters, masked, row_numbers
from bert_keras.text.rules import Rules
from bert_keras.text.text_ops import tensorflow_text
from bert_keras.text.tokenizer import Tokenizer

# A code point that Unicode promises never to assign, so that no vocabulary has it.
NOT_A_MARKER = "\ufdd5"

# WordPiece removes control characters (but tab, newline and carriage return are spaces), format characters and U+FFFD.
_REMOVED = r"\x{0}-\x{8}\x{B}\x{C}\x{E}-\x{1F}\x{7F}-\x{9F}\p{Cf}\x{FFFD}"
# Rows of these characters alone are in normal form after ASCII lower-casing, and skip the normalizer.
# The uncased pattern lists common characters: ASCII, Latin letters that do not decompose, punctuation, currency, CJK ideographs.
SIMPLE_CASED = rf"[^{_REMOVED}\p{{Cs}}]*"
SIMPLE_UNCASED = (
    r"[\t\n\r -~\x{A0}-\x{AC}\x{AE}-\x{BF}\x{D7}\x{DF}\x{E6}\x{F0}\x{F7}\x{F8}\x{FE}\x{2010}-\x{2027}\x{2030}-\x{205E}"
    r"\x{20A0}-\x{20BF}\x{3001}-\x{3029}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{FF01}-\x{FF20}]*"
)

SIMPLE_ASCII = r"[ -~]*"
# The blocks of CJK ideographs that are words of one character (google-research/bert tokenization.py, `_is_chinese_char`).
IDEOGRAPHS = r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
# The characters that BERT takes for punctuation, in the Unicode of TensorFlow's regular expressions.
PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"

# Text in UTF-8. The class leaves out surrogates: a pattern of all characters would let them pass.
VALID_UTF8 = r"[^\p{Cs}]*"

# The characters that Python's str.split() splits at, as ALBERT does.
_WHITESPACE = r"\t-\r\x1C- \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
# Fills the second byte where two quotes become one. Every normalizer of SentencePiece but `identity` removes it from text.
_FILLER = "\x01"
# Rows that are in normal form after ASCII lower-casing.
SIMPLE_SENTENCEPIECE = r"[ -~\x{A3}\x{20AC}\x{2013}\x{2014}\x{2018}-\x{201F}\x{4E00}-\x{9FFF}]*"


class Normalizing(Tokenizer):
    """Normalizes text in graph, and moves offsets in the normal form back to offsets in the text.

    _simple: a pattern; a row that matches it after ASCII lower-casing is in normal form
    _attached: a pattern of characters that normalizing removes and that belong to the character before them
    """

    _simple: str
    _attached: str

    def _normal_form(self, text: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _normalize(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Normal forms, string [B], and a mask of the rows whose offsets did not change, bool [B]."""
        if self.lower_case:
            text = tf.strings.lower(text)
        simple = tf.strings.regex_full_match(text, self._simple)
        rows = tf.where(~simple)
        rest = self._normal_form(tf.gather_nd(text, rows))
        return tf.tensor_scatter_nd_update(text, rows, rest), simple

    def _locate(
        self, text: tf.Tensor, simple: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Moves offsets in the normal form to offsets in `text`; simple rows keep their offsets."""
        rows = tf.where(~simple)[:, 0]
        # The tokens of the rows to move.
        tokens = tf.ragged.range(tf.gather(starts.row_splits, rows), tf.gather(starts.row_splits, rows + 1))
        moving, row = tokens.values[:, tf.newaxis], row_numbers(tokens.row_splits)

        # The concatenated characters of those rows: the bytes of each in `text` and in the normal form. A character's normal
        # form depends on its neighbours in one case only, the final sigma, and both sigmas have two bytes.
        codes, offsets = tf.strings.unicode_decode_with_offsets(
            tf.gather(text, rows), "UTF-8", errors="ignore"
        )
        distinct, which = tf.unique(codes.values)
        characters = encode_characters(distinct)
        original_starts = tf.cast(offsets.values, tf.int32)
        original_ends = original_starts + tf.gather(tf.strings.length(characters), which)
        normal_ends = tf.cumsum(tf.gather(tf.strings.length(self._normal_form(characters)), which))

        # A stripped accent belongs to the letter before it.
        accent = tf.gather(tf.strings.regex_full_match(characters, self._attached), which)
        original_ends = _with_accents(original_ends, tf.where(accent)[:, 0], codes.row_splits)

        row_shift = tf.gather(tf.concat([[0], normal_ends], axis=0), tf.gather(codes.row_splits, row))
        start, end = tf.gather_nd(starts.values, moving), tf.gather_nd(ends.values, moving)
        first = tf.searchsorted(normal_ends, row_shift + start, side="right")
        first = tf.minimum(first, tf.size(normal_ends) - 1)  # a token without bytes may be the last
        last = tf.searchsorted(normal_ends, row_shift + end - 1, side="right")
        starts_moved = tf.tensor_scatter_nd_update(starts.values, moving, tf.gather(original_starts, first))
        ends_moved = tf.tensor_scatter_nd_update(ends.values, moving, tf.gather(original_ends, last))
        return starts.with_values(starts_moved), ends.with_values(ends_moved)


def _with_accents(ends: tf.Tensor, accents: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
    """The end of each character, of a letter with the accents that follow it: int32 [N].

    accents: int64 [A], the places of the accents, which are few; one that opens its row counts as a letter
    row_splits: of the characters
    """
    row = tf.searchsorted(row_splits, accents, side="right") - 1
    opens = tf.equal(tf.gather(row_splits, row), accents)
    first = opens | tf.concat([accents[:1] > -1, accents[1:] > accents[:-1] + 1], axis=0)
    letters = masked(tf.where(opens, accents, accents - 1), first)
    letter = tf.gather(letters, tf.cumsum(tf.cast(first, tf.int32)) - 1)
    return tf.tensor_scatter_nd_max(ends, letter[:, tf.newaxis], tf.gather(ends, accents))


def valid_utf8(text: tf.Tensor) -> tf.Tensor:
    """The texts without bytes that are not UTF-8: string [B]."""
    # The pattern takes a seventh of the transcoder's time.
    valid = tf.reduce_all(tf.strings.regex_full_match(text, VALID_UTF8))
    return tf.cond(
        valid, lambda: text, lambda: tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore")
    )


def wordpiece_form(
    text: tf.Tensor,
    *,
    lower_case: bool,
    clean: bool = True,
    accents: str = "",
    decompose: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Valid UTF-8 in WordPiece's normal form.

    clean: remove control characters
    accents: a pattern of the characters to remove from the decomposed text; "" leaves both out
    decompose: texts -> their normal form NFD or NFKD
    """
    # The kernel stops at a NUL. A control character in its place is in no token either.
    removed, by = (f"[{_REMOVED}]", "") if clean else (r"\x00", _FILLER)
    text = tf.strings.regex_replace(valid_utf8(text), removed, by)
    if lower_case:
        # ASCII first: the second step depends on the machine's locale, and a Turkish one turns I into a dotless i.
        text = tf.strings.lower(tf.strings.lower(text), encoding="utf-8")
    if accents:
        text = tf.strings.regex_replace(decompose(text), accents, "")
    return text


def spaced(text: tf.Tensor, rules: Rules) -> tf.Tensor:
    """The normal form with what the library `tokenizers` puts into it: spaces for white space, and around CJK ideographs."""
    if rules.clean_text:
        text = tf.strings.regex_replace(text, f"[{WHITE_SPACE}]", " ")
    return tf.strings.regex_replace(text, f"[{IDEOGRAPHS}]", r" \0 ") if rules.split_chinese else text


def one_quote(text: tf.Tensor) -> tf.Tensor:
    """Replaces `` and '' by a double quote; the offsets of later bytes do not change."""
    return tf.strings.regex_replace(text, "``|''", '"' + _FILLER)


def sentencepiece_form(text: tf.Tensor, *, lower_case: bool) -> tf.Tensor:
    """Valid UTF-8 without accents, with spaces for all whitespace; the kernel keeps one space between words."""
    # Lower-casing stops at a NUL. No vocabulary has the character that replaces it.
    text = tf.strings.regex_replace(valid_utf8(text), r"\x00", NOT_A_MARKER)
    text = tf.strings.regex_replace(text, f"[{_WHITESPACE}]", " ")
    text = tensorflow_text("SentencePiece").normalize_utf8(text, "NFKD")
    text = tf.strings.regex_replace(text, vanishing(), "")
    if lower_case:
        text = tf.strings.lower(tf.strings.lower(text), encoding="utf-8")  # twice: see wordpiece_form
    return text


@functools.cache
def vanishing() -> str:
    """A pattern of the characters that ALBERT strips (with a combining class over 0) and of the filler."""
    codes = [code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))]
    starts = [code for code in codes if not unicodedata.combining(chr(code - 1))]
    ends = [code for code in codes if not unicodedata.combining(chr(code + 1))]
    ranges = (rf"\x{{{start:X}}}-\x{{{end:X}}}" for start, end in zip(starts, ends, strict=True))
    return f"[{''.join(ranges)}{_FILLER}]"
