"""Parquet files of vectors: a row for each example, written and read a group of rows at a time."""

import bisect
import contextlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bert_keras.errors import first_line
from bert_keras.model.feature_bilstm import VECTORS

if TYPE_CHECKING:  # imported where it is used: slow to import, and not needed otherwise
    import pyarrow

# A group ends at either; it is what a writer or reader holds in memory at once.
GROUP_BYTES, GROUP_ROWS = 2**20, 256


def write_rows(
    path: pathlib.Path,
    schema: "pyarrow.Schema",
    rows: Iterable[Mapping[str, Any]],
    *,
    value_of: Callable[[Any], Any],
) -> None:
    """Writes rows of the schema's columns, with a checksum for each page.

    value_of: turns "vectors" [N, ...] into a value of the column

    Raises OSError where the file cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    # Vectors repeat nothing that a dictionary or the statistics of a column could use.
    options = {"use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
    with pyarrow.parquet.ParquetWriter(path, schema, **options) as writer:
        for group in _groups(rows):
            columns = {name: [row[name] for row in group] for name in schema.names}
            columns[VECTORS] = [value_of(vectors) for vectors in columns[VECTORS]]
            table = pyarrow.table(columns, schema=schema)
            with _write_errors(path):
                writer.write_table(table)
        with _write_errors(path):
            writer.close()


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    group: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        group.append(row)
        size += row[VECTORS].nbytes
        if size >= GROUP_BYTES or len(group) == GROUP_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


@contextlib.contextmanager
def _write_errors(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # pyarrow's names no file
        raise OSError(f"cannot write {path}: {first_line(error)}") from error


class GroupFile:
    """A file of `write_rows` whose groups of rows are read in any order. It is open only while a group is read.

    Raises ValueError where the file has other columns than the schema.
    """

    def __init__(self, path: pathlib.Path, schema: "pyarrow.Schema") -> None:
        import pyarrow.parquet

        self._path = path
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_columns(file, schema)
            self._metadata = file.metadata
        self.groups = range(self._metadata.num_row_groups)
        sizes = [self._metadata.row_group(i).num_rows for i in self.groups]
        self._starts = [0, *itertools.accumulate(sizes)]

    def place_of(self, row: int) -> tuple[int, int]:
        """The group of a row of the file, and the row's place in it."""
        group = bisect.bisect_right(self._starts, row) - 1
        return group, row - self._starts[group]

    def read(self, group: int, *columns: str) -> "pyarrow.Table":
        """A group of rows; all columns without names. Raises pyarrow's errors for a damaged file."""
        import pyarrow.parquet

        options = {"metadata": self._metadata, "page_checksum_verification": True}
        with pyarrow.parquet.ParquetFile(self._path, **options) as file:
            return file.read_row_group(group, columns=list(columns) or None)


def _check_columns(file: Any, schema: "pyarrow.Schema") -> None:
    if not file.schema_arrow.equals(schema):
        raise ValueError(f"its columns are {_columns(file.schema_arrow)}; wanted {_columns(schema)}")


def _columns(schema: "pyarrow.Schema") -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
