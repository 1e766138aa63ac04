"""Warm-up requests: TensorFlow Serving runs them before it accepts others.

In: example texts by input. Out: a TFRecord file of PredictionLogs.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

WARMUP = "tf_serving_warmup_requests"  # the file's name in assets.extra

Texts = Mapping[str, list[Any]]


def write_warmup(path: pathlib.Path, texts: Texts, *, name: str) -> None:
    """Writes one request for each example, and one request with all examples.

    name: the model's name
    """
    count = len(next(iter(texts.values())))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for rows in (*(slice(i, i + 1) for i in range(count)), slice(None)):
            writer.write(prediction_log({key: values[rows] for key, values in texts.items()}, name=name))


def prediction_log(texts: Texts, *, name: str) -> bytes:
    """The serialized PredictionLog of a request for `serving_default`.

    We encode it ourselves because only tensorflow-serving-api has its protocol buffer, and nothing else here needs that package.
    Source: tensorflow_serving/apis/prediction_log.proto, predict.proto and model.proto.
    """
    model_spec = _field(1, name.encode()) + _field(3, b"serving_default")
    inputs = [
        _field(1, key.encode()) + _field(2, tf.make_tensor_proto(values, tf.string).SerializeToString())
        for key, values in texts.items()
    ]
    request = _field(1, model_spec) + b"".join(_field(2, entry) for entry in inputs)
    return _field(6, _field(1, request))


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of a protocol buffer. number: at most 15."""
    size, length = bytearray(), len(payload)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + payload
