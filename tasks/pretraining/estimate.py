"""The cost of a pre-training from its settings alone: parameters, memory of a device, floating-point operations and days.

In: a Recipe with the user's settings, and the devices. Out: an Estimate, plain numbers. No TensorFlow, no Keras, no weights; the
ancestors alone are asked for their shapes, which imports both.

Parameters are exact. Memory counts what a step must hold in float32, and no buffer of an allocator or a library;
benchmarks/plan.py prints its error. What the backward pass reads of an ancestor is not known, and has no number. Operations count
matrix products, two for each multiplication and addition, as papers do.
"""

import dataclasses
import math
from typing import Any

from bert_keras.checkpoints.checkpoint import head_shapes, variable_shapes
from bert_keras.config import BERT, BertConfig, generator_config
from bert_keras.errors import BertKerasError
from bert_keras.tasks.pretraining.recipes import Recipe

FLOAT = 4  # bytes
SLOTS = 2  # values that AdamW and LAMB keep for each parameter
# Copies of the gradients in a step: as computed, clipped, and what TensorFlow holds of them until the last variable is updated.
# The third is measured, not derived: benchmarks/plan.py.
GRADIENTS = 3
# The head of each objective of a recipe, and whether it reads the pooler.
HEADS = {
    "masked_lm": ("masked_lm", False),
    "left_to_right": ("masked_lm", False),
    "sentence_pair": ("next_sentence", True),
    "replaced_token": ("replaced_token", False),
}
# What the backward pass reads of a block, in values for each token (model/layers.py). Of hidden_size: query, key, value and
# context; the input and the output of both norms; two masks of dropout, of one byte. Of intermediate_size: the slope of the
# activation, or its input, and its output. Of heads x length: the probabilities, those after dropout, and the mask.
HIDDEN_VALUES = 8.5
ACTIVATION_VALUES = {"gelu_tanh": 2, "gelu_erf": 2, "silu": 4, "relu": 2, "tanh": 2, "linear": 1}
SCORE_VALUES = 2.25
LOGIT_VALUES = 4  # of each predicted token's logits: themselves, their log-softmax and two gradients
DAY = 86_400  # seconds
UNCASED_TOKENS = 30_522  # of the English vocabulary, where no vocab_size is set


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device at the peak of a step, by what holds them. activations: None for an ancestor."""

    weights: int
    gradients: int
    optimizer_state: int
    activations: int | None

    @property
    def total(self) -> int | None:
        """The sum of the parts; None where one is not known."""
        return None if self.activations is None else sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class PhaseEstimate:
    """One phase of a pre-training: steps at one length.

    rows: instances that a device computes at once
    flops: floating-point operations of a step, over all devices
    seconds: of the phase at the stated rate; None without a rate
    """

    seq_length: int
    steps: int
    rows: int
    tokens: int
    memory: Memory
    flops: float
    seconds: float | None


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The cost of a pre-training.

    parameters: values in all weights; trainable: without poolers that no objective reads
    """

    parameters: int
    trainable: int
    devices: int
    batch_size: int
    phases: tuple[PhaseEstimate, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values: bytes, operations, tokens, seconds."""
        phases = [
            dataclasses.asdict(phase)
            | {"memory": dataclasses.asdict(phase.memory) | {"total": phase.memory.total}}
            for phase in self.phases
        ]
        return dataclasses.asdict(self) | {
            "phases": phases,
            "steps": sum(phase.steps for phase in self.phases),
            "tokens": sum(phase.tokens for phase in self.phases),
            "flops": sum(phase.flops * phase.steps for phase in self.phases),
            "days": self.days,
        }

    @property
    def days(self) -> float | None:
        """Days of all phases at the stated rate; None without a rate."""
        seconds = [phase.seconds for phase in self.phases if phase.seconds is not None]
        return sum(seconds) / DAY if len(seconds) == len(self.phases) else None


@dataclasses.dataclass(frozen=True)
class _Encoder:
    """An encoder that trains, with the objectives whose heads are on it.

    objectives: keys of HEADS
    shared: it reads another encoder's embeddings
    of_ancestors: objectives that have a `cost`
    """

    config: BertConfig
    objectives: tuple[str, ...]
    shared: bool = False
    of_ancestors: tuple[Any, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Values in each variable of the encoder and of its heads, by name."""
        found = variable_shapes(self.config)
        if self.shared:
            own = ("embeddings/projection/",)
            found = {n: s for n, s in found.items() if not n.startswith("embeddings/") or n.startswith(own)}
        heads = tuple(f"{HEADS[objective][0]}/" for objective in self.objectives)
        found |= {n: s for n, s in head_shapes(self.config).items() if n.startswith(heads)}
        for one in self.of_ancestors:
            found |= {f"{one.name}/{n}": s for n, s in one.cost(self.config, 1).shapes.items()}
        return {n: math.prod(s) for n, s in found.items()}

    @property
    def pools(self) -> bool:
        """True where an objective reads the pooler, which trains only then."""
        return any(HEADS[objective][1] for objective in self.objectives)

    def activations(self, length: int, *, predictions: int, rows: int, rematerialize: bool) -> float | None:
        """Bytes that the backward pass reads. rematerialize: a block's input for each block, and all values of one block."""
        c = self.config
        if self.of_ancestors or c.encoder != BERT:
            return None
        position = (
            HIDDEN_VALUES * c.hidden_size
            + ACTIVATION_VALUES[c.activation] * c.intermediate_size
            + SCORE_VALUES * c.num_heads * length
        )
        # The last block has keys and values of all positions.
        last = self._last_positions(length, predictions) * position + 2 * length * c.hidden_size
        blocks = (c.num_layers - 1) * length * position + min(last, length * position)
        if rematerialize:
            blocks = c.num_layers * length * c.hidden_size + length * position
        embeddings = 4 * length * c.embedding_width
        logits = LOGIT_VALUES * predictions * c.vocab_size if self._predicts_tokens else 0
        return FLOAT * rows * (embeddings + blocks + logits)

    @property
    def _predicts_tokens(self) -> bool:
        return any(HEADS[objective][0] == "masked_lm" for objective in self.objectives)

    def _last_positions(self, length: int, predictions: int) -> int:
        """Positions that the last block computes: those that are read, if these are masked positions and the pooler's alone."""
        if {"left_to_right", "replaced_token"} & {*self.objectives} or self.of_ancestors:
            return length
        return (predictions if self._predicts_tokens else 0) + self.pools

    def flops(self, length: int, *, predictions: int, rematerialize: bool) -> float:
        """Operations of an instance, forward and backward, which is twice forward."""
        c, costs = self.config, [one.cost(self.config, length) for one in self.of_ancestors]
        h, e, i = c.hidden_size, c.embedding_width, c.intermediate_size
        rest = 2.0 * sum(one.products for one in costs)
        if self._predicts_tokens:
            dense = 0 if c.plain_heads else h * e
            rest += 2 * predictions * (dense + e * c.vocab_size)
        if "replaced_token" in self.objectives:
            rest += 2 * length * h * (h + 1)
        if self.pools:
            rest += 2 * h * h
        length = min([length, *(one.reads for one in costs)])
        if c.encoder != BERT:
            return 3 * (2 * encoder_products(c, length) + rest)
        of_query, of_key = 2 * (2 * h * h + 2 * h * i + 2 * length * h), 2 * (2 * h * h)
        queries = (c.num_layers - 1) * length + self._last_positions(length, predictions)
        blocks = of_query * queries + of_key * c.num_layers * length
        rest += 2.0 * length * e * h if e != h else 0.0
        return 3 * (blocks + rest) + (blocks if rematerialize else 0)


def encoder_products(config: BertConfig, length: int) -> int:
    """Multiplications of an ancestor's encoder for a text of `length` tokens, forward."""
    from bert_keras.model.encoders import encoder_class

    return int(encoder_class(config).products(config, length))


def _objectives_of_ancestors(recipe: Recipe, config: BertConfig) -> tuple[Any, ...]:
    """The objectives that have a `cost`. Raises BertKerasError for one that neither has it nor a row of HEADS."""
    if all(name in HEADS for name in recipe.names):
        return ()
    from bert_keras.tasks.pretraining.model import OBJECTIVES, make_objectives

    if own := [name for name in recipe.names if name not in OBJECTIVES]:
        raise BertKerasError(
            f"the plan does not know the head of {own[0]}; give a recipe of {', '.join(OBJECTIVES)}."
        )
    unread: Any = {"pieces": None, "counts": lambda: None}  # which labels need
    made = make_objectives(recipe, recipe.hparams.phases[0][0], config=config, **unread)
    return tuple(one for one in made if hasattr(one, "cost"))


def _encoders(recipe: Recipe, config: BertConfig) -> list[_Encoder]:
    if "replaced_token" not in recipe.objectives:
        known = tuple(name for name in recipe.names if name in HEADS)
        return [_Encoder(config, known, of_ancestors=_objectives_of_ancestors(recipe, config))]
    generator = generator_config(config, share=recipe.hparams.generator_share)
    return [_Encoder(config, ("replaced_token",)), _Encoder(generator, ("masked_lm",), shared=True)]


def _predicted(recipe: Recipe, length: int) -> int:
    """Positions of an instance whose tokens are predicted; left to right, all but the first."""
    return length - 1 if "left_to_right" in recipe.objectives else recipe.masking(length).max_predictions


def estimate(
    recipe: Recipe, config: BertConfig, *, devices: int = 1, teraflops: float | None = None
) -> Estimate:
    """The cost of a pre-training.

    devices: each holds all weights and computes an equal part of the batch
    teraflops: 10^12 operations in a second that one device does in such a training, not its peak

    Raises BertKerasError if the devices do not divide the batch, or the encoder is too short for a phase, and for a precision or
    a BiLSTM that the plan does not know.
    """
    hparams, encoders = recipe.hparams, _encoders(recipe, config)
    if hparams.precision != "float32":
        raise BertKerasError(
            f"precision is {hparams.precision}, and the plan is of float32; leave precision out."
        )
    if config.bilstm:
        raise BertKerasError("bilstm is true, and the plan knows no BiLSTM; leave bilstm out.")
    each, rest = divmod(hparams.batch_size, devices)
    if rest:
        raise BertKerasError(
            f"{devices} devices do not divide a batch of {hparams.batch_size}; change one of the two."
        )
    rows = min(each, hparams.micro_batch or each)
    parameters = sum(sum(one.sizes.values()) for one in encoders)
    unread = [
        size for one in encoders if not one.pools for n, size in one.sizes.items() if n.startswith("pooler/")
    ]
    trainable = parameters - sum(unread)
    copies = GRADIENTS + (1 if rows < each else 0)
    phases, done = [], 0
    for (length, _), end in zip(hparams.phases, hparams.phase_steps(len(hparams.phases)), strict=True):
        if length > config.max_length:
            raise BertKerasError(
                f"a phase has {length} tokens and the encoder {config.max_length} positions."
            )
        how: Any = {"predictions": _predicted(recipe, length), "rematerialize": hparams.rematerialize}
        kept = [one.activations(length, rows=rows, **how) for one in encoders]
        memory = Memory(
            weights=FLOAT * parameters,
            gradients=FLOAT * copies * trainable,
            optimizer_state=FLOAT * SLOTS * trainable,
            activations=None if None in kept else round(sum(kept)),  # type: ignore[arg-type]
        )
        flops = hparams.batch_size * sum(one.flops(length, **how) for one in encoders)
        steps, done = end - done, end
        seconds = None if teraflops is None else steps * flops / (devices * teraflops * 1e12)
        tokens = steps * hparams.batch_size * length
        phases.append(PhaseEstimate(length, steps, rows, tokens, memory, flops, seconds))
    return Estimate(parameters, trainable, devices, hparams.batch_size, tuple(phases))
