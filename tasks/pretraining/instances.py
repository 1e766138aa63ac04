"""From documents to what a pre-training step reads.

    documents -> shards -> make_instances -> pack -> tf.data, unmasked and anew in every epoch: stream
                                                  -> mask -> TFRecord files: tasks/pretraining/records.py

A shard is what is in memory at a time. `make_instances` is a pure function of its documents and a seed, so whatever runs
the shards, and in which order, the instances are the same.

Source: Devlin et al. 2019, sec. 3.1 and A.2; google-research/bert create_pretraining_data.py for the pairs; Liu et al. 2019
(RoBERTa), sec. 4.2; Lan et al. 2020 (ALBERT), sec. 3.1.
"""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_WORD_IDS,
    NEXT_SENTENCE_LABEL,
    WORD_STARTS,
)
from bert_keras.text.preprocessing import Features, Preprocessor, longest_first
from bert_keras.text.tokenizers import Tokenizer
from tasks.settings import SEGMENTS
from tasks.settings import Sampling as Settings

ROWS = 1024  # instances that are packed and masked together; lines that are tokenized together
AHEAD = 4  # batches of ROWS that a stream makes before they are asked for
SHARD_BYTES = 4_000_000  # of text; some 60 bytes of memory each with dupe_factor 10
SHARD_DOCUMENTS = 20  # at least: a random next segment is drawn from the others of its shard

Text = Sequence[str]  # a document as it is read
Segmenter = Callable[[str], Iterable[str]]  # a line -> its words, in order
Document = Sequence[np.ndarray]  # and as ids: int32 [T] for each segment


class Instance(NamedTuple):
    """Ids of one or two segments, without the special tokens around them; of two, 0: B follows A, 1: it does not."""

    segments: tuple[np.ndarray, ...]
    label: int = 0


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
    "next_sentence": Sampler(next_sentence, segments=SEGMENTS["next_sentence"], documents=2),
    "sentence_order": Sampler(sentence_order, segments=SEGMENTS["sentence_order"]),
    "full_sentences": Sampler(full_sentences, segments=SEGMENTS["full_sentences"]),
    "contiguous": Sampler(contiguous, segments=SEGMENTS["contiguous"]),
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
        raise BertKerasError(
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
            raise BertKerasError(
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


def packed_batches(
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


class Place(NamedTuple):
    """Where a shard stands in a stream.

    shard: counted within its epoch
    instances: of the stream that come before it
    """

    epoch: int
    shard: int
    instances: int


BEGINNING = Place(0, 0, 0)


def stream(
    documents: Iterable[Text],
    *,
    tokenizer: Tokenizer,
    settings: Settings,
    segment: Segmenter | None = None,
    seed: int,
    start: Place = BEGINNING,
    epochs: int | None = None,
    visit: Callable[[Place], None] = lambda place: None,
    failed: Callable[[Exception], None] = lambda error: None,
    shard_bytes: int = SHARD_BYTES,
    shard_documents: int = SHARD_DOCUMENTS,
) -> tf.data.Dataset:
    """Unmasked instances, one at a time, without files: Features int32 [S] and their label int32 [].

    documents: read anew in every epoch, a `Corpus`
    segment: splits a line into words, for whole-word masking; adds `word_starts` int32 [S]
    start: the first shard; what comes before it is read and not tokenized
    epochs: how many; None goes on without end. An epoch is `dupe_factor` passes, its draws those of (seed, epoch)
    visit: is called with each shard's place before its first instance
    failed: is called with what making instances raised, out of which tf.data makes an error of its own

    Raises ValueError where there is no text, or the sampler needs more documents.
    """
    # Before tf.data, out of which an error comes with TensorFlow's own trace.
    there = len(list(itertools.islice(documents, SAMPLERS[settings.sampler].documents)))
    _check_documents(there, sampler=settings.sampler)
    make = functools.partial(packed_batches, tokenizer=tokenizer, settings=settings, segment=segment)

    def every_batch() -> Iterator[Features]:
        try:
            yield from batches_of_epochs()
        except Exception as error:
            failed(error)
            raise

    def batches_of_epochs() -> Iterator[Features]:
        made = start.instances
        for epoch in itertools.islice(itertools.count(start.epoch), epochs):
            for index, texts in enumerate(shards(documents, size=shard_bytes, least=shard_documents)):
                if (epoch, index) < (start.epoch, start.shard):
                    continue
                visit(Place(epoch, index, made))
                for batch in make(texts, seed=[seed, epoch, index])[0]:
                    yield batch
                    made += len(batch[NEXT_SENTENCE_LABEL])

    names = ENCODER_INPUTS + (WORD_STARTS,) * (segment is not None)
    signature = dict.fromkeys(names, tf.TensorSpec([None, settings.seq_length], tf.int32))
    signature[NEXT_SENTENCE_LABEL] = tf.TensorSpec([None], tf.int32)
    batches = tf.data.Dataset.from_generator(every_batch, output_signature=signature)
    return batches.prefetch(AHEAD).unbatch()
