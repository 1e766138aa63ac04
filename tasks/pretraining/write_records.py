"""Pre-training instances as TFRecord files: documents in, a folder with a manifest out. It resumes an interrupted folder.

    documents -> shards -> batches of tasks/pretraining/instance_stream.py -> mask -> 00000.tfrecord ..., manifest.json

A shard's bytes depend only on its documents, its number and the job, not on the process that writes it. So other processes can
write shards too: `corpus.shard_spans` names the documents of each shard, and `corpus.read_spans` reads them.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.features import INPUT_MASK, NEXT_SENTENCE_LABEL
from bert_keras.fields import Masking, checked_value
from bert_keras.io.files import atomic_file, digest_file, file_errors
from bert_keras.io.folders import check_equal
from bert_keras.io.own_code import digests_of
from bert_keras.tasks.hparams import PretrainHparams, Sampling
from bert_keras.tasks.pretraining.corpus import Document, digest_documents, shards
from bert_keras.tasks.pretraining.instance_stream import (
    SHARD_BYTES,
    SHARD_DOCUMENTS,
    InstanceMaker,
    Packer,
    Segmenter,
    check_segments_are_read,
    describe_segmenter,
)
from bert_keras.tasks.pretraining.processes import check_workers, in_order
from bert_keras.tasks.pretraining.records import (
    RECORD_NAMES,
    InstancesFolder,
    Shard,
    Summary,
    shard_name,
    summarize,
)
from bert_keras.tasks.pretraining.samplers import sampler_of
from bert_keras.text.masking import Pieces, mask
from bert_keras.text.preprocessing import Features
from bert_keras.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides the files of a text, except the text.

    path: a new or empty folder, or an unfinished folder of the same job
    make_tokenizer: picklable, because every worker calls it: `functools.partial(WordPiece.from_file, "vocab.txt")`
    masking: writes static masks; None leaves masking to training, with new masks in every epoch
    segment: picklable; splits a line into words, for whole-word masking in languages without spaces. Files without masks have
        its `word_starts`
    compress: gzip
    shard_bytes, shard_documents: least text in a file; memory grows with them, not with the corpus

    Raises BertKerasError for a seed out of range, and for a segmenter that the masks do not read.
    """

    path: pathlib.Path
    make_tokenizer: Callable[[], Tokenizer]
    settings: Sampling
    masking: Masking | None = None
    segment: Segmenter | None = None
    seed: int = 12345
    compress: bool = False
    shard_bytes: int = SHARD_BYTES
    shard_documents: int = SHARD_DOCUMENTS

    def __post_init__(self) -> None:
        checked_value(PretrainHparams, "seed", self.seed)
        if self.masking is not None:
            check_segments_are_read(self.segment, whole_word=self.masking.whole_word)

    @property
    def lone_words(self) -> bool:
        """True where words are masked whole and no segmenter says where they are."""
        return self.masking is not None and self.masking.whole_word and self.segment is None

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the instances of a text, plain JSON."""
        tokenizer, segment = self.make_tokenizer(), self.segment
        code = digests_of(sampler_of(self.settings.sampler).sample, *([] if segment is None else [segment]))
        return {
            "vocabulary": tokenizer.digest,
            "lower_case": tokenizer.lower_case,
            **dataclasses.asdict(self.settings),
            "masking": None if self.masking is None else dataclasses.asdict(self.masking),
            "segmenter": None if segment is None else describe_segmenter(segment),
            **({"code": code} if code else {}),
            **{name: getattr(self, name) for name in ("seed", "compress", "shard_bytes", "shard_documents")},
        }


class ShardWriter:
    """Writes the files of a job: (number, texts) -> Shard."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._maker = InstanceMaker(
            tokenizer=job.make_tokenizer(), settings=job.settings, segment=job.segment
        )
        self._pack = Packer(self._maker)
        pieces = Pieces.of(self._maker.tokenizer)

        def finished(features: Features, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            """The records of a batch, the positions with tokens, and the labels that are 1."""
            if job.masking is not None:
                with tf.device("CPU"):  # where all processes have the same kernels
                    features = mask(features, seed=seed, pieces=pieces, masking=job.masking)
            records = serialize_examples({RECORD_NAMES[name]: value for name, value in features.items()})
            counted = (tf.reduce_sum(features[name]) for name in (INPUT_MASK, NEXT_SENTENCE_LABEL))
            return records, *counted

        # The last batch of a shard is shorter; an unknown size avoids a retrace.
        signature = [self._pack.specs(), tf.TensorSpec([2], tf.int32)]
        self._finished = tf.function(finished, autograph=False, input_signature=signature)

    def __call__(self, number: int, texts: Sequence[Document]) -> Shard:
        job = self.job
        made, skipped, counts = self._maker.instances(texts, seed=[job.seed, number])
        target = job.path / shard_name(number, compress=job.compress)
        compression = "GZIP" if job.compress else ""
        instances = positions = ones = 0
        with record_writer(target, compression) as write:
            for batch, features in enumerate(self._pack(made)):
                seed = np.random.SeedSequence([job.seed, number, batch]).generate_state(2)
                records, length, label = self._finished(features, tf.constant(seed.astype("int32")))
                write(records.numpy())
                instances += len(records)
                positions += int(length)
                ones += int(label)
        return Shard(
            bytes=target.stat().st_size,
            text=digest_documents(texts),
            documents=len(texts),
            instances=instances,
            positions=positions,
            ones=ones,
            skipped=skipped,
            sha256=digest_file(target),
            **counts._asdict(),
        )


# -----------------------------------------------------------------------------------------------------------
# TFRecord files that appear only when they are complete


@contextlib.contextmanager
def record_writer(path: pathlib.Path, compression: str = "") -> Iterator[Callable[[Iterable[bytes]], None]]:
    """Yields a function that writes records; the file appears when the block ends.

    compression: "GZIP" or none. Raises OSError if the file cannot be written.
    """
    with atomic_file(path) as temporary:
        with file_errors():
            writer = tf.io.TFRecordWriter(str(temporary), compression)

        def write(records: Iterable[bytes]) -> None:
            with file_errors():
                for record in records:
                    writer.write(record)

        try:
            yield write
        except BaseException:
            with contextlib.suppress(tf.errors.OpError):
                writer.close()
            raise
        with file_errors():
            writer.close()


# -----------------------------------------------------------------------------------------------------------
# tf.train.Example, serialized a batch at a time by TensorFlow's own kernel: tensors [B, ...] in, strings [B] out


def serialize_examples(columns: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The bytes of B examples, equal to `tf.train.Example.SerializeToString(deterministic=True)`.

    columns: int or float [B] or [B, N] by the name of their feature; integers become int64 lists, others float lists

    Returns string [B].
    """
    rows = tf.shape(next(iter(columns.values())))[0]
    entries = []
    for name, values in sorted(columns.items()):
        values = tf.reshape(values, [rows, -1])
        if values.dtype.is_integer:
            kind, field, values = "Int64List", "int64_list", tf.cast(values, tf.int64)
        else:
            kind, field, values = "FloatList", "float_list", tf.cast(values, tf.float32)
        feature = _message("Feature", {field: _message(kind, {"value": values})[:, tf.newaxis]})
        entry = {"key": tf.fill([rows, 1], name), "value": feature[:, tf.newaxis]}
        entries.append(_message("Features.FeatureEntry", entry))
    features = _message("Features", {"feature": tf.stack(entries, axis=1)})
    return _message("Example", {"features": features[:, tf.newaxis]})


def _message(kind: str, fields: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Serialized messages, string [B]. fields: [B, N] by name; N is 1 where a field is not repeated."""
    sizes = [tf.fill([tf.shape(values)[0]], tf.shape(values)[1]) for values in fields.values()]
    return tf.raw_ops.EncodeProto(
        sizes=tf.stack(sizes, axis=1),
        values=list(fields.values()),
        field_names=list(fields),
        message_type=f"tensorflow.{kind}",
    )


# -----------------------------------------------------------------------------------------------------------
# Writing a folder


def write_records(
    documents: Iterable[Document],
    job: Job,
    *,
    workers: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> Summary:
    """Writes instances as TFRecord files and a manifest.json, or the missing ones after an interruption.

    documents: such as a `Corpus`; read once
    workers: processes that tokenize, sample, mask and write, this one included; the files do not depend on their number. With
        more than one, a script must call this under `if __name__ == "__main__"`
    progress: called with the number of documents done since its last call

    The records have the names and fixed lengths of google-research/bert create_pretraining_data.py. The shards from the first one
    on whose file is missing or damaged are written again; a complete folder gets no shards of more text.

    Raises ValueError if the folder has another text, vocabulary or setting, with the field; if another process writes to it; for
    no workers; and for text without instances.
    """
    check_workers(workers)
    folder, fingerprint, made = InstancesFolder(job.path), job.fingerprint(), list[Shard]()
    with folder.begin(fingerprint):
        known, complete = folder.shards(), folder.complete
        files = [folder.path / shard_name(number, compress=job.compress) for number in range(len(known))]
        whole = [one.is_written(file) for file, one in zip(files, known, strict=True)]
        done = known[: [*whole, False].index(False)]

        def missing() -> Iterator[tuple[int, list[Document]]]:
            for number, texts in enumerate(
                shards(documents, size=job.shard_bytes, least=job.shard_documents)
            ):
                if number < len(done):
                    check_equal(folder.path, {"text": done[number].text}, {"text": digest_documents(texts)})
                    made.append(done[number])
                    progress(done[number].documents)
                elif complete and number >= len(known):
                    raise folder.made_from("less text")
                else:
                    yield number, texts

        start = functools.partial(ShardWriter, job)
        for shard in in_order(start, missing(), workers=workers, takes_part=True):
            made.append(shard)
            folder.write(fingerprint, made)
            progress(shard.documents)
        if len(made) < len(known):
            raise folder.made_from("more text")
        summary = summarize(made, settings=job.settings, lone_words=job.lone_words)
        folder.write(fingerprint, made, summary)
    return summary
