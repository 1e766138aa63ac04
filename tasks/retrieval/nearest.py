"""The nearest vectors, exact, as a TensorFlow module that an export saves.

In: queries float32 [Q, D] and the vectors of a collection [N, D]. Out: the k highest scores of each query and their rows.
"""

from typing import Any

import numpy as np
import tensorflow as tf

BLOCK = 16_384  # vectors that are compared at once
SPARE = 16  # candidates beyond k, whose scores are computed again
FLOAT32, INT8 = "float32", "int8"
QUERIES, SAMPLE = 64, 256  # queries in one call of `search`, and at most in a measure of int8


class Nearest(tf.Module):
    """The k nearest of all vectors, by their product with a query; ties by row.

    vectors: float32 [N, D]
    k: at most N
    dtype: "int8" keeps whole numbers from -127 to 127 and one scale for each vector, a quarter of the memory

    The vectors are a variable: a graph with them as a constant would be a file of at most 2 GB. A product of matrices finds k +
    SPARE candidates; their scores are computed again in float64, because the kernels of a product add up in an order that
    depends on a vector's place, and equal vectors would get scores that differ in the last bit.
    """

    def __init__(self, vectors: np.ndarray, *, k: int, dtype: str = FLOAT32) -> None:
        super().__init__()
        self.k, self.count = k, len(vectors)
        self.scales = None
        if dtype == INT8:
            vectors, scales = to_int8(vectors)
            self.scales = tf.Variable(scales, trainable=False, name="scales")
        self.vectors = tf.Variable(vectors, trainable=False, name="vectors")
        self._search = tf.function(self.__call__, autograph=False, reduce_retracing=True)

    def __call__(self, queries: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Queries float32 [Q, D] -> scores float32 [Q, k] from high to low, rows int32 [Q, k]."""
        kept = min(self.k + SPARE, self.count)

        def step(start: Any, best: Any, rows: Any) -> tuple[Any, Any, Any]:
            block = tf.cast(self.vectors[start : start + BLOCK], tf.float32)
            found = tf.matmul(queries, block, transpose_b=True)
            if self.scales is not None:
                found *= self.scales[start : start + BLOCK]
            best, at = tf.math.top_k(tf.concat([best, found], axis=1), kept)
            before = tf.gather(rows, tf.minimum(at, kept - 1), batch_dims=1)
            return start + BLOCK, best, tf.where(at < kept, before, start + at - kept)

        shape = [tf.shape(queries)[0], kept]
        begin = [tf.constant(0), tf.fill(shape, -np.inf), tf.zeros(shape, tf.int32)]
        _, _, rows = tf.while_loop(lambda start, *_: start < self.count, step, begin, parallel_iterations=1)
        rows = tf.sort(rows, axis=1)
        near = tf.cast(take_rows(self.vectors, rows), tf.float64)
        if self.scales is not None:
            near *= tf.cast(take_rows(self.scales, rows), tf.float64)[..., tf.newaxis]
        exact = tf.reduce_sum(tf.cast(queries, tf.float64)[:, tf.newaxis] * near, axis=-1)
        scores, at = tf.math.top_k(exact, self.k)
        return tf.cast(scores, tf.float32), tf.gather(rows, at, batch_dims=1)

    def search(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The call for any number of queries, as arrays."""
        found = [self._search(tf.constant(queries[i : i + QUERIES])) for i in range(0, len(queries), QUERIES)]
        scores, rows = zip(*found, strict=True)
        return np.concatenate([one.numpy() for one in scores]), np.concatenate([one.numpy() for one in rows])


def take_rows(variable: tf.Variable, rows: Any) -> tf.Tensor:
    """The rows [Q, k, ...] of a variable [N, ...].

    After a `tf.gather` of the variable itself, TensorFlow copies all of it whenever a block of it is read.
    """
    return tf.gather(tf.convert_to_tensor(variable), rows)


def to_int8(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [N, D] -> int8 [N, D] and scales float32 [N], whose product is nearest to the vectors."""
    scales = np.maximum(np.abs(vectors).max(axis=1), np.finfo(np.float32).tiny).astype(np.float32) / 127
    return np.rint(vectors / scales[:, np.newaxis]).astype(np.int8), scales


def int8_recall(vectors: np.ndarray, *, k: int) -> tuple[float, int]:
    """The mean fraction of a vector's k nearest others in float32 that int8 finds too, and the number of queries.

    vectors: [N, D]; up to SAMPLE of them, evenly spaced, are queries
    """
    queries = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), SAMPLE)).astype(int))
    k = min(k + 1, len(vectors))
    wanted, found = (
        Nearest(vectors, k=k, dtype=dtype).search(vectors[queries])[1] for dtype in (FLOAT32, INT8)
    )
    return recall_of_others(found, wanted, queries), len(queries)


def recall_of_others(found: np.ndarray, wanted: np.ndarray, own: np.ndarray) -> float:
    """The fraction of wanted rows [Q, k] that are among the found rows [Q, k], without the queries' own rows [Q]; 1 of none."""
    parts = [np.isin(one[one != row], other) for one, other, row in zip(wanted, found, own, strict=True)]
    return float(np.concatenate(parts).mean()) if wanted.shape[1] > 1 else 1.0
