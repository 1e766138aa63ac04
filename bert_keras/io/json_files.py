"""Reads JSON files within limits, and checks the type of each field before it is used.

In: a file, or text. Out: plain values, or BertKerasError in one line: the file, the field, the value found, the values wanted.
"""

import json
import math
import operator
import pathlib
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.paths import to_path

MAX_JSON_BYTES = 50_000_000  # of one file; the largest published tokenizer.json has 33 million
MAX_JSON_DEPTH = 64  # lists and objects inside each other
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # may be half a character, an unpaired surrogate
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shortened(value: Any) -> str:
    """A value for an error, cut to one line."""
    return _SHORT.repr(value)


def parse_json(text: str | bytes, *, source: object, form: str = "JSON") -> Any:
    """The value of JSON text.

    Raises BertKerasError, prefixed with `source`, for text that is not JSON or is nested too deep.
    """
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=unique)
        _check_depth(value)
    except RecursionError as error:
        raise BertKerasError(
            f"{source} is nested too deep; wanted at most {MAX_JSON_DEPTH} lists and objects inside each other."
        ) from error
    except ValueError as error:  # no UTF-8, no JSON, a number of over 4300 digits
        raise BertKerasError(f"{source} is not {form}: {error}.") from error
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in JSON. Raises ValueError for a name that it has twice: readers would take one of the two in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"{shortened(twice)} is there twice in one object")
    return found


def _check_depth(value: Any) -> None:
    """Raises RecursionError over MAX_JSON_DEPTH."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [one for one in level if isinstance(one, list | dict)]
        level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
    if level:
        raise RecursionError


def read_json(path: str | pathlib.Path) -> Any:
    """The value of a JSON file of at most MAX_JSON_BYTES. Raises FileNotFoundError, or BertKerasError."""
    path = to_path(path)
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}.")
    raw = read_bounded(path, MAX_JSON_BYTES)
    value = parse_json(raw, source=path, form="a JSON file in UTF-8")
    try:
        if _HALF.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise BertKerasError(f"{path}: {half} is half a character; wanted text.") from error
    return value


def read_bounded(path: pathlib.Path, limit: int) -> bytes:
    """The bytes of a file. Raises BertKerasError, before it reads, for a file of more than `limit` bytes."""
    if path.stat().st_size > limit:
        raise BertKerasError(f"{path} has over {limit:,} bytes, which is the limit for such a file.")
    return path.read_bytes()


def read_object(path: str | pathlib.Path) -> dict[str, Any]:
    """The object in a JSON file. Raises as `read_json`, and for a file that holds another type."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise BertKerasError(f"{path} holds {_named(value)}; wanted an object of named fields.")
    return value


def read_optional(path: pathlib.Path) -> dict[str, Any]:
    """The object in a JSON file, as `read_object`; empty if there is no file."""
    return read_object(path) if path.is_file() else {}


_NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


def _named(value: Any) -> str:
    return f"{_NAMES.get(type(value), 'null')}, {shortened(value)}"


# -----------------------------------------------------------------------------------------------------------
# Fields


class FieldType(NamedTuple):
    """The values that a field may have: in words for an error, and as a test."""

    wanted: str
    accepts: Callable[[Any], bool]


def is_integer(value: Any) -> bool:
    """True for a whole number; a bool is not a number."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_json(value: Any, **options: Any) -> str:
    """A value as strict JSON text; NaN and infinity, which JSON does not have, become null. options: of `json.dumps`."""
    return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_finite, value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_finite(value: Any) -> bool:
    """True for a number that float32 can hold: no NaN, no infinity, not 1e308."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return (isinstance(value, int) or math.isfinite(value)) and abs(value) <= 3.4e38


TEXT = FieldType("text", lambda value: isinstance(value, str))
FLAG = FieldType("true or false", lambda value: isinstance(value, bool))
INTEGER = FieldType("a whole number", is_integer)
NUMBER = FieldType("a finite number", is_finite)
MEASURE = FieldType(
    "a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)
)  # NaN too
OBJECT = FieldType("an object of named fields", lambda value: isinstance(value, dict))
ANYTHING = FieldType("a value", lambda value: True)

_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "at_least": ("of at least", operator.ge),
    "over": ("over", operator.gt),
    "at_most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def within(kind: FieldType, **bounds: float | None) -> FieldType:
    """Numbers of a kind inside bounds. bounds: keys of _BOUNDS; None is no bound."""
    known = {name: bound for name, bound in bounds.items() if bound is not None}
    words = [
        f"{_BOUNDS[name][0]} {f'{bound:,}' if isinstance(bound, int) else f'{bound:,g}'}"
        for name, bound in known.items()
    ]
    return FieldType(
        " ".join([kind.wanted, " and ".join(words)]).strip(),
        lambda value: kind.accepts(value) and all(_BOUNDS[name][1](value, known[name]) for name in known),
    )


def integer(least: int, most: int) -> FieldType:
    """Whole numbers in a range, both ends included."""
    return within(INTEGER, at_least=least, at_most=most)


def one_of(values: Collection[str]) -> FieldType:
    """One of several words."""
    return FieldType(
        f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in tuple(values)
    )


def list_of(kind: FieldType) -> FieldType:
    """A list, or one of our tuples, with values of one kind."""
    return FieldType(
        f"a list, each item {kind.wanted}",
        lambda value: isinstance(value, list | tuple) and all(map(kind.accepts, value)),
    )


def fixed_list(*kinds: FieldType) -> FieldType:
    """A list, or one of our tuples, with one value of each kind."""
    return FieldType(
        f"a list of {' and '.join(kind.wanted for kind in kinds)}",
        lambda value: (
            isinstance(value, list | tuple)
            and len(value) == len(kinds)
            and all(kind.accepts(item) for kind, item in zip(kinds, value, strict=True))
        ),
    )


def object_of(kind: FieldType) -> FieldType:
    """An object whose values are of one kind."""
    return FieldType(
        f"an object, each value {kind.wanted}",
        lambda value: isinstance(value, dict) and all(map(kind.accepts, value.values())),
    )


def or_null(kind: FieldType, null: str = "null") -> FieldType:
    """The same kind, or null. null: its name in an error."""
    return FieldType(f"{kind.wanted}, or {null}", lambda value: value is None or kind.accepts(value))


def checked_fields(
    fields: Any,
    kinds: Mapping[str, FieldType],
    *,
    where: object,
    optional: Collection[str] = (),
    others: bool = False,
) -> dict[str, Any]:
    """The fields of an object, each of its kind.

    where: the prefix of the error: the file, or the part of it
    optional: fields that may be missing
    others: True ignores fields that `kinds` does not name

    Raises BertKerasError at the first field that is missing, of another kind or unknown.
    """
    if not isinstance(fields, Mapping):
        raise BertKerasError(f"{where} is {_named(fields)}; wanted an object of {', '.join(kinds)}.")
    for name, kind in kinds.items():
        if name not in fields:
            if name not in optional:
                raise BertKerasError(f"{where}: {name!r} is missing; wanted {kind.wanted}.")
        elif not kind.accepts(fields[name]):
            raise BertKerasError(f"{where}: {name} is {shortened(fields[name])}; wanted {kind.wanted}.")
    if not others and (unknown := [name for name in fields if name not in kinds]):
        raise BertKerasError(
            f"{where}: unknown field {shortened(unknown[0])}; the fields are {', '.join(kinds)}."
        )
    return {name: fields[name] for name in kinds if name in fields}


def known_fields(fields: Any, kinds: Mapping[str, FieldType], *, where: object) -> dict[str, Any]:
    """The fields that `kinds` names, as `checked_fields`; each may be missing, and other fields are ignored."""
    return checked_fields(fields, kinds, where=where, optional=kinds, others=True)
