"""Atomic writes of files, a lock that lets one process at a time write an output, and TensorFlow's errors as Python's.

In: a path and a way to write it. Out: the file, synced to disk; after an error, nothing has changed.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import filelock

from bert_keras.errors import BertKerasError, first_line
from bert_keras.io.paths import RemotePath, refuse_remote

# .NAME.RANDOM.tmp: a local folder with an incomplete file; on remote file systems, the file itself.
_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{32}\.tmp", re.DOTALL)
LOCK = ".lock"  # held while its folder is written


@contextlib.contextmanager
def atomic_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary file to write; at the end it is synced and renamed to `path`, or removed after an error.

    Each writer has a temporary file of its own, so that the last of several writers wins with a whole file. A link is followed,
    the mode of an earlier file is kept, and a new file has the mode of the umask. The temporary files of killed writers are
    removed first. The temporary file of a remote path is on the local disk, and is uploaded at the end.
    """
    if isinstance(path, RemotePath):
        with tempfile.TemporaryDirectory(prefix="bert-keras-") as folder:
            yield pathlib.Path(folder) / path.name
            path.upload(pathlib.Path(folder) / path.name)
        return
    path = path.resolve()
    remove_temporary(path.parent)
    with _own_folder(path) as own:
        yield own / path.name
        # A library may have made the file anew, with a mode of its own.
        mode = path.stat().st_mode if path.exists() else own.stat().st_mode & 0o666
        os.chmod(own / path.name, stat.S_IMODE(mode))
        sync(own / path.name)
        os.replace(own / path.name, path)
        sync(path.parent)


@contextlib.contextmanager
def _own_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A new folder beside a file, removed at the end. The lock in it says that its process lives."""
    folder, lock = _locked_folder(path)
    while not (folder / LOCK).exists():  # another process removed it before it was locked
        lock.release()
        folder, lock = _locked_folder(path)
    try:
        yield folder
    finally:
        _unlock(lock, folder)


def _unlock(lock: filelock.BaseFileLock, path: pathlib.Path) -> None:
    """Removes a locked file, or the folder with the locked file, and releases the lock."""
    if os.name == "nt":  # Windows removes no open file
        lock.release()
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)  # filelock does not lock a file that was unlinked
    lock.release()


def _locked_folder(path: pathlib.Path) -> tuple[pathlib.Path, filelock.BaseFileLock]:
    """A new folder beside a file, with its lock. The lock makes the folder again if another process removed it."""
    folder = path.with_name(f".{path.name[:50]}.{uuid.uuid4().hex}.tmp")
    folder.mkdir()
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire()
    except (FileNotFoundError, FileExistsError):
        # Another process removed it: before the lock, or while pathlib's mkdir(exist_ok=True) asked what was there.
        return _locked_folder(path)
    except OSError:  # a full disk
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, lock


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes strict JSON atomically. Raises ValueError on NaN and infinity, which JSON does not have."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def sync(path: pathlib.Path) -> None:
    """Syncs a file's content, or a folder's list of names, to disk. Windows has no such list, and syncs files open to write."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary(folder: pathlib.Path) -> None:
    """Removes what killed writers left in a folder. A writer that lives holds the lock of its temporary folder."""
    for found in list(folder.iterdir()):
        if _TEMPORARY_NAME.fullmatch(found.name) is None:
            continue
        if isinstance(found, RemotePath):
            found.unlink(missing_ok=True)
            continue
        lock = filelock.FileLock(found / LOCK, blocking=False)
        with contextlib.suppress(OSError):  # locked, or removed meanwhile
            lock.acquire()
            _unlock(lock, found)


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
            _unlock(lock, file)
        else:
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
        if ours := re.search(r"assertion failed: \[(\w+ has [^\]]*)\]", str(error)):
            raise BertKerasError(f"{ours[1]}; give features that this model reads.") from None
        if other := re.search(r"Unsupported object type (\w+)", str(error)):
            raise BertKerasError(
                f"an element of the data set has a {other[1]} where its specification has a string or a number; give one."
            ) from error
        raise
