"""HubLayer on plain modules: every input by its name, every format, every variable."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.model.tensorflow_layers import HubLayer


class Plain(tf.Module):
    """x @ w + b, without the lists of a hub module; b does not train."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones([3, 2], dtype), name="w")
        self.b = tf.Variable(tf.ones([2], dtype), trainable=False, name="b")

    @tf.function
    def __call__(self, x):
        return tf.matmul(x, self.w) + self.b


class Difference(tf.Module):
    @tf.function
    def __call__(self, given):
        return given["a"] - given["b"]


def saved(module: tf.Module, folder, spec, **inputs) -> str:
    """The folder of a module with a call and a signature "named"."""
    module.__call__.get_concrete_function(spec)
    given = inputs or {"x": spec}
    named = {name: tf.TensorSpec(one.shape, one.dtype, name=name) for name, one in given.items()}

    @tf.function
    def call(**tensors):
        return {"y": module(tensors if inputs else tensors["x"])}

    tf.saved_model.save(module, folder, signatures={"named": call.get_concrete_function(**named)})
    return str(folder)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("endpoint", ["__call__", "named"])
def test_a_plain_module_trains_in_its_own_format(tmp_path, dtype, endpoint):
    path = saved(Plain(dtype), tmp_path, tf.TensorSpec([None, 3], dtype))
    layer = HubLayer(path, endpoint=endpoint, outputs="y" if endpoint == "named" else None)
    assert [len(layer.trainable_weights), len(layer.weights)] == [1, 2]
    for given in (np.ones([4, 3], "float64"), tf.ones([4, 3], "float32"), tf.ones([4, 3], dtype)):
        found = layer(given)
        assert found.dtype.name == dtype and np.array_equal(tf.cast(found, "float32"), np.full([4, 2], 4.0))
    inputs = keras.Input((3,), dtype=dtype)
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    before = [np.asarray(one).copy() for one in layer.weights]
    model.fit(np.ones([8, 3]), np.ones([8, 1]), verbose=0)
    changed = [not np.array_equal(one, other) for one, other in zip(before, layer.weights, strict=True)]
    assert changed == [one.trainable for one in layer.weights]


@pytest.mark.parametrize("endpoint", ["__call__", "named"])
def test_no_input_is_filled_in_from_another(tmp_path, endpoint):
    spec = tf.TensorSpec([None], tf.float32)
    path = saved(Difference(), tmp_path, {"a": spec, "b": spec}, a=spec, b=spec)
    layer, one = HubLayer(path, endpoint=endpoint), tf.ones([1])
    found = layer({"b": tf.zeros([1]), "a": one})
    assert float((found["y"] if endpoint == "named" else found)[0]) == 1.0
    for given in (one, {"a": one}, {"a": one, "b": one, "c": one}, [one, one]):
        with pytest.raises(BertKerasError, match="give a dict of a, b"):
            layer(given)


def test_missing_variables_are_named(tmp_path):
    path = saved(Plain("float32"), tmp_path, tf.TensorSpec([None, 3], tf.float32))
    for file in (tmp_path / "variables").iterdir():
        file.unlink()
    with pytest.raises(BertKerasError, match="is damaged or incomplete: .*; write the SavedModel again"):
        HubLayer(path)


class Lengths(tf.Module):
    """A general text module: strings [B] -> [B, 2] of float32, and their first bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable([1.0, 2.0], name="scale")

    @tf.function
    def __call__(self, text):
        return tf.cast(tf.strings.length(text), tf.float32)[:, None] * self.scale


@pytest.fixture
def lengths(tmp_path):
    return saved(Lengths(), tmp_path / "lengths", tf.TensorSpec([None], tf.string))


@pytest.mark.parametrize("given", [None, "string", "bfloat16", "mixed_bfloat16", "float64"])
def test_the_layers_dtype_is_that_of_its_outputs(lengths, given):
    layer = HubLayer(lengths, dtype=given)
    known = {None: "float32", "string": "float32", "mixed_bfloat16": "bfloat16"}
    wanted = known.get(given, given)
    texts = tf.constant(["ab"])
    for one in (layer, HubLayer.from_config(layer.get_config())):
        assert one(texts).dtype.name == one(keras.Input((), dtype="string")).dtype == wanted
    assert layer.weights[0].dtype == "float32"  # the module's own


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, as it saves
@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_a_text_module_trains_in_each_kind_of_model(lengths, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layer, head = HubLayer("lengths", outputs=None), keras.layers.Dense(1)
    inputs = keras.Input((), dtype="string")
    model = (
        keras.Model(inputs, head(layer(inputs)))
        if kind == "functional"
        else keras.Sequential([inputs, layer, head])
    )
    model.compile(keras.optimizers.SGD(0.01), "mse")
    texts = tf.constant(["a", "abc", "", "abcd"])
    model.fit(texts, tf.constant([1.0, 3.0, 0.0, 4.0]), verbose=0)
    assert not np.array_equal(layer.weights[0], [1.0, 2.0])
    model.save("model.keras")
    monkeypatch.chdir("/")  # the module's path was relative to the other folder
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=False)
    assert np.array_equal(loaded.predict(texts, verbose=0), model.predict(texts, verbose=0))


def test_a_module_of_tensorflow_1_is_refused_by_name(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    (tmp_path / "tfhub_module.pb").write_bytes(b"\x08\x03")
    with pytest.raises(BertKerasError, match=r"is a module of TensorFlow 1 \(hub.Module, tfhub_module.pb\)"):
        HubLayer(tmp_path)
