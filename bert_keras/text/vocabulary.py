"""The files of a vocabulary: vocab.txt, spiece.model, vocab.json with merges.txt, and tokenizer.json. All their readers are here.

In: a path. Out: tokens in the order of their ids, the bytes of a SentencePiece model, or a Vocabulary. Reading a local file
needs no TensorFlow.
"""

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.json_files import (
    INTEGER,
    OBJECT,
    TEXT,
    FieldType,
    checked_fields,
    is_integer,
    known_fields,
    list_of,
    object_of,
    or_null,
    read_bounded,
    read_object,
    shortened,
)
from bert_keras.io.paths import to_path

MAX_VOCABULARY_BYTES = 100_000_000  # of a vocab.txt, a SentencePiece model or a merges.txt
VOCAB_TXT, SENTENCEPIECE, TOKENIZER_JSON = "vocab.txt", "spiece.model", "tokenizer.json"
VOCAB_JSON, MERGES_TXT = "vocab.json", "merges.txt"  # of byte-level BPE
BYTE_LEVEL_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
# Byte-level tokens that no merge makes: RoBERTa fills its vocabulary up, and marks such as <mask> and [E1] are no text.
_NEVER_MERGED = re.compile(r"madeupword\d+|<.+>|\[.+\]")


class Vocabulary(NamedTuple):
    """All that makes a tokenizer: a folder's, or one in memory. Empty where there is none.

    tokens: in the order of their ids
    merges: of byte-level BPE, the pairs to merge in the order of learning: "Ġ t"
    sentencepiece: the bytes of a spiece.model, in place of tokens
    lower_case: True if text is lower-cased, None if the files do not say
    other: the name of a type of tokenizer that is not supported, in place of tokens
    file: the path of the file that it was read from, for errors; "" in memory
    """

    tokens: tuple[str, ...] | None = None
    merges: tuple[str, ...] | None = None
    sentencepiece: bytes | None = None
    lower_case: bool | None = None
    other: str | None = None
    file: str = ""

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


def read_byte_level(vocab_json: pathlib.Path, merges_txt: pathlib.Path) -> Vocabulary:
    """Byte-level BPE from both of its files. ByteBPE checks the tokens and the merges.

    Raises BertKerasError for ids with a gap, and for a merges.txt that is not UTF-8.
    """
    raw = read_bounded(merges_txt, MAX_VOCABULARY_BYTES)
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise BertKerasError(f"{merges_txt} is not UTF-8; download it again.") from None
    # The first line may name the version of the form: "#version: 0.2". A merge of "#" has another token after it.
    if lines and lines[0].startswith("#version"):
        del lines[0]
    ids = checked_fields({"vocab": read_object(vocab_json)}, _VOCAB, where=vocab_json)["vocab"]
    merges = tuple(line for line in lines if line.strip(" "))
    pieces, both = _in_order_of_ids(ids, vocab_json), f"{vocab_json} with {merges_txt.name}"
    return Vocabulary(tokens=pieces, merges=merges, lower_case=False, file=both)


def unmerged_tokens(pieces: Sequence[str], merges: Sequence[str]) -> list[str]:
    """The tokens of byte-level BPE that no merge makes, without single bytes, marks and RoBERTa's fillers.

    They are added tokens, or their merges are lost.
    """
    made = {merge.replace(" ", "") for merge in merges}
    others = (piece for piece in pieces if len(piece) > 1 and piece not in made)
    return [piece for piece in others if not _NEVER_MERGED.fullmatch(piece)]


def _in_order_of_ids(ids: Mapping[str, int], path: pathlib.Path, *, instead: str = "") -> tuple[str, ...]:
    """The tokens. Raises BertKerasError for ids with a gap; `instead` says what to do."""
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != list(range(len(ids))):
        raise BertKerasError(
            f"the ids in {path} are not 0, 1, 2, ... without a gap; {instead or 'download it again'}."
        )
    return tuple(pieces)


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


# -----------------------------------------------------------------------------------------------------------
# tokenizer.json, the file of the tokenizers library

# The types of model in tokenizer.json that are read: parts of the file -> the settings that give our ids. transformers limits a
# word to 100 characters, the original to 200.
_PIPELINES: dict[str, dict[str, dict[str, tuple]]] = {
    "WordPiece": {
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
    },
    "BPE": {
        "normalizer": {"type": (None,)},
        "pre_tokenizer": {"type": ("ByteLevel",), "add_prefix_space": (False,), "use_regex": (None, True)},
        "model": {
            "dropout": (None, 0),
            "continuing_subword_prefix": (None, ""),
            "end_of_word_suffix": (None, ""),
            "byte_fallback": (None, False),
            "ignore_merges": (None, False),
        },
        "post_processor": {"type": ("RobertaProcessing", "TemplateProcessing")},
    },
}
_OTHER_MODELS = {"Unigram": "a SentencePiece unigram model"}
_VOCAB = {"vocab": or_null(object_of(INTEGER))}
_MODEL = {"type": or_null(TEXT), **_VOCAB}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _is_added(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str) and is_integer(value.get("id"))


def _is_template(value: Any) -> bool:
    parts = [*value.values()] if isinstance(value, dict) else []
    return len(parts) == 1 and isinstance(parts[0], dict) and isinstance(parts[0].get("id"), str)


# A merge is "Ġ t" in older files and ["Ġ", "t"] in newer ones.
_MERGE = FieldType(
    "two tokens", lambda value: isinstance(value, str) or (_is_pair(value) and isinstance(value[1], str))
)
_MERGES = {"merges": list_of(_MERGE)}
_ADDED = {"added_tokens": or_null(list_of(FieldType("an object with content and id", _is_added)))}
# The special tokens of RobertaProcessing, with their ids; the templates of TemplateProcessing.
_NAMED = dict.fromkeys(("cls", "sep"), FieldType("a token and its id", _is_pair))
_TEMPLATE = dict.fromkeys(
    ("single", "pair"), list_of(FieldType("an object with an object that has an id", _is_template))
)
# transformers writes "" for a token of separators alone. This character never matches text; the Chinese vocabulary has it.
_SEPARATOR = "\u2028"


def read_tokenizer_json(path: pathlib.Path, *, has_pieces: bool) -> Vocabulary:
    """The tokenizer of a tokenizer.json; an empty Vocabulary if there is no such file.

    has_pieces: True if the folder has another vocabulary file; the tokens of this file are then not read

    A model of another type is named in `other`, and so is byte-level BPE with settings that give other ids. Raises
    BertKerasError for such settings of WordPiece.
    """
    if not path.is_file():
        return Vocabulary()
    content = read_object(path)
    model = checked_fields({"model": content.get("model") or {}}, {"model": OBJECT}, where=path)["model"]
    kind = model.get("type", "BPE" if "merges" in model else "WordPiece")  # old files have no type
    if isinstance(kind, str) and kind not in _PIPELINES and "model" in content:
        return Vocabulary(other=_OTHER_MODELS.get(kind, f"a {kind:.80} model"))
    pipeline = _PIPELINES["BPE" if kind == "BPE" else "WordPiece"]
    parts = {part: content.get(part) or {} for part in pipeline}
    checked_fields(parts, dict.fromkeys(pipeline, OBJECT), where=path)
    ids = (
        {} if has_pieces else known_fields(parts["model"], _MODEL, where=f"the model of {path}").get("vocab")
    )
    if ids is None or "model" not in content:
        raise BertKerasError(f"{path} holds no WordPiece vocabulary; put a {VOCAB_TXT} beside it.")
    if kind == "BPE":
        return _byte_level(content, parts, ids, path, has_pieces=has_pieces)
    lower_case = parts["normalizer"].get("lowercase")
    for part, allowed in pipeline.items():
        refuse_other_ids(parts[part], allowed, where=f"the {part} of {path}")
    refuse_other_ids(
        parts["normalizer"], {"strip_accents": (None, lower_case)}, where=f"the normalizer of {path}"
    )
    pieces = _in_order_of_ids(ids, path, instead=f"put a {VOCAB_TXT} beside it")
    found = None if has_pieces else tuple(piece or _SEPARATOR for piece in pieces)
    return Vocabulary(tokens=found, lower_case=lower_case)


def _byte_level(
    content: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Any]],
    ids: Mapping[str, int],
    path: pathlib.Path,
    *,
    has_pieces: bool,
) -> Vocabulary:
    """Byte-level BPE from the contents of a tokenizer.json, whose added tokens have ids of their own."""
    for part, allowed in _PIPELINES["BPE"].items():
        if (key := other_setting(parts[part], allowed)) is not None:
            return Vocabulary(other=f"BPE with {key}={shortened(parts[part].get(key))} in its {part}")
    frames = _frames(parts["post_processor"], where=f"the post_processor of {path}")
    if other := next((frame for frame, ours in zip(frames, _FRAMES, strict=True) if frame != ours), None):
        return Vocabulary(other=f"byte-level BPE that frames text as {other!r}")
    if has_pieces:
        return Vocabulary(lower_case=False)
    added = known_fields(content, _ADDED, where=path).get("added_tokens") or ()
    merges = checked_fields(parts["model"], _MERGES, where=f"the model of {path}", others=True)["merges"]
    return Vocabulary(
        tokens=_in_order_of_ids({**ids, **{token["content"]: token["id"] for token in added}}, path),
        merges=tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in merges),
        lower_case=False,
    )


# RoBERTa's frames of one segment and of two; a number after a name is a type that is not 0.
_FRAMES = "<s> A </s>", "<s> A </s> </s> B </s>"


def _frames(post_processor: Mapping[str, Any], *, where: str) -> tuple[str, ...]:
    """The frames that a post-processor makes, in the form of _FRAMES."""
    if post_processor["type"] == "RobertaProcessing":
        named = checked_fields(post_processor, _NAMED, where=where, others=True)
        names = {"<s>": named["cls"][0], "</s>": named["sep"][0]}
        return tuple(" ".join(names.get(name, name) for name in frame.split()) for frame in _FRAMES)
    rows = checked_fields(post_processor, _TEMPLATE, where=where, others=True).values()
    items = [[next(iter(item.values())) for item in row] for row in rows]
    return tuple(" ".join(f"{item['id']}{item.get('type_id') or ''}" for item in row) for row in items)


def byte_level_pipeline(ids: Mapping[str, int], merges: Sequence[str]) -> dict[str, Any]:
    """The contents of a tokenizer.json for RoBERTa's tokenizer, for transformers' fast tokenizer.

    Tokens that no merge makes are added tokens there, which transformers finds in text.
    """
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {token: {"lstrip": token == "<mask>"} for token in BYTE_LEVEL_SPECIAL}
    added |= dict.fromkeys(unmerged_tokens([*ids], merges), {"normalized": True, "special": False})
    return _with_added(added, ids) | {
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", ids["</s>"]],
            "cls": ["<s>", ids["<s>"]],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(ids),
            "merges": list(merges),
        },
    }


def wordpiece_pipeline(pieces: Sequence[str], *, lower_case: bool) -> dict[str, Any]:
    """The contents of a tokenizer.json for BERT's tokenizer, which limits a word to 200 characters as the original does."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    start, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]"))
    first, second = ({"Sequence": {"id": name, "type_id": type_id}} for name, type_id in (("A", 0), ("B", 1)))
    added: dict[str, dict[str, bool]] = {
        token: {} for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    }
    return _with_added(added, ids) | {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, first, end],
            "pair": [start, first, end, second, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 200,
            "vocab": ids,
        },
    }


def _with_added(added: Mapping[str, Mapping[str, bool]], ids: Mapping[str, int]) -> dict[str, Any]:
    """The first fields of a tokenizer.json. added: token -> its flags that differ from those of a special token."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = sorted(added, key=ids.__getitem__)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token], "content": token, **flags, **added[token]} for token in tokens],
    }
