"""Pre-training: text or files of instances in; a run directory out, which fine-tuning starts from.

    documents -> tasks/pretraining/instances.py ----
                                        |-> label(objectives) -> Pretrainer.fit -> RUN
    TFRecord files -> tasks/pretraining/records.py -

A recipe is a row of RECIPES: its objectives, and settings of the model, the instances, the masks and the training in one flat
namespace, `SETTINGS`. The batch of a step is a function of the seed and the step alone.

RUN is `config.json`, `vocab.txt`, `model.safetensors` with the heads, `task.json` (fill-mask, where a head can), `results.json`
(measures, baselines, history), `curves.png`, `logs/` for TensorBoard and `checkpoints/`
(tasks/training/saver.py). ELECTRA's generator has such a folder inside: `generator/`.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import pathlib
import sys
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, INPUT_WORD_IDS, MASKED_LM_IDS, NEXT_SENTENCE_LABEL
from bert_keras.objectives import (
    ElectraPretrainer,
    LeftToRight,
    MaskedLM,
    Objective,
    Pretrainer,
    ReplacedTokens,
    SentencePair,
    generator_config,
    label,
)
from bert_keras.optimization import LAMB, AdamW, WarmupLinearDecay
from bert_keras.paths import path_of
from bert_keras.text.masking import Masking, Pieces
from bert_keras.text.preprocessing import Preprocessor, pad_batches
from bert_keras.text.tokenizer import Tokenizer
from tasks.files import write_json
from tasks.fill_mask import FillMask
from tasks.pretraining.instances import BEGINNING, SAMPLERS, Place, Segmenter, Text, shards, stream
from tasks.pretraining.instances import Settings as Sampling
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
from tasks.task import check_settings
from tasks.training.saver import (
    LOGS,
    RESULTS_FILE,
    Saver,
    check_output,
    check_save_every,
    digest_of_tensors,
    prepare_output,
)
from tasks.training.train import (
    check_sizes,
    differ_between_replicas,
    rows_for,
    save_task,
    save_weights,
    seed_states,
    strategy,
)

CURVES, GENERATOR, SNAPSHOTS = "curves.png", "generator", "snapshots"
SAMPLE = 1000  # instances that are looked at before training
SAMPLE_BYTES = 200_000  # of text that they are made of, at least
HELD_OUT_SEED = 20181011  # of the held-out instances and masks, whatever the run's seed: runs can be compared
HELD_OUT_BATCH = 32
LONG_STEP = 2.0  # in learning rates: longer steps are warned of

OPTIMIZERS = {"adamw": AdamW, "lamb": LAMB}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainHparams:
    """The settings of one pre-training (defaults: Devlin et al. 2019, A.2).

    phases: lengths in wordpieces, and the share of the steps at each, in order
    max_predictions: the most asked of a text; None: the least that never cuts the share of a phase's length
    log_every, eval_every: steps; what is logged is the mean over the steps since the last time
    held_out_instances: the most that are evaluated on
    replaced_weight, generator_share: of ELECTRA; the discriminator's weight, and the generator's width
    """

    batch_size: int = 256  # instances, over all replicas
    steps: int = 1_000_000
    learning_rate: float = 1e-4
    optimizer: str = "adamw"
    warmup_proportion: float = 0.01  # of all steps: 10,000
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    beta_2: float = 0.999
    bias_correction: bool = False
    phases: tuple[tuple[int, float], ...] = ((128, 0.9), (512, 0.1))
    max_predictions: int | None = None
    seed: int = 12345
    log_every: int = 100
    eval_every: int = 1000
    held_out_instances: int = 2000
    replaced_weight: float = 50.0
    generator_share: float = 0.25

    def __post_init__(self) -> None:
        good = all(len(phase) == 2 and phase[0] >= 5 and phase[1] > 0 for phase in self.phases)
        shares = sum(phase[1] for phase in self.phases) if good else 0
        wanted = {
            name: (getattr(self, name) >= 1, "at least 1")
            for name in ("batch_size", "steps", "log_every", "eval_every", "held_out_instances")
        } | {
            "learning_rate": (self.learning_rate > 0, "over 0"),
            "optimizer": (self.optimizer in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
            "warmup_proportion": (0 <= self.warmup_proportion <= 1, "from 0 to 1"),
            "weight_decay": (self.weight_decay >= 0, "at least 0"),
            "clip_norm": (self.clip_norm is None or self.clip_norm > 0, "over 0, or nothing"),
            "beta_2": (0 <= self.beta_2 < 1, "from 0 to under 1"),
            "phases": (abs(shares - 1) < 1e-6, "pairs of a length and a share of the steps, which sum to 1"),
            "max_predictions": (self.max_predictions is None or self.max_predictions >= 1, "at least 1"),
            "seed": (0 <= self.seed < 2**31, "from 0 to 2**31 - 1"),
            "replaced_weight": (self.replaced_weight > 0, "over 0"),
            "generator_share": (0 < self.generator_share <= 1, "over 0, at most 1"),
        }
        check_settings(self, wanted)

    @property
    def warmup_steps(self) -> int:
        """Steps in which the rate rises."""
        return int(self.steps * self.warmup_proportion)

    def schedule(self) -> WarmupLinearDecay:
        """The rate of each step, over all phases."""
        return WarmupLinearDecay(self.learning_rate, total_steps=self.steps, warmup_steps=self.warmup_steps)

    def longest_step(self) -> float:
        """The longest step of AdamW where a gradient stays the same, in `learning_rate`; over 1 without bias correction."""
        if self.optimizer != "adamw" or self.bias_correction:
            return 1.0
        done = np.arange(self.steps, dtype=np.float32)
        rates = np.asarray(self.schedule()(done)) / self.learning_rate
        beta_1 = 0.9  # AdamW's
        return float(np.max(rates * (1 - beta_1 ** (done + 1)) / np.sqrt(1 - self.beta_2 ** (done + 1))))

    def phase_steps(self, count: int) -> list[int]:
        """The step at which each phase ends, if there are so many phases."""
        shares = [share for _, share in self.phases] if count > 1 else [1.0]
        return [round(self.steps * sum(shares[: i + 1])) for i in range(count)]


# The one namespace of settings: names to the class that has the field. A phase decides the length of instances, and with the
# training's `max_predictions` that of masks, which the last class here overrides.
_FIELDS = {
    field.name: kind
    for kind in (BertConfig, Sampling, Masking, PretrainHparams)
    for field in dataclasses.fields(kind)
    if (kind, field.name) != (Sampling, "seq_length")
}
_TYPES = {name: typing.get_type_hints(kind)[name] for name, kind in _FIELDS.items()}
# seq_length: one phase of that length; size: a key of bert_keras.config.SIZES.
_SHORT = {"size": str, "seq_length": int}
SETTINGS = tuple(sorted({*_FIELDS, *_SHORT}))


def _typed(name: str, value: Any) -> Any:
    """The value as its field wants it. Raises ValueError on another type."""
    wanted = _SHORT.get(name, _TYPES.get(name))
    if name == "phases":
        try:
            return tuple((int(length), float(share)) for length, share in value)
        except (TypeError, ValueError) as error:
            raise BertKerasError(f"phases is {value!r}; give [[length, share], ...].") from error
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not any(type(value) is kind for kind in kinds):
        named = " or ".join("nothing" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise BertKerasError(f"{name} is {value!r}; give {named}.")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to pre-train.

    objectives: keys of OBJECTIVES; with "replaced_token" the masked LM is learned by a generator beside the encoder
    settings: by name, any of SETTINGS, where they differ from the defaults of their classes
    changes: settings that a user gave; they count before `settings` and, where training starts from a checkpoint, alone decide
        what of its configuration is another
    """

    objectives: tuple[str, ...]
    settings: Mapping[str, Any]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def changed(self, **changes: Any) -> "Recipe":
        """The recipe with other settings. Raises ValueError on a name that is none of SETTINGS, or a wrong value."""
        if unknown := [name for name in changes if name not in SETTINGS]:
            raise BertKerasError(
                f"there is no setting {', '.join(unknown)}; the settings are {', '.join(SETTINGS)}."
            )
        typed = {name: _typed(name, value) for name, value in changes.items()}
        if {"seq_length", "phases"} <= {*typed}:
            raise BertKerasError(
                "seq_length is one phase of that length; give seq_length or phases, not both."
            )
        if "seq_length" in typed:
            typed["phases"] = ((typed.pop("seq_length"), 1.0),)
        found = dataclasses.replace(self, changes={**self.changes, **typed})
        _ = found.hparams, found.sampling(128), found.masking(128)  # which raise on a wrong value
        return found

    def _of(self, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if _FIELDS.get(name) is kind}

    @property
    def all_settings(self) -> dict[str, Any]:
        """The row's settings with the user's before them."""
        return {**self.settings, **self.changes}

    @property
    def hparams(self) -> PretrainHparams:
        """How to train."""
        return PretrainHparams(**self._of(PretrainHparams, self.all_settings))

    def sampling(self, seq_length: int) -> Sampling:
        """How instances of a length are made of documents; one pass is an epoch, since masks are new in each."""
        return Sampling(**({"dupe_factor": 1} | self._of(Sampling, self.all_settings)), seq_length=seq_length)

    def masking(self, seq_length: int) -> Masking:
        """How texts of a length are masked."""
        made = Masking(**self._of(Masking, self.all_settings))
        most = self.hparams.max_predictions or max(1, math.ceil(made.share * seq_length))
        return dataclasses.replace(made, max_predictions=most)

    def config(self, *, vocab_size: int, source: BertConfig | None = None) -> BertConfig:
        """The encoder's configuration: that of a checkpoint where there is one, else of `size`.

        Raises ValueError where both are given.
        """
        if source is not None:
            if "size" in self.changes:
                raise BertKerasError("size is that of the checkpoint; leave one of the two out.")
            return dataclasses.replace(source, **self._of(BertConfig, self.changes))
        fields = {"vocab_size": vocab_size} | self._of(BertConfig, self.all_settings)
        return BertConfig.named(self.all_settings.get("size", "base"), **fields)


OBJECTIVES: dict[str, Callable[[Pieces, Masking], Objective]] = {
    "masked_lm": lambda pieces, masking: MaskedLM(pieces=pieces, masking=masking),
    "left_to_right": lambda pieces, masking: LeftToRight(),
    "sentence_pair": lambda pieces, masking: SentencePair(),
    "replaced_token": lambda pieces, masking: ReplacedTokens(),
}

# Two phases: 128 positions for 90 % of the steps, 512 for the rest (Devlin et al. 2019, A.2), where at most 20 and 77 are asked.
RECIPES = {
    # Devlin et al. 2019, A.2: the defaults of PretrainHparams.
    "bert": Recipe(objectives=("masked_lm", "sentence_pair"), settings={}),
    # Devlin et al. 2019, sec. 5.1: the same pairs, their label unused.
    "bert-no-nsp": Recipe(objectives=("masked_lm",), settings={}),
    "ltr-no-nsp": Recipe(objectives=("left_to_right",), settings={"causal": True}),
    # Liu et al. 2019, sec. 3 and 4, and table 9 (base); positions, types, gelu, epsilon and bias correction: fairseq.
    "roberta": Recipe(
        objectives=("masked_lm",),
        settings={
            "sampler": "full_sentences",
            "short_seq_prob": 0.0,
            "phases": ((512, 1.0),),
            "batch_size": 8192,
            "steps": 500_000,
            "learning_rate": 6e-4,
            "warmup_proportion": 0.048,  # 24,000 steps
            "beta_2": 0.98,
            "clip_norm": None,
            "bias_correction": True,
            "type_vocab_size": 1,
            "position_offset": 1,  # as fairseq counts: from the id of padding on, which is 0 here and 1 there
            "max_positions": 513,
            "activation": "gelu_erf",
            "norm_epsilon": 1e-5,
        },
    ),
    # Lan et al. 2020, sec. 3.1 and 4.1; warm-up of 3,125 steps: google-research/albert README and run_pretraining.py.
    "albert": Recipe(
        objectives=("masked_lm", "sentence_pair"),
        settings={
            "sampler": "sentence_order",
            "whole_word": True,
            "max_ngram": 3,
            "phases": ((512, 1.0),),
            "batch_size": 4096,
            "steps": 125_000,
            "learning_rate": 1.76e-3,
            "warmup_proportion": 0.025,
            "optimizer": "lamb",
            "embedding_size": 128,
            "share_layers": True,
        },
    ),
    # Clark et al. 2020, table 6 (small); google-research/electra configure_pretraining.py. 85 % hidden: its pretrain_helpers.py;
    # the erf gelu: its modeling.py.
    "electra": Recipe(
        objectives=("masked_lm", "replaced_token"),
        settings={
            "size": "L-12_H-256",
            "sampler": "contiguous",
            "hide": 0.85,
            "keep": 0.15,
            "replace": 0.0,
            "phases": ((128, 1.0),),
            "batch_size": 128,
            "learning_rate": 5e-4,
            "embedding_size": 128,
            "activation": "gelu_erf",
        },
    ),
}


# -----------------------------------------------------------------------------------------------------------
# Data: instances of any step


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


class _Source:
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


class _Documents(_Source):
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


class _RecordFiles(_Source):
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
        if _FIELDS.get(name) in kinds and (name not in made or made[name] != value):
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
    """Of a folder its manifest, which has the text's and the vocabulary's; of files the files."""
    manifest = manifest_of(source)
    found = hashlib.sha256()
    for file in listed(source) if manifest is None else [manifest]:
        with open(file, "rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()


def _batches(
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


def _check_data(
    source: _Source, phase: int, *, objectives: Sequence[Objective], config: BertConfig, batch_size: int
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


# -----------------------------------------------------------------------------------------------------------
# Model


class _CountsTokens(Pretrainer):
    """A Pretrainer that logs how many tokens it read, padding not counted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tokens = keras.metrics.Sum(name="tokens")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        self.tokens.update_state(x[INPUT_MASK])
        return super().compute_metrics(x, y, y_pred, sample_weight)


class _Electra(_CountsTokens, ElectraPretrainer):
    pass


def _model(recipe: Recipe, config: BertConfig, objectives: Sequence[Objective]) -> Pretrainer:
    """Compiled, model and optimizer built; make it in the strategy's scope."""
    hparams = recipe.hparams
    wanted = tuple(dict.fromkeys(one.reads for one in objectives))
    encoder = BertEncoder(config, outputs=wanted)
    if "replaced_token" in recipe.objectives:
        masked_lm = next(one for one in objectives if isinstance(one, MaskedLM))
        generator = generator_config(config, share=hparams.generator_share)
        weight = hparams.replaced_weight
        model: Pretrainer = _Electra(encoder, masked_lm, generator=generator, replaced_weight=weight)
    else:
        model = _CountsTokens(encoder, objectives)
    optimizer = OPTIMIZERS[hparams.optimizer](
        hparams.schedule(),
        weight_decay=hparams.weight_decay,
        beta_2=hparams.beta_2,
        clip_norm=hparams.clip_norm,
        bias_correction=hparams.bias_correction,
    )
    optimizer.build(model.trainable_variables)
    # XLA is no gain on CPU, and fails under MirroredStrategy.
    model.compile(optimizer, jit_compile=False)
    return model


def _heads(model: Pretrainer, encoder: BertEncoder) -> dict[str, keras.layers.Layer]:
    """The heads that stand on this encoder."""
    return {name: head for name, head in model.heads.items() if model.encoders[name] is encoder}


def _save(
    path: pathlib.Path, model: Pretrainer, preprocess: Preprocessor, *, start: checkpoints.Checkpoint | None
) -> None:
    """A run directory's weights, and the generator's where there is one; poolers only where they are not random."""
    encoders = {path: model.encoder}
    if isinstance(model, ElectraPretrainer):
        encoders[path / GENERATOR] = model.generator
    masked = any(isinstance(one, MaskedLM) for one in model.objectives)
    for folder, encoder in encoders.items():
        heads = _heads(model, encoder)
        known = encoder.pooler.trainable or (
            encoder is model.encoder and start is not None and "pooler/kernel" in start.tensors
        )
        without = () if known else ("pooler",)
        save_weights(folder, preprocess.tokenizer, encoder, heads, without=without)
        if masked and MaskedLM.name in heads:
            save_task(folder, FillMask(), preprocess)


# -----------------------------------------------------------------------------------------------------------
# Training


class _Watch(keras.callbacks.Callback):
    """Logs, measures the held-out instances and keeps snapshots; raises ValueError on a loss that is not a number.

    history: a row for every time something was logged: step, rate, tokens_per_second, measures; those of the held-out
        instances have `held_out_` before their names
    """

    def __init__(
        self,
        path: pathlib.Path,
        hparams: PretrainHparams,
        *,
        snapshots: Sequence[int],
        save: Callable[..., None],
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__()
        self._hparams, self._snapshots, self._save, self._path = hparams, snapshots, save, path
        self._log_line = log
        self._writer = tf.summary.create_file_writer(str(path / LOGS))
        self.history: list[dict[str, float]] = []
        self.step = 0
        self.held_out: tf.data.Dataset | None = None
        self._since = time.monotonic()

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self._since = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.step += 1
        last = batch + 1 == self.params["steps"]  # of the phase
        loss = float((logs or {})["loss"])
        if not math.isfinite(loss):
            raise BertKerasError(
                f"the loss is {loss} at step {self.step}; give a lower learning_rate or a longer warm-up."
            )
        evaluates = self.held_out is not None and (last or self.step % self._hparams.eval_every == 0)
        if last or evaluates or self.step % self._hparams.log_every == 0:
            # The logs of a batch are a mean of what each replica saw; the model has the measures of all.
            self._log({name: float(value) for name, value in self.model.get_metrics_result().items()})
            if evaluates:
                self._evaluate()
            self.model.reset_metrics()
            self._since = time.monotonic()
        if self.step in self._snapshots:
            self._save(self._path / SNAPSHOTS / str(self.step))

    def _log(self, measures: dict[str, float]) -> None:
        seconds = time.monotonic() - self._since
        rate = float(self._hparams.schedule()(self.step - 1))
        tokens = measures.pop("tokens")
        self._add({"learning_rate": rate, "tokens_per_second": tokens / seconds, **measures})

    def _add(self, measures: dict[str, float]) -> None:
        self.history.append({"step": self.step, **measures})
        figures = (f"{name} {value:.4g}" for name, value in measures.items())
        self._log_line(f"step {self.step:,}: {', '.join(figures)}")
        with self._writer.as_default():
            for name, value in measures.items():
                tf.summary.scalar(name, value, step=self.step)

    def _evaluate(self) -> None:
        """With the same draws each time, and none of the training's."""
        seeds = [state for states in seed_states(self.model) for state in states]
        kept = [seed.numpy() for seed in seeds]
        for seed in seeds:
            seed.assign(np.full(seed.shape, HELD_OUT_SEED % 2**16, seed.dtype.as_numpy_dtype))
        differ_between_replicas(self.model)
        measures = self.model.evaluate(self.held_out, verbose=0, return_dict=True)
        for seed, value in zip(seeds, kept, strict=True):
            seed.assign(value)
        measures.pop("tokens")
        self._add({f"held_out_{name}": float(value) for name, value in measures.items()})


def _baselines(batches: Iterable[Any], objectives: Sequence[Objective]) -> dict[str, float]:
    """The accuracy of always answering what is commonest, for every objective whose labels do not depend on the model."""
    counts: dict[str, dict[int, float]] = {}
    for _, labels, weights in batches:
        for one in objectives:
            if isinstance(one, ReplacedTokens):
                continue
            found = counts.setdefault(one.name, {})
            asked = labels[one.name].numpy()[weights[one.name].numpy() > 0]
            for value, count in zip(*np.unique(asked, return_counts=True), strict=True):
                found[int(value)] = found.get(int(value), 0) + int(count)
    return {f"{name}_accuracy": max(found.values()) / sum(found.values()) for name, found in counts.items()}


def draw_curves(history: Sequence[Mapping[str, float]], path: pathlib.Path) -> None:
    """Loss and accuracy of training and of the held-out instances over the steps, as a picture."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(10, 4), layout="constrained")
    measures = [
        [name for name in dict.fromkeys(itertools.chain(*history)) if name.endswith(ending)]
        for ending in ("_loss", "_accuracy")
    ]
    for axes, names, title in zip(figure.subplots(1, 2), measures, ("loss", "accuracy"), strict=True):
        for name in names:
            rows = [row for row in history if name in row]
            style = "o--" if name.startswith("held_out_") else "-"
            axes.plot(
                [row["step"] for row in rows], [row[name] for row in rows], style, markersize=3, label=name
            )
        axes.set(xlabel="step", title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def check_replicas(hparams: PretrainHparams, distribution: tf.distribute.Strategy) -> None:
    """Raises ValueError where the replicas do not divide a batch."""
    replicas = distribution.num_replicas_in_sync
    if hparams.batch_size % replicas:
        raise BertKerasError(
            f"batch_size is {hparams.batch_size} and there are {replicas} replicas; give a multiple of {replicas}."
        )


def _source(
    documents: Iterable[Text] | None,
    records: RecordFiles | Sequence[RecordFiles] | None,
    held_out: Any,
    *,
    recipe: Recipe,
    tokenizer: Tokenizer,
    segment: Segmenter | None,
) -> _Source:
    if (documents is None) == (records is None):
        raise BertKerasError("give documents or records, one of the two.")
    if documents is not None:
        return _Documents(documents, held_out, recipe=recipe, tokenizer=tokenizer, segment=segment)
    assert records is not None
    if segment is not None:
        raise BertKerasError("records are made of words already; give segment where they are written.")
    sets = [records] if isinstance(records, str | pathlib.Path) else records
    return _RecordFiles(sets, held_out, recipe=recipe, tokenizer=tokenizer)


def _held_out(
    source: _Source,
    phase: int,
    *,
    objectives: Sequence[Objective],
    vocab_size: int,
    hparams: PretrainHparams,
    multiple_of: int = 1,
) -> tf.data.Dataset | None:
    """Batches to evaluate on, padded to a multiple of so many rows, or None where nothing is held out."""
    instances = source.held_out(phase)
    if instances is None:
        return None
    batches = _batches(
        instances.take(hparams.held_out_instances),
        objectives=objectives,
        vocab_size=vocab_size,
        batch_size=HELD_OUT_BATCH,
        seed=HELD_OUT_SEED,
        drop_remainder=False,
    )
    batches = pad_batches(batches, multiple_of=multiple_of).cache()
    with source.reading(None, vocab_size=vocab_size):
        count = sum(1 for _ in batches)
    if not count:
        raise BertKerasError(
            "nothing held out gives an instance; hold out more, or documents of several lines each, ended by a blank line."
        )
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def _read_start(
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint | None, recipe: Recipe
) -> tuple[checkpoints.Checkpoint | None, checkpoints.Checkpoint | None]:
    """The checkpoint to start from, and the one of an ELECTRA's generator that a run has beside it."""
    if checkpoint is None or isinstance(checkpoint, checkpoints.Checkpoint):
        return checkpoint, None
    beside = path_of(checkpoint) / GENERATOR
    wanted = "replaced_token" in recipe.objectives and beside.is_dir()
    return checkpoints.read(checkpoint), checkpoints.read(beside) if wanted else None


def _tokenizer(given: Tokenizer | None, start: checkpoints.Checkpoint | None) -> Tokenizer:
    """The one to train with. Raises ValueError where there is none, or the checkpoint's own is another."""
    if given is None:
        if start is None:
            raise BertKerasError("there is no tokenizer and no checkpoint that has one; give a vocabulary.")
        return checkpoints.tokenizer_of(start)
    if start is None or (start.vocabulary is None and start.sentencepiece is None):
        return given
    own = checkpoints.tokenizer_of(
        start, lower_case=given.lower_case if start.lower_case is None else start.lower_case
    )
    if given.digest != own.digest:
        raise BertKerasError(
            "the checkpoint's own vocabulary is another, and its weights are of that; leave the vocabulary out."
        )
    if given.lower_case != own.lower_case:
        raise BertKerasError(
            f"the checkpoint's tokenizer has lower_case={own.lower_case}, the one given {given.lower_case}; leave the "
            "vocabulary out."
        )
    return given


def pretrain(
    *,
    recipe: Recipe,
    output: str | pathlib.Path,
    documents: Iterable[Text] | None = None,
    records: RecordFiles | Sequence[RecordFiles] | None = None,
    held_out: float | Iterable[Text] | RecordFiles | None = None,
    tokenizer: Tokenizer | None = None,
    segment: Segmenter | None = None,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint | None = None,
    save_every: int = 1000,
    snapshots: Sequence[int] = (),
    strategy_name: str = "one",
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Pre-trains by a recipe, or goes on with the unfinished run in `output`; returns what results.json says.

    documents: a `Corpus`, or anything that gives documents anew at each iteration; or
    records: a folder of `write_records` or TFRecord files; several for as many phases, whose lengths are those of the records
    held_out: documents, or records, to evaluate on, or the share of the documents that are held out; with records of one length
        only the phases of that length are evaluated
    tokenizer: None takes the checkpoint's
    segment: splits a line into words, for whole-word masking
    checkpoint: what to start from, with the heads that it has, and of an ELECTRA's run with the generator; its configuration
        counts, not the recipe's
    save_every: steps between two saves, from which a killed run goes on
    snapshots: steps after which the weights are kept in `snapshots/STEP`, too
    verbose: 0 for silence, 1 for a progress bar, 2 for a line each time something is measured; "auto" is 1 in a terminal, else 2
    log: receives lines for a person

    Equal arguments give equal bits on one device where ops are deterministic, however often the run was killed.
    Raises ValueError or FileNotFoundError, before any training, on data, sizes, settings or folders that cannot work.
    """
    output, hparams = path_of(output), recipe.hparams
    check_save_every(save_every)
    check_output(output, resumes=True)
    distribution = strategy(strategy_name)
    check_replicas(hparams, distribution)
    if wrong := [step for step in snapshots if not 1 <= step <= hparams.steps]:
        raise BertKerasError(f"snapshots has {wrong[0]}; give steps from 1 to {hparams.steps}.")
    start, generator = _read_start(checkpoint, recipe)
    tokenizer = _tokenizer(tokenizer, start)
    config = recipe.config(vocab_size=tokenizer.vocab_size, source=None if start is None else start.config)
    if documents is not None:  # which are read as a whole, once, by _source
        for length, _ in hparams.phases:
            check_sizes(config, vocab_size=tokenizer.vocab_size, seq_length=length)
    source = _source(documents, records, held_out, recipe=recipe, tokenizer=tokenizer, segment=segment)
    for phase in source.phases:
        check_sizes(config, vocab_size=tokenizer.vocab_size, seq_length=phase.seq_length)
    about = {
        "objectives": list(recipe.objectives),
        **{name: value for name, value in sorted(recipe.all_settings.items())},
        "config": config.to_dict(),
        "vocabulary": tokenizer.digest,
        "lower_case": tokenizer.lower_case,
        "segmenter": segment is not None,
        **source.about,
        "checkpoint": start and digest_of_tensors(start.tensors),
        **({} if generator is None else {"generator": digest_of_tensors(generator.tensors)}),
        "snapshots": list(snapshots),
        "strategy": strategy_name,
    }
    settings = json.loads(json.dumps(about))  # as they are read again
    pieces = Pieces.of(tokenizer)
    asked = [
        [OBJECTIVES[name](pieces, recipe.masking(phase.seq_length)) for name in recipe.objectives]
        for phase in source.phases
    ]
    held = []
    for i, objectives in enumerate(asked):
        for line in _check_data(
            source, i, objectives=objectives, config=config, batch_size=hparams.batch_size
        ):
            log(line)
        held.append(
            _held_out(
                source,
                i,
                objectives=objectives,
                vocab_size=config.vocab_size,
                hparams=hparams,
                multiple_of=rows_for(distribution, HELD_OUT_BATCH),
            )
        )

    if (longest := hparams.longest_step()) > LONG_STEP:
        log(
            f"warning: in a warm-up of {hparams.warmup_steps:,} steps, steps of AdamW without bias correction are up to "
            f"{longest:.1f} times as long as learning_rate says, where a masked LM may learn no more than how common each "
            "piece is; set bias_correction=true, or a larger warmup_proportion"
        )
    keras.utils.set_random_seed(hparams.seed)
    with distribution.scope():
        model = _model(recipe, config, asked[0])
        if start is not None and start.tensors:
            heads = _heads(model, model.encoder)
            log(str(checkpoints.assign(start, model.encoder, fresh=("pooler", *heads), **heads)))
        if generator is not None:
            assert isinstance(model, ElectraPretrainer)
            checkpoints.assign(generator, model.generator, **_heads(model, model.generator))
        elif start is not None and isinstance(model, ElectraPretrainer):
            log(f"the generator starts at random: the checkpoint has no {GENERATOR}/")
    preprocess = Preprocessor(tokenizer, seq_length=source.phases[-1].seq_length)
    save = functools.partial(_save, model=model, preprocess=preprocess, start=start)
    prepare_output(output, settings=settings)
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    lines = {"log": log} if verbose == 2 else {}
    watch = _Watch(output, hparams, snapshots=snapshots, save=save, **lines)
    began, seconds, place = time.monotonic(), 0.0, None

    def remember() -> Any:
        phase = next(phase for phase in source.phases if watch.step <= phase.end)
        read = (watch.step - phase.start) * hparams.batch_size
        return watch.history, seconds + time.monotonic() - began, source.place(read)

    saver = Saver(output, model, every=save_every, remember=remember)
    if (memory := saver.restore()) is not None:
        watch.history, seconds, place = memory
        watch.step = saver.step
        log(f"going on with {output} at step {saver.step:,} of {hparams.steps:,}")
    else:
        count = sum(math.prod(one.shape) for one in model.trainable_variables)
        log(f"pre-training {count:,} parameters, {hparams.steps:,} steps of {hparams.batch_size} instances")
    differ_between_replicas(model)
    for i, phase in enumerate(source.phases):
        if watch.step >= phase.end:
            place = None
            continue
        watch.held_out = held[i]
        # Traced for this length alone, as in a process that starts here: a graph for any length rounds differently.
        model.make_train_function(force=True)
        model.make_test_function(force=True)
        skip, steps = (watch.step - phase.start) * hparams.batch_size, phase.end - watch.step
        bar = int(verbose == 1)
        with source.reading(i, vocab_size=config.vocab_size):
            batches = _batches(
                source.train(i, skip=skip, place=place),
                objectives=asked[i],
                vocab_size=config.vocab_size,
                batch_size=hparams.batch_size,
                seed=hparams.seed,
                start=watch.step,
            )
            model.fit(batches, steps_per_epoch=steps, callbacks=[watch, saver], verbose=bar, shuffle=False)
        place = None
    seconds += time.monotonic() - began

    save(output)
    # Of the last phase that was evaluated.
    evaluated = [
        (batches, objectives) for batches, objectives in zip(held, asked, strict=True) if batches is not None
    ]
    baselines = _baselines(*evaluated[-1]) if evaluated else {}
    results = {
        "measures": dict(itertools.chain.from_iterable(row.items() for row in watch.history)),
        "majority_baselines": baselines,
        "history": watch.history,
        "steps": hparams.steps,
        "seconds": round(seconds, 1),
        "strategy": strategy_name,
        "settings": settings,
    }
    draw_curves(watch.history, output / CURVES)
    write_json(output / RESULTS_FILE, results)
    return results
