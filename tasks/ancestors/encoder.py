"""AncestorEncoder: what the encoders of all ancestors share. A subclass makes its layers, and computes their vectors.

    Features int32 [B, S] -> `states`: L + 1 x float [B, S, H] -> the outputs of a BertEncoder

So an ancestor enters every task: its states as vectors (`--feature-layers`), or its weights, which the task trains further.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    DTYPE,
    EMBEDDING_OUTPUT,
    ENCODER_OUTPUTS,
    INPUT_MASK,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
    check_names,
)
from bert_keras.fields import Checked, names_of
from bert_keras.model.encoder import ALL, BertEncoder, gather_positions, pooled_position
from bert_keras.model.kernels import ACTIVATIONS, look_up
from bert_keras.model.layers import Dense, truncated_normal

Shapes = dict[str, tuple[int, ...]]


def checked_settings(kind: type[Checked], config: BertConfig) -> Any:
    """A configuration's `encoder_settings` as a `kind`. Raises BertKerasError for a name that is not a field."""
    given = config.encoder_settings or {}
    if unknown := sorted(given.keys() - {*names_of(kind)}):
        raise BertKerasError(
            f"{config.encoder} has no encoder_settings {', '.join(unknown)}; it has {', '.join(names_of(kind))}."
        )
    return kind(**given)


class WordTable(keras.layers.Layer):
    """Word ids int32 [B, S] -> float [B, S, E], the rows of a table.

    initializer: None takes BERT's, a truncated normal
    """

    def __init__(self, config: BertConfig, *, width: int, initializer: Any = None, dtype: Any = None) -> None:
        super().__init__(name="embeddings", dtype=dtype)
        self.config, self.width = config, width
        self.initializer = truncated_normal(config) if initializer is None else initializer

    def build(self, input_shape: Any = None) -> None:
        """No shape is needed: every size is known."""
        shape = (self.config.vocab_size, self.width)
        self.word_embeddings = self.add_weight(
            name="word_embeddings", shape=shape, initializer=self.initializer, autocast=False
        )
        self.built = True

    def call(self, ids: Any) -> Any:
        return ops.cast(look_up(self.word_embeddings, ids), self.compute_dtype)


class AncestorEncoder(BertEncoder):
    """A BertEncoder with other layers. `outputs` are those of BertEncoder, without attention.

    A subclass has `make`, which sets layers as attributes and returns them from below, each built; `states`; and `layer_shapes`;
    and `layer_widths`, if they are not all `hidden_size`.

    directions: those in which its states have not read the words that a language model predicts; two have half of the states each
    """

    directions: ClassVar[int] = 1

    def __init__(
        self,
        config: BertConfig,
        *,
        outputs: Sequence[str] = ALL,
        name: str = "bert_encoder",
        dtype: Any = None,
    ) -> None:
        super(BertEncoder, self).__init__(name=name, dtype=dtype)
        if unknown := [one for one in outputs if one not in ALL]:
            raise BertKerasError(f"{config.encoder} has no {unknown[0]}; wanted {', '.join(ALL)}.")
        self.config, self.outputs_wanted, self.bilstm = config, tuple(outputs), None
        self._rematerialize = self._unpadded = False
        self._layers_below = self.make(config)
        self.pooler = Dense(config.hidden_size, config=config, name="pooler", dtype=dtype)
        self.pooler.build((None, config.hidden_size))
        self.pooler.trainable = POOLED_OUTPUT in outputs
        self.built = True

    def make(self, config: BertConfig) -> list[Any]:
        """Makes and builds the layers, and returns them from below. Their paths are the names in `layer_shapes`."""
        raise NotImplementedError

    def states(self, features: Mapping[str, Any], training: bool = False) -> list[Any]:
        """The vectors of the embeddings and of each layer: L + 1 x float [B, S, H]."""
        raise NotImplementedError

    @classmethod
    def layer_shapes(cls, config: BertConfig) -> Shapes:
        """Name -> shape of every variable, without the pooler's: "embeddings/word_embeddings". No variable is made."""
        raise NotImplementedError

    @classmethod
    def layer_widths(cls, config: BertConfig) -> tuple[int, ...]:
        """The width of the vectors of each layer above the embeddings; that of the last is H."""
        return (config.hidden_size,) * config.num_layers

    @classmethod
    def shapes(cls, config: BertConfig) -> Shapes:
        """Name -> shape of every variable."""
        width = config.hidden_size
        return cls.layer_shapes(config) | {"pooler/kernel": (width, width), "pooler/bias": (width,)}

    @classmethod
    def products(cls, config: BertConfig, length: int) -> int:
        """Multiplications, each with an addition, in the matrix products of a text of `length` tokens, forward.

        Each token meets every matrix once, and every filter at each of its characters.
        """
        found = 0
        for name, shape in cls.layer_shapes(config).items():
            if len(shape) > 1 and not name.endswith("embeddings"):
                found += math.prod(shape) * (config.max_characters - shape[0] + 1 if len(shape) > 2 else 1)
        return length * found

    def build(self, input_shape: Any = None) -> None:
        """Everything is built when it is made."""
        self.built = True

    @property
    def parts(self) -> tuple[Any, ...]:
        """The layers that hold the variables, from below."""
        return (*self._layers_below, self.pooler)

    @property
    def rematerialize(self) -> bool:
        """False: an ancestor keeps all activations."""
        return False

    @rematerialize.setter
    def rematerialize(self, value: bool) -> None:
        if value:
            raise BertKerasError(
                f"rematerialize applies to BERT's blocks, not to {self.config.encoder}; leave it out."
            )

    def enable_lora(self, rank: int, **how: Any) -> None:
        raise BertKerasError(
            f"LoRA applies to BERT's blocks, not to {self.config.encoder}; leave lora_rank out."
        )

    @property
    def lora_enabled(self) -> bool:
        """False."""
        return False

    def compute_output_spec(self, features: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """As BertEncoder's, but each layer has its own width."""
        specs = super().compute_output_spec(features, training)
        if ENCODER_OUTPUTS in specs:
            shape, widths = features[INPUT_MASK].shape, self.layer_widths(self.config)
            specs[ENCODER_OUTPUTS] = [keras.KerasTensor((*shape, one), self.compute_dtype) for one in widths]
        return specs

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        check_names(features)
        states = self.states(features, training=training)
        results = {EMBEDDING_OUTPUT: states[0], ENCODER_OUTPUTS: states[1:], SEQUENCE_OUTPUT: states[-1]}
        if POOLED_OUTPUT in self.outputs_wanted:
            position = pooled_position(ops.cast(features[INPUT_MASK], DTYPE), causal=self.config.causal)
            read = gather_positions(states[-1], ops.expand_dims(position, -1))[:, 0]
            results[POOLED_OUTPUT] = ACTIVATIONS[self.config.pooler_activation](self.pooler(read))
        return {name: results[name] for name in self.outputs_wanted}
