"""The measures that tasks report: a table of functions, thin over scikit-learn and scipy.

In: labels and predictions as arrays [N], example by example. Out: one float. Where a correlation is undefined
because labels or predictions do not vary, its value is 0.0: a constant prediction explains nothing.
"""

from collections.abc import Callable

import numpy as np
import scipy.stats
import sklearn.metrics


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The share of equal class ids, 0 to 1."""
    return float(sklearn.metrics.accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of class 1 against class 0, 0 to 1; 0.0 where class 1 is neither there nor predicted."""
    return float(sklearn.metrics.f1_score(labels, predictions, pos_label=1, zero_division=0.0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation, -1 to 1; with more than two classes, R_K (Gorodkin 2004)."""
    if _constant(labels) or _constant(predictions):
        return 0.0
    return float(sklearn.metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Linear correlation of two scores, -1 to 1."""
    if _constant(labels) or _constant(predictions):
        return 0.0
    return float(scipy.stats.pearsonr(np.float64(labels), np.float64(predictions)).statistic)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Rank correlation of two scores, equal scores sharing their mean rank, -1 to 1."""
    if _constant(labels) or _constant(predictions):
        return 0.0
    return float(scipy.stats.spearmanr(labels, predictions).statistic)


def _constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values) == 0)


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
