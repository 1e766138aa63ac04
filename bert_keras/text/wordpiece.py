"""BERT's tokenizer in graph: WordPiece.

In: a vocabulary, then string [B], raw text. Out: ragged int32 [B, (T)], ids and, on request, the start and end of each token in
bytes of the given strings.

The ids are those of google-research/bert's tokenization.py (`FullTokenizer`). TensorFlow Text's own BERT tokenizers differ from
it in case folding, control characters, invalid UTF-8 and the word limit, so we use only two of its kernels,
`NormalizeUTF8` and `FastWordpieceTokenizeWithOffsets`, both linked into TensorFlow Serving since 2.10.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, first_line
from bert_keras.io.json_files import shortened
from bert_keras.text.added_tokens import WHITE_SPACE, Columns, cut
from bert_keras.text.normal_forms import (
    NOT_A_MARKER,
    SIMPLE_ASCII,
    SIMPLE_CASED,
    SIMPLE_UNCASED,
    Normalizing,
    spaced,
    tf_text,
    wordpiece_form,
)
from bert_keras.text.ragged import masked, masked_rows, row_numbers
from bert_keras.text.rules import END, MASK, MAX_WORD_CHARACTERS, PADDING, START, UNKNOWN, AddedToken, Rules
from bert_keras.text.tokenizer import Normalizer, find_special
from bert_keras.text.vocabulary import read_pieces

CONTINUATION = "##"  # the prefix of every token that continues a word
_CONTINUES = re.compile(rf"{CONTINUATION}(?=.)")
_UNUSED = re.compile(r"\[unused\d+\]")
_NEVER_IN_TEXT = re.compile(r"[\s\0]")

# The kernel's limits for a vocabulary.
MAX_PIECE_BYTES = 256  # without its ##
MAX_PIECES = 4_194_304

# Rows that may have a word of more characters than a limit. The pattern matches more rows: it knows only the most common
# separators.
_LONG_WORD = r"(?s).*[^\t\n\r -/:-@\x{2010}-\x{2027}\x{3000}-\x{3003}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{FF01}-\x{FF0F}]"
# Words, where the kernel does not split the text: a punctuation character, or characters without white space between them.
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_WORD = rf"[{_PUNCTUATION}]|[^{_PUNCTUATION}{WHITE_SPACE}]+"
BERT_TOKENS = {"padding": PADDING, "unknown": UNKNOWN, "start": START, "end": END, "mask": MASK}


class WordPiece(Normalizing):
    """BERT's tokenizer: split at spaces, punctuation and CJK ideographs, then match the longest token first.

    vocabulary: the tokens in the order of their ids. Of a repeated token the last counts; a blank token is in no text.
    lower_case: lower-case and strip accents, as the uncased models do.
    special_tokens_in_text: True reads a literal "[MASK]" (also [CLS], [SEP], [PAD], [UNK]) as that token. False splits it as
        other text, as the original does, so that a text cannot inject a separator.
    rules: settings that the original lacks, such as added tokens.
    Raises ValueError for a vocabulary that lacks a special token other than the mask, or has no other token.
    Source: google-research/bert tokenization.py; Devlin et al. 2019, sec. 3; Song et al. 2021 for the matching.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lower_case: bool = True,
        special_tokens_in_text: bool = False,
        rules: Rules = Rules(),  # noqa: B008  frozen
    ):
        _check_tokens(vocabulary, source="vocabulary")
        names = BERT_TOKENS | dict(rules.names)
        full = (*vocabulary, *rules.beyond(tuple(vocabulary)))
        special = find_special(full, names, model="BERT", source="vocabulary")
        if special.unknown >= len(vocabulary):
            raise BertKerasError(
                f"vocabulary: {names['unknown']} is an added token; it must be in the vocabulary"
            )
        there = [AddedToken(token, normalized=False) for token in names.values() if token in full]
        super().__init__(
            vocabulary,
            special=special,
            lower_case=lower_case,
            rules=rules,
            names=names,
            whole=there if special_tokens_in_text else (),
        )
        self.special_tokens_in_text = special_tokens_in_text
        self._accents = rules.accents(lower_case=lower_case)
        self._attached = rf"\p{{{self._accents}}}" if self._accents else ""
        # The kernel splits text itself, as the original does, unless a setting says otherwise.
        self._splits = rules.clean_text and rules.split_chinese
        self._spaced = any(token.normalized for token in rules.added)
        self._simple = SIMPLE_UNCASED if lower_case or self._accents else SIMPLE_CASED
        if self._spaced:
            self._simple = SIMPLE_ASCII
        self._find_normalized_in_text = self._find_normalized(self._form_of)
        with tf.device("CPU"):
            self._goes_on = tf.constant([piece.startswith(CONTINUATION) for piece in vocabulary])
            try:
                self._kernel = tf_text.FastWordpieceTokenizer(
                    vocab=_matchable(vocabulary),
                    suffix_indicator=CONTINUATION,
                    max_bytes_per_word=4 * rules.max_word,  # never reached by a word of max_word characters
                    token_out_type=tf.int32,
                    unknown_token=names["unknown"],
                    no_pretokenization=not self._splits,
                )
            except RuntimeError as error:
                raise BertKerasError(
                    f"the vocabulary has no word and no character ({first_line(error)}); give the whole vocab.txt of a model"
                ) from error

    @classmethod
    def from_file(
        cls, path: str, *, lower_case: bool = True, special_tokens_in_text: bool = False
    ) -> WordPiece:
        """Reads a `vocab.txt`, one token per line. Raises FileNotFoundError, or ValueError that names the file."""
        vocabulary = read_pieces(path)
        try:
            return cls(vocabulary, lower_case=lower_case, special_tokens_in_text=special_tokens_in_text)
        except BertKerasError as error:
            raise BertKerasError(f"{path}: {error}") from error

    @property
    def continues(self) -> np.ndarray:
        """Bool [V], tokens that continue a word: they start with ##."""
        own = len(self.own_vocabulary)
        return np.array(
            [i < own and piece.startswith(CONTINUATION) for i, piece in enumerate(self.vocabulary)]
        )

    @property
    def real(self) -> np.ndarray:
        """Int32 [R], ids that can occur in text: no special tokens, no [unused7]."""
        left_out, pieces = self._marks, enumerate(self.vocabulary)
        return np.array(
            [i for i, piece in pieces if i not in left_out and not _UNUSED.fullmatch(piece)], "int32"
        )

    @property
    def texts(self) -> tuple[bytes, ...]:
        return tuple(
            (piece.removeprefix(CONTINUATION) if _CONTINUES.match(piece) else f" {piece}").encode()
            for piece in self.vocabulary
        )

    def _ids(self, text: tf.Tensor) -> tf.RaggedTensor:
        normal, _ = self._normalize(text)
        return self._find_normalized_in_text(normal, lambda part: self._match(part)[:1])[0]

    def _with_offsets(self, text: tf.Tensor) -> Columns:
        """Ids, start bytes and end bytes.

        A token's bytes include stripped accents that follow its last letter. The tokens of one character that normalizing split
        (a Hangul syllable) all have its bytes.
        """
        normal, simple = self._normalize(text)
        ids, starts, ends = self._find_normalized_in_text(normal, self._match)
        return (ids, *self._locate(text, simple, starts, ends))

    def _arguments(self) -> dict[str, Any]:
        return {
            "vocabulary": self.own_vocabulary,
            "lower_case": self.lower_case,
            "special_tokens_in_text": self.special_tokens_in_text,
            "rules": self.rules,
        }

    def _joined(self, pieces: Sequence[str]) -> str:
        return " ".join(pieces).replace(f" {CONTINUATION}", "")

    def _form_of(self, texts: list[str]) -> list[str]:
        """The normal forms of the texts of added tokens."""
        return [form.decode() for form in self._normal_form(tf.constant(texts)).numpy()]

    def _normal_form(self, text: tf.Tensor) -> tf.Tensor:
        """Valid UTF-8 in normal form; spaces for white space and around ideographs, where a token is looked for in it."""
        form = wordpiece_form(
            text,
            lower_case=self.lower_case,
            clean=self.rules.clean_text,
            accents=self._attached,
            decompose=self.rules.decompose,
        )
        return spaced(form, self.rules) if self._spaced else form

    def _match(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Ids, start bytes and end bytes in the normal form."""
        if not self._splits:
            return self._match_words(text)
        pieces = self._kernel_tokens(text)
        long_word = f"{_LONG_WORD}{{{self.rules.max_word + 1}}}.*"
        suspect = tf.reduce_any(tf.strings.regex_full_match(text, long_word))
        return tf.cond(suspect, lambda: self._limit_words(text, *pieces), lambda: pieces)

    def _match_words(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """As `_match`, for text that we split into words."""
        parts = cut(text, _WORD)
        words = tf.where(parts.found, parts.text.values, "")
        ids, *offsets = self._limit_words(words, *self._kernel_tokens(words))
        shift = tf.gather(parts.start, row_numbers(ids.row_splits))
        splits = tf.gather(ids.row_splits, parts.text.row_splits)
        values = (ids.values, *(column.values + shift for column in offsets))
        return tuple(tf.RaggedTensor.from_row_splits(one, splits, validate=False) for one in values)

    def _kernel_tokens(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        ids, starts, ends = self._kernel.tokenize_with_offsets(text)
        return ids, tf.cast(starts, tf.int32), tf.cast(ends, tf.int32)

    def _limit_words(
        self, text: tf.Tensor, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, ...]:
        """Makes each word of more characters than the limit a single [UNK]."""
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

        too_long = tf.gather(length > self.rules.max_word, word)
        ids = ids.with_values(tf.where(too_long, self.special.unknown, ids.values))
        ends = ends.with_values(tf.where(too_long, tf.gather(word_ends, word), ends.values))
        return tuple(masked_rows(first | ~too_long, ids, starts, ends))


def _check_tokens(vocabulary: Sequence[str], *, source: str) -> None:
    """Raises BertKerasError, naming the line (from 1), for a vocabulary that the kernel does not take."""
    if len(vocabulary) > MAX_PIECES:
        raise BertKerasError(f"{source} has {len(vocabulary):,} tokens; wanted at most {MAX_PIECES:,}")
    for number, piece in enumerate(vocabulary, 1):
        size = len(piece.removeprefix(CONTINUATION).encode("utf-8", "surrogatepass"))
        if "\n" in piece:
            fault = f"the token {shortened(piece)} holds an end of line; a token is one line: split it"
        elif size > MAX_PIECE_BYTES:
            fault = f"the token {piece[:40]!r}... has {size:,} bytes; wanted at most {MAX_PIECE_BYTES}"
        else:
            continue
        raise BertKerasError(f"{source}, line {number}: {fault}")


def _matchable(vocabulary: Sequence[str]) -> list[str]:
    """The vocabulary for the kernel, with a token that no text has in the place of each that must never match.

    These are blank tokens, tokens with white space (the Chinese vocabulary has U+2028) or with a NUL, which the kernel would
    match, and all but the last of equal tokens. Text is split at brackets, so that their replacement never matches.
    """
    last = {piece: i for i, piece in enumerate(vocabulary)}
    return [
        piece if last[piece] == i and not _NEVER_IN_TEXT.search(piece or " ") else f"[never{i}]"
        for i, piece in enumerate(vocabulary)
    ]


def wordpiece_words(*, lower_case: bool) -> Normalizer:
    """Texts -> the words of each text as WordPiece normalizes them before it looks for tokens, joined by spaces.

    Words over MAX_WORD_CHARACTERS are left out.
    """
    # Without words in the vocabulary, every word is one [UNK]. The kernel needs one token; no text has this one.
    tokenizer = WordPiece([*BERT_TOKENS.values(), NOT_A_MARKER], lower_case=lower_case)

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
