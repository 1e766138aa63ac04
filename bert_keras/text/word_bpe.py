"""GPT's tokenizer in graph: BPE of the characters of a word, whose last one is marked by </w>.

In: a vocabulary and its merges, then string [B], raw text. Out: ragged int32 [B, (T)], ids and, on request, the start and end of
each token in bytes of the given strings.

Text is normalized and split into words as BERT's, which the library transformers does for GPT too; the original repairs text by
ftfy and splits it by spaCy. The ids are those of that library's OpenAIGPTTokenizer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import shortened
from bert_keras.text.byte_bpe import Merges, checked_merges
from bert_keras.text.core_wordpiece import CoreWordPiece, single_characters
from bert_keras.text.distinct_words import DistinctWords
from bert_keras.text.normal_forms import NOT_A_MARKER
from bert_keras.text.ragged import masked, row_numbers
from bert_keras.text.rules import GPT_FRAME, GPT_TOKENS, AddedToken, Rules
from bert_keras.text.vocabulary import WORD_END, Vocabulary
from bert_keras.text.wordpiece import WordPiece


class WordBPE(WordPiece):
    """GPT's tokenizer: BERT's words, whose characters are merged.

    vocabulary: the tokens in the order of their ids, as in a vocab.json: "th", "the</w>". The start, delimiter and extract tokens
        (`_start_`, `_delimiter_`, `_classify_`) that it lacks have the next ids, after other added tokens
    merges: the pairs to merge in the order of learning, as in a merges.txt: "t h", "th e</w>"

    Other arguments are those of WordPiece. A character that the vocabulary lacks is one <unk>; a word has no limit.
    Raises ValueError for a vocabulary without <unk>, without a token that ends a word or with a token twice, and for merges whose
    tokens it lacks.
    Source: Radford et al. 2018, sec. 3.3 and 4.1; Sennrich et al. 2016, sec. 3.2.
    """

    own_names = GPT_TOKENS
    model_name = "GPT"

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[str],
        *,
        rules: Rules = Rules(),  # noqa: B008  frozen
        **settings: Any,
    ) -> None:
        fixed = tuple(merges)
        self._merge_lines = lambda: fixed
        there = {*vocabulary, *(token.content for token in rules.added)}
        marks = [rules.names.get(role, name) for role, name in GPT_FRAME.items()]
        new = (AddedToken(mark, normalized=False, special=True) for mark in marks if mark not in there)
        super().__init__(vocabulary, rules=dataclasses.replace(rules, added=(*rules.added, *new)), **settings)

    def _check(self, vocabulary: Sequence[str]) -> None:
        if len({*vocabulary}) < len(vocabulary):
            again = next(token for i, token in enumerate(vocabulary) if token in vocabulary[:i])
            raise BertKerasError(f"vocabulary: {shortened(again)} has two ids; remove one of the two")
        if not any(token.endswith(WORD_END) for token in vocabulary):
            raise BertKerasError(f"vocabulary: no token ends with {WORD_END}; give the vocabulary of a GPT")

    def _matcher(self, vocabulary: Sequence[str], *, unknown: str) -> Any:
        return _Matcher(vocabulary, self.merges, unknown=unknown, rules=self.rules)

    @property
    def merges(self) -> tuple[str, ...]:
        """The merges in the order of learning."""
        return self._merge_lines()

    def _digested(self) -> tuple[str, ...]:
        return (*self.vocabulary, "", *self.merges)

    @property
    def continues(self) -> np.ndarray:
        """Bool [V] of False: a token says where a word ends, not where it starts."""
        return np.zeros(self.vocab_size, bool)

    @property
    def texts(self) -> tuple[bytes, ...]:
        """The bytes of each token in a text, with a space after a token that ends a word."""
        return tuple(_spaced(token).encode() for token in self.vocabulary)

    def to_vocabulary(self) -> Vocabulary:
        return super().to_vocabulary()._replace(merges=self.merges, suffix=WORD_END)

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"merges": self.merges}

    def _joined(self, pieces: Sequence[str]) -> str:
        return "".join(map(_spaced, pieces)).rstrip(" ")


def _spaced(token: str) -> str:
    return f"{token.removesuffix(WORD_END)} " if token.endswith(WORD_END) else token


class CharacterMerges(Merges):
    """The merges of a vocabulary of words.

    ids: token -> id
    unknown: the id of a character that has no token
    """

    def __init__(self, merges: Sequence[str], ids: Mapping[str, int], *, unknown: int) -> None:
        pairs, joined = checked_merges(merges, dict(ids), source="merges")
        lengths = np.array([len(token.removesuffix(WORD_END)) for token in ids])
        super().__init__(pairs, joined, lengths=lengths, byte_ids=np.zeros(256, "int32"))
        # A character's key is twice its code point, and 1 more at the end of a word.
        single = {token: i for token, i in ids.items() if len(token.removesuffix(WORD_END)) == 1}
        symbols = {2 * ord(token[0]) + (len(token) > 1): i for token, i in single.items()}
        self._unknown = unknown
        with tf.device("CPU"):
            # The last key is larger than any character's.
            self._symbols = tf.constant([*sorted(symbols), np.iinfo("int32").max], tf.int32)
            self._symbol_ids = tf.constant([*(symbols[key] for key in sorted(symbols)), unknown], tf.int32)

    def __call__(self, words: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """words: string [W], none empty -> ragged int32 [W, (T)], ids and the first byte of each token in its word."""
        codes, offsets = tf.strings.unicode_decode_with_offsets(words, "UTF-8")
        ends = tf.scatter_nd(
            codes.row_splits[1:, tf.newaxis] - 1,
            tf.ones_like(words, tf.int32),
            tf.shape(codes.values, tf.int64),
        )
        keys = 2 * codes.values + ends
        at = tf.searchsorted(self._symbols, keys)
        found = tf.where(tf.gather(self._symbols, at) == keys, tf.gather(self._symbol_ids, at), self._unknown)
        ids, characters = self._merged_words(found, tf.cast(codes.row_lengths(), tf.int32))
        first = tf.gather(codes.row_starts(), row_numbers(ids.row_splits))
        places = tf.gather(offsets.values, first + tf.cast(characters.values, tf.int64))
        return ids, ids.with_values(tf.cast(places, tf.int32))


class _Matcher(CoreWordPiece):
    """Splits text into words as WordPiece does, and each word into tokens by its merges."""

    def __init__(
        self, vocabulary: Sequence[str], merges: Sequence[str], *, unknown: str, rules: Rules
    ) -> None:
        tf.Module.__init__(self)
        self._single = single_characters(rules)
        ids = {token: i for i, token in enumerate(vocabulary)}
        self._merge = CharacterMerges(merges, ids, unknown=ids[unknown])
        whole = {token.removesuffix(WORD_END) for token in ids if token.endswith(WORD_END)} - {""}
        with tf.device("CPU"):
            words = tf.constant(sorted(whole | {NOT_A_MARKER}))
            tokens, _ = tf.function(functools.partial(self._merge), autograph=False)(words)
            single = tokens.row_lengths() == 1
            first = tf.gather(tokens.values, masked(tokens.row_starts(), single))
            self._distinct = DistinctWords(masked(words, single), first)

    def _split(self, words: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        return self._merge(words)
