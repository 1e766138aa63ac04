"""Computes the vectors of a frozen encoder's layers.

    raw examples -> Words, Pieces or Rows -> windows and positions -> Extractor -> [N, K, H] for each example

An example has N units (words, tokens, or the tokens of one row), each with the vectors of K layers.

Source: Devlin et al. 2019, sec. 5.3.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    EXAMPLE_INDEX,
    INPUT_CHARACTERS,
    INPUT_MASK,
    MAX_CONTEXT,
    WORD_INDEX,
    inputs_in,
)
from bert_keras.fields import checked_value
from bert_keras.io.json_files import shortened
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.encoders import check_layer_widths, make_encoder
from bert_keras.model.feature_bilstm import OUTPUTS, VECTORS
from bert_keras.model.kernels import packed_weights
from bert_keras.tasks.options import FeatureOptions, WindowOptions
from bert_keras.tasks.task import Features, Raw, check_stride
from bert_keras.tasks.training.plan import digest_of_tensors
from bert_keras.tasks.training.task_model import NEW_PARTS, check_sizes
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT, find_words, take_text

FEATURES = (
    "features"  # the column of a row: int32 [3 + C, N], ids, mask, types and characters of its N tokens
)
Example = Mapping[str, bytes]


class Batch(NamedTuple):
    """Examples as the encoder reads them.

    inputs: the encoder's inputs [W, S]
    units: int [W, S], the number of the unit at each position, among all units of the batch; -1 where there is none
    splits: [B + 1], the first unit of each example, and the number of all units
    listed: further arrays by name, with a value for each unit
    """

    inputs: Mapping[str, np.ndarray]
    units: np.ndarray
    splits: np.ndarray
    listed: Mapping[str, np.ndarray]


def _numbered(marked: np.ndarray) -> np.ndarray:
    """Numbers the True values in order: bool [W, S] -> int [W, S], -1 for False."""
    return np.where(marked, np.cumsum(marked).reshape(marked.shape) - 1, -1)


class Units:
    """The units of an example that have a vector.

    level: the name in the fingerprint
    names: the arrays of `Batch.listed`
    dtype_name: the setting of the vectors' dtype, for errors
    """

    level: str
    names: tuple[str, ...] = ()
    dtype_name = "dtype"

    def read(self, raw: Sequence[Example]) -> Batch:
        """Makes a batch of examples."""
        raise NotImplementedError

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the units of a text."""
        return {}


class TextUnits(Units):
    """Units of texts, which are read in windows that overlap. A unit has its vector from the window with the most context."""

    def __init__(self, preprocess: Preprocessor, *, doc_stride: int = WindowOptions.doc_stride) -> None:
        self.preprocess, self.doc_stride = preprocess, doc_stride
        self._traced = tf.function(self.windows, autograph=False)

    def windows(self, raw: Raw) -> tuple[Features, dict[str, tf.RaggedTensor]]:
        """Raw [B] -> windows [W, S], and the starts, ends and ids of all units: ragged int32 [B, (N)] by name."""
        raise NotImplementedError

    def units(self, features: Mapping[str, np.ndarray], splits: np.ndarray) -> np.ndarray:
        """`Batch.units` of windows."""
        raise NotImplementedError

    def read(self, raw: Sequence[Example]) -> Batch:
        batch = {name: tf.constant([one[name] for one in raw]) for name in raw[0]}
        strings = tf.TensorSpec([None], tf.string)  # of any number of texts: one trace for all
        features, listed = self._traced.get_concrete_function(dict.fromkeys(batch, strings))(batch)
        splits = listed["starts"].row_splits.numpy()
        found = {name: value.numpy() for name, value in features.items()}
        return Batch(
            inputs=inputs_in(found),
            units=self.units(found, splits),
            splits=splits,
            listed={name: value.values.numpy() for name, value in listed.items()},
        )

    def fingerprint(self) -> dict[str, Any]:
        tokenizer = self.preprocess.tokenizer
        return {
            "vocabulary": tokenizer.digest,
            "lower_case": tokenizer.lower_case,
            "seq_length": self.preprocess.seq_length,
            "doc_stride": self.doc_stride,
        }


class Words(TextUnits):
    """A word gets the vector of its first token; a word without a token gets zeros."""

    level, names = "word", ("starts", "ends")

    def windows(self, raw: Raw) -> tuple[Features, dict[str, tf.RaggedTensor]]:
        starts, ends = find_words(raw)
        features = self.preprocess.words(take_text(raw), starts, doc_stride=self.doc_stride)
        return features, {"starts": starts, "ends": ends}

    def units(self, features: Mapping[str, np.ndarray], splits: np.ndarray) -> np.ndarray:
        index, first = features[WORD_INDEX], splits[features[EXAMPLE_INDEX]]
        return np.where(index >= 0, first[:, np.newaxis] + index, -1)


class Pieces(TextUnits):
    """Every token."""

    level, names = "piece", ("starts", "ends", "ids")

    def windows(self, raw: Raw) -> tuple[Features, dict[str, tf.RaggedTensor]]:
        ids, starts, ends = self.preprocess.tokenizer.tokenize_with_offsets(raw[TEXT])
        features = self.preprocess.windows(raw[TEXT], doc_stride=self.doc_stride)
        return features, {"starts": starts, "ends": ends, "ids": ids}

    def units(self, features: Mapping[str, np.ndarray], splits: np.ndarray) -> np.ndarray:
        return _numbered(features[MAX_CONTEXT] > 0)  # each token once, in the order of the text


TEXT_UNITS: Mapping[str, type[TextUnits]] = {units.level: units for units in (Words, Pieces)}


def text_units(
    level: str, source: checkpoints.Checkpoint, *, seq_length: int, doc_stride: int = WindowOptions.doc_stride
) -> TextUnits:
    """Words or Pieces for a checkpoint.

    level: a key of TEXT_UNITS
    seq_length, doc_stride: in tokens, of windows

    Raises BertKerasError for a length or a stride that does not fit the encoder.
    """
    tokenizer = checkpoints.tokenizer_of(source)
    check_sizes(source.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
    preprocess = Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True)
    units = TEXT_UNITS[level](preprocess, doc_stride=doc_stride)
    check_stride(units, tokenizer, seq_length=seq_length)
    return units


@dataclasses.dataclass(frozen=True)
class Rows(Units):
    """Every token of a row, which is what an encoder reads at once: a text, a pair, a window. The row is in FEATURES.

    characters: C, of each token; 0 for an encoder that reads none
    """

    characters: int = 0

    level, dtype_name = "row", "feature_dtype"

    def read(self, raw: Sequence[Example]) -> Batch:
        rows = [row_of(one[FEATURES], self.characters) for one in raw]
        sizes = np.array([row.shape[1] for row in rows])
        padded = np.stack([np.pad(row, ((0, 0), (0, sizes.max() - row.shape[1]))) for row in rows])
        count = len(ENCODER_INPUTS)
        inputs = dict(zip(ENCODER_INPUTS, padded[:, :count].transpose(1, 0, 2), strict=True))
        if self.characters:
            inputs[INPUT_CHARACTERS] = padded[:, count:].transpose(0, 2, 1)
        return Batch(
            inputs=inputs,
            units=_numbered(np.arange(sizes.max()) < sizes[:, np.newaxis]),
            splits=np.cumsum([0, *sizes]),
            listed={},
        )


def row_of(content: bytes, characters: int) -> np.ndarray:
    """The bytes of FEATURES -> int32 [3 + C, N]: ids, mask, types and the C characters of N tokens."""
    return np.frombuffer(content, np.int32).reshape(len(ENCODER_INPUTS) + characters, -1)


def rows_in(features: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of FEATURES of each row of a batch, int32 [..., S], without its padding."""
    length = features[INPUT_MASK].shape[-1]
    parts = np.stack([np.reshape(features[name], (-1, length)) for name in ENCODER_INPUTS], axis=1)
    if (characters := features.get(INPUT_CHARACTERS)) is not None:
        spelled = np.reshape(characters, (-1, length, characters.shape[-1])).transpose(0, 2, 1)
        parts = np.concatenate([parts, spelled], axis=1)
    mask = parts[:, ENCODER_INPUTS.index(INPUT_MASK)] > 0
    sizes = np.where(mask.any(axis=1), length - np.argmax(mask[:, ::-1], axis=1), 1)
    for part, size in zip(parts.astype(np.int32), sizes, strict=True):
        yield part[:, :size].tobytes()


@dataclasses.dataclass(kw_only=True)
class Extractor:
    """Computes the vectors of examples with a frozen encoder.

    source: a Checkpoint, whose encoder is made at the first call (without tensors, its weights are random); or an encoder with
        the outputs OUTPUTS, whose weights must stay as they are from the first call on
    places: the layers, 0 is the embeddings
    dtype: of the vectors, float16 or float32
    precision: the format in which a checkpoint's encoder computes: one of bert_keras.model.choices.PRECISIONS, or a policy
    batch_size: examples that are read at once, and windows that the encoder computes at once
    """

    source: checkpoints.Checkpoint | BertEncoder
    units: Units
    places: Sequence[int]
    dtype: str = "float16"
    precision: Any = "float32"
    batch_size: int = 8

    def __post_init__(self) -> None:
        checked_value(FeatureOptions, "dtype", self.dtype)
        check_layer_widths(self.config, self.places)
        self.report: checkpoints.Report | None = None
        if isinstance(self.source, checkpoints.Checkpoint) and not self.source.tensors:
            self.source = self._new_encoder()

    @property
    def config(self) -> BertConfig:
        """The encoder's configuration."""
        return self.source.config

    def _new_encoder(self) -> BertEncoder:
        encoder: BertEncoder = make_encoder(self.config, outputs=OUTPUTS, dtype=self.precision)
        encoder.unpadded = True  # no vector is that of padding
        return encoder

    @functools.cached_property
    def encoder(self) -> BertEncoder:
        """The encoder, made when it is first read."""
        if isinstance(self.source, BertEncoder):
            return self.source
        encoder = self._new_encoder()
        self.report = checkpoints.assign(self.source, encoder, fresh=NEW_PARTS)
        return encoder

    def checkpoint(self) -> checkpoints.Checkpoint:
        """The encoder's weights. Reading those of a Checkpoint makes no encoder."""
        if isinstance(self.source, BertEncoder):
            return checkpoints.collect(self.config, self.source)
        names, given = variable_shapes(self.config), self.source.tensors
        tensors = {name: np.asarray(value, np.float32) for name, value in given.items() if name in names}
        bilstm = any(name.startswith("bilstm/") for name in tensors)  # one that is lacking is not read
        return checkpoints.Checkpoint(config=dataclasses.replace(self.config, bilstm=bilstm), tensors=tensors)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the vectors, except the examples. No vector reads a pooler or a BiLSTM."""
        tensors = self.checkpoint().tensors
        read = {name: value for name, value in tensors.items() if name.split("/")[0] not in NEW_PARTS}
        encoder_policy = getattr(self.source, "dtype_policy", None)
        return {
            "weights": digest_of_tensors(read),
            "config": self.config.to_dict(),
            "level": self.units.level,
            "layers": list(self.places),
            "dtype": self.dtype,
            "precision": (encoder_policy or keras.dtype_policies.get(self.precision)).name,
            **self.units.fingerprint(),
        }

    @functools.cached_property
    def _vectors(self) -> Any:
        rows, encoder = tf.TensorSpec([None, None], tf.int32), self.encoder  # made outside of the graph
        specs = dict.fromkeys(ENCODER_INPUTS, rows)
        if size := self.config.max_characters:
            specs[INPUT_CHARACTERS] = tf.TensorSpec([None, None, size], tf.int32)
        return tf.function(
            functools.partial(self._vectors_at, encoder),
            input_signature=[specs, tf.TensorSpec([None, 2], tf.int64)],
            autograph=False,
        )

    def _vectors_at(self, encoder: BertEncoder, inputs: Features, positions: tf.Tensor) -> tf.Tensor:
        """Windows [W, S] and positions int64 [P, 2] -> [P, K, H]. Computes no block above the highest layer."""
        with packed_weights(encoder):
            outputs = encoder(inputs, training=False)
        states = [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]
        chosen = [tf.gather_nd(states[place], positions) for place in self.places]
        return tf.cast(tf.stack(chosen, axis=1), self.dtype)

    def __call__(self, raw: Sequence[Example]) -> Iterator[dict[str, Any]]:
        """Yields for each raw example, in order, "vectors" [N, K, H] and the arrays [N] of `units.names`.

        Raises BertKerasError if a vector is infinite or NaN; in float16, numbers above 65,504 are infinite.
        """
        order = sorted(range(len(raw)), key=lambda i: sum(map(len, raw[i].values())))
        made: dict[int, dict[str, Any]] = {}
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            for row, found in zip(rows, self._batch([raw[row] for row in rows]), strict=True):
                self._check_finite(found[VECTORS], raw[row])
                made[row] = found
        return (made[row] for row in range(len(raw)))

    def _check_finite(self, vectors: np.ndarray, raw: Example) -> None:
        finite = np.isfinite(vectors).all(axis=(0, 2))
        if not finite.all():
            first = next(iter(raw.values())).decode("utf-8", "replace")
            text = "" if FEATURES in raw else f" for {shortened(first)}"
            other = f"{self.units.dtype_name} float32 or " if self.dtype == "float16" else ""
            raise BertKerasError(
                f"a vector of layer {self.places[finite.argmin()]}{text} is infinite or NaN in {self.dtype}; "
                f"give {other}another checkpoint."
            )

    def _batch(self, raw: Sequence[Example]) -> Iterator[dict[str, Any]]:
        batch = self.units.read(raw)
        # A text may have any number of windows; groups bound the memory of the forward pass.
        parts = [
            self._vectors(
                {name: value[start : start + self.batch_size] for name, value in batch.inputs.items()},
                np.argwhere(batch.units[start : start + self.batch_size] >= 0),
            ).numpy()
            for start in range(0, len(batch.units), self.batch_size)
        ]
        vectors = np.zeros((batch.splits[-1], len(self.places), self.config.hidden_size), self.dtype)
        vectors[batch.units[batch.units >= 0]] = np.concatenate(parts)
        for first, last in itertools.pairwise(batch.splits):
            listed = {name: value[first:last] for name, value in batch.listed.items()}
            yield listed | {VECTORS: vectors[first:last]}
