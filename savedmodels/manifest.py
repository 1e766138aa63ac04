"""The manifest of an exported version: the size and SHA-256 of its files.

In: the folder of a version. Out: assets.extra/manifest.json, or an error with the files that differ from it.
"""

import pathlib
from typing import Any

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.files import digest_of_file, write_json
from bert_keras.io.json_files import (
    OBJECT,
    object_of,
    read_object,
    typed,
)
from bert_keras.io.paths import path_of

EXTRA = "assets.extra"  # the folder of a version that TensorFlow's loader ignores
MANIFEST, CARD, EXAMPLE = "manifest.json", "model_card.md", "example.json"  # in EXTRA


def write_manifest(folder: pathlib.Path) -> None:
    """Writes the size and SHA-256 of every file of a version."""
    write_json(folder / EXTRA / MANIFEST, {"files": _described(folder)})


def verify(folder: str | pathlib.Path) -> dict[str, Any]:
    """Compares a version with its manifest. Returns its files, {path: {"bytes", "sha256"}}.

    Raises MissingFileError without a manifest, BertKerasError if files are missing, changed or added, with their names.
    """
    folder = path_of(folder)
    path = folder / EXTRA / MANIFEST
    if not path.is_file():
        raise MissingFileError(f"{folder} has no {EXTRA}/{MANIFEST}; give the folder of an exported version.")
    wanted = typed(read_object(path), {"files": object_of(OBJECT)}, where=path, others=True)["files"]
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
        name: {"bytes": path.stat().st_size, "sha256": digest_of_file(path)}
        for name, path in sorted(paths.items())
        if name != f"{EXTRA}/{MANIFEST}"
    }
