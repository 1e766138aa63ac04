"""Whole words: a vocabulary of words, as word vectors have it, in the place of WordPiece's tokens.

In: what WordPiece's matching found in text in normal form: ids, start bytes and end bytes, ragged int32 [B, (T)]. Out: the same,
with another id for each word that the vocabulary lacks.

Such a vocabulary has no token that continues a word, so that WordPiece gives a whole word's id, or [UNK]. A new word gets the
id of its class, such as `<UNK-number>`, if the vocabulary has one; else [UNK]; or, where the rule `new_words` is "own", an id
beyond the vocabulary: two equal new words of a question and of its paragraph stay equal, and differ from others.

Source: Dhingra et al. 2017.
"""

import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from bert_keras.text.ragged import row_numbers
from bert_keras.text.rules import OWN
from bert_keras.text.vocabulary import CONTINUATION

UNKNOWN_CLASS = "<UNK>"
# The classes of words that a vocabulary lacks, the first that fits: patterns of Python and of TensorFlow. Text that is
# lower-cased has no capitals, and no word of split text has punctuation.
CLASSES = {
    "<UNK-number>": r"[-+$]?[0-9][0-9.,:/]*%?",
    "<UNK-capitals>": r"[0-9.&-]*[A-Z][0-9.&-]*[A-Z][A-Z0-9.&-]*",
    "<UNK-capitalised>": r"[A-Z].*",
    "<UNK-hyphen>": r".+-.+",
}
OWN_IDS = 2**20  # ids of new words; two of them share one by chance

# Text in normal form, string [B] -> ids, start bytes and end bytes.
Match = Callable[[tf.Tensor], tuple[tf.RaggedTensor, ...]]


def class_of(word: str) -> str:
    """The class of a word that a vocabulary lacks: a key of CLASSES, or `<UNK>`."""
    return next((name for name, form in CLASSES.items() if re.fullmatch(form, word)), UNKNOWN_CLASS)


def whole_words_alone(vocabulary: Sequence[str]) -> tuple[str, ...]:
    """The vocabulary with a blank, which no text has, for each token that would continue a word: a file may have "##s"."""
    return tuple("" if token.startswith(CONTINUATION) else token for token in vocabulary)


class WholeWords(tf.Module):
    """Finds the ids of new words.

    match: WordPiece's matching with the vocabulary
    vocabulary: the tokens in the order of their ids, added tokens included
    unknown: the id that `match` gives to a new word
    new_words: "unknown" gives the id of a word's class, else `unknown`; "own" gives len(vocabulary) + a hash under OWN_IDS
    """

    def __init__(self, match: Match, vocabulary: Sequence[str], *, unknown: int, new_words: str) -> None:
        super().__init__()
        self._match, self._unknown, self._own = match, unknown, new_words == OWN
        self._size, places = len(vocabulary), {token: i for i, token in enumerate(vocabulary)}
        self._classes = [(form, places[name]) for name, form in CLASSES.items() if name in places][::-1]

    def __call__(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Valid UTF-8, string [B] -> ids, start bytes and end bytes, one of each for a word."""
        ids, starts, ends = self._match(text)
        new = tf.where(ids.values == self._unknown)
        rows, first, stop = (
            tf.gather_nd(one, new) for one in (row_numbers(ids.row_splits), starts.values, ends.values)
        )
        words = tf.strings.substr(tf.gather(text, rows), first, stop - first)
        values = tf.tensor_scatter_nd_update(ids.values, new, self._ids_of(words))
        return ids.with_values(values), starts, ends

    def _ids_of(self, words: tf.Tensor) -> tf.Tensor:
        """New words, string [N] -> int32 [N]. The hash is equal in every process and version (FarmHash's fingerprint)."""
        if self._own:
            return self._size + tf.cast(tf.strings.to_hash_bucket_fast(words, OWN_IDS), tf.int32)
        ids = tf.fill(tf.shape(words), self._unknown)
        for form, one in self._classes:
            ids = tf.where(tf.strings.regex_full_match(words, form), one, ids)
        return ids
