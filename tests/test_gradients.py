"""The gradients of our own are those of the plain operations."""

import numpy as np
import pytest
import tensorflow as tf
from parity import array

from bert_keras import gradients, kernels

WIDTH = 24


def drawn(*shape, seed=0, dtype="float32", scale=1.0):
    return tf.cast(scale * np.random.default_rng(seed).normal(size=shape), dtype)


def norm_of(dtype):
    """The plain and our own layer normalization, with sums of the dtype."""
    plain = lambda *inputs: kernels._plain_layer_norm(*inputs, 1e-12, dtype)  # noqa: E731
    return plain, lambda *inputs: gradients.layer_norm(*inputs, 1e-12)


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
    plain, own = getattr(kernels, name), getattr(gradients, name)
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
    plain, own = getattr(kernels, name), getattr(gradients, name)
    if name == "layer_norm":
        inputs += [drawn(WIDTH, seed=2), drawn(WIDTH, seed=3)]
        plain, own = norm_of("float32")
    found = with_gradients(own, inputs, upstream)
    expected = with_gradients(plain, [tf.cast(one, "float32") for one in inputs], upstream)
    for ours, reference in zip(found, expected, strict=True):
        error = np.abs(array(tf.cast(ours, "float32")) - array(reference)).max()
        assert error <= 2**-7 * np.abs(array(reference)).max()


def test_xla_compiles_them():
    inputs = [drawn(6, WIDTH), drawn(WIDTH, seed=2), drawn(WIDTH, seed=3)]

    def step(x, gamma, beta):
        normed = gradients.layer_norm(x, gamma, beta, 1e-12)
        return gradients.gelu_erf(gradients.gelu_tanh(normed))

    plain, compiled = (
        tf.function(with_gradients, autograph=False, jit_compile=compiles)(
            step, inputs, drawn(6, WIDTH, seed=1)
        )
        for compiles in (False, True)
    )
    for found, expected in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(array(found), array(expected), atol=1e-5)
