"""`bert-keras plan`: parameters, operations, memory and days, held to what models of these settings have."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.config import BertConfig
from bert_keras.features import POOLED_OUTPUT
from bert_keras.model.encoders import make_encoder
from bert_keras.optimization.objectives import Objective
from bert_keras.optimization.pretrainers import choose_pretrainer
from bert_keras.tasks.pretraining.estimate import HEADS, Memory, estimate
from bert_keras.tasks.pretraining.model import OBJECTIVES, make_objectives, objective_classes
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.study.work import forward, of_pretraining
from bert_keras.text.masking import Pieces
from bert_keras.text.wordpiece import WordPiece

ROOT = Path(__file__).parents[1]
SMALL = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "intermediate_size": 48, "max_positions": 40}
PIECES = Pieces.of(WordPiece("[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split()))


# The settings of ancestors that are not SMALL.
_CHARACTERS = {"character_size": 4, "filter_widths": [1, 3], "filter_counts": [4, 8], "highways": 1}
ANCESTORS = {
    "word-vectors": {"num_layers": 0},
    "elmo": {"max_characters": 10, "softmax_samples": 20, "encoder_settings": _CHARACTERS},
    "ulmfit": {},
    "transformer": {},
    "cove": {"embedding_size": 8},
}


def settings(name, **changes):
    given = SMALL | ANCESTORS.get(name, {}) | changes
    recipe = RECIPES[name].changed(**given, seq_length=32, batch_size=8, steps=10)
    return recipe, recipe.config(vocab_size=100)


def model_of(recipe, config):
    how = {"config": config, "counts": lambda: np.ones(100)}
    objectives = make_objectives(recipe, 32, pieces=PIECES, **how)
    encoder = make_encoder(config, outputs=tuple(dict.fromkeys(one.reads for one in objectives)))
    return choose_pretrainer(objective_classes(recipe)).of(encoder, objectives)


KNOWN = [name for name in RECIPES if name not in ANCESTORS]


def count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.mark.parametrize("name", RECIPES)
def test_parameters_are_those_of_the_model(name):
    recipe, config = settings(name)
    model, found = model_of(recipe, config), estimate(recipe, config)
    seeds = [one for one in model.variables if "seed" in one.path]
    weights = {id(one): one for one in model.weights}
    assert found.parameters == count(weights.values()) - count(one for one in seeds if id(one) in weights)
    assert found.trainable == count(model.trainable_variables)


def test_heads_are_those_of_the_objectives():
    found = {name: (kind.name, kind.reads == POOLED_OUTPUT) for name, kind in OBJECTIVES.items()}
    assert found == HEADS | {name: (name, False) for name in found if hasattr(OBJECTIVES[name], "cost")}

    class Own(Objective):
        name = "own"

    recipe = dataclasses.replace(RECIPES["bert"], objectives=("masked_lm", Own))
    with pytest.raises(
        ValueError, match="the plan does not know the head of .*Own; give a recipe of masked_lm"
    ):
        estimate(recipe, RECIPES["bert"].config(vocab_size=100))


def products(graph, *, loops=1, batch=4):
    """Operations of all matrix products in a graph: two for each multiplication and addition. loops: the turns of each loop."""
    total = 0
    for op in graph.get_operations():
        if op.type in ("MatMul", "BatchMatMulV2"):
            transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            total += 2 * size_of(op.outputs[0], batch) * op.inputs[0].shape[-2 if transposed else -1]
        elif op.type == "Conv2D":
            total += 2 * size_of(op.outputs[0], batch) * math.prod(op.inputs[1].shape[:-1])
        elif op.type == "Einsum" and len(op.inputs) == 2:
            terms = op.get_attr("equation").decode().split("->")[0].split(",")
            sizes = {
                letter: size or batch
                for term, one in zip(terms, op.inputs, strict=True)
                for letter, size in zip(term, one.shape, strict=True)
            }
            total += 2 * math.prod(sizes.values())
        elif op.type in ("While", "StatelessWhile"):
            total += loops * products(graph._get_function(op.get_attr("body").name).graph, batch=batch)
    return total


def size_of(tensor, batch):
    return math.prod(size or batch for size in tensor.shape)


@pytest.mark.parametrize("name", ANCESTORS)
def test_operations_of_ancestors_are_those_of_the_graph(name):
    """A row is one text or, for a translator, a source and a target of equal lengths."""
    recipe, config = settings(name, **{"subsample": None} if name == "word-vectors" else {})
    model, (objective,) = model_of(recipe, config), recipe.objectives
    ids = np.random.default_rng(1).integers(5, 100, (4, 32)).astype("int32")
    types = np.tile(np.arange(32, dtype=np.int32) // 16, (4, 1))
    features = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": types}
    if name == "elmo":
        features["input_characters"] = np.full((4, 32, 10), 5, np.int32)
    if name != "elmo":
        features = OBJECTIVES[objective].label(model.objectives[0], features, seed=(0, 0))[0]
    spec = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in features.items()}
    graph = tf.function(lambda features: model(features, training=True)).get_concrete_function(spec).graph
    length = 16 if objective == "translation" else 32
    planned = estimate(recipe, config).phases[0].flops / 8 * 4 / 3
    # Keras traces the first step of an LSTM once more, for its shapes, and TensorFlow leaves it out when the graph runs.
    assert planned == pytest.approx(products(graph, loops=length), rel=0.03)
    assert planned > 0


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


def test_the_memory_of_an_ancestor_has_no_activations(capfd):
    recipe, config = settings("ulmfit")
    memory = estimate(recipe, config).phases[0].memory
    assert memory.activations is None and memory.total is None and memory.weights > 0
    code, out, err = runs.run_command(capfd, "plan", "--recipe", "ulmfit")
    assert code == 0, err
    assert re.search(r"GiB: activations\W+-", out) and re.search(r"GiB: weights\W+0\.\d", out)


def test_a_study_before_it_runs_counts_an_ancestor_as_the_plan_does():
    recipe, config = settings("ulmfit")
    found = of_pretraining(recipe, vocab_size=100)
    assert found.flops == 10 * estimate(recipe, config).phases[0].flops
    of_lstm = sum(math.prod(s) for n, s in variable_shapes(config).items() if "lstm" in n and len(s) == 2)
    assert forward(config) == 2 * of_lstm


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
