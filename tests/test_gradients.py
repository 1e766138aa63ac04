"""The gradients of our own are those of the plain operations, and sum in float32."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from encoders import small
from parity import array, random_features

from bert_keras.features import SEQUENCE_OUTPUT
from bert_keras.model import kernels
from bert_keras.model.encoder import BertEncoder

WIDTH = 24


def drawn(*shape, seed=0, dtype="float32", scale=1.0):
    return tf.cast(scale * np.random.default_rng(seed).normal(size=shape), dtype)


def norm_of(dtype):
    """The plain and our own layer normalization, with sums of the dtype."""
    plain = lambda *inputs: kernels._plain_layer_norm(*inputs, 1e-12, dtype)  # noqa: E731
    return plain, lambda *inputs: kernels.layer_norm(*inputs, 1e-12, dtype=dtype, training=True)


def with_gradients(function, inputs, upstream):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        made = function(*inputs)
    return made, *tape.gradient(made, inputs, tf.cast(upstream, made.dtype))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf", "layer_norm"])
def test_equal_the_plain_operations(name, dtype, traced):
    inputs = [drawn(2, 5, WIDTH, dtype=dtype, scale=3)]
    plain, own = getattr(kernels, name), functools.partial(getattr(kernels, name), training=True)
    if name == "layer_norm":
        inputs += [drawn(WIDTH, seed=2, dtype=dtype), drawn(WIDTH, seed=3, dtype=dtype)]
        plain, own = norm_of(dtype)
    upstream = drawn(2, 5, WIDTH, seed=1)
    call = tf.function(with_gradients, autograph=False) if traced else with_gradients
    found, expected = (call(one, inputs, upstream) for one in (own, plain))
    for ours, reference in zip(found, expected, strict=True):
        assert ours.shape == reference.shape and ours.dtype == reference.dtype
        bound = (2e-6 if dtype == "float32" else 1e-14) * np.abs(array(reference)).max()
        np.testing.assert_allclose(array(ours), array(reference), atol=bound)


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf", "layer_norm"])
def test_in_bfloat16_only_the_results_are_rounded(name):
    x, upstream = drawn(64, WIDTH, dtype="bfloat16"), drawn(64, WIDTH, seed=1, dtype="bfloat16")
    inputs = [x]
    plain, own = getattr(kernels, name), functools.partial(getattr(kernels, name), training=True)
    if name == "layer_norm":
        inputs += [drawn(WIDTH, seed=2), drawn(WIDTH, seed=3)]
        plain, own = norm_of("float32")
    found = with_gradients(own, inputs, upstream)
    expected = with_gradients(plain, [tf.cast(one, "float32") for one in inputs], upstream)
    for ours, reference in zip(found, expected, strict=True):
        error = np.abs(array(tf.cast(ours, "float32")) - array(reference)).max()
        assert error <= 2**-7 * np.abs(array(reference)).max()


@pytest.mark.parametrize("traced", [False, True])
def test_the_gradient_of_a_bias_in_bfloat16_counts_every_row(traced):
    """TensorFlow's own adds up in bfloat16 on a CPU: a sum of ones stops at 256."""
    x, bias = tf.zeros([3000, WIDTH], "bfloat16"), tf.zeros([WIDTH], "bfloat16")

    def gradient(x, bias):
        with tf.GradientTape() as tape:
            tape.watch(bias)
            made = kernels.add_bias(x, bias, training=True)
        return tape.gradient(made, bias, tf.ones_like(made))

    found = (tf.function(gradient, autograph=False) if traced else gradient)(x, bias)
    np.testing.assert_allclose(array(tf.cast(found, "float32")), 3000, rtol=2**-7)


def test_the_gradients_of_an_encoder_in_bfloat16_are_near_float32():
    """With thousands of tokens: a gradient that is summed in bfloat16 is wrong for many rows alone."""
    config = small(hidden_dropout=0.0, attention_dropout=0.0)
    features = random_features(config, seed=5, batch=128, length=16)
    found = {}
    for policy in ("float32", "mixed_bfloat16"):
        encoder = BertEncoder(config, outputs=[SEQUENCE_OUTPUT], dtype=policy)
        for weight, values in zip(encoder.weights, found.get("weights", ()), strict=False):
            weight.assign(values)
        found.setdefault("weights", encoder.get_weights())
        upstream = drawn(128, 16, config.hidden_size, seed=7) + 0.2
        with tf.GradientTape() as tape:
            made = tf.cast(encoder(features, training=True)[SEQUENCE_OUTPUT], "float32")
            loss = tf.reduce_sum(made * upstream)
        made = tape.gradient(loss, encoder.trainable_variables)
        found[policy] = [array(tf.convert_to_tensor(one)) for one in made]
    paths = [one.path for one in encoder.trainable_variables]
    whole = np.sqrt(sum(np.sum(one**2) for one in found["float32"]))
    for path, narrow, wide in zip(paths, found["mixed_bfloat16"], found["float32"], strict=True):
        if (size := np.linalg.norm(wide)) > 1e-3 * whole:  # that of a key's bias is 0
            assert np.linalg.norm(narrow - wide) < 0.05 * size, path


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_gradients_of_a_graph_have_ranks(policy):
    """Sums over micro-batches, and most of Keras' optimizers, need them."""
    encoder = BertEncoder(small(), outputs=[SEQUENCE_OUTPUT], dtype=policy)

    @tf.function(autograph=False)
    def ranks(features):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(features, training=True)[SEQUENCE_OUTPUT])
        made = tape.gradient(loss, encoder.trainable_variables)
        return [tf.constant(tf.convert_to_tensor(one).shape.rank or 0) for one in made]

    found = [int(one) for one in ranks(random_features(small(), seed=5, batch=2, length=4))]
    assert found == [len(one.shape) for one in encoder.trainable_variables]


def test_xla_compiles_them():
    inputs = [drawn(6, WIDTH), drawn(WIDTH, seed=2), drawn(WIDTH, seed=3)]

    def step(x, gamma, beta):
        normed = kernels.layer_norm(x, gamma, beta, 1e-12, dtype="float32", training=True)
        active = kernels.gelu_erf(kernels.gelu_tanh(normed, training=True), training=True)
        return kernels._traced(kernels._add_bias, active, beta)

    plain, compiled = (
        tf.function(with_gradients, autograph=False, jit_compile=compiles)(
            step, inputs, drawn(6, WIDTH, seed=1)
        )
        for compiles in (False, True)
    )
    for found, expected in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(array(found), array(expected), atol=1e-5)
