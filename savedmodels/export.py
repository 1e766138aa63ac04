"""A run becomes a SavedModel: written beside its place, compared in a fresh process, then renamed into it.

In: a Run and a folder. Out: folder/<next number>/saved_model.pb, as TensorFlow Serving reads it, and kit.py's files.
"""

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.paths import for_tensorflow, path_of
from bert_keras.tensorflow_errors import file_errors
from bert_keras.text.preprocessing import Preprocessor
from savedmodels import kit, reload, servers
from savedmodels.servable import Servable
from tasks.training.run import Run

# What the reloaded model must answer as this process does: plain, empty, accented, CJK, emoji and long text.
SAMPLES = (
    "a charming and often affecting journey",
    "",
    "Çà et là, ﬁne œuvres: naïve façade?",
    "这部电影很好看。",
    "so-so \N{GRINNING FACE} [SEP] [MASK] ...",
    "word " * 600,
)
TOLERANCE = 1e-6  # of probabilities and scores
TEMPORARY = ".export-"  # how the folder's name begins that a version is written in
# A short request does not pay for seq_length, and an encoder meets few lengths.
LENGTHS = 8  # wordpieces


class ExportError(BertKerasError):
    """The reloaded model does not answer as the one that was exported."""


def export(run: Run, directory: str | pathlib.Path, *, target: str | None = None) -> pathlib.Path:
    """Writes the next version below `directory` and returns its folder.

    target: of servers.TARGETS, the server that has to have all of the graph's ops

    Raises ValueError, before anything is written, where the target lacks one; where the folder cannot be written; ExportError
    where the reloaded model answers otherwise. Nothing is left behind then and no version that was there is touched.
    """
    directory = path_of(directory)
    servable = servable_of(run)
    if target is not None:
        servers.check(ops_of(servable), target)
    name = directory.resolve().name
    with workplace(directory) as (temporary, undo):
        for file, text in kit.server_files(name).items():
            if not (directory / file).exists():
                undo.callback(_remove, directory / file)
                (directory / file).write_text(text, encoding="utf-8")
        version = next_version(directory)
        save(run, servable, temporary, name=name, version=version)
        compare_in_fresh_process(run, servable, temporary)
        return temporary.rename(directory / str(version))


@contextlib.contextmanager
def workplace(directory: pathlib.Path) -> Iterator[tuple[pathlib.Path, contextlib.ExitStack]]:
    """An empty folder inside `directory`, to write in and to rename, and what an error undoes.

    `directory` is made where it is not there. Raises ValueError for an OSError in the block; after any error nothing is left.
    """
    with contextlib.ExitStack() as undo:
        try:
            for folder in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
                folder.mkdir()
                undo.callback(_remove, folder)
            for left in directory.glob(f"{TEMPORARY}*"):  # by an export that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=TEMPORARY, dir=directory, ignore_cleanup_errors=True
            ) as temporary:
                pathlib.Path(temporary).chmod(0o755)
                yield pathlib.Path(temporary), undo
        except OSError as error:
            raise BertKerasError(
                f"cannot export to {directory}: {error.strerror or error}; "
                "give a folder that can be written, with room for the model."
            ) from error
        undo.pop_all()  # all went well: what was made stays


def _remove(path: pathlib.Path) -> None:
    """A file, or a folder that holds nothing."""
    with contextlib.suppress(OSError):
        path.rmdir() if path.is_dir() else path.unlink()


def servable_of(run: Run) -> Servable:
    """The Servable of a run, with lengths rounded up to a multiple of LENGTHS."""
    preprocess = Preprocessor(
        run.preprocess.tokenizer,
        seq_length=run.preprocess.seq_length,
        truncation=run.preprocess.truncation,
        pad_to_longest=True,
        multiple_of=LENGTHS,
    )
    return Servable(run.task, preprocess, run.model)


def ops_of(servable: Servable) -> set[str]:
    """The ops of all that is saved."""
    graphs = [function.graph.as_graph_def() for function in servable.functions()]
    return set().union(*map(servers.ops_of, graphs))


def save(run: Run, servable: Servable, folder: pathlib.Path, *, name: str, version: int) -> None:
    """Writes a version into an empty folder. Raises OSError where that fails."""
    signatures = servable.signatures()
    with file_errors():
        tf.saved_model.save(servable, str(folder), signatures=signatures)
        texts = sample_inputs(run.task.signature())
        kit.write_extra(folder, run, signatures, texts, name=name, version=version)


def compare_in_fresh_process(run: Run, servable: Servable, folder: pathlib.Path) -> None:
    """Raises ExportError unless a fresh process answers SAMPLES as this one does."""
    raw = sample_inputs(run.task.signature())
    expected = servable.serve(**{name: tf.constant(texts) for name, texts in raw.items()})
    compare({name: value.numpy() for name, value in expected.items()}, ask(folder, raw))


def sample_inputs(signature: Mapping[str, tf.TensorSpec]) -> dict[str, list[Any]]:
    """SAMPLES for every input, each in another order, so that texts of unlike lengths meet."""
    orders = [[*SAMPLES[i:], *SAMPLES[:i]] for i in range(len(SAMPLES))]
    return {
        name: orders[i]
        if len(spec.shape) == 1
        else [[orders[i + k][row] for k in range(spec.shape[1])] for row in range(len(SAMPLES))]
        for i, (name, spec) in enumerate(signature.items())
    }


def next_version(directory: pathlib.Path) -> int:
    """One more than the largest version number in the folder."""
    return 1 + max((int(path.name) for path in directory.iterdir() if path.name.isdecimal()), default=0)


def ask(directory: str | pathlib.Path, raw: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """What an exported folder answers in a fresh process: strings, or rows of numbers, by name -> lists by name.

    Raises ExportError where that process fails.
    """
    with for_tensorflow(path_of(directory).resolve()) as found:
        process = subprocess.run(
            [sys.executable, reload.__file__, str(found)],
            input=json.dumps({name: list(texts) for name, texts in raw.items()}),
            capture_output=True,
            text=True,
            cwd="/",
        )
    if process.returncode:
        reason = process.stderr.strip().splitlines() or [f"it ended with code {process.returncode}"]
        raise ExportError(f"a fresh process could not answer from {directory}: {reason[-1]}")
    return json.loads(process.stdout)


def compare(expected: Mapping[str, np.ndarray], answers: Mapping[str, Any]) -> None:
    """Raises ExportError unless the texts are equal and the numbers within TOLERANCE."""
    if set(expected) != set(answers):
        raise ExportError(f"the reloaded model answers {sorted(answers)}; wanted {sorted(expected)}.")
    for name, value in expected.items():
        answer = np.asarray(answers[name])
        if value.shape != answer.shape:
            raise ExportError(f"{name} has shape {answer.shape} after reloading; wanted {value.shape}.")
        if value.dtype == object:
            if [text.decode("utf-8", "replace") for text in value.ravel()] != answer.ravel().tolist():
                raise ExportError(
                    f"{name} is another after reloading: {answer.tolist()}; wanted {value.tolist()}."
                )
        elif not np.allclose(value, answer, rtol=0, atol=TOLERANCE):
            difference = np.abs(value - answer).max()
            raise ExportError(
                f"{name} differs by {difference:.1e} after reloading; at most {TOLERANCE:.0e} is wanted."
            )
