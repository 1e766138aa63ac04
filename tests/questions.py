"""Questions and files that tests of SQuAD share."""

import json
from pathlib import Path

import numpy as np
import pytest
from runs import VOCABULARY

from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.text.wordpiece import WordPiece

NORMANS = "The Normans gave their name to Normandy, a region in France. Rollo led them."


CHINESE = "北京是中华人民共和国的首都,位于华北平原的北部。全市常住人口为2189万人,面积16410平方公里。"


def question(id_: str, context: str, *answers: str | tuple[str, int], text: str = "who?") -> dict:
    """A question about a context; an answer stands at its first place, or where it says."""
    places = [(a, context.index(a)) if isinstance(a, str) else a for a in answers]
    return {
        "id": id_,
        "question": text,
        "context": context,
        "answers": [{"text": answer, "answer_start": start} for answer, start in places],
    }


def squad_json(*questions: dict) -> str:
    """The content of a file in SQuAD's form, a paragraph for each question."""
    paragraphs = [
        {"context": entry["context"], "qas": [{k: v for k, v in entry.items() if k != "context"}]}
        for entry in questions
    ]
    return json.dumps({"version": "any", "data": [{"title": "any", "paragraphs": paragraphs}]})


def write(path: Path, *questions: dict) -> Path:
    """A file in SQuAD's form."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(squad_json(*questions))
    return path


def read(task: QuestionAnswering, split: str) -> dict[str, np.ndarray]:
    """All examples of a split, column by column."""
    return next(task.examples(split).batch(100_000).as_numpy_iterator())


@pytest.fixture(scope="module")
def small() -> WordPiece:
    return WordPiece(VOCABULARY, lower_case=True)


GOOD = question("q7", NORMANS, "France")
