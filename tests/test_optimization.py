"""The optimizers against their formulas written again in numpy; layer-wise rates and frozen weights."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.layers import Embeddings
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.optimizers import LAMB, AdamW, depths
from bert_keras.optimization.schedules import WarmupLinearDecay
from bert_keras.tasks.task import classifier_model

TINY = BertConfig(
    vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=16
)


def in_numpy(weights, gradients, *, rate, decayed, clip_norm=1.0, bias_correction=False, lamb=False):
    """AdamW (google-research/bert optimization.py), or LAMB (You et al. 2020, algorithm 2), in float64.

    gradients: a list for each step; rate: of a step, from 0 on; decayed: for each weight, LAMB's trust ratio too
    """
    weights = [np.float64(weight) for weight in weights]
    m = [np.zeros_like(weight) for weight in weights]
    v = [np.zeros_like(weight) for weight in weights]
    for step, given in enumerate(gradients):
        norm = np.sqrt(sum(np.sum(np.float64(gradient) ** 2) for gradient in given))
        for i, gradient in enumerate(np.float64(gradient) * min(1, clip_norm / norm) for gradient in given):
            m[i] = 0.9 * m[i] + 0.1 * gradient
            v[i] = 0.999 * v[i] + 0.001 * gradient**2
            first, second = (1 - beta ** (step + 1) if bias_correction else 1.0 for beta in (0.9, 0.999))
            # AdamW corrects the rate, as Keras' Adam does, and LAMB the moments.
            epsilon, ratio = 1e-6 if lamb else 1e-6 / np.sqrt(second), 1.0
            update = (m[i] / first) / (np.sqrt(v[i] / second) + epsilon)
            if decayed[i]:
                update += 0.01 * weights[i]
                norms = np.linalg.norm(weights[i]), np.linalg.norm(update)
                ratio = norms[0] / norms[1] if lamb and all(norms) else 1.0
            weights[i] = weights[i] - rate(step) * ratio * update
    return weights


def variables(**shapes):
    return [
        keras.Variable(keras.random.normal(shape, seed=i), name=name)
        for i, (name, shape) in enumerate(shapes.items())
    ]


def features(batch=4, length=8):
    ids = np.random.default_rng(0).integers(5, TINY.vocab_size, (batch, length)).astype("int32")
    return dict(zip(ENCODER_INPUTS, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))


def test_ten_steps_are_the_formula():
    """Norms of about 0.02 and 20, tiny gradients (where epsilon counts), a schedule, a variable that must not decay."""
    ours = variables(kernel=(4, 3), bias=(3,), gamma=(3,))
    generator = np.random.default_rng(0)
    scales = [1e-6, 5.0, 1e-3, 5.0, 0.01, 0.01, 5.0, 1e-6, 1e-6, 5.0]
    gradients = [[np.float32(scale * generator.normal(size=w.shape)) for w in ours] for scale in scales]
    schedule = WarmupLinearDecay(0.1, total_steps=20, warmup_steps=4)
    expected = in_numpy(
        [weight.numpy() for weight in ours],
        gradients,
        rate=lambda step: 0.1 * (step / 4 if step < 4 else 1 - step / 20),
        decayed=[True, False, False],
    )
    optimizer = AdamW(schedule)
    for given in gradients:
        optimizer.apply([tf.constant(gradient) for gradient in given], ours)
    for weight, wanted in zip(ours, expected, strict=True):
        # TensorFlow's kernel takes 1 - 0.999 in float32, where it is 0.00099999: 6e-6 of each update.
        np.testing.assert_allclose(weight.numpy(), wanted, atol=2e-5)
    assert int(optimizer.iterations) == 10


def test_defaults_are_berts():
    assert AdamW().get_config() == {
        "learning_rate": pytest.approx(5e-5),
        "weight_decay": 0.01,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-6,
        "clip_norm": 1.0,
        "bias_correction": False,
        "no_decay": r"layer_?norm|(^|/)(bias|gamma|beta)$",
        "layer_decay": 1.0,
        "gradual": False,
        "name": "adamw",
        # Keras' own
        "clipnorm": None,
        "clipvalue": None,
        "global_clipnorm": None,
        "use_ema": False,
        "ema_momentum": 0.99,
        "ema_overwrite_frequency": None,
        "loss_scale_factor": None,
        "gradient_accumulation_steps": None,
    }


def test_bias_correction_is_adams():
    ours, theirs = variables(kernel=(5, 2)), variables(kernel=(5, 2))
    mine = AdamW(0.01, bias_correction=True, weight_decay=0.0, clip_norm=None)
    keras_adam = keras.optimizers.Adam(0.01, epsilon=1e-6)
    generator = np.random.default_rng(0)
    for _ in range(10):
        gradient = tf.constant(generator.normal(size=(5, 2)), "float32")
        mine.apply([gradient], ours)
        keras_adam.apply([gradient], theirs)
    np.testing.assert_allclose(ours[0].numpy(), theirs[0].numpy(), rtol=1e-6, atol=1e-6)


def test_decayed_weights_of_a_keras_hub_encoder():
    keras_hub = pytest.importorskip("keras_hub")
    sizes = {"vocabulary_size": 50, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 16}
    backbone = keras_hub.models.BertBackbone(num_layers=1, num_heads=2, **sizes)
    decays = {(one.name, AdamW().is_decayed(one)) for one in backbone.trainable_variables}
    kept = {(name, False) for name in ("gamma", "beta", "bias")}
    assert decays == {("embeddings", True), ("kernel", True)} | kept


def test_excluded_weights_stay_where_no_gradient_pulls():
    """The names of Keras' own `exclude_from_weight_decay(["LayerNorm"])` would let both of these shrink."""
    model = classifier_model(BertEncoder(TINY), 3)
    before = {variable.path: variable.numpy() for variable in model.trainable_variables}
    AdamW(0.5).apply(
        [tf.zeros(variable.shape) for variable in model.trainable_variables], model.trainable_variables
    )
    for variable in model.trainable_variables:
        shrunk = before[variable.path] * (1 - 0.5 * 0.01)
        wanted = shrunk if variable.path.endswith(("kernel", "_embeddings")) else before[variable.path]
        np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-6, err_msg=variable.path)


@pytest.mark.parametrize("clip_norm", [1.0, None])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_in_slices(clip_norm, compiled):
    """Row 1 is looked up twice: its two slices count as one gradient, in the norm and in the square."""
    ours, same = variables(kernel=(4, 2)), variables(kernel=(4, 2))
    factors = tf.constant([[3.0, 1.0], [2.0, -1.0], [1.0, 5.0]])

    def step(optimizer, weights, look_up):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(weights[0].value) * factors)
        gradient = tape.gradient(loss, weights[0].value)
        optimizer.apply([gradient], weights)
        return isinstance(gradient, tf.IndexedSlices)

    sparse, dense = AdamW(0.1, clip_norm=clip_norm), AdamW(0.1, clip_norm=clip_norm)
    for optimizer, weights in ((sparse, ours), (dense, same)):
        optimizer.build(weights)
    wrap = tf.function if compiled else lambda call: call
    for _ in range(3):
        assert wrap(lambda: step(sparse, ours, lambda table: tf.gather(table, [1, 3, 1])))()
        assert not wrap(lambda: step(dense, same, lambda table: tf.one_hot([1, 3, 1], 4) @ table))()
    np.testing.assert_allclose(ours[0].numpy(), same[0].numpy(), rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_optimizers_of_keras_get_one_gradient_for_a_repeated_token(compiled):
    """Adam's first update is the rate, wherever the gradient is not 0; of slices that are squared apart, it is larger."""
    embeddings = Embeddings(dataclasses.replace(TINY, hidden_dropout=0.0))
    embeddings.build()
    tables = [embeddings.word_embeddings, embeddings.type_embeddings]
    before = [table.numpy() for table in tables]
    ids, factors = np.array([[1, 3, 1, 1]]), keras.random.normal((1, 4, TINY.hidden_size), seed=1)
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(tables)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embeddings(ids, np.zeros_like(ids)) * factors)
        optimizer.apply(tape.gradient(loss, [table.value for table in tables]))

    (tf.function(step) if compiled else step)()
    for table, old, rows in zip(tables, before, ([1, 3], [0]), strict=True):
        wanted = np.zeros_like(old)
        wanted[rows] = 0.1
        np.testing.assert_allclose(np.abs(table.numpy() - old), wanted, atol=1e-3)


def test_clipping_is_by_the_norm_of_all_gradients():
    """[3], [4] have norm 5: clipped to 1 they are [0.6], [0.8], and the first moment is a tenth of that."""
    both = variables(a=(1,), b=(1,))
    for scale, expected in ((1.0, [0.06, 0.08]), (0.1, [0.03, 0.04])):
        optimizer = AdamW(0.0)
        optimizer.apply([tf.constant([3.0 * scale]), tf.constant([4.0 * scale])], both)
        moments = [v.numpy()[0] for v in optimizer.variables if v.path.endswith("momentum")]
        np.testing.assert_allclose(moments, expected, rtol=1e-6)


# Rates by depth, and which depths learn


def three_layers(**changes):
    """A classifier of two blocks: variables at depths 0 (head, pooler), 1, 2 and 3 (embeddings)."""
    config = dataclasses.replace(TINY, **changes)
    keras.utils.set_random_seed(3)
    return classifier_model(BertEncoder(config, outputs=("pooled_output",)), 3)


def by_depth(model):
    paths = [variable.path for variable in model.trainable_variables]
    return dict(zip(paths, depths(paths), strict=True))


def test_depths():
    def parts(**changes):
        found = by_depth(three_layers(**changes))
        return {path.removeprefix("bert_encoder/").split("/")[0]: depth for path, depth in found.items()}

    heads = {"classifier": 0, "pooler": 0}
    assert parts(embedding_size=8) == heads | {"block_1": 1, "block_0": 2, "embeddings": 3}
    assert parts(share_layers=True) == heads | {"block_0": 1, "embeddings": 2}
    assert depths(["encoder/block_11/x", "encoder/block_2/x", "embeddings/x", "head/x"]) == [1, 10, 13, 0]
    assert depths(["classifier/dense/kernel"]) == [0]


@pytest.mark.parametrize("bias_correction", [False, True])
def test_each_layer_has_its_rate(bias_correction):
    """Two steps by hand: of all that AdamW does, rate and decay alike are divided by 2.6 for each layer down."""
    model, decay = three_layers(), 1 / 2.6
    variables, found = model.trainable_variables, by_depth(model)
    optimizer = AdamW(0.1, layer_decay=decay, clip_norm=1e9, bias_correction=bias_correction)
    optimizer.build(variables)
    generator = np.random.default_rng(0)
    before = [variable.numpy() for variable in variables]
    steps = [[generator.normal(size=v.shape).astype("float32") for v in variables] for _ in range(2)]
    for gradients in steps:
        optimizer.apply([tf.constant(gradient) for gradient in gradients], variables)
    for i, variable in enumerate(variables):
        factor = decay ** found[variable.path]
        assert optimizer.rate_factor(variable) == pytest.approx(factor)
        (expected,) = in_numpy(
            [before[i]],
            [[gradients[i]] for gradients in steps],
            rate=lambda step, factor=factor: 0.1 * factor,
            decayed=[optimizer.is_decayed(variable)],
            clip_norm=1e9,
            bias_correction=bias_correction,
        )
        np.testing.assert_allclose(variable.numpy(), expected, atol=2e-5, err_msg=variable.path)
    assert sorted({found[variable.path] for variable in variables}) == [0, 1, 2, 3]


def moments(optimizer):
    return {v.path: v.numpy() for v in optimizer.variables if v.path.endswith(("_momentum", "_velocity"))}


@pytest.mark.parametrize("compiled", [False, True])
def test_frozen_weights_keep_every_bit(compiled):
    """Weights, moments (not 0 any more) and the norm: depth 1 learns as if the deeper variables were not there."""
    model, alone = three_layers(), three_layers()
    variables, found = model.trainable_variables, by_depth(model)
    upper = [variable for variable in alone.trainable_variables if found[variable.path] <= 1]
    optimizer, wanted = AdamW(0.1, gradual=True), AdamW(0.1)
    optimizer.build(variables)
    wanted.build(upper)
    traces = []

    def step(gradients):
        traces.append(1)
        optimizer.apply(gradients, variables)

    run = tf.function(step) if compiled else step
    gradients = [tf.random.normal(variable.shape, seed=i) for i, variable in enumerate(variables)]
    run(gradients)  # all learn, and have moments
    for ours, theirs in zip(variables, alone.trainable_variables, strict=True):
        theirs.assign(ours)
    started = {variable.path: variable.numpy() for variable in variables}
    held = moments(optimizer)
    assert all(np.abs(value).max() > 0 for value in held.values())
    here = [i for i, variable in enumerate(variables) if found[variable.path] <= 1]
    for index, place in enumerate(here):
        wanted._momentums[index].assign(optimizer._momentums[place])
        wanted._velocities[index].assign(optimizer._velocities[place])
    optimizer.learn_to_depth(1)
    for scale in (1.0, 1e-3):
        scaled = [scale * gradient for gradient in gradients]
        run(scaled)
        wanted.apply([scaled[place] for place in here], upper)
    for i, (ours, theirs) in enumerate(zip(variables, alone.trainable_variables, strict=True)):
        if found[ours.path] <= 1:
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-7, err_msg=ours.path)
            assert np.abs(ours.numpy() - started[ours.path]).max() > 0
        else:
            np.testing.assert_array_equal(ours.numpy(), started[ours.path], err_msg=ours.path)
            for moment in (optimizer._momentums[i], optimizer._velocities[i]):
                np.testing.assert_array_equal(moment.numpy(), held[moment.path])
    optimizer.learn_to_depth(3)
    run(gradients)
    assert all(np.abs(v.numpy() - started[v.path]).max() > 0 for v in variables)
    assert len(traces) == (1 if compiled else 4)


class LearnToDepth(keras.callbacks.Callback):
    """Asks for a depth before anything is built, as gradual unfreezing does at the first epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learn_to_depth(1)


@pytest.mark.long
@pytest.mark.parametrize("deepest", [1, 3])
def test_gradual_in_a_stock_fit(deepest):
    """`fit` builds the optimizer inside its traced step; all depths learn unless another depth is set."""
    model = three_layers()
    model.compile(AdamW(0.01, gradual=True), GlobalMean(cross_entropy), jit_compile=False)
    before = {variable.path: variable.numpy() for variable in model.trainable_variables}
    callbacks = [LearnToDepth()] if deepest == 1 else []
    model.fit(features(), np.int32([0, 1, 2, 0]), verbose=0, callbacks=callbacks)
    moved = [one.path for one in model.trainable_variables if (one.numpy() != before[one.path]).any()]
    assert {by_depth(model)[path] for path in moved} == {*range(deepest + 1)}


def test_learn_to_depth_needs_gradual():
    with pytest.raises(ValueError, match=r"AdamW\(gradual=False\) trains all depths; give gradual=True"):
        AdamW().learn_to_depth(1)


def test_unused_options_add_no_ops():
    """The same ops as a plain AdamW; only the enabled options add ops."""

    def ops_of(**settings):
        weights = variables(kernel=(4, 3))
        optimizer = AdamW(0.1, **settings)
        optimizer.build(weights)
        apply = tf.function(lambda gradient: optimizer.apply([gradient], weights))
        graph = apply.get_concrete_function(tf.TensorSpec((4, 3))).graph
        return sorted(op.type for op in graph.get_operations())

    assert ops_of() == ops_of(layer_decay=1.0, gradual=False)
    assert "SelectV2" not in ops_of() and "SelectV2" in ops_of(gradual=True)
    assert ops_of().count("ResourceApplyAdam") == ops_of(gradual=True).count("ResourceApplyAdam") == 1


# LAMB


@pytest.mark.parametrize("bias_correction", [False, True])
def test_lamb_is_the_formula(bias_correction):
    """Gradients under and over the clip; a table of zeros, whose ratio is 1; a bias and a gamma, which are excluded."""
    ours = variables(kernel=(4, 3), bias=(3,), gamma=(3,), table=(2, 5))
    ours[3].assign(np.zeros((2, 5)))
    generator = np.random.default_rng(0)
    scales = (5.0, 0.1, 5.0, 0.01, 1e-5)
    gradients = [[np.float32(scale * generator.normal(size=w.shape)) for w in ours] for scale in scales]
    expected = in_numpy(
        [weight.numpy() for weight in ours],
        gradients,
        rate=lambda step: 0.05,
        decayed=[True, False, False, True],
        bias_correction=bias_correction,
        lamb=True,
    )
    optimizer = LAMB(0.05, bias_correction=bias_correction)
    for given in gradients:
        optimizer.apply([tf.constant(gradient) for gradient in given], ours)
    for weight, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(weight.numpy(), wanted, rtol=1e-4, atol=1e-5, err_msg=weight.path)


def test_lamb_comes_back_from_its_config():
    optimizer = LAMB(WarmupLinearDecay(1e-3, total_steps=10, warmup_steps=1), clip_norm=None, beta_2=0.98)
    again = LAMB.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    assert (again.bias_correction, LAMB().bias_correction, LAMB().weight_decay) == (True, True, 0.01)


def only_decayed(optimizer, exclude):
    """The weights after two steps without gradients, so that only decay moves them."""
    weights = variables(kernel=(3,), output_kernel=(3,), bias=(3,))
    for weight in weights:
        weight.assign([1.0, 2.0, 3.0])
    exclude(optimizer, weights)
    for _ in range(2):
        optimizer.apply([tf.zeros(3)] * len(weights), weights)
    return [weight.numpy() for weight in weights]


@pytest.mark.parametrize(
    ("places", "names", "decayed"),
    [
        ([], [], [True, True]),
        ([0], [], [False, True]),
        ([], ["output"], [True, False]),
        ([], ["kernel"], [False, False]),
        ([0], ["output"], [False, False]),
    ],
)
def test_exclude_from_weight_decay_is_keras_own(places, names, decayed):
    """Beside `no_decay`, which leaves out the bias; numbers by hand and by keras.optimizers.AdamW."""

    def exclude(optimizer, weights):
        optimizer.exclude_from_weight_decay([weights[i] for i in places], names)

    at_first, after = np.float32([1, 2, 3]), np.float32([1, 2, 3]) * (1 - 0.1 * 0.5) ** 2
    found = only_decayed(AdamW(0.1, weight_decay=0.5), exclude)
    theirs = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    for weight, reference, is_decayed in zip(found, only_decayed(theirs, exclude), decayed, strict=False):
        np.testing.assert_allclose(weight, after if is_decayed else at_first, rtol=1e-6)
        np.testing.assert_allclose(weight, reference, rtol=1e-6)
    np.testing.assert_array_equal(found[2], at_first)
    # The update is the decay alone, so LAMB's trust ratio is 1 / 0.5: each step takes rate times the weight.
    lamb = only_decayed(LAMB(0.1, weight_decay=0.5), exclude)
    for weight, is_decayed in zip(lamb, [*decayed, False], strict=True):
        np.testing.assert_allclose(weight, at_first * (0.9**2 if is_decayed else 1), rtol=1e-5)


def test_exclude_from_weight_decay_leaves_the_trust_ratio():
    """By hand: weights [3, 4], gradient [1, 1], so that the update is [1, 1] and the ratio 5 / sqrt(2)."""
    (weight,) = variables(kernel=(2,))
    weight.assign([3.0, 4.0])
    optimizer = LAMB(0.1, weight_decay=0.5, clip_norm=None)
    optimizer.exclude_from_weight_decay(var_list=[weight])
    optimizer.apply([tf.ones(2)], [weight])
    np.testing.assert_allclose(weight.numpy(), np.array([3, 4]) - 0.1 * 5 / np.sqrt(2), rtol=1e-5)


@pytest.mark.parametrize("optimizer", [AdamW, LAMB])
def test_exclude_from_weight_decay_is_refused_once_built(optimizer):
    built = optimizer(0.1)
    built.build(variables(kernel=(2,)))
    with pytest.raises(BertKerasError, match="already built.*exclude_from_weight_decay"):
        built.exclude_from_weight_decay(var_names=["kernel"])


def test_a_variable_without_a_gradient():
    first, second = variables(a=(2,), b=(2,))
    before = second.numpy()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        AdamW(0.1).apply([tf.ones(2), None], [first, second])
    np.testing.assert_array_equal(second.numpy(), before)


@pytest.mark.parametrize("optimizer", [AdamW(0.01), LAMB(0.01)], ids=["AdamW", "LAMB"])
def test_weights_in_bfloat16_are_refused(optimizer):
    weights = [keras.Variable(np.zeros(2), dtype=dtype, name="kernel") for dtype in ("float32", "bfloat16")]
    optimizer.build(weights)  # as Keras does for `evaluate`
    with pytest.raises(BertKerasError, match="kernel is bfloat16.*mixed_bfloat16"):
        optimizer.apply(weights)


@pytest.mark.parametrize("kind", [AdamW, LAMB])
@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        *(
            ("clip_norm", given, "give a number over 0, or None for no clipping")
            for given in (0, -1.0, np.nan)
        ),
        *(("weight_decay", given, "give a number of at least 0") for given in (-0.01, np.nan)),
    ],
)
def test_norms_and_decays_that_cannot_work_are_refused(kind, name, given, meant):
    """A clip_norm of 0 would make every update 0."""
    with pytest.raises(BertKerasError, match=f"{name} is {given}; {meant}"):
        kind(**{name: given})


@pytest.mark.parametrize("kind", [AdamW, LAMB])
def test_no_weight_decay_is_a_decay_of_0(kind):
    kernels = []
    for decay in (None, 0.0):
        (kernel,) = variables(kernel=(2,))
        optimizer = kind(0.1, weight_decay=decay)
        optimizer.apply([tf.constant([0.5, -1.0])], [kernel])
        kernels.append(kernel.numpy())
        assert kind.from_config(optimizer.get_config()).weight_decay == 0.0
    np.testing.assert_array_equal(*kernels)


@pytest.mark.parametrize("scheduled", [True, False])
def test_saved_state_of_another_kind_of_rate_is_not_read(scheduled):
    rates = [2e-5, WarmupLinearDecay(2e-5, total_steps=10, warmup_steps=0)]
    before, after = (AdamW(rate) for rate in (rates[::-1] if scheduled else rates))
    variable = keras.Variable([1.0, 2.0])
    store: dict = {}
    for optimizer in (before, after):
        optimizer.build([variable])
    before.apply([keras.ops.ones(2)])
    before.save_own_variables(store)
    rate = float(after.learning_rate)
    with pytest.warns(UserWarning, match="rate was a schedule and is a number now, or conversely"):
        after.load_own_variables(store)
    assert float(after.learning_rate) == rate and int(after.iterations) == 0
    before.load_own_variables(store)
    assert int(before.iterations) == 1
