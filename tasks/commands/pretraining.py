"""Commands of pre-training: pretrain and plan.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from bert_keras.cli.console import (
    PATH,
    SEVERAL,
    Command,
    say,
    table,
)
from bert_keras.errors import BertKerasError
from bert_keras.fields import describe
from bert_keras.io.paths import to_path
from bert_keras.model.precision import PRECISIONS
from bert_keras.tasks.commands.flags import SAVE_HELP, add_strategy, start_strategy
from bert_keras.tasks.commands.text_flags import (
    TEXT_HELP,
    TEXT_NOTES,
    VOCAB_HELP,
    WITH_LENGTH,
    add_set,
    segmenter,
    settings_of,
)
from bert_keras.tasks.hparams import PRECISION_HELP
from bert_keras.tasks.pretraining.recipes import RECIPES

BERT = RECIPES["bert"]


# -----------------------------------------------------------------------------------------------------------
# pretrain

PRETRAIN_NOTES = f"""settings, NAME=VALUE; VALUE is JSON or a plain word (defaults: those of the recipe bert):
  training
{describe(BERT.hparams)}
  encoder: size and the fields of BertConfig, such as num_layers, hidden_size, num_heads, hidden_dropout, causal
  instances
{describe(BERT.sampling(128), without=WITH_LENGTH)}
  masks
{describe(BERT.masking(128), without=("max_predictions",))}
The run is a checkpoint for finetune --checkpoint.

"""


def _add_pretrain(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--recipe",
        default="bert",
        choices=tuple(RECIPES),
        help="objectives and settings of a paper (default: bert)",
    )
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
    add("--size", help="tiny, mini, small, medium, base, large, L-2_H-128 ... (default: the paper's)")
    add("--precision", choices=PRECISIONS, help=f"{PRECISION_HELP} (default: float32)")
    add_set(parser)
    add("--save-every", type=int, default=1000, help=f"{SAVE_HELP} (default: 1000)")
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


def _run_pretrain(args: argparse.Namespace) -> None:
    start_strategy(args.strategy)
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.corpus import open_corpora
    from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain

    held_out = args.held_out and _share(args.held_out)
    if args.held_out and held_out is None:
        held_out = args.held_out if args.records else open_corpora([args.held_out])
    settings = settings_of(args.set, size=args.size, precision=args.precision)
    given = Pretraining(
        recipe=RECIPES[args.recipe].changed(**settings),
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
    results = pretrain(given, args.output, save_every=args.save_every, log=say)
    baselines = results["majority_baselines"]
    rows = [
        (name, value, baselines.get(name.removeprefix("held_out_"), ""))
        for name, value in results["measures"].items()
        if name.endswith(("loss", "accuracy", "perplexity"))
    ]
    table(("measure", "value", "majority baseline"), rows, title=f"{args.recipe}, {results['steps']:,} steps")
    print(f"the run is in {args.output}")


def _share(given: str) -> float | None:
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
plan needs no TensorFlow, no text and no weights.

"""


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--recipe", default="bert", choices=tuple(RECIPES), help="settings of a paper (default: bert)")
    add("--size", help="tiny, mini, small, medium, base, large, L-2_H-128 ... (default: the paper's)")
    add(
        "--checkpoint",
        **PATH,
        help="a folder with config.json or bert_config.json, or the path of such a file",
    )
    add("--batch-size", type=int, help="instances in a batch, over all devices (default: the paper's)")
    add("--devices", type=int, default=1, help="devices that share each batch (default: 1)")
    add("--micro-batch", type=int, help="rows that a device computes at once (default: all)")
    add("--rematerialize", action="store_true", help="compute each block again in the backward pass")
    add("--teraflops", type=float, help="throughput of one device, to estimate the days (see below)")
    add("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="settings, as in pretrain")
    add("--json", action="store_true", help="print JSON instead of tables")


def _run_plan(args: argparse.Namespace) -> None:
    from bert_keras.config import BertConfig
    from bert_keras.tasks.pretraining.estimate import UNCASED_TOKENS, estimate

    for name in ("devices", "micro_batch", "teraflops"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise BertKerasError(f"--{name.replace('_', '-')} is {value}; give a number over 0.")
    flags = {"size": args.size, "batch_size": args.batch_size, "micro_batch": args.micro_batch}
    settings = settings_of(args.set, **flags, rematerialize=args.rematerialize or None)
    recipe = RECIPES[args.recipe].changed(**settings)
    if args.checkpoint and not to_path(args.checkpoint).exists():
        raise BertKerasError(
            f"--checkpoint {args.checkpoint} is no file or folder; plan reads only a configuration: give a downloaded "
            "checkpoint, or --size, such as base."
        )
    source = args.checkpoint and BertConfig.load(args.checkpoint)
    config = recipe.config(vocab_size=UNCASED_TOKENS, source=source or None)
    found = estimate(
        recipe,
        config,
        devices=args.devices,
        micro_batch=recipe.hparams.micro_batch,
        rematerialize=recipe.hparams.rematerialize,
        teraflops=args.teraflops,
    )
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
        print(f"{found.days:,.2f} days at {args.teraflops:g} TFLOP/s a device")


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
            row(
                f"GiB: {part.replace('_', ' ')}",
                lambda phase, part=part: f"{getattr(phase.memory, part) / 2**30:.2f}",
            )
            for part in parts
        ),
        row("days", lambda phase: "-" if phase.seconds is None else f"{phase.seconds / 86_400:,.2f}"),
    ]


COMMANDS = {
    "pretrain": Command(
        "pre-train on text or on files of instances, from scratch or from a checkpoint",
        "--recipe bert --size small --text corpus.txt --vocab vocab.txt --held-out 0.02 --output runs/bert \\\n"
        "    --set steps=20000 batch_size=64 bias_correction=true 'phases=[[64, 0.9], [128, 0.1]]'",
        _add_pretrain,
        _run_pretrain,
        notes=TEXT_NOTES + PRETRAIN_NOTES,
        trains=True,
    ),
    "plan": Command(
        "estimate the parameters, memory, FLOPs and training days of a pre-training",
        "--size base --batch-size 256 --devices 8 --teraflops 40",
        _add_plan,
        _run_plan,
        notes=PLAN_NOTES,
    ),
}
