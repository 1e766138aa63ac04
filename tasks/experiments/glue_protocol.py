"""The paper's protocol on GLUE: learning rates and restarts for each task, the best run on dev, submission files.

In: names of GLUE tasks, their data, a checkpoint. Out: a folder

    OUTPUT/<task>/lr-<rate>_seed-<seed>/   cells of tasks/experiments/grid.py, each a run of `finetune`
    OUTPUT/results.json                    the measures of every run, the best, the median, the spread, the score
    OUTPUT/submission/<task>.tsv           the best run's answers to the test files that are there; submission.zip holds them
    OUTPUT/results.png                     a dot for every run

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

# The tasks that the score is the mean of.
SCORED = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
# A measure within this of the trivial baseline counts as degenerate.
WHISKER = 0.005
ADVICE = "more epochs, --bias-correction, a lower learning rate or more restarts help"

# Task, split and the name that the leaderboard gives the file.
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
PREDICTED_BY = {"ax": "mnli"}  # it has nothing to train on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One finished run.

    measures: of its best epoch on the dev split, by name; none where its loss became infinite or no number
    degenerate: why it learned nothing, or None
    """

    learning_rate: float
    seed: int
    path: pathlib.Path
    measures: Mapping[str, float]
    degenerate: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """All runs of one task.

    best: the highest main measure among the runs that are not degenerate; among all that have one, where all are
    median, lowest, highest: of the main measure over the runs that are not degenerate; None where all are
    measures: of the best run, every validation split's
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
        """The task's part of the GLUE score: the mean over measures and splits."""
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
    """Runs all runs that have not finished, then writes the files of this module.

    names: of tasks in SCORED
    data: the folder of GLUE's folders; None for TensorFlow Datasets
    hparams: of every run, except the learning rate; the restarts count its seed up
    best_only: remove the weights of all runs but each task's best

    A run whose loss diverged is degenerate. A task that has only such runs has no summary: it is named in results.json, under
    "failed", and by the last line for a person.

    Raises BertKerasError on a name that is not in SCORED, where another process writes to `output`, where `output` holds a run
    of other data, of another checkpoint or of other settings, or a folder that is none of ours, where every task failed, and
    where `best_only` removed the weights of the best of the runs that are asked for now; and as `finetune` does.
    """
    _check_names(names, learning_rates, restarts)
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
                identity=dataclasses.asdict(settings) | about,
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


def _check_names(names: Sequence[str], learning_rates: Sequence[float], restarts: int) -> None:
    if unknown := [name for name in names if name not in SCORED]:
        raise BertKerasError(
            f"{', '.join(unknown)} given; the tasks that are trained on are {', '.join(SCORED)}."
        )
    if not names or len({*names}) < len(names) or len({*learning_rates}) < len(learning_rates):
        raise BertKerasError("a task or a learning rate is named twice, or none is; name each once.")
    if restarts < 1 or not learning_rates:
        raise BertKerasError(
            f"{restarts} restarts of {len(learning_rates)} learning rates; at least one of each is wanted."
        )


def _open_tasks(names: Sequence[str], data: str | pathlib.Path | None, *, pooling: str) -> dict[str, Glue]:
    """The tasks by name. Reads all their splits, so that bad data ends here, not after the runs of other tasks."""
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
    about = f"no run of {', '.join(failed)} has a measure: the loss of every run diverged"
    if not measured:
        raise BertKerasError(f"{about}; give lower learning rates.")
    summaries = [summarize(tasks[name], found[name], data=data) for name in measured]
    write_json(output / RESULTS_FILE, as_json(summaries) | {"failed": failed})
    submit(summaries, data=data, output=output, log=log)
    _draw(summaries, output / "results.png")
    if failed:
        log(f"{about}; it has no part in what follows; give lower learning rates")
    return summaries


def _degenerate_run(task: Glue, path: pathlib.Path) -> str | None:
    run = load_run(path)
    predictions, raw = predict(task, run.preprocess, run.model, task.examples(task.validation_splits[0]))
    return degenerate(task.row, predictions, raw)


def degenerate(
    row: GlueRow, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
) -> str | None:
    """Why a run learned nothing, in a phrase; None where it did learn.

    predictions, raw: as of `Task.evaluate`, on a labelled split

    Classes: one class for all but a whisker of the examples; a Matthews correlation of 0, or the accuracy of the majority
    class, each within a whisker. Scores: no spread, or no correlation with the labels; a squared Pearson correlation, the share
    of the labels' variance that a straight line through the scores explains, within a whisker of the 0 that always saying the
    mean score has.
    """
    known = raw[LABEL] >= 0
    labels = raw[LABEL][known]
    if not row.labels:
        scores = predictions["score"][known]
        correlation = MEASURES["pearson"](labels, scores)
        if np.ptp(scores) < WHISKER or not np.isfinite(correlation):
            return f"the score is always {scores.mean():.2f}"
        if correlation**2 <= WHISKER:
            return f"Pearson correlation {correlation:.4f}, where always saying the mean score has none"
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
    return f"{name} {value:.4f}, where always saying the majority class has {nothing:.4f}"


def _main(row: GlueRow) -> Callable[[Outcome], float]:
    return lambda outcome: outcome.measures[row.measures[0]]


def _best(outcomes: Sequence[Outcome], *, row: GlueRow) -> Outcome | None:
    """None where no run has a measure."""
    learned = [outcome for outcome in outcomes if outcome.degenerate is None]
    return max(learned or [outcome for outcome in outcomes if outcome.measures], key=_main(row), default=None)


def _remove_weights(outcomes: Sequence[Outcome], *, row: GlueRow) -> None:
    best = _best(outcomes, row=row)
    for outcome in outcomes:
        if outcome is not best:
            (outcome.path / SAFETENSORS).unlink(missing_ok=True)


def _load_best(best: Outcome, *, data: str | pathlib.Path | None = None) -> Run:
    """Raises ValueError where its weights are not there: `best_only` removes those of all but the best."""
    if not (best.path / SAFETENSORS).is_file():
        raise BertKerasError(
            f"{best.path} is the best of these runs and has no {SAFETENSORS}: best_only removed it while a run that is not asked "
            "for now was the best; remove this folder to train it again, or ask for that run too."
        )
    return load_run(best.path, data=data)


def summarize(task: Glue, outcomes: Sequence[Outcome], *, data: str | pathlib.Path | None) -> Summary:
    """Best, median and spread; the best run is measured on the validation splits that did not choose it.

    outcomes: at least one with a measure
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
    """The mean over tasks; a task's measures are averaged first, and MNLI's two splits."""
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
    """For people: a line for each task, and one for each run that learned nothing."""
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
    title = "GLUE; median and spread are of the runs that are not degenerate"
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
    """Writes the leaderboard's file for every test split that is there, and a zip of them; returns the files."""
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
    """The rows of SUBMISSION that models of these tasks answer."""
    return [row for row in SUBMISSION if PREDICTED_BY.get(row[0], row[0]) in names]


def _written(row: GlueRow, predictions: Mapping[str, np.ndarray]) -> list[str]:
    """Labels as the official files spell them; scores within their range."""
    if not row.labels:
        return [f"{score:.3f}" for score in np.clip(predictions["score"], *SCORES)]
    spelled = {ours.encode(): theirs for ours, theirs in zip(row.labels, row.file_labels, strict=True)}
    return [spelled[label] for label in predictions[LABEL]]


def _draw(summaries: Sequence[Summary], path: pathlib.Path) -> None:
    """A dot for every run over its learning rate, one panel for each task; crosses are degenerate, no mark is no measure."""
    # Imported here: slow to import, and not needed before.
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
