"""The commands that soak.py tries, their inputs, and the processes that run them.

In: a folder of inputs, a command's name, an output. Out: a process, or the workers of a cluster, with its exit status and errors.
"""

import contextlib
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import jobs  # noqa: E402
import runs  # noqa: E402

LIMIT = 900  # seconds that a command may take
QUICK = "--epochs 2 --batch-size 8 --seq-length 40 --max-examples 24"
SIZES = "--num-layers 1 --hidden-size 32 --num-heads 2 --intermediate-size 64 --seq-length 32 --batch-size 8 --steps 6"


def write_inputs(folder: pathlib.Path) -> None:
    """The checkpoint, data and text that all commands read."""
    runs.write_checkpoint(folder / "checkpoint")
    runs.write_data(folder / "data", "sst2")
    runs.write_data(folder / "glue" / "SST-2", "sst2")
    documents = ("\n".join(runs.texts(8, seed=seed)) for seed in range(40))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")


def commands(folder: pathlib.Path, output: pathlib.Path) -> dict[str, list[str]]:
    """The arguments of each command, which writes to `output`."""
    vocab, text = folder / "checkpoint" / "vocab.txt", folder / "text.txt"
    checkpoint = f"--checkpoint {folder / 'checkpoint'}"
    finetune = f"--task sst2 --data {folder / 'data'} {checkpoint} {QUICK} --save-every 2"
    layers = "--lstm-layers 1 --lstm-units 8"
    rows = "--rows fine-tuning random-fine-tuning --restarts 1"
    instances = f"--text {text} --vocab {vocab} --seq-length 32"
    pretrain = f"--text {text} --vocab {vocab} {SIZES} --save-every 2"
    asked = {
        "convert": f"--from {folder / 'checkpoint'} --format google --to",
        "export": f"--run {folder / 'run'} --output",
        "hub": f"{checkpoint} --seq-length 24 --output",
        "vocab": f"--text {text} --size 120 --output",
        "instances": f"{instances} --workers 1 --output",
        "instances in two processes": f"{instances} --workers 2 --output",
        "features": f"{checkpoint} --input {text} --output",
        "features parquet": f"{checkpoint} --input {text} --format parquet --output",
        "finetune": f"{finetune} --output",
        "finetune features": f"{finetune} --feature-layers 0,1 {layers} --output",
        "finetune mirrored": f"{finetune} --strategy mirrored --output",
        "finetune multiworker": f"{finetune} --strategy multiworker --output",
        "pretrain": f"{pretrain} --output",
        "pretrain multiworker": f"{pretrain} --strategy multiworker --output",
        "protocol": f"--task sst2 --data {folder / 'data'} {checkpoint} {QUICK} --learning-rates 1e-3 1e-4 --output",
        "glue": f"--tasks sst2 --data {folder / 'glue'} {checkpoint} {QUICK} --learning-rates 1e-3 --output",
        "ablate": f"approaches --data sst2={folder / 'data'} {checkpoint} {QUICK} {rows} --output",
        "probe": f"--data sst2={folder / 'data'} {checkpoint} --max-examples 24 --seq-length 40 --restarts 2 --output",
    }
    return {name: [name.split()[0], *rest.split(), str(output)] for name, rest in asked.items()}


# What a change of the data between two tries changes, by command; others read no data of the user's.
DATA = {
    **dict.fromkeys(
        (
            "finetune",
            "finetune features",
            "finetune mirrored",
            "finetune multiworker",
            "protocol",
            "ablate",
            "probe",
        ),
        "data/train.tsv",
    ),
    "glue": "glue/SST-2/train.tsv",
    **dict.fromkeys(
        (
            "instances",
            "instances in two processes",
            "pretrain",
            "pretrain multiworker",
            "features",
            "features parquet",
            "vocab",
        ),
        "text.txt",
    ),
}


def inputs_of(arguments: Sequence[str], folder: pathlib.Path) -> list[pathlib.Path]:
    """The files below a folder that a command reads."""
    given = [pathlib.Path(one.rpartition("=")[2]) for one in arguments]
    roots = [one for one in given if one.is_relative_to(folder)]
    found = {file for one in roots for file in ([one] if one.is_file() else one.rglob("*"))}
    return sorted(file for file in found if file.is_file() and file.stat().st_size)


class Process:
    """A forked command, with its output in files."""

    def __init__(self, pid: int, log: pathlib.Path) -> None:
        self.pid, self._log = pid, log

    def wait(self) -> int:
        """The exit status; negative for a signal, as in subprocess. Raises TimeoutError after LIMIT."""
        ends = time.monotonic() + LIMIT
        while time.monotonic() < ends:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        self.send(signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise TimeoutError(f"over {LIMIT} s: {self.errors()}")

    def send(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def errors(self) -> str:
        """The last lines of standard error."""
        return self._log.with_suffix(".err").read_text(errors="replace")[-2000:]


class Workers:
    """The processes of a cluster. A signal goes to the last one, which is not the chief; the exit status is the worst."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    def wait(self) -> int:
        """As Process: all must end."""
        statuses = [one.wait() for one in self._processes]
        return next((status for status in statuses if status), 0)

    def send(self, number: int) -> None:
        """Sends a signal."""
        self._processes[-1].send(number)

    def errors(self) -> str:
        """The last lines of standard error of the chief."""
        return self._processes[0].errors()


def start(
    arguments: Sequence[str], log: pathlib.Path, before: Callable[[], None] = lambda: None
) -> Process | Workers:
    """Forks a process, or two workers, which call `before` and then run a command."""
    if "multiworker" not in arguments:
        return _fork(
            arguments, log, (lambda: (_two_replicas(), before())) if "mirrored" in arguments else before
        )
    with jobs.ports(2) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]

    def worker(index: int) -> Process:
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}

        def prepare() -> None:
            os.environ["TF_CONFIG"] = json.dumps(cluster)
            before()

        return _fork(arguments, log.with_name(f"{log.name}-{index}"), prepare)

    return Workers([worker(0), worker(1)])


def _two_replicas() -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def _fork(arguments: Sequence[str], log: pathlib.Path, before: Callable[[], object]) -> Process:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return Process(child, log)
    code = 1
    try:
        # A shell that starts this script in its background has it ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(log.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        before()
        from bert_keras.cli.main import main

        main(["bert-keras", *arguments])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
