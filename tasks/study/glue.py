"""The paper's protocol on GLUE: the grids of several tasks, the score, and the leaderboard's files.

In: names of tasks, a checkpoint, settings. Out: the folder of protocol.py with all tasks, and

    OUTPUT/submission/<task>.tsv   the best run's predictions for each test file found; also in submission.zip
"""

import contextlib
import pathlib
import statistics
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras.errors import BertKerasError
from bert_keras.io.files import atomic_file
from bert_keras.io.paths import to_path
from bert_keras.tasks.batches import cardinality, predict
from bert_keras.tasks.data.glue import IDX, LABEL, ROWS, TextDataSet
from bert_keras.tasks.data.sources import check_dev_split
from bert_keras.tasks.devices.workers import reports_lost_workers
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification, majority_label
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.study.grid import Study
from bert_keras.tasks.study.protocol import check_grid, check_output, plan_grid
from bert_keras.tasks.study.report import Summary, summaries_json
from bert_keras.tasks.study.rows import MAJORITY, PREDICTED_BY, SCORED, SUBMISSION, WNLI, check_once
from bert_keras.tasks.study.study_options import GlueOptions, ProtocolOptions


@reports_lost_workers()
def plan_glue(
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
) -> Study[list[Summary]]:
    """As `plan_protocol`, for several tasks of GLUE; its `run` writes the leaderboard's files too.

    names: tasks in SCORED
    data: the folder with GLUE's folders; None for TensorFlow Datasets
    wnli: "majority" answers WNLI with its most frequent training label, without a run, and leaves it out of the score, as in the
        paper
    options: fields of ProtocolOptions

    A task with only diverged runs has no summary; results.json lists it under "failed", and `log` names it. Raises as
    `plan_protocol`, and BertKerasError for a name that is not in SCORED.
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

    return plan_grid(
        tasks,
        checkpoint=checkpoint,
        output=output,
        hparams=hparams,
        options=chosen,
        finish=finish,
        how={"strategy_name": strategy_name, "feature_cache": None, "verbose": verbose, "log": log},
    )


def run_glue(names: Sequence[str], **settings: Any) -> list[Summary]:
    """Runs the study that `plan_glue` makes of these settings."""
    return plan_glue(names, **settings).run()


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
