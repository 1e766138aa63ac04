"""Training on several processes: two workers on loopback with a real TF_CONFIG."""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import clusters
import killed_runs
import numpy as np
import pretrainings
import pytest
import runs
import safetensors.numpy
from last_saves import differences
from test_accumulation import KINDS, made_by
from test_accumulation import differences as of_steps

from bert_keras.errors import BertKerasError
from bert_keras.tasks.devices.cluster import check_cluster

STEPS, RUN = (Path(__file__).with_name(name) for name in ("distributed_steps.py", "cluster_runs.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("cluster")
    runs.write_checkpoint(made / "checkpoint")
    runs.write_data(made / "data", "sst2")
    return made


def run(folder: Path, *jobs: str, kill: str = "") -> list:
    """The ended workers of jobs; `kill`: the numbers of those that kill themselves."""
    command = [RUN, "multiworker", folder, *jobs]
    with clusters.started(command, WORKERS_TO_KILL=kill) as processes:
        return clusters.ended(processes)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cpus", [1, 2], ids=["two processes", "two processes of two replicas"])
def test_fifty_steps_are_those_of_one_device(kind, cpus, tmp_path):
    whole = made_by("one", tmp_path / "one.npz", f"{kind}:0")
    jobs = (f"{kind}:0", f"{kind}:2")
    clusters.run([STEPS, "multiworker", tmp_path / "two.npz", *jobs], CPUS=str(cpus))
    found = dict(np.load(tmp_path / "two.npz"))
    for job in jobs:
        worst = of_steps(found, job, whole, kind)
        assert max(worst.values()) < 1e-5, (job, max(worst, key=worst.get), max(worst.values()))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_workers_train_the_run_of_one_device(tmp_path):
    """Each worker tokenizes its own rows of nine; the chief publishes."""
    runs.write_checkpoint(tmp_path / "checkpoint", hidden_dropout=0.0, attention_dropout=0.0)
    runs.write_data(tmp_path / "data", "sst2")
    chief, other = run(tmp_path, "finetune:published")
    assert (chief.returncode, other.returncode) == (0, 0), (chief.stderr, other.stderr)
    made = tmp_path / "published"
    results = json.loads((made / "results.json").read_text())
    assert results["steps"] == 12 and results["strategy"] == "multiworker"
    assert (made / "README.md").is_file()
    assert "epoch 2/2" in chief.stdout and "epoch" not in other.stdout
    assert json.loads(chief.stdout.splitlines()[-1]) == json.loads(other.stdout.splitlines()[-1])
    alone = [sys.executable, RUN, "one", tmp_path, "finetune:alone"]
    path = {"PYTHONPATH": os.pathsep.join([str(runs.ROOT), str(runs.ROOT / "tests")])}
    subprocess.run(alone, env=runs.bare_environment() | path, check=True, capture_output=True)
    two, one = (
        safetensors.numpy.load_file(tmp_path / name / "model.safetensors") for name in ("published", "alone")
    )
    assert {*two} == {*one}
    # Adam scales up the rounding in the gradient of a key's bias, which is 0.
    compared = [name for name in one if not name.endswith("key.bias")]
    assert max(np.abs(two[name] - one[name]).max() for name in compared) < 1e-5


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_worker_that_is_lost_after_the_results_ends_no_other(folder):
    """An operator would start all of them again, and the finished run would be refused each time."""
    command = [RUN, "multiworker", folder, "finetune:complete:results"]
    with clusters.started(command, workers=3, WORKERS_TO_KILL="1") as processes:
        chief, lost, other = clusters.ended(processes, seconds=300)
    assert lost.returncode == -9
    assert (chief.returncode, other.returncode) == (0, 0), (chief.stderr, other.stderr)
    assert json.loads(chief.stdout.splitlines()[-1]) == json.loads(other.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_of_strings_trains_in_all_workers(folder):
    """The Python of docs/scale.md. Each worker tokenizes its half of batches of nine, filled up to ten."""
    script = Path(__file__).with_name("cluster_text_model.py")
    first, second = (json.loads(one.stdout) for one in clusters.run([script, folder / "checkpoint"]))
    assert first == second, "the orders of the texts too"
    validation = 7
    assert [rows for rows in first["tokenized"] if rows != validation] == [3, 3, 5, 5, 5, 5]
    assert {*first["fit"]} == {"loss", "accuracy", "val_loss", "val_accuracy"} and len(first["predict"]) == 23
    assert first["doubled"] == [0, 2, 4, 6, 8, 10, 12], "in the order of the data"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_ablation_trains_on_frozen_features(folder):
    """The chief computes the vectors, which all workers read."""
    (folder / "entities").mkdir()
    for seed, stem in enumerate(("train", "valid")):
        sentences = [
            "\n".join(f"{word} NN {'I-PER' if word == 'actor' else 'O'}" for word in text.split())
            for text in runs.texts(30, seed=seed)
        ]
        (folder / "entities" / f"{stem}.txt").write_text("\n\n".join(["-DOCSTART- -X- O", *sentences, ""]))
    chief, other = run(folder, "ablate:ablation")
    assert (chief.returncode, other.returncode) == (0, 0), (chief.stderr, other.stderr)
    *lines, results = other.stdout.splitlines()
    assert "conll2003-features" in chief.stdout and all(line.startswith("warning: ") for line in lines)
    assert chief.stdout.splitlines()[-1] == results
    assert (folder / "ablation" / "results.png").is_file()


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["finetune", "pretrain", "records"])
def test_runs_whose_workers_are_killed_end_with_the_same_bits(kind, folder):
    if kind == "records":
        for length, _ in killed_runs.SETTINGS["phases"]:
            settings = {"seq_length": length, "strict": True}
            pretrainings.write(folder / f"records-{length}", settings=settings)
    unbroken, broken = f"{kind}-unbroken", f"{kind}-broken"
    for one in run(folder, f"{kind}:{unbroken}"):
        assert one.returncode == 0, one.stderr
    steps = sorted(random.sample(range(3, 12), 3))
    for step, kill in zip(steps, ("1", "0", "0,1"), strict=True):
        ended = run(folder, f"{kind}:{broken}:{step}", kill=kill)
        for i, one in enumerate(ended):
            if str(i) in kill.split(","):
                assert one.returncode == -9
            else:
                lines = [line for line in one.stderr.splitlines() if line.startswith("bert-keras: error: ")]
                assert one.returncode == 1 and len(lines) == 1 and "worker" in lines[0], one.stderr
    for one in run(folder, f"{kind}:{broken}"):
        assert one.returncode == 0, one.stderr
    found = differences(folder / broken, folder / unbroken)
    assert found["steps"] == [12, 12] and found["variables"] > 60
    assert not found["differing"], (steps, found["differing"])
    weights = [(folder / name / "model.safetensors").read_bytes() for name in (broken, unbroken)]
    assert weights[0] == weights[1]


WORKER = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, "not set"),
        ("{", "names no task"),
        (json.dumps({"cluster": {}, "task": WORKER}), "names no task"),
        (
            json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}),
            "names no task",
        ),
        (json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": WORKER}), "ps"),
        (
            json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": WORKER | {"index": -1}}),
            "names no task",
        ),
        (json.dumps({"cluster": {"worker": ["a:1", "b"]}, "task": WORKER}), "a worker without host and port"),
    ],
    ids=[
        "none",
        "no JSON",
        "no workers",
        "no such worker",
        "a parameter server",
        "a negative index",
        "no port",
    ],
)
def test_a_wrong_cluster_is_refused(given, named):
    with pytest.raises(BertKerasError, match=named):
        check_cluster(given)


@pytest.mark.long
def test_a_port_in_use_ends_with_one_line(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = {"cluster": {"worker": [address, "127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
        flags = ["--task", "sst2", "--data", folder / "data", "--checkpoint", folder / "checkpoint"]
        done = subprocess.run(
            runs.shell_command("finetune", *flags, "--output", folder / "taken", "--strategy", "multiworker"),
            cwd=runs.ROOT,
            env=runs.bare_environment() | {"TF_CONFIG": json.dumps(cluster)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1 and "cannot join the cluster" in done.stderr, done.stderr
    assert "free port" in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(("name", "named"), [("multiworker", "TF_CONFIG"), ("tpu", "TPU")])
def test_a_command_without_its_cluster_ends_with_one_line(name, named, folder):
    flags = ["--task", "sst2", "--data", folder / "data", "--checkpoint", folder / "checkpoint"]
    flags += ["--output", folder / f"refused-{name}", "--strategy", name]
    environment = {
        key: value for key, value in runs.bare_environment().items() if key not in ("TF_CONFIG", "TPU_NAME")
    }
    done = subprocess.run(
        runs.shell_command("finetune", *flags), cwd=runs.ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and named in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not os.path.exists(folder / f"refused-{name}")
