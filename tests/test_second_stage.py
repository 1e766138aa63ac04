"""A reranker as the second stage of a search: in the commands, in the measures and in an export."""

import json

import forked
import keras
import numpy as np
import pytest
import runs
from random_checkpoints import refused
from runs import run_command

import bert_keras as bk
from bert_keras.savedmodels import verify
from bert_keras.savedmodels.export import export
from bert_keras.tasks.retrieval.collection import Collection
from bert_keras.tasks.retrieval.index import open_index, texts_to_rerank, write_index
from bert_keras.tasks.retrieval.search_task import make_search
from bert_keras.tasks.retrieval.second_stage import load_reranker
from bert_keras.tasks.retrieval.text_encoder import TextEncoder, load_text_encoder

TEXTS = [f"{text} {i}" for i, text in enumerate(runs.texts(12, seed=1))]
QUERIES = [TEXTS[3], "a good film"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with an embedding's run, a BEIR folder, its index, and a reranker's run of random weights."""
    folder = tmp_path_factory.mktemp("second")
    keras.utils.set_random_seed(2)
    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    bk.reranker(folder / "checkpoint").save(folder / "reranker")
    bk.embedder(folder / "checkpoint").save(folder / "embedding")
    beir = folder / "beir"
    (beir / "qrels").mkdir(parents=True)
    for name, ids, texts in (("corpus", "d", TEXTS), ("queries", "q", QUERIES)):
        lines = [json.dumps({"_id": f"{ids}{i}", "text": text}) for i, text in enumerate(texts)]
        (beir / f"{name}.jsonl").write_text("\n".join(lines))
    (beir / "qrels" / "test.tsv").write_text("query\tdoc\tscore\nq0\td3\t1\nq1\td5\t1\n")
    encoder = TextEncoder(load_text_encoder(folder / "embedding"), similarity="cosine")
    write_index(folder / "index", encoder, Collection(beir))
    return folder


def by_hand(made, query, *, rerank, k):
    """The definition: the nearest texts in the order of the reranker's scores."""
    index = open_index(made / "index")
    vector = TextEncoder(load_text_encoder(made / "embedding"), similarity="cosine")([query])[0]
    everything = np.argsort(-(index.vectors() @ vector), kind="stable")
    nearest = everything[:rerank]
    scores = bk.load(made / "reranker").predict(
        {"query": [query] * rerank, "text": [TEXTS[row] for row in nearest]}, verbose=0
    )["score"]
    order = np.argsort(-scores, kind="stable")[:k]
    return [f"d{row}" for row in nearest[order]], scores[order], [f"d{row}" for row in everything]


def test_a_search_puts_the_nearest_in_the_order_of_the_scores(made, capfd):
    flags = ("--reranker", made / "reranker", "--rerank", "6", "--k", "4", "--json")
    code, out, err = run_command(capfd, "search", made / "index", *QUERIES, *flags)
    assert code == 0, err
    for line, query in zip(out.splitlines(), QUERIES, strict=True):
        ids, scores, before = by_hand(made, query, rerank=6, k=4)
        found = json.loads(line)["results"]
        assert [one["id"] for one in found] == ids != before[:4]
        np.testing.assert_allclose([one["score"] for one in found], scores, atol=1e-6)


@pytest.mark.long
def test_an_export_answers_in_a_fresh_process_as_the_search_does(made, tmp_path):
    run = make_search(made / "index", k=4, reranker=made / "reranker", rerank=6)
    assert run.task.to_json()["rerank"] == 6
    with forked.publishing():
        folder = export(run, tmp_path / "served")
        answers = verify.ask(folder, {"text": QUERIES})
    for i, query in enumerate(QUERIES):
        ids, scores, _ = by_hand(made, query, rerank=6, k=4)
        assert answers["id"][i] == ids
        np.testing.assert_allclose(answers["score"][i], scores, atol=1e-6)
        assert answers["text"][i] == [TEXTS[int(one[1:])] for one in ids]


def test_measures_are_those_of_the_new_order(made, capfd):
    flags = ("--model", made / "embedding", "--data", made / "beir", "--index", made / "index", "--json")
    flags = (*flags, "--reranker", made / "reranker", "--rerank", "6")
    code, out, err = run_command(capfd, "measure", *flags)
    assert code == 0, err
    ranks = []
    for query, judged in zip(QUERIES, ("d3", "d5"), strict=True):
        first, _, nearest = by_hand(made, query, rerank=6, k=6)
        ranks.append([*first, *nearest[6:]].index(judged) + 1)
    wanted = np.mean([1 / rank if rank <= 10 else 0 for rank in ranks])
    assert json.loads(out)["mrr@10"]["value"] == pytest.approx(wanted)


def test_the_number_of_texts_to_rerank():
    assert [texts_to_rerank(None, k=k, count=count) for k, count in ((10, 100), (60, 100), (5, 20))] == [
        50,
        60,
        20,
    ]
    assert texts_to_rerank(7, k=7, count=7) == 7
    refused("rerank is 4, k is 5 and there are 20 texts; give 5 to 20", texts_to_rerank, 4, k=5, count=20)
    refused("rerank is 21", texts_to_rerank, 21, k=5, count=20)


def test_other_models_are_refused(made):
    refused("is a model of embedding, which scores no text for a query", load_reranker, made / "embedding")
    refused("is a model of reranking, which gives no vectors", load_text_encoder, made / "reranker")
    refused("has no head of reranking", load_reranker, made / "checkpoint")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "index", "a", "--rerank", "5"], "--rerank applies only to a reranker"),
        (
            ["search", "index", "a", "--reranker", "reranker", "--rerank", "13"],
            "there are 12 texts; give 10 to 12",
        ),
        (["search", "index", "a", "--reranker", "reranker", "--rerank", "5"], "rerank is 5, k is 10"),
        (["search", "index", "a", "--reranker", "./nothing"], "nothing"),
        (["export", "--run", "reranker", "--reranker", "reranker", "--output", "out"], "only to a search"),
        (
            ["measure", "--model", "embedding", "--data", "beir", "--reranker", "reranker", "--rerank", "99"],
            "12 texts",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(words, message, made, monkeypatch, capfd):
    monkeypatch.chdir(made)
    code, _, err = run_command(capfd, *words)
    assert code == 1 and message in err, err
