"""Ablations of one checkpoint: fine-tuning, features of its layers, and random weights, each trained from several seeds.

In: a key of APPROACHES, a checkpoint, the tasks' data. Out: a folder

    OUTPUT/<task>/<row>_seed-<seed>/   cells of tasks/study/grid.py, each a run of `finetune`
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
from bert_keras.io.files import locked
from bert_keras.io.paths import to_path
from bert_keras.model.layer_choices import places_of
from bert_keras.tasks.batches import cardinality
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.finetune import finetune, fingerprint_of_finetuning, plan_finetuning
from bert_keras.tasks.frozen.cache import layers_in
from bert_keras.tasks.hparams import OF_FEATURES, Hparams, hparams_of
from bert_keras.tasks.metrics import in_percent
from bert_keras.tasks.options import ApproachOptions
from bert_keras.tasks.runs.run_folder import task_type
from bert_keras.tasks.study import grid
from bert_keras.tasks.study.grid import Cell, Outcome
from bert_keras.tasks.study.report import Comparison, compare, figure_of, write_comparison
from bert_keras.tasks.study.rows import (
    APPROACHES,
    FINE_TUNING,
    OF_FINE_TUNING,
    RANDOM,
    Approach,
    approach_of,
    check_settings,
)
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.plan import fingerprint_of_checkpoint

RESTARTS = 3
VECTORS = "vectors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FromCheckpoint:
    """An ablation of one checkpoint that is ready to run.

    tasks: by the name and the context of their rows
    given: the settings that were given, by the names of Hparams
    how: arguments for every training
    """

    output: pathlib.Path
    source: checkpoints.Checkpoint
    tasks: Mapping[tuple[str, str | None], Task]
    names: Sequence[str]
    rows: Sequence[Approach]
    seeds: Sequence[int]
    given: Mapping[str, Any]
    options: ApproachOptions
    workers: Workers
    how: Mapping[str, Any]
    stored: set[pathlib.Path] = dataclasses.field(default_factory=set)

    def cells(self) -> Iterator[Cell]:
        """The restarts of each row on each task.

        Raises BertKerasError for a run that `finetune` would refuse.
        """
        strategy_name, tokenizer = self.how["strategy_name"], checkpoints.tokenizer_of(self.source)
        for name, row in itertools.product(self.names, self.rows):
            hparams, start = self._hparams(name, row, self.seeds[0]), self._start(row)
            grid.check_finetuning(self.tasks[name, row.context], start, hparams, strategy_name=strategy_name)
        by_context = {row.context: row for row in self.rows}
        data = {
            (name, context): grid.fingerprint_of_data(
                self.tasks[name, context], tokenizer, self._hparams(name, row, self.seeds[0])
            )
            for name, (context, row) in itertools.product(self.names, by_context.items())
        }
        by_start = {row.random: self._start(row) for row in self.rows}
        starts = {random: fingerprint_of_checkpoint(start, tokenizer) for random, start in by_start.items()}
        # All rows have a first restart before one has a second.
        for name, seed, row in itertools.product(self.names, self.seeds, self.rows):
            hparams = self._hparams(name, row, seed)
            yield Cell(
                name=f"{name}: {row.name}, seed {seed}",
                path=self.output / name / f"{row.name.replace(',', '-')}_seed-{seed}",
                task=name,
                place={"row": row.name, "seed": seed},
                fingerprint=fingerprint_of_finetuning(
                    self.tasks[name, row.context],
                    hparams,
                    start=starts[row.random],
                    examples=data[name, row.context],
                    strategy_name=strategy_name,
                ),
                train=functools.partial(self._train, name, row, hparams),
            )

    def _hparams(self, name: str, row: Approach, seed: int) -> Hparams:
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
        return hparams_of(self.tasks[name, row.context].defaults, given)

    def _start(self, row: Approach) -> checkpoints.Checkpoint:
        """The weights from which a row is trained."""
        return dataclasses.replace(self.source, tensors={}) if row.random else self.source

    def _train(self, name: str, row: Approach, hparams: Hparams, *, output: pathlib.Path) -> None:
        task, cache = self.tasks[name, row.context], None
        # An encoder at random weights differs from seed to seed, so its vectors are not shared.
        if row.layers is not None and not row.random:
            cache = self.output / VECTORS / name / (row.context or "given")
            if cache not in self.stored and self.workers.chief:
                self._store(task, hparams, cache, context=row.context)
        how = {"hparams": hparams, "feature_cache": cache, **self.how}
        finetune(task, checkpoint=self._start(row), output=output, **how)

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

    def outcomes(self, cells: Sequence[Cell]) -> Iterator[Outcome]:
        """Runs the cells, and removes the vectors of a task whose runs are finished."""
        ended = grid.run_cells(cells, workers=self.workers, log=self.how["log"])
        for ran, following in itertools.zip_longest(ended, cells[1:]):
            yield ran
            if self.workers.chief and (following is None or following.task != ran.task):
                shutil.rmtree(self.output / VECTORS / ran.task, ignore_errors=True)
        if self.workers.chief:
            shutil.rmtree(self.output / VECTORS, ignore_errors=True)

    def compared(self, name: str, outcomes: Sequence[Outcome]) -> Comparison:
        """The comparison of the rows, in any context, with the most common answer."""
        tasks = {one: self.tasks[one, self.rows[0].context] for one in self.names}
        baselines = {one: _baseline(task) for one, task in tasks.items()}
        return compared_approaches(name, self.rows, tasks, outcomes, baselines=baselines)


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
) -> Comparison:
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
    grid.check_choice(name, APPROACHES, restarts=restarts)
    output, workers = to_path(output), Workers(strategy(strategy_name))
    names = tasks or APPROACHES[name].tasks or tuple(data)
    grid.check_once(names)
    grid.check_used(data, names)
    grid.earlier_results(output, lambda found: found.get("ablation") == name)
    rows = _approaches(name, chosen.rows, given, context=(task_options or {}).get("context"))
    check_settings(rows, given, [option for option, value in options.items() if value is not None])
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    first = given.get("seed", Hparams.seed)
    plan = _FromCheckpoint(
        output=output,
        source=source,
        tasks=_open_contexts(names, rows, data, task_options or {}),
        names=names,
        rows=rows,
        seeds=range(first, first + (RESTARTS if restarts is None else restarts)),
        given=given,
        options=chosen,
        workers=workers,
        how={"strategy_name": strategy_name, "verbose": verbose, "log": workers.log(log)},
    )
    cells = [*plan.cells()]
    asked = {"ablation": name, "tasks": names, "restarts": len(plan.seeds)}
    grid.check_same(cells, asked | {"rows": [row.name for row in rows]}, workers=workers)
    with workers.writing(locked(output)):
        found = plan.compared(name, [*plan.outcomes(cells)])
        if workers.chief:
            write_comparison(found, output)
    return found


def compared_approaches(
    name: str,
    rows: Sequence[Approach],
    tasks: Mapping[str, Task],
    outcomes: Sequence[Outcome],
    *,
    baselines: Mapping[str, float],
) -> Comparison:
    """The outcomes of an ablation of one checkpoint beside BERT base's figures.

    Pairs are neighbours in table 7's order, which the paper gives for CoNLL-2003 and one context; then rows over random weights.
    """
    measures = {task: one.measure for task, one in tasks.items()}
    plain = [row for row in rows if not row.random and row.context is None]
    figures = {
        (row.name, task): figure
        for row, (task, measure) in itertools.product(plain, (measures | {"conll2003": "f1"}).items())
        if (figure := figure_of(task, measure, features=row.layers)) is not None
    }
    in_table_7 = {row: figure for (row, task), figure in figures.items() if task == "conll2003"}
    ranked = sorted(in_table_7, key=lambda row: -in_table_7[row])
    pairs = [*itertools.pairwise(ranked), *_controls(rows)]
    return compare(
        outcomes,
        tasks,
        name=name,
        title=APPROACHES[name].title,
        measures=measures,
        figures=figures,
        pairs=[(task, *pair) for task in tasks for pair in pairs],
        baselines=baselines,
    )


def _controls(rows: Sequence[Approach]) -> Iterator[tuple[str, str]]:
    """Yields each row with the same row at random weights, or with fine-tuning from there in the same context."""
    names = [row.name for row in rows]
    for row in rows:
        fine_tuning = FINE_TUNING if row.context is None else f"{row.context}-{FINE_TUNING}"
        wanted = (f"{RANDOM}{row.name}", f"{RANDOM}{fine_tuning}")
        control = next((control for control in wanted if control in names), None)
        if control is not None and not row.random:
            yield row.name, control


def _baseline(task: Task) -> float:
    """The measure of the most common answer on dev, in percent."""
    examples = task.examples(task.validation_splits[0])
    raw = next(examples.batch(cardinality(examples)).as_numpy_iterator())
    return in_percent(task.baseline(raw), kind=task.kind)


def _approaches(
    name: str, rows: Sequence[str] | None, given: Mapping[str, Any], *, context: str | None
) -> list[Approach]:
    """The rows. context: that of rows without one of their own; None leaves it to the task."""
    made = [approach_of(one) for one in rows or APPROACHES[name].rows]
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


def _open_contexts(
    names: Sequence[str], rows: Sequence[Approach], data: Mapping[str, Source], options: Mapping[str, Any]
) -> dict[tuple[str, str | None], Task]:
    """The tasks in the contexts of the rows, by both. Raises BertKerasError for an option that no task has."""
    fitting = {
        name: {option: value for option, value in options.items() if option in task_type(name).options}
        for name in names
    }
    tasks = {
        (name, context): grid.opened(
            name, data, **fitting[name] | ({} if context is None else {"context": context})
        )
        for name, context in itertools.product(names, dict.fromkeys(row.context for row in rows))
    }
    known = {option for given in fitting.values() for option in given}
    if unknown := [f"--{option.replace('_', '-')}" for option in options if option not in known]:
        raise BertKerasError(f"{', '.join(unknown)} does not apply to {', '.join(names)}; leave it out.")
    return tasks
