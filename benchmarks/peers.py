"""Compares the speed of bert_keras, KerasHub, Hugging Face and others in one interleaved run, as ratios.

    python benchmarks/peers.py                                     every default case, 2 threads, 5 rounds
    python benchmarks/peers.py --quick                             a look, not a measurement
    python benchmarks/peers.py --smoke                             every case on a tiny model: does all of it run?
    python benchmarks/peers.py --cases encoder-8x128 tokenize --threads 1 --clock cpu --json out.json

In: cases, and a folder with text (`corpus/`, `glue/SST-2/`, `vocab/`), without which a paragraph in this repository serves.
Out: for every case and peer how many times faster we are (or how much less memory we take), as median and range over the
rounds, and how far the two outputs are apart. Weights are random, or of `--checkpoint`, and the same in every library. KerasHub
comes with the package, torch and transformers with its extra `parity`, ONNX Runtime and OpenVINO with `onnx` and `openvino`; a
library that is not installed is skipped by name. The exit status is 1 where outputs differ.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from typing import Any

import machine
import material
from cases import BOUNDS, CASES, SIZES, WITHOUT_WEIGHTS, default_cases, encoder_gflop, smallest
from comparison import Measured, Result, Workers, measure
from interleave import CLOCKS
from peer_work import ROOT
from peer_work.registry import MODEL_GARDEN, ONE_THREAD, OURS, by_torch
from peer_work.work import Case
from rich.console import Console
from rich.table import Table

from bert_keras import checkpoints
from bert_keras.config import BertConfig

TEXT_SIZE, QUICK_TEXT_SIZE, SMOKE_TEXT_SIZE = 3_000_000, 500_000, 50_000  # characters
TURN, QUICK_TURN = 0.5, 0.2  # the least seconds of a turn
# The rate of their products says little: they leave out work on purpose, or have fewer threads than the machine's rate.
UNRATED = (f"{OURS}, unpadded", f"{OURS}, pooled only", f"{ONE_THREAD}, frozen")
OF_MODEL_GARDEN = ("tf-models-official", "tf-keras", "tensorflow")
VERSIONS = (
    *("tensorflow", "tensorflow-text", "keras", "keras-hub", "torch", "transformers", "tokenizers"),
    *("onnxruntime", "openvino"),
)


def write_material(folder: pathlib.Path, cases: list[Case], args: argparse.Namespace, *, text: int) -> None:
    """Writes all that the cases read."""
    material.write_text(folder, args.data, size=text)
    given = checkpoints.read(args.checkpoint) if args.checkpoint else None
    vocabulary = (given and given.vocabulary.tokens) or material.english_vocabulary(args.data)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    if any(case.kind == "byte-bpe" for case in cases):
        material.write_byte_bpe(folder, args.byte_bpe)
    for size in {case.size for case in cases if case.kind not in WITHOUT_WEIGHTS}:
        config = BertConfig(vocab_size=max(30522, len(vocabulary)), **SIZES[size])
        drawn = material.random_checkpoint(config)
        material.write_weights(folder / size, given if given and size == "minilm" else drawn, vocabulary)


def gflops(measured: Measured) -> dict[str, float]:
    """10^9 operations a second in an encoder's products, of each implementation that does all of its work."""
    if measured.case.kind != "encoder":
        return {}
    gflop = encoder_gflop(measured.case, SIZES[measured.case.size])
    return {name: gflop / measured.median(name) for name in measured.figures if name not in UNRATED}


def case_json(measured: Measured, **conditions: Any) -> dict[str, Any]:
    """The figures of a case, in seconds of a call or in bytes, and the conditions of its run."""
    return {
        "kind": measured.case.kind,
        **conditions,
        "others": measured.others,
        "figures": {name: measured.median(name) for name in measured.figures},
        "gflops": gflops(measured),
        "matrix_gflops": {name: measured.rate(name) for name in measured.rates},
        "torch_matrix_gflops": statistics.median(measured.torch_rates) if measured.torch_rates else None,
        "skipped": measured.skipped,
    }


def table(results: list[Result], title: str) -> Table:
    """Ratios over 1: we are faster, or take less memory. Outputs are apart by max |difference|, or by lines of other ids."""
    made = Table(title=title)
    for heading in ("case", "ours", "peer"):
        made.add_column(heading, no_wrap=True)
    for heading in ("ours / peer", "min..max", "outputs apart"):
        made.add_column(heading, justify="right", no_wrap=True)
    for before, result in zip([None, *results], results, strict=False):
        if before and before.case != result.case:
            made.add_section()
        row = (
            result.case,
            result.ours,
            result.peer,
            f"{result.ratios.median:.2f}",
            str(result.ratios),
            result.agreement,
        )
        made.add_row(*row)
    return made


def installed(package: str) -> str | None:
    """The installed version; None if the package is missing."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def installed_elsewhere(interpreter: str, packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of packages in the environment of another Python."""
    code = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {packages}}}))"
    done = subprocess.run([interpreter, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def common_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that cost.py has too."""
    parser.add_argument("--threads", type=int, default=2, help="cores and threads a worker gets (default: 2)")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu, with --threads 1: for a machine that is not quiet",
    )
    parser.add_argument("--checkpoint", type=pathlib.Path, help="real weights for models of MiniLM's size")
    parser.add_argument(
        "--byte-bpe",
        type=pathlib.Path,
        help="folder of RoBERTa's vocab.json and merges.txt (default: learned from the text, by `tokenizers`)",
    )
    place = os.environ.get("BERT_KERAS_TEST_DATA", ROOT.parent / "shared" / "data")
    parser.add_argument(
        "--data", type=pathlib.Path, default=place, help="folder of text (default: BERT_KERAS_TEST_DATA)"
    )
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="where to write the figures of every round"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter turns, less text")
    parser.add_argument("--smoke", action="store_true", help="one round on tiny models: does all of it run?")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument(
        "--precision",
        default="float32",
        choices=BOUNDS,
        help="format of the computation; trainings keep float32 weights (default: float32)",
    )
    parser.add_argument("--rounds", type=int, help="turns of every worker (default: 5; with --quick 2)")
    parser.add_argument(
        "--without",
        nargs="+",
        default=(),
        metavar="NAME",
        help="libraries and forms to leave out, by their names in the table, such as 'ONNX Runtime': all are in memory at once",
    )
    parser.add_argument(
        "--model-garden",
        metavar="PYTHON",
        help="the Python of an environment with tf-models-official (model_garden_parity.py says how to make it)",
    )
    common_arguments(parser)
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[Case]:
    """The cases of the command line."""
    named = [CASES[name] for name in args.cases or ()]
    if args.smoke:
        found = [smallest(case) for case in named or CASES.values()]
    elif args.quick:
        found = [
            dataclasses.replace(case, steps=2 if case.texts else 1)
            for case in named or default_cases(args.precision)
        ]
    else:
        found = named or default_cases(args.precision)
    return [dataclasses.replace(case, precision=args.precision) for case in found]


def print_machine(console: Console, measured: list[Measured], *, args: argparse.Namespace) -> None:
    """Prints what the machine gives, and whether it was quiet."""
    for one in measured:
        for name in one.rates:
            console.print(
                f"{one.case.name}: fastest product of square matrices in {name}: {one.rate(name):,.0f} GFLOP/s"
            )
        precision = one.case.precision
        shares = [f"{name} {reached / one.rate(precision):.0%}" for name, reached in gflops(one).items()]
        if shares:
            console.print(f"{one.case.name}, of that rate in its products: {', '.join(shares)}")
        if one.torch_rates:
            own = statistics.median(one.torch_rates)
            parts = [f"{name} {gflops(one)[name] / own:.0%}" for name in gflops(one) if by_torch(name)]
            console.print(f"{one.case.name}: torch's own product: {own:,.0f} GFLOP/s; {', '.join(parts)}")
    busy = {one.case.name: one.others for one in measured if (one.others or 0.0) > machine.BUSY_OTHERS}
    console.print(
        "CPU seconds of other processes per second, at most: "
        f"{max((one.others or 0.0 for one in measured), default=0.0):.2f}"
    )
    if busy and args.clock == "wall":
        console.print(
            f"The machine was not quiet during {', '.join(busy)}: torch's threads wait in a loop and suffer most. Do not quote "
            "these."
        )


def settings_of(args: argparse.Namespace, rounds: int) -> dict[str, Any]:
    """The settings that all figures of a file share."""
    return {
        "threads": args.threads,
        "clock": args.clock,
        "rounds": rounds,
        "precision": args.precision,
        "quick": args.quick or args.smoke,
        "machine": machine.name(),
        "processor": machine.facts(),
        "versions": {package: installed(package) for package in VERSIONS},
    }


def kept_of(path: pathlib.Path, settings: dict[str, Any], figures: tuple[str, ...]) -> dict[str, Any]:
    """The figures of a file that is there, if its settings are the same; else {}."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    kept = {name: before.pop(name) for name in figures if name in before}
    return kept if before == settings else {}


def write_json(
    path: pathlib.Path,
    settings: dict[str, Any],
    cases: dict[str, dict[str, Any]],
    results: list[dict[str, Any]],
) -> None:
    """Writes the figures; a file of the same settings, machine and versions keeps its other cases."""
    kept = {"cases": {}, "results": []} | kept_of(path, settings, ("cases", "results"))
    every = {**kept["cases"], **cases}
    of_case = {name: [one for one in kept["results"] if one["case"] == name] for name in every}
    of_case |= {name: [one for one in results if one["case"] == name] for name in cases}
    names = [name for name in CASES if name in every]
    content = {
        **settings,
        "cases": {name: every[name] for name in names},
        "results": [one for name in names for one in of_case[name]],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Runs the cases, prints and writes the ratios; returns 1 if outputs differ."""
    args = arguments()
    rounds = args.rounds or (1 if args.smoke else 2 if args.quick else 5)
    at_least = 0.0 if args.smoke else QUICK_TURN if args.quick else TURN
    text = SMOKE_TEXT_SIZE if args.smoke else QUICK_TEXT_SIZE if args.quick else TEXT_SIZE
    cases, console = chosen(args), Console()
    console = Console(width=max(console.width, 120))  # a pipe has no width of its own
    measured: list[Measured] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as temporary, console.status("writing weights and text") as status:
        folder = pathlib.Path(temporary)
        write_material(folder, cases, args, text=text)
        interpreters = {MODEL_GARDEN: args.model_garden} if args.model_garden else {}
        garden = installed_elsewhere(args.model_garden, OF_MODEL_GARDEN) if args.model_garden else {}
        workers = Workers(folder, threads=args.threads, clock=args.clock, interpreters=interpreters)
        try:
            for case in cases:
                status.update(case.name)
                try:
                    measured.append(
                        measure(
                            case, workers, rounds=rounds, at_least=at_least, without=args.without, rates=True
                        )
                    )
                except RuntimeError as error:
                    failures.append(f"{case.name}: {error}")
                    workers.close()  # the next case starts them again
        finally:
            workers.close()
        results = [result for one in measured for result in one.results()]
    for name in dict.fromkeys(f"{name}: {why}" for one in measured for name, why in one.skipped.items()):
        console.print(f"skipped: {name}")
    title = f"times faster than the peer, {args.threads} thread(s), {args.clock} clock, {rounds} rounds, {args.precision}"
    console.print(table(results, title))
    print_machine(console, measured, args=args)
    if args.json:
        conditions = {"model_garden": garden} if garden else {}
        found = {one.case.name: case_json(one, **conditions) for one in measured}
        write_json(args.json, settings_of(args, rounds), found, [result.to_json() for result in results])
    for failure in failures:
        print(failure, file=sys.stderr)
    return 0 if not failures and all(result.agrees for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
