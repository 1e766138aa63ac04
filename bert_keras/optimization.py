"""How BERT is optimized: AdamW without bias correction or LAMB, warm-up and linear decay, and a mean that is global.

In: gradients and losses of one replica. Out: the update that one device would make on the whole batch. All of it
works in a stock `model.fit`, on one device and under `tf.distribute`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from bert_keras.errors import BertKerasError

# Blocks are numbered from the bottom.
_EMBEDDINGS, _BLOCK = re.compile(r"(^|/)embeddings/"), re.compile(r"(^|/)block_(\d+)/")

# google-research/bert optimization.py excludes LayerNorm and bias; in Keras their paths tell them apart.
NO_DECAY = r"layer_?norm|(^|/)(bias|gamma|beta)$"


def depths(paths: Sequence[str]) -> list[int]:
    """How deep each variable lies: 0 in a head or the pooler, 1 in the top block, L in the lowest, L + 1 in the embeddings.

    paths: of all variables of a model; L is the number of blocks among them. Layers that share their weights are one
    block, at depth 1.
    """
    found = [_BLOCK.search(path) for path in paths]
    blocks = 1 + max((int(match[2]) for match in found if match), default=-1)
    return [
        blocks - int(match[2]) if match else (blocks + 1) * bool(_EMBEDDINGS.search(path))
        for path, match in zip(paths, found, strict=True)
    ]


def _replica_context() -> Any:
    """The replica context where more than one replica is in sync, else None."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context if context is not None and context.num_replicas_in_sync > 1 else None


def _dense(gradient: Any) -> Any:
    """A tensor, also of an embedding's gradient, which TensorFlow gives as slices with rows more than once."""
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


@keras.saving.register_keras_serializable("bert_keras")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to `peak`, then linear decay to 0, both counted from step 0.

    peak: the highest rate; total_steps, warmup_steps: in optimizer steps

    After the warm-up the rate at step n is peak * (1 - n / total_steps), as in google-research/bert optimization.py.
    Raises ValueError on a warm-up longer than the whole.
    """

    def __init__(self, peak: float, *, total_steps: int, warmup_steps: int) -> None:
        if total_steps < 1 or not 0 <= warmup_steps <= total_steps:
            raise BertKerasError(
                f"warmup_steps {warmup_steps} of total_steps {total_steps}; "
                "wanted 0 <= warmup_steps <= total_steps, total_steps over 0."
            )
        self.peak, self.total_steps, self.warmup_steps = peak, total_steps, warmup_steps

    def __call__(self, step: Any) -> Any:
        """Step, a scalar -> rate, float32."""
        step = ops.cast(step, "float32")
        rising = self.peak * step / max(1, self.warmup_steps)
        falling = self.peak * ops.maximum(0.0, 1.0 - step / self.total_steps)
        return ops.where(step < self.warmup_steps, rising, falling)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"peak": self.peak, "total_steps": self.total_steps, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable("bert_keras")
class SlantedTriangular(WarmupLinearDecay):
    """Linear rise from `peak` / `ratio` to `peak`, then linear fall back (Howard and Ruder 2018, sec. 3.2).

    peak, total_steps, warmup_steps: as of WarmupLinearDecay; the paper's T is total_steps, its cut is warmup_steps and its
        cut_frac, 0.1 there, is warmup_steps / total_steps

        p = t / cut if t < cut, else 1 - (t - cut) / (T - cut);  rate = peak * (1 + p * (ratio - 1)) / ratio
    """

    ratio = 32  # the paper's

    def __call__(self, step: Any) -> Any:
        """Step, a scalar -> rate, float32."""
        step, cut = ops.cast(step, "float32"), self.warmup_steps
        rising = step / max(1, cut)
        falling = 1.0 - (step - cut) / max(1, self.total_steps - cut)
        share = ops.where(step < cut, rising, ops.maximum(0.0, falling))
        return self.peak * (1.0 + share * (self.ratio - 1)) / self.ratio


SCHEDULES: dict[str, type[WarmupLinearDecay]] = {
    "linear": WarmupLinearDecay,
    "slanted_triangular": SlantedTriangular,
}


class _TwoMoments(keras.optimizers.Optimizer):
    """What AdamW and LAMB share: two moments, which variables decay, and clipping by the norm of the global gradient.

    Gradients are summed over the replicas first and clipped by their global norm afterwards, so that two replicas do
    what one device does. Variables whose path matches `no_decay` are not decayed.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        weight_decay: float,
        beta_1: float,
        beta_2: float,
        epsilon: float,
        clip_norm: float | None,
        bias_correction: bool,
        no_decay: str,
        name: str,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name)
        self.decay = weight_decay  # Keras' own `weight_decay` would be applied a second time
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.clip_norm, self.bias_correction, self.no_decay = clip_norm, bias_correction, no_decay

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes both moments and settles which variables decay."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(variables, ["momentum", "velocity"])
        self._decays = [self.is_decayed(variable) for variable in variables]

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[keras.Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Leaves more variables undecayed, as Keras does: those in `var_list` and those whose name matches one of `var_names`.

        A name is the last part of a path, such as "kernel"; `no_decay` matches whole paths. `get_config` keeps neither list.
        Raises ValueError once the optimizer is built.
        """
        if self.built:  # Keras' own check looks at an attribute that no optimizer has
            raise BertKerasError(
                f"{self.name} is built already, which settles what decays; call exclude_from_weight_decay before."
            )
        super().exclude_from_weight_decay(var_list, var_names)

    def is_decayed(self, variable: keras.Variable) -> bool:
        """Whether `weight_decay` touches this variable."""
        return self.decay > 0 and not self._is_excluded(variable) and self._use_weight_decay(variable)

    def _is_excluded(self, variable: keras.Variable) -> bool:
        return re.search(self.no_decay, variable.path, flags=re.IGNORECASE) is not None

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        """Sums over the replicas, clips by the global norm, updates."""
        given = self._given(grads, trainable_variables)
        context = _replica_context() if given else None
        if context is None:
            given = self._clip(given)
        else:
            # Keras sums over the replicas once more when it updates.
            given = self._clip(context.all_reduce("SUM", given))
            given = [grad / context.num_replicas_in_sync for grad in given]
        rest = iter(given)
        super().apply([None if grad is None else next(rest) for grad in grads], trainable_variables)

    def _given(self, grads: Sequence[Any], variables: Sequence[keras.Variable] | None) -> list[Any]:
        """The gradients that are there."""
        return [_dense(grad) for grad in grads if grad is not None]

    def _clip(self, grads: list[Any]) -> list[Any]:
        if self.clip_norm is None or not grads:
            return grads
        norm = ops.sqrt(sum(ops.sum(ops.square(ops.cast(grad, "float32"))) for grad in grads))
        scale = self.clip_norm / ops.maximum(norm, self.clip_norm)
        return [grad * ops.cast(scale, grad.dtype) for grad in grads]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        base = super().get_config()
        names = ("beta_1", "beta_2", "epsilon", "clip_norm", "bias_correction", "no_decay", "name")
        return {"learning_rate": base["learning_rate"], "weight_decay": self.decay} | {
            name: getattr(self, name) for name in names
        }


@keras.saving.register_keras_serializable("bert_keras")
class AdamW(_TwoMoments):
    """BERT's optimizer: google-research/bert optimization.py AdamWeightDecayOptimizer; Devlin et al. 2019, A.2.

        m <- beta_1 m + (1 - beta_1) g;  v <- beta_2 v + (1 - beta_2) g^2
        w <- w - rate * (m / (sqrt(v) + epsilon) + weight_decay * w)

    There is no bias correction unless asked for; then it is that of `keras.optimizers.Adam`. Variables whose path
    matches `no_decay` are not decayed. Gradients are summed over the replicas first and clipped by their global norm
    afterwards, so that two replicas do what one device does.

    layer_decay: the rate of a variable at depth d (as `depths` counts) is the schedule's times layer_decay ** d
        (discriminative rates: Howard and Ruder 2018, sec. 3.1, with 1 / 2.6); 1 gives all the same
    gradual: `learn_to_depth` decides which variables learn; the others keep every bit, are not decayed, leave their
        moments as they are and take no part in the norm
    """

    def __init__(
        self,
        learning_rate: Any = 5e-5,
        *,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clip_norm: float | None = 1.0,
        bias_correction: bool = False,
        no_decay: str = NO_DECAY,
        layer_decay: float = 1.0,
        gradual: bool = False,
        name: str = "adamw",
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            clip_norm=clip_norm,
            bias_correction=bias_correction,
            no_decay=no_decay,
            name=name,
        )
        self.layer_decay, self.gradual = layer_decay, gradual
        self._wanted_depth: int | None = None  # as asked for before `build`; None: all depths

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes both moments and settles which variables decay and how deep each lies."""
        if self.built:
            return
        super().build(variables)
        self._depths = depths([variable.path for variable in variables])
        if self.gradual:
            depth = max(self._depths, default=0) if self._wanted_depth is None else self._wanted_depth
            # A variable, so that a step which is traced once obeys it. The value comes from the initializer, because
            # `fit` may build the optimizer inside its trace, where an assignment would be lost.
            self._learning_depth = self.add_variable(
                (), initializer=keras.initializers.Constant(depth), dtype="int32", name="learning_depth"
            )

    def learn_to_depth(self, depth: int) -> None:
        """From the next step on, variables learn down to this depth: 0 the heads alone.

        Raises ValueError where the optimizer was made without `gradual`.
        """
        if not self.gradual:
            raise BertKerasError("AdamW(gradual=False) trains all depths; give gradual=True to choose one.")
        self._wanted_depth = depth
        if self.built:
            self._learning_depth.assign(depth)

    def rate_factor(self, variable: keras.Variable) -> float:
        """What the schedule's rate is multiplied by for this variable."""
        return self.layer_decay ** self._depths[self._get_variable_index(variable)]

    def _given(self, grads: Sequence[Any], variables: Sequence[keras.Variable] | None) -> list[Any]:
        """The gradients that are there, 0 for variables that do not learn."""
        if not self.gradual:
            return super()._given(grads, variables)
        if variables is not None and not self.built:
            self.build(variables)
        pairs = zip(grads, self._trainable_variables if variables is None else variables, strict=True)
        return [ops.where(self._learns(var), _dense(grad), 0) for grad, var in pairs if grad is not None]

    def _learns(self, variable: Any) -> Any:
        return self._depths[self._get_variable_index(variable)] <= ops.convert_to_tensor(self._learning_depth)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable's update."""
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        beta_1, beta_2 = self.beta_1, self.beta_2
        if self.layer_decay != 1:
            rate = rate * self.rate_factor(variable)
        if self.gradual:  # a rate of 0 and betas of 1 change no bit
            learns = self._learns(variable)
            rate, beta_1, beta_2 = (
                ops.where(learns, ops.cast(value, variable.dtype), ops.cast(still, variable.dtype))
                for value, still in ((rate, 0), (beta_1, 1), (beta_2, 1))
            )
        if self._decays[index]:
            self.assign_sub(variable, rate * self.decay * ops.convert_to_tensor(variable))
        if self.bias_correction:
            step = ops.cast(self.iterations + 1, variable.dtype)
            rate = rate * ops.sqrt(1 - ops.power(self.beta_2, step)) / (1 - ops.power(self.beta_1, step))
        if keras.backend.backend() == "tensorflow":
            self._fused_step(
                variable, momentum, velocity, rate=rate, beta_1=beta_1, beta_2=beta_2, gradient=gradient
            )
            return
        self.assign_add(momentum, (gradient - momentum) * (1 - beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1 - beta_2))
        self.assign_sub(variable, rate * momentum / (ops.sqrt(velocity) + self.epsilon))

    def _fused_step(
        self,
        variable: Any,
        momentum: Any,
        velocity: Any,
        *,
        rate: Any,
        beta_1: Any,
        beta_2: Any,
        gradient: Any,
    ) -> None:
        """Both moments and the variable in one pass, on CPU in half the time of single operations."""
        import tensorflow as tf

        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=momentum.value.handle,
            v=velocity.value.handle,
            beta1_power=0.0,  # a power of 0 is a correction by 1
            beta2_power=0.0,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().get_config() | {"layer_decay": self.layer_decay, "gradual": self.gradual}


@keras.saving.register_keras_serializable("bert_keras")
class LAMB(_TwoMoments):
    """AdamW's update, scaled in each variable to the variable's own norm (You et al. 2020, algorithm 2): for large batches.

        u = m / (sqrt(v) + epsilon) + weight_decay * w;  w <- w - rate * (|w| / |u|) * u

    m and v are AdamW's, with bias correction unless it is turned off (ALBERT's code has none). The decay stands inside the
    trust ratio |w| / |u|, which is 1 where either norm is 0 and in variables whose path matches `no_decay`; these are
    not decayed. Gradients are summed and clipped as by AdamW.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clip_norm: float | None = 1.0,
        bias_correction: bool = True,
        no_decay: str = NO_DECAY,
        name: str = "lamb",
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            clip_norm=clip_norm,
            bias_correction=bias_correction,
            no_decay=no_decay,
            name=name,
        )

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes both moments and settles which variables decay and have a trust ratio."""
        if self.built:
            return
        super().build(variables)
        self._adapted = [not self._is_excluded(variable) for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable's update."""
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        self.assign_add(momentum, (gradient - momentum) * (1 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1 - self.beta_2))
        first, second = ops.convert_to_tensor(momentum), ops.convert_to_tensor(velocity)
        if self.bias_correction:
            step = ops.cast(self.iterations + 1, variable.dtype)
            first = first / (1 - ops.power(self.beta_1, step))
            second = second / (1 - ops.power(self.beta_2, step))
        update, weight = first / (ops.sqrt(second) + self.epsilon), ops.convert_to_tensor(variable)
        if self._decays[index]:
            update = update + self.decay * weight
        if self._adapted[index]:
            rate = rate * _trust_ratio(weight, update)
        self.assign_sub(variable, rate * update)


def _trust_ratio(weight: Any, update: Any) -> Any:
    """|weight| / |update|, 1 where either is 0."""
    norms = [ops.sqrt(ops.sum(ops.square(x))) for x in (weight, update)]
    return ops.where((norms[0] > 0) & (norms[1] > 0), ops.divide_no_nan(*norms), ops.ones_like(norms[0]))


@keras.saving.register_keras_serializable("bert_keras")
class GlobalMean(keras.losses.Loss):
    """sum(weight * loss) over all replicas / sum(weight) over all replicas.

    loss: a function of (labels, outputs) that returns one loss for each slot, for example `cross_entropy`, which gives
        weight 0 to a negative label

    Keras' own reduction is a mean over each replica's slots, then over the replicas: another number whenever weights
    differ.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], *, name: str = "loss") -> None:
        super().__init__(name=name, reduction=None)
        self._loss = loss

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """One loss for each slot."""
        return self._loss(y_true, y_pred)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Labels and float outputs [B, ...], weights [B, ...] -> a scalar, 0 where no weight is over 0.

        Weights [B] weigh all slots of their rows.
        On N replicas each gets the global mean / N, the share that Keras sums and logs, with the gradient of its own
        slots.
        """
        losses = self.call(y_true, y_pred)
        weights = ops.ones_like(losses)
        if sample_weight is not None:
            given = ops.cast(sample_weight, losses.dtype)
            slots = (1,) * (len(losses.shape) - len(given.shape))
            weights = weights * ops.reshape(given, (*ops.shape(given), *slots))
        if self._loss is cross_entropy:
            weights = known_weights(y_true, weights)
        loss_sum, weight_sum = ops.sum(losses * weights), ops.sum(weights)
        context = _replica_context()
        if context is None:
            return ops.divide_no_nan(loss_sum, weight_sum)
        all_losses, all_weights = context.all_reduce("SUM", [ops.stop_gradient(loss_sum), weight_sum])
        own = ops.divide_no_nan(loss_sum, all_weights)
        mean = ops.divide_no_nan(all_losses, all_weights)
        return own + ops.stop_gradient(mean / context.num_replicas_in_sync - own)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"loss": keras.saving.serialize_keras_object(self._loss), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GlobalMean":
        """The inverse of `get_config`."""
        return cls(**(config | {"loss": keras.saving.deserialize_keras_object(config["loss"])}))


@keras.saving.register_keras_serializable("bert_keras")
def cross_entropy(labels: Any, logits: Any) -> Any:
    """Softmax cross-entropy: int [...], float [..., C] -> float32 [...].

    A negative label, such as Hugging Face's -100, names no class: its loss is 0, and GlobalMean does not count it. Keras' own
    metrics do: pass them `sample_weight` too.
    """
    classes = ops.maximum(ops.cast(labels, "int32"), 0)
    losses = keras.losses.sparse_categorical_crossentropy(
        classes, ops.cast(logits, "float32"), from_logits=True
    )
    return known_weights(labels, losses)


def known_weights(labels: Any, weights: Any) -> Any:
    """Class ids and float weights [...] -> the weights, 0 where a label is negative and names no class."""
    labels = ops.convert_to_tensor(labels)
    if len(labels.shape) > len(weights.shape):  # Keras takes labels [B, 1] for [B]
        labels = ops.squeeze(labels, -1)
    return ops.where(labels >= 0, weights, 0.0)


@keras.saving.register_keras_serializable("bert_keras")
def squared_error(labels: Any, outputs: Any) -> Any:
    """Float [B], float [B, 1] -> float32 [B]."""
    return ops.square(ops.cast(labels, "float32") - ops.cast(outputs, "float32")[..., 0])
