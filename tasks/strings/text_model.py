"""TextModel: a Keras model that takes strings.

In: texts and labels as lists, arrays, data frames or tf.data. Out of `fit`, `evaluate` and `predict`: what Keras gives, for the
problem that the model was made for. Text becomes tokens on the host; texts of similar length share a batch.
"""

import dataclasses
import functools
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.cli.console import shows_bars
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT
from bert_keras.io.files import data_errors
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.feature_bilstm import FrozenNetwork, bilstm_of
from bert_keras.optimization.replicas import check_order, chooses_parts, count_workers
from bert_keras.tasks.batches import predictor
from bert_keras.tasks.devices.strategies import (
    differ_between_replicas,
    divided,
    padded_for,
    rows_for,
)
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.frozen.feature_based import fitting
from bert_keras.tasks.frozen.token_vectors import RowVectors
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.strings.text_data import (
    DATA_SETS,
    evaluation_data,
    has_features,
    has_text,
    one_batch,
    rows_of,
    split,
    text_batches,
    text_examples,
    text_features,
    unpacked,
)
from bert_keras.tasks.strings.text_model_compile import CompiledTextModel
from bert_keras.tasks.strings.text_model_saving import SavedTextModel, check_callbacks, check_monitors
from bert_keras.tasks.strings.truncation import checked_columns
from bert_keras.tasks.task import Features, Problem
from bert_keras.tasks.training.task_model import encoder_of
from bert_keras.tasks.training.task_padding import leave_out_padding
from bert_keras.text.preprocessing import Preprocessor


@keras.saving.register_keras_serializable("bert_keras")
class TextModel(CompiledTextModel, SavedTextModel):
    """A problem, its text processing and its network as one Keras model.

    problem: labels, loss and decoding; a Task is one
    preprocess: pads to the longest text of a batch
    network: the problem's model, features -> logits

    `fit`, `evaluate` and `predict`, their forms for one batch, and the call itself take texts, or features as the encoder reads
    them, which pass through to Keras.
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
        self.preprocess = preprocess
        self.built = True
        if POOLED_OUTPUT not in problem.outputs:  # without a gradient, Keras would warn
            self.encoder.pooler.trainable = False
        leave_out_padding(self.encoder)
        self._schedule: Hparams | None = (
            None  # of `compile()` without an optimizer: counted when `fit` starts
        )
        self._parts = None if bilstm_of(network) is None else FrozenNetwork(network)
        self._predict: Any = None
        self._validation: Any = None  # the measures of `fit`'s validation data
        self.vectors: RowVectors | None = None  # those of `fit`'s texts, in a feature-based model

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers of the network."""
        return self.network.layers

    @property
    def encoder(self) -> BertEncoder:
        """The encoder inside the network."""
        return encoder_of(self)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Texts, as `predict` takes them, or features -> logits, of windows where the problem has windows."""
        if has_text(inputs):
            inputs = text_features(self.problem, self.preprocess, inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Features, training: bool = False) -> Any:
        """Features -> logits."""
        return (self.network if self._parts is None else self._parts)(inputs, training=training)

    def forget_vectors(self) -> None:
        """Ends the use of the vectors of `fit`'s texts, which the traced prediction holds too."""
        self.vectors = self._predict = None

    def on_vectors(self, vectors: RowVectors) -> Callable[..., Any]:
        """The network of a feature-based model without its encoder: features -> logits. vectors: those of the texts."""
        return lambda inputs, training=False: self(vectors.attach(inputs), training=training)

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

        x: texts as lists, arrays, columns or data frames, or a tf.data.Dataset of (texts, labels) or (texts, labels, weights)
        y: labels as the problem's `targets` takes them
        batch_size: examples, or windows of long texts; by default 32

        The texts are shuffled in every epoch. A tf.data.Dataset keeps its order, and its batches where it has some. A warning
        counts the texts that are cut, among the first CUT_SAMPLE texts in Python.
        Raises BertKerasError, before any training, for data that cannot work, and where a schedule cannot know the steps.
        """
        check_callbacks(callbacks)
        if not self.compiled:
            self.compile()
        if validation_split:
            if validation_data is not None:
                raise BertKerasError("validation_split and validation_data were given; give one.")
            (x, y, sample_weight), validation_data = split(
                self.problem, self.preprocess, x, y, sample_weight, validation_split
            )
        if not isinstance(x, tf.data.Dataset) and not has_features(x):
            x = checked_columns(self.problem, self.preprocess, x, y, sample_weight)
            y = sample_weight = None
        options = {"batch_size": batch_size, "seed": self._drawn_seed() if shuffle else None}
        data = self._divided_batches(x, y, sample_weight, class_weight=class_weight, **options)
        if validation_data is not None:
            given = unpacked(validation_data)
            size = validation_batch_size or (None if isinstance(given[0], tf.data.Dataset) else batch_size)
            validation_data, self._validation, validation_steps = self._evaluation(
                *given, batch_size=size, steps=validation_steps
            )
            if self._validation is not None:
                check_monitors(callbacks, self.problem.measure)  # type: ignore[attr-defined]
        self._start_schedule(data, epochs=epochs - initial_epoch, steps_per_epoch=steps_per_epoch)
        differ_between_replicas(self)
        shown = _shown(verbose)
        kept = {"callbacks": callbacks, "epochs": epochs, "initial_epoch": initial_epoch, "verbose": shown}
        kept |= {"steps_per_epoch": steps_per_epoch, "shuffle": False}
        kept |= {"validation_steps": validation_steps, "validation_freq": validation_freq}
        sets = fitting(self, data, validation_data, verbose=shown == 1)
        try:
            with data_errors(), sets as (data, validation):
                return super().fit(data, validation_data=validation, **kept)
        finally:
            self._validation = None

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

        steps: batches to measure, a data set's own or of `batch_size` texts; None takes all

        For a problem without Keras metrics, such as question answering, the measures that the commands print follow them. These
        count every text alike, so weights are refused.
        """
        if not self.compiled:
            self.compile()
        if kwargs.get("_use_cached_eval_dataset"):  # `fit` validates
            measures = self._validation
        else:
            x, measures, steps = self._evaluation(x, y, sample_weight, batch_size=batch_size, steps=steps)
        with data_errors():
            logs = super().evaluate(
                x, verbose=_shown(verbose), steps=steps, callbacks=callbacks, return_dict=True, **kwargs
            )
            logs |= {} if measures is None else measures()
        if return_dict:
            return logs
        return self._flatten_metrics_in_order(logs)

    def _evaluation(
        self, x: Any, y: Any, sample_weight: Any, *, batch_size: int | None, steps: int | None
    ) -> tuple[Any, Callable[[], dict[str, float]] | None, int | None]:
        """Batches for Keras, the problem's own measures where it has some, and Keras' steps."""
        if has_features(x):
            return self._batches(x, y, sample_weight, batch_size=batch_size), None, steps
        rows = rows_for(self.distribute_strategy, rows_of(batch_size))
        batches, examples = evaluation_data(
            self.problem,
            padded_for(self.distribute_strategy, self.preprocess),
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            steps=steps,
            multiple_of=rows,
        )

        def measures() -> dict[str, float]:
            predictions, raw = self._predictor()(examples, batch_size=rows_of(batch_size))
            return dict(self.problem.evaluate(predictions, raw))  # type: ignore[attr-defined]

        return batches, None if examples is None else measures, None

    def calibrate(self, x: Any, y: Any = None, *, batch_size: int | None = None) -> dict[str, float]:
        """Chooses the threshold of "no answer" that has the best F1 on labelled texts, as `bert-keras finetune` does on dev.

        x, y, batch_size: as `evaluate` takes them
        Returns the measures with this threshold, which `predict`, `save` and `export` then have too. Raises BertKerasError for a
        problem without a threshold.
        """
        if not getattr(self.problem, "calibrated", ()):
            raise BertKerasError(
                f"{self.problem.name} has no threshold to choose; question_answerer(..., unanswerable=True) has one."
            )
        _, examples = evaluation_data(self.problem, self.preprocess, x, y, None, batch_size=batch_size)
        with data_errors():
            predictions, raw = self._predictor()(examples, batch_size=rows_of(batch_size))
        problem: Any = self.problem
        self.problem, predictions = problem.calibrate(predictions, raw)
        return dict(problem.evaluate(predictions, raw))

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

        Each replica of the model's strategy computes its rows. Several workers must all call it, with the same texts.
        """
        if has_features(x):
            return super().predict(
                x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks
            )
        if callbacks is not None:
            raise BertKerasError("predict() of texts takes no callbacks; leave them out.")
        size = rows_of(batch_size)
        examples = text_examples(self.problem, x, steps=steps, batch_size=size)
        shown = keras.utils.Progbar(None, verbose=1 if verbose == 1 else 0)
        with data_errors():
            predictions, _ = self._predictor()(examples, batch_size=size, progress=shown.add)
        return {name: _as_text(values) for name, values in predictions.items()}

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[Any, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """One step on one batch of texts and labels, or of features; result as in Keras.

        Raises BertKerasError after a `compile()` without an optimizer: its schedule needs the number of steps.
        """
        if has_text(x):
            x, y, sample_weight = one_batch(
                self.problem, self.preprocess, x, y, sample_weight, class_weight=class_weight
            )
            class_weight = None
        if self._schedule is not None or not self.compiled:
            raise BertKerasError(
                "train_on_batch() does not know the number of steps, which BERT's schedule needs; compile with an optimizer, for "
                "example compile(bert_keras.AdamW(2e-5)), or call fit()."
            )
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """The loss and the compiled metrics of one batch of texts and labels, or of features; result as in Keras."""
        if not self.compiled:
            self.compile()
        if has_text(x):
            x, y, sample_weight = one_batch(self.problem, self.preprocess, x, y, sample_weight)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """`predict` of one batch of texts; features give logits, as in Keras."""
        return self.predict(x, verbose=0) if has_text(x) else super().predict_on_batch(x)

    def _predictor(self) -> Any:
        """The traced prediction, anew after a change of what it read: int8 and LoRA replace variables."""
        read = [self.problem, self.preprocess, self.vectors, *self.network.variables]
        read += [*vars(self.problem).values(), *vars(self.preprocess).values()]
        if self._predict is None or not self._predict.is_of(read):
            network = self.network if self.vectors is None else self.on_vectors(self.vectors)
            self._predict = _Traced(read, predictor(self.problem, self.preprocess, network))
        return self._predict.call

    def _drawn_seed(self) -> int:
        """Of the order of texts. All workers take the first one's: each trains on its rows of the same batches."""
        return Workers(self.distribute_strategy).values(random.randrange(2**31))[0]

    def _divided_batches(self, x: Any, y: Any, sample_weight: Any, **options: Any) -> Any:
        """`_batches` for `fit`. Of texts, each worker makes its own rows.

        All workers make all rows of a feature-based model, whose vectors are those of all texts, and where a worker has several
        replicas: Keras would count the batches of each replica as steps. A data set may say what each worker reads of it.
        """
        make = functools.partial(self._batches, x, y, sample_weight, **options)
        replicas = self.distribute_strategy.num_replicas_in_sync // Workers(self.distribute_strategy).count
        if has_features(x) or self._parts is not None or replicas > 1:
            return make()
        if isinstance(x, tf.data.Dataset):
            if chooses_parts(x):
                return make()
            if count_workers(self.distribute_strategy) > 1:
                check_order(x, shuffle=False)
        return divided(self.distribute_strategy, lambda part: make(part=part))

    def _batches(self, x: Any, y: Any, sample_weight: Any, **options: Any) -> Any:
        """Converts texts to batches of features for Keras; a data set of features stays as it is."""
        if has_features(x):
            if not isinstance(x, DATA_SETS):
                raise BertKerasError(
                    "features were given as arrays; give a tf.data.Dataset of (features, labels), or texts."
                )
            ignored = {"y": y, "sample_weight": sample_weight, **options, "seed": None}
            if named := [name for name, value in ignored.items() if value is not None]:
                raise BertKerasError(
                    f"{named[0]} does not apply to a data set of features; put it into the data set."
                )
            return x
        rows = rows_for(self.distribute_strategy, rows_of(options["batch_size"]))
        preprocess = padded_for(self.distribute_strategy, self.preprocess)
        return text_batches(self.problem, preprocess, x, y, sample_weight, multiple_of=rows, **options)


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


def _shown(verbose: Any) -> Any:
    """Keras' "auto" with lines in place of a bar where no bar can be drawn: Keras fills logs with control characters."""
    if verbose != "auto":
        return verbose
    return 1 if shows_bars(sys.stdout) or "ipykernel" in sys.modules else 2
