"""Files of examples for `predict` and `fill-mask`: lines of bytes in, dicts of the task's texts out."""

import codecs
import contextlib
import csv
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.json_files import parse_json

FORMATS_NOTES = """input files, in UTF-8:
  .tsv .csv   the first line names the columns; blank lines are skipped. The task's text columns are read
  .jsonl      one object per line, with the task's texts by name
              (endings of a choice: columns endings0, endings1, ...; in .jsonl a list)
  any other   one example per line; a blank line is an empty text. Two texts are separated by a tab; further
              tabs belong to the second text. Lines end in \\n or \\r\\n.
Standard input is read as "any other". The output has each text with its prediction, in the order of the input.

"""


def open_input(path: str) -> contextlib.AbstractContextManager[Iterable[bytes]]:
    """Opens a file of examples for reading; `-` is standard input."""
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    if not pathlib.Path(path).exists() or pathlib.Path(path).is_dir():
        raise MissingFileError(f"no file at {path}; give a file of examples, or - for standard input.")
    return open(path, "rb")


def read_examples(
    lines: Iterable[bytes], path: str, names: Sequence[str], lists: Mapping[str, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields examples by the task's names. Raises BertKerasError with the number of the wrong line.

    names: the texts of an example
    lists: names of lists of texts, with their lengths; JSON has a list, other files have columns name0, name1, ...
    """
    number, lists = 0, lists or {}
    rows_of, form = _FORMS.get(pathlib.Path(path).suffix.lower(), _LINES)
    columns = [
        column
        for name in names
        for column in ([f"{name}{i}" for i in range(lists[name])] if name in lists else [name])
    ]

    def texts() -> Iterator[str]:
        nonlocal number
        for number, line in enumerate(lines, start=1):
            yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()

    try:
        for row in rows_of(texts(), columns):
            for name, length in lists.items():
                value = row.get(name)
                if isinstance(value, list) and len(value) == length:
                    row |= {f"{name}{i}": text for i, text in enumerate(value)}
            if missing := [column for column in columns if not isinstance(row.get(column), str)]:
                found = ", ".join(map(str, row)) or "none"
                raise BertKerasError(f"no text in column {' and '.join(missing)}; the columns are {found}")
            for column in columns:
                row[column].encode()  # a JSON escape can stand for half a character
            yield {
                name: [row[f"{name}{i}"] for i in range(lists[name])] if name in lists else row[name]
                for name in names
            }
    except (ValueError, csv.Error) as error:
        source = "standard input" if path == "-" else path
        raise BertKerasError(
            f"{source}, line {number}: {str(error).rstrip('.')}; give {' and '.join(columns)} in UTF-8, {form}."
        ) from error


def _rows_of_lines(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield dict(zip(names, _without_end(line).split("\t", len(names) - 1), strict=False))


def _rows_of_tsv(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    texts = (_without_end(line) for line in lines)
    return _under_names(text.split("\t") for text in texts if text)


def _rows_of_csv(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    # A record is one line: two stray quotes would make one field of all rows between them.
    return _under_names(row for line in lines for row in csv.reader([line], strict=True) if row)


def _under_names(rows: Iterator[list[str]]) -> Iterator[dict[str, Any]]:
    """Yields rows by the names in the first row. Raises BertKerasError on a repeated name or a wrong number of columns."""
    header = next(rows, [])
    if repeated := [name for name in header if header.count(name) > 1]:
        raise BertKerasError(f"more than one column {repeated[0]!r}")
    for row in rows:
        if len(row) != len(header):
            raise BertKerasError(f"{len(row)} column(s), but the header has {len(header)}")
        yield dict(zip(header, row, strict=True))


def _rows_of_jsonl(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            row = parse_json(line, source="the line")
            if not isinstance(row, dict):
                raise BertKerasError(f"a JSON {type(row).__name__}, not an object")
            yield row


# The reader for a suffix, and a description of its files for errors.
_Form = tuple[Callable[[Iterator[str], Sequence[str]], Iterator[dict[str, Any]]], str]
_LINES: _Form = (
    _rows_of_lines,
    "one example per line, with a tab between two texts, or name the texts in a .tsv, .csv or .jsonl",
)
_FORMS: dict[str, _Form] = {
    ".tsv": (_rows_of_tsv, "with the column names in the first line"),
    ".csv": (_rows_of_csv, "with the column names in the first line"),
    ".jsonl": (_rows_of_jsonl, "one object per line"),
}


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")
