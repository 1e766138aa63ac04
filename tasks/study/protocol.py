"""The paper's protocol on one task: a grid of learning rates, batch sizes and epochs, restarts, the best run on dev.

In: opened tasks, a checkpoint, settings. Out: a folder

    OUTPUT/<task>/lr-<rate>_seed-<seed>/   cells of tasks/study/grid.py, each a run of `finetune`
    OUTPUT/results.json                    the measures of every run, the best, the median, the spread, the ensemble
    OUTPUT/results.png                     a plot with a dot for each run
    OUTPUT/<task>/random-weights_...       with `control`, a run of the first setting and seed from random weights

Names of cells have `_batch-<size>` and `_epochs-<count>` too where these differ from the settings of the task.

Source: Devlin et al. 2019, sec. 4.1 and A.3 (values chosen on dev, random restarts with another order and another head).
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face import SAFETENSORS
from bert_keras.errors import BertKerasError
from bert_keras.io.files import locked
from bert_keras.io.paths import to_path
from bert_keras.tasks.batches import predict
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.examples import dev_part
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import FEATURE_RATE, Hparams
from bert_keras.tasks.metrics import as_fractions
from bert_keras.tasks.runs.ensemble import load_runs
from bert_keras.tasks.study import grid, work
from bert_keras.tasks.study.grid import Cell, Outcome, Study
from bert_keras.tasks.study.report import Ensemble, Summary, ranked, summaries_json, write_summaries
from bert_keras.tasks.study.rows import CONTROL
from bert_keras.tasks.study.study_options import ProtocolOptions
from bert_keras.tasks.task import Task

# Of fine-tuning (Devlin et al. 2019, sec. 4.1).
LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)
VARIED = ("learning_rate", "batch_size", "epochs", "seed")  # the settings that a protocol varies


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
    runs = len([*protocol_runs(hparams, options)])
    if options.ensemble is not None and options.ensemble > runs:
        raise BertKerasError(
            f"the ensemble has {options.ensemble} members and the grid {runs} run(s); give fewer members or more restarts."
        )


def protocol_runs(hparams: Hparams, options: ProtocolOptions) -> Iterator[tuple[str, Hparams]]:
    """The name and the settings of each run of a task, in order."""
    rates = LEARNING_RATES if hparams.feature_layers is None else (FEATURE_RATE,)
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
    tasks: Mapping[str, Task],
    source: checkpoints.Checkpoint,
    output: pathlib.Path,
    hparams: Hparams,
    *,
    options: ProtocolOptions,
    how: Mapping[str, Any],
) -> Iterator[Cell]:
    """The runs of every task, in order, with its control. Raises BertKerasError for a run that `finetune` would refuse."""
    runs, randomly = [*protocol_runs(hparams, options)], dataclasses.replace(source, tensors={})
    starts = [(folder, one, source) for folder, one in runs]
    if options.control:
        starts.append((f"{CONTROL.replace(' ', '-')}_{runs[0][0]}", runs[0][1], randomly))
    trainings = [(task, start, one) for task in tasks.values() for _, one, start in starts]
    checked = {name: how[name] for name in ("strategy_name", "feature_cache")}
    fingerprints, tokenizer = (
        iter(grid.fingerprints_of(trainings, **checked)),
        checkpoints.tokenizer_of(source),
    )
    for (name, task), (folder, one, start) in itertools.product(tasks.items(), starts):
        control = start is randomly
        varied = f", batch size {one.batch_size}" if options.batch_sizes else ""
        varied += f", {one.epochs} epochs" if options.epoch_counts else ""
        varied += f", {CONTROL}" if control else ""
        # Random weights have vectors of their own.
        own = {**how, **({"feature_cache": None} if control else {})}
        yield Cell(
            name=f"{name}: learning rate {one.learning_rate:g}{varied}, seed {one.seed}",
            path=output / name / folder,
            task=name,
            place={field: getattr(one, field) for field in VARIED} | ({CONTROL: True} if control else {}),
            fingerprint=next(fingerprints),
            train=functools.partial(finetune, task, checkpoint=start, hparams=one, **own),
            work=functools.partial(work.of_finetuning, task, source.config, tokenizer, one),
        )


def plan_grid(
    tasks: Mapping[str, Task],
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: pathlib.Path,
    hparams: Hparams,
    options: ProtocolOptions,
    finish: Callable[[list[Summary], list[str]], Mapping[str, Any]],
    how: dict[str, Any],
) -> Study[list[Summary]]:
    """The runs of every task; its `run` trains those that have not finished, writes the results and returns the summaries.

    tasks: by name, the folder in `output`
    finish: the summaries, and the tasks whose loss always diverged -> the content of results.json; the chief calls it
    how: strategy_name, feature_cache, verbose and log of `finetune`

    Raises BertKerasError for a run that `finetune` would refuse, and in all workers unless all have the same runs and options.
    """
    workers = Workers(strategy(how["strategy_name"]))
    log = workers.log(how["log"])
    source = checkpoints.source_of(checkpoint)
    cells = [*_cells(tasks, source, output, hparams, options=options, how=how | {"log": log})]
    grid.check_same(cells, {"tasks": [*tasks], **dataclasses.asdict(options)}, workers=workers)
    about: dict[str, Any] = {"hparams": hparams, "options": options, "workers": workers, "log": log}
    return Study(cells=cells, train=functools.partial(_run, tasks, cells, output, finish=finish, **about))


def _run(
    tasks: Mapping[str, Task],
    cells: Sequence[Cell],
    output: pathlib.Path,
    *,
    finish: Callable[[list[Summary], list[str]], Mapping[str, Any]],
    hparams: Hparams,
    options: ProtocolOptions,
    workers: Workers,
    log: Callable[[str], None],
) -> list[Summary]:
    """Trains the cells that have not finished, then writes the results; returns the summaries."""
    found: dict[str, list[Outcome]] = {name: [] for name in tasks}
    controls = dict[str, Outcome]()
    with workers.writing(locked(output)):
        for ran in grid.run_cells(cells, workers=workers, log=log):
            ran = dataclasses.replace(ran, measures=as_fractions(ran.measures, kind=tasks[ran.task].kind))
            if ran.place.get(CONTROL):
                controls[ran.task] = ran
                if options.best_only and workers.chief:
                    grid.remove_weights(ran.path)
                continue
            found[ran.task].append(ran)
            if options.best_only and workers.chief:
                _remove_weights(found[ran.task], tasks[ran.task].measure, keep=options.ensemble or 1)
        lost = [name for name in tasks if not any(one.measures for one in found[name])]
        why = f"{', '.join(lost)} has no measures: the loss of every run diverged"
        if len(lost) == len(tasks):
            workers.wait_to_end()
            raise BertKerasError(f"{why}; give lower learning rates.")
        measured = [name for name in tasks if name not in lost]
        for name in measured:  # before the first evaluation
            best = ranked(found[name], measure=tasks[name].measure)[0]
            workers.from_chief(functools.partial(_check_has_weights, best))
        about: dict[str, Any] = {
            "hparams": hparams,
            "ensemble": options.ensemble,
            "workers": workers,
            "log": log,
        }
        summaries = [
            summarize(
                tasks[name],
                found[name],
                baseline=grid.baseline(tasks[name], hparams),
                control=controls.get(name),
                **about,
            )
            for name in measured
        ]
        if workers.chief:
            write_summaries(summaries, output, finish(summaries, lost))
    if lost:
        log(f"{why}; the results leave it out; give lower learning rates")
    return summaries


def check_output(output: pathlib.Path, tasks: Sequence[str]) -> None:
    """Raises BertKerasError if the folder has results that these tasks' results would replace."""
    there = grid.earlier_results(output, lambda found: isinstance(found.get("tasks"), dict)).get("tasks", {})
    if others := [name for name in there if name not in tasks]:
        raise BertKerasError(
            f"{output} holds the results of {', '.join(others)}; give another folder, or name all its tasks."
        )


def _remove_weights(outcomes: Sequence[Outcome], measure: str, *, keep: int) -> None:
    best = ranked(outcomes, measure=measure)[:keep]
    for outcome in outcomes:
        if outcome not in best:
            grid.remove_weights(outcome.path)


@reports_lost_workers()
def plan_protocol(
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
) -> Study[list[Summary]]:
    """The grid of one task; its `run` trains all runs that have not finished, then writes the files of this module.

    hparams: for every run, except what the grid varies; its seed is that of the first restart. The grid has rates of its own:
        give them in learning_rates
    feature_cache: as in `finetune`; all runs read it
    options: fields of ProtocolOptions

    A run whose loss diverged is degenerate. Raises BertKerasError if `output` holds other files, or runs with other data,
    checkpoint or settings, and for a grid without values. Raises as `finetune` too. `run` raises it if another process writes to
    `output`, if every run diverged, and if an earlier call with `best_only` removed the weights of this call's best runs.
    """
    chosen = ProtocolOptions(**options)
    check_grid(hparams, chosen, defaults=task.defaults)
    drawn = hparams.max_examples is not None and hparams.data_seed is None
    if feature_cache is not None and drawn and chosen.restarts > 1:
        raise BertKerasError(
            "max_examples draws other examples for each seed, so restarts cannot share a feature_cache; give a data_seed, or "
            "leave one of them out."
        )
    output = to_path(output)
    check_output(output, [task.name])
    for split in task.validation_splits:
        task.examples(split)  # the best run is measured on all of them
    return plan_grid(
        {task.name: task},
        checkpoint=checkpoint,
        output=output,
        hparams=hparams,
        options=chosen,
        finish=lambda summaries, lost: summaries_json(summaries),
        how={"strategy_name": strategy_name, "feature_cache": feature_cache, "verbose": verbose, "log": log},
    )


def run_protocol(task: Task, **settings: Any) -> Summary:
    """Runs the study that `plan_protocol` makes of these settings."""
    (summary,) = plan_protocol(task, **settings).run()
    return summary


# -----------------------------------------------------------------------------------------------------------
# The best runs


def _check_has_weights(best: Outcome) -> None:
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
    baseline: float,
    hparams: Hparams,
    control: Outcome | None = None,
    ensemble: int | None = None,
    workers: Workers | None = None,
    log: Callable[[str], None] = print,
) -> Summary:
    """The summary of a task; the chief evaluates the best run on the other validation splits, and the ensemble.

    outcomes: at least one has a measure
    baseline: the main measure of the most common answer
    hparams: of all runs, of which the dev examples
    control: the run from random weights
    ensemble: the number of members; with fewer runs that learned, there is no ensemble, and a line says so
    """
    workers = workers or Workers()
    best, (first, *others) = ranked(outcomes, measure=task.measure), task.validation_splits
    measures = {first: best[0].measures} | workers.from_chief(
        lambda: _measures(task, best[:1], others, hparams)
    )
    together = None
    if ensemble is not None:
        members = tuple(outcome for outcome in best if outcome.degenerate is None)[:ensemble]
        if len(members) == ensemble:
            found = workers.from_chief(lambda: _measures(task, members, [first], hparams))
            together = Ensemble(members=members, measures=found[first])
        else:
            log(
                f"{task.name} has no ensemble of {ensemble}: {len(members)} run(s) learned; give fewer members or more restarts"
            )
    return Summary(
        task=task.name,
        measure=task.measure,
        outcomes=tuple(outcomes),
        measures=measures,
        baseline=baseline,
        control=control,
        ensemble=together,
    )


def _measures(
    task: Task, runs: Sequence[Outcome], splits: Sequence[str], hparams: Hparams
) -> dict[str, dict[str, float]]:
    """The measures of a run, or of several as an ensemble, by split of the task."""
    if not splits:
        return {}
    for one in runs:
        _check_has_weights(one)
    run, found = load_runs([one.path for one in runs]), {}
    for split in splits:
        examples = dev_part(task.examples(split), hparams)
        predictions, raw = predict(run.task, run.preprocess, run.model, examples)
        measures = {name: float(value) for name, value in run.task.evaluate(predictions, raw)}
        found[split] = as_fractions(measures, kind=task.kind)
    return found
