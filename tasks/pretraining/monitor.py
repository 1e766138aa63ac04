"""Monitors a pre-training: logs, held-out measures, baselines, curves and snapshots."""

import dataclasses
import itertools
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.io.files import atomic_file
from bert_keras.optimization.objectives import Objective
from bert_keras.tasks.devices.strategies import drawing_from
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.hparams import PretrainHparams
from bert_keras.tasks.pretraining.instance_sources import HELD_OUT_SEED, InstanceSource
from bert_keras.tasks.pretraining.model import schedule
from bert_keras.tasks.runs.run_folder import FILES, digests
from bert_keras.tasks.training.loop import LOGS
from bert_keras.tasks.training.plan import Monitor
from bert_keras.tasks.training.saver import check_loss, steps_done

CURVES, SNAPSHOTS = "curves.png", "snapshots"
HELD_OUT_LOSS = "held_out_loss"


@dataclasses.dataclass(kw_only=True)
class RunInputs:
    """The inputs that a pre-training's monitor and stages share.

    objectives, held_out: one for each phase
    save: writes the weights into a folder
    about: fields of results.json that are known before the training
    place: the position in the source where the first stage starts
    """

    source: InstanceSource
    hparams: PretrainHparams
    objectives: Sequence[Sequence[Objective]]
    held_out: Sequence[tf.data.Dataset | None]
    snapshots: Sequence[int]
    save: Callable[[pathlib.Path], None]
    about: Mapping[str, Any]
    place: Sequence[int] | None = None


class PretrainingMonitor(Monitor):
    """Keeps the history, evaluates on held-out instances and writes snapshots.

    log: receives a line for each evaluation
    history: a row for each log: step, rate, tokens_per_second, measures; names of held-out measures start with `held_out_`
    """

    def __init__(
        self, path: pathlib.Path, *, inputs: RunInputs, log: Callable[[str], None], workers: Workers
    ) -> None:
        super().__init__()
        self._path, self._inputs, self._workers = path, inputs, workers
        self._log_line = log
        self._writer = tf.summary.create_file_writer(str(path / LOGS))
        self.history: list[dict[str, Any]] = []
        self.step = 0
        self._phase = 0
        self._since = time.monotonic()
        self._before = 0.0  # seconds since the last log, in the run that is resumed

    def begin(self, stage: int, step: int) -> None:
        self._phase, self.step = stage, step
        self._since, self._before = time.monotonic() - self._before, 0.0

    def memory(self) -> Any:
        """The rows, the position in the source near this step, so that resuming is cheap, and the seconds since the last log."""
        phase = next(phase for phase in self._inputs.source.phases if self.step <= phase.end)
        read = (self.step - phase.start) * self._inputs.hparams.batch_size
        return self.history, self._inputs.source.place(read), time.monotonic() - self._since

    def recall(self, memory: Any) -> None:
        self.history, self._inputs.place, self._before = memory
        self.step = int(self.history[-1]["step"]) if self.history else 0

    @property
    def stopped(self) -> bool:
        """True after `patience` evaluations of the last phase without a lower loss. Earlier phases have shorter texts."""
        if (patience := self._inputs.hparams.patience) is None:
            return False
        last = self._inputs.source.phases[-1]
        if self.step >= last.end:
            return False
        losses = [
            row[HELD_OUT_LOSS] for row in self.history if row["step"] > last.start and HELD_OUT_LOSS in row
        ]
        return len(losses) - losses.index(min(losses)) > patience if losses else False

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        hparams, held_out = self._inputs.hparams, self._inputs.held_out[self._phase]
        self.step += steps_done(self, batch)
        last = batch + 1 >= self.params["steps"]  # of the phase
        evaluates = held_out is not None and (last or self.step % hparams.eval_every == 0)
        logged = last or evaluates or self.step % hparams.log_every == 0
        if logged or self.step in self._inputs.snapshots:
            check_loss(logs, step=self.step)
        if logged:
            self._log({name: float(value) for name, value in (logs or {}).items()})
            if held_out is not None and evaluates:
                self._evaluate(held_out)
            self.model.reset_metrics()
            self._since = time.monotonic()
        if self.step in self._inputs.snapshots:
            self._inputs.save(self._path / SNAPSHOTS / str(self.step))
        if evaluates and self.stopped:
            self.model.stop_training = True
            self._log_line(f"stopped early: {hparams.patience} evaluations without a lower loss")

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if logs is not None:  # zeros: the metrics were reset after the phase's last step
            logs.update(self._logged)

    def _log(self, measures: dict[str, float]) -> None:
        seconds = time.monotonic() - self._since
        rate = float(schedule(self._inputs.hparams)(self.step - 1))
        tokens = measures.pop("tokens")
        self._logged = measures
        self._add({"learning_rate": rate, "tokens_per_second": tokens / seconds, **measures})

    def _add(self, measures: dict[str, float]) -> None:
        # JSON has no NaN, which is the mean of an objective without a label since the last log.
        known = {name: None if math.isnan(value) else value for name, value in measures.items()}
        self.history.append({"step": self.step, **known})
        with self._writer.as_default():
            for name, value in measures.items():
                tf.summary.scalar(name, value, step=self.step)

    def _evaluate(self, held_out: tf.data.Dataset) -> None:
        """Evaluates with the same random draws each time, without changing the training's draws."""
        with drawing_from(self.model, HELD_OUT_SEED % 2**16):
            found = self.model.evaluate(held_out, verbose=0, return_dict=True)
        measures = self._workers.from_chief(lambda: {name: float(value) for name, value in found.items()})
        measures.pop("tokens")
        self._add({f"held_out_{name}": value for name, value in measures.items()})
        listed = ", ".join(f"{name} {value:.4f}" for name, value in measures.items())
        self._log_line(f"step {self.step:,}, held out: {listed}")

    def results(self) -> Mapping[str, Any]:
        inputs = self._inputs
        inputs.save(self._path)
        phases = zip(inputs.held_out, inputs.objectives, strict=True)
        evaluated = [(batches, objectives) for batches, objectives in phases if batches is not None]
        draw_curves(self.history, self._path / CURVES)
        return {
            "measures": dict(itertools.chain.from_iterable(row.items() for row in self.history)),
            # Of the last phase with held-out instances.
            "majority_baselines": majority_baselines(*evaluated[-1]) if evaluated else {},
            "stopped_early": {"step": self.step} if self.stopped else None,
            "history": self.history,
            **inputs.about,
            FILES: digests(self._path),
        }


def majority_baselines(batches: Iterable[Any], objectives: Sequence[Objective]) -> dict[str, float]:
    """The accuracy of predicting the most frequent label for all, for every objective with this baseline."""
    labels, weights = zip(*((labels, weights) for _, labels, weights in batches), strict=True)

    def joined(parts: Iterable[Mapping[str, tf.Tensor]], name: str) -> np.ndarray:
        return np.concatenate([part[name].numpy().ravel() for part in parts])

    found = {
        one.name: one.baseline(joined(labels, one.name), joined(weights, one.name)) for one in objectives
    }
    return {f"{name}_accuracy": value for name, value in found.items() if value is not None}


def draw_curves(history: Sequence[Mapping[str, float]], path: pathlib.Path) -> None:
    """Plots the losses and accuracies of training and held-out instances over the steps."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(10, 4), layout="constrained")
    measures = dict.fromkeys(itertools.chain(*history))
    for axes, title in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for name in (name for name in measures if name.endswith(f"_{title}")):
            rows = [(row["step"], row[name]) for row in history if row.get(name) is not None]
            steps, values = zip(*rows, strict=True) if rows else ((), ())
            style = "o--" if name.startswith("held_out_") else "-"
            axes.plot(steps, values, style, markersize=3, label=name)
        axes.set(xlabel="step", title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix[1:])
