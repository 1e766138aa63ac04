"""Word vectors: a table of vectors, which learns from the words around each word (Mikolov et al. 2013).

    Features int32 [B, S] -> WordVectorsEncoder: the vectors float [B, S, H], the same for a word in every text
    Features int32 [B, S] -> SkipGram.label: centers [B, P], pairs of a center with a word and a label, 1 for words of the text

Skip-gram with negative sampling: a word's vector predicts which words stand near it. The label of a word that stands there is 1;
of `negatives` words that are drawn for it, 0. After the training, words that stand in like contexts have like vectors.

Unlike the paper, the update is Adam's, not that of plain gradient descent, and [UNK] is a word as others are.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ALL_ROWS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    SEQUENCE_OUTPUT,
    WorkerRows,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.kernels import look_up
from bert_keras.optimization.losses import GlobalMean, binary_cross_entropy
from bert_keras.optimization.objectives import Cost, Features, Labelled, Objective
from bert_keras.tasks.ancestors.encoder import AncestorEncoder, Shapes, WordTable

# -----------------------------------------------------------------------------------------------------------
# The encoder: one table


class OpenTable(WordTable):
    """Ids int [B, S] -> vectors float [B, S, H].

    An id beyond the table is a new word's own (see `word_tokenizer`). Its vector is drawn from the id, and is the same in every
    call and process: equal new words are equal, and different ones differ (Dhingra et al. 2017).
    """

    def __init__(self, config: BertConfig, *, dtype: Any = None) -> None:
        bound = 0.5 / config.hidden_size  # word2vec.c
        uniform = keras.initializers.RandomUniform(-bound, bound)
        super().__init__(config, width=config.hidden_size, initializer=uniform, dtype=dtype)

    def call(self, ids: Any) -> Any:
        is_new = ids >= self.config.vocab_size
        known = super().call(ops.where(is_new, 0, ids))
        return ops.cond(
            ops.any(is_new),
            lambda: ops.where(is_new[..., None], ops.cast(self._drawn(ids), known.dtype), known),
            lambda: known,
        )

    def _drawn(self, ids: Any) -> Any:
        """Float32 [B, S, H], uniform with the standard deviation `initializer_range`: the bits of MurmurHash3's last mix."""
        low = 2**32 - 1
        width = ops.arange(self.config.hidden_size, dtype="int64")
        x = (ops.cast(ids, "int64")[..., None] * 0x9E3779B1 + width * 0x85EBCA77) & low
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
            x = (ops.bitwise_xor(x, ops.right_shift(x, shift)) * factor) & low
        return (ops.cast(x, "float32") / 2**31 - 1) * 3**0.5 * self.config.initializer_range


class WordVectorsEncoder(AncestorEncoder):
    """The table as an encoder without layers: the state of a token is its vector, whatever stands around it."""

    def make(self, config: BertConfig) -> list[Any]:
        """Raises BertKerasError for layers: word vectors have none."""
        if config.num_layers:
            raise BertKerasError(
                f"word-vectors has num_layers={config.num_layers}; word vectors are a table without layers: give 0."
            )
        self.embeddings = OpenTable(config, dtype=self.dtype_policy)
        self.embeddings.build()
        return [self.embeddings]

    def states(self, features: Mapping[str, Any], training: bool = False) -> list[Any]:
        return [self.embeddings(features[INPUT_WORD_IDS])]

    @classmethod
    def layer_shapes(cls, config: BertConfig) -> Shapes:
        return {"embeddings/word_embeddings": (config.vocab_size, config.hidden_size)}


# -----------------------------------------------------------------------------------------------------------
# The objective

TARGETS = (
    "skip_gram_ids"  # features: int32 [B, P, 2 window, 1 + negatives], the words that a center is paired with
)


class OutputVectors(keras.layers.Layer):
    """A second vector for each word, for its part as a neighbour: centers [B, P, H], ids [B, P, C, K] -> logits [B, P, C, K]."""

    def __init__(self, config: BertConfig, *, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        shape = (config.vocab_size, config.hidden_size)
        self.vectors = self.add_weight(name="vectors", shape=shape, initializer="zeros", autocast=False)
        self.built = True

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: the labels have weights."""

    def call(self, centers: Any, ids: Any) -> Any:
        _, places, contexts, each = ids.shape
        places, width = places or ops.shape(ids)[1], self.vectors.shape[1]
        outputs = look_up(self.vectors, ops.reshape(ids, (-1, contexts * each)))
        logits = ops.matmul(outputs, ops.cast(ops.reshape(centers, (-1, width, 1)), outputs.dtype))
        return ops.reshape(logits, (-1, places, contexts, each))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkipGram(Objective):
    """Tells the words around a word from drawn words (Mikolov et al. 2013, skip-gram with negative sampling).

    counts: int [V], how often the training text has each token; 0 for special tokens. It is the objective's only look at the text
    window: the most words on each side; each center draws its own number from 1 to it, so that near words count more
    negatives: words that are drawn for each word around
    subsample: a word of frequency f is kept with probability sqrt(subsample / f); dropped words are no centers, and the words on
        both of their sides are neighbours. None keeps all words

    The loss is the mean over the pairs, where the paper has the sum over a center's.
    """

    name: ClassVar[str] = "skip_gram"
    reads: ClassVar[str] = SEQUENCE_OUTPUT

    counts: np.ndarray
    window: int = 5
    negatives: int = 5
    subsample: float | None = 1e-4

    def kept(self) -> np.ndarray:
        """The probability to keep each token: float32 [V], 0 for tokens that the text does not have."""
        rate = self.counts / max(self.counts.sum(), 1)
        limit = np.inf if self.subsample is None else self.subsample
        some = np.sqrt(np.divide(limit, rate, out=np.zeros_like(rate), where=rate > 0))
        return np.minimum(some, 1).astype("float32")

    def drawn_below(self) -> np.ndarray:
        """Counts to the power of 3/4, added up: float32 [V]. A draw in [0, 1) gives the first token whose number is over it."""
        weights = np.cumsum(self.counts.astype("float64") ** 0.75)
        return (weights / weights[-1]).astype("float32")

    def label(self, features: Features, *, seed: Any, worker_rows: WorkerRows = ALL_ROWS) -> Labelled:
        """Features [B, S] -> features of the kept words [B, P] with TARGETS, int32 and float32 [B, P, 2 window, 1 + negatives].

        P is the most kept words of a row, which are moved to its start.
        """
        import tensorflow as tf

        ids, seeds = features[INPUT_WORD_IDS], tf.random.experimental.stateless_split(seed, 3)
        rows, length = tf.unstack(tf.shape(ids))

        def drawn(number: int, *shape: int) -> Any:
            """Float32 [B, S, *shape] in [0, 1), a part of the draws for the whole batch."""
            whole = [worker_rows.count * rows, length, *shape]
            draws = tf.random.stateless_uniform(whole, seeds[number])
            return draws[worker_rows.index * rows : (worker_rows.index + 1) * rows]

        # Subsampling comes first, so that a window reaches farther over dropped words (word2vec.c).
        is_kept = drawn(0) < tf.gather(tf.constant(self.kept()), ids)
        count = tf.reduce_sum(tf.cast(is_kept, tf.int32), -1)
        order = tf.argsort(tf.cast(~is_kept, tf.int32), stable=True)
        most = tf.maximum(tf.reduce_max(count), 1)
        centers = tf.gather(ids, order, batch_dims=1)[:, :most]
        there = tf.range(most) < count[:, None]

        # The words around: places outside the row or beyond a center's own window have weight 0.
        steps = tf.constant([step for step in range(-self.window, self.window + 1) if step])
        reach = 1 + tf.cast(drawn(1)[:, :most, None] * self.window, tf.int32)
        at = tf.range(most)[:, None] + steps
        inside = (at >= 0) & (at < count[:, None, None]) & (tf.abs(steps) <= reach) & there[:, :, None]
        around = tf.gather(centers, tf.clip_by_value(at, 0, most - 1), axis=1)[..., None]

        below = tf.constant(self.drawn_below())
        draws = drawn(2, len(steps), self.negatives)[:, :most]
        negatives = tf.searchsorted(below, tf.reshape(draws, [-1]), side="right")
        negatives = tf.reshape(tf.minimum(negatives, len(self.counts) - 1), tf.shape(draws))
        counted = tf.concat([inside[..., None], inside[..., None] & (negatives != around)], -1)
        targets = tf.ensure_shape(
            tf.concat([around, negatives], -1), [None, None, len(steps), 1 + self.negatives]
        )
        first = tf.one_hot(0, 1 + self.negatives, dtype=tf.int32)
        words = {
            INPUT_WORD_IDS: tf.where(there, centers, 0),
            INPUT_MASK: tf.cast(there, tf.int32),
            INPUT_TYPE_IDS: tf.zeros_like(centers),
            TARGETS: targets,
        }
        return (
            words,
            first + tf.zeros_like(targets),
            tf.ensure_shape(tf.cast(counted, tf.float32), targets.shape),
        )

    def head(self, encoder: BertEncoder) -> OutputVectors:
        return OutputVectors(encoder.config, name=self.name, dtype=encoder.dtype_policy)

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, P, 2 window, 1 + negatives]."""
        return head(outputs[SEQUENCE_OUTPUT], features[TARGETS])

    def cost(self, config: BertConfig, length: int) -> Cost:
        """Of a text from which subsampling drops no word."""
        pairs = length * 2 * self.window * (1 + self.negatives)
        return Cost({"vectors": (config.vocab_size, config.hidden_size)}, pairs * config.hidden_size, length)

    def loss(self) -> GlobalMean:
        return GlobalMean(binary_cross_entropy)

    def correct(self, labels: Any, logits: Any) -> Any:
        """1 for a drawn word whose logit is below that of the word around; the word around has the mean of its drawn words."""
        below = ops.cast(logits[..., 1:] < logits[..., :1], "float32")
        return ops.concatenate([ops.mean(below, axis=-1, keepdims=True), below], axis=-1)

    def baseline(self, labels: np.ndarray, weights: np.ndarray) -> float:
        """The accuracy of unigrams, which choose the word that is in the text more often than among drawn words."""
        text, drawn = self.kept() * self.counts, self.counts.astype("float64") ** 0.75
        text, drawn = text[self.counts > 0] / text.sum(), drawn[self.counts > 0] / drawn.sum()
        ratios, place = np.unique(text / drawn, return_inverse=True)
        mass = np.bincount(place, drawn, minlength=len(ratios))
        below = np.cumsum(mass) - mass / 2  # a tie is right in half of its cases
        return float(text @ below[place])
