"""The functions that `fit` and `evaluate` call: a step in every replica, and several steps in one execution.

In: a model's step, an iterator of batches. Out: logs over all replicas. On the TensorFlow backend.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras


def function_of(
    model: Any, step: Callable[[Any], Any], *, left: Callable[[], int | None] = lambda: None
) -> Callable[[Any], Any]:
    """A function of an iterator that runs a step in every replica and returns logs.

    left: the most steps that the next execution may run; None runs `steps_per_execution`

    The logs of a step that returns the model's metrics are over the rows of all replicas. For other logs, as of a subclass's own
    `train_step`, they are the mean over the replicas, as in Keras.
    """
    import tensorflow as tf

    strategy = model.distribute_strategy
    if model.jit_compile and not model.run_eagerly:
        step = tf.function(step, jit_compile=True, reduce_retracing=True, autograph=False)

    def of_replica(data: Any) -> Any:
        made = step(data)
        # The mean of the replicas' metrics is not the metric of all rows: `logs` reads it.
        return () if isinstance(made, dict) and {*made} == {*model.get_metrics_result()} else made

    def run(data: Any) -> Any:
        # `fit` wraps what is None.
        data = keras.tree.map_structure(
            lambda part: None if isinstance(part, tf.experimental.Optional) else part, data
        )
        made = strategy.run(of_replica, args=(data,))
        return keras.tree.map_structure(lambda one: strategy.reduce("MEAN", one, axis=None), made)

    def logs(made: Any) -> Any:
        return model.get_metrics_result() if made == () else made

    def steps(iterator: Any, count: Any) -> Any:
        made = run(next(iterator))  # raises where no batch is left, which ends Keras' epoch
        if count is not None:
            made = _more_steps(run, iterator, made, count - 1)
        return logs(made)

    traced = steps if model.run_eagerly else tf.function(steps, reduce_retracing=True, autograph=False)
    one = run if model.run_eagerly else tf.function(run, reduce_retracing=True, autograph=False)

    def function(iterator: Any) -> Any:
        if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            most = model.steps_per_execution
            return traced(iterator, tf.constant(min(most, left() or most)) if most > 1 else None)
        made = [one(data) for data in iterator]  # `train_on_batch`
        return logs(made[-1])

    return function


def _more_steps(run: Callable[[Any], Any], iterator: Any, made: Any, count: Any) -> Any:
    """Runs up to `count` more steps while batches are left; returns what the last one made.

    made: what the step before them made
    """
    import tensorflow as tf

    def draw_and_run(step: Any, made: Any) -> tuple[Any, Any]:
        batch = iterator.get_next_as_optional()
        # A step after `count` ends the loop.
        return tf.cond(
            batch.has_value(),
            lambda: (step + 1, run(batch.get_value())),
            lambda: (count, made),
        )

    return tf.while_loop(
        lambda step, _: step < count, draw_and_run, (tf.constant(0), made), parallel_iterations=1
    )[1]


class WholeEpochs(keras.callbacks.Callback):
    """Ends the last execution of an epoch at `steps_per_epoch`, although the data set goes on."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        steps = self.params["steps"]  # None for data of unknown length, which ends the epoch itself
        self.model.steps_left = None if steps is None else steps - batch


def with_callback(
    callback: keras.callbacks.Callback, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments of `fit` with one more callback. A CallbackList, which has its model already, is left as it is."""
    place = 5  # of callbacks
    given = arguments[place] if len(arguments) > place else keywords.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        return arguments, dict(keywords)
    more = [callback, *keras.tree.flatten(given or [])]
    if len(arguments) > place:
        return [*arguments[:place], more, *arguments[place + 1 :]], dict(keywords)
    return arguments, {**keywords, "callbacks": more}
