"""Exports in bfloat16: half of the bytes, float32 answers near those of float32, trainable and frozen."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from exports import CASES, untrained
from runs import contents, run_command

from bert_keras.savedmodels.export import export, sample_inputs, servable_of
from bert_keras.savedmodels.model_card import precision_of
from bert_keras.savedmodels.verify import CARD, EXTRA, NARROW, ExportError, ask, relative
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.ensemble import Ensemble, at_precision
from bert_keras.tasks.runs.run_folder import load_run


def size_of_model(folder: Path) -> int:
    """The bytes of the graph and its variables."""
    return sum(len(data) for name, data in contents(folder).items() if not name.startswith(("assets", EXTRA)))


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
@pytest.mark.parametrize("frozen", [False, True])
def test_the_command_writes_half_of_the_bytes_and_float32_answers(frozen, sst2, tmp_path, capfd):
    flags = ["--run", sst2.run, "--target", "tfserving-2.10", *(["--freeze"] if frozen else [])]
    for precision in ("float32", "bfloat16"):
        code, out, err = run_command(
            capfd, "export", *flags, "--precision", precision, "--output", tmp_path / precision
        )
        assert code == 0 and "gave the same answers" in out, err
    wide, narrow = tmp_path / "float32" / "1", tmp_path / "bfloat16" / "1"
    weights = sum(np.asarray(variable).nbytes for variable in load_run(sst2.run).model.variables)
    assert size_of_model(wide) - size_of_model(narrow) > 0.4 * weights
    card = (narrow / EXTRA / CARD).read_text()
    assert "| precision | bfloat16 |" in card and ("cannot be fine-tuned" in card) == frozen
    assert "| precision | float32 |" in (wide / EXTRA / CARD).read_text()
    texts = {"sentence": ["good warm film", "it is dull", "bad"]}
    expected, found = (np.array(ask(folder, texts)["probabilities"]) for folder in (wide, narrow))
    assert 0 < np.abs(expected - found).max() < 0.1
    loaded = tf.saved_model.load(str(narrow))
    outputs = {
        value.dtype
        for signature in loaded.signatures.values()
        for value in signature.structured_outputs.values()
    }
    assert outputs == {tf.float32, tf.string}
    if not frozen:
        dtypes = {variable.dtype for variable in loaded.trainable_variables}
        assert tf.bfloat16 in dtypes and dtypes <= {tf.bfloat16, tf.float32}


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_answers_that_are_cut_from_windows(sst2, tmp_path):
    run = at_precision(untrained(CASES["Question answering"], sst2.checkpoint), "bfloat16")
    folder = export(run, tmp_path / "served", freeze=True)
    raw = sample_inputs(run.task.signature())
    expected = servable_of(run).serve(**{name: tf.constant(rows) for name, rows in raw.items()})
    score = np.array(ask(folder, raw)["score"])
    assert relative(expected["score"].numpy(), score).max() < 0.1


class Undecided(TextClassification):
    """Decodes to numbers that differ from process to process by more than the bound."""

    def decode(self, outputs, features, raw):
        drawn = tf.raw_ops.RandomUniform(shape=tf.shape(outputs), dtype=tf.float32)
        return super().decode(outputs, features, raw) | {"probabilities": 5 * NARROW * drawn}


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_the_bound_of_bfloat16_holds(sst2, tmp_path):
    run = dataclasses.replace(at_precision(load_run(sst2.run), "bfloat16"), task=Undecided.open("sst2"))
    with pytest.raises(ExportError, match="probabilities differs by .* the tolerance is 2e-02"):
        export(run, tmp_path / "served")
    assert not list(tmp_path.iterdir())


def test_the_precision_of_an_ensemble(sst2):
    run = load_run(sst2.run)
    both = dataclasses.replace(run, model=Ensemble([run.model, load_run(sst2.run).model]))
    assert precision_of(both.model) == "float32"
    assert precision_of(at_precision(both, "bfloat16").model) == "bfloat16"
