"""Servable: a task that takes raw strings, as TensorFlow functions.

In: strings [B] by the task's input names. Out: the outputs of `Task.decode` by name, with the names of labels. What is saved
has the variables, the vocabulary and the text processing, so its SavedModel is complete. A frozen one has constants in place of
the variables.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.weights import check_weights
from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS, INPUT_MASK
from bert_keras.io.signals import tracing
from bert_keras.savedmodels.model_card import precision_of
from bert_keras.tasks.runs.ensemble import members_of
from bert_keras.tasks.task import (
    Features,
    Problem,
    Raw,
    checked_inputs,
    checked_outputs,
    model_inputs,
    with_label_names,
)
from bert_keras.tasks.training.task_model import config_of
from bert_keras.text.preprocessing import Preprocessor

EXAMPLES = "examples"  # the signature for serialized tf.Example, and its input
EXPORTED = ", to be exported,"  # in the error about a weight
WINDOWS = 32  # windows in one batch of the model; `decode` still gets the outputs of all windows of a text


class Reusable(tf.Module):
    """A callable to save, with the attributes that `hub.load` and `hub.KerasLayer` expect.

    function: the call
    layers: the layers whose variables it uses
    """

    # Plain attributes instead of tf.Module's properties: a SavedModel keeps attributes only.
    variables: Any = None
    trainable_variables: Any = None

    def __init__(self, function: Callable[..., Any], *layers: keras.layers.Layer) -> None:
        super().__init__()
        for layer in layers:
            check_weights(layer.weights, where=EXPORTED)
        self.__call__ = tf.function(function, autograph=False)
        # All variables, including dropout seeds: without them a trace with training=True cannot be saved.
        self.variables = [variable.value for layer in layers for variable in layer.variables]
        self.trainable_variables = [
            variable.value for layer in layers for variable in layer.trainable_variables
        ]
        self.regularization_losses: list[Callable[[], tf.Tensor]] = []

    def trace(self, *inputs: Any, **keywords: Any) -> Any:
        """Adds a trace for calls with these arguments. Returns the concrete function."""
        return self.__call__.get_concrete_function(*inputs, **keywords)


class Servable:
    """preprocess + model + decode behind string signatures.

    task, preprocess, model: those of a Run
    frozen: True makes the weights constants of the graph, which run faster on CPU and cannot be trained

    saved: the object to save with `signatures`. After `tf.saved_model.load` it has `signatures`, `variables`,
        `trainable_variables`, and is callable: `loaded({"sentence": strings}, training=True)` gives the model's outputs, with
        dropout, for fine-tuning. If it is frozen, it has the signatures alone.

    The class is plain, so TensorFlow tracks only `saved`: a SavedModel has the variables once, without a Keras model, and no
    function twice. (`tf.saved_model.save` traces every tf.function that is an attribute again, and keeps both traces.)

    Raises BertKerasError if it is to be frozen and its weights do not fit into one graph.
    """

    def __init__(
        self, task: Problem, preprocess: Preprocessor, model: keras.Model, *, frozen: bool = False
    ) -> None:
        self.task, self.preprocess, self.model, self.frozen = task, preprocess, model, frozen
        for name in ("features", "serve", "serve_examples", "serve_features", "serve_ragged"):
            setattr(self, name, tf.function(getattr(self, name), autograph=False))
        self._infer: Callable[[Features], Any] = functools.partial(model, training=False)
        if frozen:
            packed = precision_of(model) == "bfloat16"
            self._infer = with_constants(model, self.features_signature(), packed=packed)
        self.saved: Any = tf.Module() if frozen else Reusable(self._call, model)
        self.saved.preprocess, self.saved.resources = preprocess, task.resources
        with tracing():
            self.functions()

    def _call(self, raw: Raw, training: bool = False) -> Any:
        """Raw strings [B] by name -> the model's outputs, before `decode`."""
        return self.model(model_inputs(self.task, self.features(**_of_one_size(raw))), training=training)

    def features(self, **raw: tf.Tensor) -> Features:
        """The task's features; a function of its own, so that all that read texts share one trace of the text processing."""
        return self.task.features(self.preprocess, raw)

    def serve(self, **raw: tf.Tensor) -> Raw:
        """Strings [B] by name -> the decoded outputs [B, ...] by name."""
        raw = _of_one_size(raw)
        features = self.features(**raw)
        infer = self._in_groups if self.task.windowed else self._infer
        answers = self.task.decode(checked_outputs(infer(model_inputs(self.task, features))), features, raw)
        return with_label_names(self.task, answers, tf.broadcast_to)

    def _in_groups(self, features: Features) -> tf.Tensor:
        """The model's outputs for any number of windows, WINDOWS at a time."""
        count = tf.shape(features[INPUT_MASK])[0]
        groups = tf.maximum(1, -(-count // WINDOWS))  # without windows, one empty group
        shapes = []  # static shapes, which a TensorArray loses

        def step(i: tf.Tensor, outputs: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            group = slice(i * WINDOWS, (i + 1) * WINDOWS)
            output = self._infer({name: x[group] for name, x in features.items()})
            shapes.append(output.shape)
            return i + 1, outputs.write(i, output)

        outputs = tf.TensorArray(tf.float32, size=groups, infer_shape=False)
        _, outputs = tf.while_loop(lambda i, _: i < groups, step, [0, outputs], parallel_iterations=1)
        return tf.ensure_shape(outputs.concat(), shapes[0])

    def serve_examples(self, *, examples: tf.Tensor) -> Raw:
        """Serialized tf.Example [B] with the strings as bytes features -> the outputs of `serve`."""
        examples = tf.ensure_shape(examples, examples.shape)
        # TensorFlow's own error would print the bytes. A message is empty or starts with the tag of its only field.
        message = tf.strings.regex_full_match(tf.strings.substr(examples, 0, 1), "\n?")
        checked = tf.debugging.Assert(tf.reduce_all(message), [f"{EXAMPLES}: expected serialized tf.Example"])
        with tf.control_dependencies([checked]):
            examples = tf.identity(examples)
        columns = {
            name: tf.io.FixedLenFeature(spec.shape[1:], spec.dtype)
            for name, spec in self.task.signature().items()
        }
        return self.serve(**tf.io.parse_example(examples, columns))

    def serve_features(self, **features: tf.Tensor) -> Raw:
        """Features int32 [B, S], or [B, K, S] for choices, by name -> the outputs that need no text."""
        same = _of_one_size({name: features[name] for name in ENCODER_INPUTS}, whole=True)
        features = _of_one_size(features | same)
        for member in members_of(self.model):
            features = checked_inputs(features, config_of(member))
        answers = self.task.decode_features(checked_outputs(self._infer(features)))
        return with_label_names(self.task, answers, tf.broadcast_to)

    def serve_ragged(self, **raw: tf.Tensor) -> Raw:
        """Like `serve`, but lists [B, N] are concatenated to [M], with NAME_row_splits int64 [B + 1]."""
        answers = self.serve(**raw)
        for prefix, filling in self.task.lists.items():
            real = answers[filling] >= 0
            for name in [name for name in answers if name.startswith(f"{prefix}_")]:
                answers[name] = tf.boolean_mask(answers[name], real)
            counts = tf.reduce_sum(tf.cast(real, tf.int64), axis=1)
            answers[f"{prefix}_row_splits"] = tf.concat([[0], tf.cumsum(counts)], axis=0)
        return answers

    def functions(self) -> list[Any]:
        """The traces to save: the signatures and, if it can be trained, the calls with and without dropout."""
        calls = [
            self.saved.trace(self.task.signature(), training=training)
            for training in (() if self.frozen else (False, True))
        ]
        return [*calls, *self.signatures().values()]

    def features_signature(self) -> dict[str, tf.TensorSpec]:
        """The features that the model reads, by name."""
        traced: Any = self.features
        read = traced.get_concrete_function(**self.task.signature()).structured_outputs
        return {
            name: tf.TensorSpec(value.shape, value.dtype, name=name)
            for name, value in model_inputs(self.task, read).items()
        }

    def signatures(self) -> dict[str, Any]:
        """The signatures of the SavedModel, by name."""
        text = self.task.signature()
        inputs: dict[str, tuple[Any, Mapping[str, tf.TensorSpec]]] = {
            "serving_default": (self.serve, text),
            EXAMPLES: (self.serve_examples, {EXAMPLES: tf.TensorSpec([None], tf.string, name=EXAMPLES)}),
            "features": (self.serve_features, self.features_signature()),
        }
        if self.task.lists:
            inputs["ragged"] = (self.serve_ragged, text)
        return {name: traced.get_concrete_function(**specs) for name, (traced, specs) in inputs.items()}


def _of_one_size(tensors: Mapping[str, tf.Tensor], *, whole: bool = False) -> dict[str, tf.Tensor]:
    """The tensors, with a check at run time that their batch sizes are equal; with `whole`, that their shapes are equal.

    Some kernels read past the end of the shorter tensor. Raises InvalidArgumentError when run.
    """
    tensors = {name: tf.ensure_shape(value, value.shape) for name, value in tensors.items()}
    shapes = [tf.shape(value) if whole else tf.shape(value)[:1] for value in tensors.values()]
    equal = tf.reduce_all([tf.reduce_all(shape == shapes[0]) for shape in shapes])
    checked = tf.debugging.Assert(equal, [f"{', '.join(tensors)} differ in shape", *shapes])
    with tf.control_dependencies([checked]):
        return {name: tf.identity(value) for name, value in tensors.items()}


# -----------------------------------------------------------------------------------------------------------
# Weights as constants of the graph, in place of variables
#
# TensorFlow's kernels on CPU lay out a variable for their products in every call. They lay out a constant once, for the rows of
# the first call. In bfloat16 that layout fits any number of rows. In float32 there are several: on an EPYC with AVX-512, one
# for 7 to 64 rows, and one for fewer and for more. A call with other rows than the first lays out each matrix again, and takes
# up to three times as long.

MAX_GRAPH = 2**31 - 1  # bytes of a protocol buffer, which saved_model.pb is
ROOM = 64_000_000  # bytes for the rest of the graph: its ops, and the vocabulary


def bytes_of(model: keras.Model) -> int:
    """The bytes of all weights of a model."""
    return sum(
        variable.value.dtype.size * variable.value.shape.num_elements() for variable in model.variables
    )


def check_size(model: keras.Model) -> None:
    """Raises BertKerasError for a model whose weights do not fit into one graph."""
    if (size := bytes_of(model)) > MAX_GRAPH - ROOM:
        raise BertKerasError(
            f"the weights take {size / 1e6:,.0f} MB, and a graph that holds them as constants is a file of at most "
            f"{(MAX_GRAPH - ROOM) / 1e6:,.0f} MB; export a SavedModel without --freeze."
        )


def with_constants(model: keras.Model, features: Mapping[str, tf.TensorSpec], *, packed: bool = True) -> Any:
    """A concrete function from features of these shapes to the model's outputs without dropout; it has no variables.

    packed: False keeps TensorFlow's kernels from laying out a matrix for the rows of the first call. A converter for another
        runtime needs True

    Raises BertKerasError as `check_size`.
    """
    check_size(model)
    check_weights(model.weights, where=EXPORTED)
    # Read here: inside of the trace a variable has no value.
    trainable, others = (
        [variable.numpy() for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )

    constant = tf.constant if packed else _as_default

    def infer(features: Features) -> Any:
        values = [[constant(value) for value in values] for values in (trainable, others)]
        outputs, _ = model.stateless_call(*values, features, training=False)
        return outputs

    return tf.function(infer, autograph=False).get_concrete_function(dict(features))


def _as_default(value: np.ndarray) -> tf.Tensor:
    """A constant that no optimization of the graph takes for one."""
    return tf.compat.v1.placeholder_with_default(tf.constant(value), value.shape)
