"""Calls a function in several processes: tasks in, results in the order of the tasks; memory does not grow with the tasks."""

import collections
import concurrent.futures.process
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.synchronize import Event
from typing import Any, TypeVar

Result = TypeVar("Result")
Function = Callable[..., Result]


def in_order(
    start: Callable[[], Function[Result]],
    tasks: Iterable[tuple[Any, ...]],
    *,
    workers: int,
    interruptible: bool = True,
) -> Iterator[Result]:
    """The results of a function, in the order of its tasks. At most one task per worker waits.

    start: makes the function, once in each process; picklable, as arguments and results are, unless `workers` is 1
    tasks: the arguments of each call, read in this process
    workers: processes, each with one thread of TensorFlow; 1 calls the function in this process
    interruptible: True for calls that write files: Ctrl-C, which a terminal sends to all processes, reaches them, and closing the
        iterator waits for those that run. False where this process still needs results after Ctrl-C: closing ends the processes

    Raises the function's errors, and ChildProcessError if a process ends.
    """
    if workers == 1:
        yield from itertools.starmap(start(), tasks)
        return
    spawn, given = multiprocessing.get_context("spawn"), pickle.dumps(start)
    end = spawn.Event()
    with concurrent.futures.ProcessPoolExecutor(
        workers, spawn, _start_worker, (given, interruptible, end)
    ) as executor:
        pending: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            for task in tasks:
                pending.append(executor.submit(_call, *task))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ChildProcessError(
                f"a worker process ended ({error}); give fewer workers where memory is short, start a script under "
                'if __name__ == "__main__", and call again to resume.'
            ) from error
        finally:
            if not interruptible:
                end.set()
            executor.shutdown(cancel_futures=True)


_function: Function[Any]  # in a worker's process


def _start_worker(start: bytes, interruptible: bool, end: Event) -> None:
    global _function
    if not interruptible:
        for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):  # Windows has no SIGHUP
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()
    import tensorflow as tf  # seconds, in which signals come too

    tf.config.set_visible_devices([], "GPU")  # a training may need it
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    _function = pickle.loads(start)()  # after TensorFlow's settings: a tokenizer has tensors


def _end_with_parent() -> None:
    """Ends the worker with its parent: the workers of a killed process would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _end_with(end: Event) -> None:
    """Ends the worker when its results are no longer wanted."""
    end.wait()
    os._exit(0)


def _call(*task: Any) -> Any:
    return _function(*task)
