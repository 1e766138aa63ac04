"""A BiLSTM on the layers of a frozen encoder, which stands in for the encoder in every task.

    inputs -> BertEncoder -> vectors [B, S, K, H] -> FeatureBiLSTM -> states [B, S, W] -> a task's head

`FrozenNetwork` cuts a task's model at the vectors: they are computed once, and only the part above them is trained. That part
needs no encoder: `StoredVectors` stands in its place. `LayerMix` combines layers alone, without a BiLSTM. Another row of READERS
than "bilstm", a subclass, reads features of the words beside the vectors.

Sources: Devlin et al. 2019, sec. 5.3; Peters et al. 2018 (ELMo).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_OUTPUTS, INPUT_MASK, POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.model.choices import check_layers, is_mixed, places_of
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.encoders import BILSTM, check_layer_widths, reader_class
from bert_keras.model.kernels import wide

VECTORS = "vectors"  # the feature of a data set whose vectors were computed before
OUTPUTS = (EMBEDDING_OUTPUT, ENCODER_OUTPUTS)  # of an encoder under a FeatureEncoder


@keras.saving.register_keras_serializable("bert_keras")
class FeatureBiLSTM(keras.layers.Layer):
    """Combines the chosen layers of an encoder, then reads them with BiLSTM layers; padding is passed over.

    feature_layers: a row of the paper's Table 7, or numbers of layers, such as "9,10,11,12"
    mix_norm: normalizes the layers of a weighted sum, see `layer_norm`
    lstm_layers: 0 only combines the layers
    lstm_units: of each direction
    lstm_dropout: before each BiLSTM
    """

    reader: ClassVar[str] = BILSTM  # a row of READERS

    def __init__(
        self,
        *,
        feature_layers: str,
        lstm_layers: int,
        lstm_units: int,
        lstm_dropout: float,
        mix_norm: bool = False,
        name: str = "feature_bilstm",
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        check_layers(feature_layers)
        self.feature_layers = feature_layers
        self.lstm_layers, self.lstm_units, self.lstm_dropout = lstm_layers, lstm_units, lstm_dropout
        self.mix = ScalarMix(name="scalar_mix", dtype=dtype) if is_mixed(feature_layers) else None
        self.mix_norm = mix_norm
        self.dropouts, self.bilstms = [], []
        for i in range(lstm_layers):
            # float32: a cell adds to its state, and its gradients add up, over all tokens of a text.
            self.dropouts.append(keras.layers.Dropout(lstm_dropout, name=f"dropout_{i}", dtype=wide(dtype)))
            # cuDNN's op has no CPU kernel: an export that was traced on a GPU would run nowhere else.
            lstm = keras.layers.LSTM(
                lstm_units, return_sequences=True, use_cudnn=False, name="lstm", dtype=wide(dtype)
            )
            self.bilstms.append(keras.layers.Bidirectional(lstm, name=f"bilstm_{i}", dtype=wide(dtype)))

    @classmethod
    def on(cls, config: BertConfig, **settings: Any) -> "FeatureBiLSTM":
        """The layer on an encoder of this configuration."""
        return cls(**settings)

    def words_in(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The features that it reads beside vectors and mask, in the order of the arguments of `call`."""
        return []

    def input_widths(self, combined: int) -> list[int]:
        """The width that each BiLSTM reads, where the combined layers of the encoder have the width `combined`."""
        return [combined, *[2 * self.lstm_units] * (self.lstm_layers - 1)][: self.lstm_layers]

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of Hparams that this layer was made with."""
        return {"feature_reader": self.reader, **self._arguments}

    @property
    def _arguments(self) -> dict[str, Any]:
        names = ("feature_layers", "lstm_layers", "lstm_units", "lstm_dropout", "mix_norm")
        return {name: getattr(self, name) for name in names}

    @property
    def described(self) -> str:
        """The layers and the BiLSTM in words."""
        bilstm = f", {self.lstm_layers} x BiLSTM of 2 x {self.lstm_units}" if self.lstm_layers else ""
        return f"layers {self.feature_layers}{', normalized' * self.mix_norm}{bilstm}"

    @property
    def weights_of_layers(self) -> dict[str, Any] | None:
        """The learned weights of a weighted sum, which sum to 1, and gamma; None where layers are concatenated."""
        if self.mix is None:
            return None
        weights = ops.convert_to_numpy(ops.softmax(self.mix.weight)).tolist()
        return {"weights": weights, "gamma": float(self.mix.gamma)}

    def build(self, vectors_shape: Any, mask_shape: Any = None) -> None:
        if self.mix is not None:
            self.mix.build(vectors_shape)
        widths = self.input_widths(self._combined_width(vectors_shape))
        for bilstm, width in zip(self.bilstms, widths, strict=True):
            bilstm.build((*vectors_shape[:2], width))
        self.built = True

    def call(self, vectors: Any, mask: Any, training: bool = False) -> Any:
        """Float [B, S, K, H] of K layers, bool [B, S] -> float [B, S, W]."""
        states = self.combine(vectors, mask)
        for i in range(self.lstm_layers):
            states = self.read(i, states, mask, training=training)
        return states

    def combine(self, vectors: Any, mask: Any) -> Any:
        """Float [B, S, K, H] -> float [B, S, W], the chosen layers as one vector."""
        if self.mix is not None:
            return self.mix(layer_norm(vectors, mask) if self.mix_norm else vectors)
        batch, length = ops.shape(vectors)[:2]
        return ops.reshape(vectors, (batch, length, self._combined_width(vectors.shape)))

    def read(self, i: int, states: Any, mask: Any, *, training: bool) -> Any:
        """The states of BiLSTM i, float [B, S, 2 * lstm_units]."""
        dropped = self.dropouts[i](states, training=training)
        return self.bilstms[i](dropped, mask=mask, training=training)

    def compute_output_shape(self, vectors_shape: Any, mask_shape: Any = None) -> tuple[Any, ...]:
        width = 2 * self.lstm_units if self.lstm_layers else self._combined_width(vectors_shape)
        return (*vectors_shape[:2], width)

    def _combined_width(self, vectors_shape: Any) -> int:
        return vectors_shape[-1] * (1 if self.mix is not None else vectors_shape[-2])

    def get_config(self) -> dict[str, Any]:
        policy = keras.dtype_policies.serialize(self.dtype_policy)
        return {**self._arguments, "name": self.name, "dtype": policy, "trainable": self.trainable}


def make_reader(config: BertConfig, *, feature_reader: str = BILSTM, **settings: Any) -> FeatureBiLSTM:
    """The layer that reads the vectors of an encoder, a FeatureBiLSTM with these settings."""
    made: FeatureBiLSTM = reader_class(feature_reader).on(config, **settings)
    return made


class StoredVectors(keras.layers.Layer):
    """Stands in the graph of a model for an encoder whose vectors were computed before. It has no weights and computes nothing.

    config: the encoder's
    num_vectors: K, the layers of the encoder that are read
    """

    def __init__(self, config: BertConfig, *, num_vectors: int, dtype: Any = None) -> None:
        super().__init__(name="stored_vectors", dtype=dtype)
        self.config, self._shape = config, (num_vectors, config.hidden_size)

    def compute_output_spec(self, inputs: Mapping[str, Any]) -> keras.KerasTensor:
        """Symbolic Features [B, S] -> vectors [B, S, K, H]."""
        return keras.KerasTensor((*inputs[INPUT_MASK].shape, *self._shape), self.compute_dtype)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        raise BertKerasError("this model has no encoder; give the vectors of its inputs too.")


class FeatureEncoder:
    """A frozen encoder with a FeatureBiLSTM on it, in the form in which `Problem.model` reads an encoder.

    encoder: made with OUTPUTS; it is frozen here. A config alone makes a model without an encoder, for stored vectors
    settings: the arguments of `make_reader`
    dtype: the policy of a model without an encoder

    The head has the dropout `lstm_dropout`. Raises BertKerasError for layers that the encoder lacks.
    """

    def __init__(self, encoder: BertEncoder | BertConfig, *, dtype: Any = None, **settings: Any) -> None:
        config = encoder if isinstance(encoder, BertConfig) else encoder.config
        self.places = places_of(settings["feature_layers"], num_layers=config.num_layers)
        check_layer_widths(config, self.places)
        if isinstance(encoder, BertConfig):
            self._vectors: Any = StoredVectors(encoder, num_vectors=len(self.places), dtype=dtype)
            self.dtype_policy = self._vectors.dtype_policy
        else:
            encoder.trainable = False
            self._encoder, self._vectors = encoder, self._of_encoder
            self.dtype_policy = encoder.dtype_policy
        self.bilstm = make_reader(config, **settings, dtype=self.dtype_policy)
        width = self.bilstm.compute_output_shape((None, None, len(self.places), config.hidden_size))[-1]
        # Heads read the width of the states, the dropout and `causal`.
        self.config = dataclasses.replace(
            config,
            hidden_size=width,
            num_heads=1,
            embedding_size=None,
            bilstm=False,
            classifier_dropout=settings["lstm_dropout"],
        )

    def _of_encoder(self, inputs: Mapping[str, Any]) -> Any:
        every = _in_order(self._encoder(inputs))
        return ops.stack([every[place] for place in self.places], axis=2)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Symbolic Features -> sequence_output [B, S, W] and pooled_output [B, W], the maximum over a text's tokens.

        Conneau et al. 2017 (InferSent), sec. 5.1, found the maximum over a BiLSTM's states better than their mean. For a row
        without a token, it is 0.
        """
        real = inputs[INPUT_MASK] > 0
        states = self.bilstm(self._vectors(inputs), real, *self.bilstm.words_in(inputs))
        pooled = ops.max(ops.where(ops.expand_dims(real, -1), states, float("-inf")), axis=1)
        pooled = ops.where(ops.any(real, axis=1, keepdims=True), pooled, 0)
        return {SEQUENCE_OUTPUT: states, POOLED_OUTPUT: pooled}


def _in_order(outputs: Mapping[str, Any]) -> list[Any]:
    """The outputs of an encoder's layers, or their shapes: 0 is the embeddings, n is block n."""
    return [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]


def bilstm_parameters(config: BertConfig, features: Mapping[str, Any]) -> int:
    """The number of weights of the BiLSTM layers that `features` describe."""
    places = places_of(features["feature_layers"], num_layers=config.num_layers)
    width = config.hidden_size * (1 if is_mixed(features["feature_layers"]) else len(places))
    units, widths = features["lstm_units"], make_reader(config, **features).input_widths(width)
    return sum(2 * 4 * units * (width + units + 1) for width in widths)


def bilstm_of(network: keras.Model) -> FeatureBiLSTM | None:
    """The FeatureBiLSTM of a task's model; None where the task is fine-tuned."""
    return next((layer for layer in network.layers if isinstance(layer, FeatureBiLSTM)), None)


class FrozenNetwork:
    """A task's model on a FeatureEncoder, in two parts that share its layers: up to the vectors, and above them.

    A plain object: Keras would count the layers of both parts again.
    """

    def __init__(self, network: keras.Model) -> None:
        found = []

        def call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
            if isinstance(layer, FeatureBiLSTM):
                found.append(args[0])
            return layer(*args, **kwargs)

        # A second graph of the same layers: after a cut, Keras could not save the first one.
        twin = keras.models.clone_model(network, clone_function=lambda layer: layer, call_function=call)
        self._names = [one.name for one in twin.inputs]
        self._below = keras.Model(twin.inputs, found[0])
        self._above = keras.Model([*twin.inputs, found[0]], twin.outputs[0])

    def __call__(self, inputs: Mapping[str, Any], training: bool = False) -> Any:
        """Features, with "vectors" [..., S, K, H] or without -> the network's outputs; only the upper part is in training."""
        features = [inputs[name] for name in self._names]
        if VECTORS not in inputs:
            return self._above([*features, self._below(features, training=False)], training=training)
        vectors = ops.convert_to_tensor(inputs[VECTORS])
        rows = ops.reshape(vectors, (-1, ops.shape(vectors)[-3], *vectors.shape[-2:]))
        return self._above([*features, rows], training=training)


def layer_norm(vectors: Any, mask: Any) -> Any:
    """Gives each layer of each row the mean 0 and the variance 1: float [B, S, K, H], bool [B, S] -> float [B, S, K, H].

    Mean and variance are over all numbers of a layer at the tokens of a row, as in allenai/bilm-tf (`do_layer_norm` of
    `weight_layers`) for a batch of one sentence. There, they are over all sentences of a batch, so that a sentence has other
    vectors in another batch; here a vector depends on its row alone. Padding is 0. (Peters et al. 2018, sec. 3.2)
    """
    x, real = ops.cast(vectors, "float32"), ops.cast(mask, "float32")[:, :, None, None]
    count = ops.maximum(ops.sum(real, axis=1, keepdims=True), 1) * x.shape[-1]

    def mean(values: Any) -> Any:
        return ops.sum(values * real, axis=(1, 3), keepdims=True) / count

    x = x - mean(x)
    return ops.cast(x * ops.rsqrt(mean(ops.square(x)) + 1e-12) * real, vectors.dtype)


@keras.saving.register_keras_serializable("bert_keras")
class ScalarMix(keras.layers.Layer):
    """gamma * sum over k of softmax(weights)_k * x_k: float [..., K, H] -> [..., H] (Peters et al. 2018, eq. 1).

    All weights start equal; gamma starts at 1.
    """

    def build(self, input_shape: Any) -> None:
        self.weight = self.add_weight(shape=(input_shape[-2],), initializer="zeros", name="weight")
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")
        self.built = True

    def call(self, x: Any) -> Any:
        return self.gamma * ops.sum(ops.softmax(self.weight)[:, None] * x, axis=-2)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        return (*input_shape[:-2], input_shape[-1])


@keras.saving.register_keras_serializable("bert_keras")
class LayerMix(keras.layers.Layer):
    """One vector for each token from several layers of an encoder.

    layers: a row of the paper's Table 7: "embeddings", "second_to_last", "last", "concat_last_four", and
        "weighted_sum_last_four" and "weighted_sum_all", whose weights are learned and start equal; or numbers of layers to
        concatenate, such as "9" or "9,10,11,12", where 0 is the embeddings

    Raises BertKerasError for other layers, and where it is called on outputs that lack the layers.
    """

    def __init__(self, layers: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_layers(layers)
        self.layers = layers
        self.mix = None
        if is_mixed(layers):
            self.mix = ScalarMix(name="mix", trainable=self.trainable, dtype=self.dtype_policy)

    def build(self, input_shape: Mapping[str, Any]) -> None:
        shapes = self._chosen(input_shape)
        if self.mix is not None:
            self.mix.build((*shapes[0][:-1], len(shapes), shapes[0][-1]))
        self.built = True

    def call(self, outputs: Mapping[str, Any]) -> Any:
        """The encoder's outputs -> float [B, S, H], or [B, S, n * H] for n concatenated layers.

        outputs: of an encoder with the outputs "embedding_output" and "encoder_outputs"
        """
        chosen = self._chosen(outputs)
        if self.mix is None:
            return ops.concatenate(chosen, axis=-1)
        return self.mix(ops.stack(chosen, axis=-2))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """The encoder's mask bool [B, S], True on tokens: every output has the same one."""
        masks = [mask for mask in keras.tree.flatten(previous_mask) if mask is not None]
        return masks[0] if masks else None

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"layers": self.layers}

    def _chosen(self, outputs: Any) -> list[Any]:
        """The chosen outputs, or their shapes."""
        names = [*outputs] if isinstance(outputs, Mapping) else [type(outputs).__name__]
        if missing := [name for name in OUTPUTS if name not in names]:
            raise BertKerasError(
                f"LayerMix got {', '.join(names)}, without {' and '.join(missing)}; call it on the outputs of an encoder made "
                f'with outputs=["{EMBEDDING_OUTPUT}", "{ENCODER_OUTPUTS}"].'
            )
        every = _in_order(outputs)
        return [every[place] for place in places_of(self.layers, num_layers=len(every) - 1)]
