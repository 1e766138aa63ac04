"""The work of a training before it begins: steps, floating-point operations and a guess at the seconds.

Operations count matrix products, two for each multiplication and addition. Seconds follow from the speed of one matrix product on
this machine, so they are an estimate: a slow disk, short rows and small models make a training slower.
"""

import dataclasses
import itertools
import math
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.config import BERT, BertConfig
from bert_keras.features import INPUT_MASK
from bert_keras.tasks.batches import count, dataset
from bert_keras.tasks.finetuning.examples import read_examples
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.pretraining.estimate import encoder_products, estimate
from bert_keras.tasks.pretraining.recipes import Recipe
from bert_keras.tasks.task import Task
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer

SAMPLE = 20  # batches whose tokens are counted
# Seconds before the first step, for graphs, and of each step besides its products; the part of the speed of one large matrix
# product that a training reaches. Measured on two cores.
START, STEP, REACHED = 15.0, 0.02, 0.5
SIDE = 2048  # of the matrix product


class Work(NamedTuple):
    """steps: of the optimizer; flops: operations of all steps and evaluations."""

    steps: int
    flops: float


def seconds(work: Work, speed: float) -> float:
    """The estimated time of a training. speed: of `matrix_speed`."""
    return START + work.steps * STEP + work.flops / (REACHED * speed)


def matrix_speed() -> float:
    """Floating-point operations a second of a matrix product on the first device; the best of three."""
    side = tf.ones([SIDE, SIDE])
    took = []
    for _ in range(4):  # the first makes the kernel ready
        began = time.monotonic()
        float(tf.linalg.matmul(side, side)[0, 0])
        took.append(time.monotonic() - began)
    return 2 * SIDE**3 / min(took[1:])


def of_pretraining(recipe: Recipe, *, vocab_size: int) -> Work:
    """The steps and operations of a pre-training, as `bert-keras plan` estimates them, without evaluations and own heads."""
    named = tuple(one for one in recipe.objectives if isinstance(one, str)) or ("masked_lm",)
    known = dataclasses.replace(recipe, objectives=named).changed(
        precision="float32"
    )  # an estimate knows no other
    found = estimate(known, known.config(vocab_size=vocab_size))
    return Work(recipe.hparams.steps, sum(phase.flops * phase.steps for phase in found.phases))


def of_finetuning(task: Task, config: BertConfig, tokenizer: Tokenizer, hparams: Hparams) -> Work:
    """The steps and operations of a fine-tuning, with its evaluations; it reads the examples."""
    preprocess = Preprocessor(tokenizer, seq_length=hparams.seq_length, pad_to_longest=True)
    examples = read_examples(task, preprocess, hparams, None)
    steps, tokens = _size(task, preprocess, examples.train, hparams)
    batches, dev_tokens = _size(task, preprocess, examples.dev, hparams)
    each_token = forward(config)
    train, dev = steps * tokens * each_token, batches * dev_tokens * each_token
    if hparams.feature_layers is None:
        once = 0.0
        each = (1 if hparams.freeze else 3) * train + dev
    else:  # the encoder runs once; a BiLSTM has 4 gates for both directions
        once, units = train + dev, hparams.lstm_units
        lstm = hparams.lstm_layers * 2 * 2 * 4 * units * (3 * units)
        each = (3 * steps * tokens + batches * dev_tokens) * lstm
    return Work(steps * hparams.epochs, once + hparams.epochs * each)


def _size(
    task: Task, preprocess: Preprocessor, examples: tf.data.Dataset, hparams: Hparams
) -> tuple[int, float]:
    """The number of batches, and the mean number of tokens in one."""
    batches = dataset(task, preprocess, examples, batch_size=hparams.batch_size)
    some = [float(np.sum(x[INPUT_MASK])) for x, *_ in itertools.islice(batches.as_numpy_iterator(), SAMPLE)]
    return count(batches), sum(some) / len(some)


def forward(config: BertConfig) -> float:
    """Operations for each token of the encoder's blocks, without the products of queries and keys."""
    if config.encoder != BERT:
        return 2.0 * encoder_products(config, 1)
    sizes = variable_shapes(config).items()
    blocks = sum(math.prod(shape) for name, shape in sizes if not name.startswith("embeddings/"))
    return 2.0 * blocks * (config.num_layers if config.share_layers else 1)
