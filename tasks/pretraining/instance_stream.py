"""Instances from text: documents -> shards -> tokens -> instances -> Features.

    documents -> shards -> tokenize_documents -> make_instances -> Packer
        -> stream: tf.data, unmasked, sampled again in every epoch
        -> tasks/pretraining/write_records.py: masked, in files

One shard is in memory at a time. Its instances depend only on its text and a seed.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

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
from bert_keras.tasks.hparams import Sampling, segments_of
from bert_keras.tasks.pretraining.corpus import Document, shards
from bert_keras.tasks.pretraining.processes import in_order
from bert_keras.tasks.pretraining.samplers import (
    Instances,
    TokenizedDocument,
    TokenizedDocuments,
    check_documents,
    make_instances,
    sampler_of,
)
from bert_keras.tasks.pretraining.text_counts import TextCounts, count_cut, count_ids
from bert_keras.text.preprocessing import Features, Preprocessor
from bert_keras.text.rules import BERT_PAIR
from bert_keras.text.tokenizer import Tokenizer

ROWS = 1024  # instances to pack and mask together; lines to tokenize together
AHEAD = 4  # batches of ROWS that a stream prefetches
SHARD_BYTES = 4_000_000  # least bytes of text in a shard; a byte takes 60 bytes of memory with dupe_factor 10
SHARD_DOCUMENTS = 20  # least documents in a shard: a random next segment is from another of its documents
WORD_START = 1 << 30  # added to the id of a token that starts a segmenter's word, until instances are packed

Segmenter = Callable[[str], Iterable[str]]  # a line -> its words, in order


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceMaker:
    """The settings that turn text into instances.

    segment: splits a line into words, for whole-word masking in languages without spaces
    """

    tokenizer: Tokenizer
    settings: Sampling
    segment: Segmenter | None = None

    def instances(self, texts: Iterable[Document], *, seed: Sequence[int]) -> "MadeInstances":
        """A shard's instances, and counts of what is not in them."""
        documents = tokenize_documents(texts, self.tokenizer, segment=self.segment)
        # The samplers count one separator after each segment.
        segments, settings = segments_of(self.settings.sampler), self.settings
        more = self.tokenizer.pair.added(segments) - BERT_PAIR.added(segments)
        shorter = dataclasses.replace(settings, seq_length=settings.seq_length - more)
        separator = self.tokenizer.special.end
        made, skipped = make_instances(documents, seed=seed, settings=shorter, separator=separator)
        cut = count_cut(documents, made, separator=separator, passes=settings.dupe_factor)
        counts = count_ids(documents.ids % WORD_START, self.tokenizer)._replace(cut=cut)
        return MadeInstances(made, skipped, counts)


class MadeInstances(NamedTuple):
    """The instances of a shard, the number of skipped chunks, and the counts of the tokens of its text."""

    instances: Instances
    skipped: int
    counts: TextCounts


def describe_segmenter(segment: Segmenter) -> str:
    """A segmenter in a fingerprint: its module and name, and the arguments of a functools.partial."""
    if isinstance(segment, functools.partial):
        return f"{describe_segmenter(segment.func)}{segment.args}{segment.keywords}"
    named = segment if hasattr(segment, "__qualname__") else type(segment)
    return f"{getattr(named, '__module__', 'builtins')}:{named.__qualname__}"


def check_segments_are_read(segment: Segmenter | None, *, whole_word: bool) -> None:
    """Raises BertKerasError for a segmenter that no mask reads."""
    if segment is not None and not whole_word:
        raise BertKerasError(
            "a segmenter was given, and only masks of whole words read its words; set whole_word, or leave it out."
        )


def tokenize_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, *, segment: Segmenter | None = None
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
        ends = [*dict.fromkeys(bounds[last - count : last + 1].tolist())]  # without lines that have no ids
        if len(ends) > 1:
            found.append(TokenizedDocument(ends))
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

        self._segments = segments_of(settings.sampler)
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


class Place(NamedTuple):
    """The position of a shard in a stream.

    shard: its number in the epoch
    instances: the number of instances in the stream before the shard
    """

    epoch: int
    shard: int
    instances: int


BEGINNING = Place(0, 0, 0)


def _sampler(maker: InstanceMaker, seed: int) -> Callable[..., tuple[int, int, Instances]]:
    """A function of a shard: (epoch, number, texts) -> (epoch, number, instances), which are arrays, quick to send."""

    def sample(epoch: int, shard: int, texts: Sequence[Document]) -> tuple[int, int, Instances]:
        return epoch, shard, maker.instances(texts, seed=[seed, epoch, shard]).instances

    return sample


def stream(
    documents: Iterable[Document],
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
    """Unmasked instances, one at a time, without files: Features int32 [S], their label int32 [] and a segmenter's `word_starts`.

    documents: read again in every epoch, such as a `Corpus`
    start: the first shard; text before it is read but not tokenized
    epochs: number of epochs; None repeats forever. An epoch is `dupe_factor` passes, whose draws depend on (seed, epoch)
    batch_size, worker_rows: gives only these rows of each batch; the others are sampled, but not packed
    workers: processes that tokenize and sample; the instances do not depend on their number. With more than one, the segmenter
        must be picklable, and about two shards per worker are in memory
    visit: called with each shard's place before its first instance
    failed: called with an error in making instances, because tf.data raises another error

    Raises ValueError if there is no text, or the sampler needs more documents.
    """
    # Checked here, because tf.data would hide the error in its own traceback.
    sampler = maker.settings.sampler
    check_documents(len(list(itertools.islice(documents, sampler_of(sampler).documents))), sampler=sampler)
    pack, rows = Packer(maker), worker_rows.rows(batch_size)

    def tasks() -> Iterator[tuple[int, int, list[Document]]]:
        for epoch in itertools.islice(itertools.count(start.epoch), epochs):
            for index, texts in enumerate(shards(documents, size=shard_bytes, least=shard_documents)):
                if (epoch, index) >= (start.epoch, start.shard):
                    yield epoch, index, texts

    def every_batch() -> Iterator[Features]:
        made = start.instances
        start_sampler = functools.partial(_sampler, maker, seed)
        try:
            # After a signal, the training still finishes and saves its step.
            sampled = in_order(start_sampler, tasks(), workers=workers, interruptible=False)
            for epoch, index, instances in sampled:
                visit(Place(epoch, index, made))
                own = [(made + number) % batch_size in rows for number in range(len(instances))]
                yield from pack(instances[np.flatnonzero(own)])
                made += len(instances)
        except Exception as error:
            failed(error)
            raise

    names = ENCODER_INPUTS + (WORD_STARTS,) * (maker.segment is not None)
    signature = dict.fromkeys(names, tf.TensorSpec([None, maker.settings.seq_length], tf.int32))
    signature[NEXT_SENTENCE_LABEL] = tf.TensorSpec([None], tf.int32)
    batches = tf.data.Dataset.from_generator(every_batch, output_signature=signature)
    return without_autotuning(batches.prefetch(AHEAD)).unbatch()
