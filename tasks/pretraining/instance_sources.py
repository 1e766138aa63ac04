"""Gives the instances for any step of a pre-training, from text, sampled again in every epoch, or from TFRecord files."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ALL_ROWS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    WORD_STARTS,
    WorkerRows,
)
from bert_keras.optimization.objectives import Objective, label
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.corpus import Document, HashSplit, digest_documents, shards
from bert_keras.tasks.pretraining.instance_stream import BEGINNING, InstanceMaker, Place, Segmenter, stream
from bert_keras.tasks.pretraining.model import check_lengths, check_written, masks_whole_words, name_set
from bert_keras.tasks.pretraining.recipes import Recipe
from bert_keras.tasks.pretraining.records import (
    MANIFEST,
    RecordFiles,
    digest_records,
    list_record_files,
    read_records,
)
from bert_keras.tasks.pretraining.samplers import sampler_of
from bert_keras.tasks.pretraining.text_counts import TextCounts, count_ids
from bert_keras.text.tokenizer import Tokenizer

SAMPLE = 1000  # instances to check before training
SAMPLE_BYTES = 200_000  # the least bytes of text for this sample
HELD_OUT_SEED = 20181011  # for held-out instances and masks; the same in all runs, so that they compare


class Phase(NamedTuple):
    """Training at one length.

    start, end: steps
    """

    seq_length: int
    start: int
    end: int


class InstanceSource:
    """A source of instances.

    vocab_size: the embedding rows of the encoder; every id is smaller
    phases: the phases of the training
    fingerprint: everything that decides the data
    lines: warnings about settings that the data does not follow
    unigrams: phase -> the number of each token in a sample of its instances, int [V]; `check_data` counts them
    """

    fingerprint: dict[str, Any]
    lines: Sequence[str] = ()
    unigrams: dict[int, np.ndarray]

    def __init__(
        self, *, recipe: Recipe, tokenizer: Tokenizer, vocab_size: int, lengths: Sequence[int]
    ) -> None:
        self.vocab_size = vocab_size
        self.recipe, self._tokenizer, self.unigrams = recipe, tokenizer, {}
        ends = recipe.hparams.phase_steps(len(lengths))
        self.phases = [Phase(*one) for one in zip(lengths, [0, *ends], ends, strict=False)]

    def train(
        self, phase: int, *, skip: int, place: Sequence[int] | None, worker_rows: WorkerRows = ALL_ROWS
    ) -> tf.data.Dataset:
        """A phase's endless instances from number `skip` on, a multiple of the batch size.

        place: the result of `place(skip)`
        worker_rows: the rows of each batch to return
        """
        raise NotImplementedError

    def place(self, skip: int) -> Sequence[int] | None:
        """A hint that makes it cheap to start at instance number `skip`."""
        return None

    def sample(self, phase: int) -> tf.data.Dataset:
        """A sample of a phase's instances, or all if there are few."""
        raise NotImplementedError

    @functools.cache  # noqa: B019  one source in a process
    def token_counts(self) -> np.ndarray:
        """The number of each token in the whole training text, int [V]; 0 for special tokens other than [UNK]."""
        counts, special = np.zeros(self.vocab_size, np.int64), self._tokenizer.special
        for ids in self._all_ids():
            counts += np.bincount(ids.clip(0, self.vocab_size - 1), minlength=self.vocab_size)
        counts[[*(special.ids - {special.unknown})]] = 0
        return counts

    def _all_ids(self) -> Iterator[np.ndarray]:
        """The ids of the whole training text, int [N] for each part of it."""
        raise NotImplementedError

    def counts(self, phase: int, columns: Mapping[str, np.ndarray]) -> TextCounts:
        """Counts of the text that a sample of a phase's instances is from. columns: the sample."""
        ids = columns[INPUT_WORD_IDS][columns[INPUT_MASK] > 0]
        special = self._tokenizer.special.ids - {self._tokenizer.special.unknown}
        return count_ids(ids[~np.isin(ids, [*special])], self._tokenizer)

    def held_out(self, phase: int) -> tf.data.Dataset | None:
        """Held-out instances of a phase's length, the same for every call; None if there are none."""
        raise NotImplementedError

    def check_held_out(self, phase: int, *, objectives: Sequence[Objective]) -> None:
        """Raises ValueError for held-out records of a phase's length that an objective cannot use."""

    def reading(self, phase: int | None) -> contextlib.AbstractContextManager[None]:
        """Turns TensorFlow's errors in reading a phase's instances, or held-out instances (None), into ValueError."""
        return contextlib.nullcontext()

    def wrong(self, phase: int) -> str:
        """The start of an error about a phase's instances: the file that has wrong ones."""
        return ""


class TextInstances(InstanceSource):
    """Text, from which instances are sampled again in every epoch."""

    def __init__(
        self,
        documents: Iterable[Document],
        held_out: float | Iterable[Document] | None,
        *,
        segment: Segmenter | None = None,
        workers: int = 1,
        recipe: Recipe,
        **known: Any,
    ) -> None:
        if isinstance(held_out, float) and not 0 < held_out < 1:
            raise BertKerasError(f"held_out is {held_out}; give a fraction of the documents between 0 and 1.")
        super().__init__(recipe=recipe, lengths=[length for length, _ in recipe.hparams.phases], **known)
        self._segment, self._workers = segment, workers
        self._failures: list[Exception] = []
        self._places: list[Place] = []
        self.fingerprint = {"text": digest_documents(documents)}
        if isinstance(held_out, float):
            self._documents: Iterable[Document] = HashSplit(documents, held_out, inside=False)
            self._held_out: Iterable[Document] | None = HashSplit(documents, held_out, inside=True)
            self.fingerprint["held_out"] = held_out
        else:
            self._documents, self._held_out = documents, held_out
            if held_out is not None:
                self.fingerprint["held_out"] = digest_documents(held_out)

    def _sampling(self, phase: int) -> Sampling:
        return self.recipe.sampling(self.phases[phase].seq_length)

    def _stream(self, documents: Iterable[Document], sampling: Sampling, **options: Any) -> tf.data.Dataset:
        maker = InstanceMaker(tokenizer=self._tokenizer, settings=sampling, segment=self._segment)
        return stream(documents, maker, failed=self._failures.append, **options)

    def train(
        self, phase: int, *, skip: int, place: Sequence[int] | None, worker_rows: WorkerRows = ALL_ROWS
    ) -> tf.data.Dataset:
        start, size = Place(*place) if place else BEGINNING, self.recipe.hparams.batch_size
        self._places = [start]
        how: Any = {"workers": self._workers, "batch_size": size, "worker_rows": worker_rows}
        seed, visit = self.recipe.hparams.seed + phase, self._places.append
        instances = self._stream(
            self._documents, self._sampling(phase), seed=seed, start=start, visit=visit, **how
        )
        return instances.skip(
            worker_rows.count_before(skip, size) - worker_rows.count_before(start.instances, size)
        )

    def place(self, skip: int) -> Sequence[int] | None:
        """The shard of the instance."""
        before = [place for place in self._places if place.instances <= skip]
        del self._places[: len(before) - 1]  # the stream prefetches and appends at the same time
        return before[-1]

    def _all_ids(self) -> Iterator[np.ndarray]:
        for some in shards(self._documents, size=SAMPLE_BYTES, least=1):
            lines = [line for document in some for line in document]
            yield self._tokenizer.tokenize(tf.constant(lines, tf.string)).values.numpy()

    def _some(self, sampling: Sampling) -> list[Document]:
        """The first documents, for a sample."""
        least = sampler_of(sampling.sampler).documents
        return next(shards(self._documents, size=SAMPLE_BYTES, least=least), [])

    def counts(self, phase: int, columns: Mapping[str, np.ndarray]) -> TextCounts:
        sampling = self._sampling(phase)
        maker = InstanceMaker(tokenizer=self._tokenizer, settings=sampling, segment=self._segment)
        return maker.instances(self._some(sampling), seed=[self.recipe.hparams.seed]).counts

    def sample(self, phase: int) -> tf.data.Dataset:
        sampling, hparams = self._sampling(phase), self.recipe.hparams
        some = self._some(sampling)
        found = self._stream(some, sampling, seed=hparams.seed, epochs=1)
        if len(list(found.take(hparams.batch_size))) < hparams.batch_size:
            found = self._stream(self._documents, sampling, seed=hparams.seed, epochs=1)
        return found

    def held_out(self, phase: int) -> tf.data.Dataset | None:
        if self._held_out is None:
            return None
        sampling = dataclasses.replace(self._sampling(phase), dupe_factor=1)
        try:
            return self._stream(self._held_out, sampling, seed=HELD_OUT_SEED, epochs=1)
        except ValueError as error:
            raise BertKerasError(f"the held-out documents: {error}") from error

    @contextlib.contextmanager
    def reading(self, phase: int | None) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError:
            if not self._failures:
                raise
            raise self._failures[0] from None


class RecordInstances(InstanceSource):
    """TFRecord files, a folder or list for each phase; masks in them are kept."""

    def __init__(
        self,
        records: Sequence[RecordFiles],
        held_out: RecordFiles | None,
        *,
        recipe: Recipe,
        tokenizer: Tokenizer,
        **known: Any,
    ) -> None:
        hparams = recipe.hparams
        if isinstance(held_out, float):
            raise BertKerasError(
                "held_out is a fraction, but records have no documents to choose from; give other records to hold out."
            )
        if len(records) not in (1, len(hparams.phases)):
            raise BertKerasError(
                f"{len(records)} sets of records were given for {len(hparams.phases)} phases; give one set, or one per phase."
            )
        # By phase, and by None the held-out records.
        self._sets: dict[int | None, RecordFiles] = dict(enumerate(records))
        if held_out is not None:
            self._sets[None] = held_out
        self._in_order = {
            phase: read_records(source, tokenizer=tokenizer) for phase, source in self._sets.items()
        }
        self.lines = [
            line
            for phase, source in self._sets.items()
            for line in check_written(source, recipe, predictions=_predictions(self._in_order[phase]))
        ]
        lengths = [_length(self._in_order[phase]) for phase in range(len(records))]
        self.lines += check_lengths(recipe, lengths)
        if held_out is not None and (found := _length(self._in_order[None])) not in lengths:
            wanted = " or ".join(map(str, lengths))
            raise BertKerasError(
                f"the held-out records have {found} positions and the training records {wanted}; give held-out records of "
                f"{wanted}."
            )
        self.fingerprint = {"records": [digest_records(source) for source in records]}
        if held_out is not None:
            self.fingerprint["held_out"] = digest_records(held_out)
        super().__init__(recipe=recipe, tokenizer=tokenizer, lengths=lengths, **known)

    def train(
        self, phase: int, *, skip: int, place: Sequence[int] | None, worker_rows: WorkerRows = ALL_ROWS
    ) -> tf.data.Dataset:
        hparams = self.recipe.hparams
        how: Any = {"batch_size": hparams.batch_size, "worker_rows": worker_rows}
        return read_records(self._sets[phase], tokenizer=self._tokenizer, seed=hparams.seed, skip=skip, **how)

    def sample(self, phase: int) -> tf.data.Dataset:
        return self._in_order[phase]

    def _all_ids(self) -> Iterator[np.ndarray]:
        for phase in self._sets.keys() - {None}:
            for batch in self._in_order[phase].batch(SAMPLE).as_numpy_iterator():
                yield batch[INPUT_WORD_IDS][batch[INPUT_MASK] > 0]

    def held_out(self, phase: int) -> tf.data.Dataset | None:
        found = self._in_order.get(None)
        return found if found is not None and _length(found) == self.phases[phase].seq_length else None

    def check_held_out(self, phase: int, *, objectives: Sequence[Objective]) -> None:
        if (instances := self.held_out(phase)) is None:
            return
        with self.reading(None):
            columns = _columns(instances, SAMPLE)
        for one in objectives:
            try:
                list(one.check(columns))  # its warnings are about training
            except ValueError as error:
                raise BertKerasError(f"the held-out records {name_set(self._sets[None])}: {error}") from error

    @contextlib.contextmanager
    def reading(self, phase: int | None) -> Iterator[None]:
        try:
            yield
        # A UnicodeDecodeError quotes a record that is no tf.Example.
        except (tf.errors.DataLossError, UnicodeDecodeError) as error:
            raise _damaged(self._unreadable(phase)) from error
        except tf.errors.FailedPreconditionError as error:  # of `assert_cardinality`
            name = name_set(self._sets[phase])
            raise BertKerasError(
                f"{name} has another number of instances than its {MANIFEST} says; remove {name} and write it again."
            ) from error
        except tf.errors.InvalidArgumentError as error:
            name = self._unreadable(phase)
            if WRONG_IDS in str(error):
                raise _wrong_ids(f"{name}: there is a token with a larger id", self.vocab_size) from error
            if found := re.search(rf"{WRONG_VALUES} (\w+)", str(error)):
                raise BertKerasError(
                    f"{name}: a value of {found[1]} is out of range; give other files."
                ) from error
            if DAMAGED in str(error):
                raise _damaged(name) from error
            if PARSING not in str(error):
                raise
            raise BertKerasError(
                f"{name}: a record's features differ in length from the first record's; give files with one length."
            ) from error

    def wrong(self, phase: int) -> str:
        return f"{self._unreadable(phase)}: "

    def _unreadable(self, phase: int | None) -> str:
        """The first file of a set that cannot be trained on: TensorFlow's errors do not name it. Reads several files again."""
        files, wanted = list_record_files(self._sets[phase]), None
        if len(files) == 1:
            return str(files[0])
        for file in files:
            try:
                read = read_records(file)
                wanted = wanted or read.element_spec
                if read.element_spec != wanted:
                    return str(file)
                for features in read.batch(SAMPLE):
                    _check_values(features, vocab_size=self.vocab_size)
            except (tf.errors.OpError, UnicodeDecodeError, BertKerasError):
                return str(file)
        return name_set(self._sets[phase])


def _length(instances: tf.data.Dataset) -> int:
    return int(instances.element_spec[INPUT_WORD_IDS].shape[0])


def _predictions(instances: tf.data.Dataset) -> int | None:
    """The masked positions of each record; None without masks."""
    spec = instances.element_spec
    return int(spec[MASKED_LM_IDS].shape[0]) if MASKED_LM_IDS in spec else None


# -----------------------------------------------------------------------------------------------------------
# Batches, and the check of a sample


def make_batches(
    instances: tf.data.Dataset,
    *,
    objectives: Sequence[Objective],
    vocab_size: int,
    batch_size: int,
    seed: int,
    start: int = 0,
    drop_remainder: bool = True,
    worker_rows: WorkerRows = ALL_ROWS,
) -> tf.data.Dataset:
    """Batches for `fit`. Their masks depend on (seed, number of the batch); `start` is the first number.

    worker_rows: the rows that the instances are of each batch, whose size is `batch_size`

    Reading them raises InvalidArgumentError, with WRONG_IDS in its message, for an id of `vocab_size` or more, and with
    WRONG_VALUES and the feature's name for a negative number, a mask, type or label over 1 or a position outside of the sequence.
    """

    def labelled(number: tf.Tensor, features: dict[str, tf.Tensor]) -> Any:
        _check_values(features, vocab_size=vocab_size)
        return label(features, objectives=objectives, seed=tf.stack([seed, number]), worker_rows=worker_rows)

    size = len(worker_rows.rows(batch_size))
    numbered = instances.batch(size, drop_remainder=drop_remainder).enumerate(start)
    made = numbered.map(labelled, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return made.prefetch(tf.data.AUTOTUNE)


def _check_values(features: dict[str, tf.Tensor], *, vocab_size: int) -> None:
    """In graph: each number of a batch below its limit, and not negative."""
    ids = {INPUT_WORD_IDS: vocab_size, MASKED_LM_IDS: vocab_size}
    length = tf.shape(features[INPUT_WORD_IDS])[1]
    limits = ids | {INPUT_MASK: 2, INPUT_TYPE_IDS: 2, NEXT_SENTENCE_LABEL: 2, MASKED_LM_POSITIONS: length}
    for name, limit in limits.items():
        if name in features:
            wrong = f"{WRONG_VALUES} {name}"
            tf.debugging.assert_less(features[name], limit, message=WRONG_IDS if name in ids else wrong)
            tf.debugging.assert_non_negative(features[name], message=wrong)


WRONG_IDS = "an id is too large"
WRONG_VALUES = "a value is out of range:"
PARSING = "ParseExample"  # the op's name in parsing errors
DAMAGED = "Could not parse example"  # no protocol buffer


def _damaged(name: str) -> BertKerasError:
    return BertKerasError(f"{name}: a record is damaged or truncated; give complete files.")


def _wrong_ids(found: str, vocab_size: int) -> BertKerasError:
    return BertKerasError(
        f"{found} and vocab_size is {vocab_size}; give the vocabulary and the configuration of the records."
    )


def _columns(instances: tf.data.Dataset, count: int) -> dict[str, np.ndarray]:
    """The first `count` instances, or all, as arrays [N, ...]; no arrays without instances."""
    rows = list(instances.take(count).as_numpy_iterator())
    return {name: np.stack([row[name] for row in rows]) for name in instances.element_spec if rows}


def _count_tokens(columns: Mapping[str, np.ndarray], vocab_size: int) -> np.ndarray:
    """The number of each token in instances, int [V]; written masks count as the tokens that they hide."""
    ids = columns[INPUT_WORD_IDS].copy()
    if MASKED_LM_IDS in columns:
        rows, places = np.nonzero(columns[MASKED_LM_WEIGHTS])
        at = columns[MASKED_LM_POSITIONS][rows, places].clip(0, ids.shape[1] - 1)
        ids[rows, at] = columns[MASKED_LM_IDS][rows, places]
    # Numbers out of range, which are clipped here, are refused where batches are made, with the file that has them.
    return np.bincount(ids[columns[INPUT_MASK] > 0].clip(0, vocab_size - 1), minlength=vocab_size)


def check_data(
    source: InstanceSource, phase: int, *, objectives: Sequence[Objective], batch_size: int
) -> Iterator[str]:
    """Checks a sample of a phase's instances. Yields warnings; raises ValueError for data that cannot be used for training."""
    with source.reading(phase):
        columns = _columns(source.sample(phase), max(SAMPLE, batch_size))
    if (found := len(columns.get(INPUT_WORD_IDS, ()))) < batch_size:
        raise BertKerasError(
            f"there are {found} instances, fewer than a batch of {batch_size}; give more text or a smaller batch."
        )
    highest = max(int(columns[name].max()) for name in (INPUT_WORD_IDS, MASKED_LM_IDS) if name in columns)
    if highest >= source.vocab_size:
        raise _wrong_ids(f"{source.wrong(phase)}there is a token of id {highest}", source.vocab_size)
    source.unigrams[phase] = _count_tokens(objectives[0].counted(columns), source.vocab_size)
    lone = masks_whole_words(source.recipe) and WORD_STARTS not in columns
    for line in source.counts(phase, columns).warnings(whole_word=lone, given="the sampled"):
        yield f"warning: {line}"
    for one in objectives:
        yield from one.check(columns)
    if (
        source.recipe.own_settings
    ):  # what is wrong with an objective of a user's own is found before a folder is made
        few = {name: tf.constant(values[:batch_size]) for name, values in columns.items()}
        label(few, objectives=objectives, seed=tf.zeros([2], tf.int64))
