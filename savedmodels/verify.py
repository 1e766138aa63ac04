"""The tools of a checked export: a folder that gets its name last, a fresh process that answers, the comparison, the checksums.

In: a folder, and example inputs with the answers of this process. Out: the complete folder, or an error and an unchanged folder.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.files import digest_file, write_json
from bert_keras.io.folders import atomic_folder
from bert_keras.io.formats import SAVED_MODEL, check_format, stamp
from bert_keras.io.json_files import OBJECT, checked_fields, object_of, read_object
from bert_keras.io.paths import for_tensorflow, to_path
from bert_keras.savedmodels import reload

# Both processes must give the same answers for these texts: plain, empty, accented, CJK, emoji and long.
SAMPLES = (
    "a charming and often affecting journey",
    "",
    "Çà et là, ﬁne œuvres: naïve façade?",
    "这部电影很好看。",
    "so-so \N{GRINNING FACE} [SEP] [MASK] ...",
    "word " * 600,
)
TOLERANCE = 1e-6  # for probabilities and scores of the same graph
NARROW = 2**-6  # for bfloat16 and float16: four times the last place of a bfloat16 at 1
ROUNDING = 1e-5  # for those of another graph of the same numbers, which adds them up in another order


class ExportError(BertKerasError):
    """The reloaded model does not answer like the exported model."""


@contextlib.contextmanager
def publishing(
    directory: pathlib.Path, *, existing: Literal["refuse", "keep"] = "keep"
) -> Iterator[pathlib.Path]:
    """Yields an empty folder to write to. At the end of the block its entries move to `directory`.

    existing: "keep" other entries of the directory, or "refuse" a directory that has any

    Raises BertKerasError as `atomic_folder` does, and instead of an OSError in the block.
    """
    try:
        with atomic_folder(directory, existing=existing) as new:
            yield new
    except BertKerasError:
        raise
    except OSError as error:
        raise BertKerasError(
            f"cannot export to {directory}: {error.strerror or error}; "
            "give a writable folder with space for the model."
        ) from error


def ask(
    directory: str | pathlib.Path,
    raw: Mapping[str, Sequence[Any]],
    *,
    script: str | pathlib.Path = reload.__file__,
) -> dict[str, Any]:
    """The answers of an exported folder in a fresh process, as lists by name.

    raw: strings, or rows of numbers, by input
    script: the program that answers: it gets the folder as its argument, or is in the folder

    Raises ExportError if the process fails.
    """
    with for_tensorflow(to_path(directory).resolve()) as found:
        process = subprocess.run(
            [sys.executable, str(script), *([str(found)] if script == reload.__file__ else [])],
            input=json.dumps({name: list(texts) for name, texts in raw.items()}),
            capture_output=True,
            text=True,
            cwd="/",
        )
    if process.returncode:
        reason = process.stderr.strip().splitlines() or [f"its exit code is {process.returncode}"]
        raise ExportError(f"a fresh process could not answer from {directory}: {reason[-1]}")
    return json.loads(process.stdout)


def compare(
    expected: Mapping[str, np.ndarray], answers: Mapping[str, Any], *, tolerance: float = TOLERANCE
) -> None:
    """Raises ExportError unless the strings are equal and the numbers are finite and differ by at most `tolerance`.

    Where the numbers of an example [B, ...] exceed 1, the tolerance is relative to the largest of them.
    """
    if set(expected) != set(answers):
        raise ExportError(f"the reloaded model returns {sorted(answers)}; expected {sorted(expected)}.")
    for name, value in expected.items():
        answer = np.asarray(answers[name])
        if value.shape != answer.shape:
            raise ExportError(f"{name} has shape {answer.shape} after reloading; expected {value.shape}.")
        if value.dtype == object:
            if [text.decode("utf-8", "replace") for text in value.ravel()] != answer.ravel().tolist():
                raise ExportError(
                    f"{name} changed after reloading: {answer.tolist()}; expected {value.tolist()}."
                )
        elif not np.isfinite(value).all():
            raise ExportError(f"{name} has NaN or infinite numbers; train the model again.")
        elif not (relative(value, answer) <= tolerance).all():  # NaN too
            difference = np.abs(value - answer).max()
            raise ExportError(
                f"{name} differs by {difference:.1e} after reloading; the tolerance is {tolerance:.0e}."
            )


def relative(value: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """The largest difference in each example, [B, ...] -> float [B]; relative to its largest number, if that exceeds 1."""
    rows = value.reshape(len(value), -1)
    if not rows.size:
        return np.zeros(len(value))
    differences = np.abs(rows - answer.reshape(rows.shape)).max(axis=1)
    return differences / np.maximum(1, np.abs(rows).max(axis=1))


# -----------------------------------------------------------------------------------------------------------
# The manifest of a version: the size and SHA-256 of every other file

EXTRA = "assets.extra"  # the folder of a version that TensorFlow's loader ignores
# In EXTRA.
MANIFEST, CARD, EXAMPLE, BOUNDS = "manifest.json", "model_card.md", "example.json", "score_bounds.json"


def write_manifest(folder: pathlib.Path) -> None:
    """Writes the size and SHA-256 of every file of a version."""
    (folder / EXTRA).mkdir(exist_ok=True)
    write_json(folder / EXTRA / MANIFEST, stamp(SAVED_MODEL) | {"files": _described(folder)})


def verify_files(folder: str | pathlib.Path) -> dict[str, Any]:
    """Compares a version with its manifest. Returns its files, {path: {"bytes", "sha256"}}.

    Raises MissingFileError without a manifest, BertKerasError if files are missing, changed or added, with their names.
    """
    folder = to_path(folder)
    path = folder / EXTRA / MANIFEST
    if not path.is_file():
        raise MissingFileError(f"{folder} has no {EXTRA}/{MANIFEST}; give the folder of an exported version.")
    content = read_object(path)
    check_format(SAVED_MODEL, content, where=path)
    wanted = checked_fields(content, {"files": object_of(OBJECT)}, where=path, others=True)["files"]
    found = _described(folder)
    if wrong := sorted(name for name in wanted | found if wanted.get(name) != found.get(name)):
        raise BertKerasError(
            f"{folder} differs from its manifest: {', '.join(wrong)} missing, changed or added; export again."
        )
    return wanted


def _described(folder: pathlib.Path) -> dict[str, Any]:
    """The bytes and SHA-256 of every file except the manifest, by path."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: {"bytes": path.stat().st_size, "sha256": digest_file(path)}
        for name, path in sorted(paths.items())
        if name != f"{EXTRA}/{MANIFEST}"
    }
