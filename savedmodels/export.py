"""A run becomes a SavedModel: written beside its place, compared in a fresh process, then renamed into it.

In: a Run and a folder. Out: folder/<next number>/saved_model.pb, as TensorFlow Serving reads it.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from savedmodels import reload
from savedmodels.servable import Servable
from tasks.train import Run

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


class ExportError(ValueError):
    """The reloaded model does not answer as the one that was exported."""


def export(run: Run, directory: str | pathlib.Path) -> pathlib.Path:
    """Writes the next version below `directory` and returns its folder.

    Raises ValueError where the folder cannot be written, ExportError where the reloaded model answers
    otherwise; nothing is left behind then and no version that was there is touched.
    """
    directory = pathlib.Path(directory)
    made: list[pathlib.Path] = []
    try:
        made += [folder for folder in (directory, *directory.parents) if not folder.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".export-", dir=directory, ignore_cleanup_errors=True
        ) as name:
            temporary = pathlib.Path(name)
            save_and_compare(run, temporary)
            temporary.chmod(0o755)
            return temporary.rename(directory / str(next_version(directory)))
    except OSError as error:
        raise ValueError(
            f"cannot export to {directory}: {error.strerror or error}; "
            "give a folder that can be written, with room for the model."
        ) from error
    finally:
        for folder in made:  # those that hold a version are not empty and stay
            with contextlib.suppress(OSError):
                folder.rmdir()


def save_and_compare(run: Run, folder: pathlib.Path) -> None:
    """Saves and asks a fresh process. Raises OSError on writing, ExportError unless it answers SAMPLES alike."""
    servable = Servable(run.task, run.preprocess, run.model)
    signatures = servable.signatures()
    try:
        tf.saved_model.save(servable, str(folder), signatures=signatures)
    except tf.errors.OpError as error:
        raise OSError(str(error).split("\n")[0]) from error
    raw = sample_inputs(run.task.signature())
    expected = signatures["serving_default"](**{name: tf.constant(texts) for name, texts in raw.items()})
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


def ask(directory: str | pathlib.Path, raw: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What an exported folder answers in a fresh process: strings by name -> lists by name.

    Raises ExportError where that process fails.
    """
    process = subprocess.run(
        [sys.executable, reload.__file__, str(pathlib.Path(directory).resolve())],
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
