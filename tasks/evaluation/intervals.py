"""Intervals of measures by the bootstrap over examples, and the paired test of two models.

In: a function of rows that gives measures (`Report.resampled`), and the rows of the labelled examples. Out: intervals, p-values.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np
import scipy.stats

RESAMPLES, SEED = 1_000, 0
LEVEL = 0.95  # of every interval
SECONDS = 6.0  # after so long, LEAST resamples have to be enough: a measure of a user's own may be slow
LEAST = 100

Measure = Callable[[np.ndarray], Mapping[str, float]]


def resample(measure: Measure, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The measures of random samples of examples, as many as there are, with replacement: float64 [R] by name.

    rows: int [N], the examples to draw from; an example is drawn with all its windows, words and entities
    R is RESAMPLES; fewer, and at least LEAST, if they take more than SECONDS

    The intervals are those of the percentile method (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13).
    """
    draw, end, found = np.random.default_rng(SEED), time.monotonic() + SECONDS, list[Mapping[str, float]]()
    while len(found) < RESAMPLES and (len(found) < LEAST or time.monotonic() < end):
        found.append(measure(draw.choice(rows, len(rows))))
    # A measure of a group, such as the questions without an answer, is missing where no example of the group was drawn.
    names = dict.fromkeys(name for measures in found for name in measures)
    return {name: np.array([one[name] for one in found if name in one], np.float64) for name in names}


def interval(samples: np.ndarray) -> tuple[float, float]:
    """The low and the high end of the middle LEVEL of resampled values [R]."""
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The interval of the mean of values [N]."""
    return interval(resample(lambda rows: {"mean": values[rows].mean()}, np.arange(len(values)))["mean"])


def mcnemar(only_first: int, only_second: int) -> float:
    """The p-value of McNemar's exact test, two-sided: the chance of such a difference between two equally good models.

    only_first, only_second: the examples that one model alone has right. Source: McNemar 1947.
    """
    if not only_first + only_second:
        return 1.0
    return float(scipy.stats.binomtest(only_first, only_first + only_second).pvalue)
