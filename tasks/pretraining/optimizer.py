"""The optimizer and the learning rate schedule of pre-training, from PretrainHparams."""

import numpy as np

from bert_keras.optimization.optimizers import LAMB, AdamW
from bert_keras.optimization.schedules import WarmupLinearDecay
from bert_keras.tasks.hparams import PretrainHparams

OPTIMIZERS = {"adamw": AdamW, "lamb": LAMB}
LONG_STEP = 2.0  # times the learning rate: larger updates cause a warning


def schedule(hparams: PretrainHparams) -> WarmupLinearDecay:
    """The learning rate of each step, over all phases."""
    return WarmupLinearDecay(
        hparams.learning_rate, total_steps=hparams.steps, warmup_steps=hparams.warmup_steps
    )


def longest_step(hparams: PretrainHparams) -> float:
    """AdamW's largest update for a constant gradient, as a multiple of `learning_rate`; over 1 without bias correction."""
    if hparams.optimizer != "adamw" or hparams.bias_correction:
        return 1.0
    done = np.arange(hparams.steps, dtype=np.float32)
    rates = np.asarray(schedule(hparams)(done)) / hparams.learning_rate
    beta_1 = 0.9  # AdamW's
    return float(np.max(rates * (1 - beta_1 ** (done + 1)) / np.sqrt(1 - hparams.beta_2 ** (done + 1))))


def warnings_of(hparams: PretrainHparams) -> list[str]:
    """A warning of long steps, in a list; else an empty list."""
    if (longest := longest_step(hparams)) <= LONG_STEP:
        return []
    return [
        f"warning: updates may be {longest:.1f}x the learning rate in a warm-up of {hparams.warmup_steps:,} steps without bias "
        "correction, and a masked LM may learn no more than token frequencies; set bias_correction=true, or a larger "
        "warmup_proportion"
    ]
