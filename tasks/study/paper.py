"""The paper's results to print beside ours: Devlin et al. 2019, sec. 4, tables 1, 2, 3, 4 and 7. rows.py has its ablations."""

from collections.abc import Sequence
from typing import NamedTuple

from bert_keras.model.choices import LAYERS
from bert_keras.tasks.report import Table


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


_GLUE = {
    "base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4),
    "large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1),
}
_GLUE_TASKS = ("mnli", "mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
_GLUE_SPLITS = ("test matched", "test mismatched", *["test"] * 7)
_GLUE_MEASURES = "accuracy accuracy f1 accuracy accuracy matthews spearman f1 accuracy".split()
_GLUE_COLUMNS = [*zip(_GLUE_TASKS, _GLUE_SPLITS, _GLUE_MEASURES, strict=True)]
# Task, table, model, split: exact match and F1.
_SQUAD = {
    ("squad1.1", 2, "base", "dev"): (80.8, 88.5),
    ("squad1.1", 2, "large", "dev"): (84.1, 90.9),
    ("squad1.1", 2, "large, ensemble", "dev"): (85.8, 91.8),
    ("squad1.1", 2, "large, TriviaQA first", "dev"): (84.2, 91.1),
    ("squad1.1", 2, "large, TriviaQA first", "test"): (85.1, 91.8),
    ("squad1.1", 2, "large, ensemble, TriviaQA first", "dev"): (86.2, 92.2),
    ("squad1.1", 2, "large, ensemble, TriviaQA first", "test"): (87.4, 93.2),
    ("squad2.0", 3, "large", "dev"): (78.7, 81.9),
    ("squad2.0", 3, "large", "test"): (80.0, 83.1),
}
FIGURES = (
    *(
        Figure(task, 1, model, split, measure, value)
        for model, values in _GLUE.items()
        for (task, split, measure), value in zip(_GLUE_COLUMNS, values, strict=True)
    ),
    *(
        Figure(*place, measure, value)
        for place, values in _SQUAD.items()
        for measure, value in zip(("exact_match", "f1"), values, strict=True)
    ),
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


def paper_table(tasks: Sequence[str]) -> Table | None:
    """The paper's results for these tasks as a table; None if it has none."""
    rows = [
        (one.task, f"BERT {one.model}", one.split, one.measure, f"{one.value:.1f}", f"Table {one.table}")
        for task in tasks
        for one in FIGURES
        if one.task == task
    ]
    columns = ("task", "model", "split", "measure", "percent", "source")
    return Table("the paper's own results, on all data", columns, rows) if rows else None
