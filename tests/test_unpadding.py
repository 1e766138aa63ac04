"""An encoder without the rows of padding gives what it gives with them."""

import keras
import numpy as np
import parity
import pytest
import tensorflow as tf
from runs import texts, write_checkpoint

import bert_keras as bk
from bert_keras.features import (
    ATTENTION_PROBABILITIES,
    EMBEDDING_OUTPUT,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import ALL, BertEncoder

pytestmark = pytest.mark.long

CONFIG = parity.GOLDEN_CONFIG
MASKS = {
    "lengths": [[1] * 7, [1] * 2 + [0] * 5, [1] * 4 + [0] * 3],
    "no padding": [[1] * 5, [1] * 5],
    "a hole, padding on the left, and an empty row": [[1, 1, 0, 1, 0], [0, 0, 1, 1, 1], [0] * 5],
    "empty rows alone": [[0] * 3, [0] * 3],
}


def encoders(config, **arguments):
    """Two encoders with equal weights; the second leaves out padding."""
    made = []
    for unpadded in (False, True):
        keras.utils.set_random_seed(3)
        encoder = BertEncoder(config, **arguments)
        encoder.unpadded = unpadded
        made.append(encoder)
    draw = np.random.default_rng(0)
    for one, other in zip(*(encoder.variables for encoder in made), strict=True):
        if one.dtype == "float32":
            one.assign(draw.normal(size=one.shape) * 0.2)
            other.assign(one)
    return made


def features(mask):
    mask = np.array(mask, "int32")
    draw = np.random.default_rng(1)
    ids = draw.integers(1, CONFIG.vocab_size, mask.shape).astype("int32")
    return dict(zip(ENCODER_INPUTS, map(tf.constant, (ids, mask, (ids % 2).astype("int32"))), strict=True))


@pytest.mark.parametrize("mask", MASKS.values(), ids=[*MASKS])
@pytest.mark.parametrize(
    "changes",
    [{}, {"causal": True}, {"bilstm": True}, {"share_layers": True, "embedding_size": 8}],
    ids=["bert", "left to right", "with a BiLSTM", "ALBERT's sizes"],
)
def test_outputs_are_those_with_padding(mask, changes):
    config = parity.small(**changes)
    given, real = features(mask), np.array(mask) > 0
    rows = real[:, 0] | (not config.bilstm)  # a BiLSTM does not read padding
    if not config.bilstm:
        real |= ~real.any(axis=1, keepdims=True)
        real[:, 0] |= not config.causal  # the pooler reads it
    plain, unpadded = (
        keras.tree.map_structure(np.asarray, encoder(given))
        for encoder in encoders(config, outputs=parity.EVERY_OUTPUT)
    )
    if not config.bilstm:
        assert not unpadded[SEQUENCE_OUTPUT][:, 1:][~real[:, 1:]].any()
    np.testing.assert_array_equal(unpadded[EMBEDDING_OUTPUT], plain[EMBEDDING_OUTPUT])
    np.testing.assert_allclose(unpadded[POOLED_OUTPUT][rows], plain[POOLED_OUTPUT][rows], atol=2e-6)
    for made in (plain, unpadded):  # [B, Q, A, S]
        made[ATTENTION_PROBABILITIES] = [one.transpose(0, 2, 1, 3) for one in made[ATTENTION_PROBABILITIES]]
    for name in (SEQUENCE_OUTPUT, ENCODER_OUTPUTS, ATTENTION_PROBABILITIES):
        for one, other in zip(
            keras.tree.flatten(plain[name]), keras.tree.flatten(unpadded[name]), strict=True
        ):
            np.testing.assert_allclose(other[real], one[real], atol=2e-6, err_msg=name)


@pytest.mark.parametrize("outputs", [ALL, (POOLED_OUTPUT,)], ids=["all", "pooled"])
def test_a_row_does_not_depend_on_the_rows_beside_it(outputs):
    _, encoder = encoders(CONFIG, outputs=outputs)
    given = features([[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1]])
    together = encoder(given)[POOLED_OUTPUT]
    for row in range(3):
        alone = encoder({name: values[row : row + 1] for name, values in given.items()})[POOLED_OUTPUT]
        np.testing.assert_allclose(together[row], alone[0], atol=2e-6)


@pytest.mark.parametrize(
    "outputs", [ALL, (POOLED_OUTPUT,), (SEQUENCE_OUTPUT,)], ids=["all", "pooled", "sequence"]
)
def test_a_batch_without_rows(outputs):
    _, encoder = encoders(CONFIG, outputs=outputs)
    found = encoder({name: tf.zeros([0, 5], tf.int32) for name in ENCODER_INPUTS})[outputs[0]]
    assert found.shape[0] == 0 and found.shape[-1] == CONFIG.hidden_size


@pytest.mark.parametrize("rematerialize", [False, True], ids=["", "rematerialized"])
@pytest.mark.parametrize("outputs", [(POOLED_OUTPUT,), (SEQUENCE_OUTPUT,)], ids=["pooled", "sequence"])
def test_gradients_are_those_with_padding(outputs, rematerialize):
    config = parity.small(hidden_dropout=0.0, attention_dropout=0.0)
    given = features(MASKS["lengths"])
    real = tf.cast(given["input_mask"], tf.float32)

    def gradients(encoder):
        encoder.rematerialize = rematerialize
        variables = [variable.value for variable in encoder.trainable_variables]

        @tf.function
        def gradient():
            with tf.GradientTape() as tape:
                found = encoder(given, training=True)[outputs[0]]
                if outputs == (SEQUENCE_OUTPUT,):
                    found *= real[..., tf.newaxis]
                loss = tf.reduce_sum(found**3)
            return [tf.convert_to_tensor(one) for one in tape.gradient(loss, variables)]

        return gradient()

    plain, unpadded = map(gradients, encoders(config, outputs=outputs))
    assert max(np.abs(one).max() for one in plain) > 0.1
    for one, other in zip(plain, unpadded, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


def test_products_have_the_rows_of_real_tokens():
    (_, encoder), rows = encoders(CONFIG, outputs=(SEQUENCE_OUTPUT,)), []
    for block in encoder.blocks:
        call = block.feed_forward.call
        block.feed_forward.call = lambda x, call=call, **how: rows.append(x.shape[0]) or call(x, **how)
    encoder(features(MASKS["lengths"]))
    assert rows == [7 + 2 + 4] * CONFIG.num_layers


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("unpadding") / "checkpoint")


def test_models_of_tasks_leave_out_padding_unless_xla_compiles_them(checkpoint):
    model = bk.classifier(checkpoint, ["bad", "good"])
    encoder = model.encoder
    assert encoder.unpadded and not encoder.supports_jit
    given = texts(8, seed=0)
    before = model.predict(given, batch_size=8)["probabilities"]
    model.compile(jit_compile=True)
    assert not encoder.unpadded and encoder.supports_jit
    np.testing.assert_allclose(model.predict(given, batch_size=8)["probabilities"], before, atol=1e-6)
    model.compile()
    assert encoder.unpadded


# Keras' own Dense hands numpy a variable when it saves.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_a_loaded_model_leaves_out_padding_as_the_saved_one(jit_compile, checkpoint, tmp_path):
    """None: saved before `compile`."""
    model = bk.classifier(checkpoint, ["bad", "good"])
    if jit_compile is not None:
        model.compile(jit_compile=jit_compile)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").encoder.unpadded is not bool(jit_compile)


def test_a_tpu_gets_rows_of_one_size(checkpoint, monkeypatch):
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: object.__new__(tf.distribute.TPUStrategy))
    assert not bk.classifier(checkpoint, ["bad", "good"]).encoder.unpadded
