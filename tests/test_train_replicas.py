"""Fine-tuning on two replicas equals one device."""

import jobs
import numpy as np
import pytest

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def two_replicas():
    return jobs.value("distributed_two_replicas:compare", replicas=2)


@pytest.mark.parametrize(("scenario", "steps"), [("short_batches", 12), ("padded", 6)])
def test_two_replicas_do_what_one_device_does(two_replicas, scenario, steps):
    """Weights that differ a thousandfold between the replicas, clipping at every step.

    Where `pad_batches` adds rows, to a first batch that two replicas do not divide, the weighted mean is the measure.
    """
    got = two_replicas[scenario]
    assert got["steps"] == steps
    assert got["least_norm"] > 2 * got["clip"]
    assert got["difference"] <= 1e-5
    assert got["means_of_two"] == pytest.approx(got["means"], rel=1e-6)
    assert got["losses"][0] != got["losses"][1]
    if scenario != "padded":
        assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)


def test_batches_that_replicas_do_not_divide(two_replicas):
    """Rows of weight 0 fill windows up; weights and the logged loss stay those of one device."""
    got = two_replicas["odd_batches"]
    assert (got["rows"], got["rows_of_two"]) == ([9, 9, 3], [10, 10, 4])
    assert got["difference"] <= 1e-6
    assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)


def test_gradual_unfreezing_on_two_replicas(two_replicas):
    """With a rate for each layer: the same weights as on one device, and the embeddings wait for epoch 2."""
    got = two_replicas["gradual"]
    assert got["difference"] <= 1e-5
    assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)
    first, last = got["embeddings_moved"]
    assert first == 0 < last


def test_rematerialization_on_two_replicas(two_replicas):
    """With dropout, in whole batches and in micro-batches."""
    assert {*two_replicas["rematerialized"]} == {"None", "3"}
    assert max(two_replicas["rematerialized"].values()) <= 1e-6


def test_choices_on_two_replicas(two_replicas):
    results = two_replicas["choices"]
    assert (results["strategy"], results["train_examples"], results["steps"]) == ("mirrored", 33, 5)
    assert np.isfinite(results["history"][0]["loss"])
    assert results["reloaded"] == {"accuracy": results["measures"]["val_accuracy"]}


def test_vectors_on_two_replicas(two_replicas):
    """A feature-based training of choices, in batches of nine: the weights of one device."""
    got = two_replicas["vectors"]
    assert got["steps"] == [4, 4]
    assert got["difference"] <= 1e-6
    assert got["losses"][0] == pytest.approx(got["losses"][1], rel=1e-6)


def test_finetune_on_two_replicas(two_replicas):
    """A run directory as from one device, in batches of nine."""
    results = two_replicas["finetune"]
    assert (results["strategy"], results["train_examples"], results["steps"]) == ("mirrored", 33, 4)
    assert np.isfinite(results["history"][0]["loss"])
    assert results["reloaded"] == {"accuracy": results["measures"]["val_accuracy"]}


def test_evaluate_and_predict_on_two_replicas(two_replicas):
    """In batches of seven: the answers of one device."""
    ((measures, records), (measures_of_two, records_of_two)) = two_replicas["commands"]
    assert measures_of_two == measures
    assert len(records_of_two) == len(records) > 7
    for two, one in zip(records_of_two, records, strict=True):
        assert two["label"] == one["label"] and two["sentence"] == one["sentence"]
        assert two["probabilities"] == pytest.approx(one["probabilities"], abs=1e-6)
