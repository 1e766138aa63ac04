"""Pre-training instances from TFRecord files, ours or Google's: files in, Features and labels out."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import (
    ENCODER_INPUTS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    WHOLE,
    Part,
)
from bert_keras.io.folders import check_equal
from bert_keras.io.paths import path_of
from bert_keras.tasks.pretraining.manifest import MANIFEST, RECORD_NAMES, read_manifest, shard_name, shards_of
from bert_keras.text.preprocessing import Features, own_rows
from bert_keras.text.tokenizer import Tokenizer

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
    part: Part = WHOLE,
) -> tf.data.Dataset:
    """The instances in TFRecord files, ours or google-research/bert's, one at a time and in order.

    source: a folder from `write_records`, or TFRecord files, plain or gzipped, or a folder with only such files
    tokenizer: checked against the manifest of the folder, or of the files' folder
    seed: repeats forever, in a random order that depends on (seed, epoch)
    skip: number of instances to skip in this order, without parsing
    batch_size, part: gives only the instances of a part of each full batch; the others are not parsed

    Returns Features int32 [S] with `next_sentence_labels` int32 [] and, if the files have masks, `masked_lm_positions` and
    `masked_lm_ids` int32 [P] and `masked_lm_weights` float32 [P]; or `word_starts` int32 [S].
    Raises FileNotFoundError if a file is missing, and ValueError if a folder is not complete or was made with another
    vocabulary, or if a file has no instances.
    """
    if (manifest := manifest_of(source)) is None:
        files, count = listed(source), None
        for folder in dict.fromkeys(file.parent for file in files):
            if (folder / MANIFEST).is_file():  # the files are from a folder of instances
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

    if part != WHOLE:
        in_batches = records.batch(batch_size, drop_remainder=True)
        records, count = (
            own_rows(in_batches, part).unbatch(),
            count and count // batch_size * len(part.rows(batch_size)),
        )

    def parse(record: tf.Tensor) -> Features:
        read = tf.io.parse_single_example(record, {RECORD_NAMES[name]: spec[name] for name in spec})
        found = {name: read[RECORD_NAMES[name]] for name in spec}
        found[NEXT_SENTENCE_LABEL] = tf.squeeze(found[NEXT_SENTENCE_LABEL], axis=0)
        return {
            # A larger number stays too large, which `batches_of` refuses.
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


def manifest_of(source: RecordFiles) -> pathlib.Path | None:
    """The path of the manifest if `write_records` wrote the source; else None."""
    found = path_of(source) / MANIFEST if isinstance(source, str | pathlib.Path) else None
    return found if found is not None and found.is_file() else None


def listed(source: RecordFiles) -> list[pathlib.Path]:
    """The files of a source without a manifest. Raises FileNotFoundError if a file is missing."""
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
    """The files of a folder and the number of their instances."""
    manifest = read_manifest(path)
    _check_tokenizer(path, manifest, tokenizer)
    if manifest["summary"] is None:
        raise BertKerasError(
            f"{path} is not complete ({MANIFEST} has no summary); rerun the command that writes it to resume."
        )
    made = shards_of(manifest)
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
