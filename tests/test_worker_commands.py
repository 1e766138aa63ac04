"""Commands on two workers: signals, grids of runs and their tables."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobs
import pytest
import runs

from bert_keras.errors import BertKerasError
from bert_keras.tasks.devices import workers
from bert_keras.tasks.devices.strategies import strategy

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
    with jobs.started(arguments) as processes:
        until = time.monotonic() + SECONDS
        while not is_begun():
            if any(one.poll() is not None for one in processes) or time.monotonic() > until:
                raise RuntimeError([one.stderr for one in jobs.ended(processes, seconds=1)])
            time.sleep(0.02)
        yield processes


def saves(run: Path) -> list[int]:
    return sorted(int(file.stem.rpartition("-")[2]) for file in run.glob("checkpoints/ckpt-*.index"))


@pytest.mark.parametrize(
    ("worker", "given"),
    [
        (0, signal.SIGTERM),
        pytest.param(1, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(0, signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_one_worker_saves_and_ends_all(worker, given, folder):
    output = folder / f"stopped-{worker}-{given.name}"
    flags = ["--task", "sst2", "--data", folder / "glue" / "SST-2", "--epochs", "500", "--save-every", "5"]
    arguments = command("finetune", folder, output, *map(str, flags))
    with begun(arguments, lambda: bool(saves(output))) as processes:
        processes[worker].send_signal(given)
        chief, other = jobs.ended(processes)
    assert (chief.returncode, other.returncode) == (128 + given,) * 2, (chief.stderr, other.stderr)
    last = saves(output)[-1]
    stopped = (
        f"bert-keras: stopped at step {last:,} of 3,000; run the same command to resume from step {last:,}"
    )
    for one in (chief, other):
        assert stopped in one.stderr.splitlines(), one.stderr
        assert "Traceback" not in one.stderr
    assert other.stdout == ""
    assert not (output / "results.json").exists()


def test_a_worker_that_waits_for_another_says_so_and_ends_at_ctrl_c(folder):
    flags = ["--task", "sst2", "--data", str(folder / "glue" / "SST-2")]
    arguments = command("finetune", folder, folder / "alone", *flags)
    with jobs.started(arguments, fresh=True) as processes:
        os.kill(processes[1].pid, signal.SIGKILL)
        chief = processes[0]
        until = time.monotonic() + SECONDS
        while "waiting for the other workers, 127.0.0.1:" not in Path(chief.paths[1]).read_text():
            assert chief.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        time.sleep(8)  # on most machines, TensorFlow is imported now, and waits in C++
        while chief.poll() is None and time.monotonic() < until:
            chief.send_signal(signal.SIGINT)  # an import may swallow the first
            time.sleep(5)
    assert chief.returncode in (130, -signal.SIGINT)
    assert not (folder / "alone").exists()


def run_differently(arguments: list[str], second: list[str]) -> None:
    """`bert-keras ARGUMENTS...` in a worker; the second one has more arguments."""
    index = json.loads(os.environ[jobs.CLUSTER])["task"]["index"]
    sys.exit(runs.command([*arguments, *second * index]))


@pytest.mark.parametrize(
    ("name", "second", "named"),
    [
        ("finetune", ["--epochs", "2", "--precision", "bfloat16"], "precision, epochs"),
        pytest.param("finetune", ["--save-every", "2"], "save_every", marks=pytest.mark.slow),
        pytest.param("protocol", ["--restarts", "2"], "restarts, seed, runs", marks=pytest.mark.slow),
        ("finetune", ["--checkpoint", {"hidden_size": 64}], ""),
        ("finetune", ["--checkpoint", {"num_layers": 2}], ""),
    ],
    ids=["settings", "saves", "grids", "sizes of layers", "numbers of layers"],
)
def test_workers_that_differ_say_in_which_before_any_work(name, second, named, folder, tmp_path):
    """A worker that saves at other steps than the others would wait for them for ever.

    A worker with another grid would answer questions of the other, about a run that it does not have. The check comes before the
    model: variables of other shapes cannot be created together.
    """
    second = [
        str(runs.write_checkpoint(tmp_path / "other", **one)) if isinstance(one, dict) else one
        for one in second
    ]
    flags = ["--task", "sst2", "--data", str(folder / "glue" / "SST-2")]
    flags += ["--learning-rates", "1e-3"] if name == "protocol" else []
    arguments = command(name, folder, tmp_path / "output", *flags)[2:]
    how = {"arguments": arguments, "second": second}
    for one in jobs.call("test_worker_commands:run_differently", how, workers=2, seconds=SECONDS):
        assert one.returncode == 1, one.stderr
        wanted = f"the workers differ in {named}; " if named else "the workers differ in "
        assert wanted in one.stderr.splitlines()[-1], one.stderr
    assert not (tmp_path / "output").exists()


def time_of_each(action: str) -> dict[str, list[float]]:
    """When a worker has heard of the others, and when it may end; the second one takes a second to hear."""
    gather_of, times = workers._gather_of, []
    second = json.loads(os.environ[jobs.CLUSTER])["task"]["index"]

    def slow_gather_of(distribution):
        def gather(values):
            gathered = gather_of(distribution)(values)
            time.sleep(second)
            times.append(time.time())
            return gathered

        return gather

    workers._gather_of = slow_gather_of
    both = workers.Workers(strategy("multiworker"))
    with contextlib.suppress(BertKerasError):
        if action == "check":
            both.check_same({"index": second}, "say so")
        else:
            with both.writing(contextlib.nullcontext()):
                pass
    return {"gathered": times, "end": time.time()}


@pytest.mark.parametrize(("action", "needed"), [("check", 2), ("write", 1)])
def test_no_worker_ends_while_another_one_waits_for_it(action, needed):
    """The other one's operation fails then, and hides why both end."""
    made = jobs.check(jobs.call("test_worker_commands:time_of_each", {"action": action}, workers=2))
    fast, slow = (one.value for one in made)
    assert fast["end"] > slow["gathered"][needed - 1]


@pytest.mark.slow
def test_a_grid_without_a_worker_ends_and_resumes_at_its_finished_cells(folder):
    output = folder / "grid"
    flags = ["--task", "sst2", "--data", folder / "glue" / "SST-2", "--epochs", "4"]
    flags += ["--learning-rates", "1e-3", "--restarts", "2"]
    arguments = command("protocol", folder, output, *map(str, flags))
    first, second = (output / "sst2" / f"lr-0.001_seed-{seed}" for seed in SEEDS)
    with begun(arguments, lambda: bool(saves(second))) as processes:
        os.kill(processes[1].pid, signal.SIGKILL)
        chief, other = jobs.ended(processes)
    assert (chief.returncode, other.returncode) == (1, -9), (chief.stderr, other.stderr)
    lines = [line for line in chief.stderr.splitlines() if line.startswith("bert-keras: error: ")]
    assert len(lines) == 1 and "worker" in lines[0] and "Traceback" not in chief.stderr
    before = (first / "results.json").read_bytes()
    chief, other = jobs.run(arguments)
    assert f"{first} is finished already" in chief.stdout and f"resuming {second} at step" in chief.stdout
    assert "the best run is in" in chief.stdout
    assert other.stdout == "" and [line.split()[0] for line in other.stderr.splitlines()] == [
        "waiting",
        "all",
    ]
    assert (first / "results.json").read_bytes() == before
    results = runs.results(output)
    assert [one["seed"] for one in results["tasks"]["sst2"]["runs"]] == [*SEEDS]
    assert (output / "results.png").is_file()


def on_one_process(arguments: list[str]) -> None:
    """Runs a command of two workers on one device."""
    i = arguments.index("--strategy")
    jobs.run([*arguments[:i], *arguments[i + 2 :]], workers=1)


TIMES = {"seconds", "strategy", "files", "made_by"}  # fields of results.json that differ between two runs


def compared(found: Any, wanted: Any, at: str = "") -> int:
    """The count of equal numbers in two results.json; those of a training are equal up to the rounding of its steps."""
    if isinstance(wanted, dict):
        assert {*found} == {*wanted}, at
        return sum(compared(found[key], wanted[key], f"{at}/{key}") for key in {*wanted} - TIMES)
    if isinstance(wanted, list):
        assert len(found) == len(wanted), at
        return sum(compared(*pair, f"{at}/{i}") for i, pair in enumerate(zip(found, wanted, strict=True)))
    if isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-4), at
        return 1
    assert found == wanted, at
    return 0


@pytest.mark.parametrize("name", [pytest.param("glue", marks=pytest.mark.slow), "protocol"])
@pytest.mark.slow
def test_a_grid_on_two_workers_has_the_results_of_one_process(name, tmp_path):
    """Without dropout, whose draws differ between replicas."""
    runs.write_checkpoint(tmp_path / "checkpoint", hidden_dropout=0.0, attention_dropout=0.0)
    runs.write_data(tmp_path / "glue" / "SST-2", "sst2")
    flags = {
        "glue": ["--tasks", "sst2", "--data", tmp_path / "glue"],
        "protocol": ["--task", "sst2", "--data", tmp_path / "glue" / "SST-2", "--restarts", "2"],
    }[name]
    given = [name, tmp_path, tmp_path / "two", *map(str, flags), "--epochs", "1", "--learning-rates", "1e-3"]
    jobs.run(command(*given))
    given[2] = tmp_path / "one"
    on_one_process(command(*given))
    two, one = (
        json.loads((tmp_path / output / "results.json").read_text().replace(str(tmp_path / output), ""))
        for output in ("two", "one")
    )
    assert compared(two, one) > 2
    runs_of_two, runs_of_one = (
        {
            file.parent.relative_to(tmp_path / output): json.loads(file.read_text())
            for file in (tmp_path / output).glob("*/*/results.json")
        }
        for output in ("two", "one")
    )
    assert {*runs_of_two} == {*runs_of_one} and len(runs_of_one) == {"glue": 1, "protocol": 2}[name]
    for path, made in runs_of_one.items():
        compared(runs_of_two[path]["history"], made["history"], str(path))


@pytest.mark.slow
def test_glue_on_two_workers_writes_the_files_of_the_leaderboard(folder):
    output = folder / "glue-runs"
    test = (folder / "glue" / "SST-2" / "dev.tsv").read_text().splitlines()
    lines = ["index\tsentence", *(f"{i}\t{line.split(chr(9))[0]}" for i, line in enumerate(test[1:]))]
    (folder / "glue" / "SST-2" / "test.tsv").write_text("\n".join(lines) + "\n")
    flags = ["--tasks", "sst2", "--data", str(folder / "glue"), "--epochs", "1", "--learning-rates", "1e-3"]
    chief, other = jobs.run(command("glue", folder, output, *flags))
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
    chief, other = jobs.run(
        ["-m", "bert_keras", "ablate", "approaches", *command("", folder, output, *flags)[3:]]
    )
    assert "orderings" in chief.stdout and other.stdout == ""
    rows = runs.results(output)["tasks"][0]["rows"]
    assert [len(row["measures"]) for row in rows] == [1, 1]
    assert not (output / "vectors").exists()
