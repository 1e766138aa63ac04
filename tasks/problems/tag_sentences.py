"""The sentences of a batch for a CRF: their words are gathered from the windows of the texts, in training and in decoding.

A word stands in one window, at its first token: see tagging.py. The path of a CRF runs over the words of a sentence, in whatever
windows they stand; a word without a token is passed over.
"""

import keras
import tensorflow as tf

from bert_keras.features import EXAMPLE_INDEX, WORD_INDEX
from bert_keras.model.crf import CRF
from bert_keras.tasks.task import Features, Raw
from bert_keras.text.words import TOKENS, number_sentences


def opens(numbers: tf.Tensor) -> tf.Tensor:
    """Numbers [N] -> bool [N], True where a number differs from the number before it, and at the first."""
    return tf.concat([tf.ones_like(numbers[:1], tf.bool), numbers[1:] != numbers[:-1]], axis=0)


def sentence_numbers(raw: Raw, words: tf.RaggedTensor) -> tf.Tensor:
    """The number of each word's sentence in the batch, int64 [N]. words: any values for the words, ragged [B, (N)]."""
    return number_sentences(raw[TOKENS]) if TOKENS in raw else words.value_rowids()


def label_sentences(
    tags: tf.RaggedTensor, raw: Raw, features: Features, *, count: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The labels int32 [W, S] that `sentence_losses` reads, and weights float32 [W, S], 1 at the first word of each sentence.

    tags: the tags of the words, ragged int32 [B, (N)], -1 for a tag that is not known
    count: C, the number of tags

    A label is a tag, or C if the tag is not known; C + 1 is added at the first word of a sentence. Other tokens have -1.
    """
    index = features[WORD_INDEX]
    # In the order of the text: the window of a later word is the same or a later one.
    at = tf.where(index >= 0)
    row = tf.gather(features[EXAMPLE_INDEX], at[:, 0])
    word = tf.gather(tags.row_starts(), row) + tf.cast(tf.gather_nd(index, at), tf.int64)
    first = tf.cast(opens(tf.gather(sentence_numbers(raw, tags), word)), tf.int32)
    given = tf.gather(tags.values, word)
    found = tf.where(given >= 0, given, count) + (count + 1) * first
    labels = tf.tensor_scatter_nd_update(tf.fill(tf.shape(index), -1), at, found)
    return labels, tf.cast(labels > count, tf.float32)


def gather_sentences(
    outputs: tf.Tensor, at: tf.Tensor, first: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The sentences of words, as a CRF reads them.

    outputs: potentials float32 [W, S + 2 + C, C] of windows
    at: int64 [N, 2], the window and the position of each word, in the order of the text
    first: bool [N], True at the first word of a sentence

    Returns potentials [M, L + 2 + C, C] of M sentences of up to L words, the mask bool [M, L], and the number of each word among
    all words, int64 [M, L].
    """
    count = outputs.shape[-1]
    starts = tf.where(first)[:, 0]
    lengths = tf.concat([starts[1:], tf.shape(first, tf.int64)], axis=0)[: tf.size(starts)] - starts
    longest = tf.reduce_max(tf.concat([[1], lengths], axis=0))  # a loop of no step has no last step
    places = tf.range(longest)
    mask = places < lengths[:, tf.newaxis]
    word = tf.where(mask, starts[:, tf.newaxis] + places, 0)
    emissions = tf.gather_nd(outputs, tf.gather(at, word))
    others = tf.gather(outputs[:, -2 - count :], tf.gather(at[:, 0], starts))
    return tf.concat([emissions, others], axis=1), mask, word


@keras.saving.register_keras_serializable("bert_keras")
def sentence_losses(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """The negative log-likelihood of each sentence, at its first word: float32, in the shape of the labels.

    labels: int32 [..., S], of `label_sentences`
    outputs: potentials float32 [..., S + 2 + C, C]

    The losses of other words, and of what is no word, are 0.
    """
    count, shape = outputs.shape[-1], tf.shape(labels)
    labels = tf.reshape(tf.cast(labels, tf.int32), [-1, shape[-1]])
    outputs = tf.reshape(outputs, [-1, tf.shape(outputs)[-2], count])
    at = tf.where(labels >= 0)
    words = tf.gather_nd(labels, at)
    first = tf.concat([tf.ones_like(words[:1], tf.bool), words[1:] > count], axis=0)
    potentials, mask, word = gather_sentences(outputs, at, first)
    tags = tf.gather(words % (count + 1), word)
    losses = -CRF.log_likelihood(potentials, tags, mask)
    placed = tf.scatter_nd(tf.boolean_mask(at, first), losses, tf.shape(labels, tf.int64))
    return tf.reshape(placed, shape)


def decode_sentences(outputs: tf.Tensor, at: tf.Tensor, first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The best path of each sentence: tags int32 [N], and the probability of each of them over all paths, float32 [N].

    Arguments: as in `gather_sentences`.
    """
    potentials, mask, _ = gather_sentences(outputs, at, first)
    paths = CRF.best_paths(potentials, mask)
    scores = tf.gather(CRF.marginals(potentials, mask), tf.maximum(paths, 0), batch_dims=2)
    return tf.boolean_mask(paths, mask), tf.boolean_mask(scores, mask)
