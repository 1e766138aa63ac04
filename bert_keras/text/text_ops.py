"""TensorFlow Text as `tf_text`, or a one-line error that says how to get it.

Importing this file also registers the ops that exported preprocessors need.
"""

import importlib.machinery
import sys
from typing import Any

from bert_keras.errors import MissingPackageError

__all__ = ["tf_text"]

# This module formats its docstrings when it is imported, so that `python -OO` cannot import it.
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
try:
    import tensorflow_text as tf_text
except ImportError as error:
    raise MissingPackageError(
        f"{error}; bert_keras needs tensorflow-text of TensorFlow's minor version, which has wheels for Linux x86_64 "
        "and macOS arm64 only: use one of those, WSL 2 on Windows, or a linux/amd64 container"
    ) from error
