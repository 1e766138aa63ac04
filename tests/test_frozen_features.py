"""The feature-based approach on every task: vectors computed once, a BiLSTM trained on them, one model that serves."""

import numpy as np
import pytest
import tensorflow as tf
from runs import texts, write_checkpoint

import bert_keras as bk
from bert_keras import checkpoints
from tasks.batches import dataset, predict, predictor
from tasks.features.frozen import FrozenNetwork, bilstm_of
from tasks.features.rows import RowExtractor, RowVectors, distinct_rows
from tasks.settings import Hparams
from tasks.text_data import raw_columns
from tasks.training.feature_based import FOLDER
from tasks.training.finetune import finetune
from tasks.training.run import load_run

TEXTS = texts(24, seed=0)
LABELS = ["good" if "good" in text or "warm" in text else "bad" for text in TEXTS]
NAMES = ["bad", "good"]
FEATURES = {"feature_layers": "0,2", "lstm_layers": 1, "lstm_units": 8, "lstm_dropout": 0.1}
LONG = ["the plot is good and the film very dull " * 4, "warm actor", "dull , bad film !"] * 4

# By task: the model of a checkpoint, texts, labels.
CASES = {
    "class": (lambda ckpt, **how: bk.classifier(ckpt, NAMES, **how), TEXTS, LABELS),
    "pair": (
        lambda ckpt, **how: bk.classifier(ckpt, NAMES, text=("a", "b"), pooling="concat", **how),
        (TEXTS, TEXTS[::-1]),
        LABELS,
    ),
    "several": (
        lambda ckpt, **how: bk.classifier(ckpt, NAMES, multi=True, **how),
        TEXTS,
        [[], ["good"], ["bad", "good"]] * 8,
    ),
    "score": (bk.regressor, TEXTS, np.linspace(-1, 1, 24)),
    "windows": (
        lambda ckpt, **how: bk.classifier(ckpt, NAMES, doc_stride=8, **how),
        LONG,
        ["bad", "good", "bad"] * 4,
    ),
    "answers": (
        lambda ckpt, **how: bk.question_answerer(
            ckpt, unanswerable=True, doc_stride=16, max_query_length=8, **how
        ),
        {"question": ["the film"] * 8, "context": [LONG[0]] * 8},
        [{"text": "very dull", "answer_start": 30}, None] * 4,
    ),
    "tags": (
        lambda ckpt, **how: bk.tagger(ckpt, ["PER"], doc_stride=8, **how),
        [["the", "actor", "is", "good"], ["bad", "plot"], ["warm", "actor"] * 8] * 4,
        [["O", "B-PER", "O", "O"], ["O", "O"], ["O", "B-PER"] * 8] * 4,
    ),
    "choice": (
        lambda ckpt, **how: bk.chooser(ckpt, 2, **how),
        {"context": TEXTS, "endings": [[text, "the film"] for text in TEXTS[::-1]]},
        [0, 1] * 12,
    ),
}

BILSTM_CASES = ("class", "tags")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """With dropout, which a frozen encoder must not apply."""
    sizes = {"num_layers": 2, "hidden_size": 16, "intermediate_size": 32}
    dropout = {"hidden_dropout": 0.3, "attention_dropout": 0.3}
    return write_checkpoint(tmp_path_factory.mktemp("features") / "checkpoint", **sizes, **dropout)


def task_of(case: str, checkpoint):
    """The task of a case, with the same examples in both splits."""
    make, x, y = CASES[case]
    model = make(checkpoint, seq_length=24)
    task, columns = model.problem, raw_columns(model.problem, model.preprocess, x, y)
    task.examples = lambda split: tf.data.Dataset.from_tensor_slices({**columns})
    return task


def trained(case: str, checkpoint, output, **changes):
    hparams = {"epochs": 2, "batch_size": 4, "seq_length": 24, **FEATURES, "learning_rate": 1e-2}
    if case not in BILSTM_CASES:  # a BiLSTM takes seconds to trace, and it is the same in every task
        hparams["lstm_layers"] = 0
    given = {name: changes.pop(name) for name in [*changes] if name in Hparams.__dataclass_fields__}
    how = {"checkpoint": checkpoint, "output": output, "verbose": 0, "log": lambda line: None}
    return finetune(task_of(case, checkpoint), hparams=Hparams(**hparams | given), **how | changes)


def weights_of(folder):
    return checkpoints.read(folder).tensors


def assert_same_answers(first, second):
    assert [*first] == [*second]
    for name, value in first.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, second[name], atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(value, second[name], err_msg=name)


def on_cached_vectors(run, examples, folder):
    """The predictions of a run from vectors that are computed first."""
    batches = dataset(run.task, run.preprocess, examples, batch_size=5, labelled=False)
    layers = bilstm_of(run.model).feature_layers
    rows = distinct_rows(features for features, _ in batches)
    vectors = RowVectors(RowExtractor(run.encoder, layers=layers, dtype="float32"), rows)
    vectors.compute(folder, progress=lambda done: None)
    above = FrozenNetwork(run.model)
    answers = predictor(
        run.task, run.preprocess, lambda inputs, training: above(vectors.attach(inputs), training)
    )
    return answers(examples, batch_size=3)[0]


@pytest.mark.parametrize("case", CASES)
def test_every_task_is_learned_from_vectors_and_served(case, checkpoint, tmp_path):
    """The encoder is unchanged bit for bit; cached vectors, the loaded run and its SavedModel answer alike."""
    results = trained(case, checkpoint, tmp_path / "run")
    assert not (tmp_path / "run" / FOLDER).exists()
    before, after = weights_of(checkpoint), weights_of(tmp_path / "run")
    assert [*before] == [*after]
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    run = load_run(tmp_path / "run")
    assert not run.encoder.trainable_variables
    examples = task_of(case, checkpoint).examples("validation")
    answers, raw = predict(run.task, run.preprocess, run.model, examples)
    assert_same_answers(answers, on_cached_vectors(run, examples, tmp_path / "vectors"))
    measured = dict(run.task.evaluate(answers, raw))
    for name, value in measured.items():
        assert results["measures"][f"val_{name}"] == pytest.approx(value, abs=1e-4), name
