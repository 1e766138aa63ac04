"""The CRF layer: its mathematics equals all paths counted by hand on small cases, and pytorch-crf on large ones."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_keras as bk
from bert_keras.model.crf import FORBIDDEN, split_potentials

NAMES = ("O", "B-A", "I-A", "I-B")  # "I-B" has no "B-B", so that it may start an entity
HOLES = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
CASES = {
    **{f"{length} places, {count} tags": (count, length, False) for length in range(1, 6) for count in (2, 3, 4)},
    "constraints": (NAMES, 5, True),
    "constraints, short": (NAMES[:3], 2, True),
}  # fmt: skip


def layer(tags, *, seed: int, **settings) -> bk.CRF:
    """A CRF with random weights."""
    made, draw = bk.CRF(tags, **settings), np.random.default_rng(seed)
    for weight in made.weights:
        weight.assign(draw.normal(size=weight.shape))
    return made


def numbers_by_hand(potentials: np.ndarray, mask: np.ndarray) -> tuple:
    """The score of every path of one sequence, the places [S] of the sequence, and its log-partition, in float64."""
    emissions, start, end, transitions = (
        part[0] for part in split_potentials(potentials[None].astype(float))
    )
    places = np.flatnonzero(mask)
    scores = {}
    for path in itertools.product(range(len(start)), repeat=len(places)):
        steps = sum(transitions[pair] for pair in itertools.pairwise(path))
        scores[path] = start[path[0]] + emissions[places, path].sum() + steps + end[path[-1]] if path else 0.0
    return scores, places, np.logaddexp.reduce([*scores.values()])


@pytest.mark.parametrize("name", CASES)
def test_all_numbers_equal_those_of_all_paths(name):
    tags, length, iob = CASES[name]
    draw = np.random.default_rng(len(name))
    crf = layer(tags, seed=len(name), iob=iob, scale=2.0 if length == 3 else 1.0)
    mask = np.array([[*map(bool, row[:length])] for row in HOLES])
    emissions = draw.normal(size=(len(mask), length, crf.count)).astype("float32")
    gold = draw.integers(-1, crf.count + 1, size=mask.shape)  # both ends are tags that are not known
    potentials = crf(emissions).numpy()
    found = (
        bk.CRF.log_partition(potentials, mask).numpy(),
        bk.CRF.log_likelihood(potentials, gold, mask).numpy(),
        bk.CRF.best_paths(potentials, mask).numpy(),
        bk.CRF.marginals(potentials, mask).numpy(),
    )
    for row, (partition, likelihood, best, marginals) in enumerate(zip(*found, strict=True)):
        scores, places, total = numbers_by_hand(potentials[row], mask[row])
        fits = [
            all(tag == wanted or not 0 <= wanted < crf.count for tag, wanted in zip(path, gold[row, places], strict=True))
            for path in scores
        ]  # fmt: skip
        wanted = np.logaddexp.reduce(np.array([*scores.values()])[fits]) - total
        np.testing.assert_allclose([partition, likelihood], [total, wanted], rtol=2e-5, atol=2e-5)
        path = np.full(length, -1)
        path[places] = max(scores, key=scores.__getitem__)
        np.testing.assert_array_equal(best, path)
        each = np.zeros((length, crf.count))
        for one, score in scores.items():
            each[places, one] += np.exp(score - total)
        np.testing.assert_allclose(marginals, each, atol=2e-5)


@pytest.mark.parametrize("iob", [False, True])
def test_gradients_equal_differences_of_the_loss(iob):
    crf = layer(NAMES, seed=1, iob=iob, dtype="float64")
    draw = np.random.default_rng(2)
    emissions, labels = (
        tf.Variable(draw.normal(size=(3, 4, 4))),
        np.array([[0, 1, 2, 0], [-100, 3, 0, -1], [0, 0, 1, 2]]),
    )

    def loss() -> tf.Tensor:
        return tf.reduce_sum(bk.crf_loss(labels, crf(emissions)))

    variables = [emissions, *(weight.value for weight in crf.trainable_weights)]
    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
        kept, step = variable.numpy(), 1e-6
        for place in np.ndindex(*kept.shape):
            moved = []
            for sign in (1, -1):
                changed = kept.copy()
                changed[place] += sign * step
                variable.assign(changed)
                moved.append(float(loss()))
            np.testing.assert_allclose(gradient.numpy()[place], (moved[0] - moved[1]) / 2 / step, atol=1e-5)
        variable.assign(kept)


def test_marginals_are_the_gradient_of_the_log_partition():
    crf, draw = layer(9, seed=3), np.random.default_rng(4)
    emissions, mask = tf.constant(draw.normal(size=(8, 60, 9)), tf.float32), draw.random((8, 60)) < 0.8
    with tf.GradientTape() as tape:
        tape.watch(emissions)
        potentials = crf(emissions)
        value = tf.reduce_sum(bk.CRF.log_partition(potentials, mask))
    wanted = tape.gradient(value, emissions)
    np.testing.assert_allclose(bk.CRF.marginals(potentials, mask), wanted, atol=1e-4)


def test_constraints_forbid_what_continues_nothing():
    crf = bk.CRF(NAMES, iob=True)
    table = crf(np.zeros((1, 1, 4), "float32")).numpy()[0, 1:]
    open_, shut = 0.0, FORBIDDEN
    wanted = [  # O  B-A  I-A  I-B
        [open_, open_, shut, open_],  # start
        [open_, open_, open_, open_],  # end
        [open_, open_, shut, open_],  # O
        [open_, open_, open_, open_],  # B-A
        [open_, open_, open_, open_],  # I-A
        [open_, open_, shut, open_],  # I-B
    ]
    np.testing.assert_array_equal(table, wanted)
    emissions = np.array([[[0, 0, 9, 0], [0, 0, 9, 0]]], "float32")
    assert bk.CRF.best_paths(crf(emissions)).numpy().tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("tags", "settings", "words"),
    [
        (1, {}, "a CRF has 1 tags; give at least 2"),
        (3, {"iob": True}, "iob needs the names of the tags, and tags is 3"),
    ],
)
def test_settings_that_cannot_work(tags, settings, words):
    with pytest.raises(bk.BertKerasError, match=words):
        bk.CRF(tags, **settings)


def test_emissions_of_another_width_are_refused_when_the_model_is_made():
    states = keras.Input((None, 16))
    for given in (states, np.zeros((1, 2, 16), "float32")):
        with pytest.raises(
            ValueError, match=r"16 columns and has 9 tags; put keras.layers.Dense\(9\) before it"
        ):
            bk.CRF(9)(given)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "float32"])
def test_numbers_are_float32_and_a_file_brings_the_layer_back(policy, tmp_path):
    inputs = keras.Input((None, 4))
    crf = layer(NAMES, seed=5, iob=True, scale=20.0, dtype=policy)
    model = keras.Model(inputs, crf(keras.layers.Dense(4, dtype=policy)(inputs)))
    model.compile("sgd", loss=bk.crf_loss)
    x, y = np.ones((2, 3, 4), "float32"), np.array([[0, 1, -1], [0, 1, 2]])
    potentials = model(x)
    assert potentials.dtype == "float32" and {one.dtype for one in crf.weights} == {"float32"}
    assert np.isfinite(model.evaluate(x, y, verbose=0))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(x), potentials)


@pytest.mark.parity
def test_large_cases_equal_pytorch_crf():
    torch, torchcrf = pytest.importorskip("torch"), pytest.importorskip("torchcrf")
    crf, draw = layer(9, seed=6), np.random.default_rng(7)
    theirs = torchcrf.CRF(9, batch_first=True)
    pairs = {"start": "start_transitions", "end": "end_transitions", "transitions": "transitions"}
    with torch.no_grad():
        for ours, name in pairs.items():
            getattr(theirs, name).copy_(torch.tensor(getattr(crf, ours).numpy()))
    emissions = draw.normal(size=(64, 120, 9)).astype("float32")
    mask = np.arange(120) < draw.integers(1, 121, size=(64, 1))
    gold, potentials = draw.integers(0, 9, size=mask.shape), crf(emissions)
    given = torch.tensor(emissions), torch.tensor(gold)
    wanted = theirs(*given, mask=torch.tensor(mask), reduction="none").detach().numpy()
    np.testing.assert_allclose(bk.CRF.log_likelihood(potentials, gold, mask), wanted, rtol=1e-5)
    paths = bk.CRF.best_paths(potentials, mask).numpy()
    found = [row[places].tolist() for row, places in zip(paths, mask, strict=True)]
    assert found == theirs.decode(given[0], torch.tensor(mask))
