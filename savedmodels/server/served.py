"""The loaded model: its version, its signatures, and running a request within limits.

In: a folder of versions, or one version. Out: a `Served`, whose `predict` takes tensors by name and returns arrays by name.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import re
import textwrap
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.eager import cancellation  # private to TensorFlow; tests/test_server_limits.py pins it

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.paths import for_tensorflow, path_of
from savedmodels.kit import EXAMPLE, EXTRA
from savedmodels.reload import load_kernels
from tasks.settings import ServerOptions

HOST = "127.0.0.1"
DEFAULT_SIGNATURE = "serving_default"
ROWS_AT_A_TIME = 32  # that the model sees: memory does not grow with a request
MAX_ELEMENTS = 2_000_000  # numbers, strings and lists in a request
MAX_REASON = 400  # characters of an error: TensorFlow's may repeat the input
BODY_PER_TEXT = 8  # bytes of a message for each byte of text: JSON may write a letter as six
SPLITS = "_row_splits"  # ends the name of an output that counts the lists of all rows
FILLING: dict[str, Any] = {
    "O": b"",
    "i": -1,
}  # of lists that are shorter than others, by kind of dtype; else 0
# Text before and after the reason in a message of TensorFlow's: nodes, how many errors there are, the value that was refused.
_BEFORE_REASON = re.compile(
    r"(?:Graph execution error:\s*|Detected at node [^\n]*\n|<stack traces unavailable>\n"
    r"|\d+ root error\(s\) found\.\s*|\(0\) [A-Z_]+:\s*|\{\{\w+ [^}]*\}\}\s*)*"
)
_AFTER_REASON = re.compile(r"\n\t \[\[|\s\[Op:|, value: '")

_one_at_a_time = threading.Lock()  # who holds it runs a model: TensorFlow has one cancellation for a process


class RequestError(Exception):
    """A request that cannot be answered. code: a name of grpc.StatusCode."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message if len(message) <= MAX_REASON else f"{message[:MAX_REASON]} ...")
        self.code = code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one request may ask. Raises BertKerasError unless all are over 0.

    rows: examples
    text_bytes: bytes of all strings together
    seconds: from its first byte to its answer
    """

    rows: int = ServerOptions.max_rows
    text_bytes: int = ServerOptions.max_text
    seconds: float = ServerOptions.max_seconds

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not value > 0:
                raise BertKerasError(f"the limit of {name} is {value}; give a number over 0.")

    @property
    def message_bytes(self) -> int:
        """The longest HTTP body or gRPC message."""
        return BODY_PER_TEXT * self.text_bytes + 65_536

    def check_rows(self, name: str, rows: int) -> None:
        """Raises RequestError where an input has too many rows."""
        if rows > self.rows:
            raise RequestError(
                "INVALID_ARGUMENT", f"{name} has {rows:,} rows; a request may have {self.rows:,} at most."
            )

    def check_text(self, size: int) -> None:
        """Raises RequestError where a request has too many bytes of text."""
        if size > self.text_bytes:
            raise RequestError(
                "INVALID_ARGUMENT",
                f"the texts have {size:,} bytes; a request may have {self.text_bytes:,} at most.",
            )


class Call:
    """One request: its limits, and an end that any thread may put to its work."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._stopped = threading.Event()  # TensorFlow cancels the manager itself where an op fails
        self._manager = cancellation.CancellationManager()

    def stop(self) -> None:
        """Ends the work: loops of the graph at their next step, all else before the next rows."""
        self._stopped.set()
        self._manager.start_cancel()

    def check(self) -> None:
        """Raises RequestError where nobody waits for the answer."""
        if self._stopped.is_set():
            raise RequestError("CANCELLED", "the request was stopped: its client left, or its time was over.")

    def running(self) -> contextlib.AbstractContextManager[None]:
        """A context in which `stop` reaches TensorFlow.

        It is global: `stop` also ends functions of TensorFlow that other threads call meanwhile.
        """
        return cancellation.CancellationManagerContext(self._manager)


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
        """The model's path in REST, quoted: a name may hold characters that no address does."""
        return f"/v1/models/{urllib.parse.quote(self.name, safe='')}"

    @functools.cached_property
    def signature_defs(self) -> dict[str, Any]:
        """The SignatureDefs of the SavedModel."""
        saved = saved_model_pb2.SavedModel()
        saved.ParseFromString((self.folder / "saved_model.pb").read_bytes())
        return dict(saved.meta_graphs[0].signature_def)

    @functools.cached_property
    def _by_rows(self) -> bool:
        """True of exports of ours: an answer depends on its own row alone."""
        return (self.folder / EXTRA / EXAMPLE).is_file()

    def check(self, name: str, version: int | None = None, label: str | None = None) -> None:
        """Raises RequestError unless a request means this model."""
        if name != self.name or version not in (None, self.version):
            wanted = name if version is None else f"{name} version {version}"
            raise RequestError(
                "NOT_FOUND", f"there is no model {wanted}; {self.name} version {self.version} is served."
            )
        if label is not None:
            raise RequestError(
                "INVALID_ARGUMENT",
                f"Unrecognized servable version label: {label}; no labels are kept here, ask for version {self.version}.",
            )

    def inputs_of(self, signature: str) -> dict[str, tf.TensorSpec]:
        """The inputs of a signature. Raises RequestError where there is none of that name."""
        if signature not in self.signatures:
            raise RequestError(
                "INVALID_ARGUMENT",
                f"there is no signature {signature!r}; the signatures are {', '.join(self.signatures)}.",
            )
        return dict(self.signatures[signature].structured_input_signature[1])  # type: ignore[attr-defined]

    def check_names(self, signature: str, names: Iterable[str]) -> None:
        """Raises RequestError unless these are the inputs of a signature."""
        given, wanted = set(names), self.inputs_of(signature)
        if given != set(wanted):
            raise RequestError(
                "INVALID_ARGUMENT",
                f"{signature} takes {', '.join(wanted)}; the request has {', '.join(sorted(given)) or 'none'}.",
            )

    def predict(self, signature: str, inputs: Mapping[str, tf.Tensor], call: Call) -> dict[str, np.ndarray]:
        """Answers by name, strings as bytes in object arrays.

        Raises RequestError on names, dtypes and shapes that the signature does not take, over a limit, and when stopped.
        """
        self.check_names(signature, inputs)
        for name, spec in self.inputs_of(signature).items():
            given = inputs[name]
            if given.dtype != spec.dtype or not spec.shape.is_compatible_with(given.shape):
                raise RequestError(
                    "INVALID_ARGUMENT",
                    f"{name} is {given.dtype.name} {list(given.shape)}; wanted is {spec.dtype.name} {list(spec.shape)}.",
                )
            call.limits.check_rows(name, given.shape[0] if given.shape.rank else 1)
        texts = [tensor for tensor in inputs.values() if tensor.dtype == tf.string]
        call.limits.check_text(
            sum(int(tf.reduce_sum(tf.cast(tf.strings.length(text), tf.int64))) for text in texts)
        )
        counts = {tensor.shape[0] if tensor.shape.rank else None for tensor in inputs.values()}
        rows = counts.pop() if self._by_rows and len(counts) == 1 else None
        starts = range(0, rows or 1, ROWS_AT_A_TIME)
        if len(starts) == 1:
            return self._run(signature, inputs, call)
        cut = [slice(start, start + ROWS_AT_A_TIME) for start in starts]
        return _joined(
            [self._run(signature, {name: x[part] for name, x in inputs.items()}, call) for part in cut]
        )

    def _run(self, signature: str, inputs: Mapping[str, tf.Tensor], call: Call) -> dict[str, np.ndarray]:
        """The model on rows that it can take at once."""
        with _one_at_a_time:
            call.check()
            try:
                with call.running():
                    outputs = self.signatures[signature](**inputs)
                return {name: _array(tensor) for name, tensor in outputs.items()}
            except tf.errors.OpError as error:
                call.check()
                code = "INVALID_ARGUMENT" if isinstance(error, tf.errors.InvalidArgumentError) else "INTERNAL"
                raise RequestError(code, reason_of(str(error.message))) from error
            except UnicodeDecodeError as error:  # TensorFlow's message holds bytes of the input
                reason = reason_of(error.object.decode("utf-8", "replace"))
                raise RequestError("INVALID_ARGUMENT", reason) from error

    def status(self) -> dict[str, Any]:
        """The GetModelStatusResponse of a model that is ready, as JSON."""
        status = {"error_code": "OK", "error_message": ""}
        return {
            "model_version_status": [{"version": str(self.version), "state": "AVAILABLE", "status": status}]
        }


def _array(tensor: tf.Tensor) -> np.ndarray:
    value = tensor.numpy()
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The answers to some rows after those to the rows before them, [B, ...] by name."""

    def join(name: str) -> np.ndarray:
        arrays = [part[name] for part in parts]
        if name.endswith(SPLITS):  # each counts from 0
            sizes = np.concatenate([np.diff(splits) for splits in arrays])
            return np.concatenate([[0], np.cumsum(sizes)]).astype(arrays[0].dtype)
        width = np.max([array.shape[1:] for array in arrays], axis=0)
        filled = [
            np.pad(
                array,
                [(0, 0), *((0, int(most - size)) for most, size in zip(width, array.shape[1:], strict=True))],
                constant_values=FILLING.get(array.dtype.kind, 0),
            )
            for array in arrays
        ]
        return np.concatenate(filled)

    return {name: join(name) for name in parts[0]}


def reason_of(message: str) -> str:
    """A message of TensorFlow's -> its reason in one line, without the graph's nodes and without the value it refuses."""
    before = _BEFORE_REASON.match(message)
    reason = _AFTER_REASON.split(message[before.end() if before else 0 :], maxsplit=1)[0]
    return textwrap.shorten(reason, MAX_REASON, placeholder=" ...") or "the model refuses this input."


def load(path: str | pathlib.Path, *, name: str | None = None) -> Served:
    """The newest version in a folder, or the version that the folder is.

    name: of the model in requests; the folder's name unless given

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
