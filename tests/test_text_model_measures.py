"""Measures, metrics, single batches and late errors of the models that take strings."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import texts, write_checkpoint

import bert_keras as bk
from bert_keras.errors import BertKerasError
from bert_keras.tasks.strings import text_model_parts
from bert_keras.tasks.strings.text_model_parts import choose_modes

NAMES = ["bad", "good"]
TEXTS = texts(20, seed=0)
IDS = [int("good" in text or "warm" in text) for text in TEXTS]
SCORES = np.linspace(-1, 1, 20).round(2)
QUESTIONS = {"question": ["the film"] * 4, "context": ["the plot is good and the film very dull " * 5] * 4}
ANSWERS = [{"text": "very dull", "answer_start": 30}, {"text": "good", "answer_start": 12}] * 2
WORDS = [["the", "actor", "is", "good"], ["bad", "plot"], ["the", "actor"]] * 2
TAGS = [["O", "B-PER", "O", "O"], ["O", "O"], ["O", "B-PER"]] * 2
SPAN = {"doc_stride": 16, "max_query_length": 8, "max_answer_length": 4, "n_best": 2}
SMALL = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "num_layers": 1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), **SMALL)


@pytest.fixture(scope="module")
def untrained(checkpoint):
    """A classifier for tests that leave it as it is."""
    return bk.classifier(checkpoint, NAMES)


@pytest.fixture(scope="module")
def scorer(checkpoint):
    """A regressor for tests that leave it as it is."""
    return bk.regressor(checkpoint)


def slices(*parts):
    return tf.data.Dataset.from_tensor_slices(parts)


# -----------------------------------------------------------------------------------------------------------
# The problem's own measures


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "x", "y", "measure"),
    [
        (lambda ckpt: bk.question_answerer(ckpt, **SPAN), QUESTIONS, ANSWERS, "f1"),
        (lambda ckpt: bk.tagger(ckpt, ["PER"]), WORDS, TAGS, "f1"),
    ],
    ids=["answers", "tags"],
)
@pytest.mark.slow
def test_fit_gives_the_measures_of_its_validation_data_to_callbacks(make, x, y, measure, checkpoint):
    model = make(checkpoint)
    model.compile(learning_rate=1e-3, warmup_proportion=0.0)
    seen = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    stop = keras.callbacks.EarlyStopping(f"val_{measure}", patience=1, min_delta=1e9)
    options = {"batch_size": 4, "epochs": 4, "callbacks": [watch, stop], "verbose": 0}
    history = model.fit(x, y, validation_data=(x, y), **options).history
    assert len(seen) == len(history["loss"]) == 2  # nothing improves by so much
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    measures = {name: value for name, value in seen[-1].items() if name.startswith("val_")}
    assert {f"val_{name}": value for name, value in logs.items()} == pytest.approx(measures, abs=1e-5)


def test_a_callback_that_keras_cannot_compare_takes_a_higher_measure_for_better(checkpoint):
    watching = [
        keras.callbacks.EarlyStopping("val_f1"),
        keras.callbacks.ReduceLROnPlateau("val_f1"),
        keras.callbacks.ModelCheckpoint("best.keras", monitor="val_f1", save_best_only=True),
    ]
    others = [keras.callbacks.EarlyStopping("val_loss"), keras.callbacks.EarlyStopping("val_f1", mode="min")]
    choose_modes([*watching, *others], bk.tagger(checkpoint, ["PER"]).problem.measures)
    assert [one.mode for one in [*watching, *others]] == ["max"] * 3 + ["auto", "min"]


@pytest.mark.long
def test_measures_of_a_data_set_are_those_of_its_texts(scorer):
    expected = scorer.evaluate(TEXTS, SCORES, verbose=0, return_dict=True)
    assert {"loss", "spearman", "pearson"} == {*expected}
    for data in (slices(TEXTS, SCORES), slices(TEXTS, SCORES).batch(6)):
        found = scorer.evaluate(data, verbose=0, return_dict=True)
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.long
def test_steps_limit_the_loss_and_the_measures_to_the_first_texts(scorer):
    expected = scorer.evaluate(TEXTS[:10], SCORES[:10], verbose=0, return_dict=True)
    found = scorer.evaluate(TEXTS, SCORES, batch_size=5, steps=2, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, abs=1e-5)
    for data in (slices(TEXTS, SCORES).batch(5), slices(TEXTS, SCORES).batch(5).repeat()):
        found = scorer.evaluate(data, steps=2, verbose=0, return_dict=True)
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.long
def test_validation_steps_limit_the_measures(checkpoint):
    model = bk.regressor(checkpoint)
    validation = slices(TEXTS, SCORES).batch(5).repeat()
    history = model.fit(TEXTS, SCORES, validation_data=validation, validation_steps=2, verbose=0).history
    expected = model.evaluate(TEXTS[:10], SCORES[:10], verbose=0, return_dict=True)
    assert {name: history[f"val_{name}"][0] for name in expected} == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("data", [(TEXTS, SCORES, np.ones(20)), (slices(TEXTS, SCORES, np.ones(20)),)])
def test_weights_beside_measures_that_do_not_take_them_are_refused(data, scorer):
    x, y, weights = (*data, None, None)[:3]
    with pytest.raises(BertKerasError, match="spearman|sample_weight"):
        scorer.evaluate(x, y, sample_weight=weights, verbose=0)
    with pytest.raises(BertKerasError, match="sample_weight"):
        scorer.fit(TEXTS, SCORES, validation_data=data if len(data) > 1 else x, verbose=0)


@pytest.mark.long
def test_weights_apply_to_an_evaluation_with_keras_metrics(untrained):
    weights = np.array([1.0] * 10 + [0.0] * 10)
    expected = untrained.evaluate(TEXTS[:10], IDS[:10], verbose=0)
    found = untrained.evaluate(TEXTS, IDS, sample_weight=weights, verbose=0)
    assert found == pytest.approx(expected, abs=1e-5)


def test_an_endless_data_set_needs_steps(untrained, scorer):
    for measured in (
        lambda: scorer.evaluate(slices(TEXTS, SCORES).repeat()),
        lambda: untrained.predict(slices(TEXTS).repeat()),
    ):
        with pytest.raises(BertKerasError, match="endless.*steps"):
            measured()


# -----------------------------------------------------------------------------------------------------------
# Keras' metrics


@pytest.mark.long
def test_metrics_do_not_count_padding(checkpoint):
    """A metric that counts all its slots sees 8 words in 3 texts; padding and special tokens would add slots."""
    model = bk.tagger(checkpoint, ["PER"])
    model.compile(metrics=[keras.metrics.SparseCategoricalAccuracy(name="own")])
    predicted = " ".join(model.predict(WORDS, verbose=0)["tags"]).split()
    right = np.array(predicted) == np.concatenate(TAGS)
    logs = model.evaluate(WORDS, TAGS, verbose=0, return_dict=True)
    assert logs["own"] == pytest.approx(np.mean(right)) == pytest.approx(logs["accuracy"])


@pytest.mark.parametrize(
    ("make", "asked", "late"),
    [
        (lambda ckpt: bk.tagger(ckpt, ["PER"]), ["f1", "accuracy"], ("f1",)),
        (lambda ckpt: bk.question_answerer(ckpt, max_query_length=8), ["f1"], ("f1",)),
        (bk.regressor, ["spearman"], ("spearman",)),
        (lambda ckpt: bk.classifier(ckpt, NAMES, seq_length=16, doc_stride=4), ["f1"], ("f1",)),
        (lambda ckpt: bk.classifier(ckpt, NAMES), ["f1", "accuracy"], ()),
        (lambda ckpt: bk.chooser(ckpt, 2), ["accuracy"], ()),
    ],
    ids=["tags", "answers", "score", "windows", "class", "choice"],
)
def test_a_metric_without_a_number_in_training_is_named(make, asked, late, checkpoint):
    assert text_model_parts.read_metrics(make(checkpoint).problem, asked)[2] == late


def test_fit_without_validation_data_warns_of_metrics_that_need_it(checkpoint):
    tagger = bk.tagger(checkpoint, ["PER"])
    tagger.compile(metrics=["f1"])
    with pytest.raises(UserWarning, match="f1: measured on validation data alone"):  # before the training
        tagger.fit(WORDS, TAGS, verbose=0)


def test_a_users_metric_takes_the_place_of_the_problems_of_the_same_name(checkpoint):
    model = bk.classifier(checkpoint, NAMES)
    entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")
    model.compile(metrics=["accuracy", entropy])
    logs = model.evaluate(TEXTS, IDS, verbose=0, return_dict=True)
    assert {*logs} == {"loss", "accuracy", "ce"}
    assert logs["ce"] == pytest.approx(logs["loss"], abs=1e-5)


# -----------------------------------------------------------------------------------------------------------
# One batch


@pytest.mark.long
@pytest.mark.slow
def test_one_batch_of_texts_is_learned_measured_and_predicted(checkpoint):
    model = bk.classifier(checkpoint, NAMES)
    model.compile(keras.optimizers.Adam(1e-3))
    loss = model.test_on_batch(TEXTS, IDS, return_dict=True)["loss"]
    assert loss == pytest.approx(model.evaluate(TEXTS, IDS, verbose=0)[0], abs=1e-5)
    losses = [model.train_on_batch(TEXTS, IDS, return_dict=True)["loss"] for _ in range(4)]
    assert losses[0] == pytest.approx(loss, abs=1e-5) and losses[-1] < loss
    found, expected = model.predict_on_batch(TEXTS), model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-6)


@pytest.mark.long
def test_weights_of_one_batch(checkpoint):
    model = bk.classifier(checkpoint, NAMES)
    weights = [1.0] * 10 + [0.0] * 10
    found = model.test_on_batch(TEXTS, IDS, sample_weight=weights, return_dict=True)["loss"]
    assert found == pytest.approx(model.evaluate(TEXTS[:10], IDS[:10], verbose=0)[0], abs=1e-5)
    model.compile(keras.optimizers.SGD(0.0))
    found = model.train_on_batch(TEXTS, IDS, class_weight={"bad": 0.0}, return_dict=True)["loss"]
    good = [text for text, label in zip(TEXTS, IDS, strict=True) if label]
    assert found == pytest.approx(model.evaluate(good, [1] * len(good), verbose=0)[0], abs=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_one_step_without_a_schedule_needs_an_optimizer(compiled, checkpoint):
    model = bk.classifier(checkpoint, NAMES)
    if compiled:
        model.compile(learning_rate=1e-4)
    with pytest.raises(BertKerasError, match="steps.*compile.*AdamW"):
        model.train_on_batch(TEXTS, IDS)


@pytest.mark.parametrize("given", [list, np.array, tf.constant], ids=["list", "NumPy", "tensor"])
def test_the_model_is_called_on_texts(given, untrained):
    probabilities = untrained.predict(TEXTS, verbose=0)["probabilities"]
    logits = untrained(given(TEXTS), training=False)
    np.testing.assert_allclose(keras.ops.softmax(logits), probabilities, atol=1e-5)


def test_a_call_or_a_step_that_cannot_work_is_refused(untrained):
    for given, facts in (([], "no texts"), ([None], "None is not text"), ("good", "one string")):
        with pytest.raises(BertKerasError, match=facts):
            untrained(given)
    with pytest.raises(BertKerasError, match="without labels"):
        untrained.test_on_batch(TEXTS)


@pytest.mark.long
def test_the_measures_of_a_second_fit_are_its_own(checkpoint):
    stars = [1 + one for one in IDS]
    model = bk.classifier(checkpoint, [1, 2])
    assert model.labels == ("1", "2")
    model.fit(TEXTS, stars, verbose=0)
    assert set(model.fit(TEXTS[:1], stars[:1], verbose=0).history["accuracy"]) <= {0.0, 1.0}


@pytest.mark.long
def test_one_execution_of_more_steps_than_the_data_has_is_measured(checkpoint):
    model = bk.classifier(checkpoint, NAMES)
    model.compile(steps_per_execution=3)
    expected = bk.classifier(checkpoint, NAMES)
    expected.set_weights(model.get_weights())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")  # Keras' own, of its last execution
        found = model.evaluate(TEXTS, IDS, verbose=0, return_dict=True)
    assert found == pytest.approx(expected.evaluate(TEXTS, IDS, verbose=0, return_dict=True), abs=1e-5)


# -----------------------------------------------------------------------------------------------------------
# Reading data sets


def test_a_wrong_label_after_the_first_batch_names_label_and_batch(untrained, checkpoint):
    labels = [NAMES[label] for label in IDS]
    data = slices(TEXTS, [*labels[:12], "great", *labels[13:]]).batch(5)
    for read in (bk.classifier(checkpoint, NAMES).fit, untrained.evaluate):
        with pytest.raises(BertKerasError) as error:
            read(data, verbose=0)
        assert all(fact in str(error.value) for fact in ("batch 2", "row 2", "'great'", "'bad', 'good'"))
        assert "\n" not in str(error.value)


def with_none(labelled):
    """The texts, and None in place of the last one."""

    def generate():
        yield from ((text, 0) if labelled else text for text in TEXTS * 2)
        yield (None, 0) if labelled else None

    string, number = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32)
    return tf.data.Dataset.from_generator(generate, output_signature=(string, number) if labelled else string)


@pytest.mark.long
def test_none_in_a_data_set_is_named(untrained, checkpoint):
    with pytest.raises(BertKerasError, match="NoneType.*string"):
        untrained.predict(with_none(False), verbose=0)
    model = bk.classifier(checkpoint, NAMES)
    model.compile(keras.optimizers.Adam(1e-3))
    with pytest.raises(BertKerasError, match="NoneType.*string"):
        model.fit(with_none(True), verbose=0)


def test_numbers_and_unknown_shapes_in_place_of_texts_are_refused(untrained):
    with pytest.raises(BertKerasError, match="text is int32.*strings"):
        untrained.predict(slices([1, 2]))
    with pytest.raises(BertKerasError, match="text is int32.*strings"):
        untrained.evaluate(slices([1, 2], [0, 1]))
    unknown = tf.data.Dataset.from_generator(lambda: iter(TEXTS), output_types=tf.string)
    with pytest.raises(BertKerasError, match="shapes.*output_signature"):
        untrained.predict(unknown)


def test_a_prediction_reads_a_data_set_once(untrained):
    read = []

    def generate():
        for text in TEXTS:
            read.append(text)
            yield text

    data = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.string))
    found = untrained.predict(data, verbose=0)["probabilities"]
    np.testing.assert_allclose(found, untrained.predict(TEXTS, verbose=0)["probabilities"], atol=1e-6)
    assert read == TEXTS


@pytest.mark.parametrize(
    ("text", "answer", "facts"),
    [
        ("a [MASK]", "good film", ["row 1", "'good film'", "2 tokens", "good, film"]),
        ("a [MASK]", "", ["row 1", "''", "0 tokens"]),
        ("good " * 60 + "[MASK]", "film", ["row 1", "[MASK]", "first 48 tokens"]),
    ],
)
@pytest.mark.filterwarnings("ignore:the checkpoint has no masked_lm head")
def test_an_answer_that_cannot_be_learned_is_refused(text, answer, facts, checkpoint):
    model = bk.masked_lm(checkpoint)
    x, y = ["the [MASK] is good", text], ["film", answer]
    for data in ((x, y), (slices(x, y).batch(2),)):
        for read in (model.fit, model.evaluate):
            with pytest.raises(BertKerasError) as error:
                read(*data, verbose=0)
            assert all(fact in str(error.value) for fact in facts), error.value


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_network_of_ones_own_is_refused_as_a_run_folder(checkpoint, tmp_path):
    base = bk.classifier(checkpoint, NAMES)
    encoder = bk.load_encoder(checkpoint, outputs=["sequence_output"])
    inputs = bk.encoder_inputs()
    states = keras.layers.LSTM(4, name="lstm")(encoder(inputs)["sequence_output"])
    network = keras.Model(inputs, keras.layers.Dense(2, name="own")(states))
    model = bk.TextModel(base.problem, base.preprocess, network)
    with pytest.raises(BertKerasError, match="lstm, own.*a .keras file"):
        model.save(tmp_path / "run")
    assert [*tmp_path.iterdir()] == []
    model.save(tmp_path / "model.keras")
    answers = [one.predict(TEXTS[:2], verbose=0) for one in (model, bk.load(tmp_path / "model.keras"))]
    np.testing.assert_array_equal(answers[0]["probabilities"], answers[1]["probabilities"])


@pytest.mark.long
def test_a_log_has_lines_without_control_characters(checkpoint, capfd):
    model = bk.classifier(checkpoint, NAMES)
    model.fit(TEXTS, IDS, epochs=2)
    model.evaluate(TEXTS, IDS)
    lines = capfd.readouterr().out.split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert [line for line in lines if line.startswith("Epoch")] == ["Epoch 1/2", "Epoch 2/2"]
    assert len([line for line in lines if "accuracy" in line]) == 3
