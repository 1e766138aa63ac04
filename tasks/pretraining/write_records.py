"""Pre-training instances as TFRecord files: documents in, a folder with a manifest out. It resumes an interrupted folder.

documents -> batches of tasks/pretraining/stream.py -> mask -> write_records: 00000.tfrecord ..., manifest.json
"""

import collections
import concurrent.futures.process
import dataclasses
import functools
import itertools
import multiprocessing
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, NEXT_SENTENCE_LABEL
from bert_keras.paths import path_of
from bert_keras.settings import Masking
from bert_keras.text.masking import Pieces, mask
from bert_keras.text.preprocessing import Features
from bert_keras.text.tokenizer import Tokenizer
from tasks.folders import check_equal
from tasks.pretraining.manifest import (
    FORMAT_VERSION,
    RECORD_NAMES,
    InstancesFolder,
    Shard,
    Summary,
    shard_name,
    summarize,
)
from tasks.pretraining.stream import (
    SHARD_BYTES,
    SHARD_DOCUMENTS,
    Segmenter,
    Text,
    digest_of_documents,
    packed_batches,
    shards,
)
from tasks.settings import Sampling
from tasks.tfrecord import record_writer

Numbered = Iterable[tuple[int, list[Text]]]


@dataclasses.dataclass(frozen=True)
class _Job:
    """The inputs of a worker, except the text."""

    path: pathlib.Path
    make_tokenizer: Callable[[], Tokenizer]
    settings: Sampling
    masking: Masking | None
    segment: Segmenter | None
    seed: int
    compress: bool

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
        }


def write_records(
    documents: Iterable[Text],
    path: str | pathlib.Path,
    *,
    make_tokenizer: Callable[[], Tokenizer],
    settings: Sampling,
    masking: Masking | None = None,
    segment: Segmenter | None = None,
    seed: int = 12345,
    workers: int = 1,
    compress: bool = False,
    shard_bytes: int = SHARD_BYTES,
    shard_documents: int = SHARD_DOCUMENTS,
    progress: Callable[[int], None] = lambda done: None,
) -> Summary:
    """Writes instances as TFRecord files and a manifest.json, or the missing ones after an interruption.

    documents: such as a `Corpus`; read once
    path: a new or empty folder, or an unfinished folder of the same call
    make_tokenizer: picklable, because every worker calls it: `functools.partial(WordPiece.from_file, "vocab.txt")`
    masking: writes static masks; None leaves masking to training, with new masks in every epoch
    segment: picklable; splits a line into words, for whole-word masking in languages without spaces. Files without masks have
        its `word_starts`
    workers: processes that tokenize, sample, mask and write; the files do not depend on their number. With more than one, a
        script must call this under `if __name__ == "__main__"`
    compress: gzip
    shard_bytes, shard_documents: least text in a file; memory grows with them, not with the corpus
    progress: called with the number of documents done since its last call

    The records have the names and fixed lengths of google-research/bert create_pretraining_data.py.
    Raises ValueError if the folder has another text, vocabulary or setting, with the field; if another process writes to it; and
    for text without instances.
    """
    job = _Job(path_of(path), make_tokenizer, settings, masking, segment, seed, compress)
    folder = InstancesFolder(path)
    numbered = enumerate(shards(documents, size=shard_bytes, least=shard_documents))
    identity = job.identity() | {"shard_bytes": shard_bytes, "shard_documents": shard_documents}
    with folder.begin(identity):
        made = _write_missing(job, folder, identity, numbered, workers=workers, progress=progress)
        summary = summarize(made, settings=settings)
        folder.write(identity, made, summary)
    return summary


def _write_missing(
    job: _Job,
    folder: InstancesFolder,
    identity: Mapping[str, Any],
    numbered: Numbered,
    *,
    workers: int,
    progress: Callable[[int], None],
) -> list[Shard]:
    """Writes the missing shards; returns all shards. Raises ValueError if the finished shards have another text."""
    done, made = folder.shards(), list[Shard]()

    def missing() -> Iterator[tuple[int, list[Text]]]:
        for number, texts in numbered:
            if number < len(done):
                check_equal(folder.path, {"text": done[number].text}, {"text": digest_of_documents(texts)})
                made.append(done[number])
                progress(done[number].documents)
            else:
                yield number, texts

    for shard in _in_order(job, missing(), workers=workers):
        made.append(shard)
        folder.write(identity, made)
        progress(shard.documents)
    if len(made) < len(done):
        raise BertKerasError(
            f"{folder.path} was made from more text; give another folder, or remove this one."
        )
    return made


class _Worker:
    """Writes the files of a job: (number, texts) -> Shard."""

    def __init__(self, job: _Job) -> None:
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


def _in_order(job: _Job, tasks: Iterator[tuple[int, list[Text]]], *, workers: int) -> Iterator[Shard]:
    """The shards of tasks, in their order. At most one task per worker waits: memory does not grow with the corpus."""
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
                'if __name__ == "__main__", and call again to resume.'
            ) from error
        finally:
            executor.shutdown(cancel_futures=True)


_worker: _Worker  # in a worker's process


def _start_worker(job: _Job) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tf.config.set_visible_devices([], "GPU")  # a training may need it
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    _worker = _Worker(job)


def _end_with_parent() -> None:
    """Ends the worker with its parent: the workers of a killed process would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(number: int, texts: list[Text]) -> Shard:
    return _worker(number, texts)
