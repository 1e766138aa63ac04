"""A case of work, and its inputs.

    encoder    features int32 [B, S] -> sequence_output [B, S, H], pooled_output [B, H]
    finetune   one pass over a few batches: forward, backward, clip by norm, AdamW
    pretrain   the same for the masked LM and the next sentence, on ready instances
    tokenize   one pass over lines of text -> ids, by WordPiece
    byte-bpe   the same by byte-level BPE, in RoBERTa's form
    serving    one request of raw sentences, different in each call -> probabilities [B, 2]
    answers    raw questions and contexts longer than a window -> the answers; compared by the logits [W, 2, S] of all windows
    features   raw sentences, different in each call -> the vectors of every token of all layers [T, L + 1, H]
    vectors    1,000 texts of mixed length -> a vector of each; compared by the vectors of the first ones
    pairs      one pass over pairs of those texts, which learns their vectors; compared by the vectors before it
    search     one query, different in each call, among `batch` ready vectors -> the nearest texts; compared by their scores
    instances  text -> a file of instances for pre-training
    start      a fresh process: import, load, and answer a sentence
    import     a fresh process: only the import
    memory     a fresh process: `finetune`; its figure is the peak resident size in bytes

In: a Case and a folder of weights, texts and vocabularies that `material.py` wrote.
"""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, SEQUENCE_OUTPUT

Arrays = dict[str, np.ndarray]
# What a function of the registry returns: the call to time, and the arrays to compare.
Prepared = tuple[Callable[[], Any], Arrays]

SEED = 7
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM, EPSILON = 5e-5, 0.01, 1.0, 1e-6  # Devlin et al. 2019, A.2
FRESH = ("start", "import", "memory")  # kinds whose call starts a process and returns its figures
WARM = (*FRESH, "instances")  # kinds whose preparation makes such a call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One case of work.

    kind: a key of registry.IMPLEMENTATIONS
    size: the folder of weights
    length: the padded length, for libraries that pad all batches to one length
    texts: True if `finetune` starts from raw text, and each library pads with its own pipeline
    steps: batches in one call of a training
    precision: the format of the computation; a training keeps float32 weights
    characters: of the text that tokenizers read and instances are made of; None takes all
    rounds: the most turns, for cases that are long and vary little
    default, narrow: True if the case runs unless cases are named; in bfloat16 and float16
    """

    name: str
    kind: str
    size: str = "minilm"
    batch: int = 32
    length: int = 128
    texts: bool = False
    steps: int = 2
    precision: str = "float32"
    characters: int | None = None
    rounds: int | None = None
    default: bool = True
    narrow: bool = True

    @property
    def predictions(self) -> int:
        """The masked tokens of a row in pre-training: 20 of 128, as in google-research/bert."""
        return max(1, self.length * 20 // 128)

    @property
    def doc_stride(self) -> int:
        """Tokens between the starts of two windows: 128 for windows of 384."""
        return self.length // 3


def features(case: Case) -> Arrays:
    """Random ids in two segments; the first row is full, the rest half full or more."""
    random, shape = np.random.default_rng(SEED), (case.batch, case.length)
    lengths = random.integers(case.length // 2, case.length, (case.batch, 1), endpoint=True)
    lengths[0] = case.length
    mask = (np.arange(case.length) < lengths).astype("int32")
    second = (np.arange(case.length) >= lengths // 2).astype("int32")
    # Ids from 5: any vocabulary has five special tokens, and a thousand tokens more.
    ids = random.integers(5, 1000, shape).astype("int32")
    return {INPUT_WORD_IDS: ids * mask, INPUT_MASK: mask, INPUT_TYPE_IDS: second * mask}


def labels(case: Case) -> np.ndarray:
    """int32 [B], 0 or 1."""
    return np.arange(case.batch, dtype="int32") % 2


def masked(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the tokens to predict and their ids, int32 [B, P]; no row has padding there."""
    random, shape = np.random.default_rng(SEED), (case.batch, case.predictions)
    half = np.arange(1, case.length // 2)
    positions = np.stack(
        [np.sort(random.choice(half, case.predictions, replace=False)) for _ in range(shape[0])]
    )
    return positions.astype("int32"), random.integers(5, 1000, shape).astype("int32")


def examples(folder: pathlib.Path) -> tuple[list[str], list[int]]:
    """Sentences and labels of `examples.tsv`."""
    rows = [line.split("\t") for line in (folder / "examples.tsv").read_text(encoding="utf-8").splitlines()]
    return [text for text, _ in rows], [int(label) for _, label in rows]


def requests(case: Case, folder: pathlib.Path) -> list[list[str]]:
    """Sentences, one batch per request."""
    texts, _ = examples(folder)
    return [texts[start : start + case.batch] for start in range(0, len(texts) - case.batch + 1, case.batch)]


def in_turn(ask: Callable[[list[str]], Any], asked: list[list[str]]) -> Callable[[], Any]:
    """A call that sends the next request."""
    cycle = itertools.cycle(asked)
    return lambda: ask(next(cycle))


def lines(case: Case, folder: pathlib.Path) -> list[str]:
    """The text that tokenizers read."""
    text = (folder / "lines.txt").read_text(encoding="utf-8") + "\n"
    return (text * _times(text, case))[: case.characters].rstrip("\n").split("\n")


def questions(case: Case, folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """Questions, and contexts of more words than a window has tokens.

    Plain ASCII: the tokenizers then agree, and the windows are the same.
    """
    plain = [
        line for line in (folder / "lines.txt").read_text(encoding="utf-8").split("\n") if line.isascii()
    ]
    words, size = " ".join(plain).split(), case.length * 4 // 3
    contexts = [words[i * size : (i + 1) * size] for i in range(case.batch)]
    middle = size // 2
    return [" ".join(one[middle : middle + 6]) for one in contexts], [" ".join(one) for one in contexts]


def mixed_texts(case: Case, folder: pathlib.Path) -> list[str]:
    """`steps` batches of texts from 3 words to three quarters of a window, each different, in plain ASCII; of `search`, 1,000."""
    words = [word for word in (folder / "lines.txt").read_text(encoding="utf-8").split() if word.isascii()]
    count = 1000 if case.kind != "pairs" else 2 * case.batch * case.steps
    random = np.random.default_rng(SEED)
    sizes = random.integers(3, case.length * 3 // 4, count)
    starts = random.integers(0, len(words), count)
    words += words[: case.length]
    return [" ".join(words[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


def _times(text: str, case: Case) -> int:
    """The copies of a text that a case of so many characters needs; no library caches a text."""
    return -(-(case.characters or 0) // len(text)) or 1


def documents(case: Case, folder: pathlib.Path) -> pathlib.Path:
    """The file that instances are made of: a sentence on each line, an empty line after each document."""
    path = folder / f"documents-{case.characters}.txt"
    if not path.exists():
        text = (folder / "documents.txt").read_text(encoding="utf-8") + "\n\n"
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text((text * _times(text, case))[: case.characters], encoding="utf-8")
        os.replace(own, path)  # another library may read it
    return path


def encoded(case: Case, outputs: Mapping[str, Any]) -> Arrays:
    """An encoder's outputs as arrays. The sequence output is 0 in padding, where libraries may differ."""
    found = {name: np.asarray(value, "float32") for name, value in outputs.items()}
    if SEQUENCE_OUTPUT in found:
        found[SEQUENCE_OUTPUT] = found[SEQUENCE_OUTPUT] * features(case)[INPUT_MASK][..., None]
    return found


def pieces(rows: list[list[int]]) -> Arrays:
    """Ids of all lines, concatenated, and the number of ids in each line."""
    return {
        "ids": np.array([*itertools.chain(*rows)], "int32"),
        "lengths": np.array([*map(len, rows)], "int32"),
    }


Asker = Callable[[Case, pathlib.Path], Callable[[list[str]], np.ndarray]]


def serving(asker: Asker, case: Case, folder: pathlib.Path) -> Prepared:
    """Requests of raw sentences, in turn. asker: makes the function sentences -> probabilities [B, 2]."""
    ask, asked = asker(case, folder), requests(case, folder)
    return in_turn(ask, asked), {"probabilities": ask(asked[0])}


def first_answer(asker: Asker, case: Case, folder: pathlib.Path) -> Arrays:
    """In a fresh process: the probabilities of one sentence."""
    return {"probabilities": asker(case, folder)(examples(folder)[0][:1])}
