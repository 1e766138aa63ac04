"""Approximate search in an index that does not fit into memory: a graph of neighbors in a file, which is read from disk.

In: an Index. Out: nearest.usearch in its folder, and the k nearest rows of queries, most of the time. Needs the extra `search`.

usearch rather than faiss-cpu: it searches the graph in a memory-mapped file by one call, and its wheel is small (2.3 MB in
2.26.6, against 18.8 MB in faiss-cpu 1.15.1).

Source: Malkov and Yashunin 2020, HNSW.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bert_keras.errors import BertKerasError, MissingFileError, MissingPackageError, first_line
from bert_keras.io.files import atomic_file
from bert_keras.tasks.retrieval.index import Index
from bert_keras.tasks.retrieval.nearest import SPARE, recall_of_others

FILE = "nearest.usearch"
SAMPLE, NEAREST = 64, 10  # queries in the measure of recall, and their neighbors


def require_usearch() -> Any:
    """The class of usearch. Raises MissingPackageError where it is not installed."""
    try:
        from usearch.index import Index as Graph
    except ImportError as error:
        raise MissingPackageError(
            f"an approximate search needs usearch ({first_line(error)}); pip install 'bert-keras[search]'."
        ) from error
    return Graph


def write_graph(index: Index, *, progress: Callable[[int], None] = lambda done: None) -> float | None:
    """Writes the graph of an index, unless it is there. Returns its recall at NEAREST, of SAMPLE texts as queries; else None.

    The neighbors may differ from one call to the next, because threads add the vectors in any order.
    """
    if (index.path / FILE).exists():
        return None
    graph = require_usearch()(ndim=index.header["dimension"], metric="ip", dtype="f32")
    for start, vectors in index.blocks():
        graph.add(np.arange(start, start + len(vectors)), vectors)
        progress(len(vectors))
    with atomic_file(index.path / FILE) as temporary:
        graph.save(str(temporary))
    return _recall(index)


class ApproximateNearest:
    """The k nearest vectors by the graph of an index; scores are exact, ties by row.

    Raises MissingFileError for an index without a graph, BertKerasError for a graph that is damaged or of other vectors.
    """

    def __init__(self, index: Index, *, k: int) -> None:
        path, graph = index.path / FILE, require_usearch()
        if not path.is_file():
            raise MissingFileError(
                f"{index.path} has no {FILE}; rerun `bert-keras index` with --approximate to add it."
            )
        try:
            self._graph = graph.restore(str(path), view=True)
        except (ValueError, RuntimeError) as error:
            raise BertKerasError(
                f"{path} is damaged: {first_line(error)}; remove it and index again."
            ) from error
        if (len(self._graph), self._graph.ndim) != (index.count, index.header["dimension"]):
            raise BertKerasError(f"{path} is the graph of other vectors; remove it and index again.")
        self.k = k

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """The vectors float32 [R, D] of rows [R]."""
        return np.stack(self._graph.get(rows))

    def search(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Queries float32 [Q, D] -> scores float32 [Q, k] from high to low, rows int64 [Q, k].

        Raises BertKerasError where the graph leads to fewer than k rows.
        """
        found: Any = self._graph.search(queries, min(self.k + SPARE, len(self._graph)))
        keys = np.atleast_2d(found.keys)
        counts: Any = getattr(found, "counts", keys.shape[1])  # of several queries
        count = int(np.min(counts))
        if count < self.k:
            raise BertKerasError(
                f"the graph leads from a query to {count} texts only, and k is {self.k}; give a smaller k."
            )
        rows = np.sort(keys[:, :count].astype(np.int64), axis=1)
        near = self.vectors(rows.ravel()).reshape(*rows.shape, -1)
        scores = np.einsum("qd,qkd->qk", np.float64(queries), np.float64(near))
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.k]
        return np.take_along_axis(scores, order, 1).astype(np.float32), np.take_along_axis(rows, order, 1)


def _recall(index: Index) -> float:
    """The mean fraction of the NEAREST other texts of a text that the graph finds."""
    k = min(NEAREST + 1, index.count)
    rows = np.unique(np.linspace(0, index.count - 1, min(index.count, SAMPLE)).astype(int))
    graph = ApproximateNearest(index, k=k)
    queries = graph.vectors(rows)
    best, wanted = np.full((len(rows), k), -np.inf), np.zeros((len(rows), k), int)
    for start, vectors in index.blocks():  # one block in memory
        scores = np.concatenate([best, queries @ vectors.T], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        places = np.broadcast_to(np.arange(start, start + len(vectors)), (len(rows), len(vectors)))
        places = np.concatenate([wanted, places], axis=1)
        best, wanted = (np.take_along_axis(one, order, 1) for one in (scores, places))
    return recall_of_others(graph.search(queries)[1], wanted, rows)
