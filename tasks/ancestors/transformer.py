"""The first Transformer: an encoder reads a sentence, a decoder writes its translation (Vaswani et al. 2017).

    [CLS] source [SEP] target [SEP]     one row, input_type_ids 0 and 1, as BERT reads two sentences
        -> source  [CLS] a b [SEP]      int32 [B, S], which the encoder reads
        -> read    [CLS] x y            int32 [B, T], which the decoder reads
        -> labels  x y [SEP]            int32 [B, T]: each token is predicted from the source and the tokens before it
        -> logits  float32 [B, T, V]    of the decoder, by the embeddings of one joint vocabulary

The encoder is BertEncoder with the settings of the recipe "transformer": sinusoids, word vectors times the root of their width,
no norm after them, no types, relu. This file has the rest: the decoder, the objective, the search for a translation, and the mean
of several checkpoints.

Unlike the textbook: a batch is counted in pairs, not in tokens, and its pairs are of any length. The search computes all
positions of a prefix again for each token.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import variable_shapes
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
from bert_keras.model.encoders import encoder_class, make_encoder
from bert_keras.model.layers import MASKED_SCORE, Block, Dropout, LayerNorm, SelfAttention
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.objectives import Cost, Features, Labelled, Objective
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer

TARGET_IDS = "target_ids"  # int32 [B, T], the tokens that the decoder reads

# -----------------------------------------------------------------------------------------------------------
# The decoder (sec. 3.1 to 3.4)


class DecoderBlock(Block):
    """Attention to the target so far, attention to the source, and feed-forward, each dropped, added and normed (sec. 3.1)."""

    def __init__(self, config: Any, *, name: str, dtype: Any = None) -> None:
        super().__init__(config, name=name, dtype=dtype)
        self.source_attention = SelfAttention(config, name="source_attention", dtype=dtype)
        self.source_dropout = Dropout(config.hidden_dropout, name="source_dropout", dtype=dtype)
        self.source_norm = LayerNorm(config=config, name="source_layer_norm", dtype=dtype)

    def build(self, input_shape: tuple) -> None:
        super().build(input_shape)
        self.source_attention.build(input_shape)
        self.source_norm.build(input_shape)

    def call(self, x: Any, earlier: Any, source: Any, source_mask: Any, training: bool = False) -> Any:  # type: ignore[override]
        """Float [B, T, H] -> the same shape.

        source: float [B, S, H], the encoder's states
        earlier, source_mask: float [B, 1, T, T] and [B, 1, 1, S], added to the scores
        """

        def add(x: Any, change: Any, drop: Any, norm: Any) -> Any:
            return norm(x + drop(ops.reshape(change, ops.shape(x)), training=training))

        change, _ = self.attention(x, x, earlier, training=training)
        x = add(x, change, self.attention_dropout, self.attention_norm)
        change, _ = self.source_attention(x, source, source_mask, training=training)
        x = add(x, change, self.source_dropout, self.source_norm)
        change = self.feed_forward(x, training=training)
        return add(x, change, self.feed_forward_dropout, self.feed_forward_norm)


class Decoder(keras.layers.Layer):
    """The target so far and the encoder's states -> logits for the token after each position, float32 [B, T, V].

    One table embeds source and target and gives the logits: it is the encoder's (sec. 3.4). There are as many blocks as in the
    encoder, with the same sizes.
    """

    def __init__(self, encoder: BertEncoder, *, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        config = encoder.config
        if config.embedding_width != config.hidden_size:
            raise BertKerasError(
                f"embedding_size is {config.embedding_size}, and the table of a Transformer gives the logits of states of "
                f"{config.hidden_size} numbers; leave embedding_size out."
            )
        self._encoder = lambda: encoder  # a function, so that Keras counts the table once: as the encoder's
        self.blocks = [
            DecoderBlock(config, name=f"decoder_{i}", dtype=dtype) for i in range(config.num_layers)
        ]
        self.build()

    def build(self, input_shape: Any = None, *others: Any) -> None:
        """Makes every variable; the config knows all shapes."""
        for block in self.blocks:
            block.build((None, None, self._encoder().config.hidden_size))
        self.built = True

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: the labels have weights."""

    def call(
        self, ids: Any, source: Any, source_mask: Any, training: bool = False, last: bool = False
    ) -> Any:
        """ids: int32 [B, T]; source: float [B, S, H]; source_mask: int32 [B, S], 1 on tokens.

        last: only the logits of the last position, float32 [B, 1, V]
        """
        encoder = self._encoder()
        x = encoder.embeddings(ids, ops.zeros_like(ids), training=training)
        places = ops.arange(ops.shape(ids)[1])
        earlier = _no_scores(places[None, None, :, None] >= places, self.compute_dtype)
        read = _no_scores(ops.expand_dims(source_mask > 0, (1, 2)), self.compute_dtype)
        earlier = earlier + ops.zeros_like(read[..., :1])  # [B, 1, T, T]: the attention takes B from it
        for block in self.blocks:
            x = block(x, earlier, source, read, training=training)
        return tied_logits(encoder, x[:, -1:] if last else x)


def _no_scores(seen: Any, dtype: Any) -> Any:
    """0 where a position is seen, else so low a score that its weight is 0."""
    return (1.0 - ops.cast(seen, dtype)) * MASKED_SCORE


def tied_logits(encoder: BertEncoder, x: Any) -> Any:
    """Products with the encoder's word vectors: float [B, T, H] -> float32 [B, T, V]."""
    rows = ops.reshape(x, (-1, x.shape[-1]))
    logits = ops.matmul(rows, ops.transpose(ops.cast(encoder.embedding_table, x.dtype)))
    shape = (*ops.shape(x)[:-1], encoder.config.vocab_size)
    return ops.cast(ops.reshape(logits, shape), "float32")


def decoder_cost(config: BertConfig, length: int) -> tuple[dict[str, tuple[int, ...]], int]:
    """The shapes of a Decoder's variables, and the multiplications for a source and a target of `length` tokens."""
    of_encoder = variable_shapes(dataclasses.replace(config, share_layers=False))
    shapes = {name: shape for name, shape in of_encoder.items() if name.startswith("block_")}
    shapes |= {f"source/{name}": shape for name, shape in shapes.items() if "attention" in name}
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
    scores = (
        config.num_layers * 2 * 2 * length * config.hidden_size
    )  # of a token, to the target and to the source
    return shapes, length * (matrices + scores + config.hidden_size * config.vocab_size)


# -----------------------------------------------------------------------------------------------------------
# The objective: pairs -> labels, and the loss (sec. 5.4)


def split_pairs(features: Features) -> Labelled:
    """Rows of pairs, int32 [B, S] -> the features of `Translation`, labels int32 [B, T], weights float32 [B, T].

    All are cut to the longest source and the longest target of the batch.
    """
    ids, real = features[INPUT_WORD_IDS], features[INPUT_MASK]
    of_target = features[INPUT_TYPE_IDS] * real  # 1 on the target and its [SEP]
    of_source = real - of_target
    starts, lengths = tf.reduce_sum(of_source, axis=1), tf.reduce_sum(of_target, axis=1)
    longest, width = tf.reduce_max(lengths), tf.reduce_max(starts)
    places = tf.minimum(starts[:, tf.newaxis] + tf.range(longest), tf.shape(ids)[1] - 1)
    weights = tf.sequence_mask(lengths, longest, tf.int32)
    labels = tf.gather(ids, places, batch_dims=1) * weights
    mask = of_source[:, :width]
    found = {
        INPUT_WORD_IDS: ids[:, :width] * mask,
        INPUT_MASK: mask,
        INPUT_TYPE_IDS: tf.zeros_like(mask),
        TARGET_IDS: tf.concat([ids[:, :1], labels[:, :-1]], axis=1),  # [CLS] begins a target too
    }
    return found, labels, tf.cast(weights, tf.float32)


def smoothed_cross_entropy(labels: Any, logits: Any, *, smoothing: float) -> Any:
    """The cross-entropy with (1 - smoothing) on the label and smoothing / V on every token (Szegedy et al. 2016).

    int [...], float [..., V] -> float32 [...]
    """
    logits = ops.cast(logits, "float32")
    uniform = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
    return (1.0 - smoothing) * cross_entropy(labels, logits) + smoothing * uniform


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Objective):
    """Predicts a translation from its source, token by token (Vaswani et al. 2017).

    label_smoothing: the part of the target's probability that all tokens share (sec. 5.4); the perplexity is without it

    Reads rows of two segments. An encoder of another kind has `make_decoder(name=..., dtype=...)`, a layer called as Decoder is.
    """

    name: ClassVar[str] = "translation"
    reads: ClassVar[str] = SEQUENCE_OUTPUT
    perplexity: ClassVar[bool] = True

    label_smoothing: float = 0.1

    def check(self, sample: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Raises BertKerasError for a row without a second segment."""
        pairs = (sample[INPUT_TYPE_IDS] * sample[INPUT_MASK]).any(axis=1)
        if not pairs.all():
            raise BertKerasError(
                f"{int((~pairs).sum()):,} of {len(pairs):,} instances have no second segment to predict; use the sampler "
                "translation, or write records with it, and a vocabulary whose pairs have the types 0 and 1."
            )
        yield from ()

    def label(self, features: Features, *, seed: Any, worker_rows: WorkerRows = ALL_ROWS) -> Labelled:
        """See `split_pairs`; nothing is drawn."""
        return split_pairs(features)

    def head(self, encoder: BertEncoder) -> keras.layers.Layer:
        make = getattr(encoder, "make_decoder", functools.partial(Decoder, encoder))
        return make(name=self.name, dtype=encoder.dtype_policy)

    def logits(self, head: keras.layers.Layer, outputs: Mapping[str, Any], features: Features) -> Any:
        """Float32 [B, T, V]."""
        return head(features[TARGET_IDS], outputs[SEQUENCE_OUTPUT], features[INPUT_MASK])

    def cost(self, config: BertConfig, length: int) -> Cost:
        """Of a row whose halves are the source and the target."""
        of_decoder = getattr(encoder_class(config), "decoder_cost", decoder_cost)
        shapes, products = of_decoder(config, length // 2)
        return Cost(shapes, products, length // 2)

    def loss(self) -> GlobalMean:
        return GlobalMean(functools.partial(smoothed_cross_entropy, smoothing=self.label_smoothing))

    def surprise(self, labels: Any, logits: Any, losses: Any) -> Any:
        return cross_entropy(labels, logits)

    def counted(self, sample: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The targets: a baseline knows the language."""
        return {**sample, INPUT_MASK: sample[INPUT_MASK] * sample[INPUT_TYPE_IDS]}


# -----------------------------------------------------------------------------------------------------------
# The search (sec. 6.1): the `beam` best prefixes of each length, and the best translations that have ended

LOW = -1e9  # the score of nothing


def penalty(length: Any, alpha: float) -> Any:
    """The divisor of the log probability of so many tokens, [SEP] included (Wu et al. 2016), without their coverage penalty."""
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, alpha)


def search(
    next_logits: Callable[[Any], Any],
    *,
    rows: Any,
    start: int,
    end: int,
    limit: Any,
    beam: int,
    length_penalty: float,
) -> tuple[Any, Any]:
    """The best sequence of each row, int32 [B, limit + 1] with `start` first and 0 after `end`, and its score, float32 [B].

    next_logits: prefixes int32 [B * beam, n], the beams of a row together -> the logits of the next token, float [B * beam, V]
    rows: B; limit: int, the most tokens after `start`
    beam, length_penalty: the prefixes that are kept of each length, and alpha; 1 and 0 are a greedy search

    It ends when no prefix can beat the `beam` best sequences that have ended. A row in which none has ended at the limit gives
    its best prefix.
    """
    width = limit + 1
    places = ops.arange(width)
    first = ops.cast(places == 0, "int32") * start + ops.zeros((rows, beam, 1), "int32")
    alone = ops.where(ops.arange(beam) == 0, 0.0, LOW) + ops.zeros((rows, 1), "float32")

    def best(scores: Any, sequences: Any) -> tuple[Any, Any, Any]:
        """The `beam` best of [B, N] and of [B, N, L], and their places."""
        scores, chosen = ops.top_k(scores, beam)
        return scores, ops.take_along_axis(sequences, chosen[..., None], axis=1), chosen

    def goes_on(n: Any, log_p: Any, prefixes: Any, scores: Any, ended: Any) -> Any:
        # Longer sequences are less likely, and the largest divisor is the limit's.
        return ops.any(log_p[:, 0] / penalty(limit, length_penalty) > scores[:, -1])

    def step(n: Any, log_p: Any, prefixes: Any, scores: Any, ended: Any) -> tuple[Any, ...]:
        read = ops.reshape(prefixes, (rows * beam, width))[:, : n + 1]
        more = ops.log_softmax(ops.cast(next_logits(read), "float32"))
        size = more.shape[-1]
        total = ops.reshape(log_p[..., None] + ops.reshape(more, (rows, beam, size)), (rows, beam * size))
        # Of twice as many, at most `beam` end. A sequence ends only among the `beam` best: a beam of 1 is then greedy.
        total, chosen = ops.top_k(total, min(2 * beam, beam * size))
        token = chosen % size
        longer = ops.take_along_axis(prefixes, (chosen // size)[..., None], axis=1)
        longer = ops.where(places == n + 1, token[..., None], longer)
        ends = token == end
        counts = ends & (ops.arange(ops.shape(total)[1]) < beam)
        finished = ops.where(counts, total / penalty(n + 1, length_penalty), LOW)
        scores, ended, _ = best(
            ops.concatenate([scores, finished], axis=1), ops.concatenate([ended, longer], axis=1)
        )
        log_p, prefixes, _ = best(ops.where(ends, LOW, total), longer)
        return n + 1, log_p, prefixes, scores, ended

    nothing = ops.full((rows, beam), LOW)
    found = ops.while_loop(
        goes_on, step, (0, alone, first, nothing, ops.zeros_like(first)), maximum_iterations=limit
    )
    n, log_p, prefixes, scores, ended = found
    open_ = scores[:, 0] <= LOW / 2
    sequences = ops.where(open_[:, None], prefixes[:, 0], ended[:, 0])
    return sequences, ops.where(open_, log_p[:, 0] / penalty(n, length_penalty), scores[:, 0])


# -----------------------------------------------------------------------------------------------------------
# Translating texts with a checkpoint


class Translator:
    """An encoder and its decoder with the weights of a pre-training: texts -> translations.

    beam, length_penalty: of `search`; extra_tokens: a translation may have so many tokens more than its source
    """

    def __init__(
        self,
        checkpoint: checkpoints.Checkpoint,
        *,
        beam: int = 4,
        length_penalty: float = 0.6,
        extra_tokens: int = 50,
    ) -> None:
        self.tokenizer: Tokenizer = checkpoints.tokenizer_of(checkpoint)
        self.beam, self.length_penalty, self.extra_tokens = beam, length_penalty, extra_tokens
        self.encoder = make_encoder(checkpoint.config, outputs=(SEQUENCE_OUTPUT,))
        objective = Translation()
        self.decoder = objective.head(self.encoder)
        checkpoints.assign(checkpoint, self.encoder, **{objective.name: self.decoder})
        names = (INPUT_WORD_IDS, INPUT_MASK, INPUT_TYPE_IDS)
        signature = {name: tf.TensorSpec([None, None], tf.int32) for name in names}
        self.search = tf.function(self._search, input_signature=[signature], autograph=False)

    def _search(self, features: Features) -> tuple[Any, Any]:
        source, mask = self.encoder(features)[SEQUENCE_OUTPUT], features[INPUT_MASK]
        sources, masks = ops.repeat(source, self.beam, axis=0), ops.repeat(mask, self.beam, axis=0)
        longest, special = ops.shape(mask)[1] + self.extra_tokens, self.tokenizer.special
        return search(
            lambda ids: self.decoder(ids, sources, masks, last=True)[:, 0],
            rows=ops.shape(mask)[0],
            start=special.start,
            end=special.end,
            limit=ops.minimum(longest, self.encoder.config.max_length - 1),
            beam=self.beam,
            length_penalty=self.length_penalty,
        )

    def __call__(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 32,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[str]:
        """The translations, in the order of the texts. Texts of about one length are searched together."""
        length = self.encoder.config.max_length
        preprocess = Preprocessor(self.tokenizer, seq_length=length, pad_to_longest=True)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found = dict[int, str]()
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            sequences, _ = self.search(preprocess([texts[i] for i in rows]))
            for i, ids in zip(rows, sequences.numpy().tolist(), strict=True):
                ended = ids.index(self.tokenizer.special.end) if self.tokenizer.special.end in ids else None
                found[i] = self.tokenizer.detokenize(ids[:ended])
            progress(len(rows))
        return [found[i] for i in range(len(texts))]


def join_punctuation(text: str) -> str:
    """A text of words apart, without the spaces before punctuation and around hyphens: "T - Shirt ." -> "T-Shirt."."""
    return re.sub(r"(?<=\w) - (?=\w)", "-", re.sub(r" ([.,!?;:)])", r"\1", text))


def average(given: Iterable[checkpoints.Checkpoint]) -> checkpoints.Checkpoint:
    """The mean of several checkpoints' weights (sec. 6.1: of the last 5), with the tokenizer of the last.

    Raises BertKerasError for checkpoints of different models.
    """
    found = [*given]
    last = found[-1]
    for one in found:
        if one.config != last.config or one.tensors.keys() != last.tensors.keys():
            raise BertKerasError(
                f"{one.path} and {last.path} have different configurations or weights; give snapshots of one pre-training."
            )
    mean = {
        name: np.mean([one.tensors[name] for one in found], axis=0, dtype=np.float64).astype(tensor.dtype)
        for name, tensor in last.tensors.items()
    }
    return dataclasses.replace(last, tensors=mean)
