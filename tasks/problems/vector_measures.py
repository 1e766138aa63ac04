"""Measures and tables of the vectors of labelled texts: vectors [N, T, H] and raw columns in, (name, value) or `Table` out."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import sklearn.metrics

from bert_keras.model.choices import CLASSES, PAIRS, SCORES, VECTORS
from bert_keras.tasks.data.text_groups import LABEL, TEXT, form_of
from bert_keras.tasks.metrics import average_precision, pearson, spearman
from bert_keras.tasks.problems.class_report import show_scores
from bert_keras.tasks.problems.views import by_group, name_sizes, size_groups
from bert_keras.tasks.report import Table

LEAST_LENGTH = 1e-12  # a shorter vector is not scaled to length 1
RANKS = (1, 2, 6, 11, 101)  # the lowest of each group in a report
BLOCK = 1024  # queries that are compared at a time
MEASURES = {
    PAIRS: ("mrr", "accuracy"),
    SCORES: ("spearman", "pearson", "average_precision"),  # the last of labels 0 and 1 alone
    CLASSES: ("accuracy", "v_measure"),
    VECTORS: ("cosine",),
}
Arrays = Mapping[str, np.ndarray]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., H] of length 1; a vector of zeros stays."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), LEAST_LENGTH)


def _ids(texts: np.ndarray) -> np.ndarray:
    """Equal numbers for equal texts, in the shape of the texts."""
    return np.unique(texts.ravel().astype(bytes), return_inverse=True)[1].reshape(texts.shape)


def ranks_of_positives(vectors: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """The rank of each row's positive among the positives and the negatives of all rows, by the cosine with the query: int [N].

    vectors: [N, T, H]; texts: bytes [N, T]

    Each text counts once. A text that equals the query or its positive, and a positive of an equal query, is left out. Of equal
    cosines, the positive has the last rank: vectors that are all equal answer nothing.
    """
    made, ids = unit(vectors), _ids(texts)
    query, positive = ids[:, 0], ids[:, 1]
    listed, where = np.unique(ids[:, 1:], return_index=True)
    candidates = made[:, 1:].reshape(-1, made.shape[-1])[where]
    place = np.searchsorted(listed, positive)
    answers = dict[int, list[int]]()
    for one, at in zip(query.tolist(), place.tolist(), strict=True):
        answers.setdefault(one, []).append(at)
    ranks = []
    for start in range(0, len(made), BLOCK):
        rows = slice(start, start + BLOCK)
        cosines = made[rows, 0] @ candidates.T
        own = np.sum(made[rows, 0] * made[rows, 1], axis=-1)
        better = (cosines >= own[:, None] - 1e-6) & (listed != query[rows, None])
        for i, one in enumerate(query[rows].tolist()):
            better[i, answers[one]] = False
        ranks.append(1 + better.sum(axis=1))
    return np.concatenate(ranks)


def _by_rank(vectors: np.ndarray, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
    return rank_measures(ranks_of_positives(vectors, raw[TEXT]))


def rank_measures(ranks: np.ndarray) -> Callable[[Any], dict[str, float]]:
    """A function of rows that returns the measures of the ranks of positives, int [N]."""
    return lambda rows: {"mrr": float(np.mean(1 / ranks[rows])), "accuracy": float(np.mean(ranks[rows] == 1))}


def rank_views(ranks: np.ndarray) -> Iterator[Table]:
    """Yields the fraction of queries by the rank of their positive, int [N]."""
    groups = name_sizes(ranks, RANKS)
    about = "At rank 1, the positive comes before all other texts."
    rows = [
        (name, groups.count(name) / len(groups), groups.count(name))
        for name in size_groups(RANKS)
        if name in groups
    ]
    yield Table("ranks of the positives", ("rank", "fraction", "queries"), rows, "bars", about)


def _cosines(vectors: np.ndarray) -> np.ndarray:
    """The cosine of the two vectors of each row, [N]."""
    made = unit(vectors)
    return np.sum(made[:, 0] * made[:, 1], axis=-1)


def _by_score(vectors: np.ndarray, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
    labels, cosines = raw[LABEL], _cosines(vectors)
    measures = {"spearman": spearman, "pearson": pearson}
    if {*labels.tolist()} == {0.0, 1.0}:
        measures["average_precision"] = average_precision
    return lambda rows: {name: measure(labels[rows], cosines[rows]) for name, measure in measures.items()}


def _like_neighbour(made: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """True where the nearest other text has the class of the text, bool [N]. made: vectors [N, H] of length 1."""
    nearest = []
    for start in range(0, len(made), BLOCK):
        cosines = made[start : start + BLOCK] @ made.T
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = -np.inf
        nearest.append(cosines.argmax(axis=1))
    return labels[np.concatenate(nearest)] == labels


def _by_neighbour(vectors: np.ndarray, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
    """The fraction of texts whose nearest other text has their class; the V-measure of as many k-means clusters as classes."""
    from sklearn.cluster import KMeans  # slow to import

    made, labels = unit(vectors[:, 0]), raw[LABEL]
    right = _like_neighbour(made, labels)
    clusters = KMeans(len({*labels.tolist()}), n_init=10, random_state=0).fit_predict(made)
    return lambda rows: {
        "accuracy": float(np.mean(right[rows])),
        "v_measure": float(sklearn.metrics.v_measure_score(labels[rows], clusters[rows])),
    }


def _to_teacher(vectors: np.ndarray, raw: Arrays) -> np.ndarray:
    """The mean cosine of a row's vectors and its teacher's, [N]."""
    teacher = unit(raw[LABEL][:, np.newaxis, : vectors.shape[-1]])
    return np.mean(np.sum(unit(vectors) * teacher, axis=-1), axis=1)


def _by_teacher(vectors: np.ndarray, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
    cosines = _to_teacher(vectors, raw)
    return lambda rows: {"cosine": float(np.mean(cosines[rows]))}


_BY_FORM = {PAIRS: _by_rank, SCORES: _by_score, CLASSES: _by_neighbour, VECTORS: _by_teacher}


def measures_of(vectors: np.ndarray, raw: Arrays) -> Callable[[Any], dict[str, float]]:
    """A function of rows, int [M] or a slice, that returns their measures: those of MEASURES for the form of the raw columns.

    Of pairs and classes, the texts are compared once, with all others: a measure of some rows is the mean of theirs.
    """
    return _BY_FORM[form_of(raw)](vectors, raw)


def evaluate_vectors(vectors: np.ndarray, raw: Arrays) -> Iterator[tuple[str, float]]:
    """Yields the measures of all rows."""
    yield from measures_of(vectors, raw)(slice(None)).items()


def views_of(vectors: np.ndarray, raw: Arrays) -> Iterator[Table]:
    """Yields the tables of a report, for the form of the raw columns: cosines beside scores, ranks, or classes."""
    form = form_of(raw)
    if form == SCORES:
        yield show_scores(raw[LABEL], _cosines(vectors), score="cosine")
    elif form == PAIRS:
        yield from rank_views(ranks_of_positives(vectors, raw[TEXT]))
    elif form == CLASSES:
        right, names = _like_neighbour(unit(vectors[:, 0]), raw[LABEL]), [*map(str, raw[LABEL].tolist())]
        about = "The fraction of the texts of a class whose nearest other text has the class."
        yield from by_group("accuracy by class", ("class", "accuracy", "texts"), names, right, about=about)
    else:
        cosines = _to_teacher(vectors, raw)
        shown = np.histogram(cosines, bins=20)
        rows = [(f"{low:.3f}", int(count)) for low, count in zip(shown[1][:-1], shown[0], strict=True)]
        about = (
            "The number of texts by the cosine of their vector and the teacher's; a bar begins at its number."
        )
        yield Table("cosines with the teacher", ("cosine", "texts"), rows, "bars", about)
