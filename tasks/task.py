"""The protocol of a task, in three roles: its data, its problem and its report.

`Data` reads raw examples. `Problem` is the trained and served part: features, labels, model, loss, decoding and signature; an
export needs nothing else. `Report` measures and shows the decoded predictions. A `Task` has all three roles. No method changes
it.
"""

import contextlib
import inspect
import re
import reprlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Self

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, first_names
from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_CHARACTERS,
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_POSITIONS,
    NOT_FINITE,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
    input_limits,
)
from bert_keras.fields import field_types, names_of
from bert_keras.io.json_files import FieldType, checked_fields, one_of
from bert_keras.io.own_code import OURS, name_of
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ClassifierHead, ConcatClassifierHead
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.tasks.data.columns import read_columns
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.data.tables import read_examples
from bert_keras.tasks.report import Report
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer

Features = dict[str, tf.Tensor]
Raw = dict[str, tf.Tensor]

PROBABILITIES, LABEL_NAMES = "probabilities", "label_names"  # decoded outputs [B, C]


class Data(Protocol):
    """The raw examples of one data set.

    names: the data sets of this class on the command line; by default the name of the class
    settings: a dataclass of `bert_keras.fields.setting`s, the task's own: flags of the commands, arguments of its constructor
        and attributes, and keys in task.json. `options` and `kinds` follow from it
    options: the settings that `open` accepts besides the source
    columns: the column in files of each text of `signature`, where it has another name
    quoting: of a .tsv of examples, as `read_table` takes it
    validation_splits: the labelled splits to measure; the first one chooses the best epoch
    defaults: the Hparams of the recipe that differ from the defaults of Hparams
    """

    names: tuple[str, ...]
    settings: type | None = None
    options: tuple[str, ...] = ()
    columns: Mapping[str, str] = {}
    quoting: str | None = None
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

    kind: the class in task.json; by default MODULE:CLASS, which a user gives again to load a run
    name: the data set, one of `names`
    kinds: the types of the settings in task.json
    optional: the settings that task.json leaves out where they are None
    text: the raw strings that serving takes
    label_names: the label of each logit; empty for tasks without labels
    problem_type, score_function: of a text's labels or its score, if they have one: see `Checkpoint`
    classes: the classes of a text that has exactly one of them; else empty
    outputs: the encoder outputs that the model reads
    model_features: the features that the model reads besides the encoder's inputs, [B, ...]; `labels` and `decode` read all
    windowed: True if examples are cut into windows
    joins_windows: True if the loss reads the windows of an example together: a row of a labelled batch is an example with all its
        windows, [B, K, ...], and a label of -1 is none. Everywhere else, a row is a window
    joins_texts: True if an example has several texts, [B, T], and `features` gives each a row, [B * T, S]: the features of a
        labelled batch are then [B, T, S], and so are the model's outputs
    trains: False if there is nothing to learn, only to predict
    pretrained_head: True if pre-training trains the head too; fine-tuning then starts from the checkpoint's head
    head: the name of its head in a checkpoint
    other_layers: the layers of its model with weights, beside the encoder and the head
    architectures: the classes of checkpoints that were trained for it, as in `Checkpoint.architecture`
    answers: the meaning of the numbers that it predicts, where its head alone does not say it
    calibrated: the numbers in `to_json` that `calibrate` chooses
    adjustable: the settings that a user may still change after training, attributes or names in `asked`
    asked: the names in `adjustable` that a user gave
    lists: decoded outputs that are lists, [B, N]: the prefix of their names -> the output that is -1 in padding
    labels_needed: an error's text about texts that `fit` or `evaluate` got without labels
    example_texts: texts for an example request, by the names of `signature`, if the usual text does not fit
    score_bounds: the lowest and the highest score, where the scores of texts have a known range
    measures: the names in `Report.evaluate`
    resources: the tf.Module with the variables that `decode` reads, besides the model's own; None for none
    """

    kind: str
    name: str
    kinds: Mapping[str, FieldType] = {}
    optional: tuple[str, ...] = ()
    text: tuple[str, ...] = ("text",)
    label_names: tuple[str, ...] = ()
    problem_type: str | None = None
    score_function: str | None = None
    classes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = (POOLED_OUTPUT,)
    model_features: tuple[str, ...] = ()
    windowed: bool = False
    joins_windows: bool = False
    joins_texts: bool = False
    trains: bool = True
    pretrained_head: bool = False
    head: str = ""
    other_layers: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    answers: str = ""
    calibrated: tuple[str, ...] = ()
    adjustable: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()
    lists: Mapping[str, str] = {}
    example_texts: Mapping[str, str] = {}
    score_bounds: tuple[float, float] | None = None
    labels_needed: str = "texts were given without labels; give y."
    measures: tuple[str, ...] = ()
    resources: Any = None

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S]. By default the segments are the strings of `text`."""
        return preprocess(*[raw[name] for name in self.text])

    @abstractmethod
    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels, and weights float32, with the leading shape of the logits.

        Weight 0 leaves an example out of the training alone: `evaluate` and an export get every example.
        """
        ...

    def arranger(self, batch_size: int) -> Callable[[Raw], tf.Tensor] | None:
        """A function of raw examples [P], which are cut into batches in their order -> another order, int64 [P]. By default none.

        Raises BertKerasError for batches of a size that the loss cannot learn from.
        """
        return None

    def started_from(self, checkpoint: Checkpoint) -> tuple[Self, Checkpoint]:
        """The problem with the settings that a checkpoint has for it and the user did not give; the checkpoint with the weights.

        By default both as they are.
        """
        return self, checkpoint

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

    def labelled(self, x: Any, y: Any) -> dict[str, np.ndarray]:
        """The columns of raw examples [N] for texts and labels in Python. By default those of `given` and of `targets`."""
        if y is None:
            raise BertKerasError(self.labels_needed)
        columns = self.given(x)
        return {**columns, **self.targets(y, columns)}

    def check_targets(self, preprocess: Preprocessor, columns: Mapping[str, np.ndarray]) -> None:
        """Raises BertKerasError, with the row, for a label that this vocabulary or length cannot express. By default none.

        columns: the results of `given` and `targets`
        """
        return

    def metrics(self) -> list[keras.metrics.Metric]:
        """The Keras metrics that `compile()` takes by default, under weights. By default none."""
        return []

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in self.to_json().items())
        return f"{type(self).__name__}({settings})"

    def keras_metrics(self, given: Any) -> tuple[Any, tuple[str, ...]]:
        """What `compile` gives Keras for a user's metrics, and the names of measures that `evaluate` is to give besides.

        given: metrics as in Keras. Raises BertKerasError for one that cannot read these labels or outputs. By default, the names
        in `measures` are left out, which `evaluate` gives in any case.
        """
        if isinstance(given, list | tuple):
            given = [one for one in given if not (isinstance(one, str) and one in self.measures)]
        return given, ()

    def to_json(self) -> dict[str, Any]:
        """The content of task.json, from which `from_json` restores the task without its data."""
        kept = {"name": self.name, **{name: getattr(self, name) for name in self.kinds}}
        return {name: value for name, value in kept.items() if not (name in self.optional and value is None)}


def check_stride(reader: Any, tokenizer: Tokenizer, *, seq_length: int) -> None:
    """Raises BertKerasError for windows that cannot work: a question that leaves no room, a `doc_stride` over their tokens.

    reader: a Problem, or another object that reads windows. A stride that is its constructor's default fits itself to the
        windows, as every stride does where a question takes room.
    """
    if (question := getattr(reader, "max_query_length", None)) is not None:
        Preprocessor(tokenizer, seq_length=seq_length).window_room(True, 1, question)
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


class Task(Data, Problem, Report, Protocol):
    """One data set with its problem and its report: `Data`, `Problem` and `Report` in one class.

    A subclass outside of this package is a task of its own: `--task MODULE:CLASS` in every command. It must have `measure`,
    `examples`, `labels`, `model` and `evaluate`; every other member has a default.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.__module__.split(".")[0] == OURS:
            return
        if "kind" not in vars(cls):
            cls.kind = name_of(cls)
        cls.name = getattr(cls, "name", cls.__name__)
        cls.names = getattr(cls, "names", (cls.name,))
        if cls.settings is not None:
            cls.options, cls.kinds = names_of(cls.settings), field_types(cls.settings)

    def __init__(self, source: Source | None = None, **settings: Any) -> None:
        """By default keeps the source, and the task's own `settings` as attributes. Raises BertKerasError for a wrong value."""
        kept = vars(self.settings(**settings)) if self.settings is not None else settings
        vars(self).update(kept, source=source)

    def about_data(self) -> str:
        """A line about the training data as it was read; "" for none. By default the columns of the texts, and the labels."""
        labels = f"labels: {first_names(self.label_names)}" if self.label_names else "label: a score"
        return f"text: {', '.join(self.columns.values())}; {labels}" if self.columns else ""

    def inputs(self, path: str, **options: Any) -> Iterator[dict[str, Any]]:
        """Examples to predict by the names of `signature`; other keys are shown beside the prediction.

        path, options: as `read_examples` of data/tables.py takes them. Raises as it does.
        """
        signature = self.signature()
        lists = {name: spec.shape[1] for name, spec in signature.items() if len(spec.shape) > 1}
        options = {"quoting": self.quoting} | options
        return read_examples(path, tuple(signature), lists, self.columns, **options)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, source: Source | None = None, **options: Any) -> Self:
        """The task that a checkpoint's own head was trained for, with its examples in `source`.

        options: those of `open`. By default calls `open` with the first of `names`
        """
        return cls.open(cls.names[0], source, **options)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> Self:
        """Restores the task from the output of `to_json`, with its examples in `source`. By default calls `open`."""
        kinds = {"name": one_of(cls.names), **cls.kinds}
        settings = dict(checked_fields(kept, kinds, where="task", optional=cls.optional))
        return cls.open(settings.pop("name"), source, **settings)


def model_inputs(problem: Problem, features: Features) -> Features:
    """The features that the problem's model reads, without features that only `labels` and `decode` use.

    Raises BertKerasError for a feature that is missing.
    """
    characters = (INPUT_CHARACTERS,) if INPUT_CHARACTERS in features else ()
    wanted = (*ENCODER_INPUTS, *characters, *problem.model_features)
    if missing := [name for name in wanted if name not in features]:
        raise BertKerasError(
            f"{problem.name} has the features {', '.join(features)}, and its model reads {', '.join(missing)} too; return each "
            "from `features`, or correct `model_features`."
        )
    return {name: features[name] for name in wanted}


def with_label_names(
    problem: Problem, answers: Mapping[str, Any], repeat: Callable[..., Any]
) -> dict[str, Any]:
    """Decoded outputs with the names of the columns of "probabilities" as "label_names" [B, C], where labels have names.

    repeat: (names [C], shape) -> the names in each row: `tf.broadcast_to` or `np.broadcast_to`
    """
    if PROBABILITIES not in answers or not problem.label_names:
        return {**answers}
    probabilities = answers[PROBABILITIES]
    shape = tf.shape(probabilities) if tf.is_tensor(probabilities) else probabilities.shape
    return {**answers, LABEL_NAMES: repeat(np.array(problem.label_names, object), shape)}


def checked_inputs(features: Features, config: BertConfig) -> Features:
    """Features from outside, unchanged. Raises InvalidArgumentError when run, with the name, for those out of `input_limits`."""
    found = dict[str, Any]()
    for name, limit in input_limits(config).items():
        inside = tf.reduce_all((features[name] >= 0) & (features[name] < limit))
        found[f"{name} has a number outside of 0 to {limit - 1}"] = inside
    tokens, length = features[INPUT_MASK], tf.shape(features[INPUT_WORD_IDS])[-1]
    found[f"{INPUT_MASK} has a row without a token"] = tf.reduce_all(tf.reduce_max(tokens, axis=-1) > 0)
    found[f"{INPUT_WORD_IDS} has rows of over {config.max_length} tokens"] = length <= config.max_length
    if MASKED_LM_POSITIONS in features:
        at = features[MASKED_LM_POSITIONS]
        found[f"{MASKED_LM_POSITIONS} has a position outside of its row"] = tf.reduce_all(
            (at >= 0) & (at < length)
        )
    checks = [tf.debugging.Assert(holds, [wrong]) for wrong, holds in found.items()]
    with tf.control_dependencies([one for one in checks if one is not None]):  # None if it runs at once
        return {name: tf.identity(value) for name, value in features.items()}


def checked_outputs(outputs: Any) -> Any:
    """The outputs of a model for `decode`, unchanged. Every decoding in graph reads them through it.

    Raises InvalidArgumentError when run, with NOT_FINITE, for NaN and infinite numbers: `decode` would make an answer of them.
    """
    return tf.nest.map_structure(
        lambda one: tf.debugging.check_numerics(one, NOT_FINITE) if one.dtype.is_floating else one, outputs
    )


@contextlib.contextmanager
def graph_errors() -> Iterator[None]:
    """Turns the errors of `checked_inputs` and `checked_outputs` into a BertKerasError."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if found := re.search(r"(?:assertion failed: \[|Summarized data: b')(\w+ has [^\]'\n]*)", str(error)):
            raise BertKerasError(f"{found[1]}; give features that this model reads.") from None
        if NOT_FINITE not in str(error):
            raise
        raise BertKerasError(
            f"{NOT_FINITE}; train it again with a lower learning rate, or compute in float32."
        ) from None


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
    config, dtype = encoder.config, encoder.dtype_policy
    inputs = encoder_inputs(config=config)
    read = encoder(inputs)[POOLINGS[pooling]]
    if pooling == "concat":
        logits = ConcatClassifierHead(num_classes, config=config, dtype=dtype)(read, inputs[INPUT_MASK])
    else:
        logits = ClassifierHead(num_classes, config=config, dtype=dtype)(read)
    return keras.Model(inputs, logits, name="classifier_model")
