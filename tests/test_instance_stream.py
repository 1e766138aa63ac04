"""Instances as a stream, whole words of a segmenter, and the rows of each of several workers."""

import functools
import gc
import multiprocessing

import numpy as np
import pretrainings
import pytest
import runs
import tensorflow as tf
from instance_texts import PIECES, WORDS_OF, each, rows, rows_of, segment, texts_of, write

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ALL_ROWS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_WEIGHTS,
    WORD_STARTS,
    WorkerRows,
)
from bert_keras.fields import Masking
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining import instance_stream
from bert_keras.tasks.pretraining.corpus import Corpus, shards
from bert_keras.tasks.pretraining.instance_sources import RecordInstances, TextInstances, make_batches
from bert_keras.tasks.pretraining.instance_stream import InstanceMaker, Place, stream, tokenize_documents
from bert_keras.tasks.pretraining.model import make_objectives
from bert_keras.tasks.pretraining.processes import check_sendable
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.pretraining.records import read_records
from bert_keras.tasks.pretraining.samplers import make_instances
from bert_keras.text.masking import Pieces
from bert_keras.text.wordpiece import WordPiece

# -----------------------------------------------------------------------------------------------------------
# Without files


def maker(pieces=PIECES, *, segment=None, **settings):
    known = {"seq_length": 32, "dupe_factor": 1}
    return InstanceMaker(tokenizer=WordPiece(pieces), settings=Sampling(**known | settings), segment=segment)


def streamed(texts=None, *, settings=None, **options):
    known = {"seed": 7, "shard_bytes": 2_000, "shard_documents": 5, "epochs": 1}
    return stream(texts or texts_of(), maker(**settings or {}), **known | options)


@pytest.mark.long
def test_a_stream_depends_on_seed_and_epoch():
    two = rows(streamed(epochs=2))
    first, second = rows(streamed()), rows(streamed(start=Place(1, 0, 0)))
    assert two == first + second
    assert first != second and sorted(map(len, first)) == [33] * len(first)
    assert first != rows(streamed(seed=8))
    assert rows(streamed(epochs=None).take(len(two) + 1))[: len(two)] == two


@pytest.mark.long
def test_a_stream_starts_at_any_shard():
    places = []
    whole = rows(streamed(epochs=2, visit=places.append))
    assert len(places) > 4 and [place.epoch for place in places] == sorted(place.epoch for place in places)
    for place in (places[1], places[-1]):
        seen = []
        epochs = 2 - place.epoch
        rest = rows(streamed(start=place, epochs=epochs, visit=seen.append))
        assert rest == whole[place.instances :]
        assert seen == places[places.index(place) :]


def test_a_stream_can_be_read_again():
    for dataset in (streamed(epochs=2), streamed(epochs=None).take(100)):
        assert rows(dataset) == rows(dataset)


def test_a_stream_makes_what_the_pure_function_does():
    tokenizer, shard = WordPiece(PIECES), list(shards(texts_of(), size=2_000, least=5))[0]
    instances, _ = make_instances(
        tokenize_documents(shard, tokenizer),
        seed=[7, 0, 0],
        settings=Sampling(seq_length=32, dupe_factor=1),
        separator=3,
    )
    for (first, second), row in zip(
        (one.segments for one in each(instances)), rows(streamed()), strict=False
    ):
        ids = [2, *first, 3, *second, 3]
        assert row[: len(ids)] == ids


def test_a_stream_names_wrong_data(tmp_path):
    with pytest.raises(ValueError, match="next_sentence needs 2 documents with text and there is 1"):
        streamed(texts_of(1))
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="contiguous needs 1 documents with text and there is 0"):
        streamed(Corpus(tmp_path / "empty.txt"), settings={"sampler": "contiguous"})


# -----------------------------------------------------------------------------------------------------------
# Words of a segmenter

CHINESE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我爱北京天安门使用语言模型", "play", "##ing", "."]


def test_word_starts_are_a_segmenter_s(tmp_path):
    options = {"settings": {"dupe_factor": 1}, "segment": segment, "masking": None}
    write(tmp_path / "records", [[*WORDS_OF]] * 8, vocabulary=CHINESE, **options)
    marks = dict(
        zip(["我", "北", "京", "安", "门", "天", "play", "##ing", "."], map(int, "110001101"), strict=True)
    )
    seen = set()
    for row in rows_of(tmp_path / "records"):
        for place, mark in zip(row[INPUT_WORD_IDS], row[WORD_STARTS], strict=True):
            piece = CHINESE[place]
            assert mark == marks.get(piece, mark) and (mark == 0 or not piece.startswith("["))
            seen.add(piece)
    assert seen >= {*marks}


def test_whole_words_of_a_segmenter_are_masked(tmp_path):
    masking = Masking(share=0.3, max_predictions=9, hide=1, keep=0, replace=0, whole_word=True)
    options = {"settings": {"dupe_factor": 20}, "segment": segment, "masking": masking}
    write(tmp_path / "records", [[*WORDS_OF]] * 8, vocabulary=CHINESE, **options)
    rows = rows_of(tmp_path / "records")
    hidden = [{*(CHINESE[i] for i in row[MASKED_LM_IDS][row[MASKED_LM_WEIGHTS] > 0])} for row in rows]
    assert sum("北" in pieces for pieces in hidden) > 20
    for word in ("北京", "天安门", "语言"):
        assert all({*word} <= pieces or not {*word} & pieces for pieces in hidden), word
    assert WORD_STARTS not in rows[0]


def test_a_stream_has_word_starts():
    one_row = {"sampler": "contiguous", "short_seq_prob": 0}
    features = stream([[*WORDS_OF]] * 3, maker(CHINESE, segment=segment, **one_row), seed=0, epochs=1)
    expected = [2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 3]
    starts = [0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    found = [
        (row[INPUT_WORD_IDS].tolist(), row[WORD_STARTS].tolist()) for row in features.as_numpy_iterator()
    ]
    assert found == [(expected + [0] * 14, starts + [0] * 14)] * 3


def test_words_that_are_not_in_the_line_are_named():
    match = "the segmenter gives '京', which is not in the rest of the line, '爱'"
    with pytest.raises(ValueError, match=match):
        tokenize_documents([["我爱"]], WordPiece(CHINESE), segment=lambda line: ["我", "京"])


# -----------------------------------------------------------------------------------------------------------
# In several processes


def with_a_missing_word(line):
    """A segmenter that fails, in a module that a worker can import."""
    return [*segment(line), "more"]


@pytest.mark.long
def test_workers_change_no_instance_and_no_place():
    one, two = [], []
    alone = rows(streamed(epochs=2, visit=one.append))
    assert len(one) > 4
    wanted = alone[one[1].instances :]
    endless = streamed(epochs=None, start=one[1], visit=two.append, workers=2).batch(len(wanted))
    reading = iter(endless)
    assert rows(tf.data.Dataset.from_tensor_slices(next(reading))) == wanted
    assert two[: len(one) - 1] == one[1:]
    assert multiprocessing.active_children()
    del reading  # as at the end of a training
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.long
def test_an_error_in_a_worker_is_the_error_of_the_stream():
    failures = []
    wrong = maker(CHINESE, segment=with_a_missing_word)
    instances = stream([[*WORDS_OF]] * 3, wrong, failed=failures.append, workers=2, seed=0)
    with pytest.raises(tf.errors.OpError):
        next(iter(instances))
    assert isinstance(failures[0], ValueError) and "the segmenter gives 'more'" in str(failures[0])


def test_an_argument_that_cannot_be_sent_is_named():
    check_sendable(segment=str.split, tokenizer=None)
    with pytest.raises(BertKerasError, match="segment cannot be sent to a worker process .* or workers=1"):
        check_sendable(segment=lambda line: line.split())


# -----------------------------------------------------------------------------------------------------------
# Each of several workers of a training makes its own rows of every batch; together they are the batches of one process

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
    known = {"recipe": recipe, "tokenizer": TOKENIZER, "vocab_size": TOKENIZER.vocab_size}
    if kind != "documents":
        return RecordInstances([records[kind]], None, **known)
    made = TextInstances(pretrainings.documents(30), None, **known)
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
        how = {"seed": 1, "epochs": 1, "batch_size": BATCH, "worker_rows": worker_rows}
        assert sum(1 for _ in stream(pretrainings.documents(30), maker(runs.VOCABULARY), **how)) == sum(
            packed
        )
        found.append(sum(packed))
    whole, own = found
    assert own == WorkerRows(1, 4).count_before(whole, BATCH) < whole / 3
