"""Trainings that are refused or stopped, and folders that stay as they are; test_bad_input.py has the refusals of commands."""

import json
import shutil
import types

import numpy as np
import pretrainings
import pytest
import runs
import tensorflow as tf
from trainings import QUICK, learned, place, plan, reloaded, start, task, write_reviews  # noqa: F401

from bert_keras.errors import LossDiverged, WorkerLost
from bert_keras.tasks.devices.strategies import lines_about, strategy
from bert_keras.tasks.devices.workers import reports_lost_workers
from bert_keras.tasks.finetuning.finetune import plan_finetuning
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import save_run
from bert_keras.tasks.training.loop import train
from bert_keras.tasks.training.plan import digest_of_examples
from bert_keras.tasks.training.saver import ReplicaValues, Saver

# Refused before any training


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"save_every": -1}, "save_every is -1; give a number of steps, or 0"),
        ({"strategy_name": "two"}, "strategy is 'two'; give one of one, mirrored, multiworker, tpu"),
    ],
    ids=["saves", "strategy"],
)
def test_refuses_settings(settings, match, task, place, tmp_path):
    with pytest.raises(ValueError, match=match):
        start(task, place, output=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_refuses_a_full_disk(plan, tmp_path):
    match = "cannot write to .*: File too large; give a writable folder"
    with runs.no_training(), runs.full_disk(0), pytest.raises(ValueError, match=match):
        train(plan, tmp_path / "run", save_every=None, verbose=0)
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.long
def test_refuses_a_split_without_labels(place, tmp_path):
    data = write_reviews(tmp_path / "data")
    (data / "test.tsv").write_text("index\tsentence\n0\tgood film\n")
    match = "no example in the test split of sst2 has a label; give a labelled split"
    with pytest.raises(ValueError, match=match):
        start(TextClassification.open("sst2", data), place, output=tmp_path / "run", dev_split="test")
    assert not (tmp_path / "run").exists()


def test_the_first_validation_split_is_the_dev_split(place, tmp_path):
    task = TextClassification.open("mnli", runs.write_data(tmp_path / "data", "mnli"))
    plan = plan_finetuning(task, checkpoint=place / "checkpoint", hparams=QUICK)
    matched, mismatched = (
        digest_of_examples(task.examples(f"validation_{name}")) for name in ("matched", "mismatched")
    )
    assert plan.fingerprint["dev_examples"] == [48, matched] and matched != mismatched


# Devices and saves


def test_a_plan_says_how_many_devices_a_strategy_has(monkeypatch):
    def lines(distribution, name):
        return lines_about(distribution, strategy_name=name, precision="float32")

    four, mirrored = types.SimpleNamespace(num_replicas_in_sync=4), strategy("mirrored")
    assert isinstance(mirrored, tf.distribute.MirroredStrategy) and mirrored.num_replicas_in_sync == 1
    (line,) = lines(mirrored, "mirrored")
    assert line.startswith("warning: strategy mirrored found one device, CPU:0, ")
    assert lines(strategy("one"), "one") == []
    assert lines(four, "mirrored") == ["strategy mirrored: 4 devices"]
    monkeypatch.setattr("bert_keras.tasks.devices.strategies.count_workers", lambda distribution: 2)
    assert lines(four, "multiworker") == ["strategy multiworker: 4 devices of 2 workers"]


@pytest.mark.long
def test_both_trainings_show_the_lines_about_their_devices(task, place):
    how = {"checkpoint": place / "checkpoint", "hparams": QUICK, "strategy_name": "mirrored"}
    for lines in (plan_finetuning(task, **how).lines, pretrainings.planned_lines(strategy_name="mirrored")):
        assert len([line for line in lines if "mirrored found one device" in line]) == 1


def saver_of(plan, folder, *, every=0):
    return Saver(folder, plan.model, every=every, remember=lambda: "kept")


def test_a_loss_that_is_nan_is_not_saved(plan, tmp_path):
    """With float16, the weights may be finite: such a step is skipped."""
    saver = saver_of(plan, tmp_path, every=2)
    saver.set_model(plan.model)
    saver.set_params({"steps": 12})
    saver.on_train_batch_end(0, {"loss": tf.constant(np.nan)})
    with pytest.raises(LossDiverged, match="the loss is nan at step 2"):
        saver.on_train_batch_end(1, {"loss": tf.constant(np.nan)})
    assert saver.saves() == []


@pytest.mark.parametrize(("replicas", "warns"), [(1, False), (2, True)])
def test_a_resume_on_another_number_of_devices_warns(replicas, warns, plan, tmp_path, monkeypatch):
    """The metrics of a save have a row for each replica."""
    read = ReplicaValues.read
    with monkeypatch.context() as patch:
        patch.setattr(
            ReplicaValues, "read", lambda self: [np.repeat(one, replicas, axis=0) for one in read(self)]
        )
        saver_of(plan, tmp_path)._save()
    lines = []
    assert saver_of(plan, tmp_path).restore(log=lines.append) == "kept"
    assert len(lines) == warns
    if warns:
        assert lines[0].startswith("warning: the run was saved on 2 devices and resumes on 1 device: ")


def test_only_a_process_that_has_joined_a_cluster_loses_workers(monkeypatch):
    """TensorFlow's InternalError has other causes too, and TF_CONFIG may be set for --strategy one."""
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))

    @reports_lost_workers()
    def failing():
        raise tf.errors.InternalError(None, None, "Blas GEMM launch failed")

    with pytest.raises(tf.errors.InternalError, match="Blas GEMM"):
        failing()
    monkeypatch.setattr("bert_keras.tasks.devices.workers.has_joined", lambda: True)
    with pytest.raises(WorkerLost, match="another worker has ended .*Blas GEMM"):
        failing()


# Files on disk


@pytest.mark.long
def test_full_disk_leaves_what_was_there(reloaded, place, tmp_path):
    folder, saved = tmp_path / "run", (reloaded.task, reloaded.preprocess, reloaded.model)
    shutil.copytree(place / "learned", folder)
    before, table = runs.contents(folder), reloaded.encoder.embedding_table
    table.assign(table + 1.0)
    try:
        with runs.full_disk(4096), pytest.raises(OSError, match="File too large"):
            save_run(folder, *saved)
        assert runs.contents(folder) == before
        assert list(tmp_path.iterdir()) == [folder]
        save_run(folder, *saved)
        assert runs.contents(folder)["model.safetensors"] != before["model.safetensors"]
    finally:
        table.assign(table - 1.0)
