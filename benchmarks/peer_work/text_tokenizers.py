"""Tokenizers alone: Hugging Face's library tokenizers, and TensorFlow Text's FastBertTokenizer."""

import functools
import pathlib
from collections.abc import Callable

from peer_work.ours import mapped
from peer_work.work import Case, Prepared, lines, pieces


def wordpiece(case: Case, folder: pathlib.Path, *, method: str) -> Prepared:
    """The library tokenizers, on all lines in one call."""
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)._tokenizer
    return _encoding(getattr(tokenizer, method), lines(case, folder))


def byte_bpe(case: Case, folder: pathlib.Path, *, method: str) -> Prepared:
    """The library tokenizers, on all lines in one call."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "byte-bpe/tokenizer.json"))
    return _encoding(getattr(tokenizer, method), lines(case, folder))


def _encoding(method: Callable, text: list[str]) -> Prepared:
    encode = functools.partial(method, add_special_tokens=False)
    return lambda: encode(text), pieces([one.ids for one in encode(text)])


def fast_bert_tokenizer(case: Case, folder: pathlib.Path) -> Prepared:
    """In `Dataset.map`. Its ids are not the original's."""
    import tensorflow as tf
    import tensorflow_text

    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = tensorflow_text.FastBertTokenizer(
        vocabulary, lower_case_nfd_strip_accents=True, token_out_type=tf.int32
    )
    text = lines(case, folder)
    return mapped(tokenizer.tokenize, text), pieces(tokenizer.tokenize(text).to_list())
