"""Reads, checks and writes the tokenizer files of a Hugging Face folder; folders of Google and Model Garden have them too."""

import pathlib
import re
import warnings
from collections.abc import Mapping
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.files import write_json
from bert_keras.io.json_files import (
    FLAG,
    TEXT,
    FieldType,
    checked_fields,
    is_integer,
    list_of,
    object_of,
    or_null,
    read_object,
    shortened,
)
from bert_keras.text.vocabulary import (
    BYTE_LEVEL_SPECIAL,
    MERGES_TXT,
    SENTENCEPIECE,
    TOKENIZER_JSON,
    VOCAB_JSON,
    VOCAB_TXT,
    Vocabulary,
    byte_level_pipeline,
    other_setting,
    read_byte_level,
    read_tokenizer_json,
    read_vocabulary,
    refuse_other_ids,
    unmerged_tokens,
)

TOKENIZER_CONFIG, ADDED_TOKENS = "tokenizer_config.json", "added_tokens.json"
# Fields of a tokenizer_config.json that may have any value of their type.
_TOKEN = FieldType(
    "an object with its text as content",
    lambda value: isinstance(value, dict) and isinstance(value.get("content"), str),
)
_SETTINGS = {
    "tokenizer_class": or_null(TEXT),
    "do_lower_case": or_null(FLAG),
    "strip_accents": or_null(FLAG),
    "added_tokens_decoder": or_null(object_of(_TOKEN)),
}


def _classes(models: str) -> set[str]:
    """The tokenizer classes of some models, and those that follow tokenizer.json."""
    kinds = ("", "Fast", "Legacy")
    named = {f"{model}Tokenizer{kind}" for model in models.split() for kind in kinds}
    return named | {"PreTrainedTokenizerFast", "TokenizersBackend"}


# Classes that split text as WordPiece and SentencePiece do, and as byte-level BPE does.
_TOKENIZER_CLASSES = _classes("Albert Bert ConvBert DistilBert Electra Lxmert MobileBert SqueezeBert")
_BYTE_LEVEL_CLASSES = _classes("Roberta Longformer Bart")
# The values of a tokenizer_config.json that give our ids, besides case and accents.
_TOKENIZER_SETTINGS = {
    "clean_text": (None, True),
    "tokenize_chinese_chars": (None, True),
    "keep_accents": (None, False),
    "do_basic_tokenize": (None, True),
    "never_split": (None, []),
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
    "wordpieces_prefix": (None, "##"),
}
_BYTE_LEVEL_SETTINGS = {
    "do_lower_case": (None, False),
    "add_prefix_space": (None, False),
    **{
        f"{name}_token": (None, token)
        for name, token in {
            "bos": "<s>",
            "eos": "</s>",
            "cls": "<s>",
            "sep": "</s>",
            "unk": "<unk>",
            "pad": "<pad>",
            "mask": "<mask>",
        }.items()
    },
}


_PARTNERS = {VOCAB_JSON: MERGES_TXT, MERGES_TXT: VOCAB_JSON}


def read_tokenizer(folder: pathlib.Path) -> Vocabulary:
    """The tokenizer of a folder. Google's and Model Garden's folders have a vocab.txt and, if we wrote them, its settings."""
    found = _vocabulary_of(folder)
    pipeline = read_tokenizer_json(folder / TOKENIZER_JSON, has_pieces=found.is_there)
    pipeline = pipeline._replace(file=str(folder / TOKENIZER_JSON))
    if found.sentencepiece is None and (found.tokens is None or pipeline.other is not None):
        found = pipeline
    if not found.is_there and (lone := [name for name in _PARTNERS if (folder / name).is_file()]):
        found = Vocabulary(
            other=f"byte-level BPE without its {_PARTNERS[lone[0]]}", file=str(folder / lone[0])
        )
    path = folder / TOKENIZER_CONFIG
    settings = read_object(path) if path.is_file() else {}
    checked_fields(settings, _SETTINGS, where=path, optional=_SETTINGS, others=True)
    kind = settings.get("tokenizer_class") or _tokenizer_class_of_model(folder)
    known = _TOKENIZER_CLASSES if found.merges is None else _BYTE_LEVEL_CLASSES
    if found.is_there and found.other is None and kind is not None and kind not in known:
        found = Vocabulary(
            other=str(kind), file=str(path if settings.get("tokenizer_class") else folder / "config.json")
        )
    if not found.has_tokens:
        return found
    if found.merges is not None:
        return _byte_level(found, folder, settings)
    cases = (None, False, True) if pipeline.lower_case is None else (None, pipeline.lower_case)
    refuse_other_ids(settings, {"do_lower_case": cases} | _TOKENIZER_SETTINGS, where=path)
    lower_case = settings.get("do_lower_case")
    lower_case = pipeline.lower_case if lower_case is None else lower_case
    refuse_other_ids(settings, {"strip_accents": (None, lower_case)}, where=path)
    if found.tokens is not None:
        _warn_of_added_tokens(folder, _added_tokens(folder, settings) - {*found.tokens})
    return found._replace(lower_case=lower_case)


def _byte_level(found: Vocabulary, folder: pathlib.Path, settings: Mapping[str, Any]) -> Vocabulary:
    """Byte-level BPE, or its name in `other` if a tokenizer_config.json has settings that give other ids.

    Raises BertKerasError if merges are missing.
    """
    # A token is its text, or an object with its text.
    plain = {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in settings.items()
    }
    if (key := other_setting(plain, _BYTE_LEVEL_SETTINGS)) is not None:
        return Vocabulary(
            other=f"byte-level BPE with {key}={shortened(plain[key])} in its {TOKENIZER_CONFIG}"
        )
    added = _added_tokens(folder, settings)
    unmerged = unmerged_tokens(found.tokens or (), found.merges or ())
    if lost := [token for token in unmerged if token not in added]:
        raise BertKerasError(
            f"{found.file}: no merge makes {len(lost)} of the tokens, {shortened(lost[0])} the first; the merges are cut short, "
            f"or another model's: download the tokenizer again, or list tokens that were added to it in an {ADDED_TOKENS}."
        )
    _warn_of_added_tokens(folder, added - {*BYTE_LEVEL_SPECIAL})
    return found


def _vocabulary_of(folder: pathlib.Path) -> Vocabulary:
    """The vocab.txt of a folder, or else its spiece.model, or else its vocab.json and merges.txt."""
    files = (folder / name for name in (VOCAB_TXT, SENTENCEPIECE))
    found = next((read_vocabulary(file) for file in files if file.is_file()), Vocabulary())
    if found.is_there or not (folder / VOCAB_JSON).is_file():
        return found
    if not (folder / MERGES_TXT).is_file():
        return found
    return read_byte_level(folder / VOCAB_JSON, folder / MERGES_TXT)


def _tokenizer_class_of_model(folder: pathlib.Path) -> str | None:
    path = folder / "config.json"
    fields = read_object(path) if path.is_file() else {}
    known = {"tokenizer_class": _SETTINGS["tokenizer_class"]}
    return checked_fields(fields, known, where=path, optional=known, others=True).get("tokenizer_class")


def _added_tokens(folder: pathlib.Path, settings: Mapping[str, Any]) -> set[str]:
    """The added tokens of a folder, with the special ones. settings: those of its tokenizer_config.json."""
    pipeline, listed = (
        read_object(folder / name) if (folder / name).is_file() else {}
        for name in (TOKENIZER_JSON, ADDED_TOKENS)
    )
    known = {"added_tokens": or_null(list_of(_TOKEN))}
    checked_fields(pipeline, known, where=folder / TOKENIZER_JSON, optional=known, others=True)
    checked_fields(
        listed, dict.fromkeys(listed, FieldType("a whole number", is_integer)), where=folder / ADDED_TOKENS
    )
    tokens = [*(pipeline.get("added_tokens") or ()), *(settings.get("added_tokens_decoder") or {}).values()]
    return {*(token["content"] for token in tokens), *listed}


def _warn_of_added_tokens(folder: pathlib.Path, added: set[str]) -> None:
    """Warns of added tokens: transformers finds them in text before it splits the rest; our tokenizers do not."""
    if added:
        warnings.warn(
            f"{folder} adds {', '.join(sorted(added))[:1000]} to its vocabulary; "
            "text that holds them is split into the vocabulary's tokens.",
            stacklevel=3,
        )


def write_tokenizer(vocabulary: Vocabulary, folder: pathlib.Path, *, max_length: int = 512) -> None:
    """Writes a vocabulary and, as Hugging Face does, a tokenizer_config.json beside it. An empty one has no files.

    max_length: tokens that the model takes
    """
    if not vocabulary.has_tokens:
        return
    settings: dict[str, Any] = {"model_max_length": max_length}
    if vocabulary.merges is not None:
        ids = {token: i for i, token in enumerate(vocabulary.tokens or ())}
        write_json(folder / VOCAB_JSON, ids)
        lines = ("#version: 0.2", *vocabulary.merges)
        (folder / MERGES_TXT).write_bytes(("\n".join(lines) + "\n").encode())
        write_json(folder / TOKENIZER_JSON, byte_level_pipeline(ids, vocabulary.merges))
        settings |= {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False}
    elif vocabulary.tokens is not None:
        (folder / VOCAB_TXT).write_bytes(("\n".join(vocabulary.tokens) + "\n").encode())
        settings |= {"tokenizer_class": "BertTokenizer", "do_lower_case": lower_cases(vocabulary)}
    if vocabulary.sentencepiece is not None:
        (folder / SENTENCEPIECE).write_bytes(vocabulary.sentencepiece)
        settings |= {"tokenizer_class": "AlbertTokenizer", "do_lower_case": lower_cases(vocabulary)}
    write_json(folder / TOKENIZER_CONFIG, settings)


# -----------------------------------------------------------------------------------------------------------
# Lower-casing, where the files do not say

# A vocabulary counts as cased if at least this fraction of its tokens with letters has upper case. BERT's English cased
# vocabulary has 0.31, the multilingual vocabulary 0.23, the uncased vocabulary 0, or 0.04 with domain terms in place of all
# [unusedN].
_CASED = 0.05
_SPECIAL_TOKEN = re.compile(r"[\[<].*[\]>]")


def lower_cases(vocabulary: Vocabulary) -> bool:
    """True to lower-case text. If the files do not say, guesses from the tokens and warns.

    Raises ValueError if a SentencePiece model is damaged.
    """
    if vocabulary.lower_case is not None:
        return vocabulary.lower_case
    tokens = vocabulary.tokens
    if tokens is None and vocabulary.sentencepiece is not None:
        from bert_keras.text.sentencepiece import SentencePiece

        tokens = SentencePiece(vocabulary.sentencepiece).vocabulary
    plain = [token for token in tokens or () if not _SPECIAL_TOKEN.fullmatch(token)]
    lettered = [token for token in plain if token.lower() != token.upper()]
    upper = sum(token != token.lower() for token in lettered)
    guessed = upper < _CASED * max(1, len(lettered))
    where = f"the files of {vocabulary.file} do" if vocabulary.file else "the vocabulary's files do"
    warnings.warn(
        f"{where} not say whether to lower-case text; guessed lower_case={guessed}: {upper:,} of its {len(lettered):,} tokens "
        'with letters have upper case. To choose, set "do_lower_case" in a tokenizer_config.json beside the vocabulary.',
        stacklevel=1,  # always this line, so that Python warns once
    )
    return guessed
