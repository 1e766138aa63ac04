"""The measures of tasks: a table of functions that call scikit-learn and scipy.

In: labels and predictions as arrays [N]. Out: one float. The correlation of constant labels or predictions is undefined; we
return 0.0, because a constant prediction explains nothing.

`answer_scores` and `best_threshold` compare answers as texts. `entity_scores` compares entities by type and words, as conlleval
(seqeval). `ordering` compares groups of runs. Signs that a run did not learn are at the end.
"""

import collections
import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
import sklearn.metrics
from seqeval.metrics import sequence_labeling


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The fraction of equal class ids, 0 to 1."""
    return float(sklearn.metrics.accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of class 1 against class 0, 0 to 1; 0.0 where class 1 is neither labelled nor predicted."""
    return float(sklearn.metrics.f1_score(labels, predictions, pos_label=1, zero_division=0.0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation, -1 to 1; with more than two classes, R_K (Gorodkin 2004)."""
    if _any_constant(labels, predictions):
        return 0.0
    return float(sklearn.metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Linear correlation of two scores, -1 to 1."""
    if _any_constant(labels, predictions):
        return 0.0
    return float(scipy.stats.pearsonr(np.float64(labels), np.float64(predictions)).statistic)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Rank correlation of two scores, -1 to 1. Equal scores share their mean rank."""
    if _any_constant(labels, predictions):
        return 0.0
    return float(scipy.stats.spearmanr(labels, predictions).statistic)


def average_precision(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The mean precision at the rank of each label of 1 among labels of 0 and 1, 0 to 1; 0.0 where no label is 1."""
    return float(sklearn.metrics.average_precision_score(labels, predictions)) if np.any(labels) else 0.0


def _any_constant(*columns: np.ndarray) -> bool:
    return any(np.ptp(values) == 0 for values in columns)


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


# -----------------------------------------------------------------------------------------------------------
# Precision, recall and F1 of labels, by name: "f1" alone, an average over labels ("f1_macro"), or one label ("f1_good")

SCORES = ("precision", "recall", "f1")  # in the order of scikit-learn's results
AVERAGES = ("macro", "micro", "weighted")
BY_CLASS = "_by_class"  # in a name, stands for each label


class LabelScore(NamedTuple):
    """One of SCORES. of: one of AVERAGES, or the id of a label. size: the number of labels."""

    score: str
    of: str | int
    size: int


def label_score(name: str, labels: Sequence[str], *, multi: bool) -> LabelScore | None:
    """The score of that name; None if there is none.

    labels: the names of the labels, by id
    multi: True where a text has any number of labels

    A score alone is that of label 1 against label 0, of any number of labels the micro-average, and of three classes nothing.
    """
    score, _, of = name.partition("_")
    if score not in SCORES or name == f"{score}_":
        return None
    if of in AVERAGES:
        return LabelScore(score, of, len(labels))
    if of in labels:
        return LabelScore(score, labels.index(of), len(labels))
    if of or not (multi or len(labels) == 2):
        return None
    return LabelScore(score, "micro" if multi else 1, len(labels))


def score_labels(score: LabelScore, labels: np.ndarray, predictions: np.ndarray) -> float:
    """The score of class ids [N], or of 0 and 1 for each label, [N, C]; 0.0 for a division by 0.

    As in scikit-learn, a macro-average of classes is over those that are labelled or predicted, of sets over all labels.
    """
    average, ids = (score.of, None) if isinstance(score.of, str) else (None, [score.of])
    if labels.ndim > 1 and score.size == 1:  # one column is class ids to scikit-learn
        labels, predictions, ids = labels.ravel(), predictions.ravel(), [1]
    found = sklearn.metrics.precision_recall_fscore_support(
        labels.astype(int), predictions.astype(int), labels=ids, average=average, zero_division=0
    )
    return float(np.ravel(found[SCORES.index(score.score)])[0])


# Kinds of task whose official scorers report percent; the measures of other tasks are fractions.
IN_PERCENT = ("question-answering",)


def as_fractions(measures: Mapping[str, float], *, kind: str) -> dict[str, float]:
    """The measures of a task of that kind as fractions; a tau stays a difference of logits."""
    if kind not in IN_PERCENT:
        return {**measures}
    return {name: value if name.endswith("_tau") else value / 100 for name, value in measures.items()}


def percent(value: float | None) -> str:
    """A fraction as the text of a table: percent with one decimal, and never -0.0; "-" for None."""
    return "-" if value is None else f"{100 * value:z.1f}"


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


# MLQA's articles by language (Lewis et al. 2020, sec. 4.1). Hindi has none.
ARTICLES = {
    "ar": re.compile(r"\sال^|ال"),
    "de": re.compile(r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b"),
    "en": _ARTICLES,
    "es": re.compile(r"\b(un|una|unos|unas|el|la|los|las)\b"),
    "vi": re.compile(r"\b(của|là|cái|chiếc|những)\b"),
}
_CHINESE = re.compile("([\u4e00-\u9fa5])")  # each character is a token, which other characters do not join


def normalize_answer(text: str, language: str | None = None) -> str:
    """Lower case, no punctuation, no articles, single spaces between tokens.

    language: None for ASCII punctuation and English articles (Rajpurkar et al. 2016, sec. 6.1); else all punctuation, and the
        articles of that language; in Chinese, each character is a token (Lewis et al. 2020, sec. 4.1)
    """
    if language is None:
        return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())
    kept = "".join(
        letter
        for letter in text.lower()
        if letter not in string.punctuation and not unicodedata.category(letter).startswith("P")
    )
    if language in ARTICLES:
        kept = ARTICLES[language].sub(" ", kept)
    return " ".join((_CHINESE.sub(r" \1 ", kept) if language == "zh" else kept).split())


def answer_scores(
    answers: Sequence[str], golds: Sequence[Sequence[str]], *, unanswerable: bool, language: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Exact match and token F1 of each answer with its best gold answer, float64 [N], 0 to 1.

    golds: the gold answers of each question; an empty list for no answer
    unanswerable: True where some questions have no answer, as in SQuAD 2.0
    language: as `normalize_answer` takes it

    Source: the official scorers. The scorer of SQuAD 2.0 skips gold answers that normalize to nothing, and gives two empty
    answers F1 1; the scorer of 1.1 gives F1 0 to answers without a shared token.
    """
    scores = np.zeros((len(answers), 2))
    for row, answer, texts in zip(scores, answers, golds, strict=True):
        normalized = [normalize_answer(text, language) for text in texts]
        if unanswerable:
            normalized = list(filter(None, normalized)) or [""]
        given = normalize_answer(answer, language)
        f1 = (_token_f1(given, gold, both_empty=float(unanswerable)) for gold in normalized)
        row[:] = float(given in normalized), max(f1, default=0.0)
    return scores[:, 0], scores[:, 1]


def _token_f1(given: str, gold: str, *, both_empty: float) -> float:
    left, right = given.split(), gold.split()
    if not left and not right:
        return both_empty
    shared = (collections.Counter(left) & collections.Counter(right)).total()
    return 2 * shared / (len(left) + len(right))


def best_threshold(answered: np.ndarray, withheld: np.ndarray, odds: np.ndarray) -> tuple[float, float]:
    """The highest mean score of any threshold, and this threshold: the nearest to 0, if several have this mean.

    Arguments as in `threshold_means`. Source: the official scorer of SQuAD 2.0, which unlike a threshold may answer only some of
    the questions with equal odds.
    """
    thresholds, means = threshold_means(answered, withheld, odds)
    # Means that differ only by rounding are equal.
    best = np.flatnonzero(means >= means.max() - 1e-9)
    chosen = best[np.argmin(np.abs(thresholds[best]))]
    return float(means[chosen]), float(thresholds[chosen])


def threshold_means(
    answered: np.ndarray, withheld: np.ndarray, odds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rising thresholds, and the mean score at each. A question is answered if its odds are under the threshold.

    answered, withheld: [N], the score of each question with its answer and without one
    odds: [N], the null score minus the score of the best answer

    One threshold is below all odds and one above each distinct value: half-way to the next value, at most 1 away, or 0 where 0
    gives the same decisions.
    """
    distinct, group = np.unique(np.asarray(odds, np.float64), return_inverse=True)
    gains = np.bincount(group, weights=np.subtract(answered, withheld), minlength=len(distinct))
    sums = np.sum(withheld) + np.concatenate([[0.0], np.cumsum(gains)])
    above = distinct + np.minimum(np.diff(distinct, append=np.inf) / 2, 1.0)
    thresholds = np.concatenate([distinct[:1] - 1, above])
    around_zero = np.searchsorted(distinct, 0.0)
    if 0.0 not in distinct:
        thresholds[around_zero] = 0.0
    return thresholds, sums / len(odds)


class EntityScores(NamedTuple):
    """Fractions from 0 to 1 (0 for a division by 0), and the number of gold entities."""

    precision: float
    recall: float
    f1: float
    entities: int


Tags = Sequence[Sequence[str]]


def entity_scores(labels: Tags, predictions: Tags) -> EntityScores:
    """Scores over all entities. labels, predictions: the tags of each sentence in an IOB scheme."""
    *fractions, entities = sequence_labeling.precision_recall_fscore_support(
        labels, predictions, average="micro", zero_division=0
    )
    return EntityScores._make([*map(float, fractions), int(entities)])


def count_entities(labels: Tags, predictions: Tags) -> tuple[int, int, int]:
    """The right, the predicted and the gold entities of sentences. Arguments as in `entity_scores`."""
    sides = (
        {(i, *one) for i, tags in enumerate(side) for one in sequence_labeling.get_entities(list(tags))}
        for side in (labels, predictions)
    )
    gold, predicted = sides
    return len(gold & predicted), len(predicted), len(gold)


def count_tags(labels: Tags, predictions: Tags) -> tuple[int, int]:
    """The right tags and all tags of sentences."""
    pairs = [pair for both in zip(labels, predictions, strict=True) for pair in zip(*both, strict=True)]
    return sum(one == other for one, other in pairs), len(pairs)


def scores_of_counts(counts: Sequence[int]) -> dict[str, float]:
    """F1, precision and recall of entities, and the accuracy of tags; 0.0 for a division by 0.

    counts: right, predicted and gold entities, right tags, tags
    """
    right, predicted, gold, right_tags, tags = map(int, counts)
    precision, recall = right / max(predicted, 1), right / max(gold, 1)
    f1 = 2 * precision * recall / ((precision + recall) or 1.0)
    return {"f1": f1, "precision": precision, "recall": recall, "accuracy": right_tags / max(tags, 1)}


def entity_scores_by_type(labels: Tags, predictions: Tags) -> dict[str, EntityScores]:
    """Scores for each labelled or predicted type, by name."""
    columns = sequence_labeling.precision_recall_fscore_support(
        labels, predictions, average=None, zero_division=0
    )
    sentences = (sentence for side in (labels, predictions) for sentence in side)
    types = sorted({kind for tags in sentences for kind, _, _ in sequence_labeling.get_entities(list(tags))})
    rows = zip(types, zip(*columns, strict=True), strict=True)
    return {kind: EntityScores._make([*map(float, row[:3]), int(row[3])]) for kind, row in rows}


class Ordering(NamedTuple):
    """The difference between the means of two groups of runs.

    difference: the first mean minus the second
    difference: None where a group has no run
    error: the standard error of the difference; None where a group has fewer than two runs
    verdict: "holds" for a positive and "fails" for a negative difference at the 5 % level, else "not resolved"; ONE_SEED and
        "a row did not learn" for groups of one run and of none
    """

    difference: float | None
    error: float | None
    verdict: str


ONE_SEED = "one seed"


def ordering(better: Sequence[float], worse: Sequence[float]) -> Ordering:
    """Compares runs expected to be better with runs expected to be worse, by Welch's t-test (two-sided, 5 %).

    Groups without any spread resolve nothing: their standard error is unknown.
    """
    if not len(better) or not len(worse):
        return Ordering(None, None, "a row did not learn")
    groups = [np.asarray(values, np.float64) for values in (better, worse)]
    difference = float(groups[0].mean() - groups[1].mean())
    if min(map(len, groups)) < 2:
        return Ordering(difference, None, ONE_SEED)
    # The variances of the means. Equal values have none, also where their computed mean is rounded.
    variances = [values.var(ddof=1) / len(values) if np.ptp(values) else 0.0 for values in groups]
    error = float(np.sqrt(sum(variances)))
    if error == 0:
        return Ordering(difference, error, "not resolved")
    parts = (variance**2 / (len(values) - 1) for variance, values in zip(variances, groups, strict=True))
    freedom = sum(variances) ** 2 / sum(parts)  # Welch-Satterthwaite
    if abs(difference) <= scipy.stats.t.ppf(0.975, freedom) * error:
        return Ordering(difference, error, "not resolved")
    return Ordering(difference, error, "holds" if difference > 0 else "fails")


# -----------------------------------------------------------------------------------------------------------
# Signs that a run did not learn: one answer for nearly all examples, or a measure that a constant answer reaches too.
# Source: Devlin et al. 2019, sec. 4.1, restarts runs that degenerate on small data sets.

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
    by = "predicting the majority class"
    if measure == "matthews":
        return no_better(matthews(labels, predicted), 0.0, measure="Matthews correlation", by=by)
    return no_better(accuracy(labels, predicted), nothing, measure="accuracy", by=by)


def degenerate_scores(labels: np.ndarray, scores: np.ndarray) -> str | None:
    """The scores are nearly constant, explain nearly nothing of the labels, or run against them; None if the run learned.

    The fraction of the variance that a linear fit explains is the squared Pearson correlation; constant scores have 0.
    """
    if not np.isfinite(scores).all():
        return "a score is not a finite number"
    correlation = pearson(labels, scores)
    if np.ptp(scores) <= WHISKER * np.ptp(labels) or not np.isfinite(correlation):
        return f"the score is always {scores.mean():.4g}"
    if correlation < 0 or correlation**2 <= WHISKER:
        return f"Pearson correlation {correlation:.4f}; predicting the mean score has none"
    return None
