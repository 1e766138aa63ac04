"""Text in any form that a corpus comes in, as a stream of documents.

In: a file, a folder, an archive, a MediaWiki dump or a name of TensorFlow Datasets. Out: documents one at a time, each a list of
strings: its sentences or paragraphs, in order. One document of each source is in memory at a time, never the corpus.
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
import xml.etree.ElementTree
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bert_keras.errors import BertKerasError, MissingFileError, MissingPackageError
from bert_keras.paths import path_of
from tasks.data_files import bounded_lines, load_tfds

Document = list[str]
TFDS = "tfds:"  # opens a name of TensorFlow Datasets
TFDS_TEXT = "text"  # what most of its data sets call their text


class Lines(NamedTuple):
    """What the lines of a plain text are.

    split: whether paragraphs are split into sentences
    document: one is what stands between "blank" lines, a "line" or a "file", whose paragraphs run over lines up to a blank one
    """

    split: bool
    document: str = "blank"


LINES = {
    "sentence": Lines(split=False),
    "paragraph": Lines(split=True),
    "wrapped": Lines(split=True, document="file"),
    "document": Lines(split=True, document="line"),
}
MAX_UNPACKER_BYTES = 268_435_456  # that an .xz file may ask for as its dictionary; `xz -9` asks for a quarter
MAX_REVISION_BYTES = 100_000_000  # of an article in a dump; MediaWiki's own limit is 2 million
MAX_DOCUMENT = 100_000_000  # characters: some thirty times the longest novels


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents of a source; each iteration reads it anew, in one order.

    source: a file, a folder (every file in it but hidden ones, by name), several of both, or "tfds:NAME". Files are plain
        text; `.xml` is a MediaWiki dump, of which articles are read (the `wikipedia` extra); `.gz`, `.bz2` and `.xz` are
        unpacked, and `.zip` is read as a folder
    lines: a key of LINES. Of dumps and TensorFlow Datasets, an example is a document and a line never runs on
    encoding: of plain text; a newline must be one byte in it
    split: of a TensorFlow Dataset

    Raises ValueError on a wrong setting, and FileNotFoundError where there is no file. Iterating raises ValueError naming
    file, line and byte where text is not of the encoding, or a file that cannot be unpacked or parsed.
    """

    source: str | Path | Sequence[str | Path]
    lines: str = "sentence"
    encoding: str = "utf-8"
    split: str = "train"

    def __post_init__(self) -> None:
        if self.lines not in LINES:
            raise BertKerasError(f"lines are {self.lines!r}; choose one of {', '.join(LINES)}.")
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
        """Documents as they stand in the source, their paragraphs not split."""
        if isinstance(self.source, str) and self.source.startswith(TFDS):
            yield from _tfds_documents(self.source.removeprefix(TFDS), self.split)
        for file in self._files():
            yield from _file_documents(file, form=LINES[self.lines], encoding=self.encoding)

    def _files(self) -> list[Path]:
        """Every file of the source. Raises FileNotFoundError where there is none."""
        if isinstance(self.source, str) and self.source.startswith(TFDS):
            return []
        sources = [self.source] if isinstance(self.source, str | Path) else list(self.source)
        files = [file for source in sources for file in _files_of(path_of(source))]
        if not files:
            raise MissingFileError(f"there is no file in {self.source}; give files, folders or {TFDS}NAME.")
        return files


@dataclasses.dataclass(frozen=True)
class Corpora:
    """Several corpora as one, each read as it is written.

    They are read side by side, so that any stretch holds of each its share: the next document is that of the part of which the
    smallest share of its characters was read. For these shares, several parts are read once more, before the first document.
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
            share, index = read[0]
            document = next(readers[index], None)
            if document is None:
                heapq.heappop(read)
            else:
                heapq.heapreplace(read, (share + _characters(document) / self._sizes[index], index))
                yield document


def _characters(document: Document) -> int:
    return sum(map(len, document))


_SETTING = re.compile(r",(lines|encoding|split)=([^,=]*)$")


def open_corpora(specs: Sequence[str]) -> Corpora:
    """Corpora as a command line names them: "SOURCE[,lines=KEY][,encoding=NAME][,split=NAME]" each.

    Raises ValueError where a setting is given twice or none is named, and as Corpus does.
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
        raise MissingFileError(f"there is no {path}; give a file, a folder or {TFDS}NAME.")
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
_DUMP = re.compile(r"\.xml(-p\d+p\d+)?$")  # of a dump in parts, whose names end in the range of its pages


class _Xz(io.RawIOBase):
    """The bytes in an .xz file, as LZMAFile gives them, under a limit of memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, self._new()

    def _new(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=MAX_UNPACKER_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            packed, after = b"", self._decoder.eof
            if after:  # streams may stand one after another, zeros between them
                packed = self._decoder.unused_data.lstrip(b"\0") or self._file.read(io.DEFAULT_BUFFER_SIZE)
                self._decoder = self._new()
            elif self._decoder.needs_input:
                packed = self._file.read(io.DEFAULT_BUFFER_SIZE)
            if after and not packed.strip(b"\0"):
                if not packed:
                    return 0
                continue
            if not packed and self._decoder.needs_input:
                raise EOFError("the file ends before its end-of-stream mark")
            if data := self._decoder.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)


def _file_documents(path: Path, *, form: Lines, encoding: str) -> Iterator[Document]:
    try:
        for name, stream in _streams(path):
            if _DUMP.search(name.lower()):
                yield from _wiki_documents(name, stream)
            else:
                yield from _plain_documents(name, _decoded(name, stream, encoding), form)
    except (EOFError, OSError, RuntimeError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of what is on it
            raise
        raise BertKerasError(f"{path} cannot be unpacked ({error}); fetch it again.") from error


def _streams(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    """What is in a file, unpacked: each text's name, without the suffix of its packing, and its bytes."""
    if path.suffix.lower() == ARCHIVE:
        with zipfile.ZipFile(path) as archive:
            for member in sorted(archive.namelist()):
                if archive.getinfo(member).compress_type == zipfile.ZIP_LZMA:
                    raise BertKerasError(f"{path}, {member}: packed by LZMA; pack it by deflate.")
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
        raise BertKerasError(f"{name}: an archive inside a packed file is not read; unpack the outer one.")
    return name, file


def _decoded(name: str, stream: BinaryIO, encoding: str) -> Iterator[str]:
    """Lines as strings, without a byte order mark and spaces around."""
    for number, line in enumerate(bounded_lines(stream, name), 1):
        mark = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
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
                f"{name}, line {number}: a byte is 0, so that it is no text; unpack it, or leave it out."
            )
        if number == 1 and "\r" in text and not line.endswith(b"\n"):
            raise BertKerasError(f"{name}: carriage returns end its lines; save it with newlines.")
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
    """The lines. Raises ValueError where a document grows over MAX_DOCUMENT."""
    length = 0
    for number, line in enumerate(lines, 1):
        length = length + len(line) if line or form.document == "file" else 0
        if length > MAX_DOCUMENT:
            raise BertKerasError(
                f"{name}, line {number}: the document so far has over {MAX_DOCUMENT:,} characters, and is in memory as a whole; "
                "put blank lines between documents, or give lines=document where each is one."
            )
        yield line


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Runs of lines between blank ones."""
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
            f"{name} has no field {TFDS_TEXT!r}, its strings are {there}; write the text to files."
        )
    for number, example in enumerate(examples.as_numpy_iterator(), 1):
        try:
            text = example[field].decode()
        except UnicodeDecodeError as error:
            raise BertKerasError(
                f"{name}, example {number} of {split}: {field} is not utf-8 ({error})."
            ) from error
        yield [line for raw in text.split("\n") if (line := raw.strip())]


# -----------------------------------------------------------------------------------------------------------
# MediaWiki

ARTICLES = 0  # the namespace of articles
_FILES = ("file", "image", "category")  # how any wiki may call these namespaces, beside its own names
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?:")
_SWITCH = re.compile(r"__[A-Z]+__")  # such as __NOTOC__
_LIST = "\0"  # marks a line of a list
# Tags whose text is part of the sentence; what stands in others (tables, references, galleries, formulas) is left out.
INLINE = frozenset(
    "b i em strong small big span sub sup u s del ins abbr cite q code tt var div p center blockquote".split()
)


class _Dump:
    """The bytes of a dump. Raises ValueError where no revision ends within MAX_REVISION_BYTES: the parser keeps it whole."""

    _END = b"</revision>"

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name, self._stream = name, stream
        self._since, self._before, self._plain = 0, b"", True

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        seen = self._before + chunk
        # In a comment or in CDATA, which no dump has, the mark would end nothing.
        self._plain &= b"<!" not in seen
        at = seen.rfind(self._END) if self._plain else -1
        self._since = len(seen) - at if at >= 0 else self._since + len(chunk)
        if self._since > MAX_REVISION_BYTES:
            raise BertKerasError(
                f"{self._name}: a revision has over {MAX_REVISION_BYTES:,} bytes; wanted at most that for an article."
            )
        self._before = seen[-len(self._END) :]
        return chunk


def _wiki_documents(name: str, stream: BinaryIO) -> Iterator[Document]:
    """Articles of a dump, their paragraphs; redirects have none."""
    try:
        import mwxml
    except ImportError as error:
        raise MissingPackageError(
            f"{name} is a MediaWiki dump; pip install 'bert-keras[wikipedia]'."
        ) from error
    bad = (xml.etree.ElementTree.ParseError, mwxml.errors.MalformedXML, AssertionError, AttributeError)
    for text, elsewhere in _articles(name, stream, mwxml.Dump, (*bad, TypeError, ValueError)):
        yield wiki_paragraphs(text, elsewhere=elsewhere.union(_FILES))


def _articles(
    name: str, stream: BinaryIO, parser: Any, bad: tuple[type[Exception], ...]
) -> Iterator[tuple[str, set[str]]]:
    """The text of each article, and the namespaces that are no articles."""
    try:
        dump = parser.from_file(_Dump(name, stream))
        elsewhere = {
            str(space.name).casefold() for space in dump.site_info.namespaces or () if space.id != ARTICLES
        }
        for page in dump:
            if page.namespace == ARTICLES and not page.redirect:
                text = ""
                for revision in page:  # the last is the newest
                    text = revision.text or ""
                yield text, elsewhere
    except BertKerasError:
        raise
    except bad as error:
        reason = str(error) or "its root is no mediawiki"  # of which mwxml only asserts
        raise BertKerasError(f"{name} is no MediaWiki dump ({reason}); fetch it again.") from error


def wiki_paragraphs(text: str, *, elsewhere: Iterable[str] = _FILES) -> list[str]:
    """Text passages of an article: no lists, tables, headers, templates or references (Devlin et al. 2019, sec. 3.1).

    elsewhere: namespaces, in lower case, that a link may name; a link there is no text
    """
    import mwparserfromhell

    found = _SWITCH.sub("", _text_of(mwparserfromhell.parse(text), frozenset(elsewhere)))
    lines = (" ".join(line.split()) for line in found.splitlines())
    return [line for line in lines if line and not line.startswith(_LIST)]


def _text_of(code: Any, elsewhere: frozenset[str]) -> str:
    """What a reader sees of parsed wikitext, a list's items marked."""
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
        # Numbers that are no character, &#xD800;, become "?".
        nodes.HTMLEntity: lambda node: node.normalize().encode("utf-8", "replace").decode(),
        nodes.ExternalLink: lambda node: _text_of(node.title, elsewhere) if node.title else "",
        nodes.Wikilink: link,
        nodes.Tag: tag,
    }
    return "".join(shown[type(node)](node) for node in code.nodes if type(node) in shown)


# -----------------------------------------------------------------------------------------------------------
# Sentences

_BREAK = re.compile(r"([.!?…]+)[\"'”’»)\]]*\s+|[。！？]+[」』”’）]*\s*")
_OPENING = "\"'“‘«([¿¡—- "
_FIRST = re.compile(f"[{re.escape(_OPENING)}]*(.?)", re.DOTALL)
ABBREVIATIONS = frozenset(
    "adm al approx ave bros capt cf ch col corp cpl dept dr ed eq est fig figs fr gen gov hon inc jr lt ltd maj messrs mr "
    "mrs ms mt no nos op pp pres prof pt rep rev sec sen sgt sr st supt viz vol vols vs".split()
)


def _whole(line: str) -> list[str]:
    return [line]


def split_sentences(paragraph: str) -> list[str]:
    """Sentences of a paragraph, by a rule of a few lines; joined by spaces they are the paragraph again.

    A sentence ends at `.`, `!`, `?` or `…`, with the quotes and brackets that close it, where space follows and then no
    lower-case letter; or at `。`, `！` or `？`. A single full stop ends none after one of ABBREVIATIONS, a single
    capital ("J.") or a word with a full stop inside ("U.S.").
    """
    found, start = [], 0
    for match in _BREAK.finditer(paragraph):
        stops = match[1]
        following = _FIRST.match(paragraph, match.end())[1] if stops else ""  # type: ignore[index]
        word = max(start, paragraph.rfind(" ", start, match.start()) + 1)
        if following.islower() or (stops == "." and _abbreviates(paragraph[word : match.start()])):
            continue
        found.append(paragraph[start : match.end()].strip())
        start = match.end()
    return [sentence for sentence in (*found, paragraph[start:].strip()) if sentence]


def _abbreviates(word: str) -> bool:
    """Whether a full stop after this word belongs to it."""
    word = word.lstrip(_OPENING)
    return (
        word.casefold() in ABBREVIATIONS or "." in word or (len(word) == 1 and word.isupper() and word != "I")
    )
