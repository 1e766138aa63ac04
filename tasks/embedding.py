"""Vectors of texts and of words from an encoder as it is, for export.

In: {"text": string [B]}. Out: one vector for each text, or one for each of its words with the word's place.

Nothing is trained here: there are no examples, labels or measures.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

import keras
import tensorflow as tf
from keras import ops

from bert_keras.encoder import BertEncoder, encoder_inputs, gather_positions, pooled_position
from bert_keras.errors import BertKerasError
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_OUTPUTS, EXAMPLE_INDEX, INPUT_MASK, WORD_INDEX
from bert_keras.json_files import FLAG, Kind, one_of, typed, whole
from tasks.features.extract import Words
from tasks.features.layers import LAYERS, places_of
from tasks.ner.conll import TEXT, words_of
from tasks.settings import MAX_OPTION, FeatureOptions
from tasks.task import Features, Raw, Source, Task

VECTOR = "embedding"


def _mean(states: Any, mask: Any, position: Any) -> Any:
    return ops.sum(states * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1)


def _cls(states: Any, mask: Any, position: Any) -> Any:
    return gather_positions(states, position)[:, 0]


def _max(states: Any, mask: Any, position: Any) -> Any:
    return ops.max(ops.where(mask > 0, states, -1e9), axis=1)


# States [B, S, H], mask float [B, S, 1] and the position int32 [B, 1] that stands for the whole text -> [B, H]; special tokens
# count as any others.
POOLINGS: dict[str, Callable[[Any, Any, Any], Any]] = {"mean": _mean, "cls": _cls, "max": _max}


@keras.saving.register_keras_serializable("bert_keras")
class Pooling(keras.layers.Layer):
    """States float32 [B, S, H] and mask int32 [B, S] -> a vector float32 [B, H] for each text.

    how: a key of POOLINGS
    causal: whether the last real position stands for the whole text, for the first has seen nothing of it
    """

    def __init__(self, how: str, *, causal: bool, name: str = "pooling", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)
        self.how, self.causal = how, causal
        self.built = True

    def call(self, states: Any, mask: Any) -> Any:
        """Needs shapes that a symbolic tensor has not: hence a layer."""
        position = ops.expand_dims(pooled_position(mask, causal=self.causal), -1)
        real = ops.expand_dims(ops.cast(mask, states.dtype), -1)
        return POOLINGS[self.how](states, real, position)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` rebuilds the layer from."""
        return super().get_config() | {"how": self.how, "causal": self.causal}


def _states(encoder: BertEncoder, inputs: dict[str, keras.KerasTensor], layers: str) -> Any:
    """The states [B, S, H] of a row of LAYERS; a weighted sum is the mean, several side by side are [B, S, n * H]."""
    outputs = encoder(inputs)
    every = [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]
    chosen = [every[place] for place in places_of(layers, num_layers=encoder.config.num_layers)]
    states = sum(chosen) / len(chosen) if LAYERS[layers].mixed else ops.concatenate(chosen, axis=-1)
    return ops.cast(states, "float32")


class _Vectors(Task):
    """What both tasks are: text in, and nothing to train or to measure."""

    outputs = (EMBEDDING_OUTPUT, ENCODER_OUTPUTS)
    measure = ""
    validation_splits = ()
    kinds: Mapping[str, Kind]  # of the settings in task.json

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> Self:
        return cls(**options)

    def signature(self) -> dict[str, tf.TensorSpec]:
        return {TEXT: tf.TensorSpec([None], tf.string, name=TEXT)}

    def _nothing(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ValueError."""
        raise BertKerasError(f"{self.name} has no examples: it is for exporting an encoder as it is.")

    examples = labels = loss = evaluate = _nothing

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> Self:
        kinds = {"name": one_of(cls.names), **cls.kinds}
        kept = typed(kept, kinds, where="task", optional=kinds)
        return cls(**{name: value for name, value in kept.items() if name != "name"})


class Embedding(_Vectors):
    """One vector for each text.

    pooling: a key of POOLINGS
    l2: whether vectors have length 1
    layers: a key of feature_based.LAYERS

    Raises ValueError on another pooling.
    """

    kind = "embedding"
    names = (kind,)
    name = kind
    kinds = {"pooling": one_of(POOLINGS), "l2": FLAG, "layers": one_of(LAYERS)}

    def __init__(
        self, *, pooling: str = "mean", l2: bool = False, layers: str = FeatureOptions.layers
    ) -> None:
        if pooling not in POOLINGS:
            raise BertKerasError(f"pooling is {pooling!r}; wanted is one of {', '.join(POOLINGS)}.")
        self.pooling, self.l2, self.layers = pooling, l2, layers

    def features(self, preprocess: Callable[..., Features], raw: Raw) -> Features:
        """What is too long is cut off at the preprocessor's length."""
        return preprocess(raw[TEXT])

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> vectors float32 [B, H]. Raises ValueError where the encoder has too few layers."""
        inputs = encoder_inputs()
        pool = Pooling(self.pooling, causal=encoder.config.causal)
        vectors = pool(_states(encoder, inputs, self.layers), inputs[INPUT_MASK])
        return keras.Model(inputs, ops.normalize(vectors) if self.l2 else vectors, name="embedding_model")

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Vectors [B, H] -> "embedding" float32 [B, H]."""
        return self.decode_features(outputs)

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """The same: no text is needed."""
        return {VECTOR: outputs}

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "pooling": self.pooling, "l2": self.l2, "layers": self.layers}


class WordEmbedding(_Vectors):
    """One vector for each word: its first piece's, in the window that shows it with the most context.

    layers: a key of feature_based.LAYERS
    doc_stride: wordpieces from one window of a long text to the next
    """

    kind = "word-embedding"
    names = (kind,)
    name = kind
    windowed = True
    lists = {"word": "word_start_byte"}
    kinds = {"layers": one_of(LAYERS), "doc_stride": whole(1, MAX_OPTION)}

    def __init__(
        self, *, layers: str = FeatureOptions.layers, doc_stride: int = FeatureOptions.doc_stride
    ) -> None:
        self.layers, self.doc_stride = layers, doc_stride

    def features(self, preprocess: Any, raw: Raw) -> Features:
        """Windows of the text: raw [B] -> [W, S]."""
        return Words(doc_stride=self.doc_stride).features(preprocess, raw)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> states float32 [W, S, H]. Raises ValueError where the encoder has too few layers."""
        inputs = encoder_inputs()
        return keras.Model(inputs, _states(encoder, inputs, self.layers), name="word_embedding_model")

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """States [W, S, H] -> the words of each text.

        "word_text": string [B, N], filled up with ""
        "word_start_byte", "word_end_byte": int32 [B, N], bytes of the text, the end exclusive; filled up with -1
        "word_embedding": float32 [B, N, H], filled up with 0, as is that of a word without a piece
        """
        starts, ends = words_of(raw)
        at = tf.where(features[WORD_INDEX] >= 0)
        row = tf.gather(features[EXAMPLE_INDEX], at[:, 0])
        place = tf.stack([row, tf.gather_nd(features[WORD_INDEX], at)], axis=1)
        start, end = starts.to_tensor(-1), ends.to_tensor(-1)
        shape = tf.concat([tf.shape(start), tf.shape(outputs)[2:]], axis=0)
        text = tf.strings.substr(raw[TEXT][:, tf.newaxis], tf.maximum(start, 0), end - start)
        return {
            "word_text": text,
            "word_start_byte": start,
            "word_end_byte": end,
            "word_embedding": tf.ensure_shape(
                tf.scatter_nd(place, tf.gather_nd(outputs, at), shape), [None, None, outputs.shape[2]]
            ),
        }

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """A vector for every position: "embedding" float32 [W, S, H]."""
        return {VECTOR: outputs}

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "layers": self.layers, "doc_stride": self.doc_stride}
