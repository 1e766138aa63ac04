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
from bert_keras.fields import checked_value, flag_of
from bert_keras.io.files import locked
from bert_keras.io.paths import to_path
from bert_keras.model.choices import places_of
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.finetune import finetune, plan_finetuning
from bert_keras.tasks.frozen.cache import layers_in
from bert_keras.tasks.hparams import OF_FEATURES, Hparams, hparams_of
from bert_keras.tasks.runs.task_types import task_type
from bert_keras.tasks.study import grid, work
from bert_keras.tasks.study.comparison import Comparison, compare, write_comparison
from bert_keras.tasks.study.grid import Cell, Outcome, Study
from bert_keras.tasks.study.paper import FIGURES
from bert_keras.tasks.study.rows import (
    APPROACHES,
    FINE_TUNING,
    OF_FINE_TUNING,
    RANDOM,
    Approach,
    check_once,
    chosen_approaches,
)
from bert_keras.tasks.study.study_options import AblationOptions, ApproachOptions
from bert_keras.tasks.task import Task

RESTARTS = 3
COVERS = "the error covers the seeds of training from one checkpoint on the same examples"
VECTORS = "vectors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FromCheckpoint:
    """An ablation of one checkpoint that is ready to run.

    starts: False -> the checkpoint; True -> the checkpoint without weights, for rows that start at random
    tasks: by the name and the context of their rows
    given: the settings that were given, by the names of Hparams
    how: arguments for every training: strategy_name, verbose, log
    """

    output: pathlib.Path
    starts: Mapping[bool, checkpoints.Checkpoint]
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
        """The restarts of each row on each task. Raises BertKerasError for a run that `finetune` would refuse."""
        runs = [  # all rows have a first restart before one has a second
            (name, row, self._hparams(name, row, seed))
            for name, seed, row in itertools.product(self.names, self.seeds, self.rows)
        ]
        tokenizer = checkpoints.tokenizer_of(self.starts[False])
        fingerprints = grid.fingerprints_of(
            [
                (self.tasks[name, row.context], self.starts[row.random], hparams)
                for name, row, hparams in runs
            ],
            strategy_name=self.how["strategy_name"],
        )
        for (name, row, hparams), fingerprint in zip(runs, fingerprints, strict=True):
            yield Cell(
                name=f"{name}: {row.name}, seed {hparams.seed}",
                path=self.output / name / f"{row.name.replace(',', '-')}_seed-{hparams.seed}",
                task=name,
                place={"row": row.name, "seed": hparams.seed},
                fingerprint=fingerprint,
                train=functools.partial(self._train, name, row, hparams),
                work=functools.partial(
                    work.of_finetuning,
                    self.tasks[name, row.context],
                    self.starts[row.random].config,
                    tokenizer,
                    hparams,
                ),
            )

    def _hparams(self, name: str, row: Approach, seed: int) -> Hparams:
        """The settings of a run. All restarts learn from the same examples."""
        others = OF_FEATURES if row.layers is None else OF_FINE_TUNING
        given = {name: value for name, value in self.given.items() if name not in others} | {"seed": seed}
        if given.get("max_examples") is not None:
            given.setdefault("data_seed", self.seeds[0])
        if row.layers is not None:
            given |= {"feature_layers": row.layers, "learning_rate": self.options.feature_learning_rate}
            epochs = self.options.feature_epochs
            given |= {} if epochs is None else {"epochs": epochs}
        return hparams_of(self.tasks[name, row.context].defaults, given)

    def _train(self, name: str, row: Approach, hparams: Hparams, *, output: pathlib.Path) -> None:
        task, cache = self.tasks[name, row.context], None
        # An encoder at random weights differs from seed to seed, so its vectors are not shared.
        if row.layers is not None and not row.random:
            cache = self.output / VECTORS / name / (row.context or "given")
            if cache not in self.stored and self.workers.chief:
                self._store(task, hparams, cache, context=row.context)
        how = {"hparams": hparams, "feature_cache": cache, **self.how}
        finetune(task, checkpoint=self.starts[row.random], output=output, **how)

    def _store(self, task: Task, hparams: Hparams, cache: pathlib.Path, *, context: str | None) -> None:
        """Computes the vectors of all layers that rows of this context read, in one pass."""
        source = self.starts[False]
        layers = [row.layers for row in self.rows if not row.random and row.context == context]
        chosen = (places_of(one, num_layers=source.config.num_layers) for one in layers if one is not None)
        places = sorted({*itertools.chain.from_iterable(chosen)})
        if not {*layers_in(cache)} >= {*places}:  # an interrupted call with fewer rows began it
            shutil.rmtree(cache, ignore_errors=True)
        plain = {name: getattr(Hparams, name) for name in ("mix_norm", "feature_reader")}
        every_layer = ",".join(map(str, places))
        every = dataclasses.replace(hparams, feature_layers=every_layer, lstm_layers=0, **plain)
        plan = plan_finetuning(task, checkpoint=source, hparams=every, feature_cache=cache, output=cache)
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
        row = self.rows[0]
        tasks = {one: self.tasks[one, row.context] for one in self.names}
        baselines = {
            one: grid.baseline(task, self._hparams(one, row, self.seeds[0])) for one, task in tasks.items()
        }
        return compared_approaches(name, self.rows, tasks, outcomes, baselines=baselines)

    def run(self, name: str, cells: Sequence[Cell]) -> Comparison:
        """Runs the cells and writes the files of this module."""
        with self.workers.writing(locked(self.output)):
            found = self.compared(name, [*self.outcomes(cells)])
            if self.workers.chief:
                write_comparison(found, self.output)
        return found


@reports_lost_workers()
def plan_approaches(
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
) -> Study[Comparison]:
    """Reads and checks everything; its `run` trains all runs that have not finished, then writes the files of this module.

    name: a key of APPROACHES
    data: the source of each task, by name; other tasks come from TensorFlow Datasets
    tasks: by name; None takes those of the ablation
    restarts: seeds of each row; None takes RESTARTS
    settings: fields of Hparams for all runs; the learning rate is that of fine-tuning, the seed that of the first restart
    task_options: fields of TASK_OPTIONS, for the tasks that have them
    options: fields of ApproachOptions

    A wider call in the same folder trains only what is new. A run whose loss diverged, or that is degenerate, is listed. Raises
    BertKerasError or MissingFileError for unknown names, unreadable data, layers that the encoder lacks, an
    option that no task has, a setting that no row reads, and if `output` holds other files. Raises as `finetune` too.
    """
    chosen, given = ApproachOptions(**options), dict(settings or {})
    grid.check_name(name, APPROACHES)
    restarts = checked_value(AblationOptions, "restarts", restarts) or RESTARTS
    output, workers = to_path(output), Workers(strategy(strategy_name))
    names = tasks or APPROACHES[name].tasks or tuple(data)
    check_once("tasks", names)
    grid.check_used(data, names)
    grid.earlier_results(output, lambda found: found.get("ablation") == name)
    context = (task_options or {}).get("context")
    rows = chosen_approaches(chosen.rows or APPROACHES[name].rows, given, options, context=context)
    source = checkpoints.source_of(checkpoint)
    plan = _FromCheckpoint(
        output=output,
        starts={False: source, True: dataclasses.replace(source, tensors={})},
        tasks=_open_contexts(names, rows, data, task_options or {}),
        names=names,
        rows=rows,
        seeds=[given.get("seed", Hparams.seed) + i for i in range(restarts)],
        given=given,
        options=chosen,
        workers=workers,
        how={"strategy_name": strategy_name, "verbose": verbose, "log": workers.log(log)},
    )
    cells = [*plan.cells()]
    asked = {"ablation": name, "tasks": names, "restarts": restarts, "rows": [row.name for row in rows]}
    grid.check_same(cells, asked, workers=workers)
    return Study(cells=cells, train=functools.partial(plan.run, name, cells))


def run_approaches(name: str, **settings: Any) -> Comparison:
    """Runs the study that `plan_approaches` makes of these settings."""
    return plan_approaches(name, **settings).run()


def _open_contexts(
    names: Sequence[str], rows: Sequence[Approach], data: Mapping[str, Source], options: Mapping[str, Any]
) -> dict[tuple[str, str | None], Task]:
    """The tasks in the contexts of the rows, by both. Raises BertKerasError for an option that no task has."""
    fitting = {
        name: {option: value for option, value in options.items() if option in task_type(name).options}
        for name in names
    }
    tasks = {}
    for name, context in itertools.product(names, dict.fromkeys(row.context for row in rows)):
        own = {} if context is None else {"context": context}
        tasks[name, context] = grid.opened(name, data, **fitting[name] | own)
    known = {option for given in fitting.values() for option in given}
    if unknown := [flag_of(option) for option in options if option not in known]:
        raise BertKerasError(f"{', '.join(unknown)} does not apply to {', '.join(names)}; leave it out.")
    return tasks


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
    return compare(
        outcomes,
        tasks,
        name=name,
        title=APPROACHES[name].title,
        measures=measures,
        figures=figures,
        pairs=[*itertools.pairwise(ranked), *_controls(rows)],
        baselines=baselines,
        covers=COVERS,
    )


def figure_of(task: str, measure: str, *, features: str | None = None) -> float | None:
    """BERT base's measure in percent; on dev where the paper has it, else on test (GLUE). None where it has none.

    features: a row of LAYERS in place of fine-tuning
    """
    model = "base" if features is None else f"base, features: {features}"
    found = [one for one in FIGURES if (one.task, one.model, one.measure) == (task, model, measure)]
    return min(found, key=lambda one: one.split != "dev").value if found else None


def _controls(rows: Sequence[Approach]) -> Iterator[tuple[str, str]]:
    """Yields each row with the same row at random weights, or with fine-tuning from there in the same context."""
    names = [row.name for row in rows]
    for row in rows:
        fine_tuning = FINE_TUNING if row.context is None else f"{row.context}-{FINE_TUNING}"
        wanted = (f"{RANDOM}{row.name}", f"{RANDOM}{fine_tuning}")
        control = next((control for control in wanted if control in names), None)
        if control is not None and not row.random:
            yield row.name, control
