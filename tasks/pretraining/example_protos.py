"""Serializes tensors as tf.train.Example, a batch at a time, by TensorFlow's own kernel: tensors [B, ...] in, strings [B] out."""

from collections.abc import Mapping

import tensorflow as tf


def serialize_examples(columns: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The bytes of B examples: those of `tf.train.Example.SerializeToString(deterministic=True)`.

    columns: int or float [B] or [B, N] by the name of their feature; integers become int64 lists, others float lists

    Returns string [B].
    """
    rows = tf.shape(next(iter(columns.values())))[0]
    entries = []
    for name, values in sorted(columns.items()):
        values = tf.reshape(values, [rows, -1])
        if values.dtype.is_integer:
            kind, field, values = "Int64List", "int64_list", tf.cast(values, tf.int64)
        else:
            kind, field, values = "FloatList", "float_list", tf.cast(values, tf.float32)
        feature = _message("Feature", {field: _message(kind, {"value": values})[:, tf.newaxis]})
        entry = {"key": tf.fill([rows, 1], name), "value": feature[:, tf.newaxis]}
        entries.append(_message("Features.FeatureEntry", entry))
    features = _message("Features", {"feature": tf.stack(entries, axis=1)})
    return _message("Example", {"features": features[:, tf.newaxis]})


def _message(kind: str, fields: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Serialized messages, string [B]. fields: [B, N] by name; N is 1 where a field is not repeated."""
    sizes = [tf.fill([tf.shape(values)[0]], tf.shape(values)[1]) for values in fields.values()]
    return tf.raw_ops.EncodeProto(
        sizes=tf.stack(sizes, axis=1),
        values=list(fields.values()),
        field_names=list(fields),
        message_type=f"tensorflow.{kind}",
    )
