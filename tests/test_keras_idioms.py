"""docs/keras.md row by row: each idiom does what its row says."""

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import warnings

import forked
import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.features import ENCODER_INPUTS, POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.model import registered as registration
from bert_keras.optimization.training_model import TrainingModel

# Keras' own Dense hands numpy a variable when it saves or quantizes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.long,
]
ROWS = re.findall(r"(?m)^\| (.+?) \| (\w[\w ]*) \|.*\|$", (runs.ROOT / "docs/keras.md").read_text())[1:]
CONFIG = bk.BertConfig(
    vocab_size=50, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, max_positions=16
)
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CHECKS = {}  # idiom -> what happens, and the function that tries it


def idiom(name, happens="works"):
    def add(check):
        CHECKS[name] = happens, check
        return check

    return add


def refused(words):
    return pytest.raises(bk.BertKerasError, match=words)


def features(length=8, real=5):
    """Four rows, of which `real` tokens are no padding."""
    ids = np.random.default_rng(0).integers(5, 50, (4, length)).astype("int32")
    mask = np.tile(np.arange(length) < real, (4, 1)).astype("int32")
    return dict(zip(ENCODER_INPUTS, (ids, mask, np.zeros_like(ids)), strict=True))


def short():
    """The same rows without their padding."""
    return {name: value[:, :5] for name, value in features().items()}


LABELS = np.array([0, 1, 2, 0])


def classifier(**arguments):
    """Encoder and model, with weights wide enough for answers to differ."""
    encoder, inputs = bk.BertEncoder(CONFIG, **arguments), bk.encoder_inputs()
    head = bk.ClassifierHead(3, config=CONFIG, dtype=arguments.get("dtype"))
    model = keras.Model(inputs, head(encoder(inputs)[POOLED_OUTPUT]))
    for variable in model.trainable_variables:
        if variable.name == "kernel":
            variable.assign(keras.random.normal(variable.shape, stddev=0.3))
    return encoder, model


def answers(model, x=None):
    return keras.tree.map_structure(
        keras.ops.convert_to_numpy, model(features() if x is None else x, training=False)
    )


def reloaded(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def quantize(model):
    with warnings.catch_warnings():  # Keras names each layer that has nothing to quantize
        warnings.simplefilter("ignore")
        model.quantize("int8")


def kernel_types(model):
    return [one.dtype for one in model.weights if one.name == "kernel"]


def train(model, *, optimizer="adam", loss=LOGITS, **fit):
    model.compile(optimizer, loss, run_eagerly=True)  # tracing takes longer than a few steps
    return model.fit(features(), LABELS, verbose=0, **fit)


@pytest.mark.parametrize(("name", "happens"), ROWS)
def test_idiom(name, happens, tmp_path, request):
    assert name in CHECKS, "a row of docs/keras.md without a check"
    expected, check = CHECKS[name]
    assert happens == expected
    wanted = check.__code__.co_varnames[: check.__code__.co_argcount]
    check(**{one: tmp_path if one == "folder" else request.getfixturevalue(one) for one in wanted})


def test_every_check_has_a_row():
    assert sorted(CHECKS) == sorted(name for name, _ in ROWS)


# --- Saving


LOAD = """
import sys
import bert_keras  # before Keras, as formatters sort imports
import keras
assert "tensorflow_text" not in sys.modules
loaded = keras.models.load_model(sys.argv[1])
import tensorflow as tf
print(loaded.predict(tf.constant(["good film", "bad"]), verbose=0).tolist())
"""


WORD_CONFIG = dataclasses.replace(CONFIG, vocab_size=len(runs.VOCABULARY))


def string_model():
    text = keras.Input((), dtype="string")
    layer = bk.PreprocessorLayer(bk.Preprocessor(WORDS, seq_length=8, pad_to_longest=True))
    pooled = bk.BertEncoder(WORD_CONFIG)(layer(text))[POOLED_OUTPUT]
    return keras.Model(text, bk.ClassifierHead(2, config=WORD_CONFIG)(pooled))


WORDS = bk.WordPiece(runs.VOCABULARY)
TEXT = tf.constant(["good film", "bad"])


@idiom('`load_model("x.keras")` in a new process')
def _(folder):
    model, schedule = string_model(), bk.WarmupLinearDecay(1e-3, total_steps=4, warmup_steps=1)
    model.compile(bk.AdamW(schedule), bk.GlobalMean(bk.cross_entropy), run_eagerly=True)
    model.fit(TEXT, np.array([0, 1]), verbose=0)
    model.save(folder / "model.keras")
    command = [sys.executable, "-c", LOAD, folder / "model.keras"]
    environment = runs.bare_environment() | {"PYTHONPATH": str(runs.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    np.testing.assert_allclose(json.loads(done.stdout.splitlines()[-1]), answers(model, TEXT), atol=1e-6)


def test_every_registered_name_is_found_before_its_module_is_imported():
    tables = [*registration.CLASSES.items(), *registration.FUNCTIONS.items()]
    listed = {(module, name) for module, names in tables for name in names}
    found = set()
    folders = (runs.ROOT / "bert_keras", runs.ROOT / "bert_keras" / "tasks")
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        module = ".".join(file.relative_to(runs.ROOT).with_suffix("").parts)
        pattern = r'(?m)^@keras\.saving\.register_keras_serializable\("bert_keras"\)\n(?:class|def) (\w+)'
        found |= {(module, name) for name in re.findall(pattern, file.read_text())}
    assert found == listed
    # This process imported Keras first.
    assert {f"bert_keras>{name}" for _, name in listed} <= set(keras.saving.get_custom_objects())


@idiom("`keras.models.clone_model`, `model.to_json`")
def _():
    _, model = classifier()
    for other in (keras.models.clone_model(model), keras.models.model_from_json(model.to_json())):
        other.set_weights(model.get_weights())
        np.testing.assert_array_equal(answers(other), answers(model))
    assert answers(keras.models.clone_model(string_model()), TEXT).shape == (2, 2)


@idiom("`model.export`")
def _(folder):
    model = string_model()
    model.export(folder / "exported", verbose=False)
    served = tf.saved_model.load(folder / "exported")
    np.testing.assert_allclose(served.serve(TEXT), answers(model, TEXT), atol=1e-6)


@idiom("`tf.saved_model.save` of a `TextModel`")
def _(tiny, folder):
    model = bk.classifier(tiny, ["bad", "good"])
    tf.saved_model.save(model, str(folder / "saved"))
    served = tf.saved_model.load(str(folder / "saved")).signatures["serving_default"](text=TEXT)
    predicted = model.predict(["good film", "bad"], verbose=0)
    assert [label.decode() for label in served["label"].numpy()] == predicted["label"].tolist()
    np.testing.assert_allclose(served["probabilities"], predicted["probabilities"], atol=1e-6)


@idiom("Hugging Face's names of the inputs", "refused")
def _(tiny):
    theirs = dict(zip(("input_ids", "attention_mask", "token_type_ids"), features().values(), strict=True))
    encoder, model = bk.BertEncoder(CONFIG), bk.classifier(tiny, ["bad", "good"])
    inputs = {name: keras.Input((8,), dtype="int32") for name in theirs}
    for call in (encoder, model, model.predict, model.fit, lambda _: encoder(inputs)):
        with refused(
            "input_ids is input_word_ids, attention_mask is input_mask, token_type_ids is input_type_ids"
        ):
            call(theirs)
    del theirs["token_type_ids"]
    with refused("attention_mask is input_mask; input_type_ids of one segment are zeros"):
        encoder(theirs)


@idiom("`fit` in a strategy's scope that the model was not made in", "refused")
@idiom("`CentralStorageStrategy`", "refused")
def _(tiny):
    texts, labels = ["good film", "bad"] * 2, ["good", "bad"] * 2
    model = bk.classifier(tiny, ["bad", "good"])
    scopes = {
        "MirroredStrategy, and the model was made outside": tf.distribute.MirroredStrategy(["CPU:0"]),
        "CentralStorageStrategy is not supported": tf.distribute.experimental.CentralStorageStrategy(
            ["CPU:0"]
        ),
    }
    for words, strategy in scopes.items():
        with strategy.scope():
            for call in (
                model.compile,
                lambda: model.fit(texts, labels),
                lambda: model.evaluate(texts, labels),
            ):
                with refused(words):
                    call()
            with refused(words) if "Central" in words else contextlib.nullcontext():
                bk.classifier(tiny, ["bad", "good"]).fit(texts, labels, verbose=0)
    distributed = scopes[words].experimental_distribute_dataset(tf.data.Dataset.from_tensors((texts, labels)))
    for call in (model.fit, model.evaluate, model.predict):
        with refused("a distributed data set of texts was given; give the tf.data.Dataset itself"):
            call(distributed)


@idiom("`class_weight`, `EarlyStopping`, `ModelCheckpoint`")
def _(folder):
    _, model = classifier()
    stop = keras.callbacks.EarlyStopping("loss", min_delta=100, patience=1)
    keep = keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="loss")
    history = train(model, epochs=5, callbacks=[stop, keep], class_weight={0: 1.0, 1: 2.0, 2: 0.5})
    assert len(history.history["loss"]) == 2
    np.testing.assert_array_equal(answers(keras.models.load_model(folder / "best.keras")), answers(model))


@idiom("`mixed_bfloat16`")
def _():
    encoder, model = classifier(dtype="mixed_bfloat16")
    assert np.isfinite(train(model).history["loss"]).all()
    assert (encoder.compute_dtype, encoder.variable_dtype) == ("bfloat16", "float32")
    assert answers(model).dtype == "float32"


@idiom('`dtype="mixed_float16"` of the layers alone, in `TrainingModel`')
@idiom('`dtype="mixed_float16"` of the layers alone, in `keras.Model`', "stock Keras")
def _():
    for kind in (TrainingModel, keras.Model):
        inputs = keras.Input((4,))
        model = kind(inputs, keras.layers.Dense(2, dtype="mixed_float16")(inputs))
        model.compile("sgd", "mse")
        scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        assert scales == (kind is TrainingModel)


# --- int8 and LoRA


@idiom('`encoder.quantize("int8")`, `model.quantize("int8")`')
def _():
    encoder, model = classifier()
    before = answers(model)
    quantize(encoder)
    assert kernel_types(encoder) == ["int8"] * 7
    difference = np.abs(answers(model) - before).max()
    assert 0 < difference < 0.1 < np.abs(before).max()
    _, model = classifier()
    quantize(model)
    assert kernel_types(model) == ["int8"] * 8
    token_head = bk.TokenHead(3, config=CONFIG)  # three axes
    x = keras.random.normal((2, 5, 16))
    before = token_head(x)
    token_head.dense.quantize("int8")
    np.testing.assert_allclose(token_head(x), before, atol=0.01)


@idiom("LoRA, then int8")
def _(folder):
    encoder, model = classifier()
    encoder.enable_lora(2)
    train(model, optimizer=bk.AdamW(0.1), epochs=3)
    before = answers(model)
    quantize(model)
    assert 0 < np.abs(answers(model) - before).max() < 0.1
    model.compile("sgd")  # the state of the first optimizer does not fit the merged model
    # The int8 of the merged kernels, as NumPy rounds them again in the file.
    np.testing.assert_allclose(answers(reloaded(model, folder)), answers(model), atol=1e-6)


@idiom("`.keras` of an int8 model")
def _(folder):
    _, model = classifier()
    quantize(model)
    again = reloaded(reloaded(model, folder), folder)
    np.testing.assert_array_equal(answers(again), answers(model))
    assert {*kernel_types(again)} == {"int8"}
    encoder, inputs = bk.BertEncoder(CONFIG), bk.encoder_inputs()
    positions = keras.Input((2,), dtype="int32", name="positions")
    logits = bk.MaskedLMHead(encoder)(encoder(inputs)[SEQUENCE_OUTPUT], positions)
    model = keras.Model(inputs | {"positions": positions}, logits)
    quantize(model)
    x = features() | {"positions": np.ones((4, 2), "int32")}
    np.testing.assert_array_equal(answers(reloaded(model, folder), x), answers(model, x))


@idiom("`quantize` to another mode", "refused")
def _():
    for mode in ("int4", "float8"):
        with refused(f"{mode}.*int8"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            classifier()[1].quantize(mode)


@idiom("a checkpoint of an int8 encoder", "refused")
def _():
    encoder, _ = classifier()
    source = checkpoints.collect(CONFIG, encoder)
    quantize(encoder)
    with refused("int8"):
        checkpoints.collect(CONFIG, encoder)
    with refused("int8"):
        checkpoints.assign(source, encoder)


@idiom("`encoder.enable_lora(rank)`")
def _():
    encoder, model = classifier()
    before = answers(model)
    encoder.enable_lora(2)
    np.testing.assert_array_equal(answers(model), before)
    attention, head = "bert_encoder/block_0/attention", ["classifier/dense/kernel", "classifier/dense/bias"]
    lora = [f"{attention}/{part}/lora_kernel_{side}" for part in ("query", "value") for side in "ab"]
    assert encoder.lora_enabled and [one.path for one in model.trainable_variables] == lora + head
    frozen = {one.path: one.numpy() for one in encoder.weights if "lora" not in one.path}
    train(model, optimizer=bk.AdamW(0.1), epochs=3)
    for one in encoder.weights:
        changed = "lora" in one.path or not np.array_equal(one.numpy(), frozen[one.path])
        assert changed == ("lora" in one.path), one.path
    assert np.abs(answers(model) - before).max() > 0.01
    for wrong in ({"rank": 0}, {"rank": 2, "targets": ["keys"]}, {"rank": 2, "targets": []}):
        with refused("LoRA"):
            bk.BertEncoder(CONFIG).enable_lora(**wrong)
    with refused("already"):
        encoder.enable_lora(2)


@idiom("`block.enable_lora(rank)`")
def _():
    encoder = bk.BertEncoder(dataclasses.replace(CONFIG, num_layers=2))
    encoder.blocks[1].enable_lora(3, targets=["intermediate", "output"], lora_alpha=6)
    assert [block.lora_enabled for block in encoder.blocks] == [False, True]
    lora = [one.path.split("/", 2)[2] for one in encoder.blocks[1].trainable_variables]
    dense = ["attention/output", "feed_forward/intermediate", "feed_forward/output"]
    assert lora == [f"{name}/lora_kernel_{side}" for name in dense for side in "ab"]


@idiom("LoRA on an int8 encoder")
def _():
    encoder, model = classifier()
    quantize(encoder)
    encoder.enable_lora(2)
    before = answers(model)
    train(model, optimizer=bk.AdamW(0.1), epochs=3)
    assert np.abs(answers(model) - before).max() > 0.01
    assert len(model.trainable_variables) == 2 * 2 + 2


@idiom("`.keras` and checkpoints of a LoRA model")
def _(folder):
    encoder, model = classifier()
    encoder.enable_lora(2)
    train(model, optimizer=keras.optimizers.SGD(0.5), epochs=3)
    again = reloaded(model, folder)
    np.testing.assert_allclose(answers(again), answers(model), atol=1e-6)
    assert not any("lora" in one.path for one in again.weights)
    made = checkpoints.collect(CONFIG, encoder, classifier=model.layers[-1])
    checkpoints.write(made, folder / "theirs", format="hugging-face")
    other, fresh = classifier()
    checkpoints.assign(checkpoints.read(folder / "theirs"), other, classifier=fresh.layers[-1])
    np.testing.assert_allclose(answers(fresh), answers(model), atol=1e-6)


@idiom("loading weights into an encoder with LoRA", "refused")
def _():
    encoder, _ = classifier()
    source = checkpoints.collect(CONFIG, encoder)
    encoder.enable_lora(2)
    with refused("before enable_lora"):
        checkpoints.assign(source, encoder)


# --- Optimizers and schedules


def trajectory(optimizer, *, scale=1.0):
    """Two variables after twelve steps."""
    generator = np.random.default_rng(0)
    shapes = {"kernel": (4, 3), "bias": (3,)}
    weights = [keras.Variable(np.float32(generator.normal(size=shapes[name])), name=name) for name in shapes]
    for _ in range(12):
        gradients = [tf.constant(5 * scale * generator.normal(size=one.shape), "float32") for one in weights]
        optimizer.apply(gradients, weights)
    optimizer.finalize_variable_values(weights)
    return [one.numpy() for one in weights]


def equals_keras(scale=1.0, **arguments):
    """AdamW equals Keras' where both compute the same; LAMB takes the argument too, and both configs keep it."""
    common = {"weight_decay": 0.1, "beta_2": 0.99, "epsilon": 1e-6, **arguments}
    ours = bk.AdamW(0.1, bias_correction=True, clip_norm=None, no_decay="^$", **common)
    wanted = trajectory(keras.optimizers.AdamW(0.1, **common), scale=scale)
    for one, other in zip(trajectory(ours, scale=scale), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6)
    plain = trajectory(keras.optimizers.AdamW(0.1, **(common | dict.fromkeys(arguments))), scale=scale)
    assert np.abs(plain[0] - wanted[0]).max() > 1e-3, "the argument makes a difference"
    for kind in (bk.AdamW, bk.LAMB):
        again = kind.from_config(kind(0.1, **arguments).get_config())
        assert {name: getattr(again, name) for name in arguments} == arguments
    lamb = trajectory(bk.LAMB(0.1, **arguments), scale=scale)
    assert not np.allclose(lamb[0], trajectory(bk.LAMB(0.1), scale=scale)[0])


@idiom("`clipnorm`, `clipvalue`, `global_clipnorm` of AdamW and LAMB")
def _():
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        equals_keras(**{name: 0.3})
    with refused("clip_norm is 2.*clipnorm"):
        bk.AdamW(clip_norm=2.0, clipnorm=1.0)
    with refused("momentum.*clipnorm"):
        bk.AdamW(momentum=0.9)


@idiom("`use_ema`, `ema_momentum`, `ema_overwrite_frequency`")
def _():
    equals_keras(use_ema=True, ema_momentum=0.8)
    equals_keras(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5)


@idiom("`loss_scale_factor`")
def _():
    equals_keras(scale=8.0, loss_scale_factor=8.0, global_clipnorm=0.5)


@idiom("`gradient_accumulation_steps`", "refused")
def _():
    for kind in (bk.AdamW, bk.LAMB):
        with refused("gradient_accumulation_steps.*micro-batch"):
            kind(gradient_accumulation_steps=3)


def regression():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def rates(optimizer, callback, *, epochs=4):
    """The logged rate of each epoch, of four steps each."""
    model = regression()
    model.compile(optimizer, "mse")
    x, y = np.zeros((8, 2), "float32"), np.ones((8, 1), "float32")
    history = model.fit(x, y, batch_size=2, epochs=epochs, callbacks=[callback], verbose=0)
    return history.history["learning_rate"], model


def plateau():
    return keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=100, factor=0.5)


def schedule(warmup_steps=0):
    return bk.WarmupLinearDecay(1e-3, total_steps=40, warmup_steps=warmup_steps)


@idiom("`ReduceLROnPlateau` with a schedule")
def _(folder):
    for kind in (bk.AdamW, bk.LAMB):
        found, model = rates(kind(schedule(warmup_steps=4)), plateau())
        # 0.9, 0.8, 0.7, 0.6 of the peak, read before the callback: halved after the second epoch, and each one from there.
        np.testing.assert_allclose(found, [9e-4, 8e-4, 7e-4 / 2, 6e-4 / 4], rtol=1e-6)
        model.save(folder / "model.keras")
        again = keras.models.load_model(folder / "model.keras").optimizer
        np.testing.assert_allclose(again.learning_rate, 6e-4 / 8, rtol=1e-6)
    # The steps follow what the log says.
    weight = keras.Variable(1.0)
    optimizer = bk.AdamW(schedule(), weight_decay=0.0, bias_correction=True)
    optimizer.apply([tf.constant(1.0)], [weight])
    optimizer.learning_rate = 0.25
    before = float(weight)
    optimizer.apply([tf.constant(1.0)], [weight])
    np.testing.assert_allclose(before - float(weight), 0.25, rtol=1e-3)
    optimizer.learning_rate = schedule()  # a new one begins with its own rates
    np.testing.assert_allclose(optimizer.learning_rate, 1e-3 * 38 / 40, rtol=1e-6)


@idiom("`LearningRateScheduler` with a schedule")
def _():
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 1e-3 * 0.5**epoch)
    found, _ = rates(bk.AdamW(schedule()), callback)
    ends = [36 / 40, 32 / 36, 28 / 32, 24 / 28]  # the schedule continues within an epoch
    np.testing.assert_allclose(found, [1e-3 * 0.5**i * end for i, end in enumerate(ends)], rtol=1e-6)


@idiom("`LearningRateScheduler` at the start of a warm-up", "refused")
def _():
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 1e-3)
    optimizer = bk.AdamW(schedule(warmup_steps=4))
    with refused("step 0"):
        rates(optimizer, callback)
    assert int(optimizer.iterations) == 0


@idiom("`ReduceLROnPlateau` with `keras.optimizers.AdamW` and a schedule", "stock Keras")
def _():
    with pytest.raises(TypeError, match="not settable"):
        rates(keras.optimizers.AdamW(schedule()), plateau())


# --- Masks


def with_layer(layer):
    inputs = bk.encoder_inputs()
    return keras.Model(inputs, layer(bk.BertEncoder(CONFIG)(inputs)[SEQUENCE_OUTPUT]))


@idiom("`GlobalAveragePooling1D` on `sequence_output`")
def _(folder):
    model = with_layer(keras.layers.GlobalAveragePooling1D())
    np.testing.assert_allclose(answers(model), answers(model, short()), atol=1e-5)
    assert np.abs(answers(model, features(real=8)) - answers(model)).max() > 1e-3
    np.testing.assert_array_equal(answers(reloaded(model, folder)), answers(model))


@idiom("`MeanPooling`")
def _(folder):
    keras.utils.set_random_seed(1)
    model = with_layer(bk.MeanPooling())
    keras.utils.set_random_seed(1)
    same = with_layer(keras.layers.GlobalAveragePooling1D())
    np.testing.assert_allclose(answers(model), answers(same), atol=1e-5)
    np.testing.assert_array_equal(answers(reloaded(model, folder)), answers(model))
    with pytest.raises(ValueError, match="padding would count"):
        bk.MeanPooling()(np.zeros((2, 5, 8), np.float32))


@idiom("`LSTM`, `Attention`, `MultiHeadAttention` on `sequence_output`")
def _():
    heads, alone, every = keras.layers.MultiHeadAttention(2, 8), keras.layers.Attention(), slice(None)
    for layer, real in (
        (keras.layers.Bidirectional(keras.layers.LSTM(4)), ()),
        (lambda states: alone([states, states]), (every, slice(5))),
        (lambda states: heads(states, states), (every, slice(5))),
    ):
        model = with_layer(layer)
        np.testing.assert_allclose(answers(model)[real], answers(model, short()), atol=1e-5)


@idiom("Keras' losses and metrics on `TokenHead`")
def _():
    model = with_layer(bk.TokenHead(3, config=CONFIG))
    model.compile("sgd", LOGITS, metrics=["accuracy"])
    labels = np.random.default_rng(1).integers(0, 3, (4, 8))
    found = model.evaluate(features(), labels, verbose=0)
    np.testing.assert_allclose(found, model.evaluate(short(), labels[:, :5], verbose=0), rtol=1e-5)


# --- Functional models


def towers(first, second):
    encoder = bk.BertEncoder(CONFIG, outputs=[POOLED_OUTPUT])
    pooled = [encoder(inputs)[POOLED_OUTPUT] for inputs in (first, second)]
    return keras.Model({"a": first, "b": second}, keras.layers.Dot(1, normalize=True)(pooled))


@idiom('two towers: `encoder_inputs(prefix="a_")`')
def _(folder):
    model = towers(bk.encoder_inputs(prefix="a_"), bk.encoder_inputs(prefix="b_"))
    model.compile("sgd", "mse", run_eagerly=True)
    x = {"a": features(), "b": short()}
    model.fit(x, np.ones((4, 1)), verbose=0)
    again = reloaded(model, folder)
    np.testing.assert_array_equal(answers(again, x), answers(model, x))
    assert len(again.weights) == len(bk.BertEncoder(CONFIG).weights), "one encoder"
    np.testing.assert_allclose(answers(model, {"a": features(), "b": features()}), 1, atol=1e-5)


@idiom("two `encoder_inputs()` in one model", "stock Keras")
def _():
    with pytest.raises(ValueError, match="unique"):
        towers(bk.encoder_inputs(), bk.encoder_inputs())


def warned(kind, loss):
    _, made = classifier()
    model = kind(made._inputs_struct, made._outputs_struct)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.compile("sgd", loss)
    return [str(one.message) for one in caught]


CROSS_ENTROPY = "sparse_categorical_crossentropy"


@idiom("a loss without `from_logits=True` on a head, in `TrainingModel`", "warned")
@idiom("a loss without `from_logits=True` on a head, in `keras.Model`", "stock Keras")
def _():
    stock = keras.losses.SparseCategoricalCrossentropy()
    for loss in (CROSS_ENTROPY, stock, keras.losses.sparse_categorical_crossentropy):
        (message,) = warned(TrainingModel, loss)
        assert all(word in message for word in ("ClassifierHead", CROSS_ENTROPY, "from_logits=True"))
    for loss in (LOGITS, bk.GlobalMean(bk.cross_entropy), bk.cross_entropy, "mse", None):
        assert not warned(TrainingModel, loss)
    assert not warned(keras.Model, CROSS_ENTROPY)


# --- Strings and vocabularies


@idiom('`keras.Input((), dtype="string")` and `PreprocessorLayer`')
def _(folder):
    model = string_model()
    model.compile("adam", LOGITS, run_eagerly=True)
    for x in (TEXT, np.array(["good film", "bad"], object)):
        model.fit(x, np.array([0, 1]), verbose=0)
    np.testing.assert_array_equal(answers(reloaded(model, folder), TEXT), answers(model, TEXT))
    pair = [keras.Input((), dtype="string", name="a"), keras.Input((1,), dtype="string", name="b")]
    layer = bk.PreprocessorLayer(bk.Preprocessor(WORDS, seq_length=8))
    found = answers(keras.Model(pair, layer(pair)), [TEXT, TEXT[:, None]])
    wanted = layer.preprocess(["good film", "bad"], ["good film", "bad"])
    assert {*found} == {*wanted}
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)


@idiom("`PreprocessorLayer` in `keras.Sequential`")
def _(folder):
    layer = bk.PreprocessorLayer(bk.Preprocessor(WORDS, seq_length=8))
    encoder = bk.BertEncoder(WORD_CONFIG, outputs=[POOLED_OUTPUT])
    model = keras.Sequential([keras.Input((), dtype="string"), layer, encoder])
    found = answers(model, TEXT)[POOLED_OUTPUT]
    assert found.shape == (2, 16)
    np.testing.assert_array_equal(answers(reloaded(model, folder), TEXT)[POOLED_OUTPUT], found)


@idiom("numpy arrays of `str` in `fit` and `predict`", "stock Keras")
def _():
    text = keras.Input((), dtype="string")
    vectors = keras.layers.TextVectorization(vocabulary=["good", "bad"], output_sequence_length=3)
    for model in (string_model(), keras.Model(text, vectors(text))):
        with pytest.raises(ValueError, match="Invalid dtype"):
            model.predict(np.array(["good film", "bad"]), verbose=0)


@idiom('`preprocess("text")`, `tokenizer.encode`, `tokenizer.detokenize`')
def _():
    preprocess = bk.Preprocessor(WORDS, seq_length=12, pad_to_longest=True)
    for one in ("Good films", ["Good films"], tf.constant(["Good films"])):
        ids = preprocess(one)["input_word_ids"].numpy()
        assert ids.tolist() == [[2, *WORDS.encode("Good films"), 3]]
    assert preprocess("good", "bad")["input_type_ids"].shape == (1, 5)
    assert WORDS.detokenize(ids[0]) == "good films"
    with refused("id 9999"):
        WORDS.detokenize([9999])


@idiom("added tokens: `load_encoder(path, vocab_size=)`")
def _(folder):
    path = runs.write_checkpoint(folder / "checkpoint")
    words = bk.load_tokenizer(path)
    more = bk.WordPiece([*words.vocabulary, "covid"], lower_case=words.lower_case)
    size = words.vocab_size
    assert more.encode("covid") == [size] and len(words.encode("covid")) > 1
    encoder = bk.load_encoder(path, vocab_size=more.vocab_size, log=lambda line: None)
    before = bk.load_encoder(path, log=lambda line: None).embedding_table.numpy()
    table = encoder.embedding_table.numpy()
    np.testing.assert_array_equal(table[:size], before)
    deviation = encoder.config.initializer_range
    assert table.shape[0] == size + 1 and 0 < np.abs(table[size:]).max() < 2.5 * deviation
    source = checkpoints.with_tokenizer(checkpoints.collect(encoder.config, encoder), more)
    checkpoints.write(source, folder / "larger", format="hugging-face")
    again = bk.load_encoder(folder / "larger", log=lambda line: None)
    np.testing.assert_array_equal(again.embedding_table.numpy(), table)
    assert bk.load_tokenizer(folder / "larger").encode("covid") == [size]
    with refused("can be added"):
        bk.load_encoder(path, vocab_size=5)
    wide = checkpoints.with_vocab_size(checkpoints.read(path), size + 5000)
    assert abs(wide.tensors["embeddings/word_embeddings"][size:].std() / deviation - 0.88) < 0.01


# --- Steps per execution, and two replicas


@idiom("`steps_per_execution=2`")
def _():
    found = []
    for steps in (1, 2):
        keras.utils.set_random_seed(0)
        model = regression()
        model.compile(bk.AdamW(1e-3), "mse", steps_per_execution=steps)
        x = np.arange(8.0).reshape(4, 2)
        found.append(model.fit(x, np.ones(4), batch_size=1, shuffle=False, verbose=0).history["loss"])
        assert int(model.optimizer.iterations) == 4
    np.testing.assert_allclose(*found, rtol=1e-5)


REPLICAS = """
import json
import keras
import numpy as np
import tensorflow as tf
import bert_keras
from bert_keras.optimization.losses import binary_cross_entropy
from bert_keras.optimization.training_model import TrainingModel

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def trained(kind, optimizer, loss="mse", dtype=None, **settings):
    try:
        with strategy.scope():
            inputs = keras.Input((4,))
            model = kind(inputs, keras.layers.Dense(2, dtype=dtype)(inputs))
            model.compile(optimizer(), loss, jit_compile=False, **settings)
        model.fit(np.ones((16, 4), "float32"), np.ones((16, 2), "float32"), batch_size=4, verbose=0)
        return int(model.optimizer.iterations.numpy())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

adamw = bert_keras.AdamW
print(json.dumps({
    "stock": trained(keras.Model, lambda: "sgd", steps_per_execution=2),
    "ours": trained(TrainingModel, adamw, steps_per_execution=2),
    "accumulated": trained(TrainingModel, adamw, bert_keras.GlobalMean(binary_cross_entropy), micro_batch=1),
    "float16": trained(TrainingModel, lambda: keras.optimizers.LossScaleOptimizer(adamw())),
    "layer in float16": trained(TrainingModel, adamw, dtype="mixed_float16"),
    "ema": trained(keras.Model, lambda: adamw(use_ema=True, clipvalue=0.5)),
}))
"""


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """The number of steps of each model under two replicas, or its error."""
    script = tmp_path_factory.mktemp("replicas") / "script.py"
    script.write_text(REPLICAS)
    done = forked.run(script)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@idiom("`compile(micro_batch=N)`, in `TrainingModel`")
@idiom("`steps_per_execution=2` under two replicas, in `TrainingModel`")
@idiom("`LossScaleOptimizer`, or float16, under two replicas, in `TrainingModel`", "refused")
@idiom("`steps_per_execution=2` under two replicas, in `keras.Model`", "stock Keras")
def _(replicas):
    assert [replicas[name] for name in ("accumulated", "ours", "ema")] == [4, 4, 4]
    for name in ("float16", "layer in float16"):
        assert "BertKerasError" in replicas[name] and "bfloat16" in replicas[name]
    assert "laceholder" in replicas["stock"]
