"""Moves weights between a Checkpoint and Keras models: `assign` and its inverse, `collect`."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.checkpoints.names import HEAD_ARCHITECTURES, HEADS, Checkpoint, numpy_dtype
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, listed
from bert_keras.features import POOLED_OUTPUT

# Keras is not imported here: reading a safetensors file needs neither Keras nor TensorFlow.
if TYPE_CHECKING:
    import keras

    from bert_keras.encoder import BertEncoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The result of loading: our names, and the file's names for tensors that no row of the table has.

    matched: assigned variables
    fresh: variables that keep their random initial values, as allowed
    unused: tensors of the checkpoint without a variable
    """

    matched: tuple[str, ...]
    numbers: int
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    format: str = ""

    def __str__(self) -> str:
        """Three lines to print."""
        source = f" from a {self.format} checkpoint" if self.format else ""
        return (
            f"loaded: {len(self.matched)} tensors, {self.numbers:,} numbers{source}\n"
            f"randomly initialized: {listed(self.fresh)}\n"
            f"unused: {listed(self.unused)}"
        )


def assign(
    checkpoint: Checkpoint,
    encoder: "BertEncoder",
    *,
    fresh: Iterable[str] = (),
    **heads: "keras.layers.Layer",
) -> Report:
    """Assigns a checkpoint's weights to an encoder and heads. Every variable must have a weight.

    fresh: parts that may stay randomly initialized if the checkpoint lacks them: "pooler", "bilstm" or names of heads,
        which the report lists. The pooler of an encoder that does not compute `pooled_output` may always be missing.
    heads: masked_lm, next_sentence, classifier, concat_classifier, qa_outputs or replaced_token, loaded beside the encoder

    Raises ValueError for a missing weight or another shape, before anything is assigned.
    """
    variables = _variables(encoder, heads)
    allowed = {*fresh} | (set() if _reads_pooler(encoder) else {"pooler"})
    missing = [name for name in variables if name not in checkpoint.tensors]
    fatal = [name for name in missing if name.split("/")[0] not in allowed]
    refuse_lacking(
        fatal, checkpoint.tensors, encoder.config, unknown=checkpoint.unknown, named=prefix_of(checkpoint)
    )
    matched = [name for name in variables if name in checkpoint.tensors]
    for name in matched:
        given, wanted = checkpoint.tensors[name].shape, tuple(variables[name].shape)
        if given != wanted:
            raise BertKerasError(
                f"{name} has shape {list(given)} in the checkpoint; the model wants {list(wanted)}."
            )
    for name in matched:
        variables[name].assign(checkpoint.tensors[name].astype(numpy_dtype(variables[name].dtype)))
    heads_at_random = [head for head in fresh if head in HEADS and head not in heads]
    return Report(
        matched=tuple(matched),
        numbers=sum(math.prod(checkpoint.tensors[name].shape) for name in matched),
        fresh=(*missing, *heads_at_random),
        unused=(*(name for name in checkpoint.tensors if name not in variables), *checkpoint.unknown),
        format=checkpoint.format,
    )


def refuse_lacking(
    lacking: Sequence[str],
    tensors: Mapping[str, np.ndarray],
    config: BertConfig,
    *,
    unknown: Sequence[str],
    named: str,
) -> None:
    """Raises BertKerasError if variables have no tensor; `named` is the prefix of the error."""
    if not lacking:
        return
    parts = sorted({name.split("/")[0] for name in lacking})
    hint = "; fresh=('pooler',) initializes it randomly" if parts == ["pooler"] else ""
    layers = {name.split("/")[0] for name in tensors if name.startswith("block_")}
    if layers and not layers & set(parts) and all(part.startswith("block_") for part in parts):
        hint = f"; it has {len(layers)} layers, and num_hidden_layers is {config.num_layers}"
    elif unknown:
        hint += f"; it has tensors of unknown names: {listed(unknown, 4)}"
    raise BertKerasError(f"{named}the checkpoint has no {listed(lacking)}{hint}.")


def collect(config: BertConfig, encoder: "BertEncoder", **heads: "keras.layers.Layer") -> Checkpoint:
    """The inverse of `assign`: a Checkpoint with the weights of an encoder and heads.

    heads: masked_lm, next_sentence, classifier, concat_classifier, qa_outputs or replaced_token
    """
    variables = _variables(encoder, heads)
    tensors = {name: np.asarray(variable).copy() for name, variable in variables.items()}
    known = {type(head).__name__: None for head in heads.values()}
    architecture = next((HEAD_ARCHITECTURES[name] for name in known if name in HEAD_ARCHITECTURES), None)
    return Checkpoint(config=config, tensors=tensors, architecture=architecture)


def _reads_pooler(encoder: "BertEncoder") -> bool:
    return POOLED_OUTPUT in encoder.outputs_wanted


def _variables(encoder: "BertEncoder", heads: Mapping[str, "keras.layers.Layer"]) -> dict[str, Any]:
    """Name -> variable: the path below the encoder, or the head's name and the path below the head."""
    if unknown := sorted(set(heads) - set(HEADS)):
        raise BertKerasError(f"unknown head {', '.join(unknown)}; the heads are {', '.join(HEADS)}.")
    # One part at a time: the parts of a generator may hold variables of another encoder, with that encoder's paths.
    found = {
        f"{part.name}/{_below(part, variable.path)}": variable
        for part in encoder.parts
        for variable in part.weights
    }
    for head, layer in heads.items():
        found |= {f"{head}/{_below(layer, variable.path)}": variable for variable in layer.weights}
    return found


def _below(layer: "keras.layers.Layer", path: str) -> str:
    """A variable's path below the layer."""
    return f"/{path}".rpartition(f"/{layer.name}/")[2]


def prefix_of(checkpoint: Checkpoint) -> str:
    """The start of an error about a checkpoint: its path."""
    return f"{checkpoint.path}: " if checkpoint.path else ""
