"""The code of docs/your_own_task.md, run as it stands: a task, an objective, a probe and a variant of the encoder."""

import importlib
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pretrainings
import pytest
import runs
import small_tasks
import tensorflow as tf

from bert_keras.pages.charts import draw
from bert_keras.tasks.pretraining.pretrain import Pretraining, plan_pretraining
from bert_keras.tasks.pretraining.recipes import recipe_named
from bert_keras.tasks.study.probe import run_probes

PAGE = (runs.ROOT / "docs" / "your_own_task.md").read_text()
TASK, USE, OBJECTIVE, PROBE, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.S)
(CHANGE,) = re.findall(r"```text\n(.*?)```", PAGE, re.S)

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The reader's folder, with the modules of the page and a checkpoint."""
    for name, code in {"relations": TASK, "lengths": OBJECTIVE, "casing": PROBE}.items():
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    runs.write_checkpoint(tmp_path / "checkpoint", initializer_range=0.02)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write_relations(path, *, seed):
    """The first entity says the relation."""
    draw, rows = random.Random(seed), {"text": [], "relation": []}
    for _ in range(48):
        word, relation = draw.choice((("good", "works_for"), ("bad", "lives_in")))
        rows["text"].append(f"the [E1] {word} [/E1] is [E2] {draw.choice('abc')} [/E2]")
        rows["relation"].append(relation)
    small_tasks.write_columns(path, rows)


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_the_documented_task_trains_predicts_and_is_exported(reader, capfd):
    write_relations(reader / "data" / "train.jsonl", seed=1)
    write_relations(reader / "data" / "dev.jsonl", seed=2)
    assert "Hparams(epochs=3)" in USE
    names: dict = {}
    tiny = "Hparams(epochs=4, batch_size=8, learning_rate=3e-3, seq_length=32)"
    exec(USE.replace("Hparams(epochs=3)", tiny), names)
    first, *_, last = (epoch["loss"] for epoch in names["results"]["history"])
    assert last < 0.6 * first
    text = "[E1] anna [/E1] lives in [E2] oslo [/E2]"
    features = names["task"].features(names["model"].preprocess, {"text": tf.constant([text])})
    tokens = names["model"].preprocess.tokenizer.vocabulary
    found = features["input_word_ids"].numpy()[0][features["entity_starts"].numpy()[0]]
    assert [tokens[i] for i in found] == ["[E1]", "[E2]"]
    served = tf.saved_model.load(str(names["served"])).signatures["serving_default"]
    answer = served(text=tf.constant([text]))["relation"].numpy()
    assert answer.astype(str).tolist() == names["answers"].tolist()
    card = (names["served"] / "assets.extra" / "model_card.md").read_text()
    assert '`serving_default` returns:\n\n"relation": string [?]\n' in card
    raw = next(names["task"].examples("validation").batch(48).as_numpy_iterator())
    answers = names["model"].predict([text.decode() for text in raw["text"]])["relation"]
    predictions = {"relation": np.array([answer.encode() for answer in answers], object)}
    (table,), judged = names["task"].views(predictions, raw), names["task"].judge(predictions, raw)
    assert draw(table) and sum(count for _, count in table.rows) == len(judged.rows) == 48
    assert {"accuracy": judged.right.mean()} == dict(names["task"].evaluate(predictions, raw))
    code, out, err = runs.run_command(capfd, "info", "run")
    assert code == 0 and f"{len(runs.VOCABULARY) + 4} tokens" in out, err


def test_the_documented_objective_is_planned_with_its_settings(reader):
    recipe = recipe_named("lengths:RECIPE").changed(**pretrainings.SMALL, bins=6)
    plan = plan_pretraining(Pretraining(**pretrainings.given(recipe=recipe)))
    assert plan.fingerprint["bins"] == 6 and [*plan.fingerprint["code"]] == ["lengths"]
    features, labels, weights = next(iter(plan.stages[0].batches(0)))
    lengths = features["input_mask"].numpy().sum(1)
    np.testing.assert_array_equal(labels["length"], (lengths - 1) * 6 // 32)
    assert plan.model(features)["length"].shape == (8, 6) and weights["length"].shape == (8,)


@pytest.mark.long
def test_the_documented_row_stands_in_a_study(reader, capfd):
    small_tasks.write_documents(reader / "documents")
    runs.write_data(reader / "sst2", "sst2", count=16)
    command = ["ablate", "tasks", "--rows", "BERT", "lengths:RECIPE", "--restarts", "2", "--dry-run"]
    command += ["--text", "documents/text.txt", "--vocab", "checkpoint/vocab.txt", "--output", "out"]
    code, out, err = runs.run_command(capfd, *command, "--data", "sst2=sst2")
    assert code == 0, err
    trainings = [f"{row}: {part}" for row in ("BERT", "lengths:RECIPE") for part in ("pre-training", "sst2")]
    assert all(one in out for one in trainings) and "mrpc" not in out and not (reader / "out").exists()


@pytest.mark.long
def test_the_documented_probe_measures_every_layer(reader):
    (reader / "texts").mkdir()
    for split in ("train", "validation"):
        texts = [text.replace("film", "FILM") for text in runs.texts(30, seed=len(split))]
        (reader / "texts" / f"{split}.txt").write_text("\n".join(texts) + "\n")
    how = {"checkpoint": reader / "checkpoint", "output": reader / "out", "log": lambda line: None}
    (result,) = run_probes({"casing:PROBE": "texts"}, max_examples=20, restarts=1, seq_length=32, **how)
    assert result.measure == "accuracy" and np.shape(result.layers["checkpoint"]) == (2, 1)
    assert min(result.layers["checkpoint"][0]) > 0.95  # a word's embedding knows the word


@pytest.mark.long
def test_the_documented_variant_is_three_changes_and_passes_its_test(tmp_path):
    for package in ("bert_keras", "tasks", "savedmodels"):
        shutil.copytree(runs.ROOT / package, tmp_path / package, symlinks=True)
    for part in CHANGE.split("--- ")[1:]:
        (file, before), after = part.split("+++\n")[0].split("\n", 1), part.split("+++\n")[1]
        text = (tmp_path / file).read_text()
        assert text.count(before.rstrip("\n")) == 1, before
        (tmp_path / file).write_text(text.replace(before.rstrip("\n"), after.rstrip("\n")))
    script = f"{TEST}\ntest_a_scaled_residual_is_computed_and_comes_back({str(tmp_path / 'out')!r})\n"
    how = {"cwd": tmp_path, "env": runs.bare_environment() | {"PYTHONPATH": str(tmp_path)}}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_task_without_a_required_member_cannot_be_made(reader):
    (reader / "relations.py").write_text(TASK.replace("def evaluate(", "def evaluates("))
    with pytest.raises(TypeError, match="evaluate"):
        importlib.import_module("relations").Relations(label_names=["a"])
