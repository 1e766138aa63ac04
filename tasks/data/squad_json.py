"""Reads questions in SQuAD's format: the official JSON, or TensorFlow Datasets.

Out: examples {"id", "question", "context", "answers": string, "answer_start", "answer_end": int32}. `answers` is a JSON list of
the gold answers, empty for no answer; start and end are the bytes of the first one in the UTF-8 context, -1 for no answer.
Source: Rajpurkar et al. 2016 and 2018.
"""

import json
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import is_whole, parse_json, short
from bert_keras.tasks.data.columns import values_of
from bert_keras.tasks.data.sources import (
    check_text,
    load_tfds,
    read_text,
    refuse_forms,
)

ID, QUESTION, CONTEXT = "id", "question", "context"
ANSWERS = "answers"
ANSWER_START, ANSWER_END = "answer_start", "answer_end"  # bytes of the context, the end exclusive
# Of a file, which takes six times as much memory to read. 400 words of each of TriviaQA's 110,648 documents are at most 320 MB.
MAX_FILE_BYTES = 500_000_000


class Version(NamedTuple):
    """The differences between the two data sets.

    title: the name for people
    dataset: the name in TensorFlow Datasets
    files: the file names of each split
    unanswerable: True where some questions have no answer
    """

    title: str
    dataset: str
    files: Mapping[str, tuple[str, ...]]
    unanswerable: bool


def _files(version: str) -> dict[str, tuple[str, ...]]:
    return {
        "train": (f"train-{version}.json", "train.json"),
        "validation": (f"dev-{version}.json", "dev.json"),
    }


VERSIONS = {
    "squad1.1": Version(
        title="SQuAD 1.1",
        dataset="squad/v1.1",
        files=_files("v1.1"),
        unanswerable=False,
    ),
    "squad2.0": Version(
        title="SQuAD 2.0",
        dataset="squad/v2.0",
        files=_files("v2.0"),
        unanswerable=True,
    ),
}


class Question(NamedTuple):
    """One question from a file, unchanged.

    starts: the start of each answer, in characters of the context
    where: the file and the question, for errors
    """

    id: str
    question: str
    context: str
    answers: list[str]
    starts: list[int]
    where: str


def columns_of(
    questions: Iterable[Question], where: str, *, version: Version, train: bool
) -> dict[str, np.ndarray]:
    """The examples as columns [N]. Raises BertKerasError for an unusable question, with its id."""
    rows: list[tuple[Any, ...]] = []
    seen: set[str] = set()
    misplaced: list[str] = []
    for question in questions:
        _check(question, seen, version)
        start, end = _offsets(question)
        if train and question.answers and start < 0:
            misplaced.append(question.id)
            continue
        answers = json.dumps(question.answers, ensure_ascii=False)
        texts = (question.id, question.question, question.context, answers)
        rows.append((*(text.encode() for text in texts), start, end))
    if misplaced:
        warnings.warn(
            f"{where}: skipped {len(misplaced)} questions whose answer is blank or does not start at its answer_start, first "
            f"{misplaced[0]}",
            stacklevel=2,
        )
    if not rows:
        raise BertKerasError(f"{where} has no questions; give at least one.")
    names = (ID, QUESTION, CONTEXT, ANSWERS, ANSWER_START, ANSWER_END)
    dtypes = (object, object, object, object, np.int32, np.int32)
    return {
        name: np.array(column, dtype)
        for name, column, dtype in zip(names, zip(*rows, strict=True), dtypes, strict=True)
    }


def columns_of_answers(
    questions: np.ndarray, contexts: np.ndarray, y: Any, *, version: Version
) -> dict[str, np.ndarray]:
    """The columns of answers in Python, as `QuestionAnswering.targets` takes them. questions, contexts: bytes [N].

    Raises BertKerasError, with the row, for an answer that is not in its context at its start.
    """
    if isinstance(y, Mapping) or hasattr(y, "columns"):
        pairs = zip(values_of(y["text"]), values_of(y["answer_start"]), strict=True)
        y = [{"text": text, "answer_start": start} for text, start in pairs]
    rows = values_of(y)
    if len(rows) != len(questions):
        raise BertKerasError(
            f"there are {len(questions)} questions and {len(rows)} answers; give one for each."
        )
    made = []
    for row, (question, context, answer) in enumerate(zip(questions, contexts, rows, strict=True)):
        where = f"row {row}"
        if answer is not None and not (isinstance(answer, Mapping) and {"text", "answer_start"} <= {*answer}):
            raise BertKerasError(
                f'{where}: the answer is {answer!r}; give {{"text": ..., "answer_start": ...}} or None.'
            )
        texts, starts = ([], []) if answer is None else (answer["text"], answer["answer_start"])
        texts, starts = (
            ([texts], [starts]) if isinstance(texts, str) else (values_of(texts), values_of(starts))
        )
        made.append(
            Question(where, question.decode(), context.decode(), [*texts], [*map(int, starts)], where)
        )
        if texts and _offsets(made[-1])[0] < 0:
            raise BertKerasError(
                f"{where}: the answer {texts[0]!r} is not in the context at character {starts[0]}; give its first character."
            )
    columns = columns_of(made, "y", version=version, train=False)
    return {name: columns[name] for name in (ANSWERS, ANSWER_START, ANSWER_END)}


def _check(question: Question, seen: set[str], version: Version) -> None:
    """Raises BertKerasError for an unusable question; adds its id to `seen`."""
    if question.id in seen:
        raise BertKerasError(f"{question.where}: the id occurs twice; give every question its own id.")
    seen.add(question.id)
    if not question.context.strip():
        raise BertKerasError(
            f"{question.where}: the context is empty; give the text that contains the answer."
        )
    if not question.answers and not version.unanswerable:
        raise BertKerasError(
            f"{question.where}: the question has no answer, but {version.title} needs one for each; use the task squad2.0."
        )
    if not all(question.answers):
        raise BertKerasError(f"{question.where}: the text of an answer is empty; give a part of the context.")
    check_text(question.where, question.id, question.question, question.context, *question.answers)


def _offsets(question: Question) -> tuple[int, int]:
    """The first byte and the end byte of the first answer in the context; -1 for a missing, blank or misplaced answer."""
    if not question.answers:
        return -1, -1
    text, start = question.answers[0], question.starts[0]
    if start < 0 or not question.context.startswith(text, start) or _is_blank(text):
        return -1, -1
    first = len(question.context[:start].encode())
    return first, first + len(text.encode())


def _is_blank(text: str) -> bool:
    """True if the text has only white space and control characters, so that it has no tokens."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def from_tfds(name: str, split: str) -> Iterator[Question]:
    """Yields the questions of a split in TensorFlow Datasets."""
    examples, _ = load_tfds(name, split, instead="a folder of the official JSON files (--data)")
    for example in examples.as_numpy_iterator():
        id_, question, context = (example[key].decode() for key in (ID, QUESTION, CONTEXT))
        yield Question(
            id=id_,
            question=question,
            context=context,
            answers=[text.decode() for text in example[ANSWERS]["text"]],
            starts=example[ANSWERS]["answer_start"].tolist(),
            where=f"{name}, question {id_}",
        )


def from_json(path: Path) -> Iterator[Question]:
    """Yields the questions of a file. Raises BertKerasError for a file in another format, with the position in the file."""
    refuse_forms(
        path,
        (".csv", ".tsv", ".jsonl", ".parquet"),
        "questions are read from SQuAD's .json; write that, or give the columns to fit of bert_keras.question_answerer in Python",
    )
    content = parse_json(read_text(path, limit=MAX_FILE_BYTES, instead="leave out questions"), source=path)
    for i, article in enumerate(_member(content, "data", list, where=str(path))):
        at = f"{path}, data[{i}]"
        for j, paragraph in enumerate(_member(article, "paragraphs", list, where=at)):
            at = f"{path}, data[{i}].paragraphs[{j}]"
            context = _member(paragraph, CONTEXT, str, where=at)
            for k, entry in enumerate(_member(paragraph, "qas", list, where=at)):
                id_ = _member(entry, ID, str, where=f"{at}.qas[{k}]")
                yield _question(id_, context, entry, where=f"{path}, question {id_}")


def _question(id_: str, context: str, entry: Mapping[str, Any], *, where: str) -> Question:
    answers = _member(entry, ANSWERS, list, where=where)
    if "is_impossible" in entry and _member(entry, "is_impossible", bool, where=where) == bool(answers):
        raise BertKerasError(
            f"{where}: is_impossible is {str(entry['is_impossible']).lower()} with {len(answers)} answers; give either answers "
            "or is_impossible true."
        )
    return Question(
        id=id_,
        question=_member(entry, QUESTION, str, where=where),
        context=context,
        answers=[_member(answer, "text", str, where=where) for answer in answers],
        starts=[_member(answer, ANSWER_START, int, where=where) for answer in answers],
        where=where,
    )


_KINDS = {list: "list", str: "string", int: "whole number", bool: "true or false"}


def _member(value: Any, name: str, kind: type, *, where: str) -> Any:
    """value[name]. Raises BertKerasError if it is missing or has another type."""
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or (kind is int and not is_whole(found)):
        given = f"is {short(found)}" if isinstance(value, dict) and name in value else "is missing"
        raise BertKerasError(f"{where}: {name!r} {given}; give a {_KINDS[kind]}, as in SQuAD's JSON.")
    return found
