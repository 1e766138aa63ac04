"""The measures that tasks report: a table of functions, thin over scikit-learn and scipy.

In: labels and predictions as arrays [N], example by example. Out: one float. Where a correlation is undefined
because labels or predictions do not vary, its value is 0.0: a constant prediction explains nothing.

Answers to questions are compared as texts: `answer_scores` and `best_threshold`. Entities are compared by their type and
words, sentence by sentence, as conlleval does (seqeval): `entity_scores`. Groups of runs are compared by `ordering`.
"""

import collections
import re
import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
import sklearn.metrics
from seqeval.metrics import sequence_labeling


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


IN_PERCENT = (
    "squad",
)  # kinds of task whose official scorers count in percent; the measures of all others are fractions


def in_percent(value: float, *, kind: str) -> float:
    """A measure of a task of that kind, in percent."""
    return value if kind in IN_PERCENT else 100 * value


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no English article, single spaces (Rajpurkar et al. 2016, sec. 6.1)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_scores(
    answers: Sequence[str], golds: Sequence[Sequence[str]], *, unanswerable: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Exact match and F1 over tokens, float64 [N], 0 to 1: of each answer with the gold answer that suits it best.

    golds: for each question its gold answers; none where there is no answer
    unanswerable: whether questions without an answer are among them

    Source: the official scorers. They differ in one thing: that of SQuAD 2.0 passes over gold answers of which normalizing
    leaves nothing and counts nothing against nothing as F1 1; in that of 1.1 what shares no token has F1 0.
    """
    scores = np.zeros((len(answers), 2))
    for row, answer, texts in zip(scores, answers, golds, strict=True):
        wanted = [normalize_answer(text) for text in texts]
        if unanswerable:
            wanted = list(filter(None, wanted)) or [""]
        given = normalize_answer(answer)
        both_empty = float(unanswerable)
        row[:] = (
            max((float(given == gold) for gold in wanted), default=0.0),
            max((_token_f1(given, gold, both_empty=both_empty) for gold in wanted), default=0.0),
        )
    return scores[:, 0], scores[:, 1]


def _token_f1(given: str, gold: str, *, both_empty: float) -> float:
    left, right = given.split(), gold.split()
    if not left and not right:
        return both_empty
    shared = (collections.Counter(left) & collections.Counter(right)).total()
    return 2 * shared / (len(left) + len(right))


def best_threshold(answered: np.ndarray, withheld: np.ndarray, odds: np.ndarray) -> tuple[float, float]:
    """The highest mean score that a threshold reaches, and that threshold: a question is answered where odds < threshold.

    answered, withheld: [N], each question's score if it is answered and if it is not; odds: [N], the null score minus the
    best answer's

    Tried are one threshold below all odds and one above each distinct value, half-way to the next and at most 1 away, so
    that no odds equal it; 0 where that decides the same. Of thresholds with equal means the one nearest to 0 is taken.
    Source: the official scorer of SQuAD 2.0; of questions with equal odds it may answer some only, which no threshold does.
    """
    distinct, place = np.unique(np.asarray(odds, np.float64), return_inverse=True)
    gains = np.bincount(place, weights=np.subtract(answered, withheld), minlength=len(distinct))
    sums = np.sum(withheld) + np.concatenate([[0.0], np.cumsum(gains)])
    above = distinct + np.minimum(np.diff(distinct, append=np.inf) / 2, 1.0)
    thresholds = np.concatenate([distinct[:1] - 1, above])
    around_zero = np.searchsorted(distinct, 0.0)
    if 0.0 not in distinct:
        thresholds[around_zero] = 0.0
    # Sums that differ in rounding alone are equal.
    best = np.flatnonzero(sums >= sums.max() - 1e-9 * len(odds))
    chosen = best[np.argmin(np.abs(thresholds[best]))]
    return float(sums[chosen] / len(odds)), float(thresholds[chosen])


class EntityScores(NamedTuple):
    """Shares, 0 to 1 (0 where there is nothing to divide by), and how many entities there are to be found."""

    precision: float
    recall: float
    f1: float
    entities: int


Tags = Sequence[Sequence[str]]


def entity_scores(labels: Tags, predictions: Tags) -> EntityScores:
    """Of all entities. labels, predictions: the tags of each sentence's words, in one of IOB's schemes."""
    precision, recall, f1, entities = sequence_labeling.precision_recall_fscore_support(
        labels, predictions, average="micro", zero_division=0
    )
    return EntityScores(float(precision), float(recall), float(f1), int(entities))


def entity_scores_by_type(labels: Tags, predictions: Tags) -> dict[str, EntityScores]:
    """The same of each type that is there or predicted, by name."""
    columns = sequence_labeling.precision_recall_fscore_support(
        labels, predictions, average=None, zero_division=0
    )
    sentences = (sentence for side in (labels, predictions) for sentence in side)
    types = sorted({kind for tags in sentences for kind, _, _ in sequence_labeling.get_entities(list(tags))})
    return {
        kind: EntityScores(float(precision), float(recall), float(f1), int(entities))
        for kind, precision, recall, f1, entities in zip(types, *columns, strict=True)
    }


class Ordering(NamedTuple):
    """How the means of two groups of runs stand to each other.

    difference: of the first over the second; error: its standard error, NaN where a group is one run
    verdict: "holds" where the first is over the second by more than two standard errors, "fails" where it is under by more,
        else "not resolved"
    """

    difference: float
    error: float
    verdict: str


def ordering(better: Sequence[float], worse: Sequence[float]) -> Ordering:
    """Whether the runs of `better` are over those of `worse`, two standard errors asked (unequal variances)."""
    difference = float(np.mean(better) - np.mean(worse))
    if min(len(better), len(worse)) < 2:
        return Ordering(difference, float("nan"), "not resolved")
    error = float(np.hypot(scipy.stats.sem(better), scipy.stats.sem(worse)))
    verdict = "not resolved" if abs(difference) <= 2 * error else "holds" if difference > 0 else "fails"
    return Ordering(difference, error, verdict)
