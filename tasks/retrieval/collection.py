"""Reads a collection of texts with ids: corpus.jsonl of BEIR, a table, or a text per line.

In: a file, or a folder with corpus.jsonl. Out: (id, text) in the order of the file, as often as the texts are asked for.

Source of the form: Thakur et al. 2021, BEIR.
"""

import dataclasses
import functools
import pathlib
from array import array
from collections.abc import Iterator

import numpy as np

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.files import digest
from bert_keras.tasks.data.sources import check_input, listing, nonblank_lines
from bert_keras.tasks.data.tables import checked_text, get_ending, read_table

CORPUS, BEIR_ID, TITLE = "corpus.jsonl", "_id", "title"


@dataclasses.dataclass(frozen=True)
class Collection:
    """A collection of texts.

    path: a .csv, .tsv, .jsonl, .json or .parquet file; another file, of which each line that is not blank is a text; or a folder
        with corpus.jsonl
    column: the column of the texts

    A table's ids are in the column "_id", or else "id"; without such a column, a row's number from 0 is its id, and a line's
    number from 1. A row with "_id" and "title" is BEIR's: its text is the title, a space and the text.
    """

    path: pathlib.Path
    column: str = "text"

    def __post_init__(self) -> None:
        if self.path.is_dir() and not (self.path / CORPUS).is_file():
            raise MissingFileError(
                f"{self.path} has no {CORPUS}; it has {listing(self.path)}; give a file of texts, or a folder with {CORPUS}."
            )
        check_input(self._file)

    @property
    def _file(self) -> pathlib.Path:
        return self.path / CORPUS if self.path.is_dir() else self.path

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields ids and texts. Raises BertKerasError, with the row, for a text that is none."""
        if get_ending(self._file) is None:
            yield from ((str(number), line) for number, line in nonblank_lines(self._file))
            return
        rows = read_table(self._file, [self.column], optional=[BEIR_ID, "id", TITLE])
        for where, idx, (text, own, other, title) in rows:
            text = checked_text(text, where, self.column)
            if own is not None and title:
                text = f"{checked_text(title, where, TITLE)} {text}".strip()
            id_ = own if own is not None else other if other is not None else idx
            yield checked_text(str(id_), where, "id"), text

    @functools.cached_property
    def described(self) -> tuple[int, str]:
        """The number of texts, and the SHA-256 of all ids and texts. Raises BertKerasError for no text, and for an id twice."""
        hashes = array("q")  # in place of a set of ids, which takes ten times the memory

        def parts() -> Iterator[str]:
            for id_, text in self:
                hashes.append(hash(id_))
                yield id_
                yield text

        found = digest(parts())
        if not hashes:
            raise BertKerasError(f"{self._file} has no text; at least one is wanted.")
        values, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
        if (counts > 1).any():
            twice = {*values[counts > 1].tolist()}
            id_ = next(id_ for id_, _ in self if hash(id_) in twice)
            raise BertKerasError(
                f"{self._file} has the id {id_!r} more than once; give each text its own id."
            )
        return len(hashes), found
