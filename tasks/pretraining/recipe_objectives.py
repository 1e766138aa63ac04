"""The objectives that a recipe names."""

import dataclasses

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.fields import Masking, names_of
from bert_keras.optimization.objectives import LeftToRight, MaskedLM, Objective, ReplacedTokens, SentencePair
from bert_keras.tasks.pretraining.recipes import Recipe
from bert_keras.text.masking import Pieces

OBJECTIVES: dict[str, type[Objective]] = {
    "masked_lm": MaskedLM,
    "left_to_right": LeftToRight,
    "sentence_pair": SentencePair,
    "replaced_token": ReplacedTokens,
}


def kinds_of(recipe: Recipe) -> tuple[type[Objective], ...]:
    """The classes of a recipe's objectives."""
    return tuple(OBJECTIVES[name] for name in recipe.objectives)


def unread_settings(recipe: Recipe) -> list[str]:
    """The user's settings of objectives that the recipe does not have."""
    fields = {kind: names_of(kind) for kind in OBJECTIVES.values()}
    of_objectives = {*names_of(Masking), *(name for names in fields.values() for name in names)}
    read = {name for kind in kinds_of(recipe) for name in fields[kind]}
    if "masking" in read:
        read |= {*names_of(Masking)}  # max_predictions too, a name of both
    return [name for name in recipe.changes if name in of_objectives - read]


def check_settings_are_read(recipe: Recipe) -> None:
    """Raises BertKerasError for a setting of the user that no objective of the recipe reads."""
    if unread := unread_settings(recipe):
        raise BertKerasError(
            f"{unread[0]} does not apply to {', '.join(recipe.objectives)}, the objectives of this recipe; leave {unread[0]} out."
        )


def masks_whole_words(recipe: Recipe) -> bool:
    """True if an objective of the recipe masks whole words."""
    return any("masking" in names_of(kind) for kind in kinds_of(recipe)) and recipe.masking(128).whole_word


def check_direction(recipe: Recipe, config: BertConfig) -> None:
    """Raises BertKerasError for an encoder that sees the tokens which the recipe predicts from the left."""
    if LeftToRight in kinds_of(recipe) and not config.causal:
        raise BertKerasError(
            "left_to_right needs an encoder with causal attention, and the checkpoint's is not; set causal=true."
        )


def objectives_for(recipe: Recipe, seq_length: int, *, pieces: Pieces) -> list[Objective]:
    """The objectives for one length. Their fields are set by name from `pieces`, the masking and the settings."""
    known = {"pieces": pieces, "masking": recipe.masking(seq_length), **vars(recipe.hparams)}
    return [
        kind(**{field.name: known[field.name] for field in dataclasses.fields(kind)})  # type: ignore[arg-type]
        for kind in kinds_of(recipe)
    ]
