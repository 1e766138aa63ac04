"""Counts of the tokens of a text that no instance shows or no mask can predict, and the lines that say so.

In: the ids of documents, and the instances that were made of them. Out: `TextCounts`, plain numbers, and warnings.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.tasks.pretraining.samplers import Instances, TokenizedDocuments
from bert_keras.text.tokenizer import Tokenizer

CUT_SHARE, UNKNOWN_SHARE, LONE_SHARE = 0.25, 0.05, 0.1  # from which on there is a warning


class TextCounts(NamedTuple):
    """Tokens of a text.

    unknown: tokens that are [UNK], which no mask predicts
    cut: tokens that are in no instance, because their line does not fit into one
    lone: tokens that are one Chinese character, each a word of its own to whole-word masking without a segmenter
    """

    tokens: int = 0
    unknown: int = 0
    cut: int = 0
    lone: int = 0

    def warnings(self, *, whole_word: bool, given: str = "the") -> Iterator[str]:
        """Likely mistakes, a sentence for each. given: the words before "tokens".

        whole_word: words are masked whole, and no segmenter says where they are

        Raises BertKerasError if all tokens are [UNK]: there is nothing to predict.
        """
        if self.tokens and self.unknown == self.tokens:
            raise BertKerasError(
                f"all of {given} tokens are [UNK], so there is nothing to predict; give a vocabulary in the language of the text."
            )
        if self.cut > CUT_SHARE * self.tokens:
            yield (
                f"{self.cut / self.tokens:.1%} of {given} tokens ({self.cut:,}) are in no instance: their lines are longer than "
                "an instance, or were cut to fit into one; a greater seq_length keeps more of them, and so does lines=paragraph "
                "where a line has several sentences"
            )
        if self.unknown > UNKNOWN_SHARE * self.tokens:
            share = f"{self.unknown / self.tokens:.1%}"
            yield f"{share} of {given} tokens are [UNK], which no mask predicts; give another vocabulary"
        if whole_word and self.lone > LONE_SHARE * self.tokens:
            yield (
                f"whole_word masks single Chinese characters, {self.lone / self.tokens:.1%} of {given} tokens, because nothing "
                "says where Chinese words end; give a segmenter"
            )


def count_ids(ids: np.ndarray, tokenizer: Tokenizer) -> TextCounts:
    """Counts of ids without special tokens, int [N], except for the tokens that are cut."""
    table = np.array([len(token) == 1 and "\u3400" <= token <= "\u9fff" for token in tokenizer.vocabulary])
    lone = np.take(table, ids, mode="clip") if len(ids) else table[:0]
    return TextCounts(len(ids), int((ids == tokenizer.special.unknown).sum()), 0, int(lone.sum()))


def count_cut(documents: TokenizedDocuments, made: Instances, *, separator: int, passes: int) -> int:
    """The tokens of documents that are in no instance. passes: over the documents, which may be joined in each anew."""
    changes = np.zeros(len(made.ids) + 1, np.int64)
    starts, ends = made.places.reshape(-1, 2).T
    np.add.at(changes, starts, 1)
    np.add.at(changes, ends, -1)
    unread = np.cumsum(changes)[:-1] == 0
    if made.ids is documents.ids:
        return int(unread.sum())
    return int((unread & (made.ids != separator)).sum()) // passes
