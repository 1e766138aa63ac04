"""Long work: its lines in logs and its bars in terminals, --quiet, --patience, and stops by Ctrl-C and SIGTERM."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
import runs

from bert_keras.cli.console import Pace, duration

TESTS = Path(__file__).parent
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
SHORT = "--batch-size 8 --seq-length 40 --epochs 3"  # six steps in an epoch
SIZES = "--num-layers 1 --hidden-size 32 --num-heads 2 --intermediate-size 64"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint, GLUE's SST-2 and a text."""
    folder = tmp_path_factory.mktemp("progress")
    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    runs.write_data(folder / "glue" / "SST-2", "sst2")
    documents = ("\n".join(runs.texts(8, seed=seed)) for seed in range(40))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    return folder


def finetuning(place, output, more=""):
    """Three epochs of six steps."""
    flags = f"--data {place}/glue/SST-2 --checkpoint {place}/checkpoint {SHORT} --output {output} {more}"
    return f"finetune --task sst2 --learning-rate 1e-3 {flags}".split()


def pretraining(place, output, more=""):
    """Twelve steps."""
    flags = f"--text {place}/text.txt --vocab {place}/checkpoint --held-out 0.2 {SIZES} --seq-length 32"
    return f"pretrain {flags} --batch-size 8 --steps 12 --eval-every 6 --output {output} {more}".split()


def glue(place, output, more):
    """The learning rates of `more` on SST-2."""
    flags = f"--data {place}/glue --checkpoint {place}/checkpoint {SHORT} --output {output} {more}"
    return f"glue --tasks sst2 {flags}".split()


def watch(*commands):
    """The exit code and the output of commands that run one after another in a process; each is (arguments, more of JSON)."""
    asked = [{"arguments": arguments, **how} for arguments, how in commands]
    with tempfile.TemporaryDirectory() as folder:
        done = forked.run(TESTS / "watched_commands.py", folder, json.dumps(asked))
        assert done.returncode == 0, done.stderr
        codes = json.loads(Path(folder, "codes").read_text())
        read = [[Path(folder, f"{number}.{i}").read_text() for i in (1, 2)] for number in range(len(codes))]
    return [
        SimpleNamespace(code=code, out=out, err=err) for code, (out, err) in zip(codes, read, strict=True)
    ]


def signals(*wanted):
    return {"signals": wanted}


SECONDS = {"seconds": 0}


def content(run):
    """results.json without the time and the command."""
    return runs.without_times(runs.results(run))


def saves(run):
    return {file.name for file in (run / "checkpoints").glob("ckpt-*.index")}


# -----------------------------------------------------------------------------------------------------------
# Lines and bars


@pytest.fixture(scope="module")
def whole(place):
    """An uninterrupted fine-tuning in a log, with a line for each step."""
    (done,) = watch((finetuning(place, place / "whole"), SECONDS))
    assert done.code == 0, done.err
    return done


@pytest.mark.long
@pytest.mark.slow
def test_a_log_has_lines_for_epochs_and_steps(whole, place):
    lines = whole.out.splitlines()
    epochs = [line for line in lines if line.startswith("epoch ")]
    pattern = r"epoch \d/3: loss \d\.\d{4}, accuracy \d\.\d{4}, (\d+ min )?\d+ s"
    assert len(epochs) == 3 and all(re.fullmatch(pattern, line) for line in epochs)
    steps = [line for line in lines if line.startswith("step ")]
    pattern = (
        r"step (\d+) of 18: loss \d\.\d{4}, learning rate [\d.e-]+, [\d.e+]+ steps/s, (\d+ min )?\d+ s left"
    )
    numbers = [int(re.fullmatch(pattern, line)[1]) for line in steps]
    # all but the first, which traces, and the last
    assert numbers == [2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 16, 17]
    assert content(place / "whole")["stopped_early"] is None


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_no_log_has_control_characters(whole, place):
    run = f"--run {place / 'whole'}"
    others = watch(
        (pretraining(place, place / "pretrained"), SECONDS),
        (glue(place, place / "protocol", "--epochs 1 --learning-rates 1e-3"), SECONDS),
        (f"evaluate {run} --data {place}/glue/SST-2".split(), {}),
        (f"export {run} --output {place}/served".split(), {}),
    )
    for done in (whole, *others):
        assert done.code == 0, done.err
        assert not CONTROL.search(done.out + done.err), done.out + done.err
    pretrained = others[0].out
    assert re.search(r"^step 6, held out: loss \d\.\d+, .*masked_lm_loss \d\.", pretrained, re.M)
    assert re.search(r"^phase 1/1: loss [1-9]\.", pretrained, re.M)


@pytest.mark.long
@pytest.mark.slow
def test_a_terminal_shows_a_bar_unless_it_is_dumb(place, tmp_path):
    kinds = ("xterm", "dumb")
    done = watch(
        *((finetuning(place, tmp_path / kind, "--epochs 1"), SECONDS | {"terminal": kind}) for kind in kinds)
    )
    for one, bars in zip(done, (True, False), strict=True):
        assert one.code == 0, one.out
        assert ("\b" in one.out, "6/6" in one.out, "step 3 of 6" in one.out) == (bars, bars, not bars)
        assert "epoch 1/1: loss" in one.out


@pytest.mark.long
@pytest.mark.slow
def test_quiet_prints_only_results_and_warnings(place, tmp_path):
    evaluation = f"--quiet evaluate --run {tmp_path}/run --json --data {place}/glue/SST-2".split()
    tuned, shown, warned = watch(
        (finetuning(place, tmp_path / "run", "--quiet"), SECONDS),
        (evaluation, {"terminal": "xterm"}),
        (
            pretraining(place, tmp_path / "pre", "--quiet --warmup-proportion 0.1 --steps 200"),
            signals(["step", 1, ["SIGINT"]]),
        ),
    )
    assert tuned.code == 0 and not tuned.err
    assert tuned.out.startswith("sst2, best epoch") and "of 3" in tuned.out
    assert f"the run is in {tmp_path}" in tuned.out
    assert not re.search("epoch \\d/|^step|loaded|training", tuned.out, re.M)
    assert json.loads(shown.out)["validation"].keys() == {"accuracy"}
    assert warned.code == 130 and "warning: updates may be" in warned.err and not warned.out


@pytest.mark.long
def test_downloads_show_no_bars_in_a_log(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    script = tmp_path / "script.py"
    script.write_text(
        "from bert_keras.cli.console import reporting\n"
        "with reporting(quiet=False):\n"
        "    import tqdm, tqdm.auto\n"
        "    from huggingface_hub.utils import tqdm as hub\n"
        "    import tensorflow_datasets.core.utils as tfds\n"
        "    for bar in (tqdm.tqdm, tqdm.auto.tqdm, hub, tfds.tqdm):\n"
        "        list(bar(range(3)))\n"
        "    with tfds.async_tqdm(total=3) as bar:\n"
        "        bar.update(1)\n"
    )
    done = forked.run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_log_of_many_steps_is_short(monkeypatch):
    """10,000 steps of a tenth of a second, and of ten seconds."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for seconds, most in ((0.1, 1000 // 30), (10.0, 100)):
        pace, lines = Pace(10_000), 0
        for step in range(1, 10_001):
            clock[0] += seconds
            lines += pace.due(step)
        assert most - 2 <= lines <= most
        assert pace.speed(10_000) == pytest.approx(1 / seconds)


def test_durations():
    found = [duration(seconds) for seconds in (0, 0.2, 59, 60, 3599, 3600, 90_000)]
    assert found == ["0 s", "1 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "25 h 0 min"]


# -----------------------------------------------------------------------------------------------------------
# Stops


@pytest.mark.long
@pytest.mark.timeout(900)
def test_signals_stop_and_the_same_command_ends_with_the_same_bits(whole, place):
    run, again = place / "stopped", "run the same command to resume from step"
    int_, term, hang = ["SIGINT"], ["SIGTERM"], ["SIGHUP"]
    cases = [
        (130, "stopped", ["planning", None, int_]),
        (143, "stopped", ["planning", None, term]),
        (130, f"stopped at step 2 of 18; {again} 2", ["step", 2, int_]),
        # From the shell and from the kernel.
        (129, f"stopped at step 3 of 18; {again} 3", ["step", 3, hang * 2]),
        (143, f"stopped at step 5 of 18; {again} 5", ["step", 5, term]),
        (130, f"stopped at step 6 of 18; {again} 6", ["evaluation", 6, int_]),
        (130, f"stopped at step 7 of 18; {again} 6", ["step", 8, int_ * 2]),  # the second one stops at once
        (130, f"stopped at step 9 of 18; {again} 6", ["step", 9, int_], ["save", 9, int_]),
        (130, f"stopped at step 18 of 18; {again} 18", ["step", 18, int_]),
        (143, f"stopped at step 18 of 18; {again} 18", ["results", None, term * 2]),
        (130, f"stopped; {run} is finished", ["results", None, int_]),
    ]
    arguments = finetuning(place, run)
    stopped = watch(*[(arguments, signals(*wanted)) for _, _, *wanted in cases])
    for case, done in zip(cases, stopped, strict=True):
        assert done.code == case[0], (case, done.err)
        assert done.err.splitlines()[-1] == f"bert-keras: {case[1]}", case
        assert "Traceback" not in done.out + done.err
    assert content(run) == content(place / "whole")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (run, place / "whole")]
    assert weights[0] == weights[1]


@pytest.mark.long
@pytest.mark.slow
def test_a_stop_without_saves_says_that_the_training_starts_again(place, tmp_path):
    arguments = finetuning(place, tmp_path / "run", "--save-every 0")
    done, again = watch(
        (arguments, signals(["step", 8, ["SIGINT"]])), (arguments, signals(["step", 1, ["SIGINT"]]))
    )
    assert done.code == 130 and not saves(tmp_path / "run")
    assert "stopped at step 8 of 18; run the same command to start again" in done.err
    assert "training starts at step 0" in again.out


@pytest.mark.slow
def test_a_stopped_pre_training_ends_with_the_same_bits(place, tmp_path):
    arguments = pretraining(place, tmp_path / "stopped")
    whole, stopped, done = watch(
        (pretraining(place, tmp_path / "whole"), {}),
        (arguments, signals(["step", 7, ["SIGINT"]])),
        (arguments, {}),
    )
    assert (whole.code, stopped.code, done.code) == (0, 130, 0), done.err
    assert "stopped at step 7 of 12; run the same command to resume from step 7" in stopped.err
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "stopped")]
    assert weights[0] == weights[1]


@pytest.mark.long
@pytest.mark.slow
def test_a_stopped_protocol_resumes_its_run(place, tmp_path):
    """The second of two runs is stopped in its second epoch."""
    arguments = glue(place, tmp_path / "glue", "--epochs 2 --learning-rates 1e-3 5e-4")
    stopped, done = watch((arguments, signals(["step", 12, []], ["step", 9, ["SIGINT"]])), (arguments, {}))
    assert stopped.code == 130 and "stopped at step 9 of 12; " in stopped.err, stopped.err
    assert done.code == 0, done.err
    assert "lr-0.001_seed-12345 is finished already" in done.out
    assert "lr-0.0005_seed-12345 at step 9 of 12" in done.out


@pytest.mark.long
def test_python_gets_keyboard_interrupt(place, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from bert_keras.tasks.problems.classification import TextClassification\n"
        "from bert_keras.tasks.hparams import Hparams\n"
        "from bert_keras.tasks.finetuning.finetune import finetune\n"
        "from bert_keras.tasks.training.loop import StopOnDivergence\n"
        "StopOnDivergence.on_train_batch_end = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        f"task = TextClassification.open('sst2', {str(place / 'glue' / 'SST-2')!r})\n"
        "hparams = Hparams(batch_size=8, seq_length=40)\n"
        f"how = dict(checkpoint={str(place / 'checkpoint')!r}, output={str(tmp_path / 'run')!r}, hparams=hparams)\n"
        "try:\n"
        "    finetune(task, log=lambda line: None, **how)\n"
        "except KeyboardInterrupt as error:\n"
        "    print(type(error).__name__, error)\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    done = forked.run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("KeyboardInterrupt stopped at step 1 of 18; ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_from_outside(number, code, place, tmp_path):
    arguments = finetuning(place, tmp_path / "run", "--epochs 1000")
    process = subprocess.Popen(
        runs.shell_command(*arguments),
        cwd=runs.ROOT,
        env=runs.bare_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert any(line.startswith("epoch 2/") for line in process.stdout)
    time.sleep(0.1)
    process.send_signal(number)
    rest, err = process.communicate(timeout=120)
    assert process.returncode == code and "Traceback" not in rest + err
    step, saved = map(int, re.search(r"stopped at step (\d+) of 6,000; .* from step (\d+)", err).groups())
    assert step == saved >= 12


def in_terminal(command: list, **options) -> tuple[subprocess.Popen, int]:
    """A process with a terminal of its own, and the terminal's other end."""
    master, slave = os.openpty()

    def controlled():
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup, which ignores it
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, preexec_fn=controlled, **options
    )
    os.close(slave)
    return process, master


PRINTS_BEFORE_IT_SAVES = """
import pathlib, sys, time
from bert_keras.io.signals import postponed, terminable
with terminable(), postponed() as stop:
    print("begun", flush=True)
    while stop.signal is None:
        time.sleep(0.01)
    print("a line of progress", flush=True)
    pathlib.Path(sys.argv[1]).touch()
"""


@pytest.mark.long
def test_a_print_to_a_closed_terminal_does_not_stop_the_save(tmp_path):
    command = [sys.executable, "-c", PRINTS_BEFORE_IT_SAVES, str(tmp_path / "saved")]
    process, master = in_terminal(command, cwd=runs.ROOT)
    assert b"begun" in os.read(master, 65536)
    os.close(master)
    assert process.wait(timeout=60) == 0 and (tmp_path / "saved").exists()


@pytest.mark.slow
def test_a_closed_terminal_saves(place, tmp_path):
    run = tmp_path / "run"
    arguments = finetuning(place, run, "--epochs 1000")
    process, master = in_terminal(runs.shell_command(*arguments), cwd=runs.ROOT, env=runs.bare_environment())
    shown = b""
    while b"epoch 2/" not in shown.lower():
        shown += os.read(master, 65536)
    before = saves(run)
    os.close(master)
    assert process.wait(timeout=120) == 129
    assert saves(run) - before and not (run / "results.json").exists()


# -----------------------------------------------------------------------------------------------------------
# Patience and saves


@pytest.mark.slow
def test_patience_stops_and_survives_a_stop(place, tmp_path):
    """A learning rate of nearly 0: no epoch is better than the first."""
    still = "--learning-rate 1e-30 --epochs 9 --patience 3"
    arguments = finetuning(place, tmp_path / "run", still)
    whole, *stops, done = watch(
        (finetuning(place, tmp_path / "whole", still), {}),
        (arguments, signals(["step", 15, ["SIGINT"]])),
        (arguments, signals(["evaluation", 24, ["SIGINT"]])),
        (arguments, {}),
    )
    assert whole.code == 0 and "stopped early: 3 epochs without a better accuracy" in whole.out, whole.err
    results = content(tmp_path / "whole")
    assert (results["best_epoch"], results["steps"]) == (1, 24)
    assert results["stopped_early"] == {"epoch": 4, "step": 24} and len(results["history"]) == 4
    assert [stop.code for stop in stops] == [130, 130]
    assert done.code == 0 and content(tmp_path / "run") == results, done.err


@pytest.mark.long
def test_each_epoch_is_saved_and_a_finished_run_keeps_no_save(whole, place, tmp_path):
    arguments = finetuning(place, tmp_path / "run")
    watch((arguments, signals(["step", 14, ["SIGINT", "SIGINT"]])))
    assert saves(tmp_path / "run") == {"ckpt-12.index", "ckpt-6.index"}
    assert [file.name for file in (place / "whole" / "checkpoints").iterdir()] == ["settings.json"]
