"""finetune(): what it learns, keeps and writes; what it refuses before it trains; replicas; what comes back from disk."""

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from savedmodels.servable import Servable
from tasks.batches import predict
from tasks.glue.data_sets import ROWS
from tasks.glue.task import Glue
from tasks.ner.task import Conll
from tasks.settings import Hparams
from tasks.training.ensemble import load_runs
from tasks.training.finetune import _compiled_model, finetune, plan_finetuning
from tasks.training.identity import digest_of_examples
from tasks.training.loop import train
from tasks.training.run_folder import encoder_of, evaluate, heads_of, load_run, save_run
from tasks.training.saver import Saver
from tasks.training.strategies import strategy

TESTS = Path(__file__).parent
QUICK = Hparams(epochs=1, batch_size=8, learning_rate=1e-3, seq_length=40)
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
GOOD, BAD = ("good", "warm"), ("bad", "dull")
PLAIN = "film plot actor scene the its is and very".split()


def write_reviews(folder, *, train=96, dev=40, reversed_dev=False):
    """SST-2's form: one word among one to twenty others says the label."""
    draw = random.Random(0)
    folder.mkdir(parents=True)
    for stem, count, turned in (("train", train, False), ("dev", dev, reversed_dev)):
        lines = ["sentence\tlabel"]
        for i in range(count):
            words = draw.choices(PLAIN, k=draw.randint(1, 20))
            words.insert(draw.randint(0, len(words)), draw.choice((BAD, GOOD)[i % 2]))
            lines.append(f"{' '.join(words)}\t{i % 2 ^ turned}")
        (folder / f"{stem}.tsv").write_text("\n".join(lines) + "\n")
    return folder


class Counting(Glue):
    """SST-2 that counts how often Python runs through its loss and its decoding: once for each trace."""

    def __init__(self, folder):
        super().__init__(ROWS["sst2"], folder)
        self.losses, self.decodings, self.widths = 0, 0, set()

    def loss(self):
        mean, counted = super().loss(), self

        class Counted(type(mean)):
            def __call__(self, *args, **kwargs):
                counted.losses += 1
                return mean(*args, **kwargs)

        return Counted(mean.call)

    def decode(self, outputs, features, raw):
        self.decodings += 1
        return super().decode(outputs, features, raw)


def start(task, folder, *, output="run", hparams=QUICK, **settings):
    settings = {"checkpoint": folder / "checkpoint", "verbose": 0, "log": lambda line: None} | settings
    return finetune(task, output=folder / output, hparams=hparams, **settings)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a random checkpoint of one layer, for which little data is enough whatever the seed, and reviews."""
    folder = tmp_path_factory.mktemp("train")
    runs.write_checkpoint(folder / "checkpoint", num_layers=1, initializer_range=0.1, **NO_DROPOUT)
    write_reviews(folder / "reviews")
    return folder


LEARNING = dataclasses.replace(QUICK, epochs=4)


@pytest.fixture(scope="module")
def learned(place):
    """A run of four epochs: the task, its results and the log lines."""
    task, lines = Counting(place / "reviews"), []
    results = start(task, place, output="learned", hparams=LEARNING, log=lines.append)
    return task, results, lines


@pytest.fixture(scope="module")
def reloaded(learned, place):
    return load_run(place / "learned", data=place / "reviews")


def weights_of(run_folder):
    return checkpoints.read(run_folder).tensors


def assert_same_weights(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


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
    task, _, _ = learned
    lengths = {len(raw["sentence"].numpy().split()) for raw in task.examples("train")}
    assert len(lengths) > 10
    assert task.losses == 1
    assert task.decodings == 1


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
    assert kept["kind"] == "glue" and kept["task"]["labels"] == ["negative", "positive"]
    assert (kept["seq_length"], kept["truncation"]) == (40, "longest_first")
    assert not list(place.glob(".*"))


def test_a_run_names_its_labels_as_hugging_face_does(learned, place):
    config = json.loads((place / "learned/config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert checkpoints.read(place / "learned").labels == ("negative", "positive")


def test_results(learned, place):
    _, results, _ = learned
    assert json.loads((place / "learned" / "results.json").read_text()) == results
    assert list(results) == [
        *(
            "task",
            "origin",
            "measures",
            "best_epoch",
            "stopped_early",
            "history",
            "train_examples",
            "dev_examples",
            "strategy",
            "hparams",
        ),
        *("files", "steps", "seconds"),
    ]
    assert results["hparams"] == LEARNING.identity()
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
    answers, raw = predict(
        reloaded.task, reloaded.preprocess, reloaded.model, reloaded.task.examples("validation")
    )
    assert answers["probabilities"].shape == (40, 2)
    wanted = [b"negative" if label == 0 else b"positive" for label in raw["label"]]
    assert np.mean(answers["label"] == wanted) == results["measures"]["val_accuracy"]


@pytest.fixture(scope="module")
def turned(place):
    """The results of a run whose dev labels are turned round: the more is learned, the worse it measures."""
    task = Glue(ROWS["sst2"], write_reviews(place / "turned", reversed_dev=True))
    return start(task, place, output="turned_run", hparams=dataclasses.replace(LEARNING, epochs=3))


@pytest.mark.long
def test_best_epoch_is_kept_not_the_last(turned, place):
    data, results = place / "turned", turned
    measured = [epoch["val_accuracy"] for epoch in results["history"]]
    assert measured[-1] < measured[0]
    assert results["best_epoch"] == 1
    assert results["measures"]["val_accuracy"] == measured[0]
    assert evaluate(load_run(place / "turned_run", data=data), "validation")["accuracy"] == measured[0]


@pytest.mark.long
def test_ensemble_takes_the_mean_of_outputs(learned, turned, place, reloaded):
    task = Glue(ROWS["sst2"], place / "reviews")
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


def test_ensemble_of_unlike_runs(learned, place):
    file = shutil.copytree(place / "learned", place / "short") / "task.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seq_length": 32}))
    with pytest.raises(ValueError, match="short differs from .*learned in its task, labels or preprocessing"):
        load_runs([place / "learned", place / "short"])


@pytest.mark.long
def test_keep_head(learned, place):
    """Training starts from the head too; by default the head is random."""
    task = Glue(ROWS["sst2"], place / "reviews")
    was = weights_of(place / "learned")["classifier/dense/kernel"]
    kept, fresh = (
        heads_of(
            plan_finetuning(task, checkpoint=place / "learned", hparams=QUICK, keep_head=keep_head).model
        )["classifier"].weights[0]
        for keep_head in (True, False)
    )
    np.testing.assert_array_equal(kept, was)
    assert not np.allclose(fresh, was, atol=1e-2)
    with pytest.raises(ValueError, match="the checkpoint has no classifier; give"):
        start(task, place, output="no_head", keep_head=True)


def with_head(source, *, labels, head="classifier", rows=1):
    """The checkpoint with a head of random numbers."""
    kernel = np.random.default_rng(0).normal(size=(rows * source.config.hidden_size, labels))
    tensors = {
        f"{head}/dense/kernel": kernel.astype("float32"),
        f"{head}/dense/bias": kernel[0].astype("float32"),
    }
    return dataclasses.replace(source, tensors=source.tensors | tensors)


def kept_head(task, place, folder, id2label, *, labels=None):
    """The columns of the head's kernel that a model starts with, by their indices in a checkpoint with these labels."""
    head, rows = ("concat_classifier", 3) if getattr(task, "pooling", "") == "concat" else ("classifier", 1)
    source = checkpoints.read(place / "checkpoint")
    there = with_head(source, labels=labels or len(id2label), head=head, rows=rows)
    kernel = there.tensors[f"{head}/dense/kernel"]
    checkpoints.write(there, folder, format="hugging-face")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"id2label": id2label} if id2label else {})))
    model = _compiled_model(
        task, checkpoints.read(folder), QUICK, total_steps=1, keep_head=True, log=lambda line: None
    )
    started, bias = (variable.numpy() for variable in heads_of(model)[head].weights)
    places = [int(np.abs(kernel.T - column).sum(axis=1).argmin()) for column in started.T]
    np.testing.assert_array_equal(started, kernel[:, places])
    np.testing.assert_array_equal(bias, kernel[0, places])
    return places


TAGS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")


@pytest.mark.parametrize(
    ("task", "labels", "places"),
    [
        (Glue(ROWS["sst2"]), ["positive", "negative"], [1, 0]),
        (Glue(ROWS["sst2"]), ["NEGATIVE", "POSITIVE"], [0, 1]),
        (
            Glue(dataclasses.replace(ROWS["sst2"], labels=("LABEL_1", "LABEL_0"))),
            ["LABEL_0", "LABEL_1"],
            [1, 0],
        ),
        (Glue(ROWS["mnli"]), ["CONTRADICTION", "ENTAILMENT", "NEUTRAL"], [1, 2, 0]),
        (Glue(ROWS["mnli"], pooling="concat"), ["contradiction", "entailment", "neutral"], [1, 2, 0]),
        (Conll(TAGS, scheme="IOB2"), ["B-PER", "I-PER", "B-LOC", "I-LOC", "O"], [4, 2, 0, 3, 1]),
    ],
)
def test_a_kept_head_has_the_task_s_labels(task, labels, places, place, tmp_path):
    """Labels may have any order in Hugging Face's id2label."""
    id2label = {str(i): label for i, label in enumerate(labels)}
    assert kept_head(task, place, tmp_path / "there", id2label) == places
    again = dict(reversed(id2label.items()))
    assert kept_head(task, place, tmp_path / "reversed", again) == places


@pytest.mark.parametrize(
    ("id2label", "said"),
    [
        (
            {"0": "LABEL_0", "1": "LABEL_1"},
            "the checkpoint's labels are LABEL_0, LABEL_1 and the labels of sst2",
        ),
        (None, "the checkpoint's labels have no names; the labels of sst2 are negative, positive; "),
        (
            {"0": "negative"},
            "the checkpoint's labels are negative and the labels of sst2 are negative, positive; ",
        ),
    ],
)
def test_a_kept_head_without_names_is_refused(place, tmp_path, id2label, said):
    """Rows in an order that only their maker knows. Transformers writes no id2label for two labels without names."""
    with pytest.raises(
        BertKerasError, match=f"{said}.*name them in .*id2label as the task does, in the head's order"
    ):
        kept_head(Glue(ROWS["sst2"]), place, tmp_path / "there", id2label, labels=2)
    task = Glue(ROWS["sst2"])
    assert kept_head(task, place, tmp_path / "named", {"0": "positive", "1": "negative"}) == [1, 0]


def test_a_kept_head_of_googles_format_is_refused(place, tmp_path):
    """MNLI's labels stand in another order in google-research/bert, whose files have no place for them."""
    there = with_head(checkpoints.read(place / "checkpoint"), labels=3)
    there = dataclasses.replace(there, labels=("entailment", "neutral", "contradiction"))
    checkpoints.write(there, tmp_path / "google", format="google")
    with pytest.raises(BertKerasError, match="labels have no names; .*convert it to hugging-face"):
        _compiled_model(
            Glue(ROWS["mnli"]),
            checkpoints.read(tmp_path / "google"),
            QUICK,
            total_steps=1,
            keep_head=True,
            log=lambda line: None,
        )


def test_a_kept_head_of_other_labels(place, tmp_path):
    message = "the checkpoint's labels are bad, good and the labels of sst2 are negative, positive; leave keep_head out"
    with pytest.raises(ValueError, match=message):
        kept_head(Glue(ROWS["sst2"]), place, tmp_path / "there", {"0": "bad", "1": "good"})
    checkpoints.write(checkpoints.read(tmp_path / "there"), tmp_path / "copied", format="hugging-face")
    assert checkpoints.read(tmp_path / "copied").labels == ("bad", "good")


def start_with_seed(place, output, seed):
    """Random weights, dropout, some of the examples: everything that a seed decides. Returns the log lines."""
    source, lines = checkpoints.read(place / "with_dropout"), []
    hparams = dataclasses.replace(QUICK, seed=seed, max_examples=24)
    checkpoint = dataclasses.replace(source, tensors={})
    task = Glue(ROWS["sst2"], place / "reviews")
    start(task, place, output=output, hparams=hparams, checkpoint=checkpoint, log=lines.append)
    return lines


def run_python(*arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_seed_decides_every_weight(place):
    """Bit for bit, in a fresh process too."""
    runs.write_checkpoint(place / "with_dropout", num_layers=1)
    lines = start_with_seed(place, "seed_1", 1)
    assert lines[0] == "weights: random, no checkpoint was given"
    start_with_seed(place, "seed_2", 2)
    again = (
        "import pathlib, sys, test_train; test_train.start_with_seed(pathlib.Path(sys.argv[1]), 'again', 1)"
    )
    run_python("-c", again, str(place))
    assert_same_weights(weights_of(place / "again"), weights_of(place / "seed_1"))
    one, two = weights_of(place / "seed_1"), weights_of(place / "seed_2")
    assert not np.array_equal(one["pooler/kernel"], two["pooler/kernel"])


def test_frozen_encoder_and_max_examples(place):
    hparams = dataclasses.replace(QUICK, freeze="encoder", max_examples=20)
    results = start(Glue(ROWS["sst2"], place / "reviews"), place, output="frozen", hparams=hparams)
    assert (results["train_examples"], results["steps"]) == (20, 3)
    after = weights_of(place / "frozen")
    head = {name: after.pop(name) for name in list(after) if name.startswith("classifier/")}
    assert_same_weights(after, weights_of(place / "checkpoint"))
    assert np.abs(head["classifier/dense/bias"]).max() > 0  # it starts at 0


LORA = dataclasses.replace(QUICK, lora_rank=2, max_examples=24, epochs=2)


@pytest.mark.long
def test_lora_trains_its_matrices_and_the_head_and_is_merged(place):
    start(Glue(ROWS["sst2"], place / "reviews"), place, output="lora", hparams=LORA)
    after, before = weights_of(place / "lora"), weights_of(place / "checkpoint")
    changed = {name for name, array in before.items() if not np.array_equal(array, after[name])}
    assert changed == {f"block_0/attention/{part}/kernel" for part in ("query", "value")}
    for name in changed:
        assert np.linalg.matrix_rank(after[name] - before[name], tol=1e-5) <= 2
    assert set(after) - set(before) == {"classifier/dense/kernel", "classifier/dense/bias"}
    run = load_run(place / "lora", data=place / "reviews")
    assert not any("lora" in one.path for one in run.model.weights)


@pytest.mark.long
def test_a_lora_run_is_resumed_to_the_same_bits(place, monkeypatch):
    task = Glue(ROWS["sst2"], place / "reviews")
    start(task, place, output="lora_whole", hparams=LORA)

    class Killed(Exception):
        pass

    def kill(saver, batch, logs=None, *, go_on=Saver.on_train_batch_end):
        go_on(saver, batch, logs)
        if saver.step == 5:
            raise Killed

    monkeypatch.setattr(Saver, "on_train_batch_end", kill)
    with pytest.raises(Killed):
        start(task, place, output="lora_killed", hparams=LORA, save_every=2)
    monkeypatch.undo()
    lines = []
    start(task, place, output="lora_killed", hparams=LORA, save_every=2, log=lines.append)
    assert any("at step 4 of 6" in line for line in lines)
    assert_same_weights(weights_of(place / "lora_killed"), weights_of(place / "lora_whole"))


def moved(folder, before):
    """The parts of an encoder that a run changed: embeddings, block_0, ..., pooler."""
    after = checkpoints.read(folder).tensors
    parts = {name.split("/")[0] for name, array in before.items() if not np.array_equal(array, after[name])}
    for part in parts:  # all of it, or nothing
        names = [name for name in before if name.startswith(f"{part}/")]
        assert all(not np.array_equal(before[name], after[name]) for name in names), part
    return parts


@pytest.mark.long
def test_gradual_unfreezing(place):
    """Epoch 1: heads, pooler, top block; 2: the next block; 3: the embeddings too. One trace."""
    runs.write_checkpoint(place / "two_blocks", num_layers=2, **NO_DROPOUT)
    before, stages = weights_of(place / "two_blocks"), []

    class Watching(Counting):
        def evaluate(self, predictions, raw):
            stages.append(
                moved(place / "gradual", before) if (place / "gradual/config.json").exists() else None
            )
            yield "accuracy", float(len(stages))  # each epoch is the best, and kept

    task = Watching(place / "reviews")
    hparams = dataclasses.replace(QUICK, epochs=3, unfreeze="gradual", max_examples=24)
    start(task, place, output="gradual", hparams=hparams, checkpoint=place / "two_blocks")
    stages = [*stages[1:], moved(place / "gradual", before)]
    assert stages == [
        {"pooler", "block_1"},
        {"pooler", "block_1", "block_0"},
        {"pooler", "block_1", "block_0", "embeddings"},
    ]
    assert task.losses == 1


def test_ulmfit_settings_reach_the_optimizer(place):
    hparams = dataclasses.replace(
        QUICK, layer_decay=0.5, schedule="slanted_triangular", bias_correction=True, warmup_proportion=0.25
    )
    source = checkpoints.read(place / "checkpoint")
    model = _compiled_model(
        Glue(ROWS["sst2"]), source, hparams, total_steps=40, keep_head=False, log=lambda line: None
    )
    optimizer = model.optimizer
    assert (optimizer.layer_decay, optimizer.bias_correction, optimizer.gradual) == (0.5, True, False)
    factors = {
        v.path.split("/")[-1 if "emb" in v.path else 0]: optimizer.rate_factor(v)
        for v in model.trainable_variables
    }
    assert factors["classifier"] == 1.0 and factors["word_embeddings"] == 0.25
    schedule = optimizer._learning_rate
    assert [float(schedule(step)) for step in (0, 10, 40)] == pytest.approx([1e-3 / 32, 1e-3, 1e-3 / 32])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layer_decay": 0.0}, "layer_decay is 0.0; layer_decay must be over 0, at most 1"),
        ({"layer_decay": 2.6}, "layer_decay is 2.6"),
        ({"schedule": "cosine"}, "schedule must be one of linear, slanted_triangular"),
        ({"unfreeze": "all"}, "unfreeze is 'all'; unfreeze must be 'gradual'"),
        ({"unfreeze": "gradual", "freeze": "encoder"}, "must be None if freeze is set"),
        ({"lora_rank": 0}, "lora_rank is 0"),
        ({"lora_rank": 4, "freeze": "encoder"}, "must be None if freeze is set"),
    ],
)
def test_invalid_ulmfit_settings(changes, match):
    with pytest.raises(ValueError, match=match):
        Hparams(**changes)


@pytest.mark.long
def test_concat_pooling_is_kept_and_reloaded(place):
    """Its own head below its own name, the pooler untouched, the same answers from disk."""
    task = Glue.open("sst2", place / "reviews", pooling="concat")
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
        Glue.open("sst2", None, pooling="max")


@pytest.mark.long
def test_scores_of_pairs(place):
    """STS-B: two segments, a number to learn."""
    task = Glue(ROWS["stsb"], runs.write_data(place / "stsb", "stsb"))
    results = start(task, place, output="stsb_run", hparams=dataclasses.replace(QUICK, epochs=2))
    assert set(results["measures"]) == {"val_spearman", "val_pearson"}
    assert results["history"][-1]["loss"] < results["history"][0]["loss"]
    run = load_run(place / "stsb_run", data=place / "stsb")
    assert evaluate(run, "validation")["pearson"] == pytest.approx(
        results["measures"]["val_pearson"], abs=1e-6
    )


def test_checkpoint_without_pooler(place):
    """It is planned, and a line says what starts at random."""
    source = checkpoints.read(place / "checkpoint")
    tensors = {name: array for name, array in source.tensors.items() if not name.startswith("pooler/")}
    plan = plan_finetuning(
        Glue(ROWS["sst2"], place / "reviews"),
        checkpoint=dataclasses.replace(source, tensors=tensors),
        hparams=QUICK,
    )
    assert "\nrandomly initialized: pooler/kernel, pooler/bias, classifier" in plan.lines[0]


@pytest.mark.long
def test_loss_that_is_nan(place):
    """An error, and no such weights on disk."""
    hparams = dataclasses.replace(QUICK, learning_rate=1e30, warmup_proportion=0.0)
    with pytest.raises(ValueError, match=r"the loss is nan at step \d; give a lower learning_rate"):
        start(Glue(ROWS["sst2"], place / "reviews"), place, output="nan", hparams=hparams)
    assert not (place / "nan" / "model.safetensors").exists()


@pytest.fixture(scope="module")
def plan(place):
    return plan_finetuning(
        Glue(ROWS["sst2"], place / "reviews"), checkpoint=place / "checkpoint", hparams=QUICK
    )


def test_planning_trains_nothing(place, request):
    """The plan's model has the checkpoint's weights, and no file is written."""
    before = runs.contents(place)
    plan = request.getfixturevalue("plan")
    assert (plan.steps, plan.identity["train_examples"][0]) == (12, 96)
    encoder = checkpoints.collect(encoder_of(plan.model).config, encoder_of(plan.model)).tensors
    given = checkpoints.read(place / "checkpoint").tensors
    assert_same_weights({name: encoder[name] for name in given}, given)
    assert runs.contents(place) == before


def test_planning_says_how_many_texts_are_cut(place, plan):
    short = plan_finetuning(
        Glue(ROWS["sst2"], place / "reviews"),
        checkpoint=place / "checkpoint",
        hparams=dataclasses.replace(QUICK, seq_length=5),
    )
    source = checkpoints.tokenizer_of(checkpoints.read(place / "checkpoint"))
    rows = [line.split("\t")[0] for line in (place / "reviews/train.tsv").read_text().splitlines()[1:]]
    lengths = source.tokenize(rows).row_lengths().numpy() + 2
    (line,) = (line for line in short.lines if "are cut" in line)
    cut, longest = (lengths > 5).sum(), lengths.max()
    assert line.startswith(f"{cut} of the first 96 examples are longer than 5 tokens (up to {longest})")
    assert "seq_length, or doc_stride" in line and not [line for line in plan.lines if "are cut" in line]


# Refused before any training


def refused(place, tmp_path, error, match, *, task=None, **settings):
    """finetune raises and leaves no run."""
    task = task or Glue(ROWS["sst2"], place / "reviews")
    settings = {"output": tmp_path / "run"} | settings
    with pytest.raises(error, match=match):
        start(task, place, **settings)
    assert not (Path(place / settings["output"]) / "results.json").exists()


def test_refuses_a_folder_that_holds_a_run(learned, place):
    before = runs.contents(place / "learned")
    with pytest.raises(
        ValueError, match="learned already holds a run; give another folder, or remove this one first"
    ):
        start(Glue(ROWS["sst2"], place / "reviews"), place, output="learned")
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
    checkpoint = dataclasses.replace(source, vocabulary=(*source.vocabulary, "one", "more"))
    match = f"the vocabulary has {len(runs.VOCABULARY) + 2} tokens and the encoder {len(runs.VOCABULARY)} embedding rows"
    refused(place, tmp_path, ValueError, match, checkpoint=checkpoint)


def test_refuses_a_length_over_the_positions(place, tmp_path):
    hparams = dataclasses.replace(QUICK, seq_length=49)
    refused(place, tmp_path, ValueError, "seq_length is 49 and the encoder has 48 positions", hparams=hparams)


def test_refuses_no_examples(place, tmp_path):
    data = write_reviews(tmp_path / "data", dev=0)
    refused(place, tmp_path, ValueError, "dev.tsv has no examples", task=Glue(ROWS["sst2"], data))


@pytest.mark.long
def test_refuses_a_split_without_labels(place, tmp_path):
    data = write_reviews(tmp_path / "data")
    (data / "test.tsv").write_text("index\tsentence\n0\tgood film\n")
    task = Glue(ROWS["sst2"], data)
    match = "no example in the test split of sst2 has a label; give a labelled split"
    refused(place, tmp_path, ValueError, match, task=task, dev_split="test")

    class Withheld(Glue):
        def examples(self, split):
            return super().examples("test" if split == "train" else split)

    match = "no example in the train split of sst2 has a label; give a labelled split"
    refused(place, tmp_path, ValueError, match, task=Withheld(ROWS["sst2"], data))


def test_the_first_validation_split_is_the_dev_split(place, tmp_path):
    task = Glue(ROWS["mnli"], runs.write_data(tmp_path / "data", "mnli"))
    plan = plan_finetuning(task, checkpoint=place / "checkpoint", hparams=QUICK)
    matched, mismatched = (
        digest_of_examples(task.examples(f"validation_{name}")) for name in ("matched", "mismatched")
    )
    assert plan.identity["dev_examples"] == [48, matched] and matched != mismatched


def test_refuses_a_negative_save_every(place, tmp_path):
    refused(place, tmp_path, ValueError, "save_every is -1; give a number of steps, or 0", save_every=-1)
    assert not (tmp_path / "run").exists()


def test_refuses_an_unknown_strategy(place, tmp_path):
    match = "strategy is 'two'; give one of one, mirrored, tpu"
    refused(place, tmp_path, ValueError, match, strategy_name="two")


def test_mirrored_on_one_cpu():
    distribution = strategy("mirrored")
    assert isinstance(distribution, tf.distribute.MirroredStrategy)
    assert distribution.num_replicas_in_sync == 1


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


@pytest.mark.parametrize("content", ['{"kind": "other"}', "[]", "{", '{"kind": "glue", "task": {}}'])
def test_task_file_of_another_program(learned, place, tmp_path, content):
    (tmp_path / "task.json").write_text(content)
    with pytest.raises(ValueError, match=r"task\.json (is not|holds)"):
        load_run(tmp_path)


def test_folder_without_a_run(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="no task.json in .*; give the folder that `bert-keras finetune"
    ):
        load_run(tmp_path)


# Replicas


@pytest.fixture(scope="module")
def two_replicas():
    done = forked.run(TESTS / "distributed_two_replicas.py")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "steps"), [("short_batches", 12), ("padded", 6)])
def test_two_replicas_do_what_one_device_does(two_replicas, scenario, steps):
    """Weights that differ a thousandfold between the replicas, clipping at every step.

    Where `pad_batches` adds rows, to a first batch that two replicas do not divide, the weighted mean is the measure.
    """
    got = two_replicas[scenario]
    assert got["steps"] == steps
    assert got["least_norm"] > 2 * got["clip"]
    assert got["difference"] <= 1e-5
    assert got["means_of_two"] == pytest.approx(got["means"], rel=1e-6)
    assert got["losses"][0] != got["losses"][1]
    if scenario != "padded":
        assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)


@pytest.mark.long
def test_batches_that_replicas_do_not_divide(two_replicas):
    """Rows of weight 0 fill windows up; weights and the logged loss stay those of one device."""
    got = two_replicas["odd_batches"]
    assert (got["rows"], got["rows_of_two"]) == ([9, 9, 3], [10, 10, 4])
    assert got["difference"] <= 1e-6
    assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)


@pytest.mark.long
def test_gradual_unfreezing_on_two_replicas(two_replicas):
    """With a rate for each layer: the same weights as on one device, and the embeddings wait for epoch 2."""
    got = two_replicas["gradual"]
    assert got["difference"] <= 1e-5
    assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)
    first, last = got["embeddings_moved"]
    assert first == 0 < last


@pytest.mark.long
def test_choices_on_two_replicas(two_replicas):
    results = two_replicas["choices"]
    assert (results["strategy"], results["train_examples"], results["steps"]) == ("mirrored", 33, 5)
    assert np.isfinite(results["history"][0]["loss"])
    assert results["reloaded"] == {"accuracy": results["measures"]["val_accuracy"]}


@pytest.mark.long
def test_vectors_on_two_replicas(two_replicas):
    """A feature-based training of choices, in batches of nine: the weights of one device."""
    got = two_replicas["vectors"]
    assert got["steps"] == [4, 4]
    assert got["difference"] <= 1e-6
    assert got["losses"][0] == pytest.approx(got["losses"][1], rel=1e-6)


@pytest.mark.long
def test_finetune_on_two_replicas(two_replicas):
    """A run directory as from one device, in batches of nine."""
    results = two_replicas["finetune"]
    assert (results["strategy"], results["train_examples"], results["steps"]) == ("mirrored", 33, 4)
    assert np.isfinite(results["history"][0]["loss"])
    assert results["reloaded"] == {"accuracy": results["measures"]["val_accuracy"]}
