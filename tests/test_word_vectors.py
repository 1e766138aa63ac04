"""Word vectors: files of word2vec and GloVe, and vectors for new words."""

import numpy as np
import pytest

from bert_keras.errors import BertKerasError
from bert_keras.tasks.ancestors import word_vectors
from bert_keras.tasks.ancestors.word_vectors import WordVectors

WORDS = ("</s>", "the", "naïve", "7", "<UNK-number>", "<UNK>")
VECTORS = np.array(
    [[0, 0, 0], [0.1, -2, 3e-9], [1 / 3, 5, 6], [7, 8, 1e20], [1, 1, 1], [2, 2, 2]], np.float32
)


@pytest.mark.parametrize("format", word_vectors.FORMATS)
def test_a_file_comes_back_to_the_bit(tmp_path, format):
    word_vectors.write(WordVectors(WORDS, VECTORS), tmp_path / "vectors", format=format)
    found = word_vectors.read(tmp_path / "vectors")
    assert found.words == WORDS
    np.testing.assert_array_equal(found.vectors, VECTORS)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gensim leaves a file open
@pytest.mark.parametrize("format", word_vectors.FORMATS)
def test_gensim_reads_equal_vectors(tmp_path, format):
    gensim = pytest.importorskip("gensim.models")
    word_vectors.write(WordVectors(WORDS, VECTORS), tmp_path / "vectors", format=format)
    how = {"binary": format == "word2vec-binary", "no_header": format == "glove"}
    found = gensim.KeyedVectors.load_word2vec_format(tmp_path / "vectors", **how)
    assert tuple(found.index_to_key) == WORDS
    np.testing.assert_array_equal(found.vectors, VECTORS)


def test_a_file_as_word2vec_writes_it(tmp_path):
    lines = (
        b"2 2\n"
        + b"a "
        + np.array([1, 2], "<f4").tobytes()
        + b"\n"
        + b"b "
        + np.array([3, 4], "<f4").tobytes()
    )
    (tmp_path / "with").write_bytes(lines + b"\n")
    (tmp_path / "without").write_bytes(lines.replace(b"\nb", b"b"))
    (tmp_path / "text").write_bytes(b"2 2\na 1 2 \nb 3 4 \n")
    (tmp_path / "glove").write_bytes(b". . 1 2\nb 3 4\n".replace(b". .", b"a"))
    for name in ("with", "without", "text", "glove"):
        found = word_vectors.read(tmp_path / name)
        assert (found.words, found.vectors.tolist()) == (("a", "b"), [[1, 2], [3, 4]]), name


def test_a_word_of_glove_may_have_spaces(tmp_path):
    (tmp_path / "glove").write_bytes(b"a 1 2\n. . 3 4\n")
    assert word_vectors.read(tmp_path / "glove").words == ("a", ". .")


@pytest.mark.parametrize(
    "word, name",
    [
        ("1,200.50", "<UNK-number>"),
        ("12%", "<UNK-number>"),
        ("NATO", "<UNK-capitals>"),
        ("U.S.", "<UNK-capitals>"),
        ("Oslo", "<UNK-capitalised>"),
        ("well-known", "<UNK-hyphen>"),
        ("word", "<UNK>"),
    ],
)
def test_the_class_of_a_new_word(word, name):
    assert word_vectors.class_of(word) == name


def test_vectors_of_new_words():
    vectors = WordVectors(WORDS, VECTORS)
    found = vectors.vectors_of(["the", "12", "Oslo", "new"])
    assert found.tolist() == VECTORS[[1, 4, 5, 5]].tolist()
    own = vectors.vectors_of(["new", "Oslo", "new", "the"], own=True)
    np.testing.assert_array_equal(own[0], own[2])
    assert np.abs(own[0] - own[1]).max() > 0.01
    np.testing.assert_array_equal(own[3], VECTORS[1])
    many = vectors.vectors_of([f"new{i}" for i in range(2000)], own=True)
    assert abs(many.std() - word_vectors.DRAWN) < 0.002  # 6,000 draws
    with_none = WordVectors(("a",), np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(with_none.vectors_of(["new"]), with_none.vectors_of(["new"], own=True))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b"a 1 2\nb 3\n", "line 2"),
        (b"a 1 2\nb 3 x\n", "line 2"),
        (b"a 1 2\na 3 4\n", "'a' twice"),
        (b"a 1 nan\n", "'a' is not finite"),
        (b"\xff 1 2\n", "not UTF-8"),
        (b"3 2\na 1 2\nb 3 4\n", "promises 3"),
        (b"9 99999999\na 1\n", "99,999,999"),
        (b"1000 300\na \x00\x00\x00", "promises 1,000 vectors"),
        (b"2 2\na \0\0\0\0\0\0\0\0\n" + b"b" * 3000, "word 2"),
        (b"2 2\na \0\0\0\0\0\0\0\0b \0\0\0\0\0\0\0", "ends inside"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(BertKerasError, match=message) as error:
        word_vectors.read(tmp_path / "vectors")
    assert "\n" not in str(error.value)


def test_a_word_with_a_space_is_not_written(tmp_path):
    with pytest.raises(BertKerasError, match="'a b'"):
        word_vectors.write(WordVectors(("a b",), np.ones((1, 2))), tmp_path / "vectors", format="glove")
    assert [*tmp_path.iterdir()] == []
