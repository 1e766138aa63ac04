"""Samplers: documents as ids, and a seed -> instances of one or two segments.

`make_instances` is a pure function of its documents and a seed, so instances do not depend on the process that makes them.

Source: Devlin et al. 2019, task 2 and A.2; google-research/bert create_pretraining_data.py for the pairs; Liu et al. 2019
(RoBERTa), sec. 4.2: its SEGMENT-PAIR is `next_sentence` and its DOC-SENTENCES is `contiguous`; Lan et al. 2020 (ALBERT),
sec. 3.1.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.io.own_code import load_own
from bert_keras.tasks.hparams import Sampling, segments_of
from bert_keras.tasks.options import SENTENCE_PAIR_LABELS
from bert_keras.text.preprocessing import longest_first


class TokenizedDocument:
    """A document: the places of its segments among the ids of all documents.

    bounds: where each segment starts, and where the last one ends
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def fill(self, start: int, target: int) -> int:
        """The index after the segments from `start` that together reach the target, or the end of the document."""
        bounds = self.bounds
        return min(bisect.bisect_left(bounds, bounds[start] + target, start + 1), len(bounds) - 1)


class TokenizedDocuments:
    """Documents as ids.

    ids: int32 [N], of all documents
    found: the documents
    """

    def __init__(self, ids: np.ndarray, found: Sequence[TokenizedDocument]) -> None:
        self.ids, self.found = ids, found

    def __len__(self) -> int:
        return len(self.found)

    def joined(self, separator: int) -> "TokenizedDocuments":
        """Documents whose ids follow each other in their order, with a separator between two."""
        parts, found, shift = list[Any](), [], 0
        for one in self.found:
            first, last = one.bounds[0], one.bounds[-1]
            found.append(TokenizedDocument([bound - first + shift for bound in one.bounds]))
            parts += [self.ids[first:last], [separator]]
            shift += last - first + 1
        return TokenizedDocuments(np.concatenate(parts, dtype=np.int32), found)


class Instances:
    """Instances as places in ids, without special tokens: a list of so many objects takes Python more time than making them.

    ids: int32 [N]
    places: int64 [I, K, 2], where each of an instance's K segments starts and ends
    labels: int32 [I]; for two segments 0 if B follows A, else 1
    """

    def __init__(self, ids: np.ndarray, places: np.ndarray, labels: np.ndarray) -> None:
        self.ids, self.places, self.labels = ids, places, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | np.ndarray) -> "Instances":
        return Instances(self.ids, self.places[rows], self.labels[rows])

    def segment(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Segment 0 or 1 of each instance: the ids of all, int32 [M], and the number of ids of each, int64 [I]."""
        starts, ends = self.places[:, number].T
        lengths = ends - starts
        before = np.cumsum(lengths) - lengths
        return self.ids[np.arange(lengths.sum()) + np.repeat(starts - before, lengths)], lengths


# A sampler makes one pass over documents. For each instance, it yields where its segments start and end, and the label:
# (start, end, label) or (start, end, start, end, label). It yields None for a skipped chunk. Pairs may be too long.
Made = tuple[int, ...] | None


def _target(rng: np.random.Generator, settings: Sampling) -> int:
    """The target length of a document or a row, in tokens."""
    short = rng.random() < settings.short_seq_prob
    return int(rng.integers(2, settings.room, endpoint=True)) if short else settings.room


def _another(
    documents: Sequence[TokenizedDocument], index: int, rng: np.random.Generator
) -> TokenizedDocument:
    """A document drawn uniformly from all but the one at `index`."""
    return documents[(index + 1 + int(rng.integers(len(documents) - 1))) % len(documents)]


def next_sentence(
    documents: Sequence[TokenizedDocument], rng: np.random.Generator, *, settings: Sampling
) -> Iterator[Made]:
    """A and the segments after it (0), or A and segments from a random start in another document (1).

    With a random B, the next chunk starts with the segments after A. The other document is drawn uniformly from all other
    documents; google-research/bert draws from all documents, up to ten times, until it finds another.
    """
    for index, document in enumerate(documents):
        bounds, target = document.bounds, _target(rng, settings)
        start = 0
        while start < len(document):
            end = document.fill(start, target)
            alone = end - start == 1
            if alone and settings.strict:
                yield None
                start = end
                continue
            split = end if alone else int(rng.integers(start + 1, end))
            first, last = bounds[start], bounds[split]
            if alone or rng.random() < 0.5:
                other = _another(documents, index, rng)
                at = int(rng.integers(len(other)))
                until = other.fill(at, target - (last - first))
                yield first, last, other.bounds[at], other.bounds[until], 1
                start = split
            else:
                yield first, last, last, bounds[end], 0
                start = end


def sentence_pair(
    documents: Sequence[TokenizedDocument], rng: np.random.Generator, *, settings: Sampling
) -> Iterator[Made]:
    """A segment and the one after it (0), or a segment and a random one of another document (1): Liu et al.'s SENTENCE-PAIR.

    A segment is a natural sentence where the corpus has one in each line. With a random B, the segment after A is the next A. A
    document's last segment gets a random B; with `strict` it is skipped.
    """
    for index, document in enumerate(documents):
        bounds, start = document.bounds, 0
        while start < len(document):
            first, last = bounds[start : start + 2]
            at_the_end = start + 1 == len(document)
            if at_the_end and settings.strict:
                yield None
                start += 1
            elif at_the_end or rng.random() < 0.5:
                other = _another(documents, index, rng)
                at = int(rng.integers(len(other)))
                yield first, last, other.bounds[at], other.bounds[at + 1], 1
                start += 1
            else:
                yield first, last, last, bounds[start + 2], 0
                start += 2


def sentence_order(
    documents: Sequence[TokenizedDocument], rng: np.random.Generator, *, settings: Sampling
) -> Iterator[Made]:
    """A and the segments after it (0), or the two swapped (1). A chunk of one segment has no order and is skipped."""
    for document in documents:
        bounds, target = document.bounds, _target(rng, settings)
        start = 0
        while start < len(document):
            end = document.fill(start, target)
            if end - start == 1:
                yield None
            else:
                split = bounds[int(rng.integers(start + 1, end))]
                parts = (bounds[start], split), (split, bounds[end])
                swapped = rng.random() < 0.5
                (first, last), (second, until) = parts[::-1] if swapped else parts
                yield first, last, second, until, int(swapped)
            start = end


def translation(
    documents: Sequence[TokenizedDocument], rng: np.random.Generator, *, settings: Sampling
) -> Iterator[Made]:
    """A document of two lines, a sentence and its translation, is a pair; a pair longer than the room is skipped.

    Raises BertKerasError for a document of more lines. A document that has lost a line, which had no token, is skipped.
    """
    for document in documents:
        if len(document) > 2:
            raise BertKerasError(
                f"a document has {len(document):,} lines; the sampler translation wants two, a sentence and its translation: "
                "separate the pairs by blank lines."
            )
        first, *middle, last = document.bounds
        fits = len(document) == 2 and last - first <= settings.room
        yield (first, *middle, *middle, last, 0) if fits else None


def full_sentences(
    documents: Sequence[TokenizedDocument], rng: np.random.Generator, *, settings: Sampling
) -> Iterator[Made]:
    """Rows of whole segments up to the target, across documents, which are joined, with a separator between two.

    A longer segment gets its own row, or several if it exceeds the room.
    """
    first = last = 0  # of the row, which is empty where they are equal
    target = _target(rng, settings)
    for document in documents:
        for start, end in itertools.pairwise(document.bounds):
            for at in range(start, end, settings.room):
                until = min(at + settings.room, end)
                if first < last and until - first > target:
                    yield first, last, 0
                    first, target = at, _target(rng, settings)
                elif first == last:
                    first = at
                last = until
    if first < last:
        yield first, last, 0


def contiguous(
    documents: Sequence[TokenizedDocument], rng: np.random.Generator, *, settings: Sampling
) -> Iterator[Made]:
    """Rows of whole segments up to the target, each row from one document."""
    for document in documents:
        yield from full_sentences([document], rng, settings=settings)


class Sampler(NamedTuple):
    """A way to make instances in one pass over documents. Two segments (`tasks.hparams.SEGMENTS`) have a label.

    labels: the names of the labels 0 and 1
    documents: the least number of documents
    joined: the documents of a pass are joined first
    segments: in an instance of a sampler of a user's own; SEGMENTS has those of SAMPLERS
    """

    sample: Callable[..., Iterator[Made]]
    documents: int = 1
    labels: tuple[str, ...] = ()
    joined: bool = False
    segments: int = 1


SAMPLERS = {
    "next_sentence": Sampler(next_sentence, documents=2, labels=SENTENCE_PAIR_LABELS["next-sentence"]),
    "sentence_pair": Sampler(sentence_pair, documents=2, labels=SENTENCE_PAIR_LABELS["next-sentence"]),
    "sentence_order": Sampler(sentence_order, labels=SENTENCE_PAIR_LABELS["sentence-order"]),
    "translation": Sampler(translation),
    "full_sentences": Sampler(full_sentences, joined=True),
    "contiguous": Sampler(contiguous),
}


def sampler_of(name: str) -> Sampler:
    """A row of SAMPLERS, or a Sampler of a user's own by MODULE:NAME. Raises BertKerasError for another object."""
    if name in SAMPLERS:
        return SAMPLERS[name]
    found = load_own(name, given="sampler")
    if not isinstance(found, Sampler):
        raise BertKerasError(
            f"sampler {name} is {type(found).__name__}; give a Sampler (bert_keras.tasks.pretraining.samplers)."
        )
    return found


def make_instances(
    documents: TokenizedDocuments, *, seed: Sequence[int], settings: Sampling, separator: int
) -> tuple[Instances, int]:
    """The instances of a shard, in random order, and the number of skipped chunks. A pure function.

    documents: none of them, and none of their segments, is empty
    seed: integers from 0
    separator: the id of [SEP]

    Raises ValueError if the sampler needs more documents.
    """
    check_documents(len(documents), sampler=settings.sampler)
    rng = np.random.default_rng(seed)
    passes, skipped = [], 0
    for _ in range(settings.dupe_factor):
        order = rng.permutation(len(documents))
        texts = TokenizedDocuments(documents.ids, [documents.found[i] for i in order])
        made, without = one_pass(texts, rng, settings=settings, separator=separator)
        passes.append(made)
        skipped += without
    instances = _together(passes)
    shuffled = instances[rng.permutation(len(instances))]
    if segments_of(settings.sampler) == 2:
        shuffled = _cut(shuffled, rng, room=settings.room)
    return shuffled, skipped


def one_pass(
    documents: TokenizedDocuments, rng: np.random.Generator, *, settings: Sampling, separator: int
) -> tuple[Instances, int]:
    """The instances of one pass over documents, in order, whose pairs may be too long, and the number of skipped chunks."""
    sampler = sampler_of(settings.sampler)
    if sampler.joined:
        documents = documents.joined(separator)
    made = [*sampler.sample(documents.found, rng, settings=settings)]
    kept = [one for one in made if one is not None]
    segments = segments_of(settings.sampler)
    width = 2 * segments + 1
    numbers = np.fromiter(itertools.chain.from_iterable(kept), np.int64, len(kept) * width).reshape(-1, width)
    places = numbers[:, :-1].reshape(len(kept), segments, 2)
    return Instances(documents.ids, places, numbers[:, -1].astype(np.int32)), len(made) - len(kept)


def _together(passes: Sequence[Instances]) -> Instances:
    """The instances of all passes. Passes over documents that were joined have ids of their own."""
    labels = np.concatenate([one.labels for one in passes])
    first = passes[0].ids
    if all(one.ids is first for one in passes):
        return Instances(first, np.concatenate([one.places for one in passes]), labels)
    shifts = itertools.accumulate((len(one.ids) for one in passes), initial=0)
    places = [one.places + shift for one, shift in zip(passes, shifts, strict=False)]
    return Instances(np.concatenate([one.ids for one in passes]), np.concatenate(places), labels)


def check_documents(count: int, *, sampler: str) -> None:
    """Raises ValueError if a sampler needs more documents."""
    if count < sampler_of(sampler).documents:
        raise BertKerasError(
            f"{sampler} needs {sampler_of(sampler).documents} documents with text and there is {count}; separate documents by "
            "blank lines, add files or choose another sampler."
        )


def _cut(instances: Instances, rng: np.random.Generator, *, room: int) -> Instances:
    """Cuts pairs to the room: the longer segment loses single tokens, from its start or its end at random."""
    starts, ends = instances.places[..., 0], instances.places[..., 1]
    lengths = (ends - starts).astype(np.int32)
    kept = np.stack(longest_first(lengths[:, 0], lengths[:, 1], room=room), axis=1)
    starts = starts + rng.binomial(lengths - kept, 0.5)
    return Instances(instances.ids, np.stack([starts, starts + kept], axis=-1), instances.labels)
