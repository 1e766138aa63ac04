"""Commands of tasks: finetune, evaluate and predict.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bert_keras.cli.console import PATH, Command, progress, say, say_first, table
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.io.files import write_json
from bert_keras.io.folders import check_folder
from bert_keras.io.json_files import as_json
from bert_keras.io.paths import to_path
from bert_keras.tasks.commands.early import check_model, check_paths
from bert_keras.tasks.commands.flags import (
    CHECKPOINT_HELP,
    DATA_HELP,
    SAVE_HELP,
    add_feature_cache,
    add_model,
    add_own_settings,
    add_pretrained_task,
    add_strategy,
    add_task,
    add_task_options,
    adjusted,
    check_tau_curve,
    default_notes,
    slow_precision,
    start_strategy,
    task_settings,
)
from bert_keras.tasks.commands.inspection import explainer, show_explanation
from bert_keras.tasks.data.squad import is_squad_file
from bert_keras.tasks.data.tables import FORMATS_NOTES, STANDARD_INPUT
from bert_keras.tasks.hparams import Hparams, hparams_of
from bert_keras.tasks.inspection.offers import METHODS
from bert_keras.tasks.options import ColumnOptions, InferenceOptions, TrainedOptions

CHUNK = 4096  # examples that `predict` holds at a time
TABLES = "tables"  # a key beside the splits in the JSON of `evaluate`: split -> its tables
NULL_ODDS = "null_odds.json"  # as google-research/bert run_squad.py names it


# -----------------------------------------------------------------------------------------------------------
# finetune


def _add_finetune(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_task(parser)
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    add(
        "--keep-head",
        action=argparse.BooleanOptionalAction,
        help="start with the checkpoint's head, or fail; or start a new head (default: keep a head with the task's labels)",
    )
    add("--output", **PATH, required=True, help="folder for the run, new or empty")
    add(
        "--random-weights",
        action="store_true",
        help="start from random weights, with the checkpoint's sizes and vocabulary",
    )
    add(
        "--dev-split",
        help="the split that selects the best epoch (default: the task's first validation split)",
    )
    add_strategy(parser)
    add("--save-every", type=int, help=f"{SAVE_HELP} (default: one save at the end of each epoch)")
    add_feature_cache(parser)
    add_flags(parser, Hparams)
    add_task_options(parser)


def _check_dev(
    data: str | None, dev_data: str | None, fraction: float | None, *, holds_out: bool = True
) -> None:
    """Raises BertKerasError unless one flag at most says where the dev split comes from, and a file has one."""
    if dev_data is not None and fraction is not None:
        raise BertKerasError("--dev-data and --dev-fraction were given; give one of them.")
    if data is None and (dev_data is not None or fraction is not None):
        flag = "--dev-fraction" if dev_data is None else "--dev-data"
        raise BertKerasError(f"{flag} was given without --data; give the training file as --data.")
    if data is not None and dev_data is None and fraction is None and to_path(data).is_file():
        instead = ", or --dev-fraction 0.1 to hold out a tenth of this file" if holds_out else ""
        raise BertKerasError(
            f"{data} is one file, without a dev split; give the dev split's file as --dev-data{instead}."
        )


def check_given_task(args: argparse.Namespace, *, holds_out: bool = True) -> None:
    """Raises BertKerasError for wrong flags of `add_task`, and as `check_paths`, without TensorFlow. holds_out: as there."""
    _check_dev(args.data, args.dev_data, getattr(args, "dev_fraction", None), holds_out=holds_out)
    check_paths(args)


def open_given_task(args: argparse.Namespace) -> tuple[Any, Hparams]:
    """The task of the flags of `add_task`, and its hyperparameters with those that were given."""
    from bert_keras.tasks.finetuning.examples import has_dev_split
    from bert_keras.tasks.runs.task_types import open_task

    fraction = getattr(args, "dev_fraction", None)
    source = {"train": args.data, "validation": args.dev_data} if args.dev_data else args.data
    task = open_task(args.task, source, **task_settings(args))
    if fraction is not None and to_path(args.data).is_dir() and has_dev_split(task):
        raise BertKerasError(
            f"{args.data} has a dev split; leave --dev-fraction out, or give the training file as --data."
        )
    return task, hparams_of(task.defaults, given_settings(args, Hparams))


def _run_finetune(args: argparse.Namespace) -> None:
    check_given_task(args)
    start_strategy(args.strategy)
    from bert_keras import checkpoints
    from bert_keras.tasks.evaluation.model_report import PAGE
    from bert_keras.tasks.finetuning.finetune import finetune
    from bert_keras.tasks.finetuning.finetuning_monitor import REPORT
    from bert_keras.tasks.runs.run_folder import DEGENERATE
    from bert_keras.tasks.training.loop import LOGS

    task, hparams = open_given_task(args)
    checkpoint = checkpoints.read(args.checkpoint)
    if args.random_weights:
        checkpoint = dataclasses.replace(checkpoint, tensors={})
    if args.data and (about := task.about_data()):
        say(about)
    log = say_first(f"to see the curves: tensorboard --logdir {args.output}/{LOGS}")
    results = finetune(
        task,
        checkpoint=checkpoint,
        output=args.output,
        hparams=hparams,
        strategy_name=args.strategy,
        keep_head=args.keep_head,
        feature_cache=args.feature_cache,
        save_every=args.save_every,
        dev_split=args.dev_split,
        report=True,
        log=log,
    )
    rows = [(name.removeprefix("val_"), value) for name, value in results["measures"].items()]
    table(
        ("measure", f"dev, epoch {results['best_epoch']} of {len(results['history'])}"),
        rows,
        title=f"{task.name}, {hparams.keep} epoch",
    )
    if results.get(DEGENERATE):
        print(
            f"warning: the model did not learn: {results[DEGENERATE]}; give more examples, more epochs or another --seed",
            file=sys.stderr,
        )
    if (page := to_path(args.output) / REPORT / PAGE).is_file():
        print(f"its report is {page}")
    print(f"the run is in {args.output}")


# -----------------------------------------------------------------------------------------------------------
# evaluate and predict


def inference_of(args: argparse.Namespace) -> InferenceOptions:
    """The options of the flags that a command has."""
    return InferenceOptions(**given_settings(args, InferenceOptions))


def model_of(args: argparse.Namespace, *, data: str | None = None) -> Any:
    """Loads the runs of --run, or a checkpoint with its own task or --task. `check_model` has checked the flags."""
    from bert_keras.tasks.devices.strategies import strategy
    from bert_keras.tasks.runs.ensemble import at_precision, load_runs, members_of
    from bert_keras.tasks.runs.own_head import own_run
    from bert_keras.tasks.runs.run_folder import run_of
    from bert_keras.tasks.runs.task_types import open_task
    from bert_keras.tasks.training.task_model import encoder_of

    options = task_settings(args)
    with strategy(args.strategy).scope():
        if args.run:
            run = load_runs(args.run, data=data, task=args.task)
        elif args.task:
            run = run_of(open_task(args.task, data, **options), args.checkpoint)
        else:
            run = own_run(args.checkpoint, data=data, **options)
        run = at_precision(run, inference_of(args).precision)
    slow_precision(encoder_of(members_of(run.model)[0]).compute_dtype)  # a .keras file may be in bfloat16
    return run


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_model(parser)
    add_pretrained_task(parser)
    add("--data", **PATH, help=DATA_HELP)
    add(
        "--split",
        help="split to measure; held-out is the part of the training file that --dev-fraction held out (default: held-out if "
        "--data is that file, else every validation split)",
    )
    add_flags(parser, InferenceOptions, only=("batch_size",))
    add_strategy(parser, trains=False)
    add_flags(parser, InferenceOptions, only=("precision",))
    add_flags(parser, TrainedOptions, only=("tau", "dimension"))
    add("--tau-curve", **PATH, metavar="FILE", help="SQuAD 2.0: draw F1 over tau into this .svg or .png file")
    report = "write a page with intervals, charts and mistakes to this folder, new or empty; of several splits, one each"
    compare = "with --report: a second run of the task, on the same examples"
    add("--report", **PATH, metavar="FOLDER", help=report)
    add("--compare", **PATH, metavar="RUN", help=compare)
    add("--json", action="store_true", help="print JSON instead of a table")


def _run_evaluate(args: argparse.Namespace) -> None:
    batch_size = inference_of(args).batch_size
    check_model(args)
    _check_report(args)
    start_strategy(args.strategy, deterministic=False)
    from bert_keras.tasks.batches import cardinality, predictor
    from bert_keras.tasks.evaluation.model_report import CHOSEN, TRAINED, as_plain, make_report, write_reports
    from bert_keras.tasks.finetuning.examples import check_labelled, splits_of
    from bert_keras.tasks.problems.tau_curve import draw_tau_curve
    from bert_keras.tasks.runs.run_folder import read_history

    run, model = model_of(args, data=args.data), " ".join(args.run or [args.checkpoint])
    task, measured, tables, reports = adjusted(run.task, args), {}, dict[str, list[Any]](), {}
    check_tau_curve(task, args.tau_curve)
    second = _second_run(args, task)
    history = read_history(run.path) if len(args.run or ()) == 1 else []
    splits = [*splits_of(task, args.run or (), args.split)]  # reads all files before it measures any
    for split, examples, note in splits:
        if note:
            print(note, file=sys.stderr)
        task.check(run.preprocess, examples)
        check_labelled(task, run.preprocess, examples, split)
    predict = predictor(task, run.preprocess, run.model, fixed=True)
    predict_second = second and predictor(second.task, second.preprocess, second.model, fixed=True)
    for split, examples, _ in splits:
        with progress(f"evaluating {split}", cardinality(examples)) as advance:
            predictions, raw = predict(examples, batch_size=batch_size, progress=advance)
        measured[split] = dict(task.evaluate(predictions, raw))
        if args.tau_curve:
            draw_tau_curve(*task.tau_curve(predictions, raw), tau=task.tau, title=split, path=args.tau_curve)
        tables[split] = [*task.report(predictions, raw)]
        if args.report:
            other = second and (args.compare, second.task, predict_second(examples, batch_size=batch_size)[0])
            caution = {"train": TRAINED, "held-out": CHOSEN}.get(split, "")
            about = {
                "name": task.name,
                "model": model,
                "split": split,
                "history": history,
                "caution": caution,
            }
            reports[split] = make_report(task, predictions, raw, compared=other, **about)
    if reports:
        write_reports(reports, to_path(args.report))
    if args.json:
        of_split = {split: [as_plain(one) for one in found] for split, found in tables.items()}
        print(as_json(measured | {TABLES: of_split}))
    else:
        _print_measures(run, task, model, measured, tables)
        for report in reports.values():
            print((report.content["comparison"] or report.content)["sentence"])
        if reports:
            say(f"the report is in {args.report}")


def _check_report(args: argparse.Namespace) -> None:
    """Raises BertKerasError for --compare without --report, and for a folder that holds files."""
    if args.compare and not args.report:
        raise BertKerasError("--compare was given without --report; give a folder for the page as --report.")
    if args.report:
        check_folder(to_path(args.report))


def _second_run(args: argparse.Namespace, task: Any) -> Any:
    """The run of --compare; None without it. Raises BertKerasError for a run of another task."""
    from bert_keras.tasks.devices.strategies import strategy
    from bert_keras.tasks.evaluation.measured import check_comparable
    from bert_keras.tasks.runs.ensemble import load_runs

    if args.compare is None:
        return None
    with strategy(args.strategy).scope():
        run = load_runs([args.compare], data=args.data, task=args.task)
    check_comparable(task, run.task, name=args.compare)
    return run


def _print_measures(
    run: Any, task: Any, model: str, measured: dict[str, Any], tables: dict[str, list[Any]]
) -> None:
    from bert_keras.tasks.runs.facts import describe

    rows = [(split, name, value) for split, values in measured.items() for name, value in values.items()]
    features = f" ({about})" if (about := describe(run)) else ""
    rules = f"; {about}" if (about := task.about_measures()) else ""
    table(("split", "measure", "value"), rows, title=f"{task.name}: {model}{features}{rules}")
    for split, found in tables.items():
        for one in found:
            table(one.columns, one.rows, title=f"{split}: {one.title}")


def _add_predict(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_model(parser)
    add_pretrained_task(parser)
    add(
        "--input",
        "--data",
        **PATH,
        default=STANDARD_INPUT,
        help="a file (see below), or - for lines of standard input (default: -)",
    )
    add("--format", choices=("table", "jsonl"), help="default: a table on a terminal, JSON lines elsewhere")
    add(
        "--predictions",
        **PATH,
        help="questions in SQuAD's .json: write {id: answer} to this file, as the official scripts read it, and for SQuAD 2.0 "
        f"{NULL_ODDS} beside it",
    )
    explain = f"score the words that decided each answer: {' or '.join(METHODS)} (default: {METHODS[0]})"
    add("--explain", nargs="?", const=METHODS[0], choices=METHODS, metavar="METHOD", help=explain)
    add_flags(parser, InferenceOptions, only=("batch_size",))
    add_strategy(parser, trains=False)
    add_flags(parser, InferenceOptions, only=("precision",))
    add_flags(parser, TrainedOptions)


def _run_predict(args: argparse.Namespace) -> None:
    batch_size = inference_of(args).batch_size
    check_model(args)
    start_strategy(args.strategy, deterministic=False)
    run = model_of(args)
    run = dataclasses.replace(run, task=adjusted(run.task, args))
    files, explain = _official_files(run.task, args), explainer(run, args.explain)
    as_table = (args.format or ("table" if sys.stdout.isatty() else "jsonl")) == "table"
    shown: list[dict[str, str]] = []
    explanations: list[Any] = []
    written: dict[str, dict[str, Any]] = {name: {} for name in files}
    quoting = {
        name: value for name, value in given_settings(args, ColumnOptions).items() if name == "quoting"
    }
    examples = run.task.inputs(args.input, **quoting)
    with progress("predicting", None) as advance:
        for example, record in records(run, examples, batch_size=batch_size, progress=advance):
            for name, content in written.items():
                content[example["id"]] = record[name]
            found = explain(example)
            if as_table:
                shown.append(run.task.show(example, record))
                explanations += found
            else:
                told = {"explanations": [one.to_json() for one in found]} if args.explain else {}
                print(as_json(example | record | told, ensure_ascii=False))
    for name, file in files.items():
        write_json(file, written[name])
    if shown:
        table(tuple(shown[0]), [tuple(cells.values()) for cells in shown])
    for one in explanations:
        show_explanation(one)


def _official_files(task: Any, args: argparse.Namespace) -> dict[str, pathlib.Path]:
    """Field of a record -> its file, by --predictions. Raises BertKerasError for input without ids, and for taken names."""
    if args.predictions is None:
        return {}
    if not task.official or not is_squad_file(args.input):
        raise BertKerasError(
            f"--predictions needs a run of question answering and SQuAD's .json as --input; the run is of {task.name} and the "
            f"input is {args.input}."
        )
    file = to_path(args.predictions)
    files = dict(zip(task.official, (file, file.with_name(NULL_ODDS)), strict=False))
    if there := [one for one in files.values() if one.exists()]:
        raise BertKerasError(f"{there[0]} already exists; give another --predictions, or remove it first.")
    if not file.parent.is_dir():
        raise BertKerasError(
            f"there is no folder {file.parent} for {file.name}; make it, or give another --predictions."
        )
    return files


def records(
    run: Any, examples: Iterator[dict[str, Any]], *, batch_size: int, progress: Callable[[int], None]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields each example with the run's prediction."""
    import tensorflow as tf

    from bert_keras.tasks.batches import predictor

    predict = predictor(run.task, run.preprocess, run.model, fixed=True)
    for chunk in iter(lambda: list(itertools.islice(examples, CHUNK)), []):
        raw = tf.data.Dataset.from_tensor_slices(
            {name: [example[name] for example in chunk] for name in run.task.signature()}
        )
        answers, _ = predict(raw, batch_size=batch_size, progress=progress)
        for i, example in enumerate(chunk):
            yield example, run.task.record({name: value[i] for name, value in answers.items()})
        sys.stdout.flush()


COMMANDS = {
    "finetune": Command(
        "fine-tune a checkpoint on a task and keep the best epoch",
        "--task mrpc --data glue/MRPC --checkpoint bert-base-uncased --output runs/mrpc --learning-rate 2e-5",
        _add_finetune,
        _run_finetune,
        notes=default_notes(),
        trains=True,
        add_own=add_own_settings,
    ),
    "evaluate": Command(
        "measure a run on a split",
        "--run runs/mrpc --data glue/MRPC",
        _add_evaluate,
        _run_evaluate,
        add_own=add_own_settings,
    ),
    "predict": Command(
        "label raw text from a file or standard input",
        "--run runs/sst2 --input reviews.txt",
        _add_predict,
        _run_predict,
        notes=FORMATS_NOTES,
        add_own=add_own_settings,
    ),
}
