"""The names that flags offer, and the kinds of files that are written. Flags read them without TensorFlow."""

from collections.abc import Sequence
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.paths import to_path

# The numbers of a head, in the order of a summary's columns, and the ways to explain an answer.
MEASURES = ("previous", "next", "sep", "cls", "itself", "same-word", "entropy")
METHODS = ("integrated-gradients", "gradient-input")
PICTURES, PAGE = (".png", ".svg"), ".html"


def check_output(path: Any, endings: Sequence[str]) -> None:
    """Raises BertKerasError for a file of another kind, or in a folder that is not there: call it before long work."""
    file = to_path(path)
    if file.suffix not in endings:
        raise BertKerasError(f"the output is {path}; give a file that ends in {' or '.join(endings)}.")
    if not file.parent.is_dir():
        raise BertKerasError(f"there is no folder {file.parent} for {file.name}; make it first.")
