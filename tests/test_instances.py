"""Instances of documents: against a second implementation, as files and as a stream, on real text."""

import functools
import hashlib
import json
import os
import random
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
from bert_keras.settings import Masking
from bert_keras.text.wordpiece import WordPiece
from tasks.pretraining.corpus import Corpus
from tasks.pretraining.manifest import read_manifest
from tasks.pretraining.read_records import read_records
from tasks.pretraining.samplers import SAMPLERS, make_instances
from tasks.pretraining.sources import check_batch
from tasks.pretraining.stream import Place, shards, stream, tokenize_documents
from tasks.pretraining.write_records import write_records
from tasks.settings import Sampling
from tasks.tfrecord import record_writer

ROOT = Path(__file__).parents[1]
SEP = 0  # in the documents below, whose ids are from 1
DOCUMENT, SEGMENT = 1_000_000, 1_000  # an id tells where it comes from: document, segment and place


def documents(count=200, *, seed=0, segments=(1, 20), pieces=(1, 40)):
    """Documents whose ids are all different and rise."""
    draw = random.Random(seed)
    return [
        [
            np.arange(draw.randint(*pieces), dtype="int32") + (d + 1) * DOCUMENT + s * SEGMENT
            for s in range(draw.randint(*segments))
        ]
        for d in range(count)
    ]


def made(sampler, texts=None, *, seed=1, **settings):
    settings = Sampling(sampler=sampler, **{"dupe_factor": 1, **settings})
    return make_instances(texts or documents(), seed=[seed], settings=settings, separator=SEP)


# -----------------------------------------------------------------------------------------------------------
# The pairs of the original, piece by piece


def original_pairs(texts, *, seed, seq_length, short_seq_prob, passes):
    """(A, B, label) as Devlin et al. describe them, one draw and one piece at a time."""
    draw = random.Random(seed)
    room = seq_length - 3
    for _ in range(passes):
        for mine, text in enumerate(texts):
            aim = draw.randint(2, room) if draw.random() < short_seq_prob else room
            waiting = list(text)
            while waiting:
                chunk = [waiting.pop(0)]
                while waiting and sum(map(len, chunk)) < aim:
                    chunk.append(waiting.pop(0))
                cut = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [piece for segment in chunk[:cut] for piece in segment]
                b = []
                label = 1 if len(chunk) == 1 else draw.choice((0, 1))
                if label:
                    for _ in range(10):
                        other = draw.randrange(len(texts))
                        if other != mine:
                            break
                    place = draw.randrange(len(texts[other]))
                    while place < len(texts[other]) and (not b or len(b) < aim - len(a)):
                        b.extend(texts[other][place])
                        place += 1
                    waiting = chunk[cut:] + waiting
                else:
                    b = [piece for segment in chunk[cut:] for piece in segment]
                while len(a) + len(b) > room:
                    longer = a if len(a) > len(b) else b
                    longer.pop(0 if draw.random() < 0.5 else -1)
                yield a, b, label


MEASURES = {
    "length of A, where [SEP] is": lambda a, b, label: len(a),
    "length of B": lambda a, b, label: len(b),
    "length of both": lambda a, b, label: len(a) + len(b),
    "place of A's first piece in its segment": lambda a, b, label: a[0] % SEGMENT,
    "place of B's last piece in its segment": lambda a, b, label: b[-1] % SEGMENT,
    "segment where B starts": lambda a, b, label: b[0] % DOCUMENT // SEGMENT,
    "documents from A to B": lambda a, b, label: b[0] // DOCUMENT - a[0] // DOCUMENT,
    "label": lambda a, b, label: label,
}


@pytest.fixture(scope="module")
def both_implementations():
    """Pairs of this implementation and of the other, of two passes over 1,000 documents."""
    texts, settings = documents(1_000), {"seq_length": 64, "short_seq_prob": 0.1}
    ours, _ = made("next_sentence", texts, dupe_factor=2, **settings)
    theirs = original_pairs([[s.tolist() for s in text] for text in texts], seed=2, passes=2, **settings)
    return [(*one.segments, one.label) for one in ours], list(theirs)


@pytest.mark.parametrize("name", MEASURES)
def test_pairs_are_the_original_s(both_implementations, name):
    ours, theirs = ([MEASURES[name](*pair) for pair in pairs] for pairs in both_implementations)
    assert len(ours) > 9_000 and abs(len(ours) / len(theirs) - 1) < 0.03
    assert scipy.stats.ks_2samp(ours, theirs).pvalue > 0.001
    error = np.hypot(scipy.stats.sem(ours), scipy.stats.sem(theirs))
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error


def test_random_next_is_from_another_document(both_implementations):
    for a, b, label in both_implementations[0]:
        assert {*a // DOCUMENT}.isdisjoint(b // DOCUMENT) == (label == 1)


def test_two_documents_are_enough():
    instances, _ = made("next_sentence", documents(2, segments=(50, 50)), dupe_factor=20)
    pairs = [{*np.concatenate(one.segments) // DOCUMENT} for one in instances if one.label]
    assert len(pairs) > 100 and all(pair == {1, 2} for pair in pairs)


def sampled(name, texts, **settings):
    """The output of a sampler, in order, before pairs are cut."""
    settings = Sampling(sampler=name, **settings)
    return list(SAMPLERS[name].sample(texts, np.random.default_rng(3), settings=settings, separator=SEP))


def whole(texts):
    return np.concatenate([segment for text in texts for segment in text]).tolist()


def test_unused_segments_are_put_back():
    """A, and B where it is A's own next, are all of the text once."""
    texts = documents()
    found = [segment for one in sampled("next_sentence", texts) for segment in one.segments[: 2 - one.label]]
    assert np.concatenate(found).tolist() == whole(texts)


def test_pairs_fit_and_lose_either_end():
    instances, _ = made("next_sentence", documents(pieces=(30, 200)), seq_length=32, dupe_factor=5)
    assert {sum(map(len, one.segments)) for one in instances} == {29}
    starts = np.array([[ids[0] % SEGMENT > 0 for ids in one.segments] for one in instances])
    assert (np.mean(starts, axis=0) > 0.9).all()  # what loses so much does so on both sides
    assert min(len(ids) for one in instances for ids in one.segments) == 14


def test_strict_labels_are_even():
    texts = documents(2_000, segments=(1, 6))
    loose, _ = made("next_sentence", texts)
    strict, skipped = made("next_sentence", texts, strict=True)
    labels = np.array([one.label for one in strict])
    assert len(labels) > 2_000 and skipped > 0
    assert abs(np.mean(labels) - 0.5) < 3 * 0.5 / np.sqrt(len(labels))
    assert np.mean([one.label for one in loose]) > 0.55  # what it is strict about


def sentence_pairs(texts, draws, *, strict):
    """(A, B, label) one sentence at a time, as Liu et al. describe SENTENCE-PAIR; None for a sentence that is skipped."""
    for mine, text in enumerate(texts):
        others = texts[mine + 1 :] + texts[:mine]
        waiting = list(text)
        while waiting:
            a = waiting.pop(0)
            if waiting and draws.random() >= 0.5:
                yield a, waiting.pop(0), 0
            elif waiting or not strict:
                other = others[draws.integers(len(others))]
                yield a, other[draws.integers(len(other))], 1
            else:
                yield None


@pytest.mark.parametrize("strict", [False, True])
def test_sentence_pairs_are_single_sentences(strict):
    texts = documents(300, segments=(1, 6))
    ours = sampled("sentence_pair", texts, strict=strict)
    theirs = list(sentence_pairs(texts, np.random.default_rng(3), strict=strict))
    assert len(ours) == len(theirs) > 700 and (None in theirs) == strict
    for one, wanted in zip(ours, theirs, strict=True):
        found = None if one is None else (*(ids.tolist() for ids in one.segments), one.label)
        assert found == (wanted and (wanted[0].tolist(), wanted[1].tolist(), wanted[2]))


def test_long_sentences_of_a_pair_are_cut():
    instances, _ = made("sentence_pair", documents(50, pieces=(1, 60)), seq_length=32)
    assert max(sum(map(len, one.segments)) for one in instances) == 29
    for one in instances:
        assert all(len({*ids // SEGMENT}) == 1 for ids in one.segments), "one sentence each"
        follows = one.segments[1][0] // SEGMENT - one.segments[0][0] // SEGMENT == 1
        assert follows == (one.label == 0)


def test_strict_sentence_pairs_have_even_labels():
    texts = documents(2_000, segments=(1, 6))
    loose, _ = made("sentence_pair", texts)
    strict, _ = made("sentence_pair", texts, strict=True)
    labels = np.array([one.label for one in strict])
    assert abs(np.mean(labels) - 0.5) < 3 * 0.5 / np.sqrt(len(labels))
    assert np.mean([one.label for one in loose]) > 0.55


def test_sentence_order_swaps_half():
    instances, skipped = made("sentence_order", documents(2_000))
    labels = np.array([one.label for one in instances])
    assert abs(np.mean(labels) - 0.5) < 3 * 0.5 / np.sqrt(len(labels)) and skipped > 0
    for first, second in (one.segments[:: -1 if one.label else 1] for one in instances):
        assert first[-1] < second[0] and first[0] // DOCUMENT == second[0] // DOCUMENT
    texts = documents(segments=(2, 20))
    kept = [one.segments[:: -1 if one.label else 1] for one in sampled("sentence_order", texts) if one]
    assert set(np.concatenate([ids for pair in kept for ids in pair]).tolist()) <= set(whole(texts))


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.3])
@pytest.mark.parametrize("pieces", [(1, 40), (1, 200)])
@pytest.mark.parametrize("name", ["contiguous", "full_sentences"])
def test_rows_have_every_token_once(name, pieces, short_seq_prob):
    texts = documents(pieces=pieces)
    rows = [one.segments[0] for one in sampled(name, texts, seq_length=64, short_seq_prob=short_seq_prob)]
    text = np.concatenate(rows)
    assert text[text != SEP].tolist() == whole(texts)
    assert max(map(len, rows)) == 62
    assert all(row[0] != SEP != row[-1] for row in rows)


def test_contiguous_rows_are_from_one_document():
    instances, _ = made("contiguous", seq_length=64)
    assert all(len({*one.segments[0] // DOCUMENT}) == 1 for one in instances)


def test_full_sentences_run_into_the_next_document():
    texts = documents(segments=(1, 4))
    rows = [one.segments[0] for one in sampled("full_sentences", texts, seq_length=64, short_seq_prob=0)]
    for row in rows:
        ids = row[row != SEP]
        owners = ids // DOCUMENT
        changes = np.flatnonzero(np.diff(owners)) + 1
        assert np.flatnonzero(row == SEP).tolist() == (changes + np.arange(len(changes))).tolist()
    assert np.mean([SEP in row for row in rows]) > 0.4
    # Greedy: the segment that opens the next row did not fit.
    lengths = {segment[0]: len(segment) for text in texts for segment in text}
    for row, following in zip(rows[:-1], rows[1:], strict=True):
        apart = following[0] // DOCUMENT != row[-1] // DOCUMENT
        assert len(row) + apart + lengths[following[0]] > 62


def test_rows_are_shorter_at_random():
    for name in ("contiguous", "next_sentence"):
        full, short = (
            made(name, documents(segments=(100, 100), pieces=(3, 9)), short_seq_prob=p)[0] for p in (0, 1)
        )
        means = [np.mean([sum(map(len, one.segments)) for one in ones]) for ones in (full, short)]
        assert means[0] > 115 and 30 < means[1] < 85, name


@pytest.mark.parametrize("name", SAMPLERS)
def test_instances_depend_on_the_seed(name):
    def ids(seed):
        return [np.concatenate(one.segments).tolist() for one in made(name, seed=seed)[0]]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_passes_differ():
    once, twice = (made("next_sentence", dupe_factor=n)[0] for n in (1, 2))
    assert 1.8 < len(twice) / len(once) < 2.2
    pairs = {tuple(np.concatenate(one.segments).tolist()) for one in twice}
    assert len(pairs) > 1.5 * len(once)


def test_shards_hold_enough():
    texts = [["x" * 10]] * 95
    assert [len(shard) for shard in shards(texts, size=200, least=5)] == [20, 20, 20, 20, 15]
    assert [len(shard) for shard in shards(texts, size=1, least=30)] == [30, 30, 35]
    assert [len(shard) for shard in shards(texts, size=1, least=1000)] == [95]
    assert list(shards([], size=1, least=1)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq_length": 4},
        {"short_seq_prob": 1.1},
        {"sampler": "random"},
        {"strict": True, "sampler": "contiguous"},
        {"dupe_factor": 0},
    ],
    ids=str,
)
def test_wrong_settings_are_named(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name} is .*; {name} must be"):
        Sampling(**wrong)


# -----------------------------------------------------------------------------------------------------------
# Files

WORDS = "the a cat dog bird sat ran flew on in mat tree sky and . big small old red blue".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    file = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n")
    return file


def texts_of(count=60, *, seed=0):
    draw = random.Random(seed)
    return [
        [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(draw.randint(10, 30))]
        for _ in range(count)
    ]


def write(path, vocab, texts=None, **options):
    settings = {"seq_length": 32, "dupe_factor": 2} | options.pop("settings", {})
    known = {"shard_bytes": 2_000, "shard_documents": 5, "masking": Masking(max_predictions=5)}
    return write_records(
        texts_of() if texts is None else texts,
        path,
        make_tokenizer=functools.partial(WordPiece.from_file, str(vocab)),
        settings=Sampling(**settings),
        **known | options,
    )


def rows_of(path):
    """All records as arrays that can be written to."""
    return [
        {name: np.array(value) for name, value in row.items()}
        for row in read_records(path).as_numpy_iterator()
    ]


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
    with pytest.raises(ValueError, match="is not complete; .*resume"):
        read_records(path)
    (path / "00002.tfrecord.1.tmp").write_bytes(b"half a file")
    times = [(path / name).stat().st_mtime_ns for name in kept[:2]]
    assert write(path, vocab) == written[1]
    assert digests(path) == digests(written[0])
    assert [(path / name).stat().st_mtime_ns for name in kept[:2]] == times


GOLDEN = Path(__file__).parent / "golden" / "instances"


def write_golden(path):
    """The call that version 0.1 was interrupted in, after two of its shards."""
    return write_records(
        texts_of(16),
        path,
        make_tokenizer=functools.partial(WordPiece, PIECES),
        settings=Sampling(seq_length=16, dupe_factor=1),
        masking=Masking(max_predictions=2),
        shard_bytes=600,
        shard_documents=3,
    )


def test_a_folder_of_an_older_version_is_resumed(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "old")
    done = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "old").glob("*.tfrecord")}
    assert len(done) == len(read_manifest(GOLDEN)["shards"]) == 2
    assert write_golden(tmp_path / "old") == write_golden(tmp_path / "new")
    assert digests(tmp_path / "old") == digests(tmp_path / "new")
    assert {name: (tmp_path / "old" / name).stat().st_mtime_ns for name in done} == done


def test_a_folder_that_was_just_begun_is_resumed(written, vocab, tmp_path):
    """The manifest has no shards yet, and a temporary file is left."""
    path = tmp_path / "records"
    path.mkdir()
    begun = {
        name: value for name, value in read_manifest(written[0]).items() if name not in ("shards", "summary")
    }
    (path / "manifest.json").write_text(json.dumps(begun))
    (path / ".00000.tfrecord.1.tmp").write_bytes(b"half a file")
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
from test_instances import write
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


def test_a_folder_of_another_form_is_named(written, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(written[0], path)
    manifest = read_manifest(path)
    (path / "manifest.json").write_text(json.dumps(manifest | {"format_version": 2}))
    with pytest.raises(ValueError, match="was made with another format_version: 2, not 1; "):
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
    with pytest.raises(FileNotFoundError, match="there is no"):
        read_records(tmp_path / "none")


# -----------------------------------------------------------------------------------------------------------
# Data that is wrong


@pytest.mark.long
def test_one_document_has_no_random_next(tmp_path, vocab):
    """Said by a worker, it is said as well."""
    message = "next_sentence needs 2 documents with text and there is 1; separate documents by blank lines"
    with pytest.raises(ValueError, match=message):
        write(tmp_path, vocab, texts_of(1), workers=2)


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


def test_less_than_a_batch_is_named():
    check_batch(32, batch_size=32)
    with pytest.raises(ValueError, match="there are 31 instances, fewer than a batch of 32"):
        check_batch(31, batch_size=32)


# -----------------------------------------------------------------------------------------------------------
# Without files


def streamed(vocab, texts=None, *, settings=None, **options):
    return stream(
        texts or texts_of(),
        tokenizer=WordPiece.from_file(str(vocab)),
        settings=Sampling(**{"seq_length": 32, "dupe_factor": 1} | (settings or {})),
        **{"seed": 7, "shard_bytes": 2_000, "shard_documents": 5, "epochs": 1} | options,
    )


def rows(dataset):
    return [
        np.append(row[INPUT_WORD_IDS], row[NEXT_SENTENCE_LABEL]).tolist()
        for row in dataset.as_numpy_iterator()
    ]


@pytest.mark.long
def test_a_stream_depends_on_seed_and_epoch(vocab):
    two = rows(streamed(vocab, epochs=2))
    first, second = rows(streamed(vocab)), rows(streamed(vocab, start=Place(1, 0, 0)))
    assert two == first + second
    assert first != second and sorted(map(len, first)) == [33] * len(first)
    assert first != rows(streamed(vocab, seed=8))
    assert rows(streamed(vocab, epochs=None).take(len(two) + 1))[: len(two)] == two


@pytest.mark.long
def test_a_stream_starts_at_any_shard(vocab):
    places = []
    whole = rows(streamed(vocab, epochs=2, visit=places.append))
    assert len(places) > 4 and [place.epoch for place in places] == sorted(place.epoch for place in places)
    for place in (places[1], places[-1]):
        seen = []
        epochs = 2 - place.epoch
        rest = rows(streamed(vocab, start=place, epochs=epochs, visit=seen.append))
        assert rest == whole[place.instances :]
        assert seen == places[places.index(place) :]


def test_a_stream_can_be_read_again(vocab):
    for dataset in (streamed(vocab, epochs=2), streamed(vocab, epochs=None).take(100)):
        assert rows(dataset) == rows(dataset)


def test_a_stream_has_features(vocab):
    spec = streamed(vocab).element_spec
    assert {*spec} == {*ENCODER_INPUTS, NEXT_SENTENCE_LABEL}
    assert all(spec[name] == tf.TensorSpec([32], tf.int32) for name in ENCODER_INPUTS)
    assert spec[NEXT_SENTENCE_LABEL] == tf.TensorSpec([], tf.int32)


def test_a_stream_makes_what_the_pure_function_does(vocab):
    tokenizer, shard = WordPiece.from_file(str(vocab)), list(shards(texts_of(), size=2_000, least=5))[0]
    instances, _ = make_instances(
        tokenize_documents(shard, tokenizer),
        seed=[7, 0, 0],
        settings=Sampling(seq_length=32, dupe_factor=1),
        separator=3,
    )
    for (first, second), row in zip((one.segments for one in instances), rows(streamed(vocab)), strict=False):
        ids = [2, *first, 3, *second, 3]
        assert row[: len(ids)] == ids


def test_a_stream_names_wrong_data(vocab, tmp_path):
    with pytest.raises(ValueError, match="next_sentence needs 2 documents with text and there is 1"):
        streamed(vocab, texts_of(1))
    with pytest.raises(ValueError, match="contiguous needs 1 documents with text and there is 0"):
        streamed(vocab, Corpus(_empty(tmp_path)), settings={"sampler": "contiguous"})


def _empty(folder):
    file = folder / "empty.txt"
    file.write_text("\n\n")
    return file


# -----------------------------------------------------------------------------------------------------------
# Words of a segmenter

CHINESE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我爱北京天安门使用语言模型", "play", "##ing", "."]
WORDS_OF = {
    "我爱北京天安门": ["我", "爱", "北京", "天安门"],
    "使用语言模型 playing.": ["使用", "语言", "模型", "playing", "."],
}


def segment(line):
    return WORDS_OF[line]


def test_word_starts_are_a_segmenter_s(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(CHINESE), encoding="utf-8")
    options = {"settings": {"dupe_factor": 1}, "segment": segment, "masking": None}
    write(tmp_path / "records", tmp_path / "vocab.txt", [[*WORDS_OF]] * 8, **options)
    rows = rows_of(tmp_path / "records")
    marks = {
        "我": "1",
        "北": "1",
        "京": "0",
        "安": "0",
        "门": "0",
        "天": "1",
        "play": "1",
        "##ing": "0",
        ".": "1",
    }
    seen = set()
    for row in rows:
        for place, mark in zip(row[INPUT_WORD_IDS], row[WORD_STARTS], strict=True):
            piece = CHINESE[place]
            assert mark == int(marks.get(piece, mark)) and (mark == 0 or not piece.startswith("["))
            seen.add(piece)
    assert seen >= {*marks}


def test_whole_words_of_a_segmenter_are_masked(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(CHINESE), encoding="utf-8")
    masking = Masking(share=0.3, max_predictions=9, hide=1, keep=0, replace=0, whole_word=True)
    options = {"settings": {"dupe_factor": 20}, "segment": segment, "masking": masking}
    write(tmp_path / "records", tmp_path / "vocab.txt", [[*WORDS_OF]] * 8, **options)
    rows = rows_of(tmp_path / "records")
    hidden = [{*(CHINESE[i] for i in row[MASKED_LM_IDS][row[MASKED_LM_WEIGHTS] > 0])} for row in rows]
    assert sum("北" in pieces for pieces in hidden) > 20
    for word in ("北京", "天安门", "语言"):
        assert all({*word} <= pieces or not {*word} & pieces for pieces in hidden), word
    assert WORD_STARTS not in rows[0]


def test_a_stream_has_word_starts(tmp_path):
    features = stream(
        [[*WORDS_OF]] * 3,
        tokenizer=WordPiece(CHINESE),
        settings=Sampling(seq_length=32, sampler="contiguous", short_seq_prob=0, dupe_factor=1),
        segment=segment,
        seed=0,
        epochs=1,
    )
    ids, marks = (
        [row[name] for row in features.as_numpy_iterator()] for name in (INPUT_WORD_IDS, WORD_STARTS)
    )
    expected = [2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 3]
    starts = [0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert [row.tolist() for row in ids] == [expected + [0] * 14] * 3
    assert [row.tolist() for row in marks] == [starts + [0] * 14] * 3


def test_words_that_are_not_in_the_line_are_named():
    tokenizer = WordPiece(CHINESE)
    with pytest.raises(
        ValueError, match="the segmenter gives '京', which is not in the rest of the line, '爱'"
    ):
        tokenize_documents([["我爱"]], tokenizer, segment=lambda line: ["我", "京"])


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
from bert_keras.settings import Masking
from bert_keras.text.wordpiece import WordPiece
from tasks.pretraining.corpus import Corpus
from tasks.pretraining.write_records import write_records
from tasks.settings import Sampling
from tasks.tfrecord import record_writer
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
    settings = ["--masks", "--set", "dupe_factor=2", "max_predictions=5"]
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
    code, _, err = runs.run_command(capfd, *other, "--set", "num_layers=2")
    assert code == 1 and "unknown setting num_layers; instances accepts" in err
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
        for _ in range(100):
            write(b"x" * 10_000)
    assert not [*tmp_path.iterdir()]
    with record_writer(path) as write:
        write(b"x")
    with pytest.raises(KeyError), record_writer(path) as write:
        raise KeyError  # not of the disk: as it is, and the file as it was
    assert [*tmp_path.iterdir()] == [path]
    assert [*tf.data.TFRecordDataset(str(path)).as_numpy_iterator()] == [b"x"]
