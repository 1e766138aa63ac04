"""The weights before and after a pre-training: those of a checkpoint and its companions in, those of a run out."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import keras

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.pretrainers import Pretrainer, pretrainer_of
from bert_keras.tasks.pretraining.recipe_objectives import kinds_of
from bert_keras.tasks.pretraining.recipes import Recipe
from bert_keras.tasks.pretraining.samplers import SAMPLERS
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.runs.run_folder import save_task, save_weights
from bert_keras.tasks.training.fingerprint import digest_of_tensors
from bert_keras.text.preprocessing import Preprocessor


@dataclasses.dataclass(frozen=True)
class Start:
    """Initial weights: the checkpoint, and its subfolders for a Pretrainer's `companions`."""

    checkpoint: checkpoints.Checkpoint | None
    companions: Mapping[str, checkpoints.Checkpoint]

    @property
    def config(self) -> BertConfig | None:
        """The checkpoint's configuration."""
        return None if self.checkpoint is None else self.checkpoint.config

    @property
    def origin(self) -> Mapping[str, Any]:
        """The checkpoint's origin."""
        return {} if self.checkpoint is None else self.checkpoint.origin

    def fingerprint(self) -> dict[str, Any]:
        """Digests of the tensors."""
        found = {name: digest_of_tensors(one.tensors) for name, one in self.companions.items()}
        return {"checkpoint": self.checkpoint and digest_of_tensors(self.checkpoint.tensors), **found}


def read_start(given: str | pathlib.Path | checkpoints.Checkpoint | None, recipe: Recipe) -> Start:
    """Reads initial weights. Errors: those of `checkpoints.read`."""
    if given is None or isinstance(given, checkpoints.Checkpoint):
        return Start(given, {})
    model = checkpoints.resolve(given)
    names = (name for name in pretrainer_of(kinds_of(recipe)).companions if (model.path / name).is_dir())
    return Start(checkpoints.read(model), {name: checkpoints.read(model.path / name) for name in names})


def assign(start: Start, model: Pretrainer) -> list[str]:
    """Assigns the initial weights; returns lines to log."""
    if start.checkpoint is None:
        return []
    lines = []
    if start.checkpoint.tensors:
        heads = _heads(model, model.encoder)
        report = checkpoints.assign(start.checkpoint, model.encoder, fresh=("pooler", *heads), **heads)
        lines.append(str(report))
    for name in model.companions:
        encoder = getattr(model, name)
        if name in start.companions:
            checkpoints.assign(start.companions[name], encoder, **_heads(model, encoder))
        else:
            lines.append(f"the {name} is randomly initialized: the checkpoint has no {name}/")
    return lines


def _heads(model: Pretrainer, encoder: BertEncoder) -> dict[str, keras.layers.Layer]:
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

    sampler: its labels are those of a head on sentence pairs
    """
    encoders = {path: model.encoder, **{path / name: getattr(model, name) for name in model.companions}}
    fills_masks = {one.name for one in model.objectives if one.fills_masks}
    of_pairs = {one.name for one in model.objectives if one.pair_labels}
    for folder, encoder in encoders.items():
        heads = _heads(model, encoder)
        trained = any(one is encoder.pooler.kernel for one in model.trainable_variables)
        known = trained or (
            encoder is model.encoder and start is not None and "pooler/kernel" in start.tensors
        )
        without = () if known else ("pooler",)
        labels = SAMPLERS[sampler].labels if of_pairs & {*heads} else ()
        save_weights(folder, preprocess.tokenizer, encoder, heads, without=without, labels=labels)
        if fills_masks & {*heads}:
            save_task(folder, FillMask(), preprocess)
