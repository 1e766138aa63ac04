"""Feature-based training: the vectors of a frozen encoder are computed once, then read in every epoch.

    batches of features -> the different rows in them -> Extractor -> Cache -> "vectors" [..., S, K, H] of any batch

A row is what an encoder reads at once: a text, a pair, a window. Its vectors depend on its ids, mask and types alone.
`computed` serves tasks/finetuning/finetune.py, whose model has no encoder; `fitting` serves `fit`, whose model has one.

Source: Devlin et al. 2019, sec. 5.3.
"""

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.cli.console import counter, duration
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, inputs_in
from bert_keras.io.folders import Folder
from bert_keras.io.paths import to_path
from bert_keras.model.choices import places_of, training_policy
from bert_keras.model.feature_bilstm import VECTORS, FrozenNetwork, bilstm_of
from bert_keras.optimization.training_model import TrainingSteps
from bert_keras.tasks.batches import dataset
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.frozen.cache import Cache, CacheReader, layers_in, open_cache, writing_cache
from bert_keras.tasks.frozen.extractor import FEATURES, Extractor, Rows, row_of, rows_in
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.joined_windows import call_network
from bert_keras.tasks.task import Features, Problem, Task
from bert_keras.tasks.training.loop import RUN
from bert_keras.tasks.training.task_model import check_features
from bert_keras.text.preprocessing import Preprocessor

FOLDER = "vectors"  # in the folder of an unfinished run
BATCH = 32  # rows that the encoder reads at once
READ = 256  # examples that are tokenized together to find the rows that the encoder reads
SHARD_BYTES, SHARD_ROWS = 2**28, 4096  # of a file, which is made in memory: it ends at either


def check_feature_based(
    task: Task,
    config: BertConfig,
    hparams: Hparams,
    *,
    keep_head: bool | None,
    feature_cache: str | pathlib.Path | None,
) -> None:
    """Raises BertKerasError for settings of features that do not fit the task, the encoder or each other."""
    if hparams.features is not None:
        check_features(task, config, hparams.features)
        if keep_head:
            raise BertKerasError(
                "keep_head does not apply with feature_layers, whose head is on a new BiLSTM; leave it out."
            )
    elif feature_cache is not None:
        raise BertKerasError("feature_cache applies only with feature_layers; leave it out.")


def distinct_rows(batches: Iterable[Features]) -> list[bytes]:
    """The different rows of batches of features, in the order of their first occurrence."""
    found: dict[bytes, None] = {}
    for batch in batches:
        found |= dict.fromkeys(rows_in({name: np.asarray(value) for name, value in inputs_in(batch).items()}))
    return [*found]


class RowVectors:
    """The vectors of rows: first computed into a folder by `compute`, then read from it for batches by `attach`.

    extractor: its units are Rows
    rows: the result of `distinct_rows` for the batches that will be read; the vectors of other rows are computed at each reading
    """

    def __init__(self, extractor: Extractor, rows: Sequence[bytes]) -> None:
        # In an order of their own, so that one cache serves every order of the examples.
        self.extractor, self._rows = extractor, sorted(rows)
        self._numbers = {row: number for number, row in enumerate(self._rows)}
        self._shape = (len(extractor.places), extractor.config.hidden_size)
        self._reader: CacheReader | None = None

    def _bytes(self, extractor: Extractor) -> int:
        """The size of the vectors."""
        tokens = sum(row_of(row, extractor.config.max_characters).shape[1] for row in self._rows)
        return tokens * len(extractor.places) * self._shape[1] * np.dtype(extractor.dtype).itemsize

    def check_room(self, folder: pathlib.Path) -> None:
        """Raises BertKerasError if the disk of `folder` has too little room for the vectors."""
        there = sum(file.stat().st_size for file in folder.glob("*.parquet"))
        place = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())
        needed, free = self._bytes(self.extractor) - there, shutil.disk_usage(place).free
        if needed > free:
            raise BertKerasError(
                f"the vectors of {len(self._rows):,} texts or windows need {needed / 1e9:,.1f} GB, and {place} has "
                f"{free / 1e9:,.1f} GB free; give fewer layers, or another disk: --feature-cache in commands, TMPDIR for `fit`."
            )

    def compute(self, folder: pathlib.Path, *, progress: Callable[[int], None]) -> checkpoints.Report | None:
        """Computes the vectors that the folder lacks, and reads them from there from now on.

        The folder may have more layers than are read here; then these are computed for all its rows. Returns the report about
        the weights if an encoder was made for them.

        Raises BertKerasError if the folder has vectors of another model or of other texts, with the field that differs.
        """
        self.check_room(folder)
        extractor, stored = self.extractor, layers_in(folder)
        if {*stored} >= {*extractor.places}:
            extractor = dataclasses.replace(extractor, places=stored)
        mean = self._bytes(extractor) / len(self._rows)
        with writing_cache(
            folder,
            extractor,
            lambda: ({FEATURES: row} for row in self._rows),
            shard_examples=max(1, min(SHARD_ROWS, int(SHARD_BYTES / mean))),
            progress=progress,
        ) as cache:
            self.read(cache)
        return extractor.report

    def read(self, cache: Cache) -> None:
        """Reads vectors from a cache of these rows."""
        self._reader = CacheReader(cache, layers=self.extractor.places)

    def forget_encoder(self) -> None:
        """Frees the weights: from now on, only the rows of the cache have vectors."""
        del self.extractor

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def attach(self, features: Features) -> Features:
        """Features [..., S] with their "vectors" float32 [..., S, K, H], 0 in padding. In a graph, or eagerly."""
        inputs = inputs_in(features)
        # TensorFlow keeps the function until the process ends; it must not keep the vectors in memory too.
        weak = weakref.WeakMethod(self._lookup)

        def lookup(*given: np.ndarray) -> np.ndarray:
            found = weak()
            assert found is not None  # whoever reads the batches holds the RowVectors
            return found(dict(zip(inputs, given, strict=True)))

        vectors = tf.numpy_function(lookup, [*inputs.values()], tf.float32, stateful=False)
        shape = [*inputs[INPUT_MASK].shape, *self._shape]
        return {**features, VECTORS: tf.ensure_shape(vectors, shape)}

    def attached(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Batches (features, ...) with vectors."""
        return batches.map(lambda features, *rest: (self.attach(features), *rest)).prefetch(tf.data.AUTOTUNE)

    def _lookup(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        assert self._reader is not None  # `compute` comes first
        keys = [*rows_in(inputs)]
        known = [key for key in keys if key in self._numbers]
        found = dict(zip(known, self._reader.vectors([self._numbers[key] for key in known]), strict=True))
        # Texts that `fit` did not see before its first step, such as those of a callback.
        others = [key for key in dict.fromkeys(keys) if key not in found]
        computed = self.extractor([{FEATURES: key} for key in others]) if others else ()
        found |= {key: one[VECTORS] for key, one in zip(others, computed, strict=True)}
        shape = inputs[INPUT_MASK].shape
        made = np.zeros((len(keys), shape[-1], *self._shape), np.float32)
        for row, key in zip(made, keys, strict=True):
            row[: len(found[key])] = found[key]
        return made.reshape(*shape, *self._shape)


def on_vectors(model: Any, vectors: RowVectors) -> Callable[..., Any]:
    """A feature-based model without its encoder: features -> outputs. vectors: those of the features' rows."""
    return lambda inputs, training=False: model(vectors.attach(inputs), training=training)


def row_vectors(
    source: checkpoints.Checkpoint,
    problem: Problem,
    preprocess: Preprocessor,
    train: tf.data.Dataset,
    dev: tf.data.Dataset,
    hparams: Hparams,
) -> RowVectors:
    """The vectors of examples, not yet computed. Makes no encoder, unless its weights are random.

    hparams: with feature_layers
    """
    # Each data set traces the tokenizer once more.
    splits = [train.concatenate(dev)] if train.element_spec == dev.element_spec else [train, dev]
    made = (dataset(problem, preprocess, split, batch_size=READ, labelled=False) for split in splits)
    extractor = Extractor(
        source=source,
        units=Rows(source.config.max_characters),
        places=places_of(hparams.feature_layers or "", num_layers=source.config.num_layers),
        dtype=hparams.feature_dtype,
        precision=training_policy(hparams.precision),
        batch_size=BATCH,
    )
    return RowVectors(extractor, distinct_rows(features for one in made for features, _ in one))


class ModelOnVectors(TrainingSteps, keras.Model):
    """A task's model without its encoder: Features with their "vectors" -> outputs.

    network: a model on a FeatureEncoder
    """

    def __init__(self, network: keras.Model) -> None:
        super().__init__(name=network.name, dtype=network.dtype_policy)
        self.network, self._parts = network, FrozenNetwork(network)
        self.built = True

    def call(self, inputs: Features, training: bool = False) -> Any:
        """Features -> outputs."""
        return call_network(self.network, self._parts, inputs, training=training)


def folder_of(output: str | pathlib.Path, cache: str | pathlib.Path | None) -> pathlib.Path:
    """The folder for vectors: `cache`, or else a folder in the run's."""
    return to_path(output) / FOLDER if cache is None else to_path(cache)


@contextlib.contextmanager
def fitting(model: Any, data: Any, validation: Any, *, verbose: bool) -> Iterator[tuple[Any, Any]]:
    """Batches (features, ...) for `fit`; those of a feature-based model with vectors, which are computed once, here.

    model: a TextModel; its `vectors` are set meanwhile
    validation: batches, or None

    The vectors are in a temporary folder. Raises BertKerasError for an endless data set and for an encoder that is not frozen.
    """
    bilstm = bilstm_of(model.network)
    if bilstm is None or VECTORS in data.element_spec[0]:
        yield data, validation
        return
    if model.encoder.trainable_variables:
        raise BertKerasError(
            "the encoder of a model with feature_layers stays frozen, and it was made trainable; set encoder.trainable = False, "
            "or make a model without feature_layers to train it."
        )
    sets = [data] if validation is None else [data, validation]
    if any(one.cardinality() == tf.data.INFINITE_CARDINALITY for one in sets):
        raise BertKerasError(
            "the data set is endless, and a feature-based model computes the vectors of all its texts first; give a finite one."
        )
    places = places_of(bilstm.feature_layers, num_layers=model.encoder.config.num_layers)
    model.vectors = RowVectors(
        Extractor(
            source=model.encoder,
            units=Rows(model.encoder.config.max_characters),
            places=places,
            dtype="float32",
            batch_size=BATCH,
        ),
        distinct_rows(element[0] for one in sets for element in one),
    )
    try:
        with tempfile.TemporaryDirectory(prefix="bert_keras_vectors_") as folder:
            bar = keras.utils.Progbar(model.vectors.count, verbose=int(verbose), unit_name="vector")
            model.vectors.compute(pathlib.Path(folder), progress=bar.add)
            made = [model.vectors.attached(one) for one in sets]
            yield made[0], None if validation is None else made[1]
    finally:
        model.forget_vectors()


@contextlib.contextmanager
def computed(
    vectors: RowVectors,
    cache: str | pathlib.Path | None,
    path: pathlib.Path,
    *,
    workers: Workers,
    log: Callable[[str], None],
) -> Iterator[None]:
    """Computes the vectors that are missing before a training, and removes them after it unless they are in `cache`.

    cache: a folder that keeps them; None keeps them in the run's folder `path` until the run is finished
    workers: the chief computes the vectors, and all read them
    """
    folder = folder_of(path, cache)
    began = time.monotonic()
    try:
        if workers.chief:
            report = vectors.compute(folder, progress=counter("computing vectors", vectors.count, log=log))
            if report is not None:
                log(str(report))
        workers.wait()
    except KeyboardInterrupt as error:
        raise type(error)("stopped before the first step; run the same command to resume") from None
    if not workers.chief:
        vectors.read(open_cache(folder))
    log(f"vectors of {vectors.count:,} texts or windows: {duration(time.monotonic() - began)}")
    try:
        yield
    finally:
        # Also where a signal came last, and where an earlier call had no cache.
        if workers.chief and Folder(path, RUN).finished:
            shutil.rmtree(path / FOLDER, ignore_errors=True)
