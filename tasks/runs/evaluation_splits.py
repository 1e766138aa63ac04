"""The rows that a run held out of its training file: `evaluate` measures these, not the rows that trained the run.

In: a Run whose data is one file. Out: the splits to measure. A run keeps digests of its examples (`checkpoints/settings.json`);
they tell its training file under any name.
"""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.folders import Folder
from bert_keras.io.json_files import ANYTHING, NUMBER, checked_fields, integer, list_of, or_null
from bert_keras.io.paths import to_path
from bert_keras.tasks.batches import cardinality, hold_out
from bert_keras.tasks.hparams import MAX_SEED
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.fingerprint import digest_of_examples
from bert_keras.tasks.training.loop import RUN

HELD_OUT = "held-out"  # the name of the split


class Split(NamedTuple):
    """A split to measure. note: a line for the user; "" for none."""

    name: str
    examples: tf.data.Dataset
    note: str = ""


def splits_of(run: Run, paths: Sequence[str | pathlib.Path], split: str | None = None) -> Iterator[Split]:
    """Yields the splits to measure.

    paths: the folder of the run, or the folders of an ensemble
    split: a split of the task, or HELD_OUT; None takes the rows that the runs held out if the data is their training file, else
        every validation split of the task

    A note warns if the data of a split trained a run, unless the split is "train".
    Raises BertKerasError for HELD_OUT where the data is not the training file of runs that held out the same rows.
    """
    task = run.task
    file = _only_file(task)
    # One file is all splits; in a folder, a named split has a file of its own.
    known = file is not None and (split in (None, HELD_OUT) or (split != "train" and file.is_file()))
    found = _found(task, paths) if known else None
    if found is not None and found.held_out is not None and split in (None, HELD_OUT):
        count, everything = cardinality(found.held_out), cardinality(task.examples("train"))
        note = (
            f"{file} is the training file of {paths[0]}: measuring the {count:,} of its {everything:,} examples that "
            "--dev-fraction held out; --split train measures all of them"
        )
        yield Split(HELD_OUT, found.held_out, note)
        return
    if split == HELD_OUT:
        runs = ", ".join(map(str, paths)) or "a checkpoint without training"
        raise BertKerasError(
            f"{file or 'the data'} is not training data of which {runs} held out examples; give what was the --data of a "
            "training with --dev-fraction, or leave --split out."
        )
    note = ""
    if found is not None and found.trained:
        runs = ", ".join(map(str, found.trained))
        note = f"warning: {file} trained {runs}: the measures do not tell how good it is on new text"
    for name in [split] if split else task.validation_splits:
        yield Split(name, task.examples(name), note)


class _Found(NamedTuple):
    """The part of the data that runs know.

    trained: the runs that some of it trained
    held_out: the examples that all runs held out; None if these differ
    """

    trained: list[str | pathlib.Path]
    held_out: tf.data.Dataset | None


def _found(task: Task, paths: Sequence[str | pathlib.Path]) -> _Found:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about examples that only a training leaves out
            examples = task.examples("train")
    except BertKerasError:  # a file for another split
        return _Found([], None)
    whole, parts = digest_of_examples(examples), dict[str, tf.data.Dataset]()
    trained, held = list[str | pathlib.Path](), 0
    for path in paths:
        kept = _fingerprint(path)
        if kept["train"] == whole:
            trained.append(path)
        if kept["fraction"] is None:
            continue
        with contextlib.suppress(BertKerasError):  # too few examples for this fraction
            _, part = hold_out(examples, fraction=kept["fraction"], seed=kept["seed"])
            if (digest := digest_of_examples(part)) == kept["dev"]:
                parts[digest], held = part, held + 1
                trained += [path] if path not in trained else []
    same = len(parts) == 1 and held == len(paths)
    return _Found(trained, next(iter(parts.values())) if same else None)


def _fingerprint(path: str | pathlib.Path) -> dict[str, Any]:
    """The digests of a run's examples, and the settings of its dev split; None where the run does not have them."""
    folder = Folder(path, RUN)
    kept = folder.fingerprint() if folder.begun else {}
    pair = or_null(list_of(ANYTHING))
    kinds = {
        "train_examples": pair,
        "dev_examples": pair,
        "dev_fraction": or_null(NUMBER),
        "seed": integer(0, MAX_SEED),
    }
    kept = checked_fields(kept, kinds, where=folder.path / RUN.fingerprint, optional=kinds, others=True)
    digests = {split: (kept.get(f"{split}_examples") or [None])[-1] for split in ("train", "dev")}
    return digests | {"fraction": kept.get("dev_fraction"), "seed": kept.get("seed")}


def _only_file(task: Task) -> pathlib.Path | None:
    """The file or the folder without a dev split that holds all examples of a task; None for another source, and for none."""
    source = getattr(task, "source", None)
    if not isinstance(source, str | pathlib.Path):
        return None
    if not to_path(source).is_file():
        try:
            task.examples(task.validation_splits[0])
            return None
        except MissingFileError:
            pass
    return to_path(source)
