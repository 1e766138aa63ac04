"""Reports of ablations: the rows of a table beside each other, the paper's figures, and what a trivial answer reaches.

Measures are fractions; tables show percent with one decimal, and the paper's figures stay in percent.
"""

import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.tasks.metrics import ONE_SEED, Ordering, as_fractions, ordering, percent
from bert_keras.tasks.report import Table
from bert_keras.tasks.study.grid import Outcome, write_results
from bert_keras.tasks.study.report import ADVICE, COMMONEST, PICTURE, Dot, draw
from bert_keras.tasks.task import Task

UNIGRAMS = " (last row: of unigrams)"


class Compared(NamedTuple):
    """Two rows of an ablation on one task, the better one of the paper first."""

    task: str
    better: str
    worse: str
    found: Ordering


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The rows of an ablation, from several restarts on each task.

    covers: the draws that the standard deviations and errors cover, if there are several
    measures: the name of the measure of each task
    values: row -> task -> the measure of each run that learned
    stuck: row -> task -> that of each run that failed to learn; None for one whose loss diverged
    failed: run -> the reason why it failed to learn
    figures: row and task -> the paper's measure in percent
    pairs: task, better row and worse row, as the paper has them
    baselines: the measure of the most common answer, by task
    repeated: row -> task -> for each pre-training, the mean of its runs that learned; None with one pre-training a row
    perplexities: objective -> row -> of its pre-training, on the held-out text; None for a snapshot. COMMONEST has that of the
        unigrams
    """

    name: str
    title: str
    covers: str
    measures: Mapping[str, str]
    values: Mapping[str, Mapping[str, Sequence[float]]]
    stuck: Mapping[str, Mapping[str, Sequence[float | None]]]
    failed: Mapping[str, str]
    figures: Mapping[tuple[str, str], float]
    pairs: Sequence[tuple[str, str, str]]
    baselines: Mapping[str, float]
    repeated: Mapping[str, Mapping[str, Sequence[float]]] | None = None
    perplexities: Mapping[str, Mapping[str, float | None]] = dataclasses.field(default_factory=dict)

    @property
    def samples(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """row -> task -> the independent measures, of which a row has its mean and its error."""
        return self.values if self.repeated is None else self.repeated

    @property
    def restarts(self) -> int:
        """The most runs of a row on a task."""
        rows = (
            (self.values[row][task], self.stuck[row][task]) for row in self.values for task in self.measures
        )
        return max((len(learned) + len(stuck) for learned, stuck in rows), default=0)

    @property
    def about_errors(self) -> str:
        """The draws that the errors cover, or that there are none."""
        return self.covers if self.restarts > 1 else f"{ONE_SEED}: no error is known"

    def orderings(self) -> list[Compared]:
        """The pairs; a pair with a row of which no run learned has no difference."""
        return [
            Compared(task, better, worse, ordering(self.samples[better][task], self.samples[worse][task]))
            for task, better, worse in self.pairs
        ]


def compare(
    outcomes: Iterable[Outcome], tasks: Mapping[str, Task], *, pairs: Sequence[tuple[str, str]], **about: Any
) -> Comparison:
    """The comparison of finished runs.

    outcomes: the place of each has its row, its seed and, with several for a row, its pre-training; runs without a task are left
        out
    pairs: rows to compare on each task, in the order of the figures where the paper has them, and left out where those are equal;
        else the better row is the first; pairs with a row without outcomes are left out
    about: the other fields of Comparison
    """
    measures, figures = about["measures"], about["figures"]
    values, stuck, failed = dict[str, dict[str, Any]](), dict[str, dict[str, Any]](), {}
    groups = dict[str, dict[str, dict[Any, list[float]]]]()
    for one in outcomes:
        if not one.task:
            continue
        row, pretraining = one.place["row"], one.place.get("pretraining")
        for kept in (values, stuck):
            kept.setdefault(row, {task: [] for task in tasks})
        group = groups.setdefault(row, {task: {} for task in tasks})[one.task]
        measure = as_fractions(one.measures, kind=tasks[one.task].kind).get(measures[one.task])
        if measure is not None and one.degenerate is None:
            values[row][one.task].append(measure)
            group.setdefault(one.place["seed"] if pretraining is None else pretraining, []).append(measure)
        else:
            stuck[row][one.task].append(measure)
            of = "" if pretraining is None else f"pre-training {pretraining}, "
            why = one.degenerate or f"no {measures[one.task]}"
            failed[f"{one.task}, {row}, {of}seed {one.place['seed']}"] = why
    repeated = None
    if any("pretraining" in one.place for one in outcomes):
        repeated = {
            row: {task: [*map(statistics.fmean, parts.values())] for task, parts in of_row.items()}
            for row, of_row in groups.items()
        }
    ordered = []
    for task, (better, worse) in itertools.product(tasks, pairs):
        if not {better, worse} <= {*values}:
            continue
        first, second = (figures.get((row, task)) for row in (better, worse))
        known = first is not None and second is not None
        if not known or first > second:
            ordered.append((task, better, worse))
        elif first < second:
            ordered.append((task, worse, better))
    made: Any = {"values": values, "stuck": stuck, "failed": failed, "repeated": repeated, "pairs": ordered}
    return Comparison(**made, **about)


def comparison_json(found: Comparison) -> dict[str, Any]:
    """The content of results.json; measures, the paper's too, and differences are fractions."""
    tasks = []
    for task, measure in found.measures.items():
        rows = []
        for row, values in found.values.items():
            figure = found.figures.get((row, task))
            means = {} if found.repeated is None else {"pretrainings": [*found.repeated[row][task]]}
            rows.append(
                {
                    "row": row,
                    "measures": [*values[task]],
                    **means,
                    "degenerate": [*found.stuck[row][task]],
                    "paper": None if figure is None else round(figure / 100, 6),
                }
            )
        common = found.baselines[task]
        tasks.append({"task": task, "measure": measure, "most_common_answer": common, "rows": rows})
    orderings = [
        {"task": one.task, "better": one.better, "worse": one.worse, **one.found._asdict()}
        for one in found.orderings()
    ]
    made = {
        "ablation": found.name,
        "error_covers": found.about_errors,
        "tasks": tasks,
        "orderings": orderings,
    }
    return made | {"failed": dict(found.failed), "perplexities": found.perplexities}


def comparison_tables(found: Comparison) -> list[Table]:
    """Tables to print: our results with their spread and the paper's figures, the orderings, and runs that failed to learn."""
    names, columns = [*found.values], {}
    for objective, values in found.perplexities.items():
        of_rows = [values.get(row) for row in (*names, COMMONEST)]
        if of_rows == [None] * len(of_rows):  # word vectors have no perplexity
            continue
        title = f"held-out perplexity, {objective}{UNIGRAMS if of_rows[-1] is not None else ''}"
        columns[title] = ["-" if one is None else f"{one:.1f}" for one in of_rows]
    for task, measure in found.measures.items():
        cells = [_spread(found, row, task) for row in names]
        columns[f"{task}, {measure}"] = [*cells, percent(found.baselines[task])]
    names.append(COMMONEST)
    of = (
        "the runs that learned" if found.repeated is None else "the pre-trainings, of their runs that learned"
    )
    mean = "" if found.restarts < 2 else f"mean ± standard deviation of {of}, "
    if mean and found.failed:
        mean += "the number that did not and the mean of all runs, "
    title = f"{found.title}: {mean}(the paper's), dev, percent; {found.about_errors}"
    if len(columns) > len(names):  # many tasks read better as rows
        made = [Table(title, ("task", *names), [(name, *cells) for name, cells in columns.items()])]
    else:
        made = [Table(title, ("row", *columns), [*zip(names, *columns.values(), strict=True)])]
    orderings = [
        (
            one.task,
            f"{one.better} over {one.worse}",
            "-" if one.found.difference is None else f"{100 * one.found.difference:+z.1f}",
            percent(one.found.error),
            one.found.verdict,
        )
        for one in found.orderings()
    ]
    heads = ("task", "expected order", "difference", "standard error", "here")
    if orderings:
        made.append(Table("orderings; they hold or fail at the 5 % level (Welch's t-test)", heads, orderings))
    if found.failed:
        title = f"{len(found.failed)} runs failed to learn, which means and orderings leave out; {ADVICE}"
        made.append(Table(title, ("run", "why"), [*found.failed.items()]))
    return made


def _spread(found: Comparison, row: str, task: str) -> str:
    """The mean, the standard deviation, the runs that failed to learn, the mean of all, and in brackets the paper's figure.

    A run whose loss diverged has no measure, so that all runs have no mean.
    """
    values, failed = found.samples[row][task], len(found.stuck[row][task])
    mean = percent(statistics.fmean(values)) if values else "-"
    spread = f" ± {percent(statistics.stdev(values))}" if len(values) > 1 else ""
    stuck = f", {failed} of {failed + len(found.values[row][task])} failed" if failed else ""
    measured = [*found.values[row][task], *(one for one in found.stuck[row][task] if one is not None)]
    if failed and len(measured) == failed + len(found.values[row][task]):
        stuck += f", all {percent(statistics.fmean(measured))}"
    figure = found.figures.get((row, task))
    return mean + spread + stuck + ("" if figure is None else f" ({figure})")


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
    draw(panels, output / PICTURE, baselines={titles[task]: value for task, value in found.baselines.items()})
    write_results(output, comparison_json(found))
