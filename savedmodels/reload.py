"""Answers from an exported folder in a process that has TensorFlow, tf.text's kernels and nothing of ours.

    python reload.py DIR < inputs.json > outputs.json

In: {"sentence": ["...", ...], ...}, the signature's inputs by name. Out: the answers of `serving_default` by name, as JSON.
Run as a file, it can import neither bert_keras nor Keras: what it answers, a server can answer.
"""

import json
import os
import sys

KERNELS = ("_normalize_ops.so", "_fast_wordpiece_tokenizer.so", "_sentencepiece_tokenizer.so")
FORBIDDEN = ("bert_keras", "tasks", "savedmodels", "keras", "tf_keras", "tensorflow_text")


def load_kernels() -> None:
    """Registers tf.text's ops as a server has them linked in: the libraries alone, no Python of theirs."""
    import importlib.util

    import tensorflow as tf

    spec = importlib.util.find_spec("tensorflow_text")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "tensorflow-text is not installed; pip install tensorflow-text of TensorFlow's minor."
        )
    for library in KERNELS:
        tf.load_op_library(os.path.join(os.path.dirname(spec.origin), "python", "ops", library))


def main(directory: str) -> None:
    """Reads inputs, loads, answers."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Python puts this file's folder first: its neighbours are not to be found under their short names.
    sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    import tensorflow as tf

    load_kernels()
    for name in FORBIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]
    serve = tf.saved_model.load(directory).signatures["serving_default"]
    _, specs = serve.structured_input_signature
    inputs = {name: tf.constant(rows, specs[name].dtype) for name, rows in json.load(sys.stdin).items()}
    answers = serve(**inputs)
    json.dump({name: _plain(value.numpy().tolist()) for name, value in answers.items()}, sys.stdout)


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    main(sys.argv[1])
