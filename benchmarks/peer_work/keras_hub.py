"""KerasHub. The same weights, in its own format."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS
from bert_keras.optimization.replicas import without_autotuning
from peer_work.ours import mapped
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
    examples,
    features,
    in_turn,
    labels,
    lines,
    masked,
    pieces,
    requests,
)


def _preset(folder: pathlib.Path) -> str:
    """A preset of the backbone; written once."""
    from bert_keras import checkpoints
    from bert_keras.checkpoints.checkpoint import variable_shapes

    preset = folder.with_name(f"{folder.name}-keras-hub")
    if not preset.exists():
        read = checkpoints.read(folder)
        backbone = {name: read.tensors[name] for name in variable_shapes(read.config)}
        checkpoints.write(dataclasses.replace(read, tensors=backbone), preset, format="keras-hub")
    return str(preset)


def _features(case: Case) -> Arrays:
    given = features(case)
    return {
        "token_ids": given[INPUT_WORD_IDS],
        "padding_mask": given[INPUT_MASK],
        "segment_ids": given[INPUT_TYPE_IDS],
    }


def encoder(case: Case, folder: pathlib.Path) -> Prepared:
    """`tf.function`, traced at this length."""
    import keras_hub
    import tensorflow as tf

    backbone = keras_hub.models.BertBackbone.from_preset(_preset(folder / case.size), dtype=case.precision)
    run = tf.function(lambda given: backbone(given, training=False))
    given = {name: tf.constant(value) for name, value in _features(case).items()}
    return lambda: run(given), encoded(case, run(given))


def _classifier(folder: pathlib.Path, policy: str) -> Any:
    import keras_hub

    from bert_keras import checkpoints

    backbone = keras_hub.models.BertBackbone.from_preset(_preset(folder), dtype=policy)
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None, dropout=0.1)
    head = checkpoints.read(folder).tensors  # a preset of a backbone has none
    model.get_layer("logits").set_weights([head["classifier/dense/kernel"], head["classifier/dense/bias"]])
    return model


def _compiled(model: Any) -> Any:
    """For `fit` without XLA, its default, which is slower on a CPU."""
    import keras

    optimizer = keras.optimizers.AdamW(
        LEARNING_RATE, weight_decay=WEIGHT_DECAY, epsilon=EPSILON, global_clipnorm=CLIP_NORM
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, jit_compile=False)
    return model


def _preprocessor(case: Case, folder: pathlib.Path) -> Any:
    """Pads to one length."""
    import keras_hub

    kind = keras_hub.models.BertTextClassifierPreprocessor
    return kind.from_preset(_preset(folder / case.size), sequence_length=case.length)


def _traced_preprocessor(case: Case, folder: pathlib.Path) -> Callable[[list[str]], dict[str, Any]]:
    """The preprocessor in a graph: called op by op, it takes several times as long."""
    import tensorflow as tf

    preprocess = _preprocessor(case, folder)
    return tf.function(preprocess, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)


def finetune(case: Case, folder: pathlib.Path) -> Prepared:
    """`fit` on ready features, or on sentences that `Dataset.map` tokenizes."""
    import tensorflow as tf

    from bert_keras.model.choices import training_policy

    model = _compiled(_classifier(folder / case.size, training_policy(case.precision)))
    if case.texts:
        preprocess = _preprocessor(case, folder)
        texts, targets = examples(folder)
        count = case.batch * case.steps
        rows = (
            tf.data.Dataset.from_tensor_slices((texts[:count], targets[:count]))
            .shuffle(count)
            .batch(case.batch)
        )
        batches = rows.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
        first = preprocess(texts[: case.batch])
    else:
        first = _features(case)
        batches = tf.data.Dataset.from_tensors((first, labels(case))).repeat(case.steps)
    logits = np.asarray(tf.cast(model(first, training=False), tf.float32))
    return lambda: model.fit(without_autotuning(batches), verbose=0), {"logits": logits}


def pretrain(case: Case, folder: pathlib.Path) -> Prepared:
    """`fit` of the masked LM. KerasHub has no next-sentence head.

    Its BertMaskedLM has the erf gelu and epsilon 1e-5 in its head; this is its layer MaskedLMHead with BERT's.
    """
    import keras
    import keras_hub
    import tensorflow as tf

    from bert_keras import checkpoints
    from bert_keras.model.choices import training_policy

    policy = training_policy(case.precision)
    backbone = keras_hub.models.BertBackbone.from_preset(_preset(folder / case.size), dtype=policy)
    head = keras_hub.layers.MaskedLMHead(
        token_embedding=backbone.token_embedding,
        intermediate_activation=lambda x: keras.activations.gelu(x, approximate=True),
        layer_norm_epsilon=1e-12,
        dtype=policy,
        name="mlm_head",
    )
    positions = keras.Input((None,), dtype="int32", name="mask_positions")
    logits = head(backbone.output["sequence_output"], positions)
    model = _compiled(keras.Model({**backbone.input, "mask_positions": positions}, logits))
    read = checkpoints.read(folder / case.size).tensors
    names = ("dense/kernel", "dense/bias", "layer_norm/gamma", "layer_norm/beta", "bias")
    values = [read[f"masked_lm/{name}"] for name in names]
    head._intermediate_dense.set_weights(values[:2])
    head._intermediate_layer_norm.set_weights(values[2:4])
    head._bias.assign(values[4])
    asked, ids = masked(case)
    given = _features(case) | {"mask_positions": asked}
    batches = tf.data.Dataset.from_tensors((given, ids)).repeat(case.steps)
    found = np.asarray(tf.cast(model(given, training=False), tf.float32))
    return lambda: model.fit(without_autotuning(batches), verbose=0), {"masked_lm": found[:COMPARED]}


def exported(case: Case, folder: pathlib.Path) -> pathlib.Path:
    """The SavedModel that `export` writes; once."""
    served = folder / f"{case.size}-{case.precision}-keras-hub-served"
    if not served.exists():
        _classifier(folder / case.size, case.precision).export(str(served), verbose=False)
    return served


def asker(case: Case, folder: pathlib.Path) -> Callable[[list[str]], np.ndarray]:
    """The preprocessor, which is not exported, and the SavedModel: sentences -> probabilities."""
    import tensorflow as tf

    serve = tf.saved_model.load(str(exported(case, folder))).signatures["serving_default"]
    preprocess = _traced_preprocessor(case, folder)
    names = tuple(serve.structured_input_signature[1])

    def ask(texts: list[str]) -> np.ndarray:
        given = preprocess(tf.constant(texts))
        (logits,) = serve(**{name: tf.cast(given[name], tf.int32) for name in names}).values()
        return tf.nn.softmax(tf.cast(logits, tf.float32)).numpy()

    return ask


def prepare_memory(case: Case, folder: pathlib.Path) -> None:
    """Writes the preset, whose conversion takes memory of its own."""
    _preset(folder / case.size)


def import_library(case: Case, folder: pathlib.Path) -> Arrays:
    """In a fresh process: the package."""
    import keras_hub

    assert keras_hub.models.BertTextClassifier
    return {}


def layers(case: Case, folder: pathlib.Path) -> Prepared:
    """A functional model of all blocks' outputs, behind the tokenizer, padded to one length."""
    import keras
    import keras_hub
    import tensorflow as tf

    preset = _preset(folder / case.size)
    backbone = keras_hub.models.BertBackbone.from_preset(preset, dtype=case.precision)
    preprocess, tokenizer = _traced_preprocessor(case, folder), _preprocessor(case, folder).tokenizer
    special = tokenizer.cls_token_id, tokenizer.sep_token_id
    blocks = [f"transformer_layer_{i}" for i in range(backbone.num_layers)]
    states = [backbone.get_layer(name).output for name in ("embeddings_dropout", *blocks)]
    model = keras.Model(backbone.input, states)

    @tf.function
    def run(given: dict[str, Any]) -> Any:
        stacked = tf.stack(model(given, training=False), axis=2)  # [B, S, L + 1, H]
        ids = given["token_ids"]
        token = (given["padding_mask"] > 0) & (ids != special[0]) & (ids != special[1])
        return tf.cast(tf.boolean_mask(stacked, token), tf.float32)

    def ask(texts: list[str]) -> np.ndarray:
        given = preprocess(tf.constant(texts))
        return run({name: tf.cast(value, tf.int32) for name, value in given.items()}).numpy()

    asked = requests(case, folder)
    return in_turn(ask, asked), {"vectors": ask(asked[0])}


def tokenize(case: Case, folder: pathlib.Path) -> Prepared:
    """WordPiece in `Dataset.map`."""
    import keras_hub

    tokenizer = keras_hub.models.BertTokenizer(vocabulary=str(folder / "vocab.txt"), lowercase=True)
    text = lines(case, folder)
    return mapped(tokenizer, text), pieces([[int(id) for id in row] for row in tokenizer(text)])


def byte_bpe(case: Case, folder: pathlib.Path) -> Prepared:
    """Byte-level BPE in `Dataset.map`."""
    import keras_hub

    files = {"vocabulary": str(folder / "byte-bpe/vocab.json"), "merges": str(folder / "byte-bpe/merges.txt")}
    tokenizer = keras_hub.models.RobertaTokenizer(**files)
    text = lines(case, folder)
    return mapped(tokenizer, text), pieces([[int(id) for id in row] for row in tokenizer(text)])
