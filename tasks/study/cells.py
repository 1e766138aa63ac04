"""A grid of runs: cells in, their outcomes out. Finished cells are read; the others are trained or resumed.

    CELL/protocol.json  the identity of the cell
    CELL/...            a run, as its training leaves it
    CELL/outcome.json   the reason why the run is degenerate, or null, and the names of the run's files

Lock the folder of the whole grid (`bert_keras.io.files.locked`, or its own Folder) while the cells run. With several workers, all
walk through the same cells in the same order (`check_same`); the chief writes, and says which cells are finished.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras.checkpoints.hugging_face import SAFETENSORS, TOP
from bert_keras.errors import BertKerasError, LossDiverged, MissingFileError
from bert_keras.io.folders import Folder, Layout, check_equal
from bert_keras.io.json_files import (
    MEASURE,
    TEXT,
    list_of,
    object_of,
    one_of,
    or_null,
    read_object,
    typed,
)
from bert_keras.tasks.devices.workers import SAME_IN_ALL, Workers
from bert_keras.tasks.frozen.feature_based import FOLDER
from bert_keras.tasks.runs.run_folder import check_finished
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.identity import digest_of_examples
from bert_keras.tasks.training.loop import PROTOCOL_FILE, RESULTS_FILE
from bert_keras.tasks.training.task_model import free_memory

DEGENERATE, FILES = "degenerate", "files"  # keys in outcome.json
WEIGHTS = (SAFETENSORS, TOP)
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
    alone: the chief trains it without the other workers
    """

    name: str
    path: pathlib.Path
    identity: Mapping[str, Any]
    train: Callable[..., object]
    judge: Callable[[pathlib.Path], str | None] = _learned
    alone: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished cell.

    degenerate: the reason why its run is degenerate, or None
    measures: of the best epoch on the dev split, by name; empty if the loss diverged or the run has no measures
    """

    cell: Cell
    degenerate: str | None
    measures: Mapping[str, float]


def run_cells(
    cells: Sequence[Cell], *, workers: Workers | None = None, log: Callable[[str], None] = print
) -> Iterator[Outcome]:
    """Runs the unfinished cells in order, and yields the outcome of every cell, in all workers.

    workers: None for the only process
    log: receives the name of each cell with its number in the grid

    Raises BertKerasError if a cell's folder holds other files or a run with another identity, and as `train` does. LossDiverged
    is an outcome, not an error.
    """
    workers = workers or Workers()
    for cell in cells:
        workers.from_chief(functools.partial(_check, cell))
    for number, cell in enumerate(cells, start=1):
        log(f"{cell.name} (run {number} of {len(cells)})")
        if workers.from_chief(functools.partial(_is_finished, cell)):
            log(f"{cell.path} is finished already")
        else:
            _run(cell, workers)
            free_memory()
        why, measures = workers.from_chief(functools.partial(_found, cell))
        if why is not None:
            log(f"degenerate: {why}")
        yield Outcome(cell=cell, degenerate=why, measures=measures)


def check_same(cells: Sequence[Cell], options: Mapping[str, Any], *, workers: Workers) -> None:
    """Raises BertKerasError in all workers, with the names of what differs, unless all have the same cells and options.

    Call it before the folder of the grid is made: workers that walk through other cells would answer each other's questions.

    options: the settings of the grid, plain JSON by name
    """
    fields = dict.fromkeys(field for cell in cells for field in cell.identity)
    values = {
        field: [*dict.fromkeys(json.dumps(cell.identity.get(field), sort_keys=True) for cell in cells)]
        for field in fields
    }
    workers.check_same({**options, **values, "runs": [cell.name for cell in cells]}, SAME_IN_ALL)


def _is_finished(cell: Cell) -> bool:
    return Folder(cell.path, CELL).finished


def _check(cell: Cell) -> None:
    """Raises BertKerasError for a folder that the cell cannot use, or damaged files of a finished run, and changes nothing."""
    folder = Folder(cell.path, CELL)
    folder.check(reopen=True)
    if folder.begun:
        check_equal(cell.path, folder.identity(), json.loads(json.dumps(cell.identity)))
    if folder.finished:
        _check_files(cell.path)


def _check_files(path: pathlib.Path) -> None:
    """Raises BertKerasError for damaged or missing files of a finished cell."""
    names = _outcome(path).get(FILES)
    if names is None:  # versions before this key
        names = _files(path)
    for name in names:
        if not (path / name).is_file():
            raise MissingFileError(
                f"{path} has no {name}, and its run had one when it ended; remove this folder to train it again."
            )
    if RESULTS_FILE in names:
        check_finished(path, without=[name for name in WEIGHTS if name not in names])


def _files(path: pathlib.Path) -> list[str]:
    """The names of a run's files that a cell keeps."""
    return [name for name in (RESULTS_FILE, *WEIGHTS) if (path / name).is_file()]


def _outcome(path: pathlib.Path) -> dict[str, Any]:
    kinds = {DEGENERATE: or_null(TEXT), FILES: list_of(one_of((RESULTS_FILE, *WEIGHTS)))}
    return typed(Folder(path, CELL).results(), kinds, where=path / CELL.results, optional=(FILES,))


def remove_weights(path: pathlib.Path) -> None:
    """Removes the weights of a finished cell, and takes their names out of its outcome first."""
    folder = Folder(path, CELL)
    there = [path / name for name in WEIGHTS if (path / name).is_file()]
    if there:
        folder.finish(_outcome(path) | {FILES: [name for name in _files(path) if name not in WEIGHTS]})
    for file in there:
        file.unlink()


def _run(cell: Cell, workers: Workers) -> None:
    """Trains and judges a cell."""
    folder = Folder(cell.path, CELL)
    with folder.begin(cell.identity) if workers.chief else contextlib.nullcontext():
        why = None
        if not workers.from_chief((cell.path / RESULTS_FILE).is_file):  # else it was killed after training
            why = workers.from_chief(lambda: _trained(cell)) if cell.alone else _trained(cell)
        if workers.chief:
            if why is not None:
                shutil.rmtree(cell.path / FOLDER, ignore_errors=True)  # no one resumes it
            why = cell.judge(cell.path) if why is None else why
            folder.finish({DEGENERATE: why, FILES: _files(cell.path)})


def _trained(cell: Cell) -> str | None:
    """Trains a cell; returns the reason why its loss diverged, or None."""
    try:
        cell.train(output=cell.path)
    except LossDiverged as error:
        return f"{error.what} at step {error.step}"
    return None


def _found(cell: Cell) -> tuple[str | None, dict[str, float]]:
    """The reason why the run of a finished cell is degenerate, or None, and its measures."""
    return _outcome(cell.path)[DEGENERATE], _measures(cell.path / RESULTS_FILE)


def _measures(results: pathlib.Path) -> dict[str, float]:
    if not results.is_file():
        return {}
    kinds = {"measures": object_of(MEASURE)}
    found = typed(read_object(results), kinds, where=results, optional=kinds, others=True)
    return {name.removeprefix("val_"): value for name, value in found.get("measures", {}).items()}


def check_once(names: Sequence[str]) -> None:
    """Raises BertKerasError unless there are tasks, each named once."""
    if not names or len({*names}) < len(names):
        raise BertKerasError(f"the tasks are {', '.join(names) or 'none'}; give at least one, each once.")


def check_used(data: Iterable[str], names: Iterable[str]) -> None:
    """Raises BertKerasError for data of a task that is not in names, which nothing would read. data: names of tasks."""
    names = [*dict.fromkeys(names)]
    if unused := [task for task in data if task not in names]:
        raise BertKerasError(
            f"data was given for {', '.join(unused)}, and the tasks are {', '.join(names)}; name it in tasks, or leave it out."
        )


def identity_of_data(task: Task) -> dict[str, str]:
    """Digests of a run's training and evaluation examples. It reads all of them, so call it once per task."""
    splits = {"train_examples": "train", "dev_examples": task.validation_splits[0]}
    return {name: digest_of_examples(task.examples(split)) for name, split in splits.items()}
