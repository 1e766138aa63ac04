"""Ensembles, several runs of one task whose outputs are averaged; and runs at another precision.

In: the folders of runs, or a Run. Out: a Run for evaluation and exports.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import keras

from bert_keras.checkpoints.weights import check_weights, plain_paths
from bert_keras.errors import BertKerasError, first_names
from bert_keras.fields import checked_value
from bert_keras.model.feature_bilstm import bilstm_of
from bert_keras.model.layers import denses_in
from bert_keras.tasks.options import InferenceOptions
from bert_keras.tasks.runs.run_folder import Run, load_run
from bert_keras.tasks.task import Problem, Task
from bert_keras.tasks.training.task_model import (
    Ensemble,
    encoder_of,
    freeze,
    frozen_layers,
    members_of,
    network_of,
)


def load_runs(
    paths: Sequence[str | pathlib.Path],
    *,
    data: str | pathlib.Path | None = None,
    task: str | type[Task] | None = None,
) -> Run:
    """Loads one run, or several runs of one task as an ensemble: their outputs and calibrated numbers are averaged.

    task: as in `load_run`. Raises as `load_run`, and BertKerasError if the runs differ in task, labels or preprocessing.
    """
    runs = [load_run(path, data=data, task=task) for path in paths]
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
    mean = type(first.task).from_json(kept[0] | means, data)
    return dataclasses.replace(first, task=mean, model=Ensemble([run.model for run in runs]))


def _reads(run: Run) -> Any:
    """The properties that must be equal in the runs of an ensemble."""
    tokenizer, task = run.preprocess.tokenizer, run.task
    return (
        (task.kind, {name: value for name, value in task.to_json().items() if name not in task.calibrated}),
        (run.preprocess.seq_length, run.preprocess.truncation),
        (tokenizer.digest, tokenizer.lower_case),
    )


def at_precision(run: Run, precision: str | None) -> Run:
    """The run with its weights rounded to a format, in which its model computes.

    precision: one of PRECISIONS; None returns the run as it is. In bfloat16 and float16 the weights take half of the memory and
        of an export's size; norms and logits are float32. `bert_keras.export(at_precision(run, "bfloat16"), ...)` writes
        a SavedModel that computes so

    LoRA is merged. Raises BertKerasError for another precision, for int8 kernels, and for a network with layers of its own.
    """
    precision = checked_value(InferenceOptions, "precision", precision)
    if precision is None:
        return run
    members = [_model_at(run.task, member, precision) for member in members_of(run.model)]
    model = Ensemble(members) if isinstance(run.model, Ensemble) else members[0]
    return dataclasses.replace(run, model=model)


def _model_at(problem: Problem, model: keras.Model, precision: str) -> keras.Model:
    """The problem's model in a format, with the values of a model's weights."""
    bilstm = bilstm_of(model)
    _, made = network_of(
        problem, encoder_of(model).config, bilstm.settings if bilstm else None, dtype=precision
    )
    values, wanted = _values(model), dict(zip(_paths(made), made.weights, strict=True))
    if others := {*values} ^ {*wanted}:
        raise BertKerasError(
            f"the network has layers of its own ({first_names(sorted(others))}), whose precision is fixed; leave precision out, "
            f"or make the model with dtype={precision!r}."
        )
    for path, variable in wanted.items():
        variable.assign(keras.ops.cast(values[path], variable.dtype))
    check_weights(made.weights, where=f" in {precision}")
    freeze(made, frozen_layers(model))
    return made


def _paths(model: keras.Model) -> list[str]:
    """The path of each weight, without the numbers that Keras gives to layers."""
    paths = [one.path for one in model.weights]
    plain = plain_paths(paths, model._flatten_layers(include_self=False))
    return [plain[path] for path in paths]


def _values(model: keras.Model) -> dict[str, Any]:
    """Path -> the value of each weight; kernels with LoRA are merged."""
    named = dict(zip(_paths(model), model.weights, strict=True))
    merged = {}
    for dense in denses_in(model).values():
        if dense.quantization_mode is not None:
            raise BertKerasError(
                f"{dense.path} is quantized to {dense.quantization_mode}, which is a precision of its own; leave precision out."
            )
        if dense.lora_enabled:
            merged[id(dense._kernel)] = dense.kernel
    return {path: merged.get(id(one), one) for path, one in named.items() if not one.name.startswith("lora_")}
