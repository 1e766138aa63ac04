"""Multiple choice: one of K endings completes a context. Reads SWAG, CODAH and a user's own files.

In: SWAG's CSV, its JSON lines or CODAH's TSV, by suffix. Out: examples {"context": string [], "endings": string [K],
"label": int32 []}, features [B, K, S], logits [B, K], the chosen ending.
Source: Devlin et al. 2019, sec. 4.4: K sequences, each the context (A) and one ending (B), and one vector that scores them.
"""

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_keras.errors import BertKerasError, listed
from bert_keras.features import DTYPE, ENCODER_INPUTS, POOLED_OUTPUT
from bert_keras.fields import names_of
from bert_keras.io.json_files import (
    one_of,
    parse_json,
    short,
    typed,
    whole,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import ChoiceHead
from bert_keras.tasks.data.columns import class_ids
from bert_keras.tasks.data.sources import (
    Source,
    check_text,
    nonblank_lines,
    split_file,
)
from bert_keras.tasks.failed_runs import degenerate_classes
from bert_keras.tasks.metrics import accuracy
from bert_keras.tasks.options import MAX_CHOICES, TASK_DEFAULTS, ChoiceOptions
from bert_keras.tasks.report_tables import Table, most_confident
from bert_keras.tasks.task import (
    Arrays,
    Features,
    Raw,
    Task,
)
from bert_keras.text.preprocessing import Preprocessor

CONTEXT, ENDINGS, LABEL = "context", "endings", "label"
UNLABELLED = -1

# The file names of each split of each data set. CODAH is one file without splits. The suffix gives the format, so a model can
# train on one data set and be evaluated on another.
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


class Choice(NamedTuple):
    """One example of a file.

    line: its first line, from 1
    label: the index of the right ending, as text; None in an unlabelled file
    """

    line: int
    context: str
    endings: tuple[str, ...]
    label: str | None


class MultipleChoice(Task):
    """The task of choosing one of K endings.

    name: a key of FILES
    source: the files, as in `split_file`
    num_choices: K, the same in every example of every file

    Raises BertKerasError for a K under 2.
    """

    kind = "swag"
    names = tuple(FILES)
    options = names_of(ChoiceOptions)
    kinds = {"num_choices": whole(2, MAX_CHOICES)}
    measure = "accuracy"
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

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> "MultipleChoice":
        if source is None:
            raise BertKerasError(
                f"{name} is read from files; give a folder of them, or a file for each split."
            )
        return cls(name, source, **options)

    def examples(self, split: str) -> tf.data.Dataset:
        """{"context": string [], "endings": string [K], "label": int32 []}; a withheld label is -1.

        Raises BertKerasError for an unreadable file, with its line, and MissingFileError for a missing one.
        """
        if self.source is None:
            raise BertKerasError(f"{self.name} was opened without data; give a folder or a file.")
        path = split_file(self.source, split, FILES[self.name])
        if path.suffix not in READERS:
            raise BertKerasError(
                f"{path} is no {', '.join(READERS)}; choices are read from SWAG's .csv or .jsonl and from CODAH's .tsv; write "
                "one of these, or give the columns to fit of bert_keras.chooser in Python."
            )
        choices = list(READERS[path.suffix](path))
        if not choices:
            raise BertKerasError(f"{path} has no examples; give at least one.")
        for choice in choices:
            self._check(path, choice, labelled=split != "test")
        labels = [UNLABELLED if choice.label is None else int(choice.label) for choice in choices]
        return tf.data.Dataset.from_tensor_slices(
            {
                CONTEXT: np.array([choice.context.encode() for choice in choices], object),
                ENDINGS: np.array([[text.encode() for text in choice.endings] for choice in choices], object),
                LABEL: np.array(labels, np.int32),
            }
        )

    def _check(self, path: Path, choice: Choice, *, labelled: bool) -> None:
        where, count = f"{path}, line {choice.line}", self.num_choices
        if len(choice.endings) != count:
            raise BertKerasError(
                f"{where}: {len(choice.endings)} endings, expected {count} (--num-choices) in every example."
            )
        if empty := [i for i, ending in enumerate(choice.endings) if not ending.strip()]:
            raise BertKerasError(f"{where}: ending {empty[0]} is empty; give text for all {count}.")
        check_text(where, choice.context, *choice.endings)
        if choice.label is None and labelled:
            raise BertKerasError(f"{where}: no label; give the index of the right ending, 0 to {count - 1}.")
        if choice.label is not None and choice.label not in map(str, range(count)):
            raise BertKerasError(
                f"{where}: label {short(choice.label)}; give the index of the right ending, 0 to {count - 1}."
            )

    def given(self, x: Any) -> dict[str, np.ndarray]:
        """The columns "context" [N] and "endings" [N, K]."""
        columns = super().given(x)
        if (found := columns[ENDINGS].shape[1]) != self.num_choices:
            raise BertKerasError(f"each row has {found} endings; the model takes {self.num_choices}.")
        return columns

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The indexes of the right endings."""
        return {LABEL: class_ids(y, [str(i) for i in range(self.num_choices)])}

    def metrics(self) -> list[keras.metrics.Metric]:
        """The accuracy of the chosen endings."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, K, S]."""
        choices = self.num_choices
        flat = preprocess(tf.repeat(raw[CONTEXT], choices), tf.reshape(raw[ENDINGS], [-1]))

        def fold(x: tf.Tensor) -> tf.Tensor:
            return tf.reshape(x, [-1, choices, tf.shape(x)[1] if x.shape[1] is None else x.shape[1]])

        return {name: fold(x) for name, x in flat.items()}

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels int32 [B], and weights float32 [B], which are 0 where the label is withheld."""
        return tf.maximum(raw[LABEL], 0), tf.cast(raw[LABEL] >= 0, tf.float32)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features [B, K, S] -> logits float32 [B, K]."""
        inputs = {
            name: keras.Input((self.num_choices, None), dtype=DTYPE, name=name) for name in ENCODER_INPUTS
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
        known = raw[LABEL] >= 0
        if not known.any():
            raise BertKerasError(
                f"none of the {len(known)} {self.name} examples is labelled; give a labelled split."
            )
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
        """The most confident errors."""
        confidence, chosen, right = predictions["probabilities"].max(axis=1), predictions[LABEL], raw[LABEL]
        wrong = np.flatnonzero((right >= 0) & (chosen != right))
        rows: list[tuple[Any, ...]] = [
            (
                raw[CONTEXT][i].decode(),
                raw[ENDINGS][i, chosen[i]].decode(),
                raw[ENDINGS][i, right[i]].decode(),
                float(confidence[i]),
            )
            for i in most_confident(wrong, confidence)
        ]
        if rows:
            title = f"the most confident of {len(wrong)} errors in {len(right)} examples"
            yield Table(title, (CONTEXT, "chosen", "right", "probability of the chosen"), rows)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "MultipleChoice":
        """Restores the task from the output of `to_json`, with its examples in `source`."""
        kept = typed(kept, {"name": one_of(cls.names), **cls.kinds}, where="task")
        return cls(kept["name"], source, num_choices=kept["num_choices"])


@keras.saving.register_keras_serializable("bert_keras")
class FlattenChoices(keras.layers.Layer):
    """Makes every ending a row: int32 [B, K, S] -> [B*K, S]."""

    def call(self, x: Any) -> Any:
        """Int32 [B, K, S] -> [B*K, S]."""
        return ops.reshape(x, (-1, ops.shape(x)[-1]))


def _from_csv(path: Path) -> Iterator[Choice]:
    """SWAG's columns sent1, sent2, ending0, ending1, ... and label: A is sent1, B is sent2 and the ending.

    A record is one line, as in the official files. If records could have several lines, two stray quotes would join all rows
    between them into one field.
    """
    csv.field_size_limit(sys.maxsize)
    rows = ((line, _fields(text, f"{path}, line {line}")) for line, text in nonblank_lines(path))
    first, header = next(rows, (1, []))
    if missing := [name for name in ("sent1", "sent2", "ending0") if name not in header]:
        raise BertKerasError(
            f"{path} has no column {', '.join(missing)}; give sent1, sent2, ending0, ending1, ... and label; the columns are "
            f"{listed(header)}."
        )
    if repeated := [name for name in header if header.count(name) > 1]:
        raise BertKerasError(
            f"{path}, line {first}: more than one column {short(repeated[0])}; give each name once."
        )
    for line, values in rows:
        if len(values) != len(header):
            raise BertKerasError(
                f"{path}, line {line}: {len(values)} columns, expected {len(header)}: {', '.join(header)}."
            )
        row = dict(zip(header, values, strict=True))
        start = row["sent2"]
        endings = [row[name] for name in _ending_columns(header)]
        yield Choice(
            line,
            row["sent1"],
            tuple(f"{start} {ending}" if start and ending.strip() else ending for ending in endings),
            row.get(LABEL),
        )


def _fields(line: str, where: str) -> list[str]:
    """The fields of one line of CSV. Raises BertKerasError for unpaired quotes."""
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise BertKerasError(f"{where}: {error}; give quotes in pairs, within a line.") from error


def _ending_columns(header: list[str]) -> list[str]:
    """The columns ending0, ending1, ... up to the first missing one."""
    count = next(i for i in range(len(header) + 1) if f"ending{i}" not in header)
    return [f"ending{i}" for i in range(count)]


def _from_jsonl(path: Path) -> Iterator[Choice]:
    """SWAG's "startphrase", "choices" and "answer": A is the whole startphrase, B is the ending.

    A startphrase is sent1 and sent2 in one string, without the boundary between them.
    """
    for line, text in nonblank_lines(path):
        try:
            row = parse_json(text, source=f"{path}, line {line}")
            context, endings = row["startphrase"], row["choices"]
            if not isinstance(endings, list) or not all(
                isinstance(text, str) for text in (context, *endings)
            ):
                raise TypeError("not text")
        except (KeyError, TypeError) as error:
            raise BertKerasError(
                f'{path}, line {line}: {type(error).__name__} {error}; give {{"startphrase": text, '
                '"choices": [text, ...], "answer": index}}.'
            ) from error
        answer = row.get("answer")
        yield Choice(line, context, tuple(endings), None if answer is None else str(answer))


def _from_tsv(path: Path) -> Iterator[Choice]:
    """CODAH's columns category, prompt, endings and label, without a header; quotes are text."""
    for line, text in nonblank_lines(path):
        values = text.split("\t")
        if len(values) < 4:
            raise BertKerasError(
                f"{path}, line {line}: {len(values)} column(s); give category, prompt, endings and label, "
                "separated by tabs."
            )
        yield Choice(line, values[1], tuple(values[2:-1]), values[-1])


READERS: dict[str, Callable[[Path], Iterator[Choice]]] = {
    ".csv": _from_csv,
    ".jsonl": _from_jsonl,
    ".tsv": _from_tsv,
}
