"""The plan of a training: everything is decided and checked, and nothing is trained.

plan_finetuning, plan_pretraining -> Plan -> tasks/training/loop.py

The digests at the end are for the fingerprint: they identify data and weights.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.io.files import digest
from bert_keras.text.tokenizer import Tokenizer

BATCH = 1024  # examples that are read together
WEIGHTS_SHA256 = "weights_sha256"  # of the tensors, whatever the format of their file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Epochs of equal length with batches of the same structure: one call of `fit`.

    steps: optimizer steps in an epoch
    batches: step -> the batches (features, labels, weights) of the stage starting at this step; a pure function. With several
        workers, the result may be a tf.distribute.DistributedDataset
    reading: a context for reading the batches, which turns TensorFlow's errors into ours
    name: the word for an epoch in progress lines
    """

    steps: int
    epochs: int = 1
    name: str = "epoch"
    batches: Callable[[int], Any]
    reading: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @property
    def total(self) -> int:
        """Optimizer steps in the stage."""
        return self.steps * self.epochs


class Monitor(keras.callbacks.Callback):
    """Evaluates during training and keeps weights; its state is saved and restored with the run.

    others: further callbacks for `fit`
    stopped: True after the epoch at which the training stops early. It follows from `memory`, so that a resume knows it

    With several workers, each has one: what decides if the training stops, or which weights are kept, is the chief's
    (`Workers.from_chief`).
    """

    others: Sequence[keras.callbacks.Callback] = ()

    @property
    def stopped(self) -> bool:
        return False

    def begin(self, stage: int, step: int) -> None:
        """Called before each stage. step: the steps done in all stages."""

    def memory(self) -> Any:
        """The state to save: plain JSON for `recall`."""
        raise NotImplementedError

    def recall(self, memory: Any) -> None:
        """Restores what `memory` returned. All workers call it, at the same step."""
        raise NotImplementedError

    def results(self) -> Mapping[str, Any]:
        """Writes the last weights; returns the results of the finished run, plain JSON."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A training that is ready to run.

    fingerprint: everything that decides the result bit for bit, plain JSON
    model: a TrainingSteps model, compiled; model and optimizer are built
    monitor: (a worker's folder for the run, log, workers) -> the Monitor
    lines: messages to log before the training begins
    prepared: (the run's folder, workers, log) -> a context for the training, whose beginning is the work before the first step; a
        signal stops this work at once
    """

    fingerprint: Mapping[str, Any]
    model: keras.Model
    stages: Sequence[Stage]
    monitor: Callable[..., Monitor]
    lines: Sequence[str] = ()
    prepared: Callable[..., contextlib.AbstractContextManager[None]] = lambda path, **how: (
        contextlib.nullcontext()
    )

    @property
    def steps(self) -> int:
        """Optimizer steps in all stages."""
        return sum(stage.total for stage in self.stages)


def digest_of_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays."""
    ordered = sorted(tensors.items())
    return digest(part for name, array in ordered for part in (name, np.ascontiguousarray(array).tobytes()))


def digest_of_examples(examples: tf.data.Dataset) -> str:
    """SHA-256 of all examples, dicts of tensors, in their order."""
    names = sorted(examples.element_spec)
    rows = examples.batch(BATCH).map(
        lambda batch: [tf.io.serialize_tensor(batch[name]) for name in names],
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return digest(itertools.chain(names, itertools.chain.from_iterable(rows.as_numpy_iterator())))


def origin_of(source: Checkpoint | None) -> dict[str, str]:
    """The initial weights for results.json: their `Checkpoint.origin` and their SHA-256; {} for random weights."""
    if source is None or not source.tensors:
        return {}
    return {**source.origin, WEIGHTS_SHA256: digest_of_tensors(source.tensors)}


def fingerprint_of_checkpoint(source: Checkpoint, tokenizer: Tokenizer) -> dict[str, Any]:
    """The fields of a fingerprint for the initial weights, configuration and vocabulary."""
    return {
        "vocabulary": tokenizer.digest,
        "lower_case": tokenizer.lower_case,
        "config": source.config.to_dict(),
        "checkpoint": digest_of_tensors(source.tensors),
    }
