"""bert_keras: fine-tuning and pre-training."""

import pathlib
from typing import Any

import numpy as np

from bert_keras.features import MASKED_LM_POSITIONS, POOLED_OUTPUT, SEQUENCE_OUTPUT
from peer_work.ours import ready_features
from peer_work.work import (
    CLIP_NORM,
    LEARNING_RATE,
    SEED,
    WEIGHT_DECAY,
    Case,
    Prepared,
    examples,
    labels,
    masked,
)

COMPARED = 2  # rows whose logits over the vocabulary are compared


def optimizer() -> Any:
    """AdamW with a linear decay that is too long to be seen."""
    from bert_keras.optimization.optimizers import AdamW
    from bert_keras.optimization.schedules import WarmupLinearDecay

    schedule = WarmupLinearDecay(LEARNING_RATE, total_steps=1_000_000, warmup_steps=0)
    return AdamW(schedule, weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM)


def finetune(case: Case, folder: pathlib.Path, *, padded: bool = False, xla: bool = False) -> Prepared:
    """`model.fit` of SST-2's task, on ready features or on sentences.

    padded: computes padding, as the peers do
    xla: compiles the step with XLA, which computes padding too
    """
    import tensorflow as tf

    from bert_keras import checkpoints
    from bert_keras.model.choices import training_policy
    from bert_keras.optimization.replicas import without_autotuning
    from bert_keras.tasks.batches import dataset
    from bert_keras.tasks.problems.classification import TextClassification
    from bert_keras.tasks.training.task_model import heads_of, network_of
    from bert_keras.text.preprocessing import Preprocessor

    task = TextClassification.open("sst2")
    checkpoint = checkpoints.read(folder / case.size)
    encoder, model = network_of(task, checkpoint.config, dtype=training_policy(case.precision))
    checkpoints.assign(checkpoint, encoder, **heads_of(model))
    encoder.unpadded = not (padded or xla)
    model.compile(optimizer(), loss=task.loss(), jit_compile=xla)
    if case.texts:
        preprocess = Preprocessor(
            checkpoints.tokenizer_of(checkpoint), seq_length=case.length, pad_to_longest=True
        )
        texts, targets = examples(folder)
        rows = tf.data.Dataset.from_tensor_slices({"sentence": texts, "label": targets}).take(
            case.batch * case.steps
        )
        batches = dataset(task, preprocess, rows, batch_size=case.batch, seed=SEED)
        first = preprocess(tf.constant(texts[: case.batch]))
    else:
        first = ready_features(case)
        one = (first, labels(case), np.ones(case.batch, "float32"))
        batches = tf.data.Dataset.from_tensors(one).repeat(case.steps)
    # A plain Keras model: the one that `bert-keras finetune` trains turns autotuning off itself.
    steady = without_autotuning(batches)
    return lambda: model.fit(steady, verbose=0), {"logits": model(first, training=False).numpy()}


def pretrain(case: Case, folder: pathlib.Path, *, padded: bool = False, xla: bool = False) -> Prepared:
    """`Pretrainer.fit` of the masked LM and the next sentence. The vocabulary is compared with the masked positions only.

    padded: computes padding, as the peers do
    xla: compiles the step with XLA, which computes padding too
    """
    import tensorflow as tf

    from bert_keras import BertEncoder, MaskedLM, Pieces, Pretrainer, SentencePair, checkpoints
    from bert_keras.model.choices import training_policy

    checkpoint = checkpoints.read(folder / case.size)
    encoder = BertEncoder(
        checkpoint.config, outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT), dtype=training_policy(case.precision)
    )
    encoder.unpadded = not (padded or xla)
    pieces = Pieces.of(checkpoints.tokenizer_of(checkpoint))
    model = Pretrainer(encoder, [MaskedLM(pieces=pieces), SentencePair()])
    checkpoints.assign(checkpoint, encoder, **model.heads)
    model.compile(optimizer(), jit_compile=xla)
    positions, ids = masked(case)
    given = ready_features(case) | {MASKED_LM_POSITIONS: tf.constant(positions)}
    targets = {"masked_lm": ids, "next_sentence": labels(case)}
    weights = {name: np.ones(value.shape, "float32") for name, value in targets.items()}
    batches = tf.data.Dataset.from_tensors((given, targets, weights)).repeat(case.steps)
    found = model(given, training=False)
    compared = {
        "masked_lm": found["masked_lm"][:COMPARED].numpy(),
        "next_sentence": found["next_sentence"].numpy(),
    }
    return lambda: model.fit(batches, verbose=0), compared
