"""Weights as constants of a graph, which TensorFlow's CPU kernels lay out for the processor's matrix unit once.

In: a layer whose weights stay as they are while a graph is used. Out: a context for the trace of that graph. A variable is laid
out in every call, which is much of the time of an inference in bfloat16, and little of one in float32.
"""

import contextlib
from typing import Any

import keras

from bert_keras.model.kernels import fuses

LARGEST = 2**30  # bytes of all weights: a graph holds them too, and is at most twice as large


def packed_weights(layer: keras.layers.Layer) -> contextlib.AbstractContextManager[Any]:
    """A context in which the weights of a layer are constants for a graph of TensorFlow, where an inference gains by it.

    Enter it within the function that is traced. The graph keeps the values of this moment, and changes no state of the layer.

    layer: all that is called in the context
    """
    narrow = layer.built and any(part.compute_dtype == "bfloat16" for part in layer._flatten_layers())
    if not (narrow and fuses("bfloat16")):
        return contextlib.nullcontext()
    import tensorflow as tf

    size = sum(one.value.dtype.size * one.value.shape.num_elements() for one in layer.variables)
    if tf.executing_eagerly() or size > LARGEST:
        return contextlib.nullcontext()
    with tf.init_scope():  # in the graph a variable has no value yet
        values = [(variable, variable.numpy()) for variable in layer.variables]
    return keras.StatelessScope([(variable, tf.constant(value)) for variable, value in values])
