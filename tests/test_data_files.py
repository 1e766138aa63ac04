"""Reading of data files: byte order marks inside joined files, and TensorFlow Datasets without a network."""

import socket
import time

import pytest
import runs

from bert_keras.errors import BertKerasError
from bert_keras.io import paths
from bert_keras.tasks.data import sources as data_files
from bert_keras.tasks.data.conll import read_corpus
from bert_keras.tasks.data.sources import check_dev_split
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.study.glue import _open_tasks
from bert_keras.tasks.study.grid import opened
from bert_keras.tasks.study.probe import run_probes

MARK = "\ufeff"


def test_a_byte_order_mark_alone_on_a_line_ends_a_sentence(tmp_path):
    path = tmp_path / "dev.txt"
    path.write_text(f"{MARK}Ada B-PER\nwrote O\n{MARK}\nBath B-LOC\n{MARK}-DOCSTART- O\n\nYork B-LOC\n")
    first, second = read_corpus(path).documents
    assert [sentence.words for sentence in first] == [["Ada", "wrote"], ["Bath"]]
    assert [sentence.words for sentence in second] == [["York"]]


def test_a_byte_order_mark_inside_a_corpus_is_not_text(tmp_path):
    (tmp_path / "joined.txt").write_text(f"{MARK}one\n{MARK}\n{MARK}two\n")
    assert list(Corpus(tmp_path / "joined.txt", lines="paragraph")) == [["one"], ["two"]]


@pytest.fixture
def unreachable(monkeypatch, tmp_path):
    """Every host name resolves to an address that does not answer: "refuses" and "drops" choose how."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    resolve, held = socket.getaddrinfo, []

    def choose(how: str) -> None:
        server = socket.create_server(("127.0.0.1", 0), backlog=0)
        port = server.getsockname()[1]
        if how == "refuses":
            server.close()
        else:  # a full queue: Linux drops further connections without an answer
            held.append(server)
            for _ in range(4):
                held.append(socket.socket())
                held[-1].setblocking(False)
                held[-1].connect_ex(("127.0.0.1", port))
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, _, *rest, **more: resolve("127.0.0.1", port, *rest, **more)
        )

    yield choose
    for one in held:
        one.close()


@pytest.mark.parametrize("how", ["refuses", "drops"])
def test_a_download_fails_fast_where_the_host_does_not_answer(unreachable, monkeypatch, how):
    import requests
    import tensorflow_datasets  # noqa: F401  its first import takes seconds

    monkeypatch.setattr(data_files, "CONNECT_SECONDS", 1)
    usual = requests.adapters.HTTPAdapter
    unreachable(how)
    began = time.monotonic()
    with pytest.raises(FileNotFoundError, match="glue/sst2 .* does not answer.*; give a folder of files"):
        data_files.load_tfds("glue/sst2", "train", instead="a folder of files")
    assert time.monotonic() - began < 60  # ten tries with growing pauses take longer
    assert requests.adapters.HTTPAdapter is usual


@pytest.mark.parametrize("line", ["glue --tasks rte", "protocol --task rte", "ablate approaches --tasks rte"])
def test_a_dry_run_says_what_a_run_would_fetch_and_asks_nobody(line, tiny, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("tensorflow_datasets.load", None)
    flags = ["--checkpoint", tiny, "--output", tmp_path / "out", "--dry-run"]
    code, _, err = runs.run_command(capfd, *line.split(), *flags)
    assert code == 1 and "a run would fetch glue/rte from TensorFlow Datasets, and a dry run" in err
    assert not (tmp_path / "out").exists()


def test_a_command_without_a_network_prints_one_line(unreachable, capfd, tmp_path):
    unreachable("refuses")
    runs.write_checkpoint(tmp_path / "checkpoint")
    flags = ["--checkpoint", tmp_path / "checkpoint", "--output", tmp_path / "run", "--seq-length", "40"]
    code, out, err = runs.run_command(capfd, "finetune", "--task", "rte", *flags)
    assert (code, out) == (1, "")
    assert err.startswith("bert-keras: error: glue/rte cannot be loaded") and err.count("\n") == 1
    assert "give a folder of" in err
    assert not (tmp_path / "run").exists()


MISSPELLED = {
    "training file": ("finetune --task custom --data data/trian.csv --checkpoint x --output o", "data/train.csv"),
    "folder": ("finetune --task custom --data dta/train.csv --checkpoint x --output o", "data/train.csv"),
    "dev file": ("finetune --task custom --data data/train.csv --dev-data data/de.csv --checkpoint x --output o", "data/dev.csv"),
    "run": ("predict --run runs/reveiws --input data/dev.csv", "runs/reviews"),
    "input": ("features --checkpoint x --input data/dev.cvs --output o.jsonl", "data/dev.csv"),
    "corpus": ("vocab --text dat --output o", "data"),
    "export": ("serve export/reviws", "export/reviews"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSPELLED)
def test_a_misspelled_path_is_answered_with_the_close_one(name, tmp_path, monkeypatch, capfd):
    arguments, close = MISSPELLED[name]
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "runs/reviews", "export/reviews"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("train", "dev"):
        (tmp_path / "data" / f"{file}.csv").write_text("text,label\na,x\nb,y\n")
    code, _, err = runs.run_command(capfd, *arguments.split())
    assert code == 1 and f"did you mean {close}?" in err and len(err.splitlines()) == 1, err


def test_a_missing_path_with_no_close_name_gets_no_suggestion(tmp_path):
    (tmp_path / "data").mkdir()
    assert paths.did_you_mean(tmp_path / "elsewhere" / "train.csv") == ""
    (tmp_path / "file.txt").touch()
    assert paths.did_you_mean(tmp_path / "file.txt" / "train.csv") == ""


def test_a_corpus_in_a_parquet_file_is_refused_by_name(tmp_path):
    (tmp_path / "text.parquet").write_text("PAR1")
    with pytest.raises(BertKerasError, match=r"text\.parquet is a \.parquet file; a corpus is text"):
        list(Corpus(tmp_path))


def test_one_file_has_no_dev_split(tmp_path):
    file = tmp_path / "train.tsv"
    file.write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    check_dev_split(tmp_path)
    check_dev_split({"train": str(file), "validation": str(file)})
    for refuse in (
        lambda: check_dev_split(str(file)),
        lambda: run_probes({"sst2": file}, checkpoint=tmp_path, output=tmp_path / "new"),
        lambda: _open_tasks(["sst2"], file, pooling="pooled"),
        lambda: opened("sst2", {"sst2": file}),
    ):
        with pytest.raises(BertKerasError, match=r"train\.tsv is one file, without a dev split"):
            refuse()
