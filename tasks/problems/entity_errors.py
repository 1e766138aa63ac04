"""The errors of a tagger, entity by entity: each labelled entity has at most one predicted entity, and a pair has a kind.

    labelled    [Ada Lovelace PER] met [Babbage PER] in [Turin LOC] .
    predicted   [Ada PER] Lovelace met [Babbage LOC] in Turin [. LOC]
                wrong words             wrong type      missed, invented

In: decoded tags and raw examples. Out: pairs, and the tables and judged texts of a report.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.tasks.data import conll
from bert_keras.tasks.data.conll import OUTSIDE, Entity
from bert_keras.tasks.problems.views import by_fraction, by_group, confusion, name_sizes, size_groups
from bert_keras.tasks.report import ERRORS_SHOWN, Arrays, Judged, Table, plain
from bert_keras.text.characters import to_characters
from bert_keras.text.words import TEXT, TOKENS, find_words, take_text

TAGS = "tags"
# The kind of a pair of overlapping entities is one of the first four, by span and type; of an entity alone one of the last two.
RIGHT, TYPE, WORDS, BOTH = "right", "wrong type", "wrong words", "both wrong"
MISSED, INVENTED = "missed", "invented"
PAIRED = {(True, True): RIGHT, (True, False): TYPE, (False, True): WORDS, (False, False): BOTH}
KINDS = (*PAIRED.values(), MISSED, INVENTED)
NOTHING = "(none)"
EXAMPLES = 3  # of each kind of error
AROUND = 6  # words on each side of an example
LENGTHS = (1, 2, 3, 4, 5)


class Pair(NamedTuple):
    """A labelled and a predicted entity of one sentence that belong together; None stands for no partner."""

    kind: str
    gold: Entity | None
    predicted: Entity | None

    @property
    def entities(self) -> list[Entity]:
        """The labelled entity, the predicted one, or both."""
        return [one for one in (self.gold, self.predicted) if one is not None]


def pair_entities(gold: Sequence[Entity], predicted: Sequence[Entity]) -> list[Pair]:
    """Pairs the entities of a sentence.

    Equal entities are paired first, then equal spans, then overlapping spans of one type, then other overlapping spans; among
    these, the pair that shares the most words comes first.
    """
    found = list[tuple[int, int, int, int]]()
    for i, label in enumerate(gold):
        for j, guess in enumerate(predicted):
            shared = min(label.last, guess.last) - max(label.first, guess.first) + 1
            if shared > 0:
                kind = PAIRED[label[1:] == guess[1:], label.type == guess.type]
                found.append((KINDS.index(kind), -shared, i, j))
    partners, taken = dict[int, tuple[int, str]](), set[int]()
    for place, _, i, j in sorted(found):
        if i not in partners and j not in taken:
            partners[i] = j, KINDS[place]
            taken.add(j)
    pairs = [Pair(kind, gold[i], predicted[j]) for i, (j, kind) in partners.items()]
    pairs += [Pair(MISSED, label, None) for i, label in enumerate(gold) if i not in partners]
    return pairs + [Pair(INVENTED, None, guess) for j, guess in enumerate(predicted) if j not in taken]


def split_sentences(tags: Iterable[bytes]) -> list[list[str]]:
    """The tags of each sentence of all texts."""
    return [sentence.split(" ") for text in tags for sentence in text.decode().split("\n")]


def as_entities(sentences: list[list[str]]) -> list[list[str]]:
    """Tags that measures read as entities: a tag of no scheme is a type that continues itself."""
    return [
        [tag if tag == OUTSIDE or conll.find_entities([tag]) else f"I-{tag}" for tag in sentence]
        for sentence in sentences
    ]


def pair_rows(predictions: Arrays, raw: Arrays) -> list[list[Pair]]:
    """The pairs of each text [N], by the words of the text."""
    made = []
    for row in zip(raw[TAGS], predictions[TAGS], strict=True):
        pairs, before = list[Pair](), 0
        for sentence in zip(*(as_entities(split_sentences([tags])) for tags in row), strict=True):
            gold, predicted = (
                [Entity(one.type, one.first + before, one.last + before) for one in conll.find_entities(tags)]
                for tags in sentence
            )
            pairs += pair_entities(gold, predicted)
            before += len(sentence[0])
        made.append(pairs)
    return made


def list_guesses(
    rows: Sequence[Sequence[Pair]], predictions: Arrays
) -> Iterator[tuple[float, bool, Entity, int, int]]:
    """Yields all predicted entities: score, right or not, entity, row of the text, place among the entities of the text."""
    for row, pairs in enumerate(rows):
        found = [(pair.predicted, pair.kind == RIGHT) for pair in pairs if pair.predicted]
        # Decoded entities have the order of the words.
        for place, (entity, right) in enumerate(sorted(found, key=lambda one: one[0].first)):
            yield float(predictions["entity_score"][row][place]), right, entity, row, place


def list_confident_errors(predictions: Arrays, raw: Arrays) -> Table:
    """The ERRORS_SHOWN wrong entities with the highest score: score, text, type, and the gold tags of the words."""
    wrong = [guess for guess in list_guesses(pair_rows(predictions, raw), predictions) if not guess[1]]
    rows = []
    for score, _, entity, row, place in sorted(wrong, key=lambda one: -one[0])[:ERRORS_SHOWN]:
        tags = [tag for tags in as_entities(split_sentences([raw[TAGS][row]])) for tag in tags]
        text = plain(predictions["entity_text"][row][place])
        rows.append((score, text, entity.type, " ".join(tags[entity.first : entity.last + 1])))
    about = "Wrong entities, the surest first, beside the labelled tags of their words."
    return Table("the most confident errors", ("score", "entity", "predicted", "tags"), rows, about=about)


# -----------------------------------------------------------------------------------------------------------
# The texts around entities


class Words(NamedTuple):
    """A text with the first and the last character of its words; the last one is exclusive."""

    text: str
    starts: list[int]
    ends: list[int]

    def cut(self, first: int, last: int) -> str:
        """The text from one word to another."""
        return self.text[self.starts[first] : self.ends[last]]

    def mark(self, entities: Iterable[Entity | None]) -> str:
        """The text with its entities marked."""
        marks = sorted((self.starts[one.first], self.ends[one.last], one.type) for one in entities if one)
        return mark_entities(self.text, marks)


def mark_entities(text: str, entities: Sequence[tuple[int, int, str]]) -> str:
    """Marks entities as in "[Ada Lovelace PER] met ...".

    entities: the first character, the end and the type of each, in the order of the text
    """
    for start, end, label in reversed(entities):
        text = f"{text[:start]}[{text[start:end]} {label}]{text[end:]}"
    return text


def find_row_words(raw: Arrays) -> list[Words]:
    """The words of each text."""
    columns = {name: tf.constant(raw[name]) for name in (TEXT, TOKENS) if name in raw}
    text, words = take_text(columns), find_words(columns)
    offsets = (to_characters(text, side.to_tensor(-1)).numpy() for side in words)
    rows = zip(plain(text.numpy()), *offsets, strict=True)
    return [Words(text, *(side[side >= 0].tolist() for side in sides)) for text, *sides in rows]


def find_texts(raw: Arrays) -> set[str]:
    """The texts of all labelled entities."""
    rows = pair_rows({TAGS: raw[TAGS]}, raw)
    return {
        text.cut(pair.gold.first, pair.gold.last)
        for text, pairs in zip(find_row_words(raw), rows, strict=True)
        for pair in pairs
        if pair.gold
    }


def judge(predictions: Arrays, raw: Arrays) -> Judged:
    """A row for each text: F1 of its entities, 1 where it has none and gets none.

    An exact match of all entities would be 0 for nearly every document of many sentences. A text without predicted entities has
    no score, so there is no confidence; `views` has the scores of entities.
    """
    rows, words = pair_rows(predictions, raw), find_row_words(raw)
    counts = [
        (sum(pair.kind == RIGHT for pair in pairs), sum(len(pair.entities) for pair in pairs))
        for pairs in rows
    ]
    right = np.array([2 * count / of if of else 1.0 for count, of in counts], np.float64)
    gold, predicted = (
        [text.mark(pair[1:][side] for pair in pairs) for text, pairs in zip(words, rows, strict=True)]
        for side in (0, 1)
    )
    texts = {TEXT: [one.text for one in words]}
    return Judged(rows=np.arange(len(rows)), texts=texts, gold=gold, predicted=predicted, right=right)


# -----------------------------------------------------------------------------------------------------------
# Tables


def views(predictions: Arrays, raw: Arrays, seen: Set[str] | None) -> Iterator[Table]:
    """Yields the kinds of error, what became of each type, measures by length, and examples.

    seen: the texts of the entities of the training file, None where it is not at hand
    """
    rows = pair_rows(predictions, raw)
    pairs = [pair for row in rows for pair in row]
    if not pairs:
        return
    yield count_kinds(pairs)
    yield count_outcomes(pairs)
    names = collections.Counter(
        (pair.gold.type if pair.gold else NOTHING, pair.predicted.type if pair.predicted else NOTHING)
        for pair in pairs
    )
    if len({name for both in names for name in both} - {NOTHING}) > 1:
        about = (
            f"Pairs of entities that share words. The row {NOTHING} has the invented entities, the column {NOTHING} the missed "
            "ones. A square is as dark as its share of its row."
        )
        yield from confusion("Labelled types in rows, predicted types in columns", names, about=about)
    yield from score_lengths(pairs)
    scores, right = np.array([guess[:2] for guess in list_guesses(rows, predictions)]).reshape(-1, 2).T
    about = "The score is the mean probability of an entity's tags. A model that is as sure as it is right has 0.9 right at 0.9."
    columns = ("score", "right", "predicted entities")
    yield from by_fraction("Right entities by score", columns, scores, right, about=about)
    words = find_row_words(raw)
    if seen is not None:
        yield from score_seen(rows, words, seen)
    yield list_examples(rows, words)


def count_kinds(pairs: Iterable[Pair]) -> Table:
    """The number of entities with each kind of error."""
    count = collections.Counter(pair.kind for pair in pairs)
    about = (
        "Wrong type: the right words with another type. Wrong words: the right type with too many words or too few. Both wrong: "
        "another type, and only some of the words. Missed: a labelled entity alone. Invented: a predicted entity alone."
    )
    rows = [(kind, count[kind]) for kind in KINDS[1:]]
    return Table("Kinds of error", ("error", "entities"), rows, "bars", about)


def count_outcomes(pairs: Iterable[Pair]) -> Table:
    """The kinds of the labelled entities of each type."""
    count = collections.Counter((pair.gold.type, pair.kind) for pair in pairs if pair.gold)
    types, columns = sorted({type for type, _ in count}), KINDS[:-1]
    rows = [(type, *(count[type, kind] for kind in columns)) for type in types]
    about = "Each labelled entity stands once in the row of its type. A square is as dark as its share of its row."
    return Table("What became of the labelled entities", ("type", *columns), rows, "heat", about)


def score_lengths(pairs: Sequence[Pair]) -> Iterator[Table]:
    """Yields F1 by the number of words of an entity; a wrong words counts where each of both entities stands."""
    right = [pair.gold for pair in pairs if pair.kind == RIGHT]
    sides = [pair.gold for pair in pairs], [pair.predicted for pair in pairs], right
    sizes = ((one.last - one.first + 1 for one in side if one) for side in sides)
    gold, predicted, found = (collections.Counter(name_sizes(side, LENGTHS)) for side in sizes)
    rows = [
        (name, 2 * found[name] / (gold[name] + predicted[name]), gold[name])
        for name in size_groups(LENGTHS)
        if gold[name] + predicted[name]
    ]
    if len(rows) > 1:
        about = "F1 of the entities with that number of words. Long entities are rare and hard: each end can be wrong."
        yield Table("F1 by words of an entity", ("words", "f1", "labelled entities"), rows, "bars", about)


def score_seen(rows: Sequence[Sequence[Pair]], words: Sequence[Words], seen: Set[str]) -> Iterator[Table]:
    """Yields the recall of entities whose text stands in the training file as an entity, and of new ones."""
    found = [
        (text.cut(pair.gold.first, pair.gold.last) in seen, pair.kind == RIGHT)
        for text, pairs in zip(words, rows, strict=True)
        for pair in pairs
        if pair.gold
    ]
    order = ("seen in training", "new")
    groups, right = [order[not known] for known, _ in found], np.array([right for _, right in found])
    about = (
        "Recall is the fraction of the labelled entities that the model finds. An entity is seen if its text is an entity of the "
        "training file beside this data. A model that learned names by heart finds few new ones."
    )
    title, columns = "Recall of seen and of new entities", ("labelled entities", "recall", "count")
    yield from by_group(title, columns, groups, right, about=about, order=order)


def list_examples(rows: Sequence[Sequence[Pair]], words: Sequence[Words]) -> Table:
    """The first EXAMPLES of each kind of error, with the words around them."""
    found: Mapping[str, list[tuple[str, ...]]] = {kind: [] for kind in KINDS[1:]}
    for row, pairs in zip(words, rows, strict=True):
        for pair in pairs:
            if pair.kind != RIGHT and len(found[pair.kind]) < EXAMPLES:
                first, last = min(one.first for one in pair.entities), max(one.last for one in pair.entities)
                low, high = max(first - AROUND, 0), min(last + AROUND, len(row.starts) - 1)
                shown = (f"{row.cut(one.first, one.last)} ({one.type})" if one else "" for one in pair[1:])
                found[pair.kind].append((pair.kind, *shown, " ".join(row.cut(low, high).split())))
    about = f"The first {EXAMPLES} of each kind, with up to {AROUND} words on each side."
    listed = [example for examples in found.values() for example in examples]
    return Table("Examples of errors", ("error", "labelled", "predicted", "text"), listed, about=about)
