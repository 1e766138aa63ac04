"""Commands of the experiments: ablate, probe, protocol and glue.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse

from bert_keras.console import PATH, SEVERAL, Command, say, start, table
from bert_keras.settings import add_flags, given_settings
from tasks.commands import (
    CHECKPOINT_HELP,
    add_feature_cache,
    add_strategy,
    add_task,
    add_task_options,
    open_given_task,
)
from tasks.options import (
    ABLATIONS,
    AblationOptions,
    ClassifierOptions,
    GlueOptions,
    ProbeOptions,
    ProtocolOptions,
)
from tasks.pretraining.commands import TEXT_HELP, TEXT_NOTES, VOCAB_HELP, pair, set_value
from tasks.settings import OF_FEATURES, Hparams

OUTPUT_HELP = "folder for all runs; finished runs in it are not repeated"


def _add_ablate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "ablation",
        choices=ABLATIONS,
        help="BERT's table 5 (tasks), 6 (size), 8 (masking) or figure 5 (steps), the masking rate, or RoBERTa's table 2",
    )
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
    from tasks.experiments.probe import run_probes, tables

    results = run_probes(
        dict(map(pair, args.data)),
        checkpoint=args.checkpoint,
        output=args.output,
        log=say,
        **given_settings(args, ProbeOptions),
    )
    for title, columns, rows in tables(results):
        table(columns, rows, title=title)
    print(f"the results are in {args.output}")


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_task(parser, holds_out=False)
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    add("--output", **PATH, required=True, help=OUTPUT_HELP)
    add_flags(parser, ProtocolOptions)
    add_strategy(parser, choices=("one", "mirrored", "tpu"))
    add_feature_cache(parser)
    add_flags(parser, Hparams, without=("learning_rate", "dev_fraction"))
    add_task_options(parser)


def _run_protocol(args: argparse.Namespace) -> None:
    start(deterministic=True)
    from tasks.experiments.protocol import run_protocol
    from tasks.experiments.summary import tables

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
    for title, columns, rows in tables([summary], title=f"{task.name}: {args.output}"):
        table(columns, rows, title=title)
    print(f"the best run is in {summary.best.path}")


def _add_glue(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tasks", **SEVERAL, help="tasks to train on (default: all nine)")
    add("--data", **PATH, help="folder with GLUE's folders (default: TensorFlow Datasets downloads them)")
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    add("--output", **PATH, required=True, help=OUTPUT_HELP)
    add_flags(parser, ProtocolOptions)
    add_strategy(parser, choices=("one", "mirrored", "tpu"))
    add_flags(parser, Hparams, without=("learning_rate", "dev_fraction", "feature_layers", *OF_FEATURES))
    add_flags(parser, ClassifierOptions, without=("doc_stride", "truncation"))
    add_flags(parser, GlueOptions)


def _run_glue(args: argparse.Namespace) -> None:
    start(deterministic=True)
    from tasks.experiments import glue_protocol
    from tasks.experiments.summary import tables

    summaries = glue_protocol.run_protocol(
        args.tasks or glue_protocol.SCORED,
        data=args.data,
        checkpoint=args.checkpoint,
        output=args.output,
        hparams=Hparams(**given_settings(args, Hparams)),
        strategy_name=args.strategy,
        verbose="auto",
        log=say,
        **given_settings(args, ProtocolOptions, ClassifierOptions, GlueOptions),
    )
    for title, columns, rows in tables(summaries, title="GLUE"):
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
    "probe": Command(
        "measure what each layer of a frozen encoder says about words and texts",
        "--checkpoint minilm --data pos=conll2003 entities=conll2003 sst2=glue/SST-2 --output runs/probe",
        _add_probe,
        _run_probe,
    ),
    "protocol": Command(
        "fine-tune on one task by the paper's protocol: a grid of settings, restarts, an ensemble",
        "--task squad1.1 --data squad --checkpoint bert-base --output runs/squad-grid --learning-rates 5e-5 3e-5 \\\n"
        "    --restarts 3 --ensemble 3",
        _add_protocol,
        _run_protocol,
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
