"""BERT's optimizer for fine-tuning, as Hparams describes it."""

from bert_keras.optimization.optimizers import AdamW
from bert_keras.optimization.schedules import SCHEDULES
from bert_keras.tasks.hparams import Hparams

# The fields of Hparams that describe the optimizer and its schedule.
OPTIMIZER_SETTINGS = (
    "learning_rate",
    "warmup_proportion",
    "weight_decay",
    "clip_norm",
    "bias_correction",
    "layer_decay",
    "schedule",
)


def optimizer_of(hparams: Hparams, *, total_steps: int) -> AdamW:
    """AdamW whose learning rate rises in the warm-up and falls to 0 at `total_steps`."""
    schedule = SCHEDULES[hparams.schedule](
        hparams.learning_rate,
        total_steps=total_steps,
        warmup_steps=int(total_steps * hparams.warmup_proportion),
    )
    return AdamW(
        schedule,
        weight_decay=hparams.weight_decay,
        clip_norm=hparams.clip_norm,
        bias_correction=hparams.bias_correction,
        layer_decay=hparams.layer_decay,
        gradual=hparams.unfreeze == "gradual",
    )
