"""Reads, checks and writes the tokenizer files of a Hugging Face folder; folders of Google and Model Garden have them too.

The keys of each file are in `tokenizer_tables`. A setting that is refused is named in the vocabulary's `other`, so that the
weights can be read without the tokenizer.
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from bert_keras.checkpoints.letter_case import lower_cases
from bert_keras.checkpoints.tokenizer_tables import (
    ADDED_TOKENS,
    BYTE_LEVEL,
    CONFIG_TABLE,
    KINDS,
    NAMED,
    PIECES,
    ROLE_KEYS,
    SENTENCE_CONFIG,
    SENTENCE_TABLE,
    SENTENCE_TYPES,
    SPECIAL_TABLE,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    TYPES,
    WORD_BPE,
    WORDPIECE,
    WORDS,
    kind_of,
    special_names,
    tokens_of,
)
from bert_keras.errors import BertKerasError
from bert_keras.io.files import write_json
from bert_keras.io.json_files import (
    INTEGER,
    TEXT,
    checked_fields,
    known_fields,
    or_null,
    read_optional,
    shortened,
)
from bert_keras.text.rules import BERT_PAIR, CLASS, ROBERTA_PAIR, AddedToken, Rules
from bert_keras.text.tokenizer_json import (
    FOLLOWED,
    Pipeline,
    Refused,
    check_table,
    flagged,
    read_tokenizer_json,
    with_rules,
)
from bert_keras.text.vocabulary import (
    MERGES_TXT,
    SENTENCEPIECE,
    TOKENIZER_JSON,
    VOCAB_JSON,
    VOCAB_TXT,
    Vocabulary,
    read_byte_level,
    read_vocabulary,
    unmerged_tokens,
)
from bert_keras.text.write_tokenizer_json import write_pipeline

_PARTNERS = {VOCAB_JSON: MERGES_TXT, MERGES_TXT: VOCAB_JSON}
_NO_LENGTH = 1_000_000  # transformers writes 1e30 where there is no limit


def read_tokenizer(folder: pathlib.Path, *, file: str | None = None) -> Vocabulary:
    """The tokenizer of a folder. Google's and Model Garden's folders have a vocab.txt and, if we wrote them, its settings.

    file: VOCAB_TXT or SENTENCEPIECE, of a folder that has both; None takes the first
    """
    path = folder / TOKENIZER_CONFIG
    settings = known_settings(read_optional(path), where=path)
    if settings.get("tokenizer_class") == WORDS:
        return _words_of(folder, settings)
    pipeline = read_tokenizer_json(folder / TOKENIZER_JSON)
    found = _vocabulary_of(folder, pipeline, (VOCAB_TXT, SENTENCEPIECE) if file is None else (file,))
    if found.is_there and found.other is None:
        found = _with_class(found, folder, settings)
    if not found.has_tokens:
        return found
    kind = kind_of(found)
    try:
        return _with_settings(found, folder, settings, pipeline)
    except Refused as refused:
        return Vocabulary(other=f"{kind} with {refused}", file=found.file)


def _words_of(folder: pathlib.Path, settings: Mapping[str, Any]) -> Vocabulary:
    """A vocabulary of whole words, with the rules that `write_tokenizer` wrote: no other library has this class."""
    return read_vocabulary(folder / VOCAB_TXT)._replace(
        lower_case=settings.get("do_lower_case"),
        rules=Rules.from_json({"new_words": CLASS} | settings.get("rules", {})),
        max_length=settings.get("model_max_length"),
    )


def known_settings(settings: Mapping[str, Any], *, where: object) -> dict[str, Any]:
    """The settings of a file, of which each that is followed has a value of its type; null is left out."""
    known_fields(settings, TYPES, where=where)
    return {key: value for key, value in settings.items() if value is not None}


def _vocabulary_of(folder: pathlib.Path, pipeline: Pipeline, names: tuple[str, ...]) -> Vocabulary:
    """The vocabulary of a folder: that of tokenizer.json, as in transformers, else that of its other files."""
    theirs, ours = pipeline.vocabulary, Vocabulary()
    files = [folder / name for name in names if (folder / name).is_file()]
    if files:
        ours = read_vocabulary(files[0])
    elif all((folder / name).is_file() for name in _PARTNERS):
        ours = read_byte_level(folder / VOCAB_JSON, folder / MERGES_TXT)
    elif not theirs.is_there and (lone := [name for name in _PARTNERS if (folder / name).is_file()]):
        return Vocabulary(
            other=f"byte-level BPE without its {_PARTNERS[lone[0]]}", file=str(folder / lone[0])
        )
    if ours.sentencepiece is not None and pipeline.pieces is not None:
        if pipeline.pieces != (own_tokens(ours) or pipeline.pieces):
            other = f"{PIECES} with other pieces in its {TOKENIZER_JSON} than in its {SENTENCEPIECE}"
            return Vocabulary(other=other, file=theirs.file)
        return theirs._replace(sentencepiece=ours.sentencepiece, other=None, file=ours.file)
    if not ours.has_tokens or theirs.other is not None:
        return theirs
    if not theirs.has_tokens:
        return ours
    if ours.sentencepiece is None and _effective(ours) == _effective(theirs):
        return theirs._replace(tokens=ours.tokens, file=ours.file)
    warnings.warn(
        f"{ours.file} and the {TOKENIZER_JSON} beside it give other ids; {TOKENIZER_JSON} counts, as in transformers.",
        stacklevel=1,  # always this line, so that Python warns once
    )
    return theirs


def _effective(vocabulary: Vocabulary) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """The ids of the tokens that a text can have, and the merges."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens or ())}
    return {token: i for token, i in ids.items() if token.strip()}, vocabulary.merges


def own_tokens(vocabulary: Vocabulary) -> tuple[str, ...]:
    """The model's own tokens in the order of their ids; none for bytes that are no SentencePiece model."""
    if vocabulary.sentencepiece is None:
        return vocabulary.tokens or ()
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    messages: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    try:
        return tuple(piece.piece for piece in messages.ModelProto.FromString(vocabulary.sentencepiece).pieces)
    except DecodeError:
        return ()


def _with_class(found: Vocabulary, folder: pathlib.Path, settings: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary, or the name of another tokenizer class in tokenizer_config.json or config.json."""
    kind, where = settings.get("tokenizer_class"), folder / TOKENIZER_CONFIG
    if not kind:
        where = folder / "config.json"
        fields = {"tokenizer_class": or_null(TEXT)}
        kind = known_fields(read_optional(where), fields, where=where).get("tokenizer_class")
    known = KINDS[kind_of(found)].classes
    return found if kind is None or kind in known else Vocabulary(other=kind, file=str(where))


def _with_settings(
    found: Vocabulary, folder: pathlib.Path, settings: Mapping[str, Any], pipeline: Pipeline
) -> Vocabulary:
    """The vocabulary with the settings beside it. Raises Refused for a setting that gives other ids."""
    more = [key for key, value in settings.items() if key.endswith("_token") and NAMED.accepts(value)]
    table = dict.fromkeys(more, FOLLOWED) | CONFIG_TABLE | KINDS[kind_of(found)].table
    unknown = [*pipeline.unknown, *check_table(settings, table, where=TOKENIZER_CONFIG)]
    named = {key: settings[key] for key in (*SPECIAL_TABLE, *more) if key in settings}
    if "added_tokens_decoder" not in settings:  # else transformers does not read this file
        path = folder / SPECIAL_TOKENS
        listed = known_settings(read_optional(path), where=path)
        unknown += check_table(listed, SPECIAL_TABLE, where=SPECIAL_TOKENS)
        named |= {key: value for key, value in listed.items() if key in SPECIAL_TABLE}
    sentence = known_fields(
        read_optional(folder / SENTENCE_CONFIG), SENTENCE_TYPES, where=folder / SENTENCE_CONFIG
    )
    unknown += check_table(read_optional(folder / SENTENCE_CONFIG), SENTENCE_TABLE, where=SENTENCE_CONFIG)
    if unknown:
        warnings.warn(
            f"{folder} has settings of its tokenizer that are not known here and not followed: {', '.join(unknown)[:1000]}.",
            stacklevel=1,  # always this line, so that Python warns once
        )
    has_pipeline = pipeline.vocabulary.has_tokens or pipeline.pieces is not None
    found = _with_case(found, settings, has_pipeline)
    if sentence.get("do_lower_case") and not found.lower_case:
        if found.merges is not None:
            raise Refused(f"do_lower_case=True in {SENTENCE_CONFIG}")
        # sentence-transformers lower-cases text for a tokenizer that keeps its accents.
        found = with_rules(found, strip_accents=found.rules.accents(lower_case=False))._replace(
            lower_case=True
        )
    rules, names = found.rules, special_names(found)
    for key, role in ROLE_KEYS.items():
        if key in named and (token := _text_of(named[key])) != names.get(role):
            if has_pipeline and role in ("unknown", "start", "end"):
                raise Refused(f"{key}={shortened(token)} beside {names[role]!r} in its {TOKENIZER_JSON}")
            names[role] = token
    usual = KINDS[kind_of(found)].names
    side = settings.get("truncation_side")
    own = own_tokens(found)
    rules = dataclasses.replace(
        rules,
        names={role: token for role, token in names.items() if token != usual.get(role)},
        added=_added(folder, settings, named, pipeline, own, {*names.values()}),
        left=rules.left if side is None else side == "left",
    )
    if kind_of(found) == BYTE_LEVEL:
        _refuse_lost_merges(found, rules)
    lengths = (sentence.get("max_seq_length"), settings.get("model_max_length"), settings.get("max_len"))
    length = next((int(one) for one in lengths if one is not None and 1 <= one < _NO_LENGTH), None)
    return found._replace(rules=rules, max_length=length or pipeline.vocabulary.max_length)


def _with_case(found: Vocabulary, settings: Mapping[str, Any], has_pipeline: bool) -> Vocabulary:
    """The vocabulary with its normal form, from tokenizer_config.json where there is no tokenizer.json."""
    lower_case, rules = found.lower_case, found.rules
    if lower_case is None:
        lower_case = settings.get("do_lower_case")
    # Without a case, that of the accents is not known either.
    accents = None if lower_case is None else bool(rules.accents(lower_case=lower_case))
    here: dict[str, tuple[str, Any]] = {
        "do_lower_case": ("", lower_case),
        "strip_accents": ("strip_accents", accents),
        "tokenize_chinese_chars": ("split_chinese", rules.split_chinese),
        "max_input_chars_per_word": ("max_word", rules.max_word),
        "add_prefix_space": ("prefix_space", rules.prefix_space),
    }
    table, changes = KINDS[kind_of(found)].table, {}
    for key, (field, value) in here.items():
        given = settings.get(key)
        if given is None or given == value or table.get(key) != FOLLOWED:
            continue
        if has_pipeline and key != "add_prefix_space":  # in this setting transformers takes the file's
            raise Refused(f"{key}={shortened(given)} beside {value} in its {TOKENIZER_JSON}")
        changes[field] = given
    if "strip_accents" in changes:
        changes["strip_accents"] = "Mn" if changes["strip_accents"] else ""
    return found._replace(lower_case=lower_case, rules=dataclasses.replace(rules, **changes))


def _text_of(token: Any) -> str:
    return token if isinstance(token, str) else token["content"]


def _mark(token: Any) -> AddedToken:
    """A special token, as transformers adds it: a string is looked for in the text as given."""
    fields = {"content": token} if isinstance(token, str) else token
    return flagged({"normalized": False} | fields | {"special": True})


def _added(
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    named: Mapping[str, Any],
    pipeline: Pipeline,
    own: tuple[str, ...],
    roles: set[str],
) -> tuple[AddedToken, ...]:
    """The tokens that are whole in text, in the order of their ids, as transformers adds them.

    named: the special tokens by their keys; own: the model's own tokens; roles: the special tokens of the model

    Raises Refused for an added token with another id than transformers gives it, and BertKerasError for an id that is no number.
    """
    marks = {mark.content: mark for value in named.values() for mark in map(_mark, tokens_of(value))}
    listed = read_optional(folder / ADDED_TOKENS)
    checked_fields(listed, dict.fromkeys(listed, INTEGER), where=folder / ADDED_TOKENS)
    found: dict[str, tuple[AddedToken, int]] = {}
    decoder = settings.get("added_tokens_decoder")
    if decoder is None:
        for text, number in listed.items():
            found[text] = AddedToken(text, normalized=text not in marks, special=text in marks), number
    found |= {token.content: (token, number) for token, number in pipeline.added}
    for number, fields in (decoder or {}).items():
        if not (number.isdecimal() and len(number) < 10):
            raise BertKerasError(
                f"{folder / TOKENIZER_CONFIG}: added_tokens_decoder has {shortened(number)}; wanted an id."
            )
        found[fields["content"]] = flagged(fields), int(number)
    ordered = sorted(found.values(), key=lambda one: one[1])
    tokens = [token for token, _ in ordered]
    tokens += [mark for text, mark in marks.items() if text not in found and text not in roles]
    ids = {token: i for i, token in enumerate(own)}
    ids |= {token: len(own) + i for i, token in enumerate(Rules(added=tuple(tokens)).beyond(own))}
    for token, number in ordered:
        if ids[token.content] != number:
            raise Refused(
                f"the id {number} of the added token {shortened(token.content)}, where transformers gives {ids[token.content]}"
            )
    return tuple(token for token in tokens if token.content not in roles or token.content not in own)


def _refuse_lost_merges(found: Vocabulary, rules: Rules) -> None:
    """Raises BertKerasError for byte-level tokens that no merge makes and that are no added tokens."""
    added = {token.content for token in rules.added}
    unmerged = unmerged_tokens(found.tokens or (), found.merges or ())
    if lost := [token for token in unmerged if token not in added]:
        raise BertKerasError(
            f"{found.file}: no merge makes {len(lost)} of the tokens, {shortened(lost[0])} the first; the merges are cut short, "
            f"or another model's: download the tokenizer again, or list tokens that were added to it in an {ADDED_TOKENS}."
        )


# -----------------------------------------------------------------------------------------------------------
# Writing


def write_tokenizer(vocabulary: Vocabulary, folder: pathlib.Path, *, max_length: int = 512) -> None:
    """Writes a vocabulary and, as Hugging Face does, a tokenizer_config.json beside it. An empty one has no files.

    max_length: tokens that the model takes
    """
    if not vocabulary.has_tokens:
        return
    rules, kind = vocabulary.rules, kind_of(vocabulary)
    settings: dict[str, Any] = {"model_max_length": min(max_length, vocabulary.max_length or max_length)}
    lower_case = kind != BYTE_LEVEL and lower_cases(vocabulary)
    if rules.new_words:
        (folder / VOCAB_TXT).write_bytes(("\n".join(vocabulary.tokens or ()) + "\n").encode())
        settings |= {"tokenizer_class": WORDS, "do_lower_case": lower_case, "rules": rules.to_json()}
        write_json(folder / TOKENIZER_CONFIG, settings)
        return
    if kind in (BYTE_LEVEL, WORD_BPE):
        ids = {token: i for i, token in enumerate(vocabulary.tokens or ())}
        write_json(folder / VOCAB_JSON, ids)
        lines = ("#version: 0.2", *(vocabulary.merges or ()))
        (folder / MERGES_TXT).write_bytes(("\n".join(lines) + "\n").encode())
        settings["tokenizer_class"] = "OpenAIGPTTokenizer"
        if kind == BYTE_LEVEL:
            settings |= {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": rules.prefix_space}
    elif kind == WORDPIECE:
        (folder / VOCAB_TXT).write_bytes(("\n".join(vocabulary.tokens or ()) + "\n").encode())
        settings |= {"tokenizer_class": "BertTokenizer", "do_lower_case": lower_case}
        if (strips := bool(rules.accents(lower_case=lower_case))) != lower_case:
            settings["strip_accents"] = strips
        if not rules.split_chinese:
            settings["tokenize_chinese_chars"] = False
        if rules.max_word != Rules.max_word:
            settings["max_input_chars_per_word"] = rules.max_word
    else:
        (folder / SENTENCEPIECE).write_bytes(vocabulary.sentencepiece or b"")
        settings |= {"tokenizer_class": "AlbertTokenizer", "do_lower_case": lower_case}
    names = special_names(vocabulary)
    settings |= {key: names[role] for key, role in ROLE_KEYS.items() if role in rules.names}
    if rules.left:
        settings["truncation_side"] = "left"
    if rules.added:
        own = own_tokens(vocabulary)
        ids = {token: i for i, token in enumerate((*own, *rules.beyond(own)))}
        settings["added_tokens_decoder"] = {str(ids[token.content]): token._asdict() for token in rules.added}
    if needs_pipeline := kind != PIECES and not _is_plain(vocabulary):
        settings |= {key: names[role] for key, role in ROLE_KEYS.items() if role in names} | {
            "tokenizer_class": "PreTrainedTokenizerFast"
        }
    if needs_pipeline or kind in (BYTE_LEVEL, WORD_BPE):
        write_json(folder / TOKENIZER_JSON, write_pipeline(vocabulary, names, lower_case=lower_case))
    write_json(folder / TOKENIZER_CONFIG, settings)


def _is_plain(vocabulary: Vocabulary) -> bool:
    """True if transformers' own class for the model has a setting for each rule."""
    rules, kind = vocabulary.rules, kind_of(vocabulary)
    if kind == WORD_BPE:
        plain = dataclasses.replace(rules, added=(), names={}, left=False)
        return plain == Rules() and vocabulary.lower_case is not False
    usual = BERT_PAIR if kind == WORDPIECE else ROBERTA_PAIR
    return (
        rules.pair in (None, usual)
        and rules.clean_text
        and rules.strip_accents != "M"
        and rules.decompose == Rules.decompose
        and rules.max_word in (100, Rules.max_word)  # transformers has 100, the original 200
    )
