"""Models, runs and predictions in a notebook, and predictions as data frames: values, order, index, and names that are HTML."""

import copy
import pickle
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import runs
import tensorflow as tf

import bert_keras as bk
from bert_keras.cli.console import shows_bars
from bert_keras.errors import MissingPackageError
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.strings.predictions import Predictions

pandas = pytest.importorskip("pandas")
HOSTILE = '<script>alert("1")</script>'
INDEX = [7, 3, 9]
TEXTS = ["good film", "", f"{HOSTILE} warm"]
PAIRS = [("is it good", "the film is warm"), ("is it dull", "the plot, the actor"), ("what", HOSTILE)]


@pytest.fixture(scope="module")
def classifier(tiny):
    return bk.classifier(tiny, ["bad", HOSTILE], seq_length=16)


@pytest.fixture(scope="module")
def predictions(classifier):
    return classifier.predict(pandas.Series(TEXTS, index=INDEX))


@pytest.fixture(scope="module")
def answers(tiny):
    model = bk.question_answerer(tiny, seq_length=32, max_query_length=8, n_best=2)
    return model.predict(pandas.DataFrame(PAIRS, columns=["question", "context"], index=INDEX))


@pytest.fixture(scope="module")
def entities(tiny):
    """Of three texts with two entities, none and one."""
    model = bk.tagger(tiny, ["PER"], seq_length=16)
    start = np.array([[0, 5], [-1, -1], [0, -1]])
    end = start + 4 * (start >= 0)
    arrays = {
        "entity_text": np.array([["good", "film"], ["", ""], ["warm", ""]], object),
        "entity_label": np.array([["PER", "PER"], ["", ""], ["PER", ""]], object),
        "entity_score": np.array([[0.5, 0.25], [0, 0], [0.75, 0]]),
        **{"entity_start": start, "entity_start_byte": start, "entity_end": end, "entity_end_byte": end},
        "tags": np.array(["B-PER B-PER", "O", "B-PER"], object),
    }
    texts = {"text": np.array([b"good film", b"dull", b"warm"], object)}
    return Predictions(arrays, model.problem, texts, pandas.Index(INDEX))


def test_a_frame_has_a_row_for_each_text_with_its_index_and_a_column_for_each_label(predictions):
    frame = predictions.frame()
    assert frame.index.tolist() == INDEX
    assert frame.columns.tolist() == ["label", "probability", "probability_bad", f"probability_{HOSTILE}"]
    assert frame["label"].tolist() == predictions["label"].tolist()
    np.testing.assert_allclose(frame.iloc[:, 2:], predictions["probabilities"], atol=1e-6)
    np.testing.assert_allclose(frame["probability"], predictions["probabilities"].max(1), atol=1e-6)


@pytest.mark.parametrize(
    "x, index", [(TEXTS, [0, 1]), (np.array(TEXTS), [0, 1]), ({"text": pandas.Series(TEXTS, INDEX)}, [7, 3])]
)
def test_texts_without_an_index_are_numbered_and_steps_cut_it(classifier, x, index):
    assert classifier.predict(x, batch_size=2, steps=1).frame().index.tolist() == index


def test_entities_are_rows_with_the_index_of_their_text(entities):
    frame = entities.frame("entity")
    assert frame.index.tolist() == [7, 7, 9]
    assert frame["text"].tolist() == ["good", "film", "warm"]
    assert frame["score"].tolist() == [0.5, 0.25, 0.75]
    assert entities.frame()["tags"].tolist() == ["B-PER B-PER", "O", "B-PER"]
    none = entities | {"entity_start_byte": np.full((3, 2), -1)}
    none = Predictions(none, entities._report, {}, entities._index).frame("entity")
    assert len(none) == 0 and [*none.columns] == [*frame.columns]


def test_the_n_best_answers_are_rows(answers):
    best, frame = answers.frame(), answers.frame("nbest")
    assert best.index.tolist() == INDEX and best["answer"].tolist() == answers["answer"].tolist()
    first = frame.groupby(level=0).first()
    assert first["answers"].to_dict() == best["answer"].to_dict()
    assert frame.index.value_counts().max() == 2


def test_the_fillings_of_masks_are_cells(tiny):
    with pytest.warns(UserWarning, match="no masked_lm head"):
        masked = bk.masked_lm(tiny)
    frame = masked.predict(["[MASK] film", "dull [MASK] [MASK]", "no mask"]).frame("mask")
    assert frame.index.tolist() == [0, 1, 1] and {*frame["tokens"].map(len)} == {5}


def test_what_cannot_become_a_frame_is_named(predictions, answers, monkeypatch):
    with pytest.raises(bk.BertKerasError, match="rows is 'entity'; the lists in these predictions are nbest"):
        answers.frame("entity")
    with pytest.raises(bk.BertKerasError, match="copied without their task"):
        tf.nest.map_structure(len, predictions).records()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="pip install pandas"):
        predictions.frame()


def test_predictions_are_a_dict_and_their_copies_plain(predictions):
    assert predictions == dict(predictions) and repr(predictions) == repr(dict(predictions))
    for made in (copy.deepcopy(predictions), pickle.loads(pickle.dumps(predictions))):
        assert type(made) is dict and made["label"].tolist() == predictions["label"].tolist()
    assert len(tf.data.Dataset.from_tensor_slices(predictions)) == 3


# -----------------------------------------------------------------------------------------------------------
# HTML


def rows_of(html):
    """The cells of each row, without tags, and no tag that a name brought."""
    assert "<script" not in html and not re.search(r"(?:href|src|url)\b", html)
    assert [*re.findall(r"#[0-9a-f]{3,6}\b", html)] == [], "a color of its own is wrong in a dark notebook"
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


ESCAPED = "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;"


def test_a_notebook_shows_a_model_with_its_last_measures(classifier, tiny):
    shown = dict(rows_of(classifier._repr_html_()))
    assert shown["labels"] == f"bad, {ESCAPED}" and shown["longest text"] == "16 tokens"
    assert shown["encoder"].startswith("1 layer of 48, ")
    trained = sum(one.numpy().size for one in classifier.trainable_variables)
    assert shown["parameters that train"] == f"{trained:,}"
    assert repr(classifier).startswith("<TextModel ")
    model = bk.classifier(tiny, ["a", "b"], seq_length=16)
    history = model.fit(TEXTS[:2], ["a", "b"], epochs=2, verbose=0).history
    assert ["loss", f"{history['loss'][-1]:.4f}"] in rows_of(model._repr_html_())


def test_a_notebook_shows_a_run_with_its_measures(sst2):
    shown = dict(rows_of(load_run(sst2.run)._repr_html_()))
    assert shown["accuracy"] == f"{runs.results(sst2.run)['measures']['val_accuracy']:.4f}"
    assert shown["task"] == "sst2 (text classification)" and shown["labels"] == "negative, positive"


def test_a_notebook_shows_predictions_beside_their_texts(classifier, predictions, answers, entities):
    head, *rows = rows_of(predictions._repr_html_())
    assert head == ["text", "label", "probability"] and rows[2][0] == f"{ESCAPED} warm"
    assert [row[1] for row in rows] == [str(one).replace(HOSTILE, ESCAPED) for one in predictions["label"]]
    assert rows_of(entities._repr_html_())[1:] == [["[good PER] [film PER]"], ["dull"], ["[warm PER]"]]
    assert rows_of(answers._repr_html_())[1][0] == "is it good"
    many = classifier.predict(["good"] * 12)._repr_html_()
    assert len(rows_of(many)) == 11 and "predictions for 12 texts, the first 10" in many


def test_a_model_without_a_vocabulary_has_its_repr_alone(classifier):
    assert type(classifier).from_config(classifier.get_config())._repr_html_() is None


class OutStream(SimpleNamespace):
    """Stands in for a notebook's stream."""

    def isatty(self):
        return False


@pytest.mark.parametrize("module, bars", [("ipykernel.iostream", True), ("tests", False)])
def test_a_notebook_shows_bars(monkeypatch, module, bars):
    monkeypatch.setattr(OutStream, "__module__", module)
    assert shows_bars(OutStream()) is bars
