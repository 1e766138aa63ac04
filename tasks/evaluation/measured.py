"""A model's predictions of labelled examples, measured, and the comparison of two models on the same examples.

In: a task, its predictions and raw examples as `Report.evaluate` takes them. Out: measures, judged examples, a difference.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from bert_keras.errors import BertKerasError, first_names
from bert_keras.tasks.evaluation import tables
from bert_keras.tasks.evaluation.intervals import RESAMPLES, Measure, interval, mcnemar, resample
from bert_keras.tasks.report import Arrays, Judged, Report, Table

# Control characters as a sign for each: a page, a chart and a spreadsheet have no place for them.
_VISIBLE = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}
_VISIBLE |= dict.fromkeys((*range(128, 160), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)), 0xFFFD)


def visible(text: str) -> str:
    """A text with a sign in the place of each control character."""
    return text.translate(_VISIBLE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """A model on labelled examples.

    name: of the model; measure: the main measure; values: all measures by name
    of_rows: `Report.resampled`; rows: int [N], the labelled examples
    judged: None for a task that lists no examples
    """

    name: str
    measure: str
    values: dict[str, float]
    of_rows: Measure
    rows: np.ndarray
    judged: Judged | None

    @property
    def decided(self) -> bool:
        """True if each example is right or wrong, and nothing between."""
        return self.judged is not None and bool(np.isin(self.judged.right, (0, 1)).all())


def measure(name: str, task: Report, predictions: Arrays, raw: Arrays) -> Measured:
    """Measures predictions. Raises BertKerasError as `evaluate` does, and for a measure that is not a finite number."""
    values = {key: float(value) for key, value in task.evaluate(predictions, raw)}
    if wrong := [f"{key} is {value}" for key, value in values.items() if not math.isfinite(value)]:
        raise BertKerasError(f"{wrong[0]}: a prediction is not a finite number; train again.")
    judged, rows = task.judge(predictions, raw), np.arange(len(next(iter(raw.values()))))
    if judged is not None:
        rows = judged.rows
        texts = {name: [*map(visible, column)] for name, column in judged.texts.items()}
        gold, predicted = ([*map(visible, names)] for names in (judged.gold, judged.predicted))
        judged = dataclasses.replace(judged, texts=texts, gold=gold, predicted=predicted)
    of_rows = task.resampled(predictions, raw)
    counted = of_rows(rows)
    if {*counted} != {*values} or not all(
        math.isclose(counted[key], values[key], abs_tol=1e-9) for key in values
    ):
        of_rows = Report.resampled(task, predictions, raw)  # the class of a user has an `evaluate` of its own
    return Measured(name=name, measure=task.measure, values=values, of_rows=of_rows, rows=rows, judged=judged)


def compare(first: Measured, second: Measured) -> tuple[dict[str, Any], list[Table]]:
    """The difference of two models as plain JSON with a sentence, and tables of the examples on which they differ.

    The test is McNemar's where each example is right or wrong, else the paired bootstrap of the main measure.
    """
    main, names = first.measure, (first.name, second.name)

    def difference(rows: np.ndarray) -> dict[str, float]:
        return {main: first.of_rows(rows)[main] - second.of_rows(rows)[main]}

    value, (low, high) = difference(first.rows)[main], interval(resample(difference, first.rows)[main])
    found: dict[str, Any] = dict(models=[*names], measure=main, difference=value, low=low, high=high)
    differ, test, shown = low > 0 or high < 0, f"paired bootstrap, {RESAMPLES:,} resamples", list[Table]()
    if first.judged is not None and second.judged is not None:
        shown = [*tables.differences(first.judged, second.judged, names)]
        counts = [row[1] for row in shown[0].rows]
        of = ("both right", "first better", "second better", "both wrong")
        found["counts"] = dict(zip(of, counts, strict=True))
        if first.decided and second.decided:
            p_value = found["p_value"] = mcnemar(*counts[1:3])
            test = f"exact McNemar test, p {'< 0.0001' if p_value < 1e-4 else f'= {p_value:.4f}'}"
            differ = p_value < 0.05
    found["test"] = test
    found["sentence"] = (
        f"On the same examples, the {main} of {names[0]}, {first.values[main]:.4f}, minus that of {names[1]}, "
        f"{second.values[main]:.4f}, is {value:+.4f}, with a 95 % interval from "
        f"{low:+.4f} to {high:+.4f}. {'Chance does not explain this' if differ else 'Chance may explain this'}: {test}."
    )
    return found, shown


def check_comparable(first: Any, second: Any, *, name: str) -> None:
    """Raises BertKerasError unless two tasks read the same texts and give the same labels. name: of the second model."""
    sides = [
        {
            "task": [task.kind],
            "texts": sorted(task.signature()),
            "labels": task.label_names,
            "type of labels": [getattr(task, "label_type", "")],
        }
        for task in (first, second)
    ]
    for what, wanted in sides[0].items():
        if [*wanted] != [*sides[1][what]]:
            raise BertKerasError(
                f"{name} has another {what}: {first_names(sides[1][what])}, not {first_names(wanted)}; compare runs of one task "
                "with the same labels."
            )
