"""Each of several workers of a pre-training makes its own rows of every batch; together they are the batches of one process."""

import functools

import numpy as np
import pretrainings
import pytest
import runs
import tensorflow as tf

from bert_keras.features import ALL_ROWS, INPUT_WORD_IDS, WorkerRows
from bert_keras.fields import Masking
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining import instance_stream
from bert_keras.tasks.pretraining.instance_sources import RecordInstances, TextInstances, make_batches
from bert_keras.tasks.pretraining.instance_stream import InstanceMaker
from bert_keras.tasks.pretraining.model import make_objectives
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.pretraining.records import read_records
from bert_keras.text.masking import Pieces
from bert_keras.text.wordpiece import WordPiece

BATCH, STEPS = 8, 12
TOKENIZER = WordPiece(runs.VOCABULARY)
N_GRAMS = {"max_ngram": 3, "whole_word": True}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """About 60 instances, so that STEPS batches end in the second epoch."""
    texts = pretrainings.documents(12, lines=(4, 7))
    folder = tmp_path_factory.mktemp("records")
    masking = Masking(max_predictions=5)
    return {
        name: pretrainings.write(folder / name, texts=texts, settings={"dupe_factor": 1}, masking=masked)
        for name, masked in (("unmasked", None), ("masked", masking))
    }


def source_of(kind, recipe, records):
    if kind != "documents":
        return RecordInstances([records[kind]], None, recipe=recipe, tokenizer=TOKENIZER)
    made = TextInstances(
        pretrainings.documents(30), None, recipe=recipe, tokenizer=TOKENIZER, segment=None, workers=1
    )
    small = made._stream
    made._stream = functools.partial(small, shard_bytes=2_000, shard_documents=5)
    return made


def batches(kind, records, *, worker_rows=ALL_ROWS, done=0, place=None, name="bert", **changes):
    """The batches from step `done` on, and their source."""
    recipe = RECIPES[name].changed(**pretrainings.SMALL | {"batch_size": BATCH} | changes)
    source = source_of(kind, recipe, records)
    made = make_batches(
        source.train(0, skip=done * BATCH, place=place, worker_rows=worker_rows),
        objectives=make_objectives(recipe, 32, pieces=Pieces.of(TOKENIZER)),
        vocab_size=TOKENIZER.vocab_size,
        batch_size=BATCH,
        seed=1,
        start=done,
        worker_rows=worker_rows,
    )
    return list(made.take(STEPS - done).as_numpy_iterator()), source


def joined(parts):
    """The batches of one process from those of all parts."""
    return [
        tf.nest.map_structure(lambda *rows: np.concatenate(rows), *those)
        for those in zip(*parts, strict=True)
    ]


def assert_equal(found, wanted):
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "count", "options"),
    [
        ("documents", 2, {}),
        ("documents", 4, N_GRAMS | {"name": "bert-no-nsp", "random_pieces": "vocabulary"}),
        ("unmasked", 4, {"name": "electra"}),
        ("masked", 2, {}),
    ],
    ids=["text", "text in n-grams", "records", "masked records"],
)
def test_all_parts_together_are_the_whole_batches(kind, count, options, records):
    whole, _ = batches(kind, records, **options)
    parts = [batches(kind, records, worker_rows=WorkerRows(i, count), **options)[0] for i in range(count)]
    assert {len(batch[0][INPUT_WORD_IDS]) for part in parts for batch in part} == {BATCH // count}
    assert_equal(joined(parts), whole)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["documents", "unmasked"])
def test_parts_resume_in_the_middle(kind, records):
    """From the shard that a save of the chief names, which does not begin with a batch."""
    whole, source = batches(kind, records)
    places = {tuple(place): done for done in range(STEPS) if (place := source.place(done * BATCH))}
    for place, done in [*places.items()][-2:] or [(None, 7)]:
        parts = [
            batches(kind, records, worker_rows=WorkerRows(i, 2), done=done, place=place)[0] for i in range(2)
        ]
        assert_equal(joined(parts), whole[done:])
    assert kind == "unmasked" or any(place[2] % BATCH for place in places)


@pytest.mark.parametrize("count", [1, 2])
def test_the_records_of_other_parts_are_not_parsed(count, records, monkeypatch):
    parse, parsed = tf.io.parse_single_example, []

    def counted(record, spec):
        tf.py_function(lambda one: parsed.append(len(one.numpy())), [record], [])
        return parse(record, spec)

    monkeypatch.setattr(tf.io, "parse_single_example", counted)
    folder = records["unmasked"]
    whole = sum(1 for _ in read_records(folder))
    parsed.clear()
    read = sum(1 for _ in read_records(folder, batch_size=BATCH, worker_rows=WorkerRows(count - 1, count)))
    assert len(parsed) == read == (whole if count == 1 else whole // BATCH * BATCH // count)


def test_the_instances_of_other_parts_are_not_packed(monkeypatch):
    pack, packed = instance_stream.Packer.pack, []

    def counted(packer, instances):
        packed.append(len(instances))
        return pack(packer, instances)

    monkeypatch.setattr(instance_stream.Packer, "pack", counted)
    found = []
    for worker_rows in (ALL_ROWS, WorkerRows(1, 4)):
        packed.clear()
        made = instance_stream.stream(
            pretrainings.documents(30),
            InstanceMaker(tokenizer=TOKENIZER, settings=Sampling(seq_length=32, dupe_factor=1)),
            seed=1,
            epochs=1,
            batch_size=BATCH,
            worker_rows=worker_rows,
        )
        assert sum(1 for _ in made) == sum(packed)
        found.append(sum(packed))
    whole, own = found
    assert own == WorkerRows(1, 4).count_before(whole, BATCH) < whole / 3
