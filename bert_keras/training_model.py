"""The model that trains: one step for every strategy, on the TensorFlow backend.

In: batches (features, labels, weights). Out: updates, and logs over all replicas. Later forms of a step (precision, accumulation,
more strategies) belong here and nowhere else.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import keras

from bert_keras.heads import gives_logits


class TrainingSteps:
    """The steps of `fit` and `evaluate`, for a model that lists this class before `keras.Model`.

    A step logs the results of the metrics over all replicas. Keras' own step logs the mean of the replicas' results. To build a
    model under a strategy, Keras reads a first batch: it fails where the replicas' parts differ in size, and the data's
    order moves on.
    Other backends keep Keras' steps.
    """

    def compile(self: Any, *arguments: Any, **keywords: Any) -> None:
        """As Keras does; warns of a loss of probabilities on the logits of a head."""
        super().compile(*arguments, **keywords)  # type: ignore[misc]
        # Only a functional model knows the layers of its outputs.
        outputs = getattr(getattr(self, "network", self), "outputs", None) or ()
        heads = [head for head in map(gives_logits, outputs) if head]
        for loss in keras.tree.flatten(self.loss) if heads else ():
            if _takes_probabilities(loss):
                name = getattr(loss, "name", None) or getattr(loss, "__name__", loss)
                warnings.warn(
                    f"{', '.join(heads)} gives logits and the loss {name} takes probabilities; compile with from_logits=True, as "
                    "in keras.losses.SparseCategoricalCrossentropy(from_logits=True).",
                    stacklevel=2,
                )

    def train_step(self: Any, *data: Any) -> Any:
        """One update from one replica's part of a batch, (x, y) or (x, y, sample_weight)."""
        if keras.backend.backend() != "tensorflow":
            return super().train_step(*data)  # type: ignore[misc]
        import tensorflow as tf

        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(*data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        variables = self.trainable_weights
        self.optimizer.apply(tape.gradient(scaled, variables), variables)
        return self._counted(loss, x, y, y_pred, sample_weight)

    def test_step(self: Any, *data: Any) -> Any:
        """One replica's part of a batch, measured."""
        if keras.backend.backend() != "tensorflow":
            return super().test_step(*data)  # type: ignore[misc]
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(*data)
        y_pred = self(x, training=False)
        loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
        return self._counted(loss, x, y, y_pred, sample_weight)

    def _counted(self: Any, loss: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> dict[str, Any]:
        """Updates the metrics; `loss` is this replica's share of the sum over all replicas."""
        # The mean over all weights of an epoch: rows of weight 0, which fill batches up, do not count.
        count = keras.ops.shape(keras.tree.flatten(x)[0])[0]
        weight = keras.ops.sum(sample_weight) if keras.ops.is_tensor(sample_weight) else count
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(
                    loss * self.distribute_strategy.num_replicas_in_sync, sample_weight=weight
                )
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def make_train_function(self: Any, force: bool = False) -> Callable[..., Any]:
        """Makes the function that `fit` calls with an iterator: it runs `steps_per_execution` steps."""
        if keras.backend.backend() != "tensorflow":
            return super().make_train_function(force)  # type: ignore[misc]
        if self.train_function is None or force:
            self.train_function = _function_of(self, self.train_step)
        return self.train_function

    def make_test_function(self: Any, force: bool = False) -> Callable[..., Any]:
        """Makes the function that `evaluate` calls with an iterator."""
        if keras.backend.backend() != "tensorflow":
            return super().make_test_function(force)  # type: ignore[misc]
        if self.test_function is None or force:
            self.test_function = _function_of(self, self.test_step)
        return self.test_function

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds the metrics from the data's specification, where Keras reads and averages the replicas' first batches."""
        if keras.backend.backend() == "tensorflow" and iterator is not None:
            data_batch, iterator = _like(iterator.data_adapter.get_tf_dataset().element_spec), None
        super()._maybe_symbolic_build(iterator, data_batch)  # type: ignore[misc]


def _takes_probabilities(loss: Any) -> bool:
    """True for a loss of Keras with from_logits=False, by name, as a function or as an object."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", None) is False
    if not callable(loss):
        return False
    given = inspect.signature(loss).parameters.get("from_logits")
    return given is not None and given.default is False


def _like(spec: Any) -> Any:
    """Zeros of a data set's shapes and types; a dimension that is not known is 1."""
    import tensorflow as tf

    return keras.tree.map_structure(lambda one: tf.zeros([size or 1 for size in one.shape], one.dtype), spec)


def _function_of(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """A function of an iterator that runs a step in every replica and returns the metrics' results over all of them."""
    import tensorflow as tf

    strategy = model.distribute_strategy
    if model.jit_compile and not model.run_eagerly:
        step = tf.function(step, jit_compile=True, reduce_retracing=True)

    def run(data: Any) -> None:
        # `fit` wraps what is None.
        data = keras.tree.map_structure(
            lambda part: None if isinstance(part, tf.experimental.Optional) else part, data
        )
        strategy.run(step, args=(data,))

    def steps(iterator: Any) -> dict[str, Any]:
        for _ in range(model.steps_per_execution):
            run(next(iterator))
        return model.get_metrics_result()

    traced = steps if model.run_eagerly else tf.function(steps, reduce_retracing=True, autograph=False)
    one = run if model.run_eagerly else tf.function(run, reduce_retracing=True, autograph=False)

    def function(iterator: Any) -> dict[str, Any]:
        if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            return traced(iterator)
        for data in iterator:  # `train_on_batch`
            one(data)
        return model.get_metrics_result()

    return function


class TrainingModel(TrainingSteps, keras.Model):
    """A `keras.Model` of the functional form, TrainingModel(inputs, outputs), that trains by TrainingSteps."""
