"""TriviaQA's Wikipedia documents as questions in SQuAD 1.1's JSON, for a first fine-tuning before SQuAD.

In: TensorFlow Datasets' `trivia_qa/rc`, whose `entity_pages` are TriviaQA-Wiki. Out: a file with a paragraph for each question
and document, the first 400 tokens of the document, if one of the question's possible answers is in them. Tokens are words between
white space. Source: Devlin et al. 2019, sec. 4.2; Joshi et al. 2017 (TriviaQA).
"""

import itertools
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError
from bert_keras.io.files import atomic_file
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.sources import load_tfds
from bert_keras.tasks.data.squad_json import (
    ANSWER_START,
    ANSWERS,
    CONTEXT,
    ID,
    MAX_FILE_BYTES,
    QUESTION,
)
from bert_keras.tasks.options import TriviaQaOptions

DATASET = "trivia_qa/rc"
# The features to read; the pages of a web search are many times as large.
READ = {
    "question": True,
    "question_id": True,
    "entity_pages": {"filename", "title", "wiki_context"},
    "answer": {"value", "aliases", "normalized_aliases"},
}
_START, _END = b'{"version": "1.1", "data": [\n', b"\n]}\n"
_ARTICLES = {"a", "an", "the"}
_SEPARATORS = re.escape(string.punctuation + "‘’´`")
_WORD = re.compile(rf"[^\s{_SEPARATORS}]+")


class Counts(NamedTuple):
    """Questions with a paragraph, all questions, paragraphs, and all documents; each is counted once."""

    answered: int
    questions: int
    paragraphs: int
    documents: int


class _Document(NamedTuple):
    """A document of a question, and its article in the file; None without an answer."""

    question: str
    article: dict[str, Any] | None


def convert(
    split: str,
    output: str | Path,
    *,
    tokens: int = TriviaQaOptions.tokens,
    limit: int | None = None,
    progress: Callable[[int], Any] = lambda count: None,
) -> Counts:
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
    examples, _ = load_tfds(DATASET, split, instead=instead, only=READ)
    path.parent.mkdir(parents=True, exist_ok=True)
    questions, answered = set[str](), set[str]()
    paragraphs = documents = 0
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(_START)
        for one in _documents(examples.take(limit or -1).as_numpy_iterator(), tokens, progress):
            questions.add(one.question)
            documents += 1
            if one.article is not None:
                answered.add(one.question)
                file.write(b",\n" if paragraphs else b"")
                file.write(json.dumps(one.article, ensure_ascii=False).encode())
                paragraphs += 1
                if file.tell() + len(_END) > MAX_FILE_BYTES:
                    raise BertKerasError(
                        f"paragraphs of {tokens} tokens take more than {MAX_FILE_BYTES:,} bytes, and finetune reads no larger "
                        "file; give fewer tokens, or a limit on the questions."
                    )
        file.write(_END)
        if not paragraphs:
            raise BertKerasError(
                f"none of {documents} documents has an answer in its first {tokens} tokens; give more tokens or questions."
            )
    return Counts(len(answered), len(questions), paragraphs, documents)


def _documents(
    examples: Iterable[Mapping[str, Any]], tokens: int, progress: Callable[[int], Any]
) -> Iterator[_Document]:
    """Yields each document of each question once.

    TensorFlow Datasets has the questions of TriviaQA's files for the web and for Wikipedia, so that many are there twice.
    """
    seen = set[str]()
    for example in examples:
        question, pages, answers = example["question_id"].decode(), example["entity_pages"], _answers(example)
        columns = (pages[name].tolist() for name in ("filename", "title", "wiki_context"))
        for file, title, document in itertools.starmap(_decoded, zip(*columns, strict=True)):
            id_ = f"{question}--{file}"
            if id_ in seen:
                continue
            seen.add(id_)
            context = first_tokens(document, tokens)
            article = None
            if found := find_answers(context, answers):
                entry = {ID: id_, QUESTION: example["question"].decode(), ANSWERS: found}
                article = {"title": title, "paragraphs": [{CONTEXT: context, "qas": [entry]}]}
            yield _Document(question, article)
        progress(1)


def _decoded(*values: bytes) -> tuple[str, ...]:
    return tuple(value.decode() for value in values)


def _answers(example: Mapping[str, Any]) -> list[str]:
    """The possible answers of a question, as the data set spells them."""
    answer = example["answer"]
    listed = [answer["value"], *answer["aliases"].tolist(), *answer["normalized_aliases"].tolist()]
    return list(_decoded(*listed))


def first_tokens(document: str, count: int) -> str:
    """A document up to the end of its first tokens, words between white space; the text is unchanged."""
    ends = (match.end() for match in re.finditer(r"\S+", document))
    last = next(itertools.islice(ends, count - 1, None), len(document))
    return document[:last]


def find_answers(context: str, answers: Iterable[str]) -> list[dict[str, Any]]:
    """The answers in a context as SQuAD has them, [{"text", "answer_start"}], the first and longest one first.

    An answer is found where its words are, in any case and with any punctuation; an article before it is no part of it. Its text
    is that of the context, and each text is listed once, where it is first.
    """
    words = _words(context)
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
    return " ".join(itertools.dropwhile(_ARTICLES.__contains__, (word for word, _, _ in _words(answer))))


def _words(text: str) -> list[tuple[str, int, int]]:
    """The words of a text in lower case, without punctuation, each with its start and end."""
    return [(match[0].lower(), *match.span()) for match in _WORD.finditer(text)]
