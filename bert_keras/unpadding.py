"""Unpadding: the rows of padding are left out of the products of an encoder, and put back where attention needs them.

    padded [B*S, H] -> drop_padding -> [N, H], the N real tokens -> restore_padding -> padded [B*S, H]

TensorFlow only: N is known when the graph runs, so XLA cannot compile it.
"""

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
    import tensorflow as tf

    # Gathers in both directions: TensorFlow's own gradient of a gather adds row by row.
    @tf.custom_gradient
    def gathered(padded: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return _masked(tf.gather(upstream, tokens.rows), tokens)

        return tf.gather(padded, tokens.places), gradient

    return gathered(padded)


def restore_padding(rows: Any, tokens: RealTokens, *, zeros: bool = False) -> Any:
    """Float [N, H] -> [B*S, H]. zeros: padding is 0; otherwise it has any finite numbers, which nothing may read."""
    import tensorflow as tf

    @tf.custom_gradient
    def spread(rows: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return tf.gather(upstream, tokens.places)

        padded = tf.gather(rows, tokens.rows)
        return _masked(padded, tokens) if zeros else padded, gradient

    return spread(rows)


def _masked(padded: Any, tokens: RealTokens) -> Any:
    import tensorflow as tf

    return tf.where(tokens.real[:, tf.newaxis], padded, tf.zeros([], padded.dtype))
