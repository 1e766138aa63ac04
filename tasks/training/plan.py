"""The plan of a training: everything decided and checked, nothing trained.

plan_finetuning, plan_pretraining -> Plan -> tasks/training/loop.py
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Epochs of equal length on batches of one form: one call of `fit`.

    steps: optimizer steps in an epoch
    batches: step -> batches (features, labels, weights) from that step of the stage on; a pure function
    reading: a context in which the batches are read, which gives TensorFlow's errors our words
    """

    steps: int
    epochs: int = 1
    batches: Callable[[int], tf.data.Dataset]
    reading: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @property
    def total(self) -> int:
        """Optimizer steps in the stage."""
        return self.steps * self.epochs


class Monitor(keras.callbacks.Callback):
    """Measures a training and keeps weights; the run remembers it across a kill.

    others: callbacks that `fit` takes beside it
    """

    others: Sequence[keras.callbacks.Callback] = ()

    def begin(self, stage: int, step: int) -> None:
        """Called before each stage, with the steps done in all stages."""

    def memory(self) -> Any:
        """Plain JSON from which `recall` restores it."""
        raise NotImplementedError

    def recall(self, memory: Any) -> None:
        """Restores what `memory` returned."""
        raise NotImplementedError

    def results(self) -> Mapping[str, Any]:
        """Writes the last weights; the results of the finished run, plain JSON."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A training that is ready to run.

    identity: all that decides the result's bits, plain JSON
    model: trains by TrainingSteps; compiled, model and optimizer built
    monitor: (the run's folder) -> what measures and keeps weights
    lines: for a person, before the training begins
    """

    identity: Mapping[str, Any]
    model: keras.Model
    stages: Sequence[Stage]
    monitor: Callable[..., Monitor]
    lines: Sequence[str] = ()

    @property
    def steps(self) -> int:
        """Optimizer steps in all stages."""
        return sum(stage.total for stage in self.stages)
