"""The format of each kind of file and folder that this package writes: its number, and the version of the writing package.

Writers add `stamp`; readers call `check_format` or `unstamped`. A change that these readers cannot read needs a new number; an
added field that they may ignore needs none. So an old version reads what a newer one writes, until the number changes.
Results have `made_by` too: the command and the versions of the packages. An export, which goes to others, has no command.
"""

import contextlib
import contextvars
import pathlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import OBJECT, TEXT, checked_fields, list_of, or_null, read_object

RUN, STRING_MODEL, SAVED_MODEL, INSTANCES, VECTORS, INDEX, STUDY = (
    "run",  # task.json and checkpoints/settings.json
    "string model",  # a `.keras` file
    "SavedModel",  # the manifest of an export, and of each module of a Hub pair
    "folder of instances",
    "cache of vectors",
    "index of texts",
    "study",  # ablations, grids, probes
)
# Artifact -> each format_version that this version of the package reads; it writes the last. docs/versions.md has the same table,
# and tests/artifacts has a file of each format.
VERSIONS = dict.fromkeys((RUN, STRING_MODEL, SAVED_MODEL, INSTANCES, VECTORS, INDEX, STUDY), range(1, 2))
MANIFEST = "assets.extra/manifest.json"  # in a SavedModel; TensorFlow's loader ignores this folder
RESULTS_FILE = "results.json"  # of a run or a study: its last file
FORMAT_VERSION, WRITTEN_BY, MADE_BY = "format_version", "written_by", "made_by"
# The packages that decide the numbers.
PACKAGES = ("bert-keras", "tensorflow", "tensorflow-text", "keras", "keras-nlp", "numpy")
_COMMAND: contextvars.ContextVar[Sequence[str] | None] = contextvars.ContextVar("command", default=None)


def version_of(package: str) -> str:
    """The version of an installed package, else "(sources)"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its sources
        return "(sources)"


def stamp(artifact: str) -> dict[str, Any]:
    """The fields that a writer adds to the JSON of an artifact, a key of VERSIONS."""
    return {FORMAT_VERSION: VERSIONS[artifact][-1], WRITTEN_BY: f"bert-keras {version_of('bert-keras')}"}


def check_format(artifact: str, found: Mapping[str, Any], *, where: object) -> None:
    """Raises BertKerasError unless the JSON of an artifact has a format that this version reads.

    where: the file, for the error
    """
    version, readable = found.get(FORMAT_VERSION), VERSIONS[artifact]
    if type(version) is int and version in readable:
        return
    by = found.get(WRITTEN_BY)
    writer = f", written by {by[:80]}" if isinstance(by, str) else ""
    named = "no format_version" if version is None else f"format_version {version!r:.80}"
    reads = f"{readable[0]} to {readable[-1]}" if len(readable) > 1 else f"{readable[-1]}"
    newer = type(version) is int and version > readable[-1]
    todo = (
        "upgrade: pip install -U bert-keras"
        if newer
        else "read it with the version that wrote it, or write it again"
    )
    raise BertKerasError(
        f"{where}: this {artifact} has {named}{writer}, and bert-keras {version_of('bert-keras')} reads format_version {reads}; "
        f"{todo}."
    )


def check_saved_model(folder: pathlib.Path) -> None:
    """Raises as `check_format` for a SavedModel with a manifest of ours; those of other programs have none."""
    if (file := folder / MANIFEST).is_file():
        check_format(SAVED_MODEL, read_object(file), where=file)


def unstamped(artifact: str, found: Mapping[str, Any], *, where: object) -> dict[str, Any]:
    """The other fields of an artifact's JSON. Raises as `check_format`."""
    check_format(artifact, found, where=where)
    return {name: value for name, value in found.items() if name not in (FORMAT_VERSION, WRITTEN_BY)}


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[None]:
    """Within it, outputs are made by this command: its words after `bert-keras`."""
    token = _COMMAND.set(command)
    try:
        yield
    finally:
        _COMMAND.reset(token)


def made_by() -> dict[str, Any]:
    """The running command, or None in Python, and the versions of Python and PACKAGES: plain JSON for MADE_BY."""
    command = _COMMAND.get()
    versions = {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES}
    return {"command": None if command is None else [*command], "versions": versions}


def command_in(file: pathlib.Path) -> list[str]:
    """The words after `bert-keras` of the command that made a file with MADE_BY. Raises BertKerasError for a file without."""
    found = checked_fields(read_object(file), {MADE_BY: OBJECT}, where=file, optional=(MADE_BY,), others=True)
    kinds = {"command": or_null(list_of(TEXT))}
    made = checked_fields(found.get(MADE_BY, {}), kinds, where=file, optional=kinds, others=True)
    if not made.get("command"):
        raise BertKerasError(
            f"{file} names no command; a result of Python code, or of a run whose loss diverged, has none."
        )
    return list(made["command"])
