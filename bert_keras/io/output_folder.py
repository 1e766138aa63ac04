"""Output folders: their identity, their lock, and the files that they may hold.

    check   is cheap and changes nothing: call it before long work
    begin   locks the folder, then writes the identity or compares it with the existing one
    finish  writes the results

A folder is finished, unfinished or empty. A folder with other files is an error, so that no file is lost.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.files import is_temporary, locked, remove_temporary, write_json
from bert_keras.io.json_files import read_object
from bert_keras.io.paths import path_of
from bert_keras.io.remote_paths import is_remote, refuse_remote


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The files that identify a kind of folder.

    name: the name in errors, such as "a run"
    identity: the file, possibly in a subfolder, with everything that decides the output: a JSON object
    results: the last file of a finished output: a JSON object
    early: names that may exist before `identity`, because older versions wrote them first
    remote: the folder may be on another file system, where no lock holds other processes off
    """

    name: str
    identity: str
    results: str
    early: tuple[str, ...] = ()
    remote: bool = False


class Folder:
    """One output of a layout."""

    def __init__(self, path: str | pathlib.Path, layout: Layout) -> None:
        self.path, self.layout = path_of(path), layout

    @property
    def finished(self) -> bool:
        """True if the folder has its results."""
        return (self.path / self.layout.results).is_file()

    @property
    def begun(self) -> bool:
        """True if the folder has its identity."""
        return (self.path / self.layout.identity).is_file()

    def check(self, *, reopen: bool = False) -> None:
        """Raises BertKerasError unless the folder is missing, empty or an unfinished output of this layout.

        reopen: accept a finished output too
        """
        if not self.layout.remote:
            refuse_remote(self.path, self.layout.name)
        if self.path.exists() and not self.path.is_dir():
            raise BertKerasError(f"{self.path} is a file; give a folder.")
        if self.finished and not reopen:
            raise BertKerasError(
                f"{self.path} already holds {self.layout.name}; give another folder, or remove this one first."
            )
        if self.begun or not self.path.is_dir():
            return
        others = [
            file.name
            for file in sorted(self.path.iterdir())
            if file.name not in self.layout.early and not file.name.startswith(".") and not is_temporary(file)
        ]
        if others:
            raise BertKerasError(
                f"{self.path} is neither empty nor {self.layout.name}: it holds {others[0]}; give a new or empty folder."
            )

    @contextlib.contextmanager
    def begin(self, identity: Mapping[str, Any], *, reopen: bool = False) -> Iterator[bool]:
        """Locks the folder while its output is written; yields True if it was begun before.

        identity: everything that decides the output, plain JSON
        reopen: accept a finished output too, to read it or to write its results again

        Raises BertKerasError as `check` does, if another process has locked the folder, if the folder cannot be written, and if
        its identity differs, with the first field that differs.
        """
        self.check(reopen=reopen)
        identity = json.loads(json.dumps(identity))  # tuples become lists, as in the file
        with contextlib.ExitStack() as stack:
            try:
                if is_remote(self.path):
                    self.path.mkdir(parents=True, exist_ok=True)
                else:
                    stack.enter_context(locked(self.path))
                remove_temporary(self.path)
                self.check(reopen=reopen)  # another process may have finished meanwhile
                begun = self.begun
                if not begun:
                    (self.path / self.layout.identity).parent.mkdir(exist_ok=True)
                    write_json(self.path / self.layout.identity, identity)
            except OSError as error:
                raise BertKerasError(
                    f"cannot write to {self.path}: {error.strerror}; give a writable folder."
                ) from error
            if begun:
                check_equal(self.path, self.identity(), identity)
            yield begun

    def identity(self) -> dict[str, Any]:
        """Reads the identity."""
        return read_object(self.path / self.layout.identity)

    def results(self) -> dict[str, Any]:
        """Reads the results of a finished output."""
        return read_object(self.path / self.layout.results)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the results: the last file."""
        write_json(self.path / self.layout.results, results)


def check_equal(path: pathlib.Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises BertKerasError with the first field in which two identities differ.

    found: the identity in the folder `path`
    wanted: the identity of this call

    A field that is missing equals null: an earlier version did not have this setting.
    """
    found, wanted = _without_null(found), _without_null(wanted)
    for field in (*wanted, *found):
        if field not in found or field not in wanted or found[field] != wanted[field]:
            there, asked = _shortened(json.dumps(found.get(field)), json.dumps(wanted.get(field)))
            raise BertKerasError(
                f"{path} was made with another {field}: {there}, not {asked}; "
                "give the same, or another folder, or remove this one."
            )


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_null(inner) for name, inner in value.items() if inner is not None}
    return [_without_null(inner) for inner in value] if isinstance(value, list) else value


def _shortened(*texts: str) -> list[str]:
    """The texts; long ones from shortly before the first place where they differ, at most 80 characters."""
    start = max(0, len(os.path.commonprefix(texts)) - 30) if max(map(len, texts)) > 80 else 0
    parts = [("..." if start else "") + text[start:] for text in texts]
    return [part if len(part) <= 80 else f"{part[:77]}..." for part in parts]
