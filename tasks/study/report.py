"""Reports of studies: tables to print, the content of results.json, and a plot with a dot for each run.

A protocol has a Summary of each task, with the best run; an ablation is a Comparison of its rows.
"""

import dataclasses
import itertools
import math
import pathlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.tasks.metrics import Ordering, Table, in_percent, ordering
from bert_keras.tasks.study.grid import Outcome, write_results
from bert_keras.tasks.study.paper import paper_table
from bert_keras.tasks.task import Task

PICTURE = "results.png"
ADVICE = "more epochs, --bias-correction, a lower learning rate or more restarts help"


class Dot(NamedTuple):
    """A run in a plot: a degenerate run is a cross, the best run has another color."""

    value: float
    degenerate: bool = False
    best: bool = False


def draw(
    panels: Mapping[str, Mapping[str, Sequence[Dot]]],
    path: pathlib.Path,
    *,
    label: str,
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Draws a panel for each title, with a line of dots for each row.

    label: of the x axis
    baselines: dotted lines, by title
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
                panel.plot(dot.value, y, "x" if dot.degenerate else "o", color=color, alpha=0.6)
        if baselines is not None:
            panel.axvline(baselines[title], color="gray", linestyle=":")
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(-0.6, len(names) - 0.4)
        panel.set(title=title, xlabel=label)
        panel.spines[["top", "right"]].set_visible(False)
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
    """All runs of one task; the place of each has its learning_rate, batch_size, epochs and seed.

    measure: the name of the main measure
    outcomes: in the order of the grid; at least one has a measure
    measures: of the best run, for every validation split
    ensemble: of the best runs, if it was asked for
    """

    task: str
    measure: str
    outcomes: tuple[Outcome, ...]
    measures: Mapping[str, Mapping[str, float]]
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
            median = f"{summary.measure} {summary.median:.4f}"
            spread = f"{min(summary.values):.4f} - {max(summary.values):.4f}"
        counts = (summary.task, len(summary.outcomes), len(summary.degenerate))
        rows.append((*counts, best, label(summary.best), median, spread))
        stuck += [(summary.task, label(one), one.degenerate) for one in summary.degenerate]
        if summary.ensemble is not None:
            alone = [member.measures[summary.measure] for member in summary.ensemble.members]
            members = f"{summary.measure} {statistics.fmean(alone):.4f}, best {max(alone):.4f}"
            together.append((summary.task, len(alone), _listed(summary.ensemble.measures), members))
    columns = ("task", "runs", "degenerate", "best on dev", heading, "median", "spread")
    made = [Table(f"{title}; median and spread leave out degenerate runs", columns, rows)]
    if together:
        heads = ("task", "members", "ensemble on dev", "members alone, mean")
        made.append(Table("ensembles of the best runs, chosen on the same dev split", heads, together))
    if stuck:
        made.append(Table(f"degenerate runs; {ADVICE}", ("task", heading, "why"), stuck))
    paper = paper_table([summary.task for summary in summaries])
    return [*made, paper] if paper else made


def _listed(measures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in measures.items())


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
        rows, best = panels.setdefault(f"{summary.task}, {summary.measure}", {}), summary.best
        for one in summary.outcomes:
            dots = rows.setdefault(one.path.name.rpartition("_seed-")[0], [])
            if one.measures:
                dots.append(Dot(one.measures[summary.measure], one.degenerate is not None, one is best))
    draw(panels, output / PICTURE, label="dev")
    write_results(output, content)


# -----------------------------------------------------------------------------------------------------------
# Comparisons: the rows of an ablation


class Compared(NamedTuple):
    """Two rows of an ablation on one task, the better one of the paper first."""

    task: str
    better: str
    worse: str
    found: Ordering


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The rows of an ablation, from several restarts on each task.

    measures: the name of the measure of each task
    values: row -> task -> the measure of each run that learned, in percent
    stuck: row -> task -> that of each run that failed to learn; None for one whose loss diverged
    failed: run -> the reason why it failed to learn
    figures: row and task -> the paper's measure
    pairs: task, better row and worse row, as the paper has them
    baselines: the measure of the most common answer in percent, by task; None with pre-training
    perplexities: row -> of its pre-training, on the held-out text; None for a snapshot
    """

    name: str
    title: str
    measures: Mapping[str, str]
    values: Mapping[str, Mapping[str, Sequence[float]]]
    stuck: Mapping[str, Mapping[str, Sequence[float | None]]]
    failed: Mapping[str, str]
    figures: Mapping[tuple[str, str], float]
    pairs: Sequence[tuple[str, str, str]]
    baselines: Mapping[str, float] | None = None
    perplexities: Mapping[str, float | None] | None = None

    def orderings(self) -> list[Compared]:
        """The pairs; a pair with a row of which no run learned has no difference."""
        return [
            Compared(task, better, worse, ordering(self.values[better][task], self.values[worse][task]))
            for task, better, worse in self.pairs
        ]


def compare(
    outcomes: Iterable[Outcome], tasks: Mapping[str, Task], *, pairs: Sequence[tuple[str, str]], **about: Any
) -> Comparison:
    """The comparison of finished runs.

    outcomes: the place of each has its row and its seed; runs without a task are left out
    pairs: rows to compare on each task, in the order of the figures where the paper has them, and left out where those are equal;
        else the better row is the first
    about: the other fields of Comparison
    """
    measures, figures = about["measures"], about["figures"]
    values, stuck, failed = dict[str, dict[str, Any]](), dict[str, dict[str, Any]](), {}
    for one in outcomes:
        if not one.task:
            continue
        row = one.place["row"]
        for kept in (values, stuck):
            kept.setdefault(row, {task: [] for task in tasks})
        measure = one.measures.get(measures[one.task])
        if measure is not None:
            measure = in_percent(measure, kind=tasks[one.task].kind)
        if measure is not None and one.degenerate is None:
            values[row][one.task].append(measure)
        else:
            stuck[row][one.task].append(measure)
            why = one.degenerate or f"no {measures[one.task]}"
            failed[f"{one.task}, {row}, seed {one.place['seed']}"] = why
    ordered = []
    for task, (better, worse) in itertools.product(tasks, pairs):
        first, second = (figures.get((row, task)) for row in (better, worse))
        known = first is not None and second is not None
        if not known or first > second:
            ordered.append((task, better, worse))
        elif first < second:
            ordered.append((task, worse, better))
    return Comparison(values=values, stuck=stuck, failed=failed, pairs=ordered, **about)


def comparison_json(found: Comparison) -> dict[str, Any]:
    """The content of results.json; measures and differences in percent."""
    tasks = []
    for task, measure in found.measures.items():
        rows = [
            {
                "row": row,
                "measures": [*values[task]],
                "degenerate": [*found.stuck[row][task]],
                "paper": found.figures.get((row, task)),
            }
            for row, values in found.values.items()
        ]
        baseline = {} if found.baselines is None else {"most_common_answer": found.baselines[task]}
        tasks.append({"task": task, "measure": measure, **baseline, "rows": rows})
    orderings = [
        {"task": one.task, "better": one.better, "worse": one.worse}
        | {name: None if value != value else value for name, value in one.found._asdict().items()}  # NaN
        for one in found.orderings()
    ]
    made = {"ablation": found.name, "tasks": tasks, "orderings": orderings, "failed": dict(found.failed)}
    return made if found.perplexities is None else made | {"perplexities": dict(found.perplexities)}


def comparison_tables(found: Comparison) -> list[Table]:
    """Tables to print: our results with their spread and the paper's figures, the orderings, and runs that failed to learn."""
    columns = {}
    if found.perplexities is not None:
        values = found.perplexities.values()
        columns["held-out perplexity"] = ["-" if one is None else f"{one:.1f}" for one in values]
    for task, measure in found.measures.items():
        cells = [
            _spread(values[task], len(found.stuck[row][task]), found.figures.get((row, task)))
            for row, values in found.values.items()
        ]
        baseline = [] if found.baselines is None else [f"{found.baselines[task]:.1f}"]
        columns[f"{task}, {measure}"] = cells + baseline
    names = [*found.values, *([] if found.baselines is None else ["most common answer"])]
    title = f"{found.title}: mean and standard deviation of the runs that learned, and (the paper's), dev, percent"
    if len(columns) > len(names):  # many tasks read better as rows
        made = [Table(title, ("task", *names), [(name, *cells) for name, cells in columns.items()])]
    else:
        made = [Table(title, ("row", *columns), [*zip(names, *columns.values(), strict=True)])]
    orderings = [
        (
            one.task,
            f"{one.better} over {one.worse}",
            "-" if math.isnan(one.found.difference) else f"{one.found.difference:+.2f}",
            "-" if math.isnan(one.found.error) else f"{one.found.error:.2f}",
            one.found.verdict,
        )
        for one in found.orderings()
    ]
    heads = ("task", "expected order", "difference", "standard error", "here")
    made.append(Table("orderings; they hold or fail at the 5 % level (Welch's t-test)", heads, orderings))
    if found.failed:
        title = f"{len(found.failed)} runs failed to learn, which the means leave out; {ADVICE}"
        made.append(Table(title, ("run", "why"), [*found.failed.items()]))
    return made


def _spread(values: Sequence[float], failed: int, figure: float | None) -> str:
    """The mean, the standard deviation, the runs that failed to learn and, in brackets, the paper's figure."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    mean = f"{statistics.fmean(values):.1f}{spread}" if values else "-"
    stuck = f", {failed} of {failed + len(values)} failed" if failed else ""
    return mean + stuck + ("" if figure is None else f" ({figure})")


def write_comparison(found: Comparison, output: pathlib.Path) -> None:
    """Writes results.png, a plot of all runs with a line for the most common answer, and then results.json."""
    titles = {task: f"{task}, {measure}" for task, measure in found.measures.items()}
    panels = {
        title: {
            row: [
                *map(Dot, values[task]),
                *(Dot(value, True) for value in found.stuck[row][task] if value is not None),
            ]
            for row, values in found.values.items()
        }
        for task, title in titles.items()
    }
    baselines = found.baselines and {titles[task]: value for task, value in found.baselines.items()}
    draw(panels, output / PICTURE, label="dev, %", baselines=baselines)
    write_results(output, comparison_json(found))
