"""The interface of a tokenizer: a text in, ids and byte offsets out."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io.other_names import FEATURES, AnswersOtherNames
from bert_keras.io.signals import tracing
from bert_keras.text.added_tokens import AddedTokens, Columns
from bert_keras.text.rules import BERT_PAIR, AddedToken, Rules
from bert_keras.text.vocabulary import Vocabulary

# Texts -> texts as a tokenizer normalizes them before it looks for tokens: the input for learning a vocabulary.
Normalizer = Callable[[Sequence[str]], list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The ids of the special tokens; mask is None in a vocabulary without one.

    delimiter: stands between two segments, in GPT; None in a vocabulary where `end` does
    """

    padding: int
    unknown: int
    start: int
    end: int
    mask: int | None = None
    delimiter: int | None = None

    @property
    def mask_id(self) -> int:
        """The id of the mask. Raises BertKerasError if the vocabulary has none."""
        if self.mask is None:
            raise BertKerasError(
                "the vocabulary has no mask token, which masked texts need; use another checkpoint."
            )
        return self.mask

    @property
    def between(self) -> int:
        """The id that stands between two segments."""
        return self.end if self.delimiter is None else self.delimiter

    @property
    def ids(self) -> set[int]:
        """All ids."""
        return {one for one in dataclasses.astuple(self) if one is not None}


def find_special(
    vocabulary: Sequence[str], names: Mapping[str, str], *, model: str, source: str
) -> SpecialTokens:
    """The special tokens of a vocabulary. names: role -> token. Raises BertKerasError if one is missing, except the mask."""
    ids = {token: i for i, token in enumerate(vocabulary)}
    if missing := [token for role, token in names.items() if token not in ids and role != "mask"]:
        raise BertKerasError(
            f"{source}: {', '.join(missing)} missing; {model} needs {' '.join(names.values())}"
        )
    return SpecialTokens(**{role: ids.get(token) for role, token in names.items()})  # type: ignore[arg-type]


class Tokenizer(AnswersOtherNames, tf.Module):
    """The methods and properties that preprocessing, masking, the tasks and checkpoints use; both methods run in graph.

    vocabulary: the model's own tokens in the order of their ids; those of the added tokens follow
    names: the special tokens by role
    whole: special tokens that are whole in text

    before_mask: a pattern of the end of a text that a mask after it takes
    trims: True leaves white space out of the offsets of added tokens
    """

    own_pair = BERT_PAIR
    before_mask = "$^"  # nothing
    trims = False

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        special: SpecialTokens,
        lower_case: bool,
        rules: Rules = Rules(),  # noqa: B008  frozen
        names: Mapping[str, str] | None = None,
        whole: Sequence[AddedToken] = (),
    ) -> None:
        super().__init__()
        self.special, self.rules, self.lower_case = special, rules, lower_case
        self.pair = rules.pair or self.own_pair
        # A function hides the tuple: TensorFlow would visit every item each time it lists the module's variables.
        own = tuple(vocabulary)
        fixed = (*own, *rules.beyond(own))
        self._own, self._vocabulary = (lambda: own), (lambda: fixed)
        self.vocab_size = len(fixed)
        roles = {*(names or {}).values()}
        added = (*whole, *(token for token in rules.added if token.content not in roles))
        ids = {token: i for i, token in enumerate(fixed)}
        # Of two tokens with one text the first counts.
        tokens = [*{token.content: (token, ids[token.content]) for token in reversed(added)}.values()][::-1]
        self._normalized = lambda: [found for found in tokens if found[0].normalized]
        self._find_in_text = AddedTokens(
            {token.content: (token, id_) for token, id_ in tokens if not token.normalized}, trims=self.trims
        )
        # A decorator would hold the instance weakly, and `WordPiece(...).tokenize(...)` would find it deleted.
        for method in (self.tokenize, self.tokenize_with_offsets):
            # A new object: TensorFlow would count the traces of all tokenizers as retracing of one function.
            traced = functools.partial(tracing()(method))
            graph = tf.function(traced, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
            setattr(self, method.__name__, graph)

    def __call__(self, *texts: Any, **options: Any) -> NoReturn:
        """Raises BertKerasError: a tokenizer is called in other libraries."""
        raise BertKerasError(f"a {type(self).__name__} is not called; {FEATURES} gives what a model reads.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size:,} tokens, lower_case={self.lower_case})"

    @property
    def own_vocabulary(self) -> tuple[str, ...]:
        """The model's own tokens, without added tokens that it lacks."""
        return self._own()

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens in the order of their ids."""
        return self._vocabulary()

    @property
    def digest(self) -> str:
        """SHA-256 of the vocabulary, one token per line, and of settings that the original lacks.

        Tokenizers with equal `digest` and `lower_case` give equal ids.
        """
        return digest_lines((*self._digested(), *self._ruled()))

    def _digested(self) -> tuple[str, ...]:
        return self.vocabulary

    def _ruled(self) -> tuple[str, ...]:
        """The settings as lines of a digest; none for those of the original."""
        return ("", json.dumps(rules, sort_keys=True)) if (rules := self.rules.to_json()) else ()

    @property
    def continues(self) -> np.ndarray:
        """Bool [V], tokens that continue a word."""
        raise NotImplementedError

    @property
    def real(self) -> np.ndarray:
        """Int32 [R], ids that can occur in text: no special tokens."""
        raise NotImplementedError

    @property
    def texts(self) -> tuple[bytes, ...]:
        """The bytes of each token in a text, with a space before a token that starts a word."""
        raise NotImplementedError

    def to_vocabulary(self) -> Vocabulary:
        """All that makes the tokenizer, for its files."""
        return Vocabulary(tokens=self.own_vocabulary, lower_case=self.lower_case, rules=self.rules)

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Ids alone, the fast path. text: string [B], UTF-8 -> ragged int32 [B, (T)]. Invalid bytes are dropped."""
        return self._find_in_text(text, lambda part: (self._ids(part),))[0]

    def tokenize_with_offsets(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """text: string [B] -> three ragged int32 [B, (T)]: ids, start bytes and end bytes (exclusive) in `text` as given."""
        return tuple(self._find_in_text(text, self._with_offsets))

    def _ids(self, text: tf.Tensor) -> tf.RaggedTensor:
        """`tokenize` of text without tokens that are found in the text as given."""
        raise NotImplementedError

    def _with_offsets(self, text: tf.Tensor) -> Columns:
        """`tokenize_with_offsets` of such text."""
        raise NotImplementedError

    @property
    def _marks(self) -> set[int]:
        """The ids of the special tokens and of added tokens that are special."""
        marks = {token.content for token in self.rules.added if token.special}
        return self.special.ids | {i for i, token in enumerate(self.vocabulary) if token in marks}

    def _find_normalized(self, contents: Callable[[list[str]], list[str]]) -> AddedTokens:
        """The tokens that are found in the normal form. contents: their texts -> the normal forms of these."""
        tokens = self._normalized()[::-1]  # of two tokens with one form the first counts
        forms = contents([token.content for token, _ in tokens]) if tokens else []
        return AddedTokens(dict(zip(forms, tokens, strict=True)), trims=self.trims)

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without special tokens: `tokenize` for a Python string."""
        return self.tokenize(tf.constant([text])).values.numpy().tolist()

    def detokenize(self, ids: Iterable[int]) -> str:
        """Ids -> text as the tokenizer normalizes it, without padding and the special tokens at the ends of segments.

        Unknown tokens stay.

        Raises ValueError for an id outside the vocabulary.
        """
        special = self.special
        left_out = {special.padding, special.start, special.between, special.end} - {special.unknown}
        kept = [int(one) for one in ids if int(one) not in left_out]
        if unknown := [one for one in kept if not 0 <= one < self.vocab_size]:
            raise BertKerasError(f"id {unknown[0]} is not in the vocabulary of {self.vocab_size} tokens.")
        return self._joined([self.vocabulary[one] for one in kept])

    def __reduce__(self) -> tuple[Callable[[], Tokenizer], tuple[()]]:
        """Pickles what `__init__` takes: another process makes graphs of its own."""
        return functools.partial(type(self), **self._arguments()), ()

    def _arguments(self) -> dict[str, Any]:
        """The arguments of `__init__`, by name."""
        raise NotImplementedError

    def _joined(self, pieces: Sequence[str]) -> str:
        """The text of tokens."""
        raise NotImplementedError


def digest_lines(lines: Iterable[str]) -> str:
    """SHA-256 of lines, in hex."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
