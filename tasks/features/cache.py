"""The cache of vectors: a folder of TFRecord shards, and one process at a time that writes them.

    header.json            the identity of the cache
    00000.tfrecord, ...    "vectors" [N, K, H] of each example, its texts and the bytes of its words
    results.json           is there when all shards are

tasks/features/tagger.py learns from a cache.
"""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import LIMITS, BertConfig
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.files import digest
from bert_keras.json_files import OBJECT, list_of, one_of, read_object, typed, whole
from bert_keras.json_files import TEXT as WORD
from bert_keras.paths import path_of
from tasks.features.extract import DTYPES, Extractor, Words
from tasks.folders import Folder, Layout, check_equal
from tasks.ner.task import Conll
from tasks.tfrecord import record_writer

FORMAT_VERSION = 1
HEADER = "header.json"
CACHE = Layout(name="a cache of features", identity=HEADER, results="results.json")


@dataclasses.dataclass(frozen=True)
class Cache:
    """A folder of vectors.

    header: `Extractor.identity`, the digest of the text, and `shards`, the number of examples in each file
    """

    path: pathlib.Path
    header: Mapping[str, Any]

    @property
    def shards(self) -> list[pathlib.Path]:
        """The files, in order."""
        return [self.path / f"{i:05d}.tfrecord" for i in range(len(self.header["shards"]))]

    def records(self) -> tf.data.Dataset:
        """Examples in order: "vectors" float16 or float32 [N, K, H], texts string [], the rest of `Units.listed` int64 [N]."""
        columns = {name: tf.io.FixedLenFeature([], tf.string) for name in self.header["texts"]}
        columns |= {
            name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in self.header["listed"]
        }
        columns["vectors"] = tf.io.FixedLenFeature([], tf.string)
        shape = [-1, len(self.header["layers"]), self.header["config"]["hidden_size"]]

        def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
            read = tf.io.parse_single_example(record, columns)
            read["vectors"] = tf.reshape(tf.io.decode_raw(read["vectors"], self.header["dtype"]), shape)
            return read

        files = [str(path) for path in self.shards]
        return tf.data.TFRecordDataset(files).map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def open_cache(path: str | pathlib.Path) -> Cache:
    """The cache that `extract` wrote.

    Raises FileNotFoundError where there is none, ValueError where it is of another format or not complete: it lacks a file, or a
    file has more or fewer examples than the header says.
    """
    path = path_of(path)
    if not (path / HEADER).is_file():
        raise MissingFileError(f"{path} has no {HEADER}; give a folder that features were written to.")
    cache = Cache(path, _read_header(path))
    if missing := [shard.name for shard in cache.shards if not shard.is_file()]:
        raise BertKerasError(
            f"{path} lacks {len(missing)} of its {len(cache.shards)} files, first {missing[0]}; extract again to complete it."
        )
    for shard, length in zip(cache.shards, cache.header["shards"], strict=True):
        _check_shard(shard, length)
    return cache


def _check_shard(path: pathlib.Path, length: int) -> None:
    """Raises ValueError where a file has not `length` records, or a checksum is not that of its data.

    A TFRecord is its length in 8 bytes, 4 of checksum, the data and 4 of checksum.
    """
    size, at, found = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            at += 8 + 4 + int.from_bytes(file.read(8), "little") + 4
            found += at <= size
    if found != length or at != size:
        raise BertKerasError(
            f"{path} is damaged: it has {found} whole examples, and {HEADER} says {length}; "
            "remove this file and extract again."
        )
    try:
        tf.data.TFRecordDataset(str(path)).reduce(np.int64(0), lambda count, record: count + 1)
    except tf.errors.DataLossError as error:
        raise BertKerasError(
            f"{path} is damaged: a checksum is not that of its data; remove this file and extract again."
        ) from error


def _read_header(path: pathlib.Path) -> dict[str, Any]:
    file = path / HEADER
    header = read_object(file)
    version = "format_version"
    check_equal(path, {version: header.get(version)}, {version: FORMAT_VERSION})
    place = whole(0, LIMITS["num_layers"])
    kinds = {
        "config": OBJECT,
        "texts": list_of(WORD),
        "listed": list_of(WORD),
        "layers": list_of(place),
        "shards": list_of(whole(0, 2**63 - 1)),
        "dtype": one_of(DTYPES),
    }
    typed(header, kinds, where=file, others=True)
    try:
        BertConfig.from_dict(header["config"])
    except (BertKerasError, TypeError) as error:
        raise BertKerasError(f"{file}: config: {error}") from error
    return header


Example = Mapping[str, bytes]


@contextlib.contextmanager
def writing_cache(
    path: pathlib.Path,
    extractor: Extractor,
    examples: Callable[[], Iterable[Example]],
    *,
    shard_examples: int,
    about: Mapping[str, Any],
    progress: Callable[[int], None],
) -> Iterator[Cache]:
    """Writes the shards that are missing; yields the cache, and holds its folder until the end.

    examples: gives them anew at each call; about: further fields of the header

    Raises BertKerasError where another process writes to the folder, where it holds anything else, where a shard that is there
    is damaged, and where a vector is not finite.
    """
    texts, text, count = _described(examples())
    full, rest = divmod(count, shard_examples)
    header = {
        "format_version": FORMAT_VERSION,
        **extractor.identity(),
        "text": text,
        "texts": texts,
        "listed": list(extractor.units.names),
        "shards": [shard_examples] * full + [rest] * bool(rest),
        **about,
    }
    folder = Folder(path, CACHE)
    with folder.begin(header, reopen=True):
        cache = Cache(folder.path, folder.identity())
        try:
            rows = iter(examples())
            for shard, length in zip(cache.shards, cache.header["shards"], strict=True):
                chunk = list(itertools.islice(rows, length))
                if shard.exists():
                    _check_shard(shard, length)
                else:
                    _write_shard(shard, chunk, extractor(chunk))
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


def _write_shard(path: pathlib.Path, raw: Iterable[Example], found: Iterable[Mapping[str, Any]]) -> None:
    with record_writer(path) as write:
        for texts, listed in zip(raw, found, strict=True):
            columns = {name: _bytes(text) for name, text in texts.items()}
            for name, values in listed.items():
                columns[name] = (
                    _bytes(values.tobytes())
                    if name == "vectors"
                    else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                )
            example = tf.train.Example(features=tf.train.Features(feature=columns))
            write(example.SerializeToString(deterministic=True))


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def extract(
    task: Conll,
    examples: tf.data.Dataset,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: str | pathlib.Path,
    layers: Sequence[str] | None = None,
    dtype: str = "float16",
    seq_length: int | None = None,
    batch_size: int = 8,
    shard_examples: int = 64,
    progress: Callable[[int], None] = lambda done: None,
) -> Cache:
    """Writes the vectors of a task's words, or resumes a killed extraction.

    examples: of the task, as `Conll.examples` gives them
    layers: names of LAYERS that will be read; None keeps the embeddings and every block
    seq_length: wordpieces of a window; None takes the task's own
    progress: is called with the number of examples done since its last call

    Raises BertKerasError naming the field where `output` holds vectors of another text, model or setting.
    """
    length = task.defaults["seq_length"] if seq_length is None else seq_length
    extractor = Extractor(
        checkpoint,
        units=Words(doc_stride=task.doc_stride),
        layers=layers,
        dtype=dtype,
        seq_length=length,
        batch_size=batch_size,
    )
    with writing_cache(
        path_of(output),
        extractor,
        examples.as_numpy_iterator,
        shard_examples=shard_examples,
        about={"task": task.to_json()},
        progress=progress,
    ) as cache:
        return cache
