"""The layers that only TensorFlow runs: a Preprocessor, and a SavedModel in TensorFlow Hub's form, inside a Keras model."""

import atexit
import base64
import contextlib
import inspect
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

# Not public: True while a model is loaded in safe mode. keras.layers.TFSMLayer uses it too.
from keras.src.saving.serialization_lib import in_safe_mode

import bert_keras.text.text_ops  # noqa: F401 (TensorFlow Text's ops, which preprocessors are made of)
from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.features import DTYPE, ENCODER_INPUTS
from bert_keras.io.archives import find_module
from bert_keras.io.formats import check_saved_model
from bert_keras.io.paths import for_tensorflow, to_path
from bert_keras.text.byte_bpe import ByteBPE
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.rules import Rules
from bert_keras.text.sentencepiece import SentencePiece
from bert_keras.text.tokenizer import Tokenizer
from bert_keras.text.word_bpe import WordBPE
from bert_keras.text.wordpiece import WordPiece


@keras.saving.register_keras_serializable("bert_keras")
class PreprocessorLayer(keras.layers.Layer):
    """Calls a Preprocessor inside a functional or Sequential model, on the TensorFlow backend.

    preprocess: its settings and its vocabulary are part of the layer's config

    Called on string [B] or [B, 1], or on a list of two of them, the segments, it returns the encoder's inputs: int32 [B, S]. A
    list of Python strings is one batch. Raises ValueError on another backend.
    """

    def __init__(
        self, preprocess: Preprocessor, *, name: str | None = None, dtype: Any = None, trainable: bool = True
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise BertKerasError(
                f"Keras runs on {keras.backend.backend()}, which has no strings; call the Preprocessor itself on the data, or "
                "set KERAS_BACKEND=tensorflow."
            )
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.preprocess = preprocess
        self.supports_jit = False  # XLA takes no strings
        # As in keras.layers.TextVectorization: Python strings are no tensors yet.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.built = True

    def call(self, text: Any) -> dict[str, Any]:
        return self.preprocess(*map(_row, _segments(text)))

    def compute_output_spec(self, text: Any) -> dict[str, Any]:
        """Shapes without running."""
        length = None if self.preprocess.pad_to_longest else self.preprocess.seq_length
        return {
            name: keras.KerasTensor((_segments(text)[0].shape[0], length), DTYPE) for name in ENCODER_INPUTS
        }

    def get_config(self) -> dict[str, Any]:
        """The arguments from which `from_config` rebuilds the layer, its vocabulary among them."""
        settings = ("seq_length", "pad_to_longest", "multiple_of", "truncation")
        preprocess = {"tokenizer": _tokenizer_config(self.preprocess.tokenizer)}
        preprocess |= {name: getattr(self.preprocess, name) for name in settings}
        return super().get_config() | {"preprocess": preprocess}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PreprocessorLayer":
        settings = dict(config["preprocess"])
        tokenizer = _tokenizer(settings.pop("tokenizer"))
        return cls(**(config | {"preprocess": Preprocessor(tokenizer, **settings)}))


def _segments(text: Any) -> list[Any]:
    """One or two batches of strings."""
    several = isinstance(text, list | tuple) and not all(isinstance(one, str | bytes) for one in text)
    return list(text) if several else [text]


def _row(text: Any) -> Any:
    """String [B, 1] -> [B]."""
    return keras.ops.squeeze(text, -1) if len(getattr(text, "shape", ())) == 2 else text


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    rules = {"rules": found} if (found := tokenizer.rules.to_json()) else {}
    if isinstance(tokenizer, WordPiece):
        # One string: Keras would visit every item of a list.
        files = {"wordpiece": "\n".join(tokenizer.own_vocabulary)}
        if isinstance(tokenizer, WordBPE):  # a token of which may hold an end of line
            files = {"word_bpe": json.dumps([tokenizer.own_vocabulary, tokenizer.merges])}
        return {
            **files,
            "lower_case": tokenizer.lower_case,
            "special_tokens_in_text": tokenizer.special_tokens_in_text,
            **rules,
        }
    if isinstance(tokenizer, SentencePiece):
        return {
            "sentencepiece": base64.b64encode(tokenizer.model).decode(),
            "lower_case": tokenizer.lower_case,
            **rules,
        }
    if isinstance(tokenizer, ByteBPE):
        return {
            "byte_bpe": "\n".join(tokenizer.own_vocabulary),
            "merges": "\n".join(tokenizer.merges),
            "special_tokens_in_text": tokenizer.special_tokens_in_text,
            **rules,
        }
    raise BertKerasError(
        f"a model with a {type(tokenizer).__name__} cannot be saved; WordPiece, SentencePiece, ByteBPE and WordBPE can."
    )


def _tokenizer(config: Mapping[str, Any]) -> Tokenizer:
    settings = dict(config)
    if "rules" in settings:
        settings["rules"] = Rules.from_json(settings["rules"])
    if "wordpiece" in settings:
        return WordPiece(settings.pop("wordpiece").split("\n"), **settings)
    if "word_bpe" in settings:
        return WordBPE(*json.loads(settings.pop("word_bpe")), **settings)
    if "byte_bpe" in settings:
        return ByteBPE(settings.pop("byte_bpe").split("\n"), settings.pop("merges").splitlines(), **settings)
    return SentencePiece(base64.b64decode(settings.pop("sentencepiece")), **settings)


# -----------------------------------------------------------------------------------------------------------
# A SavedModel as a layer, without tensorflow_hub: its weights are the module's own variables, which Keras counts, trains, freezes
# and saves. Source: TensorFlow Hub, "Reusable SavedModels" and "Common SavedModel APIs for text tasks".


@keras.saving.register_keras_serializable("bert_keras")
class HubLayer(keras.layers.Layer):
    """Calls a SavedModel, and trains it: the layer for Keras 3 in the place of hub.KerasLayer.

    path: folder of the SavedModel, its https address on TensorFlow Hub, or its Kaggle handle (see `archives`), which are
        downloaded once. A SavedModel can run any code: load only modules that you trust
    endpoint: the function to call: "__call__", the module itself; one of its parts ("tokenize", "bert_pack_inputs", "mlm"); or
        one of its signatures ("serving_default"), which have no training mode
    outputs: the key of one output, or several keys for a dict of outputs; None returns the module's own result
    arguments: keywords of every call, such as {"seq_length": 64}
    trainable: False freezes the module's variables and, as hub.KerasLayer does, its dropout
    dtype: format of the outputs' floats, such as "bfloat16"; None leaves the module's own, in which it always computes

    The layer has the module's inputs and outputs: a preprocessor and a text module take strings [B], an encoder takes Features.
    Floats are cast to the module's own format. `module` is the loaded object with all its parts.
    Its weights are those that the module lists as hub modules do, and all others that its function reads.
    Raises ValueError on a backend other than TensorFlow and for an unknown endpoint, input or output, FileNotFoundError if the
    folder has no SavedModel.
    """

    def __init__(
        self,
        path: str | pathlib.Path,
        *,
        endpoint: str = "__call__",
        outputs: str | Sequence[str] | None = None,
        arguments: Mapping[str, Any] | None = None,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise BertKerasError(
                f"Keras runs on {keras.backend.backend()}; a SavedModel needs TensorFlow: set KERAS_BACKEND=tensorflow."
            )
        super().__init__(name=name, dtype=dtype, autocast=False)
        self.supports_jit = False  # XLA takes no strings, and the module's other ops are unknown
        self._cast_to = None if dtype is None else keras.backend.standardize_dtype(self.compute_dtype)
        folder, self.module_path = _find(path)
        self.endpoint = endpoint
        self.outputs_wanted = outputs if outputs is None or isinstance(outputs, str) else tuple(outputs)
        self.arguments = dict(arguments or {})
        self.module = _load(folder)
        part, self._function = _endpoint(self.module, endpoint, self.module_path)
        self._trains = "training" in inspect.signature(self._function).parameters
        self._regularization_losses = list(getattr(part, "regularization_losses", ()))
        with keras.name_scope(self.name):
            self.module_variables = _keras_variables(part, self._function)
        self.trainable = trainable  # sets the variables too, now that they exist
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        """The module's inputs -> its outputs, or the requested ones."""
        mode = {"training": bool(training) and self.trainable} if self._trains else {}
        results = self._function(self._as_read(inputs), **self.arguments, **mode)
        if self.trainable:
            for loss in self._regularization_losses:
                self.add_loss(loss())
        if self._cast_to is not None and keras.backend.is_float_dtype(self._cast_to):
            results = keras.tree.map_structure(self._cast, results)
        if self.outputs_wanted is None:
            return results
        self._check_outputs(results)
        if isinstance(self.outputs_wanted, str):
            return results[self.outputs_wanted]
        return {key: results[key] for key in self.outputs_wanted}

    def _cast(self, tensor: Any) -> Any:
        return tf.cast(tensor, self._cast_to) if tensor.dtype.is_floating else tensor

    def _as_read(self, inputs: Any) -> Any:
        """The inputs, with floats in the module's format. Raises BertKerasError for inputs by other names than the module's."""
        known = _input_specs(self._function)
        if any(not isinstance(one, Mapping) for one in known):
            fitting = known
        else:
            if not isinstance(inputs, Mapping) and known and len(known[0]) == 1:
                inputs = {name: inputs for name in known[0]}
            names = {*inputs} if isinstance(inputs, Mapping) else set[str]()
            fitting = [one for one in known if {*one} == names]
            if known and not fitting:
                given = ", ".join(inputs) if names else f"a {type(inputs).__name__} without names"
                raise BertKerasError(
                    f"{self.endpoint} of {self.module_path} was given {given}; give a dict of {', '.join(sorted(known[0]))}."
                )
        made = []
        for one in fitting:
            with contextlib.suppress(TypeError, ValueError):  # of another structure
                made.append(keras.tree.map_structure(_in_format, inputs, one))
        given = keras.tree.flatten(inputs)
        same = [
            one for one in made if all(a is b for a, b in zip(given, keras.tree.flatten(one), strict=True))
        ]
        return (same or made or [inputs])[0]  # a trace for other floats is no reason to cast

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        """Shapes, without running the module. Keras' own method does not support ragged tensors, which tokenizers return."""
        specs = keras.tree.map_structure(_tensor_spec, inputs)
        with keras.StatelessScope():
            traced = tf.function(lambda given: self.call(given, training=training), autograph=False)
            outputs = traced.get_concrete_function(specs).structured_outputs
            return keras.tree.map_structure(_keras_tensor, outputs)

    def _check_outputs(self, results: Any) -> None:
        wanted = self.outputs_wanted
        keys = (wanted,) if isinstance(wanted, str) else wanted or ()
        there = list(results) if isinstance(results, Mapping) else []
        if lacking := [key for key in keys if key not in there]:
            given = f"outputs {', '.join(there)}" if there else "outputs without keys"
            raise BertKerasError(
                f"{self.endpoint} of {self.module_path} has {given}; wanted {', '.join(lacking)}."
            )

    def get_config(self) -> dict[str, Any]:
        """The arguments from which `from_config` rebuilds the layer: the path, without weights."""
        given = super().get_config()
        return given | {
            "dtype": given["dtype"] if self._cast_to is not None else None,
            "path": self.module_path,
            "endpoint": self.endpoint,
            "outputs": self.outputs_wanted,
            "arguments": self.arguments,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "HubLayer":
        """Raises ValueError during a load in safe mode, which must not run a SavedModel."""
        if in_safe_mode():
            raise BertKerasError(
                f"the saved model loads the SavedModel at {config['path']}, which can run any code; if you trust both, "
                "load it with safe_mode=False."
            )
        return cls(**config)


def _find(path: str | pathlib.Path) -> tuple[pathlib.Path, str]:
    """The folder of a module, and the name that finds it again, from any folder."""
    found = None if to_path(path).exists() else find_module(str(path))
    folder = to_path(path).absolute() if found is None else found
    if (folder / "tfhub_module.pb").is_file():
        raise BertKerasError(
            f"{path} is a module of TensorFlow 1 (hub.Module, tfhub_module.pb), which TensorFlow 2 cannot train; give the "
            "module's version for TensorFlow 2."
        )
    if not tf.saved_model.contains_saved_model(str(folder)):
        raise MissingFileError(
            f"no SavedModel at {path}; give what hub.KerasLayer takes: the folder that holds its saved_model.pb, and keep it "
            "there as long as saved Keras models name it; an address such as https://tfhub.dev/google/nnlm-en-dim128/2; or a "
            "Kaggle handle (OWNER/MODEL/FRAMEWORK/VARIATION/VERSION)."
        )
    return folder, str(folder if found is None else path)


def _load(path: pathlib.Path) -> Any:
    check_saved_model(path)
    # The module keeps only the paths of its assets, so that the links must last as long as the process.
    links = contextlib.ExitStack()
    atexit.register(links.close)
    try:
        return tf.saved_model.load(str(links.enter_context(for_tensorflow(path))))
    except (tf.errors.OpError, OSError) as error:  # a missing file of variables, or a damaged one
        raise BertKerasError(
            f"{path} is damaged or incomplete: {first_line(error)}; write the SavedModel again."
        ) from error


def _endpoint(module: Any, name: str, path: str) -> tuple[Any, Callable[..., Any]]:
    """The object that owns the variables, and the function to call."""
    parts = {key: part for key, part in vars(module).items() if callable(part) and not key.startswith("_")}
    if callable(module):
        parts = {"__call__": module} | parts
    signatures = dict(getattr(module, "signatures", {}))
    if name in parts:
        return parts[name], parts[name].__call__
    if name in signatures:
        return signatures[name], _by_keyword(signatures[name])
    there = ", ".join([*parts, *signatures]) or "nothing that can be called"
    raise BertKerasError(f"no endpoint {name} in {path}; it has {there}.")


def _tensor_spec(tensor: keras.KerasTensor) -> tf.TypeSpec:
    if tensor.ragged:
        return tf.RaggedTensorSpec(tensor.shape, tensor.dtype, tensor.ragged_rank)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _keras_tensor(tensor: tf.Tensor | tf.RaggedTensor) -> keras.KerasTensor:
    if isinstance(tensor, tf.RaggedTensor):
        return keras.KerasTensor(tensor.shape, tensor.dtype, ragged=True, ragged_rank=tensor.ragged_rank)
    return keras.KerasTensor(tensor.shape, tensor.dtype)


def _by_keyword(signature: Callable[..., Any]) -> Callable[..., Any]:
    """A signature that takes what a layer takes: a dict of its inputs, or its only input."""
    _, specs = signature.structured_input_signature  # type: ignore[attr-defined]

    def call(inputs: Mapping[str, Any]) -> Any:
        return signature(**inputs)

    call.concrete_functions = [signature]  # type: ignore[attr-defined]
    call.input_specs = [specs]  # type: ignore[attr-defined]
    return call


def _traces(function: Any) -> list[Any]:
    """The concrete functions of a loaded function."""
    return list(getattr(function, "concrete_functions", ()))


def _input_specs(function: Any) -> list[Any]:
    """The specifications of a function's inputs, as each of its traces has them."""
    if hasattr(function, "input_specs"):
        return function.input_specs
    positional = [trace.structured_input_signature[0] for trace in _traces(function)]
    return [arguments[0] for arguments in positional if arguments]


def _in_format(given: Any, read: Any) -> Any:
    """A float tensor in the format that is read; other tensors as they are."""
    wanted = getattr(read, "dtype", None)
    if wanted is None or not wanted.is_floating:
        return given
    found = keras.backend.standardize_dtype(given.dtype)
    other = keras.backend.is_float_dtype(found) and found != wanted.name
    return keras.ops.cast(given, wanted.name) if other else given


def _keras_variables(part: Any, function: Any) -> list[keras.Variable]:
    """The variables of a loaded object as Keras sees them, each under its own path; no number is copied.

    A hub module lists its variables; a plain tf.Module keeps no list, and its traces say what they read.
    """
    read = {id(one): one for trace in _traces(function) for one in trace.variables}
    listed = getattr(part, "trainable_variables", None)
    trainable = [one for one in read.values() if one.trainable] if listed is None else list(listed)
    ids = {id(variable) for variable in trainable}
    every = {id(one): one for one in getattr(part, "variables", ())} | read
    others = [variable for variable in every.values() if id(variable) not in ids]
    found = []
    for variable in (*trainable, *others):
        *scopes, name = variable.name.split(":")[0].split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            trains = id(variable) in ids
            found.append(keras.Variable(variable, dtype=variable.dtype, trainable=trains, name=name))
    return found
