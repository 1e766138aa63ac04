"""A Keras model's inference with its weights as constants of the graph, in place of variables.

In: a model of features. Out: a function of TensorFlow with one trace, which holds every weight once.

TensorFlow's kernels on CPU lay out a variable for their products in every call. They lay out a constant once, for the rows of the
first call. In bfloat16 that layout fits any number of rows. In float32 there are several: on an EPYC with AVX-512, one for 7 to
64 rows, and one for fewer and for more. A call with other rows than the first lays out each matrix again, and takes up to three
times as long.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.tasks.task import Features

MAX_GRAPH = 2**31 - 1  # bytes of a protocol buffer, which saved_model.pb is
ROOM = 64_000_000  # bytes for the rest of the graph: its ops, and the vocabulary


def bytes_of(model: keras.Model) -> int:
    """The bytes of all weights of a model."""
    return sum(
        variable.value.dtype.size * variable.value.shape.num_elements() for variable in model.variables
    )


def check_size(model: keras.Model) -> None:
    """Raises BertKerasError for a model whose weights do not fit into one graph."""
    if (size := bytes_of(model)) > MAX_GRAPH - ROOM:
        raise BertKerasError(
            f"the weights take {size / 1e6:,.0f} MB, and a graph that holds them as constants is a file of at most "
            f"{(MAX_GRAPH - ROOM) / 1e6:,.0f} MB; export a SavedModel without --freeze."
        )


def with_constants(model: keras.Model, features: Mapping[str, tf.TensorSpec], *, packed: bool = True) -> Any:
    """A concrete function from features of these shapes to the model's outputs without dropout; it has no variables.

    packed: False keeps TensorFlow's kernels from laying out a matrix for the rows of the first call. A converter for another
        runtime needs True

    Raises BertKerasError as `check_size`.
    """
    check_size(model)
    # Read here: inside of the trace a variable has no value.
    trainable, others = (
        [variable.numpy() for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )

    constant = tf.constant if packed else _as_default

    def infer(features: Features) -> Any:
        values = [[constant(value) for value in values] for values in (trainable, others)]
        outputs, _ = model.stateless_call(*values, features, training=False)
        return outputs

    return tf.function(infer, autograph=False).get_concrete_function(dict(features))


def _as_default(value: np.ndarray) -> tf.Tensor:
    """A constant that no optimization of the graph takes for one."""
    return tf.compat.v1.placeholder_with_default(tf.constant(value), value.shape)
