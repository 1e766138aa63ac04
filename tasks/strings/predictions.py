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

    report: the Report that makes records and rows of the arrays; None where another library rebuilt the dict
    texts: the raw texts by name, of which the first are kept, for a notebook
    index: that of the data frame or column with the texts, [N] or longer; None numbers the texts
    """

    def __init__(
        self, arrays: Any = (), report: Any = None, texts: Arrays | None = None, index: Any = None
    ) -> None:
        super().__init__(arrays)
        self._report, self._index = report, index
        self._texts = {name: values[:ROWS] for name, values in (texts or {}).items()}

    def __reduce__(self) -> Any:
        return dict, ({**self},)

    def records(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The predictions of each text as plain values, as `bert-keras predict` prints them in JSON: entities are dicts."""
        if self._report is None:
            raise BertKerasError("these predictions were copied without their task; use what predict() gave.")
        rows = range(self._count())[:limit]
        return [self._report.record({name: values[i] for name, values in self.items()}) for i in rows]

    def frame(self, rows: str | None = None) -> "pandas.DataFrame":
        """The predictions as a pandas data frame: a row for each text, with the index of the data frame that held the texts.

        rows: "entity" of a tagger, "nbest" of a question answerer, "mask" or "token": each of these in a text is a row then, with
            the index of its text; its columns are the predictions whose names start with this word

        "probabilities" become "probability", that of the label, and a column for each label, such as "probability_good"; other
        values are those of `records`. Raises BertKerasError for a name that is no such list, and where pandas is missing.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingPackageError(
                "frame() needs pandas, which is not installed; pip install pandas"
            ) from error
        count = self._count()
        index = pandas.RangeIndex(count) if self._index is None else self._index[:count]
        if rows is None:
            return pandas.DataFrame([_columns(record) for record in self.records()], index=index)
        lists = getattr(self._report, "lists", {})
        if rows not in lists:
            raise BertKerasError(
                f"rows is {rows!r}; the lists in these predictions are {', '.join(lists) or 'none'}."
            )
        real = self[lists[rows]] >= 0  # [N, E]
        named = {name: values[real] for name, values in self.items() if name.startswith(f"{rows}_")}
        columns = {name[len(rows) + 1 :]: [*one] if one.ndim > 1 else one for name, one in named.items()}
        return pandas.DataFrame(columns, index=index.repeat(real.sum(axis=1)))

    def _count(self) -> int:
        return len(next(iter(self.values())))

    def _repr_html_(self) -> str | None:
        if self._report is None:
            return None
        records = self.records(ROWS)
        texts = ({name: plain(one[i]) for name, one in self._texts.items()} for i in range(len(records)))
        shown = [self._report.show(text, record) for text, record in zip(texts, records, strict=True)]
        return show_rows(shown, self._count())


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
