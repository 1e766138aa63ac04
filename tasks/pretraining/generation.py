"""Continues texts with a language model that reads from the left: GPT, ULMFiT's AWD-LSTM, or BERT's blocks in that direction.

    texts -> ids of each -> TextGenerator: [encoder -> logits of the next token -> `choose`] x tokens -> Continuations

Greedy takes the most probable token; sampling draws one from the softmax, or from its most probable part (Holtzman et al. 2020).

Unlike faster programs, no keys and values are kept: each new token computes the states of all tokens before it again. That is
one pass over the text for each token, and the same code for attention and LSTM.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, SEQUENCE_OUTPUT
from bert_keras.model.encoder import BertEncoder, gather_positions
from bert_keras.model.encoders import make_encoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.tasks.ancestors.language_model import NextWords, NextWordsHead, directions_of
from bert_keras.tasks.options import GenerationOptions

# -----------------------------------------------------------------------------------------------------------
# One token


def kept_probabilities(logits: np.ndarray, options: GenerationOptions) -> np.ndarray:
    """The probabilities of the tokens that may be drawn, which do not sum to 1; 0 for the others.

    logits: float [B, V], each row from the largest down -> float64 [B, V]
    """
    ranks = np.arange(logits.shape[1])
    scores = (logits - logits[:, :1]).astype(np.float64) / (options.temperature or 1.0)
    rates = np.where(ranks < (options.top_k or len(ranks)), np.exp(scores), 0.0)
    rates /= rates.sum(axis=1, keepdims=True)
    before = np.cumsum(rates, axis=1) - rates
    return np.where(before < (options.top_p or np.inf), rates, 0.0)


def choose(logits: np.ndarray, draws: np.ndarray, options: GenerationOptions) -> np.ndarray:
    """The next token of each row: float [B, V] -> int [B]. Of equal logits the lower id comes first.

    draws: float [B] in [0, 1): the token is that at which the sum of the probabilities, from the largest down, passes the draw
    """
    if options.greedy:
        return logits.argmax(axis=1)
    order = np.argsort(-logits, axis=1, kind="stable")
    rates = kept_probabilities(np.take_along_axis(logits, order, axis=1), options)
    sums = np.cumsum(rates, axis=1)
    ranks = (sums <= draws[:, None] * sums[:, -1:]).sum(axis=1)
    ranks = np.minimum(ranks, (rates > 0).sum(axis=1) - 1)  # a draw next to 1 is rounded to 1
    return np.take_along_axis(order, ranks[:, None], axis=1)[:, 0]


def draws_of(row: int, options: GenerationOptions) -> np.ndarray:
    """The draws of a row, float64 [tokens]: they depend on the seed and the row's number, and not on its batch."""
    return np.random.default_rng((options.seed, row)).random(options.tokens)


# -----------------------------------------------------------------------------------------------------------
# The model


def language_model(checkpoint: checkpoints.Checkpoint) -> tuple[BertEncoder, Callable[[Any], Any]]:
    """The encoder, and the function of its states, float [B, N, H] -> the logits of the next tokens, float32 [B, N, V].

    Raises BertKerasError for a checkpoint that does not predict each token from those before it alone.
    """
    config, parts = checkpoint.config, {name.split("/")[0] for name in checkpoint.tensors}
    if directions_of(config) != 1 or config.max_characters or config.bilstm:
        raise BertKerasError(
            f"{checkpoint.prefix}the encoder {config.encoder} does not read from left to right alone, and a text is continued "
            "from the left; give a run of `pretrain --recipe gpt`, ulmfit or ltr-no-nsp, or the checkpoint of a GPT."
        )
    encoder: BertEncoder = make_encoder(config, outputs=(SEQUENCE_OUTPUT,))
    if NextWords.name in parts:
        words = NextWordsHead(encoder, tied=f"{NextWords.name}/table" not in checkpoint.tensors)
        checkpoints.assign(checkpoint, encoder, **{NextWords.name: words})
        return encoder, words.scores
    if "masked_lm" not in parts and not config.plain_heads:
        raise BertKerasError(
            f"{checkpoint.prefix}the checkpoint has no head that predicts the next token: it is fine-tuned, or learned "
            "something else; give the run of `pretrain` before it."
        )
    head = MaskedLMHead(encoder)
    checkpoints.assign(checkpoint, encoder, masked_lm=head)
    return encoder, head


class Continuation(NamedTuple):
    """The new text, which stands directly after the given one; its tokens; and True if the model chose the end of the text."""

    continuation: str
    tokens: list[str]
    ended: bool


class TextGenerator:
    """A language model with the weights of a pre-training: texts -> their continuations.

    Each text stands after the start token, if the model has one. Special tokens are never chosen, but for the end token, which
    ends a text and is left out.
    """

    def __init__(
        self,
        checkpoint: checkpoints.Checkpoint,
        options: GenerationOptions = GenerationOptions(),  # noqa: B008  frozen
    ) -> None:
        self.tokenizer, self.options, self.named = (
            checkpoints.tokenizer_of(checkpoint),
            options,
            checkpoint.prefix,
        )
        self.encoder, self._logits = language_model(checkpoint)
        size, special = checkpoint.config.vocab_size, self.tokenizer.special
        # A tokenizer may have marks that the model has no vectors for: those of fine-tuning.
        self.start = [one for one in (special.start,) if one < size]
        allowed = np.array([one for one in (*self.tokenizer.real, special.end) if one < size])
        self._forbidden = np.full(size, -np.inf, np.float32)
        self._forbidden[allowed] = 0.0
        signature = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]
        self.next_logits = tf.function(self._next_logits, input_signature=signature, autograph=False)

    def _next_logits(self, ids: Any, lengths: Any) -> Any:
        """The logits of the token after the first `lengths` of each row: int32 [B, S], int32 [B] -> float32 [B, V]."""
        features = {
            INPUT_WORD_IDS: ids,
            INPUT_MASK: tf.sequence_mask(lengths, tf.shape(ids)[1], tf.int32),
            INPUT_TYPE_IDS: tf.zeros_like(ids),
        }
        states = self.encoder(features)[SEQUENCE_OUTPUT]
        return self._logits(gather_positions(states, lengths[:, tf.newaxis] - 1))[:, 0]

    def __call__(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 32,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Continuation]:
        """The continuations, in the order of the texts; texts of about one length are computed together.

        Raises BertKerasError as `continue_ids` does.
        """
        if not texts:
            return []
        rows = self.tokenizer.tokenize(tf.constant([*texts])).to_list()
        prompts = [[*self.start, *ids] for ids in rows]
        found = self.continue_ids(prompts, batch_size=batch_size, progress=progress)
        return [self._described(ids, new) for ids, new in zip(prompts, found, strict=True)]

    def _described(self, ids: list[int], new: list[int]) -> Continuation:
        kept = [one for one in new if one != self.tokenizer.special.end]
        before, whole = self.tokenizer.detokenize(ids), self.tokenizer.detokenize([*ids, *kept])
        text = whole[len(before) :] if whole.startswith(before) else f" {self.tokenizer.detokenize(kept)}"
        return Continuation(text, [self.tokenizer.vocabulary[one] for one in kept], len(kept) < len(new))

    def continue_ids(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        batch_size: int = 32,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[list[int]]:
        """The new ids of each prompt, at most `tokens`; the end token is the last, if it was chosen.

        Raises BertKerasError for a prompt without tokens, or so long that the model has no positions for its continuation.
        """
        self._check(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        found = dict[int, list[int]]()
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            found |= zip(rows, self._continue_batch([prompts[i] for i in rows], rows), strict=True)
            progress(len(rows))
        return [found[i] for i in range(len(prompts))]

    def _check(self, prompts: Sequence[Sequence[int]]) -> None:
        most, tokens = self.encoder.config.max_length, self.options.tokens
        for number, prompt in enumerate(prompts, start=1):
            if not prompt:
                raise BertKerasError(
                    f"{self.named}text {number} has no token, and the model has no start token; give at least a word."
                )
            if len(prompt) + tokens > most:
                raise BertKerasError(
                    f"{self.named}text {number} has {len(prompt):,} tokens, and {tokens:,} more do not fit max_positions: the "
                    f"model reads {most:,}; give fewer tokens, or a shorter text."
                )

    def _continue_batch(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> list[list[int]]:
        """rows: the numbers of the prompts, for their draws."""
        given = np.array([len(one) for one in prompts], np.int32)
        ids = np.full(
            (len(prompts), given.max() + self.options.tokens), self.tokenizer.special.padding, np.int32
        )
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        draws = np.stack([draws_of(row, self.options) for row in rows])
        lengths, ended = given.copy(), np.zeros(len(prompts), bool)
        for n in range(self.options.tokens):
            logits = self.next_logits(ids[:, : lengths.max()], lengths).numpy() + self._forbidden
            chosen = choose(logits, draws[:, n], self.options)
            open_ = np.flatnonzero(~ended)
            ids[open_, lengths[open_]] = chosen[open_]
            lengths[open_] += 1
            ended[open_] = chosen[open_] == self.tokenizer.special.end
            if ended.all():
                break
        return [row[old:new].tolist() for row, old, new in zip(ids, given, lengths, strict=True)]
