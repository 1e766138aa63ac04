"""A loss over the whole batch, by micro-batches in two passes and over replicas, updates as one device that computes it whole."""

import jobs
import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

import bert_keras as bk
from bert_keras.optimization.vector_losses import BatchLoss
from bert_keras.tasks.devices.strategies import strategy

QUERIES, POSITIVES = ([f"{text} {i}" for i, text in enumerate(runs.texts(7, seed=seed))] for seed in (0, 1))
POSITIVES[4] = POSITIVES[1]  # equal texts, one in each half of the batch
SCORES = [0.1, 0.9, 0.3, 0.5, 0.4, 0.8, 0.2]
DATA = {
    "pairs": (QUERIES, POSITIVES),
    "scores": ((QUERIES, POSITIVES), SCORES),
    "classes": (QUERIES, [0, 1, 0, 1, 2, 2, 0]),
}


def fitted(checkpoint, data="pairs", *, micro_batch=None, dtype=None, lora=False):
    """The weights and the loss after three steps of seven rows."""
    keras.utils.set_random_seed(1)
    model = bk.embedder(checkpoint, dtype=dtype)
    if lora:
        model.encoder.enable_lora(2)
    model.compile(keras.optimizers.SGD(0.01), micro_batch=micro_batch)
    x, y = DATA[data]
    losses = model.fit(x, y, batch_size=7, epochs=3, shuffle=False, verbose=0).history["loss"]
    return {one.path: np.array(tf.convert_to_tensor(one.value)) for one in model.trainable_weights}, losses


def of_replicas(checkpoint, data, micro_batches):
    """The weights after three steps, of two replicas for each micro-batch, and of one device."""
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with two.scope():
        shared = [fitted(checkpoint, data, micro_batch=micro_batch) for micro_batch in micro_batches]
    made = [*shared, fitted(checkpoint, data)]
    return [[{name: value.tolist() for name, value in weights.items()}, losses] for weights, losses in made]


def compare(found, wanted, *, atol=1e-5):
    (weights, losses), (whole, whole_losses) = found, wanted
    assert losses == pytest.approx(whole_losses, rel=1e-5 if atol <= 1e-5 else 1e-2)
    assert len(weights) == len(whole) > 3
    for one, two in zip(weights.values(), whole.values(), strict=True):
        np.testing.assert_allclose(one, two, atol=atol)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large") / "checkpoint"
    return str(runs.write_checkpoint(folder, hidden_dropout=0.0, attention_dropout=0.0))


def test_micro_batches_update_as_the_whole_batch(checkpoint):
    compare(fitted(checkpoint, micro_batch=3), fitted(checkpoint))


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [{"lora": True}, {"dtype": "mixed_bfloat16", "atol": 2e-3}, {"data": "scores"}, {"data": "classes"}],
)
def test_micro_batches_of_other_trainings(how, checkpoint):
    atol = how.pop("atol", 1e-5) if "atol" in how else 1e-5
    compare(fitted(checkpoint, micro_batch=3, **how), fitted(checkpoint, **how), atol=atol)


def test_the_second_pass_draws_as_the_first(tmp_path):
    """With dropout, the gradient is that of one tape over the same micro-batches."""
    checkpoint = str(
        runs.write_checkpoint(tmp_path / "checkpoint", hidden_dropout=0.1, attention_dropout=0.1)
    )
    model = bk.embedder(checkpoint)
    model.compile(keras.optimizers.SGD(0.01), micro_batch=3)
    columns = model.problem.labelled(QUERIES, POSITIVES)
    raw = {name: tf.constant(column) for name, column in columns.items()}
    features = model.problem.features(model.preprocess, raw)
    inputs = {
        name: tf.reshape(features[name], [7, 2, *features[name].shape[1:]]) for name in model.network.input
    }
    labels, weights = model.problem.labels(raw, features)
    draws = [one for one in model.variables if one.name == "seed_generator_state"]
    before = [np.array(tf.convert_to_tensor(one.value)) for one in draws]
    assert draws
    loss, gradients = model._in_two_passes(inputs, labels, weights)
    after = [np.array(tf.convert_to_tensor(one.value)) for one in draws]
    for one, state in zip(draws, before, strict=True):
        one.assign(state)
    with tf.GradientTape() as tape:
        parts = [
            model({name: one[start : start + 3] for name, one in inputs.items()}, training=True)
            for start in (0, 3, 6)
        ]
        wanted = BatchLoss()(labels, tf.concat(parts, axis=0), weights)
    for one, state in zip(draws, after, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(one.value), state)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    for one, other in zip(gradients, tape.gradient(wanted, model.trainable_weights), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, tf.convert_to_tensor(other), atol=1e-5)
    again = BatchLoss()(labels, model(inputs, training=True), weights)
    assert abs(float(again) - float(loss)) > 1e-3, "other draws, another loss"


@pytest.mark.long
@pytest.mark.parametrize(
    "data",
    [
        "pairs",
        pytest.param("scores", marks=pytest.mark.slow),
        pytest.param("classes", marks=pytest.mark.slow),
    ],
)
def test_two_replicas_update_as_one_device(data, checkpoint):
    """Seven rows: one of the eight is padding. Micro-batches of three: a replica has four rows."""
    arguments = {"checkpoint": checkpoint, "data": data, "micro_batches": [None, 3]}
    *shared, alone = jobs.value("test_large_batches:of_replicas", arguments, replicas=2)
    for found in shared:
        compare(found, alone)


def of_workers(checkpoint, micro_batch):
    """The weights after three steps, in a worker."""
    with strategy("multiworker").scope():
        weights, losses = fitted(checkpoint, micro_batch=micro_batch)
    return [{name: value.tolist() for name, value in weights.items()}, losses]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_two_workers_update_as_one_device(micro_batch, checkpoint):
    arguments = {"checkpoint": checkpoint, "micro_batch": micro_batch}
    made = jobs.check(jobs.call("test_large_batches:of_workers", arguments, workers=2))
    assert made[0].value == made[1].value
    compare(made[0].value, fitted(checkpoint))
