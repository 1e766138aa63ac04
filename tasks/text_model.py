"""TextModel: a Keras model that takes strings.

In: texts and labels as lists, arrays, data frames or tf.data. Out of `fit`, `evaluate` and `predict`: what Keras gives, for the
problem that the model was made for. Text becomes tokens on the host; texts of similar length share a batch.
"""

import dataclasses
import functools
import importlib
import os
import pathlib
import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT
from bert_keras.folders import whole_folder
from bert_keras.optimizers import AdamW
from bert_keras.paths import path_of
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.training_model import TrainingSteps
from tasks.batches import predictor
from tasks.embedding import Embedding
from tasks.settings import Hparams
from tasks.task import Features, Problem
from tasks.text_data import (
    BATCH_SIZE,
    has_features,
    raw_columns,
    split,
    steps_of,
    text_batches,
    text_examples,
    unpacked,
)
from tasks.training.optimizer import OPTIMIZER_SETTINGS, optimizer_of
from tasks.training.run import TASKS, Run, encoder_of, save_run
from tasks.training.strategies import differ_between_replicas, rows_for


@keras.saving.register_keras_serializable("bert_keras")
class TextModel(TrainingSteps, keras.Model):
    """A problem, its text processing and its network as one Keras model.

    problem: labels, loss and decoding; a Task is one
    preprocess: pads to the longest text of a batch
    network: the problem's model, features -> logits

    `fit`, `evaluate` and `predict` take texts, or features as the encoder reads them, which pass through to Keras.
    """

    def __init__(
        self,
        problem: Problem,
        preprocess: Preprocessor | None,
        network: keras.Model,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name or network.name, dtype=encoder_of(network).dtype_policy)
        self.problem, self.network = problem, network
        self.preprocess: Any = preprocess  # None until `load_assets` has read the vocabulary
        self.built = True
        if POOLED_OUTPUT not in problem.outputs:  # without a gradient, Keras would warn
            self.encoder.pooler.trainable = False
        self._schedule: Hparams | None = (
            None  # of `compile()` without an optimizer: counted when `fit` starts
        )
        self._predict: Any = None

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers of the network."""
        return self.network.layers

    @property
    def encoder(self) -> BertEncoder:
        """The encoder inside the network."""
        return encoder_of(self)

    def call(self, inputs: Features, training: bool = False) -> Any:
        """Features -> logits."""
        return self.network(inputs, training=training)

    def compile(
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
        **settings: Any,
    ) -> None:
        """Chooses how `fit` trains. Without arguments: BERT's optimizer, schedule and loss, and the problem's metrics.

        `fit` and `evaluate` of a model that was not compiled call it so.

        optimizer, loss, metrics: as in Keras; None takes those of the problem
        weighted_metrics: as in Keras; None takes the problem's metrics where the loss is the problem's too
        settings: of BERT's optimizer, the fields of Hparams that OPTIMIZER_SETTINGS lists, such as learning_rate. Each `fit`
            then counts its own steps: it starts a new optimizer and a new schedule, with warm-up and decay to 0

        Raises BertKerasError for settings beside an optimizer, and for unknown or impossible ones.
        """
        if unknown := [name for name in settings if name not in OPTIMIZER_SETTINGS]:
            raise BertKerasError(
                f"compile() has no setting {unknown[0]!r}; BERT's optimizer has {', '.join(OPTIMIZER_SETTINGS)}."
            )
        if settings and optimizer is not None:
            raise BertKerasError(
                f"{', '.join(settings)} applies to BERT's own optimizer; give the optimizer its settings, or leave it out."
            )
        self._schedule = None
        if optimizer is None:
            self._schedule = Hparams(**settings)
            optimizer = AdamW(self._schedule.learning_rate)  # until `fit` knows the steps
        if loss is None and self.problem.trains:
            loss = self.problem.loss()
            weighted_metrics = self.problem.metrics() if weighted_metrics is None else weighted_metrics
        self._predict = None
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
        )
        self._compile(optimizer=optimizer)

    def _start_schedule(self, steps: int) -> None:
        """Gives `fit` BERT's optimizer with a schedule over this many steps; no change under the user's own optimizer."""
        if self._schedule is None:
            return
        with self.distribute_strategy.scope():
            optimizer = optimizer_of(self._schedule, total_steps=max(steps, 1))
            # Variables made inside `fit` would have it trace the step twice.
            optimizer.build(self.trainable_variables)
            self._compile(optimizer=optimizer)

    # -------------------------------------------------------------------------------------------------------
    # Training and measuring

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[Any, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> keras.callbacks.History:
        """Trains on texts and labels; arguments and result as in Keras' `fit`.

        x: texts as tasks/given.py takes them, or a tf.data.Dataset of (texts, labels) or (texts, labels, weights), batched or not
        y: labels as the problem's `targets` takes them
        batch_size: examples, or windows of long texts; by default 32

        The texts are shuffled in every epoch. A tf.data.Dataset keeps its order, and its batches where it has some.
        Raises BertKerasError, before any training, for data that cannot work, and where a schedule needs the number of steps of a
        data set that does not know it.
        """
        if not self.compiled:
            self.compile()
        kept = {"epochs": epochs, "verbose": verbose, "callbacks": callbacks, "initial_epoch": initial_epoch}
        kept |= {"validation_steps": validation_steps, "validation_freq": validation_freq}
        if validation_split:
            if validation_data is not None:
                raise BertKerasError("validation_split and validation_data were given; give one.")
            (x, y, sample_weight), validation_data = split(
                self.problem, x, y, sample_weight, validation_split
            )
        data = self._batches(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            seed=random.randrange(2**31) if shuffle else None,
            class_weight=class_weight,
        )
        if validation_data is not None:
            given = unpacked(validation_data)
            size = validation_batch_size or (None if isinstance(given[0], tf.data.Dataset) else batch_size)
            validation_data = self._batches(*given, batch_size=size)
        known = steps_of(data)
        epoch = min(steps_per_epoch or known or 0, known or steps_per_epoch or 0) or None
        if self._schedule is not None and epoch is None:
            raise BertKerasError(
                "the number of steps is not known, which BERT's schedule needs: give steps_per_epoch, apply "
                "tf.data.experimental.assert_cardinality to the data set, or compile with another optimizer."
            )
        if epoch is not None and epoch % self.steps_per_execution:
            raise BertKerasError(
                f"steps_per_execution is {self.steps_per_execution} and an epoch has {epoch} steps; give a divisor."
            )
        self._start_schedule((epoch or 0) * (epochs - initial_epoch))
        differ_between_replicas(self)
        return super().fit(
            data, steps_per_epoch=steps_per_epoch, validation_data=validation_data, shuffle=False, **kept
        )

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The loss and the metrics, as Keras' `evaluate`; arguments as in `fit`.

        For a problem without Keras metrics, such as question answering, the measures that the commands print follow them.
        """
        if not self.compiled:
            self.compile()
        data = self._batches(x, y, sample_weight, batch_size=batch_size)
        logs = super().evaluate(
            data, verbose=verbose, steps=steps, callbacks=callbacks, return_dict=True, **kwargs
        )
        if not isinstance(x, tf.data.Dataset) and not self.problem.metrics():
            examples = tf.data.Dataset.from_tensor_slices(raw_columns(self.problem, x, y))
            predictions, raw = self._predictor()(examples, batch_size=batch_size or BATCH_SIZE)
            logs |= dict(self.problem.evaluate(predictions, raw))  # type: ignore[attr-defined]
        if return_dict:
            return logs
        return self._flatten_metrics_in_order(logs)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """The decoded predictions [N, ...] by name, in the order of the texts; strings as str.

        x: texts as `fit` takes them; features give logits, as in Keras
        steps: batches to predict; None takes all
        """
        if has_features(x):
            return super().predict(
                x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks
            )
        if callbacks is not None:
            raise BertKerasError("predict() of texts takes no callbacks; leave them out.")
        size = batch_size or BATCH_SIZE
        examples = text_examples(self.problem, x, steps=steps, batch_size=size)
        shown = keras.utils.Progbar(None, verbose=1 if verbose == 1 else 0)
        predictions, _ = self._predictor()(examples, batch_size=size, progress=shown.add)
        return {name: _as_text(values) for name, values in predictions.items()}

    def _predictor(self) -> Any:
        """The traced prediction, anew after a change of what it read: int8 and LoRA replace variables."""
        read = [self.problem, self.preprocess, *self.network.variables]
        if self._predict is None or not self._predict.is_of(read):
            self._predict = _Traced(read, predictor(self.problem, self.preprocess, self.network))
        return self._predict.call

    def _batches(self, x: Any, y: Any, sample_weight: Any, **options: Any) -> Any:
        """Converts texts to batches of features for Keras; a data set of features stays as it is."""
        if has_features(x):
            if not isinstance(x, tf.data.Dataset):
                raise BertKerasError(
                    "features were given as arrays; give a tf.data.Dataset of (features, labels), or texts."
                )
            ignored = {"y": y, "sample_weight": sample_weight, **options, "seed": None}
            if named := [name for name, value in ignored.items() if value is not None]:
                raise BertKerasError(
                    f"{named[0]} does not apply to a data set of features; put it into the data set."
                )
            return x
        rows = rows_for(self.distribute_strategy, options["batch_size"] or BATCH_SIZE)
        return text_batches(self.problem, self.preprocess, x, y, sample_weight, multiple_of=rows, **options)

    # -------------------------------------------------------------------------------------------------------
    # Saving

    def save(self, filepath: Any, overwrite: bool = True, zipped: Any = None, **kwargs: Any) -> None:
        """Writes a `.keras` file, or, for a path without a suffix, a run folder as `bert-keras finetune` writes it.

        overwrite: replace a `.keras` file; a folder that holds files is always refused
        """
        path = path_of(filepath)
        if path.suffix == ".keras":
            super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)
            return
        if path.suffix:
            raise BertKerasError(
                f"{path} ends in {path.suffix}; give a name that ends in .keras, or a folder."
            )
        if self.problem.kind not in TASKS or "://" in os.fspath(filepath):
            raise BertKerasError(
                f"a run of {self.problem.kind} cannot be written to {filepath}; give a .keras file."
            )
        with whole_folder(path) as new:
            save_run(new, self.problem, self.preprocess, self.network)  # type: ignore[arg-type]

    def export(self, filepath: Any, *, target: str | None = None, **kwargs: Any) -> pathlib.Path:
        """Writes the next version of a SavedModel that takes raw strings, as `bert-keras export` does; returns its folder."""
        if kwargs:
            raise BertKerasError(f"export() has no argument {next(iter(kwargs))!r}; it writes a SavedModel.")
        # By name, because exports stand above the tasks.
        return importlib.import_module("savedmodels.export").export(self.as_run(), filepath, target=target)

    def as_run(self, path: Any = "") -> Run:
        """The model as the commands hold it."""
        return Run(
            task=self.problem,  # type: ignore[arg-type]
            preprocess=self.preprocess,
            model=self.network,
            path=pathlib.Path(path),
        )

    def get_config(self) -> dict[str, Any]:
        """The problem and the network; the vocabulary is an asset."""
        return {
            "problem": {"kind": self.problem.kind, "task": self.problem.to_json()},
            "seq_length": self.preprocess.seq_length,
            "truncation": self.preprocess.truncation,
            "network": keras.saving.serialize_keras_object(self.network),
            "frozen": [layer.name for layer in self.layers if not layer.trainable],
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "TextModel":
        """The model without its vocabulary, which `load_assets` reads."""
        kept = config["problem"]
        problems = TASKS | {Embedding.kind: Embedding}
        if kept["kind"] not in problems:
            raise BertKerasError(
                f"the model's problem is of the kind {kept['kind']!r}, which TASKS of tasks/training/run.py does not have; "
                "add its class there before you load the model."
            )
        problem = problems[kept["kind"]].from_json(kept["task"])
        network = keras.saving.deserialize_keras_object(config["network"], custom_objects=custom_objects)
        made = cls(problem, None, network, name=config["name"])
        for layer in made.layers:
            layer.trainable = layer.trainable and layer.name not in config["frozen"]
        made._sizes = {name: config[name] for name in ("seq_length", "truncation")}
        return made

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
        self._compile = functools.partial(super().compile, **arguments)
        self._compile(optimizer=optimizer)
        self._schedule = None if config["schedule"] is None else Hparams(**config["schedule"])
        if config["begun"]:
            self.optimizer.build(self.trainable_variables)

    def save_assets(self, dir_path: str) -> None:
        """Writes the vocabulary."""
        checkpoint = checkpoints.Checkpoint(config=self.encoder.config, tensors={})
        write_tokenizer(
            checkpoints.with_tokenizer(checkpoint, self.preprocess.tokenizer), pathlib.Path(dir_path)
        )

    def load_assets(self, dir_path: str) -> None:
        """Reads the vocabulary."""
        self.preprocess = Preprocessor(
            checkpoints.load_tokenizer(dir_path), pad_to_longest=True, **self._sizes
        )


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A traced function, and the objects that it read. A plain object: Keras would track the variables of a list."""

    read: list[Any]
    call: Any

    def is_of(self, read: list[Any]) -> bool:
        return len(read) == len(self.read) and all(a is b for a, b in zip(read, self.read, strict=True))


def _as_text(values: np.ndarray) -> np.ndarray:
    """Byte strings as str."""
    if values.dtype != object:
        return values
    decoded = [text.decode("utf-8", "replace") for text in values.ravel().tolist()]
    return np.array(decoded, object).reshape(values.shape)
