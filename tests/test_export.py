"""Exported SavedModels: raw strings in, the task's answers out, where neither this package nor Keras is."""

import dataclasses
import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from runs import contents, full_disk, texts
from tensorflow.core.protobuf import saved_model_pb2

from bert_keras import checkpoints
from bert_keras.encoder import BertEncoder
from bert_keras.preprocessing import Preprocessor
from savedmodels import reload
from savedmodels.export import ExportError, ask, compare, export
from tasks.glue import ROWS, Glue
from tasks.task import predict
from tasks.train import Run, load_run

CLASSES = {"label": ("string", [None]), "probabilities": ("float32", [None, 2])}
NLI_CLASSES = CLASSES | {"probabilities": ("float32", [None, 3])}
SCORE = {"score": ("float32", [None])}
# What a server is asked for and what it answers: one text, two, and a number instead of a class.
SIGNATURES = {
    "sst2": (["sentence"], CLASSES),
    "mnli": (["hypothesis", "premise"], NLI_CLASSES),
    "stsb": (["sentence1", "sentence2"], SCORE),
}
TEXTS = [*texts(20, seed=1), "", "Naïve ﬁlm: 真好 \N{GRINNING FACE}", "[SEP] good [MASK]", "bad " * 200]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    run: Run
    folder: Path  # of the version, after it was moved
    written: Path  # where export put it; no longer there


@pytest.fixture(scope="session")
def exports(tmp_path_factory, sst2) -> Callable[[str], Exported]:
    """Exports a run once, moves it elsewhere and takes the place it was exported to away."""

    @functools.cache
    def exported(name: str) -> Exported:
        place = tmp_path_factory.mktemp(name)
        run = load_run(sst2.run) if name == "sst2" else untrained(name, sst2.checkpoint)
        written = export(run, place / "served")
        assert written == place / "served" / "1"
        moved = tmp_path_factory.mktemp("elsewhere") / "a model" / "1"
        moved.parent.mkdir()
        written.rename(moved)
        return Exported(run=run, folder=moved, written=written)

    return exported


@pytest.fixture(params=SIGNATURES)
def exported(request, exports) -> Exported:
    return exports(request.param)


@pytest.fixture
def single(exports) -> Exported:
    return exports("sst2")


def untrained(name: str, checkpoint: Path) -> Run:
    """A run as `load_run` makes it, from a checkpoint and a head that starts at random."""
    task, source = Glue(ROWS[name]), checkpoints.read(checkpoint)
    encoder = BertEncoder(source.config, outputs=task.outputs)
    checkpoints.assign(source, encoder)
    preprocess = Preprocessor(checkpoints.tokenizer_of(source), seq_length=40, pad_to_longest=True)
    return Run(task=task, preprocess=preprocess, model=task.model(encoder), path=checkpoint)


def inputs(run: Run, rows: list[str]) -> dict[str, list[str]]:
    """The same texts under each of the task's names, in another order for each."""
    return {name: rows[i:] + rows[:i] for i, name in enumerate(run.task.signature())}


def meta_graph(folder: Path):
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((folder / "saved_model.pb").read_bytes())
    (graph,) = model.meta_graphs
    return graph


def test_signature(exported):
    names, outputs = SIGNATURES[exported.run.task.name]
    loaded = tf.saved_model.load(str(exported.folder))
    serve = loaded.signatures["serving_default"]
    _, arguments = serve.structured_input_signature
    assert {
        name: (spec.dtype.name, spec.shape.as_list()) for name, spec in arguments.items()
    } == dict.fromkeys(names, ("string", [None]))
    found = {
        name: (value.dtype.name, value.shape.as_list()) for name, value in serve.structured_outputs.items()
    }
    assert found == outputs
    graph = meta_graph(exported.folder)
    assert list(graph.meta_info_def.tags) == ["serve"]
    assert graph.signature_def["serving_default"].method_name == "tensorflow/serving/predict"


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


def test_only_two_kernels_of_tensorflow_text(exported):
    graph = meta_graph(exported.folder).graph_def
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    foreign = {node.op for node in nodes} - functions - set(dir(tf.raw_ops))
    assert {name.rpartition(">")[2] for name in foreign} == {
        "NormalizeUTF8",
        "FastWordpieceTokenizeWithOffsets",
    }


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
    own = (str(exported.written), str(exported.run.path), sys.prefix, str(Path(reload.__file__).parents[1]))
    assert not [path for path in own if path.encode() in blob]
    assert not re.findall(rb"/(?:home|root|tmp|usr|Users|var)/[\w./-]+", blob)


# Everything that must not end a server, asked in one process; the last line proves that it lives.
HOSTILE = """
import json, sys
sys.path.insert(0, sys.argv[2])
import reload
import tensorflow as tf
reload.load_kernels()
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
names = sorted(serve.structured_input_signature[1])
ask = lambda *texts: serve(**{name: tf.constant(list(texts), tf.string, [len(texts)]) for name in names})
sizes = {}
for name, batch in {
    "none": [],
    "empty": [b""],
    "not UTF-8": [b"\\xff\\xfe good", b"good \\xc3", b"\\xed\\xa0\\x80", b"a\\x00b"],
    "a word of 1 MB": [b"x" * 1_000_000],
    "a text of 1 MB": [b"good film " * 100_000],
    "both": [b"", b"\\xff" * 1_000_000],
    "many": [b"good"] * 300,
}.items():
    answers = ask(*batch)
    sizes[name] = [len(value) for value in answers.values()] == [len(batch)] * len(answers)
if len(names) == 2:
    for lengths in ((2, 1), (1, 2), (0, 1), (3, 2)):
        try:
            serve(**{name: tf.constant([b"good"] * n, tf.string, [n]) for name, n in zip(names, lengths)})
            sizes[str(lengths)] = False
        except tf.errors.InvalidArgumentError:
            sizes[str(lengths)] = True

# The loader that TensorFlow Serving is built around.
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
    signature = meta_graph.signature_def["serving_default"]
    feed = {signature.inputs[name].name: [b"good film", b""] for name in names}
    fetch = {name: output.name for name, output in signature.outputs.items()}
    old = session.run(fetch, feed)
new = ask(b"good film", b"")
sizes["version 1 loader"] = all((old[name] == new[name].numpy()).all() for name in old)
print(json.dumps(sizes))
"""


@pytest.mark.parametrize(("name", "cases"), [("sst2", 8), ("mnli", 12)])
def test_no_input_ends_the_process(name, cases, exports):
    command = [sys.executable, "-c", HOSTILE, str(exports(name).folder), str(Path(reload.__file__).parent)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = json.loads(done.stdout)
    assert len(sizes) == cases
    assert not [name for name, good in sizes.items() if not good]


def test_it_can_be_trained_on(single):
    loaded = tf.saved_model.load(str(single.folder))
    assert len(loaded.trainable_variables) == len(single.run.model.trainable_variables)
    assert len(loaded.variables) == len(single.run.model.variables)
    raw = {"sentence": tf.constant([text for text in TEXTS if text])}
    labels = 1 - tf.argmax(loaded(raw), axis=-1)  # the opposite of what it answers

    def loss(training: bool) -> tf.Tensor:
        logits = loaded(raw, training=training)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    assert loss(training=True) != loss(training=True)  # dropout
    before = loss(training=False)
    np.testing.assert_allclose(before, loss(training=False), rtol=1e-5)
    for _ in range(20):
        with tf.GradientTape() as tape:
            value = loss(training=True)
        for variable, gradient in zip(
            loaded.trainable_variables, tape.gradient(value, loaded.trainable_variables), strict=True
        ):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    assert loss(training=False) < 0.95 * before
    served = loaded.signatures["serving_default"](**raw)["probabilities"]
    np.testing.assert_allclose(served, tf.nn.softmax(loaded(raw, training=False)), rtol=0, atol=1e-6)


class Undecided(Glue):
    """Decodes to other numbers in every process."""

    def decode(self, outputs, features, raw):
        drawn = tf.raw_ops.RandomUniform(shape=tf.shape(outputs), dtype=tf.float32)
        return super().decode(outputs, features, raw) | {"probabilities": drawn}


def test_versions_count_up_and_failures_leave_no_trace(single, tmp_path):
    directory = tmp_path / "new" / "served"
    undecided = dataclasses.replace(single.run, task=Undecided(ROWS["sst2"]))
    with pytest.raises(
        ExportError, match="^probabilities differs by .* after reloading; at most 1e-06 is wanted"
    ):
        export(undecided, directory)
    assert not list(tmp_path.iterdir())

    directory.mkdir(parents=True)
    (directory / "2").mkdir()
    (directory / "2" / "kept").write_text("as it was")
    (directory / "notes").write_text("not a version")
    with full_disk(100_000), pytest.raises(ValueError, match=r"cannot export to .*served: .*; give a folder"):
        export(single.run, directory)
    assert contents(directory) == {"2/kept": b"as it was", "notes": b"not a version"}
    assert sorted(path.name for path in directory.iterdir()) == ["2", "notes"]

    assert export(single.run, directory) == directory / "3"
    assert sorted(path.name for path in directory.iterdir()) == ["2", "3", "notes"]
    assert (directory / "3").stat().st_mode & 0o777 == 0o755


def test_a_folder_that_cannot_be_made(single, tmp_path):
    (tmp_path / "file").write_text("as it was")
    for place in ("file", "file/below"):
        with pytest.raises(
            ValueError, match=rf"cannot export to .*{place}: .*; give a folder that can be written"
        ):
            export(single.run, tmp_path / place)
    assert contents(tmp_path) == {"file": b"as it was"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"label": ["good"], "score": [0.5]}, None),
        ({"label": ["good"], "score": [0.5 + 9e-7]}, None),
        ({"label": ["good"], "score": [0.5 + 2e-6]}, "score differs by 2.0e-06"),
        ({"label": ["good"], "score": [float("nan")]}, "score differs by nan"),
        ({"label": ["bad"], "score": [0.5]}, "label is another"),
        ({"label": ["good", "good"], "score": [0.5]}, "label has shape"),
        ({"label": ["good"]}, "answers \\['label'\\]; wanted \\['label', 'score'\\]"),
    ],
)
def test_compare(answers, message):
    expected = {"label": np.array([b"good"], object), "score": np.array([0.5])}
    if message is None:
        compare(expected, answers)
    else:
        with pytest.raises(ExportError, match=message):
            compare(expected, answers)
