"""A TextModel that was made in a strategy's scope, called outside of it."""

import contextlib

import jobs
import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

import bert_keras as bk

TEXTS, LABELS = ["good film", "bad", "a good one", "the bad film"], ["good", "bad", "good", "bad"]


def results_of_each(checkpoint: str) -> list[dict]:
    """The results of two replicas and of one device, and answers with the rows that the encoder reads at once."""
    rows, call = [], bk.BertEncoder.call

    def model(scope):
        keras.utils.set_random_seed(1)
        with scope:
            return bk.classifier(checkpoint, labels=["bad", "good"])

    def counted(self, inputs, **keywords):
        tf.py_function(lambda ids: rows.append(len(ids)), [inputs["input_word_ids"]], [])
        return call(self, inputs, **keywords)

    def results(scope):
        found = {"evaluate": model(scope()).evaluate(TEXTS, LABELS, verbose=0, return_dict=True)}
        found["test_on_batch"] = model(scope()).test_on_batch(TEXTS, LABELS, return_dict=True)
        fitted = model(scope())
        found["fit"] = fitted.fit(TEXTS, LABELS, shuffle=False, verbose=0, batch_size=2).history
        found["steps"] = int(fitted.optimizer.iterations.numpy())
        named = model(scope())
        named.compile("sgd", metrics=["accuracy"])
        found["compiled"] = named.fit(TEXTS, LABELS, shuffle=False, verbose=0).history
        rows.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bk.BertEncoder, "call", counted)
            answers = model(scope()).predict([*TEXTS, "an odd one"], batch_size=3)
        return found | {"rows": [*rows], "answers": {name: value.tolist() for name, value in answers.items()}}

    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return [results(two.scope), results(contextlib.nullcontext)]


@pytest.mark.long
def test_calls_outside_the_scope_of_two_replicas_compile_inside_it(tmp_path):
    """Results are those of one device."""
    checkpoint = runs.write_checkpoint(tmp_path / "checkpoint", hidden_dropout=0.0, attention_dropout=0.0)
    arguments = {"checkpoint": checkpoint}
    two, one = jobs.value("test_text_model_replicas:results_of_each", arguments, replicas=2)
    assert two["steps"] == one["steps"] == 2
    for call in ("evaluate", "test_on_batch", "fit", "compiled"):
        assert {*two[call]} == {*one[call]}
        for name, value in one[call].items():
            assert two[call][name] == pytest.approx(value, rel=1e-5), (call, name)
    assert one["rows"] == [3, 2] and two["rows"] == [2, 2, 1, 1], "each replica reads its rows"
    shared, alone = two["answers"], one["answers"]
    assert shared["label"] == alone["label"] and {*shared} == {*alone}
    assert shared["probabilities"] == pytest.approx(np.array(alone["probabilities"]), rel=1e-5)
