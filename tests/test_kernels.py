"""The forms of kernels: the fused ones appear in TensorFlow's optimized graph, and compute what the plain ones do.

So do the forms of a training, which have gradients of their own.
"""

import collections
import functools

import keras
import numpy as np
import parity
import pytest
import tensorflow as tf
from keras import ops
from parity import array

from bert_keras.features import ENCODER_INPUTS, SEQUENCE_OUTPUT
from bert_keras.model import kernels
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.layers import LayerNorm
from bert_keras.savedmodels.servable import with_constants

pytestmark = pytest.mark.fused

BLOCKS = 2
ANY_SHAPE = {name: tf.TensorSpec([None, None], tf.int32) for name in ENCODER_INPUTS}
only_onednn = pytest.mark.skipif(
    not kernels.has_onednn(), reason="TensorFlow has no oneDNN kernels on this processor"
)


def encoder(dtype="float32", **changes):
    """An encoder whose biases are not 0: TensorFlow removes a sum with zeros."""
    made = BertEncoder(parity.small(num_layers=BLOCKS, **changes), outputs=(SEQUENCE_OUTPUT,), dtype=dtype)
    draw = np.random.default_rng(0)
    for weight in made.weights:
        if len(weight.shape) == 1:
            weight.assign(draw.normal("gamma" in weight.path, 0.1, weight.shape))
    return made


def inference(made, **options):
    return tf.function(
        lambda features: made(features, training=False)[SEQUENCE_OUTPUT],
        input_signature=[ANY_SHAPE],
        autograph=False,
        **options,
    )


def features(batch=3, length=7):
    return parity.random_features(parity.small(), seed=5, batch=batch, length=length)


def fused_kernels(function, *arguments):
    """The operations of the graph that TensorFlow runs at the first call, with the names of what is fused in them."""
    from tensorflow.python.eager import context

    with context.collect_graphs(optimized=True) as graphs:
        function(*arguments)
    nodes = [node for graph in graphs for node in graph.node]
    parts = [b", ".join(node.attr["fused_ops"].list.s).decode() for node in nodes]
    return collections.Counter(
        f"{node.op}[{part}]" if part else node.op for node, part in zip(nodes, parts, strict=True)
    )


FUSED = {
    "_FusedMatMul[BiasAdd, Add]": 2 * BLOCKS,  # the products before a residual
    "_FusedMatMul[BiasAdd]": 3 * BLOCKS,  # query, key and value
    "_MklFusedBatchMatMulV2[Mul, Add]": BLOCKS,  # scale and mask in the scores
    "_MklLayerNorm": 2 * BLOCKS + 1,
}


def assert_has(found, **counts):
    expected = (
        FUSED | {f"_FusedMatMul[BiasAdd, {counts.pop('gelu')}]": BLOCKS} | counts
    )  # the product that widens
    assert {name: found[name] for name in expected} == expected


@only_onednn
@pytest.mark.parametrize("dtype", kernels.FUSED_TYPES)
@pytest.mark.parametrize(
    ("activation", "gelu"), [("gelu_tanh", "GeluApproximate"), ("gelu_erf", "GeluExact")]
)
def test_the_kernels_of_a_block_are_fused(activation, gelu, dtype):
    """Rsqrt is a plain norm's, for few rows; Einsum a transposition."""
    found = fused_kernels(inference(encoder(dtype, activation=activation)), features())
    assert_has(found, gelu=gelu, Rsqrt=2 * BLOCKS + 1, Einsum=4 * BLOCKS)
    assert not {"FusedBatchNormV3", "Erf", "Tanh", "MatMul", "BiasAdd", "Transpose"} & {*found}


@only_onednn
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", kernels.FUSED_TYPES)
def test_the_kernels_of_exports_are_fused(dtype, frozen):
    """An export leaves out padding; a frozen one has constants in place of variables."""
    made = encoder(dtype)
    made.unpadded, call = True, inference(made)
    if frozen:
        inputs = encoder_inputs()
        model = keras.Model(inputs, made(inputs)[SEQUENCE_OUTPUT])
        specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ENCODER_INPUTS}
        call = with_constants(model, specs, packed=dtype == "bfloat16")
    assert_has(fused_kernels(call, features()), gelu="GeluApproximate")


def test_other_runtimes_get_plain_operations(monkeypatch):
    monkeypatch.setattr(kernels, "has_onednn", lambda: True)
    with kernels.plain_operations():
        graph = inference(encoder()).get_concrete_function().graph
    found = {op.type for op in graph.get_operations()}
    assert not {"Einsum", "StatelessIf", "If", "FusedBatchNormV3"} & found
    again = {op.type for op in inference(encoder()).get_concrete_function().graph.get_operations()}
    assert {"Einsum", "StatelessIf"} < again


@only_onednn
def test_a_saved_model_has_plain_operations_and_is_fused_when_it_runs(tmp_path):
    module = tf.Module()
    module.encoder, module.call = (made := encoder()), inference(made)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    saved = {node.op for node in loaded.call.concrete_functions[0].graph.as_graph_def().node}
    assert not [op for op in saved if op.startswith(("_Fused", "_Mkl"))]
    assert_has(fused_kernels(loaded.call, features()), gelu="GeluApproximate")


def test_a_training_has_the_form_with_the_faster_gradient():
    made = encoder()
    step = tf.function(lambda batch: made(batch, training=True)[SEQUENCE_OUTPUT], autograph=False)
    graph = step.get_concrete_function(features()).graph.as_graph_def()
    assert "FusedBatchNormV3" not in {node.op for node in graph.node}


@pytest.mark.parametrize(("onednn", "small"), [(True, 0), (True, 5 * 32 + 1), (True, 2**16), (False, 0)])
def test_a_graph_equals_eager_operations(onednn, small, monkeypatch):
    monkeypatch.setattr(kernels, "has_onednn", lambda: onednn)
    monkeypatch.setattr(kernels, "SMALL", small)
    made = encoder()
    for batch, length in ((1, 2), (1, 5), (3, 7)):
        found = inference(made)(features(batch, length))
        expected = made(features(batch, length))[SEQUENCE_OUTPUT]
        np.testing.assert_allclose(array(found), array(expected), atol=2e-6)


@pytest.mark.parametrize("small", [0, 2**16])
@pytest.mark.parametrize("shape", [(5, 32), (2, 3, 32), (2, 3, 4, 32)])
def test_a_norm_of_any_rank(shape, small, monkeypatch):
    monkeypatch.setattr(kernels, "SMALL", small)
    norm = LayerNorm(config=parity.small(), name="norm")
    norm.build(shape)
    norm.gamma.assign(np.random.default_rng(1).normal(1, 0.1, 32))
    x = np.random.default_rng(0).normal(1, 1, shape).astype("float32")
    found = tf.function(norm, input_signature=[tf.TensorSpec([None] * (len(shape) - 1) + [32])])(x)
    np.testing.assert_allclose(array(found), array(norm(x)), atol=2e-6)
    assert found.shape == shape


@pytest.mark.parametrize("small", [0, 2**16])
def test_a_norm_in_bfloat16_sums_in_float32(small, monkeypatch):
    monkeypatch.setattr(kernels, "SMALL", small)
    norm = LayerNorm(config=parity.small(), name="norm", dtype="bfloat16")
    norm.build((None, 32))
    x = ops.cast(np.random.default_rng(0).normal(100, 1, (4, 32)), "bfloat16")
    wide = array(ops.cast(x, "float32"))
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    for call in (
        norm,
        tf.function(norm, autograph=False, input_signature=[tf.TensorSpec([None, 32], x.dtype)]),
    ):
        found = array(ops.cast(call(x), "float32"))
        np.testing.assert_allclose(found, expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("small", [0, 2**16])
def test_the_gradient_of_an_inference_equals_that_of_the_plain_form(small, monkeypatch):
    """As an attribution to words asks for it, without dropout."""
    monkeypatch.setattr(kernels, "has_onednn", lambda: True)
    monkeypatch.setattr(kernels, "SMALL", small)
    made = encoder(hidden_dropout=0.0, attention_dropout=0.0)

    def gradients(batch, training):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made(batch, training=training)[SEQUENCE_OUTPUT] ** 3)
        return tape.gradient(loss, [made.embeddings.position_embeddings, made.blocks[0].attention_norm.gamma])

    traced = tf.function(gradients, autograph=False)
    for pair in zip(traced(features(), False), traced(features(), True), strict=True):
        found, expected = (array(tf.convert_to_tensor(one)) for one in pair)
        np.testing.assert_allclose(found, expected, atol=1e-5 * expected.max())


def test_a_saved_inference_has_the_same_gradient(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "has_onednn", lambda: True)
    module = tf.Module()
    module.encoder, module.call = (made := encoder()), inference(made)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))

    def gradient(called, table):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(called(features()) ** 3)
        return array(tf.convert_to_tensor(tape.gradient(loss, table)))

    found = gradient(loaded.call, loaded.encoder.embeddings.position_embeddings)
    expected = gradient(lambda batch: made(batch)[SEQUENCE_OUTPUT], made.embeddings.position_embeddings.value)
    np.testing.assert_allclose(found, expected, atol=1e-5 * expected.max())


@pytest.mark.long
def test_xla_compiles_the_fused_form(monkeypatch):
    monkeypatch.setattr(kernels, "has_onednn", lambda: True)
    made = encoder()
    compiled = tf.function(lambda batch: made(batch)[SEQUENCE_OUTPUT], jit_compile=True, autograph=False)
    np.testing.assert_allclose(
        array(compiled(features())), array(made(features())[SEQUENCE_OUTPUT]), atol=2e-6
    )


def test_attention_scores_are_scaled_products_with_the_mask():
    draw = np.random.default_rng(0)
    query, key = draw.normal(size=(2, 3, 4, 5)), draw.normal(size=(2, 3, 6, 5))
    mask = np.where(draw.random((2, 1, 1, 6)) < 0.3, -10000.0, 0.0)
    found = kernels.attention_scores(*map(ops.convert_to_tensor, (query, key)), 0.5, mask)
    expected = np.einsum("baqd,basd->baqs", query, key) * 0.5 + mask
    np.testing.assert_allclose(array(found), expected, atol=1e-12)


def test_a_float64_encoder_stays_float64():
    made = encoder("float64")
    assert keras.backend.standardize_dtype(inference(made)(features()).dtype) == "float64"


def dropped(x, rate, seed=7, **how):
    seeds = keras.random.SeedGenerator(seed)
    made = tf.function(lambda values: kernels.dropout(values, rate, seeds), autograph=False, **how)
    return array(made(x)), array(made(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_sets_its_share_of_numbers_to_0(rate, dtype):
    x = tf.ones([301, 333], dtype)  # an odd number of numbers
    first, second = dropped(x, rate)
    assert np.unique(first.astype("float32")) == pytest.approx([0, 1 / (1 - rate)], rel=4e-3)
    deviation = np.sqrt(rate * (1 - rate) / first.size)
    assert abs(np.mean(first == 0) - rate) < 4 * deviation
    both = np.mean((first == 0) & (second == 0))  # of two calls
    neighbours = np.mean((first == 0)[:, 1:] & (first == 0)[:, :-1])
    for share in (both, neighbours):
        assert abs(share - rate**2) < 4 * np.sqrt(rate**2 / first.size)
    np.testing.assert_array_equal(first, dropped(x, rate)[0])
    assert (first != dropped(x, rate, seed=8)[0]).any()


def test_dropout_under_xla_draws_the_same():
    x = tf.random.stateless_normal([5, 7, 9], [1, 2])
    for plain, compiled in zip(dropped(x, 0.3), dropped(x, 0.3, jit_compile=True), strict=True):
        np.testing.assert_allclose(plain, compiled, rtol=1e-6)


def test_the_gradient_of_dropout_is_that_of_the_numbers_that_stay():
    x, seeds = tf.random.stateless_normal([4, 5], [1, 2]), keras.random.SeedGenerator(3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = kernels.dropout(x, 0.4, seeds)
    np.testing.assert_allclose(tape.gradient(made, x), array(made) / array(x), rtol=1e-6)


def test_dropout_at_the_ends_of_its_rates():
    x = tf.ones([100, 100])
    assert (dropped(x, 0.0)[0] == 1).all()
    assert np.mean(dropped(x, 1.0)[0] == 0) > 0.99


def test_dropout_of_other_devices_is_that_of_keras(monkeypatch):
    monkeypatch.setattr(kernels, "_is_on_cpu", lambda: False)
    x = tf.ones([20, 20])
    expected = keras.random.dropout(x, 0.3, seed=keras.random.SeedGenerator(7))
    np.testing.assert_array_equal(dropped(x, 0.3)[0], array(expected))


# Gradients of our own: those of the plain operations, with sums in float32 -----------------------------------------


WIDTH = 24


def drawn(*shape, seed=0, dtype="float32", scale=1.0):
    return tf.cast(scale * np.random.default_rng(seed).normal(size=shape), dtype)


def forms(name, x, dtype):
    """The plain form of a kernel, the form with our own gradient, and their inputs; the norm sums in `dtype`."""
    plain, own = getattr(kernels, name), functools.partial(getattr(kernels, name), training=True)
    if name != "layer_norm":
        return plain, own, [x]
    plain = lambda *inputs: kernels._plain_layer_norm(*inputs, 1e-12, dtype)  # noqa: E731
    own = lambda *inputs: kernels.layer_norm(*inputs, 1e-12, dtype=dtype, training=True)  # noqa: E731
    return plain, own, [x, drawn(WIDTH, seed=2, dtype=dtype), drawn(WIDTH, seed=3, dtype=dtype)]


def with_gradients(function, inputs, upstream):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        made = function(*inputs)
    return made, *tape.gradient(made, inputs, tf.cast(upstream, made.dtype))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf", "layer_norm"])
def test_gradients_equal_those_of_the_plain_operations(name, dtype, traced):
    plain, own, inputs = forms(name, drawn(2, 5, WIDTH, dtype=dtype, scale=3), dtype)
    upstream = drawn(2, 5, WIDTH, seed=1)
    call = tf.function(with_gradients, autograph=False) if traced else with_gradients
    found, expected = (call(one, inputs, upstream) for one in (own, plain))
    for ours, reference in zip(found, expected, strict=True):
        assert ours.shape == reference.shape and ours.dtype == reference.dtype
        bound = (2e-6 if dtype == "float32" else 1e-14) * np.abs(array(reference)).max()
        np.testing.assert_allclose(array(ours), array(reference), atol=bound)


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf", "layer_norm"])
def test_in_bfloat16_only_the_results_of_a_gradient_are_rounded(name):
    x, upstream = drawn(64, WIDTH, dtype="bfloat16"), drawn(64, WIDTH, seed=1, dtype="bfloat16")
    plain, own, inputs = forms(name, x, "float32")
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
    config = parity.small(hidden_dropout=0.0, attention_dropout=0.0)
    features = parity.random_features(config, seed=5, batch=128, length=16)
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
    encoder = BertEncoder(parity.small(), outputs=[SEQUENCE_OUTPUT], dtype=policy)

    @tf.function(autograph=False)
    def ranks(features):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(features, training=True)[SEQUENCE_OUTPUT])
        made = tape.gradient(loss, encoder.trainable_variables)
        return [tf.constant(tf.convert_to_tensor(one).shape.rank or 0) for one in made]

    found = [int(one) for one in ranks(parity.random_features(parity.small(), seed=5, batch=2, length=4))]
    assert found == [len(one.shape) for one in encoder.trainable_variables]


def test_xla_compiles_the_gradients():
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
