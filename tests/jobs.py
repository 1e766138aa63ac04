"""Jobs in processes of their own: on one device, on several replicas, on the workers of a cluster, and killed where a test says.

In: a command of Python, or a function of a module in tests/ with arguments in JSON. Out: the ended processes, the chief's first,
each with what the function returned. A process forks from one that has imported TensorFlow (tests/forked.py), unless the test
wants it fresh. Replicas are logical CPUs; a cluster is a TF_CONFIG of ports on loopback, as an operator gives it.

    jobs.value("module:function", {"argument": 1}, replicas=2)          what it returned
    jobs.command(["finetune", ...], workers=2, kill={1: 5})    `bert-keras finetune ...`, worker 1 killed in step 5
    jobs.run(["-m", "bert_keras", ...], workers=2)             the same, unharmed
"""

import contextlib
import dataclasses
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import forked
import runs

SECONDS = 540  # after which a process hangs, on a busy machine too
SAVE = "save"  # a place to kill a process: inside of its first save
CLUSTER = "TF_CONFIG"

LOWEST = 10_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Python's own draws are the same in every test, also in one that runs at the same time.
_draws = random.SystemRandom()


@dataclasses.dataclass(frozen=True)
class Ended:
    """An ended process. value: what a function returned; None where it did not come so far."""

    returncode: int | None
    stdout: str
    stderr: str
    value: Any = None


@contextlib.contextmanager
def ports(count: int) -> Iterator[list[int]]:
    """Free ports that no other test takes before the end: their numbers are held as ports of UDP meanwhile.

    Where possible, they are ports that the system gives to nobody.
    """
    end = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32768
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            port = _draws.randrange(LOWEST, end) if end > LOWEST else 0
            with socket.socket() as one, contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                port = one.getsockname()[1]
                token = held.enter_context(socket.socket(type=socket.SOCK_DGRAM))
                token.bind(("127.0.0.1", port))
                found.append(port)
        yield found


def cluster(addresses: Sequence[str], *, index: int) -> dict[str, str]:
    """The variable that makes a process a worker."""
    task = {"type": "worker", "index": index}
    return {CLUSTER: json.dumps({"cluster": {"worker": [*addresses]}, "task": task})}


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(runs.ROOT), str(runs.ROOT / "tests")])
    return runs.bare_environment() | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": path,
    }


@contextlib.contextmanager
def started(
    command: Sequence[str | Path], *, workers: int = 2, fresh: bool = False
) -> Iterator[list[subprocess.Popen | forked.Process]]:
    """The processes of a command, which run; what still runs at the end is killed."""
    with tempfile.TemporaryDirectory() as folder, ports(workers if workers > 1 else 0) as numbers:
        addresses = [f"127.0.0.1:{port}" for port in numbers]
        found = []
        try:
            for i in range(workers):
                own = environment() | (cluster(addresses, index=i) if addresses else {})
                with open(Path(folder) / f"{i}.out", "w") as out, open(Path(folder) / f"{i}.err", "w") as err:
                    how = {"cwd": runs.ROOT, "env": own}
                    if fresh:
                        arguments = [sys.executable, *map(str, command)]
                        process = subprocess.Popen(arguments, stdout=out, stderr=err, **how)
                    else:
                        process = forked.start(command, folder, stdout=out.name, stderr=err.name, **how)
                process.paths = out.name, err.name
                found.append(process)
            yield found
        finally:
            for process in found:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def ended(processes: Sequence[subprocess.Popen | forked.Process], *, seconds: float = SECONDS) -> list[Ended]:
    """Waits for all; RuntimeError names the processes that hang."""
    until = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    made = [Ended(one.poll(), *(Path(path).read_text() for path in one.paths)) for one in processes]
    if hanging := [i for i, one in enumerate(made) if one.returncode is None]:
        raise RuntimeError(f"processes {hanging} hang: {[one.stderr[-2000:] for one in made]}")
    return made


def check(made: Sequence[Ended]) -> list[Ended]:
    """RuntimeError with what was printed where a process failed."""
    for i, one in enumerate(made):
        if one.returncode:
            raise RuntimeError(f"process {i} ended with {one.returncode}: {one.stderr[-3000:]}")
    return [*made]


def run(command: Sequence[str | Path], *, workers: int = 2, seconds: float = SECONDS) -> list[Ended]:
    """Runs a command on each worker; raises as `check` does."""
    with started(command, workers=workers) as processes:
        return check(ended(processes, seconds=seconds))


def call(
    function: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    workers: int = 1,
    replicas: int = 1,
    kill: Mapping[int, int | str | Path] | None = None,
    seconds: float = SECONDS,
) -> list[Ended]:
    """Runs a function, "module:name", in each process; a worker has joined its cluster before.

    replicas: of each process
    kill: where a process gets SIGKILL, by its number: in a step of its training, in its first SAVE, or when a file exists
    """
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder) / "values"
        asked = {"arguments": arguments or {}, "replicas": replicas, "kill": kill or {}, "values": values}
        with started([__file__, function, json.dumps(asked, default=str)], workers=workers) as processes:
            made = ended(processes, seconds=seconds)
        files = [Path(f"{values}-{i}") for i in range(workers)]
        found = [json.loads(file.read_text()) if file.exists() else None for file in files]
    return [dataclasses.replace(one, value=value) for one, value in zip(made, found, strict=True)]


def command(arguments: Sequence[str | Path], **how: Any) -> list[Ended]:
    """`bert-keras ARGUMENTS...`, with the settings of `call`."""
    return call("jobs:bert_keras", {"arguments": [*arguments]}, **how)


def value(function: str, arguments: Mapping[str, Any] | None = None, *, replicas: int = 1) -> Any:
    """The value that a function returns in one process; raises as `check` does."""
    return check(call(function, arguments, replicas=replicas))[0].value


# -----------------------------------------------------------------------------------------------------------
# In the process


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_step(step: int) -> None:
    from bert_keras.tasks.training.saver import Saver

    end = Saver.on_train_batch_end

    def dying_end(self, batch, logs=None):
        if self.step + 1 == step:
            die()
        end(self, batch, logs)

    Saver.on_train_batch_end = dying_end


def kill_in_save() -> None:
    from bert_keras.tasks.training.saver import Saver

    save = Saver._save

    def dying_save(self):
        threading.Timer(_draws.uniform(0, 0.03), die).start()
        save(self)
        time.sleep(60)

    Saver._save = dying_save


def kill_at_file(file: Path) -> None:
    def watch() -> None:
        while not file.is_file():
            time.sleep(0.01)
        die()

    threading.Thread(target=watch, daemon=True).start()


def linger_at_results() -> None:
    """Has the chief wait after it has written the results, so that another worker is dead when it goes on."""
    from bert_keras.io.folders import Folder

    finish = Folder.finish

    def lingering_finish(self, results):
        finish(self, results)
        time.sleep(1)

    Folder.finish = lingering_finish


def arm(kill: Mapping[str, int | str], number: int) -> None:
    """Has the process of that number killed where `call` says."""
    if any(isinstance(place, str) and place != SAVE for place in kill.values()):
        linger_at_results()
    place = kill.get(str(number))
    if isinstance(place, int):
        kill_in_step(place)
    elif place == SAVE:
        kill_in_save()
    elif place is not None:
        kill_at_file(Path(place))


def bert_keras(arguments: list[str]) -> None:
    sys.exit(runs.command(arguments))


def set_replicas(count: int) -> None:
    """Splits the CPU into logical CPUs."""
    import tensorflow as tf
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

    if count > 1:
        cpus = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
        # TensorFlow takes all GPUs of a worker, but only one CPU: here logical CPUs stand for GPUs.
        CollectiveAllReduceExtended._initialize_local_devices = lambda self, resolver, worker: (
            tuple(f"{worker}/device:CPU:{i}" for i in range(count)),
            "CPU",
        )


def main() -> None:
    function, asked = sys.argv[1], json.loads(sys.argv[2])
    number = json.loads(os.environ[CLUSTER])["task"]["index"] if CLUSTER in os.environ else 0
    set_replicas(asked["replicas"])
    if CLUSTER in os.environ:  # before TensorFlow runs anything
        from bert_keras.tasks.devices.strategies import strategy

        strategy("multiworker")
    arm(asked["kill"], number)
    module, _, name = function.partition(":")
    made = getattr(importlib.import_module(module), name)(**asked["arguments"])
    Path(f"{asked['values']}-{number}").write_text(json.dumps(made))


if __name__ == "__main__":
    main()
