"""A BiLSTM tagger on cached vectors; no encoder in memory.

    cache of tasks/features/extract.py -> train_tagger -> tagger.json, tagger.safetensors, results.json

Source: Devlin et al. 2019, sec. 5.3 and Table 7.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import safetensors.numpy
import tensorflow as tf
from keras import ops

from bert_keras.config import LIMITS, BertConfig
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.files import write_json
from bert_keras.json_files import NUMBER, OBJECT, one_of, read_object, typed, whole
from bert_keras.optimization import GlobalMean, cross_entropy
from bert_keras.paths import path_of
from tasks import metrics
from tasks.batches import count
from tasks.features.extract import LAYERS, Cache, places_of
from tasks.folders import check_equal
from tasks.ner.task import TAGS, Conll
from tasks.task import MAX_OPTION, check_settings
from tasks.training.loop import RESULTS_FILE

BUCKETS = (9, 17, 25, 33, 49, 65)  # words: sentences between two of them share batches
PREDICT_BATCH = 128  # sentences; a BiLSTM's step costs nearly the same for 32
TAGGER, WEIGHTS = "tagger.json", "tagger.safetensors"


@keras.saving.register_keras_serializable("bert_keras")
class ScalarMix(keras.layers.Layer):
    """gamma * sum over k of softmax(weights)_k * x_k: float [..., K, H] -> [..., H] (Peters et al. 2018, ELMo, eq. 1).

    Weights start equal, gamma at 1.
    """

    def build(self, input_shape: Any) -> None:
        """Makes both variables: weights [K], gamma []."""
        self.weight = self.add_weight(shape=(input_shape[-2],), initializer="zeros", name="weight")
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")
        self.built = True

    def call(self, x: Any) -> Any:
        """Float [..., K, H] -> [..., H]."""
        return self.gamma * ops.sum(ops.softmax(self.weight)[:, None] * x, axis=-2)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """[..., K, H] -> [..., H]."""
        return (*input_shape[:-2], input_shape[-1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerHparams:
    """The settings of the BiLSTM. The paper gives layers and units and is silent on the rest.

    Adam at 1e-3 on batches of 32 sentences is Keras' default and a common choice for BiLSTM taggers.
    """

    units: int = 768  # of each direction
    layers: int = 2
    dropout: float = 0.3  # before each BiLSTM and before the tag layer
    learning_rate: float = 1e-3
    clip_norm: float = 1.0
    batch_size: int = 32  # sentences
    epochs: int = 10
    seed: int = 12345

    def __post_init__(self) -> None:
        wanted = {
            **{
                name: (getattr(self, name) >= 1, "at least 1")
                for name in ("units", "layers", "batch_size", "epochs")
            },
            "dropout": (0 <= self.dropout < 1, "from 0 to below 1"),
            "learning_rate": (self.learning_rate > 0, "over 0"),
            "clip_norm": (self.clip_norm > 0, "over 0"),
            "seed": (0 <= self.seed < 2**32, "from 0 to 2**32 - 1"),
        }
        check_settings(self, wanted)


def tagger_model(
    layers: str, *, num_layers: int, hidden_size: int, num_classes: int, hparams: TaggerHparams
) -> keras.Model:
    """Vectors float [B, N, K, H] and mask bool [B, N] -> logits float32 [B, N, C]; K as `layers`, of LAYERS, has it."""
    width = len(places_of(layers, num_layers=num_layers))
    vectors = keras.Input((None, width, hidden_size), name="vectors")
    mask = keras.Input((None,), dtype="bool", name="mask")
    if LAYERS[layers].mixed:
        states = ScalarMix(name="scalar_mix")(vectors)
    else:
        states = keras.layers.Reshape((-1, width * hidden_size), name="side_by_side")(vectors)
    for i in range(hparams.layers):
        states = keras.layers.Dropout(hparams.dropout, name=f"dropout_{i}")(states)
        lstm = keras.layers.LSTM(hparams.units, return_sequences=True, name="lstm")
        states = keras.layers.Bidirectional(lstm, name=f"bilstm_{i}")(states, mask=mask)
    states = keras.layers.Dropout(hparams.dropout, name="dropout")(states)
    logits = keras.layers.Dense(num_classes, name="tags")(states)
    return keras.Model({"vectors": vectors, "mask": mask}, logits, name="tagger")


def _tagger_batches(
    cache: Cache, layers: str, *, batch_size: int, seed: int | None = None
) -> tf.data.Dataset:
    """({"vectors", "mask"}, labels, weights, index) of sentences, [B, N, ...] and [B]; like lengths share batches.

    index: int64, the sentence's place in the cache
    seed: None keeps the order of the cache within each length; else at random
    """
    header = cache.header
    places = places_of(layers, num_layers=header["config"]["num_layers"])
    if missing := sorted({*places} - {*header["layers"]}):
        raise BertKerasError(
            f"{cache.path} holds the layers {header['layers']} and {layers} reads {list(missing)} too; extract them."
        )
    columns = [header["layers"].index(place) for place in places]
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
    """A trained tagger: it reads caches made as its own was, by `made_with`."""

    model: keras.Model
    layers: str
    hparams: TaggerHparams
    made_with: Mapping[str, Any]

    def predict(self, cache: Cache) -> list[list[str]]:
        """The tags of each sentence. Raises ValueError naming the field where the cache was made otherwise."""
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
    """The tags of each sentence, as the cache has them."""
    tags = cache.records().map(lambda record: record[TAGS])
    return [row.split(" ") for text in tags.as_numpy_iterator() for row in text.decode().split("\n")]


def _made_with(cache: Cache) -> dict[str, Any]:
    """A header without what is of one text or may differ."""
    own = ("text", "shards", "layers")
    return {name: value for name, value in cache.header.items() if name not in own}


class _Best(keras.callbacks.Callback):
    """Measures the dev cache after every epoch and keeps the best epoch's weights on disk."""

    def __init__(
        self, tagger: Tagger, dev: Cache, weights: pathlib.Path, *, log: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._tagger, self._dev, self._weights, self._log = tagger, dev, weights, log
        self.history: list[dict[str, float]] = []
        self.best = -1

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        measures = self._tagger.evaluate(self._dev)
        loss = float((logs or {})["loss"])
        if not np.isfinite(loss):
            raise BertKerasError(f"the loss is {loss} in epoch {epoch + 1}; give a lower learning_rate.")
        self.history.append({"loss": loss} | {f"val_{name}": value for name, value in measures.items()})
        if self.best < 0 or measures["f1"] > self.history[self.best]["val_f1"]:
            self.best = epoch
            temporary = self._weights.with_suffix(".tmp")
            weights = {weight.path: np.asarray(weight) for weight in self._tagger.model.weights}
            safetensors.numpy.save_file(weights, temporary)
            os.replace(temporary, self._weights)
        self._log(
            f"epoch {epoch + 1}: {', '.join(f'{name} {value:.4f}' for name, value in measures.items())}"
        )


def train_tagger(
    train: Cache,
    dev: Cache,
    *,
    layers: str,
    output: str | pathlib.Path,
    hparams: TaggerHparams | None = None,
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains the BiLSTM on cached vectors, keeps the best epoch in `output` and returns what results.json says.

    layers: of LAYERS; sentences are read one by one, with the context that their vectors already have

    Raises ValueError where the caches were not made alike, or `output` holds a tagger.
    """
    hparams, output = hparams or TaggerHparams(), path_of(output)
    check_equal(dev.path, _made_with(dev), _made_with(train))
    if (output / TAGGER).exists():
        raise BertKerasError(
            f"{output} already holds a tagger; give another folder, or remove this one first."
        )
    keras.utils.set_random_seed(hparams.seed)
    tagger = _tagger(layers, hparams, _made_with(train))
    optimizer = keras.optimizers.Adam(hparams.learning_rate, global_clipnorm=hparams.clip_norm)
    tagger.model.compile(optimizer=optimizer, loss=GlobalMean(cross_entropy), jit_compile=False)
    batches = _tagger_batches(train, layers, batch_size=hparams.batch_size, seed=hparams.seed)
    batches = batches.map(lambda inputs, labels, weights, index: (inputs, labels, weights))
    batches = batches.apply(tf.data.experimental.assert_cardinality(count(batches)))
    output.mkdir(parents=True, exist_ok=True)
    kept = {"layers": layers, "hparams": dataclasses.asdict(hparams), "made_with": dict(tagger.made_with)}
    best = _Best(tagger, dev, output / WEIGHTS, log=log)
    tagger.model.fit(batches, epochs=hparams.epochs, callbacks=[best], verbose=verbose, shuffle=False)
    write_json(output / TAGGER, kept)
    results = {
        "layers": layers,
        "measures": {
            name: value for name, value in best.history[best.best].items() if name.startswith("val_")
        },
        "best_epoch": best.best + 1,
        "history": best.history,
        "train_examples": sum(train.header["shards"]),
        "dev_examples": sum(dev.header["shards"]),
        "hparams": kept["hparams"],
    }
    if LAYERS[layers].mixed:
        mix = load_tagger(output).model.get_layer("scalar_mix")
        results["mix"] = {
            "weights": ops.convert_to_numpy(ops.softmax(mix.weight)).tolist(),
            "gamma": float(mix.gamma),
        }
    write_json(output / RESULTS_FILE, results)
    return results


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
    """The tagger that `train_tagger` left in a folder. Raises FileNotFoundError where there is none."""
    path = path_of(path)
    if not (path / TAGGER).is_file():
        raise MissingFileError(f"no {TAGGER} in {path}; give the folder that a tagger was trained into.")
    kept = typed(
        read_object(path / TAGGER),
        {"layers": one_of(LAYERS), "hparams": OBJECT, "made_with": OBJECT},
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
    try:
        weights = safetensors.numpy.load_file(path / WEIGHTS)
    except safetensors.SafetensorError as error:
        raise BertKerasError(f"{path / WEIGHTS} is cut short or no safetensors file: {error}.") from error
    for weight in tagger.model.weights:
        found = weights.get(weight.path)
        if found is None or found.shape != tuple(weight.shape):
            raise BertKerasError(
                f"{path / WEIGHTS} has {weight.path} of shape {None if found is None else list(found.shape)}; "
                f"{TAGGER} wants {list(weight.shape)}."
            )
        weight.assign(found)
    return tagger
