"""The cache of vectors: a folder of Parquet files, and one process at a time that writes them.

    header.json            the fingerprint of the cache
    00000.parquet, ...     a row for each example: its texts, the bytes of its words, "vectors" [N, K, H] as raw bytes
    results.json           is there when all files are

tasks/frozen/row_vectors.py reads a cache for trainings. Other programs read it with pandas:

    header = json.loads(pathlib.Path("header.json").read_bytes())
    rows = pandas.read_parquet("00000.parquet")
    shape = -1, len(header["layers"]), header["config"]["hidden_size"]
    vectors = numpy.frombuffer(rows["vectors"][0], header["dtype"]).reshape(shape)
"""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.config import MAX_LAYERS, BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.io import formats
from bert_keras.io.files import atomic_file, digest
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.json_files import OBJECT, checked_fields, integer, list_of, one_of, shortened
from bert_keras.io.json_files import TEXT as WORD
from bert_keras.io.paths import to_path
from bert_keras.model.feature_bilstm import VECTORS
from bert_keras.tasks.frozen.extractor import DTYPES, Example, Extractor
from bert_keras.tasks.frozen.parquet_file import GroupFile, write_rows

if TYPE_CHECKING:  # imported where it is used
    import pyarrow

MAX_BYTES = 2**31 - 2**24  # of an example's vectors: Parquet counts a page's bytes in 31 bits
HEADER = "header.json"
CACHE = Layout(
    name="a cache of features", artifact=formats.VECTORS, fingerprint=HEADER, results="results.json"
)


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

    def rows(self) -> Iterator[dict[str, Any]]:
        """Examples in order: "vectors" float16 or float32 [N, K, H], texts as bytes, `Units.names` int64 [N]."""
        for shard in self.shards:
            yield from _read_shard(shard, self.header)


def open_cache(path: str | pathlib.Path) -> Cache:
    """The cache that `extract` wrote.

    Raises FileNotFoundError where there is none, ValueError where it is of another format or not complete: it lacks a file, or a
    file has more or fewer examples than the header says.
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
        _check_shard(shard, cache.header, length)
    return cache


def layers_in(path: pathlib.Path) -> list[int]:
    """The numbers of the layers of the cache in a folder, complete or not; none where there is no cache."""
    return _read_header(path)["layers"] if (path / HEADER).is_file() else []


def _shape(header: Mapping[str, Any]) -> tuple[int, int]:
    """K and H of a unit's vectors."""
    return len(header["layers"]), BertConfig.from_dict(header["config"]).hidden_size


def _schema(header: Mapping[str, Any]) -> "pyarrow.Schema":
    """The columns of a shard; no value is null."""
    import pyarrow

    whole = pyarrow.list_(pyarrow.field("element", pyarrow.int64(), nullable=False))
    kinds = dict.fromkeys(header["texts"], pyarrow.binary()) | dict.fromkeys(header["listed"], whole)
    kinds[VECTORS] = pyarrow.binary()
    return pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name, kind in kinds.items()])


def _read_shard(path: pathlib.Path, header: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a file, as `Cache.rows` gives them."""
    shape, dtype = _shape(header), np.dtype(header["dtype"])

    def value(name: str, cell: Any) -> Any:
        if name in header["listed"]:
            return cell.values.to_numpy()
        if name in header["texts"]:
            return cell.as_py()
        return np.frombuffer(cell.as_buffer(), dtype).reshape(-1, *shape)

    file = GroupFile(path, _schema(header))
    for table in map(file.read, file.groups):
        columns = {name: table[name] for name in table.column_names}
        for cells in zip(*columns.values(), strict=True):
            yield {name: value(name, cell) for name, cell in zip(columns, cells, strict=True)}


def _check_shard(path: pathlib.Path, header: Mapping[str, Any], length: int) -> None:
    """Reads a whole file. Raises BertKerasError where it is damaged, or has not `length` examples of the header's columns."""
    from pyarrow import ArrowException

    found = 0
    try:
        for row in _read_shard(path, header):
            found += 1
            if any(len(row[name]) != len(row[VECTORS]) for name in header["listed"]):
                raise ValueError(
                    f"example {found} has {len(row[VECTORS])} vectors for another number of units"
                )
        if found != length:
            raise ValueError(f"its number of examples is {found}, and {HEADER} says {length}")
    except (ValueError, ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # such as no right to read it
            raise
        raise BertKerasError(
            f"{path} is damaged: {first_line(error)}; remove this file and extract again."
        ) from error


def _read_header(path: pathlib.Path) -> dict[str, Any]:
    file = path / HEADER
    header = Folder(path, CACHE).fingerprint()
    place = integer(0, MAX_LAYERS)
    kinds = {
        "config": OBJECT,
        "texts": list_of(WORD),
        "listed": list_of(WORD),
        "layers": list_of(place),
        "shards": list_of(integer(0, 2**63 - 1)),
        "dtype": one_of(DTYPES),
    }
    checked_fields(header, kinds, where=file, others=True)
    try:
        BertConfig.from_dict(header["config"])
    except (BertKerasError, TypeError) as error:
        raise BertKerasError(f"{file}: config: {error}") from error
    return header


MEMORY = 2**30  # bytes of vectors that a CacheReader keeps


class CacheReader:
    """Reads the vectors of single examples of a cache, in any order. The first MEMORY bytes that it reads stay in memory.

    layers: numbers of layers in the cache, K of them
    """

    def __init__(self, cache: Cache, *, layers: Sequence[int]) -> None:
        self._shape, self._dtype = _shape(cache.header), np.dtype(cache.header["dtype"])
        stored = cache.header["layers"]
        self._places = None if [*layers] == stored else [stored.index(layer) for layer in layers]
        self._ends = np.cumsum(cache.header["shards"])
        schema = _schema(cache.header)
        self._files = [GroupFile(shard, schema) for shard in cache.shards]
        self._kept: dict[tuple[int, int], list[np.ndarray]] = {}
        self._bytes = 0

    def vectors(self, examples: Sequence[int]) -> list[np.ndarray]:
        """The vectors [N, K, H] of examples, by their numbers in the cache. A group of rows is read once."""
        groups: dict[tuple[int, int], list[np.ndarray]] = {}
        made = []
        for example in examples:
            shard = int(np.searchsorted(self._ends, example, side="right"))
            file = self._files[shard]
            group, row = file.place_of(int(example - (self._ends[shard - 1] if shard else 0)))
            if (shard, group) not in groups:
                groups[shard, group] = self._kept.get((shard, group)) or self._read(shard, group)
            made.append(groups[shard, group][row])
        return made

    def _read(self, shard: int, group: int) -> list[np.ndarray]:
        cells = self._files[shard].read(group, VECTORS)[VECTORS]
        made = [np.frombuffer(cell.as_buffer(), self._dtype).reshape(-1, *self._shape) for cell in cells]
        if self._places is not None:
            made = [vectors[:, self._places] for vectors in made]
        size = sum(vectors.nbytes for vectors in made)
        if self._bytes + size <= MEMORY:
            self._kept[shard, group] = made
            self._bytes += size
        return made


@contextlib.contextmanager
def writing_cache(
    path: pathlib.Path,
    extractor: Extractor,
    examples: Callable[[], Iterable[Example]],
    *,
    shard_examples: int,
    progress: Callable[[int], None],
) -> Iterator[Cache]:
    """Writes the shards that are missing; yields the cache, and holds its folder until the end.

    examples: gives them anew at each call

    Raises BertKerasError where another process writes to the folder, where it holds anything else, where a shard that is there
    is damaged, and where a vector is not finite.
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
                    _check_shard(shard, cache.header, length)
                else:
                    _write_shard(shard, header, chunk, extractor(chunk))
                progress(length)
        except BertKerasError:
            if not any(shard.exists() for shard in cache.shards):
                (folder.path / HEADER).unlink()  # nothing is lost, and other settings may follow
            raise
        folder.finish({"examples": count})
        yield cache


def _described(examples: Iterable[Example]) -> tuple[list[str], str, int]:
    """The names of the texts, the SHA-256 of all texts and how many examples there are. Raises ValueError on none."""
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


def _write_shard(
    path: pathlib.Path, header: Mapping[str, Any], raw: Iterable[Example], found: Iterable[Mapping[str, Any]]
) -> None:
    with atomic_file(path) as temporary:
        write_rows(temporary, _schema(header), _joined(raw, found), value_of=np.ndarray.tobytes)


def _joined(raw: Iterable[Example], found: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for texts, listed in zip(raw, found, strict=True):
        if (size := listed[VECTORS].nbytes) > MAX_BYTES:
            text = shortened(next(iter(texts.values())).decode("utf-8", "replace"))
            raise BertKerasError(
                f"the vectors of {text} have {size:,} bytes, and an example may have {MAX_BYTES:,}; "
                "cut the text into several, or give fewer layers."
            )
        yield {**texts, **listed}
