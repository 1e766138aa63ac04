"""Weights as constants of a graph: only where an inference gains, and with the outputs of the variables."""

import contextlib

import numpy as np
import parity
import pytest
import runs
import tensorflow as tf
from parity import array

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.features import ENCODER_INPUTS, SEQUENCE_OUTPUT
from bert_keras.model import kernels
from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.batches import predictor
from bert_keras.tasks.frozen.extractor import Extractor, Rows

pytestmark = pytest.mark.long

ANY_SHAPE = {name: tf.TensorSpec([None, None], tf.int32) for name in ENCODER_INPUTS}


@pytest.fixture(autouse=True)
def with_onednn(monkeypatch):
    """On every processor; its kernels compute what the plain ones do."""
    monkeypatch.setattr(kernels, "has_onednn", lambda: True)
    monkeypatch.setattr(kernels, "_is_on_cpu", lambda: True)


def traced(encoder):
    def call(features):
        with kernels.packed_weights(encoder):
            return encoder(features, training=False)[SEQUENCE_OUTPUT]

    return tf.function(call, input_signature=[ANY_SHAPE], autograph=False).get_concrete_function()


def reads(function):
    return [op for op in function.graph.get_operations() if op.type == "ReadVariableOp"]


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("unpadded", [False, True])
def test_the_graph_has_constants_and_the_same_outputs(dtype, unpadded):
    encoder = BertEncoder(parity.small(), outputs=(SEQUENCE_OUTPUT,), dtype=dtype)
    encoder.unpadded = unpadded
    features = parity.random_features(parity.small(), seed=5, batch=3, length=7)
    function = traced(encoder)
    assert not reads(function)
    expected = tf.function(lambda given: encoder(given, training=False), autograph=False)(features)
    real = np.asarray(features["input_mask"], bool)
    found, expected = (
        array(tf.cast(one, tf.float32))[real] for one in (function(features), expected[SEQUENCE_OUTPUT])
    )
    np.testing.assert_allclose(found, expected, atol=2**-6)


def test_the_values_are_those_of_the_trace():
    encoder = BertEncoder(parity.small(), outputs=(SEQUENCE_OUTPUT,), dtype="bfloat16")
    features = parity.random_features(parity.GOLDEN_CONFIG, seed=5, batch=3, length=7)
    function = traced(encoder)
    before = function(features)
    for variable in encoder.variables:
        variable.assign(2 * variable)
    tf.debugging.assert_equal(function(features), before)
    assert np.abs(array(tf.cast(traced(encoder)(features) - before, tf.float32))).max() > 0.1


@pytest.mark.parametrize("change", ["float32", "another device", "too large"])
def test_variables_stay_where_constants_gain_nothing(change, monkeypatch):
    dtype = "float32" if change == "float32" else "bfloat16"
    encoder = BertEncoder(parity.small(), outputs=(SEQUENCE_OUTPUT,), dtype=dtype)
    if change == "another device":
        monkeypatch.setattr(kernels, "_is_on_cpu", lambda: False)
    if change == "too large":
        monkeypatch.setattr(kernels, "LARGEST", 1000)
    assert reads(traced(encoder))


def test_an_eager_call_and_a_layer_without_weights_keep_the_variables():
    encoder = BertEncoder(parity.small(), dtype="bfloat16")
    assert isinstance(kernels.packed_weights(encoder), contextlib.nullcontext)
    encoder.built = False
    with tf.Graph().as_default():
        assert isinstance(kernels.packed_weights(encoder), contextlib.nullcontext)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_prediction_follows_the_weights_unless_they_are_fixed(fixed, tmp_path):
    """A training predicts after each epoch with the same function."""
    runs.write_checkpoint(tmp_path / "checkpoint")
    model = bk.classifier(tmp_path / "checkpoint", ["no", "yes"], seq_length=16, dtype="bfloat16")
    run = model.as_run()
    predict = predictor(run.task, run.preprocess, run.model, fixed=fixed)
    rows = tf.data.Dataset.from_tensor_slices({"text": runs.texts(3, seed=1)})
    before, _ = predict(rows, batch_size=2)
    head = run.model.get_layer("classifier").dense.bias
    head.assign([5.0, -5.0])
    after, _ = predict(rows, batch_size=2)
    assert np.array_equal(before["probabilities"], after["probabilities"]) == fixed


def test_the_vectors_of_texts_are_made_with_packed_weights(tmp_path):
    source = checkpoints.read(runs.write_checkpoint(tmp_path / "checkpoint"))
    made = Extractor(source=source, units=Rows(), places=[0, 1], precision="bfloat16")
    assert not reads(made._vectors.get_concrete_function())
