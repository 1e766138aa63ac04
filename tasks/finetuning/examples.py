"""The examples of a fine-tuning, read, counted and checked once; and the splits that `evaluate` measures.

A run keeps digests of its examples (`checkpoints/settings.json`), which identify its training file under any name: `evaluate`
measures the rows that were held out of this file, not the rows that trained the run.
"""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.folders import Folder
from bert_keras.io.json_files import ANYTHING, NUMBER, checked_fields, integer, list_of, or_null
from bert_keras.io.paths import to_path
from bert_keras.tasks.batches import cardinality, check_examples, dataset, hold_out, take_examples
from bert_keras.tasks.hparams import MAX_SEED, Hparams
from bert_keras.tasks.task import Task, check_stride
from bert_keras.tasks.training.loop import RUN
from bert_keras.tasks.training.plan import digest_of_examples
from bert_keras.tasks.training.task_model import check_sizes
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer

HELD_OUT = "held-out"  # the name of the split that dev_fraction makes
# Keys in a fingerprint: the number of examples and their SHA-256.
TRAIN, DEV = "train_examples", "dev_examples"
Path = str | pathlib.Path


class Examples(NamedTuple):
    """The examples for training and evaluation.

    fingerprint: the number of examples of each split and their SHA-256
    """

    train: tf.data.Dataset
    dev: tf.data.Dataset
    train_count: int
    dev_count: int
    fingerprint: dict[str, Any]


def read_examples(task: Task, preprocess: Preprocessor, hparams: Hparams, dev_split: str | None) -> Examples:
    """Reads both splits once. Raises BertKerasError if a split is empty or has no label."""
    if hparams.dev_fraction is None:
        dev_split = dev_split or next(iter(task.validation_splits), "validation")
        dev, everything = task.examples(dev_split), task.examples("train")
    elif dev_split is None:
        dev_split = HELD_OUT
        everything, dev = hold_out(task.examples("train"), fraction=hparams.dev_fraction, seed=hparams.seed)
    else:
        raise BertKerasError("dev_split and dev_fraction were given; give one of them.")
    draw = hparams.seed if hparams.data_seed is None else hparams.data_seed
    train, measured = take_examples(everything, count=hparams.max_examples, seed=draw), dev_part(dev, hparams)
    counts = cardinality(train), cardinality(measured)
    fingerprint = {
        TRAIN: [counts[0], digest_of_examples(everything)],
        DEV: [counts[1], digest_of_examples(dev)],
    }
    dev = measured
    for split, some in (("train", train), (dev_split, dev)):
        check_labelled(task, preprocess, some, split)
        check_examples(task, preprocess, some)
    return Examples(train, dev, *counts, fingerprint)


def dev_part(dev: tf.data.Dataset, hparams: Hparams) -> tf.data.Dataset:
    """The examples of a dev split that `max_dev_examples` draws: the same for all seeds, so that their runs compare."""
    return take_examples(dev, count=hparams.max_dev_examples, seed=Hparams.seed)


def check_fits(task: Task, config: BertConfig, tokenizer: Tokenizer, hparams: Hparams) -> None:
    """Raises BertKerasError unless a training example becomes features that the encoder can read."""
    check_sizes(config, vocab_size=tokenizer.vocab_size, seq_length=hparams.seq_length)
    check_stride(task, tokenizer, seq_length=hparams.seq_length)
    preprocess = Preprocessor(tokenizer, seq_length=hparams.seq_length)
    next(iter(dataset(task, preprocess, task.examples("train").take(1), batch_size=1)))


def check_labelled(task: Task, preprocess: Preprocessor, examples: tf.data.Dataset, split: str) -> None:
    """Raises BertKerasError if a split has no labelled example."""
    batches = dataset(task, preprocess, examples, batch_size=256)
    if not any(bool(tf.reduce_any(weights > 0)) for _, _, weights in batches):
        raise BertKerasError(
            f"no example in the {split} split of {task.name} has a label; give a labelled split."
        )


def has_dev_split(task: Task) -> bool:
    """True if the source of a task has its first validation split."""
    try:
        task.examples(task.validation_splits[0])
    except MissingFileError:
        return False
    return True


# -----------------------------------------------------------------------------------------------------------
# The splits to measure


class Split(NamedTuple):
    """A split to measure. note: a line for the user; "" for none."""

    name: str
    examples: tf.data.Dataset
    note: str = ""


def splits_of(task: Task, paths: Sequence[Path], split: str | None = None) -> Iterator[Split]:
    """Yields the splits to measure.

    task: a run's task, with its examples
    paths: the folder of the run, or the folders of an ensemble
    split: a split of the task, or HELD_OUT; None takes the rows that the runs held out if the data is their training file, else
        every validation split of the task

    A note warns if the data of a split trained a run, unless the split is "train".
    Raises BertKerasError for HELD_OUT where the data is not the training file of runs that held out the same rows.
    """
    file, trained, held_out = _only_file(task), list[Path](), None
    # One file is all splits; in a folder, a named split has a file of its own.
    if file is not None and (split in (None, HELD_OUT) or (split != "train" and file.is_file())):
        trained, held_out = _known_parts(task, paths)
    if held_out is not None and split in (None, HELD_OUT):
        count, everything = cardinality(held_out), cardinality(task.examples("train"))
        note = (
            f"{file} is the training file of {paths[0]}: measuring the {count:,} of its {everything:,} examples that "
            "--dev-fraction held out; --split train measures all of them"
        )
        yield Split(HELD_OUT, held_out, note)
        return
    if split == HELD_OUT:
        runs = ", ".join(map(str, paths)) or "a checkpoint without training"
        raise BertKerasError(
            f"{file or 'the data'} is not training data of which {runs} held out examples; give what was the --data of a "
            "training with --dev-fraction, or leave --split out."
        )
    note = ""
    if trained:
        runs = ", ".join(map(str, trained))
        note = f"warning: {file} trained {runs}: the measures do not tell how good it is on new text"
    for name in [split] if split else task.validation_splits:
        yield Split(name, task.examples(name), note)


def _known_parts(task: Task, paths: Sequence[Path]) -> tuple[list[Path], tf.data.Dataset | None]:
    """The runs that some of the data trained, and the examples that all runs held out; None if these differ."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about examples that only a training leaves out
            examples = task.examples("train")
    except BertKerasError:  # a file for another split
        return [], None
    whole, parts = digest_of_examples(examples), dict[str, tf.data.Dataset]()
    trained, held = list[Path](), 0
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
    return trained, next(iter(parts.values())) if len(parts) == 1 and held == len(paths) else None


def _fingerprint(path: Path) -> dict[str, Any]:
    """The digests of a run's examples, and the settings of its dev split; None where the run does not have them."""
    folder = Folder(path, RUN)
    pair = or_null(list_of(ANYTHING))
    kinds = {TRAIN: pair, DEV: pair, "dev_fraction": or_null(NUMBER), "seed": integer(0, MAX_SEED)}
    kept = checked_fields(
        folder.fingerprint() if folder.begun else {},
        kinds,
        where=folder.path / RUN.fingerprint,
        optional=kinds,
        others=True,
    )
    train, dev = ((kept.get(name) or [None])[-1] for name in (TRAIN, DEV))
    return {"train": train, "dev": dev, "fraction": kept.get("dev_fraction"), "seed": kept.get("seed")}


def _only_file(task: Task) -> pathlib.Path | None:
    """The file or the folder without a dev split that holds all examples of a task; None for another source, and for none."""
    source = getattr(task, "source", None)
    if not isinstance(source, str | pathlib.Path):
        return None
    return None if not to_path(source).is_file() and has_dev_split(task) else to_path(source)
