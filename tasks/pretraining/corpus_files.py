"""The documents in the files of a corpus: plain text, MediaWiki dumps, compressed files and archives.

A range is a file or a part of it that can be read alone, so that several processes can share a corpus.
"""

import bz2
import codecs
import collections
import contextlib
import functools
import gzip
import io
import lzma
import re
import xml.etree.ElementTree
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bert_keras.errors import BertKerasError, MissingPackageError
from bert_keras.tasks.data.sources import bounded_lines, refuse_forms

Document = Sequence[str]  # its sentences, paragraphs or lines
Unparsed = Callable[[], Document]  # gives the paragraphs of a document: parsing takes longer than reading


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
MAX_WHOLE_BYTES = 1_000_000_000  # of a compressed file or a dump, where other files are read in parts
MAX_DOCUMENT = 100_000_000  # characters: about thirty times the longest novels


class Range(NamedTuple):
    """A part of a corpus that can be read alone: a file, or a part of it.

    start, end: bytes of a plain text file, whose documents begin there; the files of an archive, by number, in order
    """

    file: Path
    start: int = 0
    end: int | None = None


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

    def _following(self) -> bytes:
        """The start of the next stream, past the zeros between; empty at the end of the file."""
        packed = self._decoder.unused_data.lstrip(b"\0")
        while not packed and (read := self._file.read(io.DEFAULT_BUFFER_SIZE)):
            packed = read.lstrip(b"\0")
        return packed

    def readinto(self, buffer: Any) -> int:
        while True:
            packed = b""
            if self._decoder.eof:
                packed = self._following()
                if not packed:
                    return 0
                self._decoder = self._new()
            elif self._decoder.needs_input:
                packed = self._file.read(io.DEFAULT_BUFFER_SIZE)
                if not packed:
                    raise EOFError("the file ends before its end-of-stream marker")
            if data := self._decoder.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)


def split_into_ranges(file: Path, size: int, form: Lines) -> Iterator[Range]:
    """The ranges of a file: plain text in parts of `size` bytes, an archive in parts of about as much unpacked text.

    Raises ValueError for another file over MAX_WHOLE_BYTES, which every process would have to read from its start.
    """
    suffix = file.suffix.lower()
    if suffix == ARCHIVE:
        with _unpacking(file), file.open("rb") as packed, zipfile.ZipFile(packed) as archive:
            sizes = [archive.getinfo(name).file_size for name in _members(archive)]
        yield from _split_archive(file, sizes, size)
        return
    length = file.stat().st_size
    if suffix not in UNPACK and not _DUMP.search(file.name.lower()) and form.document != "file":
        for start in range(0, length, size):
            yield Range(file, start, min(start + size, length))
        return
    if length > MAX_WHOLE_BYTES:
        raise BertKerasError(
            f"{file} has over {MAX_WHOLE_BYTES:,} bytes and can only be read from its start; give several files, or plain text."
        )
    yield Range(file)


def _split_archive(file: Path, sizes: Sequence[int], size: int) -> Iterator[Range]:
    start = unpacked = 0
    for number, more in enumerate(sizes, 1):
        unpacked += more
        if unpacked >= size or number == len(sizes):
            yield Range(file, start, number)
            start, unpacked = number, 0


def read_documents(part: Range, *, form: Lines, encoding: str) -> Iterator[Unparsed]:
    """The documents of a range, in order, including documents without text."""
    path = part.file
    refuse_forms(path, (".parquet",), "a corpus is text: write the texts as lines of a .txt, or leave it out")
    with _unpacking(path):
        for name, stream in _streams(part):
            if _DUMP.search(name.lower()):
                yield from wiki_documents(name, stream)
                continue
            if part.end is None or path.suffix.lower() == ARCHIVE:
                documents = _plain_documents(name, _decoded(name, stream, encoding), form)
            else:
                documents = _documents_from(part, name, stream, encoding, form)
            yield from map(parsed_already, documents)


def parsed_already(document: Document) -> Unparsed:
    """A document that needs no parsing."""
    return lambda: document


@contextlib.contextmanager
def _unpacking(path: Path) -> Iterator[None]:
    """Raises ValueError for a file that cannot be unpacked."""
    try:
        yield
    except (EOFError, OSError, RuntimeError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the disk, not of the content
            raise
        raise BertKerasError(f"{path} cannot be unpacked ({error}); fetch it again.") from error


def hidden(name: str) -> bool:
    """True for a name that starts with a dot, or is in such a folder."""
    return any(part.startswith(".") for part in name.split("/"))


def _members(archive: zipfile.ZipFile) -> list[str]:
    """The files in an archive, without hidden ones."""
    return [name for name in sorted(archive.namelist()) if not name.endswith("/") and not hidden(name)]


def _streams(part: Range) -> Iterator[tuple[str, BinaryIO]]:
    """For each text of a range its name, without the compression suffix, and its unpacked bytes.

    For a part of a plain file, the bytes of the whole file.
    """
    path = part.file
    if path.suffix.lower() == ARCHIVE:
        with path.open("rb") as packed, zipfile.ZipFile(packed) as archive:
            for member in _members(archive)[part.start : part.end]:
                if archive.getinfo(member).compress_type == zipfile.ZIP_LZMA:
                    raise BertKerasError(f"{path}, {member}: the compression is LZMA; use deflate.")
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


def _decoded(name: str, stream: BinaryIO, encoding: str, *, first: int = 1) -> Iterator[str]:
    """Yields lines as strings, without byte order marks and surrounding spaces; `first` is the number of the first."""
    for number, line in enumerate(bounded_lines(stream, name), first):
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
    elif form.document == "file":
        yield [" ".join(block) for block in _blocks(name, lines, one_document=True)]
    else:
        yield from _blocks(name, lines, one_document=False)


def _documents_from(
    part: Range, name: str, stream: BinaryIO, encoding: str, form: Lines
) -> Iterator[Document]:
    """The documents that begin in a range of a plain file. Raises ValueError as the whole file does, with the same line."""
    try:
        yield from _plain_documents(name, _lines_from(part, name, stream, encoding, form), form)
    except BertKerasError:
        if part.start:  # the line's number is known from the start only
            stream.seek(0)
            collections.deque(_plain_documents(name, _decoded(name, stream, encoding), form), maxlen=0)
        raise


def _lines_from(part: Range, name: str, stream: BinaryIO, encoding: str, form: Lines) -> Iterator[str]:
    """The lines of the documents that begin in a range of a plain file.

    A document begins where the last blank line before it begins, or where its own line does if each line is a document.
    """
    assert part.end is not None
    if part.start:
        stream.seek(part.start - 1)
        next(bounded_lines(stream, name), b"")  # the end of a line before
    inside = form.document == "line" or not part.start
    at = stream.tell()
    for line in _decoded(name, stream, encoding, first=1 if not part.start else 2):
        if at >= part.end and (not inside or form.document == "line" or not line):
            return
        inside = inside or not line
        if inside:
            yield line
        at = stream.tell()


def _blocks(name: str, lines: Iterable[str], *, one_document: bool) -> Iterator[list[str]]:
    """Yields the lines between blank lines. Raises ValueError for a document over MAX_DOCUMENT.

    one_document: all blocks are parts of one document; else each block is a document
    """
    block, length = list[str](), 0
    for number, line in enumerate(lines, 1):
        length += len(line)
        if length > MAX_DOCUMENT:
            raise BertKerasError(
                f"{name}, line {number}: the document has over {MAX_DOCUMENT:,} characters, and must fit in memory; separate "
                "documents by blank lines, or give lines=document if each line is a document."
            )
        if line:
            block.append(line)
        elif block:
            yield block
            block, length = [], length if one_document else 0
    if block:
        yield block


# -----------------------------------------------------------------------------------------------------------
# MediaWiki dumps: the articles of an XML file as text, without markup

MAX_REVISION_BYTES = 100_000_000  # the largest article in a dump; MediaWiki limits articles to 2 million
ARTICLES = 0  # the namespace of articles
# English names of namespaces, which every wiki accepts besides its own names.
_FILES = frozenset(("file", "image", "category"))
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?:")
_SWITCH = re.compile(r"__[A-Z]+__")  # such as __NOTOC__
_LIST = "\0"  # marks a line of a list
# Tags whose text is part of the sentence. The content of others (tables, references, galleries, formulas) is left out.
INLINE = frozenset(
    "b i em strong small big span sub sup u s del ins abbr cite q code tt var div p center blockquote".split()
)


class _Dump:
    """The bytes of a dump. Raises ValueError for a revision over MAX_REVISION_BYTES: the parser keeps a revision in memory."""

    _END = b"</revision>"

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name, self._stream = name, stream
        self._since, self._before, self._plain = 0, b"", True

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        seen = self._before + chunk
        # In a comment or CDATA the tag would not end a revision, but dumps have neither.
        self._plain &= b"<!" not in seen
        at = seen.rfind(self._END) if self._plain else -1
        self._since = len(seen) - at if at >= 0 else self._since + len(chunk)
        if self._since > MAX_REVISION_BYTES:
            raise BertKerasError(
                f"{self._name}: a revision has over {MAX_REVISION_BYTES:,} bytes; give a dump of smaller articles."
            )
        self._before = seen[-len(self._END) :]
        return chunk


def wiki_documents(name: str, stream: BinaryIO) -> Iterator[Unparsed]:
    """The articles of a dump, each as a function that gives its paragraphs; redirects are skipped.

    name: the dump's name, for errors

    Raises MissingPackageError without the `wikipedia` extra, and ValueError if the file is not a dump.
    """
    try:
        import mwxml
    except ImportError as error:
        raise MissingPackageError(
            f"{name} is a MediaWiki dump; pip install 'bert-keras[wikipedia]'."
        ) from error
    bad = (xml.etree.ElementTree.ParseError, mwxml.errors.MalformedXML, AssertionError, AttributeError)
    try:
        dump = mwxml.Dump.from_file(_Dump(name, stream))
        spaces = (space for space in dump.site_info.namespaces or () if space.id != ARTICLES)
        elsewhere = _FILES.union(str(space.name).casefold() for space in spaces)
        for page in dump:
            if page.namespace == ARTICLES and not page.redirect:
                text = ""
                for revision in page:  # the last is the newest
                    text = revision.text or ""
                yield functools.partial(wiki_paragraphs, text, elsewhere=elsewhere)
    except BertKerasError:
        raise
    except (*bad, TypeError, ValueError) as error:
        reason = str(error) or "its root element is not mediawiki"  # mwxml only asserts this
        raise BertKerasError(f"{name} is not a MediaWiki dump ({reason}); fetch it again.") from error


def wiki_paragraphs(text: str, *, elsewhere: frozenset[str] = _FILES) -> list[str]:
    """The paragraphs of an article, without lists, tables, headers, templates and references (Devlin et al. 2019, sec. 3.1).

    elsewhere: namespaces in lower case; links to them are left out
    """
    import mwparserfromhell

    found = _SWITCH.sub("", _text_of(mwparserfromhell.parse(text), elsewhere))
    lines = (" ".join(line.split()) for line in found.splitlines())
    return [line for line in lines if line and not line.startswith(_LIST)]


def _text_of(code: Any, elsewhere: frozenset[str]) -> str:
    """The visible text of parsed wikitext; list items start with _LIST."""
    from mwparserfromhell import nodes

    def link(node: Any) -> str:
        namespace, colon, _ = str(node.title).strip().partition(":")
        if colon and (
            namespace.strip().casefold() in elsewhere or _INTERLANGUAGE.fullmatch(namespace + colon)
        ):
            return ""
        return _text_of(node.text, elsewhere) if node.text is not None else str(node.title).lstrip(":")

    def tag(node: Any) -> str:
        if str(node.tag) in ("li", "dt", "dd"):
            return _LIST
        inline = str(node.tag).lower() in INLINE and node.contents is not None
        return _text_of(node.contents, elsewhere) if inline else "\n" if str(node.tag) == "br" else ""

    shown: dict[type, Callable[[Any], str]] = {
        nodes.Text: lambda node: node.value,
        # A number without a character, such as &#xD800;, becomes "?".
        nodes.HTMLEntity: lambda node: node.normalize().encode("utf-8", "replace").decode(),
        nodes.ExternalLink: lambda node: _text_of(node.title, elsewhere) if node.title else "",
        nodes.Wikilink: link,
        nodes.Tag: tag,
    }
    return "".join(shown[type(node)](node) for node in code.nodes if type(node) in shown)
