"""The settings of a tokenizer that change its ids, beside its vocabulary and its case. They need no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_keras.io.json_files import FLAG, FieldType, checked_fields, integer, list_of, one_of

# The special tokens of BERT's vocabularies.
PADDING, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
ROLES = ("padding", "unknown", "start", "end", "mask")
# GPT's marks stand after its vocabulary, which lacks them; padding has the id of <unk>, and the mask tells it apart.
# Source: Radford et al. 2018, sec. 3.3; the names and their ids: openai/finetune-transformer-lm train.py.
GPT_FRAME = {"start": "_start_", "delimiter": "_delimiter_", "end": "_classify_"}
GPT_TOKENS = {"padding": "<unk>", "unknown": "<unk>", **GPT_FRAME}
# The limit of a word in characters; a longer word is one [UNK] (google-research/bert tokenization.py).
MAX_WORD_CHARACTERS = 200
# The ops of a tokenizer's graph, which give equal ids: TensorFlow Text's, or TensorFlow's own, by the variable.
TEXT_OPS = TENSORFLOW_TEXT, CORE = "tensorflow-text", "core"
TEXT_OPS_VARIABLE = "BERT_KERAS_TEXT_OPS"
NEW_WORDS = CLASS, OWN = "unknown", "own"  # what a vocabulary of whole words gives to a new word
MOST_WORD_CHARACTERS = 999  # the largest limit; a regular expression counts no further


class AddedToken(NamedTuple):
    """A token that is found in text before the rest of the text is split, as the library `tokenizers` does.

    content: its text
    single_word: it is found only where no letter, digit, mark or _ stands directly before or after it
    lstrip, rstrip: it takes the white space before it, and after it
    normalized: it is looked for in the normal form of the text, after the tokens that are looked for in the text as given
    special: it is a mark and no word, so that masking never puts it in the place of a token
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFormat:
    """The form of two segments in one sequence.

    separators: the number of `end` tokens between the segments
    second_type: the type id of the second segment; the first has 0
    """

    separators: int
    second_type: int

    def added(self, segments: int) -> int:
        """The number of special tokens in a sequence of one or two segments."""
        return 2 + (segments - 1) * self.separators


BERT_PAIR = PairFormat(separators=1, second_type=1)  # [CLS] A [SEP] B [SEP]
ROBERTA_PAIR = PairFormat(separators=2, second_type=0)  # <s> A </s></s> B </s>


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings of a tokenizer. The defaults are those of the original models.

    added: tokens that are whole in text; a token that the vocabulary lacks gets the next id, in this order
    names: role (one of ROLES) -> its token, where it is not the token of the original
    pair: the form of two segments; None is the form of the original
    left: True to cut the start of a text that is too long, False to cut its end
    clean_text: WordPiece: remove control characters
    split_chinese: WordPiece: each CJK ideograph is a word
    strip_accents: WordPiece: remove the characters of this Unicode class, "Mn" or "M", from the decomposed text; "" removes
        none; None is "Mn" for a tokenizer that lower-cases, else ""
    decompose: WordPiece: the decomposition before it, "NFD" or "NFKD"
    max_word: WordPiece: the limit of a word in characters; a longer word is one [UNK]
    prefix_space: byte-level BPE: put a space before a text that has none
    characters: the bytes of a word that an encoder reads beside its id, as BertConfig.max_characters; 0 for none
    new_words: WordPiece: one of NEW_WORDS makes each word whole. A word that the vocabulary lacks is then [UNK] or its class, or
        has an id of its own (see `word_tokenizer`). "" splits words into tokens
    """

    added: tuple[AddedToken, ...] = ()
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pair: PairFormat | None = None
    left: bool = False
    clean_text: bool = True
    split_chinese: bool = True
    strip_accents: str | None = None
    decompose: str = "NFD"
    max_word: int = MAX_WORD_CHARACTERS
    prefix_space: bool = False
    characters: int = 0
    new_words: str = ""

    def beyond(self, vocabulary: tuple[str, ...]) -> tuple[str, ...]:
        """The added tokens that a vocabulary lacks, in the order of their ids."""
        there = {*vocabulary}
        return tuple(dict.fromkeys(token.content for token in self.added if token.content not in there))

    @property
    def splits_as_original(self) -> bool:
        """WordPiece: True if text is split into words as the original does."""
        return self.clean_text and self.split_chinese

    def accents(self, *, lower_case: bool) -> str:
        """The Unicode class of the characters to remove, "" for none."""
        return ("Mn" if lower_case else "") if self.strip_accents is None else self.strip_accents

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changed = {name: value for name, value in fields.items() if value != getattr(Rules(), name)}
        plain = {
            "added": [[*token] for token in self.added],
            "names": dict(self.names),
            "pair": self.pair and [self.pair.separators, self.pair.second_type],
        }
        return {name: plain.get(name, value) for name, value in changed.items()}

    @classmethod
    def from_json(cls, fields: Any) -> Rules:
        """The inverse of `to_json`. Raises BertKerasError for an unknown field, and for a value of another type."""
        given = checked_fields(fields, _KINDS, where="the rules of a tokenizer", optional=_KINDS)
        if "added" in given:
            given["added"] = tuple(AddedToken(*token) for token in given["added"])
        if "pair" in given:
            given["pair"] = PairFormat(separators=given["pair"][0], second_type=given["pair"][1])
        return cls(**given)


def _is_added(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == len(AddedToken._fields)
        and isinstance(value[0], str)
        and all(isinstance(flag, bool) for flag in value[1:])
    )


def _is_names(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and {*value} <= {*ROLES}
        and all(isinstance(one, str) for one in value.values())
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and tuple(value) in ((1, 0), (1, 1), (2, 0), (2, 1))


_KINDS: dict[str, FieldType] = {
    "added": list_of(FieldType("a token and its five flags", _is_added)),
    "names": FieldType("a token for some of " + ", ".join(ROLES), _is_names),
    "pair": FieldType("the separators, 1 or 2, and the second type, 0 or 1", _is_pair),
    "left": FLAG,
    "clean_text": FLAG,
    "split_chinese": FLAG,
    "strip_accents": one_of(("", "Mn", "M")),
    "decompose": one_of(("NFD", "NFKD")),
    "max_word": integer(1, MOST_WORD_CHARACTERS),
    "prefix_space": FLAG,
    "characters": integer(0, 1_024),
    "new_words": one_of(NEW_WORDS),
}
