"""The model that trains: one step for every strategy, and the functions that `fit` and `evaluate` call. TensorFlow backend.

In: batches (features, labels, weights). Out: updates, and logs over all replicas. The forms of a step (micro-batches, precision,
strategies) belong here and nowhere else.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras

from bert_keras.errors import BertKerasError
from bert_keras.model.kernels import on_tensorflow
from bert_keras.optimization.losses import (
    GlobalMean,
    counted_weights,
    micro_batches,
    name_of,
    warn_of_probabilities,
)
from bert_keras.optimization.optimizers import ACCUMULATION
from bert_keras.optimization.replicas import (
    check_order,
    check_scope,
    count_workers,
    prepared,
    replica_context,
    replica_sum,
)
from bert_keras.optimization.vector_losses import BatchLoss


class TrainingSteps:
    """The steps of `fit` and `evaluate`, for a model that lists this class before `keras.Model`.

    A step logs the results of the metrics over all replicas, where Keras' own step logs the mean of the replicas' results. Other
    backends keep Keras' steps.
    """

    micro_batch: int | None = None
    steps_left: int | None = None  # in the epoch; None where that is not known

    def compile(self: Any, *arguments: Any, micro_batch: int | None = None, **keywords: Any) -> None:
        """As Keras does; scales the loss of float16 layers, and warns of a loss of probabilities on the logits of a head.

        micro_batch: rows of a batch that a replica computes at once; None computes its whole part of the batch. The update is
            that of the whole batch: one gradient, divided by the weights of the whole batch, summed over the replicas, clipped
            and applied once

        Raises BertKerasError for micro_batch with a loss that is no GlobalMean, for an optimizer with Keras'
        gradient_accumulation_steps, and for one that scales the loss, as float16 needs, under several replicas.
        """
        check_scope(self)
        if micro_batch is not None and keywords.get("jit_compile", "auto") == "auto":
            keywords["jit_compile"] = False  # batches of any size
        super().compile(*arguments, **keywords)  # type: ignore[misc]
        self.micro_batch = micro_batch
        if keywords.get("auto_scale_loss", True):
            _scale_loss(self)
        _check_scaling(self)
        _check_accumulation(self)
        given = [*arguments[3:5], keywords.get("metrics"), keywords.get("weighted_metrics")]
        warn_of_probabilities(self, given)

    def get_compile_config(self: Any) -> Any:
        config = super().get_compile_config()  # type: ignore[misc]
        return config | {"micro_batch": self.micro_batch} if config and self.micro_batch else config

    def compile_from_config(self: Any, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self: Any, *arguments: Any, **keywords: Any) -> Any:
        """As Keras does; under several workers, each batch of a data set is divided among all replicas.

        A data set is not autotuned, unless its options say so: `without_autotuning` says why.
        """
        check_scope(self)
        self._initial_epoch = None  # a BackupAndRestore of an earlier `fit` left its epoch here
        fit = super().fit  # type: ignore[misc]
        given = inspect.signature(fit).bind(*arguments, **keywords)
        if on_tensorflow() and count_workers(self.distribute_strategy) > 1:
            check_order(given.arguments.get("x"), shuffle=given.arguments.get("shuffle", True))
        callbacks = given.arguments.get("callbacks")
        has_model = isinstance(callbacks, keras.callbacks.CallbackList)
        if self.steps_per_execution > 1 and on_tensorflow() and not has_model:
            given.arguments["callbacks"] = [WholeEpochs(), *keras.tree.flatten(callbacks or [])]
        return fit(*map(prepared, given.args), **_all_prepared(given.kwargs))

    def evaluate(self: Any, *arguments: Any, **keywords: Any) -> Any:
        """As Keras does; batches are divided as in `fit`."""
        check_scope(self)
        return super().evaluate(*map(prepared, arguments), **_all_prepared(keywords))  # type: ignore[misc]

    def predict(self: Any, *arguments: Any, **keywords: Any) -> Any:
        """As Keras does; batches are divided as in `fit`, so that the answers are in the order of the data."""
        return super().predict(*map(prepared, arguments), **_all_prepared(keywords))  # type: ignore[misc]

    def train_step(self: Any, *data: Any) -> Any:
        """One update from one replica's part of a batch, (x, y) or (x, y, sample_weight)."""
        if not on_tensorflow():
            return super().train_step(*data)  # type: ignore[misc]
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(*data)
        whole = any(isinstance(loss, BatchLoss) for loss in keras.tree.flatten(self.loss))
        parts = self._in_two_passes if whole else self._accumulated
        made = self._gradients if self.micro_batch is None else parts
        with counted_weights() as weights:
            loss, gradients = made(x, y, sample_weight)
        self.optimizer.apply(gradients, self.trainable_weights)
        self._count_loss(loss, x, weights)
        return self.get_metrics_result()

    def test_step(self: Any, *data: Any) -> Any:
        """One replica's part of a batch, measured."""
        if not on_tensorflow():
            return super().test_step(*data)  # type: ignore[misc]
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(*data)
        y_pred = self(x, training=False)
        with counted_weights() as weights:
            loss = self._compute_loss(x, y, y_pred, sample_weight, training=False)
        self._count_loss(loss, x, weights)
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def loss_terms(self: Any, y: Any, sample_weight: Any) -> Iterator[tuple[GlobalMean, Any, Any]]:
        """Each loss with its labels and its weights, or None.

        Raises BertKerasError unless each output with a loss has labels, and weights where the others have some.
        """
        names = getattr(self, "output_names", None) or ()

        def in_order(values: Any) -> list[Any]:
            """Values by name in the order of the outputs, since lists are in that order too."""
            if isinstance(values, Mapping) and {*values} <= {*names}:
                values = [values[name] for name in names if name in values]
            return keras.tree.flatten(values)

        outputs = in_order(self.loss)

        def with_loss(values: Any) -> list[Any]:
            found = in_order(values)
            if len(found) != len(outputs):  # only those of the outputs with a loss
                return found
            return [one for one, loss in zip(found, outputs, strict=True) if loss is not None]

        losses, labels, weights = with_loss(self.loss), with_loss(y), with_loss(sample_weight)
        if not keras.tree.is_nested(sample_weight):  # None, or the weights of all outputs
            weights = [sample_weight] * len(losses)
        for name, found in (("labels", labels), ("weights", weights)):
            if len(found) != len(losses):
                raise BertKerasError(
                    f"micro_batch is {self.micro_batch}, with {len(losses)} GlobalMeans and {len(found)} {name}; "
                    f"compile with a GlobalMean or None for each output, and give {name} for each GlobalMean."
                )
        yield from zip(losses, labels, weights, strict=True)

    def _gradients(self: Any, x: Any, y: Any, sample_weight: Any) -> tuple[Any, list[Any]]:
        """The loss of some rows and its gradients, scaled as the optimizer wants; counts the rows in the metrics."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            # Keras' wrapper, since a subclass's compute_loss may not take `training`.
            loss = self._compute_loss(x, y, y_pred, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_weights)
        self.compute_metrics(x, y, y_pred, sample_weight)
        return loss, gradients

    def _accumulated(self: Any, x: Any, y: Any, sample_weight: Any) -> tuple[Any, list[Any]]:
        """`_gradients`, from one micro-batch after the other: the last one may have fewer rows."""
        import tensorflow as tf

        variables, missing = self.trainable_weights, set[int]()
        count, size_at = self._micro_batches_of(x)

        def add(start: Any, loss_sum: Any, sums: list[Any]) -> tuple[Any, ...]:
            size = size_at(start)
            rows = keras.tree.map_structure(lambda one: _rows(one, start, size), (x, y, sample_weight))
            loss, gradients = self._gradients(*rows)
            self._check_added_losses()
            return start + size, loss_sum + loss, _added(sums, gradients, missing)

        begin = (tf.constant(0), tf.constant(0.0), _zeros(variables))
        parts = keras.ops.ceil(count / self.micro_batch)
        with (
            _one_update(self._metrics_of_outputs(x, y, sample_weight), parts),
            micro_batches(self.loss_terms(y, sample_weight)),
        ):
            _, loss, sums = tf.while_loop(lambda start, *_: start < count, add, begin, parallel_iterations=1)
        if (context := replica_context()) is not None:
            loss = replica_sum(loss) / context.num_replicas_in_sync
        return loss, [None if i in missing else one for i, one in enumerate(sums)]

    def _in_two_passes(self: Any, x: Any, y: Any, sample_weight: Any) -> tuple[Any, list[Any]]:
        """`_gradients` of a BatchLoss, which compares the rows of a batch, with one micro-batch's activations at a time.

        The first pass computes the outputs of all micro-batches, the loss and its gradient by the outputs. The second pass
        computes each micro-batch again, with the draws of the first, and the gradient of the weights. Source: Gao et al. 2021.
        """
        import tensorflow as tf

        variables, missing = self.trainable_weights, set[int]()
        count, size_at = self._micro_batches_of(x)
        draws = [one for one in self.variables if one.name == "seed_generator_state"]
        before = [one + 0 for one in draws]

        def part(start: Any) -> tuple[Any, Any]:
            size = size_at(start)
            rows = keras.tree.map_structure(lambda one: _rows(one, start, size), x)
            outputs = self(rows, training=True)
            self._check_added_losses()
            return size, outputs

        def compute(start: Any, found: Any) -> tuple[Any, Any]:
            size, outputs = part(start)
            return start + size, tf.concat([found, outputs], axis=0)

        first = part(tf.constant(0))  # its type is that of all
        shapes = (tf.TensorShape([]), tf.TensorShape([None, *first[1].shape[1:]]))
        _, outputs = tf.while_loop(
            lambda start, *_: start < count, compute, first, shape_invariants=shapes, parallel_iterations=1
        )
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = self._compute_loss(x, y, outputs, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        by_outputs = tape.gradient(scaled, outputs)
        for one, state in zip(draws, before, strict=True):
            one.assign(state)

        def add(start: Any, sums: list[Any]) -> tuple[Any, ...]:
            with tf.GradientTape() as inner:
                size, again = part(start)
            gradients = inner.gradient(again, variables, _rows(by_outputs, start, size))
            return start + size, _added(sums, gradients, missing)

        _, sums = tf.while_loop(
            lambda start, *_: start < count, add, (tf.constant(0), _zeros(variables)), parallel_iterations=1
        )
        self.compute_metrics(x, y, outputs, sample_weight)
        return loss, [None if i in missing else one for i, one in enumerate(sums)]

    def _micro_batches_of(self: Any, x: Any) -> tuple[Any, Callable[[Any], Any]]:
        """The rows of a batch, and a function of the first row of a micro-batch that gives its rows."""
        import tensorflow as tf

        count = keras.ops.shape(keras.tree.flatten(x)[0])[0]
        even = isinstance(count, int) and count % self.micro_batch == 0
        if self.jit_compile and not (even or self.run_eagerly):
            raise BertKerasError(
                f"micro_batch is {self.micro_batch} and jit_compile=True, which needs batches of a known number of rows that "
                f"{self.micro_batch} divides; compile with jit_compile=False."
            )
        return count, lambda start: self.micro_batch if even else tf.minimum(self.micro_batch, count - start)

    def _check_added_losses(self: Any) -> None:
        if self.losses:
            raise BertKerasError(
                f"micro_batch is {self.micro_batch} and layers add losses of their own, such as regularizers; leave one out."
            )

    def _metrics_of_outputs(self: Any, x: Any, y: Any, sample_weight: Any) -> list[keras.metrics.Mean]:
        """Keras' means of the loss of each output; none for a model with one output."""
        losses = self._compile_loss
        if losses is not None and not losses.built and len(keras.tree.flatten(self.loss)) > 1:
            self._symbolic_build(data_batch=(x, y, sample_weight))
        return [] if losses is None else losses.metrics

    def _count_loss(self: Any, loss: Any, x: Any, weights: Sequence[Any]) -> None:
        """Counts a step in the mean loss; `loss` is this replica's share of the sum over all replicas.

        weights: of `counted_weights`. The mean over the epoch divides by their sum, so that it does not depend on the batches
        """
        # Keras' own losses divide by the rows, whatever their weights are.
        losses = [one for one in keras.tree.flatten(self.loss) if one is not None]
        means = bool(losses) and all(isinstance(one, GlobalMean) for one in losses)
        count = keras.ops.shape(keras.tree.flatten(x)[0])[0]
        weight = sum(weights) / len(weights) if means and weights else count
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(
                    loss * self.distribute_strategy.num_replicas_in_sync, sample_weight=weight
                )

    def make_train_function(self: Any, force: bool = False) -> Callable[..., Any]:
        """Makes the function that `fit` calls with an iterator: it runs `steps_per_execution` steps."""
        if not on_tensorflow():
            return super().make_train_function(force)  # type: ignore[misc]
        if self.train_function is None or force:
            self.train_function = make_function(self, self.train_step, left=lambda: self.steps_left)
        return self.train_function

    def make_test_function(self: Any, force: bool = False) -> Callable[..., Any]:
        if not on_tensorflow():
            return super().make_test_function(force)  # type: ignore[misc]
        if self.test_function is None or force:
            self.test_function = make_function(self, self.test_step)
        return self.test_function

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds the metrics from the data's specification, where Keras reads a first batch of each replica.

        Keras fails where the replicas' parts differ in size, and moves the order of the data on.
        """
        if on_tensorflow():
            if self._distribute_strategy is None:  # Keras builds in the trace
                return
            if iterator is not None:
                data_batch, iterator = _like(iterator.data_adapter.get_tf_dataset().element_spec), None
        super()._maybe_symbolic_build(iterator, data_batch)  # type: ignore[misc]


@keras.saving.register_keras_serializable("bert_keras")
class TrainingModel(TrainingSteps, keras.Model):
    """A `keras.Model` of the functional form, TrainingModel(inputs, outputs), that trains by TrainingSteps."""


def _all_prepared(keywords: Mapping[str, Any]) -> dict[str, Any]:
    return {name: prepared(value) for name, value in keywords.items()}


def _scale_loss(model: Any) -> None:
    """Wraps the optimizer if a layer computes in float16. Keras looks at the policy of the model, not of its layers."""
    narrow = any(
        one.compute_dtype == "float16" and one.variable_dtype != "float16" for one in model._flatten_layers()
    )
    scaled = keras.optimizers.LossScaleOptimizer
    if narrow and model.optimizer is not None and not isinstance(model.optimizer, scaled):
        model.optimizer = scaled(model.optimizer, name="loss_scale_optimizer")


def _check_scaling(model: Any) -> None:
    """Raises BertKerasError for float16 under several replicas: each would judge by its own gradients if a step is skipped."""
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if scales and on_tensorflow() and model.distribute_strategy.num_replicas_in_sync > 1:
        raise BertKerasError(
            "the optimizer scales the loss, as float16 needs, and there are several replicas, which cannot agree on a scale; "
            "take the policy mixed_bfloat16 or float32, or one device."
        )


def _check_accumulation(model: Any) -> None:
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of a LossScaleOptimizer
    if getattr(inner, "gradient_accumulation_steps", None):
        raise BertKerasError(ACCUMULATION)
    if model.micro_batch is None:
        return
    if model.micro_batch < 1:
        raise BertKerasError(f"micro_batch is {model.micro_batch}; give at least 1 row.")
    if not on_tensorflow():
        raise BertKerasError(
            f"micro_batch is {model.micro_batch} on the backend {keras.backend.backend()}; it needs tensorflow."
        )
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss is not None]
    if len({*map(id, losses)}) < len(losses):
        raise BertKerasError(
            f"micro_batch is {model.micro_batch} and two outputs have one GlobalMean object; give each output its own."
        )
    for loss in losses:
        if not isinstance(loss, GlobalMean):
            raise BertKerasError(
                f"micro_batch is {model.micro_batch} and the loss is {name_of(loss)}, whose mean over a batch is not known from "
                "its micro-batches; give bert_keras' GlobalMean."
            )


@contextlib.contextmanager
def _one_update(means: Sequence[keras.metrics.Mean], parts: Any) -> Iterator[None]:
    """Within it, the `parts` updates of each mean, which add up to one number, count as one update."""
    before = [one.count + 0 for one in means]  # a tensor: convert_to_tensor gives the variable, which changes
    yield
    for one, count in zip(means, before, strict=True):
        added = one.count - count
        one.count.assign(count + keras.ops.divide_no_nan(added, keras.ops.cast(parts, added.dtype)))


def _rows(values: Any, start: Any, size: Any) -> Any:
    """`size` rows of a tensor [B, ...] from `start` on; None stays None."""
    import tensorflow as tf

    if values is None:
        return None
    values = tf.convert_to_tensor(values)
    others = len(values.shape) - 1
    rows = tf.slice(values, [start, *[0] * others], [size, *[-1] * others])
    return tf.ensure_shape(rows, [None, *values.shape[1:]])  # a loss may ask for more than the rank


def _zeros(variables: Sequence[Any]) -> list[Any]:
    import tensorflow as tf

    return [tf.zeros(one.shape, one.dtype) for one in variables]


def _added(sums: Sequence[Any], gradients: Sequence[Any], missing: set[int]) -> list[Any]:
    """The sums with the gradients of a micro-batch. missing: gets the places of the variables without a gradient."""
    import tensorflow as tf

    missing.update(i for i, one in enumerate(gradients) if one is None)
    return [
        total if one is None else total + tf.cast(one, total.dtype)
        for total, one in zip(sums, gradients, strict=True)
    ]


def _like(spec: Any) -> Any:
    """Zeros of a data set's shapes and types; a dimension that is not known is 2: Keras warns of a softmax over one number.

    Where a process has several replicas, a data set that was divided before `fit` has a specification for each of them.
    """
    import tensorflow as tf

    spec = keras.tree.map_structure(lambda one: getattr(one, "_value_specs", (one,))[0], spec)
    return keras.tree.map_structure(lambda one: tf.zeros([size or 2 for size in one.shape], one.dtype), spec)


# -----------------------------------------------------------------------------------------------------------
# The functions that `fit` and `evaluate` call: a step in every replica, and several steps in one execution


def make_function(
    model: Any, step: Callable[[Any], Any], *, left: Callable[[], int | None] = lambda: None
) -> Callable[[Any], Any]:
    """A function of an iterator that runs a step in every replica and returns logs.

    left: the most steps that the next execution may run; None runs `steps_per_execution`

    The logs of a step that returns the model's metrics are over the rows of all replicas. For other logs, as of a subclass's own
    `train_step`, they are the mean over the replicas, as in Keras.
    """
    import tensorflow as tf

    check_scope(model)
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

    def traced_alone(call: Callable[..., Any]) -> Callable[..., Any]:
        """A new object: TensorFlow would count the traces of several trainings as retracing of one function."""
        if model.run_eagerly:
            return call
        return tf.function(functools.partial(call), reduce_retracing=True, autograph=False)

    traced, one = traced_alone(steps), traced_alone(run)

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
        return tf.cond(batch.has_value(), lambda: (step + 1, run(batch.get_value())), lambda: (count, made))

    return tf.while_loop(
        lambda step, _: step < count, draw_and_run, (tf.constant(0), made), parallel_iterations=1
    )[1]


class WholeEpochs(keras.callbacks.Callback):
    """Ends the last execution of an epoch at `steps_per_epoch`, although the data set goes on."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        steps = self.params["steps"]  # None for data of unknown length, which ends the epoch itself
        self.model.steps_left = None if steps is None else steps - batch
