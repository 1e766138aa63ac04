"""Finds and opens the TensorFlow checkpoints of Google's and Model Garden's formats, and loads the config beside them."""

import contextlib
import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_keras.checkpoints.variables import Source
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.io.paths import for_tensorflow

TENSORFLOW_NAME = "bert_model.ckpt"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def find_prefix(path: pathlib.Path, *, object_graph: bool) -> pathlib.Path | None:
    """The prefix of the checkpoint at a path; None if there is none of this kind.

    object_graph: True for a checkpoint with an object graph (TensorFlow 2), False for one without
    """
    prefix = _prefix_at(path)
    return prefix if prefix is not None and _has_object_graph(prefix) == object_graph else None


def _prefix_at(path: pathlib.Path) -> pathlib.Path | None:
    if path.is_dir():
        indexes = sorted(path.glob("*.index"))
        if path / f"{TENSORFLOW_NAME}.index" in indexes:
            return path / TENSORFLOW_NAME
        if len(indexes) > 1:
            names = ", ".join(file.stem for file in indexes[:4])
            raise BertKerasError(
                f"{path} holds {len(indexes)} TensorFlow checkpoints ({names}); give the path of one."
            )
        return indexes[0].with_suffix("") if indexes else None
    for prefix in (path, path.with_name(_PART.sub("", path.name))):
        if prefix.with_name(f"{prefix.name}.index").is_file():
            return prefix
    return None


def _has_object_graph(prefix: pathlib.Path) -> bool:
    with _reader(prefix) as reader:
        return reader.has_tensor(_OBJECT_GRAPH)


@contextlib.contextmanager
def _reader(prefix: pathlib.Path) -> Iterator[Any]:
    import tensorflow as tf

    with for_tensorflow(prefix) as found:
        try:
            reader = tf.train.load_checkpoint(str(found))
        except Exception as error:  # TensorFlow raises RuntimeError, IndexError, ...
            raise BertKerasError(
                f"{prefix}.index is not a TensorFlow checkpoint: {first_line(error)}"
            ) from error
        yield reader


@contextlib.contextmanager
def open_checkpoint(prefix: pathlib.Path, config: BertConfig) -> Iterator[Source]:
    """Opens a checkpoint. Raises BertKerasError before TensorFlow allocates more than the data files have."""
    with _reader(prefix) as reader:

        def get(name: str) -> np.ndarray:
            try:
                return reader.get_tensor(name)
            except Exception as error:  # TensorFlow raises RuntimeError, IndexError, ...
                raise BertKerasError(f"{name} of {prefix} cannot be read: {first_line(error)}") from error

        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
        dtypes = reader.get_variable_to_dtype_map()
        size = sum(
            math.prod(shape) * dtypes[name].size for name, shape in shapes.items()
        )  # a string has size 0
        there = sum(part.stat().st_size for part in prefix.parent.iterdir() if _is_data_of(prefix, part))
        if size > there:
            raise BertKerasError(
                f"{prefix} cannot be read: its data has {there:,} bytes and its index needs {size:,}; bring all its files again."
            )
        yield Source(file=prefix, shapes=dict(sorted(shapes.items())), get=get)


def _is_data_of(prefix: pathlib.Path, part: pathlib.Path) -> bool:
    return part.name.startswith(f"{prefix.name}.data-") and part.is_file()


def load_config(prefix: pathlib.Path) -> BertConfig:
    """The bert_config.json beside a checkpoint."""
    path = prefix.parent / "bert_config.json"
    if not path.is_file():
        raise MissingFileError(
            f"no bert_config.json in {prefix.parent}, which holds {prefix.name}; put the model's bert_config.json there."
        )
    return BertConfig.load(path)
