"""Reads the examples of a row from files or from TensorFlow Datasets.

In: a row, and a folder, one file, or a file for each split. Out: examples {text names: string, "label": int32 (float32 for a
score, float32 [C] for any number of labels), "idx": int32}.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError, listed
from bert_keras.io.json_files import is_finite, short
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.glue_rows import (
    IDX,
    LABEL,
    OTHER_PATHS,
    ROWS,
    SCORES,
    STEMS,
    GlueRow,
)
from bert_keras.tasks.data.sources import (
    Source,
    check_text,
    listing,
    load_tfds,
    missing_source,
)
from bert_keras.tasks.data.tables import find_table, read_rows

UNLABELLED = -1  # the label in TensorFlow Datasets where the test labels are withheld
COLUMN_ADVICE = "`finetune` reads other columns with --text-column and --label-column (in Python: text_column and label_column)"
SEPARATOR = "|"  # between the labels of one text, in files without lists


def withheld_label(row: GlueRow) -> Any:
    """The label of an example without a label: -1 for a class, else NaN, because a score may be negative."""
    if row.multi:
        return np.full(len(row.labels), np.nan, np.float32)
    return np.int32(UNLABELLED) if row.labels else np.float32(np.nan)


def is_folder(source: Source | None) -> bool:
    """True unless the examples are in one file, or in a file for each split."""
    return not isinstance(source, Mapping) and not (source is not None and to_path(source).is_file())


def check_source(source: Source) -> None:
    """Raises MissingFileError if a file or folder of the source does not exist."""
    for given in source.values() if isinstance(source, Mapping) else [source]:
        if not to_path(given).exists():
            raise missing_source(to_path(given))


def split_path(row: GlueRow, split: str, source: Source) -> Path:
    """The file of a split: the source itself, its file for this split, or the file in the folder or in its official subfolder.

    The folder may also have it at one of the row's OTHER_PATHS.
    Raises MissingFileError, with the files of the folder, for a missing file.
    """
    if isinstance(source, Mapping):
        name = split if split in source else split.partition("_")[0]  # MNLI has two validation splits
        if name not in source:
            raise BertKerasError(
                f"the {split} split has no file, only {', '.join(source)} has; give a file for {split}."
            )
        return split_path(row, split, source[name])
    path, file = to_path(source), row.splits[split].file
    if not path.is_dir():
        return path
    folder = path / row.folder if row.folder and (path / row.folder).is_dir() else path
    if row.name not in ROWS:
        return find_table(folder, STEMS.get(file, (file,)))
    others = OTHER_PATHS.get(row.name, ())
    found = [place for place in (folder / file, *map(path.joinpath, others)) if place.is_file()]
    if not found:
        expected = " or ".join((file, *others))
        raise MissingFileError(f"{folder} has no {expected}; it has {listing(folder)}.")
    return found[0]


def from_tfds(row: GlueRow, split: str) -> tf.data.Dataset:
    """The examples of a split in TensorFlow Datasets."""
    if row.name not in ROWS:
        raise BertKerasError(f"{row.name} is not in TensorFlow Datasets; give a file, or a folder of files.")
    examples, _ = load_tfds(f"glue/{row.name}", split, instead="a folder of the official TSV files (--data)")
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


def from_files(row: GlueRow, split: str, source: Source) -> dict[str, np.ndarray]:
    """All examples of a split as columns [N]."""
    file, path = row.splits[split], split_path(row, split, source)
    columns = [*file.text, *([] if file.label is None else [file.label])]
    texts: list[list[bytes]] = [[] for _ in file.text]
    labels, idx, parse, withheld = [], [], _label_parser(row), withheld_label(row)
    rows = read_rows(
        path, columns, header=file.header, skip_short_lines=row.skip_short_lines, advice=COLUMN_ADVICE
    )
    for where, at, values in rows:
        for column, value, kept in zip(file.text, values, texts, strict=False):
            kept.append(_encoded(value, where, column))
        labels.append(withheld if file.label is None else parse(values[-1], where))
        idx.append(at)
    if not labels:
        raise BertKerasError(f"{path} has no examples; give at least one line under the header.")
    return {name: np.array(kept, object) for name, kept in zip(row.text, texts, strict=True)} | {
        LABEL: np.array(labels, np.int32 if row.label_type == "class" else np.float32),
        IDX: np.array(idx, np.int32),
    }


def _encoded(value: Any, where: str, column: str) -> bytes:
    """The bytes of a text. Raises BertKerasError for a value that is not text."""
    if not isinstance(value, str):
        given = "is empty" if value is None else f"is {short(value)}, not text"
        raise BertKerasError(f"{where}: {column!r} {given}; give text.")
    check_text(where, value)
    return value.encode()


def _label_parser(row: GlueRow) -> Callable[[Any, str], Any]:
    """(value in a file, where it is) -> label id, score, or 0 and 1 for each label. It raises BertKerasError for any other."""
    ids = {label: i for i, label in enumerate(row.file_labels)}
    low, high = SCORES if row.name in ROWS else (-np.inf, np.inf)

    def class_id(value: Any, where: str) -> int:
        written = label_of(value, where)
        if written not in ids:
            numbered = number_of(written) is not None and not any(
                number_of(label) is not None for label in ids
            )
            advice = "; write the names in place of numbers" if numbered else ""
            raise BertKerasError(
                f"{where}: unknown label {written!r}; the labels are {listed(ids, 20)}{advice}."
            )
        return ids[written]

    def score(value: Any, where: str) -> float:
        number = number_of(value)
        if number is None or not low <= number <= high:
            span = f" from {low} to {high}" if row.name in ROWS else ""
            raise BertKerasError(f"{where}: score {short(value)} is not a number{span}.")
        return number

    def label_set(value: Any, where: str) -> np.ndarray:
        found = np.zeros(len(ids), np.float32)
        found[[class_id(one, where) for one in labels_of(value, where)]] = 1
        return found

    return {"class": class_id, "score": score, "multi": label_set}[row.label_type]


def label_of(value: Any, where: str) -> str:
    """The name of a label in a file: text without surrounding spaces, a number, or true and false."""
    if isinstance(value, str):
        check_text(where, value)
        return value.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and value == value:
        return str(value)
    given = "empty" if value is None or value != value else short(value)
    raise BertKerasError(f"{where}: the label is {given}; give one label.")


def labels_of(value: Any, where: str) -> list[str]:
    """Any number of labels: a list, or text with SEPARATOR between them; an empty text has none."""
    if not isinstance(value, str | list):
        raise BertKerasError(
            f"{where}: the labels are {'empty' if value is None else short(value)}; give a list, or text with {SEPARATOR} "
            "between labels."
        )
    if isinstance(value, str):
        value = value.split(SEPARATOR) if value.strip() else []
    return [label_of(one, where) for one in value]


def number_of(value: Any) -> float | None:
    """The finite float32 number that a value of a file stands for; None if it stands for none."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return float(number) if is_finite(number) else None
