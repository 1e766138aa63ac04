"""Raw examples of texts and labels -> batches of features, labels and weights.

In: texts and labels in the forms of text_data.py. Out: what Keras trains on and measures; the weights of classes and of examples
are in the weights.
"""

import functools
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.utils.class_weight import compute_class_weight

from bert_keras.errors import BertKerasError
from bert_keras.features import ALL_ROWS, ENCODER_INPUTS, EXAMPLE_INDEX, WorkerRows
from bert_keras.io.files import data_errors
from bert_keras.model.feature_bilstm import bilstm_of
from bert_keras.optimization.replicas import check_order, chooses_parts, count_workers
from bert_keras.tasks.batches import count, dataset, featurized
from bert_keras.tasks.data.columns import class_resolver, float32_column, list_values
from bert_keras.tasks.data.glue import LABEL
from bert_keras.tasks.devices.strategies import divided, padded_for, rows_for
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.strings import text_data
from bert_keras.tasks.strings.text_data import SAMPLE_WEIGHT, get_batch_size, has_features, raw_columns
from bert_keras.tasks.task import Features, Problem, Raw, checked_inputs, graph_errors, model_inputs
from bert_keras.tasks.training.task_model import start_at_scores
from bert_keras.text.preprocessing import Preprocessor

BALANCED, REGRESSION = "balanced", "regression"
Given = tuple[Any, Any, Any]  # x, y and sample_weight of `fit` or `evaluate`


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
    class_weight: Any = None,
    worker_rows: WorkerRows = ALL_ROWS,
) -> tf.data.Dataset:
    """Batches (features, labels, weights).

    batch_size: examples, or windows of long texts; None means BATCH_SIZE, or a data set's own batches
    seed: of the order of texts in Python; None keeps it, and a data set always keeps its own
    multiple_of: rows; rows of weight 0 pad a batch to a multiple of it
    class_weight: factors of the weights, as `make_class_weights` takes them
    worker_rows: the rows of each batch to make; `multiple_of` makes them divisible

    Raises BertKerasError for data that cannot work.
    """
    rows: Any = {"multiple_of": multiple_of, "worker_rows": worker_rows}
    weighted: Any
    if isinstance(x, tf.data.Dataset):
        raw = text_data.raw_batches(problem, preprocess, x, y, sample_weight, batch_size=batch_size)
        weighted = Weighted(problem, class_weight, lambda: labels_in(raw))
        return featurized(weighted, preprocess, raw, **rows)
    columns = raw_columns(problem, preprocess, x, y, sample_weight)
    weighted = Weighted(problem, class_weight, lambda: columns[LABEL])
    examples, size = tf.data.Dataset.from_tensor_slices({**columns}), get_batch_size(batch_size)
    return _count_known(dataset(weighted, preprocess, examples, batch_size=size, seed=seed, **rows))


def make_batches(model: Any, given: Given, **options: Any) -> Any:
    """Batches of features for Keras; a data set of them stays as it is. model: a TextModel; options: of `text_batches`."""
    x, y, sample_weight = given
    if has_features(x) and not isinstance(x, text_data.DATA_SETS):
        batches = text_data.feature_batches(x, y, sample_weight, **options)
        return make_batches(model, (batches, None, None))
    if has_features(x):
        ignored = {"y": y, "sample_weight": sample_weight, **options, "seed": None}
        if named := [name for name, value in ignored.items() if value is not None]:
            raise BertKerasError(
                f"{named[0]} does not apply to a data set of features; put it into the data set."
            )
        return checked_features(model, x)
    rows = rows_for(model.distribute_strategy, get_batch_size(options["batch_size"]))
    preprocess = padded_for(model.distribute_strategy, model.preprocess)
    return text_batches(model.problem, preprocess, x, y, sample_weight, multiple_of=rows, **options)


def checked_features(model: Any, x: Any) -> Any:
    """Features as Keras takes them, which are checked by `checked_inputs`: arrays now, a data set when it is read."""
    config = model.encoder.config

    def check(features: Mapping[str, Any]) -> Features:
        features = {name: tf.convert_to_tensor(value) for name, value in features.items()}
        for name in ENCODER_INPUTS:
            given = features[name].dtype if name in features else None
            if given is None or not given.is_integer:
                raise BertKerasError(
                    f"{name} is {given.name if given else 'missing'}; give whole numbers, such as int32."
                )
        return checked_inputs(features, config)

    if isinstance(x, tf.data.Dataset):
        alone = not isinstance(x.element_spec, tuple)
        return x.map(lambda features, *rest: check(features) if alone else (check(features), *rest))
    if isinstance(x, Mapping):
        with graph_errors():
            check(x)
    return x  # a data set that was divided among the replicas


def make_training_data(
    model: Any, given: Given, *, validation_split: float, validation_data: Any, **options: Any
) -> tuple[Any, Any]:
    """The batches of `fit`, and x, y and weights of its validation data: given, or split off; None without any.

    Arguments: those of `make_batches` and of `fit`. Warns of texts in Python that are cut.
    """
    # A model that reads features alone may have no vocabulary: `model.preprocess` is read for texts only.
    x, problem = given[0], model.problem
    if validation_split:
        if validation_data is not None:
            raise BertKerasError("validation_split and validation_data were given; give one.")
        given, validation_data = text_data.split_texts(problem, model.preprocess, *given, validation_split)
    if not isinstance(x, tf.data.Dataset) and not has_features(x):
        columns = raw_columns(problem, model.preprocess, *given)
        first = text_data.take_rows(columns, slice(text_data.CUT_SAMPLE))
        if cut := text_data.cut_texts(problem, model.preprocess, first):
            warnings.warn(cut, stacklevel=3)  # of the line that calls `fit`
        given = (columns, None, None)
    if problem.problem_type == REGRESSION and not has_features(x):
        scores = given[0][LABEL] if isinstance(given[0], text_data.Columns) else _first_scores(model, given)
        with model.distribute_strategy.scope():
            start_at_scores(model.network, scores)
    data = _divide_batches(model, given, **options)
    return data, None if validation_data is None else text_data.unpack_validation(validation_data)


def _first_scores(model: Any, given: Given) -> np.ndarray:
    """The scores [N] of the first examples of a data set."""
    raw = text_data.raw_batches(model.problem, model.preprocess, *given, batch_size=None)
    first = raw.map(lambda batch: batch[LABEL]).unbatch().take(text_data.CUT_SAMPLE)
    with data_errors():
        return np.array([*first.as_numpy_iterator()])


def _divide_batches(model: Any, given: Given, **options: Any) -> Any:
    """`make_batches` for `fit`. Of texts, each worker makes its own rows.

    All workers make all rows of a feature-based model, whose vectors are those of all texts, and where a worker has several
    replicas: Keras would count the batches of each replica as steps. A data set may say what each worker reads of it.
    """
    x, strategy = given[0], model.distribute_strategy
    make = functools.partial(make_batches, model, given, **options)
    replicas = strategy.num_replicas_in_sync // Workers(strategy).count
    if has_features(x) or bilstm_of(model.network) is not None or replicas > 1:
        return make()
    if isinstance(x, tf.data.Dataset):
        if chooses_parts(x):
            return make()
        if count_workers(strategy) > 1:
            check_order(x, shuffle=False)
    return divided(strategy, lambda worker_rows: make(worker_rows=worker_rows))


def draw_seed(strategy: tf.distribute.Strategy) -> int:
    """A seed of the order of texts. All workers take the first one's: each trains on its rows of the same batches."""
    return Workers(strategy).values(random.randrange(2**31))[0]


def count_steps(batches: tf.data.Dataset, epochs: int, steps_per_epoch: int | None) -> int:
    """The optimizer steps of a `fit`. Raises BertKerasError where they are not known."""
    known = text_data.count_batches(batches)
    epoch = min(steps_per_epoch or known or 0, known or steps_per_epoch or 0)
    if not epoch:
        raise BertKerasError(
            "the number of steps is not known, which BERT's schedule needs: give steps_per_epoch, apply "
            "tf.data.experimental.assert_cardinality to the data set, or compile with another optimizer."
        )
    if not known:
        return epoch * epochs
    # Keras goes on in the data where an epoch ended, and the last epoch of a pass is shorter.
    passes, rest = divmod(epochs, -(-known // epoch))
    return passes * known + rest * epoch


def _count_known(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of a known number. Those of windows are counted by tokenizing once more, which is cheap beside the network."""
    if text_data.count_batches(batches) is not None:
        return batches
    return batches.apply(tf.data.experimental.assert_cardinality(count(batches)))


def one_batch(model: Any, given: Given, *, class_weight: Any = None) -> Given:
    """(features, labels, weights) of texts in Python, all in one batch. Raises as `text_batches`."""
    columns = {**raw_columns(model.problem, model.preprocess, *given)}
    weighted: Any = Weighted(model.problem, class_weight, lambda: columns[LABEL])
    return next(iter(featurized(weighted, model.preprocess, tf.data.Dataset.from_tensors(columns))))


def text_features(problem: Problem, preprocess: Preprocessor, x: Any) -> Features:
    """The inputs of the network for texts in Python, or for string tensors, all in one batch."""
    texts = keras.tree.flatten(x)
    tensors = bool(texts) and all(map(tf.is_tensor, texts))
    raw = text_data.name_texts(x, [*problem.signature()]) if tensors else problem.given(x)
    raw = {name: tf.convert_to_tensor(text) for name, text in raw.items()}
    return model_inputs(problem, problem.features(preprocess, raw))


def evaluation_data(
    model: Any, given: Given, *, batch_size: int | None, steps: int | None = None
) -> tuple[tf.data.Dataset, tf.data.Dataset | None]:
    """The data of an evaluation of texts and labels: batches (features, labels, weights), and the same examples, raw.

    The examples are for the problem's own measures: None where it has Keras metrics.
    steps: batches to take, a data set's own or of `batch_size` texts; None takes all

    Raises as `text_batches`, and for weights where the problem has measures of its own, which count every text alike.
    """
    x, size = given[0], get_batch_size(batch_size)
    problem, strategy = model.problem, model.distribute_strategy
    preprocess, rows = padded_for(strategy, model.preprocess), rows_for(strategy, size)
    weighted: Any = Weighted(problem)
    if isinstance(x, tf.data.Dataset):
        raw = text_data.raw_batches(problem, preprocess, *given, batch_size=batch_size)
        raw = raw.take(text_data.count_rows(steps, 1))
        if steps is None:
            text_data.check_finite(raw)
        batches, examples = featurized(weighted, preprocess, raw, multiple_of=rows), raw.unbatch()
    else:
        columns = raw_columns(problem, preprocess, *given)
        taken = text_data.take_rows(columns, slice(None if steps is None else steps * size))
        examples = tf.data.Dataset.from_tensor_slices({**taken})
        batches = _count_known(dataset(weighted, preprocess, examples, batch_size=size, multiple_of=rows))
    if problem.metrics():
        return batches, None
    if SAMPLE_WEIGHT in examples.element_spec:
        raise BertKerasError(
            f"the measures of {problem.name} count every text alike, so sample_weight does not apply to its evaluation or "
            "validation; leave the weights out (for validation, give validation_data without weights)."
        )
    return batches, examples


def make_evaluation(
    model: Any, given: Given, *, batch_size: int | None, steps: int | None
) -> tuple[Any, Callable[[], dict[str, float]] | None, int | None]:
    """Batches for Keras, the problem's own measures where it has some, and Keras' steps. Arguments as in `evaluation_data`."""
    if has_features(given[0]):
        return make_batches(model, given, batch_size=batch_size), None, steps
    batches, examples = evaluation_data(model, given, batch_size=batch_size, steps=steps)

    def measure() -> dict[str, float]:
        problem = model.problem.measuring(*model._measured) if model._measured else model.problem
        return dict(problem.evaluate(*model._predict_examples(examples, batch_size=batch_size)))

    return batches, None if examples is None else measure, None


class Weighted:
    """A problem whose weights are multiplied by the weights of the examples and of their classes.

    class_weight, labels: as in `make_class_weights`
    """

    def __init__(
        self, problem: Problem, class_weight: Any = None, labels: Callable[[], np.ndarray] | None = None
    ) -> None:
        self._problem, self._class_weights = problem, make_class_weights(problem, class_weight, labels)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        labels, weights = self._problem.labels(raw, features)
        if self._class_weights is not None:
            weights *= tf.gather(self._class_weights, labels)
        if SAMPLE_WEIGHT in raw:
            given = raw[SAMPLE_WEIGHT]
            given = tf.gather(given, features[EXAMPLE_INDEX]) if self._problem.windowed else given
            weights *= tf.reshape(given, [-1] + [1] * (len(weights.shape) - 1))
        return labels, weights


def labels_in(examples: tf.data.Dataset) -> np.ndarray:
    """The class ids or scores of raw examples, or of batches of them, [N], from their column "label".

    Raises BertKerasError for an endless data set, and for one without the column.
    """
    text_data.check_finite(examples)
    if LABEL not in examples.element_spec:
        raise BertKerasError(
            f"class_weight {BALANCED!r} counts the column {LABEL!r}, and the examples have "
            f"{', '.join(examples.element_spec)}; give the weights by class."
        )
    labels = examples.map(lambda raw: tf.reshape(raw[LABEL], [-1])).rebatch(1024)
    with data_errors():
        return np.concatenate([np.zeros(0, np.int32), *labels.as_numpy_iterator()])


def make_class_weights(
    problem: Problem, given: Any, labels: Callable[[], np.ndarray] | None = None
) -> tf.Tensor | None:
    """The weight of each class [C], 1 where none is given; None for None.

    given: a dict of names or ids of classes, a list in the order of ids, or BALANCED
    labels: gives the class ids of the training, which BALANCED counts

    Raises BertKerasError where the problem has no classes, and for weights that do not fit them.
    """
    if given is None:
        return None
    names = problem.classes
    if not names:
        raise BertKerasError(
            f"class_weight applies to texts with one class each, which the attribute `classes` of a task names in the order of "
            f"their ids, and {problem.name} has none; weight its examples."
        )
    if isinstance(given, str | bytes):
        if given != BALANCED or labels is None:
            raise BertKerasError(
                f"class_weight is {given!r}; give {BALANCED!r}, a dict or a list of weights."
            )
        return tf.constant(_balanced(labels(), len(names)))
    if not isinstance(given, Mapping):
        listed = list_values(given)
        if len(listed) != len(names):
            raise BertKerasError(
                f"class_weight has {len(listed)} weights; give one for each of {', '.join(names)}, in this order."
            )
        return tf.constant(float32_column(listed, least=0, where="class_weight"))
    weights = np.ones(len(names), np.float32)
    known = float32_column([*given.values()], least=0, where="class_weight")
    resolve, seen = class_resolver(names), dict[int, Any]()
    for label, weight in zip(given, known, strict=True):
        if (found := resolve(label)) is None:
            raise BertKerasError(f"class_weight names {label!r}; the labels are {', '.join(names)}.")
        if found in seen:
            raise BertKerasError(
                f"class_weight has {seen[found]!r} and {label!r}, which are one class; give {names[found]!r} once."
            )
        seen[found], weights[found] = label, weight
    return tf.constant(weights)


def _balanced(ids: np.ndarray, count: int) -> np.ndarray:
    """n / (classes * n of the class), float32 [C]; 1 for a class without labels, and for withheld labels nothing is counted."""
    ids = ids[ids >= 0]
    there = np.unique(ids)
    weights = np.ones(count, np.float32)
    weights[there] = compute_class_weight("balanced", classes=there, y=ids)
    return weights
