"""The progress of a training in plain lines, without control characters: for logs, and for terminals between two bars.

    epoch 2/3: loss 0.3127, accuracy 0.8624, 4 min 10 s
    step 1,200 of 3,000: loss 0.3348, learning rate 3.3e-05, 6.1 steps/s, 4 min 55 s left

A line inside an epoch appears at most every SECONDS, and at most PARTS times in an epoch: a log stays short.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import keras

from bert_keras.tasks.training.plan import Stage, steps_done

SECONDS, PARTS = 30.0, 100
COUNTS = ("tokens",)  # logs that are no measures


def duration(seconds: float) -> str:
    """Seconds as a person reads them: 45 s, 3 min 20 s, 1 h 12 min."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Pace:
    """Decides when a line about long work is due, and measures its speed. total: steps, or examples."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began = self._said = time.monotonic()
        self._done = self._first = 0

    def due(self, done: int) -> bool:
        """True if it is time for a line after `done` of `total`; the work's end has its own line. Call it after each step."""
        now = time.monotonic()
        if not self._first:  # the first step also traces the graph
            self._first, self._began = done, now
        if now - self._said < SECONDS or (done - self._done) * PARTS < self._total or done >= self._total:
            return False
        self._said, self._done = now, done
        return done > self._first

    def speed(self, done: int) -> float:
        """Steps a second after the first step."""
        return (done - self._first) / max(time.monotonic() - self._began, 1e-9)


def counter(text: str, total: int, *, log: Callable[[str], None]) -> Callable[[int], None]:
    """A function for `progress` of `predict`: it logs lines, `evaluating: 12,000 of 40,000 examples, 2 min 5 s left`."""
    pace, done = Pace(total), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if pace.due(done):
            left = duration((total - done) / pace.speed(done))
            log(f"{text}: {done:,} of {total:,} examples, {left} left")

    return advance


class Progress(keras.callbacks.Callback):
    """Logs a line for each epoch, and lines inside long epochs. It must come after the Monitor, whose measures it shows.

    stages: the plan's
    log: receives the lines
    inside: False logs no lines inside epochs, for a terminal with a progress bar
    seconds: the time of the run so far
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        log: Callable[[str], None],
        inside: bool,
        seconds: Callable[[], float],
    ) -> None:
        super().__init__()
        self._stages, self._log, self._inside, self._seconds = stages, log, inside, seconds
        self._steps = sum(stage.total for stage in stages)

    def begin(self, number: int, step: int) -> None:
        """Called before each stage. step: the steps done in all stages."""
        self._stage, self._step = self._stages[number], step
        self._before = sum(stage.epochs for stage in self._stages[:number])
        self._first = step

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
        number, count = self._before + epoch + 1, sum(stage.epochs for stage in self._stages)
        self._log(f"{self._stage.name} {number}/{count}: {_listed(logs)}, {duration(self._seconds())}")


def _listed(logs: Mapping[str, float] | None) -> str:
    measures = {name.removeprefix("val_"): float(value) for name, value in (logs or {}).items()}
    return ", ".join(f"{name} {value:.4f}" for name, value in measures.items() if name not in COUNTS)
