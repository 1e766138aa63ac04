"""Custom gradients for training: they keep less in memory and take fewer operations than those that TensorFlow derives.

In: the tensors of an operation. Out: its result. TensorFlow only.

All are functions of their own, because TensorFlow never frees a graph that has a custom gradient: the graph of each trained model
would stay, with its variables. These are small, and traced once for each dtype.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

_TANH_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)


def _wide(x: Any) -> Any:
    """A narrow x in float32, where its operations take less time on a CPU and round less."""
    import tensorflow as tf

    return tf.cast(x, tf.float32) if x.dtype.size < 4 else x


def _sums_of_rows(x: Any, like: Any) -> Any:
    """Float [..., width] -> the sums over all rows, [width], in the dtype of x.

    like: float [width]
    """
    import tensorflow as tf

    # Of rank 2, whatever the rank of x in this graph: an optimizer may ask for the rank of a gradient.
    rows = tf.reshape(x, tf.stack([-1, tf.size(like)]))
    if x.dtype.size >= 4:
        return tf.reduce_sum(rows, axis=0)
    # A product adds up in float32, and takes less time than a sum.
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], x.dtype), rows)[0]


def _traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function with a custom gradient, which has a graph of its own; its shape is that of the first argument."""
    made = _graph_of(function, tuple(one.dtype for one in arguments))(*arguments)
    made.set_shape(arguments[0].shape)
    return made


@functools.cache
def _graph_of(function: Callable[..., Any], dtypes: tuple[Any, ...]) -> Callable[..., Any]:
    import tensorflow as tf

    signature = [tf.TensorSpec(None, dtype) for dtype in dtypes]
    return tf.function(tf.custom_gradient(function), autograph=False, input_signature=signature)


def gelu_tanh(x: Any) -> Any:
    """`kernels.gelu_tanh`, as x times a sigmoid; keeps its slope alone, in the dtype of x."""
    return _traced(_gelu_tanh, x)


def _gelu_tanh(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    import tensorflow as tf

    wide = _wide(x)
    square = wide * wide
    part = tf.sigmoid(wide * (_TANH_SLOPE + (_TANH_SLOPE * 0.044715) * square))
    rise = wide * (_TANH_SLOPE + (3 * _TANH_SLOPE * 0.044715) * square)
    slope = tf.cast(part + tf.raw_ops.SigmoidGrad(y=part, dy=rise), x.dtype)
    return tf.cast(wide * part, x.dtype), lambda upstream: upstream * slope


def gelu_erf(x: Any) -> Any:
    """`kernels.gelu_erf`; keeps its slope alone, in the dtype of x."""
    return _traced(_gelu_erf, x)


def _gelu_erf(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    import tensorflow as tf

    wide = _wide(x)
    part = 0.5 + 0.5 * tf.math.erf(math.sqrt(0.5) * wide)
    density = tf.exp(-0.5 * (wide * wide)) * (1.0 / math.sqrt(2.0 * math.pi))
    slope = tf.cast(part + wide * density, x.dtype)
    return tf.cast(wide * part, x.dtype), lambda upstream: upstream * slope


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """`kernels.layer_norm` with gamma and beta in the dtype of the sums; keeps x, and two numbers for each row."""
    return _traced(_layer_norm_of(epsilon), x, gamma, beta)


@functools.cache
def _layer_norm_of(epsilon: float) -> Callable[..., Any]:
    import tensorflow as tf

    def norm(x: Any, gamma: Any, beta: Any) -> tuple[Any, Callable[[Any], Any]]:
        dtype = gamma.dtype
        wide = tf.cast(x, dtype)
        mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
        centred = wide - mean
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True) + epsilon)

        def gradient(upstream: Any) -> tuple[Any, Any, Any]:
            upstream = tf.cast(upstream, dtype)
            normed = (tf.cast(x, dtype) - mean) * scale
            product, scaled = upstream * normed, upstream * gamma
            along = tf.reduce_mean(product * gamma, axis=-1, keepdims=True)
            of_x = (scaled - tf.reduce_mean(scaled, axis=-1, keepdims=True) - normed * along) * scale
            of_gamma, of_beta = (_sums_of_rows(one, gamma) for one in (product, upstream))
            return tf.cast(of_x, x.dtype), of_gamma, of_beta

        return tf.cast(centred * scale * gamma + beta, x.dtype), gradient

    return norm


def add_bias(x: Any, bias: Any) -> Any:
    """x + bias, float [N, width] and [width].

    On a CPU, TensorFlow's own gradient of a bias in bfloat16 adds up in bfloat16: a sum of ones stops at 256.
    """
    return _traced(_add_bias, x, bias)


def _add_bias(x: Any, bias: Any) -> tuple[Any, Callable[[Any], Any]]:
    import tensorflow as tf

    # TensorFlow fuses a BiasAdd with the product before it.
    return tf.nn.bias_add(x, bias), lambda upstream: (upstream, _sums_of_rows(upstream, bias))
