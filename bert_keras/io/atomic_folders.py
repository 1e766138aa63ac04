"""Atomic writes of folders: a folder is complete or unchanged, and one process at a time writes it.

In: a folder and a way to fill it. Out: the folder, with every file synced to disk; after an error, the unchanged folder.

    OUT does not exist   files are written to .OUT.partial/new beside it, which is then renamed to OUT
    OUT exists           files are written to OUT/.partial/new (OUT may be a mount point) and renamed into OUT one after another;
                         OUT/.partial/moving.json lists their names, so that the next writer can undo an interrupted move; it
                         finishes a move that overwrites files, since the old files are gone

`bert_keras.io.output_folder` writes outputs that can be resumed; the outputs here are written in one go.
"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Literal

from bert_keras.errors import BertKerasError, TakenError
from bert_keras.io.files import LOCK, locked, sync, write_json
from bert_keras.io.json_files import FLAG, TEXT, list_of, read_object, typed
from bert_keras.io.remote_paths import refuse_remote

PARTIAL = ".partial"  # the suffix of the folder with incomplete files
NEW, JOURNAL = "new", "moving.json"  # in that folder


def check_folder(path: pathlib.Path, *, existing: Literal["refuse", "keep", "overwrite"] = "refuse") -> None:
    """Raises BertKerasError for a folder that `whole_folder` would refuse, without a lock: call it before long work."""
    refuse_remote(path, "this folder")
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise TakenError(f"{path} is a file; give a folder.")
    interrupted = (path / PARTIAL).exists()  # `whole_folder` first ends the move of its files
    if existing == "refuse" and path.is_dir() and not interrupted:
        _refuse_files(path)


@contextlib.contextmanager
def whole_folder(
    path: pathlib.Path, *, existing: Literal["refuse", "keep", "overwrite"] = "refuse"
) -> Iterator[pathlib.Path]:
    """An empty folder to write to; at the end of the block its content is moved to `path`, unless the block raises.

    existing: "refuse" a folder with files; "keep" its files and refuse equal names; or "overwrite" files of equal names

    The folder is locked during the block. First, files that a killed process left are removed, and its move is undone or, if it
    overwrites files, finished. Raises TakenError for a
    folder that `existing` refuses, BertKerasError if another process writes to it, OSError if it cannot be written.
    """
    check_folder(path, existing=existing)
    path = path.resolve()  # a folder cannot be renamed to a link
    there = path.is_dir()
    work = path / PARTIAL if there else path.with_name(f".{path.name}{PARTIAL}")
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        with locked(path if there else work, output=path):
            try:
                _settle(path, work)
                _check(path, there=there, existing=existing)
                (work / NEW).mkdir(parents=True)
                yield work / NEW
                _publish(path, work, there=there, existing=existing)
            finally:
                _settle(path, work)
    except BaseException:
        _remove_empty(work, *made)
        raise
    _remove_empty(work)


def _check(path: pathlib.Path, *, there: bool, existing: str) -> None:
    """Raises TakenError if the folder has files that must stay."""
    if path.exists() != there:
        raise TakenError(f"{path} was written by another process at the same time; give another folder.")
    if there and existing == "refuse":
        _refuse_files(path)


def _refuse_files(path: pathlib.Path) -> None:
    if set(os.listdir(path)) - {LOCK, PARTIAL}:
        raise TakenError(f"{path} is there already and not empty; give another folder.")


def _publish(path: pathlib.Path, work: pathlib.Path, *, there: bool, existing: str) -> None:
    """Syncs the new files, then gives them their names."""
    new = work / NEW
    for found in (*new.rglob("*"), new):
        sync(found)
    if not there:
        os.rename(new, path)
        sync(path.parent)
        return
    names = sorted(os.listdir(new))
    if existing == "overwrite":
        _refuse_kinds(path, new)
        write_json(work / JOURNAL, {"names": names, "overwrite": True})
        _overwrite(path, new)
    else:
        if taken := [name for name in names if os.path.lexists(path / name)]:
            raise TakenError(f"{path / taken[0]} is there already; give another folder.")
        write_json(work / JOURNAL, {"names": names})
        for name in names:
            os.rename(new / name, path / name)
        sync(path)


def _refuse_kinds(path: pathlib.Path, new: pathlib.Path) -> None:
    """Raises TakenError for a folder in the place of a new file, or the reverse: the move would stop there."""
    for found in new.rglob("*"):
        target = path / found.relative_to(new)
        if target.exists() and target.is_dir() != found.is_dir():
            raise TakenError(f"{target} is a {'folder' if target.is_dir() else 'file'}; give another folder.")


def _overwrite(path: pathlib.Path, new: pathlib.Path) -> None:
    """Moves files one at a time: their folders may hold other files."""
    for file in _files(new):
        target = path / file.relative_to(new)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)
        sync(target.parent)


def _files(new: pathlib.Path) -> list[pathlib.Path]:
    return sorted(found for found in new.rglob("*") if found.is_file())


def refuse_partial(path: pathlib.Path) -> None:
    """Raises BertKerasError for a folder that has only some of its new files. A reader calls it: it changes nothing."""
    work = path / PARTIAL
    if (work / JOURNAL).is_file() and _files(work / NEW):
        raise BertKerasError(
            f"{path} has only some of its new files: their writer was killed, or is moving them now; wait, or write to it again."
        )


def _settle(path: pathlib.Path, work: pathlib.Path) -> None:
    """Ends an interrupted move: undoes it or, if it overwrites files, finishes it. Then removes incomplete files.

    Call it under the lock.
    """
    journal = work / JOURNAL
    known = {"names": list_of(TEXT), "overwrite": FLAG}
    moving = read_object(journal) if journal.is_file() else {"names": []}
    moving = typed(moving, known, where=journal, optional=("overwrite",))
    if moving.get("overwrite"):
        _overwrite(path, work / NEW)
    else:
        names = moving["names"]
        left = {name for name in names if os.path.lexists(work / NEW / name)}
        moved = [path / name for name in names if name not in left and name == os.path.basename(name)]
        for target in moved if left else ():  # with none left, the move was complete
            _remove(target)
    for name in (NEW, *os.listdir(work)) if work.is_dir() else ():
        if name != LOCK:
            _remove(work / name)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_empty(*folders: pathlib.Path) -> None:
    """Removes empty folders, in the given order."""
    for folder in folders:
        with contextlib.suppress(OSError):  # it holds files, perhaps those of another process
            folder.rmdir()
