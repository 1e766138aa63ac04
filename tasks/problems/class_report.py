"""The report of a text classification: the tables of each type of labels, and the texts beside their labels.

In: the labelled texts as raw labels and predictions, as LABEL_TYPES has them. Out: `Table`s and the parts of `Judged`.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import sklearn.metrics

from bert_keras.tasks.metrics import AVERAGES, SCORES
from bert_keras.tasks.report import Arrays, Table
from bert_keras.tasks.task import PROBABILITIES

MATRIX = 15  # labels that a matrix can show; of more, those with most errors, and the others as one
POINTS = 1_000  # of a scatter plot
CHARTED = 30  # labels that a chart of scores can show
OTHERS = "(others)"
NONE = "(no label)"

Measure = Callable[[str, np.ndarray, np.ndarray], float]


def by_label(names: Sequence[str], labels: np.ndarray, predicted: np.ndarray, measure: Measure) -> Table:
    """Precision, recall and F1 of each label, with its texts, and their averages."""
    counts = labels.sum(axis=0) if labels.ndim > 1 else np.bincount(labels, minlength=len(names))
    texts = dict(zip(names, counts.astype(int).tolist(), strict=True))
    rows = [
        (of, *(measure(f"{score}_{of}", labels, predicted) for score in SCORES), texts.get(of, ""))
        for of in (*(name for name in names if name not in AVERAGES), *AVERAGES)
    ]
    about = (
        "Precision is the share of a label's predictions that are right, recall the share of its texts that are found, and F1 "
        "joins both. A macro average counts each label alike, a weighted one each text."
    )
    chart = "dots" if len(names) <= CHARTED else ""
    return Table("labels and averages", ("label", *SCORES, "texts"), rows, chart, about)


def confusions(names: Sequence[str], gold: np.ndarray, chosen: np.ndarray) -> Table:
    """The confusion matrix; of many labels, those with most errors, and the others as one."""
    about = "A row has the texts with that label, a column those that the model gave that label: right ones are on the diagonal."
    if len(names) > MATRIX:
        wrong = np.bincount(np.append(gold, chosen)[np.tile(gold != chosen, 2)], minlength=len(names))
        worst = np.sort(np.argsort(-wrong, kind="stable")[: MATRIX - 1])
        place = np.full(len(names), MATRIX - 1)
        place[worst] = np.arange(MATRIX - 1)
        gold, chosen = place[gold], place[chosen]
        about += f" These are the {MATRIX - 1} labels with most errors, and the other {len(names) - MATRIX + 1} as one."
        names = [*(names[i] for i in worst), OTHERS]
    matrix = sklearn.metrics.confusion_matrix(gold, chosen, labels=range(len(names)))
    rows = [(label, *counts) for label, counts in zip(names, matrix.tolist(), strict=True)]
    return Table("gold in rows, predicted in columns", ("", *names), rows, "heat", about)


def confused_pairs(names: Sequence[str], gold: np.ndarray, chosen: np.ndarray) -> Iterator[Table]:
    """Yields the most frequent confusions of many labels, whose matrix does not show each."""
    if len(names) > MATRIX:
        pairs = collections.Counter(zip(gold.tolist(), chosen.tolist(), strict=True))
        wrong = [(names[i], names[j], count) for (i, j), count in pairs.most_common() if i != j]
        yield Table("the most frequent confusions", ("gold", "predicted", "texts"), wrong[:CHARTED])


def cooccurrence(names: Sequence[str], labels: np.ndarray, predicted: np.ndarray) -> Iterator[Table]:
    """Yields the number of texts for each gold and each predicted label, [N, C] each, unless there are too many labels."""
    if len(names) > MATRIX:
        return
    none = predicted.sum(axis=1, keepdims=True) == 0
    matrix = (labels.T @ np.concatenate([predicted, none], axis=1)).astype(int)
    rows = [(name, *counts) for name, counts in zip(names, matrix.tolist(), strict=True)]
    about = (
        "A row has the texts with that label, a column those that the model gave that label; a text with several labels counts "
        f"in several. {NONE}: the model gave the text no label at all."
    )
    yield Table("gold in rows, predicted together in columns", ("", *names, NONE), rows, "heat", about)


def show_scores(gold: np.ndarray, scores: np.ndarray, *, score: str = "score") -> Table:
    """The scores beside the labels, of POINTS texts at most. score: what a score is."""
    chosen = np.unique(np.linspace(0, len(gold) - 1, POINTS).astype(int))
    pairs = [(float(gold[i]), float(scores[i])) for i in chosen]
    about = (
        f"A point is one of {len(chosen):,} texts. Good scores rise from the lower left to the upper right."
    )
    return Table("scores beside labels", ("gold", score), pairs, "scatter", about)


def scatter(names: Sequence[str], gold: np.ndarray, scores: np.ndarray) -> Iterator[Table]:
    """Yields the scores beside the labels, and their differences, of POINTS texts at most."""
    shown = show_scores(gold, scores)
    yield shown
    about = "Points above 0 have too high a score; a slope means that extreme labels are not reached."
    errors = [(label, score - label) for label, score in shown.rows]
    yield Table("errors of the scores", ("gold", "score minus gold"), errors, "scatter", about)


# -----------------------------------------------------------------------------------------------------------
# The fields of `Judged`, from the names of the labels, gold and predicted labels, and the decoded predictions


def judge_classes(
    names: Sequence[str], gold: np.ndarray, chosen: np.ndarray, decoded: Arrays
) -> dict[str, Any]:
    """Names; right or wrong; the probability of the prediction."""
    confidence = decoded[PROBABILITIES][np.arange(len(chosen)), chosen].astype(np.float64)
    said = {"gold": [names[i] for i in gold], "predicted": [names[i] for i in chosen]}
    return said | {"right": np.float64(gold == chosen), "confidence": confidence}


def judge_sets(names: Sequence[str], gold: np.ndarray, chosen: np.ndarray, decoded: Arrays) -> dict[str, Any]:
    """Sets of names; right where the whole set is. Its probability is the product over the labels."""
    array, probabilities = np.array(names), decoded[PROBABILITIES].astype(np.float64)
    said = [[", ".join(array[row > 0]) or NONE for row in rows] for rows in (gold, chosen)]
    confidence = np.where(chosen > 0, probabilities, 1 - probabilities).prod(axis=1)
    right = np.float64((gold == chosen).all(axis=1))
    return {"gold": said[0], "predicted": said[1], "right": right, "confidence": confidence}


def judge_scores(
    names: Sequence[str], gold: np.ndarray, scores: np.ndarray, decoded: Arrays
) -> dict[str, Any]:
    """Scores; right is 1 minus the error as a fraction of the range of the labels, and at least 0."""
    span = float(np.ptp(gold)) or 1.0
    right = np.clip(1 - np.abs(np.float64(scores) - gold) / span, 0, 1)
    said = [[f"{one:.2f}" for one in side] for side in (gold, scores)]
    return {"gold": said[0], "predicted": said[1], "right": right}
