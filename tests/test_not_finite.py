"""NaN and infinity, in every form of a model: refused where it is saved, loaded and exported, and before every answer."""

import dataclasses

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf
from random_checkpoints import saves_with_keras
from string_tasks import NAMES, TASKS, TEXTS

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import as_json
from bert_keras.optimization.optimizers import AdamW
from bert_keras.savedmodels import hub, runtime_example
from bert_keras.savedmodels.servable import Servable
from bert_keras.savedmodels.server.rest import _jsonable
from bert_keras.savedmodels.server.served import RequestError
from bert_keras.savedmodels.verify import compare
from bert_keras.tasks.runs.ensemble import at_precision
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.task import model_inputs

WEIGHT = "that are NaN or infinite"
OUTPUT = "the outputs of the model are NaN or infinite"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return runs.write_checkpoint(tmp_path_factory.mktemp("finite") / "checkpoint", masked_lm=True)


def spoil(model: keras.Model, number: float) -> None:
    """Puts a number into one place of the last kernel."""
    kernel = [one for one in model.weights if len(one.shape) > 1][-1]
    value = np.asarray(kernel).copy()
    value.flat[0] = number
    kernel.assign(value)


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(
    "form",
    [
        lambda model, path: model.save(path / "model.keras"),
        lambda model, path: model.save(path / "run"),
        lambda model, path: model.save_weights(path / "model.weights.h5"),
        lambda model, path: model.export(path / "export"),
        lambda model, path: bk.export(model.as_run(), path / "export", freeze=True),
        lambda model, path: Servable(model.problem, model.preprocess, model.network, frozen=True),
        lambda model, path: at_precision(model.as_run(), "bfloat16"),
    ],
    ids=["keras", "run", "weights", "export", "frozen export", "runtimes", "precision"],
)
def test_weights_are_refused_in_every_form_that_is_written(checkpoint, tmp_path, form, number):
    model = bk.classifier(checkpoint, NAMES, seq_length=16)
    spoil(model.network, number)
    with pytest.raises(BertKerasError, match=WEIGHT):
        form(model, tmp_path)
    assert not [*tmp_path.iterdir()]


@saves_with_keras
def test_weights_are_refused_in_every_form_that_is_read(checkpoint, tmp_path, monkeypatch):
    model = bk.classifier(checkpoint, NAMES, seq_length=16)
    spoil(model.network, np.nan)
    with monkeypatch.context() as unchecked:
        for module in ("strings.text_model_parts.check_weights", "training.task_model.check_weights"):
            unchecked.setattr(f"bert_keras.tasks.{module}", lambda *args, **kwargs: None)
        unchecked.setattr(checkpoints, "refuse_not_finite", lambda *args, **kwargs: None)
        model.save(tmp_path / "model.keras")
        model.save(tmp_path / "run")
        model.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(BertKerasError, match=rf"in .*model.weights.h5.*{WEIGHT}"):
        bk.classifier(checkpoint, NAMES, seq_length=16).load_weights(tmp_path / "model.weights.h5")
    for path in ("model.keras", "run"):
        for read in (bk.load, load_run):
            with pytest.raises(BertKerasError, match=rf"{path}.*{WEIGHT}|{WEIGHT}"):
                read(tmp_path / path)


def test_a_weight_that_another_format_cannot_hold_is_refused(checkpoint):
    model = bk.classifier(checkpoint, NAMES, seq_length=16)
    spoil(model.encoder, 1e5)
    with pytest.raises(BertKerasError, match=f"in float16 has 1 numbers {WEIGHT}"):
        at_precision(model.as_run(), "float16")


def test_the_encoder_of_a_hub_pair_is_checked(checkpoint):
    source = checkpoints.read(checkpoint)
    wrong = {"pooler/bias": source.tensors["pooler/bias"] * np.nan}
    with pytest.raises(BertKerasError, match=WEIGHT):
        hub.encoder(dataclasses.replace(source, tensors=source.tensors | wrong), log=lambda line: None)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*softmax over axis")
@pytest.mark.parametrize("task", TASKS)
def test_no_task_makes_an_answer_of_outputs_that_are_not_finite(task, checkpoint):
    make, x, y = TASKS[task]
    model = make(checkpoint, seq_length=24)
    kernel = next(one for one in model.encoder.weights if one.path.endswith("layer_norm/gamma"))
    kernel.assign(np.full(kernel.shape, np.nan))
    for call in (model.predict, lambda texts: model.evaluate(texts, y, verbose=0)):
        with pytest.raises(BertKerasError, match=OUTPUT):
            call(x)
    with pytest.raises(BertKerasError, match=OUTPUT):
        raw = {name: tf.constant(value) for name, value in model.problem.given(x).items()}
        model.predict(model_inputs(model.problem, model.problem.features(model.preprocess, raw)))


@pytest.mark.long
def test_a_served_graph_answers_with_an_error(checkpoint):
    model = bk.tagger(checkpoint, ["PER"], seq_length=24)
    served = Servable(model.problem, model.preprocess, model.network)
    signatures = served.signatures()
    assert signatures["serving_default"](text=tf.constant(["good film"]))["tags"].shape == [1]
    spoil(model.network, np.nan)
    with pytest.raises(tf.errors.InvalidArgumentError, match=OUTPUT):
        signatures["serving_default"](text=tf.constant(["good film"]))
    features = {name: tf.ones([1, 4], tf.int32) for name in served.features_signature()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=OUTPUT):
        signatures["features"](**features)


def test_an_export_whose_answers_are_not_finite_is_not_verified():
    for answers in (np.float32([np.nan]), np.float32([np.inf])):
        with pytest.raises(BertKerasError, match="scores has NaN or infinite"):
            compare({"scores": answers}, {"scores": answers.tolist()})
    with pytest.raises(SystemExit, match="NaN or infinite"):
        runtime_example.answers({"answer": "class", "labels": NAMES}, np.float32([[np.nan, 1]]))


def test_json_has_no_nan():
    assert as_json({"a": [float("nan"), 1.5, (float("inf"),)]}) == '{"a": [null, 1.5, [null]]}'
    with pytest.raises(RequestError, match="scores has NaN") as error:
        _jsonable("scores", np.float32([1, np.nan]))
    assert error.value.code == "INTERNAL"


# -----------------------------------------------------------------------------------------------------------
# Numbers that Python holds and float32, or its square, does not


@pytest.mark.parametrize("number", [1e39, -1e39, 1e20, float("nan"), float("inf"), 10**400, "1", None, 1j])
def test_scores_and_weights_are_numbers_that_float32_holds(checkpoint, number):
    score, classes = bk.regressor(checkpoint, seq_length=16), bk.classifier(checkpoint, NAMES, seq_length=16)
    labels, weights = ["bad", "good"], [1.0, number]
    with runs.no_training():
        for call in (
            lambda: score.fit(TEXTS[:2], [0.5, number]),
            lambda: score.evaluate(TEXTS[:2], [0.5, number]),
            lambda: classes.fit(TEXTS[:2], labels, sample_weight=weights),
            lambda: classes.fit(TEXTS[:2], labels, class_weight={"bad": number}),
        ):
            with pytest.raises(BertKerasError, match="give a finite number"):
                call()


def test_a_score_in_a_file_is_a_number_that_float32_holds():
    from bert_keras.tasks.data.columns import read_number

    assert [read_number(value) for value in ("1e39", "1e20", 1e39, "nan", "2.5")] == [None] * 4 + [2.5]


@pytest.mark.parametrize("settings", [{"learning_rate": 1e39}, {"weight_decay": 1e39}, {"clip_norm": 1e39}])
def test_an_optimizer_s_numbers_are_held_by_float32(settings):
    with pytest.raises(BertKerasError, match=f"{next(iter(settings))} is 1e\\+39"):
        AdamW(**({"learning_rate": 1e-3} | settings))


def test_two_names_of_one_class_are_refused(checkpoint):
    model = bk.classifier(checkpoint, NAMES, seq_length=16)
    with (
        runs.no_training(),
        pytest.raises(BertKerasError, match="class_weight has 'bad' and 0, which are one class"),
    ):
        model.fit(TEXTS[:2], NAMES, class_weight={"bad": 2.0, 0: 3.0})


@pytest.mark.parametrize("weights", [[0, 0], [0.0, 0.0]])
def test_a_loss_of_nothing_is_no_zero(checkpoint, weights):
    model = bk.classifier(checkpoint, NAMES, seq_length=16)
    with pytest.raises(BertKerasError, match="no label has a weight over 0, so nothing was measured"):
        model.evaluate(TEXTS[:2], NAMES, sample_weight=weights, verbose=0)
