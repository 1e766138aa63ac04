"""The training loop: a plan in, a run's folder out. It calls Keras' `fit` once for each stage, and twice for a resumed stage.

An unfinished run with the same fingerprint is resumed from its last save, with bit-identical results.
"""

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras

from bert_keras.cli.console import Pace, duration, shows_bars
from bert_keras.errors import BertKerasError, LossDiverged
from bert_keras.io import formats
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.formats import RESULTS_FILE
from bert_keras.io.signals import Stop, postponed
from bert_keras.optimization.training_model import WholeEpochs
from bert_keras.tasks.devices.strategies import differ_between_replicas
from bert_keras.tasks.devices.workers import LOST, SAME_IN_ALL, Workers
from bert_keras.tasks.training.plan import Monitor, Plan, Stage
from bert_keras.tasks.training.saver import (
    CHECKPOINTS,
    SETTINGS,
    Saver,
    check_finite,
    check_loss,
    saves_in,
    steps_done,
)

LOGS = "logs"
LOSS_EVERY = 10  # steps between two reads of the loss
COUNTS = ("tokens",)  # logs that are no measures
BAR_SECONDS = 0.2  # between two updates of a progress bar
RUN = Layout(
    name="a run", artifact=formats.RUN, fingerprint=f"{CHECKPOINTS}/{SETTINGS}", results=RESULTS_FILE
)


class StepLogs(keras.callbacks.CallbackList):
    """Keras' list of callbacks, but the logs of a step stay tensors: a device need not wait until the host has read them."""

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=logs)


class Bar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar, but it reads the logs a few times a second, and not in each step."""

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self._shown = 0.0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        now = time.monotonic()
        if now - self._shown >= BAR_SECONDS:
            self._shown = now
            super().on_train_batch_end(batch, logs)


class Progress(keras.callbacks.Callback):
    """Logs a line for each epoch, and lines inside long epochs. It must come after the Monitor, whose measures it shows.

        epoch 2/3: loss 0.3127, accuracy 0.8624, 4 min 10 s
        step 1,200 of 3,000: loss 0.3348, learning rate 3.3e-05, 6.1 steps/s, 4 min 55 s left

    inside: False logs no lines inside epochs, for a terminal with a progress bar
    before: seconds of the run before this process resumed it
    """

    def __init__(self, stages: Sequence[Stage], *, log: Callable[[str], None], inside: bool) -> None:
        super().__init__()
        self._stages, self._log, self._inside = stages, log, inside
        self._steps = sum(stage.total for stage in stages)
        self._began, self.before = time.monotonic(), 0.0

    def seconds(self) -> float:
        """The time of the run so far."""
        return self.before + time.monotonic() - self._began

    def begin(self, number: int, step: int) -> None:
        """Called before each stage. step: the steps done in all stages."""
        self._stage, self._step = self._stages[number], step
        self._epochs = sum(stage.epochs for stage in self._stages[:number])

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._first, self._pace = self._step, Pace(self.params["steps"])

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        self._step += steps_done(self, batch)
        if not self._inside or not self._pace.due(done := self._step - self._first):
            return
        speed = self._pace.speed(done)
        rate = float(self.model.optimizer.learning_rate)
        self._log(
            f"step {self._step:,} of {self._steps:,}: {_listed(logs)}, learning rate {rate:.2g}, {speed:.3g} steps/s, "
            f"{duration((self._steps - self._step) / speed)} left"
        )

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        number, count = self._epochs + epoch + 1, sum(stage.epochs for stage in self._stages)
        self._log(f"{self._stage.name} {number}/{count}: {_listed(logs)}, {duration(self.seconds())}")


def _listed(logs: Mapping[str, float] | None) -> str:
    measures = {name.removeprefix("val_"): float(value) for name, value in (logs or {}).items()}
    return ", ".join(f"{name} {value:.4f}" for name, value in measures.items() if name not in COUNTS)


class StopOnDivergence(keras.callbacks.Callback):
    """Raises LossDiverged if the loss is not finite, at every LOSS_EVERY steps, and after an epoch if a weight is not finite.

    The loss is a mean since the epoch began, so a later step shows a loss that was not finite; the error names that later step.
    Callbacks that write something between two of these steps call `check_loss` first. StopOnDivergence must come before all
    callbacks that save weights. All workers stop at the same step: the logged loss is summed over all of them, and they compare
    what they find in their weights.
    """

    def __init__(self, workers: Workers, step: int) -> None:
        super().__init__()
        self.step, self._workers = step, workers

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        before, self.step = self.step, self.step + steps_done(self, batch)
        if self.step // LOSS_EVERY > before // LOSS_EVERY:
            check_loss(logs, step=self.step)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        check_loss(logs, step=self.step)
        check_finite(self.model, step=self.step, workers=self._workers)


def check_save_every(every: int | None) -> None:
    """Raises BertKerasError if save_every is negative."""
    if every is not None and every < 0:
        raise BertKerasError(f"save_every is {every}; give a number of steps, or 0 to save nothing.")


def train(
    plan: Plan,
    output: str | pathlib.Path,
    *,
    save_every: int | None,
    keep_saves: bool = False,
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains as planned, or resumes the unfinished run of the same plan in `output`; returns the content of results.json.

    save_every: steps between two saves; None saves at the end of each epoch; 0 saves nothing, so that an interrupted run starts
        again
    keep_saves: False removes the saves when the training has finished
    verbose, log: as in `finetune` and `pretrain`

    Raises BertKerasError if the folder has other content or is in use, and LossDiverged.
    """
    folder, workers = Folder(output, RUN), Workers(plan.model.distribute_strategy)
    if verbose == "auto":
        verbose = 1 if shows_bars(sys.stdout) else 2
    log = workers.log(log)
    with (
        _begin(folder, plan, workers, save_every, log=log),
        workers.folder(folder.path) as own,
        plan.prepared(folder.path, workers=workers, log=log),
        postponed() as stop,
    ):
        monitor = plan.monitor(own, log=log, workers=workers)
        progress = Progress(plan.stages, log=log, inside=verbose == 2)
        saver = Saver(
            own,
            plan.model,
            every=save_every,
            remember=lambda: [progress.seconds(), monitor.memory()],
            stop=stop,
            workers=workers,
        )
        remembered = saver.restore(folder.path, log=log)
        workers.check_same(
            {"the step to resume from": saver.step}, "give all of them one output folder that they share"
        )
        if remembered is not None:
            log(f"resuming {folder.path} at step {saver.step:,} of {plan.steps:,}")
            progress.before, of_monitor = remembered
            monitor.recall(of_monitor)
        try:
            _fit_stages(plan, monitor, saver, progress, workers, bar=verbose == 1 and workers.chief)
            results = {**monitor.results(), "steps": saver.step, "seconds": round(progress.seconds(), 1)}
            results[formats.MADE_BY] = formats.made_by()
        except KeyboardInterrupt as error:
            raise type(error)(_where_stopped(saver, plan.steps)) from None
        except LossDiverged:  # in all workers
            workers.wait_to_end()
            raise
        _finish(folder, results, None if keep_saves else saver, workers, stop)
    return results


@contextlib.contextmanager
def _begin(
    folder: Folder, plan: Plan, workers: Workers, save_every: int | None, *, log: Callable[[str], None]
) -> Iterator[None]:
    """`Folder.begin`, which the chief calls alone. Logs the plan's lines."""
    # Every save waits for all workers. It is no part of the fingerprint: a resumed run may save at other steps.
    workers.check_same({"save_every": save_every}, SAME_IN_ALL)
    with contextlib.ExitStack() as stack:
        if workers.chief:
            begun = stack.enter_context(folder.begin(plan.fingerprint))
        else:
            folder.check()
            begun = folder.begun
        workers.wait()  # the others read what the chief has begun
        for line in plan.lines:
            log(line)
        if begun and not saves_in(folder.path / CHECKPOINTS):
            log(f"{folder.path} has no save yet; training starts at step 0")
        yield


def _finish(
    folder: Folder, results: Mapping[str, Any], saver: Saver | None, workers: Workers, stop: Stop
) -> None:
    """The chief writes the results. saver: its saves are removed; None keeps them.

    A worker that is lost before the results are written ends the others; one that is lost after them ends nobody. A signal to any
    worker raises KeyboardInterrupt in all of them.
    """
    try:
        workers.wait()
    except LOST:
        if not folder.finished:
            raise
    if workers.chief:
        folder.finish(results)
    if saver is not None:
        saver.remove()
    try:
        if signal := workers.greatest(stop.signal or 0):
            stop.signal = signal
        workers.wait_to_end()  # until the results are written: a worker that ends earlier ends the others
    except LOST:
        if not folder.finished:
            raise
    if stop.signal is not None:  # after the last step
        raise type(stop.error)(f"stopped; {folder.path} is finished")


def _where_stopped(saver: Saver, steps: int) -> str:
    saves = saver.saves()
    resumes = f"resume from step {saves[0]:,}" if saves else "start again: nothing was saved"
    return f"stopped at step {saver.step:,} of {steps:,}; run the same command to {resumes}"


def _fit_stages(
    plan: Plan, monitor: Monitor, saver: Saver, progress: Progress, workers: Workers, *, bar: bool
) -> None:
    """Trains the rest of all stages."""
    bars = [Bar()] if bar else []  # a bar ends its line before `progress` writes one
    callbacks = [StopOnDivergence(workers, saver.step), monitor, *monitor.others, *bars, progress, saver]
    differ_between_replicas(plan.model)
    first = 0
    for number, stage in enumerate(plan.stages):
        done = saver.step - first
        if done < stage.total and not monitor.stopped:
            monitor.begin(number, saver.step)
            progress.begin(number, saver.step)
            _fit(plan.model, stage, done, monitor, callbacks=callbacks, bar=bar)
        first += stage.total


def _fit(
    model: keras.Model,
    stage: Stage,
    done: int,
    monitor: Monitor,
    *,
    callbacks: Sequence[keras.callbacks.Callback],
    bar: bool,
) -> None:
    """Trains the rest of a stage after `done` steps."""
    # Retrace for each stage, as a process that resumes here does: a shape-polymorphic graph rounds differently.
    model.make_train_function(force=True)
    model.make_test_function(force=True)
    # Once, or twice to finish a partial epoch first.
    while done < stage.total and not monitor.stopped:
        epoch, begun = divmod(done, stage.steps)
        last, steps = epoch + 1 if begun else stage.epochs, stage.steps - begun
        how = {"model": model, "epochs": last, "steps": steps, "verbose": int(bar)}
        those = [WholeEpochs(), *callbacks]
        with stage.reading():
            model.fit(
                stage.batches(done),
                initial_epoch=epoch,
                epochs=last,
                steps_per_epoch=steps,
                callbacks=StepLogs(those, add_history=True, **how),
                verbose=int(bar),
                shuffle=False,
            )
        done = last * stage.steps
