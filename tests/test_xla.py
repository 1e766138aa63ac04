"""Every step of training and evaluation compiles under XLA at fixed shapes, as on a TPU, and equals the plain step.

XLA runs on the CPU here. Strings, masking and decoding run on the host: they are outside of the step. TensorFlow's random numbers
under XLA are not those of its CPU kernels, so the steps are compared without dropout, and a step with dropout is only compiled.
"""

import dataclasses

import keras
import numpy as np
import pretrainings
import pytest
import tensorflow as tf
from runs import VOCABULARY, write_checkpoint
from string_tasks import TASKS

from bert_keras.config import BERT, BertConfig
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_OUTPUTS, INPUT_CHARACTERS, INPUT_WORD_IDS
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.encoders import ENCODERS, make_encoder
from bert_keras.model.feature_bilstm import OUTPUTS
from bert_keras.tasks.ancestors.awd_lstm import AwdLstmSettings
from bert_keras.tasks.pretraining.estimate import HEADS
from bert_keras.tasks.pretraining.pretrain import Pretraining, plan_pretraining
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.strings.text_batches import one_batch
from bert_keras.tasks.training.task_model import with_padding
from bert_keras.text.wordpiece import WordPiece

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("xla") / "checkpoint", num_layers=2, **NO_DROPOUT)


def assert_on_fixed_shapes(model):
    """Rows of padding are computed too, as on a TPU: without them, a product has another number of rows for each batch."""
    encoders = [layer for layer in model._flatten_layers() if isinstance(layer, BertEncoder)]
    assert {*map(id, getattr(model, "encoders", {}).values())} <= {*map(id, encoders)}
    assert encoders and not any(one.unpadded for one in encoders)


def assert_compiled_equals_plain(model, batch):
    """Two updates and a measurement from equal weights and batches, once plainly and once compiled."""
    assert_on_fixed_shapes(model)
    model.optimizer.build(model.trainable_variables)
    model.train_step(batch)  # makes the variables of the metrics
    everything = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [variable.numpy() for variable in everything]
    results = {}
    for compiled in (False, True):
        for variable, value in zip(everything, before, strict=True):
            variable.assign(value)
        train = tf.function(model.train_step, jit_compile=compiled)
        train(batch)
        logs = {**train(batch)}
        measured = tf.function(model.test_step, jit_compile=compiled)(batch)
        logs |= {f"test_{name}": value for name, value in measured.items()}
        results[compiled] = logs, [variable.numpy() for variable in everything]
    (plain_logs, plain), (logs, weights) = results[False], results[True]
    moved = max(np.abs(a - b).max() for a, b in zip(before, plain, strict=True) if a.dtype.kind == "f")
    assert moved > 1e-4
    assert [*logs] == [*plain_logs]
    for name, value in plain_logs.items():
        np.testing.assert_allclose(logs[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for variable, one, other in zip(everything, plain, weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=variable.path)


def batch_of(model, x, y):
    """Every row, with a weight of its own."""
    return one_batch(model, (x, y, np.linspace(0.5, 2, len(y))))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the checkpoint has no masked_lm head")
@pytest.mark.parametrize(
    "task",
    TASKS,  # XLA takes long to compile each
)
@pytest.mark.slow
def test_a_step_of_a_task(task, checkpoint):
    """Under gradient descent: Adam's first step makes a large difference of a small one, where a gradient is near 0."""
    make, x, y = TASKS[task]
    model = make(checkpoint, seq_length=24)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    with with_padding(model):
        assert_compiled_equals_plain(model, batch_of(model, x, y))


def micro_batches(model):
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), micro_batch=2)


def lora(model):
    model.encoder.enable_lora(2)


def rematerialized(model):
    model.encoder.rematerialize = True


@pytest.mark.slow
@pytest.mark.parametrize("change", [micro_batches, lora, rematerialized])
def test_a_step_of_another_form(change, checkpoint):
    make, x, y = TASKS["class"]
    model = make(checkpoint, seq_length=24)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    change(model)
    with with_padding(model):
        assert_compiled_equals_plain(model, batch_of(model, x, y))


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=() if name == "bert" else pytest.mark.slow)
        for name, one in RECIPES.items()
        if {*one.objectives} <= {*HEADS}  # of BERT's blocks
    ],
)
def test_a_step_of_a_recipe(recipe, monkeypatch):
    """ELECTRA's generator gives its likeliest token in place of a drawn one."""
    monkeypatch.setattr(
        keras.random, "categorical", lambda logits, count, **how: tf.argmax(logits, -1, "int32")[:, None]
    )
    given = pretrainings.given(recipe, tokenizer=WordPiece(VOCABULARY), changes=NO_DROPOUT)
    plan = plan_pretraining(Pretraining(**given))
    with with_padding(plan.model):
        assert_compiled_equals_plain(plan.model, next(iter(plan.stages[0].batches(0))))


ANCESTORS = {
    "word-vectors": {"num_layers": 0},
    "cove": {"num_layers": 2, "embedding_size": 4},
    "awd-lstm": {
        "num_layers": 2,
        "causal": True,
        "encoder_settings": {field.name: 0.0 for field in dataclasses.fields(AwdLstmSettings)},
    },
    "elmo": {
        "num_layers": 2,
        "max_characters": 5,
        "encoder_settings": {"character_size": 3, "filter_widths": [1, 2], "filter_counts": [4, 4]},
    },
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one == "elmo" else pytest.mark.slow) for one in ENCODERS if one != BERT],
)
def test_the_states_and_gradients_of_an_ancestor(name):
    """Of all layers, on rows with padding."""
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_heads": 1, "intermediate_size": 6, "type_vocab_size": 0}
    config = BertConfig(encoder=name, hidden_dropout=0.0, initializer_range=0.5, **sizes, **ANCESTORS[name])
    encoder, draw = make_encoder(config, outputs=OUTPUTS), np.random.default_rng(0)
    mask = np.int32([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    given = {one: mask for one in config.inputs} | {INPUT_WORD_IDS: mask * draw.integers(1, 30, mask.shape)}
    if config.max_characters:
        given[INPUT_CHARACTERS] = mask[..., None] * draw.integers(1, 262, (*mask.shape, 5))
    features = {one: tf.constant(value, tf.int32) for one, value in given.items()}
    variables = [one.value for one in encoder.trainable_variables]

    def step():
        with tf.GradientTape() as tape:
            outputs = encoder(features, training=True)
            states = [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]
            loss = sum(tf.reduce_sum(one**2) for one in states)
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        return states, [tf.convert_to_tensor(one) for one in gradients]

    plain = tf.nest.flatten(tf.function(step)())
    assert max(np.abs(one).max() for one in plain[config.num_layers + 1 :]) > 1e-3
    for one, other in zip(plain, tf.nest.flatten(tf.function(step, jit_compile=True)()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# The recipes of ancestors, small, and without draws in the step.
RECIPES_OF_ANCESTORS = {
    "word-vectors": ANCESTORS["word-vectors"],
    "ulmfit": ANCESTORS["awd-lstm"],
    "elmo": ANCESTORS["elmo"] | {"softmax_samples": 0},
    "cove": {"num_layers": 1, "hidden_size": 32, "embedding_size": 16},
    "transformer": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES_OF_ANCESTORS)
def test_a_step_of_an_ancestor(recipe):
    changes = {"batch_size": 4, "seq_length": 16, "num_heads": 1} | NO_DROPOUT | RECIPES_OF_ANCESTORS[recipe]
    pairs = [["a good film", "the plot is dull"]] * 40 + [["bad scene", "warm actor"]] * 40
    of_pairs = {"documents": pairs} if "translation" in RECIPES[recipe].objectives else {}
    given = pretrainings.given(recipe, tokenizer=WordPiece(VOCABULARY), changes=changes, **of_pairs)
    plan = plan_pretraining(Pretraining(**given))
    with with_padding(plan.model):
        assert_compiled_equals_plain(plan.model, next(iter(plan.stages[0].batches(0))))


@pytest.mark.slow
def test_a_step_with_dropout_and_drawn_tokens_learns():
    given = pretrainings.given("electra", tokenizer=WordPiece(VOCABULARY), changes={"hidden_dropout": 0.1})
    plan = plan_pretraining(Pretraining(**given))
    train = tf.function(plan.model.train_step, jit_compile=True)
    batch = next(iter(plan.stages[0].batches(0)))
    losses = []
    with with_padding(plan.model):
        assert_on_fixed_shapes(plan.model)
        for _ in range(30):
            plan.model.reset_metrics()
            losses.append(float(train(batch)["masked_lm_loss"]))
    assert losses[-1] < losses[0] - 0.5
