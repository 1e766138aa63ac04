"""BERT's tokenizer in graph: WordPiece.

In: a vocabulary, then string [B], raw text. Out: ragged int32 [B, (T)], ids and, on request, the start and end of each token in
bytes of the given strings.

The ids are those of google-research/bert's tokenization.py (`FullTokenizer`). TensorFlow Text's own BERT tokenizers differ from
it in case folding, control characters, invalid UTF-8 and the word limit, so we use only two of its kernels,
`NormalizeUTF8` and `FastWordpieceTokenizeWithOffsets`, both linked into TensorFlow Serving since 2.10.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, first_line
from bert_keras.io.json_files import shortened
from bert_keras.text.normal_forms import (
    NOT_A_MARKER,
    SIMPLE_CASED,
    SIMPLE_UNCASED,
    Normalizing,
    tf_text,
    wordpiece_form,
)
from bert_keras.text.tokenizer import (
    END,
    MASK,
    PADDING,
    START,
    UNKNOWN,
    Normalizer,
    SpecialTokens,
    masked,
    masked_rows,
    row_numbers,
)
from bert_keras.text.vocabulary import read_pieces

CONTINUATION = "##"  # the prefix of every token that continues a word
_CONTINUES = re.compile(rf"{CONTINUATION}(?=.)")
_UNUSED = re.compile(r"\[unused\d+\]")

# A longer word is one [UNK] (google-research/bert tokenization.py), counted in characters after normalizing. The kernel's own
# limit is in bytes; at four bytes per character it never applies to a word of 200 characters.
MAX_WORD_CHARACTERS = 200
MAX_WORD_BYTES = 4 * MAX_WORD_CHARACTERS
# The kernel's limits for a vocabulary.
MAX_PIECE_BYTES = 256  # without its ##
MAX_PIECES = 4_194_304

# Rows that may have a word over the limit. The pattern matches more rows: it knows only the most common separators.
_LONG_WORD = (
    r"(?s).*[^\t\n\r -/:-@\x{2010}-\x{2027}\x{3000}-\x{3003}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{FF01}-\x{FF0F}]"
    rf"{{{MAX_WORD_CHARACTERS + 1}}}.*"
)
# These replace literal special tokens while the kernel runs: code points that Unicode promises never to assign.
_MARKERS = {PADDING: "\ufdd0", UNKNOWN: "\ufdd1", START: "\ufdd2", END: "\ufdd3", MASK: "\ufdd4"}


class WordPiece(Normalizing):
    """BERT's tokenizer: split at spaces, punctuation and CJK ideographs, then match the longest token first.

    vocabulary: the tokens in the order of their ids.
    lower_case: lower-case and strip accents, as the uncased models do.
    special_tokens_in_text: True reads a literal "[MASK]" (also [CLS], [SEP], [PAD], [UNK]) as that token. False splits it as
        other text, as the original does, so that a text cannot inject a separator.
    Raises ValueError for a vocabulary that lacks a special token or has no other one, or has a token that is blank, repeated or
        has a space.
    Source: google-research/bert tokenization.py; Song et al. 2021 (Fast WordPiece Tokenization) for the matching.
    """

    def __init__(
        self, vocabulary: Sequence[str], *, lower_case: bool = True, special_tokens_in_text: bool = False
    ):
        ids = _checked_ids(vocabulary, source="vocabulary")
        special = SpecialTokens(
            padding=ids[PADDING], unknown=ids[UNKNOWN], start=ids[START], end=ids[END], mask=ids[MASK]
        )
        super().__init__(vocabulary, special=special, lower_case=lower_case)
        self.special_tokens_in_text = special_tokens_in_text
        self._simple = SIMPLE_UNCASED if lower_case else SIMPLE_CASED
        self._attached = r"\p{Mn}" if lower_case else ""
        # A token of whitespace (the Chinese vocabulary has U+2028) must never match; the kernel would match it. Its replacement
        # never matches, because text is split at brackets.
        pieces = [
            f"[space{i}]" if any(map(str.isspace, piece)) else piece for i, piece in enumerate(vocabulary)
        ]
        if special_tokens_in_text:
            pieces += _MARKERS.values()
        with tf.device("CPU"):
            self._goes_on = tf.constant([piece.startswith(CONTINUATION) for piece in pieces])
            self._marker_ids = tf.constant([ids[token] for token in _MARKERS])
            self._marker_bytes = tf.constant([len(token) for token in _MARKERS])
            try:
                self._kernel = tf_text.FastWordpieceTokenizer(
                    vocab=pieces,
                    suffix_indicator=CONTINUATION,
                    max_bytes_per_word=MAX_WORD_BYTES,
                    token_out_type=tf.int32,
                    unknown_token=UNKNOWN,
                )
            except RuntimeError as error:
                raise BertKerasError(
                    f"the vocabulary has no word and no character ({first_line(error)}); give the whole vocab.txt of a model"
                ) from error

    @classmethod
    def from_file(
        cls, path: str, *, lower_case: bool = True, special_tokens_in_text: bool = False
    ) -> WordPiece:
        """Reads a `vocab.txt`, one token per line. Raises FileNotFoundError, or ValueError that names the line."""
        vocabulary = read_pieces(path)
        _checked_ids(vocabulary, source=path)
        try:
            return cls(vocabulary, lower_case=lower_case, special_tokens_in_text=special_tokens_in_text)
        except BertKerasError as error:
            raise BertKerasError(f"{path}: {error}") from error

    @property
    def continues(self) -> np.ndarray:
        """Bool [V], tokens that continue a word: they start with ##."""
        return np.array([piece.startswith(CONTINUATION) for piece in self.vocabulary])

    @property
    def real(self) -> np.ndarray:
        """Int32 [R], ids that can occur in text: no special tokens, no [unused7]."""
        left_out = set(dataclasses.astuple(self.special))
        pieces = enumerate(self.vocabulary)
        return np.array(
            [i for i, piece in pieces if i not in left_out and not _UNUSED.fullmatch(piece)], "int32"
        )

    @property
    def texts(self) -> tuple[bytes, ...]:
        return tuple(
            (piece.removeprefix(CONTINUATION) if _CONTINUES.match(piece) else f" {piece}").encode()
            for piece in self.vocabulary
        )

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        normal, _ = self._normalize(self._mark(text))
        ids, _, _ = self._unmark(*self._match(normal))
        return ids

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes and end bytes (exclusive) in `text` as given.

        A token's bytes include stripped accents that follow its last letter. The tokens of one character that normalizing split
        (a Hangul syllable) all have its bytes.
        """
        marked = self._mark(text)
        normal, simple = self._normalize(marked)
        ids, starts, ends = self._match(normal)
        starts, ends = self._locate(marked, simple, starts, ends)
        return self._unmark(ids, starts, ends)

    def _arguments(self) -> dict[str, Any]:
        return {
            "vocabulary": self.vocabulary,
            "lower_case": self.lower_case,
            "special_tokens_in_text": self.special_tokens_in_text,
        }

    def _joined(self, pieces: Sequence[str]) -> str:
        return " ".join(pieces).replace(f" {CONTINUATION}", "")

    def _normal_form(self, text: tf.Tensor) -> tf.Tensor:
        return wordpiece_form(text, lower_case=self.lower_case)

    def _match(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Ids, start bytes and end bytes in the normal form."""
        ids, starts, ends = self._kernel.tokenize_with_offsets(text)
        pieces = ids, tf.cast(starts, tf.int32), tf.cast(ends, tf.int32)
        suspect = tf.reduce_any(tf.strings.regex_full_match(text, _LONG_WORD))
        return tf.cond(suspect, lambda: self._limit_words(text, *pieces), lambda: pieces)

    def _limit_words(
        self, text: tf.Tensor, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, ...]:
        """Makes each word of more than MAX_WORD_CHARACTERS characters a single [UNK]."""
        first = ~tf.gather(self._goes_on, ids.values)
        word = tf.cumsum(tf.cast(first, tf.int32)) - 1  # of each token
        word_starts = masked(starts.values, first)
        word_ends = tf.math.segment_max(ends.values, word)

        # Rows are concatenated, so that one sorted list of character starts works for all words.
        _, offsets = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
        row_starts = tf.cumsum(tf.strings.length(text), exclusive=True)
        characters = tf.cast(offsets.values, tf.int32)
        characters += tf.gather(row_starts, row_numbers(offsets.row_splits))
        shift = tf.gather(row_starts, masked(row_numbers(ids.row_splits), first))
        length = tf.searchsorted(characters, shift + word_ends)
        length -= tf.searchsorted(characters, shift + word_starts)

        too_long = tf.gather(length > MAX_WORD_CHARACTERS, word)
        ids = ids.with_values(tf.where(too_long, self.special.unknown, ids.values))
        ends = ends.with_values(tf.where(too_long, tf.gather(word_ends, word), ends.values))
        return tuple(masked_rows(first | ~too_long, ids, starts, ends))

    def _mark(self, text: tf.Tensor) -> tf.Tensor:
        """Replaces literal special tokens by markers between spaces; the offsets of later bytes do not change."""
        if not self.special_tokens_in_text:
            return text
        text = tf.strings.regex_replace(text, f"[{''.join(_MARKERS.values())}]", NOT_A_MARKER)
        for token, marker in _MARKERS.items():
            spaces = " " * (len(token) - 1 - len(marker.encode()))
            text = tf.strings.regex_replace(text, re.escape(token), f" {marker}{spaces}")
        return text

    def _unmark(
        self, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, ...]:
        """Turns markers, which the kernel numbers after the vocabulary, into the ids and offsets of their tokens."""
        if not self.special_tokens_in_text:
            return ids, starts, ends
        marked = ids.values >= self.vocab_size
        which = tf.maximum(ids.values - self.vocab_size, 0)
        token_starts = starts.values - tf.cast(marked, tf.int32)
        token_ends = token_starts + tf.gather(self._marker_bytes, which)
        return (
            ids.with_values(tf.where(marked, tf.gather(self._marker_ids, which), ids.values)),
            starts.with_values(token_starts),
            ends.with_values(tf.where(marked, token_ends, ends.values)),
        )


def _checked_ids(vocabulary: Sequence[str], *, source: str) -> dict[str, int]:
    """Token -> id. Raises ValueError, naming the line (from 1), for a vocabulary that would silently give wrong ids."""
    ids: dict[str, int] = {}
    if len(vocabulary) > MAX_PIECES:
        raise BertKerasError(f"{source} has {len(vocabulary):,} tokens; wanted at most {MAX_PIECES:,}")
    for id_, piece in enumerate(vocabulary):
        if fault := _fault(piece, ids):
            raise BertKerasError(f"{source}, line {id_ + 1}: {fault}")
        ids[piece] = id_
    if missing := [token for token in _MARKERS if token not in ids]:
        raise BertKerasError(f"{source}: {', '.join(missing)} missing; BERT needs {' '.join(_MARKERS)}")
    return ids


def _fault(piece: str, ids: Mapping[str, int]) -> str:
    """The reason why a line cannot be a token, or nothing. ids: the tokens before it."""
    if not piece.strip(" \t\r"):
        return "blank; each line must hold one token: remove the line or fill it"
    if " " in piece or "\n" in piece:
        return f"{shortened(piece)} holds a space; a token is one word or a part of one: split it"
    if "\0" in piece:
        return f"{piece[:40]!r} holds a NUL byte, which no text has; remove it"
    size = len(piece.removeprefix(CONTINUATION).encode("utf-8", "surrogatepass"))
    if size > MAX_PIECE_BYTES:
        return f"the token {piece[:40]!r}... has {size:,} bytes; wanted at most {MAX_PIECE_BYTES}"
    if piece in ids:
        return f"{shortened(piece)} is on line {ids[piece] + 1} already; remove one of the two"
    return ""


def wordpiece_words(*, lower_case: bool) -> Normalizer:
    """Texts -> the words of each text as WordPiece normalizes them before it looks for tokens, joined by spaces.

    Words over MAX_WORD_CHARACTERS are left out.
    """
    # Without words in the vocabulary, every word is one [UNK]. The kernel needs one token; no text has this one.
    tokenizer = WordPiece([*_MARKERS, NOT_A_MARKER], lower_case=lower_case)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def offsets(text: tf.Tensor) -> tuple[tf.Tensor, ...]:
        normal, _ = tokenizer._normalize(text)
        _, starts, ends = tokenizer._match(normal)
        return normal, starts.values, ends.values, starts.row_splits

    def words(texts: Sequence[str]) -> list[str]:
        normal, starts, ends, splits = (found.numpy() for found in offsets(tf.constant(texts, tf.string)))
        found = []
        for row, first, last in zip(normal, splits, splits[1:], strict=False):
            cut = (row[starts[i] : ends[i]].decode() for i in range(first, last))
            found.append(" ".join(word for word in cut if len(word) <= MAX_WORD_CHARACTERS))
        return found

    return words
