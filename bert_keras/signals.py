"""Ctrl-C and SIGTERM: they raise KeyboardInterrupt at once, or wait for the end of a step where work would be lost.

    terminable()   SIGTERM raises Terminated, a KeyboardInterrupt; for commands
    postponed()    the first signal only asks to stop; the second one raises

Python runs the handlers of signals in the main thread; elsewhere, both do nothing.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

NOTICE = b"stopping after this step; a second signal stops at once\n"


class Terminated(KeyboardInterrupt):
    """SIGTERM, which `kill` and job schedulers send."""


class Stop:
    """A request to stop. signal: the number of the first signal, or None if there was none."""

    signal: int | None = None

    @property
    def error(self) -> KeyboardInterrupt:
        """The error that the signal stands for."""
        return Terminated() if self.signal == signal.SIGTERM else KeyboardInterrupt()


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code of a process that stopped for a signal: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextlib.contextmanager
def _handled(handlers: dict[int, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    kept = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it, SIGTERM raises Terminated, unless the process ignores or handles SIGTERM already."""
    main = threading.current_thread() is threading.main_thread()
    default = main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with _handled({signal.SIGTERM: _terminate} if default else {}):
        yield


@contextlib.contextmanager
def postponed() -> Iterator[Stop]:
    """Within it, the first Ctrl-C or SIGTERM only sets `signal` of the yielded Stop; the next one raises as it would outside.

    It postpones only signals that raise KeyboardInterrupt outside: in Python, SIGINT; in a command that trains, SIGTERM too.
    """
    stop = Stop()
    raising: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        outside = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        raising = {
            number: handler
            for number, handler in outside.items()
            if handler in (signal.default_int_handler, _terminate)
        }

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:
            raising[number](number, frame)
        stop.signal = number
        with contextlib.suppress(OSError):
            os.write(2, NOTICE)  # `print` is not safe here: the signal may have come inside of another print

    with _handled(dict.fromkeys(raising, ask)):
        yield stop
