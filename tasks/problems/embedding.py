"""Vectors of texts, which learn from pairs, scores or classes, and vectors of words, which an encoder gives without training.

In: {"text": string [B]}. Out: one vector for each text, or one for each word with its offsets.
"""

from collections.abc import Callable
from typing import Any, Self

import keras
import tensorflow as tf
from keras import ops

from bert_keras.errors import BertKerasError
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_OUTPUTS, EXAMPLE_INDEX, INPUT_MASK, WORD_INDEX
from bert_keras.fields import field_types, names_of
from bert_keras.io.json_files import FLAG, one_of
from bert_keras.io.json_files import TEXT as STRING
from bert_keras.model.choices import check_layers, is_mixed, places_of
from bert_keras.model.encoder import BertEncoder, encoder_inputs, gather_positions, pooled_position
from bert_keras.model.heads import mean_of_tokens
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.options import FeatureOptions, VectorOptions, WindowOptions
from bert_keras.tasks.problems.embedding_training import TRAINING_KINDS, VECTOR, VectorTraining
from bert_keras.tasks.task import Features, Raw, Task
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT, find_words, take_text

# States [B, S, H], mask float [B, S, 1] and the pooled position int32 [B, 1] -> [B, H]. Special tokens count like other tokens.
POOLINGS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mean": lambda states, mask, position: mean_of_tokens(states, mask),
    "cls": lambda states, mask, position: gather_positions(states, position)[:, 0],
    "max": lambda states, mask, position: ops.max(ops.where(mask > 0, states, -1e9), axis=1),
}


@keras.saving.register_keras_serializable("bert_keras")
class Pooling(keras.layers.Layer):
    """Pools the states of each text: float32 [B, S, H], mask int32 [B, S] -> float32 [B, H].

    how: a key of POOLINGS
    causal: True pools the last real position, because the first one does not see the text
    """

    def __init__(self, how: str, *, causal: bool, name: str = "pooling", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)
        self.how, self.causal = how, causal
        self.built = True

    def call(self, states: Any, mask: Any) -> Any:
        """A layer, because symbolic tensors lack the shapes that pooling needs."""
        position = ops.expand_dims(pooled_position(mask, causal=self.causal), -1)
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


class Embedding(VectorTraining):
    """One vector for each text.

    pooling: a key of POOLINGS
    l2: True scales vectors to length 1
    layers: a row of the paper's Table 7, or numbers of layers, as in `places_of`
    source, training: of VectorTraining

    Raises BertKerasError for an unknown pooling, layer or loss.
    """

    kind = "embedding"
    names = (kind,)
    name = kind
    outputs = (EMBEDDING_OUTPUT, ENCODER_OUTPUTS)
    options = (*names_of(VectorOptions), *VectorTraining.options)
    kinds = {"pooling": one_of(POOLINGS), "l2": FLAG, "layers": STRING, **TRAINING_KINDS}

    def __init__(
        self,
        *,
        pooling: str = "mean",
        l2: bool = False,
        layers: str = FeatureOptions.layers,
        source: Source | None = None,
        **training: Any,
    ) -> None:
        if pooling not in POOLINGS:
            raise BertKerasError(f"pooling is {pooling!r}; give one of {', '.join(POOLINGS)}.")
        check_layers(layers)
        self.pooling, self.l2, self.layers = pooling, l2, layers
        self._learn_from(source, training)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> vectors float32 [B, H]. Raises BertKerasError where the encoder has too few layers."""
        inputs = encoder_inputs(config=encoder.config)
        pool = Pooling(self.pooling, causal=encoder.config.causal)
        vectors = pool(_states(encoder, inputs, self.layers), inputs[INPUT_MASK])
        return keras.Model(inputs, ops.normalize(vectors) if self.l2 else vectors, name="embedding_model")

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Vectors [B, H] -> "embedding" float32 [B, H]."""
        return {VECTOR: self.cut(outputs)}


class WordEmbedding(Task):
    """One vector for each word: the vector of its first token, in the window that shows it with the most context.

    layers: a row of the paper's Table 7, or numbers of layers, as in `places_of`
    doc_stride: tokens from the start of one window to the start of the next
    """

    kind = "word-embedding"
    names = (kind,)
    name = kind
    outputs = (EMBEDDING_OUTPUT, ENCODER_OUTPUTS)
    measure = ""
    trains = False
    validation_splits = ()
    windowed = True
    lists = {"word": "word_start_byte"}
    kinds = {"layers": STRING, **field_types(WindowOptions)}

    def __init__(
        self, *, layers: str = FeatureOptions.layers, doc_stride: int = FeatureOptions.doc_stride
    ) -> None:
        check_layers(layers)
        self.layers, self.doc_stride = layers, doc_stride

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> Self:
        return cls(**options)

    def _nothing(self, *args: Any, **kwargs: Any) -> Any:
        raise BertKerasError(
            f"{self.name} has no examples; it predicts and exports an encoder without training."
        )

    examples = labels = loss = evaluate = _nothing

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
