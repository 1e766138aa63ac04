"""Files of examples for `predict` and `fill-mask`: a file or standard input in, dicts of the task's texts out."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.json_files import short
from bert_keras.io.paths import did_you_mean, to_path
from bert_keras.tasks.data.sources import (
    bounded_lines,
    check_text,
    decoded_lines,
    listing,
    refuse_forms,
    without_end,
)
from bert_keras.tasks.data.tables import column_names, ending_of, read_rows

STANDARD_INPUT = "-"
FORMATS_NOTES = """input files, in UTF-8:
  .csv      a header, commas; quotes as in RFC 4180: a quoted field may hold commas, line ends and doubled quotes
  .tsv      a header, tabs; quotes are text
  .jsonl    one object per line
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
) -> Iterator[dict[str, Any]]:
    """Yields examples by the task's names.

    path: a file; - is standard input
    names: the texts of an example
    lists: names of lists of texts, with their lengths
    columns: other names that the columns of texts may have in a table

    Raises MissingFileError for a missing file, BertKerasError with the number of the wrong line.
    """
    lists = lists or {}
    if path == STANDARD_INPUT:
        yield from _examples_of_lines(sys.stdin.buffer, "standard input", names, lists)
        return
    file = to_path(path)
    if file.is_dir():
        raise MissingFileError(f"no file at {path}, which is a folder with {listing(file)}; give a file.")
    if not file.exists():
        raise MissingFileError(
            f"no file at {path}{did_you_mean(file)}; give a file of examples, or - for standard input."
        )
    if ending_of(file) is not None:
        yield from _examples_of_table(file, names, lists, columns or {})
        return
    refuse_forms(file, (".json", ".ndjson"), "give one JSON object a line, in a file that ends in .jsonl")
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
        yield {
            name: [next(rest) for _ in range(count)] if name in lists else next(rest)
            for name, count in zip(names, counts, strict=True)
        }


def _examples_of_table(
    path: Path, names: Sequence[str], lists: Mapping[str, int], columns: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    there = column_names(path)
    places = {}  # name -> its columns
    for name in names:
        own = columns.get(name, name)
        places[name] = [own if own in there or name not in there else name]
        if name in lists and f"{name}0" in there:
            places[name] = [f"{name}{i}" for i in range(lists[name])]
    for where, _, values in read_rows(path, [column for found in places.values() for column in found]):
        rest = iter(values)
        row = {name: [next(rest) for _ in found] for name, found in places.items()}
        for name in lists:
            if len(places[name]) == 1 and isinstance(row[name][0], list):
                row[name] = row[name][0]
        for name, texts in row.items():
            _check_texts(texts, f"{where}: {name!r}", lists.get(name, 1))
        yield {name: texts if name in lists else texts[0] for name, texts in row.items()}


def _check_texts(texts: Sequence[Any], where: str, count: int) -> None:
    """Raises BertKerasError unless there are as many texts as expected, and all are text."""
    if len(texts) != count:
        raise BertKerasError(f"{where} has {len(texts)} text(s); give {count}.")
    for text in texts:
        if not isinstance(text, str):
            raise BertKerasError(f"{where} is {'empty' if text is None else short(text)}; give text.")
        check_text(where, text)
