"""Vectors of texts, which learn from pairs, scores or classes, and vectors of words, which an encoder gives without training.

In: {"text": string [B]}. Out: one vector for each text, or one for each word with its offsets.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import tensorflow as tf
from keras import ops

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.checkpoints.sentence_transformers import DENSE, read_sentence_settings, sentence_folder
from bert_keras.cli.console import note
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_OUTPUTS,
    EXAMPLE_INDEX,
    INPUT_MASK,
    POOLING_MASK,
    WORD_INDEX,
)
from bert_keras.fields import field_types
from bert_keras.io.json_files import TEXT as STRING
from bert_keras.model.choices import PAIRS, check_layers, is_mixed, places_of
from bert_keras.model.encoder import BertEncoder, encoder_inputs, gather_positions, pooled_position
from bert_keras.model.heads import mean_of_tokens
from bert_keras.model.kernels import ACTIVATIONS
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.data.text_groups import form_of
from bert_keras.tasks.options import DOCUMENT, QUERY, FeatureOptions, WindowOptions
from bert_keras.tasks.problems.embedding_training import TRAINING_KINDS, VECTOR, VectorTraining
from bert_keras.tasks.task import Features, Raw, Task
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT, find_words, take_text

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
}
POOLINGS["last"] = POOLINGS["cls"]  # of another position
PROMPT = "prompt"  # a column of raw examples: the text before each text


@keras.saving.register_keras_serializable("bert_keras")
class Pooling(keras.layers.Layer):
    """Pools the states of each text: float32 [B, S, H], mask int32 [B, S] -> float32 [B, H].

    how: a key of POOLINGS
    causal: True has cls pool the last position of the mask, because the first one does not see the text
    mask: 1 on the tokens that count; padding is at the end
    """

    def __init__(self, how: str, *, causal: bool, name: str = "pooling", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)
        self.how, self.causal = how, causal
        self.built = True

    def call(self, states: Any, mask: Any) -> Any:
        """A layer, because symbolic tensors lack the shapes that pooling needs."""
        last = pooled_position(mask, causal=True)
        first = ops.cast(ops.argmax(mask, axis=1), "int32")  # not 0 where the mask leaves out a prompt
        position = ops.expand_dims(last if self.causal or self.how == "last" else first, -1)
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
    """One vector for each text: the prompt before the text, the encoder, pooling, a dense layer, and the scaling.

    settings: the fields of EmbeddingOptions, which are attributes; text_column, label_column and quoting as in ColumnOptions.
        What is None is that of the checkpoint's sentence-transformers folder, else the default
    source: the files, as in `split_file`

    Raises BertKerasError for an unknown pooling, layer, prompt or loss.
    """

    kind = "embedding"
    names = (kind,)
    name = kind
    outputs = (EMBEDDING_OUTPUT, ENCODER_OUTPUTS)
    kinds = TRAINING_KINDS
    head = DENSE
    other_layers = (DENSE,)
    pooling: str
    l2: bool
    layers: str
    dense_size: int | None
    dense_activation: str
    dense_bias: bool
    prompts: dict[str, str]
    prompt: str | None
    include_prompt: bool
    similarity: str | None

    def __init__(self, *, source: Source | None = None, **settings: Any) -> None:
        self._learn_from(source, settings)
        given = self._settings
        check_layers(given["layers"] or FeatureOptions.layers)
        defaults = {"pooling": "mean", "l2": False, "layers": FeatureOptions.layers, "prompts": {}}
        defaults |= {} if given["dense_size"] is None else {"dense_activation": "tanh", "dense_bias": True}
        self._settings = given | {key: value for key, value in defaults.items() if given[key] is None}
        self._given = {name: value for name, value in given.items() if value is not None}
        vars(self).update({name: self._settings[name] for name in Embedding.__annotations__})
        self.include_prompt = given["include_prompt"] is not False
        self._settings["include_prompt"] = None if self.include_prompt else False  # one form of the default
        if self.prompt is not None:
            self.find_prompt(self.prompt)
        self.model_features = () if self.include_prompt else (POOLING_MASK,)

    def started_from(self, checkpoint: Checkpoint) -> tuple[Self, Checkpoint]:
        """The embedding with what its folder says and the user does not; the checkpoint with the folder's dense layer."""
        folder = sentence_folder(checkpoint.path)
        if folder is None:
            if "pooling" not in self._given:
                note("the checkpoint does not say how to pool: the mean of all tokens is taken; give pooling")
            return self, checkpoint
        found = read_sentence_settings(folder)
        if "prompts" in self._given:
            del found.arguments["prompt"]
        made = type(self)(source=self.source, dimension=self.dimension, **(found.arguments | self._given))
        tensors = checkpoint.tensors | found.dense if checkpoint.tensors else {}
        return made, dataclasses.replace(checkpoint, tensors=tensors)

    def with_prompt(self, prompt: str) -> Self:
        """The embedding whose texts get another of its prompts. Raises BertKerasError for an unknown name."""
        return type(self)(
            source=self.source, dimension=self.dimension, **(self._settings | {"prompt": prompt})
        )

    def find_prompt(self, given: str | None = None, usual: Sequence[str] = ()) -> str:
        """The text of a prompt: of the named one; else of the first of the usual names that there is, else of `prompt`, else "".

        Raises BertKerasError for an unknown name.
        """
        if given is not None and given not in self.prompts:
            known = ", ".join(self.prompts) or "none; leave prompt out"
            raise BertKerasError(f"there is no prompt {given!r}; the prompts are {known}.")
        names = (*usual, self.prompt) if given is None else (given,)
        return next((self.prompts[name] for name in names if name in self.prompts), "")

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Texts [B], or those [B, T] of examples -> Features int32 [B, S] or [B * T, S], with POOLING_MASK without the prompts.

        raw: with the column PROMPT, its texts stand before the texts; without it, the prompts of queries and documents stand
            before the texts of pairs, and `prompt` before the others
        """
        texts = raw[TEXT]
        if PROMPT in raw:
            prompts = raw[PROMPT]
        else:
            plain = self.find_prompt()
            query, document = self.find_prompt(usual=QUERY), self.find_prompt(usual=DOCUMENT)
            of_pairs = len(texts.shape) > 1 and form_of(raw) == PAIRS
            prompts = tf.constant([query, *[document] * (texts.shape[1] - 1)] if of_pairs else plain)
        prompts = tf.reshape(tf.broadcast_to(prompts, tf.shape(texts)), [-1])
        features = preprocess(tf.strings.join([prompts, tf.reshape(texts, [-1])]))
        if self.include_prompt:
            return features
        # The prompt alone has the same tokens, framed by [CLS] and [SEP]; the last one is not there before a text.
        counts = tf.reduce_sum(preprocess(prompts)[INPUT_MASK], axis=1) - 1
        counts = tf.where(prompts == "", 0, counts)[:, tf.newaxis]
        real = features[INPUT_MASK]
        after = tf.range(tf.shape(real)[1], dtype=counts.dtype) >= counts
        return features | {POOLING_MASK: real * tf.cast(after, real.dtype)}

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
