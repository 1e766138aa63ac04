"""Tries faults in every command that writes: kills, signals, full disks, damaged files, changed data, two runs at once.

    python benchmarks/soak.py --faults 300 --seed 1 [--commands finetune pretrain ...] [--json soak.json]

A fault ends a command somewhere; the same command then runs again. It must give what an unbroken run gives, or refuse with an
error of one line. Out: a table of commands and faults with the number of each outcome, and every fault that lost or
changed something, with its seed: `--seed N --faults 1` repeats the fault of seed N. Exit status 1 if there is one.

Commands run in processes that are forked from one that has imported TensorFlow: in one, in two replicas, or in two workers, of
which one gets the signal. Linux only.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402
from soak_commands import DATA, commands, inputs_of, start, write_inputs  # noqa: E402

EQUAL, REFUSED, LOST = "as unbroken", "refused in one line", "LOST OR CHANGED"
CHANCE = ("/seconds", "fingerprint.pb/bytes")  # values that two unbroken runs may have alike by chance


# -----------------------------------------------------------------------------------------------------------
# Faults: each starts the command, ends it somewhere, and says where


def _writes_below(folder: pathlib.Path, act: Callable[[int], None]) -> None:
    """Calls `act` with the number of each write that Python begins below a folder: opened files, renames, new folders."""
    place, count = str(folder.parent), 0
    changes = os.O_WRONLY | os.O_RDWR | os.O_CREAT

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, str | os.PathLike) or not (isinstance(flags, int) and flags & changes):
                return
        elif event in ("os.rename", "os.mkdir"):
            path = arguments[1] if event == "os.rename" else arguments[0]
        else:
            return
        if str(path).startswith(place):
            count += 1
            act(count)

    sys.addaudithook(hook)


class Fault(NamedTuple):
    """A fault of a command: the place, and the exit status."""

    where: str
    status: int


class Try(NamedTuple):
    """One command at one fault.

    arguments: of the command
    log: the files of its output
    output: where it writes
    inputs: the folder of what it reads
    draw: the random numbers of this fault
    seconds, writes: what the unbroken run took
    """

    arguments: list[str]
    log: pathlib.Path
    output: pathlib.Path
    inputs: pathlib.Path
    draw: random.Random
    seconds: float
    writes: int

    def at_moment(self, number: int) -> Fault:
        """A signal at a random moment."""
        moment = self.draw.uniform(0, self.seconds)
        process = start(self.arguments, self.log)
        timer = threading.Timer(moment, process.send, [number])
        timer.start()
        status = process.wait()
        timer.cancel()
        return Fault(f"after {moment / self.seconds:.0%} of the time", status)

    def at_write(self, act: Callable[[], None], *, last: int | None = None) -> Fault:
        """Something at a random write."""
        number = self.draw.randint(1, last or self.writes)
        process = start(
            self.arguments,
            self.log,
            lambda: _writes_below(self.output, lambda count: act() if count == number else None),
        )
        return Fault(f"at write {number} of {self.writes}", process.wait())


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _no_space() -> None:
    import errno

    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _small_files(one: Try) -> Fault:
    most = one.draw.choice((200, 2_000, 20_000, 60_000))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))  # noqa: E731
    process = start(one.arguments, one.log, lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), limit()))
    return Fault(f"no file over {most} bytes", process.wait())


def _damage(file: pathlib.Path, draw: random.Random) -> str:
    """Changes a bit of a file, shortens it or removes it; returns which."""
    how, content = draw.choice(("changed", "shortened", "removed")), bytearray(file.read_bytes())
    if how == "changed":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
    elif how == "shortened":
        file.write_bytes(content[: draw.randrange(len(content))])
    else:
        file.unlink()
    return how


def _damaged(one: Try) -> Fault:
    """A kill at a write, and then damage to what it wrote."""
    fault = one.at_write(_die)
    files = sorted(file for file in one.output.parent.rglob("*") if file.is_file() and file.stat().st_size)
    if not files:
        return Fault(f"{fault.where}, nothing to damage", fault.status)
    file = one.draw.choice(files)
    how = _damage(file, one.draw)
    return Fault(f"{fault.where}, then {file.relative_to(one.output.parent)} {how}", fault.status)


def _damaged_input(one: Try) -> Fault:
    """Damage to a file that the command reads, which is whole again afterwards."""
    file = one.draw.choice(inputs_of(one.arguments, one.inputs))
    kept = file.read_bytes()
    try:
        how = _damage(file, one.draw)
        status = start(one.arguments, one.log).wait()
    finally:
        file.write_bytes(kept)
    return Fault(f"{file.relative_to(one.inputs)} {how}", status)


def _two_at_once(one: Try) -> Fault:
    """One of the two writes, and the other one is refused; or they run one after the other."""
    first = start(one.arguments, one.log)
    time.sleep(one.draw.uniform(0, one.seconds))
    second = start(one.arguments, one.log.with_name("second"))
    statuses = second.wait(), first.wait()
    return Fault(f"they ended with {statuses}", 0 if 0 in statuses else statuses[1])


FAULTS: Mapping[str, Callable[[Try], Fault]] = {
    "kill -9": lambda one: one.at_moment(signal.SIGKILL),
    "SIGTERM": lambda one: one.at_moment(signal.SIGTERM),
    "SIGINT": lambda one: one.at_moment(signal.SIGINT),
    "kill -9 at a write": lambda one: one.at_write(_die),
    "disk full at a write": lambda one: one.at_write(_no_space),
    "small files": _small_files,
    "kill -9, then damage": _damaged,
    "kill -9, then other data": lambda one: one.at_write(_die),
    "damaged input, then whole": _damaged_input,
    "two at once": _two_at_once,
}


# -----------------------------------------------------------------------------------------------------------
# Results


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            yield from _leaves(one, f"{path}/{key}")
    else:
        yield path, value


def result_of(output: pathlib.Path) -> dict[str, Any]:
    """The output of a command: a digest of each file, or each value of a JSON file. Hidden files and saves are left out."""
    found = dict[str, Any]()
    files = [output] if output.is_file() else sorted(output.rglob("*"))
    for file in files:
        name = file.relative_to(output.parent).as_posix()
        if not file.is_file() or "/." in name or "/checkpoints/" in name or "events.out" in name:
            continue
        content = file.read_bytes()
        if file.suffix == ".json":
            found |= {f"{name}{path}": value for path, value in _leaves(json.loads(content))}
        else:
            found[name] = hashlib.sha256(content).hexdigest()
    return found


class Unbroken(NamedTuple):
    """Two unbroken runs of a command: what both wrote alike, the names that differ, the time and the number of writes."""

    result: dict[str, Any]
    unlike: set[str]
    seconds: float
    writes: int


def unbroken(name: str, inputs: pathlib.Path, folder: pathlib.Path) -> Unbroken:
    """Runs a command twice. Raises RuntimeError if it fails."""
    results, seconds, writes = [], 0.0, folder / "writes"
    for turn in range(2):
        output = folder / str(turn) / "out"
        output.parent.mkdir(parents=True)
        began = time.monotonic()

        def count(output: pathlib.Path = output) -> None:
            _writes_below(output, lambda number: os.truncate(writes, number))

        writes.touch()
        process = start(commands(inputs, output)[name], folder / "log", count)
        if code := process.wait():
            raise RuntimeError(f"{name} ended with {code}: {process.errors()}")
        seconds = time.monotonic() - began
        results.append(result_of(output))
    first, second = results
    unlike = {key for key in {*first, *second} if first.get(key) != second.get(key) or key.endswith(CHANCE)}
    kept = {key: value for key, value in first.items() if key not in unlike}
    return Unbroken(kept, unlike, seconds, writes.stat().st_size)


def difference(expected: Unbroken, output: pathlib.Path) -> str:
    """The first difference from an unbroken run; empty if there is none."""
    if left := sorted(file for ending in ("*_temp", "*.tmp") for file in output.rglob(ending)):
        return f"left over: {left[0].relative_to(output)}"
    try:
        found = result_of(output)
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    for name in sorted({*expected.result, *found} - expected.unlike):
        if found.get(name) != expected.result.get(name):
            return (
                f"{name}: {found.get(name, 'missing')!s:.60} for {expected.result.get(name, 'nothing')!s:.60}"
            )
    return ""


class Row(NamedTuple):
    """One fault and its outcome."""

    seed: int
    command: str
    fault: str
    where: str
    status: int
    again: int
    outcome: str
    detail: str


def one_line(errors: str) -> bool:
    """True if a command ended with one line about an error, without a traceback."""
    return "Traceback" not in errors and "error: " in errors


def soak(seed: int, names: Sequence[str], inputs: pathlib.Path, known: dict[str, Unbroken]) -> Row:
    """Tries the fault of a seed."""
    draw = random.Random(seed)
    name = draw.choice(names)
    fault = draw.choice([one for one in FAULTS if "data" not in one or name in DATA])
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = pathlib.Path(temporary)
        if name not in known:
            known[name] = unbroken(name, inputs, folder / "unbroken")
        expected, output = known[name], folder / "try" / "out"
        output.parent.mkdir()
        arguments = commands(inputs, output)[name]
        one = Try(arguments, folder / "log", output, inputs, draw, expected.seconds, expected.writes)
        where, status = FAULTS[fault](one)
        if traceback := _traceback(folder):
            return Row(seed, name, fault, where, status, 0, LOST, f"the fault gave a traceback: {traceback}")
        if fault.endswith("other data"):
            other = folder / "inputs"
            shutil.copytree(inputs, other)
            data = other / DATA[name]
            lines = data.read_text().splitlines(keepends=True)
            data.write_text("".join([*lines[:2], lines[3], lines[2], *lines[4:]]))
            # The same path, other content: the inputs are exchanged meanwhile.
            with _exchanged(inputs / DATA[name], data):
                return _again(seed, name, fault, where, status, one, expected, inputs, folder)
        return _again(seed, name, fault, where, status, one, expected, None, folder)


def _traceback(logs: pathlib.Path) -> str:
    """The last line of standard error that has a traceback, in the commands of a fault; empty if there is none."""
    errors = [file.read_text(errors="replace") for file in sorted(logs.glob("*.err"))]
    # Python drops a Ctrl-C that comes in a finalizer, and says so; the command then goes on.
    shown = [text for text in errors if "Traceback" in text and "Exception ignored in" not in text]
    return next((text.strip().splitlines()[-1] for text in shown), "")


@contextlib.contextmanager
def _exchanged(file: pathlib.Path, other: pathlib.Path) -> Iterator[None]:
    kept = file.read_bytes()
    file.write_bytes(other.read_bytes())
    try:
        yield
    finally:
        file.write_bytes(kept)


def _again(
    seed: int,
    name: str,
    fault: str,
    where: str,
    status: int,
    one: Try,
    expected: Unbroken,
    changed: pathlib.Path | None,
    folder: pathlib.Path,
) -> Row:
    """Runs a command again after a fault, and judges what it left."""
    begun = any(one.output.parent.iterdir())
    if (
        status == 0
        and changed is None
        and (lost := difference(expected, one.output))
        and "damage" not in fault
    ):
        return Row(seed, name, fault, where, status, 0, LOST, f"it ended well, but {lost}")
    if status == 0 and name == "export" and changed is None:
        return Row(seed, name, fault, where, status, 0, EQUAL, "")  # the next export is another version
    process = start(one.arguments, folder / "again")
    again = process.wait()
    if changed is not None and again == 0:
        expected = unbroken(name, changed, folder / "changed")
    if again == 0:
        lost = difference(expected, one.output)
        return Row(seed, name, fault, where, status, again, LOST if lost else EQUAL, lost)
    errors = process.errors()
    line = errors.strip().splitlines()[-1] if errors.strip() else ""
    # Only damage, other data and a complete output are reasons to refuse.
    complete = status == 0 or (changed is None and not difference(expected, one.output))
    allowed = begun and one_line(errors) and (complete or "then" in fault)
    return Row(seed, name, fault, where, status, again, REFUSED if allowed else LOST, line)


def show(rows: Sequence[Row], known: Mapping[str, Unbroken]) -> None:
    """Prints the tables."""
    console = Console()
    counts = collections.Counter((row.fault, row.outcome) for row in rows)
    table = Table("fault", EQUAL, REFUSED, LOST, title=f"{len(rows)} faults")
    for fault in FAULTS:
        table.add_row(fault, *[str(counts[fault, outcome]) for outcome in (EQUAL, REFUSED, LOST)])
    console.print(table)
    counts = collections.Counter((row.command, row.outcome) for row in rows)
    table = Table("command", EQUAL, REFUSED, LOST, "not compared: differs between two unbroken runs")
    for name, one in known.items():
        unlike = ", ".join(sorted(one.unlike)[:4])
        table.add_row(name, *[str(counts[name, outcome]) for outcome in (EQUAL, REFUSED, LOST)], unlike)
    console.print(table)
    for row in rows:
        if row.outcome == LOST:
            what = f"{row.command}, {row.fault}, {row.where}, ended with {row.status}, then {row.again}"
            console.print(f"seed {row.seed}: {what}: {row.detail}")


def main() -> None:
    """Tries the faults of seeds from --seed on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--json", type=pathlib.Path, help="file for all rows")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-inputs-") as temporary:
        inputs = pathlib.Path(temporary) / "inputs"
        inputs.mkdir()
        # Imported before the forks, and nothing of it runs here: it would start threads.
        import tensorflow  # noqa: F401

        import bert_keras.cli.main  # noqa: F401

        prepare = os.fork()  # Keras runs here, so in a process of its own
        if not prepare:
            write_inputs(inputs)
            os._exit(0)
        if os.waitpid(prepare, 0)[1]:
            sys.exit("the inputs could not be written; the lines above say why.")
        made = start(commands(inputs, inputs / "run")["finetune"], inputs / "made")  # `export` reads this run
        if code := made.wait():
            sys.exit(f"finetune ended with {code}: {made.errors()}")
        names, known, rows = args.commands or [*commands(inputs, inputs)], dict[str, Unbroken](), []
        for seed in track(range(args.seed, args.seed + args.faults), disable=not sys.stdout.isatty()):
            rows.append(soak(seed, names, inputs, known))
            if not sys.stdout.isatty():
                print(*rows[-1], sep=" | ", flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    show(rows, known)
    sys.exit(any(row.outcome == LOST for row in rows))


if __name__ == "__main__":
    main()
