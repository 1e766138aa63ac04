"""The paper's protocol on GLUE: all its tasks, the score, and the leaderboard's files.

In: names of GLUE tasks, their data, a checkpoint. Out: the folder of tasks/study/protocol.py, and

    OUTPUT/submission/<task>.tsv   the best run's predictions for each test file found; also in submission.zip

Source: Devlin et al. 2019, sec. 4.1.
"""

import contextlib
import pathlib
import statistics
import zipfile
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.io.files import atomic_file, locked, write_json
from bert_keras.io.paths import to_path
from bert_keras.tasks.batches import cardinality, predict
from bert_keras.tasks.data.glue_rows import (
    IDX,
    LABEL,
    ROWS,
    SCORES,
    GlueRow,
)
from bert_keras.tasks.data.sources import check_dev_split
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.options import GlueOptions, ProtocolOptions
from bert_keras.tasks.problems.classification import Glue, majority_label
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.study import protocol
from bert_keras.tasks.study import summary as reports
from bert_keras.tasks.study.cells import check_once
from bert_keras.tasks.study.protocol import PICTURE
from bert_keras.tasks.study.summary import Summary
from bert_keras.tasks.training.loop import RESULTS_FILE

# The GLUE score is the mean over these tasks.
SCORED = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")

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
WNLI, MAJORITY = "wnli", "majority"
PREDICTED_BY = {"ax": "mnli"}  # ax has no training data


@reports_lost_workers()
def run_protocol(
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
    """Trains all runs that have not finished, then writes the files of this module.

    names: tasks in SCORED
    data: the folder with GLUE's folders; None for TensorFlow Datasets
    hparams: for every run, except what the grid varies; its seed is that of the first restart. The grid has rates of its own:
        give them in learning_rates
    wnli: "majority" answers WNLI with its most frequent training label, without a run, and leaves it out of the score, as in the
        paper
    options: fields of ProtocolOptions

    A run whose loss diverged is degenerate. A task with only such runs has no summary; results.json lists it under "failed", and
    `log` names it.

    Raises BertKerasError for a name that is not in SCORED, if another process writes to `output`, if `output` holds other files
    or runs with other data, checkpoint or settings, if every task failed, and if an earlier call with `best_only` removed the
    weights of this call's best run. Raises as `finetune` too.
    """
    chosen, _ = ProtocolOptions(**options), GlueOptions(wnli=wnli)
    _check_names(names, wnli=wnli)
    protocol.check_grid(hparams, chosen, defaults={})
    output, workers = to_path(output), Workers(strategy(strategy_name))
    log = workers.log(log)
    protocol.check_output(output, names)
    tasks = _open_tasks(names, data, pooling=pooling)
    majority = {WNLI: majority_label(tasks.pop(WNLI))} if wnli == MAJORITY else {}
    cells = protocol.planned(
        tasks,
        checkpoint=checkpoint,
        output=output,
        hparams=dict.fromkeys(tasks, hparams),
        options=chosen,
        strategy_name=strategy_name,
        verbose=verbose,
        log=log,
    )
    with workers.writing(locked(output)):
        summaries, failed = protocol.run_tasks(tasks, cells, options=chosen, workers=workers, log=log)
        if workers.chief:
            submit(summaries, data=data, output=output, majority=majority, log=log)
            reports.draw(summaries, output / PICTURE)
            write_json(output / RESULTS_FILE, as_json(summaries) | {"failed": failed})
    if failed:
        log(f"{protocol.without_measures(failed)}; the results leave it out; give lower learning rates")
    return summaries


def _check_names(names: Sequence[str], *, wnli: str) -> None:
    if unknown := [name for name in names if name not in SCORED]:
        raise BertKerasError(
            f"unknown task {', '.join(unknown)}; the tasks to train on are {', '.join(SCORED)}."
        )
    check_once(names)
    if wnli == MAJORITY and WNLI not in names:
        raise BertKerasError(
            f"wnli is {MAJORITY!r}, and wnli is not among the tasks {', '.join(names)}; name it too, or leave wnli out."
        )
    if wnli == MAJORITY and len(names) == 1:
        raise BertKerasError(
            f"wnli is {MAJORITY!r}, which trains nothing, and WNLI is the only task; name another task too."
        )


def _open_tasks(names: Sequence[str], data: str | pathlib.Path | None, *, pooling: str) -> dict[str, Glue]:
    """Opens the tasks, by name, and reads all their splits, so that bad data raises an error before any run."""
    check_dev_split(data)
    tasks = {name: Glue(ROWS[name], data, pooling=pooling) for name in names}
    for task in tasks.values():
        for split in ("train", *task.validation_splits):
            task.examples(split)
    for name, split, _ in _test_splits(names):
        with contextlib.suppress(FileNotFoundError):  # a test file may be missing
            Glue(ROWS[name], data).examples(split)
    return tasks


def glue_score(summaries: Sequence[Summary]) -> float:
    """The mean over tasks; a task's measures, and MNLI's two splits, are averaged first."""
    return statistics.fmean(summary.score for summary in summaries)


def as_json(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The content of results.json."""
    made = reports.as_json(summaries)
    for summary in summaries:
        made["tasks"][summary.task]["score"] = summary.score
    score = {"score": glue_score(summaries), "tasks": len(summaries), "of": len(SCORED)}
    return {"glue_score_on_dev": score} | made


def submit(
    summaries: Sequence[Summary],
    *,
    data: str | pathlib.Path | None,
    output: pathlib.Path,
    majority: Mapping[str, str] = MappingProxyType({}),
    log: Callable[[str], None] = print,
) -> list[pathlib.Path]:
    """Writes the leaderboard's file for every test split found, and a zip of them; returns the files.

    majority: task without a run -> the label of all its texts
    """
    best = {summary.task: summary.best for summary in summaries}
    files = []
    for name, split, title in _test_splits([*best, *majority]):
        try:
            task = Glue(ROWS[name], data)
            examples = task.examples(split)
        except FileNotFoundError as error:
            log(f"no {title}.tsv: {error}")
            continue
        if name in majority:
            raw = next(examples.batch(cardinality(examples)).as_numpy_iterator())
            predictions: Mapping[str, np.ndarray] = {
                LABEL: np.full(len(raw[IDX]), majority[name].encode(), object)
            }
        else:
            chosen = best[PREDICTED_BY.get(name, name)]
            run = load_run(chosen.path)
            predictions, raw = predict(task, run.preprocess, run.model, examples)
        file = output / "submission" / f"{title}.tsv"
        file.parent.mkdir(exist_ok=True)
        answers = zip(raw[IDX].tolist(), _written(task.row, predictions), strict=True)
        lines = [f"{idx}\t{text}\n" for idx, text in sorted(answers, key=lambda pair: pair[0])]
        with atomic_file(file) as temporary:
            temporary.write_text("".join(["index\tprediction\n", *lines]), encoding="utf-8")
        files.append(file)
    if files:
        with (
            atomic_file(output / "submission.zip") as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
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
