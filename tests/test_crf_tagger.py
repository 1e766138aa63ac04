"""A tagger with a CRF: the path runs over the words of a sentence, joined from its windows, in training and in decoding."""

import dataclasses
import itertools
import json

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf
from test_conll import LABELS, document_of, stacked
from test_crf import layer

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.checkpoints.labels import in_order
from bert_keras.features import EXAMPLE_INDEX, INPUT_MASK, INPUT_WORD_IDS, WORD_INDEX
from bert_keras.tasks.batches import dataset
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece

CRF_TASK = Tagging(LABELS, scheme="IOB2", doc_stride=8, crf=True, iob_constraints=True)
WORDS = (90, 7, 1, 31)  # of each document
OPTIONS = {"doc_stride": 8, "seq_length": 24, "crf": True, "iob_constraints": True}


@pytest.fixture(scope="module")
def crf():
    return layer(LABELS, seed=1, iob=True)


def potentials_of(crf, features) -> tf.Tensor:
    """Potentials [..., S + 2 + C, C] of features [..., S]: the emissions of a token differ in each of its windows."""
    ids = tf.cast(features[INPUT_WORD_IDS], tf.float32)
    window = tf.reduce_sum(ids, axis=-1, keepdims=True)
    emissions = 3 * tf.sin((ids + 0.01 * window)[..., tf.newaxis] * tf.range(1.0, len(LABELS) + 1))
    rows = tf.reshape(emissions, [-1, tf.shape(ids)[-1], len(LABELS)])
    made = crf(rows)
    return tf.reshape(made, tf.concat([tf.shape(ids)[:-1], tf.shape(made)[1:]], axis=0))


def sentences_by_hand(crf, raw, features):
    """The potentials of all sentences [M, ...], the mask of their words with a token, and the tags of all words [M].

    The window of a word is the one that shows its first token, by the features.
    """
    potentials, index = potentials_of(crf, features).numpy(), features[WORD_INDEX].numpy()
    words, tags = [], []
    for example, text in enumerate(raw["tags"].numpy()):
        numbers = itertools.count()
        own = features[EXAMPLE_INDEX].numpy()[:, None] == example
        for row in text.decode().split("\n"):
            tags.append(row.split(" "))
            words.append([np.argwhere((index == next(numbers)) & own) for _ in tags[-1]])
    assert {len(shown) for row in words for shown in row} == {0, 1}
    longest = max(map(len, words))
    emissions, mask = (
        np.zeros((len(words), longest, len(LABELS)), "float32"),
        np.zeros((len(words), longest), bool),
    )
    for i, row in enumerate(words):
        for j, shown in enumerate(row):
            if len(shown):
                emissions[i, j], mask[i, j] = potentials[tuple(shown[0])], True
    return crf(emissions), mask, tags


@pytest.fixture(scope="module")
def documents():
    """Raw documents, one with a tag that is not known, and their windows."""
    raw = stacked(*(document_of(count, seed=seed) for seed, count in enumerate(WORDS)))
    raw["tags"] = tf.strings.regex_replace(raw["tags"], "^O", "B-ORG")
    preprocess = Preprocessor(WordPiece(runs.VOCABULARY), seq_length=24, pad_to_longest=True)
    return raw, preprocess, CRF_TASK.features(preprocess, raw)


def test_the_loss_is_the_mean_over_sentences_joined_from_windows(crf, documents):
    raw, preprocess, windows = documents
    potentials, mask, tags = sentences_by_hand(crf, raw, windows)
    gold = np.full(mask.shape, -1)
    for row, given in zip(gold, tags, strict=True):
        row[: len(given)] = [LABELS.index(tag) if tag in LABELS else -1 for tag in given]
    wanted = -bk.CRF.log_likelihood(potentials, gold, mask).numpy()
    examples, sums = tf.data.Dataset.from_tensor_slices(raw), []
    for batch_size in (2, len(WORDS)):
        for features, labels, weights in dataset(CRF_TASK, preprocess, examples, batch_size=batch_size):
            assert features[INPUT_MASK].shape == labels.shape and tf.reduce_all(
                features[INPUT_MASK][..., 0] > 0
            )
            mean = CRF_TASK.loss()(labels, potentials_of(crf, features), weights)
            sums.append((float(mean) * float(tf.reduce_sum(weights)), float(tf.reduce_sum(weights))))
    assert len(sums) == 3 and len(windows[EXAMPLE_INDEX]) > 2 * len(WORDS)
    assert sums[-1][1] == mask.any(axis=1).sum() > 20  # a sentence without a token has no path
    np.testing.assert_allclose(sums[-1][0], wanted.sum(), rtol=1e-5)
    np.testing.assert_allclose(np.sum(sums[:2], axis=0), sums[-1], rtol=1e-5)


def test_answers_are_the_best_paths_and_scores_their_marginals(crf, documents):
    raw, _, windows = documents
    answers = CRF_TASK.decode(potentials_of(crf, windows), windows, raw)
    potentials, mask, tags = sentences_by_hand(crf, raw, windows)
    paths, marginals = bk.CRF.best_paths(potentials, mask).numpy(), bk.CRF.marginals(potentials, mask).numpy()
    wanted, entities = [], []
    for given, path, marginal in zip(tags, paths, marginals, strict=True):
        wanted.append(" ".join("O" if tag < 0 else LABELS[tag] for tag in path[: len(given)]))
        before = 0
        for tag, score in zip(path, marginal, strict=True):
            if tag > 0:  # a word without a token, which is O, cuts an entity
                entities += [[]] if LABELS[tag].startswith("B-") or before < 1 else []
                entities[-1] = [*entities[-1], score[tag]]
            before = tag
    found = [row for text in answers["tags"].numpy() for row in text.decode().split("\n")]
    assert found == wanted and any("I-PER" in row for row in wanted)
    scores = answers["entity_score"].numpy()[answers["entity_start_byte"].numpy() >= 0]
    np.testing.assert_allclose(scores, [np.mean(entity) for entity in entities], rtol=1e-5)


def test_no_text_and_texts_without_words_have_no_path(crf, documents):
    _, preprocess, _ = documents
    for texts in ([], [""], ["", "\u200b"], ["the film"]):
        raw = {"text": tf.constant(texts, tf.string)}
        features = CRF_TASK.features(preprocess, raw)
        answers = CRF_TASK.decode(potentials_of(crf, features), features, raw)
        assert len(answers["tags"]) == len(texts)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_files_bring_the_tagger_back(tiny, tmp_path):
    model = bk.tagger(tiny, ["PER", "LOC"], **OPTIONS)
    for weight in model.network.get_layer("crf").weights:
        weight.assign(keras.random.normal(weight.shape, seed=1))
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "run")
    own = ["crf/end", "crf/start", "crf/transitions"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["own_weights"] == own
    for name in ("m.keras", "run"):
        again = bk.load(tmp_path / name)
        assert again.problem.to_json() == model.problem.to_json()
        for one, other in zip(model.network.weights, again.network.weights, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{name}: {one.path}")
    for form in ("google", "keras-hub", "model-garden"):
        with pytest.raises(bk.BertKerasError, match=f"{form} has no place for crf/end"):
            checkpoints.write(checkpoints.read(tmp_path / "run"), tmp_path / form, format=form)


def test_a_new_training_takes_the_crf_of_a_tagger_that_has_one(tiny, tmp_path):
    """A kept head without a CRF starts with transitions of 0."""
    names = {}
    for crf in (True, False):
        model = bk.tagger(tiny, ["PER", "LOC"], **OPTIONS | {"crf": crf, "iob_constraints": False})
        layers = [one for one in model.network.layers if one.name in ("classifier", "crf")]
        for weight in itertools.chain(*(one.weights for one in layers)):
            weight.assign(keras.random.normal(weight.shape, seed=1))
        model.save(tmp_path / str(crf))
        again = bk.tagger(tmp_path / str(crf), ["PER", "LOC"], crf=True).network
        for one in layers:
            for weight, other in zip(one.weights, again.get_layer(one.name).weights, strict=True):
                np.testing.assert_array_equal(weight, other, err_msg=one.path)
        names[crf] = np.abs(again.get_layer("crf").transitions).max()
    assert names[True] > 0 == names[False]


@pytest.mark.long
def test_a_bilstm_learns_with_a_crf(tiny):
    """On stored vectors, of documents with several windows; the encoder stays as it is."""
    model = bk.tagger(
        tiny, ["PER"], **OPTIONS, feature_layers="0,1", lstm_layers=1, lstm_units=4, lstm_dropout=0.0
    )
    words = [["the", "actor", "is", *["very"] * (9 * i), "good"] for i in range(6)]
    tags = [["O", "B-PER", *["O"] * (len(row) - 2)] for row in words]
    model.compile(learning_rate=0.05)
    losses = model.fit(words, tags, batch_size=3, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2
    learned = np.abs(model.network.get_layer("crf").transitions) > 0
    assert learned.tolist() == [[True, True, False], [True] * 3, [True] * 3]  # no path has "O", "I-PER"
    assert [len(row.split()) for row in model.predict(words, verbose=0)["tags"]] == [*map(len, words)]


def test_a_crf_follows_the_order_of_the_tags(tiny):
    draw = np.random.default_rng(0)
    tensors = {"classifier/dense/bias": draw.normal(size=3), "crf/transitions": draw.normal(size=(3, 3))}
    source = checkpoints.read(tiny)
    given = dataclasses.replace(
        source, tensors=source.tensors | tensors | {"crf/end": tensors["classifier/dense/bias"]}
    )
    made = in_order(given, "classifier", [2, 0, 1], ["c", "a", "b"])
    np.testing.assert_array_equal(made.tensors["crf/end"], tensors["classifier/dense/bias"][[2, 0, 1]])
    np.testing.assert_array_equal(
        made.tensors["crf/transitions"], tensors["crf/transitions"][np.ix_([2, 0, 1], [2, 0, 1])]
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda folder: bk.tagger(folder, ["PER"], iob_constraints=True),
            "iob_constraints .*False without crf",
        ),
        (
            lambda folder: bk.tagger(folder, ["PER"], crf=True).compile(metrics=[keras.metrics.AUC()]),
            "metric auc: a CRF .*evaluate gives f1, precision, recall, accuracy",
        ),
    ],
)
def test_settings_that_cannot_work(make, words, tiny):
    with pytest.raises(bk.BertKerasError, match=words):
        make(tiny)
