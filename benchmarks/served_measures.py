"""Compares the measures of an exported SavedModel on a run's dev split with those of `evaluate`.

    python benchmarks/served_measures.py --run runs/squad --data dev-v1.1.json
    python benchmarks/served_measures.py --run runs/ner --data eng.testa.gz

In: a run and labelled data. The run is exported to a temporary folder and loaded by TensorFlow alone; every example's strings
go through `serving_default`, and the task measures the answers. Out: a table with both measures, and the number of spans that
equal the bytes of the text. The exit status is 1 if a measure or a span differs. For entities only the spans are checked,
because serving splits texts into words differently from the file.
"""

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bert_keras.savedmodels.export import export
from bert_keras.tasks.batches import concatenated, predict
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.text.words import TEXT, take_text

BATCH = 16
# Output of a span's text -> its input, and the outputs with its start and end.
SPANS = {
    "answer": ("context", "start_byte", "end_byte"),
    "entity_text": ("text", "entity_start_byte", "entity_end_byte"),
}


def served(serve: Any, raw: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The signature's answers to all examples, [N, ...]."""
    names = serve.structured_input_signature[1]
    count = len(next(iter(raw.values())))
    parts: list[dict[str, np.ndarray]] = []
    for start in track(range(0, count, BATCH), "asking", console=Console(stderr=True)):
        answers = serve(**{name: tf.constant(raw[name][start : start + BATCH]) for name in names})
        parts.append({name: value.numpy() for name, value in answers.items()})
    return {name: concatenated([part[name] for part in parts]) for name in parts[0]}


def spans(answers: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]) -> Iterator[bool]:
    """For each answered span: True if its text equals those bytes of the input."""
    for name, (text, start, end) in SPANS.items():
        if name in answers:
            for source, *columns in zip(
                raw[text], *(answers[one] for one in (name, start, end)), strict=True
            ):
                for found, first, last in zip(*map(np.atleast_1d, columns), strict=True):
                    if first >= 0:
                        yield source[first:last] == found


def main() -> int:
    """Exports the run and prints the comparison; returns 1 if something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True, help="folder that finetune wrote")
    parser.add_argument("--data", required=True, help="folder of the task's files, or one file")
    args = parser.parse_args()
    run = load_run(args.run, data=args.data)
    examples = run.task.examples(run.task.validation_splits[0])
    predictions, raw = predict(run.task, run.preprocess, run.model, examples)
    comparable = set(run.task.signature()) <= set(raw)
    if not comparable:
        raw = {TEXT: take_text(raw)}
    with tempfile.TemporaryDirectory() as folder:
        version = export(run, pathlib.Path(folder) / "served")
        answers = served(tf.saved_model.load(str(version)).signatures["serving_default"], raw)
    pairs = (predictions, answers) if comparable else ()
    evaluated, measured = [dict(run.task.evaluate(found, raw)) for found in pairs] or [{}, {}]
    table = Table(
        "measure", "evaluated", "served", title=f"{run.task.name}, {len(next(iter(raw.values()))):,} examples"
    )
    for name, value in evaluated.items():
        table.add_row(name, f"{value:.4f}", f"{measured[name]:.4f}")
    if evaluated:
        Console().print(table)
    cut = list(spans(answers, raw))
    if cut:
        print(f"{sum(cut):,} of {len(cut):,} spans are those bytes of the text")
    return 0 if evaluated == measured and all(cut) else 1


if __name__ == "__main__":
    sys.exit(main())
