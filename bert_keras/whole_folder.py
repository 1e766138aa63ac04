"""A folder of outputs that is written whole or not at all."""

import contextlib
import glob
import os
import pathlib
import shutil
from collections.abc import Iterator

from bert_keras.errors import TakenError


def _temporary_of(path: pathlib.Path) -> tuple[pathlib.Path, str]:
    """The place of an output's temporary folders, and the prefix of their names."""
    # Inside the folder if it exists: it may be a mount, and a rename cannot leave a disk.
    return path if path.exists() else path.parent, f".{path.name}.partial-"


def check_new_folder(path: pathlib.Path, *, overwrite: bool = False) -> None:
    """Removes the temporary folders of killed processes. Raises FileExistsError for a folder with other files."""
    place, temporary = _temporary_of(path.resolve())
    for left in place.glob(f"{glob.escape(temporary)}*"):
        shutil.rmtree(left, ignore_errors=True)
    if path.exists() and not (path.is_dir() and (overwrite or not any(path.iterdir()))):
        raise TakenError(f"{path} is there already and not empty; give another folder.")


@contextlib.contextmanager
def whole_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """An empty folder to write in. After the block its files are in `path`; after an error nothing is left.

    path: a new folder, a mount point, or a link to either
    """
    path = path.resolve()  # a folder cannot be renamed to a link
    path.parent.mkdir(parents=True, exist_ok=True)
    place, temporary = _temporary_of(path)
    partial = place / f"{temporary}{os.getpid()}"
    partial.mkdir()
    try:
        yield partial
        _move_in(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _move_in(partial: pathlib.Path, path: pathlib.Path) -> None:
    if not path.exists():
        partial.rename(path)
        return
    # Files one by one: a run's folder holds more than the weights.
    for file in sorted(found for found in partial.rglob("*") if found.is_file()):
        target = path / file.relative_to(partial)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)
