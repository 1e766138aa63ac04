"""Safetensors files of Keras variables that are not an encoder's: by the variables' paths in their model."""

import pathlib
from collections.abc import Iterable, Mapping

import keras
import numpy as np
import safetensors
import safetensors.numpy

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.files import atomic_file


def paths_of(layers: Iterable[keras.layers.Layer]) -> dict[str, keras.Variable]:
    """The variables of layers by their paths, from the layer's name on: "classifier/dense/kernel"."""
    found = {}
    for layer in layers:
        for variable in layer.weights:
            below = f"/{variable.path}".rpartition(f"/{layer.name}/")[2]
            found[f"{layer.name}/{below}"] = variable
    return found


def write_weights(path: pathlib.Path, variables: Mapping[str, keras.Variable]) -> None:
    """Writes variables by name. Raises OSError if the disk is full; an earlier file stays."""
    with atomic_file(path) as temporary:
        safetensors.numpy.save_file(
            {name: np.asarray(variable) for name, variable in variables.items()}, temporary
        )


def read_weights(path: pathlib.Path, variables: Mapping[str, keras.Variable], *, wanted_by: str) -> None:
    """Assigns a file's values to variables by name.

    wanted_by: the file, named in errors, that says which variables there are

    Raises MissingFileError for a missing file; BertKerasError for a damaged one, and for a variable of another shape, without a
    value or with values that are not finite.
    """
    if not path.is_file():
        raise MissingFileError(f"no {path.name} in {path.parent}; train again.")
    try:
        weights = safetensors.numpy.load_file(path)
    except safetensors.SafetensorError as error:
        raise BertKerasError(f"{path} is truncated or not a safetensors file: {error}.") from error
    for name, variable in variables.items():
        found = weights.get(name)
        if found is None or found.shape != tuple(variable.shape):
            raise BertKerasError(
                f"{path} has {name} of shape {None if found is None else list(found.shape)}; "
                f"{wanted_by} expects {list(variable.shape)}."
            )
        if not np.isfinite(found).all():
            raise BertKerasError(f"{path}: {name} has NaN or infinite numbers; train again.")
    for name, variable in variables.items():
        variable.assign(weights[name])
