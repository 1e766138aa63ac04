"""The feature-based approach on every task: vectors computed once, a BiLSTM trained on them, one model that serves."""

import gc
import json
import os
import re
import shutil

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf
from runs import ROOT, run_command, texts, write_checkpoint

import bert_keras as bk
import bert_keras.tasks.frozen.row_vectors
from bert_keras import checkpoints, encoder_inputs
from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS, INPUT_MASK, POOLED_OUTPUT
from bert_keras.model.choices import places_of
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.feature_bilstm import FeatureBiLSTM, FeatureEncoder, FrozenNetwork, bilstm_of
from bert_keras.savedmodels.export import export
from bert_keras.savedmodels.verify import ask
from bert_keras.tasks.batches import dataset, predict, predictor
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.frozen.cache import open_cache
from bert_keras.tasks.frozen.extractor import Extractor, Rows
from bert_keras.tasks.frozen.row_vectors import FOLDER, RowVectors, distinct_rows
from bert_keras.tasks.hparams import Hparams, hparams_of
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.strings.text_data import raw_columns
from bert_keras.tasks.study.protocol import run_protocol
from bert_keras.tasks.training.saver import Saver

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
TEXTS = texts(24, seed=0)
LABELS = ["good" if "good" in text or "warm" in text else "bad" for text in TEXTS]
NAMES = ["bad", "good"]
FEATURES = {"feature_layers": "0,2", "lstm_layers": 1, "lstm_units": 8, "lstm_dropout": 0.1}
LONG = ["the plot is good and the film very dull " * 4, "warm actor", "dull , bad film !"] * 4

# By task: the function that makes a model of a checkpoint, its arguments and settings, texts, labels.
CASES = {
    "class": (bk.classifier, [NAMES], {}, TEXTS, LABELS),
    "pair": (bk.classifier, [NAMES], {"text": ("a", "b"), "pooling": "concat"}, (TEXTS, TEXTS[::-1]), LABELS),
    "several": (bk.classifier, [NAMES], {"multi": True}, TEXTS, [[], ["good"], ["bad", "good"]] * 8),
    "score": (bk.regressor, [], {}, TEXTS, np.linspace(-1, 1, 24)),
    "windows": (bk.classifier, [NAMES], {"doc_stride": 8}, LONG, ["bad", "good", "bad"] * 4),
    "answers": (
        bk.question_answerer,
        [],
        {"unanswerable": True, "doc_stride": 16, "max_query_length": 8},
        {"question": ["the film"] * 8, "context": [LONG[0]] * 8},
        [{"text": "very dull", "answer_start": 30}, None] * 4,
    ),
    "tags": (
        bk.tagger,
        [["PER"]],
        {"doc_stride": 8},
        [["the", "actor", "is", "good"], ["bad", "plot"], ["warm", "actor"] * 8] * 4,
        [["O", "B-PER", "O", "O"], ["O", "O"], ["O", "B-PER"] * 8] * 4,
    ),
    "paths": (
        bk.tagger,
        [["PER"]],
        {"doc_stride": 8, "crf": True},
        [["the", "actor", "is", "good"], ["bad", "plot"], ["warm", "actor"] * 8] * 4,
        [["O", "B-PER", "O", "O"], ["O", "O"], ["O", "B-PER"] * 8] * 4,
    ),
    "choice": (
        bk.chooser,
        [2],
        {},
        {"context": TEXTS, "endings": [[text, "the film"] for text in TEXTS[::-1]]},
        [0, 1] * 12,
    ),
}


def model_of(case: str, checkpoint, **how):
    """A string model of a case, its texts and labels."""
    make, arguments, settings, x, y = CASES[case]
    return make(checkpoint, *arguments, **settings, **how), x, y


MIXED = {"feature_layers": "weighted_sum_all"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """With dropout, which a frozen encoder must not apply."""
    sizes = {"num_layers": 2, "hidden_size": 16, "intermediate_size": 32}
    dropout = {"hidden_dropout": 0.3, "attention_dropout": 0.3}
    return write_checkpoint(tmp_path_factory.mktemp("features") / "checkpoint", **sizes, **dropout)


def task_of(case: str, checkpoint):
    """The task of a case, with the same examples in both splits."""
    model, x, y = model_of(case, checkpoint, seq_length=24)
    task, columns = model.problem, raw_columns(model.problem, model.preprocess, x, y)
    task.examples = lambda split: tf.data.Dataset.from_tensor_slices({**columns})
    return task


def trained(case: str, checkpoint, output, **changes):
    hparams = {"epochs": 2, "batch_size": 4, "seq_length": 24, **FEATURES, "learning_rate": 1e-2}
    if case != "class":  # a BiLSTM takes seconds to trace, and it is the same in every task
        hparams["lstm_layers"] = 0
    given = {name: changes.pop(name) for name in [*changes] if name in Hparams.__dataclass_fields__}
    how = {"hparams": Hparams(**hparams | given), "verbose": 0, "log": lambda line: None} | changes
    task = how.pop("task", None) or task_of(case, checkpoint)
    return finetune(task, checkpoint=checkpoint, output=output, **how)


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
    places = places_of(layers, num_layers=run.encoder.config.num_layers)
    vectors = RowVectors(Extractor(source=run.encoder, units=Rows(), places=places, dtype="float32"), rows)
    vectors.compute(folder, progress=lambda done: None)
    above = FrozenNetwork(run.model)
    answers = predictor(
        run.task, run.preprocess, lambda inputs, training: above(vectors.attach(inputs), training)
    )
    return answers(examples, batch_size=3)[0]


@pytest.fixture(scope="module")
def class_run(checkpoint, tmp_path_factory):
    """A run with a BiLSTM on a weighted sum, and its results."""
    folder = tmp_path_factory.mktemp("class") / "run"
    return folder, trained("class", checkpoint, folder, **MIXED)


@pytest.fixture
def computed(monkeypatch):
    """The numbers of rows that go through an encoder to get vectors, one for each call."""
    found, extract = [], Extractor.__call__

    def count(self, raw):
        found.append(len(raw))
        return extract(self, raw)

    monkeypatch.setattr(Extractor, "__call__", count)
    return found


@pytest.fixture
def late(monkeypatch):
    """The calls of an encoder once the vectors are computed; each gives None."""
    found, compute = [], RowVectors.compute

    def watch(self, folder, *, progress):
        report = compute(self, folder, progress=progress)
        monkeypatch.setattr(bk.BertEncoder, "call", lambda *args, **kwargs: found.append(args))
        return report

    monkeypatch.setattr(RowVectors, "compute", watch)
    return found


CALL = bk.BertEncoder.call
MANY = pytest.mark.slow  # the cases that run the same code


def slow_but(fast, cases):
    """The cases, of which all but one are slow."""
    return [case if case == fast else pytest.param(case, marks=MANY) for case in cases]


def assert_served_as_trained(case, checkpoint, run_folder, results, cache):
    """The encoder is unchanged bit for bit; cached vectors and the loaded run answer alike."""
    assert not (run_folder / FOLDER).exists()
    before, after = weights_of(checkpoint), weights_of(run_folder)
    assert [*before] == [*after]
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    run = load_run(run_folder)
    assert not run.encoder.trainable_variables
    examples = task_of(case, checkpoint).examples("validation")
    answers, raw = predict(run.task, run.preprocess, run.model, examples)
    assert_same_answers(answers, on_cached_vectors(run, examples, cache))
    for name, value in run.task.evaluate(answers, raw):
        assert results["measures"][f"val_{name}"] == pytest.approx(value, abs=1e-4), name


@pytest.mark.long
def test_a_class_is_learned_by_a_bilstm_on_vectors(class_run, checkpoint, tmp_path):
    folder, results = class_run
    assert_served_as_trained("class", checkpoint, folder, results, tmp_path / "vectors")
    assert sum(results["mix"]["weights"]) == pytest.approx(1, abs=1e-5)
    assert results["mix"]["weights"][0] != results["mix"]["weights"][1]  # learned


@pytest.mark.long
@pytest.mark.parametrize("case", slow_but("choice", [case for case in CASES if case != "class"]))
def test_every_task_is_learned_from_vectors(case, checkpoint, tmp_path):
    results = trained(case, checkpoint, tmp_path / "run", epochs=1)
    assert_served_as_trained(case, checkpoint, tmp_path / "run", results, tmp_path / "vectors")


class Stopped(Exception):
    """Stands for the end of the process."""


@pytest.mark.slow  # tests/test_every_task.py resumes a training on vectors
def test_a_stopped_training_is_resumed_to_the_same_bits(checkpoint, tmp_path, monkeypatch, computed, late):
    """Stopped while vectors are computed, then in the second epoch. No step calls the encoder once they are there."""
    monkeypatch.setattr(bert_keras.tasks.frozen.row_vectors, "SHARD_ROWS", 8)
    # With the same shards: TensorFlow's kernels may round a row in another way where a call has other rows.
    whole = trained("class", checkpoint, tmp_path / "whole", **MIXED)
    monkeypatch.setattr(bk.BertEncoder, "call", CALL)
    computed.clear()
    extract, step_end = Extractor.__call__, Saver.on_train_batch_end

    def interrupt(self, raw):
        if len(computed) == 1:
            computed.append(0)
            raise KeyboardInterrupt
        return extract(self, raw)

    def stop(saver, batch, logs=None):
        step_end(saver, batch, logs)
        if saver.step == 8:  # of two epochs of 6 steps
            raise Stopped

    monkeypatch.setattr(Extractor, "__call__", interrupt)
    monkeypatch.setattr(Saver, "on_train_batch_end", stop)
    how = MIXED | {"save_every": 5}
    with pytest.raises(KeyboardInterrupt, match="run the same command to resume"):
        trained("class", checkpoint, tmp_path / "run", **how)
    with pytest.raises(Stopped):
        trained("class", checkpoint, tmp_path / "run", **how)
    assert sum(computed) == len({*TEXTS})  # both splits have the same texts, and one file was there
    monkeypatch.setattr(Saver, "on_train_batch_end", step_end)
    monkeypatch.setattr(bk.BertEncoder, "call", CALL)
    lines: list[str] = []
    again = trained("class", checkpoint, tmp_path / "run", log=lines.append, **how)
    assert any("at step 5 of 12" in line for line in lines)
    assert again | {"seconds": 0} == whole | {"seconds": 0}
    assert again["files"]["top.safetensors"] == whole["files"]["top.safetensors"]
    assert sum(computed) == len({*TEXTS}) and not late


@pytest.mark.long
def test_a_complete_cache_is_trained_on_without_an_encoder(checkpoint, tmp_path, monkeypatch):
    """None is made, and no step has the weights of one in memory. The run is that of the first training, and serves."""
    hparams = Hparams(epochs=1, batch_size=4, seq_length=24, **FEATURES | {"lstm_layers": 0})
    how = {"checkpoint": checkpoint, "hparams": hparams, "feature_cache": tmp_path / "cache", "verbose": 0}
    task, step_end, in_memory = task_of("class", checkpoint), Saver.on_train_batch_end, []
    first = finetune(task, output=tmp_path / "first", **how)

    def refuse(*_, **__):
        raise AssertionError("an encoder was made")

    def watch(saver, batch, logs=None):
        gc.collect()
        found = [one for one in gc.get_objects() if isinstance(one, checkpoints.Checkpoint)]
        in_memory.append(sum(len(one.tensors) for one in found))
        step_end(saver, batch, logs)

    with monkeypatch.context() as patch:
        patch.setattr(bk.BertEncoder, "__init__", refuse)
        patch.setattr(Saver, "on_train_batch_end", watch)
        second = finetune(task, output=tmp_path / "second", **how)
    assert in_memory == [0] * 6
    assert second | {"seconds": 0} == first | {"seconds": 0}
    assert_served_as_trained("class", checkpoint, tmp_path / "second", second, tmp_path / "vectors")


@MANY
def test_kept_vectors_are_used_again_or_refused(checkpoint, tmp_path, computed):
    how = {"lstm_layers": 0, "feature_cache": tmp_path / "cache", "feature_dtype": "float16"}
    for seed in (1, 2):
        trained("class", checkpoint, tmp_path / f"run-{seed}", **how, seed=seed)
    assert sum(computed) == len({*TEXTS})
    first = next(open_cache(tmp_path / "cache").rows())["vectors"]
    assert first.dtype == np.float16 and first.shape[1:] == (2, 16)
    other = write_checkpoint(
        tmp_path / "other", num_layers=2, hidden_size=16, intermediate_size=32, initializer_range=0.1
    )
    with pytest.raises(BertKerasError, match="cache was made with another weights"):
        trained("class", other, tmp_path / "third", **how)
    with pytest.raises(BertKerasError, match="cache was made with another layers"):
        trained("class", checkpoint, tmp_path / "fourth", **how | {"feature_layers": "1"})


def learns(case, checkpoint, **features):
    """A string model after `fit`, which changes no number of its encoder."""
    model, x, y = model_of(case, checkpoint, **features)
    before = [variable.numpy() for variable in model.encoder.variables]
    model.compile(learning_rate=1e-2, warmup_proportion=0.0)
    losses = model.fit(x, y, batch_size=4, epochs=4, validation_data=(x, y), verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert all(map(np.array_equal, before, [variable.numpy() for variable in model.encoder.variables]))
    return model


@pytest.mark.long
@pytest.mark.parametrize("case", slow_but("pair", CASES))
def test_every_string_model_learns_from_vectors(case, checkpoint, tmp_path, monkeypatch, late):
    model = learns(case, checkpoint, **FEATURES | {"lstm_layers": 0, "lstm_dropout": 0.0})
    assert not late, "an epoch or its validation called the encoder"
    monkeypatch.setattr(bk.BertEncoder, "call", CALL)
    x = CASES[case][3]
    predicted = model.predict(x, verbose=0)
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "run")
    for path in ("m.keras", "run"):
        loaded = bk.load(tmp_path / path)
        assert not loaded.encoder.trainable_variables
        assert_same_answers(loaded.predict(x, verbose=0), predicted)


@pytest.mark.long
def test_texts_that_fit_did_not_see_go_through_the_encoder(checkpoint):
    """A callback predicts another text; a shuffled validation set shows other texts in each epoch."""
    model = bk.classifier(checkpoint, NAMES, **FEATURES | {"lstm_layers": 0})
    said = []
    predicts = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: said.append(model.predict(["very warm scene"], verbose=0))
    )
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).shuffle(24).batch(2)
    how = {"validation_data": data, "validation_steps": 2, "callbacks": [predicts], "verbose": 0}
    model.fit(TEXTS[:8], LABELS[:8], batch_size=4, epochs=3, **how)
    after = model.predict(["very warm scene"], verbose=0)["probabilities"]
    np.testing.assert_allclose(said[-1]["probabilities"], after, atol=1e-6)
    assert model.vectors is None


@pytest.mark.long
@pytest.mark.slow
def test_a_cache_serves_other_seeds_of_a_held_out_part(checkpoint, tmp_path):
    """The order of the examples differs, and not their vectors."""
    for seed in (1, 2):
        how = {"lstm_layers": 0, "feature_cache": tmp_path / "cache", "dev_fraction": 0.25, "seed": seed}
        trained("class", checkpoint, tmp_path / f"run-{seed}", **how)
    assert not (tmp_path / "run-2" / FOLDER).exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_lost_run_of_a_grid_keeps_no_vectors(checkpoint, tmp_path):
    task, lines = task_of("class", checkpoint), []
    hparams = Hparams(epochs=1, batch_size=4, seq_length=24, **FEATURES | {"lstm_layers": 0})
    summary = run_protocol(
        task,
        checkpoint=checkpoint,
        output=tmp_path / "runs",
        hparams=hparams,
        learning_rates=(1e30, 1e-2),
        best_only=True,
        log=lines.append,
    )
    lost, best = summary.outcomes
    assert not lost.measures and lost.degenerate and summary.best == best
    assert not [*(tmp_path / "runs").rglob("*.parquet")]
    assert not (lost.path / "top.safetensors").exists() and (best.path / "top.safetensors").is_file()


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_the_run_is_served_from_raw_strings_in_a_fresh_process(class_run, tmp_path):
    """The encoder and the BiLSTM are one SavedModel."""
    run = load_run(class_run[0])
    found = ask(export(run, tmp_path / "served"), {"text": TEXTS})
    examples = tf.data.Dataset.from_tensor_slices({"text": TEXTS})
    answers, _ = predict(run.task, run.preprocess, run.model, examples)
    np.testing.assert_allclose(found["probabilities"], answers["probabilities"], atol=1e-5)
    assert found["label"] == [label.decode() for label in answers["label"]]


def test_a_step_on_one_batch_leaves_the_encoder_as_it_is(checkpoint):
    """Even without vectors, and without its dropout."""
    model = bk.classifier(checkpoint, NAMES, feature_layers="last", lstm_layers=0, lstm_dropout=0.0)
    model.compile(bk.AdamW(0.0))
    losses = [float(model.train_on_batch(TEXTS, LABELS)[0]) for _ in range(2)]
    assert losses[0] == losses[1]
    model.encoder.trainable = True
    with pytest.raises(BertKerasError, match="stays frozen"):
        model.fit(TEXTS, LABELS, verbose=0)


def test_the_default_rate_is_that_of_a_bilstm_unless_one_is_given():
    paper = {"learning_rate": 2e-5, "epochs": 4}
    assert hparams_of(paper, {}).learning_rate == 2e-5
    assert hparams_of(paper, {"feature_layers": "last"}).learning_rate == 1e-3
    assert hparams_of(paper, {"feature_layers": "last"}).epochs == 4
    assert hparams_of(paper, {"feature_layers": "last", "learning_rate": 0.5}).learning_rate == 0.5
    assert (Hparams().learning_rate, Hparams(feature_layers="9").learning_rate) == (5e-5, 1e-3)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"feature_layers": "first"}, "layers is 'first'; give one of embeddings"),
        ({"feature_layers": "9,9"}, "different numbers"),
        ({"feature_layers": "1,-1"}, "different numbers"),
        ({"feature_layers": ""}, "give one of embeddings"),
        ({"lstm_units": 5}, "lstm_units must be 768 without feature_layers"),
        ({"feature_dtype": "float16"}, "feature_dtype must be float32 without feature_layers"),
        ({"feature_layers": "last", "lora_rank": 2}, "lora_rank must be None if feature_layers is set"),
        ({"feature_layers": "last", "unfreeze": "gradual"}, "unfreeze must be None if feature_layers is set"),
        ({"feature_layers": "last", "layer_decay": 0.9}, "layer_decay must be 1.0 if feature_layers is set"),
        ({"feature_layers": "last", "lstm_units": 0}, "lstm_units must be a whole number of at least 1"),
        ({"mix_norm": True}, "mix_norm must be False without feature_layers"),
        (
            {"feature_layers": "0,1", "mix_norm": True},
            "mix_norm must be False unless feature_layers is a weighted",
        ),
        (
            {"feature_layers": "last", "lstm_dropout": 1.0},
            "lstm_dropout must be a finite number of at least 0 and below 1",
        ),
    ],
)
def test_settings_of_features_that_make_no_sense(changes, match):
    with pytest.raises(BertKerasError, match=match):
        Hparams(**changes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_layers": "3"}, "layer 3 was asked for and the encoder has 2 blocks"),
        ({"feature_layers": "concat_last_four"}, "concat_last_four needs 4 blocks"),
        ({"keep_head": True}, "keep_head does not apply"),
        ({"hparams": Hparams(seq_length=24), "feature_cache": "cache"}, "applies only with feature_layers"),
        (
            {"task": FillMask(), "hparams": Hparams(seq_length=24, feature_layers="last")},
            "own head, so feature_layers does not apply",
        ),
        ({}, "need 0.0 GB, and .* has 0.0 GB free"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(changes, message, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 0, 10))
    with runs.refused(message, output=tmp_path / "run"):
        trained("class", checkpoint, tmp_path / "run", **changes)


def test_an_unknown_setting_of_features_is_refused(checkpoint):
    with pytest.raises(BertKerasError, match="there is no argument lstm"):
        bk.classifier(checkpoint, NAMES, feature_layers="last", lstm=3)


@pytest.mark.long
def test_the_commands_name_the_layers(checkpoint, tmp_path, capfd):
    data = runs.write_data(tmp_path / "data", "sst2")
    flags = ["--task", "sst2", "--data", data, "--checkpoint", checkpoint, "--output", tmp_path / "run"]
    flags += ["--epochs", "1", "--seq-length", "24", "--feature-layers", "1,2", "--lstm-layers", "0"]
    code, out, err = run_command(capfd, "finetune", *flags)
    assert code == 0, err
    assert "layers 1,2" in out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["hparams"]["feature_layers"] == "1,2" and results["hparams"]["learning_rate"] == 1e-3
    assert "layers 1,2; the encoder is frozen" in (tmp_path / "run" / "README.md").read_text()
    code, out, _ = run_command(capfd, "info", tmp_path / "run")
    assert code == 0 and "layers 1,2" in out
    code, out, _ = run_command(capfd, "evaluate", "--run", tmp_path / "run", "--data", data)
    assert code == 0 and "layers 1,2" in out
    code, _, err = run_command(capfd, "finetune", *flags[:-4], "--feature-layers", "nine")
    assert code == 1 and err.count("\n") == 1 and "layers is 'nine'" in err


def test_a_changed_part_of_a_run_is_refused(class_run, tmp_path):
    shutil.copytree(class_run[0], tmp_path / "run")
    file = tmp_path / "run" / "top.safetensors"
    description = tmp_path / "run" / "task.json"
    written = description.read_text()
    description.write_text(written.replace('"lstm_layers": 1', '"lstm_layers": 90'))
    with pytest.raises(
        BertKerasError, match="top.safetensors has .* bytes, and the BiLSTM in task.json needs"
    ):
        load_run(tmp_path / "run")
    description.write_text(written.replace('"weighted_sum_all"', '"0,3"'))
    with pytest.raises(BertKerasError, match="layer 3 was asked for"):
        load_run(tmp_path / "run")
    description.write_text(written)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(BertKerasError, match="top.safetensors was changed"):
        load_run(tmp_path / "run")
    os.remove(file)
    with pytest.raises(FileNotFoundError, match="top.safetensors"):
        load_run(tmp_path / "run")


@MANY
def test_the_block_of_the_document_runs(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "features.md").read_text(), re.DOTALL)
    write_checkpoint(tmp_path / "minilm", num_layers=4, hidden_size=16, intermediate_size=32)
    monkeypatch.chdir(tmp_path)
    names = {"bk": bk, "texts": TEXTS, "labels": LABELS}
    exec(block, names)
    assert len(names["model"].predict(TEXTS, verbose=0)["label"]) == len(TEXTS)


def test_a_frozen_bilstm_stays_frozen_in_its_config():
    layer = FeatureBiLSTM(feature_layers="last", lstm_layers=1, lstm_units=4, lstm_dropout=0.0)
    layer.build((None, None, 1, 8))
    assert FeatureBiLSTM.from_config(layer.get_config()).trainable
    layer.trainable = False
    again = FeatureBiLSTM.from_config(layer.get_config())
    again.build((None, None, 1, 8))
    assert again.weights and not again.trainable_variables


def test_a_row_without_a_token_is_finite(checkpoint):
    """As a request of ready features can ask for."""
    model = bk.classifier(checkpoint, NAMES, **FEATURES)
    encoder = next(layer for layer in model._flatten_layers() if isinstance(layer, BertEncoder))
    inputs = encoder_inputs()
    pooled = keras.Model(inputs, FeatureEncoder(encoder, **FEATURES)(inputs)[POOLED_OUTPUT])
    features = {name: np.ones((2, 5), "int32") for name in ENCODER_INPUTS}
    features[INPUT_MASK] = np.array([[1] * 5, [0] * 5], "int32")
    found = pooled(features).numpy()
    assert np.isfinite(found).all() and (found[1] == 0).all() and (found[0] != 0).any()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_the_states_of_a_bilstm_are_float32(policy):
    layer = FeatureBiLSTM(feature_layers="last", lstm_layers=1, lstm_units=4, lstm_dropout=0.0, dtype=policy)
    assert layer(np.ones((1, 3, 1, 8), "float32"), np.ones((1, 3), bool)).dtype == "float32"
