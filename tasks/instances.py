"""From documents to what a pre-training step reads.

    documents -> shards -> make_instances -> pack -> mask -> TFRecord files and a manifest: write_records, read_records
                                          -> pack -> tf.data, unmasked and anew in every epoch: stream

A shard is what is in memory at a time. `make_instances` is a pure function of its documents and a seed, so whatever runs
the shards, and in which order, the instances are the same.

Source: Devlin et al. 2019, sec. 3.1 and A.2; google-research/bert create_pretraining_data.py for the pairs; Liu et al. 2019
(RoBERTa), sec. 4.2; Lan et al. 2020 (ALBERT), sec. 3.1.
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

from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    TFRECORD_NAMES,
    WORD_STARTS,
)
from bert_keras.masking import Masking, Pieces, mask
from bert_keras.preprocessing import Features, Preprocessor, longest_first
from bert_keras.tokenizers import Tokenizer, WordPiece
from tasks.feature_based import check_equal
from tasks.train import write_json

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TEMPORARY = ".tmp"  # ends the name of a file that is not complete
ROWS = 1024  # instances that are packed and masked together; lines that are tokenized together
SHARD_BYTES = 4_000_000  # of text; some 60 bytes of memory each with dupe_factor 10
SHARD_DOCUMENTS = 20  # at least: a random next segment is drawn from the others of its shard
LABEL_RATE_TOLERANCE = 0.1  # from one half, beyond which the summary warns

# What a record calls its features: Google's names, and one that their files do not have.
RECORD_NAMES = {**TFRECORD_NAMES, WORD_STARTS: WORD_STARTS}

Text = Sequence[str]  # a document as it is read
Segmenter = Callable[[str], Iterable[str]]  # a line -> its words, in order
Document = Sequence[np.ndarray]  # and as ids: int32 [T] for each segment


class Instance(NamedTuple):
    """Ids of one or two segments, without the special tokens around them; of two, 0: B follows A, 1: it does not."""

    segments: tuple[np.ndarray, ...]
    label: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How instances are made of documents.

    seq_length: positions, special tokens counted
    short_seq_prob: the chance that a document (of a sampler of pairs) or a row aims at a random shorter length
    sampler: a key of SAMPLERS
    strict: of next_sentence; each label has probability 1/2, and a chunk of one segment, which the original always continues
        at random, is skipped
    dupe_factor: passes over the documents, each with its own draws
    """

    seq_length: int = 128
    short_seq_prob: float = 0.1
    sampler: str = "next_sentence"
    strict: bool = False
    dupe_factor: int = 10

    def __post_init__(self) -> None:
        wanted = {
            "seq_length": (self.seq_length >= 5, "at least 5"),
            "short_seq_prob": (0 <= self.short_seq_prob <= 1, "from 0 to 1"),
            "sampler": (self.sampler in SAMPLERS, f"one of {', '.join(SAMPLERS)}"),
            "strict": (not self.strict or self.sampler == "next_sentence", "False but with next_sentence"),
            "dupe_factor": (self.dupe_factor >= 1, "at least 1"),
        }
        for name, (good, want) in wanted.items():
            if not good:
                raise ValueError(f"{name} is {getattr(self, name)!r}; {name} must be {want}.")

    @property
    def room(self) -> int:
        """Positions that are left beside [CLS] and a [SEP] after each segment."""
        return self.seq_length - 1 - SAMPLERS[self.sampler].segments


# -----------------------------------------------------------------------------------------------------------
# Samplers: one pass over documents. Each yields instances, whose pairs may still be too long, and None for a chunk skipped


def _target(rng: np.random.Generator, settings: Settings) -> int:
    """The length in pieces that a document or a row aims at."""
    short = rng.random() < settings.short_seq_prob
    return int(rng.integers(2, settings.room, endpoint=True)) if short else settings.room


def _fill(document: Document, start: int, target: int) -> int:
    """The end of the segments from `start` that reach the target together, or of the document."""
    length = 0
    for end in range(start, len(document)):
        length += len(document[end])
        if length >= target:
            return end + 1
    return len(document)


def next_sentence(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Settings, separator: int
) -> Iterator[Instance | None]:
    """A and what follows it (0), or A and the segments from a random place of another document (1).

    With the second, the segments after A are put back and open the next chunk. The other document is drawn evenly among the
    others, where the original draws among all, ten times until it is another.
    """
    for index, document in enumerate(documents):
        target = _target(rng, settings)
        start = 0
        while start < len(document):
            end = _fill(document, start, target)
            alone = end - start == 1
            if alone and settings.strict:
                yield None
                start = end
                continue
            split = end if alone else int(rng.integers(start + 1, end))
            first = np.concatenate(document[start:split])
            if alone or rng.random() < 0.5:
                other = documents[(index + 1 + int(rng.integers(len(documents) - 1))) % len(documents)]
                at = int(rng.integers(len(other)))
                second = other[at : _fill(other, at, target - len(first))]
                yield Instance((first, np.concatenate(second)), 1)
                start = split
            else:
                yield Instance((first, np.concatenate(document[split:end])), 0)
                start = end


def sentence_order(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Settings, separator: int
) -> Iterator[Instance | None]:
    """A and what follows it (0), or the two swapped (1). A chunk of one segment has no order and is skipped."""
    for document in documents:
        target = _target(rng, settings)
        start = 0
        while start < len(document):
            end = _fill(document, start, target)
            if end - start == 1:
                yield None
            else:
                split = int(rng.integers(start + 1, end))
                parts = np.concatenate(document[start:split]), np.concatenate(document[split:end])
                swapped = int(rng.random() < 0.5)
                yield Instance(parts[::-1] if swapped else parts, swapped)
            start = end


def full_sentences(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Settings, separator: int
) -> Iterator[Instance | None]:
    """Rows of whole segments that run from one document into the next, a separator between the two."""
    segments = ((index, segment) for index, document in enumerate(documents) for segment in document)
    return _rows(segments, rng, settings=settings, separator=separator)


def contiguous(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Settings, separator: int
) -> Iterator[Instance | None]:
    """Rows of whole segments, each row out of one document."""
    for document in documents:
        segments = ((0, segment) for segment in document)
        yield from _rows(segments, rng, settings=settings, separator=separator)


def _rows(
    segments: Iterable[tuple[int, np.ndarray]],
    rng: np.random.Generator,
    *,
    settings: Settings,
    separator: int,
) -> Iterator[Instance]:
    """Rows of as many whole segments as fit in the target; one that is over it has its own, or several where over the room.

    segments: each with its document's number
    """
    between = np.array([separator], np.int32)
    row: list[np.ndarray] = []
    used, target, last = 0, _target(rng, settings), None
    for document, segment in segments:
        for start in range(0, len(segment), settings.room):
            piece = segment[start : start + settings.room]
            apart = [between] if row and document != last else []
            if row and used + len(apart) + len(piece) > target:
                yield Instance((np.concatenate(row),))
                row, used, apart, target = [], 0, [], _target(rng, settings)
            row += [*apart, piece]
            used += len(apart) + len(piece)
            last = document
    if row:
        yield Instance((np.concatenate(row),))


class Sampler(NamedTuple):
    """How one pass over documents makes instances.

    segments: of an instance; two have a label
    documents: that it needs at least
    """

    sample: Callable[..., Iterator[Instance | None]]
    segments: int
    documents: int = 1


SAMPLERS = {
    "next_sentence": Sampler(next_sentence, segments=2, documents=2),
    "sentence_order": Sampler(sentence_order, segments=2),
    "full_sentences": Sampler(full_sentences, segments=1),
    "contiguous": Sampler(contiguous, segments=1),
}


def make_instances(
    documents: Sequence[Document], *, seed: Sequence[int], settings: Settings, separator: int
) -> tuple[list[Instance], int]:
    """The instances of a shard, in random order, and how many chunks were skipped. A pure function.

    documents: without empty segments and documents
    seed: whole numbers from 0
    separator: the id of [SEP]

    Raises ValueError where the sampler needs more documents.
    """
    sampler = SAMPLERS[settings.sampler]
    _check_documents(len(documents), sampler=settings.sampler)
    rng = np.random.default_rng(seed)
    made: list[Instance | None] = []
    for _ in range(settings.dupe_factor):
        order = rng.permutation(len(documents))
        made += sampler.sample([documents[i] for i in order], rng, settings=settings, separator=separator)
    instances = [instance for instance in made if instance is not None]
    shuffled = [instances[i] for i in rng.permutation(len(instances))]
    if sampler.segments == 2:
        shuffled = _cut(shuffled, rng, room=settings.room)
    return shuffled, len(made) - len(instances)


def _check_documents(count: int, *, sampler: str) -> None:
    """Raises ValueError where a sampler needs more documents."""
    if count < SAMPLERS[sampler].documents:
        raise ValueError(
            f"{sampler} needs {SAMPLERS[sampler].documents} documents with text and there is {count}; separate documents by "
            "blank lines, add files or choose another sampler."
        )


def _cut(instances: list[Instance], rng: np.random.Generator, *, room: int) -> list[Instance]:
    """Cuts pairs to fit: the longer loses a piece until they do, each time off its front or its end at random."""
    lengths = np.array([[len(ids) for ids in one.segments] for one in instances], np.int32).reshape(-1, 2)
    kept = np.stack(longest_first(lengths[:, 0], lengths[:, 1], room=room), axis=1)
    starts = rng.binomial(lengths - kept, 0.5)
    places = zip(instances, starts.tolist(), (starts + kept).tolist(), strict=True)
    return [
        one._replace(segments=tuple(ids[a:b] for ids, a, b in zip(one.segments, first, last, strict=True)))
        for one, first, last in places
    ]


# -----------------------------------------------------------------------------------------------------------
# Around the pure function


def shards(documents: Iterable[Text], *, size: int, least: int) -> Iterator[list[Text]]:
    """Runs of documents of at least `size` bytes and `least` documents; fewer only where there are no more in all."""
    held: list[Text] = []
    current: list[Text] = []
    length = 0
    for document in documents:
        current.append(document)
        length += sum(len(line.encode()) for line in document)
        if length >= size and len(current) >= least:
            if held:
                yield held
            held, current, length = current, [], 0
    if len(current) < least:
        held, current = held + current, []
    yield from (shard for shard in (held, current) if shard)


WORD_START = 1 << 30  # added to the id of a piece that starts a segmenter's word, until instances are packed


def tokenize_documents(
    documents: Iterable[Text], tokenizer: Tokenizer, *, segment: Segmenter | None = None
) -> list[Document]:
    """Ids of every document that has any; a line without a piece is left out.

    segment: splits a line into words; a piece that starts one has WORD_START added to its id

    Raises ValueError where the words are not those of the line.
    """
    owners: list[int] = []
    lines: list[str] = []
    for index, document in enumerate(documents):
        owners += [index] * len(document)
        lines += document
    found: dict[int, list[np.ndarray]] = collections.defaultdict(list)
    for start in range(0, len(lines), ROWS):
        batch = lines[start : start + ROWS]
        for owner, ids in zip(owners[start:], _ids_of(batch, tokenizer, segment), strict=False):
            if len(ids):
                found[owner].append(ids)
    return [found[index] for index in sorted(found)]


def _ids_of(lines: list[str], tokenizer: Tokenizer, segment: Segmenter | None) -> Iterator[np.ndarray]:
    """Ids of each line, int32 [T]."""
    if segment is None:
        ids = tokenizer.tokenize(tf.constant(lines))
        yield from np.split(ids.values.numpy(), ids.row_splits.numpy()[1:-1])
        return
    ids, starts, _ = tokenizer.tokenize_with_offsets(tf.constant(lines))
    columns = (np.split(ragged.values.numpy(), ids.row_splits.numpy()[1:-1]) for ragged in (ids, starts))
    for line, pieces, places in zip(lines, *columns, strict=True):
        word = np.searchsorted(_word_starts(line, segment), places, side="right")
        yield pieces + WORD_START * (np.diff(word, prepend=-1) > 0).astype("int32")


def _word_starts(line: str, segment: Segmenter) -> list[int]:
    """The byte where each of the segmenter's words starts."""
    starts, at, byte = [], 0, 0
    for word in segment(line):
        place = line.find(word, at)
        if place < 0:
            raise ValueError(
                f"the segmenter gives {word!r}, which the rest of the line does not hold: {line[at : at + 40]!r}; "
                "return the words of the line as they stand there, in order."
            )
        byte += len(line[at:place].encode())
        starts.append(byte)
        byte += len(word.encode())
        at = place + len(word)
    return starts


def pack(instances: Sequence[Instance], preprocess: Preprocessor, *, segmented: bool = False) -> Features:
    """Instances -> Features int32 [B, S] and their label int32 [B]; segmented, `word_starts` int32 [B, S] too."""
    columns = zip(*(one.segments for one in instances), strict=True)
    features = preprocess.pack(*map(_ragged, columns))
    if segmented:
        ids = features[INPUT_WORD_IDS]
        features |= {INPUT_WORD_IDS: ids % WORD_START, WORD_STARTS: ids // WORD_START}
    return features | {NEXT_SENTENCE_LABEL: tf.constant([one.label for one in instances], tf.int32)}


def _ragged(rows: Sequence[np.ndarray]) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(np.concatenate(rows), [len(row) for row in rows])


def _batches(
    texts: Iterable[Text],
    *,
    tokenizer: Tokenizer,
    settings: Settings,
    segment: Segmenter | None,
    seed: Sequence[int],
) -> tuple[Iterator[Features], int]:
    """Packed batches of a shard's instances, and how many chunks were skipped."""
    documents = tokenize_documents(texts, tokenizer, segment=segment)
    instances, skipped = make_instances(
        documents, seed=seed, settings=settings, separator=tokenizer.special.end
    )
    preprocess = Preprocessor(tokenizer, seq_length=settings.seq_length)
    rows = (instances[start : start + ROWS] for start in range(0, len(instances), ROWS))
    return (pack(batch, preprocess, segmented=segment is not None) for batch in rows), skipped


def stream(
    documents: Iterable[Text],
    *,
    tokenizer: Tokenizer,
    settings: Settings,
    segment: Segmenter | None = None,
    seed: int,
    first_epoch: int = 0,
    epochs: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    shard_documents: int = SHARD_DOCUMENTS,
) -> tf.data.Dataset:
    """Unmasked instances, one at a time, without files: Features int32 [S] and their label int32 [].

    documents: read anew in every epoch, a `Corpus`
    segment: splits a line into words, for whole-word masking; adds `word_starts` int32 [S]
    epochs: how many; None goes on without end. An epoch is `dupe_factor` passes, its draws those of (seed, epoch)

    Raises ValueError where there is no text, or the sampler needs more documents.
    """
    # Before tf.data, out of which an error comes with TensorFlow's own trace.
    there = len(list(itertools.islice(documents, SAMPLERS[settings.sampler].documents)))
    _check_documents(there, sampler=settings.sampler)
    make = functools.partial(_batches, tokenizer=tokenizer, settings=settings, segment=segment)

    def batches() -> Iterator[Features]:
        for epoch in itertools.islice(itertools.count(first_epoch), epochs):
            for index, texts in enumerate(shards(documents, size=shard_bytes, least=shard_documents)):
                yield from make(texts, seed=[seed, epoch, index])[0]

    names = ENCODER_INPUTS + (WORD_STARTS,) * (segment is not None)
    signature = dict.fromkeys(names, tf.TensorSpec([None, settings.seq_length], tf.int32))
    signature[NEXT_SENTENCE_LABEL] = tf.TensorSpec([None], tf.int32)
    return tf.data.Dataset.from_generator(batches, output_signature=signature).unbatch()


# -----------------------------------------------------------------------------------------------------------
# TFRecord files


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
        raise ValueError(
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
        raise ValueError(
            f"there are {instances} instances, fewer than a batch of {batch_size}; give more text or a smaller batch."
        )


@dataclasses.dataclass(frozen=True)
class _Job:
    """What a worker needs beside a shard's text."""

    path: pathlib.Path
    make_tokenizer: Callable[[], WordPiece]
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
        batches, skipped = _batches(
            texts,
            tokenizer=self.tokenizer,
            settings=job.settings,
            segment=job.segment,
            seed=[job.seed, number],
        )
        target = job.path / shard_name(number, compress=job.compress)
        temporary = target.with_name(f"{target.name}.{os.getpid()}{TEMPORARY}")  # each process its own
        instances = positions = ones = 0
        with tf.io.TFRecordWriter(str(temporary), "GZIP" if job.compress else "") as writer:
            for batch, features in enumerate(batches):
                if self._mask is not None:
                    seed = np.random.SeedSequence([job.seed, number, batch]).generate_state(2)
                    features = self._mask(features, seed=tf.constant(seed.astype("int32")))
                for record in _records(features):
                    writer.write(record)
                instances += len(features[NEXT_SENTENCE_LABEL])
                positions += int(tf.reduce_sum(features[INPUT_MASK]))
                ones += int(tf.reduce_sum(features[NEXT_SENTENCE_LABEL]))
        os.replace(temporary, target)
        size = target.stat().st_size
        return Shard(size, _text_digest(texts), len(texts), instances, positions, ones, skipped)


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


def _text_digest(texts: Iterable[Text]) -> str:
    """SHA-256 of documents: a line each for a segment, a blank one after each document."""
    found = hashlib.sha256()
    for document in texts:
        found.update(("\n".join(document) + "\n\n").encode())
    return found.hexdigest()


def vocabulary_digest(tokenizer: WordPiece) -> str:
    """SHA-256 of a vocabulary: that of its file, one piece a line."""
    return hashlib.sha256("".join(f"{piece}\n" for piece in tokenizer.vocabulary).encode()).hexdigest()


def write_records(
    documents: Iterable[Text],
    path: str | pathlib.Path,
    *,
    make_tokenizer: Callable[[], WordPiece],
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
    path = pathlib.Path(path)
    job = _Job(path, make_tokenizer, settings, masking, segment, seed, compress)
    tokenizer = make_tokenizer()
    identity = {
        "format_version": FORMAT_VERSION,
        "vocabulary": vocabulary_digest(tokenizer),
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
                check_equal(path, {"text": done[number].text}, {"text": _text_digest(texts)})
                made.append(done[number])
                progress(done[number].documents)
            else:
                yield number, texts

    for shard in _in_order(job, missing(), workers=workers):
        made.append(shard)
        _write_manifest(path, identity, made)
        progress(shard.documents)
    if len(made) < len(done):
        raise ValueError(f"{path} was made of more text; give another folder, or remove this one.")
    summary = summarize(made, settings=settings)
    _write_manifest(path, identity, made, summary=summary)
    return summary


def _begin(path: pathlib.Path, identity: Mapping[str, Any]) -> list[Shard]:
    """The shards that a folder has already, the first ones in a row."""
    if not (path / MANIFEST).exists():
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ValueError(f"{path} is neither empty nor a folder of instances; give another folder.")
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
    """What `write_records` wrote of a folder. Raises FileNotFoundError where there is none, ValueError where it is no JSON."""
    file = pathlib.Path(path) / MANIFEST
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file}; give a folder of instances.")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}); remove {path} and write it again.") from error
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


def read_records(
    source: str | pathlib.Path | Sequence[str | pathlib.Path], *, tokenizer: WordPiece | None = None
) -> tf.data.Dataset:
    """Instances of TFRecord files, these or google-research/bert's, one at a time and in order.

    source: a folder of `write_records`, or files, plain or gzipped
    tokenizer: what the ids must be of; compared with the manifest of a folder

    Returns Features int32 [S] with `next_sentence_labels` int32 [] and, where the files have masks, `masked_lm_positions` and
    `masked_lm_ids` int32 [P] and `masked_lm_weights` float32 [P]; or `word_starts` int32 [S].
    Raises FileNotFoundError where there is no file, ValueError where a folder is not complete, was made with another
    vocabulary, or a file has no such records.
    """
    folder = isinstance(source, str | pathlib.Path) and pathlib.Path(source).is_dir()
    files, count = _checked(pathlib.Path(str(source)), tokenizer) if folder else (_listed(source), None)
    compression = "GZIP" if files[0].read_bytes()[:2] == b"\x1f\x8b" else ""
    records = tf.data.TFRecordDataset([str(file) for file in files], compression)
    spec = _spec(files[0], records)

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


def _listed(source: str | pathlib.Path | Sequence[str | pathlib.Path]) -> list[pathlib.Path]:
    files = [pathlib.Path(file) for file in ([source] if isinstance(source, str | pathlib.Path) else source)]
    if absent := [file for file in files if not file.is_file()] or not files:
        raise FileNotFoundError(f"there is no {absent}; give a folder of instances, or TFRecord files.")
    return files


def _checked(path: pathlib.Path, tokenizer: WordPiece | None) -> tuple[list[pathlib.Path], int]:
    """The files of a folder and how many instances they have."""
    manifest = read_manifest(path)
    if tokenizer is not None:
        wanted = {"vocabulary": vocabulary_digest(tokenizer), "lower_case": tokenizer.lower_case}
        check_equal(path, {name: manifest.get(name) for name in wanted}, wanted)
    if manifest.get("format_version") != FORMAT_VERSION or manifest["summary"] is None:
        raise ValueError(
            f"{path} is not complete; write its instances again, which goes on where it stopped."
        )
    made = _shards_of(manifest)
    files = [path / shard_name(number, compress=manifest["compress"]) for number in range(len(made))]
    for file, shard in zip(files, made, strict=True):
        size = file.stat().st_size if file.is_file() else 0
        if size != shard.bytes:
            raise ValueError(
                f"{file} has {size} bytes and {MANIFEST} says {shard.bytes}; remove {path} and write it again."
            )
    return files, sum(shard.instances for shard in made)


def _spec(file: pathlib.Path, records: tf.data.Dataset) -> dict[str, tf.io.FixedLenFeature]:
    """How to parse, by our names, from what the first record holds."""
    try:
        first = tf.train.Example.FromString(next(iter(records)).numpy()).features.feature
    except (StopIteration, tf.errors.DataLossError, ValueError) as error:
        raise ValueError(f"{file} has no TFRecord that can be read ({error}); give another file.") from error
    floats = (MASKED_LM_WEIGHTS,)
    lengths = {
        name: len((first[key].float_list if name in floats else first[key].int64_list).value)
        for name, key in RECORD_NAMES.items()
        if key in first
    }
    if absent := [
        RECORD_NAMES[name] for name in (*ENCODER_INPUTS, NEXT_SENTENCE_LABEL) if name not in lengths
    ]:
        raise ValueError(f"{file} has no {', '.join(absent)}; give files of pre-training instances.")
    return {
        name: tf.io.FixedLenFeature([length], tf.float32 if name in floats else tf.int64)
        for name, length in lengths.items()
    }
