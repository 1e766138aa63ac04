"""Checks of a command's flags before TensorFlow is imported, which takes seconds: names of tasks, and paths where nothing is."""

import argparse
from collections.abc import Collection, Sequence
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.own_code import is_own
from bert_keras.io.paths import is_remote, to_path
from bert_keras.tasks.commands.flags import OF_RUN, task_settings
from bert_keras.tasks.data.sources import check_input, missing_source
from bert_keras.tasks.data.tables import STANDARD_INPUT
from bert_keras.tasks.options import check_task_name


def check_model(args: argparse.Namespace) -> None:
    """Raises BertKerasError unless --run is given alone, or --checkpoint; and as `check_paths`."""
    of_task, own = {*task_settings(args)} - {*OF_RUN}, is_own(args.task or "")
    if bool(args.run) == bool(args.checkpoint) or (args.run and ((args.task and not own) or of_task)):
        raise BertKerasError("give --run alone, or --checkpoint; a run has its own task and its options.")
    check_paths(args)


def check_paths(args: argparse.Namespace) -> None:
    """Raises BertKerasError for an unknown --task, and for a path of a run, a checkpoint, data or input that is not there.

    A folder without a checkpoint is refused too. The name of a model is not looked up. --data may be a list of NAME=PATH.
    """
    given = vars(args)
    if (task := given.get("task")) and not is_own(task):
        check_task_name(task)
    from bert_keras import checkpoints  # NumPy

    for missing, paths in (
        (checkpoints.missing_run, [*(given.get("run") or ()), *_paths(given.get("compare"))]),
        (missing_source, [path for name in ("data", "dev_data") for path in _paths(given.get(name))]),
        (missing_source, given.get("records") or ()),
    ):
        for path in paths:
            if not is_remote(path) and not to_path(path).exists():
                raise missing(to_path(path))
    if given.get("input", STANDARD_INPUT) != STANDARD_INPUT and not is_remote(args.input):
        check_input(to_path(args.input))
    if given.get("checkpoint"):
        checkpoints.check_there(given["checkpoint"])


def _paths(given: Any) -> list[str]:
    """A path, or those of a list of NAME=PATH."""
    return [given] if isinstance(given, str) else [one.partition("=")[2] for one in given or ()]


def pairs_of(flag: str, given: Sequence[str]) -> dict[str, str]:
    """The values of NAME=VALUE. Raises BertKerasError for a repeated name."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise BertKerasError(f"{one!r} has no name; give NAME=VALUE.")
        if name in found:
            raise BertKerasError(f"{flag} has {name} more than once; give each name once.")
        found[name] = value
    return found


def vocabularies(given: Sequence[str]) -> dict[str | None, str]:
    """The path of each vocabulary of --vocab by its name; None for the one without a name, which stands alone or first."""
    alone = [one for one in given if "=" not in one]
    if len(alone) > 1:
        raise BertKerasError(
            f"--vocab has {' and '.join(alone)} without names; give one, and the others as NAME=PATH."
        )
    found: dict[str | None, str] = {None: alone[0]} if alone else {}
    found.update(pairs_of("--vocab", [one for one in given if "=" in one]))
    return found


def texts_by_name(given: Sequence[str], names: Collection[str | None]) -> dict[str | None, list[str]]:
    """The sources of each text of --text by its name, NAME=SOURCE; None for sources without a name that is in `names`."""
    found: dict[str | None, list[str]] = {}
    for one in given:
        name, equals, source = one.partition("=")
        named = bool(equals) and name in names
        found.setdefault(name if named else None, []).append(source if named else one)
    return found


def check_text(args: argparse.Namespace, *more: str) -> None:
    """As `check_paths`, and raises BertKerasError for a --text or a --vocab that is not there. more: other text."""
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.corpus import open_corpora  # NumPy

    named = texts_by_name(args.text or (), vars(args).get("text_names", ()))
    if local := [text for part in (*named.values(), more) for text in part if not is_remote(text)]:
        open_corpora(local)
    check_paths(args)
    given = vars(args).get("vocab") or []
    for vocabulary in vocabularies([given] if isinstance(given, str) else given).values():
        if not is_remote(vocabulary) and not to_path(vocabulary).exists():
            checkpoints.check_there(vocabulary)
