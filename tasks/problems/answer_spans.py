"""The best answers to questions, in graph: from logits of windows to spans of bytes and characters.

In: logits float32 [W, 2, S], features of windows, contexts string [B]. Out: the n best spans of each context, [B, N].
Source: google-research/bert run_squad.py; Devlin et al. 2019, sec. 4.3.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from bert_keras.features import END_BYTES, EXAMPLE_INDEX, MAX_CONTEXT, START_BYTES
from bert_keras.text.characters import to_characters

# The answer's characters and bytes in the context, the end exclusive.
OFFSETS = ("start", "end", "start_byte", "end_byte")
START_BYTE, END_BYTE = OFFSETS[2:]
# The n best: answers, probabilities and OFFSETS.
NBEST = (
    *("nbest_answers", "nbest_probabilities", "nbest_character_starts", "nbest_character_ends"),
    *("nbest_starts", "nbest_ends"),
)
NO_SPAN = -1e9  # the score of an illegal span: far below any sum of two logits
# The sum of a start and an end logit: of each of the n best, and of no answer.
NBEST_SCORES, NULL_SCORE = "nbest_scores", "null_score"


class Spans(NamedTuple):
    """Spans of the contexts [B, N] by falling score: score float32, first byte and end byte int32."""

    scores: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


def best_spans(
    outputs: tf.Tensor,
    features: dict[str, tf.Tensor],
    *,
    count: tf.Tensor,
    n_best: int,
    max_answer_length: int,
) -> Spans:
    """The n_best best spans of each example, [B, N], from logits float32 [W, 2, S] of its windows.

    A score is the sum of a start and an end logit. A legal span lies in the context, has at most `max_answer_length` tokens and
    starts at a token with maximum context. Illegal spans score about NO_SPAN.
    """
    width, longest = tf.shape(outputs)[2], max_answer_length
    starts = tf.where(features[MAX_CONTEXT] > 0, outputs[:, 0], NO_SPAN)
    ends = tf.where(features[END_BYTES] >= 0, outputs[:, 1], NO_SPAN)
    ends = tf.pad(ends, [[0, 0], [0, longest - 1]], constant_values=NO_SPAN)
    reach = tf.range(width)[:, tf.newaxis] + tf.range(longest)  # [S, A]: the possible ends of each start
    spans = starts[:, :, tf.newaxis] + tf.gather(ends, reach, axis=1)  # [W, S, A]
    kept = tf.minimum(n_best, width * longest)
    scores, flat = tf.math.top_k(tf.reshape(spans, [tf.shape(spans)[0], width * longest]), kept)
    first = flat // longest
    last = tf.minimum(first + flat % longest, width - 1)  # only illegal spans exceed the width

    def by_example(values: tf.Tensor, default: Any) -> tf.Tensor:
        """[W, kept] -> [B, at least N]."""
        rows = tf.RaggedTensor.from_value_rowids(values, features[EXAMPLE_INDEX], nrows=count)
        dense = rows.to_tensor(default)
        dense = tf.reshape(dense, [count, tf.shape(dense)[1] * kept])
        return tf.pad(dense, [[0, 0], [0, n_best]], constant_values=default)

    scores, chosen = tf.math.top_k(by_example(scores, NO_SPAN), n_best)

    def bytes_at(name: str, positions: tf.Tensor) -> tf.Tensor:
        offsets = by_example(tf.gather(features[name], positions, batch_dims=1), -1)
        return tf.gather(offsets, chosen, batch_dims=1)

    return Spans(scores, bytes_at(START_BYTES, first), bytes_at(END_BYTES, last))


def list_nbest(spans: Spans, context: tf.Tensor, null_scores: tf.Tensor | None) -> dict[str, tf.Tensor]:
    """The n best answers [B, N] of `QuestionAnswering.decode`, and "null_odds" [B] where null_scores float32 [B] are given."""
    found = spans.scores > NO_SPAN / 2
    starts, ends = tf.where(found, spans.starts, -1), tf.where(found, spans.ends, -1)
    ranked = [spans.scores] if null_scores is None else [spans.scores, null_scores[:, tf.newaxis]]
    probabilities = tf.nn.softmax(tf.concat(ranked, axis=1))[:, : spans.scores.shape[1]]
    answers = tf.strings.substr(context[:, tf.newaxis], tf.maximum(starts, 0), ends - starts)
    characters = (to_characters(context, offsets) for offsets in (starts, ends))
    columns = (answers, tf.where(found, probabilities, 0.0), *characters, starts, ends)
    nbest = dict(zip(NBEST, columns, strict=True))
    if null_scores is not None:
        nbest["null_odds"] = tf.where(found[:, 0], null_scores - spans.scores[:, 0], -NO_SPAN)
    return nbest


def best_answer(nbest: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """The first of the n best."""
    return dict(zip(("answer", "score", *OFFSETS), (nbest[name][:, 0] for name in NBEST), strict=True))


def answer_or_none(nbest: Mapping[str, Any], *, tau: float) -> dict[str, tf.Tensor]:
    """The best answer where the null odds are under -tau; otherwise no answer: "" and -1."""
    best, odds = best_answer(nbest), tf.convert_to_tensor(nbest["null_odds"])
    # In float32 the middle of two odds could equal one of them.
    answered = tf.cast(odds, tf.float64) < -tau
    null_probability = 1 - tf.reduce_sum(nbest["nbest_probabilities"], axis=1)
    return {
        "answer": tf.where(answered, best["answer"], ""),
        "score": tf.where(answered, best["score"], null_probability),
        **{name: tf.where(answered, best[name], -1) for name in OFFSETS},
        "no_answer_probability": tf.sigmoid(odds + tau),
    }
