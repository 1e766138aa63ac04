"""Pre-training instances in files: sharded TFRecord under Google's feature names, with a manifest.

    documents -> batches of tasks/pretraining/instances.py -> mask -> write_records: 00000.tfrecord ..., manifest.json
    files, ours or Google's -> read_records -> Features and labels

The manifest says what was counted in each file and of which text, vocabulary, settings and seed it was made.
"""

import collections
import concurrent.futures.process
import dataclasses
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_MASK,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    TFRECORD_NAMES,
    WORD_STARTS,
)
from bert_keras.files import TEMPORARY, write_json
from bert_keras.json_files import FLAG, OBJECT, TEXT, list_of, or_null, read_object, typed, whole
from bert_keras.paths import path_of
from bert_keras.settings import Masking
from bert_keras.text.masking import Pieces, mask
from bert_keras.text.preprocessing import Features
from bert_keras.text.tokenizers import Tokenizer
from tasks.folders import check_equal
from tasks.pretraining.instances import (
    SAMPLERS,
    SHARD_BYTES,
    SHARD_DOCUMENTS,
    Segmenter,
    Settings,
    Text,
    packed_batches,
    shards,
)
from tasks.tfrecord import record_writer

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
FILES = 8  # that are read at a time where the order is random
BLOCK = 10_000  # records that are shuffled together
LABEL_RATE_TOLERANCE = 0.1  # from one half, beyond which the summary warns

# What a record calls its features: Google's names, and one that their files do not have.
RECORD_NAMES = {**TFRECORD_NAMES, WORD_STARTS: WORD_STARTS}


class Shard(NamedTuple):
    """One file: its size, its text's SHA-256, and what is in it.

    bytes: of the file
    positions: that are no padding, over all instances
    ones: labels that are 1
    skipped: chunks of one segment that made no instance
    """

    bytes: int
    text: str
    documents: int
    instances: int
    positions: int
    ones: int
    skipped: int


class Summary(NamedTuple):
    """What was made.

    label_rate: the share of labels 1; None without labels
    mean_length: positions of an instance that are no padding
    padding: the share of positions that are
    skipped: chunks of one segment that made no instance
    warnings: what is likely to be wrong, a sentence each
    """

    documents: int
    instances: int
    label_rate: float | None
    mean_length: float
    padding: float
    skipped: int
    warnings: tuple[str, ...]


def summarize(shards: Sequence[Shard], *, settings: Settings) -> Summary:
    """The summary of all shards. Raises ValueError where there is no instance."""
    documents, instances, positions, ones, skipped = (
        sum(getattr(shard, name) for shard in shards)
        for name in ("documents", "instances", "positions", "ones", "skipped")
    )
    if not instances:
        raise BertKerasError(
            f"{documents} documents gave no instance and {skipped} chunks of one segment were skipped; give text whose "
            "documents have several lines, or another sampler."
        )
    rate = ones / instances if SAMPLERS[settings.sampler].segments == 2 else None
    warnings = []
    if rate is not None and abs(rate - 0.5) > LABEL_RATE_TOLERANCE:
        warnings.append(
            f"{rate:.1%} of the labels are 1, wanted is about 50 %: where a document has few lines, its last one often has no "
            "next; separate only documents by blank lines, not sentences, or sample with strict."
        )
    length = positions / instances
    padding = 1 - length / settings.seq_length
    return Summary(documents, instances, rate, length, padding, skipped, tuple(warnings))


def check_batch(instances: int, *, batch_size: int) -> None:
    """Raises ValueError where the instances fill no batch."""
    if instances < batch_size:
        raise BertKerasError(
            f"there are {instances} instances, fewer than a batch of {batch_size}; give more text or a smaller batch."
        )


@dataclasses.dataclass(frozen=True)
class _Job:
    """What a worker needs beside a shard's text."""

    path: pathlib.Path
    make_tokenizer: Callable[[], Tokenizer]
    settings: Settings
    masking: Masking | None
    segment: Segmenter | None
    seed: int
    compress: bool


class _Worker:
    """Makes the files of a job: (number, texts) -> Shard."""

    def __init__(self, job: _Job) -> None:
        self.job = job
        self.tokenizer = job.make_tokenizer()
        self._mask = None
        if job.masking is not None:
            # Not traced anew for the last batch of a shard, which is shorter.
            known = functools.partial(mask, pieces=Pieces.of(self.tokenizer), masking=job.masking)
            self._mask = tf.function(known, autograph=False, reduce_retracing=True)

    def __call__(self, number: int, texts: Sequence[Text]) -> Shard:
        job = self.job
        batches, skipped = packed_batches(
            texts,
            tokenizer=self.tokenizer,
            settings=job.settings,
            segment=job.segment,
            seed=[job.seed, number],
        )
        target = job.path / shard_name(number, compress=job.compress)
        compression = "GZIP" if job.compress else ""
        instances = positions = ones = 0
        with record_writer(target, compression) as write:
            for batch, features in enumerate(batches):
                if self._mask is not None:
                    seed = np.random.SeedSequence([job.seed, number, batch]).generate_state(2)
                    features = self._mask(features, seed=tf.constant(seed.astype("int32")))
                for record in _records(features):
                    write(record)
                instances += len(features[NEXT_SENTENCE_LABEL])
                positions += int(tf.reduce_sum(features[INPUT_MASK]))
                ones += int(tf.reduce_sum(features[NEXT_SENTENCE_LABEL]))
        size = target.stat().st_size
        return Shard(size, digest_of_documents(texts), len(texts), instances, positions, ones, skipped)


def shard_name(number: int, *, compress: bool) -> str:
    """The name of a file of records."""
    return f"{number:05d}.tfrecord{'.gz' if compress else ''}"


def _records(features: Features) -> Iterator[bytes]:
    """Features [B, ...] -> B serialized examples under the names of RECORD_NAMES."""
    columns = {RECORD_NAMES[name]: value.numpy() for name, value in features.items()}
    for row in range(len(features[NEXT_SENTENCE_LABEL])):
        record = {name: _feature(np.atleast_1d(values[row])) for name, values in columns.items()}
        example = tf.train.Example(features=tf.train.Features(feature=record))
        yield example.SerializeToString(deterministic=True)


def _feature(values: np.ndarray) -> tf.train.Feature:
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def digest_of_documents(documents: Iterable[Text]) -> str:
    """SHA-256 of documents: a line each for a segment, a blank one after each document."""
    found = hashlib.sha256()
    for document in documents:
        found.update(("\n".join(document) + "\n\n").encode())
    return found.hexdigest()


def write_records(
    documents: Iterable[Text],
    path: str | pathlib.Path,
    *,
    make_tokenizer: Callable[[], Tokenizer],
    settings: Settings,
    masking: Masking | None = None,
    segment: Segmenter | None = None,
    seed: int = 12345,
    workers: int = 1,
    compress: bool = False,
    shard_bytes: int = SHARD_BYTES,
    shard_documents: int = SHARD_DOCUMENTS,
    progress: Callable[[int], None] = lambda done: None,
) -> Summary:
    """Writes instances as TFRecord files and a manifest.json, or what is missing of them after an interruption.

    documents: read once, a `Corpus`
    path: a folder, new, empty or begun by the same call
    make_tokenizer: picklable, since every worker makes its own: `functools.partial(WordPiece.from_file, "vocab.txt")`
    masking: static masks, in the files; None leaves masking to training, where every epoch can have others
    segment: picklable too; splits a line into words where spaces do not, for whole-word masking. Files without masks
        have its `word_starts`
    workers: processes that tokenize, sample, mask and write; the files do not depend on them. More than one
        asks of a script that it starts under `if __name__ == "__main__"`
    compress: gzip
    shard_bytes, shard_documents: of text in a file, at least; what is in memory grows with them, not with the corpus
    progress: is called with the number of documents done since its last call

    The records have the names and fixed lengths of google-research/bert create_pretraining_data.py.
    Raises ValueError naming the field where the folder was made of another text, vocabulary or setting; and on text that
    gives no instance.
    """
    path = path_of(path)
    job = _Job(path, make_tokenizer, settings, masking, segment, seed, compress)
    tokenizer = make_tokenizer()
    identity = {
        "format_version": FORMAT_VERSION,
        "vocabulary": tokenizer.digest,
        "lower_case": tokenizer.lower_case,
        **dataclasses.asdict(settings),
        "masking": None if masking is None else dataclasses.asdict(masking),
        "segmenter": None
        if segment is None
        else getattr(segment, "__qualname__", type(segment).__qualname__),
        "seed": seed,
        "compress": compress,
        "shard_bytes": shard_bytes,
        "shard_documents": shard_documents,
    }
    done = _begin(path, identity)
    made: list[Shard] = []

    def missing() -> Iterator[tuple[int, list[Text]]]:
        """The shards to make. Those that are done come first, and are compared with the text."""
        for number, texts in enumerate(shards(documents, size=shard_bytes, least=shard_documents)):
            if number < len(done):
                check_equal(path, {"text": done[number].text}, {"text": digest_of_documents(texts)})
                made.append(done[number])
                progress(done[number].documents)
            else:
                yield number, texts

    for shard in _in_order(job, missing(), workers=workers):
        made.append(shard)
        _write_manifest(path, identity, made)
        progress(shard.documents)
    if len(made) < len(done):
        raise BertKerasError(f"{path} was made of more text; give another folder, or remove this one.")
    summary = summarize(made, settings=settings)
    _write_manifest(path, identity, made, summary=summary)
    return summary


def _begin(path: pathlib.Path, identity: Mapping[str, Any]) -> list[Shard]:
    """The shards that a folder has already, the first ones in a row."""
    if not (path / MANIFEST).exists():
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise BertKerasError(f"{path} is neither empty nor a folder of instances; give another folder.")
        _write_manifest(path, identity, [])
        return []
    manifest = read_manifest(path)
    found = {name: value for name, value in manifest.items() if name not in ("shards", "summary")}
    check_equal(path, found, json.loads(json.dumps(identity)))
    for left in path.glob(f"*{TEMPORARY}"):
        left.unlink()
    return _shards_of(manifest)


def _write_manifest(
    path: pathlib.Path, identity: Mapping[str, Any], made: Sequence[Shard], summary: Summary | None = None
) -> None:
    content = {"shards": [shard._asdict() for shard in made], "summary": summary and summary._asdict()}
    write_json(path / MANIFEST, {**identity, **content})


def read_manifest(path: str | pathlib.Path) -> dict[str, Any]:
    """What `write_records` wrote of a folder.

    Raises FileNotFoundError where there is none, ValueError where it is not of that form.
    """
    file = path_of(path) / MANIFEST
    if not file.is_file():
        raise MissingFileError(f"there is no {file}; give a folder of instances.")
    kinds = {
        "shards": list_of(OBJECT),
        "summary": or_null(OBJECT),
        "masking": or_null(OBJECT),
        "compress": FLAG,
    }
    manifest = read_object(file)
    check_equal(
        file.parent, {"format_version": manifest.get("format_version")}, {"format_version": FORMAT_VERSION}
    )
    typed(manifest, kinds, where=file, others=True)
    count = whole(0, 2**63 - 1)
    for number, shard in enumerate(manifest["shards"]):
        shard_kinds = dict.fromkeys(Shard._fields, count) | {"text": TEXT}
        typed(shard, shard_kinds, where=f"{file}: shards[{number}]")
    return manifest


def _shards_of(manifest: Mapping[str, Any]) -> list[Shard]:
    return [Shard(**shard) for shard in manifest["shards"]]


def _in_order(job: _Job, tasks: Iterator[tuple[int, list[Text]]], *, workers: int) -> Iterator[Shard]:
    """The shards of tasks, in their order. As many tasks wait as there are workers: memory does not grow with the corpus."""
    if workers == 1:
        yield from itertools.starmap(_Worker(job), tasks)
        return
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, spawn, _start_worker, (job,)) as executor:
        pending: collections.deque[concurrent.futures.Future[Shard]] = collections.deque()
        try:
            for task in tasks:
                pending.append(executor.submit(_work, *task))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ChildProcessError(
                f"a worker of {job.path} ended ({error}); give fewer workers where memory is short, start a script under "
                'if __name__ == "__main__", and call again: it goes on where it stopped.'
            ) from error
        finally:
            executor.shutdown(cancel_futures=True)


_worker: _Worker  # of a worker's process


def _start_worker(job: _Job) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tf.config.set_visible_devices([], "GPU")  # which training may want
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    _worker = _Worker(job)


def _end_with_parent() -> None:
    """Where the parent is killed, its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(number: int, texts: list[Text]) -> Shard:
    return _worker(number, texts)


RecordFiles = str | pathlib.Path | Sequence[str | pathlib.Path]


def read_records(
    source: RecordFiles, *, tokenizer: Tokenizer | None = None, seed: int | None = None, skip: int = 0
) -> tf.data.Dataset:
    """Instances of TFRecord files, these or google-research/bert's, one at a time and in order.

    source: a folder of `write_records`, or TFRecord files, plain or gzipped, or a folder of nothing but such files
    tokenizer: what the ids must be of; compared with the manifest of a folder, or beside files
    seed: reads without end and in random order, another in every epoch, that of (seed, epoch)
    skip: instances of that order that are passed over; they are not parsed

    Returns Features int32 [S] with `next_sentence_labels` int32 [] and, where the files have masks, `masked_lm_positions` and
    `masked_lm_ids` int32 [P] and `masked_lm_weights` float32 [P]; or `word_starts` int32 [S].
    Raises FileNotFoundError where there is no file, ValueError where a folder is not complete, was made with another
    vocabulary, or a file has no such records.
    """
    if (manifest := manifest_of(source)) is None:
        files, count = listed(source), None
        for folder in dict.fromkeys(file.parent for file in files):
            if (folder / MANIFEST).is_file():  # its files were given, some or all
                _check_tokenizer(folder, read_manifest(folder), tokenizer)
    else:
        files, count = _checked(manifest.parent, tokenizer)
    with files[0].open("rb") as opened:
        compression = "GZIP" if opened.read(2) == b"\x1f\x8b" else ""
    records = tf.data.TFRecordDataset([str(file) for file in files], compression)
    spec = _spec(files[0], records)
    if seed is not None:
        in_epoch = functools.partial(_shuffled, files, compression, seed=seed)
        first, skip = divmod(skip, count or sum(1 for _ in records)) if skip else (0, 0)
        records, count = tf.data.Dataset.counter(first).flat_map(in_epoch).skip(skip), None

    def parse(record: tf.Tensor) -> Features:
        read = tf.io.parse_single_example(record, {RECORD_NAMES[name]: spec[name] for name in spec})
        found = {name: read[RECORD_NAMES[name]] for name in spec}
        found[NEXT_SENTENCE_LABEL] = tf.squeeze(found[NEXT_SENTENCE_LABEL], axis=0)
        return {
            name: value if value.dtype.is_floating else tf.cast(value, tf.int32)
            for name, value in found.items()
        }

    read = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return read if count is None else read.apply(tf.data.experimental.assert_cardinality(count))


def _shuffled(
    files: Sequence[pathlib.Path], compression: str, epoch: tf.Tensor, *, seed: int
) -> tf.data.Dataset:
    """An epoch's records: the files in random order, several at a time, and of what they give BLOCK records at a time.

    Not by `Dataset.shuffle`, whose seed TensorFlow's own has a part in.
    """
    key = tf.random.experimental.stateless_fold_in(tf.constant([seed, 0], tf.int64), epoch)

    def shuffled(number: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
        return _in_random_order(block, tf.random.experimental.stateless_fold_in(key, number + 1))

    names = _in_random_order(tf.constant([str(file) for file in files]), key)
    return (
        tf.data.Dataset.from_tensor_slices(names)
        .interleave(lambda name: tf.data.TFRecordDataset(name, compression), cycle_length=FILES)
        .batch(BLOCK)
        .enumerate()
        .map(shuffled)
        .unbatch()
    )


def _in_random_order(values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.gather(values, tf.argsort(tf.random.stateless_uniform([tf.size(values)], seed)))


def manifest_of(source: RecordFiles) -> pathlib.Path | None:
    """The manifest of a folder of `write_records`; None for anything else."""
    found = path_of(source) / MANIFEST if isinstance(source, str | pathlib.Path) else None
    return found if found is not None and found.is_file() else None


def listed(source: RecordFiles) -> list[pathlib.Path]:
    """The files of a source that has no manifest. Raises FileNotFoundError where there is none."""
    files = [path_of(file) for file in ([source] if isinstance(source, str | pathlib.Path) else source)]
    if len(files) == 1 and files[0].is_dir():
        inside = sorted(file for file in files[0].iterdir() if not file.name.startswith("."))
        if not inside:
            raise MissingFileError(f"{files[0]} is empty; give a folder of instances, or TFRecord files.")
        files = inside
    if absent := [str(file) for file in files if not file.is_file()]:
        raise MissingFileError(
            f"there is no file {', '.join(absent)}; give a folder of instances, or TFRecord files."
        )
    return files


def _checked(path: pathlib.Path, tokenizer: Tokenizer | None) -> tuple[list[pathlib.Path], int]:
    """The files of a folder and how many instances they have."""
    manifest = read_manifest(path)
    _check_tokenizer(path, manifest, tokenizer)
    if manifest["summary"] is None:
        raise BertKerasError(
            f"{path} is not complete; write its instances again, which goes on where it stopped."
        )
    made = _shards_of(manifest)
    if not made:
        raise BertKerasError(f"{path} has no instances, by its {MANIFEST}; write them again.")
    files = [path / shard_name(number, compress=manifest["compress"]) for number in range(len(made))]
    for file, shard in zip(files, made, strict=True):
        size = file.stat().st_size if file.is_file() else 0
        if size != shard.bytes:
            raise BertKerasError(
                f"{file} has {size} bytes and {MANIFEST} says {shard.bytes}; remove {path} and write it again."
            )
    return files, sum(shard.instances for shard in made)


def _check_tokenizer(path: pathlib.Path, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> None:
    if tokenizer is not None:
        wanted = {"vocabulary": tokenizer.digest, "lower_case": tokenizer.lower_case}
        check_equal(path, {name: manifest.get(name) for name in wanted}, wanted)


def _spec(file: pathlib.Path, records: tf.data.Dataset) -> dict[str, tf.io.FixedLenFeature]:
    """How to parse, by our names, from what the first record holds."""
    try:
        first = tf.train.Example.FromString(next(iter(records)).numpy()).features.feature
    except (StopIteration, tf.errors.DataLossError, DecodeError) as error:
        reason = str(error) or "it is empty"
        raise BertKerasError(
            f"{file} has no TFRecord that can be read ({reason}); give another file."
        ) from error
    floats = (MASKED_LM_WEIGHTS,)
    lengths = {
        name: len((first[key].float_list if name in floats else first[key].int64_list).value)
        for name, key in RECORD_NAMES.items()
        if key in first
    }
    if absent := [
        RECORD_NAMES[name] for name in (*ENCODER_INPUTS, NEXT_SENTENCE_LABEL) if name not in lengths
    ]:
        raise BertKerasError(f"{file} has no {', '.join(absent)}; give files of pre-training instances.")
    return {
        name: tf.io.FixedLenFeature([length], tf.float32 if name in floats else tf.int64)
        for name, length in lengths.items()
    }
