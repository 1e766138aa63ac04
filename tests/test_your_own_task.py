"""The code of docs/your_own_task.md, run as it stands: a task with few methods that trains, predicts and is exported."""

import ast
import json
import re

import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras.tasks.runs.task_types import TASKS

DEFINITION, USE = re.findall(
    r"```python\n(.*?)```", (runs.ROOT / "docs" / "your_own_task.md").read_text(), re.S
)


def write_split(path, *, seed):
    rows = [
        {"text": text, "labels": ["positive"] * ("good" in text) + ["film"] * ("film" in text)}
        for text in runs.texts(128, seed=seed)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_task_has_at_most_60_lines_and_8_methods():
    lines = [line for line in DEFINITION.splitlines() if line.strip() and not line.strip().startswith("#")]
    (task,) = (node for node in ast.parse(DEFINITION).body if isinstance(node, ast.ClassDef))
    methods = [node for node in task.body if isinstance(node, ast.FunctionDef)]
    assert len(lines) <= 60 and len(methods) <= 8


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_the_documented_task_trains_predicts_and_is_exported(tmp_path, monkeypatch):
    runs.write_checkpoint(tmp_path / "checkpoint", initializer_range=0.02)
    (tmp_path / "data").mkdir()
    write_split(tmp_path / "data" / "train.jsonl", seed=1)
    write_split(tmp_path / "data" / "dev.jsonl", seed=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bert_keras.tasks.runs.task_types.TASKS", TASKS | {})
    tiny = "Hparams(epochs=4, batch_size=16, learning_rate=3e-3, seq_length=16)"
    assert "Hparams(epochs=3)" in USE
    names: dict = {}
    exec(DEFINITION + USE.replace("Hparams(epochs=3)", tiny), names)

    history = [epoch["val_f1"] for epoch in names["results"]["history"]]
    assert max(history) > 0.5 and names["results"]["measures"]["val_f1"] == max(history)
    assert names["run"].task.label_names == ("positive", "film")
    predictions = names["predictions"]
    assert predictions["probabilities"].shape == (2, 2)
    expected = np.where(predictions["probabilities"] > 0.5, [b"positive", b"film"], b"")
    assert predictions["labels"].tolist() == expected.tolist()
    loaded = tf.saved_model.load(str(names["served"]))
    answers = loaded.signatures["serving_default"](text=tf.constant(["a good film", "very dull"]))
    assert answers["labels"].numpy().tolist() == predictions["labels"].tolist()
    np.testing.assert_allclose(answers["probabilities"], predictions["probabilities"], atol=1e-5)


def test_a_task_without_a_required_member_cannot_be_made():
    names: dict = {}
    exec(DEFINITION.replace("def evaluate(", "def evaluates("), names)
    TASKS.pop("multi-label")
    with pytest.raises(TypeError, match="evaluate"):
        names["MultiLabel"](label_names=["a"])
