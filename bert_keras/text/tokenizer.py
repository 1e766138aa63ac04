"""The interface of a tokenizer: a text in, ids and byte offsets out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

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


class Tokenizer(Protocol):
    """The methods and properties that preprocessing, masking, the tasks and checkpoints use.

    vocabulary: the tokens in the order of their ids
    digest: SHA-256 of the vocabulary file, in hex; two tokenizers with equal `digest` and `lower_case` give equal ids
    continues: bool [V], tokens that continue a word
    real: int32 [R], ids that can occur in text
    """

    special: SpecialTokens
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

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """text: string [B] -> ragged int32 [B, (T)], ids."""

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes and end bytes (exclusive) in `text`."""


# Texts -> texts as a tokenizer normalizes them before it looks for tokens: the input for learning a vocabulary.
Normalizer = Callable[[Sequence[str]], list[str]]
