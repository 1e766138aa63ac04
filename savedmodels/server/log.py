"""The server's log: a line for each request, and a line for an error outside of a request.

In: aiohttp's and asyncio's own reports. Out: lines for a function that prints them.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from bert_keras.errors import first_line

Log = Callable[[str], None]
SILENCE = 60.0  # seconds in which an error that goes on is not repeated
MAX_PATH = 200  # characters of a path in a line


class _Lines(logging.Handler):
    """Passes each message on as a line."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log(record.getMessage())


def logger_to(log: Log | None) -> logging.Logger | None:
    """A logger whose messages become lines."""
    if log is None:
        return None
    logger = logging.Logger("requests")
    logger.addHandler(_Lines(log))
    return logger


def access_line(method: str, path: str, status: int | str, seconds: float) -> str:
    """Such as `POST /v1/models/sst2:predict 200 12 ms`; other characters than ASCII are escaped."""
    shown = ascii(path)[1:-1]
    shown = shown if len(shown) <= MAX_PATH else f"{shown[:MAX_PATH]}..."
    return f"{method} {shown} {status} {1000 * seconds:.0f} ms"


class AccessLine(AbstractAccessLogger):
    """aiohttp's report of a request, also of one that it cannot read, as an `access_line`."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        self.logger.info(access_line(request.method, request.raw_path, response.status, time))


def one_line_exceptions(log: Log) -> Callable[[Any, dict[str, Any]], None]:
    """A handler for asyncio's event loop. asyncio's own prints a traceback, each second while no file can be opened."""
    seen: dict[str, float] = {}  # line -> the time of its last error

    def handle(_: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        line = f"warning: {context['message']}" + (f": {first_line(error)}" if error else "")
        if time.monotonic() - seen.get(line, -SILENCE) >= SILENCE:
            log(line)
        seen[line] = time.monotonic()

    return handle
