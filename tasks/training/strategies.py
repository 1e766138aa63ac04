"""tf.distribute strategies by name, and random draws that differ between replicas."""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from tasks.settings import STRATEGIES


@functools.cache  # a second strategy would reuse the collective numbers of the first, with other shapes
def _mirrored() -> tf.distribute.Strategy:
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def strategy(name: str) -> tf.distribute.Strategy:
    """The strategy by name: one device, every GPU (or logical CPU) mirrored, or the TPU in TPU_NAME."""
    if name not in STRATEGIES:
        raise BertKerasError(f"strategy is {name!r}; give one of {', '.join(STRATEGIES)}.")
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        return _mirrored()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def rows_for(distribution: tf.distribute.Strategy, batch_size: int) -> int:
    """The number that must divide the rows of every batch: the replicas, or on a TPU the rows of a full batch.

    The batches of a TPU have one shape; its full batch is `batch_size`, rounded up to a multiple of the replicas.
    """
    replicas = distribution.num_replicas_in_sync
    if isinstance(distribution, tf.distribute.TPUStrategy):
        return -(-batch_size // replicas) * replicas
    return replicas


def differ_between_replicas(model: keras.Model) -> None:
    """Offsets the seeds of dropout and other draws by each replica's number, because Keras gives all replicas the same seed.

    Call it after anything that sets the seeds: building a model, or restoring it, which reads the first replica's seeds.
    """
    for first, *others in seed_states(model):
        for number, copy in enumerate(others, 1):
            copy.assign(first + tf.constant([number, 0], first.dtype))


def seed_states(model: keras.Model) -> list[Sequence[tf.Variable]]:
    """The state of each random number generator in a model, such as dropout's: a variable for each replica."""
    states = [variable.value for variable in model.variables if variable.name == "seed_generator_state"]
    return [getattr(state, "values", [state]) for state in states]


@contextlib.contextmanager
def drawing_from(model: keras.Model, seed: int) -> Iterator[None]:
    """Starts all random draws of a model from a seed; afterwards each replica's draws continue from their earlier state."""
    kept = [(state, state.numpy()) for states in seed_states(model) for state in states]
    for state, value in kept:
        state.assign(np.full(value.shape, seed, value.dtype))
    differ_between_replicas(model)
    try:
        yield
    finally:
        for state, value in kept:
            state.assign(value)
