"""Word vectors: the files of word2vec and GloVe, and vectors for words that a file lacks.

    word2vec, text      "3 50", then a line for each word: the word and its numbers
    word2vec, binary    "3 50", then for each word: the word, a space, and float32 numbers, the smallest byte first
    GloVe, text         the lines of word2vec without the first

A word that a file lacks gets the vector of its class, such as `<UNK-number>`, if the file has one; else that of `<UNK>`; else, by
`own=True`, a random vector of its own, the same in every call: two new words of a question and of its paragraph stay equal to
each other and different from others (Dhingra et al. 2017).

Sources: Mikolov et al. 2013 and word2vec.c; Pennington et al. 2014 (GloVe).
"""

import collections
import dataclasses
import functools
import hashlib
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.io.files import atomic_file
from bert_keras.text.rules import CLASS, OWN, Rules
from bert_keras.text.vocabulary import Vocabulary
from bert_keras.text.word_tokenizer import CLASSES, UNKNOWN_CLASS, class_of
from bert_keras.text.wordpiece import BERT_TOKENS

FORMATS = ("word2vec", "word2vec-binary", "glove")
MAX_WORD, MAX_SIZE = 1_000, 65_536  # bytes of a word, numbers of a vector: more means another kind of file
DRAWN = 0.05  # standard deviation of the vector of a new word
TABLE = "embeddings/word_embeddings"
# What an encoder of word vectors has, whatever the file.
ENCODER: dict[str, Any] = {"encoder": "word-vectors", "num_layers": 0, "num_heads": 1, "type_vocab_size": 0}
MAX_POSITIONS = 8192  # of a text: a bound alone


@dataclasses.dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors by word. words: each one once; vectors: float32 [V, D], in their order."""

    words: Sequence[str]
    vectors: np.ndarray

    def __post_init__(self) -> None:
        if (
            self.vectors.ndim != 2
            or len(self.vectors) != len(self.words)
            or len(self.places) != len(self.words)
        ):
            raise BertKerasError(
                f"{len(self.words):,} words, {len(self.places):,} of them different, have vectors of the shape "
                f"{list(self.vectors.shape)}; give each word once, with one vector."
            )

    @functools.cached_property
    def places(self) -> Mapping[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def place(self, word: str) -> int | None:
        """The row of a word, of its class or of `<UNK>`; None without any of them."""
        found = (self.places.get(name) for name in (word, class_of(word), UNKNOWN_CLASS))
        return next((row for row in found if row is not None), None)

    def vectors_of(self, words: Sequence[str], *, own: bool = False) -> np.ndarray:
        """Float32 [N, D]. own: a word that the file lacks has a vector of its own, not that of its class."""
        rows = [self.places.get(word) if own else self.place(word) for word in words]
        size = self.vectors.shape[1]
        found = [
            _drawn(word, size) if row is None else self.vectors[row]
            for word, row in zip(words, rows, strict=True)
        ]
        return np.array(found, np.float32).reshape(-1, size)


def _drawn(word: str, size: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).normal(0, DRAWN, size)


# -----------------------------------------------------------------------------------------------------------
# Files


def read(path: str | pathlib.Path) -> WordVectors:
    """The vectors of a file in one of FORMATS, which it finds out.

    Raises FileNotFoundError, and BertKerasError with the line or the word for a file of another form, for a word that is there
    twice, and for numbers that are not finite.
    """
    path = pathlib.Path(path)
    with path.open("rb") as file:
        first = file.readline(MAX_WORD + 32 * MAX_SIZE)
        counted = re.fullmatch(rb"\s*(\d+)\s+(\d+)\s*", first)
        after = file.read(1_000_000)
    if counted is None:
        return _read_text(path, None, skip=0)
    count, size = int(counted[1]), int(counted[2])
    if not 0 < size <= MAX_SIZE:
        raise BertKerasError(
            f"{path}: the first line promises vectors of {size:,} numbers; wanted 1 to {MAX_SIZE:,}."
        )
    line = after.partition(b"\n")[0]
    if len(line.split()) == size + 1 and _is_text(line):
        return _read_text(path, (count, size), skip=1)
    return _read_binary(path, count, size, start=len(first))


def write(found: WordVectors, path: str | pathlib.Path, *, format: str) -> None:
    """Writes a file. Raises BertKerasError for a word that the format cannot hold."""
    path = pathlib.Path(path)
    if format not in FORMATS:
        raise BertKerasError(f"format is {format!r}; choose one of {', '.join(FORMATS)}.")
    if wrong := [word for word in found.words if not word or re.search(r"\s", word)]:
        raise BertKerasError(
            f"the word {wrong[0]!r} is empty or has a space, which ends a word in these files; leave it out."
        )
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        if format != "glove":
            file.write("{} {}\n".format(*found.vectors.shape).encode())
        for word, vector in zip(found.words, np.asarray(found.vectors, "<f4"), strict=True):
            if format == "word2vec-binary":
                file.write(word.encode() + b" " + vector.tobytes() + b"\n")
            else:  # the shortest digits that give the same float32
                file.write(f"{word} {' '.join(map(str, vector))}\n".encode())


def read_checkpoint(path: str | pathlib.Path, vocabulary: Vocabulary | None = None) -> Checkpoint:
    """The vectors of a file as a checkpoint for tasks, whose encoder is a WordVectorsEncoder. Raises the errors of `read`.

    vocabulary: not read; the words are those of the file, and BERT's marks have vectors of zeros

    A word that the file lacks has the vector of its class or of `<UNK>`, or, in a file without them, a random one of its own.
    """
    found = read(path)
    marks, size = tuple(BERT_TOKENS.values()), found.vectors.shape[1]
    rows = [row for word, row in found.places.items() if word not in (*marks, UNKNOWN_CLASS)]
    first = np.zeros((len(marks), size), np.float32)
    if (unknown := found.places.get(UNKNOWN_CLASS)) is not None:
        first[marks.index(BERT_TOKENS["unknown"])] = found.vectors[unknown]
    words = tuple(found.words[row] for row in rows)
    has_classes = any(name in found.places for name in (UNKNOWN_CLASS, *CLASSES))
    config = BertConfig(
        vocab_size=len(marks) + len(words), hidden_size=size, max_positions=MAX_POSITIONS, **ENCODER
    )
    return Checkpoint(
        config=config,
        tensors={TABLE: np.concatenate([first, found.vectors[rows]])},
        vocabulary=Vocabulary(
            tokens=(*marks, *words),
            lower_case=not any(
                word != word.lower() for word in words if word not in (UNKNOWN_CLASS, *CLASSES)
            ),
            rules=Rules(new_words=CLASS if has_classes else OWN),
        ),
        format="word2vec",
        path=str(path),
    )


def write_checkpoint(checkpoint: Checkpoint, path: str | pathlib.Path, *, format: str) -> list[str]:
    """Writes the vectors of a checkpoint's words, and of its [UNK] as `<UNK>`; returns the weights that stay out.

    format: one of FORMATS. Raises BertKerasError for a checkpoint of another encoder.
    """
    if checkpoint.config.encoder != ENCODER["encoder"]:
        raise BertKerasError(
            f"{checkpoint.prefix}its encoder is {checkpoint.config.encoder}; wanted word-vectors."
        )
    marks = {**dict.fromkeys(BERT_TOKENS.values()), BERT_TOKENS["unknown"]: UNKNOWN_CLASS}
    named = [(marks.get(word, word), row) for row, word in enumerate(checkpoint.vocabulary.tokens or ())]
    kept = [(word, row) for word, row in named if word is not None and not re.search(r"\s|^$", word)]
    words, rows = zip(*kept, strict=True)
    write(WordVectors(words, checkpoint.tensors[TABLE][[*rows]]), path, format=format)
    return sorted({*checkpoint.tensors} - {TABLE})


def _is_text(line: bytes) -> bool:
    try:
        return [*map(float, line.decode().split()[1:])] != []
    except ValueError:
        return False


def _read_text(path: pathlib.Path, promised: tuple[int, int] | None, *, skip: int) -> WordVectors:
    words, rows, size = [], [], promised[1] if promised else None
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number <= skip or not line.strip():
                continue
            where = f"{path}, line {number:,}"
            if size is None:
                size = len(line.split()) - 1
            # A word of GloVe's may have spaces: the numbers are the last fields.
            word, *numbers = line.rstrip().rsplit(b" ", size)
            if len(numbers) != size or not 0 < size <= MAX_SIZE:
                raise BertKerasError(
                    f"{where}: {len(numbers):,} numbers; wanted a word and {max(size, 1):,} numbers."
                )
            try:
                rows.append(np.array(numbers, np.float32))
            except ValueError as error:
                raise BertKerasError(f"{where}: {error}; wanted a word and {size:,} numbers.") from error
            words.append(_decoded(word, where))
    if promised and len(words) != promised[0]:
        raise BertKerasError(
            f"{path} has {len(words):,} words and promises {promised[0]:,}; bring it again, whole."
        )
    if not words:
        raise BertKerasError(f"{path} is empty; wanted a file of word2vec or GloVe.")
    return _checked(path, words, np.array(rows))


def _read_binary(path: pathlib.Path, count: int, size: int, *, start: int) -> WordVectors:
    step = 4 * size
    if count * (step + 2) > (there := path.stat().st_size):
        raise BertKerasError(
            f"{path} has {there:,} bytes and promises {count:,} vectors of {size:,} numbers; bring it again, whole, or unpack it."
        )
    words, vectors = [], np.empty((count, size), np.float32)
    with path.open("rb") as file:
        file.seek(start)
        for row in range(count):
            where = f"{path}, word {row + 1:,}"
            word = _word(file, where)
            numbers = file.read(step)
            if len(numbers) < step:
                raise BertKerasError(f"{where}: the file ends inside a vector; bring it again, whole.")
            vectors[row] = np.frombuffer(numbers, "<f4")
            words.append(_decoded(word, where))
    return _checked(path, words, vectors)


def _word(file: BinaryIO, where: str) -> bytes:
    """The bytes up to a space. word2vec.c ends a vector by a newline, other writers do not."""
    word = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte or len(word) > MAX_WORD:
            raise BertKerasError(
                f"{where}: no word of at most {MAX_WORD:,} bytes; the file is cut short or of another form."
            )
        if byte != b"\n" or word:
            word += byte
    return bytes(word)


def _decoded(word: bytes, where: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError as error:
        raise BertKerasError(f"{where}: the word {word[:40]!r} is not UTF-8; convert the file.") from error


def _checked(path: pathlib.Path, words: list[str], vectors: np.ndarray) -> WordVectors:
    if not np.isfinite(vectors).all():
        raise BertKerasError(
            f"{path}: the vector of {words[int(np.argwhere(~np.isfinite(vectors))[0, 0])]!r} is not finite."
        )
    if len(words) != len(set(words)):
        twice = next(word for word, count in collections.Counter(words).items() if count > 1)
        raise BertKerasError(f"{path} has the word {twice!r} twice; wanted each word once.")
    return WordVectors(tuple(words), vectors)
