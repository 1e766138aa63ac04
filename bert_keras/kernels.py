"""Operations in the form that TensorFlow's CPU kernels fuse; in the form of `keras.ops` for other devices, types and backends.

In: tensors of a layer. Out: the same numbers up to rounding. When a graph runs, TensorFlow finds patterns of plain operations and
puts one oneDNN kernel in the place of each; a saved graph has only plain operations. tests/test_kernels.py counts the kernels.
"""

import functools
import math
from typing import Any

import keras
from keras import ops

FUSED_TYPES = ("float32", "bfloat16")  # that oneDNN has kernels for


def gelu_tanh(x: Any) -> Any:
    """The gelu of google-research/bert modeling.py. Not `ops.gelu`, whose constants are float32 even where x is float64."""
    # x * x * x, and not x * (1 + c * x * x): so it is one kernel with the product before it.
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


def gelu_erf(x: Any) -> Any:
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016): what `gelu` means to Hugging Face."""
    # In this order it is one kernel with the product before it.
    return 0.5 * (1.0 + ops.erf(math.sqrt(0.5) * x)) * x


def attention_scores(query: Any, key: Any, scale: float, mask: Any) -> Any:
    """query @ transposed key * scale + mask, one kernel in an inference: float [B, A, Q, S].

    query: float [B, A, Q, D]; key: float [B, A, S, D]; mask: float [B, 1, 1 or Q, S]
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.matmul(query, key, transpose_b=True) * scale + mask
    return ops.matmul(query, ops.swapaxes(key, -1, -2)) * scale + mask


def reshape_like(x: Any, like: Any) -> Any:
    """x in the shape of another tensor. TensorFlow then sees that a sum of both broadcasts nothing: it fuses no other sum."""
    if keras.backend.backend() != "tensorflow":
        return ops.reshape(x, ops.shape(like))
    import tensorflow as tf

    return tf.reshape(x, tf.shape(like))


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float, *, dtype: str, training: bool) -> Any:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axis: float [..., width] -> the same shape.

    dtype: of the sums, float32 or wider
    training: True keeps the form whose gradient is faster
    """
    if not training and _fuses(x):
        return _fused_layer_norm(x, ops.cast(gamma, x.dtype), ops.cast(beta, x.dtype), epsilon)
    wide = ops.cast(x, dtype)
    mean = ops.mean(wide, axis=-1, keepdims=True)
    centred = wide - mean
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    normed = centred * ops.rsqrt(variance + epsilon)
    return ops.cast(normed * ops.cast(gamma, dtype) + ops.cast(beta, dtype), x.dtype)


def _fuses(x: Any) -> bool:
    """True in a graph of TensorFlow on a CPU with oneDNN, which alone has the fused kernels."""
    if keras.backend.backend() != "tensorflow" or not hasattr(x, "graph"):  # an eager tensor has none
        return False
    import tensorflow as tf

    return x.dtype.name in FUSED_TYPES and not tf.config.get_visible_devices("GPU") and has_onednn()


@functools.cache
def has_onednn() -> bool:
    """True where TensorFlow's CPU kernels are oneDNN's: by default on processors with AVX-512 VNNI, AMX or the like."""
    try:
        from tensorflow.python.util import _pywrap_util_port
    except ImportError:  # no public function tells it
        return False
    return bool(_pywrap_util_port.IsMklEnabled())


def _fused_layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Batch normalization in its training form over a batch of one, with a channel for each row: what tf.keras' layer was."""
    import tensorflow as tf

    shape, width = tf.shape(x), x.shape[-1]
    rows = tf.reduce_prod(shape[:-1], keepdims=True)
    empty = tf.constant([], tf.float32)
    normed, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, tf.concat([[1], rows, [width, 1]], axis=0)),
        scale=tf.fill(rows, 1.0),
        offset=tf.fill(rows, 0.0),
        mean=empty,
        variance=empty,
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    )
    return tf.reshape(normed, shape) * gamma + beta
