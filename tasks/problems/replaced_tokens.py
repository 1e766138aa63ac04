"""Replaced tokens: the probability of each token of a text that a generator wrote it (Clark et al. 2020, sec. 2).

In: {"text": string [B]}. Out: the tokens of each text with their bytes and probabilities, by the discriminator of ELECTRA.
"""

from typing import Any, Self

import keras
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.errors import BertKerasError
from bert_keras.features import END_BYTES, EXAMPLE_INDEX, MAX_CONTEXT, SEQUENCE_OUTPUT, START_BYTES
from bert_keras.fields import field_types, names_of
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ReplacedTokenHead
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.options import WindowOptions
from bert_keras.tasks.task import Features, Raw, Task
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT


class ReplacedTokens(Task):
    """The task of the discriminator. It predicts only: the text for training comes from a generator.

    doc_stride: tokens from the start of one window to the start of the next
    """

    kind = "replaced-tokens"
    names = (kind,)
    name = kind
    kinds = field_types(WindowOptions)
    options = names_of(WindowOptions)
    outputs = (SEQUENCE_OUTPUT,)
    measure = ""
    windowed = True
    trains = False
    pretrained_head = True
    head = "replaced_token"
    architectures = ("ForPreTraining",)
    answers = "the probability that a token was replaced"
    lists = {"token": "token_start_byte"}

    def __init__(self, *, doc_stride: int = WindowOptions.doc_stride) -> None:
        WindowOptions(doc_stride=doc_stride)
        self.doc_stride = doc_stride

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> Self:
        return cls(**options)

    def _nothing(self, *args: Any, **kwargs: Any) -> Any:
        raise BertKerasError(
            f"{self.name} has no labelled examples; it predicts only, and `bert-keras pretrain` trains it."
        )

    examples = labels = loss = evaluate = _nothing

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raises BertKerasError for a checkpoint without the head."""
        if self.head not in checkpoint.parts:
            raise BertKerasError(
                f"{checkpoint.prefix}the checkpoint has no replaced token head; give a discriminator of ELECTRA, such as "
                "google/electra-small-discriminator."
            )

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Windows of the text: raw [B] -> [W, S]."""
        return preprocess.windows(raw[TEXT], doc_stride=self.doc_stride, max_query_length=None)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [W, S]."""
        inputs = encoder_inputs(config=encoder.config)
        head = ReplacedTokenHead(config=encoder.config, dtype=encoder.dtype_policy)
        return keras.Model(inputs, head(encoder(inputs)[SEQUENCE_OUTPUT]), name="replaced_token_model")

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [W, S] -> the tokens of each text.

        "token_text": string [B, N], padded with ""
        "token_start_byte", "token_end_byte": int32 [B, N], bytes of the text, the end exclusive; padded with -1
        "token_score": float32 [B, N], the probability that the token was replaced; padded with 0
        """
        at = tf.where(features[MAX_CONTEXT] > 0)
        rows = tf.gather(features[EXAMPLE_INDEX], at[:, 0])

        def pad(values: tf.Tensor, padding: Any) -> tf.Tensor:
            """[W, S] -> [B, N]."""
            found = tf.RaggedTensor.from_value_rowids(
                tf.gather_nd(values, at), rows, nrows=tf.size(raw[TEXT], tf.int32)
            )
            return tf.ensure_shape(found.to_tensor(padding), [None, None])

        start, end = pad(features[START_BYTES], -1), pad(features[END_BYTES], -1)
        text = tf.strings.substr(raw[TEXT][:, tf.newaxis], tf.maximum(start, 0), end - start)
        score = pad(tf.sigmoid(outputs), 0.0)
        return {"token_text": text, "token_start_byte": start, "token_end_byte": end, "token_score": score}
