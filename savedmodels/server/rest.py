"""REST's JSON: turns the body of a :predict request into the body of its response; a model's metadata.

In: bytes. Out: an object for `json.dumps`. Strings are UTF-8, other bytes are {"b64": ...}.
"""

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from bert_keras.errors import BertKerasError
from bert_keras.savedmodels.server.served import (
    DEFAULT_SIGNATURE,
    MAX_ELEMENTS,
    Call,
    Limits,
    RequestError,
    Served,
)

MAX_DEPTH = 32  # levels of nested lists and objects, more than any tensor has
MAX_LISTS = 100_000  # lists and objects in a body


def answer(served: Served, body: bytes, call: Call) -> dict[str, Any]:
    """The JSON of a :predict request -> the JSON of its response. Raises RequestError."""
    most = MAX_LISTS + call.limits.text_bytes  # texts may have brackets too
    if body.count(b"[") + body.count(b"{") > most:  # parsing them in Python would take seconds
        raise RequestError("INVALID_ARGUMENT", f"the body has over {most:,} brackets; send fewer lists.")
    request = _read(body)
    forms = [form for form in ("instances", "inputs") if isinstance(request, dict) and form in request]
    if len(forms) != 1:
        raise RequestError("INVALID_ARGUMENT", "the body must be an object with either instances or inputs.")
    (form,) = forms
    _check_sizes(form, request[form], call.limits)
    signature = request.get("signature_name", "")
    if not isinstance(signature, str):
        raise RequestError("INVALID_ARGUMENT", f"signature_name is {signature!r}; expected a string.")
    signature = signature or DEFAULT_SIGNATURE
    specs = served.inputs_of(signature)
    columns = _COLUMNS[form](request[form], tuple(specs))
    served.check_names(signature, columns)
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
        raise RequestError(
            "INVALID_ARGUMENT", "the outputs have no common batch dimension; send inputs, not instances."
        )
    if len(lists) == 1:
        return {"predictions": next(iter(lists.values()))}
    return {"predictions": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]}


def _read(body: bytes) -> Any:
    """The value of a JSON body. Raises RequestError if the body is not JSON."""
    try:
        return json.loads(body)
    except ValueError as error:  # includes UnicodeDecodeError
        raise RequestError("INVALID_ARGUMENT", f"the body is not JSON ({error}).") from error
    except RecursionError as error:
        raise _too_deep() from error


def _too_deep() -> RequestError:
    return RequestError(
        "INVALID_ARGUMENT",
        f"the body is nested too deep; send at most {MAX_DEPTH} levels of lists and objects.",
    )


def _check_sizes(form: str, values: Any, limits: Limits) -> None:
    """Raises RequestError for too many rows or elements, or nesting deeper than MAX_DEPTH, before any tensor is made."""
    columns = values if form == "inputs" and isinstance(values, dict) else {form: values}
    for name, column in columns.items():
        if isinstance(column, list):
            limits.check_rows(name, len(column))
    level, elements = [values], 0
    for _ in range(MAX_DEPTH):
        level = [one for one in level if isinstance(one, list | dict)]
        elements += sum(map(len, level))
        if elements > MAX_ELEMENTS:
            raise RequestError(
                "INVALID_ARGUMENT", f"the body has over {MAX_ELEMENTS:,} values; send fewer at a time."
            )
        level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
    if level:
        raise _too_deep()


def _rows(rows: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The row format: a list of objects, or of values of the only input."""
    if not isinstance(rows, list) or not rows:
        raise RequestError("INVALID_ARGUMENT", "instances must be a list with at least one instance.")
    if len(names) == 1 and not all(isinstance(row, dict) and set(row) == set(names) for row in rows):
        return {names[0]: rows}
    if any(not isinstance(row, dict) or set(row) != set(rows[0]) for row in rows):
        raise RequestError("INVALID_ARGUMENT", f"each instance must be an object with {', '.join(names)}.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _columns(columns: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The column format: an object of lists, or the list of the only input's values."""
    if isinstance(columns, dict) and set(columns) != {"b64"}:
        return columns
    if len(names) != 1:
        raise RequestError("INVALID_ARGUMENT", f"inputs must be an object with {', '.join(names)}.")
    return {names[0]: columns}


_COLUMNS = {"instances": _rows, "inputs": _columns}


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
            "INVALID_ARGUMENT", f"{name} is not a tensor of {spec.dtype.name} {list(spec.shape)} ({reason})."
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
    return value.encode("utf-8", "replace")  # a JSON escape may be half of a surrogate pair


def _jsonable(name: str, array: np.ndarray) -> Any:
    """An array as JSON: strings as UTF-8, or base64 if the output's name ends in _bytes."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        if not isinstance(value, bytes):
            return value
        coded = name.endswith("_bytes")
        return {"b64": base64.b64encode(value).decode()} if coded else value.decode("utf-8", "replace")

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
