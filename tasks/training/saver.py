"""Exact resume: saves the state of a training and restores it.

    RUN/checkpoints/settings.json  the fingerprint of the run (tasks/training/loop.py)
    RUN/checkpoints/ckpt-STEP.*    the step, every variable of model (including dropout seeds) and optimizer, the metrics of each
                                   replica, and the monitor's state

Bit-identical results need deterministic ops (`tf.config.experimental.enable_op_determinism`), and batches that are a function of
seed and step.
"""

import contextlib
import json
import math
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, LossDiverged, first_line
from bert_keras.io.files import file_errors, remove_temporary, sync
from bert_keras.io.paths import for_tensorflow
from bert_keras.io.signals import Stop
from bert_keras.optimization.replicas import replica_gather
from bert_keras.tasks.devices.workers import Workers

CHECKPOINTS, SETTINGS = "checkpoints", "settings.json"
LARGEST = 1e18  # the largest valid weight: the square of a larger float32 overflows
KEPT = 2  # saves to keep: if the last one is damaged, the one before it is restored
_INDEX = re.compile(r"ckpt-(\d+)\.index")
_OF_SAVE = re.compile(r"ckpt-(\d+)(_temp|\..+)")  # TensorFlow writes a save in ckpt-STEP_temp, and renames it


def steps_done(callback: keras.callbacks.Callback, batch: int) -> int:
    """The optimizer steps of the execution that has just ended: `steps_per_execution`, or fewer at the end of an epoch.

    batch: as Keras gives it to `on_train_batch_end`
    """
    first = batch + 1 - callback.model.steps_per_execution
    return min(batch + 1, callback.params["steps"]) - first


def check_loss(logs: Mapping[str, Any] | None, *, step: int) -> None:
    """Raises LossDiverged if the loss is not finite.

    The logs of a step are tensors (tasks/training/loop.py): reading one waits for the step. All workers have the same loss.
    """
    loss = float((logs or {}).get("loss", 0.0))
    if not math.isfinite(loss):
        raise LossDiverged(f"the loss is {loss}", step=step)


def check_finite(model: keras.Model, *, step: int, workers: Workers) -> None:
    """Raises LossDiverged in all workers if a weight is NaN, infinite or over LARGEST; the loss would show it a step later."""
    found = ""
    for variable in model.trainable_variables:
        largest = float(tf.reduce_max(tf.abs(tf.convert_to_tensor(variable.value))))
        if not largest <= LARGEST:  # NaN too
            found = f"{variable.path} has reached {largest:.3g}"
            break
    if workers.greatest(len(found)):
        raise LossDiverged(found or "a weight of another worker is not finite", step=step)


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


def saves_in(folder: pathlib.Path) -> list[int]:
    """The steps of the saves in a folder, newest first, from the file names, not from TensorFlow's state file."""
    found = (_INDEX.fullmatch(file.name) for file in folder.iterdir()) if folder.is_dir() else ()
    return sorted((int(match[1]) for match in found if match), reverse=True)


def _remove_unfinished(folder: pathlib.Path) -> None:
    """Removes what a kill inside a save, or inside the removal of one, has left. Call it under the run's lock."""
    saves = {*saves_in(folder)}
    for file in list(folder.iterdir()):
        if (match := _OF_SAVE.fullmatch(file.name)) is None:
            continue
        if match[2] == "_temp":
            shutil.rmtree(file)
        elif int(match[1]) not in saves:
            file.unlink()
    remove_temporary(folder)


class Saver(keras.callbacks.Callback):
    """Saves the state of a training, and restores it. It must be the last callback, because it saves the state of the others.

    path: the run's folder
    model: compiled; model and optimizer are built
    every: steps between two saves; None saves at the end of each epoch, 0 never. A save waits for the end of an execution of
        several steps; one at an epoch's last step waits for the epoch's end
    remember: returns further state of the run, plain JSON
    stop: a request to stop is followed after the running step: its save, and KeyboardInterrupt
    workers: all of them save and stop together; None for the only process

    A save appears only when it is complete: a kill during a save leaves the previous save, and files that the next Saver removes.
    While the run is unfinished, the last KEPT saves are never deleted.
    """

    def __init__(
        self,
        path: pathlib.Path,
        model: keras.Model,
        *,
        every: int | None,
        remember: Callable[[], Any],
        stop: Stop | None = None,
        workers: Workers | None = None,
    ) -> None:
        super().__init__()
        self.step = 0
        self._folder, self._model, self._every, self._remember = path / CHECKPOINTS, model, every, remember
        self._stop, self._workers = stop or Stop(), workers or Workers(model.distribute_strategy)
        self._folder.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(self._folder)
        self._links = contextlib.ExitStack()  # lasts as long as the callback
        self._named = self._links.enter_context(for_tensorflow(self._folder))
        self._due = False
        self._measures: list[np.ndarray] | None = None
        self._memory = tf.Variable("", dtype=tf.string)
        variables = (*model.variables, *model.optimizer.variables)
        self._metrics = ReplicaValues(model.distribute_strategy, model.metrics_variables)
        kept = self._metrics.read()
        self._of_metrics = [tf.Variable(value, shape=[None, *value.shape[1:]]) for value in kept]
        self._checkpoint = tf.train.Checkpoint(
            memory=self._memory, variables=[one.value for one in variables], metrics=self._of_metrics
        )

    def saves(self) -> list[int]:
        """The steps of the saves in the run's folder, newest first."""
        return saves_in(self._folder)

    def restore(self, run: pathlib.Path | None = None, *, log: Callable[[str], None] = print) -> Any:
        """Restores the newest readable save; returns its `remember` value, or None if there is no save.

        run: the folder of the run whose saves are read; None takes this Saver's own
        log: receives a line for each unreadable save, and a warning about a save of another number of devices

        Raises BertKerasError if there are saves, but all are unreadable.
        """
        folder = self._folder if run is None else run / CHECKPOINTS
        saves = saves_in(folder)
        for step in saves:
            try:
                with for_tensorflow(folder) as named:
                    self._checkpoint.read(str(named / f"ckpt-{step}")).assert_existing_objects_matched()
            except Exception as error:  # TensorFlow raises DataLossError, IndexError and others
                reason = first_line(error)
                log(f"warning: cannot read the save of step {step:,} in {folder}: {reason}")
                continue
            self.step, memory = json.loads(self._memory.numpy())
            self._measures = [one.numpy() for one in self._of_metrics]
            self._metrics.set(self._measures)
            now = self._model.distribute_strategy.num_replicas_in_sync
            if self._measures and (before := len(self._measures[0])) != now:
                log(
                    f"warning: the run was saved on {_devices(before)} and resumes on {_devices(now)}: each update still counts "
                    "the whole batch, but random draws and rounding differ from those of a run on one number of devices"
                )
            return memory
        if saves:
            raise BertKerasError(
                f"no save in {folder} can be read ({reason}); remove the run and train again."
            )
        return None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        # `fit` has just reset the metrics.
        if self._measures is not None:
            self._metrics.set(self._measures)
        self._measures = None

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        before, self.step = self.step, self.step + steps_done(self, batch)
        if self._every:
            self._due |= self.step // self._every > before // self._every
        if batch + 1 < self.params["steps"]:
            self._save_or_stop(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._model.reset_metrics()  # as the next epoch does; this epoch's metrics are in its logs
        self._due |= self._every is None
        self._save_or_stop(logs)

    def _save_or_stop(self, logs: Mapping[str, Any] | None) -> None:
        # All stop for the signal of one. A signal that comes while they compare theirs counts after the next step.
        signal = self._workers.greatest(self._stop.signal or 0)
        stops = signal > 0
        if stops:
            self._stop.signal = signal
        if self._due or (stops and self._every != 0):
            check_loss(logs, step=self.step)
            self._save()
        if stops:
            self._workers.wait_to_end()
            raise self._stop.error

    def remove(self) -> None:
        """Removes all saves: a finished run needs none."""
        for step in self.saves():
            self._remove(step)

    def _save(self) -> None:
        check_finite(self._model, step=self.step, workers=self._workers)
        self._memory.assign(json.dumps([self.step, self._remember()]))
        for kept, value in zip(self._of_metrics, self._metrics.read(), strict=True):
            kept.assign(value)
        with file_errors():
            self._checkpoint.write(str(self._named / f"ckpt-{self.step}"))
        for file in self._files(self.step):
            sync(file)
        sync(self._folder)
        for step in self.saves()[KEPT:]:
            self._remove(step)
        self._due = False

    def _files(self, step: int) -> list[pathlib.Path]:
        return sorted(self._folder.glob(f"ckpt-{step}.*"))

    def _remove(self, step: int) -> None:
        for file in reversed(self._files(step)):  # .index first: without it the save does not exist
            file.unlink()


class ReplicaValues:
    """Variables whose value is the sum over replicas.

    A sum that is read as one number and then divided again among the replicas rounds differently later.
    """

    def __init__(self, distribution: tf.distribute.Strategy, variables: Sequence[keras.Variable]) -> None:
        self._distribution, self._variables = distribution, [*variables]

        def in_replica() -> list[tf.Tensor]:
            rows = [tf.convert_to_tensor(variable.value)[tf.newaxis] for variable in self._variables]
            return [replica_gather(row) for row in rows]

        def set_in_replica(values: list[tf.Tensor]) -> None:
            place = tf.distribute.get_replica_context().replica_id_in_sync_group
            for variable, value in zip(self._variables, values, strict=True):
                variable.value.assign(value[place])

        self._read = tf.function(lambda: distribution.run(in_replica), autograph=False)
        self._set = tf.function(
            lambda values: distribution.run(set_in_replica, args=(values,)), autograph=False
        )

    def read(self) -> list[np.ndarray]:
        """The values [replicas, ...] of each variable. Every worker must call it."""
        if not self._variables:
            return []
        return [self._distribution.experimental_local_results(one)[0].numpy() for one in self._read()]

    def set(self, values: Sequence[np.ndarray]) -> None:
        """Sets each variable to values [replicas, ...]. If they are of another number of replicas, the first gets the sum."""
        if not self._variables:
            return
        count, own = self._distribution.num_replicas_in_sync, []
        for value in values:
            if len(value) != count:
                total = value.sum(axis=0, dtype=value.dtype, keepdims=True)
                value = np.concatenate([total, np.zeros([count - 1, *value.shape[1:]], value.dtype)])
            own.append(tf.constant(value))
        self._set(own)
