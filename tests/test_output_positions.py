"""An encoder that computes some positions of its last block gives what it gives for all of them."""

import dataclasses

import keras
import numpy as np
import parity
import pytest
import tensorflow as tf
from parity import array

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ENCODER_OUTPUTS,
    INPUT_MASK,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    OUTPUT_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import MaskedLMHead
from bert_keras.optimization import pretrainers
from bert_keras.optimization.objectives import LeftToRight, MaskedLM, SentencePair
from bert_keras.optimization.pretrainers import ElectraPretrainer, Pretrainer

pytestmark = pytest.mark.long

BOTH = (SEQUENCE_OUTPUT, POOLED_OUTPUT)
LENGTHS = [7, 2, 4]  # real tokens in each row
POSITIONS = np.array([[1, 6, 3, 0], [1, 0, 0, 0], [2, 2, 3, 0]], "int32")


def features():
    found = parity.random_features(parity.GOLDEN_CONFIG, seed=5, batch=3, length=7)
    found[INPUT_MASK] = np.int32([[1] * length + [0] * (7 - length) for length in LENGTHS])
    return found


def encoder(outputs=BOTH, *, unpadded=False, **changes):
    keras.utils.set_random_seed(7)
    made = BertEncoder(parity.small(initializer_range=0.3, **changes), outputs=outputs)
    made.unpadded = unpadded
    return made


@pytest.mark.parametrize("outputs", [BOTH, (SEQUENCE_OUTPUT,), (POOLED_OUTPUT,)])
@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("changes", [{}, {"causal": True}, {"share_layers": True}], ids=str)
def test_outputs_at_positions_are_those_of_all_positions(changes, unpadded, outputs):
    made = encoder(outputs, unpadded=unpadded, **changes)
    everything = encoder(**changes)(features())
    expected = {
        SEQUENCE_OUTPUT: np.take_along_axis(array(everything[SEQUENCE_OUTPUT]), POSITIONS[..., None], axis=1),
        POOLED_OUTPUT: array(everything[POOLED_OUTPUT]),
    }
    for run in (made, tf.function(lambda given: made(given, training=False), autograph=False)):
        found = run(features() | {OUTPUT_POSITIONS: POSITIONS})
        assert {*found} == {*outputs}
        for name in outputs:
            np.testing.assert_allclose(array(found[name]), expected[name], rtol=1e-5, atol=2e-6)


def test_a_functional_model_has_an_input_of_positions():
    made, positions = encoder(), keras.Input([None], dtype="int32", name=OUTPUT_POSITIONS)
    inputs = encoder_inputs() | {OUTPUT_POSITIONS: positions}
    output = made(inputs)[SEQUENCE_OUTPUT]
    assert output.shape == (None, None, parity.GOLDEN_CONFIG.hidden_size)
    given = features() | {OUTPUT_POSITIONS: POSITIONS}
    found = keras.Model(inputs, output)(given)
    np.testing.assert_allclose(array(found), array(made(given)[SEQUENCE_OUTPUT]), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("outputs", "changes", "named"),
    [
        ((*BOTH, ENCODER_OUTPUTS), {}, "outputs sequence_output, pooled_output, encoder_outputs"),
        (BOTH, {"bilstm": True}, "a bilstm"),
    ],
)
def test_positions_beside_outputs_of_all_positions_are_refused(outputs, changes, named):
    refused = pytest.raises(BertKerasError, match=f"output_positions was given to an encoder with {named}")
    symbols = encoder_inputs() | {OUTPUT_POSITIONS: keras.Input([None], dtype="int32")}
    for given in (features() | {OUTPUT_POSITIONS: POSITIONS}, symbols):
        with refused:
            encoder(outputs, **changes)(given)


def labelled():
    """Features, labels and weights of both objectives."""
    given = features() | {
        MASKED_LM_POSITIONS: POSITIONS,
        MASKED_LM_IDS: POSITIONS + 5,
        MASKED_LM_WEIGHTS: np.float32(POSITIONS > 0),
    }
    labels = {"masked_lm": given[MASKED_LM_IDS], "next_sentence": np.int32([0, 1, 1])}
    weights = {"masked_lm": given[MASKED_LM_WEIGHTS], "next_sentence": np.ones(3, "float32")}
    return given, labels, weights


def gradients(model):
    given, labels, weights = labelled()
    with tf.GradientTape() as tape:
        loss = model.compute_loss(None, labels, model(given, training=True), weights)
    return loss, tape.gradient(loss, model.trainable_variables)


def pretrainer(objective=MaskedLM, **changes):
    without = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    return Pretrainer(encoder(**without, **changes), [objective(pieces=None), SentencePair()])


@pytest.mark.parametrize("unpadded", [False, True])
def test_a_pretrainer_learns_the_same_from_the_masked_positions_alone(unpadded, monkeypatch):
    loss, found = gradients(pretrainer(unpadded=unpadded))
    monkeypatch.setattr(pretrainers, "reads_masked_positions", lambda objectives: False)
    expected_loss, expected = gradients(pretrainer(unpadded=unpadded))
    np.testing.assert_allclose(array(loss), array(expected_loss), rtol=1e-6)
    for pair in zip(found, expected, strict=True):
        np.testing.assert_allclose(*map(tf.convert_to_tensor, pair), rtol=1e-5, atol=1e-5)


def positions_given(model, part="encoder"):
    """The positions of `sequence_output` that the model asks an encoder for; None for all."""
    asked = []
    part = getattr(model, part)
    call = part.call
    part.call = lambda given, training=False: (
        asked.append(given.get(OUTPUT_POSITIONS)) or call(given, training)
    )
    model(labelled()[0])
    return asked[0]


def test_only_masked_positions_are_asked_for():
    np.testing.assert_array_equal(positions_given(pretrainer()), POSITIONS)
    electra = ElectraPretrainer(encoder((SEQUENCE_OUTPUT,)), MaskedLM(pieces=None))
    np.testing.assert_array_equal(positions_given(electra, "generator"), POSITIONS)
    assert positions_given(electra) is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLogits(MaskedLM):
    def logits(self, head, outputs, features):
        return head(outputs[SEQUENCE_OUTPUT], features[MASKED_LM_POSITIONS])


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnHead(MaskedLM):
    def head(self, encoder):
        return ContextHead(encoder, name=self.name)


class ContextHead(MaskedLMHead):
    """Reads the first position of the row beside each masked one."""

    def call(self, sequence, positions):
        return super().call(sequence + sequence[:, :1], positions)


@dataclasses.dataclass(frozen=True)
class PooledAndMean(SentencePair):
    """Says that it reads `pooled_output`, and reads the other output too."""

    def logits(self, head, outputs, features):
        return head(outputs[POOLED_OUTPUT] + keras.ops.mean(outputs[SEQUENCE_OUTPUT], axis=1))


class OwnCall(BertEncoder):
    def call(self, inputs, training=False):
        found = super().call(inputs, training=training)
        return found | {
            SEQUENCE_OUTPUT: found[SEQUENCE_OUTPUT] * keras.ops.cast(inputs[INPUT_MASK], "float32")[..., None]
        }


def test_objectives_that_may_read_all_positions_get_them():
    own, masked_lm = pretrainer(OwnLogits), MaskedLM(pieces=None)
    for model in (
        own,
        pretrainer(OwnHead),
        Pretrainer(encoder(), [masked_lm, PooledAndMean()]),
        Pretrainer(OwnCall(parity.small(), outputs=BOTH), [masked_lm]),
        Pretrainer(encoder(causal=True), [LeftToRight()]),
        Pretrainer(encoder((*BOTH, ENCODER_OUTPUTS)), [masked_lm]),
    ):
        assert positions_given(model) is None
    np.testing.assert_allclose(
        array(own(labelled()[0])["masked_lm"]), array(pretrainer()(labelled()[0])["masked_lm"]), atol=2e-6
    )
