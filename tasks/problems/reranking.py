"""Reranking: one score for a query and a text, which a cross-encoder reads together as a pair.

In: {"query": string [B], "text": string [B]}; to learn, with a "label" from 0 to 1, or {"text": string [B, K]}, the candidates of
a query, the positive first. Out: "score" float32 [B].

Source: pairs with labels: Nogueira and Cho 2019; candidates: Cao et al. 2007, whose cross-entropy has one relevant text here; one
negative: Burges et al. 2005.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.checkpoints.cross_encoder import FUNCTIONS, SIGMOID
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT
from bert_keras.io.json_files import one_of, shortened
from bert_keras.model.choices import CLASSES, PAIRS, SCORES
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.losses import GlobalMean, candidate_loss
from bert_keras.tasks import metrics
from bert_keras.tasks.data.columns import read_columns, scores
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.data.text_groups import (
    LABEL,
    NEGATIVE,
    POSITIVE,
    QUERY,
    TEXT,
    Columns,
    checked_groups,
    form_of,
)
from bert_keras.tasks.problems.class_report import show_scores
from bert_keras.tasks.problems.embedding_training import TRAINING_KINDS, VectorTraining
from bert_keras.tasks.problems.label_types import SCORE
from bert_keras.tasks.problems.vector_measures import MEASURES, rank_measures, rank_views
from bert_keras.tasks.report import Arrays, Table
from bert_keras.tasks.task import Features, Raw, classifier_model
from bert_keras.text.preprocessing import Preprocessor

_OPTIONS = ("negative_column", "text_column", "label_column", "quoting")


class Reranker(VectorTraining):
    """One score for a query and a text.

    score_function: a key of FUNCTIONS, of the logit; None for that of the checkpoint, else the sigmoid
    source, training: of VectorTraining, without a loss: the form of the data decides
    """

    kind = "reranking"
    names = (kind,)
    name = kind
    text = (QUERY, TEXT)
    head = "classifier"
    architectures = ("ForSequenceClassification",)
    outputs = (POOLED_OUTPUT,)
    options = _OPTIONS
    optional = _OPTIONS
    kinds = {"score_function": one_of(FUNCTIONS), **{name: TRAINING_KINDS[name] for name in _OPTIONS}}
    by_form = {SCORES: ("average_precision", "accuracy"), PAIRS: MEASURES[PAIRS]}
    measures = ("average_precision", "accuracy", "mrr")
    measure = measures[0]
    labels_needed = (
        "queries and texts were given without labels; give y, from 0 to 1 for each pair, or the columns query, positive and "
        "negative."
    )

    def __init__(
        self, *, score_function: str | None = None, source: Source | None = None, **training: Any
    ) -> None:
        self._given, self.score_function = score_function, score_function or SIGMOID
        self.sigmoid = self.score_function == SIGMOID
        self.score_bounds = (0.0, 1.0) if self.sigmoid else None
        self.answers = f"the {'sigmoid of the' if self.sigmoid else 'raw'} logit of one output"
        self._learn_from(source, training)

    def started_from(self, checkpoint: Checkpoint) -> tuple[Self, Checkpoint]:
        """The reranker with the checkpoint's function, unless one was given. Raises BertKerasError for one not in FUNCTIONS."""
        function = self._given or checkpoint.score_function
        if function not in (None, *FUNCTIONS):
            raise BertKerasError(
                f"{checkpoint.prefix}the score is made by {shortened(function)}, which is not supported; a score is the "
                "Sigmoid of the logit, or the logit by Identity."
            )
        return type(self)(score_function=function, source=self.source, **self._settings), checkpoint

    # -------------------------------------------------------------------------------------------------------
    # Data

    def checked(self, columns: Columns, *, loss: str | None) -> Columns:
        """Columns of T texts, {"text": [N, T]} -> {"query": [N], "text": [N, T - 1]}, with "label" where it has scores."""
        form, texts = form_of(checked_groups(columns, None)), columns[TEXT]
        if form == CLASSES:
            raise BertKerasError(f"reranking reads a query and a text, and {TEXT} is one; give two columns.")
        if form == PAIRS and texts.shape[1] < 3:
            raise BertKerasError(
                f"each query has one candidate, its {POSITIVE}; give a column {NEGATIVE}, or pairs with labels from 0 to 1."
            )
        if form == SCORES and len(wrong := np.flatnonzero((columns[LABEL] < 0) | (columns[LABEL] > 1))):
            raise BertKerasError(
                f"label {columns[LABEL][wrong[0]]:g} in row {wrong[0]}; give 1 for a relevant text, 0 for another one, or a "
                "number between."
            )
        return columns | {QUERY: texts[:, 0], TEXT: texts[:, 1:]}

    def labelled(self, x: Any, y: Any) -> dict[str, np.ndarray]:
        """Of pairs with labels, or, without labels, of the columns "query", "positive" and all that begin with "negative"."""
        there = (
            [*map(str, getattr(x, "columns", x))] if isinstance(x, Mapping) or hasattr(x, "columns") else []
        )
        if y is None and POSITIVE not in there:
            raise BertKerasError(self.labels_needed)
        negatives = [name for name in there if name.startswith(NEGATIVE)]
        names = [QUERY, POSITIVE, *negatives] if y is None else [*self.text]
        columns = read_columns(x, names)
        groups = {TEXT: np.stack([columns[name] for name in names], axis=1)}
        return self.checked(groups | ({} if y is None else {LABEL: scores(y)}), loss=None)

    def arranger(self, batch_size: int) -> None:
        """None: no text is compared with those of other rows."""
        return

    # -------------------------------------------------------------------------------------------------------
    # Features, labels, model and loss

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Queries [B] with texts [B] or [B, K] -> Features int32 [B, S] or [B * K, S]."""
        query, text = raw[QUERY], raw[TEXT]
        if len(text.shape) > 1:
            query, text = tf.repeat(query, tf.shape(text)[1]), tf.reshape(text, [-1])
        return preprocess(query, text)

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels float32 [B] of pairs; int32 [B] of candidates, 0 for the first. Weights [B] of 1."""
        first = tf.zeros(tf.shape(raw[QUERY]), tf.int32)
        return raw.get(LABEL, first), tf.ones(tf.shape(raw[QUERY]))

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [B, 1]."""
        return classifier_model(encoder, 1)

    def loss(self) -> keras.losses.Loss:
        return GlobalMean(candidate_loss)

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [B, 1] -> "score" float32 [B]; of candidates, [B * K, 1] -> [B, K]."""
        return {SCORE: tf.reshape(self.decode_features(outputs)[SCORE], tf.shape(raw[TEXT]))}

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Logits [B, 1] -> "score" float32 [B]."""
        return {SCORE: tf.sigmoid(outputs[:, 0]) if self.sigmoid else outputs[:, 0]}

    # -------------------------------------------------------------------------------------------------------
    # Measures

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields, of pairs, the average precision and the accuracy, where a label of 0.5 or more means a relevant text.

        Of candidates, yields the mean reciprocal rank of the positive and the fraction of queries that have it first; of equal
        scores, the positive has the last rank.
        """
        yield from self.resampled(predictions, raw)(slice(None)).items()

    def baseline(self, raw: Arrays) -> float:
        """The measure of one score for all texts: the fraction of the relevant ones, or the last rank of K candidates, 1/K."""
        return float((raw[LABEL] >= 0.5).mean()) if LABEL in raw else 1 / raw[TEXT].shape[1]

    def degenerate(self, predictions: Arrays, raw: Arrays) -> str | None:
        """No better than one score for all texts; texts that are nearly all relevant cannot tell."""
        value, nothing = dict(self.evaluate(predictions, raw))[self.measure], self.baseline(raw)
        if nothing >= 1 - metrics.WHISKER:
            return None
        return metrics.no_better(value, nothing, measure=self.measure, by="one score for all texts")

    def resampled(self, predictions: Arrays, raw: Arrays) -> Callable[[Any], dict[str, float]]:
        found = predictions[SCORE]
        if LABEL not in raw:
            return rank_measures(_ranks(found))
        relevant, found = raw[LABEL] >= 0.5, found[:, 0]
        right = (found >= (0.5 if self.sigmoid else 0)) == relevant

        return lambda rows: {
            "average_precision": metrics.average_precision(relevant[rows], found[rows]),
            "accuracy": float(right[rows].mean()),
        }

    def views(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        found = predictions[SCORE]
        if LABEL in raw:
            yield show_scores(raw[LABEL], found[:, 0])
        else:
            yield from rank_views(_ranks(found))


def _ranks(scores: np.ndarray) -> np.ndarray:
    """The rank of the first of K candidates, of equal scores the last one: [N, K] -> int [N]."""
    return 1 + (scores[:, 1:] >= scores[:, :1]).sum(axis=1)
