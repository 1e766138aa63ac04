"""Exact resume: a run that was killed goes on where it was saved, and ends with the same bits.

In: a model that trains, and what else its run remembers. Out: RUN/checkpoints, from which the same command goes on:

    settings.json    what the run was begun with; with other settings, data or vocabulary it is not gone on with
    ckpt-STEP.*      the step, every variable of model (seeds of dropout too), optimizer and measures, and the run's memory

Exactly the same bits take deterministic ops (`tf.config.experimental.enable_op_determinism`), and data that are a function of
seed and step.
"""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.json_files import read_object
from bert_keras.paths import for_tensorflow
from bert_keras.tensorflow_errors import file_errors
from tasks.files import check_equal, write_json

TASK_FILE, RESULTS_FILE, LOGS = "task.json", "results.json", "logs"
PROTOCOL_FILE = "protocol.json"  # tasks/experiments/glue_protocol.py's, written before the run begins
CHECKPOINTS, SETTINGS = "checkpoints", "settings.json"
EXAMPLES = 1000  # that tell one data set from another
KEPT = 2  # checkpoints: the one before the last, should a disk spoil that


def check_save_every(every: int | None) -> None:
    """Raises ValueError where saves are no steps apart; None saves nothing."""
    if every is not None and every < 1:
        raise BertKerasError(f"save_every is {every}; give at least 1 step.")


def check_output(path: pathlib.Path, *, resumes: bool) -> None:
    """Raises ValueError where the folder holds what a run is not to mix with. It is cheap: call it before long work.

    resumes: whether an unfinished run in it may be gone on with
    """
    if (path / RESULTS_FILE).exists():
        raise BertKerasError(f"{path} already holds a run; give another folder, or remove this one first.")
    if (path / CHECKPOINTS / SETTINGS).exists():
        if resumes:
            return
        raise BertKerasError(
            f"{path} holds an unfinished run; go on with it by save_every, or give another folder."
        )
    if (path / TASK_FILE).exists():
        raise BertKerasError(f"{path} already holds a run; give another folder, or remove this one first.")
    ours = (LOGS, CHECKPOINTS, PROTOCOL_FILE)  # the first two of a run that was killed before its first save
    names = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
    if other := [name for name in names if name not in ours and not name.startswith(".")]:
        raise BertKerasError(f"{path} is not empty: it holds {other[0]}; give a new folder, or an empty one.")


def prepare_output(path: pathlib.Path, *, settings: Mapping[str, Any] | None = None) -> None:
    """Makes the folder of a run and proves that it can be written, or finds the unfinished run of the same settings.

    settings: what the run's bits depend on, plain JSON; None for a run that cannot be resumed

    Raises ValueError as check_output does, where the folder holds a run of other settings, naming the first that differs, or
    refuses a file.
    """
    check_output(path, resumes=settings is not None)
    file = path / CHECKPOINTS / SETTINGS
    if settings is not None and file.is_file():
        _check_same(file, json.loads(json.dumps(settings)))
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe"
        probe.write_bytes(b"0")
        probe.unlink()
    except OSError as error:
        raise BertKerasError(
            f"cannot write to {path}: {error.strerror}; give a folder that can be written."
        ) from error
    if settings is not None:
        file.parent.mkdir(exist_ok=True)
        write_json(file, settings)


def _check_same(file: pathlib.Path, settings: Mapping[str, Any]) -> None:
    check_equal(file.parents[1], read_object(file), settings)


def digest(parts: Iterable[bytes | str]) -> str:
    """SHA-256 of bytes and strings one after another."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
    return found.hexdigest()


def digest_of_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays."""
    ordered = sorted(tensors.items())
    return digest(part for name, array in ordered for part in (name, np.ascontiguousarray(array).tobytes()))


def digest_of_examples(examples: tf.data.Dataset) -> str:
    """SHA-256 of the first EXAMPLES examples, dicts of tensors."""
    first = examples.take(EXAMPLES).as_numpy_iterator()
    return digest(
        f"{name}={value.tolist() if isinstance(value, np.ndarray | np.generic) else value!r};"
        for example in first
        for name, value in sorted(example.items())
    )


class Saver(keras.callbacks.Callback):
    """Saves a run as it trains, and takes it up again. The last of its run's callbacks: it saves what the others remember.

    path: the run's folder
    model: compiled, model and optimizer built
    every: steps from one save to the next. One that falls on an epoch's last step waits for the epoch's end
    remember: what else the run has to know, plain JSON

    A save is complete or is not there: one that was killed leaves the one before it. Nothing deletes the folder.
    """

    def __init__(
        self, path: pathlib.Path, model: keras.Model, *, every: int, remember: Callable[[], Any]
    ) -> None:
        super().__init__()
        self.step = 0
        self._model, self._every, self._remember = model, every, remember
        self._due = False
        self._measures: list[np.ndarray] | None = None
        self._memory = tf.Variable("", dtype=tf.string)
        variables = (*model.variables, *model.optimizer.variables, *model.metrics_variables)
        kept = tf.train.Checkpoint(memory=self._memory, variables=[one.value for one in variables])
        self._folder = path / CHECKPOINTS
        self._folder.mkdir(parents=True, exist_ok=True)
        self._links = contextlib.ExitStack()  # lasts as long as the callback
        folder = self._links.enter_context(for_tensorflow(self._folder))
        self._manager = tf.train.CheckpointManager(kept, str(folder), max_to_keep=KEPT)

    def restore(self) -> Any:
        """What was remembered at the last save, `step` and every variable as they were then; None where nothing was saved.

        Raises ValueError where no save can be read.
        """
        for path in reversed(self._manager.checkpoints):
            try:
                self._manager.checkpoint.restore(path).assert_existing_objects_matched()
            except Exception as error:  # TensorFlow gives a status as DataLossError, IndexError, ...
                reason = str(error).split("\n")[0]
                continue
            self.step, memory = json.loads(self._memory.numpy())
            self._measures = [one.numpy() for one in self._model.metrics_variables]
            return memory
        if self._manager.checkpoints:
            raise BertKerasError(f"no save in {self._folder} can be read ({reason}); remove the run.")
        return None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        # `fit` has just reset them.
        for variable, value in zip(self._model.metrics_variables, self._measures or (), strict=False):
            variable.assign(value)
        self._measures = None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.step += 1
        self._due |= self.step % self._every == 0
        if self._due and batch + 1 < self.params["steps"]:
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if self._due:
            self._model.reset_metrics()  # as the next epoch does; this one's are in its logs
            self._save()

    def _save(self) -> None:
        self._memory.assign(json.dumps([self.step, self._remember()]))
        with file_errors():
            self._manager.save(checkpoint_number=self.step)
        self._due = False
