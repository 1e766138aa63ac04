"""A development server: TensorFlow Serving's REST and gRPC Predict on loopback, from an exported folder alone.

    POST /v1/models/NAME[/versions/N]:predict      {"signature_name": ..., "instances": [...]} or {"inputs": {...}}
    GET  /v1/models/NAME[/versions/N][/metadata]
    gRPC PredictionService Predict and GetModelMetadata, ModelService GetModelStatus

In: a folder of versions, or one version. It has neither batching nor limits nor other models: TensorFlow Serving is for
production. gRPC needs the `serving` extra.

Source: TensorFlow Serving, RESTful API and tensorflow_serving/apis.
"""

import base64
import binascii
import concurrent.futures
import dataclasses
import functools
import http.server
import json
import math
import pathlib
import re
import textwrap
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from bert_keras.errors import BertKerasError, MissingFileError, MissingPackageError
from bert_keras.paths import for_tensorflow, path_of
from savedmodels.kit import EXAMPLE, EXTRA
from savedmodels.reload import load_kernels

HOST = "127.0.0.1"
DEFAULT_SIGNATURE = "serving_default"
MAX_BODY = 64_000_000  # bytes
MAX_ELEMENTS = 10_000_000  # of an input
MAX_DEPTH = 32  # of lists and objects in a body: more than any tensor has
MAX_REASON = 400  # characters of an error: TensorFlow's may repeat the input
HTTP_OF = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "UNIMPLEMENTED": 501, "RESOURCE_EXHAUSTED": 413}
_PATH = re.compile(r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+))?(?P<verb>:predict|/metadata)?")
# What stands before and after the reason in a message of TensorFlow's: nodes, and how many errors there are.
_BEFORE_REASON = re.compile(
    r"(?:Graph execution error:\s*|Detected at node [^\n]*\n|<stack traces unavailable>\n"
    r"|\d+ root error\(s\) found\.\s*|\(0\) [A-Z_]+:\s*|\{\{\w+ [^}]*\}\}\s*)*"
)
_AFTER_REASON = re.compile(r"\n\t \[\[|\s\[Op:")


class RequestError(Exception):
    """A request that cannot be answered. code: a name of grpc.StatusCode."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """One version of a model, in memory."""

    name: str
    version: int
    folder: pathlib.Path
    loaded: Any  # keeps the variables
    signatures: Mapping[str, Callable[..., Mapping[str, tf.Tensor]]]

    @property
    def address(self) -> str:
        """Where REST has the model: a name may hold what no address does."""
        return f"/v1/models/{urllib.parse.quote(self.name, safe='')}"

    def check(self, name: str, version: int | None = None) -> None:
        """Raises RequestError unless a request means this model."""
        if name != self.name or version not in (None, self.version):
            wanted = name if version is None else f"{name} version {version}"
            raise RequestError(
                "NOT_FOUND", f"there is no model {wanted}; {self.name} version {self.version} is served."
            )

    def inputs_of(self, signature: str) -> dict[str, tf.TensorSpec]:
        """What a signature takes. Raises RequestError where there is none of that name."""
        if signature not in self.signatures:
            raise RequestError(
                "INVALID_ARGUMENT",
                f"there is no signature {signature!r}; the signatures are {', '.join(self.signatures)}.",
            )
        return dict(self.signatures[signature].structured_input_signature[1])  # type: ignore[attr-defined]

    def predict(self, signature: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Answers by name. Raises RequestError on names, dtypes and shapes that the signature does not take."""
        wanted = self.inputs_of(signature)
        if set(inputs) != set(wanted):
            raise RequestError(
                "INVALID_ARGUMENT",
                f"inputs {', '.join(sorted(inputs)) or 'none'} were given; {signature} takes {', '.join(wanted)}.",
            )
        for name, spec in wanted.items():
            given = inputs[name]
            if given.dtype != spec.dtype or not spec.shape.is_compatible_with(given.shape):
                raise RequestError(
                    "INVALID_ARGUMENT",
                    f"{name} is {given.dtype.name} {list(given.shape)}; wanted is {spec.dtype.name} {list(spec.shape)}.",
                )
        try:
            return dict(self.signatures[signature](**inputs))
        except tf.errors.OpError as error:
            code = "INVALID_ARGUMENT" if isinstance(error, tf.errors.InvalidArgumentError) else "INTERNAL"
            raise RequestError(code, reason_of(str(error.message))) from error
        except UnicodeDecodeError as error:  # TensorFlow's message holds bytes of the input
            raise RequestError(
                "INVALID_ARGUMENT", reason_of(error.object.decode("utf-8", "replace"))
            ) from error


def reason_of(message: str) -> str:
    """A message of TensorFlow's -> its reason in one line, without the graph's nodes."""
    before = _BEFORE_REASON.match(message)
    reason = _AFTER_REASON.split(message[before.end() if before else 0 :], maxsplit=1)[0]
    return textwrap.shorten(reason, MAX_REASON, placeholder=" ...") or "the model refuses this input."


def load(path: str | pathlib.Path, *, name: str | None = None) -> Served:
    """The newest version in a folder, or the version that the folder is.

    name: what requests call it; the folder's name unless given

    Raises FileNotFoundError where there is no SavedModel.
    """
    path = path_of(path).resolve()
    versions = [path] if (path / "saved_model.pb").is_file() else []
    if not versions and path.is_dir():
        versions = [
            folder
            for folder in path.iterdir()
            if folder.name.isdecimal() and (folder / "saved_model.pb").is_file()
        ]
    if not versions:
        raise MissingFileError(f"{path} holds no SavedModel; give the folder that `bert-keras export` wrote.")
    folder = max(versions, key=lambda folder: int(folder.name) if folder.name.isdecimal() else 0)
    load_kernels()
    with for_tensorflow(folder) as found:
        loaded = tf.saved_model.load(str(found))
    base = folder.parent if folder.name.isdecimal() else folder
    return Served(
        name=name or base.name,
        version=int(folder.name) if folder.name.isdecimal() else 1,
        folder=folder,
        loaded=loaded,
        signatures=dict(loaded.signatures),
    )


# -----------------------------------------------------------------------------------------------------------
# REST


def answer(served: Served, body: bytes) -> dict[str, Any]:
    """The JSON of a :predict request -> the JSON of its response. Raises RequestError."""
    request = _read(body)
    forms = [form for form in ("instances", "inputs") if isinstance(request, dict) and form in request]
    if len(forms) != 1:
        raise RequestError("INVALID_ARGUMENT", "the body must be an object with either instances or inputs.")
    signature = request.get("signature_name", "")
    if not isinstance(signature, str):
        raise RequestError("INVALID_ARGUMENT", f"signature_name is {signature!r}; wanted is a string.")
    signature = signature or DEFAULT_SIGNATURE
    specs = served.inputs_of(signature)
    columns = _COLUMNS[forms[0]](request[forms[0]], tuple(specs))
    inputs = {
        column: _tensor(column, value, specs[column]) if column in specs else tf.constant(0)
        for column, value in columns.items()
    }
    outputs = served.predict(signature, inputs)
    lists = {output: _jsonable(output, tensor) for output, tensor in outputs.items()}
    if forms[0] == "inputs":
        return {"outputs": lists if len(lists) > 1 else next(iter(lists.values()))}
    rows = {int(tensor.shape[0]) if tensor.shape.rank else -1 for tensor in outputs.values()}
    if len(rows) != 1 or -1 in rows:
        raise RequestError(
            "INVALID_ARGUMENT", "the outputs are not of one batch; ask with inputs, not instances."
        )
    if len(lists) == 1:
        return {"predictions": next(iter(lists.values()))}
    return {"predictions": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]}


def _read(body: bytes) -> Any:
    """The JSON of a body. Raises RequestError where it is none, or is nested over MAX_DEPTH deep."""
    try:
        request = json.loads(body)
        level = [request]
        for _ in range(MAX_DEPTH + 1):
            level = [one for one in level if isinstance(one, list | dict)]
            level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        if level:
            raise RecursionError
    except ValueError as error:  # bytes that are no UTF-8 too
        raise RequestError("INVALID_ARGUMENT", f"the body is no JSON ({error}).") from error
    except RecursionError as error:
        raise RequestError(
            "INVALID_ARGUMENT",
            f"the body is nested too deep: over {MAX_DEPTH} lists and objects in each other.",
        ) from error
    return request


def example_of(served: Served) -> Any:
    """An instance that the default signature takes: the one that was exported with it, where there is one."""

    def of(spec: tf.TensorSpec) -> Any:
        value: Any = "a text" if spec.dtype == tf.string else 0
        for size in reversed(spec.shape[1:]):
            value = [value] * (size or 1)
        return value

    file = served.folder / EXTRA / EXAMPLE
    if file.is_file():
        values = json.loads(file.read_text(encoding="utf-8"))
    else:
        values = {name: of(spec) for name, spec in served.inputs_of(DEFAULT_SIGNATURE).items()}
    return values if len(values) > 1 else next(iter(values.values()))


def _rows(rows: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The row format: a list of values of the only input, or of objects."""
    if not isinstance(rows, list) or not rows:
        raise RequestError("INVALID_ARGUMENT", "instances must be a list of at least one.")
    if len(names) == 1 and not all(isinstance(row, dict) and set(row) == set(names) for row in rows):
        return {names[0]: rows}
    if any(not isinstance(row, dict) or set(row) != set(rows[0]) for row in rows):
        raise RequestError("INVALID_ARGUMENT", f"each instance must be an object of {', '.join(names)}.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _columns(columns: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The column format: an object of lists, or the list of the only input."""
    if isinstance(columns, dict) and set(columns) != {"b64"}:
        return columns
    if len(names) != 1:
        raise RequestError("INVALID_ARGUMENT", f"inputs must be an object of {', '.join(names)}.")
    return {names[0]: columns}


_COLUMNS = {"instances": _rows, "inputs": _columns}


def _tensor(name: str, value: Any, spec: tf.TensorSpec) -> tf.Tensor:
    """JSON -> a tensor of the input's dtype. Raises RequestError on any other value."""
    try:
        if spec.dtype == tf.string:
            value = _bytes(value)
        else:
            _check_numbers(tf.nest.flatten(value), spec.dtype)
        return tf.constant(value, spec.dtype)
    except (TypeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise RequestError(
            "INVALID_ARGUMENT",
            f"{name} is no {spec.dtype.name} tensor of shape {list(spec.shape)} ({reason}).",
        ) from error


def _check_numbers(values: Iterable[Any], dtype: tf.DType) -> None:
    """Raises TypeError on what is no number, ValueError on what an integer dtype does not hold: `tf.constant` would wrap it."""
    for value in values:
        if isinstance(value, str | bool | dict | None):
            raise TypeError("a value is no number")
        if dtype.is_integer and not dtype.min <= value <= dtype.max:
            raise BertKerasError(f"{value} is not from {dtype.min} to {dtype.max}")


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
        raise TypeError("a value is no string")
    return value.encode("utf-8", "replace")  # a JSON escape can stand for half a character


def _jsonable(name: str, tensor: tf.Tensor) -> Any:
    """A tensor as JSON: strings as UTF-8, or base64 where the output's name ends in _bytes."""
    values = tensor.numpy()
    values = (
        values.tolist() if isinstance(values, np.ndarray | np.generic) else values
    )  # a string alone is bytes

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        if not isinstance(value, bytes):
            return value
        coded = name.endswith("_bytes")
        return {"b64": base64.b64encode(value).decode()} if coded else value.decode("utf-8", "replace")

    return plain(values)


class _Rest(http.server.BaseHTTPRequestHandler):
    """One connection. `served` is set by `Server`."""

    served: Served
    protocol_version = "HTTP/1.1"
    server_version = "bert-keras-development"
    timeout = 600  # seconds that a silent connection is kept

    def do_GET(self) -> None:
        self._reply(self._describe)

    def do_POST(self) -> None:
        self._reply(self._predict)

    def log_message(self, *args: Any) -> None:
        """Nothing: a line for every request would hide what matters."""

    def _reply(self, make: Callable[[], Any]) -> None:
        try:
            status, content = 200, make()
        except RequestError as error:
            status, content = HTTP_OF.get(error.code, 500), {"error": str(error)}
        except Exception as error:  # one request must not end the connection of the next
            status, content = 500, {"error": f"{type(error).__name__}: {error}"}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _verb(self) -> str | None:
        match = _PATH.fullmatch(self.path)
        if match is None:
            raise RequestError("NOT_FOUND", f"{self.path} is no address here; see {self.served.address}.")
        name = urllib.parse.unquote(match["name"].encode("latin-1"))  # as http.server decoded it
        self.served.check(name, None if match["version"] is None else int(match["version"]))
        return match["verb"]

    def _describe(self) -> Any:
        verb = self._verb()
        if verb == ":predict":
            raise RequestError("INVALID_ARGUMENT", ":predict takes a POST.")
        return metadata_of(self.served) if verb else status_of(self.served)

    def _predict(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True  # its body is still to come
            raise RequestError(
                "RESOURCE_EXHAUSTED", f"the body's Content-Length must be given, {MAX_BODY:,} bytes at most."
            )
        body = self.rfile.read(int(length))
        if self._verb() != ":predict":
            raise RequestError("INVALID_ARGUMENT", f"POST goes to {self.served.address}:predict.")
        return answer(self.served, body)


def status_of(served: Served) -> dict[str, Any]:
    """What TensorFlow Serving says of a model that is ready."""
    status = {"error_code": "OK", "error_message": ""}
    return {
        "model_version_status": [{"version": str(served.version), "state": "AVAILABLE", "status": status}]
    }


def metadata_of(served: Served) -> dict[str, Any]:
    """Name, version and signatures."""
    spec = {"name": served.name, "signature_name": "", "version": str(served.version)}
    kept = {name: json_format.MessageToDict(value) for name, value in _signature_defs(served.folder).items()}
    return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": kept}}}


@functools.cache
def _signature_defs(folder: pathlib.Path) -> dict[str, Any]:
    """The SignatureDefs of a SavedModel."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((folder / "saved_model.pb").read_bytes())
    return dict(saved.meta_graphs[0].signature_def)


# -----------------------------------------------------------------------------------------------------------
# gRPC


def _grpc_server(served: Served, port: int) -> tuple[Any, int]:
    """A server that listens, and its port. Raises ImportError without the `serving` extra, OSError where it cannot listen."""
    try:
        import grpc
        from tensorflow_serving.apis import (
            get_model_metadata_pb2,
            get_model_status_pb2,
            model_service_pb2_grpc,
            predict_pb2,
            prediction_service_pb2_grpc,
        )
    except ImportError as error:
        raise MissingPackageError(
            "gRPC needs TensorFlow Serving's API; pip install 'bert-keras[serving]'."
        ) from error

    def guarded(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
        @functools.wraps(method)
        def call(self: Any, request: Any, context: Any) -> Any:
            try:
                spec = request.model_spec
                served.check(spec.name, spec.version.value if spec.HasField("version") else None)
                return method(self, request)
            except RequestError as error:
                context.abort(getattr(grpc.StatusCode, error.code), str(error))

        return call

    class Prediction(prediction_service_pb2_grpc.PredictionServiceServicer):
        @guarded
        def Predict(self, request: Any) -> Any:
            signature = request.model_spec.signature_name or DEFAULT_SIGNATURE
            outputs = served.predict(signature, dict(_parsed(request.inputs)))
            if unknown := sorted(set(request.output_filter) - set(outputs)):
                raise RequestError("INVALID_ARGUMENT", f"there is no output {', '.join(unknown)}.")
            response = predict_pb2.PredictResponse()
            response.model_spec.name, response.model_spec.signature_name = served.name, signature
            response.model_spec.version.value = served.version
            for name in request.output_filter or outputs:
                response.outputs[name].CopyFrom(tf.make_tensor_proto(outputs[name].numpy()))
            return response

        @guarded
        def GetModelMetadata(self, request: Any) -> Any:
            if list(request.metadata_field) != ["signature_def"]:
                raise RequestError("INVALID_ARGUMENT", "metadata_field must be signature_def.")
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = served.name
            response.model_spec.version.value = served.version
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for name, value in _signature_defs(served.folder).items():
                signatures.signature_def[name].CopyFrom(value)
            response.metadata["signature_def"].Pack(signatures)
            return response

    class Status(model_service_pb2_grpc.ModelServiceServicer):
        @guarded
        def GetModelStatus(self, request: Any) -> Any:
            return json_format.ParseDict(status_of(served), get_model_status_pb2.GetModelStatusResponse())

    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(), options=[*unlimited, ("grpc.so_reuseport", 0)]
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Prediction(), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(Status(), server)
    try:
        bound = server.add_insecure_port(f"{HOST}:{port}")
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on port {port}; give another --grpc-port.") from error
    server.start()
    return server, bound


def _parsed(inputs: Mapping[str, Any]) -> Iterator[tuple[str, tf.Tensor]]:
    """TensorProtos as tensors."""
    for name, proto in inputs.items():
        elements = math.prod(max(0, dim.size) for dim in proto.tensor_shape.dim)
        if elements > MAX_ELEMENTS:  # one value may stand for all of them, in a message of a few bytes
            raise RequestError(
                "INVALID_ARGUMENT", f"{name} has {elements:,} elements; at most {MAX_ELEMENTS:,} are taken."
            )
        try:
            yield name, tf.constant(tf.make_ndarray(proto), tf.dtypes.as_dtype(proto.dtype))
        except (TypeError, ValueError, KeyError) as error:
            raise RequestError("INVALID_ARGUMENT", f"{name} is no whole TensorProto ({error}).") from error


# -----------------------------------------------------------------------------------------------------------


class Server:
    """Both servers on threads of their own, from `with` to its end.

    port, grpc_port: of REST and gRPC; 0 takes a free one, a grpc_port of None has no gRPC

    Raises OSError where a port is taken, ImportError where gRPC is wanted without the `serving` extra.
    """

    def __init__(self, served: Served, *, port: int = 8501, grpc_port: int | None = 8500) -> None:
        handler = type("Rest", (_Rest,), {"served": served})
        try:
            self._rest = http.server.ThreadingHTTPServer((HOST, port), handler)
        except OSError as error:
            raise OSError(
                f"REST cannot listen on port {port} ({error.strerror}); give another --port."
            ) from error
        self._rest.daemon_threads = True
        self.port = self._rest.server_address[1]
        self._grpc, self.grpc_port = None, None
        if grpc_port is not None:
            try:
                self._grpc, self.grpc_port = _grpc_server(served, grpc_port)
            except (OSError, ImportError):
                self._rest.server_close()
                raise
        self._thread = threading.Thread(target=self._rest.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rest.shutdown()
        self._rest.server_close()
        if self._grpc is not None:
            self._grpc.stop(grace=None).wait()

    def wait(self) -> None:
        """Until it is interrupted."""
        self._thread.join()
