"""A grid of runs: cells in, their outcomes out. Finished cells are read; the others are trained or resumed.

A cell is a run, as its training leaves it. The grid itself writes the results.json of a run whose loss diverged, with nothing but
the reason, so that it is not trained again, and takes the weights that it removes out of the results of their run.

Lock the folder of the whole grid (`bert_keras.io.files.locked`, or its own Folder) while the cells run. With several workers, all
walk through the same cells in the same order (`check_same`); the chief writes, and says which cells are finished.
"""

import copy
import dataclasses
import functools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face import SAFETENSORS, TOP
from bert_keras.errors import BertKerasError, LossDiverged, MissingFileError
from bert_keras.io import formats
from bert_keras.io.files import write_json
from bert_keras.io.folders import Folder, check_equal
from bert_keras.io.json_files import MEASURE, TEXT, checked_fields, object_of, or_null, read_object
from bert_keras.tasks.batches import cardinality
from bert_keras.tasks.data.sources import Source, check_dev_split
from bert_keras.tasks.devices.strategies import check_micro_batch, strategy
from bert_keras.tasks.devices.workers import SAME_IN_ALL, Workers, reports_lost_workers
from bert_keras.tasks.finetuning.examples import check_fits, dev_part, read_examples
from bert_keras.tasks.finetuning.finetune import fingerprint_of_finetuning
from bert_keras.tasks.frozen.row_vectors import FOLDER, check_feature_based
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.metrics import as_fractions
from bert_keras.tasks.runs.run_card import CARD
from bert_keras.tasks.runs.run_folder import DEGENERATE, FILES, check_finished
from bert_keras.tasks.runs.task_types import open_task
from bert_keras.tasks.study.work import Work
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.loop import RESULTS_FILE, RUN
from bert_keras.tasks.training.plan import fingerprint_of_checkpoint
from bert_keras.tasks.training.saver import CHECKPOINTS
from bert_keras.tasks.training.task_model import free_memory
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer

WEIGHTS = (SAFETENSORS, TOP)
CELL = dataclasses.replace(RUN, name="a run of this grid")
Report = TypeVar("Report")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a grid.

    name: the run's name in the log
    task, place: the task that it trains, and its place in the grid, such as its row and its seed; plain JSON
    train: (output=folder) -> trains into the folder, or resumes the unfinished run in it
    fingerprint: of the run (`Plan.fingerprint`); None if the grid has a fingerprint for all its cells
    work: the steps and operations of its training, for a dry run
    """

    name: str
    path: pathlib.Path
    train: Callable[..., object]
    task: str = ""
    place: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fingerprint: Mapping[str, Any] | None = None
    work: Callable[[], Work] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study(Generic[Report]):
    """Everything that a study will train, read and checked.

    train: trains the cells that have not finished, writes the results and returns them
    """

    cells: Sequence[Cell]
    train: Callable[[], Report]

    @reports_lost_workers()
    def run(self) -> Report:
        """The results, from `train`."""
        return self.train()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished cell.

    degenerate: the reason why its run failed to learn, or None
    measures: of the epoch that the run keeps, on the dev split, by name; empty if the loss diverged or the run has no measures
    """

    name: str
    task: str
    place: Mapping[str, Any]
    path: pathlib.Path
    degenerate: str | None
    measures: Mapping[str, float]


def run_cells(
    cells: Sequence[Cell], *, workers: Workers | None = None, log: Callable[[str], None] = print
) -> Iterator[Outcome]:
    """Runs the unfinished cells in order, and yields the outcome of every cell, in all workers.

    workers: None for the only process
    log: receives the name of each cell with its number in the grid

    Raises BertKerasError, before any training, if a cell's folder holds other files, a run with another fingerprint,
    or a finished run that lost a file. Raises as `train` too, except that LossDiverged is an outcome.
    """
    workers = workers or Workers()
    for cell in cells:
        workers.from_chief(functools.partial(_check, cell))
    for number, cell in enumerate(cells, start=1):
        log(f"{cell.name} (run {number} of {len(cells)})")
        if workers.from_chief((cell.path / RESULTS_FILE).is_file):
            log(f"{cell.path} is finished already")
        else:
            _run(cell, workers)
            free_memory()
        results = workers.from_chief(functools.partial(_results, cell.path))
        why, measures = results.get(DEGENERATE), results.get("measures", {})
        if why is not None:
            log(f"degenerate: {why}")
        yield Outcome(
            name=cell.name,
            task=cell.task,
            place=cell.place,
            path=cell.path,
            degenerate=why,
            measures={name.removeprefix("val_"): value for name, value in measures.items()},
        )


def _check(cell: Cell) -> None:
    """Raises BertKerasError for a folder that the cell cannot use, or damaged files of a finished run, and changes nothing."""
    folder = Folder(cell.path, CELL)
    folder.check(reopen=True)
    if folder.begun and cell.fingerprint is not None:
        check_equal(cell.path, folder.fingerprint(), json.loads(json.dumps(cell.fingerprint)))
    if folder.finished:
        names = [*_results(cell.path).get(FILES, ())]
    else:  # the card is written shortly before the results, and the saves are removed after them
        saves = (cell.path / CHECKPOINTS).glob("ckpt-*")
        names = [RESULTS_FILE] if (cell.path / CARD).is_file() and not any(saves) else []
    for name in names:
        if not (cell.path / name).is_file():
            raise MissingFileError(
                f"{cell.path} has no {name}, and its run had one when it ended; remove this folder to train it again."
            )
    if names:  # else its loss diverged, and no one reads its files
        check_finished(cell.path)


def _results(path: pathlib.Path) -> dict[str, Any]:
    """The fields of a run's results that a grid reads."""
    file = path / RESULTS_FILE
    kinds = {DEGENERATE: or_null(TEXT), "measures": object_of(MEASURE), FILES: object_of(TEXT)}
    return checked_fields(read_object(file), kinds, where=file, optional=kinds, others=True)


def _run(cell: Cell, workers: Workers) -> None:
    """Trains a cell; the chief writes the results of a run whose loss diverged."""
    try:
        cell.train(output=cell.path)
    except LossDiverged as error:
        if workers.chief:
            shutil.rmtree(cell.path / FOLDER, ignore_errors=True)  # no one resumes it
            write_json(cell.path / RESULTS_FILE, {DEGENERATE: f"{error.what} at step {error.step}"})


def remove_weights(path: pathlib.Path) -> None:
    """Removes the weights of a finished cell, and takes their names out of its results first."""
    there = [path / name for name in WEIGHTS if (path / name).is_file()]
    results = read_object(path / RESULTS_FILE)
    if there and FILES in results:
        kept = {name: digest for name, digest in results[FILES].items() if name not in WEIGHTS}
        write_json(path / RESULTS_FILE, results | {FILES: kept})
    for file in there:
        file.unlink()


# -----------------------------------------------------------------------------------------------------------
# The results of a study: the last file in its folder


def write_results(output: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes the results of a study, with the version of their format and the command."""
    stamped = {**formats.stamp(formats.STUDY), **content, formats.MADE_BY: formats.made_by()}
    write_json(output / RESULTS_FILE, stamped)


def earlier_results(output: pathlib.Path, is_ours: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """The results in the folder of a study, or {}. Raises BertKerasError for results of something else, to replace none."""
    file = output / RESULTS_FILE
    found = read_object(file) if file.is_file() else {}
    if found and not is_ours(found):
        raise BertKerasError(f"{output} holds another run, with its {RESULTS_FILE}; give another folder.")
    return formats.unstamped(formats.STUDY, found, where=file) if found else {}


# -----------------------------------------------------------------------------------------------------------
# Checks of a study, before any training


def check_name(name: str, known: Iterable[str]) -> None:
    """Raises BertKerasError for an unknown study or scale."""
    if name not in known:
        raise BertKerasError(f"unknown name {name!r}; give one of {', '.join(known)}.")


def check_used(data: Iterable[str], names: Iterable[str]) -> None:
    """Raises BertKerasError for data of a task that is not in names, which nothing would read. data: names of tasks."""
    names = [*dict.fromkeys(names)]
    if unused := [task for task in data if task not in names]:
        raise BertKerasError(
            f"data was given for {', '.join(unused)}, and the tasks are {', '.join(names)}; name it in tasks, or leave it out."
        )


def check_same(cells: Sequence[Cell], options: Mapping[str, Any], *, workers: Workers) -> None:
    """Raises BertKerasError in all workers, with the names of what differs, unless all have the same cells and options.

    Call it before the folder of the grid is made: workers that walk through other cells would answer each other's questions.

    options: the settings of the grid, plain JSON by name
    """
    fingerprints = [cell.fingerprint or {} for cell in cells]
    values = {
        field: [*dict.fromkeys(json.dumps(one.get(field), sort_keys=True) for one in fingerprints)]
        for field in dict.fromkeys(field for one in fingerprints for field in one)
    }
    workers.check_same({**options, **values, "runs": [cell.name for cell in cells]}, SAME_IN_ALL)


def opened(name: str, data: Mapping[str, Source], **options: Any) -> Task:
    """Opens a task and reads its examples once, so that bad data raises an error before any training."""
    check_dev_split(data.get(name))
    task = open_task(name, data.get(name), **options)
    for split in ("train", task.validation_splits[0]):
        task.examples(split)
    return task


def baseline(task: Task, hparams: Hparams, *, measure: str | None = None) -> float:
    """The measure of the most common answer on the dev examples of a run, as a fraction.

    measure: None is the main measure of the task
    """
    examples = dev_part(task.examples(task.validation_splits[0]), hparams)
    raw = next(examples.batch(cardinality(examples)).as_numpy_iterator())
    by = copy.copy(task)
    by.measure = measure or task.measure
    return as_fractions({by.measure: by.baseline(raw)}, kind=task.kind)[by.measure]


def fingerprint_of_data(task: Task, tokenizer: Tokenizer, hparams: Hparams) -> dict[str, Any]:
    """The numbers of a run's examples and their digests. It reads all of them, so call it once for all seeds of a task.

    Raises BertKerasError for a split without labels.
    """
    preprocess = Preprocessor(tokenizer, seq_length=hparams.seq_length)
    return read_examples(task, preprocess, hparams, None).fingerprint


def fingerprints_of(
    trainings: Sequence[tuple[Task, checkpoints.Checkpoint, Hparams]],
    *,
    strategy_name: str,
    feature_cache: str | pathlib.Path | None = None,
) -> list[dict[str, Any]]:
    """The fingerprint of each fine-tuning. All examples of a task and all weights of a checkpoint are read once.

    trainings: trainings of one task or checkpoint share the object, which is read once; all checkpoints have the same tokenizer

    Raises BertKerasError for a task, checkpoint and settings that `finetune` would refuse, and for a split without labels.
    """
    distribution, tokenizer = strategy(strategy_name), checkpoints.tokenizer_of(trainings[0][1])
    checked = set()
    for task, source, hparams in trainings:
        # These three fit any task.
        settings = dataclasses.asdict(hparams) | dict.fromkeys(("learning_rate", "epochs", "seed"))
        if (key := (id(task), id(source), *settings.values())) in checked:
            continue
        checked.add(key)
        check_micro_batch(distribution, batch_size=hparams.batch_size, micro_batch=hparams.micro_batch)
        if source.tensors:
            task.check_checkpoint(source)
        check_fits(task, source.config, tokenizer, hparams)
        check_feature_based(task, source.config, hparams, keep_head=False, feature_cache=feature_cache)
    starts, data = dict[int, dict[str, Any]](), dict[int, dict[str, Any]]()
    for task, source, hparams in trainings:
        if id(source) not in starts:
            starts[id(source)] = fingerprint_of_checkpoint(source, tokenizer)
        if id(task) not in data:
            data[id(task)] = fingerprint_of_data(task, tokenizer, hparams)
    return [
        fingerprint_of_finetuning(
            task, hparams, start=starts[id(source)], examples=data[id(task)], strategy_name=strategy_name
        )
        for task, source, hparams in trainings
    ]
