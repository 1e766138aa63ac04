"""Operations in the form that TensorFlow's CPU kernels fuse; in the form of `keras.ops` for other devices, types and backends.

In: tensors of a layer. Out: the same numbers up to rounding. When a graph runs, TensorFlow finds patterns of plain operations and
puts one oneDNN kernel in the place of each; a saved graph has only plain operations. tests/test_kernels.py counts the kernels.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
from keras import ops

FUSED_TYPES = ("float32", "bfloat16")  # that oneDNN has kernels for
# Numbers of an input under which plain operations take less time than oneDNN's layer normalization, which needs 50 to 100
# microseconds to begin: they cross near 170 rows of 384, and 85 of 768, in both types.
SMALL = 2**16
_PLAIN = contextvars.ContextVar("plain_operations", default=False)


def wide(dtype: Any) -> Any:
    """A dtype, or a dtype policy, with float32 in place of bfloat16 and float16: for sums and for logits.

    dtype: the name of a dtype, a policy or its name; None takes Keras' global policy
    """
    policy = keras.dtype_policies.get(keras.config.dtype_policy() if dtype is None else dtype)
    return "float32" if policy.compute_dtype in ("bfloat16", "float16") else dtype


@contextlib.contextmanager
def plain_operations() -> Iterator[None]:
    """A context in which a traced graph has no form for TensorFlow's kernels: other runtimes convert it and fuse it."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def on_tensorflow() -> bool:
    """True where Keras runs on TensorFlow, which has the kernels and the custom gradients of this file."""
    return keras.backend.backend() == "tensorflow"


def look_up(table: Any, ids: Any) -> Any:
    """The rows of a table at ids: float [V, E], int32 [...] -> float [..., E].

    The reshape makes the table's gradient one tensor. That of a lookup alone is slices, in which a row may repeat, and Keras'
    optimizers square the slices before they sum them.
    """
    return ops.take(ops.reshape(table, table.shape), ids, axis=0)


# The activations and `layer_norm` take `training`: True uses a gradient that needs less memory.


def gelu_tanh(x: Any, *, training: bool = False) -> Any:
    """The gelu of google-research/bert modeling.py. Not `ops.gelu`, whose constants are float32 even where x is float64.

    Unlike the textbook: gelu is its tanh form, with which the released weights were trained; it differs from the erf form by up
    to 4.8e-4.
    """
    if training and on_tensorflow():
        return _traced(_gelu_tanh, x)
    # x * x * x, and not x * (1 + c * x * x): so it is one kernel with the product before it.
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


def gelu_erf(x: Any, *, training: bool = False) -> Any:
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016): what `gelu` means to Hugging Face."""
    if training and on_tensorflow():
        return _traced(_gelu_erf, x)
    # In this order it is one kernel with the product before it, and one op of TensorFlow Lite, which has no erf.
    return x * 0.5 * (1.0 + ops.erf(x * math.sqrt(0.5)))


ACTIVATIONS = {
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "relu": lambda x, *, training=False: ops.relu(x),
    "silu": lambda x, *, training=False: ops.silu(x),
    "tanh": lambda x, *, training=False: ops.tanh(x),
    "linear": lambda x, *, training=False: x,
}


def add_bias(x: Any, bias: Any, *, training: bool = False) -> Any:
    """x + bias, one kernel with the product before it: float [N, width] and [width].

    training: True sums the gradient of the bias in float32
    """
    if training and on_tensorflow() and x.dtype.name == "bfloat16" and _is_on_cpu():
        return _traced(_add_bias, x, bias)
    # Keras adds by TensorFlow's BiasAdd here, which its CPU kernels fuse with the product; `+` is not.
    return ops.add(x, bias)


def attention_scores(query: Any, key: Any, scale: float, mask: Any, *, training: bool = False) -> Any:
    """query @ transposed key * scale + mask, one kernel in an inference: float [B, A, Q, S].

    query: float [B, A, Q, D]; key: float [B, A, S, D]; mask: float [B, 1, 1 or Q, S]
    training: True scales the query, which has fewer numbers than the scores
    """
    if training:
        query = query * scale
    if on_tensorflow():
        import tensorflow as tf

        scores = tf.matmul(query, key, transpose_b=True)
    else:
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
    return (scores if training else scores * scale) + mask


def swap_heads(x: Any, *, training: bool) -> Any:
    """Exchanges positions and heads: [B, S, A, D] -> [B, A, S, D], or back.

    An inference has a form that TensorFlow leaves to its own kernel: oneDNN's for floats needs about 30 microseconds to begin,
    more than it takes for one short text.
    """
    if training or not _fuses(x):
        return ops.transpose(x, (0, 2, 1, 3))
    import tensorflow as tf

    return tf.einsum("abcd->acbd", x)


def reshape_like(x: Any, like: Any) -> Any:
    """x in the shape of another tensor. TensorFlow then sees that a sum of both broadcasts nothing: it fuses no other sum."""
    if not on_tensorflow():
        return ops.reshape(x, ops.shape(like))
    import tensorflow as tf

    return tf.reshape(x, tf.shape(like))


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float, *, dtype: str, training: bool) -> Any:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axis: float [..., width] -> the same shape.

    dtype: of the sums, float32 or wider
    """
    if training and on_tensorflow():
        return _traced(_layer_norm_of(epsilon), x, ops.cast(gamma, dtype), ops.cast(beta, dtype))

    if not _fuses(x):
        return _plain_layer_norm(x, gamma, beta, epsilon, dtype)
    import tensorflow as tf

    gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
    made = tf.cond(
        tf.size(x) < SMALL,
        lambda: _plain_layer_norm(x, gamma, beta, epsilon, dtype),
        lambda: _fused_layer_norm(x, ops.cast(gamma, x.dtype), ops.cast(beta, x.dtype), epsilon),
    )
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
    if not (on_tensorflow() and _is_on_cpu()):
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


def _is_on_cpu() -> bool:
    """True where TensorFlow has neither a GPU nor a TPU."""
    import tensorflow as tf

    return not tf.config.get_visible_devices("GPU") and not tf.config.list_logical_devices("TPU")


def fuses(dtype: str) -> bool:
    """True where graphs of TensorFlow have the fused kernels of a type: on a CPU with oneDNN."""
    return on_tensorflow() and not _PLAIN.get() and dtype in FUSED_TYPES and _is_on_cpu() and has_onednn()


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


# -----------------------------------------------------------------------------------------------------------
# Custom gradients for training: they keep less in memory and take fewer operations than those that TensorFlow derives
#
# All are functions of their own, because TensorFlow never frees a graph that has a custom gradient: the graph of each trained
# model would stay, with its variables. These are small, and traced once for each dtype.

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
    """The result of a function with a custom gradient, in a graph of its own; its shape is that of the first argument."""
    made = _graph_of(function, tuple(one.dtype for one in arguments))(*arguments)
    made.set_shape(arguments[0].shape)
    return made


@functools.cache
def _graph_of(function: Callable[..., Any], dtypes: tuple[Any, ...]) -> Callable[..., Any]:
    import tensorflow as tf

    signature = [tf.TensorSpec(None, dtype) for dtype in dtypes]
    return tf.function(tf.custom_gradient(function), autograph=False, input_signature=signature)


def _gelu_tanh(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """`gelu_tanh`, as x times a sigmoid; keeps its slope alone, in the dtype of x."""
    import tensorflow as tf

    wide = _wide(x)
    square = wide * wide
    part = tf.sigmoid(wide * (_TANH_SLOPE + (_TANH_SLOPE * 0.044715) * square))
    rise = wide * (_TANH_SLOPE + (3 * _TANH_SLOPE * 0.044715) * square)
    slope = tf.cast(part + tf.raw_ops.SigmoidGrad(y=part, dy=rise), x.dtype)
    return tf.cast(wide * part, x.dtype), lambda upstream: upstream * slope


def _gelu_erf(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """`gelu_erf`; keeps its slope alone, in the dtype of x."""
    import tensorflow as tf

    wide = _wide(x)
    part = 0.5 + 0.5 * tf.math.erf(math.sqrt(0.5) * wide)
    density = tf.exp(-0.5 * (wide * wide)) * (1.0 / math.sqrt(2.0 * math.pi))
    slope = tf.cast(part + wide * density, x.dtype)
    return tf.cast(wide * part, x.dtype), lambda upstream: upstream * slope


@functools.cache
def _layer_norm_of(epsilon: float) -> Callable[..., Any]:
    """`layer_norm` with gamma and beta in the dtype of the sums; keeps x, and two numbers for each row."""
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


def _add_bias(x: Any, bias: Any) -> tuple[Any, Callable[[Any], Any]]:
    """`add_bias`. On a CPU, TensorFlow's own gradient of a bias in bfloat16 adds up in bfloat16: a sum of ones stops at 256."""
    import tensorflow as tf

    # TensorFlow fuses a BiasAdd with the product before it.
    return tf.nn.bias_add(x, bias), lambda upstream: (upstream, _sums_of_rows(upstream, bias))


# -----------------------------------------------------------------------------------------------------------
# Unpadding: an encoder leaves the rows of padding out of its products, and puts them back where attention needs them
#
#     padded [B*S, H] -> drop_padding -> [N, H], the N real tokens -> restore_padding -> padded [B*S, H]
#
# TensorFlow only: N is known when the graph runs, so XLA cannot compile it.


class RealTokens(NamedTuple):
    """The places of a batch's tokens that are computed, counted over all rows.

    places: int32 [N], the place in [B*S] of each real token
    rows: int32 [B*S], the index in [N] of each place; padding has that of a token before it in its row
    real: bool [B*S]
    """

    places: Any
    rows: Any
    real: Any


def real_tokens(mask: Any) -> RealTokens:
    """The real tokens of a mask, int32 [B, S].

    The first token of each row is one of them, because the pooler reads it; so are all tokens of a row without real ones, which
    attend to each other. So padding never reads another row.
    """
    import tensorflow as tf

    first = tf.range(tf.shape(mask)[1]) == 0
    empty = tf.reduce_all(mask <= 0, axis=1, keepdims=True)
    real = tf.reshape((mask > 0) | first | empty, [-1])
    places = tf.cast(tf.where(real)[:, 0], tf.int32)
    return RealTokens(places, tf.cumsum(tf.cast(real, tf.int32)) - 1, real)


def drop_padding(padded: Any, tokens: RealTokens) -> Any:
    """The rows of real tokens: float [B*S, H] -> [N, H]."""
    return _gathers()[0](padded, *tokens)


def restore_padding(rows: Any, tokens: RealTokens, *, zeros: bool = False) -> Any:
    """Float [N, H] -> [B*S, H]. zeros: padding is 0; otherwise it has any finite numbers, which nothing may read."""
    return _gathers()[2 if zeros else 1](rows, *tokens)


@functools.cache
def _gathers() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Gathers, whose gradients are gathers too: TensorFlow's own gradient of a gather adds row by row.

    Each is a `tf.function` of its own, as all custom gradients of this file.
    """
    import tensorflow as tf

    def masked(padded: Any, real: Any) -> Any:
        return tf.where(real[:, tf.newaxis], padded, tf.zeros([], padded.dtype))

    @tf.custom_gradient
    def drop(padded: Any, places: Any, rows: Any, real: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return masked(tf.gather(upstream, rows), real), None, None, None

        return tf.gather(padded, places), gradient

    @tf.custom_gradient
    def restore(states: Any, places: Any, rows: Any, real: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return tf.gather(upstream, places), None, None, None

        return tf.gather(states, rows), gradient

    made = drop, restore, lambda *given: masked(restore(*given), given[-1])
    return tuple(tf.function(one, autograph=False, reduce_retracing=True) for one in made)


# -----------------------------------------------------------------------------------------------------------
# Weights as constants of a graph, which TensorFlow's CPU kernels lay out for the processor's matrix unit once

LARGEST = 2**30  # bytes of all weights: a graph holds them too, and is at most twice as large


def packed_weights(layer: keras.layers.Layer) -> contextlib.AbstractContextManager[Any]:
    """A context in which the weights of a layer are constants for a graph of TensorFlow, where an inference gains by it.

    Enter it within the function that is traced. The graph keeps the values of this moment, and changes no state of the layer.
    A variable is laid out in every call, which is much of the time of an inference in bfloat16, and little of one in float32.

    layer: all that is called in the context; its weights stay as they are while the graph is used
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
