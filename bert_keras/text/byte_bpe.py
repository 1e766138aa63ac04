"""RoBERTa's tokenizer in graph: byte-level BPE.

In: a vocabulary and its merges, then string [B], raw text. Out: ragged int32 [B, (T)], ids and, on request, the start and end of
each token in bytes of the given strings. It uses TensorFlow's own ops alone.

The ids and offsets are those of the tokenizers library for RoBERTa: a ByteLevel pre-tokenizer that adds no space before the
text, and BPE without dropout.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import shortened
from bert_keras.text.added_tokens import WHITE_SPACE, Columns
from bert_keras.text.distinct_words import DistinctWords
from bert_keras.text.ragged import masked, repeats, row_numbers
from bert_keras.text.rules import ROBERTA_PAIR, AddedToken, Rules
from bert_keras.text.tokenizer import Tokenizer, find_special
from bert_keras.text.vocabulary import Vocabulary
from bert_keras.text.words import Words, WordSplitter, byte_alphabet

# RoBERTa's names of the special tokens.
BPE_TOKENS = {"padding": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>", "mask": "<mask>"}
_NEVER = np.iinfo("int32").max  # the rank of a pair that is not in the list


class ByteBPE(Tokenizer):
    """RoBERTa's tokenizer: splits text into words with the spaces before them, and merges the bytes of each word.

    vocabulary: the tokens in the order of their ids, with a printable character for each byte ("Ġ" for the space), as in a
        vocab.json
    merges: the pairs to merge in the order of learning, as in a merges.txt: "Ġ t"

    special_tokens_in_text: True reads a literal "<mask>" (also <s>, </s>, <pad>, <unk>) as that token, "<mask>" with the white
        space before it. False splits it as other text, so that a text cannot inject a separator.
    rules: settings that the original lacks, such as added tokens

    Text has no normal form: case, accents and spaces stay. No text has an unknown token.
    Raises ValueError for a vocabulary that lacks a special token or a byte, and for merges whose tokens it lacks.
    Source: Radford et al. 2019 (GPT-2), sec. 2.2; Liu et al. 2019 (RoBERTa), sec. 4.4.
    """

    own_pair = ROBERTA_PAIR
    before_mask = rf"[{WHITE_SPACE}]+$"
    trims = True

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[str],
        *,
        special_tokens_in_text: bool = False,
        rules: Rules = Rules(),  # noqa: B008  frozen
    ):
        names = BPE_TOKENS | dict(rules.names)
        ids = checked_ids(vocabulary, source="vocabulary")
        full = (*vocabulary, *rules.beyond(tuple(vocabulary)))
        special = find_special(full, names, model="RoBERTa", source="vocabulary")
        pairs, joined = checked_merges(merges, ids, source="merges")
        there = [
            AddedToken(token, normalized=False, lstrip=role == "mask")
            for role, token in names.items()
            if token in full
        ]
        super().__init__(
            vocabulary,
            special=special,
            lower_case=False,
            rules=rules,
            names=names,
            whole=there if special_tokens_in_text else (),
        )
        self.special_tokens_in_text = special_tokens_in_text
        self._find_normalized_in_text = self._find_normalized(lambda texts: texts)
        fixed = tuple(merges)
        self._merge_lines = lambda: fixed
        alphabet = byte_alphabet()
        self._bytes = {character: byte for byte, character in enumerate(alphabet)}
        byte_ids = np.array([ids[character] for character in alphabet], "int32")
        texts = [self._bytes_of(token) for token in vocabulary]
        self._split = WordSplitter()
        self._merge = Merges(pairs, joined, lengths=np.array([*map(len, texts)]), byte_ids=byte_ids)
        self._real = np.unique(np.concatenate([byte_ids, joined]))
        with tf.device("CPU"):
            self._leading = tf.constant([len(text) - len(text.lstrip(b" ")) for text in texts])
            self._trailing = tf.constant([len(text) - len(text.rstrip(b" ")) for text in texts])
            self._distinct = self._one_token_words(texts)

    @property
    def merges(self) -> tuple[str, ...]:
        """The merges in the order of learning."""
        return self._merge_lines()

    @property
    def digest(self) -> str:
        """SHA-256 of the vocabulary, one token per line, a blank line, the merges, and settings that the original lacks."""
        return super().digest

    def _digested(self) -> tuple[str, ...]:
        return (*self.vocabulary, "", *self.merges)

    @property
    def continues(self) -> np.ndarray:
        """Bool [V], tokens without a space before them (fairseq's gpt2_bpe.py, is_beginning_of_word)."""
        own = len(self.own_vocabulary)
        return np.array([i < own and not token.startswith("Ġ") for i, token in enumerate(self.vocabulary)])

    @property
    def real(self) -> np.ndarray:
        return self._real

    @property
    def texts(self) -> tuple[bytes, ...]:
        beyond = self.vocabulary[len(self.own_vocabulary) :]
        return (*map(self._bytes_of, self.own_vocabulary), *(token.encode() for token in beyond))

    def to_vocabulary(self) -> Vocabulary:
        return super().to_vocabulary()._replace(merges=self.merges)

    def _ids(self, text: tf.Tensor) -> tf.RaggedTensor:
        return self._find_normalized_in_text(text, lambda part: (self._merged_ids(part),))[0]

    def _with_offsets(self, text: tf.Tensor) -> Columns:
        return self._find_normalized_in_text(text, self._merged_with_offsets)

    def _prefixed(self, text: tf.Tensor) -> tf.Tensor:
        """Texts with a space before those that do not start with one, if a setting says so; empty texts stay."""
        if not self.rules.prefix_space:
            return text
        first = tf.strings.substr(text, 0, 1)
        return tf.where((first == "") | (first == " "), text, tf.strings.join([" ", text]))

    def _merged_ids(self, text: tf.Tensor) -> tf.RaggedTensor:
        codes = tf.strings.unicode_decode(self._prefixed(text), "UTF-8", errors="ignore")
        return self._tokens(self._split(codes))[0]

    def _merged_with_offsets(self, text: tf.Tensor) -> Columns:
        """Ids, start bytes and end bytes of text without added tokens.

        Offsets leave out the spaces before a word; a token of spaces alone has no bytes, and stands at its end. The tokens of
        one character all have its bytes.
        """
        prefixed = self._prefixed(text)
        codes, offsets = tf.strings.unicode_decode_with_offsets(prefixed, "UTF-8", errors="ignore")
        words = self._split(codes)
        ids, word, places = self._tokens(words)
        # Bytes of the concatenated valid characters, which the tokens cover without a gap.
        sizes = tf.add_n([tf.cast(codes.values > last, tf.int32) for last in (-1, 0x7F, 0x7FF, 0xFFFF)])
        ends = tf.cumsum(sizes)
        starts = tf.gather(ends - sizes, tf.gather(words.first, word)) + places
        stops = tf.concat([starts, ends[-1:]], axis=0)[1:]
        starts = tf.minimum(starts + tf.gather(self._leading, ids.values), stops)
        stops = tf.maximum(stops - tf.gather(self._trailing, ids.values), starts)
        # The characters of those bytes, in `text`.
        row_starts = tf.cast(offsets.values, tf.int32)
        row_ends = tf.gather(row_starts + sizes, tf.searchsorted(ends, stops - 1, side="right"))
        row_starts = tf.gather(
            row_starts, tf.minimum(tf.searchsorted(ends, starts, side="right"), tf.size(ends) - 1)
        )
        row_starts = tf.where(starts == stops, row_ends, row_starts)
        if self.rules.prefix_space:
            added = tf.strings.length(prefixed) - tf.strings.length(text)
            shift = tf.gather(added, row_numbers(ids.row_splits))
            row_starts, row_ends = tf.maximum(row_starts - shift, 0), tf.maximum(row_ends - shift, 0)
        return ids, ids.with_values(row_starts), ids.with_values(row_ends)

    def _arguments(self) -> dict[str, Any]:
        return {
            "vocabulary": self.own_vocabulary,
            "merges": self.merges,
            "special_tokens_in_text": self.special_tokens_in_text,
            "rules": self.rules,
        }

    def _joined(self, pieces: Sequence[str]) -> str:
        return b"".join(map(self._bytes_of, pieces)).decode("utf-8", "replace")

    def _bytes_of(self, token: str) -> bytes:
        """The bytes that a token stands for; a special token stands for its name."""
        if all(character in self._bytes for character in token):
            return bytes(self._bytes[character] for character in token)
        return token.encode()

    def _one_token_words(self, texts: Sequence[bytes]) -> DistinctWords:
        """The words that the merges make a single token."""
        words = tf.constant([texts[i] for i in self._real])
        tokens, _ = tf.function(functools.partial(self._merge), autograph=False)(words)
        single = tokens.row_lengths() == 1
        return DistinctWords(
            masked(words, single), tf.gather(tokens.values, masked(tokens.row_starts(), single))
        )

    def _tokens(self, words: Words) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Words -> ids, ragged int32 [B, (T)]; and of each token its word and its first byte in the word, int [T] of all rows."""
        return self._distinct(words.text, words.row_splits, self._merge)


def checked_ids(vocabulary: Sequence[str], *, source: str) -> dict[str, int]:
    """Token -> id. Raises ValueError for a vocabulary that would silently give wrong ids."""
    ids: dict[str, int] = {}
    for id_, token in enumerate(vocabulary):
        if ids.setdefault(token, id_) != id_:
            raise BertKerasError(
                f"{source}: {shortened(token)} has the ids {ids[token]} and {id_}; remove one of the two"
            )
    if missing := [character for character in byte_alphabet() if character not in ids]:
        raise BertKerasError(
            f"{source}: no token for {len(missing)} of the 256 bytes, {missing[0]!r} the first; byte-level BPE needs all"
        )
    return ids


def checked_merges(
    merges: Sequence[str], ids: dict[str, int], *, source: str
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of each pair, int32 [R, 2], and of the token that it becomes, int32 [R]. Raises ValueError as above."""
    pairs: dict[tuple[int, int], int] = {}
    for number, line in enumerate(merges, 1):
        left, _, right = line.partition(" ")
        if lacking := [token for token in (left, right, left + right) if token not in ids]:
            raise BertKerasError(
                f"{source}, merge {number}: {shortened(lacking[0])} is not in the vocabulary; bring both files of one model"
            )
        pair = ids[left], ids[right]
        if pair in pairs:
            raise BertKerasError(
                f"{source}, merge {number}: {shortened(line)} is there twice; remove one of the two"
            )
        pairs[pair] = ids[left + right]
    return np.array([*pairs], "int32").reshape(-1, 2), np.array([*pairs.values()], "int32")


# -----------------------------------------------------------------------------------------------------------
# Byte-pair encoding in graph: merges the bytes of all words of a batch at once
#
# The rule (Sennrich et al. 2016, sec. 3.2; openai/gpt-2 encoder.py): of all adjacent pairs of a word, merge the one that is
# first in the list of merges, the leftmost of several, until no pair is in the list. One step of our loop merges in every word
# all pairs that are first, left to right. This gives the same tokens if the merges are in the order of learning: a pair with a
# new token comes later in the list than the merge that makes the token. Else a step merges only the leftmost.
#
# A word may be as long as a text, so it is cut into blocks of at least twice the longest token. A pair is merged if it is first
# in its block and in the blocks beside it. A merge farther away changes nothing here: it could reach the pair only by a token
# that is longer than any in the vocabulary.


class Merges(tf.Module):
    """The merges of a vocabulary.

    pairs: int [R, 2], the tokens that each merge joins, in the order of the list; no pair twice
    joined: int [R], the tokens that they become
    lengths: int [V], the bytes of each token
    byte_ids: int [256], the token of each byte
    """

    def __init__(
        self, pairs: np.ndarray, joined: np.ndarray, *, lengths: np.ndarray, byte_ids: np.ndarray
    ) -> None:
        super().__init__()
        # The token between words, which no pair has.
        self._gap = len(lengths)
        self._in_order = _in_order(pairs, joined, len(lengths))
        longest = int(np.max(lengths[joined], initial=1))
        self._block = 2 * longest if self._in_order else np.iinfo("int32").max
        keys = pairs[:, 0].astype("int64") * (self._gap + 1) + pairs[:, 1]
        ranks = np.argsort(keys).astype("int32")
        with tf.device("CPU"):
            # The last key is larger than any pair's.
            self._keys = tf.constant(np.append(keys[ranks], np.iinfo("int64").max))
            self._ranks = tf.constant(np.append(ranks, _NEVER), tf.int32)
            self._joined = tf.constant(np.append(joined, 0), tf.int32)
            self._byte_ids = tf.constant(byte_ids, tf.int32)

    def __call__(self, words: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """words: string [W], none empty -> ragged int32 [W, (T)], ids and the first byte of each token in its word."""
        text = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8), tf.int32)
        return self._merged_words(tf.gather(self._byte_ids, text), tf.strings.length(words))

    def _merged_words(self, first: tf.Tensor, lengths: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """The tokens of words after all merges, and the number in its word of the first of the given tokens in each.

        first: int32 [N], the tokens before the merges; lengths: int32 [W], those of each word
        """
        # A gap stands before each word.
        word = repeats(lengths + 1)
        gaps = tf.cumsum(lengths + 1, exclusive=True)
        places = tf.range(tf.size(word)) - tf.gather(
            gaps, word
        )  # 0 for a gap, else the token's number from 1
        ids = tf.tensor_scatter_nd_update(tf.fill([tf.size(word)], self._gap), tf.where(places > 0), first)
        ids, kept = self._merged(ids, word, places)
        real = tf.where(ids != self._gap)[:, 0]
        ids, kept = tf.gather(ids, real), tf.gather(kept, real)
        row = tf.cast(tf.gather(word, kept), tf.int64)
        rows = tf.RaggedTensor.from_value_rowids(ids, row, nrows=tf.size(lengths, tf.int64), validate=False)
        return rows, rows.with_values(tf.gather(places, kept) - 1)

    def _merged(self, ids: tf.Tensor, word: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Tokens int32 [N] -> the tokens after all merges, and the index of the first of the given tokens in each."""
        opens = places % self._block == 0
        blocks = tf.cumsum(tf.cast(opens, tf.int32)) - 1
        words = masked(word, opens)  # the word of each block
        same = tf.cast(words[1:] == words[:-1], tf.int32)
        block = tf.range(tf.size(words))
        before = block - tf.pad(same, [[1, 0]])[: tf.size(words)]
        after = block + tf.pad(same, [[0, 1]])[: tf.size(words)]

        def step(ids: tf.Tensor, kept: tf.Tensor, unfinished: tf.Tensor) -> tuple[tf.Tensor, ...]:
            ranks = self._ranks_of(ids)
            block = tf.gather(blocks, kept[:-1])
            least = tf.math.unsorted_segment_min(ranks, block, tf.size(words))
            least = tf.minimum(least, tf.minimum(tf.gather(least, before), tf.gather(least, after)))
            first = tf.where((ranks == tf.gather(least, block)) & (ranks != _NEVER))[:, 0]
            chosen = self._without_overlap(first, ranks) if self._in_order else _leftmost(first, block)
            joined = tf.gather(self._joined, tf.gather(ranks, chosen))
            ids = tf.tensor_scatter_nd_update(ids, chosen[:, tf.newaxis], joined)
            stays = tf.tensor_scatter_nd_update(
                tf.ones_like(ids, tf.bool), chosen[:, tf.newaxis] + 1, tf.zeros_like(chosen, tf.bool)
            )
            left = tf.where(stays)[:, 0]
            return tf.gather(ids, left), tf.gather(kept, left), tf.size(chosen) > 0

        return tf.while_loop(
            lambda ids, kept, unfinished: unfinished,
            step,
            (ids, tf.range(tf.size(ids)), tf.size(ids) > 0),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None]), tf.TensorShape([])),
        )[:2]

    def _ranks_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Tokens int32 [N] -> int32 [N - 1], the rank of each pair of neighbours."""
        ids = tf.cast(ids, tf.int64)
        keys = ids[:-1] * (self._gap + 1) + ids[1:]
        at = tf.searchsorted(self._keys, keys)
        return tf.where(tf.gather(self._keys, at) == keys, tf.gather(self._ranks, at), _NEVER)

    def _without_overlap(self, pairs: tf.Tensor, ranks: tf.Tensor) -> tf.Tensor:
        """The pairs to merge, of the pairs that are first: every second of pairs that overlap, from the left."""
        before = tf.gather(ranks, tf.maximum(pairs - 1, 0))
        overlaps = (before == tf.gather(ranks, pairs)) & (pairs > 0)

        def thinned() -> tf.Tensor:
            follows = overlaps & (pairs == tf.concat([[-1], pairs[:-1] + 1], axis=0))
            run = tf.cumsum(tf.cast(~follows, tf.int32)) - 1
            head = masked(pairs, ~follows)
            # The pair before waits for a merge in a block farther to the left.
            waits = masked(overlaps, ~follows)
            odd = (pairs - tf.gather(head, run)) % 2 == 1
            return masked(pairs, ~odd & ~tf.gather(waits, run))

        return tf.cond(tf.reduce_any(overlaps), thinned, lambda: pairs)


def _leftmost(pairs: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
    """The first pair of each block."""
    blocks = tf.gather(block, pairs)
    return masked(pairs, tf.concat([[True], blocks[1:] != blocks[:-1]], axis=0)[: tf.size(pairs)])


def _in_order(pairs: np.ndarray, joined: np.ndarray, size: int) -> bool:
    """True if every merge comes after all merges that make its tokens."""
    rank = np.arange(len(pairs))
    last = np.full(size, -1)
    last[joined] = rank  # of equal indices, NumPy keeps the last
    return bool(np.all(last[pairs] < rank[:, np.newaxis]))
