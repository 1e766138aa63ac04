"""The Keras model of a task: an encoder and its heads, the layers that do not train, the padding, and BERT's optimizer.

In: a Problem, the encoder's config, Hparams. Out: the model, its parts, its optimizer, and the file of the weights that are not
an encoder's.
"""

import contextlib
import gc
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import safetensors
import safetensors.numpy
import tensorflow as tf

from bert_keras.checkpoints.weights import (
    check_weights,
    named_variables,
    plain_paths,
    refuse_not_finite,
    weights_of,
)
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, first_names
from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.io.files import atomic_file
from bert_keras.model.choices import places_of
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.encoders import make_encoder
from bert_keras.model.feature_bilstm import OUTPUTS, FeatureEncoder, StoredVectors
from bert_keras.optimization.optimizers import AdamW
from bert_keras.optimization.schedules import SCHEDULES
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.task import Problem

# Checkpoints may lack them: pre-training with only the masked LM trains no pooler, and a BiLSTM is added later.
NEW_PARTS = ("pooler", "bilstm")


class Ensemble(keras.Model):
    """The mean of several models' outputs."""

    def __init__(self, models: Sequence[keras.Model]) -> None:
        super().__init__(name="ensemble")
        self.members = list(models)
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = [member(inputs, training=training) for member in self.members]
        return keras.tree.map_structure(lambda *parts: sum(parts) / len(parts), *outputs)


def members_of(model: keras.Model) -> list[keras.Model]:
    """The models of an ensemble, or the model alone."""
    return model.members if isinstance(model, Ensemble) else [model]


def encoder_of(model: keras.Model) -> BertEncoder:
    """The only BertEncoder in a task's model. Raises BertKerasError if there is none, or if it is inside another layer."""
    found = next((layer for layer in model.layers if isinstance(layer, BertEncoder)), None)
    if found is None:
        raise BertKerasError(
            f"the model has no encoder among its layers, {first_names([layer.name for layer in model.layers])}; call the "
            "BertEncoder itself, as `keras.Model(inputs, head(encoder(inputs)))` does."
        )
    return found


def heads_of(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers of a task's model that have weights and are not the encoder, by name: see `plain_paths`."""
    layers = [layer for layer in model.layers if layer.weights and not isinstance(layer, BertEncoder)]
    names = plain_paths([layer.name for layer in layers], layers)
    return {names[layer.name]: layer for layer in layers}


def check_saves(model: keras.Model) -> None:
    """Raises BertKerasError for a task's model whose weights or configuration no file can hold: call it before a training."""
    heads = heads_of(model)
    if has_encoder(model):
        encoder = encoder_of(model)
        encoder.config.to_hugging_face()
        collected = named_variables(encoder, heads)
    else:  # a model on stored vectors
        collected = paths_of(heads)
    saved = {id(variable) for variable in collected.values()}
    if lost := [
        one.path for one in model.weights if id(one) not in saved and not one.name.startswith("lora_")
    ]:
        raise BertKerasError(
            f"the model has weights outside of its layers, {first_names(lost, 4)}, and a run holds those of layers; make them in "
            "a keras.layers.Layer."
        )


def network_of(
    problem: Problem,
    config: BertConfig,
    features: Mapping[str, Any] | None = None,
    *,
    dtype: Any = None,
    more: Sequence[str] = (),
) -> tuple[BertEncoder, keras.Model]:
    """An encoder with random weights, and the problem's model on it.

    features: the result of `Hparams.features`, for a BiLSTM on the frozen encoder
    dtype: a dtype policy of Keras or its name; None takes the global policy
    more: outputs of the encoder beside those that the problem reads

    Raises BertKerasError for a problem that cannot be learned from features, for layers that the encoder lacks, and as
    `checked_model`.
    """
    outputs = OUTPUTS if features is not None else tuple(dict.fromkeys((*problem.outputs, *more)))
    encoder: BertEncoder = make_encoder(config, outputs=outputs, dtype=dtype)
    leave_out_padding(encoder)
    if features is None:
        return encoder, checked_model(problem, encoder)
    check_features(problem, config, features)
    stand_in: Any = FeatureEncoder(encoder, **features)
    return encoder, checked_model(problem, stand_in)


def checked_model(problem: Problem, encoder: Any) -> keras.Model:
    """The problem's model. Raises BertKerasError unless its inputs are the encoder's and those in `model_features`."""
    model = problem.model(encoder)
    names = {*model.input} if isinstance(model.input, Mapping) else {one.name for one in model.inputs}
    inputs = config_of(model).inputs
    own = sorted(names - {*inputs})
    if own != sorted(problem.model_features):
        raise BertKerasError(
            f"the model of {problem.name} has the inputs {first_names([*inputs, *own])} and model_features is "
            f"{problem.model_features}; give model_features = {tuple(own)}."
        )
    return model


def has_encoder(model: keras.Model) -> bool:
    """False for a model on stored vectors."""
    return any(isinstance(layer, BertEncoder) for layer in model.layers)


def config_of(model: keras.Model) -> BertConfig:
    """The encoder's config, also of a model on stored vectors."""
    return next(layer for layer in model.layers if isinstance(layer, BertEncoder | StoredVectors)).config


def check_features(problem: Problem, config: BertConfig, features: Mapping[str, Any]) -> None:
    """Raises BertKerasError for a problem that cannot be learned from features, and for layers that the encoder lacks."""
    places_of(features["feature_layers"], num_layers=config.num_layers)
    if problem.pretrained_head or not problem.trains:
        raise BertKerasError(
            f"{problem.name} predicts with the checkpoint's own head, so feature_layers does not apply; leave it out."
        )
    if others := sorted({*problem.outputs} - {SEQUENCE_OUTPUT, POOLED_OUTPUT}):
        raise BertKerasError(
            f"{problem.name} reads {', '.join(others)}, and feature_layers gives {SEQUENCE_OUTPUT} and {POOLED_OUTPUT}; leave "
            "feature_layers out."
        )


def _layers_by_path(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """All layers of a task's model, nested ones too, from the outside in."""
    nested = [*model._flatten_layers(include_self=False)]
    plain = plain_paths([layer.path or layer.name for layer in nested], nested)
    return {
        plain[layer.path or layer.name]: layer
        for layer in sorted(nested, key=lambda one: (one.path or "").count("/"))
    }


def frozen_layers(model: keras.Model) -> list[str]:
    """The paths of the outermost layers of a task's model that do not train. A pooler that no output reads never trains.

    Of an encoder with LoRA none: a file has its merged kernels, which train where it is loaded.
    """
    frozen, encoder = list[str](), encoder_of(model)
    if encoder.lora_enabled:
        left_out = [*encoder._flatten_layers()]
    else:
        left_out = [encoder.pooler] if POOLED_OUTPUT not in encoder.outputs_wanted else []
    for path, layer in _layers_by_path(model).items():
        inside = any(path.startswith(f"{outer}/") for outer in frozen)
        skipped = inside or any(layer is one for one in left_out)
        if layer.weights and not layer.trainable and not skipped:
            frozen.append(path)
    return frozen


def freeze(model: keras.Model, paths: Sequence[str]) -> None:
    """Makes layers untrainable, by the paths of `frozen_layers`. Raises BertKerasError for a layer that the model lacks."""
    layers = _layers_by_path(model)
    if unknown := [path for path in paths if path not in layers]:
        raise BertKerasError(
            f"the model has no layer {unknown[0]!r} to freeze; it has {first_names(layers)}."
        )
    for path in paths:
        layers[path].trainable = False


def free_memory() -> None:
    """Releases the models and graphs of earlier runs."""
    keras.utils.clear_session()
    gc.collect()


def check_sizes(config: BertConfig, *, vocab_size: int, seq_length: int) -> None:
    """Raises BertKerasError if the encoder's embeddings have too few rows for the tokens or positions."""
    if vocab_size > config.vocab_size:
        raise BertKerasError(
            f"the vocabulary has {vocab_size} tokens and the encoder {config.vocab_size} embedding rows; "
            "give the vocabulary that the checkpoint was trained with."
        )
    if seq_length > config.max_length:
        raise BertKerasError(
            f"seq_length is {seq_length} and the encoder has {config.max_length} positions; "
            f"give seq_length {config.max_length} or less."
        )


def leave_out_padding(encoder: BertEncoder, *, jit_compile: bool = False) -> None:
    """Has an encoder leave out padding, which no task reads, unless XLA compiles it, on a TPU or by `jit_compile`."""
    on_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    encoder.unpadded = keras.backend.backend() == "tensorflow" and not (jit_compile or on_tpu)


@contextlib.contextmanager
def with_padding(model: keras.Model) -> Iterator[None]:
    """Within it, the encoders of a model compute the rows of padding too: rows of one number for XLA and other runtimes."""
    encoders = [layer for layer in model._flatten_layers() if isinstance(layer, BertEncoder)]
    without = [encoder for encoder in encoders if encoder.unpadded]
    for encoder in without:
        encoder.unpadded = False
    try:
        yield
    finally:
        for encoder in without:
            encoder.unpadded = True


def start_at_scores(model: keras.Model, scores: np.ndarray) -> bool:
    """Starts the head of a regression at the mean and the deviation of its scores, [N]; True if it did.

    A new head answers about 0. Steps of 5e-5 would need thousands of them to reach scores from 6 to 60, and a loss of squares of
    60 teaches nothing else before. A head whose bias is not 0 was trained, and stays. NaN is a withheld score.
    """
    known = scores[np.isfinite(scores)]
    denses = [head.dense for head in heads_of(model).values() if hasattr(head, "dense")]
    if not len(known) or len(denses) != 1 or np.asarray(denses[0].bias).any():
        return False
    denses[0].bias.assign(np.full(1, known.mean()))
    # Where the deviation is small, one step would change a kernel of that size too much.
    denses[0].kernel.assign(denses[0].kernel * max(1.0, float(known.std())))
    return True


# The fields of Hparams that describe the optimizer and its schedule.
OPTIMIZER_SETTINGS = (
    "learning_rate",
    "warmup_proportion",
    "weight_decay",
    "clip_norm",
    "bias_correction",
    "layer_decay",
    "schedule",
)


def optimizer_of(hparams: Hparams, *, total_steps: int) -> AdamW:
    """AdamW whose learning rate rises in the warm-up and falls to 0 at `total_steps`."""
    schedule = SCHEDULES[hparams.schedule](
        hparams.learning_rate,
        total_steps=total_steps,
        warmup_steps=int(total_steps * hparams.warmup_proportion),
    )
    return AdamW(
        schedule,
        weight_decay=hparams.weight_decay,
        clip_norm=hparams.clip_norm,
        bias_correction=hparams.bias_correction,
        layer_decay=hparams.layer_decay,
        gradual=hparams.unfreeze == "gradual",
    )


def paths_of(layers: Mapping[str, keras.layers.Layer]) -> dict[str, keras.Variable]:
    """The weights of layers, by name, by their paths: "classifier/dense/kernel"."""
    return {path: one for name, layer in layers.items() for path, one in weights_of(layer, name).items()}


def write_weights(path: pathlib.Path, variables: Mapping[str, keras.Variable]) -> None:
    """Writes variables by name. Raises BertKerasError for numbers that are not finite, OSError if the disk is full.

    An earlier file stays.
    """
    check_weights(variables.values(), where=f", to be written to {path},")
    with atomic_file(path) as temporary:
        safetensors.numpy.save_file(
            {name: np.asarray(variable) for name, variable in variables.items()}, temporary
        )


def read_weights(path: pathlib.Path, variables: Mapping[str, keras.Variable], *, wanted_by: str) -> None:
    """Assigns a file's values to variables by name.

    wanted_by: the file, named in errors, that says which variables there are

    Raises BertKerasError for a damaged file, and for a variable of another shape, without a value or with values that are not
    finite.
    """
    try:
        weights = safetensors.numpy.load_file(path)
    except safetensors.SafetensorError as error:
        raise BertKerasError(f"{path} is truncated or not a safetensors file: {error}.") from error
    for name, variable in variables.items():
        found = weights.get(name)
        if found is None or found.shape != tuple(variable.shape):
            raise BertKerasError(
                f"{path} has {name} of shape {None if found is None else list(found.shape)}; "
                f"{wanted_by} expects {list(variable.shape)}."
            )
        refuse_not_finite(found, named=f"{path}: {name}")
    for name, variable in variables.items():
        variable.assign(weights[name])
