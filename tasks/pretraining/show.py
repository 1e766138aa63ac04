"""Instances of a pre-training as a person reads them: the tokens, what masking did to them, and the label of a pair.

next-sentence: not_next; 2 masked, 1 replaced, 0 kept
[CLS] the {cat -> [MASK]} sat [SEP] it {rained -> plum} on the {mat -> [MASK]} [SEP]
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
)
from bert_keras.tasks.ancestors.transformer import Translation
from bert_keras.tasks.options import SENTENCE_PAIR_LABELS
from bert_keras.tasks.pretraining.corpus import Document
from bert_keras.tasks.pretraining.instance_sources import RecordInstances, TextInstances, make_batches
from bert_keras.tasks.pretraining.instance_stream import Segmenter
from bert_keras.tasks.pretraining.model import make_objectives
from bert_keras.tasks.pretraining.recipes import Recipe
from bert_keras.tasks.pretraining.records import RecordFiles
from bert_keras.text.masking import Pieces
from bert_keras.text.tokenizer import Tokenizer


def show_instances(
    recipe: Recipe,
    *,
    count: int,
    tokenizer: Tokenizer,
    documents: Iterable[Document] | None = None,
    records: RecordFiles | None = None,
    segment: Segmenter | None = None,
) -> Iterator[str]:
    """Yields two lines for each of the first instances of a recipe, with masks as training draws them.

    documents, records: one of both

    Raises ValueError for a count below 1, and as `pretrain` does for text or records that it refuses.
    """
    if count < 1:
        raise BertKerasError(f"{count} instances were asked for; give at least 1.")
    known: Any = {"recipe": recipe, "tokenizer": tokenizer, "vocab_size": tokenizer.vocab_size}
    source: TextInstances | RecordInstances
    if documents is not None:
        source = TextInstances(documents, None, segment=segment, **known)
    else:
        assert records is not None
        source = RecordInstances([records], None, **known)
    pieces, counts = Pieces.of(tokenizer), source.token_counts
    objectives = make_objectives(recipe, source.phases[0].seq_length, pieces=pieces, counts=counts)
    with source.reading(0):
        batches = make_batches(
            source.sample(0).take(count),
            # A pair of a translation is shown as a row, before it is split.
            objectives=[one for one in objectives if not isinstance(one, Translation)],
            vocab_size=tokenizer.vocab_size,
            batch_size=count,
            seed=recipe.hparams.seed,
            drop_remainder=False,
        )
        columns = next(iter(batches.map(lambda features, labels, weights: features)), None)
    if columns is None:
        raise BertKerasError("the text gives no instance; give more documents, of several lines each.")
    arrays = {name: value.numpy() for name, value in columns.items()}
    order = "sentence-order" if recipe.sampling().sampler == "sentence_order" else "next-sentence"
    for row in range(len(arrays[INPUT_WORD_IDS])):
        yield from _described(
            {name: value[row] for name, value in arrays.items()},
            tokenizer,
            task=order if any(one.pair_labels for one in objectives) else None,
            masks=any(one.fills_masks for one in objectives),
        )


def _described(
    instance: dict[str, np.ndarray], tokenizer: Tokenizer, *, task: str | None, masks: bool
) -> Iterator[str]:
    """The lines of one instance. task: the key of its pair's label, or None; masks: False for left to right."""
    words, about = tokenizer.vocabulary, list[str]()
    shown = [words[i] for i in instance[INPUT_WORD_IDS][: int(instance[INPUT_MASK].sum())]]
    if task is not None and NEXT_SENTENCE_LABEL in instance:
        label = SENTENCE_PAIR_LABELS[task][int(np.ravel(instance[NEXT_SENTENCE_LABEL])[0])]
        about.append(f"{task}: {label}")
    if masks:
        counts = dict.fromkeys(("masked", "replaced", "kept"), 0)
        at = zip(
            instance[MASKED_LM_POSITIONS], instance[MASKED_LM_IDS], instance[MASKED_LM_WEIGHTS], strict=True
        )
        for position, original, weight in at:
            if not weight:
                continue
            now = int(instance[INPUT_WORD_IDS][position])
            kind = "kept" if now == original else "masked" if now == tokenizer.special.mask_id else "replaced"
            counts[kind] += 1
            change = "kept" if kind == "kept" else f"-> {words[now]}"
            shown[position] = f"{{{words[original]} {change}}}"
        about.append(", ".join(f"{number} {kind}" for kind, number in counts.items()))
    else:
        about.append("each token is predicted from those before it")
    yield "; ".join(about)
    yield " ".join(shown)
