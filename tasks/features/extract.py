"""The feature-based approach: a frozen encoder's vectors, computed once.

    examples -> extract -> cache: header.json and TFRecord shards, [N, K, H] an example: N words, K layers
    text file -> extract_file -> JSONL, NPZ or Parquet

tasks/features/tagger.py learns from a cache.

Source: Devlin et al. 2019, sec. 5.3 and Table 7.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import LIMITS, BertConfig
from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    EXAMPLE_INDEX,
    MAX_CONTEXT,
    WORD_INDEX,
)
from bert_keras.files import TEMPORARY, whole_file, write_json
from bert_keras.json_files import OBJECT, list_of, one_of, read_object, typed, whole
from bert_keras.json_files import TEXT as WORD
from bert_keras.paths import path_of
from bert_keras.text.preprocessing import Preprocessor
from tasks.folders import check_equal
from tasks.ner.task import Conll
from tasks.ner.words import TEXT, text_of, words_of
from tasks.task import Features, Raw, model_inputs
from tasks.tfrecord import record_writer
from tasks.training.run import check_sizes

FORMAT_VERSION = 1
HEADER = "header.json"
DTYPES = ("float16", "float32")
LEVELS = ("word", "piece")


class Layers(NamedTuple):
    """Which of an encoder's outputs [embedding_output, *encoder_outputs] are read, and how they become one vector.

    needs: the blocks that an encoder must have
    mixed: a weighted sum with learned weights; else side by side
    """

    chosen: slice
    needs: int
    mixed: bool = False


# Table 7, row by row.
LAYERS = {
    "embeddings": Layers(slice(0, 1), 0),
    "second_to_last": Layers(slice(-2, -1), 2),
    "last": Layers(slice(-1, None), 1),
    "weighted_sum_last_four": Layers(slice(-4, None), 4, mixed=True),
    "concat_last_four": Layers(slice(-4, None), 4),
    "weighted_sum_all": Layers(slice(1, None), 1, mixed=True),
}


def places_of(name: str, *, num_layers: int) -> tuple[int, ...]:
    """The places of a row of LAYERS among an encoder's outputs: 0 the embeddings, n the nth block.

    Raises ValueError on another name, and on an encoder with fewer blocks than the row needs.
    """
    if name not in LAYERS:
        raise BertKerasError(f"layers are {name!r}; wanted one of {', '.join(LAYERS)}.")
    if num_layers < LAYERS[name].needs:
        raise BertKerasError(
            f"{name} needs {LAYERS[name].needs} blocks and the encoder has {num_layers}; choose other layers."
        )
    return tuple(range(num_layers + 1))[LAYERS[name].chosen]


# -----------------------------------------------------------------------------------------------------------
# What gets a vector


class Units(Protocol):
    """Words or pieces of a text.

    mark: the feature that says at which positions they are
    names: what is listed of each
    """

    level: str
    mark: str
    names: tuple[str, ...]
    doc_stride: int

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> windows [W, S]."""
        ...

    def listed(self, preprocess: Preprocessor, raw: Raw) -> dict[str, tf.RaggedTensor]:
        """Starts and ends of all units in bytes, and a piece's id: ragged int32 [B, (N)] by name."""
        ...

    def slots(self, features: Mapping[str, np.ndarray], row_starts: np.ndarray) -> np.ndarray:
        """For each marked position, in order, the place of its unit among those of the whole batch."""
        ...


class Words(Units):
    """A word's vector is that of its first piece, in the window that shows it with the most context."""

    level, mark, names = "word", WORD_INDEX, ("starts", "ends")

    def __init__(self, *, doc_stride: int = 128) -> None:
        self.doc_stride = doc_stride

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        return preprocess.words(text_of(raw), words_of(raw)[0], doc_stride=self.doc_stride)

    def listed(self, preprocess: Preprocessor, raw: Raw) -> dict[str, tf.RaggedTensor]:
        return dict(zip(self.names, words_of(raw), strict=True))

    def slots(self, features: Mapping[str, np.ndarray], row_starts: np.ndarray) -> np.ndarray:
        index = features[WORD_INDEX]
        windows, positions = np.nonzero(index >= 0)
        return row_starts[features[EXAMPLE_INDEX][windows]] + index[windows, positions]


class Pieces(Units):
    """Every wordpiece, in the window that shows it with the most context."""

    level, mark, names = "piece", MAX_CONTEXT, ("starts", "ends", "ids")

    def __init__(self, *, doc_stride: int = 128) -> None:
        self.doc_stride = doc_stride

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        return preprocess.windows(raw[TEXT], doc_stride=self.doc_stride)

    def listed(self, preprocess: Preprocessor, raw: Raw) -> dict[str, tf.RaggedTensor]:
        ids, starts, ends = preprocess.tokenizer.tokenize_with_offsets(raw[TEXT])
        return {"starts": starts, "ends": ends, "ids": ids}

    def slots(self, features: Mapping[str, np.ndarray], row_starts: np.ndarray) -> np.ndarray:
        return np.arange(np.sum(features[MAX_CONTEXT]))  # each piece once, in the order of the text


def _marked(mark: str, features: Mapping[str, Any]) -> np.ndarray:
    """Bool [W, S]: where a unit's vector is."""
    return np.asarray(features[mark]) >= (0 if mark == WORD_INDEX else 1)


class Extractor:
    """A frozen encoder that gives units their vectors.

    checkpoint: a path that `checkpoints.read` takes, or a Checkpoint; one without tensors is random
    layers: names of LAYERS; None takes the embeddings and every block
    dtype: of DTYPES, that of the vectors
    Raises ValueError on what does not fit the encoder.
    """

    def __init__(
        self,
        checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
        *,
        units: Units,
        layers: Sequence[str] | None = None,
        dtype: str = "float16",
        seq_length: int = 512,
        batch_size: int = 8,
    ) -> None:
        if not isinstance(checkpoint, checkpoints.Checkpoint):
            checkpoint = checkpoints.read(checkpoint)
        if dtype not in DTYPES:
            raise BertKerasError(f"dtype is {dtype!r}; wanted one of {', '.join(DTYPES)}.")
        self.config = checkpoint.config
        every = range(self.config.num_layers + 1)
        named = [places_of(name, num_layers=self.config.num_layers) for name in layers or ()]
        self.places = tuple(sorted({place for places in named for place in places} or every))
        self.units, self.dtype, self.batch_size = units, dtype, batch_size
        tokenizer = checkpoints.tokenizer_of(checkpoint)
        check_sizes(self.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
        self.preprocess = Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True)
        self.encoder = BertEncoder(self.config, outputs=(EMBEDDING_OUTPUT, ENCODER_OUTPUTS))
        # A pooler that the checkpoint lacks is random, and no vector reads it.
        self._unread: tuple[str, ...] = ()
        if checkpoint.tensors:
            self._unread = checkpoints.assign(checkpoint, self.encoder).fresh
        vectors = tf.TensorSpec([None, None], tf.int32)
        self._vectors = tf.function(
            self._vectors_at,
            input_signature=[dict.fromkeys(ENCODER_INPUTS, vectors), tf.TensorSpec([None, 2], tf.int64)],
            autograph=False,
        )
        self._read = tf.function(self._features_and_units, autograph=False)

    def _features_and_units(self, raw: Raw) -> tuple[Features, dict[str, tf.RaggedTensor]]:
        return self.units.features(self.preprocess, raw), self.units.listed(self.preprocess, raw)

    def _vectors_at(self, inputs: Features, positions: tf.Tensor) -> tf.Tensor:
        """Windows [W, S] and positions int64 [P, 2] -> [P, K, H]. Blocks that nothing reads are not computed."""
        outputs = self.encoder(inputs, training=False)
        states = [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]
        chosen = [tf.gather_nd(states[place], positions) for place in self.places]
        return tf.cast(tf.stack(chosen, axis=1), self.dtype)

    def identity(self) -> dict[str, Any]:
        """What must be equal for vectors to be equal, beside the text."""
        tokenizer = self.preprocess.tokenizer
        weights = checkpoints.collect(self.config, self.encoder).tensors
        return {
            "format_version": FORMAT_VERSION,
            "weights": _digest(
                part
                for name in sorted({*weights} - {*self._unread})
                for part in (name.encode(), np.ascontiguousarray(weights[name]).tobytes())
            ),
            "config": self.config.to_dict(),
            "vocabulary": tokenizer.digest,
            "lower_case": tokenizer.lower_case,
            "seq_length": self.preprocess.seq_length,
            "doc_stride": self.units.doc_stride,
            "level": self.units.level,
            "layers": list(self.places),
            "dtype": self.dtype,
        }

    def __call__(self, raw: Sequence[Mapping[str, bytes]]) -> Iterator[dict[str, Any]]:
        """Raw examples -> for each, in order, "vectors" [N, K, H] and what `Units.listed` says, [N]."""
        order = sorted(range(len(raw)), key=lambda i: sum(map(len, raw[i].values())))
        made: dict[int, dict[str, Any]] = {}
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            batch = {name: tf.constant([raw[row][name] for row in rows]) for name in raw[0]}
            made |= zip(rows, self._batch(batch), strict=True)
        return (made[row] for row in range(len(raw)))

    def _batch(self, raw: Raw) -> Iterator[dict[str, Any]]:
        strings = tf.TensorSpec([None], tf.string)  # of any number of texts: one trace for all
        features, listed = self._read.get_concrete_function(dict.fromkeys(raw, strings))(raw)
        inputs = model_inputs(features)
        marked = _marked(self.units.mark, features)
        # One text may have any number of windows, which must not all be in memory at once.
        parts = [
            self._vectors(
                {name: value[start : start + self.batch_size] for name, value in inputs.items()},
                np.argwhere(marked[start : start + self.batch_size]),
            ).numpy()
            for start in range(0, len(marked), self.batch_size)
        ]
        splits = listed["starts"].row_splits.numpy()
        read = {name: value.numpy() for name, value in features.items()}
        shape = (splits[-1], len(self.places), self.config.hidden_size)
        vectors = np.zeros(shape, self.dtype)  # a word without a piece has a vector of zeros
        vectors[self.units.slots(read, splits)] = np.concatenate(parts)
        for first, last in itertools.pairwise(splits):
            rows = {name: value.values.numpy()[first:last] for name, value in listed.items()}
            yield rows | {"vectors": vectors[first:last]}


def _digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of parts, each under its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()


# -----------------------------------------------------------------------------------------------------------
# The cache


@dataclasses.dataclass(frozen=True)
class Cache:
    """A folder of vectors.

    header: what made them (`Extractor.identity`), of which text, and `shards`, the examples in each file
    """

    path: pathlib.Path
    header: Mapping[str, Any]

    @property
    def shards(self) -> list[pathlib.Path]:
        """The files, in order."""
        return [self.path / f"{i:05d}.tfrecord" for i in range(len(self.header["shards"]))]

    def records(self) -> tf.data.Dataset:
        """Examples in order: "vectors" float16 or float32 [N, K, H], the raw texts string [], what is listed int64 [N]."""
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


def _write_cache(
    path: pathlib.Path,
    extractor: Extractor,
    examples: Callable[[], Iterable[Example]],
    *,
    shard_examples: int,
    about: Mapping[str, Any],
    progress: Callable[[int], None],
) -> Cache:
    """Writes the shards that are not there yet.

    examples: gives them anew at each call; about: further fields of the header

    Raises ValueError where the folder is of something else, or a shard that is there has another number of examples.
    """
    texts, digest, count = _described(examples())
    full, rest = divmod(count, shard_examples)
    header = extractor.identity() | {
        "text": digest,
        "texts": texts,
        "listed": list(extractor.units.names),
        "shards": [shard_examples] * full + [rest] * bool(rest),
        **about,
    }
    header = json.loads(json.dumps(header))  # as it will be read
    if (path / HEADER).exists():
        check_equal(path, _read_header(path), header)
        for left in path.glob(f"*{TEMPORARY}"):
            left.unlink()
    else:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise BertKerasError(f"{path} is neither empty nor a cache of features; give another folder.")
        write_json(path / HEADER, header)
    cache = Cache(path, header)
    rows = iter(examples())
    for shard, length in zip(cache.shards, header["shards"], strict=True):
        chunk = list(itertools.islice(rows, length))
        if shard.exists():
            _check_shard(shard, length)
        else:
            _write_shard(shard, chunk, extractor(chunk))
        progress(length)
    return cache


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

    digest = _digest(parts())
    if not count:
        raise BertKerasError("there is no text; at least one example is wanted.")
    return names, digest, count


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
    """Writes the vectors of a task's words, or those that are missing after an interruption.

    examples: of the task, as `Conll.examples` gives them
    layers: names of LAYERS that will be read; None keeps the embeddings and every block
    seq_length: wordpieces of a window; None takes the task's own
    progress: is called with the number of examples done since its last call

    Raises ValueError naming the field where `output` holds vectors of another text, model or setting.
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
    return _write_cache(
        path_of(output),
        extractor,
        examples.as_numpy_iterator,
        shard_examples=shard_examples,
        about={"task": task.to_json()},
        progress=progress,
    )


# -----------------------------------------------------------------------------------------------------------
# Any text


def extract_file(
    source: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    layers: str = "last",
    level: str = "word",
    format: str = "jsonl",
    dtype: str = "float32",
    seq_length: int | None = None,
    doc_stride: int = 128,
    batch_size: int = 8,
    shard_examples: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> int:
    """The vectors of every word or piece of a UTF-8 text, a line an example; returns how many examples there are.

    layers: of LAYERS; a weighted sum is the one that training starts from, the mean
    level: of LEVELS; format: of WRITERS
    seq_length: wordpieces of a window; None takes 512, or all positions of an encoder that has fewer

    Work in progress is a cache beside `output`, under the name with ".part"; the same call goes on from there.
    Raises ValueError where `output` exists, or what is in progress was begun otherwise.
    """
    source, output = path_of(source), path_of(output)
    for name, value, known in (("level", level, LEVELS), ("format", format, tuple(WRITERS))):
        if value not in known:
            raise BertKerasError(f"{name} is {value!r}; wanted one of {', '.join(known)}.")
    if output.exists():
        raise BertKerasError(f"{output} is there already; give another name, or remove it first.")
    if not source.is_file():
        raise MissingFileError(f"no file at {source}; give a file of text.")
    if not isinstance(checkpoint, checkpoints.Checkpoint):
        checkpoint = checkpoints.read(checkpoint)
    units = (Words if level == "word" else Pieces)(doc_stride=doc_stride)
    extractor = Extractor(
        checkpoint,
        units=units,
        layers=[layers],
        dtype=dtype,
        seq_length=seq_length or min(checkpoint.config.max_length, 512),
        batch_size=batch_size,
    )
    part = output.with_name(output.name + ".part")
    cache = _write_cache(
        part,
        extractor,
        lambda: _lines(source),
        shard_examples=shard_examples,
        about={},
        progress=progress,
    )
    tokenizer = extractor.preprocess.tokenizer
    made = part / f"made.{format}"
    with whole_file(made) as temporary:
        WRITERS[format](temporary, lambda: _spoken(cache, layers, tokenizer.vocabulary))
    os.replace(made, output)
    shutil.rmtree(part)
    return sum(cache.header["shards"])


def _lines(path: pathlib.Path) -> Iterator[Example]:
    """A text file's lines without their ends. Raises ValueError naming the line that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            text = text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text
            try:
                text.decode()
            except UnicodeDecodeError as error:
                raise BertKerasError(
                    f"{path}, line {number}: 0x{text[error.start]:02x} is not UTF-8; save it as UTF-8."
                ) from error
            yield {TEXT: text}


def _spoken(cache: Cache, layers: str, vocabulary: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each example's text, its words or pieces, their bytes and their vectors [N, D]."""
    for record in cache.records().as_numpy_iterator():
        text, vectors = record[TEXT], record["vectors"]
        if "ids" in record:
            tokens = [vocabulary[id_] for id_ in record["ids"]]
        else:
            tokens = [
                text[start:end].decode() for start, end in zip(record["starts"], record["ends"], strict=True)
            ]
        if LAYERS[layers].mixed:
            vectors = vectors.mean(axis=1, dtype=np.float32).astype(vectors.dtype)
        yield {
            "text": text.decode(),
            "tokens": tokens,
            "starts": record["starts"],
            "ends": record["ends"],
            "vectors": vectors.reshape(len(tokens), math.prod(vectors.shape[1:])),
        }


Records = Callable[[], Iterator[dict[str, Any]]]


def _write_jsonl(path: pathlib.Path, records: Records) -> None:
    """An object a line; numbers as short as they can be without becoming another of their type."""
    with path.open("w", encoding="utf-8") as file:
        for record in records():
            vectors = [[float(str(value)) for value in row] for row in record["vectors"]]
            line = record | {
                "starts": record["starts"].tolist(),
                "ends": record["ends"].tolist(),
                "vectors": vectors,
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _write_npz(path: pathlib.Path, records: Records) -> None:
    """All examples in a row: "vectors" [T, D], "starts" and "ends" int64 [T]; "row_splits" int64 [N + 1].

    Example i, line i of the text counted from 0, has the rows from row_splits[i] to row_splits[i + 1].
    """
    splits, width, dtype = [0], 0, np.dtype("float32")
    for record in records():
        splits.append(splits[-1] + len(record["starts"]))
        width, dtype = record["vectors"].shape[1], record["vectors"].dtype
    columns: dict[str, tuple[np.dtype, tuple[int, ...]]] = {"vectors": (dtype, (splits[-1], width))}
    columns |= dict.fromkeys(("starts", "ends"), (np.dtype("int64"), (splits[-1],)))
    with zipfile.ZipFile(path, "w") as archive:
        # Written as they come: all vectors together may be more than memory holds.
        for name, (kind, shape) in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": kind.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for record in records():
                    file.write(record[name].tobytes())
        with archive.open("row_splits.npy", "w") as file:
            np.lib.format.write_array(file, np.array(splits, np.int64))


def _write_parquet(path: pathlib.Path, records: Records) -> None:
    """A row an example, 256 rows a group."""
    # Imported here: slow to import, and not needed otherwise.
    import pyarrow
    import pyarrow.parquet

    rows = records()
    first = next(rows)
    number = pyarrow.from_numpy_dtype(first["vectors"].dtype)
    schema = pyarrow.schema(
        {
            "text": pyarrow.string(),
            "tokens": pyarrow.list_(pyarrow.string()),
            "starts": pyarrow.list_(pyarrow.int64()),
            "ends": pyarrow.list_(pyarrow.int64()),
            "vectors": pyarrow.list_(pyarrow.list_(number)),
        }.items()
    )
    rows = itertools.chain([first], rows)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for group in iter(lambda: list(itertools.islice(rows, 256)), []):
            columns = {name: [record[name] for record in group] for name in schema.names}
            columns["vectors"] = [list(vectors) for vectors in columns["vectors"]]
            writer.write_table(pyarrow.table(columns, schema=schema))


WRITERS: dict[str, Callable[[pathlib.Path, Records], None]] = {
    "jsonl": _write_jsonl,
    "npz": _write_npz,
    "parquet": _write_parquet,
}
