"""Texts and labels as `fit` takes them -> batches of features, labels and weights.

In: lists, arrays and data frames (tasks/given.py), or a tf.data.Dataset of (texts, labels) or (texts, labels, weights).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import EXAMPLE_INDEX, INPUT_WORD_IDS
from bert_keras.text.preprocessing import Preprocessor
from tasks.batches import count, dataset, featurized
from tasks.given import values_of
from tasks.settings import Hparams
from tasks.task import Features, Problem, Raw

SAMPLE_WEIGHT = "sample_weight"
BATCH_SIZE = Hparams.batch_size


def text_batches(
    problem: Problem,
    preprocess: Preprocessor,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    seed: int | None = None,
    multiple_of: int = 1,
    class_weight: Mapping[Any, float] | None = None,
) -> tf.data.Dataset:
    """Batches (features, labels, weights).

    batch_size: examples, or windows of long texts; None means BATCH_SIZE, or a data set's own batches
    seed: of the order of texts in Python; None keeps it, and a data set always keeps its own
    multiple_of: rows; rows of weight 0 pad a batch to a multiple of it
    class_weight: labels, or their ids -> factors of the weights

    Raises BertKerasError for data that cannot work.
    """
    weighted: Any = Weighted(problem, _class_weights(problem, class_weight))
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise BertKerasError("labels were given beside a data set; give a data set of (texts, labels).")
        raw = _raw_batches(problem, x, batch_size=batch_size)
        return featurized(weighted, preprocess, raw, multiple_of=multiple_of)
    if isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__"):
        raise BertKerasError(
            f"{type(x).__name__} is not supported for texts; give lists, arrays, a data frame or a tf.data.Dataset."
        )
    if y is None and not isinstance(x, Columns):
        raise BertKerasError("texts were given without labels; give y.")
    made = dataset(
        weighted,
        preprocess,
        tf.data.Dataset.from_tensor_slices(dict(raw_columns(problem, x, y, sample_weight))),
        batch_size=batch_size or BATCH_SIZE,
        seed=seed,
        multiple_of=multiple_of,
    )
    if steps_of(made) is None:  # the windows of long texts
        made = made.apply(tf.data.experimental.assert_cardinality(count(made)))
    return made


def raw_columns(problem: Problem, x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, np.ndarray]:
    """The columns of raw examples [N] for texts, labels and weights in Python. Raises BertKerasError."""
    if isinstance(x, Columns):
        return x
    columns = problem.given(x)
    added = {} if y is None else problem.targets(y, columns)
    if sample_weight is not None:
        added[SAMPLE_WEIGHT] = _weights(values_of(sample_weight), "sample_weight, row {}")
    count = len(next(iter(columns.values())))
    for name, column in added.items():
        if len(column) != count:
            raise BertKerasError(
                f"there are {count} texts and {len(column)} of {name}; give one for each text."
            )
    return columns | added


class Columns(dict[str, np.ndarray]):
    """Raw columns [N] in place of texts and labels."""


def _weights(values: Sequence[Any], where: str) -> np.ndarray:
    """Weights float32 [N]. Raises BertKerasError for one that is negative or not a finite number."""
    for row, value in enumerate(values):
        if not isinstance(value, int | float | np.number) or not 0 <= float(value) < np.inf:
            raise BertKerasError(
                f"{where.format(row)}: {value!r} is not a weight; give a finite number of at least 0."
            )
    return np.array(values, np.float32)


def text_examples(problem: Problem, x: Any, *, steps: int | None, batch_size: int) -> tf.data.Dataset:
    """Raw examples without labels, in order. x: texts in Python, or a data set of texts or of (texts, labels).

    steps: batches to take, a data set's own or of `batch_size`; None takes all
    """
    names = [*problem.signature()]
    if not isinstance(x, tf.data.Dataset):
        return tf.data.Dataset.from_tensor_slices(problem.given(x)).take(_rows(steps, batch_size))
    spec = x.element_spec
    # A tuple of strings may be a pair of texts without a label.
    labelled = isinstance(spec, tuple) and (
        isinstance(spec[0], Mapping | tuple) or len(names) == 1 or len(spec) != len(names)
    )
    texts = x.map(lambda *parts: _named(parts[0] if labelled or len(parts) == 1 else parts, names))
    if _is_batched(x):
        return texts.take(_rows(steps, 1)).unbatch()
    return texts.take(_rows(steps, batch_size))


def _rows(steps: int | None, size: int) -> int:
    return -1 if steps is None else steps * size


def split(problem: Problem, x: Any, y: Any, sample_weight: Any, fraction: float) -> tuple[Any, Any]:
    """The first examples and the last `fraction` of them, each (x, y, sample_weight), as Keras' validation_split."""
    if isinstance(x, tf.data.Dataset) or has_features(x):
        raise BertKerasError("validation_split applies to lists and arrays of texts; give validation_data.")
    if y is None:
        raise BertKerasError("texts were given without labels; give y.")
    columns = raw_columns(problem, x, y, sample_weight)
    count = len(next(iter(columns.values())))
    first = int(count * (1 - fraction))
    if not 0 < first < count:
        raise BertKerasError(f"validation_split {fraction} leaves no texts on one side of {count}.")

    def side(chosen: slice) -> tuple[Columns, None, None]:
        return Columns({name: column[chosen] for name, column in columns.items()}), None, None

    return side(slice(first)), side(slice(first, None))


def unpacked(data: Any) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight) of validation data as Keras takes it; a tf.data.Dataset is x."""
    if isinstance(data, tf.data.Dataset):
        return data, None, None
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise BertKerasError(
            "validation_data takes (texts, labels), (texts, labels, weights) or a tf.data.Dataset."
        )
    return (*data, None) if len(data) == 2 else (data[0], data[1], data[2])


def has_features(x: Any) -> bool:
    """True for features of the encoder, or a data set of them, in place of texts."""
    inputs = _inputs(x) if isinstance(x, tf.data.Dataset) else x
    return isinstance(inputs, Mapping) and INPUT_WORD_IDS in inputs


def steps_of(data: tf.data.Dataset) -> int | None:
    """The number of batches; None where it is unknown or endless."""
    known = int(data.cardinality())
    return known if known >= 0 else None


class Weighted:
    """A problem whose weights are multiplied by the weights of the examples and of their classes."""

    def __init__(self, problem: Problem, class_weights: tf.Tensor | None) -> None:
        self._problem, self._class_weights = problem, class_weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels, and weights float32, with the leading shape of the logits."""
        labels, weights = self._problem.labels(raw, features)
        if self._class_weights is not None:
            weights *= tf.gather(self._class_weights, labels)
        if SAMPLE_WEIGHT in raw:
            given = raw[SAMPLE_WEIGHT]
            given = tf.gather(given, features[EXAMPLE_INDEX]) if self._problem.windowed else given
            weights *= tf.reshape(given, [-1] + [1] * (len(weights.shape) - 1))
        return labels, weights


def _class_weights(problem: Problem, given: Mapping[Any, float] | None) -> tf.Tensor | None:
    """The weight of each class [C], 1 where none is given. Raises BertKerasError where the problem has no classes."""
    if given is None:
        return None
    names = problem.classes
    if not names:
        raise BertKerasError(f"class_weight does not apply to {problem.name}; give sample_weight.")
    ids: dict[Any, int] = {name: i for i, name in enumerate(names)} | {i: i for i in range(len(names))}
    _weights([*given.values()], "class_weight")
    weights = np.ones(len(names), np.float32)
    for label, weight in given.items():
        if label not in ids:
            raise BertKerasError(f"class_weight names {label!r}; the labels are {', '.join(names)}.")
        weights[ids[label]] = weight
    return tf.constant(weights)


def _inputs(data: tf.data.Dataset) -> Any:
    spec = data.element_spec
    return spec[0] if isinstance(spec, tuple) else spec


def _is_batched(data: tf.data.Dataset) -> bool:
    return min(len(spec.shape) for spec in tf.nest.flatten(_inputs(data))) > 0


def _named(x: Any, names: Sequence[str]) -> dict[str, tf.Tensor]:
    """The texts of an element by name: a dict, a tuple in the order of the names, or the one text."""
    if isinstance(x, Mapping):
        if missing := [name for name in names if name not in x]:
            raise BertKerasError(
                f"the data set has {', '.join(x)}; the model also reads {', '.join(missing)}."
            )
        return {name: x[name] for name in names}
    parts = x if isinstance(x, tuple) else (x,)
    if len(parts) != len(names):
        raise BertKerasError(
            f"the data set has {len(parts)} texts an example; the model reads {', '.join(names)}."
        )
    return dict(zip(names, parts, strict=True))


def _raw_batches(problem: Problem, data: tf.data.Dataset, *, batch_size: int | None) -> tf.data.Dataset:
    """Batches of raw examples from (texts, labels) or (texts, labels, weights), batched or not.

    The first batch is read once more, to check it and to learn the shapes of the labels.
    """
    spec = data.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise BertKerasError(
            "the data set has no labels; give elements (texts, labels) or (texts, labels, weights)."
        )
    if isinstance(spec[1], Mapping | tf.RaggedTensorSpec):
        raise BertKerasError(f"{problem.name} takes its labels in lists or arrays, not in a tf.data.Dataset.")
    if not _is_batched(data):
        data = data.batch(batch_size or BATCH_SIZE)
    elif batch_size is not None:
        raise BertKerasError("the data set is batched and batch_size was given; leave out batch_size.")
    names = [*problem.signature()]

    def on_host(*parts: Any) -> dict[str, np.ndarray]:
        *texts, y = (part.numpy() for part in parts)
        return raw_columns(problem, dict(zip(names, texts, strict=True)) if len(names) > 1 else texts[0], y)

    first = next(iter(data.take(1)), None)
    if first is None:
        raise BertKerasError("the data set is empty; give at least one example.")
    sample = on_host(*_named(first[0], names).values(), first[1])
    keys = sorted(sample)
    dtypes = [tf.string if sample[key].dtype == object else tf.as_dtype(sample[key].dtype) for key in keys]

    def convert(x: Any, y: Any, *weight: Any) -> Raw:
        made = tf.py_function(
            lambda *parts: [on_host(*parts)[key] for key in keys], [*_named(x, names).values(), y], dtypes
        )
        raw = {
            key: tf.ensure_shape(value, [None, *sample[key].shape[1:]])
            for key, value in zip(keys, made, strict=True)
        }
        return raw | ({SAMPLE_WEIGHT: tf.cast(weight[0], tf.float32)} if weight else {})

    return data.map(convert, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
