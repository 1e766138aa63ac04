"""Killed runs that are resumed end with the bits of an uninterrupted run; changes that prevent it are named."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import forked
import keras
import numpy as np
import pytest
import runs

from bert_keras.errors import BertKerasError
from bert_keras.io.folders import Folder
from bert_keras.io.signals import postponed
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.training.loop import RESULTS_FILE, RUN
from bert_keras.tasks.training.saver import CHECKPOINTS, SETTINGS, Saver

TESTS = Path(__file__).parent
KILLED = -9
TIMES = ("tokens_per_second", "seconds")


def start(folder: Path, *jobs: str) -> subprocess.CompletedProcess:
    return forked.run(TESTS / "killed_runs.py", folder, *jobs)


def results(run: Path) -> dict:
    """results.json without what a clock says."""
    content = json.loads((run / RESULTS_FILE).read_text())
    rows = [{k: v for k, v in row.items() if k not in TIMES} for row in content.pop("history")]
    kept = {name: value for name, value in content.items() if name not in ("measures", "seconds")}
    return kept | {"history": rows}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_runs_end_with_the_same_bits(tmp_path):
    runs.write_checkpoint(tmp_path / "checkpoint")
    runs.write_data(tmp_path / "data", "sst2")
    whole = start(tmp_path, "pretrain:whole", "finetune:tuned-whole")
    assert whole.returncode == 0, whole.stderr

    draw = random.Random()
    first, second = draw.randint(6, 12), draw.randint(16, 23)  # the run before may have saved step 15
    assert start(tmp_path, f"pretrain:killed:{first}").returncode == KILLED
    assert start(tmp_path, "pretrain:killed:in-save").returncode == KILLED
    again = start(tmp_path, f"pretrain:killed:{second}")
    assert again.returncode == KILLED, again.stderr
    last = start(tmp_path, "pretrain:killed", f"finetune:tuned:{draw.randint(5, 17)}")
    assert last.returncode == KILLED, last.stderr
    tuned = start(tmp_path, "finetune:tuned")
    assert tuned.returncode == 0, tuned.stderr
    for done in (again, last, tuned):
        assert "resuming" in done.stdout

    assert len(results(tmp_path / "whole")["history"]) == 24 + 6, "a row for each step and each evaluation"
    for killed, unbroken in (("killed", "whole"), ("tuned", "tuned-whole")):
        assert results(tmp_path / killed) == results(tmp_path / unbroken), (first, second)
        weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in (killed, unbroken)]
        assert weights[0] == weights[1], (first, second)
        saves = tmp_path / killed / CHECKPOINTS
        assert list(saves.glob("ckpt-*.index")), "saves that were asked for stay"
        assert not list(saves.glob("ckpt-*_temp")), "the save that was killed does not"


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
    (folder / ".settings.json.1.tmp").write_text("{")
    assert Saver(tmp_path, model_of(), every=2, remember=dict).restore() == {}
    assert runs.contents(folder) == kept


# -----------------------------------------------------------------------------------------------------------
# Fine-tuning


@pytest.mark.long
def test_a_fine_tuning_of_other_settings_is_not_resumed(tmp_path):
    runs.write_checkpoint(tmp_path / "checkpoint")
    runs.write_data(tmp_path / "data", "sst2")
    quick = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "seq_length": 40}

    def start(save_every=2, **changes):
        finetune(
            TextClassification.open("sst2", tmp_path / "data"),
            checkpoint=tmp_path / "checkpoint",
            output=tmp_path / "run",
            hparams=Hparams(**(quick | changes)),
            save_every=save_every,
            verbose=0,
        )

    start()
    with pytest.raises(ValueError, match="already holds a run"):
        start()
    (tmp_path / "run" / RESULTS_FILE).unlink()
    with pytest.raises(ValueError, match="was made with another learning_rate: 0.001, not 0.002"):
        start(learning_rate=2e-3)
    lines = (tmp_path / "data" / "train.tsv").read_text().replace("good", "warm")
    (tmp_path / "data" / "train.tsv").write_text(lines)
    with pytest.raises(ValueError, match="was made with another train_examples"):
        start()


@pytest.mark.long
def test_a_resume_that_does_not_repeat_the_measures(tmp_path, monkeypatch):
    """The files are those of epoch 2, whose save is missing; when it is repeated, it is worse than epoch 1."""
    runs.write_checkpoint(tmp_path / "checkpoint")
    runs.write_data(tmp_path / "data", "sst2")
    lines, saves, write = [], [], Saver._save

    def start(*accuracies):
        values = iter(accuracies)
        monkeypatch.setattr(TextClassification, "evaluate", lambda *_: {"accuracy": next(values)})
        return finetune(
            TextClassification.open("sst2", tmp_path / "data"),
            checkpoint=tmp_path / "checkpoint",
            output=tmp_path / "run",
            hparams=Hparams(epochs=3, batch_size=8, learning_rate=1e-3, seq_length=40, max_examples=16),
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
