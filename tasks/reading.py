"""Text files line by line under a limit, and TensorFlow Datasets. No Keras: the text half of pre-training reads by it."""

from collections.abc import Iterator
from typing import IO, Any

import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError

MAX_LINE_BYTES = 100_000_000  # of a text that is read line by line


def bounded_lines(file: IO[bytes], name: object) -> Iterator[bytes]:
    """The lines of a file with their ends. Raises ValueError at a line over MAX_LINE_BYTES, before it is in memory."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise BertKerasError(
                f"{name}, line {number}: over {MAX_LINE_BYTES:,} bytes; give text in shorter lines."
            )
        yield line


def load_tfds(name: str, split: str, *, instead: str) -> tuple[tf.data.Dataset, Any]:
    """A split of TensorFlow Datasets, and its builder's info.

    Raises FileNotFoundError where it cannot be loaded; `instead` names the alternative.
    """
    # Imported here: slow to import, and not needed with files.
    import tensorflow_datasets as tfds

    try:
        return tfds.load(name, split=split, with_info=True)
    except Exception as error:  # whatever downloading, unpacking and writing can raise
        reason = str(error).split("\n")[0]
        raise MissingFileError(
            f"{name} cannot be had from TensorFlow Datasets ({type(error).__name__}: {reason}); pass {instead}."
        ) from error
