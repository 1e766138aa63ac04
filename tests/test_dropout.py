"""Dropout: where, at what rate, and only in training."""

import dataclasses
import math

import keras
import numpy as np
import pytest
from parity import array, pooled, random_features, small

from bert_keras.config import BertConfig
from bert_keras.features import POOLED_OUTPUT
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.layers import Block, Embeddings, SelfAttention

RATES = [(0.3, 0.0), (0.0, 0.3), (0.1, 0.4)]


WIDE = BertConfig(
    vocab_size=11, hidden_size=64, num_layers=1, num_heads=4, intermediate_size=64, max_positions=64
)


def assert_rate(kept, rate):
    """The share of zeros is the rate, to five standard errors."""
    assert abs(1 - kept.mean() - rate) <= 5 * math.sqrt(max(rate * (1 - rate), 1e-12) / kept.size)


@pytest.mark.parametrize(("hidden", "attention"), RATES)
def test_dropout_of_the_embeddings_has_the_hidden_rate(hidden, attention):
    embeddings = Embeddings(dataclasses.replace(WIDE, hidden_dropout=hidden, attention_dropout=attention))
    embeddings.build()
    ids = np.ones((16, 64), "int32")
    dropped, whole = array(embeddings(ids, ids, training=True)), array(embeddings(ids, ids, training=False))
    assert_rate(dropped != 0, hidden)
    np.testing.assert_allclose(dropped[dropped != 0], whole[dropped != 0] / (1 - hidden), rtol=1e-5)


@pytest.mark.parametrize(("hidden", "attention"), RATES)
def test_dropout_of_attention_probabilities_has_the_attention_rate(hidden, attention):
    """64 probabilities of 1/64 and values of 1: the context counts what was kept, over 64 (1 - rate)."""
    layer = SelfAttention(dataclasses.replace(WIDE, hidden_dropout=hidden, attention_dropout=attention))
    layer.build((None, None, 64))
    for dense in (layer.query, layer.key, layer.value, layer.output_dense):
        dense.kernel.assign(np.zeros((64, 64)))
    layer.value.bias.assign(np.ones(64))
    layer.output_dense.kernel.assign(np.eye(64))
    states = np.zeros((8, 64, 64), "float32")
    context, probabilities = layer(states, states, np.zeros((8, 1, 1, 64), "float32"), training=True)
    np.testing.assert_allclose(array(probabilities), 1 / 64)  # given back before dropout
    counts = array(context)[..., ::16] * (1 - attention) * 64  # each of 4 heads is 16 equal numbers
    # The mean alone is the same without dropout: what tells is that these are whole numbers that vary.
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-3)
    error = 5 * math.sqrt(64 * attention * (1 - attention) / counts.size)
    assert counts.mean() == pytest.approx(64 * (1 - attention), abs=error + 1e-3)
    assert counts.std() == pytest.approx(math.sqrt(64 * attention * (1 - attention)), rel=0.08, abs=1e-3)


@pytest.mark.parametrize(("hidden", "attention"), RATES)
@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_dropout_before_each_residual_has_the_hidden_rate(part, hidden, attention):
    """One part gives 1 everywhere, the residual is 0: after the norm kept is positive, dropped negative."""
    block = Block(dataclasses.replace(WIDE, hidden_dropout=hidden, attention_dropout=attention), name="block")
    block.build((None, None, 64))
    for dense in (block.attention.output_dense, block.feed_forward.output_dense):
        dense.kernel.assign(np.zeros(dense.kernel.shape))
    getattr(block, part).output_dense.bias.assign(np.ones(64))
    states = np.zeros((16, 64, 64), "float32")
    output, _ = block(states, states, np.zeros((16, 1, 1, 64), "float32"), training=True)
    # Without dropout the 64 numbers of a row are equal and the norm makes them 0.
    assert_rate(array(output) >= 0, hidden)


def test_dropout_only_in_training():
    encoder = BertEncoder(small(hidden_dropout=0.5, attention_dropout=0.5))
    features = random_features(small(), seed=5, batch=2, length=7)
    np.testing.assert_array_equal(pooled(encoder, features), pooled(encoder, features))
    model = keras.Model(inputs := encoder_inputs(), encoder(inputs)[POOLED_OUTPUT])
    np.testing.assert_array_equal(array(model(features)), array(model(features, training=False)))
    assert np.abs(array(model(features, training=True)) - array(model(features, training=True))).max() > 0.001
