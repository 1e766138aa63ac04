"""Commands of the experiments: ablate and glue.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse

from bert_keras.console import PATH, SEVERAL, Command, say, start, table
from bert_keras.settings import add_flags, given_settings
from tasks.commands import CHECKPOINT_HELP, add_strategy
from tasks.pretraining.commands import TEXT_HELP, TEXT_NOTES, VOCAB_HELP, pair, set_value
from tasks.settings import (
    ABLATIONS,
    OF_FEATURES,
    AblationOptions,
    ClassifierOptions,
    Hparams,
    ProtocolOptions,
)

OUTPUT_HELP = "folder for all runs; finished runs in it are not repeated"


def _add_ablate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("ablation", choices=ABLATIONS, help="table 5, 6 or 8, or figure C.1")
    add("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP)
    add("--vocab", **PATH, required=True, help=VOCAB_HELP)
    add(
        "--data",
        **PATH,
        **SEVERAL,
        default=[],
        metavar="TASK=PATH",
        help="files of each task; missing tasks are downloaded",
    )
    add("--output", **PATH, required=True, help=OUTPUT_HELP)
    add("--tasks", **SEVERAL, help="tasks to fine-tune on (default: from --scale)")
    add("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="settings for every pre-training")
    add_flags(parser, AblationOptions)
    add_strategy(parser, choices=("one", "mirrored"))


def _run_ablate(args: argparse.Namespace) -> None:
    start(deterministic=True)
    from bert_keras import checkpoints
    from tasks.experiments import ablations
    from tasks.pretraining.corpus import open_corpora

    outcomes = ablations.run_ablation(
        args.ablation,
        documents=open_corpora(args.text),
        tokenizer=checkpoints.load_tokenizer(args.vocab),
        data=dict(map(pair, args.data)),
        output=args.output,
        changes=dict(map(set_value, args.set)),
        tasks=args.tasks,
        strategy_name=args.strategy,
        log=say,
        **given_settings(args, AblationOptions),
    )
    for title, columns, rows in ablations.tables(args.ablation, outcomes):
        table(columns, rows, title=title)
    print(f"the runs are in {args.output}")


def _add_glue(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tasks", **SEVERAL, help="tasks to train on (default: all nine)")
    add("--data", **PATH, help="folder with GLUE's folders (default: TensorFlow Datasets downloads them)")
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    add("--output", **PATH, required=True, help=OUTPUT_HELP)
    add_flags(parser, ProtocolOptions)
    add_strategy(parser)
    add_flags(parser, Hparams, without=("learning_rate", "dev_fraction", "feature_layers", *OF_FEATURES))
    add_flags(parser, ClassifierOptions, without=("doc_stride",))


def _run_glue(args: argparse.Namespace) -> None:
    start(deterministic=True)
    from tasks.experiments import glue_protocol

    summaries = glue_protocol.run_protocol(
        args.tasks or glue_protocol.SCORED,
        data=args.data,
        checkpoint=args.checkpoint,
        output=args.output,
        hparams=Hparams(**given_settings(args, Hparams)),
        strategy_name=args.strategy,
        verbose="auto",
        log=say,
        **given_settings(args, ProtocolOptions, ClassifierOptions),
    )
    for title, columns, rows in glue_protocol.tables(summaries):
        table(columns, rows, title=title)
    score, tasks = glue_protocol.glue_score(summaries), len(glue_protocol.SCORED)
    print(f"GLUE score on dev: {score:.4f}, the mean of {len(summaries)} of {tasks} tasks")
    print(f"the runs are in {args.output}")


COMMANDS = {
    "ablate": Command(
        "run one of the paper's ablations and report its orderings",
        "tasks --text wiki.txt,lines=paragraph --vocab vocab --data sst2=glue/SST-2 mrpc=glue/MRPC \\\n"
        "    --output runs/ablation",
        _add_ablate,
        _run_ablate,
        notes=TEXT_NOTES,
        trains=True,
    ),
    "glue": Command(
        "fine-tune on GLUE's tasks by the paper's protocol and write the leaderboard's files",
        "--tasks cola mrpc rte --data glue --checkpoint bert-base --output runs/glue --restarts 5",
        _add_glue,
        _run_glue,
        trains=True,
    ),
}
