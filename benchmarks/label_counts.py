"""Draws the error of a classifier against its number of labels, from scratch and from each checkpoint.

    python benchmarks/label_counts.py --data glue/SST-2 --rows "stage 1=runs/one" "stages 1 and 2=runs/two" --output runs/labels

In: runs of `bert-keras pretrain`. Out: a fine-tuning for each row, number of labels and seed; then results.json and labels.svg. A
finished run is read and an unfinished one resumed. All rows of a seed learn from the same examples, as in the figures of
Howard and Ruder 2018.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import statistics

from bert_keras import checkpoints
from bert_keras.io.files import locked
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import hparams_of
from bert_keras.tasks.metrics import as_fractions
from bert_keras.tasks.runs.task_types import open_task
from bert_keras.tasks.study.grid import Cell, fingerprints_of, run_cells, write_results

RANDOM = "from scratch"
ULMFIT = {
    "epochs": 10,
    "batch_size": 16,
    "seq_length": 64,
    "learning_rate": 1e-2,
    "bias_correction": True,
    "schedule": "slanted_triangular",
    "unfreeze": "gradual",
    "layer_decay": 1 / 2.6,
    "max_dev_examples": 872,
}
OF_WEIGHTS = ("unfreeze", "layer_decay")  # settings that protect weights which were learned before


def main() -> None:
    """Trains what has not finished, and writes the files."""
    args = _arguments()
    task = open_task(args.task, args.data, pooling="concat")
    starts = {name: checkpoints.read(path) for name, _, path in (row.partition("=") for row in args.rows)}
    starts[RANDOM] = dataclasses.replace(next(iter(starts.values())), tensors={})
    trainings = []
    for seed, count, row in itertools.product(range(1, args.seeds + 1), args.labels, starts):
        given = {**ULMFIT, **args.settings, "seed": seed, "max_examples": count, "data_seed": seed}
        kept = {key: value for key, value in given.items() if row != RANDOM or key not in OF_WEIGHTS}
        trainings.append((row, count, seed, hparams_of(task.defaults, kept)))
    fingerprints = fingerprints_of(
        [(task, starts[row], hparams) for row, _, _, hparams in trainings], strategy_name="one"
    )
    cells = [
        Cell(
            name=f"{row}, {count} labels, seed {seed}",
            path=args.output / row.replace(" ", "-") / f"labels-{count}_seed-{seed}",
            task=args.task,
            place={"row": row, "labels": count, "seed": seed},
            fingerprint=fingerprint,
            train=functools.partial(finetune, task, checkpoint=starts[row], hparams=hparams, verbose=0),
        )
        for (row, count, seed, hparams), fingerprint in zip(trainings, fingerprints, strict=True)
    ]
    with locked(args.output):
        errors: dict[str, dict[int, list[float]]] = {row: {n: [] for n in args.labels} for row in starts}
        for one in run_cells(cells):  # a run whose loss diverged has no measures
            if (found := as_fractions(one.measures, kind=task.kind).get(task.measure)) is not None:
                errors[one.place["row"]][one.place["labels"]].append(1 - found)
        write_results(args.output, {"task": args.task, "errors": errors})
        draw(errors, args.output / "labels.svg")
    for row, means in errors.items():
        print(row, {count: f"{100 * statistics.fmean(one):.1f} %" for count, one in means.items() if one})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", nargs="+", required=True, metavar="NAME=CHECKPOINT")
    parser.add_argument("--labels", nargs="+", type=int, default=[50, 100, 200, 500, 1000])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--settings", type=json.loads, default={}, metavar="JSON", help="fields of Hparams")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    return parser.parse_args()


def draw(errors: dict[str, dict[int, list[float]]], path: pathlib.Path) -> None:
    """A line through the mean of each row, and a dot for each seed."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for i, (row, found) in enumerate(errors.items()):
        means = {count: 100 * statistics.fmean(values) for count, values in found.items() if values}
        axes.plot([*means], [*means.values()], "-", color=f"C{i}", label=row)
        for count, values in found.items():
            axes.plot([count] * len(values), [100 * one for one in values], "o", color=f"C{i}", markersize=4)
    axes.set(xscale="log", xlabel="labels", ylabel="error on dev, percent")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
