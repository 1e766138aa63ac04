"""Exports for ONNX Runtime and OpenVINO: the run's answers from raw texts without TensorFlow, and refusals before any work."""

import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from exports import CASES, untrained
from runs import ROBERTA_TOKENS, contents, run_command, texts, write_roberta

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.io.formats import RUN, stamp
from bert_keras.savedmodels import runtime_example, runtimes
from bert_keras.savedmodels.model_card import precision_of
from bert_keras.savedmodels.runtime_example import read_inputs
from bert_keras.savedmodels.runtimes import (
    RUNTIMES,
    SCRIPT,
    SETTINGS,
    check_packages,
    check_task,
    export_to,
    in_float32,
    settings_of,
    write_beside,
)
from bert_keras.savedmodels.verify import CARD, SAMPLES, ExportError
from bert_keras.tasks.batches import predict
from bert_keras.tasks.pretraining.vocabulary import learn_sentencepiece
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.ensemble import Ensemble
from bert_keras.tasks.runs.run_folder import Run, load_run
from bert_keras.tasks.task import model_inputs
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.sentencepiece import SentencePiece, sentencepiece_texts

TEXTS = [
    *SAMPLES,
    *texts(6, seed=3),
    "bad " * 60 + "good",
    "a [MASK] of <mask> and </s>",
    "don't stop",
    "x" * 150,
]
WARNINGS = pytest.mark.filterwarnings("ignore")  # the converters' own


def needs(name: str, *, quantize: str | None = None) -> None:
    """Skips where the packages of a runtime are not installed."""
    for module in (*RUNTIMES[name].packages, *(RUNTIMES[name].quantizers if quantize else ())):
        pytest.importorskip(module)


def answers(folder: Path, raw: dict[str, list[str]]) -> dict:
    """The output of example.py in a process that cannot import TensorFlow or this package."""
    blocked = ("tensorflow", "keras", "bert_keras", "tasks", "savedmodels", "transformers", "torch")
    code = (
        f"import sys, runpy; sys.modules.update(dict.fromkeys({blocked})); "
        f"runpy.run_path({str(folder / SCRIPT)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(raw), capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@WARNINGS
@pytest.mark.parametrize("name", RUNTIMES)
def test_a_run_answers_texts_without_tensorflow(name, sst2, tmp_path, capfd):
    needs(name)
    flags = ["--run", sst2.run, "--format", name, "--output", tmp_path / "model"]
    code, out, err = run_command(capfd, "export", *flags)
    assert code == 0 and "without TensorFlow" in out, err
    run = load_run(sst2.run)
    rows = tf.data.Dataset.from_tensor_slices({"sentence": TEXTS})
    expected, _ = predict(run.task, run.preprocess, run.model, rows, batch_size=8)
    (tmp_path / "model").rename(tmp_path / "moved elsewhere")
    found = answers(tmp_path / "moved elsewhere", {"sentence": TEXTS})["answers"]
    assert [row["label"] for row in found] == [label.decode() for label in expected["label"]]
    probabilities = [row["probabilities"] for row in found]
    np.testing.assert_allclose(probabilities, expected["probabilities"], rtol=0, atol=1e-5)
    assert np.std(probabilities, axis=0).max() > 1e-3
    script = [sys.executable, str(tmp_path / "moved elsewhere" / "example.py")]
    asked = subprocess.run([*script, "--help"], capture_output=True, text=True)
    assert "python example.py" in asked.stdout and asked.returncode == 0
    empty = subprocess.run(script, input="", capture_output=True, text=True)
    assert "standard input is no JSON" in empty.stderr and "Traceback" not in empty.stderr
    # The tokenizer is one that this package reads, and no second copy of the weights is left.
    assert checkpoints.hugging_face_tokenizer.read_tokenizer(tmp_path / "moved elsewhere").pieces
    assert not [*(tmp_path / "moved elsewhere").glob("float-*")]


@pytest.mark.long
@WARNINGS
@pytest.mark.parametrize(
    ("name", "case"), [("onnx", "Sentence embedding"), ("onnx", "Regression"), ("openvino", "Next sentence")]
)
def test_vectors_scores_and_pairs(name, case, sst2, tmp_path):
    needs(name)
    run = untrained(CASES[case], sst2.checkpoint)
    found = export_to(run, tmp_path / "model", name)
    assert found["max_difference"] < 1e-5 and found["bytes"] > 100_000
    raw = {text: TEXTS[i:] + TEXTS[:i] for i, text in enumerate(run.task.signature())}
    features = run.task.features(run.preprocess, {key: tf.constant(rows) for key, rows in raw.items()})
    expected = np.asarray(run.model(model_inputs(features), training=False))
    settings = json.loads((tmp_path / "model" / SETTINGS).read_text())
    np.testing.assert_allclose(answers(tmp_path / "model", raw)[settings["output"]], expected, atol=1e-5)


@pytest.mark.long
@WARNINGS
@pytest.mark.parametrize("name", RUNTIMES)
def test_an_ensemble_and_a_run_of_mixed_precision(name, sst2, tmp_path):
    needs(name)
    run = load_run(sst2.run)
    both = dataclasses.replace(run, model=Ensemble([run.model, load_run(sst2.run).model]))
    mixed = bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24, dtype="mixed_bfloat16").as_run()
    for folder, exported in (("both", both), ("mixed", mixed)):
        assert export_to(exported, tmp_path / folder, name)["max_difference"] < 1e-5


def sentencepiece_run(path: Path) -> Run:
    """A run with a SentencePiece vocabulary of 45 tokens."""
    learned = learn_sentencepiece(
        sentencepiece_texts(lower_case=True)(texts(400, seed=1)), size=45, lower_case=True
    )
    preprocess = Preprocessor(SentencePiece(learned.model), seq_length=24, pad_to_longest=True)
    return dataclasses.replace(load_run(path), preprocess=preprocess)


def test_the_command_in_the_card_fits_the_tokenizer(sst2, tmp_path):
    cards = {}
    for name, run in (("wordpiece", load_run(sst2.run)), ("sentencepiece", sentencepiece_run(sst2.run))):
        (tmp_path / name).mkdir()
        write_beside(run, tmp_path / name, settings_of(run, "onnx"), name="model", size=0, quantize=None)
        assert (tmp_path / name / "tokenizer.json").exists() == (name == "wordpiece")
        cards[name] = (tmp_path / name / CARD).read_text()
    assert '\n    python example.py "' in cards["wordpiece"] and "all that a program" in cards["wordpiece"]
    assert "\n    python example.py < features.json\n" in cards["sentencepiece"]
    assert "all that a program" not in cards["sentencepiece"]
    assert "Compute input_word_ids, input_mask, input_type_ids with" in cards["sentencepiece"]


@pytest.mark.long
@WARNINGS
def test_a_sentencepiece_run_takes_features(sst2, tmp_path):
    needs("onnx")
    run = sentencepiece_run(sst2.run)
    preprocess = run.preprocess
    assert export_to(run, tmp_path / "model", "onnx")["max_difference"] < 1e-5
    given = {name: rows.numpy().tolist() for name, rows in model_inputs(preprocess(["good film"])).items()}
    assert len(answers(tmp_path / "model", given)["answers"]) == 1
    done = subprocess.run(
        [sys.executable, tmp_path / "model" / SCRIPT, "good film"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "give input_word_ids, input_mask" in done.stderr
    ids = [
        tokenizer.tokenize(["good film"]).to_list()
        for tokenizer in (preprocess.tokenizer, bk.load_tokenizer(tmp_path / "model"))
    ]
    assert ids[0] == ids[1]


def test_an_error_of_a_quantizer_is_one_line(tmp_path, monkeypatch):
    def quantize(source, path):
        raise ValueError("no scale\nand more lines")

    row = dataclasses.replace(
        RUNTIMES["onnx"], convert=lambda function, output, path: path.touch(), quantize=quantize
    )
    monkeypatch.setitem(RUNTIMES, "onnx", row)
    logging.disable(logging.CRITICAL)
    try:
        with pytest.raises(
            BertKerasError, match="^the int8 quantizer for onnx .*: no scale; leave --quantize out.$"
        ):
            runtimes.write_model("onnx", None, tmp_path, output="logits", quantize="int8")
        assert logging.root.manager.disable == logging.CRITICAL, "as it was"
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.long
@WARNINGS
@pytest.mark.parametrize("name", RUNTIMES)
def test_int8_weights_are_smaller_and_near(name, sst2, tmp_path):
    needs(name, quantize="int8")
    run = load_run(sst2.run)
    whole = export_to(run, tmp_path / "float32", name)
    found = export_to(run, tmp_path / "int8", name, quantize="int8")
    assert found["bytes"] < 0.9 * whole["bytes"]
    assert 1e-5 < found["max_difference"] < 0.25
    assert {*contents(tmp_path / "int8")} == {*contents(tmp_path / "float32")}
    card = (tmp_path / "int8" / "model_card.md").read_text()
    assert "| weights | int8 |" in card and "The export in int8 was not measured" in card


@pytest.mark.long
@WARNINGS
def test_openvino_computes_in_bfloat16(sst2, tmp_path, capfd):
    needs("openvino")
    import openvino

    flags = ["--run", sst2.run, "--format", "openvino", "--precision", "bfloat16", "--output", tmp_path / "b"]
    code, _, err = run_command(capfd, "export", *flags)
    assert code == 0, err
    export_to(load_run(sst2.run), tmp_path / "f", "openvino")
    narrow, wide = (np.array(answers(tmp_path / name, {"sentence": TEXTS})["logits"]) for name in "bf")
    np.testing.assert_allclose(narrow, wide, atol=0.05 * np.abs(wide).max())
    can = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert (np.abs(narrow - wide).max() > 1e-5) == can
    assert (tmp_path / "b" / "model.bin").read_bytes() == (tmp_path / "f" / "model.bin").read_bytes()
    card = (tmp_path / "b" / CARD).read_text()
    assert "| precision | bfloat16 |" in card and "The export in bfloat16 was not measured" in card


@pytest.mark.parametrize(("name", "precision"), [("onnx", "bfloat16"), ("openvino", "float16")])
def test_a_format_that_a_runtime_does_not_compute_in(name, precision, tmp_path, capfd):
    flags = ["--run", tmp_path / "no run", "--format", name, "--precision", precision]
    code, _, err = run_command(capfd, "export", *flags, "--output", tmp_path / "out")
    assert code == 1 and f"precision is {precision}, and a model for {name} computes in float32" in err


def test_the_features_are_those_of_the_preprocessor(sst2, tmp_path, monkeypatch):
    """Every way to cut, one text and two, in BERT's form and in RoBERTa's."""
    roberta = write_roberta(tmp_path / "roberta")
    cases = [
        (checkpoint, name, None) for checkpoint in (sst2.checkpoint, roberta) for name in ("sst2", "mnli")
    ]
    cases += [(sst2.checkpoint, "sst2", "tail"), (sst2.checkpoint, "sst2", "head_tail")]
    for i, (checkpoint, name, truncation) in enumerate(cases):
        run = untrained(TextClassification.open(name, truncation=truncation), checkpoint)
        settings, folder = settings_of(run, "onnx"), tmp_path / str(i)
        folder.mkdir()
        write_beside(run, folder, settings, name="model", size=0, quantize=None)
        monkeypatch.setattr(runtime_example, "FOLDER", folder)
        columns = [TEXTS[i:] + TEXTS[:i] for i in range(len(run.task.signature()))]
        raw = {key: tf.constant(rows) for key, rows in zip(run.task.signature(), columns, strict=True)}
        expected = run.task.features(run.preprocess, raw)
        for key, value in runtime_example.features(settings, columns).items():
            np.testing.assert_array_equal(value, expected[key], err_msg=f"{name} {truncation} {key}")
    assert ROBERTA_TOKENS[0] in (tmp_path / "2" / "tokenizer.json").read_text()


def test_an_ensemble_has_the_files_of_its_first_member(sst2, tmp_path):
    run = load_run(sst2.run)
    both = dataclasses.replace(run, model=Ensemble([run.model, load_run(sst2.run).model]))
    for name, written in (("one", run), ("both", both)):
        (tmp_path / name).mkdir()
        write_beside(
            written, tmp_path / name, settings_of(written, "onnx"), name="model", size=0, quantize=None
        )
    one, two = (contents(tmp_path / name) for name in ("one", "both"))
    card = two.pop(CARD).decode()
    assert one.pop(CARD) and one == two
    assert "| ensemble | 2 models, outputs averaged |" in card


def test_waterfall_cuts_the_second_text_first():
    settings = {"start": 1, "end": 2, "separators": 1, "second_type": 1, "seq_length": 9}
    ids, types = runtime_example.framed(settings | {"truncation": "waterfall"}, [[5] * 4, [6] * 4])
    assert (ids, types) == ([1, 5, 5, 5, 5, 2, 6, 6, 2], [0, 0, 0, 0, 0, 0, 1, 1, 1])


def test_the_answers_of_each_type_of_label():
    logits = np.array([[2.0, -1.0], [-3.0, 1.0]], np.float32)
    settings = {"labels": ["a", "b"], "answer": "class"}
    found = runtime_example.answers(settings, logits)
    assert [row["label"] for row in found] == ["a", "b"]
    np.testing.assert_allclose(found[0]["probabilities"], tf.nn.softmax(logits)[0], rtol=1e-6)
    found = runtime_example.answers(settings | {"answer": "multi"}, logits)
    assert [row["labels"] for row in found] == [["a"], ["b"]]
    np.testing.assert_allclose(found[0]["probabilities"], tf.sigmoid(logits)[0], rtol=1e-6)
    assert runtime_example.answers(settings | {"answer": "score"}, logits[:, :1])[0] == {"score": 2.0}


# Refusals


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("Question answering", "squad2.0 .*windows"),
        ("Named entities", "conll2003 .*windows"),
        ("Word features", "word-embedding .*windows"),
        ("Choice", "swag finds its answers in the text"),
        ("Fill-mask", "fill.mask finds its answers in the text"),
    ],
)
def test_a_task_whose_answers_need_the_text(case, reason, sst2, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_keras.savedmodels.runtimes.check_packages", lambda *args, **kwargs: None)
    run = untrained(CASES[case], sst2.checkpoint)
    with pytest.raises(ValueError, match=f"^{reason}.*SavedModel"):
        export_to(run, tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


def test_a_classifier_of_windows_is_refused():
    with pytest.raises(ValueError, match="sst2 cuts texts into windows"):
        check_task(TextClassification.open("sst2", doc_stride=8))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (["--run", "{}/run"], "squad2.0 cuts texts into windows"),
        (["--checkpoint", "{}/none", "--task", "fill-mask"], "fill-mask finds its answers in the text"),
        (["--checkpoint", "{}/none", "--embedding", "word"], "word-embedding cuts texts into windows"),
    ],
)
def test_a_task_whose_answers_need_the_text_is_refused_before_weights_are_read(
    model, reason, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr("bert_keras.savedmodels.runtimes.check_packages", lambda *args, **kwargs: None)
    task = stamp(RUN) | {"kind": "question-answering", "task": CASES["Question answering"].to_json()}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "task.json").write_text(
        json.dumps(task | {"seq_length": 40, "truncation": "longest_first"})
    )
    flags = ["--output", tmp_path / "out", "--format", "onnx"]
    code, _, err = run_command(capfd, "export", *(word.format(tmp_path) for word in model), *flags)
    assert code == 1 and reason in err


IDS = ["input_word_ids", "input_mask", "input_type_ids"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sentence": "a charming journey"}, "is not lists of texts; give .*sentence"),
        ({"sentence": [1]}, "is not lists of texts"),
        ({"text": ["good"]}, "the input has text; give .*sentence"),
        (["good"], "the input has list; give"),
        ({"sentence": []}, "the input has 0 of sentence; give as many"),
        ({name: [[1, 2], [3]] for name in IDS}, "rows of other lengths"),
        ({name: [["a", "b"]] for name in IDS}, "not all whole numbers"),
    ],
)
def test_an_input_of_another_form_is_one_line(given, message):
    settings = {"inputs": ["sentence"], "features": IDS, "tokenizer": "tokenizer.json"}
    with pytest.raises(SystemExit, match=message):
        read_inputs(settings, given)


def test_texts_of_a_pair_that_are_not_as_many():
    settings = {"inputs": ["premise", "hypothesis"], "features": IDS, "tokenizer": "tokenizer.json"}
    with pytest.raises(SystemExit, match="has 2 of premise, 1 of hypothesis; give as many of each"):
        read_inputs(settings, {"premise": ["a", "b"], "hypothesis": ["c"]})


def test_a_missing_package_is_named_before_anything_is_read(tmp_path, capfd, monkeypatch):
    find = runtimes.importlib.util.find_spec
    gone = ("nncf", "tf2onnx")
    monkeypatch.setattr(
        runtimes.importlib.util, "find_spec", lambda name, *args: None if name in gone else find(name, *args)
    )
    with pytest.raises(ImportError, match=r"nncf.*; pip install 'bert-keras\[openvino\]'"):
        check_packages("openvino", quantize="int8")
    flags = ["--run", tmp_path / "no run", "--output", tmp_path / "out"]
    code, _, err = run_command(capfd, "export", *flags, "--format", "onnx")
    assert code == 1 and "pip install 'bert-keras[onnx]'" in err and "no run" not in err


@pytest.mark.parametrize("format", ["onnx", "savedmodel"])
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("gs://bucket/out", "this folder is written to a local disk"),
        ("file", "file is a file; give a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_run_is_read(
    format, output, message, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr("bert_keras.savedmodels.runtimes.check_packages", lambda *args, **kwargs: None)
    (tmp_path / "file").write_text("")
    path = output if "://" in output else tmp_path / output
    code, _, err = run_command(
        capfd, "export", "--run", tmp_path / "no run", "--output", path, "--format", format
    )
    assert code == 1 and message in err and "no run" not in err


def test_a_full_folder_and_an_unknown_target_are_refused_before_the_run_is_read(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("bert_keras.savedmodels.runtimes.check_packages", lambda *args, **kwargs: None)
    flags = ["--run", tmp_path / "no run", "--output", tmp_path]
    (tmp_path / "notes.txt").write_text("mine")
    code, _, err = run_command(capfd, "export", *flags, "--format", "onnx")
    assert code == 1 and "is there already and not empty" in err
    code, _, err = run_command(capfd, "export", *flags, "--target", "tfserving-1.0")
    assert code == 1 and "target is 'tfserving-1.0'; give one of" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seq-length", "0"], "seq_length is 0; seq_length must be a whole number of at least 1"),
        (["--seq-length", "8"], "give --run alone"),
        (["--format", "onnx", "--freeze"], "freeze must be False for onnx"),
        (["--quantize", "int8"], "quantize must be None for a savedmodel"),
        (["--format", "openvino", "--target", "tfserving-2.19"], "--target names a TensorFlow Serving"),
    ],
)
def test_flags_that_belong_to_another_format(flags, message, tmp_path, capfd):
    code, _, err = run_command(capfd, "export", "--run", "r", "--output", tmp_path / "out", *flags)
    assert code == 1 and message in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_a_narrow_model_becomes_float32(dtype, sst2):
    run = bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24, dtype=dtype).as_run()
    found = in_float32(run, "onnx")
    assert precision_of(found.model) == "float32"
    for before, after in zip(run.model.weights, found.model.weights, strict=True):
        assert after.dtype == "float32"
        np.testing.assert_array_equal(np.asarray(before, np.float32), after)
    assert in_float32(found, "onnx") is found


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_narrow_model_without_a_float32_form_is_refused(sst2, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_keras.savedmodels.runtimes.check_packages", lambda *args, **kwargs: None)
    run = bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24, dtype="bfloat16").as_run()
    run.encoder.blocks[0].attention.query.quantize("int8")
    with pytest.raises(
        ValueError, match="computes in bfloat16 .* float32, in which a model for onnx computes"
    ):
        export_to(run, tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


def test_an_op_that_the_converter_refuses_is_named(sst2, tmp_path, monkeypatch):
    def refuses(function, output, path):
        raise KeyError("OneOpMore")

    row = runtimes.dataclasses.replace(RUNTIMES["onnx"], convert=refuses)
    monkeypatch.setitem(RUNTIMES, "onnx", row)
    monkeypatch.setattr("bert_keras.savedmodels.runtimes.check_packages", lambda *args, **kwargs: None)
    with pytest.raises(ValueError, match="converter for onnx cannot carry this model: 'OneOpMore'"):
        export_to(load_run(sst2.run), tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@WARNINGS
def test_a_model_with_other_weights_is_not_published(sst2, tmp_path, monkeypatch):
    needs("onnx")
    run = load_run(sst2.run)
    from bert_keras.model.kernels import plain_operations
    from bert_keras.savedmodels.servable import with_constants

    with plain_operations():
        function = with_constants(run.model, settings_features())
    for variable in run.model.trainable_variables:
        variable.assign(0.99 * variable)
    monkeypatch.setattr("bert_keras.savedmodels.runtimes.with_constants", lambda *args: function)
    with pytest.raises(ExportError, match="logits differs by .* 1e-05"):
        export_to(run, tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


def settings_features() -> dict[str, tf.TensorSpec]:
    return {
        name: tf.TensorSpec([None, None], tf.int32, name=name)
        for name in ("input_word_ids", "input_mask", "input_type_ids")
    }


@pytest.mark.long
@WARNINGS
def test_a_recurrent_layer_is_carried_by_onnx_and_refused_by_openvino(sst2, tmp_path):
    needs("onnx")
    needs("openvino")
    features = {"feature_layers": "0,1", "lstm_layers": 1, "lstm_units": 8}
    run = bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24, **features).as_run()
    with pytest.raises(ValueError, match="converter for openvino cannot carry this model: .*TensorList"):
        export_to(run, tmp_path / "openvino", "openvino")
    assert not list(tmp_path.iterdir())
    assert export_to(run, tmp_path / "onnx", "onnx")["max_difference"] < 1e-5
