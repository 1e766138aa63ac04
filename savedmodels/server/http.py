"""REST over HTTP: addresses, methods, and the check of the sender. aiohttp reads the requests.

In: a `Served` and a port of this machine. Out: JSON, for errors too.
"""

import asyncio
import concurrent.futures
import json
import logging
import re
import socket
import threading
import urllib.parse
from collections.abc import Collection
from typing import Any

from aiohttp import web

from bert_keras.savedmodels.server import rest
from bert_keras.savedmodels.server.served import HOST, Call, Limits, RequestError, Served

HTTP_OF = {
    "INVALID_ARGUMENT": 400,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 413,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "DEADLINE_EXCEEDED": 504,
}
HOSTS = ("localhost", "127.0.0.1", "[::1]")
BACKLOG = 128  # the most connections that wait to be accepted
LINGER = 2.0  # seconds to read the rest of a refused body, so that its client sees the response
GRACE = 0.2  # seconds for running requests when the server stops
_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<verb>:predict|:classify|:regress|/metadata)?"
)
_SENDER = re.compile(r"(?:https?://)?(?P<host>\[[^\]]*\]|[^:/@\[\]]+)(?::[0-9]*)?")

# aiohttp logs a traceback for every malformed request, which could fill a disk.
_quiet = logging.Logger("http")
_quiet.addHandler(logging.NullHandler())


class Http:
    """A listening socket; from `start` to `close`, a thread answers its requests.

    work: runs the model, which would block other requests

    Raises OSError if the port is in use.
    """

    def __init__(
        self,
        served: Served,
        port: int,
        *,
        limits: Limits,
        hosts: Collection[str],
        work: concurrent.futures.Executor,
    ) -> None:
        self._served, self._limits, self._work = served, limits, work
        self._hosts = {host.lower() for host in (*HOSTS, *hosts)}
        try:
            self._socket = socket.create_server((HOST, port), backlog=BACKLOG)
        except OSError as error:
            raise OSError(
                f"REST cannot listen on port {port} ({error.strerror}); give another --port."
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    def start(self) -> None:
        """Starts to answer requests."""
        self._thread.start()
        self._await(self._listen())

    def close(self) -> None:
        """Stops the running requests and the thread."""
        if self._runner is not None:
            self._await(self._runner.cleanup())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._socket.close()

    def _await(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=self._limits.message_bytes)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,  # when the client disconnects
            shutdown_timeout=GRACE,
            lingering_time=LINGER,
            keepalive_timeout=self._limits.seconds,
            access_log=None,
            logger=_quiet,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket, backlog=BACKLOG).start()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method not in ("GET", "POST"):
            return _json(405, f"{request.method} is not supported; use GET or POST.", Allow="GET, POST")
        call = Call(self._limits)
        sent: web.Response | None = None
        try:
            async with asyncio.timeout(self._limits.seconds):
                self._check_sender(request)
                make = self._describe if request.method == "GET" else self._predict
                sent = web.Response(text=await make(request, call), content_type="application/json")
                await sent.prepare(request)
                await (
                    sent.write_eof()
                )  # within the time limit: a client that does not read would hold the memory
            return sent
        except RequestError as error:
            return _json(HTTP_OF.get(error.code, 500), str(error))
        except TimeoutError:
            if sent is not None:
                if request.transport is not None:
                    request.transport.abort()
                return sent
            return _json(504, f"no answer within {self._limits.seconds:g} seconds.")
        except web.RequestPayloadError as error:
            return _json(400, f"the body is damaged ({error}).")
        except Exception as error:  # a request must not end the connection of the next request
            if sent is not None:
                raise
            return _json(500, f"{type(error).__name__}: {error}")
        finally:
            call.stop()

    def _check_sender(self, request: web.Request) -> None:
        """Raises RequestError for a Host or Origin outside the allowed names: a web page may reach the server by another name.

        Browsers send an Origin with every POST from a page, and a preflight request before JSON to another origin.
        """
        for header in ("Host", "Origin"):
            if (value := request.headers.get(header)) is None and header == "Origin":
                continue
            sender = _SENDER.fullmatch(value or "")
            if sender is None or sender["host"].lower() not in self._hosts:
                raise RequestError(
                    "PERMISSION_DENIED",
                    f"{header} is {value}; allowed: {', '.join(sorted(self._hosts))}; --allow-host adds a name.",
                )
        if "Origin" in request.headers and request.method == "POST":
            if request.content_type != "application/json":
                raise RequestError(
                    "PERMISSION_DENIED",
                    f"Content-Type is {request.content_type}; a page must send application/json.",
                )

    def _verb(self, request: web.Request) -> str | None:
        path = request.raw_path.partition("?")[0]
        match = _PATH.fullmatch(path)
        if match is None:
            raise RequestError("NOT_FOUND", f"there is no address {path[:80]}; see {self._served.address}.")
        version, label = match["version"], match["label"]
        if version is not None and (len(version) > 19 or int(version) >= 2**63):
            raise RequestError("INVALID_ARGUMENT", f"Failed to convert version: {version[:20]} to numeric.")
        self._served.check(
            urllib.parse.unquote(match["name"]),
            None if version is None else int(version),
            None if label is None else urllib.parse.unquote(label),
        )
        return match["verb"]

    async def _describe(self, request: web.Request, call: Call) -> str:
        verb = self._verb(request)
        if verb is not None and verb != "/metadata":
            raise RequestError("INVALID_ARGUMENT", f"{verb} needs a POST.")
        return json.dumps(rest.metadata_of(self._served) if verb else self._served.status())

    async def _predict(self, request: web.Request, call: Call) -> str:
        verb = self._verb(request)
        if verb in (":classify", ":regress"):
            raise RequestError(
                "UNIMPLEMENTED", f"{verb} is not supported; use {self._served.address}:predict."
            )
        if verb != ":predict":
            raise RequestError("INVALID_ARGUMENT", f"send a POST to {self._served.address}:predict.")
        most = self._limits.message_bytes
        too_long = RequestError("RESOURCE_EXHAUSTED", f"the body is too long; send at most {most:,} bytes.")
        if (request.content_length or 0) > most:
            raise too_long
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise too_long from error
        return await asyncio.get_running_loop().run_in_executor(self._work, self._answer, body, call)

    def _answer(self, body: bytes, call: Call) -> str:
        content = rest.answer(self._served, body, call)
        call.check()
        return json.dumps(content)


def _json(status: int, error: str, **headers: str) -> web.Response:
    """An error in TensorFlow Serving's form."""
    return web.json_response({"error": error}, status=status, headers=headers)
