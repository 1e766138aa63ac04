"""Pre-trainings that are refused before they begin."""

import contextlib
import functools
import json
import types

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf
from instance_texts import write_examples
from pretrainings import (  # noqa: F401
    documents,
    google_record,
    planned_lines,
    refused,
    tokenizer,
    train,
    write,
    write_google,
)

from bert_keras.errors import LossDiverged
from bert_keras.features import (
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
)
from bert_keras.fields import Masking
from bert_keras.optimization.objectives import MaskedLM
from bert_keras.optimization.optimizers import AdamW
from bert_keras.tasks.hparams import PretrainHparams
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.model import check_written, longest_step, schedule
from bert_keras.tasks.pretraining.pretrain import _held_out
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.text.masking import Pieces
from bert_keras.text.wordpiece import WordPiece


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """(name in FOLDERS) -> its folder, which tests leave as it is."""
    parent = tmp_path_factory.mktemp("records")
    return functools.cache(lambda name: write(parent / name, **FOLDERS[name]))


HELD_OUT = documents(20, seed=5)
FOLDERS = {
    "plain": {},
    "masked": {"masking": Masking(max_predictions=5)},
    "held-out-masked": {"masking": Masking(max_predictions=5), "texts": HELD_OUT},
    "held-out-order": {"settings": {"sampler": "sentence_order"}, "texts": HELD_OUT},
    "rare": {"masking": Masking(share=0.3, whole_word=True, max_predictions=5)},
    "contiguous": {"settings": {"sampler": "contiguous", "short_seq_prob": 0.0}},
    **{str(length): {"settings": {"seq_length": length}} for length in (24, 40, 64)},
}


# -----------------------------------------------------------------------------------------------------------
# Text and settings


def test_one_document(tmp_path):
    text = tmp_path / "one.txt"
    text.write_text("\n".join(runs.texts(200, seed=0)))
    refused(tmp_path, "next_sentence needs 2 documents with text and there is 1", documents=Corpus(text))


def test_a_batch_that_replicas_do_not_divide(tmp_path, monkeypatch):
    three = types.SimpleNamespace(num_replicas_in_sync=3)
    monkeypatch.setattr("bert_keras.tasks.pretraining.pretrain.strategy", lambda name: three)
    match = "batch_size is 8 and there are 3 replicas; give a multiple of 3"
    refused(tmp_path, match, documents=iter(()))


LARGEST = len(runs.VOCABULARY)
FEW, LONE, LONE_TOO = (
    documents(4, lines=(2, 3)),
    documents(200, lines=(1, 1)),
    documents(20, lines=(1, 1), seed=5),
)
LONG_LINES = [[line * 5 for line in one] for one in documents()]


def no_words(line):
    return ["no words"]


@pytest.mark.parametrize(
    ("match", "options", "changes"),
    [
        ("there are .* instances, fewer than a batch of 64", {"documents": FEW}, {"batch_size": 64}),
        ("all of 200 sentence-pair labels are 1", {"documents": LONE}, {}),
        ("there are 0 instances, fewer than a batch", {"name": "albert", "documents": LONE}, {}),
        ("are 1, .* shorter than seq_length, 8", {"documents": LONG_LINES}, {"seq_length": 8}),
        (f"the vocabulary has {LARGEST} tokens and the encoder 100 embedding rows", {}, {"vocab_size": 100}),
        ("held-out data gives no instance", {"held_out": LONE_TOO}, {"strict": True}),
        ("held_out is 1.5; give a fraction", {"held_out": 1.5}, {}),
        ("held-out documents: next_sentence needs 2", {"documents": documents(20), "held_out": 0.001}, {}),
        ("no words", {"segment": no_words}, {"whole_word": True}),
        ("only masks of whole words", {"segment": str.split}, {}),
        ("segment cannot be sent", {"segment": lambda _: [], "workers": 2}, {"whole_word": True}),
        ("save_every is -1; give a number of steps, or 0", {"save_every": -1}, {}),
        ("patience is 2 and the last phase has no held-out data", {}, {"patience": 2}),
        ("snapshots has 0; give steps from 1 to 40", {"snapshots": [20, 0]}, {"steps": 40}),
        ("snapshots has 41; give steps from 1 to 40", {"snapshots": [20, 41]}, {"steps": 40}),
        ("workers is 0; give a number of processes, 1 or more", {"workers": 0}, {}),
        ("give either documents or records", {"documents": None}, {}),
    ],
)
def test_what_cannot_be_trained_is_refused(match, options, changes, tmp_path):
    refused(tmp_path, match, changes=changes, **options)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("bert", "replaced_weight", 10.0),
        ("albert", "generator_share", 0.5),
        ("ltr-no-nsp", "hide", 0.8),
        ("ltr-no-nsp", "whole_word", True),
        ("ltr-no-nsp", "max_predictions", 5),
    ],
)
def test_settings_that_no_objective_reads(name, setting, value, tmp_path):
    match = f"{setting} does not apply to .*, the objectives of this recipe; leave {setting} out"
    refused(tmp_path, match, name, changes={setting: value}, documents=iter(()))


def test_a_folder_of_something_else_stays_as_it_is(tmp_path):
    started = tmp_path / "checkpoint"
    runs.write_checkpoint(started)
    was = {file.name: file.read_bytes() for file in started.iterdir()}
    with pytest.raises(ValueError, match="checkpoint is neither empty nor a run: it holds config.json"):
        train(started, checkpoint=started)
    assert {file.name: file.read_bytes() for file in started.iterdir()} == was


@pytest.mark.parametrize("changes", [{"vocab_size": 100}, {"seq_length": 64}])
def test_cheap_checks_run_before_the_text_is_read(changes, tmp_path):
    class Unread:
        def __iter__(self):
            raise AssertionError("the text is read")

    refused(tmp_path, "and the encoder", documents=Unread(), changes=changes)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="full is neither empty nor a run: it holds notes.txt"):
        train(tmp_path / "full", documents=Unread())


def test_a_label_rate_far_from_one_half():
    lines = planned_lines(documents=documents(200, lines=(1, 3)))
    assert any("% of" in line and "sentence-pair labels are 1" in line and "50 %" in line for line in lines)


@pytest.mark.parametrize("correction", [False, True])
def test_a_warm_up_that_is_short_for_uncorrected_moments(correction):
    lines = planned_lines(changes={"steps": 2, "bias_correction": correction})
    assert correction is not any("a warm-up of 0 steps" in line and "3.2x" in line for line in lines)


def test_the_longest_step_is_the_optimizer_s():
    hparams = PretrainHparams(steps=300, warmup_proportion=0.2, learning_rate=1e-3)
    weight = keras.Variable(0.0, name="kernel")
    optimizer = AdamW(schedule(hparams), weight_decay=0.0, clip_norm=None)
    places = [0.0]
    for _ in range(hparams.steps):
        optimizer.apply([tf.constant(1.0)], [weight])
        places.append(float(weight.numpy()))
    longest = np.max(np.abs(np.diff(places))) / hparams.learning_rate
    assert longest_step(hparams) == pytest.approx(longest, rel=1e-3) and longest > 3
    assert max(longest_step(one.hparams) for one in RECIPES.values()) < 1.001


def test_held_out_batches_are_padded(tokenizer):
    """For three replicas: 40 instances in batches of 32, whose labels and weights are those of one device."""
    rows = tf.data.Dataset.from_tensors(
        {
            INPUT_WORD_IDS: tf.range(40, dtype="int32"),
            INPUT_MASK: tf.ones(40, "int32"),
            MASKED_LM_POSITIONS: tf.range(2),
            MASKED_LM_IDS: tf.constant([7, 8]),
            MASKED_LM_WEIGHTS: tf.ones(2),
        }
    ).repeat(40)
    source = types.SimpleNamespace(
        held_out=lambda phase: rows,
        reading=lambda phase: contextlib.nullcontext(),
        vocab_size=tokenizer.vocab_size,
    )
    objectives = [MaskedLM(pieces=Pieces.of(tokenizer))]
    made = _held_out(source, 0, objectives, hparams=PretrainHparams(), multiple_of=3)
    weights = [weights["masked_lm"].numpy() for _, _, weights in made]
    assert [len(batch) for batch in weights] == [33, 9]
    assert [batch.sum() for batch in weights] == [2 * 32, 2 * 8]
    assert all(len(batch[INPUT_WORD_IDS]) % 3 == 0 for batch, _, _ in made)


@pytest.mark.parametrize(
    ("step", "log_every", "snapshots"),
    [(10, 20, ()), (4, 4, ()), (3, 20, (3,))],
    ids=["the tenth step", "an entry of the history", "a snapshot"],
)
def test_a_loss_that_is_no_number(step, log_every, snapshots, tmp_path):
    """It is found at every tenth step, and before anything is written."""
    changes = {"learning_rate": 1e30, "clip_norm": None, "warmup_proportion": 0.0, "log_every": log_every}
    with pytest.raises(LossDiverged, match=f"the loss is nan at step {step}; give a lower learning_rate"):
        train(tmp_path / "run", changes=changes, snapshots=snapshots)
    assert not (tmp_path / "run" / "snapshots").exists()


# -----------------------------------------------------------------------------------------------------------
# Records

PHASES = {"phases": ((8, 0.5), (8, 0.5))}


@pytest.mark.parametrize(
    ("name", "training", "held_out", "changes", "match"),
    [
        ("bert", "64", None, {}, "seq_length is 64 and the encoder has 50 positions"),
        ("ltr-no-nsp", "masked", None, {}, "these records have masks, and left to right reads"),
        ("bert", "masked", None, {"short_seq_prob": 0.5}, r"is 0.5, but .* is already written \(.* 0.1\)"),
        ("bert", "masked", None, {"share": 0.3}, r"share is 0.3, but .* already written \(share 0.15\)"),
        ("bert", "masked", None, {"max_predictions": 7}, r"is 7, but .* \(max_predictions 5\)"),
        ("albert", "masked", None, {}, "are from the sampler 'next_sentence' .* sentence_order"),
        ("bert", "plain", 0.1, {}, "held_out is a fraction, but records have no documents"),
        ("bert", "plain", "24", {}, "have 24 positions and the training records 32; give .* of 32"),
        ("bert", "plain 40", "24", PHASES, "records 32 or 40; give"),
        ("ltr-no-nsp", "plain", "held-out-masked", {}, "held-out records .*-masked: these .* have masks"),
        ("bert", "plain", "held-out-masked", {"share": 0.3}, "share is 0.3, but .*-masked is already"),
        ("bert", "plain", "held-out-order", {}, "labels of .*-order are from the sampler 'sentence_order'"),
    ],
)
def test_records_that_are_refused(name, training, held_out, changes, match, records, tmp_path):
    """Also as files of their folders, except for held-out records."""
    sets = [*map(records, training.split())]
    held_out = records(held_out) if isinstance(held_out, str) else held_out
    for given in (sets, [sorted(folder.glob("*.tfrecord")) for folder in sets]):
        refused(tmp_path, match, name, records=given, held_out=held_out, changes=changes)


def test_arguments_that_do_not_fit_records(records, tmp_path):
    folder, other = records("plain"), WordPiece([*runs.VOCABULARY[:-1], "other"])
    refused(tmp_path, "was made with another vocabulary", records=folder, tokenizer=other)
    files = [sorted(folder.glob("*.tfrecord"))]
    refused(tmp_path, "was made with another vocabulary", records=files, tokenizer=other)
    refused(tmp_path, "give segment where the records are written", records=folder, segment=str.split)
    refused(tmp_path, "workers is 2, which applies only to text; leave", records=folder, workers=2)


def _warnings(**options):
    """The warnings about the data: the lines of the recipe's warm-up are others."""
    return [line for line in planned_lines(**options) if "records" in line]


def test_settings_that_are_those_of_the_records(records):
    same = {"share": 0.15, "short_seq_prob": 0.1, "max_predictions": 5}
    assert not _warnings(records=records("masked"), changes=same), "the recipe's 20 are only a bound"


def test_lengths_that_are_not_those_of_the_records(records):
    sets = [records("24"), records("plain")]
    (line,) = _warnings(records=sets[0])
    assert "the settings have sequences of 32 tokens and the records 24; training takes the length" in line
    (line,) = _warnings(records=sets, changes={"phases": ((8, 0.5), (32, 0.5))})
    assert "8, 32 tokens and the records 24, 32;" in line
    assert not _warnings(records=sets, changes={"phases": ((24, 0.5), (32, 0.5))})
    assert not _warnings(records=sets[0], changes={"phases": ((24, 0.5), (24, 0.5))})


def test_masks_of_records_that_are_not_the_recipe_s(records, tmp_path):
    (line,) = _warnings(records=records("rare"))
    assert "rare have share=0.3, whole_word=true, and the recipe share=0.15, whole_word=false" in line
    assert not _warnings(records=records("rare"), changes={"share": 0.3, "whole_word": True})
    google = tmp_path / "file.tfrecord"
    write_google(google, highest=4)
    same = {"max_predictions": 2, "seq_length": 16}
    assert not _warnings(records=[google], changes=same), "unknown rules, two predictions"
    match = r"max_predictions is 3, but .*file.tfrecord is already written \(max_predictions 2\)"
    refused(tmp_path, match, records=[google], changes={"max_predictions": 3})


def test_segments_of_another_recipe_cause_a_warning(records):
    folder = records("contiguous")
    made = {"sampler": "contiguous", "short_seq_prob": 0.0, "strict": False}
    (line,) = check_written(folder, RECIPES["electra"], predictions=None)
    assert line.startswith("warning: the segments of") and "have short_seq_prob=0.0" in line
    same = RECIPES["electra"].changed(**made)
    assert not list(check_written(folder, same, predictions=None))


# -----------------------------------------------------------------------------------------------------------
# Files of records that are wrong, before training or in it

GOOD, LARGE = {"highest": 4}, {"highest": 5000}
ONES, LONGER = GOOD | {"labels": (1,)}, GOOD | {"count": 1, "length": 17}


@pytest.mark.long
@pytest.mark.parametrize(
    ("files", "held_out", "match"),
    [
        ([{"highest": LARGEST}], None, f"is a token of id {LARGEST} and vocab_size is {LARGEST}"),
        ([GOOD | {"count": 1000}, LARGE], None, "1.tfrecord: there is a token with a larger id and"),
        ([GOOD], LARGE, "held-out.tfrecord: there is a token with a larger id and vocab_size is"),
        ([ONES], None, "all of 20 sentence-pair labels are 1"),
        ([GOOD], ONES, "held-out records .*held-out.tfrecord: all of 20 sentence-pair labels are 1"),
        ([GOOD, LONGER], None, "1.tfrecord: a record's features differ in length"),
        ([GOOD | {"count": 1100}, LONGER], None, "1.tfrecord: a record's features differ in length"),
    ],
)
def test_wrong_records_are_named(files, held_out, match, tmp_path):
    """Met before training, or in it. The files are given by arguments of `write_google`."""
    for number, how in enumerate(files):
        write_google(tmp_path / f"{number}.tfrecord", **how)
    options = {}
    if held_out:
        write_google(tmp_path / "held-out.tfrecord", **held_out)
        options = {"held_out": [tmp_path / "held-out.tfrecord"]}
    unreadable(tmp_path, match, sorted(tmp_path.glob("[01].tfrecord")), **options)


def unreadable(tmp_path, match, files, **options):
    with pytest.raises(ValueError, match=match):
        train(tmp_path / "run", records=[files], changes={"steps": 200, "num_layers": 1}, **options)


@pytest.mark.parametrize("count", [20, 1100])
def test_a_file_that_is_cut_short(count, tmp_path):
    file = tmp_path / "file.tfrecord"
    write_google(file, highest=4, count=count)
    file.write_bytes(file.read_bytes()[:-5])
    match = "file.tfrecord: a record is damaged or truncated"
    unreadable(tmp_path, match, [file])
    if count == 20:
        whole = tmp_path / "whole.tfrecord"
        write_google(whole, highest=4)
        unreadable(tmp_path, match, [whole], held_out=[file])


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("next_sentence_labels", 0, "0 numbers in next_sentence_labels; wanted one number"),
        ("input_ids", 15, "15 numbers in input_ids, 16 numbers in input_mask"),
        ("masked_lm_ids", 1, "1 numbers in masked_lm_ids.*wanted one length"),
    ],
)
def test_a_first_record_of_unequal_lengths(name, count, message, tmp_path):
    first = tf.train.Example.FromString(google_record(highest=4))
    del first.features.feature[name].int64_list.value[count:]
    file = tmp_path / "file.tfrecord"
    write_examples(file, [first.SerializeToString(), *[google_record(highest=4)] * 20])
    refused(tmp_path, f"file.tfrecord: the first record has .*{message}", records=[file])


def test_a_manifest_with_another_number_of_instances(tmp_path):
    write(tmp_path / "instances", settings={"seq_length": 16})
    file = tmp_path / "instances" / "manifest.json"
    content = json.loads(file.read_text())
    content["shards"][0]["instances"] += 1
    file.write_text(json.dumps(content))
    match = "instances has another number of instances than its manifest.json says; remove"
    refused(tmp_path, match, records=[tmp_path / "instances"])


def test_text_that_nothing_can_be_predicted_of(tmp_path):
    known, unknown = [["good ☃ ☃"] * 9] * 60, [["☃ ☃"] * 9] * 60
    lines = planned_lines("roberta", documents=known)
    assert any(line.startswith("warning: 66.7% of the sampled tokens are [UNK]") for line in lines)
    refused(
        tmp_path, r"all of the sampled tokens are \[UNK\], so there is nothing", "roberta", documents=unknown
    )
    message = "the held-out data has nothing for masked_lm to predict"
    refused(tmp_path, message, "roberta", documents=known, held_out=unknown)
