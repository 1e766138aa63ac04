"""Loads an exported folder and answers inputs, with TensorFlow and TensorFlow Text's kernels, without this package.

    python reload.py DIR < inputs.json > outputs.json

In: {"sentence": ["...", ...], ...}, the signature's inputs by name. Out: the answers of `serving_default` by name, as JSON.
As a script, it can import neither bert_keras nor Keras, which shows that a server can give the same answers.
"""

import json
import os
import sys
from collections.abc import Callable

KERNELS = ("_normalize_ops.so", "_fast_wordpiece_tokenizer.so", "_sentencepiece_tokenizer.so")
FORBIDDEN = ("bert_keras", "keras", "tf_keras", "tensorflow_text")


def load_kernels() -> None:
    """Registers TensorFlow Text's ops from its libraries, without its Python code, as in a server; none if it is missing."""
    import importlib.util

    import tensorflow as tf

    spec = importlib.util.find_spec("tensorflow_text")
    if spec is None or spec.origin is None:
        return  # graphs of TensorFlow's own ops need none
    for library in KERNELS:
        tf.load_op_library(os.path.join(os.path.dirname(spec.origin), "python", "ops", library))


def main(directory: str) -> None:
    """Loads a SavedModel and answers the inputs from standard input."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Python puts this script's folder first on sys.path, where its files would shadow other modules.
    sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    import tensorflow as tf

    load_kernels()
    for name in FORBIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]
    serve = tf.saved_model.load(directory).signatures["serving_default"]
    _, specs = serve.structured_input_signature
    inputs = {name: tf.constant(rows, specs[name].dtype) for name, rows in json.load(sys.stdin).items()}
    answers = serve(**inputs)
    json.dump({name: plain(value.numpy().tolist()) for name, value in answers.items()}, sys.stdout)


def plain(
    value: object, as_json: Callable[[bytes], object] = lambda text: text.decode("utf-8", "replace")
) -> object:
    """Nested lists for JSON, with bytes as text."""
    if isinstance(value, list):
        return [plain(item, as_json) for item in value]
    return as_json(value) if isinstance(value, bytes) else value


if __name__ == "__main__":
    main(sys.argv[1])
