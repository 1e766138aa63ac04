"""Commands of pre-training: pretrain and plan.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from bert_keras.cli.console import PATH, SEVERAL, Command, say_first, table
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.io.paths import to_path
from bert_keras.tasks.commands.early import check_text
from bert_keras.tasks.commands.flags import (
    SAVE_HELP,
    TEXT_HELP,
    TEXT_NOTES,
    VOCAB_HELP,
    add_own_settings,
    add_recipe,
    add_recipe_settings,
    add_segmenter,
    add_show,
    add_strategy,
    recipe_of,
    segmenter,
    show_all,
    start_strategy,
)
from bert_keras.tasks.options import PlanOptions
from bert_keras.tasks.pretraining.recipes import CLASSES

# -----------------------------------------------------------------------------------------------------------
# pretrain

PRETRAIN_NOTES = """The settings are those of the paper of --recipe; a flag overrides one of them. The run is a checkpoint for
finetune --checkpoint.

"""


def _add_pretrain(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_recipe(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", **PATH, **SEVERAL, help=TEXT_HELP)
    source.add_argument(
        "--records",
        **PATH,
        **SEVERAL,
        help="folders of instances (one for all phases, or one for each phase), or the files of one folder",
    )
    add("--held-out", **PATH, help="fraction of the documents to evaluate on, or other text or records")
    add("--vocab", **PATH, help=f"{VOCAB_HELP} (default: the checkpoint's)")
    add("--checkpoint", **PATH, help="initial weights: Hugging Face, Google, KerasHub or Model Garden")
    add(
        "--output",
        **PATH,
        required=True,
        help="folder for the run: new, empty, or with the same run unfinished",
    )
    add_segmenter(parser)
    add_show(parser)
    add("--save-every", type=int, help=f"{SAVE_HELP} (default: 1000)")
    add(
        "--snapshots",
        type=int,
        **SEVERAL,
        default=[],
        metavar="STEP",
        help="also keep the weights after these steps",
    )
    add(
        "--workers",
        type=int,
        default=1,
        help="processes that make instances of --text (default: 1, the one that trains)",
    )
    add_strategy(parser)
    add_recipe_settings(parser)


def _run_pretrain(args: argparse.Namespace) -> None:
    held_out = args.held_out and _fraction(args.held_out)
    check_text(args, *([args.held_out] if args.text and args.held_out and held_out is None else []))
    start_strategy(args.strategy)
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.corpus import open_corpora
    from bert_keras.tasks.pretraining.monitor import CURVES, HELD_OUT, against_baselines
    from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain
    from bert_keras.tasks.training.loop import LOGS

    if args.held_out and held_out is None:
        held_out = args.held_out if args.records else open_corpora([args.held_out])
    given = Pretraining(
        recipe=recipe_of(args, *CLASSES),
        documents=args.text and open_corpora(args.text),
        records=args.records and _sets_of_records(args.records),
        held_out=held_out,
        tokenizer=args.vocab and checkpoints.load_tokenizer(args.vocab),
        segment=args.segmenter and segmenter(args.segmenter),
        checkpoint=args.checkpoint,
        snapshots=args.snapshots,
        strategy_name=args.strategy,
        workers=args.workers,
    )
    if args.show is not None:
        _show(given, args.show)
        return
    log = say_first(
        f"curves of this training: {args.output}/{CURVES}, or tensorboard --logdir {args.output}/{LOGS}"
    )
    results = pretrain(given, args.output, save_every=args.save_every, log=log)
    baselines = results["majority_baselines"]
    rows = [
        (name, "-" if value is None else value, baselines.get(name.removeprefix(HELD_OUT), ""))
        if name.startswith(HELD_OUT)
        else (name, "-" if value is None else value, "")
        for name, value in results["measures"].items()
        if name.endswith(("loss", "accuracy", "perplexity"))
    ]
    table(
        ("measure", "value", "unigrams or majority"), rows, title=f"{args.recipe}, {results['steps']:,} steps"
    )
    print(f"the run is in {args.output}")
    for line in against_baselines(results["measures"], baselines):
        print(line)


def _show(given: Any, count: int) -> None:
    """Prints the first instances of a pre-training."""
    from bert_keras import checkpoints

    tokenizer, records = given.tokenizer, given.records
    if tokenizer is None and given.checkpoint is not None:
        tokenizer = checkpoints.tokenizer_of(checkpoints.read(given.checkpoint))
    if tokenizer is None:
        raise BertKerasError("--show needs a vocabulary; give --vocab.")
    known = {"documents": given.documents, "segment": given.segment, "records": records and records[0]}
    show_all(given.recipe, count=count, tokenizer=tokenizer, **known)


def _fraction(given: str) -> float | None:
    try:
        return float(given)
    except ValueError:
        return None


def _sets_of_records(given: Sequence[str]) -> list[Any]:
    """Groups records into sets: each folder is a set; all files form one set."""
    folders = [path for path in given if to_path(path).is_dir()]
    if folders and len(folders) < len(given):
        raise BertKerasError(
            "folders and files of records were given; give folders, or the files of one set."
        )
    return folders or [list(given)]


# -----------------------------------------------------------------------------------------------------------
# plan

PLAN_NOTES = """Memory is that of one device at the peak of a step, in float32, without the buffers of libraries (measured error:
docs/scale.md). --teraflops is the measured throughput of one device, in 10^12 operations a second, not its peak.
plan needs no text and no weights, and TensorFlow only for an ancestor of BERT: its activations are not known, and the operations
of word-vectors are those without subsampling.

"""


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_recipe(parser)
    add(
        "--checkpoint",
        **PATH,
        help="a folder with config.json or bert_config.json, or the path of such a file",
    )
    add_flags(parser, PlanOptions)
    add("--json", action="store_true", help="print JSON instead of tables")
    add_recipe_settings(parser)


def _run_plan(args: argparse.Namespace) -> None:
    from bert_keras.config import BertConfig
    from bert_keras.tasks.pretraining.estimate import UNCASED_TOKENS, estimate

    options = PlanOptions(**given_settings(args, PlanOptions))
    recipe = recipe_of(args, *CLASSES)
    if args.checkpoint and not to_path(args.checkpoint).exists():
        raise BertKerasError(
            f"--checkpoint {args.checkpoint} is no file or folder; plan reads only a configuration: give a downloaded "
            "checkpoint, or --size, such as base."
        )
    source = args.checkpoint and BertConfig.load(args.checkpoint)
    config = recipe.config(vocab_size=UNCASED_TOKENS, source=source or None)
    found = estimate(recipe, config, devices=options.devices, teraflops=options.teraflops)
    if args.json:
        print(json.dumps({"recipe": args.recipe, "config": config.to_dict(), **found.to_json()}))
        return
    title = (
        f"{args.recipe}, {config.vocab_size:,} tokens in the vocabulary: {found.parameters:,} parameters, {found.trainable:,} of "
        "them trained"
    )
    lengths = [f"{phase.seq_length} tokens" for phase in found.phases]
    table(("", *lengths), _plan_rows(found), title=title)
    if found.days is not None:
        print(f"{found.days:,.2f} days at {options.teraflops:g} TFLOP/s a device")


def _plan_rows(found: Any) -> list[tuple[str, ...]]:
    """The rows of the table, with a column for each phase."""

    def row(name: str, value: Any) -> tuple[str, ...]:
        return (name, *(value(phase) for phase in found.phases))

    parts = ("weights", "gradients", "optimizer_state", "activations", "total")
    return [
        row("steps", lambda phase: f"{phase.steps:,}"),
        row("tokens", lambda phase: f"{phase.tokens:.3g}"),
        row("FLOPs a step", lambda phase: f"{phase.flops:.3g}"),
        row("rows at once on a device", lambda phase: f"{phase.rows:,}"),
        *(
            row(f"GiB: {part.replace('_', ' ')}", lambda phase, part=part: _gib(getattr(phase.memory, part)))
            for part in parts
        ),
        row("days", lambda phase: "-" if phase.seconds is None else f"{phase.seconds / 86_400:,.2f}"),
    ]


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.2f}"


COMMANDS = {
    "pretrain": Command(
        "pre-train on text or on files of instances, from scratch or from a checkpoint",
        "--recipe bert --size small --text corpus.txt --vocab vocab.txt --held-out 0.02 --output runs/bert \\\n"
        "    --steps 20000 --batch-size 64 --bias-correction --phases '[[64, 0.9], [128, 0.1]]'",
        _add_pretrain,
        _run_pretrain,
        notes=TEXT_NOTES + PRETRAIN_NOTES,
        trains=True,
        add_own=add_own_settings,
    ),
    "plan": Command(
        "estimate the parameters, memory, FLOPs and training days of a pre-training",
        "--size base --batch-size 256 --devices 8 --teraflops 40",
        _add_plan,
        _run_plan,
        notes=PLAN_NOTES,
        add_own=add_own_settings,
    ),
}
