"""Paths on other file systems, such as gs://bucket/corpus, read and written through tf.io.gfile.

A RemotePath has the methods of pathlib.Path that this package calls, so that readers do not ask where a file is.
"""

import contextlib
import errno
import fnmatch
import io
import os
import pathlib
import re
import uuid
from collections.abc import Iterator
from typing import Any

from bert_keras.errors import BertKerasError

# TensorFlow has gs, and ram, which is memory for tests. The others are named here so that a path with one of them raises an error
# that says so, and not one about a local file.
SCHEMES = ("gs", "ram", "s3", "az", "hdfs")
_REMOTE = re.compile(rf"({'|'.join(SCHEMES)}):/")
BUFFER_BYTES = 1 << 20  # read at once: each read is a request


def is_remote(path: str | os.PathLike[str]) -> bool:
    """True for a path with one of SCHEMES."""
    return _REMOTE.match(os.fspath(path)) is not None


def files_below(path: pathlib.Path) -> list[pathlib.Path]:
    """The files in a folder and in the folders below it.

    In a remote folder, each path with nothing below is taken for a file: to ask would be a request for each. Object stores have
    no empty folders.
    """
    found = [*path.rglob("*")]
    if not isinstance(path, RemotePath):
        return [one for one in found if one.is_file()]
    folders = {one.parent for one in found}
    return [one for one in found if one not in folders]


def refuse_remote(path: pathlib.Path, what: str) -> None:
    """Raises BertKerasError for a remote path. what: the output, such as "a run"."""
    if is_remote(path):
        raise BertKerasError(
            f"{path}: {what} is written to a local disk; give a local path, and copy it afterwards."
        )


def refuse_remote_weights(path: pathlib.Path) -> None:
    """Raises BertKerasError for a remote path of a checkpoint or a model: the libraries of their formats open local files."""
    if is_remote(path):
        raise BertKerasError(
            f"{path}: checkpoints and models are read from a local disk; copy it there first."
        )


class RemotePath(pathlib.PosixPath):
    """A path such as gs://bucket/folder/file. Its errors are Python's: FileNotFoundError, PermissionError, OSError."""

    def __str__(self) -> str:
        scheme, colon, rest = super().__str__().partition(":/")  # pathlib joins the two slashes
        return f"{scheme}://{rest}" if colon else scheme

    def __fspath__(self) -> str:
        return str(self)

    @property
    def _is_root(self) -> bool:
        return len(self.parts) <= 1

    def exists(self, **_: Any) -> bool:
        with _errors(self):
            return self._is_root or _gfile().exists(str(self))

    def is_dir(self, **_: Any) -> bool:
        with _errors(self):
            return self._is_root or _gfile().isdir(str(self))

    def is_file(self, **_: Any) -> bool:
        return self.exists() and not self.is_dir()

    def stat(self, **_: Any) -> os.stat_result:
        """Only size and time are known."""
        with _errors(self):
            found = _gfile().stat(str(self))
        mode = 0o040755 if found.is_directory else 0o100644
        seconds = found.mtime_nsec // 10**9
        return os.stat_result((mode, 0, 0, 1, 0, 0, found.length, seconds, seconds, seconds))

    def iterdir(self) -> Iterator["RemotePath"]:  # type: ignore[override]
        with _errors(self):
            names = _gfile().listdir(str(self))
        return (self / name.rstrip("/") for name in sorted(names))

    def glob(self, pattern: str, **_: Any) -> Iterator["RemotePath"]:  # type: ignore[override]
        return (found for found in self.iterdir() if fnmatch.fnmatchcase(found.name, pattern))

    def rglob(self, pattern: str, **_: Any) -> Iterator["RemotePath"]:  # type: ignore[override]
        """All files and folders below this folder, with one request for each level of folders."""
        assert pattern == "*"
        # In brackets, a character stands for itself.
        level = re.sub(r"[*?\[]", lambda found: f"[{found[0]}]", str(self))
        while True:
            level += "/*"
            with _errors(self):
                names = _gfile().glob(level)
            if not names:
                return
            # Object stores may keep an empty object for a folder, whose name ends with a slash.
            yield from (RemotePath(name) for name in sorted(names) if not name.endswith("/"))

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
    ) -> Any:
        if mode not in ("r", "rb"):
            raise ValueError(f"{self} can be opened for reading only; write a local file and `upload` it.")
        with _errors(self):
            stream = io.BufferedReader(_RemoteFile(self), BUFFER_BYTES)
        return stream if mode == "rb" else io.TextIOWrapper(stream, encoding or "utf-8", errors, newline)

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return file.read()

    def read_text(self, encoding: Any = None, errors: Any = None, newline: Any = None) -> str:
        with self.open("r", encoding=encoding, errors=errors, newline=newline) as file:
            return file.read()

    def upload(self, local: pathlib.Path) -> None:
        """Copies a local file here under a temporary name, then renames it."""
        temporary = self.with_name(f".{self.name}.{uuid.uuid4().hex}.tmp")
        with _errors(self):
            try:
                _gfile().copy(str(local), str(temporary))
                _gfile().rename(str(temporary), str(self), overwrite=True)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self.exists() and not exist_ok:
            raise FileExistsError(f"{self} exists")
        with _errors(self):
            _gfile().makedirs(str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with _errors(self):
                _gfile().remove(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        with _errors(self):
            _gfile().rmtree(str(self))

    def absolute(self) -> "RemotePath":
        return self

    def resolve(self, strict: bool = False) -> "RemotePath":
        return self

    def expanduser(self) -> "RemotePath":
        return self

    def is_symlink(self) -> bool:
        return False


class _RemoteFile(io.RawIOBase):
    """The bytes of a remote file. GFile itself has no `readinto`, and its `readline` no limit."""

    def __init__(self, path: RemotePath) -> None:
        self._path, self._file = path, _gfile().GFile(str(path), "rb")
        self._file.size()  # raises for a missing file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _errors(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _errors(self._path):
            self._file.seek(offset, whence)
            return self._file.tell()

    def tell(self) -> int:
        with _errors(self._path):
            return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _gfile() -> Any:
    import tensorflow as tf  # here, because flags of commands need no TensorFlow

    return tf.io.gfile


@contextlib.contextmanager
def _errors(path: pathlib.Path) -> Iterator[None]:
    """Turns TensorFlow's errors into Python's, in one line."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, f"there is no {path}") from error
    except tf.errors.PermissionDeniedError as error:
        why = f"no permission for {path}; check the credentials of this machine"
        raise PermissionError(errno.EACCES, why) from error
    except tf.errors.UnimplementedError as error:
        raise BertKerasError(
            f"TensorFlow has no file system for {path}; give a local path or one that begins with gs://."
        ) from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, f"{path}: {error.message}") from error
