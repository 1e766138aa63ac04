"""Losses and labels that micro-batches cannot take, and `.keras` files of a compiled TrainingModel."""

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from parity import array

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ClassifierHead
from bert_keras.optimization.losses import GlobalMean, cross_entropy, squared_error
from bert_keras.optimization.optimizers import AdamW
from bert_keras.optimization.replicas import check_order, prepared
from bert_keras.optimization.training_model import TrainingModel

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy keyword", "ignore:Gradients do not exist"
    ),
]
X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
Y = np.array([0, 1, 2, 0, 1, 2])


def model(*outputs: int) -> TrainingModel:
    keras.utils.set_random_seed(1)
    x = keras.Input((3,))
    made = [keras.layers.Dense(size, name=f"out{i}")(x) for i, size in enumerate(outputs)]
    return TrainingModel(x, made[0] if len(made) == 1 else made)


def means(count: int) -> list[GlobalMean]:
    return [GlobalMean(cross_entropy) for _ in range(count)]


def steps(made: TrainingModel, y, micro_batch: int | None, loss, **options) -> list[np.ndarray]:
    made.compile(keras.optimizers.SGD(0.5), loss, micro_batch=micro_batch, jit_compile=False)
    made.fit(X, y, batch_size=6, epochs=2, shuffle=False, verbose=0, **options)
    return made.get_weights()


def assert_equal(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_one_hot_labels_are_refused_with_micro_batches():
    """Their weight would count each class: a micro-batch of 2 of 6 rows with 3 classes would be a third of its loss."""
    one_hot, loss = np.eye(3, dtype="float32")[Y], keras.losses.categorical_crossentropy
    steps(model(3), one_hot, None, GlobalMean(loss))
    with pytest.raises(BertKerasError, match="one-hot"):
        steps(model(3), one_hot, 2, GlobalMean(loss))


def test_labels_in_a_column_are_not_one_hot():
    loss = GlobalMean(cross_entropy)
    assert_equal(steps(model(3), Y[:, None], 4, loss), steps(model(3), Y, None, loss))


@pytest.mark.parametrize("labels", [Y, Y[:, None]], ids=["row", "column"])
@pytest.mark.parametrize("weights", [None, X[:, :1] ** 2, X[:, 0] ** 2], ids=["alike", "column", "row"])
def test_columns_in_micro_batches(labels, weights):
    whole, parts = (
        steps(model(1), labels, size, GlobalMean(squared_error), sample_weight=weights) for size in (None, 4)
    )
    wanted = steps(
        model(1), Y, None, GlobalMean(squared_error), sample_weight=None if weights is None else X[:, 0] ** 2
    )
    assert_equal(whole, wanted)
    assert_equal(parts, wanted)


# Three tokens of two numbers; a token of -1 is padding.
MASK = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]], bool)
TOKENS = np.where(MASK[..., None], np.random.default_rng(1).normal(size=(6, 3, 2)), -1).astype("float32")
TAGS = np.random.default_rng(2).integers(0, 4, (6, 3))


def masked_steps(micro_batch, weights):
    keras.utils.set_random_seed(1)
    x = keras.Input((3, 2))
    made = TrainingModel(x, keras.layers.Dense(4)(keras.layers.Masking(-1.0)(x)))
    made.compile(keras.optimizers.SGD(0.5), GlobalMean(cross_entropy), micro_batch=micro_batch)
    logs = made.fit(TOKENS, TAGS, batch_size=6, verbose=0, sample_weight=weights).history["loss"]
    return [np.array(logs), *made.get_weights()]


@pytest.mark.parametrize("weights", [None, X[:, 0] ** 2, np.ones((6, 3))], ids=["none", "rows", "labels"])
def test_masked_labels_have_no_weight(weights):
    """As with weights of 0 at padding."""
    given = 1 if weights is None else weights.reshape(6, -1)
    assert_equal(masked_steps(None, weights), masked_steps(None, MASK * given))


def test_masked_outputs_in_micro_batches_need_weights_of_labels():
    weights = MASK * X[:, :1] ** 2
    assert_equal(masked_steps(4, weights), masked_steps(None, weights))
    for given in (None, X[:, 0] ** 2):
        with pytest.raises(BertKerasError, match="padding mask.*micro_batch.*sample_weight"):
            masked_steps(4, given)
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels at padding have weights"):
        masked_steps(4, np.ones((6, 3)))


def test_outputs_without_a_loss_and_weights_for_all_outputs():
    weights = np.linspace(0.5, 2, 6).astype("float32")
    for losses in ([GlobalMean(cross_entropy), None], means(2)):
        whole, parts = (
            steps(model(3, 3), [Y, Y[::-1].copy()], size, losses, sample_weight=weights) for size in (None, 4)
        )
        assert_equal(parts, whole)


def logs_and_weights(losses, labels, micro_batch):
    """The logs of two epochs of two batches, of two outputs whose order is not that of their names."""
    keras.utils.set_random_seed(1)
    x = keras.Input((3,))
    made = TrainingModel(x, [keras.layers.Dense(3, name=name)(x) for name in ("z", "a")])
    made.compile(keras.optimizers.SGD(0.5), losses, micro_batch=micro_batch, jit_compile=False)
    logs = made.fit(X, labels, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return [*map(np.array, logs.values()), *made.get_weights()], {*logs}


@pytest.mark.parametrize("named_losses", [True, False])
@pytest.mark.parametrize("named_labels", [True, False])
def test_losses_and_labels_by_name_or_in_order(named_losses, named_labels):
    """Losses, their logs and updates are those of whole batches."""
    labels = [Y, np.array([0, 1, -100, -100, 2, -100])]
    given = [
        dict(zip("za", values, strict=True)) if named else values
        for values, named in ((means(2), named_losses), (labels, named_labels))
    ]
    whole, names = logs_and_weights(*given, None)
    assert names == {"loss", "z_loss", "a_loss"}
    assert_equal(logs_and_weights(*given, 1)[0], whole)
    assert_equal(logs_and_weights(*given, 3)[0], whole)


@pytest.mark.parametrize(
    ("losses", "labels", "weights", "message"),
    [
        (GlobalMean(cross_entropy), 2, None, "with 1 GlobalMeans and 2 labels"),
        (means(2), 1, None, "with 2 GlobalMeans and 1 labels"),
        (means(2), 2, [X[:, 0]], "with 2 GlobalMeans and 1 weights"),
    ],
    ids=["one loss for two outputs", "labels for one of two losses", "weights for one of two losses"],
)
def test_losses_without_labels_or_weights_of_their_own_are_refused(losses, labels, weights, message):
    made = model(3, 3)
    made.compile("sgd", losses, micro_batch=2)
    with pytest.raises(BertKerasError, match=message):
        [*made.loss_terms([Y] * labels, weights)]


ACCUMULATING = keras.optimizers.Adam(gradient_accumulation_steps=2)
ACCUMULATION = "gradient_accumulation_steps.*micro-batch"
ONE = GlobalMean(cross_entropy)


@pytest.mark.parametrize(
    ("optimizer", "losses", "micro_batch", "message"),
    [
        (ACCUMULATING, ONE, None, ACCUMULATION),
        (keras.optimizers.LossScaleOptimizer(ACCUMULATING), ONE, None, ACCUMULATION),
        ("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), 2, "GlobalMean"),
        ("adam", ONE, 0, "micro_batch is 0; give at least 1 row"),
        ("adam", ONE, -1, "micro_batch is -1; give at least 1 row"),
        ("adam", [ONE, ONE], 2, "one GlobalMean object"),  # each output has a weight of its own
    ],
)
def test_steps_that_cannot_accumulate_are_refused(optimizer, losses, micro_batch, message):
    made = model(3, 3) if isinstance(losses, list) else model(3)
    with pytest.raises(BertKerasError, match=message):
        made.compile(optimizer, losses, micro_batch=micro_batch)


def test_micro_batches_are_not_compiled():
    """XLA needs batches of one size."""
    made = model(3, 3)
    made.compile("adam", means(2), micro_batch=2)
    assert made.jit_compile is False


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("executed", [2, 5])
def test_executions_that_do_not_divide_the_steps(executed, run_eagerly):
    """Three batches an epoch: logs and weights are those of single steps."""
    found = []
    for count in (1, executed):
        made = model(1)
        how = {"steps_per_execution": count, "run_eagerly": run_eagerly, "jit_compile": False}
        made.compile(keras.optimizers.SGD(0.1), "mse", **how)
        logs = made.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0).history["loss"]
        assert made.optimizer.iterations == 6
        measured = made.evaluate(X, Y, batch_size=2, verbose=0)
        found.append([np.array(logs), *made.get_weights(), np.array(measured)])
    assert_equal(*found)


class OwnSteps(TrainingModel):
    """Steps and a loss as Keras' guides write them."""

    def compute_loss(self, x, y, y_pred, sample_weight):
        return keras.ops.mean(y_pred)

    def train_step(self, data):
        super().train_step(data)
        return {"rows": keras.ops.cast(keras.ops.shape(data[0])[0], "float32")}

    def test_step(self, data):
        return super().test_step(data) | {"twice": 2.0 * keras.ops.mean(self(data[0]))}


@pytest.mark.parametrize("executed", [1, 2])
def test_logs_of_a_step_of_ones_own_are_kept(executed):
    keras.utils.set_random_seed(1)
    x = keras.Input((3,))
    made = OwnSteps(x, keras.layers.Dense(1)(x))
    made.compile("sgd", steps_per_execution=executed, jit_compile=False)
    assert made.fit(X, Y, batch_size=2, verbose=0).history == {"rows": [2.0]}
    logs = made.evaluate(X, Y, batch_size=6, verbose=0, return_dict=True)
    assert {*logs} == {"loss", "twice"} and logs["twice"] == pytest.approx(2 * logs["loss"])
    assert made.train_on_batch(X, Y, return_dict=True) == {"rows": 6.0}


def test_an_order_that_differs_between_workers_is_refused():
    tf.random.set_seed(None)
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    check_order(data.batch(2), shuffle=True)
    check_order(data.shuffle(6, seed=1).batch(2), shuffle=True)
    with pytest.raises(BertKerasError, match="shuffled without a seed.*give Dataset.shuffle the same seed"):
        check_order(data.shuffle(6).batch(2).prefetch(1), shuffle=True)
    check_order(X, shuffle=False)
    with pytest.raises(BertKerasError, match="call keras.utils.set_random_seed .* or give shuffle=False"):
        check_order(X, shuffle=True)
    keras.utils.set_random_seed(1)
    check_order(X, shuffle=True)
    check_order(data.shuffle(6).batch(2), shuffle=True)


def test_a_generator_of_none_for_weights():
    made = model(1)
    made.compile("sgd", "mse", jit_compile=False)
    batches = ((X[rows], Y[rows], None) for rows in (slice(3), slice(3, 6)))
    assert made.evaluate(batches, steps=2, verbose=0) == pytest.approx(
        made.evaluate(X, Y, verbose=0), rel=1e-6
    )


@pytest.mark.parametrize("loss", ["mse", GlobalMean(squared_error)], ids=["of Keras", "GlobalMean"])
def test_the_loss_of_an_epoch_with_weights(loss):
    """Keras' losses divide by rows, GlobalMean by weights: so does the mean over batches of unequal weights."""
    weights = np.float32([1, 1, 1, 1, 9, 3])
    made = model(1)
    made.compile(loss=loss, jit_compile=False)
    losses = np.square(made.predict(X, verbose=0)[:, 0] - Y) * weights
    wanted = losses.sum() / (6 if loss == "mse" else weights.sum())
    found = made.evaluate(X, Y, sample_weight=weights, batch_size=2, verbose=0)
    assert found == pytest.approx(wanted, rel=1e-5)


LOAD = """
import sys, keras, numpy as np, bert_keras
made = keras.models.load_model(sys.argv[1])
assert type(made).__name__ == "TrainingModel" and made.compiled and made.micro_batch == 4, vars(made)
data = np.load(sys.argv[2])
made.fit(data["x"], data["y"], batch_size=6, epochs=2, shuffle=False, verbose=0)
np.savez(sys.argv[3], *made.get_weights(), made.optimizer.iterations.numpy())
"""


def test_a_frozen_encoder_stays_frozen_in_files_and_copies(tmp_path):
    config = BertConfig(vocab_size=9, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16)
    encoder, inputs = BertEncoder(config, outputs=[POOLED_OUTPUT]), encoder_inputs()
    made = TrainingModel(inputs, ClassifierHead(2, config=config)(encoder(inputs)[POOLED_OUTPUT]))
    encoder.trainable = False
    made.compile(AdamW(0.1), GlobalMean(cross_entropy), run_eagerly=True)
    x = {name: np.ones((2, 4), "int32") for name in inputs}
    made.fit(x, np.array([0, 1]), verbose=0)
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for other in (loaded, keras.models.clone_model(made), keras.models.model_from_json(made.to_json())):
        assert len(other.trainable_variables) == len(made.trainable_variables) == 2
    assert_equal([*map(array, loaded.optimizer.variables)], [*map(array, made.optimizer.variables)])


def test_a_saved_model_loads_compiled_and_trains_on(tmp_path):
    """In a fresh process, with its micro-batch and the state of its optimizer."""
    made = model(3)
    made.compile(AdamW(0.1), GlobalMean(cross_entropy), micro_batch=4)
    how = {"batch_size": 6, "epochs": 2, "shuffle": False, "verbose": 0}
    made.fit(X, Y, **how)
    made.save(tmp_path / "model.keras")
    made.fit(X, Y, **how)
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    (tmp_path / "load.py").write_text(LOAD)
    done = forked.run(*(tmp_path / name for name in ("load.py", "model.keras", "data.npz", "found.npz")))
    assert done.returncode == 0 and "UserWarning" not in done.stderr, done.stderr[-2000:]
    *weights, iterations = np.load(tmp_path / "found.npz").values()
    assert iterations == 4
    assert_equal(weights, made.get_weights())


def test_the_loss_of_float16_layers_is_scaled():
    """Keras looks at the policy of the model, which is the global one."""
    x = keras.Input((3,))
    made = TrainingModel(x, keras.layers.Dense(3, dtype="mixed_float16")(x))
    for scales in (True, False):
        made.compile("adam", GlobalMean(cross_entropy), auto_scale_loss=scales)
        assert isinstance(made.optimizer, keras.optimizers.LossScaleOptimizer) == scales


@pytest.mark.parametrize(("chosen", "expected"), [(None, False), (True, True), (False, False)])
def test_data_sets_are_not_autotuned_unless_asked(chosen, expected, monkeypatch):
    """Autotuning can make the end of an iterator wait as long as the epoch took."""
    seen = []
    for name in ("fit", "evaluate", "predict"):
        monkeypatch.setattr(keras.Model, name, lambda self, data, **_: seen.append(data.options()))
    options = tf.data.Options()
    if chosen is not None:
        options.autotune.enabled = chosen
    data = tf.data.Dataset.from_tensors((np.zeros([2, 3], "float32"), np.zeros(2))).with_options(options)
    made = model(1)
    made.compile("sgd", "mse")
    for call in (made.fit, made.evaluate, made.predict):
        call(data)
    assert [one.autotune.enabled for one in seen] == [expected] * 3


def test_a_chosen_policy_of_shards_stays():
    """A worker that has files of its own reads all of them."""
    policies = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.OFF
    for given, wanted in ((tf.data.Options(), policies.DATA), (options, policies.OFF)):
        made = prepared(tf.data.Dataset.range(4).with_options(given))
        assert made.options().experimental_distribute.auto_shard_policy == wanted
