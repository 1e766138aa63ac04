"""SQuAD 1.1 and 2.0, and whatever else is written in their form: a question, a context, the answer a span of it.

In: the official JSON, or TensorFlow Datasets. Out: examples {"id", "question", "context", "answers": string, "answer_start",
"answer_end": int32}, and for each question the span that scores best, cut out of the context as it was given.

`answers` is a JSON list of the gold answers, empty where there is none; start and end, bytes of the UTF-8 context, are those of
the first one, -1 where there is none. A context longer than the encoder can see is cut into windows, [W, S].
Source: Rajpurkar et al. 2016 and 2018; Devlin et al. 2019, sec. 4.2 and 4.3; google-research/bert run_squad.py.
"""

import collections
import json
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_keras.encoder import BertEncoder, encoder_inputs
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    END_BYTES,
    EXAMPLE_INDEX,
    INPUT_MASK,
    MAX_CONTEXT,
    SEQUENCE_OUTPUT,
    START_BYTES,
)
from bert_keras.heads import SpanHead
from bert_keras.json_files import NUMBER, is_whole, one_of, parse_json, short, typed, whole
from bert_keras.losses import GlobalMean, cross_entropy
from bert_keras.settings import names_of
from tasks.metrics import answer_scores, best_threshold
from tasks.reading import load_tfds
from tasks.settings import MAX_OPTION, TASK_DEFAULTS, SquadOptions
from tasks.task import (
    ERRORS_SHOWN,
    Features,
    Raw,
    Source,
    Table,
    Task,
    check_text,
    count,
    plain,
    read_text,
    split_file,
)

ID, QUESTION, CONTEXT = "id", "question", "context"
ANSWERS = "answers"
ANSWER_START, ANSWER_END = "answer_start", "answer_end"  # bytes of the context, the end exclusive
START_BYTE, END_BYTE = "start_byte", "end_byte"  # the same of what is answered

# The logit of a padding position: its share of a softmax is 0 in float32, so no answer depends on how far its batch was
# padded, and unlike an infinity it stays a number in means, in losses and in JSON.
PADDING_LOGIT = -1e4
# The score of what is no legal span: far below any sum of two logits.
NO_SPAN = -1e9
SHOWN = 40  # characters of context on each side of an answer


class Version(NamedTuple):
    """What differs between the two data sets.

    title: how people call it
    dataset: the name in TensorFlow Datasets
    files: the names of each split's file
    unanswerable: whether there are questions without an answer
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


class Squad(Task):
    """The Task of one version.

    source: where the JSON files are; None for TensorFlow Datasets
    doc_stride: wordpieces from one window of a context to the next
    max_query_length: wordpieces of a question that are kept; `check` warns of longer ones
    max_answer_length: wordpieces of the longest answer
    n_best: answers that `decode` returns for each question
    tau: of SQuAD 2.0: a question is answered where the best span's score is over the null score + tau. Google's
        null_score_diff_threshold is -tau.

    Raises ValueError on another name, or a setting under 1.
    """

    kind = "squad"
    names = tuple(VERSIONS)
    options = names_of(SquadOptions)
    outputs = (SEQUENCE_OUTPUT,)
    measure = "f1"
    validation_splits = ("validation",)
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
        tau: float = 0.0,
    ) -> None:
        if name not in VERSIONS:
            raise BertKerasError(f"there is no {name!r}; wanted is one of {', '.join(VERSIONS)}.")
        self.name, self.source = name, source
        self.version = VERSIONS[name]
        self.defaults = TASK_DEFAULTS[name]
        self.calibrated = ("tau",) if self.version.unanswerable else ()
        self.doc_stride, self.max_query_length = doc_stride, max_query_length
        self.max_answer_length, self.n_best = max_answer_length, n_best
        self.tau = tau
        SquadOptions(**{option: getattr(self, option) for option in self.options})

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> "Squad":
        return cls(name, source, **options)

    def examples(self, split: str) -> tf.data.Dataset:
        """Questions in the file's order; all features are scalars.

        In the training split, questions whose first answer does not stand at its `answer_start`, or is blank, are left out under
        one warning that counts them; elsewhere they stay, for only the texts of their answers count.
        Raises ValueError or FileNotFoundError on what cannot be read, naming the file and the question.
        """
        if self.source is None:
            where, questions = self.version.dataset, _from_tfds(self.version.dataset, split)
        else:
            path = split_file(self.source, split, self.version.files)
            where, questions = str(path), _from_json(path)
        return tf.data.Dataset.from_tensor_slices(
            _columns(questions, where, version=self.version, train=split == "train")
        )

    def check(self, preprocess: Callable[..., Features], examples: tf.data.Dataset) -> None:
        """Warns of how many questions are longer than `max_query_length`, whose ends are cut off."""
        tokenizer = preprocess.tokenizer  # type: ignore[attr-defined]

        def longer(questions: tf.Tensor) -> tf.Tensor:
            lengths = tokenizer.tokenize(questions).row_lengths()
            return tf.math.count_nonzero(lengths > self.max_query_length)

        questions = examples.map(lambda raw: raw[QUESTION]).batch(1024)
        counted = questions.map(longer, num_parallel_calls=tf.data.AUTOTUNE).as_numpy_iterator()
        found = int(sum(counted))
        if found:
            warnings.warn(
                f"{found} of {count(examples)} questions are longer than max_query_length, {self.max_query_length} wordpieces, "
                "and lose their ends; give a higher max_query_length to keep them",
                stacklevel=2,
            )

    def features(self, preprocess: Callable[..., Features], raw: Raw) -> Features:
        """`Preprocessor.windows` of context and question, [W, S]."""
        windows = preprocess.windows  # type: ignore[attr-defined]
        return windows(
            raw[CONTEXT],
            question=raw[QUESTION],
            doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
        )

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Start and end positions int32 [W, 2]; weights float32 [W, 2].

        The weights are 0 where it is not known where the answer stands, or no wordpiece is of it.
        A window that does not hold the whole answer, as one of a question without any, points at position 0, [CLS].
        """
        window = features[EXAMPLE_INDEX]
        starts, ends = tf.gather(raw[ANSWER_START], window), tf.gather(raw[ANSWER_END], window)
        inside = (features[START_BYTES] < ends[:, tf.newaxis]) & (features[END_BYTES] > starts[:, tf.newaxis])
        held = tf.reduce_sum(tf.cast(inside, tf.int32), axis=1)  # the answer's pieces in this window
        # Every piece has the maximum context in one window: counted there, each counts once.
        once = tf.reduce_sum(tf.cast(inside, tf.int32) * features[MAX_CONTEXT], axis=1)
        pieces = tf.math.unsorted_segment_sum(once, window, tf.size(raw[ANSWER_START]))
        whole = (held > 0) & (held == tf.gather(pieces, window))
        first = tf.argmax(inside, axis=1, output_type=tf.int32)
        labels = tf.where(whole[:, tf.newaxis], tf.stack([first, first + held - 1], axis=1), 0)
        placed = (starts >= 0) & (tf.gather(pieces, window) > 0)
        known = placed | (tf.gather(raw[ANSWERS], window) == "[]")
        return labels, tf.repeat(tf.cast(known, tf.float32)[:, tf.newaxis], 2, axis=1)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> start and end logits float32 [W, 2, S]."""
        inputs = encoder_inputs()
        head = SpanHead(config=encoder.config, dtype=encoder.dtype_policy)
        logits = ops.stack(head(encoder(inputs)[SEQUENCE_OUTPUT]), axis=1)
        real = ops.expand_dims(inputs[INPUT_MASK], axis=1) > 0
        return keras.Model(inputs, ops.where(real, logits, PADDING_LOGIT), name="span_model")

    def loss(self) -> keras.losses.Loss:
        """The mean cross-entropy of start and end positions."""
        return GlobalMean(cross_entropy)

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits float32 [W, 2, S] -> the answer to each question, [B], and the N = n_best that score best, [B, N].

        "answer" string [B], "start_byte", "end_byte" int32 [B]: the text, and its bytes in the context, the end exclusive
        "score" float32 [B]: its probability, or that of no answer where there is none
        "nbest_answers" string, "nbest_starts", "nbest_ends" int32, "nbest_probabilities" float32 [B, N], by falling score;
            filled up with "", -1 and 0.0 where there are fewer spans

        and of SQuAD 2.0:

        "null_odds" float32 [B], the null score minus the best span's; 1e9 where there is no span
        "no_answer_probability" float32 [B], sigmoid(null_odds + tau)

        A span's score is the sum of its start and end logits. Legal are all spans within the context of at most
        `max_answer_length` pieces that start where the piece has the maximum context. The null score is the lowest sum of the
        two at position 0 over the windows. Probabilities are a softmax over the n best and, in SQuAD 2.0, the null, whose
        share is what they lack to 1.
        In SQuAD 2.0 the answer is "" and -1 unless the best span's score is over the null score + tau; in both where the
        context has no piece.
        """
        context = raw[CONTEXT]
        scores, starts, ends = self._best_spans(outputs, features, count=tf.size(context))
        null_scores = tf.math.unsorted_segment_min(
            outputs[:, 0, 0] + outputs[:, 1, 0], features[EXAMPLE_INDEX], tf.size(context)
        )
        found = scores > NO_SPAN / 2
        starts, ends = tf.where(found, starts, -1), tf.where(found, ends, -1)
        ranked = [scores, null_scores[:, tf.newaxis]] if self.version.unanswerable else [scores]
        probabilities = tf.nn.softmax(tf.concat(ranked, axis=1))[:, : self.n_best]
        nbest = {
            "nbest_answers": tf.strings.substr(context[:, tf.newaxis], tf.maximum(starts, 0), ends - starts),
            "nbest_starts": starts,
            "nbest_ends": ends,
            "nbest_probabilities": tf.where(found, probabilities, 0.0),
        }
        if self.version.unanswerable:
            nbest["null_odds"] = tf.where(found[:, 0], null_scores - scores[:, 0], -NO_SPAN)
        return self._answered(nbest) | nbest

    def _best_spans(
        self, outputs: tf.Tensor, features: Features, *, count: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The n best spans of each example: score float32, first byte and end byte int32, all [B, N]."""
        width, longest = tf.shape(outputs)[2], self.max_answer_length
        starts = tf.where(features[MAX_CONTEXT] > 0, outputs[:, 0], NO_SPAN)
        ends = tf.where(features[END_BYTES] >= 0, outputs[:, 1], NO_SPAN)
        ends = tf.pad(ends, [[0, 0], [0, longest - 1]], constant_values=NO_SPAN)
        reach = tf.range(width)[:, tf.newaxis] + tf.range(longest)  # [S, A]: the ends that a start can have
        spans = starts[:, :, tf.newaxis] + tf.gather(ends, reach, axis=1)  # [W, S, A]
        kept = tf.minimum(self.n_best, width * longest)
        scores, places = tf.math.top_k(tf.reshape(spans, [tf.shape(spans)[0], width * longest]), kept)
        first = places // longest
        last = tf.minimum(first + places % longest, width - 1)  # only what is no span runs over

        def by_example(values: tf.Tensor, default: Any) -> tf.Tensor:
            """[W, kept] -> [B, at least N]."""
            rows = tf.RaggedTensor.from_value_rowids(values, features[EXAMPLE_INDEX], nrows=count)
            dense = rows.to_tensor(default)
            dense = tf.reshape(dense, [count, tf.shape(dense)[1] * kept])
            return tf.pad(dense, [[0, 0], [0, self.n_best]], constant_values=default)

        scores, chosen = tf.math.top_k(by_example(scores, NO_SPAN), self.n_best)
        first_bytes = by_example(tf.gather(features[START_BYTES], first, batch_dims=1), -1)
        end_bytes = by_example(tf.gather(features[END_BYTES], last, batch_dims=1), -1)
        return (
            scores,
            tf.gather(first_bytes, chosen, batch_dims=1),
            tf.gather(end_bytes, chosen, batch_dims=1),
        )

    def _answered(self, nbest: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """What depends on tau, from the n best and the null odds."""
        names = ("nbest_answers", "nbest_probabilities", "nbest_starts", "nbest_ends")
        answer, score, start, end = (nbest[name][:, 0] for name in names)
        if not self.version.unanswerable:
            return {"answer": answer, "score": score, START_BYTE: start, END_BYTE: end}
        odds = tf.convert_to_tensor(nbest["null_odds"])
        answered = (
            tf.cast(odds, tf.float64) < -self.tau
        )  # in float32 two odds' middle could be one of the two
        return {
            "answer": tf.where(answered, answer, ""),
            "score": tf.where(answered, score, 1 - tf.reduce_sum(nbest["nbest_probabilities"], axis=1)),
            START_BYTE: tf.where(answered, start, -1),
            END_BYTE: tf.where(answered, end, -1),
            "no_answer_probability": tf.sigmoid(odds + self.tau),
        }

    def signature(self) -> dict[str, tf.TensorSpec]:
        return {name: tf.TensorSpec([None], tf.string, name=name) for name in (QUESTION, CONTEXT)}

    def evaluate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """Yields exact_match and f1 in percent; of SQuAD 2.0 also what its official scorer prints beside them.

        HasAns_*, NoAns_*: of the questions that have an answer, and that have none, where there are such
        best_exact, best_f1: what the best threshold would reach, and best_exact_thresh, best_f1_thresh: that threshold, of
            `null_odds`, that is in the sign of null_score_diff_threshold
        """
        scores = self._scores(predictions["answer"], raw)
        for name, values in scores.items():
            yield name, 100 * float(values.mean())
        if not self.version.unanswerable:
            return
        has_answer = _has_answer(raw)
        short = {"exact_match": "exact", "f1": "f1"}
        for group, chosen in (("HasAns", has_answer), ("NoAns", ~has_answer)):
            for name, values in scores.items():
                if chosen.any():
                    yield f"{group}_{short[name]}", 100 * float(values[chosen].mean())
        for name, values in self._scores(predictions["nbest_answers"][:, 0], raw).items():
            best, threshold = best_threshold(values, ~has_answer, predictions["null_odds"])
            yield f"best_{short[name]}", 100 * best
            yield f"best_{short[name]}_thresh", threshold

    def _scores(self, answers: np.ndarray, raw: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Exact match and F1 of each question, float64 [N], 0 to 1."""
        texts = [answer.decode("utf-8", "replace") for answer in answers]
        golds = [json.loads(gold) for gold in raw[ANSWERS]]
        exact, f1 = answer_scores(texts, golds, unanswerable=self.version.unanswerable)
        return {"exact_match": exact, "f1": f1}

    def calibrate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        """Sets tau to what gives the best F1, of equal ones the nearest to 0. SQuAD 1.1 has nothing to choose.

        Tried are a tau for each distinct null odds, under and over all of them: see `best_threshold`.
        """
        if not self.version.unanswerable:
            return predictions
        f1 = self._scores(predictions["nbest_answers"][:, 0], raw)["f1"]
        _, threshold = best_threshold(f1, ~_has_answer(raw), predictions["null_odds"])
        self.tau = -threshold
        return {
            **predictions,
            **{name: value.numpy() for name, value in self._answered(predictions).items()},
        }

    def record(self, decoded: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """{"answer", "score", "start", "end", "nbest": [{"answer", "probability", "start", "end"}, ...]}, places in bytes.

        Of SQuAD 2.0 also "no_answer_probability".
        """
        names = {
            "answer": "nbest_answers",
            "probability": "nbest_probabilities",
            "start": "nbest_starts",
            "end": "nbest_ends",
        }
        columns = [decoded[name].tolist() for name in names.values()]
        nbest = [dict(zip(names, span, strict=True)) for span in zip(*columns, strict=True)]
        found: dict[str, Any] = {
            "answer": plain(decoded["answer"]),
            "score": float(decoded["score"]),
            "start": int(decoded[START_BYTE]),
            "end": int(decoded[END_BYTE]),
        }
        if self.version.unanswerable:
            found["no_answer_probability"] = float(decoded["no_answer_probability"])
        return found | {
            "nbest": [span | {"answer": plain(span["answer"])} for span in nbest if span["start"] >= 0]
        }

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The question, the answer between brackets with the context around it, and how probable that is."""
        start, end = record["start"], record["end"]
        if start < 0:
            probability = record.get("no_answer_probability", 1.0)
            return {QUESTION: example[QUESTION], "answer": "(none)", "probability": f"{probability:.4f}"}
        context = example[CONTEXT].encode()
        before, answer, after = (
            " ".join(part.decode("utf-8", "replace").split("\n"))
            for part in (context[:start], context[start:end], context[end:])
        )
        before = f"… {before[-SHOWN:]}" if len(before) > SHOWN else before
        after = f"{after[:SHOWN]} …" if len(after) > SHOWN else after
        return {
            QUESTION: example[QUESTION],
            "answer": f"{before}[{answer}]{after}",
            "probability": f"{record['nbest'][0]['probability']:.4f}",
        }

    def report(self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]) -> Iterator[Table]:
        """By whether there is an answer, or by the question's first word; and the most confident errors."""
        scores = self._scores(predictions["answer"], raw)
        if self.version.unanswerable:
            groups = np.where(_has_answer(raw), "answerable", "unanswerable")
        else:
            groups = np.array([_first_word(question) for question in raw[QUESTION]])
        rows = []
        for group, size in collections.Counter(groups.tolist()).most_common(ERRORS_SHOWN):
            chosen = groups == group
            rows.append((group, size, *(100 * float(values[chosen].mean()) for values in scores.values())))
        title = "by kind of question" if self.version.unanswerable else "by first word"
        yield Table(title, ("questions", "count", "exact match", "f1"), rows)

        confidence = predictions["nbest_probabilities"][:, 0]
        if self.version.unanswerable:
            withheld = predictions[START_BYTE] < 0
            confidence = np.where(withheld, predictions["no_answer_probability"], confidence)
        wrong = np.flatnonzero(scores["exact_match"] == 0)
        errors = wrong[np.argsort(-confidence[wrong], kind="stable")][:ERRORS_SHOWN]
        yield Table(
            "most confident errors",
            (QUESTION, "gold", "predicted", "probability"),
            [
                (
                    plain(raw[QUESTION][i]),
                    next(iter(json.loads(raw[ANSWERS][i])), "(none)"),
                    plain(predictions["answer"][i]) or "(none)",
                    float(confidence[i]),
                )
                for i in errors
            ],
        )

    def to_json(self) -> dict[str, Any]:
        options = {option: getattr(self, option) for option in self.options}
        return {"name": self.name, **options, "tau": self.tau}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "Squad":
        kinds = {"name": one_of(VERSIONS), **dict.fromkeys(cls.options, whole(1, MAX_OPTION)), "tau": NUMBER}
        return cls(source=source, **typed(kept, kinds, where="task", optional=(*cls.options, "tau")))


def _has_answer(raw: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.array([bool(json.loads(answers)) for answers in raw[ANSWERS]], bool)


def _first_word(question: bytes) -> str:
    return next(iter(plain(question).lower().split()), "").rstrip("?,.:;")


class _Question(NamedTuple):
    """One question as read. starts: where each answer starts, in characters; where: what errors call it."""

    id: str
    question: str
    context: str
    answers: list[str]
    starts: list[int]
    where: str


def _columns(
    questions: Iterable[_Question], where: str, *, version: Version, train: bool
) -> dict[str, np.ndarray]:
    """The examples column by column, [N]. Raises ValueError where a question cannot be used, naming it."""
    rows: list[tuple[Any, ...]] = []
    seen: set[str] = set()
    misplaced: list[str] = []
    for question in questions:
        _check(question, seen, version)
        start, end = _place(question)
        if train and question.answers and start < 0:
            misplaced.append(question.id)
            continue
        answers = json.dumps(question.answers, ensure_ascii=False)
        texts = (question.id, question.question, question.context, answers)
        rows.append((*(text.encode() for text in texts), start, end))
    if misplaced:
        warnings.warn(
            f"{where}: left out {len(misplaced)} questions whose answer_start does not point at their answer's text, or whose "
            f"answer is blank, first {misplaced[0]}",
            stacklevel=2,
        )
    if not rows:
        raise BertKerasError(f"{where} has no questions to read; wanted is at least one.")
    names = (ID, QUESTION, CONTEXT, ANSWERS, ANSWER_START, ANSWER_END)
    dtypes = (object, object, object, object, np.int32, np.int32)
    return {
        name: np.array(column, dtype)
        for name, column, dtype in zip(names, zip(*rows, strict=True), dtypes, strict=True)
    }


def _check(question: _Question, seen: set[str], version: Version) -> None:
    """Raises ValueError; adds the id to those seen."""
    if question.id in seen:
        raise BertKerasError(
            f"{question.where}: this id stands there twice; wanted is one question for each id."
        )
    seen.add(question.id)
    if not question.context.strip():
        raise BertKerasError(
            f"{question.where}: the context is empty; wanted is the text that holds the answer."
        )
    if not question.answers and not version.unanswerable:
        raise BertKerasError(
            f"{question.where}: there is no answer, and {version.title} answers every question; give the task squad2.0."
        )
    if not all(question.answers):
        raise BertKerasError(
            f"{question.where}: the text of an answer is empty; wanted is a part of the context."
        )
    check_text(question.where, question.id, question.question, question.context, *question.answers)


def _place(question: _Question) -> tuple[int, int]:
    """First byte and end byte of the first answer in the context; -1 where it is not there, is blank or there is none."""
    if not question.answers:
        return -1, -1
    text, start = question.answers[0], question.starts[0]
    if start < 0 or not question.context.startswith(text, start) or _is_blank(text):
        return -1, -1
    first = len(question.context[:start].encode())
    return first, first + len(text.encode())


def _is_blank(text: str) -> bool:
    """Whether there are white space and control characters alone, of which no wordpiece is made."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def _from_tfds(name: str, split: str) -> Iterator[_Question]:
    examples, _ = load_tfds(name, split, instead="a folder of the official JSON files")
    for example in examples.as_numpy_iterator():
        id_, question, context = (example[key].decode() for key in (ID, QUESTION, CONTEXT))
        yield _Question(
            id=id_,
            question=question,
            context=context,
            answers=[text.decode() for text in example[ANSWERS]["text"]],
            starts=example[ANSWERS]["answer_start"].tolist(),
            where=f"{name}, question {id_}",
        )


def _from_json(path: Path) -> Iterator[_Question]:
    """Every question of a file. Raises ValueError on what is not in SQuAD's form, naming the place."""
    content = parse_json(read_text(path), source=path)
    for i, article in enumerate(_member(content, "data", list, where=str(path))):
        at = f"{path}, data[{i}]"
        for j, paragraph in enumerate(_member(article, "paragraphs", list, where=at)):
            at = f"{path}, data[{i}].paragraphs[{j}]"
            context = _member(paragraph, CONTEXT, str, where=at)
            for k, entry in enumerate(_member(paragraph, "qas", list, where=at)):
                id_ = _member(entry, ID, str, where=f"{at}.qas[{k}]")
                yield _question(id_, context, entry, where=f"{path}, question {id_}")


def _question(id_: str, context: str, entry: Mapping[str, Any], *, where: str) -> _Question:
    answers = _member(entry, ANSWERS, list, where=where)
    if "is_impossible" in entry and _member(entry, "is_impossible", bool, where=where) == bool(answers):
        raise BertKerasError(
            f"{where}: is_impossible is {str(entry['is_impossible']).lower()} and there are {len(answers)} answers; "
            "wanted are answers, or is_impossible true."
        )
    return _Question(
        id=id_,
        question=_member(entry, QUESTION, str, where=where),
        context=context,
        answers=[_member(answer, "text", str, where=where) for answer in answers],
        starts=[_member(answer, ANSWER_START, int, where=where) for answer in answers],
        where=where,
    )


_KINDS = {list: "list", str: "string", int: "whole number", bool: "true or false"}


def _member(value: Any, name: str, kind: type, *, where: str) -> Any:
    """value[name]. Raises ValueError where it is not there, or of another kind."""
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or (kind is int and not is_whole(found)):
        there = isinstance(value, dict) and name in value
        is_there = f"it is {short(found)}" if there else "there is none"
        raise BertKerasError(
            f"{where}: wanted is {name!r}, a {_KINDS[kind]}, as in SQuAD's JSON; {is_there}."
        )
    return found
