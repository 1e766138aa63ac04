"""Pre-training instances with Apache Beam: the files of `write_records`, written by any number of machines.

    ranges -> sizes of their documents -> shards, as spans of documents -> one file each -> the manifest

The elements of the pipeline are names, numbers and counts. Text is read where a shard is written, by the function that
`write_records` calls, so the bytes do not depend on the runner.
"""

import contextlib
import dataclasses
import json
import logging
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_keras.errors import BertKerasError, MissingPackageError, first_line
from bert_keras.io.files import atomic_file, write_json
from bert_keras.io.folders import check_equal
from bert_keras.io.paths import is_remote
from bert_keras.tasks.pretraining.corpus import (
    RANGE_BYTES,
    Corpora,
    CorpusRange,
    Span,
    corpus_ranges,
    digest_documents,
    document_sizes,
    read_spans,
    shard_spans,
)
from bert_keras.tasks.pretraining.records import (
    WORK,
    InstancesFolder,
    Shard,
    Summary,
    load_summary,
    read_manifest,
    shard_name,
    summarize,
)
from bert_keras.tasks.pretraining.write_records import Job, ShardWriter

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
except ImportError as error:
    raise MissingPackageError(
        f"Beam cannot be imported ({error}); pip install 'bert-keras[beam]'."
    ) from error

ERROR = "error.json"


def write_records_with_beam(
    corpora: Corpora,
    job: Job,
    *,
    options: Sequence[str] = (),
    vocabulary: pathlib.Path | None = None,
    range_bytes: int = RANGE_BYTES,
) -> Summary:
    """Writes the folder of instances that `write_records` writes, with an Apache Beam pipeline.

    corpora: of files that all workers can read
    job: the arguments of `write_records`; its path is a folder that all workers can write
    options: flags of Beam and its runner, such as "--runner=DataflowRunner"; without --runner, all runs in this process
    vocabulary: the path that the job's tokenizer is read from, if it is read from one
    range_bytes: bytes of a plain file that a worker reads to find its documents; the files do not depend on it

    After an error or a kill, the folder has no complete manifest; the same call writes the missing files.
    Raises ValueError as `write_records` does, and for a source that cannot be read in parts.
    """
    sources = corpus_ranges(corpora, range_bytes=range_bytes)
    job = dataclasses.replace(job, path=job.path.absolute())  # workers may run in another folder
    paths = [job.path, *(source.range.file for source in sources), *filter(None, [vocabulary])]
    made = _pipeline(options, paths)
    with InstancesFolder(job.path).begin(job.fingerprint()):
        work = job.path / WORK
        work.mkdir(exist_ok=True)
        (work / ERROR).unlink(missing_ok=True)
        with _one_line(), made as pipeline:
            _build(pipeline, corpora, job, sources)
        if (work / ERROR).is_file():
            raise BertKerasError(json.loads((work / ERROR).read_text(encoding="utf-8"))["error"])
    return load_summary(read_manifest(job.path))


def _pipeline(flags: Sequence[str], paths: Iterable[pathlib.Path]) -> beam.Pipeline:
    """An empty pipeline. Raises BertKerasError for flags that Beam refuses, and for paths that its workers cannot reach."""
    options = PipelineOptions(list(flags))
    known, all_given = options.get_all_options(), options.get_all_options(retain_unknown_options=True)
    if unknown := sorted(set(all_given) - set(known)):
        raise BertKerasError(f"Beam has no option --{unknown[0]}; see the documentation of its runner.")
    runner = options.view_as(StandardOptions).runner
    local = [path for path in paths if not is_remote(path)]
    if local and "dataflow" in (runner or "").lower():
        raise BertKerasError(
            f"{local[0]} is on this machine, and Dataflow's workers are not; give gs:// paths."
        )
    if runner and (relative := [path for path in local if not path.is_absolute()]):
        raise BertKerasError(
            f"{relative[0]} is relative, and workers of {runner} may run elsewhere; give an absolute path that they reach."
        )
    if not runner:
        logging.getLogger("apache_beam").setLevel(logging.ERROR)  # a remote runner logs its job's address
    try:
        return beam.Pipeline(runner=None if runner else FnApiRunner(), options=options)
    except (ImportError, ValueError) as error:
        raise BertKerasError(f"Beam refuses its options ({first_line(error)}).") from error


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Raises BertKerasError with the last line of an error in a worker, which Beam wraps in that worker's traceback."""
    try:
        yield
    except BertKerasError:
        raise
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise BertKerasError(f"a step of the pipeline failed: {lines[-1].strip()}") from error


def _build(pipeline: beam.Pipeline, corpora: Corpora, job: Job, sources: Sequence[CorpusRange]) -> None:
    """Builds the pipeline. A step reads a side input only when it is complete: these are the points where workers wait."""
    sized = (
        pipeline
        | "Sources" >> beam.Create(sources)
        | "Spread sources" >> beam.Reshuffle()
        | "Measure documents" >> beam.Map(_measure, corpora, job)
    )
    written = (
        pipeline
        | "Plan" >> beam.Create([None])
        | "Group documents" >> beam.FlatMap(_group, beam.pvalue.AsList(sized), job)
        | "Spread shards" >> beam.Reshuffle()
        | "Write shards" >> beam.ParDo(_WriteShards(corpora, job))
    )
    _ = (
        pipeline
        | "End" >> beam.Create([None])
        | "Write manifest"
        >> beam.Map(_write_manifest, beam.pvalue.AsList(sized), beam.pvalue.AsList(written), job)
    )


# -----------------------------------------------------------------------------------------------------------
# Steps. A BertKerasError is a result: it would come again in every try, and each runner wraps errors in its own way.


def _sizes_file(job: Job, source: CorpusRange) -> pathlib.Path:
    return job.path / WORK / f"{source.number:05d}.npy"


def _measure(source: CorpusRange, corpora: Corpora, job: Job) -> CorpusRange | str:
    """Writes the sizes of a source's documents to a file; returns the source, or an error."""
    try:
        sizes = document_sizes(corpora, source)
    except BertKerasError as error:
        return str(error)
    with atomic_file(_sizes_file(job, source)) as temporary, temporary.open("wb") as file:
        np.save(file, sizes)
    return source


def _group(_: None, sized: Iterable[CorpusRange | str], job: Job) -> Iterator[tuple[int, list[Span]]]:
    sources = [source for source in sized if isinstance(source, CorpusRange)]
    if len(sources) < len(list(sized)):
        return

    def sizes_of(source: CorpusRange) -> np.ndarray:
        with _sizes_file(job, source).open("rb") as file:
            return np.load(file)

    yield from enumerate(
        shard_spans(sorted(sources), sizes_of, size=job.shard_bytes, least=job.shard_documents)
    )


class _WriteShards(beam.DoFn):
    """(number, spans) -> (number, Shard), or an error. A shard that an earlier try has written is kept."""

    def __init__(self, corpora: Corpora, job: Job) -> None:
        self.corpora, self.job = corpora, job

    def setup(self) -> None:
        self.write = ShardWriter(self.job)
        self.folder = InstancesFolder(self.job.path)
        self.done, self.complete = self.folder.shards(), self.folder.complete

    def process(self, element: tuple[int, list[Span]]) -> Iterator[tuple[int, Shard] | str]:
        number, spans = element
        try:
            texts = list(read_spans(self.corpora, spans))
            shard = self._written(number, digest_documents(texts)) or self.write(number, texts)
        except BertKerasError as error:
            yield str(error)
            return
        write_json(self._counts(number), shard._asdict())
        yield number, shard

    def _counts(self, number: int) -> pathlib.Path:
        return self.job.path / WORK / f"{number:05d}.json"

    def _written(self, number: int, text: str) -> Shard | None:
        """The counts of a shard with this text, if an earlier try wrote it.

        Raises BertKerasError for another text, and for a shard that a complete folder does not have.
        """
        counts, file = self._counts(number), self.job.path / shard_name(number, compress=self.job.compress)
        if number < len(self.done):
            shard = self.done[number]
            check_equal(self.job.path, {"text": shard.text}, {"text": text})
        elif self.complete:
            raise self.folder.made_from("less text")
        elif counts.is_file():
            shard = Shard(**json.loads(counts.read_text(encoding="utf-8")))
        else:
            return None
        return shard if shard.text == text and shard.is_written(file) else None


def _write_manifest(
    _: None, sized: Iterable[CorpusRange | str], written: Iterable[tuple[int, Shard] | str], job: Job
) -> None:
    """Writes the complete manifest, or the first error."""
    folder = InstancesFolder(job.path)
    made = dict(result for result in written if not isinstance(result, str))
    errors = [result for results in (sized, written) for result in results if isinstance(result, str)]
    try:
        if errors:
            raise BertKerasError(min(errors))
        shards = [made[number] for number in range(len(made))]
        if len(shards) < len(folder.shards()):
            raise folder.made_from("more text")
        summary = summarize(shards, settings=job.settings, lone_words=job.lone_words)
    except BertKerasError as error:
        write_json(job.path / WORK / ERROR, {"error": str(error)})
        return
    folder.write(folder.fingerprint(), shards, summary)
