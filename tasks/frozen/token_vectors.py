"""The vectors of all tokens in a data set, computed once: what a feature-based training reads in place of an encoder.

    batches of features -> the different rows in them -> RowExtractor -> Cache -> "vectors" [..., S, K, H] of any batch

A row is what an encoder reads at once: a text, a pair, a window. Its vectors depend on its ids, mask and types alone.
"""

import pathlib
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    INPUT_MASK,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.feature_bilstm import VECTORS
from bert_keras.model.kernels import packed_weights
from bert_keras.tasks.frozen.cache import (
    Cache,
    CacheReader,
    layers_in,
    writing_cache,
)
from bert_keras.tasks.frozen.extract import precision_of
from bert_keras.tasks.task import Features
from bert_keras.tasks.training.identity import digest_of_tensors

FEATURES = "features"  # the column of a row: int32 [3, N], ids, mask and types of its N tokens
BATCH = 32  # rows that the encoder reads at once
SHARD_BYTES, SHARD_ROWS = 2**28, 4096  # of a file, which is made in memory: it ends at either
Raw = Mapping[str, bytes]


def rows_in(features: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of FEATURES of each row of a batch, int32 [..., S], without its padding."""
    length = features[INPUT_MASK].shape[-1]
    parts = np.stack([np.reshape(features[name], (-1, length)) for name in ENCODER_INPUTS], axis=1)
    mask = parts[:, ENCODER_INPUTS.index(INPUT_MASK)] > 0
    sizes = np.where(mask.any(axis=1), length - np.argmax(mask[:, ::-1], axis=1), 1)
    for part, size in zip(parts.astype(np.int32), sizes, strict=True):
        yield part[:, :size].tobytes()


def distinct_rows(batches: Iterable[Features]) -> list[bytes]:
    """The different rows of batches of features, in the order of their first occurrence."""
    found: dict[bytes, None] = {}
    for batch in batches:
        found |= dict.fromkeys(rows_in({name: np.asarray(batch[name]) for name in ENCODER_INPUTS}))
    return [*found]


class RowExtractor:
    """Computes the vectors of rows, in the form that `writing_cache` reads.

    encoder: with its weights, which stay as they are from the first call on, and the outputs of model/feature_bilstm.py
    places: the layers, 0 is the embeddings
    dtype: of the vectors
    """

    names: tuple[str, ...] = ()

    def __init__(self, encoder: BertEncoder, *, places: Sequence[int], dtype: str) -> None:
        self.encoder, self.places, self.dtype = encoder, tuple(places), dtype
        rows = tf.TensorSpec([None, None], tf.int32)
        self._vectors = tf.function(
            self._vectors_of, input_signature=[dict.fromkeys(ENCODER_INPUTS, rows)], autograph=False
        )

    def _vectors_of(self, inputs: Features) -> tf.Tensor:
        """[B, S] -> [B, S, K, H]. Computes no block above the highest layer."""
        with packed_weights(self.encoder):
            outputs = self.encoder(inputs, training=False)
        states = [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]
        return tf.cast(tf.stack([states[place] for place in self.places], axis=2), self.dtype)

    def identity(self) -> dict[str, Any]:
        """Everything that decides the vectors, except the rows. No vector reads the pooler."""
        weights = checkpoints.collect(self.encoder.config, self.encoder).tensors
        read = {name: value for name, value in weights.items() if not name.startswith("pooler/")}
        return {
            "weights": digest_of_tensors(read),
            "config": self.encoder.config.to_dict(),
            "level": "row",
            "layers": list(self.places),
            "dtype": self.dtype,
            **precision_of(self.encoder),
        }

    def bytes_of(self, rows: Iterable[bytes]) -> int:
        """The size of the vectors of rows."""
        tokens = sum(map(_tokens, rows))
        return tokens * len(self.places) * self.encoder.config.hidden_size * np.dtype(self.dtype).itemsize

    def __call__(self, raw: Sequence[Raw]) -> Iterator[dict[str, Any]]:
        """Yields "vectors" [N, K, H] of each row, in order. Raises BertKerasError for a number that is not finite."""
        rows = [np.frombuffer(one[FEATURES], np.int32).reshape(len(ENCODER_INPUTS), -1) for one in raw]
        order = sorted(range(len(rows)), key=lambda i: rows[i].shape[1])
        made: dict[int, np.ndarray] = {}
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            longest = rows[chosen[-1]].shape[1]
            padded = np.stack([np.pad(rows[i], ((0, 0), (0, longest - rows[i].shape[1]))) for i in chosen])
            found = self._vectors(dict(zip(ENCODER_INPUTS, padded.transpose(1, 0, 2), strict=True))).numpy()
            for i, vectors in zip(chosen, found, strict=True):
                made[i] = vectors[: rows[i].shape[1]]
                self._check_finite(made[i])
        return ({VECTORS: made[i]} for i in range(len(rows)))

    def _check_finite(self, vectors: np.ndarray) -> None:
        finite = np.isfinite(vectors).all(axis=(0, 2))
        if not finite.all():
            other = "feature_dtype float32 or " if self.dtype == "float16" else ""
            raise BertKerasError(
                f"a vector of layer {self.places[finite.argmin()]} is infinite or NaN in {self.dtype}; give {other}another "
                "checkpoint."
            )


def _tokens(row: bytes) -> int:
    return len(row) // (4 * len(ENCODER_INPUTS))


def _called(lookup: Callable[[], Any], inputs: Sequence[np.ndarray]) -> np.ndarray:
    found = lookup()
    assert found is not None  # whoever reads the batches holds the RowVectors
    return found(*inputs)


class RowVectors:
    """The vectors of rows: first computed into a folder by `computed`, then read from it for batches by `attach`.

    rows: the result of `distinct_rows` for the batches that will be read; the vectors of other rows are computed at each reading
    """

    def __init__(self, extractor: RowExtractor, rows: Sequence[bytes]) -> None:
        # In an order of their own, so that one cache serves every order of the examples.
        self._extractor, self._rows = extractor, sorted(rows)
        self._numbers = {row: number for number, row in enumerate(self._rows)}
        self._reader: CacheReader | None = None

    def check_room(self, folder: pathlib.Path) -> None:
        """Raises BertKerasError if the disk of `folder` has too little room for the vectors."""
        there = sum(file.stat().st_size for file in folder.glob("*.parquet"))
        place = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())
        needed, free = self._extractor.bytes_of(self._rows) - there, shutil.disk_usage(place).free
        if needed > free:
            raise BertKerasError(
                f"the vectors of {len(self._rows):,} texts or windows need {needed / 1e9:,.1f} GB, and {place} has "
                f"{free / 1e9:,.1f} GB free; give fewer layers, or another disk: --feature-cache in commands, TMPDIR for `fit`."
            )

    def compute(self, folder: pathlib.Path, *, progress: Callable[[int], None]) -> None:
        """Computes the vectors that the folder lacks, and reads them from there from now on.

        The folder may have more layers than are read here; then these are computed for all its rows.

        Raises BertKerasError if the folder has vectors of another model or of other texts, with the field that differs.
        """
        self.check_room(folder)
        extractor, stored = self._extractor, layers_in(folder)
        if {*stored} >= {*extractor.places}:
            extractor = RowExtractor(extractor.encoder, places=stored, dtype=extractor.dtype)
        mean = extractor.bytes_of(self._rows) / len(self._rows)
        with writing_cache(
            folder,
            extractor,
            lambda: ({FEATURES: row} for row in self._rows),
            shard_examples=max(1, min(SHARD_ROWS, int(SHARD_BYTES / mean))),
            about={},
            progress=progress,
        ) as cache:
            self.read(cache)

    def read(self, cache: Cache) -> None:
        """Reads vectors from a cache of these rows."""
        self._reader = CacheReader(cache, layers=self._extractor.places)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def attach(self, features: Features) -> Features:
        """Features [..., S] with their "vectors" float32 [..., S, K, H], 0 in padding. In a graph, or eagerly."""
        inputs = [features[name] for name in ENCODER_INPUTS]
        # TensorFlow keeps the function until the process ends; it must not keep the vectors in memory too.
        lookup = weakref.WeakMethod(self._lookup)
        vectors = tf.numpy_function(lambda *given: _called(lookup, given), inputs, tf.float32, stateful=False)
        shape = [*inputs[0].shape, len(self._extractor.places), self._extractor.encoder.config.hidden_size]
        return {**features, VECTORS: tf.ensure_shape(vectors, shape)}

    def attached(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Batches (features, ...) with vectors."""
        return batches.map(lambda features, *rest: (self.attach(features), *rest)).prefetch(tf.data.AUTOTUNE)

    def _lookup(self, *inputs: np.ndarray) -> np.ndarray:
        assert self._reader is not None  # `compute` comes first
        keys = [*rows_in(dict(zip(ENCODER_INPUTS, inputs, strict=True)))]
        known = [key for key in keys if key in self._numbers]
        found = dict(zip(known, self._reader.vectors([self._numbers[key] for key in known]), strict=True))
        # Texts that `fit` did not see before its first step, such as those of a callback.
        others = [key for key in dict.fromkeys(keys) if key not in found]
        computed = self._extractor([{FEATURES: key} for key in others]) if others else ()
        found |= {key: one[VECTORS] for key, one in zip(others, computed, strict=True)}
        shape = inputs[0].shape
        config = self._extractor.encoder.config
        made = np.zeros((len(keys), shape[-1], len(self._extractor.places), config.hidden_size), np.float32)
        for row, key in zip(made, keys, strict=True):
            row[: len(found[key])] = found[key]
        return made.reshape(*shape, *made.shape[2:])
