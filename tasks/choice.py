"""SWAG, CODAH and any file of one's own in which one of K endings completes a context.

In: SWAG's CSV, its JSON lines or CODAH's TSV, told apart by suffix. Out: examples {"context": string [],
"endings": string [K], "label": int32 []}, features [B, K, S], logits [B, K] turned into the chosen ending.
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

from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError
from bert_keras.features import DTYPE, ENCODER_INPUTS, POOLED_OUTPUT
from bert_keras.heads import ChoiceHead
from bert_keras.json_files import one_of, parse_json, typed, whole
from bert_keras.losses import GlobalMean, cross_entropy
from bert_keras.settings import names_of
from tasks.metrics import accuracy
from tasks.settings import MAX_CHOICES, TASK_DEFAULTS, ChoiceOptions
from tasks.task import (
    ERRORS_SHOWN,
    Features,
    Raw,
    Source,
    Table,
    Task,
    check_text,
    numbered_lines,
    split_file,
)

CONTEXT, ENDINGS, LABEL = "context", "endings", "label"
UNLABELLED = -1

# The splits of each data set and, for each, the names that its file may have in a folder. CODAH comes as one file without
# a split; every file is read by its suffix, so that one set can train and another measure.
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
    """One example as a file has it.

    line: where it begins, from 1
    label: the place of the right ending as it is written; None where the file has none
    """

    line: int
    context: str
    endings: tuple[str, ...]
    label: str | None


class Swag(Task):
    """The Task of choosing one of K endings.

    name: a key of FILES
    source: as `split_file` takes it
    num_choices: K, which every example of every file must have

    Raises ValueError on a K under 2.
    """

    kind = "swag"
    names = tuple(FILES)
    options = names_of(ChoiceOptions)
    outputs = (POOLED_OUTPUT,)
    measure = "accuracy"
    validation_splits = ("validation",)
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
    def open(cls, name: str, source: Source | None, **options: Any) -> "Swag":
        if source is None:
            raise BertKerasError(
                f"{name} is read from files; give a folder of them, or a file for each split."
            )
        return cls(name, source, **options)

    def examples(self, split: str) -> tf.data.Dataset:
        """{"context": string [], "endings": string [K], "label": int32 []}; a label that test data withholds is -1.

        Raises ValueError or FileNotFoundError on what cannot be read, naming the file and the line.
        """
        if self.source is None:
            raise BertKerasError(f"{self.name} was opened without data; give a folder or a file.")
        path = split_file(self.source, split, FILES[self.name])
        if path.suffix not in READERS:
            raise BertKerasError(
                f"{path} is none of {', '.join(READERS)}; give SWAG's .csv or .jsonl, or CODAH's .tsv."
            )
        choices = list(READERS[path.suffix](path))
        if not choices:
            raise BertKerasError(f"{path} has no examples; wanted is at least one.")
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
        where, wanted = f"{path}, line {choice.line}", self.num_choices
        if len(choice.endings) != wanted:
            raise BertKerasError(
                f"{where}: {len(choice.endings)} endings; wanted are {wanted} (--num-choices) in every example."
            )
        if empty := [i for i, ending in enumerate(choice.endings) if not ending.strip()]:
            raise BertKerasError(f"{where}: ending {empty[0]} is empty; wanted is text in all {wanted}.")
        check_text(where, choice.context, *choice.endings)
        if choice.label is None and labelled:
            raise BertKerasError(
                f"{where}: no label; wanted is the place of the right ending, 0 to {wanted - 1}."
            )
        if choice.label is not None and choice.label not in map(str, range(wanted)):
            raise BertKerasError(
                f"{where}: label {choice.label!r}; wanted is the place of the right ending, 0 to {wanted - 1}."
            )

    def features(self, preprocess: Callable[..., Features], raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, K, S]."""
        choices = self.num_choices
        flat = preprocess(tf.repeat(raw[CONTEXT], choices), tf.reshape(raw[ENDINGS], [-1]))

        def fold(x: tf.Tensor) -> tf.Tensor:
            return tf.reshape(x, [-1, choices, tf.shape(x)[1] if x.shape[1] is None else x.shape[1]])

        return {name: fold(x) for name, x in flat.items()}

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels int32 [B], and weights float32 [B]: 0 where the label is withheld."""
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

    def loss(self) -> keras.losses.Loss:
        """The mean over the weights of cross-entropy between the endings."""
        return GlobalMean(cross_entropy)

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [B, K] -> "label" int32 [B], "ending" string [B] and "probabilities" float32 [B, K]."""
        decoded = self.decode_features(outputs)
        return decoded | {"ending": tf.gather(raw[ENDINGS], decoded[LABEL], batch_dims=1)}

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """The same without the ending's text."""
        chosen = tf.argmax(outputs, axis=-1, output_type=tf.int32)
        return {LABEL: chosen, "probabilities": tf.nn.softmax(outputs)}

    def signature(self) -> dict[str, tf.TensorSpec]:
        return {
            CONTEXT: tf.TensorSpec([None], tf.string, name=CONTEXT),
            ENDINGS: tf.TensorSpec([None, self.num_choices], tf.string, name=ENDINGS),
        }

    def evaluate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """Yields the accuracy over the labelled examples. Raises ValueError where no label is known."""
        known = raw[LABEL] >= 0
        if not known.any():
            raise BertKerasError(
                f"none of the {len(known)} {self.name} examples is labelled; use a labelled split."
            )
        yield self.measure, accuracy(raw[LABEL][known], predictions[LABEL][known])

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The context, the ending that was chosen and its probability."""
        probability = record["probabilities"][record[LABEL]]
        return {CONTEXT: example[CONTEXT], "ending": record["ending"], "probability": f"{probability:.4f}"}

    def report(self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]) -> Iterator[Table]:
        """The errors that the model was surest of."""
        sure, chosen, right = predictions["probabilities"].max(axis=1), predictions[LABEL], raw[LABEL]
        wrong = np.flatnonzero((right >= 0) & (chosen != right))
        rows: list[tuple[Any, ...]] = [
            (
                raw[CONTEXT][i].decode(),
                raw[ENDINGS][i, chosen[i]].decode(),
                raw[ENDINGS][i, right[i]].decode(),
                float(sure[i]),
            )
            for i in wrong[np.argsort(-sure[wrong], kind="stable")][:ERRORS_SHOWN]
        ]
        if rows:
            title = f"the most confident of {len(wrong)} errors in {len(right)} examples"
            yield Table(title, (CONTEXT, "chosen", "right", "probability of the chosen"), rows)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "num_choices": self.num_choices}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "Swag":
        """The task that `to_json` was called on, with `source` as in Swag."""
        kinds = {"name": one_of(FILES), "num_choices": whole(2, MAX_CHOICES)}
        kept = typed(kept, kinds, where="task")
        return cls(kept["name"], source, num_choices=kept["num_choices"])


@keras.saving.register_keras_serializable("bert_keras")
class FlattenChoices(keras.layers.Layer):
    """Every ending a row of its own: int32 [B, K, S] -> [B*K, S]."""

    def call(self, x: Any) -> Any:
        """Int32 [B, K, S] -> [B*K, S]."""
        return ops.reshape(x, (-1, ops.shape(x)[-1]))


def _from_csv(path: Path) -> Iterator[Choice]:
    """SWAG's columns sent1, sent2, ending0, ending1, ... and label: A is sent1, B is sent2 and the ending.

    A record is one line, as in the official files: where quotes might go on in the next one, two stray ones would make one field
    of all rows between them.
    """
    csv.field_size_limit(sys.maxsize)
    rows = ((line, _fields(text, f"{path}, line {line}")) for line, text in _lines(path))
    first, header = next(rows, (1, []))
    if missing := [name for name in ("sent1", "sent2", "ending0") if name not in header]:
        raise BertKerasError(
            f"{path} has no column {', '.join(missing)}; wanted are sent1, sent2, ending0, ending1, ... and label."
        )
    if repeated := [name for name in header if header.count(name) > 1]:
        raise BertKerasError(
            f"{path}, line {first}: more than one column {repeated[0]!r}; wanted is each name once."
        )
    for line, values in rows:
        if len(values) != len(header):
            raise BertKerasError(
                f"{path}, line {line}: {len(values)} columns; wanted are {len(header)}: {', '.join(header)}."
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
    """The fields of one line of CSV. Raises ValueError on quotes that are not in pairs."""
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise BertKerasError(f"{where}: {error}; wanted are quotes in pairs, within a line.") from error


def _ending_columns(header: list[str]) -> list[str]:
    """ending0, ending1, ... as far as there are such columns."""
    count = next(i for i in range(len(header) + 1) if f"ending{i}" not in header)
    return [f"ending{i}" for i in range(count)]


def _from_jsonl(path: Path) -> Iterator[Choice]:
    """SWAG's "startphrase", "choices" and "answer": A is the whole startphrase, B is the ending.

    A startphrase is sent1 and sent2 in one string, which says not where to cut them.
    """
    for line, text in _lines(path):
        try:
            row = parse_json(text, source=f"{path}, line {line}")
            context, endings = row["startphrase"], row["choices"]
            if not isinstance(endings, list) or not all(
                isinstance(text, str) for text in (context, *endings)
            ):
                raise TypeError("other than text")
        except (KeyError, TypeError) as error:
            raise BertKerasError(
                f'{path}, line {line}: {type(error).__name__} {error}; wanted is {{"startphrase": text, '
                '"choices": [text, ...], "answer": place}}.'
            ) from error
        answer = row.get("answer")
        yield Choice(line, context, tuple(endings), None if answer is None else str(answer))


def _from_tsv(path: Path) -> Iterator[Choice]:
    """CODAH's columns category, prompt, endings and label, without a header; quotes mean nothing."""
    for line, text in _lines(path):
        values = text.split("\t")
        if len(values) < 4:
            raise BertKerasError(
                f"{path}, line {line}: {len(values)} column(s); wanted are category, prompt, endings and label, "
                "separated by tabs."
            )
        yield Choice(line, values[1], tuple(values[2:-1]), values[-1])


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Those that are not blank."""
    return ((number, line) for number, line in numbered_lines(path) if line.strip())


READERS: dict[str, Callable[[Path], Iterator[Choice]]] = {
    ".csv": _from_csv,
    ".jsonl": _from_jsonl,
    ".tsv": _from_tsv,
}
