"""Paths: of users, on other file systems such as gs://bucket/corpus, and for TensorFlow; and the order of Python's search path.

A RemotePath has the methods of pathlib.Path that this package calls, so that readers do not ask where a file is. It reads and
writes through tf.io.gfile.
"""

import contextlib
import difflib
import errno
import fnmatch
import io
import os
import pathlib
import re
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from bert_keras.errors import BertKerasError

ROOT = pathlib.Path(__file__).parents[2]
# TensorFlow reads a checkpoint's path with one of these as a pattern; on Windows, the last separates folders.
PATTERN = frozenset("*?[]" if os.name == "nt" else "*?[]\\")
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


def to_path(given: str | os.PathLike[str]) -> pathlib.Path:
    """A path with `~` and `~user` expanded, or a remote path; the name of an unknown user stays as it is.

    given: a path, file:///PATH, or an address of another file system such as gs://BUCKET/PATH
    """
    if is_remote(given):
        return RemotePath(given)
    return pathlib.Path(os.path.expanduser(os.fspath(given).removeprefix("file://")))


def close_paths(path: pathlib.Path) -> list[str]:
    """The paths that a missing path may mean: where its first missing part has a close name, at most three.

    `dta/train.csv` gives `data/train.csv` if the folder `data` has such a file, else `data`.
    """
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    try:
        beside = [entry.name for entry in missing.parent.iterdir()]
    except OSError:  # a file, or a folder that cannot be read
        return []
    found = [missing.parent / name for name in difflib.get_close_matches(missing.name, beside, cutoff=0.8)]
    whole = [name / path.relative_to(missing) for name in found]
    return [os.fspath(name) for name in [name for name in whole if name.exists()] or found]


def did_you_mean(path: pathlib.Path, *, others: Sequence[str] = ()) -> str:
    """`others`, then the `close_paths` of a missing path, in brackets for an error; nothing if there are none."""
    close = [*others, *close_paths(path)]
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def cache_folder() -> pathlib.Path:
    """The folder of fetched data files: $XDG_CACHE_HOME/bert-keras, by default below ~/.cache."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "bert-keras"


@contextlib.contextmanager
def for_tensorflow(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A path that TensorFlow does not read as a pattern: `path` itself, or a link to it in a temporary folder.

    path: a folder, or the prefix of a checkpoint's files

    A file written through the link to a folder is in that folder. Raises ValueError if the temporary folder's name is a pattern
    too.
    """
    if not _is_pattern(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="bert-keras-") as folder:
        if _is_pattern(folder):
            raise BertKerasError(
                f"TensorFlow reads {path} as a pattern, and {folder} too; rename one of the two, or set TMPDIR to another folder."
            )
        for found in path.absolute().parent.iterdir():
            if found.name == path.name or found.name.startswith(f"{path.name}."):
                (pathlib.Path(folder) / f"link{found.name.removeprefix(path.name)}").symlink_to(found)
        yield pathlib.Path(folder) / "link"


def _is_pattern(path: str | os.PathLike[str]) -> bool:
    return not PATTERN.isdisjoint(os.fspath(path))


def import_current_folder_last() -> None:
    """Moves the current folder, which `python -m` puts first, behind the installed packages.

    It stays first if this package itself was imported from it: a checkout must not be mixed with an installed version.
    The folder of this package is put before it, because Python uses the finder of an editable install after all of sys.path.
    """
    try:
        current = os.getcwd()
    except FileNotFoundError:  # it has been deleted
        return
    if not sys.flags.safe_path and sys.path[:1] == [current] and not ROOT.samefile(current):
        sys.path.append(sys.path.pop(0))
        if str(ROOT) not in sys.path:
            sys.path.insert(-1, str(ROOT))


# -----------------------------------------------------------------------------------------------------------
# Remote paths


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

    def resolve(self, strict: bool = False) -> "RemotePath":
        return self

    absolute = expanduser = resolve

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
