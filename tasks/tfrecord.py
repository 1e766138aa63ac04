"""TFRecord files that are there whole or not at all."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from bert_keras.files import whole_file
from bert_keras.tensorflow_errors import file_errors


@contextlib.contextmanager
def record_writer(path: pathlib.Path, compression: str = "") -> Iterator[Callable[[bytes], None]]:
    """The function that writes one record to a TFRecord file, which is there whole or not at all.

    compression: "GZIP" or none. Raises OSError where the file cannot be written.
    """
    with whole_file(path) as temporary:
        with file_errors():
            writer = tf.io.TFRecordWriter(str(temporary), compression)

        def write(record: bytes) -> None:
            with file_errors():
                writer.write(record)

        try:
            yield write
        except BaseException:
            with contextlib.suppress(tf.errors.OpError):
                writer.close()
            raise
        with file_errors():
            writer.close()
