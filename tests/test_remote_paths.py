"""Files on other file systems, read through tf.io.gfile: here ram://, TensorFlow's memory."""

import errno
import functools
import gzip
import json
import pickle
import uuid
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from random_checkpoints import random_checkpoint, refused

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.io import paths
from bert_keras.io.folders import Folder, atomic_folder
from bert_keras.io.paths import RemotePath, to_path
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.corpus import Corpus, open_corpora
from bert_keras.tasks.pretraining.records import digest_records, read_records
from bert_keras.tasks.pretraining.vocabulary import write_vocabulary
from bert_keras.tasks.pretraining.write_records import Job, write_records
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.training.loop import RUN
from bert_keras.text.wordpiece import WordPiece

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a cat sat the dog ran far".split()
TEXT = "\n\n".join("a cat sat\nthe dog ran\nfar" for _ in range(9)) + "\n"


@pytest.fixture
def ram():
    """A function that writes a file to a new folder of ram:// and returns its path."""
    folder = f"ram://{uuid.uuid4().hex}"

    def write(name, content):
        tf.io.gfile.makedirs(f"{folder}/{name}".rpartition("/")[0])
        with tf.io.gfile.GFile(f"{folder}/{name}", "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return f"{folder}/{name}"

    write.folder = folder
    return write


def test_a_path_as_an_address_of_this_machine(tmp_path):
    assert to_path(f"file://{tmp_path}/text.txt") == tmp_path / "text.txt"


def test_a_remote_path_is_a_path(ram):
    given = ram("some folder/text.txt", "one\ntwo\n")
    path = to_path(given)
    assert isinstance(path, RemotePath) and isinstance(path, Path) and str(path) == given
    assert to_path(path) == path and pickle.loads(pickle.dumps(path)) == path
    assert path.is_file() and not path.is_dir() and path.parent.is_dir() and path.stat().st_size == 8
    assert path.read_text() == "one\ntwo\n" and path.read_bytes() == b"one\ntwo\n"
    assert [*path.parent.iterdir()] == [path] and path in to_path(ram.folder).rglob("*")
    with path.open("rb") as file:
        assert (file.seek(4), file.readline(2), file.tell(), file.read()) == (4, b"tw", 6, b"o\n")
    with pytest.raises(FileNotFoundError, match="there is no ram://"):
        (path.parent / "absent").read_bytes()
    path.unlink()
    assert not path.exists()


def test_a_folder_is_listed_with_one_request_for_each_level(ram, monkeypatch):
    names = {"a.txt", "b/c.txt", "b/d e/f.txt", "b/d e/g [1]?/h.txt", ".i/j.txt"}
    names |= {f"k/{i}.txt" for i in range(20)}
    folder = to_path(f"{ram.folder}/text [2]")
    for name in names:
        ram(f"text [2]/{name}", "one")
        ram(f"text 2/{name}.other", "two")
    asked, gfile = [], tf.io.gfile

    class Counted:
        def __getattr__(self, name):
            asked.append(name)
            return getattr(gfile, name)

    monkeypatch.setattr(paths, "_gfile", Counted)
    assert {file.relative_to(folder).as_posix() for file in paths.files_below(folder)} == names
    assert asked == ["glob"] * 5, "four levels, and the empty one"


def test_corpora_of_all_forms(ram, tmp_path):
    here = tmp_path / "here.txt"
    here.write_text(TEXT)
    wanted = list(Corpus(here))
    with zipfile.ZipFile(tmp_path / "here.zip", "w") as archive:
        archive.write(here, "in/here.txt")
    files = [ram("text/a.txt", TEXT), ram("b.txt.gz", gzip.compress(TEXT.encode()))]
    files.append(ram("c.zip", (tmp_path / "here.zip").read_bytes()))
    ram("text/.hidden/d.txt", "not read")
    for source in (*files, f"{ram.folder}/text"):
        assert list(Corpus(source)) == wanted
    message = r"there is no ram://.*/text/b\.txt \(did you mean ram://.*/a\.txt\?\)"
    refused(message, Corpus, f"{ram.folder}/text/b.txt", error=FileNotFoundError)
    with pytest.raises(ValueError, match=r"c\.zip cannot be unpacked"):
        list(Corpus(ram("broken/c.zip", b"PK")))


def test_vocabularies(ram, tmp_path):
    file = ram("vocab/vocab.txt", "\n".join(PIECES) + "\n")
    ram("vocab/tokenizer_config.json", json.dumps({"do_lower_case": False}))
    for given in (file, f"{ram.folder}/vocab"):
        tokenizer = checkpoints.load_tokenizer(given)
        assert tokenizer.vocab_size == len(PIECES) and not tokenizer.lower_case
    assert WordPiece.from_file(file).vocab_size == len(PIECES)
    assert WordPiece.from_file(to_path(file)).vocab_size == len(PIECES)
    refused("ram://", checkpoints.load_tokenizer, f"{ram.folder}/absent/vocab.txt", error=FileNotFoundError)


def test_weights_on_another_file_system_are_refused_and_their_tokenizer_is_read(ram, tmp_path):
    made = random_checkpoint()
    for form in ("hugging-face", "google"):
        checkpoints.write(made, tmp_path / form, format=form)
        for file in (tmp_path / form).iterdir():
            ram(f"{form}/{file.name}", file.read_bytes())
        folder = f"{ram.folder}/{form}"
        refused(f"^{folder}: .* local disk; copy it there first.$", checkpoints.load_encoder, folder)
    assert checkpoints.load_tokenizer(f"{ram.folder}/hugging-face").vocabulary == made.vocabulary.tokens
    ram("hugging-face/task.json", "{}")
    for given in (f"{ram.folder}/hugging-face", ram("model.keras", "")):
        refused(f"^{given}: .* local disk; copy it there first.$", bk.load, given)


ANSWERED = [{"id": "1", "question": "who?", "answers": [{"text": "cat", "answer_start": 4}]}]
ARTICLE = {"title": "t", "paragraphs": [{"context": "the cat sat", "qas": ANSWERED}]}
SQUAD = json.dumps({"version": "1.1", "data": [ARTICLE]})


def parquet():
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": ["x", "y"]}), sink)
    return sink.getvalue().to_pybytes()


JSON_LINES = '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'
CONLL = "-DOCSTART- -X- O\n\na NN O\nParis NNP I-LOC\n\n"
CUSTOM = functools.partial(TextClassification.open, "custom")
DATA = {
    "official tsv": (
        "SST-2/train.tsv",
        "sentence\tlabel\na\t1\nb\t0\n",
        functools.partial(TextClassification.open, "sst2"),
    ),
    "csv": ("train.csv", "text,label\na,x\nb,y\n", CUSTOM),
    "csv.gz": ("train.csv.gz", gzip.compress(b"text,label\na,x\nb,y\n"), CUSTOM),
    "jsonl": ("train.jsonl", JSON_LINES, CUSTOM),
    "parquet": ("train.parquet", parquet(), CUSTOM),
    "squad": ("train-v1.1.json", SQUAD, functools.partial(QuestionAnswering.open, "squad1.1")),
    "conll": ("train.txt", CONLL, functools.partial(Tagging.open, "conll2003")),
}


@pytest.mark.parametrize("form", DATA)
def test_data_files(ram, tmp_path, form):
    """The same examples as from the local disk."""
    name, content, opened = DATA[form]
    path = ram(name, content)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def rows(source):
        return [*opened(source).examples("train").as_numpy_iterator()]

    folder = path.rpartition("/")[0]
    wanted = rows(str((tmp_path / name).parent))
    assert wanted and str(rows(folder)) == str(wanted)


def test_records_are_written_and_read(ram, tmp_path):
    tokenizer = WordPiece(PIECES)
    options = {"shard_bytes": 50, "shard_documents": 3, "settings": Sampling(seq_length=16, dupe_factor=1)}
    options["make_tokenizer"] = functools.partial(WordPiece, PIECES)
    source = open_corpora([ram("text.txt", TEXT)])
    remote, local = f"{ram.folder}/instances", tmp_path / "instances"
    summaries = [write_records(source, Job(path=path, **options)) for path in (to_path(remote), local)]
    written = [{f.name: f.read_bytes() for f in path.iterdir()} for path in (to_path(remote), local)]
    assert summaries[0] == summaries[1] and written[0] == written[1]
    times = [path.stat().st_mtime_ns for path in to_path(remote).iterdir()]
    write_records(source, Job(path=to_path(remote), **options))  # again: nothing is written
    assert [path.stat().st_mtime_ns for path in to_path(remote).iterdir()][:-1] == times[:-1]
    for given in ((remote, local), ([f"{remote}/00000.tfrecord"], [local / "00000.tfrecord"])):
        first, second = (list(read_records(path, tokenizer=tokenizer).as_numpy_iterator()) for path in given)
        assert first and str(first) == str(second)
    assert len(list(read_records(remote, seed=1).take(3))) == 3
    assert digest_records(remote) == digest_records(local)
    job = Job(path=to_path(remote), **options)
    refused("was made with another text", write_records, [["the dog", "ran far"]] * 4, job)


@pytest.mark.parametrize("output", ["run", "folder", "vocabulary"])
def test_outputs_that_need_a_local_disk(ram, output):
    """One error before any work."""
    path = f"{ram.folder}/out"
    with pytest.raises(ValueError, match=f"{path}: .* is written to a local disk; give a local path"):
        if output == "run":
            Folder(path, RUN).check()
        elif output == "folder":
            with atomic_folder(to_path(path)):
                raise AssertionError("it starts to write")
        else:
            write_vocabulary([["a cat"]], path, kind="wordpiece", size=100, lower_case=True)


def test_a_missing_file_is_not_a_damaged_one(ram):
    given = ram("text.txt", "one\n")
    tf.io.gfile.remove(given)
    with pytest.raises(FileNotFoundError, match="there is no ram://") as error:
        to_path(given).stat()
    assert error.value.errno == errno.ENOENT


def test_a_file_system_that_is_not_installed():
    message = "TensorFlow has no file system for s3://bucket/text.txt; give a local path or one .*gs://"
    refused(message, Corpus, "s3://bucket/text.txt")
