"""Sentence pairs as pre-training learns them, by the checkpoint's own head.

"is_next" or "not_next" by BERT's next-sentence head, "in_order" or "swapped" by ALBERT's sentence-order head.
"""

from collections.abc import Mapping
from typing import Any

import keras

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import NextSentenceHead
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.options import SENTENCE_PAIR_LABELS
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.task import Task

HEAD = "next_sentence"  # the name of both heads in a checkpoint
PAIR = ("sentence", "next_sentence")


class NextSentence(TextClassification):
    """The task of a pre-trained head on sentence pairs (Devlin et al. 2019, task 2; Lan et al. 2020, sec. 3.1).

    name: a key of SENTENCE_PAIR_LABELS, whose label 0 is a second text that follows the first:
        create_pretraining_data.py of google-research/bert and google-research/albert
    source: as in TextClassification; None to predict without examples

    Training continues with the checkpoint's head; a checkpoint without it is refused.
    """

    kind = "next-sentence"
    names = tuple(SENTENCE_PAIR_LABELS)
    options = ()
    kinds = {}
    pretrained_head = True
    head = HEAD
    architectures = ("ForNextSentencePrediction",)
    example_texts = {PAIR[0]: "Ada Lovelace was born in London.", PAIR[1]: "She grew up there."}

    def __init__(self, name: str = kind, source: Source | None = None) -> None:
        super().__init__(SENTENCE_PAIR_LABELS[name], text=PAIR, name=name, source=source)

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> "NextSentence":
        return super(TextClassification, cls).open(name, source, **options)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, source: Source | None = None, **options: Any
    ) -> "NextSentence":
        return cls.open(_learned(checkpoint), source, **options)

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raises BertKerasError for a checkpoint without the head, or with the head of the other task."""
        named = checkpoint.prefix
        if not any(name.startswith(f"{HEAD}/") for name in checkpoint.tensors):
            raise BertKerasError(
                f"{named}the checkpoint has no {self.name} head; give one that was pre-trained on sentence pairs, such as "
                "bert-base-uncased."
            )
        if (learned := _learned(checkpoint)) != self.name:
            raise BertKerasError(
                f"{named}the checkpoint's head predicts {learned} ({', '.join(SENTENCE_PAIR_LABELS[learned])}), "
                f"not {self.name}; take the task {learned}, or another checkpoint."
            )

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [B, 2]."""
        inputs = encoder_inputs(config=encoder.config)
        head = NextSentenceHead(config=encoder.config, name=HEAD, dtype=encoder.dtype_policy)
        return keras.Model(inputs, head(encoder(inputs)[POOLED_OUTPUT]), name="next_sentence_model")

    def to_json(self) -> dict[str, Any]:
        return Task.to_json(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "NextSentence":
        return super(TextClassification, cls).from_json(kept, source)


def _learned(checkpoint: Checkpoint) -> str:
    """The task of a checkpoint's head: the labels in config.json tell it, or else the architecture."""
    by_labels = {tuple[str, ...](labels): name for name, labels in SENTENCE_PAIR_LABELS.items()}
    usual = "sentence-order" if "albert" in checkpoint.config.model_types() else NextSentence.kind
    return by_labels.get(checkpoint.labels or (), usual)
