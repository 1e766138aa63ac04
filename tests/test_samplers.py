"""Samplers: pairs as the original makes them, and the other samplers by their rules."""

import numpy as np
import pytest
import scipy.stats
from instance_texts import DOCUMENT, SEGMENT, documents, each, original_pairs, segments_of

from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.corpus import shards
from bert_keras.tasks.pretraining.samplers import SAMPLERS, make_instances, one_pass

SEP = 0  # in the documents below, whose ids are from 1


def made(sampler, texts=None, *, seed=1, **settings):
    settings = Sampling(sampler=sampler, **{"dupe_factor": 1, **settings})
    found, skipped = make_instances(texts or documents(), seed=[seed], settings=settings, separator=SEP)
    return [*each(found)], skipped


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
    theirs = original_pairs(
        [[s.tolist() for s in text] for text in segments_of(texts)], seed=2, passes=2, **settings
    )
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
    """The instances of a sampler, in order, before pairs are cut."""
    settings = Sampling(sampler=name, **settings)
    return [*each(one_pass(texts, np.random.default_rng(3), settings=settings, separator=SEP)[0])]


def test_unused_segments_are_put_back():
    """A, and B where it is A's own next, are all of the text once."""
    texts = documents()
    found = [segment for one in sampled("next_sentence", texts) for segment in one.segments[: 2 - one.label]]
    assert np.concatenate(found).tolist() == texts.ids.tolist()


def test_pairs_fit_and_lose_either_end():
    instances, _ = made("next_sentence", documents(pieces=(30, 200)), seq_length=32, dupe_factor=5)
    assert {sum(map(len, one.segments)) for one in instances} == {29}
    starts = np.array([[ids[0] % SEGMENT > 0 for ids in one.segments] for one in instances])
    assert (np.mean(starts, axis=0) > 0.9).all()  # what loses so much does so on both sides
    assert min(len(ids) for one in instances for ids in one.segments) == 14


@pytest.mark.parametrize("name", ["next_sentence", "sentence_pair"])
def test_strict_labels_are_even(name):
    texts = documents(2_000, segments=(1, 6))
    (loose, _), (strict, skipped) = made(name, texts), made(name, texts, strict=True)
    labels = [one.label for one in strict]
    assert len(labels) > 2_000 and skipped > 0
    assert abs(np.mean(labels) - 0.5) < 3 * 0.5 / np.sqrt(len(labels))
    assert np.mean([one.label for one in loose]) > 0.55  # what it is strict about


def sentence_pairs(texts, draws, *, strict):
    """(A, B, label) one sentence at a time, as Liu et al. describe SENTENCE-PAIR; None for a sentence that is skipped."""
    texts = segments_of(texts)
    for mine, text in enumerate(texts):
        others = texts[mine + 1 :] + texts[:mine]
        waiting = list(text)
        while waiting:
            a = waiting.pop(0)
            if waiting and draws.random() >= 0.5:
                yield a, waiting.pop(0), 0
            elif waiting or not strict:
                other = [*others[draws.integers(len(others))]]
                yield a, other[draws.integers(len(other))], 1
            else:
                yield None


@pytest.mark.parametrize("strict", [False, True])
def test_sentence_pairs_are_single_sentences(strict):
    texts = documents(300, segments=(1, 6))
    settings = Sampling(sampler="sentence_pair", strict=strict)
    ours, skipped = one_pass(texts, np.random.default_rng(3), settings=settings, separator=SEP)
    made = list(sentence_pairs(texts, np.random.default_rng(3), strict=strict))
    theirs = [one for one in made if one]
    assert len(made) > 700 and skipped == len(made) - len(theirs) and (skipped > 0) == strict
    for one, (first, second, label) in zip(each(ours), theirs, strict=True):
        found = (*(ids.tolist() for ids in one.segments), one.label)
        assert found == (first.tolist(), second.tolist(), label)


def test_long_sentences_of_a_pair_are_cut():
    instances, _ = made("sentence_pair", documents(50, pieces=(1, 60)), seq_length=32)
    assert max(sum(map(len, one.segments)) for one in instances) == 29
    for one in instances:
        assert all(len({*ids // SEGMENT}) == 1 for ids in one.segments), "one sentence each"
        follows = one.segments[1][0] // SEGMENT - one.segments[0][0] // SEGMENT == 1
        assert follows == (one.label == 0)


def test_sentence_order_swaps_half():
    instances, skipped = made("sentence_order", documents(2_000))
    labels = np.array([one.label for one in instances])
    assert abs(np.mean(labels) - 0.5) < 3 * 0.5 / np.sqrt(len(labels)) and skipped > 0
    for first, second in (one.segments[:: -1 if one.label else 1] for one in instances):
        assert first[-1] < second[0] and first[0] // DOCUMENT == second[0] // DOCUMENT
    texts = documents(segments=(2, 20))
    kept = [one.segments[:: -1 if one.label else 1] for one in sampled("sentence_order", texts)]
    assert set(np.concatenate([ids for pair in kept for ids in pair]).tolist()) <= set(texts.ids.tolist())


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.3])
@pytest.mark.parametrize("pieces", [(1, 40), (1, 200)])
@pytest.mark.parametrize("name", ["contiguous", "full_sentences"])
def test_rows_have_every_token_once(name, pieces, short_seq_prob):
    texts = documents(pieces=pieces)
    rows = [one.segments[0] for one in sampled(name, texts, seq_length=64, short_seq_prob=short_seq_prob)]
    text = np.concatenate(rows)
    assert text[text != SEP].tolist() == texts.ids.tolist()
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
    lengths = {segment[0]: len(segment) for text in segments_of(texts) for segment in text}
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
        texts = documents(segments=(2, 2)) if name == "translation" else None
        return [np.concatenate(one.segments).tolist() for one in made(name, texts, seed=seed)[0]]

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
