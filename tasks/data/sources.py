"""Reads the files of a data set: its splits, bounded text in UTF-8, TensorFlow Datasets."""

import codecs
import contextlib
import gzip
import io
import sys
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bert_keras.cli.console import shows_bars
from bert_keras.errors import BertKerasError, MissingFileError, first_line, first_names
from bert_keras.io.paths import did_you_mean, to_path

if TYPE_CHECKING:  # slow to import, and the flags of commands need none of it
    import tensorflow as tf

# A folder of files with their official names, one file for every split, or one file for each split.
Source = str | Path | Mapping[str, str | Path]

MAX_LINE_BYTES = 100_000_000  # the longest line
MAX_UNPACKED_BYTES = 250_000_000  # the largest unpacked gzip file
# Seconds until a download gives up: to connect, and between two parts of an answer.
CONNECT_SECONDS, ANSWER_SECONDS = 5, 60


def file_of_split(source: Source, split: str) -> Path:
    """The file or folder that a source has for a split. Raises BertKerasError for a split that has none."""
    if isinstance(source, Mapping):
        name = split if split in source else split.partition("_")[0]  # MNLI has two validation splits
        if name not in source:
            raise BertKerasError(
                f"the {split} split has no file, only {', '.join(source)} has; give a file for {split}."
            )
        source = source[name]
    return to_path(source)


def split_file(source: Source, split: str, names: Mapping[str, tuple[str, ...]]) -> Path:
    """The file of a split.

    names: the possible file names of each split in a folder

    Raises BertKerasError for a split that `names` or `source` lacks, MissingFileError for a missing file.
    """
    if split not in names:
        raise BertKerasError(f"there is no split {split!r}; the splits are {', '.join(names)}.")
    path = file_of_split(source, split)
    if path.is_dir():
        found = next((path / name for name in names[split] if (path / name).is_file()), None)
        if found is None:
            raise MissingFileError(
                f"{path} has no file for the {split} split (expected {' or '.join(names[split])}); it has {listing(path)}."
            )
        return found
    if not path.is_file():
        raise missing_source(path)
    return path


def check_dev_split(source: Any) -> None:
    """Raises BertKerasError for a single file: it would be the dev split too. source: as a task takes it, or None."""
    if isinstance(source, str | Path) and to_path(source).is_file():
        raise BertKerasError(
            f"{source} is one file, without a dev split; give a folder that holds both, or each split's file."
        )


def refuse_forms(path: Path, endings: Sequence[str], reads: str) -> None:
    """Raises BertKerasError for a file that ends in one of `endings`. reads: the forms that its reader reads."""
    name = path.name.lower().removesuffix(".gz")
    if ending := next((ending for ending in endings if name.endswith(ending)), None):
        raise BertKerasError(f"{path} is a {ending} file; {reads}.")


def missing_source(path: Path) -> MissingFileError:
    """The error about a source that does not exist, with close names, else the names beside it."""
    beside = f" ({path.parent} has {listing(path.parent)})" if path.parent.is_dir() else ""
    return MissingFileError(
        f"there is no {path}{did_you_mean(path) or beside}; give a file, or a folder of files."
    )


def check_input(path: Path) -> None:
    """Raises MissingFileError for a path of examples that is a folder, or is not there."""
    if path.is_dir():
        raise MissingFileError(f"no file at {path}, which is a folder with {listing(path)}; give a file.")
    if not path.exists():
        raise MissingFileError(
            f"no file at {path}{did_you_mean(path)}; give a file of examples, or - for standard input."
        )


def listing(folder: Path) -> str:
    """The first names in a folder, for an error."""
    names = sorted(entry.name for entry in folder.iterdir())
    return first_names(names, 10) if names else "no files"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """Yields the bytes of a plain or gzipped file, and True for a gzipped one. Raises BertKerasError for broken gzip."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            unpacked: Any = gzip.GzipFile(fileobj=file) if packed else file
            yield unpacked, packed
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BertKerasError(f"{path} cannot be unpacked ({error}); fetch it again.") from error


def read_text(path: Path, *, limit: int, instead: str) -> str:
    """The text of a plain or gzipped file, without a byte order mark.

    Raises BertKerasError for more than `limit` bytes, which recommends `instead`, for broken gzip, and for bytes that are not
    UTF-8, with line and byte.
    """
    read = bytearray()
    with _opened(path) as (file, _):
        while chunk := file.read(io.DEFAULT_BUFFER_SIZE):
            read += chunk
            if len(read) > limit:
                raise BertKerasError(f"{path} has over {limit:,} bytes of text; {instead}.")
    if read.startswith(codecs.BOM_UTF8):
        del read[: len(codecs.BOM_UTF8)]
    try:
        return read.decode()
    except UnicodeDecodeError as error:
        at = error.start
        line, byte = read.count(b"\n", 0, at) + 1, at - read.rfind(b"\n", 0, at)
        raise _not_utf8(path, line, byte, read[at]) from error


def _not_utf8(path: object, line: int, byte: int, value: int) -> BertKerasError:
    where = f"{path}, line {line}, byte {byte}"
    return BertKerasError(f"{where}: 0x{value:02x} is not UTF-8; save the file as UTF-8.")


def bounded_lines(file: IO[bytes], name: object) -> Iterator[bytes]:
    """Yields the lines of a file with their ends. Raises BertKerasError before a line over MAX_LINE_BYTES is in memory."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise BertKerasError(
                f"{name}, line {number}: the line has over {MAX_LINE_BYTES:,} bytes; split it into shorter lines."
            )
        yield line


def decoded_lines(lines: Iterable[bytes], name: object) -> Iterator[tuple[int, str]]:
    """Yields the number, from 1, and the text of each line, with its end and without a byte order mark.

    Raises BertKerasError for bytes that are not UTF-8, with line and byte.
    """
    for number, line in enumerate(lines, start=1):
        line = line.removeprefix(codecs.BOM_UTF8)  # in joined files, any line may start with it
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise _not_utf8(name, number, error.start + 1, line[error.start]) from error
        yield number, text


def without_end(line: str) -> str:
    """A line without its newline, or carriage return and newline."""
    return line.removesuffix("\n").removesuffix("\r")


def ended_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the `decoded_lines` of a plain or gzipped file. Only a newline ends a line: U+2028 is text.

    Raises BertKerasError as `decoded_lines` and `bounded_lines`, and for a gzipped file over MAX_UNPACKED_BYTES.
    """
    with _opened(path) as (file, packed):
        lines = bounded_lines(file, path)
        yield from decoded_lines(_bounded_sum(lines, path) if packed else lines, path)


def _bounded_sum(lines: Iterable[bytes], path: Path) -> Iterator[bytes]:
    unpacked = 0
    for line in lines:
        unpacked += len(line)
        if unpacked > MAX_UNPACKED_BYTES:
            raise BertKerasError(
                f"{path} unpacks to over {MAX_UNPACKED_BYTES:,} bytes; unpack it, if you trust it."
            )
        yield line


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the `ended_lines` without their ends."""
    return ((number, without_end(line)) for number, line in ended_lines(path))


def nonblank_lines(path: Path, *, spaces: bool = True) -> Iterator[tuple[int, str]]:
    """Yields the `numbered_lines` that are not blank. spaces: True if a line of spaces is blank too."""
    return ((number, line) for number, line in numbered_lines(path) if (line.strip() if spaces else line))


def check_text(where: str, *texts: str) -> None:
    """Raises BertKerasError for half of a surrogate pair, which a JSON escape can contain."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise BertKerasError(f"{where}: {half} is half a character; write the whole character.") from error


def load_tfds(
    name: str, split: str, *, instead: str, only: Mapping[str, Any] | None = None
) -> "tuple[tf.data.Dataset, Any]":
    """A split from TensorFlow Datasets, and the info of its builder.

    instead: the source that the error recommends
    only: the features to read, in the form of `tfds.decode.PartialDecoding`; None reads all

    Raises MissingFileError where loading fails, and `without_downloads` for a data set that is not on this disk.
    """
    # Imported here: the import is slow, and files do not need it.
    import tensorflow_datasets as tfds

    folder = Path(tfds.core.constants.DATA_DIR, name.replace(":", "/"))
    if not _downloads and not any(folder.rglob("dataset_info.json")):
        raise MissingFileError(
            f"a run would fetch {name} from TensorFlow Datasets, and a dry run, which counts the examples, fetches nothing ("
            f"{folder} has none); give {instead}."
        )
    try:
        with _fails_fast(), contextlib.redirect_stdout(io.StringIO()):
            decoders = None if only is None else tfds.decode.PartialDecoding(only)
            return tfds.load(name, split=split, with_info=True, decoders=decoders)
    except Exception as error:  # downloading, unpacking and writing raise many types
        raise MissingFileError(
            f"{name} cannot be loaded from TensorFlow Datasets ({_reason(error)}); give {instead}."
        ) from error


_downloads = True


@contextlib.contextmanager
def without_downloads() -> Iterator[None]:
    """Within it, `load_tfds` reads only data sets that are on this disk, and asks no server."""
    global _downloads
    _downloads = False
    try:
        yield
    finally:
        _downloads = True


@contextlib.contextmanager
def _fails_fast() -> Iterator[None]:
    """TensorFlow Datasets gives up at a host that does not answer, and shows progress bars only where a bar can be drawn.

    By itself it repeats each request ten times with growing pauses, without a time limit. A busy server is still asked ten times.
    """
    import requests
    import tensorflow_datasets as tfds

    adapters: Any = requests.adapters
    usual: Any = adapters.HTTPAdapter

    class Impatient(usual):
        max_retries: Any

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.max_retries = self.max_retries.new(connect=1, read=1)

        def send(self, request: Any, timeout: Any = None, **settings: Any) -> Any:
            return super().send(request, timeout=timeout or (CONNECT_SECONDS, ANSWER_SECONDS), **settings)

    if not shows_bars(sys.stderr):
        tfds.disable_progress_bar()
    adapters.HTTPAdapter = Impatient
    try:
        yield
    finally:
        adapters.HTTPAdapter = usual


def _reason(error: Exception) -> str:
    """The cause of a failed download in a few words."""
    import requests

    if isinstance(error, requests.exceptions.ConnectionError) and error.request is not None:
        return f"{urllib.parse.urlsplit(str(error.request.url)).hostname} does not answer"
    return f"{type(error).__name__}: {first_line(error)}"
