"""Sentence pairs as pre-training learns them: does the second text follow the first, by the checkpoint's own head?

In: two texts, "sentence" and "next_sentence", and in labelled files "label". Out: a label with probabilities: "is_next" or
"not_next" for BERT's next-sentence head, "in_order" or "swapped" for ALBERT's sentence-order head. ROWS has a row for each head.
"""

from collections.abc import Mapping
from typing import Any

import keras

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import NextSentenceHead
from bert_keras.tasks.data.glue_rows import LABEL, GlueRow, standard_splits
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.options import SENTENCE_PAIR_LABELS
from bert_keras.tasks.problems.classification import Glue
from bert_keras.tasks.task import Task

HEAD = "next_sentence"  # the name of both heads in a checkpoint
TEXTS = ("sentence", "next_sentence")

# Label 0 is a second text that follows the first: create_pretraining_data.py of google-research/bert and google-research/albert.
ROWS = {
    name: GlueRow(
        name=name,
        folder="",
        text=TEXTS,
        labels=labels,
        file_labels=labels,
        measures=("accuracy",),
        splits=standard_splits(*TEXTS, label=LABEL),
    )
    for name, labels in SENTENCE_PAIR_LABELS.items()
}


class NextSentence(Glue):
    """The task of a pre-trained head on sentence pairs (Devlin et al. 2019, sec. 3.1; Lan et al. 2020, sec. 3.1).

    name: a key of ROWS
    source: as in Glue; None to predict without examples

    Training continues with the checkpoint's head; a checkpoint without it is refused.
    """

    kind = "next-sentence"
    names = tuple(ROWS)
    options = ()
    pretrained_head = True
    example_texts = {TEXTS[0]: "Ada Lovelace was born in London.", TEXTS[1]: "She grew up there."}

    def __init__(self, name: str = kind, source: Source | None = None) -> None:
        super().__init__(ROWS[name], source)

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> "NextSentence":
        """The task of the row named `name`."""
        return cls(name, source, **options)

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raises BertKerasError for a checkpoint without the head, or with the head of the other row."""
        named = checkpoint.prefix
        if not any(name.startswith(f"{HEAD}/") for name in checkpoint.tensors):
            raise BertKerasError(
                f"{named}the checkpoint has no {self.name} head; give one that was pre-trained on sentence pairs, such as "
                "bert-base-uncased."
            )
        if (learned := learned_by(checkpoint)) != self.name:
            raise BertKerasError(
                f"{named}the checkpoint's head predicts {learned} ({', '.join(ROWS[learned].labels)}), not {self.name}; take "
                f"the task {learned}, or another checkpoint."
            )

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [B, 2]."""
        inputs = encoder_inputs()
        head = NextSentenceHead(config=encoder.config, name=HEAD, dtype=encoder.dtype_policy)
        return keras.Model(inputs, head(encoder(inputs)[POOLED_OUTPUT]), name="next_sentence_model")

    def to_json(self) -> dict[str, Any]:
        return Task.to_json(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "NextSentence":
        return super(Glue, cls).from_json(kept, source)


def learned_by(checkpoint: Checkpoint) -> str:
    """The row that a checkpoint's head has learned, from the labels in its config.json, or else from its architecture."""
    of_labels = {row.labels: name for name, row in ROWS.items()}
    albert = "albert" in checkpoint.config.model_types()
    return of_labels.get(checkpoint.labels or (), "sentence-order" if albert else "next-sentence")
