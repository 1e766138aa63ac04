"""GLUE: one task for every row, classification or similarity scores of one or two texts.

In: examples {text names: string, "label": int32 (float32 for a score), "idx": int32}. Out: label strings with probabilities, or
scores, and the measures of the data set.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import sklearn.metrics
import tensorflow as tf

from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError
from bert_keras.json_files import one_of
from bert_keras.losses import GlobalMean
from bert_keras.settings import names_of
from tasks.data_files import Source
from tasks.glue.custom import row_of
from tasks.glue.files import check_source, from_files, from_tfds, is_folder
from tasks.glue.labels import LABEL_TYPES, LABELS
from tasks.glue.rows import LABEL, NAMES, GlueRow, row_from_json
from tasks.metrics import MEASURES
from tasks.report import Table, most_confident, plain
from tasks.settings import ClassifierOptions, ColumnOptions
from tasks.task import POOLINGS, Arrays, Features, Raw, Task, classifier_model


class Glue(Task):
    """The task of one row.

    row: the result of `row_of`
    source: the folder of the row's files or its parent, one file, or a file for each split; None for TensorFlow Datasets
    pooling: a key of POOLINGS, the input of the classifier

    Raises MissingFileError for a missing folder, BertKerasError for an unknown pooling.
    """

    kind = "glue"
    names = NAMES
    options = (*names_of(ClassifierOptions), *names_of(ColumnOptions))

    def __init__(
        self, row: GlueRow, source: Source | None = None, *, pooling: str = ClassifierOptions.pooling
    ) -> None:
        ClassifierOptions(pooling=pooling)
        self.row = row
        self.type = LABEL_TYPES[row.label_type]
        self.pooling = pooling
        self.outputs = (POOLINGS[pooling],)
        self.name = row.name
        self.text = row.text
        self.label_names = row.labels
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
        """The accuracy of classes."""
        return self.type.metrics()

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels as tasks/glue/labels.py has them, and weights float32 [B], which are 0 where the label is withheld."""
        label = raw[LABEL]
        known = self._is_known(label)
        # Weight 0 hides any loss but NaN: 0 * NaN is NaN.
        shape = [-1] + [1] * (len(label.shape) - 1)
        return tf.where(tf.reshape(known, shape), label, 0), tf.cast(known, tf.float32)

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

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Logits [B, C] -> "label" string [B] and "probabilities" float32 [B, C], or "score" float32 [B].

        Where a text has any number of labels: "labels" string [B, C], "" where a label does not apply, and "probabilities".
        """
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
        return dataclasses.asdict(self.row) | {"pooling": self.pooling}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "Glue":
        row, options = row_from_json(kept, pooling=one_of(POOLINGS))
        return cls(row, source, **options)
