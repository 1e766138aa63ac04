"""Pre-training objectives: what a model predicts about a text.

    Features int32 [B, S] -> label(features, objectives, seed) -> Features, {objective: labels}, {objective: weights}

An objective owns its data checks, labels, head, loss, measures and baseline (google-research/bert run_pretraining.py). The models
that learn objectives are in bert_keras/optimization/pretrainers.py.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ALL_ROWS,
    INPUT_MASK,
    INPUT_WORD_IDS,
    LABEL_RATE_TOLERANCE,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    OUTPUT_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
    WorkerRows,
)
from bert_keras.fields import Masking
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead, NextSentenceHead, ReplacedTokenHead
from bert_keras.optimization.losses import GlobalMean, binary_cross_entropy, cross_entropy

# TensorFlow is imported by the functions that label: learning labelled batches needs none of it, on another backend.
if TYPE_CHECKING:
    from bert_keras.text.masking import Pieces

Features = dict[str, Any]
Labelled = tuple[Features, Any, Any]  # the model's features, labels and weights


class Cost(NamedTuple):
    """The cost of an objective for one row of tokens, which `bert-keras plan` adds to that of the encoder.

    shapes: of the head's variables, by name
    products: multiplications, each with an addition, of the head's matrix products, forward
    reads: the tokens of the row that the encoder reads
    """

    shapes: dict[str, tuple[int, ...]]
    products: int
    reads: int


class Objective:
    """Base of the objectives: what a model predicts about a text.

    name: of its logits, labels and weights, and of its head in a checkpoint
    reads: the encoder's output that the head reads: "sequence_output" or "pooled_output"
    perplexity: True measures exp(loss)
    fills_masks: True where the head predicts the token at [MASK]
    pair_labels: True where the labels come from a sampler of pairs
    made_labels: True where the model makes the labels, 0 or 1, while it trains: measures the share of label 1 as "label_rate"

    Labels int32 and weights float32 have the leading shape of the logits; negative labels do not count. A subclass is a frozen
    dataclass. It must have `name`, `reads`, `label`, `head` and `logits`. `bert-keras pretrain` sets its fields by name, from
    `pieces`, `masking` and the settings of the training; any other field is a setting of its own, with a flag.
    """

    name: ClassVar[str]
    reads: ClassVar[str]
    perplexity: ClassVar[bool] = False
    fills_masks: ClassVar[bool] = False
    pair_labels: ClassVar[bool] = False
    made_labels: ClassVar[bool] = False

    @classmethod
    def check_members(cls) -> None:
        """Raises BertKerasError for a class without a member that every objective must have."""
        needed = ("name", "reads", "label", "head", "logits")
        if lacking := [one for one in needed if getattr(cls, one, None) is getattr(Objective, one, None)]:
            raise BertKerasError(
                f"{cls.__name__} lacks {', '.join(lacking)}; help(bert_keras.Objective) describes its members."
            )

    def check(self, sample: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Yields warnings about instances [N, ...]. Raises ValueError on instances that cannot be trained on."""
        yield from ()

    def label(self, features: Features, *, seed: Any, worker_rows: WorkerRows = ALL_ROWS) -> Labelled:
        """Features and labels in graph, a function of features and seed, int [2].

        The objectives of a recipe label in its order, and each one gets the features that the last one returned: an objective
        that changes tokens stands before the masked LM, whose positions it would move.

        worker_rows: the rows that the features are of a batch; the labels are those of the same rows in the whole batch, so draw
            for `worker_rows.count` times as many rows and take the part `worker_rows.index`
        """
        raise NotImplementedError

    def head(self, encoder: BertEncoder) -> keras.layers.Layer:
        """The head on the encoder."""
        raise NotImplementedError

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """The logits of the head on the encoder's outputs."""
        raise NotImplementedError

    def loss(self) -> GlobalMean:
        """The mean loss: cross-entropy unless overridden."""
        return GlobalMean(cross_entropy)

    def surprise(self, labels: Any, logits: Any, losses: Any) -> Any:
        """-log p(label), whose mean's exp is the perplexity: the losses, unless they hold more than that."""
        return losses

    def counted(self, sample: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Instances [N, ...] whose `input_mask` is 1 on the tokens that a baseline of unigrams counts: all tokens."""
        return sample

    def correct(self, labels: Any, logits: Any) -> Any:
        """1 where the prediction is correct: float32, shaped as the labels."""
        chosen = ops.cast(ops.argmax(logits, axis=-1), "int32")
        return ops.cast(chosen == ops.cast(labels, "int32"), "float32")

    def baseline(self, labels: np.ndarray, weights: np.ndarray) -> float | None:
        """The accuracy of always predicting the most frequent label; None where the labels depend on the model."""
        _, counts = np.unique(labels[weights > 0], return_counts=True)
        return float(counts.max() / counts.sum()) if counts.size else None


class _PredictedTokens(Objective):
    """Predicts the token at each of P positions."""

    name: ClassVar[str] = "masked_lm"
    reads: ClassVar[str] = SEQUENCE_OUTPUT
    perplexity: ClassVar[bool] = True

    def head(self, encoder: BertEncoder) -> MaskedLMHead:
        return MaskedLMHead(encoder, name=self.name, dtype=encoder.dtype_policy)

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, P, V]: the vocabulary is compared with the predicted positions only."""
        if OUTPUT_POSITIONS in features:
            return head(outputs[SEQUENCE_OUTPUT])
        return head(outputs[SEQUENCE_OUTPUT], features[MASKED_LM_POSITIONS])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(_PredictedTokens):
    """Predicts the masked tokens (Devlin et al. 2019, sec. 3.1, task 1).

    masking: the fraction of tokens to mask, and how; pieces: the properties of the vocabulary that masking reads.

    Each step draws its masks (dynamic masking: Liu et al. 2019, sec. 4.1); features with `masked_lm_ids`, from a file, keep their
    own.
    """

    fills_masks: ClassVar[bool] = True

    pieces: Pieces
    masking: Masking = Masking()

    def check(self, sample: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Raises ValueError on instances whose masks predict nothing."""
        if MASKED_LM_WEIGHTS in sample and not np.any(sample[MASKED_LM_WEIGHTS] > 0):
            raise BertKerasError(
                f"none of {len(sample[MASKED_LM_WEIGHTS]):,} records has a masked position to predict; give other records."
            )
        yield from ()

    def label(self, features: Features, *, seed: Any, worker_rows: WorkerRows = ALL_ROWS) -> Labelled:
        """Features -> the same with masked tokens, int32 [B, P], float32 [B, P]."""
        from bert_keras.text.masking import mask

        if MASKED_LM_IDS not in features:
            features = mask(
                features, seed=seed, pieces=self.pieces, masking=self.masking, worker_rows=worker_rows
            )
        return features, features[MASKED_LM_IDS], features[MASKED_LM_WEIGHTS]


@dataclasses.dataclass(frozen=True)
class LeftToRight(_PredictedTokens):
    """Predicts each token from the tokens before it, with a `causal` encoder (Devlin et al. 2019, sec. 5.1 and A.4).

    The state at position i predicts the token at i + 1, [SEP] included. No token is masked.
    """

    def check(self, sample: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Raises ValueError on instances with masks."""
        if MASKED_LM_IDS in sample:
            raise BertKerasError(
                "these records have masks, and left to right reads whole text; write records without masks."
            )
        yield from ()

    def label(self, features: Features, *, seed: Any, worker_rows: WorkerRows = ALL_ROWS) -> Labelled:
        """Features -> the same with every position predicted, int32 [B, S - 1], float32 [B, S - 1]."""
        from bert_keras.text.masking import ask_next

        features = ask_next(features)
        return features, features[MASKED_LM_IDS], features[MASKED_LM_WEIGHTS]

    def head(self, encoder: BertEncoder) -> MaskedLMHead:
        """Raises ValueError where attention is not causal: the encoder would read the label."""
        if not encoder.config.causal:
            raise BertKerasError(
                "LeftToRight got an encoder that attends to later tokens; build it with BertConfig(causal=True)."
            )
        return super().head(encoder)


@dataclasses.dataclass(frozen=True)
class SentencePair(Objective):
    """Classifies a pair of segments: 0 where the second follows the first (Devlin et al. 2019, sec. 3.1, task 2).

    The sampler defines label 1: a random second segment (next sentence), or swapped segments (sentence order, Lan et al. 2020,
    sec. 3.1). Reads `next_sentence_labels`, int32 [B] or [B, 1].
    """

    name: ClassVar[str] = "next_sentence"
    reads: ClassVar[str] = POOLED_OUTPUT
    pair_labels: ClassVar[bool] = True

    def check(self, sample: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Raises ValueError where all labels are equal; warns where their rate is far from one half."""
        rate, count = float(np.mean(sample[NEXT_SENTENCE_LABEL])), len(sample[NEXT_SENTENCE_LABEL])
        if rate in (0.0, 1.0):
            raise BertKerasError(
                f"all of {count:,} sentence-pair labels are {rate:.0f}, and both are needed; give documents of several lines, "
                f"with blank lines between documents, and lines shorter than seq_length, {sample[INPUT_WORD_IDS].shape[1]}."
            )
        if abs(rate - 0.5) > LABEL_RATE_TOLERANCE:
            yield (
                f"warning: {rate:.1%} of {count:,} sentence-pair labels are 1, expected about 50 %; documents have few lines: "
                "separate only documents by blank lines, or set strict"
            )

    def label(self, features: Features, *, seed: Any, worker_rows: WorkerRows = ALL_ROWS) -> Labelled:
        """Features -> the same, int32 [B], float32 [B] of ones."""
        import tensorflow as tf

        labels = tf.reshape(features[NEXT_SENTENCE_LABEL], [-1])
        return features, labels, tf.ones_like(labels, tf.float32)

    def head(self, encoder: BertEncoder) -> NextSentenceHead:
        return NextSentenceHead(config=encoder.config, name=self.name, dtype=encoder.dtype_policy)

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, 2]."""
        return head(outputs[POOLED_OUTPUT])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokens(Objective):
    """Finds the tokens that a generator replaced (Clark et al. 2020, sec. 2). ElectraPretrainer makes the labels.

    replaced_weight: weight of its loss; that of the generator's masked LM is 1
    generator_share: the generator's width as a fraction of the encoder's
    """

    name: ClassVar[str] = "replaced_token"
    reads: ClassVar[str] = SEQUENCE_OUTPUT
    made_labels: ClassVar[bool] = True

    replaced_weight: float = 50.0
    generator_share: float = 0.25

    def label(self, features: Features, *, seed: Any, worker_rows: WorkerRows = ALL_ROWS) -> Labelled:
        """Features unchanged, labels 0 (no token is replaced yet), weights float32 [B, S]: 1 on all but padding."""
        import tensorflow as tf

        weights = tf.cast(features[INPUT_MASK], tf.float32)
        return features, tf.zeros_like(features[INPUT_MASK]), weights

    def head(self, encoder: BertEncoder) -> ReplacedTokenHead:
        return ReplacedTokenHead(config=encoder.config, name=self.name, dtype=encoder.dtype_policy)

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, S], over 0 where the token is predicted to be replaced."""
        return head(outputs[SEQUENCE_OUTPUT])

    def loss(self) -> GlobalMean:
        return GlobalMean(binary_cross_entropy)

    def correct(self, labels: Any, logits: Any) -> Any:
        return ops.cast((logits > 0) == (labels > 0), "float32")

    def baseline(self, labels: np.ndarray, weights: np.ndarray) -> None:
        """None: the generator makes the labels."""


def reads_masked_positions(objectives: Sequence[Objective]) -> bool:
    """True where the objectives read no positions of `sequence_output` but the masked ones.

    An objective of a user's own may read all of them, and so may a `head` or `logits` of a user's own.
    """
    masked = [_reads_as(one, MaskedLM) for one in objectives]
    known = [_reads_as(one, MaskedLM) or _reads_as(one, SentencePair) for one in objectives]
    return any(masked) and all(known)


def _reads_as(objective: Objective, kind: type[Objective]) -> bool:
    """True where an objective has the head and logits of a kind of this module."""
    own = type(objective)
    return isinstance(objective, kind) and own.head is kind.head and own.logits is kind.logits


def check_parts(objectives: Sequence[Objective], worker_rows: WorkerRows) -> None:
    """Raises BertKerasError for an objective of a user's own that cannot label a part of a batch."""
    for one in objectives if worker_rows != ALL_ROWS else ():
        if "worker_rows" not in inspect.signature(one.label).parameters:
            raise BertKerasError(
                f"{type(one).__name__}.label has no argument `worker_rows`, the rows of one of several workers; add it, or "
                "train with one worker."
            )


def label(
    features: Features, *, objectives: Sequence[Objective], seed: Any, worker_rows: WorkerRows = ALL_ROWS
) -> tuple[Features, dict[str, Any], dict[str, Any]]:
    """Labels of all objectives, as `fit` takes them: x, y and sample_weight.

    seed: int32 or int64 [2]; each objective has a seed of its own. Equal features and seeds give equal results. An objective of
        a user's own, wherever it stands, leaves the seeds of the others as they are: masks, and what is measured on them, compare
    worker_rows: the rows that the features are of a batch; their labels are those that they have in the whole batch

    Raises BertKerasError for an objective that changes the tokens after they were masked.
    """
    import tensorflow as tf

    labels, weights = {}, {}
    more = {} if worker_rows == ALL_ROWS else {"worker_rows": worker_rows}
    check_parts(objectives, worker_rows)
    ours_first = sorted(objectives, key=lambda one: type(one).__module__ != __name__)
    numbers = {one.name: i for i, one in enumerate(ours_first)}
    for one in objectives:
        own = tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int64), numbers[one.name])
        before = features
        features, labels[one.name], weights[one.name] = one.label(features, seed=own, **more)
        if MASKED_LM_POSITIONS in before and features[INPUT_WORD_IDS] is not before[INPUT_WORD_IDS]:
            raise BertKerasError(
                f"{one.name} changes {INPUT_WORD_IDS} after tokens were masked, and the masked positions would be wrong; list it "
                "before the masked LM, and give records without masks."
            )
    return features, labels, weights
