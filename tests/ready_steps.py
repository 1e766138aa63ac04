"""Ten steps of every kind of training on features that are ready, on any Keras backend: a script of test_jax_training.py.

    python ready_steps.py one|data|model FILE.npz [CASE ...]

one: a single device; data, model: keras.distribution on two devices. Out: the logged losses and the weights of each training.
On JAX, TensorFlow cannot be imported: these trainings do not need it.
"""

import os
import re
import sys

if os.environ.get("KERAS_BACKEND") == "jax":
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # as on a machine that lacks it

import keras
import numpy as np

from bert_keras.config import BertConfig
from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ClassifierHead, SpanHead, TokenHead
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.objectives import LeftToRight, MaskedLM, ReplacedTokens, SentencePair
from bert_keras.optimization.optimizers import LAMB, AdamW
from bert_keras.optimization.pretrainers import ElectraPretrainer, Pretrainer
from bert_keras.optimization.schedules import WarmupLinearDecay

ROWS, LENGTH, ASKED, BATCH = 40, 16, 4, 8
CONFIG = BertConfig(
    vocab_size=48,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    max_positions=16,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.2,
)
RANDOM = np.random.default_rng(1)


def features() -> dict[str, np.ndarray]:
    lengths = RANDOM.integers(6, LENGTH + 1, (ROWS, 1))
    mask = (np.arange(LENGTH) < lengths).astype("int32")
    ids = RANDOM.integers(5, CONFIG.vocab_size, (ROWS, LENGTH)).astype("int32") * mask
    types = (np.arange(LENGTH) >= lengths // 2).astype("int32") * mask
    return dict(zip(ENCODER_INPUTS, (ids, mask, types), strict=True))


FEATURES = features()
ANSWERED = FEATURES | {
    MASKED_LM_POSITIONS: np.tile(np.arange(1, 1 + ASKED, dtype="int32"), (ROWS, 1)),
    MASKED_LM_IDS: RANDOM.integers(5, CONFIG.vocab_size, (ROWS, ASKED)).astype("int32"),
    MASKED_LM_WEIGHTS: (RANDOM.random((ROWS, ASKED)) < 0.7).astype("float32"),
}
NEXT = FEATURES | {
    MASKED_LM_POSITIONS: np.tile(np.arange(LENGTH - 1, dtype="int32"), (ROWS, 1)),
    MASKED_LM_IDS: FEATURES[INPUT_WORD_IDS][:, 1:],
    MASKED_LM_WEIGHTS: (FEATURES[INPUT_WORD_IDS][:, 1:] > 0).astype("float32"),
}
WEIGHTS = RANDOM.uniform(0.5, 2.0, ROWS).astype("float32")


def functional(head, reads, classes):
    """A model of a head, its labels int32 and weights of each row."""
    inputs = encoder_inputs()
    logits = head(BertEncoder(CONFIG, outputs=(reads,))(inputs)[reads])
    labels = RANDOM.integers(0, classes, [ROWS, LENGTH][: len(logits.shape) - 1]).astype("int32")
    weights = WEIGHTS if labels.ndim == 1 else WEIGHTS[:, None] * FEATURES[ENCODER_INPUTS[1]]
    return keras.Model(inputs, logits), FEATURES, labels, weights, GlobalMean(cross_entropy)


def spans():
    """Start and end of an answer."""
    inputs = encoder_inputs()
    encoder = BertEncoder(CONFIG, outputs=(SEQUENCE_OUTPUT,))
    start, end = SpanHead(config=CONFIG)(encoder(inputs)[SEQUENCE_OUTPUT])
    labels = [RANDOM.integers(0, 6, ROWS).astype("int32") for _ in range(2)]
    model = keras.Model(inputs, [start, end])
    return model, FEATURES, labels, [WEIGHTS, WEIGHTS], [GlobalMean(cross_entropy), GlobalMean(cross_entropy)]


def pretraining(objectives, given, config=CONFIG, kind=Pretrainer):
    encoder = BertEncoder(config, outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT))
    model = kind.of(encoder, objectives)
    mask = given[ENCODER_INPUTS[1]]
    labels = {
        MaskedLM.name: given[MASKED_LM_IDS],
        SentencePair.name: RANDOM.integers(0, 2, ROWS),
        ReplacedTokens.name: np.zeros_like(mask),
    }
    weights = {
        MaskedLM.name: given[MASKED_LM_WEIGHTS],
        SentencePair.name: WEIGHTS,
        ReplacedTokens.name: mask.astype("float32"),
    }
    names = [one.name for one in objectives]
    return model, given, {name: labels[name] for name in names}, {name: weights[name] for name in names}, None


def likeliest(logits, count, **how):
    """In place of a draw, which differs by backend."""
    return keras.ops.expand_dims(keras.ops.cast(keras.ops.argmax(logits, axis=-1), "int32"), -1)


MASKED_LM = MaskedLM(pieces=None)
CASES = {
    "classifier": lambda: functional(ClassifierHead(3, config=CONFIG), POOLED_OUTPUT, 3),
    "tags": lambda: functional(TokenHead(5, config=CONFIG), SEQUENCE_OUTPUT, 5),
    "spans": spans,
    "masked LM and next sentence": lambda: pretraining((MASKED_LM, SentencePair()), ANSWERED),
    "left to right": lambda: pretraining(
        (LeftToRight(),), NEXT, BertConfig(**{**vars(CONFIG), "causal": True})
    ),
    "ELECTRA": lambda: pretraining((MASKED_LM, ReplacedTokens()), ANSWERED, kind=ElectraPretrainer),
}


# Each device has half of each block's feed-forward weights. Keras matches a pattern with the whole path.
LAYOUTS = {
    ".*intermediate/kernel": (None, "model"),
    ".*intermediate/bias": ("model",),
    ".*feed_forward/output/kernel": ("model", None),
}


def check_layouts(variables) -> None:
    """Raises AssertionError unless each of LAYOUTS divides the variables that it names, and there are some."""
    for pattern in LAYOUTS:
        named = [one for one in variables if re.fullmatch(pattern, one.path)]
        assert named, (pattern, [one.path for one in variables])
        for one in named:
            part = one.value.sharding.shard_shape(tuple(one.shape))
            assert 2 * np.prod(part) == np.prod(one.shape), (one.path, one.shape, part)


def distribute(how: str) -> None:
    """Sets keras.distribution for all models of this process."""
    if how == "one":
        return
    devices = keras.distribution.list_devices("cpu")[:2]
    assert len(devices) == 2, devices
    if how == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
        return
    mesh = keras.distribution.DeviceMesh(shape=(1, 2), axis_names=("batch", "model"), devices=devices)
    layouts = keras.distribution.LayoutMap(mesh)
    for name, layout in LAYOUTS.items():
        layouts[name] = layout
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    )


def train(make, optimizer) -> tuple[list[float], dict[str, np.ndarray]]:
    """The logged losses of two epochs, and the weights."""
    global RANDOM
    RANDOM = np.random.default_rng(2)
    model, x, y, weights, loss = make()
    draws = np.random.default_rng(3)
    for variable in model.weights:  # initial values differ by backend
        if "seed" in variable.path:
            continue
        value = np.ones(variable.shape) if "gamma" in variable.path else draws.normal(0, 0.2, variable.shape)
        variable.assign(value.astype("float32"))
    model.compile(optimizer, **({} if loss is None else {"loss": loss}))
    if isinstance(keras.distribution.distribution(), keras.distribution.ModelParallel):
        check_layouts(model.trainable_weights)
    history = model.fit(x, y, sample_weight=weights, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    named = {re.sub(r"_\d+(?=/|$)", "", one.path): np.asarray(one) for one in model.trainable_weights}
    return history.history["loss"], named


def gradual(*arguments, **keywords):
    """AdamW for the heads and the upper block alone."""
    optimizer = AdamW(*arguments, gradual=True, **keywords)
    optimizer.learn_to_depth(1)
    return optimizer


OPTIMIZERS = {"AdamW": AdamW, "LAMB": LAMB, "gradual": gradual}


def main(how: str, path: str, *names: str) -> None:
    distribute(how)
    keras.random.categorical = likeliest
    results = {}
    for name in names or CASES:
        for kind in OPTIMIZERS if name == "classifier" else ("AdamW",):
            schedule = WarmupLinearDecay(1e-2, total_steps=20, warmup_steps=2)
            losses, weights = train(CASES[name], OPTIMIZERS[kind](schedule, clip_norm=0.5))
            results[f"{name}, {kind}|losses"] = losses
            results |= {
                f"{name}, {kind}|{i}|{part}": value for i, (part, value) in enumerate(weights.items())
            }
    np.savez(path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
