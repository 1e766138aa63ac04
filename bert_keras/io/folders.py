"""Folders that outputs are written to: in one go, or in many steps that a later process can resume.

`atomic_folder` is for outputs that are written in one go. After an error the folder is unchanged; else it is complete, with every
file synced to disk:

    OUT does not exist   files are written to .OUT.partial/new beside it, which is then renamed to OUT
    OUT exists           files are written to OUT/.partial/new (OUT may be a mount point) and renamed into OUT one after another;
                         OUT/.partial/moving.json lists their names, so that the next writer can undo an interrupted move; it
                         finishes a move that overwrites files, since the old files are gone

`Folder` is for outputs that can be resumed. It is finished, unfinished or empty; a folder with other files is an error:

    check   is cheap and changes nothing: call it before long work
    begin   locks the folder, then writes the fingerprint or compares it with the existing one
    finish  writes the results

One process at a time writes a folder, under the lock of `files.locked`.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from bert_keras.errors import BertKerasError, TakenError
from bert_keras.io.files import LOCK, locked, remove_temporary, sync, write_json
from bert_keras.io.formats import stamp, unstamped
from bert_keras.io.json_files import FLAG, TEXT, checked_fields, list_of, read_object
from bert_keras.io.paths import is_remote, refuse_remote, to_path

Existing = Literal["refuse", "keep", "overwrite"]
PARTIAL = ".partial"  # the suffix of the folder with incomplete files
NEW, JOURNAL = "new", "moving.json"  # in that folder


def _check_place(path: pathlib.Path, what: str) -> None:
    """Raises BertKerasError for a remote path and for a file. what: the output, such as "a run"."""
    refuse_remote(path, what)
    if path.exists() and not path.is_dir():
        raise TakenError(f"{path} is a file; give a folder.")


# -----------------------------------------------------------------------------------------------------------
# Folders that are written in one go


def check_folder(path: pathlib.Path, *, existing: Existing = "refuse") -> None:
    """Raises BertKerasError for a folder that `atomic_folder` would refuse, without a lock: call it before long work."""
    path = path.resolve()
    _check_place(path, "this folder")
    interrupted = (path / PARTIAL).exists()  # `atomic_folder` first ends the move of its files
    if existing == "refuse" and path.is_dir() and not interrupted:
        _refuse_files(path)


@contextlib.contextmanager
def atomic_folder(path: pathlib.Path, *, existing: Existing = "refuse") -> Iterator[pathlib.Path]:
    """An empty folder to write to; at the end of the block its content is moved to `path`, unless the block raises.

    existing: "refuse" a folder with files; "keep" its files and refuse equal names; or "overwrite" files of equal names

    The folder is locked during the block. First, files that a killed process left are removed, and its move is undone or, if it
    overwrites files, finished. Raises TakenError for a folder that `existing` refuses, BertKerasError if another process writes
    to it, OSError if it cannot be written.
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
                if path.exists() != there:
                    raise TakenError(
                        f"{path} was written by another process at the same time; give another folder."
                    )
                if there and existing == "refuse":
                    _refuse_files(path)
                (work / NEW).mkdir(parents=True)
                yield work / NEW
                _publish(path, work, there=there, existing=existing)
            finally:
                _settle(path, work)
    except BaseException:
        _remove_empty(work, *made)
        raise
    _remove_empty(work)


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
        if target.exists():
            shutil.copymode(target, file)
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
    moving = checked_fields(moving, known, where=journal, optional=("overwrite",))
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


# -----------------------------------------------------------------------------------------------------------
# Folders that resume


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The files that identify a kind of folder.

    name: the name in errors, such as "a run"
    artifact: its format, a key of `formats.VERSIONS`
    fingerprint: the file, possibly in a subfolder, with everything that decides the output: a JSON object
    results: the last file of a finished output: a JSON object
    remote: the folder may be on another file system, where no lock holds other processes off
    """

    name: str
    artifact: str
    fingerprint: str
    results: str
    remote: bool = False


class Folder:
    """One output of a layout."""

    def __init__(self, path: str | pathlib.Path, layout: Layout) -> None:
        self.path, self.layout = to_path(path), layout

    @property
    def finished(self) -> bool:
        """True if the folder has its results."""
        return (self.path / self.layout.results).is_file()

    @property
    def begun(self) -> bool:
        """True if the folder has its fingerprint."""
        return (self.path / self.layout.fingerprint).is_file()

    def check(self, *, reopen: bool = False) -> None:
        """Raises BertKerasError unless the folder is missing, empty or an unfinished output of this layout.

        reopen: accept a finished output too
        """
        if not (self.layout.remote and is_remote(self.path)):
            _check_place(self.path, self.layout.name)
        if self.finished and not reopen:
            raise BertKerasError(
                f"{self.path} already holds {self.layout.name}; give another folder, or remove this one first."
            )
        if self.begun or not self.path.is_dir():
            return
        first = self.layout.fingerprint.split("/")[0]  # a folder is made before the file in it
        others = [
            file.name
            for file in sorted(self.path.iterdir())
            if file.name != first and not file.name.startswith(".")
        ]
        if others:
            raise BertKerasError(
                f"{self.path} is neither empty nor {self.layout.name}: it holds {others[0]}; give a new or empty folder."
            )

    @contextlib.contextmanager
    def begin(self, fingerprint: Mapping[str, Any], *, reopen: bool = False) -> Iterator[bool]:
        """Locks the folder while its output is written; yields True if it was begun before.

        fingerprint: everything that decides the output, plain JSON
        reopen: accept a finished output too, to read it or to write its results again

        Raises BertKerasError as `check` does, if another process has locked the folder, if the folder cannot be written, and if
        its fingerprint differs, with the first field that differs. A refusal before any other file is written leaves nothing, so
        that other settings may follow.
        """
        self.check(reopen=reopen)
        fingerprint = json.loads(json.dumps(fingerprint))  # tuples become lists, as in the file
        with contextlib.ExitStack() as stack:
            if not is_remote(self.path) and not self.path.exists():
                stack.callback(_remove_empty, self.path)
            try:
                if is_remote(self.path):
                    self.path.mkdir(parents=True, exist_ok=True)
                else:
                    stack.enter_context(locked(self.path))
                remove_temporary(self.path)
                self.check(reopen=reopen)  # another process may have finished meanwhile
                begun = self.begun
                if not begun:
                    (self.path / self.layout.fingerprint).parent.mkdir(exist_ok=True)
                    stamped = {**stamp(self.layout.artifact), **fingerprint}
                    write_json(self.path / self.layout.fingerprint, stamped)
            except OSError as error:
                raise BertKerasError(
                    f"cannot write to {self.path}: {error.strerror}; give a writable folder."
                ) from error
            if begun:
                check_equal(self.path, self.fingerprint(), fingerprint)
            try:
                yield begun
            except BertKerasError:
                if not begun and not is_remote(self.path):
                    self._forget()
                raise

    def _forget(self) -> None:
        """Removes the fingerprint from a folder that holds nothing else."""
        mark = self.path / self.layout.fingerprint
        if all(file in (mark, self.path / LOCK) for file in self.path.rglob("*") if file.is_file()):
            mark.unlink(missing_ok=True)
            _remove_empty(mark.parent)

    def fingerprint(self) -> dict[str, Any]:
        """Reads the fingerprint. Raises BertKerasError for a format of another version."""
        file = self.path / self.layout.fingerprint
        return unstamped(self.layout.artifact, read_object(file), where=file)

    def results(self) -> dict[str, Any]:
        """Reads the results of a finished output."""
        return read_object(self.path / self.layout.results)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the results: the last file."""
        write_json(self.path / self.layout.results, results)


def check_equal(path: pathlib.Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises BertKerasError with the first field in which two fingerprints differ.

    found: the fingerprint in the folder `path`
    wanted: the fingerprint of this call
    """
    for field in (*wanted, *found):
        if field not in found or field not in wanted or found[field] != wanted[field]:
            there, asked = _shortened(json.dumps(found.get(field)), json.dumps(wanted.get(field)))
            raise BertKerasError(
                f"{path} was made with another {field}: {there}, not {asked}; "
                "give the same, or another folder, or remove this one."
            )


def _shortened(*texts: str) -> list[str]:
    """The texts; long ones from shortly before the first place where they differ, at most 80 characters."""
    start = max(0, len(os.path.commonprefix(texts)) - 30) if max(map(len, texts)) > 80 else 0
    parts = [("..." if start else "") + text[start:] for text in texts]
    return [part if len(part) <= 80 else f"{part[:77]}..." for part in parts]
