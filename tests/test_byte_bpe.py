"""Byte-level BPE against the tokenizers library: ids and offsets, files, and the frame of two texts."""

import contextlib
import dataclasses
import json
import pathlib
import random
import shutil
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
import tokenizers
from random_checkpoints import refused
from runs import learn_byte_bpe
from tokenizers import AddedToken, models, pre_tokenizers, processors

from bert_keras import ByteBPE, Preprocessor, PreprocessorLayer, checkpoints
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.text.tokenizer import BERT_PAIR
from bert_keras.text.words import LETTER, NUMBER, SPACE, WHITE, byte_alphabet, classes_of_code_points

SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
# Fragments whose neighbours decide where a word starts.
FRAGMENTS = (
    *(" ", "  ", "\n", "\t", "\r\n", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\ufeff", "\x00"),
    *("'", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "s", "ll", "re", "l", "r"),
    *("a", "The", "ing", "aaaa", "é", "ß", "日本", "\N{GRINNING FACE}", "e\u0301"),
    *("1", "23", "½", "².", "\u0663"),
    *(".", "...", "-", "----", '"', "$", "_", "<", ">", "\ufdd0", "\U0010ffff"),
)


def texts_of(fragments, count, *, seed=0):
    draw = random.Random(seed)
    return ["".join(draw.choices(fragments, k=draw.randint(0, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def learned():
    """A vocabulary of 600 tokens, with tokens of several spaces, of parts of characters and of repeated signs."""
    return learn_byte_bpe(texts_of(FRAGMENTS, 300, seed=1), size=600)


@pytest.fixture(scope="module")
def tokenizer(learned):
    return ByteBPE(*learned)


def reference(vocabulary, merges, *, special=()):
    """The same tokenizer in the tokenizers library."""
    ids = {token: i for i, token in enumerate(vocabulary)}
    made = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[tuple(merge.split()) for merge in merges]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    frame = [(token, ids[token]) for token in ("</s>", "<s>")]
    made.post_processor = processors.RobertaProcessing(*frame, trim_offsets=True, add_prefix_space=False)
    made.add_special_tokens(
        [AddedToken(token, lstrip=token == "<mask>", normalized=False) for token in special]
    )
    return made


def valid_characters(raw):
    """The characters of UTF-8 without invalid bytes, and where each starts and ends in the bytes."""
    found, end = [], 0
    for at in range(len(raw)):
        for width in range(1, 5 if at >= end else 0):
            with contextlib.suppress(UnicodeDecodeError):
                character, end = raw[at : at + width].decode(), at + width
                found.append((character, at, end))
                break
    return found


def byte_offsets(valid, offsets):
    """Offsets in characters -> in bytes; an empty token stands at the end of the character before it."""
    return [
        (valid[start][1], valid[end - 1][2]) if start < end else (valid[end - 1][2],) * 2
        for start, end in offsets
    ]


def assert_equal_tokens(tokenizer, library, texts):
    """texts: strings, or bytes, from which the library gets the valid characters."""
    raw = [text if isinstance(text, bytes) else text.encode() for text in texts]
    ids, starts, ends = (ragged.to_list() for ragged in tokenizer.tokenize_with_offsets(tf.constant(raw)))
    assert tokenizer.tokenize(tf.constant(raw)).to_list() == ids
    valid = [*map(valid_characters, raw)]
    encoded = library.encode_batch(["".join(character for character, _, _ in line) for line in valid])
    for text, line, row, start, end, theirs in zip(raw, valid, ids, starts, ends, encoded, strict=True):
        assert row == theirs.ids[1:-1], text
        assert list(zip(start, end, strict=True)) == byte_offsets(line, theirs.offsets[1:-1]), text


def test_ids_and_offsets_are_those_of_the_tokenizers_library(tokenizer, learned):
    texts = ["", " ", "  ", "\n", "Hello world", "'s 's's\n's  's", *texts_of(FRAGMENTS, 2000)]
    assert_equal_tokens(tokenizer, reference(*learned), texts)


@pytest.mark.long
def test_code_points_have_the_classes_that_the_tokenizers_library_gives_them():
    codes = np.array([code for code in range(0x110000) if not 0xD800 <= code < 0xE000], "uint32")
    every = codes.tobytes().decode("utf-32-le")
    classes = classes_of_code_points()
    wanted = {r"\p{L}": (LETTER,), r"\p{N}": (NUMBER,), r"\s": (WHITE, SPACE)}
    for pattern, ours in wanted.items():
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "removed")
        others = "".join(part for part, _ in split.pre_tokenize_str(every))
        theirs = ~np.isin(codes, np.frombuffer(others.encode("utf-32-le"), "uint32"))
        differing = theirs != np.isin(classes[codes], ours)
        # Their Unicode may be of another version than ours, 17.
        assert [hex(code) for code in codes[differing] if unicodedata.category(chr(code)) != "Cn"] == []


def texts_of_code_points(codes):
    """Each code point alone, between letters, digits and signs, and after spaces, without those that Python does not know."""
    known = (chr(code) for code in codes if unicodedata.category(chr(code)) not in ("Cn", "Cs"))
    return [text for one in known for text in (one, f"a{one}b{one}1{one}.{one} {one}  {one}{one}")]


def test_ids_of_some_code_points_are_those_of_the_tokenizers_library(tokenizer, learned):
    codes = [*range(0x250), *range(0x2000, 0x2070), *range(0x250, 0x110000, 997)]
    assert_equal_tokens(tokenizer, reference(*learned), texts_of_code_points(codes))


@pytest.mark.slow
def test_ids_of_all_code_points_are_those_of_the_tokenizers_library(tokenizer, learned):
    library = reference(*learned)
    for first in range(0, 0x110000, 0x2000):
        if texts := texts_of_code_points(range(first, first + 0x2000)):
            assert_equal_tokens(tokenizer, library, texts)


def random_bytes(count, *, seed):
    """Lines of random bytes, and of fragments of text with bytes of other characters between them."""
    draw = random.Random(seed)
    parts = [fragment.encode() for fragment in FRAGMENTS]
    parts += [b"\xc3", b"\xe6\x97", b"\xed\xa0\x80", b"\xf0\x9f", b"\xc0\x80"]
    lines = [draw.randbytes(draw.randint(0, 40)) for _ in range(count)]
    return lines + [b"".join(draw.choices(parts, k=draw.randint(0, 20))) for _ in range(count)]


def test_random_bytes_have_the_tokens_of_their_valid_characters(tokenizer, learned):
    assert_equal_tokens(tokenizer, reference(*learned), random_bytes(2000, seed=8))


def test_long_words_are_merged_like_short_ones(tokenizer, learned):
    draw = random.Random(3)
    texts = ["a" * 5001, "-" * 4096 + "x" + "-" * 777, "".join(draw.choices("TheingaslrtveABC", k=20_000))]
    texts += ["".join(draw.choices(("a", "aa", "re", "l"), k=300)) for _ in range(100)]
    assert_equal_tokens(tokenizer, reference(*learned), texts)


def test_merges_out_of_the_order_of_learning_take_the_leftmost_pair_first():
    # "ab" is made by the last merge and is part of the first.
    merges = ["ab a", "b a", "a b"]
    vocabulary = (*SPECIAL, *byte_alphabet(), *dict.fromkeys(merge.replace(" ", "") for merge in merges))
    tokenizer = ByteBPE(vocabulary, merges)
    assert_equal_tokens(tokenizer, reference(vocabulary, merges), texts_of("aab", 500, seed=4))


def test_invalid_utf8_is_dropped_and_offsets_stay_those_of_the_bytes(tokenizer):
    text = tf.constant([b"\xff The\xc3 \xed\xa0\x80ing\xf0\x9f"])
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    clean = tokenizer.tokenize(tf.constant([" The ing"]))
    assert ids.to_list() == clean.to_list()
    assert (int(starts[0, 0]), int(ends[0, -1])) == (2, 13)


def test_special_tokens_in_text_are_those_of_the_tokenizers_library(learned):
    fragments = (*FRAGMENTS, *SPECIAL, *SPECIAL, "<mask", "mask>")
    texts = ["The <mask>.", "  <mask>  a", "<mask><mask>", "a\n\n <mask>'s", *texts_of(fragments, 1000)]
    tokenizer = ByteBPE(*learned, special_tokens_in_text=True)
    assert_equal_tokens(tokenizer, reference(*learned, special=SPECIAL), texts)


def test_text_cannot_inject_a_special_token_by_default(tokenizer):
    ids = tokenizer.encode("</s> <mask> <s>")
    assert not set(ids) & set(dataclasses.astuple(tokenizer.special))


def test_detokenize_gives_the_text_back(tokenizer):
    for text in texts_of(FRAGMENTS, 200, seed=5):
        assert tokenizer.detokenize(tokenizer.encode(text)) == text


def test_two_texts_have_two_separators_and_one_type(tokenizer, learned):
    preprocess = Preprocessor(tokenizer, seq_length=16)
    features = preprocess("The a", "ing")
    encoded = reference(*learned).encode("The a", "ing")
    length = len(encoded.ids)
    assert features["input_word_ids"][0, :length].numpy().tolist() == encoded.ids
    assert features["input_type_ids"].numpy().sum() == 0
    assert features["input_mask"].numpy().sum() == length
    windows = preprocess.windows(
        tf.constant(["The a The ing a"]), question=tf.constant(["ing"]), doc_stride=2, max_query_length=4
    )
    first = windows["start_bytes"][0].numpy()
    assert windows["input_word_ids"][0, 2:4].numpy().tolist() == [tokenizer.special.end] * 2
    assert (first[:4] == -1).all() and first[4] == 0
    refused("give at least 6", Preprocessor, tokenizer, seq_length=5)
    assert BERT_PAIR.added(2) == 3


def test_a_preprocessor_layer_keeps_the_vocabulary_and_the_merges(learned):
    layer = PreprocessorLayer(Preprocessor(ByteBPE(*learned, special_tokens_in_text=True), seq_length=16))
    again = PreprocessorLayer.from_config(json.loads(json.dumps(layer.get_config())))
    text = tf.constant(["The <mask> ing"])
    for name, values in layer(text).items():
        assert (again(text)[name].numpy() == values.numpy()).all()
    assert again.preprocess.tokenizer.digest == layer.preprocess.tokenizer.digest


def test_facts_about_the_vocabulary(tokenizer, learned):
    vocabulary, merges = learned
    assert (tokenizer.vocabulary, tokenizer.merges, tokenizer.vocab_size) == (vocabulary, merges, 600)
    assert set(tokenizer.real) == set(range(600)) - set(dataclasses.astuple(tokenizer.special))
    starts = [vocabulary[i] for i in np.flatnonzero(~tokenizer.continues)]
    assert starts and all(token.startswith("Ġ") for token in starts)
    assert ByteBPE(vocabulary, merges[:-1]).digest != tokenizer.digest


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda v, m: (v[1:], m), "<s> missing"),
        (lambda v, m: ([token for token in v if token != "!"], m), "no token for 1 of the 256 bytes, '!'"),
        (lambda v, m: (v, [*m, "Ġ nothing"]), "merge .*: 'nothing' is not in the vocabulary"),
        (lambda v, m: (v, [*m, m[0]]), "is there twice"),
        (lambda v, m: ((*v, "a"), m), "'a' has the ids"),
    ],
)
def test_files_that_do_not_fit_each_other(learned, changed, said):
    refused(said, ByteBPE, *changed(*learned))


# -----------------------------------------------------------------------------------------------------------
# Files


@pytest.fixture(scope="module")
def written(tmp_path_factory, tokenizer):
    """vocab.json, merges.txt and tokenizer.json, as we write them."""
    folder = tmp_path_factory.mktemp("written")
    write_tokenizer(tokenizer.to_vocabulary(), folder)
    return folder


@pytest.fixture
def folder(tmp_path, written):
    """A copy that a test may change."""
    return pathlib.Path(shutil.copytree(written, tmp_path / "folder"))


def test_the_tokenizers_library_reads_the_files_that_we_write(folder, tokenizer):
    texts = texts_of(FRAGMENTS, 300, seed=6)
    assert_equal_tokens(tokenizer, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), texts)
    files = {"vocab": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    vocabulary, merges = models.BPE.read_file(**files)
    assert [*sorted(vocabulary, key=vocabulary.__getitem__)] == [*tokenizer.vocabulary]
    assert [" ".join(merge) for merge in merges] == [*tokenizer.merges]


@pytest.mark.parametrize(
    "without", [(), ("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer_config.json",)]
)
def test_a_folder_is_read_from_any_of_its_forms(folder, tokenizer, without):
    for name in without:
        (folder / name).unlink()
    found = checkpoints.load_tokenizer(folder)
    assert (found.digest, found.lower_case) == (tokenizer.digest, False)


def test_merges_are_read_as_pairs_and_as_lines(folder, tokenizer):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = [merge.split(" ") for merge in tokenizer.merges]
    del content["model"]["type"]  # as in old files
    path.write_text(json.dumps(content))
    (folder / "vocab.json").unlink()
    (folder / "merges.txt").unlink()
    assert checkpoints.load_tokenizer(folder).merges == tokenizer.merges


def changed(part, **changes):
    return lambda content: content[part].update(changes)


NFC = {"type": "NFC"}
SPLIT = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.update(normalizer=NFC), "BPE with 'NFC' as the normalizer"),
        (
            lambda content: content.update(pre_tokenizer=SPLIT),
            "with Split and ByteLevel as the pre_tokenizer",
        ),
        (changed("pre_tokenizer", use_regex=False), "BPE with use_regex=False"),
        (changed("model", dropout=0.1), "BPE with dropout=0.1 in the model of tokenizer.json"),
        (changed("model", byte_fallback=True), "BPE with byte_fallback=True"),
        (changed("model", ignore_merges=True), "BPE with ignore_merges=True"),
        (changed("model", end_of_word_suffix="</w>"), "BPE with end_of_word_suffix='</w>'"),
        (changed("post_processor", type="ByteLevel"), "BPE with texts without special tokens"),
        (changed("post_processor", cls=["[CLS]", 0]), r"the id \[0\] of \[CLS\]"),
        (changed("post_processor", cls=["<s>", 7]), "the id .7. of <s>"),
        (lambda content: content.update(post_processor=TEMPLATE), "the form '<s> A'"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_other_byte_level_tokenizers_are_named(folder, change, said, alone):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    if alone:
        (folder / "vocab.json").unlink()
    refused(f"tokenizer is .*{said}.*not supported", checkpoints.load_tokenizer, folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"do_lower_case": True}, "do_lower_case=True in tokenizer_config.json"),
        ({"cls_token": {"content": "[CLS]"}}, r"cls_token='\[CLS\]' beside '<s>' in its tokenizer.json"),
        ({"tokenizer_class": "GPT2Tokenizer"}, "GPT2Tokenizer"),
    ],
)
def test_settings_that_give_other_ids_are_named(folder, settings, said):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    refused(f"tokenizer is .*{said}.*not supported", checkpoints.load_tokenizer, folder)


def add_token(folder, token, *, name="tokenizer.json"):
    """Adds a token as transformers' add_tokens does, in one of the three files that may name it."""
    path = folder / name
    content = json.loads(path.read_text()) if path.is_file() else {}
    row = {"id": 600, "content": token, "special": False}
    if name == "tokenizer.json":
        content["added_tokens"].append(row)
    else:
        content |= {token: 600} if name == "added_tokens.json" else {"added_tokens_decoder": {"600": row}}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "added_tokens.json"])
@pytest.mark.parametrize("alone", [True, False])
def test_an_added_token_is_whole_whichever_file_has_it_and_survives_a_copy(folder, tmp_path, name, alone):
    add_token(folder, "covid", name=name)
    if alone:
        (folder / "vocab.json").unlink()
        (folder / "merges.txt").unlink()
    found = checkpoints.load_tokenizer(folder)
    assert (found.encode("covid"), found.vocabulary[600:]) == ([600], ("covid",))
    (tmp_path / "copy").mkdir()
    write_tokenizer(found.to_vocabulary(), tmp_path / "copy")
    assert checkpoints.load_tokenizer(tmp_path / "copy").digest == found.digest
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "copy" / "tokenizer.json"))
    assert theirs.encode("covid", add_special_tokens=False).ids == [600]


def test_a_space_before_the_first_word(folder, learned):
    """add_prefix_space, which models for tagging have."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"add_prefix_space": True}))
    found = checkpoints.load_tokenizer(folder)
    assert found.encode("low low") == found.encode(" low low")
    _, starts, ends = (row.values.numpy() for row in found.tokenize_with_offsets(["low"]))
    assert (starts[0], ends[-1]) == (0, 3)
    write_tokenizer(found.to_vocabulary(), folder)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert theirs.encode("low low", add_special_tokens=False).ids == found.encode("low low")


@pytest.mark.parametrize("kept", [0, 200, -1])
@pytest.mark.parametrize("alone", [True, False])
def test_merges_that_are_cut_short_are_refused(folder, tokenizer, kept, alone):
    """A file that is cut at the end of a line, down to none, would give other ids without an error."""
    with pytest.warns(UserWarning, match="give other ids; tokenizer.json counts"):
        (folder / "merges.txt").write_text("#version: 0.2", encoding="utf-8")
        assert checkpoints.load_tokenizer(folder).digest == tokenizer.digest
    merges = tokenizer.merges[:kept]
    (folder / "merges.txt").write_text("\n".join(("#version: 0.2", *merges)), encoding="utf-8")
    if alone:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"]["merges"] = merges
        (folder / "tokenizer.json").write_text(json.dumps(content))
        (folder / "vocab.json").unlink()
    else:
        (folder / "tokenizer.json").unlink()
    count = len(tokenizer.merges) - len(merges)
    said = f"{'tokenizer.json' if alone else 'merges.txt'}: no merge makes {count} of the tokens, .*download"
    refused(said, checkpoints.load_tokenizer, folder)
    (folder / "merges.txt").write_bytes(b"")
    refused("no merge makes", checkpoints.load_tokenizer, folder)


def test_tokens_that_no_merge_makes_and_that_are_no_fault(folder):
    """RoBERTa's fillers and marks, tokens that a file lists as added, and a vocabulary of bytes alone."""
    (folder / "tokenizer.json").unlink()
    path = folder / "vocab.json"
    ids = json.loads(path.read_text())
    more = ("madeupword0000", "<|endoftext|>", "[E1]")
    path.write_text(json.dumps(ids | {token: 600 + i for i, token in enumerate(more)}))
    assert checkpoints.load_tokenizer(folder).vocabulary[600:] == more
    path.write_text(json.dumps(ids | {"covid": 600}))
    message = "no merge makes 1 of the tokens, 'covid' the first.*added_tokens"
    refused(message, checkpoints.load_tokenizer, folder)
    add_token(folder, "covid", name="added_tokens.json")
    assert checkpoints.load_tokenizer(folder).vocabulary[600:] == ("covid",)
    (folder / "added_tokens.json").unlink()
    path.write_text(json.dumps({token: i for i, token in enumerate((*SPECIAL, *byte_alphabet()))}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    assert checkpoints.load_tokenizer(folder).merges == ()


def test_half_of_the_files_and_broken_files_are_named(folder):
    (folder / "tokenizer.json").unlink()
    vocab = (folder / "vocab.json").read_text()
    (folder / "vocab.json").write_text(json.dumps(json.loads(vocab) | {"gap": 1000}))
    refused("ids in .*vocab.json are not 0, 1, 2", checkpoints.load_tokenizer, folder)
    (folder / "vocab.json").write_text(vocab)
    merges = (folder / "merges.txt").read_text(encoding="utf-8")
    (folder / "merges.txt").write_text("not in vocabulary\n" + merges, encoding="utf-8")
    refused("merge 1: ", checkpoints.load_tokenizer, folder)
    (folder / "merges.txt").write_bytes(b"\xff")
    refused("merges.txt is not UTF-8", checkpoints.load_tokenizer, folder)
    (folder / "merges.txt").unlink()
    refused("without its merges.txt", checkpoints.load_tokenizer, folder)
