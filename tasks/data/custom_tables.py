"""A user's own table as a data set: its text columns, its label column and the labels in it."""

import dataclasses
import keyword
import re
from collections.abc import Sequence
from pathlib import Path

from bert_keras.errors import BertKerasError, first_names
from bert_keras.io.json_files import shortened
from bert_keras.tasks.data.glue import (
    COLUMN_ADVICE,
    IDX,
    LABEL,
    ROWS,
    TextDataSet,
    check_source,
    find_split,
    name_splits,
    read_label,
    read_labels,
    read_number,
)
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.data.tables import TableRow, column_names, read_table
from bert_keras.tasks.options import ColumnOptions

CUSTOM = "custom"  # the name of a user's own data
NAMES = (*ROWS, CUSTOM)
TAKEN = (LABEL, IDX, "row", "self", "sample_weight")  # names that a text cannot have
# Columns that are no text, in any case: pandas writes an index without a name, reads it as one of the last, and in Parquet writes
# the other.
NO_TEXT = (IDX, "index", "id", "", "unnamed: 0", "__index_level_0__")
ENOUGH_ROWS = 20  # with another word in each row, a column holds the names of the rows


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
    splits = {
        split: dataclasses.replace(
            file,
            text=tuple(options.text_column or file.text),
            label=file.label and (options.label_column or file.label),
        )
        for split, file in data.splits.items()
    }
    return dataclasses.replace(data, splits=splits)


def make_own_data_set(
    labels: Sequence[str],
    *,
    text: Sequence[str],
    label_type: str,
    name: str = CUSTOM,
    columns: Sequence[str] | None = None,
    label: str = LABEL,
) -> TextDataSet:
    """Tables with labelled texts. columns: those of the texts; None takes the names of the texts."""
    splits = name_splits(*(columns or text), label=label, test_label=label)
    return TextDataSet(
        name=name,
        text=tuple(text),
        labels=tuple(labels),
        file_labels=tuple(labels),
        label_type=label_type,
        splits=splits,
    )


def _read_own_data_set(source: Source, options: ColumnOptions) -> TextDataSet:
    label = options.label_column or LABEL
    train = find_split(make_own_data_set((), text=(), label_type="class"), "train", source)
    columns = column_names(train)
    text = _choose_text_columns(train, columns, label, options)
    rows = list(read_table(train, [*text, label], advice=COLUMN_ADVICE))
    if not rows:
        raise BertKerasError(f"{train} has no examples; give at least one line under the header.")
    if options.text_column is None and len(text) == 2:
        _check_both_are_texts(train, text, rows)
    rows = [row._replace(values=row.values[-1:]) for row in rows]
    label_type = options.label_type or _guess_type(train, label, rows)
    labels = _find_labels(train, label, rows, label_type)
    return make_own_data_set(labels, text=_name_texts(text), label_type=label_type, columns=text, label=label)


def _choose_text_columns(
    path: Path, columns: Sequence[str], label: str, options: ColumnOptions
) -> tuple[str, ...]:
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


def _name_texts(columns: Sequence[str]) -> tuple[str, ...]:
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
    if len(found) < (1 if label_type == "multi" else 2):
        wanted = "one" if label_type == "multi" else "two"
        raise BertKerasError(
            f"{path} has the labels {', '.join(map(repr, found)) or '(none)'} in the column {label!r}; give {wanted} or more."
        )
    return tuple(sorted(found))
