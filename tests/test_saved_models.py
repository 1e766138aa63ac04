"""SavedModels as checkpoints: transformers' TensorFlow classes and TensorFlow Hub's encoders, genuine and made here."""

import dataclasses
import os
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from random_checkpoints import refused
from runs import run_command
from tensorflow_files import raw_names
from test_tensorflow_classes import outputs_of

from bert_keras import checkpoints
from bert_keras.checkpoints.saved_models import _HUB
from bert_keras.features import ENCODER_INPUTS, POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.model.tensorflow_layers import HubLayer

# -----------------------------------------------------------------------------------------------------------
# Genuine files, each with the outputs of the library that wrote it: see conftest.published


def expected_in(folder):
    with np.load(folder / "expected.npz") as kept:
        return dict(kept)


def differ(wanted, found, real):
    """The largest difference at places that are not padding, to the largest number."""
    wanted, found = np.asarray(wanted), np.asarray(found).reshape(wanted.shape)
    if wanted.shape[:2] == real.shape:
        wanted, found = wanted[real], found[real]
    return np.max(np.abs(wanted - found)) / max(1, np.max(np.abs(wanted)))


def check_class(folder):
    """The logits of a folder of save_pretrained(saved_model=True), read from its SavedModel."""
    expected = expected_in(folder)
    found = outputs_of(folder / "saved_model" / "1", expected)
    for key in expected.keys() - {"input_ids", "attention_mask"}:
        real = expected["attention_mask"].astype(bool)
        assert differ(expected[key], found[key], real) <= 1e-5, (folder.name, key)


def test_logits_equal_those_of_the_class_that_wrote_the_saved_model(published):
    check_class(published / "transformers")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*lines are equal to a line below")
def test_logits_equal_those_of_more_classes(data_dir):
    folders = data_dir / "saved_models"
    if not folders.is_dir():
        pytest.skip(f"no {folders}")
    for folder in sorted(folders.iterdir()):
        check_class(folder)


def test_outputs_equal_those_of_the_hub_encoder(published):
    folder = published / "hub" / "encoder"
    expected, checkpoint = expected_in(folder), checkpoints.read(folder)
    encoder = BertEncoder(checkpoint.config, outputs=[SEQUENCE_OUTPUT, POOLED_OUTPUT])
    head = MaskedLMHead(encoder)
    assert not checkpoints.assign(checkpoint, encoder, masked_lm=head).unused
    found = encoder({name: expected[name] for name in ENCODER_INPUTS})
    found["mlm_logits"] = head(found[SEQUENCE_OUTPUT], expected["masked_lm_positions"])
    for key, outputs in found.items():
        assert differ(expected[key], outputs, expected["input_mask"].astype(bool)) <= 1e-5, key


@pytest.mark.long
def test_the_three_steps_of_tensorflow_hubs_tutorial(published):
    """Classify text with BERT: a preprocessing module, an encoder module and a Dense head learn two labels."""
    modules, expected = published / "hub", expected_in(published / "hub" / "preprocess")
    text = keras.Input((), dtype="string", name="text")
    preprocess, encoder = HubLayer(modules / "preprocess"), HubLayer(modules / "encoder")
    pooled = encoder(preprocess(text))[POOLED_OUTPUT]
    model = keras.Model(text, keras.layers.Dense(1, name="classifier")(keras.layers.Dropout(0.1)(pooled)))
    features = preprocess(tf.constant(expected.pop("texts")))
    assert all(np.array_equal(features[name], array) for name, array in expected.items())
    keras.utils.set_random_seed(0)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-2), loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
    texts = tf.constant(
        ["a charming journey", "a dull plot", "the film is great", "it was not very good"] * 4
    )
    before = [np.asarray(one).copy() for one in encoder.trainable_weights]
    history = model.fit(texts, tf.constant([1, 0, 1, 0] * 4), batch_size=4, epochs=10, verbose=0).history
    assert history["binary_accuracy"][-1] == 1.0 and history["loss"][-1] < history["loss"][0]
    changed = [
        not np.array_equal(one, other) for one, other in zip(before, encoder.trainable_weights, strict=True)
    ]
    assert all(changed)


# -----------------------------------------------------------------------------------------------------------
# Files made here


def write(folder, variables, function=None, **parts):
    """A SavedModel of variables by the names that layers would give them."""
    module = tf.Module()
    module.held = [tf.Variable(array, name=name) for name, array in variables.items()]
    for name, part in parts.items():
        setattr(module, name, part)
    if function is not None:
        module.call = tf.function(function, input_signature=[tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, str(folder))
    return folder


def of_layers(layers, *, activation=tf.tanh, epsilon=1e-12):
    """The operations by which a graph is read: a softmax, an activation and a layer norm of each layer, and a pooler's tanh."""

    def call(x):
        for _ in range(layers):
            with tf.name_scope("output_layer_norm/batchnorm/add"):
                x = x + tf.constant(epsilon, name="y")
            x = activation(tf.nn.softmax(x))
        return tf.tanh(x)

    return call


def hub_names(checkpoint):
    rows = {row.ours: row for row in _HUB.rows(checkpoint.config)}
    return {
        f"bert_encoder_1/{rows[name].theirs}": rows[name].to_theirs(np.asarray(array), checkpoint.config)
        for name, array in checkpoint.tensors.items()
        if name in rows
    }


@pytest.fixture
def classes(tiny, tmp_path):
    """The folder that save_pretrained(saved_model=True) leaves, without its tf_model.h5."""
    shutil.copytree(tiny, tmp_path / "own", ignore=shutil.ignore_patterns("*.safetensors"))
    names = {name.removesuffix(":0"): array for name, array in raw_names(tiny).items()}
    return write(tmp_path / "own" / "saved_model" / "1", names)


@pytest.fixture
def hub(tiny, tmp_path):
    """An encoder of TensorFlow Hub: its vocabulary is an asset."""
    checkpoint = checkpoints.read(tiny)
    parts = {
        "vocab_file": tf.saved_model.Asset(str(tiny / "vocab.txt")),
        "do_lower_case": tf.Variable(True, trainable=False),
    }
    function = of_layers(checkpoint.config.num_layers, activation=tf.math.erf)
    return write(tmp_path / "hub", hub_names(checkpoint), function, **parts)


def same(found, wanted):
    assert found.tensors.keys() == wanted.tensors.keys() and found.unknown == ()
    assert all(np.array_equal(found.tensors[name], wanted.tensors[name]) for name in wanted.tensors)
    assert found.vocabulary.tokens == wanted.vocabulary.tokens


def test_a_saved_model_of_a_class_is_read_with_the_config_above_it(classes, tiny):
    wanted = checkpoints.read(tiny)
    for path in (classes, classes / "saved_model.pb", classes.parent.parent):
        found = checkpoints.read(path)
        same(found, wanted)
        assert (found.config, found.format) == (wanted.config, "saved-model")
    (classes.parent.parent / "config.json").rename(classes / "config.json")
    assert checkpoints.read(classes).config == wanted.config


def test_a_hub_encoder_is_read_without_a_config(hub, tiny, tmp_path, capfd):
    wanted = checkpoints.read(tiny)
    found = checkpoints.read(hub)
    same(found, wanted)
    assert found.vocabulary.lower_case is True
    said = {"activation": "gelu_erf", "norm_epsilon": 1e-12, "initializer_range": 0.02}  # the last by no file
    assert found.config == dataclasses.replace(wanted.config, **said)
    code, out, _ = run_command(capfd, "convert", "--from", hub, "--to", tmp_path / "new")
    assert code == 0 and "saved-model -> hugging-face" in out
    same(checkpoints.read(tmp_path / "new"), wanted)


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [(tf.tanh, "gelu_tanh"), (tf.math.erf, "gelu_erf"), (tf.nn.relu, "relu"), (tf.sigmoid, "silu")],
)
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
def test_the_graph_says_activation_epsilon_and_layers(tiny, tmp_path, activation, wanted, epsilon):
    checkpoint = checkpoints.read(tiny)
    layers = checkpoint.config.num_layers
    names = hub_names(checkpoint)
    found = checkpoints.read(
        write(tmp_path, names, of_layers(layers, activation=activation, epsilon=epsilon))
    )
    assert (found.config.activation, found.config.norm_epsilon) == (wanted, epsilon)
    assert found.config.num_layers == layers


def test_an_albert_has_one_block_for_all_layers(tiny, tmp_path):
    names = {
        name.replace("/layer_0/", "/"): array
        for name, array in hub_names(checkpoints.read(tiny)).items()
        if not re.search(r"/layer_[1-9]", name)
    }
    found = checkpoints.read(write(tmp_path, names, of_layers(5)))
    assert (found.config.share_layers, found.config.num_layers) == (True, 5)


def without(pattern):
    return lambda names: {name: array for name, array in names.items() if not re.search(pattern, name)}


def with_arrays(**shapes):
    """A change that gives the variables with these ends other shapes."""
    made = {name.replace("__", "/"): np.zeros(shape, "float32") for name, shape in shapes.items()}
    return lambda names: {
        name: next((new for end, new in made.items() if name.endswith(end)), old)
        for name, old in names.items()
    }


FAULTS = [
    (without("layer_0/output/kernel"), of_layers, "has no block_0/feed_forward/output/kernel"),
    (without("self_attention/query/kernel"), of_layers, "has no transformer/layer_0/self_attention/query/kernel of 3 dimensions"),
    (without("type_embeddings"), of_layers, "has no type_embeddings/embeddings"),
    (with_arrays(position_embedding__embeddings=[7, 9]), of_layers, r"has shape \[7, 9\]; the config wants"),
    (lambda names: names | {"transformer/layer_0/gate/kernel": np.zeros([2, 2])}, of_layers, "is no BERT of ours: it has .*gate"),
    (lambda names: names, lambda layers: of_layers(layers, activation=tf.identity), "have no activation of ours"),
    (lambda names: names, lambda layers: lambda x: of_layers(1, epsilon=1e-5)(of_layers(1)(x)), "have 2 epsilons"),
    (lambda names: names, lambda layers: None, "is no BERT of ours"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(FAULTS)))
def test_other_encoders_and_missing_weights_are_refused_in_one_line(case, tiny, tmp_path):
    change, function, message = FAULTS[case]
    checkpoint = checkpoints.read(tiny)
    write(tmp_path, change(hub_names(checkpoint)), function(checkpoint.config.num_layers))
    refused(message, checkpoints.read, tmp_path)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = [
    (lambda folder: cut(folder / "variables/variables.data-00000-of-00001"), "its data has .* bytes and its index needs"),
    (lambda folder: cut(folder / "variables/variables.index"), "is not a TensorFlow checkpoint"),
    (lambda folder: (folder / "variables/variables.index").unlink(), "saved_model.pb is a SavedModel"),
    (lambda folder: cut(folder / "saved_model.pb"), "saved_model.pb is damaged"),
    (lambda folder: (folder / "saved_model.pb").write_bytes(b"<html>"), "saved_model.pb is damaged"),
    (lambda folder: (folder / "saved_model.pb").write_bytes(b""), "is no BERT of ours"),
    (lambda folder: os.truncate(folder / "saved_model.pb", 2**31), "has 2,147,483,648 bytes; no graph has more"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(DAMAGES)))
def test_damaged_files_are_refused_in_one_line(case, hub):
    damage, message = DAMAGES[case]
    damage(hub)
    refused(message, checkpoints.read, hub, error=ValueError)


def test_a_huge_declared_shape_is_refused_before_it_is_read(hub, monkeypatch):
    """An index with tables of 4 TB, beside the data of this one."""
    reader = tf.train.load_checkpoint(str(hub / "variables" / "variables"))
    shapes = reader.get_variable_to_shape_map()

    class Huge:
        def __getattr__(self, name):
            return getattr(reader, name)

        def get_variable_to_shape_map(self):
            return {name: [2**20, 2**20] if len(shape) == 2 else shape for name, shape in shapes.items()}

    monkeypatch.setattr(tf.train, "load_checkpoint", lambda path: Huge())
    refused("its index needs", checkpoints.read, hub)


def test_other_saved_models_are_named(tmp_path):
    other = write(tmp_path / "other", {"dense/kernel": np.zeros([2, 2], "float32")}, tf.tanh)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "tfhub_module.pb").write_bytes(b"\x08\x03")
    texts = {
        other: "a SavedModel without an encoder of ours: bert_keras.HubLayer",
        tmp_path / "first": r"a TensorFlow Hub module for TensorFlow 1 \(hub.Module\): give its version",
    }
    for folder, message in texts.items():
        refused(message, checkpoints.read, folder, error=ValueError)
