"""The paper's protocol: a grid of learning rates, batch sizes and epochs, restarts, and the best run on dev.

In: opened tasks, a checkpoint, settings. Out: a folder

    OUTPUT/<task>/lr-<rate>_seed-<seed>/   cells of tasks/study/cells.py, each a run of `finetune`
    OUTPUT/results.json                    the measures of every run, the best, the median, the spread, the ensemble
    OUTPUT/results.png                     a plot with a dot for each run

Names of cells have `_batch-<size>` and `_epochs-<count>` too where these differ from the settings of the task.

Source: Devlin et al. 2019, sec. 4.1 and A.3 (values chosen on dev, random restarts with another order and another head).
"""

import dataclasses
import functools
import itertools
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face import SAFETENSORS
from bert_keras.errors import BertKerasError
from bert_keras.io.files import locked, write_json
from bert_keras.io.json_files import (
    TEXT,
    or_null,
    read_object,
    typed,
)
from bert_keras.io.paths import to_path
from bert_keras.tasks.batches import predict
from bert_keras.tasks.devices.strategies import check_micro_batch, strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.examples import check_fits, check_labelled
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.finetuning.finetuning_monitor import DEGENERATE
from bert_keras.tasks.frozen.feature_based import check_feature_based
from bert_keras.tasks.hparams import FEATURE_RATE, Hparams
from bert_keras.tasks.options import ProtocolOptions
from bert_keras.tasks.runs.ensemble import load_runs
from bert_keras.tasks.runs.run_folder import Run, load_run
from bert_keras.tasks.study.cells import (
    Cell,
    check_same,
    identity_of_data,
    remove_weights,
    run_cells,
)
from bert_keras.tasks.study.cells import Outcome as CellOutcome
from bert_keras.tasks.study.summary import (
    Ensemble,
    Outcome,
    Summary,
    as_json,
    draw,
    ranked,
)
from bert_keras.tasks.task import Arrays, Task
from bert_keras.tasks.training.identity import identity_of_checkpoint
from bert_keras.tasks.training.loop import RESULTS_FILE
from bert_keras.text.preprocessing import Preprocessor

PICTURE = "results.png"
# Of fine-tuning (Devlin et al. 2019, sec. 4.1).
RATES = (5e-5, 4e-5, 3e-5, 2e-5)


# -----------------------------------------------------------------------------------------------------------
# The grid


def check_grid(hparams: Hparams, options: ProtocolOptions, *, defaults: Mapping[str, Any]) -> None:
    """Raises BertKerasError for values that are given twice or not at all, and for settings that do not fit a grid.

    defaults: the settings of the task's paper, whose learning rate the grid replaces
    """
    for name in ("learning_rates", "batch_sizes", "epoch_counts"):
        values = getattr(options, name)
        if values is not None and (not values or len({f"{value:g}" for value in values}) < len(values)):
            raise BertKerasError(f"{name} is {values}; give at least one value, each once.")
    if hparams.dev_fraction is not None:
        raise BertKerasError(
            "dev_fraction does not apply to a protocol, because each seed would hold out other examples; give a dev split."
        )
    known = (Hparams(feature_layers=hparams.feature_layers).learning_rate, defaults.get("learning_rate"))
    if options.learning_rates is None and hparams.learning_rate not in known:
        raise BertKerasError(
            f"learning_rate is {hparams.learning_rate:g}, and a grid has learning_rates of its own; give learning_rates=("
            f"{hparams.learning_rate:g},) instead."
        )
    runs = len([*_grid(hparams, options)])
    if options.ensemble is not None and options.ensemble > runs:
        raise BertKerasError(
            f"the ensemble has {options.ensemble} members and the grid {runs} run(s); give fewer members or more restarts."
        )


def _grid(hparams: Hparams, options: ProtocolOptions) -> Iterator[tuple[str, Hparams]]:
    """The name and the settings of each run of a task, in order."""
    rates = RATES if hparams.feature_layers is None else (FEATURE_RATE,)
    for rate, batch_size, epochs, seed in itertools.product(
        options.learning_rates or rates,
        options.batch_sizes or (hparams.batch_size,),
        options.epoch_counts or (hparams.epochs,),
        range(hparams.seed, hparams.seed + options.restarts),
    ):
        # The task's own values have no part in the name, so that a wider grid finds the runs of a narrower one.
        parts = [f"lr-{rate:g}"]
        parts += [f"batch-{batch_size}"] if batch_size != hparams.batch_size else []
        parts += [f"epochs-{epochs}"] if epochs != hparams.epochs else []
        yield (
            "_".join([*parts, f"seed-{seed}"]),
            dataclasses.replace(hparams, learning_rate=rate, batch_size=batch_size, epochs=epochs, seed=seed),
        )


def _cells(
    name: str,
    task: Task,
    *,
    source: checkpoints.Checkpoint,
    output: pathlib.Path,
    hparams: Hparams,
    options: ProtocolOptions,
    strategy_name: str,
    feature_cache: str | pathlib.Path | None,
    verbose: int | str,
    log: Callable[[str], None],
) -> Iterator[Cell]:
    start = identity_of_checkpoint(source, checkpoints.tokenizer_of(source)) | {"strategy": strategy_name}
    about = {"task": task.to_json(), **identity_of_data(task), **start}
    how: dict[str, Any] = {
        "strategy_name": strategy_name,
        "feature_cache": feature_cache,
        "verbose": verbose,
        "log": log,
    }
    train = functools.partial(finetune, task, checkpoint=source, **how)
    for cell, settings in _grid(hparams, options):
        grid = f", batch size {settings.batch_size}" if options.batch_sizes else ""
        grid += f", {settings.epochs} epochs" if options.epoch_counts else ""
        yield Cell(
            name=f"{name}: learning rate {settings.learning_rate:g}{grid}, seed {settings.seed}",
            path=output / name / cell,
            identity=settings.identity() | about,
            train=functools.partial(train, hparams=settings),
            judge=functools.partial(degenerate_run, task),
        )


def degenerate_run(task: Task, path: pathlib.Path) -> str | None:
    """The reason why a run of `finetune` did not learn; None if it learned."""
    results = read_object(path / RESULTS_FILE)
    if DEGENERATE in results:  # versions before this key left it to the protocol
        kinds = {DEGENERATE: or_null(TEXT)}
        return typed(results, kinds, where=path / RESULTS_FILE, others=True)[DEGENERATE]
    run = load_run(path)
    return run.task.degenerate(*_on_dev(run, task))


def _on_dev(run: Run, task: Task, split: str | None = None) -> tuple[Arrays, Arrays]:
    """The run's predictions of a split of the task, by default its first validation split, and the raw examples."""
    examples = task.examples(split or task.validation_splits[0])
    return predict(run.task, run.preprocess, run.model, examples)


def _outcome(ran: CellOutcome) -> Outcome:
    names = ("learning_rate", "batch_size", "epochs", "seed")
    return Outcome(
        **{name: ran.cell.identity[name] for name in names},
        path=ran.cell.path,
        measures=ran.measures,
        degenerate=ran.degenerate,
    )


def check_output(output: pathlib.Path, tasks: Sequence[str]) -> None:
    """Raises BertKerasError if the folder has results that these tasks' results would replace."""
    file = output / RESULTS_FILE
    if not file.is_file():
        return
    there = read_object(file).get("tasks")
    if not isinstance(there, dict):
        raise BertKerasError(f"{output} holds another run, with its {RESULTS_FILE}; give another folder.")
    if others := [name for name in there if name not in tasks]:
        raise BertKerasError(
            f"{output} holds the results of {', '.join(others)}; give another folder, or name all its tasks."
        )


def planned(
    tasks: Mapping[str, Task],
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: pathlib.Path,
    hparams: Mapping[str, Hparams],
    options: ProtocolOptions,
    strategy_name: str,
    feature_cache: str | pathlib.Path | None = None,
    verbose: int | str,
    log: Callable[[str], None],
) -> list[Cell]:
    """The runs of every task, in order. It makes no folder.

    tasks, hparams: by name, the folder in `output`

    Raises BertKerasError for a run that `finetune` would refuse, and in all workers unless they have the same runs and options.
    """
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    how: dict[str, Any] = {"strategy_name": strategy_name, "feature_cache": feature_cache}
    for name, task in tasks.items():
        # Rates, epochs and seeds fit any task.
        for settings in {one.batch_size: one for _, one in _grid(hparams[name], options)}.values():
            check_run(task, source, settings, **how)
        check_labels(task, source, hparams[name])
    how |= {"source": source, "output": output, "options": options, "verbose": verbose, "log": log}
    cells = [
        cell for name, task in tasks.items() for cell in _cells(name, task, hparams=hparams[name], **how)
    ]
    asked = {"tasks": [*tasks], **dataclasses.asdict(options)}
    check_same(cells, asked, workers=Workers(strategy(strategy_name)))
    return cells


def check_run(
    task: Task,
    source: checkpoints.Checkpoint,
    hparams: Hparams,
    *,
    strategy_name: str,
    feature_cache: str | pathlib.Path | None = None,
) -> None:
    """Raises BertKerasError for settings that `finetune` would refuse after the folder of the run is begun.

    There the refused settings would be the identity of the run, and the right ones another.
    """
    distribution = strategy(strategy_name)
    check_micro_batch(distribution, batch_size=hparams.batch_size, micro_batch=hparams.micro_batch)
    if source.tensors:
        task.check_checkpoint(source)
    check_fits(task, source.config, checkpoints.tokenizer_of(source), hparams)
    check_feature_based(task, source.config, hparams, keep_head=False, feature_cache=feature_cache)


def check_labels(task: Task, source: checkpoints.Checkpoint, hparams: Hparams) -> None:
    """Raises BertKerasError for a split without labels, which `finetune` would refuse after the folder of the run is begun."""
    preprocess = Preprocessor(checkpoints.tokenizer_of(source), seq_length=hparams.seq_length)
    for split in ("train", task.validation_splits[0]):
        check_labelled(task, preprocess, task.examples(split), split)


def run_tasks(
    tasks: Mapping[str, Task],
    cells: Sequence[Cell],
    *,
    options: ProtocolOptions,
    workers: Workers,
    log: Callable[[str], None],
) -> tuple[list[Summary], list[str]]:
    """Trains the runs of every task that have not finished; returns the summaries, and the tasks whose loss always diverged.

    cells: of `planned`; lock the output while this runs

    Raises BertKerasError if the output holds other files, or runs with other data, checkpoint or settings, if every task failed,
    or if an earlier call with `best_only` removed the weights of a best run. Raises as `finetune` too.
    """
    found: dict[str, list[Outcome]] = {name: [] for name in tasks}
    for ran in run_cells(cells, workers=workers, log=log):
        name = ran.cell.path.parent.name
        found[name].append(_outcome(ran))
        if options.best_only and workers.chief:
            _remove_weights(found[name], measure=tasks[name].measure, keep=options.ensemble or 1)
    measured = [name for name in tasks if any(outcome.measures for outcome in found[name])]
    failed = [name for name in tasks if name not in measured]
    if not measured:
        workers.wait_to_end()
        raise BertKerasError(f"{without_measures(failed)}; give lower learning rates.")
    for name in measured:  # before the first evaluation
        best = ranked(found[name], measure=tasks[name].measure)[0]
        workers.from_chief(functools.partial(check_has_weights, best))
    summaries = [
        summarize(tasks[name], found[name], ensemble=options.ensemble, workers=workers, log=log)
        for name in measured
    ]
    return summaries, failed


def without_measures(failed: Sequence[str]) -> str:
    """The reason why tasks have no summary."""
    return f"{', '.join(failed)} has no measures: the loss of every run diverged"


@reports_lost_workers()
def run_protocol(
    task: Task,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: str | pathlib.Path,
    hparams: Hparams,
    strategy_name: str = "one",
    feature_cache: str | pathlib.Path | None = None,
    verbose: int | str = 0,
    log: Callable[[str], None] = print,
    **options: Any,
) -> Summary:
    """Trains all runs of one task that have not finished, then writes the files of this module.

    hparams: for every run, except what the grid varies; its seed is that of the first restart. The grid has rates of its own:
        give them in learning_rates
    feature_cache: as in `finetune`; all runs read it
    options: fields of ProtocolOptions

    A run whose loss diverged is degenerate. Raises BertKerasError as `planned` and `run_tasks`, for a grid without values, if
    another process writes to `output`, and if an earlier call with `best_only` removed the weights of this call's best runs.
    """
    chosen = ProtocolOptions(**options)
    check_grid(hparams, chosen, defaults=task.defaults)
    drawn = hparams.max_examples is not None and hparams.data_seed is None
    if feature_cache is not None and drawn and chosen.restarts > 1:
        raise BertKerasError(
            "max_examples draws other examples for each seed, so restarts cannot share a feature_cache; give a data_seed, or "
            "leave one of them out."
        )
    output, workers = to_path(output), Workers(strategy(strategy_name))
    log = workers.log(log)
    check_output(output, [task.name])
    for split in task.validation_splits:
        task.examples(split)  # the best run is measured on all of them
    tasks = {task.name: task}
    cells = planned(
        tasks,
        checkpoint=checkpoint,
        output=output,
        hparams={task.name: hparams},
        options=chosen,
        strategy_name=strategy_name,
        feature_cache=feature_cache,
        verbose=verbose,
        log=log,
    )
    with workers.writing(locked(output)):
        summaries, _ = run_tasks(tasks, cells, options=chosen, workers=workers, log=log)
        if workers.chief:
            draw(summaries, output / PICTURE)
            write_json(output / RESULTS_FILE, as_json(summaries))
    return summaries[0]


# -----------------------------------------------------------------------------------------------------------
# The best runs


def _remove_weights(outcomes: Sequence[Outcome], *, measure: str, keep: int) -> None:
    best = ranked(outcomes, measure=measure)[:keep]
    for outcome in outcomes:
        if outcome not in best:
            remove_weights(outcome.path)


def check_has_weights(best: Outcome) -> None:
    """Raises BertKerasError if `best_only` removed the weights of one of the best runs."""
    if not (best.path / SAFETENSORS).is_file():
        raise BertKerasError(
            f"{best.path} is the best of these runs and has no {SAFETENSORS}: best_only removed it when another run was the "
            "best; remove this folder to train it again, or give the learning rates and restarts of that call."
        )


def summarize(
    task: Task,
    outcomes: Sequence[Outcome],
    *,
    ensemble: int | None = None,
    workers: Workers | None = None,
    log: Callable[[str], None] = print,
) -> Summary:
    """Best, median and spread; the chief also evaluates the best run on the other validation splits, and the ensemble.

    outcomes: at least one has a measure
    """
    workers = workers or Workers()
    best = ranked(outcomes, measure=task.measure)
    values = [outcome.measures[task.measure] for outcome in outcomes if outcome.degenerate is None]
    measures = {task.validation_splits[0]: best[0].measures}
    measures |= workers.from_chief(lambda: _on_other_splits(task, best[0]))
    return Summary(
        task=task.name,
        measure=task.measure,
        outcomes=tuple(outcomes),
        best=best[0],
        median=statistics.median(values) if values else None,
        lowest=min(values, default=None),
        highest=max(values, default=None),
        measures=measures,
        ensemble=None if ensemble is None else _ensemble(task, best, ensemble, workers=workers, log=log),
    )


def _on_other_splits(task: Task, best: Outcome) -> dict[str, dict[str, float]]:
    """The measures of the best run on the validation splits after the first, by split."""
    others = task.validation_splits[1:]
    if not others:
        return {}
    run = load_run(best.path)
    return {split: _measures(run, task, split) for split in others}


def _measures(run: Run, task: Task, split: str | None = None) -> dict[str, float]:
    return {name: float(value) for name, value in run.task.evaluate(*_on_dev(run, task, split))}


def _ensemble(
    task: Task, best: Sequence[Outcome], size: int, *, workers: Workers, log: Callable[[str], None]
) -> Ensemble | None:
    """The ensemble of the best runs; None, with a line that says so, if fewer learned."""
    members = tuple(outcome for outcome in best if outcome.degenerate is None)[:size]
    if len(members) < size:
        log(
            f"{task.name} has no ensemble of {size}: {len(members)} run(s) learned; give fewer members or more restarts"
        )
        return None

    def measures() -> dict[str, float]:
        for member in members:
            check_has_weights(member)
        return _measures(load_runs([member.path for member in members]), task)

    return Ensemble(members=members, measures=workers.from_chief(measures))
