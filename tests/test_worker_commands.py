"""Commands on two workers: signals, grids of runs and their tables."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("worker", "given"),
    [(0, signal.SIGTERM), (1, signal.SIGTERM), pytest.param(0, signal.SIGINT, marks=pytest.mark.slow)],
)
def test_a_signal_to_one_worker_saves_and_ends_all(worker, given, folder):
    output = folder / f"stopped-{worker}-{given.name}"
    flags = ["--task", "sst2", "--data", folder / "glue" / "SST-2", "--epochs", "500", "--save-every", "5"]
    arguments = command("finetune", folder, output, *map(str, flags))
    with begun(arguments, lambda: bool(saves(output))) as processes:
        processes[worker].send_signal(given)
        chief, other = clusters.ended(processes)
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
    with clusters.started(arguments, fresh=True) as processes:
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


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--epochs", "2", "--precision", "bfloat16"], "precision, epochs"),
        (["--save-every", "2"], "save_every"),
    ],
)
def test_workers_with_other_settings_say_in_which(given, named, folder):
    """A worker that saves at other steps than the others would wait for them for ever."""
    flags = ["--task", "sst2", "--data", str(folder / "glue" / "SST-2")]
    arguments = command("finetune", folder, folder / "unlike", *flags)
    script = "import os, sys; second = '\"index\": 1' in os.environ['TF_CONFIG']; "
    script += f"sys.argv += {given} * second; "
    script += "from bert_keras.cli.main import main; main()"
    with clusters.started(["-c", script, *arguments[2:]]) as processes:
        both = clusters.ended(processes, seconds=SECONDS)
    for one in both:
        assert one.returncode == 1, one.stderr
        assert f"the workers differ in {named}; " in one.stderr.splitlines()[-1], one.stderr
    assert not (folder / "unlike").exists()


SLOW_WORKER = """
import contextlib, os, time
from bert_keras.tasks.devices import strategies, workers

gather_of, second = workers._gather_of, '"index": 1' in os.environ["TF_CONFIG"]

def slow_gather_of(distribution):
    def gather(values):
        gathered = gather_of(distribution)(values)
        time.sleep(1.0 if second else 0.0)
        print("gathered at", time.time(), flush=True)
        return gathered
    return gather

workers._gather_of = slow_gather_of
both = workers.Workers(strategies.strategy("multiworker"))
with contextlib.suppress(workers.BertKerasError):
    ACTION
print("may end at", time.time(), flush=True)
"""


@pytest.mark.parametrize(
    ("action", "needed"),
    [
        ("both.check_same({'index': second}, 'say so')", 2),
        ("with both.writing(contextlib.nullcontext()): pass", 1),
    ],
)
def test_no_worker_ends_while_another_one_waits_for_it(action, needed):
    """The other one's operation fails then, and hides why both end."""
    fast, slow = clusters.run(["-c", SLOW_WORKER.replace("ACTION", action)])
    gathered = [float(line.split()[-1]) for line in slow.stdout.splitlines() if line.startswith("gathered")]
    ended = float(fast.stdout.splitlines()[-1].removeprefix("may end at "))
    assert ended > gathered[needed - 1]


def test_workers_with_other_grids_say_so_before_any_run(folder):
    """Else each would answer questions of the other, about a run that it does not have."""
    output = folder / "unlike-grids"
    flags = ["--task", "sst2", "--data", str(folder / "glue" / "SST-2"), "--learning-rates", "1e-3"]
    arguments = command("protocol", folder, output, *flags)
    script = "import os, sys; second = '\"index\": 1' in os.environ['TF_CONFIG']; "
    script += "sys.argv += ['--restarts', '2'] * second; "
    script += "from bert_keras.cli.main import main; main()"
    with clusters.started(["-c", script, *arguments[2:]]) as processes:
        both = clusters.ended(processes)
    for one in both:
        assert one.returncode == 1, one.stderr
        assert "the workers differ in restarts, seed, runs; " in one.stderr.splitlines()[-1], one.stderr
    assert not output.exists()


@pytest.mark.parametrize("changes", [{"hidden_size": 64}, {"num_layers": 2}])
def test_workers_with_checkpoints_of_other_sizes_say_so(changes, folder, tmp_path):
    """The check comes before the model: variables of other shapes cannot be created together."""
    other = runs.write_checkpoint(tmp_path / "other", **changes)
    flags = ["--task", "sst2", "--data", str(folder / "glue" / "SST-2")]
    arguments = command("finetune", folder, tmp_path / "output", *flags)
    script = "import os, sys; second = '\"index\": 1' in os.environ['TF_CONFIG']; "
    script += f"sys.argv += ['--checkpoint', {str(other)!r}] * second; "
    script += "from bert_keras.cli.main import main; main()"
    with clusters.started(["-c", script, *arguments[2:]]) as processes:
        both = clusters.ended(processes)
    for one in both:
        assert one.returncode == 1, one.stderr
        assert "the workers differ in " in one.stderr.splitlines()[-1], one.stderr
    assert not (tmp_path / "output").exists()


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
    done = subprocess.run(
        runs.shell_command(*arguments[2:i], *arguments[i + 2 :]),
        cwd=runs.ROOT,
        env=runs.bare_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


TIMES = {"seconds", "strategy", "files"}  # fields of results.json that differ between two runs


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
def test_a_grid_on_two_workers_has_the_results_of_one_process(name, tmp_path):
    """Without dropout, whose draws differ between replicas."""
    runs.write_checkpoint(tmp_path / "checkpoint", hidden_dropout=0.0, attention_dropout=0.0)
    runs.write_data(tmp_path / "glue" / "SST-2", "sst2")
    flags = {
        "glue": ["--tasks", "sst2", "--data", tmp_path / "glue"],
        "protocol": ["--task", "sst2", "--data", tmp_path / "glue" / "SST-2", "--restarts", "2"],
    }[name]
    given = [name, tmp_path, tmp_path / "two", *map(str, flags), "--epochs", "1", "--learning-rates", "1e-3"]
    clusters.run(command(*given))
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
    rows = runs.results(output)["tasks"][0]["rows"]
    assert [len(row["measures"]) for row in rows] == [1, 1]
    assert not (output / "vectors").exists()
