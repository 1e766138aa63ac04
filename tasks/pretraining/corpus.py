"""A text corpus as a stream of documents, and the groups of documents that are processed together: its shards.

In: a file, a folder, an archive, a MediaWiki dump or a name in TensorFlow Datasets. Out: documents one at a time, each a list of
strings: its sentences or paragraphs, in order. Only one document of each source is in memory at a time.

A corpus is a sequence of ranges, each of which can be read alone, so that several processes can share a corpus.
"""

import dataclasses
import functools
import hashlib
import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.paths import did_you_mean, files_below, to_path
from bert_keras.tasks.data.sources import load_tfds
from bert_keras.tasks.pretraining.corpus_files import (
    LINES,
    Document,
    Range,
    Unparsed,
    hidden,
    parsed_already,
    read_documents,
    split_into_ranges,
)

TFDS = "tfds:"  # prefix of a name in TensorFlow Datasets
TFDS_TEXT = "text"  # the text field of most data sets in TensorFlow Datasets

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents of a source; each iteration reads it again, in the same order.

    source: a file, a folder (all files except hidden ones, by name), several of both, or "tfds:NAME". Files are plain text or
        MediaWiki dumps (`.xml`, with the `wikipedia` extra); `.gz`, `.bz2` and `.xz` are unpacked, and `.zip` is read as a
        folder
    lines: a key of LINES. In dumps and TensorFlow Datasets, each example is a document and each line is a paragraph
    encoding: the encoding of plain text, with a newline of one byte
    split: the split of a TensorFlow Dataset

    Raises ValueError for a wrong setting, and FileNotFoundError if there is no file. Iterating raises ValueError with file, line
    and byte for text in another encoding, and for a file that cannot be unpacked or parsed.
    """

    source: str | Path | Sequence[str | Path]
    lines: str = "sentence"
    encoding: str = "utf-8"
    split: str = "train"

    def __post_init__(self) -> None:
        if self.split != "train" and self.dataset is None:
            raise BertKerasError(f"split is {self.split!r}, which applies only to {TFDS}NAME; leave it out.")
        if self.encoding != "utf-8" and self.dataset is not None:
            raise BertKerasError(
                f"encoding is {self.encoding!r}, and TensorFlow Datasets are UTF-8; leave it out."
            )
        if self.lines not in LINES:
            raise BertKerasError(f"lines is {self.lines!r}; choose one of {', '.join(LINES)}.")
        try:
            newlines = "\n\n".encode(self.encoding)
        except LookupError as error:
            raise BertKerasError(
                f"there is no encoding {self.encoding!r}; give one that Python knows."
            ) from error
        if not newlines.endswith(b"\n\n"):
            raise BertKerasError(
                f"encoding {self.encoding} has no newline of one byte; save the text as UTF-8."
            )
        self._files()

    @property
    def dataset(self) -> str | None:
        """The name in TensorFlow Datasets; None for files."""
        if isinstance(self.source, str) and self.source.startswith(TFDS):
            return self.source.removeprefix(TFDS)
        return None

    def __iter__(self) -> Iterator[Document]:
        if self.dataset is None:
            read: Iterable[Unparsed] = itertools.chain.from_iterable(map(self.unparsed, self.ranges()))
        else:
            read = _tfds_documents(self.dataset, self.split)
        yield from filter(None, map(self.parsed, read))

    def ranges(self, size: int | None = None) -> Iterator[Range]:
        """The ranges of the corpus, in order.

        size: splits plain files into ranges of this many bytes, and archives into about as much; None gives whole files

        Raises ValueError with a size for a file that cannot be read in parts. A TensorFlow Dataset has no ranges.
        """
        for file in self._files():
            yield from [Range(file)] if size is None else split_into_ranges(file, size, LINES[self.lines])

    def unparsed(self, part: Range) -> Iterator[Unparsed]:
        """The documents of a range, including documents without text."""
        yield from read_documents(part, form=LINES[self.lines], encoding=self.encoding)

    def parsed(self, document: Unparsed) -> Document:
        """The sentences of a document, or its paragraphs; none if it has no text."""
        paragraphs = document()
        if not LINES[self.lines].split:
            return paragraphs
        return [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]

    def _files(self) -> list[Path]:
        """Every file of the source; none for a TensorFlow Dataset. Raises FileNotFoundError if there is none."""
        if self.dataset is not None:
            return []
        sources = [self.source] if isinstance(self.source, str | Path) else list(self.source)
        files = [file for source in sources for file in _files_of(to_path(source))]
        if not files:
            raise MissingFileError(f"there is no file in {self.source}; give files, folders or {TFDS}NAME.")
        return files


@dataclasses.dataclass(frozen=True)
class Corpora:
    """Several corpora as one.

    The corpora are interleaved in proportion to their sizes: the next document comes from the part with the smallest fraction of
    its characters read. To know these fractions, several parts are read once before the first document.
    """

    parts: Sequence[Corpus]

    @functools.cached_property
    def _sizes(self) -> list[int]:
        """Characters of each part."""
        return [sum(map(_characters, part)) for part in self.parts]

    def __iter__(self) -> Iterator[Document]:
        return _interleaved(self.parts, lambda: self._sizes, _characters)


def _interleaved(
    parts: Sequence[Iterable[Item]],
    sizes_of_parts: Callable[[], Sequence[int]],
    size_of: Callable[[Item], int],
) -> Iterator[Item]:
    """The items of several parts: the next comes from the part with the smallest fraction of its size read."""
    if len(parts) == 1:
        yield from parts[0]
        return
    sizes, readers = sizes_of_parts(), [iter(part) for part in parts]
    read = [(0.0, index) for index in range(len(readers))]  # a heap
    while read:
        fraction, index = read[0]
        item = next(readers[index], None)
        if item is None:
            heapq.heappop(read)
        else:
            heapq.heapreplace(read, (fraction + size_of(item) / sizes[index], index))
            yield item


def _characters(document: Document) -> int:
    return sum(map(len, document))


_SETTING = re.compile(r",(lines|encoding|split)=([^,=]*)$")


def open_corpora(specs: Sequence[str]) -> Corpora:
    """Opens corpora from command-line arguments, each "SOURCE[,lines=KEY][,encoding=NAME][,split=NAME]".

    Raises ValueError without a source, if a setting is given twice, and as `Corpus` does.
    """
    if not specs:
        raise BertKerasError(f"no text was given; give files, folders or {TFDS}NAME.")
    parts = []
    for spec in specs:
        source, settings = spec, dict[str, str]()
        while found := _SETTING.search(source):
            name, value = found.groups()
            if name in settings:
                raise BertKerasError(f"{spec!r} gives {name} twice; give it once.")
            settings[name], source = value, source[: found.start()]
        parts.append(Corpus(source, **settings))
    return Corpora(tuple(parts))


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise MissingFileError(
            f"there is no {path}{did_you_mean(path)}; give a file, a folder or {TFDS}NAME."
        )
    files = (file.relative_to(path) for file in files_below(path))
    return [path / name for name in sorted(files, key=Path.as_posix) if not hidden(name.as_posix())]


def _tfds_documents(name: str, split: str) -> Iterator[Unparsed]:
    examples, _ = load_tfds(name, split, instead="files")
    strings = [
        field
        for field, spec in examples.element_spec.items()
        if spec.dtype == "string" and spec.shape.rank == 0
    ]
    field = TFDS_TEXT if TFDS_TEXT in strings else strings[0] if len(strings) == 1 else None
    if field is None:
        there = ", ".join(strings) or "none"
        raise BertKerasError(
            f"{name} has no field {TFDS_TEXT!r}; its string fields are {there}; write the text to files."
        )
    for number, example in enumerate(examples.as_numpy_iterator(), 1):
        try:
            text = example[field].decode()
        except UnicodeDecodeError as error:
            raise BertKerasError(
                f"{name}, example {number} of {split}: {field} is not utf-8 ({error})."
            ) from error
        yield parsed_already([line for raw in text.split("\n") if (line := raw.strip())])


# -----------------------------------------------------------------------------------------------------------
# Shards: groups of documents that become instances together


def count_bytes(document: Document) -> int:
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


def digest_documents(documents: Iterable[Document]) -> str:
    """SHA-256 of documents: a line for each segment and a blank line after each document."""
    found = hashlib.sha256()
    for document in documents:
        found.update(("\n".join(document) + "\n\n").encode())
    return found.hexdigest()


@dataclasses.dataclass(frozen=True)
class HashSplit:
    """The documents on one side of a split. A hash decides the side, so that every process splits alike.

    fraction: of the documents that are inside
    """

    documents: Iterable[Document]
    fraction: float
    inside: bool

    def __iter__(self) -> Iterator[Document]:
        for document in self.documents:
            drawn = hashlib.sha256("\n".join(document).encode()).digest()[:8]
            if (int.from_bytes(drawn) < self.fraction * 2**64) == self.inside:
                yield document


# -----------------------------------------------------------------------------------------------------------
# The shards of a corpus without its text: every shard names the documents that it has, and any process can read them
#
#     corpora -> corpus_ranges -> document_sizes, for each range -> shard_spans: the groups of `shards` -> read_spans
#
# `shard_spans` reads the sizes as a stream, so its memory does not grow with the corpus.

RANGE_BYTES = 16_000_000  # of a plain file that one process reads to find its documents
MAX_RANGES = 4_000  # a larger corpus is read in larger ranges: a runner keeps the list of all


class CorpusRange(NamedTuple):
    """A range of a corpus.

    number: its place among all ranges
    part: the number of its corpus
    """

    number: int
    part: int
    range: Range


class Span(NamedTuple):
    """Documents of a source that follow each other: `documents` of them, from the one with the number `first`."""

    source: CorpusRange
    first: int
    documents: int


class _Sized(NamedTuple):
    """A document in the plan of the shards.

    number: its place in its source
    """

    source: CorpusRange
    number: int
    bytes: int
    characters: int


def corpus_ranges(corpora: Corpora, *, range_bytes: int = RANGE_BYTES) -> list[CorpusRange]:
    """The ranges of all corpora, in order.

    Raises BertKerasError for a TensorFlow Dataset, which has no files, and for a file that cannot be read in parts.
    """
    for part in corpora.parts:
        if part.dataset is not None:
            raise BertKerasError(
                f"{part.source} cannot be read in parts; write its text to files, or leave out --beam."
            )
    whole = [(part, found) for part, corpus in enumerate(corpora.parts) for found in corpus.ranges()]
    total = sum(found.file.stat().st_size for _, found in whole)
    size = max(range_bytes, -(-total // MAX_RANGES))
    split = [(part, found) for part, corpus in enumerate(corpora.parts) for found in corpus.ranges(size)]
    return [CorpusRange(number, part, found) for number, (part, found) in enumerate(split)]


def document_sizes(corpora: Corpora, source: CorpusRange) -> np.ndarray:
    """Bytes and characters of every document of a source, int64 [D, 2]; 0 for a document without text."""
    corpus = corpora.parts[source.part]
    texts = map(corpus.parsed, corpus.unparsed(source.range))
    sizes = [(count_bytes(text), _characters(text)) for text in texts]
    return np.array(sizes, np.int64).reshape(-1, 2)


def shard_spans(
    sources: Sequence[CorpusRange], sizes_of: Callable[[CorpusRange], np.ndarray], *, size: int, least: int
) -> Iterator[list[Span]]:
    """The documents of each shard, in the order of the corpora. sizes_of: the `document_sizes` of a source."""
    parts = [list(group) for _, group in itertools.groupby(sources, lambda source: source.part)]

    def sized(part: Sequence[CorpusRange]) -> Iterator[_Sized]:
        for source in part:
            for number, (length, characters) in enumerate(sizes_of(source).tolist()):
                if length:
                    yield _Sized(source, number, length, characters)

    def characters() -> list[int]:
        return [sum(int(sizes_of(source)[:, 1].sum()) for source in part) for part in parts]

    documents = _interleaved(list(map(sized, parts)), characters, lambda document: document.characters)
    for shard in shards(documents, size=size, least=least, count=lambda document: document.bytes):
        yield _spans(shard)


def _spans(documents: Iterable[_Sized]) -> list[Span]:
    """Joins documents that follow each other in a source."""
    spans: list[Span] = []
    for source, number, *_ in documents:
        if spans and (spans[-1].source, spans[-1].first + spans[-1].documents) == (source, number):
            spans[-1] = spans[-1]._replace(documents=spans[-1].documents + 1)
        else:
            spans.append(Span(source, number, 1))
    return spans


def read_spans(corpora: Corpora, spans: Sequence[Span]) -> Iterator[Document]:
    """The text of a shard. Raises BertKerasError if the corpus has changed since the plan."""
    readers: dict[CorpusRange, tuple[Iterator[Unparsed], int]] = {}
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


# -----------------------------------------------------------------------------------------------------------
# Sentences, by a short rule for many languages

# The first character alone opens the pattern: the search is three times as fast as with two alternatives.
_BREAK = re.compile(
    r"([.!?…。！？])(?:(?<=[.!?…])([.!?…]*)[\"'”’»)\]]*\s+|(?<=[。！？])[。！？]*[」』”’）]*\s*)"
)
_OPENING = "\"'“‘«([¿¡—- "
_FIRST = re.compile(f"[{re.escape(_OPENING)}]*(.?)", re.DOTALL)
ABBREVIATIONS = frozenset(
    "adm al approx ave bros capt cf ch col corp cpl dept dr ed eq est fig figs fr gen gov hon inc jr lt ltd maj messrs mr "
    "mrs ms mt no nos op pp pres prof pt rep rev sec sen sgt sr st supt viz vol vols vs".split()
)


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences; joined by spaces, they are the paragraph again.

    A sentence ends at `.`, `!`, `?` or `…` and its closing quotes and brackets, if a space and no lower-case letter follow; or at
    `。`, `！` or `？`. A single full stop does not end a sentence after one of ABBREVIATIONS, a single capital ("J.") or a word
    with a full stop inside ("U.S.").
    """
    found, start = [], 0
    for match in _BREAK.finditer(paragraph):
        stop, more = match.groups()  # more is None after 。！？, which need no look at what follows
        following = "" if more is None else _FIRST.match(paragraph, match.end())[1]  # type: ignore[index]
        word = max(start, paragraph.rfind(" ", start, match.start()) + 1)
        single = stop == "." and not more
        if following.islower() or (single and _abbreviates(paragraph[word : match.start()])):
            continue
        found.append(paragraph[start : match.end()].strip())
        start = match.end()
    return [sentence for sentence in (*found, paragraph[start:].strip()) if sentence]


def _abbreviates(word: str) -> bool:
    """True if a full stop after this word is part of the word."""
    word = word.lstrip(_OPENING)
    return (
        word.casefold() in ABBREVIATIONS or "." in word or (len(word) == 1 and word.isupper() and word != "I")
    )
