"""The instances of any step of a pre-training: from text, sampled anew in every epoch, or from TFRecord files."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_WORD_IDS, MASKED_LM_IDS, NEXT_SENTENCE_LABEL
from bert_keras.files import digest, digest_of_file
from bert_keras.objectives import (
    LeftToRight,
    Objective,
    SentencePair,
    label,
)
from bert_keras.settings import Masking
from bert_keras.text.tokenizers import Tokenizer
from tasks.pretraining.instances import BEGINNING, SAMPLERS, Place, Segmenter, Text, shards, stream
from tasks.pretraining.recipes import FIELDS, Recipe
from tasks.pretraining.records import (
    LABEL_RATE_TOLERANCE,
    RecordFiles,
    check_batch,
    digest_of_documents,
    listed,
    manifest_of,
    read_manifest,
    read_records,
)
from tasks.settings import Sampling

SAMPLE = 1000  # instances that are looked at before training
SAMPLE_BYTES = 200_000  # of text that they are made of, at least
HELD_OUT_SEED = 20181011  # of the held-out instances and masks, whatever the run's seed: runs can be compared


class Phase(NamedTuple):
    """Training at one length.

    start, end: steps
    """

    seq_length: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Share:
    """The documents of one side of a split by their own hash, so that the split is the same on every start."""

    documents: Iterable[Text]
    share: float
    inside: bool

    def __iter__(self) -> Iterator[Text]:
        for document in self.documents:
            drawn = hashlib.sha256("\n".join(document).encode()).digest()[:8]
            if (int.from_bytes(drawn) < self.share * 2**64) == self.inside:
                yield document


class Source:
    """Where instances come from.

    phases: of the training
    about: what identifies the data
    """

    phases: list[Phase]
    about: dict[str, Any]

    def train(self, phase: int, *, skip: int, place: Sequence[int] | None) -> tf.data.Dataset:
        """A phase's instances without end, from the one numbered `skip`; `place` as it was returned for that number."""
        raise NotImplementedError

    def place(self, skip: int) -> Sequence[int] | None:
        """What makes it cheap to start at that instance."""
        return None

    def sample(self, phase: int) -> tf.data.Dataset:
        """Some of a phase's instances, or all where there are few."""
        raise NotImplementedError

    def held_out(self, phase: int) -> tf.data.Dataset | None:
        """Instances of a phase's length, always the same; None where there are none of it."""
        raise NotImplementedError

    def reading(self, phase: int | None, *, vocab_size: int) -> contextlib.AbstractContextManager[None]:
        """Raises ValueError for what TensorFlow finds wrong as a phase's instances are read, or those held out (None)."""
        return contextlib.nullcontext()


class Documents(Source):
    """Text: instances are sampled anew in every epoch."""

    def __init__(
        self,
        documents: Iterable[Text],
        held_out: float | Iterable[Text] | None,
        *,
        recipe: Recipe,
        tokenizer: Tokenizer,
        segment: Segmenter | None,
    ) -> None:
        self._recipe, hparams = recipe, recipe.hparams
        self._failures: list[Exception] = []
        self._make = functools.partial(
            stream, tokenizer=tokenizer, segment=segment, failed=self._failures.append
        )
        self._documents: Iterable[Text] = documents
        self._held_out = None if isinstance(held_out, float) else held_out
        if isinstance(held_out, float):
            if not 0 < held_out < 1:
                raise BertKerasError(
                    f"held_out is {held_out}; give a share of the documents between 0 and 1."
                )
            self._documents = Share(documents, held_out, inside=False)
            self._held_out = Share(documents, held_out, inside=True)
        ends = hparams.phase_steps(len(hparams.phases))
        lengths = [length for length, _ in hparams.phases]
        self.phases = [Phase(*one) for one in zip(lengths, [0, *ends], ends, strict=False)]
        self.about = {"text": digest_of_documents(documents)}
        if held_out is not None:
            self.about["held_out"] = (
                held_out if isinstance(held_out, float) else digest_of_documents(held_out)
            )
        self._places: list[Place] = []

    def train(self, phase: int, *, skip: int, place: Sequence[int] | None) -> tf.data.Dataset:
        start = Place(*place) if place else BEGINNING
        self._places = [start]
        instances = self._make(
            self._documents,
            settings=self._recipe.sampling(self.phases[phase].seq_length),
            seed=self._recipe.hparams.seed + phase,
            start=start,
            visit=self._places.append,
        )
        return instances.skip(skip - start.instances)

    def place(self, skip: int) -> Sequence[int] | None:
        """The shard that the instance is in."""
        before = [place for place in self._places if place.instances <= skip]
        del self._places[: len(before) - 1]  # the stream runs ahead and appends meanwhile
        return before[-1]

    def sample(self, phase: int) -> tf.data.Dataset:
        sampling = self._recipe.sampling(self.phases[phase].seq_length)
        least = SAMPLERS[sampling.sampler].documents
        some = next(shards(self._documents, size=SAMPLE_BYTES, least=least), [])
        found = self._make(some, settings=sampling, seed=self._recipe.hparams.seed, epochs=1)
        if len(list(found.take(self._recipe.hparams.batch_size))) < self._recipe.hparams.batch_size:
            found = self._make(self._documents, settings=sampling, seed=self._recipe.hparams.seed, epochs=1)
        return found

    def held_out(self, phase: int) -> tf.data.Dataset | None:
        if self._held_out is None:
            return None
        sampling = dataclasses.replace(self._recipe.sampling(self.phases[phase].seq_length), dupe_factor=1)
        try:
            return self._make(self._held_out, settings=sampling, seed=HELD_OUT_SEED, epochs=1)
        except ValueError as error:
            raise BertKerasError(f"of the held-out documents: {error}") from error

    @contextlib.contextmanager
    def reading(self, phase: int | None, *, vocab_size: int) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError:
            if not self._failures:
                raise
            raise self._failures[0] from None


class RecordFileSource(Source):
    """TFRecord files, a folder or list for each phase; their masks, where they have some, are kept."""

    def __init__(
        self,
        records: Sequence[RecordFiles],
        held_out: RecordFiles | None,
        *,
        recipe: Recipe,
        tokenizer: Tokenizer,
    ) -> None:
        hparams = recipe.hparams
        if isinstance(held_out, float):
            raise BertKerasError(
                "held_out is a share and records have no documents to draw; give files of other instances."
            )
        if len(records) not in (1, len(hparams.phases)):
            raise BertKerasError(
                f"{len(records)} sets of records were given for {len(hparams.phases)} phases; give one for all, or one for each."
            )
        self._recipe = recipe
        self._read = [functools.partial(read_records, source, tokenizer=tokenizer) for source in records]
        self._held_out = None if held_out is None else read_records(held_out, tokenizer=tokenizer)
        for source, read in zip(records, self._read, strict=True):
            _check_written(source, recipe, masked=MASKED_LM_IDS in read().element_spec)
        self._sets: dict[int | None, RecordFiles] = dict(enumerate(records))
        if held_out is not None:
            self._sets[None] = held_out
        lengths = [_length(read()) for read in self._read]
        if self._held_out is not None and _length(self._held_out) not in lengths:
            wanted = " or ".join(map(str, lengths))
            raise BertKerasError(
                f"the held-out records have {_length(self._held_out)} positions and those trained on {wanted}; give held-out "
                f"records of {wanted}."
            )
        ends = hparams.phase_steps(len(records))
        self.phases = [Phase(*one) for one in zip(lengths, [0, *ends], ends, strict=False)]
        self.about = {"records": [_digest_of_files(source) for source in records]}
        if held_out is not None:
            self.about["held_out"] = _digest_of_files(held_out)

    def train(self, phase: int, *, skip: int, place: Sequence[int] | None) -> tf.data.Dataset:
        return self._read[phase](seed=self._recipe.hparams.seed, skip=skip)

    def sample(self, phase: int) -> tf.data.Dataset:
        return self._read[phase]()

    def held_out(self, phase: int) -> tf.data.Dataset | None:
        if self._held_out is None or _length(self._held_out) != self.phases[phase].seq_length:
            return None
        return self._held_out

    @contextlib.contextmanager
    def reading(self, phase: int | None, *, vocab_size: int) -> Iterator[None]:
        name = _name(self._sets[phase])
        try:
            yield
        except tf.errors.DataLossError as error:
            raise BertKerasError(f"{name}: a record is damaged or cut short; give whole files.") from error
        except tf.errors.InvalidArgumentError as error:
            if WRONG_IDS in str(error):
                raise _wrong_ids(f"{name}: there is a token with a larger id", vocab_size) from error
            if PARSING not in str(error):
                raise
            raise BertKerasError(
                f"{name}: a record has features of other lengths than the first; give files of one form."
            ) from error


def _check_written(source: RecordFiles, recipe: Recipe, *, masked: bool) -> None:
    """Raises ValueError where a recipe wants instances, or masks, that are not those of the files."""
    file = manifest_of(source)
    made = {} if file is None else read_manifest(file.parent)
    made |= made.get("masking") or {}
    kinds = (Sampling, Masking) if masked else (Sampling,)
    for name, value in recipe.changes.items():
        if FIELDS.get(name) in kinds and (name not in made or made[name] != value):
            known = f" ({name} {json.dumps(made[name])})" if name in made else ""
            raise BertKerasError(
                f"{name} is {json.dumps(value)}, and {_name(source)} is written already{known}; leave it out, or write "
                "instances with it."
            )
    sampler = recipe.sampling(128).sampler
    if "sentence_pair" in recipe.objectives and made.get("sampler", sampler) != sampler:
        raise BertKerasError(
            f"the labels of {_name(source)} are of the sampler {made['sampler']}, and the recipe's is {sampler}; give instances "
            f"of that, or set sampler={made['sampler']}."
        )


def _length(instances: tf.data.Dataset) -> int:
    return int(instances.element_spec[INPUT_WORD_IDS].shape[0])


def _name(source: RecordFiles) -> str:
    """What errors call a set."""
    files = [source] if isinstance(source, str | pathlib.Path) else source
    return str(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def _digest_of_files(source: RecordFiles) -> str:
    """SHA-256 of all files, and of a folder's manifest, which has the digests of text and vocabulary."""
    manifest = manifest_of(source)
    files = listed(source) if manifest is None else sorted(manifest.parent.glob("*.tfrecord*"))
    return digest(digest_of_file(file) for file in (*files, *([] if manifest is None else [manifest])))


def batches_of(
    instances: tf.data.Dataset,
    *,
    objectives: Sequence[Objective],
    vocab_size: int,
    batch_size: int,
    seed: int,
    start: int = 0,
    drop_remainder: bool = True,
) -> tf.data.Dataset:
    """What `fit` takes. Masks are those of (seed, number of the batch, counted from `start`).

    Reading it raises InvalidArgumentError, with WRONG_IDS in it, on a token whose id is not under `vocab_size`.
    """

    def labelled(number: tf.Tensor, features: dict[str, tf.Tensor]) -> Any:
        for name in {INPUT_WORD_IDS, MASKED_LM_IDS} & {*features}:
            tf.debugging.assert_less(features[name], vocab_size, message=WRONG_IDS)
        return label(features, objectives=objectives, seed=tf.stack([seed, number]))

    numbered = instances.batch(batch_size, drop_remainder=drop_remainder).enumerate(start)
    made = numbered.map(labelled, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return made.prefetch(tf.data.AUTOTUNE)


WRONG_IDS = "an id is too large"
PARSING = "ParseExample"  # the op that an error of parsing names


def _wrong_ids(found: str, vocab_size: int) -> BertKerasError:
    return BertKerasError(
        f"{found} and vocab_size is {vocab_size}; give the vocabulary and the configuration that the records were "
        "made with."
    )


def check_data(
    source: Source, phase: int, *, objectives: Sequence[Objective], config: BertConfig, batch_size: int
) -> Iterator[str]:
    """Looks at some instances. Yields warnings; raises ValueError on what cannot be trained on."""
    reading = functools.partial(source.reading, phase, vocab_size=config.vocab_size)
    with reading():
        sample = source.sample(phase)
    if MASKED_LM_IDS in sample.element_spec and any(isinstance(one, LeftToRight) for one in objectives):
        raise BertKerasError(
            "these records have masks, and left to right reads whole text; write records without masks."
        )
    with reading():
        rows = list(sample.take(max(SAMPLE, batch_size)).as_numpy_iterator())
    check_batch(len(rows), batch_size=batch_size)
    names = [name for name in (INPUT_WORD_IDS, MASKED_LM_IDS) if name in sample.element_spec]
    highest = max(int(row[name].max()) for row in rows for name in names)
    if highest >= config.vocab_size:
        raise _wrong_ids(f"there is a token of id {highest}", config.vocab_size)
    if any(isinstance(one, SentencePair) for one in objectives):
        rate = float(np.mean([row[NEXT_SENTENCE_LABEL] for row in rows]))
        if rate in (0.0, 1.0):
            raise BertKerasError(
                f"all of {len(rows):,} labels of pairs are {rate:.0f}, and both are wanted; give documents of several "
                f"lines, ended by a blank line, and lines shorter than seq_length, {source.phases[phase].seq_length}."
            )
        if abs(rate - 0.5) > LABEL_RATE_TOLERANCE:
            yield (
                f"warning: {rate:.1%} of {len(rows):,} labels of pairs are 1, wanted is about 50 %; documents of few lines do "
                "that: separate only documents by blank lines, or set strict=true"
            )
