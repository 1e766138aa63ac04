"""Tables that the report of every task has: learning curves, length, calibration, mistakes, and the comparison of two models.

In: `Judged` examples, or the history of a training. Out: `Table`s, some with a chart.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras.tasks.evaluation.intervals import mean_interval
from bert_keras.tasks.report import Judged, Table, most_confident

SHOWN = 100  # mistakes on a page
BINS = 10  # of confidence
LENGTHS = 6  # groups of lengths
DEV = "val_"  # opens the names of dev measures in a history
NO_MEASURES = ("tokens", "learning_rate")  # of a history


def learning_curves(history: Sequence[Mapping[str, float]]) -> Iterator[Table]:
    """Yields the losses and the other measures by epoch. history: the values of each epoch by name, the dev split's with DEV."""
    names = dict.fromkeys(name for epoch in history for name in epoch if name not in NO_MEASURES)
    losses = [name for name in names if name.removeprefix(DEV) == "loss"]
    others = [name for name in names if name not in losses]
    lower = "The loss is what training lowers."
    if f"{DEV}loss" in names:
        lower += " A dev loss that rises again means overfitting."
    higher = "Each point is a measure after an epoch. The higher, the better."
    for title, chosen, about in (("Loss", losses, lower), ("Measures", others, higher)):
        parts = [("dev" if name.startswith(DEV) else "training", name.removeprefix(DEV)) for name in chosen]
        rows = [(i + 1, *(epoch.get(name) for name in chosen)) for i, epoch in enumerate(history)]
        if chosen:
            yield Table(f"{title} by epoch", ("epoch", *map(" ".join, parts)), rows, _lines(rows), about)


def _lines(rows: Sequence[object]) -> str:
    """The chart of lines, which one point does not make."""
    return "lines" if len(rows) > 1 else ""


def errors_by_length(judged: Judged) -> Iterator[Table]:
    """Yields the share of errors among short and long texts."""
    words = np.zeros(len(judged.right), int)
    for texts in judged.texts.values():
        words += [len(text.split()) for text in texts]
    edges = np.unique(np.quantile(words, np.linspace(0, 1, LENGTHS + 1), method="lower"))
    group = np.searchsorted(edges[1:-1], words, side="right")
    rows = []
    for place in np.unique(group):
        chosen = group == place
        low, high, wrong = words[chosen].min(), words[chosen].max(), 1 - judged.right[chosen]
        name = f"{low} to {high}" if low < high else str(low)
        name += " word" if high == 1 else " words"
        rows.append((name, float(wrong.mean()), *mean_interval(wrong), int(chosen.sum())))
    error = "share of errors" if np.isin(judged.right, (0, 1)).all() else "mean error"
    about = (
        f"Each bar is the {error} of texts of that length, 0 to 1; the thin line is its 95 % interval. Bars whose lines do not "
        "overlap differ."
    )
    yield Table("Errors by length", ("length", error, "from", "to", "examples"), rows, "bars", about)


def calibration(judged: Judged) -> Iterator[Table]:
    """Yields the share of right predictions by confidence, if the model has a confidence.

    The expected calibration error is the mean distance between both, over BINS equal parts of 0 to 1.
    """
    if judged.confidence is None:
        return
    places = np.minimum((judged.confidence * BINS).astype(int), BINS - 1)
    rows = []
    for place in np.unique(places):
        chosen = places == place
        confidence, right = judged.confidence[chosen].mean(), judged.right[chosen].mean()
        rows.append((float(confidence), float(right), float(confidence), int(chosen.sum())))
    error = sum(count * abs(right - sure) for sure, right, _, count in rows) / len(judged.right)
    about = (
        "A model that says 0.8 should be right in 8 of 10 cases: points on the line of dashes. Points under it mean that the "
        "model is too sure. The numbers above count examples: points of few examples say little. The expected calibration error, "
        f"the mean distance from this line, is {error:.4f}."
    )
    columns = ("confidence", "share that is right", "as sure as right", "examples")
    yield Table("Confidence and truth", columns, rows, _lines(rows), about)


def mistakes(judged: Judged) -> Iterator[Table]:
    """Yields the most confident mistakes, partly right ones further down; without confidence, the largest errors."""
    wrong = np.flatnonzero(judged.right < 1)
    sure = (1 - judged.right) * (1 if judged.confidence is None else judged.confidence)
    worst = most_confident(wrong, sure, SHOWN)
    if not len(worst):
        return
    title = "The most confident mistakes" if judged.confidence is not None else "The largest errors"
    about = (
        f"{len(worst)} of {len(wrong)} mistakes. Read them: some labels may be wrong, and not the model. Examples are counted "
        "from 0 in the measured data, or have the names of its index; examples.csv has all of them."
    )
    more = {} if judged.confidence is None else {"confidence": judged.confidence}
    columns = ("example", *judged.texts, "gold", "predicted", *more)
    rows = [
        (*_labelled(judged, i), judged.predicted[i], *(float(one[i]) for one in more.values())) for i in worst
    ]
    yield Table(title, columns, rows, about=about)


def _labelled(judged: Judged, i: Any) -> tuple[str, ...]:
    """The number, the texts and the label of an example."""
    return (str(judged.rows[i]), *(column[i] for column in judged.texts.values()), judged.gold[i])


def differences(first: Judged, second: Judged, names: tuple[str, str]) -> Iterator[Table]:
    """Yields the counts of examples that both, one or no model has right, and the examples of each direction.

    first, second: of the same examples; names: of the models
    """
    gain = first.right - second.right
    both = (first.right == 1) & (second.right == 1)
    counts = [
        ("both right", int(both.sum())),
        (f"{names[0]} more right", int((gain > 0).sum())),
        (f"{names[1]} more right", int((gain < 0).sum())),
        ("both wrong", int(((gain == 0) & ~both).sum())),
    ]
    yield Table("Which model has an example right", ("models", "examples"), counts, "bars")
    for name, better in zip(names, (gain, -gain), strict=True):
        rows = np.flatnonzero(better > 0)
        most = most_confident(rows, better, SHOWN // 2)
        shown = [(*_labelled(first, i), first.predicted[i], second.predicted[i]) for i in most]
        if shown:
            about = f"{len(shown)} of {len(rows)} such examples."
            yield Table(
                f"Examples that {name} has more right",
                ("example", *first.texts, "gold", *names),
                shown,
                about=about,
            )
