"""An index of texts, its search in NumPy's order, its resumption, and its export."""

import importlib.util
import json
import re
import shutil

import forked
import numpy as np
import pytest
import runs
import tensorflow as tf
from random_checkpoints import refused
from runs import run_command

import bert_keras as bk
from bert_keras.savedmodels import verify
from bert_keras.savedmodels.export import export
from bert_keras.tasks.retrieval import nearest
from bert_keras.tasks.retrieval.approximate import FILE, ApproximateNearest, write_graph
from bert_keras.tasks.retrieval.collection import Collection
from bert_keras.tasks.retrieval.index import open_index, write_index
from bert_keras.tasks.retrieval.nearest import Nearest, int8_recall, to_int8
from bert_keras.tasks.retrieval.search_task import make_search
from bert_keras.tasks.retrieval.text_encoder import TextEncoder, choose_similarity, load_text_encoder

TEXTS = runs.texts(21, seed=1)
TEXTS[7] = TEXTS[20] = TEXTS[3]
QUERIES = [TEXTS[3], "a good film", "very bad !"]
SHARD = 8  # texts: files of 8, 8 and 5


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a checkpoint, a collection and its index."""
    folder = tmp_path_factory.mktemp("search")
    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    lines = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_index(folder / "index", encoder_of(folder), Collection(folder), shard_texts=SHARD)
    return folder


def encoder_of(folder, similarity="cosine", **options):
    return TextEncoder(load_text_encoder(folder / "checkpoint"), similarity=similarity, **options)


def in_order(queries, vectors, k):
    """The definition: scores from high to low, ties by row."""
    scores = np.float64(queries) @ np.float64(vectors).T
    rows = np.argsort(-scores.round(12), axis=1, kind="stable")[:, :k]  # equal vectors have equal scores
    return np.take_along_axis(scores, rows, axis=1), rows


def read(folder):
    """The bytes of every file but the results, which name the versions and the command."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_nearest_vectors_over_several_blocks_are_those_of_numpy(dtype, monkeypatch):
    monkeypatch.setattr(nearest, "BLOCK", 7)
    draw = np.random.default_rng(0)
    vectors, queries = (draw.standard_normal([count, 6]).astype("float32") for count in (40, 3))
    vectors[[2, 11, 39]] = vectors[25]
    queries[1] = vectors[25]
    values = vectors if dtype == "float32" else to_int8(vectors)[0] * np.float64(to_int8(vectors)[1][:, None])
    for k in (1, 5, 40):
        scores, rows = Nearest(vectors, k=k, dtype=dtype).search(queries)
        wanted, order = in_order(queries, values, k)
        np.testing.assert_array_equal(rows, order)
        np.testing.assert_allclose(scores, wanted, rtol=1e-6, atol=1e-6)
    assert [*rows[1][:4]] == [2, 11, 25, 39]


def test_int8_keeps_vectors_within_half_a_step():
    vectors = np.random.default_rng(1).standard_normal([50, 16]).astype("float32")
    vectors[4] = 0
    values, scales = to_int8(vectors)
    assert values.dtype == np.int8 and np.abs(values.astype(int)).max() == 127
    assert (np.abs(values * scales[:, np.newaxis] - vectors) <= scales[:, np.newaxis] * 0.5001).all()
    recall, sample = int8_recall(vectors, k=5)
    assert sample == 50 and 0.9 < recall <= 1


def test_an_index_has_the_vectors_and_texts_of_its_collection(made):
    index = open_index(made / "index")
    assert index.count == len(TEXTS)
    assert index.texts() == [(f"d{i}", text) for i, text in enumerate(TEXTS)]
    assert index.texts([20, 3]) == [("d20", TEXTS[20]), ("d3", TEXTS[3])]
    np.testing.assert_allclose(index.vectors(), encoder_of(made)(TEXTS), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(index.vectors(), axis=1), 1, atol=1e-6)


def test_the_python_of_the_page(made, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    shutil.copytree(made / "index", tmp_path / "indexes" / "corpus")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"(?ms)^```python\n(.*?)^```", (runs.ROOT / "docs" / "search.md").read_text())
    exec(compile(block, "search.md", "exec"), names := {})
    np.testing.assert_array_equal(names["vectors"], open_index(made / "index").vectors()[:SHARD])
    assert [*names["rows"]["id"]] == [f"d{i}" for i in range(SHARD)]


def test_an_interrupted_index_is_refused_and_resumes_to_the_same_bytes(made, tmp_path):
    class Killed(Exception):
        pass

    texts = []

    def stop(done):  # in the second file
        texts.append(done)
        if sum(texts) > SHARD:
            raise Killed

    with pytest.raises(Killed):
        write_index(tmp_path / "index", encoder_of(made), Collection(made), shard_texts=SHARD, progress=stop)
    refused("1 of its 3 files; rerun the same `bert-keras index` command", open_index, tmp_path / "index")
    dot = encoder_of(made, "dot")
    refused("another similarity", write_index, tmp_path / "index", dot, Collection(made), shard_texts=SHARD)
    write_index(tmp_path / "index", encoder_of(made), Collection(made), shard_texts=SHARD)
    assert read(tmp_path / "index") == read(made / "index")


@pytest.mark.long
def test_an_export_answers_in_a_fresh_process_as_numpy_does(made, tmp_path):
    with forked.publishing():
        folder = export(make_search(made / "index", k=4), tmp_path / "served")
        answers = verify.ask(folder, {"text": QUERIES})
    wanted, order = in_order(encoder_of(made)(QUERIES), open_index(made / "index").vectors(), 4)
    assert answers["id"] == [[f"d{row}" for row in rows] for rows in order]
    assert answers["text"] == [[TEXTS[row] for row in rows] for rows in order]
    assert answers["id"][0][:3] == ["d3", "d7", "d20"]
    np.testing.assert_allclose(answers["score"], wanted, atol=1e-6)
    assert TEXTS[5].encode() not in (folder / "saved_model.pb").read_bytes()  # variables hold the texts


def test_an_export_of_int8_says_its_recall(made):
    lines = []
    task = make_search(made / "index", k=3, dtype="int8", log=lines.append).task
    assert "recall@3 of int8 against float32" in lines[0]
    assert task.resources.nearest.vectors.dtype == "int8"


def test_the_dot_product_keeps_the_lengths_of_vectors(made, tmp_path):
    index = write_index(tmp_path / "index", encoder_of(made, "dot"), Collection(made))
    assert np.abs(np.linalg.norm(index.vectors(), axis=1) - 1).max() > 0.1
    task = make_search(tmp_path / "index", k=2).task
    found = task.decode_features(encoder_of(made, "dot")(QUERIES))
    wanted, _ = in_order(encoder_of(made, "dot")(QUERIES), index.vectors(), 2)
    np.testing.assert_allclose(found["score"], wanted, rtol=1e-5)


def test_another_model_is_refused(made, tmp_path):
    runs.write_checkpoint(tmp_path / "other", num_layers=1, norm_epsilon=1e-5)
    other = TextEncoder(load_text_encoder(tmp_path / "other"), similarity="cosine")
    refused("another model", write_index, made / "index", other, Collection(made), shard_texts=SHARD)
    refused("their vectors cannot be compared", make_search, made / "index", model=tmp_path / "other")


def test_prompts_stand_before_texts(made):
    task = load_text_encoder(made / "checkpoint").task
    assert task.find_prompt(usual=("query",)) == ""
    refused("no prompt 'query'; the prompts are none", task.find_prompt, "query")
    prompts = {"query": "good ", "passage": "bad ", "other": "a "}
    run = bk.embedder(made / "checkpoint", prompts=prompts, prompt="other", similarity="dot").as_run(made)
    assert run.task.find_prompt(usual=("document", "passage")) == "bad "
    assert run.task.find_prompt("query") == "good " and run.task.find_prompt(usual=("x",)) == "a "
    with_prompt = TextEncoder(run, similarity="cosine", prompt="good ")(["film"])
    np.testing.assert_allclose(with_prompt, encoder_of(made)(["good film"]), atol=1e-6)
    assert choose_similarity(run) == "dot" and choose_similarity(run, "cosine") == "cosine"
    run.task.similarity = "euclidean"
    refused("the similarity is 'euclidean'; give one of cosine, dot", choose_similarity, run)


@pytest.mark.long
def test_a_search_puts_the_prompts_of_training_before_texts(made, tmp_path, capfd):
    """Training on pairs, `index`, `search` and `export --index` give a text one vector, without the prompt's own states."""
    prompts = {"query": "the good ", "document": "dull ", "other": "and "}
    model = bk.embedder(
        made / "checkpoint",
        prompts=prompts,
        prompt="other",
        include_prompt=False,
        pooling="cls",
        similarity="dot",
    )
    model.save(tmp_path / "run")
    raw = {"text": tf.constant([[TEXTS[3], TEXTS[5]]])}
    features = model.problem.features(model.preprocess, raw)
    query, document = model(features).numpy()  # as the loss sees them
    answers = model.predict([TEXTS[3]], prompt="query", verbose=0)["embedding"]
    np.testing.assert_allclose(answers[0], query, atol=1e-5)
    flags = ["--model", tmp_path / "run", "--data", made / "corpus.jsonl", "--output", tmp_path / "index"]
    code, _, err = run_command(capfd, "index", *flags)
    assert code == 0, err
    index = open_index(tmp_path / "index")
    assert index.header["similarity"] == "dot" and index.header["prompt"] == "dull "
    np.testing.assert_allclose(index.vectors()[5], document, atol=1e-5)
    wanted = np.sort(index.vectors() @ query)[::-1][:3]
    code, out, err = run_command(capfd, "search", tmp_path / "index", TEXTS[3], "--k", "3", "--json")
    assert code == 0, err
    np.testing.assert_allclose([one["score"] for one in json.loads(out)["results"]], wanted, atol=1e-4)
    folder = export(make_search(tmp_path / "index", k=3), tmp_path / "served")
    served = tf.saved_model.load(str(folder)).signatures["serving_default"](text=tf.constant([TEXTS[3]]))
    np.testing.assert_allclose(served["score"][0], wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("texts.txt", "\n \n", "has no text"),
        ("texts.csv", "id,text\n1,a\n2,b\n1,c\n", "the id '1' more than once"),
        ("texts.csv", "id,body\n1,a\n", "no column 'text'"),
        ("texts.jsonl", '{"text": "a"}\n{"text": 3}\n', "line 2: 'text' is 3, not text"),
    ],
)
def test_bad_collections(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    refused(message, lambda: Collection(tmp_path / name).described)


def test_collections_without_ids_number_their_texts(tmp_path):
    (tmp_path / "texts.txt").write_text("one\n\ntwo\n")
    (tmp_path / "texts.csv").write_text("text,title\none,x\ntwo,y\n")
    (tmp_path / "corpus.jsonl").write_text('{"_id": 5, "title": "T", "text": "one"}\n')
    assert [*Collection(tmp_path / "texts.txt")] == [("1", "one"), ("3", "two")]
    assert [*Collection(tmp_path / "texts.csv")] == [("0", "one"), ("1", "two")]
    assert [*Collection(tmp_path)] == [("5", "T one")]


def test_a_damaged_or_missing_index_is_refused(made, tmp_path):
    refused("has no index.json", open_index, tmp_path)
    index = shutil.copytree(made / "index", tmp_path / "index")
    (index / "00001.parquet").write_bytes((index / "00001.parquet").read_bytes()[:-9])
    refused("00001.parquet is damaged", open_index(index).vectors)
    (index / "00001.parquet").unlink()
    refused("2 of its 3 files", open_index, index)
    assert open_index(made / "index").check_k(21) is None
    refused("k is 22 and .* has 21 texts", open_index(made / "index").check_k, 22)


@pytest.mark.parity
def test_an_approximate_search_finds_nearly_the_exact_texts(made, tmp_path):
    pytest.importorskip("usearch")
    draw = np.random.default_rng(2)
    index = open_index(shutil.copytree(made / "index", tmp_path / "index"))
    refused("has no nearest.usearch", ApproximateNearest, index, k=3)
    assert write_graph(index) == pytest.approx(1) and write_graph(index) is None
    queries = encoder_of(made)([*QUERIES, *runs.texts(5, seed=9)])
    for some in (queries, queries[:1]):
        scores, rows = ApproximateNearest(index, k=4).search(some)
        wanted, order = in_order(some, index.vectors(), 4)
        np.testing.assert_array_equal(rows, order)
        np.testing.assert_allclose(scores, wanted, atol=1e-6)
    (index.path / FILE).write_bytes(draw.bytes(5000))
    refused("nearest.usearch is damaged", ApproximateNearest, index, k=3)


@pytest.mark.skipif(importlib.util.find_spec("usearch") is not None, reason="usearch is installed")
def test_an_approximate_search_names_its_extra(made, capfd):
    code, _, err = run_command(capfd, "search", made / "index", "a", "--approximate")
    assert code == 1 and "pip install 'bert-keras[search]'" in err


def test_commands(made, tmp_path, capfd):
    flags = ["--model", made / "checkpoint", "--data", made / "corpus.jsonl", "--output", tmp_path / "index"]
    code, out, _ = run_command(capfd, "index", *flags)
    assert code == 0 and "vectors of 21 texts" in out
    code, out, _ = run_command(capfd, "search", tmp_path / "index", TEXTS[3], "--k", "3", "--json")
    assert code == 0
    assert [one["id"] for one in json.loads(out)["results"]] == ["d3", "d7", "d20"]
    for words, message in [
        (["search", tmp_path / "index"], "give a query, or a file"),
        (["search", tmp_path / "index", "a", "--k", "22"], "give 1 to 21"),
        (["search", tmp_path / "nothing", "a"], "has no index.json"),
        (["export", "--run", made, "--output", tmp_path / "out", "--k", "3"], "applies only to a search"),
        (["export", "--output", tmp_path / "out"], "give --run alone"),
    ]:
        code, _, err = run_command(capfd, *words)
        assert code == 1 and message in err, err


def test_mined_negatives_are_near_and_no_answers(made, tmp_path, capfd):
    encoder, index = encoder_of(made), open_index(made / "index")
    scores = encoder(QUERIES[1:]) @ index.vectors().T
    # The second and the fourth of the nearest texts are the positives.
    pairs = [
        {"query": query, "positive": TEXTS[np.argsort(-row)[rank]]}
        for query, row, rank in zip(QUERIES[1:], scores, (1, 3), strict=True)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    given = ["mine", made / "index", "--data", tmp_path / "pairs.jsonl", "--depth", "21", "--margin", "0"]
    flags = ["--output", tmp_path / "mined.jsonl", "--duplicate", "0.9999"]
    code, out, err = run_command(capfd, *given, *flags)
    assert code == 0 and "1 negatives for each of 2 pairs" in out, err
    rows = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    for row in rows:
        assert [*row] == ["query", "positive", "negative_1"]
        query, positive = encoder([row["query"], row["positive"]])
        scores, alike = index.vectors() @ query, index.vectors() @ positive
        kept = [
            (-score, i)
            for i, (score, near) in enumerate(zip(scores, alike, strict=True))
            if near < 0.9999 and score <= query @ positive and TEXTS[i] not in (row["query"], row["positive"])
        ]
        assert row["negative_1"] == TEXTS[min(kept)[1]]
    code, _, err = run_command(capfd, *given, "--output", tmp_path / "none.jsonl", "--skip", "21")
    assert code == 1 and "no pair of" in err
    assert not (tmp_path / "none.jsonl").exists()


def test_an_index_of_the_first_numbers_of_each_vector(made, tmp_path, capfd):
    flags = ["--model", made / "checkpoint", "--data", made / "corpus.jsonl", "--dimension", "4"]
    code, out, _ = run_command(capfd, "index", *flags, "--output", tmp_path / "short")
    assert code == 0 and "4 dimensions" in out
    short, whole = open_index(tmp_path / "short"), encoder_of(made, "dot")(TEXTS)[:, :4]
    wanted = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    np.testing.assert_allclose(short.vectors(), wanted, atol=1e-6)
    code, out, _ = run_command(capfd, "search", tmp_path / "short", TEXTS[3], "--k", "3", "--json")
    assert [one["id"] for one in json.loads(out)["results"]] == ["d3", "d7", "d20"]
    run = make_search(tmp_path / "short", k=3)
    vectors = run.model(run.task.features(run.preprocess, {"text": tf.constant([TEXTS[3]])}), training=False)
    assert run.task.decode_features(vectors)["id"].numpy().tolist() == [[b"d3", b"d7", b"d20"]]
    flags[-1] = "999"
    code, _, err = run_command(capfd, "index", *flags, "--output", tmp_path / "long")
    assert code == 1 and "dimension is 999 and the vectors have" in err, err
