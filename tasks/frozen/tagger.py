"""A BiLSTM tagger on cached vectors, without an encoder in memory.

    cache of tasks/frozen/cache.py -> train_tagger -> tagger.json, tagger.safetensors, results.json

Source: Devlin et al. 2019, sec. 5.3 and Table 7.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_keras.config import LIMITS, BertConfig
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.files import digest_file, write_json
from bert_keras.io.folders import Folder, check_equal
from bert_keras.io.json_files import (
    NUMBER,
    OBJECT,
    TEXT,
    read_object,
    typed,
    whole,
)
from bert_keras.io.paths import to_path
from bert_keras.model.layer_choices import is_mixed, places_of
from bert_keras.model.layer_mix import ScalarMix
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.training_model import TrainingModel
from bert_keras.tasks import metrics
from bert_keras.tasks.batches import count
from bert_keras.tasks.frozen.cache import Cache
from bert_keras.tasks.hparams import TaggerHparams
from bert_keras.tasks.options import MAX_OPTION
from bert_keras.tasks.problems.tagging import TAGS, Conll
from bert_keras.tasks.training.loop import RUN, check_save_every
from bert_keras.tasks.training.loop import train as run_plan
from bert_keras.tasks.training.plan import Monitor, Plan, Stage
from bert_keras.tasks.training.weights_file import read_weights, write_weights

BUCKETS = (9, 17, 25, 33, 49, 65)  # lengths in words: sentences between two bounds share batches
PREDICT_BATCH = 128  # sentences; a step of the BiLSTM takes nearly as long with 32
TAGGER, WEIGHTS = "tagger.json", "tagger.safetensors"


def tagger_model(
    layers: str, *, num_layers: int, hidden_size: int, num_classes: int, hparams: TaggerHparams
) -> keras.Model:
    """Vectors float [B, N, K, H] and mask bool [B, N] -> logits float32 [B, N, C]. layers: as in `places_of`, K layers."""
    width = len(places_of(layers, num_layers=num_layers))
    vectors = keras.Input((None, width, hidden_size), name="vectors")
    mask = keras.Input((None,), dtype="bool", name="mask")
    if is_mixed(layers):
        states = ScalarMix(name="scalar_mix")(vectors)
    else:
        states = keras.layers.Reshape((-1, width * hidden_size), name="side_by_side")(vectors)
    for i in range(hparams.layers):
        states = keras.layers.Dropout(hparams.dropout, name=f"dropout_{i}")(states)
        lstm = keras.layers.LSTM(hparams.units, return_sequences=True, name="lstm")
        states = keras.layers.Bidirectional(lstm, name=f"bilstm_{i}")(states, mask=mask)
    states = keras.layers.Dropout(hparams.dropout, name="dropout")(states)
    logits = keras.layers.Dense(num_classes, name="tags")(states)
    return TrainingModel({"vectors": vectors, "mask": mask}, logits, name="tagger")


def _places(cache: Cache, layers: str) -> list[int]:
    """The layers to read. Raises BertKerasError if the cache lacks one."""
    header = cache.header
    places = places_of(layers, num_layers=header["config"]["num_layers"])
    if missing := sorted({*places} - {*header["layers"]}):
        raise BertKerasError(
            f"{cache.path} has the layers {header['layers']}, but {layers} reads {list(missing)} too; extract these layers too."
        )
    return list(places)


def _tagger_batches(
    cache: Cache, layers: str, *, batch_size: int, seed: int | None = None
) -> tf.data.Dataset:
    """Batches ({"vectors", "mask"}, labels, weights, index) of sentences with similar lengths, [B, N, ...] and [B].

    index: int64, the sentence's number in the cache
    seed: for a random order; None keeps the order of the cache within each length
    """
    header = cache.header
    columns = [header["layers"].index(place) for place in _places(cache, layers)]
    task = Conll.from_json(header["task"])

    def sentences(record: dict[str, tf.Tensor]) -> tf.data.Dataset:
        vectors = tf.cast(tf.gather(record["vectors"], columns, axis=1), tf.float32)
        rows = tf.strings.split(tf.strings.split(record[TAGS], "\n"), " ")
        labels = task.labels_of({TAGS: record[TAGS][tf.newaxis]}).values
        ends = tf.cumsum(rows.row_lengths())

        def sentence(start: tf.Tensor, end: tf.Tensor) -> tuple[Any, ...]:
            label = labels[start:end]
            inputs = {"vectors": vectors[start:end], "mask": tf.ones_like(label, tf.bool)}
            return inputs, tf.maximum(label, 0), tf.cast(label >= 0, tf.float32)

        return tf.data.Dataset.from_tensor_slices((ends - rows.row_lengths(), ends)).map(sentence)

    made = cache.records().flat_map(sentences).enumerate().map(lambda index, row: (*row, index))
    if seed is not None:
        made = made.shuffle(1024, seed=seed)
    made = made.bucket_by_sequence_length(
        lambda inputs, labels, weights, index: tf.size(labels),
        bucket_boundaries=[*BUCKETS],
        bucket_batch_sizes=[batch_size] * (len(BUCKETS) + 1),
    )
    return made.prefetch(tf.data.AUTOTUNE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagger:
    """A trained tagger. It reads caches with the same fields `made_with` as its training cache."""

    model: keras.Model
    layers: str
    hparams: TaggerHparams
    made_with: Mapping[str, Any]

    def predict(self, cache: Cache) -> list[list[str]]:
        """The tags of each sentence. Raises BertKerasError if the cache differs from the training cache, with the field."""
        check_equal(cache.path, _made_with(cache), self.made_with)
        labels = np.array(Conll.from_json(self.made_with["task"]).label_names)
        found: dict[int, list[str]] = {}
        for inputs, _, _, index in _tagger_batches(cache, self.layers, batch_size=PREDICT_BATCH):
            best = np.argmax(self.model.predict_on_batch(inputs), axis=-1)
            lengths = np.sum(inputs["mask"], axis=1)
            tags = [labels[row[:length]].tolist() for row, length in zip(best, lengths, strict=True)]
            found |= zip(index.numpy().tolist(), tags, strict=True)
        return [found[index] for index in range(len(found))]

    def evaluate(self, cache: Cache) -> dict[str, float]:
        """F1, precision and recall of entities, and the accuracy of tags."""
        gold, predicted = _gold(cache), self.predict(cache)
        scores = metrics.entity_scores(gold, predicted)
        accuracy = metrics.accuracy(np.concatenate(gold), np.concatenate(predicted))
        return {"f1": scores.f1, "precision": scores.precision, "recall": scores.recall, "accuracy": accuracy}


def _gold(cache: Cache) -> list[list[str]]:
    """The gold tags of each sentence."""
    texts = (row[TAGS].decode() for row in cache.rows(TAGS))
    return [row.split(" ") for text in texts for row in text.split("\n")]


def _made_with(cache: Cache) -> dict[str, Any]:
    """The header fields that must be equal in all caches of a tagger."""
    own = ("text", "shards", "layers")
    return {name: value for name, value in cache.header.items() if name not in own}


class TaggerMonitor(Monitor):
    """Measures the dev cache after every epoch and keeps the best epoch's weights on disk."""

    def __init__(self, tagger: Tagger, train: Cache, dev: Cache, path: pathlib.Path) -> None:
        super().__init__()
        self._tagger, self._train, self._dev, self._path = tagger, train, dev, path
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] | None = None  # epoch from 0, SHA-256 of its weights

    def memory(self) -> Any:
        return self.history, self.best

    def recall(self, memory: Any) -> None:
        self.history, self.best = memory
        if self.best is not None and self._digest() != self.best["sha256"]:
            self.best = None  # an epoch after the save wrote its weights: it comes again

    def _digest(self) -> str | None:
        """The SHA-256 of the weights on disk."""
        file = self._path / WEIGHTS
        return digest_file(file) if file.is_file() else None

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        measures = self._tagger.evaluate(self._dev)
        logs = {} if logs is None else logs
        logs.update({f"val_{name}": value for name, value in measures.items()})
        self.history.append({name: float(value) for name, value in logs.items()})
        if self.best is None or measures["f1"] > self.history[self.best["epoch"]]["val_f1"]:
            write_weights(self._path / WEIGHTS, _variables(self._tagger.model))
            self.best = {"epoch": epoch, "sha256": digest_file(self._path / WEIGHTS)}

    def results(self) -> Mapping[str, Any]:
        file, tagger = self._path / WEIGHTS, self._tagger
        if self.best is None or self._digest() != self.best["sha256"]:
            raise BertKerasError(
                f"{file}, the weights of the best epoch, is missing or was changed; remove {self._path} and train again."
            )
        hparams, best = dataclasses.asdict(tagger.hparams), self.history[self.best["epoch"]]
        write_json(
            self._path / TAGGER,
            {"layers": tagger.layers, "hparams": hparams, "made_with": dict(tagger.made_with)},
        )
        results = {
            "layers": tagger.layers,
            "measures": {name: value for name, value in best.items() if name.startswith("val_")},
            "best_epoch": self.best["epoch"] + 1,
            "history": self.history,
            "train_examples": sum(self._train.header["shards"]),
            "dev_examples": sum(self._dev.header["shards"]),
            "hparams": hparams,
        }
        if is_mixed(tagger.layers):
            mix = load_tagger(self._path).model.get_layer("scalar_mix")
            weights = ops.convert_to_numpy(ops.softmax(mix.weight)).tolist()
            results["mix"] = {"weights": weights, "gamma": float(mix.gamma)}
        return results


def plan_tagger(train: Cache, dev: Cache, *, layers: str, hparams: TaggerHparams) -> Plan:
    """Checks everything and builds the model, without training. Raises BertKerasError if the caches do not match."""
    check_equal(dev.path, _made_with(dev), _made_with(train))
    for cache in (train, dev):
        _places(cache, layers)
    keras.utils.set_random_seed(hparams.seed)
    tagger = _tagger(layers, hparams, _made_with(train))
    optimizer = keras.optimizers.Adam(hparams.learning_rate, global_clipnorm=hparams.clip_norm)
    optimizer.build(tagger.model.trainable_variables)
    tagger.model.compile(optimizer=optimizer, loss=GlobalMean(cross_entropy), jit_compile=False)

    def batches() -> tf.data.Dataset:
        made = _tagger_batches(train, layers, batch_size=hparams.batch_size, seed=hparams.seed)
        return made.map(lambda inputs, labels, weights, index: (inputs, labels, weights))

    def monitor(path: pathlib.Path, **_: Any) -> Monitor:
        return TaggerMonitor(tagger, train, dev, path)

    stage = Stage(
        steps=count(batches()),
        epochs=hparams.epochs,
        # A new data set each time: an epoch's order depends on the seed and the number of epochs before it.
        batches=lambda done: batches().repeat().skip(done),
    )
    identity = {
        "layers": layers,
        "hparams": dataclasses.asdict(hparams),
        "made_with": tagger.made_with,
        "train_text": train.header["text"],
        "dev_text": dev.header["text"],
    }
    return Plan(identity=identity, model=tagger.model, stages=[stage], monitor=monitor)


def train_tagger(
    train: Cache,
    dev: Cache,
    *,
    layers: str,
    output: str | pathlib.Path,
    hparams: TaggerHparams | None = None,
    save_every: int | None = None,
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains the BiLSTM on cached vectors, keeps the best epoch in `output` and returns the content of results.json.

    layers: as in `places_of`; the tagger reads each sentence alone, but the vectors may include document context
    save_every: steps between two saves, for resuming; None saves at the end of each epoch, 0 never

    Raises BertKerasError if the caches do not match, or if `output` holds anything but an unfinished run with the same
    arguments; LossDiverged.
    """
    check_save_every(save_every)
    Folder(output, RUN).check()
    plan = plan_tagger(train, dev, layers=layers, hparams=hparams or TaggerHparams())
    return run_plan(plan, output, save_every=save_every, verbose=verbose, log=log)


def _tagger(layers: str, hparams: TaggerHparams, made_with: Mapping[str, Any]) -> Tagger:
    model = tagger_model(
        layers,
        num_layers=made_with["config"]["num_layers"],
        hidden_size=made_with["config"]["hidden_size"],
        num_classes=len(made_with["task"]["labels"]),
        hparams=hparams,
    )
    return Tagger(model=model, layers=layers, hparams=hparams, made_with=made_with)


_COUNT = whole(1, MAX_OPTION)
_HPARAMS = {
    "units": whole(1, LIMITS["hidden_size"]),
    "layers": whole(1, LIMITS["num_layers"]),
    "dropout": NUMBER,
    "learning_rate": NUMBER,
    "clip_norm": NUMBER,
    "batch_size": _COUNT,
    "epochs": _COUNT,
    "seed": whole(0, 2**32 - 1),
}


def load_tagger(path: str | pathlib.Path) -> Tagger:
    """Loads a tagger that `train_tagger` wrote. Raises FileNotFoundError if the folder has none."""
    path = to_path(path)
    if not (path / TAGGER).is_file():
        raise MissingFileError(f"no {TAGGER} in {path}; give the output folder of train_tagger.")
    kept = typed(
        read_object(path / TAGGER),
        {"layers": TEXT, "hparams": OBJECT, "made_with": OBJECT},
        where=path / TAGGER,
    )
    made_with = typed(kept["made_with"], {"config": OBJECT, "task": OBJECT}, where=path / TAGGER, others=True)
    hparams = typed(kept["hparams"], _HPARAMS, where=f"{path / TAGGER}: hparams")
    try:
        BertConfig.from_dict(made_with["config"])
        Conll.from_json(made_with["task"])
        tagger = _tagger(kept["layers"], TaggerHparams(**hparams), kept["made_with"])
    except (BertKerasError, TypeError) as error:
        raise BertKerasError(f"{path / TAGGER}: {error}") from error
    read_weights(path / WEIGHTS, _variables(tagger.model), wanted_by=TAGGER)
    return tagger


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    return {weight.path: weight for weight in model.weights}
