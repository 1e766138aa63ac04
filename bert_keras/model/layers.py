"""The layers of an encoder: Embeddings, SelfAttention, FeedForward, Block, and the BiLSTM of an ablation. Read top-down.

In: int32 features and float hidden states; out: float hidden states. Keras 3 and `keras.ops` only, so any backend runs them.
Every projection is a plain 2-D matrix product on [B*S, H]: on CPU faster than an einsum over three axes.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.model.kernels import (
    ACTIVATIONS,
    RealTokens,
    add_bias,
    attention_scores,
    drop_padding,
    dropout,
    layer_norm,
    look_up,
    reshape_like,
    restore_padding,
    swap_heads,
    wide,
)

# google-research/bert modeling.py adds this to the scores of masked positions: exp(-10000) is 0 in float32 and float64.
MASKED_SCORE = -10000.0
# The kernels that LoRA adapts unless told otherwise (Hu et al. 2021, sec. 4.2 and 7.1).
LORA_TARGETS = ("query", "value")


def truncated_normal(config: BertConfig) -> keras.initializers.Initializer:
    """BERT's kernel initializer. A fresh one each time: one initializer object gives equal draws to equal shapes."""
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def _rows(x: Any) -> Any:
    """Float [..., width] -> [rows, width]. Layers that work row by row do so once for several products."""
    return x if len(x.shape) == 2 else ops.reshape(x, (-1, x.shape[-1]))


def _sizes(queries: Any, states: Any, scores_mask: Any) -> tuple[Any, Any, Any]:
    """B, Q and S. Those of the mask, which all blocks have in common: a graph computes them once, not in every block."""
    batch, _, _, length = ops.shape(scores_mask)
    return batch, length if queries is states else ops.shape(queries)[1], length


class Dense(keras.layers.Dense):
    """x @ kernel + bias as one 2-D matrix product, whatever the leading axes: float [..., in] -> float [..., units].

    Keras' own layer in all else: `quantize("int8")`, `enable_lora(rank)`, and the files of both.
    """

    def __init__(self, units: int, *, config: BertConfig, name: str, dtype: Any = None) -> None:
        super().__init__(units, name=name, dtype=dtype)
        self._config = config

    def build(self, input_shape: tuple) -> None:
        # Made here: an initializer takes its seed when it is made, and the draws follow the order in which layers are built.
        self.kernel_initializer = truncated_normal(self._config)
        super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self._by_rows(self._product, inputs, training)

    def _product(self, rows: Any, training: bool | None) -> Any:
        # `kernel` includes LoRA's product.
        return add_bias(ops.matmul(rows, self.kernel), self.bias, training=bool(training))

    def quantized_call(self, inputs: Any, training: bool | None = None) -> Any:
        return self._by_rows(super().quantized_call, inputs, training)

    def _by_rows(self, product: Callable[..., Any], x: Any, training: bool | None) -> Any:
        rows = product(_rows(x), training=training)
        return rows if len(x.shape) == 2 else ops.reshape(rows, (*ops.shape(x)[:-1], self.units))

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        """Turns the kernel into int8 with a scale for each column. Raises ValueError for another mode."""
        if mode != "int8":
            raise BertKerasError(f"quantize({mode!r}) was asked for; bert_keras quantizes to 'int8' alone.")
        if self.lora_enabled:  # merged, as a file holds it; LoRA begins anew
            self._kernel.assign(self.kernel)
            self.lora_kernel_b.assign(ops.zeros_like(self.lora_kernel_b))
        super().quantize(mode, type_check=False, config=config)

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Any = "he_uniform",
        b_initializer: Any = "zeros",
    ) -> None:
        """Freezes the layer, and adds the product of two matrices of rank `rank` that train (Hu et al. 2021, sec. 4.1)."""
        # The new variables get paths like the others', which optimizers read.
        with contextlib.ExitStack() as stack:
            for scope in self.path.split("/")[:-1]:
                stack.enter_context(keras.name_scope(scope))
            self.trainable = True  # else what is added would be frozen too
            super().enable_lora(rank, lora_alpha, a_initializer, b_initializer)
        self._a_initializer = keras.initializers.get(a_initializer)
        self.bias.trainable = False

    def load_own_variables(self, store: Any) -> None:
        """Reads the kernel, with which LoRA's product was merged, and begins LoRA anew."""
        super().load_own_variables(store)
        if self.lora_enabled:  # Keras sets both matrices to 0, where neither has a gradient
            drawn = self._a_initializer(self.lora_kernel_a.shape, self.lora_kernel_a.dtype)
            self.lora_kernel_a.assign(drawn)


class Dropout(keras.layers.Dropout):
    """Keras' own layer, whose draws take less time on a CPU."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return dropout(inputs, self.rate, self.seed_generator) if training and self.rate > 0 else inputs


class LayerNorm(keras.layers.Layer):
    """Layer normalisation over the last axis, biased variance, in float32 or wider."""

    def __init__(self, *, config: BertConfig, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.epsilon = config.norm_epsilon

    def build(self, input_shape: tuple) -> None:
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones", autocast=False)
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros", autocast=False)
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        dtype = wide(self.variable_dtype)
        return layer_norm(x, self.gamma, self.beta, self.epsilon, dtype=dtype, training=training)


_TABLES = {  # name -> the field that counts its rows
    "word_embeddings": "vocab_size",
    "position_embeddings": "max_positions",
    "type_embeddings": "type_vocab_size",
}


def _check_shared(config: BertConfig, shared: BertConfig) -> None:
    for name in (*_TABLES.values(), "embedding_width", "norm_epsilon"):
        given, wanted = getattr(config, name), getattr(shared, name)
        if given != wanted:
            raise BertKerasError(
                f"{name} is {given} and the embeddings to share have {wanted}; give the configuration {wanted}."
            )


class Embeddings(keras.layers.Layer):
    """Word + position + type embeddings, normed and dropped; projected to H where E differs (Devlin et al. 2019, figure 2).

    shared: embeddings whose tables and norm these read instead of their own; the projection is their own.
    Positions count from `position_offset` on. Where there is one type or none, the type ids are not looked at.
    Raises ValueError where the shared tables are of other sizes.
    Unlike the textbook: positions are learned, not the sinusoids of Vaswani et al. 2017, sec. 3.5, unless the config says
    "sinusoids"; `max_positions` bounds a text.
    """

    look_up = staticmethod(look_up)  # of words: `bk.explain` puts vectors between two texts in its place

    def __init__(
        self,
        config: BertConfig,
        *,
        shared: "Embeddings | None" = None,
        name: str = "embeddings",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        for table in _TABLES:
            setattr(self, table, getattr(shared, table, None))
        self.norm: Any
        if shared is not None:
            _check_shared(config, shared.config)
            self.norm = shared.norm
        else:
            self.norm = (
                LayerNorm(config=config, name="layer_norm", dtype=dtype) if config.embedding_norm else None
            )
        self.dropout = Dropout(config.hidden_dropout, name="dropout", dtype=dtype)
        self.projection = None
        if config.embedding_width != config.hidden_size:
            self.projection = Dense(config.hidden_size, config=config, name="projection", dtype=dtype)

    def build(self, input_shape: Any = None) -> None:
        """No shape is needed: every size stands in the config."""
        config, width = self.config, self.config.embedding_width
        for name, field in _TABLES.items():
            if name == "position_embeddings" and config.positions == "sinusoids":
                continue
            if getattr(self, name) is None and (rows := getattr(config, field)):
                # Rows are cast after the lookup: autocast would cast a whole table at every call.
                table = self.add_weight(
                    name=name, shape=(rows, width), initializer=truncated_normal(config), autocast=False
                )
                setattr(self, name, table)
        if self.norm is not None and not self.norm.built:
            self.norm.build((None, None, width))
        if self.projection is not None:
            self.projection.build((None, None, width))
        self.built = True

    def call(self, word_ids: Any, type_ids: Any, training: bool = False) -> Any:
        """`word_ids`, `type_ids`: int32 [B, S] -> float [B, S, H]."""
        length = ops.shape(word_ids)[1]
        words = self.look_up(self.word_embeddings, word_ids)
        if self.config.scale_embeddings:
            words *= self.config.embedding_width**0.5
        # `slice` raises where the length is known at run time only and too long; indexing would clip in silence.
        table = ops.convert_to_tensor(self._positions())
        positions = ops.slice(table, (self.config.position_offset, 0), (length, self.config.embedding_width))
        if self.config.has_types:
            # A pair's type ids are 0 and 1, and RoBERTa has one type: looked up, 1 would be an error on CPU and zeros on GPU.
            alone = self.config.type_vocab_size == 1
            words += self.type_embeddings[0] if alone else look_up(self.type_embeddings, type_ids)
        summed = ops.cast(words + ops.expand_dims(positions, 0), self.compute_dtype)
        normed = summed if self.norm is None else self.norm(summed)
        embedded = self.dropout(normed, training=training)
        return embedded if self.projection is None else self.projection(embedded)

    def _positions(self) -> Any:
        """The position table, float [P, E]."""
        if self.config.positions == "learned":
            return self.position_embeddings
        return sinusoids(self.config.max_positions, self.config.embedding_width)


def sinusoids(count: int, width: int) -> np.ndarray:
    """The vectors of positions 0, 1, ...: float32 [count, width], sines in even places, cosines in odd ones.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    angles = np.arange(count)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    table = np.zeros((count, width), np.float32)
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)[:, : width // 2]
    return table


class SelfAttention(keras.layers.Layer):
    """Multi-head scaled dot-product attention of a sequence with itself (Vaswani et al. 2017, sec. 3.2)."""

    def __init__(self, config: BertConfig, *, name: str = "attention", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        # Three products beat one fused product of thrice the width on CPU.
        self.query, self.key, self.value, self.output_dense = (
            Dense(config.hidden_size, config=config, name=part, dtype=dtype)
            for part in ("query", "key", "value", "output")
        )
        self.dropout = Dropout(config.attention_dropout, name="dropout", dtype=dtype)

    def build(self, input_shape: tuple) -> None:
        for dense in (self.query, self.key, self.value, self.output_dense):
            dense.build(input_shape)
        self.built = True

    def _heads(self, rows: Any, batch: Any, length: Any) -> Any:
        """Float [B*S, H] -> [B, S, A, H/A]."""
        heads = self.config.num_heads
        return ops.reshape(rows, (batch, length, heads, self.config.hidden_size // heads))

    def call(
        self,
        queries: Any,
        states: Any,
        scores_mask: Any,
        training: bool = False,
        tokens: RealTokens | None = None,
    ) -> tuple[Any, Any]:
        """The attention output of each query over all states, for the arguments of `Block`.

        Returns the rows of the output, float [B*Q, H] or [N, H], and the probabilities before dropout, float [B, A, Q, S].
        """
        batch, asked, length = _sizes(queries, states, scores_mask)
        rows, asked_rows = _rows(states), _rows(queries)
        query, key, value = self.query(asked_rows), self.key(rows), self.value(rows)
        if tokens is not None:
            key, value = restore_padding(key, tokens), restore_padding(value, tokens)
        asked_tokens = tokens if queries is states else None
        if asked_tokens is not None:
            query = restore_padding(query, asked_tokens)
        query = swap_heads(self._heads(query, batch, asked), training=training)
        key = swap_heads(self._heads(key, batch, length), training=training)
        value = swap_heads(self._heads(value, batch, length), training=training)
        scale = (self.config.hidden_size // self.config.num_heads) ** -0.5
        scores = attention_scores(query, key, scale, scores_mask, training=training)
        probabilities = ops.softmax(scores, axis=-1)
        context = ops.matmul(self.dropout(probabilities, training=training), value)
        context = swap_heads(context, training=training)
        if asked_tokens is not None:
            context = drop_padding(ops.reshape(context, (-1, self.config.hidden_size)), asked_tokens)
        return self.output_dense(reshape_like(context, asked_rows)), probabilities


class FeedForward(keras.layers.Layer):
    """Dense to `intermediate_size`, activation, dense back: float [..., H] -> float [..., H]."""

    def __init__(self, config: BertConfig, *, name: str = "feed_forward", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.intermediate = Dense(config.intermediate_size, config=config, name="intermediate", dtype=dtype)
        self.output_dense = Dense(config.hidden_size, config=config, name="output", dtype=dtype)
        self.activation = ACTIVATIONS[config.activation]

    def build(self, input_shape: tuple) -> None:
        self.intermediate.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate.units))
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        return self.output_dense(self.activation(self.intermediate(x), training=training))


class Block(keras.layers.Layer):
    """Attention and feed-forward, each dropped, added to its input and then normed (post-LN: Vaswani et al. 2017, sec. 3.1)."""

    def __init__(self, config: BertConfig, *, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.attention = SelfAttention(config, dtype=dtype)
        self.attention_dropout = Dropout(config.hidden_dropout, name="attention_dropout", dtype=dtype)
        self.attention_norm = LayerNorm(config=config, name="attention_layer_norm", dtype=dtype)
        self.feed_forward = FeedForward(config, dtype=dtype)
        self.feed_forward_dropout = Dropout(config.hidden_dropout, name="feed_forward_dropout", dtype=dtype)
        self.feed_forward_norm = LayerNorm(config=config, name="feed_forward_layer_norm", dtype=dtype)

    def build(self, input_shape: tuple) -> None:
        for layer in (self.attention, self.attention_norm, self.feed_forward, self.feed_forward_norm):
            layer.build(input_shape)
        self.built = True

    def enable_lora(
        self, rank: int, *, lora_alpha: float | None = None, targets: Sequence[str] = LORA_TARGETS
    ) -> None:
        """Freezes the block but for new matrices of rank `rank` beside the kernels of `targets` (Hu et al. 2021).

        targets: names of Dense layers: query, key, value, output (of attention and feed-forward), intermediate
        lora_alpha: the product of both matrices counts lora_alpha / rank times; `rank` unless given

        Raises ValueError for a rank under 1, an unknown target or where LoRA is enabled already.
        """
        denses = [*denses_in(self).values()]
        known = dict.fromkeys(dense.name for dense in denses)
        if unknown := [name for name in targets if name not in known] or not targets:
            raise BertKerasError(
                f"targets {unknown if targets else list(targets)} of LoRA given; a block has {', '.join(known)}."
            )
        if rank < 1:
            raise BertKerasError(f"the rank of LoRA is {rank}; give at least 1.")
        if self.lora_enabled:
            raise BertKerasError(f"{self.name} has LoRA already; it is enabled once.")
        self.trainable = True  # a frozen block would hide what is added
        for layer in self._flatten_layers(include_self=False):
            if len(layer._flatten_layers()) == 1:
                layer.trainable = False
        for dense in denses:
            if dense.name in targets:
                dense.enable_lora(rank, lora_alpha)

    @property
    def lora_enabled(self) -> bool:
        """True after `enable_lora`."""
        return any(dense.lora_enabled for dense in denses_in(self).values())

    def call(
        self,
        queries: Any,
        states: Any,
        scores_mask: Any,
        training: bool = False,
        tokens: RealTokens | None = None,
    ) -> tuple[Any, Any]:
        """One layer for the asked positions.

        queries: float [B, Q, H], the rows of `states` to compute; states: float [B, S, H]
        scores_mask: float [B, 1, 1 or Q, S], added to the scores
        tokens: of states without padding, float [N, H]; queries that are the states have no padding either

        Returns the output in the shape of `queries`, and the attention probabilities, float [B, A, Q, S].
        """
        attended, probabilities = self.attention(
            queries, states, scores_mask, training=training, tokens=tokens
        )
        x = self.attention_norm(_rows(queries) + self.attention_dropout(attended, training=training))
        x = self.feed_forward_norm(x + self.feed_forward_dropout(self.feed_forward(x), training=training))
        if len(queries.shape) == 2:
            return x, probabilities
        batch, asked, _ = _sizes(queries, states, scores_mask)
        return ops.reshape(x, (batch, asked, x.shape[-1])), probabilities


class BiLSTM(keras.layers.Bidirectional):
    """H / 2 units per direction, side by side: float [B, S, H] and bool [B, S] -> float [B, S, H]; padding is passed over."""

    def __init__(self, *, config: BertConfig, name: str = "bilstm", dtype: Any = None) -> None:
        # float32: a cell adds to its state, and its gradients add up, over all tokens of a text.
        dtype = wide(dtype)
        lstm = keras.layers.LSTM(config.hidden_size // 2, return_sequences=True, name="lstm", dtype=dtype)
        super().__init__(lstm, name=name, dtype=dtype)


# -----------------------------------------------------------------------------------------------------------
# Saving: a layer that its BertConfig makes comes back from it, quantized and frozen as it was


class FromBertConfig:
    """Base of layers whose attribute `config` is a BertConfig, for `.keras` files and copies."""

    def get_config(self: Any) -> dict[str, Any]:
        """The arguments from which `from_config` rebuilds the layer."""
        policy = keras.dtype_policies.serialize(self.dtype_policy)
        return {"config": self.config.to_dict(), "name": self.name, "dtype": policy} | state_config(self)

    @classmethod
    def from_config(cls: Any, config: dict[str, Any], custom_objects: Any = None) -> Any:
        return from_state_config(cls, config | {"config": BertConfig.from_dict(config["config"])})


def _layers_in(layer: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """A built layer and the layers in it, from the outside in, by their paths below it; "" is the layer itself."""
    built = [one for one in layer._flatten_layers() if one.path is not None]
    found = {one.path.removeprefix(layer.path).strip("/"): one for one in built}
    return dict(sorted(found.items(), key=lambda item: item[0].count("/") + bool(item[0])))


def denses_in(layer: keras.layers.Layer) -> dict[str, Dense]:
    """The Dense layers of a built layer, by their paths below it; "" is the layer itself."""
    return {path: one for path, one in _layers_in(layer).items() if isinstance(one, Dense)}


def state_config(layer: keras.layers.Layer) -> dict[str, Any]:
    """The part of a layer's config that its arguments do not say; empty for a new layer.

    "quantized": the quantizers of the Dense layers that are int8; "frozen": the outermost layers that do not train. Both by path.
    """
    # Not by a DTypePolicyMap: Keras 3.15 cannot save a quantized layer again that it has loaded with one.
    quantized = {
        path: keras.saving.serialize_keras_object(dense.quantization_config)
        for path, dense in denses_in(layer).items()
        if dense.quantization_mode is not None
    }
    state = {"quantized": quantized, "frozen": _frozen(layer)}
    return {name: value for name, value in state.items() if value}


def _frozen(layer: keras.layers.Layer) -> list[str]:
    """The paths of the outermost layers that do not train; none with LoRA, whose matrices a file merges into the kernels."""
    if any(dense.lora_enabled for dense in denses_in(layer).values()):
        return []
    frozen: list[str] = []
    for path, one in _layers_in(layer).items():
        inside = any(not outer or path.startswith(f"{outer}/") for outer in frozen)
        if one.weights and not one.trainable and not inside:
            frozen.append(path)
    return frozen


def from_state_config(cls: Any, config: dict[str, Any]) -> Any:
    """An instance of a class of layers from its arguments and what `state_config` has added to them."""
    quantized, frozen = config.pop("quantized", {}), config.pop("frozen", ())
    layer = cls(**config)
    inside = _layers_in(layer)
    for path in frozen:
        inside[path].trainable = False
    denses = denses_in(layer)
    for path, quantizers in quantized.items():
        # The values are loaded later, into the int8 variables that this makes.
        denses[path].quantize("int8", config=keras.saving.deserialize_keras_object(quantizers))
    return layer
