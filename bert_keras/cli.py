"""The `bert-keras` command: each subcommand reads its flags, calls the package and shows what came back.

TensorFlow is imported by the subcommands, never by `--help`.
"""

import argparse
import codecs
import contextlib
import csv
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import app, logging
from absl.flags import argparse_flags

# What bad input, bad files and full disks raise: one line for a person. Anything else keeps its traceback.
EXPECTED = (ValueError, OSError, ImportError)
DATA_HELP = "folder of the task's files, or one file; without it TensorFlow Datasets fetches them"
RUNS_HELP = "folder that finetune wrote; of several the mean of their outputs is taken"
CHUNK = 4096  # lines of input that `predict` holds at a time

EXAMPLES = """examples:
  bert-keras demo --quick
  bert-keras finetune --task sst2 --data glue/SST-2 --checkpoint minilm --output runs/sst2
  bert-keras evaluate --run runs/sst2 --data glue/SST-2
  echo "a charming journey" | bert-keras predict --run runs/sst2
  bert-keras export --run runs/sst2 --output served/sst2
  bert-keras convert --from uncased_L-12_H-768_A-12 --to bert-base --format hugging-face --check
"""

# The settings of tasks: type or choices, and what they say.
TASK_OPTIONS: dict[str, tuple[Any, str]] = {
    "doc_stride": (int, "wordpieces from one window of a long text to the next"),
    "max_query_length": (int, "wordpieces of the question that are kept"),
    "max_answer_length": (int, "wordpieces of the longest answer"),
    "n_best": (int, "answers that are listed for each question"),
    "context": (("document", "sentence"), "what a tagged sentence is read with (default: document)"),
    "num_choices": (int, "endings of every example (default: 4)"),
    "pooling": (("pooled", "concat"), "what a classifier reads: one position, or maximum and mean too"),
}

# The fields of Hparams: type or choices, and what they say.
HPARAMS: dict[str, tuple[Any, str]] = {
    "batch_size": (int, "examples in a batch, over all replicas"),
    "epochs": (int, "passes over the training split"),
    "learning_rate": (float, "the highest rate"),
    "warmup_proportion": (float, "share of all steps in which the rate rises"),
    "weight_decay": (float, "of kernels; biases and LayerNorm are never decayed"),
    "clip_norm": (float, "global norm that gradients are clipped to"),
    "seq_length": (int, "longest sequence in wordpieces"),
    "seed": (int, "of weights, order and dropout"),
    "max_examples": (int, "train on this many, drawn at random"),
    "freeze": (("encoder",), "train the head alone"),
    "bias_correction": (None, "correct Adam's moments for their start at 0"),
    "layer_decay": (float, "rate of each lower layer: that of the layer above, times this (default: 1)"),
    "schedule": (("linear", "slanted_triangular"), "how the rate rises and falls (default: linear)"),
    "unfreeze": (("gradual",), "epoch e trains the head and the top e blocks"),
}

INPUT_FILES = """input files, in UTF-8:
  .tsv .csv   the first line names the columns; those of the task's text are read, blank lines are passed over
  .jsonl      an object a line, with the task's text under its names
              (the endings of a choice: columns endings0, endings1, ...; in .jsonl a list)
  any other   an example a line, as it stands: a blank line is an empty text. Tasks of two texts have a tab
              between them, and further tabs belong to the second. A line ends at a newline, before which one
              carriage return is dropped.
Standard input is read as any other file. Each answer stands beside its text, in the order of the input.

"""


FEATURES_NOTES = """formats:
  jsonl     an object a line: text, tokens, starts and ends (bytes of the line), vectors
  parquet   the same columns, a row a line
  npz       vectors, starts and ends of all lines in a row; line i has rows row_splits[i] to row_splits[i + 1]
A word's vector is that of its first wordpiece. Lines longer than a window are read in several that overlap. Until the end
the work is in OUTPUT.part: the same command goes on from there.

"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse_flags.ArgumentParser(
        prog="bert-keras",
        description="BERT for TensorFlow and Keras 3: fine-tune, evaluate, predict, export and convert.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # absl's own --run_with_pdb would make --run ambiguous
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, example: str, *, notes: str = "") -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"{notes}example:\n  bert-keras {name} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        made.set_defaults(run_command=run)
        return made

    add = command(
        "finetune",
        _finetune,
        "fine-tune a checkpoint on a task and keep the best epoch",
        "--task mrpc --data glue/MRPC --checkpoint bert-base --output runs/mrpc --learning-rate 2e-5",
    ).add_argument
    add(
        "--task",
        required=True,
        help="a GLUE task (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli), custom, squad1.1, squad2.0, swag, codah "
        "or conll2003",
    )
    add("--data", help=DATA_HELP)
    add("--dev-data", help="file of the dev split, where --data is the file to train on")
    add("--checkpoint", required=True, help="Hugging Face, Google, KerasHub or Model Garden checkpoint")
    add("--keep-head", action="store_true", help="start the head from the checkpoint too")
    add("--output", required=True, help="folder of the run, new or empty")
    add(
        "--random-weights",
        action="store_true",
        help="take the checkpoint's sizes and vocabulary, not its weights",
    )
    add(
        "--dev-split",
        help="the split that chooses the best epoch (default: the task's first validation split)",
    )
    add(
        "--strategy",
        default="one",
        choices=("one", "mirrored", "tpu"),
        help="tf.distribute strategy (default: one)",
    )
    _add_settings(add, HPARAMS)
    _add_settings(add, TASK_OPTIONS)

    add = command(
        "glue",
        _glue,
        "fine-tune on GLUE's tasks by the paper's protocol and write the leaderboard's files",
        "--tasks cola mrpc rte --data glue --checkpoint bert-base --output runs/glue --restarts 5",
    ).add_argument
    add("--tasks", nargs="+", help="tasks to train on (default: all nine)")
    add("--data", help="folder of GLUE's folders; without it TensorFlow Datasets fetches them")
    add("--checkpoint", required=True, help="Hugging Face, Google, KerasHub or Model Garden checkpoint")
    add("--output", required=True, help="folder of all runs; what has finished there is not run again")
    add("--learning-rates", nargs="+", type=float, help="each is tried (default: 5e-5 4e-5 3e-5 2e-5)")
    add("--restarts", type=int, default=1, help="seeds for each learning rate, from --seed on (default: 1)")
    add("--best-only", action="store_true", help="remove the weights of all runs but each task's best")
    add(
        "--strategy",
        default="one",
        choices=("one", "mirrored", "tpu"),
        help="tf.distribute strategy (default: one)",
    )
    _add_settings(add, HPARAMS, without=("learning_rate",))
    _add_settings(add, {"pooling": TASK_OPTIONS["pooling"]})

    add = command(
        "evaluate", _evaluate, "measure a run on a split", "--run runs/mrpc --data glue/MRPC"
    ).add_argument
    add("--run", required=True, nargs="+", help=RUNS_HELP)
    add("--data", help=DATA_HELP)
    add("--split", help="split to measure (default: every validation split)")
    add("--batch-size", type=int, default=32, help="examples in a batch (default: 32)")
    add("--json", action="store_true", help="print JSON instead of a table")

    add = command(
        "predict",
        _predict,
        "label raw text from a file or standard input",
        "--run runs/sst2 --input reviews.txt",
        notes=INPUT_FILES,
    ).add_argument
    add("--run", required=True, nargs="+", help=RUNS_HELP)
    add(
        "--input",
        default="-",
        help="a file (below), or - for lines of standard input (default: -)",
    )
    add("--format", choices=("table", "jsonl"), help="default: a table on a terminal, JSON lines elsewhere")
    add("--batch-size", type=int, default=32, help="examples in a batch (default: 32)")

    add = command(
        "export", _export, "write a SavedModel that takes raw strings", "--run runs/sst2 --output served/sst2"
    ).add_argument
    add("--run", required=True, nargs="+", help=RUNS_HELP)
    add("--output", required=True, help="folder of the model; the next version number is made in it")

    add = command(
        "convert",
        _convert,
        "turn a checkpoint of one format into another",
        "--from uncased_L-12_H-768_A-12 --to bert-base --format hugging-face --check",
    ).add_argument
    add(
        "--from",
        dest="source",
        required=True,
        help="the checkpoint: a folder, or the prefix of a TensorFlow checkpoint",
    )
    add("--to", dest="target", required=True, help="where to write; must not exist, or be empty")
    add(
        "--format",
        default="hugging-face",
        help="hugging-face, google, keras-hub or model-garden (default: hugging-face)",
    )
    add(
        "--check",
        action="store_true",
        help="compare each layer with the source's own library, where it is installed",
    )

    add = command(
        "features",
        _features,
        "write a frozen encoder's vectors of every word or wordpiece of a text",
        "--checkpoint bert-base --input corpus.txt --output corpus.parquet --format parquet",
        notes=FEATURES_NOTES,
    ).add_argument
    add("--checkpoint", required=True, help="Hugging Face, Google, KerasHub or Model Garden checkpoint")
    add("--input", required=True, help="text in UTF-8, an example a line")
    add("--output", required=True, help="the file to write; it must not be there")
    add(
        "--layers",
        default="last",
        choices=(
            "embeddings",
            "second_to_last",
            "last",
            "weighted_sum_last_four",
            "concat_last_four",
            "weighted_sum_all",
        ),
        help="which layers make a vector; a weighted sum is the mean (default: last)",
    )
    add("--level", default="word", choices=("word", "piece"), help="what has a vector (default: word)")
    add("--format", default="jsonl", choices=("jsonl", "npz", "parquet"), help="default: jsonl")
    add("--dtype", default="float32", choices=("float16", "float32"), help="default: float32")
    add("--seq-length", type=int, help="wordpieces of a window (default: 512, or what the encoder has)")
    add("--doc-stride", type=int, default=128, help=f"{TASK_OPTIONS['doc_stride'][1]} (default: 128)")
    add("--batch-size", type=int, default=8, help="lines, and windows, in a batch (default: 8)")

    add = command(
        "demo", _demo, "fine-tune, export and serve real weights on real reviews", "--quick --work demo"
    ).add_argument
    size = commands.choices["demo"].add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="under two minutes on 2 cores")
    size.add_argument("--full", action="store_true", help="every training example")
    add("--work", default="demo", help="folder for downloads, runs and the exported model (default: demo)")
    add("--seed", type=int, default=1, help="of the split, the order and dropout (default: 1)")

    add = command(
        "info", _info, "describe a checkpoint or a run, or this installation", "bert-base"
    ).add_argument
    add("path", nargs="?", help="checkpoint or run; without it: versions, devices and sizes")
    return parser


def _add_settings(
    add: Callable[..., Any], settings: Mapping[str, tuple[Any, str]], *, without: Sequence[str] = ()
) -> None:
    """A flag for each; what is not given is not in the arguments. None as a type is a switch."""
    for name, (kind, text) in settings.items():
        if name not in without:
            form: dict[str, Any] = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
            form = {"action": "store_true"} if kind is None else form
            add(f"--{name.replace('_', '-')}", **form, default=argparse.SUPPRESS, help=text)


def main(argv: Sequence[str] | None = None) -> None:
    """The console script's entry; exits with 0, 1 (an error) or 2 (a wrong flag).

    argv: as sys.argv, the program's name first
    """
    app.run(
        _run,
        argv=list(argv) if argv is not None else None,
        flags_parser=lambda args: _parser().parse_args(args[1:]),
    )


def _run(args: argparse.Namespace) -> None:
    warnings.showwarning = lambda message, *rest, **more: print(f"warning: {message}", file=sys.stderr)
    try:
        args.run_command(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except EXPECTED as error:
        if args.debug:
            raise
        print(f"bert-keras: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Keeps TensorFlow's start-up lines from the terminal; C++ writes them, so the descriptor is moved."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # `export` starts a second process: the first must not take a GPU's whole memory.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _start(*, deterministic: bool = False) -> Any:
    """TensorFlow, imported without its noise; every op deterministic if asked for."""
    with quiet_start():
        import tensorflow as tf

        import bert_keras.tokenizers  # noqa: F401 (tensorflow-text, or what to do without it)

        tf.config.list_logical_devices()
        tf.get_logger().setLevel("ERROR")
        logging.set_verbosity(logging.ERROR)
        if deterministic:
            tf.config.experimental.enable_op_determinism()
    return tf


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row])
    Console(markup=False, emoji=False, highlight=False).print(table)


@contextlib.contextmanager
def _progress(text: str, total: int | None) -> Iterator[Any]:
    """A bar on standard error where that is a terminal; yields the function that moves it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # What is printed meanwhile belongs on standard output, not with the bar.
    with Progress(
        console=console, disable=not console.is_terminal, transient=True, redirect_stdout=False
    ) as bar:
        job = bar.add_task(text, total=total)
        yield lambda done: bar.update(job, advance=done)


def _task(name: str, source: Any, **options: Any) -> Any:
    """The task of that name. Raises ValueError on another name, or an option that the task has not."""
    from tasks.train import TASKS

    task = next((task for task in TASKS.values() if name in task.names), None)
    if task is None:
        listed = ", ".join(name for task in TASKS.values() for name in task.names)
        raise ValueError(f"no task named {name!r}; the tasks are {listed}.")
    if unknown := [f"--{option.replace('_', '-')}" for option in options if option not in task.options]:
        raise ValueError(f"{', '.join(unknown)} says nothing to the task {name}; leave it out.")
    return task.open(name, source, **options)


def _finetune(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from bert_keras import checkpoints
    from tasks import train
    from tasks.task import Hparams

    given = vars(args)
    if args.data and not args.dev_data and pathlib.Path(args.data).is_file():
        raise ValueError(f"{args.data} is one file; give the file of the dev split too, as --dev-data.")
    source = {"train": args.data, "validation": args.dev_data} if args.dev_data else args.data
    task = _task(args.task, source, **{name: given[name] for name in TASK_OPTIONS if name in given})
    hparams = Hparams(**(dict(task.defaults) | {name: given[name] for name in HPARAMS if name in given}))
    checkpoint = checkpoints.read(args.checkpoint)
    if args.random_weights:
        checkpoint = dataclasses.replace(checkpoint, tensors={})
    results = train.finetune(
        task,
        checkpoint=checkpoint,
        output=args.output,
        hparams=hparams,
        strategy_name=args.strategy,
        keep_head=args.keep_head,
        dev_split=args.dev_split or next(iter(task.validation_splits), "validation"),
    )
    rows = [(name.removeprefix("val_"), value) for name, value in results["measures"].items()]
    _table(
        ("measure", "dev"),
        rows,
        title=f"{task.name}, best of {hparams.epochs} epochs: {results['best_epoch']}",
    )
    print(f"the run is in {args.output}")


def _glue(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from tasks import glue_protocol
    from tasks.task import Hparams

    given = vars(args)
    summaries = glue_protocol.run_protocol(
        args.tasks or glue_protocol.SCORED,
        data=args.data,
        checkpoint=args.checkpoint,
        output=args.output,
        hparams=Hparams(**{name: given[name] for name in HPARAMS if name in given}),
        learning_rates=args.learning_rates or glue_protocol.LEARNING_RATES,
        restarts=args.restarts,
        pooling=given.get("pooling", "pooled"),
        strategy_name=args.strategy,
        best_only=args.best_only,
        verbose="auto",
    )
    for title, columns, rows in glue_protocol.tables(summaries):
        _table(columns, rows, title=title)
    score, tasks = glue_protocol.glue_score(summaries), len(glue_protocol.SCORED)
    print(f"GLUE score on dev: {score:.4f}, the mean of {len(summaries)} of {tasks} tasks")
    print(f"the runs are in {args.output}")


def _evaluate(args: argparse.Namespace) -> None:
    _start()
    from tasks import train
    from tasks.task import cardinality, predict

    run = train.load_runs(args.run, data=args.data)
    task, measured, tables = run.task, {}, []
    for split in [args.split] if args.split else task.validation_splits:
        examples = task.examples(split)
        with _progress(f"evaluating {split}", cardinality(examples)) as advance:
            predictions, raw = predict(
                task, run.preprocess, run.model, examples, batch_size=args.batch_size, progress=advance
            )
        measured[split] = dict(task.evaluate(predictions, raw))
        tables += [table._replace(title=f"{split}: {table.title}") for table in task.report(predictions, raw)]
    if args.json:
        print(json.dumps(measured))
        return
    rows = [(split, name, value) for split, values in measured.items() for name, value in values.items()]
    _table(("split", "measure", "value"), rows, title=f"{task.name}: {' '.join(args.run)}")
    for title, columns, rows in tables:
        _table(columns, rows, title=title)


def _predict(args: argparse.Namespace) -> None:
    tf = _start()
    from tasks import train
    from tasks.task import predict

    run = train.load_runs(args.run)
    task, signature = run.task, run.task.signature()
    lists = {name: spec.shape[1] for name, spec in signature.items() if len(spec.shape) > 1}
    as_table = (args.format or ("table" if sys.stdout.isatty() else "jsonl")) == "table"
    shown: list[dict[str, str]] = []
    with _progress("predicting", None) as advance, _open_input(args.input) as lines:
        examples = _read_examples(lines, args.input, tuple(signature), lists)
        for chunk in iter(lambda: list(itertools.islice(examples, CHUNK)), []):
            raw = tf.data.Dataset.from_tensor_slices(
                {name: [example[name] for example in chunk] for name in signature}
            )
            answers, _ = predict(
                task, run.preprocess, run.model, raw, batch_size=args.batch_size, progress=advance
            )
            for i, example in enumerate(chunk):
                record = task.record({name: value[i] for name, value in answers.items()})
                if as_table:
                    shown.append(task.show(example, record))
                else:
                    print(json.dumps(example | record, ensure_ascii=False))
            sys.stdout.flush()
    if shown:
        _table(tuple(shown[0]), [tuple(cells.values()) for cells in shown])


def _open_input(path: str) -> contextlib.AbstractContextManager[Iterable[bytes]]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    if not pathlib.Path(path).exists() or pathlib.Path(path).is_dir():
        raise FileNotFoundError(f"no file at {path}; give a file of examples, or - for standard input.")
    return open(path, "rb")


def _read_examples(
    lines: Iterable[bytes], path: str, names: Sequence[str], lists: Mapping[str, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Examples under the task's names. Raises ValueError naming the line and what is wrong with it.

    lists: those that hold several texts, and how many: lists in JSON, columns name0, name1, ... elsewhere
    """
    number, lists = 0, lists or {}
    columns = [
        column
        for name in names
        for column in ([f"{name}{i}" for i in range(lists[name])] if name in lists else [name])
    ]

    def texts() -> Iterator[str]:
        nonlocal number
        for number, line in enumerate(lines, start=1):
            yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()

    try:
        for row in _ROWS_OF.get(pathlib.Path(path).suffix, _rows_of_lines)(texts(), columns):
            for name, length in lists.items():
                value = row.get(name)
                if isinstance(value, list) and len(value) == length:
                    row |= {f"{name}{i}": text for i, text in enumerate(value)}
            if missing := [column for column in columns if not isinstance(row.get(column), str)]:
                raise ValueError(f"no text for {' and '.join(missing)}")
            for column in columns:
                row[column].encode()  # a JSON escape can stand for half a character
            yield {
                name: [row[f"{name}{i}"] for i in range(lists[name])] if name in lists else row[name]
                for name in names
            }
    except (ValueError, csv.Error) as error:
        source = "standard input" if path == "-" else path
        raise ValueError(
            f"{source}, line {number}: {error}; wanted {' and '.join(columns)}, in UTF-8."
        ) from error


def _rows_of_lines(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield dict(zip(names, _without_end(line).split("\t", len(names) - 1), strict=False))


def _rows_of_tsv(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    header = _without_end(next(lines, "")).split("\t")
    for line in lines:
        if text := _without_end(line):
            yield dict(zip(header, text.split("\t"), strict=False))


def _rows_of_csv(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    yield from csv.DictReader(lines, strict=True)


def _rows_of_jsonl(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a JSON {type(row).__name__}, no object")
            yield row


_ROWS_OF: dict[str, Callable[[Iterator[str], Sequence[str]], Iterator[dict[str, Any]]]] = {
    ".tsv": _rows_of_tsv,
    ".csv": _rows_of_csv,
    ".jsonl": _rows_of_jsonl,
}


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _export(args: argparse.Namespace) -> None:
    _start()
    from savedmodels.export import export
    from tasks.train import load_runs

    folder = export(load_runs(args.run), args.output)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    print(f"{folder}: {size:.0f} MB; a fresh process without this package gave the same answers")


def _convert(args: argparse.Namespace) -> None:
    _start()
    from bert_keras import checkpoints

    checkpoint = checkpoints.read(args.source)
    homeless = checkpoints.write(checkpoint, args.target, format=args.format)
    count = len(checkpoint.tensors) - len(homeless)
    print(f"{checkpoint.format} -> {args.format}: {count} tensors in {args.target}")
    if homeless:
        print(f"{args.format} has no place for {', '.join(homeless)}")
    if args.check:
        # Whichever of the two has a library that runs here.
        has_none = checkpoint.format in ("google", "model-garden")
        path, form = (args.target, args.format) if has_none else (args.source, checkpoint.format)
        rows = [(name, f"{value:.1e}") for name, value in checkpoints.compare(path).items()]
        _table(("output", "max |difference|"), rows, title=f"{path} here and in the library of {form}")


def _features(args: argparse.Namespace) -> None:
    _start()
    from tasks.feature_based import extract_file

    names = ("checkpoint", "layers", "level", "format", "dtype", "seq_length", "doc_stride", "batch_size")
    with _progress("extracting", None) as advance:
        count = extract_file(
            args.input, args.output, progress=advance, **{name: getattr(args, name) for name in names}
        )
    print(f"{args.output}: vectors of {count:,} lines")


def _demo(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from bert_keras import demo

    demo.run(
        pathlib.Path(args.work),
        scale="quick" if args.quick else "full" if args.full else "normal",
        seed=args.seed,
    )


def _info(args: argparse.Namespace) -> None:
    from importlib import metadata

    if args.path is None:
        tf = _start()
        from bert_keras.config import SIZES

        names = ("bert-keras", "tensorflow", "tensorflow-text", "keras", "keras-nlp", "numpy")
        _table(("package", "version"), [(name, metadata.version(name)) for name in names])
        _table(
            ("device", "kind"),
            [(device.name, device.device_type) for device in tf.config.list_logical_devices()],
        )
        _table(("size", "layers", "hidden"), [(name, *size) for name, size in SIZES.items()])
        return
    _start()
    from bert_keras import checkpoints
    from tasks.train import TASK_FILE, load_run

    checkpoint = checkpoints.read(args.path)
    count = sum(tensor.size for tensor in checkpoint.tensors.values())
    facts = {"format": checkpoint.format, "tensors": len(checkpoint.tensors), "parameters": f"{count:,}"}
    if checkpoint.vocabulary is not None:
        facts |= {"vocabulary": f"{len(checkpoint.vocabulary):,} tokens", "lower_case": checkpoint.lower_case}
    if (pathlib.Path(args.path) / TASK_FILE).is_file():
        run = load_run(args.path)
        facts |= {
            "task": run.task.name,
            "reads": ", ".join(run.task.signature()),
            "seq_length": run.preprocess.seq_length,
        }
    _table(
        ("field", "value"), [*facts.items(), *((k, str(v)) for k, v in checkpoint.config.to_dict().items())]
    )


if __name__ == "__main__":
    main()
