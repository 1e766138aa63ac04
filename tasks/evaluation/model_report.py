"""The report of a measured model: a page, JSON and a table of all examples.

In: a task, its predictions and raw examples, and the history of the training, if it is known. Out: a `ModelReport`, which
`write_reports` writes as report.html, report.json and examples.csv.
"""

import csv
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras.io.files import write_json
from bert_keras.io.folders import Existing, atomic_folder
from bert_keras.io.formats import made_by
from bert_keras.io.paths import to_path
from bert_keras.pages.charts import shorten
from bert_keras.pages.page import render
from bert_keras.tasks.evaluation import tables
from bert_keras.tasks.evaluation.intervals import interval, resample
from bert_keras.tasks.evaluation.measured import compare, measure, visible
from bert_keras.tasks.report import Arrays, Judged, Report, Table, plain

PAGE, JSON, EXAMPLES = "report.html", "report.json", "examples.csv"
# Why a measure is too high.
TRAINED = "The model has learned from these examples, so the measure says little about other texts."
CHOSEN = "These examples chose the epoch, so the measure is a little too high; measure others before you rely on it."
LONGEST = 300  # letters of a text on a page, the mark of a cut included; examples.csv has the rest


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelReport:
    """The content of a page, which a notebook shows.

    content: plain JSON: "task", "model", "split", "examples", "measure", "baseline", "measures" with their intervals, "sentence",
        "comparison" and "tables"
    sections: title of a section -> its tables
    judged: the labelled examples; None for a task that lists none
    """

    content: Mapping[str, Any]
    sections: Mapping[str, Sequence[Table]]
    judged: Judged | None

    def __repr__(self) -> str:
        return f"<ModelReport of {self.content['title']}: {self.content['sentence']}>"

    def page(self) -> str:
        """The page as HTML that needs no other file."""
        return render("report.html", **self.content, sections=self.sections)

    def save(self, folder: Any) -> None:
        """Writes the page, the JSON and the table of examples into a new or empty folder. Raises as `write_reports`."""
        write_reports({self.content["split"]: self}, to_path(folder))

    def _repr_html_(self) -> str:
        return render("frame.html", title=self.content["title"], page=self.page(), height=670)


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
            (place / PAGE).write_text(report.page(), encoding="utf-8")
            write_json(place / JSON, report.content)
            if report.judged is not None:
                _write_examples(place / EXAMPLES, report.judged)


def make_report(
    task: Report,
    predictions: Arrays,
    raw: Arrays,
    *,
    name: str,
    model: str,
    split: str,
    history: Sequence[Mapping[str, float]] = (),
    compared: tuple[str, Any, Arrays] | None = None,
    caution: str = "",
    index: Any = None,
) -> ModelReport:
    """Measures predictions, with 95 % intervals, and collects the tables of a page.

    name, model, split: of the task, of the model and of the examples, for the title
    history: the values of each epoch by name, as in results.json
    compared: a second model on the same examples: its name, its task with its own numbers, such as a threshold, its predictions
    caution: TRAINED, CHOSEN or nothing
    index: the name of each raw example, such as the index of a data frame; None counts them from 0

    Raises BertKerasError as `evaluate` does, and for a measure that is not a finite number.
    """
    found = measure(model, task, predictions, raw)
    judged = found.judged
    if judged is not None and index is not None:
        judged = dataclasses.replace(judged, rows=np.asarray(index, object)[judged.rows])
        found = dataclasses.replace(found, judged=judged)
    samples = resample(found.of_rows, found.rows)
    rows = [(key, value, *interval(samples[key])) for key, value in found.values.items()]
    about = (
        "With 95 % confidence, the measure on all texts of this kind is in the interval. It has 95 % of the values that "
        f"{len(samples[task.measure]):,} random samples of these examples have."
    )
    comparison, differences = None, list[Table]()
    if compared is not None:
        comparison, differences = compare(found, measure(*compared, raw))
    own = itertools.chain(task.report(predictions, raw), task.views(predictions, raw))
    sections = {
        "Measures": [Table("All measures", ("measure", "value", "from", "to"), rows, "", about)],
        "Comparison": differences,
        "Training": tables.learning_curves(history),
        **_tables_of_examples(judged, [*own]),
    }
    shown = {title: cut for title, made in sections.items() if (cut := [*map(_visible, made)])}
    measures = {key: {"value": value, "low": low, "high": high} for key, value, low, high in rows}
    baseline = float(task.baseline(raw))
    content = {
        "title": f"{name}, {split}",
        "task": name,
        "model": model,
        "split": split,
        "examples": len(found.rows),
        "unlabelled": len(next(iter(raw.values()))) - len(found.rows),
        "right": int(found.judged.right.sum()) if found.decided and found.judged is not None else None,
        "measure": task.measure,
        "baseline": baseline,
        "measures": measures,
        "about_measures": task.about_measures(),
        "sentence": _sentence(task.measure, baseline=baseline, **measures[task.measure]),
        "caution": caution,
        "comparison": comparison,
        "tables": [as_plain(table) for made in shown.values() for table in made],
        "made_by": made_by(),
    }
    return ModelReport(content=content, sections=shown, judged=judged)


def _tables_of_examples(judged: Judged | None, own: list[Table]) -> dict[str, Any]:
    """Sections: errors, the task's own tables, and mistakes. A table of the task that lists mistakes is left out."""
    if judged is None:
        return {"The task": own}
    return {
        "Errors": [*tables.errors_by_length(judged), *tables.calibration(judged)],
        "The task": [table for table in own if table.columns[0] not in judged.texts],
        "Mistakes": tables.mistakes(judged),
    }


def _sentence(name: str, *, value: float, low: float, high: float, baseline: float) -> str:
    measured = f"{name}: {value:.4f}, with a 95 % interval from {low:.4f} to {high:.4f}."
    if baseline == 0 < low:  # any right answer is better
        return f"{measured} The most common answer alone reaches 0."
    verdict = "worse" if high < baseline else "clearly better" if low > baseline else "not clearly better"
    return f"{measured} That is {verdict} than {baseline:.4f}, which the most common answer alone reaches."


def as_plain(table: Table) -> dict[str, Any]:
    """A table as plain JSON: title, columns, rows and the sentence about it."""
    rows = [[plain(value) for value in row] for row in table.rows]
    return {"title": table.title, "columns": [*table.columns], "rows": rows, "about": table.about}


def _visible(table: Table) -> Table:
    """A table whose texts are cut after LONGEST letters."""

    def show(value: Any) -> Any:
        value = plain(value)
        if not isinstance(value, str):
            return value
        return visible(shorten(value, LONGEST))

    rows = [tuple(map(show, row)) for row in table.rows]
    return table._replace(rows=rows, columns=tuple(map(show, table.columns)))


def _write_examples(path: pathlib.Path, judged: Judged) -> None:
    """A row for each labelled example, in UTF-8 with the mark by which spreadsheets know it."""
    columns: dict[str, Sequence[Any]] = {"example": judged.rows.tolist(), **judged.texts}
    columns |= {"gold": judged.gold, "predicted": judged.predicted, "right": judged.right.tolist()}
    if judged.confidence is not None:
        columns["confidence"] = judged.confidence.tolist()
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([_safe_cell(name) for name in columns])
        writer.writerows([_safe_cell(value) for value in row] for row in zip(*columns.values(), strict=True))


def _safe_cell(value: Any) -> str:
    """The text of a cell that a spreadsheet does not compute: a quote stands before all but numbers that may open a formula."""
    text = str(value)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if re.match(r"\s*[-=+@＝＋－＠]", text) else text
    return text
