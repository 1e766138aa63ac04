"""The tensor column on JAX, in a process where TensorFlow cannot be imported, equals TensorFlow's numbers."""

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import parity
import pytest

TESTS = Path(__file__).parent
BOUND = 1e-5

# Not in the golden arrays: the other configuration fields, and the last block for one position.
VARIANTS = {
    "causal": {"causal": True},
    "albert": {"embedding_size": 8, "share_layers": True},
    "distilbert": {"type_vocab_size": 0, "pooler_activation": "relu"},
    "roberta": {"position_offset": 2, "type_vocab_size": 1, "norm_epsilon": 1e-5},
}

BLOCK_TENSORFLOW = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text", "tf_keras"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
"""

IMPORT_ALL = """
import bert_keras.config, bert_keras.features, bert_keras.model.layers, bert_keras.model.encoder, bert_keras.model.heads
import bert_keras.optimization.losses, bert_keras.optimization.objectives, bert_keras.optimization.optimizers
import bert_keras.optimization.pretrainers, bert_keras.optimization.schedules
"""

COMPARE = """
import pickle
import keras
import numpy as np
import parity
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ClassifierHead

assert keras.backend.backend() == "jax"
for activation in ("gelu_tanh", "gelu_erf"):
    features, expected = parity.golden(activation)
    parity.assert_equal(parity.golden_ours(activation).outputs(features), expected, bound=BOUND)
    print("golden", activation)

with open(sys.argv[1], "rb") as file:
    for name, (config, features, expected) in pickle.load(file).items():
        ours = parity.seeded(config)
        parity.assert_equal(ours.outputs(features), expected, bound=BOUND)
        alone = BertEncoder(config, outputs=["pooled_output"])
        alone.set_weights(ours.encoder.get_weights())
        pooled = {"pooled_output": [np.asarray(alone(features)["pooled_output"])]}
        parity.assert_equal(pooled, {"pooled_output": expected["pooled_output"]}, bound=BOUND)
        print(name)

# A functional model of unknown length, compiled and trained one step, as on any backend.
inputs = encoder_inputs()
model = keras.Model(inputs, ClassifierHead(3, config=config)(alone(inputs)["pooled_output"]))
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
before = np.array(alone.embedding_table)
model.fit(features, np.zeros(len(features["input_mask"]), "int32"), verbose=0)
assert model.predict(features, verbose=0).shape == (3, 3)
assert np.abs(np.array(alone.embedding_table) - before).max() > 0
print("fit")
assert not any(name.split(".")[0] == "tensorflow" for name in sys.modules)
"""


def run(script, *arguments):
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
    }
    command = [sys.executable, "-c", BLOCK_TENSORFLOW + script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.parity
def test_jax_without_tensorflow_equals_tensorflow(tmp_path):
    pytest.importorskip("jax")
    cases = {}
    for name, changes in VARIANTS.items():
        config = dataclasses.replace(parity.GOLDEN_CONFIG, **changes)
        features = parity.random_features(config, seed=9, batch=3, length=8)
        cases[name] = (config, features, parity.seeded(config).outputs(features))
    (tmp_path / "cases.pickle").write_bytes(pickle.dumps(cases))
    done = run(f"BOUND = {BOUND}" + COMPARE, str(tmp_path / "cases.pickle"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == ["golden gelu_tanh", "golden gelu_erf", *VARIANTS, "fit"]


@pytest.mark.parity
def test_the_tensor_column_imports_without_tensorflow():
    pytest.importorskip("jax")
    done = run(IMPORT_ALL + "assert 'tensorflow' not in sys.modules")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parity
def test_importing_tensorflow_is_blocked():
    pytest.importorskip("jax")
    done = run("import tensorflow")
    assert done.returncode == 1 and "tensorflow is blocked" in done.stderr
