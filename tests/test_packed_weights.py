"""Weights as constants of a graph: only where an inference gains, and with the outputs of the variables."""

import encoders
import numpy as np
import parity
import pytest
import tensorflow as tf
from parity import array

from bert_keras import kernels, packed_weights
from bert_keras.encoder import BertEncoder
from bert_keras.features import ENCODER_INPUTS, SEQUENCE_OUTPUT

ANY_SHAPE = {name: tf.TensorSpec([None, None], tf.int32) for name in ENCODER_INPUTS}


@pytest.fixture(autouse=True)
def with_onednn(monkeypatch):
    """On every processor; its kernels compute what the plain ones do."""
    monkeypatch.setattr(kernels, "has_onednn", lambda: True)


def traced(encoder):
    def call(features):
        with packed_weights.packed_weights(encoder):
            return encoder(features, training=False)[SEQUENCE_OUTPUT]

    return tf.function(call, input_signature=[ANY_SHAPE], autograph=False).get_concrete_function()


def reads(function):
    return [op for op in function.graph.get_operations() if op.type == "ReadVariableOp"]


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("unpadded", [False, True])
def test_the_graph_has_constants_and_the_same_outputs(dtype, unpadded):
    encoder = BertEncoder(encoders.small(), outputs=(SEQUENCE_OUTPUT,), dtype=dtype)
    encoder.unpadded = unpadded
    features = parity.random_features(encoders.SMALL, seed=5, batch=3, length=7)
    function = traced(encoder)
    assert not reads(function)
    expected = tf.function(lambda given: encoder(given, training=False), autograph=False)(features)
    real = np.asarray(features["input_mask"], bool)
    found, expected = (
        array(tf.cast(one, tf.float32))[real] for one in (function(features), expected[SEQUENCE_OUTPUT])
    )
    np.testing.assert_allclose(found, expected, atol=2**-6)


def test_the_values_are_those_of_the_trace():
    encoder = BertEncoder(encoders.small(), outputs=(SEQUENCE_OUTPUT,), dtype="bfloat16")
    features = parity.random_features(encoders.SMALL, seed=5, batch=3, length=7)
    function = traced(encoder)
    before = function(features)
    for variable in encoder.variables:
        variable.assign(2 * variable)
    tf.debugging.assert_equal(function(features), before)
    assert np.abs(array(tf.cast(traced(encoder)(features) - before, tf.float32))).max() > 0.1


@pytest.mark.parametrize("change", ["float32", "another device", "too large"])
def test_variables_stay_where_constants_gain_nothing(change, monkeypatch):
    dtype = "float32" if change == "float32" else "bfloat16"
    encoder = BertEncoder(encoders.small(), outputs=(SEQUENCE_OUTPUT,), dtype=dtype)
    if change == "another device":
        monkeypatch.setattr(kernels, "_is_on_cpu", lambda: False)
    if change == "too large":
        monkeypatch.setattr(packed_weights, "LARGEST", 1000)
    assert reads(traced(encoder))


def test_an_eager_call_reads_the_variables():
    encoder = BertEncoder(encoders.small(), outputs=(SEQUENCE_OUTPUT,), dtype="bfloat16")
    features = parity.random_features(encoders.SMALL, seed=5, batch=3, length=7)
    with packed_weights.packed_weights(encoder):
        found = encoder(features, training=False)[SEQUENCE_OUTPUT]
    tf.debugging.assert_equal(found, encoder(features, training=False)[SEQUENCE_OUTPUT])
