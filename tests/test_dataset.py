"""dataset(): every example once, like lengths together, one shape where asked; predict(): the examples' own order."""

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.encoder import BertEncoder
from bert_keras.features import INPUT_MASK, INPUT_WORD_IDS, POOLED_OUTPUT
from bert_keras.preprocessing import Preprocessor
from bert_keras.tokenizers import WordPiece
from tasks.glue import ROWS, Glue
from tasks.task import Hparams, batches, cardinality, dataset, predict, take_examples

SEQ_LENGTH = 32
COUNT, BATCH = 1003, 8


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(runs.VOCABULARY)


@pytest.fixture(scope="module")
def preprocess(tokenizer):
    return Preprocessor(tokenizer, seq_length=SEQ_LENGTH, pad_to_longest=True)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return Glue(ROWS["sst2"], runs.write_data(tmp_path_factory.mktemp("sst2") / "data", "sst2", count=COUNT))


@pytest.fixture(scope="module")
def examples(task):
    return task.examples("train")


def order(examples, **settings):
    """The examples' places in their file, as one epoch visits them."""
    return [row for raw in batches(examples, batch_size=BATCH, **settings) for row in raw["idx"].numpy()]


def test_every_example_once_an_epoch(examples):
    for settings in ({}, {"seed": 1}, {"seed": 2, "drop_remainder": False}):
        assert sorted(order(examples, **settings)) == list(range(COUNT))
    assert len(set(order(examples, seed=1, drop_remainder=True))) == COUNT // BATCH * BATCH


def test_order_by_seed_and_epoch(examples):
    made = batches(examples, batch_size=BATCH, seed=1)
    epochs = [[row for raw in made for row in raw["idx"].numpy()] for _ in range(2)]
    assert epochs[0] == order(examples, seed=1)
    assert epochs[0] != epochs[1]
    assert epochs[0] != order(examples, seed=2)
    assert order(examples) == order(examples)


def test_random_order_is_not_the_files_nor_the_lengths(examples):
    """Neighbours in the file part, and batches come long and short in no order."""
    rows = np.array(order(examples, seed=1))
    assert np.abs(np.corrcoef(rows, np.arange(COUNT))[0, 1]) < 0.2
    lengths = [
        float(tf.reduce_mean(tf.strings.length(raw["sentence"])))
        for raw in batches(examples, batch_size=BATCH, seed=1)
    ]
    assert np.abs(np.corrcoef(lengths, np.arange(len(lengths)))[0, 1]) < 0.3


def test_short_text_is_not_padded_to_the_limit(task, preprocess, examples):
    """Each batch is as wide as its longest text, and few of its slots are padding (in the order of the file: 28 %)."""
    masks = [
        features[INPUT_MASK].numpy()
        for features, _, _ in dataset(task, preprocess, examples, batch_size=BATCH, seed=1)
    ]
    assert all(mask.shape[1] == mask.sum(1).max() for mask in masks)
    widths = {mask.shape[1] for mask in masks}
    assert len(widths) > 4 and min(widths) < max(widths) / 2 and max(widths) < SEQ_LENGTH
    real, slots = sum(mask.sum() for mask in masks), sum(mask.size for mask in masks)
    assert real / slots > 0.85


@pytest.mark.parametrize(("drop_remainder", "steps"), [(False, 126), (True, 125)])
def test_cardinality(task, preprocess, examples, drop_remainder, steps):
    made = dataset(task, preprocess, examples, batch_size=BATCH, seed=1, drop_remainder=drop_remainder)
    assert int(made.cardinality()) == sum(1 for _ in made) == steps


def test_one_static_shape_and_no_strings(task, tokenizer, examples):
    """What a TPU needs."""
    fixed = Preprocessor(tokenizer, seq_length=SEQ_LENGTH, pad_to_longest=False)
    made = dataset(task, fixed, examples, batch_size=BATCH, seed=1, drop_remainder=True)
    features, labels, weights = made.element_spec
    assert {tuple(spec.shape) for spec in features.values()} == {(BATCH, SEQ_LENGTH)}
    assert {spec.dtype for spec in features.values()} == {tf.int32}
    assert (labels.shape, labels.dtype) == ([BATCH], tf.int32)
    assert (weights.shape, weights.dtype) == ([BATCH], tf.float32)


def test_unlabelled_examples_weigh_nothing(task, preprocess):
    raw = {"sentence": ["good", "bad film", "dull"], "label": [1, -1, 0], "idx": [0, 1, 2]}
    _, labels, weights = next(
        iter(dataset(task, preprocess, tf.data.Dataset.from_tensor_slices(raw), batch_size=3))
    )
    order = np.argsort([len(text) for text in raw["sentence"]], kind="stable")
    assert weights.numpy().tolist() == np.float32([1, 0, 1])[order].tolist()
    assert labels.numpy()[weights.numpy() > 0].tolist() == [1, 0]


def test_take_examples(examples):
    def rows(**settings):
        return [int(raw["idx"]) for raw in take_examples(examples, **settings)]

    drawn = rows(count=50, seed=1)
    assert len(set(drawn)) == 50 and drawn != sorted(drawn)
    assert drawn == rows(count=50, seed=1)
    assert set(drawn) != set(rows(count=50, seed=2))
    assert rows(count=None, seed=1) == list(range(COUNT))
    taken = take_examples(examples, count=50, seed=1)  # epochs of the same fifty
    assert [int(raw["idx"]) for raw in taken] == [int(raw["idx"]) for raw in taken]


def test_cardinality_of_what_does_not_say(examples):
    assert cardinality(examples.filter(lambda raw: raw["idx"] < 7)) == 7
    with pytest.raises(ValueError, match="the data set is empty; at least one example is wanted"):
        cardinality(examples.filter(lambda raw: raw["idx"] < 0))


def test_predict_keeps_the_order_in_one_trace(task, preprocess, examples):
    traces, steps = [], []

    class Counting(Glue):
        def decode(self, outputs, features, raw):
            traces.append(features[INPUT_WORD_IDS].shape)
            return super().decode(outputs, features, raw)

    config = BertConfig(**runs.SIZES)
    model = task.model(BertEncoder(config, outputs=(POOLED_OUTPUT,)))
    some = examples.take(100)
    decoded, raw = predict(
        Counting(task.row, task.folder), preprocess, model, some, batch_size=BATCH, progress=steps.append
    )
    assert traces == [(None, None)]
    assert sum(steps) == 100 and max(steps) == BATCH
    assert raw["idx"].tolist() == list(range(100)) and set(raw) == {"sentence", "label", "idx"}
    for i in (0, 41, 99):
        logits = model(preprocess(raw["sentence"][i : i + 1]))
        np.testing.assert_allclose(decoded["probabilities"][i], keras.ops.softmax(logits)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("batch_size", 0, "at least 1"),
        ("epochs", 0, "at least 1"),
        ("learning_rate", 0.0, "over 0"),
        ("learning_rate", float("nan"), "over 0"),
        ("warmup_proportion", 1.5, "from 0 to 1"),
        ("weight_decay", -0.1, "at least 0"),
        ("clip_norm", 0.0, "over 0"),
        ("seed", -1, "from 0 to"),
        ("max_examples", 0, "at least 1"),
        ("freeze", "head", "'encoder' or nothing"),
    ],
)
def test_settings_out_of_range(name, value, wanted):
    with pytest.raises(ValueError, match=f"{name} is {value!r}; {name} must be {wanted}"):
        Hparams(**{name: value})
