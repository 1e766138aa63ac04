"""dataset(): every example once, similar lengths together, one shape on request; predict(): the examples' own order."""

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.features import (
    ENCODER_INPUTS,
    EXAMPLE_INDEX,
    INPUT_MASK,
    INPUT_WORD_IDS,
    POOLED_OUTPUT,
    START_BYTES,
)
from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.batches import batches, cardinality, dataset, predict, predictor, take_examples
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.text.preprocessing import Preprocessor, pad_batches
from bert_keras.text.wordpiece import WordPiece

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
    return TextClassification.open(
        "sst2", runs.write_data(tmp_path_factory.mktemp("sst2") / "data", "sst2", count=COUNT)
    )


@pytest.fixture(scope="module")
def examples(task):
    return task.examples("train")


def order(examples, **settings):
    """The examples' numbers in their file, in the order of one epoch."""
    return [row for raw in batches(examples, batch_size=BATCH, **settings) for row in raw["idx"].numpy()]


def test_every_epoch_has_every_example_once(examples):
    for seed in (None, 1):
        assert sorted(order(examples, seed=seed)) == list(range(COUNT))


def test_order_depends_on_seed_and_epoch(examples):
    made = batches(examples, batch_size=BATCH, seed=1)
    epochs = [[row for raw in made for row in raw["idx"].numpy()] for _ in range(2)]
    assert epochs[0] == order(examples, seed=1)
    assert epochs[0] != epochs[1]
    assert epochs[0] != order(examples, seed=2)
    assert order(examples) == order(examples)


def test_random_order_differs_from_file_order_and_length_order(examples):
    """Neighbours in the file part, and batches come long and short in no order."""
    rows = np.array(order(examples, seed=1))
    assert np.abs(np.corrcoef(rows, np.arange(COUNT))[0, 1]) < 0.2
    made = batches(examples, batch_size=BATCH, seed=1)
    lengths = [float(tf.reduce_mean(tf.strings.length(raw["sentence"]))) for raw in made]
    assert np.abs(np.corrcoef(lengths, np.arange(len(lengths)))[0, 1]) < 0.3


def test_short_text_is_padded_to_its_batch_only(task, preprocess, examples):
    """Each batch is as wide as its longest text, and few of its slots are padding (in the order of the file: 28 %)."""
    made = dataset(task, preprocess, examples, batch_size=BATCH, seed=1)
    masks = [features[INPUT_MASK].numpy() for features, _, _ in made]
    assert all(mask.shape[1] == mask.sum(1).max() for mask in masks)
    widths = {mask.shape[1] for mask in masks}
    assert len(widths) > 4 and min(widths) < max(widths) / 2 and max(widths) < SEQ_LENGTH
    real, slots = sum(mask.sum() for mask in masks), sum(mask.size for mask in masks)
    assert real / slots > 0.85


@pytest.mark.parametrize("multiple_of", [1, 3, BATCH])
def test_cardinality(task, preprocess, examples, multiple_of):
    made = dataset(task, preprocess, examples, batch_size=BATCH, seed=1, multiple_of=multiple_of)
    assert int(made.cardinality()) == sum(1 for _ in made) == 126


def test_batches_are_padded_with_rows_of_weight_0(task, preprocess, examples):
    """For three replicas: batches of 8 get a ninth row, and the last batch of 3 stays; the rest is as without."""
    plain = list(dataset(task, preprocess, examples, batch_size=BATCH, seed=1))
    made = list(dataset(task, preprocess, examples, batch_size=BATCH, seed=1, multiple_of=3))
    assert sorted({len(labels) for _, labels, _ in made}) == [3, 9]
    for (features, labels, weights), (wanted, *answers) in zip(made, plain, strict=True):
        count = len(answers[0])
        for name, value in wanted.items():
            np.testing.assert_array_equal(features[name][:count], value)
            np.testing.assert_array_equal(features[name][count:], value[:1][: len(labels) - count])
        np.testing.assert_array_equal(labels[:count], answers[0])
        np.testing.assert_array_equal(weights, [*answers[1].numpy(), *[0] * (len(labels) - count)])


def test_one_static_shape_and_no_strings(task, tokenizer, examples):
    """A TPU needs one shape; no example is left out."""
    fixed = Preprocessor(tokenizer, seq_length=SEQ_LENGTH, pad_to_longest=False)
    made = dataset(task, fixed, examples, batch_size=BATCH, seed=1, multiple_of=BATCH)
    assert sum(float(tf.reduce_sum(weights)) for _, _, weights in made) == COUNT
    features, labels, weights = made.element_spec
    assert {tuple(spec.shape) for spec in features.values()} == {(BATCH, SEQ_LENGTH)}
    assert {spec.dtype for spec in features.values()} == {tf.int32}
    assert (labels.shape, labels.dtype) == ([BATCH], tf.int32)
    assert (weights.shape, weights.dtype) == ([BATCH], tf.float32)


def test_unlabelled_examples_have_weight_0(task, preprocess):
    raw = {"sentence": ["good", "bad film", "dull"], "label": [1, -1, 0], "idx": [0, 1, 2]}
    unlabelled = tf.data.Dataset.from_tensor_slices(raw)
    _, labels, weights = next(iter(dataset(task, preprocess, unlabelled, batch_size=3)))
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


def test_cardinality_of_data_sets_of_unknown_size(examples):
    assert cardinality(examples.filter(lambda raw: raw["idx"] < 7)) == 7
    with pytest.raises(ValueError, match="the data set is empty"):
        cardinality(examples.filter(lambda raw: raw["idx"] < 0))


class Counting(TextClassification):
    """Lists the shapes for which `decode` is traced."""

    traces = ()

    def decode(self, outputs, features, raw):
        self.traces = (*self.traces, features[INPUT_WORD_IDS].shape)
        return super().decode(outputs, features, raw)


@pytest.fixture(scope="module")
def model(task):
    keras.utils.set_random_seed(0)
    return task.model(BertEncoder(BertConfig(**runs.SIZES), outputs=(POOLED_OUTPUT,)))


def test_predict_keeps_the_order_in_one_trace(task, preprocess, examples, model):
    counting, steps = Counting.open(task.name, task.source), []
    options = {"batch_size": BATCH, "progress": steps.append}
    decoded, raw = predict(counting, preprocess, model, examples.take(100), **options)
    assert counting.traces == ((None, None),)
    assert sum(steps) == 100 and max(steps) == BATCH
    assert raw["idx"].tolist() == list(range(100)) and set(raw) == {"sentence", "label", "idx"}
    for i in (0, 41, 99):
        logits = model(preprocess(raw["sentence"][i : i + 1]))
        np.testing.assert_allclose(decoded["probabilities"][i], keras.ops.softmax(logits)[0], atol=1e-6)


def test_a_predictor_is_traced_once(task, preprocess, examples, model):
    counting = Counting.open(task.name, task.source)
    whole, _ = predict(task, preprocess, model, examples.take(30), batch_size=8)
    ask = predictor(counting, preprocess, model)
    parts = (examples.take(10), examples.skip(10).take(20))
    chunks = [ask(part, batch_size=8)[0] for part in parts]
    assert counting.traces == ((None, None),)
    joined = np.concatenate([chunk["probabilities"] for chunk in chunks])
    np.testing.assert_allclose(joined, whole["probabilities"], atol=1e-6)


class Windowed(TextClassification):
    """Every sentence in windows of 5 tokens; the label of a window is where it starts, in bytes."""

    windowed = True

    def features(self, preprocess, raw):
        options = {"seq_length": 7, "pad_to_longest": preprocess.pad_to_longest}
        return Preprocessor(preprocess.tokenizer, **options).windows(raw["sentence"], doc_stride=2)

    def labels(self, raw, features):
        starts = features[START_BYTES][:, 1]
        return tf.stack([starts, tf.gather(raw["idx"], features[EXAMPLE_INDEX])], 1), tf.ones_like(starts)

    def decode(self, outputs, features, raw):
        per_window = tf.ones_like(features[EXAMPLE_INDEX])
        count = tf.math.unsorted_segment_sum(per_window, features[EXAMPLE_INDEX], tf.size(raw["sentence"]))
        return {"windows": count, "sum": tf.math.segment_sum(outputs[:, 0], features[EXAMPLE_INDEX])}


@pytest.fixture(scope="module")
def windowed(task):
    return Windowed.open(task.name, task.source)


@pytest.fixture(scope="module")
def every_window(windowed, preprocess, examples):
    raw = next(iter(examples.batch(COUNT)))
    labels, _ = windowed.labels(raw, windowed.features(preprocess, raw))
    return sorted(map(tuple, labels.numpy().tolist()))


def test_every_epoch_has_every_window_once(windowed, preprocess, examples, every_window):
    """In full batches, each as wide as its longest window; the two columns of the labels are not cut."""
    for seed in (None, 1):
        seen = []
        made = list(dataset(windowed, preprocess, examples, batch_size=BATCH, seed=seed))
        for features, labels, weights in made:
            assert set(features) == set(ENCODER_INPUTS)
            mask = features[INPUT_MASK].numpy()
            assert mask.shape[1] == mask.sum(1).max()
            assert len(mask) == len(labels) == len(weights)
            seen += map(tuple, labels.numpy().tolist())
        assert sorted(seen) == every_window
        assert [len(labels) for _, labels, _ in made].count(BATCH) == len(every_window) // BATCH
    assert seen != every_window  # with a seed


def test_windows_of_one_example_are_shuffled_in_training(windowed, preprocess, examples):
    made = dataset(windowed, preprocess, examples, batch_size=BATCH, seed=1)
    rows = [row for _, labels, _ in made for row in labels.numpy()[:, 1]]
    neighbours = sum(one == other for one, other in zip(rows, rows[1:], strict=False))
    assert neighbours < len(rows) / 20


def test_windows_of_one_static_shape(windowed, tokenizer, examples):
    fixed = Preprocessor(tokenizer, seq_length=SEQ_LENGTH, pad_to_longest=False)
    made = dataset(windowed, fixed, examples.take(40), batch_size=BATCH, seed=1, multiple_of=BATCH)
    plain = dataset(windowed, fixed, examples.take(40), batch_size=BATCH, seed=1)
    assert sum(float(tf.reduce_sum(one[2])) for one in made) == sum(len(one[1]) for one in plain)
    features, labels, _ = made.element_spec
    assert {tuple(spec.shape) for spec in features.values()} == {(BATCH, 7)}
    assert all(features[INPUT_MASK].shape == (BATCH, 7) for features, _, _ in made)
    assert labels.shape == (BATCH, 2)


def test_predict_joins_windows(windowed, preprocess, examples, every_window):
    """A batch has more windows than examples; they go through the model in groups."""
    groups = []

    class Reading(keras.Model):
        def call(self, features, training=False):
            tf.py_function(lambda size: groups.append(int(size)), [tf.shape(features[INPUT_MASK])[0]], [])
            return tf.cast(features[INPUT_WORD_IDS], tf.float32)

    decoded, raw = predict(windowed, preprocess, Reading(), examples.take(50), batch_size=BATCH)
    rows = [row for _, row in every_window]
    assert decoded["windows"].tolist() == [rows.count(i) for i in range(50)]
    assert decoded["sum"].tolist() == [runs.VOCABULARY.index("[CLS]") * rows.count(i) for i in range(50)]
    assert max(groups) == BATCH and sum(groups) == decoded["windows"].sum()
    assert raw["idx"].tolist() == list(range(50))


# Batches of a user


def test_pad_batches():
    """Nests of any rank; weights that are given, and those that are not."""
    features = {"ids": [[1, 2], [3, 4], [5, 6], [7, 8], [9, 0]]}
    labels, weights = {"tags": [[0, 1]] * 5}, {"tags": [[1.0, 0.5]] * 5}
    given = tf.data.Dataset.from_tensor_slices((features, labels, weights)).batch(3)
    made = list(pad_batches(given, multiple_of=2).as_numpy_iterator())
    assert [batch[0]["ids"].tolist() for batch in made] == [
        [[1, 2], [3, 4], [5, 6], [1, 2]],
        [[7, 8], [9, 0]],
    ]
    assert [batch[2]["tags"].tolist() for batch in made] == [[[1, 0.5]] * 3 + [[0, 0]], [[1, 0.5]] * 2]
    assert {batch[1]["tags"].shape for batch in made} == {(4, 2), (2, 2)}
    bare = pad_batches(tf.data.Dataset.range(5).batch(3).map(lambda x: (x, x)), multiple_of=3)
    assert [batch[2].tolist() for batch in bare.as_numpy_iterator()] == [[1, 1, 1], [1, 1, 0]]
    assert bare.element_spec[2].dtype == tf.float32
    with pytest.raises(ValueError, match="multiple_of is 0; give at least 1 row"):
        pad_batches(given, multiple_of=0)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("batch_size", 0, "a whole number of at least 1"),
        ("epochs", 0, "a whole number of at least 1"),
        ("learning_rate", 0.0, "a finite number over 0"),
        ("learning_rate", float("nan"), "a finite number over 0"),
        ("warmup_proportion", 1.5, "a finite number of at least 0 and at most 1"),
        ("weight_decay", -0.1, "a finite number of at least 0"),
        ("clip_norm", 0.0, "a finite number over 0"),
        ("seed", -1, "a whole number of at least 0"),
        ("max_examples", 0, "a whole number of at least 1"),
        ("freeze", "head", "one of encoder, or None"),
    ],
)
def test_settings_out_of_range(name, value, wanted):
    with pytest.raises(ValueError, match=f"{name} is {value!r}; {name} must be {wanted}"):
        Hparams(**{name: value})
