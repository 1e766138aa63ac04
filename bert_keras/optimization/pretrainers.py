"""The models that `fit` trains on objectives.

    Pretrainer(encoder, objectives): Features -> {objective: logits};  compile(optimizer), then `fit`

The loss of an objective is the mean over all weights of a global batch, for any number of replicas. The loss of a model is the
weighted sum over its objectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from bert_keras.config import BertConfig, generator_config
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    OUTPUT_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.losses import GlobalMean, known_weights
from bert_keras.optimization.objectives import (
    Features,
    MaskedLM,
    Objective,
    ReplacedTokens,
    reads_masked_positions,
)
from bert_keras.optimization.training_model import TrainingSteps


class WeightedMean(keras.metrics.Mean):
    """A weighted mean; NaN where no weight was over 0, since a mean of nothing is not 0."""

    def result(self) -> Any:
        return ops.where(self.count > 0, super().result(), float("nan"))


class Perplexity(WeightedMean):
    """exp of a weighted mean of losses."""

    def result(self) -> Any:
        # A mean over 88, whose exp is no finite float32, counts as 88.
        return ops.exp(ops.minimum(super().result(), 88.0))


def _measures(objective: Objective) -> dict[str, keras.metrics.Mean]:
    """Weighted means over all batches and replicas since the last reset."""
    kinds: dict[str, type[keras.metrics.Mean]] = {"loss": WeightedMean, "accuracy": WeightedMean}
    kinds |= {"perplexity": Perplexity} if objective.perplexity else {}
    kinds |= {"label_rate": WeightedMean} if objective.made_labels else {}
    return {measure: kind(name=f"{objective.name}_{measure}") for measure, kind in kinds.items()}


def _check_output(objective: Objective, encoder: BertEncoder) -> None:
    if objective.reads not in encoder.outputs_wanted:
        raise BertKerasError(
            f"{objective.name} reads {objective.reads}; this encoder computes {', '.join(encoder.outputs_wanted)}: "
            "add it to BertEncoder(outputs=...)"
        )


class Pretrainer(TrainingSteps, keras.Model):
    """An encoder with a head for each objective: Features -> {objective: logits}.

    objective_weights: the weight of each objective's mean in the loss; 1 unless given.
    encoders: other encoders, by the objective whose head reads them.
    count_tokens: logs `tokens` too, the number of tokens without padding.

    `compile(optimizer)` is enough: loss and measures come from the objectives. `fit` and `evaluate` take the three dicts of
    `label`, and log `loss`, and `<objective>_loss`, `<objective>_accuracy` and `<objective>_perplexity`, which are means over the
    weights of the whole epoch. After training, use `encoder`; its pooler is untrained where no objective reads it. `heads` are by
    objective.
    Raises ValueError where the encoder does not compute an output that an objective reads, or two objectives share a name.
    """

    companions: ClassVar[tuple[str, ...]] = ()  # attributes with other encoders to keep after training

    def __init__(
        self,
        encoder: BertEncoder,
        objectives: Sequence[Objective],
        *,
        objective_weights: Mapping[str, float] | None = None,
        encoders: Mapping[str, BertEncoder] | None = None,
        count_tokens: bool = False,
        name: str = "pretrainer",
    ) -> None:
        super().__init__(name=name, dtype=encoder.dtype_policy)
        self.objectives = tuple(objectives)
        for one in self.objectives:
            one.check_members()
        names = [objective.name for objective in self.objectives]
        self.objective_weights = dict.fromkeys(names, 1.0) | dict(objective_weights or {})
        if not names or len(set(names)) < len(names) or set(self.objective_weights) != set(names):
            raise BertKerasError(
                f"objectives are {names}, with weights for {sorted(self.objective_weights)}; give one or more objectives of "
                "different names, and weights for these only."
            )
        self.encoder = encoder
        self.encoders = dict.fromkeys(names, encoder) | dict(encoders or {})
        for objective in self.objectives:
            _check_output(objective, self.encoders[objective.name])
        self.heads = {one.name: one.head(self.encoders[one.name]) for one in self.objectives}
        self._losses_of = {one.name: one.loss() for one in self.objectives}
        self._measures_of = {one.name: _measures(one) for one in self.objectives}
        self._tokens = keras.metrics.Sum(name="tokens") if count_tokens else None
        self.built = True

    def _trained(self, variables: Iterable[keras.Variable]) -> list[keras.Variable]:
        """The variables but for poolers that no objective reads: they get no gradient, of which Keras would warn."""
        read = {id(self.encoders[one.name]) for one in self.objectives if one.reads == POOLED_OUTPUT}
        poolers = [one.pooler for one in self.encoders.values() if id(one) not in read]
        unread = {id(variable) for pooler in poolers for variable in pooler.variables}
        return [one for one in variables if id(one) not in unread]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that the objectives train."""
        return self._trained(super().trainable_variables)

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        """The weights that the objectives train."""
        return self._trained(super().trainable_weights)

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """All other variables."""
        trained = {id(one) for one in self.trainable_variables}
        return [one for one in self.variables if id(one) not in trained]

    @classmethod
    def of(
        cls, encoder: BertEncoder, objectives: Sequence[Objective], *, count_tokens: bool = False
    ) -> Pretrainer:
        """The model that learns these objectives, of the class that `choose_pretrainer` returns for them."""
        return cls(encoder, objectives, count_tokens=count_tokens)

    def compile(  # type: ignore[override]
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **keywords: Any,
    ) -> None:
        """As `TrainingModel.compile`. Raises BertKerasError for a loss, its weights or metrics: the objectives have theirs."""
        given = {
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
        }
        if named := [name for name, value in given.items() if value is not None]:
            raise BertKerasError(
                f"compile was given {', '.join(named)}, and the objectives of a {type(self).__name__} have losses and metrics "
                "of their own; leave them out, and give objective_weights to weigh the objectives."
            )
        super().compile(optimizer, **keywords)

    def call(self, features: Features, training: bool = False) -> dict[str, Any]:
        features = self._at_masked_positions(features, self.encoder)
        outputs = self.encoder(features, training=training)
        return {one.name: one.logits(self.heads[one.name], outputs, features) for one in self.objectives}

    def _at_masked_positions(self, features: Features, encoder: BertEncoder) -> Features:
        """The features with `output_positions` where only the masked positions of an encoder's last block are read."""
        readers = [one for one in self.objectives if self.encoders[one.name] is encoder]
        if not (encoder.takes_output_positions and reads_masked_positions(readers)):
            return features
        return {**features, OUTPUT_POSITIONS: features[MASKED_LM_POSITIONS]}

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The weighted sum of the objectives' global means. Raises BertKerasError where layers add losses of their own."""
        if self.losses:
            raise BertKerasError(
                "a layer adds a loss of its own, such as a regularizer's, which no objective counts; leave it out, or give the "
                "optimizer a weight decay."
            )
        y, sample_weight = self._targets(y, y_pred, sample_weight)
        losses = [
            self.objective_weights[name] * loss(y[name], y_pred[name], sample_weight[name])
            for name, loss in self._losses_of.items()
        ]
        return sum(losses)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """The logs, this batch included."""
        if self._tokens is not None:
            self._tokens.update_state(x[INPUT_MASK])
        y, sample_weight = self._targets(y, y_pred, sample_weight)
        for objective in self.objectives:
            name = objective.name
            # The same operations as in `compute_loss`, which TensorFlow then runs once.
            losses = self._losses_of[name].call(y[name], y_pred[name])
            right = objective.correct(y[name], y_pred[name])
            weights = known_weights(y[name], sample_weight[name])
            surprise = objective.surprise(y[name], y_pred[name], losses)
            values = {"accuracy": right, "label_rate": y[name], "perplexity": surprise}
            for measure, metric in self._measures_of[name].items():
                metric.update_state(values.get(measure, losses), weights)
        return self.get_metrics_result()

    def loss_terms(self, y: Any, sample_weight: Any) -> Iterator[tuple[GlobalMean, Any, Any]]:
        """Each objective's loss with its labels and its weights. Labels that `_targets` replaces keep their weights."""
        for name, loss in self._losses_of.items():
            yield loss, y[name], sample_weight[name]

    def get_metrics_result(self) -> dict[str, Any]:
        """The measures since the last reset.

        `loss` is the sum over the objectives that had a label: Keras would weigh the loss of a batch by its rows, padding rows
        included.
        """
        means = {name: measures["loss"] for name, measures in self._measures_of.items()}
        losses = [
            self.objective_weights[name] * ops.where(mean.count > 0, mean.result(), 0.0)
            for name, mean in means.items()
        ]
        return super().get_metrics_result() | {"loss": sum(losses)}

    def _targets(self, y: Any, y_pred: Any, sample_weight: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Labels and weights by objective."""
        return y, sample_weight


# ElectraPretrainer returns this beside the logits: int32 [B, S], 1 where a token was replaced.
REPLACED = "replaced"


class ElectraPretrainer(Pretrainer):
    """A small generator fills the masked positions, and the encoder finds the replaced tokens (Clark et al. 2020, sec. 2).

    encoder: the discriminator, which is kept after training.
    masked_lm: the masking; the generator learns it.
    generator: its configuration, with the encoder's vocabulary, positions, types and embedding width; the `generator_config` of a
        quarter unless given. The generator shares the encoder's embedding tables and their norm (Clark et al. 2020, sec. 3.2;
        google-research/electra modeling.py); its other weights are its own.
    replaced_weight: weight of the discriminator's mean; that of the generator's is 1.

    Features, with `masked_lm_ids` and `masked_lm_weights`, -> logits "masked_lm" [B, P, V] and "replaced_token" [B, S], and
    the sampled labels, "replaced" int32 [B, S]. The generator's tokens are drawn from its distribution, in evaluation too; no
    gradient passes through the draw. A drawn token that equals the original is not a replacement. The masked positions are
    those of `masked_lm`, all different; the original code draws them with replacement, and so masks fewer.
    Raises ValueError where the generator cannot share the encoder's tables.
    """

    companions: ClassVar[tuple[str, ...]] = ("generator",)

    def __init__(
        self,
        encoder: BertEncoder,
        masked_lm: MaskedLM,
        *,
        generator: BertConfig | None = None,
        replaced_weight: float = ReplacedTokens.replaced_weight,
        count_tokens: bool = False,
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
            count_tokens=count_tokens,
            name=name,
        )
        self.generator = small
        self._draws = keras.random.SeedGenerator()

    @classmethod
    def of(
        cls, encoder: BertEncoder, objectives: Sequence[Objective], *, count_tokens: bool = False
    ) -> ElectraPretrainer:
        """Raises ValueError where the objectives are not MaskedLM and ReplacedTokens."""
        match objectives:
            case [MaskedLM() as masked_lm, ReplacedTokens(replaced_weight=weight, generator_share=share)]:
                generator = generator_config(encoder.config, share=share)
            case _:
                names = ", ".join(type(one).__name__ for one in objectives)
                raise BertKerasError(
                    f"objectives are {names}; give MaskedLM and ReplacedTokens for an ElectraPretrainer."
                )
        return cls(encoder, masked_lm, generator=generator, replaced_weight=weight, count_tokens=count_tokens)

    def call(self, features: Features, training: bool = False) -> dict[str, Any]:
        masked_lm, replaced_tokens = self.objectives
        masked = self._at_masked_positions(features, self.generator)
        hidden = self.generator(masked, training=training)
        guesses = masked_lm.logits(self.heads[masked_lm.name], hidden, masked)
        filled, replaced = self._fill(features, ops.stop_gradient(guesses))
        outputs = self.encoder(features | {INPUT_WORD_IDS: filled}, training=training)
        found = replaced_tokens.logits(self.heads[replaced_tokens.name], outputs, features)
        return {masked_lm.name: guesses, replaced_tokens.name: found, REPLACED: replaced}

    def _fill(self, features: Features, logits: Any) -> tuple[Any, Any]:
        """Draws a token for each masked position: the filled ids, and 1 where they differ from the original: int32 [B, S]."""
        original = _put(features, features[MASKED_LM_IDS])
        rows = ops.reshape(logits, (-1, logits.shape[-1]))
        drawn = keras.random.categorical(rows, 1, dtype="int32", seed=self._draws)
        filled = _put(features, ops.reshape(drawn, ops.shape(features[MASKED_LM_IDS])))
        return filled, ops.cast(filled != original, "int32")

    def _targets(self, y: Any, y_pred: Any, sample_weight: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {**y, ReplacedTokens.name: y_pred[REPLACED]}, sample_weight


def _put(features: Features, values: Any) -> Any:
    """The word ids with values, int32 [B, P], at the masked positions."""
    ids, positions = features[INPUT_WORD_IDS], features[MASKED_LM_POSITIONS]
    length = ops.shape(ids)[1]
    # The padding up to P goes to an extra column, which is cut off.
    columns = ops.where(features[MASKED_LM_WEIGHTS] > 0, positions, length)
    rows = ops.broadcast_to(ops.expand_dims(ops.arange(ops.shape(ids)[0]), -1), ops.shape(columns))
    indices = ops.reshape(ops.stack([rows, columns], axis=-1), (-1, 2))
    wider = ops.pad(ids, [[0, 0], [0, 1]])
    return ops.scatter_update(wider, indices, ops.reshape(values, (-1,)))[:, :length]


def choose_pretrainer(objectives: Iterable[type[Objective]]) -> type[Pretrainer]:
    """The class of the model that learns these objectives together."""
    return ElectraPretrainer if ReplacedTokens in [*objectives] else Pretrainer
