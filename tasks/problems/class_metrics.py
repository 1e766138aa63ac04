"""Keras' metrics on the labels and the logits of a text: measures by name, and Keras' own metrics.

In: what a user gives to `compile(metrics=...)`; labels are class ids int [B], or 0 and 1 float [B, C], or scores float [B], and
logits are float [B, C]. Out: metrics that read them. A metric of Keras that reads something else, such as probabilities of one
class, gets that in place of them; one that cannot read them is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_keras.errors import BertKerasError, first_line
from bert_keras.optimization.losses import name_of
from bert_keras.tasks.metrics import SCORES, LabelScore, label_score
from bert_keras.tasks.problems.label_types import measure_of, measures_by_class, unknown_measure, usual_name


@keras.saving.register_keras_serializable("bert_keras")
class LabelMeasure(keras.metrics.Metric):
    """Accuracy, Matthews correlation, or a score of labels (`metrics.label_score`), of all rows since the last reset.

    measure: its name
    labels: the names of the labels, by id
    multi: True for labels of 0 and 1, [B, C], where a logit over 0 predicts a label; False for class ids [B]

    It adds up the weights of rows in each label, so that the result is that of scikit-learn on all rows at once, and no mean of
    batches.
    """

    def __init__(
        self,
        measure: str,
        labels: Sequence[str],
        *,
        multi: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name or measure, dtype=dtype)
        self.measure, self.labels, self.multi = measure, tuple(labels), multi
        self._direction = "up"  # of a callback with mode="auto"
        # Rows that are predicted right, predicted, and labelled, by label; rows with all labels right, and rows.
        self.by_label = self.add_variable((3, len(self.labels)), "zeros", name="by_label")
        self.rows = self.add_variable((2,), "zeros", name="rows")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if self.multi:
            labelled, predicted = ops.cast(y_true, self.dtype), ops.cast(y_pred > 0, self.dtype)
        else:
            ids, count = ops.cast(ops.reshape(y_true, (-1,)), "int32"), len(self.labels)
            labelled = ops.one_hot(ids, count, dtype=self.dtype)
            predicted = ops.one_hot(ops.argmax(y_pred, axis=-1), count, dtype=self.dtype)
        ones = ops.ones((ops.shape(labelled)[0],), self.dtype)
        weights = ones if sample_weight is None else ops.cast(sample_weight, self.dtype)
        weights = ops.reshape(weights, (-1, 1))
        right = ops.cast(ops.all(labelled == predicted, axis=-1, keepdims=True), self.dtype)
        counted = [ops.sum(rows * weights, axis=0) for rows in (labelled * predicted, predicted, labelled)]
        self.by_label.assign_add(ops.stack(counted))
        self.rows.assign_add(ops.concatenate([ops.sum(right * weights, axis=0), ops.sum(weights, axis=0)]))

    def result(self) -> Any:
        by_label, rows = (ops.unstack(ops.convert_to_tensor(one)) for one in (self.by_label, self.rows))
        return _counted(self.measure, self.labels, by_label, rows, multi=self.multi)

    def get_config(self) -> dict[str, Any]:
        kept = {"measure": self.measure, "labels": list(self.labels), "multi": self.multi}
        return super().get_config() | kept


def measures_of_rows(
    measures: Sequence[str], names: Sequence[str], labels: np.ndarray, predicted: np.ndarray, *, multi: bool
) -> Callable[[np.ndarray], dict[str, float]]:
    """A function of rows with repeats, int [M]: their measures, from counts as in LabelMeasure.

    labels, predicted: class ids [N], or 0 and 1 for each label [N, C]
    """
    # There are few pairs of label and prediction: each is counted as often as its rows are drawn.
    pairs, pair = np.unique(np.stack([labels, predicted], axis=1), axis=0, return_inverse=True)
    one, other = (pairs[:, side] if multi else np.eye(len(names))[pairs[:, side]] for side in (0, 1))
    right = (one == other).all(axis=1, keepdims=True)
    parts = np.concatenate([one * other, other, one, right, np.ones_like(right)], axis=1, dtype=np.float64)

    def measure(rows: np.ndarray) -> dict[str, float]:
        counts = np.bincount(pair.ravel()[rows], minlength=len(pairs)) @ parts
        counted = counts[:-2].reshape(3, -1), counts[-2:]
        return {name: float(_counted(name, names, *counted, multi=multi)) for name in measures}

    return measure


def _counted(measure: str, names: Sequence[str], by_label: Any, rows: Any, *, multi: bool) -> Any:
    """A measure from counts: rows that are predicted right, predicted, and labelled, by label; rows all right, and rows."""
    right, predicted, labelled = by_label
    if measure == "accuracy":
        return ops.divide_no_nan(*rows)
    if measure == "matthews":
        return _matthews(rows[0], predicted, labelled, rows[1])
    score = label_score(measure, names, multi=multi)
    assert score is not None  # `keras_metrics` checks the name
    return _scored(score, right, predicted, labelled, multi=multi)


def _matthews(right: Any, predicted: Any, labelled: Any, rows: Any) -> Any:
    """R_K (Gorodkin 2004); 0 where all rows have one label or one prediction."""
    squares = [rows**2 - ops.sum(counts**2) for counts in (predicted, labelled)]
    return ops.divide_no_nan(right * rows - ops.sum(predicted * labelled), ops.sqrt(squares[0] * squares[1]))


def _scored(score: LabelScore, right: Any, predicted: Any, labelled: Any, *, multi: bool) -> Any:
    """A score from the rows of each label: those predicted right, predicted, and labelled."""
    if score.of == "micro":
        right, predicted, labelled = (ops.sum(rows) for rows in (right, predicted, labelled))
    found = {
        "precision": lambda: ops.divide_no_nan(right, predicted),
        "recall": lambda: ops.divide_no_nan(right, labelled),
        "f1": lambda: ops.divide_no_nan(2 * right, predicted + labelled),
    }[score.score]()
    if isinstance(score.of, int):
        return found[score.of]
    if score.of == "micro":
        return found
    there = ops.ones_like(labelled) if multi else ops.cast(predicted + labelled > 0, labelled.dtype)
    weights = labelled if score.of == "weighted" else there
    return ops.divide_no_nan(ops.sum(found * weights), ops.sum(weights))


# -----------------------------------------------------------------------------------------------------------
# Keras' own metrics, each in a form of the labels and logits that it can read

M = keras.metrics
# Of one class against the others: numbers from 0 to 1, or numbers on both sides of 0.
_BINARY = (
    *(M.AUC, M.Precision, M.Recall, M.BinaryAccuracy, M.BinaryCrossentropy),
    *(M.TruePositives, M.TrueNegatives, M.FalsePositives, M.FalseNegatives),
    *(M.SensitivityAtSpecificity, M.SpecificityAtSensitivity, M.PrecisionAtRecall, M.RecallAtPrecision),
)
_ONE_HOT = (M.FBetaScore, M.CategoricalAccuracy, M.TopKCategoricalAccuracy, M.CategoricalCrossentropy)
_SPARSE = (M.SparseCategoricalAccuracy, M.SparseTopKCategoricalAccuracy, M.SparseCategoricalCrossentropy)
_OF_NUMBERS = (
    *(M.MeanSquaredError, M.RootMeanSquaredError, M.MeanAbsoluteError, M.MeanAbsolutePercentageError),
    *(M.MeanSquaredLogarithmicError, M.LogCoshError, M.R2Score, M.CosineSimilarity),
    *(M.PearsonCorrelation, M.ConcordanceCorrelation),
)
# Labels and logits -> what a metric reads.
FORMS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "same": lambda y, logits: (y, logits),
    "probabilities": lambda y, logits: (y, ops.softmax(logits)),
    "one_hot": lambda y, logits: (_one_hot(y, logits), ops.softmax(logits)),
    "one_hot_logits": lambda y, logits: (_one_hot(y, logits), logits),
    "second": lambda y, logits: (_column(y), ops.sigmoid(logits[:, 1:] - logits[:, :1])),
    "second_logits": lambda y, logits: (_column(y), logits[:, 1:] - logits[:, :1]),
    "sets": lambda y, logits: (y, ops.sigmoid(logits)),
    "column": lambda y, logits: (_column(y), logits),
}


def _one_hot(ids: Any, logits: Any) -> Any:
    return ops.one_hot(ops.cast(ops.reshape(ids, (-1,)), "int32"), logits.shape[-1], dtype=logits.dtype)


def _column(values: Any) -> Any:
    return ops.reshape(ops.cast(values, "float32"), (-1, 1))


@keras.saving.register_keras_serializable("bert_keras")
class OnLogits(keras.metrics.Metric):
    """A metric of Keras that gets labels and logits in one of FORMS."""

    def __init__(
        self, metric: keras.metrics.Metric, form: str, *, name: str | None = None, dtype: Any = None
    ) -> None:
        super().__init__(name=name or metric.name, dtype=dtype)
        self.metric, self.form = metric, form
        if hasattr(metric, "_direction"):
            self._direction = metric._direction

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.metric.update_state(*FORMS[self.form](y_true, y_pred), sample_weight=sample_weight)

    def result(self) -> Any:
        return self.metric.result()

    def reset_state(self) -> None:
        self.metric.reset_state()

    def get_config(self) -> dict[str, Any]:
        metric = keras.saving.serialize_keras_object(self.metric)
        return super().get_config() | {"metric": metric, "form": self.form}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "OnLogits":
        return cls(**config | {"metric": keras.saving.deserialize_keras_object(config["metric"])})


def _on_zero(metric: Any) -> bool:
    """True for a metric whose numbers are on both sides of 0: logits."""
    thresholds = getattr(metric, "init_thresholds", getattr(metric, "threshold", None))
    from_logits = getattr(metric, "_from_logits", getattr(metric, "from_logits", False))
    return bool(from_logits) or thresholds in (0, [0])


def _form(metric: Any, label_type: str, count: int) -> str | None:
    """The key of FORMS for a metric of Keras; None where it cannot measure such labels. count: the number of labels."""
    if label_type == "score":
        return "column" if isinstance(metric, _OF_NUMBERS) else None
    if label_type == "multi":
        several = isinstance(metric, M.FBetaScore) and metric.threshold is not None
        if isinstance(metric, _BINARY) or several:
            return "same" if _on_zero(metric) else "sets"
        return None
    if isinstance(metric, _SPARSE):
        wide = isinstance(metric, M.SparseCategoricalCrossentropy) and not _on_zero(metric)
        return "probabilities" if wide else "same"
    if label_type != "class":
        return None
    if isinstance(metric, _ONE_HOT):
        return "one_hot_logits" if _on_zero(metric) else "one_hot"
    if not isinstance(metric, _BINARY):
        return None
    columns = [getattr(metric, name, None) for name in ("class_id", "top_k", "multi_label")]
    if count == 2 and all(value is None or value is False for value in columns):
        return "second_logits" if _on_zero(metric) else "second"
    return None if _on_zero(metric) else "one_hot"


def keras_metrics(
    given: Sequence[Any], labels: Sequence[str], label_type: str, *, counts: bool = True
) -> tuple[list[Any], tuple[str, ...]]:
    """The metrics of a user for Keras, and the names of measures that `evaluate` is to give.

    given: names of measures, names of Keras, Keras' objects, functions
    label_type: a key of LABEL_TYPES; or "tags", for ids [B, S] and logits [B, S, C]
    counts: True if rows are texts, whose labels LabelMeasure counts; False leaves the measures by name to `evaluate`

    Raises BertKerasError for one that cannot read these labels or logits.
    """
    made, names = list[Any](), list[str]()
    for one in given:
        expanded = measures_by_class([one], labels) if isinstance(one, str) else [one]
        for metric in expanded:
            name = usual_name(metric) if isinstance(metric, str) else ""
            if not name or label_type == "tags" or measure_of(name, labels, label_type) is None:
                if name in SCORES:  # of three classes: Keras' own would take a threshold
                    raise _refused(metric, labels, label_type)
                made.append(_metric_of_keras(metric, labels, label_type))
            elif counts:
                multi = label_type == "multi"
                made.append(LabelMeasure(name, labels, multi=multi, name=metric))
            else:
                names.append(name)
    return made, tuple(names)


def _metric_of_keras(given: Any, labels: Sequence[str], label_type: str) -> Any:
    """A metric of Keras, by name or as an object, in a form that it can read; a user's own metric as it is."""
    if label_type == "tags" and isinstance(given, str) and usual_name(given) == "accuracy":
        return M.SparseCategoricalAccuracy(name=given)
    try:
        metric: Any = M.get(given)  # an instance of a class
    except (ValueError, TypeError):  # unknown, or one that needs arguments
        raise _refused(given, labels, label_type) from None
    if not type(metric).__module__.startswith("keras."):
        functions = getattr(metric, "__module__", "").startswith("keras.")
        if functions and label_type != "score" and not metric.__name__.startswith("sparse_"):
            raise _refused(given, labels, label_type)
        return metric
    form = _form(metric, label_type, len(labels))
    if form is None:
        raise _refused(given, labels, label_type)
    name = given if isinstance(given, str) else None
    if label_type != "tags":
        _try(metric, form, given, labels, label_type)
    return OnLogits(metric, form, name=name) if form != "same" or name else metric


def _try(metric: Any, form: str, given: Any, labels: Sequence[str], label_type: str) -> None:
    """Raises BertKerasError if a metric cannot measure two rows: Keras' own error would come from the graph, in `fit`."""
    count = len(labels) or 1
    shape = (2, count) if label_type == "multi" else (2,)
    tried = type(metric).from_config(metric.get_config())
    try:
        OnLogits(tried, form).update_state(ops.zeros(shape), ops.zeros((2, count)), ops.ones((2,)))
    except Exception as error:  # of any kind: Keras checks little
        raise _refused(given, labels, label_type, because=f" ({first_line(error)})") from error


def _refused(given: Any, labels: Sequence[str], label_type: str, *, because: str = "") -> BertKerasError:
    name = f"{name_of(given)}{because}"
    if label_type == "tags":
        return BertKerasError(
            f"metric {name!r} does not fit tags; validation gives f1, precision, recall and accuracy without it, and "
            "keras.metrics.SparseCategoricalAccuracy measures tags."
        )
    return unknown_measure(name, labels, label_type, where="metric")
