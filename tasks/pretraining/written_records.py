"""Compares a recipe with records that are written: settings that contradict them are errors, or lines of warning."""

import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.fields import Masking, names_of
from bert_keras.io.json_files import short
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.manifest import MANIFEST, read_manifest
from bert_keras.tasks.pretraining.read_records import RecordFiles, listed, manifest_of
from bert_keras.tasks.pretraining.recipe_objectives import kinds_of
from bert_keras.tasks.pretraining.recipes import FIELDS, Recipe

SEGMENTS = ("sampler", "short_seq_prob", "strict")  # the length and the passes show in the records themselves
WIDTH = "max_predictions"  # the user's value is checked; the recipe's is only a bound


def check_written(source: RecordFiles, recipe: Recipe, *, predictions: int | None) -> Iterator[str]:
    """Yields warnings where records have other segments or masks than the recipe.

    predictions: the masked positions of each record; None for records without masks

    Raises BertKerasError if a setting of the user contradicts the records, or if their labels are from another sampler.
    """
    written = {} if predictions is None else {WIDTH: predictions}
    for made in _manifests(source) or [{}]:
        made = written | made | (made.get("masking") or {})
        _check_changes(source, recipe, made, masked=predictions is not None)
        _check_labels(source, recipe, made)
        yield from _other_samples(source, recipe, made)
        if predictions is not None:
            yield from _other_masks(source, recipe, made)


def check_lengths(recipe: Recipe, lengths: Sequence[int]) -> Iterator[str]:
    """Yields a warning if the user gave lengths that are not those of the records.

    lengths: positions of each set of records
    """
    given = [length for length, _ in recipe.hparams.phases]
    found = [*lengths] * (len(given) if len(lengths) == 1 else 1)
    if "phases" in recipe.changes and given != found:
        yield (
            f"warning: the settings have sequences of {_numbers(given)} tokens and the records {_numbers(lengths)}; training "
            "takes the length of the records"
        )


def name_of(source: RecordFiles) -> str:
    """The name of a set in errors."""
    files = [source] if isinstance(source, str | pathlib.Path) else source
    return str(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def _manifests(source: RecordFiles) -> list[dict[str, Any]]:
    """The manifests of the folders that the files are in; other folders have none."""
    if (found := manifest_of(source)) is not None:
        return [read_manifest(found.parent)]
    folders = dict.fromkeys(file.parent for file in listed(source))
    return [read_manifest(folder) for folder in folders if (folder / MANIFEST).is_file()]


def _check_changes(source: RecordFiles, recipe: Recipe, made: dict[str, Any], *, masked: bool) -> None:
    kinds = (Sampling, Masking) if masked else (Sampling,)
    for name, value in recipe.changes.items():
        of_files = FIELDS.get(name) in kinds or (masked and name == WIDTH and value is not None)
        if of_files and (name not in made or made[name] != value):
            known = f" ({name} {json.dumps(made[name])})" if name in made else ""
            raise BertKerasError(
                f"{name} is {json.dumps(value)}, but {name_of(source)} is already written{known}; leave {name} out, or write "
                "instances with it."
            )


def _check_labels(source: RecordFiles, recipe: Recipe, made: dict[str, Any]) -> None:
    sampler = recipe.sampling(128).sampler
    if any(kind.pair_labels for kind in kinds_of(recipe)) and made.get("sampler", sampler) != sampler:
        raise BertKerasError(
            f"the labels of {name_of(source)} are from the sampler {short(made['sampler'])} ({MANIFEST}), but the recipe has "
            f"{sampler}; give instances from {sampler}, or set sampler={made['sampler']}."
        )


def _other_samples(source: RecordFiles, recipe: Recipe, made: dict[str, Any]) -> Iterator[str]:
    yield from _differing("segments", source, recipe.sampling(128), SEGMENTS, made)


def _other_masks(source: RecordFiles, recipe: Recipe, made: dict[str, Any]) -> Iterator[str]:
    masks = [name for name in names_of(Masking) if name != WIDTH]
    yield from _differing("masks", source, recipe.masking(128), masks, made)


def _differing(
    parts: str, source: RecordFiles, settings: Any, names: Sequence[str], made: dict[str, Any]
) -> Iterator[str]:
    """A warning where the fields `names` of settings differ. settings: of any length; no such field depends on it."""
    wanted = {name: getattr(settings, name) for name in names}
    if others := [name for name in wanted if name in made and made[name] != wanted[name]]:
        yield (
            f"warning: the {parts} of {name_of(source)} have {_listed(made, others)}, and the recipe {_listed(wanted, others)}; "
            f"training keeps the {parts} of the records"
        )


def _listed(values: dict[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name}={json.dumps(values[name])}" for name in names)


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))
