"""The interface of a tokenizer: a text in, ids and byte offsets out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.signals import tracing
from bert_keras.text.vocabulary import Vocabulary

# The special tokens of BERT's vocabularies.
PADDING, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"


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


class Tokenizer(Protocol):
    """The methods and properties that preprocessing, masking, the tasks and checkpoints use.

    vocabulary: the tokens in the order of their ids
    digest: SHA-256 of the vocabulary file, in hex; two tokenizers with equal `digest` and `lower_case` give equal ids
    continues: bool [V], tokens that continue a word
    real: int32 [R], ids that can occur in text
    texts: the bytes of each token in a text, with a space before them if it starts a word
    before_mask: a pattern of the end of a text that a mask after it takes
    """

    special: SpecialTokens
    pair: PairFormat
    before_mask: str
    vocab_size: int
    lower_case: bool

    @property
    def vocabulary(self) -> tuple[str, ...]: ...

    @property
    def digest(self) -> str: ...

    @property
    def continues(self) -> np.ndarray: ...

    @property
    def real(self) -> np.ndarray: ...

    @property
    def texts(self) -> tuple[bytes, ...]: ...

    def to_vocabulary(self) -> Vocabulary:
        """All that makes the tokenizer, for its files."""

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """text: string [B] -> ragged int32 [B, (T)], ids."""

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes and end bytes (exclusive) in `text`."""


class GraphTokenizer(tf.Module):
    """The parts that all tokenizers share: the vocabulary, graphs for both methods, and single Python strings."""

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
            traced = tracing()(method)
            graph = tf.function(traced, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
            setattr(self, method.__name__, graph)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens in the order of their ids."""
        return self._vocabulary()

    def to_vocabulary(self) -> Vocabulary:
        """All that makes the tokenizer, for its files."""
        return Vocabulary(tokens=self.vocabulary, lower_case=self.lower_case)

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

    def __reduce__(self) -> tuple[Callable[[], GraphTokenizer], tuple[()]]:
        """Pickles what `__init__` takes: another process makes graphs of its own."""
        return functools.partial(type(self), **self._arguments()), ()

    def _arguments(self) -> dict[str, Any]:
        """The arguments of `__init__`, by name."""
        raise NotImplementedError

    def _joined(self, pieces: Sequence[str]) -> str:
        raise NotImplementedError

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        raise NotImplementedError

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        raise NotImplementedError


# Texts -> texts as a tokenizer normalizes them before it looks for tokens: the input for learning a vocabulary.
Normalizer = Callable[[Sequence[str]], list[str]]
