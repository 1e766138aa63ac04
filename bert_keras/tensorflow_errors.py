"""Turns TensorFlow's errors into Python's."""

import contextlib
import re
from collections.abc import Iterator

from bert_keras.errors import first_line


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """Turns TensorFlow's write errors, such as a full disk, into an OSError of one line."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]", "", first_line(error))  # without the graph's nodes
        raise OSError(f"cannot write {reason}") from error
