"""A training's graph goes when its model goes, so that a grid of many runs needs the memory of one."""

import json

import forked
import pytest
from freed_graphs import graphs_made_and_left
from trainings import TESTS

FEATURES = {"feature_layers": "0,1", "lstm_layers": 1, "lstm_units": 4}


@pytest.mark.parametrize(
    "how", [{}, {"micro_batch": 4}, FEATURES], ids=["plain", "micro-batches", "features"]
)
def test_graphs_of_a_finished_training_are_freed(how, tmp_path):
    made, left = graphs_made_and_left(tmp_path, **how)
    assert made and not left


def test_graphs_of_two_replicas_are_freed(tmp_path):
    done = forked.run(TESTS / "freed_graphs.py", tmp_path)
    assert done.returncode == 0, done.stderr
    made, left = json.loads(done.stdout)
    assert made and not left
