"""A linear-chain conditional random field (CRF): the tags of a sequence are chosen together.

    CRF    emissions float [B, S, C]  -> potentials float32 [B, S + 2 + C, C]

The score of a path is the sum of start[first tag], the emissions of its tags, transitions[tag, next tag] and end[last tag].
Potentials have all of them for each sequence: its emissions, a row for the start, a row for the end, and C rows of transitions.
So a loss, a decoding or another program needs no weights of the layer, and each row of a batch stands alone.

Sources: Lafferty et al. 2001; Lample et al. 2016, sec. 2.2.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_keras.errors import BertKerasError
from bert_keras.model.kernels import wide

FORBIDDEN = (
    -1e4
)  # the score of a transition that a constraint forbids: exp gives 0 in float32, and losses stay finite
_NOT_GIVEN = -1e8  # of the tags beside a given tag: under any number of forbidden transitions


@keras.saving.register_keras_serializable("bert_keras")
class CRF(keras.layers.Layer):
    """The transitions between the tags of a sequence, and the mathematics of its paths.

    `keras.Model(inputs, bk.CRF(9)(emissions))` learns with `loss=bk.crf_loss`, from labels int [B, S] that are negative outside
    of the sequence; `bk.CRF.best_paths(model(features), mask)` gives the tags, for a mask bool [B, S].

    tags: the number of tags C, or their names
    iob: True forbids each "I-" tag that continues no entity of its type, where the tags have a "B-" of it; needs names
    scale: the factor of the weights in the potentials. A step of Adam has the size of the learning rate: at 5e-5, as for BERT, a
        weight moves by 0.05 in 1,000 steps, which is too little for a transition

    Weights, float32, all 0 at the start: `start` [C], `end` [C], `transitions` [C, C], from a tag (row) to the next (column).
    Every function takes potentials, and a mask that is True at the places of the sequence; None means all places. Another place
    is passed over, wherever it stands. Raises BertKerasError for fewer than 2 tags, and for `iob` without names.
    """

    def __init__(
        self,
        tags: int | Sequence[str],
        *,
        iob: bool = False,
        scale: float = 1.0,
        name: str = "crf",
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        # Sums over a sequence: bfloat16 would round them.
        super().__init__(name=name, dtype=wide(dtype), trainable=trainable)
        self.tags: int | tuple[str, ...] = tags if isinstance(tags, int) else tuple(tags)
        self.count = tags if isinstance(tags, int) else len(tags)
        if self.count < 2:
            raise BertKerasError(f"a CRF has {self.count} tags; give at least 2.")
        self.iob, self.scale = iob, scale
        self._penalties = np.zeros((2 + self.count, self.count), "float32")
        if iob:
            if isinstance(self.tags, int):
                raise BertKerasError(
                    f"iob needs the names of the tags, and tags is {tags}; give a list, such as ['O', 'B-PER', 'I-PER']."
                )
            self._penalties = _iob_penalties(self.tags)
        self.build()

    def build(self, emissions_shape: Any = None) -> None:
        """Makes the weights, whose shapes are known."""
        tags = (self.count,)
        self.start = self.add_weight(shape=tags, initializer="zeros", name="start")
        self.end = self.add_weight(shape=tags, initializer="zeros", name="end")
        self.transitions = self.add_weight(shape=tags * 2, initializer="zeros", name="transitions")
        self.built = True

    def call(self, emissions: Any) -> Any:
        """Float [B, S, C] -> potentials float32 [B, S + 2 + C, C]. Raises BertKerasError for another number of columns."""
        self._check_columns(emissions.shape)
        rows = ops.concatenate([self.start[None], self.end[None], self.transitions + 0.0])
        table = self.scale * rows + ops.cast(self._penalties, rows.dtype)
        every = ops.broadcast_to(table, (ops.shape(emissions)[0], 2 + self.count, self.count))
        return ops.concatenate([ops.cast(emissions, table.dtype), every], axis=1)

    def compute_output_shape(self, emissions_shape: Any) -> tuple[Any, ...]:
        batch, length, count = emissions_shape
        self._check_columns(emissions_shape)
        return (batch, length and length + 2 + count, count)

    def _check_columns(self, shape: Sequence[int | None]) -> None:
        if shape[-1] not in (None, self.count):
            raise BertKerasError(
                f"{self.name} got {shape[-1]} columns and has {self.count} tags; put keras.layers.Dense({self.count}) "
                "before it, which tensorflow-addons' layer holds inside."
            )

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: potentials have more rows than a mask."""

    def get_config(self) -> dict[str, Any]:
        policy = keras.dtype_policies.serialize(self.dtype_policy)
        tags = self.tags if isinstance(self.tags, int) else list(self.tags)
        kept = {"tags": tags, "iob": self.iob, "scale": self.scale}
        return {**kept, "name": self.name, "dtype": policy, "trainable": self.trainable}

    @staticmethod
    def log_partition(potentials: Any, mask: Any = None) -> Any:
        """The logarithm of the sum of exp(score) over all paths: float32 [B], 0 for a sequence without a place."""
        emissions, start, end, transitions = split_potentials(potentials)
        mask = _mask_of(emissions, mask)
        to_last = _scores_to(emissions, mask, start, transitions, ops.logsumexp)[-1]
        return ops.where(ops.any(mask, axis=1), ops.logsumexp(to_last + end, axis=-1), 0.0)

    @staticmethod
    def log_likelihood(potentials: Any, tags: Any, mask: Any = None) -> Any:
        """The logarithm of the probability of given tags, int [B, S]: float32 [B].

        A tag that is not in 0 to C - 1 is not known: all paths through it count.
        """
        emissions, *_ = split_potentials(potentials)
        mask, count = _mask_of(emissions, mask), emissions.shape[-1]
        tags = ops.expand_dims(ops.cast(tags, "int32"), -1)
        allowed = ops.equal(tags, ops.arange(count, dtype="int32")) | (tags < 0) | (tags >= count)
        given = emissions + ops.where(allowed, 0.0, ops.cast(_NOT_GIVEN, emissions.dtype))
        given = ops.concatenate([given, potentials[:, -2 - count :]], axis=1)
        # One loop for the paths of the given tags and for all paths.
        found = CRF.log_partition(ops.concatenate([given, potentials]), ops.concatenate([mask, mask]))
        rows = ops.shape(potentials)[0]
        return found[:rows] - found[rows:]

    @staticmethod
    def best_paths(potentials: Any, mask: Any = None) -> Any:
        """The tags of the path with the highest score, by Viterbi's algorithm: int32 [B, S], -1 at masked places."""
        emissions, start, end, transitions = split_potentials(potentials)
        mask = _mask_of(emissions, mask)
        # Without `initial`, Keras refuses an empty batch.
        best = functools.partial(ops.max, initial=float("-inf"))
        scores = _scores_to(emissions, mask, start, transitions, best)  # [S, B, C]
        last = ops.flip(_first_places(ops.flip(mask, axis=1)), axis=1)

        def step(after: Any, place: Any) -> Any:
            score, real, closes = place[:, :-2], place[:, -2] > 0, place[:, -1:] > 0
            column = ops.sum(transitions * ops.expand_dims(ops.one_hot(after, end.shape[-1]), 1), axis=-1)
            tag = ops.argmax(score + ops.where(closes, end, column), axis=-1)
            found = ops.where(real, ops.cast(tag, "int32"), after)
            return found, found

        begin = ops.zeros_like(end[:, 0], dtype="int32")
        path = ops.transpose(ops.scan(step, begin, _places(scores, mask, last), reverse=True)[1])
        return ops.where(mask, path, -1)

    @staticmethod
    def marginals(potentials: Any, mask: Any = None) -> Any:
        """The probability of each tag at each place, over all paths: float32 [B, S, C], 0 at masked places."""
        emissions, start, end, transitions = split_potentials(potentials)
        mask = _mask_of(emissions, mask)
        before = _scores_to(emissions, mask, start, transitions, ops.logsumexp)
        backwards = ops.flip(emissions, axis=1), ops.flip(mask, axis=1), end
        after = _scores_to(*backwards, ops.transpose(transitions, (0, 2, 1)), ops.logsumexp)
        both = ops.transpose(before + ops.flip(after, axis=0), (1, 0, 2)) - emissions  # which both count
        return ops.where(ops.expand_dims(mask, -1), ops.softmax(both, axis=-1), 0.0)


@keras.saving.register_keras_serializable("bert_keras")
def crf_loss(labels: Any, potentials: Any) -> Any:
    """The negative log-likelihood of each sequence: int [B, S], potentials [B, S + 2 + C, C] -> float32 [B].

    A negative label, such as Hugging Face's -100, is not a place of the sequence.
    """
    return -CRF.log_likelihood(potentials, labels, ops.convert_to_tensor(labels) >= 0)


def split_potentials(potentials: Any) -> tuple[Any, Any, Any, Any]:
    """Potentials [B, S + 2 + C, C] -> emissions [B, S, C], start [B, C], end [B, C], transitions [B, C, C]."""
    count = potentials.shape[-1]
    emissions, transitions = potentials[:, : -2 - count], potentials[:, -count:]
    return emissions, potentials[:, -2 - count], potentials[:, -1 - count], transitions


def _mask_of(emissions: Any, mask: Any) -> Any:
    """Bool [B, S]."""
    return ops.ones_like(emissions[..., 0], dtype="bool") if mask is None else ops.cast(mask, "bool")


def _first_places(mask: Any) -> Any:
    """Bool [B, S], True at the first place of each sequence."""
    return mask & (ops.cumsum(ops.cast(mask, "int32"), axis=1) == 1)


def _scores_to(emissions: Any, mask: Any, start: Any, transitions: Any, reduce: Callable[..., Any]) -> Any:
    """The scores of the paths that end in each tag at each place, reduced to a number: [S, B, C].

    reduce: logsumexp for the sum over all paths, max for the best path

    At a masked place, the scores are those of the place before it.
    """

    def step(before: Any, place: Any) -> Any:
        emission, real, opens = place[:, :-2], place[:, -2:-1] > 0, place[:, -1:] > 0
        through = reduce(ops.expand_dims(before, -1) + transitions, axis=1)
        found = ops.where(real, emission + ops.where(opens, start, through), before)
        return found, found

    places = _places(ops.transpose(emissions, (1, 0, 2)), mask, _first_places(mask))
    return ops.scan(step, ops.zeros_like(start), places)[1]


def _places(values: Any, mask: Any, borders: Any) -> Any:
    """Float [S, B, C] and bool [B, S] twice -> float [S, B, C + 2]: `ops.scan` fails on several tensors of unknown length."""
    flags = [ops.expand_dims(ops.cast(ops.transpose(one), values.dtype), -1) for one in (mask, borders)]
    return ops.concatenate([values, *flags], axis=-1)


def _iob_penalties(tags: Sequence[str]) -> np.ndarray:
    """FORBIDDEN at the starts and the transitions that IOB2 does not have, else 0: float32 [2 + C, C], as in potentials."""
    penalties = np.zeros((2 + len(tags), len(tags)), "float32")
    for column, tag in enumerate(tags):
        begin = f"B-{tag[2:]}"
        if tag.startswith("I-") and begin in tags:
            allowed = [
                False,
                True,
                *(before in (begin, tag) for before in tags),
            ]  # no start; the end has no tag before it
            penalties[np.logical_not(allowed), column] = FORBIDDEN
    return penalties
