"""Losses for each label, their weighted mean, and learning rate schedules."""

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.optimization.losses import GlobalMean, binary_cross_entropy, cross_entropy, squared_error
from bert_keras.optimization.schedules import LinearAfterWarmup, SlantedTriangular, WarmupLinearDecay


def test_schedule():
    """Rising to the peak, then on the line from the peak at step 0 to nothing at the end."""
    schedule = WarmupLinearDecay(1e-3, total_steps=100, warmup_steps=10)
    rates = {0: 0.0, 1: 1e-4, 9: 9e-4, 10: 9e-4, 50: 5e-4, 99: 1e-5, 100: 0.0, 101: 0.0}
    np.testing.assert_allclose([float(schedule(step)) for step in rates], list(rates.values()), atol=1e-9)
    assert float(WarmupLinearDecay(1e-3, total_steps=10, warmup_steps=0)(0)) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("warmup", "rates"),
    [
        (20, {0: 0.0, 5: 2.5e-4, 20: 1e-3, 60: 5e-4, 99: 1.25e-5, 100: 0.0, 101: 0.0}),
        (0, {0: 1e-3, 50: 5e-4, 100: 0.0}),
        (100, {50: 5e-4, 100: 1e-3, 101: 0.0}),
    ],
)
def test_a_decay_that_counts_from_the_end_of_the_warmup(warmup, rates):
    schedule = LinearAfterWarmup(1e-3, total_steps=100, warmup_steps=warmup)
    np.testing.assert_allclose([float(schedule(step)) for step in rates], list(rates.values()), atol=1e-9)


def test_slanted_triangular_schedule():
    """Howard and Ruder 2018, eq. 3, written again: T 100, cut_frac 0.1, ratio 32."""
    schedule = SlantedTriangular(0.01, total_steps=100, warmup_steps=10)

    def rate(t, cut=10, cut_frac=0.1):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
        return 0.01 * (1 + p * 31) / 32

    steps = [0, 1, 9, 10, 11, 55, 99, 100]
    np.testing.assert_allclose([float(schedule(t)) for t in steps], [rate(t) for t in steps], rtol=1e-5)
    by_hand = {0: 1, 10: 32, 55: 16.5, 100: 1, 1000: 1}  # never under the first
    for step, part in by_hand.items():
        assert float(schedule(step)) == pytest.approx(0.01 * part / 32)
    for warmup in (0, 10):
        edge = SlantedTriangular(1.0, total_steps=10, warmup_steps=warmup)
        rates = [float(edge(step)) for step in range(10)]
        assert max(rates) == rates[0 if warmup == 0 else 9] and min(rates) >= 1 / 32
    again = SlantedTriangular.from_config(schedule.get_config())
    assert type(again) is SlantedTriangular and float(again(3)) == float(schedule(3))


@pytest.mark.parametrize(("total", "warmup"), [(0, 0), (10, 11), (10, -1)])
def test_schedule_refuses(total, warmup):
    with pytest.raises(ValueError, match=f"warmup_steps is {warmup} and total_steps is {total}; "):
        WarmupLinearDecay(1e-3, total_steps=total, warmup_steps=warmup)


def test_cross_entropy_and_squared_error():
    logits = np.float32([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    labels = np.int32([0, 2, -1])  # a withheld label costs nothing
    expected = np.log(np.exp(np.float64(logits)).sum(1)) - logits[range(3), labels]
    expected[2] = 0
    np.testing.assert_allclose(cross_entropy(labels, logits), expected, rtol=1e-6)
    np.testing.assert_allclose(squared_error(np.float32([1, 5]), np.float32([[3], [5]])), [4, 0])


def test_mean_divides_by_the_weights():
    """3 real of 20 slots: Keras' own default would divide by 20."""
    labels, weights = np.zeros(20, "int32"), np.float32([1, 2, 0.5] + [0] * 17)
    logits = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    losses = np.float64(cross_entropy(labels, logits))
    mean = GlobalMean(cross_entropy)
    np.testing.assert_allclose(mean(labels, logits, weights), (losses * weights).sum() / 3.5, rtol=1e-6)
    np.testing.assert_allclose(mean(labels, logits), losses.mean(), rtol=1e-6)
    assert float(mean(labels, logits, np.zeros(20, "float32"))) == 0.0


def test_a_weight_for_each_row_counts_for_all_its_slots():
    """Losses [3, 3] and weights [3], which would broadcast along the wrong axis."""
    logits = np.random.default_rng(0).normal(size=(3, 3, 4)).astype("float32")
    labels, weights = np.int32([[0, 1, 2]] * 3), np.float32([1, 0, 3])
    losses = np.float64(cross_entropy(labels, logits))
    wanted = (losses * weights[:, np.newaxis]).sum() / (4 * 3)
    np.testing.assert_allclose(GlobalMean(cross_entropy)(labels, logits, weights), wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_a_negative_label_has_no_weight(dtype):
    """Loss and gradient are those of the labelled rows alone: Hugging Face's data marks the others with -100."""
    labels, weights = np.array([2, -100, 1, -1]).astype(dtype), np.float32([1, 3, 0.5, 2])
    logits = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)
    mean = GlobalMean(cross_entropy)
    for given, labelled in ((None, None), (weights, weights[::2])):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(logits)
            found, wanted = mean(labels, logits, given), mean(labels[::2], logits[::2], labelled)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        gradient = tape.gradient(found, logits).numpy()
        np.testing.assert_allclose(gradient[::2], tape.gradient(wanted, logits).numpy()[::2], rtol=1e-5)
        assert not gradient[1::2].any()
    np.testing.assert_array_equal(mean(labels[:, None], logits), mean(labels, logits))
    assert float(mean(np.full(4, -100), logits)) == 0.0


def test_negative_labels_in_a_stock_fit():
    """Two slots of three have a label in each batch: the update is that of a fit on these alone."""
    rows, labels = np.random.default_rng(0).normal(size=(6, 4)), np.int32([1, -100, 0, -100, 1, 0])
    kernels = []
    for known in (np.full(6, True), labels >= 0):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(1.0), GlobalMean(cross_entropy), jit_compile=False)
        model.fit(rows[known], labels[known], batch_size=6, shuffle=False, verbose=0)
        kernels.append(model.get_weights()[0])
    np.testing.assert_allclose(*kernels, rtol=1e-6)


def test_negative_numbers_are_scores_to_other_losses():
    scores, outputs = np.float32([-1, 2]), np.float32([[0], [0]])
    assert float(GlobalMean(squared_error)(scores, outputs)) == 2.5


COLUMN = np.float32([[1], [2], [3], [4]])
OUTPUTS = np.float32([[2], [0], [0], [1]])
SQUARES = [1, 4, 9, 9]


@pytest.mark.parametrize("labels", [COLUMN, COLUMN[:, 0]], ids=["column", "row"])
@pytest.mark.parametrize("weights", [None, COLUMN, COLUMN[:, 0]], ids=["alike", "column", "row"])
@pytest.mark.parametrize("loss", [squared_error, binary_cross_entropy])
def test_columns_of_labels_and_weights_are_rows(loss, labels, weights):
    """[B] and [B, 1] would broadcast to [B, B]."""
    losses = SQUARES if loss is squared_error else loss(COLUMN, OUTPUTS)[:, 0]
    wanted = np.average(losses, weights=None if weights is None else COLUMN[:, 0])
    np.testing.assert_allclose(GlobalMean(loss)(labels, OUTPUTS, weights), wanted, rtol=1e-6)


def test_squared_error_as_a_keras_loss():
    """Keras makes labels [B, 1] of [B] where the outputs are [B, 1]."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    model.compile(loss=squared_error)
    assert model.evaluate(OUTPUTS, COLUMN[:, 0], verbose=0) == pytest.approx(np.mean(SQUARES))
    np.testing.assert_allclose(squared_error(COLUMN, OUTPUTS[:, 0]), SQUARES)


def test_shapes_that_do_not_fit_are_refused():
    wide = np.zeros((4, 3), "float32")
    with pytest.raises(BertKerasError, match=r"outputs of the shape \(4, 3\)"):
        squared_error(COLUMN, wide)
    for labels in (wide, COLUMN[:3], COLUMN[..., np.newaxis]):
        with pytest.raises(BertKerasError, match="one label for each output"):
            squared_error(labels, OUTPUTS)
    with pytest.raises(BertKerasError, match=r"sample_weight has the shape \(4, 3\)"):
        GlobalMean(squared_error)(COLUMN, OUTPUTS, wide)


LOADED = """
import sys
import numpy as np, keras, bert_keras
model = keras.models.load_model(sys.argv[1])
labels = np.array([0, -100, -100, 1])
print(model.evaluate(np.ones((4, 2), "float32"), labels, verbose=0))
"""


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_loaded_mean_leaves_out_negative_labels(tmp_path):
    """In a process that has not imported the losses, Keras finds a stand-in for `cross_entropy`."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("adam", GlobalMean(cross_entropy))
    model.save(tmp_path / "model.keras")
    (tmp_path / "loaded.py").write_text(LOADED)
    done = forked.run(tmp_path / "loaded.py", tmp_path / "model.keras")
    assert done.returncode == 0, done.stderr
    wanted = model.evaluate(np.ones((4, 2), "float32"), np.array([0, -100, -100, 1]), verbose=0)
    assert float(done.stdout) == pytest.approx(wanted, rel=1e-6)
