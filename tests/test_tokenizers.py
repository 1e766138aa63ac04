"""WordPiece against google-research/bert's own answers (golden), `tokenizers`, its own bytes, and TensorFlow Serving's ops."""

import json
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

import pytest
import tensorflow as tf

from bert_keras.tokenizers import MAX_WORD_CHARACTERS, WordPiece, read_vocabulary

GOLDEN = json.loads(pathlib.Path(__file__).with_name("golden").joinpath("tokenizer.json").read_text())
ROOT = pathlib.Path(__file__).parents[1]
CASES = {"uncased": True, "cased": False}
# What TensorFlow Serving links of TensorFlow Text since 2.10 and the tokenizer may use; the rest must be core TensorFlow.
SERVED = {"NormalizeUTF8", "FastWordpieceTokenizeWithOffsets"}
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] hello world un ##aff ##able , ! e ##e".split()


@pytest.fixture(scope="module", params=CASES)
def golden(request) -> tuple[WordPiece, list[tuple[str, bytes, list[int]]]]:
    """A tokenizer and (kind, text, ids) of every golden string."""
    tokenizer = WordPiece(GOLDEN["vocabulary"], lower_case=CASES[request.param])
    cases = [(case["kind"], case["text"].encode("latin-1"), case[request.param]) for case in GOLDEN["cases"]]
    return tokenizer, cases


def pieces(tokenizer: WordPiece, text: str) -> list[str]:
    return [tokenizer.vocabulary[i] for i in tokenizer.tokenize([text])[0].numpy()]


def normal_form(raw: bytes, lower_case: bool) -> str:
    """A second, Python, writing of the normal form, for judging cuts; sigma's form hangs on letters outside the cut."""
    text = "".join(c for c in raw.decode("utf-8", "ignore") if unicodedata.category(c) not in ("Cc", "Cf"))
    if lower_case:
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    return text.replace("ς", "σ")


def check_cuts(tokenizer: WordPiece, texts: list[bytes]) -> None:
    """The bytes between start and end are the piece; of a character taken apart, each piece gets the whole."""
    for raw, *row in zip(texts, *(r.to_list() for r in tokenizer.tokenize_with_offsets(texts)), strict=True):
        for id_, start, end in zip(*row, strict=True):
            cut, piece = raw[start:end], tokenizer.vocabulary[id_]
            form = normal_form(cut, tokenizer.lower_case)
            assert 0 <= start < end <= len(raw)
            if piece == "[UNK]":
                assert form and not form.isspace(), (raw, cut)
                continue
            wanted = (piece.removeprefix("##") or piece).replace("ς", "σ")
            one_character = len(unicodedata.normalize("NFC", cut.decode("utf-8", "ignore"))) == 1
            assert form == wanted or (one_character and wanted in form), (raw, piece, cut)


class TestIds:
    def test_equal_the_originals(self, golden):
        tokenizer, cases = golden
        ids = tokenizer.tokenize([text for _, text, _ in cases]).to_list()
        wrong = [(*case, mine) for case, mine in zip(cases, ids, strict=True) if case[2] != mine]
        assert not wrong

    def test_do_not_depend_on_the_batch(self, golden):
        tokenizer, cases = golden
        for _, text, ids in cases:
            assert tokenizer.tokenize([text])[0].numpy().tolist() == ids

    def test_are_the_same_with_offsets(self, golden):
        tokenizer, cases = golden
        ids, starts, ends = tokenizer.tokenize_with_offsets([text for _, text, _ in cases])
        assert ids.to_list() == [ids for _, _, ids in cases]
        assert ids.dtype == starts.dtype == ends.dtype == tf.int32

    def test_own_text(self):
        tokenizer = WordPiece(VOCABULARY)
        assert pieces(tokenizer, "Hello, unaffable wörld!") == ["hello", ",", "un", "##aff", "##able", "world", "!"]

    @pytest.mark.parametrize("letter", ["e", "é", "e\u0301"])
    def test_word_limit_counts_characters_after_normalizing(self, letter):
        tokenizer = WordPiece(VOCABULARY)
        assert pieces(tokenizer, letter * MAX_WORD_CHARACTERS) == ["e"] + ["##e"] * (MAX_WORD_CHARACTERS - 1)
        assert pieces(tokenizer, f"hello {letter * (MAX_WORD_CHARACTERS + 1)},") == ["hello", "[UNK]", ","]

    def test_locale_does_not_matter(self):
        """A Turkish machine would make a dotless letter of I."""
        code = (
            "from bert_keras.tokenizers import WordPiece\n"
            f"print(WordPiece({VOCABULARY + ['i', '##i']!r}).tokenize(['I İ É']).to_list())"
        )
        prints = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "LC_ALL": locale, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for locale in ("C.UTF-8", "tr_TR.UTF-8")
        }
        assert prints == {"[[14, 14, 12]]\n"}
