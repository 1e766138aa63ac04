"""Exported folders: what is in them, what they answer after a move, and what is left of an export that failed."""

import ast
import dataclasses
import hashlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from exports import untrained
from google.protobuf import text_format
from runs import SIZES, VOCABULARY, contents, full_disk, run_command, texts
from tensorflow.core.protobuf import saved_model_pb2

from bert_keras.features import INPUT_MASK
from bert_keras.io.folders import PARTIAL
from bert_keras.savedmodels import op_support, reload
from bert_keras.savedmodels.export import export, ops_of, servable_of
from bert_keras.savedmodels.model_card import BATCHING, MODELS, model_card, server_files, tensors_of
from bert_keras.savedmodels.verify import CARD, SAMPLES, ExportError, ask, compare, verify_files
from bert_keras.tasks.batches import predict
from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.embedding import Embedding, WordEmbedding
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.runs.ensemble import load_runs
from bert_keras.tasks.runs.run_card import facts_of
from bert_keras.tasks.runs.run_folder import Run, load_run, run_of, save_run
from bert_keras.tasks.task import model_inputs
from bert_keras.text.wordpiece import WordPiece

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


def inputs(run: Run, rows: list[str]) -> dict[str, list[str]]:
    """The same texts under each of the task's names, in another order for each."""
    return {name: rows[i:] + rows[:i] for i, name in enumerate(run.task.signature())}


def meta_graph(folder: Path):
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((folder / "saved_model.pb").read_bytes())
    (graph,) = model.meta_graphs
    return graph


def test_signature(exported):
    loaded = tf.saved_model.load(str(exported.folder))
    assert sorted(loaded.signatures) == ["examples", "features", "serving_default"]
    assert [*tensors_of(loaded.signatures["serving_default"])] == [
        ("input", "sentence", "string", "[?]"),
        ("output", "label", "string", "[?]"),
        ("output", "probabilities", "float32", "[?, 2]"),
    ]
    graph = meta_graph(exported.folder)
    assert list(graph.meta_info_def.tags) == ["serve"]
    for signature in loaded.signatures:
        assert graph.signature_def[signature].method_name == "tensorflow/serving/predict"


@pytest.mark.usefixtures("forked_answers")
def test_moved_elsewhere_it_answers_as_predict_does(exported):
    run, raw = exported.run, inputs(exported.run, TEXTS)
    answers = ask(exported.folder, raw)
    expected, _ = predict(
        run.task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices(raw), batch_size=8
    )
    assert set(answers) == set(expected)
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
    assert (
        max(np.prod([dim.size for dim in c.tensor_shape.dim]) for c in constants if c.dtype == 1) < 100
    )  # floats
    blob = b"".join(contents(exported.folder).values())
    own = (
        str(exported.written.parent),
        str(exported.run.path),
        sys.prefix,
        str(Path(reload.__file__).parents[1]),
    )
    assert not [path for path in own if path.encode() in blob]
    assert not re.findall(rb"/(?:home|root|tmp|usr|Users|var)/[\w./-]+", blob)


class Undecided(TextClassification):
    """Decodes to other numbers in every process."""

    def decode(self, outputs, features, raw):
        drawn = tf.raw_ops.RandomUniform(shape=tf.shape(outputs), dtype=tf.float32)
        return super().decode(outputs, features, raw) | {"probabilities": drawn}


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_versions_count_up_and_failures_leave_no_trace(exported, tmp_path):
    directory = tmp_path / "new" / "served"
    undecided = dataclasses.replace(exported.run, task=Undecided.open("sst2"))
    with pytest.raises(ExportError, match="^probabilities differs by .*1e-06"):
        export(undecided, directory)
    assert not list(tmp_path.iterdir())

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
    names = ["2", "3", BATCHING, MODELS, "notes"]
    assert sorted(path.name for path in directory.iterdir()) == names
    assert (directory / BATCHING).read_text() == "# mine"
    assert (directory / "3").stat().st_mode & 0o777 == 0o755


def test_a_folder_that_cannot_be_made(exported, tmp_path):
    (tmp_path / "file").write_text("as it was")
    for place in ("file", "file/below"):
        with pytest.raises(ValueError, match=rf"{place}\b.*; give a (writable )?folder"):
            export(exported.run, tmp_path / place)
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
    if message is None:
        compare(expected, answers)
    else:
        with pytest.raises(ExportError, match=message):
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
    op_support.check(ops_of(servable_of(run)), "tfserving-2.20")
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
    if message is None:
        op_support.check({op, "MatMul"}, target)
    else:
        with pytest.raises(ValueError, match=message):
            op_support.check({op, "MatMul"}, target)


def test_newer_ops_are_ops():
    """Ops of other accelerators than this wheel's are not in it."""
    assert {op for op in op_support.CORE_OPS if hasattr(tf.raw_ops, op)} == {*op_support.CORE_OPS}
    assert {*op_support.CORE_OPS.values(), *op_support.TEXT_OPS.values()} <= {*op_support.VERSIONS, "2.21"}


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
    assert code == 0 and "all files are unchanged" in " ".join(out.split())
    assert "saved_model.pb" in out
    changed = shutil.copytree(exported.folder, tmp_path / "changed")
    (changed / "assets.extra" / CARD).write_text("other")
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
        f"| SHA-256 of its file | {digest} |",
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
    second = load_run(shutil.copytree(sst2.run, tmp_path / "second"))
    for variable in second.model.trainable_variables:
        variable.assign(0.5 * variable)
    save_run(second.path, second.task, second.preprocess, second.model)
    results = json.loads((second.path / "results.json").read_text())
    del results["files"]  # of the weights before the change
    (second.path / "results.json").write_text(json.dumps(results))
    both = load_runs([sst2.run, second.path])
    folder = export(both, tmp_path / "both")
    answers = ask(folder, {"sentence": TEXTS})["probabilities"]
    features = model_inputs(exported.run.preprocess(tf.constant(TEXTS)))
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
        [
            "| task | squad1.1 (question answering) |",
            "windows, which start 128 tokens apart",
            "longest window",
        ],
    ),
    "choice": (
        MultipleChoice(),
        ["| task | swag (multiple choice) |", "| input | context, endings |", "4 choices"],
    ),
    "fill-mask": (FillMask(), ["| task | fill mask |", "| settings | the 5 best tokens are listed |"]),
    "vectors": (Embedding(), ["| task | embedding |", "pooling: mean; layers: last"]),
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
    assert "## Measures" in card_of(load_run(sst2.run))
    card = card_of(dataclasses.replace(untrained(task, sst2.checkpoint), path=sst2.run))
    assert "Measures" not in card and "accuracy" not in card


@pytest.mark.long
@pytest.mark.parametrize("held_out", [None, 0.3])
def test_the_measures_of_pre_training_are_the_held_out_ones(held_out, tmp_path):
    sizes = {name: size for name, size in SIZES.items() if name not in ("vocab_size", "initializer_range")}
    recipe = RECIPES["bert"].changed(**sizes, steps=2, batch_size=4, seq_length=32, held_out_instances=8)
    results = pretrain(
        Pretraining(
            recipe=recipe,
            tokenizer=WordPiece(VOCABULARY),
            documents=[texts(8, seed=seed) for seed in range(12)],
            held_out=held_out,
        ),
        tmp_path,
        verbose=0,
        log=lambda line: None,
    )
    measures = {
        name.removeprefix("held_out_"): value
        for name, value in results["measures"].items()
        if name.startswith("held_out_")
    }
    named = measures | {
        f"{name}, majority baseline": value for name, value in results["majority_baselines"].items()
    }
    assert len(named) == (0 if held_out is None else 8), named
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


# Checkpoints


@pytest.mark.slow  # tests/test_serving_safety.py asks what it exports, tests/test_fill_mask.py the command
def test_a_checkpoint_is_exported_as_it_is(sst2, tmp_path, capfd):
    flags = ["--checkpoint", sst2.checkpoint, "--embedding", "mean", "--l2", "--target", "tfserving-2.10"]
    code, out, _ = run_command(capfd, "export", *flags, "--output", tmp_path / "vectors")
    assert code == 0 and "gave the same answers" in out
    answers = ask(tmp_path / "vectors" / "1", {"text": TEXTS})["embedding"]
    here = run_of(Embedding(pooling="mean", l2=True), sst2.checkpoint)
    expected = here.model(model_inputs(here.preprocess(tf.constant(TEXTS))))
    np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_the_card_tells_if_vectors_are_scaled(sst2):
    told = [facts_of(run_of(Embedding(l2=l2), sst2.checkpoint))["settings"] for l2 in (False, True)]
    assert told == [
        "pooling: mean; layers: last",
        "pooling: mean; vectors are scaled to length 1; layers: last",
    ]


EITHER = "give --run alone, or --checkpoint with --embedding or --task"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], EITHER),
        (["--checkpoint", "c"], EITHER),
        (["--run", "r", "--checkpoint", "c", "--embedding", "mean"], EITHER),
        (["--run", "r", "--l2"], EITHER),
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
