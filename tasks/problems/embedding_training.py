"""The training of vectors of texts: what `Embedding` learns from, its loss and its measures. The model is `Embedding`'s.

In: examples {"text": string [T]}, with a "label" where the texts have a score, a class or a teacher's vector. Out: vectors
[B, T, H] for the loss.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.fields import field_types, names_of
from bert_keras.model.choices import CLASSES, PAIRS, SCORES, VECTORS
from bert_keras.optimization.vector_losses import BatchLoss
from bert_keras.tasks.data.glue import STEMS
from bert_keras.tasks.data.sources import Source, file_of_split
from bert_keras.tasks.data.tables import find_table
from bert_keras.tasks.data.text_groups import (
    LABEL,
    NEEDED,
    TEXT,
    Columns,
    GroupColumns,
    checked_groups,
    columns_of,
    form_of,
    in_twos,
    read_group_file,
    read_groups,
    without_repeats,
)
from bert_keras.tasks.options import ColumnOptions, EmbeddingOptions
from bert_keras.tasks.problems.vector_measures import MEASURES, evaluate_vectors, measures_of, views_of
from bert_keras.tasks.report import Arrays, Table
from bert_keras.tasks.task import Features, Raw, Task

VECTOR = "embedding"
_COLUMNS = ("text_column", "label_column", "quoting")  # of ColumnOptions
TRAINING_KINDS = {
    **field_types(EmbeddingOptions),
    **{name: kind for name, kind in field_types(ColumnOptions).items() if name in _COLUMNS},
}
_SPLITS = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}


class VectorTraining(Task):
    """The part of a task that learns vectors of texts, from pairs, scores, classes or a teacher: the form of the data decides.

    settings: the fields of EmbeddingOptions; text_column, label_column and quoting as in ColumnOptions
    source: the files, as in `split_file`
    dimension: the numbers of each vector that are given, the first ones; None gives all. The loss reads all
    """

    l2: bool

    joins_texts = True
    adjustable: tuple[str, ...] = ("dimension",)
    by_form: Mapping[str, tuple[str, ...]] = MEASURES
    measures = tuple(dict.fromkeys(name for names in MEASURES.values() for name in names))
    measure = measures[0]
    labels_needed = NEEDED
    options = (*names_of(EmbeddingOptions), *_COLUMNS)
    optional = tuple(TRAINING_KINDS)

    def _learn_from(self, source: Source | None, settings: Mapping[str, Any]) -> None:
        """Keeps the settings; of files, the first measure is that of the dev split's form."""
        columns = {name: settings.get(name) for name in _COLUMNS}
        ColumnOptions(**columns)
        own = {name: value for name, value in settings.items() if name not in _COLUMNS}
        self._settings = vars(EmbeddingOptions(**own)) | columns
        self.source, self.dimension = source, self._settings.pop("dimension")
        if source is None:
            return
        with contextlib.suppress(MissingFileError):
            files = {split: self._file(split) for split in ("train", "validation") if self._has(split)}
            if files:
                form = self._columns([*files.values()][-1]).form
                self.measure = self.by_form.get(form, self.measures)[0]

    @property
    def loss_name(self) -> str | None:
        """The row of VECTOR_LOSSES that was asked for."""
        return self._settings["loss"]

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> Self:
        return cls(source=source, **options)

    def to_json(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in self.kinds if name not in self._settings}
        settings |= self._settings
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
        return {"name": self.name} | {name: value for name, value in plain.items() if value is not None}

    # -------------------------------------------------------------------------------------------------------
    # Data

    def _has(self, split: str) -> bool:
        return not isinstance(self.source, Mapping) or split in self.source

    def _file(self, split: str) -> Path:
        assert self.source is not None
        path = file_of_split(self.source, split)
        return find_table(path, STEMS[_SPLITS[split]]) if path.is_dir() else path

    def _columns(self, path: Path) -> GroupColumns:
        return columns_of(path, **{name: self._settings[name] for name in (*_COLUMNS, "negative_column")})

    def examples(self, split: str) -> tf.data.Dataset:
        """{"text": string [T]}, with {"label": float32 or int32 []} for scores or classes, or float32 [H]."""
        if self.source is None:
            raise BertKerasError(
                f"{self.name} is read from files; give a folder of them, or a file for each split."
            )
        if split not in _SPLITS:
            raise BertKerasError(f"there is no split {split!r}; the splits are {', '.join(_SPLITS)}.")
        path = self._file(split)
        columns, quoting = self._columns(path), self._settings["quoting"]
        # A dev split may have another form than the loss's, such as scores beside pairs.
        loss = self.loss_name if split == "train" else None
        check = functools.partial(self.checked, loss=loss)
        return tf.data.Dataset.from_tensor_slices(
            read_group_file(path, columns, check=check, quoting=quoting)
        )

    def checked(self, columns: Columns, *, loss: str | None) -> Columns:
        """The raw columns of examples for those of a file. Raises BertKerasError for those that nothing can be learned from."""
        return checked_groups(columns, loss)

    def labelled(self, x: Any, y: Any) -> dict[str, np.ndarray]:
        return read_groups(x, y, self.loss_name)

    def arranger(self, batch_size: int) -> Callable[[Raw], tf.Tensor] | None:
        """No two equal texts in a batch of pairs; two texts of a class side by side."""

        @tf.autograph.experimental.do_not_convert
        def order(raw: Raw) -> tf.Tensor:
            form = form_of(raw)
            if form in (SCORES, VECTORS):
                return tf.range(tf.shape(raw[TEXT])[0], dtype=tf.int64)
            arrange, read = (without_repeats, TEXT) if form == PAIRS else (in_twos, LABEL)
            made = tf.numpy_function(lambda rows: arrange(rows, batch_size), [raw[read]], tf.int64)
            return tf.ensure_shape(made, [None])

        if batch_size < 2:
            raise BertKerasError(
                "batch_size is 1, and a text is compared with others of its batch; give at least 2."
            )
        return order

    # -------------------------------------------------------------------------------------------------------
    # Labels and loss

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Scores float32 [B], classes int32 [B], vectors float32 [B, H], or int64 [B, T], equal for equal texts; weights of 1."""
        weights = tf.ones(tf.shape(raw[TEXT])[:1])
        if LABEL in raw:
            return raw[LABEL], weights
        return tf.strings.to_hash_bucket_fast(raw[TEXT], 2**62), weights

    def loss(self) -> keras.losses.Loss:
        settings = {name: self._settings[name] for name in ("temperature", "margin", "matryoshka")}
        return BatchLoss(self.loss_name, **settings)

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Vectors [B, H] -> "embedding" float32 [B, H]."""
        shape = raw[TEXT].shape
        if len(shape) > 1:  # an example has T texts: vectors [B * T, H] -> [B, T, H]
            outputs = tf.reshape(outputs, [-1, shape[1], outputs.shape[-1]])
        return self.decode_features(outputs)

    def cut(self, vectors: tf.Tensor) -> tf.Tensor:
        """The first `dimension` numbers of vectors [..., H]. Raises BertKerasError for more than they have."""
        if self.dimension is None:
            return vectors
        if self.dimension > vectors.shape[-1]:
            raise BertKerasError(
                f"dimension is {self.dimension} and the vectors have {vectors.shape[-1]}; give at most as many."
            )
        first = vectors[..., : self.dimension]
        return keras.ops.normalize(first) if self.l2 else first

    # -------------------------------------------------------------------------------------------------------
    # Measures

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields the measures of MEASURES for the form of the examples."""
        yield from evaluate_vectors(predictions[VECTOR], raw)

    def resampled(self, predictions: Arrays, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
        return measures_of(predictions[VECTOR], raw)

    def views(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        yield from views_of(predictions[VECTOR], raw)

    def degenerate(self, predictions: Arrays, raw: Arrays) -> str | None:
        """A measure near 0; of classes, no better than chance cannot be told from this alone."""
        return None if form_of(raw) == CLASSES else super().degenerate(predictions, raw)
