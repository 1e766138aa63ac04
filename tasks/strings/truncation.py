"""Texts that do not fit into `seq_length` tokens and are cut: a line that counts them, before a training begins."""

import warnings
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_keras.tasks.strings.text_data import Columns, raw_columns
from bert_keras.tasks.task import Problem
from bert_keras.text.preprocessing import Preprocessor

CUT_SAMPLE = 1_000  # examples that are looked at for texts that are cut


def cut_texts(problem: Problem, preprocess: Preprocessor, raw: Mapping[str, Any]) -> str:
    """A line, if some of the first raw examples do not fit into seq_length tokens and are cut; else nothing.

    raw: columns [N] of at most CUT_SAMPLE examples, tensors or arrays
    """
    texts = [tf.convert_to_tensor(raw[name]) for name in problem.signature() if name in raw]
    if not texts or problem.windowed:
        return ""
    tokens = sum(_lengths(preprocess, text) for text in texts)
    lengths = tokens.numpy() + preprocess.tokenizer.pair.added(len(texts))
    if not (cut := int((lengths > preprocess.seq_length).sum())):
        return ""
    windows = ""
    if "doc_stride" in getattr(problem, "options", ()):
        windows = ", give doc_stride to read them in windows"
        if len(texts) == 1 and getattr(problem, "truncation", None) is None:
            windows += ", or give truncation to keep their ends"
    return (
        f"{cut:,} of the first {len(lengths):,} examples are longer than {preprocess.seq_length} tokens (up to "
        f"{lengths.max():,}) and are cut; give a greater seq_length{windows}"
    )


def _lengths(preprocess: Preprocessor, texts: tf.Tensor) -> tf.Tensor:
    """The tokens of each text [N]; of the longest of several [N, K]."""
    tokens = preprocess.tokenizer.tokenize(tf.reshape(texts, [-1])).row_lengths()
    return tf.reduce_max(tf.reshape(tokens, [len(texts), -1]), axis=1)


def checked_columns(
    problem: Problem, preprocess: Preprocessor, x: Any, y: Any, sample_weight: Any
) -> Columns:
    """`raw_columns`, with a warning about texts that are cut, of the first CUT_SAMPLE."""
    columns = Columns(raw_columns(problem, preprocess, x, y, sample_weight))
    first = {name: column[:CUT_SAMPLE] for name, column in columns.items()}
    if cut := cut_texts(problem, preprocess, first):
        warnings.warn(cut, stacklevel=3)  # of the line that calls `fit`
    return columns
