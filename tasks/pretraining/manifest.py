"""The format of a folder of instances: names of files and features, and the manifest.

00000.tfrecord ..., manifest.json: identity (text, vocabulary, settings, seed), shards, and the summary of a complete folder
"""

import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import LABEL_RATE_TOLERANCE, TFRECORD_NAMES, WORD_STARTS
from bert_keras.io.files import digest_of_file, write_json
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.json_files import FLAG, OBJECT, TEXT, list_of, or_null, read_object, short, typed, whole
from bert_keras.io.paths import did_you_mean, path_of
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.samplers import SAMPLERS

FORMAT_VERSION = 1
_SHARD_NAME = re.compile(r"\d{5,}\.tfrecord(\.gz)?")  # of `shard_name`
MANIFEST = "manifest.json"
WORK = ".beam"  # the folder of sizes, counts and errors of `write_records_with_beam`, until the manifest is complete
SHARDS, SUMMARY = "shards", "summary"  # fields of the manifest besides the identity
INSTANCES = Layout(name="a folder of instances", identity=MANIFEST, results=MANIFEST, remote=True)

# Google's feature names, and `word_starts`, which Google's files do not have.
RECORD_NAMES = {**TFRECORD_NAMES, WORD_STARTS: WORD_STARTS}


class Shard(NamedTuple):
    """A file of records: its size and digest, the SHA-256 of its text, and counts of its content.

    bytes, sha256: size of the file and its digest; manifests of earlier versions have no digest
    positions: number of positions without padding, over all instances
    ones: number of labels that are 1
    skipped: number of chunks of one segment, which give no instance
    """

    bytes: int
    text: str
    documents: int
    instances: int
    positions: int
    ones: int
    skipped: int
    sha256: str | None = None

    def is_written(self, file: pathlib.Path) -> bool:
        """True if a file has this content."""
        if not file.is_file() or file.stat().st_size != self.bytes:
            return False
        return self.sha256 is None or digest_of_file(file) == self.sha256


class Summary(NamedTuple):
    """The summary of all shards.

    label_rate: the fraction of labels that are 1; None without labels
    mean_length: positions of an instance, without padding
    padding: the fraction of positions that are padding
    skipped: number of chunks of one segment, which give no instance
    warnings: likely mistakes, one sentence for each
    """

    documents: int
    instances: int
    label_rate: float | None
    mean_length: float
    padding: float
    skipped: int
    warnings: tuple[str, ...]


class InstancesFolder(Folder):
    """A folder of instances. Its manifest grows with the shards."""

    def __init__(self, path: str | pathlib.Path) -> None:
        super().__init__(path, INSTANCES)

    @property
    def finished(self) -> bool:
        """False: writing a complete folder again is allowed; it compares the folder with the text and changes nothing."""
        return False

    def identity(self) -> dict[str, Any]:
        """The fields that decide the instances, except the text."""
        manifest = read_manifest(self.path)
        return {name: value for name, value in manifest.items() if name not in (SHARDS, SUMMARY)}

    def shards(self) -> list[Shard]:
        """The finished shards, in the order of the text."""
        return shards_of(read_manifest(self.path))

    @property
    def complete(self) -> bool:
        """True if the folder has all shards of its text."""
        return read_manifest(self.path)[SUMMARY] is not None

    def made_from(self, amount: str) -> BertKerasError:
        """The error about a folder of another text. amount: "more text" or "less text"."""
        return BertKerasError(f"{self.path} was made from {amount}; give another folder, or remove this one.")

    def write(
        self, identity: Mapping[str, Any], made: Sequence[Shard], summary: Summary | None = None
    ) -> None:
        """Writes the manifest; only a complete folder has a summary, and no file of an earlier try with another text."""
        if summary is not None:
            self._remove_others({shard_name(i, compress=identity["compress"]) for i in range(len(made))})
        content = {SHARDS: [shard._asdict() for shard in made], SUMMARY: summary and summary._asdict()}
        write_json(self.path / MANIFEST, {**identity, **content})
        if summary is not None:
            self._remove_work()

    def _remove_others(self, names: Collection[str]) -> None:
        """Removes the files of records with other names."""
        for file in list(self.path.glob("*.tfrecord*")):
            if _SHARD_NAME.fullmatch(file.name) and file.name not in names:
                file.unlink()

    def _remove_work(self) -> None:
        if (work := self.path / WORK).is_dir():
            for file in list(work.iterdir()):
                file.unlink()
            work.rmdir()


def read_manifest(path: str | pathlib.Path) -> dict[str, Any]:
    """Reads the manifest of a folder of instances.

    Raises FileNotFoundError if it is missing, and ValueError if its format is wrong.
    """
    file = path_of(path) / MANIFEST
    if not file.is_file():
        raise MissingFileError(f"there is no {file}{did_you_mean(file)}; give a folder of instances.")
    kinds = {
        SHARDS: list_of(OBJECT),
        SUMMARY: or_null(OBJECT),
        "masking": or_null(OBJECT),
        "compress": FLAG,
    }
    # A folder that was just begun has neither shards nor summary.
    manifest = {SHARDS: [], SUMMARY: None} | read_object(file)
    if (version := manifest.get("format_version")) != FORMAT_VERSION:
        raise BertKerasError(
            f"{file} has format_version {short(version)}, and this version of the package reads {FORMAT_VERSION}; "
            "write the instances again, or give another folder."
        )
    typed(manifest, kinds, where=file, others=True)
    count = whole(0, 2**63 - 1)
    for number, shard in enumerate(manifest[SHARDS]):
        shard_kinds = dict.fromkeys(Shard._fields, count) | {"text": TEXT, "sha256": TEXT}
        typed(shard, shard_kinds, where=f"{file}: {SHARDS}[{number}]", optional=("sha256",))
    return manifest


def shards_of(manifest: Mapping[str, Any]) -> list[Shard]:
    """The shards in a manifest."""
    return [Shard(**shard) for shard in manifest[SHARDS]]


def summary_of(manifest: Mapping[str, Any]) -> Summary:
    """The summary in the manifest of a complete folder."""
    summary = manifest[SUMMARY]
    return Summary(**{**summary, "warnings": tuple(summary["warnings"])})


def shard_name(number: int, *, compress: bool) -> str:
    """The name of a file of records."""
    return f"{number:05d}.tfrecord{'.gz' if compress else ''}"


def summarize(shards: Sequence[Shard], *, settings: Sampling) -> Summary:
    """The summary of all shards. Raises ValueError if there is no instance."""
    documents, instances, positions, ones, skipped = (
        sum(getattr(shard, name) for shard in shards)
        for name in ("documents", "instances", "positions", "ones", "skipped")
    )
    if not instances:
        raise BertKerasError(
            f"{documents} documents gave no instance and {skipped} chunks of one segment were skipped; give text whose "
            "documents have several lines, or another sampler."
        )
    rate = ones / instances if SAMPLERS[settings.sampler].segments == 2 else None
    warnings = []
    if rate is not None and abs(rate - 0.5) > LABEL_RATE_TOLERANCE:
        warnings.append(
            f"{rate:.1%} of the labels are 1, expected about 50 %: in short documents, the last line often has no next line; "
            "use blank lines only between documents, not between sentences, or set strict."
        )
    length = positions / instances
    padding = 1 - length / settings.seq_length
    return Summary(documents, instances, rate, length, padding, skipped, tuple(warnings))
