"""Texts and labels as people have them -> columns: lists, NumPy arrays, data frames, tensors, and the labels in files.

A problem names its texts in `signature`. One text is a list of strings; several texts are a dict or a data frame of columns, a
tuple of columns, or a list of rows.
"""

import itertools
import math
import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras.errors import BertKerasError, first_names
from bert_keras.io.json_files import is_finite, shortened
from bert_keras.tasks.data.sources import check_text

SEPARATOR = "|"  # between the labels of one text, in files without lists


def read_columns(x: Any, names: Sequence[str], *, nested: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns of texts by name, bytes in object arrays [N], or [N, K] for the names in `nested`.

    Raises BertKerasError for a missing column, columns of unequal lengths, and a value that is not text, with its row.
    """
    given = _by_name(x, names)
    columns = {name: _texts(given[name], name, nested=name in nested) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len({*lengths.values()}) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise BertKerasError(f"the columns of texts have unequal lengths ({listed}); give one text a row.")
    if not next(iter(lengths.values())):
        raise BertKerasError("no texts were given; give at least one.")
    return columns


def _by_name(x: Any, names: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(x, Mapping) or hasattr(x, "columns"):  # a data frame
        there = [*(x.columns if hasattr(x, "columns") else x)]
        if missing := [name for name in names if name not in there]:
            raise BertKerasError(
                f"no texts named {', '.join(missing)}; the data has {', '.join(map(str, there))}, "
                f"and the model reads {', '.join(names)}."
            )
        if isinstance(x, Mapping) and (unknown := [name for name in there if name not in names]):
            raise BertKerasError(
                f"the model does not read {', '.join(map(str, unknown))}; it reads {', '.join(names)}."
            )
        return {name: x[name] for name in names}
    if len(names) == 1:
        return {names[0]: x}
    if isinstance(x, tuple) and len(x) == len(names):
        return dict(zip(names, x, strict=True))
    rows = x if isinstance(x, np.ndarray) else list(x) if isinstance(x, Sequence) else []
    whole = len(rows) and all(
        isinstance(row, tuple | list | np.ndarray) and len(row) == len(names) for row in rows
    )
    square = whole and len(rows) == len(names) and isinstance(rows[0], list)
    if whole and not square:
        return dict(zip(names, zip(*rows, strict=True), strict=True))
    given = (
        f"{len(names)} lists of {len(names)}, which may be rows or columns" if square else type(x).__name__
    )
    raise BertKerasError(
        f"the model reads {', '.join(names)}; give a dict or a data frame with these columns, a tuple of {len(names)} "
        f"lists, or a list of tuples; got {given}."
    )


def _texts(values: Any, name: str, *, nested: bool) -> np.ndarray:
    if isinstance(values, str | bytes):
        raise BertKerasError(f"{name} is one string; give a list of strings, for example [{name}].")
    rows = [*list_values(values)]
    if not nested:
        return np.array([_bytes(row, f"{name}, row {i}") for i, row in enumerate(rows)], object)
    counts = {len(list_values(row)) for row in rows}
    if len(counts) > 1:
        raise BertKerasError(
            f"{name}: rows have {min(counts)} to {max(counts)} texts; give each row as many."
        )
    texts = [[_bytes(text, f"{name}, row {i}") for text in list_values(row)] for i, row in enumerate(rows)]
    return np.array(texts, object).reshape(len(rows), -1)


def list_values(values: Any) -> list[Any]:
    """The values of a list, array, data frame's column or tensor. Raises BertKerasError for another object."""
    if hasattr(values, "columns"):
        raise BertKerasError(
            f"a data frame was given with the columns {', '.join(map(str, values.columns))}; give one column, as in "
            'df["label"], or an array: df[names].to_numpy().'
        )
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        one = ", for example [text]" if isinstance(values, str | bytes) else ""
        raise BertKerasError(f"expected a list; got {type(values).__name__}: give a list{one}.")
    if hasattr(values, "numpy"):
        values = values.numpy()
    return values.tolist() if isinstance(values, np.ndarray) else [*values]


def _bytes(text: Any, where: str) -> bytes:
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise BertKerasError(f"{where}: {text!r} is not text; give a string.")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BertKerasError(
            f"{where}: half of a surrogate pair at character {error.start}; write the whole character."
        ) from error


# -----------------------------------------------------------------------------------------------------------
# Labels in Python


def class_resolver(labels: Sequence[str]) -> Callable[[Any], int | None]:
    """A function: the name of a label, or its id -> its id, and None for anything else.

    Where all labels are numbers, such as "1" to "5" or "0.5" and "1.0", a number is a name: 1 and 1.0 are equal.
    """
    ids, numbers = {label: i for i, label in enumerate(labels)}, number_ids(labels)

    def resolve(value: Any) -> int | None:
        value = _as_str(value)
        if isinstance(value, str):
            return ids.get(value)
        if isinstance(value, bool) and not numbers:
            return ids.get(str(value))
        if not isinstance(value, int | float | np.number) or not math.isfinite(value):
            return None
        if numbers:
            return numbers.get(float(value))
        return int(value) if value == int(value) and 0 <= value < len(labels) else None

    return resolve


def number_ids(labels: Sequence[str]) -> dict[float, int]:
    """The id of each label by its number, where all labels are different numbers; else empty."""
    values = [read_number(label) for label in labels]
    known = [value for value in values if value is not None]
    return {value: i for i, value in enumerate(known)} if len({*known}) == len(labels) else {}


def _as_str(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def class_ids(y: Any, labels: Sequence[str]) -> np.ndarray:
    """Class ids int32 [N] from names of labels or from ids, as `class_resolver` takes them.

    Raises BertKerasError, with the row, for anything else.
    """
    rows = list_values(y)
    found = [*map(class_resolver(labels), rows)]
    if None in found:
        row = found.index(None)
        given = _as_str(rows[row])
        row_of = list_values(given) if isinstance(given, list | tuple | np.ndarray) else []
        if len(row_of) == len(labels) and all(one in (0, 1) for one in row_of) and sum(row_of) == 1:
            raise BertKerasError(
                f"the label in row {row} is {shortened(row_of)}, which is one-hot; give ids: np.argmax(y, axis=1)."
            )
        index = "" if number_ids(labels) else f", or its index, a number from 0 to {len(labels) - 1}"
        raise BertKerasError(
            f"label {given!r}, of type {type(given).__name__}, in row {row}; give one of {', '.join(map(repr, labels))}{index}."
        )
    return np.array(found, np.int32)


LARGEST = 1e18  # of a score or a weight: float32 holds its square, which a loss or two weights make


def float32_column(values: Sequence[Any], *, least: float, where: str) -> np.ndarray:
    """Numbers float32 [N]: scores, weights. Raises BertKerasError for a value that is no number from `least` to LARGEST.

    where: opens the error; {} stands for the row
    """
    for row, value in enumerate(values):
        if not isinstance(value, numbers.Real) or not least <= value <= LARGEST:  # type: ignore[operator]
            kind = "finite number" if least < 0 else "finite number of at least 0"
            raise BertKerasError(
                f"{where.format(row)}: {shortened(value)}; give a {kind}, at most {LARGEST:g}."
            )
    return np.array(values, np.float32)


def scores(y: Any) -> np.ndarray:
    """Scores float32 [N]. Raises BertKerasError for a value that is not a finite number, with its row."""
    return float32_column(list_values(y), least=-LARGEST, where="score in row {}")


def label_sets(y: Any, labels: Sequence[str]) -> np.ndarray:
    """Any number of labels for each text as float32 [N, C] of 0 and 1, from lists of names or from such an array."""
    rows = [[*map(_as_str, list_values(row))] for row in list_values(y)]
    found = np.zeros((len(rows), len(labels)), np.float32)
    ids = {label: i for i, label in enumerate(labels)}
    for row, names in enumerate(rows):
        if all(isinstance(name, str) for name in names):
            if unknown := [name for name in names if name not in ids]:
                raise BertKerasError(
                    f"label {unknown[0]!r} in row {row}; give a list of any of {', '.join(map(repr, labels))}."
                )
            found[row, [ids[name] for name in names]] = 1
        elif len(names) == len(labels) and all(value in (0, 1) for value in names):
            found[row] = names
        else:
            raise BertKerasError(
                f"labels {names!r} in row {row}; give a list of names, or a 0 or 1 for each of {', '.join(map(repr, labels))}."
            )
    return found


# -----------------------------------------------------------------------------------------------------------
# Labels in files


def label_parser(
    label_type: str, labels: Sequence[str], bounds: tuple[float, float]
) -> Callable[[Any, str], Any]:
    """(value in a file, where it is) -> label id, score, or 0 and 1 for each label. It raises BertKerasError for any other.

    label_type: "class", "score" or "multi"
    labels: in the spelling of the files
    bounds: the lowest and the highest score
    """
    ids, numbers = {label: i for i, label in enumerate(labels)}, number_ids(labels)
    low, high = bounds

    def parse_class(value: Any, where: str) -> int:
        written = read_label(value, where)
        if written not in ids and (number := read_number(written)) in numbers:
            return numbers[number]
        if written not in ids:
            names = all(read_number(label) is None for label in ids)
            advice = (
                "; write the names in place of numbers" if names and read_number(written) is not None else ""
            )
            raise BertKerasError(
                f"{where}: unknown label {written!r}; the labels are {first_names(ids, 20)}{advice}."
            )
        return ids[written]

    def parse_score(value: Any, where: str) -> float:
        number = read_number(value)
        if number is None or not low <= number <= high:
            span = f" from {low} to {high}" if math.isfinite(high) else ""
            raise BertKerasError(f"{where}: score {shortened(value)} is not a number{span}.")
        return number

    def parse_set(value: Any, where: str) -> np.ndarray:
        found = np.zeros(len(ids), np.float32)
        found[[parse_class(one, where) for one in read_labels(value, where)]] = 1
        return found

    return {"class": parse_class, "score": parse_score, "multi": parse_set}[label_type]


def read_label(value: Any, where: str) -> str:
    """The name of a label in a file: text without surrounding spaces, a number, or true and false."""
    if isinstance(value, str):
        check_text(where, value)
        return value.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and value == value:
        return str(value)
    given = "empty" if value is None or value != value else shortened(value)
    raise BertKerasError(f"{where}: the label is {given}; give one label.")


def read_labels(value: Any, where: str) -> list[str]:
    """Any number of labels: a list, or text with SEPARATOR between them; an empty text has none."""
    if not isinstance(value, str | list):
        raise BertKerasError(
            f"{where}: the labels are {'empty' if value is None else shortened(value)}; give a list, or text with {SEPARATOR} "
            "between labels."
        )
    if isinstance(value, str):
        value = value.split(SEPARATOR) if value.strip() else []
    return [read_label(one, where) for one in value]


def check_separator(names: Collection[str], where: str) -> None:
    """Raises BertKerasError for a label that joins others by another mark than SEPARATOR."""
    for name, mark in itertools.product(names, ",;/"):
        parts = [part.strip() for part in name.split(mark)]
        if len(parts) > 1 and {*parts} <= {*names}:
            raise BertKerasError(
                f"{where}: the label {name!r} joins other labels by {mark!r}; separate labels by {SEPARATOR!r}, as in "
                f"{SEPARATOR.join(parts)!r}."
            )


def read_number(value: Any) -> float | None:
    """The finite number, at most LARGEST, that a value of a file stands for; None if it stands for none."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return float(number) if is_finite(number) and abs(number) <= LARGEST else None
