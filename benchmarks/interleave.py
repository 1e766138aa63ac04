"""Workers that take turns: each has its own process, and they run on the same cores, one at a time.

In: names and a command for each. Out: for every worker one figure per round, and for two workers the ratios of their figures in
each round. Other load on the machine slows all workers of a round alike, so the ratios stay valid, unlike with separate runs.
"""

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

# Libraries read these variables at import; TensorFlow's threads are set in code.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
# Pause between turns, so that thread pools that wait in a loop go to sleep before the next turn.
_PAUSE = 0.3  # seconds


class Worker:
    """A process that answers a line of JSON with a line of JSON.

    command: the command to run; it must call `serve`
    threads: the number of cores for the process, and of threads for its libraries
    log: the file for its messages
    folder: the folder that it runs in
    environment: variables of its own; by default it sees no GPU

    Raises RuntimeError, with the end of the log, if the process fails to answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        threads: int,
        log: pathlib.Path,
        folder: pathlib.Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        quiet = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TOKENIZERS_PARALLELISM": "true",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        threads_of = {name: str(threads) for name in _THREAD_VARIABLES}
        with log.open("w", encoding="utf-8") as messages:
            self._process = subprocess.Popen(
                [*command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env=os.environ | quiet | threads_of | dict(environment or {}),
                cwd=folder,
            )

    @property
    def id(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends the request and waits for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = self._log.read_text(encoding="utf-8")[-2000:]
            raise RuntimeError(f"a worker stopped on {request}; its last messages:\n{tail}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def hold_to(threads: int) -> None:
    """Limits this process, and every thread that it starts, to that many cores, if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side: answers requests until the input ends. Output that libraries print goes to the log."""
    replies: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()


# "cpu" counts the seconds that all threads of the process computed, without the time they waited.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds_per_call(call: Callable[[], Any], *, at_least: float, clock: str) -> float:
    """The median time of a call, over at least one call and `at_least` seconds, by one of CLOCKS."""
    now, taken = CLOCKS[clock], list[float]()
    began = now()
    while not taken or now() - began < at_least:
        start = now()
        call()
        taken.append(now() - start)
    return statistics.median(taken)


def take_turns(
    turns: Mapping[str, Callable[[], float]], *, rounds: int, pause: float = _PAUSE
) -> dict[str, list[float]]:
    """A B C, A B C, ...: the figure of each name in each round. pause: seconds before a turn."""
    figures: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            time.sleep(pause)
            figures[name].append(turn())
    return figures


@dataclasses.dataclass(frozen=True)
class Ratios:
    """The ratios of two workers' times, one per round; over 1 the first is faster."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, ours: Sequence[float], peer: Sequence[float]) -> "Ratios":
        """Makes the ratios from the seconds of both workers, in the order of the rounds."""
        return cls(tuple(theirs / mine for mine, theirs in zip(ours, peer, strict=True)))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{min(self.values):.2f}..{max(self.values):.2f}"
