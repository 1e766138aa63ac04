"""The objectives that a recipe names."""

import dataclasses

from bert_keras.objectives import LeftToRight, MaskedLM, Objective, ReplacedTokens, SentencePair
from bert_keras.text.masking import Pieces
from tasks.pretraining.recipes import Recipe

OBJECTIVES: dict[str, type[Objective]] = {
    "masked_lm": MaskedLM,
    "left_to_right": LeftToRight,
    "sentence_pair": SentencePair,
    "replaced_token": ReplacedTokens,
}


def kinds_of(recipe: Recipe) -> tuple[type[Objective], ...]:
    """The classes of a recipe's objectives."""
    return tuple(OBJECTIVES[name] for name in recipe.objectives)


def objectives_for(recipe: Recipe, seq_length: int, *, pieces: Pieces) -> list[Objective]:
    """The objectives for one length. Their fields are set by name from `pieces`, the masking and the settings."""
    known = {"pieces": pieces, "masking": recipe.masking(seq_length), **vars(recipe.hparams)}
    return [
        kind(**{field.name: known[field.name] for field in dataclasses.fields(kind)})  # type: ignore[arg-type]
        for kind in kinds_of(recipe)
    ]
