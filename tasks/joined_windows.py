"""Joins the windows or the texts of an example in one row, for a loss that reads them together; calls a network on such rows."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from bert_keras.features import INPUT_MASK
from bert_keras.tasks.task import Features


def join_windows(
    features: Features, labels: tf.Tensor, weights: tf.Tensor, example: tf.Tensor
) -> tuple[Features, tf.Tensor, tf.Tensor]:
    """Windows [W, ...] -> the windows of each example in one row, [B, K, ...].

    example: int32 [W], the example of each window

    An example with fewer windows than K has copies of its first window, with labels -1 and weights 0: a row of padding alone
    has no token to attend to.
    """
    counts = tf.math.bincount(example)
    places = tf.range(tf.reduce_max(counts))
    real = places < counts[:, tf.newaxis]
    window = tf.cumsum(counts, exclusive=True)[:, tf.newaxis] + tf.where(real, places, 0)

    def joined(one: tf.Tensor, filling: float | None = None) -> tf.Tensor:
        rows = tf.gather(one, window)
        if filling is None:
            return rows
        mask = tf.reshape(real, tf.concat([tf.shape(real), tf.ones_like(tf.shape(one)[1:])], axis=0))
        return tf.where(mask, rows, tf.cast(filling, one.dtype))

    return {name: joined(one) for name, one in features.items()}, joined(labels, -1), joined(weights, 0)


def join_texts(features: Features, count: int) -> Features:
    """The features of texts [B * T, ...] -> the T texts of each example in one row, [B, T, ...]. count: T."""
    return {
        name: _reshaped(one, [tf.shape(one)[0] // count, count], one, 1) for name, one in features.items()
    }


def call_network(network: keras.Model, call: Callable[..., Any], inputs: Features, *, training: bool) -> Any:
    """The outputs of features [B, ...], or of joined windows [B, K, ...], which the network reads one by one.

    call: the network, or its form for stored vectors
    """
    ids = inputs[INPUT_MASK]
    axes = {
        one.name: len(one.shape) for one in network.inputs
    }  # own features may have fewer than the mask, or more
    if all(len(one.shape) == axes.get(name, len(one.shape)) for name, one in inputs.items()):
        return call(inputs, training=training)
    rows = {name: _reshaped(one, [-1], one, 2) for name, one in inputs.items()}
    outputs = call(rows, training=training)
    return _reshaped(outputs, tf.shape(ids)[:2], outputs, 1)


def _reshaped(values: tf.Tensor, leading: Any, like: tf.Tensor, axis: int) -> tf.Tensor:
    """Values with other leading axes, before the axes of `like` from `axis` on."""
    made = tf.reshape(values, tf.concat([leading, tf.shape(like)[axis:]], axis=0))
    return tf.ensure_shape(made, [*[None] * (len(made.shape) - len(like.shape[axis:])), *like.shape[axis:]])
