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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from absl import app, logging
from absl.flags import argparse_flags

# What bad input, bad files and full disks raise: one line for a person. Anything else keeps its traceback.
EXPECTED = (ValueError, OSError, ImportError)
CHUNK = 4096  # lines of input that `predict` holds at a time

EXAMPLES = """examples:
  bert-keras demo --quick
  bert-keras finetune --task sst2 --data glue/SST-2 --checkpoint minilm --output runs/sst2
  bert-keras evaluate --run runs/sst2 --data glue/SST-2
  echo "a charming journey" | bert-keras predict --run runs/sst2
  bert-keras export --run runs/sst2 --output served/sst2
  bert-keras convert --from uncased_L-12_H-768_A-12 --to bert-base --format hugging-face --check
"""

INPUT_FILES = """input files, in UTF-8:
  .tsv .csv   the first line names the columns; those of the task's text are read, blank lines are passed over
  .jsonl      an object a line, with the task's text under its names
  any other   an example a line, as it stands: a blank line is an empty text. Tasks of two texts have a tab
              between them, and further tabs belong to the second. A line ends at a newline, before which one
              carriage return is dropped.
Standard input is read as any other file. Each answer stands beside its text, in the order of the input.

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
        help="a GLUE task (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli), or custom",
    )
    add("--data", help="folder of the task's TSV files; without it TensorFlow Datasets fetches them")
    add("--checkpoint", required=True, help="Hugging Face, Google, KerasHub or Model Garden checkpoint")
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
    for name, text in (
        ("batch_size", "examples in a batch, over all replicas"),
        ("epochs", "passes over the training split"),
        ("learning_rate", "the highest rate"),
        ("warmup_proportion", "share of all steps in which the rate rises"),
        ("weight_decay", "of kernels; biases and LayerNorm are never decayed"),
        ("clip_norm", "global norm that gradients are clipped to"),
        ("seq_length", "longest sequence in wordpieces"),
        ("seed", "of weights, order and dropout"),
        ("max_examples", "train on this many, drawn at random"),
    ):
        kind = float if name in ("learning_rate", "warmup_proportion", "weight_decay", "clip_norm") else int
        add(f"--{name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS, help=text)
    add("--freeze", choices=("encoder",), default=argparse.SUPPRESS, help="train the head alone")

    add = command(
        "evaluate", _evaluate, "measure a run on a split", "--run runs/mrpc --data glue/MRPC"
    ).add_argument
    add("--run", required=True, help="folder that finetune wrote")
    add("--data", help="folder of the task's TSV files; without it TensorFlow Datasets fetches them")
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
    add("--run", required=True, help="folder that finetune wrote")
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
    add("--run", required=True, help="folder that finetune wrote")
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


def _task(name: str, data: str | None) -> Any:
    from tasks.glue import ROWS, Glue, row_from_folder

    if name == "custom":
        if data is None:
            raise ValueError(
                "--task custom reads its labels from --data; give the folder of train.tsv and dev.tsv."
            )
        return Glue(row_from_folder(data), data)
    if name not in ROWS:
        raise ValueError(f"no task named {name!r}; the tasks are {', '.join(ROWS)} and custom.")
    return Glue(ROWS[name], data)


def _finetune(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from bert_keras import checkpoints
    from tasks import train
    from tasks.task import Hparams

    given = vars(args)
    hparams = Hparams(**{f.name: given[f.name] for f in dataclasses.fields(Hparams) if f.name in given})
    task = _task(args.task, args.data)
    checkpoint = checkpoints.read(args.checkpoint)
    if args.random_weights:
        checkpoint = dataclasses.replace(checkpoint, tensors={})
    results = train.finetune(
        task,
        checkpoint=checkpoint,
        output=args.output,
        hparams=hparams,
        strategy_name=args.strategy,
        dev_split=args.dev_split or next(iter(task.validation_splits), "validation"),
    )
    rows = [(name.removeprefix("val_"), value) for name, value in results["measures"].items()]
    _table(
        ("measure", "dev"),
        rows,
        title=f"{task.name}, best of {hparams.epochs} epochs: {results['best_epoch']}",
    )
    print(f"the run is in {args.output}")


def _evaluate(args: argparse.Namespace) -> None:
    _start()
    from tasks import train
    from tasks.task import cardinality

    run = train.load_run(args.run, data=args.data)
    measured = {}
    for split in [args.split] if args.split else run.task.validation_splits:
        with _progress(f"evaluating {split}", cardinality(run.task.examples(split))) as advance:
            measured[split] = train.evaluate(run, split, batch_size=args.batch_size, progress=advance)
    if args.json:
        print(json.dumps(measured))
    else:
        rows = [(split, name, value) for split, values in measured.items() for name, value in values.items()]
        _table(("split", "measure", "value"), rows, title=f"{run.task.name}: {args.run}")


def _predict(args: argparse.Namespace) -> None:
    tf = _start()
    from tasks import train
    from tasks.task import predict

    run = train.load_run(args.run)
    names = tuple(run.task.signature())
    as_table = (args.format or ("table" if sys.stdout.isatty() else "jsonl")) == "table"
    shown = []
    with _progress("predicting", None) as advance, _open_input(args.input) as lines:
        examples = _read_examples(lines, args.input, names)
        for chunk in iter(lambda: list(itertools.islice(examples, CHUNK)), []):
            raw = tf.data.Dataset.from_tensor_slices(
                {name: [example[name] for example in chunk] for name in names}
            )
            answers, _ = predict(
                run.task, run.preprocess, run.model, raw, batch_size=args.batch_size, progress=advance
            )
            for i, example in enumerate(chunk):
                answer = {name: _plain(value[i]) for name, value in answers.items()}
                if as_table:
                    shown.append([*example.values(), *(_brief(value) for value in answer.values())])
                else:
                    print(json.dumps(example | answer, ensure_ascii=False))
            sys.stdout.flush()
    if as_table and shown:
        _table((*names, *answers), shown)


def _open_input(path: str) -> contextlib.AbstractContextManager[Iterable[bytes]]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    if not pathlib.Path(path).exists() or pathlib.Path(path).is_dir():
        raise FileNotFoundError(f"no file at {path}; give a file of examples, or - for standard input.")
    return open(path, "rb")


def _read_examples(lines: Iterable[bytes], path: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Examples under the task's names. Raises ValueError naming the line and what is wrong with it."""
    number = 0

    def texts() -> Iterator[str]:
        nonlocal number
        for number, line in enumerate(lines, start=1):
            yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()

    try:
        for row in _ROWS_OF.get(pathlib.Path(path).suffix, _rows_of_lines)(texts(), names):
            if missing := [name for name in names if not isinstance(row.get(name), str)]:
                raise ValueError(f"no text for {' and '.join(missing)}")
            for name in names:
                row[name].encode()  # a JSON escape can stand for half a character
            yield {name: row[name] for name in names}
    except (ValueError, csv.Error) as error:
        source = "standard input" if path == "-" else path
        raise ValueError(
            f"{source}, line {number}: {error}; wanted {' and '.join(names)}, in UTF-8."
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


def _plain(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _brief(value: Any) -> Any:
    return " ".join(f"{item:.4f}" for item in value) if isinstance(value, list) else value


def _export(args: argparse.Namespace) -> None:
    _start()
    from savedmodels.export import export
    from tasks.train import load_run

    folder = export(load_run(args.run), args.output)
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
