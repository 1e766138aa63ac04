"""The objective of a language model: predict each next word and, with two directions, each word before.

    states float [B, S, H], words int32 [B, S] -> NextWordsHead -> float32 [B, N, 2] -> the mean loss, perplexity, accuracy

An encoder has one direction, and H numbers for it, or two, with half of them for each: the left half has read the words up to its
own, and predicts the next one; the right half has read the words from the end back to its own, and predicts the one before.
One softmax serves both directions (Peters et al. 2018, sec. 3.1). [CLS] is the start of a row and [SEP] its end: both are
predicted, and padding is not.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ALL_ROWS,
    INPUT_CHARACTERS,
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    SEQUENCE_OUTPUT,
    WorkerRows,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.encoders import encoder_class
from bert_keras.model.kernels import look_up
from bert_keras.optimization.losses import GlobalMean
from bert_keras.optimization.objectives import Cost, Features, Labelled, Objective

AT_ONCE = (
    2**24
)  # logits, 64 MiB: a head computes more of them in pieces of as many, and again for the gradient
NEVER = -1e9  # the logit of a word that must not count


class NextWordsHead(keras.layers.Layer):
    """A softmax over all words, or in training over the true word and some that are drawn.

    directions: of the encoder, whose `sequence_output` has H / directions numbers for each
    samples: K words to draw, for all predictions of a step; 0 computes the whole softmax in training too
    tied: True takes the encoder's word embeddings as weights (Press and Wolf 2017)

    With samples, the true word is told from K words that are drawn, none twice and none of them true: the softmax over these and
    the true word, of the scores s_w - log c_w, as in TensorFlow's `sampled_softmax_loss`, which allenai/bilm-tf takes
    (Jean et al. 2015). c_w is the probability that w is among the K. Words come at rates that fall with the id,
    log((w + 2) / (w + 1)) / log(V + 1): near the rates of words where ids are sorted by frequency. The loss is not that of the
    whole softmax, but the same scores minimize both.
    """

    def __init__(
        self,
        encoder: BertEncoder,
        *,
        directions: int = 1,
        samples: int = 0,
        tied: bool = False,
        name: str = "next_words",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        config = encoder.config
        self.samples, self._size, self.width = samples, config.vocab_size, config.hidden_size // directions
        if samples >= self._size:
            raise BertKerasError(
                f"softmax_samples is {samples}, and the vocabulary has {self._size:,} words; draw fewer, or set 0 for all."
            )
        if tied and tuple(encoder.embedding_table.shape) != (self._size, self.width):
            raise BertKerasError(
                f"the embeddings are {tuple(encoder.embedding_table.shape)} and the softmax needs {(self._size, self.width)}; "
                "leave tied_softmax out, or make the widths equal."
            )
        self._tied = (
            (lambda: encoder.embedding_table) if tied else None
        )  # Keras counts the table as the encoder's
        self.draws = keras.random.SeedGenerator()
        if not tied:
            spread = keras.initializers.TruncatedNormal(stddev=1 / math.sqrt(self.width))
            self.table = self.add_weight(name="table", shape=(self._size, self.width), initializer=spread)
        self.bias = self.add_weight(name="bias", shape=(self._size,), initializer="zeros", autocast=False)
        self.built = True

    def _weights(self) -> Any:
        return ops.cast(self.table if self._tied is None else self._tied(), self.compute_dtype)

    def scores(self, states: Any) -> Any:
        """The logits of all words, before the softmax: float [B, N, P] -> float32 [B, N, V]."""
        rows = ops.reshape(ops.cast(states, self.compute_dtype), (-1, self.width))
        made = ops.cast(ops.matmul(rows, ops.transpose(self._weights())), "float32")
        return ops.reshape(made + ops.cast(self.bias, "float32"), (*ops.shape(states)[:-1], self._size))

    def call(self, states: Any, words: Any, training: bool | None = None) -> Any:
        """States float [B, N, P] and the words to predict, int32 [B, N] -> float32 [B, N, 2], the logarithms of probabilities.

        The first is that of the true word, the second that of the likeliest other word: of those drawn, in training with samples.
        """
        table, bias = self._weights(), ops.cast(self.bias, "float32")
        rows, truth = ops.reshape(states, (-1, self.width)), ops.reshape(words, (-1,))
        known = ops.cast(look_up(table, truth), "float32") * ops.cast(rows, "float32")
        true = ops.sum(known, axis=-1) + look_up(bias, truth)
        others, of_others, of_true = ops.arange(self._size, dtype="int32"), 0.0, ops.zeros_like(true)
        if training and self.samples:
            others, counts = self._draw()
            of_others, of_true = (-ops.log(ops.take(counts, one, axis=0)) for one in (others, truth))
            table, bias = look_up(table, others), look_up(bias, others)

        def compute(rows: Any, truth: Any, true: Any, of_true: Any, table: Any, bias: Any) -> Any:
            scores = ops.cast(ops.matmul(rows, ops.transpose(table)), "float32") + bias
            scores = ops.where(others == ops.expand_dims(truth, -1), NEVER, scores)
            # Not logaddexp: its gradient is a sum of four that TensorFlow adds in the order in which they are ready, so that
            # its last bit is chance.
            odds = ops.logsumexp(scores + of_others, axis=-1) - (true + of_true)
            found = -ops.softplus(odds)
            return ops.stack([found, ops.stop_gradient(found + ops.max(scores, axis=-1) - true)], axis=-1)

        size = max(1, AT_ONCE // others.shape[0])
        made = in_pieces(compute, (rows, truth, true, of_true), (table, bias), size=size)
        return ops.reshape(made, (*ops.shape(words), 2))

    def _draw(self) -> tuple[Any, Any]:
        """Words int32 [K], none twice, and the probability of each word of the vocabulary to be among them, float32 [V].

        Each word comes at a random time, by its rate; the first K are drawn. A word is among them if it comes before the last.
        """
        rates = ops.log1p(1 / (ops.arange(self._size, dtype="float32") + 1)) / math.log(self._size + 1)
        times = -ops.log1p(-keras.random.uniform((self._size,), seed=self.draws)) / rates
        first, drawn = ops.top_k(-times, self.samples)
        return ops.cast(drawn, "int32"), -ops.expm1(first[-1] * rates)


def in_pieces(compute: Any, rows: tuple[Any, ...], whole: tuple[Any, ...], *, size: int) -> Any:
    """`compute(*rows, *whole)` on rows [R, ...] -> float32 [R, 2], on `size` rows after the other.

    No piece is kept for the gradient, which computes it again.
    """
    count = rows[0].shape[0]
    if count is not None and count <= size:
        return compute(*rows, *whole)
    import tensorflow as tf

    count, again = tf.shape(rows[0])[0], keras.remat(compute)

    def add(start: Any, made: Any) -> tuple[Any, Any]:
        piece = again(*(one[start : start + size] for one in rows), *whole)
        return start + size, made.write(start // size, piece)

    pieces = tf.TensorArray(tf.float32, -(-count // size), infer_shape=False, element_shape=[None, 2])
    return tf.while_loop(lambda start, _: start < count, add, (0, pieces))[1].concat()


def true_word_loss(labels: Any, logits: Any) -> Any:
    """Minus the logarithm of the true word's probability: float32 [B, N, 2] of a NextWordsHead -> [B, N]."""
    return -logits[..., 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextWords(Objective):
    """Predicts each next word and, where `directions` is 2, each word before (Peters et al. 2018, sec. 3.1).

    directions: of the encoder: 1, or 2 where each half of its states has one
    max_characters: of an encoder that reads characters: each word's are looked up by its id, and [UNK] is read as "[UNK]"
    pieces: the words of the vocabulary, for an encoder that reads their characters
    softmax_samples, tied_softmax: see NextWordsHead

    Labels are ids [B, N], where N is `directions` * (S - 1): first those after the positions 0 .. S - 2, then those before the
    positions 1 .. S - 1. In evaluation the softmax is always whole, so that its perplexity compares with that of unigrams.
    """

    name: ClassVar[str] = "next_words"
    reads: ClassVar[str] = SEQUENCE_OUTPUT
    perplexity: ClassVar[bool] = True

    directions: int = 1
    max_characters: int = 0
    pieces: Any = None
    softmax_samples: int = 0
    tied_softmax: bool = False

    def check(self, sample: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Raises BertKerasError on instances with masks."""
        if MASKED_LM_IDS in sample:
            raise BertKerasError(
                "these records have masks, and a language model reads whole text; write records without masks."
            )
        yield from ()

    def label(self, features: Features, *, seed: Any, worker_rows: WorkerRows = ALL_ROWS) -> Labelled:
        """Features -> the same, with characters where the encoder reads them; labels int32 [B, N], weights float32 [B, N]."""
        if self.max_characters:
            from bert_keras.text.spelling import spell_vocabulary

            table = spell_vocabulary(self.pieces.texts, self.pieces.special, self.max_characters)
            spelled = ops.take(table, features[INPUT_WORD_IDS], axis=0)
            features = {**features, INPUT_CHARACTERS: spelled * features[INPUT_MASK][..., None]}
        real = ops.cast(features[INPUT_MASK][:, 1:], "float32")
        weights = ops.concatenate([real] * self.directions, axis=1)
        return features, self._words(features) * ops.cast(weights, "int32"), weights

    def _words(self, features: Features) -> Any:
        """The true words: int32 [B, N]."""
        ids = features[INPUT_WORD_IDS]
        return ops.concatenate([ids[:, 1:], ids[:, :-1]][: self.directions], axis=1)

    def head(self, encoder: BertEncoder) -> NextWordsHead:
        """Raises BertKerasError where the encoder's states have read the words to predict."""
        if (found := directions_of(encoder.config)) != self.directions:
            raise BertKerasError(
                f"next_words has {self.directions} direction(s), and the states of the encoder {encoder.config.encoder} have "
                f"{found} that read no word to predict; give an encoder of a language model, or set causal."
            )
        how: Any = {"samples": self.softmax_samples, "tied": self.tied_softmax}
        return NextWordsHead(
            encoder, directions=self.directions, name=self.name, dtype=encoder.dtype_policy, **how
        )

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, N, 2]: see NextWordsHead."""
        states, width = outputs[SEQUENCE_OUTPUT], outputs[SEQUENCE_OUTPUT].shape[-1] // self.directions
        sides = [states[:, :-1, :width], states[:, 1:, width:]][: self.directions]
        return head(ops.concatenate(sides, axis=1), self._words(features))

    def cost(self, config: BertConfig, length: int) -> Cost:
        width = config.hidden_size // self.directions
        shapes: dict[str, tuple[int, ...]] = {"bias": (config.vocab_size,)}
        shapes |= {} if self.tied_softmax else {"table": (config.vocab_size, width)}
        words = self.directions * (length - 1)
        return Cost(shapes, words * width * (self.softmax_samples or config.vocab_size), length)

    def loss(self) -> GlobalMean:
        return GlobalMean(true_word_loss)

    def correct(self, labels: Any, logits: Any) -> Any:
        """1 where no other word is as likely; in training with samples, no other word that was drawn."""
        return ops.cast(logits[..., 0] > logits[..., 1], "float32")


def directions_of(config: BertConfig) -> int:
    """The directions in which an encoder reads without the words to predict: its class has them; BERT's blocks one, if causal."""
    return int(getattr(encoder_class(config), "directions", config.causal))
