"""Reads, checks and writes the tokenizer files of a Hugging Face folder; folders of Google and Model Garden have them too."""

import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from bert_keras.checkpoints.letter_case import lower_cases
from bert_keras.checkpoints.names import Checkpoint
from bert_keras.files import write_json
from bert_keras.json_files import (
    FLAG,
    TEXT,
    Kind,
    is_whole,
    list_of,
    object_of,
    or_null,
    read_object,
    typed,
)
from bert_keras.text.vocabulary_files import (
    BYTE_LEVEL_BPE,
    SENTENCEPIECE,
    TOKENIZER_JSON,
    VOCAB_TXT,
    Vocabulary,
    read_tokenizer_json,
    read_vocabulary,
    refuse_other_ids,
)

TOKENIZER_CONFIG = "tokenizer_config.json"
# Fields of a tokenizer_config.json that may have any value of their type.
_TOKEN = Kind(
    "an object with its text as content",
    lambda value: isinstance(value, dict) and isinstance(value.get("content"), str),
)
_SETTINGS = {
    "tokenizer_class": or_null(TEXT),
    "do_lower_case": or_null(FLAG),
    "strip_accents": or_null(FLAG),
    "added_tokens_decoder": or_null(object_of(_TOKEN)),
}
# Classes that split text as WordPiece and SentencePiece do; the last two follow tokenizer.json.
_TOKENIZER_CLASSES = {
    f"{model}Tokenizer{kind}"
    for model in "Albert Bert ConvBert DistilBert Electra Lxmert MobileBert SqueezeBert".split()
    for kind in ("", "Fast", "Legacy")
} | {"PreTrainedTokenizerFast", "TokenizersBackend"}
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


def read_tokenizer(folder: pathlib.Path) -> Vocabulary:
    """The tokenizer of a folder. Google's and Model Garden's folders have a vocab.txt and, if we wrote them, its settings."""
    found, has_merges = _vocabulary_of(folder), (folder / "merges.txt").is_file()
    pipeline = read_tokenizer_json(folder / TOKENIZER_JSON, has_pieces=found.is_there)
    if found.sentencepiece is None and (found.pieces is None or pipeline.other is not None):
        found = pipeline
    if not found.is_there and has_merges:
        found = Vocabulary(other=BYTE_LEVEL_BPE)
    path = folder / TOKENIZER_CONFIG
    settings = read_object(path) if path.is_file() else {}
    typed(settings, _SETTINGS, where=path, optional=_SETTINGS, others=True)
    kind = settings.get("tokenizer_class") or _tokenizer_class_of_model(folder)
    if found.is_there and kind is not None and kind not in _TOKENIZER_CLASSES:
        found = Vocabulary(other=str(kind))
    if found.pieces is None and found.sentencepiece is None:
        return found
    cases = (None, False, True) if pipeline.lower_case is None else (None, pipeline.lower_case)
    refuse_other_ids(settings, {"do_lower_case": cases} | _TOKENIZER_SETTINGS, where=path)
    lower_case = settings.get("do_lower_case")
    lower_case = pipeline.lower_case if lower_case is None else lower_case
    refuse_other_ids(settings, {"strip_accents": (None, lower_case)}, where=path)
    if found.pieces is not None:
        _warn_of_added_tokens(folder, settings, found.pieces)
    return found._replace(lower_case=lower_case)


def _vocabulary_of(folder: pathlib.Path) -> Vocabulary:
    """The vocab.txt of a folder, or else its spiece.model."""
    files = (folder / name for name in (VOCAB_TXT, SENTENCEPIECE))
    return next((read_vocabulary(file) for file in files if file.is_file()), Vocabulary())


def _tokenizer_class_of_model(folder: pathlib.Path) -> str | None:
    path = folder / "config.json"
    fields = read_object(path) if path.is_file() else {}
    known = {"tokenizer_class": _SETTINGS["tokenizer_class"]}
    return typed(fields, known, where=path, optional=known, others=True).get("tokenizer_class")


def _warn_of_added_tokens(folder: pathlib.Path, settings: Mapping[str, Any], pieces: tuple[str, ...]) -> None:
    """Warns of added tokens: transformers finds them in text before it looks for wordpieces; our tokenizers do not."""
    pipeline, listed = (
        read_object(folder / name) if (folder / name).is_file() else {}
        for name in (TOKENIZER_JSON, "added_tokens.json")
    )
    known = {"added_tokens": or_null(list_of(_TOKEN))}
    typed(pipeline, known, where=folder / TOKENIZER_JSON, optional=known, others=True)
    typed(listed, dict.fromkeys(listed, Kind("a whole number", is_whole)), where=folder / "added_tokens.json")
    tokens = [
        *(pipeline.get("added_tokens") or ()),
        *(settings.get("added_tokens_decoder") or {}).values(),
    ]
    added = [*(token["content"] for token in tokens), *listed]
    if strange := sorted(set(added) - set(pieces)):
        warnings.warn(
            f"{folder} adds {', '.join(strange)[:1000]} to its vocabulary; "
            "text that holds them is split into the vocabulary's tokens.",
            stacklevel=3,
        )


def write_tokenizer(checkpoint: Checkpoint, folder: pathlib.Path) -> None:
    """Writes the vocabulary and, as Hugging Face does, a tokenizer_config.json beside it."""
    if checkpoint.vocabulary is None and checkpoint.sentencepiece is None:
        return
    if checkpoint.vocabulary is not None:
        (folder / VOCAB_TXT).write_bytes(("\n".join(checkpoint.vocabulary) + "\n").encode())
    if checkpoint.sentencepiece is not None:
        (folder / SENTENCEPIECE).write_bytes(checkpoint.sentencepiece)
    settings = {
        "tokenizer_class": "BertTokenizer" if checkpoint.sentencepiece is None else "AlbertTokenizer",
        "do_lower_case": lower_cases(checkpoint),
        "model_max_length": checkpoint.config.max_length,
    }
    write_json(folder / TOKENIZER_CONFIG, settings)
