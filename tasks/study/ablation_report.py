"""The parts of an ablation's report: rows in, their spread, their orderings and a plot out."""

import itertools
import math
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.tasks.metrics import Ordering, ordering
from bert_keras.tasks.report_tables import Table

Measures = Mapping[str, Sequence[float]]  # task -> the measure of each restart, in percent


class Compared(NamedTuple):
    """Two rows of an ablation on one task, the better one of the paper first."""

    task: str
    better: str
    worse: str
    found: Ordering


def compared(rows: Mapping[str, Measures], pairs: Iterable[tuple[str, str, str]]) -> Iterator[Compared]:
    """Compares rows; skips pairs with a row without runs.

    pairs: task, better row and worse row
    """
    for task, better, worse in pairs:
        first, second = rows[better][task], rows[worse][task]
        if first and second:
            yield Compared(task, better, worse, ordering(first, second))


def orderings_as_json(orderings: Iterable[Compared]) -> list[dict[str, Any]]:
    """For results.json; differences in percent."""
    return [
        {"task": one.task, "better": one.better, "worse": one.worse, **one.found._asdict()}
        | ({"error": None} if math.isnan(one.found.error) else {})  # JSON has no NaN
        for one in orderings
    ]


def orderings_table(orderings: Iterable[Compared]) -> Table:
    """A line for each pair."""
    columns = ("task", "expected order", "difference", "standard error", "here")
    rows = [
        (
            one.task,
            f"{one.better} over {one.worse}",
            f"{one.found.difference:+.2f}",
            f"{one.found.error:.2f}",
            one.found.verdict,
        )
        for one in orderings
    ]
    return Table("orderings; they hold or fail at the 5 % level (Welch's t-test)", columns, rows)


def spelled(values: Sequence[float], figure: float | None = None) -> str:
    """The mean, the standard deviation and, in brackets, the paper's figure."""
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}" + ("" if figure is None else f" ({figure})")


def draw_rows(
    rows: Mapping[str, Measures], path: pathlib.Path, *, baselines: Mapping[str, float] | None = None
) -> None:
    """Draws a panel for each task, with a line of dots for each row; baselines are dotted lines."""
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure

    tasks = [*dict.fromkeys(itertools.chain(*rows.values()))]
    names = [*rows][::-1]  # the first row is at the top
    across = min(len(tasks), 4)
    down = -(-len(tasks) // across)
    figure = Figure(figsize=(3.6 * across + 1.5, (0.35 * len(rows) + 1.2) * down + 0.3), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flat
    for panel, task in itertools.zip_longest(panels, tasks):
        if task is None:
            panel.set_visible(False)
            continue
        for y, name in enumerate(names):
            values = rows[name][task]
            panel.plot(values, [y] * len(values), "o", color="tab:blue", alpha=0.6)
        if baselines is not None:
            panel.axvline(baselines[task], color="gray", linestyle=":")
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(-0.6, len(rows) - 0.4)
        panel.set(title=task, xlabel="dev, %")
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
