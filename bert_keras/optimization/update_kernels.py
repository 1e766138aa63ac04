"""Parts of an optimizer's step as kernels of TensorFlow, or as plain operations for other backends.

In: gradients, and variables to change. With plain operations, all gradients and variables have a copy at the same time, because
TensorFlow runs the first operation of each variable before the second operation of any.
"""

from typing import Any

import keras
from keras import ops

from bert_keras.model.kernels import on_tensorflow


def dense(gradient: Any) -> Any:
    """The gradient as one tensor; TensorFlow gives that of an embedding as slices, in which a row may repeat."""
    if not on_tensorflow():
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def square_sum(x: Any) -> Any:
    """The sum of the squares of all numbers: a float32 or wider number."""
    wide = x if keras.backend.standardize_dtype(x.dtype) == "float64" else ops.cast(x, "float32")
    if not on_tensorflow():
        return ops.sum(ops.square(wide))
    import tensorflow as tf

    return 2.0 * tf.nn.l2_loss(wide)


def decay(variable: Any, rate: Any) -> None:
    """Subtracts rate * variable from a variable, on TensorFlow a tf.Variable; rate: a number of its dtype."""
    if not on_tensorflow():
        variable.assign(variable - rate * variable)
        return
    import tensorflow as tf

    tf.raw_ops.ResourceApplyGradientDescent(
        var=variable.handle, alpha=rate, delta=ops.convert_to_tensor(variable)
    )


def adam(
    variable: Any,
    momentum: keras.Variable,
    velocity: keras.Variable,
    gradient: Any,
    *,
    rate: Any,
    beta_1: Any,
    beta_2: Any,
    epsilon: float,
) -> None:
    """Adam's step without bias correction, one pass over all three on TensorFlow; numbers of its dtype, or Python's."""
    if not on_tensorflow():
        momentum.assign(momentum + (gradient - momentum) * (1 - beta_1))
        velocity.assign(velocity + (ops.square(gradient) - velocity) * (1 - beta_2))
        variable.assign(variable - rate * momentum / (ops.sqrt(velocity) + epsilon))
        return
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.value.handle,
        v=velocity.value.handle,
        beta1_power=0.0,  # a power of 0 turns the bias correction off
        beta2_power=0.0,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=gradient,
    )
