"""Commands in processes that share nothing with a test but the import of TensorFlow, which takes longer than most of them.

In: the arguments of `python`. Out: the process, or how it ended, as subprocess says it. A process that has imported TensorFlow
and called nothing of it forks for each command; a command may kill its process, or forbid imports, and the next one sees nothing.

    python forked.py    waits for requests, a line of JSON each; tests call `run` and `start`
"""

import atexit
import contextlib
import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
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
        env=_environment(runs),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # TensorFlow's lines on its import, which no test is to take for those of its command
        text=True,
    )
    atexit.register(parent.communicate)
    return parent


def _environment(runs) -> dict[str, str]:
    return runs.bare_environment() | {"PYTHONPATH": str(runs.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


class Process:
    """A running command, with what tests use of subprocess.Popen."""

    def __init__(self, args: list[str], pid: int, code: Path) -> None:
        self.args, self.pid, self._code = args, pid, code

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return int(self._code.read_text()) if self._code.exists() else None

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str | Path],
    folder: str | Path,
    *,
    cwd: str | Path = "/",
    env: Mapping[str, str] | None = None,
    **streams: str,
) -> Process:
    """`python ARGUMENTS...`: a script, `-m` with a module or `-c` with code.

    folder: for the exit code, which appears there when the process ends
    streams: the files of stdin, stdout and stderr
    """
    import runs

    command = [*map(str, arguments)]
    with tempfile.NamedTemporaryFile(dir=folder, prefix="code-") as unique:
        code = Path(unique.name)
    request = {"command": command, "cwd": str(cwd), "code": str(code), **streams}
    request["environment"] = {**(_environment(runs) if env is None else env)}
    parent = _parent()
    parent.stdin.write(json.dumps(request) + "\n")
    parent.stdin.flush()
    if not (pid := parent.stdout.readline()):
        raise RuntimeError("the process that forks has ended; does `python tests/forked.py` start?")
    return Process(command, int(pid), code)


def run(script: str | Path, *arguments: str | Path, input: str = "", cwd: str | Path = "/"):
    """`python SCRIPT ARGUMENTS...` with `input` as its standard input."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: os.path.join(folder, name) for name in STREAMS}
        for name, file in files.items():
            Path(file).write_text(input if name == "stdin" else "")
        process = start([script, *arguments], folder, cwd=cwd, **files)
        code = process.wait()
        out, err = (Path(files[name]).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(process.args, code, out, err)


@contextlib.contextmanager
def publishing() -> Iterator[None]:
    """Exports are compared with the answers of a forked process meanwhile."""
    from bert_keras.savedmodels import verify

    def forked(command, *, input, cwd, capture_output, text):
        return run(*command[1:], input=input, cwd=cwd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "subprocess", SimpleNamespace(run=forked))
        yield


def _execute(command: list[str]) -> None:
    """Runs a command as `python COMMAND...` runs it."""
    first, *others = command
    if first == "-c":
        sys.argv, sys.path[0] = [first, *others[1:]], ""
        exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv, sys.path[0] = others, os.getcwd()
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = command, os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def _become(request: dict) -> None:
    """Runs a command in place of this process; does not return."""
    code = 1
    try:
        for number, name in enumerate(STREAMS):
            file = request.get(name, os.devnull)
            os.dup2(os.open(file, os.O_WRONLY if number else os.O_RDONLY), number)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        _execute(request["command"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        if code == -signal.SIGINT:  # as Python ends
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _attend(request: dict) -> None:
    """Forks a process for a request, prints its id, and writes its exit code when it has ended; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if not process:
        _become(request)
    print(process, flush=True)
    _, status = os.waitpid(process, 0)
    written = request["code"] + ".part"
    Path(written).write_text(str(os.waitstatus_to_exitcode(status)))
    os.replace(written, request["code"])
    os._exit(0)


def main() -> None:
    import tensorflow  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that attend
    for line in sys.stdin:
        if not os.fork():
            _attend(json.loads(line))


if __name__ == "__main__":
    main()
