"""Reads named entities in CoNLL's format: one word and its tag per line, from files or TensorFlow Datasets; tag schemes.

Ada   NNP I-NP I-PER     the word is the first column, its tag the last
wrote VBD I-VP O         a blank line ends a sentence, -DOCSTART- starts a document
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from seqeval.metrics.sequence_labeling import get_entities

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import shortened
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.sources import Source, load_tfds, numbered_lines, refuse_forms, split_file

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

DOCSTART = "-DOCSTART-"
FILES = {
    "train": ("eng.train", "eng.train.gz", "train.txt", "train.txt.gz"),
    "validation": ("eng.testa", "eng.testa.gz", "valid.txt", "dev.txt", "valid.txt.gz", "dev.txt.gz"),
    "test": ("eng.testb", "eng.testb.gz", "test.txt", "test.txt.gz"),
}
TFDS_SPLITS = {"train": "train", "validation": "dev", "test": "test"}
_TAG = re.compile(
    rf"{OUTSIDE}|[{''.join({prefix for scheme in SCHEMES.values() for prefix in scheme if prefix})}]-\S+"
)


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


def load_corpus(source: Source | None, split: str) -> Corpus:
    """The corpus of a split, from files or from TensorFlow Datasets."""
    return _load_tfds_corpus(split) if source is None else read_corpus(split_file(source, split, FILES))


def read_corpus(path: str | Path, *, column: int = -1, least: int = 2, most: int | None = None) -> Corpus:
    """Reads a plain or gzipped file with columns separated by spaces or tabs.

    column: the place of the tags; CoNLL-2003 has parts of speech in 1, chunks in 2 and entities in the last
    least, most: the least and the largest number of columns

    A line before a sentence that starts with "# " and does not end in a tag is a comment, and is left out.

    Raises BertKerasError for a line without a tag, or with more or fewer columns than the first line.
    """
    refuse_forms(
        to_path(path),
        (".csv", ".json", ".jsonl", ".parquet"),
        "tags are read from text of one word and its tag a line (.txt), with a blank line after each sentence; write that, or "
        "give lists of words and of tags to fit of bert_keras.tagger in Python",
    )
    documents: list[list[Sentence]] = [[]]
    marked, expected, sentence = False, 0, None
    source = f"{path}, line"
    for number, line in numbered_lines(to_path(path)):
        columns = re.split("[ \t]+", line.strip(" \t\r"))
        if columns == [""]:
            sentence = None
        elif sentence is None and columns[0] == "#" and not _TAG.fullmatch(columns[-1]):
            continue
        elif columns[0] == DOCSTART:
            marked, sentence = True, None
            documents.append([])
        else:
            expected, found = expected or len(columns), len(columns)
            if most is not None and found > most:
                raise BertKerasError(
                    f"{source} {number}: {found} columns, expected at most {most}: word, part of speech, chunk, entity; "
                    "remove the others."
                )
            if found < least or found != expected:
                wanted = "a word first, its tag last" if least == 2 else "word, part of speech, chunk, entity"
                raise BertKerasError(
                    f"{source} {number}: {found} column(s), expected {max(expected, least)}: {wanted}."
                )
            if sentence is None:
                sentence = Sentence([], [], source, number)
                documents[-1].append(sentence)
            sentence.words.append(columns[0])
            sentence.tags.append(columns[column])
    documents = [*filter(None, documents)]
    if not documents:
        raise BertKerasError(f"{path} has no words; give a word and its tag on each line.")
    return Corpus(documents, marked)


def _load_tfds_corpus(split: str) -> Corpus:
    """A split of conll2003 in TensorFlow Datasets, which does not mark documents."""
    if split not in TFDS_SPLITS:
        raise BertKerasError(f"there is no split {split!r}; the splits are {', '.join(TFDS_SPLITS)}.")
    examples, info = load_tfds("conll2003", TFDS_SPLITS[split], instead="a folder of its files (--data)")
    names = info.features["ner"].feature.names
    source, number, sentences = f"conll2003/{TFDS_SPLITS[split]}, word", 1, []
    for example in examples.as_numpy_iterator():
        words = [word.decode() for word in example["tokens"]]
        if bad := next((word for word in words if re.search("[ \n]", word) or not word), None):
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
# Tag schemes: IOB1, IOB2 and BIOES, read as conlleval reads them


class Entity(NamedTuple):
    """The type of an entity, and its first and last word."""

    type: str
    first: int
    last: int


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence's tags in any scheme, from seqeval: "I-" after another type starts an entity.

    A tag that is in no scheme counts as O.
    """
    known = [tag if tag.startswith(_PREFIXES) and len(tag) > 2 else OUTSIDE for tag in tags]
    return [Entity(*found) for found in get_entities(known)]


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
