"""The columns of the words and of the tags in a file of one word a line: named by the user, or guessed where the file is sure.

1  Anna  NNP  I-NP  B-PER     numbers that count up in every sentence are no words
2  sang  VBD  I-VP  O         of the columns with tags, the chunks of CoNLL-2000 are no entities
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from bert_keras.errors import BertKerasError, first_names
from bert_keras.io.json_files import shortened

NAMES_LINE = "# global.columns ="  # of CoNLL-U Plus
# The names of the words and of the tags in a header.
WORD_NAMES = ("word", "words", "token", "tokens", "form", "text")
TAG_NAMES = ("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "entity")
# The types of chunks in English and German.
CHUNKS = {"ADJP", "ADVP", "CONJP", "INTJ", "LST", "NC", "NP", "PC", "PP", "PRT", "SBAR", "UCP", "VC", "VP"}
OUTSIDE = "O"
# The prefixes of all schemes of tags -> those that seqeval reads. W is the S of BMEWO.
PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I", "W": "S"}
TAG = re.compile(rf"{OUTSIDE}|[{''.join(PREFIXES)}]-(\S+)")
Rows = Sequence[Sequence[str]]  # the cells of the words of a sentence


class WordColumns(NamedTuple):
    """The places of the words and of the tags in a line, from 0.

    header: True if the first line has the names of the columns
    """

    words: int
    tags: int
    header: bool = False


def find_columns(
    sentences: Sequence[Rows], *, word: str | None, tag: str | None, names: Sequence[str], where: str
) -> WordColumns:
    """The columns of a file whose lines have equally many.

    sentences: the cells of each sentence; its first line may be a header
    word, tag: the name of a column, or its number from 1; None guesses
    names: of the columns, from a line NAMES_LINE; may be empty
    where: the file, for errors

    Raises BertKerasError for a column that is not there, and where a guess is not sure.
    """
    first = sentences[0][0]
    names = names if len(names) == len(first) else ()
    header = not names and _is_header(first, word, tag)
    names = first if header else names
    groups = [*filter(None, [sentences[0][header:], *sentences[1:]])]
    words = _guess_words(groups, names, where) if word is None else _find(word, names, first, "word", where)
    rows = [*itertools.chain.from_iterable(groups)]
    tags = _guess_tags(rows, words, names, where) if tag is None else _find(tag, names, first, "tag", where)
    if words == tags:
        raise BertKerasError(
            f"{where}: column {words + 1} cannot be the words and the tags; give another --word-column or --tag-column."
        )
    return WordColumns(words, tags, header)


def _is_header(first: Sequence[str], word: str | None, tag: str | None) -> bool:
    """True if the first line holds the given names; without names, if it holds names that are usual for words and for tags."""
    if given := [name for name in (word, tag) if name is not None and not name.isdecimal()]:
        return {*given} <= {*first}
    return bool(_named(first, WORD_NAMES) and _named(first, TAG_NAMES))


def _find(given: str, names: Sequence[str], first: Sequence[str], kind: str, where: str) -> int:
    """The place of a column that was given by its name or its number."""
    if given in names:
        return [*names].index(given)
    if given.isdecimal() and 1 <= int(given) <= len(first):
        return int(given) - 1
    there = f"named {first_names(map(shortened, names))}" if names else "without names"
    raise BertKerasError(
        f"{where}: --{kind}-column is {shortened(given)}, and the file has {len(first)} columns {there}; give a number from 1 to "
        f"{len(first)}{', or a name' if names else ''}."
    )


def _named(names: Sequence[str], known: Sequence[str]) -> list[int]:
    return [place for place, name in enumerate(names) if name.casefold() in known]


def _guess_words(sentences: Sequence[Rows], names: Sequence[str], where: str) -> int:
    """The first column; the second one after numbers that count up in every sentence."""
    if len(found := _named(names, WORD_NAMES)) == 1:
        return found[0]
    if not sentences or len(sentences[0][0]) < 3:
        return 0
    columns = [[row[0] for row in rows] for rows in sentences]
    cells = [*itertools.chain.from_iterable(columns)]
    advice = "give the column of the words as --word-column, such as 2"
    if all(cell.isdecimal() for cell in cells):
        if len(cells) > len(columns) and all(map(_counts_up, columns)):
            return 1
        raise BertKerasError(f"{where}: the first column holds only numbers; {advice}.")
    if len(columns) > 1 and len({*cells}) == 1:
        raise BertKerasError(f"{where}: the first column is {shortened(cells[0])} in every line; {advice}.")
    return 0


def _counts_up(numbers: Sequence[str]) -> bool:
    return all(int(after) == int(before) + 1 for before, after in itertools.pairwise(numbers))


def _guess_tags(rows: Rows, words: int, names: Sequence[str], where: str) -> int:
    """The only column of entities' tags; the last column where there is none, whose first wrong tag is then an error."""
    if len(found := _named(names, TAG_NAMES)) == 1:
        return found[0]
    columns = [*zip(*rows, strict=True)]
    found = [place for place, cells in enumerate(columns) if place != words and _tags_entities(cells)]
    if len(found) > 1:
        listed = " and ".join(str(place + 1) for place in found)
        raise BertKerasError(
            f"{where}: the columns {listed} hold tags; give the one to learn as --tag-column, such as {found[0] + 1}."
        )
    return found[0] if found else len(columns) - 1


def _tags_entities(cells: Sequence[str]) -> bool:
    """True for a column of tags, at least one of which is of an entity and not of a chunk."""
    tags = [TAG.fullmatch(cell) for cell in {*cells}]
    types = {tag[1] for tag in tags if tag is not None and tag[1]}
    return all(tags) and bool(types) and not types <= CHUNKS
