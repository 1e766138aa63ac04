"""Signs that a run did not learn: one answer for nearly all examples, or a measure that a constant answer reaches too.

Source: Devlin et al. 2019, sec. 4.1, restarts runs that degenerate on small data sets.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_keras.tasks.metrics import MEASURES, accuracy

# A measure within this of the trivial baseline counts as degenerate, and so does one answer for all but this share, and scores
# that span no more than this fraction of the labels' range.
WHISKER = 0.005


def one_answer(predicted: np.ndarray, *, name: Callable[[Any], str] = str) -> str | None:
    """The answer that nearly all examples get, with its share; None if there are several.

    predicted: [N] or [N, C]
    name: answer -> its text
    """
    values, counts = np.unique(predicted, axis=0, return_counts=True)
    share = counts.max() / counts.sum()
    return f"{name(values[counts.argmax()])} for {share:.1%} of dev" if share >= 1 - WHISKER else None


def no_better(value: float, baseline: float, *, measure: str, by: str) -> str | None:
    """Both measures, if the first is not higher by more than WHISKER; else None. by: the answer of a trivial model."""
    if value > baseline + WHISKER:
        return None
    return f"{measure} {value:.4f}; {by} has {baseline:.4f}"


def degenerate_classes(
    labels: np.ndarray, predicted: np.ndarray, names: Sequence[str], *, measure: str = "accuracy"
) -> str | None:
    """Nearly all predictions are one class, or the measure is no better than that of the majority class; None if the run learned.

    Labels that are nearly all one class cannot tell: then only a run that always predicts another class is degenerate.

    labels, predicted: class ids int [N]
    measure: "matthews", whose baseline is a correlation of 0; any other name stands for the accuracy
    """
    nothing = float(np.bincount(labels).max() / len(labels))
    if nothing >= 1 - WHISKER:
        constant = np.ptp(predicted) == 0 and predicted[0] != np.bincount(labels).argmax()
        return one_answer(predicted, name=lambda i: names[i]) if constant else None
    if why := one_answer(predicted, name=lambda i: names[i]):
        return why
    if measure == "matthews":
        value, nothing, measure = MEASURES["matthews"](labels, predicted), 0.0, "Matthews correlation"
    else:
        value, measure = accuracy(labels, predicted), "accuracy"
    return no_better(value, nothing, measure=measure, by="predicting the majority class")


def degenerate_scores(labels: np.ndarray, scores: np.ndarray) -> str | None:
    """The scores are nearly constant, explain nearly nothing of the labels, or run against them; None if the run learned.

    The fraction of the variance that a linear fit explains is the squared Pearson correlation; constant scores have 0.
    """
    correlation = MEASURES["pearson"](labels, scores)
    if np.ptp(scores) <= WHISKER * np.ptp(labels) or not np.isfinite(correlation):
        return f"the score is always {scores.mean():.4g}"
    if correlation < 0 or correlation**2 <= WHISKER:
        return f"Pearson correlation {correlation:.4f}; predicting the mean score has none"
    return None
