"""BERT's tokenizer in graph: WordPiece.

In: a vocabulary, then string [B], raw text. Out: ragged int32 [B, (T)], ids and, on request, the start and end of each token in
bytes of the given strings.

The ids are those of google-research/bert's tokenization.py (`FullTokenizer`). TensorFlow Text's own BERT tokenizers differ from
it in case folding, control characters, invalid UTF-8 and the word limit, so we use only two of its kernels,
`NormalizeUTF8` and `FastWordpieceTokenizeWithOffsets`, both linked into TensorFlow Serving since 2.10. TensorFlow's own ops can
take their place (`text_ops`), with equal ids and offsets.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import shortened
from bert_keras.text.added_tokens import Columns
from bert_keras.text.core_decomposition import CoreDecomposition
from bert_keras.text.core_wordpiece import CoreWordPiece
from bert_keras.text.kernel_wordpiece import KernelWordPiece
from bert_keras.text.normal_forms import (
    NOT_A_MARKER,
    SIMPLE_ASCII,
    SIMPLE_CASED,
    SIMPLE_UNCASED,
    Normalizing,
    spaced,
    wordpiece_form,
)
from bert_keras.text.rules import (
    CORE,
    END,
    MASK,
    MAX_WORD_CHARACTERS,
    PADDING,
    START,
    UNKNOWN,
    AddedToken,
    Rules,
)
from bert_keras.text.text_ops import chosen_ops, tensorflow_text
from bert_keras.text.tokenizer import Normalizer, find_special
from bert_keras.text.vocabulary import CONTINUATION, read_pieces
from bert_keras.text.word_tokenizer import WholeWords, whole_words_alone

_CONTINUES = re.compile(rf"{CONTINUATION}(?=.)")
_UNUSED = re.compile(r"\[unused\d+\]")

# The kernel's limits for a vocabulary.
MAX_PIECE_BYTES = 256  # without its ##
MAX_PIECES = 4_194_304

BERT_TOKENS = {"padding": PADDING, "unknown": UNKNOWN, "start": START, "end": END, "mask": MASK}


class WordPiece(Normalizing):
    """BERT's tokenizer: split at spaces, punctuation and CJK ideographs, then match the longest token first.

    vocabulary: the tokens in the order of their ids. Of a repeated token the last counts; a blank token is in no text.
    lower_case: lower-case and strip accents, as the uncased models do.
    special_tokens_in_text: True reads a literal "[MASK]" (also [CLS], [SEP], [PAD], [UNK]) as that token. False splits it as
        other text, as the original does, so that a text cannot inject a separator.
    rules: settings that the original lacks, such as added tokens.
    text_ops: the ops of the graph, which give equal ids: "tensorflow-text", or "core", TensorFlow's own; None takes those of
        $BERT_KERAS_TEXT_OPS, else TensorFlow Text's where it can be imported.
    Raises ValueError for a vocabulary that lacks a special token other than the mask, or has no other token.
    Source: google-research/bert tokenization.py; Devlin et al. 2019, sec. 3; Song et al. 2021 for the matching.
    """

    own_names: Mapping[str, str] = BERT_TOKENS
    model_name = "BERT"

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lower_case: bool = True,
        special_tokens_in_text: bool = False,
        rules: Rules = Rules(),  # noqa: B008  frozen
        text_ops: str | None = None,
    ):
        self._check(vocabulary)
        names = {**self.own_names, **rules.names}
        full = (*vocabulary, *rules.beyond(tuple(vocabulary)))
        special = find_special(full, names, model=self.model_name, source="vocabulary")
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
        self.special_tokens_in_text, self.text_ops = special_tokens_in_text, chosen_ops(text_ops)
        self._decompose: Callable[[tf.Tensor], tf.Tensor]
        if self.text_ops == CORE:
            self._decompose = CoreDecomposition(rules.decompose)
        else:
            normalize = tensorflow_text(self.text_ops).normalize_utf8
            self._decompose = functools.partial(normalize, normalization_form=rules.decompose)
        self._accents = rules.accents(lower_case=lower_case)
        self._attached = rf"\p{{{self._accents}}}" if self._accents else ""
        self._spaced = any(token.normalized for token in rules.added)
        self._simple = SIMPLE_UNCASED if lower_case or self._accents else SIMPLE_CASED
        if self._spaced:
            self._simple = SIMPLE_ASCII
        self._find_normalized_in_text = self._find_normalized(self._form_of)
        self._match = self._matcher(vocabulary, unknown=names["unknown"])
        if rules.new_words:
            self._match = WholeWords(
                self._match, self.vocabulary, unknown=special.unknown, new_words=rules.new_words
            )

    def _check(self, vocabulary: Sequence[str]) -> None:
        """Raises ValueError for tokens that no text can have."""
        _check_tokens(vocabulary, source="vocabulary")

    def _matcher(self, vocabulary: Sequence[str], *, unknown: str) -> Any:
        """The matcher of these tokens, a callable: string [B], text in normal form -> ids, start bytes and end bytes."""
        matcher = CoreWordPiece if self.text_ops == CORE else KernelWordPiece
        pieces = whole_words_alone(vocabulary) if self.rules.new_words else vocabulary
        return matcher(pieces, unknown=unknown, rules=self.rules)

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
            "text_ops": self.text_ops,
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
            decompose=self._decompose,
        )
        return spaced(form, self.rules) if self._spaced else form


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
