"""Pre-training on TFRecord files, ours and Google's."""

import functools
import json

import numpy as np
import pytest
import runs
from pretrainings import documents, train, write, write_google

from bert_keras import checkpoints
from bert_keras.features import INPUT_WORD_IDS
from bert_keras.fields import Masking
from bert_keras.tasks.pretraining.corpus import HashSplit
from bert_keras.tasks.pretraining.records import read_records


@pytest.mark.long
def test_records_are_read_in_random_order_and_from_any_place(tmp_path):
    folder = write(tmp_path / "records")

    in_order = [row[INPUT_WORD_IDS].numpy().tolist() for row in read_records(folder)]
    count = len(in_order)
    rows = functools.partial(_taken, folder, count + 7)
    first = rows(seed=1)
    assert first == rows(seed=1) != rows(seed=2)
    assert sorted(first[:count]) == sorted(in_order) and first[:count] != in_order
    assert first[count:] != first[:7], "another order in the second epoch"
    for skip in (1, 40, count - 1, count, count + 3):
        assert _taken(folder, 4, seed=1, skip=skip) == _taken(folder, skip + 4, seed=1)[skip:]


def _taken(folder, count, **options):
    return [row[INPUT_WORD_IDS].numpy().tolist() for row in read_records(folder, **options).take(count)]


@pytest.mark.long
@pytest.mark.parametrize("masking", [None, Masking(max_predictions=5)])
def test_trains_on_records(masking, tmp_path):
    folder = write(tmp_path / "records", masking=masking, settings={"strict": True})
    held_out = write(tmp_path / "held-out", masking=masking, texts=documents(20, seed=5))
    results = train(tmp_path / "run", records=folder, held_out=held_out)
    losses = [row["masked_lm_loss"] for row in results["history"] if "masked_lm_loss" in row]
    assert losses[-1] < losses[0] - 0.5 and "held_out_next_sentence_accuracy" in results["measures"]


@pytest.mark.long
def test_a_set_of_records_for_each_phase(tmp_path):
    """The second set alone has positions from 24 to 39: only the second phase trains them."""
    sets = [write(tmp_path / str(n), settings={"seq_length": n}) for n in (24, 40)]
    changes = {"phases": ((8, 0.5), (8, 0.5)), "steps": 6, "log_every": 1}
    train(tmp_path / "run", records=sets, changes=changes, snapshots=[3])
    before, after = (
        checkpoints.read(folder).tensors["embeddings/position_embeddings"]
        for folder in (tmp_path / "run" / "snapshots" / "3", tmp_path / "run")
    )
    decay = np.median(after[40:] / before[40:])
    moved = np.abs(after - before * decay).max(axis=1)
    assert (moved[:40] > 1e-4).all() and (moved[40:] < 1e-6).all()
    with pytest.raises(ValueError, match="3 sets of records were given for 2 phases; give one set"):
        train(tmp_path / "other", records=[*sets, sets[0]], changes={"phases": ((8, 0.5), (8, 0.5))})


@pytest.mark.long
@pytest.mark.parametrize(
    ("length", "steps"), [(24, {2, 3}), pytest.param(40, {4, 6}, marks=pytest.mark.slow)]
)
def test_held_out_records_are_evaluated_on_at_their_length(length, steps, tmp_path):
    sets = [write(tmp_path / str(n), settings={"seq_length": n}) for n in (24, 40)]
    held_out = write(tmp_path / "held-out", settings={"seq_length": length}, texts=documents(20, seed=5))
    changes = {"phases": ((8, 0.5), (8, 0.5)), "steps": 6, "eval_every": 2}
    results = train(tmp_path / "run", records=sets, held_out=held_out, changes=changes)
    # A phase ends with an evaluation.
    assert {row["step"] for row in results["history"] if "held_out_masked_lm_loss" in row} == steps
    assert 0 < results["majority_baselines"]["next_sentence_accuracy"] < 1


def test_the_held_out_fraction_follows_each_document_s_hash(tmp_path):
    found = documents(400)
    inside, outside = (list(HashSplit(found, 0.25, inside)) for inside in (True, False))
    assert 60 < len(inside) < 140 and len(inside) + len(outside) == 400
    assert not {map(tuple, inside)} & {map(tuple, outside)}
    assert sorted(inside) == sorted(HashSplit(found[::-1], 0.25, True))
    assert all(document in inside for document in HashSplit(found[:50], 0.1, True)), (
        "a smaller share is part of it"
    )


def test_trains_on_google_s_files(tmp_path):
    write_google(tmp_path / "file.tfrecord", highest=4)
    results = train(tmp_path / "run", records=[tmp_path / "file.tfrecord"])
    assert results["measures"]["masked_lm_loss"] < 1, "all of them ask for token 11"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_files_in_a_folder_are_one_set(tmp_path, capfd):
    folder = tmp_path / "google"
    folder.mkdir()
    for i in range(3):
        write_google(folder / f"tf_examples.tfrecord-{i}", highest=4)
    results = train(tmp_path / "run", records=folder, changes={"steps": 10})
    assert results["steps"] == 10 and len(list(read_records(folder))) == 60
    files = sorted(folder.iterdir())
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(runs.VOCABULARY))
    command = ["pretrain", "--vocab", vocabulary, "--size", "tiny", "--records", *files[:2]]
    settings = ["--steps", "2", "--batch-size", "8", "--phases", "[[16, 0.5], [16, 0.5]]"]
    code, _, err = runs.run_command(capfd, *command, "--output", tmp_path / "two", *settings)
    assert code == 0, err
    both = json.loads((tmp_path / "two" / "checkpoints" / "settings.json").read_text())["records"]
    assert len(both) == 1, "two files are no two phases"
    code, _, err = runs.run_command(capfd, *command, folder, "--output", tmp_path / "mixed", *settings)
    assert code == 1 and "folders and files of records were given" in err
