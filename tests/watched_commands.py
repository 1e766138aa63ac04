"""Commands of `bert-keras` in one process, which gets signals at chosen moments, and whose streams may be a terminal.

In: a folder, and JSON [{"arguments": [...]}, ...]; each command may have
    "signals": [[moment, step, ["SIGINT", ...]], ...]   sent by the process to itself, each once, in this order
    "seconds": 0                                        the time between two progress lines
    "terminal": "xterm"                                 the type of a terminal; what it shows comes out as standard output
Out: in the folder, what command N printed, N.1 and N.2, and the list of exit codes, `codes`. Run by test_progress.py.
"""

import contextlib
import json
import os
import pty
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path


def send(names: list[str]) -> None:
    for name in names:
        os.kill(os.getpid(), signal.Signals[name])


def before(owner: type, method: str, act: Callable[[object], None]) -> None:
    """Has `act` called before a method."""
    call = getattr(owner, method)

    def acting(self, *arguments, **keywords):
        act(self)
        return call(self, *arguments, **keywords)

    setattr(owner, method, acting)


def watch_moments(left: list) -> None:
    """Sends the signals of `left` at the moments of a training that they name."""
    import bert_keras.tasks.finetuning.finetune as finetuning
    from bert_keras.tasks.training.loop import StopOnDivergence
    from bert_keras.tasks.training.saver import Saver

    steps = [0]

    def at(moment: str) -> None:
        if left and left[0][0] == moment and left[0][1] in (None, steps[0]):
            send(left.pop(0)[2])

    def step(callback: StopOnDivergence) -> None:
        steps[0] = callback.step + 1
        at("step")

    before(StopOnDivergence, "on_train_batch_end", step)
    monitor = finetuning.FineTuningMonitor
    for owner, method, moment in (
        (monitor, "on_epoch_end", "evaluation"),
        (monitor, "results", "results"),
        (Saver, "_save", "save"),
    ):
        before(owner, method, lambda self, moment=moment: at(moment))
    plan = finetuning.plan_finetuning

    def planning(*arguments, **keywords):
        at("planning")
        return plan(*arguments, **keywords)

    finetuning.plan_finetuning = planning


@contextlib.contextmanager
def streams(out: Path, err: Path, terminal: str | None) -> Iterator[None]:
    """Writes standard output and error to files, or what a terminal of this type shows to `out`."""
    kept = [os.dup(1), os.dup(2)]
    files = [os.open(file, os.O_WRONLY | os.O_CREAT) for file in (out, err)]
    reader = None
    if terminal is None:
        ends = list(files)
    else:
        os.environ["TERM"] = terminal
        master, slave = pty.openpty()
        ends = [slave, slave]
        reader = threading.Thread(target=copy, args=(master, files[0]))
        reader.start()
    for number, end in enumerate(ends, start=1):
        os.dup2(end, number)
    for end in {*ends}:
        os.close(end)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, end in enumerate(kept, start=1):
            os.dup2(end, number)
        if reader:
            reader.join()


def copy(master: int, target: int) -> None:
    try:
        while part := os.read(master, 65536):
            os.write(target, part)
    except OSError:  # the last writer has left
        pass


def main() -> None:
    import bert_keras.cli.console
    from bert_keras.cli.main import main as command

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
    folder, codes, left, seconds = Path(sys.argv[1]), [], [], bert_keras.cli.console.SECONDS
    watch_moments(left)
    for number, asked in enumerate(json.loads(sys.argv[2])):
        left[:] = asked.get("signals", ())
        bert_keras.cli.console.SECONDS = asked.get("seconds", seconds)
        with streams(folder / f"{number}.1", folder / f"{number}.2", asked.get("terminal")):
            try:
                command(["bert-keras", *asked["arguments"]])
                codes.append(0)
            except SystemExit as end:
                codes.append(end.code or 0)
    (folder / "codes").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
