"""Servable: a task that takes raw strings, as one TensorFlow module.

In: strings [B] under the task's own names. Out: what `Task.decode` says, by name. Variables, vocabulary and
text processing travel with it, so `tf.saved_model.save` writes all that answering needs.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tasks.task import Features, Raw, Task, model_inputs


class Servable(tf.Module):
    """preprocess + model + decode behind string signatures.

    task, preprocess, model: as a Run holds them

    After `tf.saved_model.load` the object has `signatures["serving_default"]`, `variables`,
    `trainable_variables`, and is callable: `loaded({"sentence": strings}, training=True)` gives the model's
    outputs, with dropout, for fine-tuning.
    """

    # Plain attributes in place of tf.Module's properties: attributes are saved, properties are not.
    variables: Any = None
    trainable_variables: Any = None

    def __init__(self, task: Task, preprocess: Callable[..., Features], model: keras.Model) -> None:
        super().__init__(name="servable")
        # Behind functions, so that what is saved is the variables once and not a Keras model beside them.
        self._task, self._model = lambda: task, lambda: model
        self.preprocess = preprocess
        # Every state, dropout's seeds among them: a trace with training=True cannot be saved without these.
        self.variables = [variable.value for variable in model.variables]
        self.trainable_variables = [variable.value for variable in model.trainable_variables]
        for training in (False, True):
            self.__call__.get_concrete_function(task.signature(), training=training)

    @tf.function(autograph=False)
    def __call__(self, raw: Raw, training: bool = False) -> Any:
        """Raw strings [B] by name -> the model's outputs, before `decode`."""
        return self._model()(model_inputs(self._task().features(self.preprocess, raw)), training=training)

    @tf.function(autograph=False)
    def serve(self, **raw: tf.Tensor) -> Raw:
        """Strings [B] by name -> what is served, [B, ...] by name."""
        task = self._task()
        features = task.features(self.preprocess, raw)
        return task.decode(self._model()(model_inputs(features), training=False), features, raw)

    def signatures(self) -> dict[str, Any]:
        """What `tf.saved_model.save` publishes."""
        return {"serving_default": self.serve.get_concrete_function(**self._task().signature())}
