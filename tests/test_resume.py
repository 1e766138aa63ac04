"""Killed runs that are resumed end with the bits of an uninterrupted run; changes that prevent it are named."""

import json
import os
import random
import shutil
import signal
from pathlib import Path

import jobs
import keras
import numpy as np
import pretrainings
import pytest
import runs
import small_tasks
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.folders import Folder
from bert_keras.io.signals import postponed
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.training.loop import RESULTS_FILE, RUN
from bert_keras.tasks.training.saver import CHECKPOINTS, SETTINGS, Saver

KILLED = -signal.SIGKILL


def last_save(run: Path) -> tuple[int, dict[str, np.ndarray]]:
    """The step of the last save, and every number in it; beside them stands the run's memory, which holds times."""
    saves = {int(file.stem.rpartition("-")[2]): file for file in (run / CHECKPOINTS).glob("ckpt-*.index")}
    reader = tf.train.load_checkpoint(str(saves[max(saves)].with_suffix("")))
    kinds = reader.get_variable_to_dtype_map()
    return max(saves), {name: reader.get_tensor(name) for name in sorted(kinds) if kinds[name] != tf.string}


def assert_same_end(run: Path, unbroken: Path) -> None:
    """The last saves are equal bit for bit, and so is all that is written."""
    (step, found), (last, wanted) = last_save(run), last_save(unbroken)
    assert step == last == 12 and len(wanted) > 60
    differing = {
        name: float(np.abs(np.subtract(found[name], wanted[name], dtype="float64")).max())
        for name in wanted
        if found[name].tobytes() != wanted[name].tobytes()
    }
    assert not differing, f"{len(differing)} of {len(wanted)} differ, by up to {max(differing.values()):.3g}"
    assert runs.outcome(run) == runs.outcome(unbroken)
    assert not [*(run / CHECKPOINTS).glob("ckpt-*_temp")], "a save that was killed is removed"


PHASES = {16: 0.5, 24: 0.5}
# Where a training runs: its strategy, and the processes of a job.
ONE, TWO_REPLICAS, TWO_WORKERS = ("one", {}), ("mirrored", {"replicas": 2}), ("multiworker", {"workers": 2})


def training(name: str, made: runs.Finetuned, folder: Path, strategy: str) -> list[str]:
    """A training of twelve steps, without its output; a pre-training has two phases."""
    flags = small_tasks.CASES["pretraining" if name == "records" else name].flags.split()
    if flags[0] == "pretrain":
        i = flags.index("--seq-length")
        flags[i : i + 2] = "--phases", json.dumps([*PHASES.items()])
        flags += ["--vocab", made.checkpoint / "vocab.txt", "--steps", "12", "--micro-batch", "3"]
        flags += ["--log-every", "1", "--eval-every", "4"]
    else:
        flags += ["--data", made.data, "--checkpoint", made.checkpoint, "--learning-rate", "1e-3"]
        flags += ["--epochs", "3", "--batch-size", "5", "--seq-length", "32"]
    if name == "pretraining":
        flags += ["--text", made.data / "text.txt"]
    if name == "records":
        sets = [folder / f"records-{length}" for length in PHASES]
        for path, length in zip(sets, PHASES, strict=True):
            pretrainings.write(path, settings={"seq_length": length})
        flags[flags.index("--held-out") + 1] = sets[0]
        flags += ["--records", *sets]
    return [*map(str, flags), "--strategy", strategy, "--save-every", "3"]


def check_survivor(one: jobs.Ended) -> None:
    """A worker that lost another one says so in one line."""
    lines = [line for line in one.stderr.splitlines() if line.startswith("bert-keras: error: ")]
    assert one.returncode == 1 and len(lines) == 1 and "worker" in lines[0], one.stderr


# Each kill: the process, and a step or the first save. Steps are drawn anew at each run of the tests, after the saves of steps 3,
# 6 and 9: an epoch has four steps, so every training is taken up inside an epoch.
EARLY, MIDDLE, LATE = ({0: random.Random().randrange(first, first + 2)} for first in (4, 7, 10))
IN_SAVE = {0: jobs.SAVE}
WORKERS = [{1: EARLY[0]}, MIDDLE, dict.fromkeys((0, 1), LATE[0])]


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("name", "where", "kills"),
    [
        pytest.param("pretraining", ONE, [EARLY, IN_SAVE], marks=pytest.mark.long, id="pretraining"),
        pytest.param("class", ONE, [MIDDLE], marks=pytest.mark.slow, id="class"),
        pytest.param("class", TWO_REPLICAS, [EARLY], marks=pytest.mark.slow, id="class on replicas"),
        *(
            pytest.param(name, TWO_REPLICAS, [MIDDLE], marks=pytest.mark.slow, id=f"{name} on replicas")
            for name in ("vectors", "answers", "pretraining")
        ),
        *(
            pytest.param(name, TWO_WORKERS, WORKERS, marks=pytest.mark.slow, id=f"{name} on workers")
            for name in ("class", "pretraining", "records")
        ),
    ],
)
def test_killed_runs_end_with_the_same_bits(name, where, kills, finished, tmp_path):
    """A training that is killed and repeated ends with the variables and the files of one that was not."""
    strategy, processes = where
    made = finished("pretraining" if name == "records" else name)
    arguments = training(name, made, tmp_path, strategy)
    unbroken, broken = ([*arguments, "--output", str(tmp_path / run)] for run in ("unbroken", "broken"))
    jobs.check(jobs.command(unbroken, **processes))
    for kill in kills:
        for i, one in enumerate(jobs.command(broken, kill=kill, **processes)):
            if i in kill:
                assert one.returncode == KILLED, (kills, one.stderr)
            else:
                check_survivor(one)
    chief, *_ = jobs.check(jobs.command(broken, **processes))
    assert "resuming" in chief.stdout, kills
    assert_same_end(tmp_path / "broken", tmp_path / "unbroken")


# -----------------------------------------------------------------------------------------------------------
# The folder


def begin(path, fingerprint):
    with Folder(path, RUN).begin(fingerprint) as begun:
        return begun


def test_a_folder_is_of_its_fingerprint(tmp_path):
    fingerprint = {"steps": 10, "phases": ((8, 1.0),), "text": "ab"}
    assert not begin(tmp_path / "run", fingerprint)
    assert begin(tmp_path / "run", dict(fingerprint))
    for name, value in (("steps", 11), ("text", "cd"), ("new", 1)):
        with pytest.raises(BertKerasError, match=f"was made with another {name}"):
            begin(tmp_path / "run", fingerprint | {name: value})
    (tmp_path / "run" / RESULTS_FILE).write_text("{}")
    with pytest.raises(BertKerasError, match="already holds a run"):
        begin(tmp_path / "run", fingerprint)


def test_a_folder_whose_fingerprint_is_damaged(tmp_path):
    begin(tmp_path, {"steps": 10})
    (tmp_path / CHECKPOINTS / SETTINGS).write_text("{")
    with pytest.raises(BertKerasError, match="settings.json"):
        begin(tmp_path, {"steps": 10})


# -----------------------------------------------------------------------------------------------------------
# The callback


def model_of():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def fit(model, saver, steps):
    x, y = np.ones((steps, 3), "float32"), np.ones((steps, 1), "float32")
    model.fit(x, y, batch_size=1, callbacks=[saver], verbose=0, shuffle=False)


def test_a_save_holds_everything(tmp_path):
    model = model_of()
    saver = Saver(tmp_path, model, every=2, remember=lambda: {"rows": [saver.step]})
    assert saver.restore() is None
    fit(model, saver, 6)
    other = model_of()
    restored = Saver(tmp_path, other, every=2, remember=dict)
    assert restored.restore() == {"rows": [6]} and restored.step == 6
    for group in ("variables", "metrics_variables"):
        for a, b in zip(getattr(model, group), getattr(other, group), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=group)
    for a, b in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any("seed" in variable.path for variable in model.variables)
    assert sorted(file.name for file in (tmp_path / CHECKPOINTS).glob("*.index")) == [
        "ckpt-4.index",
        "ckpt-6.index",
    ]


def test_a_signal_while_the_workers_compare_theirs_stops_the_next_step(tmp_path):
    class Interrupted(Workers):
        """Gets the signal when all workers have sent theirs."""

        def greatest(self, value):
            found = super().greatest(value)
            if saver.step == 3 and value == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return found

    with postponed() as stop:
        saver = Saver(
            tmp_path, model := model_of(), every=100, remember=dict, stop=stop, workers=Interrupted()
        )
        with pytest.raises(KeyboardInterrupt):
            fit(model, saver, 6)
    assert saver.step == 4 and stop.signal == signal.SIGINT
    assert (tmp_path / CHECKPOINTS / "ckpt-4.index").is_file()


@pytest.mark.parametrize(("every", "kept"), [(4, 4.0), (6, 0.0)])
def test_measures_are_those_of_the_epoch_that_was_begun(every, kept, tmp_path):
    model = model_of()
    fit(model, Saver(tmp_path, model, every=every, remember=dict), 6)
    other = model_of()
    Saver(tmp_path, other, every=every, remember=dict).restore()
    counts = [float(one) for one in other.metrics_variables if one.path.endswith("count")]
    assert counts == [kept], "examples of the epoch that the mean of their losses is over"


def test_a_spoilt_save_falls_back_to_the_one_before(tmp_path):
    model = model_of()
    saver = Saver(tmp_path, model, every=2, remember=lambda: saver.step)
    fit(model, saver, 6)
    (data,) = (tmp_path / CHECKPOINTS).glob("ckpt-6.data*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 0xFF
    data.write_bytes(content)
    assert Saver(tmp_path, model_of(), every=2, remember=dict).restore() == 4
    for data in (tmp_path / CHECKPOINTS).glob("ckpt-4.data*"):
        data.write_bytes(b"")
    with pytest.raises(ValueError, match="no save in .* can be read"):
        Saver(tmp_path, model_of(), every=2, remember=dict).restore()


def test_what_a_killed_save_left_is_removed(tmp_path):
    model, folder = model_of(), tmp_path / CHECKPOINTS
    fit(model, Saver(tmp_path, model, every=2, remember=dict), 6)
    (folder / "settings.json").write_text("{}")
    kept = runs.contents(folder)
    (folder / "ckpt-8_temp").mkdir()
    for name in ("ckpt-8_temp/part-00000-of-00001.data-00000-of-00001", "ckpt-8.data-00000-of-00001"):
        (folder / name).write_bytes(b"half a save")
    runs.leave_half(folder, "settings.json")
    assert Saver(tmp_path, model_of(), every=2, remember=dict).restore() == {}
    assert runs.contents(folder) == kept


# -----------------------------------------------------------------------------------------------------------
# Fine-tuning


def test_a_fine_tuning_of_other_settings_is_not_resumed(finished, tmp_path, capfd):
    made = runs.Finetuned(folder=shutil.copytree(finished("class").folder, tmp_path / "made"))
    arguments = small_tasks.command("class", made, made.run)

    def assert_refused(message: str, *flags: str) -> None:
        with runs.no_training():
            code, _, err = runs.run_command(capfd, *arguments, *flags)
        assert code == 1 and message in err, err

    assert_refused("already holds a run")
    (made.run / RESULTS_FILE).unlink()
    assert_refused("was made with another --learning-rate: 0.001, not 0.002", "--learning-rate", "2e-3")
    file = made.data / "train.tsv"
    file.write_text(file.read_text().replace("good", "warm"))
    assert_refused("was made with another train_examples")


@pytest.mark.long
@pytest.mark.slow
def test_a_resume_that_does_not_repeat_the_measures(tiny, tmp_path, monkeypatch):
    """The files are those of epoch 2, whose save is missing; when it is repeated, it is worse than epoch 1."""
    runs.write_data(tmp_path / "data", "sst2", count=16)
    lines, saves, write = [], [], Saver._save

    def start(*accuracies):
        values = iter(accuracies)
        monkeypatch.setattr(TextClassification, "evaluate", lambda *_: {"accuracy": next(values)})
        return finetune(
            TextClassification.open("sst2", tmp_path / "data"),
            checkpoint=tiny,
            output=tmp_path / "run",
            hparams=Hparams(epochs=3, batch_size=8, learning_rate=1e-3, seq_length=40),
            verbose=0,
            log=lines.append,
        )

    def first_save(self):
        saves.append(self.step)
        if len(saves) == 2:
            raise KeyboardInterrupt
        write(self)

    monkeypatch.setattr(Saver, "_save", first_save)
    with pytest.raises(KeyboardInterrupt):
        start(0.5, 0.7)
    found = start(0.4, 0.3)
    assert found["best_epoch"] == 2 and found["measures"] == {"val_accuracy": 0.4}
    assert [row["val_accuracy"] for row in found["history"]] == [0.5, 0.4, 0.3]
    assert any("are not those of epoch 1, the best so far" in line for line in lines)


def test_a_full_disk_leaves_the_saves_before(tmp_path):
    model = model_of()
    saver = Saver(tmp_path, model, every=1, remember=lambda: saver.step)
    fit(model, saver, 3)
    before = runs.contents(tmp_path / CHECKPOINTS)
    with runs.full_disk(100), pytest.raises(OSError, match="cannot write .*; (File too large|No space left)"):
        saver._save()
    assert runs.contents(tmp_path / CHECKPOINTS) == before
    assert Saver(tmp_path, model_of(), every=1, remember=dict).restore() == 3
