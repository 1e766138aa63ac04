"""CoVe: the vectors of words in their context that a translator learned (McCann et al. 2017).

    word ids int32 [B, S] -> word vectors [B, S, E] -> two BiLSTM layers, E units a direction -> states [B, S, 2E]

The encoder learns with an LSTM decoder with attention, by the objective `Translation`; after that it gives vectors. H is 2E.
Layer 0 is the word vector, twice; layer 2 is CoVe: `--feature-layers 0,2` gives a task both, as in the paper.

Unlike the textbook: source and target share a vocabulary and its table, which learns too; Adam takes the place of SGD; and
dropout stands around the decoder, not between its two LSTMs.
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import DTYPE, INPUT_MASK, INPUT_WORD_IDS
from bert_keras.model.kernels import wide
from bert_keras.model.layers import MASKED_SCORE, Dense, Dropout
from bert_keras.tasks.ancestors.encoder import AncestorEncoder, Shapes, WordTable

DIRECTIONS = ("forward", "backward")


class CoveEncoder(AncestorEncoder):
    """Word vectors and `num_layers` BiLSTMs, 2 in the paper; `max_positions` only bounds a text."""

    def make(self, config: BertConfig) -> list[Any]:
        if config.hidden_size != 2 * config.embedding_width or config.num_layers < 1:
            raise BertKerasError(
                f"cove has hidden_size {config.hidden_size}, embedding_size {config.embedding_width} and num_layers "
                f"{config.num_layers}; give a hidden_size of two embedding_sizes, and a layer."
            )
        self.embeddings = WordTable(config, width=config.embedding_width, dtype=self.dtype_policy)
        self.embeddings.build()
        self.dropout = Dropout(config.hidden_dropout, name="dropout", dtype=self.dtype_policy)
        self.bilstms, width = [], config.embedding_width
        for i in range(config.num_layers):
            # float32: a cell adds to its state over all tokens of a text. cuDNN's op has no CPU kernel.
            how: Any = {"return_sequences": True, "use_cudnn": False, "dtype": wide(self.dtype_policy)}
            lstm = keras.layers.LSTM(config.embedding_width, name="lstm", **how)
            one = keras.layers.Bidirectional(lstm, name=f"bilstm_{i}", dtype=how["dtype"])
            one.build((None, None, width))
            self.bilstms.append(one)
            width = config.hidden_size
        return [self.embeddings, *self.bilstms]

    def states(self, features: Mapping[str, Any], training: bool = False) -> list[Any]:
        """L + 1 x float [B, S, 2E]. Padding is passed over."""
        ids, real = ops.cast(features[INPUT_WORD_IDS], DTYPE), features[INPUT_MASK] > 0
        self._check_length(ids.shape[1])
        words = self.embeddings(ids)
        found, x = [ops.concatenate([words, words], axis=-1)], words
        for bilstm in self.bilstms:
            x = ops.cast(bilstm(self.dropout(x, training=training), mask=real), self.compute_dtype)
            found.append(x)
        return found

    @classmethod
    def layer_shapes(cls, config: BertConfig) -> Shapes:
        units, width = config.embedding_width, config.embedding_width
        found: Shapes = {"embeddings/word_embeddings": (config.vocab_size, units)}
        for i in range(config.num_layers):
            for direction in DIRECTIONS:
                cell = f"bilstm_{i}/{direction}_lstm/lstm_cell"
                found |= {f"{cell}/kernel": (width, 4 * units), f"{cell}/bias": (4 * units,)}
                found |= {f"{cell}/recurrent_kernel": (units, 4 * units)}
            width = config.hidden_size
        return found

    def make_decoder(self, *, name: str, dtype: Any = None) -> "AttentionDecoder":
        """The head by which the encoder learns to translate."""
        return AttentionDecoder(self, name=name, dtype=dtype)

    @classmethod
    def decoder_cost(cls, config: BertConfig, length: int) -> tuple[Shapes, int]:
        """As transformer.py's, of an AttentionDecoder."""
        width, size = config.hidden_size, config.vocab_size
        shapes: Shapes = {}
        for i, given in enumerate((config.embedding_width + width, width)):
            cell = f"lstm_{i}"
            shapes |= {f"{cell}/kernel": (given, 4 * width), f"{cell}/recurrent_kernel": (width, 4 * width)}
            shapes[f"{cell}/bias"] = (4 * width,)
        for name, given, units in (
            ("score", width, width),
            ("adjust", 2 * width, width),
            ("output", width, size),
        ):
            shapes |= {f"{name}/kernel": (given, units), f"{name}/bias": (units,)}
        matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
        return shapes, length * (matrices + 2 * length * width)


class AttentionDecoder(keras.layers.Layer):
    """The target so far and the encoder's states -> logits for the token after each position, float32 [B, T, V].

    At each position, two LSTMs read the word before it and the state that attention adjusted there (McCann et al. 2017):

        h = LSTM([z; a], h);  weights = softmax(source (W1 h + b1));  a = tanh(W2 [source^T weights; h] + b2)
        logits = Wout a + bout
    """

    def __init__(self, encoder: CoveEncoder, *, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        config = encoder.config
        self._encoder = lambda: encoder  # a function, so that Keras counts the table once: as the encoder's
        self.cells = [
            keras.layers.LSTMCell(config.hidden_size, name=f"lstm_{i}", dtype=wide(dtype)) for i in range(2)
        ]
        self.score, self.adjust, self.output_dense = (
            Dense(units, config=config, name=part, dtype=wide(dtype))
            for part, units in (
                ("score", config.hidden_size),
                ("adjust", config.hidden_size),
                ("output", config.vocab_size),
            )
        )
        self.dropout = Dropout(config.hidden_dropout, name="dropout", dtype=wide(dtype))
        self.build()

    def build(self, input_shape: Any = None, *others: Any) -> None:
        """Makes every variable; the config knows all shapes."""
        config = self._encoder().config
        width = config.hidden_size
        widths = (config.embedding_width + width, width, width, 2 * width, width)
        parts = (*self.cells, self.score, self.adjust, self.output_dense)
        for part, given in zip(parts, widths, strict=True):
            part.build((None, given))
        self.built = True

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: the labels have weights."""

    def call(
        self, ids: Any, source: Any, source_mask: Any, training: bool = False, last: bool = False
    ) -> Any:
        """As `Decoder.call`. ids: int32 [B, T]; source: float [B, S, H]; source_mask: int32 [B, S]."""
        source = ops.cast(source, self.score.compute_dtype)
        unread = (1.0 - ops.cast(source_mask, source.dtype)) * MASKED_SCORE
        words = self.dropout(self._encoder().embeddings(ids), training=training)
        start = ops.zeros_like(source[:, 0])

        def step(state: tuple[Any, ...], word: Any) -> tuple[Any, ...]:
            h_0, c_0, h_1, c_1, adjusted = state
            h_0, (_, c_0) = self.cells[0](ops.concatenate([word, adjusted], axis=-1), [h_0, c_0])
            h_1, (_, c_1) = self.cells[1](h_0, [h_1, c_1])
            weights = ops.softmax(ops.einsum("bsh,bh->bs", source, self.score(h_1)) + unread, axis=-1)
            read = ops.einsum("bs,bsh->bh", weights, source)
            adjusted = ops.tanh(self.adjust(ops.concatenate([read, h_1], axis=-1)))
            return h_0, c_0, h_1, c_1, adjusted

        adjusted = tf.scan(step, ops.transpose(words, (1, 0, 2)), (start,) * 5)[-1]
        x = ops.transpose(adjusted[-1:] if last else adjusted, (1, 0, 2))
        return ops.cast(self.output_dense(self.dropout(x, training=training)), "float32")
