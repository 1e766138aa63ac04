"""Several runs of one task as one: the mean of their outputs."""

import dataclasses
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import keras

from bert_keras.errors import BertKerasError
from bert_keras.tasks.runs.run_folder import Run, load_run


class Ensemble(keras.Model):
    """The mean of several models' outputs."""

    def __init__(self, models: Sequence[keras.Model]) -> None:
        super().__init__(name="ensemble")
        self.members = list(models)
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = [member(inputs, training=training) for member in self.members]
        return keras.tree.map_structure(lambda *parts: sum(parts) / len(parts), *outputs)


def members_of(model: keras.Model) -> list[keras.Model]:
    """The models of an ensemble, or the model alone."""
    return model.members if isinstance(model, Ensemble) else [model]


def load_runs(paths: Sequence[str | pathlib.Path], *, data: str | pathlib.Path | None = None) -> Run:
    """Loads one run, or several runs of one task as an ensemble: their outputs and calibrated numbers are averaged.

    Raises as `load_run`, and BertKerasError if the runs differ in task, labels or preprocessing.
    """
    runs = [load_run(path, data=data) for path in paths]
    first = runs[0]
    for run in runs[1:]:
        if _reads(run) != _reads(first):
            raise BertKerasError(
                f"{run.path} differs from {first.path} in its task, labels or preprocessing; "
                "give runs that differ only in their weights."
            )
    if len(runs) == 1:
        return first
    kept = [run.task.to_json() for run in runs]
    means = {name: statistics.fmean(one[name] for one in kept) for name in first.task.calibrated}
    task = type(first.task).from_json(kept[0] | means, data)
    return dataclasses.replace(first, task=task, model=Ensemble([run.model for run in runs]))


def _reads(run: Run) -> Any:
    """The properties that must be equal in the runs of an ensemble."""
    tokenizer, task = run.preprocess.tokenizer, run.task
    return (
        (task.kind, {name: value for name, value in task.to_json().items() if name not in task.calibrated}),
        (run.preprocess.seq_length, run.preprocess.truncation),
        (tokenizer.digest, tokenizer.lower_case),
    )
