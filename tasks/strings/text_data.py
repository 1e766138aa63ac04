"""Texts and labels as `fit` takes them -> batches of features, labels and weights.

In: lists, arrays and data frames (tasks/data/columns.py), or a tf.data.Dataset of (texts, labels) or (texts, labels, weights).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    EXAMPLE_INDEX,
    INPUT_WORD_IDS,
    WHOLE,
    Part,
)
from bert_keras.io.files import data_errors
from bert_keras.tasks.batches import (
    EMPTY,
    count,
    dataset,
    featurized,
)
from bert_keras.tasks.data.columns import class_resolver, values_of
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.task import (
    Features,
    Problem,
    Raw,
    model_inputs,
)
from bert_keras.text.preprocessing import Preprocessor

SAMPLE_WEIGHT = "sample_weight"
BATCH_SIZE = Hparams.batch_size


def rows_of(batch_size: int | None) -> int:
    """The size of a batch of texts: BATCH_SIZE for None. Raises BertKerasError for less than 1."""
    if batch_size is not None and batch_size < 1:
        raise BertKerasError(f"batch_size is {batch_size}; expected at least 1.")
    return batch_size or BATCH_SIZE


DATA_SETS = (tf.data.Dataset, tf.distribute.DistributedDataset)  # the latter only of features


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
    part: Part = WHOLE,
) -> tf.data.Dataset:
    """Batches (features, labels, weights).

    batch_size: examples, or windows of long texts; None means BATCH_SIZE, or a data set's own batches
    seed: of the order of texts in Python; None keeps it, and a data set always keeps its own
    multiple_of: rows; rows of weight 0 pad a batch to a multiple of it
    class_weight: labels, or their ids, as `class_ids` takes them -> factors of the weights
    part: the rows of each batch to make; `multiple_of` makes them divisible

    Raises BertKerasError for data that cannot work.
    """
    weighted: Any = Weighted(problem, _class_weights(problem, class_weight))
    if isinstance(x, tf.data.Dataset):
        raw = _raw_batches(problem, preprocess, x, y, sample_weight, batch_size=batch_size)
        return featurized(weighted, preprocess, raw, multiple_of=multiple_of, part=part)
    made = dataset(
        weighted,
        preprocess,
        tf.data.Dataset.from_tensor_slices({**raw_columns(problem, preprocess, x, y, sample_weight)}),
        batch_size=rows_of(batch_size),
        seed=seed,
        multiple_of=multiple_of,
        part=part,
    )
    return _counted(made)


def _counted(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of a known number. Those of windows are counted by tokenizing once more, which is cheap beside the network."""
    if steps_of(batches) is not None:
        return batches
    return batches.apply(tf.data.experimental.assert_cardinality(count(batches)))


def one_batch(
    problem: Problem,
    preprocess: Preprocessor,
    x: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    class_weight: Mapping[Any, float] | None = None,
) -> tuple[Any, Any, Any]:
    """(features, labels, weights) of texts in Python, all in one batch. Raises as `text_batches`."""
    weighted: Any = Weighted(problem, _class_weights(problem, class_weight))
    columns = {**raw_columns(problem, preprocess, x, y, sample_weight)}
    return next(iter(featurized(weighted, preprocess, tf.data.Dataset.from_tensors(columns))))


def text_features(problem: Problem, preprocess: Preprocessor, x: Any) -> Features:
    """The inputs of the network for texts in Python, or for string tensors, all in one batch."""
    texts = keras.tree.flatten(x)
    tensors = bool(texts) and all(map(tf.is_tensor, texts))
    raw = _named(x, [*problem.signature()]) if tensors else problem.given(x)
    return model_inputs(
        problem.features(preprocess, {name: tf.convert_to_tensor(text) for name, text in raw.items()})
    )


class Evaluation(NamedTuple):
    """The data of an evaluation.

    batches: (features, labels, weights), for the loss and Keras' metrics
    examples: the same examples, raw and labelled, for the problem's own measures; None where it has Keras metrics
    """

    batches: tf.data.Dataset
    examples: tf.data.Dataset | None


def evaluation_data(
    problem: Problem,
    preprocess: Preprocessor,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    multiple_of: int = 1,
) -> Evaluation:
    """The data of an evaluation of texts and labels, in the forms that `text_batches` takes.

    steps: batches to take, a data set's own or of `batch_size` texts; None takes all

    Raises as `text_batches`, and for weights where the problem has measures of its own, which count every text alike.
    """
    weighted: Any = Weighted(problem, None)
    if isinstance(x, tf.data.Dataset):
        raw = _raw_batches(problem, preprocess, x, y, sample_weight, batch_size=batch_size).take(
            _rows(steps, 1)
        )
        if steps is None:
            _check_finite(raw)
        batches, examples = featurized(weighted, preprocess, raw, multiple_of=multiple_of), raw.unbatch()
    else:
        size = rows_of(batch_size)
        columns = raw_columns(problem, preprocess, x, y, sample_weight)
        columns = {
            name: column[: None if steps is None else steps * size] for name, column in columns.items()
        }
        examples = tf.data.Dataset.from_tensor_slices(columns)
        batches = _counted(dataset(weighted, preprocess, examples, batch_size=size, multiple_of=multiple_of))
    if problem.metrics():
        return Evaluation(batches, None)
    if SAMPLE_WEIGHT in examples.element_spec:
        raise BertKerasError(
            f"the measures of {problem.name} count every text alike, so sample_weight does not apply to its evaluation or "
            "validation; leave the weights out (for validation, give validation_data without weights)."
        )
    return Evaluation(batches, examples)


def raw_columns(
    problem: Problem, preprocess: Preprocessor, x: Any, y: Any = None, sample_weight: Any = None
) -> dict[str, np.ndarray]:
    """The columns of raw examples [N] for texts, labels and weights in Python. Raises BertKerasError."""
    if isinstance(x, Columns):
        return x
    if isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__"):
        raise BertKerasError(
            f"{type(x).__name__} is not supported for texts; give lists, arrays, a data frame or a tf.data.Dataset."
        )
    if y is None:
        raise BertKerasError("texts were given without labels; give y.")
    columns = problem.given(x)
    added = problem.targets(y, columns)
    if sample_weight is not None:
        added[SAMPLE_WEIGHT] = _weights(values_of(sample_weight), "sample_weight, row {}")
    count = len(next(iter(columns.values())))
    for name, column in added.items():
        if len(column) != count:
            raise BertKerasError(
                f"there are {count} texts and {len(column)} of {name}; give one for each text."
            )
    problem.check_targets(preprocess, columns | added)
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
    if steps is None:
        _check_finite(x)
    spec = x.element_spec
    # A tuple of strings may be a pair of texts without a label.
    labelled = isinstance(spec, tuple) and (
        isinstance(spec[0], Mapping | tuple) or len(names) == 1 or len(spec) != len(names)
    )
    _named(
        spec[0] if labelled else spec, names
    )  # here, because TensorFlow would hide the error in a traceback
    texts = x.map(lambda *parts: _named(parts[0] if labelled or len(parts) == 1 else parts, names))
    if _is_batched(x):
        return texts.take(_rows(steps, 1)).unbatch()
    return texts.take(_rows(steps, batch_size))


def _rows(steps: int | None, size: int) -> int:
    return -1 if steps is None else steps * size


def split(
    problem: Problem, preprocess: Preprocessor, x: Any, y: Any, sample_weight: Any, fraction: float
) -> tuple[Any, Any]:
    """The first examples and the last `fraction` of them, each (x, y, sample_weight), as Keras' validation_split."""
    if isinstance(x, tf.data.Dataset) or has_features(x):
        raise BertKerasError("validation_split applies to lists and arrays of texts; give validation_data.")
    columns = raw_columns(problem, preprocess, x, y, sample_weight)
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
    inputs = _inputs(x) if isinstance(x, DATA_SETS) else x
    return isinstance(inputs, Mapping) and INPUT_WORD_IDS in inputs


def has_text(x: Any) -> bool:
    """True for strings in one of the forms of tasks/data/columns.py: lists, arrays, columns, data frames, tensors."""
    if hasattr(x, "columns"):
        return True
    first: Any = next(iter(keras.tree.flatten(x)), None)
    if first is None and isinstance(x, list | tuple):  # `given` names what is missing
        return True
    if hasattr(first, "iloc"):  # a column of a data frame
        first = first.to_numpy()
    if isinstance(first, np.ndarray):
        return first.dtype.kind in "OSUT"
    return isinstance(first, str | bytes) or (tf.is_tensor(first) and first.dtype == tf.string)


def steps_of(data: Any) -> int | None:
    """The number of batches of one of DATA_SETS; None where it is unknown or endless."""
    known = int(data.cardinality() if callable(data.cardinality) else data.cardinality)
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
    resolve = class_resolver(names)
    _weights([*given.values()], "class_weight")
    weights = np.ones(len(names), np.float32)
    for label, weight in given.items():
        if (found := resolve(label)) is None:
            raise BertKerasError(f"class_weight names {label!r}; the labels are {', '.join(names)}.")
        weights[found] = weight
    return tf.constant(weights)


def _inputs(data: tf.data.Dataset) -> Any:
    spec = data.element_spec
    return spec[0] if isinstance(spec, tuple) else spec


def _check_finite(data: tf.data.Dataset) -> None:
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise BertKerasError("the data set is endless; give the number of batches to read as steps.")


def _is_batched(data: tf.data.Dataset) -> bool:
    specs = tf.nest.flatten(_inputs(data))
    if any(spec.shape.rank is None for spec in specs):
        raise BertKerasError(
            "the shapes of the data set's texts are unknown; give its generator an output_signature with shapes."
        )
    return min(len(spec.shape) for spec in specs) > 0


def _named(x: Any, names: Sequence[str]) -> dict[str, tf.Tensor]:
    """The texts of an element by name: a dict, a tuple in the order of the names, or the one text.

    x: tensors or their specifications. Raises BertKerasError for a missing text, another number of texts, and numbers.
    """
    if isinstance(x, Mapping):
        if missing := [name for name in names if name not in x]:
            raise BertKerasError(
                f"the data set has {', '.join(x)}; the model also reads {', '.join(missing)}."
            )
        return _strings({name: x[name] for name in names})
    parts = x if isinstance(x, tuple) else (x,)
    if len(parts) != len(names):
        raise BertKerasError(
            f"the data set has {len(parts)} texts an example; the model reads {', '.join(names)}."
        )
    return _strings(dict(zip(names, parts, strict=True)))


def _strings(texts: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    if wrong := [name for name, text in texts.items() if text.dtype != tf.string]:
        raise BertKerasError(f"the data set's {wrong[0]} is {texts[wrong[0]].dtype.name}; give strings.")
    return texts


def _batches_of_labelled(
    problem: Problem, data: tf.data.Dataset, *, batch_size: int | None
) -> tf.data.Dataset:
    """The data set in batches. Raises BertKerasError where its specification has no labels, or other texts than the problem's."""
    spec = data.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise BertKerasError(
            "the data set has no labels; give elements (texts, labels) or (texts, labels, weights)."
        )
    if isinstance(spec[1], Mapping | tf.RaggedTensorSpec):
        raise BertKerasError(f"{problem.name} takes its labels in lists or arrays, not in a tf.data.Dataset.")
    _named(spec[0], [*problem.signature()])
    if not _is_batched(data):
        return data.batch(rows_of(batch_size))
    if batch_size is not None:
        raise BertKerasError("the data set is batched and batch_size was given; leave out batch_size.")
    return data


def _raw_batches(
    problem: Problem,
    preprocess: Preprocessor,
    data: tf.data.Dataset,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None,
) -> tf.data.Dataset:
    """Batches of raw examples from (texts, labels) or (texts, labels, weights), batched or not.

    The first batch is read once more, to check it and to learn the shapes of the labels. Later batches are checked when they are
    read; `data_errors` of bert_keras/io/files.py turns their errors into these.
    """
    if y is not None or sample_weight is not None:
        raise BertKerasError("labels were given beside a data set; give a data set of (texts, labels).")
    data = _batches_of_labelled(problem, data, batch_size=batch_size)
    names = [*problem.signature()]

    def on_host(number: Any, *parts: Any) -> dict[str, np.ndarray]:
        values = [part.numpy() for part in parts]
        texts, (y, *weight) = values[: len(names)], values[len(names) :]
        x = dict(zip(names, texts, strict=True)) if len(names) > 1 else texts[0]
        try:
            return raw_columns(problem, preprocess, x, y, *weight)
        except BertKerasError as error:
            raise BertKerasError(f"batch {int(number)} of the data set: {error}") from None

    with data_errors():
        first = next(iter(data.take(1)), None)
    if first is None:
        raise BertKerasError(EMPTY)
    sample = on_host(0, *_named(first[0], names).values(), *first[1:])
    keys = sorted(sample)
    dtypes = [tf.string if sample[key].dtype == object else tf.as_dtype(sample[key].dtype) for key in keys]

    def columns(*parts: Any) -> list[np.ndarray]:
        made = on_host(*parts)
        return [made[key] for key in keys]

    def convert(number: tf.Tensor, element: Any) -> Raw:
        x, *others = element
        made = tf.py_function(columns, [number, *_named(x, names).values(), *others], dtypes)
        return {
            key: tf.ensure_shape(value, [None, *sample[key].shape[1:]])
            for key, value in zip(keys, made, strict=True)
        }

    return data.enumerate().map(convert, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
