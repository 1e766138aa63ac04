"""Quotes in tab-separated files: text, as in GLUE's files, or CSV's, as pandas and spreadsheets write them.

He said "no"            text: a CSV writer would have quoted the cell
"He said ""no"", twice" CSV, if every other cell of the file is as a CSV writer writes it
"""

import csv
from collections.abc import Iterable, Iterator

QUOTE = '"'
_SPECIAL = '"\t\r\n'  # a cell with one of these is quoted
_MAY = ","  # spreadsheets quote a cell with a comma too


def is_quoted_as_csv(lines: Iterable[str]) -> bool:
    """True for a tab-separated file that a CSV writer wrote, with a quoted cell that reads otherwise as text.

    lines: with their ends
    """
    raw: list[str] = []

    def record() -> Iterator[str]:
        for line in lines:
            raw.append(line)
            yield line

    width, everywhere, found = 0, False, False
    try:
        for values in csv.reader(record(), delimiter="\t", strict=True):
            text = "".join(raw).rstrip("\r\n")
            raw.clear()
            if not values:
                continue
            if not width:
                width, everywhere = len(values), text == "\t".join(map(_quoted, values))
                found = everywhere
            if len(values) != width or not _is_written(text, values, everywhere=everywhere):
                return False
            found |= any(any(mark in value for mark in _SPECIAL) for value in values)
    except csv.Error:
        return False
    return found


def _quoted(value: str) -> str:
    return QUOTE + value.replace(QUOTE, 2 * QUOTE) + QUOTE


def _is_written(text: str, values: Iterable[str], *, everywhere: bool) -> bool:
    """True if a CSV writer writes these values so. everywhere: True if it may quote each cell."""
    cells, at = list[str](), 0
    for value in values:
        plain, quoted = value, _quoted(value)
        if any(mark in value for mark in _SPECIAL):
            plain = quoted
        chosen = quoted if text.startswith(quoted, at) and (everywhere or _MAY in value) else plain
        cells.append(chosen)
        at += len(chosen) + 1
    return text == "\t".join(cells)
