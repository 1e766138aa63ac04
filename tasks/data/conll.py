"""Reads named entities in CoNLL's format: one word and its tag per line, from files or TensorFlow Datasets; tag schemes.

Ada   NNP I-NP I-PER     conll_columns.py finds the columns of the words and of the tags
wrote VBD I-VP O         a blank line ends a sentence, -DOCSTART- starts a document
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from seqeval.metrics.sequence_labeling import get_entities

from bert_keras.errors import BertKerasError, first_names
from bert_keras.io.json_files import is_integer, parse_json, shortened
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.conll_columns import NAMES_LINE, OUTSIDE, PREFIXES, TAG, find_columns
from bert_keras.tasks.data.sources import (
    Source,
    load_tfds,
    nonblank_lines,
    numbered_lines,
    refuse_forms,
    split_file,
)


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
    "BILOU": Scheme("B", "I", "L", "U"),
    "BMES": Scheme("B", "M", "E", "S"),
    "IOE2": Scheme("I", "I", "E", "E"),
}

DOCSTART = "-DOCSTART-"
FILES = {
    "train": ("eng.train", "eng.train.gz", "train.txt", "train.txt.gz", "train.jsonl", "train.json"),
    "validation": (
        *("eng.testa", "eng.testa.gz", "valid.txt", "dev.txt", "valid.txt.gz", "dev.txt.gz"),
        *("valid.jsonl", "dev.jsonl", "valid.json", "dev.json"),
    ),
    "test": ("eng.testb", "eng.testb.gz", "test.txt", "test.txt.gz", "test.jsonl", "test.json"),
}
TFDS_SPLITS = {"train": "train", "validation": "dev", "test": "test"}
ROWS = (
    ".jsonl"  # a row of words and tags for each sentence, as the datasets of the Hugging Face Hub have them
)
WORDS_OF_ROW, TAGS_OF_ROW = ("tokens", "words"), ("ner_tags", "tags", "labels")
_BLANK = re.compile("[ \t\r\n]")


class Sentence(NamedTuple):
    """Words with their tags.

    source: the file, for errors
    number: the line of the first word
    """

    words: list[str]
    tags: list[str]
    source: str
    number: int

    def where(self, word: int) -> str:
        """The file and the line of a word, for errors."""
        return f"{self.source} {self.number + word}"


class Corpus(NamedTuple):
    """Documents of sentences.

    marked: True where the file marks the start of each document
    """

    documents: list[list[Sentence]]
    marked: bool


def is_word(word: str) -> bool:
    """True for text without a space, a tab or a line end. Other white space, such as a no-break space, is a part of a word."""
    return bool(word) and not _BLANK.search(word)


def is_tag(tag: str) -> bool:
    """True for a tag of one of SCHEMES."""
    return TAG.fullmatch(tag) is not None


def load_corpus(
    source: Source | None, split: str, *, word: str | None = None, tag: str | None = None
) -> Corpus:
    """The corpus of a split, from files or from TensorFlow Datasets. word, tag: as `read_corpus` takes them."""
    if source is None:
        return _load_tfds_corpus(split)
    return read_corpus(split_file(source, split, FILES), word=word, tag=tag)


class _Lines(NamedTuple):
    """The lines of a sentence: the number of the first, and the cells of each."""

    number: int
    rows: list[tuple[str, ...]]


def read_corpus(
    path: str | Path,
    *,
    word: str | None = None,
    tag: str | None = None,
    least: int = 2,
    most: int | None = None,
) -> Corpus:
    """Reads a plain or gzipped file with columns separated by spaces or tabs.

    word, tag: the columns of the words and of the tags, each a name or a number from 1; None guesses, as `find_columns`
    least, most: the least and the largest number of columns

    A line before a sentence that starts with "# " and does not end in a tag is a comment, and is left out.

    Raises BertKerasError for a line without a tag, or with more or fewer columns than the first line, and for columns that are
    not there or that a guess cannot be sure of.
    """
    if holds_rows(to_path(path)):
        return Corpus([[sentence] for sentence in _read_rows(to_path(path))], False)
    refuse_forms(
        to_path(path),
        (".csv", ".parquet"),
        "tags are read from text of one word and its tag a line (.txt), with a blank line after each sentence, or from .jsonl "
        "with tokens and ner_tags, or text and entities; write one of these, or give lists of words and of tags to fit of "
        "bert_keras.tagger in Python",
    )
    documents, names, marked = _read_lines(to_path(path), least=least, most=most)
    groups = [lines.rows for document in documents for lines in document]
    if not groups:
        raise BertKerasError(f"{path} has no words; give a word and its tag on each line.")
    found = find_columns(groups, word=word, tag=tag, names=names, where=str(path))
    if found.header:
        number, rows = documents[0][0]
        documents[0][0] = _Lines(number + 1, rows[1:])
    source = f"{path}, line"
    made = [
        [
            Sentence([row[found.words] for row in rows], [row[found.tags] for row in rows], source, number)
            for number, rows in document
            if rows
        ]
        for document in documents
    ]
    if not (made := [*filter(None, made)]):
        raise BertKerasError(f"{path} has no words; give a word and its tag on each line.")
    return Corpus(made, marked)


def holds_rows(path: Path) -> bool:
    """True for JSON lines whose first row has words and no text: Prodigy's rows of spans have tokens beside their text."""
    if not path.name.lower().removesuffix(".gz").endswith(ROWS):
        return False
    first = next((line for _, line in nonblank_lines(path)), "")
    try:
        row = parse_json(first, source=path)
    except BertKerasError:  # which the reader of spans names with its line
        return False
    return isinstance(row, dict) and "text" not in row and any(name in row for name in WORDS_OF_ROW)


def _read_rows(path: Path) -> Iterator[Sentence]:
    """The sentences of JSON lines. Raises BertKerasError, with the line, for a row that is not words and their tags."""
    wanted = f'give {{"{WORDS_OF_ROW[0]}": ["Anna", "sang"], "{TAGS_OF_ROW[0]}": ["B-PER", "O"]}}'
    for number, line in nonblank_lines(path):
        where = f"{path}, line {number}"
        row = parse_json(line, source=where)
        named = row if isinstance(row, dict) else {}
        words, tags = (
            next((named[name] for name in names if name in named), None)
            for names in (WORDS_OF_ROW, TAGS_OF_ROW)
        )
        if not isinstance(words, list) or not isinstance(tags, list) or not words:
            raise BertKerasError(
                f"{where}: the row has {first_names(map(shortened, named)) or 'no names'}; {wanted}."
            )
        if len(words) != len(tags):
            raise BertKerasError(
                f"{where}: {len(words)} words and {len(tags)} tags; give one tag for each word."
            )
        if any(map(is_integer, tags)):
            raise BertKerasError(
                f"{where}: the tags are numbers; write their names, which `features` of the data set has, such as B-PER."
            )
        if wrong := [word for word in words if not isinstance(word, str) or not is_word(word)]:
            raise BertKerasError(f"{where}: {shortened(wrong[0])} is no word; give text without spaces.")
        yield Sentence(words, [str(tag) for tag in tags], f"{path}, line", number)


def _read_lines(path: Path, *, least: int, most: int | None) -> tuple[list[list[_Lines]], list[str], bool]:
    """The lines of the sentences of the documents, the names of the columns where a comment has them, and `Corpus.marked`."""
    documents: list[list[_Lines]] = [[]]
    marked, expected, names = False, 0, list[str]()
    lines: _Lines | None = None
    for number, text in numbered_lines(path):
        cells = re.split("[ \t]+", text.strip(" \t\r"))
        if text.startswith(NAMES_LINE):
            names = text.removeprefix(NAMES_LINE).split()
        elif cells == [""]:
            lines = None
        elif (
            lines is None
            and cells[0] == "#"
            and not (is_tag(cells[-1]) and len(cells) == (expected or len(cells)))
        ):
            continue
        elif cells[0] == DOCSTART:
            marked, lines = True, None
            documents.append([])
        else:
            expected = expected or len(cells)
            if len(cells) != expected or len(cells) < least or (most is not None and len(cells) > most):
                raise _wrong_count(f"{path}, line {number}", len(cells), expected, least=least, most=most)
            if lines is None:
                lines = _Lines(number, [])
                documents[-1].append(lines)
            lines.rows.append(tuple(cells))
    return [*filter(None, documents)], names, marked


def _wrong_count(where: str, found: int, expected: int, *, least: int, most: int | None) -> BertKerasError:
    if most is not None and found > most:
        wanted = "word, part of speech, chunk, entity; remove the others"
        return BertKerasError(f"{where}: {found} columns, expected at most {most}: {wanted}.")
    wanted = "a word first, its tag last" if least == 2 else "word, part of speech, chunk, entity"
    return BertKerasError(f"{where}: {found} column(s), expected {max(expected, least)}: {wanted}.")


def _load_tfds_corpus(split: str) -> Corpus:
    """A split of conll2003 in TensorFlow Datasets, which does not mark documents."""
    if split not in TFDS_SPLITS:
        raise BertKerasError(f"there is no split {split!r}; the splits are {', '.join(TFDS_SPLITS)}.")
    examples, info = load_tfds("conll2003", TFDS_SPLITS[split], instead="a folder of its files (--data)")
    names = info.features["ner"].feature.names
    source, number, sentences = f"conll2003/{TFDS_SPLITS[split]}, word", 1, []
    for example in examples.as_numpy_iterator():
        words = [word.decode() for word in example["tokens"]]
        if bad := next((word for word in words if not is_word(word)), None):
            raise BertKerasError(
                f"{source} {number}: the word {shortened(bad)} is blank or contains a blank; give words without blanks."
            )
        if words:
            tags = [names[tag] for tag in example["ner"]]
            sentences.append(Sentence(words, tags, source, number))
            number += len(words)
    return Corpus([sentences], False)


def check_tags(sentences: Iterable[Sentence], scheme: str) -> None:
    """Raises BertKerasError for a tag that is not in the scheme, with its line."""
    known = {prefix for prefix in SCHEMES[scheme] if prefix}
    for sentence in sentences:
        for word, tag in enumerate(sentence.tags):
            prefix, _, kind = tag.partition("-")
            if tag != OUTSIDE and not (prefix in known and kind):
                raise BertKerasError(
                    f"{sentence.where(word)}: unknown tag {shortened(tag)}; {scheme}, the scheme of the training file, has O, "
                    f"{', '.join(f'{prefix}-TYPE' for prefix in sorted(known))}."
                )


def find_misfits(sentences: Iterable[Sentence], scheme: str) -> Iterator[str]:
    """Yields the lines of tags that differ from the scheme's tags for the same entities."""
    for sentence in sentences:
        for word, expected in enumerate(convert_tags(sentence.tags, scheme)):
            if sentence.tags[word] != expected:
                yield sentence.where(word)


def detect_scheme(sentences: Sequence[Sentence]) -> str:
    """The scheme of SCHEMES that fits most tags."""
    return min(SCHEMES, key=lambda scheme: sum(1 for _ in find_misfits(sentences, scheme)))


# -----------------------------------------------------------------------------------------------------------
# Tag schemes, read as conlleval reads IOB1, IOB2 and BIOES


class Entity(NamedTuple):
    """The type of an entity, and its first and last word."""

    type: str
    first: int
    last: int


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence's tags in any scheme, from seqeval: "I-" after another type starts an entity.

    A tag that is in no scheme counts as O.
    """
    return [Entity(*found) for found in get_entities([*map(_as_seqeval_reads, tags)])]


@functools.lru_cache(4096)  # a file has few different tags
def _as_seqeval_reads(tag: str) -> str:
    return PREFIXES[tag[0]] + tag[1:] if is_tag(tag) and tag != OUTSIDE else OUTSIDE


def write_tags(entities: Iterable[Entity], *, length: int, scheme: str) -> list[str]:
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


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """The tags of a sentence, converted from any scheme to `scheme`."""
    return write_tags(find_entities(tags), length=len(tags), scheme=scheme)
