"""Rerankers: forms of training data, the loss, measures, the folders of sentence-transformers, and errors."""

import json

import keras
import numpy as np
import pytest
from random_checkpoints import random_checkpoint, refused, with_vocabulary
from runs import texts, write_checkpoint
from small_tasks import write_columns

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.optimization.losses import candidate_loss
from bert_keras.tasks.problems.reranking import Reranker
from bert_keras.tasks.retrieval.text_encoder import load_text_encoder

QUERIES, POSITIVES, NEGATIVES = (
    [f"{text} {i}" for i, text in enumerate(texts(12, seed=seed))] for seed in range(3)
)
PAIRS = {"query": QUERIES, "text": POSITIVES}
GROUPS = {"query": QUERIES, "positive": POSITIVES, "negative": NEGATIVES, "negative_2": NEGATIVES[::-1]}
LABELS = [1, 0] * 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranking") / "checkpoint"
    return str(write_checkpoint(folder, num_layers=1, hidden_dropout=0.0, attention_dropout=0.0))


# -----------------------------------------------------------------------------------------------------------
# Learning


def softmax_loss(logits):
    """The definition: -log of the softmax of the first."""
    return np.log(np.exp(logits).sum(axis=1)) - logits[:, 0]


def test_the_loss_is_that_of_its_definition():
    logits = np.random.default_rng(0).standard_normal([6, 3]).astype("float32")
    first = np.zeros(6, "int32")
    np.testing.assert_allclose(candidate_loss(first, logits[..., None]), softmax_loss(logits), rtol=1e-5)
    two = candidate_loss(
        first, logits[:, :2, None]
    )  # Burges et al. 2005: the logistic loss of the difference
    np.testing.assert_allclose(two, np.log1p(np.exp(logits[:, 1] - logits[:, 0])), rtol=1e-5)
    labels, one = np.float32([0, 1, 0.25, 1, 0, 1]), logits[:, :1, None]
    p = 1 / (1 + np.exp(-logits[:, 0]))
    wanted = -labels * np.log(p) - (1 - labels) * np.log(1 - p)
    np.testing.assert_allclose(candidate_loss(labels, one), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "measures"),
    [(PAIRS, LABELS, {"average_precision", "accuracy"}), (GROUPS, None, {"mrr", "accuracy"})],
)
def test_fit_learns_from_each_form(x, y, measures, checkpoint):
    keras.utils.set_random_seed(1)
    model = bk.reranker(checkpoint)
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    assert {*before} == {"loss"} | measures
    model.compile(learning_rate=2e-3)
    model.fit(x, y, batch_size=6, epochs=6, verbose=0)
    assert model.evaluate(x, y, verbose=0, return_dict=True)["loss"] < before["loss"]
    scores = model.predict(PAIRS, verbose=0)["score"]
    assert scores.shape == (12,) and scores.dtype == np.float32 and (scores > 0).all() and (scores < 1).all()
    ranked = model.rank("good film", POSITIVES, top_k=5)
    assert len(ranked) == 5 and [one["score"] for one in ranked] == sorted(
        (one["score"] for one in ranked), reverse=True
    )
    assert all(POSITIVES[one["index"]] == one["text"] for one in ranked)


def test_measures_are_those_of_their_definitions():
    task = Reranker()
    score = np.float32(
        [[0.9, 0.1, 0.2], [0.5, 0.5, 0.1], [0.1, 0.2, 0.3]]
    )  # ranks 1, 2 (of equal scores the last), 3
    found = dict(task.evaluate({"score": score}, {"text": score}))
    assert found == pytest.approx({"mrr": (1 + 1 / 2 + 1 / 3) / 3, "accuracy": 1 / 3})
    score, label = np.float32([[0.9], [0.8], [0.7], [0.2]]), np.float32([1, 0, 0.5, 0])
    found = dict(task.evaluate({"score": score}, {"text": score, "label": label}))
    assert found == pytest.approx({"average_precision": (1 + 2 / 3) / 2, "accuracy": 3 / 4})
    found = dict(
        Reranker(score_function="identity").evaluate({"score": score - 0.75}, {"text": score, "label": label})
    )
    assert found["accuracy"] == 2 / 4


@pytest.mark.parametrize("labels", [{"label": np.float32([1, 0, 1, 0])}, {}])
def test_one_score_for_all_texts_is_degenerate(labels):
    task, shape = Reranker(), (4, 1 if labels else 3)
    task.measure, raw = ("average_precision" if labels else "mrr"), {"text": np.zeros(shape)} | labels
    assert "one score for all texts" in task.degenerate({"score": np.full(shape, 0.3, "float32")}, raw)
    best = np.broadcast_to([[0.9], [0.1]] * 2 if labels else [[0.9, 0.1, 0.2]], shape)
    assert task.degenerate({"score": best}, raw) is None


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (PAIRS, None, "without labels; give y"),
        (PAIRS, [2, *LABELS[1:]], "label 2 in row 0; give 1"),
        (PAIRS, [-0.5, *LABELS[1:]], "label -0.5 in row 0"),
        (PAIRS, ["a"] * 12, "score in row 0"),
        (PAIRS, [1] * 12, "all 12 scores are 1"),
        (PAIRS | {"text": [*POSITIVES[:11], " "]}, LABELS, "row 11: a text of the pair is empty"),
        (GROUPS | {"query": ["", *QUERIES[1:]]}, None, "row 0: query is empty"),
        (GROUPS | {"negative": [*NEGATIVES[:11], ""]}, None, "row 11: negative is empty"),
        ({"query": QUERIES, "positive": POSITIVES}, None, "each query has one candidate"),
        (QUERIES, POSITIVES, "the model reads query, text"),
    ],
)
def test_bad_input_is_refused(x, y, message, checkpoint):
    refused(message, Reranker().labelled, x, y)


def test_bad_files_are_refused_before_the_training(tmp_path, checkpoint, capsys):
    for columns, message in [
        ({"query": QUERIES, "text": POSITIVES, "label": [3] * 11 + [0]}, "train.jsonl: label 3 in row 0"),
        ({"query": QUERIES, "positive": POSITIVES}, "train.jsonl: each query has one candidate"),
        ({"text": POSITIVES, "label": LABELS}, "train.jsonl: reranking reads a query and a text"),
    ]:
        write_columns(tmp_path / "train.jsonl", columns)
        task = Reranker(source={"train": str(tmp_path / "train.jsonl")})
        refused(message, task.examples, "train")
    refused("rank.. scores texts for a query", bk.embedder(checkpoint).rank, "a", ["b"])
    refused("the query is ' '", bk.reranker(checkpoint).rank, " ", ["b"])


# -----------------------------------------------------------------------------------------------------------
# Folders of sentence-transformers


def write_cross_encoder(path, *, settings=None, **config):
    """settings: config_sentence_transformers.json of version 6"""
    checkpoint = with_vocabulary(random_checkpoint(heads=("classifier",)), lower_case=True)
    tensors = {
        name: value[..., :1] if name.startswith("classifier/") else value
        for name, value in checkpoint.tensors.items()
    }
    made = checkpoint.__class__(config=checkpoint.config, tensors=tensors, vocabulary=checkpoint.vocabulary)
    checkpoints.write(made, path, format="hugging-face", overwrite=True)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    if settings is not None:
        (path / "modules.json").write_text(
            json.dumps([{"idx": 0, "name": "0", "path": "", "type": TRANSFORMER}])
        )
        (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
        (path / "sentence_bert_config.json").write_text(json.dumps(SEQUENCE))
    return path


TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
LOGITS = {"text": {"method": "forward", "method_output_name": "logits"}}
SEQUENCE = {
    "transformer_task": "sequence-classification",
    "modality_config": LOGITS,
    "module_output_name": "scores",
}
NAMED = "torch.nn.modules.activation.{}"
OLD = "sbert_ce_default_activation_function"
FILES = {
    "default": ({}, {}, True),
    "old": ({OLD: "torch.nn.modules.linear.Identity"}, {}, False),
    "version 4": (
        {"sentence_transformers": {"activation_fn": NAMED.format("Sigmoid"), "version": "4.1.0"}},
        {},
        True,
    ),
    "version 6": (
        {},
        {"activation_fn": "torch.nn.modules.linear.Identity", "model_type": "CrossEncoder"},
        False,
    ),
}
SHORT = {"query": ["a b", "unable", "a"], "text": ["b a b", "a", "a b a b a b a b a b"]}


@pytest.mark.parametrize("name", FILES)
def test_a_folder_says_the_function_of_its_score(name, tmp_path):
    config, settings, sigmoid = FILES[name]
    path = write_cross_encoder(tmp_path / "ce", settings=settings or None, **config)
    model = bk.reranker(path)
    assert model.problem.sigmoid is sigmoid and Reranker.from_json(model.problem.to_json()).sigmoid is sigmoid
    logits = np.asarray(model(SHORT))[:, 0]
    wanted = 1 / (1 + np.exp(-logits)) if sigmoid else logits
    np.testing.assert_allclose(model.predict(SHORT, verbose=0)["score"], wanted, rtol=1e-5)
    assert bk.reranker(path, keep_head=False).problem.sigmoid
    assert (bk.classifier(path).problem.label_type == "score") == (name == "default" or not sigmoid)
    model.save(tmp_path / "run")
    assert bk.reranker(tmp_path / "run").problem.sigmoid is sigmoid
    if name != "default":
        refused("is a cross-encoder", load_text_encoder, path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "config_sentence_transformers.json",
            {"activation_fn": NAMED.format("Tanh")},
            "the score is made by 'tanh'",
        ),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "the default prompt 'q'"),
        (
            "modules.json",
            [{"type": f"a.{name}", "path": ""} for name in ("Transformer", "LogitScore")],
            "the module 'a.LogitScore'",
        ),
    ],
)
def test_scores_that_are_made_in_another_way_are_refused(file, content, message, tmp_path):
    path = write_cross_encoder(tmp_path / "ce", settings={})
    (path / file).write_text(json.dumps(content))
    refused(message, bk.reranker, path)


@pytest.mark.parity
@pytest.mark.parametrize("name", FILES)
def test_scores_are_those_of_sentence_transformers(name, tmp_path):
    cross = pytest.importorskip("sentence_transformers").CrossEncoder
    config, settings, _ = FILES[name]
    path = write_cross_encoder(tmp_path / "ce", settings=settings or None, **config)
    pairs = [*zip(*SHORT.values(), strict=True)]
    for folder in (path, tmp_path / "again"):
        other = cross(str(folder))
        np.testing.assert_allclose(
            bk.reranker(folder).predict(SHORT, verbose=0)["score"], other.predict(pairs), atol=1e-5
        )
        if folder == path:
            other.save_pretrained(str(tmp_path / "again"))
    ours, theirs = bk.reranker(path).rank("a b", SHORT["text"]), cross(str(path)).rank("a b", SHORT["text"])
    assert [one["index"] for one in ours] == [one["corpus_id"] for one in theirs]


def test_the_folder_of_an_embedder_is_refused(checkpoint, tmp_path):
    bk.embedder(checkpoint).save(tmp_path / "run")
    refused("the module '.*Pooling'; a reranker", bk.reranker, tmp_path / "run")


@pytest.mark.parity
@pytest.mark.parametrize("name", ["version 4", "version 6"])
def test_a_trained_run_is_read_by_sentence_transformers(name, tmp_path):
    cross = pytest.importorskip("sentence_transformers").CrossEncoder
    config, settings, _ = FILES[name]
    path = write_cross_encoder(tmp_path / "ce", settings=settings or None, **config)
    # Room for 6 tokens of two texts: of an odd room, tokenizers gives the longer text one more.
    model = bk.reranker(path, seq_length=9)
    with pytest.warns(UserWarning, match="are cut"):
        model.fit(PAIRS, LABELS, verbose=0)
    model.save(tmp_path / "run")
    wanted = cross(str(tmp_path / "run")).predict([*zip(*PAIRS.values(), strict=True)])
    np.testing.assert_allclose(model.predict(PAIRS, verbose=0)["score"], wanted, atol=1e-5)
