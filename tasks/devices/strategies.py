"""tf.distribute strategies by name, and random draws that differ between replicas."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, first_line
from bert_keras.features import ALL_ROWS, WorkerRows
from bert_keras.io.signals import unhandled
from bert_keras.model.choices import slowness
from bert_keras.optimization.replicas import count_workers, replica_gather
from bert_keras.tasks.devices.cluster import CLUSTER, check_cluster
from bert_keras.tasks.hparams import STRATEGIES
from bert_keras.text.preprocessing import Preprocessor


@functools.cache  # a second strategy would reuse the collective numbers of the first, with other shapes
def _mirrored() -> tf.distribute.Strategy:
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


@functools.cache  # a process joins its cluster once
def _multiworker() -> tf.distribute.Strategy:
    check_cluster(os.environ.get(CLUSTER))
    try:
        with unhandled():  # TensorFlow still catches SIGTERM
            return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:  # TensorFlow has run an operation
        raise BertKerasError(
            f"cannot join the cluster of {CLUSTER}: {error}; make the strategy before TensorFlow runs any operation."
        ) from error
    except tf.errors.OpError as error:  # its port is in use, or another worker did not come
        raise BertKerasError(
            f"cannot join the cluster of {CLUSTER}: {first_line(error)}; give each worker a free port, and start all of them."
        ) from error


@functools.cache
def _tpu() -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, tf.errors.OpError) as error:
        reason = first_line(error).rstrip(".")
        raise BertKerasError(
            f"no TPU is found ({reason}); set TPU_NAME, as a TPU VM does, or give another strategy."
        ) from error


_MAKERS: dict[str, Callable[[], tf.distribute.Strategy]] = {
    "one": tf.distribute.get_strategy,
    "mirrored": _mirrored,
    "multiworker": _multiworker,
    "tpu": _tpu,
}


def strategy(name: str) -> tf.distribute.Strategy:
    """The strategy by name; equal names give one object.

    one: one device; mirrored: every GPU (or logical CPU) of this machine; multiworker: the GPUs of all processes that TF_CONFIG
    lists; tpu: the TPU in TPU_NAME.

    Raises BertKerasError for an unknown name, a TF_CONFIG that lists no cluster, and where there is no TPU.
    """
    if name not in _MAKERS:
        raise BertKerasError(f"strategy is {name!r}; give one of {', '.join(STRATEGIES)}.")
    return _MAKERS[name]()


def lines_about(distribution: tf.distribute.Strategy, *, strategy_name: str, precision: str) -> list[str]:
    """Lines about the devices of a training: warnings, and the number of devices of a strategy with several."""
    lines = slowness(precision, accelerated=is_accelerated())
    devices, workers = distribution.num_replicas_in_sync, count_workers(distribution)
    if strategy_name == "mirrored" and devices == 1:
        (device,) = distribution.extended.worker_devices
        kind = ":".join(device.split(":")[-2:])
        lines.append(
            f"warning: strategy mirrored found one device, {kind}, and is no faster than strategy one; check the drivers of the "
            "GPUs and CUDA_VISIBLE_DEVICES"
        )
    elif strategy_name != "one":
        among = f" of {workers} workers" if workers > 1 else ""
        lines.append(f"strategy {strategy_name}: {devices} device{'s' * (devices > 1)}{among}")
    return lines


def has_joined() -> bool:
    """True if this process has joined a cluster of several workers."""
    return bool(_multiworker.cache_info().currsize) and count_workers(_multiworker()) > 1


def is_accelerated() -> bool:
    """True where TensorFlow sees a GPU or TPU."""
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def rows_for(distribution: tf.distribute.Strategy, batch_size: int) -> int:
    """The number that must divide the rows of every batch: the replicas, or on a TPU the rows of a full batch.

    The batches of a TPU have one shape; its full batch is `batch_size`, rounded up to a multiple of the replicas.
    """
    replicas = distribution.num_replicas_in_sync
    if isinstance(distribution, tf.distribute.TPUStrategy):
        return -(-batch_size // replicas) * replicas
    return replicas


def check_micro_batch(
    distribution: tf.distribute.Strategy, *, batch_size: int, micro_batch: int | None
) -> None:
    """Raises BertKerasError unless micro-batches divide a replica's part of a batch on a TPU, whose steps have one shape."""
    if micro_batch is None or not isinstance(distribution, tf.distribute.TPUStrategy):
        return
    part = rows_for(distribution, batch_size) // distribution.num_replicas_in_sync
    if part % micro_batch:
        raise BertKerasError(
            f"micro_batch is {micro_batch}, and each replica of the TPU has {part} rows of a batch; give a number that divides "
            "them."
        )


def padded_for(distribution: tf.distribute.Strategy, preprocess: Preprocessor) -> Preprocessor:
    """The preprocessor with the padding that a strategy needs: a TPU compiles a step for one length."""
    if not isinstance(distribution, tf.distribute.TPUStrategy):
        return preprocess
    return Preprocessor(
        preprocess.tokenizer, seq_length=preprocess.seq_length, truncation=preprocess.truncation
    )


def in_replicas(
    distribution: tf.distribute.Strategy, call: Callable[[Any], Any], *, batch_size: int
) -> Callable[[Any], Any]:
    """Divides `call` among the replicas: each computes a share of the rows, a structure of [B, ...].

    batch_size: the largest B

    All replicas get all outputs, so all workers must call it, with the same rows. `call` must treat each row alone. Copies of the
    first row fill up what the replicas cannot divide; their outputs are dropped.
    """
    replicas, multiple = distribution.num_replicas_in_sync, rows_for(distribution, batch_size)
    if multiple == 1:
        return call

    def in_replica(rows: Any) -> Any:
        context: Any = tf.distribute.get_replica_context()
        number = context.replica_id_in_sync_group

        def own(values: tf.Tensor) -> tf.Tensor:
            count = values.shape[0] or tf.shape(values)[0]
            share = count // replicas
            return values[number * share : (number + 1) * share]

        return tf.nest.map_structure(replica_gather, call(tf.nest.map_structure(own, rows)))

    def made(rows: Any) -> Any:
        count = tf.shape(tf.nest.flatten(rows)[0])[0]

        def filled(values: tf.Tensor) -> tf.Tensor:
            copies = tf.repeat(values[:1], -count % multiple, axis=0)
            whole = tf.concat([values, copies], axis=0)
            # A TPU needs to know the shape; there, `multiple` is that of a full batch.
            return whole if multiple == replicas else tf.ensure_shape(whole, [multiple, *values.shape[1:]])

        outputs = distribution.run(in_replica, args=(tf.nest.map_structure(filled, rows),))
        return tf.nest.map_structure(
            lambda one: distribution.experimental_local_results(one)[0][:count], outputs
        )

    return made


def divided(
    distribution: tf.distribute.Strategy, make: Callable[[WorkerRows], tf.data.Dataset]
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Batches for `fit`, of which each process makes its own part: with several workers, the others' rows are never read.

    make: (part) -> the part's rows of every batch, which the replicas divide
    """
    if not isinstance(distribution, tf.distribute.MultiWorkerMirroredStrategy):
        return make(ALL_ROWS)

    def own(context: tf.distribute.InputContext) -> tf.data.Dataset:
        made = make(WorkerRows(context.input_pipeline_id, context.num_input_pipelines))
        replicas = context.num_replicas_in_sync // context.num_input_pipelines  # of this process
        if replicas == 1:
            return made
        return made.map(
            lambda *batch: tf.nest.map_structure(lambda x: tf.stack(tf.split(x, replicas)), batch)
        ).unbatch()

    return distribution.distribute_datasets_from_function(own)


def differ_between_replicas(model: keras.Model) -> None:
    """Offsets the seeds of dropout and other draws by each replica's number, because Keras gives all replicas the same seed.

    Call it after anything that sets the seeds: building a model, or restoring it, which reads the seeds of the first replica.
    Every replica counts from the seeds of the first replica, in whichever process that is: a second call changes nothing.
    """
    distribution, states = model.distribute_strategy, seed_states(model)
    if distribution.num_replicas_in_sync == 1 or not states:
        return
    own = tf.stack([tf.cast(copies[0], tf.int64) for copies in states])
    numbers, first = _numbers_and_first(distribution)(own)
    for copies, seed in zip(states, first, strict=True):
        for number, copy in zip(numbers, copies, strict=True):
            copy.assign(tf.cast(seed + tf.stack([number, 0]), copy.dtype))


@functools.cache
def _numbers_and_first(distribution: tf.distribute.Strategy) -> Callable[[tf.Tensor], Any]:
    """A function of states [N, 2]: the numbers of the replicas in this process, and the states of the first replica."""

    def in_replica(own: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        context: Any = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.int64)
        return number, replica_gather(own)[: tf.shape(own)[0]]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 2], tf.int64)])
    def run(own: tf.Tensor) -> tuple[Any, Any]:
        numbers, first = distribution.run(in_replica, args=(own,))
        local = distribution.experimental_local_results
        return local(numbers), local(first)[0]

    return run


def seed_states(model: keras.Model) -> list[Sequence[tf.Variable]]:
    """The state of each random number generator in a model, such as dropout's: a variable for each replica in this process."""
    states = [one.value for one in model.variables if one.name == "seed_generator_state"]
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
