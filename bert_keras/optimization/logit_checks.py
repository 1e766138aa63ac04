"""Warnings of losses and metrics that read the logits of our heads as probabilities."""

import inspect
import warnings
from typing import Any

import keras

from bert_keras.model.heads import gives_logits

# Names of Keras' metrics that read numbers from 0 to 1.
_OF_PROBABILITIES = (
    "auc",
    "precision",
    "recall",
    "binary_accuracy",
    "binary_crossentropy",
    "categorical_crossentropy",
    "sparse_categorical_crossentropy",
)


def warn_of_probabilities(model: Any, metrics: Any) -> None:
    """Warns of a compiled model's loss, and of metrics, that take probabilities where its outputs are logits.

    metrics: any structure of Keras' metrics, as objects or by name
    """
    # Only a functional model knows the layers of its outputs.
    outputs = getattr(getattr(model, "network", model), "outputs", None) or ()
    heads = ", ".join(head for head in map(gives_logits, outputs) if head)
    if not heads:
        return
    for loss in filter(_takes_probabilities, keras.tree.flatten(model.loss)):
        warnings.warn(
            f"{heads} gives logits and the loss {_name_of(loss)} takes probabilities; compile with from_logits=True, as in "
            "keras.losses.SparseCategoricalCrossentropy(from_logits=True).",
            stacklevel=3,
        )
    for metric in filter(_measures_probabilities, keras.tree.flatten(metrics)):
        warnings.warn(
            f"{heads} gives logits and the metric {_name_of(metric)} takes probabilities; compile with "
            "keras.metrics.AUC(from_logits=True), BinaryAccuracy(threshold=0), Precision(thresholds=0) or the like.",
            stacklevel=3,
        )


def _name_of(given: Any) -> Any:
    return getattr(given, "name", None) or getattr(given, "__name__", given)


def _takes_probabilities(loss: Any) -> bool:
    """True for a loss of Keras with from_logits=False, by name, as a function or as an object."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", None) is False
    if not callable(loss):
        return False
    given = inspect.signature(loss).parameters.get("from_logits")
    return given is not None and given.default is False


def _measures_probabilities(metric: Any) -> bool:
    """True for a metric of Keras that reads numbers from 0 to 1, by name or as an object."""
    if isinstance(metric, str):
        return metric.lower() in _OF_PROBABILITIES
    if isinstance(metric, keras.metrics.AUC):
        return not metric._from_logits
    if isinstance(metric, keras.metrics.Precision | keras.metrics.Recall):
        return metric.init_thresholds is None and metric.top_k is None
    if isinstance(metric, keras.metrics.BinaryAccuracy):
        return metric.threshold == 0.5
    return getattr(metric, "from_logits", None) is False
