"""Features from outside: one table of ranges, checked in every form of a model before it reads them."""

import json

import numpy as np
import pytest
import runs
import tensorflow as tf
from string_tasks import NAMES

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS
from bert_keras.savedmodels import hub
from bert_keras.savedmodels.export import servable_of
from bert_keras.savedmodels.runtime_example import read_inputs
from bert_keras.savedmodels.runtimes import settings_of

ROW = {"input_word_ids": [2, 9, 3, 0], "input_mask": [1, 1, 1, 0], "input_type_ids": [0, 0, 0, 0]}
VOCABULARY, LONGEST = runs.SIZES["vocab_size"], runs.SIZES["max_positions"]

# What is wrong: the changed row, and the name that the error has.
WRONG = {
    "a negative id": ({"input_word_ids": [2, -1, 3, 0]}, "input_word_ids"),
    "the first id too large": ({"input_word_ids": [2, VOCABULARY, 3, 0]}, "input_word_ids"),
    "a mask of 7": ({"input_mask": [1, 7, 1, 0]}, "input_mask"),
    "a mask of -1": ({"input_mask": [1, -1, 1, 0]}, "input_mask"),
    "a row of padding": ({"input_mask": [0, 0, 0, 0]}, "input_mask has a row without a token"),
    "a type of 7": ({"input_type_ids": [0, 7, 0, 0]}, "input_type_ids"),
    "too long": (
        {name: [1] * (LONGEST + 1) for name in ENCODER_INPUTS},
        f"rows of .*{LONGEST}|{LONGEST} positions",
    ),
}


ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")


@pytest.fixture(scope="module")
def model(tiny):
    model = bk.classifier(tiny, NAMES, seq_length=16)
    model.compile(bk.AdamW(1e-5))
    return model


@pytest.fixture(scope="module")
def forms(model, tiny):
    """By name: a function of rows by feature, and the error of a form."""
    run = model.as_run()
    signature = servable_of(run).signatures()["features"]
    _, module = hub.encoder(checkpoints.read(tiny), log=lambda line: None)
    settings = json.loads(json.dumps(settings_of(run, "onnx")))

    def tensors(rows):
        return {name: tf.constant(values, tf.int32) for name, values in rows.items()}

    def in_arrays(call):
        labels = () if call == model.predict_on_batch else (np.array([1]),)
        return lambda rows: call({name: np.array(values, "int32") for name, values in rows.items()}, *labels)

    def labelled(rows):
        return tf.data.Dataset.from_tensors((tensors(rows), tf.constant([1])))

    return {
        "predict": (lambda rows: model.predict({n: np.array(v) for n, v in rows.items()}), BertKerasError),
        "predict a data set": (lambda rows: model.predict(labelled(rows)), BertKerasError),
        "fit": (lambda rows: model.fit(labelled(rows), verbose=0), BertKerasError),
        "evaluate": (lambda rows: model.evaluate(labelled(rows), verbose=0), BertKerasError),
        **{name: (in_arrays(getattr(model, name)), BertKerasError) for name in ON_BATCH},
        "export": (lambda rows: signature(**tensors(rows)), tf.errors.InvalidArgumentError),
        "hub": (lambda rows: module(**tensors(rows)), tf.errors.InvalidArgumentError),
        "example.py": (lambda rows: read_inputs(settings, rows), SystemExit),
    }


FORMS = ["predict", "predict a data set", "fit", "evaluate", *ON_BATCH, "export", "hub", "example.py"]


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_numbers_out_of_range_are_refused_by_name(forms, form):
    call, error = forms[form]
    rows = {name: [row] for name, row in ROW.items()}
    call(rows)
    for wrong, (change, named) in WRONG.items():
        with pytest.raises(error, match=named) as caught:
            call(rows | {name: [row] for name, row in change.items()})
        if error is not tf.errors.InvalidArgumentError:
            assert "\n" not in str(caught.value), wrong


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"input_word_ids": [[2, 101.9, 3, 0]]}, "not all whole numbers: input_word_ids has 101.9"),
        ({"input_word_ids": [[2, 1e10, 3, 0]]}, "not all whole numbers"),
        ({"input_word_ids": [[2, 10**10, 3, 0]]}, "input_word_ids has 10000000000; give numbers from 0 to"),
        ({"input_word_ids": [[2, True, 3, 0]]}, "not all whole numbers"),
        ({"input_word_ids": [[2, None, 3, 0]]}, "not all whole numbers"),
        ({"input_word_ids": [[2, [1], 3, 0]]}, "not all whole numbers"),
        ({name: [[]] for name in ENCODER_INPUTS}, "rows of other lengths"),
        ({name: [] for name in ENCODER_INPUTS}, "rows of other lengths"),
        ({name: 5 for name in ENCODER_INPUTS}, "rows of other lengths"),
    ],
)
def test_the_example_of_an_export_cuts_no_number(forms, rows, message):
    with pytest.raises(SystemExit, match=message):
        forms["example.py"][0]({name: [row] for name, row in ROW.items()} | rows)


def test_the_example_of_an_export_takes_text_alone(model):
    settings = settings_of(model.as_run(), "onnx")
    for text in ("\ud83d", "\udc80", 5, None):
        with pytest.raises(SystemExit, match="not lists of texts"):
            read_inputs(settings, {"text": [text]})


def test_floats_are_no_ids(model):
    rows = {name: np.array([row], "float32") for name, row in ROW.items()}
    with pytest.raises(BertKerasError, match="input_word_ids is float32; give whole numbers"):
        model.predict(rows)
