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
from instance_texts import PIECES, original_pairs, rows_of, texts_of, vocab, write  # noqa: F401

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
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.instance_stream import describe_segmenter, shards, tokenize_documents
from bert_keras.tasks.pretraining.records import read_manifest, read_records
from bert_keras.tasks.pretraining.samplers import make_instances
from bert_keras.tasks.pretraining.write_records import Job, record_writer, write_records
from bert_keras.text.wordpiece import WordPiece

ROOT = Path(__file__).parents[1]


def digests(path):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


@pytest.fixture(scope="module")
def written(tmp_path_factory, vocab):
    """A folder of instances; tests leave it as it is."""
    path = tmp_path_factory.mktemp("instances") / "records"
    return path, write(path, vocab)


def test_files_have_what_the_summary_says(written, vocab):
    path, summary = written
    manifest = read_manifest(path)
    assert len(manifest["shards"]) >= 5
    assert sorted(os.listdir(path)) == [f"{i:05d}.tfrecord" for i in range(len(manifest["shards"]))] + [
        "manifest.json"
    ]
    read = list(read_records(path, tokenizer=WordPiece.from_file(str(vocab))).as_numpy_iterator())
    assert len(read) == summary.instances == sum(shard["instances"] for shard in manifest["shards"])
    assert len(read_records(path)) == summary.instances
    lengths = [row[INPUT_MASK].sum() for row in read]
    assert summary.documents == 60
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
        assert {value.dtype for name, value in row.items() if name != MASKED_LM_WEIGHTS} == {
            np.dtype("int32")
        }


def test_masks_are_all_that_masking_adds(written, vocab, tmp_path):
    """Unmasked files hold the same instances."""
    write(tmp_path / "plain", vocab, masking=None)
    plain, masked = (rows_of(path) for path in (tmp_path / "plain", written[0]))
    assert {*plain[0]} == {*ENCODER_INPUTS, NEXT_SENTENCE_LABEL}
    hidden = 0
    for one, other in zip(plain, masked, strict=True):
        asked = other[MASKED_LM_WEIGHTS] > 0
        hidden += (one[INPUT_WORD_IDS] != other[INPUT_WORD_IDS]).any()
        np.put(other[INPUT_WORD_IDS], other[MASKED_LM_POSITIONS][asked], other[MASKED_LM_IDS][asked])
        assert all((one[name] == other[name]).all() for name in one)
    assert hidden > 0.8 * len(plain)


def google_spec(seq_length, predictions):
    """Reads files like google-research/bert run_pretraining.py."""
    whole = {"input_ids": seq_length, "input_mask": seq_length, "segment_ids": seq_length}
    whole |= {"masked_lm_positions": predictions, "masked_lm_ids": predictions, "next_sentence_labels": 1}
    spec = {name: tf.io.FixedLenFeature([length], tf.int64) for name, length in whole.items()}
    return spec | {"masked_lm_weights": tf.io.FixedLenFeature([predictions], tf.float32)}


def test_the_original_reads_our_files(written):
    files = [str(file) for file in sorted(written[0].glob("*.tfrecord"))]
    raw = tf.data.TFRecordDataset(files).map(lambda r: tf.io.parse_single_example(r, google_spec(32, 5)))
    for theirs, ours in zip(
        raw.as_numpy_iterator(), read_records(written[0]).as_numpy_iterator(), strict=True
    ):
        assert (theirs["input_ids"] == ours[INPUT_WORD_IDS]).all()
        assert (theirs["segment_ids"] == ours[INPUT_TYPE_IDS]).all()
        assert theirs["next_sentence_labels"].tolist() == [ours[NEXT_SENTENCE_LABEL]]
    example = tf.train.Example.FromString(next(iter(tf.data.TFRecordDataset(files))).numpy())
    assert {*example.features.feature} == {*google_spec(32, 5)}


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
    feature = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
        if name == "masked_lm_weights"
        else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in columns.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    files = [str(tmp_path / name) for name in ("one.tfrecord", "two.tfrecord")]
    for file in files:
        with tf.io.TFRecordWriter(file, compression) as writer:
            writer.write(example)
    rows = list(read_records(files).as_numpy_iterator())
    assert len(rows) == 2 and len(list(read_records(files[0]))) == 1
    assert rows[0][INPUT_WORD_IDS].tolist() == columns["input_ids"]
    assert rows[0][INPUT_TYPE_IDS].tolist() == columns["segment_ids"]
    assert rows[0][MASKED_LM_WEIGHTS].tolist() == [1, 0, 0] and rows[0][NEXT_SENTENCE_LABEL] == 1


def test_compressed_files_hold_the_same(written, vocab, tmp_path):
    write(tmp_path / "gz", vocab, compress=True)
    assert (tmp_path / "gz" / "00000.tfrecord.gz").read_bytes()[:2] == b"\x1f\x8b"
    rows = (read_records(path).as_numpy_iterator() for path in (tmp_path / "gz", written[0]))
    assert all((a[name] == b[name]).all() for a, b in zip(*rows, strict=True) for name in a)


@pytest.mark.long
def test_workers_change_nothing(written, vocab, tmp_path):
    summary = write(tmp_path / "two", vocab, workers=2)
    assert summary == written[1]
    assert digests(tmp_path / "two") == digests(written[0])


def test_an_interrupted_folder_is_completed(written, vocab, tmp_path):
    path = tmp_path / "records"
    done = []

    def interrupt(documents):
        done.append(documents)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, vocab, progress=interrupt)
    kept = ["00000.tfrecord", "00001.tfrecord", "manifest.json"]
    assert sorted(os.listdir(path)) == kept
    with pytest.raises(ValueError, match="is not complete .*; .*resume"):
        read_records(path)
    (path / ".00002.tfrecord.1.tmp").write_bytes(b"half a file")
    times = [(path / name).stat().st_mtime_ns for name in kept[:2]]
    assert write(path, vocab) == written[1]
    assert digests(path) == digests(written[0])
    assert [(path / name).stat().st_mtime_ns for name in kept[:2]] == times


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1]), flip_a_bit]
)
def test_a_missing_or_damaged_file_is_written_again(damage, written, vocab, tmp_path):
    shutil.copytree(written[0], tmp_path / "records")
    damage(tmp_path / "records" / "00001.tfrecord")
    manifest = json.loads((tmp_path / "records" / "manifest.json").read_text())
    (tmp_path / "records" / "manifest.json").write_text(json.dumps(manifest | {"summary": None}))
    assert write(tmp_path / "records", vocab) == written[1]
    assert digests(tmp_path / "records") == digests(written[0])


def test_segmenters_are_told_apart():
    names = [
        describe_segmenter(one)
        for one in (
            str.split,
            str.splitlines,
            functools.partial(str.split, sep="a"),
            functools.partial(str.split, sep="b"),
        )
    ]
    assert len({*names}) == len(names) and names[0] == "builtins:str.split"


GOLDEN = Path(__file__).parent / "golden" / "instances"


def test_the_bytes_of_records_stay(tmp_path):
    """Two shards and their counts, which version 0.1 wrote."""
    job = Job(
        path=tmp_path / "new",
        make_tokenizer=functools.partial(WordPiece, PIECES),
        settings=Sampling(seq_length=16, dupe_factor=1),
        masking=Masking(max_predictions=2),
        shard_bytes=600,
        shard_documents=3,
    )
    write_records(texts_of(16), job)
    files = sorted(GOLDEN.glob("*.tfrecord"))
    assert len(files) == 2
    for file in files:
        assert (tmp_path / "new" / file.name).read_bytes() == file.read_bytes()
    golden = json.loads((GOLDEN / "manifest.json").read_text())["shards"]
    made = read_manifest(tmp_path / "new")["shards"]
    assert [shard | {"sha256": None} for shard in made[:2]] == [shard | {"sha256": None} for shard in golden]


def test_a_folder_that_was_just_begun_is_resumed(written, vocab, tmp_path):
    """The manifest has no shards yet; a temporary file and the files of a Beam pipeline are left."""
    path = tmp_path / "records"
    path.mkdir()
    begun = {
        name: value for name, value in read_manifest(written[0]).items() if name not in ("shards", "summary")
    }
    (path / "manifest.json").write_text(json.dumps(begun))
    (path / ".00000.tfrecord.1.tmp").write_bytes(b"half a file")
    (path / "00099.tfrecord").write_bytes(b"a shard of longer text, from a try with --beam")
    (path / ".beam").mkdir()
    (path / ".beam" / "00099.json").write_text("{}")
    with pytest.raises(ValueError, match="is not complete"):
        read_records(path)
    assert write(path, vocab) == written[1]
    assert digests(path) == digests(written[0])


def test_a_folder_in_use_is_refused(vocab, tmp_path):
    lock = filelock.FileLock(tmp_path / ".lock")  # another object than ours counts as another process
    with lock, pytest.raises(ValueError, match="another process is writing to"):
        write(tmp_path, vocab)
    assert [*tmp_path.glob("*.json"), *tmp_path.glob("*.tfrecord")] == []


KILLED = """
import os, signal, sys
sys.path.insert(0, "tests")
from instance_texts import write
if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], workers=2, progress=lambda done: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.slow
def test_a_killed_folder_is_completed(written, vocab, tmp_path):
    """Neither a worker nor half a file stays behind."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "records"), str(vocab)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    # `run` returns when nobody holds the pipes any more, the workers included.
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(read_manifest(tmp_path / "records")["shards"]) == 1
    assert write(tmp_path / "records", vocab) == written[1]
    assert digests(tmp_path / "records") == digests(written[0])


def test_a_complete_folder_is_left_as_it_is(written, vocab):
    times = {file: file.stat().st_mtime_ns for file in written[0].glob("*.tfrecord")}
    assert write(written[0], vocab) == written[1]
    assert {file: file.stat().st_mtime_ns for file in times} == times


REFUSED = {
    "sampler": {"settings": {"sampler": "contiguous"}},
    "dupe_factor": {"settings": {"dupe_factor": 3}},
    "masking": {"masking": Masking(max_predictions=5, whole_word=True)},
    "seed": {"seed": 1},
    "shard_bytes": {"shard_bytes": 3_000},
    "compress": {"compress": True},
    "text": {"texts": texts_of(seed=1)},
}


@pytest.mark.parametrize("field", REFUSED)
def test_another_manifest_is_refused(written, vocab, field):
    before = digests(written[0])
    with pytest.raises(ValueError, match=f"was made with another {field}: "):
        write(written[0], vocab, **REFUSED[field])
    assert digests(written[0]) == before


def test_shorter_text_is_refused(written, vocab, tmp_path):
    shutil.copytree(written[0], tmp_path / "copy")
    exact = [text for shard in list(shards(texts_of(), size=2_000, least=5))[:-2] for text in shard]
    with pytest.raises(ValueError, match="another text|was made from more text"):
        write(tmp_path / "copy", vocab, exact)
    assert digests(tmp_path / "copy") == digests(written[0])


@pytest.mark.parametrize("more", [0, 1])
def test_longer_text_is_refused(written, vocab, tmp_path, more):
    """Also where it goes on after the last shard of a complete folder, whose text is all there."""
    groups = list(shards([*texts_of(), *texts_of(seed=1)], size=2_000, least=5))
    first = [text for shard in groups[:4] for text in shard]
    write(tmp_path / "copy", vocab, first)
    before = digests(tmp_path / "copy")
    with pytest.raises(ValueError, match="was made from less text" if more else "another text"):
        write(tmp_path / "copy", vocab, [*first, *groups[4]] if more else [*first, groups[4][0]])
    assert digests(tmp_path / "copy") == before


def test_another_vocabulary_is_named(written, tmp_path):
    other = tmp_path / "vocab.txt"
    other.write_text("\n".join([*PIECES, "more"]) + "\n")
    with pytest.raises(ValueError, match="was made with another vocabulary: "):
        write(written[0], other)
    with pytest.raises(ValueError, match="was made with another vocabulary: "):
        read_records(written[0], tokenizer=WordPiece.from_file(str(other)))
    cased = WordPiece(PIECES, lower_case=False)
    with pytest.raises(ValueError, match="was made with another lower_case: "):
        read_records(written[0], tokenizer=cased)
    assert (
        read_manifest(written[0])["vocabulary"]
        == hashlib.sha256(("\n".join(PIECES) + "\n").encode()).hexdigest()
    )


def test_a_foreign_folder_is_refused(tmp_path, vocab):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="is neither empty nor a folder of instances"):
        write(tmp_path, vocab)
    with pytest.raises(ValueError, match=r"thesis.tex has no readable TFRecord \(it is empty\)"):
        read_records(tmp_path)


def test_damaged_files_are_named(written, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(written[0], path)
    file = path / "00001.tfrecord"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"00001.tfrecord has \d+ bytes, expected \d+"):
        read_records(path)
    file.unlink()
    with pytest.raises(ValueError, match=r"00001.tfrecord has 0 bytes"):
        read_records(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not a JSON file"):
        read_records(path)


def test_other_files_are_named(tmp_path):
    file = tmp_path / "a.tfrecord"
    file.write_bytes(b"no records")
    with pytest.raises(ValueError, match="has no readable TFRecord"):
        read_records(file)
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(b"no example")
    with pytest.raises(ValueError, match="has no readable TFRecord"):
        read_records(file)
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(tf.train.Example().SerializeToString())
    with pytest.raises(
        ValueError, match="has no input_ids, input_mask, segment_ids, next_sentence_labels; give"
    ):
        read_records(file)
    lengths = {
        "input_ids": 4,
        "input_mask": 4,
        "segment_ids": 4,
        "next_sentence_labels": 1,
        "masked_lm_ids": 4,
    }
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(rows_of_ints(lengths))
    with pytest.raises(ValueError, match="has masks without masked_lm_positions, masked_lm_weights; give"):
        read_records(file)
    with pytest.raises(FileNotFoundError, match="there is no"):
        read_records(tmp_path / "none")


def rows_of_ints(lengths):
    """A serialized tf.Example of zeros, by the length of each feature."""
    lists = {name: tf.train.Int64List(value=[0] * length) for name, length in lengths.items()}
    features = {name: tf.train.Feature(int64_list=one) for name, one in lists.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


# -----------------------------------------------------------------------------------------------------------
# Data that is wrong


@pytest.mark.long
def test_one_document_has_no_random_next(tmp_path, vocab):
    """Said by a worker, it is said as well."""
    message = "next_sentence needs 2 documents with text and there is 1; separate documents by blank lines"
    with pytest.raises(ValueError, match=message):
        write(tmp_path, vocab, texts_of(1), workers=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--seed", "-1"), "seed is -1; seed must be a whole number of at least 0"),
        (("--workers", "-1"), "workers is -1; give a number of processes, 1 or more"),
        (("--workers", "0"), "workers is 0; give a number of processes, 1 or more"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_a_wrong_number_leaves_no_folder(wrong, message, tmp_path, vocab, capfd):
    text = tmp_path / "text.txt"
    text.write_text("One line.\nAnother line.\n\nOne more.\n")
    command = ["instances", "--text", text, "--vocab", vocab, "--output", tmp_path / "out", *wrong]
    code, _, err = runs.run_command(capfd, *command)
    assert code == 1 and message in err and not (tmp_path / "out").exists()


def test_one_document_is_enough_for_others(tmp_path, vocab):
    for sampler in ("sentence_order", "full_sentences", "contiguous"):
        assert write(tmp_path / sampler, vocab, texts_of(1), settings={"sampler": sampler}).instances


def test_no_text_is_named(tmp_path, vocab):
    with pytest.raises(ValueError, match="0 documents gave no instance"):
        write(tmp_path, vocab, [])


def test_blank_lines_between_sentences_cause_a_warning(tmp_path, vocab):
    """A blank line after every sentence makes each a document: no sentence has a next one."""
    apart = [[line] for text in texts_of() for line in text]
    summary = write(tmp_path / "a", vocab, apart)
    assert summary.label_rate == 1
    assert re.match(r"100.0% of the labels are 1, .* 50 %", *summary.warnings)
    assert read_manifest(tmp_path / "a")["summary"]["warnings"] == list(summary.warnings)
    with pytest.raises(ValueError, match=r"gave no instance and \d+ chunks of one segment were skipped"):
        write(tmp_path / "b", vocab, apart, settings={"strict": True})


def test_good_text_has_no_warning(written):
    assert written[1].warnings == ()


# -----------------------------------------------------------------------------------------------------------
# Real text


def test_lines_without_tokens_are_left_out():
    tokenizer = WordPiece(PIECES)
    texts = [["the cat", "\u200d"], ["\u200d"], ["a dog sat", "big"]]
    found = tokenize_documents(texts, tokenizer)
    assert [[segment.tolist() for segment in text] for text in found] == [[[5, 7]], [[6, 8, 10], [20]]]


def test_real_articles(data_dir):
    """Instances of real text are the second implementation's in length and label."""
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
    corpus = Corpus(data_dir / "corpus" / "enwiki_plain_paragraphs.txt", lines="paragraph")
    texts = tokenize_documents(corpus, tokenizer)
    # All aim at one length: a document's own would bind all of its instances together.
    settings = Sampling(dupe_factor=1, short_seq_prob=0)
    instances, _ = make_instances(texts, seed=[0], settings=settings, separator=tokenizer.special.end)
    plain = [[segment.tolist() for segment in text] for text in texts]
    others = list(original_pairs(plain, seed=1, seq_length=128, short_seq_prob=0, passes=1))
    ours = np.array([[*map(len, one.segments), one.label] for one in instances])
    theirs = np.array([[len(a), len(b), label] for a, b, label in others])
    assert len(ours) > 4_000
    for column in range(3):
        error = np.hypot(scipy.stats.sem(ours[:, column]), scipy.stats.sem(theirs[:, column]))
        assert abs(ours[:, column].mean() - theirs[:, column].mean()) < 4 * error


MEASURE = """
import functools, json, resource, sys
from bert_keras.fields import Masking
from bert_keras.text.wordpiece import WordPiece
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.write_records import write_records
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.write_records import record_writer
if __name__ == "__main__":
    files, vocab, out = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    make = functools.partial(WordPiece.from_file, vocab)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    summary = write_records(
        Corpus(files, lines="paragraph"), out, make_tokenizer=make, masking=Masking(), shard_bytes=500_000,
        settings=Sampling(dupe_factor=2),
    )
    print(json.dumps([summary.documents, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_corpus(data_dir, tmp_path):
    """Peak resident size with ten times the text grows by less than a tenth."""
    file, vocab = (
        data_dir / name for name in ("corpus/enwiki_plain_paragraphs.txt", "vocab/uncased_30522.txt")
    )
    peaks = []
    for copies in (1, 10):
        arguments = [json.dumps([str(file)] * copies), str(vocab), str(tmp_path / str(copies))]
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        documents, before, peak = json.loads(done.stdout.splitlines()[-1])
        assert documents == 100 * copies
        peaks.append(peak)
        print(f"{copies} x the text: {peak} KiB at most, {before} of them before the first line")
    assert peaks[1] < 1.1 * peaks[0]


# -----------------------------------------------------------------------------------------------------------
# The command


@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_command(tmp_path, vocab, capfd, monkeypatch):
    text, output = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("\n\n".join("\n".join(runs.texts(6, seed=i)) for i in range(40)))
    command = ["instances", "--text", text, "--vocab", vocab, "--seq-length", "32", "--workers", "1"]
    settings = ["--masks", "--dupe-factor", "2", "--max-predictions", "5"]
    code, out, err = runs.run_command(capfd, *command, "--output", output, *settings)
    assert code == 0, err
    rows = rows_of(output)
    assert "labels that are 1" in out and f"{len(rows):,}" in out
    assert rows[0][MASKED_LM_IDS].shape == (5,)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "letters.py").write_text("def split(line):\n    return list(line)\n")
    other = [*command, "--output", tmp_path / "segmented", "--segmenter", "letters:split"]
    code, _, err = runs.run_command(capfd, *other)
    assert code == 0, err
    row = rows_of(tmp_path / "segmented")[0]
    framed = np.isin(row[INPUT_WORD_IDS], (2, 3))
    assert (row[WORD_STARTS] == row[INPUT_MASK] - framed).all(), "every letter is a word"
    code, _, err = runs.run_command(capfd, *other, "--num-layers", "2")
    assert code == 2 and "unrecognized arguments: --num-layers" in err
    code, _, err = runs.run_command(capfd, *other, "--dupe-factor", "2", "--share", "0.3")
    assert code == 1 and "--share applies only to static masks; give --masks, or give --share to" in err
    code, _, err = runs.run_command(capfd, *other[:-1], "letters:none")
    assert code == 1 and "has no attribute 'none'" in err and "give MODULE:FUNCTION" in err


@pytest.mark.long
def test_a_full_disk_leaves_the_files_before_and_no_temporary_ones(vocab, tmp_path):
    with runs.full_disk(5_000), pytest.raises(OSError, match=r"cannot write .*00000.tfrecord.*; "):
        write(tmp_path / "out", vocab)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["manifest.json"]
    summary = write(tmp_path / "out", vocab)  # the same call, now that there is room
    assert summary == write(tmp_path / "other", vocab)


def test_a_full_disk_leaves_no_temporary_file(tmp_path):
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
