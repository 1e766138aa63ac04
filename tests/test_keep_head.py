"""Fine-tuning that keeps the head of the checkpoint."""

import dataclasses
import json

import numpy as np
import pytest
from trainings import QUICK, place  # noqa: F401

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.tasks.finetuning.finetune import _compiled_model, plan_finetuning
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.training.task_model import heads_of


def with_head(source, *, labels, head="classifier", rows=1):
    """The checkpoint with a head of random numbers."""
    kernel = np.random.default_rng(0).normal(size=(rows * source.config.hidden_size, labels))
    tensors = {
        f"{head}/dense/kernel": kernel.astype("float32"),
        f"{head}/dense/bias": kernel[0].astype("float32"),
    }
    return dataclasses.replace(source, tensors=source.tensors | tensors)


def compiled_model(task, folder):
    """The task's model with the head of a checkpoint."""
    options = {"total_steps": 1, "keep_head": True, "log": lambda line: None}
    return _compiled_model(task, checkpoints.read(folder), QUICK, **options)


def kept_head(task, place, folder, id2label, *, labels=None):
    """The columns of the head's kernel that a model starts with, by their indices in a checkpoint with these labels."""
    head, rows = ("concat_classifier", 3) if getattr(task, "pooling", "") == "concat" else ("classifier", 1)
    source = checkpoints.read(place / "checkpoint")
    there = with_head(source, labels=labels or len(id2label), head=head, rows=rows)
    kernel = there.tensors[f"{head}/dense/kernel"]
    checkpoints.write(there, folder, format="hugging-face")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"id2label": id2label} if id2label else {})))
    model = compiled_model(task, folder)
    started, bias = (variable.numpy() for variable in heads_of(model)[head].weights)
    places = [int(np.abs(kernel.T - column).sum(axis=1).argmin()) for column in started.T]
    np.testing.assert_array_equal(started, kernel[:, places])
    np.testing.assert_array_equal(bias, kernel[0, places])
    return places


TAGS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")


@pytest.mark.parametrize(
    ("task", "labels", "places"),
    [
        (TextClassification.open("sst2"), ["positive", "negative"], [1, 0]),
        (TextClassification.open("sst2"), ["NEGATIVE", "POSITIVE"], [0, 1]),
        (TextClassification(("LABEL_1", "LABEL_0")), ["LABEL_0", "LABEL_1"], [1, 0]),
        (TextClassification.open("mnli"), ["CONTRADICTION", "ENTAILMENT", "NEUTRAL"], [1, 2, 0]),
        (TextClassification.open("mnli", pooling="concat"), ["contradiction", "entailment", "neutral"], [1, 2, 0]),
        (Tagging(TAGS, scheme="IOB2"), ["B-PER", "I-PER", "B-LOC", "I-LOC", "O"], [4, 2, 0, 3, 1]),
    ],
)  # fmt: skip
def test_a_kept_head_has_the_task_s_labels(task, labels, places, place, tmp_path):
    """Labels may have any order in Hugging Face's id2label."""
    id2label = {str(i): label for i, label in enumerate(labels)}
    assert kept_head(task, place, tmp_path / "there", id2label) == places
    again = dict(reversed(id2label.items()))
    assert kept_head(task, place, tmp_path / "reversed", again) == places


@pytest.mark.parametrize("id2label", [{"0": "LABEL_0", "1": "LABEL_1"}, None])
def test_a_kept_head_without_names(place, tmp_path, id2label):
    """Transformers writes no id2label for two labels without names: the task names them in its order."""
    task = TextClassification.open("sst2")
    assert kept_head(task, place, tmp_path / "there", id2label, labels=2) == [0, 1]
    assert kept_head(task, place, tmp_path / "named", {"0": "positive", "1": "negative"}) == [1, 0]


def test_a_head_that_cannot_be_kept_is_refused(place, tmp_path):
    task = TextClassification.open("sst2")
    with pytest.raises(BertKerasError, match="config.json names 1 labels .negative., and the head has 2"):
        kept_head(task, place, tmp_path / "there", {"0": "negative"}, labels=2)
    with pytest.raises(BertKerasError, match="no head of sst2; leave keep_head out"):
        compiled_model(task, place / "checkpoint")


def test_a_kept_head_of_googles_format(place, tmp_path):
    """Its files have no place for names: the log says which names the task gave."""
    there = with_head(checkpoints.read(place / "checkpoint"), labels=3)
    checkpoints.write(there, tmp_path / "google", format="google")
    lines = []
    options = {"total_steps": 1, "keep_head": None, "log": lines.append}
    _compiled_model(TextClassification.open("mnli"), checkpoints.read(tmp_path / "google"), QUICK, **options)
    assert "LABEL_0 is entailment, LABEL_1 is neutral, LABEL_2 is contradiction" in lines[0]


def test_a_kept_head_of_other_labels(place, tmp_path):
    message = (
        "the checkpoint's labels are bad, good and the task's are negative, positive; leave keep_head out"
    )
    with pytest.raises(ValueError, match=message):
        kept_head(TextClassification.open("sst2"), place, tmp_path / "there", {"0": "bad", "1": "good"})
    checkpoints.write(checkpoints.read(tmp_path / "there"), tmp_path / "copied", format="hugging-face")
    assert checkpoints.read(tmp_path / "copied").labels == ("bad", "good")


def test_random_weights_have_no_head_to_keep(place):  # noqa: F811
    random = dataclasses.replace(checkpoints.read(place / "checkpoint"), tensors={})
    task = TextClassification.open("sst2", place / "reviews")
    with pytest.raises(BertKerasError, match="keep_head and random weights"):
        plan_finetuning(task, checkpoint=random, hparams=QUICK, keep_head=True)
