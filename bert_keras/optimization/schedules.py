"""Learning rate schedules: an optimizer step in, its rate out."""

from typing import Any

import keras
from keras import ops

from bert_keras.errors import BertKerasError


@keras.saving.register_keras_serializable("bert_keras")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to `peak`, then linear decay to 0, both counted from step 0.

    peak: the highest rate; total_steps, warmup_steps: in optimizer steps

    After the warm-up the rate at step n is peak * (1 - n / total_steps), as in google-research/bert optimization.py.
    Raises ValueError where the warm-up is longer than the training.
    """

    def __init__(self, peak: float, *, total_steps: int, warmup_steps: int) -> None:
        if total_steps < 1 or not 0 <= warmup_steps <= total_steps:
            raise BertKerasError(
                f"warmup_steps is {warmup_steps} and total_steps is {total_steps}; "
                "give 0 <= warmup_steps <= total_steps and total_steps over 0."
            )
        self.peak, self.total_steps, self.warmup_steps = peak, total_steps, warmup_steps

    def __call__(self, step: Any) -> Any:
        """Step, a scalar -> rate, float32."""
        step = ops.cast(step, "float32")
        rising = self.peak * step / max(1, self.warmup_steps)
        falling = self.peak * ops.maximum(0.0, 1.0 - step / self.total_steps)
        return ops.where(step < self.warmup_steps, rising, falling)

    def get_config(self) -> dict[str, Any]:
        return {"peak": self.peak, "total_steps": self.total_steps, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable("bert_keras")
class LinearAfterWarmup(WarmupLinearDecay):
    """Linear warm-up to `peak`, then linear decay to 0, counted from the end of the warm-up.

    As `create_optimizer` and `Trainer` of transformers; WarmupLinearDecay explains the arguments.

        rate = peak * t / warmup if t < warmup, else peak * (1 - (t - warmup) / (total - warmup))
    """

    def __call__(self, step: Any) -> Any:
        step, warmup = ops.cast(step, "float32"), self.warmup_steps
        rising = step / max(1, warmup)
        falling = 1.0 - (step - warmup) / max(1, self.total_steps - warmup)
        return self.peak * ops.where(step < warmup, rising, ops.maximum(0.0, falling))


@keras.saving.register_keras_serializable("bert_keras")
class SlantedTriangular(LinearAfterWarmup):
    """Linear rise from `peak` / `ratio` to `peak`, then linear fall back (Howard and Ruder 2018, sec. 3.2).

    peak, total_steps, warmup_steps: as in WarmupLinearDecay. The paper calls total_steps T and warmup_steps cut; its cut_frac,
        warmup_steps / total_steps, is 0.1

        p = t / cut if t < cut, else 1 - (t - cut) / (T - cut);  rate = peak * (1 + p * (ratio - 1)) / ratio
    """

    ratio = 32  # the paper's

    def __call__(self, step: Any) -> Any:
        return (self.peak + super().__call__(step) * (self.ratio - 1)) / self.ratio


@keras.saving.register_keras_serializable("bert_keras")
class InverseSquareRoot(WarmupLinearDecay):
    """Linear warm-up to `peak`, then a decay by the root of the step (Vaswani et al. 2017, sec. 5.3); steps count from 1.

        rate = peak * min(n / warmup, sqrt(warmup / n))

    The paper's d^-0.5 * min(n^-0.5, n * warmup^-1.5) has the peak (d * warmup)^-0.5: 7e-4 for its 512 and 4,000.
    """

    def __call__(self, step: Any) -> Any:
        number, warmup = ops.cast(step, "float32") + 1.0, float(max(1, self.warmup_steps))
        return self.peak * ops.minimum(number / warmup, ops.sqrt(warmup / number))


# Hparams.schedule and PretrainHparams.schedule repeat these names, because flags must not import Keras.
SCHEDULES: dict[str, type[WarmupLinearDecay]] = {
    "linear": WarmupLinearDecay,
    "linear_after_warmup": LinearAfterWarmup,
    "slanted_triangular": SlantedTriangular,
    "inverse_square_root": InverseSquareRoot,
}
