"""Unpadding: the rows of padding are left out of the products of an encoder, and put back where attention needs them.

    padded [B*S, H] -> drop_padding -> [N, H], the N real tokens -> restore_padding -> padded [B*S, H]

TensorFlow only: N is known when the graph runs, so XLA cannot compile it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple


class RealTokens(NamedTuple):
    """The places of the tokens to compute of a batch, counted over all rows.

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

    They are functions of their own because TensorFlow never frees a graph that has a custom gradient: the graph of each trained
    model would stay, with its variables. These are small, and traced once for each dtype.
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
