"""The report of a measured model: a page, JSON and a table of all examples.

In: a task, its predictions and raw examples as `Report.evaluate` takes them, and the history of the training, if it is known.
Out: a `ModelReport`; `write_reports` writes it as report.html, report.json and examples.csv.
"""

import csv
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras.errors import BertKerasError, first_names
from bert_keras.io.files import write_json
from bert_keras.io.folders import Existing, atomic_folder
from bert_keras.io.formats import made_by
from bert_keras.pages.page import render
from bert_keras.tasks.evaluation import tables
from bert_keras.tasks.evaluation.intervals import RESAMPLES, Measure, interval, mcnemar, resample
from bert_keras.tasks.report import Arrays, Judged, Report, Table, plain

PAGE, JSON, EXAMPLES = "report.html", "report.json", "examples.csv"
LONGEST = 300  # letters of a text on a page; examples.csv has the rest
_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
)  # a spreadsheet computes a cell that opens with one of these
# Control characters as a sign for each: a page, a chart and a spreadsheet have no place for them.
_VISIBLE = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}
_VISIBLE |= dict.fromkeys((*range(128, 160), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)), 0xFFFD)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A second model on the same examples.

    name: of the second model; first: of the first one
    predictions: of the second model, [N, ...]; task: with its numbers, such as a threshold
    """

    name: str
    first: str
    task: Any
    predictions: Arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelReport:
    """What a page shows. A notebook shows it as the page.

    content: plain JSON: "task", "model", "split", "examples", "measure", "baseline", "measures" with their intervals, "sentence",
        "comparison" and "tables"
    sections: title of a section -> its tables
    judged: the labelled examples; None for a task that lists none
    """

    content: Mapping[str, Any]
    sections: Mapping[str, Sequence[Table]]
    judged: Judged | None

    def page(self) -> str:
        """The page as HTML that needs no other file."""
        return render("report.html", **self.content, sections=self.sections)

    def _repr_html_(self) -> str:
        return render("frame.html", title=self.content["title"], page=self.page())

    def write(self, folder: pathlib.Path) -> None:
        """Writes the three files into a folder that is there."""
        (folder / PAGE).write_text(self.page(), encoding="utf-8")
        write_json(folder / JSON, self.content)
        if self.judged is not None:
            _write_examples(folder / EXAMPLES, self.judged)


def write_reports(
    reports: Mapping[str, ModelReport], folder: pathlib.Path, *, existing: Existing = "refuse"
) -> None:
    """Writes the report of one split into a folder, or of several splits each into a folder of its name in it.

    existing: as in `atomic_folder`, whose errors it raises
    """
    with atomic_folder(folder, existing=existing) as new:
        for name, report in reports.items():
            place = new if len(reports) == 1 else new / name
            place.mkdir(exist_ok=True)
            report.write(place)


def make_report(
    task: Report,
    predictions: Arrays,
    raw: Arrays,
    *,
    name: str,
    model: str,
    split: str,
    history: Sequence[Mapping[str, float]] = (),
    compared: Comparison | None = None,
) -> ModelReport:
    """Measures predictions, with 95 % intervals, and collects the tables of a page.

    name, model, split: of the task, of the model and of the examples, for the title
    history: the values of each epoch by name, as in results.json

    Raises BertKerasError as `evaluate` does, and for a measure that is not a finite number.
    """
    measures = {key: float(value) for key, value in task.evaluate(predictions, raw)}
    if wrong := [key for key, value in measures.items() if not math.isfinite(value)]:
        raise BertKerasError(
            f"{wrong[0]} is {measures[wrong[0]]}: a prediction is not a finite number; train again."
        )
    judged = task.judge(predictions, raw)
    judged = None if judged is None else _visible_examples(judged)
    rows = np.arange(len(next(iter(raw.values())))) if judged is None else judged.rows
    measure = _measure_of_rows(task, predictions, raw, rows, measures)
    samples = resample(measure, rows)
    intervals = {key: interval(samples[key]) for key in measures}
    listed = [(key, value, *intervals[key]) for key, value in measures.items()]
    about = (
        f"An interval has 95 % of the values that {len(samples[task.measure]):,} random samples of these examples have: another "
        "test set of this size would give such a value."
    )
    sections = {"Measures": [Table("All measures", ("measure", "value", "from", "to"), listed, "", about)]}
    comparison = None
    if compared is not None:
        comparison, sections["Comparison"] = _compare(task, measure, raw, rows, judged, compared)
    sections["Training"] = [*tables.learning_curves(history)]
    if judged is not None:
        sections["Errors"] = [
            table for made in (tables.errors_by_length, tables.calibration) for table in made(judged)
        ]
    named = () if judged is None else judged.texts  # mistakes are listed once
    sections["The task"] = [one for one in task.report(predictions, raw) if one.columns[0] not in named]
    sections["Mistakes"] = [] if judged is None else [*tables.mistakes(judged)]
    shown = {title: [_visible(table) for table in made] for title, made in sections.items() if made}
    baseline, value = float(task.baseline(raw)), measures[task.measure]
    content = {
        "title": f"{name}, {split}",
        "task": name,
        "model": model,
        "split": split,
        "examples": len(rows),
        "unlabelled": len(next(iter(raw.values()))) - len(rows),
        "measure": task.measure,
        "baseline": baseline,
        "measures": {
            key: {"value": value, "low": intervals[key].low, "high": intervals[key].high}
            for key, value in measures.items()
        },
        "comparison": comparison,
        "sentence": _headline(task.measure, value, intervals[task.measure], baseline),
        "right": None if judged is None or not _decided(judged) else int(judged.right.sum()),
        "about_measures": task.about_measures(),
        "made_by": made_by(),
        "tables": [as_plain(table) for made in shown.values() for table in made],
    }
    return ModelReport(content=content, sections=shown, judged=judged)


def as_plain(table: Table) -> dict[str, Any]:
    """A table as plain JSON: title, columns, rows and the sentence about it."""
    rows = [[plain(value) for value in row] for row in table.rows]
    return {"title": table.title, "columns": [*table.columns], "rows": rows, "about": table.about}


def _headline(measure: str, value: float, ends: Sequence[float], baseline: float) -> str:
    if ends[0] > baseline:
        verdict = "clearly better than"
    elif ends[1] < baseline:
        verdict = "worse than"
    else:
        verdict = "not clearly better than"
    return (
        f"{measure}: {value:.4f}, with a 95 % interval from {ends[0]:.4f} to {ends[1]:.4f}. That is {verdict} {baseline:.4f}, "
        "which the most common answer alone reaches."
    )


def _measure_of_rows(
    task: Report, predictions: Arrays, raw: Arrays, rows: np.ndarray, measures: Mapping[str, float]
) -> Measure:
    """`Report.resampled`; that of Report itself for a task whose own `evaluate` gives other measures than its class counts."""
    made = task.resampled(predictions, raw)
    found = made(rows)
    if {*found} == {*measures} and all(
        math.isclose(found[key], measures[key], abs_tol=1e-9) for key in found
    ):
        return made
    return Report.resampled(task, predictions, raw)


def _decided(*judged: Judged) -> bool:
    """True if each example is right or wrong, and nothing between."""
    return all(np.isin(one.right, (0, 1)).all() for one in judged)


def _compare(
    task: Report, of_first: Measure, raw: Arrays, rows: np.ndarray, first: Judged | None, other: Comparison
) -> tuple[dict[str, Any], list[Table]]:
    """The difference of two models as plain JSON with a sentence, and tables of the examples on which they differ."""
    measure, names = task.measure, (other.first, other.name)
    wanted = dict(other.task.evaluate(other.predictions, raw))
    of_second = _measure_of_rows(other.task, other.predictions, raw, rows, wanted)

    def difference(chosen: np.ndarray) -> dict[str, float]:
        return {measure: of_first(chosen)[measure] - of_second(chosen)[measure]}

    value, ends = difference(rows)[measure], interval(resample(difference, rows)[measure])
    second = other.task.judge(other.predictions, raw)
    found: dict[str, Any] = {"models": [*names], "measure": measure, "difference": value}
    found |= {"low": ends.low, "high": ends.high}
    differ, shown = ends.low > 0 or ends.high < 0, list[Table]()
    test = f"paired bootstrap with {RESAMPLES:,} resamples"
    if first is not None and second is not None:
        second = _visible_examples(second)
        shown = [*tables.differences(first, second, names)]
        found["counts"] = dict(shown[0].rows)
        if _decided(first, second):
            only = [int((sign * (first.right - second.right) > 0).sum()) for sign in (1, -1)]
            found["p_value"] = mcnemar(*only)
            differ = found["p_value"] < 0.05
            p_value = found["p_value"]
            test = f"exact McNemar test, p {'< 0.0001' if p_value < 1e-4 else f'= {p_value:.4f}'}"
    found["test"] = test
    found["sentence"] = (
        f"On the same examples, the {measure} of {names[0]} minus that of {names[1]} is {value:+.4f}, with a 95 % interval from "
        f"{ends.low:+.4f} to {ends.high:+.4f}. {'Chance does not explain this' if differ else 'Chance may explain this'}: {test}."
    )
    return found, shown


def check_comparable(first: Any, second: Any, *, name: str) -> None:
    """Raises BertKerasError unless two tasks read the same texts and give the same labels. name: of the second model."""
    for what, one, other in (
        ("task", first.kind, second.kind),
        ("texts", sorted(first.signature()), sorted(second.signature())),
        ("labels", [*first.label_names], [*second.label_names]),
        ("type of labels", getattr(first, "label_type", ""), getattr(second, "label_type", "")),
    ):
        if one != other:
            given, wanted = (first_names(x) if isinstance(x, list) else x for x in (other, one))
            raise BertKerasError(
                f"{name} has another {what}: {given or 'none'}, not {wanted or 'none'}; compare runs of one task with the same "
                "labels."
            )


# -----------------------------------------------------------------------------------------------------------
# Texts of any kind, as a page and a spreadsheet can show them


def visible(text: str) -> str:
    """A text with a sign in the place of each control character."""
    return text.translate(_VISIBLE)


def _visible_examples(judged: Judged) -> Judged:
    texts = {name: [visible(text) for text in column] for name, column in judged.texts.items()}
    gold, predicted = ([visible(str(one)) for one in column] for column in (judged.gold, judged.predicted))
    return dataclasses.replace(judged, texts=texts, gold=gold, predicted=predicted)


def _visible(table: Table) -> Table:
    """A table whose texts are cut after LONGEST letters."""

    def show(value: Any) -> Any:
        value = plain(value)
        if not isinstance(value, str):
            return value
        text = visible(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"

    rows = [tuple(map(show, row)) for row in table.rows]
    return table._replace(rows=rows, columns=tuple(map(show, table.columns)))


def _safe_cell(value: Any) -> str:
    """The text of a cell that a spreadsheet does not compute: a quote stands before a formula."""
    text = str(value)
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _write_examples(path: pathlib.Path, judged: Judged) -> None:
    """A row for each labelled example, in UTF-8 with the mark by which spreadsheets know it."""
    columns: dict[str, Sequence[Any]] = {"row": judged.rows.tolist(), **judged.texts}
    columns |= {"gold": judged.gold, "predicted": judged.predicted, "right": judged.right.tolist()}
    if judged.confidence is not None:
        columns["confidence"] = judged.confidence.tolist()
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([_safe_cell(name) for name in columns])
        writer.writerows([_safe_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
