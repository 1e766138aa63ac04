"""Predictions of texts, drawn at random, as a task decodes them: for tests of what reads predictions and trains nothing."""

import json
from typing import Any

import numpy as np

from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging

Measured = tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]  # a task, predictions, raw examples
HOSTILE = (
    *(
        "</script><script>document.title = 1</script>",
        "$x_1$ and $y$",
        "\u202eשלום",
        "m" * 10_000,
        "\U0001f600",
    ),
    *("a\0b\x07c\x1b[31m", "", "=1+1", "-1", "@SUM(A1)", "\t=1+1", "＝1+1", "\"; '--"),
)


def strings(values: Any) -> np.ndarray:
    """Bytes in an array of objects, as predictions and raw examples have them."""
    return np.vectorize(str.encode, otypes=[object])(np.array(values, object))


def texts(count: int, *, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    words = "the soup was cold and the waiter is kind".split()
    return [" ".join(draw.choice(words, draw.integers(1, 30))) for _ in range(count)]


def classes(
    count: int,
    *,
    names: tuple[str, ...] = ("bad", "so-so", "good"),
    right: float = 0.8,
    seed: int = 0,
    **how: Any,
) -> Measured:
    draw, size = np.random.default_rng(seed), len(names)
    gold = draw.integers(0, size, count)
    chosen = np.where(draw.random(count) < right, gold, (gold + draw.integers(1, size, count)) % size)
    probabilities = np.full((count, size), 0.3 / size, np.float32)
    probabilities[np.arange(count), chosen] += np.float32(draw.uniform(0.1, 0.7, count))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    predictions = {"label": strings([names[i] for i in chosen]), "probabilities": probabilities}
    raw = {"text": strings(texts(count)), "label": gold.astype(np.int32)}
    return TextClassification(names, **how), predictions, raw


def sets(count: int, *, names: tuple[str, ...] = ("food", "price", "staff"), **how: Any) -> Measured:
    draw = np.random.default_rng(0)
    gold = np.float32(draw.random((count, len(names))) < 0.4)
    probabilities = np.float32(np.clip(0.6 * gold + 0.2 + draw.normal(0, 0.25, gold.shape), 0.01, 0.99))
    labels = np.where(probabilities > 0.5, strings(names), b"")
    raw = {"text": strings(texts(count)), "label": gold}
    return (
        TextClassification(names, label_type="multi", **how),
        {"labels": labels, "probabilities": probabilities},
        raw,
    )


def scores(count: int) -> Measured:
    draw = np.random.default_rng(0)
    gold = np.float32(draw.integers(0, 6, count))
    raw = {"text": strings(texts(count)), "label": gold}
    return TextClassification(label_type="score"), {"score": np.float32(gold + draw.normal(0, 1, count))}, raw


def answers(count: int, *, version: str) -> Measured:
    draw = np.random.default_rng(0)
    gold = (
        [["film"] if i % 3 else [] for i in range(count)]
        if version == "squad2.0"
        else [["film", "a plot"]] * count
    )
    best = draw.choice(["film", "the film ends", "plot", "scene"], count)
    odds = np.float32(draw.normal(0, 2, count))
    given = np.where((odds < 0) | (version == "squad1.1"), best, "")
    predictions = {"answer": strings(given), "nbest_answers": strings(best)[:, np.newaxis], "null_odds": odds}
    return QuestionAnswering(version), predictions, {"answers": strings([json.dumps(one) for one in gold])}


def tags(count: int) -> Measured:
    draw, names = np.random.default_rng(0), ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    lines = [draw.choice(names, draw.integers(1, 9)) for _ in range(2 * count)]
    other = [np.where(draw.random(len(line)) < 0.7, line, draw.choice(names, len(line))) for line in lines]
    gold, predicted = (
        strings(["\n".join(" ".join(line) for line in side[i : i + 2]) for i in range(0, 2 * count, 2)])
        for side in (lines, other)
    )
    return Tagging(names, scheme="IOB2"), {"tags": predicted}, {"tags": gold}


def masks(count: int) -> Measured:
    draw = np.random.default_rng(0)
    return FillMask(), {"rank": np.float32(draw.integers(0, 9, count))}, {"answer": strings(["film"] * count)}


def choices(count: int) -> Measured:
    draw = np.random.default_rng(0)
    gold, chosen = (draw.integers(0, 4, count).astype(np.int32) for _ in range(2))
    return MultipleChoice(), {"label": chosen}, {"label": gold}


ALL_SCORES = tuple(
    f"{score}_{of}" for score in ("precision", "recall", "f1") for of in ("macro", "micro", "weighted")
)
KINDS: dict[str, Measured] = {
    "class": classes(90, measures=("accuracy", "matthews", *ALL_SCORES, "f1_so-so")),
    "two classes": classes(50, names=("no", "yes"), measures=("f1", "precision", "recall")),
    "several": sets(70, measures=("accuracy", "f1", *ALL_SCORES, "recall_price")),
    "score": scores(60),
    "squad1.1": answers(40, version="squad1.1"),
    "squad2.0": answers(60, version="squad2.0"),
    "tags": tags(40),
    "masks": masks(50),
    "choice": choices(40),
}
