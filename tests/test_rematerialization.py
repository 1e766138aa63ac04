"""Rematerialization: the gradients with dropout are those of the plain backward pass, in every form of a step."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from parity import random_features, small

from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.training_model import TrainingModel
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.task import classifier_model

pytestmark = pytest.mark.long

CONFIG = small(num_layers=3, hidden_dropout=0.3, attention_dropout=0.3, initializer_range=0.2)
FEATURES = random_features(CONFIG, seed=5, batch=4, length=12)


def steps(config, outputs, *, rematerialize, graph, dtype=None):
    """Loss and gradients of two steps, and the state of every seed generator after them."""
    keras.utils.set_random_seed(3)
    encoder = BertEncoder(config, outputs=outputs, dtype=dtype)
    encoder.rematerialize = rematerialize

    def step():
        with tf.GradientTape() as tape:
            made = keras.tree.flatten(encoder(FEATURES, training=True))
            loss = tf.add_n([tf.reduce_mean(tf.cast(one, tf.float32) ** 3) for one in made])
        return loss, [tf.convert_to_tensor(one) for one in tape.gradient(loss, encoder.trainable_variables)]

    run = tf.function(step) if graph else step
    found = [run() for _ in range(2)]
    seeds = [one.value.numpy() for one in encoder.variables if one.name == "seed_generator_state"]
    return keras.tree.map_structure(lambda one: one.numpy(), found), seeds


def check(config, outputs, **options):
    (wanted, seeds), (found, same) = (
        steps(config, outputs, rematerialize=one, **options) for one in (False, True)
    )
    # A key's bias adds the same to all scores of a query: its gradient is rounding.
    largest = max(np.abs(one).max() for one in keras.tree.flatten(wanted[0][1]))
    for plain, again in zip(keras.tree.flatten(wanted), keras.tree.flatten(found), strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-4, atol=1e-6 * largest)
    np.testing.assert_array_equal(seeds, same)
    assert wanted[0][0] != wanted[1][0]  # dropout is active


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("outputs", [("sequence_output",), ("pooled_output",)], ids=lambda one: one[0])
def test_gradients_with_dropout_are_equal(outputs, graph):
    check(CONFIG, outputs, graph=graph)


def test_gradients_of_shared_layers_are_equal():
    check(dataclasses.replace(CONFIG, share_layers=True), ("sequence_output",), graph=True)


def test_attention_probabilities_are_kept():
    check(CONFIG, ("sequence_output", "attention_probabilities"), graph=True)


def trained(*, rematerialize, micro_batch=None, jit_compile=False):
    """The weights after three updates with dropout, and the losses."""
    keras.utils.set_random_seed(3)
    encoder = BertEncoder(CONFIG, outputs=("pooled_output",))
    encoder.rematerialize = rematerialize
    made = classifier_model(encoder, 3)
    model = TrainingModel(made._inputs_struct, made._outputs_struct)
    model.compile(
        keras.optimizers.SGD(0.1), GlobalMean(cross_entropy), micro_batch=micro_batch, jit_compile=jit_compile
    )
    data = tf.data.Dataset.from_tensor_slices((FEATURES, np.arange(4) % 3)).batch(4, drop_remainder=True)
    history = model.fit(data, epochs=3, verbose=0, shuffle=False).history["loss"]
    return model.get_weights(), history


@pytest.mark.parametrize(
    "how",
    [{"micro_batch": 3}, {"jit_compile": True}, {"jit_compile": True, "micro_batch": 2}],
    ids=["micro-batches", "XLA", "micro-batches under XLA"],
)
@pytest.mark.slow
def test_updates_with_dropout_are_equal(how):
    """Of the last micro-batch of one row too."""
    (wanted, losses), (found, same) = (trained(rematerialize=one, **how) for one in (False, True))
    for plain, again in zip(wanted, found, strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(same, losses, rtol=1e-5)
    assert len({*losses}) == 3


def test_the_setting_is_part_of_a_run_only_where_it_is_given():
    assert Hparams(rematerialize=True).fingerprint() == Hparams().fingerprint() | {"rematerialize": True}
