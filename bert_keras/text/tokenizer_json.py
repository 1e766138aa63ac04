"""Reads tokenizer.json, the file of the library `tokenizers`, into a Vocabulary.

Each part of the file is a table: key -> FOLLOWED, HARMLESS, or the values that give our ids; other values are refused by name.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import (
    FLAG,
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
    read_object,
    shortened,
)
from bert_keras.text.rules import (
    BERT_PAIR,
    GPT_TOKENS,
    MOST_WORD_CHARACTERS,
    ROBERTA_PAIR,
    AddedToken,
    PairFormat,
    Rules,
)
from bert_keras.text.vocabulary import VOCAB_TXT, WORD_END, Vocabulary, in_order_of_ids, other_setting

FOLLOWED, HARMLESS = "followed", "harmless"
Table = dict[str, Any]


class Refused(Exception):  # noqa: N818  caught here and in hugging_face_tokenizer
    """A setting that gives other ids, in words."""


def check_table(settings: Mapping[str, Any], table: Table, *, where: str) -> list[str]:
    """The keys of a file that a table does not know, each with its file.

    Raises Refused at the first setting that gives other ids.
    """
    allowed = {key: values for key, values in table.items() if isinstance(values, tuple)}
    if (
        key := other_setting(settings, {key: allowed[key] for key in settings if key in allowed})
    ) is not None:
        raise Refused(f"{key}={shortened(settings[key])} in {where}")
    return [f"{key} in {where}" for key in settings if key not in table]


class Pipeline(NamedTuple):
    """The contents of a tokenizer.json.

    vocabulary: its tokens, case and rules, without added tokens; empty if there is no file
    added: the added tokens with their ids
    unknown: keys that no table has
    pieces: of a Unigram model, whose numbers are in a spiece.model
    """

    vocabulary: Vocabulary = Vocabulary()
    added: tuple[tuple[AddedToken, int], ...] = ()
    unknown: tuple[str, ...] = ()
    pieces: tuple[str, ...] | None = None


_FILE: Table = {
    "version": HARMLESS,
    "truncation": FOLLOWED,
    "padding": FOLLOWED,
    "added_tokens": FOLLOWED,
    "normalizer": FOLLOWED,
    "pre_tokenizer": FOLLOWED,
    "post_processor": FOLLOWED,
    "decoder": HARMLESS,
    "model": FOLLOWED,
}
_TRUNCATION: Table = {"direction": FOLLOWED, "max_length": FOLLOWED, "strategy": HARMLESS, "stride": HARMLESS}
_PADDING: Table = {
    "strategy": HARMLESS,
    "direction": ("Right",),
    "pad_to_multiple_of": HARMLESS,
    "pad_id": HARMLESS,
    "pad_type_id": (0,),
    "pad_token": HARMLESS,
}
_MODELS: Mapping[str, Table] = {
    "WordPiece": {
        "type": HARMLESS,
        "vocab": FOLLOWED,
        "unk_token": FOLLOWED,
        "max_input_chars_per_word": FOLLOWED,
        "continuing_subword_prefix": (None, "##"),
    },
    "BPE": {
        "type": HARMLESS,
        "vocab": FOLLOWED,
        "merges": FOLLOWED,
        "unk_token": FOLLOWED,  # of byte-level BPE, no text has it
        "fuse_unk": FOLLOWED,
        "dropout": (None, 0),
        "continuing_subword_prefix": (None, ""),
        "end_of_word_suffix": (None, "", WORD_END),
        "byte_fallback": (None, False),
        "ignore_merges": (None, False),
    },
    "Unigram": {"type": HARMLESS, "vocab": FOLLOWED, "unk_id": HARMLESS, "byte_fallback": (None, False)},
}
_NORMALIZERS: Mapping[str, Table] = {
    "BertNormalizer": {
        "type": HARMLESS,
        "clean_text": FOLLOWED,
        "handle_chinese_chars": FOLLOWED,
        "strip_accents": FOLLOWED,
        "lowercase": FOLLOWED,
    },
    **dict.fromkeys(("Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"), {"type": HARMLESS}),
}
_BYTE_LEVEL: Table = {
    "type": ("ByteLevel",),
    "add_prefix_space": FOLLOWED,
    "use_regex": (None, True),
    "trim_offsets": HARMLESS,
}
# The pre-tokenizers of WordPiece, with those of the same words.
_PRE_TOKENIZERS = (("BertPreTokenizer",), ("WhitespaceSplit", "Punctuation"))
_PROCESSORS: Mapping[str, Table] = {
    "TemplateProcessing": dict.fromkeys(("single", "pair", "special_tokens"), FOLLOWED) | {"type": HARMLESS},
    "BertProcessing": dict.fromkeys(("sep", "cls"), FOLLOWED) | {"type": HARMLESS},
    "RobertaProcessing": dict.fromkeys(("sep", "cls"), FOLLOWED)
    | dict.fromkeys(("type", "trim_offsets", "add_prefix_space"), HARMLESS),
}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _is_template(value: Any) -> bool:
    parts = [*value.values()] if isinstance(value, dict) else []
    return len(parts) == 1 and isinstance(parts[0], dict) and isinstance(parts[0].get("id"), str)


def _is_flagged(value: Any) -> bool:
    flags = [value.get(name, False) for name in AddedToken._fields[1:]] if isinstance(value, dict) else []
    return (
        bool(flags)
        and isinstance(value.get("content"), str)
        and all(isinstance(flag, bool) for flag in flags)
    )


# A merge is "Ġ t" in older files and ["Ġ", "t"] in newer ones.
_MERGE = FieldType(
    "two tokens", lambda value: isinstance(value, str) or (_is_pair(value) and isinstance(value[1], str))
)
TOKEN = FieldType("an object with its text as content", _is_flagged)
_ADDED = list_of(
    FieldType(
        "an object with content and id", lambda value: _is_flagged(value) and is_integer(value.get("id"))
    )
)
# The special tokens of RobertaProcessing, with their ids; the templates of TemplateProcessing.
_NAMED = dict.fromkeys(("cls", "sep"), FieldType("a token and its id", _is_pair))
_TEMPLATE = dict.fromkeys(
    ("single", "pair"), list_of(FieldType("an object with an object that has an id", _is_template))
)
_STEPS = list_of(FieldType("an object with a type", lambda value: isinstance(value, dict)))
# transformers writes "" for a token of separators alone. This character never matches text; the Chinese vocabulary has it.
_SEPARATOR = "\u2028"
_UNIGRAM = "a SentencePiece unigram model"


def flagged(token: Mapping[str, Any]) -> AddedToken:
    """An added token of a file; its text is found in the normal form unless it is special."""
    special = token.get("special", False)
    flags = {name: token.get(name, False) for name in ("single_word", "lstrip", "rstrip")}
    normalized = token.get("normalized", not special)
    return AddedToken(token["content"], **flags, normalized=normalized, special=special)


def read_tokenizer_json(path: pathlib.Path) -> Pipeline:
    """The tokenizer of a tokenizer.json; an empty Pipeline if there is no such file.

    A model of another type, and settings that give other ids, are named in the vocabulary's `other`. Of a Unigram model the
    pieces are read, as tokens, to compare them with a spiece.model.
    """
    if not path.is_file():
        return Pipeline()
    content = read_object(path)
    objects = ("model", "normalizer", "pre_tokenizer", "post_processor", "truncation", "padding")
    parts = {part: content.get(part) or {} for part in objects}
    checked_fields(parts, dict.fromkeys(objects, OBJECT), where=path)
    added = known_fields(content, {"added_tokens": or_null(_ADDED)}, where=path).get("added_tokens") or ()
    tokens = tuple((flagged(token), token["id"]) for token in added)
    model = parts["model"]
    kind = model.get("type", "BPE" if "merges" in model else "WordPiece")  # old files have no type
    if not isinstance(kind, str) or (kind not in _MODELS and "model" in content):
        return Pipeline(Vocabulary(other=f"a {shortened(kind)[1:-1]} model", file=str(path)))
    kind = kind if kind in _MODELS else "WordPiece"
    unknown = [f"{key} in {path.name}" for key in content if key not in _FILE]
    try:
        unknown += check_table(model, _MODELS[kind], where=f"the model of {path.name}")
        unknown += check_table(parts["truncation"], _TRUNCATION, where=f"the truncation of {path.name}")
        unknown += check_table(parts["padding"], _PADDING, where=f"the padding of {path.name}")
        vocabulary = _READERS[kind](parts, path, [token for token, _ in tokens])
    except Refused as refused:
        bpe = "BPE" if model.get("end_of_word_suffix") else "byte-level BPE"
        named = {"BPE": bpe, "Unigram": _UNIGRAM}.get(kind, kind)
        return Pipeline(Vocabulary(other=f"{named} with {refused}", file=str(path)))
    length = parts["truncation"].get("max_length")
    if parts["truncation"].get("direction") == "Left":
        vocabulary = with_rules(vocabulary, left=True)
    vocabulary = vocabulary._replace(file=str(path), max_length=length if is_integer(length) else None)
    pieces = vocabulary.tokens if kind == "Unigram" else None
    if pieces is not None:
        vocabulary = vocabulary._replace(tokens=None, other=_UNIGRAM)
    return Pipeline(vocabulary, tokens, tuple(unknown), pieces)


def with_rules(vocabulary: Vocabulary, **changes: Any) -> Vocabulary:
    """A vocabulary with other rules."""
    return vocabulary._replace(rules=dataclasses.replace(vocabulary.rules, **changes))


def _steps(part: Mapping[str, Any], key: str, path: pathlib.Path) -> list[Mapping[str, Any]]:
    """The steps of a part: those of a Sequence, also of one inside another, else the part itself; none for null."""
    if part.get("type") != "Sequence":
        return [part] if part else []
    steps = checked_fields({key: part.get(key)}, {key: _STEPS}, where=path)[key]
    return [step for one in steps for step in _steps(one, key, path)]


def _normal_form(normalizer: Mapping[str, Any], path: pathlib.Path) -> tuple[bool, dict[str, Any]]:
    """The case, and the fields of Rules, of a normalizer whose steps together are one of our normal forms."""
    where = f"the normalizer of {path.name}"
    lower_case, accents, form, last = False, "", "", ""
    rules: dict[str, Any] = {"clean_text": False, "split_chinese": False}
    for step in _steps(normalizer, "normalizers", path):
        kind = str(step.get("type"))
        if kind not in _NORMALIZERS:
            raise Refused(f"{shortened(kind)} in {where}")
        if unknown := check_table(step, _NORMALIZERS[kind], where=where):
            raise Refused(unknown[0])
        if kind == "BertNormalizer":
            kinds = dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), FLAG)
            step = known_fields(step, kinds | {"strip_accents": or_null(FLAG)}, where=where)
            rules["clean_text"] |= step.get("clean_text", True)
            rules["split_chinese"] |= step.get("handle_chinese_chars", True)
            strips = step.get("strip_accents")
            if lowers := step.get("lowercase", True):
                lower_case = True
            if lowers if strips is None else strips:
                accents, form = accents or "Mn", form or "NFD"
        elif kind == "Lowercase":
            lower_case = True
        elif kind == "StripAccents":
            if not form:
                raise Refused(f"StripAccents without NFD before it in {where}")
            accents = "M"
        else:
            form = "NFKD" if "NFKD" in (form, kind.replace("KC", "KD")) else "NFD"
            last = kind
    # A composed form says nothing where accents are stripped, which decomposes the text.
    if form and not accents:
        raise Refused(f"{last} without StripAccents in {where}")
    if accents != ("Mn" if lower_case else ""):
        rules["strip_accents"] = accents
    if form == "NFKD":
        rules["decompose"] = form
    return lower_case, {name: value for name, value in rules.items() if value != getattr(Rules(), name)}


class _Frame(NamedTuple):
    start: str
    end: str
    pair: PairFormat


def _frame(post_processor: Mapping[str, Any], ids: Mapping[str, int], path: pathlib.Path) -> _Frame:
    """The special tokens around one segment and two. ids: of all tokens."""
    where = f"the post_processor of {path.name}"
    steps = [step for step in _steps(post_processor, "processors", path) if step.get("type") != "ByteLevel"]
    if len(steps) != 1:
        raise Refused(f"texts without special tokens, {len(steps)} steps in {where}")
    step = steps[0]
    if (kind := str(step.get("type"))) not in _PROCESSORS:
        raise Refused(f"{shortened(kind)} in {where}")
    if unknown := check_table(step, _PROCESSORS[kind], where=where):
        raise Refused(unknown[0])
    if kind != "TemplateProcessing":
        named = checked_fields(step, _NAMED, where=where, others=True)
        (start, _), (end, _) = named["cls"], named["sep"]
        given: dict[str, Any] = {token: [token_id] for token, token_id in named.values()}
        pair = BERT_PAIR if kind == "BertProcessing" else ROBERTA_PAIR
    else:
        rows = checked_fields(step, _TEMPLATE, where=where, others=True)
        single, double = (_template(rows[name]) for name in ("single", "pair"))
        words = single.split(" ")
        start, end = (words[0], words[-1]) if len(words) == 3 and words[1] == "A" else ("", "")
        forms = (BERT_PAIR, ROBERTA_PAIR, PairFormat(separators=1, second_type=0))
        fitting = [form for form in forms if double == _template_of(start, end, form)]
        if not start or not fitting:
            raise Refused(f"the form {single if not start else double!r} in {where}")
        pair, tokens = fitting[0], step.get("special_tokens")
        given = {
            name: token.get("ids")
            for name, token in (tokens if isinstance(tokens, dict) else {}).items()
            if isinstance(token, dict)
        }
    for token in (start, end):
        if given.get(token) != [ids.get(token)]:
            raise Refused(f"the id {shortened(given.get(token))} of {token} in {where}")
    return _Frame(start, end, pair)


def _template(row: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    """A template in words; a number after a name is a type that is not 0."""
    items = [next(iter(item.values())) for item in row]
    return " ".join(f"{item['id']}{item.get('type_id') or ''}" for item in items)


def _template_of(start: str, end: str, pair: PairFormat) -> str:
    """The template of two segments, as `_template` writes it."""
    mark = pair.second_type or ""
    return " ".join([start, "A", *[end] * pair.separators, f"B{mark}", f"{end}{mark}"])


def _other_names(names: Mapping[str, str], usual: Mapping[str, str]) -> dict[str, str]:
    return {role: name for role, name in names.items() if name != usual[role]}


def full_ids(ids: Mapping[str, int], added: Iterable[AddedToken]) -> dict[str, int]:
    """The ids with those of added tokens that they lack, which follow."""
    contents = dict.fromkeys(token.content for token in added if token.content not in ids)
    first = max(ids.values(), default=-1) + 1
    return {**ids, **{content: first + i for i, content in enumerate(contents)}}


def _words(parts: Mapping[str, Mapping[str, Any]], path: pathlib.Path) -> tuple[bool, dict[str, Any]]:
    """The case, and the fields of Rules, of a tokenizer that splits text into BERT's words."""
    types = tuple(str(step.get("type")) for step in _steps(parts["pre_tokenizer"], "pretokenizers", path))
    if types not in _PRE_TOKENIZERS:
        raise Refused(f"{' and '.join(types) or 'null'} as the pre_tokenizer of {path.name}")
    return _normal_form(parts["normalizer"], path)


def _read_wordpiece(
    parts: Mapping[str, Mapping[str, Any]], path: pathlib.Path, added: Sequence[AddedToken]
) -> Vocabulary:
    if "vocab" not in parts["model"]:
        raise BertKerasError(f"{path} holds no WordPiece vocabulary; put a {VOCAB_TXT} beside it.")
    kinds = {"vocab": object_of(INTEGER), "unk_token": TEXT, "max_input_chars_per_word": or_null(INTEGER)}
    model = known_fields(parts["model"], kinds, where=f"the model of {path}")
    lower_case, changes = _words(parts, path)
    limit = model.get("max_input_chars_per_word") or 100  # the default of the library
    if not 1 <= limit <= MOST_WORD_CHARACTERS:
        raise Refused(f"max_input_chars_per_word={limit} in the model of {path.name}")
    ids = {piece or _SEPARATOR: i for piece, i in model["vocab"].items()}
    if model["vocab"].get("") == len(ids) - 1 > 0:  # a blank line at the end of the vocab.txt
        del ids[_SEPARATOR]
    frame = _frame(parts["post_processor"], full_ids(ids, added), path)
    names = {"unknown": model.get("unk_token", "[UNK]"), "start": frame.start, "end": frame.end}
    rules = Rules(
        names=_other_names(names, {"unknown": "[UNK]", "start": "[CLS]", "end": "[SEP]"}),
        pair=None if frame.pair == BERT_PAIR else frame.pair,
        max_word=limit,
        **changes,
    )
    tokens = in_order_of_ids(ids, path, gaps=True)
    return Vocabulary(tokens=tokens, lower_case=lower_case, rules=rules)


def _read_bpe(
    parts: Mapping[str, Mapping[str, Any]], path: pathlib.Path, added: Sequence[AddedToken]
) -> Vocabulary:
    """Byte-level BPE, or BPE of words."""
    splits = {step.get("type") for step in _steps(parts["pre_tokenizer"], "pretokenizers", path)}
    of_words = parts["model"].get("end_of_word_suffix") == WORD_END and "ByteLevel" not in splits
    lower_case, changes = _words(parts, path) if of_words else (False, _bytes(parts, path))
    kinds = {"vocab": object_of(INTEGER), "merges": list_of(_MERGE)}
    model = checked_fields(parts["model"], kinds, where=f"the model of {path}", others=True)
    merges = tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    tokens = in_order_of_ids(model["vocab"], path)
    if of_words:
        if parts["post_processor"]:
            raise Refused(f"a post_processor in {path.name}")
        if parts["model"].get("fuse_unk"):
            raise Refused(f"fuse_unk=true in the model of {path.name}")
        kinds = {"unk_token": TEXT}
        named = checked_fields(parts["model"], kinds, where=f"the model of {path}", others=True)
        names = dict.fromkeys(("unknown", "padding"), named["unk_token"])
        rules = Rules(names=_other_names(names, GPT_TOKENS), **changes)
        return Vocabulary(tokens, merges, lower_case=lower_case, rules=rules, suffix=WORD_END)
    frame = _frame(parts["post_processor"], full_ids(model["vocab"], added), path)
    rules = Rules(
        names=_other_names({"start": frame.start, "end": frame.end}, {"start": "<s>", "end": "</s>"}),
        pair=None if frame.pair == ROBERTA_PAIR else frame.pair,
        **changes,
    )
    return Vocabulary(tokens, merges, lower_case=False, rules=rules)


def _bytes(parts: Mapping[str, Mapping[str, Any]], path: pathlib.Path) -> dict[str, Any]:
    """The fields of Rules of byte-level BPE, whose added tokens may have ids of their own among the others."""
    if normalizer := parts["normalizer"]:
        raise Refused(f"{shortened(normalizer.get('type'))} as the normalizer of {path.name}")
    steps = _steps(parts["pre_tokenizer"], "pretokenizers", path)
    types = " and ".join(str(step.get("type")) for step in steps)
    if len(steps) != 1 or steps[0].get("type") != "ByteLevel":
        raise Refused(f"{types or 'null'} as the pre_tokenizer of {path.name}")
    if unknown := check_table(steps[0], _BYTE_LEVEL, where=f"the pre_tokenizer of {path.name}"):
        raise Refused(unknown[0])
    if suffix := parts["model"].get("end_of_word_suffix"):
        raise Refused(f"end_of_word_suffix={shortened(suffix)} in the model of {path.name}")
    return {"prefix_space": bool(steps[0].get("add_prefix_space", True))}


def _read_unigram(
    parts: Mapping[str, Mapping[str, Any]], path: pathlib.Path, added: Sequence[AddedToken]
) -> Vocabulary:
    """The pieces of a model whose numbers are in a spiece.model, as tokens."""
    rows = parts["model"].get("vocab")
    if not isinstance(rows, list) or not all(_is_pair(row) for row in rows):
        raise BertKerasError(f"the model of {path}: vocab is {shortened(rows)}; wanted pieces and scores.")
    pieces = tuple(row[0] for row in rows)
    steps = [step.get("type") for step in _steps(parts["normalizer"], "normalizers", path)]
    if "StripAccents" not in steps:
        raise Refused(f"accents that stay by the normalizer of {path.name}")
    ids = {piece: i for i, piece in enumerate(pieces)}
    frame = _frame(parts["post_processor"], full_ids(ids, added), path)
    rules = Rules(
        names=_other_names({"start": frame.start, "end": frame.end}, {"start": "[CLS]", "end": "[SEP]"}),
        pair=None if frame.pair == BERT_PAIR else frame.pair,
    )
    return Vocabulary(tokens=pieces, lower_case="Lowercase" in steps, rules=rules)


_READERS = {"WordPiece": _read_wordpiece, "BPE": _read_bpe, "Unigram": _read_unigram}
