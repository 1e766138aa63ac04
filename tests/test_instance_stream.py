"""Instances as a stream, and whole words of a segmenter."""

import gc
import multiprocessing

import pytest
import tensorflow as tf
from instance_texts import WORDS_OF, rows, rows_of, segment, texts_of, vocab, write  # noqa: F401

from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    WORD_STARTS,
)
from bert_keras.fields import Masking
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.instance_stream import (
    InstanceMaker,
    Place,
    shards,
    stream,
    tokenize_documents,
)
from bert_keras.tasks.pretraining.samplers import make_instances
from bert_keras.text.wordpiece import WordPiece

# -----------------------------------------------------------------------------------------------------------
# Without files


def streamed(vocab, texts=None, *, settings=None, **options):
    return stream(
        texts or texts_of(),
        InstanceMaker(
            tokenizer=WordPiece.from_file(str(vocab)),
            settings=Sampling(**{"seq_length": 32, "dupe_factor": 1} | (settings or {})),
        ),
        **{"seed": 7, "shard_bytes": 2_000, "shard_documents": 5, "epochs": 1} | options,
    )


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
        InstanceMaker(
            tokenizer=WordPiece(CHINESE),
            settings=Sampling(seq_length=32, sampler="contiguous", short_seq_prob=0, dupe_factor=1),
            segment=segment,
        ),
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
# In several processes


def with_a_missing_word(line):
    """A segmenter that fails, in a module that a worker can import."""
    return [*segment(line), "more"]


@pytest.mark.long
def test_workers_change_no_instance_and_no_place(vocab):
    one, two = [], []
    alone = rows(streamed(vocab, epochs=2, visit=one.append))
    assert len(one) > 4
    wanted = alone[one[1].instances :]
    endless = streamed(vocab, epochs=None, start=one[1], visit=two.append, workers=2).batch(len(wanted))
    reading = iter(endless)
    assert rows(tf.data.Dataset.from_tensor_slices(next(reading))) == wanted
    assert two[: len(one) - 1] == one[1:]
    assert multiprocessing.active_children()
    del reading  # as at the end of a training
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.long
def test_an_error_in_a_worker_is_the_error_of_the_stream(tmp_path):
    failures = []
    how = {"tokenizer": WordPiece(CHINESE), "settings": Sampling(seq_length=32)}
    instances = stream(
        [[*WORDS_OF]] * 3,
        InstanceMaker(segment=with_a_missing_word, **how),
        failed=failures.append,
        workers=2,
        seed=0,
    )
    with pytest.raises(tf.errors.OpError):
        next(iter(instances))
    assert isinstance(failures[0], ValueError) and "the segmenter gives 'more'" in str(failures[0])
    with pytest.raises(ValueError, match="segment cannot be sent to a worker process .* one of a module"):
        stream([[*WORDS_OF]] * 3, InstanceMaker(segment=lambda line: [line], **how), workers=2, seed=0)
