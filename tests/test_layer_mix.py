"""LayerMix: the rows of Table 7 as a Keras layer above a frozen encoder."""

import dataclasses

import keras
import numpy as np
import parity
import pytest

import bert_keras as bk
from bert_keras.errors import BertKerasError
from bert_keras.model.choices import LAYERS

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
CONFIG = parity.small(num_layers=4)
FEATURES = parity.random_features(CONFIG, seed=1, batch=2, length=5)
FEATURES["input_mask"] = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)


@pytest.fixture(scope="module")
def encoder():
    keras.utils.set_random_seed(1)
    return bk.BertEncoder(CONFIG, outputs=["embedding_output", "encoder_outputs"])


def mixed(encoder, layers):
    inputs = bk.encoder_inputs()
    mix = bk.LayerMix(layers)
    return keras.Model(inputs, mix(encoder(inputs, training=False))), mix


def test_a_frozen_mix_comes_back_frozen(encoder):
    model, mix = mixed(encoder, "weighted_sum_all")
    mix.trainable = False
    again = keras.models.clone_model(model)
    assert [one.path for one in again.trainable_variables] == [one.path for one in model.trainable_variables]


# The rows of Table 7 on the outputs of embeddings (0) and blocks (1 to 4).
EXPECTED = {
    "embeddings": lambda x: x[0],
    "second_to_last": lambda x: x[3],
    "last": lambda x: x[4],
    "weighted_sum_last_four": lambda x: sum(x[1:]) / 4,
    "concat_last_four": lambda x: np.concatenate(x[1:], -1),
    "weighted_sum_all": lambda x: sum(x[1:]) / 4,
}


@pytest.mark.parametrize("layers", LAYERS)
def test_a_mix_is_the_row_of_table_7_and_survives_a_keras_file(layers, encoder, tmp_path):
    outputs = encoder(FEATURES)
    every = [np.asarray(x) for x in (outputs["embedding_output"], *outputs["encoder_outputs"])]
    model, mix = mixed(encoder, layers)
    assert len(mix.trainable_variables) == (2 if layers.startswith("weighted") else 0)
    vectors = np.asarray(model(FEATURES))
    np.testing.assert_allclose(vectors, EXPECTED[layers](every), atol=1e-6)
    for variable in mix.variables:
        variable.assign(np.arange(1.0, 1 + np.prod(variable.shape, dtype=int)).reshape(variable.shape))
    changed = np.asarray(model(FEATURES))
    assert np.allclose(changed, vectors) == (not mix.variables)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(np.asarray(again(FEATURES)), changed)


def test_a_layer_above_a_mix_passes_over_padding(encoder):
    model, _ = mixed(encoder, "last")
    pooled = keras.layers.GlobalAveragePooling1D()(model.output)
    states = np.asarray(model(FEATURES))
    expected = [states[0, :4].mean(0), states[1, :3].mean(0)]
    found = keras.Model(model.input, pooled)(FEATURES)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_mix_refuses_unknown_rows_other_outputs_and_too_few_layers(encoder):
    with pytest.raises(BertKerasError, match="concat_last_four"):
        bk.LayerMix("last_four")
    with pytest.raises(BertKerasError, match="sequence_output.*embedding_output and encoder_outputs"):
        bk.LayerMix("last")(bk.BertEncoder(CONFIG, outputs=["sequence_output"])(bk.encoder_inputs()))
    small = bk.BertEncoder(
        dataclasses.replace(CONFIG, num_layers=1), outputs=["embedding_output", "encoder_outputs"]
    )
    with pytest.raises(BertKerasError, match="needs 4 blocks and the encoder has 1"):
        bk.LayerMix("concat_last_four")(small(bk.encoder_inputs()))
