"""Files that are there whole or not at all, and outputs that one process at a time writes.

In: a path and a way to write it. Out: the file, synced to the disk; nothing else where writing failed.
"""

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import filelock

from bert_keras.errors import BertKerasError

TEMPORARY = ".tmp"  # ends the name of a file that is not complete
LOCK = ".lock"  # held for as long as its folder is written to


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary name to write `path` under; it takes the place of `path` at the end, synced, or is removed on an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes strict JSON, whole or not at all. Raises ValueError on NaN and infinity, which JSON does not have."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    with whole_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def sync(path: pathlib.Path) -> None:
    """Has the operating system write a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary(folder: pathlib.Path) -> None:
    """Removes what a killed process left in a folder. Call it under the folder's lock."""
    for name in os.listdir(folder):
        if name.endswith(TEMPORARY):
            (folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: pathlib.Path, *, output: pathlib.Path | None = None) -> Iterator[None]:
    """Makes a folder and keeps every other process out of it; the thread that holds it may enter it again.

    output: the folder that the error names, if another one

    Raises BertKerasError where another process is in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # By the resolved path: filelock knows a lock that this process holds by its name.
    file = folder.resolve() / LOCK
    lock = filelock.FileLock(file, blocking=False, is_singleton=True)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BertKerasError(
            f"another process is writing to {output or folder}; wait until it ends, or give another folder."
        ) from error
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            file.unlink(missing_ok=True)  # filelock takes no lock on a file without a name
        lock.release()


def digest(parts: Iterable[bytes | str]) -> str:
    """SHA-256 of parts, each under its length."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def digest_of_file(path: pathlib.Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
