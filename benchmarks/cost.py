"""Measures how the cost of ours and of the peers grows with the batch, the length, the layers and the text.

    python benchmarks/cost.py --json benchmarks/figures/MACHINE/cost.json
    python benchmarks/cost.py --axes batch layers --quick

In: axes, and what peers.py reads. Out: for each axis and implementation the time of a call, as a multiple of ours at the smallest
value, and its growth: the slope of a straight line through the logarithms of values and times. With a slope of 1 the time doubles
where the value doubles; with less, large values are cheaper for each row. Every value is an interleaved run of peers.py. `--axes`
with the same file measures axes again: the file keeps the others.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from typing import Any

import machine
import numpy as np
from cases import BOUNDS, LAYERS
from comparison import Measured, Workers, measure
from peer_work.registry import COMPILERS, HUGGING_FACE_ONE_THREAD, OURS, TWO_WORKERS
from peer_work.work import Case
from peers import SMOKE_TEXT_SIZE, TEXT_SIZE, UNRATED, common_arguments, kept_of, settings_of, write_material
from rich.console import Console
from rich.table import Table

# torch.compile would compile for each value; the others do less work, or the same in another way, or run with one row alone.
LEFT_OUT = (
    *(*UNRATED, *COMPILERS, HUGGING_FACE_ONE_THREAD, TWO_WORKERS),
    *(f"{OURS}, offsets", "tokenizers, no offsets"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """A value that grows, while the rest of a case stays.

    field: the field of Case; values: what it becomes
    unit: what the values count
    smallest: the values of a run with --smoke
    """

    case: Case
    field: str
    values: tuple[Any, ...]
    unit: str
    smallest: tuple[Any, ...]

    def cases(self, *, smoke: bool) -> list[Case]:
        """A case for each value."""
        return [
            dataclasses.replace(self.case, **{self.field: value}, name=f"{self.case.name}-{value}")
            for value in (self.smallest if smoke else self.values)
        ]

    def numbers(self, *, smoke: bool) -> list[int]:
        """The values as numbers."""
        return [int(str(value).split("-")[0]) for value in (self.smallest if smoke else self.values)]


def _encoder(name: str) -> Case:
    return Case(name=name, kind="encoder", batch=8)


_TEXT = (160_000, 640_000, 2_560_000, 10_240_000, 40_960_000)
AXES = {
    "batch": Axis(
        case=_encoder("batch"),
        field="batch",
        values=(1, 2, 4, 8, 16, 32),
        unit="rows of 128 tokens",
        smallest=(1, 2),
    ),
    "length": Axis(
        case=_encoder("length"),
        field="length",
        values=(32, 64, 128, 256, 512),
        unit="tokens in each of 8 rows",
        smallest=(16, 32),
    ),
    "layers": Axis(
        case=_encoder("layers"),
        field="size",
        values=tuple(f"{layers}-layers" for layers in LAYERS),
        unit="layers, 8 rows of 128 tokens",
        smallest=("1-layers", "2-layers"),
    ),
    "tokenize": Axis(
        case=Case(name="tokenize", kind="tokenize"),
        field="characters",
        values=_TEXT,
        unit="characters to tokenize",
        smallest=(10_000, 20_000),
    ),
    "instances": Axis(
        case=Case(name="instances", kind="instances"),
        field="characters",
        values=_TEXT,
        unit="characters to make instances of",
        smallest=(10_000, 20_000),
    ),
}


def slope(values: list[int], times: list[float]) -> float:
    """The slope of the straight line through the logarithms."""
    return float(np.polyfit(np.log(values), np.log(times), 1)[0])


def growth(values: list[int], measured: list[Measured]) -> dict[str, dict[str, Any]]:
    """For each implementation its times, as multiples of our first, and the slope."""
    unit = measured[0].median(OURS)
    found = {}
    for name in measured[0].figures:
        times = [one.median(name) / unit for one in measured]
        found[name] = {"cost": times, "slope": slope(values, times)}
    return found


def in_words(axis: str, name: str, value: float) -> str:
    """A slope as a sentence."""
    return f"{axis}: twice as much costs {name} {2**value:.2f} times the time (slope {value:.2f})"


def table(axis: str, values: list[int], found: dict[str, dict[str, Any]]) -> Table:
    """The times of an axis."""
    made = Table(title=f"time by {AXES[axis].unit}, as a multiple of ours at {values[0]:,}")
    made.add_column("implementation", no_wrap=True)
    for value in values:
        made.add_column(f"{value:,}", justify="right")
    made.add_column("slope", justify="right")
    for name, row in found.items():
        made.add_row(name, *(f"{cost:.2f}" for cost in row["cost"]), f"{row['slope']:.2f}")
    return made


def _print(axes: dict[str, Any], console: Console) -> None:
    for name, axis in axes.items():
        console.print(table(name, axis["values"], axis["growth"]))
        for implementation, row in axis["growth"].items():
            console.print(in_words(name, implementation, row["slope"]))


def main() -> int:
    """Runs the axes, prints and writes the costs; returns 1 if outputs differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--axes", nargs="+", choices=AXES, default=[*AXES])
    parser.add_argument("--precision", default="float32", choices=BOUNDS, help="format of the encoder")
    parser.add_argument("--rounds", type=int, help="turns of every worker (default: 3; with --quick 1)")
    common_arguments(parser)
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.quick or args.smoke else 3)
    at_least = 0.0 if args.smoke else 0.2 if args.quick else 0.5
    axes = {name: AXES[name] for name in args.axes}
    cases = {name: axis.cases(smoke=args.smoke) for name, axis in axes.items()}
    console, found, agree = Console(), {}, True
    with tempfile.TemporaryDirectory() as temporary, console.status("writing weights and text") as status:
        folder = pathlib.Path(temporary)
        write_material(
            folder,
            [case for those in cases.values() for case in those],
            args,
            text=SMOKE_TEXT_SIZE if args.smoke else TEXT_SIZE,
        )
        workers = Workers(folder, threads=args.threads, clock=args.clock)
        try:
            for name, axis in axes.items():
                measured, options = [], {"rounds": rounds, "at_least": at_least, "without": LEFT_OUT}
                try:
                    for case in cases[name]:
                        status.update(case.name)
                        case = dataclasses.replace(case, precision=args.precision)
                        measured.append(measure(case, workers, **options))
                except RuntimeError as error:
                    agree = False
                    print(f"{name}: {error}", file=sys.stderr)
                    workers.close()  # the next axis starts them again
                    continue
                agree &= all(result.agrees for one in measured for result in one.results())
                values = axis.numbers(smoke=args.smoke)
                found[name] = {
                    "unit": axis.unit,
                    "values": values,
                    "growth": growth(values, measured),
                    "others": max(one.others or 0.0 for one in measured),
                }
        finally:
            workers.close()
    _print(found, console)
    busy = [name for name, axis in found.items() if axis["others"] > machine.BUSY_OTHERS]
    if busy and args.clock == "wall":
        console.print(f"The machine was not quiet during {', '.join(busy)}. Do not quote these.")
    if args.json:
        settings = settings_of(args, rounds)
        kept = kept_of(args.json, settings, ("axes",)).get("axes", {}) | found
        content = {**settings, "axes": {name: kept[name] for name in AXES if name in kept}}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
