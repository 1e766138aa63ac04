"""The terminal side of every command: flags, tables, progress bars, the start of TensorFlow, and errors in one line."""

import argparse
import codecs
import contextlib
import io
import json
import math
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from absl import logging

from bert_keras.errors import BertKerasError, MissingPackageError, WorkerLost
from bert_keras.io.signals import exit_code
from bert_keras.text.rules import TENSORFLOW_TEXT, TEXT_OPS, TEXT_OPS_VARIABLE

PATH: dict[str, Any] = {"type": os.path.expanduser}  # a shell does not expand ~ after `=` or in quotes
# Several values after a flag, which may be repeated.
SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend"}
ESCAPE = "bert_keras_escape"  # an error handler of codecs
SECONDS, PARTS = 30.0, 100  # between two lines about long work; the most lines about it
# Errors that are printed in one line. Any other error is a bug and keeps its traceback.
EXPECTED = (BertKerasError, OSError)


class Command(NamedTuple):
    """One command.

    help: a verb phrase
    example: the arguments of an example
    add_flags: adds its flags to an argparse parser
    run: takes the parsed arguments; may import TensorFlow
    notes: paragraphs below the flags in its help
    trains: SIGTERM and SIGHUP stop it as Ctrl-C does
    add_own: (parser, the words of the command line) -> adds the flags of a user's own code that the words name
    """

    help: str
    example: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    notes: str = ""
    trains: bool = False
    add_own: Callable[[argparse.ArgumentParser, Sequence[str]], None] = lambda parser, words: None


# Flags of every command.
COMMON: dict[str, dict[str, Any]] = {
    "--debug": {"action": "store_true", "help": "show the traceback of an error"},
    "--quiet": {"action": "store_true", "help": "print only results, warnings and errors, without progress"},
    "--text-ops": {
        "choices": TEXT_OPS,
        "help": "make WordPiece of TensorFlow Text's ops, or of TensorFlow's own (core), with equal ids; the default is "
        f"${TEXT_OPS_VARIABLE}, else {TENSORFLOW_TEXT} where it can be imported",
    },
}


def add_parser(group: Any, name: str, help: str, *, epilog: str = "") -> argparse.ArgumentParser:
    """Adds a parser with the flags of every command.

    group: of subparsers; epilog: follows the flags in its help
    """
    made = group.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for flag, settings in COMMON.items():
        made.add_argument(flag, default=argparse.SUPPRESS, **settings)
    return made


def open_closed_streams() -> None:
    """Opens the null device in place of closed standard streams; otherwise the next file opened could become stderr."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)  # inherited by workers
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def escape_missing_characters() -> None:
    """Has the standard streams write a character that their encoding lacks as JSON does, so that JSON lines stay valid."""

    def escape(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return json.dumps(error.object[error.start : error.end])[1:-1], error.end

    codecs.register_error(ESCAPE, escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # a stream of a terminal that is open to read too cannot seek
                stream.reconfigure(errors=ESCAPE)


class EndNow(SystemExit):
    """The end of a process without Python's own, which collects the garbage of a large graph for seconds."""


def flush_streams() -> None:
    """Flushes the standard streams; exits with 1 if that fails."""
    # Python's own flush at the end would print a traceback and exit with 120.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _discard(stream)
            sys.exit(1)


def _discard(stream: Any) -> None:
    """Sends the buffer of a stream and all later output to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def name_flags(text: str) -> str:
    """A message of a function with the flags of the running command in place of the names of arguments.

    A name of one word is only replaced where the error of a setting begins with it: it may be a word of English. Fields of a JSON
    file keep their names, and so do names in quotes.
    """
    if re.search(r"\.json\b", text):
        return text
    setting = re.match(r"([a-z]\w*) is .*; (\1) must be ", text)
    starts = (setting.start(1), setting.start(2)) if setting else ()

    def flag_of(found: re.Match[str]) -> str:
        flag = f"--{found[0].replace('_', '-')}"
        return flag if flag in _flags and ("_" in found[0] or found.start() in starts) else found[0]

    return re.sub(r"(?<![\w.'\"/=-])[a-z]\w*(?![\w'\"(/]|\.\w)", flag_of, text)


def show_warnings(flags: Collection[str] = ()) -> None:
    """Prints each warning in one line, and flushes standard output after each line: people read logs during training.

    flags: of the command, which messages name from now on
    """
    global _flags
    _flags = flags
    warnings.showwarning = lambda message, *rest, **more: print(
        f"warning: {name_flags(str(message))}", file=sys.stderr
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


@contextlib.contextmanager
def one_line_errors(*, debug: bool) -> Iterator[None]:
    """Prints EXPECTED errors in one line and exits with 1; with `debug`, raises them."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has left, as `head` does
        _discard(sys.stdout)
        sys.exit(1)
    except EXPECTED as error:
        if debug:
            raise
        with contextlib.suppress(OSError):  # standard error may be closed too
            print(f"bert-keras: error: {name_flags(' '.join(_reason(error).split()))}", file=sys.stderr)
        if isinstance(error, WorkerLost):
            # TensorFlow's threads may wait for the lost worker when Python ends.
            flush_streams()
            os._exit(1)
        sys.exit(1)
    except KeyboardInterrupt as error:
        with contextlib.suppress(OSError):
            print(f"bert-keras: {error if error.args else 'stopped'}", file=sys.stderr)
        sys.exit(exit_code(error))


def _reason(error: Exception) -> str:
    """The text of an error; Python's own for a current folder that has been deleted names nothing."""
    try:
        os.getcwd()
    except FileNotFoundError:
        if isinstance(error, FileNotFoundError) and error.filename is None:
            return "the current folder has been deleted; change to another folder."
    return str(error)


# These hide the bars of tqdm, which TensorFlow Datasets, pooch and kagglehub show, and of huggingface_hub.
_NO_BARS = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_quiet = False
_flags: Collection[str] = ()


@contextlib.contextmanager
def text_ops_of(name: str | None) -> Iterator[None]:
    """Within it, this process and those that it starts make tokenizers of these ops. None changes nothing."""
    kept = os.environ.get(TEXT_OPS_VARIABLE)
    if name is not None:
        os.environ[TEXT_OPS_VARIABLE] = name
    try:
        yield
    finally:
        if name is not None:
            os.environ.pop(TEXT_OPS_VARIABLE)
        if name is not None and kept is not None:
            os.environ[TEXT_OPS_VARIABLE] = kept


@contextlib.contextmanager
def reporting(*, quiet: bool) -> Iterator[None]:
    """Within it, `say` prints nothing if `quiet`, and no library shows a progress bar if `quiet` or in a log."""
    global _quiet
    _quiet, hidden, stdout = quiet, {}, sys.stdout
    if not shows_bars(sys.stderr):
        hidden = {name: value for name, value in _NO_BARS.items() if name not in os.environ}
    os.environ.update(hidden)
    try:
        yield
    finally:
        _quiet, sys.stdout = False, stdout
        for name in hidden:
            os.environ.pop(name, None)


def print_errors_only() -> None:
    """Until the end of `reporting`, this process prints only warnings and errors: another one reports on the work of both."""
    global _quiet
    _quiet, sys.stdout = True, open(os.devnull, "w", encoding="utf-8")


def say(line: str) -> None:
    """Prints a message about running work; with --quiet only a warning, on standard error."""
    line = name_flags(line) if line.startswith("warning: ") else line
    if not _quiet:
        print(line)
    elif line.startswith("warning: "):
        print(line, file=sys.stderr)


def say_first(line: str) -> Callable[[str], None]:
    """`say`, with a line before the first: what follows the checks of a training, and may not come before their errors."""
    waiting = [line]

    def said(message: str) -> None:
        while waiting:
            say(waiting.pop())
        say(message)

    return said


def note(line: str) -> None:
    """Prints a message about the process itself on standard error; nothing with --quiet."""
    if not _quiet:
        print(line, file=sys.stderr, flush=True)


def shows_bars(stream: Any) -> bool:
    """True if a progress bar may be drawn on a stream: a notebook, or a terminal that can move its cursor; without --quiet."""
    notebook = type(stream).__module__.startswith("ipykernel.")
    return not _quiet and (notebook or (stream.isatty() and os.environ.get("TERM") != "dumb"))


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Hides TensorFlow's start-up lines. C++ writes them, so the file descriptor is redirected."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # `export` starts a second process: the first must not take a GPU's whole memory.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def start(*, deterministic: bool = False, join: Callable[[], Any] = lambda: None) -> Any:
    """Imports TensorFlow without its start-up lines and returns it.

    deterministic: make every op deterministic
    join: called before TensorFlow makes its devices: a process joins a cluster then or never
    """
    with quiet_start():
        try:
            import tensorflow as tf
        except ImportError as error:
            raise MissingPackageError(
                f"{error}; pip install tensorflow; `bert-keras doctor` says what fits on this machine."
            ) from error

        from bert_keras.text.text_ops import chosen_ops

        chosen_ops()  # or an error that names the package

        join()
        tf.config.list_logical_devices()
        tf.get_logger().setLevel("ERROR")
        logging.set_verbosity(logging.ERROR)
        if deterministic:
            tf.config.experimental.enable_op_determinism()
    return tf


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Prints a table; floats have four decimals. No cell is cut: on a narrow terminal it is folded."""
    from rich.console import Console
    from rich.table import Column, Table

    made = Table(*(Column(name, overflow="fold") for name in columns), title=title, title_justify="left")
    for row in rows:
        made.add_row(*[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row])
    width = None if sys.stdout.isatty() else 1000  # a file has no width
    Console(markup=False, emoji=False, highlight=False, width=width).print(made)


def duration(seconds: float) -> str:
    """Seconds as a person reads them: 45 s, 3 min 20 s, 1 h 12 min."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Pace:
    """Decides when a line about long work is due, at most every SECONDS and at most PARTS times, and measures its speed.

    total: steps or examples; None where their number is not known
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began = self._said = time.monotonic()
        self._done = self._first = 0

    def due(self, done: int) -> bool:
        """True if it is time for a line after `done` of `total`; the work's end has its own line. Call it after each step."""
        now = time.monotonic()
        if not self._first:  # the first step also traces the graph
            self._first, self._began = done, now
        if now - self._said < SECONDS:
            return False
        if self._total is not None and ((done - self._done) * PARTS < self._total or done >= self._total):
            return False
        self._said, self._done = now, done
        return done > self._first

    def speed(self, done: int) -> float:
        """Steps a second after the first step."""
        return (done - self._first) / max(time.monotonic() - self._began, 1e-9)


def counter(
    text: str, total: int | None, *, log: Callable[[str], None], unit: str = "examples"
) -> Callable[[int], None]:
    """A function to call with the number of units done: it logs `evaluating: 12,000 of 40,000 examples, 2 min 5 s left`."""
    pace, done = Pace(total), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if not pace.due(done):
            return
        if total is None:
            log(f"{text}: {done:,} {unit}")
        else:
            log(f"{text}: {done:,} of {total:,} {unit}, {duration((total - done) / pace.speed(done))} left")

    return advance


@contextlib.contextmanager
def progress(text: str, total: int | None, *, unit: str = "examples") -> Iterator[Callable[[int], None]]:
    """Yields the function to call with the number of units done; it reports on standard error.

    In a terminal and a notebook it shows Keras' progress bar, elsewhere lines; nothing with --quiet.
    """
    if not shows_bars(sys.stderr):
        yield counter(text, total, log=note, unit=unit)
        return
    import keras

    with contextlib.redirect_stdout(sys.stderr):  # where Keras writes; answers go to standard output
        bar = keras.utils.Progbar(total, unit_name=unit)

    def advance(done: int) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            bar.add(done)

    note(text)
    try:
        yield advance
    finally:
        if total is None:  # else Keras ends the line
            note("")
