"""Writes encoder.npz: what `transformers` computes in float64 for fixed inputs, erf and tanh gelu.

    python tests/golden/make_encoder_golden.py        (from the repository root, with the `parity` extra)

The weights are not stored: `parity.random_weights` draws them from WEIGHTS_SEED.
"""

import dataclasses
import pathlib
import sys

import numpy as np

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import parity  # noqa: E402


def main() -> None:
    features = parity.random_features(parity.GOLDEN_CONFIG, seed=512, batch=2, length=9)
    stored = dict(features)
    for activation in ("gelu_tanh", "gelu_erf"):
        config = dataclasses.replace(parity.GOLDEN_CONFIG, activation=activation)
        weights = parity.random_weights(parity.Ours.build(config).shapes(), seed=parity.WEIGHTS_SEED)
        theirs = parity.hugging_face(config, weights, dtype="float64")
        for name, arrays in parity.hugging_face_outputs(theirs, features).items():
            stored |= {f"{activation}/{name}/{i:02d}": array for i, array in enumerate(arrays)}
    np.savez_compressed(parity.GOLDEN, **stored)
    print(f"{parity.GOLDEN}: {len(stored)} arrays, {parity.GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
