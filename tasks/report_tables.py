"""Values of predictions as plain Python, and tables to print."""

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


def most_confident(rows: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """The ERRORS_SHOWN rows with the highest confidence, in falling order. rows: int [E]; confidence: [N]."""
    return rows[np.argsort(-confidence[rows], kind="stable")][:ERRORS_SHOWN]
