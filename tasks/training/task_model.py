"""The Keras model of a task: an encoder and its heads, and the layers of it that do not train.

In: a Problem, the encoder's config, the settings of a BiLSTM on frozen features. Out: the model; its encoder, heads and frozen
layers.
"""

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, listed
from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.feature_bilstm import OUTPUTS, FeatureEncoder, StoredVectors
from bert_keras.model.layer_choices import places_of
from bert_keras.tasks.task import Problem
from bert_keras.tasks.training.task_padding import leave_out_padding

# Checkpoints may lack them: pre-training with only the masked LM trains no pooler, and a BiLSTM is added later.
NEW_PARTS = ("pooler", "bilstm")


def encoder_of(model: keras.Model) -> BertEncoder:
    """The only BertEncoder in a task's model."""
    return next(layer for layer in model.layers if isinstance(layer, BertEncoder))


def heads_of(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers of a task's model that have weights and are not the encoder, by name."""
    return {
        layer.name: layer for layer in model.layers if layer.weights and not isinstance(layer, BertEncoder)
    }


def network_of(
    problem: Problem, config: BertConfig, features: Mapping[str, Any] | None = None, *, dtype: Any = None
) -> tuple[BertEncoder, keras.Model]:
    """An encoder with random weights, and the problem's model on it.

    features: the result of `Hparams.features`, for a BiLSTM on the frozen encoder
    dtype: a dtype policy of Keras or its name; None takes the global policy

    Raises BertKerasError for a problem that cannot be learned from features, and for layers that the encoder lacks.
    """
    outputs = problem.outputs if features is None else OUTPUTS
    encoder = BertEncoder(config, outputs=outputs, dtype=dtype)
    leave_out_padding(encoder)
    if features is None:
        return encoder, problem.model(encoder)
    check_features(problem, config, features)
    stand_in: Any = FeatureEncoder(encoder, **features)
    return encoder, problem.model(stand_in)


def network_on_vectors(
    problem: Problem, config: BertConfig, features: Mapping[str, Any], *, dtype: Any = None
) -> keras.Model:
    """The problem's model on a BiLSTM without an encoder, for stored vectors. Arguments and errors as in `network_of`."""
    check_features(problem, config, features)
    stand_in: Any = FeatureEncoder(config, dtype=dtype, **features)
    return problem.model(stand_in)


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
    nested = model._flatten_layers(include_self=False)
    return {
        layer.path or layer.name: layer
        for layer in sorted(nested, key=lambda one: (one.path or "").count("/"))
    }


def frozen_layers(model: keras.Model) -> list[str]:
    """The paths of the outermost layers of a task's model that do not train. A pooler that no output reads never trains.

    Of an encoder with LoRA none: a file has its merged kernels, which train where it is loaded.
    """
    frozen: list[str] = []
    encoder = encoder_of(model)
    left_out = [encoder.pooler] if POOLED_OUTPUT not in encoder.outputs_wanted else []
    if encoder.lora_enabled:
        left_out = [*encoder._flatten_layers()]
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
        raise BertKerasError(f"the model has no layer {unknown[0]!r} to freeze; it has {listed(layers)}.")
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
