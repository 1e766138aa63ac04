"""Offsets in characters, as Python slices a string, from offsets in bytes of its UTF-8."""

import tensorflow as tf

_TOP, _CONTINUED = 0xC0, 0x80  # the two upper bits of a byte inside a character are 10


def to_characters(text: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """text: string [B], offsets: int32 [B, N] in bytes -> int32 [B, N] in characters; -1 stays -1."""
    letters = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
    opens = tf.bitwise.bitwise_and(letters, tf.constant(_TOP, tf.uint8)) != _CONTINUED
    before = tf.pad(tf.cumsum(tf.cast(opens, tf.int32)), [[1, 0]])  # characters before each byte of all texts
    starts = tf.cumsum(tf.strings.length(text), exclusive=True)[:, tf.newaxis]
    counted = tf.gather(before, starts + tf.maximum(offsets, 0)) - tf.gather(before, starts)
    return tf.where(offsets < 0, -1, counted)
