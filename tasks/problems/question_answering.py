"""SQuAD 1.1 and 2.0, and other data in this format: a question, a context, and the answer as a span of the context.

In: examples of data/squad.py. Out: the best answer to each question, cut from the original context. A context longer than
the encoder's limit is cut into windows, [W, S].
Source: Devlin et al. 2019, sec. 4.2 and 4.3; google-research/bert run_squad.py.
"""

import collections
import copy
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    END_BYTES,
    EXAMPLE_INDEX,
    INPUT_MASK,
    MAX_CONTEXT,
    SEQUENCE_OUTPUT,
    START_BYTES,
)
from bert_keras.fields import field_types, names_of
from bert_keras.io.json_files import NUMBER
from bert_keras.io.paths import to_path
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import SpanHead
from bert_keras.tasks import metrics
from bert_keras.tasks.batches import count
from bert_keras.tasks.data import squad
from bert_keras.tasks.data.sources import Source, split_file
from bert_keras.tasks.data.squad import ANSWER_END, ANSWER_START, ANSWERS, CONTEXT, QUESTION, VERSIONS
from bert_keras.tasks.options import TASK_DEFAULTS, SquadOptions
from bert_keras.tasks.problems import answer_views
from bert_keras.tasks.problems.answer_spans import (
    NBEST,
    NBEST_SCORES,
    NULL_SCORE,
    OFFSETS,
    START_BYTE,
    answer_or_none,
    best_answer,
    best_spans,
    list_nbest,
)
from bert_keras.tasks.report import ERRORS_SHOWN, Arrays, Judged, Table, most_confident, plain
from bert_keras.tasks.task import Features, Raw, Task
from bert_keras.text.preprocessing import Preprocessor

# The logit of padding: its softmax is 0 in float32, so no answer depends on the padding of its batch. Unlike an infinity, it
# stays a number in means, in losses and in JSON.
PADDING_LOGIT = -1e4
NO_ANSWER = "(none)"
SHOWN = 40  # characters of context on each side of an answer


class QuestionAnswering(Task):
    """The task of one version.

    source: the JSON files; None for TensorFlow Datasets
    doc_stride: tokens from the start of one window to the start of the next
    max_query_length: longest question in tokens; longer questions are truncated, and `check` warns about them
    max_answer_length: longest answer in tokens
    n_best: the number of answers that `decode` returns for each question
    answer_language: that of the answers, for the measures, as `metrics.normalize_answer` takes it
    asked: with "logits", `decode` gives NBEST_SCORES float32 [B, N] and for SQuAD 2.0 NULL_SCORE float32 [B] too
    tau: in SQuAD 2.0, the best span answers a question where its score exceeds the null score + tau; Google's
        null_score_diff_threshold and the official scorer's thresholds are -tau

    Raises BertKerasError for an unknown name, or a setting outside the bounds of SquadOptions.
    """

    kind = "question-answering"
    names = tuple(VERSIONS)
    head = "qa_outputs"
    architectures = ("ForQuestionAnswering",)
    options = names_of(SquadOptions)
    kinds = {**field_types(SquadOptions), "tau": NUMBER}
    optional = ("answer_language",)
    text = (QUESTION, CONTEXT)
    outputs = (SEQUENCE_OUTPUT,)
    measure, measures = "f1", ("exact_match", "exact", "f1")
    windowed = True
    lists = {"nbest": "nbest_starts"}

    def __init__(
        self,
        name: str,
        source: Source | None = None,
        *,
        doc_stride: int = SquadOptions.doc_stride,
        max_query_length: int = SquadOptions.max_query_length,
        max_answer_length: int = SquadOptions.max_answer_length,
        n_best: int = SquadOptions.n_best,
        answer_language: str | None = None,
        tau: float = 0.0,
    ) -> None:
        if name not in VERSIONS:
            raise BertKerasError(f"there is no {name!r}; give one of {', '.join(VERSIONS)}.")
        self.name, self.source, self.tau = name, source, tau
        self.version, self.defaults = VERSIONS[name], TASK_DEFAULTS[name]
        self.calibrated = ("tau",) if self.version.unanswerable else ()
        self.adjustable = ("answer_language", "n_best", "logits", *self.calibrated)
        self.official = ("answer", "null_odds") if self.version.unanswerable else ("answer",)
        self.doc_stride, self.max_query_length = doc_stride, max_query_length
        self.max_answer_length, self.n_best, self.answer_language = max_answer_length, n_best, answer_language
        SquadOptions(**{option: getattr(self, option) for option in self.options})

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, source: Source | None = None, **options: Any
    ) -> "QuestionAnswering":
        """Answers without "no answer", which a checkpoint cannot tell. In a short encoder, a question takes half of it."""
        longest = min(SquadOptions.max_query_length, checkpoint.config.max_length // 2)
        return cls("squad1.1", source, **({"max_query_length": longest} | options))

    def examples(self, split: str) -> tf.data.Dataset:
        """Questions in the order of the file, with scalar features.

        The training split skips questions whose first answer is blank or does not start at its `answer_start`, with one warning.
        Other splits keep them, because measures compare the texts of answers only.
        """
        if self.source is None:
            where, questions = self.version.dataset, squad.load_tfds_questions(self.version.dataset, split)
        else:
            path = split_file(self.source, split, self.version.files)
            where, questions = str(path), squad.read_questions(path)
        columns = squad.make_columns(questions, where, version=self.version, train=split == "train")
        return tf.data.Dataset.from_tensor_slices(columns)

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The answers: {"text": ..., "answer_start": ...} for each question, in characters of its context, or None for no answer.

        Text and start may be lists of several answers. A dict or data frame of the columns "text" and "answer_start" will do.
        """
        return squad.make_answer_columns(columns[QUESTION], columns[CONTEXT], y, version=self.version)

    def inputs(self, path: str, **options: Any) -> Iterator[dict[str, Any]]:
        """As `Task.inputs`, and SQuAD's .json, whose examples have the "id" too."""
        if squad.is_squad_file(path):
            return squad.read_unanswered(to_path(path))
        return super().inputs(path, **options)

    def about_measures(self) -> str:
        """The rules by which answers are compared."""
        rules = "SQuAD's rules, for English" if self.answer_language is None else "MLQA's rules"
        return f"answers compared by {rules}{f', for {self.answer_language}' if self.answer_language else ''}"

    def check(self, preprocess: Preprocessor, examples: tf.data.Dataset) -> None:
        """Warns about questions longer than `max_query_length`, which are truncated."""
        tokenizer = preprocess.tokenizer

        def longer(questions: tf.Tensor) -> tf.Tensor:
            lengths = tokenizer.tokenize(questions).row_lengths()
            return tf.math.count_nonzero(lengths > self.max_query_length)

        questions = examples.map(lambda raw: raw[QUESTION]).batch(1024)
        counted = questions.map(longer, num_parallel_calls=tf.data.AUTOTUNE).as_numpy_iterator()
        if found := int(sum(counted)):
            warnings.warn(
                f"{found} of {count(examples)} questions are longer than max_query_length, {self.max_query_length} tokens, "
                "and are truncated; give a higher max_query_length to keep them",
                stacklevel=2,
            )

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """`Preprocessor.windows` of context and question, [W, S]."""
        return preprocess.windows(
            raw[CONTEXT],
            question=raw[QUESTION],
            doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
        )

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Start and end positions int32 [W, 2]; weights float32 [W, 2].

        The weights are 0 where the position of the answer is unknown or no token covers it. Windows without the whole answer, and
        all windows of a question without an answer, are labelled with position 0, [CLS].
        """
        window = features[EXAMPLE_INDEX]
        starts, ends = tf.gather(raw[ANSWER_START], window), tf.gather(raw[ANSWER_END], window)
        inside = (features[START_BYTES] < ends[:, tf.newaxis]) & (features[END_BYTES] > starts[:, tf.newaxis])
        held = tf.reduce_sum(tf.cast(inside, tf.int32), axis=1)  # the answer's tokens in this window
        # Every token has maximum context in exactly one window, so this counts each token once.
        once = tf.reduce_sum(tf.cast(inside, tf.int32) * features[MAX_CONTEXT], axis=1)
        tokens = tf.math.unsorted_segment_sum(once, window, tf.size(raw[ANSWER_START]))
        whole = (held > 0) & (held == tf.gather(tokens, window))
        first = tf.argmax(inside, axis=1, output_type=tf.int32)
        labels = tf.where(whole[:, tf.newaxis], tf.stack([first, first + held - 1], axis=1), 0)
        placed = (starts >= 0) & (tf.gather(tokens, window) > 0)
        known = placed | (tf.gather(raw[ANSWERS], window) == "[]")
        return labels, tf.repeat(tf.cast(known, tf.float32)[:, tf.newaxis], 2, axis=1)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> start and end logits float32 [W, 2, S]."""
        inputs = encoder_inputs(config=encoder.config)
        head = SpanHead(config=encoder.config, dtype=encoder.dtype_policy)
        logits = ops.stack(head(encoder(inputs)[SEQUENCE_OUTPUT]), axis=1)
        real = ops.expand_dims(inputs[INPUT_MASK], axis=1) > 0
        return keras.Model(inputs, ops.where(real, logits, PADDING_LOGIT), name="span_model")

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits float32 [W, 2, S] -> the answer to each question, [B], and its N = n_best best answers, [B, N].

        "answer" string [B]; "start", "end" int32 [B], its characters in the context, as Python slices it; "start_byte",
            "end_byte" int32 [B], its bytes; ends are exclusive
        "score" float32 [B]: the probability of the answer, or of no answer
        "nbest_answers" string, "nbest_starts", "nbest_ends" (bytes), "nbest_character_starts", "nbest_character_ends" int32,
            "nbest_probabilities" float32 [B, N], by falling score; padded with "", -1 and 0.0

        and for SQuAD 2.0:

        "null_odds" float32 [B], the null score minus the score of the best span; 1e9 without a span
        "no_answer_probability" float32 [B], sigmoid(null_odds + tau)

        The score of a span is the sum of its start and end logits. The null score is the lowest such sum at position 0 over the
        windows. Probabilities are a softmax over the n best answers and, in SQuAD 2.0, no answer. The answer is "" and -1 if the
        context has no tokens and, in SQuAD 2.0, unless the score of the best span exceeds the null score + tau.
        """
        context, count = raw[CONTEXT], tf.size(raw[CONTEXT])
        limits = {"n_best": self.n_best, "max_answer_length": self.max_answer_length}
        spans = best_spans(outputs, features, count=count, **limits)
        null_scores = None
        if self.version.unanswerable:
            null_scores = tf.math.unsorted_segment_min(
                outputs[:, 0, 0] + outputs[:, 1, 0], features[EXAMPLE_INDEX], count
            )
        nbest = list_nbest(spans, context, null_scores)
        logits = {NBEST_SCORES: spans.scores, NULL_SCORE: null_scores} if "logits" in self.asked else {}
        known = {name: value for name, value in logits.items() if value is not None}
        return self._answered(nbest) | nbest | known

    def _answered(self, nbest: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return answer_or_none(nbest, tau=self.tau) if self.version.unanswerable else best_answer(nbest)

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields exact_match and f1 in percent; for SQuAD 2.0 also the other figures of its official scorer.

        HasAns_*, NoAns_*: the measures of the questions with and without an answer
        best_exact, best_f1: the measures at the best tau
        best_exact_tau, best_f1_tau: that tau, which the official scorer gives with the other sign as best_exact_thresh
        """
        yield from self.resampled(predictions, raw)(np.arange(len(raw[ANSWERS]))).items()

    def resampled(self, predictions: Arrays, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
        """It compares each answer once, with the gold answers of its question."""
        scores, short = self._scores(predictions["answer"], raw), {"exact_match": "exact", "f1": "f1"}
        if not self.version.unanswerable:
            return lambda rows: {name: 100 * float(values[rows].mean()) for name, values in scores.items()}
        has_answer, odds = _find_answerable(raw), predictions["null_odds"]
        of_best = self._scores(predictions["nbest_answers"][:, 0], raw)

        def measure(rows: np.ndarray) -> dict[str, float]:
            found = {name: 100 * float(values[rows].mean()) for name, values in scores.items()}
            groups = (("HasAns", rows[has_answer[rows]]), ("NoAns", rows[~has_answer[rows]]))
            for group, chosen in groups:
                for name, values in scores.items() if len(chosen) else ():
                    found[f"{group}_{short[name]}"] = 100 * float(values[chosen].mean())
            for name, values in of_best.items():
                best, threshold = metrics.best_threshold(values[rows], ~has_answer[rows], odds[rows])
                found[f"best_{short[name]}"] = 100 * best
                found[f"best_{short[name]}_tau"] = 0.0 - threshold  # -threshold would be -0.0
            return found

        return measure

    def degenerate(self, predictions: Arrays, raw: Arrays) -> str | None:
        """One answer for nearly all questions, or an F1 no better than that of no answer at all, which is 0 for SQuAD 1.1."""
        if why := metrics.one_answer(
            predictions["answer"].astype(bytes), name=lambda text: plain(text) or "no answer"
        ):
            return why
        unanswerable = float(np.mean(~_find_answerable(raw))) if self.version.unanswerable else 0.0
        f1 = float(self._scores(predictions["answer"], raw)["f1"].mean())
        return metrics.no_better(f1, unanswerable, measure="f1 as a fraction", by="no answer at all")

    def baseline(self, raw: Arrays) -> float:
        """F1 in percent of no answer, or of the most common gold answer, whichever is higher."""
        counts = collections.Counter(gold for golds in raw[ANSWERS] for gold in json.loads(golds))
        answers = [b"", *[text.encode() for text, _ in counts.most_common(1)]]
        given = (np.full(len(raw[ANSWERS]), answer, object) for answer in answers)
        return max(100 * float(self._scores(answer, raw)["f1"].mean()) for answer in given)

    def _scores(self, answers: np.ndarray, raw: Arrays) -> dict[str, np.ndarray]:
        """Exact match and F1 of each question, float64 [N], 0 to 1."""
        texts = [answer.decode("utf-8", "replace") for answer in answers]
        golds = [json.loads(gold) for gold in raw[ANSWERS]]
        how: Any = {"unanswerable": self.version.unanswerable, "language": self.answer_language}
        exact, f1 = metrics.answer_scores(texts, golds, **how)
        return {"exact_match": exact, "f1": f1}

    def calibrate(self, predictions: Arrays, raw: Arrays) -> tuple["QuestionAnswering", Arrays]:
        """A task with the tau of the best F1, as `best_threshold` finds it, and its predictions. SQuAD 1.1 has no tau."""
        if not self.version.unanswerable:
            return self, predictions
        f1 = self._scores(predictions["nbest_answers"][:, 0], raw)["f1"]
        _, threshold = metrics.best_threshold(f1, ~_find_answerable(raw), predictions["null_odds"])
        task = copy.copy(self)
        task.tau = 0.0 - threshold
        answers = {name: value.numpy() for name, value in task._answered(predictions).items()}
        return task, {**predictions, **answers}

    def tau_curve(self, predictions: Arrays, raw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """The taus at which another question is answered, rising, and F1 at each, 0 to 1; for SQuAD 2.0."""
        f1 = self._scores(predictions["nbest_answers"][:, 0], raw)["f1"]
        thresholds, means = metrics.threshold_means(f1, ~_find_answerable(raw), predictions["null_odds"])
        return 0.0 - thresholds[::-1], means[::-1]

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """{"answer", "score", OFFSETS, "nbest": [{"answer", "probability", OFFSETS}, ...]}.

        SQuAD 2.0 adds "no_answer_probability" and "null_odds"; logits that are asked for are "score" of each of the n best
        and "null_score".
        """
        columns = ["answer", "score", *OFFSETS]
        columns += ["no_answer_probability", "null_odds"] if self.version.unanswerable else []
        columns += [NULL_SCORE] if NULL_SCORE in decoded else []
        found = {name: plain(decoded[name]) for name in columns}
        names = dict(zip(("answer", "probability", *OFFSETS), NBEST, strict=True))
        names |= {"score": NBEST_SCORES} if NBEST_SCORES in decoded else {}
        spans = zip(*(plain(decoded[column]) for column in names.values()), strict=True)
        nbest = [dict(zip(names, span, strict=True)) for span in spans]
        return found | {"nbest": [span for span in nbest if span["start"] >= 0]}

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The question, the answer in brackets with the context around it, and its probability; what is asked for follows."""
        start, end = record["start"], record["end"]
        if start < 0:
            shown, probability = NO_ANSWER, record.get("no_answer_probability", 1.0)
        else:
            context = example[CONTEXT]
            parts = (context[:start], context[start:end], context[end:])
            before, answer, after = (" ".join(part.split("\n")) for part in parts)
            before = f"… {before[-SHOWN:]}" if len(before) > SHOWN else before
            after = f"{after[:SHOWN]} …" if len(after) > SHOWN else after
            shown, probability = f"{before}[{answer}]{after}", record["nbest"][0]["probability"]
        cells = {QUESTION: example[QUESTION], "answer": shown, "probability": f"{probability:.4f}"}
        if {"n_best", "logits"} & self.asked:
            cells["n best"] = "\n".join(map(_shown, record["nbest"]))
        if NULL_SCORE in record:
            cells["null score"] = f"{record[NULL_SCORE]:z.2f}"
        return cells

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """Measures by answerability or by the first word of the question, and the most confident errors."""
        scores = self._scores(predictions["answer"], raw)
        if self.version.unanswerable:
            groups = np.where(_find_answerable(raw), "answerable", "unanswerable")
        else:
            groups = np.array([_first_word(question) for question in raw[QUESTION]])
        rows = []
        for group, size in collections.Counter(groups.tolist()).most_common(ERRORS_SHOWN):
            chosen = groups == group
            rows.append((group, size, *(100 * float(values[chosen].mean()) for values in scores.values())))
        title = "by kind of question" if self.version.unanswerable else "by first word"
        about = "Exact match and F1 in percent: equal answers, and answers that share words."
        yield Table(title, ("questions", "count", "exact match", "f1"), rows, about=about)
        confidence = self._confidence(predictions)
        errors = [
            (
                plain(raw[QUESTION][i]),
                next(iter(json.loads(raw[ANSWERS][i])), NO_ANSWER),
                plain(predictions["answer"][i]) or NO_ANSWER,
                float(confidence[i]),
            )
            for i in most_confident(np.flatnonzero(scores["exact_match"] == 0), confidence)
        ]
        about = "Answers that equal no labelled answer, the surest first."
        columns = (QUESTION, "gold", "predicted", "probability")
        yield Table("most confident errors", columns, errors, about=about)

    def views(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """The outcomes of the questions, for SQuAD 2.0 the curve over tau, and F1 by groups."""
        scores = self._scores(predictions["answer"], raw)
        yield answer_views.count_outcomes(scores["exact_match"], scores["f1"], predictions, raw)
        if self.version.unanswerable:
            taus, f1 = self.tau_curve(predictions, raw)
            yield answer_views.curve(taus, f1, predictions["null_odds"], tau=self.tau)
        yield from answer_views.views(scores["f1"], raw)

    def judge(self, predictions: Arrays, raw: Arrays) -> Judged:
        """A row for each question, with its F1."""
        golds = [dict.fromkeys(json.loads(answers)) for answers in raw[ANSWERS]]
        return Judged(
            rows=np.arange(len(golds)),
            texts={QUESTION: plain(raw[QUESTION]), CONTEXT: plain(raw[CONTEXT])},
            gold=[" / ".join(texts) or NO_ANSWER for texts in golds],
            predicted=[answer or NO_ANSWER for answer in plain(predictions["answer"])],
            right=self._scores(predictions["answer"], raw)["f1"],
            confidence=self._confidence(predictions).astype(np.float64),
        )

    def _confidence(self, predictions: Arrays) -> np.ndarray:
        """The probability of the best answer, or of no answer where none is given, [N]."""
        confidence = predictions["nbest_probabilities"][:, 0]
        if not self.version.unanswerable:
            return confidence
        return np.where(predictions[START_BYTE] < 0, predictions["no_answer_probability"], confidence)


def _shown(span: Mapping[str, Any]) -> str:
    """One of the n best answers, with its probability, and its logits where they are asked for."""
    score = f" ({span['score']:z.2f})" if "score" in span else ""
    return f"{span['answer']} {span['probability']:.4f}{score}"


def _find_answerable(raw: Arrays) -> np.ndarray:
    return np.array([bool(json.loads(answers)) for answers in raw[ANSWERS]], bool)


def _first_word(question: bytes) -> str:
    return next(iter(plain(question).lower().split()), "").rstrip("?,.:;")
