"""Reads GLUE's TSV files, a user's own files of the same form, and TensorFlow Datasets.

Out: examples {text names: string, "label": int32 (float32 for a score), "idx": int32}.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.paths import path_of
from tasks.data_files import Source, listing, load_tfds, numbered_lines
from tasks.glue.rows import IDX, LABEL, ROWS, SCORES, GlueRow, standard_splits

UNLABELLED = -1  # the label in TensorFlow Datasets where the test labels are withheld


def withheld_label(row: GlueRow) -> np.generic:
    """The label of an example without a label: -1 for a class, else NaN, because a score may be negative."""
    return np.int32(UNLABELLED) if row.label_type == "class" else np.float32(np.nan)


def row_from_folder(folder: str | Path) -> GlueRow:
    """The row of a user's own classification data: train.tsv, dev.tsv and an optional test.tsv.

    Each file has a header: `label` (optional in test.tsv) and one or two text columns, which name the features; idx, index and id
    are ignored. The labels are those of train.tsv, stripped and sorted.

    Raises BertKerasError for an unreadable file, with its line, and MissingFileError for a missing one.
    """
    folder = folder_of(folder, "")
    train = folder / "train.tsv"
    header, lines = read_table(train)
    text = tuple(column for column in header if column not in (LABEL, "idx", "index", "id"))
    if len(text) not in (1, 2) or not all(column.isidentifier() and column != "self" for column in text):
        raise BertKerasError(
            f"{train} has the text columns {', '.join(map(repr, text)) or '(none)'}; give one or two, "
            "separated by tabs, with names of letters, digits and _, but not 'self'."
        )
    column = _column(train, header, LABEL)
    labels = tuple(sorted({line.values[column].strip() for line in lines}))
    if empty := [line.number for line in lines if not line.values[column].strip()]:
        raise BertKerasError(f"{train}, line {empty[0]}: the label is empty; give every line a label.")
    if len(labels) < 2:
        found = ", ".join(map(repr, labels)) or "(none)"
        raise BertKerasError(f"{train} has the labels {found}; give two or more.")
    splits = standard_splits(*text, label=LABEL)
    test = folder / splits["test"].file
    if not test.exists():
        del splits["test"]
    elif LABEL in read_table(test)[0]:
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


def one_folder(source: Source) -> str | Path:
    """The source of all splits. Raises BertKerasError if it is one file for each split."""
    if isinstance(source, Mapping):
        raise BertKerasError("GLUE reads all splits from one folder of TSV files; give that folder.")
    return source


def folder_of(source: str | Path, official: str) -> Path:
    """`source`, or the official folder in it. Raises MissingFileError."""
    source = path_of(source)
    if not source.is_dir():
        raise MissingFileError(f"{source} is not a folder; give the folder that holds the TSV files.")
    return source / official if (source / official).is_dir() else source


def from_tfds(row: GlueRow, split: str) -> tf.data.Dataset:
    """The examples of a split in TensorFlow Datasets."""
    if row.name not in ROWS:
        raise BertKerasError(f"{row.name} is not in TensorFlow Datasets; give a folder of TSV files.")
    examples, _ = load_tfds(f"glue/{row.name}", split, instead="a folder of the official TSV files")
    dtype = tf.int32 if row.labels else tf.float32

    def select(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        label = tf.cast(example[LABEL], dtype)
        if row.label_type == "score":
            label = tf.where(label == UNLABELLED, withheld_label(row), label)
        return {name: example[name] for name in row.text} | {
            LABEL: label,
            IDX: tf.cast(example[IDX], tf.int32),
        }

    return examples.map(select, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def from_folder(row: GlueRow, split: str, folder: Path) -> dict[str, np.ndarray]:
    """All examples of a split as columns [N]."""
    tsv = row.splits[split]
    path = folder / tsv.file
    header, lines = read_table(path, header=tsv.header, skip_short_lines=row.skip_short_lines)
    text = {name: _column(path, header, column) for name, column in zip(row.text, tsv.text, strict=True)}
    label = None if tsv.label is None else _column(path, header, tsv.label)
    if not lines:
        raise BertKerasError(f"{path} has no examples; give at least one line under the header.")
    parse = _label_parser(row)
    labels = [
        withheld_label(row) if label is None else parse(path, line.number, line.values[label].strip())
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
    """(file, line number, text of a label) -> label id or score. The parser raises BertKerasError for any other value."""
    ids = {label: i for i, label in enumerate(row.file_labels)}
    low, high = SCORES

    def class_id(path: Path, number: int, written: str) -> int:
        if written not in ids:
            raise BertKerasError(
                f"{path}, line {number}: unknown label {written!r}; the labels are {', '.join(ids)}."
            )
        return ids[written]

    def score(path: Path, number: int, written: str) -> float:
        try:
            value = float(written)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise BertKerasError(
                f"{path}, line {number}: score {written!r} is not a number from {low} to {high}."
            )
        return value

    return class_id if row.labels else score


def _column(path: Path, header: list[str], name: str) -> int:
    found = header.count(name)
    if found != 1:
        many, there = "more than one" if found else "no", ", ".join(map(repr, header))
        raise BertKerasError(f"{path} has {many} column {name!r}; the tab-separated columns are {there}.")
    return header.index(name)


class _Line(NamedTuple):
    number: int  # in the file, from 1
    idx: int  # among the examples, from 0
    values: list[str]


def read_table(
    path: Path, *, header: tuple[str, ...] | None = None, skip_short_lines: bool = False
) -> tuple[list[str], list[_Line]]:
    """The column names and the lines of a tab-separated file; quotes are text, blank lines are skipped.

    Raises BertKerasError for an empty file, and for a line with more or fewer columns than names. `skip_short_lines`
    skips lines with fewer columns, with one warning.
    """
    _check_there(path)
    table = [(number, line.split("\t")) for number, line in numbered_lines(path) if line]
    if not table:
        raise BertKerasError(f"{path} is empty; give tab-separated lines.")
    names = list(header) if header else table.pop(0)[1]
    lines, short = [], []  # a skipped line keeps its idx, as in TensorFlow Datasets
    for idx, (number, values) in enumerate(table):
        if len(values) == len(names):
            lines.append(_Line(number, idx, values))
        elif skip_short_lines and len(values) < len(names):
            short.append(number)
        else:
            raise BertKerasError(
                f"{path}, line {number}: {len(values)} column(s), expected {len(names)}, separated by tabs: {', '.join(names)}."
            )
    if short:
        warnings.warn(
            f"{path}: skipped {len(short)} lines with fewer than {len(names)} columns, first line {short[0]}",
            stacklevel=2,
        )
    return names, lines


def _check_there(path: Path) -> None:
    """Raises MissingFileError, with the files of the folder, if the file is missing."""
    if not path.is_file():
        raise MissingFileError(f"{path.parent} has no {path.name}; it has {listing(path.parent)}.")
