"""Samplers: documents as ids, and a seed -> instances of one or two segments.

`make_instances` is a pure function of its documents and a seed, so instances do not depend on the process that makes them.

Source: Devlin et al. 2019, sec. 3.1 and A.2; google-research/bert create_pretraining_data.py for the pairs; Liu et al. 2019
(RoBERTa), sec. 4.2: its SEGMENT-PAIR is `next_sentence` and its DOC-SENTENCES is `contiguous`; Lan et al. 2020 (ALBERT),
sec. 3.1.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.text.preprocessing import longest_first
from tasks.options import SENTENCE_PAIR_LABELS
from tasks.settings import Sampling


class Document:
    """A document as ids: its segments, int32 [T] each.

    ids: of all segments, int32 [N]
    bounds: where in the ids each segment starts, and the last one's end
    """

    def __init__(self, ids: np.ndarray, bounds: Sequence[int]) -> None:
        self._ids, self._bounds = ids, bounds

    @classmethod
    def of(cls, segments: Sequence[np.ndarray]) -> "Document":
        """Joins segments."""
        return cls(np.concatenate(segments), [0, *np.cumsum([*map(len, segments)]).tolist()])

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.ids(start, start + 1) for start in range(len(self)))

    def ids(self, start: int, end: int) -> np.ndarray:
        """The ids from segment `start` to before segment `end`."""
        return self._ids[self._bounds[start] : self._bounds[end]]

    def fill(self, start: int, target: int) -> int:
        """The index after the segments from `start` that together reach the target, or the end of the document."""
        bounds = self._bounds
        return min(bisect.bisect_left(bounds, bounds[start] + target, start + 1), len(bounds) - 1)


class Instance(NamedTuple):
    """Ids of one or two segments, without special tokens. The label of two segments is 0 if B follows A, else 1."""

    segments: tuple[np.ndarray, ...]
    label: int = 0


# A sampler makes one pass over the documents. It yields instances, whose pairs may be too long, and None for a skipped chunk.


def _target(rng: np.random.Generator, settings: Sampling) -> int:
    """The target length of a document or a row, in tokens."""
    short = rng.random() < settings.short_seq_prob
    return int(rng.integers(2, settings.room, endpoint=True)) if short else settings.room


def _another(documents: Sequence[Document], index: int, rng: np.random.Generator) -> Document:
    """A document drawn uniformly from all but the one at `index`."""
    return documents[(index + 1 + int(rng.integers(len(documents) - 1))) % len(documents)]


def next_sentence(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Sampling, separator: int
) -> Iterator[Instance | None]:
    """A and the segments after it (0), or A and segments from a random start in another document (1).

    With a random B, the next chunk starts with the segments after A. The other document is drawn uniformly from all other
    documents; google-research/bert draws from all documents, up to ten times, until it finds another.
    """
    for index, document in enumerate(documents):
        target = _target(rng, settings)
        start = 0
        while start < len(document):
            end = document.fill(start, target)
            alone = end - start == 1
            if alone and settings.strict:
                yield None
                start = end
                continue
            split = end if alone else int(rng.integers(start + 1, end))
            first = document.ids(start, split)
            if alone or rng.random() < 0.5:
                other = _another(documents, index, rng)
                at = int(rng.integers(len(other)))
                second = other.ids(at, other.fill(at, target - len(first)))
                yield Instance((first, second), 1)
                start = split
            else:
                yield Instance((first, document.ids(split, end)), 0)
                start = end


def sentence_pair(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Sampling, separator: int
) -> Iterator[Instance | None]:
    """A segment and the one after it (0), or a segment and a random one of another document (1): Liu et al.'s SENTENCE-PAIR.

    A segment is a natural sentence where the corpus has one in each line. With a random B, the segment after A is the next A. A
    document's last segment gets a random B; with `strict` it is skipped.
    """
    for index, document in enumerate(documents):
        segments, start = [*document], 0
        while start < len(segments):
            last = start + 1 == len(segments)
            if last and settings.strict:
                yield None
                start += 1
            elif last or rng.random() < 0.5:
                other = _another(documents, index, rng)
                at = int(rng.integers(len(other)))
                yield Instance((segments[start], other.ids(at, at + 1)), 1)
                start += 1
            else:
                yield Instance((segments[start], segments[start + 1]), 0)
                start += 2


def sentence_order(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Sampling, separator: int
) -> Iterator[Instance | None]:
    """A and the segments after it (0), or the two swapped (1). A chunk of one segment has no order and is skipped."""
    for document in documents:
        target = _target(rng, settings)
        start = 0
        while start < len(document):
            end = document.fill(start, target)
            if end - start == 1:
                yield None
            else:
                split = int(rng.integers(start + 1, end))
                parts = document.ids(start, split), document.ids(split, end)
                swapped = int(rng.random() < 0.5)
                yield Instance(parts[::-1] if swapped else parts, swapped)
            start = end


def full_sentences(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Sampling, separator: int
) -> Iterator[Instance | None]:
    """Rows of whole segments across documents, with a separator between two documents."""
    segments = ((index, segment) for index, document in enumerate(documents) for segment in document)
    return _rows(segments, rng, settings=settings, separator=separator)


def contiguous(
    documents: Sequence[Document], rng: np.random.Generator, *, settings: Sampling, separator: int
) -> Iterator[Instance | None]:
    """Rows of whole segments, each row from one document."""
    for document in documents:
        segments = ((0, segment) for segment in document)
        yield from _rows(segments, rng, settings=settings, separator=separator)


def _rows(
    segments: Iterable[tuple[int, np.ndarray]],
    rng: np.random.Generator,
    *,
    settings: Sampling,
    separator: int,
) -> Iterator[Instance]:
    """Fills rows with whole segments up to the target. A longer segment gets its own row, or several if it exceeds the room.

    segments: each with the number of its document
    """
    between = np.array([separator], np.int32)
    row: list[np.ndarray] = []
    used, target, last = 0, _target(rng, settings), None
    for document, segment in segments:
        for start in range(0, len(segment), settings.room):
            part = segment[start : start + settings.room]
            apart = [between] if row and document != last else []
            if row and used + len(apart) + len(part) > target:
                yield Instance((np.concatenate(row),))
                row, used, apart, target = [], 0, [], _target(rng, settings)
            row += [*apart, part]
            used += len(apart) + len(part)
            last = document
    if row:
        yield Instance((np.concatenate(row),))


class Sampler(NamedTuple):
    """A way to make instances in one pass over documents.

    segments: number of segments in an instance; two have a label
    labels: the names of the labels 0 and 1
    documents: the least number of documents
    """

    sample: Callable[..., Iterator[Instance | None]]
    segments: int
    documents: int = 1
    labels: tuple[str, ...] = ()


SAMPLERS = {
    "next_sentence": Sampler(
        next_sentence, segments=2, documents=2, labels=SENTENCE_PAIR_LABELS["next-sentence"]
    ),
    "sentence_pair": Sampler(
        sentence_pair, segments=2, documents=2, labels=SENTENCE_PAIR_LABELS["next-sentence"]
    ),
    "sentence_order": Sampler(sentence_order, segments=2, labels=SENTENCE_PAIR_LABELS["sentence-order"]),
    "full_sentences": Sampler(full_sentences, segments=1),
    "contiguous": Sampler(contiguous, segments=1),
}


def make_instances(
    documents: Sequence[Document], *, seed: Sequence[int], settings: Sampling, separator: int
) -> tuple[list[Instance], int]:
    """The instances of a shard, in random order, and the number of skipped chunks. A pure function.

    documents: none of them, and none of their segments, is empty
    seed: integers from 0
    separator: the id of [SEP]

    Raises ValueError if the sampler needs more documents.
    """
    sampler = SAMPLERS[settings.sampler]
    check_documents(len(documents), sampler=settings.sampler)
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


def check_documents(count: int, *, sampler: str) -> None:
    """Raises ValueError if a sampler needs more documents."""
    if count < SAMPLERS[sampler].documents:
        raise BertKerasError(
            f"{sampler} needs {SAMPLERS[sampler].documents} documents with text and there is {count}; separate documents by "
            "blank lines, add files or choose another sampler."
        )


def _cut(instances: list[Instance], rng: np.random.Generator, *, room: int) -> list[Instance]:
    """Cuts pairs to the room: the longer segment loses single tokens, from its start or its end at random."""
    lengths = np.array([(len(first), len(second)) for (first, second), _ in instances], np.int32).reshape(
        -1, 2
    )
    kept = np.stack(longest_first(lengths[:, 0], lengths[:, 1], room=room), axis=1)
    starts = rng.binomial(lengths - kept, 0.5)
    places = np.concatenate([starts, starts + kept], axis=1).tolist()
    return [
        Instance((first[a:c], second[b:d]), label)
        for ((first, second), label), (a, b, c, d) in zip(instances, places, strict=True)
    ]
