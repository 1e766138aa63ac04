"""The types of labels of a text: one class, a score, or any number of labels.

In: raw labels [B], which are class ids int32, scores float32, or 0 and 1 for each label, float32 [B, C]. Out: a row of
LABEL_TYPES for each type, and its measures by name.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.optimization.losses import binary_cross_entropy, cross_entropy, squared_error
from bert_keras.tasks import metrics
from bert_keras.tasks.data.columns import class_ids, label_sets, scores
from bert_keras.tasks.data.glue import LABEL
from bert_keras.tasks.metrics import BY_CLASS, MEASURES, SCORES
from bert_keras.tasks.problems import class_report
from bert_keras.tasks.report import Arrays, Table
from bert_keras.tasks.task import PROBABILITIES

LABELS, SCORE = "labels", "score"
Names = Sequence[str]


class LabelType(NamedTuple):
    """One type of labels.

    loss: labels and logits -> one loss for each text, or for each label of a text
    decode: logits [B, C] and the names of the labels -> the served tensors
    targets: labels in Python and the names of the labels -> raw labels [N]
    predicted: served arrays and the names of the labels -> the values that measures compare with raw labels
    problem_type: the name in Hugging Face's config.json
    measures: the measures of a problem that names none
    plain: names in MEASURES that apply to the type; `measure_of` has the scores of labels too
    least: the smallest number of labels
    answers: the meaning of the numbers that it predicts
    views: names of the labels, raw labels and predictions of labelled texts -> further tables of a report page
    judge: the same and the served arrays of these texts -> the fields of `Judged` beside rows and texts
    """

    loss: Callable[[Any, Any], Any]
    decode: Callable[[tf.Tensor, Names], dict[str, tf.Tensor]]
    targets: Callable[[Any, Names], np.ndarray]
    predicted: Callable[[Mapping[str, np.ndarray], Names], np.ndarray]
    problem_type: str
    measures: tuple[str, ...]
    plain: tuple[str, ...]
    least: int
    answers: str
    views: Callable[[Names, np.ndarray, np.ndarray], Iterator[Table]]
    judge: Callable[[Names, np.ndarray, np.ndarray, Arrays], dict[str, Any]]


def _decode_class(logits: tf.Tensor, names: Names) -> dict[str, tf.Tensor]:
    """Logits [B, C] -> "label" string [B] and "probabilities" float32 [B, C]."""
    label = tf.gather(tf.constant(names), tf.argmax(logits, axis=-1))
    return {LABEL: label, PROBABILITIES: tf.nn.softmax(logits)}


def _decode_set(logits: tf.Tensor, names: Names) -> dict[str, tf.Tensor]:
    """Logits [B, C] -> "labels" string [B, C], "" where a label is not predicted, and "probabilities" float32 [B, C]."""
    return {LABELS: tf.where(logits > 0, tf.constant(names), ""), PROBABILITIES: tf.sigmoid(logits)}


def _find_ids(predictions: Mapping[str, np.ndarray], names: Names) -> np.ndarray:
    ids = {name.encode(): i for i, name in enumerate(names)}
    return np.array([ids[label] for label in predictions[LABEL]])


LABEL_TYPES = {
    "class": LabelType(
        loss=cross_entropy,
        decode=_decode_class,
        targets=class_ids,
        predicted=_find_ids,
        problem_type="single_label_classification",
        measures=("accuracy",),
        plain=("accuracy", "matthews"),
        least=2,
        answers="probabilities by a softmax",
        views=class_report.confused_pairs,
        judge=class_report.judge_classes,
    ),
    "score": LabelType(
        loss=squared_error,
        decode=lambda logits, names: {SCORE: logits[:, 0]},  # float32 [B]
        targets=lambda y, names: scores(y),
        predicted=lambda predictions, names: predictions[SCORE],
        problem_type="regression",
        measures=("spearman", "pearson"),
        plain=("spearman", "pearson"),
        least=0,
        answers="the raw score of one output",
        views=class_report.scatter,
        judge=class_report.judge_scores,
    ),
    "multi": LabelType(
        loss=binary_cross_entropy,
        decode=_decode_set,
        targets=label_sets,
        predicted=lambda predictions, names: (predictions[LABELS] != b"").astype(np.float32),
        problem_type="multi_label_classification",
        measures=("f1",),
        plain=("accuracy",),
        least=1,
        answers="a probability for each label by a sigmoid",
        views=class_report.cooccurrence,
        judge=class_report.judge_sets,
    ),
}


# -----------------------------------------------------------------------------------------------------------
# Measures by name

ALIASES = {"acc": "accuracy", "mcc": "matthews", "f1_score": "f1"}  # other names that people give


def usual_name(name: str) -> str:
    """Our name of a measure: "F1Score" and "f1_score" are "f1"."""
    lower = name.lower().replace("f1score", "f1")
    return ALIASES.get(lower, lower if lower in (*SCORES, *MEASURES) else name)


def measure_of(name: str, labels: Names, label_type: str) -> Callable[[np.ndarray, np.ndarray], float] | None:
    """The measure of that name, a function of raw labels and predictions [N] or [N, C]; None if the type has none.

    name: in `LabelType.plain`, or a score of labels (`metrics.label_score`)
    """
    multi = label_type == "multi"
    if name in LABEL_TYPES[label_type].plain or (name == "f1" and len(labels) == 2 and not multi):
        return MEASURES[name]
    score = None if label_type == "score" else metrics.label_score(name, labels, multi=multi)
    return None if score is None else functools.partial(metrics.score_labels, score)


def measures_by_class(names: Iterable[str], labels: Names) -> list[str]:
    """The names of measures, with a measure of each label in the place of "f1_by_class"."""
    found = list[str]()
    for name in names:
        score = name.removesuffix(BY_CLASS)
        several = score != name and score in SCORES
        found += [f"{score}_{label}" for label in labels] if several else [name]
    return found


def unknown_measure(name: Any, labels: Names, label_type: str, *, where: str = "measure") -> BertKerasError:
    """The error about a name that `measure_of` does not know."""
    known = ", ".join(LABEL_TYPES[label_type].plain)
    if label_type != "score":
        alone = ", alone or with" if label_type == "multi" or len(labels) == 2 else " with"
        known += f", and {', '.join(SCORES)}{alone} _macro, _micro, _weighted, {BY_CLASS} or _ and a label"
    return BertKerasError(f"{where} {name!r} does not fit these labels; give one of {known}.")
