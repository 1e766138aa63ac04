"""The language model's loss beside a task's: L3 = L2 + lambda L1 (Radford et al. 2018, sec. 3.2).

In: the network of a task on an encoder that is a language model. Out: a network of the same logits, which adds the loss while
it trains. It has no weights of its own.
"""

from typing import Any

import keras

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, INPUT_WORD_IDS, SEQUENCE_OUTPUT
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.optimization.losses import GlobalMean, counted_weights, cross_entropy
from bert_keras.optimization.replicas import replica_context


def check_language_model(config: BertConfig, *, given: str) -> None:
    """Raises BertKerasError unless the encoder alone predicts the next token. given: what asks for it, for the error."""
    if not (config.causal and config.plain_heads):
        raise BertKerasError(
            f"{given} needs a language model from left to right, whose head is its embeddings: causal and plain_heads are "
            f"{config.causal} and {config.plain_heads} here; give a checkpoint of GPT, such as a run of `pretrain --recipe gpt`."
        )


class AuxiliaryLoss(keras.layers.Layer):
    """Passes a task's logits on; while it trains, adds the mean loss of each next token.

    weight: lambda, 0.5 in the paper
    """

    def __init__(self, encoder: BertEncoder, *, weight: float) -> None:
        super().__init__(name="auxiliary_loss", dtype=encoder.dtype_policy)
        self.head, self.weight = MaskedLMHead(encoder, dtype=encoder.dtype_policy), weight
        self.mean, self.built = GlobalMean(cross_entropy), True

    def call(self, logits: Any, states: Any, ids: Any, mask: Any, training: bool = False) -> Any:
        """`states`: float [B, S, H]; `ids`, `mask`: int32 [B, S]."""
        if training:
            with counted_weights():  # those of this loss are not the task's
                loss = self.mean(ids[:, 1:], self.head(states[:, :-1]), mask[:, 1:])
            context = replica_context()
            # Keras divides an added loss by the replicas, and this mean is divided already.
            self.add_loss(self.weight * loss * (1 if context is None else context.num_replicas_in_sync))
        return logits


def with_auxiliary_loss(network: keras.Model, encoder: BertEncoder, *, weight: float) -> keras.Model:
    """The network of a task, whose encoder gives `sequence_output` too, with the loss of the language model."""
    # Keras lists the tensors of the encoder's call in the order of their names.
    features = dict(zip(sorted(encoder.config.inputs), encoder.input, strict=True))
    states = dict(zip(sorted(encoder.outputs_wanted), encoder.output, strict=True))[SEQUENCE_OUTPUT]
    loss = AuxiliaryLoss(encoder, weight=weight)
    logits = loss(network.output, states, features[INPUT_WORD_IDS], features[INPUT_MASK])
    return keras.Model(network.input, logits, name=network.name)
