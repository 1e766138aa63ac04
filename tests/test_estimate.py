"""`bert-keras plan`: parameters, operations, memory and days, held to what models of these settings have."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.features import POOLED_OUTPUT
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.pretrainers import choose_pretrainer
from bert_keras.tasks.pretraining.estimate import HEADS, Memory, estimate
from bert_keras.tasks.pretraining.model import OBJECTIVES, make_objectives, objective_classes
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.text.masking import Pieces
from bert_keras.text.wordpiece import WordPiece

ROOT = Path(__file__).parents[1]
SMALL = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "intermediate_size": 48, "max_positions": 40}
PIECES = Pieces.of(WordPiece("[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split()))


def settings(name, **changes):
    recipe = RECIPES[name].changed(**SMALL, seq_length=32, batch_size=8, steps=10, **changes)
    return recipe, recipe.config(vocab_size=100)


def model_of(recipe, config):
    objectives = make_objectives(recipe, 32, pieces=PIECES)
    encoder = BertEncoder(config, outputs=tuple(dict.fromkeys(one.reads for one in objectives)))
    return choose_pretrainer(objective_classes(recipe)).of(encoder, objectives)


KNOWN = [name for name, recipe in RECIPES.items() if {*recipe.objectives} <= {*HEADS}]  # without a decoder


def count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_those_of_the_model(name):
    recipe, config = settings(name)
    model, found = model_of(recipe, config), estimate(recipe, config)
    seeds = [one for one in model.variables if "seed" in one.path]
    weights = {id(one): one for one in model.weights}
    assert found.parameters == count(weights.values()) - count(one for one in seeds if id(one) in weights)
    assert found.trainable == count(model.trainable_variables)


def test_heads_are_those_of_the_objectives():
    found = {name: (kind.name, kind.reads == POOLED_OUTPUT) for name, kind in OBJECTIVES.items()}
    assert found == HEADS | {
        name: (name, False) for name in ("next_words", "translation", "skip_gram")
    }  # of ancestors
    with pytest.raises(ValueError, match="does not know the head of translation"):
        estimate(RECIPES["transformer"], RECIPES["transformer"].config(vocab_size=100))


def products(graph):
    """Operations of all matrix products in a graph: two for each multiplication and addition."""
    total = 0
    for op in graph.get_operations():
        if op.type in ("MatMul", "BatchMatMulV2"):
            rows = math.prod(op.outputs[0].shape)
            transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            total += 2 * rows * op.inputs[0].shape[-2 if transposed else -1]
    return total


@pytest.mark.parametrize("name", KNOWN)
def test_operations_are_those_of_the_graph(name):
    """Forward, a third of a step; ELECTRA draws the generator's tokens inside the graph, without products."""
    recipe, config = settings(name)
    model, batch = model_of(recipe, config), 4
    # Left to right predicts every position.
    predictions = 31 if "left_to_right" in recipe.objectives else recipe.masking(32).max_predictions
    features = {
        "input_word_ids": np.full((batch, 32), 5, np.int32),
        "input_mask": np.ones((batch, 32), np.int32),
        "input_type_ids": np.zeros((batch, 32), np.int32),
        "masked_lm_positions": np.tile(np.arange(predictions, dtype=np.int32), (batch, 1)),
        "masked_lm_ids": np.full((batch, predictions), 5, np.int32),
        "masked_lm_weights": np.ones((batch, predictions), np.float32),
    }
    spec = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in features.items()}
    graph = tf.function(lambda features: model(features, training=True)).get_concrete_function(spec).graph
    planned = estimate(recipe, config).phases[0].flops / 8 * batch / 3
    assert planned == pytest.approx(products(graph), rel=0.02)


def test_the_phases_of_the_paper():
    recipe = RECIPES["bert"]
    found = estimate(recipe, recipe.config(vocab_size=30522), devices=8, teraflops=10)
    first, second = found.phases
    assert (first.seq_length, first.steps, first.rows) == (128, 900_000, 32)
    assert (second.seq_length, second.steps, second.rows) == (512, 100_000, 32)
    assert first.tokens == 900_000 * 256 * 128 and found.parameters == 110_106_428
    assert found.days == pytest.approx((900_000 * first.flops + 100_000 * second.flops) / 8e13 / 86_400)
    assert first.memory.weights == 4 * 110_106_428 and first.memory.optimizer_state == 8 * 110_106_428
    assert first.memory.total == sum(dataclasses.astuple(first.memory))
    # 6 operations for each parameter of the blocks and each token, and the attention's.
    blocks = 12 * (12 * 768**2)
    assert first.flops == pytest.approx(256 * 128 * (6 * blocks + 12 * 12 * 128 * 768), rel=0.05)


def test_what_saves_memory():
    recipe, config = settings("bert")
    whole = estimate(recipe, config).phases[0].memory

    def memory(devices=1, **changes) -> Memory:
        return estimate(recipe.changed(**changes), config, devices=devices).phases[0].memory

    assert memory(devices=2).activations == memory(micro_batch=4).activations == whole.activations / 2
    assert memory(micro_batch=4).gradients == whole.gradients * 4 / 3, "the sum over the micro-batches"
    assert memory(devices=2).gradients == memory(micro_batch=8).gradients == whole.gradients
    deep = recipe.changed(num_layers=20)
    deep_config = dataclasses.replace(config, num_layers=20)
    saved = estimate(deep.changed(rematerialize=True), deep_config).phases[0]
    kept = estimate(deep, deep_config).phases[0]
    assert saved.memory.activations < kept.memory.activations / 5
    assert kept.flops < saved.flops < 1.34 * kept.flops


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"devices": 3}, "3 devices do not divide a batch of 8"),
        ({"precision": "bfloat16"}, {}, "precision is bfloat16, and the plan is of float32"),
        ({"bilstm": True}, {}, "bilstm is true, and the plan knows no BiLSTM"),
        ({"max_positions": 20}, {}, "a phase has 32 tokens and the encoder 20 positions"),
    ],
)
def test_plans_that_cannot_train(changes, options, message):
    recipe = RECIPES["bert"].changed(**SMALL | changes, seq_length=32, batch_size=8)
    with pytest.raises(ValueError, match=message):
        estimate(recipe, recipe.config(vocab_size=100), **options)


def test_command(tmp_path, capfd):
    (tmp_path / "config.json").write_text(json.dumps(BertConfig(vocab_size=100, **SMALL).to_hugging_face()))
    command = ["plan", "--checkpoint", tmp_path, "--seq-length", "32", "--steps", "10", "--teraflops", "2"]
    code, out, err = runs.run_command(capfd, *command, "--batch-size", "8", "--json")
    assert code == 0, err
    recipe, config = settings("bert")
    assert json.loads(out) == {
        "recipe": "bert",
        "config": config.to_dict(),
        **json.loads(json.dumps(estimate(recipe, config, teraflops=2).to_json())),
    }
    code, out, err = runs.run_command(capfd, "plan", "--size", "tiny", "--devices", "8")
    assert code == 0 and "32 tokens" not in out and "900,000" in out and "activations" in out, err
    code, _, err = runs.run_command(capfd, "plan", "--devices", "0")
    assert code == 1 and "--devices is 0; --devices must be a whole number of at least 1" in err
    again = "--seq-length 32 --steps 10 --batch-size 8 --micro-batch 2 --rematerialize --json".split()
    code, out, err = runs.run_command(capfd, "plan", "--checkpoint", tmp_path, *again)
    assert code == 0, err
    wanted = estimate(recipe.changed(micro_batch=2, rematerialize=True), config).to_json()
    assert json.loads(out)["phases"] == json.loads(json.dumps(wanted))["phases"]
    code, _, err = runs.run_command(capfd, *command, "--size", "tiny")
    assert code == 1 and "size and a checkpoint were given" in err
    code, _, err = runs.run_command(capfd, "plan", "--checkpoint", "bert-base-uncased")
    assert code == 1 and "bert-base-uncased is no file or folder" in err and "--size" in err


def test_no_tensorflow_is_needed():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'tensorflow_text', 'keras']));"
        "from bert_keras.cli.main import main; main(['bert-keras', 'plan', '--size', 'base', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0 and json.loads(done.stdout)["parameters"] == 110_106_428, done.stderr
