"""The protocol of a task, in three roles: its data, its problem and its report.

`Data` reads raw examples. `Problem` is the trained and served part: features, labels, model, loss, decoding and signature; an
export needs nothing else. `Report` measures and shows the decoded predictions. A `Task` has all three roles. No method changes
it.
"""

import inspect
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_MASK,
    MASKED_LM_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.io.json_files import FieldType, checked_fields, one_of
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ClassifierHead, ConcatClassifierHead
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.tasks.data.columns import read_columns
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.metrics import WHISKER, Table, cell, plain
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer

Features = dict[str, tf.Tensor]
Raw = dict[str, tf.Tensor]
Arrays = Mapping[str, np.ndarray]  # decoded predictions or raw examples, [N, ...]

MODEL_INPUTS = (*ENCODER_INPUTS, MASKED_LM_POSITIONS)


class Data(Protocol):
    """The raw examples of one data set.

    names: the data sets of this class on the command line
    options: the settings that `open` accepts besides the source
    columns: the column in files of each text of `signature`, where it has another name
    validation_splits: the labelled splits to measure; the first one chooses the best epoch
    defaults: the Hparams of the recipe that differ from the defaults of Hparams
    """

    names: tuple[str, ...]
    options: tuple[str, ...] = ()
    columns: Mapping[str, str] = {}
    validation_splits: tuple[str, ...] = ("validation",)
    defaults: Mapping[str, Any] = {}

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> Self:
        """The task named `name` with its examples in `source`; None means TensorFlow Datasets.

        By default its constructor takes the source, and the name where the class has several names.
        """
        named = {"name": name} if len(cls.names) > 1 else {}
        return cls(source=source, **named, **options)  # type: ignore[call-arg]

    @abstractmethod
    def examples(self, split: str) -> tf.data.Dataset:
        """Raw examples one at a time: a dict of scalar tensors, or of tensors with one shape in all examples.

        Raises BertKerasError for an unreadable file, with its line, and MissingFileError for a missing one.
        """
        ...

    def check(self, preprocess: Preprocessor, examples: tf.data.Dataset) -> None:
        """Warns about texts in training or validation examples that `features` truncates. The default does nothing."""
        return


class Problem(Protocol):
    """The trained and served part of a task.

    kind: the class in task.json
    name: the data set, one of `names`
    kinds: the types of the settings in task.json
    text: the raw strings that serving takes
    label_names: the label of each logit; empty for tasks without labels
    problem_type: Hugging Face's name for the type of labels of a text, if they have one: see `Checkpoint`
    classes: the classes of a text that has exactly one of them; else empty
    outputs: the encoder outputs that the model reads
    windowed: True if examples are cut into windows
    trains: False if there is nothing to learn, only to predict
    pretrained_head: True if pre-training trains the head too; fine-tuning then starts from the checkpoint's head
    head: the name of its head in a checkpoint
    architectures: the classes of checkpoints that were trained for it, as in `Checkpoint.architecture`
    answers: the meaning of the numbers that it predicts, where its head alone does not say it
    calibrated: the numbers in `to_json` that `calibrate` chooses
    lists: decoded outputs that are lists, [B, N]: the prefix of their names -> the output that is -1 in padding
    example_texts: texts for an example request, by the names of `signature`, if the usual text does not fit
    """

    kind: str
    name: str
    kinds: Mapping[str, FieldType] = {}
    text: tuple[str, ...] = ("text",)
    label_names: tuple[str, ...] = ()
    problem_type: str | None = None
    classes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = (POOLED_OUTPUT,)
    windowed: bool = False
    trains: bool = True
    pretrained_head: bool = False
    head: str = ""
    architectures: tuple[str, ...] = ()
    answers: str = ""
    calibrated: tuple[str, ...] = ()
    lists: Mapping[str, str] = {}
    example_texts: Mapping[str, str] = {}

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S]. By default the segments are the strings of `text`."""
        return preprocess(*[raw[name] for name in self.text])

    @abstractmethod
    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels, and weights float32, with the leading shape of the logits."""
        ...

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raises BertKerasError for a checkpoint whose weights the problem cannot start from. By default takes any."""
        return

    @abstractmethod
    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> outputs."""
        ...

    def loss(self) -> keras.losses.Loss:
        """The weighted loss of labels and outputs. By default the weighted mean of the cross-entropy."""
        return GlobalMean(cross_entropy)

    def decode(self, outputs: Any, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """The served tensors [B, ...], computed in graph. By default those of `decode_features`."""
        return self.decode_features(outputs)

    def decode_features(self, outputs: Any) -> dict[str, tf.Tensor]:
        """The served tensors [B, ...] or [W, ...] for requests of features without text, computed in graph."""
        return {"logits": outputs}

    def signature(self) -> dict[str, tf.TensorSpec]:
        """The raw strings that serving takes. By default one string [B] for each name of `text`."""
        return {name: tf.TensorSpec([None], tf.string, name=name) for name in self.text}

    def given(self, x: Any) -> dict[str, np.ndarray]:
        """The columns of raw examples [N] for texts in Python (tasks/data/columns.py); by default those of `signature`."""
        shapes = {name: len(spec.shape) for name, spec in self.signature().items()}
        return read_columns(x, [*shapes], nested=[name for name, rank in shapes.items() if rank > 1])

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The columns of labels in raw examples for labels in Python. columns: the result of `given`. By default refused."""
        raise BertKerasError(f"{self.name} does not learn from labels; it predicts only.")

    def check_targets(self, preprocess: Preprocessor, columns: Mapping[str, np.ndarray]) -> None:
        """Raises BertKerasError, with the row, for a label that this vocabulary or length cannot express. By default none.

        columns: the results of `given` and `targets`
        """
        return

    def metrics(self) -> list[keras.metrics.Metric]:
        """The Keras metrics that `compile()` takes by default, under weights. By default none."""
        return []

    def to_json(self) -> dict[str, Any]:
        """The content of task.json, from which `from_json` restores the task without its data."""
        return {"name": self.name, **{name: getattr(self, name) for name in self.kinds}}


def check_stride(reader: Any, tokenizer: Tokenizer, *, seq_length: int) -> None:
    """Raises BertKerasError for a `doc_stride` over the tokens of text in a window, which nothing would tell of.

    reader: a Problem, or another object that reads windows. A stride that is its constructor's default fits itself to the
        windows, as every stride does where a question takes room.
    """
    stride = getattr(reader, "doc_stride", None)
    parameter = inspect.signature(type(reader)).parameters.get("doc_stride")
    if stride is None or parameter is None or stride == parameter.default:
        return
    most = seq_length - tokenizer.pair.added(len(getattr(reader, "text", ("text",))))
    if stride > most:
        raise BertKerasError(
            f"doc_stride is {stride} and a window of seq_length {seq_length} has room for {most} tokens of text, so no window "
            f"can start that far after another; give {most} or less, such as {max(most // 2, 1)}, so that windows overlap."
        )


class Report(Protocol):
    """Measures and tables of decoded predictions.

    measure: the name in `evaluate` that chooses the best epoch
    """

    measure: str

    @abstractmethod
    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields (name, value) from the outputs of `decode` and the raw examples."""
        ...

    def calibrate(self, predictions: Arrays, raw: Arrays) -> tuple[Self, Arrays]:
        """Chooses numbers, such as a threshold, on a dev split; returns a task with these numbers, and its predictions.

        By default it returns this task and the predictions unchanged.
        """
        return self, predictions

    def degenerate(self, predictions: Arrays, raw: Arrays) -> str | None:
        """The reason why a run did not learn, from the predictions of a labelled split; None if it learned.

        By default a measure near 0.
        """
        value = dict(self.evaluate(predictions, raw))[self.measure]
        return None if value > WHISKER else f"{self.measure} {value:.4f}"

    def baseline(self, raw: Arrays) -> float:
        """The measure of the most common answer of a labelled split, given to all its examples.

        By default 0, as for entities: the most common tag is outside of them.
        """
        return 0.0

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """The decoded arrays [...] of one example as plain JSON values, without padding."""
        return {name: plain(value) for name, value in decoded.items()}

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """One row of a printed table, from an example's texts (by the names of `signature`) and its `record`."""
        cells = {**example, **record}
        return {name: cell(value) for name, value in cells.items()}

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """Yields tables to print after the measures. By default none."""
        return iter(())


class Task(Data, Problem, Report, Protocol):
    """One data set with its problem and its report."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, source: Source | None = None, **options: Any) -> Self:
        """The task that a checkpoint's own head was trained for, with its examples in `source`.

        options: those of `open`. By default calls `open` with the first of `names`
        """
        return cls.open(cls.names[0], source, **options)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> Self:
        """Restores the task from the output of `to_json`, with its examples in `source`. By default calls `open`."""
        settings = dict(checked_fields(kept, {"name": one_of(cls.names), **cls.kinds}, where="task"))
        return cls.open(settings.pop("name"), source, **settings)


def model_inputs(features: Features) -> Features:
    """The features that a model reads, without features that only `labels` and `decode` use."""
    return {name: features[name] for name in MODEL_INPUTS if name in features}


def checked_labelled(known: np.ndarray, name: str) -> np.ndarray:
    """The mask of labelled examples, bool [N], unchanged. name: the name of the task.

    Raises BertKerasError if no example is labelled.
    """
    if not known.any():
        raise BertKerasError(f"none of the {len(known)} {name} examples is labelled; give a labelled split.")
    return known


# Input of a classifier -> the encoder output that it needs.
POOLINGS = {"pooled": POOLED_OUTPUT, "concat": SEQUENCE_OUTPUT}


def classifier_model(encoder: BertEncoder, num_classes: int, *, pooling: str = "pooled") -> keras.Model:
    """Features -> logits float32 [B, C].

    pooling: "pooled" reads the pooled output; "concat" reads the states at all real positions, as in ConcatClassifierHead
    """
    inputs, config, dtype = encoder_inputs(), encoder.config, encoder.dtype_policy
    read = encoder(inputs)[POOLINGS[pooling]]
    if pooling == "concat":
        logits = ConcatClassifierHead(num_classes, config=config, dtype=dtype)(read, inputs[INPUT_MASK])
    else:
        logits = ClassifierHead(num_classes, config=config, dtype=dtype)(read)
    return keras.Model(inputs, logits, name="classifier_model")
