"""Digests of what decides a training's result."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_keras.files import digest

BATCH = 1024  # examples that are read together


def digest_of_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays."""
    ordered = sorted(tensors.items())
    return digest(part for name, array in ordered for part in (name, np.ascontiguousarray(array).tobytes()))


def digest_of_examples(examples: tf.data.Dataset) -> str:
    """SHA-256 of all examples, dicts of tensors, in their order."""
    names = sorted(examples.element_spec)
    rows = examples.batch(BATCH).map(
        lambda batch: [tf.io.serialize_tensor(batch[name]) for name in names],
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return digest([*names, *(part for row in rows.as_numpy_iterator() for part in row)])
