"""A frozen encoder's vectors of words or tokens.

raw examples -> Extractor -> [N, K, H] for each example: N words or tokens, K layers

Source: Devlin et al. 2019, sec. 5.3.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    EXAMPLE_INDEX,
    MAX_CONTEXT,
    WORD_INDEX,
)
from bert_keras.io.json_files import short
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.kernels import packed_weights
from bert_keras.model.layer_choices import places_of
from bert_keras.tasks.options import WindowOptions
from bert_keras.tasks.task import (
    Features,
    Raw,
    check_stride,
    model_inputs,
)
from bert_keras.tasks.training.identity import digest_of_tensors
from bert_keras.tasks.training.task_model import check_sizes
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT, find_words, take_text

DTYPES = ("float16", "float32")


class Units(Protocol):
    """Words or tokens of a text.

    mark: the feature that marks their positions
    names: the arrays of `listed`
    """

    level: str
    mark: str
    names: tuple[str, ...]
    doc_stride: int

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> windows [W, S]."""
        ...

    def listed(self, preprocess: Preprocessor, raw: Raw) -> dict[str, tf.RaggedTensor]:
        """Starts and ends of all units in bytes, and the ids of tokens: ragged int32 [B, (N)] by name."""
        ...

    def slots(self, features: Mapping[str, np.ndarray], row_starts: np.ndarray) -> np.ndarray:
        """For each marked position, in order, the index of its unit among all units of the batch."""
        ...


@dataclasses.dataclass(kw_only=True)
class Words(Units):
    """A word gets the vector of its first token, in the window that shows it with the most context."""

    level, mark, names = "word", WORD_INDEX, ("starts", "ends")
    doc_stride: int = WindowOptions.doc_stride

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        return preprocess.words(take_text(raw), find_words(raw)[0], doc_stride=self.doc_stride)

    def listed(self, preprocess: Preprocessor, raw: Raw) -> dict[str, tf.RaggedTensor]:
        return dict(zip(self.names, find_words(raw), strict=True))

    def slots(self, features: Mapping[str, np.ndarray], row_starts: np.ndarray) -> np.ndarray:
        index = features[WORD_INDEX]
        windows, positions = np.nonzero(index >= 0)
        return row_starts[features[EXAMPLE_INDEX][windows]] + index[windows, positions]


@dataclasses.dataclass(kw_only=True)
class Pieces(Units):
    """Every token, in the window that shows it with the most context."""

    level, mark, names = "piece", MAX_CONTEXT, ("starts", "ends", "ids")
    doc_stride: int = WindowOptions.doc_stride

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        return preprocess.windows(raw[TEXT], doc_stride=self.doc_stride)

    def listed(self, preprocess: Preprocessor, raw: Raw) -> dict[str, tf.RaggedTensor]:
        ids, starts, ends = preprocess.tokenizer.tokenize_with_offsets(raw[TEXT])
        return {"starts": starts, "ends": ends, "ids": ids}

    def slots(self, features: Mapping[str, np.ndarray], row_starts: np.ndarray) -> np.ndarray:
        return np.arange(np.sum(features[MAX_CONTEXT]))  # each token once, in the order of the text


def precision_of(encoder: BertEncoder) -> dict[str, str]:
    """The format in which an encoder computes, for the identity of its vectors; empty for float32, as in earlier versions."""
    return {} if encoder.compute_dtype == "float32" else {"precision": encoder.compute_dtype}


def _marked(mark: str, features: Mapping[str, Any]) -> np.ndarray:
    """Bool [W, S]: True at the position of a unit's vector."""
    return np.asarray(features[mark]) >= (0 if mark == WORD_INDEX else 1)


class Extractor:
    """Extracts vectors for units with a frozen encoder.

    checkpoint: a path for `checkpoints.read`, or a Checkpoint; without tensors, the weights are random
    layers: each as in `places_of`; None takes the embeddings and every block
    dtype: the type of the vectors, one of DTYPES
    precision: the format in which the encoder computes, one of bert_keras.model.precision.PRECISIONS

    The weights of `encoder` must stay as they are from the first call on.

    Raises ValueError for arguments that do not fit the encoder.
    """

    def __init__(
        self,
        checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
        *,
        units: Units,
        layers: Sequence[str] | None = None,
        dtype: str = "float16",
        precision: str = "float32",
        seq_length: int = 512,
        batch_size: int = 8,
    ) -> None:
        if not isinstance(checkpoint, checkpoints.Checkpoint):
            checkpoint = checkpoints.read(checkpoint)
        if dtype not in DTYPES:
            raise BertKerasError(f"dtype is {dtype!r}; give one of {', '.join(DTYPES)}.")
        self.config = checkpoint.config
        every = range(self.config.num_layers + 1)
        named = [places_of(name, num_layers=self.config.num_layers) for name in layers or ()]
        self.places = tuple(sorted({place for places in named for place in places} or every))
        self.units, self.dtype, self.batch_size = units, dtype, batch_size
        self.names = units.names
        tokenizer = checkpoints.tokenizer_of(checkpoint)
        check_sizes(self.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
        check_stride(units, tokenizer, seq_length=seq_length)
        self.preprocess = Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True)
        self.encoder = BertEncoder(self.config, outputs=(EMBEDDING_OUTPUT, ENCODER_OUTPUTS), dtype=precision)
        self.encoder.unpadded = True  # no vector is that of padding
        # A pooler may be missing: no vector reads it.
        self._unread: tuple[str, ...] = ()
        if checkpoint.tensors:
            self._unread = checkpoints.assign(checkpoint, self.encoder).fresh
        vectors = tf.TensorSpec([None, None], tf.int32)
        self._vectors = tf.function(
            self._vectors_at,
            input_signature=[dict.fromkeys(ENCODER_INPUTS, vectors), tf.TensorSpec([None, 2], tf.int64)],
            autograph=False,
        )
        self._read = tf.function(self._features_and_units, autograph=False)

    def _features_and_units(self, raw: Raw) -> tuple[Features, dict[str, tf.RaggedTensor]]:
        return self.units.features(self.preprocess, raw), self.units.listed(self.preprocess, raw)

    def _vectors_at(self, inputs: Features, positions: tf.Tensor) -> tf.Tensor:
        """Windows [W, S] and positions int64 [P, 2] -> [P, K, H]. Computes no block above the highest layer."""
        with packed_weights(self.encoder):
            outputs = self.encoder(inputs, training=False)
        states = [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]
        chosen = [tf.gather_nd(states[place], positions) for place in self.places]
        return tf.cast(tf.stack(chosen, axis=1), self.dtype)

    def identity(self) -> dict[str, Any]:
        """Everything that decides the vectors, except the text."""
        tokenizer = self.preprocess.tokenizer
        weights = checkpoints.collect(self.config, self.encoder).tensors
        return {
            "weights": digest_of_tensors(
                {name: value for name, value in weights.items() if name not in self._unread}
            ),
            "config": self.config.to_dict(),
            "vocabulary": tokenizer.digest,
            "lower_case": tokenizer.lower_case,
            "seq_length": self.preprocess.seq_length,
            "doc_stride": self.units.doc_stride,
            "level": self.units.level,
            "layers": list(self.places),
            "dtype": self.dtype,
            **precision_of(self.encoder),
        }

    def __call__(self, raw: Sequence[Mapping[str, bytes]]) -> Iterator[dict[str, Any]]:
        """Yields for each raw example, in order, "vectors" [N, K, H] and the arrays [N] of `Units.listed`.

        Raises BertKerasError if a vector is infinite or NaN; in float16, numbers above 65,504 are infinite.
        """
        order = sorted(range(len(raw)), key=lambda i: sum(map(len, raw[i].values())))
        made: dict[int, dict[str, Any]] = {}
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            batch = {name: tf.constant([raw[row][name] for row in rows]) for name in raw[0]}
            for row, found in zip(rows, self._batch(batch), strict=True):
                self._check_finite(found["vectors"], raw[row])
                made[row] = found
        return (made[row] for row in range(len(raw)))

    def _check_finite(self, vectors: np.ndarray, raw: Mapping[str, bytes]) -> None:
        finite = np.isfinite(vectors).all(axis=(0, 2))
        if not finite.all():
            text = short(next(iter(raw.values())).decode("utf-8", "replace"))
            other = "dtype float32 or " if self.dtype == "float16" else ""
            raise BertKerasError(
                f"a vector of layer {self.places[finite.argmin()]} for {text} is infinite or NaN in {self.dtype}; "
                f"give {other}another checkpoint."
            )

    def _batch(self, raw: Raw) -> Iterator[dict[str, Any]]:
        strings = tf.TensorSpec([None], tf.string)  # of any number of texts: one trace for all
        features, listed = self._read.get_concrete_function(dict.fromkeys(raw, strings))(raw)
        inputs = model_inputs(features)
        marked = _marked(self.units.mark, features)
        # A text may have any number of windows; groups bound the memory of the forward pass.
        parts = [
            self._vectors(
                {name: value[start : start + self.batch_size] for name, value in inputs.items()},
                np.argwhere(marked[start : start + self.batch_size]),
            ).numpy()
            for start in range(0, len(marked), self.batch_size)
        ]
        splits = listed["starts"].row_splits.numpy()
        read = {name: value.numpy() for name, value in features.items()}
        shape = (splits[-1], len(self.places), self.config.hidden_size)
        vectors = np.zeros(shape, self.dtype)  # a word without a token gets a vector of zeros
        vectors[self.units.slots(read, splits)] = np.concatenate(parts)
        for first, last in itertools.pairwise(splits):
            rows = {name: value.values.numpy()[first:last] for name, value in listed.items()}
            yield rows | {"vectors": vectors[first:last]}
