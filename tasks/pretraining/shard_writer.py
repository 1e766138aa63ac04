"""Writes one shard of pre-training instances: its documents in, a TFRecord file and its counts out.

A shard's bytes depend only on its documents, its number and the job, not on the process that writes it.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.features import INPUT_MASK, NEXT_SENTENCE_LABEL
from bert_keras.settings import Masking
from bert_keras.text.masking import Pieces, mask
from bert_keras.text.preprocessing import Features
from bert_keras.text.tokenizer import Tokenizer
from tasks.pretraining.manifest import FORMAT_VERSION, RECORD_NAMES, Shard, shard_name
from tasks.pretraining.stream import (
    SHARD_BYTES,
    SHARD_DOCUMENTS,
    Segmenter,
    Text,
    digest_of_documents,
    packed_batches,
)
from tasks.settings import Sampling
from tasks.tfrecord import record_writer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides the files of a text, except the text: the arguments of `write_records`."""

    path: pathlib.Path
    make_tokenizer: Callable[[], Tokenizer]
    settings: Sampling
    masking: Masking | None
    segment: Segmenter | None
    seed: int
    compress: bool
    shard_bytes: int = SHARD_BYTES
    shard_documents: int = SHARD_DOCUMENTS

    def identity(self) -> dict[str, Any]:
        """Everything that decides the instances of a text, plain JSON."""
        tokenizer, segment = self.make_tokenizer(), self.segment
        named = getattr(segment, "__qualname__", type(segment).__qualname__)
        return {
            "format_version": FORMAT_VERSION,
            "vocabulary": tokenizer.digest,
            "lower_case": tokenizer.lower_case,
            **dataclasses.asdict(self.settings),
            "masking": None if self.masking is None else dataclasses.asdict(self.masking),
            "segmenter": None if segment is None else named,
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
        self._mask = None
        if job.masking is not None:
            # The last batch of a shard is shorter; an unknown size avoids a retrace.
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


def _records(features: Features) -> Iterator[bytes]:
    """Features [B, ...] -> B serialized examples with the names in RECORD_NAMES."""
    columns = {RECORD_NAMES[name]: value.numpy() for name, value in features.items()}
    for row in range(len(features[NEXT_SENTENCE_LABEL])):
        record = {name: _feature(np.atleast_1d(values[row])) for name, values in columns.items()}
        example = tf.train.Example(features=tf.train.Features(feature=record))
        yield example.SerializeToString(deterministic=True)


def _feature(values: np.ndarray) -> tf.train.Feature:
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
