"""The replicas of a strategy of `tf.distribute`, and sums over all of them."""

from typing import Any

import keras


def replica_context() -> Any:
    """The replica context under several replicas, else None."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context if context is not None and context.num_replicas_in_sync > 1 else None


def replica_sum(values: Any) -> Any:
    """The sum of each tensor over all replicas, in each of them; the tensors themselves if there is one replica.

    values: tensors in any structure. No gradient flows back through their sums.

    TensorFlow's own `all_reduce` defines a gradient, and TensorFlow never frees a graph with such a definition: each model that
    was trained would stay in memory.
    """
    context = replica_context()
    if context is None:
        return values
    import tensorflow as tf

    values = tf.nest.map_structure(tf.stop_gradient, values)
    if not getattr(context.strategy.extended, "_use_merge_call", lambda: True)():  # XLA on GPUs
        return context.all_reduce("SUM", values)

    def add_up(strategy: Any, *copies: Any) -> Any:
        places = [one.device if isinstance(one, tf.Tensor) else one for one in copies]
        return strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, [*zip(copies, places, strict=True)]
        )

    return tf.nest.pack_sequence_as(values, context.merge_call(add_up, args=tf.nest.flatten(values)))


def replica_gather(value: Any) -> Any:
    """The rows of all R replicas in their order, in each of them: numbers [N, ...] -> [R * N, ...].

    Without a gradient, as `replica_sum`.
    """
    context = replica_context()
    if context is None:
        return value
    import tensorflow as tf

    count, shape = context.num_replicas_in_sync, tf.shape(value)
    own = tf.reshape(tf.range(count) == context.replica_id_in_sync_group, [count] + [1] * len(value.shape))
    # Not a product: 0 times infinity is no number.
    placed = tf.where(own, value[tf.newaxis], tf.zeros([], value.dtype))
    rows = tf.reshape(replica_sum(placed), tf.concat([[count * shape[0]], shape[1:]], axis=0))
    return tf.ensure_shape(rows, [value.shape[0] and count * value.shape[0], *value.shape[1:]])
