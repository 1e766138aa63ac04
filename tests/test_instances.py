"""Folders of instances: their files, resume, refusals, memory and the command."""

import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import filelock
import numpy as np
import pytest
import runs
import scipy.stats
import tensorflow as tf
from instance_texts import (
    PIECES,
    each,
    example,
    original_pairs,
    rows_of,
    segments_of,
    texts_of,
    write,
    write_examples,
)

from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    WORD_STARTS,
)
from bert_keras.fields import Masking
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.corpus import Corpus, shards
from bert_keras.tasks.pretraining.instance_stream import describe_segmenter, tokenize_documents
from bert_keras.tasks.pretraining.records import read_manifest, read_records
from bert_keras.tasks.pretraining.samplers import make_instances
from bert_keras.tasks.pretraining.write_records import record_writer, serialize_examples
from bert_keras.text.wordpiece import WordPiece


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of instances; tests leave it as it is."""
    path = tmp_path_factory.mktemp("instances") / "records"
    return path, write(path)


@pytest.fixture
def copy(written, tmp_path):
    """The folder, for a test that changes it."""
    return shutil.copytree(written[0], tmp_path / "copy")


# -----------------------------------------------------------------------------------------------------------
# The files


def test_files_have_what_the_summary_says(written):
    path, summary = written
    manifest = read_manifest(path)
    assert len(manifest["shards"]) >= 5
    names = [f"{i:05d}.tfrecord" for i in range(len(manifest["shards"]))]
    assert sorted(os.listdir(path)) == [*names, "manifest.json"]
    read = list(read_records(path, tokenizer=WordPiece(PIECES)).as_numpy_iterator())
    assert len(read) == summary.instances == sum(shard["instances"] for shard in manifest["shards"])
    assert len(read_records(path)) == summary.instances
    lengths = [row[INPUT_MASK].sum() for row in read]
    assert summary.documents == 60 and summary.warnings == ()
    assert summary.label_rate == np.mean([row[NEXT_SENTENCE_LABEL] for row in read])
    assert summary.mean_length == pytest.approx(np.mean(lengths))
    assert summary.padding == pytest.approx(1 - np.mean(lengths) / 32)
    assert json.loads(json.dumps(summary._asdict())) == manifest["summary"]


def test_records_are_framed_and_masked(written):
    cls, sep, mask = 2, 3, 4
    for row in read_records(written[0]).as_numpy_iterator():
        length, weights = row[INPUT_MASK].sum(), row[MASKED_LM_WEIGHTS]
        positions, asked = row[MASKED_LM_POSITIONS][weights > 0], row[MASKED_LM_IDS][weights > 0]
        ids = row[INPUT_WORD_IDS].copy()
        assert len(asked) == min(5, max(1, round(0.15 * length)))
        assert not row[MASKED_LM_IDS][weights == 0].any() and not row[MASKED_LM_POSITIONS][weights == 0].any()
        ids[positions] = asked
        second = row[INPUT_TYPE_IDS].argmax()
        assert ids[0] == cls and np.flatnonzero(ids == sep).tolist() == [second - 1, length - 1]
        assert row[INPUT_TYPE_IDS].tolist() == [0] * second + [1] * (length - second) + [0] * (32 - length)
        assert not ids[length:].any() and mask not in ids
        integers = {value.dtype for name, value in row.items() if name != MASKED_LM_WEIGHTS}
        assert integers == {np.dtype("int32")}


def test_masks_are_all_that_masking_adds(written, tmp_path):
    """Unmasked files hold the same instances."""
    write(tmp_path / "plain", masking=None)
    plain, masked = (rows_of(path) for path in (tmp_path / "plain", written[0]))
    assert {*plain[0]} == {*ENCODER_INPUTS, NEXT_SENTENCE_LABEL}
    hidden = 0
    for one, other in zip(plain, masked, strict=True):
        asked = other[MASKED_LM_WEIGHTS] > 0
        hidden += (one[INPUT_WORD_IDS] != other[INPUT_WORD_IDS]).any()
        np.put(other[INPUT_WORD_IDS], other[MASKED_LM_POSITIONS][asked], other[MASKED_LM_IDS][asked])
        assert all((one[name] == other[name]).all() for name in one)
    assert hidden > 0.8 * len(plain)


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_we_read_the_original_s_files(tmp_path, compression):
    columns = {
        "input_ids": [2, 7, 4, 3, 8, 3, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 1, 0, 0],
        "segment_ids": [0, 0, 0, 0, 1, 1, 0, 0],
        "masked_lm_positions": [2, 0, 0],
        "masked_lm_ids": [9, 0, 0],
        "masked_lm_weights": [1.0, 0.0, 0.0],
        "next_sentence_labels": [1],
    }
    files = [tmp_path / name for name in ("one.tfrecord", "two.tfrecord")]
    for file in files:
        write_examples(file, [example(columns)], compression)
    rows = rows_of(files)
    assert len(rows) == 2 and len(rows_of(files[0])) == 1
    assert rows[0][INPUT_WORD_IDS].tolist() == columns["input_ids"]
    assert rows[0][INPUT_TYPE_IDS].tolist() == columns["segment_ids"]
    assert rows[0][MASKED_LM_WEIGHTS].tolist() == [1, 0, 0] and rows[0][NEXT_SENTENCE_LABEL] == 1


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_the_bytes_of_examples_are_those_of_protobuf(rows):
    draw = np.random.default_rng(rows)
    columns = {
        "next": draw.integers(0, 2, rows).astype("int32"),
        "ids": draw.integers(0, 1 << 30, (rows, 130)).astype("int32"),  # a length of two bytes
        "below zero": draw.integers(-(1 << 62), 1 << 62, (rows, 2)),
        "weights": draw.normal(size=(rows, 5)).astype("float32"),
        "nothing": np.zeros((rows, 0), "int32"),
    }
    in_graph = tf.function(serialize_examples, autograph=False)
    made = in_graph({name: tf.constant(values) for name, values in columns.items()})
    wanted = [example({name: values[row] for name, values in columns.items()}) for row in range(rows)]
    assert made.numpy().tolist() == wanted


def test_compressed_files_hold_the_same(written, tmp_path):
    write(tmp_path / "gz", compress=True)
    assert (tmp_path / "gz" / "00000.tfrecord.gz").read_bytes()[:2] == b"\x1f\x8b"
    for ours, plain in zip(rows_of(tmp_path / "gz"), rows_of(written[0]), strict=True):
        assert all((ours[name] == plain[name]).all() for name in plain)


GOLDEN = Path(__file__).parent / "golden" / "instances"


def test_the_bytes_of_records_stay(tmp_path):
    """Two shards and their counts, which version 0.1 wrote."""
    masking, settings = Masking(max_predictions=2), {"seq_length": 16, "dupe_factor": 1}
    write(
        tmp_path / "new", texts_of(16), settings=settings, masking=masking, shard_bytes=600, shard_documents=3
    )
    files = sorted(GOLDEN.glob("*.tfrecord"))
    assert len(files) == 2
    for file in files:
        assert (tmp_path / "new" / file.name).read_bytes() == file.read_bytes()
    golden = json.loads((GOLDEN / "manifest.json").read_text())["shards"]
    made = read_manifest(tmp_path / "new")["shards"]
    for new, old in zip(made[:2], golden, strict=True):
        assert {name: new[name] for name in old} | {"sha256": None} == old | {"sha256": None}


@pytest.mark.long
def test_workers_change_nothing(written, tmp_path):
    assert write(tmp_path / "two", workers=2) == written[1]
    assert runs.contents(tmp_path / "two") == runs.contents(written[0])


# -----------------------------------------------------------------------------------------------------------
# Resume


def test_an_interrupted_folder_is_completed(written, tmp_path):
    path, done = tmp_path / "records", []

    def interrupt(documents):
        done.append(documents)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, progress=interrupt)
    kept = ["00000.tfrecord", "00001.tfrecord", "manifest.json"]
    assert sorted(os.listdir(path)) == kept
    with pytest.raises(ValueError, match="is not complete .*; .*resume"):
        read_records(path)
    runs.leave_half(path, "00002.tfrecord")
    times = [(path / name).stat().st_mtime_ns for name in kept[:2]]
    assert write(path) == written[1]
    assert runs.contents(path) == runs.contents(written[0])
    assert [(path / name).stat().st_mtime_ns for name in kept[:2]] == times


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1]), flip_a_bit]
)
def test_a_missing_or_damaged_file_is_written_again(damage, written, copy):
    damage(copy / "00001.tfrecord")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"summary": None}))
    assert write(copy) == written[1]
    assert runs.contents(copy) == runs.contents(written[0])


def test_a_folder_that_was_just_begun_is_resumed(written, copy):
    """The manifest has no shards yet; a temporary file and the files of a Beam pipeline are left."""
    manifest = read_manifest(copy)
    for file in copy.iterdir():
        file.unlink()
    begun = {name: value for name, value in manifest.items() if name not in ("shards", "summary")}
    (copy / "manifest.json").write_text(json.dumps(begun))
    runs.leave_half(copy, "00000.tfrecord")
    (copy / "00099.tfrecord").write_bytes(b"a shard of longer text, from a try with --beam")
    (copy / ".beam").mkdir()
    (copy / ".beam" / "00099.json").write_text("{}")
    with pytest.raises(ValueError, match="is not complete"):
        read_records(copy)
    assert write(copy) == written[1]
    assert runs.contents(copy) == runs.contents(written[0])


def test_a_folder_in_use_is_refused(tmp_path):
    lock = filelock.FileLock(tmp_path / ".lock")  # another object than ours counts as another process
    with lock, pytest.raises(ValueError, match="another process is writing to"):
        write(tmp_path)
    assert [*tmp_path.glob("*.json"), *tmp_path.glob("*.tfrecord")] == []


KILLED = """
import os, signal, sys
sys.path.insert(0, "tests")
from instance_texts import write
from bert_keras.io.paths import to_path
if __name__ == "__main__":
    write(to_path(sys.argv[1]), workers=2, progress=lambda done: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.slow
def test_a_killed_folder_is_completed(written, tmp_path):
    """Neither a worker nor half a file stays behind."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "records")]
    done = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True, timeout=120)
    # `run` returns when nobody holds the pipes any more, the workers included.
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(read_manifest(tmp_path / "records")["shards"]) == 1
    assert write(tmp_path / "records") == written[1]
    assert runs.contents(tmp_path / "records") == runs.contents(written[0])


def test_a_complete_folder_is_left_as_it_is(written):
    times = {file: file.stat().st_mtime_ns for file in written[0].glob("*.tfrecord")}
    assert write(written[0]) == written[1]
    assert {file: file.stat().st_mtime_ns for file in times} == times


OTHER_JOBS = {
    "sampler": {"settings": {"sampler": "contiguous"}},
    "dupe_factor": {"settings": {"dupe_factor": 3}},
    "masking": {"masking": Masking(max_predictions=5, whole_word=True)},
    "seed": {"seed": 1},
    "shard_bytes": {"shard_bytes": 3_000},
    "compress": {"compress": True},
    "text": {"texts": texts_of(seed=1)},
    "vocabulary": {"vocabulary": [*PIECES, "more"]},
}


@pytest.mark.parametrize("field", OTHER_JOBS)
def test_a_folder_of_another_job_is_refused(written, field):
    before = runs.contents(written[0])
    with pytest.raises(ValueError, match=f"was made with another {field}: "):
        write(written[0], **OTHER_JOBS[field])
    assert runs.contents(written[0]) == before


def test_shorter_text_is_refused(written, copy):
    exact = [text for shard in list(shards(texts_of(), size=2_000, least=5))[:-2] for text in shard]
    with pytest.raises(ValueError, match="another text|was made from more text"):
        write(copy, exact)
    assert runs.contents(copy) == runs.contents(written[0])


@pytest.mark.parametrize("more", [0, 1])
def test_longer_text_is_refused(tmp_path, more):
    """Also where it goes on after the last shard of a complete folder, whose text is all there."""
    groups = list(shards([*texts_of(), *texts_of(seed=1)], size=2_000, least=5))
    first = [text for shard in groups[:4] for text in shard]
    write(tmp_path / "copy", first)
    before = runs.contents(tmp_path / "copy")
    with pytest.raises(ValueError, match="was made from less text" if more else "another text"):
        write(tmp_path / "copy", [*first, *groups[4]] if more else [*first, groups[4][0]])
    assert runs.contents(tmp_path / "copy") == before


# -----------------------------------------------------------------------------------------------------------
# Folders, files and text that are wrong


@pytest.mark.parametrize(
    ("tokenizer", "field"),
    [(WordPiece([*PIECES, "more"]), "vocabulary"), (WordPiece(PIECES, lower_case=False), "lower_case")],
)
def test_another_tokenizer_is_named(written, tokenizer, field):
    with pytest.raises(ValueError, match=f"was made with another {field}: "):
        read_records(written[0], tokenizer=tokenizer)
    wanted = hashlib.sha256(("\n".join(PIECES) + "\n").encode()).hexdigest()
    assert read_manifest(written[0])["vocabulary"] == wanted


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="is neither empty nor a folder of instances"):
        write(tmp_path)
    with pytest.raises(ValueError, match=r"thesis.tex has no readable TFRecord \(it is empty\)"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "match"),
    [
        ("00001.tfrecord", lambda file: os.truncate(file, 99), r"00001.tfrecord has 99 bytes, expected \d+"),
        ("00001.tfrecord", Path.unlink, "00001.tfrecord has 0 bytes"),
        ("manifest.json", lambda file: file.write_text("{"), "is not a JSON file"),
    ],
)
def test_damaged_files_are_named(copy, name, damage, match):
    damage(copy / name)
    with pytest.raises(ValueError, match=match):
        read_records(copy)


NAMES = ("input_ids", "input_mask", "segment_ids", "next_sentence_labels", "masked_lm_ids")
HALF_A_MASK = example(dict.fromkeys(NAMES, np.zeros(1, int)))


@pytest.mark.parametrize(
    ("record", "match"),
    [
        (b"no example", "has no readable TFRecord"),
        (example({}), "has no input_ids, input_mask, segment_ids, next_sentence_labels; give"),
        (HALF_A_MASK, "has masks without masked_lm_positions, masked_lm_weights; give"),
    ],
)
def test_other_records_are_named(tmp_path, record, match):
    write_examples(tmp_path / "a.tfrecord", [record])
    with pytest.raises(ValueError, match=match):
        read_records(tmp_path / "a.tfrecord")


def test_other_files_are_named(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"no records")
    with pytest.raises(ValueError, match="has no readable TFRecord"):
        read_records(tmp_path / "a.tfrecord")
    with pytest.raises(FileNotFoundError, match="there is no"):
        read_records(tmp_path / "none")


@pytest.mark.long
def test_one_document_has_no_random_next(tmp_path):
    """The error of a worker is the error of the call."""
    message = "next_sentence needs 2 documents with text and there is 1; separate documents by blank lines"
    with pytest.raises(ValueError, match=message):
        write(tmp_path, texts_of(1), workers=2)


def test_one_document_is_enough_for_others(tmp_path):
    for sampler in ("sentence_order", "full_sentences", "contiguous"):
        assert write(tmp_path / sampler, texts_of(1), settings={"sampler": sampler}).instances


def test_no_text_is_named(tmp_path):
    with pytest.raises(ValueError, match="0 documents gave no instance"):
        write(tmp_path, [])


def test_blank_lines_between_sentences_cause_a_warning(tmp_path):
    """A blank line after every sentence makes each a document: no sentence has a next one."""
    apart = [[line] for text in texts_of() for line in text]
    summary = write(tmp_path / "a", apart)
    assert summary.label_rate == 1
    assert re.match(r"100.0% of the labels are 1, .* 50 %", *summary.warnings)
    assert read_manifest(tmp_path / "a")["summary"]["warnings"] == list(summary.warnings)
    with pytest.raises(ValueError, match=r"gave no instance and \d+ chunks of one segment were skipped"):
        write(tmp_path / "b", apart, settings={"strict": True})


LONG = [[" ".join(["the"] * 900)], [" ".join(["the"] * 900)]]  # no line fits into an instance
CHINESE = [[" ".join("好坏暖") for _ in range(4)] for _ in range(6)]


@pytest.mark.parametrize(
    ("texts", "changes", "counts", "warning"),
    [
        (LONG, {}, (1800, 0), r"9\d.\d% of the tokens \(1,\d\d\d\) are in no instance: .* lines=paragraph"),
        (LONG, {"sampler": "full_sentences"}, (1800, 0), None),
        (texts_of(), {"sampler": "contiguous"}, (None, 0), None),
        ([["the ☃ ☃"] * 4] * 6, {"sampler": "contiguous"}, (72, 48), r"66.7% of the tokens are \[UNK\]"),
    ],
    ids=["long lines", "split", "whole", "unknown"],
)
def test_text_that_is_lost_is_counted_and_named(tmp_path, texts, changes, counts, warning):
    summary = write(tmp_path / "a", texts, settings={"dupe_factor": 1} | changes)
    assert counts == (summary.tokens if counts[0] else None, summary.unknown)
    shown = [line for line in summary.warnings if "labels" not in line]
    assert bool(shown) == bool(warning) and all(re.match(warning, line) for line in shown)
    assert (summary.cut > 0) == ("in no instance" in str(warning))


def test_a_text_of_unknown_words_alone_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"all of the tokens are \[UNK\], so there is nothing to predict"):
        write(tmp_path, [["☃ ☃"] * 4] * 6)


def test_whole_words_need_a_segmenter_in_chinese(tmp_path):
    vocabulary = (*PIECES, *"好坏暖")
    known = {"vocabulary": vocabulary, "masking": Masking(whole_word=True)}
    found = [
        write(tmp_path / name, CHINESE, **known, **more).warnings
        for name, more in (("without", {}), ("with", {"segment": str.split}))
    ]
    shown = [[line for line in lines if "whole_word" in line] for lines in found]
    assert re.match("whole_word masks single Chinese characters, 100.0% .* give a segmenter", *shown[0])
    assert not shown[1]


@pytest.mark.long
def test_a_full_disk_leaves_the_files_before_and_no_temporary_ones(tmp_path):
    with runs.full_disk(5_000), pytest.raises(OSError, match=r"cannot write .*00000.tfrecord.*; "):
        write(tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["manifest.json"]
    summary = write(tmp_path / "out")  # the same call, now that there is room
    assert summary == write(tmp_path / "other")


def test_a_file_of_records_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "x.tfrecord"
    with (
        runs.full_disk(1000),
        pytest.raises(OSError, match="cannot write .*x.tfrecord"),
        record_writer(path) as write,
    ):
        write([b"x" * 10_000] * 100)
    assert not [*tmp_path.iterdir()]
    with record_writer(path) as write:
        write([b"x"])
    with pytest.raises(KeyError), record_writer(path) as write:
        raise KeyError  # not of the disk: as it is, and the file as it was
    assert [*tmp_path.iterdir()] == [path]
    assert [*tf.data.TFRecordDataset(str(path)).as_numpy_iterator()] == [b"x"]


# -----------------------------------------------------------------------------------------------------------
# Text


def test_segmenters_are_told_apart():
    splits = [functools.partial(str.split, sep=sep) for sep in "ab"]
    names = [describe_segmenter(one) for one in (str.split, str.splitlines, *splits)]
    assert len({*names}) == len(names) and names[0] == "builtins:str.split"


def test_lines_without_tokens_are_left_out():
    texts = [["the cat", "\u200d"], ["\u200d"], ["a dog sat", "big"]]
    found = tokenize_documents(texts, WordPiece(PIECES))
    assert [[segment.tolist() for segment in text] for text in segments_of(found)] == [
        [[5, 7]],
        [[6, 8, 10], [20]],
    ]


def test_real_articles(data_dir):
    """Instances of real text are the second implementation's in length and label."""
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
    corpus = Corpus(data_dir / "corpus" / "enwiki_plain_paragraphs.txt", lines="paragraph")
    texts = tokenize_documents(corpus, tokenizer)
    # All aim at one length: a document's own would bind all of its instances together.
    settings = Sampling(dupe_factor=1, short_seq_prob=0)
    instances, _ = make_instances(texts, seed=[0], settings=settings, separator=tokenizer.special.end)
    plain = [[segment.tolist() for segment in text] for text in segments_of(texts)]
    others = list(original_pairs(plain, seed=1, seq_length=128, short_seq_prob=0, passes=1))
    ours = np.array([[*map(len, one.segments), one.label] for one in each(instances)])
    theirs = np.array([[len(a), len(b), label] for a, b, label in others])
    assert len(ours) > 4_000
    for column in range(3):
        error = np.hypot(scipy.stats.sem(ours[:, column]), scipy.stats.sem(theirs[:, column]))
        assert abs(ours[:, column].mean() - theirs[:, column].mean()) < 4 * error


MEASURE = """
import json, resource, sys
sys.path.insert(0, "tests")
from instance_texts import job
from bert_keras.io.paths import to_path
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.write_records import write_records
if __name__ == "__main__":
    files, vocabulary, path = json.loads(sys.argv[1]), to_path(sys.argv[2]).read_text().splitlines(), to_path(sys.argv[3])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = job(path, vocabulary=vocabulary, settings={"seq_length": 128}, shard_bytes=500_000)
    summary = write_records(Corpus(files, lines="paragraph"), made)
    print(json.dumps([summary.documents, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_corpus(data_dir, tmp_path):
    """Peak resident size with ten times the text grows by less than a tenth."""
    file = data_dir / "corpus" / "enwiki_plain_paragraphs.txt"
    vocabulary, peaks = data_dir / "vocab" / "uncased_30522.txt", []
    for copies in (1, 10):
        arguments = [json.dumps([str(file)] * copies), str(vocabulary), str(tmp_path / str(copies))]
        command = [sys.executable, "-c", MEASURE, *arguments]
        done = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True, check=True)
        documents, before, peak = json.loads(done.stdout.splitlines()[-1])
        assert documents == 100 * copies
        peaks.append(peak)
        print(f"{copies} x the text: {peak} KiB at most, {before} of them before the first line")
    assert peaks[1] < 1.1 * peaks[0]


# -----------------------------------------------------------------------------------------------------------
# The command


@pytest.fixture
def command(tmp_path, capfd):
    """Runs `instances` with further flags on a short text: exit code, output and errors."""
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(runs.texts(6, seed=i)) for i in range(40)))
    fixed = ["--text", tmp_path / "text.txt", "--vocab", tmp_path / "vocab.txt", "--seq-length", "32"]
    return functools.partial(runs.run_command, capfd, "instances", *fixed)


@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_command(tmp_path, command, monkeypatch):
    flags = ["--masks", "--dupe-factor", "2", "--max-predictions", "5", "--workers", "1"]
    code, out, err = command("--output", tmp_path / "out", *flags)
    assert code == 0, err
    rows = rows_of(tmp_path / "out")
    assert "labels that are 1" in out and f"{len(rows):,}" in out
    assert rows[0][MASKED_LM_IDS].shape == (5,)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "letters.py").write_text("def split(line):\n    return list(line)\n")
    segmented = ["--output", tmp_path / "segmented", "--workers", "1", "--segmenter"]
    code, _, err = command(*segmented, "letters:split")
    assert code == 0, err
    row = rows_of(tmp_path / "segmented")[0]
    framed = np.isin(row[INPUT_WORD_IDS], (2, 3))
    assert (row[WORD_STARTS] == row[INPUT_MASK] - framed).all(), "every letter is a word"
    code, _, err = command(*segmented, "letters:none")
    assert code == 1 and "has no attribute 'none'" in err and "give MODULE:NAME" in err


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--seed", "-1"), 1, "--seed is -1; --seed must be a whole number of at least 0"),
        (("--workers", "-1"), 1, "workers is -1; give a number of processes, 1 or more"),
        (("--workers", "0"), 1, "workers is 0; give a number of processes, 1 or more"),
        (("--num-layers", "2"), 2, "unrecognized arguments: --num-layers"),
        (("--share", "0.3"), 1, "--share applies only to static masks; give --masks, or give --share to"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_wrong_flags_leave_no_folder(flags, code, message, tmp_path, command):
    found, _, err = command("--output", tmp_path / "out", *flags)
    assert found == code and message in err and not (tmp_path / "out").exists()
