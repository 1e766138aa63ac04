"""Reads questions in SQuAD's format: the official JSON, or TensorFlow Datasets; and writes TriviaQA in this format.

Out: examples {"id", "question", "context", "answers": string, "answer_start", "answer_end": int32}. `answers` is a JSON list of
the gold answers, empty for no answer; start and end are the bytes of the first one in the UTF-8 context, -1 for no answer.
Source: Rajpurkar et al. 2016; Rajpurkar et al. 2018.
"""

import itertools
import json
import re
import string
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.io.files import atomic_file
from bert_keras.io.json_files import is_integer, parse_json, shortened
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.columns import list_values
from bert_keras.tasks.data.sources import check_text, load_tfds, read_text, refuse_forms
from bert_keras.tasks.options import TriviaQaOptions

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
    "squad1.1": Version(title="SQuAD 1.1", dataset="squad/v1.1", files=_files("v1.1"), unanswerable=False),
    "squad2.0": Version(title="SQuAD 2.0", dataset="squad/v2.0", files=_files("v2.0"), unanswerable=True),
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


def make_columns(
    questions: Iterable[Question], where: str, *, version: Version, train: bool
) -> dict[str, np.ndarray]:
    """The examples as columns [N]. Raises BertKerasError for an unusable question, with its id."""
    rows, seen, misplaced = list[tuple[Any, ...]](), set[str](), list[Question]()
    for question in questions:
        _check(question, seen, version)
        start, end = _offsets(question)
        if train and question.answers and start < 0:
            misplaced.append(question)
            continue
        given = (*question[:3], json.dumps(question.answers, ensure_ascii=False))
        rows.append((*(text.encode() for text in given), start, end))
    if misplaced and not rows:
        first = misplaced[0]
        there = first.context[max(first.starts[0], 0) :][: len(first.answers[0])]
        raise BertKerasError(
            f"{where}: none of {len(misplaced)} answers stands at its answer_start, in characters of the context; the first, of "
            f"{first.id}, is {shortened(first.answers[0])} at {first.starts[0]}, where the context has {shortened(there)}."
        )
    if misplaced:
        warnings.warn(
            f"{where}: skipped {len(misplaced)} questions whose answer is blank or does not start at its answer_start, first "
            f"{misplaced[0].id}",
            stacklevel=2,
        )
    if not rows:
        raise BertKerasError(f"{where} has no questions; give at least one.")
    *texts, starts, ends = zip(*rows, strict=True)
    columns = zip((ID, QUESTION, CONTEXT, ANSWERS), texts, strict=True)
    return {name: np.array(column, object) for name, column in columns} | {
        ANSWER_START: np.array(starts, np.int32),
        ANSWER_END: np.array(ends, np.int32),
    }


def make_answer_columns(
    questions: np.ndarray, contexts: np.ndarray, y: Any, *, version: Version
) -> dict[str, np.ndarray]:
    """The columns of answers in Python, as `QuestionAnswering.targets` takes them. questions, contexts: bytes [N].

    Raises BertKerasError, with the row, for an answer that is not in its context at its start.
    """
    if isinstance(y, Mapping) or hasattr(y, "columns"):
        pairs = zip(list_values(y["text"]), list_values(y["answer_start"]), strict=True)
        y = [{"text": text, "answer_start": start} for text, start in pairs]
    rows = list_values(y)
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
        if isinstance(texts, str):
            texts, starts = [texts], [starts]
        texts, starts = list_values(texts), [*map(int, list_values(starts))]
        made.append(Question(where, question.decode(), context.decode(), texts, starts, where))
        if texts and _offsets(made[-1])[0] < 0:
            raise BertKerasError(
                f"{where}: the answer {texts[0]!r} is not in the context at character {starts[0]}; give its first character."
            )
    columns = make_columns(made, "y", version=version, train=False)
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


def load_tfds_questions(name: str, split: str) -> Iterator[Question]:
    """Yields the questions of a split in TensorFlow Datasets."""
    examples, _ = load_tfds(name, split, instead="a folder of the official JSON files (--data)")
    for example in examples.as_numpy_iterator():
        id_, question, context = _decode(*(example[key] for key in (ID, QUESTION, CONTEXT)))
        answers, starts = example[ANSWERS]["text"], example[ANSWERS]["answer_start"].tolist()
        yield Question(id_, question, context, [*_decode(*answers)], starts, f"{name}, question {id_}")


def _decode(*values: bytes) -> tuple[str, ...]:
    return tuple(value.decode() for value in values)


def is_squad_file(path: str) -> bool:
    """True for the name of a file in SQuAD's format."""
    return path.lower().removesuffix(".gz").endswith(".json")


def read_unanswered(path: Path) -> Iterator[dict[str, str]]:
    """Yields the id, the question and the context of each question of a file, which needs no answers."""
    for id_, context, entry, where in _read_entries(path):
        question = _member(entry, QUESTION, str, where=where)
        check_text(where, id_, question, context)
        yield {ID: id_, QUESTION: question, CONTEXT: context}


def read_questions(path: Path) -> Iterator[Question]:
    """Yields the questions of a file. Raises BertKerasError for a file in another format, with the position in the file."""
    return (_question(id_, context, entry, where=where) for id_, context, entry, where in _read_entries(path))


def _read_entries(path: Path) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Yields the id, the context, and the object of each question, and its place for errors."""
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
                yield id_, context, entry, f"{path}, question {id_}"


def _question(id_: str, context: str, entry: Mapping[str, Any], *, where: str) -> Question:
    answers = _member(entry, ANSWERS, list, where=where)
    if "is_impossible" in entry and _member(entry, "is_impossible", bool, where=where) == bool(answers):
        raise BertKerasError(
            f"{where}: is_impossible is {str(entry['is_impossible']).lower()} with {len(answers)} answers; give either answers "
            "or is_impossible true."
        )
    question = _member(entry, QUESTION, str, where=where)
    texts = [_member(answer, "text", str, where=where) for answer in answers]
    starts = [_member(answer, ANSWER_START, int, where=where) for answer in answers]
    return Question(id_, question, context, texts, starts, where)


_KINDS = {list: "list", str: "string", int: "whole number", bool: "true or false"}


def _member(value: Any, name: str, kind: type, *, where: str) -> Any:
    """value[name]. Raises BertKerasError if it is missing or has another type."""
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or (kind is int and not is_integer(found)):
        given = f"is {shortened(found)}" if isinstance(value, dict) and name in value else "is missing"
        raise BertKerasError(f"{where}: {name!r} {given}; give a {_KINDS[kind]}, as in SQuAD's JSON.")
    return found


# -----------------------------------------------------------------------------------------------------------
# TriviaQA's Wikipedia documents as questions in SQuAD 1.1's JSON, for a first fine-tuning before SQuAD
#
# In: TensorFlow Datasets' `trivia_qa/rc`, whose `entity_pages` are TriviaQA-Wiki. Out: a file with a paragraph for each question
# and document, the first 400 tokens of the document, if one of the question's possible answers is in them. Tokens are words
# between white space. Source: Devlin et al. 2019, sec. 4.2; Joshi et al. 2017 (TriviaQA).

TRIVIAQA = "trivia_qa/rc"
# The features to read; the pages of a web search are many times as large.
TRIVIAQA_FEATURES = {
    "question": True,
    "question_id": True,
    "entity_pages": {"filename", "title", "wiki_context"},
    "answer": {"value", "aliases", "normalized_aliases"},
}
_JSON_START, _JSON_END = b'{"version": "1.1", "data": [\n', b"\n]}\n"
_ARTICLES = {"a", "an", "the"}
_SEPARATORS = re.escape(string.punctuation + "‘’´`")
_WORD = re.compile(rf"[^\s{_SEPARATORS}]+")


class TriviaQaCounts(NamedTuple):
    """Questions with a paragraph, all questions, paragraphs, and all documents; each is counted once."""

    answered: int
    questions: int
    paragraphs: int
    documents: int


def convert_triviaqa(
    split: str,
    output: str | Path,
    *,
    tokens: int = TriviaQaOptions.tokens,
    limit: int | None = None,
    progress: Callable[[int], Any] = lambda count: None,
) -> TriviaQaCounts:
    """Writes the paragraphs of a split, "train" or "validation"; the file is complete or does not exist.

    tokens: the length of a paragraph
    limit: read only the first questions
    progress: called with the number of questions that were read since the last call

    Raises BertKerasError if `output` exists, if no document has an answer, and for a file over MAX_FILE_BYTES, which the task
    does not read; and MissingFileError where the data cannot be loaded.
    """
    path = to_path(output)
    if path.exists():
        raise BertKerasError(f"{path} already exists; give another name, or remove it first.")
    instead = "a folder that has it, in the environment variable TFDS_DATA_DIR"
    examples, _ = load_tfds(TRIVIAQA, split, instead=instead, only=TRIVIAQA_FEATURES)
    path.parent.mkdir(parents=True, exist_ok=True)
    questions, answered = set[str](), set[str]()
    paragraphs = documents = 0
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(_JSON_START)
        read = _read_documents(examples.take(limit or -1).as_numpy_iterator(), tokens, progress)
        for question, article in read:
            questions.add(question)
            documents += 1
            if article is None:
                continue
            answered.add(question)
            file.write(b",\n" if paragraphs else b"")
            file.write(json.dumps(article, ensure_ascii=False).encode())
            paragraphs += 1
            if file.tell() + len(_JSON_END) > MAX_FILE_BYTES:
                raise BertKerasError(
                    f"paragraphs of {tokens} tokens take more than {MAX_FILE_BYTES:,} bytes, and finetune reads no larger "
                    "file; give fewer tokens, or a limit on the questions."
                )
        file.write(_JSON_END)
        if not paragraphs:
            raise BertKerasError(
                f"none of {documents} documents has an answer in its first {tokens} tokens; give more tokens or questions."
            )
    return TriviaQaCounts(len(answered), len(questions), paragraphs, documents)


def _read_documents(
    examples: Iterable[Mapping[str, Any]], tokens: int, progress: Callable[[int], Any]
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yields (question id, article) once for each document; the article is None if the document has no answer.

    TensorFlow Datasets has the questions of TriviaQA's files for the web and for Wikipedia, so that many are there twice.
    """
    seen = set[str]()
    for example in examples:
        pages, answer = example["entity_pages"], example["answer"]
        answers = _decode(answer["value"], *answer["aliases"], *answer["normalized_aliases"])
        columns = (_decode(*pages[name]) for name in ("filename", "title", "wiki_context"))
        for file, title, document in zip(*columns, strict=True):
            id_ = f"{example['question_id'].decode()}--{file}"
            if id_ in seen:
                continue
            seen.add(id_)
            context = take_first_tokens(document, tokens)
            article = None
            if found := find_answers(context, answers):
                entry = {ID: id_, QUESTION: example["question"].decode(), ANSWERS: found}
                article = {"title": title, "paragraphs": [{CONTEXT: context, "qas": [entry]}]}
            yield example["question_id"].decode(), article
        progress(1)


def take_first_tokens(document: str, count: int) -> str:
    """A document up to the end of its first tokens, words between white space; the text is unchanged."""
    ends = (match.end() for match in re.finditer(r"\S+", document))
    last = next(itertools.islice(ends, count - 1, None), len(document))
    return document[:last]


def find_answers(context: str, answers: Iterable[str]) -> list[dict[str, Any]]:
    """The answers in a context as SQuAD has them, [{"text", "answer_start"}], the first and longest one first.

    An answer is found where its words are, in any case and with any punctuation; an article before it is no part of it. Its text
    is that of the context, and each text is listed once, where it is first.
    """
    words = _split_words(context)
    line = f" {' '.join(word for word, _, _ in words)} "
    found = set[tuple[int, int]]()
    for answer in {_without_article(answer) for answer in answers} - {""}:
        if (at := line.find(f" {answer} ")) >= 0:
            first = line.count(" ", 0, at)
            last = first + answer.count(" ")
            found.add((words[first][1], words[last][2]))
    texts: dict[str, int] = {}
    for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
        texts.setdefault(context[start:end], start)
    return [{"text": text, ANSWER_START: start} for text, start in texts.items()]


def _without_article(answer: str) -> str:
    """The words of an answer, joined by spaces, without articles at the start; nothing is left of an answer of articles alone."""
    words = (word for word, _, _ in _split_words(answer))
    return " ".join(itertools.dropwhile(_ARTICLES.__contains__, words))


def _split_words(text: str) -> list[tuple[str, int, int]]:
    """The words of a text in lower case, without punctuation, each with its start and end."""
    return [(match[0].lower(), *match.span()) for match in _WORD.finditer(text)]
