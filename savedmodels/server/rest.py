"""REST: JSON over HTTP on this machine. aiohttp reads the requests.

In: `Versions` and a port. Out: JSON, for errors too. Strings are UTF-8, other bytes are {"b64": ...}.
"""

import asyncio
import base64
import binascii
import concurrent.futures
import json
import logging
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from aiohttp import web
from google.protobuf import json_format

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import unique
from bert_keras.savedmodels.reload import plain
from bert_keras.savedmodels.server.log import CALL, AccessLine, Log, logger_to, one_line_exceptions
from bert_keras.savedmodels.server.metrics import PATH as METRICS
from bert_keras.savedmodels.server.metrics import Metrics
from bert_keras.savedmodels.server.page import page_at
from bert_keras.savedmodels.server.senders import METHODS, Senders
from bert_keras.savedmodels.server.served import DEFAULT_SIGNATURE, MAX_ELEMENTS, Call, RequestError, Served
from bert_keras.savedmodels.server.versions import Versions
from bert_keras.tasks.options import ServerOptions

# -----------------------------------------------------------------------------------------------------------
# HTTP: addresses, methods, and the check of the sender

HTTP_OF = {
    "INVALID_ARGUMENT": 400,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 413,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "DEADLINE_EXCEEDED": 504,
}
BACKLOG = 128  # the most connections that wait to be accepted
LINGER = 2.0  # seconds to read the rest of a refused body, so that its client sees the response
DRAIN = (
    8.0  # seconds for running requests when the server stops: a container is killed 10 seconds after SIGTERM
)
DISCONNECTED = 499  # counted where the client has left before the answer
HEALTH = ("/healthz", "/readyz")  # the server listens only after its model has answered the warm-up requests
_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<verb>:predict|:classify|:regress|/metadata)?"
)
_METHOD_OF = {
    ":predict": "Predict",
    ":classify": "Classify",
    ":regress": "Regress",
    "/metadata": "GetModelMetadata",
    None: "GetModelStatus",
}

# aiohttp logs a traceback for every malformed request, which could fill a disk.
_quiet = logging.Logger("http")
_quiet.addHandler(logging.NullHandler())


class Http:
    """A listening socket; from `start` to `close`, a thread answers its requests.

    work: runs the model, which would block other requests
    log: takes a line about an error outside of a request, and a line for each request, unless the options leave these out

    Raises OSError if the port is in use.
    """

    def __init__(
        self,
        versions: Versions,
        options: ServerOptions,
        *,
        senders: Senders,
        work: concurrent.futures.Executor,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._metrics = metrics
        self._versions, self._options, self._senders, self._work = versions, options, senders, work
        self._access_log = logger_to(None if options.no_access_log else log)
        try:
            self._socket = socket.create_server(
                (options.host, options.port),
                backlog=BACKLOG,
                family=socket.AF_INET6 if ":" in options.host else socket.AF_INET,
                dualstack_ipv6=options.host == "::" and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            raise OSError(
                f"REST cannot listen on {options.host}, port {options.port} ({error.strerror}); give another --port or --host."
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(one_line_exceptions(log))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    def start(self) -> None:
        """Starts to answer requests."""
        self._thread.start()
        self._await(self._listen())

    def close(self) -> None:
        """Waits up to DRAIN seconds for running requests, then stops them and the thread."""
        if self._runner is not None:
            self._await(self._runner.cleanup())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._socket.close()

    def _await(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=self._options.max_message)
        app.router.add_route("*", "/{path:(?s:.*)}", self._handle)  # a path may hold an escaped line break
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,  # when the client disconnects
            shutdown_timeout=DRAIN,
            lingering_time=LINGER,
            keepalive_timeout=self._options.max_seconds,
            access_log=self._access_log,
            access_log_class=AccessLine,
            logger=_quiet,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket, backlog=BACKLOG).start()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        # Probes and scrapes come with the address of a container as their Host, so it is not checked: they tell no text.
        if request.method == "GET" and request.path in HEALTH:
            return web.json_response({"status": "ok"})
        if request.method == "GET" and request.path == METRICS:
            text, kind = self._metrics.text()
            return web.Response(body=text, headers={"Content-Type": kind})
        request[CALL] = call = Call(self._options)
        response: web.StreamResponse | None = None
        with self._metrics.request(
            "rest", call, lambda: DISCONNECTED if response is None else response.status
        ):
            response = await self._answered(request, call)
        return response

    async def _answered(self, request: web.Request, call: Call) -> web.StreamResponse:
        """The response, which is sent already unless the time ran out."""
        sent: web.Response | None = None
        try:
            async with asyncio.timeout(self._options.max_seconds):
                sent = await self._respond(request, call)
                self._senders.allow(request, sent)
                await sent.prepare(request)
                # Within the time limit: a client that does not read would hold the memory.
                await sent.write_eof()
            return sent
        except TimeoutError:
            if sent is not None:
                if request.transport is not None:
                    request.transport.abort()
                return sent
            late = _json(504, f"no answer within {self._options.max_seconds:g} seconds.")
            self._senders.allow(request, late)
            return late
        finally:
            call.stop()

    async def _respond(self, request: web.Request, call: Call) -> web.Response:
        """The response to a request; an error is a response too, and never ends the connection of the next request."""
        try:
            if (preflight := self._senders.preflight(request)) is not None:
                return preflight
            if request.method not in ("GET", "POST"):
                return _json(405, f"{request.method} is not supported; use GET or POST.", Allow=METHODS)
            self._senders.check(request)
            if request.method == "GET" and not self._options.no_page:
                if (page := page_at(request, self._versions)) is not None:
                    return page
            make = self._describe if request.method == "GET" else self._predict
            return web.Response(text=await make(request, call), content_type="application/json")
        except RequestError as error:
            return _json(HTTP_OF.get(error.code, 500), str(error))
        except web.RequestPayloadError as error:
            return _json(400, f"the body is damaged ({error}).")
        except Exception as error:
            return _json(500, f"{type(error).__name__}: {error}")

    def _find(self, request: web.Request, call: Call) -> tuple[Served, str | None]:
        """The version that a request asks for, and its verb. Raises RequestError."""
        path = request.raw_path.partition("?")[0]
        match = _PATH.fullmatch(path)
        if match is None:
            raise RequestError(f"there is no address {path[:80]}; see {self._versions.address}.", "NOT_FOUND")
        call.method, version, label = _METHOD_OF[match["verb"]], match["version"], match["label"]
        if version is not None and (len(version) > 19 or int(version) >= 2**63):
            raise RequestError(f"Failed to convert version: {version[:20]} to numeric.")
        served = self._versions.find(
            urllib.parse.unquote(match["name"]),
            None if version is None else int(version),
            None if label is None else urllib.parse.unquote(label),
        )
        call.version = str(served.version)
        return served, match["verb"]

    async def _describe(self, request: web.Request, call: Call) -> str:
        served, verb = self._find(request, call)
        if verb is not None and verb != "/metadata":
            raise RequestError(f"{verb} needs a POST.")
        return json.dumps(metadata_of(served) if verb else self._versions.status())

    async def _predict(self, request: web.Request, call: Call) -> str:
        served, verb = self._find(request, call)
        if verb in (":classify", ":regress"):
            raise RequestError(
                f"{verb} is not supported; use {self._versions.address}:predict.", "UNIMPLEMENTED"
            )
        if verb != ":predict":
            raise RequestError(f"send a POST to {self._versions.address}:predict.")
        most = self._options.max_message
        too_long = RequestError(f"the body is too long; send at most {most:,} bytes.", "RESOURCE_EXHAUSTED")
        if (request.content_length or 0) > most:
            raise too_long
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise too_long from error
        return await asyncio.get_running_loop().run_in_executor(self._work, self._answer, served, body, call)

    def _answer(self, served: Served, body: bytes, call: Call) -> str:
        content = answer(served, body, call)
        call.check()
        return json.dumps(content, allow_nan=False)


def _json(status: int, error: str, **headers: str) -> web.Response:
    """An error in TensorFlow Serving's form."""
    return web.json_response({"error": error}, status=status, headers=headers)


# -----------------------------------------------------------------------------------------------------------
# JSON: the body of a :predict request -> the body of its response; a model's metadata

KEYS = ("signature_name", "instances", "inputs")
MAX_DEPTH = 32  # levels of nested lists and objects, more than any tensor has
MAX_LISTS = 100_000  # lists and objects in a body
TOO_DEEP = f"the body is nested too deep; send at most {MAX_DEPTH} levels of lists and objects."


def answer(served: Served, body: bytes, call: Call) -> dict[str, Any]:
    """The JSON of a :predict request -> the JSON of its response. Raises RequestError."""
    most = MAX_LISTS + call.options.max_text  # texts may have brackets too
    if body.count(b"[") + body.count(b"{") > most:  # parsing them in Python would take seconds
        raise RequestError(f"the body has over {most:,} brackets; send fewer lists.")
    request = _read(body)
    if isinstance(request, dict) and (unknown := [key for key in request if key not in KEYS]):
        raise RequestError(f"the body has {unknown[0]!r}; a request has {', '.join(KEYS)}.")
    forms = [form for form in ("instances", "inputs") if isinstance(request, dict) and form in request]
    if len(forms) != 1:
        raise RequestError("the body must be an object with either instances or inputs.")
    form = forms[0]
    _check_sizes(form, request[form], call)
    signature = request.get("signature_name", "")
    if not isinstance(signature, str):
        raise RequestError(f"signature_name is {signature!r}; expected a string.")
    signature = signature or DEFAULT_SIGNATURE
    specs = served.inputs_of(signature)
    columns = (_rows if form == "instances" else _columns)(request[form], tuple(specs))
    served.checked_inputs(signature, columns)
    inputs = {column: _tensor(column, value, specs[column]) for column, value in columns.items()}
    outputs = served.predict(signature, inputs, call)
    lists = {}
    for output, array in outputs.items():
        call.check()
        lists[output] = _jsonable(output, array)
    if form == "inputs":
        return {"outputs": lists if len(lists) > 1 else next(iter(lists.values()))}
    rows = {array.shape[:1] for array in outputs.values()}
    if len(rows) != 1 or () in rows:
        raise RequestError("the outputs have no common batch dimension; send inputs, not instances.")
    if len(lists) == 1:
        return {"predictions": next(iter(lists.values()))}
    return {"predictions": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]}


def _read(body: bytes) -> Any:
    """The value of a JSON body. Raises RequestError if the body is not JSON."""
    try:
        return json.loads(body, object_pairs_hook=unique)
    except ValueError as error:  # includes UnicodeDecodeError
        raise RequestError(f"the body is not JSON ({error}).") from error
    except RecursionError as error:
        raise RequestError(TOO_DEEP) from error


def _check_sizes(form: str, values: Any, call: Call) -> None:
    """Raises RequestError for too many rows or elements, or nesting deeper than MAX_DEPTH, before any tensor is made."""
    columns = values if form == "inputs" and isinstance(values, dict) else {form: values}
    for name, column in columns.items():
        if isinstance(column, list):
            call.check_rows(name, len(column))
    level, elements = [values], 0
    for _ in range(MAX_DEPTH):
        level = [one for one in level if isinstance(one, list | dict)]
        elements += sum(map(len, level))
        if elements > MAX_ELEMENTS:
            raise RequestError(f"the body has over {MAX_ELEMENTS:,} values; send fewer at a time.")
        level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
    if level:
        raise RequestError(TOO_DEEP)


def _rows(rows: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The row format: a list of objects, or of values of the only input."""
    if not isinstance(rows, list) or not rows:
        raise RequestError("instances must be a list with at least one instance.")
    if len(names) == 1 and not any(isinstance(row, dict) and set(row) != {"b64"} for row in rows):
        return {names[0]: rows}
    wanted = f"each instance must be an object with {', '.join(sorted(names))}"
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(f"{wanted}; instance {number} is a {type(row).__name__}.")
        if set(row) != set(names):
            raise RequestError(f"{wanted}; instance {number} has {', '.join(map(repr, row)) or 'nothing'}.")
    return {name: [row[name] for row in rows] for name in names}


def _columns(columns: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The column format: an object of lists, or the list of the only input's values."""
    if isinstance(columns, dict) and set(columns) != {"b64"}:
        return columns
    if len(names) != 1:
        raise RequestError(f"inputs must be an object with {', '.join(names)}.")
    return {names[0]: columns}


def _tensor(name: str, value: Any, spec: tf.TensorSpec) -> tf.Tensor:
    """JSON -> a tensor of the input's dtype. Raises RequestError for a value that does not fit."""
    try:
        if spec.dtype == tf.string:
            value = _bytes(value)
        else:
            _check_numbers(tf.nest.flatten(value), spec.dtype)
        return tf.constant(value, spec.dtype)
    except (TypeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise RequestError(
            f"{name} is not a tensor of {spec.dtype.name} {list(spec.shape)} ({reason})."
        ) from error


def _check_numbers(values: Iterable[Any], dtype: tf.DType) -> None:
    """Raises TypeError for non-numbers, ValueError for integers outside the dtype's range, which `tf.constant` would wrap."""
    for value in values:
        if isinstance(value, str | bool | dict | None):
            raise TypeError("a value is not a number")
        if dtype.is_integer and not dtype.min <= value <= dtype.max:
            raise BertKerasError(f"{value} is not between {dtype.min} and {dtype.max}")


def _bytes(value: Any) -> Any:
    """Strings, and objects {"b64": ...}, as bytes."""
    if isinstance(value, list):
        return [_bytes(item) for item in value]
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise BertKerasError(f"b64: {error}") from error
    if not isinstance(value, str):
        raise TypeError("a value is not a string")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise BertKerasError(f"half of a surrogate pair at character {error.start}") from error


def _jsonable(name: str, array: np.ndarray) -> Any:
    """An array as JSON: strings as UTF-8, or base64 if the output's name ends in _bytes."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(f"{name} has NaN or infinite numbers, which JSON does not have.", "INTERNAL")
    if name.endswith("_bytes"):
        return plain(array.tolist(), lambda value: {"b64": base64.b64encode(value).decode()})
    return plain(array.tolist())


def metadata_of(served: Served) -> dict[str, Any]:
    """Name, version and signatures in TensorFlow Serving's format: the protos' field names, including defaults."""
    kept = {
        name: json_format.MessageToDict(
            value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        for name, value in served.signature_defs.items()
    }
    return {
        "model_spec": {"name": served.name, "signature_name": "", "version": str(served.version)},
        "metadata": {"signature_def": {"signature_def": kept}},
    }
