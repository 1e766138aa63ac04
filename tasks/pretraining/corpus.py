"""A text corpus as a stream of documents.

In: a file, a folder, an archive, a MediaWiki dump or a name in TensorFlow Datasets. Out: documents one at a time, each a list of
strings: its sentences or paragraphs, in order. Only one document of each source is in memory at a time.
"""

import bz2
import codecs
import dataclasses
import functools
import gzip
import heapq
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.paths import did_you_mean, path_of
from tasks.data_files import bounded_lines, load_tfds, refuse_forms
from tasks.pretraining.sentences import split_sentences
from tasks.pretraining.wiki import wiki_documents

Document = list[str]
TFDS = "tfds:"  # prefix of a name in TensorFlow Datasets
TFDS_TEXT = "text"  # the text field of most data sets in TensorFlow Datasets


class Lines(NamedTuple):
    """The structure of a plain text file.

    split: True splits paragraphs into sentences
    document: "blank": blank lines separate documents; "line": each line is a document; "file": each file is a document, and
        blank lines end paragraphs
    """

    split: bool
    document: str = "blank"


LINES = {
    "sentence": Lines(split=False),
    "paragraph": Lines(split=True),
    "wrapped": Lines(split=True, document="file"),
    "document": Lines(split=True, document="line"),
}
MAX_UNPACKER_BYTES = 268_435_456  # of the dictionary of an .xz file; `xz -9` uses a quarter of this
MAX_DOCUMENT = 100_000_000  # characters: about thirty times the longest novels


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

    def __iter__(self) -> Iterator[Document]:
        cut = split_sentences if LINES[self.lines].split else _whole
        for paragraphs in self._paragraphs():
            if sentences := [sentence for paragraph in paragraphs for sentence in cut(paragraph)]:
                yield sentences

    def _paragraphs(self) -> Iterator[Document]:
        """Documents as lists of paragraphs."""
        if isinstance(self.source, str) and self.source.startswith(TFDS):
            yield from _tfds_documents(self.source.removeprefix(TFDS), self.split)
        for file in self._files():
            yield from _file_documents(file, form=LINES[self.lines], encoding=self.encoding)

    def _files(self) -> list[Path]:
        """Every file of the source. Raises FileNotFoundError if there is none."""
        if isinstance(self.source, str) and self.source.startswith(TFDS):
            return []
        sources = [self.source] if isinstance(self.source, str | Path) else list(self.source)
        files = [file for source in sources for file in _files_of(path_of(source))]
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
        if len(self.parts) == 1:
            yield from self.parts[0]
            return
        readers = [iter(part) for part in self.parts]
        read = [(0.0, index) for index in range(len(readers))]  # a heap
        while read:
            fraction, index = read[0]
            document = next(readers[index], None)
            if document is None:
                heapq.heappop(read)
            else:
                heapq.heapreplace(read, (fraction + _characters(document) / self._sizes[index], index))
                yield document


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
    files = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return [path / name for name in sorted(files, key=Path.as_posix) if not _hidden(name.as_posix())]


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


# -----------------------------------------------------------------------------------------------------------
# Files

UNPACK: Mapping[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lambda file: io.BufferedReader(_Xz(file)),
}
ARCHIVE = ".zip"
_DUMP = re.compile(r"\.xml(-p\d+p\d+)?$")  # the name of a part of a dump ends with its page range


class _Xz(io.RawIOBase):
    """The unpacked bytes of an .xz file, as in LZMAFile, with a limit on memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, self._new()

    def _new(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=MAX_UNPACKER_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            packed, after = b"", self._decoder.eof
            if after:  # another stream may follow, after zeros
                packed = self._decoder.unused_data.lstrip(b"\0") or self._file.read(io.DEFAULT_BUFFER_SIZE)
                self._decoder = self._new()
            elif self._decoder.needs_input:
                packed = self._file.read(io.DEFAULT_BUFFER_SIZE)
            if after and not packed.strip(b"\0"):
                if not packed:
                    return 0
                continue
            if not packed and self._decoder.needs_input:
                raise EOFError("the file ends before its end-of-stream marker")
            if data := self._decoder.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)


def _file_documents(path: Path, *, form: Lines, encoding: str) -> Iterator[Document]:
    refuse_forms(path, (".parquet",), "a corpus is text: write the texts as lines of a .txt, or leave it out")
    try:
        for name, stream in _streams(path):
            if _DUMP.search(name.lower()):
                yield from wiki_documents(name, stream)
            else:
                yield from _plain_documents(name, _decoded(name, stream, encoding), form)
    except (EOFError, OSError, RuntimeError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the disk, not of the content
            raise
        raise BertKerasError(f"{path} cannot be unpacked ({error}); fetch it again.") from error


def _streams(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    """The unpacked content of a file: for each text its name, without the compression suffix, and its bytes."""
    if path.suffix.lower() == ARCHIVE:
        with zipfile.ZipFile(path) as archive:
            for member in sorted(archive.namelist()):
                if archive.getinfo(member).compress_type == zipfile.ZIP_LZMA:
                    raise BertKerasError(f"{path}, {member}: the compression is LZMA; use deflate.")
                if not member.endswith("/") and not _hidden(member):
                    with archive.open(member) as file:
                        yield _unpacked(f"{path}, {member}", file)
    else:
        with path.open("rb") as file:
            yield _unpacked(str(path), file)


def _unpacked(name: str, file: Any) -> tuple[str, BinaryIO]:
    suffix = Path(name).suffix
    if suffix.lower() in UNPACK:
        name, file = name.removesuffix(suffix), UNPACK[suffix.lower()](file)
    if name.lower().endswith(ARCHIVE):
        raise BertKerasError(
            f"{name}: an archive inside a compressed file is not read; unpack the outer file."
        )
    return name, file


def _decoded(name: str, stream: BinaryIO, encoding: str) -> Iterator[str]:
    """Yields lines as strings, without byte order marks and surrounding spaces."""
    for number, line in enumerate(bounded_lines(stream, name), 1):
        # In joined files, any line may start with a mark.
        mark = len(codecs.BOM_UTF8) if line.startswith(codecs.BOM_UTF8) else 0
        try:
            text = line[mark:].decode(encoding).strip()
        except UnicodeDecodeError as error:
            at = mark + error.start
            raise BertKerasError(
                f"{name}, line {number}, byte {at + 1}: 0x{line[at]:02x} is not {encoding}; "
                "save the file as UTF-8, or give its encoding."
            ) from error
        if "\0" in text:
            raise BertKerasError(
                f"{name}, line {number}: a byte is 0, so it is not text; unpack it, or leave it out."
            )
        if number == 1 and "\r" in text and not line.endswith(b"\n"):
            raise BertKerasError(f"{name}: its lines end in carriage returns; save it with newlines.")
        yield text


def _plain_documents(name: str, lines: Iterable[str], form: Lines) -> Iterator[Document]:
    if form.document == "line":
        yield from ([line] for line in lines if line)
        return
    blocks = _blocks(_bounded(name, lines, form))
    if form.document == "file":
        yield [" ".join(block) for block in blocks]
    else:
        yield from blocks


def _bounded(name: str, lines: Iterable[str], form: Lines) -> Iterator[str]:
    """Yields the lines. Raises ValueError for a document over MAX_DOCUMENT."""
    length = 0
    for number, line in enumerate(lines, 1):
        length = length + len(line) if line or form.document == "file" else 0
        if length > MAX_DOCUMENT:
            raise BertKerasError(
                f"{name}, line {number}: the document has over {MAX_DOCUMENT:,} characters, and must fit in memory; separate "
                "documents by blank lines, or give lines=document if each line is a document."
            )
        yield line


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields groups of lines between blank lines."""
    block: list[str] = []
    for line in lines:
        if line:
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _tfds_documents(name: str, split: str) -> Iterator[Document]:
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
        yield [line for raw in text.split("\n") if (line := raw.strip())]


def _whole(line: str) -> list[str]:
    return [line]
