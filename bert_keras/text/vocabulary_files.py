"""The three files of a vocabulary: vocab.txt, spiece.model and tokenizer.json. All their readers are here.

In: a path. Out: tokens in the order of their ids, the bytes of a SentencePiece model, or a Vocabulary. Reading a local file
needs no TensorFlow.
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.json_files import (
    OBJECT,
    TEXT,
    Kind,
    is_whole,
    object_of,
    or_null,
    read_bounded,
    read_object,
    short,
    typed,
)

MAX_VOCABULARY_BYTES = 100_000_000  # of a vocab.txt or a SentencePiece model
VOCAB_TXT, SENTENCEPIECE, TOKENIZER_JSON = "vocab.txt", "spiece.model", "tokenizer.json"


class Vocabulary(NamedTuple):
    """The tokenizer that a folder describes.

    pieces: the wordpieces in the order of their ids
    sentencepiece: or the bytes of a spiece.model
    lower_case: True if text is lower-cased, None if the files do not say
    other: the name of a type of tokenizer that is not supported
    """

    pieces: tuple[str, ...] | None = None
    sentencepiece: bytes | None = None
    lower_case: bool | None = None
    other: str | None = None

    @property
    def is_there(self) -> bool:
        """True if the folder has any tokenizer."""
        return any(found is not None for found in (self.pieces, self.other, self.sentencepiece))


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """Reads one vocabulary file: a SentencePiece model if its name ends in `.model`, else a vocab.txt."""
    if os.fspath(path).endswith(".model"):
        return Vocabulary(sentencepiece=read_model(path))
    return Vocabulary(pieces=read_pieces(path))


def read_pieces(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The lines of a vocab.txt in UTF-8; a token's line number from 0 is its id. WordPiece checks the tokens.

    A byte order mark and Windows line ends are removed. Raises FileNotFoundError, or ValueError that names the line.
    """
    raw = _bytes_of(path, missing=f"no vocabulary file at {path}; give the path of the model's {VOCAB_TXT}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BertKerasError(f"{path}, line {line}: not UTF-8; save the vocabulary as UTF-8 text") from None
    # Not splitlines(), which also splits at characters that can be tokens, such as U+2028.
    lines = text.removeprefix("\ufeff").removesuffix("\n").split("\n")
    return tuple(line.removesuffix("\r") for line in lines)


def read_model(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a spiece.model; SentencePiece checks them. Raises FileNotFoundError, or ValueError over the limit."""
    return _bytes_of(
        path, missing=f"no SentencePiece model at {path}; give the path of the model's {SENTENCEPIECE}"
    )


def _bytes_of(path: str | os.PathLike[str], *, missing: str) -> bytes:
    """The bytes of a local file, or of an address that TensorFlow reads, such as gs://bucket/vocab.txt."""
    path = os.path.expanduser(os.fspath(path))
    if "://" not in path:
        if not os.path.exists(path):
            raise MissingFileError(missing)
        return read_bounded(pathlib.Path(path), MAX_VOCABULARY_BYTES)
    import tensorflow as tf

    if not tf.io.gfile.exists(path):
        raise MissingFileError(missing)
    with tf.io.gfile.GFile(path, "rb") as file:
        if file.size() > MAX_VOCABULARY_BYTES:
            raise BertKerasError(
                f"{path} has over {MAX_VOCABULARY_BYTES:,} bytes, which is the limit for such a file."
            )
        return file.read()


def refuse_other_ids(settings: Mapping[str, Any], allowed: Mapping[str, tuple], *, where: object) -> None:
    """Raises BertKerasError for a setting that gives other ids in the file's own library.

    allowed: setting -> the values that change no id
    """
    for key, values in allowed.items():
        found = settings.get(key)
        # In Python 0 equals false and 1 equals true; in JSON they do not.
        if not any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in values):
            raise BertKerasError(
                f"{key} is {short(found)} in {where}, which changes the ids and is not supported; "
                f"wanted {' or '.join(map(repr, values))}."
            )


# -----------------------------------------------------------------------------------------------------------
# tokenizer.json, the file of the tokenizers library

BYTE_LEVEL_BPE = "byte-level BPE"
_OTHER_MODELS = {"BPE": BYTE_LEVEL_BPE, "Unigram": "a SentencePiece unigram model"}
# Parts of the file -> the settings that give our ids. transformers limits a word to 100 characters, the original to 200.
_PIPELINE: dict[str, dict[str, tuple]] = {
    "normalizer": {
        "type": ("BertNormalizer",),
        "clean_text": (None, True),
        "handle_chinese_chars": (None, True),
        "lowercase": (None, False, True),
    },
    "pre_tokenizer": {"type": ("BertPreTokenizer",)},
    "model": {
        "unk_token": (None, "[UNK]"),
        "continuing_subword_prefix": (None, "##"),
        "max_input_chars_per_word": (None, 100, 200),
    },
}
_MODEL = {"type": or_null(TEXT), "vocab": or_null(object_of(Kind("a whole number", is_whole)))}
# transformers writes "" for a token of separators alone. This character never matches text; the Chinese vocabulary has it.
_SEPARATOR = "\u2028"


def read_tokenizer_json(path: pathlib.Path, *, has_pieces: bool) -> Vocabulary:
    """The tokenizer of a tokenizer.json; an empty Vocabulary if there is no such file.

    has_pieces: True if the folder has another vocabulary file; the tokens of this file are then not read

    A model other than WordPiece is named in `other`. Raises BertKerasError for settings that give other ids.
    """
    if not path.is_file():
        return Vocabulary()
    content = read_object(path)
    parts = {part: content.get(part) or {} for part in _PIPELINE}
    typed(parts, dict.fromkeys(_PIPELINE, OBJECT), where=path)
    kind = parts["model"].get("type", "WordPiece")
    if isinstance(kind, str) and kind != "WordPiece" and "model" in content:
        return Vocabulary(other=_OTHER_MODELS.get(kind, f"a {kind:.80} model"))
    ids = {} if has_pieces else _ids(parts["model"], path)
    if ids is None or "model" not in content:
        raise BertKerasError(f"{path} holds no WordPiece vocabulary; put a {VOCAB_TXT} beside it.")
    lower_case = parts["normalizer"].get("lowercase")
    for part, allowed in _PIPELINE.items():
        refuse_other_ids(parts[part], allowed, where=f"the {part} of {path}")
    refuse_other_ids(
        parts["normalizer"], {"strip_accents": (None, lower_case)}, where=f"the normalizer of {path}"
    )
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != list(range(len(ids))):
        raise BertKerasError(
            f"the ids in {path} are not 0, 1, 2, ... without a gap; put a {VOCAB_TXT} beside it."
        )
    found = None if has_pieces else tuple(piece or _SEPARATOR for piece in pieces)
    return Vocabulary(pieces=found, lower_case=lower_case)


def _ids(model: Mapping[str, Any], path: pathlib.Path) -> dict[str, int] | None:
    """Token -> id, from the model of a tokenizer.json; None if it has no vocabulary."""
    return typed(model, _MODEL, where=f"the model of {path}", optional=_MODEL, others=True).get("vocab")
