"""Hidden states equal golden arrays, transformers and KerasHub."""

import dataclasses

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
