"""WordPiece against google-research/bert's own answers (golden), `tokenizers`, its own bytes, and TensorFlow Serving's ops."""

import json
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from random_checkpoints import refused
from runs import learn_byte_bpe

from bert_keras import ByteBPE, checkpoints
from bert_keras.tasks.pretraining.vocabulary import learn_sentencepiece
from bert_keras.text.normal_forms import VALID_UTF8
from bert_keras.text.wordpiece import MAX_WORD_CHARACTERS, WordPiece

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
    kept = (c for c in raw.decode("utf-8", "ignore") if unicodedata.category(c) not in ("Cc", "Cf"))
    text = "".join(kept).replace("\ufffd", "")
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
            letters = [c for c in cut.decode("utf-8", "ignore") if unicodedata.category(c) != "Mn"]
            one_character = len(letters) == 1 and unicodedata.normalize("NFD", letters[0]) != letters[0]
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
        assert pieces(tokenizer, "Hello, unaffable wörld!") == "hello , un ##aff ##able world !".split()

    @pytest.mark.parametrize("lower_case", [True, False])
    def test_rows_that_skip_the_normalizer_are_their_own_normal_form(self, lower_case):
        tokenizer = WordPiece(VOCABULARY, lower_case=lower_case)
        characters = [chr(c).encode() for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF]
        normal, simple = tokenizer._normalize(tf.constant(characters))
        wanted = tokenizer._normal_form(tf.boolean_mask(characters, simple))
        assert tf.reduce_all(tf.boolean_mask(normal, simple) == wanted)
        broken = [case["text"].encode("latin-1") for case in GOLDEN["cases"] if case["kind"] == "invalid"]
        assert not tf.reduce_any(tokenizer._normalize(tf.constant(broken))[1])

    def test_a_piece_of_whitespace_never_matches(self):
        tokenizer = WordPiece([*VOCABULARY, "\u2028", "\xa0"], lower_case=False)
        assert pieces(tokenizer, "hello\u2028world \u2028 \xa0 e\xa0e") == ["hello", "world", "e", "e"]

    @pytest.mark.parametrize("letter", ["e", "é", "e\u0301"])
    def test_word_limit_counts_characters_after_normalizing(self, letter):
        tokenizer = WordPiece(VOCABULARY)
        assert pieces(tokenizer, letter * MAX_WORD_CHARACTERS) == ["e"] + ["##e"] * (MAX_WORD_CHARACTERS - 1)
        assert pieces(tokenizer, f"hello {letter * (MAX_WORD_CHARACTERS + 1)},") == ["hello", "[UNK]", ","]

    @pytest.mark.slow
    def test_locale_does_not_matter(self):
        """A Turkish machine would make a dotless letter of I."""
        code = (
            "from bert_keras.text.wordpiece import WordPiece\n"
            f"found = WordPiece({VOCABULARY + ['i', '##i']!r}).tokenize_with_offsets(['I İ É'])\n"
            "print([row.to_list() for row in found])"
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
        assert prints == {"[[[14, 14, 12]], [[0, 2, 5]], [[1, 4, 7]]]\n"}


class TestOffsets:
    def test_cut_the_pieces_out_of_the_original(self, golden):
        tokenizer, cases = golden
        check_cuts(tokenizer, [text for _, text, _ in cases])

    @pytest.mark.parametrize(
        ("text", "cuts"),
        [
            ("Hello, World", ["Hello", ",", "World"]),
            ("H\u00e9llo w\x00orld", ["H\u00e9llo", "w\x00orld"]),
            ("\u200bhello\u200b", ["hello"]),
            ("e\u0301\u0323 hello", ["e\u0301\u0323", "hello"]),  # accents stay with their letter
            ("\u0301hello", ["hello"]),
            (b"\xffhello \xfe world\xff", [b"hello", b"world"]),
            ("é" * (MAX_WORD_CHARACTERS + 1), ["é" * (MAX_WORD_CHARACTERS + 1)]),
            ("", []),
        ],
    )
    def test_count_bytes_of_the_original(self, text, cuts):
        raw = text.encode() if isinstance(text, str) else text
        # A second row that needs no normalizing and a third that does: offsets must not leak between rows.
        rows = [raw, b"hello", "é".encode()]
        _, starts, ends = WordPiece(VOCABULARY).tokenize_with_offsets(rows)
        spans = [list(zip(s, e, strict=True)) for s, e in zip(starts.to_list(), ends.to_list(), strict=True)]
        assert [raw[s:e] for s, e in spans[0]] == [c.encode() if isinstance(c, str) else c for c in cuts]
        assert spans[1:] == [[(0, 5)], [(0, 2)]]


class TestSpecialTokensInText:
    def test_are_text_by_default(self):
        vocabulary = [*VOCABULARY, "[", "]", "mask"]
        assert pieces(WordPiece(vocabulary), "hello[MASK]") == ["hello", "[", "mask", "]"]

    def test_become_ids_on_request(self):
        vocabulary = [*VOCABULARY, "[", "]", "mask"]
        tokenizer = WordPiece(vocabulary, special_tokens_in_text=True)
        text = "h\u00e9llo[MASK]e [mask] [CLS][SEP] [UNK]\u00e9[PAD] \ufdd0 hello"
        raw = text.encode()
        ids, starts, ends = (row[0].numpy() for row in tokenizer.tokenize_with_offsets([raw]))
        cuts = [raw[s:e].decode() for s, e in zip(starts, ends, strict=True)]
        assert [tokenizer.vocabulary[i] for i in ids] == (
            "hello [MASK] e [ mask ] [CLS] [SEP] [UNK] e [PAD] [UNK] hello".split()
        )
        assert cuts == "héllo [MASK] e [ mask ] [CLS] [SEP] [UNK] é [PAD] \ufdd0 hello".split()
        assert tokenizer.tokenize([raw])[0].numpy().tolist() == ids.tolist()


class TestGraph:
    def test_outlives_a_temporary(self):
        assert WordPiece(VOCABULARY).tokenize(["hello"]).to_list() == [[5]]

    def test_runs_everywhere(self):
        tokenizer = WordPiece(VOCABULARY)
        texts = ["Hello wörld", "", "un\x00affable"]
        wanted = [[5, 6], [], [7, 8, 9]]
        assert tokenizer.tokenize(texts).to_list() == wanted
        assert tf.function(lambda text: tokenizer.tokenize(text))(tf.constant(texts)).to_list() == wanted
        mapped = tf.data.Dataset.from_tensor_slices(texts).batch(2).map(tokenizer.tokenize)
        assert [row for batch in mapped for row in batch.to_list()] == wanted
        nothing = tf.constant([], tf.string)
        assert tokenizer.tokenize(nothing).shape.as_list() == [0, None]
        assert [r.to_list() for r in tokenizer.tokenize_with_offsets(nothing)] == [[], [], []]

    @pytest.mark.parametrize("unit", ["e", "é ", "e\u0301", "hello, ", "中", "\x00", "\u0301", "😀"])
    def test_takes_a_megabyte(self, unit):
        tokenizer = WordPiece(VOCABULARY)
        ids, starts, ends = tokenizer.tokenize_with_offsets([unit * (1_000_000 // len(unit.encode()))])
        assert ids.to_list() == tokenizer.tokenize([unit * (1_000_000 // len(unit.encode()))]).to_list()
        assert ids.row_lengths().numpy().tolist() == starts.row_lengths().numpy().tolist()

    @pytest.mark.parametrize("special_tokens_in_text", [False, True])
    def test_uses_only_ops_that_serving_links(self, special_tokens_in_text):
        tokenizer = WordPiece(VOCABULARY, special_tokens_in_text=special_tokens_in_text)
        core = {name for name in dir(tf.raw_ops) if name[0].isupper()}
        for function in (tokenizer.tokenize, tokenizer.tokenize_with_offsets):
            graph = function.get_concrete_function().graph.as_graph_def()
            nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
            assert {node.op for node in nodes} - core <= SERVED

    @pytest.mark.slow  # the exports that tests/test_serving_safety.py asks in such a process hold tokenizers
    def test_reloads_in_a_fresh_process(self, tmp_path, golden):
        tokenizer, cases = golden
        tf.saved_model.save(tokenizer, str(tmp_path / "model"))
        (tmp_path / "texts.json").write_text(json.dumps([text.decode("latin-1") for _, text, _ in cases]))
        code = (
            "import json, sys, tensorflow as tf, tensorflow_text\n"
            "texts = [t.encode('latin-1') for t in json.load(open('texts.json'))]\n"
            "model = tf.saved_model.load('model')\n"
            "both = model.tokenize(tf.constant(texts)), model.tokenize_with_offsets(tf.constant(texts))[0]\n"
            "print(json.dumps([ids.to_list() for ids in both]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == [[ids for _, _, ids in cases]] * 2


class TestVocabulary:
    def write(self, folder: pathlib.Path, raw: bytes) -> str:
        path = folder / "vocab.txt"
        path.write_bytes(raw)
        return str(path)

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    @pytest.mark.parametrize("last", [True, False])
    def test_line_ends_and_byte_order_mark(self, tmp_path, end, mark, last):
        vocabulary = [*VOCABULARY, "\u2028", "a\x85b", "\u3000"]  # str.splitlines() would cut these
        path = self.write(tmp_path, (mark + end.join(vocabulary) + end * last).encode())
        tokenizer = WordPiece.from_file(path)
        assert tokenizer.vocabulary == tuple(vocabulary)
        assert tokenizer.vocab_size == len(vocabulary)
        assert (tokenizer.special.padding, tokenizer.special.mask) == (0, 4)

    @pytest.mark.parametrize("read", [WordPiece.from_file, checkpoints.load_tokenizer])
    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            (b"[PAD]\n[UNK]\n\xff\n", "line 3: not UTF-8"),
            (b"[PAD]\n[CLS]\n[SEP]\n[MASK]\na", r"\[UNK\] missing"),
            (b"[UNK]\na", r"\[PAD\], \[CLS\], \[SEP\] missing"),
            (b"\n", r"\[PAD\], \[UNK\], \[CLS\], \[SEP\] missing"),
            (b"x" * 257, "line 1: .* has 257 bytes; wanted at most 256"),
            (b"##" + "é".encode() * 129, "line 1: .* has 258 bytes"),
            (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\n", "has no word and no character"),
        ],
    )
    def test_errors_name_the_file_and_the_line(self, tmp_path, read, raw, message):
        path = self.write(tmp_path, raw)
        refused(message, read, path, named=path, lower_case=True)

    def test_a_folder_names_its_file(self, tmp_path):
        path = self.write(tmp_path, b"[PAD]\n")
        refused(r"\[UNK\], .* missing", checkpoints.load_tokenizer, tmp_path, named=path, lower_case=True)

    @pytest.mark.parametrize("read", [WordPiece.from_file, checkpoints.load_tokenizer])
    @pytest.mark.parametrize(
        ("more", "text", "ids", "said"),
        [
            (["x", "hello", "y"], "hello y", [15, 16], r"1 .* equal to a line below .* \(line 6 'hello'\)"),
            (["x", "", "y"], "x y", [14, 16], r"1 of its lines are blank \(line 16\)"),
            (["new york", "y"], "new york y", [1, 1, 15], r"1 .* with a space.*\(line 15\)"),
            (["##e", "\t", "y"], "hello e un\0 une y", [5, 12, 7, 7, 14, 16], "line 14 '##e'.*blank"),
        ],
    )
    def test_lines_that_no_text_reaches_keep_their_numbers(self, tmp_path, read, more, text, ids, said):
        """As in transformers: a token's id is the number of its last line."""
        path = self.write(tmp_path, "\n".join([*VOCABULARY, *more]).encode())
        with pytest.warns(UserWarning, match=said):
            tokenizer = read(path, lower_case=True)
        assert tokenizer.encode(text) == ids

    @pytest.mark.parametrize("mark", ["\u2581", "\u0120"])
    def test_words_of_another_kind_of_tokenizer_are_noticed(self, tmp_path, mark):
        """https://github.com/google-research/bert/issues/589"""
        lines = [line for line in VOCABULARY if not line.startswith("##")]
        path = self.write(tmp_path, "\n".join([*lines, mark, f"{mark}the", f"{mark}film"]).encode())
        with pytest.warns(UserWarning, match=f"2 of its lines are marked by .*'{mark}the'"):
            WordPiece.from_file(path)
        WordPiece.from_file(self.write(tmp_path, "\n".join([*lines, f"{mark}the", "##the"]).encode()))

    @pytest.mark.parametrize("end", ["\n\n\n", "\r", "\r\n\r\n"])
    def test_blank_lines_at_the_end_and_line_ends_of_old_machines(self, tmp_path, end):
        path = self.write(tmp_path, (("\r\n" if "\r\n" in end else end[0]).join(VOCABULARY) + end).encode())
        assert WordPiece.from_file(path).vocabulary == tuple(VOCABULARY)

    def test_an_address_that_only_tensorflow_reads(self):
        with tf.io.gfile.GFile("ram://vocab.txt", "wb") as file:
            file.write("\n".join(VOCABULARY).encode())
        assert list(WordPiece.from_file("ram://vocab.txt").vocabulary) == list(VOCABULARY)
        with pytest.raises(FileNotFoundError, match="no vocabulary file at ram://nowhere.txt"):
            WordPiece.from_file("ram://nowhere.txt")


# Characters that tokenizers may trip over; drawn together with any from Unicode's first planes.
AWKWARD = "aeéÉİIßſΣσςΑά中国。,.'-# \t\n\r\x00\x01\x1c\x85\xa0\xad\u0301\u0323\u200b\u200d\u2028\u3000\ufeff\ufffd한글😀"


def random_texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x904, 0x94E), (0x1E00, 0x2070)]
    ranges += [(0x3000, 0x3100), (0xAC00, 0xAD00)]

    def character() -> str:
        return draw.choice(AWKWARD) if draw.random() < 0.6 else chr(draw.randrange(*draw.choice(ranges)))

    return ["".join(character() for _ in range(draw.randrange(30))) for _ in range(count)]


def known_to_both(text: str) -> str:
    """Leaves out what `tokenizers` treats otherwise: unassigned characters and the final sigma."""
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Co") and c not in "Σσς")


REAL = {"uncased_30522": True, "cased_28996": False, "multi_cased_119547": False, "chinese_21128": True}


@pytest.fixture(scope="module", params=REAL)
def real(request, data_dir) -> WordPiece:
    """A tokenizer of a published vocabulary."""
    return WordPiece.from_file(
        str(data_dir / "vocab" / f"{request.param}.txt"), lower_case=REAL[request.param]
    )


class TestRealVocabularies:
    def hugging_face(self, tokenizer: WordPiece):
        tokenizers = pytest.importorskip("tokenizers")
        vocabulary = {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
        model = tokenizers.models.WordPiece(
            vocabulary, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS
        )
        theirs = tokenizers.Tokenizer(model)
        theirs.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=tokenizer.lower_case)
        theirs.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        return theirs

    @pytest.mark.parametrize(
        "source", ["corpus/enwiki_plain_paragraphs.txt", "vocab/multi_cased_119547.txt", "fuzz"]
    )
    def test_equal_tokenizers(self, real, source, data_dir):
        theirs = self.hugging_face(real)
        if source == "fuzz":
            texts = random_texts(seed=7, count=3000)
        else:
            texts = (data_dir / source).read_text("utf-8").split("\n")[::20]
        texts = [known_to_both(text) for text in texts]
        wanted = [encoding.ids for encoding in theirs.encode_batch(texts)]
        ids, _, _ = real.tokenize_with_offsets(texts)
        wrong = [t for t, mine, w in zip(texts, ids.to_list(), wanted, strict=True) if mine != w]
        assert not wrong
        assert real.tokenize(texts).to_list() == wanted
        check_cuts(real, [text.encode() for text in texts])

    def test_vocabulary_is_saved_once(self, data_dir, tmp_path):
        tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
        tf.saved_model.save(tokenizer, str(tmp_path))
        size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        once = int(tf.size(tokenizer._match._kernel._model))
        assert once < size < 1.3 * once


def test_the_check_for_utf8_agrees_with_the_transcoder():
    """Every code point alone, surrogates included, and sequences of bytes that are nearly UTF-8."""
    draw = random.Random(1)
    near = (0x80, 0xBF, 0xC0, 0xE0, 0xED, 0xF0, 0xF4)
    rows = [
        bytes(draw.choice((draw.randrange(256), *near)) for _ in range(draw.randrange(1, 6)))
        for _ in range(20_000)
    ]
    rows += [chr(code).encode("utf-8", "surrogatepass") for code in range(sys.maxunicode + 1)]
    rows += [b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf8\x88\x80\x80\x80"]
    text = tf.constant(rows)
    kept = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore") == text
    assert 2_000 < np.sum(~kept.numpy()) < len(rows)
    np.testing.assert_array_equal(tf.strings.regex_full_match(text, VALID_UTF8), kept)


def nodes(function):
    """The nodes of a function's graph, with those of all branches."""
    graph = function.get_concrete_function().graph.as_graph_def()
    return len(graph.node) + sum(len(inner.node_def) for inner in graph.library.function)


def test_the_graphs_stay_small_because_every_iterator_and_server_prepares_them_again():
    tokenizer = WordPiece(VOCABULARY)
    # With TensorFlow's own operations on ragged tensors there were 692 and 1,053.
    assert nodes(tokenizer.tokenize) < 200
    assert nodes(tokenizer.tokenize_with_offsets) < 400


class InterruptedWhileTraced(WordPiece):
    """Gets Ctrl-C while TensorFlow makes the graph."""

    went_on = False

    def tokenize(self, text):
        os.kill(os.getpid(), signal.SIGINT)
        type(self).went_on = True
        return super().tokenize(text)


def test_ctrl_c_waits_for_the_end_of_a_trace():
    """In the middle of one, TensorFlow may drop it and never end."""
    with pytest.raises(KeyboardInterrupt):
        InterruptedWhileTraced(VOCABULARY).tokenize(tf.constant(["a"]))
    assert InterruptedWhileTraced.went_on


# -----------------------------------------------------------------------------------------------------------
# Pickles of every kind of tokenizer, for other processes

LINES = ["Hello  lower world", "[MASK] lowest café <mask>", "unaffable, low!"] * 40
MADE = {
    "wordpiece": lambda: WordPiece(VOCABULARY),
    "wordpiece cased": lambda: WordPiece(VOCABULARY, lower_case=False),
    "wordpiece special": lambda: WordPiece(VOCABULARY, special_tokens_in_text=True),
    "sentencepiece cased": lambda: learn_sentencepiece(LINES, size=40, lower_case=False),
    "byte-bpe": lambda: ByteBPE(*learn_byte_bpe(LINES, size=300)),
    "byte-bpe special": lambda: ByteBPE(*learn_byte_bpe(LINES, size=300), special_tokens_in_text=True),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", MADE)
def test_a_pickle_makes_an_equal_tokenizer(kind):
    tokenizer = MADE[kind]()
    both = (tokenizer, pickle.loads(pickle.dumps(tokenizer)))
    facts = [(type(made), made.digest, made.lower_case) for made in both]
    rows = [[part.to_list() for part in made.tokenize_with_offsets(tf.constant(LINES[:3]))] for made in both]
    assert facts[0] == facts[1] and rows[0] == rows[1]
