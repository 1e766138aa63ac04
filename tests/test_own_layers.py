"""Heads of any name and shape: every weight that a model has comes back from a run and from a `.keras` file."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from random_checkpoints import TINY, random_checkpoint, refused

from bert_keras import checkpoints
from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.training.task_model import check_saves, encoder_of


class Scaled(keras.layers.Layer):
    """A head with a learned number, statistics of batches, and layers that have no names."""

    def __init__(self, **how):
        super().__init__(**how)
        self.norm, self.hidden, self.out = (
            keras.layers.BatchNormalization(),
            keras.layers.Dense(4),
            keras.layers.Dense(2),
        )

    def build(self, shape):
        self.scale = self.add_weight(shape=(), name="scale")
        self.norm.build(shape)
        self.hidden.build(shape)
        self.out.build((*shape[:-1], 4))

    def call(self, states):
        return self.out(self.hidden(self.norm(states) * self.scale))


def dense(name, **how):
    made = keras.layers.Dense(3, name=name, **how)
    made.build((None, 8))
    return made


def scaled(name):
    made = Scaled(name=name)
    made.build((None, 8))
    return made


def wide():
    """A known name, and a shape that the known head does not have: it reads two states."""
    made = keras.Sequential([keras.Input((16,)), keras.layers.Dense(3, name="dense")], name="classifier")
    return made


# The head -> the names of its weights in the file.
NORM = [
    f"relation/batch_normalization/{name}" for name in ("beta", "gamma", "moving_mean", "moving_variance")
]
HEADS = {
    "another variable": (lambda: dense("classifier"), ["classifier/bias", "classifier/kernel"]),
    "another shape": (wide, ["classifier/dense/bias", "classifier/dense/kernel"]),
    "another name": (lambda: dense("relation", use_bias=False), ["relation/kernel"]),
    "without names": (
        lambda: scaled("relation"),
        [*NORM, *(f"relation/{name}/{part}" for name in ("dense", "dense_1") for part in ("bias", "kernel")), "relation/scale"],
    ),
}  # fmt: skip


def randomize(layer):
    for variable in layer.weights:
        variable.assign(keras.random.normal(variable.shape, seed=len(variable.path)))


@pytest.mark.parametrize("case", HEADS)
def test_every_weight_of_a_head_comes_back(case, tmp_path):
    make, names = HEADS[case]
    encoder, head = BertEncoder(TINY), make()
    randomize(head)
    checkpoint = checkpoints.collect(TINY, encoder, **{head.name: head})
    written = dataclasses.replace(checkpoint, vocabulary=random_checkpoint().vocabulary)
    assert checkpoints.write(written, tmp_path / "out", format="hugging-face") == ()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["own_weights"] == names and config["model_type"] == "bert"
    assert config["architectures"] == ["BertModel"]  # no class of transformers has this head
    keras.layers.Dense(1), keras.layers.BatchNormalization()  # another process counts other layers
    read, again = checkpoints.read(tmp_path / "out"), make()
    report = checkpoints.assign(read, BertEncoder(TINY), **{again.name: again})
    assert report.unused == () and len(report.matched) == len(checkpoint.tensors)
    for one, other in zip(head.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    for form in ("google", "keras-hub", "model-garden"):
        refused(f"{form} has no place for {names[0]}", checkpoints.write, read, tmp_path / form, format=form)
        assert not (tmp_path / form).exists()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda names: [*names, "relation/lost"],
            "names relation/lost in own_weights, and the weights lack it",
        ),
        (lambda names: [], "the checkpoint has no relation/kernel.*unknown names: relation/kernel"),
        (lambda names: "relation/kernel", "own_weights"),
    ],
)
def test_a_config_that_names_other_weights(change, match, tmp_path):
    head = dense("relation", use_bias=False)
    made = checkpoints.collect(TINY, BertEncoder(TINY), relation=head)
    checkpoints.write(made, tmp_path / "out", format="hugging-face")
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"own_weights": change(config["own_weights"])}))
    refused(
        match,
        lambda: checkpoints.assign(checkpoints.read(tmp_path / "out"), BertEncoder(TINY), relation=head),
    )


class Outside(keras.Model):
    """A model with a weight that no layer has."""

    def __init__(self):
        super().__init__()
        self.encoder, self.scale = BertEncoder(TINY), self.add_weight(shape=(), name="scale")


class Twins(keras.layers.Layer):
    """Two layers of one name."""

    def __init__(self, **how):
        super().__init__(**how)
        self.first, self.second = (keras.layers.Dense(3, name="same") for _ in range(2))

    def build(self, shape):
        self.first.build(shape)
        self.second.build(shape)


def test_what_no_file_can_hold_is_refused_before_a_training():
    refused("weights outside of its layers, .*scale", check_saves, Outside())
    refused("no encoder among its layers", encoder_of, keras.Sequential([keras.Input((8,)), dense("a")]))
    twins = Twins(name="relation")
    twins.build((None, 8))
    refused(
        "relation has two weights named relation/same/bias",
        checkpoints.collect,
        TINY,
        BertEncoder(TINY),
        relation=twins,
    )
