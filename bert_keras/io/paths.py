"""Paths from users, paths for TensorFlow, and the order of Python's search path."""

import contextlib
import difflib
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence

from bert_keras.errors import BertKerasError
from bert_keras.io.remote_paths import RemotePath, is_remote

ROOT = pathlib.Path(__file__).parents[2]
PATTERN = frozenset(
    "*?[]\\"
)  # TensorFlow reads a checkpoint's path with one of these characters as a pattern


def path_of(given: str | os.PathLike[str]) -> pathlib.Path:
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
    current = os.getcwd()
    if not sys.flags.safe_path and sys.path[:1] == [current] and not ROOT.samefile(current):
        sys.path.append(sys.path.pop(0))
        if str(ROOT) not in sys.path:
            sys.path.insert(-1, str(ROOT))
