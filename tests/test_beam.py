"""Instances with Apache Beam: the bytes of `write_records`, whatever runs the pipeline."""

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import runs
import tensorflow as tf
from instance_texts import PIECES, job, texts_of
from runs import contents

from bert_keras.errors import BertKerasError
from bert_keras.io.files import write_json
from bert_keras.io.formats import INSTANCES, stamp
from bert_keras.io.paths import to_path
from bert_keras.tasks.pretraining.corpus import corpus_ranges, open_corpora
from bert_keras.tasks.pretraining.records import read_manifest, read_records
from bert_keras.tasks.pretraining.write_records import write_records

pytest.importorskip("apache_beam", reason="needs the `beam` extra")
from bert_keras.tasks.pretraining import beam_records  # noqa: E402


def text_of(*, seed=0):
    return "\n\n".join("\n".join(lines) for lines in texts_of(40, seed=seed, lines=(1, 20)))


def beam(corpora, path, *flags, range_bytes=700, **changes):
    made = job(to_path(path), **changes)
    return beam_records.write_records_with_beam(corpora, made, options=flags, range_bytes=range_bytes)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The specifications of two corpora, which are interleaved."""
    folder = tmp_path_factory.mktemp("texts")
    for seed in range(2):
        (folder / f"{seed}.txt").write_text(text_of(seed=seed))
    return [str(folder / "0.txt"), f"{folder / '1.txt'},lines=document"]


@pytest.fixture(scope="module")
def written(texts, tmp_path_factory):
    """The folder that one process writes; tests leave it as it is."""
    path = tmp_path_factory.mktemp("written") / "local"
    summary = write_records(open_corpora(texts), job(path))
    assert len(read_manifest(path)["shards"]) > 5
    return path, summary


def test_the_bytes_are_those_of_one_process(texts, written, tmp_path):
    assert beam(open_corpora(texts), tmp_path / "beam") == written[1]
    assert contents(tmp_path / "beam") == contents(written[0])


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    "flags",
    [
        ("--direct_num_workers=2", "--direct_running_mode=multi_threading"),
        ("--direct_num_workers=2", "--direct_running_mode=multi_processing"),
    ],
)
def test_the_bytes_depend_on_no_runner(texts, written, tmp_path, flags):
    environment = os.environ | {"PYTHONPATH": str(runs.ROOT)}
    code = (
        f"import sys; sys.path.insert(0, {str(runs.ROOT / 'tests')!r})\n"
        "from test_beam import beam, open_corpora\n"
        "if __name__ == '__main__':\n"
        "    beam(open_corpora(sys.argv[2:4]), sys.argv[1], *sys.argv[4:], range_bytes=5000)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "beam"), *texts, *flags]
    done = subprocess.run(
        command, cwd=runs.ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert contents(tmp_path / "beam") == contents(written[0])


@pytest.mark.long
def test_remote_text_and_output(texts, written):
    folder = f"ram://{uuid.uuid4().hex}"
    tf.io.gfile.makedirs(folder)
    for text in texts:
        tf.io.gfile.copy(text.partition(",")[0], f"{folder}/{Path(text.partition(',')[0]).name}")
    remote = open_corpora([f"{folder}/0.txt", f"{folder}/1.txt,lines=document"])
    assert beam(remote, f"{folder}/out") == written[1]
    found = {path.name: path.read_bytes() for path in to_path(f"{folder}/out").iterdir()}
    assert found == contents(written[0])


@pytest.mark.long
def test_a_complete_folder_is_left_as_it_is(texts, written):
    corpora = open_corpora(texts)
    times = {file: file.stat().st_mtime_ns for file in written[0].glob("*.tfrecord")}
    assert beam(corpora, written[0]) == written[1]
    assert {file: file.stat().st_mtime_ns for file in times} == times
    other = open_corpora(texts[:1])
    before = contents(written[0])
    with pytest.raises(ValueError, match="was made with another text"):
        beam(other, written[0])
    with pytest.raises(ValueError, match="was made with another seed"):
        beam(corpora, written[0], seed=1)
    shutil.rmtree(written[0] / beam_records.WORK)
    assert contents(written[0]) == before


def test_a_complete_folder_of_less_text_gets_no_shard(texts, written, tmp_path):
    """Neither where the last shard differs, nor where the text goes on after it."""
    shutil.copytree(written[0], tmp_path / "copy")
    grown = tmp_path / "0.txt"
    grown.write_text(Path(texts[0]).read_text() + "\n\n" + text_of(seed=2))
    with pytest.raises(ValueError, match="was made from less text|another text"):
        beam(open_corpora([str(grown), texts[1]]), tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / beam_records.WORK)
    assert contents(tmp_path / "copy") == contents(written[0])


@pytest.mark.long
def test_wrong_text_is_one_error_and_the_next_try_works(texts, written, tmp_path):
    good = Path(texts[0]).read_bytes()
    (tmp_path / "1.txt").write_bytes(good + b"\nb\xe9d\n")
    corpora = open_corpora([str(tmp_path / "1.txt"), texts[1]])
    with pytest.raises(ValueError, match=r"1\.txt, line \d+, byte 2: 0xe9 is not utf-8"):
        beam(corpora, tmp_path / "beam")
    assert [*(tmp_path / "beam").glob("*.tfrecord")] == []
    with pytest.raises(ValueError, match="is not complete .*; rerun the command"):
        read_records(tmp_path / "beam")
    (tmp_path / "1.txt").write_bytes(good)
    (tmp_path / "beam" / "00099.tfrecord").write_bytes(b"a shard of longer text, from an earlier try")
    beam(corpora, tmp_path / "beam")
    assert contents(tmp_path / "beam") == contents(written[0])


def test_text_without_instances(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="0 documents gave no instance"):
        beam(open_corpora([str(tmp_path / "empty.txt")]), tmp_path / "beam")


KILLED = """
import os, signal, sys
sys.path.insert(0, "tests")
from test_beam import beam, open_corpora
from bert_keras.tasks.pretraining.write_records import ShardWriter
write = ShardWriter.__call__
def killed(self, number, texts):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, number, texts)
ShardWriter.__call__ = killed
beam(open_corpora(sys.argv[2:]), sys.argv[1])
"""


@pytest.mark.long
def test_a_killed_pipeline_is_completed(texts, written, tmp_path):
    """It keeps the shards that are written, and has no complete manifest."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "beam"), *texts]
    done = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert read_manifest(tmp_path / "beam")["summary"] is None
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "beam").glob("*.tfrecord")}
    assert kept
    assert beam(open_corpora(texts), tmp_path / "beam") == written[1]
    assert contents(tmp_path / "beam") == contents(written[0])
    assert {file: file.stat().st_mtime_ns for file in kept} == kept, "these are not written again"


def test_no_text_is_an_element(texts, tmp_path):
    """The elements between the steps, pickled as Beam does, have none of the words."""
    corpora, made_job = open_corpora(texts), job(tmp_path / "beam")
    (tmp_path / "beam" / beam_records.WORK).mkdir(parents=True)
    write_json(tmp_path / "beam" / "manifest.json", stamp(INSTANCES) | made_job.fingerprint())
    sources = corpus_ranges(corpora, range_bytes=700)
    sized = [beam_records._measure(source, corpora, made_job) for source in sources]
    planned = [*beam_records._group(None, sized, made_job)]
    step = beam_records._WriteShards(corpora, made_job)
    step.setup()
    made = [result for element in planned for result in step.process(element)]
    assert len(sized) > 5 and len(made) == len(planned) > 5
    elements = pickle.dumps([sources, sized, planned, made])
    assert text_of(seed=0).encode().count(b"bird") > 5
    assert not any(word.encode() in elements for word in ("bird", "tree", "small"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--no_such_flag=1",), "Beam has no option --no_such_flag"),
        (("--runner=NoSuchRunner",), "Beam refuses its options .*NoSuchRunner"),
        (
            ("--runner=DataflowRunner",),
            "is on this machine, and Dataflow's workers are not; give gs:// paths",
        ),
    ],
)
def test_wrong_flags_of_beam(texts, tmp_path, flags, message):
    with pytest.raises(ValueError, match=message):
        beam(open_corpora(texts), tmp_path / "beam", *flags)
    assert not (tmp_path / "beam").exists()


def test_a_runner_needs_paths_that_its_workers_reach(texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(text_of())
    options = {"job": job(to_path("beam")), "options": ("--runner=DirectRunner",)}
    with pytest.raises(ValueError, match=r"text\.txt is relative, and workers of DirectRunner"):
        beam_records.write_records_with_beam(open_corpora(["text.txt"]), **options)
    with pytest.raises(ValueError, match=r"vocab\.txt is relative"):
        beam_records.write_records_with_beam(open_corpora(texts), vocabulary=to_path("vocab.txt"), **options)
    assert not Path("beam").exists()


def test_an_error_of_a_worker_is_one_line(texts, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(beam_records, "document_sizes", full)
    with pytest.raises(
        BertKerasError, match="a step of the pipeline failed: .*No space left on device"
    ) as error:
        beam(open_corpora(texts), tmp_path / "beam")
    assert "\n" not in str(error.value)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_command(tmp_path, capfd):
    (tmp_path / "text.txt").write_text(text_of())
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    command = ["instances", "--text", tmp_path / "text.txt", "--vocab", tmp_path / "vocab.txt"]
    command += ["--seq-length", "32", "--masks", "--max-predictions", "5", "--output"]
    code, out, err = runs.run_command(
        capfd, *command, tmp_path / "beam", "--beam", "--", "--direct_num_workers=1"
    )
    assert code == 0 and "labels that are 1" in out, err
    code, plain, err = runs.run_command(capfd, *command, tmp_path / "local", "--workers", "1")
    assert code == 0 and plain.splitlines()[-9:] == out.splitlines()[-9:], err
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    code, _, err = runs.run_command(capfd, *command, tmp_path / "x", "--", "--runner=FnApiRunner")
    assert code == 1 and "--runner=FnApiRunner is no flag of instances; flags of Beam follow --beam --" in err
    code, _, err = runs.run_command(capfd, *command, tmp_path / "x", "--beam", "--workers", "2")
    assert code == 1 and "--workers does not apply to --beam" in err
