"""Decoding of tags, in graph: logits of tokens into the tags of words, and these into the entities of a text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_keras.features import EXAMPLE_INDEX, WORD_INDEX
from bert_keras.tasks.data.conll import OUTSIDE
from bert_keras.tasks.problems.tag_sentences import decode_sentences, opens, sentence_numbers
from bert_keras.tasks.task import Features, Raw
from bert_keras.text.tokenizer import Tokenizer
from bert_keras.text.words import find_words

# Bytes of the words of tokens, int32 [B, N], -1 in padding.
TOKEN_WORDS = ("token_word_starts", "token_word_ends")


def find_words_of_tokens(text: tf.Tensor, tokenizer: Tokenizer) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """The words of text, string [B], that a tokenizer makes: starts and ends, ragged int32 [B, (N)], bytes."""
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    rows = ids.value_rowids()
    first = tf.not_equal(rows, tf.concat([[-1], rows[:-1]], axis=0))
    opens = [text.startswith(b" ") for text in tokenizer.texts]
    closes = [text.endswith(b" ") and not text.startswith(b" ") for text in tokenizer.texts]
    after = tf.pad(tf.gather(tf.constant(closes), ids.values), [[1, 0]])[:-1]
    begins = first | after | tf.gather(tf.constant(opens), ids.values)
    last = tf.concat([begins[1:], [True]], axis=0)[: tf.size(begins)]
    return tf.ragged.boolean_mask(starts, ids.with_values(begins)), tf.ragged.boolean_mask(
        ends, ids.with_values(last)
    )


def type_of(tag: str) -> str:
    """The type of the entities of a tag, the text after its first hyphen; "O" has the type "O"."""
    return tag.partition("-")[2] or tag


class TaggedWords(NamedTuple):
    """All words [N] of a batch, with their predicted label ids and probabilities.

    starts, ends: ragged int32 [B, (N)], bytes
    first_in_row, first_in_sentence: bool [N]
    """

    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    labels: tf.Tensor
    scores: tf.Tensor
    first_in_row: tf.Tensor
    first_in_sentence: tf.Tensor


def decode_words(outputs: tf.Tensor, features: Features, raw: Raw, *, crf: bool = False) -> TaggedWords:
    """Logits float32 [W, S, C], or the potentials of a CRF -> the words of the batch.

    A word without a token gets label 0 and score 0.
    """
    at = tf.where(features[WORD_INDEX] >= 0)  # [P, 2], of the words with a token
    if TOKEN_WORDS[0] in features:
        starts, ends = (tf.RaggedTensor.from_tensor(features[name], padding=-1) for name in TOKEN_WORDS)
    else:
        starts, ends = find_words(raw)
    row = tf.gather(features[EXAMPLE_INDEX], at[:, 0])
    word = tf.gather(starts.row_starts(), row) + tf.cast(tf.gather_nd(features[WORD_INDEX], at), tf.int64)
    rows = starts.value_rowids()
    sentences = sentence_numbers(raw, starts)
    if crf:
        best, score = decode_sentences(outputs, at, opens(tf.gather(sentences, word)))
    else:
        probabilities = tf.gather_nd(tf.nn.softmax(outputs), at)
        best = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        score = tf.reduce_max(probabilities, axis=-1)
    size = tf.shape(rows, out_type=tf.int64)
    labels, scores = (tf.scatter_nd(word[:, tf.newaxis], values, size) for values in (best, score))
    return TaggedWords(starts, ends, labels, scores, opens(rows), opens(sentences))


def decode_entities(
    words: TaggedWords, label_names: Sequence[str], letters: "Letters"
) -> dict[str, tf.Tensor]:
    """The entities of the words' tags, [B, E], as in `Tagging.decode`.

    "B-" begins an entity, and "I-" continues an entity of its type; a tag without them continues itself, and the text after its
    first hyphen is the type (transformers TokenClassificationPipeline.group_entities).
    """
    kinds = [tag[2:] if tag.startswith(("B-", "I-")) else tag for tag in label_names]
    inside_of = [
        -1 if tag == OUTSIDE else kinds.index(kind) for tag, kind in zip(label_names, kinds, strict=True)
    ]
    types = [type_of(tag) for tag in label_names]
    kind = tf.where(words.scores > 0, tf.gather(inside_of, words.labels), -1)
    begins = tf.gather([tag.startswith("B-") for tag in label_names], words.labels)
    before = tf.where(words.first_in_sentence, -1, tf.concat([[-1], kind[:-1]], axis=0))
    first = (kind >= 0) & (begins | (kind != before))
    inside = tf.where(kind >= 0)[:, 0]
    entity = tf.gather(tf.cumsum(tf.cast(first, tf.int32)) - 1, inside)
    first, last = tf.where(first)[:, 0], tf.math.segment_max(inside, entity)

    starts, ends = words.starts, words.ends
    rows = tf.gather(starts.value_rowids(), first)
    start, end = tf.gather(starts.values, first), tf.gather(ends.values, last)
    text, label = letters.cut(rows, start, end), tf.gather(tf.constant(types), tf.gather(words.labels, first))
    score = tf.math.segment_mean(tf.gather(words.scores, inside), entity)

    def pad(values: tf.Tensor, padding: Any) -> tf.Tensor:
        """[N] -> [B, E]."""
        return tf.RaggedTensor.from_value_rowids(values, rows, nrows=starts.nrows()).to_tensor(padding)

    return {
        "entity_text": pad(text, ""),
        "entity_label": pad(label, ""),
        "entity_start_byte": pad(start, -1),
        "entity_end_byte": pad(end, -1),
        "entity_score": pad(score, 0.0),
    }


class Letters:
    """The bytes of all texts [B] in one list, so that `cut` copies only the bytes that it returns."""

    def __init__(self, text: tf.Tensor) -> None:
        letters = tf.strings.bytes_split(text)
        self._letters, self._starts = letters.values, letters.row_starts()

    def cut(self, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """The bytes from `starts` to `ends` of the texts in `rows`: all [E] -> string [E]."""
        first = tf.gather(self._starts, rows)
        spans = tf.ragged.range(first + tf.cast(starts, tf.int64), first + tf.cast(ends, tf.int64))
        return tf.strings.unsorted_segment_join(
            tf.gather(self._letters, spans.values), spans.value_rowids(), num_segments=tf.size(starts)
        )
