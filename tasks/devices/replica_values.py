"""Variables with a value of its own in each replica, such as the sums of metrics: read and set in all replicas."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_keras.optimization.replicas import replica_sum


class ReplicaValues:
    """Variables whose value is the sum over replicas.

    A sum that is read as one number and then divided again among the replicas rounds differently later.
    """

    def __init__(self, distribution: tf.distribute.Strategy, variables: Sequence[keras.Variable]) -> None:
        self._distribution, self._variables = distribution, [*variables]

        def one_in_replica() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            place, count = context.replica_id_in_sync_group, context.num_replicas_in_sync
            rows = [tf.convert_to_tensor(variable.value)[tf.newaxis] for variable in self._variables]
            own = [tf.scatter_nd([[place]], row, [count, *row.shape[1:]]) for row in rows]
            return replica_sum(own)

        def set_in_replica(values: list[tf.Tensor]) -> None:
            place = tf.distribute.get_replica_context().replica_id_in_sync_group
            for variable, value in zip(self._variables, values, strict=True):
                variable.value.assign(value[place])

        self._read = tf.function(lambda: distribution.run(one_in_replica), autograph=False)
        self._set = tf.function(
            lambda values: distribution.run(set_in_replica, args=(values,)), autograph=False
        )

    def read(self) -> list[np.ndarray]:
        """The values [replicas, ...] of each variable. Every worker must call it."""
        if not self._variables:
            return []
        return [self._distribution.experimental_local_results(one)[0].numpy() for one in self._read()]

    def set(self, values: Sequence[np.ndarray]) -> None:
        """Sets each variable to values [replicas, ...]. If they are of another number of replicas, the first gets the sum."""
        if not self._variables:
            return
        count = self._distribution.num_replicas_in_sync
        self._set(
            [tf.constant(value if len(value) == count else _in_first(value, count)) for value in values]
        )


def _in_first(value: np.ndarray, count: int) -> np.ndarray:
    total = value.sum(axis=0, dtype=value.dtype, keepdims=True)
    return np.concatenate([total, np.zeros([count - 1, *value.shape[1:]], value.dtype)])
