"""WordPiece's matching by TensorFlow Text's kernel `FastWordpieceTokenizeWithOffsets`.

In: string [B], text in normal form. Out: ids, start bytes and end bytes, ragged int32 [B, (T)].
Source: Song et al. 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from bert_keras.errors import BertKerasError, first_line
from bert_keras.text.added_tokens import WHITE_SPACE, cut
from bert_keras.text.normal_forms import PUNCTUATION
from bert_keras.text.ragged import masked, masked_rows, row_numbers
from bert_keras.text.rules import TENSORFLOW_TEXT, Rules
from bert_keras.text.text_ops import tensorflow_text
from bert_keras.text.vocabulary import CONTINUATION, matchable

# Rows that may have a word of more characters than a limit. The pattern matches more rows: it knows only the most common
# separators.
_LONG_WORD = r"(?s).*[^\t\n\r -/:-@\x{2010}-\x{2027}\x{3000}-\x{3003}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{FF01}-\x{FF0F}]"
# Words, where the kernel does not split the text: a punctuation character, or characters without white space between them.
_WORD = rf"[{PUNCTUATION}]|[^{PUNCTUATION}{WHITE_SPACE}]+"


class KernelWordPiece(tf.Module):
    """Splits text into words, and matches the longest token first.

    vocabulary: the tokens in the order of their ids
    unknown: the token of a word that no tokens make, and of a word over the limit

    Raises BertKerasError for a vocabulary without a word, MissingPackageError without TensorFlow Text.
    """

    def __init__(self, vocabulary: Sequence[str], *, unknown: str, rules: Rules) -> None:
        super().__init__()
        # The kernel splits text itself, as the original does, unless a setting says otherwise.
        self._splits, self._max_word = rules.splits_as_original, rules.max_word
        pieces = matchable(vocabulary)
        self._unknown = pieces[unknown]
        with tf.device("CPU"):
            self._goes_on = tf.constant([piece.startswith(CONTINUATION) for piece in vocabulary])
            try:
                self._kernel = tensorflow_text(TENSORFLOW_TEXT).FastWordpieceTokenizer(
                    # Text is split at brackets, so that the replacement of what no text has never matches.
                    vocab=[
                        piece if pieces.get(piece) == i else f"[never{i}]"
                        for i, piece in enumerate(vocabulary)
                    ],
                    suffix_indicator=CONTINUATION,
                    max_bytes_per_word=4 * rules.max_word,  # never reached by a word of max_word characters
                    token_out_type=tf.int32,
                    unknown_token=unknown,
                    no_pretokenization=not self._splits,
                )
            except RuntimeError as error:
                raise BertKerasError(
                    f"the vocabulary has no word and no character ({first_line(error)}); give the whole vocab.txt of a model"
                ) from error

    def __call__(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Valid UTF-8, string [B] -> ids, start bytes and end bytes."""
        if not self._splits:
            return self._match_words(text)
        pieces = self._tokens(text)
        long_word = f"{_LONG_WORD}{{{self._max_word + 1}}}.*"
        suspect = tf.reduce_any(tf.strings.regex_full_match(text, long_word))
        return tf.cond(suspect, lambda: self._limit_words(text, *pieces), lambda: pieces)

    def _match_words(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """As `__call__`, for text that we split into words."""
        parts = cut(text, _WORD)
        words = tf.where(parts.found, parts.text.values, "")
        ids, *offsets = self._limit_words(words, *self._tokens(words))
        shift = tf.gather(parts.start, row_numbers(ids.row_splits))
        splits = tf.gather(ids.row_splits, parts.text.row_splits)
        values = (ids.values, *(column.values + shift for column in offsets))
        return tuple(tf.RaggedTensor.from_row_splits(one, splits, validate=False) for one in values)

    def _tokens(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        ids, starts, ends = self._kernel.tokenize_with_offsets(text)
        return ids, tf.cast(starts, tf.int32), tf.cast(ends, tf.int32)

    def _limit_words(
        self, text: tf.Tensor, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, ...]:
        """Makes each word of more characters than the limit a single [UNK]."""
        first = ~tf.gather(self._goes_on, ids.values)
        word = tf.cumsum(tf.cast(first, tf.int32)) - 1  # of each token
        word_starts = masked(starts.values, first)
        word_ends = tf.math.segment_max(ends.values, word)

        # Rows are concatenated, so that one sorted list of character starts works for all words.
        _, offsets = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
        row_starts = tf.cumsum(tf.strings.length(text), exclusive=True)
        characters = tf.cast(offsets.values, tf.int32)
        characters += tf.gather(row_starts, row_numbers(offsets.row_splits))
        shift = tf.gather(row_starts, masked(row_numbers(ids.row_splits), first))
        length = tf.searchsorted(characters, shift + word_ends)
        length -= tf.searchsorted(characters, shift + word_starts)

        too_long = tf.gather(length > self._max_word, word)
        ids = ids.with_values(tf.where(too_long, self._unknown, ids.values))
        ends = ends.with_values(tf.where(too_long, tf.gather(word_ends, word), ends.values))
        return tuple(masked_rows(first | ~too_long, ids, starts, ends))
