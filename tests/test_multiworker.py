"""Training on several processes: workers on loopback with a real TF_CONFIG."""

import hashlib
import json
import os
import random
import re
import socket
import subprocess
from pathlib import Path

import jobs
import keras
import numpy as np
import pytest
import runs
import safetensors.numpy
import small_tasks
import tensorflow as tf
from test_accumulation import KINDS, differences, made_by

import bert_keras as bk
from bert_keras.errors import BertKerasError
from bert_keras.optimization.training_model import TrainingModel
from bert_keras.tasks.devices.cluster import check_cluster
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.strings import text_batches
from bert_keras.tasks.study.ablations import run_ablation
from bert_keras.tasks.study.rows import ABLATIONS, SCALES, Row, Scale
from bert_keras.text.wordpiece import WordPiece


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Without dropout, whose draws differ between replicas."""
    made = tmp_path_factory.mktemp("cluster")
    runs.write_checkpoint(made / "checkpoint", hidden_dropout=0.0, attention_dropout=0.0)
    runs.write_data(made / "data", "sst2")
    return made


def finetune(folder: Path, output: Path, strategy: str) -> list[str]:
    """A training in batches of nine: twelve steps."""
    flags = ["--task", "sst2", "--data", folder / "data", "--checkpoint", folder / "checkpoint"]
    flags += ["--epochs", "2", "--batch-size", "9", "--micro-batch", "2", "--seq-length", "40"]
    flags += ["--learning-rate", "1e-3", "--strategy", strategy, "--output", output]
    return ["finetune", *map(str, flags)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replicas", [1, 2], ids=["two processes", "two processes of two replicas"])
def test_fifty_steps_are_those_of_one_device(kind, replicas, tmp_path):
    whole = made_by("one", tmp_path / "one.npz", f"{kind}:0")
    both = (f"{kind}:0", f"{kind}:2")
    found = made_by("multiworker", tmp_path / "two.npz", *both, replicas=replicas, workers=2)
    for job in both:
        worst = differences(found, job, whole, kind)
        assert max(worst.values()) < 1e-5, (job, max(worst, key=worst.get), max(worst.values()))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_workers_train_the_run_of_one_device(folder, tmp_path):
    """Each worker tokenizes its own rows of nine; the chief publishes."""
    outputs = {"multiworker": tmp_path / "two", "one": tmp_path / "one"}
    chief, other = jobs.run(["-m", "bert_keras", *finetune(folder, outputs["multiworker"], "multiworker")])
    results = runs.results(outputs["multiworker"])
    assert results["steps"] == 12 and results["strategy"] == "multiworker"
    assert (outputs["multiworker"] / "README.md").is_file()
    assert "epoch 2/2" in chief.stdout and other.stdout == ""
    jobs.run(["-m", "bert_keras", *finetune(folder, outputs["one"], "one")], workers=1)
    two, one = (safetensors.numpy.load_file(path / "model.safetensors") for path in outputs.values())
    assert {*two} == {*one}
    # Adam scales up the rounding in the gradient of a key's bias, which is 0.
    compared = [name for name in one if not name.endswith("key.bias")]
    assert max(np.abs(two[name] - one[name]).max() for name in compared) < 1e-5


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_worker_that_is_lost_after_the_results_ends_no_other(folder, tmp_path):
    """An operator would start all of them again, and the finished run would be refused each time."""
    arguments, kill = (
        finetune(folder, tmp_path / "run", "multiworker"),
        {1: tmp_path / "run" / "results.json"},
    )
    chief, lost, other = jobs.command(arguments, workers=3, kill=kill, seconds=300)
    assert lost.returncode == -9
    assert (chief.returncode, other.returncode) == (0, 0), (chief.stderr, other.stderr)


def train_on_strings(checkpoint: str) -> dict:
    """The Python of docs/scale.md in a worker: results, a digest of the weights, and numbers of texts tokenized together."""
    keras.utils.set_random_seed(1)
    random.seed(os.getpid())  # decides the order of the texts: another number in each worker
    seeds, draw_seed = [], text_batches.draw_seed

    def noted(distribution):
        seeds.append(draw_seed(distribution))
        return seeds[-1]

    text_batches.draw_seed = noted
    tokenized, features_of = [], TextClassification.features

    def counted(self, preprocess, raw):
        tf.py_function(lambda texts: tokenized.append(len(texts)), [next(iter(raw.values()))], [])
        return features_of(self, preprocess, raw)

    TextClassification.features = counted
    texts, labels = runs.texts(23, seed=1), ["bad", "good"] * 11 + ["bad"]
    with strategy("multiworker").scope():
        model = bk.classifier(checkpoint, labels=["bad", "good"])
    # Outside the scope, as in docs/scale.md.
    model.compile(learning_rate=1e-3, micro_batch=3)
    validation = texts[:7], labels[:7]
    history = model.fit(texts, labels, batch_size=9, epochs=2, verbose=0, validation_data=validation).history
    weights = b"".join(one.numpy().tobytes() for one in model.trainable_weights)
    return {
        "tokenized": sorted(tokenized),
        "seeds": seeds,
        "fit": history,
        "evaluate": model.evaluate(texts, labels, verbose=0, return_dict=True),
        "predict": model.predict(texts)["label"].tolist(),
        "weights": hashlib.sha256(weights).hexdigest(),
    }


def double_numbers(folder: str) -> list[float]:
    """By default, TensorFlow would give each worker one of the files."""
    with strategy("multiworker").scope():
        number = keras.Input((1,))
        doubled = TrainingModel(number, keras.layers.Rescaling(2.0)(number))
    files = [str(Path(folder) / name) for name in ("first", "second")]
    numbers = tf.data.TextLineDataset(files).map(tf.strings.to_number).map(lambda x: x[None])
    return doubled.predict(numbers.batch(3), verbose=0).ravel().tolist()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_of_strings_trains_in_all_workers(folder):
    """Each worker tokenizes its half of batches of nine, filled up to ten."""
    arguments = {"checkpoint": folder / "checkpoint"}
    made = jobs.check(jobs.call("test_multiworker:train_on_strings", arguments, workers=2))
    first, second = (one.value for one in made)
    assert first == second and len(first["seeds"]) == 1, "the orders of the texts too"
    validation = 7
    assert [rows for rows in first["tokenized"] if rows != validation] == [3, 3, 5, 5, 5, 5]
    assert {*first["fit"]} == {"loss", "accuracy", "val_loss", "val_accuracy"} and len(first["predict"]) == 23


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_predictions_of_a_data_set_come_in_its_order(tmp_path):
    for name, numbers in (("first", "0 1 2 3"), ("second", "4 5 6")):
        (tmp_path / name).write_text("\n".join(numbers.split()))
    made = jobs.check(jobs.call("test_multiworker:double_numbers", {"folder": tmp_path}, workers=2))
    assert [one.value for one in made] == [[0, 2, 4, 6, 8, 10, 12]] * 2


def ablate(folder: str, output: str) -> dict:
    """One pre-training, fine-tuned and as features, in a worker."""
    sizes = {"hidden_size": 32, "num_layers": 4, "num_heads": 2, "intermediate_size": 64, "max_positions": 48}
    steps = {"batch_size": 8, "steps": 4, "phases": ((32, 1.0),), "learning_rate": 1e-3, "strict": True}
    SCALES["tiny"] = Scale(
        pretraining=sizes | steps | {"log_every": 1, "eval_every": 4, "held_out_instances": 20},
        finetuning={"seq_length": 32, "epochs": 1, "batch_size": 8},
        features={"lstm_units": 8, "epochs": 1},
        options={"conll2003": {"context": "sentence"}},
        restarts=1,
        rows={"steps": (Row(name="masked LM"),)},
        tasks={"steps": ("sst2", "conll2003-features")},
    )
    ABLATIONS["steps"] = ABLATIONS["steps"]._replace(pairs=())
    draw = random.Random(1)
    return run_ablation(
        "steps",
        documents=[runs.texts(draw.randint(3, 12), seed=seed) for seed in range(40)],
        tokenizer=WordPiece(runs.VOCABULARY),
        data={"sst2": Path(folder) / "data", "conll2003": Path(folder) / "entities"},
        output=Path(output),
        scale="tiny",
        strategy_name="multiworker",
        verbose=0,
    ).values


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_ablation_trains_on_frozen_features(folder, tmp_path):
    """The chief computes the vectors, which all workers read."""
    small_tasks.write_entities(folder / "entities", count=30)
    arguments = {"folder": folder, "output": tmp_path / "ablation"}
    chief, other = jobs.check(jobs.call("test_multiworker:ablate", arguments, workers=2))
    assert "conll2003-features" in chief.stdout
    assert all(line.startswith("warning: ") for line in other.stdout.splitlines())
    assert chief.value == other.value
    assert (tmp_path / "ablation" / "results.png").is_file()


# -----------------------------------------------------------------------------------------------------------
# What is wrong with a cluster

WORKER = {"type": "worker", "index": 0}
TWO = {"worker": ["a:1", "b:1"]}
WRONG_CLUSTERS = [
    ({}, WORKER, "this is worker 0, and lists no workers"),
    ({"worker": ["a:1"]}, WORKER | {"index": 1}, "this is worker 1, and lists worker 0"),
    (TWO, WORKER | {"index": -1}, "this is worker -1"),
    (TWO, WORKER | {"index": 1.9}, "this is worker 1.9"),
    (TWO, WORKER | {"index": True}, "this is worker True"),
    (TWO, WORKER | {"index": "one"}, "this is worker 'one'"),
    (TWO, WORKER | {"index": None}, "this is worker None"),
    (TWO, {"type": "chief", "index": 0}, "this is chief 0, and lists worker 0, worker 1"),
    (TWO | {"ps": ["b:1"]}, WORKER, "lists ps"),
    ({"worker": "a:1"}, WORKER, "worker is 'a:1'; give a list"),
    *(({"worker": ["a:1", one]}, WORKER, f"the address {one!r}; give a worker as host:port, without http")
      for one in ("b", "http://b:1", "b:1/", "b:99999", "b:0", ":1", " b:1", "b:", "u@b:1", 7, None)),
    ({"worker": ["a:1", "b:1", "a:1"]}, WORKER, "lists a:1 twice"),
    ({"chief": ["a:1"], "worker": ["a:1"]}, WORKER, "lists a:1 twice"),
    ({"chief": ["a:1", "b:1"]}, {"type": "chief", "index": 0}, "lists 2 chiefs; give one"),
    ([], WORKER, "no cluster and task in JSON"),
    (TWO, 3, "no cluster and task in JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("workers", "task", "named"), WRONG_CLUSTERS)
def test_a_wrong_cluster_is_refused(workers, task, named):
    """TensorFlow would wait for a worker that cannot come."""
    with pytest.raises(BertKerasError, match=re.escape(named)):
        check_cluster(json.dumps({"cluster": workers, "task": task}))


def test_a_right_cluster_lists_the_others():
    both = {"cluster": {"chief": ["[::1]:2222"], "worker": ["host-1.example:65535", "10.0.0.2:1"]}}
    assert check_cluster(json.dumps(both | {"task": WORKER | {"index": "1"}})) == [
        "[::1]:2222",
        "host-1.example:65535",
    ]


@pytest.mark.parametrize(("given", "named"), [(None, "not set"), ("{", "no cluster and task in JSON")])
def test_a_wrong_variable_is_refused(given, named):
    with pytest.raises(BertKerasError, match=named):
        check_cluster(given)


def refused(arguments: list[str], **environment: str) -> str:
    """The error output of a command that fails in its own process."""
    ours = {name: value for name, value in runs.bare_environment().items() if name != "TPU_NAME"}
    done = subprocess.run(
        runs.shell_command(*arguments), cwd=runs.ROOT, env=ours | environment, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.long
def test_a_port_in_use_ends_with_one_line(folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = [f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:1"]
        command = finetune(folder, tmp_path / "run", "multiworker")
        error = refused(command, **jobs.cluster(addresses, index=0))
    assert "cannot join the cluster" in error and "free port" in error and "Traceback" not in error, error


@pytest.mark.long
@pytest.mark.parametrize(("name", "named"), [("multiworker", "TF_CONFIG"), ("tpu", "TPU")])
def test_a_command_without_its_cluster_ends_with_one_line(name, named, folder, tmp_path):
    error = refused(finetune(folder, tmp_path / "run", name))
    assert named in error and error.count("\n") == 1, error
    assert not (tmp_path / "run").exists()
