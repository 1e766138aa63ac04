"""Does every reader of files give a result or one clear error, for thousands of damaged files?

    python benchmarks/fuzz.py --count 20000 [--reader "vocab.txt" ...] [--seconds 600] [--jobs 1]
    python benchmarks/fuzz.py --reader vocab.txt --replay 4711        one case again, with its traceback

The rows of tests/fuzzed_readers.py say how to make a small valid file, how to mutate it and how to read it. Case N of a reader is
always the same file. A worker process reads the cases of one reader. Each must end in a result or in one BertKerasError of one
line, with under --mb of memory beyond the first reading and under --cpu seconds. Anything else is a finding: another exception, a
crash or hang of the process, another value where a checksum protects the file, ids or shapes that cannot be. The table has a row
for each reader; below it stands each kind of finding, with the seed of its first case. Exits with 1 if there is a finding.

Needs the test extra.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

WORKER_CASES = 2000  # TensorFlow keeps some memory of every graph
STUCK = 120  # seconds without a new case after which a worker is killed
MB = 1 << 20


class Slow(BaseException):
    """The CPU time of one case is used up. No reader may catch it."""


# -----------------------------------------------------------------------------------------------------------
# The worker: JSON lines to standard output, one for each finding, and at the end the counts


def work(name: str, first: int, count: int, *, seconds: float, cpu: float, mb: float) -> None:
    """Reads the cases from `first` on, as many as `count` and `seconds` allow."""
    from fuzzed_readers import READERS, Finding, check_result, made, mutated, outcome

    _run_eagerly()
    output = os.dup(1)
    os.dup2(2, 1)  # libraries print to standard output
    signal.signal(signal.SIGPROF, _raise_slow)
    reader, began = READERS[name], time.monotonic()
    counts: dict[str, Any] = {"results": 0, "refused": 0, "slowest": 0.0, "memory": 0.0}
    with tempfile.TemporaryDirectory() as folder, made(reader, pathlib.Path(folder)) as (originals, results):
        limit = int(_status("VmSize")) * 1024 + 4096 * MB
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for seed in range(first, first + count):
            if time.monotonic() - began > seconds:
                break
            _tell(output, {"seed": seed})
            data = mutated(reader, originals, random.Random(f"{name}:{seed}"))
            before, started = _reset_peak(), time.process_time()
            try:
                with _cpu_limit(cpu):
                    found = outcome(reader, pathlib.Path(folder), data)
                    check_result(reader, found, results)
                counts["results" if found is not None else "refused"] += 1
            except (Finding, Slow, MemoryError) as error:
                _tell(
                    output,
                    {
                        "seed": seed,
                        "finding": f"{type(error).__name__}: {error}"[:300],
                        "at": _place_of(error),
                    },
                )
            used = _status("VmHWM") / 1024 - before
            if used > mb and seed > first + 5:  # the first cases import modules
                _tell(output, {"seed": seed, "finding": f"{used:.0f} MB of memory", "at": ""})
            counts["memory"] = max(counts["memory"], used if seed > first + 5 else 0)
            counts["slowest"] = max(counts["slowest"], time.process_time() - started)
    _tell(output, {"counts": counts})


def _run_eagerly() -> None:
    """A tokenizer's graph takes a second to make."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)


def _raise_slow(*_: Any) -> None:
    raise Slow


@contextlib.contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _status(name: str) -> float:
    """A field of /proc/self/status in kB."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return float(line.split()[1])
    return 0.0


def _reset_peak() -> float:
    """Sets the peak of memory to what is used now; returns it in MB."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS") / 1024


def _place_of(error: BaseException) -> str:
    """The last line of this package in the traceback of an error, or of its cause."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    ours = [frame for frame in frames if str(ROOT) in frame.filename and ".venv" not in frame.filename]
    return f"{pathlib.Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""


def _tell(output: int, message: dict[str, Any]) -> None:
    os.write(output, (json.dumps(message) + "\n").encode())


def replay(name: str, seed: int) -> None:
    """Reads one case with its traceback, and leaves the file."""
    import fuzzed_readers

    _run_eagerly()
    reader = fuzzed_readers.READERS[name]
    with tempfile.TemporaryDirectory() as folder, fuzzed_readers.made(reader, pathlib.Path(folder)) as made:
        data = fuzzed_readers.mutated(reader, made[0], random.Random(f"{name}:{seed}"))
        file = pathlib.Path(tempfile.gettempdir()) / f"{seed}-{pathlib.Path(reader.file).name}"
        file.write_bytes(data)
        print(f"{len(data)} bytes in {file}")
        found = fuzzed_readers.outcome(reader, pathlib.Path(folder), data)
        fuzzed_readers.check_result(reader, found, made[1])
        print("refused" if found is None else f"result: {found!r:.200}")


# -----------------------------------------------------------------------------------------------------------
# The parent: starts workers, again after a crash


def fuzz(name: str, options: argparse.Namespace) -> tuple[list[Any], dict[tuple[str, str], list[int]]]:
    """A row of the table, and the seeds of each kind of finding."""
    began, seed, end = time.monotonic(), options.first, options.first + options.count
    total: collections.Counter[str] = collections.Counter()
    most = {"slowest": 0.0, "memory": 0.0}
    kinds: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    while seed < end and time.monotonic() - began < options.seconds:
        left = options.seconds - (time.monotonic() - began)
        count = min(WORKER_CASES, end - seed)
        last, counts, code = seed - 1, None, 0
        for message in _worker(name, seed, count, left, options):
            if "finding" in message:
                kinds[_kind(message["finding"]), message["at"]].append(message["seed"])
                total["findings"] += 1
            elif "counts" in message:
                counts = message["counts"]
            elif "code" in message:
                code = message["code"]
            else:
                last = message["seed"]
        total["inputs"] += last + 1 - seed
        if counts is None:
            if last < seed:
                raise RuntimeError(f"{name}: the worker ended with {code} before its first case")
            kinds[f"the process ended with {code}", ""].append(last)
            total["findings"] += 1
        else:
            total["results"] += counts["results"]
            total["refused"] += counts["refused"]
            most = {key: max(most[key], counts[key]) for key in most}
        seed = last + 1
    numbers = [total[key] for key in ("inputs", "results", "refused", "findings")]
    row = [
        name,
        *numbers,
        f"{most['slowest']:.2f}",
        f"{most['memory']:.0f}",
        f"{time.monotonic() - began:.0f}",
    ]
    return row, kinds


def _kind(finding: str) -> str:
    """A finding without its numbers, to count equal ones together."""
    words = finding.split("\n")[0][:120]
    return "".join("#" if letter.isdigit() else letter for letter in words)


def _worker(name: str, first: int, count: int, seconds: float, options: argparse.Namespace) -> Iterator[dict]:
    """The messages of a worker; the last has its exit code."""
    command = [sys.executable, __file__, "--worker", name, "--first", str(first), "--count", str(count)]
    command += ["--seconds", str(seconds), "--cpu", str(options.cpu), "--mb", str(options.mb)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        )
        assert process.stdout is not None
        signal.signal(signal.SIGALRM, lambda *_: process.kill())
        for line in process.stdout:
            signal.alarm(STUCK)
            yield json.loads(line)
        code = process.wait()
        signal.alarm(0)
        if code:
            errors.seek(0)
            print(errors.read()[-1500:].decode(errors="replace"), file=sys.stderr)
        yield {"code": code}


def main() -> None:
    """Prints the table and the findings."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reader", nargs="*", help="readers (default: all)")
    parser.add_argument("--count", type=int, default=20_000, help="cases for each reader (default: 20000)")
    parser.add_argument("--seconds", type=float, default=1e9, help="time for each reader")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--cpu", type=float, default=10, help="CPU seconds for a case (default: 10)")
    parser.add_argument("--mb", type=float, default=200, help="MB of memory for a case (default: 200)")
    parser.add_argument("--replay", type=int, help="read this case of one reader, with its traceback")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        limits = {"seconds": options.seconds, "cpu": options.cpu, "mb": options.mb}
        return work(options.worker, options.first, options.count, **limits)
    if options.replay is not None:
        return replay(options.reader[0], options.replay)
    from fuzzed_readers import READERS

    from bert_keras.cli.console import table

    rows, findings = [], []
    for name in options.reader or READERS:
        row, kinds = fuzz(name, options)
        rows.append(row)
        print(*row, sep="\t", file=sys.stderr, flush=True)
        for (kind, at), seeds in kinds.items():
            findings.append([name, seeds[0], len(seeds), at, kind])
            print(*findings[-1], sep="\t", file=sys.stderr, flush=True)
    columns = ("reader", "inputs", "results", "refused", "findings", "slowest, CPU s", "most MB", "s")
    table(columns, rows)
    if findings:
        table(("reader", "first seed", "cases", "at", "finding"), findings)
        sys.exit(1)


if __name__ == "__main__":
    main()
