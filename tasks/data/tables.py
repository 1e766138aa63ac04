"""Reads tables of text: CSV, TSV, JSON and Parquet files, by the ends of their names.

.csv      a header; commas; quotes as in RFC 4180, so that a quoted field may hold commas, line ends and doubled quotes
.tsv      a header; tabs; quotes are text, as in GLUE's files, unless a CSV writer wrote the file (quoting.py)
.jsonl    one object per line, .ndjson too; .json, an array of objects
.parquet  columns of strings, numbers or lists

Files of text are UTF-8, with or without a byte order mark, and may be gzipped (.csv.gz); blank lines are skipped.
"""

import contextlib
import csv
import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError, MissingFileError, first_line, first_names
from bert_keras.io.json_files import parse_json, shortened
from bert_keras.io.paths import did_you_mean, is_remote, to_path
from bert_keras.tasks.data.quoting import QUOTE, is_quoted_as_csv
from bert_keras.tasks.data.sources import (
    MAX_LINE_BYTES,
    MAX_UNPACKED_BYTES,
    bounded_lines,
    check_input,
    check_text,
    decoded_lines,
    ended_lines,
    listing,
    nonblank_lines,
    read_text,
    without_end,
)

ENDINGS = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
JSON = {".jsonl": "one object per line", ".json": "an array of objects"}
PACKED = ".gz"
SAMPLE = 1_000  # lines that are compared with the header
MAX_RATIO = 100  # of a Parquet file's content to its size, over MAX_UNPACKED_BYTES
_SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon"}


class TableRow(NamedTuple):
    """One row of a table.

    where: the file and the line from 1, or the row of Parquet from 1, for errors
    idx: the position among the rows, from 0; a row that is skipped counts
    values: strings; in JSON and Parquet, any values; None in an optional column that is not there
    """

    where: str
    idx: int
    values: list[Any]


def get_ending(path: Path) -> str | None:
    """The member of ENDINGS that a file's name ends in, before ".gz"; None for another name."""
    name = path.name.lower().removesuffix(PACKED).replace(".ndjson", ".jsonl")
    return next((ending for ending in ENDINGS if name.endswith(ending)), None)


def find_table(folder: Path, stems: Sequence[str]) -> Path:
    """The only table in a folder with one of these names. Raises MissingFileError for none, BertKerasError for several."""
    names = [stem + ending + packed for stem in stems for ending in ENDINGS for packed in ("", PACKED)]
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        expected = f"{stems[0]}{ENDINGS[0]}, {', '.join(ENDINGS[1:-1])} or {ENDINGS[-1]}"
        raise MissingFileError(f"{folder} has no {expected}; it has {listing(folder)}.")
    if len(found) > 1:
        named = " and ".join(path.name for path in found)
        raise BertKerasError(f"{folder} has {named}, which may differ; give the one to read as a file.")
    return found[0]


def column_names(path: Path, *, quoting: str | None = None) -> list[str]:
    """The names of the columns: those of the first line, of the first JSON object or of the Parquet schema.

    quoting: as `read_table` takes it

    Raises MissingFileError for a missing file, BertKerasError for an empty one and for another ending.
    """
    ending = _checked_ending(path)
    if ending == ".parquet":
        with _open_parquet(path) as file:
            return list(file.schema_arrow.names)
    first = next(_records(path, ending, quoted=_is_quoted(path, ending, quoting)), None)
    if first is None:
        lines = f"{_separated(path, ending)}lines under a header"
        raise BertKerasError(f"{path} is empty; give {JSON.get(ending, lines)}.")
    return list(first[1])


def read_table(
    path: Path,
    columns: Sequence[str],
    *,
    optional: Sequence[str] = (),
    header: Sequence[str] | None = None,
    skip_short_lines: bool = False,
    one_line: bool = False,
    quoting: str | None = None,
    advice: str = "",
) -> Iterator[TableRow]:
    """Yields the rows with the values of these columns and then of the optional ones, in this order.

    header: the names of a .tsv whose first line has none of these columns, and so is no header
    skip_short_lines: skip lines with too few columns, with one warning
    one_line: refuse a row of a .csv that has several lines, because two stray quotes would join all rows between them
    quoting: of a .tsv, "csv" or "text": its quotes are CSV's, or text; None decides by the file, and warns where they are CSV's
    advice: what to do about a missing column, for its error

    Raises as `column_names`; BertKerasError, with the line, for a missing or repeated column, a line with another number of
    columns, an unclosed quote, and text that is neither JSON nor UTF-8.
    """
    ending, names = _checked_ending(path), column_names(path, quoting=quoting)
    quoted = _is_quoted(path, ending, quoting)
    if quoted and quoting is None and ending == ".tsv":
        warnings.warn(
            f"{path}: quotes around cells are left out, as in CSV; --quoting text keeps them", stacklevel=2
        )
    headerless = header is not None and ending == ".tsv" and not {*columns} & {*names}
    if header is not None and headerless:
        names = list(header)
    for column in (*columns, *optional):
        if names.count(column) != 1 and (column in columns or column in names):
            lacking = [name for name in columns if name not in names]
            many = "more than one column" if column in names else f"no column{'s' * (len(lacking) > 1)}"
            wrong = [column] if column in names else lacking
            there = first_names(map(shortened, names), 30)
            hints = [*([] if headerless else _doubts(path, ending, names, quoted)), *filter(None, [advice])]
            raise BertKerasError(
                f"{path} has {many} {', '.join(map(repr, wrong))}; the {_separated(path, ending)}columns are {there}"
                f"{''.join(f'; {hint}' for hint in hints)}."
            )
    if ending in JSON:
        return _json_rows(path, columns, optional)
    chosen = [column if column in names else None for column in (*columns, *optional)]
    if ending == ".parquet":
        return _parquet_rows(path, chosen)
    records = _records(path, ending, quoted=quoted, one_line=one_line)
    if not headerless:
        next(records)
    return _fitting_rows(path, records, names, chosen, skip_short_lines=skip_short_lines)


def _delimiter(path: Path, ending: str) -> str:
    """The mark between columns, "" without one. A .csv may have semicolons, as spreadsheets write it in much of Europe."""
    if ending != ".csv":
        return "\t" if ending == ".tsv" else ""
    first = next((line for _, line in ended_lines(path)), "")
    return ";" if ";" in first and "," not in first else ","


def _separated(path: Path, ending: str) -> str:
    return f"{_SEPARATORS[mark]}-separated " if (mark := _delimiter(path, ending)) else ""


def _doubts(path: Path, ending: str, names: Sequence[str], quoted: bool) -> Iterator[str]:
    """Yields reasons to doubt the names in the first line of a file of text: another separator, or data in place of names."""
    if not (mark := _delimiter(path, ending)):
        return
    if len(names) == 1 and any(other in names[0] for other in ",;\t"):
        yield f"separate columns by {_SEPARATORS[mark]}s"
    elif _is_data(names, _records(path, ending, quoted=quoted)):
        yield "is the first line a header? It looks like data: write the names of the columns above it"


def _is_data(names: Sequence[str], records: Iterator[tuple[int, Any]]) -> bool:
    """True if a name in the first line is a number, has more than three words, or is a value of its column too."""
    if any(len(name.split()) > 3 or name.replace(".", "", 1).isdecimal() for name in names):
        return True
    with contextlib.suppress(BertKerasError):  # of a later line
        for _, values in itertools.islice(records, 1, SAMPLE):
            if any(name and name == value for name, value in zip(names, values, strict=False)):
                return True
    return False


def _checked_ending(path: Path) -> str:
    """Raises BertKerasError for another ending, MissingFileError, with the files of the folder, for a missing file."""
    ending = get_ending(path)
    if ending is None:
        raise BertKerasError(f"{path} does not end in {', '.join(ENDINGS)}; give such a file.")
    if not path.is_file():
        there = f"; it has {listing(path.parent)}" if path.parent.is_dir() else ""
        raise MissingFileError(f"{path.parent} has no {path.name}{did_you_mean(path) or there}.")
    return ending


def checked_text(value: Any, where: str, column: str) -> str:
    """A value that is text. Raises BertKerasError for another value, and for half of a character."""
    if not isinstance(value, str):
        given = "is empty" if value is None else f"is {shortened(value)}, not text"
        raise BertKerasError(f"{where}: {column!r} {given}; give text.")
    check_text(f"{where}: {column!r}", value)
    return value


# -----------------------------------------------------------------------------------------------------------
# Text


def _is_quoted(path: Path, ending: str, quoting: str | None) -> bool:
    """True for a file with CSV's quotes. quoting: as `read_table` takes it."""
    if ending != ".tsv" or quoting is not None:
        return ending == ".csv" or (ending == ".tsv" and quoting == "csv")
    csv.field_size_limit(sys.maxsize)
    there = any(QUOTE in line for _, line in ended_lines(path))
    return there and is_quoted_as_csv(line for _, line in ended_lines(path))


def _records(path: Path, ending: str, *, quoted: bool, one_line: bool = False) -> Iterator[tuple[Any, Any]]:
    """The number of its first line and the values of each record: a list; in JSON its place and a dict.

    quoted: True for CSV's quotes; one_line: see `read_table`
    """
    if quoted:
        return _csv_records(path, delimiter=_delimiter(path, ending), one_line=one_line)
    if ending in JSON:
        return _json_records(path)
    return ((number, line.split("\t")) for number, line in nonblank_lines(path, spaces=False))


def _csv_records(path: Path, *, delimiter: str, one_line: bool) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)
    start, size = 1, 0

    def lines() -> Iterator[str]:
        nonlocal size
        for _, line in ended_lines(path):
            size, wrong = size + len(line), ""
            if one_line and size > len(line):
                wrong = "a quote stays open; give quotes in pairs, within a line"
            elif size > MAX_LINE_BYTES:
                wrong = f"the row has over {MAX_LINE_BYTES:,} bytes; close its quote, or give shorter texts"
            if wrong:
                raise BertKerasError(f"{path}, line {start}: {wrong}.")
            yield line

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        for values in reader:
            if values:
                yield start, values
            start, size = reader.line_num + 1, 0
    except csv.Error as error:
        message = next((ours for theirs, ours in _CSV_ERRORS.items() if theirs in str(error)), error)
        raise BertKerasError(f"{path}, line {start}: {message}.") from error


# Parts of Python's messages -> our words.
_CSV_ERRORS = {
    "unexpected end of data": "a quote is opened in this row and not closed; close it, or double a quote that is text",
    "new-line character": "there is a carriage return outside quotes; save the file with newlines",
    "expected after '\"'": "there is text after a closing quote; double a quote that is text, inside a quoted field",
}


def _fitting_rows(
    path: Path,
    records: Iterator[tuple[int, list[str]]],
    names: Sequence[str],
    columns: Sequence[str | None],
    *,
    skip_short_lines: bool,
) -> Iterator[TableRow]:
    """Yields the rows that have as many values as there are names; others are an error, or skipped. columns: None: not there."""
    places = [None if column is None else names.index(column) for column in columns]
    short = []  # a skipped line keeps its idx, as in TensorFlow Datasets
    for idx, (number, values) in enumerate(records):
        if len(values) == len(names):
            chosen = [None if place is None else values[place] for place in places]
            yield TableRow(f"{path}, line {number}", idx, chosen)
        elif skip_short_lines and len(values) < len(names):
            short.append(number)
        else:
            raise BertKerasError(
                f"{path}, line {number}: {len(values)} column(s), expected {len(names)}, separated by "
                f"{_SEPARATORS[_delimiter(path, get_ending(path) or '')]}s: {', '.join(names)}."
            )
    if short:
        warnings.warn(
            f"{path}: skipped {len(short)} lines with fewer than {len(names)} columns, first line {short[0]}",
            stacklevel=2,
        )


def _json_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place and the fields of each object."""
    wanted = JSON[get_ending(path) or ""]
    if wanted == JSON[".jsonl"]:
        lines = ((f"{path}, line {number}", line) for number, line in nonblank_lines(path))
        values = ((where, parse_json(line, source=where)) for where, line in lines)
    else:
        text = read_text(path, limit=MAX_UNPACKED_BYTES, instead=f"write {JSON['.jsonl']} (.jsonl)")
        array = parse_json(text or "[]", source=path)
        if not isinstance(array, list):
            raise BertKerasError(f"{path} holds a JSON {type(array).__name__}; give {wanted}.")
        values = ((f"{path}, object {number}", value) for number, value in enumerate(array, start=1))
    for where, value in values:
        if not isinstance(value, dict):
            raise BertKerasError(f"{where}: a JSON {type(value).__name__}; give {wanted}.")
        yield where, value


def _json_rows(path: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[TableRow]:
    for idx, (where, record) in enumerate(_json_records(path)):
        if missing := [column for column in columns if column not in record]:
            there = ", ".join(map(repr, record)) or "none"
            raise BertKerasError(f"{where}: no {missing[0]!r}; the fields are {there}.")
        yield TableRow(where, idx, [record.get(column) for column in (*columns, *optional)])


# -----------------------------------------------------------------------------------------------------------
# Parquet


def _open_parquet(path: Path) -> Any:
    """The open file of a Parquet table. Raises BertKerasError for another file."""
    import pyarrow.parquet  # slow to import, and not needed otherwise

    try:
        file = pyarrow.parquet.ParquetFile(path.open("rb") if is_remote(path) else path)
        _ = file.schema_arrow  # the names of the columns, which may not be UTF-8
        return file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BertKerasError(
            f"{path} is not a Parquet file ({first_line(error)}); write it again."
        ) from error


def _parquet_rows(path: Path, columns: Sequence[str | None]) -> Iterator[TableRow]:
    """columns: None stands for an optional column that the file lacks."""
    import pyarrow

    limit, unpacked, idx = max(MAX_UNPACKED_BYTES, MAX_RATIO * path.stat().st_size), 0, 0
    there = [column for column in columns if column is not None]
    try:
        with _open_parquet(path) as file:
            for batch in file.iter_batches(batch_size=1024, columns=there):
                unpacked += batch.nbytes
                if unpacked > limit:
                    raise BertKerasError(
                        f"{path} unpacks to over {limit:,} bytes; write it as .csv, if you trust it."
                    )
                values = [
                    [None] * len(batch) if column is None else batch.column(column).to_pylist()
                    for column in columns
                ]
                for row in zip(*values, strict=True):
                    yield TableRow(f"{path}, row {idx + 1}", idx, list(row))
                    idx += 1
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BertKerasError(f"{path} cannot be read ({first_line(error)}); write it again.") from error


# -----------------------------------------------------------------------------------------------------------
# Examples for `predict` and `fill-mask`

STANDARD_INPUT = "-"
FORMATS_NOTES = """input files, in UTF-8:
  .csv      a header, commas; quotes as in RFC 4180: a quoted field may hold commas, line ends and doubled quotes
  .tsv      a header, tabs; quotes are text, unless a CSV writer such as pandas wrote the file (--quoting decides)
  .jsonl    one object per line; .json: an array of objects, or, for questions, SQuAD's form
  .parquet  columns of text
            The task's text columns are read, under the names of the training file or of the model's inputs. Blank
            lines are skipped. The endings of a choice are columns endings0, endings1, ..., or a list in endings.
  any other one example per line; a blank line is an empty text. Two texts are separated by a tab; further
            tabs belong to the second text. Lines end in \\n or \\r\\n.
Standard input is read as "any other". The output has each text with its prediction, in the order of the input.

"""


def read_examples(
    path: str,
    names: Sequence[str],
    lists: Mapping[str, int] | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    quoting: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields examples by the task's names.

    path: a file; - is standard input
    names: the texts of an example
    lists: names of lists of texts, with their lengths
    columns: other names that the columns of texts may have in a table
    quoting: as `read_table` takes it

    Raises MissingFileError for a missing file, BertKerasError with the number of the wrong line.
    """
    lists = lists or {}
    if path == STANDARD_INPUT:
        yield from _examples_of_lines(sys.stdin.buffer, "standard input", names, lists)
        return
    file = to_path(path)
    check_input(file)
    if get_ending(file) is not None:
        yield from _examples_of_table(file, names, lists, columns or {}, quoting)
        return
    with file.open("rb") as stream:  # may be a pipe
        yield from _examples_of_lines(bounded_lines(stream, path), path, names, lists)


def _examples_of_lines(
    lines: Iterable[bytes], source: str, names: Sequence[str], lists: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Examples of text without names: a line each, with tabs between its texts."""
    counts = [lists.get(name, 1) for name in names]
    for number, line in decoded_lines(lines, source):
        texts = without_end(line).split("\t", sum(counts) - 1)
        if len(texts) < sum(counts):
            raise BertKerasError(
                f"{source}, line {number}: {len(texts)} text(s), expected {sum(counts)}, separated by tabs: "
                f"{', '.join(names)}; or name the columns in a .csv, .tsv, .jsonl or .parquet."
            )
        rest = iter(texts)
        split = {name: [*itertools.islice(rest, count)] for name, count in zip(names, counts, strict=True)}
        yield {name: found if name in lists else found[0] for name, found in split.items()}


def _examples_of_table(
    path: Path,
    names: Sequence[str],
    lists: Mapping[str, int],
    columns: Mapping[str, str],
    quoting: str | None,
) -> Iterator[dict[str, Any]]:
    there = column_names(path, quoting=quoting)
    chosen = {}  # name -> its columns
    for name in names:
        own = columns.get(name, name)
        chosen[name] = [own if own in there or name not in there else name]
        if name in lists and f"{name}0" in there:
            chosen[name] = [f"{name}{i}" for i in range(lists[name])]
    read = [column for found in chosen.values() for column in found]
    for where, _, values in read_table(path, read, quoting=quoting):
        rest = iter(values)
        row = {name: [*itertools.islice(rest, len(found))] for name, found in chosen.items()}
        for name, count in lists.items():
            if len(chosen[name]) == 1 and isinstance(row[name][0], list):
                row[name] = row[name][0]
            if len(row[name]) != count:
                raise BertKerasError(f"{where}: {name!r} has {len(row[name])} text(s); give {count}.")
        checked = {name: [checked_text(text, where, name) for text in texts] for name, texts in row.items()}
        yield {name: texts if name in lists else texts[0] for name, texts in checked.items()}
