"""The measures against their definitions: golden numbers, random draws, and draws in which nothing varies."""

import json
import random
import string
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
from golden.make_metrics_golden import DEFINITIONS, MEASURES_OF, draw

from bert_keras.tasks.metrics import (
    MEASURES,
    answer_scores,
    best_threshold,
    entity_scores,
    entity_scores_by_type,
    normalize_answer,
    ordering,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "metrics.json").read_text())


def test_every_measure_has_a_golden_case():
    assert set(MEASURES) == set(DEFINITIONS) == {name for case in GOLDEN for name in case["values"]}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["kind"])
def test_golden(case):
    labels, predictions = np.array(case["labels"]), np.array(case["predictions"])
    got = {name: MEASURES[name](labels, predictions) for name in case["values"]}
    assert got == pytest.approx(case["values"], rel=1e-12)
    assert all(type(value) is float for value in got.values())


@pytest.mark.parametrize("kind", MEASURES_OF)
@pytest.mark.parametrize("count", [2, 3, 7, 200])
def test_random_draws(kind, count):
    generator = random.Random(count)
    for _ in range(10):
        labels, predictions = draw(kind, count, generator)
        for name in MEASURES_OF[kind]:
            got = MEASURES[name](np.array(labels), np.array(predictions))
            assert got == pytest.approx(DEFINITIONS[name](labels, predictions), abs=1e-12)


def test_values_computed_by_hand():
    labels, predictions = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1])
    #           TP 2, FP 1, FN 1, TN 1
    assert MEASURES["accuracy"](labels, predictions) == pytest.approx(3 / 5)
    assert MEASURES["f1"](labels, predictions) == pytest.approx(2 / 3)  # of class 0 it would be 1 / 2
    assert MEASURES["matthews"](labels, predictions) == pytest.approx((2 * 1 - 1 * 1) / 36**0.5)
    scores, line, curve = np.float32([0, 1, 2, 5]), np.float32([3, 2.5, 2, 0.5]), np.float32([0, 1, 8, 125])
    assert MEASURES["pearson"](scores, line) == pytest.approx(-1)
    assert MEASURES["spearman"](scores, curve) == pytest.approx(1)
    assert MEASURES["pearson"](scores, curve) < 0.97


@pytest.mark.parametrize(
    ("labels", "predictions", "expected"),
    [
        ([0, 1, 1, 0], [0, 0, 0, 0], {"accuracy": 0.5, "f1": 0.0, "matthews": 0.0}),
        ([0, 1, 1, 0], [1, 1, 1, 1], {"accuracy": 0.5, "f1": 2 / 3, "matthews": 0.0}),
        ([0, 0, 0, 0], [0, 0, 0, 0], {"accuracy": 1.0, "f1": 0.0, "matthews": 0.0}),
        ([1, 1], [1, 1], {"accuracy": 1.0, "f1": 1.0, "matthews": 0.0}),
        ([1], [0], {"accuracy": 0.0, "f1": 0.0, "matthews": 0.0}),
        ([0.5, 3.0, 5.0], [2.5, 2.5, 2.5], {"pearson": 0.0, "spearman": 0.0}),
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], {"pearson": 0.0, "spearman": 0.0}),
        ([4.0], [4.0], {"pearson": 0.0, "spearman": 0.0}),
    ],
)
def test_constant_values_have_correlation_0(labels, predictions, expected):
    got = {name: MEASURES[name](np.array(labels), np.array(predictions)) for name in expected}
    assert got == pytest.approx(expected)


def test_nan_scores_stay_nan():
    scores, diverged = np.float32([1, 2, 3]), np.float32([1, np.nan, 3])
    assert all(np.isnan(MEASURES[name](scores, diverged)) for name in ("pearson", "spearman"))


# Answers to questions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat, a \n dog.", "cat dog"),
        ("An apple-tree", "appletree"),
        ("THE", ""),
        ("theatre another", "theatre another"),
        ("«a» — b", "« » — b"),  # only ASCII punctuation goes; what stands beside it parts words
        ("A.", ""),
        ("1,000\u00a0km", "1000 km"),
        ("北京。", "北京。"),
    ],
)
def test_normalized_answers(text, expected):
    assert normalize_answer(text) == expected


def tokens(text: str) -> list[str]:
    """The normalized answers that the scorers compare, word by word."""
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def overlap(answer: str, gold: str, *, both_empty: float) -> float:
    """The harmonic mean of precision and recall, token by token."""
    left, right = tokens(answer), tokens(gold)
    if not left and not right:
        return both_empty
    rest, shared = list(right), 0
    for token in left:
        if token in rest:
            rest.remove(token)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(left), shared / len(right)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("unanswerable", [False, True])
def test_answer_scores_agree_with_their_definition(unanswerable):
    draw = random.Random(7)
    words = ["a", "the", "Cat", "cat.", "dog", "!", "dog dog", "Bird's"]

    def text() -> str:
        return " ".join(draw.choices(words, k=draw.randint(0, 4)))

    answers = [text() for _ in range(400)]
    golds = [[text() for _ in range(draw.randint(0 if unanswerable else 1, 3))] for _ in answers]
    exact, f1 = answer_scores(answers, golds, unanswerable=unanswerable)
    for i, (answer, texts) in enumerate(zip(answers, golds, strict=True)):
        if unanswerable:
            texts = [gold for gold in texts if tokens(gold)] or [""]
        assert exact[i] == max(tokens(answer) == tokens(gold) for gold in texts)
        expected = max(overlap(answer, gold, both_empty=float(unanswerable)) for gold in texts)
        assert f1[i] == pytest.approx(expected)
    assert 0 < exact.mean() < f1.mean() < 1 or not unanswerable


def test_differences_between_the_official_scorers():
    """A gold answer of which normalizing leaves nothing: no shared token in one, nothing wanted in the other."""
    for unanswerable, f1 in ((False, 0.0), (True, 1.0)):
        scores = answer_scores(["The"], [["a"]], unanswerable=unanswerable)
        assert [float(score[0]) for score in scores] == [1.0, f1]
    for answer, score in (("", 1.0), ("cat", 0.0)):  # no gold answer at all
        assert [s[0] for s in answer_scores([answer], [[]], unanswerable=True)] == [score, score]


def best_by_trying(answered, withheld, odds) -> float:
    """Every threshold that decides otherwise than the others: one under all odds, one at each."""
    tried = [-np.inf, *odds]
    return max(
        sum(a if odd <= threshold else w for a, w, odd in zip(answered, withheld, odds, strict=True))
        for threshold in tried
    ) / len(odds)


@pytest.mark.parametrize("seed", range(12))
def test_best_threshold_agrees_with_brute_force(seed):
    draw = np.random.default_rng(seed)
    count = [1, 2, 30, 200][seed % 4]
    withheld = draw.integers(0, 2, count)
    answered = np.where(withheld, 0, draw.choice([0, 0.5, 1], count))
    if seed % 3 == 0:
        answered = answered * 0  # all answers empty or wrong
    odds = draw.normal(size=count).astype(np.float32)
    if seed % 2:
        odds = odds.round(1)  # equal ones, which no threshold parts
    best, threshold = best_threshold(answered, withheld, odds)
    assert best == pytest.approx(best_by_trying(answered, withheld, odds))
    reached = np.where(odds.astype(np.float64) < threshold, answered, withheld).mean()
    assert reached == pytest.approx(best)
    assert threshold not in odds.astype(np.float64)


def test_best_threshold_is_the_nearest_to_zero_of_equal_ones():
    odds = np.float32([-4, -2, 3, 8])
    for answered, threshold in (
        ([0, 0, 0, 0], 0.0),  # all the same
        ([1, 0, 0, 0], 0.0),
        ([1, -1, 0, 0], -3.0),
        ([1, 0, 1, 0], 4.0),  # at most 1 above
        ([0, 0, 0, 1], 9.0),
    ):
        assert best_threshold(np.array(answered), np.zeros(4), odds)[1] == threshold
    assert best_threshold(np.zeros(4), np.ones(4), odds) == (1.0, -5.0)
    assert best_threshold(np.ones(2), np.zeros(2), np.float32([-2, 0])) == (1.0, 1.0)
    assert best_threshold(np.zeros(2), np.ones(2), np.float32([5, 8])) == (1.0, 0.0)


def test_entity_scores_agree_with_seqeval():
    """On random tags, among them those that continue nothing."""
    draw = random.Random(0)
    tags = [f"{prefix}-{kind}" for prefix in "BI" for kind in ("PER", "LOC", "X-Y")] + ["O"] * 4
    for count in (1, 10, 200):
        lengths = [draw.randint(1, 9) for _ in range(count)]
        gold, predicted = ([draw.choices(tags, k=n) for n in lengths] for _ in range(2))
        got = entity_scores(gold, predicted)
        scorers = [getattr(seqeval.metrics, f"{name}_score") for name in ("precision", "recall", "f1")]
        wanted = [scorer(gold, predicted, zero_division=0) for scorer in scorers]
        assert got[:3] == pytest.approx(wanted, abs=1e-12)
        report = seqeval.metrics.classification_report(gold, predicted, output_dict=True, zero_division=0)
        types = {kind: values for kind, values in report.items() if not kind.endswith(" avg")}
        by_type = entity_scores_by_type(gold, predicted)
        assert by_type.keys() == types.keys()
        for kind, values in types.items():
            assert by_type[kind] == pytest.approx(tuple(values.values()), abs=1e-12)
        assert got.entities == sum(scores.entities for scores in by_type.values())


def test_entities_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC"]]
    predicted = [["B-PER", "I-PER", "O", "B-PER"], ["B-LOC", "I-LOC"]]
    assert entity_scores(gold, predicted) == pytest.approx((1 / 3, 1 / 3, 1 / 3, 3))
    assert entity_scores_by_type(gold, predicted) == {
        "LOC": (0, 0, 0, 2),
        "PER": (0.5, 1, pytest.approx(2 / 3), 1),
    }
    assert entity_scores([["O"]], [["O"]]) == (0, 0, 0, 0)
    assert entity_scores([["O"]], [["B-PER"]]) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ([3.0, 3.2, 3.1], [1.0, 1.1, 1.2], "holds"),
        ([1.0, 1.1, 1.2], [3.0, 3.2, 3.1], "fails"),
        ([1.0, 3.0, 2.0], [1.1, 2.9, 1.5], "not resolved"),
        ([9.0], [1.0, 1.1], "one seed"),  # which has no spread
        ([], [1.0, 1.1], "a row did not learn"),
        ([2.0, 2.0], [2.0, 2.0], "not resolved"),
        ([81.3] * 3, [68.4] * 3, "not resolved"),  # no spread: the error of the difference is unknown
        ([0.1] * 3, [0.1 + 1e-15] * 3, "not resolved"),
        ([67.0, 68.0, 69.0], [69.0, 70.4, 71.8], "not resolved"),  # 2.4 standard errors of three runs each
        ([67.0, 68.0, 69.0] * 3, [69.0, 70.4, 71.8] * 3, "fails"),
    ],
)
def test_orderings(better, worse, verdict):
    assert ordering(better, worse).verdict == verdict


@pytest.mark.parametrize(("runs", "critical"), [(2, 4.3027), (3, 2.7764), (5, 2.3060)])
def test_an_ordering_holds_above_the_critical_value_of_t(runs, critical):
    """Equal spreads have 2 (runs - 1) degrees of freedom; the values are those of a printed table of t."""
    better, worse = np.arange(runs) + 1.0, np.arange(runs) + 0.0
    error = np.sqrt(2 * better.var(ddof=1) / runs)
    found = ordering(better, worse)
    np.testing.assert_allclose([found.difference, found.error], [1.0, error])
    shift = critical * error - found.difference
    assert ordering(better + shift + 1e-4, worse).verdict == "holds"
    assert ordering(better + shift - 1e-4, worse).verdict == "not resolved"


def test_an_ordering_is_resolved_where_welch_s_test_of_scipy_is():
    draw, verdicts = np.random.default_rng(0), []
    for _ in range(200):
        better = draw.normal(1, 1, draw.integers(2, 6))
        worse = draw.normal(0, draw.choice([0.2, 1, 3]), draw.integers(2, 6))
        p = scipy.stats.ttest_ind(better, worse, equal_var=False).pvalue
        word = "holds" if better.mean() > worse.mean() else "fails"
        verdicts.append(ordering(better, worse).verdict)
        assert verdicts[-1] == (word if p < 0.05 else "not resolved")
    assert {*verdicts} >= {"holds", "not resolved"}
