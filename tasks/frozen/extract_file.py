"""The vectors of a text file's words or tokens: text file -> extract_file -> JSON lines or Parquet."""

import itertools
import json
import math
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.files import atomic_file
from bert_keras.io.paths import did_you_mean, to_path
from bert_keras.model.choices import is_mixed, places_of
from bert_keras.tasks.data.sources import listing, numbered_lines, refuse_forms
from bert_keras.tasks.frozen.cache import Cache, write_rows, writing_cache
from bert_keras.tasks.frozen.extractor import Example, Extractor, text_units
from bert_keras.tasks.options import FeatureOptions
from bert_keras.text.words import TEXT


def extract_file(
    source: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    shard_examples: int = 256,
    progress: Callable[[int], None] = lambda done: None,
    **settings: Any,
) -> int:
    """Writes the vectors of every word or token of a UTF-8 text, gzipped or not, one example per line; returns their number.

    settings: fields of FeatureOptions, by name

    Unfinished work is a cache named `output` + ".part"; the same call resumes it.
    Raises BertKerasError if `output` exists, if another process writes it, if the unfinished work has other arguments, and for a
    setting outside its bounds.
    """
    options = FeatureOptions(**settings)
    source, output = to_path(source), to_path(output)
    part = output.with_name(output.name + ".part")
    _check_paths(source, output, part)
    checkpoint = checkpoints.source_of(checkpoint)
    length = min(checkpoint.config.max_length, 512) if options.seq_length is None else options.seq_length
    units = text_units(options.level, checkpoint, seq_length=length, doc_stride=options.doc_stride)
    extractor = Extractor(
        source=checkpoint,
        units=units,
        places=sorted(places_of(options.layers, num_layers=checkpoint.config.num_layers)),
        dtype=options.dtype,
        precision=options.precision,
        batch_size=options.batch_size,
    )

    def examples() -> Iterator[Example]:
        return ({TEXT: line.encode()} for _, line in numbered_lines(source))

    with writing_cache(part, extractor, examples, shard_examples=shard_examples, progress=progress) as cache:
        vocabulary = units.preprocess.tokenizer.vocabulary
        with atomic_file(output) as temporary:
            WRITERS[options.format](temporary, _records(cache, options.layers, vocabulary))
        shutil.rmtree(part)
    return sum(cache.header["shards"])


_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")


def _check_paths(source: pathlib.Path, output: pathlib.Path, part: pathlib.Path) -> None:
    if output.exists():
        left = f" A killed call left {part}, which nothing reads; remove it." if part.exists() else ""
        raise BertKerasError(f"{output} already exists; give another name, or remove it first.{left}")
    if not source.is_file():
        there = f", which is a folder with {listing(source)}" if source.is_dir() else did_you_mean(source)
        raise MissingFileError(f"no file at {source}{there}; give a file of text.")
    refuse_forms(source, _TABLES, "each line is read as a text; write the texts alone, one a line")


def _records(cache: Cache, layers: str, vocabulary: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields each example's text, its words or tokens, their byte offsets and their vectors [N, D]."""
    for row in cache.rows():
        text, vectors = row[TEXT], row["vectors"]
        if "ids" in row:
            tokens = [vocabulary[id_] for id_ in row["ids"]]
        else:
            tokens = [text[start:end].decode() for start, end in zip(row["starts"], row["ends"], strict=True)]
        if is_mixed(layers):
            vectors = vectors.mean(axis=1, dtype=np.float32).astype(vectors.dtype)
        yield {
            "text": text.decode(),
            "tokens": tokens,
            "starts": row["starts"],
            "ends": row["ends"],
            "vectors": vectors.reshape(len(tokens), math.prod(vectors.shape[1:])),
        }


Records = Iterator[dict[str, Any]]


def _write_jsonl(path: pathlib.Path, records: Records) -> None:
    """One object per line; each number has the fewest digits that keep its exact value."""
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            line = record | {
                "starts": record["starts"].tolist(),
                "ends": record["ends"].tolist(),
                "vectors": [[float(str(value)) for value in row] for row in record["vectors"]],
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _write_parquet(path: pathlib.Path, records: Records) -> None:
    """One row per example."""
    import pyarrow  # slow to import, and not needed otherwise

    first = next(records)
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
    write_rows(path, schema, itertools.chain([first], records), value_of=list)


WRITERS: dict[str, Callable[[pathlib.Path, Records], None]] = {
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}
