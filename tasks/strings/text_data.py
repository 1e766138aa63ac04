"""Texts and labels as `fit` takes them -> raw examples.

In: lists, arrays and data frames (tasks/data/columns.py), or a tf.data.Dataset of (texts, labels) or (texts, labels, weights).
Out: columns [N] of texts, labels and weights, or a data set of them in batches.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, first_names
from bert_keras.features import INPUT_WORD_IDS, RENAMED, check_names
from bert_keras.fields import checked_value
from bert_keras.io.files import data_errors
from bert_keras.tasks.batches import EMPTY, Examples
from bert_keras.tasks.data.columns import float32_column, list_values
from bert_keras.tasks.data.glue import LABEL
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.task import Problem, Raw
from bert_keras.text.preprocessing import Preprocessor

SAMPLE_WEIGHT = "sample_weight"
BATCH_SIZE = Hparams.batch_size
DATA_SETS = (tf.data.Dataset, tf.distribute.DistributedDataset)  # the latter only of features
MANY = 20  # texts whose classes are in blocks because somebody sorted them
CUT_SAMPLE = 1_000  # examples that are looked at for texts that are cut


def get_batch_size(batch_size: int | None) -> int:
    """The size of a batch of texts: BATCH_SIZE for None. Raises BertKerasError unless it is None or at least 1."""
    return BATCH_SIZE if batch_size is None else checked_value(Hparams, "batch_size", batch_size)


def has_features(x: Any) -> bool:
    """True for features of the encoder, or a data set of them, in place of texts."""
    inputs = _inputs(x) if isinstance(x, DATA_SETS) else x
    if not isinstance(inputs, Mapping):
        return False
    if any(name in RENAMED for name in inputs):
        check_names(inputs)
    return INPUT_WORD_IDS in inputs


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


def _inputs(data: tf.data.Dataset) -> Any:
    spec = data.element_spec
    return spec[0] if isinstance(spec, tuple) else spec


def unpack_validation(data: Any) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight) of validation data as Keras takes it; a tf.data.Dataset is x."""
    if isinstance(data, tf.data.Dataset):
        return data, None, None
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise BertKerasError(
            "validation_data takes (texts, labels), (texts, labels, weights) or a tf.data.Dataset."
        )
    return (*data, None) if len(data) == 2 else (data[0], data[1], data[2])


# -----------------------------------------------------------------------------------------------------------
# Texts in Python


class Columns(dict[str, np.ndarray]):
    """Raw columns [N] in place of texts and labels."""


def raw_columns(
    problem: Problem, preprocess: Preprocessor, x: Any, y: Any = None, sample_weight: Any = None
) -> Columns:
    """The columns of raw examples [N] for texts, labels and weights in Python. Raises BertKerasError."""
    if isinstance(x, Columns):
        return x
    _refuse_distributed(x)
    if isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__"):
        raise BertKerasError(
            f"{type(x).__name__} is not supported for texts; give lists, arrays, a data frame or a tf.data.Dataset."
        )
    columns, added = problem.labelled(x, y), dict[str, np.ndarray]()
    if sample_weight is not None:
        added[SAMPLE_WEIGHT] = float32_column(
            list_values(sample_weight), least=0, where="sample_weight, row {}"
        )
    columns |= added
    count = len(next(iter(columns.values())))
    for name, column in columns.items():
        if len(column) != count:
            raise BertKerasError(
                f"there are {count} texts and {len(column)} of {name}; give one for each text."
            )
    problem.check_targets(preprocess, columns)
    return Columns(columns)


def _refuse_distributed(x: Any) -> None:
    if isinstance(x, tf.distribute.DistributedDataset):
        raise BertKerasError(
            "a distributed data set of texts was given; give the tf.data.Dataset itself: the model tokenizes it and divides its "
            "batches among the replicas."
        )


def cut_texts(problem: Problem, preprocess: Preprocessor, raw: Mapping[str, Any]) -> str:
    """A line, if some of the first raw examples do not fit into seq_length tokens and are cut; else nothing.

    raw: columns [N] of at most CUT_SAMPLE examples, tensors or arrays
    """
    texts = [tf.convert_to_tensor(raw[name]) for name in problem.signature() if name in raw]
    if not texts or problem.windowed:
        return ""
    tokens = sum(_count_tokens(preprocess, text) for text in texts)
    lengths = tokens.numpy() + preprocess.tokenizer.pair.added(len(texts))
    if not (cut := int((lengths > preprocess.seq_length).sum())):
        return ""
    windows = ""
    if "doc_stride" in getattr(problem, "options", ()):
        windows = ", give doc_stride to read them in windows"
        if len(texts) == 1 and getattr(problem, "truncation", None) is None:
            windows += ", or give truncation to keep their ends"
    return (
        f"{cut:,} of the first {len(lengths):,} examples are longer than {preprocess.seq_length} tokens (up to "
        f"{lengths.max():,}) and are cut; give a greater seq_length{windows}"
    )


def _count_tokens(preprocess: Preprocessor, texts: tf.Tensor) -> tf.Tensor:
    """The tokens of each text [N]; of the longest of several [N, K]."""
    tokens = preprocess.tokenizer.tokenize(tf.reshape(texts, [-1])).row_lengths()
    return tf.reduce_max(tf.reshape(tokens, [len(texts), -1]), axis=1)


def take_rows(columns: Mapping[str, np.ndarray], chosen: slice) -> Columns:
    """Some rows of raw columns."""
    return Columns({name: column[chosen] for name, column in columns.items()})


def split_texts(
    problem: Problem, preprocess: Preprocessor, x: Any, y: Any, sample_weight: Any, fraction: float
) -> tuple[Any, ...]:
    """The first examples and the last `fraction` of them, each (x, y, sample_weight), as Keras' validation_split."""
    if isinstance(x, tf.data.Dataset) or has_features(x):
        raise BertKerasError("validation_split applies to lists and arrays of texts; give validation_data.")
    columns = raw_columns(problem, preprocess, x, y, sample_weight)
    count = len(next(iter(columns.values())))
    first = int(count * (1 - fraction))
    if not 0 < first < count:
        raise BertKerasError(f"validation_split {fraction} leaves no texts on one side of {count}.")

    sides = (take_rows(columns, slice(first)), take_rows(columns, slice(first, None)))
    if why := _find_order(problem, *(side.get(LABEL) for side in sides)):
        warnings.warn(
            f"validation_split takes the last {count - first:,} of {count:,} texts, and {why}; if the texts are sorted, shuffle "
            "texts and labels before fit, or give validation_data",
            stacklevel=4,
        )
    return tuple((side, None, None) for side in sides)


def _find_order(problem: Problem, first: np.ndarray | None, last: np.ndarray | None) -> str:
    """A sign of sorted labels: the last ones lie apart from the first, or all of them are in blocks; else ""."""
    if first is None or last is None or first.ndim > 1:
        return ""
    if not problem.classes:
        apart = (
            first.dtype.kind == "f"
            and len(last) > 1
            and (last.min() > first.max() or last.max() < first.min())
        )
        return "their scores are all above or all below the others" if apart else ""
    if new := sorted({*last.tolist()} - {*first.tolist()}):
        return f"the others have no label {first_names(problem.classes[label] for label in new)}"
    every = np.concatenate([first, last])
    blocks = 1 + np.count_nonzero(np.diff(every))
    if len(every) >= MANY and 1 < blocks == len(np.unique(every)):
        return f"each label's texts stand together, {problem.classes[int(last[-1])]} at the end"
    return ""


# -----------------------------------------------------------------------------------------------------------
# Data sets


def count_batches(data: Any) -> int | None:
    """The number of batches of one of DATA_SETS; None where it is unknown or endless."""
    known = int(data.cardinality() if callable(data.cardinality) else data.cardinality)
    return known if known >= 0 else None


def feature_batches(
    x: Mapping[str, Any],
    y: Any,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    seed: int | None = None,
    class_weight: Any = None,
) -> tf.data.Dataset:
    """Batches (features, labels) or (features, labels, weights) of arrays [N, ...]; the labels are those of the loss.

    seed: of the order; None keeps it

    Raises BertKerasError for missing labels, for labels that are no numbers, for arrays of unequal lengths, and for class_weight.
    """
    if y is None or class_weight is not None:
        wrong = "features were given without labels" if y is None else "class_weight applies to texts"
        raise BertKerasError(f"{wrong}; give features with labels (y) and, if you like, sample_weight.")
    arrays = {**x, "labels": y} | ({} if sample_weight is None else {SAMPLE_WEIGHT: sample_weight})
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    if arrays["labels"].dtype.kind not in "biuf":
        raise BertKerasError("labels beside features are no numbers; give ids of classes, or scores.")
    if len({len(array) for array in arrays.values()}) > 1:
        listed = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise BertKerasError(f"the arrays have unequal lengths ({listed}); give one row for each text.")
    features = {name: arrays.pop(name) for name in x}
    data = tf.data.Dataset.from_tensor_slices((features, *arrays.values()))
    data = data if seed is None else data.shuffle(len(data), seed=seed)
    return data.batch(get_batch_size(batch_size))


def text_examples(problem: Problem, x: Any, *, steps: int | None, batch_size: int) -> Examples:
    """Raw examples without labels, in order. x: texts in Python, or a data set of texts or of (texts, labels).

    steps: batches to take, a data set's own or of `batch_size`; None takes all
    """
    _refuse_distributed(x)
    names = [*problem.signature()]
    if not isinstance(x, tf.data.Dataset):
        return take_rows(problem.given(x), slice(None if steps is None else steps * batch_size))
    if steps is None:
        check_finite(x)
    spec = x.element_spec
    # A tuple of strings may be a pair of texts without a label.
    labelled = isinstance(spec, tuple) and (
        isinstance(spec[0], Mapping | tuple) or len(names) == 1 or len(spec) != len(names)
    )
    name_texts(spec[0] if labelled else spec, names)  # TensorFlow would hide its error in a traceback
    texts = x.map(lambda *parts: name_texts(parts[0] if labelled or len(parts) == 1 else parts, names))
    if _is_batched(x):
        return texts.take(count_rows(steps, 1)).unbatch()
    return texts.take(count_rows(steps, batch_size))


def count_rows(steps: int | None, size: int) -> int:
    """The elements in a number of batches, for `take`; -1, which is all of them, for None."""
    return -1 if steps is None else steps * size


def raw_batches(
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
    data = _batch_labelled(problem, data, batch_size=batch_size)
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
    sample = on_host(0, *name_texts(first[0], names).values(), *first[1:])
    keys = sorted({*sample} - {*names})  # the texts stay in the graph
    dtypes = [tf.string if sample[key].dtype == object else tf.as_dtype(sample[key].dtype) for key in keys]

    def labels_on_host(*parts: Any) -> list[np.ndarray]:
        made = on_host(*parts)
        return [made[key] for key in keys]

    def convert(number: tf.Tensor, element: Any) -> Raw:
        texts = name_texts(element[0], names)
        made = tf.py_function(labels_on_host, [number, *texts.values(), *element[1:]], dtypes)
        labels = zip(keys, made, strict=True)
        return texts | {key: tf.ensure_shape(value, [None, *sample[key].shape[1:]]) for key, value in labels}

    return data.enumerate().map(convert, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _batch_labelled(problem: Problem, data: tf.data.Dataset, *, batch_size: int | None) -> tf.data.Dataset:
    """The data set in batches. Raises BertKerasError where its specification has no labels, or other texts than the problem's."""
    spec = data.element_spec
    if problem.joins_texts:
        raise BertKerasError(
            f"{problem.name} learns from texts in lists, arrays or a data frame, not in a tf.data.Dataset."
        )
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise BertKerasError(
            "the data set has no labels; give elements (texts, labels) or (texts, labels, weights)."
        )
    if isinstance(spec[1], Mapping | tf.RaggedTensorSpec):
        raise BertKerasError(f"{problem.name} takes its labels in lists or arrays, not in a tf.data.Dataset.")
    name_texts(spec[0], [*problem.signature()])
    if not _is_batched(data):
        return data.batch(get_batch_size(batch_size))
    if batch_size is not None:
        raise BertKerasError("the data set is batched and batch_size was given; leave out batch_size.")
    return data


def check_finite(data: tf.data.Dataset) -> None:
    """Raises BertKerasError for an endless data set."""
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise BertKerasError("the data set is endless; give the number of batches to read as steps.")


def _is_batched(data: tf.data.Dataset) -> bool:
    specs = tf.nest.flatten(_inputs(data))
    if any(spec.shape.rank is None for spec in specs):
        raise BertKerasError(
            "the shapes of the data set's texts are unknown; give its generator an output_signature with shapes."
        )
    return min(len(spec.shape) for spec in specs) > 0


def name_texts(x: Any, names: Sequence[str]) -> dict[str, tf.Tensor]:
    """The texts of an element by name: a dict, a tuple in the order of the names, or the one text.

    x: tensors or their specifications. Raises BertKerasError for a missing text, another number of texts, and numbers.
    """
    if isinstance(x, Mapping):
        if missing := [name for name in names if name not in x]:
            raise BertKerasError(
                f"the data set has {', '.join(x)}; the model also reads {', '.join(missing)}."
            )
        x = tuple(x[name] for name in names)
    parts = x if isinstance(x, tuple) else (x,)
    if len(parts) != len(names):
        raise BertKerasError(
            f"the data set has {len(parts)} texts an example; the model reads {', '.join(names)}."
        )
    for name, text in zip(names, parts, strict=True):
        if text.dtype != tf.string:
            raise BertKerasError(f"the data set's {name} is {text.dtype.name}; give strings.")
    return dict(zip(names, parts, strict=True))
