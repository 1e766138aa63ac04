"""A TextModel that was made in a strategy's scope, called outside of it."""

import json

import forked
import numpy as np
import pytest
import runs

SCRIPT = """
import json, sys
import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import bert_keras as bk

texts, labels = ["good film", "bad", "a good one", "the bad film"], ["good", "bad", "good", "bad"]

def model(scope):
    keras.utils.set_random_seed(1)
    with scope:
        return bk.classifier(sys.argv[1], labels=["bad", "good"])

def results(scope):
    found = {"evaluate": model(scope()).evaluate(texts, labels, verbose=0, return_dict=True)}
    found["test_on_batch"] = model(scope()).test_on_batch(texts, labels, return_dict=True)
    fitted = model(scope())
    found["fit"] = fitted.fit(texts, labels, shuffle=False, verbose=0, batch_size=2).history
    found["steps"] = int(fitted.optimizer.iterations.numpy())
    named = model(scope())
    named.compile("sgd", metrics=["accuracy"])
    found["compiled"] = named.fit(texts, labels, shuffle=False, verbose=0).history
    return found

def answers(scope):
    # Of five texts in batches of three, and the rows that the encoder reads at once.
    rows, call = [], bk.BertEncoder.call
    def counted(self, inputs, **keywords):
        tf.py_function(lambda ids: rows.append(len(ids)), [inputs["input_word_ids"]], [])
        return call(self, inputs, **keywords)
    bk.BertEncoder.call = counted
    made = model(scope()).predict([*texts, "an odd one"], batch_size=3)
    bk.BertEncoder.call = call
    return {"rows": rows, **{name: values.tolist() for name, values in made.items()}}

import contextlib
two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print(json.dumps([{**results(one), "answers": answers(one)} for one in (two.scope, contextlib.nullcontext)]))
"""


@pytest.mark.long
def test_calls_outside_the_scope_of_two_replicas_compile_inside_it(tmp_path):
    """Results are those of one device."""
    checkpoint = runs.write_checkpoint(tmp_path / "checkpoint", hidden_dropout=0.0, attention_dropout=0.0)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = forked.run(script, str(checkpoint))
    assert done.returncode == 0, done.stderr[-3000:]
    two, one = json.loads(done.stdout.splitlines()[-1])
    assert two["steps"] == one["steps"] == 2
    for call in ("evaluate", "test_on_batch", "fit", "compiled"):
        assert {*two[call]} == {*one[call]}
        for name, value in one[call].items():
            assert two[call][name] == pytest.approx(value, rel=1e-5), (call, name)
    alone, shared = one["answers"], two["answers"]
    assert alone.pop("rows") == [3, 2] and shared.pop("rows") == [2, 2, 1, 1], "each replica reads its rows"
    assert shared["label"] == alone["label"] and {*shared} == {*alone}
    assert shared["probabilities"] == pytest.approx(np.array(alone["probabilities"]), rel=1e-5)
