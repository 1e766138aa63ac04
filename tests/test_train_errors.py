"""Trainings that are refused, and folders that stay as they are."""

import dataclasses
import json
import shutil
import types
from pathlib import Path

import numpy as np
import pretrainings
import pytest
import runs
import tensorflow as tf
from random_checkpoints import with_vocabulary
from trainings import QUICK, learned, place, plan, reloaded, start, write_reviews  # noqa: F401

from bert_keras import checkpoints
from bert_keras.errors import LossDiverged, WorkerLost
from bert_keras.io.formats import RUN, stamp
from bert_keras.tasks.devices.strategies import lines_about, strategy
from bert_keras.tasks.devices.workers import reports_lost_workers
from bert_keras.tasks.finetuning.finetune import plan_finetuning
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import load_run, save_run
from bert_keras.tasks.training.loop import train
from bert_keras.tasks.training.plan import digest_of_examples
from bert_keras.tasks.training.saver import ReplicaValues, Saver

# Refused before any training


def refused(place, tmp_path, error, match, *, task=None, **settings):
    """finetune raises and leaves no run."""
    task = task or TextClassification.open("sst2", place / "reviews")
    settings = {"output": tmp_path / "run"} | settings
    with pytest.raises(error, match=match):
        start(task, place, **settings)
    assert not (Path(place / settings["output"]) / "results.json").exists()


def test_refuses_a_folder_that_holds_a_run(learned, place):
    before = runs.contents(place / "learned")
    with pytest.raises(
        ValueError, match="learned already holds a run; give another folder, or remove this one first"
    ):
        start(TextClassification.open("sst2", place / "reviews"), place, output="learned")
    assert runs.contents(place / "learned") == before


@pytest.mark.parametrize("output", ["checkpoint/config.json/run", "/proc/bert_keras_run"])
def test_refuses_a_folder_that_cannot_be_made(place, plan, output):
    match = "cannot write to .*; give a writable folder"
    with runs.no_training(), pytest.raises(ValueError, match=match):
        train(plan, place / output, save_every=None, verbose=0)


def test_refuses_a_full_disk(plan, tmp_path):
    match = "cannot write to .*: File too large; give a writable folder"
    with runs.no_training(), runs.full_disk(0), pytest.raises(ValueError, match=match):
        train(plan, tmp_path / "run", save_every=None, verbose=0)
    assert not (tmp_path / "run" / "results.json").exists()


def test_refuses_a_vocabulary_of_another_size(place, tmp_path):
    source = checkpoints.read(place / "checkpoint")
    checkpoint = with_vocabulary(source, tokens=(*source.vocabulary.tokens, "one", "more"))
    match = f"the vocabulary has {len(runs.VOCABULARY) + 2} tokens and the encoder {len(runs.VOCABULARY)} embedding rows"
    refused(place, tmp_path, ValueError, match, checkpoint=checkpoint)


def test_refuses_a_length_over_the_positions(place, tmp_path):
    hparams = dataclasses.replace(QUICK, seq_length=49)
    refused(place, tmp_path, ValueError, "seq_length is 49 and the encoder has 48 positions", hparams=hparams)


def test_refuses_no_examples(place, tmp_path):
    data = write_reviews(tmp_path / "data", dev=0)
    refused(
        place, tmp_path, ValueError, "dev.tsv has no examples", task=TextClassification.open("sst2", data)
    )


@pytest.mark.long
def test_refuses_a_split_without_labels(place, tmp_path):
    data = write_reviews(tmp_path / "data")
    (data / "test.tsv").write_text("index\tsentence\n0\tgood film\n")
    task = TextClassification.open("sst2", data)
    match = "no example in the test split of sst2 has a label; give a labelled split"
    refused(place, tmp_path, ValueError, match, task=task, dev_split="test")

    class Withheld(TextClassification):
        def examples(self, split):
            return super().examples("test" if split == "train" else split)

    match = "no example in the train split of sst2 has a label; give a labelled split"
    refused(place, tmp_path, ValueError, match, task=Withheld.open("sst2", data))


def test_the_first_validation_split_is_the_dev_split(place, tmp_path):
    task = TextClassification.open("mnli", runs.write_data(tmp_path / "data", "mnli"))
    plan = plan_finetuning(task, checkpoint=place / "checkpoint", hparams=QUICK)
    matched, mismatched = (
        digest_of_examples(task.examples(f"validation_{name}")) for name in ("matched", "mismatched")
    )
    assert plan.fingerprint["dev_examples"] == [48, matched] and matched != mismatched


def test_refuses_a_negative_save_every(place, tmp_path):
    refused(place, tmp_path, ValueError, "save_every is -1; give a number of steps, or 0", save_every=-1)
    assert not (tmp_path / "run").exists()


def test_refuses_an_unknown_strategy(place, tmp_path):
    match = "strategy is 'two'; give one of one, mirrored, multiworker, tpu"
    refused(place, tmp_path, ValueError, match, strategy_name="two")


def test_mirrored_on_one_cpu():
    distribution = strategy("mirrored")
    assert isinstance(distribution, tf.distribute.MirroredStrategy)
    assert distribution.num_replicas_in_sync == 1
    (line,) = lines_about(distribution, strategy_name="mirrored", precision="float32")
    assert line.startswith("warning: strategy mirrored found one device, CPU:0, ")


def test_a_plan_says_how_many_devices_a_strategy_has(monkeypatch):
    how = {"precision": "float32"}
    assert lines_about(strategy("one"), strategy_name="one", **how) == []
    four = types.SimpleNamespace(num_replicas_in_sync=4)
    assert lines_about(four, strategy_name="mirrored", **how) == ["strategy mirrored: 4 devices"]
    monkeypatch.setattr("bert_keras.tasks.devices.strategies.count_workers", lambda distribution: 2)
    assert lines_about(four, strategy_name="multiworker", **how) == [
        "strategy multiworker: 4 devices of 2 workers"
    ]


@pytest.mark.long
def test_both_trainings_show_the_lines_about_their_devices(place):
    task = TextClassification.open("sst2", place / "reviews")
    how = {"checkpoint": place / "checkpoint", "hparams": QUICK, "strategy_name": "mirrored"}
    for lines in (plan_finetuning(task, **how).lines, pretrainings.planned_lines(strategy_name="mirrored")):
        assert len([line for line in lines if "mirrored found one device" in line]) == 1


def saver_of(plan, folder):
    return Saver(folder, plan.model, every=0, remember=lambda: "kept")


def test_a_loss_that_is_nan_is_not_saved(plan, tmp_path):
    """With float16, the weights may be finite: such a step is skipped."""
    saver = Saver(tmp_path, plan.model, every=2, remember=lambda: "kept")
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


# Files on disk


def test_full_disk_leaves_what_was_there(reloaded, place, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(place / "learned", folder)
    before = runs.contents(folder)
    reloaded.encoder.embedding_table.assign(reloaded.encoder.embedding_table + 1.0)
    try:
        with runs.full_disk(4096), pytest.raises(OSError, match="File too large"):
            save_run(folder, reloaded.task, reloaded.preprocess, reloaded.model)
        assert runs.contents(folder) == before
        assert list(tmp_path.iterdir()) == [folder]
        save_run(folder, reloaded.task, reloaded.preprocess, reloaded.model)
        assert runs.contents(folder)["model.safetensors"] != before["model.safetensors"]
    finally:
        reloaded.encoder.embedding_table.assign(reloaded.encoder.embedding_table - 1.0)


@pytest.mark.parametrize(
    "content",
    [
        *('{"kind": "other"}', "[]", "{"),
        *(
            json.dumps(stamp(RUN) | kept)
            for kept in ({"kind": "other"}, {"kind": "text-classification", "task": {}})
        ),
    ],
)
def test_task_file_of_another_program(learned, place, tmp_path, content):
    (tmp_path / "task.json").write_text(content)
    with pytest.raises(ValueError, match=r"task\.json( is not| holds|: this run has no format_version)"):
        load_run(tmp_path)


def test_folder_without_a_run(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="no task.json in .*; give the folder that `bert-keras finetune"
    ):
        load_run(tmp_path)


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
