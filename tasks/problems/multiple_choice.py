"""Multiple choice: one of K endings completes a context. Reads SWAG, CODAH and a user's own files.

In: a table with SWAG's columns, CODAH's, or context, endings and label. Out: examples {"context": string [], "endings": string
[K], "label": int32 []}, features [B, K, S], logits [B, K], the chosen ending.
Source: Devlin et al. 2019, sec. 4.4: K sequences, each the context (A) and one ending (B), and one vector that scores them.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_keras.errors import BertKerasError, first_names
from bert_keras.features import DTYPE, POOLED_OUTPUT
from bert_keras.fields import field_types, names_of
from bert_keras.io.json_files import shortened
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ChoiceHead
from bert_keras.tasks.data.columns import class_ids
from bert_keras.tasks.data.sources import Source, split_file
from bert_keras.tasks.data.tables import checked_text, column_names, get_ending, read_table
from bert_keras.tasks.metrics import accuracy, degenerate_classes
from bert_keras.tasks.options import TASK_DEFAULTS, ChoiceOptions
from bert_keras.tasks.problems.class_metrics import keras_metrics
from bert_keras.tasks.problems.views import by_fraction
from bert_keras.tasks.report import Arrays, Judged, Table, list_errors, plain
from bert_keras.tasks.task import Features, Raw, Task, checked_labelled
from bert_keras.text.preprocessing import Preprocessor

CONTEXT, ENDINGS, LABEL = "context", "endings", "label"
UNLABELLED = -1

# The file names of each split of each data set. CODAH is one file without splits. A file's columns say what it holds, so a
# model can train on one data set and be evaluated on another.
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "swag": {
        "train": ("train.csv", "train.jsonl"),
        "validation": ("val.csv", "val.jsonl", "validation.jsonl"),
        "test": ("test.csv", "test.jsonl"),
    },
    "codah": {
        "train": ("train.tsv", "full_data.tsv"),
        "validation": ("dev.tsv", "validation.tsv"),
        "test": ("test.tsv",),
    },
}


class ChoiceColumns(NamedTuple):
    """The columns of a table of choices.

    context, label: the context, and the index of the right ending
    endings: a column of lists, or the name before the numbers 0, 1, ... of a column for each ending
    start: a text before each ending that is not blank; "" for none
    """

    context: str
    endings: str
    label: str
    start: str = ""


# The first one whose context the file has. A startphrase is SWAG's sent1 and sent2 in one string, without their boundary.
COLUMNS = (
    ChoiceColumns("sent1", "ending", LABEL, start="sent2"),  # SWAG's CSV
    ChoiceColumns("startphrase", "choices", "answer"),  # SWAG's JSON lines
    ChoiceColumns(CONTEXT, ENDINGS, LABEL),
)
_ENDINGS, _LABELS = [one.endings for one in COLUMNS], [one.label for one in COLUMNS]
_BY_POSITION = (
    "The fraction of the examples whose chosen and whose right ending stands at a position, and the accuracy where the right one "
    "stands there. A model that prefers a position chooses it more often than it is right."
)
_BY_LENGTH = "Rank 1 is the longest ending. A model that prefers long endings chooses rank 1 more often than it is right."
_BY_MARGIN = "The margin is the probability of the chosen ending minus that of the second best one."
# A .tsv: category, prompt, endings and label, without a header.
CODAH = ChoiceColumns("prompt", "ending", LABEL)


def _found(columns: ChoiceColumns, there: Sequence[str]) -> ChoiceColumns:
    """The columns with the names of endings and label that a table has: people mix the names of the data sets."""
    endings = (name for name in (columns.endings, *_ENDINGS) if {name, f"{name}0"} & {*there})
    labels = (name for name in (columns.label, *_LABELS) if name in there)
    return columns._replace(endings=next(endings, columns.endings), label=next(labels, columns.label))


class MultipleChoice(Task):
    """The task of choosing one of K endings.

    name: a key of FILES
    source: the files, as in `split_file`
    num_choices: K, the same in every example of every file

    Raises BertKerasError for a K under 2.
    """

    kind = "multiple-choice"
    names = tuple(FILES)
    head = "classifier"
    architectures = ("ForMultipleChoice",)
    options = names_of(ChoiceOptions)
    kinds = field_types(ChoiceOptions)
    measure, measures = "accuracy", ("accuracy",)
    defaults = TASK_DEFAULTS["swag"]

    def __init__(
        self,
        name: str = "swag",
        source: Source | None = None,
        *,
        num_choices: int = ChoiceOptions.num_choices,
    ) -> None:
        ChoiceOptions(num_choices=num_choices)
        self.name, self.source, self.num_choices = name, source, num_choices

    def examples(self, split: str) -> tf.data.Dataset:
        """{"context": string [], "endings": string [K], "label": int32 []}; a withheld label is -1."""
        if self.source is None:
            raise BertKerasError(
                f"{self.name} is read from files; give a folder of them, or a file for each split."
            )
        path = split_file(self.source, split, FILES[self.name])
        rows = [*self._read(path, labelled=split != "test")]
        if not rows:
            raise BertKerasError(f"{path} has no examples; give at least one.")
        contexts, endings, labels = zip(*rows, strict=True)
        columns = {CONTEXT: [*contexts], ENDINGS: [*endings], LABEL: np.array(labels, np.int32)}
        return tf.data.Dataset.from_tensor_slices(columns)

    def _read(self, path: Path, *, labelled: bool) -> Iterator[tuple[str, list[str], int]]:
        """Yields context, endings and label of each row."""
        there, count = column_names(path), self.num_choices
        columns = next((columns for columns in COLUMNS if columns.context in there), None)
        if columns is None and get_ending(path) != ".tsv":
            raise BertKerasError(
                f"{path} has the columns {first_names(there)}; give SWAG's sent1, sent2, ending0, ending1, ... and label, or "
                f"startphrase, choices and answer, or {CONTEXT}, {ENDINGS} and {LABEL}."
            )
        headerless = columns is None
        columns = CODAH if columns is None else _found(columns, there)
        numbered = [f"{columns.endings}{i}" for i in range(count)]
        header = ["category", columns.context, *numbered, columns.label] if headerless else None
        one_list = columns.endings in there
        found = next(i for i in itertools.count() if f"{columns.endings}{i}" not in there)
        found = len(there) - 3 if headerless else found
        if not one_list and found != count:
            raise BertKerasError(
                f"{path} has {max(found, 0)} endings ({columns.endings}0, {columns.endings}1, ...), expected {count} "
                f"(--num-choices) in every example; its columns are {first_names(there)}."
            )
        first = [columns.context, *filter(None, [columns.start])]
        read = [*first, *([columns.endings] if one_list else numbered)]
        rows = read_table(path, read, optional=[columns.label], header=header, one_line=True)
        for where, _, (*values, label) in rows:
            texts = zip(first, values, strict=False)
            context, *start = (checked_text(value, where, name) for name, value in texts)
            given = values[-1] if one_list else values[len(first) :]
            endings = self._check_endings(given, where, start)
            yield context, endings, self._check_label(label, where, labelled)

    def _check_endings(self, endings: Any, where: str, start: Sequence[str]) -> list[str]:
        """The endings after their start. Raises BertKerasError for another number of endings, and for one that is not text."""
        count = self.num_choices
        if not isinstance(endings, list) or len(endings) != count:
            listed = isinstance(endings, list)
            given = f"{len(endings)} endings" if listed else f"no list but {shortened(endings)}"
            raise BertKerasError(f"{where}: {given}, expected {count} (--num-choices) in every example.")
        texts = [checked_text(text, where, f"ending {i}") for i, text in enumerate(endings)]
        if empty := [i for i, text in enumerate(texts) if not text.strip()]:
            raise BertKerasError(f"{where}: ending {empty[0]} is empty; give text for all {count}.")
        return [" ".join([*filter(None, start), text]) for text in texts]

    def _check_label(self, label: Any, where: str, labelled: bool) -> int:
        """The index of the right ending; UNLABELLED in a file of withheld labels. Raises BertKerasError for another value."""
        if label is None and not labelled:
            return UNLABELLED
        if str(label) not in map(str, range(self.num_choices)):
            given = "no label" if label is None else f"label {shortened(label)}"
            raise BertKerasError(
                f"{where}: {given}; give the index of the right ending, 0 to {self.num_choices - 1}."
            )
        return int(label)

    def given(self, x: Any) -> dict[str, np.ndarray]:
        columns = super().given(x)
        if (found := columns[ENDINGS].shape[1]) != self.num_choices:
            raise BertKerasError(f"each row has {found} endings; the model takes {self.num_choices}.")
        return columns

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {LABEL: class_ids(y, [str(i) for i in range(self.num_choices)])}

    def metrics(self) -> list[keras.metrics.Metric]:
        return self.keras_metrics(self.measures)[0]

    def keras_metrics(self, given: Any) -> tuple[Any, tuple[str, ...]]:
        """Those of classes: the places of the endings."""
        places = [str(place) for place in range(self.num_choices)]
        return keras_metrics(keras.tree.flatten(given), places, "class")

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, K, S]."""
        choices = self.num_choices
        flat = preprocess(tf.repeat(raw[CONTEXT], choices), tf.reshape(raw[ENDINGS], [-1]))

        def fold(x: tf.Tensor) -> tf.Tensor:
            length = tf.shape(x)[1] if x.shape[1] is None else x.shape[1]
            return tf.reshape(x, [-1, choices, length, *x.shape[2:]])

        return {name: fold(x) for name, x in flat.items()}

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels int32 [B], and weights float32 [B], which are 0 where the label is withheld."""
        return tf.maximum(raw[LABEL], 0), tf.cast(raw[LABEL] >= 0, tf.float32)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features [B, K, S] -> logits float32 [B, K]."""
        inputs = {
            name: keras.Input((self.num_choices, *one.shape[1:]), dtype=DTYPE, name=name)
            for name, one in encoder_inputs(config=encoder.config).items()
        }
        flatten = FlattenChoices()
        pooled = encoder({name: flatten(x) for name, x in inputs.items()})[POOLED_OUTPUT]
        head = ChoiceHead(self.num_choices, config=encoder.config, dtype=encoder.dtype_policy)
        return keras.Model(inputs, head(pooled), name="choice_model")

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [B, K] -> "label" int32 [B], "ending" string [B] and "probabilities" float32 [B, K]."""
        decoded = self.decode_features(outputs)
        return decoded | {"ending": tf.gather(raw[ENDINGS], decoded[LABEL], batch_dims=1)}

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Logits [B, K] -> "label" int32 [B] and "probabilities" float32 [B, K]."""
        chosen = tf.argmax(outputs, axis=-1, output_type=tf.int32)
        return {LABEL: chosen, "probabilities": tf.nn.softmax(outputs)}

    def signature(self) -> dict[str, tf.TensorSpec]:
        return {
            CONTEXT: tf.TensorSpec([None], tf.string, name=CONTEXT),
            ENDINGS: tf.TensorSpec([None, self.num_choices], tf.string, name=ENDINGS),
        }

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields the accuracy over the labelled examples. Raises BertKerasError where no example is labelled."""
        known = checked_labelled(raw[LABEL] >= 0, self.name)
        yield self.measure, accuracy(raw[LABEL][known], predictions[LABEL][known])

    def degenerate(self, predictions: Arrays, raw: Arrays) -> str | None:
        """One position for nearly all examples, or no better than the most common one."""
        known = raw[LABEL] >= 0
        names = [f"ending {place}" for place in range(self.num_choices)]
        return degenerate_classes(raw[LABEL][known], predictions[LABEL][known], names)

    def baseline(self, raw: Arrays) -> float:
        """The accuracy of the most common position."""
        known = raw[LABEL][raw[LABEL] >= 0]
        return float(np.bincount(known).max() / len(known))

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The context, the chosen ending and its probability."""
        probability = record["probabilities"][record[LABEL]]
        return {CONTEXT: example[CONTEXT], "ending": record["ending"], "probability": f"{probability:.4f}"}

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        confidence, chosen, right = predictions["probabilities"].max(axis=1), predictions[LABEL], raw[LABEL]
        wrong = np.flatnonzero((right >= 0) & (chosen != right))

        def describe(i: int) -> list[str]:
            return [*map(plain, (raw[CONTEXT][i], raw[ENDINGS][i, chosen[i]], raw[ENDINGS][i, right[i]]))]

        columns = (CONTEXT, "chosen", "right", "probability of the chosen")
        yield from list_errors(wrong, confidence, columns, describe)

    def views(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """The choices by position and by length of the endings, and the accuracy by margin."""
        known = np.flatnonzero(raw[LABEL] >= 0)
        chosen, right = predictions[LABEL][known], raw[LABEL][known]
        endings, probabilities = raw[ENDINGS][known], predictions["probabilities"][known]
        positions = np.broadcast_to(np.arange(self.num_choices), endings.shape)
        yield _by_place(
            "Choices by position of the ending", "position", positions, chosen, right, _BY_POSITION
        )
        lengths = np.array([[len(plain(ending)) for ending in row] for row in endings])
        ranks = np.argsort(np.argsort(-lengths, axis=1, kind="stable"), axis=1)
        yield _by_place("Choices by length of the ending", "rank of length", ranks, chosen, right, _BY_LENGTH)
        best = np.sort(probabilities, axis=1)
        margins, columns = best[:, -1] - best[:, -2], ("margin", self.measure, "examples")
        yield from by_fraction("Accuracy by margin", columns, margins, chosen == right, about=_BY_MARGIN)

    def judge(self, predictions: Arrays, raw: Arrays) -> Judged:
        rows = np.flatnonzero(raw[LABEL] >= 0)
        chosen, right = predictions[LABEL][rows], raw[LABEL][rows]
        return Judged(
            rows=rows,
            texts={CONTEXT: plain(raw[CONTEXT][rows])},
            gold=plain(raw[ENDINGS][rows, right]),
            predicted=plain(raw[ENDINGS][rows, chosen]),
            right=(chosen == right).astype(np.float64),
            confidence=predictions["probabilities"][rows].max(axis=1).astype(np.float64),
        )


def _by_place(
    title: str, name: str, places: np.ndarray, chosen: np.ndarray, right: np.ndarray, about: str
) -> Table:
    """For each place, the fraction of examples whose chosen and whose right ending stands there, and the accuracy of the latter.

    places: int [N, K], those of the endings, from 0; chosen, right: int [N], the indices of endings
    """
    row = np.arange(len(places))
    at_choice, at_right = places[row, chosen], places[row, right]
    rows = []
    for place in range(places.shape[1]):
        there = at_right == place
        accuracy_there = float(np.mean(chosen[there] == right[there])) if there.any() else None
        rows.append((place + 1, float(np.mean(at_choice == place)), float(np.mean(there)), accuracy_there))
    return Table(title, (name, "chosen", "right", "accuracy where it is right"), rows, "lines", about)


@keras.saving.register_keras_serializable("bert_keras")
class FlattenChoices(keras.layers.Layer):
    """Makes every ending a row: int32 [B, K, S] -> [B*K, S]."""

    def call(self, x: Any) -> Any:
        return ops.reshape(x, (-1, *ops.shape(x)[2:]))
