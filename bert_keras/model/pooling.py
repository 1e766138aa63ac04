"""MeanPooling: hidden states of tokens in, one vector for each text out."""

from typing import Any

import keras
from keras import ops

from bert_keras.errors import BertKerasError
from bert_keras.model.layers import wide


def mean_of_tokens(states: Any, mask: Any) -> Any:
    """Float [B, S, H], mask float [B, S, 1] -> float [B, H], the mean where the mask is 1; 0 for a text without tokens."""
    given, dtype = states.dtype, wide(keras.backend.standardize_dtype(states.dtype))
    states, mask = ops.cast(states, dtype), ops.cast(mask, dtype)
    return ops.cast(ops.sum(states * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1), given)


@keras.saving.register_keras_serializable("bert_keras")
class MeanPooling(keras.layers.Layer):
    """The mean of the hidden states of each text; padding does not count, special tokens do.

    As keras.layers.GlobalAveragePooling1D, which averages over padding where the mask is lost; this layer raises BertKerasError.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.built = True

    def call(self, states: Any, mask: Any = None) -> Any:
        """Float [B, S, H] -> float [B, H].

        mask: bool or int [B, S], True or 1 on tokens; the encoder gives it to the next Keras layer, or pass `input_mask`
        """
        if mask is None:
            raise BertKerasError(
                "MeanPooling got states without a mask: padding would count. Call it on the encoder's sequence_output, or pass "
                "mask=features['input_mask']."
            )
        return mean_of_tokens(states, ops.expand_dims(ops.cast(mask, states.dtype), -1))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: a vector has no padding."""
