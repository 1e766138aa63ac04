"""The third role of a task: `Report` measures and shows the decoded predictions.

In: the outputs of `decode` and the raw examples, as arrays [N, ...]. Out: measures, `Judged` examples and `Table`s, which the
commands print and a report page (tasks/evaluation) draws.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from bert_keras.tasks.metrics import WHISKER

Arrays = Mapping[str, np.ndarray]  # decoded predictions or raw examples, [N, ...]
ERRORS_SHOWN = 10  # errors that a table lists


class Table(NamedTuple):
    """A table of a report.

    chart: how a page draws it above its rows, a key of `bert_keras.pages.charts.CHARTS`; "" draws nothing
    about: one or two sentences that say how to read it
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    chart: str = ""
    about: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """Predictions beside their labels, for N labelled examples: texts, sentences, documents, questions.

    rows: int [N], the rows of the raw examples
    texts: the texts of each example, by name, [N]
    gold, predicted: the label and the prediction as a person reads them, [N]
    right: float64 [N], 1 for a right prediction, 0 for a wrong one, or a fraction, such as the F1 of an answer
    confidence: float64 [N], the probability that the model gives its prediction; None where it gives none
    """

    rows: np.ndarray
    texts: Mapping[str, Sequence[str]]
    gold: Sequence[str]
    predicted: Sequence[str]
    right: np.ndarray
    confidence: np.ndarray | None = None


class Report(Protocol):
    """Measures and tables of decoded predictions.

    measure: the name in `evaluate` that chooses the best epoch
    official: the fields of a `record` that official scripts read by the ids of the examples, the first one the answer
    """

    measure: str
    official: tuple[str, ...] = ()

    @abstractmethod
    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields (name, value) from the outputs of `decode` and the raw examples."""
        ...

    def resampled(self, predictions: Arrays, raw: Arrays) -> Callable[[np.ndarray], Mapping[str, float]]:
        """A function of rows, int [M] with repeats, that returns their measures as `evaluate` gives them for all examples.

        A report calls it 1,000 times, with labelled rows. By default it calls `evaluate`; a problem that compares texts compares
        each example once, and counts again.
        """
        columns = [{name: np.asarray(one[name]) for name in one} for one in (predictions, raw)]

        def measure(rows: np.ndarray) -> dict[str, float]:
            return dict(self.evaluate(*({name: one[name][rows] for name in one} for one in columns)))

        return measure

    def calibrate(self, predictions: Arrays, raw: Arrays) -> tuple[Self, Arrays]:
        """Chooses numbers, such as a threshold, on a dev split; returns a task with these numbers, and its predictions.

        By default it returns this task and the predictions unchanged.
        """
        return self, predictions

    def degenerate(self, predictions: Arrays, raw: Arrays) -> str | None:
        """The reason why a run did not learn, from the predictions of a labelled split; None if it learned.

        By default a measure near 0.
        """
        value = dict(self.evaluate(predictions, raw))[self.measure]
        return None if value > WHISKER else f"{self.measure} {value:.4f}"

    def baseline(self, raw: Arrays) -> float:
        """The measure of the most common answer of a labelled split, given to all its examples.

        By default 0, as for entities: the most common tag is outside of them.
        """
        return 0.0

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """The decoded arrays [...] of one example as plain JSON values, without padding."""
        return {name: plain(value) for name, value in decoded.items()}

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """One row of a printed table, from an example's texts (by the names of `signature`) and its `record`."""
        cells = {**example, **record}
        return {name: cell(value) for name, value in cells.items()}

    def about_measures(self) -> str:
        """The rules behind the measures, for the title of their table; by default none."""
        return ""

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """Yields tables to print after the measures. By default none."""
        return iter(())

    def views(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """Yields further tables, which a report page and its JSON show after those of `report`. By default none."""
        return iter(())

    def judge(self, predictions: Arrays, raw: Arrays) -> Judged | None:
        """The labelled examples with their predictions, for a report page; by default None, and a page lists no example."""
        return None


# -----------------------------------------------------------------------------------------------------------
# Values of predictions as plain Python, and tables of errors


def plain(value: Any) -> Any:
    """Turns arrays, NumPy numbers and bytes into lists, numbers and strings; replaces bytes that are not UTF-8."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def cell(value: Any) -> str:
    """The text of a plain value in a table."""
    if isinstance(value, list):
        return " ".join(map(cell, value))
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def list_errors(
    wrong: np.ndarray,
    confidence: np.ndarray,
    columns: Sequence[str],
    describe: Callable[[int], Sequence[Any]],
    *,
    count: int | None = None,
) -> Iterator[Table]:
    """Yields a table of the most confident errors, if there are errors.

    wrong: the rows of all errors, int [E]
    confidence: [N]
    describe: row -> its cells before the confidence
    count: the number of examples; None is N
    """
    rows = [(*describe(i), float(confidence[i])) for i in most_confident(wrong, confidence)]
    of = len(confidence) if count is None else count
    if rows:
        yield Table(f"the most confident of {len(wrong)} errors in {of} examples", tuple(columns), rows)


def most_confident(rows: np.ndarray, confidence: np.ndarray, count: int = ERRORS_SHOWN) -> np.ndarray:
    """The `count` rows with the highest confidence, in falling order. rows: int [E]; confidence: [N]."""
    return rows[np.argsort(-confidence[rows], kind="stable")][:count]
