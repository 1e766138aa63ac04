"""Classification of texts: one class, a score or any number of labels for one or two texts.

In: examples {text names: string, "label": int32 (float32 for a score), "idx": int32}. Out: label strings with probabilities, or
scores, and the measures of the data set. With a `doc_stride`, a text longer than the encoder's limit is cut into windows, [W, S].
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.checkpoints.cross_encoder import SIGMOID
from bert_keras.checkpoints.labels import count_outputs, own_labels
from bert_keras.errors import BertKerasError
from bert_keras.features import EXAMPLE_INDEX
from bert_keras.fields import field_types, names_of
from bert_keras.io.json_files import TEXT, checked_fields, list_of, one_of, shortened
from bert_keras.io.paths import to_path
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.losses import GlobalMean
from bert_keras.tasks import metrics
from bert_keras.tasks.data import glue
from bert_keras.tasks.data.glue import LABEL, ROWS, TextDataSet
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.options import ClassifierOptions, ColumnOptions, MeasureOptions
from bert_keras.tasks.problems import class_report
from bert_keras.tasks.problems.class_metrics import keras_metrics, measures_of_rows
from bert_keras.tasks.problems.label_types import (
    LABEL_TYPES,
    LABELS,
    SCORE,
    measure_of,
    measures_by_class,
    unknown_measure,
    usual_name,
)
from bert_keras.tasks.problems.pair_orders import pair_model
from bert_keras.tasks.report import Arrays, Judged, Table, cell, list_errors, most_confident, plain
from bert_keras.tasks.task import (
    LABEL_NAMES,
    POOLINGS,
    PROBABILITIES,
    Features,
    Raw,
    Task,
    checked_labelled,
    classifier_model,
)
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.rules import BERT_PAIR


def own_type(checkpoint: Checkpoint, head: str) -> str:
    """The key of LABEL_TYPES for a checkpoint's own classifier, by the rules of transformers' pipeline.

    One output without a problem_type is a score: only a file that says so makes it a probability.
    Raises BertKerasError for a regression of several outputs.
    """
    outputs = count_outputs(checkpoint, head)
    by_name = {kind.problem_type: name for name, kind in LABEL_TYPES.items()}
    if checkpoint.problem_type not in (None, *by_name):
        raise BertKerasError(
            f"{checkpoint.prefix}problem_type is {shortened(checkpoint.problem_type)}, which no classifier has; correct it in "
            f"config.json: {', '.join(by_name)}."
        )
    named = by_name.get(checkpoint.problem_type or "", "class")
    if outputs == 1:
        raw = checkpoint.problem_type is None and checkpoint.score_function != SIGMOID
        return "score" if raw or named == "score" else "multi"
    if named == "score":
        raise BertKerasError(
            f"{checkpoint.prefix}problem_type is regression and the classifier has {outputs} outputs, which is not supported; a "
            "score is one output."
        )
    return named


class TextClassification(Task):
    """Labels or scores of one or two texts.

    labels: the label strings by label id; empty where the label is a score
    text: the names of the one or two texts
    label_type: a key of LABEL_TYPES
    measures: names of measures (`measure_of`), the first one chooses the best epoch; None takes those of the type of labels
    pooling: a key of POOLINGS, the input of the classifier
    doc_stride: tokens from the start of one window of a long text to the start of the next; None truncates long texts
    truncation: "tail" or "head_tail", the part to keep of a text that does not fit; None keeps its head
    both_orders: of a pair, the classifier reads the sum of the pooled outputs of both orders (`pair_orders`)
    data: the data set of the examples; None reads tables with columns named like the texts and "label"
    source: the folder of the data set's files or its parent, one file, or a file for each split; None for TensorFlow Datasets

    Of a pair, the second text is cut into windows; the first text is in each window, truncated only where both do not fit.
    Raises MissingFileError for a missing folder, BertKerasError for texts, labels and measures that contradict each other, for an
    unknown pooling, for `truncation` of a pair, and for `both_orders` of one text.
    """

    kind = "text-classification"
    names = glue.NAMES
    options = (*names_of(ClassifierOptions), *names_of(ColumnOptions), *names_of(MeasureOptions))
    head = "classifier"
    architectures = ("ForSequenceClassification",)
    adjustable = ("logits",)
    kinds = {
        "name": one_of(glue.NAMES),
        "text": list_of(TEXT),
        "labels": list_of(TEXT),
        "label_type": one_of(LABEL_TYPES),
        "measures": list_of(TEXT),
        "text_column": list_of(TEXT),
        "label_column": TEXT,
        "quoting": field_types(ColumnOptions)["quoting"],
        **field_types(ClassifierOptions),
    }
    optional = ("quoting", "both_orders")

    def __init__(
        self,
        labels: Sequence[str] = (),
        *,
        text: Sequence[str] = Task.text,
        label_type: str = "class",
        measures: Sequence[str] | None = None,
        name: str = glue.CUSTOM,
        pooling: str = ClassifierOptions.pooling,
        doc_stride: int | None = ClassifierOptions.doc_stride,
        truncation: str | None = ClassifierOptions.truncation,
        both_orders: bool = ClassifierOptions.both_orders,
        data: TextDataSet | None = None,
        source: Source | None = None,
    ) -> None:
        ClassifierOptions(
            pooling=pooling, doc_stride=doc_stride, truncation=truncation, both_orders=both_orders
        )
        self.name, self.text, self.label_names = name, tuple(text), tuple(labels)
        self.label_type, self.type = label_type, LABEL_TYPES[label_type]
        self.measures = self.type.measures if measures is None else tuple(measures)
        self._check_measures(self.measures)
        data = data or glue.make_own_data_set(labels, text=text, label_type=label_type, name=name)
        self.data, self.source = data, source
        self._check()
        if truncation is not None and len(self.text) > 1:
            raise BertKerasError(
                f"truncation is {truncation} and {name} reads the pair {', '.join(text)}; leave it out: of a pair, the "
                "longer text is cut first."
            )
        if both_orders and len(self.text) < 2:
            raise BertKerasError(f"both_orders is True and {name} reads one text; leave it out.")
        self.pooling, self.doc_stride, self.truncation = pooling, doc_stride, truncation
        self.both_orders = both_orders or None  # None is not in a task.json
        self.windowed = self.windowed or doc_stride is not None  # a subclass may have windows of its own
        self.outputs, self.problem_type = (POOLINGS[pooling],), self.type.problem_type
        self.classes = self.label_names if label_type == "class" else ()
        self.measure = self.measures[0]
        self.answers = self.type.answers
        self.score_bounds = data.bounds if all(map(math.isfinite, data.bounds)) else None
        self.head = "concat_classifier" if pooling == "concat" else self.head
        self.validation_splits = tuple(split for split in data.splits if split.startswith("validation"))
        train = next(iter(data.splits.values()))
        self.text_column, self.label_column = list(train.text), train.label or LABEL
        self.columns = dict(zip(self.text, train.text, strict=True))
        self.quoting = data.quoting if name not in ROWS or data.quoting != ROWS[name].quoting else None
        if source is not None:
            glue.check_source(source)
            if isinstance(source, Mapping) or to_path(source).is_file():  # MNLI has two validation splits
                self.validation_splits = self.validation_splits[:1]

    def _check(self) -> None:
        """Raises BertKerasError if texts, labels, measures and the data set contradict each other."""
        text, labels, files = self.text, self.label_names, [file.text for file in self.data.splits.values()]
        rules = {
            "text": (
                text,
                len(text) in (1, 2) and len({*text}) == len(text) and all(map(glue.names_a_text, text)),
                f"one or two names, which are no keywords of Python and none of {', '.join(glue.TAKEN)}",
            ),
            "labels": (
                labels,
                len({*labels}) == len(labels) >= self.type.least
                and bool(labels) == (self.label_type != "score")
                and len(labels) == len(self.data.file_labels),
                "two or more different labels, none for a score, or one or more with multi; those of its data set",
            ),
            "measures": (self.measures, len(self.measures) > 0, "one or more"),
            "text_column": (
                files,
                all(len(columns) == len(text) for columns in files),
                "one text column for each name in text",
            ),
        }
        for name, (given, good, want) in rules.items():
            if not good:
                raise BertKerasError(f"task: {name} is {shortened(given)}; expected {want}.")

    def _check_measures(self, names: Sequence[str]) -> None:
        """Raises BertKerasError for a measure that does not fit the labels."""
        for name in names:
            if measure_of(name, self.label_names, self.label_type) is None:
                raise unknown_measure(name, self.label_names, self.label_type)

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> "TextClassification":
        """The problem of the data set named `name`; for "custom", the files in `source` define the data set.

        options: the fields of ClassifierOptions, of ColumnOptions and of MeasureOptions
        """
        columns = {name: options.pop(name) for name in names_of(ColumnOptions) if name in options}
        measure = options.pop("measure", None)
        data = glue.open_data_set(name, source, ColumnOptions(**columns))
        options |= {"text": data.text, "label_type": data.label_type, "measures": data.measures or None}
        made = cls(data.labels, name=name, data=data, source=source, **options)
        return made if measure is None else made.measuring(usual_name(measure), first=True)

    def measuring(self, *names: str, first: bool = False) -> "TextClassification":
        """The same problem with more measures. first: True if the first of them chooses the best epoch."""
        names = tuple(measures_by_class(names, self.label_names))
        self._check_measures(names)
        others = [name for name in self.measures if name not in names]
        made = copy.copy(self)
        new = [name for name in names if name not in self.measures]
        made.measures = (*names, *others) if first else (*self.measures, *new)
        made.measure = made.measures[0]
        return made

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, source: Source | None = None, **options: Any
    ) -> "TextClassification":
        """The task of a checkpoint's own classifier, with its labels. options: those of `open`, and those of the constructor."""
        columns = {name: options.pop(name, None) for name in names_of(ColumnOptions)}
        label_type = columns["label_type"] or own_type(checkpoint, cls.head)
        labels = () if label_type == "score" else own_labels(checkpoint, cls.head)
        label, chosen = columns["label_column"] or LABEL, columns["text_column"]
        if source is not None:
            chosen = glue.text_columns(source, ColumnOptions(**columns))
        text = options.pop("text", None) or (glue.name_texts(chosen) if chosen else Task.text)
        named: dict[str, Any] = {"text": text, "label_type": label_type}
        data = glue.make_own_data_set(labels, columns=chosen, label=label, **named)
        return cls(labels, data=data, source=source, **named, **options)

    def examples(self, split: str) -> tf.data.Dataset:
        return glue.load_examples(self.data, split, self.source)

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Names or ids of classes; scores; or lists of names, or 0 and 1 for each label."""
        return {LABEL: self.type.targets(y, self.label_names)}

    def metrics(self) -> list[keras.metrics.Metric]:
        """The measures of labels; none for windows, because a metric of windows does not measure texts, and none for scores."""
        return self.keras_metrics(self.type.measures)[0]

    def keras_metrics(self, given: Any) -> tuple[Any, tuple[str, ...]]:
        counts = self.label_type != "score" and not self.windowed
        given = keras.tree.flatten(given)
        return keras_metrics(given, self.label_names, self.label_type, counts=counts)

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S]; with a `doc_stride`, `Preprocessor.windows` of the last text, [W, S]."""
        *first, last = (raw[name] for name in self.text)
        if self.both_orders and preprocess.tokenizer.pair != BERT_PAIR:
            raise BertKerasError(
                "both_orders needs pairs with one separator and types, as BERT's and GPT's; leave it out."
            )
        if self.truncation is not None:
            return preprocess(last, keep=self.truncation)
        if self.doc_stride is None:
            return preprocess(*first, last)
        question = first[0] if first else None
        return preprocess.windows(last, question=question, doc_stride=self.doc_stride, max_query_length=None)

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels as LABEL_TYPES has them, and weights float32 [B], which are 0 where the label is withheld.

        Each of W windows has its text's label [W, ...], and the windows of a text share its weight equally: a long text counts as
        much as a short one.
        """
        label, known = raw[LABEL], self._is_known(raw[LABEL])
        # Weight 0 hides any loss but NaN: 0 * NaN is NaN.
        shape = [-1] + [1] * (len(label.shape) - 1)
        label, weights = tf.where(tf.reshape(known, shape), label, 0), tf.cast(known, tf.float32)
        if self.doc_stride is None:
            return label, weights
        text = features[EXAMPLE_INDEX]
        windows = tf.math.bincount(text, minlength=tf.size(weights), dtype=tf.float32)
        return tf.gather(label, text), tf.gather(weights / windows, text)

    def _is_known(self, label: Any) -> Any:
        """False where the label is withheld: a tensor or array [B] or [B, C] -> bool [B]."""
        if self.label_type == "class":
            return label >= 0
        first = label[:, 0] if self.label_type == "multi" else label
        return first == first  # False for NaN

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [B, C], or [B, 1] for a score."""
        if self.both_orders:
            return pair_model(encoder, len(self.label_names) or 1)
        return classifier_model(encoder, len(self.label_names) or 1, pooling=self.pooling)

    def loss(self) -> keras.losses.Loss:
        return GlobalMean(self.type.loss)

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [B, C] -> "label" string [B] and "probabilities" float32 [B, C], or "score" float32 [B].

        Where a text has any number of labels: "labels" string [B, C], "" where a label does not apply, and "probabilities".
        The logits [W, C] of windows become those of texts. The logits of a text are the mean over its windows, as those of an
        ensemble are the mean over its models: the order of the two means does not matter, and a score is a mean of scores.
        """
        if self.doc_stride is not None:
            count = tf.size(raw[self.text[0]])
            outputs = tf.math.unsorted_segment_mean(outputs, features[EXAMPLE_INDEX], count)
        logits = {"logits": outputs} if "logits" in self.asked else {}
        return self.decode_features(outputs) | logits

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.type.decode(outputs, self.label_names)

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields the measures over the labelled examples. Raises BertKerasError where no example is labelled."""
        known = checked_labelled(self._is_known(raw[LABEL]), self.name)
        labels, predicted = raw[LABEL][known], self.type.predicted(predictions, self.label_names)[known]
        for name in self.measures:
            yield name, self._measure(name, labels, predicted)

    def resampled(self, predictions: Arrays, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
        """Of labels, it counts."""
        labels, predicted = raw[LABEL], self.type.predicted(predictions, self.label_names)
        if self.label_type == "score":
            return lambda rows: {
                name: self._measure(name, labels[rows], predicted[rows]) for name in self.measures
            }
        multi = self.label_type == "multi"
        return measures_of_rows(self.measures, self.label_names, labels, predicted, multi=multi)

    def _measure(self, name: str, labels: np.ndarray, predicted: np.ndarray) -> float:
        measure = measure_of(name, self.label_names, self.label_type)
        assert measure is not None  # checked when the problem was made
        return measure(labels, predicted)

    def degenerate(self, predictions: Arrays, raw: Arrays) -> str | None:
        """One class, one set of labels or one score for nearly all texts, or no better than that."""
        known, names = self._is_known(raw[LABEL]), self.label_names
        labels, predicted = raw[LABEL][known], self.type.predicted(predictions, names)[known]
        if self.label_type == "score":
            return metrics.degenerate_scores(labels, predicted)
        if self.label_type == "multi":
            array = np.array(names)
            return metrics.one_answer(predicted, name=lambda row: ", ".join(array[row > 0]) or "no label")
        return metrics.degenerate_classes(labels, predicted, names, measure=self.measure)

    def baseline(self, raw: Arrays) -> float:
        """The measure of the most common label, or labels; a constant score has a correlation of 0."""
        labels = raw[LABEL][self._is_known(raw[LABEL])]
        values, counts = np.unique(labels, axis=0, return_counts=True)
        constant = np.broadcast_to(values[counts.argmax()], labels.shape)
        return self._measure(self.measure, labels, constant)

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """The served arrays as JSON values; of several labels, the predicted ones alone; and the names of the probabilities."""
        record = super().record(decoded)
        if PROBABILITIES in record:
            record[LABEL_NAMES] = [*self.label_names]
        if self.label_type == "multi":
            record[LABELS] = [*filter(None, record[LABELS])]
        return record

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The texts, and the score, the labels, or the label with its probability; and the logits that are asked for."""
        logits = {name: cell(record[name]) for name in ("logits",) if name in record}
        if self.label_type == "score":
            return {**example, SCORE: f"{record[SCORE]:.2f}"} | logits
        if self.label_type == "multi":
            return {**example, LABELS: ", ".join(record[LABELS])} | logits
        probability = f"{max(record[PROBABILITIES]):.4f}"
        return {**example, LABEL: record[LABEL], "probability": probability} | logits

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """The scores of each label; of classes, the confusion matrix and the most confident errors; of scores, the largest."""
        known, names = np.flatnonzero(self._is_known(raw[LABEL])), self.label_names
        gold, chosen = raw[LABEL], self.type.predicted(predictions, names)
        if self.label_type == "score":
            worst = most_confident(known, np.abs(chosen - gold))
            rows = [(*self._texts(raw, i), f"{gold[i]:.2f}", f"{chosen[i]:.2f}") for i in worst]
            wrong = np.float64(chosen[known]) - gold[known]
            of_all = f"root mean square {np.sqrt((wrong**2).mean()):.4g}, mean {np.abs(wrong).mean():.4g}"
            yield Table(f"largest errors; of all: {of_all}", (*self.text, "gold", "score"), rows)
            return
        yield class_report.by_label(names, gold[known], chosen[known], self._measure)
        if self.label_type == "multi":
            return
        yield class_report.confusions(names, gold[known], chosen[known])

        def describe(i: int) -> tuple[str, ...]:
            return (*self._texts(raw, i), names[gold[i]], names[chosen[i]])

        wrong, confidence = known[gold[known] != chosen[known]], predictions[PROBABILITIES].max(axis=1)
        columns = (*self.text, "gold", "predicted", "probability")
        yield from list_errors(wrong, confidence, columns, describe, count=len(known))

    def views(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        _, gold, chosen = self._labelled(predictions, raw)
        yield from self.type.views(self.label_names, gold, chosen)

    def judge(self, predictions: Arrays, raw: Arrays) -> Judged:
        known, gold, chosen = self._labelled(predictions, raw)
        decoded = {name: values[known] for name, values in predictions.items()}
        texts = {name: [plain(text) for text in raw[name][known]] for name in self.text}
        found = self.type.judge(self.label_names, gold, chosen, decoded)
        return Judged(rows=known, texts=texts, **found)

    def _labelled(self, predictions: Arrays, raw: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows of the labelled texts, their labels and their predictions, as LABEL_TYPES has them."""
        known = np.flatnonzero(self._is_known(raw[LABEL]))
        return known, raw[LABEL][known], self.type.predicted(predictions, self.label_names)[known]

    def _texts(self, raw: Arrays, row: int) -> list[str]:
        return [plain(raw[name][row]) for name in self.text]

    def to_json(self) -> dict[str, Any]:
        lists = {"labels": self.label_names, "text": self.text, "measures": self.measures}
        return super().to_json() | {name: list(values) for name, values in lists.items()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "TextClassification":
        fields = checked_fields(kept, cls.kinds, where="task", optional=cls.optional)
        columns, label, quoting = (
            fields.pop(name, None) for name in ("text_column", "label_column", "quoting")
        )
        if fields["name"] in ROWS:
            options = ColumnOptions(text_column=tuple(columns), label_column=label, quoting=quoting)
            data = glue.replace_columns(ROWS[fields["name"]], options)
        else:
            own = {name: fields[name] for name in ("labels", "text", "label_type")}
            data = glue.make_own_data_set(columns=columns, label=label, quoting=quoting, **own)
        return cls(data=data, source=source, **fields)


def majority_label(task: TextClassification) -> str:
    """The most frequent label of the training split; of equally frequent labels, the first.

    The paper's submission predicts it for WNLI (Devlin et al. 2019, B.1). Raises BertKerasError for a task whose texts do not
    have one class each, and for a training split without labels.
    """
    if not task.classes:
        raise BertKerasError(f"{task.name} has no classes; only a task of classes has a most frequent one.")
    examples = task.examples("train").map(lambda example: example[LABEL]).batch(1024)
    ids = np.concatenate([np.zeros(0, np.int32), *examples.as_numpy_iterator()])
    counts = np.bincount(ids[ids >= 0], minlength=len(task.classes))
    if not counts.any():
        raise BertKerasError(f"no training example of {task.name} has a label; give the labelled file.")
    return task.classes[int(counts.argmax())]
