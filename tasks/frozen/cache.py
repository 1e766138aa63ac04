"""The cache of vectors: a folder of Parquet files, and one process at a time that writes them.

    header.json            the fingerprint of the cache
    00000.parquet, ...     a row for each example: its texts, the bytes of its words, "vectors" [N, K, H] as raw bytes
    results.json           written last

tasks/frozen/row_vectors.py reads a cache for trainings. Other programs read it with pandas:

    header = json.loads(pathlib.Path("header.json").read_bytes())
    rows = pandas.read_parquet("00000.parquet")
    shape = -1, len(header["layers"]), header["config"]["hidden_size"]
    vectors = numpy.frombuffer(rows["vectors"][0], header["dtype"]).reshape(shape)
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.config import MAX_LAYERS, BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.fields import field_types
from bert_keras.io import formats
from bert_keras.io.files import atomic_file, digest
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.json_files import OBJECT, TEXT, checked_fields, integer, list_of, shortened
from bert_keras.io.paths import to_path
from bert_keras.model.feature_bilstm import VECTORS
from bert_keras.tasks.frozen.extractor import Example, Extractor
from bert_keras.tasks.options import FeatureOptions

if TYPE_CHECKING:  # imported where it is used: slow to import, and not needed otherwise
    import pyarrow

MAX_BYTES = 2**31 - 2**24  # of an example's vectors: Parquet counts a page's bytes in 31 bits
# A group of rows ends at either; a writer or reader holds one group in memory.
GROUP_BYTES, GROUP_ROWS = 2**20, 256
MEMORY = 2**30  # bytes of vectors that a CacheReader keeps
HEADER = "header.json"
CACHE = Layout(
    name="a cache of features", artifact=formats.VECTORS, fingerprint=HEADER, results=formats.RESULTS_FILE
)

# -----------------------------------------------------------------------------------------------------------
# Parquet files


def write_rows(
    path: pathlib.Path,
    schema: "pyarrow.Schema",
    rows: Iterable[Mapping[str, Any]],
    *,
    value_of: Callable[[Any], Any],
) -> None:
    """Writes rows of the schema's columns, with a checksum for each page.

    value_of: turns "vectors" [N, ...] into a value of the column

    Raises OSError if the file cannot be written.
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

    sizes: the number of rows in each group

    Raises ValueError if the file has other columns than the schema.
    """

    def __init__(self, path: pathlib.Path, schema: "pyarrow.Schema") -> None:
        import pyarrow.parquet

        self._path = path
        with pyarrow.parquet.ParquetFile(path) as file:
            if not file.schema_arrow.equals(schema):
                found, wanted = (
                    ", ".join(f"{field.name} {field.type}" for field in one)
                    for one in (file.schema_arrow, schema)
                )
                raise ValueError(f"its columns are {found}; wanted {wanted}")
            self._metadata = file.metadata
        self.sizes = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]

    def read(self, group: int, *columns: str) -> "pyarrow.Table":
        """A group of rows; without columns, all of them. Raises pyarrow's errors for a damaged file."""
        import pyarrow.parquet

        options = {"metadata": self._metadata, "page_checksum_verification": True}
        with pyarrow.parquet.ParquetFile(self._path, **options) as file:
            return file.read_row_group(group, columns=list(columns) or None)


# -----------------------------------------------------------------------------------------------------------
# Reading


@dataclasses.dataclass(frozen=True)
class Cache:
    """A folder of vectors.

    header: `Extractor.fingerprint`, the digest of the text, and `shards`, the number of examples in each file
    """

    path: pathlib.Path
    header: Mapping[str, Any]

    @property
    def shards(self) -> list[pathlib.Path]:
        """The files, in order."""
        return [self.path / f"{i:05d}.parquet" for i in range(len(self.header["shards"]))]

    @functools.cached_property
    def schema(self) -> "pyarrow.Schema":
        """The columns of a shard; no value is null."""
        import pyarrow

        integers = pyarrow.list_(pyarrow.field("element", pyarrow.int64(), nullable=False))
        types = dict.fromkeys(self.header["texts"], pyarrow.binary())
        types |= dict.fromkeys(self.header["listed"], integers)
        types[VECTORS] = pyarrow.binary()
        return pyarrow.schema([pyarrow.field(name, type_, nullable=False) for name, type_ in types.items()])

    @functools.cached_property
    def _shape(self) -> tuple[int, int]:
        """K and H of a unit's vectors."""
        return len(self.header["layers"]), BertConfig.from_dict(self.header["config"]).hidden_size

    def vectors(self, cell: Any) -> np.ndarray:
        """A value of the column "vectors" as an array [N, K, H]."""
        return np.frombuffer(cell.as_buffer(), self.header["dtype"]).reshape(-1, *self._shape)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Examples in order: "vectors" float16 or float32 [N, K, H], texts as bytes, `Units.names` int64 [N]."""
        for shard in self.shards:
            yield from self.rows_of(shard)

    def rows_of(self, shard: pathlib.Path) -> Iterator[dict[str, Any]]:
        """The rows of a file, as `rows` gives them."""
        readers = dict.fromkeys(self.header["texts"], lambda cell: cell.as_py())
        readers |= dict.fromkeys(self.header["listed"], lambda cell: cell.values.to_numpy())
        readers[VECTORS] = self.vectors
        file = GroupFile(shard, self.schema)
        for table in map(file.read, range(len(file.sizes))):
            for cells in zip(*table.columns, strict=True):
                yield {
                    name: readers[name](cell) for name, cell in zip(table.column_names, cells, strict=True)
                }

    def check(self, shard: pathlib.Path, length: int) -> None:
        """Reads a whole file. Raises BertKerasError if it is damaged, or has not `length` examples of the header's columns."""
        from pyarrow import ArrowException

        found = 0
        try:
            for row in self.rows_of(shard):
                found += 1
                if any(len(row[name]) != len(row[VECTORS]) for name in self.header["listed"]):
                    raise ValueError(
                        f"example {found} has {len(row[VECTORS])} vectors for another number of units"
                    )
            if found != length:
                raise ValueError(f"its number of examples is {found}, and {HEADER} says {length}")
        except (ValueError, ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # such as no right to read it
                raise
            raise BertKerasError(
                f"{shard} is damaged: {first_line(error)}; remove this file and extract again."
            ) from error


def open_cache(path: str | pathlib.Path) -> Cache:
    """The cache that `writing_cache` wrote.

    Raises MissingFileError if there is none, and BertKerasError if it has another format or is not complete: it lacks a file, or
    a file has more or fewer examples than the header says.
    """
    path = to_path(path)
    if not (path / HEADER).is_file():
        raise MissingFileError(f"{path} has no {HEADER}; give a folder that features were written to.")
    cache = Cache(path, _read_header(path))
    if missing := [shard.name for shard in cache.shards if not shard.is_file()]:
        raise BertKerasError(
            f"{path} lacks {len(missing)} of its {len(cache.shards)} files, first {missing[0]}; extract again to complete it."
        )
    for shard, length in zip(cache.shards, cache.header["shards"], strict=True):
        cache.check(shard, length)
    return cache


def layers_in(path: pathlib.Path) -> list[int]:
    """The numbers of the layers of the cache in a folder, complete or not; none if there is no cache."""
    return _read_header(path)["layers"] if (path / HEADER).is_file() else []


def _read_header(path: pathlib.Path) -> dict[str, Any]:
    kinds = {
        "config": OBJECT,
        "texts": list_of(TEXT),
        "listed": list_of(TEXT),
        "layers": list_of(integer(0, MAX_LAYERS)),
        "shards": list_of(integer(0, 2**63 - 1)),
        "dtype": field_types(FeatureOptions)["dtype"],
    }
    header = Folder(path, CACHE).fingerprint()
    checked_fields(header, kinds, where=path / HEADER, others=True)
    try:
        BertConfig.from_dict(header["config"])
    except (BertKerasError, TypeError) as error:
        raise BertKerasError(f"{path / HEADER}: config: {error}") from error
    return header


class CacheReader:
    """Reads the vectors of single examples of a cache, in any order. The first MEMORY bytes that it reads stay in memory.

    layers: numbers of layers in the cache, K of them
    """

    def __init__(self, cache: Cache, *, layers: Sequence[int]) -> None:
        stored = cache.header["layers"]
        self._cache = cache
        self._places = None if [*layers] == stored else [stored.index(layer) for layer in layers]
        files = [GroupFile(shard, cache.schema) for shard in cache.shards]
        self._groups = [(file, group) for file in files for group in range(len(file.sizes))]
        self._starts = np.cumsum([0, *(size for file in files for size in file.sizes)])
        self._kept: dict[int, list[np.ndarray]] = {}
        self._bytes = 0

    def vectors(self, examples: Sequence[int]) -> list[np.ndarray]:
        """The vectors [N, K, H] of examples, by their numbers in the cache. A group of rows is read once."""
        groups: dict[int, list[np.ndarray]] = {}
        made = []
        for example in examples:
            group = int(np.searchsorted(self._starts, example, side="right")) - 1
            if group not in groups:
                groups[group] = self._kept.get(group) or self._read(group)
            made.append(groups[group][example - self._starts[group]])
        return made

    def _read(self, group: int) -> list[np.ndarray]:
        file, number = self._groups[group]
        made = [self._cache.vectors(cell) for cell in file.read(number, VECTORS)[VECTORS]]
        if self._places is not None:
            made = [vectors[:, self._places] for vectors in made]
        size = sum(vectors.nbytes for vectors in made)
        if self._bytes + size <= MEMORY:
            self._kept[group] = made
            self._bytes += size
        return made


# -----------------------------------------------------------------------------------------------------------
# Writing


@contextlib.contextmanager
def writing_cache(
    path: pathlib.Path,
    extractor: Extractor,
    examples: Callable[[], Iterable[Example]],
    *,
    shard_examples: int,
    progress: Callable[[int], None],
) -> Iterator[Cache]:
    """Writes the missing shards; yields the cache, and holds its folder until the end.

    examples: gives them anew at each call

    Raises BertKerasError if another process writes to the folder, if it holds anything else, if an existing shard is damaged, and
    if a vector is not finite.
    """
    texts, text, count = _described(examples())
    full, rest = divmod(count, shard_examples)
    header = {
        **extractor.fingerprint(),
        "text": text,
        "texts": texts,
        "listed": list(extractor.units.names),
        "shards": [shard_examples] * full + [rest] * bool(rest),
    }
    folder = Folder(path, CACHE)
    with folder.begin(header, reopen=True):
        cache = Cache(folder.path, folder.fingerprint())
        try:
            rows = iter(examples())
            for shard, length in zip(cache.shards, cache.header["shards"], strict=True):
                chunk = list(itertools.islice(rows, length))
                if shard.exists():
                    cache.check(shard, length)
                else:
                    found = _joined(chunk, extractor(chunk))
                    with atomic_file(shard) as temporary:
                        write_rows(temporary, cache.schema, found, value_of=np.ndarray.tobytes)
                progress(length)
        except BertKerasError:
            if not any(shard.exists() for shard in cache.shards):
                (folder.path / HEADER).unlink()  # nothing is lost, and other settings may follow
            raise
        folder.finish({"examples": count})
        yield cache


def _described(examples: Iterable[Example]) -> tuple[list[str], str, int]:
    """The names of the texts, the SHA-256 of all texts and the number of examples. Raises BertKerasError for none."""
    names: list[str] = []
    count = 0

    def parts() -> Iterator[bytes]:
        nonlocal count, names
        for example in examples:
            names = sorted(example)
            count += 1
            yield from (example[name] for name in names)

    found = digest(parts())
    if not count:
        raise BertKerasError("there is no text; at least one example is wanted.")
    return names, found, count


def _joined(raw: Iterable[Example], found: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a shard: each example with its units and vectors."""
    for texts, listed in zip(raw, found, strict=True):
        if (size := listed[VECTORS].nbytes) > MAX_BYTES:
            text = shortened(next(iter(texts.values())).decode("utf-8", "replace"))
            raise BertKerasError(
                f"the vectors of {text} have {size:,} bytes, and an example may have {MAX_BYTES:,}; "
                "cut the text into several, or give fewer layers."
            )
        yield {**texts, **listed}
