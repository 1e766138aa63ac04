"""A loss for each label, and its weighted mean over all replicas.

In: labels, outputs and weights of one replica. Out: the loss that one device would compute on the whole batch.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def replica_context() -> Any:
    """The replica context under several replicas, else None."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context if context is not None and context.num_replicas_in_sync > 1 else None


@keras.saving.register_keras_serializable("bert_keras")
class GlobalMean(keras.losses.Loss):
    """sum(weight * loss) over all replicas / sum(weight) over all replicas.

    loss: a function of (labels, outputs) that returns one loss for each label, for example `cross_entropy`, which gives
        weight 0 to a negative label

    Keras' own reduction averages over each replica's labels, then over the replicas. The result differs whenever weights differ.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], *, name: str = "loss") -> None:
        super().__init__(name=name, reduction=None)
        self._loss = loss

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """One loss for each label."""
        return self._loss(y_true, y_pred)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Labels and float outputs [B, ...], weights [B, ...] -> a scalar, 0 where no weight is over 0.

        Weights [B] apply to all labels of their rows.
        On N replicas, each returns the global mean / N, which Keras sums and logs. Its gradient is that of its own labels.
        """
        losses = self.call(y_true, y_pred)
        weights = ops.ones_like(losses)
        if sample_weight is not None:
            given = ops.cast(sample_weight, losses.dtype)
            slots = (1,) * (len(losses.shape) - len(given.shape))
            weights = weights * ops.reshape(given, (*ops.shape(given), *slots))
        if self._loss is cross_entropy:
            weights = known_weights(y_true, weights)
        loss_sum, weight_sum = ops.sum(losses * weights), ops.sum(weights)
        context = replica_context()
        if context is None:
            return ops.divide_no_nan(loss_sum, weight_sum)
        all_losses, all_weights = context.all_reduce("SUM", [ops.stop_gradient(loss_sum), weight_sum])
        own = ops.divide_no_nan(loss_sum, all_weights)
        mean = ops.divide_no_nan(all_losses, all_weights)
        return own + ops.stop_gradient(mean / context.num_replicas_in_sync - own)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"loss": keras.saving.serialize_keras_object(self._loss), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GlobalMean":
        """The inverse of `get_config`."""
        return cls(**(config | {"loss": keras.saving.deserialize_keras_object(config["loss"])}))


@keras.saving.register_keras_serializable("bert_keras")
def cross_entropy(labels: Any, logits: Any) -> Any:
    """Softmax cross-entropy: int [...], float [..., C] -> float32 [...].

    A negative label, such as Hugging Face's -100, names no class: its loss is 0, and GlobalMean does not count it. Keras' metrics
    count it: pass them `sample_weight` too.
    """
    classes = ops.maximum(ops.cast(labels, "int32"), 0)
    losses = keras.losses.sparse_categorical_crossentropy(
        classes, ops.cast(logits, "float32"), from_logits=True
    )
    return known_weights(labels, losses)


@keras.saving.register_keras_serializable("bert_keras")
def binary_cross_entropy(labels: Any, logits: Any) -> Any:
    """Sigmoid cross-entropy of each slot: labels of 0 and 1, float [...] -> float32 [...]."""
    labels, logits = ops.cast(labels, "float32"), ops.cast(logits, "float32")
    return ops.softplus(logits) - labels * logits


def known_weights(labels: Any, weights: Any) -> Any:
    """Class ids and float weights [...] -> the weights, 0 where a label is negative."""
    labels = ops.convert_to_tensor(labels)
    if len(labels.shape) > len(weights.shape):  # Keras takes labels [B, 1] for [B]
        labels = ops.squeeze(labels, -1)
    return ops.where(labels >= 0, weights, 0.0)


@keras.saving.register_keras_serializable("bert_keras")
def squared_error(labels: Any, outputs: Any) -> Any:
    """Float [B], float [B, 1] -> float32 [B]."""
    return ops.square(ops.cast(labels, "float32") - ops.cast(outputs, "float32")[..., 0])
