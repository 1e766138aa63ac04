"""Second implementations for the tensor column: the weights both sides get, and how each side takes them.

In: a BertConfig and a seed. Out: weights under Hugging Face's names, ours and theirs with those weights, and
their outputs under our names. Heavy libraries are imported where they are used, so that this file also
serves a process without TensorFlow.
"""

import dataclasses
import pathlib

import numpy as np

from bert_keras.config import BertConfig
from bert_keras.features import (
    ATTENTION_PROBABILITIES,
    EMBEDDING_OUTPUT,
    ENCODER_OUTPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead, NextSentenceHead

GOLDEN = pathlib.Path(__file__).parent / "golden" / "encoder.npz"
GOLDEN_CONFIG = BertConfig(
    vocab_size=67, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, max_positions=16
)
WEIGHTS_SEED = 20181011

EVERY_OUTPUT = (SEQUENCE_OUTPUT, POOLED_OUTPUT, ENCODER_OUTPUTS, EMBEDDING_OUTPUT, ATTENTION_PROBABILITIES)
MLM_LOGITS, NSP_LOGITS = "mlm_logits", "nsp_logits"


def random_features(config: BertConfig, *, seed: int, batch: int, length: int) -> dict[str, np.ndarray]:
    """Random ids, a random mask with holes (position 0 is always real) and random types: int32 [B, S]."""
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, 4, (batch, length)) > 0
    mask[:, 0] = True
    features = {
        INPUT_WORD_IDS: rng.integers(0, config.vocab_size, (batch, length)),
        INPUT_MASK: mask,
        INPUT_TYPE_IDS: rng.integers(0, max(1, config.type_vocab_size), (batch, length)),
    }
    return {name: value.astype("int32") for name, value in features.items()}


def small(**changes) -> BertConfig:
    return dataclasses.replace(GOLDEN_CONFIG, **changes)


def array(x) -> np.ndarray:
    """A tensor or variable as numpy. `convert_to_numpy` copies, and numpy 2 warns on a tf.Variable's."""
    return np.asarray(x)


# Ours -> Hugging Face's, where `{}` is the layer.
_BLOCK_PARTS = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output_dense": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.intermediate": "intermediate.dense",
    "feed_forward.output_dense": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}


def _modules(encoder, mlm, nsp):
    """(ours, Hugging Face's name) of everything that owns variables, in a fixed order."""
    yield encoder.embeddings, "bert.embeddings"
    yield encoder.embeddings.norm, "bert.embeddings.LayerNorm"
    if encoder.embeddings.projection is not None:
        yield encoder.embeddings.projection, "bert.encoder.embedding_hidden_mapping_in"
    for i, block in enumerate(encoder.blocks):
        for ours, theirs in _BLOCK_PARTS.items():
            module = block
            for attribute in ours.split("."):
                module = getattr(module, attribute)
            yield module, f"bert.encoder.layer.{i}.{theirs}"
    yield encoder.pooler, "bert.pooler.dense"
    if mlm is not None:
        yield mlm, "cls.predictions"
        yield mlm.dense, "cls.predictions.transform.dense"
        yield mlm.norm, "cls.predictions.transform.LayerNorm"
    if nsp is not None:
        yield nsp.dense, "cls.seq_relationship"


# Our variable -> (the end of Hugging Face's name, is it stored transposed).
_VARIABLES = {
    "word_embeddings": ("word_embeddings.weight", False),
    "position_embeddings": ("position_embeddings.weight", False),
    "type_embeddings": ("token_type_embeddings.weight", False),
    "kernel": ("weight", True),
    "bias": ("bias", False),
    "gamma": ("weight", False),
    "beta": ("bias", False),
}


def variables_by_name(encoder, mlm=None, nsp=None):
    """Hugging Face's name -> (our variable, True if their array is its transpose), in a fixed order."""
    found = {}
    for module, prefix in _modules(encoder, mlm, nsp):
        for attribute, (name, transposed) in _VARIABLES.items():
            if getattr(module, attribute, None) is not None:
                found[f"{prefix}.{name}"] = (getattr(module, attribute), transposed)
    return found


def random_weights(shapes: dict[str, tuple[int, ...]], *, seed: int) -> dict[str, np.ndarray]:
    """float64 weights, drawn in the order of `shapes` (Hugging Face's names and shapes).

    Far larger than BERT's initial ones, so that every bias, norm and activation matters.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes.items():
        draw = rng.standard_normal(shape)
        if name.endswith("LayerNorm.weight"):
            weights[name] = 1 + 0.1 * draw
        elif "embeddings.weight" in name:
            weights[name] = 0.5 * draw
        elif len(shape) == 2:
            weights[name] = draw / np.sqrt(shape[1])
        else:
            weights[name] = 0.1 * draw
    return weights


@dataclasses.dataclass
class Ours:
    """Our encoder and the two pre-training heads."""

    encoder: BertEncoder
    mlm: MaskedLMHead
    nsp: NextSentenceHead

    @classmethod
    def build(cls, config: BertConfig, *, dtype: str = "float32") -> "Ours":
        encoder = BertEncoder(config, outputs=EVERY_OUTPUT, dtype=dtype)
        return cls(encoder, MaskedLMHead(encoder, dtype=dtype), NextSentenceHead(config=config, dtype=dtype))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        named = variables_by_name(self.encoder, self.mlm, self.nsp)
        return {
            name: tuple(v.shape)[::-1] if transposed else tuple(v.shape)
            for name, (v, transposed) in named.items()
        }

    def assign(self, weights: dict[str, np.ndarray]) -> None:
        """Every variable of encoder and pooler from its name; the heads' only where `weights` holds them."""
        heads = (self.mlm, self.nsp) if "cls.predictions.bias" in weights else (None, None)
        for name, (variable, transposed) in variables_by_name(self.encoder, *heads).items():
            variable.assign(weights[name].T if transposed else weights[name])

    def outputs(self, features) -> dict[str, list[np.ndarray]]:
        """Name -> arrays: every encoder output, MLM logits at every position and NSP logits."""
        results = dict(self.encoder(features))
        batch, length = features[INPUT_WORD_IDS].shape
        everywhere = np.broadcast_to(np.arange(length, dtype="int32"), (batch, length))
        results[MLM_LOGITS] = self.mlm(results[SEQUENCE_OUTPUT], everywhere)
        results[NSP_LOGITS] = self.nsp(results[POOLED_OUTPUT])
        return {
            name: [array(one) for one in (value if isinstance(value, (list, tuple)) else [value])]
            for name, value in results.items()
        }


def seeded(config: BertConfig, *, dtype: str = "float32") -> Ours:
    """Our model with weights that only the config decides."""
    ours = Ours.build(config, dtype=dtype)
    ours.assign(random_weights(ours.shapes(), seed=WEIGHTS_SEED))
    return ours


def pooled(encoder: BertEncoder, features) -> np.ndarray:
    return array(encoder(features)[POOLED_OUTPUT])


def golden_ours(activation: str, *, dtype: str = "float32") -> Ours:
    """Our model with the weights that tests/golden/encoder.npz was computed with."""
    return seeded(small(activation=activation), dtype=dtype)


def golden(activation: str) -> tuple[dict[str, np.ndarray], dict[str, list[np.ndarray]]]:
    """The features and, by output, the arrays of tests/golden/encoder.npz."""
    stored = np.load(GOLDEN)
    features = {name: stored[name] for name in (INPUT_WORD_IDS, INPUT_MASK, INPUT_TYPE_IDS)}
    outputs: dict[str, list[np.ndarray]] = {}
    for key in stored.files:
        if key.startswith(f"{activation}/"):
            outputs.setdefault(key.split("/")[1], []).append(stored[key])
    return features, outputs


def real_weights(folder: pathlib.Path) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """Config and weights of a Hugging Face folder that holds an encoder with pooler, no heads (MiniLM-L6)."""
    from safetensors.numpy import load_file

    stored = load_file(folder / "model.safetensors")
    return BertConfig.load(folder), {
        f"bert.{name}": v for name, v in stored.items() if not name.endswith("position_ids")
    }


def hugging_face(config: BertConfig, weights: dict[str, np.ndarray], *, dtype: str = "float32"):
    """`transformers`' BertForPreTraining with these weights, in eval mode, eager attention."""
    import torch
    import transformers

    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(**config.to_hugging_face(), attn_implementation="eager")
    )
    theirs = theirs.eval().to(getattr(torch, dtype))
    state = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    left = [name for name in missing if name.startswith("bert.") and name != "bert.embeddings.position_ids"]
    assert not left and not unexpected, f"missing {left}, unexpected {unexpected}"
    return theirs


def hugging_face_outputs(theirs, features) -> dict[str, list[np.ndarray]]:
    """The outputs of `Ours.outputs`, from `transformers`."""
    import torch

    ids, mask, types = (
        torch.from_numpy(np.asarray(features[name], "int64"))
        for name in (INPUT_WORD_IDS, INPUT_MASK, INPUT_TYPE_IDS)
    )
    with torch.no_grad():
        base = theirs.bert(
            input_ids=ids,
            attention_mask=mask,
            token_type_ids=types,
            output_hidden_states=True,
            output_attentions=True,
        )
        mlm_logits, nsp_logits = theirs.cls(base.last_hidden_state, base.pooler_output)
    results = {
        EMBEDDING_OUTPUT: base.hidden_states[:1],
        ENCODER_OUTPUTS: base.hidden_states[1:],
        SEQUENCE_OUTPUT: [base.last_hidden_state],
        POOLED_OUTPUT: [base.pooler_output],
        ATTENTION_PROBABILITIES: base.attentions,
        MLM_LOGITS: [mlm_logits],
        NSP_LOGITS: [nsp_logits],
    }
    return {name: [one.numpy() for one in value] for name, value in results.items()}


def keras_hub_outputs(
    config: BertConfig, weights: dict[str, np.ndarray], features, *, dtype: str = "float32"
):
    """Blocks and pooled output of KerasHub's BertBackbone, which has only the tanh gelu."""
    import keras
    import keras_hub

    theirs = keras_hub.models.BertBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        max_sequence_length=config.max_positions,
        num_segments=config.type_vocab_size,
        dtype=dtype,
    )
    for variable in theirs.variables:
        if not variable.path.endswith("seed_generator_state"):
            name, transposed = _keras_hub_name(variable.path)
            value = weights[name].T if transposed else weights[name]
            variable.assign(value.reshape(variable.shape))
    blocks = [theirs.get_layer(f"transformer_layer_{i}").output for i in range(config.num_layers)]
    embedded = theirs.get_layer("embeddings_layer_norm").output
    every = keras.Model(theirs.inputs, [embedded, *blocks, theirs.output["pooled_output"]])
    inputs = {"token_ids": INPUT_WORD_IDS, "segment_ids": INPUT_TYPE_IDS, "padding_mask": INPUT_MASK}
    # By the input's own name: the order in which Keras flattens a dict is not this one.
    embedding, *states, pooled = every([features[inputs[one.name]] for one in theirs.inputs])
    results = {
        EMBEDDING_OUTPUT: [embedding],
        ENCODER_OUTPUTS: states,
        SEQUENCE_OUTPUT: states[-1:],
        POOLED_OUTPUT: [pooled],
    }
    return {name: [np.asarray(one) for one in value] for name, value in results.items()}


_KERAS_HUB_PARTS = {
    "self_attention_layer/query": "attention.self.query",
    "self_attention_layer/key": "attention.self.key",
    "self_attention_layer/value": "attention.self.value",
    "self_attention_layer/attention_output": "attention.output.dense",
    "self_attention_layer_norm": "attention.output.LayerNorm",
    "feedforward_intermediate_dense": "intermediate.dense",
    "feedforward_output_dense": "output.dense",
    "feedforward_layer_norm": "output.LayerNorm",
    "token_embedding": "bert.embeddings.word_embeddings",
    "position_embedding": "bert.embeddings.position_embeddings",
    "segment_embedding": "bert.embeddings.token_type_embeddings",
    "embeddings_layer_norm": "bert.embeddings.LayerNorm",
    "pooled_dense": "bert.pooler.dense",
}


def _keras_hub_name(path: str) -> tuple[str, bool]:
    """KerasHub's variable path -> (Hugging Face's name, True if that array is its transpose)."""
    layer, *part, variable = path.split("/")
    inside = layer.startswith("transformer_layer_")
    name = _KERAS_HUB_PARTS["/".join(part) if inside else layer]
    if inside:
        name = f"bert.encoder.layer.{layer.removeprefix('transformer_layer_')}.{name}"
    return f"{name}.{'bias' if variable in ('bias', 'beta') else 'weight'}", variable == "kernel"


def differences(ours, theirs) -> dict[str, tuple[float, float]]:
    """By output: max |difference| over its arrays, and max |reference|."""
    found = {}
    for name, references in theirs.items():
        shapes, wanted = ([one.shape for one in arrays] for arrays in (ours[name], references))
        assert shapes == wanted, f"{name}: shapes {shapes}, reference has {wanted}"
        pairs = zip(ours[name], references, strict=True)
        difference = max(float(np.abs(one - reference).max()) for one, reference in pairs)
        found[name] = difference, max(float(np.abs(one).max()) for one in references)
    return found


def assert_equal(ours, theirs, *, bound: float) -> None:
    """max |difference| <= bound x max(1, max |reference|), for every output of the reference."""
    over = {
        name: (difference, size)
        for name, (difference, size) in differences(ours, theirs).items()
        if not difference <= bound * max(1.0, size)
    }
    assert not over, f"(max |difference|, max |reference|) over {bound}: {over}"
