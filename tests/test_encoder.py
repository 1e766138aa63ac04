"""The encoder: equal to others, BERT's numbers, exact sizes, and what each configuration field does."""

import math
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from parity import EVERY_OUTPUT, array, pooled, random_features, small

from bert_keras.config import BertConfig
from bert_keras.features import (
    ATTENTION_PROBABILITIES,
    EMBEDDING_OUTPUT,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import BertEncoder, encoder_inputs, gather_positions, pooled_position
from bert_keras.model.heads import ClassifierHead, MaskedLMHead, NextSentenceHead
from bert_keras.model.layers import ACTIVATIONS, Block, Dense, LayerNorm


def lively(config, **arguments):
    """An encoder whose weights are large enough for every term to matter."""
    encoder = BertEncoder(config, **arguments)
    for variable in encoder.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, stddev=0.3) + (variable.path.endswith("gamma")))
    return encoder


def features(batch=2, length=7):
    return random_features(small(), seed=5, batch=batch, length=length)


def unmasked(batch=2, length=7):
    return features(batch, length) | {INPUT_MASK: np.ones((batch, length), "int32")}


def with_another_token(given, position):
    """In every row, another word id at a position."""
    ids = given[INPUT_WORD_IDS].copy()
    ids[:, position] = 66 - ids[:, position]
    return given | {INPUT_WORD_IDS: ids}


def assert_same(found, expected, atol=1e-6):
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(array(one), array(other), atol=atol)


def same_weights(encoder, config, **arguments):
    other = BertEncoder(config, **arguments)
    other.set_weights(encoder.get_weights())
    return other


# --- The numbers that define BERT ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("gelu_erf", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
        ("relu", lambda x: max(x, 0.0)),
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("tanh", math.tanh),
        ("linear", lambda x: x),
    ],
)
def test_activations_in_float64(activation, formula):
    points = np.linspace(-6, 6, 101)
    expected = [formula(x) for x in points]
    np.testing.assert_allclose(
        array(ACTIVATIONS[activation](ops.convert_to_tensor(points))), expected, atol=1e-14
    )


def test_norm_epsilon_is_1e_12():
    """If the variance is 1e-12, the output is 1 / sqrt(2); epsilon 1e-5 would leave 0.0003."""
    norm = LayerNorm(config=small(), name="norm")
    norm.build((None, 4))
    x = np.array([[1e-6, -1e-6, 1e-6, -1e-6]], "float32")
    np.testing.assert_allclose(array(norm(x)), [[0.7071, -0.7071, 0.7071, -0.7071]], atol=1e-4)


def test_norm_divides_the_variance_by_the_width():
    norm = LayerNorm(config=small(), name="norm")
    norm.build((None, 4))
    norm.gamma.assign([1.0, 1.0, 2.0, 2.0])
    norm.beta.assign([0.0, 1.0, 0.0, 1.0])
    # mean 3, biased variance 5
    normed = array(norm(np.array([[0.0, 2.0, 4.0, 6.0]])))[0]
    np.testing.assert_allclose(normed * 5**0.5, [-3, -1 + 5**0.5, 2, 6 + 5**0.5], atol=1e-5)


def test_every_norm_has_the_configured_epsilon():
    encoder = BertEncoder(small(norm_epsilon=1e-5))
    layers = [*encoder._flatten_layers(), *MaskedLMHead(encoder)._flatten_layers()]
    assert [one.epsilon for one in layers if isinstance(one, LayerNorm)] == [1e-5] * (1 + 2 * 2 + 1)


def test_initial_values():
    """Kernels and tables: normal of 0.02 cut at two deviations, 0.8796 x 0.02 wide; norms 1, the rest 0."""
    encoder = BertEncoder(BertConfig.named("tiny", vocab_size=2000))
    heads = (
        MaskedLMHead(encoder),
        NextSentenceHead(config=encoder.config),
        ClassifierHead(300, config=encoder.config),
    )
    for variable in [v for layer in (encoder, *heads) for v in layer.trainable_variables]:
        value, kind = array(variable), variable.path.split("/")[-1]
        if kind in ("bias", "beta"):
            assert not value.any(), variable.path
        elif kind == "gamma":
            assert (value == 1).all(), variable.path
        else:
            assert np.abs(value).max() <= 0.04 + 1e-7, variable.path
            error = 0.0176 / math.sqrt(2 * value.size)
            assert abs(value.std() - 0.8796 * 0.02) < 6 * error, variable.path
            assert abs(value.mean()) < 6 * 0.0176 / math.sqrt(value.size), variable.path


def test_initializer_range():
    table = array(BertEncoder(small(initializer_range=0.5)).embedding_table)
    assert 0.7 < np.abs(table).max() <= 1.0


def test_initial_values_follow_the_seed_and_never_repeat():
    def kernels():
        keras.utils.set_random_seed(7)
        encoder = BertEncoder(small())
        layers = (encoder, NextSentenceHead(config=encoder.config), ClassifierHead(2, config=encoder.config))
        return [array(v) for layer in layers for v in layer.trainable_variables if v.ndim == 2]

    first, second = kernels(), kernels()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len({kernel.ravel()[:8].tobytes() for kernel in first}) == len(first)


def test_attention_probabilities_are_softmax_of_scaled_products():
    """softmax(q k' / sqrt(H/A) + mask), computed here with numpy."""
    encoder = lively(small(num_layers=1), outputs=EVERY_OUTPUT)
    given = features()
    outputs = encoder(given)
    attention, states = encoder.blocks[0].attention, array(outputs[EMBEDDING_OUTPUT]).astype("float64")
    query, key = (
        (states @ array(dense.kernel) + array(dense.bias)).reshape(2, 7, 4, 8).transpose(0, 2, 1, 3)
        for dense in (attention.query, attention.key)
    )
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(8)
    seen = np.exp(scores) * given[INPUT_MASK][:, None, None, :]
    expected = seen / seen.sum(-1, keepdims=True)
    probabilities = array(outputs[ATTENTION_PROBABILITIES][0])
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert (probabilities[expected == 0] == 0).all()


def test_pooled_output_is_tanh_of_a_dense_layer_on_the_first_position():
    encoder = lively(small())
    outputs = encoder(features())
    first = array(outputs[SEQUENCE_OUTPUT])[:, 0]
    expected = np.tanh(first @ array(encoder.pooler.kernel) + array(encoder.pooler.bias))
    np.testing.assert_allclose(array(outputs[POOLED_OUTPUT]), expected, atol=1e-5)


# --- Number types -------------------------------------------------------------------------------------------


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32_variables():
    encoder = BertEncoder(small(), outputs=EVERY_OUTPUT, dtype="mixed_bfloat16")
    outputs = encoder(features())
    assert {keras.backend.standardize_dtype(one.dtype) for one in tf.nest.flatten(outputs)} == {"bfloat16"}
    assert {v.dtype for v in encoder.trainable_variables} == {"float32"}


# --- Outputs ------------------------------------------------------------------------------------------------


def test_output_shapes():
    config = small(num_layers=3)
    outputs = BertEncoder(config, outputs=EVERY_OUTPUT)(random_features(config, seed=5, batch=2, length=7))
    shapes = {
        k: [tuple(one.shape) for one in v] if isinstance(v, list) else tuple(v.shape)
        for k, v in outputs.items()
    }
    assert shapes == {
        SEQUENCE_OUTPUT: (2, 7, 32),
        POOLED_OUTPUT: (2, 32),
        ENCODER_OUTPUTS: [(2, 7, 32)] * 3,
        EMBEDDING_OUTPUT: (2, 7, 32),
        ATTENTION_PROBABILITIES: [(2, 4, 7, 7)] * 3,
    }
    np.testing.assert_array_equal(array(outputs[ENCODER_OUTPUTS][-1]), array(outputs[SEQUENCE_OUTPUT]))
    assert {*EVERY_OUTPUT} - {*BertEncoder(config).outputs_wanted} == {ATTENTION_PROBABILITIES}


@pytest.mark.parametrize("name", EVERY_OUTPUT)
def test_one_output_alone_equals_the_same_among_all(name):
    whole = lively(small(), outputs=EVERY_OUTPUT)
    given = features()
    alone, among = same_weights(whole, small(), outputs=[name])(given), whole(given)
    assert list(alone) == [name]
    assert_same(alone[name], among[name])


@pytest.mark.parametrize("outputs", [["pooled"], [], [POOLED_OUTPUT, "logits"]])
def test_unknown_outputs_are_an_error(outputs):
    with pytest.raises(ValueError, match="wanted one or more of sequence_output, pooled_output"):
        BertEncoder(small(), outputs=outputs)


@pytest.mark.parametrize(
    ("outputs", "kept"),
    [
        ((POOLED_OUTPUT,), ()),
        ((SEQUENCE_OUTPUT, POOLED_OUTPUT, EMBEDDING_OUTPUT), ()),
        ((SEQUENCE_OUTPUT, ENCODER_OUTPUTS), "states"),
        ((ATTENTION_PROBABILITIES,), "probabilities"),
    ],
)
@pytest.mark.parametrize("changes", [{}, {"share_layers": True}])
def test_an_eager_pass_keeps_only_what_was_asked_for(monkeypatch, changes, outputs, kept):
    """When a block begins, all that is left of those before it is the states that it reads."""
    made, alive, run = {"states": [], "probabilities": []}, [], Block.__call__

    def spy(block, queries, states, scores_mask, **how):
        alive.append({name: sum(ref() is not None for ref in refs) for name, refs in made.items()})
        states, probabilities = run(block, queries, states, scores_mask, **how)
        made["states"].append(weakref.ref(states))
        made["probabilities"].append(weakref.ref(probabilities))
        return states, probabilities

    monkeypatch.setattr(Block, "__call__", spy)
    encoder = BertEncoder(small(num_layers=4, **changes), outputs=outputs)
    encoder(random_features(small(), seed=0, batch=2, length=8))
    assert alive == [
        {"states": i if kept == "states" else min(i, 1), "probabilities": i if kept == "probabilities" else 0}
        for i in range(4)
    ]


def matrix_product_sizes(encoder, *, batch, length):
    """Multiplications in the traced graph's matrix products, and the kinds of product that it holds."""
    spec = {name: tf.TensorSpec((batch, length), tf.int32) for name in ENCODER_INPUTS}
    graph = tf.function(lambda features: encoder(features)).get_concrete_function(spec).graph
    kinds = ("MatMul", "BatchMatMulV2", "Einsum")
    # An Einsum of one operand only moves axes.
    products = [op for op in graph.get_operations() if op.type in kinds and len(op.inputs) == 2]
    sizes = [math.prod(op.outputs[0].shape) * op.inputs[0].shape[-1] for op in products]
    return sum(sizes), {op.type: len(op.outputs[0].shape) for op in products}


@pytest.mark.parametrize("causal", [False, True])
def test_pooled_output_alone_runs_the_last_block_for_one_position(causal):
    config, b, s, h, i = small(num_layers=3, causal=causal), 2, 11, 32, 64
    full_block = 4 * b * s * h * h + 2 * b * s * h * i + 2 * b * s * s * h
    last_block = (2 * b * s + 2 * b) * h * h + 2 * b * h * i + 2 * b * s * h
    for outputs, blocks in (([POOLED_OUTPUT], 2 * full_block + last_block), (EVERY_OUTPUT, 3 * full_block)):
        size, kinds = matrix_product_sizes(BertEncoder(config, outputs=outputs), batch=b, length=s)
        assert size == blocks + b * h * h
        # Projections on [B*S, H]; only the two products inside attention have a batch.
        assert kinds == {"MatMul": 2, "BatchMatMulV2": 4}


@pytest.mark.parametrize(
    "changes",
    [{}, {"causal": True}, {"share_layers": True}, {"num_layers": 1, "causal": True}, {"bilstm": True}],
)
def test_pooled_output_alone_equals_the_full_computation(changes):
    whole = lively(small(**changes))
    alone = same_weights(whole, small(**changes), outputs=[POOLED_OUTPUT])
    given = features(batch=6, length=9)
    np.testing.assert_allclose(pooled(alone, given), pooled(whole, given), atol=2e-6)


def test_gather_positions():
    states = np.arange(2 * 3 * 2, dtype="float32").reshape(2, 3, 2)
    #                                   row 0: positions 2, 0          row 1: positions 1, 1
    expected = [[[4, 5], [0, 1]], [[8, 9], [8, 9]]]
    np.testing.assert_array_equal(
        array(gather_positions(states, np.array([[2, 0], [1, 1]], "int32"))), expected
    )


# --- Padding ------------------------------------------------------------------------------------------------


def padded(features, length):
    return {name: np.pad(value, ((0, 0), (0, length - value.shape[1]))) for name, value in features.items()}


@pytest.mark.parametrize("changes", [{}, {"causal": True}, {"bilstm": True}])
def test_padding_changes_no_real_position(changes):
    encoder = lively(small(**changes))
    given = unmasked()
    short, long = encoder(given), encoder(padded(given, 13))
    np.testing.assert_allclose(array(long[SEQUENCE_OUTPUT])[:, :7], array(short[SEQUENCE_OUTPUT]), atol=2e-6)
    np.testing.assert_allclose(array(long[POOLED_OUTPUT]), array(short[POOLED_OUTPUT]), atol=2e-6)


def test_token_ids_in_padding_change_no_real_position():
    encoder = lively(small())
    given = features(length=9)
    hidden = given[INPUT_MASK] == 0
    assert hidden.any()
    other = given | {
        INPUT_WORD_IDS: np.where(hidden, 66 - given[INPUT_WORD_IDS], given[INPUT_WORD_IDS]),
        INPUT_TYPE_IDS: np.where(hidden, 1 - given[INPUT_TYPE_IDS], given[INPUT_TYPE_IDS]),
    }
    a, b = (array(encoder(one)[SEQUENCE_OUTPUT]) for one in (given, other))
    np.testing.assert_array_equal(a[~hidden], b[~hidden])
    assert np.abs(a[hidden] - b[hidden]).max() > 0.1


# --- Causal attention ---------------------------------------------------------------------------------------


def test_pooled_position():
    mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0]], "int32")
    np.testing.assert_array_equal(array(pooled_position(mask, causal=False)), [0, 0, 0, 0])
    np.testing.assert_array_equal(array(pooled_position(mask, causal=True)), [2, 0, 3, 2])


@pytest.mark.parametrize("outputs", [EVERY_OUTPUT, [POOLED_OUTPUT]])
def test_causal_pooled_output_reads_the_text(outputs):
    encoder = lively(small(causal=True), outputs=outputs)
    given = padded(unmasked(batch=1, length=6), 9)
    before = pooled(encoder, given)
    for position in range(6):
        after = pooled(encoder, with_another_token(given, position))
        assert np.abs(after - before).max() > 1e-3, position


def test_causal_states_never_see_a_later_token():
    encoder = lively(small(causal=True), outputs=EVERY_OUTPUT)
    given = unmasked(length=8)
    before, after = encoder(given), encoder(with_another_token(given, 5))
    for a, b in zip(before[ENCODER_OUTPUTS], after[ENCODER_OUTPUTS], strict=True):
        moved = np.abs(array(a) - array(b)).max(axis=(0, 2))
        assert (moved[:5] == 0).all() and (moved[5:] > 1e-4).all()
    above = np.triu(np.ones((8, 8), bool), k=1)
    assert not array(before[ATTENTION_PROBABILITIES][0])[..., above].any()


def test_bidirectional_states_see_later_tokens():
    encoder = lively(small())
    given = unmasked(batch=1, length=8)
    after = pooled(encoder, with_another_token(given, 7))
    assert np.abs(pooled(encoder, given) - after).max() > 1e-3


# --- Shared layers, factorised embeddings, position offset --------------------------------------------------


def test_shared_layers_are_one_block_run_again():
    shared = lively(small(num_layers=3, share_layers=True))
    assert len(shared.trainable_variables) == len(BertEncoder(small(num_layers=1)).trainable_variables)
    stack = BertEncoder(small(num_layers=3))
    stack.embeddings.set_weights(shared.embeddings.get_weights())
    stack.pooler.set_weights(shared.pooler.get_weights())
    for block in stack.blocks:
        block.set_weights(shared.blocks[0].get_weights())
    given = features()
    assert_same(shared(given), stack(given))


def lstm(states, kernel, recurrent, bias):
    """Hochreiter and Schmidhuber 1997 with forget gates, on float [S, H]; gates in the order input, forget, cell, output."""
    units = recurrent.shape[0]
    hidden, cell, found = np.zeros(units), np.zeros(units), []
    for state in states:
        gates = np.split(state @ kernel + hidden @ recurrent + bias, 4)
        enter, forget, leave = (1 / (1 + np.exp(-gates[i])) for i in (0, 1, 3))
        cell = forget * cell + enter * np.tanh(gates[2])
        hidden = leave * np.tanh(cell)
        found.append(hidden)
    return np.array(found)


def test_bilstm_reads_the_real_positions_of_the_last_block_both_ways():
    encoder = lively(small(bilstm=True, causal=True))
    given = features(batch=1, length=9)
    given[INPUT_MASK] = np.array([[1] * 6 + [0] * 3], "int32")
    outputs = encoder(given)
    states = array(outputs[ENCODER_OUTPUTS][-1])[0, :6]
    forward, backward = (
        [array(one) for one in layer.weights]
        for layer in (encoder.bilstm.forward_layer, encoder.bilstm.backward_layer)
    )
    expected = np.concatenate([lstm(states, *forward), lstm(states[::-1], *backward)[::-1]], axis=-1)
    np.testing.assert_allclose(array(outputs[SEQUENCE_OUTPUT])[0, :6], expected, atol=1e-5)


def test_bilstm_has_half_the_width_for_each_direction():
    with pytest.raises(ValueError, match="hidden_size 33 .* even"):
        small(bilstm=True, hidden_size=33, num_heads=1)


def test_factorised_embeddings_are_normed_then_projected():
    encoder = lively(small(embedding_size=8))
    given = features(length=5)
    tables = encoder.embeddings
    summed = (
        array(tables.word_embeddings)[given[INPUT_WORD_IDS]]
        + array(tables.type_embeddings)[given[INPUT_TYPE_IDS]]
        + array(tables.position_embeddings)[:5]
    )
    normed = (summed - summed.mean(-1, keepdims=True)) / summed.std(-1, keepdims=True)
    normed = normed * array(tables.norm.gamma) + array(tables.norm.beta)
    expected = normed @ array(tables.projection.kernel) + array(tables.projection.bias)
    assert encoder.embedding_table.shape == (67, 8)
    np.testing.assert_allclose(array(encoder(given)[EMBEDDING_OUTPUT]), expected, atol=1e-5)


def test_position_offset_skips_the_first_rows():
    encoder = lively(small(position_offset=2))
    plain = same_weights(encoder, small())
    rows = array(encoder.embeddings.position_embeddings)
    plain.embeddings.position_embeddings.assign(np.roll(rows, -2, axis=0))
    given = features(length=14)
    np.testing.assert_array_equal(pooled(encoder, given), pooled(plain, given))


# --- Length -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "longest"), [({}, 16), ({"position_offset": 2}, 14)])
def test_a_sequence_longer_than_the_positions_is_an_error(changes, longest):
    encoder = BertEncoder(small(**changes))
    assert pooled(encoder, random_features(small(), seed=1, batch=1, length=longest)).shape == (1, 32)
    message = f"a sequence of {longest + 1} tokens was given; this encoder has {longest} positions"
    with pytest.raises(ValueError, match=message):
        encoder(random_features(small(), seed=1, batch=1, length=longest + 1))
    with pytest.raises(ValueError, match=message):
        encoder(encoder_inputs(seq_length=longest + 1))


@pytest.mark.parametrize(("changes", "longest"), [({}, 16), ({"position_offset": 2}, 14)])
def test_a_length_known_only_at_run_time_reads_no_wrong_rows(changes, longest):
    encoder = BertEncoder(small(**changes), outputs=[POOLED_OUTPUT])
    run = tf.function(
        lambda features: encoder(features),
        input_signature=[{name: tf.TensorSpec((None, None), tf.int32) for name in ENCODER_INPUTS}],
    )

    def tensors(length):
        return {
            k: tf.constant(v) for k, v in random_features(small(), seed=1, batch=1, length=length).items()
        }

    assert run(tensors(longest))[POOLED_OUTPUT].shape == (1, 32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)Expected size.*{longest + 1}"):
        run(tensors(longest + 1))


@pytest.mark.parametrize("outputs", [EVERY_OUTPUT, [POOLED_OUTPUT]])
def test_symbolic_inputs_of_unknown_length(outputs):
    encoder = lively(small(), outputs=outputs)
    model = keras.Model(inputs := encoder_inputs(), symbolic := encoder(inputs))
    assert symbolic[POOLED_OUTPUT].shape == (None, 32)
    if SEQUENCE_OUTPUT in symbolic:
        assert symbolic[SEQUENCE_OUTPUT].shape == (None, None, 32)
        assert [one.shape for one in symbolic[ATTENTION_PROBABILITIES]] == [(None, 4, None, None)] * 2
    for length in (3, 9):
        given = features(length=length)
        called, direct = model(given), encoder(given)
        assert list(called) == list(direct)
        assert_same(called, direct)


def test_symbolic_shapes_and_dtypes_are_those_of_the_call():
    encoder = BertEncoder(small(causal=True), outputs=EVERY_OUTPUT, dtype="mixed_bfloat16")
    symbolic = encoder(encoder_inputs(seq_length=5))
    real = encoder(features(length=5))
    for a, b in zip(tf.nest.flatten(symbolic), tf.nest.flatten(real), strict=True):
        assert a.shape[1:] == tuple(b.shape)[1:] and a.dtype == keras.backend.standardize_dtype(b.dtype)


# --- Configuration and saving -------------------------------------------------------------------------------


def test_encoder_comes_back_from_its_config():
    config = small(causal=True, embedding_size=8)
    encoder = BertEncoder(config, outputs=[POOLED_OUTPUT], name="mine", dtype="mixed_bfloat16")
    again = BertEncoder.from_config(encoder.get_config())
    assert again.config == encoder.config and again.name == "mine"
    assert again.outputs_wanted == (POOLED_OUTPUT,) and again.dtype_policy == encoder.dtype_policy
    assert [v.path for v in again.trainable_variables] == [v.path for v in encoder.trainable_variables]


def test_dense_keeps_the_leading_axes():
    dense = Dense(3, config=small(), name="dense")
    dense.build((None, 4))
    dense.bias.assign([0.0, 1.0, 2.0])
    for shape in ((5, 4), (2, 5, 4), (2, 3, 5, 4)):
        x = np.random.default_rng(0).normal(size=shape).astype("float32")
        np.testing.assert_allclose(array(dense(x)), x @ array(dense.kernel) + [0, 1, 2], atol=1e-6)


def test_an_encoder_that_computes_no_pooled_output_does_not_train_its_pooler(recwarn):
    encoder = BertEncoder(small(), outputs=[SEQUENCE_OUTPUT])
    model = keras.Model(inputs := encoder_inputs(), encoder(inputs)[SEQUENCE_OUTPUT][:, 0])
    model.compile("sgd", "mse")
    model.fit(features(), np.zeros((2, 32)), verbose=0)
    assert not [str(caught.message) for caught in recwarn if "Gradients do not exist" in str(caught.message)]
    assert encoder.pooler.trainable_variables == [] and BertEncoder(small()).pooler.trainable


@pytest.mark.parametrize("frozen", ["", "block_0", "embeddings/layer_norm"])
def test_frozen_layers_stay_frozen_in_a_config(frozen):
    encoder = BertEncoder(small(), name="mine")
    layer = next(one for one in encoder._flatten_layers() if one.path == f"mine/{frozen}".rstrip("/"))
    layer.trainable = False
    again = BertEncoder.from_config(encoder.get_config())
    trained = [variable.path for variable in again.trainable_variables]
    assert trained == [variable.path for variable in encoder.trainable_variables]
    assert len(trained) < len(again.variables)
    assert again.get_config() == encoder.get_config()


def test_a_mask_of_booleans_is_one_of_numbers():
    encoder, given = BertEncoder(small(causal=True)), features()
    assert_same(encoder(given | {INPUT_MASK: given[INPUT_MASK] > 0}), encoder(given), atol=0)
