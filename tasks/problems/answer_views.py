"""The answers of a report: each question has one outcome, and groups by its question word and its answer.

In: the F1 of each question, decoded predictions and raw examples. Out: tables.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from bert_keras.tasks.data.squad import ANSWER_START, ANSWERS, CONTEXT, QUESTION
from bert_keras.tasks.problems.answer_spans import NO_SPAN
from bert_keras.tasks.problems.views import by_group, name_sizes, size_groups
from bert_keras.tasks.report import Arrays, Table, plain

EXACT, PARTIAL, DISJOINT = "exact", "partial overlap", "no overlap"
WITHHELD, ANSWERED = "withheld though answerable", "answered though unanswerable"
OUTCOMES = (EXACT, PARTIAL, DISJOINT, WITHHELD, ANSWERED)
QUESTION_WORDS = re.compile(r"\b(how many|how much|how|what|when|where|which|who|whom|whose|why)\b")
QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")
LENGTHS = (1, 2, 3, 4, 6, 11)  # words of an answer
POINTS = 60  # of the curve over tau
_COUNT = ("f1", "questions")


def outcome(*, answer: str, golds: list[str], exact: float, f1: float) -> str:
    """The outcome of a question, one of OUTCOMES. answer: "" for none; golds: empty where the question has no answer."""
    if exact:
        return EXACT
    if not golds:
        return ANSWERED
    if not answer:
        return WITHHELD
    return PARTIAL if f1 else DISJOINT


def count_outcomes(exact: np.ndarray, f1: np.ndarray, predictions: Arrays, raw: Arrays) -> Table:
    """The number of questions with each outcome, and their fraction. exact, f1: float [N], 0 to 1."""
    given = zip(plain(predictions["answer"]), raw[ANSWERS], exact, f1, strict=True)
    count = Counter(outcome(answer=a, golds=json.loads(golds), exact=e, f1=f) for a, golds, e, f in given)
    rows = [(kind, count[kind], count[kind] / len(f1)) for kind in OUTCOMES if count[kind]]
    about = (
        "Exact: the answer equals a labelled answer, apart from articles, punctuation and capitals. Partial overlap: both share "
        "words. No overlap: they share none."
    )
    return Table("What became of the questions", ("outcome", "questions", "fraction"), rows, "bars", about)


def views(f1: np.ndarray, raw: Arrays) -> Iterator[Table]:
    """Yields F1 by question word, by words of the answer, and by the place of the answer. f1: float [N]."""
    words = [QUESTION_WORDS.search(question.lower()) for question in plain(raw[QUESTION])]
    groups = [found[0] if found else "other" for found in words]
    about = "The first question word of a question, in English. A bar is the mean F1; groups of few questions vary by chance."
    yield from by_group("F1 by question word", ("word", *_COUNT), groups, f1, about=about)

    golds = [json.loads(answers) for answers in raw[ANSWERS]]
    answerable = [i for i, texts in enumerate(golds) if texts]
    groups = name_sizes((len(golds[i][0].split()) for i in answerable), LENGTHS)
    about = "Words of the first labelled answer, for questions that have an answer."
    columns, order = ("words", *_COUNT), size_groups(LENGTHS)
    yield from by_group(
        "F1 by words of the answer", columns, groups, f1[answerable], about=about, order=order
    )

    placed = [i for i in answerable if raw[ANSWER_START][i] >= 0]
    places = (4 * int(raw[ANSWER_START][i]) // max(len(raw[CONTEXT][i]), 1) for i in placed)
    groups = [QUARTERS[min(place, 3)] for place in places]
    about = "The part of the text in which the first labelled answer starts."
    columns = ("part", *_COUNT)
    yield from by_group("F1 by place of the answer", columns, groups, f1[placed], about=about, order=QUARTERS)


def curve(taus: np.ndarray, f1: np.ndarray, null_odds: np.ndarray, *, tau: float) -> Table:
    """At most POINTS points of `QuestionAnswering.tau_curve` with the highest one, and the answered fraction of the questions.

    null_odds: float32 [N]; tau: the one in use
    """
    real = np.flatnonzero(np.abs(taus) < -NO_SPAN / 2)  # a question without any span has the odds -NO_SPAN
    best = int(f1[real].argmax())
    chosen = real[np.unique([best, *np.linspace(0, len(real) - 1, POINTS - 1).astype(int)])]
    rows = [(float(taus[i]), float(f1[i]), float(np.mean(null_odds < -taus[i]))) for i in chosen]
    about = (
        "A question is answered where its best answer scores more than no answer plus tau: a higher tau withholds more answers. "
        f"Tau is {tau:z.2f} here; F1 is highest, {f1[real[best]]:.4f}, at {taus[real[best]]:z.2f}."
    )
    return Table("F1 and answered questions over tau", ("tau", "f1", "answered"), rows, "lines", about)
