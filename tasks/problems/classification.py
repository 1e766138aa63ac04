"""GLUE: one task for every row, classification or similarity scores of one or two texts.

In: examples {text names: string, "label": int32 (float32 for a score), "idx": int32}. Out: label strings with probabilities, or
scores, and the measures of the data set. With a `doc_stride`, a text longer than the encoder's limit is cut into windows, [W, S].
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import sklearn.metrics
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import EXAMPLE_INDEX
from bert_keras.fields import names_of
from bert_keras.io.json_files import one_of, or_null, whole
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.losses import GlobalMean
from bert_keras.tasks.data.custom_tables import row_of
from bert_keras.tasks.data.glue_files import (
    check_source,
    from_files,
    from_tfds,
    is_folder,
)
from bert_keras.tasks.data.glue_rows import (
    LABEL,
    NAMES,
    GlueRow,
    row_from_json,
)
from bert_keras.tasks.data.label_types import LABEL_TYPES, LABELS
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.failed_runs import degenerate_classes, degenerate_scores, one_answer
from bert_keras.tasks.metrics import MEASURES
from bert_keras.tasks.options import MAX_OPTION, ClassifierOptions, ColumnOptions
from bert_keras.tasks.report_tables import Table, most_confident, plain
from bert_keras.tasks.task import (
    POOLINGS,
    Arrays,
    Features,
    Raw,
    Task,
    classifier_model,
)
from bert_keras.text.preprocessing import ENDS, Preprocessor


class Glue(Task):
    """The task of one row.

    row: the result of `row_of`
    source: the folder of the row's files or its parent, one file, or a file for each split; None for TensorFlow Datasets
    pooling: a key of POOLINGS, the input of the classifier
    doc_stride: tokens from the start of one window of a long text to the start of the next; None truncates long texts
    truncation: "tail" or "head_tail", the part to keep of a text that does not fit; None keeps its head

    Of a pair, the second text is cut into windows; the first text is in each window, truncated only where both do not fit.
    Raises MissingFileError for a missing folder, BertKerasError for an unknown pooling, and for `truncation` of a pair.
    """

    kind = "glue"
    names = NAMES
    options = (*names_of(ClassifierOptions), *names_of(ColumnOptions))

    def __init__(
        self,
        row: GlueRow,
        source: Source | None = None,
        *,
        pooling: str = ClassifierOptions.pooling,
        doc_stride: int | None = ClassifierOptions.doc_stride,
        truncation: str | None = ClassifierOptions.truncation,
    ) -> None:
        ClassifierOptions(pooling=pooling, doc_stride=doc_stride, truncation=truncation)
        if truncation is not None and len(row.text) > 1:
            raise BertKerasError(
                f"truncation is {truncation} and {row.name} reads the pair {', '.join(row.text)}; leave it out: of a pair, the "
                "longer text is cut first."
            )
        self.row = row
        self.type = LABEL_TYPES[row.label_type]
        self.pooling, self.doc_stride, self.truncation = pooling, doc_stride, truncation
        self.windowed = self.windowed or doc_stride is not None  # a subclass may have windows of its own
        self.outputs = (POOLINGS[pooling],)
        self.name = row.name
        self.text = row.text
        self.label_names = row.labels
        self.problem_type = self.type.problem_type
        self.classes = row.labels if row.label_type == "class" else ()
        self.measure = row.measures[0]
        self.validation_splits = tuple(split for split in row.splits if split.startswith("validation"))
        train = next(iter(row.splits.values()))
        self.columns = dict(zip(row.text, train.text, strict=True))
        self.source = source
        if source is not None:
            check_source(source)
            if not is_folder(source):  # MNLI has two validation splits
                self.validation_splits = self.validation_splits[:1]

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> "Glue":
        """The task of the row named `name`; for "custom", the files in `source` define the row."""
        columns = {name: options.pop(name) for name in names_of(ColumnOptions) if name in options}
        return cls(row_of(name, source, ColumnOptions(**columns)), source, **options)

    def examples(self, split: str) -> tf.data.Dataset:
        """{text names: string [], "label": int32 [], float32 [] or float32 [C], "idx": int32 []}.

        Withheld labels are -1, or NaN in float32.

        Raises BertKerasError for an unreadable file, with its line, and MissingFileError for a missing one.
        """
        if split not in self.row.splits:
            raise BertKerasError(f"{self.name} has no split {split!r}; it has {', '.join(self.row.splits)}.")
        if self.source is None:
            return from_tfds(self.row, split)
        return tf.data.Dataset.from_tensor_slices(from_files(self.row, split, self.source))

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Names or ids of classes; scores; or lists of names, or 0 and 1 for each label."""
        return {LABEL: self.type.targets(y, self.label_names)}

    def metrics(self) -> list[keras.metrics.Metric]:
        """The accuracy of classes; none for windows, because a metric of windows does not measure texts."""
        return [] if self.windowed else self.type.metrics()

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S]; with a `doc_stride`, `Preprocessor.windows` of the last text, [W, S]."""
        if self.truncation is not None:
            return preprocess(raw[self.text[0]], keep=self.truncation)
        if self.doc_stride is None:
            return super().features(preprocess, raw)
        *first, last = (raw[name] for name in self.text)
        question = first[0] if first else None
        return preprocess.windows(last, question=question, doc_stride=self.doc_stride, max_query_length=None)

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels as tasks/data/label_types.py has them, and weights float32 [B], which are 0 where the label is withheld.

        Each of W windows has its text's label [W, ...], and the windows of a text share its weight equally: a long text counts as
        much as a short one.
        """
        label = raw[LABEL]
        known = self._is_known(label)
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
        if self.row.label_type == "class":
            return label >= 0
        first = label[:, 0] if self.row.multi else label
        return first == first  # False for NaN

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [B, C], or [B, 1] for a score."""
        return classifier_model(encoder, len(self.row.labels) or 1, pooling=self.pooling)

    def loss(self) -> keras.losses.Loss:
        """The weighted mean of the loss of the type of labels."""
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
        return self.decode_features(outputs)

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """As `decode`, for logits [B, C] of texts that are one window each."""
        return self.type.decode(outputs, self.label_names)

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields the row's measures over the labelled examples. Raises BertKerasError where no example is labelled."""
        labels = raw[LABEL]
        known = self._is_known(labels)
        if not known.any():
            raise BertKerasError(
                f"none of the {len(labels)} {self.name} examples is labelled; give a labelled split."
            )
        predicted = self.type.predicted(predictions, self.label_names)
        for name in self.row.measures:  # micro-averaged over any number of labels
            yield name, MEASURES[name](labels[known].ravel(), predicted[known].ravel())

    def degenerate(self, predictions: Arrays, raw: Arrays) -> str | None:
        """One class, one set of labels or one score for nearly all texts, or no better than that."""
        labels, names = raw[LABEL], self.label_names
        known = self._is_known(labels)
        predicted = self.type.predicted(predictions, names)[known]
        if self.row.label_type == "score":
            return degenerate_scores(labels[known], predicted)
        if self.row.multi:
            return one_answer(predicted, name=lambda row: ", ".join(np.array(names)[row > 0]) or "no label")
        return degenerate_classes(labels[known], predicted, names, measure=self.measure)

    def baseline(self, raw: Arrays) -> float:
        """The measure of the most common label, or labels; a constant score has a correlation of 0."""
        labels = raw[LABEL][self._is_known(raw[LABEL])]
        values, counts = np.unique(labels, axis=0, return_counts=True)
        constant = np.broadcast_to(values[counts.argmax()], labels.shape)
        return MEASURES[self.measure](labels.ravel(), constant.ravel())

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """The served arrays as JSON values; of several labels, the predicted ones alone."""
        record = super().record(decoded)
        if self.row.multi:
            record[LABELS] = [label for label in record[LABELS] if label]
        return record

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The texts, and the score, the labels, or the label with its probability."""
        if self.row.label_type == "score":
            return {**example, "score": f"{record['score']:.2f}"}
        if self.row.multi:
            return {**example, LABELS: ", ".join(record[LABELS])}
        return {**example, LABEL: record[LABEL], "probability": f"{max(record['probabilities']):.4f}"}

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """The confusion matrix and the most confident errors; for scores, the largest errors."""
        known = np.flatnonzero(self._is_known(raw[LABEL]))
        if self.row.multi:
            return
        if self.row.label_type == "score":
            yield self._largest_errors(predictions["score"], raw, known)
            return
        names, gold, chosen = self.row.labels, raw[LABEL], self.type.predicted(predictions, self.row.labels)
        matrix = sklearn.metrics.confusion_matrix(gold[known], chosen[known], labels=range(len(names)))
        rows = [(label, *counts) for label, counts in zip(names, matrix.tolist(), strict=True)]
        yield Table("gold in rows, predicted in columns", ("", *names), rows)
        wrong = known[gold[known] != chosen[known]]
        confidence = predictions["probabilities"].max(axis=1)
        rows = [
            (*self._texts(raw, i), names[gold[i]], names[chosen[i]], float(confidence[i]))
            for i in most_confident(wrong, confidence)
        ]
        if rows:
            columns = (*self.text, "gold", "predicted", "probability")
            yield Table(f"the most confident of {len(wrong)} errors in {len(known)} examples", columns, rows)

    def _largest_errors(self, scores: np.ndarray, raw: Arrays, known: np.ndarray) -> Table:
        """The labelled examples with the largest error of the score."""
        gold = raw[LABEL]
        rows = [
            (*self._texts(raw, i), f"{gold[i]:.2f}", f"{scores[i]:.2f}")
            for i in most_confident(known, np.abs(scores - gold))
        ]
        return Table("largest errors", (*self.text, "gold", "score"), rows)

    def _texts(self, raw: Arrays, row: int) -> tuple[str, ...]:
        return tuple(plain(raw[name][row]) for name in self.text)

    def to_json(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in ("pooling", "doc_stride", "truncation")}
        return dataclasses.asdict(self.row) | options

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "Glue":
        kinds = {"pooling": one_of(POOLINGS), "doc_stride": or_null(whole(1, MAX_OPTION))}
        kinds["truncation"] = or_null(one_of(ENDS))
        row, options = row_from_json(kept, **kinds)
        return cls(row, source, **options)


def majority_label(task: Glue) -> str:
    """The most frequent label of the training split; of equally frequent labels, the first.

    The paper's submission predicts it for WNLI (Devlin et al. 2019, table 1). Raises BertKerasError for a task whose texts do not
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
