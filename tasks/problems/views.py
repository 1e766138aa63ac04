"""Tables that the reports of several kinds of task share: a measure by group, and confusions of names.

In: a value or a pair of names for each example. Out: tables with charts; none where the examples are one group.
"""

import bisect
import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bert_keras.tasks.report import Table

NAMES_SHOWN = 12  # of a confusion: a square of more is too small to read
OTHER = "(other)"
PARTS = 5  # of the numbers from 0 to 1


def by_group(
    title: str,
    columns: tuple[str, str, str],
    groups: Sequence[str],
    values: np.ndarray,
    *,
    about: str,
    order: Sequence[str] = (),
) -> Iterator[Table]:
    """Yields the mean value and the number of examples of each group.

    columns: the names of the groups, of the value, and of the examples
    groups: the name of each example's group, [N]
    values: float or bool [N]
    order: of the groups; () puts the largest group first
    """
    count, total = collections.Counter(groups), collections.Counter[str]()
    for group, value in zip(groups, values.tolist(), strict=True):
        total[group] += value
    names = order or [name for name, _ in count.most_common()]
    rows = [(name, total[name] / count[name], count[name]) for name in names if count[name]]
    if len(rows) > 1:
        yield Table(title, columns, rows, "bars", about)


def by_fraction(
    title: str, columns: tuple[str, str, str], fractions: np.ndarray, values: np.ndarray, *, about: str
) -> Iterator[Table]:
    """Yields `by_group` of the PARTS equal parts from 0 to 1. fractions: float [N], 0 to 1."""
    names = [f"{part / PARTS:.1f} to {(part + 1) / PARTS:.1f}" for part in range(PARTS)]
    groups = [names[part] for part in np.minimum((fractions * PARTS).astype(int), PARTS - 1)]
    yield from by_group(title, columns, groups, values, about=about, order=names)


def size_groups(lows: Sequence[int]) -> list[str]:
    """The names of groups of sizes: "1", "2 to 4", "5 or more". lows: the lowest size of each group, rising."""
    bounds = itertools.pairwise(lows)
    names = [f"{low}" if low == after - 1 else f"{low} to {after - 1}" for low, after in bounds]
    return [*names, f"{lows[-1]} or more"]


def name_sizes(sizes: Iterable[float], lows: Sequence[int]) -> list[str]:
    """The group of each size, from `size_groups`; a size under all others is in the first group."""
    names = size_groups(lows)
    return [names[max(bisect.bisect(lows, size) - 1, 0)] for size in sizes]


def confusion(title: str, pairs: Mapping[tuple[str, str], int], *, about: str) -> Iterator[Table]:
    """Yields the number of each pair of names, the first one in rows, the second one in columns.

    The NAMES_SHOWN most frequent names stand alone, and OTHER for the rest.
    """
    frequent = collections.Counter[str]()
    for names, count in pairs.items():
        for name in {*names}:
            frequent[name] += count
    shown = [name for name, _ in frequent.most_common(NAMES_SHOWN)]
    shown.sort(key=lambda name: (name.startswith("("), name))  # "(none)" comes last
    matrix = collections.Counter[tuple[str, str]]()
    for (first, second), count in pairs.items():
        matrix[first if first in shown else OTHER, second if second in shown else OTHER] += count
    rest = [OTHER] if len(frequent) > NAMES_SHOWN else []
    rows, columns = (
        [name for name in shown + rest if any(pair[side] == name for pair in matrix)] for side in (0, 1)
    )
    if len(frequent) > 1:
        cells = [(row, *(matrix[row, column] for column in columns)) for row in rows]
        yield Table(title, ("", *columns), cells, "heat", about)
