"""Measures the retrieval of a model's vectors on a BEIR folder.

In: a TextEncoder and the folder. Out: measures by name, each with its interval.

    FOLDER/corpus.jsonl       {"_id", "title", "text"}
    FOLDER/queries.jsonl      {"_id", "text"}
    FOLDER/qrels/test.tsv     a header, then the id of a query, the id of a text and its relevance, separated by tabs

Source of the form: Thakur et al. 2021, BEIR.
"""

import dataclasses
import pathlib

import numpy as np

from bert_keras.errors import BertKerasError, MissingFileError, first_names
from bert_keras.io.paths import did_you_mean
from bert_keras.tasks.data.sources import check_input, listing
from bert_keras.tasks.data.tables import column_names, read_table
from bert_keras.tasks.evaluation.intervals import mean_interval
from bert_keras.tasks.retrieval.collection import Collection
from bert_keras.tasks.retrieval.index import Index
from bert_keras.tasks.retrieval.measures import ranking_measures
from bert_keras.tasks.retrieval.nearest import Nearest
from bert_keras.tasks.retrieval.second_stage import SecondStage
from bert_keras.tasks.retrieval.text_encoder import TextEncoder

QUERIES, QRELS = "queries.jsonl", "qrels"
DEPTH = 100  # texts that are ranked for a query

Measured = dict[str, dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Judged:
    """The judged queries of a BEIR folder.

    ids, texts: of the queries
    relevance: for each query, the relevance of each judged text by its id
    """

    ids: list[str]
    texts: list[str]
    relevance: list[dict[str, int]]


def read_judged(folder: pathlib.Path, split: str = "test") -> Judged:
    """The queries with judgments in qrels/SPLIT.tsv, in the order of queries.jsonl.

    Raises MissingFileError for a missing file, BertKerasError for a judgment that is no whole number, and for judged queries that
    queries.jsonl lacks.
    """
    path = folder / QRELS / f"{split}.tsv"
    if not path.is_file():
        there = f"; {path.parent} has {listing(path.parent)}" if path.parent.is_dir() else did_you_mean(path)
        raise MissingFileError(f"{folder} has no {QRELS}/{path.name}{there}.")
    names = column_names(path)
    if len(names) != 3:
        raise BertKerasError(
            f"{path} has the columns {', '.join(names)}; give the id of a query, the id of a text and the relevance."
        )
    relevance: dict[str, dict[str, int]] = {}
    for where, _, (query, text, level) in read_table(path, names, quoting="text"):
        try:
            relevance.setdefault(query, {})[text] = int(level)
        except ValueError as error:
            raise BertKerasError(
                f"{where}: the relevance is {level!r}; give a whole number, 0 for none."
            ) from error
    file = folder / QUERIES
    check_input(file)
    found = dict(Collection(file))
    if missing := [query for query in relevance if query not in found]:
        raise BertKerasError(
            f"{file} lacks {len(missing)} of the {len(relevance)} judged queries: {first_names(missing)}."
        )
    ids = [query for query in found if query in relevance]
    if not ids:
        raise BertKerasError(f"{path} has no judgment; at least one is wanted.")
    return Judged(ids, [found[one] for one in ids], [relevance[one] for one in ids])


def measure_retrieval(
    encoder: TextEncoder,
    index: Index,
    judged: Judged,
    *,
    dtype: str,
    second: SecondStage | None = None,
    rerank: int = 0,
) -> Measured:
    """The measures of `ranking_measures` over the judged queries, with intervals over queries.

    dtype: of the vectors, as `Nearest` takes it
    second, rerank: puts the `rerank` nearest texts in its order

    A text with the id of the query is left out of its ranking, as in BEIR. Raises BertKerasError for another model than that of
    the index, and where the index has none of the judged texts.
    """
    index.check_model(encoder.run)
    ids, texts = np.array(index.texts(), object).T
    if {*ids}.isdisjoint(id_ for one in judged.relevance for id_ in one):
        raise BertKerasError(
            f"{index.path} has none of the judged texts; give the index of this folder's corpus."
        )
    depth = min(max(DEPTH + 1, rerank), index.count)
    _, rows = Nearest(index.vectors(), k=depth, dtype=dtype).search(encoder(judged.texts))
    if second is not None:
        _, at = second.search(judged.texts, texts[rows[:, :rerank]], k=rerank)
        rows[:, :rerank] = np.take_along_axis(rows[:, :rerank], at, 1)
    found = np.zeros((len(rows), DEPTH), int)
    for query, (own, of_query) in enumerate(zip(judged.ids, ids[rows], strict=True)):
        ranked = [id_ for id_ in of_query if id_ != own][:DEPTH]
        found[query, : len(ranked)] = [judged.relevance[query].get(id_, 0) for id_ in ranked]
    wanted = np.zeros((len(rows), max(map(len, judged.relevance))), int)
    for query, one in enumerate(judged.relevance):
        wanted[query, : len(one)] = [*one.values()]
    return {
        name: {"value": float(values.mean())} | dict(zip(("low", "high"), mean_interval(values), strict=True))
        for name, values in ranking_measures(found, wanted).items()
    }
