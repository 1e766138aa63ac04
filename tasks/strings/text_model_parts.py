"""Parts of a TextModel: checks of the arguments of `compile` and `fit`, the traced prediction, files that `load` reads."""

import os
import pathlib
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.weights import check_weights
from bert_keras.cli.console import shows_bars
from bert_keras.errors import BertKerasError, MissingFileError, TakenError
from bert_keras.features import NOT_FINITE
from bert_keras.fields import field_types
from bert_keras.io.files import atomic_file
from bert_keras.io.folders import atomic_folder
from bert_keras.io.json_files import OBJECT, TEXT, checked_fields, list_of, one_of
from bert_keras.io.other_names import AnswersOtherNames
from bert_keras.io.paths import to_path
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.feature_bilstm import bilstm_of
from bert_keras.tasks.batches import predictor
from bert_keras.tasks.frozen.row_vectors import on_vectors
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.embedding import PROMPT, Embedding
from bert_keras.tasks.runs.notebook import show_run
from bert_keras.tasks.runs.run_folder import GIVEN_TASK, KERAS, save_run
from bert_keras.tasks.runs.task_types import TASKS, type_of_kind
from bert_keras.tasks.task import Problem, Raw, Task, checked_outputs, graph_errors, model_inputs
from bert_keras.tasks.training.task_model import (
    OPTIMIZER_SETTINGS,
    check_saves,
    encoder_of,
    frozen_layers,
    heads_of,
)
from bert_keras.text.preprocessing import TRUNCATION, Preprocessor

NO_VOCABULARY = (
    "the model has no vocabulary: clone_model and from_config copy only its configuration; set preprocess to that of the first "
    "model."
)
NO_THRESHOLD = "{} has no threshold to choose; question_answerer(..., unanswerable=True) has one."
STEPS_UNKNOWN = (
    "train_on_batch() does not know the number of steps, which BERT's schedule needs; compile with an optimizer, for example "
    "compile(bert_keras.AdamW(2e-5)), or call fit()."
)


class NoVocabularyError(BertKerasError, AttributeError):
    """An AttributeError too, since Keras reads an attribute, where there is one, before it sets it."""


class Described(AnswersOtherNames):
    """The parts of a TextModel, and what Python and TensorFlow ask it about itself."""

    @property
    def preprocess(self: Any) -> Any:
        """The text processing. Raises BertKerasError in a copy by `clone_model` or `from_config` until it is set."""
        if self._preprocess is None:
            raise NoVocabularyError(NO_VOCABULARY)
        return self._preprocess

    @preprocess.setter
    def preprocess(self: Any, preprocess: Preprocessor | None) -> None:
        self._preprocess = preprocess

    @property
    def labels(self: Any) -> tuple[str, ...]:
        """The name of each logit, and of each column of "probabilities", in this order; empty where they have none."""
        return tuple(self.problem.label_names)

    @property
    def layers(self: Any) -> list[keras.layers.Layer]:
        """The layers of the network."""
        return self.network.layers

    @property
    def encoder(self: Any) -> BertEncoder:
        """The encoder inside the network."""
        return encoder_of(self)

    def __repr__(self: Any) -> str:
        config, read = self.encoder.config, self._preprocess
        length = f"up to {read.seq_length} tokens" if read else "no vocabulary"
        return f"<TextModel {self.problem!r}, {config.num_layers} layers of {config.hidden_size}, {length}>"

    def _repr_html_(self: Any) -> str | None:
        if self._preprocess is None:  # the text of `repr` says so
            return None
        history = getattr(self, "history", None)  # Keras sets it in `fit`
        measures = {name: values[-1] for name, values in history.history.items()} if history else {}
        return show_run(self.as_run(), measures, title="TextModel", measured="the last epoch of fit")

    @property
    def _default_save_signature(self: Any) -> Any:
        """The signature that `tf.saved_model.save` writes if it gets none: texts [B] by name -> the predictions by name."""
        problem, preprocess = self.problem, self.preprocess

        def serving_default(raw: Raw) -> Raw:
            features = problem.features(preprocess, raw)
            outputs = checked_outputs(self.network(model_inputs(problem, features), training=False))
            return problem.decode(outputs, features, raw)

        return tf.function(serving_default, autograph=False, input_signature=[problem.signature()])

    def save_weights(self: Any, filepath: Any, *args: Any, **options: Any) -> None:
        """`keras.Model.save_weights`. Raises BertKerasError for weights that are NaN or infinite."""
        check_weights(self.weights, where=f", to be written to {filepath},")
        keras.Model.save_weights(self, filepath, *args, **options)

    def load_weights(self: Any, filepath: Any, *args: Any, **options: Any) -> None:
        """`keras.Model.load_weights`. Raises BertKerasError for weights that are NaN or infinite."""
        keras.Model.load_weights(self, filepath, *args, **options)
        check_weights(self.weights, where=f" in {filepath}")


def check_callbacks(callbacks: Any) -> None:
    """Raises BertKerasError for a ModelCheckpoint that would fail at the end of its first epoch."""
    for callback in keras.tree.flatten(callbacks):
        whole = isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_weights_only
        if whole and callback.filepath.endswith(".h5"):
            raise BertKerasError(
                f"ModelCheckpoint writes {callback.filepath}, and a TextModel is saved as .keras; give such a name, "
                "or .weights.h5 with save_weights_only=True."
            )


def choose_modes(callbacks: Any, measures: Sequence[str]) -> None:
    """Has callbacks with mode="auto" take a higher value of these measures for better, which Keras cannot tell by itself."""
    watching = (
        *(keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau),
        keras.callbacks.ModelCheckpoint,
    )
    for callback in keras.tree.flatten(callbacks):
        of_measure = isinstance(callback, watching) and callback.monitor in {f"val_{one}" for one in measures}
        if of_measure and callback.mode == "auto":
            callback.mode = "max"


def read_metrics(problem: Problem, given: Any) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    """`keras_metrics` of a problem, and the names in `given` that only its `evaluate` measures; None for no metrics."""
    if given is None:
        return None, (), ()
    made, names = problem.keras_metrics(given)
    shown = {getattr(one, "name", one) for one in (*keras.tree.flatten(made), *problem.metrics())}
    asked = (one for one in keras.tree.flatten(given) if isinstance(one, str) and one in problem.measures)
    return made, names, tuple(dict.fromkeys([*names, *(one for one in asked if one not in shown)]))


def warn_of_unmeasured(names: Sequence[str]) -> None:
    """Warns of metrics that only `evaluate` measures, in a `fit` without validation data."""
    if names:
        warnings.warn(
            f"{', '.join(names)}: measured on validation data alone; give validation_data or validation_split, or call evaluate",
            stacklevel=3,  # of the line that calls `fit`
        )


def join_metrics(metrics: Any, weighted_metrics: Any) -> list[Any]:
    """Both lists of metrics as one; a metric in `metrics` replaces one of the same name."""

    def name_of(metric: Any) -> str:
        name = metric if isinstance(metric, str) else getattr(metric, "name", getattr(metric, "__name__", ""))
        return "accuracy" if name == "acc" else name

    first, second = (
        [metric for metric in keras.tree.flatten(given) if metric is not None]
        for given in (metrics, weighted_metrics)
    )
    return first + [metric for metric in second if name_of(metric) not in {*map(name_of, first)}]


def check_settings(settings: Mapping[str, Any], optimizer: Any) -> None:
    """Raises BertKerasError for unknown settings, and for settings beside an optimizer."""
    if unknown := [name for name in settings if name not in OPTIMIZER_SETTINGS]:
        raise BertKerasError(
            f"compile() has no setting {unknown[0]!r}; BERT's optimizer has {', '.join(OPTIMIZER_SETTINGS)}."
        )
    if settings and optimizer is not None:
        raise BertKerasError(
            f"{', '.join(settings)} applies to BERT's own optimizer; give the optimizer its settings, or leave it out."
        )


class TracedPrediction:
    """The prediction of a TextModel, and the objects that it read: int8 and LoRA replace variables.

    A plain object: Keras would track the variables of a list.
    """

    def __init__(self, model: Any) -> None:
        network = model.network if model.vectors is None else on_vectors(model, model.vectors)
        self._read, self.call = _list_read(model), predictor(model.problem, model.preprocess, network)

    def is_outdated(self, model: Any) -> bool:
        """True after a change of what the prediction read."""
        read = _list_read(model)
        return len(read) != len(self._read) or any(a is not b for a, b in zip(read, self._read, strict=True))


def _list_read(model: Any) -> list[Any]:
    parts = [model.problem, model.preprocess, model.vectors, *model.network.variables]
    return [*parts, *vars(model.problem).values(), *vars(model.preprocess).values()]


def with_prompt(problem: Problem, examples: Any, name: str) -> Any:
    """Raw examples, a data set or columns [N], with the text of a prompt. Raises BertKerasError for a problem without it."""
    if not isinstance(problem, Embedding):
        raise BertKerasError(f"{problem.name} has no prompts; leave prompt out.")
    text = problem.find_prompt(name)
    if isinstance(examples, tf.data.Dataset):
        return examples.map(lambda raw: raw | {PROMPT: tf.constant(text)})
    return examples | {PROMPT: np.full(len(examples[problem.text[0]]), text.encode(), object)}


def decode_strings(values: np.ndarray) -> np.ndarray:
    """Byte strings as str."""
    if values.dtype != object:
        return values
    decoded = [text.decode("utf-8", "replace") for text in values.ravel().tolist()]
    return np.array(decoded, object).reshape(values.shape)


def check_measures(model: Any, logs: Mapping[str, Any]) -> None:
    """Raises BertKerasError for a loss that is not finite, and for one of nothing: the mean over no weight is not 0."""
    if any(
        one.name == "loss" and not float(tf.convert_to_tensor(getattr(one, "count", 1)))
        for one in model.metrics
    ):
        raise BertKerasError(
            "no label has a weight over 0, so nothing was measured; give other labels or weights."
        )
    if not np.isfinite(loss := logs.get("loss", 0.0)):
        raise BertKerasError(f"the loss is {loss}: {NOT_FINITE}; train it again with a lower learning rate.")


def checked_logits(outputs: Any) -> Any:
    """Arrays of a model's outputs, unchanged. Raises BertKerasError for numbers that are not finite."""
    with graph_errors():
        checked_outputs(keras.tree.map_structure(tf.convert_to_tensor, outputs))
    return outputs


def choose_verbosity(verbose: Any) -> Any:
    """Keras' "auto" with lines in place of a bar where no bar can be drawn: Keras fills logs with control characters."""
    if verbose != "auto":
        return verbose
    return 1 if shows_bars(sys.stdout) else 2


# -----------------------------------------------------------------------------------------------------------
# Files


def save_model(
    model: Any,
    filepath: Any,
    *,
    overwrite: bool | None,
    zipped: bool | None,
    write: Callable[..., None],
    **others: Any,
) -> None:
    """Writes a `.keras` file, or a run folder for a path without a suffix. Arguments and errors: those of `TextModel.save`.

    write: Keras' own `save` of the model
    """
    if others:
        raise BertKerasError(
            f"save() has no argument {next(iter(others))!r}; to leave the optimizer's state out, call compile() before it."
        )
    path = to_path(filepath)
    if path.suffix == KERAS:
        if not path.parent.is_dir():
            raise MissingFileError(f"there is no folder {path.parent} for {path.name}; make it first.")
        _write_file(model, path, overwrite=overwrite is not False, zipped=zipped, write=write)
        return
    if path.suffix:
        raise BertKerasError(f"{path} ends in {path.suffix}; give a name that ends in .keras, or a folder.")
    if "://" in os.fspath(filepath):
        raise BertKerasError(
            f"a run of {model.problem.kind} cannot be written to {filepath}; give a .keras file."
        )
    bilstm = bilstm_of(model.network)
    known = {*checkpoints.HEADS, bilstm and bilstm.name, *model.problem.other_layers}
    own = {*heads_of(model.network)} - known
    if own and TASKS.get(model.problem.kind) is type(model.problem):
        raise BertKerasError(
            f"the network has layers of its own ({', '.join(sorted(own))}), and a run folder holds only an encoder and the "
            "head of its problem; give a .keras file, or use export()."
        )
    check_saves(model.network)
    if overwrite and path.is_dir() and any(path.iterdir()):
        raise TakenError(
            f"{path} is there already, and overwrite applies only to .keras files; remove the folder first, or give another."
        )
    with atomic_folder(path) as new:
        frozen = frozen_layers(model.network)
        save_run(new, model.problem, model.preprocess, model.network, frozen=frozen)


def _write_file(
    model: Any, path: pathlib.Path, *, overwrite: bool, zipped: bool | None, write: Callable[..., None]
) -> None:
    if not overwrite and path.exists():
        raise TakenError(f"{path} is there already; give another name, or overwrite=True.")
    check_weights(model.weights, where=f", to be written to {path},")
    if zipped is False:  # a folder, which Keras writes in place
        write(path, overwrite=overwrite, zipped=zipped)
        return
    with atomic_file(path) as temporary:
        if time.localtime().tm_year >= 1980:
            write(temporary, zipped=zipped)
            return
        # Zip files know no earlier date, which Keras' own zip would have.
        unpacked = temporary.with_name("unpacked")
        write(unpacked, zipped=False)
        with zipfile.ZipFile(temporary, "w", strict_timestamps=False) as archive:
            for file in sorted(unpacked.rglob("*")):
                archive.write(file, file.relative_to(unpacked))


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a TextModel, each field of its kind. Raises BertKerasError for a field that is missing or wrong."""
    kinds = {
        "problem": OBJECT,
        "seq_length": field_types(Hparams)["seq_length"],
        "truncation": one_of(TRUNCATION),
        "network": OBJECT,
        "frozen": list_of(TEXT),
        "name": TEXT,
    }
    config = checked_fields(config, kinds, where="config.json of the .keras file", others=True)
    checked_fields(config["problem"], {"kind": TEXT, "task": OBJECT}, where="its problem")
    return config


def check_logits(problem: Problem, network: keras.Model) -> None:
    """Raises BertKerasError for a network with more or fewer logits than its problem has labels."""
    wanted = len(problem.label_names) or (1 if problem.kind == TextClassification.kind else None)
    if wanted is not None and (found := network.output_shape[-1]) != wanted:
        raise BertKerasError(
            f"the network has {found} logits and its problem {len(problem.label_names)} labels "
            f"({', '.join(problem.label_names[:4]) or 'a score'}); they belong to different models."
        )


def load_problem(kept: Mapping[str, Any]) -> Task:
    """The problem in the config of a `.keras` file. Raises BertKerasError for an unknown kind and for wrong settings."""
    given = keras.saving.get_registered_object(GIVEN_TASK)
    return type_of_kind(kept["kind"], given, where="the model").from_json(kept["task"])
