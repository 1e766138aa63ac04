"""Clusters on this machine: a process for each worker, with a TF_CONFIG of ports on loopback, as an operator starts them.

A worker forks from a process that has imported TensorFlow (tests/forked.py), unless the test wants it fresh.

In: a command. Out: the ended processes, the chief's first.
"""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import forked
import runs

SECONDS = 540  # after which a process hangs, on a busy machine too


LOWEST = 10_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Python's own draws are the same in every test, also in one that runs at the same time.
_draws = random.SystemRandom()


def ports(count: int) -> list[int]:
    """Free ports, where possible such that the system gives to nobody before the workers bind them."""
    end = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32768
    found: list[int] = []
    while len(found) < count:
        port = _draws.randrange(LOWEST, end) if end > LOWEST else 0
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            port = one.getsockname()[1]
            found += [port] * (port not in found)
    return found


def environment(index: int, addresses: Sequence[str], **more: str) -> dict[str, str]:
    """The environment of a worker."""
    cluster = {"cluster": {"worker": [*addresses]}, "task": {"type": "worker", "index": index}}
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join([str(runs.ROOT), str(runs.ROOT / "tests")]),
    }
    return (
        runs.bare_environment()
        | quiet
        | {"TF_CONFIG": json.dumps(cluster), "CUDA_VISIBLE_DEVICES": ""}
        | more
    )


@contextlib.contextmanager
def started(
    command: Sequence[str | Path], *, workers: int = 2, fresh: bool = False, **more: str
) -> Iterator[list[subprocess.Popen | forked.Process]]:
    """The processes of a command, which run; what still runs at the end is killed."""
    addresses = [f"127.0.0.1:{port}" for port in ports(workers)]
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for i in range(workers):
            with open(Path(folder) / f"{i}.out", "w") as out, open(Path(folder) / f"{i}.err", "w") as err:
                how = {"cwd": runs.ROOT, "env": environment(i, addresses, **more)}
                if fresh:
                    arguments = [sys.executable, *map(str, command)]
                    process = subprocess.Popen(arguments, stdout=out, stderr=err, **how)
                else:
                    process = forked.start(command, folder, stdout=out.name, stderr=err.name, **how)
            process.paths = out.name, err.name
            found.append(process)
        try:
            yield found
        finally:
            for process in found:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def ended(
    processes: Sequence[subprocess.Popen | forked.Process], *, seconds: float = SECONDS
) -> list[subprocess.CompletedProcess]:
    """Waits for all; RuntimeError names the processes that hang."""
    until = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    made = [
        subprocess.CompletedProcess(one.args, one.poll(), *(Path(path).read_text() for path in one.paths))
        for one in processes
    ]
    if hanging := [i for i, one in enumerate(made) if one.returncode is None]:
        raise RuntimeError(f"workers {hanging} hang: {[one.stderr[-2000:] for one in made]}")
    return made


def run(
    command: Sequence[str | Path], *, workers: int = 2, seconds: float = SECONDS, **more: str
) -> list[subprocess.CompletedProcess]:
    """Runs a command on each worker; RuntimeError with what was printed where one fails."""
    with started(command, workers=workers, **more) as processes:
        made = ended(processes, seconds=seconds)
    for i, one in enumerate(made):
        if one.returncode:
            raise RuntimeError(f"worker {i} ended with {one.returncode}: {one.stderr[-3000:]}")
    return made
