"""Reports of a protocol, and the plot of all studies, with a dot for each run.

A protocol has a Summary of each task, with the best run; comparison.py has the report of an ablation. Tables are in percent with
one decimal, results.json has fractions.
"""

import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.tasks.metrics import ONE_SEED, percent
from bert_keras.tasks.report import Table
from bert_keras.tasks.study.grid import Outcome, write_results
from bert_keras.tasks.study.paper import paper_table

PICTURE, COMMONEST = "results.png", "most common answer"
ADVICE = "more epochs, a lower learning rate, more restarts or, where it is off, Adam's bias correction help"


class Dot(NamedTuple):
    """A run in a plot: its measure, a fraction; a degenerate run is a cross, the best run has another color."""

    value: float
    degenerate: bool = False
    best: bool = False


def draw(
    panels: Mapping[str, Mapping[str, Sequence[Dot]]], path: pathlib.Path, *, baselines: Mapping[str, float]
) -> None:
    """Draws a panel for each title, with a line of dots for each row. All axes begin at 0, so that small differences look small.

    baselines: the measure of the most common answer by title, a dotted line
    """
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure

    names = [*dict.fromkeys(itertools.chain(*panels.values()))][::-1]  # the first row is at the top
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    size = (3.6 * across + 1.5, (0.35 * len(names) + 1.2) * down + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    drawn = figure.subplots(down, across, squeeze=False, sharey=True).flat
    for panel, title in itertools.zip_longest(drawn, panels):
        if title is None:
            panel.set_visible(False)
            continue
        for y, name in enumerate(names):
            for dot in panels[title].get(name, ()):
                color = "tab:orange" if dot.best else "tab:blue"
                panel.plot(100 * dot.value, y, "x" if dot.degenerate else "o", color=color, alpha=0.6)
        panel.axvline(100 * baselines[title], color="gray", linestyle=":", label="most common answer")
        lowest = min((dot.value for dots in panels[title].values() for dot in dots), default=0.0)
        panel.set_xlim(min(0.0, 105 * lowest) - 2, 102)
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(-0.6, len(names) - 0.4)
        panel.set(title=title, xlabel="dev, percent")
        panel.spines[["top", "right"]].set_visible(False)
    if any(dot.degenerate for rows in panels.values() for dots in rows.values() for dot in dots):
        figure.axes[0].plot([], [], "x", color="tab:blue", label="failed to learn")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


# -----------------------------------------------------------------------------------------------------------
# Summaries: the best run of each task


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
    """All runs of one task; the place of each has its learning_rate, batch_size, epochs and seed. Measures are fractions.

    measure: the name of the main measure
    outcomes: in the order of the grid; at least one has a measure
    measures: of the best run, for every validation split
    baseline: the main measure of the most common answer
    control: the run from random weights, if it was asked for
    ensemble: of the best runs, if it was asked for
    """

    task: str
    measure: str
    outcomes: tuple[Outcome, ...]
    measures: Mapping[str, Mapping[str, float]]
    baseline: float
    control: Outcome | None = None
    ensemble: Ensemble | None = None

    @property
    def best(self) -> Outcome:
        """The run with the highest main measure, among runs that are not degenerate if there are any."""
        return ranked(self.outcomes, measure=self.measure)[0]

    @property
    def degenerate(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.degenerate is not None]

    @property
    def values(self) -> list[float]:
        """The main measure of each run that is not degenerate."""
        return [one.measures[self.measure] for one in self.outcomes if one.degenerate is None]

    @property
    def median(self) -> float | None:
        """The median of `values`; None without values."""
        return statistics.median(self.values) if self.values else None

    @property
    def score(self) -> float:
        """The task's score in GLUE: the mean over measures and splits."""
        return statistics.fmean(value for values in self.measures.values() for value in values.values())


def ranked(outcomes: Sequence[Outcome], *, measure: str) -> list[Outcome]:
    """The runs with a measure from the best to the worst: runs that learned come before degenerate ones."""
    measured = [outcome for outcome in outcomes if outcome.measures]
    return sorted(measured, key=lambda one: (one.degenerate is not None, -one.measures[measure]))


def summaries_json(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The content of results.json."""
    tasks = {}
    for summary in summaries:
        together = summary.ensemble
        tasks[summary.task] = {
            "measure": summary.measure,
            "best": dict(summary.best.place),
            "measures": summary.measures,
            "median": summary.median,
            "lowest": min(summary.values, default=None),
            "highest": max(summary.values, default=None),
            "most_common_answer": summary.baseline,
            "random_weights": summary.control and dict(summary.control.measures),
            "ensemble": together
            and {"runs": [str(one.path) for one in together.members], "measures": dict(together.measures)},
            "runs": [
                {
                    **one.place,
                    "path": str(one.path),
                    "measures": dict(one.measures),
                    "degenerate": one.degenerate,
                }
                for one in summary.outcomes
            ],
            "degenerate": len(summary.degenerate),
        }
    return {"tasks": tasks}


def summary_tables(summaries: Sequence[Summary], *, title: str = "protocol") -> list[Table]:
    """Tables to print: a row for each task, each ensemble and each degenerate run, and the paper's own results."""
    label, heading = _labels([outcome for summary in summaries for outcome in summary.outcomes])
    rows, stuck, together = [], [], []
    for summary in summaries:
        best = ", ".join(_listed(values) for values in summary.measures.values())
        median, spread = "-", "-"
        if summary.values:
            median = f"{summary.measure} {percent(summary.median)}"
            spread = f"{percent(min(summary.values))} - {percent(max(summary.values))}"
            spread = "one run" if len(summary.outcomes) == 1 else spread
        counts = (summary.task, len(summary.outcomes), len(summary.degenerate))
        trivial = (percent(summary.baseline), *_control(summary))
        rows.append((*counts, best, label(summary.best), median, spread, *trivial))
        stuck += [(summary.task, label(one), one.degenerate) for one in summary.degenerate]
        if summary.ensemble is not None:
            alone = [member.measures[summary.measure] for member in summary.ensemble.members]
            members = f"{summary.measure} {percent(statistics.fmean(alone))}, best {percent(max(alone))}"
            together.append((summary.task, len(alone), _listed(summary.ensemble.measures), members))
    controls = ("random weights",) if any(one.control is not None for one in summaries) else ()
    columns = ("task", "runs", "degenerate", "best on dev", heading, "median", "spread", COMMONEST, *controls)
    covers = "percent; the best run is chosen on dev; median and spread leave out degenerate runs"
    if len({one.place["seed"] for summary in summaries for one in summary.outcomes}) == 1:
        covers += f"; {ONE_SEED} for each setting"
    made = [Table(f"{title}; {covers}", columns, rows)]
    if together:
        heads = ("task", "members", "ensemble on dev", "members alone, mean")
        made.append(Table("ensembles of the best runs, chosen on the same dev split", heads, together))
    if stuck:
        made.append(Table(f"degenerate runs; {ADVICE}", ("task", heading, "why"), stuck))
    paper = paper_table([summary.task for summary in summaries])
    return [*made, paper] if paper else made


def _control(summary: Summary) -> tuple[str, ...]:
    """The cell of the run from random weights, if there is one."""
    if summary.control is None:
        return ()
    value = percent(summary.control.measures.get(summary.measure))
    return (f"{value}, degenerate" if summary.control.degenerate else value,)


def _listed(measures: Mapping[str, float]) -> str:
    """Measures as a table shows them: in percent, but a tau as it is."""
    return ", ".join(
        f"{name} {f'{value:z.2f}' if name.endswith('_tau') else percent(value)}"
        for name, value in measures.items()
    )


def _labels(outcomes: Sequence[Outcome]) -> tuple[Callable[[Outcome], str], str]:
    """Outcome -> the settings that vary in the grid as text, and their names; always the rate and the seed."""
    names = {"learning_rate": "rate", "batch_size": "batch", "epochs": "epochs", "seed": "seed"}
    for name in ("batch_size", "epochs"):
        if len({outcome.place[name] for outcome in outcomes}) < 2:
            del names[name]

    def label(outcome: Outcome) -> str:
        values = (outcome.place[name] for name in names)
        return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)

    return label, ", ".join(names.values())


def write_summaries(summaries: Sequence[Summary], output: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes results.png, a plot of all runs that have a measure, and then results.json. The seeds of a setting are one row."""
    panels: dict[str, dict[str, list[Dot]]] = {}
    for summary in summaries:
        rows, best = panels.setdefault(_panel(summary), {}), summary.best
        for one in (*summary.outcomes, *([summary.control] if summary.control else [])):
            dots = rows.setdefault(one.path.name.rpartition("_seed-")[0], [])
            if one.measures:
                dots.append(Dot(one.measures[summary.measure], one.degenerate is not None, one is best))
    draw(panels, output / PICTURE, baselines={_panel(one): one.baseline for one in summaries})
    write_results(output, content)


def _panel(summary: Summary) -> str:
    return f"{summary.task}, {summary.measure}"
