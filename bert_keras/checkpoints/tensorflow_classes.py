"""The files of transformers' TensorFlow classes (TFBertModel, ...): `tf_model.h5`, and safetensors with "format": "tf".

Their tensors get the names and the layouts of the PyTorch classes here, so that hugging_face.py reads them by the same tables:

    bert/tf_bert_for_pre_training/bert/encoder/layer_._3/output/dense/kernel:0 -> bert.encoder.layer.3.output.dense.weight

The groups and scopes before `bert` differ by version, class and the name that a user gave the model; the end of a name does not.
"""

import contextlib
import functools
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_keras.checkpoints.checkpoint import known_end, numbered
from bert_keras.checkpoints.detect import describe_content
from bert_keras.checkpoints.hugging_face_names import NAMES
from bert_keras.checkpoints.torch_files import Tensors
from bert_keras.errors import BertKerasError, first_line

TF_H5 = "tf_model.h5"
_END = ":0"  # of TensorFlow's names
_PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}


@functools.cache
def _known() -> frozenset[str]:
    """The names of all tables, with {i} for every number."""
    rows = ((names, theirs) for names in NAMES for theirs in names.table.values())
    whole = {theirs + part for names, theirs in rows for part in ("", *names.parts.values())}
    whole |= {theirs for names in NAMES for theirs in names.duplicates}
    return frozenset(numbered(name) for name in whole)


def pytorch_name(name: str) -> str:
    """The name that PyTorch's classes have for a name of TensorFlow's; unchanged for any other name, and without a known end."""
    if not name.endswith(_END):
        return name
    path = re.sub(r"[^/]*___", "", name.removesuffix(_END)).replace("_._", "/").split("/")
    path[-1] = _PARTS.get(path[-1], path[-1])
    return known_end(path, _known(), by=".") or name


def as_pytorch(shapes: Mapping[str, tuple[int, ...]], get: Callable[[str], np.ndarray]) -> Tensors:
    """Tensors of TensorFlow's classes by the names and in the layouts of PyTorch's.

    A weight that several layers share stands in the file several times, and is read once.
    """
    raw_names: dict[str, str] = {}
    for raw in shapes:
        raw_names.setdefault(pytorch_name(raw), raw)
    # ALBERT's class in TensorFlow has both biases, and computes with the decoder's alone.
    for name in [name for name in raw_names if name.endswith(".decoder.bias")]:
        raw_names.pop(name.replace(".decoder", ""), None)
    transposed = {name for name, raw in raw_names.items() if raw.endswith(f"/kernel{_END}")}

    def read(name: str) -> np.ndarray:
        array = get(raw_names[name])
        return array.T if name in transposed else array

    found = {name: shapes[raw] for name, raw in raw_names.items()}
    return {name: shape[::-1] if name in transposed else shape for name, shape in found.items()}, read


@contextlib.contextmanager
def open_tf_h5(file: pathlib.Path) -> Iterator[Tensors]:
    """Opens a `tf_model.h5`, or a shard of one, as PyTorch's classes would hold it. Raises as `open_h5` does."""
    with open_h5(file) as (shapes, get):
        yield as_pytorch(shapes, get)


@contextlib.contextmanager
def open_h5(file: pathlib.Path) -> Iterator[Tensors]:
    """Opens the datasets of an HDF5 file by their paths.

    Raises BertKerasError for a file that is not of HDF5, points outside itself, or whose tensors need more bytes than it has.
    """
    import h5py

    try:
        opened = h5py.File(file, "r")
    except OSError as error:
        other = "" if h5py.is_hdf5(file) else describe_content(file)
        why = other or f"is cut short or not an HDF5 file: {first_line(error)}"
        raise BertKerasError(f"{file} {why}.") from error
    with opened:
        try:
            sets = _list_datasets(opened, file=file)
        except (RuntimeError, OSError, KeyError) as error:
            raise BertKerasError(f"{file} is damaged: {first_line(error)}; bring it again.") from error
        needed = sum({hash(dataset.id): dataset.nbytes for dataset in sets.values()}.values())
        if needed > (there := file.stat().st_size):
            raise BertKerasError(
                f"{file} has {there:,} bytes and its tensors need {needed:,}; bring the file again, uncompressed."
            )
        shapes = {name: tuple(dataset.shape) for name, dataset in sets.items()}
        yield shapes, functools.partial(_read, sets, file=file)


def _list_datasets(opened: Any, *, file: pathlib.Path) -> dict[str, Any]:
    """The datasets of an open HDF5 file by their paths. A group that holds itself is entered once."""
    import h5py

    found, entered, groups = {}, set(), [("", opened)]
    while groups:
        path, group = groups.pop()
        for name in group:
            here = f"{path}/{name}".lstrip("/")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise BertKerasError(
                    f"{here} in {file} is a link to another place; wanted a file that holds its tensors itself."
                )
            one = group[name]
            if isinstance(one, h5py.Dataset):
                found[here] = _checked(one, f"{here} in {file}")
            elif (address := h5py.h5o.get_info(one.id).addr) not in entered:
                entered.add(address)
                groups.append((here, one))
    return found


def _checked(dataset: Any, named: str) -> Any:
    """A dataset of numbers in the file. Raises BertKerasError for any other."""
    if dataset.dtype.kind not in "fiu" or dataset.shape is None:
        raise BertKerasError(f"{named} is {dataset.dtype}; wanted float16, float32 or float64.")
    if dataset.is_virtual or dataset.external:
        raise BertKerasError(f"{named} is kept in another file; wanted a file that holds its tensors itself.")
    return dataset


def _read(sets: Mapping[str, Any], name: str, *, file: pathlib.Path) -> np.ndarray:
    try:
        return sets[name][()]
    except (OSError, RuntimeError) as error:
        raise BertKerasError(
            f"{name} of {file} cannot be read: {first_line(error)}; bring the file again."
        ) from error
