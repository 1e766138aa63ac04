"""The loss of an evaluation and of the history is one number, whatever the size of the batches: checked against NumPy."""

import contextlib

import jobs
import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.training_model import TrainingModel

RNG = np.random.default_rng(5)
ROWS, SLOTS, CLASSES = 12, 4, 3
LOGITS = RNG.normal(size=(ROWS, SLOTS, CLASSES)).astype("float32")
LABELS = RNG.integers(CLASSES, size=(ROWS, SLOTS)).astype("int32")
KNOWN = np.where(RNG.random((ROWS, SLOTS)) < 0.4, -100, LABELS).astype("int32")
KNOWN[0] = -100  # a batch without a label
ROW_WEIGHTS = RNG.choice([0.0, 0.5, 3.0], size=ROWS).astype("float32")
SLOT_WEIGHTS = RNG.choice([0.0, 0.5, 3.0], size=(ROWS, SLOTS)).astype("float32")

# By name: labels, and weights or None.
CASES = {
    "all known": (LABELS, None),
    "-100": (KNOWN, None),
    "-100, a weight a row": (KNOWN, ROW_WEIGHTS),
    "-100, a weight a label": (KNOWN, SLOT_WEIGHTS),
    "a weight a row": (LABELS, ROW_WEIGHTS),
}


def by_hand(labels: np.ndarray, weights: np.ndarray | None) -> float:
    """The sum of the weighted losses over the sum of the weights, in float64."""
    logits = LOGITS.astype("float64")
    losses = (
        np.log(np.exp(logits).sum(-1))
        - np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0]
    )
    given = np.ones(labels.shape) if weights is None else weights.reshape(ROWS, -1) * np.ones(labels.shape)
    given = np.where(labels >= 0, given, 0)
    return float((losses * given).sum() / given.sum())


def identity(micro_batch: int | None = None) -> TrainingModel:
    """A model whose outputs are its inputs; the rate is 0, so that every epoch has the same loss."""
    inputs = keras.Input((SLOTS, CLASSES))
    scaled = keras.layers.EinsumDense(
        "abc,cd->abd", (None, CLASSES), kernel_initializer=keras.initializers.Identity()
    )
    model = TrainingModel(inputs, scaled(inputs))
    model.compile(keras.optimizers.SGD(0.0), GlobalMean(cross_entropy), micro_batch=micro_batch)
    return model


def losses_of(case: str, *, replicas: int = 1) -> dict[str, list[float]]:
    """The losses of an evaluation and of an epoch, for batches of 1, 2, 4 and 5 rows."""
    labels, weights = CASES[case]
    devices = [f"CPU:{i}" for i in range(replicas)]
    scope = tf.distribute.MirroredStrategy(devices).scope() if replicas > 1 else contextlib.nullcontext()
    with scope:
        models = [identity(), *([] if replicas > 1 else [identity(micro_batch=2)])]
    found: dict[str, list[float]] = {"evaluate": [], "fit": []}
    for size in (2, 4) if replicas > 1 else (1, 2, 4, 5):
        parts = [LOGITS, labels] if weights is None else [LOGITS, labels, weights]
        data = tf.data.Dataset.from_tensor_slices(tuple(parts)).batch(size)
        for model in models:
            found["evaluate"].append(model.evaluate(data, verbose=0))
            found["fit"].append(model.fit(data, shuffle=False, verbose=0).history["loss"][0])
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_loss_does_not_depend_on_the_size_of_batches(case):
    for losses in losses_of(case).values():
        np.testing.assert_allclose(losses, by_hand(*CASES[case]), rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("case", ["-100", "-100, a weight a row"])
def test_the_loss_does_not_depend_on_replicas(case):
    found = jobs.value("test_batch_sizes:losses_of", {"case": case, "replicas": 2}, replicas=2)
    for losses in found.values():
        np.testing.assert_allclose(losses, by_hand(*CASES[case]), rtol=1e-5)


def test_a_mask_of_padding_counts_as_no_label():
    inputs = keras.Input((SLOTS, CLASSES))
    model = TrainingModel(inputs, keras.layers.Masking(mask_value=7.0)(inputs))
    model.compile(keras.optimizers.SGD(0.0), GlobalMean(cross_entropy))
    masked = np.where(KNOWN[..., None] < 0, 7.0, LOGITS)
    losses = [model.evaluate(masked, LABELS, batch_size=size, verbose=0) for size in (1, 2, 4)]
    np.testing.assert_allclose(losses, by_hand(KNOWN, None), rtol=1e-5)
