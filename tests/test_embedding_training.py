"""The training of text vectors: forms of data, batches, the loop, files, measures and errors."""

import json
import shutil

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from random_checkpoints import refused, saves_with_keras
from runs import command as run_command
from runs import texts, write_checkpoint
from small_tasks import write_columns

import bert_keras as bk
from bert_keras.cli.main import parser
from bert_keras.model.choices import PAIRS, VECTOR_LOSSES
from bert_keras.optimization.vector_losses import RULES
from bert_keras.tasks.commands.flags import task_settings
from bert_keras.tasks.data.text_groups import in_twos, read_groups, without_repeats
from bert_keras.tasks.problems.embedding import Embedding
from bert_keras.tasks.problems.vector_measures import ranks_of_positives

QUERIES, POSITIVES = ([f"{text} {i}" for i, text in enumerate(texts(12, seed=seed))] for seed in (0, 1))
NEGATIVES = [f"{text} no" for text in texts(12, seed=2)]
SCORES = np.linspace(0, 5, 12)
FORMS = {
    "pairs": (QUERIES, POSITIVES),
    "negatives": (
        {"query": QUERIES, "positive": POSITIVES, "negative": NEGATIVES, "negative_2": NEGATIVES[::-1]},
        None,
    ),
    "scores": ((QUERIES, POSITIVES), SCORES),
    "classes": (QUERIES, [0, 1, 2] * 4),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedding") / "checkpoint"
    return str(write_checkpoint(folder, hidden_dropout=0.0, attention_dropout=0.0))


def test_every_loss_has_a_function():
    assert {*VECTOR_LOSSES} == {*RULES}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "measures"),
    [
        ("negatives", {"mrr", "accuracy"}),
        ("scores", {"spearman", "pearson"}),
        ("classes", {"accuracy", "v_measure"}),
    ],
)
def test_fit_learns_from_each_form(form, measures, checkpoint):
    keras.utils.set_random_seed(1)
    x, y = FORMS[form]
    model = bk.embedder(checkpoint)
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    assert {*before} == {"loss"} | measures
    model.compile(learning_rate=1e-3)
    model.fit(x, y, batch_size=12, epochs=20, verbose=0)
    assert model.evaluate(x, y, verbose=0, return_dict=True)["loss"] < before["loss"]


@pytest.mark.long
@saves_with_keras
def test_a_trained_model_is_saved_loaded_and_exported(checkpoint, tmp_path):
    keras.utils.set_random_seed(1)
    model = bk.embedder(checkpoint, pooling="max", l2=True, loss="symmetric_ranking", temperature=0.1)
    model.compile(learning_rate=2e-3)
    pairs = (QUERIES, POSITIVES)
    history = model.fit(*pairs, batch_size=6, epochs=12, verbose=0, validation_data=pairs).history
    assert history["loss"][-1] < history["loss"][0] and history["val_mrr"][-1] > history["val_mrr"][0]
    answers = model.predict(QUERIES)["embedding"]
    model.save(tmp_path / "model.keras")
    model.save(tmp_path / "run")
    for saved in ("model.keras", "run"):
        loaded = bk.load(tmp_path / saved)
        assert loaded.problem.to_json() == model.problem.to_json()
        np.testing.assert_allclose(loaded.predict(QUERIES)["embedding"], answers, atol=1e-6)
    served = tf.saved_model.load(str(model.export(tmp_path / "export")))
    found = served.signatures["serving_default"](text=tf.constant(QUERIES))["embedding"]
    np.testing.assert_allclose(found, answers, atol=1e-5)


def test_settings_are_kept():
    task = Embedding(loss="triplet", margin=2.0, negative_column=["no"], text_column=["a", "b"])
    kept = json.loads(json.dumps(task.to_json()))
    assert kept["negative_column"] == ["no"] and "temperature" not in kept
    assert Embedding.from_json(kept).to_json() == kept


def test_a_student_learns_the_vectors_of_a_teacher(checkpoint, tmp_path):
    keras.utils.set_random_seed(1)
    model = bk.embedder(checkpoint)
    width = model.predict(QUERIES[:1], verbose=0)["embedding"].shape[1]
    teacher = np.random.default_rng(0).normal(size=(12, width)).astype(np.float32)
    columns = {"text": QUERIES, "vector": teacher.tolist()}
    pq.write_table(pa.table(columns), tmp_path / "teacher.parquet")
    task = Embedding(
        source={"train": tmp_path / "teacher.parquet", "validation": tmp_path / "teacher.parquet"}
    )
    first = next(iter(task.examples("train")))
    assert task.measure == "cosine" and first["label"].numpy().tolist() == teacher[0].tolist()
    model.compile(learning_rate=5e-3)
    measured = model.fit(
        QUERIES, teacher, batch_size=6, epochs=6, verbose=0, validation_data=(QUERIES, teacher)
    )
    assert measured.history["val_cosine"][-1] > measured.history["val_cosine"][0]
    pairs = read_groups((QUERIES, POSITIVES), teacher, None)  # a text and its translation
    assert pairs["text"].shape == (12, 2) and pairs["label"].dtype == np.float32
    refused(
        f"vectors have 2 dimensions and the model's {width}", model.fit, QUERIES, teacher[:, :2], verbose=0
    )
    refused("rows of as many finite numbers", read_groups, ["a", "b"], [[1.0], [1.0, 2.0]], None)
    refused("rows of as many finite numbers", read_groups, ["a", "b"], [[1.0], [float("nan")]], None)


def test_the_first_numbers_of_each_vector(checkpoint, tmp_path):
    keras.utils.set_random_seed(1)
    model = bk.embedder(checkpoint, l2=True, matryoshka=[8, 4], dimension=4)
    model.fit(QUERIES, POSITIVES, batch_size=6, verbose=0)
    short = model.predict(QUERIES, verbose=0)["embedding"]
    model.save(tmp_path / "run")
    loaded = bk.load(tmp_path / "run")
    assert loaded.problem.to_json()["matryoshka"] == [8, 4] and loaded.problem.dimension == 4
    np.testing.assert_allclose(loaded.predict(QUERIES, verbose=0)["embedding"], short, atol=1e-6)
    loaded.problem.dimension = None
    whole = loaded.predict(QUERIES, verbose=0)["embedding"][:, :4]
    np.testing.assert_allclose(whole / np.linalg.norm(whole, axis=1, keepdims=True), short, atol=1e-6)


# -----------------------------------------------------------------------------------------------------------
# Batches


def test_no_two_rows_of_a_batch_have_an_equal_text():
    draw = np.random.default_rng(0)
    pool = np.stack([draw.integers(0, 40, 101), 100 + draw.integers(0, 30, 101)], axis=1)
    order = without_repeats(pool, 8)
    assert sorted(order) == [*range(101)]
    batches = [pool[order[start : start + 8]].ravel() for start in range(0, 101, 8)]
    assert all(len({*batch}) == len(batch) for batch in batches)
    plain = [pool[start : start + 8].ravel() for start in range(0, 101, 8)]
    assert not all(len({*batch}) == len(batch) for batch in plain)


def test_equal_texts_meet_where_nothing_else_is_left():
    order = without_repeats(np.array([[1, 2]] * 5 + [[3, 4]] * 2), 2)
    assert sorted(order) == [*range(7)]


def test_texts_of_a_class_stand_in_twos():
    classes = np.array([3, 1, 2, 1, 3, 3, 0])
    assert classes[in_twos(classes, 2)].tolist() == [1, 1, 3, 3, 2, 3, 0]


def test_batches_of_fit_are_arranged(checkpoint):
    """The labels of a batch are numbers of its texts, and no number stands in two rows."""
    from bert_keras.tasks.batches import dataset

    model = bk.embedder(checkpoint)
    columns = read_groups(QUERIES, [POSITIVES[i // 4] for i in range(12)], None)
    examples = tf.data.Dataset.from_tensor_slices({**columns})
    made = dataset(model.problem, model.preprocess, examples, batch_size=3, seed=7)
    rows = 0
    for features, labels, weights in made:
        assert features["input_word_ids"].shape[:2] == (3, 2) and weights.shape == (3,)
        assert len({*labels.numpy().ravel().tolist()}) == 6
        rows += len(labels)
    assert rows == 12


# -----------------------------------------------------------------------------------------------------------
# Files


def test_a_command_trains_from_files(checkpoint, tmp_path):
    """Pairs with negatives in named columns; the dev split has scores."""
    columns = {"question": QUERIES, "paragraph": POSITIVES, "bad": NEGATIVES}
    train = write_columns(tmp_path / "train.jsonl", columns)
    dev = write_columns(
        tmp_path / "dev.jsonl", {"sentence1": QUERIES, "sentence2": POSITIVES, "score": [*SCORES]}
    )
    flags = ["--text-column", "question", "paragraph", "--negative-column", "bad", "--epochs", "1"]
    flags += ["--loss", "symmetric_ranking", "--temperature", "0.1", "--batch-size", "4", "--quiet"]
    flags += ["--seq-length", "24", "--pooling", "max", "--l2", "--layers", "weighted_sum_all"]
    start = ["finetune", "--task", "embedding", "--checkpoint", checkpoint]
    given = [*start, "--data", str(train), *flags, "--output", str(tmp_path / "run"), "--dev-fraction", "0.3"]
    assert run_command(given) == 0
    measures = json.loads((tmp_path / "run" / "results.json").read_text())["measures"]
    assert {*measures} == {"val_mrr", "val_accuracy"}
    made = bk.load(tmp_path / "run").problem
    assert (made.pooling, made.l2, made.layers) == ("max", True, "weighted_sum_all")
    # A folder of sentence-transformers says how its vectors are made.
    folder = shutil.copytree(checkpoint, tmp_path / "folder")
    types = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in types.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    start = ["finetune", "--task", "embedding", "--checkpoint", str(folder)]
    given = [
        *start,
        "--data",
        str(tmp_path),
        "--loss",
        "cosent",
        "--epochs",
        "1",
        "--quiet",
        "--seq-length",
        "24",
    ]
    (tmp_path / "train.jsonl").write_text(dev.read_text())
    assert run_command([*given, "--output", str(tmp_path / "scored")]) == 0
    measures = json.loads((tmp_path / "scored" / "results.json").read_text())["measures"]
    assert {*measures} == {"val_spearman", "val_pearson"}
    made = bk.load(tmp_path / "scored").problem
    assert (made.loss_name, made.pooling, made.l2) == ("cosent", "cls", True)


def test_the_form_of_the_dev_split_decides_the_measure(tmp_path):
    train = write_columns(tmp_path / "pairs.jsonl", {"query": QUERIES, "positive": POSITIVES})
    dev = write_columns(
        tmp_path / "d.jsonl", {"sentence1": QUERIES, "sentence2": POSITIVES, "score": [*SCORES]}
    )
    task = Embedding(source={"train": train, "validation": dev}, loss="triplet")
    assert task.measure == "spearman" and {*next(iter(task.examples("validation")))} == {"text", "label"}
    assert Embedding(source=train).measure == "mrr"


# -----------------------------------------------------------------------------------------------------------
# Measures


def test_ranks_against_a_loop():
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(9, 3, 4))
    names = np.array([[f"q{i}", f"p{i}", f"n{i}"] for i in range(9)], object)
    names[4, 0], names[5, 1], names[6, 2] = "q3", "p2", "p8"  # an equal query, an equal positive, a negative
    vectors[4, 0], vectors[5, 1], vectors[6, 2] = vectors[3, 0], vectors[2, 1], vectors[8, 1]
    made = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    wanted = []
    for i in range(9):
        others = {names[j, t]: made[j, t] for j in range(9) for t in (1, 2)}
        for j in range(9):
            if names[j, 0] == names[i, 0]:
                del others[names[j, 1]]
        own = made[i, 0] @ made[i, 1]
        wanted.append(1 + sum(made[i, 0] @ one >= own for one in others.values()))
    encoded = np.array([[name.encode() for name in row] for row in names], object)
    assert ranks_of_positives(vectors, encoded).tolist() == wanted


def test_equal_vectors_answer_nothing():
    names = np.array([[f"q{i}".encode(), f"p{i}".encode()] for i in range(5)], object)
    assert ranks_of_positives(np.ones((5, 2, 3)), names).tolist() == [5] * 5


# -----------------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize(
    ("x", "y", "loss", "message"),
    [
        (["a"], ["b"], None, "there is one pair"),
        (["a", "b", "c"], ["p"] * 3, None, "all 3 pairs have the same positive"),
        (["q"] * 3, ["a", "b", "c"], None, "all 3 pairs have the same query"),
        (["a", "b"], ["c", " "], None, "row 1: positive is empty"),
        (["a", "b", "c"], ["d", "e"], None, "unequal lengths"),
        ((["a", "b"], ["c", "d"]), [0.0, 5.0], "cosine_similarity", "score 5 in row 1; .* takes -1 to 1"),
        ((["a", "b"], ["c", "d"]), [1.0, 1.0], None, "all 2 scores are 1"),
        ((["a", "b"], ["c", "d"]), [1.0, float("nan")], None, "score in row 1"),
        (["a", "b"], ["c", "d"], "triplet", "triplet does not learn from pairs without negatives"),
        (["a", "b"], ["c", "d"], "cosent", "cosent does not learn from pairs; .* multiple_negatives_ranking"),
        (["a", "b"], [0.5, 0.1], None, "0.5 is no class of a text"),
        (["a", "b"], [0, 1], None, "2 texts have 2 classes"),
        (["a", "b"], None, None, "texts were given alone"),
        ({"query": ["a", "b"]}, None, None, "no texts named positive"),
    ],
)
def test_data_that_cannot_work(x, y, loss, message):
    refused(message, read_groups, x, y, loss)


def test_names_are_classes_for_a_loss_of_classes():
    made = read_groups(["a", "b", "c"], ["good", "bad", "good"], "batch_hard_triplet")
    assert made["label"].tolist() == [1, 0, 1] and made["text"].shape == (3, 1)
    assert "label" not in read_groups(["a", "b", "c"], ["good", "bad", "good"], None)


def test_settings_that_cannot_work(checkpoint):
    refused("loss is 'contrast'", bk.embedder, checkpoint, loss="contrast")
    refused("margin is 2.0; give it with a loss that has one: triplet", Embedding, margin=2.0)
    refused("temperature", Embedding, loss="cosent", temperature=0.0)
    model = bk.embedder(checkpoint)
    refused("batch_size is 1", model.fit, QUERIES, POSITIVES, batch_size=1)
    refused("there is one pair", model.fit, QUERIES[:1], POSITIVES[:1])
    pairs = tf.data.Dataset.from_tensor_slices((QUERIES, POSITIVES)).batch(4)
    refused("not in a tf.data.Dataset", model.fit, pairs)
    assert VECTOR_LOSSES["triplet"].form == PAIRS


def test_files_that_cannot_work(tmp_path):
    path = write_columns(tmp_path / "a.jsonl", {"a": QUERIES, "b": POSITIVES})
    task = "a.jsonl has the columns a, b; name those"
    refused(task, Embedding, source=path)
    path = write_columns(tmp_path / "b.jsonl", {"query": ["a", "b"], "positive": ["c", ""]})
    refused("b.jsonl: row 1: positive is empty", Embedding(source=path).examples, "train")
    path = write_columns(tmp_path / "c.jsonl", {"sentence1": ["a"], "sentence2": ["b"], "score": ["x"]})
    refused("line 1: score 'x' is not a number", Embedding(source=path).examples, "train")


def test_flags_of_the_vectors_of_an_export_are_no_options_of_a_task():
    words = [
        "export",
        "--checkpoint",
        "c",
        "--embedding",
        "mean",
        "--l2",
        "--dimension",
        "4",
        "--output",
        "o",
    ]
    assert task_settings(parser(["export"], words).parse_args(words)) == {}
