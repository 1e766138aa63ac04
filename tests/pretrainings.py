"""Small pre-trainings that tests share."""

import random

import instance_texts
import numpy as np
import pytest
import runs

from bert_keras.features import (
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    TFRECORD_NAMES,
)
from bert_keras.tasks.pretraining.pretrain import Pretraining, plan_pretraining, pretrain
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.text.wordpiece import WordPiece

SMALL = {
    "hidden_size": 32,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 64,
    "max_positions": 50,
    "batch_size": 8,
    "steps": 40,
    "seq_length": 32,
    "learning_rate": 3e-3,
    "warmup_proportion": 0.1,
    "log_every": 10,
    "eval_every": 20,
    "held_out_instances": 40,
}


def documents(count=60, *, lines=(3, 12), seed=0):
    draw = random.Random(seed)
    return [runs.texts(draw.randint(*lines), seed=1000 * seed + i) for i in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(runs.VOCABULARY)


def given(name="bert", *, tokenizer=None, changes=None, **options):
    """The arguments of `plan_pretraining`."""
    changes = SMALL | (changes or {})
    if "phases" in changes:
        del changes["seq_length"]
    return {
        "documents": None if "records" in options else documents(),
        "recipe": RECIPES[name].changed(**changes),
        "tokenizer": tokenizer or WordPiece(runs.VOCABULARY),
        **options,
    }


def train(output, name="bert", *, verbose=0, save_every=1000, **options):
    return pretrain(
        Pretraining(**given(name, **options)),
        output,
        save_every=save_every,
        log=lambda line: None,
        verbose=verbose,
    )


def planned_lines(name="bert", **options):
    """The lines for a person before the first step."""
    return plan_pretraining(Pretraining(**given(name, **options))).lines


def write(folder, *, settings=None, masking=None, texts=None, vocabulary=runs.VOCABULARY):
    instance_texts.write(
        folder, texts or documents(), vocabulary=vocabulary, settings=settings, masking=masking
    )
    return folder


def refused(tmp_path, match, name="bert", **options):
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        train(tmp_path / "run", name, **options)
    assert not (tmp_path / "run").exists()


def google_record(*, highest, label=0, length=16):
    """A record in the names of google-research/bert."""
    ids = np.full(length, 10)
    ids[3] = highest
    values = {
        INPUT_WORD_IDS: ids,
        INPUT_MASK: np.ones(length, int),
        INPUT_TYPE_IDS: np.zeros(length, int),
        MASKED_LM_POSITIONS: [3, 0],
        MASKED_LM_IDS: [11, 0],
        MASKED_LM_WEIGHTS: [1.0, 0.0],
        NEXT_SENTENCE_LABEL: [label],
    }
    return instance_texts.example({TFRECORD_NAMES[name]: value for name, value in values.items()})


def write_google(path, *, highest, labels=(0, 1), count=20, length=16):
    """A file of such records."""
    records = [google_record(highest=highest, label=label, length=length) for label in labels]
    instance_texts.write_examples(path, (records[i % len(labels)] for i in range(count)))
