"""An output folder has one finished run, or an error says that it has not: neighbours, kills, NaN, damage."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import interrupted
import numpy as np
import pytest
import runs
import safetensors.numpy
import tensorflow as tf
from interrupted import ALIVE, KILLS
from runs import Begun, contents, no_training, run_command
from tensorflow.python.framework import config as tensorflow_config

from bert_keras.checkpoints.hugging_face import SAFETENSORS
from bert_keras.errors import BertKerasError
from bert_keras.io.folders import PARTIAL, check_equal
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.training.loop import RESULTS_FILE
from bert_keras.tasks.training.saver import CHECKPOINTS

pytestmark = pytest.mark.timeout(600)

TRAINS = 0  # as the exit code of a command that began to train, and was stopped there


def test_a_refusal_shows_where_long_values_differ(tmp_path):
    labels = [f"label {number}" for number in range(40)]
    with pytest.raises(BertKerasError, match=r"another labels: .*\"label 30\".* not .*\"another\"") as error:
        check_equal(tmp_path, {"labels": labels}, {"labels": [*labels[:30], "another", *labels[31:]]})
    assert len(str(error.value)) < 300 + len(str(tmp_path))
    with pytest.raises(BertKerasError, match="another epochs: 1, not 2;"):
        check_equal(tmp_path, {"epochs": 1}, {"epochs": 2})


@contextlib.contextmanager
def no_export():
    """Every SavedModel ends in a full disk."""

    def save(*args, **kwargs):
        raise OSError("No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.saved_model, "save", save)
        yield


def attempt(capfd, arguments: list) -> tuple[int, str]:
    """Exit code and standard error of a command that gets as far as training, or saving a SavedModel, and no further."""
    with no_training(), no_export():
        try:
            code, _, err = run_command(capfd, *arguments)
        except Begun:
            return TRAINS, ""
    return code, err


def is_one_line(code: int, err: str) -> bool:
    return code == 1 and err.startswith("bert-keras: error: ") and err.count("\n") == 1


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, sst2):
    return interrupted.write_inputs(tmp_path_factory.mktemp("interrupted"), run=sst2.run)


@pytest.fixture(scope="module")
def others(inputs):
    """The process that stands still in the middle of commands, after others were killed."""
    with open(inputs / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, interrupted.__file__, inputs],
            cwd=runs.ROOT,
            env=runs.bare_environment() | {"PYTHONPATH": str(runs.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    with process:
        try:
            if not any(line.endswith(b"ready\n") for line in process.stdout):
                raise RuntimeError((inputs / "log").read_text())
            yield process
        finally:
            process.kill()


# -----------------------------------------------------------------------------------------------------------
# Two at the same time


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        *("finetune", "pretrain", "glue"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("instances", "features", "ablate")),
    ],
)
def test_a_second_run_into_one_folder_is_refused(capfd, inputs, others, name):
    arguments = interrupted.commands(inputs, inputs / ALIVE)[name]
    place = Path(arguments[-1])
    before = contents(place.parent)
    code, err = attempt(capfd, arguments)
    assert is_one_line(code, err) and str(place) in err
    assert contents(place.parent) == before


@pytest.mark.long
@pytest.mark.parametrize("name", ["convert", "export"])
def test_a_neighbours_temporary_files_stay(capfd, inputs, others, name):
    arguments = interrupted.commands(inputs, inputs / ALIVE)[name]
    place = Path(arguments[-1]).parent
    before = contents(place)
    if not any(PARTIAL in file for file in before):
        raise RuntimeError(f"the neighbour is not where it should be: {sorted(before)}")
    attempt(capfd, arguments)  # it may be refused, and may write beside it
    assert before.items() <= contents(place).items()


@pytest.mark.long
@pytest.mark.parametrize("name", ["finetune", "pretrain", "instances"])
def test_a_folder_is_free_when_its_process_is_dead(capfd, inputs, others, name):
    others.kill()
    others.wait()
    code, err = attempt(capfd, interrupted.commands(inputs, inputs / ALIVE)[name])
    assert code == TRAINS, err


# -----------------------------------------------------------------------------------------------------------
# After a kill


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "name"),
    # A study is trained to the end, for half a minute each.
    [
        pytest.param(place, name, marks=pytest.mark.slow if name in ("ablate", "glue") else ())
        for place, name, _ in KILLS
    ],
)
def test_the_same_command_works_after_a_kill(capfd, inputs, others, place, name):
    arguments = interrupted.commands(inputs, inputs / place)[name]
    if not contents(Path(arguments[-1]).parent):
        raise RuntimeError((inputs / "log").read_text())
    code, err = attempt(capfd, arguments)
    assert code == TRAINS, err


class Stopped(Exception):
    """Stands for the end of the process."""


def tune(folder: Path, output: Path, *, log) -> dict:
    """Three epochs of 6 steps that change nothing, so that the first stays the best; a save every other step."""
    return finetune(
        TextClassification.open("sst2", folder / "data"),
        checkpoint=folder / "checkpoint",
        output=output,
        hparams=Hparams(epochs=3, batch_size=8, learning_rate=1e-30, weight_decay=0.0, seq_length=40),
        save_every=2,
        verbose=0,
        log=log,
    )


@pytest.fixture(scope="module")
def killed(inputs):
    """A run that ended after its second epoch: it has weights, saves of steps 8 and 10, and no results."""

    def stop(line: str) -> None:
        if line.startswith("epoch 2/"):
            raise Stopped

    run = inputs / "stopped"
    with contextlib.suppress(Stopped):
        tune(inputs, run, log=stop)
    saves = sorted(file.stem for file in (run / CHECKPOINTS).glob("ckpt-*.index"))
    there = [(run / name).exists() for name in (RESULTS_FILE, SAFETENSORS)]
    if there != [False, True] or saves != ["ckpt-10", "ckpt-8"]:
        raise RuntimeError(sorted(contents(run)))
    return run


@pytest.mark.long
@pytest.mark.parametrize("command", ["predict", "export"])
def test_an_unfinished_run_is_not_used(capfd, tmp_path, killed, command):
    (tmp_path / "lines.txt").write_text("good film\n")
    more = {"predict": ["--input", tmp_path / "lines.txt"], "export": ["--output", tmp_path / "served"]}
    code, err = attempt(capfd, [command, "--run", killed, *more[command]])
    assert is_one_line(code, err) and "finish" in err and str(killed) in err
    assert not (tmp_path / "served").exists()


@pytest.mark.long
def test_a_run_that_lost_its_best_weights_does_not_end_without(tmp_path, inputs, killed):
    run = shutil.copytree(killed, tmp_path / "run")
    (run / SAFETENSORS).unlink()
    with pytest.raises(BertKerasError, match=SAFETENSORS):
        tune(inputs, run, log=lambda line: None)
    assert not (run / RESULTS_FILE).exists()


def spoil(file: Path) -> None:
    """Other bytes in its middle."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 16] = bytes(byte ^ 0xFF for byte in content[middle : middle + 16])
    file.write_bytes(content)


@pytest.mark.long
@pytest.mark.parametrize(("state", "spoilt"), [(None, False), (b"", True), (b"\x00\xff garbage {", True)])
def test_a_run_resumes_from_the_newest_whole_save(tmp_path, inputs, killed, state, spoilt):
    """TensorFlow's state file is not read: a missing, empty or damaged one changes nothing."""
    run = shutil.copytree(killed, tmp_path / "run")
    if state is not None:
        (run / CHECKPOINTS / "checkpoint").write_bytes(state)
    if spoilt:
        for data in (run / CHECKPOINTS).glob("ckpt-10.data*"):
            spoil(data)
    lines: list[str] = []
    with no_training(), contextlib.suppress(Begun):
        tune(inputs, run, log=lines.append)
    assert [line for line in lines if f"at step {8 if spoilt else 10} " in line], lines
    assert spoilt == any("ckpt-10" in line for line in lines), lines


# -----------------------------------------------------------------------------------------------------------
# Numbers that are none


def one_step(name: str, inputs: Path, output: Path) -> list:
    """A command whose only step is at a rate that no weight survives; its loss is that before the step."""
    arguments = interrupted.commands(inputs, output)[name]
    if name == "pretrain":  # the last value of a flag counts
        return [*arguments, *"--learning-rate 1e38 --steps 1 --warmup-proportion 0".split()]
    instead = {"--batch-size": "48", "--learning-rate": "1e38"}
    return [instead.get(flag, one) for flag, one in zip(["", *arguments], arguments, strict=False)]


@pytest.mark.long
@pytest.mark.parametrize("name", ["finetune", "pretrain"])
def test_nan_weights_are_not_saved_as_a_run(capfd, tmp_path, inputs, name):
    arguments = one_step(name, inputs, tmp_path)
    code, _, err = run_command(capfd, *arguments)
    written = {Path(file).name for file in contents(tmp_path)}
    said = [line for line in err.splitlines(keepends=True) if not line.startswith("warning: ")]
    assert is_one_line(code, "".join(said))
    assert not {SAFETENSORS, RESULTS_FILE} & written


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def change_tensor(folder: Path, name: str, change) -> None:
    """Another value in a weight. What results.json says of the file is true of it: no damage, but what was trained."""
    file, results = folder / SAFETENSORS, folder / RESULTS_FILE
    before, tensors = digest(file), safetensors.numpy.load_file(file)
    tensors[name] = change(tensors[name])
    safetensors.numpy.save_file(tensors, file, metadata={"format": "pt"})
    if results.exists():
        results.write_text(results.read_text().replace(before, digest(file)))


def with_nan(values: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(values))[:, None] == len(values) - 1, np.float32(np.nan), values)


def with_infinity(values: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(values))[:, None] == 7, np.float32(np.inf), values)


@pytest.mark.parametrize(
    ("command", "change"),
    [
        *((command, with_nan) for command in ("info", "convert", "features", "predict")),
        ("convert", with_infinity),
    ],
)
def test_nan_weights_are_refused_by_name(capfd, tmp_path, sst2, command, change):
    folder = shutil.copytree(sst2.run if command == "predict" else sst2.checkpoint, tmp_path / "given")
    change_tensor(folder, "bert.embeddings.word_embeddings.weight", change)
    (tmp_path / "lines.txt").write_text("good film\n")
    output, lines = tmp_path / "out", tmp_path / "lines.txt"
    arguments = {
        "info": [folder],
        "convert": ["--from", folder, "--to", output, "--format", "google"],
        "features": ["--checkpoint", folder, "--input", lines, "--output", output],
        "predict": ["--run", folder, "--input", lines],
    }
    code, out, err = run_command(capfd, command, *arguments[command])
    assert is_one_line(code, err) and "word_embeddings" in err
    assert (not out or command == "info") and not output.exists()


def test_nan_vectors_are_not_written_as_json(capfd, tmp_path, sst2):
    """Numbers that float32 holds and float16 does not."""
    folder = shutil.copytree(sst2.checkpoint, tmp_path / "given")
    change_tensor(folder, "bert.encoder.layer.0.output.LayerNorm.weight", lambda scale: scale * 1e6)
    (tmp_path / "lines.txt").write_text("good film\n")
    flags = ["--checkpoint", folder, "--input", tmp_path / "lines.txt", "--output", tmp_path / "out"]
    code, _, err = run_command(capfd, "features", *flags, "--dtype", "float16")
    assert is_one_line(code, err) and not (tmp_path / "out").exists()


# -----------------------------------------------------------------------------------------------------------
# Damage


class Disk:
    """The renamed files, with True if file and folder were synced in the right order. Files are known by their inodes."""

    def __init__(self) -> None:
        self._events: list[tuple[Path | None, set, set]] = []  # a rename's target, its files, its folder

    def _identities(self, *found: os.stat_result) -> set[tuple[int, int]]:
        return {(one.st_dev, one.st_ino) for one in found}

    def syncing(self, sync):
        def recorded(fd):
            number = fd if isinstance(fd, int) else fd.fileno()
            self._events.append((None, self._identities(os.fstat(number)), set()))
            return sync(fd)

        return recorded

    def renaming(self, rename):
        def recorded(source, target, **how):
            source, target = Path(source), Path(target)
            files = [file for file in source.rglob("*") if file.is_file()] if source.is_dir() else [source]
            synced = self._identities(*(file.stat() for file in files))
            self._events.append((target, synced, self._identities(target.parent.stat())))
            return rename(source, target, **how)

        return recorded

    def faults(self, folder: Path) -> tuple[list[str], int]:
        """The problems below a folder, one phrase each, and the number of renames."""
        found, count = [], 0
        for i, (target, files, parent) in enumerate(self._events):
            if target is None or not target.is_relative_to(folder):
                continue
            count += 1
            before, after = (
                set().union(*(synced for name, synced, _ in events if name is None))
                for events in (self._events[:i], self._events[i:])
            )
            if not files <= before:
                found.append(f"{target.name} is renamed before it is on the disk")
            if not parent <= after:
                found.append(f"{target.parent.name} is not synced after {target.name}")
        return found, count


@pytest.fixture(scope="module")
def disk(inputs):
    """Some commands, as the disk saw them."""
    seen = Disk()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, seen.syncing(getattr(os, name)))
        for name in ("replace", "rename"):
            patch.setattr(os, name, seen.renaming(getattr(os, name)))
        yield seen


WRITERS = ("pretrain", "instances", "features", "convert")


@pytest.fixture(scope="module")
def written(inputs, disk):
    """The folders of commands that have finished, by their names."""
    from bert_keras.cli.main import main

    for arguments in (interrupted.commands(inputs, inputs / "written")[name] for name in WRITERS):
        Path(arguments[-1]).parent.mkdir(parents=True)
        try:
            main(["bert-keras", *arguments])
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{arguments[0]} ended with {end.code}") from end
        finally:
            tensorflow_config.disable_op_determinism()  # as `run_command` does
    return {name: inputs / "written" / name for name in WRITERS}


@pytest.mark.long
@pytest.mark.parametrize("name", WRITERS)
def test_files_are_on_the_disk_before_they_have_their_names(disk, written, name):
    faults, renames = disk.faults(written[name])
    if not renames:
        raise RuntimeError(f"{name} renamed nothing in {written[name]}")
    assert not faults


@pytest.mark.parametrize("kind", ["fine-tuned", "pre-trained"])
def test_results_have_the_digests_of_weights_and_vocabulary(sst2, written, kind):
    run = sst2.run if kind == "fine-tuned" else written["pretrain"] / "out"
    results = (run / RESULTS_FILE).read_text()
    assert [file for file in (SAFETENSORS, "vocab.txt") if digest(run / file) not in results] == []


def flip_a_bit(content: bytes) -> bytes:
    """The lowest of the last weight."""
    return content[:-4] + bytes([content[-4] ^ 1]) + content[-3:]


def swap_two_tokens(content: bytes) -> bytes:
    return content.replace(b"good\nbad\n", b"bad\ngood\n")


@pytest.mark.parametrize(("name", "damage"), [(SAFETENSORS, flip_a_bit), ("vocab.txt", swap_two_tokens)])
def test_a_damaged_run_is_refused(tmp_path, sst2, name, damage):
    run = shutil.copytree(sst2.run, tmp_path / "run")
    before = (run / name).read_bytes()
    (run / name).write_bytes(after := damage(before))
    assert after != before
    with pytest.raises(BertKerasError, match=re.escape(str(run / name))):
        load_run(run)
