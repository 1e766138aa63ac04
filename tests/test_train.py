"""finetune(): what it learns, keeps and writes; what it refuses before it trains; replicas; what comes back from disk."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import forked
import keras
import numpy as np
import pytest
import runs
import tensorflow as tf
from freed_graphs import graphs_made_and_left
from trainings import (
    LEARNING,
    QUICK,
    TESTS,
    assert_same_weights,
    learned,  # noqa: F401
    place,  # noqa: F401
    plan,  # noqa: F401
    reloaded,  # noqa: F401
    start,
    task,  # noqa: F401
    turned,  # noqa: F401
    weights_of,
)

from bert_keras import checkpoints
from bert_keras.savedmodels.servable import Servable
from bert_keras.tasks.batches import predict
from bert_keras.tasks.devices.strategies import in_replicas
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.finetuning.finetune import plan_finetuning
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.ensemble import load_runs
from bert_keras.tasks.runs.run_folder import evaluate, load_run
from bert_keras.tasks.training import loop
from bert_keras.tasks.training.loop import StopOnDivergence
from bert_keras.tasks.training.task_model import encoder_of

# Learning, and what is left of it


def test_learns(learned):
    _, results, lines = learned
    losses = [epoch["loss"] for epoch in results["history"]]
    assert results["measures"]["val_accuracy"] > 0.9
    assert losses[-1] < 0.4 < losses[0]
    assert lines[0].startswith("loaded")
    assert "\nrandomly initialized: classifier" in lines[0]
    assert lines[1] == "training sst2 on 96 examples, 48 steps; dev 40 examples"
    first = results["history"][0]
    assert lines[2].startswith(f"epoch 1/4: loss {first['loss']:.4f}, accuracy {first['val_accuracy']:.4f}, ")
    assert len(lines) == 6


def test_one_trace_for_all_lengths(learned, reloaded):
    """Training and prediction are each traced once in four epochs, with batches of many widths."""
    counting, _, _ = learned
    lengths = {len(raw["sentence"].numpy().split()) for raw in counting.examples("train")}
    assert len(lengths) > 10
    assert (counting.losses, counting.decodings) == (1, 1)


def test_run_directory(learned, place):
    files = sorted(path for path in runs.contents(place / "learned") if not path.startswith("logs/"))
    assert files == [
        "README.md",
        "checkpoints/settings.json",
        "config.json",
        "model.safetensors",
        "results.json",
        "task.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert (place / "learned" / "vocab.txt").read_text().split("\n")[:-1] == list(runs.VOCABULARY)
    kept = json.loads((place / "learned" / "task.json").read_text())
    assert kept["kind"] == "text-classification" and kept["task"]["labels"] == ["negative", "positive"]
    assert (kept["seq_length"], kept["truncation"]) == (40, "longest_first")
    assert not list(place.glob(".*"))


def test_a_run_names_its_labels_as_hugging_face_does(learned, place):
    config = json.loads((place / "learned/config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert config["problem_type"] == "single_label_classification"
    kept = checkpoints.read(place / "learned")
    assert (kept.labels, kept.problem_type) == (("negative", "positive"), config["problem_type"])


def test_results(learned, place):
    _, results, _ = learned
    assert json.loads((place / "learned" / "results.json").read_text()) == results
    names = "task origin measures best_epoch stopped_early history train_examples dev_examples data strategy hparams files"
    assert list(results) == [*names.split(), "degenerate", "steps", "seconds", "made_by"]
    assert results["hparams"] == LEARNING.fingerprint()
    assert (results["train_examples"], results["dev_examples"], results["steps"]) == (96, 40, 48)
    assert [sorted(epoch) for epoch in results["history"]] == [["loss", "val_accuracy"]] * 4
    best = max(epoch["val_accuracy"] for epoch in results["history"])
    assert results["history"][results["best_epoch"] - 1]["val_accuracy"] == best


def test_tensorboard_files_hold_loss_and_measure(learned, place):
    tags = {}
    for part in ("train", "validation"):
        (file,) = (place / "learned" / "logs" / part).glob("events.out.tfevents.*")
        events = [
            tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file))
        ]
        tags[part] = {value.tag for event in events for value in event.summary.value}
    assert {"epoch_loss", "epoch_learning_rate"} <= tags["train"]
    assert tags["validation"] == {"epoch_accuracy"}


def test_reloaded_run_measures_the_same(learned, reloaded):
    _, results, _ = learned
    assert evaluate(reloaded, "validation") == {"accuracy": results["measures"]["val_accuracy"]}
    examples = reloaded.task.examples("validation")
    answers, raw = predict(reloaded.task, reloaded.preprocess, reloaded.model, examples)
    assert answers["probabilities"].shape == (40, 2)
    wanted = [b"negative" if label == 0 else b"positive" for label in raw["label"]]
    assert np.mean(answers["label"] == wanted) == results["measures"]["val_accuracy"]


@pytest.mark.long
def test_best_epoch_is_kept_not_the_last(turned, place):
    data, results = place / "turned", turned
    measured = [epoch["val_accuracy"] for epoch in results["history"]]
    assert measured[-1] < measured[0]
    assert results["best_epoch"] == 1
    assert results["measures"]["val_accuracy"] == measured[0]
    assert evaluate(load_run(place / "turned_run", data=data), "validation")["accuracy"] == measured[0]


@pytest.mark.long
def test_ensemble_takes_the_mean_of_outputs(learned, turned, task, place, reloaded):
    both = load_runs([place / "learned", place / "turned_run"], data=place / "reviews")
    second = load_run(place / "turned_run", data=place / "reviews")
    features = both.preprocess(tf.constant(["a good film", "dull"]))
    outputs = [run.model(features) for run in (reloaded, second)]
    assert not np.allclose(*outputs, atol=1e-2)
    np.testing.assert_allclose(both.model(features), sum(outputs) / 2, atol=1e-6)
    answers, _ = predict(task, both.preprocess, both.model, task.examples("validation"))
    assert answers["probabilities"].shape == (40, 2)
    servable = Servable(both.task, both.preprocess, both.model)
    served = servable.serve(sentence=tf.constant(["a good film", "dull"]))
    np.testing.assert_allclose(served["probabilities"], tf.nn.softmax(both.model(features)), atol=1e-6)


def with_length(run, copy, seq_length):
    """A copy of a run whose task.json has another length."""
    file = shutil.copytree(run, copy) / "task.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seq_length": seq_length}))
    return copy


def test_ensemble_of_unlike_runs(learned, place, tmp_path):
    short = with_length(place / "learned", tmp_path / "short", 32)
    with pytest.raises(ValueError, match="short differs from .*learned in its task, labels or preprocessing"):
        load_runs([place / "learned", short])


def test_a_setting_of_a_run_that_cannot_work_is_refused_with_the_file(learned, place, tmp_path):
    with pytest.raises(ValueError, match="run/task.json: seq_length is 3; give at least 5"):
        load_run(with_length(place / "learned", tmp_path / "run", 3))


def test_a_head_that_the_checkpoint_lacks_is_not_kept(task, place):
    with pytest.raises(ValueError, match="the checkpoint has no head of sst2; leave keep_head out"):
        plan_finetuning(task, checkpoint=place / "checkpoint", hparams=QUICK, keep_head=True)


def start_with_seed(place, output, seed):
    """Random weights, dropout, some of the examples: everything that a seed decides. Returns the log lines."""
    source, lines = checkpoints.read(place / "with_dropout"), []
    hparams = dataclasses.replace(QUICK, seed=seed, max_examples=24)
    how = {"hparams": hparams, "checkpoint": dataclasses.replace(source, tensors={}), "log": lines.append}
    start(TextClassification.open("sst2", place / "reviews"), place, output=output, **how)
    return lines


@pytest.mark.slow
def test_seed_decides_every_weight(place):
    """Bit for bit, in a fresh process too."""
    runs.write_checkpoint(place / "with_dropout", num_layers=1)
    lines = start_with_seed(place, "seed_1", 1)
    assert lines[0] == "weights: random"
    start_with_seed(place, "seed_2", 2)
    script = (
        "import pathlib, sys, test_train; test_train.start_with_seed(pathlib.Path(sys.argv[1]), 'again', 1)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    subprocess.run([sys.executable, "-c", script, str(place)], env=environment, check=True)
    assert_same_weights(weights_of(place / "again"), weights_of(place / "seed_1"))
    one, two = weights_of(place / "seed_1"), weights_of(place / "seed_2")
    assert not np.array_equal(one["pooler/kernel"], two["pooler/kernel"])


def test_frozen_encoder_and_max_examples(task, place):
    hparams = dataclasses.replace(QUICK, freeze="encoder", max_examples=20)
    results = start(task, place, output="frozen", hparams=hparams)
    assert (results["train_examples"], results["steps"]) == (20, 3)
    after = weights_of(place / "frozen")
    head = {name: after.pop(name) for name in list(after) if name.startswith("classifier/")}
    assert_same_weights(after, weights_of(place / "checkpoint"))
    assert np.abs(head["classifier/dense/bias"]).max() > 0  # it starts at 0


@pytest.mark.long
def test_concat_pooling_is_kept_and_reloaded(place):
    """Its own head below its own name, the pooler untouched, the same answers from disk."""
    task = TextClassification.open("sst2", place / "reviews", pooling="concat")
    results = start(task, place, output="concat", hparams=dataclasses.replace(QUICK, epochs=2))
    after, before = weights_of(place / "concat"), weights_of(place / "checkpoint")
    assert after["concat_classifier/dense/kernel"].shape == (3 * runs.SIZES["hidden_size"], 2)
    np.testing.assert_array_equal(after["pooler/kernel"], before["pooler/kernel"])
    assert not np.array_equal(after["embeddings/word_embeddings"], before["embeddings/word_embeddings"])
    assert json.loads((place / "concat" / "task.json").read_text())["task"]["pooling"] == "concat"
    run = load_run(place / "concat", data=place / "reviews")
    assert run.task.pooling == "concat"
    assert evaluate(run, "validation") == {"accuracy": results["measures"]["val_accuracy"]}
    assert results["history"][-1]["loss"] < results["history"][0]["loss"]
    with pytest.raises(ValueError, match="pooling is 'max'; .* pooled, concat"):
        TextClassification.open("sst2", None, pooling="max")


@pytest.mark.long
def test_scores_of_pairs(place):
    """STS-B: two segments, a number to learn."""
    task = TextClassification.open("stsb", runs.write_data(place / "stsb", "stsb"))
    results = start(task, place, output="stsb_run", hparams=dataclasses.replace(QUICK, epochs=2))
    assert set(results["measures"]) == {"val_spearman", "val_pearson"}
    assert results["history"][-1]["loss"] < results["history"][0]["loss"]
    run = load_run(place / "stsb_run", data=place / "stsb")
    pearson = results["measures"]["val_pearson"]
    assert evaluate(run, "validation")["pearson"] == pytest.approx(
        pearson, abs=1e-5
    )  # of scores that are nearly equal


def test_checkpoint_without_pooler(task, place):
    """It is planned, and a line says what starts at random."""
    source = checkpoints.read(place / "checkpoint")
    tensors = {name: array for name, array in source.tensors.items() if not name.startswith("pooler/")}
    without = dataclasses.replace(source, tensors=tensors)
    plan = plan_finetuning(task, checkpoint=without, hparams=QUICK)
    assert "\nrandomly initialized: pooler/kernel, pooler/bias, classifier" in plan.lines[0]


@pytest.mark.long
def test_loss_that_is_nan(task, place):
    """An error, and no such weights on disk."""
    hparams = dataclasses.replace(QUICK, learning_rate=1e30, warmup_proportion=0.0)
    with pytest.raises(ValueError, match=r"the loss is nan at step \d+; give a lower learning_rate"):
        start(task, place, output="nan", hparams=hparams)
    assert not (place / "nan" / "model.safetensors").exists()


@pytest.mark.parametrize(("save_every", "steps"), [(None, {10, 12}), (4, {4, 8, 10, 12})])
def test_the_host_reads_the_loss_every_ten_steps_and_before_saves(
    save_every, steps, task, place, tmp_path, monkeypatch
):
    """Each read waits for the running step, so that the next one begins late."""
    read, kinds, of_step = set(), set(), [0]
    tensor, end = type(tf.constant(0.0)), StopOnDivergence.on_train_batch_end
    as_float = tensor.__float__

    def noted(self):
        read.add(of_step[0])
        return as_float(self)

    def noting_end(self, batch, logs=None):
        of_step[0] = batch + 1
        kinds.update(map(type, logs.values()))
        end(self, batch, logs)

    monkeypatch.setattr(tensor, "__float__", noted)
    monkeypatch.setattr(StopOnDivergence, "on_train_batch_end", noting_end)
    results = start(task, place, output=tmp_path / "run", save_every=save_every)
    assert results["steps"] == 12 and results["history"][0]["loss"] > 0
    assert kinds == {tensor}
    assert read <= steps and steps - {12} <= read  # Keras reads the loss of an epoch


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, 12), (1e9, 0)])
def test_a_progress_bar_reads_the_loss_only_when_it_is_due(
    seconds, shown, task, place, tmp_path, monkeypatch
):
    updates, bar = [], keras.callbacks.ProgbarLogger
    monkeypatch.setattr(loop, "BAR_SECONDS", seconds)
    monkeypatch.setattr(
        bar, "on_train_batch_end", lambda self, batch, logs=None: updates.append(logs["loss"])
    )
    start(task, place, output=tmp_path / "run", verbose=1)
    assert len(updates) == shown and all(map(tf.is_tensor, updates))


def test_planning_trains_nothing(place, request):
    """The plan's model has the checkpoint's weights, and no file is written."""
    before = runs.contents(place)
    plan = request.getfixturevalue("plan")
    assert (plan.steps, plan.fingerprint["train_examples"][0]) == (12, 96)
    encoder = checkpoints.collect(encoder_of(plan.model).config, encoder_of(plan.model)).tensors
    given = checkpoints.read(place / "checkpoint").tensors
    assert_same_weights({name: encoder[name] for name in given}, given)
    assert runs.contents(place) == before


@pytest.mark.parametrize(("micro_batch", "most"), [(None, 8), (3, 3), (20, 8)])
def test_an_evaluation_computes_no_more_rows_at_once_than_a_step(
    micro_batch, most, task, place, tmp_path, monkeypatch
):
    """In the last batches of 40 examples, fewer."""
    rows = []

    def counted(distribution, call, **how):
        def counting(inputs):
            count = tf.shape(tf.nest.flatten(inputs)[0])[0]
            with tf.control_dependencies([tf.py_function(lambda one: rows.append(int(one)), [count], [])]):
                return call(tf.nest.map_structure(tf.identity, inputs))

        return in_replicas(distribution, counting, **how)

    monkeypatch.setattr("bert_keras.tasks.batches.in_replicas", counted)
    hparams = dataclasses.replace(QUICK, micro_batch=micro_batch)
    planned = plan_finetuning(task, checkpoint=place / "checkpoint", hparams=hparams)
    monitor = planned.monitor(tmp_path, log=lambda line: None, workers=Workers())
    monitor.set_model(planned.model)
    monitor.on_epoch_end(0, {"loss": 1.0})
    assert (sum(rows), max(rows)) == (40, most)
    assert 0 < monitor.history[0]["val_accuracy"] < 1


def test_planning_says_how_many_texts_are_cut(task, place, plan):
    hparams = dataclasses.replace(QUICK, seq_length=5)
    short = plan_finetuning(task, checkpoint=place / "checkpoint", hparams=hparams)
    source = checkpoints.tokenizer_of(checkpoints.read(place / "checkpoint"))
    rows = [line.split("\t")[0] for line in (place / "reviews/train.tsv").read_text().splitlines()[1:]]
    lengths = source.tokenize(rows).row_lengths().numpy() + 2
    (line,) = (line for line in short.lines if "are cut" in line)
    cut, longest = (lengths > 5).sum(), lengths.max()
    assert line.startswith(f"{cut} of the first 96 examples are longer than 5 tokens (up to {longest})")
    assert "seq_length" in line and "doc_stride" in line
    assert not [line for line in plan.lines if "are cut" in line]


# -----------------------------------------------------------------------------------------------------------
# Memory: a training's graph goes when its model goes, so that a grid of many runs needs the memory of one

FEATURES = {"feature_layers": "0,1", "lstm_layers": 1, "lstm_units": 4}


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param({"micro_batch": 4}, marks=pytest.mark.slow),
        pytest.param(FEATURES, marks=pytest.mark.slow),
    ],
    ids=["plain", "micro-batches", "features"],
)
def test_graphs_of_a_finished_training_are_freed(how, tmp_path):
    made, left = graphs_made_and_left(tmp_path, **how)
    assert made and not left


@pytest.mark.long
@pytest.mark.slow
def test_graphs_of_two_replicas_are_freed(tmp_path):
    done = forked.run(TESTS / "freed_graphs.py", tmp_path)
    assert done.returncode == 0, done.stderr
    made, left = json.loads(done.stdout)
    assert made and not left
