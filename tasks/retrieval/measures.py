"""Measures of retrieval, as functions of arrays.

In: the relevance of found texts. Out: float64 [Q], a value for each query.

The measures are those of trec_eval: recip_rank, ndcg_cut, recall and map_cut.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np


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
