"""Parts that commands share: flags of tasks, checkpoints, runs and strategies, and the start of a training.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import os
import sys
from typing import Any

from bert_keras.cli.console import (
    PATH,
    SEVERAL,
    note,
    print_errors_only,
    start,
)
from bert_keras.fields import add_flags, names_of, spelled
from bert_keras.model.precision import PRECISIONS, slowness
from bert_keras.tasks.devices.cluster import CLUSTER, check_cluster, other_workers
from bert_keras.tasks.hparams import STRATEGIES, Hparams
from bert_keras.tasks.options import (
    PRETRAINED_TASKS,
    TAGGING_DEFAULTS,
    TASK_DEFAULTS,
    TASK_OPTIONS,
)

CHECKPOINT_HELP = (
    "Hugging Face, Google, KerasHub or Model Garden checkpoint, by path or name (bert-base-uncased)"
)
DATA_HELP = (
    "folder of the task's files, or one file (default for GLUE, SQuAD and CoNLL-2003: TensorFlow Datasets fetches them). "
    "GLUE and custom read .csv, .tsv, .jsonl and .parquet"
)
RUNS_HELP = (
    "folder that finetune wrote, or the .keras file of a TextModel; several runs form an ensemble: their outputs are "
    "averaged"
)
SAVE_HELP = (
    "steps between two saves, each three times the size of the weights; 0 saves nothing; rerun the same command to resume an "
    "interrupted run"
)


def add_strategy(parser: argparse.ArgumentParser, *, trains: bool = True) -> None:
    """Adds --strategy. trains: False leaves multiworker out: each process can take a part of the input instead."""
    text = "tf.distribute strategy (default: one)"
    choices = [name for name in STRATEGIES if trains or name != "multiworker"]
    parser.add_argument("--strategy", default="one", choices=choices, help=text)


def start_strategy(strategy_name: str, *, deterministic: bool = True) -> None:
    """Starts TensorFlow, and joins the cluster of a strategy that has one. Only the chief then reports."""
    if strategy_name == "multiworker":
        check_cluster(os.environ.get(CLUSTER))
        if others := other_workers():
            note(f"waiting for the other workers, {', '.join(others)}; Ctrl-C stops")

    def join() -> None:
        from bert_keras.tasks.devices.strategies import strategy

        strategy(strategy_name)

    start(deterministic=deterministic, join=join)
    from bert_keras.tasks.devices.strategies import strategy
    from bert_keras.tasks.devices.workers import Workers

    workers = Workers(strategy(strategy_name))
    if workers.count > 1:
        note(
            f"all {workers.count} workers are here; {'this one' if workers.chief else 'another one'} is the chief, which reports"
        )
    if not workers.chief:
        print_errors_only()


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Adds --batch-size."""
    text = "examples in a batch (default: 32)"
    parser.add_argument("--batch-size", type=_rows, default=32, help=text)


def _rows(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"{given!r} was given; expected a whole number of at least 1")
    return int(given)


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Adds --precision for a run that is not trained."""
    text = "format of weights and computation; logits stay float32 (default: that of a .keras file, else float32)"
    parser.add_argument("--precision", choices=PRECISIONS, help=text)


def slow_precision(precision: str | None) -> None:
    """Prints a warning if the processor has no instructions for a format. It imports TensorFlow."""
    from bert_keras.tasks.devices.strategies import is_accelerated

    for line in slowness(precision or "float32", accelerated=is_accelerated()):
        print(line, file=sys.stderr)


def default_notes() -> str:
    """The tasks whose defaults differ from those of Hparams, with the equivalent flags."""
    common = Hparams()
    tasks = TASK_DEFAULTS | {
        f"conll2003 --context {context}": defaults for context, defaults in TAGGING_DEFAULTS.items()
    }
    lines = []
    for task, defaults in tasks.items():
        flags = [
            f"--{name.replace('_', '-')} {spelled(value)}"
            for name, value in defaults.items()
            if value != getattr(common, name)
        ]
        lines.append(f"  {task:31}{' '.join(flags)}\n")
    return "Some tasks have defaults from their papers:\n" + "".join(lines) + "\n"


def add_task(parser: argparse.ArgumentParser, *, holds_out: bool = True) -> None:
    """Adds --task, --data and --dev-data. holds_out: True if the command has --dev-fraction too."""
    instead = "; or give --dev-fraction" if holds_out else ""
    add = parser.add_argument
    add(
        "--task",
        required=True,
        help="a GLUE task (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli), custom, squad1.1, squad2.0, swag, codah, "
        "conll2003, fill-mask, next-sentence or sentence-order",
    )
    add("--data", **PATH, help=DATA_HELP)
    add(
        "--dev-data",
        **PATH,
        help=f"file of the dev split, if --data is the training file{instead}",
    )


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each option of each task."""
    seen: set[str] = set()
    for options in TASK_OPTIONS:
        add_flags(parser, options, without=tuple(seen))
        seen |= {*names_of(options)}


def add_feature_cache(parser: argparse.ArgumentParser) -> None:
    """Adds --feature-cache."""
    parser.add_argument(
        "--feature-cache",
        **PATH,
        help="folder that keeps the vectors of --feature-layers for further trainings on the same data and checkpoint (default: "
        "they are removed when the training is finished)",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds --run, or --checkpoint, whose task `model_of` reads from --task."""
    add = parser.add_argument
    add("--run", **PATH, **SEVERAL, help=RUNS_HELP)
    add("--checkpoint", **PATH, help="a pre-trained checkpoint instead of --run, by path or name")


def add_pretrained_task(parser: Any) -> None:
    """Adds --task, for a checkpoint that was not fine-tuned."""
    text = "with --checkpoint: use its own pre-trained head"
    parser.add_argument("--task", choices=PRETRAINED_TASKS, help=text)
