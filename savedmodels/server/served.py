"""The loaded model: its version, its signatures, and requests that run within limits.

In: a folder of versions, or one version. Out: a `Served`, whose `predict` takes tensors by name and returns arrays by name.
"""

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import re
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.python.eager import cancellation  # private to TensorFlow; tests/test_server_limits.py pins it

from bert_keras.errors import MissingFileError
from bert_keras.features import NOT_FINITE
from bert_keras.io.formats import check_saved_model
from bert_keras.io.paths import did_you_mean, for_tensorflow, to_path
from bert_keras.savedmodels.reload import load_kernels
from bert_keras.savedmodels.verify import BOUNDS, EXAMPLE, EXTRA
from bert_keras.tasks.options import ServerOptions
from bert_keras.text.text_ops import text_ops_needed

DEFAULT_SIGNATURE = "serving_default"
FILE = "saved_model.pb"  # of a version
ROWS_AT_A_TIME = 32  # rows in a batch of the model; the answer still has all rows of a request
MAX_ELEMENTS = 2_000_000  # most numbers, strings and lists in a request
MAX_ANSWER = 5_000_000  # most numbers and strings in an answer, padding included
MAX_REASON = 400  # most characters in an error: TensorFlow's errors may repeat the input
SPLITS = "_row_splits"  # suffix of outputs with the offsets of concatenated lists
FILLING: dict[str, Any] = {"O": b"", "i": -1}  # padding of shorter lists, by kind of dtype; else 0
# Text around the reason in TensorFlow's messages: nodes, the number of errors, the refused value.
_BEFORE_REASON = re.compile(
    r"(?:Graph execution error:\s*|Detected at node [^\n]*\n|<stack traces unavailable>\n"
    r"|\d+ root error\(s\) found\.\s*|\(0\) [A-Z_]+:\s*|\{\{\w+ [^}]*\}\}\s*)*"
)
_AFTER_REASON = re.compile(r"\n\t \[\[|\s\[Op:|, value: '")

_one_at_a_time = threading.Lock()  # held to run a model: TensorFlow has one cancellation manager in a process


class RequestError(Exception):
    """A request that cannot be answered. code: a name in grpc.StatusCode."""

    def __init__(self, message: str, code: str = "INVALID_ARGUMENT") -> None:
        super().__init__(message if len(message) <= MAX_REASON else f"{message[:MAX_REASON]} ...")
        self.code = code


class Call:
    """One request: its limits, and a `stop` that any thread may call."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        # For the log and the metrics: names that the server knows, where the request has come that far.
        self.method, self.version, self.signature, self.rows = "other", "", "", 0
        # The manager cannot tell who stopped it, because TensorFlow also cancels it when an op fails.
        self._stopped = threading.Event()
        self._manager = cancellation.CancellationManager()

    def check_rows(self, name: str, rows: int) -> None:
        """Raises RequestError if an input has too many rows."""
        if rows > self.options.max_rows:
            raise RequestError(
                f"{name} has {rows:,} rows; a request may have at most {self.options.max_rows:,}."
            )

    def check_text(self, size: int) -> None:
        """Raises RequestError if a request has too many bytes of text."""
        if size > self.options.max_text:
            raise RequestError(
                f"the texts have {size:,} bytes; a request may have at most {self.options.max_text:,}."
            )

    def stop(self) -> None:
        """Stops the work: loops in the graph stop at the next step, other work before the next rows."""
        self._stopped.set()
        self._manager.start_cancel()

    def check(self) -> None:
        """Raises RequestError after `stop`."""
        if self._stopped.is_set():
            raise RequestError(
                "the request was stopped: its client disconnected, or its time ran out.", "CANCELLED"
            )

    def running(self) -> contextlib.AbstractContextManager[None]:
        """A context in which `stop` cancels TensorFlow's functions, in all threads, because TensorFlow's state is global."""
        return cancellation.CancellationManagerContext(self._manager)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """One version of a model, in memory."""

    name: str
    version: int
    folder: pathlib.Path
    loaded: Any  # keeps the variables
    signatures: Mapping[str, Callable[..., Mapping[str, tf.Tensor]]]
    signature_defs: Mapping[str, meta_graph_pb2.SignatureDef]  # for the metadata

    @functools.cached_property
    def _by_rows(self) -> bool:
        """True for exports of this package, where each answer depends only on its own row."""
        return (self.folder / EXTRA / EXAMPLE).is_file()

    def inputs_of(self, signature: str) -> dict[str, tf.TensorSpec]:
        """The inputs of a signature. Raises RequestError for an unknown signature."""
        if signature not in self.signatures:
            raise RequestError(
                f"there is no signature {signature!r}; the signatures are {', '.join(self.signatures)}."
            )
        return dict(self.signatures[signature].structured_input_signature[1])  # type: ignore[attr-defined]

    def checked_inputs(self, signature: str, names: Iterable[str]) -> dict[str, tf.TensorSpec]:
        """The inputs of a signature. Raises RequestError unless `names` are these inputs."""
        given, wanted = set(names), self.inputs_of(signature)
        if given != set(wanted):
            raise RequestError(
                f"{signature} takes {', '.join(wanted)}; the request has {', '.join(sorted(given)) or 'none'}."
            )
        return wanted

    def predict(self, signature: str, inputs: Mapping[str, tf.Tensor], call: Call) -> dict[str, np.ndarray]:
        """Answers by name, strings as bytes in object arrays.

        Raises RequestError for names, dtypes and shapes that the signature does not accept, above a limit, and when stopped.
        """
        specs = self.checked_inputs(signature, inputs)
        call.signature = signature
        for name, spec in specs.items():
            given = inputs[name]
            if given.dtype != spec.dtype or not spec.shape.is_compatible_with(given.shape):
                raise RequestError(
                    f"{name} is {given.dtype.name} {list(given.shape)}; expected {spec.dtype.name} {list(spec.shape)}."
                )
            call.rows = given.shape[0] if given.shape.rank else 1
            call.check_rows(name, call.rows)
        texts = [tensor for tensor in inputs.values() if tensor.dtype == tf.string]
        call.check_text(sum(int(tf.reduce_sum(tf.cast(tf.strings.length(text), tf.int64))) for text in texts))
        counts = {tensor.shape[0] if tensor.shape.rank else None for tensor in inputs.values()}
        rows = counts.pop() if self._by_rows and len(counts) == 1 else None
        starts = range(0, rows or 1, ROWS_AT_A_TIME)
        if len(starts) == 1:
            return self._run(signature, inputs, call)
        parts: dict[str, list[np.ndarray]] = {}
        shapes: dict[str, tuple[int, ...]] = {}  # of all parts of an output together
        for start in starts:
            cut = slice(start, start + ROWS_AT_A_TIME)
            part = self._run(signature, {name: x[cut] for name, x in inputs.items()}, call)
            for name, array in part.items():
                parts.setdefault(name, []).append(array)
                count, *sizes = shapes.get(name, (0, *array.shape[1:]))
                shapes[name] = (count + len(array), *map(max, sizes, array.shape[1:]))
            _check_answer(shapes.values())
        call.check()
        return {name: _joined(name, arrays, shapes[name]) for name, arrays in parts.items()}

    def _run(self, signature: str, inputs: Mapping[str, tf.Tensor], call: Call) -> dict[str, np.ndarray]:
        """Runs the model on one batch."""
        with _one_at_a_time:
            call.check()
            try:
                with call.running():
                    outputs = self.signatures[signature](**inputs)
                _check_answer(tuple(tensor.shape) for tensor in outputs.values())
                return {name: _array(tensor) for name, tensor in outputs.items()}
            except tf.errors.OpError as error:
                call.check()
                of_request = isinstance(error, tf.errors.InvalidArgumentError) and NOT_FINITE not in str(
                    error
                )
                code = "INVALID_ARGUMENT" if of_request else "INTERNAL"
                raise RequestError(reason_of(str(error.message)), code) from error
            except UnicodeDecodeError as error:  # TensorFlow's message repeats bytes of the input
                raise RequestError(reason_of(error.object.decode("utf-8", "replace"))) from error


def _array(tensor: tf.Tensor) -> np.ndarray:
    value = tensor.numpy()
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def _check_answer(shapes: Iterable[tuple[int, ...]]) -> None:
    """Raises RequestError if outputs of these shapes have more than MAX_ANSWER values."""
    values = sum(map(math.prod, shapes))
    if values > MAX_ANSWER:
        raise RequestError(
            f"the answer has {values:,} numbers and texts, padding included, and may have at most {MAX_ANSWER:,}; send fewer "
            "rows, or shorter texts."
        )


def _joined(name: str, arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """One output for consecutive rows, [B, ...] each; pads shorter lists."""
    first = arrays[0]
    if name.endswith(SPLITS):  # the offsets of each part start at 0
        sizes = np.concatenate([np.diff(splits) for splits in arrays])
        return np.concatenate([[0], np.cumsum(sizes)]).astype(first.dtype)
    joined = np.full(shape, FILLING.get(first.dtype.kind, 0), first.dtype)
    row = 0
    for array in arrays:
        joined[slice(row, row + len(array)), *map(slice, array.shape[1:])] = array
        row += len(array)
    return joined


def reason_of(message: str) -> str:
    """TensorFlow's message -> its reason in one line, without graph nodes and the refused value."""
    before = _BEFORE_REASON.match(message)
    reason = _AFTER_REASON.split(message[before.end() if before else 0 :], maxsplit=1)[0]
    return textwrap.shorten(reason, MAX_REASON, placeholder=" ...") or "the model does not accept this input."


def _signature_defs(file: pathlib.Path) -> dict[str, meta_graph_pb2.SignatureDef]:
    """The SignatureDefs of a saved_model.pb. Copies, because a part keeps the whole message in memory: 2 GB if it is frozen."""
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    return {
        name: meta_graph_pb2.SignatureDef.FromString(value.SerializeToString())
        for name, value in saved.meta_graphs[0].signature_def.items()
    }


def find_versions(path: str | pathlib.Path) -> dict[int, pathlib.Path]:
    """The versions in a folder by their numbers, or the version that the folder is. Raises MissingFileError if there is none."""
    given, path = to_path(path), to_path(path).resolve()
    if (path / FILE).is_file():
        return {int(path.name) if path.name.isdecimal() else 1: path}
    folders = [folder for folder in path.iterdir() if folder.name.isdecimal()] if path.is_dir() else []
    if found := {int(folder.name): folder for folder in folders if (folder / FILE).is_file()}:
        return found
    close = "" if given.exists() else did_you_mean(given)
    raise MissingFileError(
        f"{path} has no SavedModel{close}; give the folder that `bert-keras export` wrote without --format."
    )


def load_version(folder: pathlib.Path, *, name: str | None = None) -> Served:
    """Loads a version. name: the model's name in requests (default: that of the folder of the versions)."""
    load_kernels()
    with for_tensorflow(folder) as found:
        check_saved_model(found)
        with text_ops_needed(folder):
            loaded = tf.saved_model.load(str(found))
    is_version = folder.name.isdecimal()
    return Served(
        name=name or (folder.parent if is_version else folder).name,
        version=int(folder.name) if is_version else 1,
        folder=folder,
        loaded=loaded,
        signatures=dict(loaded.signatures),
        signature_defs=_signature_defs(folder / FILE),
    )


def load(path: str | pathlib.Path, *, name: str | None = None) -> Served:
    """Loads a version, or the newest version in a folder. Raises MissingFileError if there is no SavedModel."""
    found = find_versions(path)
    return load_version(found[max(found)], name=name)


def example_inputs(served: Served, signature: str) -> dict[str, Any]:
    """An instance by input: the export's own example for a signature of its inputs, else placeholders."""

    def of(spec: tf.TensorSpec) -> Any:
        value: Any = "a text" if spec.dtype == tf.string else 1  # a mask of 0 alone is refused
        for size in reversed(spec.shape[1:] if spec.shape.rank else ()):
            value = [value] * (size or 1)
        return value

    file, specs = served.folder / EXTRA / EXAMPLE, served.inputs_of(signature)
    own = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return own if own.keys() == specs.keys() else {name: of(spec) for name, spec in specs.items()}


def score_bounds(served: Served) -> list[float] | None:
    """The lowest and the highest score of an export that names them."""
    file = served.folder / EXTRA / BOUNDS
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def example_of(served: Served, signature: str = DEFAULT_SIGNATURE) -> Any:
    """An instance as a request has it: the value of the only input, or an object."""
    values = example_inputs(served, signature)
    return next(iter(values.values())) if len(values) == 1 else values
