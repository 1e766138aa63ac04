"""Learned vocabularies: what is in them, that no run differs from another, and the `vocab` command."""

import hashlib
import os
import random
import subprocess
import sys

import pytest
import runs
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.tasks.pretraining import vocabulary
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.vocabulary import KINDS, learn_wordpiece, write_vocabulary
from bert_keras.text.sentencepiece import SentencePiece
from bert_keras.text.wordpiece import MAX_WORD_CHARACTERS, WordPiece, wordpiece_words

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
STEMS = "low new wide small great cold warm bright quick slow".split()
ENDINGS = ("", "er", "est", "ly", "ness")
PUNCTUATION = ("", ",", ".", "!", "'s")


def documents(count: int = 40, *, seed: int = 0) -> list[list[str]]:
    """Sentences of words with endings, upper case, accents, numbers and ideographs."""
    draw = random.Random(seed)

    def word() -> str:
        made = draw.choice(STEMS) + draw.choice(ENDINGS)
        return draw.choice([made, made, made.title(), f"é{made}", f"{draw.randrange(2000):,}", "漢字"])

    return [
        [" ".join(word() + draw.choice(PUNCTUATION) for _ in range(12)) for _ in range(5)]
        for _ in range(count)
    ]


def unknown(tokenizer, texts) -> int:
    ids = tokenizer.tokenize(tf.constant(texts)).values.numpy()
    return int((ids == tokenizer.special.unknown).sum())


@pytest.mark.parametrize("lower_case", [True, False])
def test_a_wordpiece_vocabulary_holds_its_own_text(tmp_path, lower_case):
    made = write_vocabulary(documents(), tmp_path / "out", size=200, lower_case=lower_case, unused=3)
    pieces = made.tokenizer.vocabulary
    assert pieces[:8] == (*SPECIAL, "[unused0]", "[unused1]", "[unused2]")
    assert (len(pieces), made.documents) == (200, 40)
    assert unknown(made.tokenizer, [line for document in documents() for line in document]) == 0
    assert ("L" in pieces, "é" in pieces) == (not lower_case, not lower_case)
    assert {"low", "##ness", "漢"} < set(pieces)
    assert "漢字" not in pieces
    read = checkpoints.load_tokenizer(tmp_path / "out")
    assert isinstance(read, WordPiece)
    assert (read.vocabulary, read.lower_case) == (pieces, lower_case)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"vocab.txt", "tokenizer_config.json"}


def test_merges_are_ordered_by_frequency():
    texts = ["ab"] * 5 + ["abc"] * 3 + ["xy"] * 4
    pieces = learn_wordpiece(texts, size=99, lower_case=True).vocabulary
    # a b (8), x y (4), ab c (3)
    assert pieces[5:] == ("a", "b", "c", "x", "y", "##b", "##c", "##y", "ab", "xy", "abc")


def test_characters_outside_the_alphabet_are_unknown():
    texts = ["aa bb"] * 9 + ["cc ac"]
    tokenizer = learn_wordpiece(texts, size=99, lower_case=True, alphabet=2)
    assert set(tokenizer.vocabulary[5:]) == {"a", "b", "##a", "##b", "aa", "bb"}
    assert unknown(tokenizer, ["aa bb ac"]) == 1
    with pytest.raises(ValueError, match="special tokens and alphabet need 9; give a larger size"):
        learn_wordpiece(texts, size=8, lower_case=True, alphabet=2)
    with pytest.raises(ValueError, match="no word"):
        learn_wordpiece(["", " "], size=8, lower_case=True)


def test_words_are_those_of_the_tokenizer():
    texts = ["Été\x00! [MASK]　漢字 don't", "", "a" * (MAX_WORD_CHARACTERS + 1) + " b", "\ufdd5 x"]
    assert wordpiece_words(lower_case=True)(texts) == ["ete ! [ mask ] 漢 字 don ' t", "", "b", "\ufdd5 x"]
    assert wordpiece_words(lower_case=False)(texts)[0] == "Été ! [ MASK ] 漢 字 don ' t"


VOCAB = """
import sys
from bert_keras.cli.main import main

text, output, *kinds = sys.argv[1:]
for kind in kinds:
    try:
        main(["bert-keras", "vocab", "--text", text, "--output", f"{output}-{kind}", "--kind", kind, "--size", "120"])
    except SystemExit as end:
        assert not end.code, end.code
"""


@pytest.mark.long
def test_every_process_writes_the_same_bytes(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join("\n".join(lines) for lines in documents(200)), encoding="utf-8")
    found = []
    for seed, threads in (("1", "1"), ("2", "4")):
        given = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", VOCAB, corpus, tmp_path / seed, *KINDS],
            cwd=runs.ROOT,
            env=os.environ | given,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" tokens, learned from 200 documents") == len(KINDS)
        found.append([runs.contents(tmp_path / f"{seed}-{kind}") for kind in KINDS])
    assert all(found[0]) and found[0] == found[1]


def test_a_sentencepiece_vocabulary(tmp_path):
    made = write_vocabulary(documents(200), tmp_path / "out", kind="sentencepiece", size=120)
    assert isinstance(made.tokenizer, SentencePiece)
    pieces = made.tokenizer.vocabulary
    assert pieces[:13] == ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *'()"-.–£€')
    assert len(pieces) == 120
    assert unknown(made.tokenizer, [line for document in documents(200) for line in document]) == 0
    read = checkpoints.load_tokenizer(tmp_path / "out")
    assert (read.vocabulary, read.digest, read.lower_case) == (pieces, made.tokenizer.digest, True)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"spiece.model", "tokenizer_config.json"}
    with pytest.raises(ValueError, match=r"SentencePiece model of 9000 tokens .* too high \(9000\)"):
        write_vocabulary(documents(), tmp_path / "high", kind="sentencepiece", size=9000)
    with pytest.raises(ValueError, match="the text is empty"):
        write_vocabulary([], tmp_path / "empty", kind="sentencepiece", size=90)
    assert not (tmp_path / "high").exists()


def test_a_sample_of_many_sentences_is_drawn():
    texts = [str(i) for i in range(1000)]
    drawn = vocabulary._drawn(texts, 300)
    assert drawn == vocabulary._drawn(texts, 300)
    assert len(set(drawn)) == 300
    assert sum(int(text) for text in drawn) / 300 == pytest.approx(500, abs=60)  # 3.6 standard errors
    assert vocabulary._drawn([*texts, " "], 2000) == texts


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "there").mkdir()
    write_vocabulary(documents(), tmp_path / "there", size=150)
    before = runs.contents(tmp_path / "there")
    with pytest.raises(ValueError, match="not empty; give another folder"):
        write_vocabulary(documents(), tmp_path / "there", size=150)
    assert runs.contents(tmp_path / "there") == before

    def broken():
        yield from documents(3)
        raise ValueError("bad line")

    with pytest.raises(ValueError, match="bad line"):
        write_vocabulary(broken(), tmp_path / "new", size=150)
    with runs.full_disk(100), pytest.raises(OSError):
        write_vocabulary(documents(), tmp_path / "new", size=150)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]
    with pytest.raises(ValueError, match="choose one of wordpiece, sentencepiece"):
        write_vocabulary(documents(), tmp_path / "new", kind="bpe")


def test_a_vocabulary_through_a_link_and_into_a_mount(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "to-empty").symlink_to("empty")
    (tmp_path / "to-new").symlink_to("new")
    for link in ("to-empty", "to-new"):
        write_vocabulary(documents(3), tmp_path / link, size=150)
        assert (tmp_path / link).is_symlink() and checkpoints.load_tokenizer(
            tmp_path / link
        ).vocab_size <= 150
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new", "to-empty", "to-new"]
    with runs.mounted(tmp_path / "disk", size=1_000_000) as disk:
        write_vocabulary(documents(3), disk, size=150)
        assert sorted(file.name for file in disk.iterdir()) == ["tokenizer_config.json", "vocab.txt"]


@pytest.mark.long
def test_the_command_reports_invalid_settings(tmp_path, capfd):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("low lower lowest\n")
    flags = ("vocab", "--text", corpus, "--output", tmp_path / "out")
    code, _, err = runs.run_command(capfd, *flags, "--kind", "sentencepiece", "--unused", "3")
    assert (code, "--unused applies only to --kind wordpiece" in err) == (1, True)
    code, out, err = runs.run_command(capfd, *flags, "--size", "500", "--cased")
    assert code == 0, err
    assert "the text has too few words for 500 tokens" in err
    assert checkpoints.load_tokenizer(tmp_path / "out").lower_case is False


def test_without_tokenizers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'bert-keras\[vocabulary\]'"):
        learn_wordpiece(["a"], size=9, lower_case=True)


@pytest.mark.long
def test_on_real_text(data_dir, tmp_path):
    corpus = Corpus(data_dir / "corpus" / "wikitext2_valid.txt")
    made = write_vocabulary(corpus, tmp_path / "out", size=3000, alphabet=60)
    assert len(made.tokenizer.vocabulary) == 3000
    lines = [line for document in corpus for line in document]
    alphabet = {piece for piece in made.tokenizer.vocabulary if len(piece) == 1}
    assert len(alphabet) == 60
    for line in wordpiece_words(lower_case=True)(lines):
        missing = [word for word in line.split(" ") if not alphabet.issuperset(word)]
        assert unknown(made.tokenizer, [line]) == len(missing)
    digest = hashlib.sha256((tmp_path / "out" / "vocab.txt").read_bytes()).hexdigest()
    assert made.tokenizer.digest == digest
