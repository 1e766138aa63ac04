"""Compares `fit` and `predict` on strings with the functions behind `bert-keras finetune` and `bert-keras predict`.

    python benchmarks/string_models.py --checkpoint minilm --data glue/SST-2

In: a checkpoint and SST-2's files. Out: a table of ratios, the command's time over the string model's, in each of --rounds rounds
in which both take turns (interleave.py). A turn of `fit` is a whole training of one epoch, from the checkpoint on; `finetune`
also measures --dev sentences and writes the run. A turn of `predict` is one pass over the sentences, a second or two, so it has
PASSES times as many rounds.
"""

import argparse
import functools
import pathlib
import shutil
import statistics
import tempfile

import tensorflow as tf
from interleave import Ratios, seconds_per_call, take_turns
from rich.console import Console
from rich.table import Table

import bert_keras as bk
from bert_keras.tasks.batches import predictor
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.runs.task_types import open_task

PASSES = 5
once = functools.partial(seconds_per_call, at_least=0.0, clock="wall")


def rows(file: pathlib.Path, count: int) -> tuple[list[str], list[str]]:
    """The first sentences and labels of a file of SST-2."""
    lines = file.read_text(encoding="utf-8").splitlines()[1 : count + 1]
    pairs = [line.rsplit("\t", 1) for line in lines]
    return [sentence for sentence, _ in pairs], [("negative", "positive")[int(label)] for _, label in pairs]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with train.tsv and dev.tsv")
    parser.add_argument("--sentences", type=int, default=1_000)
    parser.add_argument("--dev", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, count in (("train", args.sentences), ("dev", args.dev)):
            lines = (args.data / f"{name}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
            (folder / f"{name}.tsv").write_text("".join(lines[: count + 1]), encoding="utf-8")
        texts, labels = rows(folder / "train.tsv", args.sentences)

        def command() -> None:
            shutil.rmtree(folder / "run", ignore_errors=True)
            task = open_task("sst2", folder)
            hparams = Hparams(epochs=1, seq_length=64)
            finetune(
                task, checkpoint=args.checkpoint, output=folder / "run", hparams=hparams, verbose=0, log=str
            )

        def strings() -> bk.TextModel:
            model = bk.classifier(args.checkpoint, ["negative", "positive"], seq_length=64)
            model.fit(texts, labels, verbose=0)
            return model

        fits = {"string model": lambda: once(strings), "command": lambda: once(command)}
        figures = {"fit": take_turns(fits, rounds=args.rounds)}
        run, model = load_run(folder / "run"), strings()
        call = predictor(run.task, run.preprocess, run.model)
        examples = tf.data.Dataset.from_tensor_slices({"sentence": texts})
        predicts = {
            "string model": lambda: once(lambda: model.predict(texts, verbose=0)),
            "command": lambda: once(lambda: call(examples, batch_size=32)),
        }
        take_turns(predicts, rounds=1)  # traces
        figures["predict"] = take_turns(predicts, rounds=PASSES * args.rounds)
    table = Table(
        title=f"{args.sentences:,} sentences, {args.rounds} rounds: the command's time / the string model's"
    )
    for column in ("call", "median", "range"):
        table.add_column(column)
    for name, times in figures.items():
        ratios = Ratios.of(times["string model"], times["command"])
        table.add_row(name, f"{statistics.median(ratios.values):.2f}", str(ratios))
    Console().print(table)


if __name__ == "__main__":
    main()
