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
from bert_keras.tasks.metrics import WHISKER
from bert_keras.tasks.pretraining.instance_sources import HELD_OUT_SEED, InstanceSource
from bert_keras.tasks.pretraining.model import schedule
from bert_keras.tasks.runs.run_folder import FILES, digests
from bert_keras.tasks.training.loop import LOGS
from bert_keras.tasks.training.plan import Monitor
from bert_keras.tasks.training.saver import check_loss, steps_done

CURVES, SNAPSHOTS = "curves.png", "snapshots"
HELD_OUT, HELD_OUT_LOSS, BASELINES = "held_out_", "held_out_loss", "majority_baselines"
DRAWN_EVERY = 30.0  # least seconds between two drawings of the curves


@dataclasses.dataclass(kw_only=True)
class RunInputs:
    """The inputs that a pre-training's monitor and stages share.

    objectives, held_out: one for each phase
    save: writes the weights into a folder
    describe: (folder of the run) -> writes what the reader of a save must know
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
    describe: Callable[[pathlib.Path], None] = lambda path: None


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
        inputs.describe(path)
        self._writer = tf.summary.create_file_writer(str(path / LOGS))
        self.history: list[dict[str, Any]] = []
        self.step = 0
        self._phase = 0
        self._drawn = time.monotonic()
        self._since = time.monotonic()
        self._before = 0.0  # seconds since the last log, in the run that is resumed
        self._baselines: dict[int, dict[str, float]] = {}  # by phase

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
            if time.monotonic() - self._drawn > DRAWN_EVERY:
                self._draw()
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

    def _draw(self) -> None:
        draw_curves(self.history, self._path / CURVES, baselines=self._last_baselines())
        self._drawn = time.monotonic()

    def _last_baselines(self) -> dict[str, float]:
        """Of the last phase that was evaluated; {} for none."""
        evaluated = [i for i in range(self._phase + 1) if self._inputs.held_out[i] is not None]
        if not evaluated:
            return {}
        phase = evaluated[-1]
        if phase not in self._baselines:
            batches: Any = self._inputs.held_out[phase]
            self._baselines[phase] = majority_baselines(
                batches, self._inputs.objectives[phase], unigrams=self._inputs.source.unigrams[phase]
            )
        return self._baselines[phase] | made_baselines(self.history)

    def results(self) -> Mapping[str, Any]:
        inputs = self._inputs
        inputs.save(self._path)
        self._phase = len(inputs.held_out) - 1  # a resumed run may have had no step left
        self._draw()
        return {
            "measures": dict(itertools.chain.from_iterable(row.items() for row in self.history)),
            BASELINES: self._last_baselines(),
            "stopped_early": {"step": self.step} if self.stopped else None,
            "history": self.history,
            **inputs.about,
            FILES: digests(self._path),
        }


def majority_baselines(
    batches: Iterable[Any], objectives: Sequence[Objective], *, unigrams: np.ndarray
) -> dict[str, float]:
    """The measures of answers that read no text, for every objective that has them.

    The accuracy of `Objective.baseline`, by default that of the most frequent label for all; and where an objective measures
    perplexity, that of the tokens' frequencies in the training text, each counted once more.

    batches: held-out; unigrams: the number of each token in a sample of the training text, int [V]
    """
    labels, weights = zip(*((labels, weights) for _, labels, weights in batches), strict=True)

    def joined(parts: Iterable[Mapping[str, tf.Tensor]], name: str) -> np.ndarray:
        return np.concatenate([part[name].numpy().ravel() for part in parts])

    found = dict[str, float]()
    for one in objectives:
        own, counted = joined(labels, one.name), joined(weights, one.name)
        if (accuracy := one.baseline(own, counted)) is not None:
            found[f"{one.name}_accuracy"] = accuracy
        if one.perplexity and np.any(counted > 0):
            rates = (unigrams + 1) / (unigrams.sum() + len(unigrams))
            found[f"{one.name}_perplexity"] = float(np.exp(-np.log(rates[own[counted > 0]]).mean()))
    return found


def made_baselines(history: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """The accuracy of one answer to all held-out labels that the model made, by their rate when they were measured last."""
    start, end = HELD_OUT, "_label_rate"
    last = {name: rate for row in history for name, rate in row.items() if rate is not None}
    rates = {name: rate for name, rate in last.items() if name.startswith(start) and name.endswith(end)}
    return {
        f"{name.removeprefix(start).removesuffix(end)}_accuracy": max(rate, 1 - rate)
        for name, rate in rates.items()
    }


def against_baselines(measures: Mapping[str, float | None], baselines: Mapping[str, float]) -> list[str]:
    """A line for each objective with a baseline: whether it learned more from held-out text than an answer that reads none."""
    if not baselines:
        return ["nothing was held out, so nothing says whether it beats unigrams: give --held-out 0.02"]
    lines = []
    for name in dict.fromkeys(one.rpartition("_")[0] for one in baselines):
        shown, better = [], []
        for kind, form in (("perplexity", ".1f"), ("accuracy", ".1%")):
            value, trivial = measures.get(f"{HELD_OUT}{name}_{kind}"), baselines.get(f"{name}_{kind}")
            if value is None or trivial is None:
                continue
            # An accuracy within WHISKER is a tie.
            better.append(value < trivial if kind == "perplexity" else value > trivial + WHISKER)
            shown.append(f"{kind} {value:{form}} against {trivial:{form}}")
        if not shown:
            continue
        by = "unigrams" if f"{name}_perplexity" in baselines else "an answer that reads no text"
        verb = "beats" if all(better) else f"does not beat{' in both' * any(better)}"
        lines.append(f"on held-out text, {name} {verb} {by}: {', '.join(shown)}")
    return lines[::-1]  # the masked LM is the last


def draw_curves(
    history: Sequence[Mapping[str, float]], path: pathlib.Path, *, baselines: Mapping[str, float]
) -> None:
    """Plots losses and accuracies over the steps: lines for training, dots for held-out instances, dotted lines for baselines.

    baselines: of `majority_baselines`; a perplexity is drawn as its logarithm, a loss
    """
    from matplotlib.figure import Figure  # slow to import

    trivial = dict(baselines)
    for name, value in baselines.items():
        if name.endswith("_perplexity"):
            trivial[f"{name.removesuffix('_perplexity')}_loss"] = math.log(value)
    figure = Figure(figsize=(10, 4), layout="constrained")
    measures = dict.fromkeys(itertools.chain(*history))
    for axes, title in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        names = [name for name in measures if name.endswith(f"_{title}")]
        objectives = [*dict.fromkeys(name.removeprefix(HELD_OUT) for name in names)]
        for name in names:
            rows = [(row["step"], row[name]) for row in history if row.get(name) is not None]
            steps, values = zip(*rows, strict=True) if rows else ((), ())
            held, own = name.startswith(HELD_OUT), name.removeprefix(HELD_OUT)
            about = {"color": f"C{objectives.index(own)}", "markersize": 4}
            part = "held out" if held else "training"
            axes.plot(steps, values, "o--" if held else "-", **about, label=f"{own}, {part}")
        for own in objectives:
            if own in trivial:
                about = {"color": f"C{objectives.index(own)}", "linestyle": ":"}
                axes.axhline(trivial[own], **about, label=f"{own}, without reading")
        axes.set(xlabel="step", title=title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix[1:])
