"""The heads: shapes, float32 logits, what each reads, the tied table, dropout, and saving to `.keras`."""

import dataclasses
import inspect
import math

import keras
import numpy as np
import parity
import pytest
import tensorflow as tf
from keras import ops
from parity import array

import bert_keras
from bert_keras.config import BertConfig
from bert_keras.features import MASKED_LM_POSITIONS, POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import (
    ChoiceHead,
    ClassifierHead,
    ConcatClassifierHead,
    MaskedLMHead,
    NextSentenceHead,
    ReplacedTokenHead,
    SpanHead,
    TokenHead,
    concat_pool,
)
from bert_keras.model.layers import ACTIVATIONS
from bert_keras.optimization.objectives import LeftToRight, MaskedLM, ReplacedTokens, SentencePair
from bert_keras.optimization.schedules import SCHEDULES

CONFIG = parity.GOLDEN_CONFIG  # V 67, H 32
RNG = np.random.default_rng(0)
POOLED = RNG.normal(size=(6, 32)).astype("float32")  # [B, H]
SEQUENCE = RNG.normal(size=(2, 7, 32)).astype("float32")  # [B, S, H]
MASK = np.array([[1, 1, 1, 1, 0, 0, 0], [1] * 7], "int32")  # [B, S]
POSITIONS = np.array([[5, 0, 6], [1, 1, 0]], "int32")  # [B, P]


def lively(head):
    """The head with weights large enough for every term to matter."""
    for variable in head.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, stddev=0.3) + variable.path.endswith("gamma"))
    return head


def dense(layer, x):
    return x @ array(layer.kernel) + array(layer.bias)


def masked_lm(*, config, dtype):
    return MaskedLMHead(BertEncoder(config, dtype=dtype), dtype=dtype)


# head, its first arguments, its inputs, the shapes that come out
CASES = [
    (masked_lm, (), (SEQUENCE, POSITIONS), [(2, 3, 67)]),
    (NextSentenceHead, (), (POOLED,), [(6, 2)]),
    (ClassifierHead, (3,), (POOLED,), [(6, 3)]),
    (ClassifierHead, (1,), (POOLED,), [(6, 1)]),
    (ConcatClassifierHead, (3,), (SEQUENCE, MASK), [(2, 3)]),
    (ChoiceHead, (3,), (POOLED,), [(2, 3)]),
    (SpanHead, (), (SEQUENCE,), [(2, 7), (2, 7)]),
    (TokenHead, (9,), (SEQUENCE,), [(2, 7, 9)]),
    (ReplacedTokenHead, (), (SEQUENCE,), [(2, 7)]),
]
with_cases = pytest.mark.parametrize(
    ("kind", "arguments", "inputs", "shapes"), CASES, ids=[f"{case[0].__name__}{case[1]}" for case in CASES]
)


@with_cases
@pytest.mark.parametrize(
    ("policy", "expected"), [("float32", "float32"), ("mixed_bfloat16", "float32"), ("float64", "float64")]
)
def test_shape_and_dtype_of_the_logits(kind, arguments, inputs, shapes, policy, expected):
    inputs = [ops.cast(x, "bfloat16") if x.dtype == "float32" and "bfloat16" in policy else x for x in inputs]
    logits = tf.nest.flatten(kind(*arguments, config=CONFIG, dtype=policy)(*inputs))
    assert [tuple(one.shape) for one in logits] == shapes
    assert {keras.backend.standardize_dtype(one.dtype) for one in logits} == {expected}


@with_cases
def test_symbolic_shapes(kind, arguments, inputs, shapes):
    of_ndim = {("float32", 2): (32,), ("float32", 3): (None, 32), ("int32", 2): (None,)}
    symbols = [keras.Input(of_ndim[x.dtype.name, x.ndim], dtype=x.dtype.name) for x in inputs]
    model = keras.Model(symbols, kind(*arguments, config=CONFIG, dtype="float32")(*symbols))
    assert [tuple(one.shape) for one in tf.nest.flatten(model(list(inputs)))] == shapes


# --- Masked LM ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("embedding_size", [None, 8])
def test_masked_lm_is_dense_activation_norm_and_the_table(activation, embedding_size):
    """Computed here with numpy at every position, then compared at the masked positions."""
    config = dataclasses.replace(CONFIG, activation=activation, embedding_size=embedding_size)
    encoder = lively(BertEncoder(config))
    head = lively(MaskedLMHead(encoder))
    x = array(ACTIVATIONS[activation](dense(head.dense, SEQUENCE)))
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    x = x * array(head.norm.gamma) + array(head.norm.beta)
    everywhere = x @ array(encoder.embedding_table).T + array(head.bias)
    expected = np.stack([row[positions] for row, positions in zip(everywhere, POSITIONS, strict=True)])
    np.testing.assert_allclose(array(head(SEQUENCE, POSITIONS)), expected, atol=1e-4)


def test_masked_lm_runs_only_masked_positions_through_the_vocabulary():
    head = MaskedLMHead(BertEncoder(CONFIG))
    graph = tf.function(lambda: head(SEQUENCE, POSITIONS)).get_concrete_function().graph
    products = [tuple(op.outputs[0].shape) for op in graph.get_operations() if op.type == "MatMul"]
    assert products == [(2 * 3, 32), (2 * 3, 67)]


def test_masked_lm_is_tied_to_the_table():
    encoder = BertEncoder(CONFIG)
    head = lively(MaskedLMHead(encoder))
    before = array(head(SEQUENCE, POSITIONS))
    table = array(encoder.embedding_table).copy()
    table[11] += 1.0
    encoder.embedding_table.assign(table)
    moved = np.abs(array(head(SEQUENCE, POSITIONS)) - before).max(axis=(0, 1))
    assert moved[11] > 0.1 and not np.delete(moved, 11).any()


def pretraining_model(encoder):
    positions = keras.Input((None,), dtype="int32", name=MASKED_LM_POSITIONS)
    inputs = encoder_inputs() | {MASKED_LM_POSITIONS: positions}
    outputs = encoder({name: inputs[name] for name in encoder_inputs()})
    mlm = MaskedLMHead(encoder)(outputs[SEQUENCE_OUTPUT], positions)
    return keras.Model(inputs, [mlm, NextSentenceHead(config=encoder.config)(outputs[POOLED_OUTPUT])])


def test_the_table_is_counted_and_trained_once():
    encoder = BertEncoder(BertConfig.named("tiny"))
    model = pretraining_model(encoder)
    assert model.count_params() == 4_433_468
    tables = [v for v in model.trainable_variables if tuple(v.shape) == (30522, 128)]
    assert len(tables) == 1 and tables[0] is encoder.embedding_table


def test_the_masked_lm_loss_reaches_the_table_twice():
    """As an input of the encoder and as the output layer: a word only predicted gets a gradient too."""
    encoder = BertEncoder(CONFIG)
    model = pretraining_model(encoder)
    features = parity.random_features(CONFIG, seed=1, batch=2, length=7) | {MASKED_LM_POSITIONS: POSITIONS}
    features["input_word_ids"] = features["input_word_ids"] % 50
    with tf.GradientTape() as tape:
        logits, _ = model(features, training=False)
        loss = -tf.reduce_sum(tf.nn.log_softmax(logits)[..., 60])
    gradient = tf.convert_to_tensor(tape.gradient(loss, encoder.embedding_table.value))
    rows = np.abs(array(gradient)).max(axis=1)
    assert rows[60] > rows[61:].max() > 0  # the asked word more than the others
    read = np.unique(features["input_word_ids"])
    assert rows[read].min() > 0


# --- The dense heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "inputs", "expected"),
    [
        (NextSentenceHead(config=CONFIG), POOLED, lambda logits: logits),
        (ClassifierHead(3, config=CONFIG), POOLED, lambda logits: logits),
        (TokenHead(9, config=CONFIG), SEQUENCE, lambda logits: logits),
        # Rows: example 0 choices 0 1 2, example 1 choices 0 1 2.
        (ChoiceHead(3, config=CONFIG), POOLED, lambda logits: [logits[:3, 0], logits[3:, 0]]),
        (SpanHead(config=CONFIG), SEQUENCE, lambda logits: (logits[..., 0], logits[..., 1])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_head_is_one_dense_layer(head, inputs, expected):
    lively(head)
    found = array(ops.stack(head(inputs)) if isinstance(head, SpanHead) else head(inputs))
    np.testing.assert_allclose(found, expected(dense(head.dense, inputs)), atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_concat_pooling_by_hand(causal):
    """Padding holds 9, which would be every maximum and move every mean."""
    sequence = np.float32([[[1, -5], [3, -2], [9, 9]], [[-1, 0], [-2, 1], [-6, 2]]])
    mask = np.int32([[1, 1, 0], [1, 1, 1]])
    pooled = array(concat_pool(ops.convert_to_tensor(sequence), ops.convert_to_tensor(mask), causal=causal))
    #            at the position            maximum   mean
    first, last = ([1, -5], [-1, 0]), ([3, -2], [-6, 2])
    rows = [
        [*(last if causal else first)[0], 3, -2, 2, -3.5],
        [*(last if causal else first)[1], -1, 2, -3, 1],
    ]
    np.testing.assert_allclose(pooled, rows, atol=1e-6)


def test_concat_classifier_is_one_dense_layer_on_it():
    head = lively(ConcatClassifierHead(3, config=CONFIG))
    assert head.dense.kernel.shape == (96, 3)
    pooled = array(concat_pool(ops.convert_to_tensor(SEQUENCE), ops.convert_to_tensor(MASK)))
    np.testing.assert_allclose(array(head(SEQUENCE, MASK)), dense(head.dense, pooled), atol=1e-5)


def test_replaced_token_head_is_dense_activation_dense():
    head = lively(ReplacedTokenHead(config=dataclasses.replace(CONFIG, activation="gelu_erf")))
    x = SEQUENCE @ array(head.dense.kernel) + array(head.dense.bias)
    x = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    np.testing.assert_allclose(array(head(SEQUENCE)), dense(head.prediction, x)[..., 0], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "count", "message"),
    [
        (ClassifierHead, 0, "num_classes is 0; a classifier has at least 1 class"),
        (ConcatClassifierHead, 0, "num_classes is 0; a classifier has at least 1"),
        (ChoiceHead, 1, "num_choices is 1; a choice is between at least 2"),
        (TokenHead, 1, "num_classes is 1; tokens are told apart by at least 2"),
    ],
)
def test_too_few_classes_are_an_error(kind, count, message):
    with pytest.raises(ValueError, match=message):
        kind(count, config=CONFIG)


# --- Dropout ------------------------------------------------------------------------------------------------

ONES = np.ones((2000, 4, 32), "float32")

DROPPED = {"hidden_dropout": 0.1, "attention_dropout": 0.7}


@pytest.mark.parametrize(
    ("kind", "arguments", "classifier_dropout", "rate"),
    [
        (ClassifierHead, (2,), None, 0.1),
        (ClassifierHead, (2,), 0.4, 0.4),
        (TokenHead, (2,), None, 0.1),
        (TokenHead, (2,), 0.4, 0.4),
        (ChoiceHead, (2,), 0.4, 0.4),
        (NextSentenceHead, (), 0.4, 0.0),
        (SpanHead, (), 0.4, 0.0),
        (ReplacedTokenHead, (), 0.4, 0.0),
    ],
)
def test_dropout_rate_before_the_dense_layer(kind, arguments, classifier_dropout, rate):
    """Each kernel reads one input, which is 1: dropped, the logit is 0; kept, it is 1 / (1 - rate)."""
    rates = DROPPED | {"classifier_dropout": classifier_dropout}
    head = kind(*arguments, config=dataclasses.replace(CONFIG, activation="linear", **rates))
    for variable in head.trainable_variables:
        if variable.ndim == 2:
            variable.assign(np.eye(*variable.shape))
    training = {} if isinstance(head, ReplacedTokenHead) else {"training": True}
    inputs = ONES if isinstance(head, (TokenHead, SpanHead, ReplacedTokenHead)) else ONES.reshape(-1, 32)
    logits = array(tf.nest.flatten(head(inputs, **training))[0])
    assert abs((logits == 0).mean() - rate) <= 5 * math.sqrt(rate * (1 - rate) / logits.size)
    np.testing.assert_allclose(logits[logits != 0], 1 / (1 - rate), rtol=1e-5)
    np.testing.assert_allclose(array(tf.nest.flatten(head(inputs))[0]), 1.0, rtol=1e-5)


# --- Saving -------------------------------------------------------------------------------------------------

REBUILT = [
    ClassifierHead(3, config=CONFIG, name="mine", dtype="mixed_bfloat16"),
    ConcatClassifierHead(2, config=CONFIG, name="mine"),
    ChoiceHead(4, config=CONFIG),
    TokenHead(9, config=CONFIG),
    SpanHead(config=CONFIG),
    NextSentenceHead(config=CONFIG),
    ReplacedTokenHead(config=CONFIG),
]


@pytest.mark.parametrize(
    "of_one_kind",
    [
        [MaskedLMHead, *{type(head) for head in REBUILT}],
        SCHEDULES.values(),
        [MaskedLM, LeftToRight, SentencePair, ReplacedTokens],
    ],
    ids=["heads", "schedules", "objectives"],
)
def test_the_package_has_all_of_a_kind(of_one_kind):
    for member in of_one_kind:
        assert getattr(bert_keras, member.__name__) is member


@pytest.mark.parametrize("head", REBUILT, ids=lambda head: type(head).__name__)
def test_head_comes_back_from_its_config(head):
    # Not of the class: Python 3.11.2 reads its __new__.
    parameter = inspect.signature(type(head).__init__).parameters["config"]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    again = type(head).from_config(head.get_config())
    assert again.get_config() == head.get_config()
    assert [v.path for v in again.trainable_variables] == [v.path for v in head.trainable_variables]
    assert [v.shape for v in again.trainable_variables] == [v.shape for v in head.trainable_variables]
    head.trainable = False
    assert not type(head).from_config(head.get_config()).trainable_variables
    head.trainable = True


# Keras' own save calls numpy on its variables, which numpy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    ("output", "head"),
    [
        (POOLED_OUTPUT, ClassifierHead(3, config=CONFIG)),
        (POOLED_OUTPUT, ChoiceHead(2, config=CONFIG)),
        (SEQUENCE_OUTPUT, TokenHead(5, config=CONFIG)),
        (SEQUENCE_OUTPUT, SpanHead(config=CONFIG)),
    ],
    ids=["classifier", "choice", "token", "span"],
)
def test_a_functional_model_saves_and_loads(output, head, tmp_path):
    encoder = BertEncoder(dataclasses.replace(CONFIG, embedding_size=8), outputs=[output])
    model = keras.Model(inputs := encoder_inputs(), head(encoder(inputs)[output]))
    lively(model)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    features = parity.random_features(CONFIG, seed=1, batch=4, length=7)
    for a, b in zip(tf.nest.flatten(model(features)), tf.nest.flatten(again(features)), strict=True):
        np.testing.assert_array_equal(array(a), array(b))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_masked_lm_saves_with_its_encoder_and_not_without(tmp_path):
    encoder = BertEncoder(dataclasses.replace(CONFIG, embedding_size=8), outputs=[SEQUENCE_OUTPUT])
    inputs, positions = encoder_inputs(), keras.Input((None,), dtype="int32", name="positions")
    head = MaskedLMHead(encoder, name="mine")
    model = keras.Model(inputs | {"positions": positions}, head(encoder(inputs)[SEQUENCE_OUTPUT], positions))
    lively(model)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    features = parity.random_features(CONFIG, seed=1, batch=2, length=7)
    features["positions"] = np.array([[1, 2], [0, 6]], "int32")
    np.testing.assert_array_equal(array(model(features)), array(again(features)))
    table = again.get_layer("bert_encoder").embedding_table
    table.assign(table + 1.0)  # still the head's
    assert np.abs(array(model(features)) - array(again(features))).max() > 0.1
    assert len(again.variables) == len(model.variables)
    for rebuild in (
        lambda: MaskedLMHead.from_config(head.get_config()),
        lambda: keras.models.clone_model(model),
    ):
        with pytest.raises(ValueError, match="a MaskedLMHead without its encoder: .* make MaskedLMHead"):
            rebuild()


def test_a_row_without_tokens_has_finite_numbers():
    pooled = concat_pool(SEQUENCE, np.array([[0] * 7, [1] * 7], "int32"))
    assert np.isfinite(array(pooled)).all() and not array(pooled)[0, 32:].any()
