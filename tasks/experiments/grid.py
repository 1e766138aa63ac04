"""A grid of runs: cells in, the outcome of each out. Finished cells are read; the others are trained, or resumed.

    CELL/protocol.json  the identity of the cell
    CELL/...            a run, as its training leaves it
    CELL/outcome.json   the reason why the run learned nothing, or null

Hold the folder of the whole grid (`bert_keras.files.locked`, or its own Folder) while the cells run.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras.errors import LossDiverged
from bert_keras.json_files import MEASURE, TEXT, object_of, or_null, read_object, typed
from tasks.folders import Folder, Layout, check_equal
from tasks.task import Task
from tasks.training.identity import digest_of_examples
from tasks.training.loop import PROTOCOL_FILE, RESULTS_FILE
from tasks.training.run import free_memory

DEGENERATE = "degenerate"
CELL = Layout(name="a run of this grid", identity=PROTOCOL_FILE, results="outcome.json")


def _learned(path: pathlib.Path) -> None:
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a grid.

    name: the run, in a line for a person
    identity: all that decides the result, plain JSON
    train: (output=folder) -> trains into it, or resumes the unfinished run in it
    judge: (folder of the trained run) -> the reason why it learned nothing, or None
    """

    name: str
    path: pathlib.Path
    identity: Mapping[str, Any]
    train: Callable[..., object]
    judge: Callable[[pathlib.Path], str | None] = _learned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished cell.

    degenerate: the reason why its run learned nothing, or None
    measures: of the best epoch on the dev split, by name; none where the loss diverged, or where the run has none
    """

    cell: Cell
    degenerate: str | None
    measures: Mapping[str, float]

    @property
    def lost(self) -> bool:
        """True where the loss diverged: the run has no results."""
        return not (self.cell.path / RESULTS_FILE).is_file()


def run_cells(cells: Sequence[Cell], *, log: Callable[[str], None] = print) -> Iterator[Outcome]:
    """Runs the cells in order, the finished ones excepted, and yields the outcome of each.

    log: receives the name of each cell with its place in the grid

    Raises BertKerasError where a cell's folder holds a run of another identity, or anything else, and as `train` does;
    LossDiverged alone is an outcome.
    """
    for number, cell in enumerate(cells, start=1):
        log(f"{cell.name} (run {number} of {len(cells)})")
        folder = Folder(cell.path, CELL)
        if folder.finished:  # nothing in it is touched
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
    """Trains and judges a cell; the reason why its run learned nothing."""
    if not (cell.path / RESULTS_FILE).is_file():  # else it was killed after its training
        try:
            cell.train(output=cell.path)
        except LossDiverged as error:
            return f"{error.what} at step {error.step}"
    return cell.judge(cell.path)


def _measures(results: pathlib.Path) -> dict[str, float]:
    if not results.is_file():
        return {}
    kinds = {"measures": object_of(MEASURE)}
    found = typed(read_object(results), kinds, where=results, optional=kinds, others=True)
    return {name.removeprefix("val_"): value for name, value in found.get("measures", {}).items()}


def identity_of_data(task: Task) -> dict[str, str]:
    """Digests of the examples that a run trains on and is measured on. It reads them all: call it once for each task."""
    splits = {"train_examples": "train", "dev_examples": task.validation_splits[0]}
    return {name: digest_of_examples(task.examples(split)) for name, split in splits.items()}
