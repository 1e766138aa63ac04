"""Models on the web: an archive's address, or the name of a TensorFlow Hub module -> a folder in a cache.

    https://tfhub.dev/google/universal-sentence-encoder/4   a module, as hub.KerasLayer takes it: a .tar.gz at this address with
                                                            ?tf-hub-format=compressed
    google/universal-sentence-encoder/tensorFlow2/large/2   a Kaggle handle, also as kaggle://HANDLE and as its page's address

Archives are cached in `paths.cache_folder`, Kaggle's models by kagglehub.
"""

import contextlib
import gzip
import hashlib
import pathlib
import re
import shutil
import tarfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.io.folders import atomic_folder
from bert_keras.io.paths import cache_folder

TIMEOUT = 10  # seconds without an answer, after which a server counts as unreachable
# Of an archive, packed and unpacked: the largest text encoders of TensorFlow Hub have 2 GB.
MAX_ARCHIVE_BYTES = 16 << 30
MAX_MEMBERS = 10_000
_AT_ONCE = 1 << 20  # bytes: the longest name or header in a tar; files are copied in smaller parts
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_COMPRESSED = "tf-hub-format=compressed"
_KAGGLE, _KAGGLE_SITES = "kaggle://", ("www.kaggle.com", "kaggle.com")
_HANDLE = re.compile(r"[\w-]+/[\w.-]+/(tensorflow[12]|keras)/[\w.-]+(/\d+)?", re.ASCII | re.IGNORECASE)


def is_handle(given: str) -> bool:
    """True for a Kaggle handle: OWNER/MODEL/FRAMEWORK/VARIATION, and its version."""
    return _HANDLE.fullmatch(given) is not None


def find_module(given: str) -> pathlib.Path | None:
    """The folder of the module at an address or a handle, downloaded unless it is in the cache; None for any other string.

    Raises MissingFileError where it cannot be downloaded, BertKerasError for an address without TLS and for a damaged archive.
    """
    if handle := _handle_of(given):
        return kaggle_folder(handle, given)
    parts = urllib.parse.urlsplit(given)
    if parts.scheme not in ("http", "https"):
        return None
    query = parts.query if _COMPRESSED in parts.query else f"{parts.query}&{_COMPRESSED}".lstrip("&")
    url = urllib.parse.urlunsplit(parts._replace(query=query, fragment=""))
    named = re.sub(r"\W+", "-", f"{parts.netloc}{parts.path}").strip("-")[-80:]
    folder = cache_folder() / "hub" / f"{named}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    if not folder.is_dir():
        unpack(download(url, folder.parent, given, file=f"{folder.name}.tar.gz"), folder)
    return inner_folder(folder)


def _handle_of(given: str) -> str:
    """The Kaggle handle in a handle or in the address of its page; "" for any other string."""
    handle = given.removeprefix(_KAGGLE)
    parts = urllib.parse.urlsplit(given)
    if parts.hostname in _KAGGLE_SITES and parts.path.startswith("/models/"):
        words = parts.path.removeprefix("/models/").strip("/").split("/")
        handle = "/".join(word for word in words if word not in ("frameworks", "variations", "versions"))
    if is_handle(handle):
        return handle
    if handle != given:
        raise BertKerasError(
            f"{given} names no Kaggle model; wanted OWNER/MODEL/FRAMEWORK/VARIATION/VERSION, such as "
            "tensorflow/bert/tensorFlow2/en-uncased-preprocess/3."
        )
    return ""


def kaggle_folder(handle: str, named: str) -> pathlib.Path:
    """The folder of a Kaggle model in kagglehub's cache.

    named: its name in an error
    """
    import kagglehub

    try:
        return pathlib.Path(kagglehub.model_download(handle))
    except Exception as error:  # requests' errors, Kaggle's own
        raise MissingFileError(
            f"{named} is not in Kaggle's cache and cannot be downloaded: {innermost_line(error)}. On a machine with a network, "
            f"run `kaggle models instances versions download {handle}`, copy the folder here and give its path."
        ) from error


def innermost_line(error: BaseException) -> str:
    """The first line of the innermost error: of a download, what the operating system said."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return first_line(error)


# -----------------------------------------------------------------------------------------------------------
# Archives


def download(url: str, folder: pathlib.Path, named: str, *, file: str | None = None) -> pathlib.Path:
    """The archive at a URL, whole. Publishers name no checksums, so that none is compared.

    named: its name in an error; file: its name in the folder; None takes the last part of the URL
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")
    _refuse_open(url, named)

    def check(answer: Any, **_: Any) -> None:
        """Refuses a redirect to a place without TLS, and bounds the bytes of an answer."""
        if answer.status_code >= 400:
            answer.close()
        elif answer.is_redirect:
            with _closing_after_errors(answer):
                _refuse_open(urllib.parse.urljoin(answer.url, answer.headers["location"]), named)
        whole = answer.iter_content
        answer.iter_content = lambda chunk_size=_AT_ONCE, **_: _bounded(whole(chunk_size), answer, named)

    try:
        fetch = pooch.HTTPDownloader(progressbar=True, timeout=TIMEOUT, hooks={"response": check})
        name = file or url.rpartition("/")[2]
        return pathlib.Path(pooch.retrieve(url, known_hash=None, fname=name, path=folder, downloader=fetch))
    except BertKerasError:
        raise
    except Exception as error:  # requests' errors
        raise MissingFileError(
            f"{named} is not in the cache {folder}, and {url} cannot be downloaded: {innermost_line(error)}. On a machine with a "
            "network, download that file, unpack it, copy the folder here and give its path."
        ) from error


def _refuse_open(url: str, named: str) -> None:
    """Raises BertKerasError for an address without TLS that is not on this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise BertKerasError(
            f"{named} leads to {url[:200]}, which is not https; give an https address, or the folder of your own download."
        )


@contextlib.contextmanager
def _closing_after_errors(answer: Any) -> Iterator[None]:
    """Closes the connection of an answer that is refused, which requests would leave open."""
    try:
        yield
    except BaseException:
        answer.close()
        raise


def _bounded(parts: Iterator[bytes], answer: Any, named: str) -> Iterator[bytes]:
    """The parts of an answer. Raises BertKerasError after MAX_ARCHIVE_BYTES."""
    there = 0
    with _closing_after_errors(answer):
        for part in parts:
            there += len(part)
            if there > MAX_ARCHIVE_BYTES:
                raise BertKerasError(
                    f"{named} has more than {MAX_ARCHIVE_BYTES:,} bytes, the limit of an archive."
                )
            yield part


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpacks a .zip or a .tar.gz into a folder that is there whole or not at all, and removes the archive.

    Raises BertKerasError for a damaged archive, and for one with a link, a device, a path that leaves the folder, or more than
    MAX_ARCHIVE_BYTES and MAX_MEMBERS.
    """
    try:
        with atomic_folder(folder) as new:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as opened:
                    sizes = [info.file_size for info in opened.infolist()]
                _check_size(len(sizes), sum(sizes), archive)
                shutil.unpack_archive(archive, new)
            else:
                _unpack_tar(archive, new)
    except (tarfile.TarError, zipfile.BadZipFile, shutil.ReadError, EOFError, OSError, zlib.error) as error:
        with archive.open("rb") as opened:
            page = opened.read(64).lstrip().startswith(b"<")
        why = "is a page of HTML, not an archive" if page else f"cannot be unpacked: {first_line(error)}"
        raise BertKerasError(f"{archive} {why}; remove it and try again.") from error
    archive.unlink()


class _Reader(gzip.GzipFile):
    """A gzip file that no header can make hold more than a part of it in memory."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _AT_ONCE:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def _unpack_tar(archive: pathlib.Path, folder: pathlib.Path) -> None:
    number, size, folder = 0, 0, folder.resolve()
    with contextlib.closing(_Reader(archive, "rb")) as packed:
        try:
            with tarfile.TarFile(fileobj=packed, errorlevel=2) as opened:
                for member in opened:
                    if not (member.isreg() or member.isdir()):
                        raise tarfile.ReadError(f"{member.name!r:.200} is a link or a device")
                    number, size = number + 1, size + member.size
                    _check_size(number, size, archive)
                    _write_member(opened, member, folder)
        except RecursionError as error:  # headers of headers
            raise tarfile.ReadError("too many headers before a file") from error


def _write_member(opened: tarfile.TarFile, member: tarfile.TarInfo, folder: pathlib.Path) -> None:
    """Writes a file or makes a folder, without the owner and the permissions that the archive names.

    Not `extract(filter="data")`, which Python has since 3.11.4: Debian 12 has 3.11.2.
    """
    place = (folder / member.name.lstrip("/")).resolve()
    if not place.is_relative_to(folder):
        raise tarfile.ReadError(f"{member.name!r:.200} is outside the destination")
    (place if member.isdir() else place.parent).mkdir(parents=True, exist_ok=True)
    if (content := opened.extractfile(member)) is not None:  # None of a folder
        with content, place.open("wb") as file:
            shutil.copyfileobj(content, file)


def _check_size(number: int, size: int, archive: pathlib.Path) -> None:
    if number > MAX_MEMBERS or size > MAX_ARCHIVE_BYTES:
        raise BertKerasError(
            f"{archive} unpacks to {number:,} files of {size:,} bytes or more; the limits are {MAX_MEMBERS:,} and "
            f"{MAX_ARCHIVE_BYTES:,}: remove it."
        )


def inner_folder(folder: pathlib.Path) -> pathlib.Path:
    """The folder that an archive has as its only entry, else the folder itself."""
    inner = [found for found in folder.iterdir() if not found.name.startswith(("._", "__MACOSX"))]
    return inner[0] if len(inner) == 1 and inner[0].is_dir() else folder
