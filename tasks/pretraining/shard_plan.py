"""The shards of a corpus without its text: every shard names the documents that it has, and any process can read them.

    corpora -> sources -> document_sizes, of each source alone -> planned_shards: the groups of `shards`, as spans -> read_spans

`planned_shards` reads the sizes as a stream, so its memory does not grow with the corpus.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.tasks.pretraining.corpus import TFDS, Corpora, interleaved
from bert_keras.tasks.pretraining.corpus_files import Document, Range, Unparsed
from bert_keras.tasks.pretraining.instance_stream import bytes_of, shards

RANGE_BYTES = 16_000_000  # of a plain file that one process reads to find its documents
MAX_RANGES = (
    4_000  # more text than these ranges hold is read in larger ranges: a runner keeps the list of all
)


class Source(NamedTuple):
    """A range of a corpus.

    number: its place among all ranges
    part: the number of its corpus
    """

    number: int
    part: int
    range: Range


class Span(NamedTuple):
    """Documents of a source that follow each other: `documents` of them, from the one with the number `first`."""

    source: Source
    first: int
    documents: int


class _Sized(NamedTuple):
    """A document in the plan of the shards.

    number: its place in its source
    """

    source: Source
    number: int
    bytes: int
    characters: int


def sources_of(corpora: Corpora, *, range_bytes: int = RANGE_BYTES) -> list[Source]:
    """The ranges of all corpora, in order.

    Raises BertKerasError for a TensorFlow Dataset, which has no files, and for a file that cannot be read in parts.
    """
    for part in corpora.parts:
        if isinstance(part.source, str) and part.source.startswith(TFDS):
            raise BertKerasError(
                f"{part.source} cannot be read in parts; write its text to files, or leave out --beam."
            )
    whole = [(part, found) for part, corpus in enumerate(corpora.parts) for found in corpus.ranges()]
    total = sum(found.file.stat().st_size for _, found in whole)
    size = max(range_bytes, -(-total // MAX_RANGES))
    split = [(part, found) for part, corpus in enumerate(corpora.parts) for found in corpus.ranges(size)]
    return [Source(number, part, found) for number, (part, found) in enumerate(split)]


def document_sizes(corpora: Corpora, source: Source) -> np.ndarray:
    """Bytes and characters of every document of a source, int64 [D, 2]; 0 for a document without text."""
    corpus = corpora.parts[source.part]
    texts = map(corpus.parsed, corpus.unparsed(source.range))
    sizes = [(bytes_of(text), sum(map(len, text))) for text in texts]
    return np.array(sizes, np.int64).reshape(-1, 2)


def planned_shards(
    sources: Sequence[Source], sizes_of: Callable[[Source], np.ndarray], *, size: int, least: int
) -> Iterator[list[Span]]:
    """The documents of each shard, in the order of the corpora. sizes_of: the `document_sizes` of a source."""
    parts = [list(group) for _, group in itertools.groupby(sources, lambda source: source.part)]

    def sized(part: Sequence[Source]) -> Iterator[_Sized]:
        for source in part:
            for number, (length, characters) in enumerate(sizes_of(source).tolist()):
                if length:
                    yield _Sized(source, number, length, characters)

    readers = list(map(sized, parts))
    if len(parts) == 1:
        (documents,) = readers
    else:
        totals = [sum(int(sizes_of(source)[:, 1].sum()) for source in part) for part in parts]
        documents = interleaved(readers, totals, lambda document: document.characters)
    for shard in shards(documents, size=size, least=least, bytes_of=lambda document: document.bytes):
        yield list(_spans(shard))


def _spans(documents: Sequence[_Sized]) -> Iterator[Span]:
    """Joins documents that follow each other in a source."""
    span: Span | None = None
    for document in documents:
        if span and (span.source, span.first + span.documents) == (document.source, document.number):
            span = span._replace(documents=span.documents + 1)
            continue
        if span:
            yield span
        span = Span(document.source, document.number, 1)
    if span:
        yield span


def read_spans(corpora: Corpora, spans: Sequence[Span]) -> Iterator[Document]:
    """The text of a shard. Raises BertKerasError if the corpus has changed since the plan."""
    readers: dict[Source, tuple[Iterator[Unparsed], int]] = {}
    last = {span.source: number for number, span in enumerate(spans)}
    for number, span in enumerate(spans):
        corpus = corpora.parts[span.source.part]
        read, at = readers.get(span.source) or (corpus.unparsed(span.source.range), 0)
        there = list(itertools.islice(read, span.first - at, span.first - at + span.documents))
        readers[span.source] = read, span.first + span.documents
        if last[span.source] == number:
            del readers[span.source], read  # closes the file: a shard may have thousands of them
        texts = list(filter(None, map(corpus.parsed, there)))
        if len(texts) != span.documents:
            raise BertKerasError(
                f"{span.source.range.file} changed while it was read; run the command again."
            )
        yield from texts
