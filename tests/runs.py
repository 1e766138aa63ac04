"""Runs that train in seconds, for tests of what reads a run: a small random checkpoint and data whose label is in its words.

In: a row of tasks.glue. Out: a checkpoint folder, the row's TSV files, a run.
"""

import dataclasses
import itertools
import random
from pathlib import Path

WORDS = ("good", "bad", "warm", "dull", "film", "plot", "actor", "scene", "the", "its", "is", "and", "very", ".", ",", "!")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *WORDS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *(f"[unused{i}]" for i in range(300)),
)
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 48,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 96,
    "max_positions": 48,
    "initializer_range": 0.2,  # wide, so that the answers to different texts differ
}


def write_checkpoint(folder: Path, **changes) -> Path:
    """A Hugging Face folder: random weights of SIZES, VOCABULARY, uncased."""
    from bert_keras import checkpoints
    from bert_keras.config import BertConfig
    from bert_keras.encoder import BertEncoder

    config = BertConfig(**(SIZES | changes))
    checkpoint = checkpoints.collect(config, BertEncoder(config))
    checkpoint = dataclasses.replace(checkpoint, vocabulary=VOCABULARY, lower_case=True)
    checkpoints.write(checkpoint, folder, format="hugging-face")
    return folder


def texts(count: int, *, seed: int = 0) -> list[str]:
    """Sentences of two to nine of the WORDS."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]


def write_data(folder: Path, row, *, count: int = 64) -> Path:
    """The row's files, every split that has labels; the last segment's first word says the label."""
    folder.mkdir(parents=True)
    for seed, (tsv, _) in enumerate(itertools.groupby(row.splits.values())):
        if tsv.label is None:
            continue
        segments = [texts(count, seed=10 * seed + i) for i in range(len(tsv.text))]
        written = [(row.file_labels or ("0.0", "5.0"))[WORDS.index(text.split()[0]) % 2] for text in segments[-1]]
        lines = ["\t".join(line) for line in zip(*segments, written, strict=True)]
        (folder / tsv.file).write_text("\n".join(["\t".join((*tsv.text, tsv.label)), *lines, ""]), encoding="utf-8")
    return folder


def finetuned(name: str, folder: Path) -> Path:
    """One epoch of a GLUE row from a random checkpoint, all of it below `folder`; the run's folder."""
    from bert_keras import checkpoints
    from tasks.glue import ROWS, Glue
    from tasks.task import Hparams
    from tasks.train import finetune

    task = Glue(ROWS[name], write_data(folder / "data", ROWS[name]))
    checkpoint = checkpoints.read(write_checkpoint(folder / "checkpoint"))
    hparams = Hparams(epochs=1, batch_size=8, learning_rate=1e-3, seq_length=40)
    finetune(
        task,
        checkpoint=checkpoint,
        output=folder / "run",
        hparams=hparams,
        dev_split=task.validation_splits[0],
        verbose=0,
        log=lambda line: None,
    )
    return folder / "run"
