"""ALBERT's tokenizer in graph: TensorFlow Text's SentencePiece kernel after ALBERT's own normalizing.

In: the bytes of a model, then string [B], raw text. Out: ragged int32 [B, (T)], ids and, on request, the start and end of each
token in bytes of the given strings.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, first_line
from bert_keras.text.added_tokens import Columns
from bert_keras.text.normal_forms import (
    SIMPLE_SENTENCEPIECE,
    Normalizing,
    one_quote,
    sentencepiece_form,
    vanishing,
)
from bert_keras.text.ragged import repeats, row_numbers
from bert_keras.text.rules import END, MASK, START, Rules
from bert_keras.text.text_ops import tensorflow_text
from bert_keras.text.tokenizer import Normalizer, digest_lines, find_special
from bert_keras.text.vocabulary import Vocabulary, read_model

# ALBERT's names of the special tokens.
SENTENCEPIECE_TOKENS = {"padding": "<pad>", "unknown": "<unk>", "start": START, "end": END, "mask": MASK}
SPACE = "\u2581"  # marks the space before a word
# A token of these characters only continues a word; a single sign does not (google-research/albert create_pretraining_data.py).
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_SIGNS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~£€')


class SentencePiece(Normalizing):
    """ALBERT's tokenizer: a unigram model over text whose spaces are characters.

    model: a serialized SentencePiece model, whose [CLS], [SEP], [MASK] and <pad> are control symbols, which text cannot
        contain.
    lower_case: lower-case, as the published models do. Accents are always stripped, and `` and '' become double quotes.
    rules: settings that the original lacks, such as added tokens.

    A digit and a comma are never one token: "9," becomes "9" and ",".
    Raises ValueError for bytes that are not such a model.
    Source: google-research/albert tokenization.py (`preprocess_text`, `encode_pieces`); the quotes: transformers.
    """

    _simple = SIMPLE_SENTENCEPIECE

    def __init__(
        self,
        model: bytes,
        *,
        lower_case: bool = True,
        rules: Rules = Rules(),  # noqa: B008  frozen
    ):
        tensorflow_text("SentencePiece")  # or an error, before long work
        names = SENTENCEPIECE_TOKENS | dict(rules.names)
        proto, encode = _checked_model(model, names, source="model")
        vocabulary = tuple(piece.piece for piece in proto.pieces)
        ids = {piece: i for i, piece in enumerate(vocabulary)}
        special = find_special(vocabulary, names, model="ALBERT", source="model")
        super().__init__(vocabulary, special=special, lower_case=lower_case, rules=rules, names=names)
        self._find_normalized_in_text = self._find_normalized(self._form_of)
        self.model = model
        self._attached = vanishing()
        occurring = (proto.SentencePiece.NORMAL, proto.SentencePiece.USER_DEFINED)
        own = len(vocabulary)
        kept = [i < own and proto.pieces[i].type not in occurring for i in range(self.vocab_size)]
        self._real = np.array(
            [i for i, left_out in enumerate(kept) if not left_out and i not in self._marks], "int32"
        )
        parts = [_without_comma(piece, encode) for piece in vocabulary]
        with tf.device("CPU"):
            # A piece becomes one or more parts: their ids, and the bytes of text from each part to the end of the piece.
            self._part_splits = tf.constant(np.cumsum([0, *map(len, parts)]), tf.int64)
            self._part_ids = tf.constant([ids.get(part, special.unknown) for row in parts for part in row])
            self._part_bytes = tf.constant([length for row in parts for length in _bytes_to_end(row)])

    @classmethod
    def from_file(cls, path: str, *, lower_case: bool = True) -> SentencePiece:
        """Reads a `spiece.model`. Raises FileNotFoundError, or ValueError for a file that is not a model."""
        model = read_model(path)
        try:
            return cls(model, lower_case=lower_case)
        except BertKerasError as error:
            raise BertKerasError(f"{path}: {error}") from error

    @property
    def digest(self) -> str:
        """SHA-256 of the model, and of settings that the original lacks."""
        own, rules = hashlib.sha256(self.model).hexdigest(), self._ruled()
        return digest_lines((own, *rules)) if rules else own

    @property
    def continues(self) -> np.ndarray:
        """Bool [V], tokens that continue a word: English letters and signs without the space."""
        own = [piece not in _SIGNS and {*piece.lower()} <= _LETTERS | _SIGNS for piece in self.own_vocabulary]
        return np.array([*own, *[False] * (self.vocab_size - len(own))])

    @property
    def real(self) -> np.ndarray:
        return self._real

    @property
    def texts(self) -> tuple[bytes, ...]:
        beyond = (f" {token}" for token in self.vocabulary[len(self.own_vocabulary) :])
        return tuple(piece.replace(SPACE, " ").encode() for piece in (*self.own_vocabulary, *beyond))

    def to_vocabulary(self) -> Vocabulary:
        return Vocabulary(sentencepiece=self.model, lower_case=self.lower_case, rules=self.rules)

    def _form_of(self, texts: list[str]) -> list[str]:
        """The normal forms of the texts of added tokens."""
        return [form.decode() for form in self._normal_form(one_quote(tf.constant(texts))).numpy()]

    def _ids(self, text: tf.Tensor) -> tf.RaggedTensor:
        normal, _ = self._normalize(one_quote(text))
        return self._find_normalized_in_text(normal, self._piece_ids)[0]

    def _with_offsets(self, text: tf.Tensor) -> Columns:
        """Ids, start bytes and end bytes.

        Offsets leave out the space before a word. A token of that space alone starts where its word starts and has no bytes.
        """
        marked = one_quote(text)
        normal, simple = self._normalize(marked)
        ids, begins, stops = self._find_normalized_in_text(normal, self._pieces)
        begun, stopped = self._locate(marked, simple, begins, stops)
        return (
            ids,
            begun,
            stopped.with_values(tf.where(begins.values == stops.values, begun.values, stopped.values)),
        )

    def _piece_ids(self, normal: tf.Tensor) -> Columns:
        parts = self._parts(self._kernel().tokenize(normal))
        return (parts.with_values(tf.gather(self._part_ids, parts.values)),)

    def _pieces(self, normal: tf.Tensor) -> Columns:
        """Ids, start bytes and end bytes in the normal form."""
        ids, starts, ends = self._kernel().tokenize_with_offsets(normal)
        parts = self._parts(ids)
        starts, ends = self._trim(normal, tf.cast(starts, tf.int32), tf.cast(ends, tf.int32))

        # The parts follow each other up to the end of their piece.
        piece = repeats(self._part_counts(ids))
        first = tf.not_equal(piece, tf.concat([[-1], piece[:-1]], axis=0))
        piece_starts, piece_ends = tf.gather(starts, piece), tf.gather(ends, piece)
        begins = tf.maximum(piece_ends - tf.gather(self._part_bytes, parts.values), piece_starts)
        begins = tf.where(first, piece_starts, begins)
        last = tf.concat([first[1:], [True]], axis=0)
        stops = tf.where(last, piece_ends, tf.concat([begins[1:], [0]], axis=0))
        ids = parts.with_values(tf.gather(self._part_ids, parts.values))
        return ids, parts.with_values(begins), parts.with_values(stops)

    def _arguments(self) -> dict[str, Any]:
        return {"model": self.model, "lower_case": self.lower_case, "rules": self.rules}

    def _joined(self, pieces: Sequence[str]) -> str:
        return "".join(pieces).replace(SPACE, " ").strip()

    def _normal_form(self, text: tf.Tensor) -> tf.Tensor:
        return sentencepiece_form(text, lower_case=self.lower_case)

    def _kernel(self) -> Any:
        """The parsed model, made in the graph that uses it: TensorFlow may clear a cached kernel from outside."""
        return tensorflow_text("SentencePiece").SentencepieceTokenizer(self.model, out_type=tf.int32)

    def _part_counts(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return tf.gather(self._part_splits, ids.values + 1) - tf.gather(self._part_splits, ids.values)

    def _parts(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Ragged [B, (T)], pieces -> ragged [B, (T)], indices into the table of parts."""
        first = tf.gather(self._part_splits, ids.values)
        indices = tf.ragged.range(first, first + self._part_counts(ids))
        return tf.RaggedTensor.from_row_splits(
            tf.cast(indices.values, tf.int32), tf.gather(indices.row_splits, ids.row_splits), validate=False
        )

    def _trim(
        self, text: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Offsets int32 [T] of all rows, without leading spaces."""
        row_starts = tf.gather(
            tf.cumsum(tf.strings.length(text), exclusive=True), row_numbers(starts.row_splits)
        )
        letters = tf.where(tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8) != ord(" "))[:, 0]
        letters = tf.concat([tf.cast(letters, tf.int32), [tf.int32.max]], axis=0)
        next_letter = tf.gather(letters, tf.searchsorted(letters, starts.values + row_starts)) - row_starts
        return tf.minimum(next_letter, ends.values), ends.values


def _without_comma(piece: str, encode: Callable[[str], list[str]]) -> list[str]:
    """Splits a piece that ends with a digit and a comma as ALBERT does; keeps any other piece."""
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


def _checked_model(
    model: bytes, names: Mapping[str, str], *, source: str
) -> tuple[Any, Callable[[str], list[str]]]:
    """The parsed model and its encoder. Raises ValueError for bytes with which the kernel would crash the process."""
    import sentencepiece
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        messages: Any = sentencepiece_model_pb2  # its classes are made when it is imported
        proto = messages.ModelProto.FromString(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except (DecodeError, RuntimeError) as error:
        raise BertKerasError(
            f"{source} is not a SentencePiece model ({first_line(error)}); download it again"
        ) from error
    # Protobuf gives bytes that are not UTF-8 as they are.
    if bad := [i for i, piece in enumerate(proto.pieces) if isinstance(piece.piece, bytes)]:
        raise BertKerasError(f"{source}: token {bad[0]} is not UTF-8; download it again")
    types = {piece.piece: piece.type for piece in proto.pieces}
    kind = proto.SentencePiece
    for name, token in names.items():
        wanted = kind.UNKNOWN if name == "unknown" else kind.CONTROL
        if types.get(token) != wanted and (name, types.get(token)) != ("mask", None):
            found = "missing" if token not in types else f"a {kind.Type.Name(types[token])} piece"
            raise BertKerasError(
                f"{source}: {token} is {found}; wanted a {kind.Type.Name(wanted)} piece; ALBERT needs "
                f"{' '.join(names.values())}, which text cannot contain"
            )
    normalizer = proto.normalizer_spec
    if not (normalizer.add_dummy_prefix and normalizer.remove_extra_whitespaces) or (
        proto.trainer_spec.treat_whitespace_as_suffix
    ):
        raise BertKerasError(
            f"{source} does not put one space before each word; train it with ALBERT's settings"
        )
    return proto, functools.partial(processor.encode, out_type=str)


def sentencepiece_texts(*, lower_case: bool) -> Normalizer:
    """Texts -> the normal forms that SentencePiece gives its model."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def normal(text: tf.Tensor) -> tf.Tensor:
        return sentencepiece_form(one_quote(text), lower_case=lower_case)

    return lambda texts: [text.decode() for text in normal(tf.constant(texts, tf.string)).numpy()]
