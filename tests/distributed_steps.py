"""Fifty steps of each kind of training under a strategy: a job of test_accumulation.py, test_multiworker.py and benchmarks."""

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
from bert_keras.optimization import pretrainers
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.objectives import MaskedLM, ReplacedTokens, SentencePair, label
from bert_keras.optimization.optimizers import LAMB, AdamW
from bert_keras.optimization.schedules import WarmupLinearDecay
from bert_keras.optimization.training_model import TrainingModel
from bert_keras.tasks.devices.strategies import differ_between_replicas, rows_for, strategy
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.task import classifier_model
from bert_keras.text.masking import Pieces
from bert_keras.text.preprocessing import pad_batches
from bert_keras.text.tokenizer import SpecialTokens

CONFIG = BertConfig(
    vocab_size=60,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    max_positions=32,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.2,
)
BATCH, STEPS, LENGTH, CLIP = 12, 50, 20, 0.05
ROWS = 5 * BATCH - 5  # five batches in an epoch, the last of seven rows


def features(generator):
    """Rows of three tokens to LENGTH; those of the first half of each batch are short."""
    short = np.arange(ROWS) % BATCH < BATCH // 2
    lengths = np.where(short, generator.integers(3, 6, ROWS), generator.integers(6, LENGTH + 1, ROWS))
    ids = generator.integers(5, CONFIG.vocab_size, (ROWS, LENGTH)).astype("int32")
    mask = (np.arange(LENGTH) < lengths[:, None]).astype("int32")
    return dict(zip(ENCODER_INPUTS, (ids * mask, mask, np.zeros_like(ids)), strict=True))


def weights(generator, *shape):
    """From 0 to 2; those of the first half of each batch are a thousandth."""
    short = np.arange(ROWS) % BATCH < BATCH // 2
    drawn = generator.uniform(0.0, 2.0, (ROWS, *shape)) * (generator.uniform(size=(ROWS, *shape)) > 0.2)
    return (drawn * np.where(short, 1e-3, 1).reshape(-1, *[1] * len(shape))).astype("float32")


def supervised(classes, *shape):
    generator = np.random.default_rng(3)
    labels = generator.integers(0, classes, (ROWS, *shape)).astype("int32")
    rows, given = features(generator), weights(generator, *shape)
    if shape == (LENGTH,):  # labels of tokens
        given *= rows[INPUT_MASK]
    batch = rows, labels, given
    return tf.data.Dataset.from_tensor_slices(batch).batch(BATCH)


def unsupervised(*objectives):
    generator = np.random.default_rng(4)
    batch = features(generator) | {NEXT_SENTENCE_LABEL: generator.integers(0, 2, (ROWS, 1)).astype("int32")}
    batches = tf.data.Dataset.from_tensor_slices(batch).batch(BATCH).enumerate()
    return batches.map(
        lambda i, batch: label(batch, objectives=objectives, seed=tf.stack([i, tf.constant(3, tf.int64)]))
    )


PIECES = Pieces(
    special=SpecialTokens(padding=0, unknown=1, start=2, end=3, mask=4),
    continues=np.zeros(60, bool),
    real=np.arange(5, 60, dtype="int32"),
)
MASKED_LM = MaskedLM(pieces=PIECES, masking=Masking(max_predictions=5))


def first_choice(logits, num_samples, dtype=None, seed=None):
    """In place of the generator's draws, which are others in other micro-batches."""
    return keras.ops.expand_dims(keras.ops.argmax(logits, axis=-1), -1)


def training(network, encoder):
    made = network(encoder)
    return TrainingModel(made._inputs_struct, made._outputs_struct)


def classifier():
    return training(
        lambda encoder: classifier_model(encoder, 3), BertEncoder(CONFIG, outputs=(POOLED_OUTPUT,))
    )


def answers():
    return training(QuestionAnswering("squad1.1").model, BertEncoder(CONFIG, outputs=(SEQUENCE_OUTPUT,)))


def tagger():
    task = Tagging(["O", "I-PER", "I-LOC"], scheme="IOB1")
    return training(task.model, BertEncoder(CONFIG, outputs=(SEQUENCE_OUTPUT,)))


def pretrainer():
    encoder = BertEncoder(CONFIG, outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT))
    return pretrainers.Pretrainer(encoder, (MASKED_LM, SentencePair()), count_tokens=True)


def electra():
    keras.random.categorical = first_choice
    return pretrainers.ElectraPretrainer(BertEncoder(CONFIG, outputs=(SEQUENCE_OUTPUT,)), MASKED_LM)


# Kind -> model, optimizer, batches.
KINDS = {
    "classifier": (classifier, AdamW, lambda: supervised(3)),
    "answers": (answers, AdamW, lambda: supervised(3, 2)),
    "tagger": (tagger, AdamW, lambda: supervised(3, LENGTH)),
    "pretraining": (pretrainer, AdamW, lambda: unsupervised(MASKED_LM, SentencePair())),
    "lamb": (classifier, LAMB, lambda: supervised(3)),
    "electra": (electra, AdamW, lambda: unsupervised(MASKED_LM, ReplacedTokens())),
}


def train(kind, micro_batch, distribution):
    """Weights after STEPS steps, logs of `fit` and measures of `evaluate`."""
    model_of, optimizer, batches = KINDS[kind]
    keras.utils.set_random_seed(1)
    with distribution.scope():
        model = model_of()
        schedule = WarmupLinearDecay(2e-3, total_steps=2 * STEPS, warmup_steps=5)
        options = (
            {}
            if kind in ("pretraining", "electra")
            else {"loss": GlobalMean(cross_entropy), "weighted_metrics": [cross_entropy]}
        )
        model.compile(
            optimizer(schedule, clip_norm=CLIP), micro_batch=micro_batch or None, jit_compile=False, **options
        )
        model.optimizer.build(model.trainable_variables)
    differ_between_replicas(model)
    data = pad_batches(batches(), multiple_of=rows_for(distribution, BATCH))
    history = model.fit(data.repeat(), epochs=2, steps_per_epoch=STEPS // 2, verbose=0, shuffle=False).history
    measures = model.evaluate(data, verbose=0, return_dict=True)
    assert int(model.optimizer.iterations.numpy()) == STEPS
    found = {variable.path: variable.numpy() for variable in model.trainable_variables}
    found |= {f"fit {name}": np.array(values) for name, values in history.items()}
    return found | {f"evaluate {name}": np.array(value) for name, value in measures.items()}


def train_all(strategy_name, output, jobs):
    """Writes the weights and the logs of each job, and the measures of `evaluate`, to an NPZ file.

    jobs: kind:micro_batch; a micro_batch of 0 computes the whole batch at once
    """
    distribution, found = strategy(strategy_name), {}
    for job in jobs:
        kind, micro_batch = job.split(":")
        found |= {
            f"{job} {name}": value for name, value in train(kind, int(micro_batch), distribution).items()
        }
    if Workers(distribution).chief:
        np.savez(output, **found)
