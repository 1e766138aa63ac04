"""The heads of an encoder: each turns its outputs into logits, float32 or wider; and the mean of a text's states as a layer.

MaskedLMHead        sequence [B, S, H], positions [B, P]  -> [B, P, V]      or sequence [B, P, H] alone
NextSentenceHead    pooled [B, H]                         -> [B, 2]     0 = B follows A, 1 = random
ClassifierHead      pooled [B, H]                         -> [B, C]
ConcatClassifierHead  sequence [B, S, H], mask [B, S]       -> [B, C]
ChoiceHead          pooled [B*K, H]                       -> [B, K]
SpanHead            sequence [B, S, H]                    -> start [B, S], end [B, S]
TokenHead           sequence [B, S, H]                    -> [B, S, C]
ReplacedTokenHead   sequence [B, S, H]                    -> [B, S]

Source: Devlin et al. 2019, figure 4 and A.5.
"""

from typing import Any

import keras
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.model.encoder import BertEncoder, gather_positions, pooled_position
from bert_keras.model.kernels import ACTIVATIONS, wide
from bert_keras.model.layers import Dense, FromBertConfig, LayerNorm, from_state_config, state_config


@keras.saving.register_keras_serializable("bert_keras")
class MaskedLMHead(keras.layers.Layer):
    """Dense, activation and norm at the asked positions, then the embedding table transposed plus a bias.

    Unlike the textbook: a dense layer with activation and norm stands before the output softmax, whose weights are the embedding
    table's. The paper does not mention the layer; the released weights have it.

    With `plain_heads` the head is the product with the embedding table alone, as in GPT (Radford et al. 2018, sec. 3.1).

    Gathers the P asked positions before the product with the vocabulary (google-research/bert run_pretraining.py
    get_masked_lm_output). Saves to `.keras` in one model with its encoder; `from_config` raises ValueError on its own, where
    it would read the table of an encoder that nobody trains.
    """

    def __init__(self, encoder: BertEncoder, *, name: str = "masked_lm", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        config = encoder.config
        self.config = config
        if not config.plain_heads:
            self.dense = Dense(config.embedding_width, config=config, name="dense", dtype=dtype)
            self.norm = LayerNorm(config=config, name="layer_norm", dtype=dtype)
        # Behind a function, so that Keras counts the tied table once: as the encoder's.
        self._encoder = lambda: encoder
        self.build()

    def build(self, input_shape: Any = None, positions_shape: Any = None) -> None:
        """Makes every variable; the config knows all shapes."""
        if not self.config.plain_heads:
            self.dense.build((None, None, self.config.hidden_size))
            self.norm.build((None, None, self.config.embedding_width))
            shape = (self.config.vocab_size,)
            self.bias = self.add_weight(name="bias", shape=shape, initializer="zeros", autocast=False)
        self.built = True

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: the logits are those of the asked positions, which the labels' weights tell from padding."""

    def call(self, sequence: Any, positions: Any = None) -> Any:
        """`sequence`: float [B, S, H], `positions`: int32 [B, P] -> float32 [B, P, V], rounded to the format of the product.

        Without positions, `sequence` has those alone: float [B, P, H].
        """
        x = sequence if positions is None else gather_positions(sequence, positions)
        if not self.config.plain_heads:
            x = self.norm(ACTIVATIONS[self.config.activation](self.dense(x)))
        shape = ops.shape(x)
        table = ops.cast(self._encoder().embedding_table, self.compute_dtype)
        rows = _as_logits(ops.matmul(ops.reshape(x, (-1, shape[-1])), ops.transpose(table)))
        if not self.config.plain_heads:
            rows = ops.add(rows, ops.cast(self.bias, rows.dtype))  # one kernel with the product in float32
        return ops.reshape(rows, (*shape[:-1], self.config.vocab_size))

    def get_config(self) -> dict[str, Any]:
        """The arguments from which `from_config` rebuilds the head, including its encoder."""
        return {
            "encoder": keras.saving.serialize_keras_object(self._encoder()),
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **state_config(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MaskedLMHead":
        # Keras marks what a saved model holds twice, and gives it back as one object.
        if "shared_object_id" not in config["encoder"]:
            raise BertKerasError(
                "a MaskedLMHead without its encoder: it shares its encoder's embedding table; save both in one "
                "functional model, or make MaskedLMHead(encoder)."
            )
        encoder = keras.saving.deserialize_keras_object(config["encoder"])
        return from_state_config(cls, config | {"encoder": encoder})


class _Head(FromBertConfig, keras.layers.Layer):
    """A head that its own config rebuilds, so that a functional model of it saves to `.keras`."""

    def __init__(self, *, config: BertConfig, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """None: Keras' padding mask ends here, since the logits have no axis of tokens that a loss could mask."""


class _DenseHead(_Head):
    """Dropout, then one dense layer: what most heads are."""

    def __init__(
        self, units: int, *, config: BertConfig, dropout: float, name: str, dtype: Any = None
    ) -> None:
        super().__init__(config=config, name=name, dtype=dtype)
        # In bfloat16, logits would be equal up to 2^-8 of their size: too coarse to rank scores.
        self.dropout = keras.layers.Dropout(dropout, name="dropout", dtype=wide(dtype))
        self.dense = Dense(units, config=config, name="dense", dtype=wide(dtype))
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.dense.build((None, self.config.hidden_size))
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        return _as_logits(self.dense(self.dropout(x, training=training)))


class _ClassHead(_DenseHead):
    """A _DenseHead with a unit for each class, and the dropout of the configuration.

    least: the least number of classes, and the reason for an error
    """

    least: tuple[int, str] = (1, "a classifier has at least 1 class (1 means regression)")

    def __init__(
        self, num_classes: int, *, config: BertConfig, name: str = "classifier", dtype: Any = None
    ) -> None:
        if num_classes < self.least[0]:
            raise BertKerasError(f"num_classes is {num_classes}; {self.least[1]}.")
        super().__init__(num_classes, config=config, dropout=config.head_dropout, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_classes": self.dense.units}


@keras.saving.register_keras_serializable("bert_keras")
class NextSentenceHead(_DenseHead):
    """Pooled float [B, H] -> float32 [B, 2]; class 0 means that B follows A (Devlin et al. 2019, task 2). No dropout."""

    def __init__(self, *, config: BertConfig, name: str = "next_sentence", dtype: Any = None) -> None:
        super().__init__(2, config=config, dropout=0.0, name=name, dtype=dtype)


@keras.saving.register_keras_serializable("bert_keras")
class ClassifierHead(_ClassHead):
    """Pooled float [B, H] -> float32 [B, C]; C = 1 is regression (Devlin et al. 2019, sec. 4.1, eq. in sec. 4.1)."""


@keras.saving.register_keras_serializable("bert_keras")
class ConcatClassifierHead(_ClassHead):
    """Concat pooling, then dropout and one dense layer (Howard and Ruder 2018, sec. 3.3).

    Unlike the paper: no hidden layer of 50 units with batch normalization (fastai/fastai imdb_scripts/train_clas.py).

    Reads the state at the position that stands for the sequence, the maximum and the mean over the real positions, side
    by side: float [B, 3H].
    """

    def __init__(
        self, num_classes: int, *, config: BertConfig, name: str = "concat_classifier", dtype: Any = None
    ) -> None:
        super().__init__(num_classes, config=config, name=name, dtype=dtype)

    def build(self, input_shape: Any = None, mask_shape: Any = None) -> None:
        self.dense.build((None, 3 * self.config.hidden_size))
        self.built = True

    def call(self, sequence: Any, mask: Any, training: bool = False) -> Any:  # type: ignore[override]
        """`sequence`: float [B, S, H], `mask`: int32 [B, S] -> float32 [B, C]."""
        return super().call(concat_pool(sequence, mask, causal=self.config.causal), training=training)


def concat_pool(sequence: Any, mask: Any, *, causal: bool = False) -> Any:
    """Float [B, S, H] and int32 [B, S] -> float [B, 3H]: the pooled position, the maximum and the mean over real ones.

    For a row without a token, maximum and mean are 0.
    """
    position = ops.expand_dims(pooled_position(mask, causal=causal), -1)
    real = ops.expand_dims(mask > 0, -1)
    states = _as_logits(sequence)
    total = ops.sum(ops.where(real, states, 0), axis=1)
    count = ops.sum(ops.cast(real, states.dtype), axis=1)
    most = ops.max(ops.where(real, states, float("-inf")), axis=1)
    most = ops.where(count > 0, most, 0.0)
    mean = total / ops.maximum(count, 1.0)
    return ops.concatenate([gather_positions(states, position)[:, 0], most, mean], axis=-1)


@keras.saving.register_keras_serializable("bert_keras")
class ChoiceHead(_DenseHead):
    """One score for each choice, all by one vector: pooled float [B*K, H] -> float32 [B, K] (Devlin et al. 2019, sec. 4.4)."""

    def __init__(
        self, num_choices: int, *, config: BertConfig, name: str = "classifier", dtype: Any = None
    ) -> None:
        if num_choices < 2:
            raise BertKerasError(f"num_choices is {num_choices}; a choice is between at least 2.")
        super().__init__(1, config=config, dropout=config.head_dropout, name=name, dtype=dtype)
        self.num_choices = num_choices

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_choices": self.num_choices}

    def call(self, pooled: Any, training: bool = False) -> Any:
        return ops.reshape(super().call(pooled, training=training), (-1, self.num_choices))


@keras.saving.register_keras_serializable("bert_keras")
class SpanHead(_DenseHead):
    """Start and end vectors: float [B, S, H] -> two float32 [B, S] (Devlin et al. 2019, eq. in sec. 4.2). No dropout."""

    def __init__(self, *, config: BertConfig, name: str = "qa_outputs", dtype: Any = None) -> None:
        super().__init__(2, config=config, dropout=0.0, name=name, dtype=dtype)

    def call(self, sequence: Any, training: bool = False) -> tuple[Any, Any]:
        logits = super().call(sequence, training=training)
        return logits[..., 0], logits[..., 1]


@keras.saving.register_keras_serializable("bert_keras")
class TokenHead(_ClassHead):
    """A class for every token: float [B, S, H] -> float32 [B, S, C] (Devlin et al. 2019, sec. 5.3)."""

    least = (2, "tokens are told apart by at least 2 classes")

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """The padding mask, bool [B, S], by which Keras' own losses and metrics leave padding out."""
        return previous_mask


@keras.saving.register_keras_serializable("bert_keras")
class ReplacedTokenHead(_Head):
    """Was this token replaced? Float [B, S, H] -> float32 [B, S] (Clark et al. 2020, sec. 2)."""

    def __init__(self, *, config: BertConfig, name: str = "replaced_token", dtype: Any = None) -> None:
        super().__init__(config=config, name=name, dtype=dtype)
        self.activation = ACTIVATIONS[config.activation]
        self.dense = Dense(config.hidden_size, config=config, name="dense", dtype=dtype)
        self.prediction = Dense(1, config=config, name="prediction", dtype=wide(dtype))
        self.build()

    def build(self, input_shape: Any = None) -> None:
        for layer in (self.dense, self.prediction):
            layer.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, sequence: Any) -> Any:
        return _as_logits(self.prediction(self.activation(self.dense(sequence)))[..., 0])


def _as_logits(x: Any) -> Any:
    """float32 under mixed precision; a float64 model keeps float64."""
    return x if keras.backend.standardize_dtype(x.dtype) == "float64" else ops.cast(x, "float32")


def gives_logits(output: Any) -> str | None:
    """The class of the head that a model's symbolic output comes from; None where it comes from another layer."""
    layer = output._keras_history.operation
    return type(layer).__name__ if isinstance(layer, _Head | MaskedLMHead) else None


# -----------------------------------------------------------------------------------------------------------
# Pooling: the hidden states of tokens in, one vector for each text out


def mean_of_tokens(states: Any, mask: Any) -> Any:
    """Float [B, S, H], mask float [B, S, 1] -> float [B, H], the mean where the mask is 1; 0 for a text without tokens."""
    given, dtype = states.dtype, wide(keras.backend.standardize_dtype(states.dtype))
    states, mask = ops.cast(states, dtype), ops.cast(mask, dtype)
    return ops.cast(ops.sum(states * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1), given)


@keras.saving.register_keras_serializable("bert_keras")
class MeanPooling(keras.layers.Layer):
    """The mean of the hidden states of each text; padding does not count, special tokens do.

    As keras.layers.GlobalAveragePooling1D, which averages over padding where the mask is lost; this layer raises BertKerasError.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.built = True

    def call(self, states: Any, mask: Any = None) -> Any:
        """Float [B, S, H] -> float [B, H].

        mask: bool or int [B, S], True or 1 on tokens; the encoder gives it to the next Keras layer, or pass `input_mask`
        """
        if mask is None:
            raise BertKerasError(
                "MeanPooling got states without a mask: padding would count. Call it on the encoder's sequence_output, or pass "
                "mask=features['input_mask']."
            )
        return mean_of_tokens(states, ops.expand_dims(ops.cast(mask, states.dtype), -1))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: a vector has no padding."""
