"""Tag schemes of named entities: IOB1, IOB2 and BIOES, read as conlleval reads them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from seqeval.metrics.sequence_labeling import get_entities

OUTSIDE = "O"


class Scheme(NamedTuple):
    """The tag prefixes of the words of an entity.

    adjoining: the prefix of the first word right after an entity of the same type; None if it is the usual prefix
    """

    first: str
    inside: str
    last: str
    alone: str
    adjoining: str | None = None


SCHEMES = {
    "IOB2": Scheme("B", "I", "I", "B"),
    "IOB1": Scheme("I", "I", "I", "I", adjoining="B"),
    "BIOES": Scheme("B", "I", "E", "S"),
}
_PREFIXES = ("B-", "I-", "E-", "S-")


class Entity(NamedTuple):
    """The type of an entity, and its first and last word."""

    type: str
    first: int
    last: int


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence's tags in any scheme, from seqeval: "I-" after another type starts an entity.

    A tag that is in no scheme counts as O.
    """
    known = [tag if tag.startswith(_PREFIXES) and len(tag) > 2 else OUTSIDE for tag in tags]
    return [Entity(*found) for found in get_entities(known)]


def tags_of(entities: Iterable[Entity], *, length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` words with the given entities, in a scheme of SCHEMES."""
    form = SCHEMES[scheme]
    tags = [OUTSIDE] * length
    before = Entity("", -2, -2)
    for entity in entities:
        inside = entity.last - entity.first - 1
        prefixes = [form.alone] if inside < 0 else [form.first, *[form.inside] * inside, form.last]
        if form.adjoining and (before.type, before.last + 1) == (entity.type, entity.first):
            prefixes[0] = form.adjoining
        tags[entity.first : entity.last + 1] = [f"{prefix}-{entity.type}" for prefix in prefixes]
        before = entity
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """The tags of a sentence, converted from any scheme to `scheme`."""
    return tags_of(entities_of(tags), length=len(tags), scheme=scheme)
