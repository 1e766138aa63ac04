"""Measures of text vectors, against their definitions and trec_eval."""

import json
import shutil

import numpy as np
import pytest
import runs
from random_checkpoints import refused
from runs import run_command

from bert_keras.tasks.problems.vector_measures import evaluate_vectors
from bert_keras.tasks.retrieval import measures
from bert_keras.tasks.retrieval.measured import read_judged

# Relevance of the found texts by rank, and of the judged texts.
FOUND = np.array([[0, 2, 0, 1], [0, 0, 0, 0], [3, 0, 0, -1], [0, 0, 0, 0]])
JUDGED = np.array([[2, 1, 0, 1], [1, 0, 0, 0], [-1, 3, 0, 0], [0, 0, 0, 0]])


def test_measures_by_hand():
    found = measures.ranking_measures(
        FOUND, JUDGED, at={"mrr": (1, 4), "recall": (2,), "map": (4,), "ndcg": (3,)}
    )
    gain = 2 / np.log2(3) / (2 + 1 / np.log2(3) + 1 / np.log2(4))
    expected = {
        "mrr@1": [0, 0, 1, 0],
        "mrr@4": [1 / 2, 0, 1, 0],
        "recall@2": [1 / 3, 0, 1, 0],
        "map@4": [(1 / 2 + 2 / 4) / 3, 0, 1, 0],
        "ndcg@3": [gain, 0, 1, 0],
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, err_msg=name)


@pytest.mark.parity
def test_measures_are_those_of_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    draw = np.random.default_rng(0)
    at = {"ndcg": (1, 3, 10, 100), "recall": (1, 5, 100), "map": (1, 10, 100), "mrr": (100,)}
    theirs = {"ndcg": "ndcg_cut", "recall": "recall", "map": "map_cut"}
    asked = {f"{theirs[name]}.{','.join(map(str, ks))}" for name, ks in at.items() if name != "mrr"}
    judged, ranked, texts = {}, {}, [f"t{i}" for i in range(60)]
    for query in range(60):
        some = draw.choice(texts, draw.integers(1, 40), replace=False)
        judged[f"q{query}"] = {text: int(draw.choice([-1, 0, 1, 2, 3])) for text in some}
        order = draw.permutation(texts)[: draw.integers(10, 61)]
        ranked[f"q{query}"] = {text: float(len(order) - i) for i, text in enumerate(order)}
    wanted = pytrec_eval.RelevanceEvaluator(judged, asked | {"recip_rank"}).evaluate(ranked)
    found, of_query = np.zeros([60, 100], int), np.zeros([60, 40], int)
    for row, (query, scores) in enumerate(ranked.items()):
        found[row, : len(scores)] = [judged[query].get(text, 0) for text in scores]
        of_query[row, : len(judged[query])] = [*judged[query].values()]
    ours = measures.ranking_measures(found, of_query, at=at)
    assert len(ours) == 11
    for name, values in ours.items():
        kind, k = name.split("@")
        their_name = "recip_rank" if kind == "mrr" else f"{theirs[kind]}_{k}"
        expected = [wanted[query][their_name] for query in ranked]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9, err_msg=name)
        assert np.ptp(values) > 0


def test_pairs_scores_and_clusters():
    turned = np.array([[np.cos(angle), np.sin(angle)] for angle in (0.1, 0.2, 0.9)])
    vectors = np.stack([np.broadcast_to([1.0, 0.0], (3, 2)), turned], axis=1)
    texts = np.array([[b"a", b"b"]] * 3, object)
    found = dict(evaluate_vectors(vectors, {"text": texts, "label": np.float32([1, 0, 1])}))
    assert found["average_precision"] == pytest.approx((1 + 2 / 3) / 2)
    found = dict(evaluate_vectors(vectors, {"text": texts, "label": np.float32([9, 2, 1])}))
    assert {*found} == {"spearman", "pearson"} and found["spearman"] == pytest.approx(1)
    vectors = np.concatenate([np.eye(4)[[i]] + np.linspace(0, 0.1, 6)[:, None] for i in range(3)])[:, None]
    raw = {"text": np.array([[b"a"]] * 18, object), "label": np.repeat(np.int32([0, 1, 2]), 6)}
    assert dict(evaluate_vectors(vectors, raw))["v_measure"] == pytest.approx(1)
    raw["label"] = np.tile(np.int32([0, 1]), 9)
    assert dict(evaluate_vectors(vectors, raw))["v_measure"] < 0.1


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in BEIR's form: each query is a text of the corpus, and judged texts are equal to it."""
    folder = tmp_path_factory.mktemp("beir")
    texts = list(dict.fromkeys(runs.texts(40, seed=5)))[:30]
    (folder / "corpus.jsonl").write_text(
        lines({"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts))
    )
    queries = [{"_id": f"q{i}", "text": texts[i]} for i in range(6)] + [{"_id": "d9", "text": texts[9]}]
    (folder / "queries.jsonl").write_text(lines([*queries, {"_id": "unjudged", "text": "a"}]))
    (folder / "qrels").mkdir()
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(6)) + "d9\td9\t1\nq0\telsewhere\t1\n"
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    return folder


def test_command_of_retrieval(folder, capfd):
    flags = ["--model", folder / "checkpoint", "--data", folder, "--json"]
    code, out, err = run_command(capfd, "measure", *flags)
    assert code == 0, err
    found = json.loads(out)
    # d9 is left out of its own ranking, and q0 has a relevant text that the corpus lacks.
    assert found["recall@1"]["value"] == pytest.approx((5 + 1 / 2) / 7)
    assert found["mrr@10"]["value"] == pytest.approx(6 / 7)
    assert found["mrr@10"]["low"] < found["mrr@10"]["value"] <= found["mrr@10"]["high"]
    assert {*found} == {"ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100", "map@100"}


@pytest.mark.parametrize("form", ["pairs", "classes"])
def test_a_checkpoint_is_measured_without_training(form, folder, tmp_path, capfd):
    """The folder of a checkpoint, and the same as one of sentence-transformers."""
    texts = runs.texts(12, seed=6)
    rows = [
        {"sentence1": one, "sentence2": one if i % 2 else texts[-1 - i], "label": i % 2}
        for i, one in enumerate(texts)
    ]
    if form == "classes":
        rows = [{"text": row["sentence1"], "label": "ab"[row["label"]]} for row in rows]
    (table := tmp_path / "rows.jsonl").write_text(lines(rows))
    flags = ["--task", "embedding", "--data", table, "--label-column", "label", "--json"]
    model = folder / "checkpoint"
    if form == "pairs":
        model = shutil.copytree(model, tmp_path / "sentences")
        types = {"": "Transformer", "1_Pooling": "Pooling"}
        modules = [
            {"path": path, "type": f"sentence_transformers.models.{one}"} for path, one in types.items()
        ]
        (model / "modules.json").write_text(json.dumps(modules))
        (model / "1_Pooling").mkdir()
        (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    code, out, err = run_command(capfd, "evaluate", "--checkpoint", model, *flags)
    assert code == 0, err
    found = json.loads(out)["validation"]
    if form == "pairs":
        assert {*found} == {"spearman", "pearson", "average_precision"}
        assert found["average_precision"] == pytest.approx(1)
    else:
        assert {*found} == {"accuracy", "v_measure"} and 0 <= found["v_measure"] <= 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("query-id\tcorpus-id\tscore\nq0\td0\thigh\n", "line 2: the relevance is 'high'"),
        ("query-id\tcorpus-id\tscore\nq77\td0\t1\n", "lacks 1 of the 1 judged queries: q77"),
        ("query-id\tcorpus-id\nq0\td0\n", "has the columns query-id, corpus-id; give the id of a query"),
        ("query-id\tcorpus-id\tscore\n", "has no judgment"),
    ],
)
def test_bad_judgments(folder, content, message):
    (folder / "qrels" / "bad.tsv").write_text(content)
    refused(message, read_judged, folder, "bad")
    refused("has no qrels/dev.tsv; .* has bad.tsv, test.tsv", read_judged, folder, "dev")
