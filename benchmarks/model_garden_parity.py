"""Our encoder against Model Garden's: the same weights through its checkpoints, then the same tokens.

In: nothing; weights and tokens are random. Out: max |difference| for each output, and exit status 1 where one
is over the bound. It runs in an environment of its own, since tf-models-official pins TensorFlow 2.20:

    python3 -m venv .venv-model-garden && .venv-model-garden/bin/pip install -e ".[model-garden]"
    .venv-model-garden/bin/python benchmarks/model_garden_parity.py
"""

import dataclasses
import json
import pathlib
import sys
import tempfile

import numpy as np
import tensorflow as tf
import tf_keras
from official.nlp import modeling

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import Checkpoint, head_shapes, variable_shapes
from bert_keras.config import BertConfig
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_OUTPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MASKED_LM_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead

BOUND = 1e-5  # times max(1, max |reference|)
CONFIGS = {
    "tiny": BertConfig.named("tiny", vocab_size=1000),
    "base-like, 4 layers": BertConfig.named("base", vocab_size=1000, num_layers=4),
}


def theirs(config: BertConfig) -> tuple[tf_keras.Model, tf_keras.Model]:
    """Model Garden's encoder, and its pretrainer, which adds the masked LM head."""

    def gelu(x):
        return tf_keras.activations.gelu(x, approximate=True)

    encoder = modeling.networks.BertEncoderV2(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        max_sequence_length=config.max_positions,
        type_vocab_size=config.type_vocab_size,
        inner_dim=config.intermediate_size,
        inner_activation=gelu,
        return_word_embeddings=True,
    )
    pretrainer = modeling.models.BertPretrainerV2(encoder_network=encoder, mlm_activation=gelu)
    pretrainer(random_features(config))  # creates the variables
    return encoder, pretrainer


def random_features(config: BertConfig, *, batch: int = 4, length: int = 40) -> dict[str, tf.Tensor]:
    """Random tokens, types and masked positions; all rows except the first are padded."""
    rng = np.random.default_rng(1)
    lengths = np.linspace(length, 3, batch).astype(int)
    features = {
        INPUT_WORD_IDS: rng.integers(0, config.vocab_size, (batch, length)),
        INPUT_MASK: np.arange(length) < lengths[:, None],
        INPUT_TYPE_IDS: rng.integers(0, config.type_vocab_size, (batch, length)),
        MASKED_LM_POSITIONS: rng.integers(0, 3, (batch, 5)),
    }
    return {name: tf.constant(value, tf.int32) for name, value in features.items()}


def random_checkpoint(config: BertConfig) -> Checkpoint:
    """Weights large enough that every bias, norm and activation matters."""
    rng = np.random.default_rng(0)
    shapes = variable_shapes(config)
    shapes |= {name: shape for name, shape in head_shapes(config).items() if name.startswith("masked_lm/")}
    tensors = {}
    for name, shape in shapes.items():
        draw = rng.standard_normal(shape) * (1 / np.sqrt(shape[0]) if name.endswith("kernel") else 0.1)
        tensors[name] = (draw + name.endswith("gamma")).astype("float32")
    return Checkpoint(config=config, tensors=tensors)


def our_outputs(checkpoint: Checkpoint, features: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
    """Every output by name, from a checkpoint."""
    encoder = BertEncoder(checkpoint.config)
    head = MaskedLMHead(encoder)
    report = checkpoints.assign(checkpoint, encoder, masked_lm=head)
    assert not report.fresh and not report.unused, str(report)
    outputs = encoder(features)
    blocks = {f"block_{i}": states for i, states in enumerate(outputs[ENCODER_OUTPUTS])}
    logits = head(outputs[SEQUENCE_OUTPUT], features[MASKED_LM_POSITIONS])
    named = {"embeddings": outputs[EMBEDDING_OUTPUT], **blocks, POOLED_OUTPUT: outputs[POOLED_OUTPUT]}
    return {name: np.asarray(value) for name, value in (named | {"masked_lm": logits}).items()}


def their_outputs(
    encoder: tf_keras.Model, pretrainer: tf_keras.Model, features: dict
) -> dict[str, np.ndarray]:
    """The same outputs, from Model Garden."""
    outputs = encoder(features)
    named = {"embeddings": outputs["word_embeddings"]}
    named |= {f"block_{i}": states for i, states in enumerate(outputs["encoder_outputs"])}
    named |= {POOLED_OUTPUT: outputs["pooled_output"], "masked_lm": pretrainer(features)["mlm_logits"]}
    return {name: value.numpy() for name, value in named.items()}


def differences(ours: dict, reference: dict, mask: np.ndarray) -> dict[str, tuple[float, float]]:
    """max |difference| and max |reference| of each output, over real positions."""
    found = {}
    for name, value in reference.items():
        mine = ours[name]
        if value.shape[:2] == mask.shape:
            mine, value = mine[mask], value[mask]
        found[name] = (float(np.abs(mine - value).max()), float(np.abs(value).max()))
    return found


def both_ways(config: BertConfig, folder: pathlib.Path) -> dict[str, tuple[float, float]]:
    """It restores what we write, and we read what it saves under each of its roots; then compares the outputs."""
    checkpoint = random_checkpoint(config)
    checkpoints.write(checkpoint, folder / "ours", format="model-garden")
    encoder, pretrainer = theirs(config)
    objects = tf.train.Checkpoint(encoder=encoder, masked_lm=pretrainer.masked_lm)
    status = objects.read(str(folder / "ours" / "bert_model.ckpt"))
    status.assert_existing_objects_matched().assert_consumed()

    roots = {
        "encoder": {"encoder": encoder},
        "items": pretrainer.checkpoint_items,
        "model": {"model": pretrainer},
    }
    for name, root in roots.items():
        tf.train.Checkpoint(**root).save(str(folder / name / "ckpt"))
        (folder / name / "bert_config.json").write_text(json.dumps(config.to_google()))
        again = checkpoints.read(folder / name)
        assert again.format == "model-garden" and not again.unknown, again.unknown
        wanted = {
            n: t for n, t in checkpoint.tensors.items() if name != "encoder" or not n.startswith("masked_lm/")
        }
        assert sorted(again.tensors) == sorted(wanted), name
        assert all(again.tensors[n].tobytes() == t.tobytes() for n, t in wanted.items()), name

    features = random_features(config)
    ours = our_outputs(dataclasses.replace(checkpoint, format=""), features)
    return differences(ours, their_outputs(encoder, pretrainer, features), features[INPUT_MASK].numpy() > 0)


def main() -> int:
    """Prints the table; returns 1 if an output is over the bound."""
    print(f"TensorFlow {tf.__version__}, random weights, bound {BOUND:g} x max(1, max |reference|)")
    worst = 0.0
    for name, config in CONFIGS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = both_ways(config, pathlib.Path(folder))
        for output, (difference, reference) in found.items():
            print(f"{name:20} {output:14} {difference:.2e}   (max |reference| {reference:.2f})")
            worst = max(worst, difference / max(1.0, reference))
    print(f"largest, relative: {worst:.2e}; checkpoints equal bit for bit both ways")
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
