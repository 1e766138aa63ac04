"""The results of an ablation of one checkpoint: measures of each row, comparisons of rows, tables and JSON."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_keras.tasks.report_tables import Table
from bert_keras.tasks.study.ablation_report import (
    Compared,
    compared,
    orderings_as_json,
    orderings_table,
    spelled,
)
from bert_keras.tasks.study.approach_rows import (
    APPROACHES,
    FINE_TUNING,
    RANDOM,
    Row,
)
from bert_keras.tasks.study.paper_figures import figure_of
from bert_keras.tasks.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A task of the ablation.

    tasks: the task of each row, by the row's name: rows may differ in the context
    baseline: the measure of the most common answer, in percent
    """

    name: str
    tasks: Mapping[str, Task]
    baseline: float

    @property
    def measure(self) -> str:
        """The name of the measure."""
        return next(iter(self.tasks.values())).measure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """The results of an ablation.

    measures: row -> task -> the measure of each restart in percent; a run whose loss diverged has none
    failed: run -> the reason why it diverged or is degenerate; degenerate runs have a measure
    """

    name: str
    subjects: Sequence[Subject]
    measures: Mapping[str, Mapping[str, list[float]]]
    failed: Mapping[str, str]

    def figure(self, row: str, subject: Subject) -> float | None:
        """BERT base's measure in the paper; None where the paper has none."""
        made = Row(row)
        if made.random or made.context is not None:
            return None
        return figure_of(subject.name, subject.measure, features=made.layers)

    def orderings(self) -> list[Compared]:
        """Neighbours in table 7's order, which the paper gives for CoNLL-2003; then each row over random weights."""
        plain = [
            name for name in self._pretrained if Row(name).context is None
        ]  # the paper's rows have one context
        found = {name: figure_of("conll2003", "f1", features=Row(name).layers) for name in plain}
        figures = {name: figure for name, figure in found.items() if figure is not None}
        ranked = sorted(figures, key=lambda name: -figures[name])
        pairs = [*itertools.pairwise(ranked), *self._controls()]
        return [
            *compared(self.measures, [(subject.name, *pair) for subject in self.subjects for pair in pairs])
        ]

    @property
    def _pretrained(self) -> list[str]:
        return [name for name in self.measures if not Row(name).random]

    def _controls(self) -> Iterator[tuple[str, str]]:
        """Yields each row with the same row at random weights, or with fine-tuning from there in the same context."""
        for name in self._pretrained:
            context = Row(name).context
            fine_tuning = FINE_TUNING if context is None else f"{context}-{FINE_TUNING}"
            wanted = (f"{RANDOM}{name}", f"{RANDOM}{fine_tuning}")
            if control := next((control for control in wanted if control in self.measures), None):
                yield name, control


def as_json(results: Results) -> dict[str, Any]:
    """The content of results.json; measures and differences in percent."""
    tasks = [
        {
            "task": subject.name,
            "measure": subject.measure,
            "most_common_answer": subject.baseline,
            "rows": [
                {"row": name, "measures": measures[subject.name], "paper": results.figure(name, subject)}
                for name, measures in results.measures.items()
            ],
        }
        for subject in results.subjects
    ]
    return {
        "ablation": results.name,
        "tasks": tasks,
        "orderings": orderings_as_json(results.orderings()),
        "failed": dict(results.failed),
    }


def tables(results: Results) -> list[Table]:
    """Tables to print: the rows of each task, the orderings, and the runs that failed to learn."""
    title = f"{APPROACHES[results.name].title}: mean, standard deviation and (the paper's), dev, percent"
    names = [*results.measures]
    listed = [
        (
            subject.name,
            subject.measure,
            *[spelled(results.measures[name][subject.name], results.figure(name, subject)) for name in names],
            f"{subject.baseline:.1f}",
        )
        for subject in results.subjects
    ]
    columns = ("task", "measure", *names, "most common answer")
    if len(listed) == 1:  # one task reads better as a column
        heading = f"{listed[0][0]}, {listed[0][1]}"
        listed, columns = [*zip(columns[2:], listed[0][2:], strict=True)], ("row", heading)
    made = [Table(title, columns, listed), orderings_table(results.orderings())]
    if results.failed:
        made.append(
            Table(
                "runs that failed to learn; the means have them, unless their loss diverged",
                ("run", "why"),
                [*results.failed.items()],
            )
        )
    return made
