"""Values of predictions as plain Python, and tables to print."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

ERRORS_SHOWN = 10  # errors that a report lists


class Table(NamedTuple):
    """A table that `bert-keras evaluate` prints after the measures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def plain(value: Any) -> Any:
    """Turns arrays, NumPy numbers and bytes into lists, numbers and strings; replaces bytes that are not UTF-8."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def cell(value: Any) -> str:
    """The text of a plain value in a table."""
    if isinstance(value, list):
        return " ".join(map(cell, value))
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def list_errors(
    wrong: np.ndarray,
    confidence: np.ndarray,
    columns: Sequence[str],
    describe: Callable[[int], Sequence[Any]],
    *,
    count: int | None = None,
) -> Iterator[Table]:
    """Yields a table of the most confident errors, if there are errors.

    wrong: the rows of all errors, int [E]
    confidence: [N]
    describe: row -> its cells before the confidence
    count: the number of examples; None is N
    """
    rows = [(*describe(i), float(confidence[i])) for i in most_confident(wrong, confidence)]
    title = (
        f"the most confident of {len(wrong)} errors in {len(confidence) if count is None else count} examples"
    )
    if rows:
        yield Table(title, tuple(columns), rows)


def most_confident(rows: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """The ERRORS_SHOWN rows with the highest confidence, in falling order. rows: int [E]; confidence: [N]."""
    return rows[np.argsort(-confidence[rows], kind="stable")][:ERRORS_SHOWN]
