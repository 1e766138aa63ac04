"""Workers that take turns: each in a process of its own, on the same cores, one at a time.

In: names and a command for each. Out: for every worker one figure a round, and from two workers the ratios of their figures,
round by round. What slows the machine for a while slows neighbours in a round alike, so their ratio keeps its meaning where
two runs, one after the other, would not.
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

# Read by the libraries as they are imported; TensorFlow's own are set by code.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
# Between turns, so that a pool of threads that waits in a loop has gone to sleep before the next one starts.
_PAUSE = 0.3  # seconds


class Worker:
    """A process that answers a line of JSON with a line of JSON.

    command: what to run; it must call `serve`
    threads: how many cores the process may use, and how many threads its libraries are told to start
    log: where its messages go

    Raises RuntimeError, with the end of the log, where the process fails to answer.
    """

    def __init__(self, command: Sequence[str], *, threads: int, log: pathlib.Path) -> None:
        self._log = log
        quiet = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TOKENIZERS_PARALLELISM": "true",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        environment = os.environ | quiet | {name: str(threads) for name in _THREAD_VARIABLES}
        with log.open("w", encoding="utf-8") as messages:
            self._process = subprocess.Popen(
                [*command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env=environment,
            )

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
    """Keeps this process, and every thread it will start, on that many cores where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side: answers requests until the input ends. Whatever a library prints goes to the log instead."""
    replies: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()


# "cpu" counts the seconds that the process computed, all threads together, and not those it waited for others' work.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds_per_call(call: Callable[[], Any], *, at_least: float, clock: str) -> float:
    """The median over as many calls as fill `at_least` seconds, one or more, by one of CLOCKS."""
    now, taken = CLOCKS[clock], list[float]()
    began = now()
    while not taken or now() - began < at_least:
        start = now()
        call()
        taken.append(now() - start)
    return statistics.median(taken)


def take_turns(turns: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """A B C, A B C, ...: the figure of each name in each round."""
    figures: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            time.sleep(_PAUSE)
            figures[name].append(turn())
    return figures


@dataclasses.dataclass(frozen=True)
class Ratios:
    """How many times faster one was than the other, round by round; over 1 the first is faster."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, ours: Sequence[float], peer: Sequence[float]) -> "Ratios":
        """From the seconds of each, in the order of the rounds."""
        return cls(tuple(theirs / mine for mine, theirs in zip(ours, peer, strict=True)))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{min(self.values):.2f}..{max(self.values):.2f}"
