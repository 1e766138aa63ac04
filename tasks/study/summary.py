"""The runs of a protocol: the best, the median and the spread as tables, as JSON and as a plot."""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_keras.tasks.report_tables import Table
from bert_keras.tasks.study.paper_figures import paper_table

ADVICE = "more epochs, --bias-correction, a lower learning rate or more restarts help"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One finished run.

    measures: of the epoch that it keeps, on the dev split, by name; empty if its loss diverged
    degenerate: why it failed to learn, or None
    """

    learning_rate: float
    batch_size: int
    epochs: int
    seed: int
    path: pathlib.Path
    measures: Mapping[str, float]
    degenerate: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ensemble:
    """The mean of several runs' outputs.

    members: the runs, the best first
    measures: on the dev split
    """

    members: tuple[Outcome, ...]
    measures: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """All runs of one task.

    measure: the name of the main measure
    best: the run with the highest main measure, among runs that are not degenerate if there are any
    median, lowest, highest: of the main measure over runs that are not degenerate; None if all are degenerate
    measures: of the best run, for every validation split
    ensemble: of the best runs, if it was asked for
    """

    task: str
    measure: str
    outcomes: tuple[Outcome, ...]
    best: Outcome
    median: float | None
    lowest: float | None
    highest: float | None
    measures: Mapping[str, Mapping[str, float]]
    ensemble: Ensemble | None = None

    @property
    def score(self) -> float:
        """The task's score in GLUE: the mean over measures and splits."""
        return statistics.fmean(value for values in self.measures.values() for value in values.values())


def ranked(outcomes: Sequence[Outcome], *, measure: str) -> list[Outcome]:
    """The runs with a measure from the best to the worst: runs that learned come before degenerate ones."""
    measured = [outcome for outcome in outcomes if outcome.measures]
    return sorted(measured, key=lambda one: (one.degenerate is not None, -one.measures[measure]))


def as_json(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The content of results.json."""
    tasks = {}
    for summary in summaries:
        best, together = summary.best, summary.ensemble
        chosen = {
            "learning_rate": best.learning_rate,
            "batch_size": best.batch_size,
            "epochs": best.epochs,
            "seed": best.seed,
        }
        tasks[summary.task] = {
            "measure": summary.measure,
            "best": chosen,
            "measures": summary.measures,
            "median": summary.median,
            "lowest": summary.lowest,
            "highest": summary.highest,
            "ensemble": together
            and {"runs": [str(one.path) for one in together.members], "measures": dict(together.measures)},
            "runs": [dataclasses.asdict(one) | {"path": str(one.path)} for one in summary.outcomes],
            "degenerate": sum(outcome.degenerate is not None for outcome in summary.outcomes),
        }
    return {"tasks": tasks}


def tables(summaries: Sequence[Summary], *, title: str = "protocol") -> list[Table]:
    """Tables to print: a row for each task, each ensemble and each degenerate run, and the paper's own results."""
    label, heading = _labels([outcome for summary in summaries for outcome in summary.outcomes])
    rows, stuck, together = [], [], []
    for summary in summaries:
        bad = [outcome for outcome in summary.outcomes if outcome.degenerate is not None]
        best = ", ".join(_spelled(values) for values in summary.measures.values())
        spread = "-" if summary.median is None else f"{summary.lowest:.4f} - {summary.highest:.4f}"
        median = "-" if summary.median is None else f"{summary.measure} {summary.median:.4f}"
        rows.append(
            (summary.task, len(summary.outcomes), len(bad), best, label(summary.best), median, spread)
        )
        stuck += [(summary.task, label(one), one.degenerate) for one in bad]
        if summary.ensemble is not None:
            alone = [member.measures[summary.measure] for member in summary.ensemble.members]
            members = f"{summary.measure} {statistics.fmean(alone):.4f}, best {max(alone):.4f}"
            together.append((summary.task, len(alone), _spelled(summary.ensemble.measures), members))
    columns = ("task", "runs", "degenerate", "best on dev", heading, "median", "spread")
    made = [Table(f"{title}; median and spread leave out degenerate runs", columns, rows)]
    if together:
        heads = ("task", "members", "ensemble on dev", "members alone, mean")
        made.append(Table("ensembles of the best runs, chosen on the same dev split", heads, together))
    if stuck:
        made.append(Table(f"degenerate runs; {ADVICE}", ("task", heading, "why"), stuck))
    paper = paper_table([summary.task for summary in summaries])
    return [*made, paper] if paper else made


def _spelled(measures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in measures.items())


def _labels(outcomes: Sequence[Outcome]) -> tuple[Callable[[Outcome], str], str]:
    """Outcome -> the settings that vary in the grid as text, and their names; always the rate and the seed."""
    names = {"learning_rate": "rate", "batch_size": "batch", "epochs": "epochs", "seed": "seed"}
    varied = [
        name
        for name in names
        if name in ("learning_rate", "seed") or len({getattr(outcome, name) for outcome in outcomes}) > 1
    ]

    def label(outcome: Outcome) -> str:
        values = (getattr(outcome, name) for name in varied)
        return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)

    return label, ", ".join(names[name] for name in varied)


def draw(summaries: Sequence[Summary], path: pathlib.Path) -> None:
    """Plots runs over their learning rates, one panel per task: crosses are degenerate; runs without a measure are left out."""
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(summaries) + 1, 3), layout="constrained")
    panels = figure.subplots(1, len(summaries), squeeze=False)[0]
    for panel, summary in zip(panels, summaries, strict=True):
        for outcome in summary.outcomes:
            marker = "o" if outcome.degenerate is None else "x"
            color = "tab:orange" if outcome is summary.best else "tab:blue"
            value = outcome.measures.get(summary.measure, math.nan)
            panel.plot(f"{outcome.learning_rate:g}", value, marker, color=color, alpha=0.7)
        panel.set_title(summary.task)
        panel.set_xlabel("learning rate")
        panel.set_ylabel(f"{summary.measure} on dev")
    figure.savefig(path, dpi=120)
