"""An index: the vectors of a collection of texts, in Parquet files.

In: a model and a Collection. Out: a folder of any size, which `write_index` resumes after an interruption:

    INDEX/index.json      the digests of the model and of the texts, the similarity, the prompt
    INDEX/00000.parquet   columns id, text and vector (float32), `shard_texts` rows in a file
    INDEX/results.json    the last file: an index without it is not finished
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.io import formats
from bert_keras.io.files import atomic_file
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.json_files import TEXT, checked_fields, integer, one_of
from bert_keras.io.paths import did_you_mean, to_path
from bert_keras.tasks.options import SIMILARITIES
from bert_keras.tasks.retrieval.collection import Collection
from bert_keras.tasks.retrieval.text_encoder import TextEncoder, digest_of_model

if TYPE_CHECKING:  # imported where it is used: slow to import, and not needed otherwise
    import pyarrow

SHARD_TEXTS = 4096
RERANKED = 50  # texts
HEADER = "index.json"
INDEX = Layout(
    name="an index of texts", artifact=formats.INDEX, fingerprint=HEADER, results=formats.RESULTS_FILE
)
_COUNT = integer(1, 2**31 - 1)  # rows are int32 in the graph of a search
_KINDS = {
    **dict.fromkeys(("model", "prompt", "texts"), TEXT),
    **dict.fromkeys(("count", "shard_texts"), _COUNT),
    "dimension": integer(1, 2**20),
    "similarity": one_of(SIMILARITIES),
}


@dataclasses.dataclass(frozen=True)
class Index:
    """A finished index.

    header: the content of index.json
    model: the model that made the vectors, as it was named
    """

    path: pathlib.Path
    header: Mapping[str, Any]
    model: str

    @property
    def count(self) -> int:
        """The number of texts."""
        return self.header["count"]

    def vectors(self) -> np.ndarray:
        """All vectors float32 [N, D]. Raises BertKerasError for a damaged file."""
        found = np.empty((self.count, self.header["dimension"]), np.float32)
        for start, vectors in self.blocks():
            found[start : start + len(vectors)] = vectors
        return found

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the first row and the vectors float32 [n, D] of each file. Raises BertKerasError for a damaged file."""
        for shard, table in enumerate(self._tables("vector")):
            column = table["vector"].combine_chunks()
            yield shard * self.header["shard_texts"], column.flatten().to_numpy().reshape(len(table), -1)

    def texts(self, rows: Iterable[int] | None = None) -> list[tuple[str, str]]:
        """The ids and texts of some rows, or of all. Raises BertKerasError for a damaged file."""
        if rows is None:
            tables = self._tables("id", "text")
            return [
                pair
                for table in tables
                for pair in zip(*(one.to_pylist() for one in table.columns), strict=True)
            ]
        size, kept = self.header["shard_texts"], {}
        for row in rows:
            if (shard := row // size) not in kept:
                kept[shard] = _read(shard_path(self.path, shard), self.header, shard, "id", "text")
        return [tuple(kept[row // size][name][row % size].as_py() for name in ("id", "text")) for row in rows]

    def _tables(self, *columns: str) -> Iterator["pyarrow.Table"]:
        for shard in range(len(sizes_of(self.header))):
            yield _read(shard_path(self.path, shard), self.header, shard, *columns)

    def check_model(self, run: Any) -> None:
        """Raises BertKerasError for another model than the one that made the vectors."""
        found, wanted = digest_of_model(run), self.header["model"]
        if found != wanted:
            raise BertKerasError(
                f"{self.path} was made with the model {self.model} (SHA-256 {wanted[:12]}), and {run.path} is another one "
                f"({found[:12]}): their vectors cannot be compared; give the model that made the index, or make a new index."
            )

    def check_k(self, k: int) -> None:
        """Raises BertKerasError for more texts than the index has."""
        if not 1 <= k <= self.count:
            raise BertKerasError(
                f"k is {k} and {self.path} has {self.count:,} texts; give 1 to {self.count}."
            )


def texts_to_rerank(given: int | None, *, k: int, count: int) -> int:
    """The nearest texts that a reranker scores: the given number, or else RERANKED, at least k and at most all.

    count: the texts of the collection

    Raises BertKerasError for a number under k or over the count.
    """
    found = max(k, min(RERANKED, count)) if given is None else given
    if not k <= found <= count:
        raise BertKerasError(
            f"rerank is {found}, k is {k} and there are {count:,} texts; give {k} to {count}."
        )
    return found


def open_index(path: str | pathlib.Path) -> Index:
    """A finished index.

    Raises MissingFileError where none is there, BertKerasError for one that is not finished, or has another format.
    """
    path = to_path(path)
    folder = Folder(path, INDEX)
    if not folder.begun:
        close = "" if path.exists() else did_you_mean(path)
        raise MissingFileError(
            f"{path} has no {HEADER}{close}; give the folder that `bert-keras index` wrote."
        )
    header = checked_fields(folder.fingerprint(), _KINDS, where=path / HEADER, others=True)
    shards = [shard_path(path, number) for number in range(len(sizes_of(header)))]
    there = sum(shard.is_file() for shard in shards)
    if not folder.finished or there < len(shards):
        raise BertKerasError(
            f"{path} is not finished: it has {there} of its {len(shards)} files; rerun the same `bert-keras index` command to "
            "finish it."
        )
    results = checked_fields(folder.results(), {"model": TEXT}, where=path / INDEX.results, others=True)
    return Index(path, header, results["model"])


def write_index(
    path: str | pathlib.Path,
    encoder: TextEncoder,
    texts: Collection,
    *,
    shard_texts: int = SHARD_TEXTS,
    progress: Callable[[int], None] = lambda done: None,
) -> Index:
    """Writes the files of an index that are missing; the same call resumes an interrupted one to the same bytes.

    Raises BertKerasError if the folder holds an index of another model, of other texts or settings, with the field that differs,
    or anything else; if another process writes to it; for a damaged file; and as `Collection`.
    """
    count, found = texts.described
    header = {
        "model": digest_of_model(encoder.run),
        "texts": found,
        "count": count,
        "dimension": encoder.dimension,
        "similarity": encoder.similarity,
        "prompt": encoder.prompt,
        "shard_texts": shard_texts,
    }
    folder = Folder(path, INDEX)
    with folder.begin(header, reopen=True):
        rows = iter(texts)
        for shard, size in enumerate(sizes_of(header)):
            chunk, file = list(itertools.islice(rows, size)), shard_path(folder.path, shard)
            if file.exists():
                _read(file, header, shard)
                progress(size)
            else:
                _write(file, chunk, encoder([text for _, text in chunk], progress=progress))
        there = to_path(encoder.run.path)
        model = str(there.resolve() if there.exists() else encoder.run.path)
        folder.finish({"texts": count, "model": model, formats.MADE_BY: formats.made_by()})
    return open_index(folder.path)


# -----------------------------------------------------------------------------------------------------------
# Files


def sizes_of(header: Mapping[str, Any]) -> list[int]:
    """The number of texts in each file."""
    full, rest = divmod(header["count"], header["shard_texts"])
    return [header["shard_texts"]] * full + [rest] * bool(rest)


def shard_path(folder: pathlib.Path, shard: int) -> pathlib.Path:
    """The file of a shard."""
    return folder / f"{shard:05d}.parquet"


def _schema(dimension: int) -> "pyarrow.Schema":
    import pyarrow

    vector = pyarrow.list_(pyarrow.field("element", pyarrow.float32(), nullable=False), dimension)
    types = {"id": pyarrow.string(), "text": pyarrow.string(), "vector": vector}
    return pyarrow.schema([pyarrow.field(name, type_, nullable=False) for name, type_ in types.items()])


def _write(path: pathlib.Path, rows: Sequence[tuple[str, str]], vectors: np.ndarray) -> None:
    import pyarrow
    import pyarrow.parquet

    schema = _schema(vectors.shape[1])
    ids, texts = zip(*rows, strict=True)
    flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1), pyarrow.float32())
    listed = pyarrow.FixedSizeListArray.from_arrays(flat, type=schema.field("vector").type)
    columns = [pyarrow.array(ids, pyarrow.string()), pyarrow.array(texts, pyarrow.string()), listed]
    table = pyarrow.Table.from_arrays(columns, schema=schema)
    # Vectors repeat nothing that a dictionary or the statistics of a column could use.
    options = {"use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
    with atomic_file(path) as temporary:
        pyarrow.parquet.write_table(table, temporary, **options)


def _read(path: pathlib.Path, header: Mapping[str, Any], shard: int, *columns: str) -> "pyarrow.Table":
    """Columns of a file; without columns, all of them. Raises BertKerasError if it is damaged, or has other columns or rows."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(_schema(header["dimension"])):
                raise ValueError(f"its columns are {', '.join(map(str, file.schema_arrow))}")
            if (found := file.metadata.num_rows) != sizes_of(header)[shard]:
                raise ValueError(f"it has {found} rows, and {HEADER} says {sizes_of(header)[shard]}")
            return file.read(list(columns) or None)
    except (ValueError, pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # such as no right to read it
            raise
        raise BertKerasError(
            f"{path} is damaged: {first_line(error)}; remove this file and index again."
        ) from error
