"""The server's log: a line for each request, and a line for an error outside of a request.

In: aiohttp's and asyncio's own reports. Out: lines for a function that prints them.
"""

import datetime
import logging
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from bert_keras.errors import first_line
from bert_keras.savedmodels.server.served import Call

Log = Callable[[str], None]
SILENCE = 60.0  # seconds in which an error that goes on is not repeated
MAX_PATH = 200  # characters of a path in a line
CALL = web.RequestKey("call", Call)  # a request without it is a probe or a scrape, or cannot be read


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


def stamped(log: Log) -> Log:
    """Puts the time in UTC before each line, such as 2026-01-31T08:15:00.123Z."""

    def log_with_time(line: str) -> None:
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        log(f"{now.isoformat(timespec='milliseconds')}Z {line}")

    return log_with_time


def access_line(method: str, path: str, status: int | str, seconds: float, call: Call | None = None) -> str:
    """Such as `POST /v1/models/sst2:predict 200 12 ms version=2 signature=serving_default rows=8`.

    The last three fields are there if the request came that far. Other characters than ASCII are escaped.
    """
    shown = ascii(path)[1:-1]
    shown = shown if len(shown) <= MAX_PATH else f"{shown[:MAX_PATH]}..."
    fields = ("version", "signature", "rows")
    known = {field: getattr(call, field, "") for field in fields}
    shown_fields = "".join(f" {field}={ascii(str(value))[1:-1]}" for field, value in known.items() if value)
    return f"{method} {shown} {status} {1000 * seconds:.0f} ms{shown_fields}"


class AccessLine(AbstractAccessLogger):
    """aiohttp's report of a request, also of a request that it cannot read, as an `access_line`; answered probes have none."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        call = request.get(CALL)
        if call is not None or response.status != 200:
            self.logger.info(access_line(request.method, request.raw_path, response.status, time, call))


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
