"""The examples of a fine-tuning: both splits, read, counted and checked once."""

from typing import Any, NamedTuple

import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.tasks.batches import cardinality, dataset, hold_out, take_examples
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.task import Task, check_stride
from bert_keras.tasks.training.fingerprint import digest_of_examples
from bert_keras.tasks.training.task_model import check_sizes
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer


class Examples(NamedTuple):
    """The examples for training and evaluation.

    fingerprint: the number of examples of each split and their SHA-256
    """

    train: tf.data.Dataset
    dev: tf.data.Dataset
    train_count: int
    dev_count: int
    fingerprint: dict[str, Any]


def read_examples(task: Task, preprocess: Preprocessor, hparams: Hparams, dev_split: str | None) -> Examples:
    """Reads both splits once. Raises BertKerasError if a split is empty or has no label."""
    if hparams.dev_fraction is None:
        dev_split = dev_split or next(iter(task.validation_splits), "validation")
        dev, everything = task.examples(dev_split), task.examples("train")
    elif dev_split is None:
        dev_split = "held-out"
        everything, dev = hold_out(task.examples("train"), fraction=hparams.dev_fraction, seed=hparams.seed)
    else:
        raise BertKerasError("dev_split and dev_fraction were given; give one of them.")
    draw = hparams.seed if hparams.data_seed is None else hparams.data_seed
    train = take_examples(everything, count=hparams.max_examples, seed=draw)
    counts = cardinality(train), cardinality(dev)
    fingerprint = {
        "train_examples": [counts[0], digest_of_examples(everything)],
        "dev_examples": [counts[1], digest_of_examples(dev)],
    }
    for split, some in (("train", train), (dev_split, dev)):
        check_labelled(task, preprocess, some, split)
        task.check(preprocess, some)
    return Examples(train, dev, *counts, fingerprint)


def check_fits(task: Task, config: BertConfig, tokenizer: Tokenizer, hparams: Hparams) -> None:
    """Raises BertKerasError unless a training example becomes features that the encoder can read."""
    check_sizes(config, vocab_size=tokenizer.vocab_size, seq_length=hparams.seq_length)
    check_stride(task, tokenizer, seq_length=hparams.seq_length)
    preprocess = Preprocessor(tokenizer, seq_length=hparams.seq_length)
    next(iter(dataset(task, preprocess, task.examples("train").take(1), batch_size=1)))


def check_labelled(task: Task, preprocess: Preprocessor, examples: tf.data.Dataset, split: str) -> None:
    """Raises BertKerasError if a split has no labelled example."""
    batches = dataset(task, preprocess, examples, batch_size=256)
    if not any(bool(tf.reduce_any(weights > 0)) for _, _, weights in batches):
        raise BertKerasError(
            f"no example in the {split} split of {task.name} has a label; give a labelled split."
        )
