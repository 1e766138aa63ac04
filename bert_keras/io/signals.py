"""Ctrl-C, SIGTERM and SIGHUP: they raise KeyboardInterrupt at once, or wait for the end of a step where work would be lost.

    interruptible()  an error that follows a signal becomes the signal's; for commands
    terminable()     SIGTERM and SIGHUP raise Terminated, a KeyboardInterrupt; for commands that train
    postponed()      the first signal only asks to stop; the second one raises
    tracing()        the first signal raises at the end; for TensorFlow's graphs of ragged tensors
    unhandled()      a signal ends the process; for long calls of C++, in which Python runs no handler

Python runs the handlers of signals in the main thread; elsewhere, these functions do nothing.
"""

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

NOTICE = b"stopping after this step; a second signal stops at once\n"


class Terminated(KeyboardInterrupt):
    """SIGTERM, which `kill` and job schedulers send."""

    number: int = signal.SIGTERM


class HungUp(Terminated):
    """SIGHUP, which a closed terminal sends."""

    number = getattr(signal, "SIGHUP", 0)  # Windows has none


_TERMINATING = {kind.number: kind for kind in (Terminated, HungUp) if kind.number}


class Stop:
    """A request to stop. signal: the number of the first signal, or None if there was none."""

    signal: int | None = None

    @property
    def error(self) -> KeyboardInterrupt:
        """The error that the signal stands for."""
        return _TERMINATING.get(self.signal or 0, KeyboardInterrupt)()


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code of a process that stopped for a signal: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + (error.number if isinstance(error, Terminated) else signal.SIGINT)


_raised: list[int] = []  # the signals whose handlers have raised, within `interruptible`


def _interrupt(number: int, frame: FrameType | None) -> None:
    _raised.append(number)
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    _leave_terminal(number)
    _raised.append(number)
    raise _TERMINATING[number]


def _leave_terminal(number: int) -> None:
    """After SIGHUP, sends streams that are a terminal to nowhere: a print to a closed terminal fails."""
    if number != HungUp.number:
        return
    with open(os.devnull, "r+b", buffering=0) as nowhere:
        for stream in (0, 1, 2):
            with contextlib.suppress(OSError):  # the stream is closed
                if stat.S_ISCHR(os.fstat(stream).st_mode):
                    os.dup2(nowhere.fileno(), stream)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _handled(
    handlers: Mapping[int, Callable[[int, FrameType | None], Any] | signal.Handlers],
) -> Iterator[None]:
    kept = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it, an error that follows a signal becomes the KeyboardInterrupt of the signal.

    TensorFlow's C++ drops an error that rises in the Python that it calls, and may then fail with another one.
    """
    ours = _in_main_thread() and signal.getsignal(signal.SIGINT) == signal.default_int_handler
    _raised.clear()
    with _handled({signal.SIGINT: _interrupt} if ours else {}):
        try:
            yield
        except Exception as error:
            if not _raised:
                raise
            raise _TERMINATING.get(_raised[0], KeyboardInterrupt)() from error


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it, SIGTERM and SIGHUP raise Terminated, unless the process ignores or handles them already, as under `nohup`."""
    given = _TERMINATING if _in_main_thread() else ()
    default = [number for number in given if signal.getsignal(number) == signal.SIG_DFL]
    with _handled(dict.fromkeys(default, _terminate)):
        yield


@contextlib.contextmanager
def postponed() -> Iterator[Stop]:
    """Within it, the first signal only sets `signal` of the yielded Stop; the next one raises as it would outside.

    It postpones only signals that raise KeyboardInterrupt outside: in Python, SIGINT; in a command that trains, SIGTERM and
    SIGHUP too. A second SIGHUP does not raise: the shell and the kernel may both send it when a terminal is closed.
    """
    stop = Stop()
    raising: dict[int, Any] = {}
    if _in_main_thread():
        outside = {number: signal.getsignal(number) for number in (signal.SIGINT, *_TERMINATING)}
        raising = {
            number: handler
            for number, handler in outside.items()
            if handler in (signal.default_int_handler, _interrupt, _terminate)
        }

    def ask(number: int, frame: FrameType | None) -> None:
        _leave_terminal(number)
        if stop.signal is not None:
            if number != HungUp.number:
                raising[number](number, frame)
            return
        stop.signal = number
        with contextlib.suppress(OSError):
            os.write(2, NOTICE)  # `print` is not safe here: the signal may have come inside of another print

    with _handled(dict.fromkeys(raising, ask)):
        yield stop


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Within it, the first signal waits for the end, and raises there; the next one raises at once. Signals as in `postponed`.

    TensorFlow's C++ calls Python to recognize a RaggedTensor. If an error rises there, it is dropped, and TensorFlow goes through
    the RaggedTensor without end.
    """
    with postponed() as stop:
        yield
    if stop.signal is not None:
        raise stop.error


@contextlib.contextmanager
def unhandled() -> Iterator[None]:
    """Within it, SIGINT, SIGTERM and SIGHUP end the process at once, unless it ignores them."""
    given = (signal.SIGINT, *_TERMINATING) if _in_main_thread() else ()
    heard = [number for number in given if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    with _handled(dict.fromkeys(heard, signal.SIG_DFL)):
        yield
