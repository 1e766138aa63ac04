"""The interface of a tokenizer, a text in, ids and byte offsets out, and operations on ragged tensors in few nodes.

TensorFlow prepares the graph of a tokenizer again for each new iterator and each loaded model, also the branches that few texts
take. `tf.ragged.boolean_mask`, `value_rowids` and `tf.repeat` add many more nodes than the functions here do.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.signals import tracing
from bert_keras.text.vocabulary import Vocabulary

# The special tokens of BERT's vocabularies.
PADDING, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
# Texts -> texts as a tokenizer normalizes them before it looks for tokens: the input for learning a vocabulary.
Normalizer = Callable[[Sequence[str]], list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The ids of the special tokens."""

    padding: int
    unknown: int
    start: int
    end: int
    mask: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFormat:
    """The form of two segments in one sequence.

    separators: the number of `end` tokens between the segments
    second_type: the type id of the second segment; the first has 0
    """

    separators: int
    second_type: int

    def added(self, segments: int) -> int:
        """The number of special tokens in a sequence of one or two segments."""
        return 2 + (segments - 1) * self.separators


BERT_PAIR = PairFormat(separators=1, second_type=1)  # [CLS] A [SEP] B [SEP]
ROBERTA_PAIR = PairFormat(separators=2, second_type=0)  # <s> A </s></s> B </s>


class Tokenizer(tf.Module):
    """The methods and properties that preprocessing, masking, the tasks and checkpoints use; both methods run in graph.

    before_mask: a pattern of the end of a text that a mask after it takes
    """

    pair = BERT_PAIR
    before_mask = "$^"  # nothing

    def __init__(self, vocabulary: Sequence[str], *, special: SpecialTokens, lower_case: bool) -> None:
        super().__init__()
        self.special = special
        self.vocab_size = len(vocabulary)
        self.lower_case = lower_case
        # A function hides the tuple: TensorFlow would visit every item each time it lists the module's variables.
        fixed = tuple(vocabulary)
        self._vocabulary = lambda: fixed
        # A decorator would hold the instance weakly, and `WordPiece(...).tokenize(...)` would find it deleted.
        for method in (self.tokenize, self.tokenize_with_offsets):
            # A new object: TensorFlow would count the traces of all tokenizers as retracing of one function.
            traced = functools.partial(tracing()(method))
            graph = tf.function(traced, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
            setattr(self, method.__name__, graph)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size:,} tokens, lower_case={self.lower_case})"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens in the order of their ids."""
        return self._vocabulary()

    @property
    def digest(self) -> str:
        """SHA-256 of the vocabulary, one token per line; tokenizers with equal `digest` and `lower_case` give equal ids."""
        return digest_lines(self.vocabulary)

    @property
    def continues(self) -> np.ndarray:
        """Bool [V], tokens that continue a word."""
        raise NotImplementedError

    @property
    def real(self) -> np.ndarray:
        """Int32 [R], ids that can occur in text: no special tokens."""
        raise NotImplementedError

    @property
    def texts(self) -> tuple[bytes, ...]:
        """The bytes of each token in a text, with a space before a token that starts a word."""
        raise NotImplementedError

    def to_vocabulary(self) -> Vocabulary:
        """All that makes the tokenizer, for its files."""
        return Vocabulary(tokens=self.vocabulary, lower_case=self.lower_case)

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Ids alone, the fast path. text: string [B], UTF-8 -> ragged int32 [B, (T)]. Invalid bytes are dropped."""
        raise NotImplementedError

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes and end bytes (exclusive) in `text` as given."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without special tokens: `tokenize` for a Python string."""
        return self.tokenize(tf.constant([text])).values.numpy().tolist()

    def detokenize(self, ids: Iterable[int]) -> str:
        """Ids -> text as the tokenizer normalizes it, without padding and the special tokens at the ends of segments.

        Raises ValueError for an id outside the vocabulary.
        """
        left_out = {self.special.padding, self.special.start, self.special.end}
        kept = [int(one) for one in ids if int(one) not in left_out]
        if unknown := [one for one in kept if not 0 <= one < self.vocab_size]:
            raise BertKerasError(f"id {unknown[0]} is not in the vocabulary of {self.vocab_size} tokens.")
        return self._joined([self.vocabulary[one] for one in kept])

    def __reduce__(self) -> tuple[Callable[[], Tokenizer], tuple[()]]:
        """Pickles what `__init__` takes: another process makes graphs of its own."""
        return functools.partial(type(self), **self._arguments()), ()

    def _arguments(self) -> dict[str, Any]:
        """The arguments of `__init__`, by name."""
        raise NotImplementedError

    def _joined(self, pieces: Sequence[str]) -> str:
        """The text of tokens."""
        raise NotImplementedError


def digest_lines(lines: Iterable[str]) -> str:
    """SHA-256 of lines, in hex."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


# -----------------------------------------------------------------------------------------------------------
# Operations on ragged tensors


def row_numbers(splits: tf.Tensor) -> tf.Tensor:
    """The row of each value of a ragged tensor: its row_splits, int [B + 1] -> int32 [N]."""
    at = tf.expand_dims(tf.range(splits[-1]), 0)
    return tf.squeeze(tf.raw_ops.UpperBound(sorted_inputs=tf.expand_dims(splits, 0), values=at), 0) - 1


def repeats(counts: tf.Tensor) -> tf.Tensor:
    """The index of each count, as often as it says: int [B] -> int32 [N]; [2, 0, 1] -> [0, 0, 2]."""
    return row_numbers(tf.pad(tf.cumsum(counts), [[1, 0]]))


def masked(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """The values where a mask, bool [N], is True."""
    return tf.gather_nd(values, tf.where(mask))


def masked_rows(mask: tf.Tensor, *columns: tf.RaggedTensor) -> list[tf.RaggedTensor]:
    """The values of ragged tensors with the same row_splits where a mask of all values, bool [N], is True."""
    at = tf.where(mask)
    before = tf.pad(tf.cumsum(tf.cast(mask, columns[0].row_splits.dtype)), [[1, 0]])
    splits = tf.gather(before, columns[0].row_splits)
    return [
        tf.RaggedTensor.from_row_splits(tf.gather_nd(one.values, at), splits, validate=False)
        for one in columns
    ]


def encode_characters(codes: tf.Tensor) -> tf.Tensor:
    """Code points int32 [N] -> the character of each in UTF-8: string [N]."""
    splits = tf.range(tf.size(codes) + 1)
    return tf.raw_ops.UnicodeEncode(input_values=codes, input_splits=splits, output_encoding="UTF-8")
