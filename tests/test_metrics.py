"""The measures against their definitions: golden numbers, random draws, and draws in which nothing varies."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from golden.make_metrics_golden import DEFINITIONS, MEASURES_OF, draw

from tasks.metrics import MEASURES

GOLDEN = json.loads((Path(__file__).parent / "golden" / "metrics.json").read_text())


def test_every_measure_has_a_definition():
    assert set(MEASURES) == set(DEFINITIONS) == {name for case in GOLDEN for name in case["values"]}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["kind"])
def test_golden(case):
    labels, predictions = np.array(case["labels"]), np.array(case["predictions"])
    got = {name: MEASURES[name](labels, predictions) for name in case["values"]}
    assert got == pytest.approx(case["values"], rel=1e-12)
    assert all(type(value) is float for value in got.values())


@pytest.mark.parametrize("kind", MEASURES_OF)
@pytest.mark.parametrize("count", [2, 3, 7, 200])
def test_random_draws(kind, count):
    generator = random.Random(count)
    for _ in range(10):
        labels, predictions = draw(kind, count, generator)
        for name in MEASURES_OF[kind]:
            expected = DEFINITIONS[name](labels, predictions)
            assert MEASURES[name](np.array(labels), np.array(predictions)) == pytest.approx(
                expected, abs=1e-12
            )


def test_values_known_by_heart():
    labels, predictions = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1])
    #           TP 2, FP 1, FN 1, TN 1
    assert MEASURES["accuracy"](labels, predictions) == pytest.approx(3 / 5)
    assert MEASURES["f1"](labels, predictions) == pytest.approx(2 / 3)  # of class 0 it would be 1 / 2
    assert MEASURES["matthews"](labels, predictions) == pytest.approx((2 * 1 - 1 * 1) / 36**0.5)
    scores, line, curve = np.float32([0, 1, 2, 5]), np.float32([3, 2.5, 2, 0.5]), np.float32([0, 1, 8, 125])
    assert MEASURES["pearson"](scores, line) == pytest.approx(-1)
    assert MEASURES["spearman"](scores, curve) == pytest.approx(1)
    assert MEASURES["pearson"](scores, curve) < 0.97


@pytest.mark.parametrize(
    ("labels", "predictions", "expected"),
    [
        ([0, 1, 1, 0], [0, 0, 0, 0], {"accuracy": 0.5, "f1": 0.0, "matthews": 0.0}),
        ([0, 1, 1, 0], [1, 1, 1, 1], {"accuracy": 0.5, "f1": 2 / 3, "matthews": 0.0}),
        ([0, 0, 0, 0], [0, 0, 0, 0], {"accuracy": 1.0, "f1": 0.0, "matthews": 0.0}),
        ([1, 1], [1, 1], {"accuracy": 1.0, "f1": 1.0, "matthews": 0.0}),
        ([1], [0], {"accuracy": 0.0, "f1": 0.0, "matthews": 0.0}),
        ([0.5, 3.0, 5.0], [2.5, 2.5, 2.5], {"pearson": 0.0, "spearman": 0.0}),
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], {"pearson": 0.0, "spearman": 0.0}),
        ([4.0], [4.0], {"pearson": 0.0, "spearman": 0.0}),
    ],
)
def test_nothing_varies(labels, predictions, expected):
    got = {name: MEASURES[name](np.array(labels), np.array(predictions)) for name in expected}
    assert got == pytest.approx(expected)


def test_diverged_scores_stay_visible():
    scores, diverged = np.float32([1, 2, 3]), np.float32([1, np.nan, 3])
    assert np.isnan(MEASURES["pearson"](scores, diverged)) and np.isnan(
        MEASURES["spearman"](scores, diverged)
    )
