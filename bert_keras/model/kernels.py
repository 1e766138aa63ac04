"""Operations in the form that TensorFlow's CPU kernels fuse; in the form of `keras.ops` for other devices, types and backends.

In: tensors of a layer. Out: the same numbers up to rounding. When a graph runs, TensorFlow finds patterns of plain operations and
puts one oneDNN kernel in the place of each; a saved graph has only plain operations. tests/test_kernels.py counts the kernels.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from bert_keras.model import gradients

FUSED_TYPES = ("float32", "bfloat16")  # that oneDNN has kernels for
# Numbers of an input under which plain operations take less time than oneDNN's layer normalization, which needs 50 to 100
# microseconds to begin: they cross near 170 rows of 384, and 85 of 768, in both types.
SMALL = 2**16
_PLAIN = contextvars.ContextVar("plain_operations", default=False)


@contextlib.contextmanager
def plain_operations() -> Iterator[None]:
    """Within it, a traced graph has no form for TensorFlow's kernels: other runtimes convert it, and fuse in their own way."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def gelu_tanh(x: Any, *, training: bool = False) -> Any:
    """The gelu of google-research/bert modeling.py. Not `ops.gelu`, whose constants are float32 even where x is float64.

    training: True uses a gradient that needs less memory
    """
    if training and _has_gradients():
        return gradients.gelu_tanh(x)
    # x * x * x, and not x * (1 + c * x * x): so it is one kernel with the product before it.
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


def gelu_erf(x: Any, *, training: bool = False) -> Any:
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016): what `gelu` means to Hugging Face.

    training: True uses a gradient that needs less memory
    """
    if training and _has_gradients():
        return gradients.gelu_erf(x)
    # In this order it is one kernel with the product before it.
    return 0.5 * (1.0 + ops.erf(math.sqrt(0.5) * x)) * x


def add_bias(x: Any, bias: Any, *, training: bool = False) -> Any:
    """x + bias, one kernel with the product before it: float [N, width] and [width].

    training: True sums the gradient of the bias in float32
    """
    if training and _has_gradients() and x.dtype.name == "bfloat16" and _is_on_cpu():
        return gradients.add_bias(x, bias)
    # Keras adds by TensorFlow's BiasAdd here, which its CPU kernels fuse with the product; `+` is not.
    return ops.add(x, bias)


def attention_scores(query: Any, key: Any, scale: float, mask: Any, *, training: bool = False) -> Any:
    """query @ transposed key * scale + mask, one kernel in an inference: float [B, A, Q, S].

    query: float [B, A, Q, D]; key: float [B, A, S, D]; mask: float [B, 1, 1 or Q, S]
    training: True scales the query, which has fewer numbers than the scores
    """
    if training:
        query = query * scale
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        scores = tf.matmul(query, key, transpose_b=True)
    else:
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
    return (scores if training else scores * scale) + mask


def swap_heads(x: Any, *, training: bool) -> Any:
    """Exchanges positions and heads: [B, S, A, D] -> [B, A, S, D], or back.

    training: True keeps the form of `keras.ops`
    """
    if training or not _fuses(x):
        return ops.transpose(x, _SWAPPED)
    return _swapped_as_einsum(x)


_SWAPPED = (0, 2, 1, 3)


def reshape_like(x: Any, like: Any) -> Any:
    """x in the shape of another tensor. TensorFlow then sees that a sum of both broadcasts nothing: it fuses no other sum."""
    if keras.backend.backend() != "tensorflow":
        return ops.reshape(x, ops.shape(like))
    import tensorflow as tf

    return tf.reshape(x, tf.shape(like))


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float, *, dtype: str, training: bool) -> Any:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axis: float [..., width] -> the same shape.

    dtype: of the sums, float32 or wider
    training: True uses a gradient that needs less memory
    """
    if training and _has_gradients():
        return gradients.layer_norm(x, ops.cast(gamma, dtype), ops.cast(beta, dtype), epsilon)

    def plain() -> Any:
        return _plain_layer_norm(x, gamma, beta, epsilon, dtype)

    def fused() -> Any:
        return _fused_layer_norm(x, ops.cast(gamma, x.dtype), ops.cast(beta, x.dtype), epsilon)

    if not _fuses(x):
        return plain()
    import tensorflow as tf

    gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
    made = tf.cond(tf.size(x) < SMALL, plain, fused)
    made.set_shape(x.shape)
    return made


def _plain_layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float, dtype: str) -> Any:
    wide = ops.cast(x, dtype)
    mean = ops.mean(wide, axis=-1, keepdims=True)
    centred = wide - mean
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    normed = centred * ops.rsqrt(variance + epsilon)
    return ops.cast(normed * ops.cast(gamma, dtype) + ops.cast(beta, dtype), x.dtype)


def dropout(x: Any, rate: float, seeds: keras.random.SeedGenerator) -> Any:
    """Numbers of x, each set to 0 with probability `rate`, or divided by the probability that it stays.

    rate: from 0 to 1; on a CPU, the nearest multiple of 1/65536 below 1
    seeds: gives a seed for each call

    TensorFlow's own draws 32 bits for a number. Drawing is most of the time on a CPU, and 16 bits are enough.
    """
    if keras.backend.backend() != "tensorflow" or not _is_on_cpu():
        return keras.random.dropout(x, rate, seed=seeds)
    import tensorflow as tf

    threshold = min(round(rate * 2**16), 2**16 - 1)
    # The seed as keras.random reads it: an int64 variable, where TensorFlow wants int32.
    seed = tf.cast(tf.cast(seeds.next(), tf.int64) % tf.int32.max, tf.int32)
    size = tf.size(x)
    bits = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
    drawn = tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:size]
    stays = tf.reshape(drawn >= tf.constant(threshold, tf.uint16), tf.shape(x))
    return tf.where(stays, x * (1 / (1 - threshold / 2**16)), tf.zeros([], x.dtype))


def _has_gradients() -> bool:
    """True where `bert_keras.model.gradients` works."""
    return keras.backend.backend() == "tensorflow"


def _is_on_cpu() -> bool:
    """True where TensorFlow has neither a GPU nor a TPU."""
    import tensorflow as tf

    return not tf.config.get_visible_devices("GPU") and not tf.config.list_logical_devices("TPU")


def fuses(dtype: str) -> bool:
    """True where graphs of TensorFlow have the fused kernels of a type: on a CPU with oneDNN."""
    if keras.backend.backend() != "tensorflow":
        return False
    return not _PLAIN.get() and dtype in FUSED_TYPES and _is_on_cpu() and has_onednn()


def _fuses(x: Any) -> bool:
    """True for a tensor of a graph that has the fused kernels of its type."""
    return hasattr(x, "graph") and fuses(x.dtype.name)  # an eager tensor has no graph


@functools.cache
def has_onednn() -> bool:
    """True where TensorFlow's CPU kernels are oneDNN's: by default on processors with AVX-512 VNNI, AMX or the like."""
    try:
        from tensorflow.python.util import _pywrap_util_port
    except ImportError:  # no public function tells it
        return False
    return bool(_pywrap_util_port.IsMklEnabled())


def _swapped_as_einsum(x: Any) -> Any:
    """A transposition that TensorFlow leaves to its own kernel.

    oneDNN's kernel for floats needs about 30 microseconds to begin, more than it takes for one short text.
    """
    import tensorflow as tf

    return tf.einsum("abcd->acbd", x)


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
