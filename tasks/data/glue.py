"""GLUE and a user's own tables: data sets of labelled texts, one row for each, and their reader.

In: a row, and a folder, one file, a file for each split, or TensorFlow Datasets. Out: examples {text names: string, "label":
int32 (float32 for a score, float32 [C] for any number of labels), "idx": int32}.
Source: Wang et al. 2018, GLUE; feature names, label order and split names are those of TensorFlow Datasets.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError, first_names
from bert_keras.io.json_files import is_finite, shortened
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.sources import Source, check_text, listing, load_tfds, missing_source
from bert_keras.tasks.data.tables import checked_text, column_names, find_table, read_table

LABEL = "label"
IDX = "idx"  # the position of the example in its file, from 0
SEPARATOR = "|"  # between the labels of one text, in files without lists
UNLABELLED = -1  # the label in TensorFlow Datasets where the test labels are withheld
COLUMN_ADVICE = "`finetune` reads other columns with --text-column and --label-column (in Python: text_column and label_column)"
# The files of a user's own data -> the stems of the names that they may have.
STEMS = {"train.tsv": ("train",), "dev.tsv": ("dev", "valid", "validation"), "test.tsv": ("test",)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitFile:
    """The file of a split in a folder, and the columns to read.

    file: its name; a user's own data may have another format, and the other stems of STEMS
    text: the text columns, in the order of the data set's texts
    label: the label column; None where labels are withheld
    may_lack_label: True where a file without the label column is a file of withheld labels
    header: the column names of an official .tsv without a header line
    """

    file: str
    text: tuple[str, ...]
    label: str | None = None
    may_lack_label: bool = False
    header: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDataSet:
    """A data set of labelled texts.

    name: the name on the command line and in TensorFlow Datasets
    text: the names of the one or two texts
    labels: the label strings by label id; empty where the label is a score
    label_type: "class", "score", or "multi" where a text may have any number of the labels
    measures: names in MEASURES, of GLUE's tasks; the first one chooses the best epoch
    file_labels: the labels in the spelling of the files, in the same order
    bounds: the lowest and the highest score
    splits: the file of each split
    folder: the name of the official folder
    other_paths: other places of the file below the given folder
    skip_short_lines: True skips lines with missing columns, which are an error otherwise
    """

    name: str
    text: tuple[str, ...]
    labels: tuple[str, ...] = ()
    label_type: str = "class"
    measures: tuple[str, ...] = ()
    file_labels: tuple[str, ...] = ()
    bounds: tuple[float, float] = (-math.inf, math.inf)
    splits: Mapping[str, SplitFile]
    folder: str = ""
    other_paths: tuple[str, ...] = ()
    skip_short_lines: bool = False


def name_splits(*text: str, label: str, test_label: str | None = None) -> dict[str, SplitFile]:
    """train.tsv, dev.tsv and test.tsv with the same text columns. test_label: the label column that test.tsv may have."""
    return {
        "train": SplitFile(file="train.tsv", text=text, label=label),
        "validation": SplitFile(file="dev.tsv", text=text, label=label),
        "test": SplitFile(file="test.tsv", text=text, label=test_label, may_lack_label=True),
    }


def _make_row(
    name: str,
    folder: str,
    text: tuple[str, ...],
    labels: tuple[str, ...],
    *,
    files: tuple[str, ...] | None = None,
    columns: tuple[str, ...] | None = None,
    label: str = LABEL,
    **others: Any,
) -> TextDataSet:
    """A data set of GLUE. files, columns: `file_labels` and the text columns, where they are not the labels and the texts."""
    fields = {"splits": name_splits(*(columns or text), label=label)} | others
    return TextDataSet(
        name=name, folder=folder, text=text, labels=labels, file_labels=files or labels, **fields
    )


_DIGITS = ("0", "1")
_ONE, _PAIR = ("sentence",), ("sentence1", "sentence2")
_ENTAILED = ("entailment", "not_entailment")
_NLI, _NLI_TEXTS = ("entailment", "neutral", "contradiction"), ("premise", "hypothesis")
_COLA_FILE: dict[str, Any] = {
    "header": ("source", LABEL, "original_label", "sentence"),
    "text": _ONE,
    "label": LABEL,
}
_MNLI_FILE: dict[str, Any] = {"text": _PAIR, "label": "gold_label"}
_COLA = {
    "train": SplitFile(file="train.tsv", **_COLA_FILE),
    "validation": SplitFile(file="dev.tsv", **_COLA_FILE),
    "test": SplitFile(file="test.tsv", text=_ONE),
}
_MNLI = {
    "train": SplitFile(file="train.tsv", **_MNLI_FILE),
    "validation_matched": SplitFile(file="dev_matched.tsv", **_MNLI_FILE),
    "validation_mismatched": SplitFile(file="dev_mismatched.tsv", **_MNLI_FILE),
    "test_matched": SplitFile(file="test_matched.tsv", text=_PAIR),
    "test_mismatched": SplitFile(file="test_mismatched.tsv", text=_PAIR),
}
_AX = {"test": SplitFile(file="diagnostic.tsv", text=_PAIR)}
_AX_PATHS = ("diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX.tsv")  # in archives that do not call the folder AX
_ACCURACY, _F1 = ("accuracy",), ("f1", "accuracy")
_QUESTIONS = ("question1", "question2")

# MRPC, QQP and STS-B report two measures; Devlin et al. 2019, table 1, reports the first. A few lines of QQP's official train.tsv
# lack columns; TensorFlow Datasets skips them too.
_TABLE = (
    _make_row("cola", "CoLA", _ONE, ("unacceptable", "acceptable"), files=_DIGITS, measures=("matthews",), splits=_COLA),
    _make_row("sst2", "SST-2", _ONE, ("negative", "positive"), files=_DIGITS, measures=_ACCURACY),
    _make_row("mrpc", "MRPC", _PAIR, ("not_equivalent", "equivalent"), files=_DIGITS, measures=_F1,
              columns=("#1 String", "#2 String"), label="Quality"),
    _make_row("qqp", "QQP", _QUESTIONS, ("not_duplicate", "duplicate"), files=_DIGITS, measures=_F1,
              label="is_duplicate", skip_short_lines=True),
    _make_row("stsb", "STS-B", _PAIR, (), measures=("spearman", "pearson"), label="score", label_type="score", bounds=(0.0, 5.0)),
    _make_row("mnli", "MNLI", _NLI_TEXTS, _NLI, measures=_ACCURACY, splits=_MNLI),
    _make_row("qnli", "QNLI", ("question", "sentence"), _ENTAILED, measures=_ACCURACY),
    _make_row("rte", "RTE", _PAIR, _ENTAILED, measures=_ACCURACY),
    _make_row("wnli", "WNLI", _PAIR, _ENTAILED[::-1], files=_DIGITS, measures=_ACCURACY),
    _make_row("ax", "AX", _NLI_TEXTS, _NLI, measures=("matthews",), splits=_AX, other_paths=_AX_PATHS),
)  # fmt: skip
ROWS = {row.name: row for row in _TABLE}


def is_folder(source: Source | None) -> bool:
    """True unless the examples are in one file, or in a file for each split."""
    return not isinstance(source, Mapping) and not (source is not None and to_path(source).is_file())


def check_source(source: Source) -> None:
    """Raises MissingFileError if a file or folder of the source does not exist."""
    for given in source.values() if isinstance(source, Mapping) else [source]:
        if not to_path(given).exists():
            raise missing_source(to_path(given))


def load_examples(data: TextDataSet, split: str, source: Source | None) -> tf.data.Dataset:
    """The examples of a split, from the files of the source or from TensorFlow Datasets.

    Withheld labels are -1, or NaN in float32.

    Raises BertKerasError for an unreadable file, with its line, and MissingFileError for a missing one.
    """
    if split not in data.splits:
        raise BertKerasError(f"{data.name} has no split {split!r}; it has {', '.join(data.splits)}.")
    if source is None:
        return _load_tfds_examples(data, split)
    return tf.data.Dataset.from_tensor_slices(_read_columns(data, split, source))


def find_split(data: TextDataSet, split: str, source: Source) -> Path:
    """The file of a split: the source itself, its file for this split, or the file in the folder or in its official subfolder.

    Raises MissingFileError, with the files of the folder, for a missing file.
    """
    if isinstance(source, Mapping):
        name = split if split in source else split.partition("_")[0]  # MNLI has two validation splits
        if name not in source:
            raise BertKerasError(
                f"the {split} split has no file, only {', '.join(source)} has; give a file for {split}."
            )
        return find_split(data, split, source[name])
    path, file = to_path(source), data.splits[split].file
    if not path.is_dir():
        return path
    folder = path / data.folder if data.folder and (path / data.folder).is_dir() else path
    if data.name not in ROWS:
        return find_table(folder, STEMS[file])
    found = [place for place in (folder / file, *map(path.joinpath, data.other_paths)) if place.is_file()]
    if not found:
        expected = " or ".join((file, *data.other_paths))
        raise MissingFileError(f"{folder} has no {expected}; it has {listing(folder)}.")
    return found[0]


def _get_withheld_label(data: TextDataSet) -> Any:
    """The label of an example without a label: -1 for a class, else NaN, because a score may be negative."""
    if data.label_type == "multi":
        return np.full(len(data.labels), np.nan, np.float32)
    return np.int32(UNLABELLED) if data.label_type == "class" else np.float32(np.nan)


def _load_tfds_examples(data: TextDataSet, split: str) -> tf.data.Dataset:
    if data.name not in ROWS:
        raise BertKerasError(f"{data.name} is not in TensorFlow Datasets; give a file, or a folder of files.")
    examples, _ = load_tfds(f"glue/{data.name}", split, instead="a folder of the official TSV files (--data)")
    dtype, withheld = tf.int32 if data.labels else tf.float32, _get_withheld_label(data)

    def select(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        label = tf.cast(example[LABEL], dtype)
        label = tf.where(label == UNLABELLED, withheld, label)
        return {name: example[name] for name in data.text} | {
            LABEL: label,
            IDX: tf.cast(example[IDX], tf.int32),
        }

    return examples.map(select, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _read_columns(data: TextDataSet, split: str, source: Source) -> dict[str, np.ndarray]:
    """All examples of a split as columns [N]."""
    file, path = data.splits[split], find_split(data, split, source)
    column = file.label
    if file.may_lack_label and column is not None and column not in column_names(path):
        column = None
    columns = [*file.text, *([] if column is None else [column])]
    texts: list[list[bytes]] = [[] for _ in file.text]
    labels, idx, parse, withheld = [], [], _make_label_parser(data), _get_withheld_label(data)
    rows = read_table(
        path, columns, header=file.header, skip_short_lines=data.skip_short_lines, advice=COLUMN_ADVICE
    )
    for where, at, values in rows:
        for name, value, kept in zip(file.text, values, texts, strict=False):
            kept.append(checked_text(value, where, name).encode())
        labels.append(withheld if column is None else parse(values[-1], where))
        idx.append(at)
    if not labels:
        raise BertKerasError(f"{path} has no examples; give at least one line under the header.")
    return {name: np.array(kept, object) for name, kept in zip(data.text, texts, strict=True)} | {
        LABEL: np.array(labels, np.int32 if data.label_type == "class" else np.float32),
        IDX: np.array(idx, np.int32),
    }


def _make_label_parser(data: TextDataSet) -> Callable[[Any, str], Any]:
    """(value in a file, where it is) -> label id, score, or 0 and 1 for each label. It raises BertKerasError for any other."""
    ids = {label: i for i, label in enumerate(data.file_labels)}
    low, high = data.bounds

    def parse_class(value: Any, where: str) -> int:
        written = read_label(value, where)
        if written not in ids:
            numbered = read_number(written) is not None and not any(
                read_number(label) is not None for label in ids
            )
            advice = "; write the names in place of numbers" if numbered else ""
            raise BertKerasError(
                f"{where}: unknown label {written!r}; the labels are {first_names(ids, 20)}{advice}."
            )
        return ids[written]

    def parse_score(value: Any, where: str) -> float:
        number = read_number(value)
        if number is None or not low <= number <= high:
            span = f" from {low} to {high}" if math.isfinite(high) else ""
            raise BertKerasError(f"{where}: score {shortened(value)} is not a number{span}.")
        return number

    def parse_set(value: Any, where: str) -> np.ndarray:
        found = np.zeros(len(ids), np.float32)
        found[[parse_class(one, where) for one in read_labels(value, where)]] = 1
        return found

    return {"class": parse_class, "score": parse_score, "multi": parse_set}[data.label_type]


def read_label(value: Any, where: str) -> str:
    """The name of a label in a file: text without surrounding spaces, a number, or true and false."""
    if isinstance(value, str):
        check_text(where, value)
        return value.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and value == value:
        return str(value)
    given = "empty" if value is None or value != value else shortened(value)
    raise BertKerasError(f"{where}: the label is {given}; give one label.")


def read_labels(value: Any, where: str) -> list[str]:
    """Any number of labels: a list, or text with SEPARATOR between them; an empty text has none."""
    if not isinstance(value, str | list):
        raise BertKerasError(
            f"{where}: the labels are {'empty' if value is None else shortened(value)}; give a list, or text with {SEPARATOR} "
            "between labels."
        )
    if isinstance(value, str):
        value = value.split(SEPARATOR) if value.strip() else []
    return [read_label(one, where) for one in value]


def read_number(value: Any) -> float | None:
    """The finite float32 number that a value of a file stands for; None if it stands for none."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return float(number) if is_finite(number) else None
