"""The replicas and the processes of a strategy of `tf.distribute`: sums over them, and the data sets that they read.

Keras is imported by the functions that need it: the text half of a pre-training uses `without_autotuning` without Keras.
"""

from typing import Any

from bert_keras.errors import BertKerasError


def replica_context() -> Any:
    """The replica context under several replicas, else None."""
    import keras

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
        placed = [(one, one.device if isinstance(one, tf.Tensor) else one) for one in copies]
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, placed)

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


# -----------------------------------------------------------------------------------------------------------
# Data sets


def without_autotuning(data: Any) -> Any:
    """A tf.data.Dataset without autotuning, unless its options turn it on or off: for `fit` of a plain `keras.Model`.

    The thread of autotuning sleeps 10 ms, then twice as long each time. With TensorFlow 2.21, we saw iterators that ended only
    when it woke: `fit` took up to twice its time. Without the thread, `AUTOTUNE` stands for the number of cores.
    """
    import tensorflow as tf

    if data.options().autotune.enabled is not None:
        return data
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def prepared(value: Any) -> Any:
    """A data set without autotuning, that every worker reads whole, to train on its rows of each batch; other values stay.

    By default, TensorFlow gives each worker other files of a data set: the batches are then not those of one device.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return value
    import tensorflow as tf

    if not isinstance(value, tf.data.Dataset):
        return value
    value = without_autotuning(value)
    if chooses_parts(value):
        return value
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return value.with_options(options)


def check_scope(model: Any) -> None:
    """Raises BertKerasError in the scope of a strategy that the model was not made in: its variables are elsewhere."""
    import keras

    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    if not tf.distribute.has_strategy():
        return
    scope, own = tf.distribute.get_strategy(), model._distribute_strategy
    check_strategy(scope)
    if own is not scope:
        where = "outside of it" if own is None else f"in the scope of another {type(own).__name__}"
        raise BertKerasError(
            f"this is the scope of a {type(scope).__name__}, and the model was made {where}; make and compile the model inside "
            "`with strategy.scope():`."
        )


def check_strategy(strategy: Any) -> None:
    """Raises BertKerasError for a strategy that keeps the variables in one place, which Keras 3 does not train."""
    import tensorflow as tf

    central = (
        tf.distribute.experimental.CentralStorageStrategy,
        tf.distribute.experimental.ParameterServerStrategy,
        tf.distribute.ParameterServerStrategy,
    )
    if isinstance(strategy, central):
        raise BertKerasError(
            f"{type(strategy).__name__} is not supported: it keeps the variables in one place; take MirroredStrategy, "
            "MultiWorkerMirroredStrategy or TPUStrategy."
        )


def count_workers(strategy: Any) -> int:
    """The number of processes of a strategy."""
    import tensorflow as tf

    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if not several or strategy.cluster_resolver is None:
        return 1
    addresses = strategy.cluster_resolver.cluster_spec().as_dict()
    return sum(len(addresses.get(kind, ())) for kind in ("chief", "worker")) or 1


def check_order(data: Any, *, shuffle: Any) -> None:
    """Raises BertKerasError for training data that each of several workers would shuffle in another order.

    Each worker trains on its rows of each batch, so all must have the same batches. shuffle: as in `fit`, for arrays
    """
    import keras
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset):
        if not chooses_parts(data) and _shuffles_without_seed(data):
            raise BertKerasError(
                "the data set is shuffled without a seed, so each worker would have other batches; give Dataset.shuffle the same "
                "seed in all workers."
            )
        return
    arrays = all(hasattr(one, "__array__") for one in keras.tree.flatten(data))
    if arrays and shuffle and tf.compat.v1.get_seed(None)[0] is None:
        raise BertKerasError(
            "fit shuffles arrays, in each worker in another order; call keras.utils.set_random_seed with the same number in all "
            "workers, or give shuffle=False."
        )


def _shuffles_without_seed(data: Any) -> bool:
    """True if a shuffle on the way to a tf.data.Dataset had no seed and TensorFlow no global one when it was made."""
    own = type(data).__name__ == "_ShuffleDataset" and not (int(data._seed) or int(data._seed2))
    return own or any(map(_shuffles_without_seed, data._inputs()))


def chooses_parts(data: Any) -> bool:
    """True for a tf.data.Dataset whose user chose what each worker reads of it."""
    import tensorflow as tf

    options = data.options().experimental_distribute
    return bool(options.auto_shard_policy != tf.data.experimental.AutoShardPolicy.AUTO)
