"""The second stage of a search: a reranker scores the texts that the vectors found, and puts the best first.

In: queries and the texts found for each. Out: their scores from high to low, and their places among the texts that were found.

Source: Nogueira and Cho 2019.
"""

import functools
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.tasks.data.text_groups import QUERY, TEXT
from bert_keras.tasks.problems.label_types import SCORE
from bert_keras.tasks.problems.reranking import Reranker
from bert_keras.tasks.retrieval.text_encoder import load_model
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.strings.models import reranker
from bert_keras.tasks.task import checked_outputs, model_inputs
from bert_keras.text.preprocessing import Preprocessor


def load_reranker(path: str | pathlib.Path) -> Run:
    """A run or a .keras file of a reranker, or a checkpoint with a classifier of one output, by path or name.

    Raises BertKerasError for a model of another task, and for a checkpoint without such a classifier.
    """
    lacks = "scores no text for a query; give a reranker"
    return load_model(path, functools.partial(reranker, keep_head=True), Reranker, lacks)


class SecondStage(tf.Module):
    """Scores texts for queries by a reranker, in graph; an export saves its variables.

    run: of a Reranker
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        given, self._task = run.preprocess, run.task
        sizes: Any = {"seq_length": given.seq_length, "truncation": given.truncation, "pad_to_longest": True}
        self.preprocess = Preprocessor(given.tokenizer, **sizes, multiple_of=8)
        self.weights = [variable.value for variable in run.model.variables]
        # Not the model itself, which a SavedModel would keep.
        self._infer = functools.partial(run.model, training=False)
        self._search = tf.function(self.__call__, autograph=False, reduce_retracing=True)

    def __call__(self, queries: Any, texts: Any, *, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Queries string [Q], texts string [Q, N] -> scores float32 [Q, k] from high to low, and their columns int32 [Q, k].

        Equal scores stand in the order of the texts. The texts of one query are scored at a time, to bound the memory.
        """

        def score(given: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            features = self._task.features(
                self.preprocess, {QUERY: given[0][tf.newaxis], TEXT: given[1][tf.newaxis]}
            )
            return checked_outputs(self._infer(model_inputs(self._task, features)))[:, 0]

        spec = tf.TensorSpec([texts.shape[1]], tf.float32)
        logits = tf.map_fn(score, (queries, texts), fn_output_signature=spec, parallel_iterations=1)
        best, at = tf.math.top_k(logits, k)
        scores = self._task.decode_features(tf.reshape(best, [-1, 1]))[SCORE]
        return tf.reshape(scores, tf.shape(best)), at

    def search(self, queries: Any, texts: Any, *, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The call for lists or arrays, as arrays."""
        scores, at = self._search(tf.constant(queries), tf.constant(texts), k=k)
        return scores.numpy(), at.numpy()
