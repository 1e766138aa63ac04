"""The processes that train a model together, each with a copy of it, under MultiWorkerMirroredStrategy; or the only process.

One process is the chief: it writes the run's folder, and decides what follows from measures, because unlike machines round
differently, and a worker that stops alone leaves the others waiting. All workers run the same code, because a save and an
evaluation read the replicas of all workers; the others write to a temporary folder.
"""

import contextlib
import functools
import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, WorkerLost, first_line
from bert_keras.io.files import digest
from bert_keras.optimization.replicas import count_workers, replica_gather
from bert_keras.tasks.devices.strategies import has_joined

# TensorFlow raises them in the workers that are left, at their next operation over all replicas.
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)

SAME_IN_ALL = "give all of them the same data, checkpoint and settings"


class Workers:
    """The workers of a strategy; without one, the only process.

    count: the number of processes
    chief: True in the process that writes the run's folder
    """

    def __init__(self, distribution: tf.distribute.Strategy | None = None) -> None:
        self._distribution = distribution or tf.distribute.get_strategy()
        self.count, self.chief = 1, True
        if not isinstance(distribution, tf.distribute.MultiWorkerMirroredStrategy):
            return
        self.count = count_workers(distribution)
        if (resolver := distribution.cluster_resolver) is not None:
            addresses = resolver.cluster_spec().as_dict()
            first = "chief" if "chief" in addresses else "worker"
            self.chief = self.count == 1 or (resolver.task_type, resolver.task_id) == (first, 0)

    def values(self, value: int) -> list[int]:
        """The values of all workers, the chief's first and each at least once. Every worker waits here for all others."""
        if self.count == 1:
            return [value]
        return [int(one) for one in self._gather(tf.constant([value], tf.int64))[:, 0]]

    def greatest(self, value: int) -> int:
        """The greatest of the values of all workers."""
        return max(self.values(value))

    def wait(self) -> None:
        """Returns when all workers are here."""
        self.greatest(0)

    def from_chief(self, make: Callable[[], Any]) -> Any:
        """The result of `make`, plain JSON, in all workers. The chief alone calls it; the others wait here for the chief."""
        if self.count == 1:
            return make()
        return json.loads(self._gather_bytes(json.dumps(make()).encode() if self.chief else b"")[0])

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        """The data of all workers, the chief's first and each at least once; none may end with a zero byte."""
        sent = np.zeros(self.greatest(len(data)), np.int64)
        sent[: len(data)] = np.frombuffer(data, np.uint8)
        return [row.tobytes().rstrip(b"\0") for row in self._gather(sent).numpy().astype(np.uint8)]

    def wait_to_end(self) -> None:
        """Returns when no other worker needs this one: after it, a process may end.

        A worker that has left an operation over all workers may end while another one is still in it, which then fails. So all
        meet once more; whoever fails here knows that the others had come.
        """
        with contextlib.suppress(*LOST):
            self.wait()

    def check_same(self, fingerprint: Mapping[str, Any], remedy: str) -> None:
        """Raises BertKerasError in all workers, with the names of the fields that differ, unless all give the same.

        fingerprint: plain JSON by name; remedy: what the user can do
        """
        if self.count == 1:
            return
        own = {name: digest([json.dumps(field, sort_keys=True)]) for name, field in fingerprint.items()}
        everyones = [json.loads(data) for data in self._gather_bytes(json.dumps(own).encode())]
        # A field that a worker lacks is a setting at its default.
        every_name = dict.fromkeys(name for one in everyones for name in one)
        if names := [name for name in every_name if len({one.get(name) for one in everyones}) > 1]:
            self.wait_to_end()
            raise BertKerasError(f"the workers differ in {', '.join(names)}; {remedy}.")

    @property
    def _gather(self) -> Callable[[tf.Tensor], tf.Tensor]:
        return _gather_of(self._distribution)

    @contextlib.contextmanager
    def writing(self, lock: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
        """Holds the lock of an output that the chief alone writes. At the end, all workers wait for the chief."""
        with lock if self.chief else contextlib.nullcontext():
            yield
            self.wait()
            self.wait_to_end()

    @contextlib.contextmanager
    def folder(self, path: pathlib.Path) -> Iterator[pathlib.Path]:
        """The folder for the files of this worker: `path` for the chief, else a temporary one with copies of the files there."""
        if self.chief:
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="bert_keras_worker_") as own:
            if not path.is_dir():
                raise BertKerasError(
                    f"{path} is not there, although the chief has begun it: give all workers one output folder that they share."
                )
            for file in path.absolute().iterdir():
                if file.is_file() and not file.name.startswith("."):
                    shutil.copyfile(file, pathlib.Path(own) / file.name)
            yield pathlib.Path(own)

    def log(self, log: Callable[[str], None]) -> Callable[[str], None]:
        """The log of this worker: the chief logs all lines, the others only warnings."""
        return log if self.chief else lambda line: log(line) if line.startswith("warning: ") else None


@functools.cache
def _gather_of(distribution: tf.distribute.Strategy) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function of the numbers int64 [N] of this process: the numbers of all replicas, int64 [R, N]."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
    def gather(values: tf.Tensor) -> tf.Tensor:
        rows = distribution.run(replica_gather, args=(values[tf.newaxis],))
        return distribution.experimental_local_results(rows)[0]

    return gather


@contextlib.contextmanager
def reports_lost_workers() -> Iterator[None]:
    """Turns TensorFlow's errors about a worker that has ended into WorkerLost; works as a decorator too."""
    try:
        yield
    except LOST as error:
        if not has_joined():
            raise
        raise WorkerLost(
            f"another worker has ended or cannot be reached ({type(error).__name__}: {first_line(error)}); look for its own "
            "message, and run the same command in all workers again to resume from the last save."
        ) from error
