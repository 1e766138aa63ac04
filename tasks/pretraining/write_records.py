"""Pre-training instances as TFRecord files: documents in, a folder with a manifest out. It resumes an interrupted folder.

documents -> batches of tasks/pretraining/instance_stream.py -> mask -> write_records: 00000.tfrecord ..., manifest.json
"""

import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bert_keras.fields import Masking
from bert_keras.io.folders import check_equal
from bert_keras.io.paths import path_of
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.instance_stream import (
    SHARD_BYTES,
    SHARD_DOCUMENTS,
    Segmenter,
    Text,
    digest_of_documents,
    shards,
)
from bert_keras.tasks.pretraining.manifest import InstancesFolder, Shard, Summary, shard_name, summarize
from bert_keras.tasks.pretraining.processes import check_workers, in_order
from bert_keras.tasks.pretraining.shard_writer import Job, ShardWriter
from bert_keras.text.tokenizer import Tokenizer

Numbered = Iterable[tuple[int, list[Text]]]


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
    workers: processes that tokenize, sample, mask and write, this one included; the files do not depend on their number. With
        more than one, a script must call this under `if __name__ == "__main__"`
    compress: gzip
    shard_bytes, shard_documents: least text in a file; memory grows with them, not with the corpus
    progress: called with the number of documents done since its last call

    The records have the names and fixed lengths of google-research/bert create_pretraining_data.py.
    Raises ValueError if the folder has another text, vocabulary or setting, with the field; if another process writes to it; for
    a negative seed, and for no workers; and for text without instances.
    """
    check_workers(workers)
    job = Job(
        path=path_of(path),
        make_tokenizer=make_tokenizer,
        settings=settings,
        masking=masking,
        segment=segment,
        seed=seed,
        compress=compress,
        shard_bytes=shard_bytes,
        shard_documents=shard_documents,
    )
    folder = InstancesFolder(path)
    numbered = enumerate(shards(documents, size=shard_bytes, least=shard_documents))
    identity = job.identity()
    with folder.begin(identity):
        made = _write_missing(job, folder, identity, numbered, workers=workers, progress=progress)
        summary = summarize(made, settings=settings)
        folder.write(identity, made, summary)
    return summary


def _write_missing(
    job: Job,
    folder: InstancesFolder,
    identity: Mapping[str, Any],
    numbered: Numbered,
    *,
    workers: int,
    progress: Callable[[int], None],
) -> list[Shard]:
    """Writes the missing shards; returns all shards. Raises ValueError if the finished shards have another text.

    A complete folder gets no shards of more text.

    The shards from the first one on whose file is missing or damaged are written again.
    """
    known, complete, made = folder.shards(), folder.complete, list[Shard]()
    files = [folder.path / shard_name(number, compress=job.compress) for number in range(len(known))]
    whole = [one.is_written(file) for file, one in zip(files, known, strict=True)]
    done = known[: [*whole, False].index(False)]

    def missing() -> Iterator[tuple[int, list[Text]]]:
        for number, texts in numbered:
            if number < len(done):
                check_equal(folder.path, {"text": done[number].text}, {"text": digest_of_documents(texts)})
                made.append(done[number])
                progress(done[number].documents)
            elif complete and number >= len(known):
                raise folder.made_from("less text")
            else:
                yield number, texts

    for shard in in_order(functools.partial(ShardWriter, job), missing(), workers=workers, takes_part=True):
        made.append(shard)
        folder.write(identity, made)
        progress(shard.documents)
    if len(made) < len(known):
        raise folder.made_from("more text")
    return made
