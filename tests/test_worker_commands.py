"""Commands on two workers: signals, grids of runs and their tables."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import clusters
import pytest
import runs

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SECONDS = 300  # until a run has begun
SEEDS = (12345, 12346)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("commands")
    runs.write_checkpoint(made / "checkpoint")
    runs.write_data(made / "glue" / "SST-2", "sst2")
    return made


def command(name: str, folder: Path, output: Path, *flags: str) -> list[str]:
    given = ["--checkpoint", folder / "checkpoint", "--output", output, "--strategy", "multiworker"]
    given += ["--batch-size", "9", "--seq-length", "40", *flags]
    return ["-m", "bert_keras", name, *map(str, given)]


@contextlib.contextmanager
def begun(arguments: list[str], is_begun: Callable[[], bool]) -> Iterator[list[subprocess.Popen]]:
    """The processes of a command on two workers, once a file of theirs is there."""
    with clusters.started(arguments) as processes:
        until = time.monotonic() + SECONDS
        while not is_begun():
            if any(one.poll() is not None for one in processes) or time.monotonic() > until:
                raise RuntimeError([one.stderr for one in clusters.ended(processes, seconds=1)])
            time.sleep(0.02)
        yield processes


def saves(run: Path) -> list[int]:
    return sorted(int(file.stem.rpartition("-")[2]) for file in run.glob("checkpoints/ckpt-*.index"))


@pytest.mark.parametrize("worker", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_signal_to_one_worker_saves_and_ends_all(worker, folder):
    output = folder / f"stopped-{worker}"
    flags = ["--task", "sst2", "--data", folder / "glue" / "SST-2", "--epochs", "500", "--save-every", "5"]
    arguments = command("finetune", folder, output, *map(str, flags))
    with begun(arguments, lambda: bool(saves(output))) as processes:
        processes[worker].send_signal(signal.SIGTERM)
        chief, other = clusters.ended(processes)
    assert (chief.returncode, other.returncode) == (143, 143), (chief.stderr, other.stderr)
    last = saves(output)[-1]
    stopped = (
        f"bert-keras: stopped at step {last:,} of 3,000; run the same command to resume from step {last:,}"
    )
    for one in (chief, other):
        assert stopped in one.stderr.splitlines(), one.stderr
        assert "Traceback" not in one.stderr
    assert other.stdout == ""
    assert not (output / "results.json").exists()


def test_a_grid_without_a_worker_ends_and_resumes_at_its_finished_cells(folder):
    output = folder / "grid"
    flags = ["--task", "sst2", "--data", folder / "glue" / "SST-2", "--epochs", "4"]
    flags += ["--learning-rates", "1e-3", "--restarts", "2"]
    arguments = command("protocol", folder, output, *map(str, flags))
    first, second = (output / "sst2" / f"lr-0.001_seed-{seed}" for seed in SEEDS)
    with begun(arguments, lambda: bool(saves(second))) as processes:
        os.kill(processes[1].pid, signal.SIGKILL)
        chief, other = clusters.ended(processes)
    assert (chief.returncode, other.returncode) == (1, -9), (chief.stderr, other.stderr)
    lines = [line for line in chief.stderr.splitlines() if line.startswith("bert-keras: error: ")]
    assert len(lines) == 1 and "worker" in lines[0] and "Traceback" not in chief.stderr
    before = (first / "results.json").read_bytes()
    chief, other = clusters.run(arguments)
    assert f"{first} is finished already" in chief.stdout and f"resuming {second} at step" in chief.stdout
    assert "the best run is in" in chief.stdout
    assert other.stdout == "" and other.stderr == ""
    assert (first / "results.json").read_bytes() == before
    results = json.loads((output / "results.json").read_text())
    assert [one["seed"] for one in results["tasks"]["sst2"]["runs"]] == [*SEEDS]
    assert (output / "results.png").is_file()


@pytest.mark.slow
def test_glue_on_two_workers_writes_the_files_of_the_leaderboard(folder):
    output = folder / "glue-runs"
    test = (folder / "glue" / "SST-2" / "dev.tsv").read_text().splitlines()
    lines = ["index\tsentence", *(f"{i}\t{line.split(chr(9))[0]}" for i, line in enumerate(test[1:]))]
    (folder / "glue" / "SST-2" / "test.tsv").write_text("\n".join(lines) + "\n")
    flags = ["--tasks", "sst2", "--data", str(folder / "glue"), "--epochs", "1", "--learning-rates", "1e-3"]
    chief, other = clusters.run(command("glue", folder, output, *flags))
    assert "GLUE score on dev" in chief.stdout and other.stdout == ""
    written = (output / "submission" / "SST-2.tsv").read_text().splitlines()
    assert len(written) == len(test)


@pytest.mark.slow
def test_an_ablation_of_layers_on_two_workers(folder):
    """The chief computes the vectors, which all workers read."""
    output = folder / "layers"
    flags = [
        "--tasks",
        "sst2",
        "--data",
        f"sst2={folder / 'glue' / 'SST-2'}",
        "--rows",
        "fine-tuning",
        "last",
    ]
    flags += ["--restarts", "1", "--epochs", "1", "--feature-epochs", "1", "--lstm-units", "8"]
    chief, other = clusters.run(
        ["-m", "bert_keras", "ablate", "approaches", *command("", folder, output, *flags)[3:]]
    )
    assert "orderings" in chief.stdout and other.stdout == ""
    rows = json.loads((output / "results.json").read_text())["tasks"][0]["rows"]
    assert [len(row["measures"]) for row in rows] == [1, 1]
    assert not (output / "vectors").exists()
