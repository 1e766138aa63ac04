"""Makes metrics.json: labels, predictions and their measures, computed from the definitions in fractions.

    python tests/golden/make_metrics_golden.py

Needs nothing but Python. Only the last step of a correlation, one square root and one division, is rounded.
"""

import json
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

Values = Sequence[float]


def accuracy(labels: Values, predictions: Values) -> float:
    return float(Fraction(sum(a == b for a, b in zip(labels, predictions, strict=True)), len(labels)))


def f1(labels: Values, predictions: Values) -> float:
    """2 TP / (2 TP + FP + FN), of class 1."""
    hits = sum(a == b == 1 for a, b in zip(labels, predictions, strict=True))
    asked = sum(a == 1 for a in labels) + sum(b == 1 for b in predictions)
    return float(Fraction(2 * hits, asked)) if asked else 0.0


def matthews(labels: Values, predictions: Values) -> float:
    """R_K: the covariance of the one-hot labels and predictions over the root of both variances."""
    classes = sorted({*labels, *predictions})
    columns = [([a == k for a in labels], [b == k for b in predictions]) for k in classes]
    return _ratio(*(sum(_covariance(c[i], c[j]) for c in columns) for i, j in ((0, 1), (0, 0), (1, 1))))


def pearson(labels: Values, predictions: Values) -> float:
    return _ratio(
        _covariance(labels, predictions), _covariance(labels, labels), _covariance(predictions, predictions)
    )


def spearman(labels: Values, predictions: Values) -> float:
    return pearson(_ranks(labels), _ranks(predictions))


def _covariance(left: Values, right: Values) -> Fraction:
    n = len(left)
    products = sum((Fraction(a) * Fraction(b) for a, b in zip(left, right, strict=True)), Fraction())
    return products / n - sum(map(Fraction, left), Fraction()) * sum(map(Fraction, right), Fraction()) / n**2


def _ratio(covariance: Fraction, left: Fraction, right: Fraction) -> float:
    return float(covariance) / math.sqrt(left * right) if left and right else 0.0


def _ranks(values: Values) -> list[float]:
    """From 1; equal values share the mean of their places."""
    return [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]


DEFINITIONS: dict[str, Callable[[Values, Values], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def draw(kind: str, count: int, generator: random.Random) -> tuple[list[float], list[float]]:
    """Labels, and predictions that agree with about half of them: class ids 0..2 or 0..1, or scores."""
    if kind == "scores":
        labels = [generator.randrange(26) / 5 for _ in range(count)]
        return labels, [label / 2 + generator.randrange(128) / 32 for label in labels]
    classes = {"two classes": 2, "three classes": 3}[kind]
    labels = [generator.randrange(classes) for _ in range(count)]
    return labels, [label if generator.random() < 0.5 else generator.randrange(classes) for label in labels]


MEASURES_OF = {
    "two classes": ("accuracy", "f1", "matthews"),
    "three classes": ("accuracy", "matthews"),
    "scores": ("pearson", "spearman"),
}


def main() -> None:
    generator = random.Random(20)
    cases = []
    for kind, measures in MEASURES_OF.items():
        labels, predictions = draw(kind, 40, generator)
        values = {name: DEFINITIONS[name](labels, predictions) for name in measures}
        cases.append({"kind": kind, "labels": labels, "predictions": predictions, "values": values})
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(__file__).with_name("metrics.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
