"""WordPiece from TensorFlow's own ops gives the ids and offsets of TensorFlow Text's, and its exports need no TensorFlow Text."""

import json
import os
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import tensorflow as tf

from bert_keras import AddedToken, BertKerasError, Rules, WordPiece
from bert_keras.text.text_ops import chosen_ops

VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] hello world un ##aff ##able , ! a e ##e ##a ##b ab abc ##abcd 中 ##国 가 ᄀ ##ᅡ α ##σ [ ] ## "
    "# 日本 . ' \u2028 a\xa0b σ ss ß ##̣ ж ##ж"
).split(" ")
NAMES = "tensorflow-text", "core"
HOSTILE = [
    b"",
    *(b"\xff", b"a\xffb", b"\xed\xa0\x80x", b"\xc3", b"\x00", b"a\x00b", b"\xf4\x90\x80\x80z"),
    *(
        b"a" * 10_000,
        b"a" * 200,
        b"a" * 201,
        b"e\xcc\x81" * 300,
        b"\xcc\x81" * 1_000,
        b"\xcc\xa3\xcc\x81\xcc\xb4" * 90,
    ),
    *(
        "é" * 300 + " 中" * 300,
        "👨‍👩‍👧‍👦 👩🏽‍🚀",
        "ﬁ ﷺ ㈱ Ａ가각힣",
        "İIıſẞßΣς ΑΣ",
        "[MASK][SEP] [UNK] [E1]x [e1]",
        "日本国 ##e # a#b",
    ),
    " \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2028\u2029\u202f\u205f\u3000a\u3000b\xa0c",
]
ADDED = (
    AddedToken("[E1]", normalized=False),
    AddedToken("été", single_word=True),
    AddedToken("中a", lstrip=True),
)
SETTINGS = {
    "uncased": {},
    "cased": {"lower_case": False},
    "special": {"special_tokens_in_text": True},
    "added": {"rules": Rules(added=ADDED)},
    "uncleaned": {"rules": Rules(clean_text=False)},
    "ideographs": {"rules": Rules(split_chinese=False)},
    "compatible": {"rules": Rules(decompose="NFKD", strip_accents="M")},
    "accented": {"rules": Rules(strip_accents="")},
    "short": {"rules": Rules(max_word=3)},
}


def some_strings() -> list[str]:
    draw = random.Random(7)
    characters = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF]
    marks = [c for c in characters if unicodedata.combining(c)]
    kinds = characters, characters[:0x3000], [*marks, "a", "è", "\u0345"], [*"abcde#'", "unaff", " "]
    return ["".join(draw.choices(kind, k=draw.randrange(30))) for kind in kinds for _ in range(300)]


def both(settings: dict, texts: list) -> list[list]:
    """Ids alone, then ids, starts and ends, by each of the two."""
    made = [WordPiece(VOCABULARY, text_ops=name, **settings) for name in NAMES]
    return [
        [one.tokenize(texts).to_list(), *(r.to_list() for r in one.tokenize_with_offsets(texts))]
        for one in made
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_equal_ids_and_offsets(name):
    wanted, found = both(SETTINGS[name], [*HOSTILE, *some_strings()])
    assert found == wanted


@pytest.mark.slow
@pytest.mark.parametrize("lower_case", [True, False])
def test_every_code_point(lower_case):
    characters = [chr(c).encode("utf-8", "surrogatepass") for c in range(sys.maxunicode + 1)]
    for form in (b"%s", b"a%sb", b"%s%s", b"e\xcc\x81%s\xcc\xa3"):
        texts = [form.replace(b"%s", one) for one in characters]
        made = [WordPiece(VOCABULARY, lower_case=lower_case, text_ops=name) for name in NAMES]
        for start in range(0, len(texts), 65_536):
            rows = texts[start : start + 65_536]
            for wanted, found in zip(*(one.tokenize_with_offsets(rows) for one in made), strict=True):
                assert tf.reduce_all(wanted.row_splits == found.row_splits)
                assert tf.reduce_all(wanted.values == found.values)


def test_no_text_and_no_words():
    tokenizer = WordPiece(VOCABULARY, text_ops="core")
    nothing = tf.constant([], tf.string)
    assert [r.to_list() for r in tokenizer.tokenize_with_offsets(nothing)] == [[], [], []]
    assert [r.to_list() for r in tokenizer.tokenize_with_offsets(["  ", ""])] == [[[], []]] * 3


def test_exports_need_no_tensorflow_text(tmp_path):
    tokenizer = WordPiece(VOCABULARY, text_ops="core")
    texts = ["Hello, unaffable wörld!", "e\u0323\u0301 가 zzz"]
    tf.saved_model.save(tokenizer, str(tmp_path / "model"))
    for function in (tokenizer.tokenize, tokenizer.tokenize_with_offsets):
        graph = function.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
        names = {f.signature.name for f in graph.library.function}
        assert not {node.op for node in nodes if not hasattr(tf.raw_ops, node.op)} - names
    code = (
        "import json, sys; sys.modules['tensorflow_text'] = None; import tensorflow as tf\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "print(json.dumps([row.to_list() for row in model.tokenize_with_offsets(tf.constant(json.loads(sys.argv[2])))]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model"), json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [r.to_list() for r in tokenizer.tokenize_with_offsets(texts)]


def test_without_tensorflow_text_core_ops_are_chosen_and_its_exports_name_it(tmp_path):
    tf.saved_model.save(WordPiece(VOCABULARY, text_ops="tensorflow-text"), str(tmp_path / "model"))
    code = (
        "import sys; sys.modules['tensorflow_text'] = None; import bert_keras as bk, tensorflow as tf\n"
        "from bert_keras.text.text_ops import text_ops_needed\n"
        f"made = bk.WordPiece({VOCABULARY!r}); print(made.text_ops, made.encode('unaffable'))\n"
        "try:\n"
        "    with text_ops_needed('model'): tf.saved_model.load('model')\n"
        "except bk.BertKerasError as error: print(error)"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    chosen, error = done.stdout.splitlines()
    assert chosen == "core [7, 8, 9]"
    assert "the SavedModel in model, which was made without --text-ops core, needs tensorflow-text" in error


def test_the_environment_chooses(monkeypatch):
    monkeypatch.setenv("BERT_KERAS_TEXT_OPS", "core")
    assert chosen_ops() == "core" and chosen_ops("tensorflow-text") == "tensorflow-text"
    monkeypatch.setenv("BERT_KERAS_TEXT_OPS", "other")
    with pytest.raises(BertKerasError, match="the text ops are 'other'; give one of tensorflow-text, core"):
        chosen_ops()
