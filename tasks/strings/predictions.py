"""The predictions of a TextModel: arrays by name, which a notebook shows as a table and which become a pandas data frame.

In: decoded arrays, the problem that decoded them, the texts and their index. Out: a dict.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.errors import BertKerasError, MissingPackageError
from bert_keras.tasks.report import Arrays, plain
from bert_keras.tasks.runs.notebook import ROWS, show_rows
from bert_keras.tasks.task import LABEL_NAMES, PROBABILITIES

if TYPE_CHECKING:
    import pandas


class Predictions(dict[str, np.ndarray]):
    """The decoded predictions [N, ...] by name, in the order of the texts. A copy or a pickle of them is a plain dict.

    report: the Report that makes records and rows of the arrays
    texts: the raw texts by name, of which the first are kept, for a notebook
    index: that of the data frame or column with the texts, [N] or longer; None numbers the texts
    """

    def __init__(self, arrays: Arrays, report: Any, texts: Arrays, index: Any = None) -> None:
        super().__init__(arrays)
        self._report, self._index = report, index
        self._texts = {name: values[:ROWS] for name, values in texts.items()}

    def __reduce__(self) -> Any:
        return dict, ({**self},)

    def records(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The predictions of each text as plain values, as `bert-keras predict` prints them in JSON: entities are dicts."""
        rows = range(len(next(iter(self.values()))))[:limit]
        return [self._report.record({name: values[i] for name, values in self.items()}) for i in rows]

    def frame(self, rows: str | None = None) -> "pandas.DataFrame":
        """The predictions as a pandas data frame: a row for each text, with the index of the data frame that held the texts.

        rows: the name of a list in the records, such as "entities" or "nbest"; each of its elements is a row then, with the index
            of its text, and a text may have no row

        "probabilities" become "probability", that of the label, and a column for each label, such as "probability_good"; other
        values are those of `records`. Raises BertKerasError for a name that is no such list, and where pandas is missing.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingPackageError(
                "frame() needs pandas, which is not installed; pip install pandas"
            ) from error
        records = self.records()
        index = pandas.RangeIndex(len(records)) if self._index is None else self._index[: len(records)]
        if rows is None:
            return pandas.DataFrame([_columns(record) for record in records], index=index)
        lists = sorted({name for record in records for name, value in record.items() if _is_rows(value)})
        if rows not in lists:
            raise BertKerasError(
                f"rows is {rows!r}; the lists in these predictions are {', '.join(lists) or 'none'}."
            )
        counts = [len(record[rows]) for record in records]
        found = [element for record in records for element in record[rows]]
        return pandas.DataFrame(found, index=index.repeat(counts))

    def _repr_html_(self) -> str:
        records = self.records(ROWS)
        texts = [
            {name: plain(values[i]) for name, values in self._texts.items()} for i in range(len(records))
        ]
        shown = [self._report.show(text, record) for text, record in zip(texts, records, strict=True)]
        return show_rows(shown, len(next(iter(self.values()))))


def _is_rows(value: Any) -> bool:
    """True for a list of dicts, which may be empty."""
    return isinstance(value, list) and all(isinstance(element, dict) for element in value)


def _columns(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its probabilities in columns of their own."""
    columns = {name: value for name, value in record.items() if name not in (PROBABILITIES, LABEL_NAMES)}
    if PROBABILITIES in record:
        values = record[PROBABILITIES]
        if "label" in record:
            columns["probability"] = max(values)
        names = record.get(LABEL_NAMES) or range(len(values))
        columns |= {f"probability_{name}": value for name, value in zip(names, values, strict=True)}
    return columns


def index_of(x: Any) -> Any:
    """The index of a data frame or column of pandas, or of the first column of several; None for other texts."""
    several = [*x.values()] if isinstance(x, Mapping) else x
    first = several[0] if isinstance(several, tuple | list) and several else several
    return first.index if hasattr(first, "iloc") else None
