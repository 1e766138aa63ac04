"""The paper's protocol, on one task and on GLUE: a grid of learning rates, batch sizes and epochs, restarts, the best run on dev.

In: opened tasks, a checkpoint, settings. Out: a folder

    OUTPUT/<task>/lr-<rate>_seed-<seed>/   cells of tasks/study/grid.py, each a run of `finetune`
    OUTPUT/results.json                    the measures of every run, the best, the median, the spread, the ensemble
    OUTPUT/results.png                     a plot with a dot for each run
    OUTPUT/submission/<task>.tsv           on GLUE, the best run's predictions for each test file found; also in submission.zip

Names of cells have `_batch-<size>` and `_epochs-<count>` too where these differ from the settings of the task.

Source: Devlin et al. 2019, sec. 4.1 and A.3 (values chosen on dev, random restarts with another order and another head).
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
import statistics
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face import SAFETENSORS
from bert_keras.errors import BertKerasError
from bert_keras.io.files import atomic_file, locked
from bert_keras.io.paths import to_path
from bert_keras.tasks.batches import cardinality, predict
from bert_keras.tasks.data.glue import IDX, LABEL, ROWS, TextDataSet
from bert_keras.tasks.data.sources import check_dev_split
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import FEATURE_RATE, Hparams
from bert_keras.tasks.options import GlueOptions, ProtocolOptions
from bert_keras.tasks.problems.classification import TextClassification, majority_label
from bert_keras.tasks.runs.ensemble import load_runs
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.study import grid
from bert_keras.tasks.study.grid import Cell, Outcome
from bert_keras.tasks.study.report import Ensemble, Summary, ranked, summaries_json, write_summaries
from bert_keras.tasks.study.rows import MAJORITY, PREDICTED_BY, SCORED, SUBMISSION, WNLI, check_once
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
    """The runs of every task, in order. Raises BertKerasError for a run that `finetune` would refuse."""
    runs = [*protocol_runs(hparams, options)]
    trainings = [(task, source, one) for task in tasks.values() for _, one in runs]
    checked = {name: how[name] for name in ("strategy_name", "feature_cache")}
    fingerprints = iter(grid.fingerprints_of(trainings, **checked))
    for name, (folder, one) in itertools.product(tasks, runs):
        varied = f", batch size {one.batch_size}" if options.batch_sizes else ""
        varied += f", {one.epochs} epochs" if options.epoch_counts else ""
        yield Cell(
            name=f"{name}: learning rate {one.learning_rate:g}{varied}, seed {one.seed}",
            path=output / name / folder,
            task=name,
            place={field: getattr(one, field) for field in VARIED},
            fingerprint=next(fingerprints),
            train=functools.partial(finetune, tasks[name], checkpoint=source, hparams=one, **how),
        )


def _run(
    tasks: Mapping[str, Task],
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: pathlib.Path,
    hparams: Hparams,
    options: ProtocolOptions,
    finish: Callable[[list[Summary], list[str]], Mapping[str, Any]],
    how: dict[str, Any],
) -> list[Summary]:
    """Trains the runs of every task that have not finished, then writes the results; returns the summaries.

    tasks: by name, the folder in `output`
    finish: the summaries, and the tasks whose loss always diverged -> the content of results.json; the chief calls it
    how: strategy_name, feature_cache, verbose and log of `finetune`

    Raises BertKerasError, before a folder is made, for a run that `finetune` would refuse, and in all workers unless all have the
    same runs and options.
    """
    workers = Workers(strategy(how["strategy_name"]))
    log = workers.log(how["log"])
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    cells = [*_cells(tasks, source, output, hparams, options=options, how=how | {"log": log})]
    grid.check_same(cells, {"tasks": [*tasks], **dataclasses.asdict(options)}, workers=workers)
    found: dict[str, list[Outcome]] = {name: [] for name in tasks}
    with workers.writing(locked(output)):
        for ran in grid.run_cells(cells, workers=workers, log=log):
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
        about: dict[str, Any] = {"ensemble": options.ensemble, "workers": workers, "log": log}
        summaries = [summarize(tasks[name], found[name], **about) for name in measured]
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

    A run whose loss diverged is degenerate. Raises BertKerasError if `output` holds other files, or runs with other data,
    checkpoint or settings, for a grid without values, if another process writes to `output`, if every run diverged, and if an
    earlier call with `best_only` removed the weights of this call's best runs. Raises as `finetune` too.
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
    (summary,) = _run(
        {task.name: task},
        checkpoint=checkpoint,
        output=output,
        hparams=hparams,
        options=chosen,
        finish=lambda summaries, lost: summaries_json(summaries),
        how={"strategy_name": strategy_name, "feature_cache": feature_cache, "verbose": verbose, "log": log},
    )
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
    ensemble: int | None = None,
    workers: Workers | None = None,
    log: Callable[[str], None] = print,
) -> Summary:
    """The summary of a task; the chief evaluates the best run on the other validation splits, and the ensemble.

    outcomes: at least one has a measure
    ensemble: the number of members; with fewer runs that learned, there is no ensemble, and a line says so
    """
    workers = workers or Workers()
    best, (first, *others) = ranked(outcomes, measure=task.measure), task.validation_splits
    measures = {first: best[0].measures} | workers.from_chief(lambda: _measures(task, best[:1], others))
    together = None
    if ensemble is not None:
        members = tuple(outcome for outcome in best if outcome.degenerate is None)[:ensemble]
        if len(members) == ensemble:
            found = workers.from_chief(lambda: _measures(task, members, [first]))
            together = Ensemble(members=members, measures=found[first])
        else:
            log(
                f"{task.name} has no ensemble of {ensemble}: {len(members)} run(s) learned; give fewer members or more restarts"
            )
    return Summary(
        task=task.name, measure=task.measure, outcomes=tuple(outcomes), measures=measures, ensemble=together
    )


def _measures(task: Task, runs: Sequence[Outcome], splits: Sequence[str]) -> dict[str, dict[str, float]]:
    """The measures of a run, or of several as an ensemble, by split of the task."""
    if not splits:
        return {}
    for one in runs:
        _check_has_weights(one)
    run, found = load_runs([one.path for one in runs]), {}
    for split in splits:
        predictions, raw = predict(run.task, run.preprocess, run.model, task.examples(split))
        found[split] = {name: float(value) for name, value in run.task.evaluate(predictions, raw)}
    return found


# -----------------------------------------------------------------------------------------------------------
# GLUE


@reports_lost_workers()
def run_glue(
    names: Sequence[str],
    *,
    data: str | pathlib.Path | None,
    checkpoint: str | pathlib.Path,
    output: str | pathlib.Path,
    hparams: Hparams,
    pooling: str = "pooled",
    wnli: str = GlueOptions.wnli,
    strategy_name: str = "one",
    verbose: int | str = 0,
    log: Callable[[str], None] = print,
    **options: Any,
) -> list[Summary]:
    """As `run_protocol`, for several tasks of GLUE; writes the leaderboard's files too.

    names: tasks in SCORED
    data: the folder with GLUE's folders; None for TensorFlow Datasets
    wnli: "majority" answers WNLI with its most frequent training label, without a run, and leaves it out of the score, as in the
        paper
    options: fields of ProtocolOptions

    A task with only diverged runs has no summary; results.json lists it under "failed", and `log` names it. Raises as
    `run_protocol`, and BertKerasError for a name that is not in SCORED.
    """
    chosen, _ = ProtocolOptions(**options), GlueOptions(wnli=wnli)
    _check_names(names, wnli=wnli)
    check_grid(hparams, chosen, defaults={})
    output = to_path(output)
    check_output(output, names)
    tasks = _open_tasks(names, data, pooling=pooling)
    majority = {WNLI: majority_label(tasks.pop(WNLI))} if wnli == MAJORITY else {}

    def finish(summaries: list[Summary], lost: list[str]) -> dict[str, Any]:
        submit(summaries, data=data, output=output, majority=majority, log=log)
        return glue_json(summaries) | {"failed": lost}

    return _run(
        tasks,
        checkpoint=checkpoint,
        output=output,
        hparams=hparams,
        options=chosen,
        finish=finish,
        how={"strategy_name": strategy_name, "feature_cache": None, "verbose": verbose, "log": log},
    )


def _check_names(names: Sequence[str], *, wnli: str) -> None:
    if unknown := [name for name in names if name not in SCORED]:
        raise BertKerasError(
            f"unknown task {', '.join(unknown)}; the tasks to train on are {', '.join(SCORED)}."
        )
    check_once("tasks", names)
    if wnli == MAJORITY and WNLI not in names:
        raise BertKerasError(
            f"wnli is {MAJORITY!r}, and wnli is not among the tasks {', '.join(names)}; name it too, or leave wnli out."
        )
    if wnli == MAJORITY and len(names) == 1:
        raise BertKerasError(
            f"wnli is {MAJORITY!r}, which trains nothing, and WNLI is the only task; name another task too."
        )


def _open_tasks(
    names: Sequence[str], data: str | pathlib.Path | None, *, pooling: str
) -> dict[str, TextClassification]:
    """Opens the tasks, by name, and reads all their splits, so that bad data raises an error before any run."""
    check_dev_split(data)
    tasks = {name: TextClassification.open(name, data, pooling=pooling) for name in names}
    for task in tasks.values():
        for split in ("train", *task.validation_splits):
            task.examples(split)
    for name, split, _ in _test_splits(names):
        with contextlib.suppress(FileNotFoundError):  # a test file may be missing
            TextClassification.open(name, data).examples(split)
    return tasks


def glue_score(summaries: Sequence[Summary]) -> float:
    """The mean over tasks; a task's measures, and MNLI's two splits, are averaged first."""
    return statistics.fmean(summary.score for summary in summaries)


def glue_json(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The content of results.json."""
    made = summaries_json(summaries)
    for summary in summaries:
        made["tasks"][summary.task]["score"] = summary.score
    score = {"score": glue_score(summaries), "tasks": len(summaries), "of": len(SCORED)}
    return {"glue_score_on_dev": score} | made


def submit(
    summaries: Sequence[Summary],
    *,
    data: str | pathlib.Path | None,
    output: pathlib.Path,
    majority: Mapping[str, str] | None = None,
    log: Callable[[str], None] = print,
) -> list[pathlib.Path]:
    """Writes the leaderboard's file for every test split found, and a zip of them; returns the files.

    majority: task without a run -> the label of all its texts
    """
    best, majority, files = {summary.task: summary.best for summary in summaries}, majority or {}, []
    for name, split, title in _test_splits([*best, *majority]):
        try:
            task = TextClassification.open(name, data)
            examples = task.examples(split)
        except FileNotFoundError as error:
            log(f"no {title}.tsv: {error}")
            continue
        if name in majority:
            raw = next(examples.batch(cardinality(examples)).as_numpy_iterator())
            label = majority[name].encode()
            predictions: Mapping[str, np.ndarray] = {LABEL: np.full(len(raw[IDX]), label, object)}
        else:
            run = load_run(best[PREDICTED_BY.get(name, name)].path)
            predictions, raw = predict(task, run.preprocess, run.model, examples)
        answers = zip(raw[IDX].tolist(), _written(ROWS[name], predictions), strict=True)
        lines = [
            "index\tprediction\n",
            *(f"{idx}\t{text}\n" for idx, text in sorted(answers, key=lambda one: one[0])),
        ]
        files.append(output / "submission" / f"{title}.tsv")
        files[-1].parent.mkdir(exist_ok=True)
        with atomic_file(files[-1]) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
    if files:
        archive = output / "submission.zip"
        with (
            atomic_file(archive) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as made,
        ):
            for file in files:
                made.write(file, file.name)
        log(f"{len(files)} of the leaderboard's {len(SUBMISSION)} files are in {archive}")
    return files


def _test_splits(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """The rows of SUBMISSION that these tasks' models predict."""
    return [row for row in SUBMISSION if PREDICTED_BY.get(row[0], row[0]) in names]


def _written(row: TextDataSet, predictions: Mapping[str, np.ndarray]) -> list[str]:
    """Labels in the spelling of the official files; scores clipped to their range."""
    if not row.labels:
        return [f"{score:.3f}" for score in np.clip(predictions["score"], *row.bounds)]
    spelled = {ours.encode(): theirs for ours, theirs in zip(row.labels, row.file_labels, strict=True)}
    return [spelled[label] for label in predictions[LABEL]]
