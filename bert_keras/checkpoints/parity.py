"""Compares a checkpoint here and in the format's own library, on the same random tokens."""

import importlib.util
import pathlib
from typing import Any

import numpy as np

from bert_keras.checkpoints.checkpoint import Checkpoint, Format
from bert_keras.checkpoints.hugging_face import names_in
from bert_keras.checkpoints.keras_hub import keras_hub
from bert_keras.checkpoints.weights import assign
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingPackageError
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_OUTPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)


def check_reference(name: str) -> None:
    """Raises BertKerasError for a format that no library can run, and MissingPackageError if its library is not installed."""
    if name not in _REFERENCES:
        raise BertKerasError(
            f"no library can run a {name} checkpoint; comparison works for {' and '.join(_REFERENCES)}."
        )
    if lacking := [module for module in _PACKAGES[name] if importlib.util.find_spec(module) is None]:
        raise MissingPackageError(
            f"comparing a {name} checkpoint needs {' and '.join(lacking)}; install the parity extra."
        )


def differences(
    checkpoint: Checkpoint, form: Format, folder: pathlib.Path, *, seed: int = 0
) -> dict[str, float]:
    """Output name -> the maximum absolute difference over the tokens that are not padding."""
    features = random_features(checkpoint.config, seed=seed)
    theirs = _REFERENCES[form.name](checkpoint, folder, features)
    ours = _our_outputs(checkpoint, features)
    real = features[INPUT_MASK].astype(bool)
    found = {name: np.abs(ours[name] - reference) for name, reference in theirs.items()}
    return {
        name: float(np.max(values[real] if values.shape[:2] == real.shape else values))
        for name, values in found.items()
    }


def random_features(config: BertConfig, *, seed: int) -> dict[str, np.ndarray]:
    """Three rows of random tokens and types, the second and third padded."""
    random, length = np.random.default_rng(seed), min(24, config.max_length)
    lengths = np.array([length, max(1, length // 2), 1])
    return {
        # RoBERTa gives no position to the padding id, which is below the offset.
        INPUT_WORD_IDS: random.integers(config.position_offset, config.vocab_size, (3, length)).astype(
            "int32"
        ),
        INPUT_MASK: (np.arange(length) < lengths[:, None]).astype("int32"),
        INPUT_TYPE_IDS: random.integers(0, max(1, config.type_vocab_size), (3, length)).astype("int32"),
    }


def _our_outputs(checkpoint: Checkpoint, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from bert_keras.model.encoder import ALL, BertEncoder
    from bert_keras.model.heads import MaskedLMHead, NextSentenceHead, ReplacedTokenHead

    parts = checkpoint.parts
    outputs = tuple(name for name in ALL if "pooler" in parts or name != POOLED_OUTPUT)
    encoder = BertEncoder(checkpoint.config, outputs=outputs)
    heads: dict[str, Any] = {
        "masked_lm": MaskedLMHead(encoder),
        "next_sentence": NextSentenceHead(config=checkpoint.config),
        "replaced_token": ReplacedTokenHead(config=checkpoint.config),
    }
    assign(checkpoint, encoder, **{name: head for name, head in heads.items() if name in parts})
    given = encoder(features)
    rows, length = features[INPUT_WORD_IDS].shape
    everywhere = np.tile(np.arange(length, dtype="int32"), (rows, 1))
    found = {"embeddings": given[EMBEDDING_OUTPUT]}
    found |= {f"block_{i}": states for i, states in enumerate(given[ENCODER_OUTPUTS])}
    found["masked_lm"] = heads["masked_lm"](given[SEQUENCE_OUTPUT], everywhere)
    found["replaced_token"] = heads["replaced_token"](given[SEQUENCE_OUTPUT])
    if "pooler" in parts:
        found[POOLED_OUTPUT] = given[POOLED_OUTPUT]
        found["next_sentence"] = heads["next_sentence"](given[POOLED_OUTPUT])
    return {name: np.asarray(value) for name, value in found.items()}


# model_type -> our head -> the class of transformers that has the head, and its output.
_MASKED_LM = {"masked_lm": ("ForMaskedLM", "logits")}
_LOGITS = {
    "bert": _MASKED_LM | {"next_sentence": ("ForNextSentencePrediction", "logits")},
    "albert": _MASKED_LM | {"next_sentence": ("ForPreTraining", "sop_logits")},
    "electra": _MASKED_LM | {"replaced_token": ("ForPreTraining", "logits")},
    "roberta": _MASKED_LM,
    "distilbert": _MASKED_LM,
    "openai-gpt": {"masked_lm": ("LMHeadModel", "logits")},
}


def _transformers_outputs(
    checkpoint: Checkpoint, folder: pathlib.Path, features: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    import torch
    import transformers

    names = names_in(folder)
    if names.model_type not in _LOGITS:
        raise BertKerasError(
            f"transformers has no model of model_type {names.model_type!r}: none of {', '.join(_LOGITS)} computes this "
            "configuration."
        )
    word_ids, mask, type_ids = (torch.from_numpy(array.astype("int64")) for array in features.values())
    types = {"token_type_ids": type_ids} if checkpoint.config.has_types else {}

    def run(architecture: str) -> Any:
        """The outputs of one class; ignores heads that the checkpoint lacks."""
        model = getattr(transformers, names.model_class + architecture).from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        )
        with torch.no_grad():
            return model.eval()(word_ids, attention_mask=mask, output_hidden_states=True, **types)

    parts, verbosity = checkpoint.parts, transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it reports the heads that the checkpoint lacks
    try:
        outputs = run("Model")
        embedded, *blocks = outputs.hidden_states
        found = {"embeddings": embedded} | {f"block_{i}": states for i, states in enumerate(blocks)}
        if "pooler" in parts and "pooler" in names.table["pooler"]:  # RoBERTa's classifier has its own
            found[POOLED_OUTPUT] = outputs.pooler_output
        for head, (architecture, output) in _LOGITS[names.model_type].items():
            if (head in parts or checkpoint.config.plain_heads) and (
                head != "next_sentence" or "pooler" in parts
            ):
                found[head] = getattr(run(architecture), output)
    finally:
        transformers.logging.set_verbosity(verbosity)
    return {name: value.numpy() for name, value in found.items()}


def _keras_hub_outputs(
    checkpoint: Checkpoint, folder: pathlib.Path, features: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    import keras

    backbone = keras_hub().models.BertBackbone.from_preset(str(folder), dtype="float32")
    layers = {"embeddings": "embeddings_layer_norm"}
    layers |= {f"block_{i}": f"transformer_layer_{i}" for i in range(checkpoint.config.num_layers)}
    layers |= {POOLED_OUTPUT: "pooled_dense"}
    outputs = {name: backbone.get_layer(layer).output for name, layer in layers.items()}
    model = keras.Model(backbone.inputs, outputs)
    inputs = dict(zip(("token_ids", "padding_mask", "segment_ids"), features.values(), strict=True))
    # By name, because Keras flattens a dict in another order.
    return {
        name: np.asarray(value) for name, value in model([inputs[one.name] for one in model.inputs]).items()
    }


_REFERENCES = {"hugging-face": _transformers_outputs, "keras-hub": _keras_hub_outputs}
_PACKAGES = {"hugging-face": ("torch", "transformers"), "keras-hub": ("keras_hub",)}
