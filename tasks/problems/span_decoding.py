"""Chooses answer spans from start and end logits, in graph.

Source: google-research/bert run_squad.py; Devlin et al. 2019, sec. 4.3.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from bert_keras.features import END_BYTES, EXAMPLE_INDEX, MAX_CONTEXT, START_BYTES

# The answer's bytes in the context, the end exclusive.
START_BYTE, END_BYTE = "start_byte", "end_byte"
# The score of an illegal span: far below any sum of two logits.
NO_SPAN = -1e9


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
    first_bytes = by_example(tf.gather(features[START_BYTES], first, batch_dims=1), -1)
    end_bytes = by_example(tf.gather(features[END_BYTES], last, batch_dims=1), -1)
    return Spans(
        scores, tf.gather(first_bytes, chosen, batch_dims=1), tf.gather(end_bytes, chosen, batch_dims=1)
    )


def list_nbest(spans: Spans, context: tf.Tensor, null_scores: tf.Tensor | None) -> dict[str, tf.Tensor]:
    """The n best answers [B, N] of `QuestionAnswering.decode`, and "null_odds" [B] where null_scores float32 [B] are given."""
    found = spans.scores > NO_SPAN / 2
    starts, ends = tf.where(found, spans.starts, -1), tf.where(found, spans.ends, -1)
    ranked = [spans.scores] if null_scores is None else [spans.scores, null_scores[:, tf.newaxis]]
    probabilities = tf.nn.softmax(tf.concat(ranked, axis=1))[:, : spans.scores.shape[1]]
    nbest = {
        "nbest_answers": tf.strings.substr(context[:, tf.newaxis], tf.maximum(starts, 0), ends - starts),
        "nbest_starts": starts,
        "nbest_ends": ends,
        "nbest_probabilities": tf.where(found, probabilities, 0.0),
    }
    if null_scores is not None:
        nbest["null_odds"] = tf.where(found[:, 0], null_scores - spans.scores[:, 0], -NO_SPAN)
    return nbest


def best_answer(nbest: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """The first of the n best."""
    names = ("nbest_answers", "nbest_probabilities", "nbest_starts", "nbest_ends")
    answer, score, start, end = (nbest[name][:, 0] for name in names)
    return {"answer": answer, "score": score, START_BYTE: start, END_BYTE: end}


def answer_or_none(nbest: Mapping[str, Any], *, tau: float) -> dict[str, tf.Tensor]:
    """The best answer where the null odds are under -tau; otherwise no answer: "" and -1."""
    best, odds = best_answer(nbest), tf.convert_to_tensor(nbest["null_odds"])
    # In float32 the middle of two odds could equal one of them.
    answered = tf.cast(odds, tf.float64) < -tau
    null_probability = 1 - tf.reduce_sum(nbest["nbest_probabilities"], axis=1)
    return {
        "answer": tf.where(answered, best["answer"], ""),
        "score": tf.where(answered, best["score"], null_probability),
        START_BYTE: tf.where(answered, best[START_BYTE], -1),
        END_BYTE: tf.where(answered, best[END_BYTE], -1),
        "no_answer_probability": tf.sigmoid(odds + tau),
    }
