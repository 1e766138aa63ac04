"""Writes tokenizer.json, the file of the library `tokenizers`, from a Vocabulary; `tokenizer_json` reads it."""

from collections.abc import Mapping
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.text.rules import BERT_PAIR, ROBERTA_PAIR, AddedToken, PairFormat, Rules
from bert_keras.text.tokenizer_json import full_ids
from bert_keras.text.vocabulary import WORD_END, Vocabulary


def write_pipeline(vocabulary: Vocabulary, names: Mapping[str, str], *, lower_case: bool) -> dict[str, Any]:
    """The contents of a tokenizer.json for WordPiece or BPE, for transformers' fast tokenizer.

    names: the special tokens by role

    Raises BertKerasError for a vocabulary of whole words, whose new words this file cannot tell.
    """
    if vocabulary.rules.new_words:
        raise BertKerasError(
            "a tokenizer of whole words has no tokenizer.json; use a model whose vocabulary is of WordPiece or byte-level BPE."
        )
    rules, tokens = vocabulary.rules, vocabulary.tokens or ()
    own = {token: i for i, token in enumerate(tokens)}
    ids = full_ids(own, rules.added)
    byte_level = vocabulary.merges is not None and not vocabulary.suffix
    special = [
        AddedToken(token, lstrip=byte_level and role == "mask", normalized=False, special=True)
        for role, token in names.items()
        if token in ids
    ]
    added = {token.content: token for token in (*rules.added, *special)}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[token.content], **token._asdict()}
            for token in sorted(added.values(), key=lambda token: ids[token.content])
        ],
    }
    if vocabulary.suffix:
        # As transformers has it, without a frame.
        model = _bpe(vocabulary, own, unknown=names["unknown"])
        return (
            content | {"post_processor": None} | _wordpiece(rules, own, names, lower_case=lower_case) | model
        )
    start, end = names["start"], names["end"]
    pair = rules.pair or (ROBERTA_PAIR if byte_level else BERT_PAIR)
    if byte_level and pair == ROBERTA_PAIR:
        frame: dict[str, Any] = {
            "type": "RobertaProcessing",
            "sep": [end, ids[end]],
            "cls": [start, ids[start]],
            "trim_offsets": True,
            "add_prefix_space": rules.prefix_space,
        }
    else:
        frame = _template_processing(start, end, pair, ids)
    model = (
        _byte_level(vocabulary, own) if byte_level else _wordpiece(rules, own, names, lower_case=lower_case)
    )
    return content | {"post_processor": frame} | model


def _byte_level(vocabulary: Vocabulary, ids: Mapping[str, int]) -> dict[str, Any]:
    level = {
        "type": "ByteLevel",
        "add_prefix_space": vocabulary.rules.prefix_space,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {"normalizer": None, "pre_tokenizer": level} | _bpe(vocabulary, ids) | {"decoder": level}


def _bpe(vocabulary: Vocabulary, ids: Mapping[str, int], *, unknown: str | None = None) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": vocabulary.suffix,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": dict(ids),
        "merges": [*(vocabulary.merges or ())],
    }
    return {"decoder": {"type": "BPEDecoder", "suffix": WORD_END}, "model": model}


def _wordpiece(
    rules: Rules, ids: Mapping[str, int], names: Mapping[str, str], *, lower_case: bool
) -> dict[str, Any]:
    model = {
        "type": "WordPiece",
        "unk_token": names["unknown"],
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": rules.max_word,
        "vocab": dict(ids),
    }
    return {
        "normalizer": _normalizer(rules, lower_case=lower_case),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": model,
    }


def _template_processing(start: str, end: str, pair: PairFormat, ids: Mapping[str, int]) -> dict[str, Any]:
    def special(token: str, type_id: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": pair.second_type}}
    return {
        "type": "TemplateProcessing",
        "single": [special(start), first, special(end)],
        "pair": [
            *(special(start), first, *[special(end)] * pair.separators),
            *(second, special(end, pair.second_type)),
        ],
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (start, end)
        },
    }


def _normalizer(rules: Rules, *, lower_case: bool) -> dict[str, Any]:
    """The normalizer of a WordPiece tokenizer."""
    accents = rules.accents(lower_case=lower_case)
    plain = accents in ("", "Mn") and rules.decompose == "NFD"
    bert = {
        "type": "BertNormalizer",
        "clean_text": rules.clean_text,
        "handle_chinese_chars": rules.split_chinese,
        "strip_accents": accents == "Mn" and plain,
        "lowercase": lower_case and plain,
    }
    if plain:
        return bert
    if accents == "Mn":
        steps = [{"type": rules.decompose}, bert | {"strip_accents": True, "lowercase": lower_case}]
        return {"type": "Sequence", "normalizers": steps}
    lowers = [{"type": "Lowercase"}] if lower_case else []
    return {
        "type": "Sequence",
        "normalizers": [bert, {"type": rules.decompose}, {"type": "StripAccents"}, *lowers],
    }
