"""The bytes of words as an encoder reads them beside the ids of words: ELMo's characters.

    words string [...] -> int32 [..., C]

The ids are those of allenai/bilm-tf (UnicodeCharsVocabulary), plus 1: 0 is a place without a word.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_keras.text.tokenizer import SpecialTokens

# After the 256 bytes; a row of a word is its start, its bytes, its end, and padding up to C.
SENTENCE_START, SENTENCE_END, WORD_START, WORD_END, CHARACTER_PADDING = 256, 257, 258, 259, 260


def spell(words: tf.Tensor, size: int) -> tf.Tensor:
    """Words string [...] -> int32 [..., C]. size: C; a word has at most C - 2 bytes, and loses the others. "" is zeros."""
    most = size - 2
    length = tf.minimum(tf.strings.length(words), most)[..., None]
    raw = tf.cast(tf.io.decode_raw(words, tf.uint8, fixed_length=most), tf.int32)
    place = tf.range(most)
    inside = tf.where(place < length, raw, tf.where(place == length, WORD_END, CHARACTER_PADDING))
    last = tf.where(length == most, WORD_END, CHARACTER_PADDING)
    ids = tf.concat([tf.fill(tf.shape(last), WORD_START), inside, last], -1) + 1
    return ids * tf.cast(length > 0, tf.int32)


def spell_mark(mark: int, size: int) -> np.ndarray:
    """The row of a mark around a sentence, int32 [C]. mark: SENTENCE_START or SENTENCE_END."""
    return np.array([WORD_START, mark, WORD_END] + [CHARACTER_PADDING] * (size - 3), np.int32) + 1


def spell_vocabulary(texts: Sequence[bytes], special: SpecialTokens, size: int) -> np.ndarray:
    """The characters of each word by its id: int32 [V, C]. texts: `Pieces.texts`.

    The start and the end of a row read as the marks of a sentence, and padding as no word.
    """
    with tf.init_scope():
        table: np.ndarray = spell(tf.constant([text.strip() for text in texts]), size).numpy()
    for id_, row in (
        (special.padding, 0),
        (special.start, spell_mark(SENTENCE_START, size)),
        (special.end, spell_mark(SENTENCE_END, size)),
    ):
        table[id_] = row
    return table
