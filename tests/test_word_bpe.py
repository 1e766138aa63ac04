"""GPT's BPE of words: merges by hand, ids and offsets of the libraries tokenizers and transformers, and its files."""

import gzip
import json
import pickle

import pytest
import tensorflow as tf
import tokenizers
from test_byte_bpe import assert_equal_tokens, texts_of
from test_tokenizers import known_to_both, random_texts
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from bert_keras import (
    AddedToken,
    BertKerasError,
    Preprocessor,
    PreprocessorLayer,
    Rules,
    WordBPE,
    checkpoints,
)
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.tasks.pretraining.vocabulary import write_vocabulary

# By hand: h e -> he; l o -> lo; l lo -> llo is not there, so that "hello" is he l lo</w>.
TOKENS = (
    "<unk>",
    *"helo",
    *(f"{one}</w>" for one in "helo.!"),
    "he",
    "lo</w>",
    "the</w>",
    "t",
    "th",
    "\n</w>",
)
MERGES = ("h e", "l o</w>", "t h", "th e</w>")
UNKNOWN, START, DELIMITER, EXTRACT = 0, len(TOKENS), len(TOKENS) + 1, len(TOKENS) + 2
# Characters that normalizing changes, that split words, or that no vocabulary has.
FRAGMENTS = (
    *(
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "\x0b",
        "\x1c",
        "\x85",
        "\xa0",
        "\u2028",
        "\u3000",
        "\ufeff",
        "\x00",
        "\u200b",
    ),
    *(
        "the",
        "The",
        "lower",
        "newest",
        "aaaa",
        "Ab",
        "é",
        "É",
        "e\u0301",
        "ß",
        "İ",
        "Σας",
        "ΑΣ",
        "ﬁ",
        "한국",
        "日本",
        "漢a",
    ),
    *(
        "'",
        "'s",
        ".",
        "...",
        "-",
        "</w>",
        "<unk>",
        "_start_",
        "[CLS]",
        "##a",
        "$",
        "…",
        "«",
        "\N{GRINNING FACE}",
        "१२",
    ),
    *("1", "23", "½", "\u0663", "\ufdd0", "\U0010ffff", "a" * 250, "\u0301"),
)


def library(vocabulary, merges):
    """The tokenizer of transformers' OpenAIGPTTokenizer, with a frame that `assert_equal_tokens` takes away."""
    ids = {token: i for i, token in enumerate(vocabulary)}
    model = models.BPE(
        ids, [tuple(merge.split(" ")) for merge in merges], unk_token="<unk>", end_of_word_suffix="</w>"
    )
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("<unk>", 0), ("<unk>", 0))
    return made


def learned_from(texts, size):
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    model = json.loads(made.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(merge) for merge in model["merges"]]


@pytest.fixture(scope="module")
def by_hand():
    return WordBPE(TOKENS, MERGES)


def spelled(tokenizer, text):
    ids, starts, ends = (
        one[0].numpy().tolist() for one in tokenizer.tokenize_with_offsets(tf.constant([text]))
    )
    assert tokenizer.encode(text) == ids
    raw = text.encode()
    return [(tokenizer.vocabulary[i], raw[a:b].decode()) for i, a, b in zip(ids, starts, ends, strict=True)]


def test_merges_by_hand(by_hand):
    assert spelled(by_hand, "Hello, the.") == [
        ("he", "He"), ("l", "l"), ("lo</w>", "lo"), ("<unk>", ","), ("the</w>", "the"), (".</w>", "."),
    ]  # fmt: skip
    # At the end of a word, t has no token; inside, x has none.
    assert [token for token, _ in spelled(by_hand, "het hxo e\u0301h")] == [
        "he", "<unk>", "h", "<unk>", "o</w>", "e", "h</w>",
    ]  # fmt: skip
    assert by_hand.encode("") == by_hand.encode(" \n") == []
    assert by_hand.detokenize(by_hand.encode("Hello! the")) == "hello ! the"
    assert by_hand.detokenize([START, *by_hand.encode("the x"), EXTRACT, 0]) == "the <unk><unk>"


@pytest.fixture(scope="module")
def learned():
    return learned_from(texts_of(FRAGMENTS[11:25] + FRAGMENTS[28:32], 300, seed=1), 200)


def assert_equal_ids(tokenizer, library, texts):
    """Ids of all texts, and offsets of those that normalizing changes in no way but the case."""
    wanted = [encoded.ids[1:-1] for encoded in library.encode_batch(texts)]
    for text, ids, theirs in zip(
        texts, tokenizer.tokenize(tf.constant(texts)).to_list(), wanted, strict=True
    ):
        assert ids == theirs, text
    assert_equal_tokens(tokenizer, library, [text for text in texts if text.isascii() and text.isprintable()])


def test_ids_and_offsets_are_those_of_the_tokenizers_library(learned):
    texts = ["", " ", "a" * 3000, *map(known_to_both, [*texts_of(FRAGMENTS, 500), *random_texts(1, 500)])]
    for ops in ("core", None):
        assert_equal_ids(WordBPE(*learned, text_ops=ops), library(*learned), texts)


def test_marks_have_the_ids_after_the_vocabulary(by_hand):
    special = by_hand.special
    assert (special.start, special.delimiter, special.end) == (START, DELIMITER, EXTRACT)
    assert by_hand.vocabulary[START:] == ("_start_", "_delimiter_", "_classify_")
    assert (special.padding, special.unknown, special.mask) == (UNKNOWN, UNKNOWN, None)
    the, o = TOKENS.index("the</w>"), TOKENS.index("o</w>")
    rows = Preprocessor(by_hand, seq_length=7)
    assert rows(["the"])["input_word_ids"].numpy().tolist() == [[START, the, EXTRACT, 0, 0, 0, 0]]
    two = rows(["the"], ["o the"])
    assert two["input_word_ids"].numpy().tolist() == [[START, the, DELIMITER, o, the, EXTRACT, 0]]
    # For those who tell the texts apart; GPT has no types.
    assert two["input_type_ids"].numpy().tolist() == [[0, 0, 0, 1, 1, 1, 0]]
    # A mark in a text is text.
    assert not {START, DELIMITER, EXTRACT} & {*by_hand.encode("_start_ _classify_")}
    # A vocabulary that has the marks keeps their ids.
    own = WordBPE(("_classify_", *TOKENS), MERGES).special
    assert (own.end, own.start, own.delimiter) == (0, len(TOKENS) + 1, len(TOKENS) + 2)


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("away", [(), ("tokenizer.json",), ("vocab.json", "merges.txt")])
def test_files_give_the_same_tokenizer(tmp_path, lower_case, away):
    rules = Rules(added=(AddedToken("<x>", special=True),))
    tokenizer = WordBPE(TOKENS, MERGES, lower_case=lower_case, rules=rules)
    write_tokenizer(tokenizer.to_vocabulary(), tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"}
    for name in away:
        (tmp_path / name).unlink()
    read = checkpoints.load_tokenizer(tmp_path)
    assert isinstance(read, WordBPE) and (read.vocabulary, read.merges) == (tokenizer.vocabulary, MERGES)
    # Only tokenizer.json says that case stays.
    assert read.lower_case == (lower_case or away == ("tokenizer.json",))
    assert (read.digest, read.special) == (tokenizer.digest, tokenizer.special)


def test_a_layer_and_a_pickle_give_the_same_tokenizer(tmp_path, by_hand):
    layer = PreprocessorLayer(Preprocessor(by_hand, seq_length=8))
    again = PreprocessorLayer.from_config(layer.get_config()).preprocess.tokenizer
    for made in (again, pickle.loads(pickle.dumps(by_hand))):
        assert (type(made), made.digest, made.special) == (WordBPE, by_hand.digest, by_hand.special)


def test_a_saved_model_gives_the_same_ids(tmp_path, by_hand):
    tf.saved_model.save(by_hand, str(tmp_path / "saved"))
    loaded, texts = tf.saved_model.load(str(tmp_path / "saved")), tf.constant(["Hello, the.", "", "het x"])
    for made, wanted in zip(
        loaded.tokenize_with_offsets(texts), by_hand.tokenize_with_offsets(texts), strict=True
    ):
        assert made.to_list() == wanted.to_list()


WRONG = {
    "<unk> missing": ((*TOKENS[1:],), MERGES),
    "no token ends with </w>": (("<unk>", "a"), ()),
    "'h' has two ids": ((*TOKENS, "h"), MERGES),
    "merge 2: 'x' is not in the vocabulary": (TOKENS, ("h e", "x e")),
}


@pytest.mark.parametrize("error", WRONG)
def test_another_vocabulary_is_refused(error):
    with pytest.raises(BertKerasError, match=error):
        WordBPE(*WRONG[error])


CHANGES = {
    "fuse_unk": lambda made: made["model"].update(fuse_unk=True),
    "post_processor": lambda made: made.update(
        post_processor={"type": "BertProcessing", "sep": ["o", 4], "cls": ["l", 3]}
    ),
    "BertNormalizer": lambda made: made["pre_tokenizer"].update(type="ByteLevel"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_setting_that_gives_other_ids_is_refused(tmp_path, change):
    write_tokenizer(WordBPE(TOKENS, MERGES).to_vocabulary(), tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    CHANGES[change](content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BertKerasError, match=change):
        checkpoints.load_tokenizer(tmp_path)


def test_a_vocabulary_is_learned(tmp_path):
    documents = [["The lower lowest lower,", "newer newest wider widest"]] * 20
    made = write_vocabulary(documents, tmp_path / "vocab", kind="gpt-bpe", size=34)
    tokenizer = made.tokenizer
    assert tokenizer.vocab_size == 34 and tokenizer.vocabulary[0] == "<unk>"
    assert tokenizer.vocabulary[-3:] == ("_start_", "_delimiter_", "_classify_")
    assert tokenizer.detokenize(tokenizer.encode("Lower newest ,")) == "lower newest ,"
    assert UNKNOWN not in tokenizer.encode("the lowest newer")
    assert checkpoints.load_tokenizer(tmp_path / "vocab").digest == tokenizer.digest
    with pytest.raises(BertKerasError, match="size is 18, but special tokens and alphabet need 20"):
        write_vocabulary(documents, tmp_path / "small", kind="gpt-bpe", size=18)


def lines_of(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as file:
        return [line for line in file.read().split("\n") if line]


@pytest.mark.parity
def test_ids_on_real_text_are_those_of_transformers(tmp_path, data_dir):
    transformers = pytest.importorskip("transformers")
    names = ("corpus/enwiki_plain_paragraphs.txt", "corpus/wikitext2_valid.txt", "multi30k/train.de.gz")
    texts = [line for name in names for line in lines_of(data_dir / name)[:3000]]
    vocabulary, merges = learned_from(texts, 8000)
    texts = [*map(known_to_both, [*texts, *texts_of(FRAGMENTS, 3000), *random_texts(2, 3000)])]
    ours = WordBPE(vocabulary, merges)
    assert_equal_ids(ours, library(vocabulary, merges), texts)
    write_tokenizer(ours.to_vocabulary(), tmp_path)
    # transformers reads <unk> and the marks in a text as these tokens.
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == "OpenAIGPTTokenizer"
    ours = WordBPE(vocabulary, merges, special_tokens_in_text=True)
    found = ours.tokenize(tf.constant(texts)).to_list()
    wanted = theirs(texts)["input_ids"]
    assert [text for text, a, b in zip(texts, found, wanted, strict=True) if a != b] == []
    marks = ["_start_", "_delimiter_", "_classify_"]
    assert theirs.convert_tokens_to_ids(marks) == [*range(len(vocabulary), len(vocabulary) + 3)]
    for row in found[:2000]:
        assert ours.detokenize(row) == theirs.decode(row, clean_up_tokenization_spaces=False)
