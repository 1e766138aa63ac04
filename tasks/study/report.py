"""Reports of studies: tables to print, the content of results.json, a plot with a dot for each run, and the paper's own results.

A protocol has a Summary of each task, with the best run; an ablation is a Comparison of its rows.

Source: Devlin et al. 2019, tables 1 to 4 and 7; tables 5, 6 and 8 are in tasks/study/rows.py.
"""

import dataclasses
import itertools
import math
import pathlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.model.choices import LAYERS
from bert_keras.tasks.metrics import Ordering, Table, in_percent, ordering
from bert_keras.tasks.study.grid import Outcome, write_results
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
    values: row -> task -> the measure of each restart in percent; a run whose loss diverged has none
    failed: run -> the reason why it diverged or is degenerate; degenerate runs have a measure
    figures: row and task -> the paper's measure
    pairs: task, better row and worse row, as the paper has them
    baselines: the measure of the most common answer in percent, by task; None with pre-training
    perplexities: row -> of its pre-training, on the held-out text; None for a snapshot
    """

    name: str
    title: str
    measures: Mapping[str, str]
    values: Mapping[str, Mapping[str, Sequence[float]]]
    failed: Mapping[str, str]
    figures: Mapping[tuple[str, str], float]
    pairs: Sequence[tuple[str, str, str]]
    baselines: Mapping[str, float] | None = None
    perplexities: Mapping[str, float | None] | None = None

    def orderings(self) -> list[Compared]:
        """The pairs, without those with a row without runs."""
        return [
            Compared(task, better, worse, ordering(first, second))
            for task, better, worse in self.pairs
            if (first := self.values[better][task]) and (second := self.values[worse][task])
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
    values, failed = dict[str, dict[str, list[float]]](), {}
    for one in outcomes:
        if not one.task:
            continue
        row = one.place["row"]
        of_row = values.setdefault(row, {task: [] for task in tasks})
        if one.degenerate is not None:
            failed[f"{one.task}, {row}, seed {one.place['seed']}"] = one.degenerate
        if one.measures:
            measure = one.measures[measures[one.task]]
            of_row[one.task].append(in_percent(measure, kind=tasks[one.task].kind))
    ordered = []
    for task, (better, worse) in itertools.product(tasks, pairs):
        first, second = (figures.get((row, task)) for row in (better, worse))
        known = first is not None and second is not None
        if not known or first > second:
            ordered.append((task, better, worse))
        elif first < second:
            ordered.append((task, worse, better))
    return Comparison(values=values, failed=failed, pairs=ordered, **about)


def comparison_json(found: Comparison) -> dict[str, Any]:
    """The content of results.json; measures and differences in percent."""
    tasks = []
    for task, measure in found.measures.items():
        rows = [
            {"row": row, "measures": [*values[task]], "paper": found.figures.get((row, task))}
            for row, values in found.values.items()
        ]
        baseline = {} if found.baselines is None else {"most_common_answer": found.baselines[task]}
        tasks.append({"task": task, "measure": measure, **baseline, "rows": rows})
    orderings = [
        {"task": one.task, "better": one.better, "worse": one.worse, **one.found._asdict()}
        | ({"error": None} if math.isnan(one.found.error) else {})  # JSON has no NaN
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
            _spread(values[task], found.figures.get((row, task))) for row, values in found.values.items()
        ]
        baseline = [] if found.baselines is None else [f"{found.baselines[task]:.1f}"]
        columns[f"{task}, {measure}"] = cells + baseline
    names = [*found.values, *([] if found.baselines is None else ["most common answer"])]
    title = f"{found.title}: mean, standard deviation and (the paper's), dev, percent"
    if len(columns) > len(names):  # many tasks read better as rows
        made = [Table(title, ("task", *names), [(name, *cells) for name, cells in columns.items()])]
    else:
        made = [Table(title, ("row", *columns), [*zip(names, *columns.values(), strict=True)])]
    orderings = [
        (
            one.task,
            f"{one.better} over {one.worse}",
            f"{one.found.difference:+.2f}",
            f"{one.found.error:.2f}",
            one.found.verdict,
        )
        for one in found.orderings()
    ]
    heads = ("task", "expected order", "difference", "standard error", "here")
    made.append(Table("orderings; they hold or fail at the 5 % level (Welch's t-test)", heads, orderings))
    if found.failed:
        why = "runs that failed to learn; the means have them, unless their loss diverged"
        made.append(Table(why, ("run", "why"), [*found.failed.items()]))
    return made


def _spread(values: Sequence[float], figure: float | None) -> str:
    """The mean, the standard deviation and, in brackets, the paper's figure."""
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}" + ("" if figure is None else f" ({figure})")


def write_comparison(found: Comparison, output: pathlib.Path) -> None:
    """Writes results.png, a plot of all runs with a line for the most common answer, and then results.json."""
    titles = {task: f"{task}, {measure}" for task, measure in found.measures.items()}
    panels = {
        title: {row: [Dot(value) for value in values[task]] for row, values in found.values.items()}
        for task, title in titles.items()
    }
    baselines = found.baselines and {titles[task]: value for task, value in found.baselines.items()}
    draw(panels, output / PICTURE, label="dev, %", baselines=baselines)
    write_results(output, comparison_json(found))


# -----------------------------------------------------------------------------------------------------------
# The paper's results


class Figure(NamedTuple):
    """One result of the paper, in percent.

    model: "base" and "large" are single models; an ensemble has 7 systems of different pre-trainings and seeds
    """

    task: str
    table: int
    model: str
    split: str
    measure: str
    value: float


_GLUE = {
    "base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4),
    "large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1),
}
_GLUE_TASKS = ("mnli", "mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
_GLUE_SPLITS = ("test matched", "test mismatched", *["test"] * 7)
_GLUE_MEASURES = "accuracy accuracy f1 accuracy accuracy matthews spearman f1 accuracy".split()
_GLUE_COLUMNS = [*zip(_GLUE_TASKS, _GLUE_SPLITS, _GLUE_MEASURES, strict=True)]
# Task, table, model, split: exact match and F1.
_SQUAD = {
    ("squad1.1", 2, "base", "dev"): (80.8, 88.5),
    ("squad1.1", 2, "large", "dev"): (84.1, 90.9),
    ("squad1.1", 2, "large, ensemble", "dev"): (85.8, 91.8),
    ("squad1.1", 2, "large, TriviaQA first", "dev"): (84.2, 91.1),
    ("squad1.1", 2, "large, TriviaQA first", "test"): (85.1, 91.8),
    ("squad1.1", 2, "large, ensemble, TriviaQA first", "dev"): (86.2, 92.2),
    ("squad1.1", 2, "large, ensemble, TriviaQA first", "test"): (87.4, 93.2),
    ("squad2.0", 3, "large", "dev"): (78.7, 81.9),
    ("squad2.0", 3, "large", "test"): (80.0, 83.1),
}
FIGURES = (
    *(
        Figure(task, 1, model, split, measure, value)
        for model, values in _GLUE.items()
        for (task, split, measure), value in zip(_GLUE_COLUMNS, values, strict=True)
    ),
    *(
        Figure(*place, measure, value)
        for place, values in _SQUAD.items()
        for measure, value in zip(("exact_match", "f1"), values, strict=True)
    ),
    Figure("swag", 4, "base", "dev", "accuracy", 81.6),
    Figure("swag", 4, "large", "dev", "accuracy", 86.6),
    Figure("swag", 4, "large", "test", "accuracy", 86.3),
    Figure("conll2003", 7, "base", "dev", "f1", 96.4),
    Figure("conll2003", 7, "base", "test", "f1", 92.4),
    *(
        Figure("conll2003", 7, f"base, features: {layers}", "dev", "f1", value)
        for layers, value in zip(LAYERS, (91.0, 95.6, 94.9, 95.9, 96.1, 95.5), strict=True)
    ),
    Figure("conll2003", 7, "large", "dev", "f1", 96.6),
    Figure("conll2003", 7, "large", "test", "f1", 92.8),
)


def paper_table(tasks: Sequence[str]) -> Table | None:
    """The paper's results for these tasks as a table; None if it has none."""
    rows = [
        (one.task, f"BERT {one.model}", one.split, one.measure, f"{one.value:.1f}", f"Table {one.table}")
        for task in tasks
        for one in FIGURES
        if one.task == task
    ]
    columns = ("task", "model", "split", "measure", "percent", "source")
    return Table("the paper's own results, on all data", columns, rows) if rows else None
