"""The tables of a report for answers, choices and masks: outcomes by hand, sums, charts, and judged examples of every kind."""

import itertools
import json
import warnings

import numpy as np
import pytest
import scipy.special

from bert_keras.errors import BertKerasError
from bert_keras.pages.charts import draw
from bert_keras.tasks.batches import predict
from bert_keras.tasks.problems import answer_views
from bert_keras.tasks.problems.embedding import Embedding
from bert_keras.tasks.problems.fill_mask import FillMask, kind_of_word
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.replaced_tokens import ReplacedTokens
from bert_keras.tasks.problems.views import NAMES_SHOWN, OTHER, by_group, confusion, name_sizes
from bert_keras.tasks.runs.run_folder import load_run


def texts(*rows: str) -> np.ndarray:
    return np.array([row.encode() for row in rows], object)


# -----------------------------------------------------------------------------------------------------------
# Answers

# Answer | labelled answers -> its outcome.
OUTCOMES = {
    ("The film.", "film"): "exact",
    ("", ""): "exact",
    ("film plot", "plot scene|plot"): "partial overlap",
    ("film", "scene"): "no overlap",
    ("", "scene"): "withheld though answerable",
    ("film", ""): "answered though unanswerable",
}


def answers(rows, *, odds=None, tau=0.0):
    """A task of SQuAD 2.0 with decoded answers and questions."""
    count = len(rows)
    given = texts(*(answer for answer, _ in rows))
    odds = np.float32([-1.0 if answer else 1.0 for answer, _ in rows] if odds is None else odds)
    golds = [[*filter(None, gold.split("|"))] for _, gold in rows]
    raw = {
        "question": texts(
            *itertools.islice(itertools.cycle(("Who is it?", "In what year?", "Name one.")), count)
        ),
        "context": texts(*["warm film plot scene"] * count),
        "answers": texts(*map(json.dumps, golds)),
        "answer_start": np.int32(["warm film plot scene".find(gold[0]) if gold else -1 for gold in golds]),
    }
    probabilities = scipy.special.expit(-odds)
    predictions = {
        "answer": given,
        "start_byte": np.where(given == b"", -1, 0).astype(np.int32),
        "nbest_answers": np.array([[answer or b"film"] for answer in given], object),
        "nbest_probabilities": probabilities[:, np.newaxis],
        "no_answer_probability": 1 - probabilities,
        "null_odds": odds,
    }
    return QuestionAnswering("squad2.0", tau=tau), predictions, raw


def test_outcomes_and_groups_of_questions():
    task, predictions, raw = answers([*OUTCOMES, ("film", "film")])
    tables = {table.title: table for table in task.views(predictions, raw)}
    assert [row[:2] for row in tables["What became of the questions"].rows] == [
        ("exact", 3), ("partial overlap", 1), ("no overlap", 1),
        ("withheld though answerable", 1), ("answered though unanswerable", 1),
    ]  # fmt: skip
    for (answer, gold), outcome in OUTCOMES.items():
        one, given, asked = answers([(answer, gold)])
        assert [row[0] for row in next(one.views(given, asked)).rows] == [outcome]
    f1 = dict(task.evaluate(predictions, raw))["f1"] / 100
    for title, names in {
        "F1 by question word": ["who", "what", "other"],
        "F1 by place of the answer": ["second quarter", "third quarter", "last quarter"],
    }.items():
        rows = tables[title].rows
        assert [row[0] for row in rows] == names
    rows = tables["F1 by question word"].rows
    assert sum(mean * count for _, mean, count in rows) / 7 == pytest.approx(f1)
    judged = task.judge(predictions, raw)
    assert judged.right.mean() == pytest.approx(f1)
    assert judged.gold[:3] == ["film", "(none)", "plot scene / plot"] and judged.predicted[4] == "(none)"
    np.testing.assert_allclose(judged.confidence, 1 / (1 + np.exp(-1)), rtol=1e-6)
    raw["answers"][[1, 5]] = b'["x"]'  # SQuAD 1.1 has an answer to every question, and no tau
    first = QuestionAnswering("squad1.1")
    assert {table.title for table in first.views(predictions, raw)} == {*tables} - {
        "F1 and answered questions over tau"
    }
    assert (
        first.judge(predictions, raw).confidence.tolist() == predictions["nbest_probabilities"][:, 0].tolist()
    )


def test_the_curve_has_points_of_tau_curve_and_the_answered_share():
    draw_numbers = np.random.default_rng(0)
    rows = [(("film", "scene")[i % 2], ("film", "", "scene")[i % 3]) for i in range(200)]
    odds = draw_numbers.normal(size=200).astype(np.float32)
    odds[7] = 1e9  # a question without any span
    task, predictions, raw = answers(rows, odds=odds)
    taus, f1 = task.tau_curve(predictions, raw)
    (table,) = (table for table in task.views(predictions, raw) if table.chart == "lines")
    points = dict(zip(taus.tolist(), f1.tolist(), strict=True))
    assert len(taus) == 201 and 50 < len(table.rows) <= answer_views.POINTS
    assert [row[1] for row in table.rows] == [points[row[0]] for row in table.rows]
    assert max(row[1] for row in table.rows) == f1.max()
    for tau, _, share in table.rows:
        assert share == np.mean(
            task.__class__("squad2.0", tau=tau)._answered(predictions_of_spans(predictions))["answer"] != b""
        )
    assert draw(table)
    few, given, asked = answers(rows[:2], odds=odds[:2])
    assert len([*few.views(given, asked)][1].rows) == 3
    # The best tau withholds one answer of 201.
    odds = np.linspace(-1, 1, 201)
    one, given, asked = answers([("film", "film")] * 200 + [("film", "")], odds=odds)
    assert max(row[1] for row in [*one.views(given, asked)][1].rows) == 1


def predictions_of_spans(predictions):
    """The outputs of `decode` for the spans, without places."""
    count = len(predictions["null_odds"])
    places = {name: np.zeros((count, 1), np.int32) for name in ("nbest_starts", "nbest_ends")}
    places |= {f"nbest_character_{side}": np.zeros((count, 1), np.int32) for side in ("starts", "ends")}
    return predictions | places


# -----------------------------------------------------------------------------------------------------------
# Choices and masks


@pytest.mark.parametrize(
    "prefers, title",
    [("first", "Choices by position of the ending"), ("long", "Choices by length of the ending")],
)
def test_a_model_that_prefers_a_place_shows(prefers, title):
    """It chooses place 1 always, and is right only where that is right."""
    draw_numbers = np.random.default_rng(0)
    lengths = np.array([draw_numbers.permutation(4) for _ in range(40)])
    endings = np.array([[b"e" * (size + 1) for size in row] for row in lengths], object)
    right = np.arange(40, dtype=np.int32) % 4
    right[-1] = -1
    chosen = np.zeros(40, int) if prefers == "first" else lengths.argmax(axis=1)
    probabilities = np.full((40, 4), 0.1, np.float32)
    probabilities[np.arange(40), chosen] = 0.7
    raw = {"context": texts(*["c"] * 40), "endings": endings, "label": right}
    predictions = {"label": chosen, "probabilities": probabilities}
    task = MultipleChoice(num_choices=4)
    tables = {table.title: table for table in task.views(predictions, raw)}
    rows = tables[title].rows
    assert [row[1] for row in rows] == [1, 0, 0, 0] and sum(row[2] for row in rows) == pytest.approx(1)
    assert [row[3] for row in rows] == [1, 0, 0, 0]
    for table in tables.values():
        accuracy = dict(task.evaluate(predictions, raw))["accuracy"]
        if table.chart == "lines":
            assert sum(row[2] * (row[3] or 0) for row in table.rows) == pytest.approx(accuracy)
            assert draw(table)
    judged = task.judge(predictions, raw)
    assert judged.right.mean() == accuracy and judged.rows.tolist() == [*range(39)]
    assert judged.predicted[3] == endings[3, chosen[3]].decode()


KINDS_OF_WORDS = {
    "Paris": "word",
    "the": "stop word",
    "1,000": "number",
    ",": "punctuation",
    "été": "word",
    "’": "punctuation",
}


def test_masks_by_kind_of_word_and_rank():
    assert {answer: kind_of_word(answer) for answer in KINDS_OF_WORDS} == KINDS_OF_WORDS
    ranks = np.float32([1, 1.5, 7, 200, 0])
    raw = {"text": texts(*["[MASK] ."] * 5), "answer": texts("Paris", "the", "Rome", ",", "unread")}
    predictions = {"rank": ranks, "mask_tokens": np.full((5, 1, 1), b"Paris", object)}
    predictions["mask_scores"] = np.full((5, 1, 1), 0.5, np.float32)
    up_to, counts = FillMask().views(predictions, raw)
    assert up_to.columns == ("rank", "all (4)", "word (2)", "stop word (1)", "punctuation (1)")
    measures = dict(FillMask().evaluate(predictions, raw))
    assert up_to.rows[0] == (1, measures["accuracy"], 0.5, 0, 0) and up_to.rows[4][1] == measures["top_5"]
    assert counts.rows == [
        ("1", 1), ("2 to 5", 1), ("6 to 10", 1), ("11 to 100", 0), ("101 to 1000", 1), ("1001 or more", 0)
    ]  # fmt: skip
    assert draw(up_to) and draw(counts)
    judged = FillMask().judge(predictions, raw)
    assert judged.right.mean() == measures["accuracy"] and judged.rows.tolist() == [0, 1, 2, 3]


# -----------------------------------------------------------------------------------------------------------
# Every kind of task, and the tables that they share


@pytest.mark.long
@pytest.mark.parametrize("name", ["tags", "paths", "answers", "choice", "masks"])
def test_a_finished_run_has_tables_that_draw_and_judged_examples(name, finished):
    made = finished(name)
    run = load_run(made.run, data=made.data)
    predictions, raw = predict(
        run.task, run.preprocess, run.model, run.task.examples("validation"), batch_size=7
    )
    with warnings.catch_warnings(action="error"):
        tables = [*run.task.report(predictions, raw), *run.task.views(predictions, raw)]
        judged = run.task.judge(predictions, raw)
    assert len({table.title for table in tables}) == len(tables) > 2
    for table in tables:
        assert {len(row) for row in table.rows} <= {len(table.columns)}
        assert not table.chart or (draw(table) and table.about)
    measures = dict(run.task.evaluate(predictions, raw))
    columns = [judged.gold, judged.predicted, judged.right, *judged.texts.values()]
    assert {len(column) for column in columns} == {len(judged.rows)} and np.isfinite(judged.right).all()
    if name in ("answers", "choice", "masks"):
        percent = 100 if name == "answers" else 1
        assert percent * judged.right.mean() == pytest.approx(measures[run.task.measure])


UNIT = np.float32([[1, 0], [0, 1], [0.6, 0.8]])
# The vectors of each row's texts, and the rows of the table.
VECTOR_VIEWS = {
    "scores": (
        UNIT[[[0, 0], [0, 2], [0, 1]]],
        {"label": np.float32([1, 0.5, 0])},
        [(1, 1), (0.5, 0.6), (0, 0)],
    ),
    "pairs": (UNIT[[[0, 0], [1, 2], [2, 1]]], {}, [("1", 1 / 3, 1), ("2 to 5", 2 / 3, 2)]),
    "classes": (UNIT[[[0], [1], [2]]], {"label": np.int32([0, 1, 1])}, [("1", 1.0, 2), ("0", 0.0, 1)]),
}


@pytest.mark.parametrize("form", VECTOR_VIEWS)
def test_vectors_of_each_form_are_charted(form):
    vectors, label, wanted = VECTOR_VIEWS[form]
    names = np.char.add(b"text ", np.arange(vectors.shape[0] * vectors.shape[1]).astype("S"))
    raw = {"text": names.reshape(vectors.shape[:2]).astype(object), **label}
    (table,) = Embedding().views({"embedding": vectors}, raw)
    assert draw(table) and len(table.rows) == len(wanted)
    for row, one in zip(table.rows, wanted, strict=True):
        assert row[0] == pytest.approx(one[0]) and row[1:] == pytest.approx(one[1:], abs=1e-6)


def test_vectors_of_a_teacher_are_charted():
    raw = {"text": np.array([[b"a"], [b"b"]], object), "label": UNIT[:2]}
    (table,) = Embedding().views({"embedding": UNIT[:2, np.newaxis]}, raw)
    assert draw(table) and sum(count for _, count in table.rows) == 2


def test_tasks_without_labels_name_themselves():
    task = ReplacedTokens()
    assert [*task.views({}, {})] == [] and task.judge({}, {}) is None
    with pytest.raises(BertKerasError, match=f"^{task.name} has no .*examples"):
        task.examples("validation")


@pytest.mark.parametrize(
    "sizes, lows, names",
    [
        ([1, 2, 3, 9], (1, 2, 4), ["1", "2 to 3", "2 to 3", "4 or more"]),
        ([0, 1], (1, 2), ["1", "1"]),
        ([], (1, 2), []),
    ],
)  # fmt: skip
def test_groups_of_sizes(sizes, lows, names):
    assert name_sizes(sizes, lows) == names


def test_one_group_is_no_table_and_rare_names_are_joined():
    assert [*by_group("t", ("a", "b", "c"), ["x", "x"], np.ones(2), about="")] == []
    pairs = {(str(i), str(i)): 99 - i for i in range(20, 40)} | {("20", "39"): 1}
    (table,) = confusion("t", pairs, about="")
    assert table.columns[1:] == (*map(str, range(20, 20 + NAMES_SHOWN)), OTHER)
    assert sum(value for row in table.rows for value in row[1:]) == sum(pairs.values())
    assert table.rows[0][-1] == 1 and table.rows[-1][0] == OTHER
