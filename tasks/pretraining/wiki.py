"""Reads MediaWiki dumps: the articles of an XML file as text, without markup."""

import functools
import re
import xml.etree.ElementTree
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from bert_keras.errors import BertKerasError, MissingPackageError

MAX_REVISION_BYTES = 100_000_000  # the largest article in a dump; MediaWiki limits articles to 2 million
ARTICLES = 0  # the namespace of articles
_FILES = (
    "file",
    "image",
    "category",
)  # English names of namespaces, which every wiki accepts besides its own names
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


def wiki_documents(name: str, stream: BinaryIO) -> Iterator[Callable[[], list[str]]]:
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
    for text, elsewhere in _articles(name, stream, mwxml.Dump, (*bad, TypeError, ValueError)):
        yield functools.partial(wiki_paragraphs, text, elsewhere=elsewhere.union(_FILES))


def _articles(
    name: str, stream: BinaryIO, parser: Any, bad: tuple[type[Exception], ...]
) -> Iterator[tuple[str, set[str]]]:
    """The text of each article, and the namespaces for other pages."""
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
        reason = str(error) or "its root element is not mediawiki"  # mwxml only asserts this
        raise BertKerasError(f"{name} is not a MediaWiki dump ({reason}); fetch it again.") from error


def wiki_paragraphs(text: str, *, elsewhere: Iterable[str] = _FILES) -> list[str]:
    """The paragraphs of an article, without lists, tables, headers, templates and references (Devlin et al. 2019, sec. 3.1).

    elsewhere: namespaces in lower case; links to them are left out
    """
    import mwparserfromhell

    found = _SWITCH.sub("", _text_of(mwparserfromhell.parse(text), frozenset(elsewhere)))
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
