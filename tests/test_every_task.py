"""Every task trains, stops, resumes, loads, predicts, measures, exports and serves: one path for all, at the smallest size."""

import contextlib
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import runs
import tensorflow as tf
from small_tasks import CASES, ROWS, command

from bert_keras.savedmodels.export import export
from bert_keras.tasks.batches import predict
from bert_keras.tasks.runs.run_folder import Run, load_run, run_of
from bert_keras.tasks.runs.task_types import open_task
from bert_keras.tasks.training.saver import Saver


@contextlib.contextmanager
def stopped_after(step: int) -> Iterator[None]:
    """Ctrl-C in that step."""
    end = Saver.on_train_batch_end

    def interrupted_end(self, batch, logs=None):
        if self.step + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        end(self, batch, logs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saver, "on_train_batch_end", interrupted_end)
        yield


# They are text classification too, and resume as `class` does; `paths` are tags with more weights.
OTHER_LABELS = ("pair", "score", "several", "paths")


# The same loop with other heads.
OTHER_HEADS = ("masks", "embedding", "reranking", "choice", "tags", "electra", "answers", "vectors")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in OTHER_HEADS else name
        for name in CASES
        if name not in OTHER_LABELS
    ],
)
def test_a_stopped_training_resumes_to_the_same_bits(name, finished, tmp_path):
    """Masks and orders, dropout and the optimizer's state are those of a training that was never stopped."""
    made = finished(name)
    arguments = command(name, made, tmp_path / "run")
    with stopped_after(2):
        assert runs.command(arguments) == 128 + signal.SIGINT
    assert [*(tmp_path / "run" / "checkpoints").glob("ckpt-2.index")]
    assert not (tmp_path / "run" / "results.json").exists()
    assert runs.command(arguments) == 0
    assert runs.outcome(tmp_path / "run") == runs.outcome(made.run)


PRETRAINED = ("pretraining", "electra")
TEXTS = {"text": ["the [MASK] is good", "[MASK] [MASK] .", "", "no mask"]}


def load(name: str, made: runs.Finetuned) -> Run:
    """A finished run, ready to predict; of an ELECTRA, its generator."""
    if name == "electra":
        return run_of(open_task("fill-mask", None), made.run / "generator")
    return load_run(made.run, data=None if name in PRETRAINED else made.data)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in (*OTHER_LABELS, "electra") else name
        for name in CASES
    ],
)
@pytest.mark.usefixtures("forked_answers")
def test_a_finished_run_measures_answers_and_serves(name, finished, tmp_path):
    """`export` compares a fresh process on awkward texts; here, what is served is what `predict` says."""
    made = finished(name)
    run = load(name, made)
    if name not in PRETRAINED:
        examples = run.task.examples("validation")
        expected, raw = predict(run.task, run.preprocess, run.model, examples, batch_size=7)
        measures = {f"val_{key}": value for key, value in run.task.evaluate(expected, raw)}
        assert measures == pytest.approx(runs.results(made.run)["measures"], rel=1e-5, abs=1e-5)
        asked = next(iter(examples.batch(ROWS)))
    if name in PRETRAINED or name in (
        "tags",
        "paths",
        "embedding",
        "reranking",
    ):  # which are served from texts of another form
        asked = TEXTS if name != "reranking" else {"query": TEXTS["text"], "text": TEXTS["text"][::-1]}
        expected, _ = predict(run.task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices(asked))
    folder = export(run, tmp_path / "served")
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    served = serve(**{key: tf.constant(asked[key]) for key in serve.structured_input_signature[1]})
    expected.pop("rank", None)  # of the answer of a cloze test, which a measure needs
    if (columns := served.pop("label_names", None)) is not None:
        assert columns.numpy().tolist() == [[name.encode() for name in run.task.label_names]] * len(columns)
    assert set(served) == set(expected)
    for key, value in expected.items():
        if value.dtype == object:
            assert served[key].numpy().tolist() == value.tolist(), key
        else:
            np.testing.assert_allclose(served[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
