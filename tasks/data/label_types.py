"""The three types of labels of a text: one class, a score, or any number of labels. One row for each type.

The labels of raw examples [B] are class ids int32, scores float32, or 0 and 1 for each label, float32 [B, C]; -1 is withheld.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras.optimization.losses import binary_cross_entropy, cross_entropy, squared_error
from bert_keras.tasks.data.columns import class_ids, label_sets, scores

LABEL, LABELS, SCORE, PROBABILITIES = "label", "labels", "score", "probabilities"
Names = Sequence[str]


class LabelType(NamedTuple):
    """One type of labels.

    loss: labels and logits -> one loss for each text, or for each label of a text
    decode: logits [B, C] and the names of the labels -> the served tensors
    targets: labels in Python and the names of the labels -> raw labels [N]
    predicted: served arrays and the names of the labels -> the values that measures compare with raw labels
    problem_type: the name in Hugging Face's config.json
    measures: names in MEASURES, for a model without a row of GLUE
    metrics: makes the Keras metrics that `compile()` takes by default
    """

    loss: Callable[[Any, Any], Any]
    decode: Callable[[tf.Tensor, Names], dict[str, tf.Tensor]]
    targets: Callable[[Any, Names], np.ndarray]
    predicted: Callable[[Mapping[str, np.ndarray], Names], np.ndarray]
    problem_type: str
    measures: tuple[str, ...]
    metrics: Callable[[], list[keras.metrics.Metric]] = list


def _decode_class(logits: tf.Tensor, names: Names) -> dict[str, tf.Tensor]:
    """Logits [B, C] -> "label" string [B] and "probabilities" float32 [B, C]."""
    label = tf.gather(tf.constant(names), tf.argmax(logits, axis=-1))
    return {LABEL: label, PROBABILITIES: tf.nn.softmax(logits)}


def _decode_set(logits: tf.Tensor, names: Names) -> dict[str, tf.Tensor]:
    """Logits [B, C] -> "labels" string [B, C], "" where a label is not predicted, and "probabilities" float32 [B, C]."""
    return {LABELS: tf.where(logits > 0, tf.constant(names), ""), PROBABILITIES: tf.sigmoid(logits)}


def _ids_of(predictions: Mapping[str, np.ndarray], names: Names) -> np.ndarray:
    ids = {name.encode(): i for i, name in enumerate(names)}
    return np.array([ids[label] for label in predictions[LABEL]])


LABEL_TYPES = {
    "class": LabelType(
        loss=cross_entropy,
        decode=_decode_class,
        targets=class_ids,
        predicted=_ids_of,
        problem_type="single_label_classification",
        measures=("accuracy",),
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    ),
    "score": LabelType(
        loss=squared_error,
        decode=lambda logits, names: {SCORE: logits[:, 0]},
        targets=lambda y, names: scores(y),
        predicted=lambda predictions, names: predictions[SCORE],
        problem_type="regression",
        measures=("spearman", "pearson"),
    ),
    "multi": LabelType(
        loss=binary_cross_entropy,
        decode=_decode_set,
        targets=label_sets,
        predicted=lambda predictions, names: (predictions[LABELS] != b"").astype(np.float32),
        problem_type="multi_label_classification",
        measures=("f1",),
    ),
}
