"""TFRecord files that appear only when they are complete."""

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

from bert_keras.io.files import file_errors, whole_file


@contextlib.contextmanager
def record_writer(path: pathlib.Path, compression: str = "") -> Iterator[Callable[[Iterable[bytes]], None]]:
    """Yields a function that writes records; the file appears when the block ends.

    compression: "GZIP" or none. Raises OSError if the file cannot be written.
    """
    with whole_file(path) as temporary:
        with file_errors():
            writer = tf.io.TFRecordWriter(str(temporary), compression)

        def write(records: Iterable[bytes]) -> None:
            with file_errors():
                for record in records:
                    writer.write(record)

        try:
            yield write
        except BaseException:
            with contextlib.suppress(tf.errors.OpError):
                writer.close()
            raise
        with file_errors():
            writer.close()
