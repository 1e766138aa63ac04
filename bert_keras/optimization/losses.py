"""A loss for each label, and its weighted mean over all replicas.

In: labels, outputs and weights of one replica. Out: the loss that one device would compute on the whole batch.
"""

import contextlib
import contextvars
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
from keras import ops
from keras.src.backend import get_keras_mask

from bert_keras.errors import BertKerasError
from bert_keras.model.heads import gives_logits
from bert_keras.optimization.replicas import replica_context, replica_sum

# For each GlobalMean, the weight of the whole batch, while a micro-batch of it is computed. Each replica has its own thread.
_WHOLE: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar("whole", default=None)
# The weights that GlobalMeans divided by, while a step counts them.
_COUNTED: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("counted", default=None)


@contextlib.contextmanager
def counted_weights() -> Iterator[list[Any]]:
    """Lists the sum of this replica's weights for each GlobalMean that is computed within it.

    The labels, the weights and the mask of padding decide them together: no other place can count what a mean divides by.
    """
    found: list[Any] = []
    token = _COUNTED.set(found)
    try:
        yield found
    finally:
        _COUNTED.reset(token)


def count_weight(weight_sum: Any) -> None:
    """Lists a sum of this replica's weights, inside of `counted_weights`."""
    if (found := _COUNTED.get()) is not None:
        found.append(weight_sum)


@contextlib.contextmanager
def micro_batches(terms: Iterable[tuple["GlobalMean", Any, Any]]) -> Iterator[None]:
    """Within it, a GlobalMean of a micro-batch returns the micro-batch's part of the mean over the global batch.

    The parts of all micro-batches and replicas add up to that mean, and no part reads another replica.

    terms: each loss with the labels and the weights, or None, of the replica's whole batch
    """
    terms = list(terms)
    own = [loss.weight(labels, sample_weight) for loss, labels, sample_weight in terms]
    if (found := _COUNTED.get()) is not None:
        found[:] = own  # in place of those of a symbolic build
    weights = replica_sum(own)
    token = _WHOLE.set({id(loss): weight for (loss, _, _), weight in zip(terms, weights, strict=True)})
    try:
        yield
    finally:
        _WHOLE.reset(token)


@keras.saving.register_keras_serializable("bert_keras")
class GlobalMean(keras.losses.Loss):
    """sum(weight * loss) over all replicas / sum(weight) over all replicas.

    loss: a function of (labels, outputs) that returns one loss for each label, for example `cross_entropy`, which gives
        weight 0 to a negative label

    Keras' own reduction averages over each replica's labels, then over the replicas. The result differs whenever weights differ.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], *, name: str = "loss") -> None:
        super().__init__(name=name, reduction=None)
        self._loss = loss

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._loss(y_true, y_pred)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Labels and float outputs [B, ...], weights [B, ...] -> a scalar, 0 where no weight is over 0.

        Weights [B] apply to all labels of their rows; a last axis of 1 is dropped. Where the outputs have
        Keras' mask of padding, as those of TokenHead, masked labels have weight 0. Raises BertKerasError for weights with more
        axes than the losses; in micro-batches, for masked outputs without a weight for each label.
        On N replicas, each returns the global mean / N, which Keras sums and logs. Its gradient is that of its own labels.
        """
        losses = self.call(y_true, y_pred)
        weights, mask = self._weights(losses, y_true, sample_weight), _mask(y_pred, losses)
        if (whole := _WHOLE.get()) is not None:
            _check_one_loss_a_label(y_true, losses)
            _check_masked_labels(mask, weights, sample_weight)
            return ops.divide_no_nan(ops.sum(losses * weights), whole[id(self)])
        weights = weights if mask is None else ops.where(mask, weights, 0.0)
        loss_sum, weight_sum = ops.sum(losses * weights), ops.sum(weights)
        count_weight(weight_sum)
        context = replica_context()
        if context is None:
            return ops.divide_no_nan(loss_sum, weight_sum)
        all_losses, all_weights = replica_sum([loss_sum, weight_sum])
        own = ops.divide_no_nan(loss_sum, all_weights)
        mean = ops.divide_no_nan(all_losses, all_weights)
        return own + ops.stop_gradient(mean / context.num_replicas_in_sync - own)

    def weight(self, y_true: Any, sample_weight: Any = None) -> Any:
        """The sum of the weights of one replica's labels [B, ...]: what the mean divides by. The outputs are not needed."""
        like = ops.ones(ops.shape(y_true), "float32")
        return ops.sum(self._weights(like, y_true, sample_weight))

    def _weights(self, like: Any, y_true: Any, sample_weight: Any) -> Any:
        """A weight for each loss, in the shape of `like`."""
        weights = ops.ones_like(like)
        if sample_weight is not None:
            given = _row_or_label_weights(ops.cast(sample_weight, like.dtype), like)
            slots = (1,) * (len(like.shape) - len(given.shape))
            weights = weights * ops.reshape(given, (*ops.shape(given), *slots))
        return known_weights(y_true, weights) if self._loss is cross_entropy else weights

    def get_config(self) -> dict[str, Any]:
        return {"loss": keras.saving.serialize_keras_object(self._loss), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GlobalMean":
        loss = keras.saving.deserialize_keras_object(config["loss"])
        if getattr(loss, "__module__", None) == __name__:  # or its stand-in: bert_keras/model/registered.py
            loss = globals()[loss.__name__]
        return cls(**(config | {"loss": loss}))


def _row_or_label_weights(weights: Any, losses: Any) -> Any:
    """Weights with at most the axes of the losses: a last axis of 1, as in a column of a table, is dropped."""
    shape, wanted = tuple(weights.shape), tuple(losses.shape)
    if len(shape) <= len(wanted):
        return weights
    if len(shape) > len(wanted) + 1 or shape[-1] not in (1, None):
        raise BertKerasError(
            f"sample_weight has the shape {shape} and the losses {wanted}; give a weight for each row or for each label."
        )
    return ops.reshape(weights, ops.shape(weights)[:-1] if shape[-1] == 1 else ops.shape(losses))


def _one_for_each(labels: Any, outputs: Any) -> Any:
    """Labels in the shape of the outputs: a last axis of 1 is dropped. Raises BertKerasError where they do not fit.

    Without it, labels [B, 1] and outputs [B] would broadcast to [B, B].
    """
    shape, wanted = tuple(labels.shape), tuple(outputs.shape)
    if not _fits(shape, wanted):
        raise BertKerasError(
            f"the labels have the shape {shape} and the outputs {wanted}; give one label for each output."
        )
    return labels if len(shape) == len(wanted) else ops.reshape(labels, ops.shape(outputs))


def _fits(shape: tuple[int | None, ...], wanted: tuple[int | None, ...]) -> bool:
    """True where both shapes may be equal, but for a last axis of 1 in the first."""
    if len(shape) == len(wanted) + 1 and shape[-1] in (1, None):
        shape = shape[:-1]
    pairs = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def _mask(outputs: Any, losses: Any) -> Any:
    """Keras' mask of the outputs, bool, with the axes of the losses; None where there is none, or one of other axes."""
    mask = get_keras_mask(outputs)
    if mask is None:
        return None
    shape, wanted = tuple(mask.shape), tuple(losses.shape)
    if len(shape) > len(wanted) or not _fits(shape, wanted[: len(shape)]):
        return None
    return ops.reshape(mask, (*ops.shape(mask), *[1] * (len(wanted) - len(shape))))


def _check_masked_labels(mask: Any, weights: Any, given: Any) -> None:
    """Raises an error for masked labels that `GlobalMean.weight` counted: it knows no outputs, and so no mask.

    BertKerasError without a weight for each label; where a masked label has a weight, TensorFlow's, since the step runs by then.
    """
    if mask is None:
        return
    if given is None or len(given.shape) < len(mask.shape):
        raise BertKerasError(
            "the outputs have a padding mask, which micro_batch does not know before it computes them; give sample_weight with a "
            "weight for each label, 0 at padding."
        )
    import tensorflow as tf

    counted = tf.reduce_any(tf.logical_not(mask) & (weights > 0))
    tf.debugging.assert_equal(
        counted, False, "micro_batch: labels at padding have weights; give them weight 0."
    )


def _check_one_loss_a_label(labels: Any, losses: Any) -> None:
    """Raises BertKerasError for labels such as one-hot vectors: `GlobalMean.weight` counts labels, before there are losses."""
    shape, wanted = tuple(labels.shape), tuple(losses.shape)
    if not _fits(shape, wanted):
        raise BertKerasError(
            f"the labels have the shape {shape} and their losses {wanted}; micro_batch needs one loss for each label: give class "
            "ids in place of one-hot labels."
        )


@keras.saving.register_keras_serializable("bert_keras")
def cross_entropy(labels: Any, logits: Any) -> Any:
    """Softmax cross-entropy: int [...], float [..., C] -> float32 [...].

    A negative label, such as Hugging Face's -100, names no class: its loss is 0, and GlobalMean does not count it. Keras' metrics
    count it: pass them `sample_weight` too.
    """
    classes = ops.maximum(ops.cast(labels, "int32"), 0)
    losses = keras.losses.sparse_categorical_crossentropy(
        classes, ops.cast(logits, "float32"), from_logits=True
    )
    return known_weights(labels, losses)


@keras.saving.register_keras_serializable("bert_keras")
def binary_cross_entropy(labels: Any, logits: Any) -> Any:
    """Sigmoid cross-entropy of each slot: labels of 0 and 1, float [...] -> float32 [...].

    A last axis of 1 that only labels or only logits have is dropped. Raises BertKerasError for other shapes that differ.
    """
    labels, logits = ops.cast(labels, "float32"), ops.cast(logits, "float32")
    if len(logits.shape) == len(labels.shape) + 1 and logits.shape[-1] == 1:
        logits = logits[..., 0]
    labels = _one_for_each(labels, logits)
    return ops.softplus(logits) - labels * logits


@keras.saving.register_keras_serializable("bert_keras")
def candidate_loss(labels: Any, logits: Any) -> Any:
    """The loss of the scores of a query's candidates, float [B, K, 1] -> float32 [B].

    labels: int [B], the index of the right candidate, for the cross-entropy over the candidates; float [B], the relevance from 0
        to 1 of the only candidate, for the sigmoid cross-entropy
    """
    logits, labels = logits[..., 0], ops.convert_to_tensor(labels)
    if keras.backend.is_float_dtype(keras.backend.standardize_dtype(labels.dtype)):
        return binary_cross_entropy(labels, logits)
    return cross_entropy(labels, logits)


def known_weights(labels: Any, weights: Any) -> Any:
    """Class ids and float weights [...] -> the weights, 0 where a label is negative."""
    labels = ops.convert_to_tensor(labels)
    if len(labels.shape) > len(weights.shape):  # Keras takes labels [B, 1] for [B]
        labels = ops.reshape(labels, ops.shape(weights))
    return ops.where(labels >= 0, weights, 0.0)


@keras.saving.register_keras_serializable("bert_keras")
def squared_error(labels: Any, outputs: Any) -> Any:
    """Float [B] or [B, 1], float [B, 1] or [B] -> float32 [B]. Raises BertKerasError for other shapes."""
    labels, outputs = ops.cast(labels, "float32"), ops.cast(outputs, "float32")
    if len(outputs.shape) > 1:
        if outputs.shape[-1] != 1:
            raise BertKerasError(
                f"squared_error got outputs of the shape {tuple(outputs.shape)}; give a network with one output for each row."
            )
        outputs = outputs[..., 0]
    return ops.square(_one_for_each(labels, outputs) - outputs)


# -----------------------------------------------------------------------------------------------------------
# Warnings of losses and metrics that read the logits of our heads as probabilities

# Names of Keras' metrics that read numbers from 0 to 1.
_OF_PROBABILITIES = (
    *("auc", "precision", "recall", "binary_accuracy"),
    *("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy"),
)


def warn_of_probabilities(model: Any, metrics: Any) -> None:
    """Warns of a compiled model's loss, and of metrics, that take probabilities where its outputs are logits.

    metrics: any structure of Keras' metrics, as objects or by name
    """
    # Only a functional model knows the layers of its outputs.
    outputs = getattr(getattr(model, "network", model), "outputs", None) or ()
    heads = ", ".join(head for head in map(gives_logits, outputs) if head)
    if not heads:
        return
    for loss in filter(_takes_probabilities, keras.tree.flatten(model.loss)):
        warnings.warn(
            f"{heads} gives logits and the loss {name_of(loss)} takes probabilities; compile with from_logits=True, as in "
            "keras.losses.SparseCategoricalCrossentropy(from_logits=True).",
            stacklevel=3,
        )
    for metric in filter(_measures_probabilities, keras.tree.flatten(metrics)):
        single = all(output.shape[-1] == 1 for output in outputs)
        advice = (
            "compile with keras.metrics.AUC(from_logits=True), BinaryAccuracy(threshold=0), Precision(thresholds=0) or the like"
            if single  # several logits crash in them
            else "give a metric of logits, such as SparseCategoricalAccuracy; bk.classifier takes it as it is, by name too"
        )
        warnings.warn(
            f"{heads} gives logits and the metric {name_of(metric)} takes probabilities; {advice}.",
            stacklevel=3,
        )


def name_of(given: Any) -> Any:
    """The name of a loss or a metric, which may be a name itself."""
    return getattr(given, "name", None) or getattr(given, "__name__", given)


def _takes_probabilities(loss: Any) -> bool:
    """True for a loss of Keras with from_logits=False, by name, as a function or as an object."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", None) is False
    given = inspect.signature(loss).parameters.get("from_logits") if callable(loss) else None
    return given is not None and given.default is False


def _measures_probabilities(metric: Any) -> bool:
    """True for a metric of Keras that reads numbers from 0 to 1, by name or as an object."""
    if isinstance(metric, str):
        return metric.lower() in _OF_PROBABILITIES
    if isinstance(metric, keras.metrics.AUC):
        return not metric._from_logits
    if isinstance(metric, keras.metrics.Precision | keras.metrics.Recall):
        return metric.init_thresholds is None and metric.top_k is None
    if isinstance(metric, keras.metrics.BinaryAccuracy):
        return metric.threshold == 0.5
    return getattr(metric, "from_logits", None) is False
