"""Pre-training on two replicas against one device at the same batches: a job of test_objectives.py.

Out: the tokens that each batch asks of each replica; by optimizer, the greatest difference of a weight after
ten steps, what `fit` logged and the norms of the gradients before clipping; what `pretrain` logs; what dropout makes of
ones; the seeds of all replicas before and after an evaluation, and before and after a restore.
"""

import dataclasses
import itertools
import tempfile
import types
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_MASK,
    NEXT_SENTENCE_LABEL,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.fields import Masking
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.objectives import MaskedLM, SentencePair, label
from bert_keras.optimization.optimizers import LAMB, AdamW
from bert_keras.optimization.pretrainers import Pretrainer
from bert_keras.tasks.devices.strategies import differ_between_replicas, rows_for, strategy
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.hparams import PretrainHparams
from bert_keras.tasks.pretraining import monitor
from bert_keras.tasks.training.saver import Saver
from bert_keras.text.masking import Pieces
from bert_keras.text.preprocessing import pad_batches
from bert_keras.text.tokenizer import SpecialTokens

CONFIG = BertConfig(
    vocab_size=60,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=32,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.2,
)
PIECES = Pieces(
    special=SpecialTokens(padding=0, unknown=1, start=2, end=3, mask=4),
    continues=np.zeros(60, bool),
    real=np.arange(5, 60, dtype="int32"),
)
OBJECTIVES = (MaskedLM(pieces=PIECES, masking=Masking(max_predictions=5)), SentencePair())
CLIP, BATCH, STEPS = 0.05, 8, 10


class Recording:
    """Keeps the norm of what an optimizer clips; for eager steps."""

    norms: list[float]

    def _clip(self, grads):
        self.norms.append(float(tf.linalg.global_norm(grads)))
        return super()._clip(grads)


class RecordingAdamW(Recording, AdamW):
    norms = []


class RecordingLAMB(Recording, LAMB):
    norms = []


OPTIMIZERS = {"adamw": (RecordingAdamW, AdamW), "lamb": (RecordingLAMB, LAMB)}


def data():
    """The first half of each batch, which is one replica's share, is short, the second is long."""
    generator = np.random.default_rng(0)
    count = BATCH * STEPS
    short = np.arange(count) % BATCH < BATCH // 2
    lengths = np.where(short, generator.integers(3, 8, count), generator.integers(20, 30, count))
    ids = generator.integers(5, CONFIG.vocab_size, (count, 30)).astype("int32")
    mask = (np.arange(30) < lengths[:, None]).astype("int32")
    features = dict(zip(ENCODER_INPUTS, (ids * mask, mask, np.zeros_like(ids)), strict=True))
    features[NEXT_SENTENCE_LABEL] = generator.integers(0, 2, (count, 1)).astype("int32")
    batches = tf.data.Dataset.from_tensor_slices(features).batch(BATCH, drop_remainder=True).enumerate()
    return batches.map(
        lambda i, batch: label(batch, objectives=OBJECTIVES, seed=tf.stack([i, tf.constant(3, tf.int64)]))
    )


def pretrainer(config):
    """A model that `pretrain` trains."""
    encoder = BertEncoder(config, outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT))
    return Pretrainer(encoder, OBJECTIVES, count_tokens=True)


def watch(model, folder):
    """The monitor of `pretrain`, which evaluates on batches of five and of two; a second passes between two of its looks."""
    monitor.time = types.SimpleNamespace(monotonic=itertools.count().__next__)
    held_out = data().unbatch().take(7).batch(5)
    inputs = monitor.RunInputs(
        source=None,
        hparams=PretrainHparams(steps=STEPS, log_every=4),
        objectives=[OBJECTIVES],
        held_out=[pad_batches(held_out, multiple_of=rows_for(model.distribute_strategy, 5))],
        snapshots=(),
        save=lambda path: None,
        about={},
    )
    made = monitor.PretrainingMonitor(Path(folder), inputs=inputs, log=print, workers=Workers())
    made.set_model(model)
    return made


def watched(model):
    """The log of ten more steps of `pretrain`."""
    with tempfile.TemporaryDirectory() as folder:
        callback = watch(model, folder)
        model.fit(data(), verbose=0, shuffle=False, callbacks=[callback])
    return callback.history


def train(name, optimizer_class):
    """Weights after `fit`, and its logs."""
    keras.utils.set_random_seed(1)
    with strategy(name).scope():
        model = pretrainer(CONFIG)
        model.compile(optimizer_class(2e-3, clip_norm=CLIP), run_eagerly=name == "one", jit_compile=False)
    return model, model.fit(data(), verbose=0, shuffle=False).history


def dropped():
    """On one device, then in each replica, of one seed: two calls of each."""
    ones, alone = tf.ones([1, 64]), keras.layers.Dropout(0.5, seed=7)
    scope = strategy("mirrored")
    with scope.scope():
        model = keras.Sequential([keras.Input([64]), keras.layers.Dropout(0.5, seed=7)])
    differ_between_replicas(model)
    run = tf.function(lambda: scope.experimental_local_results(scope.run(model, [ones], {"training": True})))
    return [[alone(ones, training=True), *run()] for _ in range(2)]


def seeds(model):
    """By generator, its state in each replica."""
    states = [one for one in model.variables if one.name == "seed_generator_state"]
    return [[copy.numpy().tolist() for copy in one.value.values] for one in states]


def seeds_around_an_evaluation():
    """Before and after, where dropout has drawn numbers."""
    with strategy("mirrored").scope():
        model = pretrainer(dataclasses.replace(CONFIG, hidden_dropout=0.1))
        model.compile(AdamW())
    differ_between_replicas(model)
    with tempfile.TemporaryDirectory() as folder:
        callback, before = watch(model, folder), seeds(model)
        callback._evaluate(callback._inputs.held_out[0])
    return before, seeds(model)


def seeds_around_a_restore():
    """As they were when a save was made, and when it is restored into a model that has drawn since."""
    scope = strategy("mirrored")
    with scope.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile(AdamW())
        model.optimizer.build(model.trainable_variables)
    differ_between_replicas(model)
    run = tf.function(lambda: scope.run(model, [tf.ones([1, 4])], {"training": True}))
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(Path(folder), model, every=1, remember=lambda: None)
        run()
        before = seeds(model)
        saver._save()
        run()
        saver.restore()
        differ_between_replicas(model)
    return before, seeds(model)


def sums_around_a_restore():
    """The sums of a metric in each replica, as they were when a save was made, and after it is restored."""
    scope = strategy("mirrored")
    with scope.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile(AdamW(), loss="mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
    x = tf.data.Dataset.from_tensor_slices((tf.random.normal([8, 4], seed=1), tf.ones([8, 1]))).batch(8)

    def sums():
        read = tf.function(lambda: scope.run(lambda: [one.value + 0 for one in model.metrics_variables]))
        return [[float(part) for part in scope.experimental_local_results(one)] for one in read()]

    with tempfile.TemporaryDirectory() as folder:
        model.fit(x, verbose=0)
        saver = Saver(Path(folder), model, every=1, remember=lambda: None)
        before = sums()
        saver._save()
        model.reset_metrics()
        saver.restore()
    return before, sums()


def compare():
    asked = [batch[2]["masked_lm"].numpy() for batch in data()]
    results = {"asked": [[float(half.sum()) for half in np.split(batch, 2)] for batch in asked]}
    for name, (recording, plain) in OPTIMIZERS.items():
        one, logs = train("one", recording)
        two, logs_of_two = train("mirrored", plain)
        pairs = zip(one.get_weights(), two.get_weights(), strict=True)
        results[name] = {
            "steps": len(recording.norms),
            "clip": CLIP,
            "least_norm": min(recording.norms),
            "difference": max(float(np.abs(a - b).max()) for a, b in pairs),
            "logs": logs,
            "logs_of_two": logs_of_two,
        }
        if name == "adamw":
            results["watched"], results["watched_of_two"] = watched(one), watched(two)
    tokens = [int(batch[0][INPUT_MASK].numpy().sum()) for batch in data()]
    results["tokens"] = [sum(tokens[i : i + 4]) for i in range(0, STEPS, 4)]
    results["evaluated"], results["restored"] = seeds_around_an_evaluation(), seeds_around_a_restore()
    results["sums"], results["restored_sums"] = sums_around_a_restore()
    results["dropped"] = [[values.numpy()[0].tolist() for values in call] for call in dropped()]
    return results
