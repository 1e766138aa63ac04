"""Runs a case in every library by turns: a worker for each library, their outputs compared, and a figure for each turn."""

import concurrent.futures
import dataclasses
import functools
import pathlib
import statistics
import sys
import threading
from collections.abc import Collection, Iterator, Mapping

import numpy as np
from cases import BOUNDS, COUNTS
from interleave import Ratios, Worker, take_turns
from machine import Others
from peer_work.registry import (
    AGAINST_OURS,
    ALONE,
    HUGGING_FACE,
    OURS,
    UNLIKE,
    implementations_of,
    library_of,
    missing,
)
from peer_work.work import Case

HERE = pathlib.Path(__file__).resolve().parent
RATED = ("float32", "bfloat16")  # the formats whose rate every run has
_TORCH_RATE = "torch's rate"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table: our figure in a case against a peer's."""

    case: str
    ours: str
    peer: str
    ratios: Ratios
    agreement: str
    agrees: bool

    def to_json(self) -> dict:
        """The line with the ratio of every round."""
        fields = {name: getattr(self, name) for name in ("case", "ours", "peer", "agreement", "agrees")}
        return fields | {"median": self.ratios.median, "rounds": self.ratios.values}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """A case that every implementation has run.

    outputs: the file of each implementation's arrays
    figures: for each implementation one figure per round: seconds of a call, or bytes
    rates: for an encoder, by format, TensorFlow's rate of matrix products in each round, in 10^9 operations a second
    torch_rates: torch's rate, in the case's format; empty where Hugging Face does not run
    skipped: the implementations that cannot run here, and why
    others: CPU seconds that other processes used in each second of the turns; None where that is unknown
    """

    case: Case
    outputs: dict[str, pathlib.Path]
    figures: dict[str, list[float]]
    rates: dict[str, list[float]]
    torch_rates: list[float]
    skipped: dict[str, str]
    others: float | None

    def median(self, name: str) -> float:
        """The median figure of an implementation."""
        return statistics.median(self.figures[name])

    def rate(self, precision: str) -> float:
        """The median rate of matrix products."""
        return statistics.median(self.rates[precision])

    def results(self) -> Iterator[Result]:
        """Each of ours against each peer, and some of ours against another one of ours."""
        for ours in self.figures:
            for peer in self.figures:
                is_peer = not peer.startswith(OURS) or AGAINST_OURS.get(ours) == peer
                is_peer &= ALONE not in peer or ALONE in ours
                if ours.startswith(OURS) and is_peer and (ours, peer) not in UNLIKE:
                    bound = BOUNDS[self.case.precision]
                    agreement, agrees = compare(self.outputs[ours], self.outputs[peer], bound=bound)
                    yield Result(
                        case=self.case.name,
                        ours=ours,
                        peer=peer,
                        ratios=Ratios.of(self.figures[ours], self.figures[peer]),
                        agreement=agreement,
                        agrees=agrees,
                    )


def compare(ours: pathlib.Path, peer: pathlib.Path, *, bound: float) -> tuple[str, bool]:
    """The difference between two workers' outputs, as text, and True if it is within the bound."""
    with np.load(ours) as mine, np.load(peer) as theirs:
        if "lengths" in mine:
            rows = [np.split(each["ids"], np.cumsum(each["lengths"])[:-1]) for each in (mine, theirs)]
            differing = sum(not np.array_equal(a, b) for a, b in zip(*rows, strict=True))
            return f"{differing} of {len(rows[0]):,} lines", True  # the peers' ids are their own
        if "instances" in mine:
            counts = int(mine["instances"]), int(theirs["instances"])
            same = abs(counts[1] - counts[0]) <= COUNTS * counts[0]
            return f"{counts[0]:,} and {counts[1]:,}" + ("" if same else " OVER"), same
        shared = [name for name in mine if name in theirs]
        if not shared:
            return "", not mine.files and not theirs.files
        if any(mine[name].shape != theirs[name].shape for name in shared):
            return "shapes OVER", False
        differences = [float(np.abs(mine[name] - theirs[name]).max()) for name in shared]
        sizes = [max(1.0, float(np.abs(mine[name]).max())) for name in shared]
    same = all(difference <= bound * size for difference, size in zip(differences, sizes, strict=True))
    return f"{max(differences):.1e}" + ("" if same else " OVER"), same


class Workers:
    """The worker of each library, started at its first use.

    interpreters: the Python of a library in an environment of its own
    """

    def __init__(
        self, folder: pathlib.Path, *, threads: int, clock: str, interpreters: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.threads, self.interpreters = folder, threads, interpreters or {}
        self._clock = clock
        self._started: dict[str, Worker] = {}
        self._lock = threading.Lock()

    def __getitem__(self, implementation: str) -> Worker:
        library = library_of(implementation)
        with self._lock:
            if library not in self._started:
                interpreter = self.interpreters.get(library, sys.executable)
                command = [interpreter, "-m", "peer_work.worker", library]
                command += ["--threads", str(self.threads), "--clock", self._clock]
                log = self.folder / f"{library}.log"
                self._started[library] = Worker(command, threads=self.threads, log=log, folder=HERE)
            return self._started[library]

    def processes(self) -> list[int]:
        """The ids of the workers' processes."""
        return [worker.id for worker in self._started.values()]

    def close(self) -> None:
        """Stops all workers; one that is asked again starts anew."""
        for worker in self._started.values():
            worker.close()
        self._started.clear()


def measure(
    case: Case,
    workers: Workers,
    *,
    rounds: int,
    at_least: float,
    without: Collection[str] = (),
    rates: bool = False,
) -> Measured:
    """Prepares the case in every worker, then lets them take turns.

    without: implementations to leave out
    rates: measure the machine's rate of matrix products in every round of an encoder too
    """
    wanted = [name for name in implementations_of(case) if name not in without]
    skipped = {name: why for name in wanted if (why := missing(case, name, workers.interpreters))}
    names = [name for name in wanted if name not in skipped]
    outputs = {name: workers.folder / f"{case.name}-{i}.npz" for i, name in enumerate(names)}
    failed = _prepare(case, workers, outputs)
    names = [name for name in names if name not in failed]
    others = Others(workers.processes)

    def turn(name: str) -> float:
        return workers[name].ask(do="time", name=name, at_least=at_least)["figure"]

    def rate(precision: str, library: str = OURS) -> float:
        return workers[library].ask(do="rate", precision=precision)["rate"]

    formats = dict.fromkeys((*RATED, case.precision)) if rates and case.kind == "encoder" else ()
    turns = {name: functools.partial(turn, name) for name in names}
    of_torch = functools.partial(rate, case.precision, HUGGING_FACE)
    figures = take_turns(
        turns
        | {name: functools.partial(rate, name) for name in formats}
        | ({_TORCH_RATE: of_torch} if formats and HUGGING_FACE in names else {}),
        rounds=min(rounds, case.rounds or rounds),
    )
    return Measured(
        case=case,
        outputs=outputs,
        figures={name: figures[name] for name in names},
        rates={name: figures[name] for name in formats},
        torch_rates=figures.get(_TORCH_RATE, []),
        skipped=skipped | failed,
        others=others.share(),
    )


def _prepare(case: Case, workers: Workers, outputs: dict[str, pathlib.Path]) -> dict[str, str]:
    """The libraries prepare at the same time. Returns those that failed, and why."""
    libraries: dict[str, list[str]] = {}
    for name in outputs:
        libraries.setdefault(library_of(name), []).append(name)

    def prepare(names: list[str]) -> dict[str, str]:
        answers = {
            name: workers[name].ask(
                do="prepare",
                name=name,
                case=dataclasses.asdict(case),
                folder=str(workers.folder),
                outputs=str(outputs[name]),
            )
            for name in names
        }
        return {name: answer["failed"] for name, answer in answers.items() if "failed" in answer}

    with concurrent.futures.ThreadPoolExecutor(workers.threads) as executor:
        found = list(executor.map(prepare, libraries.values()))
    return {name: why for part in found for name, why in part.items()}
