"""Calls a function in several processes: tasks in, results in the order of the tasks; memory does not grow with the tasks."""

import collections
import concurrent.futures.process
import contextlib
import functools
import importlib
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from bert_keras.errors import BertKerasError

RESULTS = 16  # of a process that takes part, which wait for earlier results
Result = TypeVar("Result")
Function = Callable[..., Result]
# The signals that a terminal, `timeout` or a scheduler sends to all processes of a command. Windows has no SIGHUP.
_TO_ALL = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def check_workers(workers: int) -> None:
    """Raises BertKerasError for no workers, or a negative number of them."""
    if workers < 1:
        raise BertKerasError(f"workers is {workers}; give a number of processes, 1 or more.")


def check_sendable(**arguments: Any) -> None:
    """Raises BertKerasError for an argument, by its name, that cannot be sent to a worker process."""
    for name, value in arguments.items():
        try:
            pickle.dumps(value)
            module = getattr(value, "__module__", None) if callable(value) else None
            if module == "__main__" and not hasattr(importlib.import_module("__main__"), "__file__"):
                raise TypeError("a worker cannot import what a notebook or a terminal defines")
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise BertKerasError(
                f"{name} cannot be sent to a worker process ({error}); give one of a module, or workers=1."
            ) from error


def in_order(
    start: Callable[[], Function[Result]],
    tasks: Iterable[tuple[Any, ...]],
    *,
    workers: int,
    interruptible: bool = True,
    takes_part: bool = False,
) -> Iterator[Result]:
    """The results of a function, in the order of its tasks. At most one task waits for each process that is started.

    start: makes the function, once in each process; picklable, as arguments and results are, unless `workers` is 1
    tasks: the arguments of each call, read in this process
    workers: processes; 1 calls the function in this process. Each process that is started has one thread of TensorFlow
    interruptible: True for calls that write files: Ctrl-C, which a terminal sends to all processes, reaches them, and closing the
        iterator waits for those that run. False where this process still needs results after Ctrl-C or SIGTERM: closing ends the
        processes
    takes_part: True counts this process as a worker: it calls the function too, while the others import TensorFlow and whenever
        each of them has a task that waits. At most RESULTS of it then wait in memory for each of the others

    Raises the function's errors, and ChildProcessError if a process ends.
    """
    if workers == 1:
        yield from itertools.starmap(start(), tasks)
        return
    others = workers - takes_part
    pending: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
    own, most = functools.cache(start), RESULTS * others if takes_part else others
    deferred = () if interruptible else _TO_ALL
    with _started(start, others, deferred) as executor:
        # A process that `submit` starts inherits the block, until it can ignore the signals.
        with _blocked(deferred):
            begun = [executor.submit(os.getpid) for _ in range(others if takes_part else 0)]
        for task in tasks:
            waits = sum(not one.done() for one in pending) >= 2 * others
            if takes_part and (waits or not all(one.done() for one in begun)):
                pending.append(_called(own, task))
            else:
                with _blocked(deferred):
                    pending.append(executor.submit(_call, *task))
            while len(pending) > most or (takes_part and pending and pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextlib.contextmanager
def _started(
    start: Callable[[], Function[Any]], count: int, deferred: tuple[int, ...]
) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Processes for calls, which end with the block. deferred: the signals that they ignore; then an error ends them at once."""
    spawn = multiprocessing.get_context("spawn")
    # Nothing is ever sent: a worker ends when this process closes its end, or ends. A lock shared with a dead worker would hang.
    end, own_end = spawn.Pipe(duplex=False)
    given = (pickle.dumps(start), deferred, end)
    with end, own_end, concurrent.futures.ProcessPoolExecutor(count, spawn, _start_worker, given) as executor:
        try:
            yield executor
            own_end.close()  # a worker that imported TensorFlow takes a second to end by itself
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ChildProcessError(
                f"a worker process ended ({error}); give fewer workers where memory is short, start a script under "
                'if __name__ == "__main__", and call again to resume.'
            ) from error
        finally:
            if deferred:
                own_end.close()
            executor.shutdown(cancel_futures=True)


def _called(own: Callable[[], Function[Result]], task: tuple[Any, ...]) -> concurrent.futures.Future[Result]:
    """The result of a call in this process, or its error, for its turn."""
    made: concurrent.futures.Future[Result] = concurrent.futures.Future()
    try:
        made.set_result(own()(*task))
    except Exception as error:
        made.set_exception(error)
    return made


@contextlib.contextmanager
def _blocked(signals: tuple[int, ...]) -> Iterator[None]:
    """Within it, this thread and the processes that it starts receive none of the signals."""
    if not signals or not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_function: Function[Any]  # in a worker's process


def _start_worker(start: bytes, ignored: tuple[int, ...], end: Connection) -> None:
    global _function
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if ignored and hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()
    import tensorflow as tf  # seconds, in which signals come too

    tf.config.set_visible_devices([], "GPU")  # a training may need it
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    _function = pickle.loads(start)()  # after TensorFlow's settings: a tokenizer has tensors


def _end_with(end: Connection) -> None:
    """Ends the worker when its results are no longer wanted, or its parent was killed."""
    with contextlib.suppress(EOFError, OSError):
        end.recv()
    os._exit(0)


def _call(*task: Any) -> Any:
    return _function(*task)
