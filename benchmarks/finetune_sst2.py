"""Fine-tunes real weights and their random controls on SST-2, three seeds each; prints dev accuracy with its spread.

    python benchmarks/finetune_sst2.py --sst2 ../shared/data/glue/SST-2 --tiny ../shared/data/weights/bert-tiny-splade-uncased

MiniLM-L6 comes from the demo's cache (it is fetched when it is not there). Every run is one `bert-keras finetune` in a process
of its own; a run that has finished is not run again, so the script can be stopped and started. `--picture FILE` draws the table.
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

from bert_keras import demo


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table."""

    name: str
    checkpoint: str  # which of the command line's folders
    examples: int | None  # None: the whole training set
    learning_rate: float
    random: bool = False

    def command(self, seed: int) -> list[str]:
        """The flags of `bert-keras finetune` after task, data, checkpoint and output."""
        flags = [
            "--epochs",
            "1",
            "--learning-rate",
            str(self.learning_rate),
            "--seed",
            str(seed),
            "--seq-length",
            "128",
        ]
        flags += [] if self.examples is None else ["--max-examples", str(self.examples)]
        return flags + (["--random-weights"] if self.random else [])


CASES = (
    Case(name="MiniLM-L6", checkpoint="minilm", examples=10_000, learning_rate=5e-5),
    Case(name="MiniLM-L6, random", checkpoint="minilm", examples=10_000, learning_rate=5e-5, random=True),
    Case(name="BERT-tiny", checkpoint="tiny", examples=None, learning_rate=1e-4),
    Case(name="BERT-tiny, random", checkpoint="tiny", examples=None, learning_rate=1e-4, random=True),
)


def results_of(case: Case, seed: int, args: argparse.Namespace, checkpoint: str) -> dict:
    """What results.json of this run says; runs it first if it has not finished."""
    slug = case.name.lower().replace(", ", "-")
    output = pathlib.Path(args.output) / f"{slug}-{seed}"
    if not (output / "results.json").exists():
        if output.exists():  # interrupted
            output.rename(
                output.with_name(
                    f"{output.name}.interrupted-{len(list(output.parent.glob(output.name + '*')))}"
                )
            )
        command = [sys.executable, "-m", "bert_keras", "finetune", "--task", "sst2", "--data", args.sst2]
        subprocess.run(
            [*command, "--checkpoint", checkpoint, "--output", str(output), *case.command(seed)], check=True
        )
    return json.loads((output / "results.json").read_text(encoding="utf-8"))


def draw(rows: list[tuple[str, list[float]]], majority: float, file: str) -> None:
    """Every run a dot, a row a case, the majority class a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.55 * len(rows) + 1.1), layout="constrained")
    for y, (name, values) in enumerate(reversed(rows)):
        colour = "#8a8f98" if "random" in name else "#1f6fb2"
        axes.plot([100 * value for value in values], [y] * len(values), "o", color=colour, alpha=0.75)
        axes.annotate(
            f"{100 * statistics.mean(values):.1f}",
            (100 * statistics.mean(values), y),
            (0, 8),
            textcoords="offset points",
            ha="center",
        )
    axes.axvline(100 * majority, color="#8a8f98", linestyle=":", label="majority class")
    axes.set(
        yticks=range(len(rows)),
        yticklabels=[name for name, _ in reversed(rows)],
        xlabel="SST-2 dev accuracy, %",
    )
    axes.set_ylim(-0.6, len(rows) - 0.3)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


def main() -> None:
    """Runs, prints, draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sst2", required=True, help="folder of SST-2's official TSV files")
    parser.add_argument("--tiny", required=True, help="a BERT-tiny checkpoint")
    parser.add_argument("--minilm", help="a MiniLM-L6 checkpoint (default: the demo's)")
    parser.add_argument("--output", default="runs/sst2", help="folder of the runs (default: runs/sst2)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--picture", help="where to draw the table")
    args = parser.parse_args()
    checkpoints = {
        "minilm": args.minilm or str(demo.fetch(demo.WEIGHTS, demo.cache_folder())),
        "tiny": args.tiny,
    }
    labels = [
        line.rstrip("\n").split("\t")[1]
        for line in open(pathlib.Path(args.sst2) / "dev.tsv", encoding="utf-8")
    ][1:]
    majority = max(labels.count(label) for label in set(labels)) / len(labels)

    table = Table(
        "start", "examples", "mean", "sd", "each seed", "minutes each", title=f"SST-2 dev, seeds {args.seeds}"
    )
    rows = []
    for case in CASES:
        results = [results_of(case, seed, args, checkpoints[case.checkpoint]) for seed in args.seeds]
        values = [one["measures"]["val_accuracy"] for one in results]
        rows.append((case.name, values))
        table.add_row(
            case.name,
            f"{results[0]['train_examples']:,}",
            f"{statistics.mean(values):.2%}",
            f"{statistics.stdev(values):.2%}" if len(values) > 1 else "-",
            " ".join(f"{value:.2%}" for value in values),
            f"{statistics.mean(one['seconds'] for one in results) / 60:.1f}",
        )
    table.add_row("majority class", "", f"{majority:.2%}", "", "", "")
    Console().print(table)
    if args.picture:
        draw(rows, majority, args.picture)


if __name__ == "__main__":
    main()
