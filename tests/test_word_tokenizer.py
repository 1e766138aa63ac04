"""Vocabularies of whole words: ids, offsets, new words, files."""

import json

import pytest
import runs
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.model.tensorflow_layers import _tokenizer, _tokenizer_config
from bert_keras.tasks.pretraining.vocabulary import write_vocabulary
from bert_keras.text.rules import CORE, NEW_WORDS, TEXT_OPS, AddedToken, Rules
from bert_keras.text.word_tokenizer import OWN_IDS
from bert_keras.text.wordpiece import BERT_TOKENS, WordPiece

SPECIAL = tuple(BERT_TOKENS.values())
WORDS = (*SPECIAL, "<UNK-number>", "<UNK-capitalised>", "the", "un", "##able", ".", "-", "café", "漢")
TEXT = "The café unable, 1.5 un-12 zzz 漢zzz"


def made(new_words="unknown", **how) -> WordPiece:
    return WordPiece(WORDS, rules=Rules(new_words=new_words, **how.pop("rules", {})), **how)


def found(tokenizer, text) -> list[tuple[int, str]]:
    """The ids, and the text of each."""
    ids, starts, ends = (one.values.numpy() for one in tokenizer.tokenize_with_offsets(tf.constant([text])))
    assert tokenizer.encode(text) == ids.tolist()
    raw = text.encode()
    return [(int(i), raw[a:b].decode()) for i, a, b in zip(ids, starts, ends, strict=True)]


@pytest.mark.parametrize("text_ops", TEXT_OPS)
def test_each_word_is_whole(text_ops):
    names = [
        (WORDS[i], text)
        for i, text in found(made(text_ops=text_ops, lower_case=False), "The unable. café-un")
    ]
    assert names == [
        ("<UNK-capitalised>", "The"),
        ("[UNK]", "unable"),  # no ##able, though the vocabulary has such a word
        (".", "."),
        ("café", "café"),
        ("-", "-"),
        ("un", "un"),
    ]
    lower = found(made(text_ops=text_ops), "THE 12 Ünited\n1.5 [UNK] <UNK-number>")
    unknown, number = WORDS.index("[UNK]"), WORDS.index("<UNK-number>")
    assert lower[:3] == [(WORDS.index("the"), "THE"), (number, "12"), (unknown, "Ünited")]
    assert [i for i, _ in lower[3:6]] == [number, WORDS.index("."), number]
    assert {i for i, _ in lower[6:]} == {unknown, WORDS.index("-")}


@pytest.mark.parametrize("text_ops", TEXT_OPS)
@pytest.mark.parametrize("rules", [{}, {"split_chinese": False}, {"max_word": 3}])
def test_words_are_those_of_wordpiece(text_ops, rules):
    """A WordPiece vocabulary of the words alone has the same offsets."""
    plain = WordPiece(WORDS[:9] + WORDS[10:], rules=Rules(**rules), text_ops=text_ops)
    words = made(rules=rules, text_ops=text_ops)
    assert [text for _, text in found(words, TEXT)] == [text for _, text in found(plain, TEXT)]


def test_new_words_of_their_own():
    ids = {
        ops: [i for i, _ in found(made("own", text_ops=ops), "zzz the yyy 12 zzz ZZZ unable")]
        for ops in TEXT_OPS
    }
    one = ids[CORE]
    assert ids[TEXT_OPS[0]] == one
    new = [one[0], one[2], one[3], one[6]]
    assert one[0] == one[4] == one[5] and len({*new}) == 4
    assert all(len(WORDS) <= i < len(WORDS) + OWN_IDS for i in new)
    assert one[1] == WORDS.index("the")
    assert one[0] == len(WORDS) + 496_932  # in every process and version


def test_an_added_token_comes_before_the_words():
    tokenizer = made("own", rules={"added": (AddedToken("[E 1]"),)})
    ids = tokenizer.encode("the [E 1] zzz")
    assert ids[:2] == [WORDS.index("the"), len(WORDS)]
    assert ids[2] > len(WORDS)


@pytest.mark.parametrize("new_words", NEW_WORDS)
@pytest.mark.parametrize(
    "rules", [{}, {"added": (AddedToken("[E 1]"),), "strip_accents": "M", "max_word": 9}]
)
def test_a_folder_gives_it_back(tmp_path, new_words, rules):
    before = made(new_words, rules=rules, lower_case=False)
    checkpoints.hugging_face_tokenizer.write_tokenizer(before.to_vocabulary(), tmp_path)
    for path in (tmp_path, tmp_path / "vocab.txt"):
        after = checkpoints.load_tokenizer(path)
        assert (after.digest, after.rules, after.lower_case) == (before.digest, before.rules, False)
    assert after.encode(TEXT) == before.encode(TEXT)
    again = _tokenizer(_tokenizer_config(before))  # as a saved Keras model holds it
    assert again.encode(TEXT) == before.encode(TEXT)
    assert made(new_words).digest != WordPiece(WORDS).digest


def test_wrong_files(tmp_path):
    checkpoints.hugging_face_tokenizer.write_tokenizer(made().to_vocabulary(), tmp_path)
    config = tmp_path / "tokenizer_config.json"
    written = json.loads(config.read_text())
    config.write_text(json.dumps(written | {"rules": {"new_words": "other"}}))
    with pytest.raises(BertKerasError, match="new_words"):
        checkpoints.load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    config.write_text(json.dumps(written))
    with pytest.raises(FileNotFoundError, match="vocab.txt"):
        checkpoints.load_tokenizer(tmp_path)


@pytest.mark.parity
def test_transformers_does_not_read_it_as_another_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    checkpoints.hugging_face_tokenizer.write_tokenizer(made().to_vocabulary(), tmp_path)
    with pytest.raises(Exception, match="WordTokenizer|tokenizer"):
        transformers.AutoTokenizer.from_pretrained(tmp_path)


DOCUMENTS = [["the cat saw 12 cats .", "the Cat saw 7 Oslo"], ["the 3 4 5 6"]] * 2


def test_a_vocabulary_is_learned(tmp_path):
    learned = write_vocabulary(
        DOCUMENTS, tmp_path / "words", kind="words", size=100, lower_case=False, min_count=3
    )
    assert learned.tokenizer.vocabulary == (*SPECIAL, "<UNK-number>", "<UNK-capitalised>", "the", "saw")
    read = checkpoints.load_tokenizer(tmp_path / "words")
    assert read.digest == learned.tokenizer.digest
    assert read.encode("the 99 saw Rome") == [7, 5, 8, 6]


def test_the_command_learns_words(tmp_path, capfd):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("\n".join(document) for document in DOCUMENTS))
    flags = ["--text", str(text), "--output", str(tmp_path / "words"), "--kind", "words"]
    code, _, err = runs.run_command(capfd, "vocab", *flags, "--alphabet", "3")
    assert (code, "--alphabet applies only to --kind wordpiece" in err) == (1, True)
    code, out, err = runs.run_command(capfd, "vocab", *flags, "--min-count", "3")
    assert (code, "9 tokens" in out) == (0, True)
    read = checkpoints.load_tokenizer(tmp_path / "words" / "vocab.txt")
    assert read.rules == Rules(new_words="unknown")
    code, _, err = runs.run_command(
        capfd, "vocab", *flags[:3], str(tmp_path / "none"), *flags[4:], "--min-count", "99"
    )
    assert (code, "no word is left" in err) == (1, True)
