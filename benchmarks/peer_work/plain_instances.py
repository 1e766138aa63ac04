"""Instances for pre-training in plain Python, as Devlin et al. 2019 describe them (sec. 3.1, A.1, A.2): a yardstick for ours.

Everything is a Python list: a basic tokenizer that goes through the characters, WordPiece by longest match, two segments for an
instance, half of the second ones from another document, 15 % of the tokens masked (80 % [MASK], 10 % a random token, 10 % the
token itself), and one tf.train.Example for each instance. The random draws are not ours, so only counts can be compared.
"""

import itertools
import pathlib
import random
import unicodedata
from collections.abc import Iterator

import numpy as np

from peer_work.work import SEED, Case, Prepared, documents

MASK_SHARE, SHORT_SHARE = 0.15, 0.1
MOST_CHARACTERS = 200  # of a word; a longer one is unknown

Segment = list[str]


def is_ideograph(character: str) -> bool:
    """True for the characters that Chinese is written in."""
    return unicodedata.name(character, "").startswith(
        ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH")
    )


def is_punctuation(character: str) -> bool:
    """True for punctuation, and for all ASCII that is neither letter, digit, space nor control."""
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


def words(text: str) -> list[str]:
    """Lower-case words without accents; a punctuation character is a word."""
    kept = []
    for character in unicodedata.normalize("NFD", text.lower()):
        if character.isascii() and character.isalnum():
            kept.append(character)
        elif character.isspace():
            kept.append(" ")
        elif unicodedata.category(character) in ("Mn", "Cc", "Cf") or character == "\ufffd":
            continue
        elif is_punctuation(character) or is_ideograph(character):
            kept.append(f" {character} ")
        else:
            kept.append(character)
    return "".join(kept).split()


def wordpieces(word: str, vocabulary: dict[str, int]) -> Segment:
    """The longest pieces of the vocabulary from left to right; [UNK] where none fits."""
    if len(word) > MOST_CHARACTERS:
        return ["[UNK]"]
    found, start = Segment(), 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                found.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return found


def read(path: pathlib.Path, vocabulary: dict[str, int]) -> list[list[Segment]]:
    """The tokens of every sentence of every document, in random order of documents."""
    found: list[list[Segment]] = [[]]
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.strip():
                found.append([])
            elif tokens := [piece for word in words(line) for piece in wordpieces(word, vocabulary)]:
                found[-1].append(tokens)
    return [sentences for sentences in found if sentences]


def pairs(
    texts: list[list[Segment]], which: int, length: int, draw: random.Random
) -> Iterator[tuple[Segment, Segment, int]]:
    """The segments A and B of a document's instances, and 1 where B is random."""
    sentences, room, start = texts[which], length - 3, 0
    while start < len(sentences):
        wanted = draw.randint(2, room) if draw.random() < SHORT_SHARE else room
        end, size = start, 0
        while end < len(sentences) and size < wanted:
            size += len(sentences[end])
            end += 1
        cut = draw.randint(start + 1, end - 1) if end - start > 1 else end
        first = [*itertools.chain(*sentences[start:cut])]
        is_random = end - start == 1 or draw.random() < 0.5
        if is_random:
            second = other_text(texts, which, wanted - len(first), draw)
            end = cut  # the sentences that A leaves are used in the next instance
        else:
            second = [*itertools.chain(*sentences[cut:end])]
        shorten(first, second, room, draw)
        if first and second:
            yield first, second, int(is_random)
        start = end


def other_text(texts: list[list[Segment]], not_this: int, size: int, draw: random.Random) -> Segment:
    """At least `size` tokens, if there are as many, from a random sentence on of another document."""
    which = draw.choice(
        [i for i in (draw.randrange(len(texts)) for _ in range(10)) if i != not_this] or [not_this]
    )
    found = Segment()
    for sentence in texts[which][draw.randrange(len(texts[which])) :]:
        found += sentence
        if len(found) >= size:
            break
    return found


def shorten(first: Segment, second: Segment, room: int, draw: random.Random) -> None:
    """Drops tokens of the longer segment, at its start or its end, until both fit."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if draw.random() < 0.5 else -1)


def mask(
    tokens: Segment, vocabulary: dict[str, int], most: int, draw: random.Random
) -> tuple[list[int], list[int], list[int]]:
    """The ids with masks; the positions that are predicted, in order, and their ids."""
    ids = [vocabulary[token] for token in tokens]
    candidates = [i for i, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    count = min(most, max(1, round(MASK_SHARE * len(tokens))))
    positions = sorted(draw.sample(candidates, min(count, len(candidates))))
    answers = [ids[position] for position in positions]
    for position in positions:
        chance = draw.random()
        if chance < 0.8:
            ids[position] = vocabulary["[MASK]"]
        elif chance < 0.9:
            ids[position] = draw.randrange(len(vocabulary))
    return ids, positions, answers


def example(
    first: Segment,
    second: Segment,
    label: int,
    vocabulary: dict[str, int],
    length: int,
    most: int,
    draw: random.Random,
) -> bytes:
    """An instance as a serialized tf.train.Example, padded."""
    import tensorflow as tf

    ids, positions, answers = mask(["[CLS]", *first, "[SEP]", *second, "[SEP]"], vocabulary, most, draw)
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)

    def whole(values: list[int], size: int) -> tf.train.Feature:
        padded = values + [0] * (size - len(values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=padded))

    weights = [1.0] * len(positions) + [0.0] * (most - len(positions))
    columns = {
        "input_ids": whole(ids, length),
        "input_mask": whole([1] * len(ids), length),
        "segment_ids": whole(types, length),
        "masked_lm_positions": whole(positions, most),
        "masked_lm_ids": whole(answers, most),
        "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=weights)),
        "next_sentence_labels": whole([label], 1),
    }
    return tf.train.Example(features=tf.train.Features(feature=columns)).SerializeToString()


def instances(case: Case, folder: pathlib.Path) -> Prepared:
    """Reads the text and writes its instances to a TFRecord file."""
    import tensorflow as tf

    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    source, output = documents(case, folder), folder / "plain.tfrecord"

    def make() -> dict[str, np.ndarray]:
        draw, count = random.Random(SEED), 0
        texts = read(source, vocabulary)
        draw.shuffle(texts)
        with tf.io.TFRecordWriter(str(output)) as writer:
            for which in range(len(texts)):
                for first, second, label in pairs(texts, which, case.length, draw):
                    writer.write(
                        example(first, second, label, vocabulary, case.length, case.predictions, draw)
                    )
                    count += 1
        return {"instances": np.array(count)}

    return make, make()
