"""GLUE as a table of rows, and one Task that serves them all; a folder of one's own files makes one more row.

In: TensorFlow Datasets, or a folder of the official TSV files. Out: examples {text names: string,
"label": int32 (float32 for a score), "idx": int32}, logits turned into label strings and probabilities, and
the data set's own measures.
Source: Wang et al. 2018, GLUE; feature names, label order and split names are TensorFlow Datasets'.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import keras
import numpy as np
import sklearn.metrics
import tensorflow as tf

from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.json_files import FLAG, OBJECT, TEXT, Kind, list_of, one_of, or_null, short, typed
from bert_keras.losses import GlobalMean, cross_entropy, squared_error
from bert_keras.paths import path_of
from bert_keras.settings import names_of
from tasks.metrics import MEASURES
from tasks.reading import load_tfds
from tasks.settings import ClassifierOptions
from tasks.task import (
    ERRORS_SHOWN,
    POOLINGS,
    Features,
    Raw,
    Source,
    Table,
    Task,
    classifier_model,
    numbered_lines,
    plain,
)

LABEL = "label"
IDX = "idx"  # the example's place in its file, counted from 0
UNLABELLED = -1  # TensorFlow Datasets' label where the test labels are withheld
SCORES = (0.0, 5.0)  # the range of STS-B's similarity score
NLI_LABELS = ("entailment", "neutral", "contradiction")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tsv:
    """One file of a data set: its name and the columns to read, by name.

    text: the columns of the text, in the order of the row's feature names
    label: the label's column; None where labels are withheld
    header: the column names of a file that does not begin with them
    """

    file: str
    text: tuple[str, ...]
    label: str | None = None
    header: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueRow:
    """One data set.

    name: the name of TensorFlow Datasets' config and of the command line
    folder: the official folder
    text: the names of the one or two text features
    labels: label id i means labels[i]; empty where the label is a score
    file_labels: how the files spell the labels, in the same order
    measures: names in MEASURES; the best epoch is chosen by the first
    splits: the file of each split
    skip_short_lines: whether lines with missing columns are left out instead of being an error
    """

    name: str
    folder: str
    text: tuple[str, ...]
    labels: tuple[str, ...]
    file_labels: tuple[str, ...]
    measures: tuple[str, ...]
    splits: Mapping[str, Tsv]
    skip_short_lines: bool = False


def _splits(*text: str, label: str) -> dict[str, Tsv]:
    return {
        "train": Tsv(file="train.tsv", text=text, label=label),
        "validation": Tsv(file="dev.tsv", text=text, label=label),
        "test": Tsv(file="test.tsv", text=text),
    }


_PAIR = ("sentence1", "sentence2")
_COLA: dict[str, Any] = {
    "text": ("sentence",),
    "label": "label",
    "header": ("source", "label", "original_label", "sentence"),
}
_MNLI: dict[str, Any] = {"text": _PAIR, "label": "gold_label"}

# MRPC, QQP and STS-B report two measures; first comes the one that Devlin et al. 2019, table 1, reports.
_TABLE = (
    GlueRow(
        name="cola",
        folder="CoLA",
        text=("sentence",),
        labels=("unacceptable", "acceptable"),
        file_labels=("0", "1"),
        measures=("matthews",),
        splits={
            "train": Tsv(file="train.tsv", **_COLA),
            "validation": Tsv(file="dev.tsv", **_COLA),
            "test": Tsv(file="test.tsv", text=("sentence",)),
        },
    ),
    GlueRow(
        name="sst2",
        folder="SST-2",
        text=("sentence",),
        labels=("negative", "positive"),
        file_labels=("0", "1"),
        measures=("accuracy",),
        splits=_splits("sentence", label="label"),
    ),
    GlueRow(
        name="mrpc",
        folder="MRPC",
        text=_PAIR,
        labels=("not_equivalent", "equivalent"),
        file_labels=("0", "1"),
        measures=("f1", "accuracy"),
        splits=_splits("#1 String", "#2 String", label="Quality"),
    ),
    GlueRow(
        name="qqp",
        folder="QQP",
        text=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        file_labels=("0", "1"),
        measures=("f1", "accuracy"),
        splits=_splits("question1", "question2", label="is_duplicate"),
        # A few lines of the official train.tsv lack columns; TensorFlow Datasets leaves them out too.
        skip_short_lines=True,
    ),
    GlueRow(
        name="stsb",
        folder="STS-B",
        text=_PAIR,
        labels=(),
        file_labels=(),
        measures=("spearman", "pearson"),
        splits=_splits(*_PAIR, label="score"),
    ),
    GlueRow(
        name="mnli",
        folder="MNLI",
        text=("premise", "hypothesis"),
        labels=NLI_LABELS,
        file_labels=NLI_LABELS,
        measures=("accuracy",),
        splits={
            "train": Tsv(file="train.tsv", **_MNLI),
            "validation_matched": Tsv(file="dev_matched.tsv", **_MNLI),
            "validation_mismatched": Tsv(file="dev_mismatched.tsv", **_MNLI),
            "test_matched": Tsv(file="test_matched.tsv", text=_PAIR),
            "test_mismatched": Tsv(file="test_mismatched.tsv", text=_PAIR),
        },
    ),
    GlueRow(
        name="qnli",
        folder="QNLI",
        text=("question", "sentence"),
        labels=("entailment", "not_entailment"),
        file_labels=("entailment", "not_entailment"),
        measures=("accuracy",),
        splits=_splits("question", "sentence", label="label"),
    ),
    GlueRow(
        name="rte",
        folder="RTE",
        text=_PAIR,
        labels=("entailment", "not_entailment"),
        file_labels=("entailment", "not_entailment"),
        measures=("accuracy",),
        splits=_splits(*_PAIR, label="label"),
    ),
    GlueRow(
        name="wnli",
        folder="WNLI",
        text=_PAIR,
        labels=("not_entailment", "entailment"),
        file_labels=("0", "1"),
        measures=("accuracy",),
        splits=_splits(*_PAIR, label="label"),
    ),
    GlueRow(
        name="ax",
        folder="AX",
        text=("premise", "hypothesis"),
        labels=NLI_LABELS,
        file_labels=NLI_LABELS,
        measures=("matthews",),
        splits={"test": Tsv(file="diagnostic.tsv", text=_PAIR)},
    ),
)
ROWS = {row.name: row for row in _TABLE}


class Glue(Task):
    """The Task of one row.

    row: one of ROWS, or what `row_from_folder` returns
    source: the folder of the row's files, or the one that holds it; None for TensorFlow Datasets
    pooling: how the classifier reads the encoder, a key of POOLINGS

    Raises FileNotFoundError where the folder is not there, ValueError on another pooling.
    """

    kind = "glue"
    names = (*ROWS, "custom")
    options = names_of(ClassifierOptions)

    def __init__(
        self, row: GlueRow, source: Source | None = None, *, pooling: str = ClassifierOptions.pooling
    ) -> None:
        ClassifierOptions(pooling=pooling)
        self.row = row
        self.pooling = pooling
        self.outputs = (POOLINGS[pooling],)
        self.name = row.name
        self.text = row.text
        self.label_names = row.labels
        self.measure = row.measures[0]
        self.validation_splits = tuple(split for split in row.splits if split.startswith("validation"))
        self.folder = None if source is None else _folder(_one(source), row.folder)

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> "Glue":
        """The row of that name, or for "custom" the row that the files in `source` make."""
        if name != "custom":
            return cls(ROWS[name], source, **options)
        if source is None:
            raise BertKerasError(
                "custom reads its labels from its files; give the folder of train.tsv and dev.tsv."
            )
        return cls(row_from_folder(_one(source)), source, **options)

    def examples(self, split: str) -> tf.data.Dataset:
        """{text names: string [], "label": int32 [] or float32 [], "idx": int32 []}; a withheld label is -1.

        Raises ValueError or FileNotFoundError on what cannot be read, naming the file and the line.
        """
        if split not in self.row.splits:
            raise BertKerasError(f"{self.name} has no split {split!r}; it has {', '.join(self.row.splits)}.")
        if self.folder is None:
            return _from_tfds(self.row, split)
        return tf.data.Dataset.from_tensor_slices(_from_folder(self.row, split, self.folder))

    def features(self, preprocess: Callable[..., Features], raw: Raw) -> Features:
        return preprocess(*[raw[name] for name in self.text])

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels int32 [B] or scores float32 [B], and weights float32 [B]: 0 where the label is withheld."""
        label = raw[LABEL]
        # Under weight 0 any label will do, except one that makes the loss NaN: 0 * NaN is NaN.
        return tf.maximum(label, 0), tf.cast(label >= 0, tf.float32)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [B, C], or [B, 1] for a score."""
        return classifier_model(encoder, len(self.row.labels) or 1, pooling=self.pooling)

    def loss(self) -> keras.losses.Loss:
        """The mean over the weights of cross-entropy, or of the squared error of a score."""
        return GlobalMean(cross_entropy if self.row.labels else squared_error)

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [B, C] -> "label" string [B] and "probabilities" float32 [B, C], or "score" float32 [B]."""
        return self.decode_features(outputs)

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """The same: no text is needed."""
        if not self.row.labels:
            return {"score": outputs[:, 0]}
        return {
            LABEL: tf.gather(tf.constant(self.row.labels), tf.argmax(outputs, axis=-1)),
            "probabilities": tf.nn.softmax(outputs),
        }

    def signature(self) -> dict[str, tf.TensorSpec]:
        return {name: tf.TensorSpec([None], tf.string, name=name) for name in self.text}

    def evaluate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """Yields the row's measures over the labelled examples. Raises ValueError where no label is known."""
        labels = raw[LABEL]
        known = labels >= 0
        if not known.any():
            raise BertKerasError(
                f"none of the {len(labels)} {self.name} examples is labelled; use a labelled split."
            )
        predicted = self._class_ids(predictions) if self.row.labels else predictions["score"]
        for name in self.row.measures:
            yield name, MEASURES[name](labels[known], predicted[known])

    def _class_ids(self, predictions: Mapping[str, np.ndarray]) -> np.ndarray:
        ids = {label.encode(): i for i, label in enumerate(self.row.labels)}
        return np.array([ids[label] for label in predictions[LABEL]])

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The texts, and the label with its probability or the score."""
        if not self.row.labels:
            return {**example, "score": f"{record['score']:.2f}"}
        return {**example, LABEL: record[LABEL], "probability": f"{max(record['probabilities']):.4f}"}

    def report(self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]) -> Iterator[Table]:
        """The confusion matrix and the errors that the model was surest of; of scores those that are farthest off."""
        known = np.flatnonzero(raw[LABEL] >= 0)
        labels = raw[LABEL][known]

        def texts(i: int) -> tuple[str, ...]:
            return tuple(plain(raw[name][i]) for name in self.text)

        if not self.row.labels:
            off = np.abs(predictions["score"][known] - labels)
            worst = known[np.argsort(-off, kind="stable")][:ERRORS_SHOWN]
            rows: list[tuple[Any, ...]] = [
                (*texts(i), f"{raw[LABEL][i]:.2f}", f"{predictions['score'][i]:.2f}") for i in worst
            ]
            yield Table("farthest off", (*self.text, "gold", "score"), rows)
            return
        chosen = self._class_ids(predictions)
        matrix = sklearn.metrics.confusion_matrix(labels, chosen[known], labels=range(len(self.row.labels)))
        rows = [(label, *counts) for label, counts in zip(self.row.labels, matrix.tolist(), strict=True)]
        yield Table("gold in rows, predicted in columns", ("", *self.row.labels), rows)
        wrong = known[labels != chosen[known]]
        sure = predictions["probabilities"].max(axis=1)
        rows = [
            (*texts(i), self.row.labels[raw[LABEL][i]], self.row.labels[chosen[i]], float(sure[i]))
            for i in wrong[np.argsort(-sure[wrong], kind="stable")][:ERRORS_SHOWN]
        ]
        if rows:
            columns = (*self.text, "gold", "predicted", "probability")
            yield Table(f"the most confident of {len(wrong)} errors in {len(known)} examples", columns, rows)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self.row) | {"pooling": self.pooling}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "Glue":
        """The task that `to_json` was called on, with `source` as in Glue."""
        row = _with_tuples(typed(kept, _ROW_KINDS, where="task"))
        pooling = row.pop("pooling")
        row["splits"] = {
            split: Tsv(
                **_with_tuples(
                    typed(tsv, _TSV_KINDS, where=f"task: splits: {split}", optional=("label", "header"))
                )
            )
            for split, tsv in kept["splits"].items()
        }
        _check_row(made := GlueRow(**row))
        return cls(made, source, pooling=pooling)


_WORDS = list_of(TEXT)
_FILE = Kind(
    "the name of a file in the data's folder",
    lambda value: isinstance(value, str) and PurePath(value).name == value,
)
_TSV_KINDS = {"file": _FILE, "text": _WORDS, "label": or_null(TEXT), "header": or_null(_WORDS)}
_ROW_KINDS = {
    "name": one_of(Glue.names),
    "folder": _FILE,
    "text": _WORDS,
    "labels": _WORDS,
    "file_labels": _WORDS,
    "measures": list_of(one_of(MEASURES)),
    "splits": OBJECT,
    "skip_short_lines": FLAG,
    "pooling": one_of(POOLINGS),
}


def _check_row(row: GlueRow) -> None:
    """Raises ValueError where the fields of a kept row, each of its type, do not fit each other."""
    counts = {split: len(tsv.text) for split, tsv in row.splits.items()}
    wanted = {
        "text": (
            len(row.text) in (1, 2)
            and len({*row.text}) == len(row.text)
            and all(map(str.isidentifier, row.text)),
            "one or two names",
        ),
        "labels": (
            len({*row.labels}) == len(row.labels) != 1,
            "two or more different labels, or none for a score",
        ),
        "file_labels": (len(row.file_labels) == len(row.labels), "as many as labels"),
        "measures": (len(row.measures) > 0, "one or more"),
        "splits": (
            all(count == len(row.text) for count in counts.values()),
            "as many columns of text as text",
        ),
    }
    for name, (good, want) in wanted.items():
        if not good:
            raise BertKerasError(f"task: {name} is {short(getattr(row, name))}; wanted {want}.")


def row_from_folder(folder: str | Path) -> GlueRow:
    """The row of one's own classification data: train.tsv, dev.tsv and, if there is one, test.tsv.

    Each file begins with column names: `label` (test.tsv may go without) and one or two columns of text,
    whose names the features take; idx, index and id are ignored. The labels are those of train.tsv, sorted,
    without white space around.
    Raises ValueError or FileNotFoundError on what cannot be read, naming the file and the line.
    """
    folder = _folder(folder, "")
    train = folder / "train.tsv"
    header, lines = _read_table(train)
    text = tuple(column for column in header if column not in (LABEL, "idx", "index", "id"))
    if len(text) not in (1, 2) or not all(column.isidentifier() and column != "self" for column in text):
        raise BertKerasError(
            f"{train} has the text columns {', '.join(map(repr, text)) or '(none)'}; wanted are one or two, "
            "separated by tabs, named with letters, digits and _, and not 'self'."
        )
    column = _column(train, header, LABEL)
    labels = tuple(sorted({line.values[column].strip() for line in lines}))
    if empty := [line.number for line in lines if not line.values[column].strip()]:
        raise BertKerasError(f"{train}, line {empty[0]}: the label is empty; wanted is one in every line.")
    if len(labels) < 2:
        found = ", ".join(map(repr, labels)) or "(none)"
        raise BertKerasError(f"{train} has the labels {found}; wanted are two or more.")
    splits = _splits(*text, label=LABEL)
    test = folder / splits["test"].file
    if not test.exists():
        del splits["test"]
    elif LABEL in _read_table(test)[0]:
        splits["test"] = dataclasses.replace(splits["test"], label=LABEL)
    return GlueRow(
        name="custom",
        folder="",
        text=text,
        labels=labels,
        file_labels=labels,
        measures=("accuracy",),
        splits=splits,
    )


def _with_tuples(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}


def _one(source: Source) -> str | Path:
    if isinstance(source, Mapping):
        raise BertKerasError("GLUE's form is one folder of TSV files for all splits; give that folder.")
    return source


def _folder(source: str | Path, official: str) -> Path:
    """`source`, or the official folder in it. Raises FileNotFoundError."""
    source = path_of(source)
    if not source.is_dir():
        raise MissingFileError(f"{source} is not a folder; pass the folder that holds the TSV files.")
    return source / official if (source / official).is_dir() else source


def _from_tfds(row: GlueRow, split: str) -> tf.data.Dataset:
    if row.name not in ROWS:
        raise BertKerasError(f"{row.name} is not in TensorFlow Datasets; pass a folder of TSV files.")
    examples, _ = load_tfds(f"glue/{row.name}", split, instead="a folder of the official TSV files")
    dtype = tf.int32 if row.labels else tf.float32

    def select(example: Raw) -> Raw:
        label = {LABEL: tf.cast(example[LABEL], dtype), IDX: tf.cast(example[IDX], tf.int32)}
        return {name: example[name] for name in row.text} | label

    return examples.map(select, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _from_folder(row: GlueRow, split: str, folder: Path) -> dict[str, np.ndarray]:
    """All examples of a split, column by column: [N]."""
    tsv = row.splits[split]
    path = folder / tsv.file
    header, lines = _read_table(path, header=tsv.header, skip_short_lines=row.skip_short_lines)
    text = {name: _column(path, header, column) for name, column in zip(row.text, tsv.text, strict=True)}
    label = None if tsv.label is None else _column(path, header, tsv.label)
    if not lines:
        raise BertKerasError(f"{path} has no examples; wanted is at least one line under the header.")
    parse = _label_parser(row)
    labels = [
        UNLABELLED if label is None else parse(path, line.number, line.values[label].strip())
        for line in lines
    ]
    columns = {
        name: np.array([line.values[at].encode() for line in lines], object) for name, at in text.items()
    }
    return columns | {
        LABEL: np.array(labels, np.int32 if row.labels else np.float32),
        IDX: np.array([line.idx for line in lines], np.int32),
    }


def _label_parser(row: GlueRow) -> Callable[[Path, int, str], float]:
    """(file, line number, written label) -> label id or score; raises ValueError on any other value."""
    ids = {label: i for i, label in enumerate(row.file_labels)}
    low, high = SCORES

    def class_id(path: Path, number: int, written: str) -> int:
        if written not in ids:
            wanted = ", ".join(ids)
            raise BertKerasError(
                f"{path}, line {number}: unknown label {written!r}; wanted is one of {wanted}."
            )
        return ids[written]

    def score(path: Path, number: int, written: str) -> float:
        try:
            value = float(written)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise BertKerasError(
                f"{path}, line {number}: score {written!r}; wanted is a number from {low} to {high}."
            )
        return value

    return class_id if row.labels else score


def _column(path: Path, header: list[str], name: str) -> int:
    found = header.count(name)
    if found != 1:
        many, there = "more than one" if found else "no", ", ".join(map(repr, header))
        raise BertKerasError(
            f"{path} has {many} column {name!r}; wanted is one. Its columns: {there}; tabs separate them."
        )
    return header.index(name)


class _Line(NamedTuple):
    number: int  # in the file, from 1
    idx: int  # among the examples, from 0
    values: list[str]


def _read_table(
    path: Path, *, header: tuple[str, ...] | None = None, skip_short_lines: bool = False
) -> tuple[list[str], list[_Line]]:
    """Column names and lines of a file; tabs separate, quotes mean nothing, blank lines are passed over.

    Raises ValueError on an empty file and on a line with more or fewer columns than there are names; with
    `skip_short_lines`, lines with fewer are left out under one warning.
    """
    _check_there(path)
    table = [(number, line.split("\t")) for number, line in numbered_lines(path) if line]
    if not table:
        raise BertKerasError(f"{path} is empty; wanted are tab-separated lines.")
    names = list(header) if header else table.pop(0)[1]
    lines, short = [], []  # a line that is left out keeps its idx, as in TensorFlow Datasets
    for idx, (number, values) in enumerate(table):
        if len(values) == len(names):
            lines.append(_Line(number, idx, values))
        elif skip_short_lines and len(values) < len(names):
            short.append(number)
        else:
            wanted = f"{len(names)}, separated by tabs: {', '.join(names)}"
            raise BertKerasError(f"{path}, line {number}: {len(values)} column(s); wanted are {wanted}.")
    if short:
        warnings.warn(
            f"{path}: left out {len(short)} lines of fewer than {len(names)} columns, first line {short[0]}",
            stacklevel=2,
        )
    return names, lines


def _check_there(path: Path) -> None:
    """Raises FileNotFoundError, saying what there is instead."""
    if not path.is_file():
        there = ", ".join(sorted(entry.name for entry in path.parent.iterdir())[:10])
        raise MissingFileError(f"{path.parent} has no {path.name}; it has {there or 'no files'}.")
