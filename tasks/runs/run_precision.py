"""Runs at another precision: the same weights, in a model that computes in another number format.

In: a Run or an ensemble of runs. Out: a Run whose model has this format's weights and computation, for evaluation and exports.
"""

import dataclasses
from typing import Any

import keras

from bert_keras.errors import BertKerasError, listed
from bert_keras.model.feature_bilstm import bilstm_of
from bert_keras.model.layers import denses_in
from bert_keras.model.precision import PRECISIONS
from bert_keras.tasks.runs.ensemble import Ensemble
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.task import Problem
from bert_keras.tasks.training.task_model import (
    encoder_of,
    freeze,
    frozen_layers,
    network_of,
)


def at_precision(run: Run, precision: str | None) -> Run:
    """The run with its weights rounded to a format, in which its model computes.

    precision: one of PRECISIONS; None returns the run as it is. In bfloat16 and float16 the weights take half of the memory and
        of an export's size; norms and logits are float32. `bert_keras.export(at_precision(run, "bfloat16"), ...)` writes
        a SavedModel that computes so

    LoRA is merged. Raises BertKerasError for another precision, for int8 kernels, and for a network with layers of its own.
    """
    if precision is None:
        return run
    if precision not in PRECISIONS:
        raise BertKerasError(f"precision is {precision!r}; give one of {', '.join(PRECISIONS)}.")
    if isinstance(run.model, Ensemble):
        members = [_model_at(run.task, member, precision) for member in run.model.members]
        return dataclasses.replace(run, model=Ensemble(members))
    return dataclasses.replace(run, model=_model_at(run.task, run.model, precision))


def _model_at(problem: Problem, model: keras.Model, precision: str) -> keras.Model:
    """The problem's model in a format, with the values of a model's weights."""
    bilstm = bilstm_of(model)
    _, made = network_of(
        problem, encoder_of(model).config, bilstm.settings if bilstm else None, dtype=precision
    )
    values = _values(model)
    if others := {*values} ^ {one.path for one in made.weights}:
        raise BertKerasError(
            f"the network has layers of its own ({listed(sorted(others))}), whose precision is fixed; leave precision out, "
            f"or make the model with dtype={precision!r}."
        )
    for variable in made.weights:
        variable.assign(keras.ops.cast(values[variable.path], variable.dtype))
    freeze(made, frozen_layers(model))
    return made


def _values(model: keras.Model) -> dict[str, Any]:
    """Path -> the value of each weight; kernels with LoRA are merged."""
    values = {one.path: one for one in model.weights if not one.name.startswith("lora_")}
    for dense in denses_in(model).values():
        if dense.quantization_mode is not None:
            raise BertKerasError(
                f"{dense.path} is quantized to {dense.quantization_mode}, which is a precision of its own; leave precision out."
            )
        if dense.lora_enabled:
            values[dense._kernel.path] = dense.kernel
    return values
