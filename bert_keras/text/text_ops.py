"""The choice of the ops beyond `tf.strings` that tokenizers are made of: TensorFlow Text's, or TensorFlow's own.

Ids and offsets are equal. TensorFlow Text is imported here, which also registers the ops that its graphs need; a machine without
it takes TensorFlow's own ops.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingPackageError
from bert_keras.text.rules import CORE, TENSORFLOW_TEXT, TEXT_OPS, TEXT_OPS_VARIABLE

# This module of TensorFlow Text formats its docstrings when it is imported, so that `python -OO` cannot import it.
_FORMATS_ITS_DOCSTRINGS = "tensorflow_text.python.ops.wordshape_ops"


class _WithDocstrings(importlib.machinery.SourceFileLoader):
    """Compiles a module with its docstrings, also under -OO."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True, optimize=0)

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        spec = (
            importlib.machinery.PathFinder.find_spec(name, path) if name == _FORMATS_ITS_DOCSTRINGS else None
        )
        if spec is not None:
            spec.loader = cls(name, spec.origin or "")
        return spec


if sys.flags.optimize > 1:
    sys.meta_path.insert(0, _WithDocstrings)
_missing: Exception | None = None
try:
    import tensorflow_text as tf_text
except (ImportError, tf.errors.NotFoundError) as error:  # not installed, or of another TensorFlow
    _missing = error


def tensorflow_text(wanted_for: str) -> Any:
    """The module. Raises MissingPackageError, which says what needs it, where it cannot be imported."""
    if _missing is not None:
        raise MissingPackageError(
            f"{_missing}; {wanted_for} needs tensorflow-text of TensorFlow's minor version, which has wheels for Linux (x86_64, "
            "and aarch64 from 2.20.1 on) and macOS arm64 (WSL 2 on Windows): see `bert-keras doctor`"
        ) from _missing
    return tf_text


@contextlib.contextmanager
def text_ops_needed(folder: object) -> Iterator[None]:
    """Names TensorFlow Text where a SavedModel that is loaded has ops which are not registered."""
    try:
        yield
    except (FileNotFoundError, RuntimeError) as error:  # by the part of TensorFlow that meets the op
        if _missing is None or "Op type not registered" not in str(error):
            raise
        tensorflow_text(f"the SavedModel in {folder}, which was made without --text-ops {CORE},")


def chosen_ops(given: str | None = None) -> str:
    """One of TEXT_OPS: the given one, else the environment's, else TensorFlow Text's where it can be imported.

    Raises BertKerasError for another name, MissingPackageError for TensorFlow Text's where it cannot be imported.
    """
    name = given or os.environ.get(TEXT_OPS_VARIABLE) or (TENSORFLOW_TEXT if _missing is None else CORE)
    if name not in TEXT_OPS:
        raise BertKerasError(f"the text ops are {name!r}; give one of {', '.join(TEXT_OPS)}.")
    if name == TENSORFLOW_TEXT:
        tensorflow_text(f"--text-ops {name}")
    return name
