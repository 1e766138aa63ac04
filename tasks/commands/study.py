"""Commands of the experiments: ablate, probe, protocol and glue.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_keras.cli.console import (
    PATH,
    SEVERAL,
    Command,
    say,
    start,
    table,
)
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.tasks.commands.finetuning import open_given_task
from bert_keras.tasks.commands.flags import (
    CHECKPOINT_HELP,
    add_feature_cache,
    add_strategy,
    add_task,
    add_task_options,
    start_strategy,
)
from bert_keras.tasks.commands.text_flags import (
    TEXT_HELP,
    TEXT_NOTES,
    VOCAB_HELP,
    pair,
    settings_of,
)
from bert_keras.tasks.hparams import OF_FEATURES, Hparams
from bert_keras.tasks.options import (
    ABLATIONS,
    APPROACHES,
    TASK_OPTIONS,
    AblationOptions,
    ApproachOptions,
    ClassifierOptions,
    GlueOptions,
    ProbeOptions,
    ProtocolOptions,
)
from bert_keras.tasks.study.rows import NOT_IN_APPROACHES, SCORED

OUTPUT_HELP = "folder for all runs; finished runs in it are not repeated"


def _add_ablate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "ablation",
        choices=(*ABLATIONS, *APPROACHES),
        help="with pre-training: BERT's table 5 (tasks), 6 (size), 8 (masking) or figure 5 (steps), the masking rate, or "
        "RoBERTa's table 2 (input-format); from --checkpoint: table 7 (layers), or fine-tuning, features and random weights "
        "(approaches)",
    )
    for name, text in (
        (
            "--data",
            "files of each task; missing tasks are downloaded (approaches: needed unless --tasks is given)",
        ),
        ("--dev-data", "file of each dev split, if --data is one file"),
    ):
        add(name, **PATH, **SEVERAL, default=[], metavar="TASK=PATH", help=text)
    add("--output", **PATH, required=True, help=OUTPUT_HELP)
    add(
        "--tasks",
        **SEVERAL,
        help="tasks to train on (default: from --scale; layers: conll2003; approaches: those of --data)",
    )
    add_flags(parser, AblationOptions, without=("scale",))
    add_strategy(parser)
    group = parser.add_argument_group(f"only with pre-training ({', '.join(ABLATIONS)})")
    _add_pretraining_flags(group)
    group = parser.add_argument_group(f"only from a checkpoint ({', '.join(APPROACHES)})")
    _add_approach_flags(group)


def _add_pretraining_flags(parser: Any) -> None:
    add = functools.partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--text", **PATH, **SEVERAL, help=f"needed: {TEXT_HELP}")
    add("--vocab", **PATH, help=f"needed: {VOCAB_HELP}")
    add("--set", **SEVERAL, metavar="NAME=VALUE", help="settings for every pre-training")
    add_flags(parser, AblationOptions, without=("restarts",))


def _add_approach_flags(parser: Any) -> None:
    parser.add_argument("--checkpoint", **PATH, default=argparse.SUPPRESS, help=f"needed: {CHECKPOINT_HELP}")
    add_flags(parser, ApproachOptions)
    add_flags(parser, Hparams, without=NOT_IN_APPROACHES)
    add_task_options(parser)


def _check_kind(args: argparse.Namespace) -> None:
    """Raises BertKerasError for a flag that the ablation needs and lacks, and for flags of the other kind of ablation."""
    kinds = []
    for add in (_add_pretraining_flags, _add_approach_flags):
        parser = argparse.ArgumentParser(add_help=False)
        add(parser)
        kinds.append([(action.dest, action.option_strings[0]) for action in parser._actions])
    own, others = kinds[:: -1 if args.ablation in APPROACHES else 1]
    needed = ("checkpoint",) if args.ablation in APPROACHES else ("text", "vocab")
    if missing := [flag for name, flag in own if name in needed and not hasattr(args, name)]:
        raise BertKerasError(f"ablate {args.ablation} needs {' and '.join(missing)}; give it.")
    if given := [flag for name, flag in others if hasattr(args, name)]:
        without = (
            "trains from a checkpoint, without pre-training"
            if args.ablation in APPROACHES
            else "pre-trains its own models"
        )
        raise BertKerasError(f"ablate {args.ablation} {without}: leave out {', '.join(given)}.")


def _pairs(flag: str, given: Sequence[str]) -> dict[str, str]:
    """The values of NAME=VALUE. Raises BertKerasError for a repeated name."""
    found = dict(map(pair, given))
    if len(found) < len(given):
        names = [pair(one)[0] for one in given]
        repeated = next(name for name in names if names.count(name) > 1)
        raise BertKerasError(f"{flag} has {repeated} more than once; give each name once.")
    return found


def _sources(args: argparse.Namespace) -> dict[str, Any]:
    """The source of each task. Raises BertKerasError for a repeated task, and a dev file without a training file."""
    data: dict[str, Any] = _pairs("--data", args.data)
    for name, path in _pairs("--dev-data", args.dev_data).items():
        if name not in data:
            raise BertKerasError(
                f"--dev-data {name} was given without --data {name}=PATH; give the training file too."
            )
        data[name] = {"train": data[name], "validation": path}
    return data


def _print(tables: Iterable[Any]) -> None:
    for title, columns, rows in tables:
        table(columns, rows, title=title)


def _run_ablate(args: argparse.Namespace) -> None:
    _check_kind(args)
    data = _sources(args)
    start_strategy(args.strategy)
    how = {
        "data": data,
        "output": args.output,
        "tasks": args.tasks,
        "strategy_name": args.strategy,
        "log": say,
    }
    found = (_approaches if args.ablation in APPROACHES else _pretrained)(args, how)
    from bert_keras.tasks.study.report import comparison_tables

    _print(comparison_tables(found))
    print(f"the runs are in {args.output}")


def _pretrained(args: argparse.Namespace, how: Mapping[str, Any]) -> Any:
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.corpus import open_corpora
    from bert_keras.tasks.study.ablations import run_ablation

    return run_ablation(
        args.ablation,
        documents=open_corpora(args.text),
        tokenizer=checkpoints.load_tokenizer(args.vocab),
        changes=settings_of(getattr(args, "set", [])),
        **how,
        **given_settings(args, AblationOptions),
    )


def _approaches(args: argparse.Namespace, how: Mapping[str, Any]) -> Any:
    from bert_keras.tasks.study.approaches import run_approaches

    return run_approaches(
        args.ablation,
        checkpoint=args.checkpoint,
        settings=given_settings(args, Hparams),
        task_options=given_settings(args, *TASK_OPTIONS),
        verbose="auto",
        **how,
        **given_settings(args, AblationOptions, ApproachOptions),
    )


def _add_probe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data",
        **PATH,
        **SEVERAL,
        required=True,
        metavar="PROBE=PATH",
        help="pos, chunk or entities with a folder of CoNLL-2003's files; sst2 or cola with GLUE's",
    )
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    add("--output", **PATH, required=True, help="folder for the results, new or empty")
    add_flags(parser, ProbeOptions)


def _run_probe(args: argparse.Namespace) -> None:
    start(deterministic=True)
    from bert_keras.tasks.study.probe import run_probes, tables

    results = run_probes(
        _pairs("--data", args.data),
        checkpoint=args.checkpoint,
        output=args.output,
        log=say,
        **given_settings(args, ProbeOptions),
    )
    _print(tables(results))
    print(f"the results are in {args.output}")


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_task(parser, holds_out=False)
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    add("--output", **PATH, required=True, help=OUTPUT_HELP)
    add_flags(parser, ProtocolOptions)
    add_strategy(parser)
    add_feature_cache(parser)
    add_flags(parser, Hparams, without=("learning_rate", "dev_fraction"))
    add_task_options(parser)


def _run_protocol(args: argparse.Namespace) -> None:
    start_strategy(args.strategy)
    from bert_keras.tasks.study.protocol import run_protocol
    from bert_keras.tasks.study.report import summary_tables

    task, hparams = open_given_task(args, holds_out=False)
    summary = run_protocol(
        task,
        checkpoint=args.checkpoint,
        output=args.output,
        hparams=hparams,
        strategy_name=args.strategy,
        feature_cache=args.feature_cache,
        verbose="auto",
        log=say,
        **given_settings(args, ProtocolOptions),
    )
    _print(summary_tables([summary], title=f"{task.name}: {args.output}"))
    print(f"the best run is in {summary.best.path}")


def _add_glue(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tasks", **SEVERAL, help="tasks to train on (default: all nine)")
    add("--data", **PATH, help="folder with GLUE's folders (default: TensorFlow Datasets downloads them)")
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    add("--output", **PATH, required=True, help=OUTPUT_HELP)
    add_flags(parser, ProtocolOptions)
    add_strategy(parser)
    add_flags(parser, Hparams, without=("learning_rate", "dev_fraction", "feature_layers", *OF_FEATURES))
    add_flags(parser, ClassifierOptions, without=("doc_stride", "truncation"))
    add_flags(parser, GlueOptions)


def _run_glue(args: argparse.Namespace) -> None:
    start_strategy(args.strategy)
    from bert_keras.tasks.study.protocol import glue_score, run_glue
    from bert_keras.tasks.study.report import summary_tables

    summaries = run_glue(
        args.tasks or SCORED,
        data=args.data,
        checkpoint=args.checkpoint,
        output=args.output,
        hparams=Hparams(**given_settings(args, Hparams)),
        strategy_name=args.strategy,
        verbose="auto",
        log=say,
        **given_settings(args, ProtocolOptions, ClassifierOptions, GlueOptions),
    )
    _print(summary_tables(summaries, title="GLUE"))
    score = glue_score(summaries)
    print(f"GLUE score on dev: {score:.4f}, the mean of {len(summaries)} of {len(SCORED)} tasks")
    print(f"the runs are in {args.output}")


COMMANDS = {
    "ablate": Command(
        "run one of the paper's ablations and report its orderings, with pre-training or from a checkpoint",
        "tasks --text wiki.txt,lines=paragraph --vocab vocab --data sst2=glue/SST-2 mrpc=glue/MRPC \\\n"
        "    --output runs/ablation",
        _add_ablate,
        _run_ablate,
        notes=TEXT_NOTES,
        trains=True,
    ),
    "probe": Command(
        "measure how well a linear classifier on each layer of a frozen encoder predicts labels",
        "--checkpoint bert-base-uncased --data pos=conll2003 entities=conll2003 sst2=glue/SST-2 --output runs/probe",
        _add_probe,
        _run_probe,
    ),
    "protocol": Command(
        "fine-tune on one task by the paper's protocol: a grid of settings, restarts, an ensemble",
        "--task squad1.1 --data squad --checkpoint bert-base-uncased --output runs/squad-grid --learning-rates 5e-5 3e-5 \\\n"
        "    --restarts 3 --ensemble 3",
        _add_protocol,
        _run_protocol,
        trains=True,
    ),
    "glue": Command(
        "fine-tune on GLUE's tasks by the paper's protocol and write the leaderboard's files",
        "--tasks cola mrpc rte --data glue --checkpoint bert-base-uncased --output runs/glue --restarts 5",
        _add_glue,
        _run_glue,
        trains=True,
    ),
}
