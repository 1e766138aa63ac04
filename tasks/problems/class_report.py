"""The report of a text classification: the tables of each type of labels, and the texts beside their labels.

In: the labelled texts as raw labels and predictions, as LABEL_TYPES has them. Out: `Table`s and the parts of `Judged`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import sklearn.metrics

from bert_keras.tasks.metrics import AVERAGES, SCORES
from bert_keras.tasks.report import Table

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


def confusions(names: Sequence[str], gold: np.ndarray, chosen: np.ndarray) -> Iterator[Table]:
    """Yields the confusion matrix, with the labels of fewest errors as one where there are many, and the confused pairs."""
    matrix = sklearn.metrics.confusion_matrix(gold, chosen, labels=range(len(names)))
    about = "A row has the texts with that label, a column those that the model gave that label: right ones are on the diagonal."
    if len(names) <= MATRIX:
        rows = [(label, *counts) for label, counts in zip(names, matrix.tolist(), strict=True)]
        yield Table("gold in rows, predicted in columns", ("", *names), rows, "heat", about)
        return
    wrong = matrix - np.diag(np.diag(matrix))
    worst = np.sort(np.argsort(-(wrong.sum(0) + wrong.sum(1)), kind="stable")[: MATRIX - 1])
    place = np.full(len(names), MATRIX - 1)
    place[worst] = np.arange(MATRIX - 1)
    folded = sklearn.metrics.confusion_matrix(place[gold], place[chosen], labels=range(MATRIX))
    shown = [*(names[i] for i in worst), OTHERS]
    rows = [(label, *counts) for label, counts in zip(shown, folded.tolist(), strict=True)]
    about += (
        f" These are the {MATRIX - 1} labels with most errors; the other {len(names) - MATRIX + 1} are one."
    )
    yield Table("gold in rows, predicted in columns", ("", *shown), rows, "heat", about)
    pairs = np.argwhere(wrong)
    pairs = pairs[np.argsort(-wrong[tuple(pairs.T)], kind="stable")][:CHARTED]
    found = [(names[i], names[j], int(wrong[i, j])) for i, j in pairs]
    yield Table("the most frequent confusions", ("gold", "predicted", "texts"), found)


def cooccurrence(names: Sequence[str], labels: np.ndarray, predicted: np.ndarray) -> Iterator[Table]:
    """Yields the number of texts for each gold and each predicted label, [N, C] each."""
    if len(names) > MATRIX:
        return
    matrix = (labels.T @ predicted).astype(int)
    missed = (labels * (predicted.sum(axis=1, keepdims=True) == 0)).sum(axis=0).astype(int)
    rows = [
        (name, *counts, int(none)) for name, counts, none in zip(names, matrix.tolist(), missed, strict=True)
    ]
    about = (
        "A row has the texts with that label, a column those that the model gave that label; a text with several labels counts "
        f"in several. {NONE}: the model gave the text no label at all."
    )
    yield Table("gold in rows, predicted together in columns", ("", *names, NONE), rows, "heat", about)


def scatter(gold: np.ndarray, scores: np.ndarray) -> Iterator[Table]:
    """Yields the scores beside the labels, and their differences, of POINTS texts at most."""
    rows = np.unique(np.linspace(0, len(gold) - 1, POINTS).astype(int))
    pairs = [(float(gold[i]), float(scores[i])) for i in rows]
    of = f"{len(rows):,} of {len(gold):,} texts"
    about = f"A point is a text, {of}. Good scores rise along a line from the lower left to the upper right."
    yield Table("scores beside labels", ("gold", "score"), pairs, "scatter", about)
    about = f"A point is a text, {of}. Points above 0 have too high a score; a slope means that extreme labels are not reached."
    errors = [(one, score - one) for one, score in pairs]
    yield Table("errors of the scores", ("gold", "score minus gold"), errors, "scatter", about)


def judge_class(
    names: Sequence[str], gold: np.ndarray, chosen: np.ndarray, probabilities: np.ndarray
) -> Mapping[str, object]:
    """Names, right or wrong, and the probability of the prediction."""
    confidence = probabilities[np.arange(len(chosen)), chosen].astype(np.float64)
    said = {"gold": [names[i] for i in gold], "predicted": [names[i] for i in chosen]}
    return {**said, "right": np.float64(gold == chosen), "confidence": confidence}


def judge_sets(
    names: Sequence[str], labels: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray
) -> Mapping[str, object]:
    """Sets of names; right where the whole set is. Its probability is the product over the labels."""
    array = np.array(names)
    said = [[", ".join(array[row > 0]) or NONE for row in rows] for rows in (labels, predicted)]
    confidence = np.where(predicted > 0, probabilities, 1 - np.float64(probabilities)).prod(axis=1)
    right = np.float64((labels == predicted).all(axis=1))
    return {"gold": said[0], "predicted": said[1], "right": right, "confidence": confidence}


def judge_scores(gold: np.ndarray, scores: np.ndarray) -> Mapping[str, object]:
    """Scores; right is 1 minus the error as a fraction of the range of the labels, and at least 0."""
    span = float(np.ptp(gold)) or 1.0
    right = np.clip(1 - np.abs(np.float64(scores) - gold) / span, 0, 1)
    return {
        "gold": [f"{one:.2f}" for one in gold],
        "predicted": [f"{one:.2f}" for one in scores],
        "right": right,
    }
