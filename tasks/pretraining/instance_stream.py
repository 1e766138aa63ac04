"""Instances from text: documents -> shards -> tokens -> instances -> Features.

    documents -> shards -> tokenize_documents -> make_instances -> Packer
        -> stream: tf.data, unmasked, sampled again in every epoch
        -> tasks/pretraining/write_records.py: masked, in files

One shard is in memory at a time. Its instances depend only on its text and a seed.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ALL_ROWS,
    ENCODER_INPUTS,
    INPUT_WORD_IDS,
    NEXT_SENTENCE_LABEL,
    WORD_STARTS,
    WorkerRows,
)
from bert_keras.optimization.replicas import without_autotuning
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.processes import check_sendable, in_order
from bert_keras.tasks.pretraining.samplers import (
    SAMPLERS,
    Instances,
    TokenizedDocument,
    TokenizedDocuments,
    check_documents,
    make_instances,
)
from bert_keras.text.preprocessing import Features, Preprocessor
from bert_keras.text.tokenizer import BERT_PAIR, Tokenizer

ROWS = 1024  # instances to pack and mask together; lines to tokenize together
AHEAD = 4  # batches of ROWS that a stream prefetches
SHARD_BYTES = (
    4_000_000  # least bytes of text in a shard; each takes about 60 bytes of memory with dupe_factor 10
)
SHARD_DOCUMENTS = (
    20  # least documents in a shard: a random next segment comes from another document of the shard
)

Text = Sequence[str]  # the lines of a document
Item = TypeVar("Item")
Segmenter = Callable[[str], Iterable[str]]  # a line -> its words, in order


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceMaker:
    """The settings that turn text into instances.

    segment: splits a line into words, for whole-word masking in languages without spaces
    """

    tokenizer: Tokenizer
    settings: Sampling
    segment: Segmenter | None = None

    def instances(self, texts: Iterable[Text], *, seed: Sequence[int]) -> tuple[Instances, int]:
        """A shard's instances, and the number of skipped chunks."""
        documents = tokenize_documents(texts, self.tokenizer, segment=self.segment)
        # The samplers count one separator after each segment.
        segments, settings = SAMPLERS[self.settings.sampler].segments, self.settings
        more = self.tokenizer.pair.added(segments) - BERT_PAIR.added(segments)
        shorter = dataclasses.replace(settings, seq_length=settings.seq_length - more)
        return make_instances(documents, seed=seed, settings=shorter, separator=self.tokenizer.special.end)


def describe_segmenter(segment: Segmenter) -> str:
    """Its module and name, and the arguments of a functools.partial: what tells two segmenters apart in a fingerprint."""
    if isinstance(segment, functools.partial):
        return f"{describe_segmenter(segment.func)}{segment.args}{segment.keywords}"
    named = segment if hasattr(segment, "__qualname__") else type(segment)
    return f"{getattr(named, '__module__', 'builtins')}:{named.__qualname__}"


def check_segments_are_read(segment: Segmenter | None, *, whole_word: bool) -> None:
    """Raises BertKerasError for a segmenter that no mask reads."""
    if segment is not None and not whole_word:
        raise BertKerasError(
            "a segmenter was given, and only masks of whole words read its words; set whole_word=true, or leave it out."
        )


def count_bytes(document: Text) -> int:
    """Bytes of a document's lines in UTF-8."""
    return sum(len(line.encode()) for line in document)


def shards(
    documents: Iterable[Item], *, size: int, least: int, count: Callable[[Any], int] = count_bytes
) -> Iterator[list[Item]]:
    """Groups of documents with at least `size` bytes and `least` documents; less only if the whole text has less.

    documents: texts, or anything else whose bytes `count` gives
    """
    held: list[Item] = []
    current: list[Item] = []
    length = 0
    for document in documents:
        current.append(document)
        length += count(document)
        if length >= size and len(current) >= least:
            if held:
                yield held
            held, current, length = current, [], 0
    if len(current) < least:
        held, current = held + current, []
    yield from (shard for shard in (held, current) if shard)


def digest_documents(documents: Iterable[Text]) -> str:
    """SHA-256 of documents: a line for each segment and a blank line after each document."""
    found = hashlib.sha256()
    for document in documents:
        found.update(("\n".join(document) + "\n\n").encode())
    return found.hexdigest()


WORD_START = 1 << 30  # added to the id of a token that starts a segmenter's word, until instances are packed


def tokenize_documents(
    documents: Iterable[Text], tokenizer: Tokenizer, *, segment: Segmenter | None = None
) -> TokenizedDocuments:
    """The ids of every document, without empty lines and documents.

    segment: splits a line into words; WORD_START is added to the id of a word's first token

    Raises ValueError if the words do not occur in the line.
    """
    counts, lines = list[int](), list[str]()
    for document in documents:
        counts.append(len(document))
        lines += document
    batches = (lines[start : start + ROWS] for start in range(0, len(lines), ROWS))
    made = [_ids_of(batch, tokenizer, segment) for batch in batches]
    if not made:
        return TokenizedDocuments(np.zeros(0, np.int32), [])
    ids = np.concatenate([ids for ids, _ in made])
    bounds = np.concatenate([[0], np.cumsum(np.concatenate([lengths for _, lengths in made]))])
    found = []
    for last, count in zip(itertools.accumulate(counts), counts, strict=True):
        of_document = [
            *dict.fromkeys(bounds[last - count : last + 1].tolist())
        ]  # each line once that has ids
        if len(of_document) > 1:
            found.append(TokenizedDocument(of_document))
    return TokenizedDocuments(ids, found)


def _ids_of(
    lines: list[str], tokenizer: Tokenizer, segment: Segmenter | None
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all lines, int32 [N], and the number of ids of each, int64 [B]."""
    if segment is None:
        ids = tokenizer.tokenize(tf.constant(lines))
        return ids.values.numpy(), ids.row_lengths().numpy()
    ids, starts, _ = tokenizer.tokenize_with_offsets(tf.constant(lines))
    offsets = np.split(starts.values.numpy(), ids.row_splits.numpy()[1:-1])
    places = zip(lines, offsets, strict=True)
    words = [np.searchsorted(_word_starts(line, segment), at, side="right") for line, at in places]
    first = [np.diff(word, prepend=-1) > 0 for word in words]
    return ids.values.numpy() + WORD_START * np.concatenate(first).astype(np.int32), ids.row_lengths().numpy()


def _word_starts(line: str, segment: Segmenter) -> list[int]:
    """The byte offset of each word of the segmenter."""
    starts, at, byte = [], 0, 0
    for word in segment(line):
        found = line.find(word, at)
        if found < 0:
            raise BertKerasError(
                f"the segmenter gives {word!r}, which is not in the rest of the line, {line[at : at + 40]!r}; "
                "return the words of the line unchanged and in order."
            )
        byte += len(line[at:found].encode())
        starts.append(byte)
        byte += len(word.encode())
        at = found + len(word)
    return starts


class Packer:
    """Packs instances in a graph, which takes less time than the same operations one by one.

    Makes batches of at most ROWS: Features int32 [B, S], labels int32 [B] and, with a segmenter, `word_starts` int32 [B, S].
    """

    def __init__(self, maker: InstanceMaker) -> None:
        settings = maker.settings
        preprocess = Preprocessor(maker.tokenizer, seq_length=settings.seq_length)

        def pack(segments: list[tf.Tensor], lengths: list[tf.Tensor], labels: tf.Tensor) -> Features:
            rows = map(tf.RaggedTensor.from_row_lengths, segments, lengths)
            features = preprocess.pack(*rows)
            if maker.segment is not None:
                ids = features[INPUT_WORD_IDS]
                features |= {INPUT_WORD_IDS: ids % WORD_START, WORD_STARTS: ids // WORD_START}
            return features | {NEXT_SENTENCE_LABEL: labels}

        self._segments = SAMPLERS[settings.sampler].segments
        ids, lengths = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)
        signature = [[ids] * self._segments, [lengths] * self._segments, ids]
        self._pack = tf.function(pack, autograph=False, input_signature=signature)

    def specs(self) -> dict[str, tf.TensorSpec]:
        """The features of a batch of any size."""
        made = self._pack.get_concrete_function().structured_outputs
        return {name: tf.TensorSpec(one.shape, one.dtype) for name, one in made.items()}

    def __call__(self, instances: Instances) -> Iterator[Features]:
        return (self.pack(instances[start : start + ROWS]) for start in range(0, len(instances), ROWS))

    def pack(self, instances: Instances) -> Features:
        """Makes one batch. instances: at least one."""
        segments, lengths = zip(*map(instances.segment, range(self._segments)), strict=True)
        features: Features = self._pack(
            [tf.constant(ids) for ids in segments],
            [tf.constant(of_each) for of_each in lengths],
            tf.constant(instances.labels),
        )
        return features


def _sample(
    maker: InstanceMaker, texts: Sequence[Text], seed: int, epoch: int, shard: int
) -> tuple[tuple[int, int], Instances]:
    """A shard's place as (epoch, shard), and its instances."""
    return (epoch, shard), maker.instances(texts, seed=[seed, epoch, shard])[0]


class _Worker:
    """Samples in a process of its own, and packs all instances: arrays are sent in less time than instances."""

    def __init__(self, maker: InstanceMaker) -> None:
        self._maker, self._pack = maker, Packer(maker)

    def __call__(self, *task: Any) -> tuple[tuple[int, int], list[dict[str, np.ndarray]]]:
        place, instances = _sample(self._maker, *task)
        return place, [
            {name: value.numpy() for name, value in batch.items()} for batch in self._pack(instances)
        ]


def _packed_rows(
    instances: Instances, own: Callable[[int], bool], *, packer: Packer
) -> Generator[Features, None, int]:
    """Packs the instances of a shard whose numbers are `own`; returns the number of all."""
    yield from packer(instances[np.flatnonzero([own(number) for number in range(len(instances))])])
    return len(instances)


def _rows_of_packed(
    batches: Sequence[dict[str, np.ndarray]], own: Callable[[int], bool]
) -> Generator[Features, None, int]:
    """Selects the rows of a shard whose numbers are `own`; returns the number of all."""
    done = 0
    for batch in batches:
        count = len(batch[NEXT_SENTENCE_LABEL])
        rows = [row for row in range(count) if own(done + row)]
        yield {name: value[rows] for name, value in batch.items()}
        done += count
    return done


def _sampling(
    maker: InstanceMaker, *, workers: int
) -> tuple[Callable[[], Callable[..., Any]], Callable[..., Generator[Features, None, int]]]:
    """The function that starts a sampler of shards, and the one that takes rows of a sampled shard."""
    if workers == 1:
        return lambda: functools.partial(_sample, maker), functools.partial(
            _packed_rows, packer=Packer(maker)
        )
    check_sendable(segment=maker.segment, tokenizer=maker.tokenizer)
    return functools.partial(_Worker, maker), _rows_of_packed


class Place(NamedTuple):
    """The position of a shard in a stream.

    shard: its number in the epoch
    instances: the number of instances in the stream before the shard
    """

    epoch: int
    shard: int
    instances: int


BEGINNING = Place(0, 0, 0)


def stream(
    documents: Iterable[Text],
    maker: InstanceMaker,
    *,
    seed: int,
    start: Place = BEGINNING,
    epochs: int | None = None,
    batch_size: int = 1,
    worker_rows: WorkerRows = ALL_ROWS,
    workers: int = 1,
    visit: Callable[[Place], None] = lambda place: None,
    failed: Callable[[Exception], None] = lambda error: None,
    shard_bytes: int = SHARD_BYTES,
    shard_documents: int = SHARD_DOCUMENTS,
) -> tf.data.Dataset:
    """Unmasked instances, one at a time, without files: Features int32 [S] and their label int32 [].

    documents: read again in every epoch, such as a `Corpus`
    maker: with a segmenter, it adds `word_starts` int32 [S]
    start: the first shard; text before it is read but not tokenized
    epochs: number of epochs; None repeats forever. An epoch is `dupe_factor` passes, whose draws depend on (seed, epoch)
    batch_size, part: gives only the instances of a part of each batch; the others are sampled
    workers: processes that tokenize and sample; the instances do not depend on their number. With more than one, the segmenter
        must be picklable, and about two shards per worker are in memory
    visit: called with each shard's place before its first instance
    failed: called with an error in making instances, because tf.data raises another error

    Raises ValueError if there is no text, or the sampler needs more documents.
    """
    # Checked here, because tf.data would hide the error in its own traceback.
    settings = maker.settings
    there = len(list(itertools.islice(documents, SAMPLERS[settings.sampler].documents)))
    check_documents(there, sampler=settings.sampler)
    start_sampler, take = _sampling(maker, workers=workers)
    rows = worker_rows.rows(batch_size)

    def tasks() -> Iterator[tuple[list[Text], int, int, int]]:
        for epoch in itertools.islice(itertools.count(start.epoch), epochs):
            for index, texts in enumerate(shards(documents, size=shard_bytes, least=shard_documents)):
                if (epoch, index) >= (start.epoch, start.shard):
                    yield texts, seed, epoch, index

    def every_batch() -> Iterator[Features]:
        made = start.instances
        try:
            # After a signal, the training still finishes and saves its step.
            made_shards = in_order(start_sampler, tasks(), workers=workers, interruptible=False)
            for (epoch, index), shard in made_shards:
                visit(Place(epoch, index, made))
                made += yield from take(shard, lambda number, made=made: (made + number) % batch_size in rows)
        except Exception as error:
            failed(error)
            raise

    names = ENCODER_INPUTS + (WORD_STARTS,) * (maker.segment is not None)
    signature = dict.fromkeys(names, tf.TensorSpec([None, settings.seq_length], tf.int32))
    signature[NEXT_SENTENCE_LABEL] = tf.TensorSpec([None], tf.int32)
    batches = tf.data.Dataset.from_generator(every_batch, output_signature=signature)
    return without_autotuning(batches.prefetch(AHEAD)).unbatch()
