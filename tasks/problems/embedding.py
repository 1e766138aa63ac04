"""Tasks that export an encoder without training: vectors of texts and of words.

In: {"text": string [B]}. Out: one vector for each text, or one for each word with its offsets. There are no examples, labels or
measures.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

import keras
import tensorflow as tf
from keras import ops

from bert_keras.errors import BertKerasError
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_OUTPUTS, EXAMPLE_INDEX, INPUT_MASK, WORD_INDEX
from bert_keras.fields import field_types
from bert_keras.io.json_files import FLAG, checked_fields, integer, object_of, one_of, or_null
from bert_keras.io.json_files import TEXT as STRING
from bert_keras.model.choices import check_layers, is_mixed, places_of
from bert_keras.model.encoder import BertEncoder, encoder_inputs, gather_positions, pooled_position
from bert_keras.model.heads import mean_of_tokens
from bert_keras.model.kernels import ACTIVATIONS
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.options import FeatureOptions, WindowOptions
from bert_keras.tasks.task import Features, Raw, Task
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT, find_words, take_text

VECTOR = "embedding"
POOLING_MASK = "pooling_mask"  # int32 [B, S], the input mask without the tokens of the prompt
DENSE = "sentence_dense"  # the name of the dense layer after the pooling

# States [B, S, H], mask float [B, S, 1] and the pooled position int32 [B, 1] -> [B, H]. Special tokens count like other tokens.
POOLINGS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mean": lambda states, mask, position: mean_of_tokens(states, mask),
    "cls": lambda states, mask, position: gather_positions(states, position)[:, 0],
    "max": lambda states, mask, position: ops.max(ops.where(mask > 0, states, -1e9), axis=1),
    # Position t weighs t, counted from 1 at [CLS].
    "weighted_mean": lambda states, mask, position: mean_of_tokens(
        states, mask * ops.cumsum(ops.ones_like(mask), axis=1)
    ),
    "mean_sqrt_length": lambda states, mask, position: (
        ops.sum(states * mask, axis=1) / ops.sqrt(ops.maximum(ops.sum(mask, axis=1), 1))
    ),
    "last": lambda states, mask, position: gather_positions(
        states, ops.expand_dims(pooled_position(mask[..., 0], causal=True), -1)
    )[:, 0],
}


@keras.saving.register_keras_serializable("bert_keras")
class Pooling(keras.layers.Layer):
    """Pools the states of each text: float32 [B, S, H], mask int32 [B, S] -> float32 [B, H].

    how: a key of POOLINGS
    causal: True pools the last position of the mask, because the first one does not see the text
    mask: 1 on the tokens that count; padding is at the end
    """

    def __init__(self, how: str, *, causal: bool, name: str = "pooling", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)
        self.how, self.causal = how, causal
        self.built = True

    def call(self, states: Any, mask: Any) -> Any:
        """A layer, because symbolic tensors lack the shapes that pooling needs."""
        first = ops.argmax(mask, axis=1)  # not 0 where the mask leaves out a prompt
        last = pooled_position(mask, causal=True)
        position = ops.expand_dims(ops.cast(last if self.causal else first, "int32"), -1)
        real = ops.expand_dims(ops.cast(mask, states.dtype), -1)
        return POOLINGS[self.how](states, real, position)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        base = super().get_config()
        return {"name": base["name"], "dtype": base["dtype"], "how": self.how, "causal": self.causal}


def _states(encoder: BertEncoder, inputs: dict[str, keras.KerasTensor], layers: str) -> Any:
    """The states [B, S, H] of chosen layers: the mean for a weighted sum, [B, S, n * H] for concatenated layers."""
    outputs = encoder(inputs)
    every = [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]
    chosen = [every[layer] for layer in places_of(layers, num_layers=encoder.config.num_layers)]
    states = sum(chosen) / len(chosen) if is_mixed(layers) else ops.concatenate(chosen, axis=-1)
    return ops.cast(states, "float32")


class _Vectors(Task):
    """The common part of both tasks: text in, no training and no measures."""

    outputs = (EMBEDDING_OUTPUT, ENCODER_OUTPUTS)
    measure = ""
    trains = False
    validation_splits = ()

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> Self:
        return cls(**options)

    def _nothing(self, *args: Any, **kwargs: Any) -> Any:
        raise BertKerasError(
            f"{self.name} has no examples; it predicts and exports an encoder without training."
        )

    examples = labels = loss = evaluate = _nothing


class Embedding(_Vectors):
    """One vector for each text: the prompt before the text, the encoder, pooling, a dense layer, and the scaling.

    pooling: a key of POOLINGS
    l2: True scales vectors to length 1
    layers: a row of the paper's Table 7, or numbers of layers, as in `places_of`
    dense_size: the size D of a dense layer on the pooled states; None for no such layer
    dense_activation, dense_bias: of that layer; a key of ACTIVATIONS
    prompts: the name of a prompt -> the text that stands before each text
    prompt: the name of the prompt that texts get; None for none
    include_prompt: False leaves [CLS] and the tokens of the prompt out of the pooling, not out of the encoder

    Raises BertKerasError for an unknown pooling, layer, activation or prompt.
    """

    kind = "embedding"
    names = (kind,)
    name = kind
    kinds = {
        **{"pooling": one_of(POOLINGS), "l2": FLAG, "layers": STRING},
        **{"dense_size": or_null(integer(1, 1 << 20)), "dense_activation": one_of(ACTIVATIONS)},
        **{
            "dense_bias": FLAG,
            "prompts": object_of(STRING),
            "prompt": or_null(STRING),
            "include_prompt": FLAG,
        },
    }
    optional = ("dense_size", "dense_activation", "dense_bias", "prompts", "prompt", "include_prompt")
    other_layers = (DENSE,)

    def __init__(
        self,
        *,
        pooling: str = "mean",
        l2: bool = False,
        layers: str = FeatureOptions.layers,
        dense_size: int | None = None,
        dense_activation: str = "tanh",
        dense_bias: bool = True,
        prompts: Mapping[str, str] | None = None,
        prompt: str | None = None,
        include_prompt: bool = True,
    ) -> None:
        if pooling not in POOLINGS:
            raise BertKerasError(f"pooling is {pooling!r}; give one of {', '.join(POOLINGS)}.")
        check_layers(layers)
        self.pooling, self.l2, self.layers = pooling, l2, layers
        self.dense_size, self.dense_activation, self.dense_bias = dense_size, dense_activation, dense_bias
        self.prompts = {} if prompts is None else dict(prompts)
        self.prompt, self.include_prompt = prompt, include_prompt
        checked_fields(
            {name: getattr(self, name) for name in self.optional},
            {name: self.kinds[name] for name in self.optional},
            where="the embedding",
        )
        if prompt is not None and prompt not in self.prompts:
            raise BertKerasError(
                f"there is no prompt {prompt!r}; the prompts are {', '.join(self.prompts) or 'none: give prompts'}."
            )
        self.model_features = () if include_prompt else (POOLING_MASK,)

    def with_prompt(self, prompt: str | None) -> "Embedding":
        """The same vectors of texts with another prompt; None for no prompt. Raises BertKerasError for an unknown name."""
        return type(self)(**{name: getattr(self, name) for name in self.kinds} | {"prompt": prompt})

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S] of the prompt and the text, and POOLING_MASK where the prompt is left out."""
        prompt = self.prompts[self.prompt] if self.prompt is not None else ""
        text = tf.strings.join([prompt, raw[TEXT]]) if prompt else raw[TEXT]
        features = preprocess(text)
        if self.include_prompt:
            return features
        real = features[INPUT_MASK]
        # The prompt alone has the same tokens, framed by [CLS] and [SEP]; the last one is not there before a text.
        length = tf.reduce_sum(preprocess(tf.constant([prompt]))[INPUT_MASK]) - 1 if prompt else 0
        after = tf.cast(tf.range(tf.shape(real)[1]) >= length, real.dtype)
        return features | {POOLING_MASK: real * after}

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> vectors float32 [B, H] or [B, D]. Raises BertKerasError where the encoder has too few layers."""
        inputs = encoder_inputs(config=encoder.config)
        states = _states(encoder, inputs, self.layers)
        if not self.include_prompt:
            inputs[POOLING_MASK] = keras.Input((None,), dtype="int32", name=POOLING_MASK)
        mask = inputs[INPUT_MASK if self.include_prompt else POOLING_MASK]
        vectors = Pooling(self.pooling, causal=encoder.config.causal)(states, mask)
        if self.dense_size is not None:
            dense = keras.layers.Dense(self.dense_size, use_bias=self.dense_bias, name=DENSE, dtype="float32")
            vectors = ACTIVATIONS[self.dense_activation](dense(vectors))
        return keras.Model(inputs, ops.normalize(vectors) if self.l2 else vectors, name="embedding_model")

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Vectors [B, H] -> "embedding" float32 [B, H]."""
        return {VECTOR: outputs}


class WordEmbedding(_Vectors):
    """One vector for each word: the vector of its first token, in the window that shows it with the most context.

    layers: a row of the paper's Table 7, or numbers of layers, as in `places_of`
    doc_stride: tokens from the start of one window to the start of the next
    """

    kind = "word-embedding"
    names = (kind,)
    name = kind
    windowed = True
    lists = {"word": "word_start_byte"}
    kinds = {"layers": STRING, **field_types(WindowOptions)}

    def __init__(
        self, *, layers: str = FeatureOptions.layers, doc_stride: int = FeatureOptions.doc_stride
    ) -> None:
        check_layers(layers)
        self.layers, self.doc_stride = layers, doc_stride

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Windows of the text: raw [B] -> [W, S]."""
        return preprocess.words(take_text(raw), find_words(raw)[0], doc_stride=self.doc_stride)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> states float32 [W, S, H]. Raises BertKerasError where the encoder has too few layers."""
        inputs = encoder_inputs(config=encoder.config)
        return keras.Model(inputs, _states(encoder, inputs, self.layers), name="word_embedding_model")

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """States [W, S, H] -> the words of each text.

        "word_text": string [B, N], padded with ""
        "word_start_byte", "word_end_byte": int32 [B, N], bytes of the text, the end exclusive; padded with -1
        "word_embedding": float32 [B, N, H], 0 in padding and for a word without a token
        """
        starts, ends = find_words(raw)
        at = tf.where(features[WORD_INDEX] >= 0)
        row = tf.gather(features[EXAMPLE_INDEX], at[:, 0])
        index = tf.stack([row, tf.gather_nd(features[WORD_INDEX], at)], axis=1)
        start, end = starts.to_tensor(-1), ends.to_tensor(-1)
        shape = tf.concat([tf.shape(start), tf.shape(outputs)[2:]], axis=0)
        text = tf.strings.substr(raw[TEXT][:, tf.newaxis], tf.maximum(start, 0), end - start)
        vectors = tf.scatter_nd(index, tf.gather_nd(outputs, at), shape)
        vectors = tf.ensure_shape(vectors, [None, None, outputs.shape[2]])
        found = {"word_text": text, "word_start_byte": start, "word_end_byte": end}
        return found | {"word_embedding": vectors}

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """A vector for every position: "embedding" float32 [W, S, H]."""
        return {VECTOR: outputs}
