"""Commands of the experiments: ablate, probe, protocol and glue.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bert_keras.cli.console import PATH, SEVERAL, Command, add_parser, say, start, table
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.tasks.commands.early import check_paths, check_text, pairs_of, texts_by_name, vocabularies
from bert_keras.tasks.commands.finetuning import check_given_task, open_given_task
from bert_keras.tasks.commands.flags import (
    CHECKPOINT_HELP,
    TEXT_HELP,
    TEXT_NOTES,
    VOCAB_HELP,
    add_feature_cache,
    add_own_settings,
    add_recipe_settings,
    add_strategy,
    add_task,
    add_task_options,
    start_strategy,
)
from bert_keras.tasks.data.sources import without_downloads
from bert_keras.tasks.hparams import OF_FEATURES, Hparams
from bert_keras.tasks.options import TASK_OPTIONS, ClassifierOptions
from bert_keras.tasks.pretraining.recipes import CLASSES
from bert_keras.tasks.study.rows import ABLATIONS, APPROACHES, CONTROL, NOT_IN_APPROACHES, SCALES, SCORED
from bert_keras.tasks.study.study_options import (
    AblationOptions,
    ApproachOptions,
    GlueOptions,
    ProbeOptions,
    ProtocolOptions,
)

OF_EXAMPLES = (
    "max_examples",
    "max_dev_examples",
)  # the settings of fine-tuning of an ablation with pre-training

OUTPUT_HELP = "folder for all runs; finished runs in it are not repeated"


def _add_output(parser: argparse.ArgumentParser, text: str = OUTPUT_HELP) -> None:
    """Adds --output and --dry-run."""
    parser.add_argument("--output", **PATH, required=True, help=text)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the trainings, their steps and an estimate of the time, and train nothing",
    )


def _dry(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """The command, which downloads no data with --dry-run."""

    @functools.wraps(run)
    def ran(args: argparse.Namespace) -> None:
        with without_downloads() if args.dry_run else contextlib.nullcontext():
            run(args)

    return ran


def _ran(study: Any, args: argparse.Namespace) -> Any:
    """The results of a study; None for a dry run, whose tables are printed."""
    if not args.dry_run:
        return study.run()
    from bert_keras.tasks.study.dry_run import dry_run

    _print(dry_run(study.cells))
    return None


def _add_ablate(parser: argparse.ArgumentParser) -> None:
    group = parser.add_subparsers(dest="ablation", required=True, metavar="ABLATION")
    for name, ablation in ABLATIONS.items():
        own = add_parser(group, name, f"{ablation.title}, with pre-training", epilog=TEXT_NOTES)
        table = SCALES[AblationOptions.scale].rows[name]
        named = {row.text for row in table if row.text}
        own.set_defaults(text_names=named)
        own.add_argument("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP + _named(named))
        of_rows = _named({row.vocabulary for row in table if row.vocabulary})
        own.add_argument("--vocab", **PATH, **SEVERAL, required=True, help=VOCAB_HELP + of_rows)
        _add_runs(own)
        add_flags(own, AblationOptions, only=("scale", "pretrainings", "held_out"))
        rows = [row.name for row in table]
        own.add_argument(
            "--rows",
            **SEVERAL,
            help=f"rows to run, each in quotes (default: all; {'; '.join([*rows, CONTROL])}), recipes, or MODULE:NAME",
        )
        add_flags(own, Hparams, only=OF_EXAMPLES)
        note = "defaults: those of --scale and of the table's rows, else those of the recipe bert"
        add_recipe_settings(own, note=note)
    for name, approaches in APPROACHES.items():
        own = add_parser(group, name, f"{approaches.title}, from a checkpoint")
        own.add_argument("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
        _add_runs(own)
        add_flags(own, ApproachOptions)
        add_flags(own, Hparams, without=NOT_IN_APPROACHES)
        add_task_options(own)


def _named(names: Iterable[str]) -> str:
    return f"; and {' and '.join(f'{one}=PATH' for one in sorted(names))}" if names else ""


def _add_runs(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of every ablation."""
    add = parser.add_argument
    pairs = {**PATH, **SEVERAL, "default": [], "metavar": "TASK=PATH"}
    add(
        "--data",
        **pairs,
        help="files of each task; other --tasks are downloaded (approaches: needed unless --tasks is given)",
    )
    add("--dev-data", **pairs, help="file of each dev split, if --data is one file")
    _add_output(parser)
    add(
        "--tasks",
        **SEVERAL,
        help="tasks to train on (default: those of --data; without --data from --scale, for layers conll2003)",
    )
    add_flags(parser, AblationOptions, only=("restarts",))
    add_strategy(parser)


def _sources(args: argparse.Namespace) -> dict[str, Any]:
    """The source of each task. Raises BertKerasError for a repeated task, and a dev file without a training file."""
    data: dict[str, Any] = pairs_of("--data", args.data)
    for name, path in pairs_of("--dev-data", args.dev_data).items():
        if name not in data:
            raise BertKerasError(
                f"--dev-data {name} was given without --data {name}=PATH; give the training file too."
            )
        data[name] = {"train": data[name], "validation": path}
    return data


def _print(tables: Iterable[Any]) -> None:
    for one in tables:
        table(one.columns, one.rows, title=one.title)


@_dry
def _run_ablate(args: argparse.Namespace) -> None:
    data = _sources(args)
    check_paths(args) if args.ablation in APPROACHES else check_text(args)
    start_strategy(args.strategy)
    how = {
        "data": data,
        "output": args.output,
        "tasks": args.tasks,
        "strategy_name": args.strategy,
        "verbose": "auto",
        "log": say,
        **given_settings(args, AblationOptions),
    }
    found = _ran((_approaches if args.ablation in APPROACHES else _pretrained)(args, how), args)
    from bert_keras.tasks.study.comparison import comparison_tables

    if found is not None:
        _print(comparison_tables(found))
        print(f"the runs are in {args.output}")


def _pretrained(args: argparse.Namespace, how: Mapping[str, Any]) -> Any:
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.corpus import open_corpora
    from bert_keras.tasks.study.ablations import plan_ablation

    return plan_ablation(
        args.ablation,
        documents={
            name: open_corpora(one) for name, one in texts_by_name(args.text, args.text_names).items()
        },
        tokenizer={name: checkpoints.load_tokenizer(path) for name, path in vocabularies(args.vocab).items()},
        changes=given_settings(args, *CLASSES),
        finetuning={name: getattr(args, name) for name in OF_EXAMPLES if hasattr(args, name)},
        rows=args.rows,
        **how,
    )


def _approaches(args: argparse.Namespace, how: Mapping[str, Any]) -> Any:
    from bert_keras.tasks.study.approaches import plan_approaches

    return plan_approaches(
        args.ablation,
        checkpoint=args.checkpoint,
        settings=given_settings(args, Hparams),
        task_options=given_settings(args, *TASK_OPTIONS),
        **how,
        **given_settings(args, ApproachOptions),
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
    _add_output(parser, "folder for the results, new or empty")
    add_flags(parser, ProbeOptions)


@_dry
def _run_probe(args: argparse.Namespace) -> None:
    data = pairs_of("--data", args.data)
    check_paths(args)
    start(deterministic=True)
    from bert_keras.tasks.study.probe import conclusions, plan_probes, tables

    study = plan_probes(
        data, checkpoint=args.checkpoint, output=args.output, log=say, **given_settings(args, ProbeOptions)
    )
    if (results := _ran(study, args)) is not None:
        for result, one in zip(results, tables(results), strict=True):
            _print([one])
            for line in conclusions(result):
                print(line)
        print(f"the results are in {args.output}")


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_task(parser, holds_out=False)
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    _add_output(parser)
    add_flags(parser, ProtocolOptions)
    add_strategy(parser)
    add_feature_cache(parser)
    add_flags(parser, Hparams, without=("learning_rate", "dev_fraction"))
    add_task_options(parser)


@_dry
def _run_protocol(args: argparse.Namespace) -> None:
    check_given_task(args, holds_out=False)
    start_strategy(args.strategy)
    from bert_keras.tasks.study.protocol import plan_protocol
    from bert_keras.tasks.study.report import summary_tables

    task, hparams = open_given_task(args)
    study = plan_protocol(
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
    for summary in _ran(study, args) or ():
        _print(summary_tables([summary], title=f"{task.name}: {args.output}"))
        print(f"the best run is in {summary.best.path}")


def _add_glue(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tasks", "--rows", **SEVERAL, help="tasks to train on, the rows of its table (default: all nine)")
    add("--data", **PATH, help="folder with GLUE's folders (default: TensorFlow Datasets downloads them)")
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    _add_output(parser)
    add_flags(parser, ProtocolOptions)
    add_strategy(parser)
    add_flags(parser, Hparams, without=("learning_rate", "dev_fraction", "feature_layers", *OF_FEATURES))
    add_flags(parser, ClassifierOptions, without=("doc_stride", "truncation"))
    add_flags(parser, GlueOptions)


@_dry
def _run_glue(args: argparse.Namespace) -> None:
    check_paths(args)
    start_strategy(args.strategy)
    from bert_keras.tasks.metrics import percent
    from bert_keras.tasks.study.glue import glue_score, plan_glue
    from bert_keras.tasks.study.report import summary_tables

    study = plan_glue(
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
    if summaries := _ran(study, args):
        _print(summary_tables(summaries, title="GLUE"))
        score = percent(glue_score(summaries))
        print(f"GLUE score on dev: {score}, the mean of {len(summaries)} of {len(SCORED)} tasks")
        print(f"the runs are in {args.output}")


COMMANDS = {
    "ablate": Command(
        "run one of the paper's ablations and report its orderings, with pre-training or from a checkpoint",
        "tasks --text wiki.txt,lines=paragraph --vocab vocab --data sst2=glue/SST-2 mrpc=glue/MRPC \\\n"
        "    --output runs/ablation",
        _add_ablate,
        _run_ablate,
        notes="bert-keras ablate ABLATION --help lists the flags of an ablation.\n\n",
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
        add_own=add_own_settings,
    ),
    "glue": Command(
        "fine-tune on GLUE's tasks by the paper's protocol and write the leaderboard's files",
        "--tasks cola mrpc rte --data glue --checkpoint bert-base-uncased --output runs/glue --restarts 5",
        _add_glue,
        _run_glue,
        trains=True,
    ),
}
