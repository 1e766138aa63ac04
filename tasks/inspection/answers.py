"""The logits that stand for the answers of a model: one function for each kind of task.

In: the outputs of a model for the rows of one example, [rows, ...], and the example. Out: `Answer`s, the best one first;
none where the model found nothing, such as no entity.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import END_BYTES, MASKED_LM_WEIGHTS, MAX_CONTEXT, START_BYTES, VOCABULARY, WORD_INDEX
from bert_keras.tasks.problems.answer_spans import END_BYTE, START_BYTE
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.label_types import SCORE
from bert_keras.tasks.problems.multiple_choice import ENDINGS, MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tag_decoding import decode_words
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.report import Arrays
from bert_keras.tasks.task import Problem, Raw


class Answer(NamedTuple):
    """An answer and its logit.

    name: the answer as people read it
    row: the row that the logit is computed from
    at: places in the outputs of that row; the logit is the sum of the numbers there
    """

    name: str
    row: int
    at: tuple[tuple[int, ...], ...]


@functools.singledispatch
def answers_of(problem: Problem, outputs: np.ndarray, features: Arrays, raw: Raw) -> list[Answer]:
    """The answers to one example.

    outputs: of the model, [rows, ...]
    features: of the problem, [rows, ...]
    raw: the example, [1]

    Only for tasks that `check_explained` lets pass.
    """
    raise NotImplementedError


def check_explained(problem: Problem) -> None:
    """Raises BertKerasError for a task without such a logit: call it before long work."""
    if answers_of.dispatch(type(problem)) is answers_of.dispatch(object):
        raise BertKerasError(
            f"explain knows no logit of {problem.name}; it explains classes, labels, scores, answers to questions, entities, "
            "choices, masks and pairs of sentences."
        )


@answers_of.register
def _(problem: TextClassification, outputs: np.ndarray, features: Arrays, raw: Raw) -> list[Answer]:
    """The class, each label that applies, the largest first, or the score; of windows, the one with the largest logit."""
    names, means = problem.label_names, outputs.mean(axis=0)
    chosen = [i for i in np.argsort(-means, kind="stable") if means[i] > 0]
    if problem.classes or not names:
        chosen = [means.argmax()]
    return [Answer(names[i] if names else SCORE, int(outputs[:, i].argmax()), ((int(i),),)) for i in chosen]


@answers_of.register
def _(problem: QuestionAnswering, outputs: np.ndarray, features: Arrays, raw: Raw) -> list[Answer]:
    """The span, by its start and its end logit; for no answer, both at position 0, in the window where they are lowest."""
    decoded = problem.decode(_tensors(outputs), _tensors(features), raw)
    start, end = (int(decoded[name][0]) for name in (START_BYTE, END_BYTE))
    if start < 0:
        row = int((outputs[:, 0, 0] + outputs[:, 1, 0]).argmin())
        return [Answer("(no answer)", row, ((0, 0), (1, 0)))]
    row, first = np.argwhere((features[MAX_CONTEXT] > 0) & (features[START_BYTES] == start))[0].tolist()
    last = int(np.flatnonzero(features[END_BYTES][row] == end)[-1])
    return [Answer(decoded["answer"][0].numpy().decode("utf-8", "replace"), row, ((0, first), (1, last)))]


@answers_of.register
def _(problem: Tagging, outputs: np.ndarray, features: Arrays, raw: Raw) -> list[Answer]:
    """The entities, by the logits of the tags of their words, in the window that has the first word; the surest entity first."""
    given, known = _tensors(outputs), _tensors(features)
    words, decoded = decode_words(given, known, raw, crf=problem.crf), problem.decode(given, known, raw)
    starts, labels = words.starts[0].numpy(), words.labels.numpy()
    found = []
    columns = ("entity_start_byte", "entity_end_byte", "entity_text", "entity_label", "entity_score")
    for start, end, text, label, score in zip(*(decoded[name][0].numpy() for name in columns), strict=True):
        inside = np.flatnonzero((starts >= start) & (starts < end) & (start >= 0))
        places = [place for word in inside for place in np.argwhere(features[WORD_INDEX] == word).tolist()]
        if places:
            row = places[0][0]
            there = [place for r, place in places if r == row]
            at = tuple((place, int(labels[features[WORD_INDEX][row, place]])) for place in there)
            found.append((score, Answer(f"{text.decode('utf-8', 'replace')} ({label.decode()})", row, at)))
    return [answer for _, answer in sorted(found, key=lambda pair: -pair[0])]


@answers_of.register
def _(problem: MultipleChoice, outputs: np.ndarray, features: Arrays, raw: Raw) -> list[Answer]:
    """The chosen ending: its sequence is a row of its own, with one logit."""
    chosen = int(outputs[0].argmax())
    return [Answer(raw[ENDINGS][0, chosen].numpy().decode("utf-8", "replace"), chosen, ((),))]


@answers_of.register
def _(problem: FillMask, outputs: np.ndarray, features: Arrays, raw: Raw) -> list[Answer]:
    """The best token of each mask, in the order of the text."""
    best = problem.decode(_tensors(outputs), _tensors(features), raw)["mask_tokens"].numpy()[0, :, 0]
    masks = np.flatnonzero(features[MASKED_LM_WEIGHTS][0] > 0).tolist()
    logits = outputs[0, :, : len(features[VOCABULARY])]  # the embedding table may have more rows
    return [Answer(best[i].decode(), 0, ((i, int(logits[i].argmax())),)) for i in masks]


def _tensors(values: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, values)
