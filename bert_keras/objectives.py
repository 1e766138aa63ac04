"""What pre-training asks of a text, and the models that `fit` trains on it.

    Features int32 [B, S] -> label(features, objectives, seed) -> Features, {objective: labels}, {objective: weights}
    Pretrainer(encoder, objectives): Features -> {objective: logits};  compile(optimizer), then `fit`

An objective owns its labels, its head, its loss and what is measured. Its loss is the mean over all weights of a global batch,
whatever the number of replicas; the loss of a model is the sum over its objectives (google-research/bert run_pretraining.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import keras
import tensorflow as tf
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.heads import MaskedLMHead, NextSentenceHead, ReplacedTokenHead
from bert_keras.optimization import GlobalMean, cross_entropy, known_weights
from bert_keras.settings import Masking
from bert_keras.text.masking import Pieces, ask_next, mask
from bert_keras.training_model import TrainingSteps

Features = dict[str, Any]


class Objective(Protocol):
    """A question about a text. Labels int32 and weights float32 have the logits' leading shape; negative labels do not count."""

    name: ClassVar[str]  # of its logits, labels and weights, and of its head in a checkpoint
    reads: ClassVar[str]  # the encoder's output that the head stands on
    perplexity: ClassVar[bool]  # whether exp(loss) is measured

    def label(self, features: Features, *, seed: Any) -> tuple[Features, Any, Any]:
        """Features as the model sees them, labels and weights; a function of features and seed, int [2], in graph."""

    def head(self, encoder: BertEncoder) -> keras.layers.Layer:
        """What stands on the encoder."""

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """The head's answer to the encoder's outputs."""

    def loss(self) -> GlobalMean:
        """The mean of what an answer costs."""

    def correct(self, labels: Any, logits: Any) -> Any:
        """1 where an answer is right: float32, shaped as the labels."""


class _Classes:
    """Objectives whose answer is one of several classes."""

    def loss(self) -> GlobalMean:
        return GlobalMean(cross_entropy)

    def correct(self, labels: Any, logits: Any) -> Any:
        chosen = ops.cast(ops.argmax(logits, axis=-1), "int32")
        return ops.cast(chosen == ops.cast(labels, "int32"), "float32")


class _AskedTokens(_Classes):
    """Which token stands at each of P positions."""

    name: ClassVar[str] = "masked_lm"
    reads: ClassVar[str] = SEQUENCE_OUTPUT
    perplexity: ClassVar[bool] = True

    def head(self, encoder: BertEncoder) -> MaskedLMHead:
        return MaskedLMHead(encoder, name=self.name, dtype=encoder.dtype_policy)

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, P, V]: only the asked positions meet the vocabulary."""
        return head(outputs[SEQUENCE_OUTPUT], features[MASKED_LM_POSITIONS])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(_AskedTokens):
    """The tokens that were hidden (Devlin et al. 2019, sec. 3.1, task 1).

    masking: how much is hidden, and how; pieces: what masking has to know of the vocabulary.

    Features that carry `masked_lm_ids` already, from a file, keep the masks that they came with.
    """

    pieces: Pieces
    masking: Masking = Masking()

    def label(self, features: Features, *, seed: Any) -> tuple[Features, Any, Any]:
        """Features -> the same with pieces hidden, int32 [B, P], float32 [B, P]."""
        if MASKED_LM_IDS not in features:
            features = mask(features, seed=seed, pieces=self.pieces, masking=self.masking)
        return features, features[MASKED_LM_IDS], features[MASKED_LM_WEIGHTS]


@dataclasses.dataclass(frozen=True)
class LeftToRight(_AskedTokens):
    """Each token from those before it, for an encoder that is `causal` (Devlin et al. 2019, sec. 5.1; GPT).

    The state at position i answers for the token at i + 1, for [SEP] too; nothing is hidden.
    """

    def label(self, features: Features, *, seed: Any) -> tuple[Features, Any, Any]:
        """Features -> the same with every position asked, int32 [B, S - 1], float32 [B, S - 1]."""
        features = ask_next(features)
        return features, features[MASKED_LM_IDS], features[MASKED_LM_WEIGHTS]

    def head(self, encoder: BertEncoder) -> MaskedLMHead:
        """Raises ValueError where attention is not causal: the encoder would read the answer."""
        if not encoder.config.causal:
            raise BertKerasError(
                "LeftToRight on an encoder that sees what follows; build it with BertConfig(causal=True)"
            )
        return super().head(encoder)


@dataclasses.dataclass(frozen=True)
class SentencePair(_Classes):
    """Whether the second segment belongs where it stands: 0 if it does (Devlin et al. 2019, sec. 3.1, task 2).

    1 is what the sampler of the pairs makes of it: a random text (next sentence), or swapped segments (sentence order, Lan et
    al. 2020, sec. 3.1). Reads `next_sentence_labels`, int32 [B] or [B, 1].
    """

    name: ClassVar[str] = "next_sentence"
    reads: ClassVar[str] = POOLED_OUTPUT
    perplexity: ClassVar[bool] = False

    def label(self, features: Features, *, seed: Any) -> tuple[Features, Any, Any]:
        """Features -> the same, int32 [B], float32 [B] of ones."""
        labels = tf.reshape(features[NEXT_SENTENCE_LABEL], [-1])
        return features, labels, tf.ones_like(labels, tf.float32)

    def head(self, encoder: BertEncoder) -> NextSentenceHead:
        return NextSentenceHead(config=encoder.config, name=self.name, dtype=encoder.dtype_policy)

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, 2]."""
        return head(outputs[POOLED_OUTPUT])


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
    """Whether each token was replaced by a generator's (Clark et al. 2020, sec. 2). ElectraPretrainer makes the labels."""

    name: ClassVar[str] = "replaced_token"
    reads: ClassVar[str] = SEQUENCE_OUTPUT
    perplexity: ClassVar[bool] = False

    def label(self, features: Features, *, seed: Any) -> tuple[Features, Any, Any]:
        """Features as they are; every real token is asked: weights float32 [B, S], labels of 0 as long as nothing is replaced."""
        weights = tf.cast(features[INPUT_MASK], tf.float32)
        return features, tf.zeros_like(features[INPUT_MASK]), weights

    def head(self, encoder: BertEncoder) -> ReplacedTokenHead:
        return ReplacedTokenHead(config=encoder.config, name=self.name, dtype=encoder.dtype_policy)

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, S], over 0 where a token looks replaced."""
        return head(outputs[SEQUENCE_OUTPUT])

    def loss(self) -> GlobalMean:
        return GlobalMean(binary_cross_entropy)

    def correct(self, labels: Any, logits: Any) -> Any:
        return ops.cast((logits > 0) == (labels > 0), "float32")


@keras.saving.register_keras_serializable("bert_keras")
def binary_cross_entropy(labels: Any, logits: Any) -> Any:
    """Sigmoid cross-entropy of each slot: labels of 0 and 1, float [...] -> float32 [...]."""
    labels, logits = ops.cast(labels, "float32"), ops.cast(logits, "float32")
    return ops.softplus(logits) - labels * logits


def label(
    features: Features, *, objectives: Sequence[Objective], seed: Any
) -> tuple[Features, dict[str, Any], dict[str, Any]]:
    """All objectives' labels in turn: what `fit` takes as x, y and sample_weight.

    seed: int32 or int64 [2]; each objective draws from its own part of it. Equal features and seeds give equal results.
    """
    labels, weights = {}, {}
    for i, objective in enumerate(objectives):
        own = tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int64), i)
        features, labels[objective.name], weights[objective.name] = objective.label(features, seed=own)
    return features, labels, weights


class Perplexity(keras.metrics.Mean):
    """exp of a weighted mean of losses."""

    def result(self) -> Any:
        """The measure so far."""
        return ops.exp(super().result())


def _measures(objective: Objective) -> dict[str, keras.metrics.Mean]:
    """Weighted means over all batches and replicas since the last reset."""
    kinds = {"loss": keras.metrics.Mean, "accuracy": keras.metrics.Mean, "perplexity": Perplexity}
    if not objective.perplexity:
        del kinds["perplexity"]
    return {measure: kind(name=f"{objective.name}_{measure}") for measure, kind in kinds.items()}


def _check_output(objective: Objective, encoder: BertEncoder) -> None:
    if objective.reads not in encoder.outputs_wanted:
        raise BertKerasError(
            f"{objective.name} reads {objective.reads}; this encoder computes {', '.join(encoder.outputs_wanted)}: "
            "add it to BertEncoder(outputs=...)"
        )


class Pretrainer(TrainingSteps, keras.Model):
    """An encoder with a head for each objective: Features -> {objective: logits}.

    objective_weights: what each objective's mean is multiplied by in the sum that is minimised; 1 unless given.
    encoders: encoders that some objectives' heads stand on instead, by objective.

    `compile(optimizer)` is enough: loss and measures come from the objectives. `fit` and `evaluate` take the three dicts of
    `label`, and log `loss`, and `<objective>_loss`, `<objective>_accuracy` and `<objective>_perplexity`, which are means over the
    weights of the whole epoch. `encoder` is what survives, its pooler untrained where no objective reads it; `heads` are by
    objective.
    Raises ValueError where the encoder does not compute what an objective reads, or two objectives share a name.
    """

    def __init__(
        self,
        encoder: BertEncoder,
        objectives: Sequence[Objective],
        *,
        objective_weights: Mapping[str, float] | None = None,
        encoders: Mapping[str, BertEncoder] | None = None,
        name: str = "pretrainer",
    ) -> None:
        super().__init__(name=name, dtype=encoder.dtype_policy)
        self.objectives = tuple(objectives)
        names = [objective.name for objective in self.objectives]
        self.objective_weights = dict.fromkeys(names, 1.0) | dict(objective_weights or {})
        if not names or len(set(names)) < len(names) or set(self.objective_weights) != set(names):
            raise BertKerasError(
                f"objectives {names}, weights for {sorted(self.objective_weights)}; give one or more objectives of "
                "different names, and weights for these alone"
            )
        self.encoder = encoder
        self.encoders = dict.fromkeys(names, encoder) | dict(encoders or {})
        for objective in self.objectives:
            _check_output(objective, self.encoders[objective.name])
        for one in self.encoders.values():
            if POOLED_OUTPUT not in [o.reads for o in self.objectives if self.encoders[o.name] is one]:
                one.pooler.trainable = False  # without a gradient, Keras would warn
        self.heads = {
            objective.name: objective.head(self.encoders[objective.name]) for objective in self.objectives
        }
        self._losses_of = {objective.name: objective.loss() for objective in self.objectives}
        self._measures_of = {objective.name: _measures(objective) for objective in self.objectives}
        self.built = True

    def call(self, features: Features, training: bool = False) -> dict[str, Any]:
        """Features -> {objective: logits}."""
        outputs = self.encoder(features, training=training)
        return {
            objective.name: objective.logits(self.heads[objective.name], outputs, features)
            for objective in self.objectives
        }

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The weighted sum of the objectives' global means."""
        y, sample_weight = self._asked(y, y_pred, sample_weight)
        losses = [
            self.objective_weights[name] * loss(y[name], y_pred[name], sample_weight[name])
            for name, loss in self._losses_of.items()
        ]
        return sum(losses)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """What is logged, this batch counted in."""
        y, sample_weight = self._asked(y, y_pred, sample_weight)
        for objective in self.objectives:
            name = objective.name
            # The same operations as in `compute_loss`, which TensorFlow then runs once.
            losses = self._losses_of[name].call(y[name], y_pred[name])
            right = objective.correct(y[name], y_pred[name])
            weights = known_weights(y[name], sample_weight[name])
            for measure, metric in self._measures_of[name].items():
                metric.update_state(right if measure == "accuracy" else losses, weights)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict[str, Any]:
        """The measures since the last reset.

        `loss` is made of the objectives' own: Keras weighs the loss of each batch by its rows, padding rows included.
        """
        losses = [
            self.objective_weights[name] * measures["loss"].result()
            for name, measures in self._measures_of.items()
        ]
        return super().get_metrics_result() | {"loss": sum(losses)}

    def _asked(self, y: Any, y_pred: Any, sample_weight: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Labels and weights by objective."""
        return y, sample_weight


# What ElectraPretrainer returns beside the logits: int32 [B, S], 1 where a token was replaced.
REPLACED = "replaced"


class ElectraPretrainer(Pretrainer):
    """A small generator fills the hidden positions, and the encoder tells which tokens it replaced (Clark et al. 2020).

    encoder: the discriminator, which is what survives.
    masked_lm: what is hidden, and how; the generator learns it.
    generator: its configuration, of the encoder's vocabulary, positions, types and embedding width; the `generator_config` of a
        quarter unless given. It reads the encoder's tables and their norm, as google-research/electra modeling.py does; its
        other weights are its own.
    replaced_weight: of the discriminator's mean beside the generator's, whose weight is 1.

    Features, with `masked_lm_ids` and `masked_lm_weights`, -> logits "masked_lm" [B, P, V] and "replaced_token" [B, S], and
    the labels that sampling made, "replaced" int32 [B, S]. The generator's tokens are drawn from its distribution, evaluating
    too; no gradient passes through the draw. A drawn token that equals the original is no replacement. The hidden positions are
    those of `masked_lm`, all different; the original's code draws them with replacement, so that it hides fewer.
    Raises ValueError where the generator cannot read the encoder's tables.
    """

    def __init__(
        self,
        encoder: BertEncoder,
        masked_lm: MaskedLM,
        *,
        generator: BertConfig | None = None,
        replaced_weight: float = 50.0,
        name: str = "electra_pretrainer",
    ) -> None:
        small = BertEncoder(
            generator or generator_config(encoder.config),
            outputs=(SEQUENCE_OUTPUT,),
            embeddings=encoder.embeddings,
            name="generator",
            dtype=encoder.dtype_policy,
        )
        super().__init__(
            encoder,
            (masked_lm, ReplacedTokens()),
            objective_weights={ReplacedTokens.name: replaced_weight},
            encoders={masked_lm.name: small},
            name=name,
        )
        self.generator = small
        self._draws = keras.random.SeedGenerator()

    def call(self, features: Features, training: bool = False) -> dict[str, Any]:
        """Features -> logits by objective, and the labels of the replaced tokens."""
        masked_lm, replaced_tokens = self.objectives
        hidden = self.generator(features, training=training)
        guesses = masked_lm.logits(self.heads[masked_lm.name], hidden, features)
        filled, replaced = self._fill(features, ops.stop_gradient(guesses))
        outputs = self.encoder(features | {INPUT_WORD_IDS: filled}, training=training)
        found = replaced_tokens.logits(self.heads[replaced_tokens.name], outputs, features)
        return {masked_lm.name: guesses, replaced_tokens.name: found, REPLACED: replaced}

    def _fill(self, features: Features, logits: Any) -> tuple[Any, Any]:
        """A token drawn for each hidden position; the filled ids and which differ from the original: int32 [B, S]."""
        original = _put(features, features[MASKED_LM_IDS])
        rows = ops.reshape(logits, (-1, logits.shape[-1]))
        drawn = keras.random.categorical(rows, 1, dtype="int32", seed=self._draws)
        filled = _put(features, ops.reshape(drawn, ops.shape(features[MASKED_LM_IDS])))
        return filled, ops.cast(filled != original, "int32")

    def _asked(self, y: Any, y_pred: Any, sample_weight: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {**y, ReplacedTokens.name: y_pred[REPLACED]}, sample_weight


def generator_config(config: BertConfig, *, share: float = 0.25) -> BertConfig:
    """A generator's configuration beside a discriminator's: `share` of its width, heads and intermediate size.

    share: 1/4 at ELECTRA small and large, 1/3 at base (google-research/electra configure_pretraining.py).
    """
    heads = max(1, round(config.num_heads * share))
    return dataclasses.replace(
        config,
        embedding_size=config.embedding_width,
        hidden_size=max(1, round(config.hidden_size * share / heads)) * heads,
        num_heads=heads,
        intermediate_size=max(1, round(config.intermediate_size * share)),
    )


def _put(features: Features, values: Any) -> Any:
    """The word ids with values, int32 [B, P], at the asked positions."""
    ids, positions = features[INPUT_WORD_IDS], features[MASKED_LM_POSITIONS]
    length = ops.shape(ids)[1]
    # What fills up to P goes to one more column, which is cut off.
    columns = ops.where(features[MASKED_LM_WEIGHTS] > 0, positions, length)
    rows = ops.broadcast_to(ops.expand_dims(ops.arange(ops.shape(ids)[0]), -1), ops.shape(columns))
    places = ops.reshape(ops.stack([rows, columns], axis=-1), (-1, 2))
    wider = ops.pad(ids, [[0, 0], [0, 1]])
    return ops.scatter_update(wider, places, ops.reshape(values, (-1,)))[:, :length]
