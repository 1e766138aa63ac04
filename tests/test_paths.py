"""Folders with hostile names: what TensorFlow would read as a pattern, `~`, a leading dash."""

import os
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import run_command, write_checkpoint

from bert_keras import checkpoints
from bert_keras.cli import main as cli
from bert_keras.config import BertConfig
from bert_keras.io.paths import for_tensorflow
from bert_keras.model.tensorflow_layers import HubLayer
from bert_keras.savedmodels.server.served import load
from bert_keras.savedmodels.verify import ask
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.training.saver import CHECKPOINTS, Saver
from bert_keras.text.wordpiece import WordPiece

PATTERNS = ["a[1]", "run*", "run?", "b\\c"]
PATHS = {"data", "dev_data", "checkpoint", "output", "vocab", "records", "held_out", "run"}
PATHS |= {"input", "source", "target", "folder", "path", "work"}

NO_PATHS = (
    ("ablate", "data"),
    ("ablate", "held_out"),
    ("export", "target"),
)  # TASK=PATH, a fraction, a server


@pytest.fixture
def command(capfd):
    """Runs `bert-keras ...` in this process: exit code, standard output, standard error."""
    return lambda *arguments: run_command(capfd, *arguments)


def saved(folder: Path, *, steps: int) -> keras.Model:
    """A model that trained with a save after each step."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    saver = Saver(folder, model, every=1, remember=lambda: "memory")
    x, y = np.ones((steps + 1, 3), "float32"), np.ones((steps + 1, 1), "float32")
    model.fit(x, y, batch_size=1, callbacks=[saver], verbose=0, shuffle=False)
    return model


@pytest.mark.parametrize("name", PATTERNS)
def test_saves_are_kept_removed_and_restored(name, tmp_path):
    saved(tmp_path / "run1", steps=3)
    beside = sorted(os.listdir(tmp_path / "run1" / CHECKPOINTS))
    made = saved(tmp_path / name, steps=4)
    assert sorted(os.listdir(tmp_path / "run1" / CHECKPOINTS)) == beside, "a neighbour that the pattern fits"
    names = os.listdir(tmp_path / name / CHECKPOINTS)
    assert sorted(file for file in names if file.endswith(".index")) == ["ckpt-4.index", "ckpt-5.index"]
    other = saved(tmp_path / "other", steps=0)
    saver = Saver(tmp_path / name, other, every=1, remember=dict)
    assert (saver.restore(), saver.step) == ("memory", 5)
    for a, b in zip(made.variables, other.variables, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("format", ["google", "model-garden"])
def test_a_checkpoint_that_is_written_is_read_back(format, tmp_path):
    source = checkpoints.read(write_checkpoint(tmp_path / "checkpoint"))
    for name in PATTERNS:
        folder = tmp_path / name
        checkpoints.write(source, folder, format=format)
        read = checkpoints.read(folder)
        assert {*read.tensors} == {*source.tensors}
        assert all(np.array_equal(read.tensors[key], source.tensors[key]) for key in source.tensors)
    if format == "google":  # the pattern in the files' own names
        for file in folder.glob("bert_model.ckpt.*"):
            file.rename(file.with_name(file.name.replace("bert", "[b]")))
        assert len(checkpoints.read(folder / "[b]_model.ckpt").tensors) == len(source.tensors)


@pytest.mark.usefixtures("forked_answers")
def test_saved_models_are_loaded(tmp_path):
    place = tmp_path / "[1] x*?\\"
    module = tf.Module()
    module.vector = tf.Variable([1.0, 2.0])
    vectors = tf.function(lambda sentence: {"vector": tf.tile(module.vector[None], [tf.size(sentence), 1])})
    signature = vectors.get_concrete_function(sentence=tf.TensorSpec([None], tf.string, name="sentence"))
    tf.saved_model.save(module, str(place / "1"), signatures=signature)
    assert ask(place / "1", {"sentence": ["a", "b"]}) == {"vector": [[1, 2], [1, 2]]}
    served = load(place)
    assert served.version == 1
    np.testing.assert_array_equal(served.loaded.vector, [1, 2])
    layer = HubLayer(place / "1", endpoint="serving_default")
    np.testing.assert_array_equal(layer(tf.constant(["a"]))["vector"], [[1, 2]])


@pytest.mark.slow
def test_commands_in_a_folder_that_reads_as_a_pattern(command, sst2, tmp_path):
    place = tmp_path / "[1] x*?\\"
    for folder in (sst2.data, sst2.checkpoint):
        shutil.copytree(folder, place / folder.name)
    (place / "lines.txt").write_text("good film\ndull plot\n\nwarm scene\nthe plot\n" * 5)
    source, run, lines = place / "checkpoint", place / "run", place / "lines.txt"
    tuned = "--task sst2 --epochs 1 --learning-rate 1e-3 --save-every 2 --seq-length 40 --data".split()
    made = "--seq-length 16 --sampler contiguous --workers 1".split()
    for arguments in (
        ("finetune", "--checkpoint", source, "--output", run, *tuned, place / "data"),
        ("export", "--run", run, "--output", place / "served"),
        ("instances", "--text", lines, "--vocab", source, "--output", place / "records", *made),
        ("features", "--checkpoint", source, "--input", lines, "--output", place / "vectors"),
    ):
        code, _, err = command(*arguments)
        assert (code, err) == (0, ""), arguments[0]
    assert (place / "records" / "manifest.json").is_file()


def test_a_temporary_folder_that_reads_as_a_pattern_is_named(tmp_path, monkeypatch):
    for name in ("a[1]", "t[1]"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t[1]"))
    with pytest.raises(ValueError, match="set TMPDIR"), for_tensorflow(tmp_path / "a[1]"):
        pass


# -----------------------------------------------------------------------------------------------------------
# ~


def test_every_path_of_the_command_line_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/people/someone")
    (commands,) = (action.choices for action in cli.parser(cli.COMMANDS)._actions if action.dest == "command")
    seen = set()
    ablations = next(action.choices for action in commands["ablate"]._actions if action.dest == "ablation")
    for name, parser in [*commands.items(), *(("ablate", parser) for parser in ablations.values())]:
        for action in parser._actions:
            is_text = action.dest == "text" and name not in (
                "fill-mask",
                "attention",
                "generate",
            )  # which have texts, not files of text
            given = (name, action.dest)
            if (action.dest in PATHS or is_text) and given not in NO_PATHS:
                seen.add(action.dest)
                assert action.type is not None, given
                assert action.type("~/x") == "/people/someone/x", given
    assert seen == {*PATHS, "text"}


def test_python_expands_a_home_folder_too(monkeypatch, tmp_path, sst2):
    monkeypatch.setenv("HOME", str(sst2.folder))
    source = checkpoints.read("~/checkpoint")
    assert source.tensors
    assert BertConfig.load("~/checkpoint") == source.config
    assert WordPiece.from_file("~/checkpoint/vocab.txt").vocab_size == source.config.vocab_size
    assert load_run("~/run").task.name == "sst2"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    checkpoints.write(source, "~/out", format="hugging-face")
    (tmp_path / "lines.txt").write_text("good film\n")
    assert list(Corpus("~/lines.txt")) == [["good film"]]
    assert sorted(os.listdir(tmp_path)) == ["lines.txt", "out"]


def test_a_name_that_starts_with_a_dash(tmp_path, sst2, monkeypatch, command):
    shutil.copytree(sst2.run, tmp_path / "-run")
    shutil.copyfile(tmp_path / "-run" / "vocab.txt", tmp_path / "-text")
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("info", "--", "-run"),
        ("info", "--debug", "--", "-run"),
        ("vocab", "--text=-text", "--output=-vocab", "--size=200"),
    ):
        code, out, err = command(*arguments)
        assert (code, err) == (0, ""), arguments
    assert (tmp_path / "-vocab" / "vocab.txt").is_file()
