"""Labelled examples of a tagger: lists of words as strings, and the IOB2 tags of texts with entities as spans of characters."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import shortened
from bert_keras.tasks.data import conll, spans
from bert_keras.tasks.data.columns import list_values
from bert_keras.tasks.data.spans import Span
from bert_keras.text.words import split_text

CHUNK = 1024  # texts that are split into words at once


def join_words(rows: Sequence[Any], kind: str) -> np.ndarray:
    """Lists of words or tags as bytes [N], separated by spaces. Raises BertKerasError, with the row, for one that is no word."""
    joined = []
    for row, words in enumerate(rows):
        words = [word.decode() if isinstance(word, bytes) else word for word in list_values(words)]
        if not words:
            raise BertKerasError(f"row {row} has no {kind}; give at least one.")
        for word in words:
            if not isinstance(word, str) or not conll.is_word(word):
                raise BertKerasError(
                    f"row {row}: {word!r} is not one {kind}; give a string without spaces, tabs and line ends."
                )
        joined.append(" ".join(words).encode())
    return np.array(joined, object)


def read_tagged(path: Path) -> tuple[list[str], list[list[str]]]:
    """The texts of a file with spans, and the IOB2 tags of their words."""
    read = spans.read_spans(path)
    texts = [one.text for one in read]
    return texts, tag_texts(texts, [one.spans for one in read], [one.where for one in read])


def tag_texts(texts: Sequence[str], found: Sequence[Sequence[Span]], where: Sequence[str]) -> list[list[str]]:
    """The IOB2 tags of the words into which the model splits the texts. Warns about spans that end inside of a word.

    Raises BertKerasError, with the row, for a text without words.
    """
    made, uneven = list[list[str]](), list[str]()
    for first in range(0, len(texts), CHUNK):
        starts, ends = (part.to_list() for part in split_text(tf.constant(texts[first : first + CHUNK])))
        for i, words in enumerate(zip(starts, ends, strict=True), start=first):
            if not words[0]:
                raise BertKerasError(
                    f"{where[i]}: the text {shortened(texts[i])} has no words; leave it out."
                )
            tags, odd = spans.tag_words(texts[i], found[i], *words)
            made.append(tags)
            uneven += [f"{where[i]}: {shortened(texts[i][span.start : span.end])}" for span in odd]
    if uneven:
        warnings.warn(
            f"{uneven[0]} is the first of {len(uneven)} entities, among {sum(map(len, found))}, that do not start and end with a "
            "word; whole words are tagged",
            stacklevel=4,
        )
    return made
