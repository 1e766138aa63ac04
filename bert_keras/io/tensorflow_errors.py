"""Turns TensorFlow's errors into Python's."""

import contextlib
import re
from collections.abc import Iterator

from bert_keras.errors import BertKerasError, first_line


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """Turns TensorFlow's write errors, such as a full disk, into an OSError of one line."""
    import tensorflow as tf

    errors = tf.errors
    try:
        yield
    except (
        errors.UnavailableError,
        errors.AbortedError,
        errors.CancelledError,
        errors.DeadlineExceededError,
    ):
        raise  # of another process, not of a file
    except errors.OpError as error:
        reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]", "", first_line(error))  # without the graph's nodes
        raise OSError(f"cannot write {reason}") from error


@contextlib.contextmanager
def data_errors() -> Iterator[None]:
    """Turns TensorFlow's errors about the elements of a tf.data.Dataset into a BertKerasError.

    They are a BertKerasError that Python code raised inside the data set, and an object that is no tensor, such as None.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        if ours := re.search(rf"\b{BertKerasError.__name__}: (.*)", str(error)):
            raise BertKerasError(ours[1]) from None  # its traceback is TensorFlow's
        if other := re.search(r"Unsupported object type (\w+)", str(error)):
            raise BertKerasError(
                f"an element of the data set has a {other[1]} where its specification has a string or a number; give one."
            ) from error
        raise
