"""Losses of the vectors of texts, each over the batch of all replicas, because they compare the texts of a batch.

In: the vectors of the texts of each row [B, T, H]; labels that name equal texts, scores, classes or a teacher's vectors. Out: a
scalar.

A text counts once as a candidate: an equal text of another row, and a row of weight 0, such as a row of padding, is no negative.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from bert_keras.errors import BertKerasError
from bert_keras.model.choices import CLASSES, PAIRS, SCORES, VECTOR_LOSSES, VECTORS, vector_loss_of
from bert_keras.optimization.losses import GlobalMean, count_weight
from bert_keras.optimization.replicas import replica_context, replica_gather

_FAR = 1e9  # a logit or a distance of what is left out: finite, so that its gradient is 0


def _unit(vectors: Any) -> Any:
    """Vectors [..., H] of length 1; a vector of zeros stays."""
    return vectors * ops.rsqrt(ops.maximum(ops.sum(ops.square(vectors), axis=-1, keepdims=True), 1e-24))


def _mean(losses: Any, weights: Any) -> Any:
    return ops.divide_no_nan(ops.sum(losses * weights), ops.sum(weights))


def _equal(a: Any, b: Any) -> Any:
    """[N] and [M] -> bool [N, M]."""
    return ops.expand_dims(a, 1) == ops.expand_dims(b, 0)


def _repeated(texts: Any) -> Any:
    """True for a text that stands earlier too: [M] -> bool [M]."""
    place = ops.arange(ops.shape(texts)[0], dtype="int32")
    return ops.any(_equal(texts, texts) & (ops.expand_dims(place, 1) > ops.expand_dims(place, 0)), axis=1)


def _choices(logits: Any, dropped: Any) -> Any:
    """The cross-entropy of each row, whose right candidate is on the diagonal: float [N, M], bool [N, M] -> float [N]."""
    rows, columns = (ops.arange(size, dtype="int32") for size in ops.shape(logits))
    own = _equal(rows, columns)
    others = ops.where(dropped & ~own, -_FAR, logits)
    return ops.logsumexp(others, axis=1) - ops.sum(ops.where(own, logits, 0.0), axis=1)


def _ranking(texts: Any, vectors: Any, weights: Any, temperature: float, *, symmetric: bool = False) -> Any:
    """The right candidate of each query among the positives and the negatives of all rows.

    texts: equal integers for equal texts [N, T]

    Another row's text is no negative where it equals the query or its positive, and another row's positive where that row has the
    same query. Source: Henderson et al. 2017; both directions: Radford et al. 2021.
    """
    unit, query, positive = _unit(vectors), texts[:, 0], texts[:, 1]
    # The positives of all rows, then the first negatives of all rows, and so on.
    candidates = ops.reshape(ops.swapaxes(unit[:, 1:], 0, 1), (-1, vectors.shape[-1]))
    listed, count = ops.reshape(ops.transpose(texts[:, 1:]), (-1,)), ops.shape(texts)[1] - 1
    logits = ops.matmul(unit[:, 0], ops.transpose(candidates)) / temperature
    known, unused = _equal(query, query), weights == 0
    known = ops.concatenate(
        [known, ops.zeros((ops.shape(known)[0], ops.shape(listed)[0] - ops.shape(known)[1]), "bool")], axis=1
    )
    left_out = ops.expand_dims(_repeated(listed) | ops.tile(unused, count), 0)
    forward = _choices(logits, left_out | known | _equal(positive, listed) | _equal(query, listed))
    if not symmetric:
        return _mean(forward, weights)
    back = ops.transpose(logits[:, : ops.shape(query)[0]])
    left_out = ops.expand_dims(_repeated(query) | unused, 0)
    same = _equal(positive, positive) | _equal(query, query) | _equal(positive, query)
    return _mean((forward + _choices(back, left_out | same)) / 2, weights)


def _symmetric(texts: Any, vectors: Any, weights: Any, temperature: float) -> Any:
    return _ranking(texts, vectors, weights, temperature, symmetric=True)


def _cosines(vectors: Any) -> Any:
    """The cosine of the two texts of each row: [N, 2, H] -> [N]."""
    unit = _unit(vectors)
    return ops.sum(unit[:, 0] * unit[:, 1], axis=-1)


def _cosine_similarity(scores: Any, vectors: Any, weights: Any) -> Any:
    """The squared difference of cosine and score. Source: Reimers and Gurevych 2019."""
    return _mean(ops.square(_cosines(vectors) - scores), weights)


def _cosent(scores: Any, vectors: Any, weights: Any, temperature: float) -> Any:
    """log(1 + the sum of exp((cos j - cos i) / temperature)) over the pairs of rows with a higher score in i than in j.

    The weight of two rows is the product of theirs. The CoSENT loss, in the form that sentence-transformers has.
    """
    cosines = _cosines(vectors) / temperature
    wrong = ops.expand_dims(cosines, 1) - ops.expand_dims(cosines, 0)  # [j, i]
    both = ops.expand_dims(weights, 1) * ops.expand_dims(weights, 0)
    counted = (ops.expand_dims(scores, 1) < ops.expand_dims(scores, 0)) & (both > 0)
    terms = ops.where(counted, wrong + ops.log(ops.where(both > 0, both, 1.0)), -_FAR)
    return ops.logsumexp(ops.concatenate([ops.zeros((1,), terms.dtype), ops.reshape(terms, (-1,))]))


def _root(squares: Any) -> Any:
    """Square roots with the gradient 0 at 0."""
    positive = squares > 0
    return ops.where(positive, ops.sqrt(ops.where(positive, squares, 1.0)), 0.0)


def _triplet(texts: Any, vectors: Any, weights: Any, margin: float) -> Any:
    """max(0, d(query, positive) - d(query, negative) + margin) of the Euclidean distance d, the mean over a row's negatives.

    Source: Schroff et al. 2015.
    """
    distances = _root(ops.sum(ops.square(vectors[:, :1] - vectors[:, 1:]), axis=-1))  # [N, T - 1]
    return _mean(ops.mean(ops.relu(distances[:, :1] - distances[:, 1:] + margin), axis=1), weights)


def _batch_hard(classes: Any, vectors: Any, weights: Any, margin: float) -> Any:
    """The triplet loss of each text with the farthest text of its class and the nearest one of another class.

    A text without one of them in the batch does not count. Source: Hermans et al. 2017.
    """
    points = vectors[:, 0]
    squares, products = ops.sum(ops.square(points), axis=-1), ops.matmul(points, ops.transpose(points))
    distances = _root(ops.expand_dims(squares, 1) + ops.expand_dims(squares, 0) - 2 * products)
    place, used = ops.arange(ops.shape(points)[0], dtype="int32"), ops.expand_dims(weights > 0, 0)
    alike = _equal(classes, classes)
    positive, negative = alike & ~_equal(place, place) & used, ~alike & used
    farthest = ops.max(ops.where(positive, distances, 0.0), axis=1)
    nearest = ops.min(ops.where(negative, distances, _FAR), axis=1)
    known = ops.cast(ops.any(positive, axis=1) & ops.any(negative, axis=1), weights.dtype)
    return _mean(ops.relu(farthest - nearest + margin), weights * known)


def _mean_squared_error(teacher: Any, vectors: Any, weights: Any) -> Any:
    """The squared difference of each number of a vector and of its teacher's [N, H], for each text of a row.

    Source: Reimers and Gurevych 2020.
    """
    if (wanted := teacher.shape[-1]) != (found := vectors.shape[-1]):
        raise BertKerasError(
            f"the teacher's vectors have {wanted} dimensions and the model's {found}; give vectors of {found} dimensions."
        )
    return _mean(ops.mean(ops.square(vectors - ops.expand_dims(teacher, 1)), axis=(1, 2)), weights)


# The functions of the rows of VECTOR_LOSSES: (labels, vectors [N, T, H], weights [N], the temperature or the margin) -> a scalar.
RULES: dict[str, Callable[..., Any]] = {
    "multiple_negatives_ranking": _ranking,
    "symmetric_ranking": _symmetric,
    "triplet": _triplet,
    "cosent": _cosent,
    "cosine_similarity": _cosine_similarity,
    "batch_hard_triplet": _batch_hard,
    "mean_squared_error": _mean_squared_error,
}


@keras.saving.register_keras_serializable("bert_keras")
class BatchLoss(GlobalMean):
    """A loss of the vectors of a batch, over all replicas.

    rule: a row of VECTOR_LOSSES; None takes the default of the labels' form: integers [B, T] are texts, floats [B] scores,
        integers [B] classes, floats [B, H] a teacher's vectors
    temperature, margin: None takes those of the row
    matryoshka: the loss is the sum of those of the first d numbers of each vector, scaled to length 1, for each d; None takes the
        vectors as they are. Source: Kusupati et al. 2022
    """

    def __init__(
        self,
        rule: str | None = None,
        *,
        temperature: float | None = None,
        margin: float | None = None,
        matryoshka: Sequence[int] | None = None,
        name: str = "loss",
    ) -> None:
        super().__init__(self.call, name=name)
        self.rule, self.temperature, self.margin, self.matryoshka = rule, temperature, margin, matryoshka

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Labels, vectors [B, T, H] or [B, H], weights [B] -> a scalar.

        On N replicas, each returns the loss of the whole batch / N, with the gradient of its own vectors: their sum over the
        replicas is the gradient of the whole batch.
        """
        labels, vectors = ops.convert_to_tensor(y_true), ops.cast(y_pred, "float32")
        vectors = ops.expand_dims(vectors, 1) if len(vectors.shape) == 2 else vectors
        own = self._own_weights(vectors, sample_weight)
        count_weight(ops.sum(own))
        labels, weights = replica_gather(labels), replica_gather(own)
        rule, vectors = self._rule(labels), _with_own_gradient(vectors)
        loss = sum(rule(labels, part, weights) for part in self._parts(vectors))
        if (context := replica_context()) is None:
            return loss
        return loss + ops.stop_gradient(loss / context.num_replicas_in_sync - loss)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self(y_true, y_pred)

    def weight(self, y_true: Any, sample_weight: Any = None) -> Any:
        return ops.sum(self._own_weights(y_true, sample_weight))

    def _parts(self, vectors: Any) -> list[Any]:
        """The vectors for each term of the loss. Raises BertKerasError for more dimensions than they have."""
        if self.matryoshka is None:
            return [vectors]
        if (most := max(self.matryoshka)) > vectors.shape[-1]:
            raise BertKerasError(
                f"matryoshka is {most} and the vectors have {vectors.shape[-1]} dimensions; give at most as many."
            )
        return [_unit(vectors[..., :size]) for size in self.matryoshka]

    def _own_weights(self, rows: Any, sample_weight: Any) -> Any:
        if sample_weight is None:
            return ops.ones((ops.shape(rows)[0],), "float32")
        return ops.reshape(ops.cast(sample_weight, "float32"), (-1,))

    def _rule(self, labels: Any) -> Callable[[Any, Any, Any], Any]:
        """The function of the rule with its settings. Raises BertKerasError for labels of another form."""
        floating = keras.backend.is_float_dtype(keras.backend.standardize_dtype(labels.dtype))
        several = len(labels.shape) == 2
        form = (VECTORS if several else SCORES) if floating else PAIRS if several else CLASSES
        name = self.rule or vector_loss_of(form)
        row = VECTOR_LOSSES[name]
        if form == VECTORS and self.matryoshka:
            raise BertKerasError(
                "matryoshka does not apply to a teacher's vectors, which have one length; leave it out."
            )
        if row.form != form:
            raise BertKerasError(
                f"the loss {name} learns from {row.form} and the labels are those of {form}."
            )
        settings = {"temperature": self.temperature, "margin": self.margin}
        given = {
            key: getattr(row, key) if value is None else value
            for key, value in settings.items()
            if getattr(row, key) is not None
        }
        return lambda *batch: RULES[name](*batch, *given.values())

    def get_config(self) -> dict[str, Any]:
        names = ("rule", "temperature", "margin", "matryoshka", "name")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BatchLoss":
        return cls(**config)


def _with_own_gradient(vectors: Any) -> Any:
    """The vectors of all R replicas [R * B, T, H]; a gradient flows to those of this replica alone."""
    context = replica_context()
    if context is None:
        return vectors
    every, own = replica_gather(vectors), ops.shape(vectors)
    blocks = ops.reshape(every, (context.num_replicas_in_sync, *own))
    number = ops.cast(context.replica_id_in_sync_group, "int32")
    mine = ops.arange(context.num_replicas_in_sync, dtype="int32") == number
    blocks = ops.where(ops.reshape(mine, (-1, 1, 1, 1)), ops.expand_dims(vectors, 0), blocks)
    return ops.reshape(blocks, ops.shape(every))
