"""Parts of a corpus that are read alone, and the plan of its shards: the documents and groups of one process."""

import bz2
import gzip
import importlib
import os
import random
import resource
import sys
import zipfile

import pytest
from instance_texts import dump

from bert_keras.tasks.pretraining import corpus_files
from bert_keras.tasks.pretraining.corpus import (
    Corpora,
    Corpus,
    corpus_ranges,
    count_bytes,
    document_sizes,
    read_spans,
    shard_spans,
    shards,
)

WORDS = "a cat sat. the dög ran. 東京 far! B".split()
SIZES = (1, 2, 7, 40, 1000)


def plain(seed, *, documents=12):
    """Text with blank lines of all kinds, marks, and no newline at the end."""
    draw = random.Random(seed)
    lines = []
    for _ in range(documents):
        lines += [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(draw.randint(1, 4))]
        lines += draw.choices(["", "  ", "\u00a0", "\r"], k=draw.randint(1, 3))
    text = "\n".join([*draw.choices(["", "x"], k=2), *lines, "end"])
    return text.replace("far!", "\ufefffar!").encode()


def documents_in_parts(corpus, size):
    return [
        text for part in corpus.ranges(size) for text in map(corpus.parsed, corpus.unparsed(part)) if text
    ]


@pytest.mark.parametrize("lines", ["sentence", "paragraph", "document", "wrapped"])
def test_ranges_have_every_document_once(tmp_path, lines):
    for seed in range(8):
        (tmp_path / "text.txt").write_bytes(plain(seed))
        corpus = Corpus(tmp_path / "text.txt", lines=lines)
        wanted = list(corpus)
        assert len(wanted) == 1 if lines == "wrapped" else len(wanted) > 5
        for size in SIZES:
            assert documents_in_parts(corpus, size) == wanted, (seed, size)
    counts = [len([*corpus.ranges(size)]) for size in (40, 1000)]
    assert counts == [1, 1] if lines == "wrapped" else counts[0] > counts[1]


def test_every_cut_of_a_small_file_is_right(tmp_path):
    """Carriage returns, a file that starts and ends with blank lines, one without a newline at the end."""
    for text in (b"a\nb\n\nc\n\n\nd", b"\n\na\n\nb\n", b"a\r\nb\r\n\r\nc\r\n", b"a", b"a\n\n\n", b"\n", b""):
        (tmp_path / "text.txt").write_bytes(text)
        for lines in ("sentence", "document"):
            corpus = Corpus(tmp_path / "text.txt", lines=lines)
            for size in range(1, len(text) + 2):
                assert documents_in_parts(corpus, size) == list(corpus), (text, lines, size)


def test_a_range_ends_where_a_long_document_goes_on(tmp_path):
    """A reader of a range without a beginning stops at its end: a file without blank lines is not read once for each range."""
    (tmp_path / "text.txt").write_bytes(b"a b\n" * 1000)
    corpus = Corpus(tmp_path / "text.txt")
    first, second, *_ = corpus.ranges(400)
    opened = corpus_files._decoded
    lines = []

    def counted(*given, **named):
        for line in opened(*given, **named):
            lines.append(line)
            yield line

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_files, "_decoded", counted)
        assert list(corpus.unparsed(second)) == [] and len(lines) < 110
        assert len(list(corpus.unparsed(first))) == 1 and len(lines) > 1000


def test_archives_are_split_between_their_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        for seed in range(6):
            archive.writestr(f"{seed}/text.txt", plain(seed))
        archive.writestr(".hidden/text.txt", b"hidden")
        archive.writestr("packed.txt.gz", gzip.compress(plain(9)))
    corpus = Corpus(tmp_path / "text.zip")
    for size in (1, 500, 10**6):
        assert documents_in_parts(corpus, size) == list(corpus)
    assert [len([*corpus.ranges(size)]) for size in (1, 10**6)] == [7, 1]


@pytest.mark.parametrize("wrong", [b"good\n\n" * 30 + b"b\xe9d\n\nend\n", b"good\n\n" * 30 + b"a\0b\n"])
def test_an_error_names_the_line_of_the_file(tmp_path, wrong):
    (tmp_path / "text.txt").write_bytes(wrong)
    corpus = Corpus(tmp_path / "text.txt")
    with pytest.raises(ValueError, match="text.txt, line 61") as whole:
        list(corpus)
    for size in (7, 50):
        with pytest.raises(ValueError) as found:
            documents_in_parts(corpus, size)
        assert str(found.value) == str(whole.value)


def test_a_carriage_return_in_a_later_line_is_text(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"a\n\nb\rc")
    corpus = Corpus(tmp_path / "text.txt")
    for size in (1, 3, 4, 9):
        assert documents_in_parts(corpus, size) == list(corpus) == [["a"], ["b\rc"]]


def test_large_files_that_have_no_parts_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_files, "MAX_WHOLE_BYTES", 10)
    for name, data in {
        "a.txt.gz": gzip.compress(plain(0)),
        "b.xml": dump({"title": "A", "text": "Some text."}).encode(),
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} has over 10 bytes and can only be read from its start"):
            list(Corpus(tmp_path / name).ranges(100))
        assert list(Corpus(tmp_path / name)), "one process reads it"
    with pytest.raises(ValueError, match="tfds:name cannot be read in parts; write its text to files"):
        corpus_ranges(Corpora((Corpus("tfds:name"),)))


@pytest.fixture
def corpora(tmp_path):
    """Three corpora: plain files, compressed ones, and a dump with an article without text."""
    for seed in range(3):
        (tmp_path / f"plain{seed}.txt").write_bytes(plain(seed, documents=20))
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(plain(7)))
    articles = ["'''One''' cat sat. The dog ran.\n\nFar.", "", "* list", *["Many dogs."] * 9]
    (tmp_path / "dump.xml.bz2").write_bytes(
        bz2.compress(dump(*({"title": "A", "text": text} for text in articles)).encode())
    )
    return Corpora(
        (
            Corpus([tmp_path / f"plain{seed}.txt" for seed in range(3)]),
            Corpus(tmp_path / "text.txt.gz", lines="paragraph"),
            Corpus(tmp_path / "dump.xml.bz2", lines="paragraph"),
        )
    )


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("range_bytes", [30, 200, 10**6])
def test_planned_shards_are_those_of_one_process(corpora, parts, range_bytes):
    """Over one corpus, and over several that are interleaved."""
    corpora = Corpora(corpora.parts[:parts])
    sources = corpus_ranges(corpora, range_bytes=range_bytes)
    sizes = {source: document_sizes(corpora, source) for source in sources}
    for size, least in ((200, 3), (1, 1), (50, 20), (10**6, 2)):
        wanted = list(shards(corpora, size=size, least=least))
        planned = list(shard_spans(sources, sizes.__getitem__, size=size, least=least))
        assert [list(read_spans(corpora, spans)) for spans in planned] == wanted, (size, least)
    assert sum(int(found[:, 0].sum()) for found in sizes.values()) == sum(map(count_bytes, corpora))


def test_beam_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "bert_keras.tasks.pretraining.beam_records", raising=False)
    with pytest.raises(
        ImportError, match=r"Beam cannot be imported .*; pip install 'bert-keras\[beam\]'"
    ) as found:
        importlib.import_module("bert_keras.tasks.pretraining.beam_records")
    assert isinstance(found.value, ValueError), "the command line prints it in one line"


def test_a_changed_corpus_is_named(corpora, tmp_path):
    corpora = Corpora(corpora.parts[:1])
    sources = corpus_ranges(corpora)
    (spans,) = shard_spans(sources, lambda source: document_sizes(corpora, source), size=10**6, least=1)
    (tmp_path / "plain0.txt").write_text("less\n")
    with pytest.raises(ValueError, match="plain0.txt changed while it was read; run the command again"):
        list(read_spans(corpora, spans))


def test_a_shard_of_many_files_opens_few_at_once(tmp_path):
    for number in range(200):
        (tmp_path / f"{number:03}.txt").write_text(f"text {number}\n")
    corpora = Corpora((Corpus(tmp_path),))
    sources = corpus_ranges(corpora)
    (spans,) = shard_spans(sources, lambda source: document_sizes(corpora, source), size=10**6, least=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, hard))
    try:
        assert len(list(read_spans(corpora, spans))) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_text_gives_larger_ranges(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_bytes(b"a\n\n" * 1000)
    corpora = Corpora((Corpus(tmp_path / "text.txt"),))
    monkeypatch.setattr("bert_keras.tasks.pretraining.corpus.MAX_RANGES", 10)
    assert len(corpus_ranges(corpora, range_bytes=1)) == 10
