"""Long texts that are classified by windows: training, measuring, predicting, saving and serving."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import run_command, texts, write_checkpoint, write_data

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.features import EXAMPLE_INDEX, INPUT_MASK, INPUT_WORD_IDS
from bert_keras.tasks.finetuning.finetune import plan_finetuning
from bert_keras.tasks.frozen.extractor import text_units
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.strings.text_batches import text_batches
from bert_keras.text.preprocessing import Preprocessor

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
NAMES = ["bad", "good"]
LENGTH, STRIDE = 16, 6
SHORT = texts(6, seed=1)
LONG = [" ".join(texts(count, seed=count)) for count in (5, 20, 7, 12)]
TEXTS = [*SHORT[:3], *LONG, *SHORT[3:]]
LABELS = [i % 2 for i in range(len(TEXTS))]
LARGE = {"learning_rate": 1e-3, "warmup_proportion": 0.0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    no_dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.3}
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), num_layers=1, **no_dropout)


@pytest.fixture(scope="module")
def model(checkpoint):
    """A classifier by windows, for tests that leave it as it is."""
    return bk.classifier(checkpoint, NAMES, seq_length=LENGTH, doc_stride=STRIDE)


def starts(length: int, *, room: int) -> list[int]:
    """The first token of each window."""
    return [0, *range(STRIDE, length - room + STRIDE, STRIDE)]


def logits_of(model, tokens: list[int]) -> np.ndarray:
    """The logits of a text's tokens, alone and unpadded [C]."""
    special = model.preprocess.tokenizer.special
    row = np.array([[special.start, *tokens, special.end]], np.int32)
    one = np.ones_like(row)
    return model.network({INPUT_WORD_IDS: row, INPUT_MASK: one, "input_type_ids": 0 * one}).numpy()[0]


def logits_by_hand(model, text: str) -> np.ndarray:
    """The mean of the logits of a text's windows [C]."""
    ids, room = model.preprocess.tokenizer.tokenize([text])[0].numpy().tolist(), LENGTH - 2
    windows = [ids[first : first + room] for first in starts(len(ids), room=room)]
    return np.mean([logits_of(model, window) for window in windows], axis=0)


# -----------------------------------------------------------------------------------------------------------
# Windows, labels and weights


def test_the_windows_of_a_text_share_its_label_and_its_weight(model):
    raw = {"text": tf.constant([LONG[0], SHORT[0], LONG[1]]), "label": tf.constant([1, 0, -1])}
    features = model.problem.features(model.preprocess, raw)
    labels, weights = model.problem.labels(raw, features)
    index = features[EXAMPLE_INDEX].numpy()
    counts = np.bincount(index)
    assert counts[0] > 1 and counts[1] == 1 and counts[2] > counts[0]
    assert labels.numpy().tolist() == [1] * counts[0] + [0] + [0] * counts[2]
    np.testing.assert_allclose(weights, [1 / counts[0]] * counts[0] + [1.0] + [0.0] * counts[2])


def test_sample_and_class_weights_apply_to_every_window(model):
    x, y, given = [LONG[0], SHORT[0]], ["good", "bad"], [3.0, 5.0]
    batches = text_batches(model.problem, model.preprocess, x, y, given, class_weight={"good": 2.0})
    ((_, labels, weights),) = batches
    assert float(tf.reduce_sum(weights[labels == 1])) == pytest.approx(6.0)
    assert float(tf.reduce_sum(weights[labels == 0])) == pytest.approx(5.0)


def test_a_pair_that_fits_is_read_as_without_windows(checkpoint):
    names = {"text": ("premise", "hypothesis"), "seq_length": LENGTH}
    windows = bk.classifier(checkpoint, NAMES, doc_stride=STRIDE, **names)
    plain = bk.classifier(checkpoint, NAMES, **names)
    raw = {"premise": tf.constant([*SHORT, LONG[1]]), "hypothesis": tf.constant([*SHORT[::-1], ""])}
    rows = [windows.preprocess.tokenizer.tokenize(raw[name]).row_lengths() for name in raw]
    fits = (rows[0] + rows[1] <= LENGTH - 3).numpy()
    assert fits.any() and not fits.all()
    fits[-1] = True  # a first text alone is truncated
    features = windows.problem.features(windows.preprocess, raw)
    expected = plain.problem.features(plain.preprocess, raw)
    index = features[EXAMPLE_INDEX].numpy()
    for row in np.flatnonzero(fits):
        (at,) = np.flatnonzero(index == row)
        for name in (INPUT_WORD_IDS, INPUT_MASK, "input_type_ids"):
            assert features[name][at].numpy().tolist() == expected[name][row].numpy().tolist()


def test_every_token_of_a_pairs_second_text_is_read(checkpoint):
    names, room = {"text": ("premise", "hypothesis"), "seq_length": LENGTH}, LENGTH - 3
    model = bk.classifier(checkpoint, NAMES, doc_stride=STRIDE, **names)
    special, tokenize = model.preprocess.tokenizer.special, model.preprocess.tokenizer.tokenize
    first, second = LONG[2], LONG[3]
    raw = {"premise": tf.constant([first]), "hypothesis": tf.constant([second])}
    features = model.problem.features(model.preprocess, raw)
    kept = tokenize([first])[0].numpy().tolist()[: (room + 1) // 2]
    ids = tokenize([second])[0].numpy().tolist()
    rows = [
        [special.start, *kept, special.end, *ids[at : at + room // 2], special.end]
        for at in starts(len(ids), room=room // 2)
    ]
    found = [row[row != special.padding].numpy().tolist() for row in features[INPUT_WORD_IDS]]
    assert found == rows


@pytest.mark.parametrize("stride", [0, 2.5, "12", True])
def test_a_doc_stride_that_is_no_whole_number_over_0_is_refused(stride, checkpoint):
    with pytest.raises(BertKerasError, match=f"doc_stride is {stride!r}"):
        bk.classifier(checkpoint, NAMES, doc_stride=stride)


FAR = TextClassification.open("sst2", "/", doc_stride=60)
TOO_FAR = {
    "a text": (lambda ckpt: bk.classifier(ckpt, NAMES, seq_length=16, doc_stride=15), 14),
    "the default of another problem": (lambda ckpt: bk.regressor(ckpt, seq_length=16, doc_stride=128), 14),
    "a pair": (lambda ckpt: bk.classifier(ckpt, NAMES, text=("a", "b"), seq_length=16, doc_stride=14), 13),
    "a question": (lambda ckpt: bk.question_answerer(ckpt, seq_length=16, doc_stride=14, max_query_length=4), 13),
    "tags": (lambda ckpt: bk.tagger(ckpt, ["PER"], seq_length=16, doc_stride=100), 14),
    "a plan": (lambda ckpt: plan_finetuning(FAR, checkpoint=ckpt, hparams=Hparams(seq_length=16)), 14),
    "features": (lambda ckpt: text_units("word", checkpoints.read(ckpt), seq_length=16, doc_stride=40), 14),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_FAR)
def test_a_doc_stride_over_the_window_is_refused_with_the_largest_that_fits(name, checkpoint):
    make, most = TOO_FAR[name]
    with pytest.raises(BertKerasError, match=f"doc_stride is .* seq_length 16 .*give {most} or less"):
        make(checkpoint)


def test_a_default_doc_stride_fits_itself_to_the_window(checkpoint):
    model = bk.tagger(checkpoint, ["PER"], seq_length=16)
    assert model.problem.doc_stride == 128 and len(model.predict([LONG[1]])["tags"]) == 1


def test_a_run_with_a_doc_stride_over_its_window_is_still_read(model, tmp_path):
    model.save(tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "task.json").read_text())
    kept["task"]["doc_stride"] = 10 * LENGTH
    (tmp_path / "run" / "task.json").write_text(json.dumps(kept))
    assert len(bk.load(tmp_path / "run").predict(LONG)["label"]) == len(LONG)


# -----------------------------------------------------------------------------------------------------------
# Predictions


def test_a_prediction_is_the_mean_of_the_windows_logits_in_input_order(model):
    expected = np.stack([logits_by_hand(model, text) for text in TEXTS])
    for size in (2, 32):  # fewer rows than a text has windows, and more
        found = model.predict(TEXTS, batch_size=size, verbose=0)["probabilities"]
        np.testing.assert_allclose(found, keras.ops.softmax(expected), atol=1e-5)


def test_short_texts_are_classified_as_without_windows(model, checkpoint):
    plain = bk.classifier(checkpoint, NAMES, seq_length=LENGTH)
    plain.set_weights(model.get_weights())
    found, expected = (one.predict(TEXTS, verbose=0)["probabilities"] for one in (model, plain))
    short = [text in SHORT for text in TEXTS]
    np.testing.assert_allclose(found[short], expected[short], atol=1e-6)
    assert np.abs(found - expected)[~np.array(short)].max() > 1e-3


KINDS = {
    "multi": (lambda ckpt, **o: bk.classifier(ckpt, NAMES, multi=True, **o), [[NAMES[label]] for label in LABELS], "f1"),
    "score": (bk.regressor, [float(label) for label in LABELS], "spearman"),
    "pair": (lambda ckpt, **o: bk.classifier(ckpt, NAMES, text=("a", "b"), **o), LABELS, "accuracy"),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["pair", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("multi", "score"))]
)
def test_windows_are_learned_measured_saved_and_served(kind, checkpoint, tmp_path):
    make, y, measure = KINDS[kind]
    model = make(checkpoint, seq_length=LENGTH, doc_stride=STRIDE)
    x = (TEXTS, TEXTS[::-1]) if kind == "pair" else TEXTS
    model.compile(**LARGE)
    losses = model.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    predicted = model.predict(x, verbose=0)
    assert {len(values) for values in predicted.values()} == {len(TEXTS)}
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    if measure == "accuracy":  # of texts, not of windows
        right = [NAMES.index(label) == wanted for label, wanted in zip(predicted["label"], y, strict=True)]
        assert logs["accuracy"] == pytest.approx(np.mean(right))
    assert measure in logs
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "task.json").read_text())["task"]["doc_stride"] == STRIDE
    for path in (tmp_path / "m.keras", tmp_path / "run"):
        for name, values in bk.load(path).predict(x, verbose=0).items():
            np.testing.assert_array_equal(values, predicted[name], err_msg=str(path))
    served = bk.load(model.export(tmp_path / "served")).signatures["serving_default"]
    columns = dict(zip(model.problem.text, x if kind == "pair" else (x,), strict=True))
    answers = served(**{name: tf.constant(column) for name, column in columns.items()})
    for name, values in answers.items():
        if values.dtype == tf.float32:
            np.testing.assert_allclose(values, predicted[name], atol=1e-5)


# -----------------------------------------------------------------------------------------------------------
# Commands and old runs


@pytest.mark.slow
def test_the_commands_read_windows(checkpoint, tmp_path, capfd):
    data, run = write_data(tmp_path / "data", "sst2", count=16), tmp_path / "run"
    flags = ["--epochs", "1", "--batch-size", "8", "--seq-length", "8", "--doc-stride", "3"]
    flags += ["--task", "sst2", "--data", data, "--checkpoint", checkpoint, "--output", run]
    code, _, err = run_command(capfd, "finetune", *flags)
    assert code == 0, err
    code, out, err = run_command(capfd, "evaluate", "--run", run, "--data", data, "--json")
    assert code == 0, err
    measures = json.loads((run / "results.json").read_text())["measures"]
    assert json.loads(out)["validation"]["accuracy"] == pytest.approx(measures["val_accuracy"])
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    code, out, err = run_command(capfd, "predict", "--run", run, "--input", tmp_path / "in.txt")
    assert code == 0, err
    records = [json.loads(line) for line in out.splitlines()]
    expected = bk.load(run).predict(TEXTS, verbose=0)
    assert [record["label"] for record in records] == expected["label"].tolist()
    found = [record["probabilities"] for record in records]
    np.testing.assert_allclose(found, expected["probabilities"], atol=1e-6)


@pytest.mark.slow
def test_a_run_without_windows_is_read_without_windows(sst2):
    run = load_run(sst2.run)
    assert run.task.doc_stride is None and not run.task.windowed


# -----------------------------------------------------------------------------------------------------------
# Truncation


def kept_tokens(tokens: list, room: int, truncation: str) -> list:
    """Sun et al. 2019, sec. 5.3.1: head-only, tail-only and head+tail of 128 and 382 of 510 tokens."""
    if len(tokens) <= room:
        return tokens
    head = {"tail": 0, "head_tail": int(room * 128 / 510 + 0.5)}[truncation]
    return tokens[:head] + tokens[len(tokens) - (room - head) :]


@pytest.mark.parametrize("truncation", ["tail", "head_tail"])
@pytest.mark.parametrize("seq_length", [5, 16, 512])
def test_truncation_keeps_the_tokens_of_the_paper(truncation, seq_length, model):
    tokenizer, room = model.preprocess.tokenizer, seq_length - 2
    letters, lengths = "abcdefghijklmnopqrstuvwxyz", (0, 1, room - 1, room, room + 1, room + 7, 3 * room)
    rows = [" ".join(letters[i % 26] for i in range(n)) for n in lengths]
    features = Preprocessor(tokenizer, seq_length=seq_length)(tf.constant(rows), keep=truncation)
    ids = {token: i for i, token in enumerate(tokenizer.vocabulary)}
    for number, row in enumerate(rows):
        tokens = ["[CLS]", *kept_tokens(row.split(), room, truncation), "[SEP]"]
        padding = [0] * (seq_length - len(tokens))
        wanted = [ids[token] for token in tokens]
        assert features[INPUT_WORD_IDS][number, : len(tokens)].numpy().tolist() == wanted
        assert features[INPUT_MASK][number].numpy().tolist() == [1] * len(tokens) + padding
    assert (512 != seq_length) or kept_tokens(list(range(600)), 510, "head_tail")[127:129] == [127, 218]


@pytest.mark.usefixtures("forked_answers")
@pytest.mark.parametrize("truncation", [pytest.param("tail", marks=pytest.mark.slow), "head_tail"])
def test_truncation_is_the_same_in_python_files_runs_and_exports(truncation, checkpoint, tmp_path):
    model = bk.classifier(checkpoint, NAMES, seq_length=LENGTH, truncation=truncation)
    wanted = model.predict(TEXTS)["probabilities"]
    ids = [model.preprocess.tokenizer.tokenize([text])[0].numpy().tolist() for text in TEXTS]
    for tokens, expected in zip(ids, wanted, strict=True):
        logits = logits_of(model, kept_tokens(tokens, LENGTH - 2, truncation))
        np.testing.assert_allclose(keras.ops.softmax(logits), expected, atol=1e-5)
    model.save(tmp_path / "run")
    model.save(tmp_path / "m.keras")
    for name in ("run", "m.keras"):
        found = bk.load(tmp_path / name).predict(TEXTS)["probabilities"]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    served = tf.saved_model.load(str(model.export(tmp_path / "served"))).signatures["serving_default"]
    np.testing.assert_allclose(served(text=tf.constant(TEXTS))["probabilities"], wanted, atol=1e-5)
    head = bk.classifier(checkpoint, NAMES, seq_length=LENGTH)
    head.network.set_weights(model.network.get_weights())
    assert np.abs(head.predict(LONG)["probabilities"] - model.predict(LONG)["probabilities"]).max() > 1e-4


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"truncation": "head"}, "truncation is 'head'"),
        ({"truncation": "tail", "doc_stride": 6}, "truncation.*doc_stride"),
        ({"truncation": "tail", "text": ("a", "b")}, "reads the pair a, b"),
    ],
)
def test_truncation_that_cannot_work_is_refused(settings, fact, checkpoint):
    with pytest.raises(BertKerasError, match=fact):
        bk.classifier(checkpoint, NAMES, seq_length=LENGTH, **settings)
