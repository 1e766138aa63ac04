"""Writes one shard of pre-training instances: its documents in, a TFRecord file and its counts out.

A shard's bytes depend only on its documents, its number and the job, not on the process that writes it.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, NEXT_SENTENCE_LABEL
from bert_keras.fields import Masking
from bert_keras.io.files import digest_of_file
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.example_protos import serialize_examples
from bert_keras.tasks.pretraining.instance_stream import (
    SHARD_BYTES,
    SHARD_DOCUMENTS,
    Packer,
    Segmenter,
    Text,
    check_segments_are_read,
    digest_of_documents,
    instances_of,
    name_of_segmenter,
)
from bert_keras.tasks.pretraining.manifest import FORMAT_VERSION, RECORD_NAMES, Shard, shard_name
from bert_keras.tasks.pretraining.tfrecord import record_writer
from bert_keras.text.masking import Pieces, mask
from bert_keras.text.preprocessing import Features
from bert_keras.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides the files of a text, except the text: the arguments of `write_records`.

    Raises BertKerasError for a negative seed.
    """

    path: pathlib.Path
    make_tokenizer: Callable[[], Tokenizer]
    settings: Sampling
    masking: Masking | None
    segment: Segmenter | None
    seed: int
    compress: bool
    shard_bytes: int = SHARD_BYTES
    shard_documents: int = SHARD_DOCUMENTS

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise BertKerasError(f"seed is {self.seed}; seed must be at least 0.")
        if self.masking is not None:
            check_segments_are_read(self.segment, whole_word=self.masking.whole_word)

    def identity(self) -> dict[str, Any]:
        """Everything that decides the instances of a text, plain JSON."""
        tokenizer, segment = self.make_tokenizer(), self.segment
        return {
            "format_version": FORMAT_VERSION,
            "vocabulary": tokenizer.digest,
            "lower_case": tokenizer.lower_case,
            **dataclasses.asdict(self.settings),
            "masking": None if self.masking is None else dataclasses.asdict(self.masking),
            "segmenter": None if segment is None else name_of_segmenter(segment),
            "seed": self.seed,
            "compress": self.compress,
            "shard_bytes": self.shard_bytes,
            "shard_documents": self.shard_documents,
        }


class ShardWriter:
    """Writes the files of a job: (number, texts) -> Shard."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tokenizer = job.make_tokenizer()
        self._pack = Packer(tokenizer=self.tokenizer, settings=job.settings, segment=job.segment)
        pieces = Pieces.of(self.tokenizer)

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

    def __call__(self, number: int, texts: Sequence[Text]) -> Shard:
        job = self.job
        made, skipped = instances_of(
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
            for batch, features in enumerate(self._pack(made)):
                seed = np.random.SeedSequence([job.seed, number, batch]).generate_state(2)
                records, length, label = self._finished(features, tf.constant(seed.astype("int32")))
                write(records.numpy())
                instances += len(records)
                positions += int(length)
                ones += int(label)
        return Shard(
            bytes=target.stat().st_size,
            text=digest_of_documents(texts),
            documents=len(texts),
            instances=instances,
            positions=positions,
            ones=ones,
            skipped=skipped,
            sha256=digest_of_file(target),
        )
