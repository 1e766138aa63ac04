"""TextModel: a Keras model that takes strings.

In: texts and labels as lists, arrays, data frames or tf.data. Out of `fit`, `evaluate` and `predict`: what Keras gives, for the
problem that the model was made for. Text becomes tokens on the host; texts of similar length share a batch.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

import bert_keras
from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT
from bert_keras.io import formats
from bert_keras.io.files import data_errors
from bert_keras.model.feature_bilstm import FrozenNetwork, bilstm_of
from bert_keras.optimization.optimizers import AdamW
from bert_keras.optimization.replicas import check_scope
from bert_keras.optimization.training_model import TrainingSteps
from bert_keras.tasks.batches import Examples
from bert_keras.tasks.data.text_groups import QUERY, TEXT
from bert_keras.tasks.devices.strategies import differ_between_replicas
from bert_keras.tasks.frozen.row_vectors import RowVectors, fitting
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.joined_windows import call_network
from bert_keras.tasks.problems.embedding import PROMPT
from bert_keras.tasks.problems.label_types import SCORE
from bert_keras.tasks.report import Arrays
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.strings import text_batches, text_model_parts
from bert_keras.tasks.strings.predictions import Predictions, index_of
from bert_keras.tasks.strings.text_data import get_batch_size, has_features, has_text, text_examples
from bert_keras.tasks.strings.text_report import Reported
from bert_keras.tasks.task import Features, Problem, graph_errors, with_label_names
from bert_keras.tasks.training.task_model import (
    check_sizes,
    encoder_of,
    freeze,
    frozen_layers,
    leave_out_padding,
    optimizer_of,
)
from bert_keras.text.preprocessing import Preprocessor


@keras.saving.register_keras_serializable("bert_keras")
class TextModel(text_model_parts.Described, Reported, TrainingSteps, keras.Model):
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
        text_model_parts.check_logits(problem, network)
        self.problem: Any = problem
        self.network = network
        self.preprocess = preprocess
        self.built = True
        if POOLED_OUTPUT not in problem.outputs:  # without a gradient, Keras would warn
            self.encoder.pooler.trainable = False
        leave_out_padding(self.encoder)
        self._schedule: Hparams | None = None  # of BERT's optimizer; `fit` counts its steps
        self._parts = None if bilstm_of(network) is None else FrozenNetwork(network)
        self._predict: text_model_parts.TracedPrediction | None = None
        self._validation: Any = None  # the measures of `fit`'s validation data
        self._measured: tuple[str, ...] = ()  # names that `evaluate` gives beside the problem's own
        self._late: tuple[str, ...] = ()  # names in `compile` that only `evaluate` measures
        self.vectors: RowVectors | None = None  # those of `fit`'s texts, in a feature-based model

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Texts, as `predict` takes them, or features -> logits, of windows where the problem has windows."""
        if not has_features(inputs) and has_text(inputs):
            inputs = text_batches.text_features(self.problem, self.preprocess, inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Features, training: bool = False) -> Any:
        """Features -> logits."""
        return call_network(self.network, self._parts or self.network, inputs, training=training)

    def train_with(self, network: keras.Model) -> None:
        """Computes by a network of the same layers, inputs and logits that adds a loss. It is not saved."""
        self._parts = network

    def forget_vectors(self) -> None:
        """Ends the use of the vectors of `fit`'s texts, which the traced prediction holds too."""
        self.vectors = self._predict = None

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
        """Chooses how `fit` trains; by default by BERT's optimizer and schedule, and the problem's loss and metrics.

        optimizer, loss: as in Keras; None takes those of the problem
        metrics: as in Keras, and measures such as "f1_macro"; weighted as the problem's loss is, because padding has weight 0
        weighted_metrics: as in Keras; None takes the problem's metrics where the loss is the problem's too
        micro_batch: rows that are computed at once; None takes whole batches. The update is the same, except for dropout
        settings: of BERT's optimizer, the fields of Hparams that OPTIMIZER_SETTINGS lists, such as learning_rate. Each `fit`
            then counts its own steps: it starts a new optimizer and a new schedule, with warm-up and decay to 0

        Raises BertKerasError for settings beside an optimizer, for unknown or impossible ones, and for a metric that cannot read
        the problem's labels or logits.
        """
        text_model_parts.check_settings(settings, optimizer)
        # The scope that the model was made in may have ended; the optimizer and the metrics belong to it.
        with self.distribute_strategy.scope():
            self._schedule = None
            metrics, first, late = text_model_parts.read_metrics(self.problem, metrics)
            weighted_metrics, second, more = text_model_parts.read_metrics(self.problem, weighted_metrics)
            self._measured, self._late = (*first, *second), (*late, *more)
            if optimizer is None:
                bilstm = bilstm_of(self.network)
                self._schedule = Hparams(**settings, **(bilstm.settings if bilstm else {}))
                optimizer = AdamW(self._schedule.learning_rate)  # until `fit` knows the steps
            if loss is None and self.problem.trains:
                loss = self.problem.loss()
                weighted_metrics = self.problem.metrics() if weighted_metrics is None else weighted_metrics
                metrics, weighted_metrics = None, text_model_parts.join_metrics(metrics, weighted_metrics)
            self._predict = None
            leave_out_padding(encoder_of(self.network), jit_compile=jit_compile)
            kept = {"loss": loss, "metrics": metrics, "weighted_metrics": weighted_metrics}
            kept |= {"loss_weights": loss_weights, "jit_compile": jit_compile, "run_eagerly": run_eagerly}
            kept |= {"steps_per_execution": steps_per_execution, "auto_scale_loss": auto_scale_loss}
            # A function, because Keras would track the metrics and the optimizer in a dict.
            self._compile = functools.partial(super().compile, micro_batch=micro_batch, **kept)
            self._compile(optimizer=optimizer)

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile`, with the settings of BERT's optimizer."""
        if not self.compiled:
            return {}
        schedule = None if self._schedule is None else dataclasses.asdict(self._schedule)
        kept = {"schedule": schedule, "begun": self.optimizer.built, "measured": list(self._measured)}
        return kept | {"keras": super().get_compile_config()}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as `get_compile_config` says."""
        arguments = keras.saving.deserialize_keras_object(config["keras"])
        optimizer = arguments.pop("optimizer")
        leave_out_padding(encoder_of(self.network), jit_compile=arguments["jit_compile"])
        self._compile = functools.partial(super().compile, **arguments)
        self._compile(optimizer=optimizer)
        self._schedule = None if config["schedule"] is None else Hparams(**config["schedule"])
        self._measured = tuple(config["measured"])
        if config["begun"]:
            self.optimizer.build(self.trainable_variables)

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
        class_weight: Any = None,
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
        class_weight: a dict by name or id of classes, a list in the order of ids, or "balanced" as scikit-learn weighs classes

        The texts are shuffled in every epoch. A tf.data.Dataset keeps its order, and its batches where it has some. A warning
        counts the texts that are cut, among the first CUT_SAMPLE texts in Python.
        Raises BertKerasError, before any training, for data that cannot work, and where a schedule cannot know the steps.
        """
        check_scope(self)
        text_model_parts.check_callbacks(callbacks)
        if not self.compiled:
            self.compile()
        seed = text_batches.draw_seed(self.distribute_strategy) if shuffle else None
        options = {"validation_split": validation_split, "validation_data": validation_data}
        options |= {"batch_size": batch_size, "class_weight": class_weight, "seed": seed}
        data, validation = text_batches.make_training_data(self, (x, y, sample_weight), **options)
        if validation is not None:
            batched = isinstance(validation[0], tf.data.Dataset)
            size = validation_batch_size or (None if batched else batch_size)
            validation, self._validation, validation_steps = text_batches.make_evaluation(
                self, validation, batch_size=size, steps=validation_steps
            )
            if self._validation is not None:
                text_model_parts.choose_modes(callbacks, (*self.problem.measures, *self._measured))
        else:
            text_model_parts.warn_of_unmeasured(self._late)
        if self._schedule is not None:
            total = text_batches.count_steps(data, epochs - initial_epoch, steps_per_epoch)
            self._start_schedule(self._schedule, total_steps=total)
        differ_between_replicas(self)
        shown = text_model_parts.choose_verbosity(verbose)
        kept = {"callbacks": callbacks, "epochs": epochs, "initial_epoch": initial_epoch, "verbose": shown}
        kept |= {"steps_per_epoch": steps_per_epoch, "shuffle": False}
        kept |= {"validation_steps": validation_steps, "validation_freq": validation_freq}
        sets = fitting(self, data, validation, verbose=shown == 1)
        try:
            with data_errors(), sets as (data, validation):
                return super().fit(data, validation_data=validation, **kept)
        finally:
            self._validation = None

    def _start_schedule(self, hparams: Hparams, *, total_steps: int) -> None:
        """Compiles with a new optimizer, whose schedule ends after `total_steps`."""
        with self.distribute_strategy.scope():
            optimizer = optimizer_of(hparams, total_steps=max(total_steps, 1))
            # Variables made inside Keras' `fit` would have it trace the step twice.
            optimizer.build(self.trainable_variables)
            # Keras resets the metrics that it has built, which after the next line are none, and these are used again.
            self.reset_metrics()
            self._compile(optimizer=optimizer)

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
            given, options = (x, y, sample_weight), {"batch_size": batch_size, "steps": steps}
            x, measures, steps = text_batches.make_evaluation(self, given, **options)
        with data_errors():
            logs = super().evaluate(
                x,
                verbose=text_model_parts.choose_verbosity(verbose),
                steps=steps,
                callbacks=callbacks,
                return_dict=True,
                **kwargs,
            )
            if not kwargs.get("_use_cached_eval_dataset"):  # `fit` shows a loss that is not finite
                text_model_parts.check_measures(self, logs)
            logs |= {} if measures is None else measures()
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    def calibrate(self, x: Any, y: Any = None, *, batch_size: int | None = None) -> dict[str, float]:
        """Chooses the threshold of "no answer" that has the best F1 on labelled texts, as `bert-keras finetune` does on dev.

        x, y, batch_size: as `evaluate` takes them
        Returns the measures with this threshold, which `predict`, `save` and `export` then have too. Raises BertKerasError for a
        problem without a threshold.
        """
        if not getattr(self.problem, "calibrated", ()):
            raise BertKerasError(text_model_parts.NO_THRESHOLD.format(self.problem.name))
        _, examples = text_batches.evaluation_data(self, (x, y, None), batch_size=batch_size)
        with data_errors():
            predictions, raw = self._predict_examples(examples, batch_size=batch_size)
        self.problem, predictions = self.problem.calibrate(predictions, raw)
        return dict(self.problem.evaluate(predictions, raw))

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        *,
        prompt: str | None = None,
    ) -> Predictions | Any:
        """The decoded predictions [N, ...] by name, in the order of the texts; strings as str; "label_names" of "probabilities".

        x: texts as `fit` takes them; features give logits, as in Keras
        steps: batches to predict; None takes all
        prompt: of an embedder, the name of the prompt before each text; None takes that of `problem`

        Each replica of the model's strategy computes its rows. Several workers must all call it, with the same texts.
        `frame()` of the result is a pandas data frame.
        """
        if has_features(x):
            with graph_errors():
                outputs = super().predict(
                    text_batches.checked_features(self, x), batch_size, verbose, steps, callbacks
                )
            return text_model_parts.checked_logits(outputs)
        if callbacks is not None:
            raise BertKerasError("predict() of texts takes no callbacks; leave them out.")
        size = get_batch_size(batch_size)
        examples = text_examples(self.problem, x, steps=steps, batch_size=size)
        if prompt is not None:
            examples = text_model_parts.with_prompt(self.problem, examples, prompt)
        shown = keras.utils.Progbar(None, verbose=1 if verbose == 1 else 0)
        with data_errors():
            predictions, texts = self._predict_examples(examples, batch_size=size, progress=shown.add)
        predictions = {name: text_model_parts.decode_strings(values) for name, values in predictions.items()}
        predictions = with_label_names(self.problem, predictions, np.broadcast_to)
        texts = {name: column for name, column in texts.items() if prompt is None or name != PROMPT}
        return Predictions(predictions, self.problem, texts, index_of(x))

    def records(self, x: Any, batch_size: int | None = None) -> list[dict[str, Any]]:
        """The predictions of each text as plain values, as `bert-keras predict` prints them in JSON: entities are dicts."""
        return self.predict(x, batch_size, verbose=0).records()

    def rank(
        self, query: str, texts: Sequence[str], top_k: int | None = None, batch_size: int | None = None
    ) -> list[dict[str, Any]]:
        """The texts for a query from the highest score to the lowest: {"index", "score", "text"} for each. Of a reranker.

        top_k: texts to return; None returns all
        """
        if QUERY not in self.problem.signature():
            raise BertKerasError(
                f"rank() scores texts for a query, and {self.problem.name} does not; give a reranker."
            )
        if not isinstance(query, str) or not query.strip():
            raise BertKerasError(f"the query is {query!r}; give a text.")
        scores = self.predict({QUERY: [query] * len(texts), TEXT: texts}, batch_size, verbose=0)[SCORE]
        found = np.argsort(-scores, kind="stable")[:top_k].tolist()
        return [{"index": i, "score": float(scores[i]), "text": texts[i]} for i in found]

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """One step on one batch of texts and labels, or of features; result as in Keras.

        Raises BertKerasError after a `compile()` without an optimizer: its schedule needs the number of steps.
        """
        if has_text(x):
            x, y, sample_weight = text_batches.one_batch(
                self, (x, y, sample_weight), class_weight=class_weight
            )
            class_weight = None
        else:
            text_batches.checked_features(self, x)
        if self._schedule is not None or not self.compiled:
            raise BertKerasError(text_model_parts.STEPS_UNKNOWN)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """The loss and the compiled metrics of one batch of texts and labels, or of features; result as in Keras."""
        if not self.compiled:
            self.compile()
        if has_text(x):
            x, y, sample_weight = text_batches.one_batch(self, (x, y, sample_weight))
        else:
            text_batches.checked_features(self, x)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """`predict` of one batch of texts; features give logits, as in Keras."""
        if has_text(x):
            return self.predict(x, verbose=0)
        return super().predict_on_batch(text_batches.checked_features(self, x))

    def _predict_examples(
        self, examples: Examples, *, batch_size: int | None, **progress: Any
    ) -> tuple[Arrays, Arrays]:
        """`predict` of tasks/batches.py for raw examples, traced anew only after a change of what it read."""
        if self._predict is None or self._predict.is_outdated(self):
            self._predict = text_model_parts.TracedPrediction(self)
        return self._predict.call(examples, batch_size=get_batch_size(batch_size), **progress)

    # -------------------------------------------------------------------------------------------------------
    # Files

    def save(
        self, filepath: Any, overwrite: bool | None = None, zipped: bool | None = None, **kwargs: Any
    ) -> None:
        """Writes a `.keras` file, or, for a path without a suffix, a run folder as `bert-keras finetune` writes it.

        overwrite: False refuses an existing `.keras` file. None and True replace it, whole or not at all. A folder that holds
            files is never replaced: True is then refused too

        Raises TakenError for an output that exists, BertKerasError for a path of another kind.
        """
        text_model_parts.save_model(
            self, filepath, overwrite=overwrite, zipped=zipped, write=super().save, **kwargs
        )

    def export(
        self, filepath: Any, *, target: str | None = None, freeze: bool = False, **kwargs: Any
    ) -> pathlib.Path:
        """Writes the next version of a SavedModel that takes raw strings, as `bert-keras export` does; returns its folder.

        target, freeze: as in `bert_keras.export`, which names its errors too
        """
        if kwargs:
            raise BertKerasError(f"export() has no argument {next(iter(kwargs))!r}; it writes a SavedModel.")
        return bert_keras.export(self.as_run(), filepath, target=target, freeze=freeze)

    def as_run(self, path: Any = "") -> Run:
        """The model as the commands hold it."""
        return Run(task=self.problem, preprocess=self.preprocess, model=self.network, path=pathlib.Path(path))

    def get_config(self) -> dict[str, Any]:
        """The problem and the network; the vocabulary is an asset."""
        return formats.stamp(formats.STRING_MODEL) | {
            "problem": {"kind": self.problem.kind, "task": self.problem.to_json()},
            "seq_length": self.preprocess.seq_length,
            "truncation": self.preprocess.truncation,
            "network": keras.saving.serialize_keras_object(self.network),
            "frozen": frozen_layers(self.network),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The model without its vocabulary, which `load_assets` reads."""
        formats.check_format(formats.STRING_MODEL, config, where="config.json of the .keras file")
        config = text_model_parts.checked_config(config)
        problem = text_model_parts.load_problem(config["problem"])
        network = keras.saving.deserialize_keras_object(config["network"], custom_objects=custom_objects)
        freeze(network, config["frozen"])
        made = cls(problem, None, network, name=config["name"])
        made._sizes = {name: config[name] for name in ("seq_length", "truncation")}
        return made

    def save_assets(self, dir_path: str) -> None:
        """Writes the vocabulary."""
        vocabulary, config = self.preprocess.tokenizer.to_vocabulary(), self.encoder.config
        write_tokenizer(vocabulary, pathlib.Path(dir_path), max_length=config.max_length)

    def load_assets(self, dir_path: str) -> None:
        """Reads the vocabulary."""
        tokenizer = checkpoints.load_tokenizer(dir_path)
        seq_length = self._sizes["seq_length"]
        check_sizes(self.encoder.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
        self.preprocess = Preprocessor(tokenizer, pad_to_longest=True, **self._sizes)
