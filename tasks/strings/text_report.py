"""The report of a TextModel on labelled texts, and the examples that it measures."""

import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.files import data_errors
from bert_keras.io.folders import check_folder
from bert_keras.io.own_code import name_of
from bert_keras.io.paths import to_path
from bert_keras.tasks.evaluation.measured import check_comparable
from bert_keras.tasks.evaluation.model_report import ModelReport, make_report, write_reports
from bert_keras.tasks.strings import text_data
from bert_keras.tasks.strings.predictions import index_of


class Reported:
    """The part of a TextModel that measures it for people."""

    def report(
        self: Any,
        x: Any,
        y: Any = None,
        folder: str | pathlib.Path | None = None,
        *,
        compare: Any = None,
        batch_size: int | None = None,
    ) -> ModelReport:
        """Measures labelled texts: a page with intervals, charts and the most confident mistakes. A notebook shows it.

        x, y, batch_size: as `evaluate` takes them
        folder: new or empty, gets report.html, report.json and examples.csv; None writes nothing
        compare: a second TextModel, which predicts the same texts; the page tests the difference of the two

        The numbers are the `content` of what it returns. It draws the losses of the last `fit`, too. Raises BertKerasError before
        any prediction for wrong labels, a folder with files, and models of different tasks or labels.
        """
        problem = self.problem
        if not hasattr(problem, "evaluate"):
            raise BertKerasError(f"{name_of(problem)} has no measures; a bert_keras.Task has.")
        if compare is not None:
            check_comparable(problem, compare.problem, name="the other model")
        if folder is not None:
            check_folder(to_path(folder))
        if isinstance(x, tf.data.Dataset):
            batches = text_data.raw_batches(problem, self.preprocess, x, y, batch_size=batch_size)
            examples = batches.unbatch()
        else:
            columns = text_data.raw_columns(problem, self.preprocess, x, y)
            examples = tf.data.Dataset.from_tensor_slices({**columns})
        with data_errors():
            found = self._predict_examples(examples, batch_size=batch_size)
            compared = None
            if compare is not None:
                other, _ = compare._predict_examples(examples, batch_size=batch_size)
                compared = "the other model", compare.problem, other
        about: Any = {"name": problem.kind, "model": "this model", "split": "the given texts"}
        history = _by_epoch(getattr(self, "history", None))
        report = make_report(problem, *found, history=history, compared=compared, index=index_of(x), **about)
        if folder is not None:
            write_reports({"": report}, to_path(folder))
        return report


def _by_epoch(history: Any) -> list[Mapping[str, float]]:
    """The values of each epoch by name, from Keras' History; [] without one."""
    columns = getattr(history, "history", None) or {}
    rows = (zip(columns, row, strict=True) for row in itertools.zip_longest(*columns.values()))
    return [{name: float(value) for name, value in row if value is not None} for row in rows]
