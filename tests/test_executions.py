"""Several steps in one execution: what a run does after a step waits for the execution's end, and the updates are the same."""

import dataclasses

import keras
import numpy as np
import pretrainings
import pytest
import safetensors.numpy
import tensorflow as tf
from trainings import QUICK, place, start  # noqa: F401

from bert_keras.errors import BertKerasError, LossDiverged
from bert_keras.optimization.training_model import TrainingModel
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.training.saver import Saver

HPARAMS = dataclasses.replace(QUICK, epochs=2, batch_size=14, learning_rate=3e-3)  # 7 steps in an epoch


def calls_of(monkeypatch, kind, *, kill=None):
    """The steps after each call of a callback's on_train_batch_end; raises RuntimeError after step `kill`."""
    found, end = [], kind.on_train_batch_end

    def noted(self, batch, logs=None):
        end(self, batch, logs)
        found.append(self.step)
        if self.step == kill:
            raise RuntimeError("killed")

    monkeypatch.setattr(kind, "on_train_batch_end", noted)
    return found


def difference(run, other):
    """The greatest of a weight: a step in a loop rounds differently."""
    one, two = (safetensors.numpy.load_file(path / "model.safetensors") for path in (run, other))
    return max(float(np.abs(one[name] - two[name]).max()) for name in one if not name.endswith("key.bias"))


@pytest.mark.long
def test_a_fine_tuning_in_executions_saves_at_their_ends_and_resumes_with_the_same_bits(place, monkeypatch):  # noqa: F811
    task = TextClassification.open("sst2", place / "reviews")
    three = dataclasses.replace(HPARAMS, steps_per_execution=3)
    plain = start(task, place, hparams=HPARAMS, output="plain")
    with monkeypatch.context() as patch:
        found = calls_of(patch, Saver)
        made = start(task, place, hparams=three, output="three", save_every=2)
        assert found == [3, 6, 7, 10, 13, 14]
    saved = sorted(int(one.stem[5:]) for one in (place / "three" / "checkpoints").glob("ckpt-*.index"))
    assert saved == [13, 14]
    assert difference(place / "plain", place / "three") < 1e-5
    assert made["steps"] == plain["steps"] == 14
    losses = [[row["loss"] for row in one["history"]] for one in (made, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    with monkeypatch.context() as patch:
        calls_of(patch, Saver, kill=10)
        with pytest.raises(RuntimeError, match="killed"):
            start(task, place, hparams=three, output="resumed", save_every=2)
    with pytest.raises(BertKerasError, match="steps_per_execution"):
        start(task, place, hparams=HPARAMS, output="resumed", save_every=2)
    start(task, place, hparams=three, output="resumed", save_every=2)
    weights = [(place / name / "model.safetensors").read_bytes() for name in ("three", "resumed")]
    assert weights[0] == weights[1]


def pretrained(output, *, snapshots=(), **settings):
    changes = {"phases": ((24, 0.5), (40, 0.5)), "steps": 8, "log_every": 2, "eval_every": 4} | settings
    return pretrainings.train(output, held_out=0.3, snapshots=snapshots, save_every=3, changes=changes)


@pytest.mark.slow  # the next test's loop, with another plan
def test_a_pretraining_in_executions_has_the_same_weights_and_history(tmp_path):
    one, two = pretrained(tmp_path / "one"), pretrained(tmp_path / "two", steps_per_execution=2)
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-5
    assert [row["step"] for row in two["history"]] == [2, 4, 4, 6, 8, 8]  # training, or held out
    for row, other in zip(one["history"], two["history"], strict=True):
        ours, theirs = ({**one, "tokens_per_second": 0} for one in (row, other))
        assert theirs == pytest.approx(ours, rel=1e-5)


@pytest.mark.parametrize(
    ("steps", "settings", "message"),
    [
        (0, {}, "steps_per_execution is 0; .* at least 1"),
        (4, {}, "steps_per_execution is 4, and does not divide log_every 2; give a number that does"),
        (2, {"eval_every": 3}, "does not divide eval_every 3"),
        (2, {"steps": 6, "eval_every": 2}, "does not divide the end of phase 1 at step 3"),
        (2, {"snapshots": [2, 3]}, "does not divide snapshots 3"),
    ],
)
def test_executions_that_do_not_end_where_a_pretraining_acts_are_refused(steps, settings, message, tmp_path):
    with pytest.raises(BertKerasError, match=message):
        pretrained(tmp_path / "run", steps_per_execution=steps, **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_loss_that_diverges_inside_an_execution_is_found_at_its_end(place):  # noqa: F811
    task = TextClassification.open("sst2", place / "reviews")
    diverging = {"learning_rate": 1e30, "warmup_proportion": 0.0, "batch_size": 4, "steps_per_execution": 4}
    hparams = dataclasses.replace(HPARAMS, **diverging)  # 24 steps in an epoch; the loss is read at the tenth
    with pytest.raises(LossDiverged) as error:
        start(task, place, hparams=hparams, output="diverged")
    assert error.value.step == 12


def test_an_epoch_of_steps_that_executions_do_not_divide():
    """The data set goes on after the epoch. Stock Keras would run six steps."""
    keras.utils.set_random_seed(1)
    x = keras.Input((3,))
    made = TrainingModel(x, keras.layers.Dense(1)(x))
    made.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=3, jit_compile=False)
    data = tf.data.Dataset.from_tensors((np.ones((2, 3), "float32"), np.ones((2, 1), "float32"))).repeat()
    made.fit(data, steps_per_epoch=4, epochs=2, verbose=0, shuffle=False)
    assert made.optimizer.iterations == 8
    made.fit(data, None, None, 1, 0, [], steps_per_epoch=5, shuffle=False)
    assert made.optimizer.iterations == 13
