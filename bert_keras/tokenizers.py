"""From text to wordpiece ids, inside the TensorFlow graph.

In: a vocabulary, then string [B], text as it comes. Out: ragged int32 [B, (T)], vocabulary ids and, on request, where each
piece starts and ends, in bytes of the strings that were given.

The ids are those of google-research/bert's tokenization.py (`FullTokenizer`). TensorFlow Text's own BERT tokenizers differ
from it in case folding, control characters, invalid UTF-8 and the word limit, so only two of its kernels serve here,
`NormalizeUTF8` and `FastWordpieceTokenizeWithOffsets`, both linked into TensorFlow Serving since 2.10.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

try:
    import tensorflow_text as tf_text
except ImportError as error:
    raise ImportError(
        f"{error}; bert_keras needs tensorflow-text of TensorFlow's minor version, which has wheels for Linux x86_64 "
        "and macOS arm64 only: use one of those, WSL 2 on Windows, or a linux/amd64 container"
    ) from error

PADDING, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
CONTINUATION = "##"  # opens every piece that does not start a word

# A longer word is one [UNK] (google-research/bert tokenization.py), counted in characters after normalizing. The kernel's own
# limit is in bytes: at four bytes a character it never decides about a word of 200 characters.
MAX_WORD_CHARACTERS = 200
MAX_WORD_BYTES = 4 * MAX_WORD_CHARACTERS

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The ids that fill, frame and hide text."""

    padding: int
    unknown: int
    start: int
    end: int
    mask: int


class Tokenizer(Protocol):
    """What preprocessing, masking and the tasks ask of a tokenizer."""

    special: SpecialTokens
    vocab_size: int

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """text: string [B] -> ragged int32 [B, (T)], ids."""

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes and end bytes (exclusive) in `text`."""


class WordPiece(tf.Module):
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
        super().__init__()
        ids = _checked_ids(vocabulary, source="vocabulary")
        self.special = SpecialTokens(
            padding=ids[PADDING], unknown=ids[UNKNOWN], start=ids[START], end=ids[END], mask=ids[MASK]
        )
        self.vocab_size = len(vocabulary)
        self.lower_case = lower_case
        self.special_tokens_in_text = special_tokens_in_text
        # Behind a function: TensorFlow would walk a tuple, piece by piece, each time it lists the module's variables.
        fixed = tuple(vocabulary)
        self._vocabulary = lambda: fixed
        # A piece of whitespace (the Chinese vocabulary has U+2028) never matches; the kernel would let it. Brackets split.
        pieces = [
            f"[space{i}]" if any(map(str.isspace, piece)) else piece for i, piece in enumerate(vocabulary)
        ]
        if special_tokens_in_text:
            pieces += _MARKERS.values()
        with tf.device("CPU"):
            self._continues = tf.constant([piece.startswith(CONTINUATION) for piece in pieces])
            self._marker_ids = tf.constant([ids[token] for token in _MARKERS])
            self._marker_bytes = tf.constant([len(token) for token in _MARKERS])
            self._kernel = tf_text.FastWordpieceTokenizer(
                vocab=pieces,
                suffix_indicator=CONTINUATION,
                max_bytes_per_word=MAX_WORD_BYTES,
                token_out_type=tf.int32,
                unknown_token=UNKNOWN,
            )
        # Not by decorator: that holds the instance weakly, and `WordPiece(...).tokenize(...)` would find it gone.
        for method in (self.tokenize, self.tokenize_with_offsets):
            graph = tf.function(method, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
            setattr(self, method.__name__, graph)

    @classmethod
    def from_file(
        cls, path: str, *, lower_case: bool = True, special_tokens_in_text: bool = False
    ) -> WordPiece:
        """Reads a `vocab.txt`, one piece a line. Raises FileNotFoundError, or ValueError that names the line."""
        vocabulary = read_vocabulary(path)
        return cls(vocabulary, lower_case=lower_case, special_tokens_in_text=special_tokens_in_text)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The pieces in the order of their ids."""
        return self._vocabulary()

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

    def _normalize(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Normal forms, string [B], and which rows kept their bytes' places, bool [B]."""
        if self.lower_case:
            text = tf.strings.lower(text)
        simple = tf.strings.regex_full_match(text, _SIMPLE_UNCASED if self.lower_case else _SIMPLE_CASED)
        rest = self._normal_form(tf.boolean_mask(text, ~simple))
        return tf.tensor_scatter_nd_update(text, tf.where(~simple), rest), simple

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
        first = ~tf.gather(self._continues, ids.values)
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
        accent = tf.gather(tf.strings.regex_full_match(characters, r"\p{Mn}") & self.lower_case, which)
        opens = tf.equal(tf.range(codes.row_splits[-1]), tf.gather(codes.row_starts(), codes.value_rowids()))
        letter = tf.cumsum(tf.cast(opens | ~accent, tf.int32)) - 1
        original_ends = tf.gather(tf.math.segment_max(original_ends, letter), letter)

        row_shift = tf.gather(tf.concat([[0], normal_ends], axis=0), tf.gather(codes.row_starts(), row))
        first = tf.searchsorted(normal_ends, row_shift + tf.gather_nd(starts.values, moving), side="right")
        last = tf.searchsorted(normal_ends, row_shift + tf.gather_nd(ends.values, moving) - 1, side="right")
        starts_moved = tf.tensor_scatter_nd_update(starts.values, moving, tf.gather(original_starts, first))
        ends_moved = tf.tensor_scatter_nd_update(ends.values, moving, tf.gather(original_ends, last))
        return starts.with_values(starts_moved), ends.with_values(ends_moved)

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


def read_vocabulary(path: str) -> list[str]:
    """Reads the pieces of a `vocab.txt`: UTF-8, one a line, the line's place (from 0) being the id.

    A byte order mark and Windows line ends are taken off. Raises FileNotFoundError, and ValueError that names the file and line.
    """
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"no vocabulary file at {path}; give the path of the model's vocab.txt")
    with tf.io.gfile.GFile(path, "rb") as file:
        raw = file.read()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8; save the vocabulary as UTF-8 text") from None
    # Not splitlines(): pieces may be characters that it takes for line ends, such as U+2028.
    lines = text.removeprefix("\ufeff").removesuffix("\n").split("\n")
    vocabulary = [line.removesuffix("\r") for line in lines]
    _checked_ids(vocabulary, source=path)
    return vocabulary


def _checked_ids(vocabulary: Sequence[str], *, source: str) -> dict[str, int]:
    """Ids by piece. Raises ValueError, naming the line (from 1), for a vocabulary that would give wrong ids in silence."""
    ids: dict[str, int] = {}
    for id_, piece in enumerate(vocabulary):
        line = id_ + 1
        if not piece.strip(" \t\r"):
            raise ValueError(
                f"{source}, line {line}: blank; every line must hold one piece, remove or fill it"
            )
        if " " in piece or "\n" in piece:
            raise ValueError(f"{source}, line {line}: {piece!r} holds a space; a piece is part of one word")
        if piece in ids:
            raise ValueError(
                f"{source}, line {line}: {piece!r} stands on line {ids[piece] + 1} already; remove one of the two"
            )
        ids[piece] = id_
    missing = [token for token in _MARKERS if token not in ids]
    if missing:
        raise ValueError(f"{source}: {', '.join(missing)} missing; BERT needs {' '.join(_MARKERS)}")
    return ids
