"""Makes a recipe's objectives, optimizer and model, and reads and writes the weights of the model.

A recipe is also compared with records that are written: settings that contradict them are errors, or lines of warning.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import WorkerRows
from bert_keras.fields import Masking, names_of
from bert_keras.io.json_files import shortened
from bert_keras.model.choices import training_policy
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.encoders import make_encoder
from bert_keras.optimization.objectives import (
    LeftToRight,
    MaskedLM,
    Objective,
    ReplacedTokens,
    SentencePair,
    check_parts,
)
from bert_keras.optimization.optimizers import LAMB, AdamW
from bert_keras.optimization.pretrainers import Pretrainer, choose_pretrainer
from bert_keras.optimization.schedules import SCHEDULES, WarmupLinearDecay
from bert_keras.tasks.ancestors.language_model import NextWords, directions_of
from bert_keras.tasks.ancestors.skip_gram import SkipGram
from bert_keras.tasks.ancestors.transformer import Translation
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.hparams import PretrainHparams, Sampling
from bert_keras.tasks.pretraining.recipes import FIELDS, Recipe
from bert_keras.tasks.pretraining.records import MANIFEST, RecordFiles, load_manifests
from bert_keras.tasks.pretraining.samplers import sampler_of
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.runs.run_folder import save_task, save_weights
from bert_keras.tasks.training.plan import digest_of_tensors
from bert_keras.tasks.training.task_model import leave_out_padding
from bert_keras.text.masking import Pieces
from bert_keras.text.preprocessing import Preprocessor

OBJECTIVES: dict[str, type[Objective]] = {
    "masked_lm": MaskedLM,
    "left_to_right": LeftToRight,
    "sentence_pair": SentencePair,
    "replaced_token": ReplacedTokens,
    "next_words": NextWords,
    "translation": Translation,
    "skip_gram": SkipGram,
}


def objective_classes(recipe: Recipe) -> tuple[type[Objective], ...]:
    """The classes of a recipe's objectives."""
    return tuple(OBJECTIVES[one] if isinstance(one, str) else one for one in recipe.objectives)


def unread_settings(recipe: Recipe) -> list[str]:
    """The user's settings of objectives that the recipe does not have."""
    fields = {kind: names_of(kind) for kind in (*OBJECTIVES.values(), *objective_classes(recipe))}
    of_objectives = {*names_of(Masking), *(name for names in fields.values() for name in names)}
    read = {name for kind in objective_classes(recipe) for name in fields[kind]}
    if "masking" in read:
        read |= {*names_of(Masking)}  # max_predictions too, a name of both
    return [name for name in recipe.changes if name in of_objectives - read]


def check_settings_are_read(recipe: Recipe) -> None:
    """Raises BertKerasError for a setting of the user that no objective of the recipe reads."""
    if unread := unread_settings(recipe):
        raise BertKerasError(
            f"{unread[0]} does not apply to {', '.join(recipe.names)}, the objectives of this recipe; leave {unread[0]} out."
        )


def masks_whole_words(recipe: Recipe) -> bool:
    """True if an objective of the recipe masks whole words."""
    masks = any("masking" in names_of(kind) for kind in objective_classes(recipe))
    return masks and recipe.masking().whole_word


def check_direction(recipe: Recipe, config: BertConfig) -> None:
    """Raises BertKerasError for an encoder that sees the tokens which the recipe predicts from the left."""
    if LeftToRight in objective_classes(recipe) and not config.causal:
        raise BertKerasError(
            "left_to_right needs an encoder with causal attention, and the checkpoint's is not; set causal."
        )


def make_objectives(
    recipe: Recipe,
    seq_length: int,
    *,
    pieces: Pieces,
    config: BertConfig | None = None,
    counts: Callable[[], np.ndarray] | None = None,
) -> list[Objective]:
    """The objectives for one length. Their fields are set by name from `pieces`, the masking, the encoder and the settings.

    config: of the encoder; None is that of the recipe
    counts: gives the number of each token in the whole training text, for an objective with this field
    """
    config = recipe.config(vocab_size=len(pieces.continues)) if config is None else config
    known = {"pieces": pieces, "masking": recipe.masking(seq_length), **vars(recipe.hparams)}
    known |= {"directions": directions_of(config) or 1, "max_characters": config.max_characters}
    known |= {name: value for name, value in recipe.all_settings.items() if name not in known}
    if counts is not None and any("counts" in names_of(kind) for kind in objective_classes(recipe)):
        known["counts"] = counts()
    return [
        kind(**{name: known[name] for name in names_of(kind) if name in known})
        for kind in objective_classes(recipe)
    ]


# -----------------------------------------------------------------------------------------------------------
# The optimizer, its schedule and the model

OPTIMIZERS = {"adamw": AdamW, "lamb": LAMB}
LONG_STEP = 2.0  # times the learning rate: larger updates cause a warning


def schedule(hparams: PretrainHparams) -> WarmupLinearDecay:
    """The learning rate of each step, over all phases."""
    return SCHEDULES[hparams.schedule](
        hparams.learning_rate, total_steps=hparams.steps, warmup_steps=hparams.warmup_steps
    )


def longest_step(hparams: PretrainHparams) -> float:
    """AdamW's largest update for a constant gradient, as a multiple of `learning_rate`; over 1 without bias correction."""
    if hparams.optimizer != "adamw" or hparams.bias_correction:
        return 1.0
    done = np.arange(hparams.steps, dtype=np.float32)
    rates = np.asarray(schedule(hparams)(done)) / hparams.learning_rate
    return float(
        np.max(rates * (1 - hparams.beta_1 ** (done + 1)) / np.sqrt(1 - hparams.beta_2 ** (done + 1)))
    )


def step_warnings(hparams: PretrainHparams) -> list[str]:
    """A warning of long steps, in a list; else an empty list."""
    if (longest := longest_step(hparams)) <= LONG_STEP:
        return []
    return [
        f"warning: updates may be {longest:.1f}x the learning rate in a warm-up of {hparams.warmup_steps:,} steps without bias "
        "correction, and a masked LM may learn no more than token frequencies; set bias_correction, or a larger "
        "warmup_proportion"
    ]


def build_model(recipe: Recipe, config: BertConfig, objectives: Sequence[Objective]) -> Pretrainer:
    """A compiled model, with its optimizer built; call it in the strategy's scope."""
    hparams = recipe.hparams
    check_parts(objectives, WorkerRows(0, Workers(tf.distribute.get_strategy()).count))
    outputs = tuple(dict.fromkeys(one.reads for one in objectives))
    encoder: BertEncoder = make_encoder(config, outputs=outputs, dtype=training_policy(hparams.precision))
    model = choose_pretrainer(objective_classes(recipe)).of(encoder, objectives, count_tokens=True)
    for one in {id(one): one for one in model.encoders.values()}.values():
        leave_out_padding(one)
        one.rematerialize = hparams.rematerialize
    layers: dict[str, Any] = {} if hparams.optimizer == "lamb" else {"layer_decay": hparams.layer_decay}
    optimizer = OPTIMIZERS[hparams.optimizer](
        schedule(hparams),
        weight_decay=hparams.weight_decay,
        beta_1=hparams.beta_1,
        beta_2=hparams.beta_2,
        epsilon=hparams.epsilon,
        clip_norm=hparams.clip_norm,
        bias_correction=hparams.bias_correction,
        **layers,
    )
    # XLA is not faster on CPU, and fails under MirroredStrategy.
    model.compile(
        optimizer,
        micro_batch=hparams.micro_batch,
        steps_per_execution=hparams.steps_per_execution,
        jit_compile=False,
    )
    # In float16, Keras' own around ours, which scales the loss.
    model.optimizer.build(model.trainable_variables)
    return model


# -----------------------------------------------------------------------------------------------------------
# The weights: of a checkpoint and its companions before a pre-training, of a run after it


@dataclasses.dataclass(frozen=True)
class Start:
    """Initial weights: the checkpoint, and its subfolders for a Pretrainer's `companions`."""

    checkpoint: checkpoints.Checkpoint | None
    companions: Mapping[str, checkpoints.Checkpoint]

    @property
    def config(self) -> BertConfig | None:
        """The checkpoint's configuration."""
        return None if self.checkpoint is None else self.checkpoint.config

    def fingerprint(self) -> dict[str, Any]:
        """Digests of the tensors."""
        found = {name: digest_of_tensors(one.tensors) for name, one in self.companions.items()}
        return {"checkpoint": self.checkpoint and digest_of_tensors(self.checkpoint.tensors), **found}


def read_start(given: str | pathlib.Path | checkpoints.Checkpoint | None, recipe: Recipe) -> Start:
    """Reads initial weights. Raises the errors of `checkpoints.read`."""
    if given is None or isinstance(given, checkpoints.Checkpoint):
        return Start(given, {})
    model = checkpoints.resolve(given)
    names = choose_pretrainer(objective_classes(recipe)).companions
    folders = {name: model.path / name for name in names if (model.path / name).is_dir()}
    return Start(checkpoints.read(model), {name: checkpoints.read(path) for name, path in folders.items()})


def grow(start: Start, config: BertConfig, *, seed: int) -> tuple[Start, list[str]]:
    """The initial weights with rows for the tokens and positions that `config` has more, and a line about them.

    Raises BertKerasError if it has fewer.
    """
    if start.checkpoint is None or not start.checkpoint.tensors:
        return start, []
    before = start.checkpoint.config
    tokens, positions = config.vocab_size - before.vocab_size, config.max_positions - before.max_positions
    if not tokens and not positions:
        return start, []

    def grown(one: checkpoints.Checkpoint) -> checkpoints.Checkpoint:
        one = checkpoints.with_vocab_size(one, config.vocab_size, seed=seed)
        return checkpoints.with_max_positions(one, config.max_positions, seed=seed + 1)

    companions = {name: grown(one) for name, one in start.companions.items()}
    line = (
        f"new rows: {tokens:,} tokens and {positions:,} positions, from a truncated normal distribution of standard deviation "
        f"{before.initializer_range:g}, as before a pre-training; masked-LM biases 0"
    )
    return Start(grown(start.checkpoint), companions), [line]


def assign(start: Start, model: Pretrainer) -> list[str]:
    """Assigns the initial weights; returns lines to log."""
    if start.checkpoint is None:
        return []
    lines = []
    if start.checkpoint.tensors:
        heads = heads_on(model, model.encoder)
        report = checkpoints.assign(start.checkpoint, model.encoder, fresh=("pooler", *heads), **heads)
        lines.append(str(report))
    for name in model.companions:
        encoder = getattr(model, name)
        if name in start.companions:
            checkpoints.assign(start.companions[name], encoder, **heads_on(model, encoder))
        else:
            lines.append(f"the {name} is randomly initialized: the checkpoint has no {name}/")
    return lines


def check_saves(model: Pretrainer) -> None:
    """Raises BertKerasError for heads or a configuration that no file can hold: call it before a training."""
    for encoder in (model.encoder, *(getattr(model, name) for name in model.companions)):
        encoder.config.to_hugging_face()
        checkpoints.collect(encoder.config, encoder, **heads_on(model, encoder))


def heads_on(model: Pretrainer, encoder: BertEncoder) -> dict[str, keras.layers.Layer]:
    """The heads that read this encoder."""
    return {name: head for name, head in model.heads.items() if model.encoders[name] is encoder}


def save(
    path: pathlib.Path,
    model: Pretrainer,
    preprocess: Preprocessor,
    *,
    sampler: str,
    start: checkpoints.Checkpoint | None,
) -> None:
    """Writes the weights of a run directory and of its companions, without untrained poolers.

    sampler: gives the labels of a head on sentence pairs
    """
    encoders = {path: model.encoder, **{path / name: getattr(model, name) for name in model.companions}}
    fills_masks = {one.name for one in model.objectives if one.fills_masks}
    of_pairs = {one.name for one in model.objectives if one.pair_labels}
    for folder, encoder in encoders.items():
        heads = heads_on(model, encoder)
        pooler = {id(one) for one in encoder.pooler.variables}
        trained = any(id(one) in pooler for one in model.trainable_variables)
        known = trained or (
            encoder is model.encoder and start is not None and "pooler/kernel" in start.tensors
        )
        without = () if known else ("pooler",)
        labels = sampler_of(sampler).labels if of_pairs & {*heads} else ()
        save_weights(folder, preprocess.tokenizer, encoder, heads, without=without, labels=labels)
        if fills_masks & {*heads}:
            save_task(folder, FillMask(), preprocess)


# -----------------------------------------------------------------------------------------------------------
# A recipe and records that are written with other settings

WIDTH = "max_predictions"  # the user's value is checked; the recipe's is only a bound
# The length and the passes show in the records themselves.
SEGMENT_SETTINGS = ("sampler", "short_seq_prob", "strict")
MASK_SETTINGS = tuple(name for name in names_of(Masking) if name != WIDTH)


def check_written(source: RecordFiles, recipe: Recipe, *, predictions: int | None) -> Iterator[str]:
    """Yields warnings where records have other segments or masks than the recipe.

    predictions: the masked positions of each record; None for records without masks

    Raises BertKerasError if a setting of the user contradicts the records, or if their labels are from another sampler.
    """
    masked, name = predictions is not None, name_set(source)
    for manifest in [*load_manifests(source).values()] or [{}]:
        made = ({WIDTH: predictions} if masked else {}) | manifest | (manifest.get("masking") or {})
        _check_changes(name, recipe, made, masked=masked)
        _check_labels(name, recipe, made)
        yield from _differing("segments", name, recipe.sampling(), SEGMENT_SETTINGS, made)
        if masked:
            yield from _differing("masks", name, recipe.masking(), MASK_SETTINGS, made)


def check_lengths(recipe: Recipe, lengths: Sequence[int]) -> Iterator[str]:
    """Yields a warning if the user gave other lengths than the records have.

    lengths: positions of each set of records
    """
    given = [length for length, _ in recipe.hparams.phases]
    found = [*lengths] * (len(given) if len(lengths) == 1 else 1)
    if "phases" in recipe.changes and given != found:
        yield (
            f"warning: the settings have sequences of {_numbers(given)} tokens and the records {_numbers(lengths)}; training "
            "takes the length of the records"
        )


def name_set(source: RecordFiles) -> str:
    """The name of a set in errors."""
    files = [source] if isinstance(source, str | pathlib.Path) else source
    return str(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def _check_changes(records: str, recipe: Recipe, made: dict[str, Any], *, masked: bool) -> None:
    kinds = (Sampling, Masking) if masked else (Sampling,)
    for name, value in recipe.changes.items():
        of_files = FIELDS.get(name) in kinds or (masked and name == WIDTH and value is not None)
        if of_files and (name not in made or made[name] != value):
            known = f" ({name} {json.dumps(made[name])})" if name in made else ""
            raise BertKerasError(
                f"{name} is {json.dumps(value)}, but {records} is already written{known}; leave {name} out, or write "
                "instances with it."
            )


def _check_labels(records: str, recipe: Recipe, made: dict[str, Any]) -> None:
    sampler = recipe.sampling().sampler
    has_labels = any(kind.pair_labels for kind in objective_classes(recipe))
    if has_labels and made.get("sampler", sampler) != sampler:
        raise BertKerasError(
            f"the labels of {records} are from the sampler {shortened(made['sampler'])} ({MANIFEST}), but the recipe has "
            f"{sampler}; give instances from {sampler}, or set sampler to {made['sampler']}."
        )


def _differing(
    parts: str, records: str, settings: Any, names: Sequence[str], made: dict[str, Any]
) -> Iterator[str]:
    """A warning where the fields `names` of settings differ. settings: of any length; no such field depends on it."""
    wanted = {name: getattr(settings, name) for name in names}
    if others := [name for name in wanted if name in made and made[name] != wanted[name]]:
        there, asked = (
            ", ".join(f"{name}={json.dumps(values[name])}" for name in others) for values in (made, wanted)
        )
        yield f"warning: the {parts} of {records} have {there}, and the recipe {asked}; training keeps the {parts} of the records"


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))
