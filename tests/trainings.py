"""A small checkpoint, reviews and trainings that tests share."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import runs

from bert_keras import checkpoints
from bert_keras.tasks.finetuning.finetune import finetune, plan_finetuning
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import load_run

TESTS = Path(__file__).parent
QUICK = Hparams(epochs=1, batch_size=8, learning_rate=1e-3, seq_length=40)

NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
GOOD, BAD = ("good", "warm"), ("bad", "dull")
PLAIN = "film plot actor scene the its is and very".split()


def write_reviews(folder, *, train=96, dev=40, reversed_dev=False):
    """SST-2's form: one word among one to twenty others says the label."""
    draw = random.Random(0)
    folder.mkdir(parents=True)
    for stem, count, turned in (("train", train, False), ("dev", dev, reversed_dev)):
        lines = ["sentence\tlabel"]
        for i in range(count):
            words = draw.choices(PLAIN, k=draw.randint(1, 20))
            words.insert(draw.randint(0, len(words)), draw.choice((BAD, GOOD)[i % 2]))
            lines.append(f"{' '.join(words)}\t{i % 2 ^ turned}")
        (folder / f"{stem}.tsv").write_text("\n".join(lines) + "\n")
    return folder


class Counting(TextClassification):
    """SST-2 that counts how often Python runs through its loss and its decoding: once for each trace."""

    kind = TextClassification.kind  # a run of it is one of SST-2

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.losses, self.decodings, self.widths = 0, 0, set()

    def loss(self):
        mean, counted = super().loss(), self

        class Counted(type(mean)):
            def __call__(self, *args, **kwargs):
                counted.losses += 1
                return mean(*args, **kwargs)

        return Counted(mean.call)

    def decode(self, outputs, features, raw):
        self.decodings += 1
        return super().decode(outputs, features, raw)


def start(task, folder, *, output="run", hparams=QUICK, **settings):
    settings = {"checkpoint": folder / "checkpoint", "verbose": 0, "log": lambda line: None} | settings
    return finetune(task, output=folder / output, hparams=hparams, **settings)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a random checkpoint of one layer, for which little data is enough whatever the seed, and reviews."""
    folder = tmp_path_factory.mktemp("train")
    runs.write_checkpoint(folder / "checkpoint", num_layers=1, initializer_range=0.1, **NO_DROPOUT)
    write_reviews(folder / "reviews")
    return folder


@pytest.fixture(scope="module")
def task(place):
    """SST-2 with the reviews."""
    return TextClassification.open("sst2", place / "reviews")


LEARNING = dataclasses.replace(QUICK, epochs=4)


@pytest.fixture(scope="module")
def learned(place):
    """A run of four epochs: the task, its results and the log lines."""
    task, lines = Counting.open("sst2", place / "reviews"), []
    results = start(task, place, output="learned", hparams=LEARNING, log=lines.append)
    return task, results, lines


@pytest.fixture(scope="module")
def reloaded(learned, place):
    return load_run(place / "learned", data=place / "reviews")


def weights_of(run_folder):
    return checkpoints.read(run_folder).tensors


def assert_same_weights(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.fixture(scope="module")
def turned(place):
    """The results of a run whose dev labels are turned round: the more is learned, the worse it measures."""
    task = TextClassification.open("sst2", write_reviews(place / "turned", reversed_dev=True))
    return start(task, place, output="turned_run", hparams=dataclasses.replace(LEARNING, epochs=3))


@pytest.fixture(scope="module")
def plan(task, place):
    return plan_finetuning(task, checkpoint=place / "checkpoint", hparams=QUICK)
