"""Measures of labels by name, Keras' metrics on our logits, weights of classes, and the names of labels in every answer."""

import json

import keras
import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from runs import no_training, run_command, texts, write_checkpoint
from sklearn.utils.class_weight import compute_class_weight

import bert_keras as bk
from bert_keras.errors import BertKerasError
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.class_metrics import LabelMeasure
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.label_types import measure_of
from bert_keras.tasks.strings.text_batches import make_class_weights

TWO, THREE = ["bad", "good"], ["bad", "good", "so so"]
TEXTS = texts(24, seed=0)
IDS, SETS = np.arange(24) * 7 % 5 % 3, np.arange(72).reshape(24, 3) ** 2 % 5 < 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    small = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "num_layers": 1}
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), **small)


# -----------------------------------------------------------------------------------------------------------
# Measures against scikit-learn


def by_sklearn(name, labels, truth, predicted, weights=None):
    """The measure of that name, from scikit-learn's own functions."""
    score, _, of = name.partition("_")
    options = {"sample_weight": weights}
    if score in ("accuracy", "matthews"):
        own = {"accuracy": sklearn.metrics.accuracy_score, "matthews": sklearn.metrics.matthews_corrcoef}
        return own[score](truth, predicted, **options)
    function = getattr(sklearn.metrics, f"{score}_score")
    options["zero_division"] = 0
    if of in ("macro", "micro", "weighted"):
        return function(truth, predicted, average=of, **options)
    if of:
        return function(truth, predicted, labels=[labels.index(of)], average="macro", **options)
    return function(truth, predicted, average="micro" if truth.ndim > 1 else "binary", **options)


SCORES = ["precision", "recall", "f1"]
AVERAGES = ["macro", "micro", "weighted"]
MEASURES = {
    "class": ["accuracy", "matthews", *(f"{score}_{of}" for score in SCORES for of in [*AVERAGES, "good"])],
    "multi": ["accuracy", *SCORES, *(f"{score}_{of}" for score in SCORES for of in [*AVERAGES, "good"])],
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("label_type", "labels"), [("class", TWO), ("class", THREE), ("multi", THREE)])
def test_measures_by_name_are_those_of_scikit_learn_on_all_rows(label_type, labels, weighted):
    draw, multi = np.random.default_rng(len(labels)), label_type == "multi"
    logits = draw.normal(size=(50, len(labels))).astype("float32")
    logits[:, -1] -= 1.5  # a rare label
    truth = (
        draw.integers(0, 2, (50, 3)) if multi else draw.integers(0, 2, 50)
    )  # of three classes, one is never a label
    predicted = (logits > 0).astype(int) if multi else logits.argmax(axis=1)
    weights = draw.random(50).astype("float32") if weighted else None
    names = MEASURES[label_type] + (SCORES if len(labels) == 2 else [])
    for name in names:
        metric = LabelMeasure(name, labels, multi=multi)
        for start in range(0, 50, 7):
            rows = slice(start, start + 7)
            metric.update_state(truth[rows], logits[rows], weights if weights is None else weights[rows])
        expected = by_sklearn(name, labels, truth, predicted, weights)
        assert float(metric.result()) == pytest.approx(expected, abs=1e-6), name
        if not weighted:
            assert measure_of(name, labels, label_type)(truth, predicted) == pytest.approx(expected), name


def test_one_label_of_its_own():
    """scikit-learn takes one column for class ids."""
    truth, logits = np.array([[1.0], [0.0], [1.0]]), np.array([[1.0], [1.0], [-1.0]], "float32")
    for name in (*SCORES, "f1_macro", "f1_spam"):
        metric = LabelMeasure(name, ["spam"], multi=True)
        metric.update_state(truth, logits)
        own = measure_of(name, ["spam"], "multi")(truth, (logits > 0).astype("float32"))
        assert float(metric.result()) == pytest.approx(own) == pytest.approx(0.5)


# -----------------------------------------------------------------------------------------------------------
# compile(metrics=...)


M = keras.metrics


def evaluated(model, y, metrics):
    """The logs of metrics, and the logits."""
    model.compile(metrics=metrics)
    logs = model.evaluate(TEXTS, y, verbose=0, return_dict=True)
    return logs, np.asarray(model(TEXTS, training=False))


def chosen(labels, logits):
    """A metric of a user's own: the class that is predicted."""
    return keras.ops.cast(keras.ops.argmax(logits, axis=-1), "float32")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_metrics_of_two_classes(checkpoint, tmp_path):
    model, y = bk.classifier(checkpoint, TWO), (IDS > 0).astype(int)
    names = ["f1", "f1_macro", "f1_by_class", "Precision", "recall", "matthews", "AUC", "f1_score", "acc"]
    own = {
        "of_each": M.F1Score(name="of_each"),
        "macro": M.F1Score(average="macro", name="macro"),
        "of_logits": M.Precision(thresholds=0, name="of_logits"),
        "auc_of_logits": M.AUC(from_logits=True, name="auc_of_logits"),
        "binary": M.BinaryAccuracy(name="binary"),
        "binary_of_logits": M.BinaryAccuracy(threshold=0, name="binary_of_logits"),
        "categorical": M.CategoricalAccuracy(name="categorical"),
        "entropy": M.SparseCategoricalCrossentropy(name="entropy"),
        "recall_at": M.RecallAtPrecision(0.3, name="recall_at"),
        "of_bad": M.Recall(class_id=0, name="of_bad"),
        "auc_of_columns": M.AUC(multi_label=True, num_labels=2, name="auc_of_columns"),
        "mine": chosen,
    }
    logs, logits = evaluated(model, y, [*names, *own.values()])
    predicted = logits.argmax(axis=1)
    plain = ("f1", "f1_macro", "f1_bad", "f1_good", "recall", "matthews", "accuracy")
    expected = {name: by_sklearn(name, TWO, y, predicted) for name in plain}
    precision = by_sklearn("precision", TWO, y, predicted)
    expected |= {"Precision": precision, "of_logits": precision, "f1_score": expected["f1"]}
    expected |= {"macro": expected["f1_macro"], "acc": expected.pop("accuracy")}
    expected["of_bad"] = by_sklearn("recall_bad", TWO, y, predicted)
    expected |= dict.fromkeys(("binary", "binary_of_logits", "categorical"), expected["acc"])
    expected |= {"entropy": logs["loss"], "chosen": predicted.mean()}
    assert {name: float(logs[name]) for name in expected} == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(logs["of_each"], [expected["f1_bad"], expected["f1_good"]], atol=1e-6)
    auc = sklearn.metrics.roc_auc_score(y, logits[:, 1] - logits[:, 0])
    areas = [logs[name] for name in ("AUC", "auc_of_logits", "auc_of_columns")]
    assert areas == pytest.approx([auc] * 3, abs=0.02)  # from 200 thresholds
    model.compile(metrics=["f1_macro", M.AUC(name="area")])
    model.save(tmp_path / "model.keras")
    again = bk.load(tmp_path / "model.keras").evaluate(TEXTS, y, verbose=0, return_dict=True)
    assert again["f1_macro"] == pytest.approx(expected["f1_macro"], abs=1e-5) and "area" in again


@pytest.mark.long
def test_metrics_of_three_classes_sets_and_windows(checkpoint):
    model = bk.classifier(checkpoint, THREE)
    metrics = [
        "f1_macro",
        "f1_by_class",
        M.F1Score(average="weighted", name="own"),
        "AUC",
        M.Recall(class_id=1),
    ]
    logs, logits = evaluated(model, IDS, metrics)
    predicted = logits.argmax(axis=1)
    names = {name: name for name in ("f1_macro", "f1_bad", "f1_so so")} | {"own": "f1_weighted"}
    expected = {name: by_sklearn(of, THREE, IDS, predicted) for name, of in names.items()}
    assert {name: float(logs[name]) for name in names} == pytest.approx(expected, abs=1e-5)

    model = bk.classifier(checkpoint, THREE, multi=True)
    metrics = ["f1_macro", "precision", "accuracy", M.F1Score("macro", threshold=0.5, name="own"), M.AUC()]
    logs, logits = evaluated(model, SETS.astype(int), metrics)
    truth, predicted = SETS.astype(int), (logits > 0).astype(int)
    names = {name: name for name in ("f1", "f1_macro", "precision", "accuracy")} | {"own": "f1_macro"}
    expected = {name: by_sklearn(of, THREE, truth, predicted) for name, of in names.items()}
    assert {name: float(logs[name]) for name in names} == pytest.approx(expected, abs=1e-5)

    model = bk.classifier(checkpoint, THREE, seq_length=16, doc_stride=4)
    model.compile(metrics=["f1_macro"])
    logs = model.evaluate(TEXTS, IDS, verbose=0, return_dict=True)
    predicted = np.array([THREE.index(label) for label in model.predict(TEXTS, verbose=0)["label"]])
    assert logs["f1_macro"] == pytest.approx(by_sklearn("f1_macro", THREE, IDS, predicted))


@pytest.mark.parametrize(
    ("make", "metric", "named"),
    [
        (lambda at: bk.classifier(at, THREE), "f1", "'f1'.*_macro.*_by_class"),
        (lambda at: bk.classifier(at, THREE), "f1_great", "'f1_great'.*_macro"),
        (lambda at: bk.classifier(at, THREE), M.Precision(thresholds=0), "'precision'.*_macro"),
        (lambda at: bk.classifier(at, TWO), M.MeanSquaredError(), "'mean_squared_error'.*accuracy"),
        (lambda at: bk.classifier(at, TWO), "precision_at_recall", "'precision_at_recall'"),
        (lambda at: bk.classifier(at, TWO), keras.losses.binary_crossentropy, "'binary_crossentropy'"),
        (lambda at: bk.classifier(at, TWO), M.Recall(class_id=2, name="a"), "'a .*f1"),
        (lambda at: bk.classifier(at, TWO, multi=True), M.F1Score(), "'f1_score'.*f1"),
        (lambda at: bk.classifier(at, TWO, multi=True), "matthews", "'matthews'"),
        (lambda at: bk.regressor(at), "AUC", "'AUC'.*spearman"),
        (lambda at: bk.tagger(at, ["PER"]), M.F1Score(), "'f1_score'.*tags"),
    ],
)
def test_a_metric_that_cannot_read_labels_or_logits_is_refused_when_compiled(make, metric, named, checkpoint):
    with pytest.raises(BertKerasError, match=named) as error:
        make(checkpoint).compile(metrics=["accuracy", metric] if metric != "AUC" else [metric])
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_fit_stops_at_the_best_f1(checkpoint):
    model = bk.classifier(checkpoint, THREE)
    model.compile(keras.optimizers.SGD(0.0), metrics=["f1_macro"])  # nothing improves
    stop = keras.callbacks.EarlyStopping("val_f1_macro", patience=1)
    data = {"validation_data": (TEXTS, IDS), "epochs": 4, "verbose": 0}
    history = model.fit(TEXTS, IDS, callbacks=[stop], **data).history
    assert len(history["val_f1_macro"]) == 2 and stop.monitor_op is keras.ops.greater
    assert history["f1_macro"][-1] == pytest.approx(history["val_f1_macro"][-1])


# -----------------------------------------------------------------------------------------------------------
# Weights of classes


BALANCED = compute_class_weight("balanced", classes=np.arange(3), y=IDS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"good": 2.0}, [1, 2, 1]),
        ({0: 0.5, "so so": 3}, [0.5, 1, 3]),
        ({np.int64(2): np.float32(3)}, [1, 1, 3]),
        ([1, 2, 3], [1, 2, 3]),
        (np.array([0.0, 2.0, 3.0]), [0, 2, 3]),
        ("balanced", BALANCED),
    ],
)
def test_weights_of_classes(given, expected):
    weights = make_class_weights(TextClassification(THREE), given, lambda: np.append(IDS, -1))
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"great": 1.0}, "'great'.*bad, good"),
        ({"good": 1.0, 1: 2.0}, "'good' and 1, which are one class"),
        ({3: 1.0}, "names 3"),
        ([1.0, 2.0], "2 weights.*bad, good, so so"),
        ("even", "'even'.*'balanced'"),
        ({"good": -1.0}, "class_weight: -1.0; give a finite number of at least 0"),
        ({"good": float("nan")}, "class_weight: nan; give a finite number"),
        ([1.0, 1e39, 1.0], "class_weight: 1e\\+39; give a finite .* at most 1e\\+18"),
        ({"good": 10**400}, "class_weight: 1000.*000; give a finite number"),
        (3.0, "expected a list"),
    ],
)
def test_wrong_weights_of_classes_are_refused(given, named):
    with pytest.raises(BertKerasError, match=named):
        make_class_weights(TextClassification(THREE), given, lambda: IDS)


@pytest.mark.long
def test_balanced_classes_weigh_alike_in_fit(checkpoint):
    model = bk.classifier(checkpoint, THREE)
    model.compile(keras.optimizers.SGD(0.0))
    expected = model.evaluate(TEXTS, IDS, sample_weight=BALANCED[IDS], verbose=0)[0]
    data = tf.data.Dataset.from_tensor_slices((TEXTS, IDS)).batch(5)
    for x, y in ((TEXTS, IDS), (data, None)):
        loss = model.fit(x, y, class_weight="balanced", batch_size=None if y is None else 5, verbose=0)
        assert loss.history["loss"] == pytest.approx([expected], abs=1e-5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("balanced", "balanced"),
        ("good=1,bad=3", {"good": 1.0, "bad": 3.0}),
        ("a,b=1,c=d=2e-1", {"a,b": 1.0, "c=d": 0.2}),
    ],
)
def test_weights_of_classes_in_a_flag(given, expected):
    assert Hparams(class_weight=given).class_weights == expected


@pytest.mark.parametrize("given", ["even", "good", "good=1,good=2", "good=1,", "good=much", ""])
def test_a_wrong_flag_of_weights_is_refused(given):
    with pytest.raises(BertKerasError, match="class_weight.*good=1,bad=3"):
        Hparams(class_weight=given)


@pytest.mark.long
def test_a_command_chooses_the_epoch_by_f1_with_balanced_classes(checkpoint, tmp_path, capfd):
    rows = [{"text": text, "label": THREE[i]} for text, i in zip(TEXTS, IDS, strict=True)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["finetune", "--task", "custom", "--data", tmp_path, "--checkpoint", checkpoint]
    command += ["--output", tmp_path / "run", "--epochs", "2", "--measure", "f1_macro", "--seq-length", "24"]
    code, out, _ = run_command(capfd, *command, "--class-weight", "balanced")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert code == 0 and "f1_macro" in out and results["hparams"]["class_weight"] == "balanced"
    values = [epoch["val_f1_macro"] for epoch in results["history"]]
    assert results["measures"]["val_f1_macro"] == max(values) == values[results["best_epoch"] - 1]
    code, out, _ = run_command(capfd, "evaluate", "--run", tmp_path / "run", "--data", tmp_path)
    assert code == 0 and all(word in out for word in ("f1_macro", "labels and averages", "so so", "weighted"))
    code, out, _ = run_command(capfd, "predict", "--run", tmp_path / "run", "--input", tmp_path / "dev.jsonl")
    assert json.loads(out.splitlines()[0])["label_names"] == THREE
    for flag, value, named in (("measure", "f1", "f1_macro|_macro"), ("class-weight", "great=2", "great")):
        with no_training():
            code, _, err = run_command(capfd, *command, f"--{flag}", value, "--output", tmp_path / "other")
        assert code != 0 and named.split("|")[-1] in err and not (tmp_path / "other").exists()


# -----------------------------------------------------------------------------------------------------------
# Names of labels, and scores far from 0


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (lambda at: bk.classifier(at, THREE), THREE),
        (lambda at: bk.classifier(at, ["spam"], multi=True), ["spam"]),
        (lambda at: bk.regressor(at), []),
    ],
)
def test_names_of_labels_stand_beside_probabilities(make, labels, checkpoint):
    model = make(checkpoint)
    answers = model.predict(TEXTS[:2], verbose=0)
    assert [*model.labels] == labels
    assert np.array(answers.get("label_names", [[]] * 2)).tolist() == [labels] * 2


@pytest.mark.long
@pytest.mark.parametrize("as_data_set", [False, True])
def test_scores_far_from_0_are_learned(as_data_set, checkpoint):
    scores = np.where(["good" in text for text in TEXTS], 60.0, 6.0)
    model = bk.regressor(checkpoint)
    model.compile(learning_rate=1e-3, warmup_proportion=0.0)
    data = (tf.data.Dataset.from_tensor_slices((TEXTS, scores)).batch(8),) if as_data_set else (TEXTS, scores)
    history = model.fit(*data, epochs=8, batch_size=None if as_data_set else 8, verbose=0).history["loss"]
    assert history[-1] < np.var(scores) / 4
    kept = model.get_weights()
    model.compile(keras.optimizers.SGD(0.0))
    model.fit(TEXTS, scores + 100, verbose=0)  # a trained head stays
    assert all(np.array_equal(a, b) for a, b in zip(kept, model.get_weights(), strict=True))
