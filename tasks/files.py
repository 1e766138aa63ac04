"""Files that are there whole or not at all, and folders that say what they were made with."""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.tensorflow_errors import file_errors

TEMPORARY = ".tmp"  # ends the name of a file that is not complete


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes to a temporary name, then renames: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary name to write to, which becomes `path` after the block and is removed after an error."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")  # each process its own
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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


def check_equal(path: pathlib.Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises ValueError naming the first field in which what a folder was made with is not what is wanted."""
    for field in (*wanted, *found):
        if field not in found or field not in wanted or found[field] != wanted[field]:
            raise BertKerasError(
                f"{path} was made with another {field}: {_short(found.get(field))}, "
                f"wanted is {_short(wanted.get(field))}; give that, or another folder, or remove this one."
            )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
