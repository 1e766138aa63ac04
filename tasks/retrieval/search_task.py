"""The task of an exported index: a query in, the nearest texts out.

In: {"text": string [B]}. Out: the ids, the texts and the scores of the k nearest texts of an index.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.tasks.data.text_groups import TEXT
from bert_keras.tasks.options import COSINE, QUERY, IndexOptions
from bert_keras.tasks.problems.embedding import PROMPT, Embedding
from bert_keras.tasks.problems.vector_measures import LEAST_LENGTH
from bert_keras.tasks.retrieval.index import Index, open_index, texts_to_rerank
from bert_keras.tasks.retrieval.nearest import FLOAT32, INT8, Nearest, int8_recall, take_rows
from bert_keras.tasks.retrieval.second_stage import SecondStage, load_reranker
from bert_keras.tasks.retrieval.text_encoder import load_text_encoder
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.task import Features, Raw
from bert_keras.text.preprocessing import Preprocessor


class Search(Embedding):
    """The vectors of an Embedding, and the texts of an index that are nearest to them.

    embedding: the task of the model that made the index
    dtype: of the vectors, as `Nearest` takes it
    before: a text before each query
    reranker: the run of a Reranker, which scores the `rerank` nearest texts; None for the order of the vectors

    resources: the variables with the vectors, ids and texts
    """

    kind = "search"
    names = (kind,)
    name = kind

    def __init__(
        self,
        embedding: Embedding,
        index: Index,
        *,
        k: int,
        dtype: str = FLOAT32,
        before: str = "",
        reranker: Run | None = None,
        rerank: int | None = None,
    ) -> None:
        vars(self).update(vars(embedding))  # its settings
        self.index, self.k, self.dtype, self.before = index, k, dtype, before
        self.resources: Any = tf.Module()
        self.rerank = None if reranker is None else texts_to_rerank(rerank, k=k, count=index.count)
        self.resources.nearest = self.nearest = Nearest(index.vectors(), k=self.rerank or k, dtype=dtype)
        self.resources.second = self.second = None if reranker is None else SecondStage(reranker)
        ids, texts = zip(*index.texts(), strict=True)
        with tf.device("CPU"):  # strings
            self.resources.ids, self.resources.texts = (
                tf.Variable(np.array([one.encode() for one in column], object), trainable=False, name=name)
                for name, column in (("ids", ids), ("texts", texts))
            )

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """The features of the prompt and the query."""
        return super().features(preprocess, raw | {PROMPT: tf.constant(self.before)})

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Vectors [B, H] -> the k nearest texts, the nearest first.

        "id", "text": string [B, k]
        "score": float32 [B, k], the cosine or the dot product, or the reranker's
        """
        scores, rows = self._nearest(outputs)
        if self.second is not None:
            scores, at = self.second(raw[TEXT], take_rows(self.resources.texts, rows), k=self.k)
            rows = tf.gather(rows, at, batch_dims=1)
        return self._answers(scores, rows)

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """The outputs of `decode`, in the order of the vectors: features have no query for a reranker."""
        scores, rows = self._nearest(outputs)
        return self._answers(scores[:, : self.k], rows[:, : self.k])

    def _nearest(self, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = self.cut(outputs)
        if self.index.header["similarity"] == COSINE:
            outputs /= tf.maximum(tf.norm(outputs, axis=1, keepdims=True), LEAST_LENGTH)
        return self.nearest(outputs)

    def _answers(self, scores: tf.Tensor, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        columns = {"id": self.resources.ids, "text": self.resources.texts}
        return {name: take_rows(column, rows) for name, column in columns.items()} | {"score": scores}

    def to_json(self) -> dict[str, Any]:
        """The settings of the embedding and of the search, for the model card."""
        return super().to_json() | {
            "similarity": self.index.header["similarity"],
            "texts": self.index.count,
            "k": self.k,
            "vectors": self.dtype,
            **({} if self.rerank is None else {"rerank": self.rerank}),
        }


def make_search(
    path: str | pathlib.Path,
    *,
    model: str | pathlib.Path | None = None,
    k: int = IndexOptions.k,
    dtype: str = FLOAT32,
    prompt: str | None = None,
    reranker: str | pathlib.Path | None = None,
    rerank: int | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Run:
    """The search of an index as a Run, which `export` takes.

    model: the model that made the index; None reads it from where it was
    prompt: the name of a prompt of the model; None takes that of queries
    reranker, rerank: the model that scores the `rerank` nearest texts again, as in `load_reranker` and `texts_to_rerank`
    log: receives a line about the recall of int8

    Raises BertKerasError as `open_index`, for another model, and for k over the number of texts.
    """
    index = open_index(path)
    index.check_k(k)
    texts_to_rerank(rerank, k=k, count=index.count)
    second = None if reranker is None else load_reranker(reranker)
    run = load_text_encoder(index.model if model is None else model, dimension=index.header["dimension"])
    index.check_model(run)
    embedding: Any = run.task
    before = embedding.find_prompt(prompt, QUERY)
    if dtype == INT8:
        recall, sample = int8_recall(index.vectors(), k=k)
        log(
            f"recall@{k} of int8 against float32: {recall:.4f} ({sample} texts of the index as queries among the others)"
        )
    how: Any = {"k": k, "dtype": dtype, "before": before, "reranker": second, "rerank": rerank}
    task = Search(embedding, index, **how)
    return dataclasses.replace(run, task=task)
