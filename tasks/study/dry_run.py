"""A study before it runs: the trainings of each row, their steps, and an estimate of the time."""

from collections.abc import Sequence

from bert_keras.cli.console import duration
from bert_keras.tasks.report import Table
from bert_keras.tasks.study.grid import Cell
from bert_keras.tasks.study.work import Work, matrix_speed, seconds
from bert_keras.tasks.training.loop import RESULTS_FILE


def dry_run(cells: Sequence[Cell]) -> list[Table]:
    """A row for the trainings of equal work, which differ in their seeds, and the sum. It trains and writes nothing."""
    speed, groups = matrix_speed(), dict[str, list[Cell]]()
    for cell in cells:
        groups.setdefault(cell.name.partition(", seed ")[0], []).append(cell)
    rows, steps, left = [], 0, 0.0
    for name, those in groups.items():
        work = those[0].work() if those[0].work else Work(0, 0.0)
        finished = _finished(those)
        of_row = (len(those) - finished) * seconds(work, speed)
        rows.append((name, len(those), finished, f"{work.steps:,}", duration(of_row)))
        steps, left = steps + len(those) * work.steps, left + of_row
    rows.append(("all", len(cells), _finished(cells), f"{steps:,}", duration(left)))
    title = f"dry run: nothing is trained; the time is an estimate, from {speed / 1e9:,.0f} GFLOP/s of a matrix product here"
    return [Table(title, ("training", "seeds", "finished", "steps each", "time left"), rows)]


def _finished(cells: Sequence[Cell]) -> int:
    return sum((cell.path / RESULTS_FILE).is_file() for cell in cells)
