"""AdamW as BERT trains it, without bias correction, and LAMB.

In: gradients of one replica. Out: the update that one device would make on the whole batch. Both work in a stock `model.fit`, on
one device and under `tf.distribute`.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, Unpack

import keras
import numpy as np
from keras import ops

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import is_finite
from bert_keras.optimization.replicas import replica_context, replica_sum
from bert_keras.optimization.update_kernels import adam, decay, dense, square_sum

# Block 0 is the lowest.
_EMBEDDINGS, _BLOCK = re.compile(r"(^|/)embeddings/"), re.compile(r"(^|/)block_(\d+)/")

# Unlike the textbook: gradients are clipped to a global norm of 1, as in google-research/bert optimization.py; the paper does not
# mention it.
CLIP_NORM = 1.0
# Keras' accumulation fails under several replicas, and counts every micro-batch as a step of the schedule.
ACCUMULATION = (
    "the optimizer has gradient_accumulation_steps, which is Keras' accumulation and fails under several replicas; leave it out, "
    "give the whole batch, and compile(micro_batch=N) a TrainingModel or a TextModel; on the command line, --micro-batch N."
)


class KerasArguments(TypedDict, total=False):
    """The arguments of every Keras optimizer, with Keras' meaning."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None


_SCHEDULED = "scheduled"  # a key of saved state
_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")

# google-research/bert optimization.py excludes LayerNorm and bias; in Keras their paths tell them apart.
NO_DECAY = r"layer_?norm|(^|/)(bias|gamma|beta)$"


def depths(paths: Sequence[str]) -> list[int]:
    """The depth of each variable: 0 in a head or the pooler, 1 in the top block, L in the lowest, L + 1 in the embeddings.

    paths: of all variables of a model, which has L blocks. Layers that share their weights are one block, at depth 1.
    """
    found = [_BLOCK.search(path) for path in paths]
    blocks = 1 + max((int(match[2]) for match in found if match), default=-1)
    return [
        blocks - int(match[2]) if match else (blocks + 1) * bool(_EMBEDDINGS.search(path))
        for path, match in zip(paths, found, strict=True)
    ]


def _check_formats(variables: Sequence[keras.Variable]) -> None:
    """Raises BertKerasError for weights that cannot be trained: a step is smaller than their rounding."""
    for one in variables:
        if keras.backend.standardize_dtype(one.dtype) in ("bfloat16", "float16"):
            raise BertKerasError(
                f"{one.path} is {one.dtype}, a format of weights that only predict; to train, make the model with the dtype "
                f"policy 'mixed_{one.dtype}', whose weights are float32."
            )


class _TwoMoments(keras.optimizers.Optimizer):
    """Base of AdamW, whose docstring explains the arguments, and LAMB: two moments, decayed variables, and the clip."""

    beta_1: float
    beta_2: float
    epsilon: float
    bias_correction: bool
    no_decay: str

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float | None,
        clip_norm: float | None,
        keras_arguments: KerasArguments,
        *,
        name: str,
    ) -> None:
        if unknown := sorted(set(keras_arguments) - set(KerasArguments.__annotations__)):
            raise BertKerasError(
                f"unknown argument {', '.join(unknown)} of {type(self).__name__}; of Keras' it takes "
                f"{', '.join(KerasArguments.__annotations__)}."
            )
        if clip_norm is not None and not clip_norm > 0:
            raise BertKerasError(f"clip_norm is {clip_norm}; give a number over 0, or None for no clipping.")
        weight_decay = 0.0 if weight_decay is None else weight_decay
        if not weight_decay >= 0:
            raise BertKerasError(
                f"weight_decay is {weight_decay}; give a number of at least 0, or None for no decay."
            )
        given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "clip_norm": clip_norm}
        for setting, value in given.items():
            # A clip_norm of infinity would clip nothing.
            if isinstance(value, int | float) and not is_finite(value):
                raise BertKerasError(f"{setting} is {value}; give a number that float32 holds.")
        if clips := [key for key in _CLIPS if keras_arguments.get(key) is not None]:
            if clip_norm not in (None, CLIP_NORM):
                raise BertKerasError(
                    f"clip_norm is {clip_norm} and {clips[0]} is given too; give one of them."
                )
            clip_norm = None
        if keras_arguments.get("gradient_accumulation_steps") is not None:
            raise BertKerasError(ACCUMULATION)
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, name=name, **keras_arguments)
        self.clip_norm = clip_norm
        self._rate_scale = None
        if isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            # A variable, so that a step that was traced once reads the new value.
            self._rate_scale = self.add_variable((), initializer="ones", dtype="float32", name="rate_scale")

    @property
    def learning_rate(self) -> Any:
        """The rate of the next step. Setting it where the rate is a schedule scales the schedule from now on.

        So `ReduceLROnPlateau` and `LearningRateScheduler` work with a schedule: it keeps its shape, and its rate at this step is
        the given one. Raises ValueError where the schedule's rate is 0 at this step, as at the start of a warm-up.
        """
        rate = super().learning_rate
        return rate if self._rate_scale is None else rate * ops.convert_to_tensor(self._rate_scale)

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        if self._rate_scale is None or callable(learning_rate):
            keras.optimizers.Optimizer.learning_rate.fset(self, learning_rate)
            if self._rate_scale is not None:  # a new schedule begins with its own rates
                self._rate_scale.assign(1.0)
            return
        scheduled = float(keras.ops.convert_to_numpy(super().learning_rate))
        if scheduled > 0:
            self._rate_scale.assign(float(learning_rate) / scheduled)
        elif float(learning_rate) != 0:
            raise BertKerasError(
                f"learning_rate was set to {float(learning_rate):g} at step {int(self.iterations)}, where the schedule's rate is "
                "0 and cannot be scaled; set it after the warm-up and before the schedule's end, or give the optimizer a "
                "number for its rate."
            )

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(variables, ["momentum", "velocity"])
        self._decays = [self.is_decayed(variable) for variable in variables]

    def exclude_from_weight_decay(
        self, var_list: Sequence[keras.Variable] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Excludes more variables from decay, as in Keras: those in `var_list` and those whose name matches one of `var_names`.

        A name is the last part of a path, such as "kernel"; `no_decay` matches whole paths. `get_config` keeps neither list.
        Raises ValueError once the optimizer is built.
        """
        if self.built:  # Keras' own check looks at an attribute that no optimizer has
            raise BertKerasError(
                f"{self.name} is already built, and its decayed variables are fixed; call exclude_from_weight_decay earlier."
            )
        super().exclude_from_weight_decay(var_list, var_names)

    def is_decayed(self, variable: keras.Variable) -> bool:
        """True where `weight_decay` applies to this variable."""
        return self.weight_decay > 0 and not self._is_excluded(variable) and self._use_weight_decay(variable)

    def _is_excluded(self, variable: keras.Variable) -> bool:
        return re.search(self.no_decay, variable.path, flags=re.IGNORECASE) is not None

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        """Sums gradients over the replicas, clips them and updates the variables.

        Raises BertKerasError for variables in bfloat16 or float16.
        """
        # Not in `build`: Keras also builds the optimizer of a model that is only evaluated.
        _check_formats(self._trainable_variables if trainable_variables is None else trainable_variables)
        super().apply([None if grad is None else dense(grad) for grad in grads], trainable_variables)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        """Keras clips here: after it has divided by the loss's scale."""
        if replica_context() is not None and not hasattr(super(), "_all_reduce_sum_gradients"):
            raise BertKerasError(
                f"Keras {keras.__version__} sums the gradients of replicas in a way that {type(self).__name__} does not know; "
                "install the Keras that bert_keras asks for."
            )
        return self._clip(replica_sum(grads))

    def _all_reduce_sum_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Leaves the gradients as they are: `_clip_gradients` has summed them over the replicas.

        Keras' sum, also over one replica, has a gradient, with which TensorFlow keeps the graph: see `replica_sum`.
        """
        return [*grads_and_vars]

    def _clip(self, grads: list[Any]) -> list[Any]:
        if self.clip_norm is None:
            return super()._clip_gradients(grads)
        norm = ops.sqrt(sum(ops.cast(square_sum(grad), "float32") for grad in grads))
        scale = self.clip_norm / ops.maximum(norm, self.clip_norm)
        return [grad * ops.cast(scale, grad.dtype) for grad in grads]

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        """Nothing: `update_step` decays, as BERT and LAMB do."""

    def save_own_variables(self, store: Any) -> None:
        """Writes the variables, and whether the rate is a schedule: its scale has the place and the shape of a rate."""
        super().save_own_variables(store)
        store[_SCHEDULED] = np.array(self._rate_scale is not None)

    def load_own_variables(self, store: Any) -> None:
        """Reads the variables. With a warning, reads none where a schedule was saved and the rate is a number, or conversely."""
        found = {key: store[key] for key in store.keys() if key != _SCHEDULED}  # noqa: SIM118  not a dict
        if _SCHEDULED in store.keys() and bool(np.array(store[_SCHEDULED])) != (self._rate_scale is not None):  # noqa: SIM118
            warnings.warn(
                f"the saved state of {self.name} is not read: its rate was a schedule and is a number now, or conversely; "
                "compile as before to go on with it.",
                stacklevel=2,
            )
            return
        super().load_own_variables(found)

    def _update_inputs(self, gradient: Any, variable: Any, learning_rate: Any) -> tuple[Any, ...]:
        """A variable's place, momentum and velocity, and its gradient and rate in its dtype."""
        place = self._get_variable_index(variable)
        cast = [ops.cast(value, variable.dtype) for value in (gradient, learning_rate)]
        return place, self._momentums[place], self._velocities[place], *cast

    def get_config(self) -> dict[str, Any]:
        names = ("beta_1", "beta_2", "epsilon", "clip_norm", "bias_correction", "no_decay")
        return super().get_config() | {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable("bert_keras")
class AdamW(_TwoMoments):
    """BERT's optimizer: google-research/bert optimization.py AdamWeightDecayOptimizer; Devlin et al. 2019, A.2.

        m <- beta_1 m + (1 - beta_1) g;  v <- beta_2 v + (1 - beta_2) g^2
        w <- w - rate * (m / (sqrt(v) + epsilon) + weight_decay * w)

    Unlike the textbook: Adam has no bias correction, as in the original code. The first updates may be six times as large as with
    it; the warm-up keeps them small.

    With `bias_correction`, the moments are corrected as in `keras.optimizers.Adam`. Variables whose path matches `no_decay` are
    not decayed. Gradients are summed over the replicas, then clipped by their global norm, so that two replicas compute the
    update of one device.

    layer_decay: the rate of a variable at depth d (as `depths` counts) is the schedule's times layer_decay ** d
        (discriminative rates: Howard and Ruder 2018, sec. 3.2, with 1 / 2.6); 1 gives all variables the same rate
    gradual: `learn_to_depth` selects the variables that learn. The others keep every bit and their moments, are not decayed,
        and do not count in the norm
    keras_arguments: see KerasArguments. clipnorm, clipvalue or global_clipnorm take the place of clip_norm's default;
        gradient_accumulation_steps is refused

    weight_decay=None does not decay, clip_norm=None does not clip. Raises BertKerasError for a negative weight_decay and for a
    clip_norm that is not over 0.
    """

    def __init__(
        self,
        learning_rate: Any = 5e-5,
        *,
        weight_decay: float | None = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clip_norm: float | None = CLIP_NORM,
        bias_correction: bool = False,
        no_decay: str = NO_DECAY,
        layer_decay: float = 1.0,
        gradual: bool = False,
        name: str = "adamw",
        **keras_arguments: Unpack[KerasArguments],
    ) -> None:
        super().__init__(learning_rate, weight_decay, clip_norm, keras_arguments, name=name)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.bias_correction, self.no_decay = bias_correction, no_decay
        self.layer_decay, self.gradual = layer_decay, gradual
        self._wanted_depth: int | None = None  # set before `build`; None: all depths

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._depths = depths([variable.path for variable in variables])
        if self.gradual:
            depth = max(self._depths, default=0) if self._wanted_depth is None else self._wanted_depth
            # A variable, so that a step that was traced once reads the new value. The initializer sets it: `fit` may
            # build the optimizer inside its trace, where an assignment would be lost.
            self._learning_depth = self.add_variable(
                (), initializer=keras.initializers.Constant(depth), dtype="int32", name="learning_depth"
            )

    def learn_to_depth(self, depth: int) -> None:
        """Trains variables down to this depth from the next step on; at depth 0, the heads alone.

        Raises ValueError where the optimizer was created without `gradual`.
        """
        if not self.gradual:
            raise BertKerasError("AdamW(gradual=False) trains all depths; give gradual=True to choose one.")
        self._wanted_depth = depth
        if self.built:
            self._learning_depth.assign(depth)

    def rate_factor(self, variable: keras.Variable) -> float:
        """The factor of the schedule's rate for this variable."""
        return self.layer_decay ** self._depths[self._get_variable_index(variable)]

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        """One step. Gradients of variables that do not learn count as 0."""
        if self.gradual:
            if trainable_variables is not None and not self.built:
                self.build(trainable_variables)
            variables = self._trainable_variables if trainable_variables is None else trainable_variables
            grads = [
                None if grad is None else ops.where(self._learns(variable), dense(grad), 0)
                for grad, variable in zip(grads, variables, strict=True)
            ]
        super().apply(grads, trainable_variables)

    def _learns(self, variable: Any) -> Any:
        return self._depths[self._get_variable_index(variable)] <= ops.convert_to_tensor(self._learning_depth)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        place, momentum, velocity, gradient, rate = self._update_inputs(gradient, variable, learning_rate)
        beta_1, beta_2 = self.beta_1, self.beta_2
        if self.layer_decay != 1:
            rate = rate * self.rate_factor(variable)
        if self.gradual:  # a rate of 0 and betas of 1 change no bit
            learns = self._learns(variable)
            rate, beta_1, beta_2 = (
                ops.where(learns, ops.cast(value, variable.dtype), ops.cast(still, variable.dtype))
                for value, still in ((rate, 0), (beta_1, 1), (beta_2, 1))
            )
        if self._decays[place]:
            decay(variable, rate * self.weight_decay)
        if self.bias_correction:
            step = ops.cast(self.iterations + 1, variable.dtype)
            rate = rate * ops.sqrt(1 - ops.power(self.beta_2, step)) / (1 - ops.power(self.beta_1, step))
        numbers = {"rate": rate, "beta_1": beta_1, "beta_2": beta_2, "epsilon": self.epsilon}
        adam(variable, momentum, velocity, gradient, **numbers)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"layer_decay": self.layer_decay, "gradual": self.gradual}


@keras.saving.register_keras_serializable("bert_keras")
class LAMB(_TwoMoments):
    """AdamW's update, scaled in each variable to the variable's own norm (You et al. 2020, algorithm 2): for large batches.

        u = m / (sqrt(v) + epsilon) + weight_decay * w;  w <- w - rate * (|w| / |u|) * u

    m and v are AdamW's, with bias correction unless it is turned off (ALBERT's code has none). The update u includes the decay.
    The trust ratio |w| / |u| is 1 where either norm is 0, and in variables whose path matches `no_decay`; these are not decayed.
    Gradients are summed and clipped as in AdamW, and `keras_arguments` are AdamW's.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        weight_decay: float | None = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clip_norm: float | None = CLIP_NORM,
        bias_correction: bool = True,
        no_decay: str = NO_DECAY,
        name: str = "lamb",
        **keras_arguments: Unpack[KerasArguments],
    ) -> None:
        super().__init__(learning_rate, weight_decay, clip_norm, keras_arguments, name=name)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.bias_correction, self.no_decay = bias_correction, no_decay

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._adapted = [not self._is_excluded(variable) for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        place, momentum, velocity, gradient, rate = self._update_inputs(gradient, variable, learning_rate)
        self.assign_add(momentum, (gradient - momentum) * (1 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1 - self.beta_2))
        first, second = ops.convert_to_tensor(momentum), ops.convert_to_tensor(velocity)
        if self.bias_correction:
            step = ops.cast(self.iterations + 1, variable.dtype)
            first = first / (1 - ops.power(self.beta_1, step))
            second = second / (1 - ops.power(self.beta_2, step))
        update, weight = first / (ops.sqrt(second) + self.epsilon), ops.convert_to_tensor(variable)
        if self._decays[place]:
            update = update + self.weight_decay * weight
        if self._adapted[place]:
            rate = rate * _trust_ratio(weight, update)
        self.assign_sub(variable, rate * update)


def _trust_ratio(weight: Any, update: Any) -> Any:
    """|weight| / |update|, 1 where either is 0."""
    norms = [ops.cast(ops.sqrt(square_sum(x)), weight.dtype) for x in (weight, update)]
    return ops.where((norms[0] > 0) & (norms[1] > 0), ops.divide_no_nan(*norms), ops.ones_like(norms[0]))
