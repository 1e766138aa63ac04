"""Classification of two texts that no order ranks: the encoder reads both orders, and the classifier the sum of both vectors.

In: Features int32 [B, S] of pairs. Out: logits float32 [B, C].

Source: Radford et al. 2018, sec. 3.3, "Similarity", and figure 1.
"""

from typing import Any

import keras
from keras import ops

from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, POOLED_OUTPUT
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ClassifierHead


@keras.saving.register_keras_serializable("bert_keras")
class BothOrders(keras.layers.Layer):
    """Features [B, S] -> [2B, S]: each row, and after it the row with the second text first.

        start a a a between b b end
        start b b between a a a end

    A type of 1 marks the second text and the end. A row of one text stays as it is.
    """

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        mask, types = features[INPUT_MASK], features[INPUT_TYPE_IDS]
        second = ops.sum(types * mask, axis=1, keepdims=True)  # the tokens of b, and the end
        last = ops.sum(mask, axis=1, keepdims=True) - 1
        between = last - second
        at = ops.cumsum(ops.ones_like(mask), axis=1) - 1
        source = ops.where(at < second, at + between, ops.where(at == second, between, at - second))
        source = ops.where((at > 0) & (at < last) & (second > 0), source, at)
        swapped = {
            INPUT_WORD_IDS: ops.take_along_axis(features[INPUT_WORD_IDS], source, axis=1),
            INPUT_MASK: mask,
            INPUT_TYPE_IDS: ops.where((at > second) & (second > 0), mask, ops.zeros_like(mask)),
        }
        length = ops.shape(mask)[1]
        return {
            name: ops.reshape(ops.stack([features[name], one], axis=1), (-1, length))
            for name, one in swapped.items()
        }


def pair_model(encoder: BertEncoder, num_classes: int) -> keras.Model:
    """Features [B, S] of pairs -> logits float32 [B, C]."""
    config = encoder.config
    inputs = encoder_inputs(config=config)
    pooled = encoder(BothOrders()(inputs))[POOLED_OUTPUT]
    added = ops.sum(ops.reshape(pooled, (-1, 2, config.hidden_size)), axis=1)
    head = ClassifierHead(num_classes, config=config, dtype=encoder.dtype_policy)
    return keras.Model(inputs, head(added), name="classifier_model")
