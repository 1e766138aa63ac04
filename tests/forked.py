"""Scripts in processes that share nothing with a test but the import of TensorFlow, which takes longer than most scripts.

In: the path of a script and its arguments. Out: how it ended, as subprocess.run says it. A process that has imported TensorFlow
and called nothing of it forks for each script; a script may kill its process, or forbid imports, and the next one sees nothing.

    python forked.py    waits for requests, a line of JSON each; tests call `run`
"""

import atexit
import contextlib
import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

STREAMS = ("stdin", "stdout", "stderr")


@functools.cache
def _parent() -> subprocess.Popen:
    """Forks a process for each request; it ends with this process."""
    import runs

    parent = subprocess.Popen(
        [sys.executable, __file__],
        env=runs.bare_environment() | {"PYTHONPATH": str(runs.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # TensorFlow's lines on its import, which no test is to take for those of its command
        text=True,
    )
    atexit.register(parent.communicate)
    return parent


def run(script: str | Path, *arguments: str | Path, input: str = "", cwd: str | Path = "/"):
    """`python SCRIPT ARGUMENTS...` with `input` as its standard input."""
    command = [str(script), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        files = {name: os.path.join(folder, name) for name in STREAMS}
        for name, file in files.items():
            Path(file).write_text(input if name == "stdin" else "")
        parent = _parent()
        parent.stdin.write(json.dumps({"command": command, "cwd": str(cwd), **files}) + "\n")
        parent.stdin.flush()
        if not (code := parent.stdout.readline()):
            raise RuntimeError("the process that forks has ended; does `python tests/forked.py` start?")
        out, err = (Path(files[name]).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(command, int(code), out, err)


@contextlib.contextmanager
def publishing() -> Iterator[None]:
    """Exports are compared with the answers of a forked process meanwhile."""
    from savedmodels import checked_write

    def forked(command, *, input, cwd, capture_output, text):
        return run(*command[1:], input=input, cwd=cwd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checked_write, "subprocess", SimpleNamespace(run=forked))
        yield


def _become(request: dict) -> None:
    """Runs a script in place of this one; does not return."""
    code = 1
    try:
        for number, name in enumerate(STREAMS):
            os.dup2(os.open(request[name], os.O_WRONLY if number else os.O_RDONLY), number)
        os.chdir(request["cwd"])
        sys.argv = request["command"]
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    import tensorflow  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
