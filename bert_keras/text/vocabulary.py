"""The files of a vocabulary: vocab.txt, spiece.model, vocab.json with merges.txt. `tokenizer_json` reads tokenizer.json.

In: a path. Out: tokens in the order of their ids, the bytes of a SentencePiece model, or a Vocabulary. Reading a local file
needs no TensorFlow.
"""

import os
import pathlib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.json_files import INTEGER, checked_fields, object_of, read_bounded, read_object, shortened
from bert_keras.io.paths import to_path
from bert_keras.text.rules import Rules

MAX_VOCABULARY_BYTES = 100_000_000  # of a vocab.txt, a SentencePiece model or a merges.txt
VOCAB_TXT, SENTENCEPIECE, TOKENIZER_JSON = "vocab.txt", "spiece.model", "tokenizer.json"
VOCAB_JSON, MERGES_TXT = "vocab.json", "merges.txt"  # of BPE
# Byte-level tokens that no merge makes: RoBERTa fills its vocabulary up, and marks such as <mask> and [E1] are no text.
_NEVER_MERGED = re.compile(r"madeupword\d+|<.+>|\[.+\]")

WORD_END = "</w>"  # the suffix of every token of GPT that ends a word
CONTINUATION = "##"  # the prefix of every WordPiece token that continues a word
_NEVER_IN_TEXT = re.compile(r"[\s\0]")


class Vocabulary(NamedTuple):
    """All that makes a tokenizer: a folder's, or one in memory. Empty where there is none.

    tokens: in the order of their ids
    merges: of BPE, the pairs to merge in the order of learning: "Ġ t"
    sentencepiece: the bytes of a spiece.model, in place of tokens
    lower_case: True if text is lower-cased, None if the files do not say
    rules: settings that the original lacks, such as added tokens
    max_length: the longest input in tokens, if the files say it
    other: the name of a type of tokenizer that is not supported, in place of tokens
    file: the path of the file that it was read from, for errors; "" in memory
    suffix: of BPE, WORD_END for GPT's, of the characters of words; "" for byte-level BPE
    """

    tokens: tuple[str, ...] | None = None
    merges: tuple[str, ...] | None = None
    sentencepiece: bytes | None = None
    lower_case: bool | None = None
    other: str | None = None
    file: str = ""
    rules: Rules = Rules()
    max_length: int | None = None
    suffix: str = ""

    @property
    def has_tokens(self) -> bool:
        """True if a tokenizer can be made of it."""
        return self.tokens is not None or self.sentencepiece is not None

    @property
    def is_there(self) -> bool:
        """True for any tokenizer, also for one that is not supported."""
        return self.has_tokens or self.other is not None


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """Reads one vocabulary file: a SentencePiece model if its name ends in `.model`, else a vocab.txt."""
    if os.fspath(path).endswith(".model"):
        return Vocabulary(sentencepiece=read_model(path), file=str(path))
    return Vocabulary(tokens=read_pieces(path), file=str(path))


def read_pieces(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The lines of a vocab.txt in UTF-8; a token's line number from 0 is its id. WordPiece checks the tokens.

    A byte order mark, line ends of Windows and blank lines at the end are removed. Warns of repeated tokens, of which the last
    counts, and of lines that are no token. Raises FileNotFoundError, or ValueError that names the line.
    """
    raw = _bytes_of(path, missing=f"no vocabulary file at {path}; give the path of the model's {VOCAB_TXT}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BertKerasError(f"{path}, line {line}: not UTF-8; save the vocabulary as UTF-8 text") from None
    # Not splitlines(), which also splits at characters that can be tokens, such as U+2028.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    text = (text if "\n" in text else text.replace("\r", "\n")).rstrip("\n")
    lines = tuple(text.split("\n")) if text else ()
    if faults := _odd_lines(lines):
        warnings.warn(
            f"{path}: {'; '.join(faults)}. Each line keeps its number as its id, so that later ids stay those of the model.",
            stacklevel=1,  # always this line, so that Python warns once
        )
    return lines


_OTHER_MARK = "marked by \u2581 or \u0120, which WordPiece does not read (its own mark, ##, is in no line)"

_AGAIN = "equal to a line below them, and the last of equal lines gives the id"


def _odd_lines(lines: Sequence[str]) -> list[str]:
    """The lines that no text reaches, in words: for each kind their number and the first."""
    last = {line: i for i, line in enumerate(lines)}
    kinds: dict[str, list[str]] = {}
    has_inner = any(line.startswith("##") for line in lines)
    for i, line in enumerate(lines):
        if not line.strip(" \t\r"):
            kinds.setdefault("blank", []).append(f"line {i + 1}")
        elif last[line] != i:
            kinds.setdefault(_AGAIN, []).append(f"line {i + 1} {shortened(line)}")
        elif " " in line or "\t" in line:
            kinds.setdefault("with a space, which no token of a text has", []).append(f"line {i + 1}")
        elif line[0] in "\u2581\u0120" and len(line) > 1 and not has_inner:
            # Words of SentencePiece and of byte-level BPE: every text would be unknown.
            kinds.setdefault(_OTHER_MARK, []).append(f"line {i + 1} {shortened(line)}")
    return [f"{len(found)} of its lines are {kind} ({found[0]})" for kind, found in kinds.items()]


def matchable(tokens: Sequence[str]) -> dict[str, int]:
    """The WordPiece tokens that a text may have, with their ids.

    The others are blank tokens, tokens with white space (the Chinese vocabulary has U+2028) or with a NUL, and all but the last
    of equal tokens.
    """
    return {token: i for i, token in enumerate(tokens) if not _NEVER_IN_TEXT.search(token or " ")}


def read_model(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a spiece.model; SentencePiece checks them. Raises FileNotFoundError, or ValueError over the limit."""
    return _bytes_of(
        path, missing=f"no SentencePiece model at {path}; give the path of the model's {SENTENCEPIECE}"
    )


def read_byte_level(vocab_json: pathlib.Path, merges_txt: pathlib.Path) -> Vocabulary:
    """Byte-level BPE, or BPE of words, from both of its files. Their tokenizers check the tokens and the merges.

    Raises BertKerasError for ids with a gap, and for a merges.txt that is not UTF-8.
    """
    raw = read_bounded(merges_txt, MAX_VOCABULARY_BYTES)
    try:
        # Not splitlines(), which also splits at characters that can be in tokens of words.
        lines = raw.decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError:
        raise BertKerasError(f"{merges_txt} is not UTF-8; download it again.") from None
    # The first line may name the version of the form: "#version: 0.2". A merge of "#" has another token after it.
    if lines and lines[0].startswith("#version"):
        del lines[0]
    ids = checked_fields({"vocab": read_object(vocab_json)}, {"vocab": object_of(INTEGER)}, where=vocab_json)[
        "vocab"
    ]
    merges = tuple(line for line in lines if line.strip(" "))
    pieces, both = in_order_of_ids(ids, vocab_json), f"{vocab_json} with {merges_txt.name}"
    # Byte-level BPE has a token for each byte, that of the space among them.
    of_words = "\u0120" not in ids and any(piece.endswith(WORD_END) for piece in pieces)
    suffix = WORD_END if of_words else ""
    return Vocabulary(tokens=pieces, merges=merges, lower_case=of_words, file=both, suffix=suffix)


def unmerged_tokens(pieces: Sequence[str], merges: Sequence[str]) -> list[str]:
    """The tokens of byte-level BPE that no merge makes, without single bytes, marks and RoBERTa's fillers.

    They are added tokens, or their merges are lost.
    """
    made = {merge.replace(" ", "") for merge in merges}
    others = (piece for piece in pieces if len(piece) > 1 and piece not in made)
    return [piece for piece in others if not _NEVER_MERGED.fullmatch(piece)]


def in_order_of_ids(ids: Mapping[str, int], path: pathlib.Path, *, gaps: bool = False) -> tuple[str, ...]:
    """The tokens.

    gaps: True puts a blank token in the place of an id that no token has, as a repeated line of a vocab.txt leaves it

    Raises BertKerasError for ids with a gap, for negative ids and for an id that two tokens have.
    """
    by_id = {i: piece for piece, i in ids.items()}
    size = max(by_id, default=-1) + 1
    if len(by_id) != len(ids) or min(by_id, default=0) < 0 or size > (2 * len(ids) if gaps else len(ids)):
        raise BertKerasError(f"the ids in {path} are not 0, 1, 2, ... without a gap; download it again.")
    return tuple(by_id.get(i, "") for i in range(size))


def _bytes_of(path: str | os.PathLike[str], *, missing: str) -> bytes:
    """The bytes of a file."""
    file = to_path(path)
    if not file.exists():
        raise MissingFileError(missing)
    return read_bounded(file, MAX_VOCABULARY_BYTES)


def other_setting(settings: Mapping[str, Any], allowed: Mapping[str, tuple]) -> str | None:
    """The first setting that gives other ids in the file's own library; None if there is none.

    allowed: setting -> the values that change no id
    """
    for key, values in allowed.items():
        found = settings.get(key)
        # In Python 0 equals false and 1 equals true; in JSON they do not.
        if not any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in values):
            return key
    return None


def refuse_other_ids(settings: Mapping[str, Any], allowed: Mapping[str, tuple], *, where: object) -> None:
    """Raises BertKerasError for a setting that gives other ids in the file's own library; `allowed` as in `other_setting`."""
    if (key := other_setting(settings, allowed)) is not None:
        raise BertKerasError(
            f"{key} is {shortened(settings.get(key))} in {where}, which changes the ids and is not supported; "
            f"wanted {' or '.join(map(repr, allowed[key]))}."
        )
