"""Digests of everything that decides the result of a training."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.io.files import digest
from bert_keras.text.tokenizer import Tokenizer

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
    return digest(itertools.chain(names, itertools.chain.from_iterable(rows.as_numpy_iterator())))


def fingerprint_of_checkpoint(source: Checkpoint, tokenizer: Tokenizer) -> dict[str, Any]:
    """The fields of a fingerprint for the initial weights, configuration and vocabulary."""
    return {
        "vocabulary": tokenizer.digest,
        "lower_case": tokenizer.lower_case,
        "config": source.config.to_dict(),
        "checkpoint": digest_of_tensors(source.tensors),
    }
