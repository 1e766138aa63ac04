"""Atomic writes of files, a lock that lets one process at a time write an output, and TensorFlow's errors as Python's.

In: a path and a way to write it. Out: the file, synced to disk; after an error, nothing has changed.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import filelock

from bert_keras.errors import BertKerasError, first_line
from bert_keras.io.paths import RemotePath, refuse_remote

TEMPORARY = ".tmp"  # the suffix of an incomplete file
# .NAME.PROCESS.tmp, with a hexadecimal number on remote file systems.
_TEMPORARY_NAME = re.compile(r"\..+\.([0-9]+|[0-9a-f]{32})\.tmp", re.DOTALL)
LOCK = ".lock"  # held while its folder is written


@contextlib.contextmanager
def atomic_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary file to write; at the end it is synced and renamed to `path`, or removed after an error.

    The temporary file of a remote path is on the local disk, and is uploaded at the end.
    """
    if isinstance(path, RemotePath):
        with tempfile.TemporaryDirectory(prefix="bert-keras-") as folder:
            yield pathlib.Path(folder) / path.name
            path.upload(pathlib.Path(folder) / path.name)
        return
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
    """Writes strict JSON atomically. Raises ValueError on NaN and infinity, which JSON does not have."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def sync(path: pathlib.Path) -> None:
    """Syncs a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(path: pathlib.Path) -> bool:
    """True for a file with a name that `atomic_file` gives to an incomplete file."""
    return _TEMPORARY_NAME.fullmatch(path.name) is not None and path.is_file()


def remove_temporary(folder: pathlib.Path) -> None:
    """Removes the temporary files that a killed process left in a folder. Call it under the folder's lock."""
    for file in list(folder.iterdir()):
        if is_temporary(file):
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: pathlib.Path, *, output: pathlib.Path | None = None) -> Iterator[None]:
    """Makes a folder and locks it against other processes; the thread that holds the lock may take it again.

    output: the folder that the error names, if not this one

    Raises BertKerasError if another process holds the lock, and for a remote folder, which cannot be locked.
    """
    refuse_remote(output or folder, "this folder")
    folder.mkdir(parents=True, exist_ok=True)
    # The resolved path, because filelock finds a lock that this process holds by its path.
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
            file.unlink(missing_ok=True)  # filelock does not lock a file that was unlinked
        lock.release()


def digest(parts: Iterable[bytes | str]) -> str:
    """SHA-256 of parts, each after its length."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def digest_file(path: pathlib.Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


# -----------------------------------------------------------------------------------------------------------
# TensorFlow's errors as Python's


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """Turns TensorFlow's write errors, such as a full disk, into an OSError of one line."""
    import tensorflow as tf

    errors = tf.errors
    try:
        yield
    except (
        errors.UnavailableError,
        errors.AbortedError,
        errors.CancelledError,
        errors.DeadlineExceededError,
    ):
        raise  # of another process, not of a file
    except errors.OpError as error:
        reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]", "", first_line(error))  # without the graph's nodes
        raise OSError(f"cannot write {reason}") from error


@contextlib.contextmanager
def data_errors() -> Iterator[None]:
    """Turns TensorFlow's errors about the elements of a tf.data.Dataset into a BertKerasError.

    They are a BertKerasError that Python code raised inside the data set, and an object that is no tensor, such as None.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        if ours := re.search(rf"\b{BertKerasError.__name__}: (.*)", str(error)):
            raise BertKerasError(ours[1]) from None  # its traceback is TensorFlow's
        if other := re.search(r"Unsupported object type (\w+)", str(error)):
            raise BertKerasError(
                f"an element of the data set has a {other[1]} where its specification has a string or a number; give one."
            ) from error
        raise
