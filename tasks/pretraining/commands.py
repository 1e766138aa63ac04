"""Commands of pre-training: pretrain, instances and vocab.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import functools
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from bert_keras.console import PATH, SEVERAL, Command, progress, say, start, table
from bert_keras.errors import BertKerasError
from bert_keras.paths import path_of
from bert_keras.precision import PRECISIONS
from bert_keras.settings import Masking, add_flags, describe, given_settings, names_of
from tasks.flags import SAVE_HELP, add_strategy, start_training
from tasks.options import VocabularyOptions
from tasks.pretraining.recipes import RECIPES
from tasks.settings import PRECISION_HELP, Sampling

TEXT_HELP = "files, folders or tfds:NAME (format: see below)"
VOCAB_HELP = "a vocab.txt, a spiece.model or a folder with one of them"
SEGMENTER_HELP = (
    "splits a line into words (str -> list of str), for whole-word masking in languages without spaces"
)
TEXT_NOTES = """text:
  SOURCE[,lines=KEY][,encoding=NAME][,split=NAME]; several sources form one corpus. Folders, .zip files and MediaWiki
  dumps (.xml) are read completely; .gz, .bz2 and .xz are unpacked. By default each line is a sentence and a blank line
  ends a document. lines=paragraph: each line is a paragraph and a blank line ends a document. lines=document: each
  line is a document. lines=wrapped: a blank line ends a paragraph and each file is a document.

"""
BERT = RECIPES["bert"]
WITH_LENGTH = ("seq_length",)  # not in the notes: it is a flag, or the length of a phase


def pair(given: str) -> tuple[str, str]:
    """Splits `name=value`."""
    name, equals, value = given.partition("=")
    if not equals:
        raise BertKerasError(f"{given!r} has no name; give NAME=VALUE.")
    return name, value


def set_value(given: str) -> tuple[str, Any]:
    """Splits `name=value`; the value is JSON or a plain word."""
    name, value = pair(given)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="settings (below)")
    parser.add_argument("--segmenter", metavar="MODULE:FUNCTION", help=SEGMENTER_HELP)


def _segmenter(given: str) -> Any:
    """Imports the function that MODULE:FUNCTION names."""
    module, _, name = given.partition(":")
    sys.path.append(os.getcwd())  # last, so that no file there hides an installed package, in the workers too
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        found = getattr(sys.modules.get(module), "__file__", None)
        raise BertKerasError(
            f"--segmenter {given}: {error}{f' of {found}' if found else ''}; give MODULE:FUNCTION that can be imported."
        ) from error


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
        help="folders of instances, one for all phases or one for each, or the files of one set",
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
    _add_set(parser)
    add("--save-every", type=int, default=1000, help=f"{SAVE_HELP} (default: 1000)")
    add(
        "--snapshots",
        type=int,
        **SEVERAL,
        default=[],
        metavar="STEP",
        help="also keep the weights after these steps",
    )
    add_strategy(parser)


def _run_pretrain(args: argparse.Namespace) -> None:
    start_training(args.strategy)
    from bert_keras import checkpoints
    from tasks.pretraining.corpus import open_corpora
    from tasks.pretraining.pretrain import pretrain

    held_out = args.held_out and _share(args.held_out)
    if args.held_out and held_out is None:
        held_out = args.held_out if args.records else open_corpora([args.held_out])
    flags = {"size": args.size, "precision": args.precision}
    settings = {name: value for name, value in flags.items() if value} | dict(map(set_value, args.set))
    results = pretrain(
        recipe=RECIPES[args.recipe].changed(**settings),
        output=args.output,
        documents=args.text and open_corpora(args.text),
        records=args.records and _sets_of_records(args.records),
        held_out=held_out,
        tokenizer=args.vocab and checkpoints.load_tokenizer(args.vocab),
        segment=args.segmenter and _segmenter(args.segmenter),
        checkpoint=args.checkpoint,
        save_every=args.save_every,
        snapshots=args.snapshots,
        strategy_name=args.strategy,
        log=say,
    )
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
    folders = [path for path in given if path_of(path).is_dir()]
    if folders and len(folders) < len(given):
        raise BertKerasError(
            "folders and files of records were given; give folders, or the files of one set."
        )
    return folders or [list(given)]


# -----------------------------------------------------------------------------------------------------------
# instances

INSTANCES_NOTES = f"""settings, NAME=VALUE; VALUE is JSON or a plain word (defaults: those of the recipe bert):
  instances
{describe(BERT.sampling(128), without=WITH_LENGTH)}
  masks
{describe(BERT.masking(128))}
The files do not depend on the number of processes, nor on Beam. Rerun the same command to resume. pretrain --records, and the
scripts of Google and Model Garden, read the folder.

--beam runs an Apache Beam pipeline (the `beam` extra). Flags of Beam and its runner follow `--`; without --runner, all runs in
this process. Workers on other machines need bert-keras, and text, vocabulary and output that all of them can reach:
  bert-keras instances --text gs://BUCKET/text --vocab gs://BUCKET/vocab --output gs://BUCKET/instances \\
      --beam -- --runner=DataflowRunner --project=PROJECT --region=REGION --temp_location=gs://BUCKET/tmp

"""


def _add_instances(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP)
    add("--vocab", **PATH, required=True, help=VOCAB_HELP)
    add(
        "--output",
        **PATH,
        required=True,
        help="folder for the files: new, empty, or with the same command's unfinished files",
    )
    add(
        "--recipe",
        default="bert",
        choices=tuple(RECIPES),
        help="instances and masks of a paper (default: bert)",
    )
    add_flags(parser, Sampling, without=[name for name in names_of(Sampling) if name not in WITH_LENGTH])
    add(
        "--masks",
        action="store_true",
        help="write static masks (default: new masks in every epoch of training)",
    )
    _add_set(parser)
    add("--seed", type=int, default=12345, help="seed of all draws (default: 12345)")
    add("--workers", type=int, help="processes (default: one for each core)")
    add("--gzip", action="store_true", help="compress the files")
    add("--beam", action="store_true", help="run as an Apache Beam pipeline (see below)")
    add(
        "beam_options",
        nargs="*",
        metavar="-- BEAM_OPTION",
        help="flags of Beam and its runner, after --beam --",
    )


def _run_instances(args: argparse.Namespace) -> None:
    if args.beam_options and not args.beam:
        raise BertKerasError(
            f"{args.beam_options[0]} is no flag of instances; flags of Beam follow --beam --."
        )
    if args.beam and args.workers is not None:
        raise BertKerasError(
            "--workers does not apply to --beam; give the flags of its runner after --beam --."
        )
    start()
    from bert_keras import checkpoints
    from tasks.pretraining.corpus import open_corpora

    settings = dict(map(set_value, args.set))
    known = {*names_of(Sampling), *names_of(Masking)} - {*WITH_LENGTH}
    if unknown := [name for name in settings if name not in known]:
        raise BertKerasError(
            f"unknown setting {', '.join(unknown)}; instances accepts {', '.join(sorted(known))}."
        )
    length = given_settings(args, Sampling).get("seq_length", Sampling.seq_length)
    recipe = RECIPES[args.recipe].changed(**settings)
    lower_case = checkpoints.load_tokenizer(args.vocab).lower_case  # once, so that workers need not guess it
    corpora = open_corpora(args.text)
    options: dict[str, Any] = {
        "make_tokenizer": functools.partial(checkpoints.load_tokenizer, args.vocab, lower_case=lower_case),
        "settings": recipe.sampling(length),
        "masking": recipe.masking(length) if args.masks else None,
        "segment": args.segmenter and _segmenter(args.segmenter),
        "seed": args.seed,
        "compress": args.gzip,
    }
    if args.beam:
        from tasks.pretraining.beam_records import write_records_with_beam
        from tasks.pretraining.shard_writer import Job

        job = Job(path=path_of(args.output), **options)
        summary = write_records_with_beam(
            corpora, job, options=args.beam_options, vocabulary=path_of(args.vocab)
        )
    else:
        from tasks.pretraining.write_records import write_records

        workers = args.workers or os.cpu_count() or 1
        with progress("documents", None) as advance:
            summary = write_records(corpora, args.output, workers=workers, progress=advance, **options)
    rows = [
        ("documents", f"{summary.documents:,}"),
        ("instances", f"{summary.instances:,}"),
        ("labels that are 1", "-" if summary.label_rate is None else f"{summary.label_rate:.1%}"),
        ("mean length", f"{summary.mean_length:.1f}"),
        ("padding", f"{summary.padding:.1%}"),
        ("chunks skipped", f"{summary.skipped:,}"),
    ]
    table(("fact", "value"), rows, title=str(args.output))
    for warning in summary.warnings:
        print(f"warning: {warning}", file=sys.stderr)


# -----------------------------------------------------------------------------------------------------------
# vocab

VOCAB_NOTES = """The folder has vocab.txt, or ALBERT's spiece.model, and tokenizer_config.json; use it as `pretrain --vocab`. The
same text gives the same bytes. WordPiece needs the `vocabulary` extra, and memory for the distinct words of the text.

"""


def _add_vocab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP)
    parser.add_argument("--output", **PATH, required=True, help="folder for the vocabulary, new or empty")
    add_flags(parser, VocabularyOptions)


def _run_vocab(args: argparse.Namespace) -> None:
    start()
    from tasks.pretraining.corpus import open_corpora
    from tasks.pretraining.vocabulary import write_vocabulary

    given = given_settings(args, VocabularyOptions)
    options = VocabularyOptions(**given)
    settings = {name: given[name] for name in ("unused", "alphabet") if name in given}
    if settings and options.kind != "wordpiece":
        raise BertKerasError(
            f"--{next(iter(settings))} applies only to WordPiece vocabularies; leave it out."
        )
    with progress("reading documents", None) as advance:
        tokenizer, documents = write_vocabulary(
            open_corpora(args.text),
            args.output,
            kind=options.kind,
            size=options.size,
            lower_case=not options.cased,
            progress=advance,
            **settings,
        )
    print(f"{args.output}: {tokenizer.vocab_size:,} tokens, learned from {documents:,} documents")
    if tokenizer.vocab_size < options.size:
        print(f"warning: the text has too few words for {options.size:,} tokens", file=sys.stderr)


# -----------------------------------------------------------------------------------------------------------
# plan

PLAN_NOTES = """Memory is that of one device at the peak of a step, in float32, without the buffers of libraries (measured error:
docs/scale.md). --teraflops is what a device reaches in such a training, in 10^12 operations a second, and not its peak.
The answer needs no TensorFlow, no text and no weights.

"""


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--recipe", default="bert", choices=tuple(RECIPES), help="settings of a paper (default: bert)")
    add("--size", help="tiny, mini, small, medium, base, large, L-2_H-128 ... (default: the paper's)")
    add(
        "--checkpoint",
        **PATH,
        help="a folder whose config.json or bert_config.json has the encoder, or the file",
    )
    add("--batch-size", type=int, help="instances in a batch, over all devices (default: the paper's)")
    add("--devices", type=int, default=1, help="devices that share each batch (default: 1)")
    add("--micro-batch", type=int, help="rows that a device computes at once (default: all)")
    add("--rematerialize", action="store_true", help="compute each block again in the backward pass")
    add("--teraflops", type=float, help="10^12 operations in a second of one device, for the days")
    add("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="settings, as in pretrain")
    add("--json", action="store_true", help="print JSON instead of tables")


def _run_plan(args: argparse.Namespace) -> None:
    from bert_keras.config import BertConfig
    from tasks.pretraining.estimate import UNCASED_TOKENS, estimate

    for name in ("devices", "micro_batch", "teraflops"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise BertKerasError(f"--{name.replace('_', '-')} is {value}; give a number over 0.")
    given = {"size": args.size, "batch_size": args.batch_size}
    settings = {name: value for name, value in given.items() if value is not None}
    recipe = RECIPES[args.recipe].changed(**settings | dict(map(set_value, args.set)))
    source = args.checkpoint and BertConfig.load(args.checkpoint)
    config = recipe.config(vocab_size=UNCASED_TOKENS, source=source or None)
    found = estimate(
        recipe,
        config,
        devices=args.devices,
        micro_batch=args.micro_batch or recipe.hparams.micro_batch,
        rematerialize=args.rematerialize or recipe.hparams.rematerialize,
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
    "instances": Command(
        "write pre-training instances as TFRecord files in Google's names",
        "--text corpus.txt --vocab vocab --seq-length 128 --output instances/128 --masks --set dupe_factor=10",
        _add_instances,
        _run_instances,
        notes=TEXT_NOTES + INSTANCES_NOTES,
    ),
    "plan": Command(
        "estimate the parameters, memory, FLOPs and training days of a pre-training",
        "--size base --batch-size 256 --devices 8 --teraflops 40",
        _add_plan,
        _run_plan,
        notes=PLAN_NOTES,
    ),
    "vocab": Command(
        "learn a WordPiece or SentencePiece vocabulary from text",
        "--text corpus.txt --output vocab --size 30522",
        _add_vocab,
        _run_vocab,
        notes=TEXT_NOTES + VOCAB_NOTES,
    ),
}
