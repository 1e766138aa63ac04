"""`predict` of few texts: traced once for all lengths, and fresh after every change of the model."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import texts, write_checkpoint

import bert_keras as bk

NAMES = ["bad", "good"]
TEXTS = [*texts(15, seed=0), "good", "a very warm film . " * 6]  # of mixed lengths


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), num_layers=1)


@pytest.fixture
def traces(monkeypatch):
    """The functions that TensorFlow traces, and the data sets that are made, by name, from now on."""
    found = []
    made = tf.Graph.__init__

    def counted(graph, *arguments, **keywords):
        found.append(graph)
        made(graph, *arguments, **keywords)

    monkeypatch.setattr(tf.Graph, "__init__", counted)
    return found


def probabilities(model, some):
    return model.predict(some, verbose=0)["probabilities"]


@pytest.mark.parametrize("options", [{}, {"seq_length": 16, "doc_stride": 4}], ids=["texts", "windows"])
def test_a_second_prediction_traces_nothing(options, checkpoint, traces):
    model = bk.classifier(checkpoint, NAMES, **options)
    expected = probabilities(model, TEXTS * 3)  # more than a batch: through a data set
    probabilities(model, TEXTS[:1])
    traces.clear()
    alone = np.concatenate([probabilities(model, [text]) for text in TEXTS])
    some = np.concatenate([probabilities(model, TEXTS[:3]), probabilities(model, TEXTS[3:])])
    assert len(traces) == 0
    for found in (alone, some):
        np.testing.assert_allclose(found, expected[: len(TEXTS)], atol=1e-6)


def test_two_threads_get_their_own_answers(checkpoint):
    model = bk.classifier(checkpoint, NAMES)
    expected, found = probabilities(model, TEXTS), {}

    def ask(text):
        found[text] = [probabilities(model, [text]) for _ in range(5)]

    threads = [threading.Thread(target=ask, args=[text]) for text in (TEXTS[0], TEXTS[-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in found:
        np.testing.assert_allclose(np.concatenate(found[text]), expected[[TEXTS.index(text)] * 5], atol=1e-6)


def fit(model):
    model.compile(learning_rate=1e-2, warmup_proportion=0.0)
    model.fit(TEXTS[:8], NAMES * 4, verbose=0)


def train_lora(model):
    model.encoder.enable_lora(2)
    probabilities(model, TEXTS[:1])
    fit(model)


CHANGES = {
    "fit": fit,
    "set_weights": lambda model: model.set_weights([2 * weight for weight in model.get_weights()]),
    "LoRA": train_lora,
    "quantize": lambda model: model.encoder.quantize("int8"),
    "labels": lambda model: setattr(model.problem, "label_names", ("no", "yes")),
    "Keras' fit": lambda model: (
        model.compile(keras.optimizers.SGD(1.0)),
        model.fit(TEXTS[:8], NAMES * 4, verbose=0),
    ),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.filterwarnings("ignore:Layer (Dropout|LayerNorm) does not have a `quantize` method")
@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_is_fresh_after_a_change(change, checkpoint):
    model = bk.classifier(checkpoint, NAMES)
    before = model.predict(TEXTS[:1], verbose=0)
    CHANGES[change](model)
    after = model.predict(TEXTS[:1], verbose=0)
    logits = model(TEXTS[:1], training=False)  # no trace of before
    np.testing.assert_allclose(after["probabilities"], keras.ops.softmax(logits), atol=1e-5)
    if change == "labels":
        assert after["label"][0] in after["label_names"][0].tolist() == ["no", "yes"]
    else:
        assert np.abs(after["probabilities"] - before["probabilities"]).max() > 1e-5
