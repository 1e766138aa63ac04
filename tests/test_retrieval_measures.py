"""Measures of text vectors, against their definitions and trec_eval."""

import json

import numpy as np
import pytest
import runs
from random_checkpoints import refused
from runs import run_command

from bert_keras.tasks.retrieval import measures
from bert_keras.tasks.retrieval.measured import measure_clustering, measure_pairs, read_judged
from bert_keras.tasks.retrieval.text_encoder import TextEncoder, load_text_encoder

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
    assert measures.pair_measures(np.array([0.9, 0.8, 0.1]), np.array([1, 0, 1])) == {
        "average_precision": pytest.approx((1 + 2 / 3) / 2)
    }
    assert measures.similarity_measures(np.array([1.0, 2.0, 9.0]), np.array([1.0, 2.0, 3.0]))["spearman"] == 1
    vectors = np.concatenate([np.eye(4)[[i]] + np.linspace(0, 0.1, 6)[:, None] for i in range(3)])
    labels = np.repeat(["a", "b", "c"], 6)
    assert measures.clustering_measures(vectors, labels) == {"v_measure": pytest.approx(1)}
    assert measures.clustering_measures(vectors, np.tile(["a", "b"], 9))["v_measure"] < 0.1


def test_intervals_hold_the_value():
    values = np.arange(50) / 50
    found = measures.with_intervals(lambda rows: {"mean": float(values[rows].mean())}, 50)["mean"]
    assert found["value"] == pytest.approx(0.49)
    assert found["low"] < found["value"] < found["high"]
    assert 0.1 < found["high"] - found["low"] < 0.25


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
    code, out, err = run_command(capfd, "measure", "retrieval", *flags)
    assert code == 0, err
    found = json.loads(out)
    # d9 is left out of its own ranking, and q0 has a relevant text that the corpus lacks.
    assert found["recall@1"]["value"] == pytest.approx((5 + 1 / 2) / 7)
    assert found["mrr@10"]["value"] == pytest.approx(6 / 7)
    assert found["mrr@10"]["low"] < found["mrr@10"]["value"] <= found["mrr@10"]["high"]
    assert {*found} == {"ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100", "map@100"}


def test_tables_of_pairs_and_classes(folder, tmp_path, capfd):
    texts = runs.texts(12, seed=6)
    rows = [{"a": one, "b": one if i % 2 else texts[-1 - i], "label": i % 2} for i, one in enumerate(texts)]
    (table := tmp_path / "pairs.jsonl").write_text(lines(rows))
    encoder = TextEncoder(load_text_encoder(folder / "checkpoint"), similarity="cosine")
    pair = {"text": ("a", "b"), "label": "label"}
    assert measure_pairs(encoder, table, **pair, scored=False)["average_precision"]["value"] == pytest.approx(
        1
    )
    found = measure_pairs(encoder, table, **pair, scored=True)
    assert {*found} == {"spearman", "pearson"} and found["pearson"]["low"] > 0.2
    assert 0 <= measure_clustering(encoder, table, text="a", label="label")["v_measure"]["value"] <= 1
    refused("no column 'c'", measure_clustering, encoder, table, text="a", label="c")
    refused(
        "has a value that is no number",
        measure_pairs,
        encoder,
        table,
        text=("a", "a"),
        label="b",
        scored=True,
    )
    (table := tmp_path / "scores.csv").write_text("a,b,label\nx,y,0.5\n")
    refused("has the values 0.5; give 0 and 1, and both", measure_pairs, encoder, table, **pair, scored=False)
    flags = ["--model", folder / "checkpoint", "--data", table, "--text-column", "a"]
    for words, message in [
        (["retrieval", *flags], "leave --text-column and --label-column out"),
        (["pairs", *flags], "pairs reads 2 text column(s), and 1 were given"),
        (["clustering", *flags, "--vectors", "int8"], "apply only to retrieval"),
    ]:
        code, _, err = run_command(capfd, "measure", *words)
        assert code == 1 and message in err, err


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
