"""Exports for ONNX Runtime, OpenVINO and LiteRT: a run's answers from raw texts without TensorFlow, and refusals before work."""

import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import parity
import pytest
import tensorflow as tf
from exports import CASES, untrained
from runs import ROBERTA_TOKENS, contents, run_command, texts, write_roberta

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS, POOLED_OUTPUT
from bert_keras.io.formats import RUN, stamp
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.kernels import plain_operations
from bert_keras.savedmodels import runtime_example, runtimes
from bert_keras.savedmodels.converters import RUNTIMES, write_model
from bert_keras.savedmodels.export import sample_inputs, servable_of
from bert_keras.savedmodels.model_card import precision_of
from bert_keras.savedmodels.runtime_example import read_inputs
from bert_keras.savedmodels.runtimes import (
    SCRIPT,
    SETTINGS,
    check_packages,
    check_task,
    export_to,
    in_float32,
    settings_of,
    write_beside,
)
from bert_keras.savedmodels.servable import with_constants
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


def converts(test):
    """Marks a test that converts a model, which takes long and warns."""
    return pytest.mark.long(pytest.mark.filterwarnings("ignore")(test))


def needs(name: str, *, quantize: str | None = None) -> None:
    """Skips where the packages of a runtime are not installed."""
    for module in (*RUNTIMES[name].packages, *(RUNTIMES[name].quantizers if quantize else ())):
        pytest.importorskip(module)


@pytest.fixture
def all_installed(monkeypatch) -> None:
    """Every package of every runtime seems to be installed."""
    monkeypatch.setattr(runtimes, "check_packages", lambda *args, **kwargs: None)


def both(path: Path) -> Run:
    """An ensemble of a run and the same run."""
    run = load_run(path)
    return dataclasses.replace(run, model=Ensemble([run.model, load_run(path).model]))


def written_beside(run: Run, folder: Path) -> dict[str, bytes]:
    """The files beside a model, by name."""
    folder.mkdir()
    write_beside(run, folder, settings_of(run, "onnx"), name="model", size=0, quantize=None)
    return contents(folder)


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


@converts
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
    assert checkpoints.hugging_face_tokenizer.read_tokenizer(tmp_path / "moved elsewhere").has_tokens
    assert not [*(tmp_path / "moved elsewhere").glob("float-*")]


@converts
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("onnx", "Sentence embedding"),
        ("onnx", "Regression"),
        ("openvino", "Next sentence"),
        ("litert", "Sentence embedding"),
        ("litert", "Regression"),
        ("litert", "Next sentence"),
    ],
)
def test_vectors_scores_and_pairs(name, case, sst2, tmp_path):
    needs(name)
    run = untrained(CASES[case], sst2.checkpoint)
    found = export_to(run, tmp_path / "model", name)
    assert found["max_difference"] < 1e-5 and found["bytes"] > 100_000
    raw = sample_inputs(run.task.signature(), TEXTS)
    features = run.task.features(run.preprocess, {key: tf.constant(rows) for key, rows in raw.items()})
    expected = np.asarray(run.model(model_inputs(run.task, features), training=False))
    settings = json.loads((tmp_path / "model" / SETTINGS).read_text())
    np.testing.assert_allclose(answers(tmp_path / "model", raw)[settings["output"]], expected, atol=1e-5)


FAMILIES = {
    "ALBERT": {"embedding_size": 8, "share_layers": True, "num_layers": 2},
    "ELECTRA": {"embedding_size": 8, "activation": "gelu_erf"},
    "RoBERTa": {"activation": "gelu_erf", "position_offset": 2, "type_vocab_size": 1},
    "DistilBERT": {"activation": "gelu_erf", "type_vocab_size": 0, "pooler_activation": "relu"},
    "left to right": {"causal": True},
}


@converts
@pytest.mark.parametrize("fields", FAMILIES.values(), ids=FAMILIES)
def test_litert_computes_every_family_for_any_batch_and_length(fields, tmp_path):
    needs("litert")
    from ai_edge_litert.interpreter import Interpreter

    config, inputs = parity.small(**fields), encoder_inputs()
    model = keras.Model(inputs, BertEncoder(config, outputs=(POOLED_OUTPUT,))(inputs)[POOLED_OUTPUT])
    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ENCODER_INPUTS}
    with plain_operations():
        function = with_constants(model, specs)
    write_model("litert", function, tmp_path, output="pooled")
    runner = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    for batch, length in ((3, 7), (1, 12), (5, 2)):
        given = parity.random_features(config, seed=batch, batch=batch, length=length)
        np.testing.assert_allclose(runner(**given)["pooled"], model(given, training=False), atol=1e-5)


@converts
@pytest.mark.parametrize("name", RUNTIMES)
def test_an_ensemble_and_a_run_of_mixed_precision(name, sst2, tmp_path):
    needs(name)
    mixed = bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24, dtype="mixed_bfloat16").as_run()
    for folder, exported in (("both", both(sst2.run)), ("mixed", mixed)):
        assert export_to(exported, tmp_path / folder, name)["max_difference"] < 1e-5


def sentencepiece_run(path: Path) -> Run:
    """A run with a SentencePiece vocabulary of 45 tokens."""
    learned = learn_sentencepiece(
        sentencepiece_texts(lower_case=True)(texts(400, seed=1)), size=45, lower_case=True
    )
    preprocess = Preprocessor(SentencePiece(learned.model), seq_length=24, pad_to_longest=True)
    return dataclasses.replace(load_run(path), preprocess=preprocess)


def test_the_command_in_the_card_fits_the_tokenizer(sst2, tmp_path):
    files = written_beside(load_run(sst2.run), tmp_path / "wordpiece")
    card = files[CARD].decode()
    assert "tokenizer.json" in files and '\n    python example.py "' in card and "all that a program" in card
    files = written_beside(sentencepiece_run(sst2.run), tmp_path / "sentencepiece")
    card = files[CARD].decode()
    assert "tokenizer.json" not in files and "\n    python example.py < features.json\n" in card
    assert "all that a program" not in card and f"Compute {', '.join(ENCODER_INPUTS)} with" in card


@converts
def test_a_sentencepiece_run_takes_features(sst2, tmp_path):
    needs("onnx")
    run = sentencepiece_run(sst2.run)
    assert export_to(run, tmp_path / "model", "onnx")["max_difference"] < 1e-5
    given = {
        name: rows.numpy().tolist()
        for name, rows in model_inputs(run.task, run.preprocess(["good film"])).items()
    }
    assert len(answers(tmp_path / "model", given)["answers"]) == 1
    done = subprocess.run(
        [sys.executable, tmp_path / "model" / SCRIPT, "good film"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "give input_word_ids, input_mask" in done.stderr
    ids = [
        tokenizer.tokenize(["good film"]).to_list()
        for tokenizer in (run.preprocess.tokenizer, bk.load_tokenizer(tmp_path / "model"))
    ]
    assert ids[0] == ids[1]


def test_an_error_of_a_quantizer_is_one_line(tmp_path, monkeypatch):
    def quantize(source, path):
        raise ValueError("no scale\nand more lines")

    convert = {"float32": lambda function, output, path: path.touch()}
    row = dataclasses.replace(RUNTIMES["onnx"], convert=convert, quantize=quantize)
    monkeypatch.setitem(RUNTIMES, "onnx", row)
    logging.disable(logging.CRITICAL)
    try:
        with pytest.raises(
            BertKerasError, match="^the int8 quantizer for onnx .*: no scale; leave --quantize out.$"
        ):
            write_model("onnx", None, tmp_path, output="logits", quantize="int8")
        assert logging.root.manager.disable == logging.CRITICAL, "as it was"
    finally:
        logging.disable(logging.NOTSET)


@converts
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


@converts
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


@converts
def test_litert_has_weights_in_float16(sst2, tmp_path, capfd):
    needs("litert")
    flags = ["--run", sst2.run, "--format", "litert", "--precision", "float16", "--output", tmp_path / "half"]
    code, out, err = run_command(capfd, "export", *flags)
    assert code == 0 and "warning" not in err, err
    whole = export_to(load_run(sst2.run), tmp_path / "whole", "litert")
    assert (tmp_path / "half" / "model.tflite").stat().st_size < 0.7 * whole["bytes"]
    narrow, wide = (
        np.array(answers(tmp_path / name, {"sentence": TEXTS})["logits"]) for name in ("half", "whole")
    )
    np.testing.assert_allclose(narrow, wide, atol=1e-2)
    assert np.abs(narrow - wide).max() > 1e-6
    assert "| weights | float16 |" in (tmp_path / "half" / CARD).read_text()


@pytest.mark.long
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
        written_beside(run, folder)
        monkeypatch.setattr(runtime_example, "FOLDER", folder)
        raw = sample_inputs(run.task.signature(), TEXTS)
        expected = run.task.features(run.preprocess, {key: tf.constant(rows) for key, rows in raw.items()})
        for key, value in runtime_example.features(settings, [*raw.values()]).items():
            np.testing.assert_array_equal(value, expected[key], err_msg=f"{name} {truncation} {key}")
    assert ROBERTA_TOKENS[0] in (tmp_path / "2" / "tokenizer.json").read_text()


def test_an_ensemble_has_the_files_of_its_first_member(sst2, tmp_path):
    one = written_beside(load_run(sst2.run), tmp_path / "one")
    two = written_beside(both(sst2.run), tmp_path / "both")
    assert "| ensemble | 2 models, outputs averaged |" in two.pop(CARD).decode()
    assert one.pop(CARD) and one == two


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
    ("task", "reason"),
    [
        (CASES["Question answering"], "squad2.0 .*windows"),
        (CASES["Named entities"], "conll2003 .*windows"),
        (CASES["Word features"], "word-embedding .*windows"),
        (CASES["Choice"], "swag finds its answers in the text"),
        (CASES["Fill-mask"], "fill.mask finds its answers in the text"),
        (TextClassification.open("sst2", doc_stride=8), "sst2 cuts texts into windows"),
    ],
)
def test_a_task_whose_answers_need_the_text(task, reason):
    with pytest.raises(ValueError, match=f"^{reason}.*SavedModel"):
        check_task(task)


@pytest.mark.usefixtures("all_installed")
def test_a_task_whose_answers_need_the_text_writes_nothing(sst2, tmp_path):
    with pytest.raises(ValueError, match="^swag finds its answers"):
        export_to(untrained(CASES["Choice"], sst2.checkpoint), tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


NO_RUN, NO_CHECKPOINT = ["--run", "{}"], ["--checkpoint", "org/none"]
ONNX, OPENVINO, LITERT = (["--format", name] for name in RUNTIMES)
FULL = "is there already and not empty"
REMOTE, FILE = "this folder is written to a local disk", "file is a file; give a folder"
# Flags of export and the message, which comes before a run or weights are read.
REFUSED = [
    (
        [*NO_RUN, *ONNX, "--precision", "bfloat16"],
        "precision is bfloat16, and a model for onnx computes in float32",
    ),
    (
        [*NO_RUN, *OPENVINO, "--precision", "float16"],
        "precision is float16, and a model for openvino computes in float32",
    ),
    (
        [*NO_RUN, *LITERT, "--precision", "bfloat16"],
        "precision is bfloat16, and a model for litert computes in float32 or float16",
    ),
    (
        [*NO_RUN, *LITERT, "--precision", "float16", "--quantize", "int8"],
        "precision is float16 and quantize is int8; the weights of model.tflite have one format",
    ),
    ([*NO_RUN, *LITERT, "--output", "{}"], FULL),
    ([*NO_RUN, "--seq-length", "0"], "--seq-length is 0; --seq-length must be a whole number of at least 1"),
    ([*NO_RUN, "--seq-length", "8"], "give --run alone"),
    ([*NO_RUN, *ONNX, "--freeze"], "freeze must be False for onnx"),
    ([*NO_RUN, "--quantize", "int8"], "quantize must be None for a savedmodel"),
    ([*NO_RUN, *OPENVINO, "--target", "tfserving-2.19"], "--target names a TensorFlow Serving"),
    ([*NO_RUN, "--target", "tfserving-1.0"], "target is 'tfserving-1.0'; give one of"),
    ([*NO_RUN, "--output", "gs://bucket/out"], REMOTE),
    ([*NO_RUN, *ONNX, "--output", "gs://bucket/out"], REMOTE),
    ([*NO_RUN, "--output", "{}/file"], FILE),
    ([*NO_RUN, *ONNX, "--output", "{}/file"], FILE),
    ([*NO_RUN, *ONNX, "--output", "{}"], FULL),
    (["--run", "{}/run", *ONNX], "squad2.0 cuts texts into windows"),
    ([*NO_CHECKPOINT, *ONNX, "--task", "fill-mask"], "fill-mask finds its answers in the text"),
    ([*NO_CHECKPOINT, *ONNX, "--embedding", "word"], "word-embedding cuts texts into windows"),
]


@pytest.mark.usefixtures("all_installed")
@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_the_command_refuses_before_it_reads_weights(flags, message, tmp_path, capfd):
    task = stamp(RUN) | {"kind": "question-answering", "task": CASES["Question answering"].to_json()}
    task |= {"seq_length": 40, "truncation": "longest_first"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "task.json").write_text(json.dumps(task))
    (tmp_path / "file").write_text("")
    flags = ["--output", "{}/out", *flags]
    code, _, err = run_command(capfd, "export", *(word.format(tmp_path) for word in flags))
    assert code == 1 and message in err and "task.json" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sentence": "a charming journey"}, "is not lists of texts; give .*sentence"),
        ({"sentence": [1]}, "is not lists of texts"),
        ({"text": ["good"]}, "the input has text; give .*sentence"),
        (["good"], "the input has list; give"),
        ({"sentence": []}, "the input has 0 of sentence; give as many"),
        (
            {"premise": ["a", "b"], "hypothesis": ["c"]},
            "has 2 of premise, 1 of hypothesis; give as many of each",
        ),
        ({name: [[1, 2], [3]] for name in ENCODER_INPUTS}, "rows of other lengths"),
        ({name: [["a", "b"]] for name in ENCODER_INPUTS}, "not all whole numbers"),
    ],
)
def test_an_input_of_another_form_is_one_line(given, message):
    inputs = [*given] if "premise" in given else ["sentence"]
    settings = {"inputs": inputs, "features": [*ENCODER_INPUTS], "tokenizer": "tokenizer.json"}
    settings |= {"max_length": 40, "limits": dict.fromkeys(ENCODER_INPUTS, 2)}
    with pytest.raises(SystemExit, match=message):
        read_inputs(settings, given)


def test_a_missing_package_is_named_before_anything_is_read(tmp_path, capfd, monkeypatch):
    find = runtimes.importlib.util.find_spec
    gone = ("nncf", "tf2onnx", "ai_edge_litert")
    monkeypatch.setattr(
        runtimes.importlib.util, "find_spec", lambda name, *args: None if name in gone else find(name, *args)
    )
    with pytest.raises(ImportError, match=r"nncf.*; pip install 'bert-keras\[openvino\]'"):
        check_packages("openvino", quantize="int8")
    message = r"litert \(model.tflite\) needs ai_edge_litert; pip install 'bert-keras\[litert\]'"
    with pytest.raises(ImportError, match=message):
        check_packages("litert")
    flags = ["--run", tmp_path, "--output", tmp_path / "out"]  # no run
    code, _, err = run_command(capfd, "export", *flags, "--format", "onnx")
    assert code == 1 and "pip install 'bert-keras[onnx]'" in err and "task.json" not in err


def test_the_example_names_a_missing_package_in_one_line(tmp_path, monkeypatch):
    settings = {"runtime": "onnx", "model": "model.onnx", "output": "logits", "inputs": ["sentence"]}
    (tmp_path / SETTINGS).write_text(json.dumps(settings))
    monkeypatch.setattr(runtime_example, "FOLDER", tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit, match="onnxruntime.*; pip install onnxruntime$"):
        runtime_example.main(["a text"])


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
@pytest.mark.usefixtures("all_installed")
def test_a_narrow_model_without_a_float32_form_is_refused(sst2, tmp_path):
    run = bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24, dtype="bfloat16").as_run()
    run.encoder.blocks[0].attention.query.quantize("int8")
    with pytest.raises(
        ValueError, match="computes in bfloat16 .* float32, in which a model for onnx computes"
    ):
        export_to(run, tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.usefixtures("all_installed")
def test_an_op_that_the_converter_refuses_is_named(sst2, tmp_path, monkeypatch):
    def refuses(function, output, path):
        raise KeyError("OneOpMore")

    row = dataclasses.replace(RUNTIMES["onnx"], convert={"float32": refuses})
    monkeypatch.setitem(RUNTIMES, "onnx", row)
    with pytest.raises(ValueError, match="converter for onnx cannot carry this model: 'OneOpMore'"):
        export_to(load_run(sst2.run), tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_litert_names_an_op_that_is_not_built_in_and_prints_nothing(tmp_path, capfd):
    spec = {"x": tf.TensorSpec([None, 3], tf.float32, "x")}
    function = tf.function(lambda features: tf.math.erf(features["x"]), autograph=False)
    capfd.readouterr()
    with pytest.raises(BertKerasError, match="^the converter for litert .*: TF Select ops: Erf; export a"):
        write_model("litert", function.get_concrete_function(spec), tmp_path, output="y")
    assert capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [("tflite", None), ("litert", "int4")])
def test_another_name_of_a_runtime_or_a_format(given, tmp_path):
    name, quantize = given
    with pytest.raises(BertKerasError, match=r"give format onnx, openvino, litert \(TensorFlow Lite\)"):
        runtimes.check_runtime(tmp_path / "out", name, quantize=quantize)


@converts
def test_a_model_with_other_weights_is_not_published(sst2, tmp_path, monkeypatch):
    needs("onnx")
    run = load_run(sst2.run)
    with plain_operations():
        function = with_constants(run.model, servable_of(run).features_signature())
    for variable in run.model.trainable_variables:
        variable.assign(0.99 * variable)
    monkeypatch.setattr(runtimes, "with_constants", lambda *args: function)
    with pytest.raises(ExportError, match="logits differs by .* 1e-05"):
        export_to(run, tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


def recurrent(sst2) -> Run:
    """A run with a BiLSTM, whose loop is an op of its own."""
    features = {"feature_layers": "0,1", "lstm_layers": 1, "lstm_units": 8}
    return bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24, **features).as_run()


@converts
@pytest.mark.parametrize("name", [name for name in RUNTIMES if name != "onnx"])
def test_a_recurrent_layer_is_refused_by_its_op(name, sst2, tmp_path):
    needs(name)
    with pytest.raises(ValueError, match=f"converter for {name} cannot carry this model: .*TensorList"):
        export_to(recurrent(sst2), tmp_path / "model", name)
    assert not list(tmp_path.iterdir())


@converts
def test_a_recurrent_layer_is_carried_by_onnx(sst2, tmp_path):
    needs("onnx")
    assert export_to(recurrent(sst2), tmp_path / "onnx", "onnx")["max_difference"] < 1e-5
