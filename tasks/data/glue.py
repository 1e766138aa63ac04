"""Data sets of labelled texts: the rows of GLUE, a user's own tables, and their reader.

In: a row, and a folder, one file, a file for each split, or TensorFlow Datasets. Out: examples {text names: string, "label":
int32 (float32 for a score, float32 [C] for any number of labels), "idx": int32}.
Source: Devlin et al. 2019, B.1; Wang et al. 2018; feature names, label order and split names are those of TensorFlow Datasets.
"""

import contextlib
import dataclasses
import keyword
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError, first_names
from bert_keras.io.json_files import shortened
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.columns import check_separator, label_parser, read_label, read_labels, read_number
from bert_keras.tasks.data.sources import Source, file_of_split, listing, load_tfds, missing_source
from bert_keras.tasks.data.tables import TableRow, checked_text, column_names, find_table, read_table
from bert_keras.tasks.options import ColumnOptions

LABEL = "label"
IDX = "idx"  # the position of the example in its file, from 0
NO_LABEL = "-"  # the label of a text without one in SNLI and MNLI, beside labels that are words
UNLABELLED = -1  # the label in TensorFlow Datasets where the test labels are withheld
COLUMN_ADVICE = "`finetune` reads other columns with text_column and label_column"
CUSTOM = "custom"  # the name of a user's own data
TAKEN = (LABEL, IDX, "row", "self", "sample_weight")  # names that a text cannot have
# Columns that are no text, in any case: pandas writes an index without a name, reads it as one of the last, and in Parquet writes
# the other.
NO_TEXT = (IDX, "index", "id", "", "unnamed: 0", "__index_level_0__")
ENOUGH_ROWS = 20  # with another word in each row, a column holds the names of the rows
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
    quoting: of a .tsv, as `read_table` takes it
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
    quoting: str | None = None


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
    fields = {"splits": name_splits(*(columns or text), label=label), "quoting": "text"} | others
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
NAMES = (*ROWS, CUSTOM)


# -----------------------------------------------------------------------------------------------------------
# Examples


def check_source(source: Source) -> None:
    """Raises MissingFileError if a file or folder of the source does not exist."""
    for given in source.values() if isinstance(source, Mapping) else [source]:
        if not to_path(given).exists():
            raise missing_source(to_path(given))


def load_examples(data: TextDataSet, split: str, source: Source | None) -> tf.data.Dataset:
    """The examples of a split, from the files of the source or from TensorFlow Datasets.

    Withheld labels are -1 for a class, else NaN, because a score may be negative.

    Raises BertKerasError for an unreadable file, with its line, and MissingFileError for a missing one.
    """
    if split not in data.splits:
        raise BertKerasError(f"{data.name} has no split {split!r}; it has {', '.join(data.splits)}.")
    withheld: Any = np.int32(UNLABELLED) if data.label_type == "class" else np.float32(np.nan)
    if data.label_type == "multi":
        withheld = np.full(len(data.labels), withheld)
    if source is None:
        return _load_tfds_examples(data, split, withheld)
    return tf.data.Dataset.from_tensor_slices(_read_columns(data, split, source, withheld))


def find_split(data: TextDataSet, split: str, source: Source) -> Path:
    """The file of a split: the source itself, its file for this split, or the file in the folder or in its official subfolder.

    Raises MissingFileError, with the files of the folder, for a missing file.
    """
    path, file = file_of_split(source, split), data.splits[split].file
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


def _load_tfds_examples(data: TextDataSet, split: str, withheld: Any) -> tf.data.Dataset:
    if data.name not in ROWS:
        raise BertKerasError(f"{data.name} is not in TensorFlow Datasets; give a file, or a folder of files.")
    examples, _ = load_tfds(f"glue/{data.name}", split, instead="a folder of the official TSV files (--data)")

    def select(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        label = tf.cast(example[LABEL], withheld.dtype)
        label = tf.where(label == UNLABELLED, withheld, label)
        return {name: example[name] for name in data.text} | {
            LABEL: label,
            IDX: tf.cast(example[IDX], tf.int32),
        }

    return examples.map(select, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _read_columns(data: TextDataSet, split: str, source: Source, withheld: Any) -> dict[str, np.ndarray]:
    """All examples of a split as columns [N]."""
    file, path = data.splits[split], find_split(data, split, source)
    label = [] if file.label is None else [file.label]
    if file.may_lack_label and not {*label} <= {*column_names(path, quoting=data.quoting)}:
        label = []
    parse = label_parser(data.label_type, data.file_labels, data.bounds)
    options: dict[str, Any] = {
        "header": file.header,
        "skip_short_lines": data.skip_short_lines,
        "quoting": data.quoting,
        "advice": COLUMN_ADVICE if data.name == CUSTOM else "rename those of the file",
    }
    texts, labels, idx, unlabelled, empty = [], [], [], list[str](), list[str]()
    for where, at, values in read_table(path, [*file.text, *label], **options):
        if label and data.label_type == "class" and _has_no_label(values[-1], data.file_labels):
            unlabelled.append(where)
            continue
        given = zip(file.text, values, strict=False)
        texts.append([checked_text(value, where, name).encode() for name, value in given])
        if label and not all(text.strip() for text in texts[-1]):
            empty.append(where)
        labels.append(parse(values[-1], where) if label else withheld)
        idx.append(at)
    if unlabelled:
        warnings.warn(
            f"{unlabelled[0]}: the first of {len(unlabelled)} rows with the label {NO_LABEL!r}, no label; they are left out",
            stacklevel=3,
        )
    if empty:
        warnings.warn(f"{empty[0]}: the first of {len(empty)} rows with an empty text", stacklevel=3)
    if not labels:
        raise BertKerasError(f"{path} has no examples; give at least one line under the header.")
    columns = zip(data.text, zip(*texts, strict=True), strict=True)
    return {name: np.array(column, object) for name, column in columns} | {
        LABEL: np.array(labels, withheld.dtype),
        IDX: np.array(idx, np.int32),
    }


def _has_no_label(value: Any, labels: Sequence[str]) -> bool:
    return isinstance(value, str) and value.strip() == NO_LABEL and NO_LABEL not in labels


# -----------------------------------------------------------------------------------------------------------
# A user's own tables


def open_data_set(name: str, source: Source | None, options: ColumnOptions | None = None) -> TextDataSet:
    """The data set named `name`; for "custom", the training file defines it. Options replace the columns.

    Raises BertKerasError for an unreadable file, with its line, and MissingFileError for a missing one.
    """
    options = options or ColumnOptions()
    if source is None and name != CUSTOM and options != ColumnOptions():
        raise BertKerasError(
            "text_column and label_column are columns of files; give the files too (--data)."
        )
    if name != CUSTOM:
        return replace_columns(ROWS[name], options)
    if source is None:
        raise BertKerasError(
            "custom reads its labels from files; give a training file, or a folder that holds train.tsv and dev.tsv."
        )
    check_source(source)
    return _read_own_data_set(source, options)


def replace_columns(data: TextDataSet, options: ColumnOptions) -> TextDataSet:
    """A data set of GLUE for files with other columns."""
    if options.label_type is not None:
        raise BertKerasError(f"label_type applies only to custom; {data.name} has its own type of labels.")
    if options.text_column is not None and len(options.text_column) != len(data.text):
        raise BertKerasError(
            f"text_column is {', '.join(options.text_column)}; {data.name} reads {len(data.text)}: {', '.join(data.text)}."
        )

    def changed(file: SplitFile) -> SplitFile:
        text, label = options.text_column or file.text, options.label_column or file.label
        return dataclasses.replace(file, text=tuple(text), label=file.label and label)

    splits = {split: changed(file) for split, file in data.splits.items()}
    official = data.quoting if splits == data.splits else None
    return dataclasses.replace(data, splits=splits, quoting=options.quoting or official)


def make_own_data_set(
    labels: Sequence[str],
    *,
    text: Sequence[str],
    label_type: str,
    name: str = CUSTOM,
    columns: Sequence[str] | None = None,
    label: str = LABEL,
    quoting: str | None = None,
) -> TextDataSet:
    """Tables with labelled texts. columns: those of the texts; None takes the names of the texts."""
    splits, names = name_splits(*(columns or text), label=label, test_label=label), tuple(labels)
    given: dict[str, Any] = {"labels": names, "file_labels": names, "label_type": label_type}
    return TextDataSet(name=name, text=tuple(text), splits=splits, quoting=quoting, **given)


def _read_own_data_set(source: Source, options: ColumnOptions) -> TextDataSet:
    label = options.label_column or LABEL
    train = find_split(make_own_data_set((), text=(), label_type="class"), "train", source)
    text = _choose_text_columns(train, label, options)
    rows = list(read_table(train, [*text, label], quoting=options.quoting, advice=COLUMN_ADVICE))
    if not rows:
        raise BertKerasError(f"{train} has no examples; give at least one line under the header.")
    if options.text_column is None and len(text) == 2:
        _check_both_are_texts(train, text, rows)
    rows = [row._replace(values=row.values[-1:]) for row in rows]
    label_type = options.label_type or _guess_type(train, label, rows)
    labels = _find_labels(train, label, rows, label_type)
    about: dict[str, Any] = {"label_type": label_type, "label": label, "quoting": options.quoting}
    return make_own_data_set(labels, text=name_texts(text), columns=text, **about)


def text_columns(source: Source, options: ColumnOptions) -> tuple[str, ...]:
    """The columns of the texts in files of the user's own, of which a folder needs no training file."""
    data = make_own_data_set((), text=(), label_type="class")
    with contextlib.suppress(MissingFileError):
        path = find_split(data, "validation", source)
        return _choose_text_columns(path, options.label_column or LABEL, options)
    path = find_split(data, "train", source)
    return _choose_text_columns(path, options.label_column or LABEL, options)


def _choose_text_columns(path: Path, label: str, options: ColumnOptions) -> tuple[str, ...]:
    columns = column_names(path, quoting=options.quoting)
    if options.text_column is not None:
        if label in options.text_column:
            raise BertKerasError(f"the column {label!r} is the label and a text; give different columns.")
        return tuple(options.text_column)
    text = tuple(column for column in columns if column != label and column.casefold() not in NO_TEXT)
    if label in columns and len(text) not in (1, 2):
        raise BertKerasError(
            f"{path} has the text columns {first_names(map(shortened, text))}; name one or two with --text-column."
        )
    return text


def _check_both_are_texts(path: Path, text: Sequence[str], rows: Sequence[TableRow]) -> None:
    """Raises BertKerasError if one of two columns that nobody named is numbers, names of rows, or the label in other words."""
    *columns, labels = zip(*([str(value).strip() for value in row.values] for row in rows), strict=True)
    for name, values in zip(text, columns, strict=True):
        count = len({*values})
        same = count == len({*labels}) == len({*zip(values, labels, strict=True)}) and 2 * count <= len(rows)
        named = count == len(rows) >= ENOUGH_ROWS and not any(re.search(r"\s", value) for value in values)
        reasons = {
            "says the same as the label": same,
            "holds only numbers": all(read_number(value) is not None for value in values),
            "has another word in each row": named,
        }
        if found := next((reason for reason, applies in reasons.items() if applies), None):
            raise BertKerasError(
                f"{path}: the column {name!r} {found}; name the text, or both texts of a pair, with --text-column."
            )


def name_texts(columns: Sequence[str]) -> tuple[str, ...]:
    """The names of the texts in examples and signatures: the columns' names, as ASCII letters, digits and _."""
    names = []
    for column in columns:
        name = re.sub(r"[^A-Za-z0-9_]+", "_", column).strip("_")
        names.append(name if names_a_text(name) else f"text_{name}".rstrip("_"))
    if len({*names}) < len(names):
        return tuple(f"{name}_{i}" for i, name in enumerate(names, start=1))
    return tuple(names)


def names_a_text(name: str) -> bool:
    """True for a name that a text can have in Python, in examples and in signatures."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in TAKEN


def _guess_type(path: Path, label: str, rows: Sequence[TableRow]) -> str:
    """The type of labels that are lists, or texts. Numbers may be classes or scores, so they are an error."""
    values = [row.values[0] for row in rows]
    if any(isinstance(value, list) for value in values):
        return "multi"
    if all(read_number(value) is not None for value in values):
        found = first_names(sorted({str(value).strip() for value in values}), 5)
        raise BertKerasError(
            f"{path}: all labels in the column {label!r} are numbers ({found}); give --label-type class if each number "
            "stands for a class, or --label-type score if the model must predict the number."
        )
    return "class"


def _find_labels(path: Path, label: str, rows: Sequence[TableRow], label_type: str) -> tuple[str, ...]:
    """The labels in a training file, sorted; none for scores."""
    if label_type == "score":
        return ()
    found = set[str]()
    for where, _, (value,) in rows:
        names = read_labels(value, where) if label_type == "multi" else [read_label(value, where)]
        if "" in names:
            raise BertKerasError(f"{where}: the label is empty; give every line a label.")
        found.update(names)
    others = found - {NO_LABEL}
    if label_type == "class" and len(others) > 1 and all(any(map(str.isalnum, name)) for name in others):
        found = others
    if len(found) < (1 if label_type == "multi" else 2):
        wanted = "one" if label_type == "multi" else "two"
        raise BertKerasError(
            f"{path} has the labels {', '.join(map(repr, found)) or '(none)'} in the column {label!r}; give {wanted} or more."
        )
    if label_type == "multi":
        check_separator(found, f"{path}, column {label!r}")
    return tuple(sorted(found))
