"""The paper's own results by task, to print beside those of a run here.

Source: Devlin et al. 2019, Tables 1 to 4 and 7; Tables 5, 6 and 8 are in tasks/study/ablation_definitions.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bert_keras.model.layer_choices import LAYERS
from bert_keras.tasks.report_tables import Table


class Figure(NamedTuple):
    """One result of the paper, in percent.

    model: "base" and "large" are single models; an ensemble has 7 systems of different pre-trainings and seeds
    """

    task: str
    table: int
    model: str
    split: str
    measure: str
    value: float


_GLUE = ("mnli", "mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
_GLUE_SPLITS = ("test matched", "test mismatched", *["test"] * 7)
_GLUE_MEASURES = (
    "accuracy",
    "accuracy",
    "f1",
    "accuracy",
    "accuracy",
    "matthews",
    "spearman",
    "f1",
    "accuracy",
)
_GLUE_VALUES = {
    "base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4),
    "large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1),
}
# Model, split: exact match and F1.
_SQUAD1 = {
    ("base", "dev"): (80.8, 88.5),
    ("large", "dev"): (84.1, 90.9),
    ("large, ensemble", "dev"): (85.8, 91.8),
    ("large, TriviaQA first", "dev"): (84.2, 91.1),
    ("large, TriviaQA first", "test"): (85.1, 91.8),
    ("large, ensemble, TriviaQA first", "dev"): (86.2, 92.2),
    ("large, ensemble, TriviaQA first", "test"): (87.4, 93.2),
}
_SQUAD2 = {("large", "dev"): (78.7, 81.9), ("large", "test"): (80.0, 83.1)}


def _squad(task: str, table: int, values: dict[tuple[str, str], tuple[float, float]]) -> list[Figure]:
    return [
        Figure(task, table, model, split, measure, value)
        for (model, split), pair in values.items()
        for measure, value in zip(("exact_match", "f1"), pair, strict=True)
    ]


FIGURES: tuple[Figure, ...] = (
    *(
        Figure(task, 1, model, split, measure, value)
        for model, values in _GLUE_VALUES.items()
        for task, split, measure, value in zip(_GLUE, _GLUE_SPLITS, _GLUE_MEASURES, values, strict=True)
    ),
    *_squad("squad1.1", 2, _SQUAD1),
    *_squad("squad2.0", 3, _SQUAD2),
    Figure("swag", 4, "base", "dev", "accuracy", 81.6),
    Figure("swag", 4, "large", "dev", "accuracy", 86.6),
    Figure("swag", 4, "large", "test", "accuracy", 86.3),
    Figure("conll2003", 7, "base", "dev", "f1", 96.4),
    Figure("conll2003", 7, "base", "test", "f1", 92.4),
    *(
        Figure("conll2003", 7, f"base, features: {layers}", "dev", "f1", value)
        for layers, value in zip(LAYERS, (91.0, 95.6, 94.9, 95.9, 96.1, 95.5), strict=True)
    ),
    Figure("conll2003", 7, "large", "dev", "f1", 96.6),
    Figure("conll2003", 7, "large", "test", "f1", 92.8),
)


def figure_of(task: str, measure: str, *, features: str | None = None) -> float | None:
    """BERT base's measure in percent; on dev where the paper has it, else on test (GLUE). None where it has none.

    features: a row of LAYERS in place of fine-tuning
    """
    model = "base" if features is None else f"base, features: {features}"
    found = [one for one in FIGURES if (one.task, one.model, one.measure) == (task, model, measure)]
    return min(found, key=lambda one: one.split != "dev").value if found else None


def paper_table(tasks: Sequence[str]) -> Table | None:
    """The paper's results for these tasks as a table; None if it has none."""
    rows = [
        (one.task, f"BERT {one.model}", one.split, one.measure, f"{one.value:.1f}", f"Table {one.table}")
        for one in sorted(FIGURES, key=lambda one: [*tasks].index(one.task) if one.task in tasks else -1)
        if one.task in tasks
    ]
    columns = ("task", "model", "split", "measure", "percent", "source")
    return Table("the paper's own results, on all data", columns, rows) if rows else None
