"""Masked and predicted tokens, over real text and against the originals' loops written again in plain Python."""

import collections
import random

import numpy as np
import pytest
import tensorflow as tf
from random_checkpoints import refused

from bert_keras.features import (
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    WORD_STARTS,
)
from bert_keras.fields import Masking
from bert_keras.text.masking import Pieces, ask_next, count_asked, mask
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece

VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c ##x ##y [unused0] [unused1]".split()
PAD, UNK, CLS, SEP, MASK, A, B, C, X, Y = range(10)
SEED = tf.constant([20181011, 4])


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(VOCABULARY)


@pytest.fixture(scope="module")
def pieces(tokenizer):
    return Pieces.of(tokenizer)


@pytest.fixture(scope="module")
def real(data_dir):
    """More than 100,000 tokens of an encyclopedia in rows of 128, and the vocabulary properties for masking."""
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
    text = (data_dir / "corpus" / "enwiki_plain_paragraphs.txt").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line.strip()][:1600]
    features = Preprocessor(tokenizer, seq_length=128)(tf.constant(lines))
    assert int(tf.reduce_sum(features[INPUT_MASK])) > 100_000
    return features, Pieces.of(tokenizer)


def numbers(features):
    return {name: value.numpy() for name, value in features.items()}


def rows_of(*rows, width):
    """Features of rows of ids, padded with 0, which is no real token's id here."""
    ids = np.array([[*row, *[PAD] * (width - len(row))] for row in rows], "int32").reshape(-1, width)
    return {INPUT_WORD_IDS: tf.constant(ids), INPUT_MASK: tf.constant((ids != PAD).astype("int32"))}


def masked(features, pieces, *, seed=SEED, **settings):
    return numbers(mask(features, seed=seed, pieces=pieces, masking=Masking(**settings)))


def words_in(ids, mask, pieces, *, whole_word):
    """The candidates of one row, lists of positions, as create_masked_lm_predictions collects them."""
    special, found, before = pieces.is_special, [], False
    for place, (piece, there) in enumerate(zip(ids, mask, strict=True)):
        selectable = bool(there) and not special[piece]
        if selectable:
            if whole_word and before and pieces.continues[piece]:
                found[-1].append(place)
            else:
                found.append([place])
        before = selectable
    return found


def wanted(mask, *, share=0.15, max_predictions=20):
    return min(max_predictions, max(1, int(round(int(mask.sum()) * share))))


SETTINGS = {
    "bert": {},
    "whole word": {"whole_word": True},
    "albert": {"whole_word": True, "max_ngram": 3},
    "electra": {"hide": 0.85, "keep": 0.15, "replace": 0.0},
    # Devlin et al. 2019, Table 8
    "100 0 0": {"hide": 1.0, "keep": 0.0, "replace": 0.0},
    "80 0 20": {"hide": 0.8, "keep": 0.0, "replace": 0.2},
    "80 20 0": {"hide": 0.8, "keep": 0.2, "replace": 0.0},
    "0 20 80": {"hide": 0.0, "keep": 0.2, "replace": 0.8},
    "0 0 100": {"hide": 0.0, "keep": 0.0, "replace": 1.0},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_rates_over_real_text(real, name):
    """Five draws over 144,000 tokens, about 108,000 masked: half a point is four standard deviations of 80 %."""
    features, pieces = real
    settings = Masking(**SETTINGS[name])
    before, counts = numbers(features), collections.Counter()
    special = pieces.is_special
    for draw in range(5):
        after = masked(features, pieces, seed=[7, draw], **SETTINGS[name])
        asked = after[MASKED_LM_WEIGHTS] > 0
        places = after[MASKED_LM_POSITIONS]
        stood = np.take_along_axis(before[INPUT_WORD_IDS], places, axis=1)
        stands = np.take_along_axis(after[INPUT_WORD_IDS], places, axis=1)
        np.testing.assert_array_equal(after[MASKED_LM_IDS], np.where(asked, stood, 0))
        assert not special[stood[asked]].any()
        assert np.take_along_axis(before[INPUT_MASK], places, axis=1)[asked].all()
        counts["asked"] += asked.sum()
        counts["hidden"] += (asked & (stands == pieces.special.mask)).sum()
        counts["kept"] += (asked & (stands == stood)).sum()
        counts["pieces"] += before[INPUT_MASK].sum()
        # Nothing else changes.
        elsewhere = np.ones_like(before[INPUT_WORD_IDS], bool)
        np.put_along_axis(elsewhere, np.where(asked, places, 0), ~asked, axis=1)
        elsewhere[:, 0] = True
        assert (before[INPUT_WORD_IDS] == after[INPUT_WORD_IDS])[elsewhere].all()
    assert counts["asked"] > 100_000
    assert abs(counts["asked"] / counts["pieces"] - 0.15) < 0.005
    assert abs(counts["hidden"] / counts["asked"] - settings.hide) < 0.005
    assert abs(counts["kept"] / counts["asked"] - settings.keep) < 0.005


@pytest.mark.parametrize("name", ["bert", "whole word", "albert"])
def test_words_and_counts_of_every_row(real, name):
    """Whole words are whole, and no row has fewer masked tokens than the target if a free word would fit."""
    features, pieces = real
    before, after = numbers(features), masked(features, pieces, **SETTINGS[name])
    short = 0
    for row in range(len(before[INPUT_WORD_IDS])):
        number = int(after[MASKED_LM_WEIGHTS][row].sum())
        places = after[MASKED_LM_POSITIONS][row][:number].tolist()
        assert places == sorted(set(places)) and not after[MASKED_LM_POSITIONS][row][number:].any()
        ids, there = before[INPUT_WORD_IDS][row], before[INPUT_MASK][row]
        words = words_in(ids, there, pieces, whole_word=name != "bert")
        taken = [set(word) <= set(places) for word in words]
        assert sorted(sum((word for word, one in zip(words, taken, strict=True) if one), [])) == places
        left = wanted(before[INPUT_MASK][row]) - number
        assert left >= 0
        assert all(len(word) > left for word, one in zip(words, taken, strict=True) if not one)
        short += left > 0
    assert short == 0 if name == "bert" else short < 0.01 * len(before[INPUT_WORD_IDS])


def take_ngrams(words, number, *, max_ngram, generator):
    """google-research/albert create_pretraining_data.py: n-grams at every word, in random order."""
    weights = [1 / n for n in range(1, max_ngram + 1)]
    starts, chosen = list(range(len(words))), set()
    generator.shuffle(starts)
    for start in starts:
        if len(chosen) >= number:
            break
        n = generator.choices(range(1, max_ngram + 1), weights)[0]
        while n and len(chosen) + len(sum(words[start : start + n], [])) > number:
            n -= 1
        span = sum(words[start : start + n], [])
        if not chosen & set(span):
            chosen.update(span)
    return chosen


def runs_in(words, chosen):
    """The number of words in each run of masked words."""
    flags = "".join("x" if word[0] in chosen else " " for word in words)
    return collections.Counter(map(len, flags.split()))


@pytest.mark.parametrize("max_ngram", [1, 3, 5])
@pytest.mark.parametrize("share", [0.05, 0.15])
def test_lengths_of_ngrams(tokenizer, pieces, max_ngram, share):
    """Runs of taken words against the original's loop: the share of each length within half a point or three errors."""
    generator = random.Random(1)
    texts = [" ".join(generator.choices(["a", "b", "cx", "axy"], k=60)) for _ in range(3000)]
    features = Preprocessor(tokenizer, seq_length=128)(tf.constant(texts))
    before = numbers(features)
    settings = {"whole_word": True, "max_ngram": max_ngram, "share": share}
    ours, theirs = collections.Counter(), collections.Counter()
    after = masked(features, pieces, **settings)
    for row in range(len(texts)):
        words = words_in(before[INPUT_WORD_IDS][row], before[INPUT_MASK][row], pieces, whole_word=True)
        number = wanted(before[INPUT_MASK][row], share=share)
        theirs += runs_in(words, take_ngrams(words, number, max_ngram=max_ngram, generator=generator))
        asked = after[MASKED_LM_POSITIONS][row][after[MASKED_LM_WEIGHTS][row] > 0]
        ours += runs_in(words, {*asked.tolist()})
    totals = sum(ours.values()), sum(theirs.values())
    assert abs(totals[0] / totals[1] - 1) < 0.02
    for length in range(1, 7):
        one, other = ours[length] / totals[0], theirs[length] / totals[1]
        error = np.sqrt(other * (1 - other) * (1 / totals[0] + 1 / totals[1]))
        assert abs(one - other) < max(0.005, 3 * error), f"runs of {length}: {one} against {other}"


def test_p_of_n_is_proportional_to_1_over_n(pieces):
    """3 of 600 words are masked: one run of 3 with p(3) = 2/11, three apart where twice 1 was drawn, (6/11)^2."""
    ids = np.full((10_000, 600), A, "int32")
    features = {INPUT_WORD_IDS: tf.constant(ids), INPUT_MASK: tf.ones_like(ids)}
    places = masked(features, pieces, share=3 / 600, max_ngram=3)[MASKED_LM_POSITIONS][:, :3]
    neighbours = (np.diff(places, axis=1) == 1).sum(axis=1)
    shares = np.bincount(neighbours) / len(neighbours)
    expected = [(6 / 11) ** 2, 1 - (6 / 11) ** 2 - 2 / 11, 2 / 11]
    np.testing.assert_allclose(shares, expected, atol=0.015)  # three errors, chance neighbours with them


def test_equal_seeds_equal_masks(real):
    features, pieces = real
    features = {name: value[:64] for name, value in features.items()}
    eager = masked(features, pieces, whole_word=True)
    graph = tf.function(
        lambda features, seed: mask(features, seed=seed, pieces=pieces, masking=Masking(whole_word=True))
    )
    again = numbers(graph(features, SEED))
    for name, value in eager.items():
        np.testing.assert_array_equal(value, again[name], err_msg=name)
    other = numbers(graph(features, SEED + [0, 1]))
    same = (eager[MASKED_LM_POSITIONS] == other[MASKED_LM_POSITIONS]).all(axis=1)
    assert same.mean() < 0.05
    wide = masked(features, pieces, seed=tf.cast(SEED, tf.int64), whole_word=True)
    np.testing.assert_array_equal(wide[INPUT_WORD_IDS], eager[INPUT_WORD_IDS])


@pytest.mark.parametrize("share", [0.15, 0.25, 0.05, 1.0])
@pytest.mark.parametrize("max_predictions", [1, 20, 77])
def test_counts_are_python_s(share, max_predictions):
    """0.15 * 10 is rounded to 2, 0.15 * 30 to 4: halves go to the even number."""
    lengths = range(0, 600)
    expected = [min(max_predictions, max(1, int(round(n * share)))) for n in lengths]
    settings = Masking(share=share, max_predictions=max_predictions)
    assert count_asked(tf.constant([*lengths]), settings).numpy().tolist() == expected
    assert count_asked(tf.constant([10, 30, 50]), Masking()).numpy().tolist() == [2, 4, 8]


def test_edges(pieces):
    features = rows_of([CLS, SEP], [CLS, A, SEP], [CLS, SEP, B, SEP], [CLS, UNK, MASK, SEP], [], [A], width=5)
    after = masked(features, pieces, hide=1.0, keep=0.0, replace=0.0, max_predictions=7)
    assert after[INPUT_WORD_IDS].tolist() == [
        [CLS, SEP, PAD, PAD, PAD],
        [CLS, MASK, SEP, PAD, PAD],
        [CLS, SEP, MASK, SEP, PAD],
        [CLS, UNK, MASK, SEP, PAD],
        [PAD] * 5,
        [MASK, PAD, PAD, PAD, PAD],
    ]
    assert after[MASKED_LM_POSITIONS][:, :2].tolist() == [[0, 0], [1, 0], [2, 0], [0, 0], [0, 0], [0, 0]]
    assert after[MASKED_LM_IDS].sum(axis=1).tolist() == [0, A, B, 0, 0, A]
    assert after[MASKED_LM_WEIGHTS].sum(axis=1).tolist() == [0, 1, 1, 0, 0, 1]
    assert {after[name].shape for name in (MASKED_LM_POSITIONS, MASKED_LM_IDS, MASKED_LM_WEIGHTS)} == {(6, 7)}
    dtypes = [after[name].dtype for name in (MASKED_LM_POSITIONS, MASKED_LM_IDS, MASKED_LM_WEIGHTS)]
    assert dtypes == ["int32", "int32", "float32"]
    nothing = masked(rows_of(width=5), pieces)
    assert nothing[MASKED_LM_POSITIONS].shape == (0, 20)


def test_a_word_that_does_not_fit_is_skipped(pieces):
    """2 of 10 tokens are masked: never the word of 3 tokens, always the two of 1."""
    features = rows_of([CLS, A, X, Y, B, SEP, A, X, Y, C], width=12)
    for draw in range(20):
        after = masked(features, pieces, seed=[0, draw], whole_word=True)
        assert after[MASKED_LM_POSITIONS][0, :2].tolist() == [4, 9]


def test_a_special_token_ends_a_word_and_an_ngram(pieces):
    """Cut in front, a segment may open with the rest of a word. 3 of 20 tokens are masked, the n-gram stops at [SEP]."""
    features = rows_of([CLS, A, SEP, X, Y, SEP], width=6)
    seen = set()
    for draw in range(20):
        after = masked(features, pieces, seed=[0, draw], whole_word=True, share=0.4)
        seen.add(tuple(after[MASKED_LM_POSITIONS][0, :2].tolist()))
    assert seen == {(3, 4), (1, 0)}


def test_stored_word_starts_count_for_the_vocabulary_s(pieces):
    """As a segmenter gives them for Chinese, whose pieces are single characters: a b | c a."""
    features = rows_of([CLS, A, B, C, A, SEP], width=7)
    features[WORD_STARTS] = tf.constant([[0, 1, 0, 1, 0, 0, 0]])
    seen = set()
    for draw in range(20):
        after = masked(features, pieces, seed=[0, draw], whole_word=True, share=0.34)
        assert WORD_STARTS not in after
        seen.add(tuple(after[MASKED_LM_POSITIONS][0, :2].tolist()))
    assert seen == {(1, 2), (3, 4)}


def test_random_tokens(pieces):
    """The whole vocabulary, special tokens with it, or what can occur in text."""
    features = rows_of(*[[CLS, *[A] * 60, SEP]] * 200, width=64)
    replaced = {"hide": 0.0, "keep": 0.0, "replace": 1.0}
    for choice, expected in (("vocabulary", set(range(12))), ("real", {A, B, C, X, Y})):
        after = masked(features, pieces, random_pieces=choice, **replaced)
        drawn = np.take_along_axis(after[INPUT_WORD_IDS], after[MASKED_LM_POSITIONS], axis=1)
        drawn = drawn[after[MASKED_LM_WEIGHTS] > 0]
        assert {*drawn.tolist()} == expected
        shares = np.bincount(drawn)[sorted(expected)] / len(drawn)
        np.testing.assert_allclose(shares, 1 / len(expected), atol=0.04)


def test_left_to_right_predicts_the_next_token():
    features = rows_of([CLS, A, B, SEP], [CLS, C, SEP], width=5)
    after = numbers(ask_next(features))
    np.testing.assert_array_equal(after[INPUT_WORD_IDS], features[INPUT_WORD_IDS])
    assert after[MASKED_LM_POSITIONS].tolist() == [[0, 1, 2, 3]] * 2  # whose state is read
    assert after[MASKED_LM_IDS].tolist() == [[A, B, SEP, 0], [C, SEP, 0, 0]]
    assert after[MASKED_LM_WEIGHTS].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]


def test_a_data_set_knows_the_shapes(tokenizer, pieces):
    data = tf.data.Dataset.from_tensor_slices(["a b c", "a", "ax bxy"]).batch(2)
    data = data.map(Preprocessor(tokenizer, seq_length=8))
    data = data.map(
        lambda features: mask(features, seed=SEED, pieces=pieces, masking=Masking(max_predictions=3))
    )
    assert {spec.shape.as_list()[1] for spec in data.element_spec.values()} == {3, 8}
    assert [int(tf.reduce_sum(batch[MASKED_LM_WEIGHTS])) for batch in data] == [2, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.0}, "share is 0.0; .* over 0 and at most 1"),
        ({"share": 1.5}, "share is 1.5; .* over 0 and at most 1"),
        ({"max_predictions": 0}, "max_predictions is 0; .* of at least 1"),
        ({"max_ngram": 0}, "max_ngram is 0; .* of at least 1"),
        ({"hide": 0.9}, r"hide, keep and replace are \(0.9, 0.1, 0.1\); give rates that sum to 1"),
        ({"hide": 1.1, "keep": -0.1, "replace": 0.0}, "hide is 1.1; .* of at least 0 and at most 1"),
        ({"random_pieces": "any"}, "random_pieces is 'any'; .* one of vocabulary, real"),
    ],
)
def test_wrong_settings(settings, message):
    refused(message, Masking, **settings)


def test_ids_outside_the_vocabulary_are_an_error(pieces):
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        masked(rows_of([CLS, 12, SEP], width=4), pieces)
