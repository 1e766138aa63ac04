"""TF Hub modules made by Model Garden's exporter, in a HubLayer: values, weights, dropout and fine-tuning.

In: nothing; weights are random, and the vocabulary is a few words. Out: a line for each property, and exit status 1 if one
fails. It runs in the environment that model_garden_parity.py describes:

    .venv-model-garden/bin/python benchmarks/model_garden_hub.py [FOLDER]

FOLDER keeps the two modules for other uses.
"""

import pathlib
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "golden"))

import keras
import model_garden_modules
import numpy as np
import tensorflow as tf
from model_garden_parity import random_checkpoint, random_features, theirs
from official.nlp.configs import encoders

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.features import (
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    INPUT_WORD_IDS,
    MASKED_LM_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.model.tensorflow_layers import HubLayer
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece

BOUND = 1e-5
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film play the a ##s ##ing , . !".split()
TEXTS = ["a good film!", "the bad films, playing", "", "goods . bads [MASK] unknown", "good " * 40]


def write_both(config: BertConfig, folder: pathlib.Path) -> None:
    """Model Garden's preprocessor and encoder, the latter with `.mlm`, from a checkpoint that we wrote."""
    checkpoints.write(random_checkpoint(config), folder / "ours", format="model-garden")
    encoder, pretrainer = theirs(config)
    objects = tf.train.Checkpoint(encoder=encoder, masked_lm=pretrainer.masked_lm)
    objects.read(str(folder / "ours" / "bert_model.ckpt")).assert_existing_objects_matched()
    # Their exporter needs the counter that `save` writes.
    checkpoint = tf.train.Checkpoint(**pretrainer.checkpoint_items).save(str(folder / "theirs" / "ckpt"))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    sizes = encoders.BertEncoderConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_positions,
        return_all_encoder_outputs=True,
    )
    model_garden_modules.write_modules(
        folder,
        seq_length=24,
        encoder_config=encoders.EncoderConfig(type="bert", bert=sizes),
        model_checkpoint_path=checkpoint,
    )


def encoder_holds(config: BertConfig, folder: pathlib.Path) -> dict[str, bool]:
    """Their encoder against ours, from the same weights."""
    ours = BertEncoder(config)
    head = MaskedLMHead(ours)
    checkpoints.assign(random_checkpoint(config), ours, masked_lm=head)
    features = random_features(config)
    inputs = {name: features[name] for name in ENCODER_INPUTS}
    expected, layer = ours(inputs), HubLayer(folder / "encoder")
    found, dropped = layer(inputs), layer(inputs, training=True)
    asked = HubLayer(folder / "encoder", endpoint="mlm", outputs="mlm_logits")
    logits = head(expected[SEQUENCE_OUTPUT], features[MASKED_LM_POSITIONS])

    def near(one: tf.Tensor, other: tf.Tensor) -> bool:
        difference = float(tf.reduce_max(tf.abs(one - other)))
        print(f"max |difference| {difference:.1e}")
        return difference <= BOUND * max(1.0, float(tf.reduce_max(tf.abs(other))))

    real = tf.cast(inputs["input_mask"], tf.float32)[:, :, tf.newaxis]
    return {
        "pooled output": near(found[POOLED_OUTPUT], expected[POOLED_OUTPUT]),
        "sequence output": near(found[SEQUENCE_OUTPUT] * real, expected[SEQUENCE_OUTPUT] * real),
        "every block": all(
            near(one * real, other * real)
            for one, other in zip(found[ENCODER_OUTPUTS], expected[ENCODER_OUTPUTS], strict=True)
        ),
        "default": near(found["default"], expected[POOLED_OUTPUT]),
        "mlm logits": near(asked(features), logits),
        "trainable weights": len(layer.trainable_weights) == len(ours.trainable_weights),
        "dropout": not np.allclose(found[POOLED_OUTPUT], dropped[POOLED_OUTPUT]),
    }


def preprocessor_holds(folder: pathlib.Path) -> dict[str, bool]:
    """Their preprocessor against ours, on texts without the known differences of the two tokenizers."""
    layer, texts = HubLayer(folder / "preprocess"), tf.constant(TEXTS)
    expected = Preprocessor(WordPiece(WORDS), seq_length=24)(texts)
    pairs = layer.module.bert_pack_inputs([layer.module.tokenize(texts)] * 2, seq_length=16)
    expected_pairs = Preprocessor(WordPiece(WORDS), seq_length=16)(texts, texts)
    return {
        "features": all(
            (value.numpy() == expected[name].numpy()).all() for name, value in layer(texts).items()
        ),
        "pairs": all((value.numpy() == expected_pairs[name].numpy()).all() for name, value in pairs.items()),
        "in Dataset.map": next(iter(tf.data.Dataset.from_tensors(texts).map(layer)))[INPUT_WORD_IDS].shape
        == (5, 24),
    }


def fine_tuning_holds(folder: pathlib.Path) -> dict[str, bool]:
    """Both modules in one Keras 3 model, from strings to a class."""
    encode = HubLayer(folder / "encoder", outputs=POOLED_OUTPUT)
    text = keras.Input((), dtype="string")
    logits = keras.layers.Dense(2)(encode(HubLayer(folder / "preprocess")(text)))
    model = keras.Model(text, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, run_eagerly=False)
    before = [variable.numpy() for variable in encode.module.trainable_variables]
    texts, labels = (
        tf.constant(["a good film", "bad play", "good", "the bad films"] * 8),
        tf.constant([1, 0, 1, 0] * 8),
    )
    losses = model.fit(texts, labels, epochs=4, batch_size=8, verbose=0).history["loss"]
    print("losses", " ".join(f"{value:.3f}" for value in losses))
    after = encode.module.trainable_variables
    moved = sum(not np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    print(f"{moved} of {len(before)} variables of the module moved")
    return {"loss falls": losses[-1] < losses[0], "variables move": moved > 0.9 * len(before)}


def main() -> int:
    """Prints which properties hold; returns 1 if one fails."""
    keras.utils.set_random_seed(0)
    config = BertConfig.named("tiny", vocab_size=len(WORDS))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        write_both(config, folder)
        found = encoder_holds(config, folder) | preprocessor_holds(folder) | fine_tuning_holds(folder)
    for name, holds in found.items():
        print(f"{name:20} {'yes' if holds else 'NO'}")
    return int(not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
