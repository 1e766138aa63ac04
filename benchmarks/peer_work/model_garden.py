"""TensorFlow Model Garden (tf-models-official), in an environment of its own. The same weights, in its own format."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MASKED_LM_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.optimization.replicas import without_autotuning
from peer_work.ours_training import COMPARED
from peer_work.work import (
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Arrays,
    Case,
    Prepared,
    encoded,
    features,
    labels,
    masked,
)


def _read(case: Case, folder: pathlib.Path, *, policy: str) -> tuple[Any, Arrays]:
    """Its encoder with our weights, and the tensors of the heads; `policy` holds for all layers that are made later too."""
    import tensorflow as tf
    import tf_keras
    from official.nlp import modeling

    from bert_keras import checkpoints
    from bert_keras.checkpoints.checkpoint import variable_shapes

    tf_keras.mixed_precision.set_global_policy(policy)
    read = checkpoints.read(folder / case.size)
    config, written = read.config, folder / f"{case.size}-model-garden"
    if not written.exists():
        weights = {name: read.tensors[name] for name in variable_shapes(config)}
        checkpoints.write(dataclasses.replace(read, tensors=weights), written, format="model-garden")
    made = modeling.networks.BertEncoderV2(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        max_sequence_length=config.max_positions,
        type_vocab_size=config.type_vocab_size,
        inner_dim=config.intermediate_size,
        inner_activation=_gelu,
    )
    made(made.inputs)
    status = tf.train.Checkpoint(encoder=made).read(str(written / "bert_model.ckpt"))
    status.assert_existing_objects_matched().expect_partial()
    return made, read.tensors


def _gelu(x: Any) -> Any:
    import tf_keras

    return tf_keras.activations.gelu(x, approximate=True)


def _policy(case: Case) -> str:
    """Float32 weights in a narrow format, which each call casts: it has no form with narrow weights."""
    return "float32" if case.precision == "float32" else f"mixed_{case.precision}"


def _features(case: Case) -> dict[str, Any]:
    import tensorflow as tf

    given = features(case)
    assert {*given} == {INPUT_WORD_IDS, INPUT_MASK, INPUT_TYPE_IDS}  # its names are those of the field
    return {name: tf.constant(value) for name, value in given.items()}


def encoder(case: Case, folder: pathlib.Path) -> Prepared:
    """`tf.function`, traced at this length."""
    import tensorflow as tf

    model, _ = _read(case, folder, policy=_policy(case))
    run, given = tf.function(lambda given: model(given, training=False)), _features(case)
    outputs = {name: tf.cast(run(given)[name], tf.float32) for name in (SEQUENCE_OUTPUT, POOLED_OUTPUT)}
    return lambda: run(given), encoded(case, outputs)


def _optimizer() -> Any:
    """Its own AdamW, which clips by the global norm."""
    from official.modeling.optimization.legacy_adamw import AdamWeightDecay

    return AdamWeightDecay(
        LEARNING_RATE,
        epsilon=EPSILON,
        weight_decay_rate=WEIGHT_DECAY,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        gradient_clip_norm=CLIP_NORM,
    )


def finetune(case: Case, folder: pathlib.Path) -> Prepared:
    """`fit` of BertClassifier on ready features, without XLA."""
    import tensorflow as tf
    import tf_keras
    from official.nlp import modeling

    network, heads = _read(case, folder, policy=_policy(case))
    model = modeling.models.BertClassifier(network, num_classes=2)
    model.layers[-1].set_weights([heads["classifier/dense/kernel"], heads["classifier/dense/bias"]])
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(_optimizer(), loss=loss)
    given = _features(case)
    batches = tf.data.Dataset.from_tensors((given, labels(case))).repeat(case.steps)
    logits = tf.cast(model(given, training=False), tf.float32).numpy()
    return lambda: model.fit(without_autotuning(batches), verbose=0), {"logits": logits}


def pretrain(case: Case, folder: pathlib.Path) -> Prepared:
    """`fit` of BertPretrainerV2 with the masked LM and the next sentence, without XLA."""
    import tensorflow as tf
    import tf_keras
    from official.nlp import modeling

    network, heads = _read(case, folder, policy=_policy(case))
    width = heads["pooler/kernel"].shape[0]
    next_sentence = modeling.layers.ClassificationHead(
        inner_dim=width, num_classes=2, dropout_rate=0.1, name="next_sentence"
    )
    pretrainer = modeling.models.BertPretrainerV2(
        network, mlm_activation=_gelu, classification_heads=[next_sentence]
    )
    positions, ids = masked(case)
    given = _features(case) | {MASKED_LM_POSITIONS: tf.constant(positions)}
    pretrainer(given)  # creates the variables
    names = ("dense/kernel", "dense/bias", "layer_norm/gamma", "layer_norm/beta", "bias")
    by_shape = {f"masked_lm/{name}": heads[f"masked_lm/{name}"] for name in names}
    pretrainer.masked_lm.dense.set_weights([*by_shape.values()][:2])
    pretrainer.masked_lm.layer_norm.set_weights([*by_shape.values()][2:4])
    pretrainer.masked_lm.bias.assign(by_shape["masked_lm/bias"])
    next_sentence.dense.set_weights([heads["pooler/kernel"], heads["pooler/bias"]])
    next_sentence.out_proj.set_weights(
        [heads["next_sentence/dense/kernel"], heads["next_sentence/dense/bias"]]
    )
    inputs = {
        name: tf_keras.Input((None,), dtype=tf.int32, name=name)
        for name in (*ENCODER_INPUTS, MASKED_LM_POSITIONS)
    }
    found = pretrainer(inputs)
    # Float32 logits, as its own pre-training task has them.
    outputs = {
        "masked_lm": tf_keras.layers.Activation("linear", dtype="float32", name="masked_lm")(
            found["mlm_logits"]
        ),
        "next_sentence": tf_keras.layers.Activation("linear", dtype="float32", name="classes")(
            found["next_sentence"]
        ),
    }
    model = tf_keras.Model(inputs, outputs)
    loss = {name: tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in outputs}
    model.compile(_optimizer(), loss=loss)
    targets = {"masked_lm": ids, "next_sentence": labels(case)}
    batches = tf.data.Dataset.from_tensors((given, targets)).repeat(case.steps)
    predicted = {name: np.asarray(value) for name, value in model(given, training=False).items()}
    return lambda: model.fit(without_autotuning(batches), verbose=0), predicted | {
        "masked_lm": predicted["masked_lm"][:COMPARED]
    }
