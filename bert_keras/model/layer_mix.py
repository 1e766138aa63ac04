"""Keras layers that combine the layers of an encoder into one vector for each token, as the rows of Table 7.

Sources: Devlin et al. 2019, Table 7; Peters et al. 2018 (ELMo), eq. 1.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from bert_keras.errors import BertKerasError
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_OUTPUTS
from bert_keras.model.layer_choices import check_layers, is_mixed, places_of


@keras.saving.register_keras_serializable("bert_keras")
class ScalarMix(keras.layers.Layer):
    """gamma * sum over k of softmax(weights)_k * x_k: float [..., K, H] -> [..., H] (Peters et al. 2018, ELMo, eq. 1).

    All weights start equal; gamma starts at 1.
    """

    def build(self, input_shape: Any) -> None:
        """Creates both variables: weights [K], gamma []."""
        self.weight = self.add_weight(shape=(input_shape[-2],), initializer="zeros", name="weight")
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")
        self.built = True

    def call(self, x: Any) -> Any:
        """Float [..., K, H] -> [..., H]."""
        return self.gamma * ops.sum(ops.softmax(self.weight)[:, None] * x, axis=-2)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """[..., K, H] -> [..., H]."""
        return (*input_shape[:-2], input_shape[-1])


@keras.saving.register_keras_serializable("bert_keras")
class LayerMix(keras.layers.Layer):
    """One vector for each token from several layers of an encoder.

    layers: a row of the paper's Table 7: "embeddings", "second_to_last", "last", "concat_last_four", and
        "weighted_sum_last_four" and "weighted_sum_all", whose weights are learned and start equal; or numbers of layers to
        concatenate, such as "9" or "9,10,11,12", where 0 is the embeddings

    Raises BertKerasError for other layers, and where it is called on outputs that lack the layers.
    """

    def __init__(self, layers: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_layers(layers)
        self.layers = layers
        self.mix = (
            ScalarMix(name="mix", trainable=self.trainable, dtype=self.dtype_policy)
            if is_mixed(layers)
            else None
        )

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Creates the weights of a weighted sum."""
        shapes = self._chosen(input_shape)
        if self.mix is not None:
            self.mix.build((*shapes[0][:-1], len(shapes), shapes[0][-1]))
        self.built = True

    def call(self, outputs: Mapping[str, Any]) -> Any:
        """The encoder's outputs -> float [B, S, H], or [B, S, n * H] for n concatenated layers.

        outputs: of an encoder with the outputs "embedding_output" and "encoder_outputs"
        """
        chosen = self._chosen(outputs)
        if self.mix is None:
            return ops.concatenate(chosen, axis=-1)
        return self.mix(ops.stack(chosen, axis=-2))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """The encoder's mask bool [B, S], True on tokens: every output has the same one."""
        masks = [mask for mask in keras.tree.flatten(previous_mask) if mask is not None]
        return masks[0] if masks else None

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().get_config() | {"layers": self.layers}

    def _chosen(self, outputs: Any) -> list[Any]:
        """The chosen outputs, or their shapes."""
        names = [*outputs] if isinstance(outputs, Mapping) else [type(outputs).__name__]
        if missing := [name for name in (EMBEDDING_OUTPUT, ENCODER_OUTPUTS) if name not in names]:
            raise BertKerasError(
                f"LayerMix got {', '.join(names)}, without {' and '.join(missing)}; call it on the outputs of an encoder made "
                f'with outputs=["{EMBEDDING_OUTPUT}", "{ENCODER_OUTPUTS}"].'
            )
        every = [outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]]
        return [every[place] for place in places_of(self.layers, num_layers=len(every) - 1)]
