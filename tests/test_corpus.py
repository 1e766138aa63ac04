"""Documents out of every form of text, real and small."""

import bz2
import collections
import functools
import gzip
import itertools
import lzma
import tarfile
import zipfile

import pytest
import tensorflow as tf
from instance_texts import dump

from bert_keras.tasks.pretraining import corpus_files
from bert_keras.tasks.pretraining.corpus import Corpus, open_corpora, split_sentences
from bert_keras.tasks.pretraining.corpus_files import wiki_paragraphs

TEXT = "Ann saw Dr. Bo. He ran.\nIt rained.\n\n\nA new one\ngoes on.\n"
DOCUMENTS = {
    "sentence": [["Ann saw Dr. Bo. He ran.", "It rained."], ["A new one", "goes on."]],
    "paragraph": [["Ann saw Dr. Bo.", "He ran.", "It rained."], ["A new one", "goes on."]],
    "wrapped": [["Ann saw Dr. Bo.", "He ran.", "It rained.", "A new one goes on."]],
    "document": [["Ann saw Dr. Bo.", "He ran."], ["It rained."], ["A new one"], ["goes on."]],
}


@pytest.mark.parametrize("lines", DOCUMENTS)
def test_lines_are_sentences_paragraphs_or_documents(tmp_path, lines):
    file = tmp_path / "a.txt"
    file.write_text(TEXT)
    corpus = Corpus(file, lines=lines)
    assert list(corpus) == DOCUMENTS[lines]
    assert list(corpus) == DOCUMENTS[lines]  # as often as asked


def test_every_packing_holds_the_same_text(tmp_path):
    raw = TEXT.encode()
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "a.txt").write_bytes(raw)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress(raw))
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(raw))
    (tmp_path / "B.TXT.GZ").write_bytes(gzip.compress(raw))
    for name in ("a.zip", "B.ZIP"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("inner/a.txt.gz", gzip.compress(raw))
    for name in ("folder", "a.txt.gz", "a.txt.bz2", "a.txt.xz", "B.TXT.GZ", "a.zip", "B.ZIP"):
        assert list(Corpus(tmp_path / name)) == DOCUMENTS["sentence"], name


def test_files_come_by_name(tmp_path):
    for name in ("b.txt", "a.txt", "B.txt", "a/c.txt", ".hidden", ".git/a.txt"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        for name in ("2.txt", "1.txt", ".hidden"):
            archive.writestr(name, f"z {name}")
    found = [line for document in Corpus(tmp_path) for line in document]
    assert found == ["B.txt", "a.txt", "a/c.txt", "b.txt", "z 1.txt", "z 2.txt"]
    several = Corpus([tmp_path / "b.txt", tmp_path / "a.txt"])
    assert list(several) == [["b.txt"], ["a.txt"]]


def test_a_file_is_not_read_ahead(tmp_path):
    """The first documents come before a bad byte at the end is met."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"a line\n\n" * 100_000 + b"\xff\n")
    documents = iter(Corpus(file))
    assert len(list(itertools.islice(documents, 1000))) == 1000
    with pytest.raises(ValueError, match="line 200001, byte 1: 0xff is not utf-8"):
        list(documents)


def pack_zip(path, raw, name="in/b.txt"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, raw)


PACKED = {
    "a.txt": lambda path, raw: path.write_bytes(raw),
    "a.gz": lambda path, raw: path.write_bytes(gzip.compress(raw)),
    "a.bz2": lambda path, raw: path.write_bytes(bz2.compress(raw)),
    "a.xz": lambda path, raw: path.write_bytes(lzma.compress(raw)),
    "a.zip": pack_zip,
}


@pytest.mark.parametrize("name", PACKED)
def test_bad_bytes_are_named(tmp_path, name):
    PACKED[name](tmp_path / name, "Grüße\nnaïve".encode() + b" caf\xe9\n")
    place = f"{tmp_path / name}, in/b.txt" if name == "a.zip" else f"{tmp_path / 'a'}"
    match = "line 2, byte 11: 0xe9 is not utf-8; save the file as UTF-8"
    with pytest.raises(ValueError, match=match) as error:
        list(Corpus(tmp_path / name))
    assert str(error.value).startswith(place)


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zip"])
def test_a_torn_archive_is_named(tmp_path, name):
    whole, torn = tmp_path / name, tmp_path / f"torn{name}"
    PACKED[name](whole, bytes(range(32, 127)) * 500)
    torn.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"{torn} cannot be unpacked"):
        list(Corpus(torn))


def test_other_encodings(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("café\n".encode("latin-1"))
    assert list(Corpus(file, encoding="latin-1")) == [["café"]]
    file.write_bytes("\ufeffcafé\r\n".encode())
    assert list(Corpus(file)) == list(Corpus(file, encoding="utf-8-sig")) == [["café"]]
    file.write_bytes(b"\xef\xbb\xbfcaf\xe9\n")
    with pytest.raises(ValueError, match="line 1, byte 7: 0xe9"):
        list(Corpus(file))


def tar(path):
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))


def zip_in_zip(path):
    pack_zip(path, b"PK", name="in/inner.ZIP")


def carriage_returns(path):
    path.write_bytes(b"One.\rTwo.\r\rThree.\r")


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.tar.gz", tar, "a.tar, line 1: a byte is 0, so it is not text; unpack it"),
        ("outer.zip", zip_in_zip, "outer.zip, in/inner.ZIP: .* unpack the outer file"),
        ("a.txt", carriage_returns, "a.txt: .*carriage returns; save it with newlines"),
    ],
)
def test_files_that_are_not_text_are_named(tmp_path, name, make, message):
    make(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        list(Corpus(tmp_path / name))


@pytest.mark.parametrize("raw", [b"One.\r", b"One.\r\nTwo.\r\n", b"One. \r or so\nTwo.\n"])
def test_carriage_returns_are_text_where_newlines_end_lines(tmp_path, raw):
    """Newlines end these, or one line is all."""
    (tmp_path / "a.txt").write_bytes(raw)
    assert [len(document) for document in Corpus(tmp_path / "a.txt")] == [max(1, raw.count(b"\n"))]


def test_several_corpora_are_one(tmp_path):
    first, second = tmp_path / "a,b.txt", tmp_path / "b.txt"
    first.write_text(TEXT)
    second.write_bytes("A caf\xe9.\n".encode("latin-1"))
    corpora = open_corpora(
        [f"{first},lines=wrapped", f"{second},encoding=latin-1,lines=paragraph", str(first)]
    )
    expected = [*DOCUMENTS["wrapped"], ["A caf\xe9."], *DOCUMENTS["sentence"]]
    assert list(corpora) == list(corpora) and sorted(corpora) == sorted(expected)


def test_several_corpora_are_read_side_by_side(tmp_path):
    counts = {"few long": (4, 50), "many short": (400, 1), "middling": (40, 10)}
    for name, (documents, sentences) in counts.items():
        text = "\n\n".join("\n".join([name] * sentences) for _ in range(documents))
        (tmp_path / name).write_text(text)
    found = [document[0] for document in open_corpora([str(tmp_path / name) for name in counts])]
    assert collections.Counter(found) == {name: documents for name, (documents, _) in counts.items()}
    for start in range(0, len(found), len(found) // 4):
        quarter = collections.Counter(found[start : start + len(found) // 4])
        assert all(abs(quarter[name] - documents / 4) <= 2 for name, (documents, _) in counts.items())


@pytest.mark.parametrize(
    ("specs", "wanted"),
    [
        ([], "no text was given"),
        (["{}/a.txt,lines=line"], "choose one of"),
        (["{}/a.txt,lines=wrapped,lines=sentence"], "lines twice"),
        (["{}/a.txt,line=wrapped"], "there is no"),
    ],
)
def test_wrong_specs_are_named(tmp_path, specs, wanted):
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises((ValueError, FileNotFoundError), match=wanted):
        open_corpora([spec.format(tmp_path) for spec in specs])


@pytest.mark.parametrize("lines", [lines for lines in DOCUMENTS if lines != "document"])
def test_a_document_too_long_for_memory_is_named(tmp_path, monkeypatch, lines):
    monkeypatch.setattr(corpus_files, "MAX_DOCUMENT", 1000)
    file = tmp_path / "a.txt"
    file.write_text("\n\n".join(["A sentence."] * 20) + "\n" + "A sentence.\n" * 90)
    at = 110 if lines == "wrapped" else 129  # the 91st sentence of 11 characters
    with pytest.raises(ValueError, match=rf"a.txt, line {at}: the document has over 1,000 characters"):
        list(Corpus(file, lines=lines))
    assert len(list(Corpus(file, lines="document"))) == 110


@pytest.mark.parametrize(
    ("source", "setting", "message"),
    [
        ("", {"lines": "verse"}, "'verse'; choose one of sentence, paragraph, wrapped"),
        ("", {"encoding": "utf-9"}, "no encoding 'utf-9'"),
        ("", {"encoding": "utf-16"}, "utf-16 has no newline of one byte"),
        ("", {"split": "test"}, "split is 'test', which applies only to tfds:NAME"),
        ("tfds:mock", {"encoding": "latin-1"}, "encoding is 'latin-1', and TensorFlow Datasets are UTF-8"),
        ("no.txt", {}, "there is no .*no.txt"),
        ("empty", {}, "there is no file in"),
    ],
)
def test_wrong_settings_are_named(tmp_path, source, setting, message):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "empty").mkdir()
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Corpus(source if source.startswith("tfds:") else tmp_path / source, **setting)


# Sentences

PARAGRAPHS = [
    ["One.", "Two!", "Three?"],
    ["Mr. J. R. Smith of St. Louis met the U.S. envoy.", "They ate, e.g. figs."],
    ['"Go!" she said.', '"Now?"', "(He left.)", "Yes."],
    ["It cost 3.5 dollars.", "2 of them paid."],
    ["Wait… and see.", "No…", "That is it."],
    ["我来了。", "你好！", "是吗？", "end"],
    ["¿Qué?", "¡Sí!", "Él vino."],
    ["So am I.", "Not vitamin a.", "He is not."],
]


@pytest.mark.parametrize("sentences", PARAGRAPHS, ids=" ".join)
def test_sentences(sentences):
    joined = "".join(sentences) if sentences[0][-1] == "。" else " ".join(sentences)
    assert split_sentences(joined) == sentences


def test_real_articles_are_whole(data_dir):
    """An article is a document, and its sentences are all of its text."""
    file = data_dir / "corpus" / "enwiki_plain_paragraphs.txt"
    whole, split = list(Corpus(file)), list(Corpus(file, lines="paragraph"))
    assert len(whole) == len(split) == 100
    for paragraphs, sentences in zip(whole, split, strict=True):
        assert " ".join(paragraphs).split() == " ".join(sentences).split()
    words = [len(sentence.split()) for sentences in split for sentence in sentences]
    assert 15 < sum(words) / len(words) < 30  # English prose has some 20 words a sentence
    assert max(words) < 250


def test_real_books_are_documents(data_dir):
    file = data_dir / "corpus" / "gutenberg17.zip"
    with pytest.raises(ValueError, match=r"gut/chesterton-ball.txt, line 4631, byte 8: 0xe8 is not utf-8"):
        list(Corpus(file, lines="wrapped"))
    with zipfile.ZipFile(file) as archive:
        texts = sum(not name.endswith("/") for name in archive.namelist())
    assert len(list(Corpus(file, lines="wrapped", encoding="latin-1"))) == texts == 18


# MediaWiki and TensorFlow Datasets

ARTICLE = """{{Infobox|born=1900}}
'''Foo''' is a [[bar (x)|bar]] of [[Baz]].<ref>{{cite|y}}</ref> It has 5&nbsp;km. [[File:x.jpg|thumb|A ''caption'' [[y]]]]
__NOTOC__
== History ==
* item of [[a list]]
# another
; term : meaning
{| class="wikitable"
| cell
|}
Last [http://example.org site] ends.<!-- hidden --> See [[:Category:Bars]].
[[Category:Bars]]
[[de:Fu]]
"""
PASSAGES = ["Foo is a bar of Baz. It has 5 km.", "Last site ends. See Category:Bars."]


def test_wikitext_leaves_passages():
    pytest.importorskip("mwparserfromhell")
    assert wiki_paragraphs(ARTICLE) == PASSAGES


@pytest.mark.parametrize("name", ["w.xml", "W.XML", "w.xml.bz2", "w1.xml-p1p41242.bz2"])
def test_a_dump_holds_articles(tmp_path, name):
    pytest.importorskip("mwxml")
    pytest.importorskip("mwparserfromhell")
    text = dump(
        {"title": "A", "text": "One [[Datei:x.png|mini]] a. Two.\n\nThree."},
        {"title": "Talk:A", "ns": 1, "text": "Talk."},
        {"title": "R", "extra": '<redirect title="A" />', "text": "#REDIRECT [[A]]"},
        {"title": "E", "text": "{{stub}}"},
        {"title": "B", "text": "Gr&amp;#252;&amp;szlig;e&amp;#xD800;."},
    ).encode()
    (tmp_path / name).write_bytes(bz2.compress(text) if name.endswith("bz2") else text)
    documents = [["One a.", "Two.", "Three."], ["Grüße?."]]
    assert list(Corpus(tmp_path / name, lines="paragraph")) == documents
    (tmp_path / "torn.xml").write_bytes(text[:-300])
    with pytest.raises(ValueError, match=r"torn.xml is not a MediaWiki dump \("):
        list(Corpus(tmp_path / "torn.xml"))
    (tmp_path / "other.xml").write_text("<html><body>no dump</body></html>")
    with pytest.raises(ValueError, match=r"other.xml is not a MediaWiki dump \("):
        list(Corpus(tmp_path / "other.xml"))


def store(folder, monkeypatch, columns):
    """Writes a data set where TensorFlow Datasets finds it."""
    tfds = pytest.importorskip("tensorflow_datasets")
    tfds.dataset_builders.store_as_tfds_dataset(
        name="small_text",
        version="1.0.0",
        data_dir=folder,
        features=tfds.features.FeaturesDict({name: tfds.features.Text() for name in columns}),
        split_datasets={"train": tf.data.Dataset.from_tensor_slices(columns)},
    )
    monkeypatch.setattr(tfds, "load", functools.partial(tfds.load, data_dir=folder))


@pytest.mark.parametrize("field", ["text", "body"])
def test_tensorflow_datasets(tmp_path, monkeypatch, field):
    store(tmp_path, monkeypatch, {field: ["One. Two.\n\nThree.", "Four."]})
    assert list(Corpus("tfds:small_text", lines="paragraph")) == [["One.", "Two.", "Three."], ["Four."]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": [b"One.", b"caf\xe9"]}, "small_text, example 2 of train: text is not utf-8"),
        ({"question": ["a"], "answer": ["b"]}, "small_text has no field 'text'; .* answer, question"),
    ],
)
def test_tensorflow_datasets_without_text(tmp_path, monkeypatch, columns, message):
    store(tmp_path, monkeypatch, columns)
    with pytest.raises(ValueError, match=message):
        list(Corpus("tfds:small_text"))
    with pytest.raises(FileNotFoundError, match="no_such_set cannot be loaded from TensorFlow Datasets"):
        list(Corpus("tfds:no_such_set"))
