"""The keys of the tokenizer files of a Hugging Face folder, one table for each file.

A key is FOLLOWED, HARMLESS, or has the values that give our ids; other values are refused by name, and unknown keys are named in
one warning. The keys of tokenizer.json are in `text/tokenizer_json.py`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_keras.io.json_files import (
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    FieldType,
    integer,
    object_of,
    one_of,
    or_null,
)
from bert_keras.text.rules import GPT_TOKENS, MOST_WORD_CHARACTERS
from bert_keras.text.tokenizer_json import FOLLOWED, HARMLESS, TOKEN, Table
from bert_keras.text.vocabulary import Vocabulary

TOKENIZER_CONFIG, ADDED_TOKENS, SPECIAL_TOKENS = (
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
)
SENTENCE_CONFIG = "sentence_bert_config.json"  # of sentence-transformers
# The keys of the special tokens -> our roles; bos and eos are tokens of other models, whole in text where they are named.
ROLE_KEYS = {
    "unk_token": "unknown",
    "sep_token": "end",
    "pad_token": "padding",
    "cls_token": "start",
    "mask_token": "mask",
}
SPECIAL_TABLE = dict.fromkeys(
    ("bos_token", "eos_token", *ROLE_KEYS, "additional_special_tokens", "extra_special_tokens"), FOLLOWED
)
CONFIG_TABLE: Table = SPECIAL_TABLE | {
    "tokenizer_class": FOLLOWED,
    "added_tokens_decoder": FOLLOWED,
    "model_max_length": FOLLOWED,
    "max_len": FOLLOWED,
    "truncation_side": FOLLOWED,
    "padding_side": (None, "right"),
    "pad_token_type_id": (None, 0),
    "split_special_tokens": (None, False),
    **dict.fromkeys(
        (
            *("name_or_path", "tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"),
            *("model_input_names", "clean_up_tokenization_spaces", "backend", "is_local", "local_files_only"),
            *(
                "processor_class",
                "use_fast",
                "auto_map",
                "chat_template",
                "init_inputs",
                "errors",
                "model_type",
            ),
            *("max_length", "stride", "truncation", "truncation_strategy", "padding", "pad_to_multiple_of"),
            *(
                "transformers_version",
                "return_token_type_ids",
                "trim_offsets",
                "add_bos_token",
                "add_eos_token",
            ),
            *("verbose", "full_tokenizer_file", "special_tokens", "device_map", "vocab_size", "legacy"),
        ),
        HARMLESS,
    ),
}


class Kind(NamedTuple):
    """A type of tokenizer: its classes, the names of its special tokens by role, and the rest of its tokenizer_config.json."""

    classes: frozenset[str]
    names: Mapping[str, str]
    table: Table


def _classes(models: str) -> frozenset[str]:
    """The tokenizer classes of some models, and those that follow tokenizer.json."""
    kinds = ("", "Fast", "Legacy")
    named = {f"{model}Tokenizer{kind}" for model in models.split() for kind in kinds}
    return frozenset(named | {"PreTrainedTokenizerFast", "TokenizersBackend"})


# Classes that split text as WordPiece and SentencePiece do, and as byte-level BPE does.
_WORDPIECE_CLASSES = _classes("Albert Bert ConvBert DistilBert Electra Lxmert MobileBert SqueezeBert")
_BERT_NAMES = {"unknown": "[UNK]", "end": "[SEP]", "padding": "[PAD]", "start": "[CLS]", "mask": "[MASK]"}
# These settings of WordPiece and SentencePiece say nothing to the other.
_BERT_TABLE: Table = {
    "do_lower_case": FOLLOWED,
    "clean_text": (None, True),
    "keep_accents": (None, False),
    "do_basic_tokenize": (None, True),
    "never_split": (None, []),
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
    "wordpieces_prefix": (None, "##"),
    "sp_model_kwargs": (None, {}),
    "remove_space": (None, True),
    **dict.fromkeys(("mecab_kwargs", "sudachi_kwargs", "jumanpp_kwargs"), (None, {})),
}
WORDS = "WordTokenizer"  # the class of a vocabulary of whole words, ours
WORDPIECE, BYTE_LEVEL, WORD_BPE, PIECES = "WordPiece", "byte-level BPE", "BPE of words", "SentencePiece"
KINDS = {
    WORDPIECE: Kind(
        _WORDPIECE_CLASSES,
        _BERT_NAMES,
        _BERT_TABLE
        | {"add_prefix_space": HARMLESS}
        | dict.fromkeys(("strip_accents", "tokenize_chinese_chars", "max_input_chars_per_word"), FOLLOWED),
    ),
    BYTE_LEVEL: Kind(
        _classes("Roberta Longformer Bart"),
        {"unknown": "<unk>", "end": "</s>", "padding": "<pad>", "start": "<s>", "mask": "<mask>"},
        {"add_prefix_space": FOLLOWED, "do_lower_case": (None, False)},
    ),
    WORD_BPE: Kind(_classes("OpenAIGPT"), GPT_TOKENS, {"do_lower_case": FOLLOWED}),
    PIECES: Kind(
        _WORDPIECE_CLASSES,
        _BERT_NAMES | {"unknown": "<unk>", "padding": "<pad>"},
        _BERT_TABLE
        | {"add_prefix_space": (None, True)}
        | dict.fromkeys(("strip_accents", "tokenize_chinese_chars"), HARMLESS),
    ),
}
NAMED = FieldType(
    "a token", lambda value: isinstance(value, str) or (isinstance(value, dict) and TOKEN.accepts(value))
)


def tokens_of(value: Any) -> list[Any]:
    """The tokens of a key: one, a list, or an object of tokens by names of their own."""
    if isinstance(value, list) or NAMED.accepts(value):
        return value if isinstance(value, list) else [value]
    return [*value.values()]


TYPES: dict[str, FieldType] = {
    **dict.fromkeys(("bos_token", "eos_token", *ROLE_KEYS), or_null(NAMED)),
    **dict.fromkeys(
        ("additional_special_tokens", "extra_special_tokens"),
        FieldType(
            "a list of tokens, or an object of them",
            lambda value: (
                value is None or isinstance(value, list | dict) and all(map(NAMED.accepts, tokens_of(value)))
            ),
        ),
    ),
    "added_tokens_decoder": or_null(object_of(TOKEN)),
    "tokenizer_class": or_null(TEXT),
    "rules": or_null(OBJECT),
    **dict.fromkeys(("model_max_length", "max_len"), or_null(NUMBER)),
    "truncation_side": or_null(one_of(("left", "right"))),
    **dict.fromkeys(
        ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"), or_null(FLAG)
    ),
    "max_input_chars_per_word": or_null(integer(1, MOST_WORD_CHARACTERS)),
}
SENTENCE_TABLE: Table = {
    "max_seq_length": FOLLOWED,
    "do_lower_case": FOLLOWED,
    "transformer_task": (None, "feature-extraction", "sequence-classification"),
    **dict.fromkeys(("modality_config", "module_output_name", "processing_kwargs"), HARMLESS),
}
SENTENCE_TYPES = {"max_seq_length": or_null(integer(1, 2**31 - 1)), "do_lower_case": or_null(FLAG)}


def kind_of(vocabulary: Vocabulary) -> str:
    """A key of KINDS."""
    if vocabulary.sentencepiece is not None:
        return PIECES
    if vocabulary.merges is not None:
        return WORD_BPE if vocabulary.suffix else BYTE_LEVEL
    return WORDPIECE


def special_names(vocabulary: Vocabulary) -> dict[str, str]:
    """The special tokens of a vocabulary by role."""
    return {**KINDS[kind_of(vocabulary)].names, **vocabulary.rules.names}
