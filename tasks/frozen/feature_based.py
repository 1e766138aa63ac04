"""Feature-based training: the vectors of a frozen encoder are computed once, then read in every epoch.

In: a task's model on a FeatureEncoder and its examples. Out: RowVectors for tasks/finetuning/finetune.py and for `fit`.

Source: Devlin et al. 2019, sec. 5.3.
"""

import contextlib
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.io.folders import Folder
from bert_keras.io.paths import to_path
from bert_keras.model.feature_bilstm import VECTORS, bilstm_of
from bert_keras.model.layer_choices import places_of
from bert_keras.tasks.batches import dataset
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.frozen.cache import open_cache
from bert_keras.tasks.frozen.token_vectors import RowExtractor, RowVectors, distinct_rows
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.loop import RUN
from bert_keras.tasks.training.progress import counter, duration
from bert_keras.tasks.training.task_model import check_features
from bert_keras.text.preprocessing import Preprocessor

FOLDER = "vectors"  # in the folder of an unfinished run
ROWS = 256  # examples that are tokenized together to find the rows that the encoder reads


def check_feature_based(
    task: Task,
    config: BertConfig,
    hparams: Hparams,
    *,
    keep_head: bool,
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


def vectors_of(
    model: Any, preprocess: Preprocessor, train: tf.data.Dataset, dev: tf.data.Dataset, hparams: Hparams
) -> RowVectors | None:
    """The vectors of examples, not yet computed; None for fine-tuning.

    model: a TextModel
    """
    if hparams.feature_layers is None:
        return None
    # Each data set traces the tokenizer once more.
    splits = [train.concatenate(dev)] if train.element_spec == dev.element_spec else [train, dev]
    made = [
        dataset(model.problem, preprocess, split, batch_size=ROWS, labelled=False).map(
            lambda features, raw: features
        )
        for split in splits
    ]
    rows = distinct_rows(features for split in made for features in split)
    places = places_of(hparams.feature_layers, num_layers=model.encoder.config.num_layers)
    extractor = RowExtractor(model.encoder, places=places, dtype=hparams.feature_dtype)
    return RowVectors(extractor, rows)


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
        RowExtractor(model.encoder, places=places, dtype="float32"),
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
            vectors.compute(folder, progress=counter("computing vectors", vectors.count, log=log))
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
