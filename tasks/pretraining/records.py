"""Pre-training instances in TFRecord files: the format of their folder, and how it is read.

    00000.tfrecord ...
    manifest.json        fingerprint (text, vocabulary, settings, seed), shards, and the summary of a complete folder

In: files, ours or Google's. Out: Features and labels. `write_records` writes the folder.
"""

import functools
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import (
    ALL_ROWS,
    ENCODER_INPUTS,
    LABEL_RATE_TOLERANCE,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    TFRECORD_NAMES,
    WORD_STARTS,
    WorkerRows,
)
from bert_keras.io import formats
from bert_keras.io.files import digest, digest_file, write_json
from bert_keras.io.folders import Folder, Layout, check_equal
from bert_keras.io.json_files import (
    FLAG,
    OBJECT,
    TEXT,
    checked_fields,
    integer,
    list_of,
    or_null,
    read_object,
)
from bert_keras.io.paths import did_you_mean, to_path
from bert_keras.tasks.hparams import Sampling, segments_of
from bert_keras.tasks.pretraining.text_counts import TextCounts
from bert_keras.text.preprocessing import Features, own_rows
from bert_keras.text.tokenizer import Tokenizer

_SHARD_NAME = re.compile(r"\d{5,}\.tfrecord(\.gz)?")  # of `shard_name`
MANIFEST = "manifest.json"
WORK = ".beam"  # the folder of sizes, counts and errors of `write_records_with_beam`, until the manifest is complete
SHARDS, SUMMARY = "shards", "summary"  # fields of the manifest besides the fingerprint
INSTANCES = Layout(
    name="a folder of instances",
    artifact=formats.INSTANCES,
    fingerprint=MANIFEST,
    results=MANIFEST,
    remote=True,
)

# Google's feature names, and `word_starts`, which Google's files do not have.
RECORD_NAMES = {**TFRECORD_NAMES, WORD_STARTS: WORD_STARTS}


class Shard(NamedTuple):
    """A file of records: its size and digest, the SHA-256 of its text, and counts of its content.

    bytes, sha256: size of the file and its digest
    positions: number of positions without padding, over all instances
    ones: number of labels that are 1
    skipped: number of chunks of one segment, which give no instance
    tokens, unknown, cut, lone: as in TextCounts; 0 in the manifests of versions that did not count them
    """

    bytes: int
    text: str
    documents: int
    instances: int
    positions: int
    ones: int
    skipped: int
    sha256: str
    tokens: int = 0
    unknown: int = 0
    cut: int = 0
    lone: int = 0

    def is_written(self, file: pathlib.Path) -> bool:
        """True if a file has this content."""
        is_whole = file.is_file() and file.stat().st_size == self.bytes
        return is_whole and digest_file(file) == self.sha256


class Summary(NamedTuple):
    """The summary of all shards.

    label_rate: the fraction of labels that are 1; None without labels
    mean_length: positions of an instance, without padding
    padding: the fraction of positions that are padding
    skipped: number of chunks of one segment, which give no instance
    warnings: likely mistakes, one sentence for each
    tokens, unknown, cut: as in TextCounts
    """

    documents: int
    instances: int
    label_rate: float | None
    mean_length: float
    padding: float
    skipped: int
    warnings: tuple[str, ...]
    tokens: int = 0
    unknown: int = 0
    cut: int = 0


class InstancesFolder(Folder):
    """A folder of instances. Its manifest grows with the shards."""

    def __init__(self, path: str | pathlib.Path) -> None:
        super().__init__(path, INSTANCES)

    @property
    def finished(self) -> bool:
        """False: writing a complete folder again is allowed; it compares the folder with the text and changes nothing."""
        return False

    def fingerprint(self) -> dict[str, Any]:
        """The fields that decide the instances, except the text."""
        manifest = formats.unstamped(formats.INSTANCES, read_manifest(self.path), where=self.path)
        return {name: value for name, value in manifest.items() if name not in (SHARDS, SUMMARY)}

    def shards(self) -> list[Shard]:
        """The finished shards, in the order of the text."""
        return load_shards(read_manifest(self.path))

    @property
    def complete(self) -> bool:
        """True if the folder has all shards of its text."""
        return read_manifest(self.path)[SUMMARY] is not None

    def _forget(self) -> None:
        """Removes the files of shards too, where no shard has an instance: they cost no work."""
        if not any(shard.instances for shard in self.shards()):
            for file in [*self.path.glob("*.tfrecord*")]:
                file.unlink()
        super()._forget()

    def made_from(self, amount: str) -> BertKerasError:
        """The error about a folder of another text. amount: "more text" or "less text"."""
        return BertKerasError(f"{self.path} was made from {amount}; give another folder, or remove this one.")

    def write(
        self, fingerprint: Mapping[str, Any], made: Sequence[Shard], summary: Summary | None = None
    ) -> None:
        """Writes the manifest; only a complete folder has a summary, and no file of an earlier try with another text."""
        if summary is not None:
            names = {shard_name(i, compress=fingerprint["compress"]) for i in range(len(made))}
            for file in list(self.path.glob("*.tfrecord*")):
                if _SHARD_NAME.fullmatch(file.name) and file.name not in names:
                    file.unlink()
        content = {SHARDS: [shard._asdict() for shard in made], SUMMARY: summary and summary._asdict()}
        write_json(self.path / MANIFEST, {**formats.stamp(formats.INSTANCES), **fingerprint, **content})
        if summary is not None and (work := self.path / WORK).is_dir():
            for file in list(work.iterdir()):
                file.unlink()
            work.rmdir()


def read_manifest(path: str | pathlib.Path) -> dict[str, Any]:
    """Reads the manifest of a folder of instances.

    Raises FileNotFoundError if it is missing, and ValueError if its format is wrong.
    """
    file = to_path(path) / MANIFEST
    if not file.is_file():
        raise MissingFileError(f"there is no {file}{did_you_mean(file)}; give a folder of instances.")
    kinds = {SHARDS: list_of(OBJECT), SUMMARY: or_null(OBJECT), "masking": or_null(OBJECT), "compress": FLAG}
    # A folder that was just begun has neither shards nor summary.
    manifest = {SHARDS: [], SUMMARY: None} | read_object(file)
    formats.check_format(formats.INSTANCES, manifest, where=file)
    checked_fields(manifest, kinds, where=file, others=True)
    count = integer(0, 2**63 - 1)
    for number, shard in enumerate(manifest[SHARDS]):
        shard_kinds = dict.fromkeys(Shard._fields, count) | {"text": TEXT, "sha256": TEXT}
        checked_fields(shard, shard_kinds, where=f"{file}: {SHARDS}[{number}]", optional=TextCounts._fields)
    return manifest


def load_shards(manifest: Mapping[str, Any]) -> list[Shard]:
    """The shards in a manifest."""
    return [Shard(**shard) for shard in manifest[SHARDS]]


def load_summary(manifest: Mapping[str, Any]) -> Summary:
    """The summary in the manifest of a complete folder."""
    summary = manifest[SUMMARY]
    return Summary(**{**summary, "warnings": tuple(summary["warnings"])})


def shard_name(number: int, *, compress: bool) -> str:
    """The name of a file of records."""
    return f"{number:05d}.tfrecord{'.gz' if compress else ''}"


def summarize(shards: Sequence[Shard], *, settings: Sampling, lone_words: bool = False) -> Summary:
    """The summary of all shards. Raises ValueError if there is no instance, or no token to predict.

    lone_words: words are masked whole, and no segmenter says where they are
    """
    documents, instances, positions, ones, skipped = (
        sum(getattr(shard, name) for shard in shards)
        for name in ("documents", "instances", "positions", "ones", "skipped")
    )
    if not instances:
        raise BertKerasError(
            f"{documents} documents gave no instance and {skipped} chunks of one segment were skipped; give text whose "
            "documents have several lines, or another sampler."
        )
    rate = ones / instances if segments_of(settings.sampler) == 2 else None
    warnings = []
    if rate is not None and abs(rate - 0.5) > LABEL_RATE_TOLERANCE:
        warnings.append(
            f"{rate:.1%} of the labels are 1, expected about 50 %: in short documents, the last line often has no next line; "
            "use blank lines only between documents, not between sentences, or set strict."
        )
    counts = TextCounts(*(sum(getattr(shard, name) for shard in shards) for name in TextCounts._fields))
    warnings += [f"{line}." for line in counts.warnings(whole_word=lone_words)]
    length = positions / instances
    padding = 1 - length / settings.seq_length
    return Summary(documents, instances, rate, length, padding, skipped, tuple(warnings), *counts[:3])


# -----------------------------------------------------------------------------------------------------------
# Reading

FILES = 8  # files to read at the same time, in random order
BLOCK = 10_000  # records to shuffle together

RecordFiles = str | pathlib.Path | Sequence[str | pathlib.Path]


def read_records(
    source: RecordFiles,
    *,
    tokenizer: Tokenizer | None = None,
    seed: int | None = None,
    skip: int = 0,
    batch_size: int = 1,
    worker_rows: WorkerRows = ALL_ROWS,
) -> tf.data.Dataset:
    """The instances in TFRecord files, ours or google-research/bert's, one at a time and in order.

    source: a folder from `write_records`, or TFRecord files, plain or gzipped, or a folder with only such files
    tokenizer: checked against the manifest of the folder, or of the files' folder
    seed: repeats forever, in a random order that depends on (seed, epoch)
    skip: number of instances to skip in this order, without parsing
    batch_size, worker_rows: gives only these rows of each full batch; the others are not parsed

    Returns Features int32 [S] with `next_sentence_labels` int32 [] and, if the files have masks, `masked_lm_positions` and
    `masked_lm_ids` int32 [P] and `masked_lm_weights` float32 [P]; or `word_starts` int32 [S].
    Raises FileNotFoundError if a file is missing, and ValueError if a folder is not complete or was made with another
    vocabulary, or if a file has no instances.
    """
    manifests = load_manifests(source)
    for folder, manifest in manifests.items():
        _check_tokenizer(folder, manifest, tokenizer)
    if (written := written_folder(source)) is None:
        files, count = list_record_files(source), None
    else:
        files, count = _complete_files(written, manifests[written])
    with files[0].open("rb") as opened:
        compression = "GZIP" if opened.read(2) == b"\x1f\x8b" else ""
    records = tf.data.TFRecordDataset([str(file) for file in files], compression)
    spec = _spec(files[0], records)
    if seed is not None:
        in_epoch = functools.partial(_shuffled, files, compression, seed=seed)
        first, skip = divmod(skip, count or sum(1 for _ in records)) if skip else (0, 0)
        records, count = tf.data.Dataset.counter(first).flat_map(in_epoch).skip(skip), None

    if worker_rows != ALL_ROWS:
        in_batches = records.batch(batch_size, drop_remainder=True)
        records = own_rows(in_batches, worker_rows).unbatch()
        count = count and count // batch_size * len(worker_rows.rows(batch_size))

    def parse(record: tf.Tensor) -> Features:
        read = tf.io.parse_single_example(record, {RECORD_NAMES[name]: spec[name] for name in spec})
        found = {name: read[RECORD_NAMES[name]] for name in spec}
        found[NEXT_SENTENCE_LABEL] = tf.squeeze(found[NEXT_SENTENCE_LABEL], axis=0)
        return {
            # A larger number stays too large, which `make_batches` refuses.
            name: value if value.dtype.is_floating else tf.saturate_cast(value, tf.int32)
            for name, value in found.items()
        }

    read = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return read if count is None else read.apply(tf.data.experimental.assert_cardinality(count))


def _shuffled(
    files: Sequence[pathlib.Path], compression: str, epoch: tf.Tensor, *, seed: int
) -> tf.data.Dataset:
    """An epoch's records: reads several files at a time, in random order, and shuffles records in blocks.

    `Dataset.shuffle` is not used: its order depends on TensorFlow's global seed too.
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


def written_folder(source: RecordFiles) -> pathlib.Path | None:
    """The folder that is the source, if `write_records` wrote it."""
    found = to_path(source) if isinstance(source, str | pathlib.Path) else None
    return found if found is not None and (found / MANIFEST).is_file() else None


def load_manifests(source: RecordFiles) -> dict[pathlib.Path, dict[str, Any]]:
    """The manifest of each folder that the files are in; folders that `write_records` did not write have none."""
    written = written_folder(source)
    folders = {file.parent: None for file in list_record_files(source)} if written is None else [written]
    return {folder: read_manifest(folder) for folder in folders if (folder / MANIFEST).is_file()}


def list_record_files(source: RecordFiles) -> list[pathlib.Path]:
    """The files of records of a source, in order. Raises FileNotFoundError if a file is missing."""
    if (written := written_folder(source)) is not None:
        return sorted(written.glob("*.tfrecord*"))
    files = [to_path(file) for file in ([source] if isinstance(source, str | pathlib.Path) else source)]
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


def digest_records(source: RecordFiles) -> str:
    """SHA-256 of all files, including the manifest, which has the digests of text and vocabulary."""
    written = written_folder(source)
    manifest = [] if written is None else [written / MANIFEST]
    return digest(digest_file(file) for file in (*list_record_files(source), *manifest))


def _complete_files(path: pathlib.Path, manifest: Mapping[str, Any]) -> tuple[list[pathlib.Path], int]:
    """The files of a complete folder and the number of their instances."""
    if manifest[SUMMARY] is None:
        raise BertKerasError(
            f"{path} is not complete ({MANIFEST} has no summary); rerun the command that writes it to resume."
        )
    made = load_shards(manifest)
    if not made:
        raise BertKerasError(f"{path} has no instances according to its {MANIFEST}; write it again.")
    files = [path / shard_name(number, compress=manifest["compress"]) for number in range(len(made))]
    for file, shard in zip(files, made, strict=True):
        size = file.stat().st_size if file.is_file() else 0
        if size != shard.bytes:
            raise BertKerasError(
                f"{file} has {size} bytes, expected {shard.bytes} ({MANIFEST}); remove {path} and write it again."
            )
    return files, sum(shard.instances for shard in made)


def _check_tokenizer(path: pathlib.Path, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> None:
    if tokenizer is not None:
        wanted = {"vocabulary": tokenizer.digest, "lower_case": tokenizer.lower_case}
        check_equal(path, {name: manifest.get(name) for name in wanted}, wanted)


def _spec(file: pathlib.Path, records: tf.data.Dataset) -> dict[str, tf.io.FixedLenFeature]:
    """The parsing specification of the records, by our names, from the first record."""
    try:
        first = tf.train.Example.FromString(next(iter(records)).numpy()).features.feature
    except (StopIteration, tf.errors.DataLossError, DecodeError) as error:
        reason = str(error) or "it is empty"
        raise BertKerasError(f"{file} has no readable TFRecord ({reason}); give another file.") from error
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
    masks = (MASKED_LM_POSITIONS, MASKED_LM_IDS, MASKED_LM_WEIGHTS)
    absent = [RECORD_NAMES[name] for name in masks if name not in lengths]
    if 0 < len(absent) < len(masks):
        raise BertKerasError(
            f"{file} has masks without {', '.join(absent)}; give files with all of a mask, or none."
        )
    for names, wanted in (
        (ENCODER_INPUTS, "one length"),
        (masks, "one length"),
        ((NEXT_SENTENCE_LABEL,), "one number"),
    ):
        found = {RECORD_NAMES[name]: lengths[name] for name in names if name in lengths}
        if len({*found.values()}) > 1 or (wanted == "one number" and {*found.values()} != {1}):
            counts = ", ".join(f"{count:,} numbers in {name}" for name, count in found.items())
            raise BertKerasError(
                f"{file}: the first record has {counts}; wanted {wanted}; give files of pre-training instances."
            )
    return {
        name: tf.io.FixedLenFeature([length], tf.float32 if name in floats else tf.int64)
        for name, length in lengths.items()
    }
