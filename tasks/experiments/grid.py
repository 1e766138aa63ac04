"""A grid of runs: cells in, their outcomes out. Finished cells are read; the others are trained or resumed.

    CELL/protocol.json  the identity of the cell
    CELL/...            a run, as its training leaves it
    CELL/outcome.json   the reason why the run is degenerate, or null

Lock the folder of the whole grid (`bert_keras.files.locked`, or its own Folder) while the cells run.
"""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras.errors import LossDiverged
from bert_keras.json_files import MEASURE, TEXT, object_of, or_null, read_object, typed
from tasks.folders import Folder, Layout, check_equal
from tasks.task import Task
from tasks.training.feature_based import FOLDER
from tasks.training.identity import digest_of_examples
from tasks.training.loop import PROTOCOL_FILE, RESULTS_FILE
from tasks.training.run_folder import free_memory

DEGENERATE = "degenerate"
CELL = Layout(name="a run of this grid", identity=PROTOCOL_FILE, results="outcome.json")


def _learned(path: pathlib.Path) -> None:
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a grid.

    name: the run's name in the log
    identity: everything that decides the result, plain JSON
    train: (output=folder) -> trains into the folder, or resumes the unfinished run in it
    judge: (folder of the trained run) -> the reason why the run is degenerate, or None
    """

    name: str
    path: pathlib.Path
    identity: Mapping[str, Any]
    train: Callable[..., object]
    judge: Callable[[pathlib.Path], str | None] = _learned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished cell.

    degenerate: the reason why its run is degenerate, or None
    measures: of the best epoch on the dev split, by name; empty if the loss diverged or the run has no measures
    """

    cell: Cell
    degenerate: str | None
    measures: Mapping[str, float]

    @property
    def lost(self) -> bool:
        """True if the loss diverged, so that the run has no results."""
        return not (self.cell.path / RESULTS_FILE).is_file()


def run_cells(cells: Sequence[Cell], *, log: Callable[[str], None] = print) -> Iterator[Outcome]:
    """Runs the unfinished cells in order, and yields the outcome of every cell.

    log: receives the name of each cell with its number in the grid

    Raises BertKerasError if a cell's folder holds other files or a run with another identity, and as `train` does. LossDiverged
    is an outcome, not an error.
    """
    for number, cell in enumerate(cells, start=1):
        log(f"{cell.name} (run {number} of {len(cells)})")
        folder = Folder(cell.path, CELL)
        if folder.finished:  # read it, change nothing
            check_equal(cell.path, folder.identity(), json.loads(json.dumps(cell.identity)))
            log(f"{cell.path} is finished already")
        else:
            with folder.begin(cell.identity):
                folder.finish({DEGENERATE: _run(cell)})
            free_memory()
        kinds = {DEGENERATE: or_null(TEXT)}
        why = typed(folder.results(), kinds, where=cell.path / CELL.results)[DEGENERATE]
        if why is not None:
            log(f"degenerate: {why}")
        yield Outcome(cell=cell, degenerate=why, measures=_measures(cell.path / RESULTS_FILE))


def _run(cell: Cell) -> str | None:
    """Trains and judges a cell; returns the reason why its run is degenerate."""
    if not (cell.path / RESULTS_FILE).is_file():  # else it was killed after training
        try:
            cell.train(output=cell.path)
        except LossDiverged as error:
            shutil.rmtree(cell.path / FOLDER, ignore_errors=True)  # no one resumes it
            return f"{error.what} at step {error.step}"
    return cell.judge(cell.path)


def _measures(results: pathlib.Path) -> dict[str, float]:
    if not results.is_file():
        return {}
    kinds = {"measures": object_of(MEASURE)}
    found = typed(read_object(results), kinds, where=results, optional=kinds, others=True)
    return {name.removeprefix("val_"): value for name, value in found.get("measures", {}).items()}


def identity_of_data(task: Task) -> dict[str, str]:
    """Digests of a run's training and evaluation examples. It reads all of them, so call it once per task."""
    splits = {"train_examples": "train", "dev_examples": task.validation_splits[0]}
    return {name: digest_of_examples(task.examples(split)) for name, split in splits.items()}
