"""Runs on two replicas, stopped and taken up again, against the same runs unbroken. Run as a script by test_resume_replicas.py.

In: jobs, `kind:step`, the step at whose end the run is stopped. Out: one line of JSON, by job: the steps of both last saves, how
many variables they hold, and by how much those differ that do.
"""

import contextlib
import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import keras
import killed_runs
import runs
import tensorflow as tf
from last_saves import differences

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

from bert_keras.tasks.finetuning.finetune import finetune  # noqa: E402
from bert_keras.tasks.hparams import Hparams  # noqa: E402
from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain  # noqa: E402
from bert_keras.tasks.pretraining.recipes import RECIPES  # noqa: E402
from bert_keras.tasks.problems.classification import TextClassification  # noqa: E402
from bert_keras.tasks.problems.question_answering import QuestionAnswering  # noqa: E402
from bert_keras.tasks.training.saver import Saver  # noqa: E402
from bert_keras.text.wordpiece import WordPiece  # noqa: E402

HOW = {"strategy_name": "mirrored", "save_every": 2, "verbose": 0}
HPARAMS = Hparams(
    epochs=2, batch_size=8, learning_rate=1e-3, seq_length=40
)  # of 48 rows: 6 steps in an epoch


class Stopped(Exception):
    """Stands for the end of the process."""


class _Stop(keras.callbacks.Callback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Stopped


@contextlib.contextmanager
def stopping(step: int) -> Iterator[None]:
    """Has any training stop at the end of that step, after whatever its own callbacks did."""
    stop, fit = _Stop(step), keras.Model.fit

    def stopped_fit(self, *args, callbacks, **kwargs):
        callbacks.callbacks.append(stop)
        return fit(self, *args, callbacks=callbacks, **kwargs)

    keras.Model.fit = stopped_fit
    try:
        yield
    finally:
        keras.Model.fit = fit


def write_questions(folder: Path) -> Path:
    """SQuAD's files: contexts of two windows or more, a word of each the answer."""
    folder.mkdir()
    for seed, split in enumerate(("train", "dev")):
        draw, paragraphs = random.Random(seed), []
        for i, question in enumerate(runs.texts(16, seed=seed)):
            context = " ".join(runs.texts(9, seed=100 * seed + i))
            answer = draw.choice(context.split())
            answers = [{"text": answer, "answer_start": context.index(answer)}]
            asked = {"id": f"{split}{i}", "question": question, "answers": answers}
            paragraphs.append({"context": context, "qas": [asked]})
        content = {"version": "1.1", "data": [{"title": "any", "paragraphs": paragraphs}]}
        (folder / f"{split}-v1.1.json").write_text(json.dumps(content))
    return folder


def reviews_into(output: Path, folder: Path) -> None:
    task = TextClassification.open("sst2", folder / "data")
    finetune(task, checkpoint=folder / "checkpoint", output=output, hparams=HPARAMS, log=quiet, **HOW)


def vectors_into(output: Path, folder: Path) -> None:
    task = TextClassification.open("sst2", folder / "data")
    hparams = dataclasses.replace(HPARAMS, feature_layers="0,1", lstm_layers=2, lstm_units=8)
    finetune(task, checkpoint=folder / "checkpoint", output=output, hparams=hparams, log=quiet, **HOW)


def questions_into(output: Path, folder: Path) -> None:
    task = QuestionAnswering("squad1.1", folder / "questions", doc_stride=16, max_query_length=12)
    finetune(task, checkpoint=folder / "checkpoint", output=output, hparams=HPARAMS, log=quiet, **HOW)


def pretrain_into(output: Path, folder: Path) -> None:
    changes = {"steps": 8, "phases": ((24, 1.0),)}
    pretrain(
        Pretraining(
            recipe=RECIPES["bert"].changed(**killed_runs.SETTINGS | changes),
            documents=killed_runs.documents(),
            held_out=0.3,
            tokenizer=WordPiece(runs.VOCABULARY),
            strategy_name=HOW["strategy_name"],
        ),
        output,
        save_every=HOW["save_every"],
        verbose=HOW["verbose"],
        log=quiet,
    )


KINDS = {
    "reviews": reviews_into,
    "vectors": vectors_into,
    "questions": questions_into,
    "pretrain": pretrain_into,
}


def quiet(line: str) -> None:
    pass


def main() -> None:
    tf.config.experimental.enable_op_determinism()
    Saver.remove = lambda saver: None  # the last saves are compared
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs.write_checkpoint(folder / "checkpoint", num_layers=1)
        runs.write_data(folder / "data", "sst2")
        write_questions(folder / "questions")
        for job in sys.argv[1:]:
            kind, step = job.split(":")
            unbroken, run = folder / f"{kind}-unbroken", folder / f"{kind}-{step}"
            if not unbroken.exists():
                KINDS[kind](unbroken, folder)
            with stopping(int(step)), contextlib.suppress(Stopped):
                KINDS[kind](run, folder)
            KINDS[kind](run, folder)  # refuses a run that came to its end
            found[job] = differences(run, unbroken)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
