"""Measures of text vectors, as functions of arrays.

In: the relevance of found texts, or vectors with labels. Out: float64 [Q], a value for each query, or one number.

The measures of retrieval are those of trec_eval: recip_rank, ndcg_cut, recall and map_cut.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import sklearn.cluster
import sklearn.metrics

from bert_keras.tasks.evaluation.intervals import interval, resample
from bert_keras.tasks.metrics import pearson, spearman


def reciprocal_rank(found: np.ndarray, judged: np.ndarray, k: int) -> np.ndarray:
    """1 / the rank of the first relevant text among the first k, else 0."""
    hits = found[:, :k] > 0
    return np.where(hits.any(axis=1), 1 / (hits.argmax(axis=1) + 1), 0.0)


def ndcg(found: np.ndarray, judged: np.ndarray, k: int) -> np.ndarray:
    """The discounted sum of the relevances among the first k, as a fraction of the highest sum that is possible.

    The gain of a text is its relevance, and the discount of rank r is log2(r + 1).
    """
    ideal = -np.sort(-judged, axis=1)
    sums = [
        (np.maximum(one[:, :k], 0) / np.log2(np.arange(min(k, one.shape[1])) + 2)).sum(axis=1)
        for one in (found, ideal)
    ]
    return _fraction(*sums)


def recall(found: np.ndarray, judged: np.ndarray, k: int) -> np.ndarray:
    """The fraction of a query's relevant texts that is among the first k."""
    return _fraction((found[:, :k] > 0).sum(axis=1), (judged > 0).sum(axis=1))


def average_precision(found: np.ndarray, judged: np.ndarray, k: int) -> np.ndarray:
    """The mean over a query's relevant texts of the precision at the rank of each; 0 for a text that is not among the first k."""
    hits = found[:, :k] > 0
    precision = np.cumsum(hits, axis=1) / (np.arange(hits.shape[1]) + 1)
    return _fraction((precision * hits).sum(axis=1), (judged > 0).sum(axis=1))


def _fraction(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, 0 for a query without a relevant text, as in trec_eval."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


RANKING: dict[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]] = {
    "ndcg": ndcg,
    "mrr": reciprocal_rank,
    "recall": recall,
    "map": average_precision,
}
# The numbers of texts at which each is measured.
AT = {"ndcg": (10,), "mrr": (10,), "recall": (1, 10, 100), "map": (100,)}


def ranking_measures(
    found: np.ndarray, judged: np.ndarray, *, at: Mapping[str, Sequence[int]] = AT
) -> dict[str, np.ndarray]:
    """The measures of each query, float64 [Q] by name, such as "ndcg@10".

    found: [Q, K], the relevance of the texts that were found, the best first; 0 for a text without a judgment
    judged: [Q, J], the relevances of all judged texts, padded with 0
    """
    return {f"{name}@{k}": RANKING[name](found, judged, k) for name, ks in at.items() for k in ks}


def similarity_measures(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Correlations of the similarities [N] of pairs with the scores [N] that people gave."""
    return {"spearman": spearman(labels, scores), "pearson": pearson(labels, scores)}


def pair_measures(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The average precision of the similarities [N] of pairs for labels [N], 1 for a pair of one meaning, else 0."""
    return {"average_precision": float(sklearn.metrics.average_precision_score(labels, scores))}


def clustering_measures(vectors: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> dict[str, float]:
    """The V-measure of clusters of vectors [N, D] against labels [N]: k-means with as many clusters as there are labels."""
    kmeans = sklearn.cluster.KMeans(len({*labels.tolist()}), n_init=10, random_state=seed)
    return {"v_measure": float(sklearn.metrics.v_measure_score(labels, kmeans.fit_predict(vectors)))}


def with_intervals(
    measure: Callable[[np.ndarray], Mapping[str, float]], count: int
) -> dict[str, dict[str, float]]:
    """The measures of all rows, each with the interval of the bootstrap over rows: {"value", "low", "high"} by name.

    measure: rows int [N] -> measures; count: the number of rows
    """
    rows = np.arange(count)
    samples = resample(measure, rows)
    ends = {name: interval(values) for name, values in samples.items()}
    return {
        name: {"value": value, "low": ends[name][0], "high": ends[name][1]}
        for name, value in measure(rows).items()
    }
