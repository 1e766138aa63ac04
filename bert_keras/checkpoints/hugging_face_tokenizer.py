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
    INTEGER,
    TEXT,
    FieldType,
    checked_fields,
    known_fields,
    list_of,
    object_of,
    or_null,
    read_optional,
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
_TOKENS = or_null(list_of(_TOKEN))
_CLASS = {"tokenizer_class": or_null(TEXT)}
_SETTINGS = _CLASS | {
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
    **{f"{name}_token": (None, "<s>") for name in ("bos", "cls")},
    **{f"{name}_token": (None, "</s>") for name in ("eos", "sep")},
    **{f"{name}_token": (None, f"<{name}>") for name in ("unk", "pad", "mask")},
}


_PARTNERS = {VOCAB_JSON: MERGES_TXT, MERGES_TXT: VOCAB_JSON}


def read_tokenizer(folder: pathlib.Path) -> Vocabulary:
    """The tokenizer of a folder. Google's and Model Garden's folders have a vocab.txt and, if we wrote them, its settings."""
    path, pipeline_file = folder / TOKENIZER_CONFIG, folder / TOKENIZER_JSON
    found = _vocabulary_of(folder)
    pipeline = read_tokenizer_json(pipeline_file, has_pieces=found.is_there)._replace(file=str(pipeline_file))
    if found.sentencepiece is None and (found.tokens is None or pipeline.other is not None):
        found = pipeline
    if not found.is_there and (lone := [name for name in _PARTNERS if (folder / name).is_file()]):
        found = Vocabulary(
            other=f"byte-level BPE without its {_PARTNERS[lone[0]]}", file=str(folder / lone[0])
        )
    settings = read_optional(path)
    kind, where = known_fields(settings, _SETTINGS, where=path).get("tokenizer_class"), path
    if not kind:
        where = folder / "config.json"
        kind = known_fields(read_optional(where), _CLASS, where=where).get("tokenizer_class")
    known = _TOKENIZER_CLASSES if found.merges is None else _BYTE_LEVEL_CLASSES
    if found.is_there and found.other is None and kind is not None and kind not in known:
        found = Vocabulary(other=kind, file=str(where))
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
    if file := next(
        (folder / name for name in (VOCAB_TXT, SENTENCEPIECE) if (folder / name).is_file()), None
    ):
        return read_vocabulary(file)
    if all((folder / name).is_file() for name in _PARTNERS):
        return read_byte_level(folder / VOCAB_JSON, folder / MERGES_TXT)
    return Vocabulary()


def _added_tokens(folder: pathlib.Path, settings: Mapping[str, Any]) -> set[str]:
    """The added tokens of a folder, with the special ones. settings: those of its tokenizer_config.json."""
    pipeline, listed = (read_optional(folder / name) for name in (TOKENIZER_JSON, ADDED_TOKENS))
    known_fields(pipeline, {"added_tokens": _TOKENS}, where=folder / TOKENIZER_JSON)
    checked_fields(listed, dict.fromkeys(listed, INTEGER), where=folder / ADDED_TOKENS)
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
