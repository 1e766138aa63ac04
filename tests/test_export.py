"""Exported folders: what is in them, what they answer after a move, and what is left of an export that failed."""

import ast
import contextlib
import dataclasses
import hashlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pretrainings
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from exports import CASES, meta_graph, untrained
from google.protobuf import text_format
from runs import SIZES, contents, full_disk, run_command, texts

from bert_keras.features import INPUT_MASK
from bert_keras.io.folders import PARTIAL
from bert_keras.savedmodels import reload
from bert_keras.savedmodels.export import (
    CORE_OPS,
    TEXT_OPS,
    check_ops,
    export,
    ops_of,
    sample_inputs,
    servable_of,
)
from bert_keras.savedmodels.model_card import (
    BATCHING,
    MODELS,
    VERSIONS,
    model_card,
    precision_of,
    server_files,
    tensors_of,
)
from bert_keras.savedmodels.verify import (
    CARD,
    EXTRA,
    NARROW,
    SAMPLES,
    ExportError,
    ask,
    compare,
    relative,
    verify_files,
)
from bert_keras.tasks.batches import predict
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.embedding import Embedding, WordEmbedding
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.runs.ensemble import Ensemble, at_precision
from bert_keras.tasks.runs.run_folder import Run, load_run, run_of
from bert_keras.tasks.task import model_inputs

TEXTS = [*texts(20, seed=1), "", "Naïve ﬁlm: 真好 \N{GRINNING FACE}", "[SEP] good [MASK]", "bad " * 200]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    run: Run
    folder: Path  # of the version, after it was moved
    written: Path  # where export put it; no longer there
    base: dict[str, bytes]  # what stood beside it


@pytest.fixture(scope="module")
def exported(tmp_path_factory, sst2) -> Exported:
    """A run, exported, moved elsewhere, and the place it was exported to taken away."""
    place, run = tmp_path_factory.mktemp("place"), load_run(sst2.run)
    written = export(run, place / "served", target="tfserving-2.10")
    assert written == place / "served" / "1"
    base = {path.name: path.read_bytes() for path in written.parent.iterdir() if path.is_file()}
    moved = tmp_path_factory.mktemp("elsewhere") / "a model" / "1"
    moved.parent.mkdir()
    written.rename(moved)
    return Exported(run=run, folder=moved, written=written, base=base)


def test_signature(exported):
    loaded = tf.saved_model.load(str(exported.folder))
    assert sorted(loaded.signatures) == ["examples", "features", "serving_default"]
    assert [*tensors_of(loaded.signatures["serving_default"])] == [
        ("input", "sentence", "string", "[?]"),
        ("output", "label", "string", "[?]"),
        ("output", "label_names", "string", "[?, 2]"),
        ("output", "probabilities", "float32", "[?, 2]"),
    ]
    graph = meta_graph(exported.folder)
    assert list(graph.meta_info_def.tags) == ["serve"]
    for signature in loaded.signatures:
        assert graph.signature_def[signature].method_name == "tensorflow/serving/predict"


@pytest.mark.usefixtures("forked_answers")
def test_moved_elsewhere_it_answers_as_predict_does(exported):
    run, raw = exported.run, {"sentence": TEXTS}
    answers = ask(exported.folder, raw)
    expected, _ = predict(
        run.task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices(raw), batch_size=8
    )
    assert set(answers) == {*expected, "label_names"}
    assert answers["label_names"] == [["negative", "positive"]] * len(TEXTS)
    for name, value in expected.items():
        if value.dtype == object:
            assert answers[name] == [text.decode() for text in value]
        else:
            assert np.std(value, axis=0).max() > 1e-3  # the texts are told apart at all
            np.testing.assert_allclose(answers[name], value, rtol=0, atol=1e-6)


def test_everything_is_inside_once_and_nothing_points_outside(exported):
    variables = exported.run.model.variables
    size = sum(np.asarray(variable).nbytes for variable in variables)
    data = exported.folder / "variables" / "variables.data-00000-of-00001"
    assert size <= data.stat().st_size < 1.05 * size
    graph = meta_graph(exported.folder).graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    constants = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    floats = [constant.tensor_shape.dim for constant in constants if constant.dtype == 1]
    assert max(np.prod([dim.size for dim in dims]) for dims in floats) < 100
    blob = b"".join(contents(exported.folder).values())
    own = (exported.written.parent, exported.run.path, sys.prefix, Path(reload.__file__).parents[1])
    assert not [path for path in own if str(path).encode() in blob]
    assert not re.findall(rb"/(?:home|root|tmp|usr|Users|var)/[\w./-]+", blob)


class Undecided(TextClassification):
    """Decodes to numbers that differ from process to process by more than the bound of a precision."""

    def decode(self, outputs, features, raw):
        drawn = tf.raw_ops.RandomUniform(shape=tf.shape(outputs), dtype=tf.float32)
        return super().decode(outputs, features, raw) | {"probabilities": 5 * NARROW * drawn}


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
@pytest.mark.parametrize(("precision", "bound"), [("float32", "1e-06"), ("bfloat16", "2e-02")])
def test_other_answers_than_here_are_not_published(precision, bound, exported, tmp_path):
    run = dataclasses.replace(at_precision(exported.run, precision), task=Undecided.open("sst2"))
    with pytest.raises(ExportError, match=f"^probabilities differs by .* the tolerance is {bound}"):
        export(run, tmp_path / "new" / "served")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_versions_count_up_and_failures_leave_no_trace(exported, tmp_path):
    directory = tmp_path / "new" / "served"
    directory.mkdir(parents=True)
    (directory / "2").mkdir()
    (directory / "2" / "kept").write_text("as it was")
    (directory / "notes").write_text("not a version")
    (directory / PARTIAL / "new" / "3").mkdir(parents=True)
    with (
        full_disk(100_000),
        pytest.raises(ValueError, match=r"cannot export to .*served: .*; give a writable folder"),
    ):
        export(exported.run, directory)
    assert contents(directory) == {"2/kept": b"as it was", "notes": b"not a version"}
    assert sorted(path.name for path in directory.iterdir()) == ["2", "notes"]

    (directory / BATCHING).write_text("# mine")
    assert export(exported.run, directory) == directory / "3"
    assert sorted(path.name for path in directory.iterdir()) == ["2", "3", BATCHING, MODELS, "notes"]
    assert (directory / BATCHING).read_text() == "# mine"
    assert (directory / "3").stat().st_mode & 0o777 == 0o755


def test_a_folder_that_cannot_be_made(exported, tmp_path):
    (tmp_path / "file").write_text("as it was")
    with pytest.raises(ValueError, match=r"file/below\b.*; give a writable folder"):
        export(exported.run, tmp_path / "file" / "below")
    assert contents(tmp_path) == {"file": b"as it was"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"label": ["good"], "score": [0.5]}, None),
        ({"label": ["good"], "score": [0.5 + 9e-7]}, None),
        ({"label": ["good"], "score": [0.5 + 2e-6]}, "score differs by 2.0e-06"),
        ({"label": ["good"], "score": [float("nan")]}, "score differs by nan"),
        ({"label": ["bad"], "score": [0.5]}, "label changed"),
        ({"label": ["good", "good"], "score": [0.5]}, "label has shape"),
        ({"label": ["good"]}, "returns \\['label'\\]; expected \\['label', 'score'\\]"),
    ],
)
def test_compare(answers, message):
    expected = {"label": np.array([b"good"], object), "score": np.array([0.5])}
    with contextlib.nullcontext() if message is None else pytest.raises(ExportError, match=message):
        compare(expected, answers)


# Servers


class Trimmed(TextClassification):
    """Cuts pairs with an op of TensorFlow Text that only the newest server has."""

    def features(self, preprocess, raw):
        segments = [preprocess.tokenizer.tokenize(raw[name]) for name in self.text]
        return preprocess.pack(*tf_text.RoundRobinTrimmer(8).trim(segments))


@pytest.mark.long
def test_a_server_without_an_op_is_refused_before_anything_is_written(sst2, tmp_path):
    run = untrained(Trimmed.open("mnli"), sst2.checkpoint)
    with pytest.raises(ValueError, match="^tfserving-2.19 .*RoundRobinTrim, .* 2.20;"):
        export(run, tmp_path / "new" / "served", target="tfserving-2.19")
    assert not list(tmp_path.iterdir())
    for function in servable_of(run).functions():
        check_ops(ops_of(function.graph.as_graph_def()), "tfserving-2.20")
    with pytest.raises(ValueError, match="^target is 'tfserving-2.9'; .* tfserving-2.10, "):
        export(run, tmp_path / "served", target="tfserving-2.9")


@pytest.mark.parametrize(
    ("op", "target", "message"),
    [
        ("SegmentSumV2", "tfserving-2.11", "tfserving-2.11 .*SegmentSumV2, .* 2.12"),
        ("SegmentSumV2", "tfserving-2.12", None),
        ("DecodeJxl", "tfserving-2.20", "tfserving-2.20 .*DecodeJxl, .*no known server up to 2.20"),
        ("FastBertNormalize", "tfserving-2.11", "FastBertNormalize, which comes with 2.12"),
        ("SentencepieceTokenizeOp", "tfserving-2.10", None),
        ("MyOwnOp", "tfserving-2.20", "MyOwnOp, which no known server up to 2.20 has"),
    ],
)
def test_ops_of_servers(op, target, message):
    with contextlib.nullcontext() if message is None else pytest.raises(ValueError, match=message):
        check_ops({op, "MatMul"}, target)


def test_newer_ops_are_ops():
    """Ops of other accelerators than this wheel's are not in it."""
    assert {op for op in CORE_OPS if hasattr(tf.raw_ops, op)} == {*CORE_OPS}
    assert {*CORE_OPS.values(), *TEXT_OPS.values()} <= {*VERSIONS, "2.21"}


# The files beside the graph


def test_the_manifest_holds(exported, tmp_path):
    files = verify_files(exported.folder)
    assert {path: len(data) for path, data in contents(exported.folder).items()} == {
        **{path: file["bytes"] for path, file in files.items()},
        "assets.extra/manifest.json": (exported.folder / "assets.extra" / "manifest.json").stat().st_size,
    }
    changed = shutil.copytree(exported.folder, tmp_path / "changed")
    data = bytearray((changed / "saved_model.pb").read_bytes())
    data[len(data) // 2] ^= 1
    (changed / "saved_model.pb").write_bytes(data)
    (changed / "variables" / "variables.index").unlink()
    (changed / "new").write_text("")
    with pytest.raises(ValueError, match="new, saved_model.pb, variables/variables.index missing, changed"):
        verify_files(changed)
    with pytest.raises(FileNotFoundError, match="has no assets.extra/manifest.json; give the folder"):
        verify_files(tmp_path)


def test_info_verifies(exported, capfd, tmp_path):
    code, out, _ = run_command(capfd, "info", exported.folder)
    assert code == 0 and "all files are unchanged" in " ".join(out.split()) and "saved_model.pb" in out
    changed = shutil.copytree(exported.folder, tmp_path / "changed")
    (changed / EXTRA / CARD).write_text("other")
    code, _, err = run_command(capfd, "info", changed)
    assert code == 1 and "assets.extra/model_card.md missing, changed or added" in err


def test_the_card_says_what_it_is(exported, sst2):
    card = (exported.folder / "assets.extra" / CARD).read_text()
    results = json.loads((sst2.run / "results.json").read_text())
    digest = hashlib.sha256((sst2.run / "vocab.txt").read_bytes()).hexdigest()
    for part in (
        "| task | sst2 (text classification) |",
        "| input | sentence |",
        "| settings | pooling: pooled |",
        "| lower-cased | yes |",
        "| labels | negative, positive |",
        'the names of the columns of "probabilities" in each row: negative, positive',
        f"| SHA-256 of its file | {digest} |",
        "## Measures",
        f"| accuracy | {results['measures']['val_accuracy']:.4f} |",
        "| `serving_default` | output | `probabilities` | float32 | [?, 2] |",
        '{"instances": [{"sentence": "A charming and often affecting journey."}]}',
        'request.inputs["sentence"].CopyFrom',
        'tf.saved_model.load("served/1")',
    ):
        assert part in card, part
    assert exported.base.keys() == {MODELS, BATCHING}
    assert b'base_path: "/models/served"' in exported.base[MODELS]


def card_of(run: Run, name: str = "served") -> str:
    return model_card(run, {}, name=name, version=1, size=1)


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_an_ensemble(exported, sst2, tmp_path):
    second = load_run(sst2.run)
    for variable in second.model.trainable_variables:
        variable.assign(0.5 * variable)
    both = dataclasses.replace(exported.run, model=Ensemble([exported.run.model, second.model]))
    folder = export(both, tmp_path / "both")
    answers = ask(folder, {"sentence": TEXTS})["probabilities"]
    features = model_inputs(exported.run.task, exported.run.preprocess(tf.constant(TEXTS)))
    logits = [run.model(features) for run in (exported.run, second)]
    np.testing.assert_allclose(answers, tf.nn.softmax((logits[0] + logits[1]) / 2), atol=1e-5)
    assert np.abs(answers - tf.nn.softmax(logits[0])).max() > 1e-3

    card = (folder / "assets.extra" / CARD).read_text()
    assert "| ensemble | 2 models, outputs averaged |" in card
    parameters = both.model.count_params()
    assert parameters == 2 * second.model.count_params()
    layers = "layer" if SIZES["num_layers"] == 1 else "layers"
    size = f"{SIZES['num_layers']} {layers} of {SIZES['hidden_size']}"
    assert f"| encoder | {size}, {parameters:,} parameters |" in card
    assert "Measures" not in card and "accuracy" not in card  # the members' are not its own


CARDS = {
    "squad": (
        QuestionAnswering("squad1.1"),
        (
            "| task | squad1.1 (question answering) |",
            "windows, which start 128 tokens apart",
            "longest window",
        ),
    ),
    "choice": (
        MultipleChoice(),
        ("| task | swag (multiple choice) |", "| input | context, endings |", "4 choices"),
    ),
    "fill-mask": (FillMask(), ("| task | fill mask |", "| settings | the 5 best tokens are listed |")),
    "vectors": (Embedding(), ("| task | embedding |", "| settings | pooling: mean; layers: last |")),
    "vectors of length 1": (
        Embedding(l2=True),
        ("| settings | pooling: mean; vectors are scaled to length 1; layers: last |",),
    ),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_speaks_in_words(name, sst2):
    task, wanted = CARDS[name]
    card = card_of(dataclasses.replace(untrained(task, sst2.checkpoint), path=sst2.run))
    facts = card[: card.index("## Signatures")]
    for part in wanted:
        assert part in facts, facts
    assert not re.search(r"_|\b(True|False|None)\b|[:;,] *\|", facts), facts


@pytest.mark.parametrize("task", [Embedding(), WordEmbedding(), FillMask()])
def test_the_measures_of_another_task_are_not_shown(task, sst2):
    card = card_of(dataclasses.replace(untrained(task, sst2.checkpoint), path=sst2.run))
    assert "Measures" not in card and "accuracy" not in card


@pytest.mark.long
@pytest.mark.parametrize("held_out", [None, 0.3])
def test_the_measures_of_pre_training_are_the_held_out_ones(held_out, tmp_path):
    changes = {"steps": 2, "batch_size": 4, "held_out_instances": 8}
    results = pretrainings.train(tmp_path, changes=changes, held_out=held_out)
    named = {
        name.removeprefix("held_out_"): value
        for name, value in results["measures"].items()
        if "held_out_" in name
    }
    named |= {f"{name}, majority baseline": value for name, value in results["majority_baselines"].items()}
    assert len(named) == (0 if held_out is None else 9), named
    card = card_of(load_run(tmp_path))
    found = re.findall(r"\| (.+) \| (-?\d+\.\d{4}) \|", card)
    assert dict(found) == {name: f"{value:.4f}" for name, value in named.items()}
    assert ("On instances held out of pre-training" in card) == (held_out is not None)
    assert "Measures" not in card_of(run_of(Embedding(), tmp_path))


def test_a_name_is_quoted_in_the_card(exported):
    """tests/test_serve.py asks at the card's address."""
    name = 'a "name", \N{GRINNING FACE} of mine'
    card = card_of(exported.run, name)
    request = re.search("request.model_spec.name = (.*)", card)
    path = re.search(r"saved_model.load\((.*)\)", card)
    assert ast.literal_eval(request[1]) == name and ast.literal_eval(path[1]) == f"{name}/1"
    command = card[card.index("docker run") : card.index("REST:")]
    words = shlex.split(command)
    assert f"$PWD/{name}:/models/{name}" in words
    assert f"--model_config_file=/models/{name}/models.config" in words
    assert f"--batching_parameters_file=/models/{name}/batching_parameters.txt" in words


def test_warm_up_records_are_requests_that_are_answered(exported):
    prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    serve = tf.saved_model.load(str(exported.folder)).signatures["serving_default"]
    path = exported.folder / "assets.extra" / "tf_serving_warmup_requests"
    sizes = []
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        assert (request.model_spec.name, request.model_spec.signature_name) == ("served", "serving_default")
        inputs = {name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()}
        sizes.append(len(serve(**inputs)["label"]))
    assert sizes == [1] * len(SAMPLES) + [len(SAMPLES)]


def test_the_server_files_are_protocol_buffers(exported):
    config = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    odd = 'a "name", é\\'
    for name, text in (("served", exported.base[MODELS]), (odd, server_files(odd)[MODELS])):
        (model,) = text_format.Parse(text, config.ModelServerConfig()).model_config_list.config
        assert (model.name, model.base_path) == (name, f"/models/{name}")
    assert text.startswith("# base_path is a place in the container"), (
        "a server without it has no such folder"
    )


def test_a_short_text_does_not_pay_for_the_longest(exported):
    servable = servable_of(exported.run)
    for text, width in (("good", 8), ("good " * 7, 16), ("good " * 100, 40)):
        features = exported.run.task.features(servable.preprocess, {"sentence": tf.constant([text])})
        assert features[INPUT_MASK].shape[1] == width


# bfloat16: half of the bytes, float32 answers near those of float32, trainable and frozen


def size_of_model(folder: Path) -> int:
    """The bytes of the graph and its variables."""
    return sum(len(data) for name, data in contents(folder).items() if not name.startswith(("assets", EXTRA)))


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_the_command_writes_half_of_the_bytes_and_float32_answers(frozen, sst2, tmp_path, capfd):
    flags = ["--run", sst2.run, "--target", "tfserving-2.10", *(["--freeze"] if frozen else [])]
    for precision in ("float32", "bfloat16"):
        code, out, err = run_command(
            capfd, "export", *flags, "--precision", precision, "--output", tmp_path / precision
        )
        assert code == 0 and "gave the same answers" in out, err
    wide, narrow = tmp_path / "float32" / "1", tmp_path / "bfloat16" / "1"
    weights = sum(np.asarray(variable).nbytes for variable in load_run(sst2.run).model.variables)
    assert size_of_model(wide) - size_of_model(narrow) > 0.4 * weights
    card = (narrow / EXTRA / CARD).read_text()
    assert "| precision | bfloat16 |" in card and ("cannot be fine-tuned" in card) == frozen
    assert "| precision | float32 |" in (wide / EXTRA / CARD).read_text()
    texts = {"sentence": ["good warm film", "it is dull", "bad"]}
    expected, found = (np.array(ask(folder, texts)["probabilities"]) for folder in (wide, narrow))
    assert 0 < np.abs(expected - found).max() < 0.1
    loaded = tf.saved_model.load(str(narrow))
    outputs = {
        value.dtype
        for signature in loaded.signatures.values()
        for value in signature.structured_outputs.values()
    }
    assert outputs == {tf.float32, tf.string}
    if not frozen:
        dtypes = {variable.dtype for variable in loaded.trainable_variables}
        assert tf.bfloat16 in dtypes and dtypes <= {tf.bfloat16, tf.float32}


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_answers_that_are_cut_from_windows(sst2, tmp_path):
    run = at_precision(untrained(CASES["Question answering"], sst2.checkpoint), "bfloat16")
    folder = export(run, tmp_path / "served", freeze=True)
    raw = sample_inputs(run.task.signature())
    expected = servable_of(run).serve(**{name: tf.constant(rows) for name, rows in raw.items()})
    score = np.array(ask(folder, raw)["score"])
    assert relative(expected["score"].numpy(), score).max() < 0.1


def test_the_sample_inputs_of_more_choices_than_sample_texts():
    inputs = sample_inputs(MultipleChoice(num_choices=8).signature())
    assert {len(endings) for endings in inputs["endings"]} == {8} and len(inputs["endings"]) == len(SAMPLES)


def test_the_precision_of_an_ensemble(sst2):
    run = load_run(sst2.run)
    both = dataclasses.replace(run, model=Ensemble([run.model, load_run(sst2.run).model]))
    assert precision_of(both.model) == "float32"
    assert precision_of(at_precision(both, "bfloat16").model) == "bfloat16"


# Checkpoints


@pytest.mark.slow  # tests/test_serving_safety.py asks what it exports, tests/test_fill_mask.py the command
def test_a_checkpoint_is_exported_as_it_is(sst2, tmp_path, capfd):
    flags = ["--checkpoint", sst2.checkpoint, "--embedding", "mean", "--l2", "--target", "tfserving-2.10"]
    code, out, _ = run_command(capfd, "export", *flags, "--output", tmp_path / "vectors")
    assert code == 0 and "gave the same answers" in out
    answers = ask(tmp_path / "vectors" / "1", {"text": TEXTS})["embedding"]
    here = run_of(Embedding(pooling="mean", l2=True), sst2.checkpoint)
    expected = here.model(model_inputs(here.task, here.preprocess(tf.constant(TEXTS))))
    np.testing.assert_allclose(answers, expected, atol=1e-5)


EITHER = "give --run alone, or --checkpoint"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], EITHER),
        (["--checkpoint", "c"], "no checkpoint at c"),
        (["--run", "r", "--checkpoint", "c", "--embedding", "mean"], EITHER),
        (["--run", ".", "--l2"], EITHER),
        (["--embedding", "mean"], EITHER),
        (["--checkpoint", "c", "--embedding", "word", "--l2"], "--l2 do not apply here"),
        (
            ["--checkpoint", "c", "--task", "fill-mask", "--l2", "--layers", "last"],
            "--l2 and --layers do not apply here",
        ),
    ],
)
def test_a_run_or_a_checkpoint(flags, message, capfd, tmp_path):
    code, _, err = run_command(capfd, "export", *flags, "--output", tmp_path / "served")
    assert code == 1 and message in err
    assert not (tmp_path / "served").exists()
