"""Hidden states equal golden arrays, transformers, KerasHub, and TensorFlow's numbers on JAX."""

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import parity
import pytest
from parity import random_features

from bert_keras.config import BertConfig
from bert_keras.features import ENCODER_OUTPUTS, POOLED_OUTPUT


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float64", 1e-9)])
def test_golden_arrays(activation, dtype, bound):
    features, expected = parity.golden(activation)
    parity.assert_equal(parity.golden_ours(activation, dtype=dtype).outputs(features), expected, bound=bound)


def test_golden_arrays_tell_the_two_gelus_apart():
    tanh, erf = (parity.golden(activation)[1] for activation in ("gelu_tanh", "gelu_erf"))
    for name in (ENCODER_OUTPUTS, POOLED_OUTPUT, parity.MLM_LOGITS, parity.NSP_LOGITS):
        assert max(np.abs(a - b).max() for a, b in zip(tanh[name], erf[name], strict=True)) > 5e-5, name


def with_random_weights(config, *, dtype="float32", seed=1):
    ours = parity.Ours.build(config, dtype=dtype)
    weights = parity.random_weights(ours.shapes(), seed=seed)
    ours.assign(weights)
    return ours, weights


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float64", 1e-9)])
def test_equals_transformers_at_tiny_size(activation, dtype, bound):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    config = BertConfig.named("tiny", vocab_size=1000, activation=activation)
    ours, weights = with_random_weights(config, dtype=dtype)
    theirs = parity.hugging_face(config, weights, dtype=dtype)
    for seed, length in ((3, 2), (4, 23), (5, 128)):
        features = random_features(config, seed=seed, batch=3, length=length)
        parity.assert_equal(
            ours.outputs(features), parity.hugging_face_outputs(theirs, features), bound=bound
        )


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_equals_transformers_at_base_size(activation):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    config = BertConfig.named("base", activation=activation)
    ours, weights = with_random_weights(config)
    features = random_features(config, seed=3, batch=2, length=40)
    theirs = parity.hugging_face_outputs(parity.hugging_face(config, weights), features)
    parity.assert_equal(ours.outputs(features), theirs, bound=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu_erf", "gelu_tanh"])
def test_equals_transformers_at_real_weights(activation):
    """MiniLM-L6 out of the demo's cache, with its own gelu (erf) and with the other; its heads are random."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from bert_keras.savedmodels import demo

    folder = demo.cache_folder() / f"{demo.WEIGHTS.name}-{demo.WEIGHTS.version}"
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"no real weights in {folder}: `bert-keras demo` fetches them")
    config, real = parity.real_weights(folder)
    assert config.activation == "gelu_erf"
    config = dataclasses.replace(config, activation=activation)
    ours = parity.Ours.build(config)
    weights = parity.random_weights(ours.shapes(), seed=1) | real
    ours.assign(weights)
    features = random_features(config, seed=3, batch=2, length=40)
    theirs = parity.hugging_face_outputs(parity.hugging_face(config, weights), features)
    parity.assert_equal(ours.outputs(features), theirs, bound=1e-5)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")  # KerasHub's, on import
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float64", 1e-6)])
def test_equals_keras_hub(dtype, bound):
    """In float64 `keras.ops.gelu`, which KerasHub calls, keeps its constants in float32: hence 1e-6."""
    pytest.importorskip("keras_hub")
    config = BertConfig.named("tiny", vocab_size=1000)
    ours, weights = with_random_weights(config, dtype=dtype)
    features = random_features(config, seed=3, batch=3, length=40)
    theirs = parity.keras_hub_outputs(config, weights, features, dtype=dtype)
    parity.assert_equal(ours.outputs(features), theirs, bound=bound)


# --- On JAX, in a process where TensorFlow cannot be imported

TESTS = Path(__file__).parent
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
@pytest.mark.slow
def test_jax_without_tensorflow_equals_tensorflow(tmp_path):
    pytest.importorskip("jax")
    cases = {}
    for name, changes in VARIANTS.items():
        config = dataclasses.replace(parity.GOLDEN_CONFIG, **changes)
        features = parity.random_features(config, seed=9, batch=3, length=8)
        cases[name] = (config, features, parity.seeded(config).outputs(features))
    (tmp_path / "cases.pickle").write_bytes(pickle.dumps(cases))
    done = run("BOUND = 1e-5" + COMPARE, str(tmp_path / "cases.pickle"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == ["golden gelu_tanh", "golden gelu_erf", *VARIANTS, "fit"]


@pytest.mark.parity
def test_the_tensor_column_imports_without_tensorflow():
    pytest.importorskip("jax")
    done = run(IMPORT_ALL + "print('imported')\nassert 'tensorflow' not in sys.modules\nimport tensorflow")
    assert done.stdout == "imported\n" and "tensorflow is blocked" in done.stderr, done.stderr[-3000:]
