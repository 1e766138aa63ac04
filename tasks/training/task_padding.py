"""Encoders of tasks leave out padding, except under XLA and in other runtimes, which need rows of one number."""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from bert_keras.model.encoder import BertEncoder


def leave_out_padding(encoder: BertEncoder, *, jit_compile: bool = False) -> None:
    """Has an encoder leave out padding, which no task reads, unless XLA compiles it, on a TPU or by `jit_compile`."""
    on_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    encoder.unpadded = keras.backend.backend() == "tensorflow" and not (jit_compile or on_tpu)


@contextlib.contextmanager
def with_padding(model: keras.Model) -> Iterator[None]:
    """Within it, the encoders of a model compute the rows of padding too: rows of one number for XLA and other runtimes."""
    encoders = [layer for layer in model._flatten_layers() if isinstance(layer, BertEncoder)]
    kept = [encoder.unpadded for encoder in encoders]
    for encoder in encoders:
        encoder.unpadded = False
    try:
        yield
    finally:
        for encoder, value in zip(encoders, kept, strict=True):
            encoder.unpadded = value
