"""Ablations of one checkpoint: fine-tuning, features of its layers, and random weights, each trained from several seeds.

In: a key of APPROACHES, a checkpoint, the tasks' data. Out: a folder

    OUTPUT/<task>/<row>_seed-<seed>/   cells of tasks/study/cells.py, each a run of `finetune`
    OUTPUT/vectors/<task>/             the vectors of every layer that some row reads, until these rows are finished
    OUTPUT/results.json, results.png   all measures; a plot with a dot for each run

Source: Devlin et al. 2019, table 7.
"""

import dataclasses
import functools
import itertools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.io.files import locked, write_json
from bert_keras.io.json_files import read_object
from bert_keras.io.paths import to_path
from bert_keras.model.layer_choices import places_of
from bert_keras.tasks.batches import cardinality
from bert_keras.tasks.data.sources import Source, check_dev_split
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.finetune import finetune, plan_finetuning
from bert_keras.tasks.frozen.cache import layers_in
from bert_keras.tasks.hparams import OF_FEATURES, Hparams, hparams_of
from bert_keras.tasks.metrics import in_percent
from bert_keras.tasks.options import ApproachOptions
from bert_keras.tasks.runs.run_folder import open_task, task_type
from bert_keras.tasks.study.ablation_report import draw_rows
from bert_keras.tasks.study.approach_results import Results, Subject, as_json
from bert_keras.tasks.study.approach_rows import (
    APPROACHES,
    OF_FINE_TUNING,
    Row,
    check_settings,
)
from bert_keras.tasks.study.cells import (
    Cell,
    check_once,
    check_same,
    check_used,
    identity_of_data,
    run_cells,
)
from bert_keras.tasks.study.protocol import check_labels, check_run, degenerate_run
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.identity import identity_of_checkpoint
from bert_keras.tasks.training.loop import RESULTS_FILE

RESTARTS = 3
PICTURE, VECTORS = "results.png", "vectors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """An ablation that is ready to run.

    given: the settings that were given, by the names of Hparams
    how: arguments for every training
    """

    output: pathlib.Path
    source: checkpoints.Checkpoint
    subjects: Sequence[Subject]
    rows: Sequence[Row]
    seeds: Sequence[int]
    given: Mapping[str, Any]
    options: ApproachOptions
    workers: Workers
    how: Mapping[str, Any]
    stored: set[pathlib.Path] = dataclasses.field(default_factory=set)

    def cells(self) -> Iterator[Cell]:
        """The restarts of each row on each task."""
        tokenizer = checkpoints.tokenizer_of(self.source)
        starts = {
            random: identity_of_checkpoint(self.start(random), tokenizer)
            for random in {row.random for row in self.rows}
        }
        for subject in self.subjects:
            data = dict[str | None, Mapping[str, str]]()
            # All rows have a first restart before one has a second.
            for seed, row in itertools.product(self.seeds, self.rows):
                task, hparams = subject.tasks[row.name], self.hparams(subject, row, seed)
                if row.context not in data:
                    data[row.context] = identity_of_data(task)
                yield Cell(
                    name=f"{subject.name}: {row.name}, seed {seed}",
                    path=self.run(subject, row, seed),
                    identity={
                        **hparams.identity(),
                        **{"task": task.to_json(), "strategy": self.how["strategy_name"]},
                        **data[row.context],
                        **starts[row.random],
                    },
                    train=functools.partial(self._train, subject, row, hparams),
                    judge=functools.partial(degenerate_run, task),
                )

    def run(self, subject: Subject, row: Row, seed: int) -> pathlib.Path:
        """The folder of a restart."""
        return self.output / subject.name / f"{row.name.replace(',', '-')}_seed-{seed}"

    def hparams(self, subject: Subject, row: Row, seed: int) -> Hparams:
        """The settings of a run. All restarts learn from the same examples."""
        given = dict(self.given) | {"seed": seed}
        if given.get("max_examples") is not None:
            given.setdefault("data_seed", self.seeds[0])
        others = OF_FEATURES if row.layers is None else OF_FINE_TUNING
        given = {name: value for name, value in given.items() if name not in others}
        if row.layers is not None:
            given |= {"feature_layers": row.layers, "learning_rate": self.options.feature_learning_rate}
            epochs = self.options.feature_epochs
            given |= {} if epochs is None else {"epochs": epochs}
        return hparams_of(subject.tasks[row.name].defaults, given)

    def start(self, random: bool) -> checkpoints.Checkpoint:
        """The weights from which a row is trained."""
        return dataclasses.replace(self.source, tensors={}) if random else self.source

    def _train(self, subject: Subject, row: Row, hparams: Hparams, *, output: pathlib.Path) -> None:
        task, cache = subject.tasks[row.name], None
        # An encoder at random weights differs from seed to seed, so its vectors are not shared.
        if row.layers is not None and not row.random:
            cache = self.vectors(subject) / (row.context or "given")
            if cache not in self.stored and self.workers.chief:
                self._store(task, hparams, cache, context=row.context)
        finetune(
            task,
            checkpoint=self.start(row.random),
            output=output,
            hparams=hparams,
            feature_cache=cache,
            **self.how,
        )

    def vectors(self, subject: Subject) -> pathlib.Path:
        """The folder of the vectors of a task."""
        return self.output / VECTORS / subject.name

    def _store(self, task: Task, hparams: Hparams, cache: pathlib.Path, *, context: str | None) -> None:
        """Computes the vectors of all layers that rows of this context read, in one pass."""
        layers = [row.layers for row in self.rows if not row.random and row.context == context]
        count = self.source.config.num_layers
        places = sorted(
            {place for one in layers if one is not None for place in places_of(one, num_layers=count)}
        )
        if not {*layers_in(cache)} >= {*places}:  # an interrupted call with fewer rows began it
            shutil.rmtree(cache, ignore_errors=True)
        every = dataclasses.replace(hparams, feature_layers=",".join(map(str, places)), lstm_layers=0)
        plan = plan_finetuning(task, checkpoint=self.source, hparams=every, feature_cache=cache, output=cache)
        assert plan.prepared is not None  # it has feature_layers
        only = Workers(plan.model.distribute_strategy)
        with plan.prepared(cache, workers=only, log=self.how["log"]):
            self.stored.add(cache)


@reports_lost_workers()
def run_approaches(
    name: str,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    data: Mapping[str, Source],
    output: str | pathlib.Path,
    tasks: Sequence[str] | None = None,
    restarts: int | None = None,
    settings: Mapping[str, Any] | None = None,
    task_options: Mapping[str, Any] | None = None,
    strategy_name: str = "one",
    verbose: int | str = 0,
    log: Callable[[str], None] = print,
    **options: Any,
) -> Results:
    """Trains all runs that have not finished, then writes the files of this module.

    name: a key of APPROACHES
    data: the source of each task, by name; other tasks come from TensorFlow Datasets
    tasks: by name; None takes those of the ablation
    restarts: seeds of each row; None takes RESTARTS
    settings: fields of Hparams for all runs; the learning rate is that of fine-tuning, the seed that of the first restart
    task_options: fields of TASK_OPTIONS, for the tasks that have them
    options: fields of ApproachOptions

    A wider call in the same folder trains only what is new. A run whose loss diverged, or that is degenerate, is listed. Raises
    BertKerasError or MissingFileError, before any training, for unknown names, unreadable data, layers that the encoder lacks, an
    option that no task has, a setting that no row reads, and if `output` holds other files. Raises as `finetune` too.
    """
    chosen, given = ApproachOptions(**options), dict(settings or {})
    seeds = _seeds(given.get("seed", Hparams.seed), RESTARTS if restarts is None else restarts)
    output, workers = to_path(output), Workers(strategy(strategy_name))
    log = workers.log(log)
    names = _names(name, tasks, data)
    _check_output(output, name)
    rows = _rows(name, chosen.rows, given, context=(task_options or {}).get("context"))
    check_settings(rows, given, [option for option, value in options.items() if value is not None])
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    _check_blocks(rows, source.config.num_layers)
    subjects = _subjects(names, rows, data, task_options or {})
    plan = _Plan(
        output=output,
        source=source,
        subjects=subjects,
        rows=rows,
        seeds=seeds,
        given=given,
        options=chosen,
        workers=workers,
        how={"strategy_name": strategy_name, "verbose": verbose, "log": log},
    )
    cells = _checked_cells(name, plan)
    with workers.writing(locked(output)):
        results = _run(name, plan, cells, log=log)
        if workers.chief:
            baselines = {subject.name: subject.baseline for subject in subjects}
            draw_rows(results.measures, output / PICTURE, baselines=baselines)
            write_json(output / RESULTS_FILE, as_json(results))
    return results


def _seeds(first: int, restarts: int) -> range:
    if restarts < 1:
        raise BertKerasError(f"restarts is {restarts}; give at least 1.")
    return range(first, first + restarts)


def _checked_cells(name: str, plan: _Plan) -> list[Cell]:
    """The cells.

    Raises BertKerasError for a run that `finetune` would refuse after its folder is begun, and in all workers unless they have
    the same cells.
    """
    for subject in plan.subjects:
        for row in plan.rows:
            hparams, strategy_name = plan.hparams(subject, row, plan.seeds[0]), plan.how["strategy_name"]
            check_run(subject.tasks[row.name], plan.start(row.random), hparams, strategy_name=strategy_name)
        for row in {row.context: row for row in plan.rows}.values():
            check_labels(subject.tasks[row.name], plan.source, plan.hparams(subject, row, plan.seeds[0]))
    cells = [*plan.cells()]
    asked = {
        "ablation": name,
        "tasks": [subject.name for subject in plan.subjects],
        "rows": [row.name for row in plan.rows],
        "restarts": len(plan.seeds),
    }
    check_same(cells, asked, workers=plan.workers)
    return cells


def _names(name: str, tasks: Sequence[str] | None, data: Mapping[str, Source]) -> Sequence[str]:
    """The names of the tasks."""
    if name not in APPROACHES:
        raise BertKerasError(f"unknown name {name!r}; give one of {', '.join(APPROACHES)}.")
    names = tasks or APPROACHES[name].tasks or tuple(data)
    check_once(names)
    check_used(data, names)
    return names


def _check_output(output: pathlib.Path, name: str) -> None:
    """Raises BertKerasError if the folder has results that those of this ablation would replace."""
    file = output / RESULTS_FILE
    if file.is_file() and read_object(file).get("ablation") != name:
        raise BertKerasError(f"{output} holds another run, with its {RESULTS_FILE}; give another folder.")


def _rows(
    name: str, rows: Sequence[str] | None, given: Mapping[str, Any], *, context: str | None
) -> list[Row]:
    """The rows. context: that of rows without one of their own; None leaves it to the task."""
    made = [Row(one) for one in rows or APPROACHES[name].rows]
    if not made or len({*made}) < len(made):
        raise BertKerasError(
            f"the rows are {', '.join(row.name for row in made) or 'none'}; give at least one, each once."
        )
    if given.get("max_examples") is not None and len({row.context or context for row in made}) > 1:
        raise BertKerasError(
            "max_examples counts documents in rows with the context document and sentences in others, so these rows would learn "
            "from other words; give a smaller training file instead, or leave out the rows with a context of their own."
        )
    own = [row.name for row in made if row.context is not None]
    if own and (
        refused := [f"--{name.replace('_', '-')}" for name in ("seq_length", "batch_size") if name in given]
    ):
        raise BertKerasError(
            f"{' and '.join(refused)} would not fit {', '.join(own)}: each context has lengths and batches of its own; "
            f"leave {'it' if len(refused) == 1 else 'them'} out, or the rows."
        )
    return made


def _check_blocks(rows: Sequence[Row], num_layers: int) -> None:
    """Raises BertKerasError if the encoder has too few blocks for a row."""
    short = {}
    for row in rows:
        try:
            _ = row.layers and places_of(row.layers, num_layers=num_layers)
        except BertKerasError as error:
            short[row.name] = error
    if short:
        fitting = [row.name for row in rows if row.name not in short]
        raise BertKerasError(
            f"the encoder has {num_layers} blocks, too few for the rows {', '.join(short)}; give others, such as --rows "
            f"{' '.join(fitting) or 'fine-tuning last'}."
        )


def _subjects(
    names: Sequence[str], rows: Sequence[Row], data: Mapping[str, Source], options: Mapping[str, Any]
) -> list[Subject]:
    """Opens the tasks and reads their examples once, so that bad data raises an error before any training."""
    made, known = [], set[str]()
    for name in names:
        check_dev_split(data.get(name))
        read = task_type(name).options
        fitting = {option: value for option, value in options.items() if option in read}
        known |= {*fitting}
        tasks = dict[str, Task]()
        for context in {row.context for row in rows}:
            changes = {} if context is None else {"context": context}
            task = open_task(name, data.get(name), **fitting | changes)
            task.examples("train")
            tasks |= {row.name: task for row in rows if row.context == context}
        examples = task.examples(task.validation_splits[0])
        raw = next(examples.batch(cardinality(examples)).as_numpy_iterator())
        made.append(Subject(name=name, tasks=tasks, baseline=in_percent(task.baseline(raw), kind=task.kind)))
    if unknown := [f"--{option.replace('_', '-')}" for option in options if option not in known]:
        raise BertKerasError(f"{', '.join(unknown)} does not apply to {', '.join(names)}; leave it out.")
    return made


def _run(name: str, plan: _Plan, cells: Sequence[Cell], *, log: Callable[[str], None]) -> Results:
    """Runs the cells, and removes the vectors of a task whose runs are finished."""
    found = {}
    ended = run_cells(cells, workers=plan.workers, log=log)
    for ran, following in itertools.zip_longest(ended, cells[1:]):
        found[ran.cell.path] = ran
        folder = ran.cell.path.parent
        if plan.workers.chief and (following is None or following.path.parent != folder):
            shutil.rmtree(plan.output / VECTORS / folder.name, ignore_errors=True)
    if plan.workers.chief:
        shutil.rmtree(plan.output / VECTORS, ignore_errors=True)
    measures = {row.name: {subject.name: list[float]() for subject in plan.subjects} for row in plan.rows}
    failed = {}
    for subject, row, seed in itertools.product(plan.subjects, plan.rows, plan.seeds):
        ran, task = found[plan.run(subject, row, seed)], subject.tasks[row.name]
        if ran.degenerate is not None:
            failed[f"{subject.name}, {row.name}, seed {seed}"] = ran.degenerate
        if ran.measures:
            measures[row.name][subject.name].append(in_percent(ran.measures[task.measure], kind=task.kind))
    return Results(name=name, subjects=plan.subjects, measures=measures, failed=failed)
