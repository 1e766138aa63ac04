"""Models that take strings: every problem by `fit`, `evaluate` and `predict`, every form of data, and saving."""

import csv
import json
import re
import types
import warnings
from pathlib import Path

import forked
import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from random_checkpoints import TINY
from runs import ROOT, SIZES, contents, full_disk, run_command, texts, write_checkpoint

import bert_keras as bk
from bert_keras.errors import BertKerasError
from bert_keras.io.other_names import ATTRIBUTES
from bert_keras.model.layers import Dense
from bert_keras.optimization.training_model import TrainingModel
from bert_keras.tasks.data.columns import class_ids, read_columns
from bert_keras.tasks.finetuning.finetune import plan_finetuning
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.runs.task_types import open_task
from bert_keras.tasks.strings.text_batches import make_class_weights, text_batches
from bert_keras.tasks.strings.text_data import cut_texts, feature_batches

pytestmark = [pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")]
TEXTS = texts(24, seed=0)
LABELS = ["good" if "good" in text or "warm" in text else "bad" for text in TEXTS]
NAMES = ["bad", "good"]
SPAN = {"doc_stride": 16, "max_query_length": 8, "max_answer_length": 4, "n_best": 2}
QUESTIONS = {"question": ["the film"] * 4, "context": ["the plot is good and the film very dull " * 5] * 4}
ENDINGS = {"context": ["the film"] * 8, "endings": [["is good", "is bad"]] * 8}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    no_dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), **no_dropout)


@pytest.fixture
def model(checkpoint):
    return bk.classifier(checkpoint, NAMES)


@pytest.fixture(scope="module")
def untrained(checkpoint):
    """A model for tests that leave it as it is."""
    return bk.classifier(checkpoint, NAMES)


# By problem: the model, texts, labels, and the logs that `evaluate` gives after the loss.
CASES = {
    "class": (lambda ckpt: bk.classifier(ckpt, NAMES), TEXTS, LABELS, {"accuracy"}),
    "pair": (lambda ckpt: bk.classifier(ckpt, NAMES, text=("premise", "hypothesis")), (TEXTS, TEXTS[::-1]), LABELS, {"accuracy"}),
    "multi": (lambda ckpt: bk.classifier(ckpt, NAMES, multi=True), TEXTS, [[], ["good"], ["bad", "good"]] * 8, {"f1"}),
    "score": (bk.regressor, TEXTS, np.linspace(-1, 1, 24), {"spearman", "pearson"}),
    "answers": (lambda ckpt: bk.question_answerer(ckpt, unanswerable=True, **SPAN), QUESTIONS,
                [{"text": "very dull", "answer_start": 30}, None] * 2, {"exact_match", "f1", "HasAns_f1", "NoAns_f1"}),
    "tags": (lambda ckpt: bk.tagger(ckpt, ["PER"], doc_stride=16), [["the", "actor", "is", "good"], ["bad", "plot"]] * 4,
             [["O", "B-PER", "O", "O"], ["O", "O"]] * 4, {"f1", "precision", "recall", "accuracy"}),
    "endings": (lambda ckpt: bk.chooser(ckpt, 2), ENDINGS, [1, 0] * 4, {"accuracy"}),
    "masks": (bk.masked_lm, ["the film is [MASK]", "a [MASK] plot"] * 4, ["good", "dull"] * 4,
              {"accuracy", "top_5", "mean_reciprocal_rank", "skipped"}),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the checkpoint has no masked_lm head")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow) if case in ("pair", "endings", "score", "masks") else case
        for case in CASES
    ],
)
def test_every_problem_learns_is_measured_and_saved(case, checkpoint, tmp_path):
    make, x, y, measures = CASES[case]
    model = make(checkpoint)
    model.compile(learning_rate=1e-3, warmup_proportion=0.0)
    losses = model.fit(x, y, batch_size=8, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    assert measures <= {*logs}
    predicted = model.predict(x, verbose=0)
    assert {len(values) for values in predicted.values()} == {len(y)}
    model.save(tmp_path / "m.keras")
    again = bk.load(tmp_path / "m.keras").predict(x, verbose=0)
    for name, values in predicted.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)


def test_an_embedder_predicts_without_training(checkpoint, tmp_path):
    model = bk.embedder(checkpoint, l2=True)
    vectors = model.predict(TEXTS, verbose=0)["embedding"]
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(24), abs=1e-5)
    model.save(tmp_path / "m.keras")
    again = bk.load(tmp_path / "m.keras").predict(TEXTS, verbose=0)["embedding"]
    np.testing.assert_array_equal(again, vectors)


# -----------------------------------------------------------------------------------------------------------
# Forms of data

IDS = [NAMES.index(label) for label in LABELS]
FORMS = {
    "list": (TEXTS, LABELS),
    "ids": (TEXTS, IDS),
    "NumPy": (np.array(TEXTS), np.array(LABELS)),
    "bytes": (np.array([text.encode() for text in TEXTS], object), np.array(IDS)),
    "pandas column": (pd.Series(TEXTS, index=range(100, 124)), pd.Series(LABELS)),
    "data frame": (pd.DataFrame({"id": range(24), "text": TEXTS}), pd.Series(IDS)),
    "dict": ({"text": TEXTS}, LABELS),
    "tensor": (tf.constant(TEXTS), tf.constant(IDS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_data_give_the_same_batches(form, untrained):
    def batches(x, y):
        made = text_batches(untrained.problem, untrained.preprocess, x, y, batch_size=10)
        return [*made.as_numpy_iterator()]

    tf.nest.map_structure(np.testing.assert_array_equal, batches(*FORMS[form]), batches(TEXTS, LABELS))


@pytest.mark.long
def test_arrays_of_features_are_trained_and_measured_as_a_data_set_of_them(model):
    """A tokenizer's output, as people keep it."""
    x = {name: one.numpy() for name, one in model.preprocess(tf.constant(TEXTS)).items()}
    data = tf.data.Dataset.from_tensor_slices((x, IDS)).batch(5)
    assert model.evaluate(x, IDS, verbose=0) == pytest.approx(model.evaluate(data, verbose=0), abs=1e-6)
    order = [
        batch[1].numpy().tolist() for seed in (None, 1) for batch in feature_batches(x, range(24), seed=seed)
    ]
    assert order[0] == [*range(24)] != order[1] and sorted(order[1]) == order[0]
    model.compile(learning_rate=1e-3)
    weighed = {"sample_weight": np.ones(24), "validation_data": (x, IDS)}
    history = model.fit(x, np.array(IDS), batch_size=8, epochs=2, verbose=0, **weighed).history
    assert history["loss"][1] < history["loss"][0] and "val_loss" in history
    wrong = {"without labels": {}, "no numbers": {"y": LABELS}, "unequal .* 24, labels 3": {"y": IDS[:3]}}
    for words, given in (wrong | {"class_weight applies": {"y": IDS, "class_weight": "balanced"}}).items():
        with pytest.raises(BertKerasError, match=words):
            model.fit(x, **given)


@pytest.mark.long
def test_a_data_set_of_strings(untrained):
    measured = untrained.evaluate(TEXTS, LABELS, verbose=0)
    expected = untrained.predict(TEXTS, verbose=0)["probabilities"]
    of = tf.data.Dataset.from_tensor_slices
    for data in (
        of((TEXTS, LABELS)),
        of((TEXTS, IDS)).batch(5),
        of(({"text": TEXTS}, IDS, np.ones(24))).batch(5),
    ):
        batches = text_batches(untrained.problem, untrained.preprocess, data).as_numpy_iterator()
        assert sum(len(weights) for *_, weights in batches) == 24
        assert untrained.evaluate(data, verbose=0) == pytest.approx(measured, abs=1e-6)
        found = untrained.predict(data, verbose=0)["probabilities"]
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=str(data.element_spec))


def test_predictions_keep_the_order_of_texts(untrained):
    together = untrained.predict(TEXTS, batch_size=4, verbose=0)
    alone = [untrained.predict([text], verbose=0)["probabilities"][0] for text in TEXTS[:5]]
    np.testing.assert_allclose(together["probabilities"][:5], alone, atol=1e-6)
    assert together["label"].tolist() == [NAMES[i] for i in together["probabilities"].argmax(axis=1)]


def test_weights_of_examples_and_classes(untrained):
    options, given = {"batch_size": 24, "class_weight": {"good": 3.0, 0: 0.5}}, np.arange(24.0)
    batches = text_batches(untrained.problem, untrained.preprocess, TEXTS, IDS, given, **options)
    ((_, labels, weights),) = batches
    order = np.argsort([len(text) for text in TEXTS], kind="stable")
    np.testing.assert_array_equal(labels, np.array(IDS)[order])
    np.testing.assert_allclose(weights, (given * np.where(np.array(IDS), 3.0, 0.5))[order])


def test_numbers_name_labels_of_digits():
    """In `y` and in class weights: class 0 is "1"."""
    assert class_ids([3, "1"], ["1", "2", "3"]).tolist() == [2, 0]
    assert class_ids([1, 0], ["1", "0"]).tolist() == [0, 1]
    with pytest.raises(BertKerasError, match="label -1, of type int, in row 0"):
        class_ids([-1], NAMES)
    problem = TextClassification("123")
    for key in (1, "1", b"1", np.int64(1)):
        np.testing.assert_array_equal(make_class_weights(problem, {key: 3.0}), [3, 1, 1])
    with pytest.raises(BertKerasError, match="class_weight names 0; the labels are 1, 2, 3"):
        make_class_weights(problem, {0: 3.0})


def test_pairs_in_rows_are_those_in_columns():
    pairs = [*zip(TEXTS, TEXTS[::-1], strict=True)]
    for x in (pairs, [*map(list, pairs)], np.array(pairs), [*map(np.array, pairs)], (TEXTS, TEXTS[::-1])):
        found = read_columns(x, "ab")
        assert [b"".join(found[name]).decode() for name in "ab"] == ["".join(TEXTS), "".join(TEXTS[::-1])]


def test_evaluate_lists_the_loss_first(untrained):
    loss, accuracy = untrained.evaluate(TEXTS, LABELS, verbose=0)
    named = untrained.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    assert named == {"loss": loss, "accuracy": accuracy}


@pytest.mark.long
def test_predictions_of_a_labelled_data_set_of_pairs_and_of_some_batches(checkpoint):
    model = CASES["pair"][0](checkpoint)
    columns = {"premise": TEXTS, "hypothesis": TEXTS[::-1]}
    data = tf.data.Dataset.from_tensor_slices((columns, IDS)).batch(8)
    expected = model.predict(columns, verbose=0)["probabilities"]
    for steps, count in ((None, 24), (2, 16)):
        found = model.predict(data, steps=steps, verbose=0)["probabilities"]
        np.testing.assert_allclose(found, expected[:count], atol=1e-6)


def test_predictions_follow_lora_and_int8(model):
    before = model.predict(TEXTS, verbose=0)["probabilities"]
    model.encoder.enable_lora(2)
    for variable in model.encoder.trainable_variables:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    with_lora = model.predict(TEXTS, verbose=0)["probabilities"]
    assert np.abs(with_lora - before).max() > 1e-3
    expected = keras.ops.softmax(model.network(model.preprocess(tf.constant(TEXTS))))
    np.testing.assert_allclose(with_lora, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        (lambda model: model.encoder, ["bert_encoder"]),
        (lambda model: model.encoder.blocks[0], ["bert_encoder/block_0"]),
        (lambda model: model.encoder.embeddings, ["bert_encoder/embeddings"]),
        (lambda model: model.network, ["bert_encoder", "classifier"]),
    ],
    ids=["encoder", "block", "embeddings", "network"],
)
def test_frozen_layers_stay_frozen_in_files_and_run_folders(freeze, frozen, model, tmp_path):
    freeze(model).trainable = False
    expected = [variable.path for variable in model.trainable_variables]
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "task.json").read_text())["frozen"] == frozen
    for name in ("m.keras", "run"):
        again = bk.load(tmp_path / name)
        assert [variable.path for variable in again.trainable_variables] == expected, name


@pytest.mark.long
def test_a_model_with_lora_is_saved_after_training(model, tmp_path):
    model.encoder.enable_lora(2)
    model.compile(learning_rate=1e-2)
    model.fit(TEXTS, LABELS, verbose=0)
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "run")
    wanted = model.predict(TEXTS, verbose=0)["probabilities"]
    for name in ("m.keras", "run"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
            again = bk.load(tmp_path / name)
        assert again.encoder.trainable_variables, name
        assert len(again.trainable_variables) == len(bk.load(tmp_path / "run").trainable_variables)
        np.testing.assert_allclose(again.predict(TEXTS, verbose=0)["probabilities"], wanted, atol=1e-5)


def test_lora_learns_after_weights_are_read(model, tmp_path):
    model.encoder.enable_lora(2)
    model.save_weights(tmp_path / "m.weights.h5")
    model.load_weights(tmp_path / "m.weights.h5")
    factors = {one.path: one.numpy() for one in model.encoder.trainable_variables}
    drawn = [np.abs(value).max() > 0 for path, value in factors.items() if path.endswith("lora_kernel_a")]
    assert drawn and all(drawn)
    assert not any(value.any() for path, value in factors.items() if path.endswith("lora_kernel_b"))


def test_lora_begins_anew_as_it_was_asked_to():
    dense = Dense(4, config=TINY, name="product")
    dense.build((None, 4))
    dense.enable_lora(2, a_initializer=keras.initializers.Constant(0.5))
    store = {}
    dense.save_own_variables(store)
    dense.load_own_variables(store)
    np.testing.assert_array_equal(dense.lora_kernel_a, np.full((4, 2), 0.5))


def test_a_run_folder_without_frozen_layers_does_not_name_any(untrained, checkpoint, tmp_path):
    for name, model in {"pooled": untrained, "states": bk.tagger(checkpoint, ["PER"])}.items():
        model.save(tmp_path / name)
        assert "frozen" not in json.loads((tmp_path / name / "task.json").read_text())


def test_a_run_that_freezes_a_layer_it_lacks_is_refused(untrained, tmp_path):
    untrained.save(tmp_path / "run")
    file = tmp_path / "run" / "task.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"frozen": ["bert_encoder/block_9"]}))
    with pytest.raises(BertKerasError, match="no layer 'bert_encoder/block_9'"):
        bk.load(tmp_path / "run")


def test_a_file_is_replaced_whole_or_not_at_all(untrained, tmp_path):
    path = tmp_path / "m.keras"
    untrained.save(path)
    before = path.read_bytes()
    with pytest.raises(OSError), full_disk(len(before) // 2):
        untrained.save(path)
    with pytest.raises(BertKerasError, match="m.keras.*overwrite"):
        untrained.save(path, overwrite=False)
    assert contents(tmp_path) == {"m.keras": before}
    untrained.save(path, overwrite=True)
    assert {*contents(tmp_path)} == {"m.keras"}


@pytest.mark.parametrize("overwrite", [None, True, False])
def test_a_run_folder_is_never_replaced(overwrite, untrained, tmp_path):
    untrained.save(tmp_path / "run", overwrite=overwrite)
    before = contents(tmp_path / "run")
    with pytest.raises(BertKerasError, match="run is there already.*give another"):
        untrained.save(tmp_path / "run", overwrite=overwrite)
    assert contents(tmp_path / "run") == before


def test_validation_split_takes_the_last_texts(model):
    history = model.fit(TEXTS, LABELS, validation_split=0.25, epochs=1, verbose=0).history
    expected = model.evaluate(TEXTS[18:], LABELS[18:], verbose=0, return_dict=True)
    assert history["val_loss"][0] == pytest.approx(expected["loss"], abs=1e-6)


# -----------------------------------------------------------------------------------------------------------
# Compiling


@pytest.mark.long
def test_the_schedule_counts_the_steps_of_each_fit(model):
    model.compile(learning_rate=1e-4)
    for epochs in (2, 3):
        model.fit(TEXTS, LABELS, batch_size=7, epochs=epochs, verbose=0)
        steps = 4 * epochs
        assert int(model.optimizer.iterations) == steps
        assert float(model.optimizer.learning_rate) == pytest.approx(0.0, abs=1e-9)
        optimizer = model.get_compile_config()["keras"]["optimizer"]["config"]
        assert optimizer["learning_rate"]["config"]["total_steps"] == steps


@pytest.mark.long
def test_the_schedule_ends_with_the_steps_that_run(model):
    model.compile(learning_rate=1e-4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        # 2, 1 and 2 of 3 batches.
        model.fit(TEXTS, LABELS, batch_size=8, steps_per_epoch=2, epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 5
    assert float(model.optimizer.learning_rate) == pytest.approx(0.0, abs=1e-9)


def test_a_fit_after_a_restored_one_begins_at_its_first_epoch(model):
    model._initial_epoch = 2  # as BackupAndRestore leaves it
    history = model.fit(TEXTS[:8], LABELS[:8], epochs=1, verbose=0)
    assert history.epoch == [0]


def test_metrics_that_read_logits_as_probabilities_are_warned_of(model):
    """A model of one's own on a head; a TextModel gives a metric what it reads: tests/test_label_measures.py."""
    trained = TrainingModel(model.network.inputs, model.network.outputs[0])
    wrong = [keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.SparseCategoricalCrossentropy()]
    for metric in ("binary_accuracy", *wrong):
        with pytest.warns(UserWarning, match="metric .* takes probabilities.*SparseCategoricalAccuracy"):
            trained.compile(metrics=[metric])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = [keras.metrics.AUC(from_logits=True), keras.metrics.BinaryAccuracy(threshold=0)]
        trained.compile(metrics=metrics)
        model.compile(metrics=wrong)


@pytest.mark.long
def test_fit_warns_once_of_texts_that_are_cut(checkpoint):
    model = bk.classifier(checkpoint, NAMES, seq_length=8)
    long = [*TEXTS[:2], "good film " * 20, "bad " * 7]
    fact = r"2 of the first 4 examples are longer than 8 tokens \(up to 42\).*seq_length.*doc_stride"
    with pytest.warns(UserWarning, match=fact) as caught:
        model.fit(["good", "bad", *long[2:]], ["good", "bad"] * 2, epochs=2, verbose=0)
    assert len(caught) == 1 and caught[0].filename == __file__
    windows = bk.classifier(checkpoint, NAMES, seq_length=8, doc_stride=4)
    windows.fit(long, ["good", "bad"] * 2, verbose=0)  # warnings are errors here
    model.fit(["good", "bad"], ["good", "bad"], verbose=0)


def test_fit_warns_of_endings_that_are_cut(checkpoint):
    x = {"context": ["the film is"] * 2, "endings": [["good", "very " * 5], ["bad", "dull"]]}
    preprocess = bk.chooser(checkpoint, 2, seq_length=10).preprocess
    raw = {name: tf.constant(values) for name, values in x.items()}
    line = cut_texts(MultipleChoice(num_choices=2), preprocess, raw)
    assert line.startswith("1 of the first 2 examples are longer than 10 tokens (up to 11)")


@pytest.mark.long
@pytest.mark.slow
def test_the_threshold_of_no_answer_is_chosen_on_labelled_texts(checkpoint, untrained, tmp_path):
    model = bk.question_answerer(checkpoint, unanswerable=True, **SPAN)
    x = {"question": ["the film"] * 4, "context": ["the plot is good", "bad", "the actor", "a dull film"]}
    y = [{"text": "good", "answer_start": 12}, None, None, None]
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    for tau, answered in ((-1e9, 4), (1e9, 0)):  # also after a prediction with another threshold
        model.problem.tau = tau
        assert sum(map(bool, model.predict(x, verbose=0)["answer"])) == answered
    measures = model.calibrate(x, y)
    assert measures["f1"] >= max(75.0, before["f1"]) and model.problem.tau < 1e9
    assert model.evaluate(x, y, verbose=0, return_dict=True)["f1"] == measures["f1"]
    model.save(tmp_path / "m.keras")
    assert bk.load(tmp_path / "m.keras").problem.tau == model.problem.tau
    with pytest.raises(BertKerasError, match="no threshold"):
        untrained.calibrate(TEXTS, LABELS)


def test_a_batch_without_rows_is_refused(untrained):
    for size in (0, -1, 2.5):
        for call in (untrained.fit, untrained.evaluate):
            with pytest.raises(BertKerasError, match=f"batch_size is {size}"):
                call(TEXTS, LABELS, batch_size=size, verbose=0)
        with pytest.raises(BertKerasError, match=f"batch_size is {size}"):
            untrained.predict(TEXTS, batch_size=size, verbose=0)


def test_models_are_made_quietly_unless_a_head_is_lost(checkpoint, tmp_path, capfd):
    bk.classifier(checkpoint, NAMES)
    bk.load_encoder(checkpoint)
    assert capfd.readouterr().out == ""
    with pytest.warns(UserWarning, match="no masked_lm head.*at random") as caught:
        bk.masked_lm(checkpoint).save(tmp_path / "m.keras")
    assert [one.filename for one in caught if "head" in str(one.message)] == [__file__]
    bk.load(tmp_path / "m.keras")
    lines = []
    bk.load_encoder(checkpoint, log=lines.append)
    assert lines[0].startswith("loaded: ")


@pytest.mark.long
def test_a_users_own_optimizer_loss_and_metrics(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    endless = tf.data.Dataset.from_tensor_slices((TEXTS, IDS)).repeat()
    model.fit(endless, steps_per_epoch=3, epochs=2, verbose=0)
    assert type(model.optimizer) is keras.optimizers.Adam and int(model.optimizer.iterations) == 6


def test_an_unknown_number_of_steps_is_refused(model):
    unknown = tf.data.Dataset.from_tensor_slices((TEXTS, IDS)).filter(lambda text, label: True)
    with pytest.raises(BertKerasError, match="steps_per_epoch"):
        model.fit(unknown, verbose=0)
    model.fit(unknown, steps_per_epoch=1, verbose=0)


def test_the_command_trains_a_text_model(sst2, checkpoint):
    task, hparams = open_task("sst2", sst2.data), Hparams(seq_length=16)
    plan = plan_finetuning(task, checkpoint=sst2.checkpoint, hparams=hparams)
    assert type(plan.model) is bk.TextModel
    assert len(plan.model.predict(TEXTS, verbose=0)["label"]) == 24


# -----------------------------------------------------------------------------------------------------------
# Bad input


@pytest.mark.filterwarnings("ignore:the checkpoint has no masked_lm head")
@pytest.mark.parametrize(
    ("case", "x", "y", "facts"),
    [
        ("class", "good film", ["good"], ["one string", "list"]),
        ("class", ["good", None], LABELS[:2], ["row 1", "None"]),
        ("class", [], [], ["at least one"]),
        ("class", TEXTS, LABELS[:3], ["24", "3"]),
        ("class", TEXTS, ["great", *LABELS[1:]], ["'great'", "row 0", "'bad', 'good'"]),
        ("class", TEXTS, [2] * 24, ["2", "row 0", "0 to 1"]),
        ("class", TEXTS, [True, False] * 12, ["True", "row 0"]),
        *(("class", TEXTS, y, ["row 0", "one-hot", "np.argmax(y, axis=1)"])
          for y in (np.eye(2, dtype=int)[[1] * 24], [[0, 1]] * 24, [*np.eye(2, dtype=int)[[1] * 24]], [(False, True)] * 24)),
        ("class", tf.data.Dataset.from_tensors((["a"], [[0.0, 1.0]])), None, ["batch 0", "one-hot"]),
        ("class", TEXTS, [[0.4, 0.6]] * 24, ["[0.4, 0.6]", "row 0", "0 to 1"]),
        ("class", TEXTS, types.SimpleNamespace(columns=["label"]), ["data frame", "label", "to_numpy"]),
        ("class", tf.data.Dataset.from_tensors((["a"], ["bad"], [-1.0])), None, ["batch 0", "row 0", "-1", "weight"]),
        ("class", tf.data.Dataset.from_tensors((["a"], ["bad"], [np.nan])), None, ["batch 0", "row 0", "nan", "weight"]),
        ("class", TEXTS, None, ["without labels"]),
        ("class", {"texts": TEXTS}, LABELS, ["text", "texts"]),
        ("class", (text for text in TEXTS), LABELS, ["generator"]),
        ("class", ["\ud800"], ["bad"], ["row 0", "surrogate"]),
        ("pair", TEXTS, LABELS, ["premise", "hypothesis"]),
        ("pair", (TEXTS, TEXTS[:2]), LABELS, ["unequal", "24", "2"]),
        ("pair", [TEXTS[:2], TEXTS[2:4]], LABELS[:2], ["2 lists of 2", "rows or columns"]),
        ("score", TEXTS, [float("nan")] * 24, ["row 0", "nan"]),
        ("multi", ["good"], [["great"]], ["row 0", "'great'"]),
        ("multi", ["good"], [[b"\xff"]], ["row 0", "'\ufffd'"]),
        ("endings", {"context": ["a"], "endings": [["b", "c", "d"]]}, [0], ["3", "2"]),
        ("tags", [["good", "film"]], [["O"]], ["row 0", "2 words", "1 tags"]),
        ("tags", [["good film"]], [["O"]], ["row 0", "'good film'"]),
        ("tags", ["good film"], [["O", "O"]], ["list of words"]),
        ("tags", [["good"]], [["B-LOC"]], ["row 0", "B-LOC", "B-PER"]),
        ("answers", {"question": ["the film"], "context": ["is dull"]}, [{"text": "dull", "answer_start": 0}],
         ["row 0", "'dull'", "character 0"]),
        ("masks", ["a [MASK]"], None, ["the token of each text's one [MASK]", "bert-keras pretrain"]),
        ("masks", ["no mask"], ["good"], ["row 0", "0 [MASK]"]),
    ],
)  # fmt: skip
def test_data_that_cannot_work_is_refused(case, x, y, facts, checkpoint, untrained):
    model = untrained if case == "class" else CASES[case][0](checkpoint)
    with pytest.raises(BertKerasError) as error:
        model.fit(x, y, verbose=0)
    assert all(fact in str(error.value) for fact in facts), error.value


def test_objects_describe_themselves_in_words(untrained):
    """The name of a class and an address say nothing in a notebook."""
    tokens = "WordPiece(373 tokens, lower_case=True)"
    described = {
        untrained.preprocess.tokenizer: tokens,
        untrained.preprocess: f"Preprocessor({tokens}, seq_length=48, pad_to_longest=True",
        untrained.problem: "TextClassification(name='custom', ",
        untrained: "<TextModel TextClassification(name='custom', ",
    }
    assert {one: repr(one)[: len(words)] for one, words in described.items()} == described
    assert "labels=['bad', 'good']" in repr(untrained) and ", 1 layers of 48, up to 48 tokens>" in repr(
        untrained
    )


def test_a_clone_names_its_missing_vocabulary(untrained):
    clone = keras.models.clone_model(untrained)
    assert "no vocabulary" in repr(clone)
    calls = (lambda: clone.predict(TEXTS), lambda: clone.fit(TEXTS, LABELS), lambda: clone(TEXTS))
    for call in (*calls, lambda: clone.evaluate(TEXTS, LABELS), clone.get_config):
        with pytest.raises(BertKerasError, match="no vocabulary: clone_model.*set preprocess"):
            call()
    clone.preprocess = untrained.preprocess
    clone.set_weights(untrained.get_weights())
    found, wanted = (one.predict(TEXTS, verbose=0)["probabilities"] for one in (clone, untrained))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.long
def test_many_tokenizers_and_trainings_are_no_retracing(checkpoint, caplog, monkeypatch):
    """TensorFlow counts by the code of a function, which all tokenizers and all trainings share, and warns from the fifth on."""
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    for _ in range(6):
        tokenizer = bk.load_tokenizer(checkpoint)
        for tokenize in (tokenizer.tokenize, tokenizer.tokenize_with_offsets):
            tokenize(tf.constant(["good"]))
        # A step of any network traces the same code.
        model = TrainingModel(inputs := keras.Input((1,)), keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
        model.fit(np.ones((1, 1)), np.ones(1), verbose=0)
        model.train_on_batch(np.ones((1, 1)), np.ones(1))
    assert "retracing" not in caplog.text


def test_labels_from_an_iterator_are_all_read(checkpoint):
    assert bk.classifier(checkpoint, (name for name in NAMES)).problem.label_names == tuple(NAMES)


SETTINGS = [
    (lambda model, _: model.compile(learning_rat=1), "learning_rat.*learning_rate"),
    (lambda model, _: model.compile("adam", learning_rate=1e-3), "learning_rate"),
    (lambda model, _: model.compile(learning_rate=-1), "learning_rate is -1"),
    (lambda model, _: model.fit(TEXTS, LABELS, class_weight={"great": 2}), "class_weight.*'great'"),
    (lambda model, _: model.fit(TEXTS, LABELS, class_weight={"good": float("nan")}), "class_weight.*nan"),
    (lambda model, _: model.fit(TEXTS, LABELS, sample_weight=[1, -1] * 12), "sample_weight, row 1.*-1"),
    (lambda model, _: model.fit(TEXTS, LABELS, callbacks=[keras.callbacks.ModelCheckpoint("best.h5")]), r"best\.h5.*\.keras"),
    (lambda model, _: model.save("model.h5"), r"\.keras"),
    (lambda model, _: model.save("taken"), "not empty"),
    (lambda model, _: model.save("new/model.keras"), "no folder .*new for model.keras"),
    (lambda model, _: model.save("model.keras", include_optimizer=False), "no argument 'include_optimizer'.*compile"),
    (lambda _, ckpt: bk.classifier(ckpt, NAMES, seq_length=512), "seq_length 48"),
    (lambda _, ckpt: bk.question_answerer(ckpt, seq_length=40, max_query_length=37), "no room .* 37 tokens .* at least 41"),
    (lambda _, ckpt: bk.classifier(ckpt, 2), "labels is 2; give a list"),
    *((lambda _, ckpt, labels=labels: bk.classifier(ckpt, labels), "labels")
      for labels in (["one"], "ab", [0.5, 1.5], [], {"bad", "good"}, {"bad": 0, "good": 1})),
    # The last two cannot be arguments of an exported function.
    *((lambda _, ckpt, name=name: bk.classifier(ckpt, NAMES, text=(name, "to")), f"text is .*'{name}'.*no keywords")
      for name in ("label", "self", "from")),
    (lambda *_: bk.load("nowhere"), "nowhere"),
    # Names of other libraries, before anything is read.
    (lambda *_: bk.classifier("nowhere", num_labels=2), r'no argument num_labels; give labels=\["bad", "good"\]'),
    (lambda *_: bk.question_answerer("nowhere", max_length=64), "no argument max_length; give seq_length="),
    (lambda model, _: model.preprocess.tokenizer(TEXTS, return_tensors="tf"), "a WordPiece is not called; .*Preprocessor"),
]  # fmt: skip


def test_attributes_of_other_libraries_are_answered_with_ours(untrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {
        "bert_keras": bk,
        "model": untrained,
        "tokenizer": untrained.preprocess.tokenizer,
        "ids": [5],
        "text": "a",
    }
    for ours in sorted({*ATTRIBUTES.values()}, reverse=True):  # saved before it is loaded
        eval(ours, names | {"texts": TEXTS})
    for one in (untrained, names["tokenizer"]):
        with pytest.raises(
            AttributeError, match="has no batch_encode_plus; bert_keras.Preprocessor.*migrate.md"
        ):
            one.batch_encode_plus(TEXTS, return_tensors="tf")
        assert not hasattr(one, "other")


@pytest.mark.parametrize(("call", "message"), SETTINGS)
def test_settings_that_cannot_work_are_refused(call, message, untrained, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("keep")
    with pytest.raises(BertKerasError, match=message):
        call(untrained, checkpoint)
    assert contents(tmp_path) == {"taken/notes.txt": b"keep"}


def test_a_file_is_loaded_without_its_optimizer(model, tmp_path):
    model.compile("adam")
    model.save(tmp_path / "m.keras")
    assert bk.load(tmp_path / "m.keras").compiled
    again = bk.load(tmp_path / "m.keras", compile=False)
    assert not again.compiled
    found, wanted = (one.predict(TEXTS, verbose=0)["probabilities"] for one in (again, model))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


# -----------------------------------------------------------------------------------------------------------
# Beside the commands, and other packages


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
@pytest.mark.slow
def test_the_commands_read_a_keras_file(untrained, checkpoint, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    untrained.save("m.keras")
    with open("texts.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(TEXTS, LABELS, strict=True)])
    code, out, err = run_command(capfd, "predict", "--run", "m.keras", "--input", "texts.csv")
    assert code == 0, err
    wanted = untrained.predict(TEXTS)["probabilities"]
    got = [json.loads(line)["probabilities"] for line in out.splitlines()]
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    code, out, err = run_command(capfd, "evaluate", "--run", "m.keras", "--data", "texts.csv", "--json")
    right = np.mean(np.array(untrained.predict(TEXTS)["label"]) == LABELS)
    assert code == 0 and json.loads(out)["validation"]["accuracy"] == pytest.approx(right), err
    code, _, err = run_command(capfd, "export", "--run", "m.keras", "--output", "served")
    assert code == 0 and Path("served/1/saved_model.pb").is_file(), err
    bk.embedder(checkpoint).save("vectors.keras")
    code, out, err = run_command(capfd, "predict", "--run", "vectors.keras", "--input", "texts.csv")
    assert code == 0 and len(json.loads(out.splitlines()[0])["embedding"]) == SIZES["hidden_size"], err


def test_keras_files_that_are_no_run_are_one_line(tmp_path, capfd):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    (tmp_path / "cut.keras").write_bytes(b"PK no zip")
    facts = {"other": "holds a Sequential", "cut": "cut short", "othr": r"did you mean .*/other.keras?"}
    for name, fact in facts.items():
        code, _, err = run_command(capfd, "predict", "--run", tmp_path / f"{name}.keras")
        assert code == 1 and re.search(fact, err) and len(err.splitlines()) == 1, err


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_a_run_of_the_command_is_loaded_and_exported(sst2, tmp_path):
    model = bk.load(sst2.run)
    expected = model.predict(TEXTS, verbose=0)
    served = bk.load(model.export(tmp_path / "served"))
    answers = served.signatures["serving_default"](sentence=tf.constant(TEXTS))
    assert [label.decode() for label in answers["label"].numpy()] == expected["label"].tolist()
    np.testing.assert_allclose(answers["probabilities"], expected["probabilities"], atol=1e-5)


@pytest.mark.long
def test_a_keras_file_loads_in_a_fresh_process(model, tmp_path):
    model.save(tmp_path / "m.keras")
    expected = model.predict(TEXTS[:2], verbose=0)["probabilities"]
    script = "import sys, keras, bert_keras; m = keras.models.load_model('m.keras'); "
    script += "print(m.predict(sys.argv[1:], verbose=0)['probabilities'].tolist())"
    (tmp_path / "script.py").write_text(script)
    done = forked.run(tmp_path / "script.py", *TEXTS[:2], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(eval(done.stdout.splitlines()[-1]), expected, atol=1e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of threading, in keras_tuner
@pytest.mark.filterwarnings(
    "ignore:Skipping variable loading for optimizer"
)  # KerasTuner's new models have none
@pytest.mark.filterwarnings("ignore:the saved state of adamw is not read")
@pytest.mark.slow
def test_keras_tuner_searches(checkpoint, tmp_path):
    keras_tuner = pytest.importorskip("keras_tuner")

    def build(hp):
        model = bk.classifier(checkpoint, NAMES)
        model.compile(learning_rate=hp.Choice("learning_rate", [1e-4, 1e-3]))
        return model

    tuner = keras_tuner.GridSearch(build, objective="val_accuracy", directory=tmp_path, project_name="search")
    tuner.search(TEXTS, LABELS, epochs=1, validation_data=(TEXTS, LABELS), verbose=0)
    best = tuner.get_best_models()[0]
    score = tuner.oracle.get_best_trials()[0].score
    assert best.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)["accuracy"] == pytest.approx(score)


@pytest.mark.long
def test_mixed_precision_and_callbacks(checkpoint, tmp_path):
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = bk.classifier(checkpoint, NAMES)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model.encoder.compute_dtype == "bfloat16"
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss")
    model.fit(TEXTS, LABELS, epochs=5, callbacks=[stop, keep], verbose=0)
    assert int(model.optimizer.iterations) == 2  # stopped after the second epoch of one step
    expected = model.predict(TEXTS, verbose=0)["probabilities"]
    again = bk.load(tmp_path / "best.keras").predict(TEXTS, verbose=0)["probabilities"]
    np.testing.assert_allclose(again, expected, atol=1e-6)


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_the_blocks_of_the_document_run(checkpoint, tmp_path, monkeypatch, capfd):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "text_models.md").read_text(), re.DOTALL)
    (tmp_path / "minilm").symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 6 and "tf.Tensor" in capfd.readouterr().out
