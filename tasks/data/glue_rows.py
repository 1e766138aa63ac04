"""GLUE as a table: one row for each data set, and the form of a row in task.json.

Source: Wang et al. 2018, GLUE; feature names, label order and split names are those of TensorFlow Datasets.
"""

import dataclasses
import keyword
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import (
    FLAG,
    OBJECT,
    TEXT,
    Kind,
    list_of,
    one_of,
    or_null,
    short,
    typed,
)
from bert_keras.tasks.metrics import MEASURES

LABEL = "label"
IDX = "idx"  # the position of the example in its file, from 0
TAKEN = (LABEL, IDX, "row", "self", "sample_weight")  # names that a text cannot have
SCORES = (0.0, 5.0)  # the range of STS-B's similarity score
# The files of a user's own data -> the stems of the names that they may have.
STEMS = {"train.tsv": ("train",), "dev.tsv": ("dev", "valid", "validation"), "test.tsv": ("test",)}
# The diagnostic file of archives that do not call its folder AX.
OTHER_PATHS = {"ax": ("diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX.tsv")}
NLI_LABELS = ("entailment", "neutral", "contradiction")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitFile:
    """The file of a split in a folder, and the columns to read.

    file: its name; a user's own data may have another format, and the other stems of STEMS
    text: the text columns, in the order of the row's text features
    label: the label column; None where labels are withheld
    header: the column names of an official .tsv without a header line
    """

    file: str
    text: tuple[str, ...]
    label: str | None = None
    header: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueRow:
    """One data set.

    name: the name on the command line and in TensorFlow Datasets
    folder: the name of the official folder
    text: the names of the one or two text features
    labels: the label strings by label id; empty where the label is a score
    file_labels: the labels in the spelling of the files, in the same order
    measures: names in MEASURES; the first one chooses the best epoch
    splits: the file of each split
    skip_short_lines: True skips lines with missing columns, which are an error otherwise
    multi: True where a text may have any number of the labels
    """

    name: str
    folder: str
    text: tuple[str, ...]
    labels: tuple[str, ...]
    file_labels: tuple[str, ...]
    measures: tuple[str, ...]
    splits: Mapping[str, SplitFile]
    skip_short_lines: bool = False
    multi: bool = False

    @property
    def label_type(self) -> str:
        """A key of LABEL_TYPES in tasks/data/label_types.py."""
        return "multi" if self.multi else "class" if self.labels else "score"


def standard_splits(*text: str, label: str) -> dict[str, SplitFile]:
    """train.tsv, dev.tsv and test.tsv with the same text columns; test.tsv has no labels."""
    return {
        "train": SplitFile(file="train.tsv", text=text, label=label),
        "validation": SplitFile(file="dev.tsv", text=text, label=label),
        "test": SplitFile(file="test.tsv", text=text),
    }


_PAIR = ("sentence1", "sentence2")
_COLA: dict[str, Any] = {
    "text": ("sentence",),
    "label": "label",
    "header": ("source", "label", "original_label", "sentence"),
}
_MNLI: dict[str, Any] = {"text": _PAIR, "label": "gold_label"}

# MRPC, QQP and STS-B report two measures; Devlin et al. 2019, table 1, reports the first.
_TABLE = (
    GlueRow(
        name="cola",
        folder="CoLA",
        text=("sentence",),
        labels=("unacceptable", "acceptable"),
        file_labels=("0", "1"),
        measures=("matthews",),
        splits={
            "train": SplitFile(file="train.tsv", **_COLA),
            "validation": SplitFile(file="dev.tsv", **_COLA),
            "test": SplitFile(file="test.tsv", text=("sentence",)),
        },
    ),
    GlueRow(
        name="sst2",
        folder="SST-2",
        text=("sentence",),
        labels=("negative", "positive"),
        file_labels=("0", "1"),
        measures=("accuracy",),
        splits=standard_splits("sentence", label="label"),
    ),
    GlueRow(
        name="mrpc",
        folder="MRPC",
        text=_PAIR,
        labels=("not_equivalent", "equivalent"),
        file_labels=("0", "1"),
        measures=("f1", "accuracy"),
        splits=standard_splits("#1 String", "#2 String", label="Quality"),
    ),
    GlueRow(
        name="qqp",
        folder="QQP",
        text=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        file_labels=("0", "1"),
        measures=("f1", "accuracy"),
        splits=standard_splits("question1", "question2", label="is_duplicate"),
        # A few lines of the official train.tsv lack columns; TensorFlow Datasets skips them too.
        skip_short_lines=True,
    ),
    GlueRow(
        name="stsb",
        folder="STS-B",
        text=_PAIR,
        labels=(),
        file_labels=(),
        measures=("spearman", "pearson"),
        splits=standard_splits(*_PAIR, label="score"),
    ),
    GlueRow(
        name="mnli",
        folder="MNLI",
        text=("premise", "hypothesis"),
        labels=NLI_LABELS,
        file_labels=NLI_LABELS,
        measures=("accuracy",),
        splits={
            "train": SplitFile(file="train.tsv", **_MNLI),
            "validation_matched": SplitFile(file="dev_matched.tsv", **_MNLI),
            "validation_mismatched": SplitFile(file="dev_mismatched.tsv", **_MNLI),
            "test_matched": SplitFile(file="test_matched.tsv", text=_PAIR),
            "test_mismatched": SplitFile(file="test_mismatched.tsv", text=_PAIR),
        },
    ),
    GlueRow(
        name="qnli",
        folder="QNLI",
        text=("question", "sentence"),
        labels=("entailment", "not_entailment"),
        file_labels=("entailment", "not_entailment"),
        measures=("accuracy",),
        splits=standard_splits("question", "sentence", label="label"),
    ),
    GlueRow(
        name="rte",
        folder="RTE",
        text=_PAIR,
        labels=("entailment", "not_entailment"),
        file_labels=("entailment", "not_entailment"),
        measures=("accuracy",),
        splits=standard_splits(*_PAIR, label="label"),
    ),
    GlueRow(
        name="wnli",
        folder="WNLI",
        text=_PAIR,
        labels=("not_entailment", "entailment"),
        file_labels=("0", "1"),
        measures=("accuracy",),
        splits=standard_splits(*_PAIR, label="label"),
    ),
    GlueRow(
        name="ax",
        folder="AX",
        text=("premise", "hypothesis"),
        labels=NLI_LABELS,
        file_labels=NLI_LABELS,
        measures=("matthews",),
        splits={"test": SplitFile(file="diagnostic.tsv", text=_PAIR)},
    ),
)
ROWS = {row.name: row for row in _TABLE}
CUSTOM = "custom"  # a user's own data, in the form of a row
NAMES = (*ROWS, CUSTOM)

_WORDS = list_of(TEXT)
_FILE = Kind(
    "the name of a file in the data's folder",
    lambda value: isinstance(value, str) and PurePath(value).name == value,
)
_SPLIT_KINDS = {"file": _FILE, "text": _WORDS, "label": or_null(TEXT), "header": or_null(_WORDS)}
_ROW_KINDS = {
    "name": one_of(NAMES),
    "folder": _FILE,
    "text": _WORDS,
    "labels": _WORDS,
    "file_labels": _WORDS,
    "measures": list_of(one_of(MEASURES)),
    "splits": OBJECT,
    "skip_short_lines": FLAG,
    "multi": FLAG,
}


def row_from_json(kept: Mapping[str, Any], **others: Kind) -> tuple[GlueRow, dict[str, Any]]:
    """Restores a row from `dataclasses.asdict`, and returns the other fields. Raises BertKerasError for a wrong field.

    others: the types of the other fields
    """
    row = _with_tuples(typed(kept, _ROW_KINDS | others, where="task", optional=("multi",)))
    rest = {name: row.pop(name) for name in others}
    optional = ("label", "header")
    row["splits"] = {
        split: SplitFile(
            **_with_tuples(typed(tsv, _SPLIT_KINDS, where=f"task: splits: {split}", optional=optional))
        )
        for split, tsv in kept["splits"].items()
    }
    made = GlueRow(**row)
    check_row(made)
    return made, rest


def names_a_text(name: str) -> bool:
    """True for a name that a text can have in Python, in examples and in signatures."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in TAKEN


def check_row(row: GlueRow) -> None:
    """Raises BertKerasError if the fields of a row contradict each other."""
    counts = {split: len(tsv.text) for split, tsv in row.splits.items()}
    rules = {
        "text": (
            len(row.text) in (1, 2)
            and len({*row.text}) == len(row.text)
            and all(map(names_a_text, row.text)),
            f"one or two names, which are no keywords of Python and none of {', '.join(TAKEN)}",
        ),
        "labels": (
            len({*row.labels}) == len(row.labels)
            and (bool(row.labels) if row.multi else len(row.labels) != 1),
            "two or more different labels, none for a score, or one or more with multi",
        ),
        "file_labels": (len(row.file_labels) == len(row.labels), "as many as labels"),
        "measures": (len(row.measures) > 0, "one or more"),
        "splits": (
            all(count == len(row.text) for count in counts.values()),
            "one text column for each name in text",
        ),
    }
    for name, (good, want) in rules.items():
        if not good:
            raise BertKerasError(f"task: {name} is {short(getattr(row, name))}; expected {want}.")


def _with_tuples(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
