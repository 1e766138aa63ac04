"""Compares the forms that a run can be exported to: size, accuracy on the dev split, and time beside the default SavedModel.

    python benchmarks/exports.py --run runs/sst2 --data glue/SST-2

In: a fine-tuned classifier and labelled data. Each form is exported to a temporary folder and answers the same raw texts: a
SavedModel through `serving_default`, another runtime through the folder's own example.py, tokenizer included. All forms answer in
this process, in turns, A B C, A B C, ...: a turn's figure is the median time of its requests, a ratio is the default's figure
over the form's in the same round, so over 1 the form is faster; the table has the median of the rounds. `--clock cpu` compares
CPU seconds, for a busy machine. Forms whose packages are not installed are left out.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import machine
import numpy as np
import tensorflow as tf
from interleave import CLOCKS
from rich.console import Console
from rich.table import Table

from bert_keras.errors import MissingPackageError
from bert_keras.savedmodels.export import export
from bert_keras.savedmodels.runtimes import export_to
from bert_keras.tasks.batches import predict
from bert_keras.tasks.runs.ensemble import at_precision
from bert_keras.tasks.runs.run_folder import Run, load_run

Ask = Callable[[list[list[str]]], np.ndarray]  # texts [B] for each input -> probabilities [B, C]
# Name -> how `export` or `export_to` writes it.
FORMS: dict[str, dict[str, Any]] = {
    "SavedModel": {},
    "SavedModel --freeze": {"freeze": True},
    "SavedModel --precision bfloat16": {"precision": "bfloat16"},
    "SavedModel --precision bfloat16 --freeze": {"precision": "bfloat16", "freeze": True},
    "onnx": {"format": "onnx"},
    "onnx --quantize int8": {"format": "onnx", "quantize": "int8"},
    "openvino": {"format": "openvino"},
    "openvino --precision bfloat16": {"format": "openvino", "precision": "bfloat16"},
    "openvino --quantize int8": {"format": "openvino", "quantize": "int8"},
    "litert": {"format": "litert"},
    "litert --precision float16": {"format": "litert", "precision": "float16"},
    "litert --quantize int8": {"format": "litert", "quantize": "int8"},
}
DEFAULT = "SavedModel"
BATCHES = (1, 32)
CALLS = 8  # requests in a turn


def written(run: Run, folder: pathlib.Path, form: dict[str, Any]) -> tuple[Ask, int]:
    """Exports a form. Returns a function that asks it, and the bytes of its model."""
    options = dict(form)
    if "format" not in options:
        run = at_precision(run, options.pop("precision", None))
        version = export(run, folder, **options)
        serve = tf.saved_model.load(str(version)).signatures["serving_default"]
        names = [*run.task.signature()]

        def ask_tensorflow(texts: list[list[str]]) -> np.ndarray:
            columns = {name: tf.constant(column) for name, column in zip(names, texts, strict=True)}
            return serve(**columns)["probabilities"].numpy()

        files = [version / "saved_model.pb", *(version / "variables").iterdir()]
        return ask_tensorflow, sum(file.stat().st_size for file in files)
    found = export_to(run, folder, options.pop("format"), **options)
    spec = importlib.util.spec_from_file_location(folder.name, folder / "example.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    settings = json.loads((folder / "settings.json").read_text())
    model = example.load(settings)

    def ask_runtime(texts: list[list[str]]) -> np.ndarray:
        answers = example.answers(settings, model(example.features(settings, texts)))
        return np.array([answer["probabilities"] for answer in answers])

    return ask_runtime, found["bytes"]


def in_batches(ask: Ask, columns: list[list[str]], size: int) -> np.ndarray:
    """The probabilities of all texts."""
    starts = range(0, len(columns[0]), size)
    return np.concatenate([ask([column[i : i + size] for column in columns]) for i in starts])


def seconds(ask: Ask, requests: list[list[list[str]]], clock: Callable[[], float]) -> float:
    """The median time of a request."""
    times = []
    for request in requests:
        start = clock()
        ask(request)
        times.append(clock() - start)
    return statistics.median(times)


def measured(asks: dict[str, Ask], columns: list[list[str]], *, rounds: int, clock: Any) -> dict[str, list]:
    """For each form, the ratios to the default: a list for each size of BATCHES."""
    ratios: dict[str, list] = {name: [] for name in asks}
    for size in BATCHES:
        requests = [
            [column[i * size : (i + 1) * size] for column in columns]
            for i in range(CALLS if size == 1 else 2)
        ]
        for ask in asks.values():
            in_batches(ask, [column[: size * len(requests)] for column in columns], size)  # warm-up
        turns = [{name: seconds(ask, requests, clock) for name, ask in asks.items()} for _ in range(rounds)]
        for name in asks:
            ratios[name].append(statistics.median(turn[DEFAULT] / turn[name] for turn in turns))
    return ratios


def main() -> int:
    """Exports the forms and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True, help="folder that finetune wrote, of a classifier")
    parser.add_argument("--data", required=True, help="folder of the task's files, or one file")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=[*FORMS], help="forms to export")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--max-examples", type=int, default=1_000, help="dev examples to measure")
    parser.add_argument("--json", help="write the figures to this file too")
    args = parser.parse_args()
    run = load_run(args.run, data=args.data)
    examples = run.task.examples(run.task.validation_splits[0]).take(args.max_examples)
    predictions, raw = predict(run.task, run.preprocess, run.model, examples)
    columns = [[text.decode() for text in raw[name]] for name in run.task.signature()]
    clock = CLOCKS[args.clock]
    asks, rows = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(dict.fromkeys([DEFAULT, *args.forms])):
            try:
                asks[name], size = written(run, pathlib.Path(folder) / str(i), FORMS[name])
            except MissingPackageError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            probabilities = in_batches(asks[name], columns, BATCHES[-1])
            labels = np.array(
                [run.task.label_names[i].encode() for i in probabilities.argmax(axis=1)], object
            )
            rows[name] = {
                "megabytes": size / 1e6,
                "max_difference": float(np.abs(probabilities - predictions["probabilities"]).max()),
                "equal_labels": float(np.mean(labels == predictions["label"])),
                **dict(run.task.evaluate({"label": labels, "probabilities": probabilities}, raw)),
            }
        for name, ratios in measured(asks, columns, rounds=args.rounds, clock=clock).items():
            rows[name] |= {f"speed_{size}": ratio for size, ratio in zip(BATCHES, ratios, strict=True)}
    table = Table(
        "form", *rows[DEFAULT], title=f"{run.task.name}, {len(columns[0]):,} examples, {args.clock}"
    )
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.4g}" for value in row.values()))
    console = Console()
    Console(width=max(console.width, 140)).print(table)
    if args.json:
        content = {
            "machine": machine.name(),
            "clock": args.clock,
            "task": run.task.name,
            "examples": len(columns[0]),
            "forms": rows,
        }
        pathlib.Path(args.json).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
