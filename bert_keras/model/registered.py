"""Registers this package's classes with Keras by name, so that `keras.models.load_model` finds them in saved files.

Out: stand-ins among Keras' custom objects; each imports its module when a file names it. Neither Keras nor TensorFlow is
imported here.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

PACKAGE = "bert_keras"
# Everything that `keras.saving.register_keras_serializable` registers in this package, by its module.
CLASSES = {
    "bert_keras.model.encoder": ("BertEncoder",),
    "bert_keras.model.heads": (
        "MaskedLMHead",
        "NextSentenceHead",
        "ClassifierHead",
        "ConcatClassifierHead",
        "ChoiceHead",
        "SpanHead",
        "TokenHead",
        "ReplacedTokenHead",
        "MeanPooling",
    ),
    "bert_keras.model.crf": ("CRF",),
    "bert_keras.optimization.schedules": (
        "InverseSquareRoot",
        "LinearAfterWarmup",
        "SlantedTriangular",
        "WarmupLinearDecay",
    ),
    "bert_keras.optimization.losses": ("GlobalMean",),
    "bert_keras.optimization.vector_losses": ("BatchLoss",),
    "bert_keras.optimization.optimizers": ("AdamW", "LAMB"),
    "bert_keras.model.tensorflow_layers": ("HubLayer", "PreprocessorLayer"),
    "bert_keras.optimization.training_model": ("TrainingModel",),
    "bert_keras.tasks.problems.class_metrics": ("LabelMeasure", "OnLogits"),
    "bert_keras.tasks.problems.multiple_choice": ("FlattenChoices",),
    "bert_keras.tasks.problems.pair_orders": ("BothOrders",),
    "bert_keras.tasks.problems.embedding": ("Pooling",),
    "bert_keras.model.feature_bilstm": ("FeatureBiLSTM", "LayerMix", "ScalarMix"),
    "bert_keras.tasks.strings.text_model": ("TextModel",),
    "bert_keras.tasks.ancestors.taglm": ("TagLM",),
}
FUNCTIONS = {
    "bert_keras.model.crf": ("crf_loss",),
    "bert_keras.optimization.losses": (
        "binary_cross_entropy",
        "candidate_loss",
        "cross_entropy",
        "squared_error",
    ),
    "bert_keras.tasks.problems.tag_sentences": ("sentence_losses",),
}


class _Deferred:
    """Stands in for a class until a saved file names it."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def from_config(self, config: dict[str, Any]) -> Any:
        """Imports the class and builds an instance."""
        return getattr(importlib.import_module(self._module), self._name).from_config(config)


def _deferred_function(module: str, name: str) -> Callable[..., Any]:
    """A function that imports the function of that name when it is called."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments, **keywords)

    call.__module__, call.__name__, call.__qualname__ = module, name, name
    return call


def _register() -> None:
    import keras

    known = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names:
            known.setdefault(f"{PACKAGE}>{name}", _Deferred(module, name))
    for module, names in FUNCTIONS.items():
        for name in names:
            if f"{PACKAGE}>{name}" not in known:
                # Registered itself, so that a model that holds it saves the right name.
                keras.saving.register_keras_serializable(PACKAGE)(_deferred_function(module, name))


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Registers once Keras has been imported. It finds Keras as the other finders do."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "keras":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def register_with_keras() -> None:
    """Registers now where Keras is imported already, else as soon as it is."""
    if hasattr(sys.modules.get("keras"), "saving"):
        _register()
    else:
        sys.meta_path.insert(0, _AfterKeras())
