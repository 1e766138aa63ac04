"""A process that is started anew in every turn: `start`, `import` and `memory`.

In: kind, implementation, case and folder. Out: the wall-clock seconds from its start until it has finished its work, and from the
process itself its CPU seconds and its peak resident size. The peak is read from /proc, so these kinds run on Linux.
"""

import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from peer_work.work import Case, Prepared

STATUS = pathlib.Path("/proc/self/status")


def peak() -> int:
    """The largest resident size of this process so far, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    assert found
    return 1024 * int(found[1])


def prepared(
    case: Case,
    folder: pathlib.Path,
    *,
    name: str,
    prepare: Callable[[Case, pathlib.Path], Any] = lambda case, folder: None,
) -> Prepared:
    """The call starts a process, and returns its figures: {"wall", "cpu", "bytes"}.

    prepare: writes what the process loads
    """
    prepare(case, folder)
    outputs = folder / f"{case.name}-{name}.npz"
    fields = {field: value for field, value in vars(case).items()}
    command = [sys.executable, "-m", "peer_work.fresh", case.kind, name, json.dumps(fields), str(folder)]

    def run() -> dict[str, float]:
        start = time.perf_counter()
        with subprocess.Popen([*command, str(outputs)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            wall = time.perf_counter() - start
        if process.returncode or not line:
            raise RuntimeError(f"{case.name} of {name} ended with {process.returncode}")
        return {"wall": wall, **json.loads(line)}

    first = run()  # fills the caches of the disk and of bytecode
    with np.load(outputs) as found:
        # A case of one round needs no second process: memory depends little on caches.
        return (lambda: first) if case.rounds == 1 else run, dict(found)


def main() -> None:
    """Does the work, then prints a line of figures."""
    from peer_work.registry import IN_A_FRESH_PROCESS

    kind, name, fields, folder, outputs = sys.argv[1:]
    found = IN_A_FRESH_PROCESS[kind][name](Case(**json.loads(fields)), pathlib.Path(folder))
    print(json.dumps({"cpu": time.process_time(), "bytes": peak()}), flush=True)
    np.savez(outputs, **found)


if __name__ == "__main__":
    main()
