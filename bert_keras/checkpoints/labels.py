"""The labels of a checkpoint's own head: their names, and their rows in another order."""

import dataclasses
from collections.abc import Sequence

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.errors import BertKerasError, first_names

CRF = "crf"  # the layer of a tagger's transitions, in the order of its tags
UNNAMED = "LABEL_{}"  # transformers' name of a label that has none


def count_outputs(checkpoint: Checkpoint, head: str) -> int:
    """The logits of a head; 0 where the checkpoint has no such head."""
    bias = checkpoint.tensors.get(f"{head}/dense/bias")
    return 0 if bias is None else len(bias)


def own_labels(checkpoint: Checkpoint, head: str) -> tuple[str, ...]:
    """The name of each logit of a head, as transformers has them: LABEL_0, LABEL_1 where the files have no names.

    Raises BertKerasError where the files name more or fewer labels than the head has logits.
    """
    outputs = count_outputs(checkpoint, head)
    unnamed = tuple(UNNAMED.format(i) for i in range(outputs))
    names = checkpoint.labels or unnamed
    if len(names) != outputs and not is_unnamed(names):
        raise BertKerasError(
            f"{checkpoint.prefix}config.json names {len(names)} labels ({first_names(names, 4)}), and the head has {outputs} "
            "logits; correct its id2label."
        )
    return names if len(names) == outputs else unnamed


def is_unnamed(labels: Sequence[str]) -> bool:
    """True for LABEL_0, LABEL_1, ..., which transformers writes where nobody has named the labels."""
    return list(labels) == [UNNAMED.format(i) for i in range(len(labels))]


def order_of(wanted: Sequence[str], there: Sequence[str]) -> list[int] | None:
    """The index in `there` of each wanted label, in upper or lower case; None where the two are not the same labels."""
    for spelled in (str, str.casefold):
        places = {spelled(label): place for place, label in enumerate(there)}
        order = [places.get(spelled(label), -1) for label in wanted]
        if sorted(order) == list(range(len(there))):
            return order
    return None


def in_order(checkpoint: Checkpoint, head: str, order: Sequence[int], labels: Sequence[str]) -> Checkpoint:
    """The checkpoint with the logits of a head in another order, their names, and a CRF's tags. order: as from `order_of`."""
    ordered = {
        name: tensor[..., list(order)]
        for name, tensor in checkpoint.tensors.items()
        if name.startswith((f"{head}/dense/", f"{CRF}/"))
    }
    if (transitions := ordered.get(f"{CRF}/transitions")) is not None:
        ordered[f"{CRF}/transitions"] = transitions[list(order)]
    return dataclasses.replace(checkpoint, tensors=checkpoint.tensors | ordered, labels=tuple(labels))
