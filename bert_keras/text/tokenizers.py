"""From text to ids of pieces, inside the TensorFlow graph: WordPiece for BERT, SentencePiece for ALBERT.

In: a vocabulary, then string [B], text as it comes. Out: ragged int32 [B, (T)], vocabulary ids and, on request, where each
piece starts and ends, in bytes of the strings that were given.

WordPiece's ids are those of google-research/bert's tokenization.py (`FullTokenizer`). TensorFlow Text's own BERT tokenizers
differ from it in case folding, control characters, invalid UTF-8 and the word limit, so only two of its kernels serve here,
`NormalizeUTF8` and `FastWordpieceTokenizeWithOffsets`, both linked into TensorFlow Serving since 2.10. SentencePiece is
TensorFlow Text's kernel behind ALBERT's own normalizing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.machinery
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError, MissingPackageError
from bert_keras.text.vocabulary_files import MAX_VOCABULARY_BYTES, SENTENCEPIECE, pieces_of

_FORMATS_ITS_DOCSTRINGS = (
    "tensorflow_text.python.ops.wordshape_ops"  # so that `python -OO` cannot import it as it is
)


class _WithDocstrings(importlib.machinery.SourceFileLoader):
    """Compiles a module with docstrings, whatever -OO says."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True, optimize=0)

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        spec = (
            importlib.machinery.PathFinder.find_spec(name, path) if name == _FORMATS_ITS_DOCSTRINGS else None
        )
        if spec is not None:
            spec.loader = cls(name, spec.origin or "")
        return spec


if sys.flags.optimize > 1:
    sys.meta_path.insert(0, _WithDocstrings)
try:
    import tensorflow_text as tf_text
except ImportError as error:
    raise MissingPackageError(
        f"{error}; bert_keras needs tensorflow-text of TensorFlow's minor version, which has wheels for Linux x86_64 "
        "and macOS arm64 only: use one of those, WSL 2 on Windows, or a linux/amd64 container"
    ) from error

PADDING, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
CONTINUATION = "##"  # opens every piece that does not start a word
_UNUSED = re.compile(r"\[unused\d+\]")

# A longer word is one [UNK] (google-research/bert tokenization.py), counted in characters after normalizing. The kernel's own
# limit is in bytes: at four bytes a character it never decides about a word of 200 characters.
MAX_WORD_CHARACTERS = 200
MAX_WORD_BYTES = 4 * MAX_WORD_CHARACTERS
# The kernel's limits of a vocabulary.
MAX_PIECE_BYTES = 256  # without the ## that opens a piece
MAX_PIECES = 4_194_304

# What vanishes first: control characters (tab, newline and carriage return are spaces), format characters, U+FFFD.
_REMOVED = r"\x{0}-\x{8}\x{B}\x{C}\x{E}-\x{1F}\x{7F}-\x{9F}\p{Cf}\x{FFFD}"

# Rows made of these characters alone are their own normal form, once ASCII is lower-cased, and skip the normalizer.
# Uncased, a choice of what is common: ASCII, Latin letters that do not decompose, punctuation, currency, CJK ideographs.
_SIMPLE_CASED = rf"[^{_REMOVED}\p{{Cs}}]*"
_SIMPLE_UNCASED = (
    r"[\t\n\r -~\x{A0}-\x{AC}\x{AE}-\x{BF}\x{D7}\x{DF}\x{E6}\x{F0}\x{F7}\x{F8}\x{FE}\x{2010}-\x{2027}\x{2030}-\x{205E}"
    r"\x{20A0}-\x{20BF}\x{3001}-\x{3029}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{FF01}-\x{FF20}]*"
)

# Whether a row may hold a word over the limit: a suspicion only, since the class leaves out just the commonest separators.
_LONG_WORD = (
    r"(?s).*[^\t\n\r -/:-@\x{2010}-\x{2027}\x{3000}-\x{3003}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{FF01}-\x{FF0F}]"
    rf"{{{MAX_WORD_CHARACTERS + 1}}}.*"
)

# Stand-ins for literal special tokens while the kernel runs: code points that Unicode promises never to assign.
_MARKERS = {PADDING: "\ufdd0", UNKNOWN: "\ufdd1", START: "\ufdd2", END: "\ufdd3", MASK: "\ufdd4"}
_NOT_A_MARKER = "\ufdd5"

# SentencePiece has ALBERT's names for the same tokens.
SENTENCEPIECE_TOKENS = {
    "padding": "<pad>",
    "unknown": "<unk>",
    "start": START,
    "end": END,
    "mask": MASK,
}
SPACE = "\u2581"  # stands in a piece for the space before a word

# What Python's str.split() splits at, as ALBERT does.
_WHITESPACE = r"\t-\r\x1C- \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
# Holds the second byte's place where two quotes become one. Every normalizer of SentencePiece but `identity` drops it from text.
_FILLER = "\x01"
# Rows that are their own normal form, once ASCII is lower-cased.
_SIMPLE_SENTENCEPIECE = r"[ -~\x{A3}\x{20AC}\x{2013}\x{2014}\x{2018}-\x{201F}\x{4E00}-\x{9FFF}]*"
# A piece of these alone goes on with a word, unless it is one sign (google-research/albert create_pretraining_data.py).
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_SIGNS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~£€')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The ids that fill, frame and hide text."""

    padding: int
    unknown: int
    start: int
    end: int
    mask: int


class Tokenizer(Protocol):
    """What preprocessing, masking, the tasks and a folder on disk ask of a tokenizer.

    vocabulary: the pieces in the order of their ids
    digest: SHA-256 of the file that holds them, in hex: with `lower_case`, what must be equal for ids to be equal
    continues: bool [V], pieces that go on with a word
    real: int32 [R], ids that can occur in text
    """

    special: SpecialTokens
    vocab_size: int
    lower_case: bool

    @property
    def vocabulary(self) -> tuple[str, ...]: ...

    @property
    def digest(self) -> str: ...

    @property
    def continues(self) -> np.ndarray: ...

    @property
    def real(self) -> np.ndarray: ...

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """text: string [B] -> ragged int32 [B, (T)], ids."""

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes and end bytes (exclusive) in `text`."""


class _InGraph(tf.Module):
    """Normal forms, and the way back from places in them to places in the text.

    _simple: a pattern; rows that match it, once ASCII is lower-cased, are their own normal form
    _attached: a pattern of characters that vanish and belong to the one before them
    """

    _simple: str
    _attached: str

    def __init__(self, vocabulary: Sequence[str], *, special: SpecialTokens, lower_case: bool) -> None:
        super().__init__()
        self.special = special
        self.vocab_size = len(vocabulary)
        self.lower_case = lower_case
        # Behind a function: TensorFlow would walk a tuple, piece by piece, each time it lists the module's variables.
        fixed = tuple(vocabulary)
        self._vocabulary = lambda: fixed
        # Not by decorator: that holds the instance weakly, and `WordPiece(...).tokenize(...)` would find it gone.
        for method in (self.tokenize, self.tokenize_with_offsets):
            graph = tf.function(method, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
            setattr(self, method.__name__, graph)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The pieces in the order of their ids."""
        return self._vocabulary()

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        raise NotImplementedError

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        raise NotImplementedError

    def _normal_form(self, text: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _normalize(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Normal forms, string [B], and which rows kept their bytes' places, bool [B]."""
        if self.lower_case:
            text = tf.strings.lower(text)
        simple = tf.strings.regex_full_match(text, self._simple)
        rest = self._normal_form(tf.boolean_mask(text, ~simple))
        return tf.tensor_scatter_nd_update(text, tf.where(~simple), rest), simple

    def _locate(
        self, text: tf.Tensor, simple: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Moves places in the normal form to places in `text`; rows that are simple keep theirs."""
        rows = tf.cumsum(tf.cast(~simple, tf.int32), exclusive=True)  # among those to move
        moving = tf.where(~tf.gather(simple, starts.value_rowids()))
        row = tf.gather(rows, tf.gather_nd(starts.value_rowids(), moving))

        # Every character of those rows, laid end to end: its bytes in `text` and the bytes of its normal form. A normal form
        # depends on its neighbours in one case only, the final sigma, and both sigmas take two bytes.
        codes, places = tf.strings.unicode_decode_with_offsets(
            tf.boolean_mask(text, ~simple), "UTF-8", errors="ignore"
        )
        distinct, which = tf.unique(codes.values)
        characters = tf.strings.unicode_encode(distinct[:, tf.newaxis], "UTF-8")
        original_starts = tf.cast(places.values, tf.int32)
        original_ends = original_starts + tf.gather(tf.strings.length(characters), which)
        normal_ends = tf.cumsum(tf.gather(tf.strings.length(self._normal_form(characters)), which))

        # An accent that normalizing strips belongs to the letter before it, unless it opens the row.
        accent = tf.gather(tf.strings.regex_full_match(characters, self._attached), which)
        opens = tf.equal(tf.range(codes.row_splits[-1]), tf.gather(codes.row_starts(), codes.value_rowids()))
        letter = tf.cumsum(tf.cast(opens | ~accent, tf.int32)) - 1
        original_ends = tf.gather(tf.math.segment_max(original_ends, letter), letter)

        row_shift = tf.gather(tf.concat([[0], normal_ends], axis=0), tf.gather(codes.row_starts(), row))
        start, end = tf.gather_nd(starts.values, moving), tf.gather_nd(ends.values, moving)
        first = tf.searchsorted(normal_ends, row_shift + start, side="right")
        first = tf.minimum(first, tf.size(normal_ends) - 1)  # a piece without bytes may stand at the end
        last = tf.searchsorted(normal_ends, row_shift + end - 1, side="right")
        starts_moved = tf.tensor_scatter_nd_update(starts.values, moving, tf.gather(original_starts, first))
        ends_moved = tf.tensor_scatter_nd_update(ends.values, moving, tf.gather(original_ends, last))
        return starts.with_values(starts_moved), ends.with_values(ends_moved)


class WordPiece(_InGraph):
    """BERT's tokenizer: split at spaces, punctuation and CJK ideographs, then match the longest piece first.

    vocabulary: the pieces in the order of their ids.
    lower_case: lower-case and strip accents, as the uncased models do.
    special_tokens_in_text: True reads a literal "[MASK]" (also [CLS], [SEP], [PAD], [UNK]) as that token. False splits it as
        any other text, as the original does: whoever writes the text cannot smuggle in a separator.
    Raises ValueError for a vocabulary that lacks a special token or has a blank, doubled or spaced piece.
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
        self._simple = _SIMPLE_UNCASED if lower_case else _SIMPLE_CASED
        self._attached = r"\p{Mn}" if lower_case else ""
        # A piece of whitespace (the Chinese vocabulary has U+2028) never matches; the kernel would let it. Brackets split.
        pieces = [
            f"[space{i}]" if any(map(str.isspace, piece)) else piece for i, piece in enumerate(vocabulary)
        ]
        if special_tokens_in_text:
            pieces += _MARKERS.values()
        with tf.device("CPU"):
            self._goes_on = tf.constant([piece.startswith(CONTINUATION) for piece in pieces])
            self._marker_ids = tf.constant([ids[token] for token in _MARKERS])
            self._marker_bytes = tf.constant([len(token) for token in _MARKERS])
            self._kernel = tf_text.FastWordpieceTokenizer(
                vocab=pieces,
                suffix_indicator=CONTINUATION,
                max_bytes_per_word=MAX_WORD_BYTES,
                token_out_type=tf.int32,
                unknown_token=UNKNOWN,
            )

    @classmethod
    def from_file(
        cls, path: str, *, lower_case: bool = True, special_tokens_in_text: bool = False
    ) -> WordPiece:
        """Reads a `vocab.txt`, one piece a line. Raises FileNotFoundError, or ValueError that names the line."""
        vocabulary = read_vocabulary(path)
        return cls(vocabulary, lower_case=lower_case, special_tokens_in_text=special_tokens_in_text)

    @property
    def digest(self) -> str:
        """SHA-256 of the vocabulary's file, one piece a line."""
        return hashlib.sha256("".join(f"{piece}\n" for piece in self.vocabulary).encode()).hexdigest()

    @property
    def continues(self) -> np.ndarray:
        """Bool [V], pieces that go on with a word: ## opens them."""
        return np.array([piece.startswith(CONTINUATION) for piece in self.vocabulary])

    @property
    def real(self) -> np.ndarray:
        """Int32 [R], ids that can occur in text: no special token, no [unused7]."""
        left_out = set(dataclasses.astuple(self.special))
        pieces = enumerate(self.vocabulary)
        return np.array(
            [i for i, piece in pieces if i not in left_out and not _UNUSED.fullmatch(piece)], "int32"
        )

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Ids alone, the fast path. text: string [B], UTF-8 -> ragged int32 [B, (T)]. Invalid bytes are dropped."""
        normal, _ = self._normalize(self._mark(text))
        ids, _, _ = self._unmark(*self._match(normal))
        return ids

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Ids and places. text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes, end bytes (exclusive).

        Places count bytes of `text` as given, before any normalizing. A piece's bytes include stripped accents that follow
        its last letter. Pieces of one character that normalizing took apart (a Hangul syllable) all get its bytes.
        """
        marked = self._mark(text)
        normal, simple = self._normalize(marked)
        ids, starts, ends = self._match(normal)
        starts, ends = self._locate(marked, simple, starts, ends)
        return self._unmark(ids, starts, ends)

    def _normal_form(self, text: tf.Tensor) -> tf.Tensor:
        """Valid UTF-8 without control characters; uncased, lower-cased and without accents too."""
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore")
        text = tf.strings.regex_replace(text, f"[{_REMOVED}]", "")
        if self.lower_case:
            # ASCII by itself first: the second step follows the machine's locale, where a Turkish I would lose its dot.
            text = tf.strings.lower(tf.strings.lower(text), encoding="utf-8")
            text = tf.strings.regex_replace(tf_text.normalize_utf8(text, "NFD"), r"\p{Mn}", "")
        return text

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
        word = tf.cumsum(tf.cast(first, tf.int32)) - 1  # of each piece
        word_starts = tf.boolean_mask(starts.values, first)
        word_ends = tf.math.segment_max(ends.values, word)

        # Rows laid end to end, so that one sorted list of character starts serves every word.
        _, places = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
        row_starts = tf.cumsum(tf.strings.length(text), exclusive=True)
        characters = tf.cast(places.values, tf.int32) + tf.gather(row_starts, places.value_rowids())
        shift = tf.gather(row_starts, tf.boolean_mask(ids.value_rowids(), first))
        length = tf.searchsorted(characters, shift + word_ends) - tf.searchsorted(
            characters, shift + word_starts
        )

        too_long = tf.gather(length > MAX_WORD_CHARACTERS, word)
        ids = ids.with_values(tf.where(too_long, self.special.unknown, ids.values))
        ends = ends.with_values(tf.where(too_long, tf.gather(word_ends, word), ends.values))
        keep = ids.with_values(first | ~too_long)
        return tuple(tf.ragged.boolean_mask(values, keep) for values in (ids, starts, ends))

    def _mark(self, text: tf.Tensor) -> tf.Tensor:
        """Puts markers where literal special tokens stand, between spaces: no byte after them moves."""
        if not self.special_tokens_in_text:
            return text
        text = tf.strings.regex_replace(text, f"[{''.join(_MARKERS.values())}]", _NOT_A_MARKER)
        for token, marker in _MARKERS.items():
            spaces = " " * (len(token) - 1 - len(marker.encode()))
            text = tf.strings.regex_replace(text, re.escape(token), f" {marker}{spaces}")
        return text

    def _unmark(
        self, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, ...]:
        """Turns markers, which the kernel numbers after the vocabulary, into their tokens' ids and places."""
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


class SentencePiece(_InGraph):
    """ALBERT's tokenizer: a unigram model over text whose spaces are characters.

    model: a serialized SentencePiece model, whose [CLS], [SEP], [MASK] and <pad> are control symbols, so that text cannot
        hold them.
    lower_case: lower-case, as the published models do. Accents are stripped either way, and `` and '' are double quotes.

    A digit and a comma are never one piece: "9," is "9" and ",".
    Raises ValueError for bytes that are no such model.
    Source: google-research/albert tokenization.py (`preprocess_text`, `encode_pieces`); the quotes: transformers.
    """

    _simple = _SIMPLE_SENTENCEPIECE

    def __init__(self, model: bytes, *, lower_case: bool = True):
        proto, encode = _checked_model(model, source="model")
        vocabulary = [piece.piece for piece in proto.pieces]
        ids = {piece: i for i, piece in enumerate(vocabulary)}
        special = SpecialTokens(**{name: ids[token] for name, token in SENTENCEPIECE_TOKENS.items()})
        super().__init__(vocabulary, special=special, lower_case=lower_case)
        self.model = model
        self._attached = _vanishing()
        occurring = (proto.SentencePiece.NORMAL, proto.SentencePiece.USER_DEFINED)
        self._real = np.array([i for i, piece in enumerate(proto.pieces) if piece.type in occurring], "int32")
        parts = [_without_comma(piece, encode) for piece in vocabulary]
        with tf.device("CPU"):
            # What each piece is read as, one or several ids, and the bytes of text from the start of each part to the end of all.
            self._part_splits = tf.constant(np.cumsum([0, *map(len, parts)]), tf.int64)
            self._part_ids = tf.constant([ids.get(part, special.unknown) for row in parts for part in row])
            self._part_bytes = tf.constant([length for row in parts for length in _bytes_to_end(row)])

    @classmethod
    def from_file(cls, path: str, *, lower_case: bool = True) -> SentencePiece:
        """Reads a `spiece.model`. Raises FileNotFoundError, or ValueError where it is no model."""
        return cls(read_sentencepiece(path), lower_case=lower_case)

    @property
    def digest(self) -> str:
        """SHA-256 of the model."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def continues(self) -> np.ndarray:
        """Bool [V], pieces that go on with a word: English letters and signs without the space."""
        return np.array([_goes_on(piece) for piece in self.vocabulary])

    @property
    def real(self) -> np.ndarray:
        """Int32 [R], ids that can occur in text: no control symbol, not <unk>."""
        return self._real

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Ids alone, the fast path. text: string [B], UTF-8 -> ragged int32 [B, (T)]. Invalid bytes are dropped."""
        normal, _ = self._normalize(_one_quote(text))
        parts = self._parts(self._kernel().tokenize(normal))
        return parts.with_values(tf.gather(self._part_ids, parts.values))

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Ids and places. text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes, end bytes (exclusive).

        Places count bytes of `text` as given, without the space before a word. A piece of that space alone stands where its
        word starts and has no bytes.
        """
        marked = _one_quote(text)
        normal, simple = self._normalize(marked)
        ids, starts, ends = self._kernel().tokenize_with_offsets(normal)
        parts, (starts, ends) = (
            self._parts(ids),
            self._trim(normal, tf.cast(starts, tf.int32), tf.cast(ends, tf.int32)),
        )

        # Parts lie behind each other up to the end of their piece.
        piece = tf.repeat(tf.range(tf.size(ids.values)), self._part_counts(ids))
        first = tf.not_equal(piece, tf.concat([[-1], piece[:-1]], axis=0))
        piece_starts, piece_ends = tf.gather(starts, piece), tf.gather(ends, piece)
        begins = tf.maximum(piece_ends - tf.gather(self._part_bytes, parts.values), piece_starts)
        begins = tf.where(first, piece_starts, begins)
        stops = tf.where(
            tf.concat([first[1:], [True]], axis=0), piece_ends, tf.concat([begins[1:], [0]], axis=0)
        )
        begun, stopped = self._locate(marked, simple, parts.with_values(begins), parts.with_values(stops))
        stopped = stopped.with_values(tf.where(begins == stops, begun.values, stopped.values))
        return parts.with_values(tf.gather(self._part_ids, parts.values)), begun, stopped

    def _normal_form(self, text: tf.Tensor) -> tf.Tensor:
        return _sentencepiece_form(text, lower_case=self.lower_case)

    def _kernel(self) -> tf_text.SentencepieceTokenizer:
        """The parsed model, in the graph that uses it: one from outside is gone once TensorFlow clears its cached kernels."""
        return tf_text.SentencepieceTokenizer(self.model, out_type=tf.int32)

    def _part_counts(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return tf.gather(self._part_splits, ids.values + 1) - tf.gather(self._part_splits, ids.values)

    def _parts(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Ragged [B, (T)], pieces -> ragged [B, (T)], places in the table of parts."""
        first = tf.gather(self._part_splits, ids.values)
        places = tf.ragged.range(first, first + self._part_counts(ids))
        return tf.RaggedTensor.from_row_splits(
            tf.cast(places.values, tf.int32), tf.gather(places.row_splits, ids.row_splits), validate=False
        )

    def _trim(
        self, text: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Places int32 [T] of all rows without the spaces that open them."""
        row_starts = tf.gather(tf.cumsum(tf.strings.length(text), exclusive=True), starts.value_rowids())
        letters = tf.where(tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8) != ord(" "))[:, 0]
        letters = tf.concat([tf.cast(letters, tf.int32), [tf.int32.max]], axis=0)
        next_letter = tf.gather(letters, tf.searchsorted(letters, starts.values + row_starts)) - row_starts
        return tf.minimum(next_letter, ends.values), ends.values


def _one_quote(text: tf.Tensor) -> tf.Tensor:
    """`` and '' as a double quote; no byte after them moves."""
    return tf.strings.regex_replace(text, "``|''", '"' + _FILLER)


def _sentencepiece_form(text: tf.Tensor, *, lower_case: bool) -> tf.Tensor:
    """Valid UTF-8 without accents, whitespace as spaces, of which the kernel leaves one between words."""
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore")
    # Lower-casing ends at a NUL. What stands for it is as unknown to a vocabulary.
    text = tf.strings.regex_replace(text, r"\x00", _NOT_A_MARKER)
    text = tf_text.normalize_utf8(tf.strings.regex_replace(text, f"[{_WHITESPACE}]", " "), "NFKD")
    text = tf.strings.regex_replace(text, _vanishing(), "")
    if lower_case:
        text = tf.strings.lower(tf.strings.lower(text), encoding="utf-8")  # twice: see WordPiece
    return text


@functools.cache
def _vanishing() -> str:
    """A pattern of the characters that ALBERT strips, those of a combining class over 0, and of what holds a place."""
    codes = [code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))]
    starts = [code for code in codes if not unicodedata.combining(chr(code - 1))]
    ends = [code for code in codes if not unicodedata.combining(chr(code + 1))]
    ranges = (rf"\x{{{start:X}}}-\x{{{end:X}}}" for start, end in zip(starts, ends, strict=True))
    return f"[{''.join(ranges)}{_FILLER}]"


def _without_comma(piece: str, encode: Callable[[str], list[str]]) -> list[str]:
    """The pieces that ALBERT reads in place of one that ends with a digit and a comma; any other piece as it is."""
    if len(piece) < 2 or piece[-1] != "," or not piece[-2].isdigit():
        return [piece]
    first, *rest = encode(piece[:-1].replace(SPACE, ""))
    if not piece.startswith(SPACE):
        first = first.removeprefix(SPACE)
    return [*([first] if first else []), *rest, ","]


def _bytes_to_end(parts: list[str]) -> list[int]:
    """Bytes of text from the start of each part to the end of the last."""
    lengths = [len(part.replace(SPACE, "").encode()) for part in parts]
    return [sum(lengths[i:]) for i in range(len(parts))]


def _goes_on(piece: str) -> bool:
    characters = set(piece.lower())
    return piece not in _SIGNS and characters <= _LETTERS | _SIGNS


def _checked_model(model: bytes, *, source: str) -> tuple[Any, Callable[[str], list[str]]]:
    """The parsed model and what splits text with it. Raises ValueError for bytes that would end the process in the kernel."""
    import sentencepiece
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        messages: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
        proto = messages.ModelProto.FromString(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except (DecodeError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise BertKerasError(f"{source} is no SentencePiece model ({reason}); fetch it again") from error
    types = {piece.piece: piece.type for piece in proto.pieces}
    kind = proto.SentencePiece
    for name, token in SENTENCEPIECE_TOKENS.items():
        wanted = kind.UNKNOWN if name == "unknown" else kind.CONTROL
        if types.get(token) != wanted:
            found = "missing" if token not in types else f"a {kind.Type.Name(types[token])} piece"
            raise BertKerasError(
                f"{source}: {token} is {found}, wanted is a {kind.Type.Name(wanted)} piece; ALBERT needs "
                f"{' '.join(SENTENCEPIECE_TOKENS.values())}, which no text may hold"
            )
    normalizer = proto.normalizer_spec
    if not (normalizer.add_dummy_prefix and normalizer.remove_extra_whitespaces) or (
        proto.trainer_spec.treat_whitespace_as_suffix
    ):
        raise BertKerasError(
            f"{source} does not put one space before each word; train it with ALBERT's settings"
        )
    return proto, functools.partial(processor.encode, out_type=str)


def read_sentencepiece(path: str) -> bytes:
    """Reads a `spiece.model`. Raises FileNotFoundError, and ValueError that names the file where it is no model."""
    path = os.path.expanduser(path)
    if not tf.io.gfile.exists(path):
        raise MissingFileError(
            f"no SentencePiece model at {path}; give the path of the model's {SENTENCEPIECE}"
        )
    with tf.io.gfile.GFile(path, "rb") as file:
        model = _bounded(file, path)
    _checked_model(model, source=path)
    return model


# -----------------------------------------------------------------------------------------------------------
# What a vocabulary is learned from

Normalizer = Callable[[Sequence[str]], list[str]]


def wordpiece_words(*, lower_case: bool) -> Normalizer:
    """Texts -> their words as WordPiece sees them before it looks for pieces, each text's joined by spaces.

    Words that are too long to have pieces are left out.
    """
    # A vocabulary without words: each is one [UNK]. The kernel wants one piece at least, here one that no text has.
    tokenizer = WordPiece([*_MARKERS, _NOT_A_MARKER], lower_case=lower_case)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def places(text: tf.Tensor) -> tuple[tf.Tensor, ...]:
        normal, _ = tokenizer._normalize(text)
        _, starts, ends = tokenizer._match(normal)
        return normal, starts.values, ends.values, starts.row_splits

    def words(texts: Sequence[str]) -> list[str]:
        normal, starts, ends, splits = (found.numpy() for found in places(tf.constant(texts, tf.string)))
        found = []
        for row, first, last in zip(normal, splits, splits[1:], strict=False):
            cut = (
                row[start:end].decode()
                for start, end in zip(starts[first:last], ends[first:last], strict=True)
            )
            found.append(" ".join(word for word in cut if len(word) <= MAX_WORD_CHARACTERS))
        return found

    return words


def sentencepiece_texts(*, lower_case: bool) -> Normalizer:
    """Texts -> what SentencePiece gives its model of them."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def normal(text: tf.Tensor) -> tf.Tensor:
        return _sentencepiece_form(_one_quote(text), lower_case=lower_case)

    return lambda texts: [text.decode() for text in normal(tf.constant(texts, tf.string)).numpy()]


# -----------------------------------------------------------------------------------------------------------
# Files


def read_vocabulary(path: str) -> list[str]:
    """Reads the pieces of a `vocab.txt` as `pieces_of` does, from anywhere TensorFlow can read, and checks them.

    Raises FileNotFoundError, and ValueError that names the file and line.
    """
    path = os.path.expanduser(path)
    if not tf.io.gfile.exists(path):
        raise MissingFileError(f"no vocabulary file at {path}; give the path of the model's vocab.txt")
    with tf.io.gfile.GFile(path, "rb") as file:
        vocabulary = pieces_of(_bounded(file, path), source=path)
    _checked_ids(vocabulary, source=path)
    return vocabulary


def _bounded(file: Any, path: str) -> bytes:
    """The bytes of a vocabulary's file. Raises ValueError where they are too many."""
    if file.size() > MAX_VOCABULARY_BYTES:
        raise BertKerasError(
            f"{path} has over {MAX_VOCABULARY_BYTES:,} bytes; wanted at most that for a vocabulary"
        )
    return file.read()


def _checked_ids(vocabulary: Sequence[str], *, source: str) -> dict[str, int]:
    """Ids by piece. Raises ValueError, naming the line (from 1), for a vocabulary that would give wrong ids in silence."""
    ids: dict[str, int] = {}
    if len(vocabulary) > MAX_PIECES:
        raise BertKerasError(f"{source} has {len(vocabulary):,} pieces; wanted at most {MAX_PIECES:,}")
    for id_, piece in enumerate(vocabulary):
        line = id_ + 1
        if not piece.strip(" \t\r"):
            raise BertKerasError(
                f"{source}, line {line}: blank; every line must hold one piece, remove or fill it"
            )
        if " " in piece or "\n" in piece:
            raise BertKerasError(
                f"{source}, line {line}: {piece!r} holds a space; a piece is part of one word"
            )
        if "\0" in piece:
            raise BertKerasError(
                f"{source}, line {line}: {piece[:40]!r} holds a byte 0, which no text has; remove it"
            )
        # A character has 4 bytes at most.
        if (
            len(piece) > MAX_PIECE_BYTES // 4
            and (size := len(piece.removeprefix(CONTINUATION).encode("utf-8", "surrogatepass")))
            > MAX_PIECE_BYTES
        ):
            raise BertKerasError(
                f"{source}, line {line}: the piece {piece[:40]!r}... has {size:,} bytes; wanted at most {MAX_PIECE_BYTES}"
            )
        if piece in ids:
            raise BertKerasError(
                f"{source}, line {line}: {piece!r} stands on line {ids[piece] + 1} already; remove one of the two"
            )
        ids[piece] = id_
    missing = [token for token in _MARKERS if token not in ids]
    if missing:
        raise BertKerasError(f"{source}: {', '.join(missing)} missing; BERT needs {' '.join(_MARKERS)}")
    return ids
