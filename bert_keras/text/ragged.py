"""Operations on ragged tensors in few nodes.

TensorFlow prepares the graph of a tokenizer again for each new iterator and each loaded model, also the branches that few texts
take. `tf.ragged.boolean_mask`, `value_rowids` and `tf.repeat` add many more nodes than the functions here do.
"""

import tensorflow as tf


def row_numbers(splits: tf.Tensor) -> tf.Tensor:
    """The row of each value of a ragged tensor: its row_splits, int [B + 1] -> int32 [N]."""
    at = tf.expand_dims(tf.range(splits[-1]), 0)
    return tf.squeeze(tf.raw_ops.UpperBound(sorted_inputs=tf.expand_dims(splits, 0), values=at), 0) - 1


def repeats(counts: tf.Tensor) -> tf.Tensor:
    """The index of each count, as often as it says: int [B] -> int32 [N]; [2, 0, 1] -> [0, 0, 2]."""
    return row_numbers(tf.pad(tf.cumsum(counts), [[1, 0]]))


def masked(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """The values where a mask, bool [N], is True."""
    return tf.gather_nd(values, tf.where(mask))


def masked_rows(mask: tf.Tensor, *columns: tf.RaggedTensor) -> list[tf.RaggedTensor]:
    """The values of ragged tensors with the same row_splits where a mask of all values, bool [N], is True."""
    at = tf.where(mask)
    before = tf.pad(tf.cumsum(tf.cast(mask, columns[0].row_splits.dtype)), [[1, 0]])
    splits = tf.gather(before, columns[0].row_splits)
    return [
        tf.RaggedTensor.from_row_splits(tf.gather_nd(one.values, at), splits, validate=False)
        for one in columns
    ]


def encode_characters(codes: tf.Tensor) -> tf.Tensor:
    """Code points int32 [N] -> the character of each in UTF-8: string [N]."""
    splits = tf.range(tf.size(codes) + 1)
    return tf.raw_ops.UnicodeEncode(input_values=codes, input_splits=splits, output_encoding="UTF-8")
