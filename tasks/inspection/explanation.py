"""The words that decided an answer: the logit of the answer, divided among the words of its text.

In: a model that takes strings, and a text. Out: `Explanation`, a score for each word: above 0 it speaks for the answer, below 0
against it.
Source: Sundararajan et al. 2017, sec. 3 and 5.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS, INPUT_WORD_IDS
from bert_keras.io.files import atomic_file
from bert_keras.io.paths import to_path
from bert_keras.pages.page import render
from bert_keras.tasks.inspection import reading
from bert_keras.tasks.inspection.answers import Answer, answers_of, check_explained
from bert_keras.tasks.inspection.offers import METHODS, PAGE, check_output
from bert_keras.tasks.report import Table
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.task import Features, model_inputs

STEPS, MOST_STEPS = 256, 2048
LARGEST_ERROR = 0.01  # of the difference of the two logits
TOKENS_AT_ONCE = 512  # of the points between the baseline and the text that are computed together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """The scores of the words of a text, for one answer.

    words, scores: the words as the text has them, and float64 [N]; above 0 for the answer, below 0 against it
    tokens, token_scores: the tokens that the model reads, and float64 [S]; those of a word sum to its score
    answer, logit: the answer and its logit: a class, label, score, choice or masked token has one, a span the sum of two, an
        entity the sum over its words
    baseline_logit: the same logit for the text with [PAD] in the place of its tokens
    completeness_error: the difference between the sum of the scores and `logit` - `baseline_logit`, as a fraction of the latter;
        None for gradient-input, whose sum means nothing
    method, steps: a name in METHODS, and the number of gradients
    note: the part of a long text that this is; "" for a whole text
    rest: the explanations of further answers: labels, entities or masks
    """

    words: tuple[str, ...]
    scores: np.ndarray
    tokens: tuple[str, ...]
    token_scores: np.ndarray
    answer: str
    logit: float
    baseline_logit: float
    completeness_error: float | None
    method: str
    steps: int
    note: str = ""
    rest: tuple["Explanation", ...] = ()

    @property
    def shares(self) -> np.ndarray:
        """The scores divided by the largest size of a score, float64 [N], -1 to 1."""
        return self.scores / (np.abs(self.scores).max(initial=0) or 1.0)

    def table(self) -> Table:
        """The words by falling size of their scores."""
        rows = sorted(zip(self.words, self.scores.tolist(), strict=True), key=lambda row: -abs(row[1]))
        return Table(f"The scores of the words for “{self.answer}”", ("word", "score"), rows)

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain values, without tokens and `rest`."""
        names = ("answer", "logit", "baseline_logit", "completeness_error", "method", "steps", "note")
        plain = {"words": [*self.words], "scores": self.scores.tolist()}
        return {name: getattr(self, name) for name in names} | plain

    def render(self) -> str:
        """A page of the explanation and of `rest`, as HTML."""
        return render("explanation.html", title="The words that decided the answer", all=[self, *self.rest])

    def __repr__(self) -> str:
        return f"<Explanation of {self.answer!r}, logit {self.logit:.4f}, {len(self.words)} words>"

    def _repr_html_(self) -> str:
        height = 420 + 120 * len(self.rest)
        return render("frame.html", title="Explanation", page=self.render(), height=height)

    def save(self, path: Any) -> None:
        """Writes the page, .html. Raises BertKerasError for another ending and a missing folder."""
        check_output(path, (PAGE,))
        with atomic_file(to_path(path)) as file:
            file.write_text(self.render(), encoding="utf-8")


def explain(
    model: Any, text: str, second: Any = None, *, method: str = METHODS[0], steps: int = STEPS
) -> Explanation:
    """The words of a text that decided the model's answer.

    model: one that takes strings, such as `bert_keras.load(path)` or `bert_keras.classifier(...)`
    second: the second text where the model reads two: the context of a question, a pair's second text, a list of endings
    method: "integrated-gradients" sums gradients between a baseline and the text; "gradient-input" takes the one at the text
    steps: gradients, at the points of Gauss and Legendre; doubled, at most to MOST_STEPS, while their error is over 1 %

    Scores are those of the word embeddings, before positions and types are added. The baseline has the embedding of [PAD] for
    each token of the text; [CLS], [SEP] and [MASK] stay. The first answer is explained, and further labels, entities and masks in
    `rest`. Of a text in windows, the answer's window is read, and `note` says so.
    Returns `words` and `scores`, `tokens` and `token_scores`, `answer`, `logit`, `baseline_logit`, `completeness_error` and
    `rest`; `save(path)` writes a page, .html, which a notebook shows.
    Raises BertKerasError for an ensemble, a task without such a logit, a text without tokens and one without an answer.
    """
    run = reading.one_run(model)
    named = reading.name_texts(run, *(one for one in (text, second) if one is not None))
    explained = explain_example(run, named, method=method, steps=steps)
    if not explained:
        raise BertKerasError(f"{run.task.name} found nothing in the text, so there is no answer to explain.")
    if not explained[0].words:
        raise BertKerasError("the text has no tokens, so no word can be scored; give a text.")
    return dataclasses.replace(explained[0], rest=tuple(explained[1:]))


def explain_example(
    run: Run, example: Mapping[str, Any], *, method: str = METHODS[0], steps: int = STEPS
) -> list[Explanation]:
    """The explanations of all answers to one example; none where the model found nothing. Raises BertKerasError as `explain`.

    example: its texts by the names of the problem
    """
    if method not in METHODS:
        raise BertKerasError(f"method is {method!r}; give {' or '.join(METHODS)}.")
    if steps < 1:
        raise BertKerasError(f"steps is {steps}; give at least 1.")
    check_explained(reading.one_run(run).task)
    features, raw = reading.read_examples(run, {name: [value] for name, value in example.items()})
    inputs, rows, explained = model_inputs(run.task, features), reading.rows_of(features), []
    outputs = tf.cast(run.model(inputs, training=False), tf.float32).numpy()
    arrays = {name: value.numpy() for name, value in features.items()}
    windows = len(arrays[INPUT_WORD_IDS]) if run.task.windowed else 1
    for answer in answers_of(run.task, outputs, arrays, raw):
        logit = _Logit(run, reading.one_row(rows, answer.row), inputs, answer)
        ends = logit.at(logit.text), logit.at(logit.baseline)
        scores, error, steps_taken = _score(logit, method, steps, difference=ends[0] - ends[1])
        texts = [value if isinstance(value, str) else value[answer.row] for value in example.values()]
        words = reading.find_words(run.preprocess.tokenizer, logit.row, texts)
        explained.append(
            Explanation(
                words=tuple(word for word, _ in words),
                scores=np.array([float(scores[positions].sum()) for _, positions in words]),
                tokens=tuple(reading.token_names(run.preprocess.tokenizer, logit.row)),
                token_scores=scores,
                answer=answer.name,
                logit=ends[0],
                baseline_logit=ends[1],
                completeness_error=error,
                method=method,
                steps=steps_taken,
                note=f"window {answer.row + 1} of {windows} of a long text" if windows > 1 else "",
            )
        )
    return explained


class _Logit:
    """The logit of an answer as a function of the word embeddings of its row.

    row: int32 [1, S], without padding
    inputs: of the model, [rows, ...]
    text, baseline: the word embeddings of the row, and those without the text, float [S, E]
    """

    def __init__(self, run: Run, row: Features, inputs: Features, answer: Answer) -> None:
        self.row, self._answer = row, answer
        self._model, self._embeddings = run.model, run.encoder.embeddings
        shape = inputs[INPUT_WORD_IDS].shape
        self._choices = shape[1] if len(shape) == 3 else 1
        self._others = {name: value[:1] for name, value in inputs.items() if name not in ENCODER_INPUTS}
        special, ids = run.preprocess.tokenizer.special, row[INPUT_WORD_IDS][0]
        stays = np.isin(ids, [*special.ids - {special.padding, special.unknown}])
        table = tf.convert_to_tensor(self._embeddings.word_embeddings)
        self.text = tf.gather(table, ids)
        self.baseline = tf.where(stays[:, np.newaxis], self.text, table[special.padding])

    def __call__(self, points: tf.Tensor) -> tf.Tensor:
        """Word embeddings [P, S, E] -> logits [P]. Where the model reads K rows as one example, these are K points."""
        count, choices = len(points), self._choices
        added = -count % choices
        points = tf.concat([points, tf.repeat(points[:1], added, axis=0)], axis=0)
        rows = {name: tf.repeat(value, count + added, axis=0) for name, value in self.row.items()}
        if choices > 1:
            rows = {name: tf.reshape(value, [-1, choices, value.shape[1]]) for name, value in rows.items()}
        rows |= {name: tf.repeat(value, count, axis=0) for name, value in self._others.items()}
        # In place of the rows of the ids. A masked LM head reads the table as before.
        self._embeddings.look_up = lambda table, ids: points
        try:
            outputs = self._model(rows, training=False)
        finally:
            del self._embeddings.look_up
        outputs = tf.reshape(outputs, [count + added, *outputs.shape[1 if choices == 1 else 2 :]])[:count]
        return tf.add_n([outputs[(slice(None), *place)] for place in self._answer.at])

    def at(self, point: tf.Tensor) -> float:
        """The logit for word embeddings [S, E]."""
        return float(self(point[tf.newaxis])[0])

    def scores(self, origin: tf.Tensor, places: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The scores of the tokens, float64 [S]: the way from the origin to the text times the mean gradient on it.

        origin: float [S, E]; places, weights: float64 [P], 0 at the origin and 1 at the text
        """
        way, at_once = self.text - origin, max(1, TOKENS_AT_ONCE // len(self.text))
        mean = np.zeros(way.shape)
        for start in range(0, len(places), at_once):
            chosen = slice(start, start + at_once)
            points = origin + tf.cast(places[chosen, np.newaxis, np.newaxis], way.dtype) * way
            with tf.GradientTape() as tape:
                tape.watch(points)
                logits = self(points)
            gradient = tf.convert_to_tensor(tape.gradient(logits, points)).numpy()
            mean += np.tensordot(weights[chosen], gradient.astype(np.float64), axes=1)
        return (way.numpy() * mean).sum(axis=-1)


def _score(
    logit: _Logit, method: str, steps: int, *, difference: float
) -> tuple[np.ndarray, float | None, int]:
    """The scores of the tokens, float64 [S], the completeness error and the steps taken. Warns of an error over 1 %.

    difference: of the logit of the text from that of the baseline
    """
    if method != METHODS[0]:
        return logit.scores(tf.zeros_like(logit.text), np.ones(1), np.ones(1)), None, 1
    while True:
        points, weights = np.polynomial.legendre.leggauss(steps)
        scores = logit.scores(logit.baseline, (points + 1) / 2, weights / 2)
        error = abs(float(scores.sum()) - difference) / (abs(difference) or 1.0)
        if error <= LARGEST_ERROR or 2 * steps > MOST_STEPS:
            break
        steps *= 2
    if error > LARGEST_ERROR:
        warnings.warn(
            f"the scores sum to {scores.sum():.4g} and the logit changes by {difference:.4g}: the completeness error is "
            f"{error:.1%} after {steps} steps, so the scores are rough",
            stacklevel=4,
        )
    return scores, error, steps
