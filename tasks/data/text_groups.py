"""Texts that vectors learn to compare: what `fit` or a file gives -> raw columns.

Out: {"text": bytes [N, T]}, a row's query, positive and negatives; with {"label": float32 [N]}, the two texts of a score; with
{"label": int32 [N]}, one text and its class; with {"label": float32 [N, H]}, texts that are to have a teacher's vector.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import BertKerasError, first_names
from bert_keras.io.json_files import shortened
from bert_keras.model.choices import CLASSES, PAIRS, SCORES, VECTOR_LOSSES, VECTORS, vector_loss_of
from bert_keras.tasks.data.columns import list_values, read_columns, read_label, read_number, scores
from bert_keras.tasks.data.tables import checked_text, column_names, read_table

TEXT, LABEL, VECTOR = "text", "label", "vector"
QUERY, POSITIVE, NEGATIVE = "query", "positive", "negative"
Columns = dict[str, np.ndarray]

NEEDED = (
    "texts were given alone; give queries with positives, fit(queries, positives), pairs with scores, fit((a, b), scores), texts "
    "with classes, fit(texts, classes), or the columns query, positive and negative as a dict or a data frame."
)


def form_of(columns: Mapping[str, Any]) -> str:
    """PAIRS, SCORES, CLASSES or VECTORS, of raw columns: tensors or arrays."""
    if LABEL not in columns:
        return PAIRS
    if len(columns[LABEL].shape) == 2:
        return VECTORS
    return SCORES if "float" in str(columns[LABEL].dtype) else CLASSES


def read_groups(x: Any, y: Any, loss: str | None) -> Columns:
    """The raw columns of texts and of positives, scores, classes or a teacher's vectors in Python.

    x: queries or texts [N] with y; a tuple, a dict or a data frame of two columns [N], with scores y; without y, a dict or a data
        frame of the columns "query" and "positive", and of any number that begin with "negative"
    y: strings are positives, unless the loss is one of classes; numbers are scores of pairs, or classes of single texts; rows of
        numbers [N, H] are vectors of the texts, single or in pairs
    loss: a row of VECTOR_LOSSES, or None

    Raises BertKerasError for data that no loss, or not this one, can learn from.
    """
    named = isinstance(x, Mapping) or hasattr(x, "columns")
    there = [*map(str, getattr(x, "columns", x))] if named else []
    if y is None:
        if not named:
            raise BertKerasError(NEEDED)
        names = [QUERY, POSITIVE, *(name for name in there if name.startswith(NEGATIVE))]
        columns = _groups(read_columns(x, names), names)
    elif named or (isinstance(x, tuple) and len(x) == 2):
        names = there[:2] if named else ["first", "second"]
        labels = teacher_vectors(y) if _are_rows(y) else scores(y)
        columns = _groups(read_columns(x, names), names) | {LABEL: labels}
    elif _are_rows(y):
        columns = _groups(read_columns(x, (TEXT,)), (TEXT,)) | {LABEL: teacher_vectors(y)}
    else:
        columns = _pairs_or_classes(x, list_values(y), loss)
    return checked_groups(columns, loss)


def _pairs_or_classes(x: Any, y: list[Any], loss: str | None) -> Columns:
    of_classes = loss is not None and VECTOR_LOSSES[loss].form == CLASSES
    if all(isinstance(value, str | bytes) for value in y) and not of_classes:
        return _groups(read_columns((x, y), (QUERY, POSITIVE)), (QUERY, POSITIVE))
    if wrong := [value for value in y if not isinstance(value, str | bytes | int | np.integer)]:
        raise BertKerasError(
            f"{shortened(wrong[0])} is no class of a text: give names or whole numbers; a score is one of two texts: give (a, b) "
            "and scores."
        )
    columns = _groups(read_columns(x, (TEXT,)), (TEXT,))
    return columns | {LABEL: np.unique(np.array(y, str), return_inverse=True)[1].astype(np.int32)}


def _are_rows(y: Any) -> bool:
    values = list_values(y)
    return bool(values) and np.ndim(values[0]) > 0


def teacher_vectors(y: Any) -> np.ndarray:
    """Vectors float32 [N, H]. Raises BertKerasError for rows of other lengths, and for what is no finite number."""
    try:
        made = np.array(list_values(y), np.float32)
    except (TypeError, ValueError):
        made = np.zeros(0, np.float32)
    if made.ndim != 2 or not made.size or not np.isfinite(made).all():
        raise BertKerasError("a teacher's vectors are rows of as many finite numbers each; give such rows.")
    return made


def _groups(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> Columns:
    return {TEXT: np.stack([columns[name] for name in names], axis=1)}


def checked_groups(columns: Columns, loss: str | None = None) -> Columns:
    """The raw columns, unchanged. Raises BertKerasError for those that the loss, or None for the default, cannot learn from."""
    texts, form = columns[TEXT], form_of(columns)
    loss = loss or vector_loss_of(form)
    row, width = VECTOR_LOSSES[loss], texts.shape[1]
    if row.form != form or width < row.texts:
        fitting = [name for name, one in VECTOR_LOSSES.items() if one.form == form and one.texts <= width]
        given = form if row.form != form else "pairs without negatives"
        raise BertKerasError(f"the loss {loss} does not learn from {given}; these have {', '.join(fitting)}.")
    if len(empty := np.argwhere([[not text.strip() for text in row] for row in texts.tolist()])):
        place, which = empty[0]
        what = {PAIRS: [QUERY, POSITIVE][which] if which < 2 else NEGATIVE, CLASSES: TEXT, VECTORS: TEXT}.get(
            form, "a text of the pair"
        )
        raise BertKerasError(f"row {place}: {what} is empty; give text in each row.")
    _CHECKS[form](columns, loss)
    return columns


def _check_pairs(columns: Columns, loss: str) -> None:
    texts = columns[TEXT]
    if texts.shape[1] > 2:
        return
    if len(texts) < 2:
        raise BertKerasError(
            "there is one pair, and the negatives of a pair are those of others; give at least two."
        )
    if len(distinct := {*texts[:, 1].tolist()}) == 1 or len({*texts[:, 0].tolist()}) == 1:
        which = POSITIVE if len(distinct) == 1 else QUERY
        raise BertKerasError(
            f"all {len(texts)} pairs have the same {which}, so none is a negative of another; give different texts, or a column "
            f"{NEGATIVE}."
        )


def _check_scores(columns: Columns, loss: str) -> None:
    row, given = VECTOR_LOSSES[loss], columns[LABEL]
    if len(wrong := np.flatnonzero((given < row.lowest) | (given > row.highest))):
        raise BertKerasError(
            f"score {given[wrong[0]]:g} in row {wrong[0]}; the loss {loss} takes {row.lowest:g} to {row.highest:g}: scale the "
            f"scores, or take {vector_loss_of(SCORES)}, which reads their order alone."
        )
    if loss == vector_loss_of(SCORES) and np.ptp(given) == 0:
        raise BertKerasError(
            f"all {len(given)} scores are {given[0]:g}, which have no order; give different ones."
        )


def _check_classes(columns: Columns, loss: str) -> None:
    counts = np.unique(columns[LABEL], return_counts=True)[1]
    if len(counts) < 2 or counts.max() < 2:
        raise BertKerasError(
            f"{len(columns[LABEL])} texts have {len(counts)} classes; give two classes or more, and several texts of a class."
        )


_CHECKS: dict[str, Callable[[Columns, str], None]] = {
    PAIRS: _check_pairs,
    SCORES: _check_scores,
    CLASSES: _check_classes,
    VECTORS: lambda columns, loss: None,
}


# -----------------------------------------------------------------------------------------------------------
# Files


class GroupColumns(NamedTuple):
    """The columns of a file. label: of a score, a class or a teacher's vector; None for pairs without scores."""

    texts: tuple[str, ...]
    label: str | None

    @property
    def form(self) -> str:
        if self.label is None:
            return PAIRS
        return VECTORS if self.label == VECTOR else SCORES if len(self.texts) == 2 else CLASSES


# The first row whose columns a file has.
COLUMNS = (
    GroupColumns((QUERY, POSITIVE), None),
    GroupColumns((QUERY, TEXT), LABEL),
    GroupColumns(("sentence1", "sentence2"), "score"),  # STS-B's
    GroupColumns((TEXT,), VECTOR),  # an index's
    GroupColumns((TEXT,), LABEL),
)


def columns_of(
    path: Path,
    *,
    text_column: Sequence[str] | None = None,
    label_column: str | None = None,
    negative_column: Sequence[str] | None = None,
    quoting: str | None = None,
) -> GroupColumns:
    """The columns to read: those that are named, else those of COLUMNS. Raises BertKerasError where neither are there."""
    there = column_names(path, quoting=quoting)
    if text_column is not None:
        one = LABEL if len(text_column) == 1 else None
        found = GroupColumns(tuple(text_column), label_column or one)
    else:
        needed = [({*row.texts, *([VECTOR] if row.form == VECTORS else [])}, row) for row in COLUMNS]
        first = next((row for names, row in needed if names <= {*there}), None)
        if first is None:
            raise BertKerasError(
                f"{path} has the columns {first_names(there)}; name those of the query and the positive, of the pair with "
                "--label-column for its score, or of the text with --label-column for its class, with --text-column."
            )
        found = first._replace(label=label_column or first.label)
    if found.label is not None:
        return found
    negatives = negative_column or [name for name in there if name.startswith(NEGATIVE)]
    return found._replace(texts=(*found.texts, *negatives))


def read_group_file(
    path: Path, columns: GroupColumns, *, check: Callable[[Columns], Columns], quoting: str | None = None
) -> Columns:
    """The raw columns of a file after `check`. Raises BertKerasError, with the line, as `read_table`, and as `check`."""
    label = [] if columns.label is None else [columns.label]
    texts, labels = [], []
    for where, _, values in read_table(path, [*columns.texts, *label], quoting=quoting):
        named = zip(columns.texts, values, strict=False)
        texts.append([checked_text(value, where, name).encode() for name, value in named])
        labels.append((values[-1], where))
    if not texts:
        raise BertKerasError(f"{path} has no examples; give at least one line under the header.")
    made = {TEXT: np.array(texts, object)}
    if columns.form == VECTORS:
        made[LABEL] = teacher_vectors([value for value, _ in labels])
    elif columns.form == SCORES:
        made[LABEL] = np.array([_score(value, where) for value, where in labels], np.float32)
    elif columns.form == CLASSES:
        names = [read_label(value, where) for value, where in labels]
        made[LABEL] = np.unique(names, return_inverse=True)[1].astype(np.int32)
    try:
        return check(made)
    except BertKerasError as error:
        raise BertKerasError(f"{path}: {error}") from None


def _score(value: Any, where: str) -> float:
    if (number := read_number(value)) is None:
        raise BertKerasError(f"{where}: score {shortened(value)} is not a number.")
    return number


# -----------------------------------------------------------------------------------------------------------
# The order of a pool of rows, which is cut into batches


def without_repeats(texts: np.ndarray, batch_size: int) -> np.ndarray:
    """An order of rows [P, T] whose batches have no two rows with an equal text, where that is possible: int64 [P].

    A row goes into the first batch with room that has none of its texts. What is left over changes places with a row of an
    earlier batch, and meets its equal where no such row is there.
    """
    own = [{*row} for row in texts.tolist()]
    full, rest = divmod(len(own), batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0)
    rows, seen = [list[int]() for _ in sizes], [set[bytes]() for _ in sizes]
    first, late = 0, list[int]()
    for row, words in enumerate(own):
        while first < len(sizes) and len(rows[first]) == sizes[first]:
            first += 1
        places = range(first, len(sizes))
        found = next((i for i in places if len(rows[i]) < sizes[i] and not words & seen[i]), None)
        if found is None:
            late.append(row)
        else:
            rows[found].append(row)
            seen[found] |= words
    for row in late:
        open_ = next(i for i, size in enumerate(sizes) if len(rows[i]) < size)
        moved = next(
            (
                (i, other)
                for i in range(len(sizes))
                if i != open_ and not own[row] & seen[i]
                for other in rows[i]
                if not own[other] & seen[open_]
            ),
            None,
        )
        rows[open_].append(row if moved is None else moved[1])
        if moved is not None:
            place, other = moved
            rows[place][rows[place].index(other)] = row
            seen[place] = set[bytes]().union(*(own[i] for i in rows[place]))
        seen[open_] = set[bytes]().union(*(own[i] for i in rows[open_]))
    return np.array([row for batch in rows for row in batch], np.int64)


def in_twos(classes: np.ndarray, batch_size: int) -> np.ndarray:
    """An order of rows [P] with two of a class side by side, so that a text meets another one of its class: int64 [P]."""
    twos, waiting = [], dict[int, int]()
    for row, label in enumerate(classes.tolist()):
        if label in waiting:
            twos += [waiting.pop(label), row]
        else:
            waiting[label] = row
    return np.array([*twos, *waiting.values()], np.int64)
