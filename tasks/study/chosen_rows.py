"""The rows that a study runs, and their pre-trainings: rows of a table and recipes, by name, a user's own by MODULE:NAME."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.own_code import is_own, load_own
from bert_keras.tasks.hparams import STRICT
from bert_keras.tasks.pretraining.model import unread_settings
from bert_keras.tasks.pretraining.recipes import RECIPES, Recipe, recipe_named
from bert_keras.tasks.study.rows import CONTROL, Row, Scale, check_once


def folder_name(row: str) -> str:
    """The name of a row's folder."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in row.lower()).split())


def chosen_rows(table: Sequence[Row], names: Sequence[str] | None) -> list[Row]:
    """The rows of a table with these names, in its order, then recipes and a user's own by MODULE:NAME; None takes the table.

    CONTROL is a row of each table. A recipe has its own pre-training and the recipe's name, unless a row of the table has it.

    Raises BertKerasError for other names, for two rows whose folders would have one name, and for a row of a user's own with the
    weights of a row that has no pre-training here.
    """
    control = dataclasses.replace(table[0], name=CONTROL, weights=table[0].name, share=0.0)
    known = {row.name: row for row in (*table, control)}
    if names is None:
        return [*known.values()]
    check_once("rows", names)
    own = {name: _own_row(name) for name in names if is_own(name) or name in RECIPES and name not in known}
    if unknown := [name for name in names if name not in known | own]:
        raise BertKerasError(
            f"unknown row {unknown[0]!r}; give some of {'; '.join(known)}, a recipe ({', '.join(RECIPES)}), or MODULE:NAME for "
            "a row or recipe of your own."
        )
    folders = {"", *map(folder_name, known)}
    for name, row in own.items():
        if (folder := folder_name(row.name)) in folders:
            raise BertKerasError(
                f"--rows {name} has the name {row.name!r}, which names no folder of its own; give another name."
            )
        folders.add(folder)
    pretrained = {row.name: row for row in (*table, *own.values()) if row.weights is None}
    for name, row in own.items():
        weights = row.weights and (own[row.weights].name if row.weights in own else row.weights)
        if weights is not None and weights not in pretrained:
            raise BertKerasError(
                f"--rows {name} has the weights of {weights!r}; give one of {'; '.join(pretrained)}, or name that row in --rows "
                "too."
            )
        own[name] = dataclasses.replace(row, weights=weights)
    return [row for name, row in {**known, **own}.items() if name in names]


def _own_row(name: str) -> Row:
    """A Row of a user's own, or the row of a recipe. Raises BertKerasError for another object."""
    found = RECIPES[name] if name in RECIPES else load_own(name, given="--rows")
    if isinstance(found, Recipe):
        return Row(name=name, recipe=name)
    if not isinstance(found, Row):
        raise BertKerasError(
            f"--rows {name} is {type(found).__name__}; give a Row (bert_keras.tasks.study.rows) or a Recipe."
        )
    return found


def recipes_of(rows: Iterable[Row], scale: Scale, changes: Mapping[str, Any]) -> dict[str, Recipe]:
    """The recipe of each row's own pre-training, by its name. Raises BertKerasError for a change that none of them reads."""
    recipes = {row.name: recipe_of(row, scale, changes) for row in rows if row.weights is None}
    # A recipe leaves out what its objectives do not read. seq_length has become phases.
    read = {"seq_length", *(name for recipe in recipes.values() for name in recipe.changes)}
    if unread := [name for name in changes if name not in read]:
        raise BertKerasError(f"no pre-training of this ablation reads {unread[0]}; leave {unread[0]} out.")
    return recipes


def recipe_of(row: Row, scale: Scale, changes: Mapping[str, Any]) -> Recipe:
    """The recipe of a row's own pre-training. changes: the user's settings, which override those of the scale and the row."""
    recipe = recipe_named(row.recipe)
    own = {**recipe.settings, **recipe.changes, **row.settings, **changes}
    settings = {**scale.pretraining, **row.settings, **changes}
    if own.get("sampler", STRICT[0]) not in STRICT and "strict" not in own:
        settings.pop("strict", None)  # of the scale, for the samplers that have it
    # A length and phases contradict each other: the given one replaces that of the scale or the row.
    for given, other in (("phases", "seq_length"), ("seq_length", "phases")):
        if given in changes and other not in changes:
            settings.pop(other, None)
    recipe = recipe.changed(**settings)
    unread = {*unread_settings(recipe)} & {*changes}  # of the objectives of other rows
    return dataclasses.replace(
        recipe, changes={name: value for name, value in recipe.changes.items() if name not in unread}
    )
