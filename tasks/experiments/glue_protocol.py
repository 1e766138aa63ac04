"""The paper's protocol on GLUE: learning rates and restarts for each task, the best run on dev, submission files.

In: names of GLUE tasks, their data, a checkpoint. Out: a folder

    OUTPUT/<task>/lr-<rate>_seed-<seed>/   cells of tasks/experiments/grid.py, each a run of `finetune`
    OUTPUT/results.json                    the measures of every run, the best, the median, the spread, the score
    OUTPUT/submission/<task>.tsv           the best run's predictions for each test file found; also in submission.zip
    OUTPUT/results.png                     a plot with a dot for each run

Source: Devlin et al. 2019, sec. 4.1 (learning rates chosen on dev, random restarts with another order and another head).
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
import statistics
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face import SAFETENSORS
from bert_keras.errors import BertKerasError
from bert_keras.files import locked, write_json
from bert_keras.paths import path_of
from tasks.batches import predict
from tasks.experiments.grid import Cell, identity_of_data, run_cells
from tasks.experiments.grid import Outcome as CellOutcome
from tasks.glue.rows import IDX, LABEL, ROWS, SCORES, GlueRow
from tasks.glue.task import Glue
from tasks.metrics import MEASURES
from tasks.report import Table
from tasks.settings import Hparams, ProtocolOptions
from tasks.training.finetune import finetune
from tasks.training.identity import identity_of_checkpoint
from tasks.training.loop import RESULTS_FILE
from tasks.training.run import Run, evaluate, load_run

# The GLUE score is the mean over these tasks.
SCORED = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
# A measure within this of the trivial baseline counts as degenerate.
WHISKER = 0.005
ADVICE = "more epochs, --bias-correction, a lower learning rate or more restarts help"

# Task, split, and the leaderboard's file name.
SUBMISSION = (
    ("cola", "test", "CoLA"),
    ("sst2", "test", "SST-2"),
    ("mrpc", "test", "MRPC"),
    ("stsb", "test", "STS-B"),
    ("qqp", "test", "QQP"),
    ("mnli", "test_matched", "MNLI-m"),
    ("mnli", "test_mismatched", "MNLI-mm"),
    ("qnli", "test", "QNLI"),
    ("rte", "test", "RTE"),
    ("wnli", "test", "WNLI"),
    ("ax", "test", "AX"),
)
PREDICTED_BY = {"ax": "mnli"}  # ax has no training data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One finished run.

    measures: of its best epoch on the dev split, by name; empty if its loss diverged
    degenerate: why it failed to learn, or None
    """

    learning_rate: float
    seed: int
    path: pathlib.Path
    measures: Mapping[str, float]
    degenerate: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """All runs of one task.

    best: the run with the highest main measure, among runs that are not degenerate if there are any
    median, lowest, highest: of the main measure over runs that are not degenerate; None if all are degenerate
    measures: of the best run, for every validation split
    """

    row: GlueRow
    outcomes: tuple[Outcome, ...]
    best: Outcome
    median: float | None
    lowest: float | None
    highest: float | None
    measures: Mapping[str, Mapping[str, float]]

    @property
    def score(self) -> float:
        """The task's score in GLUE: the mean over measures and splits."""
        return statistics.fmean(value for values in self.measures.values() for value in values.values())


def run_protocol(
    names: Sequence[str],
    *,
    data: str | pathlib.Path | None,
    checkpoint: str | pathlib.Path,
    output: str | pathlib.Path,
    hparams: Hparams,
    learning_rates: Sequence[float] = ProtocolOptions.learning_rates,
    restarts: int = ProtocolOptions.restarts,
    pooling: str = "pooled",
    strategy_name: str = "one",
    best_only: bool = False,
    verbose: int | str = 0,
    log: Callable[[str], None] = print,
) -> list[Summary]:
    """Trains all runs that have not finished, then writes the files of this module.

    names: tasks in SCORED
    data: the folder with GLUE's folders; None for TensorFlow Datasets
    hparams: for every run, except the learning rate; its seed is that of the first restart
    best_only: keep only the weights of each task's best run

    A run whose loss diverged is degenerate. A task with only such runs has no summary; results.json lists it under "failed", and
    `log` names it.

    Raises BertKerasError for a name that is not in SCORED, if another process writes to `output`, if `output` holds other files
    or runs with other data, checkpoint or settings, if every task failed, and if an earlier call with `best_only` removed the
    weights of this call's best run. Raises as `finetune` too.
    """
    _check(names, hparams, learning_rates, restarts)
    output = path_of(output)
    tasks = _open_tasks(names, data, pooling=pooling)
    source = checkpoints.read(checkpoint)
    start = identity_of_checkpoint(source, checkpoints.tokenizer_of(source)) | {"strategy": strategy_name}
    cells = []
    for name, task in tasks.items():
        about = {"task": task.to_json(), **identity_of_data(task), **start}
        for rate, seed in itertools.product(learning_rates, range(hparams.seed, hparams.seed + restarts)):
            settings = dataclasses.replace(hparams, learning_rate=rate, seed=seed)
            train = functools.partial(
                finetune, task, checkpoint=source, hparams=settings, strategy_name=strategy_name
            )
            cell = Cell(
                name=f"{name}: learning rate {rate:g}, seed {seed}",
                path=output / name / f"lr-{rate:g}_seed-{seed}",
                identity=settings.identity() | about,
                train=functools.partial(train, verbose=verbose, log=log),
                judge=functools.partial(_degenerate_run, task),
            )
            cells.append(cell)
    with locked(output):
        found: dict[str, list[Outcome]] = {name: [] for name in tasks}
        for ran in run_cells(cells, log=log):
            outcomes = found[ran.cell.path.parent.name]
            outcomes.append(_outcome(ran))
            if best_only:
                _remove_weights(outcomes, row=ROWS[ran.cell.path.parent.name])
        return _report(tasks, found, data=data, output=output, log=log)


def _check(names: Sequence[str], hparams: Hparams, learning_rates: Sequence[float], restarts: int) -> None:
    if unknown := [name for name in names if name not in SCORED]:
        raise BertKerasError(
            f"unknown task {', '.join(unknown)}; the tasks to train on are {', '.join(SCORED)}."
        )
    if not names or len({*names}) < len(names) or len({*learning_rates}) < len(learning_rates):
        raise BertKerasError(
            "a task or a learning rate is named twice, or is missing; give at least one, each once."
        )
    if restarts < 1 or not learning_rates:
        raise BertKerasError(
            f"{restarts} restarts for {len(learning_rates)} learning rates; give at least one of each."
        )
    if hparams.dev_fraction is not None:
        raise BertKerasError(
            "dev_fraction does not apply to GLUE, whose tasks have dev splits; leave it out."
        )


def _open_tasks(names: Sequence[str], data: str | pathlib.Path | None, *, pooling: str) -> dict[str, Glue]:
    """Opens the tasks, by name, and reads all their splits, so that bad data raises an error before any run."""
    tasks = {name: Glue(ROWS[name], data, pooling=pooling) for name in names}
    for task in tasks.values():
        for split in ("train", *task.validation_splits):
            task.examples(split)
    for name, split, _ in _test_splits(names):
        with contextlib.suppress(FileNotFoundError):  # a test file may be missing
            Glue(ROWS[name], data).examples(split)
    return tasks


def _outcome(ran: CellOutcome) -> Outcome:
    asked = ran.cell.identity
    return Outcome(
        learning_rate=asked["learning_rate"],
        seed=asked["seed"],
        path=ran.cell.path,
        measures=ran.measures,
        degenerate=ran.degenerate,
    )


def _report(
    tasks: Mapping[str, Glue],
    found: Mapping[str, Sequence[Outcome]],
    *,
    data: str | pathlib.Path | None,
    output: pathlib.Path,
    log: Callable[[str], None],
) -> list[Summary]:
    """Summarizes the tasks that have a measure, and writes the files."""
    measured = [name for name in tasks if any(outcome.measures for outcome in found[name])]
    failed = [name for name in tasks if name not in measured]
    about = f"{', '.join(failed)} has no measures: the loss of every run diverged"
    if not measured:
        raise BertKerasError(f"{about}; give lower learning rates.")
    summaries = [summarize(tasks[name], found[name], data=data) for name in measured]
    write_json(output / RESULTS_FILE, as_json(summaries) | {"failed": failed})
    submit(summaries, data=data, output=output, log=log)
    _draw(summaries, output / "results.png")
    if failed:
        log(f"{about}; the results leave it out; give lower learning rates")
    return summaries


def _degenerate_run(task: Glue, path: pathlib.Path) -> str | None:
    run = load_run(path)
    predictions, raw = predict(task, run.preprocess, run.model, task.examples(task.validation_splits[0]))
    return degenerate(task.row, predictions, raw)


def degenerate(
    row: GlueRow, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
) -> str | None:
    """The reason why a run counts as degenerate; None if it learned.

    predictions, raw: as in `Task.evaluate`, on a labelled split

    Classes: nearly all predictions are one class, or the measure is near the trivial baseline: a Matthews correlation of 0, or
    the accuracy of the majority class. Scores: they are constant, or their squared Pearson correlation with the labels, the
    fraction of the variance that a linear fit explains, is near 0, the value for constant scores.
    """
    known = raw[LABEL] >= 0
    labels = raw[LABEL][known]
    if not row.labels:
        scores = predictions["score"][known]
        correlation = MEASURES["pearson"](labels, scores)
        if np.ptp(scores) < WHISKER or not np.isfinite(correlation):
            return f"the score is always {scores.mean():.2f}"
        if correlation**2 <= WHISKER:
            return f"Pearson correlation {correlation:.4f}; predicting the mean score has none"
        return None
    values, counts = np.unique(predictions[LABEL][known], return_counts=True)
    share = counts.max() / counts.sum()
    if share >= 1 - WHISKER:
        return f"{values[counts.argmax()].decode()} for {share:.1%} of dev"
    ids = {label.encode(): i for i, label in enumerate(row.labels)}
    predicted = np.array([ids[label] for label in predictions[LABEL][known]])
    if row.measures[0] == "matthews":
        value, nothing, name = MEASURES["matthews"](labels, predicted), 0.0, "Matthews correlation"
    else:
        value, name = MEASURES["accuracy"](labels, predicted), "accuracy"
        nothing = np.bincount(labels).max() / len(labels)
    if abs(value - nothing) > WHISKER:
        return None
    return f"{name} {value:.4f}; predicting the majority class has {nothing:.4f}"


def _main(row: GlueRow) -> Callable[[Outcome], float]:
    return lambda outcome: outcome.measures[row.measures[0]]


def _best(outcomes: Sequence[Outcome], *, row: GlueRow) -> Outcome | None:
    """The best run; None if no run has a measure."""
    learned = [outcome for outcome in outcomes if outcome.degenerate is None]
    return max(learned or [outcome for outcome in outcomes if outcome.measures], key=_main(row), default=None)


def _remove_weights(outcomes: Sequence[Outcome], *, row: GlueRow) -> None:
    best = _best(outcomes, row=row)
    for outcome in outcomes:
        if outcome is not best:
            (outcome.path / SAFETENSORS).unlink(missing_ok=True)


def _load_best(best: Outcome, *, data: str | pathlib.Path | None = None) -> Run:
    """Loads the best run. Raises ValueError if `best_only` removed its weights."""
    if not (best.path / SAFETENSORS).is_file():
        raise BertKerasError(
            f"{best.path} is the best of these runs and has no {SAFETENSORS}: best_only removed it when another run was the "
            "best; remove this folder to train it again, or give the learning rates and restarts of that call."
        )
    return load_run(best.path, data=data)


def summarize(task: Glue, outcomes: Sequence[Outcome], *, data: str | pathlib.Path | None) -> Summary:
    """Best, median and spread; also evaluates the best run on the other validation splits.

    outcomes: at least one has a measure
    """
    row, best = task.row, _best(outcomes, row=task.row)
    assert best is not None
    values = [_main(row)(outcome) for outcome in outcomes if outcome.degenerate is None]
    measures = {task.validation_splits[0]: best.measures}
    if others := task.validation_splits[1:]:
        run = _load_best(best, data=data)
        measures |= {split: evaluate(run, split) for split in others}
    return Summary(
        row=row,
        outcomes=tuple(outcomes),
        best=best,
        median=statistics.median(values) if values else None,
        lowest=min(values, default=None),
        highest=max(values, default=None),
        measures=measures,
    )


def glue_score(summaries: Sequence[Summary]) -> float:
    """The mean over tasks; a task's measures, and MNLI's two splits, are averaged first."""
    return statistics.fmean(summary.score for summary in summaries)


def as_json(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The content of results.json."""
    tasks = {}
    for summary in summaries:
        runs = [dataclasses.asdict(outcome) | {"path": str(outcome.path)} for outcome in summary.outcomes]
        tasks[summary.row.name] = {
            "measure": summary.row.measures[0],
            "best": {"learning_rate": summary.best.learning_rate, "seed": summary.best.seed},
            "measures": summary.measures,
            "score": summary.score,
            "median": summary.median,
            "lowest": summary.lowest,
            "highest": summary.highest,
            "runs": runs,
            "degenerate": sum(outcome.degenerate is not None for outcome in summary.outcomes),
        }
    score = {"score": glue_score(summaries), "tasks": len(summaries), "of": len(SCORED)}
    return {"glue_score_on_dev": score, "tasks": tasks}


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """Tables to print: a row for each task, and a row for each degenerate run."""
    rows, stuck = [], []
    for summary in summaries:
        bad = [outcome for outcome in summary.outcomes if outcome.degenerate is not None]
        main = summary.row.measures[0]
        best = ", ".join(
            f"{name} {value:.4f}" for values in summary.measures.values() for name, value in values.items()
        )
        spread = "-" if summary.median is None else f"{summary.lowest:.4f} - {summary.highest:.4f}"
        median = "-" if summary.median is None else f"{main} {summary.median:.4f}"
        chosen = f"{summary.best.learning_rate:g}, {summary.best.seed}"
        rows.append((summary.row.name, len(summary.outcomes), len(bad), best, chosen, median, spread))
        stuck += [(summary.row.name, f"{one.learning_rate:g}, {one.seed}", one.degenerate) for one in bad]
    columns = ("task", "runs", "degenerate", "best on dev", "rate, seed", "median", "spread")
    title = "GLUE; median and spread leave out degenerate runs"
    made = [Table(title, columns, rows)]
    if stuck:
        made.append(Table(f"degenerate runs; {ADVICE}", ("task", "rate, seed", "why"), stuck))
    return made


def submit(
    summaries: Sequence[Summary],
    *,
    data: str | pathlib.Path | None,
    output: pathlib.Path,
    log: Callable[[str], None] = print,
) -> list[pathlib.Path]:
    """Writes the leaderboard's file for every test split found, and a zip of them; returns the files."""
    best = {summary.row.name: summary.best for summary in summaries}
    files = []
    for name, split, title in _test_splits([*best]):
        try:
            task = Glue(ROWS[name], data)
            examples = task.examples(split)
        except FileNotFoundError as error:
            log(f"no {title}.tsv: {error}")
            continue
        run = _load_best(best[PREDICTED_BY.get(name, name)])
        predictions, raw = predict(task, run.preprocess, run.model, examples)
        file = output / "submission" / f"{title}.tsv"
        file.parent.mkdir(exist_ok=True)
        lines = ["index\tprediction"]
        lines += [
            f"{idx}\t{text}" for idx, text in zip(raw[IDX], _written(task.row, predictions), strict=True)
        ]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        files.append(file)
    if files:
        with zipfile.ZipFile(output / "submission.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.name)
        log(f"{len(files)} of the leaderboard's {len(SUBMISSION)} files are in {output / 'submission.zip'}")
    return files


def _test_splits(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """The rows of SUBMISSION that these tasks' models predict."""
    return [row for row in SUBMISSION if PREDICTED_BY.get(row[0], row[0]) in names]


def _written(row: GlueRow, predictions: Mapping[str, np.ndarray]) -> list[str]:
    """Labels in the spelling of the official files; scores clipped to their range."""
    if not row.labels:
        return [f"{score:.3f}" for score in np.clip(predictions["score"], *SCORES)]
    spelled = {ours.encode(): theirs for ours, theirs in zip(row.labels, row.file_labels, strict=True)}
    return [spelled[label] for label in predictions[LABEL]]


def _draw(summaries: Sequence[Summary], path: pathlib.Path) -> None:
    """Plots runs over their learning rates, one panel per task: crosses are degenerate; runs without a measure are left out."""
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(summaries) + 1, 3), layout="constrained")
    panels = figure.subplots(1, len(summaries), squeeze=False)[0]
    for panel, summary in zip(panels, summaries, strict=True):
        for outcome in summary.outcomes:
            marker = "o" if outcome.degenerate is None else "x"
            color = "tab:orange" if outcome is summary.best else "tab:blue"
            value = outcome.measures.get(summary.row.measures[0], math.nan)
            panel.plot(f"{outcome.learning_rate:g}", value, marker, color=color, alpha=0.7)
        panel.set_title(summary.row.name)
        panel.set_xlabel("learning rate")
        panel.set_ylabel(f"{summary.row.measures[0]} on dev")
    figure.savefig(path, dpi=120)
