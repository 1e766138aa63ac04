"""Fine-tunes MiniLM-L6 in float32 and in bfloat16, from the same seeds, and prints the measures side by side.

    python benchmarks/precision.py --data $BERT_KERAS_TEST_DATA --json benchmarks/figures/precision.json

In: a folder with `glue/SST-2`, `glue/STS-B`, `squad/` and `conll2003/`; MiniLM-L6 comes from the demo's cache, or is fetched.
Out: a row for each task, with the mean over the seeds and the range, in percent, and the mean and the range of the differences of
equal seeds. Every run is one `bert-keras finetune` in a process of its own, on a part of the data. A finished run is read and an
unfinished one resumed, so the script can be stopped and started. `--tasks` runs some of the tasks; the file keeps the others.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from bert_keras.savedmodels import demo

FORMATS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A task, and the measure to compare.

    data, dev_data: paths below --data
    flags: further flags of `bert-keras finetune`
    """

    task: str
    data: str
    measure: str
    flags: str
    dev_data: str | None = None


CASES = (
    Case(task="sst2", data="glue/SST-2", measure="accuracy", flags="--epochs 1 --max-examples 6000"),
    Case(task="stsb", data="glue/STS-B", measure="spearman", flags="--epochs 2"),
    Case(
        task="squad1.1",
        data="squad/squad1.1_train_subset_11877.json",
        dev_data="squad/xquad.en.json",
        measure="f1",
        flags="--epochs 2 --max-examples 3000 --batch-size 16",
    ),
    Case(
        task="conll2003",
        data="conll2003/eng.train.gz",
        dev_data="conll2003/eng.testa.gz",
        measure="f1",
        flags="--epochs 3 --max-examples 3000 --context sentence --seq-length 128",
    ),
)


def measured(case: Case, precision: str, seed: int, args: argparse.Namespace) -> float:
    """The measure of a run in percent; trains it first if it has not finished."""
    run = args.output / f"{case.task}-{precision}-{seed}"
    if not (run / "results.json").exists():
        command = ["finetune", "--task", case.task, "--data", str(args.data / case.data)]
        command += ["--checkpoint", args.minilm, "--output", str(run), "--learning-rate", "5e-5"]
        command += ["--precision", precision, "--seed", str(seed), *case.flags.split()]
        command += ["--dev-data", str(args.data / case.dev_data)] if case.dev_data else []
        subprocess.run([sys.executable, "-m", "bert_keras", "--quiet", *command], check=True)
    measures = json.loads((run / "results.json").read_text(encoding="utf-8"))["measures"]
    value = measures[f"val_{case.measure}"]
    return value if value > 1 else 100 * value  # SQuAD's are in percent


def spelled(values: list[float]) -> str:
    """The mean and the range."""
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Trains, prints the table and writes the measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the data sets")
    parser.add_argument("--minilm", help="a MiniLM-L6 checkpoint (default: the demo's)")
    parser.add_argument("--output", type=pathlib.Path, default="runs/precision", help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    names = [case.task for case in CASES]
    parser.add_argument("--tasks", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=pathlib.Path, help="where to write every measure")
    args = parser.parse_args()
    args.minilm = args.minilm or str(demo.fetch(demo.WEIGHTS, demo.cache_folder()))
    table = Table("task", "measure", *FORMATS, "difference, same seed", title="dev, percent")
    found = {}
    for case in CASES:
        if case.task not in args.tasks:
            continue
        values = {name: [measured(case, name, seed, args) for seed in args.seeds] for name in FORMATS}
        differences = [narrow - wide for wide, narrow in zip(*values.values(), strict=True)]
        table.add_row(case.task, case.measure, *map(spelled, (*values.values(), differences)))
        found[case.task] = {"measure": case.measure, "flags": case.flags, "seeds": args.seeds, **values}
    Console(width=120).print(table)
    if args.json:
        before = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
        args.json.write_text(json.dumps(before | found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
