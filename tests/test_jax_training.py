"""Pre-training and fine-tuning steps on JAX equal TensorFlow's; two devices, by data or by model, equal one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.parity, pytest.mark.long, pytest.mark.timeout(600)]
TESTS = Path(__file__).parent
TWO_DEVICES = ("tags", "masked LM and next sentence", "ELECTRA")
# A key's bias adds one number to all scores of a query, which changes no probability: its gradient is rounding, from which Adam
# makes steps of full length in any direction.
WITHOUT_GRADIENT = "attention/key/bias"
# Weights are within 1e-5, except where a gradient near 0 decides the direction of Adam's first steps.
BOUNDS = {"spans, AdamW": 2e-4, "classifier, LAMB": 5e-5, "ELECTRA, AdamW": 5e-5}


def steps(backend, how, folder, *names):
    """Losses and weights of tests/ready_steps.py in a process of its own."""
    file = folder / f"{backend}_{how}.npz"
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "JAX_PLATFORMS": "cpu",
        # Level 0: half of the time to compile, and the same arithmetic.
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
        "PYTHONPATH": str(TESTS.parent),
    }
    command = [sys.executable, str(TESTS / "ready_steps.py"), how, str(file), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(file)


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    pytest.importorskip("jax")
    return steps("jax", "one", tmp_path_factory.mktemp("jax"))


def assert_same(ours, theirs):
    assert {*ours.files} <= {*theirs.files}
    for name in ours.files:
        case, *what = name.split("|")
        if what == ["losses"]:
            assert ours[name][1] < ours[name][0]
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, err_msg=name)
        elif not name.endswith(WITHOUT_GRADIENT):
            np.testing.assert_allclose(ours[name], theirs[name], atol=BOUNDS.get(case, 1e-5), err_msg=name)


def test_ten_updates_equal_tensorflow_s(on_jax, tmp_path):
    assert len(on_jax.files) > 200
    assert_same(on_jax, steps("tensorflow", "one", tmp_path))


@pytest.mark.parametrize("how", [pytest.param("data", marks=pytest.mark.slow), "model"])
def test_ten_updates_on_two_devices_equal_one(how, on_jax, tmp_path):
    """By data: each device has half of a batch. By model: each has half of the feed-forward weights."""
    assert_same(steps("jax", how, tmp_path, *TWO_DEVICES), on_jax)
