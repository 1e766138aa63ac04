"""The part of TextModel that compiles: optimizer, loss and metrics, and BERT's schedule, which counts the steps of a `fit`."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.model.feature_bilstm import bilstm_of
from bert_keras.optimization.optimizers import AdamW
from bert_keras.optimization.training_model import TrainingSteps
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.strings.text_data import steps_of
from bert_keras.tasks.task import Problem
from bert_keras.tasks.training.task_model import (
    OPTIMIZER_SETTINGS,
    encoder_of,
    leave_out_padding,
    optimizer_of,
)


class CompiledTextModel(TrainingSteps, keras.Model):
    """The part of a TextModel that compiles it.

    problem, network: those of a TextModel
    """

    problem: Problem
    network: keras.Model
    _schedule: Hparams | None
    _predict: Any

    def compile(  # type: ignore[override]
        self,
        optimizer: Any = None,
        loss: Any = None,
        *,
        metrics: Any = None,
        weighted_metrics: Any = None,
        jit_compile: bool = False,
        loss_weights: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        auto_scale_loss: bool = True,
        micro_batch: int | None = None,
        **settings: Any,
    ) -> None:
        """Chooses how `fit` trains. Without arguments: BERT's optimizer, schedule and loss, and the problem's metrics.

        `fit` and `evaluate` of a model that was not compiled call it so.

        optimizer, loss: as in Keras; None takes those of the problem
        metrics: as in Keras. Beside the problem's loss they are weighted as it is, because padding has weight 0
        weighted_metrics: as in Keras; None takes the problem's metrics where the loss is the problem's too
        micro_batch: rows that are computed at once; None takes whole batches. The update is the same, except for dropout
        settings: of BERT's optimizer, the fields of Hparams that OPTIMIZER_SETTINGS lists, such as learning_rate. Each `fit`
            then counts its own steps: it starts a new optimizer and a new schedule, with warm-up and decay to 0

        Raises BertKerasError for settings beside an optimizer, and for unknown or impossible ones.
        """
        _check_settings(settings, optimizer)
        # The scope that the model was made in may have ended; the optimizer and the metrics belong to it.
        with self.distribute_strategy.scope():
            self._schedule = None
            if optimizer is None:
                bilstm = bilstm_of(self.network)
                self._schedule = Hparams(**settings, **(bilstm.settings if bilstm else {}))
                optimizer = AdamW(self._schedule.learning_rate)  # until `fit` knows the steps
            if loss is None and self.problem.trains:
                loss = self.problem.loss()
                weighted_metrics = self.problem.metrics() if weighted_metrics is None else weighted_metrics
                metrics, weighted_metrics = None, _joined(metrics, weighted_metrics)
            self._predict = None
            leave_out_padding(encoder_of(self.network), jit_compile=jit_compile)
            # A function, because Keras would track the metrics and the optimizer in a dict.
            self._compile = functools.partial(
                super().compile,
                loss=loss,
                metrics=metrics,
                weighted_metrics=weighted_metrics,
                loss_weights=loss_weights,
                jit_compile=jit_compile,
                run_eagerly=run_eagerly,
                steps_per_execution=steps_per_execution,
                auto_scale_loss=auto_scale_loss,
                micro_batch=micro_batch,
            )
            self._compile(optimizer=optimizer)

    def _start_schedule(self, data: tf.data.Dataset, *, epochs: int, steps_per_epoch: int | None) -> None:
        """Gives `fit` BERT's optimizer with a schedule over its steps; no change under the user's own optimizer.

        Raises BertKerasError where the schedule needs an unknown number of steps.
        """
        known = steps_of(data)
        epoch = min(steps_per_epoch or known or 0, known or steps_per_epoch or 0) or None
        if self._schedule is not None and epoch is None:
            raise BertKerasError(
                "the number of steps is not known, which BERT's schedule needs: give steps_per_epoch, apply "
                "tf.data.experimental.assert_cardinality to the data set, or compile with another optimizer."
            )
        if self._schedule is None:
            return
        total = (epoch or 0) * epochs
        if known and epoch:
            # Keras goes on in the data where an epoch ended, and the last epoch of a pass is shorter.
            passes, rest = divmod(epochs, -(-known // epoch))
            total = passes * known + rest * epoch
        with self.distribute_strategy.scope():
            optimizer = optimizer_of(self._schedule, total_steps=max(total, 1))
            # Variables made inside `fit` would have it trace the step twice.
            optimizer.build(self.trainable_variables)
            self._compile(optimizer=optimizer)

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile`, with the settings of BERT's optimizer."""
        if not self.compiled:
            return {}
        schedule = None if self._schedule is None else dataclasses.asdict(self._schedule)
        return {"keras": super().get_compile_config(), "schedule": schedule, "begun": self.optimizer.built}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as `get_compile_config` says."""
        arguments = keras.saving.deserialize_keras_object(config["keras"])
        optimizer = arguments.pop("optimizer")
        leave_out_padding(encoder_of(self.network), jit_compile=arguments["jit_compile"])
        self._compile = functools.partial(super().compile, **arguments)
        self._compile(optimizer=optimizer)
        self._schedule = None if config["schedule"] is None else Hparams(**config["schedule"])
        if config["begun"]:
            self.optimizer.build(self.trainable_variables)


def _joined(metrics: Any, weighted_metrics: Any) -> list[Any]:
    """Both lists of metrics as one; a metric in `metrics` replaces one of the same name."""
    first = keras.tree.flatten(metrics)
    names = {_name_of(metric) for metric in first if metric is not None}
    second = [metric for metric in keras.tree.flatten(weighted_metrics) if _name_of(metric) not in names]
    return [metric for metric in (*first, *second) if metric is not None]


def _name_of(metric: Any) -> str:
    name = metric if isinstance(metric, str) else getattr(metric, "name", getattr(metric, "__name__", ""))
    return "accuracy" if name == "acc" else name


def _check_settings(settings: Mapping[str, Any], optimizer: Any) -> None:
    """Raises BertKerasError for unknown settings, and for settings beside an optimizer."""
    if unknown := [name for name in settings if name not in OPTIMIZER_SETTINGS]:
        raise BertKerasError(
            f"compile() has no setting {unknown[0]!r}; BERT's optimizer has {', '.join(OPTIMIZER_SETTINGS)}."
        )
    if settings and optimizer is not None:
        raise BertKerasError(
            f"{', '.join(settings)} applies to BERT's own optimizer; give the optimizer its settings, or leave it out."
        )
