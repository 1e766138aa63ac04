"""Fine-tuning on two replicas equals one device at the same global batches."""

import contextlib
import dataclasses
import functools
import io
import json
import tempfile
from pathlib import Path

import distributed_pretraining
import jobs
import keras
import numpy as np
import pytest
import runs
import safetensors.numpy
import small_tasks
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.cli import main as cli
from bert_keras.features import ENCODER_INPUTS
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.optimizers import AdamW
from bert_keras.optimization.schedules import WarmupLinearDecay
from bert_keras.optimization.training_model import TrainingModel
from bert_keras.tasks.batches import dataset
from bert_keras.tasks.devices.strategies import differ_between_replicas, rows_for, strategy
from bert_keras.tasks.finetuning.finetune import _compiled_model, finetune
from bert_keras.tasks.finetuning.finetuning_monitor import GradualUnfreezing
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.run_folder import evaluate, load_run
from bert_keras.tasks.task import classifier_model
from bert_keras.tasks.training.task_model import encoder_of
from bert_keras.text.preprocessing import Preprocessor, pad_batches

pytestmark = pytest.mark.long

CONFIG = dataclasses.replace(distributed_pretraining.CONFIG, max_positions=16)
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
CLIP = 0.05
# Examples, which are batched apart, and batch size.
SCENARIOS = {
    "short_batches": ((19, 17), 8),  # of three rows and of one
    "padded": ((19,), 9),
}
EPOCHS = 2


def greatest_difference(one, two):
    """Between two lists of weights."""
    return max(float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True))


class Recording(AdamW):
    """Keeps the norm of what it clips; for eager steps."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.norms = []

    def _clip(self, grads):
        self.norms.append(float(tf.linalg.global_norm(grads)))
        return super()._clip(grads)


def data(counts, batch_size):
    """The batches of one set of examples after the other."""
    return functools.reduce(tf.data.Dataset.concatenate, [_batches(count, batch_size) for count in counts])


def _batches(count, batch_size):
    """Weights of each half of a batch, which is one replica's share, differ a thousandfold; some are 0."""
    generator = np.random.default_rng(count)
    ids = generator.integers(5, CONFIG.vocab_size, (count, 12)).astype("int32")
    mask = (np.arange(12) < generator.integers(3, 13, (count, 1))).astype("int32")
    features = dict(zip(ENCODER_INPUTS, (ids * mask, mask, np.zeros_like(ids)), strict=True))
    weights = generator.uniform(0.5, 2.0, count) * np.where(
        np.arange(count) % batch_size < batch_size // 2, 1e-3, 1
    )
    weights[::5] = 0
    labels = generator.integers(0, 3, count).astype("int32")
    return tf.data.Dataset.from_tensor_slices((features, labels, weights.astype("float32"))).batch(batch_size)


class EmbeddingsMoved(keras.callbacks.Callback):
    """The distance of the embeddings from their start after each epoch."""

    def on_train_begin(self, logs=None):
        self.start, self.moved = self.table(), []

    def on_epoch_end(self, epoch, logs=None):
        self.moved.append(float(np.abs(self.table() - self.start).max()))

    def table(self):
        return encoder_of(self.model).embedding_table.numpy()


def train_gradually(name, batches):
    """Weights, logged losses and EmbeddingsMoved of two epochs, the embeddings held in the first."""
    keras.utils.set_random_seed(1)
    with strategy(name).scope():
        model = classifier_model(BertEncoder(CONFIG, outputs=("pooled_output",)), 3)
        optimizer = AdamW(2e-3, clip_norm=CLIP, layer_decay=0.5, gradual=True)
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, GlobalMean(cross_entropy), jit_compile=False)
    watch = EmbeddingsMoved()
    callbacks = [GradualUnfreezing(), watch]
    history = model.fit(batches, epochs=2, verbose=0, shuffle=False, callbacks=callbacks).history["loss"]
    return model.get_weights(), history, watch.moved


def train_rematerialized(batches, *, rematerialize, micro_batch):
    """Weights of two replicas after an epoch with dropout."""
    keras.utils.set_random_seed(1)
    config = dataclasses.replace(CONFIG, hidden_dropout=0.3, attention_dropout=0.3)
    with strategy("mirrored").scope():
        encoder = BertEncoder(config, outputs=("pooled_output",))
        encoder.rematerialize = rematerialize
        made = classifier_model(encoder, 3)
        model = TrainingModel(made._inputs_struct, made._outputs_struct)
        model.compile(
            keras.optimizers.SGD(0.1), GlobalMean(cross_entropy), micro_batch=micro_batch, jit_compile=False
        )
    differ_between_replicas(model)
    model.fit(batches, verbose=0, shuffle=False)
    return model.get_weights()


def compare_rematerialized(batches):
    """By micro-batch, the greatest difference of a weight that rematerialization makes."""
    found = {}
    for micro_batch in (None, 3):
        plain, again = (
            train_rematerialized(batches, rematerialize=one, micro_batch=micro_batch) for one in (False, True)
        )
        found[str(micro_batch)] = greatest_difference(plain, again)
    return found


def train(name, batches):
    """Weights after `fit`, logged losses, their weighted means, recorded norms (on one device)."""
    keras.utils.set_random_seed(1)
    steps = int(batches.cardinality()) * EPOCHS
    optimizer_class = Recording if name == "one" else AdamW
    with strategy(name).scope():
        model = classifier_model(BertEncoder(CONFIG, outputs=("pooled_output",)), 3)
        schedule = WarmupLinearDecay(2e-3, total_steps=2 * steps, warmup_steps=2)
        optimizer = optimizer_class(schedule, clip_norm=CLIP)
        model.compile(
            optimizer,
            GlobalMean(cross_entropy),
            weighted_metrics=[cross_entropy],
            run_eagerly=name == "one",
            jit_compile=False,
        )
    history = model.fit(batches, epochs=EPOCHS, verbose=0, shuffle=False).history
    assert optimizer.iterations.numpy() == steps
    return model.get_weights(), history["loss"], history["cross_entropy"], getattr(optimizer, "norms", [])


def run_of_two(task, folder, data, *, batch_size):
    """results.json of a run on two replicas, with the measure of the reloaded run."""
    results = finetune(
        task,
        checkpoint=folder / "checkpoint",
        output=folder / f"run_{task.name}",
        hparams=Hparams(epochs=1, batch_size=batch_size, learning_rate=1e-3, seq_length=40),
        strategy_name="mirrored",
        verbose=0,
        log=lambda line: None,
    )
    return results | {"reloaded": evaluate(load_run(folder / f"run_{task.name}", data=data), "validation")}


def train_task(task, folder, name, *, batch_size, seq_length, micro_batch=None):
    """Weights and logged losses of what `finetune` trains, after an epoch in a fixed order."""
    source, distribution = checkpoints.read(folder / "checkpoint"), strategy(name)
    preprocess = Preprocessor(checkpoints.tokenizer_of(source), seq_length=seq_length, pad_to_longest=True)
    rows = rows_for(distribution, batch_size)
    batches = dataset(task, preprocess, task.examples("train"), batch_size=batch_size, multiple_of=rows)
    keras.utils.set_random_seed(1)
    with distribution.scope():
        hparams = Hparams(learning_rate=1e-3, micro_batch=micro_batch)
        settings = {"total_steps": 9, "keep_head": False, "log": lambda line: None}
        model = _compiled_model(task, source, hparams, **settings)
    losses = model.fit(batches, verbose=0, shuffle=False).history["loss"]
    return model.get_weights(), losses, [len(labels) for _, labels, _ in batches]


def compare_task(task, folder, *, batch_size, seq_length=40, **of_two):
    """Two replicas beside one device, in batches that two do not divide. of_two: settings of the replicas alone"""
    sizes = {"batch_size": batch_size, "seq_length": seq_length}
    one, losses, rows = train_task(task, folder, "one", **sizes)
    two, losses_of_two, rows_of_two = train_task(task, folder, "mirrored", **sizes, **of_two)
    return {
        "difference": greatest_difference(one, two),
        "losses": losses,
        "losses_of_two": losses_of_two,
        "rows": rows,
        "rows_of_two": rows_of_two,
    }


def compare_vectors(task, folder, *, batch_size):
    """The same for a feature-based training: what is trained, after an epoch, and the results of both."""
    results, weights = [], []
    for name in ("one", "mirrored"):
        settings = {"epochs": 1, "batch_size": batch_size, "learning_rate": 1e-3, "seq_length": 40}
        settings |= {"feature_layers": "0,1", "lstm_layers": 1, "lstm_units": 4, "lstm_dropout": 0.0}
        made = finetune(
            task,
            checkpoint=folder / "checkpoint",
            output=folder / f"vectors_{name}",
            hparams=Hparams(**settings),
            strategy_name=name,
            verbose=0,
            log=lambda line: None,
        )
        results.append(made)
        weights.append(safetensors.numpy.load_file(folder / f"vectors_{name}" / "top.safetensors"))
    one, two = weights
    # A bias that all choices share changes no loss: its gradient is rounding, which Adam scales up.
    names = [name for name in one if name != "classifier/dense/bias"]
    return {
        "difference": greatest_difference(*([weight[name] for name in names] for weight in (one, two))),
        "losses": [made["history"][0]["loss"] for made in results],
        "steps": [made["steps"] for made in results],
    }


def answered(run, data, name):
    """The lines that `evaluate` and `predict` print with a strategy."""
    lines = []
    for command in (
        ["evaluate", "--data", str(data), "--json"],
        ["predict", "--input", str(data / "dev.tsv")],
    ):
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
            cli.main(["bert-keras", *command, "--run", str(run), "--batch-size", "7", "--strategy", name])
        lines.append([json.loads(line) for line in printed.getvalue().splitlines()])
    return lines


def compare():
    """By scenario, the greatest difference of a weight, the logged losses, the norms before clipping, and results of runs."""
    results = {}
    for scenario, (counts, batch_size) in SCENARIOS.items():
        batches = data(counts, batch_size)
        one, losses, means, norms = train("one", batches)
        if scenario == "padded":
            batches = pad_batches(batches, multiple_of=2)
        two, losses_of_two, means_of_two, _ = train("mirrored", batches)
        results[scenario] = {
            "steps": len(norms),
            "difference": greatest_difference(one, two),
            "clip": CLIP,
            "least_norm": min(norms),
            "losses": losses,
            "losses_of_two": losses_of_two,
            "means": means,
            "means_of_two": means_of_two,
        }
    one, losses, moved = train_gradually("one", data((19,), 8))
    two, losses_of_two, _ = train_gradually("mirrored", data((19,), 8))
    results["gradual"] = {
        "difference": greatest_difference(one, two),
        "losses": losses,
        "losses_of_two": losses_of_two,
        "embeddings_moved": moved,
    }
    results["rematerialized"] = compare_rematerialized(data((16,), 8))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs.write_checkpoint(folder / "checkpoint", num_layers=1, **NO_DROPOUT)
        files = runs.write_data(folder / "data", "sst2", count=33)
        reviews = TextClassification.open("sst2", files)
        results["finetune"] = run_of_two(reviews, folder, files, batch_size=9)
        results["commands"] = [answered(folder / "run_sst2", files, name) for name in ("one", "mirrored")]
        endings = small_tasks.write_choices(folder / "endings", count=33)
        results["choices"] = run_of_two(MultipleChoice("codah", endings), folder, endings, batch_size=8)
        results["vectors"] = compare_vectors(MultipleChoice("codah", endings), folder, batch_size=9)
        entities = Tagging.open("conll2003", small_tasks.write_entities(folder / "entities", count=63))
        results["odd_batches"] = compare_task(entities, folder, batch_size=9)
        sentences = Tagging.open("conll2003", folder / "entities", doc_stride=8, crf=True)
        results["crf"] = compare_task(sentences, folder, batch_size=9, seq_length=16, micro_batch=2)
    return results


@pytest.fixture(scope="module")
def two_replicas():
    return jobs.value("test_train_replicas:compare", replicas=2)


@pytest.mark.parametrize(("scenario", "steps"), [("short_batches", 12), ("padded", 6)])
def test_two_replicas_do_what_one_device_does(two_replicas, scenario, steps):
    """Weights that differ a thousandfold between the replicas, clipping at every step.

    Where `pad_batches` adds rows, to a first batch that two replicas do not divide, the weighted mean is the measure.
    """
    got = two_replicas[scenario]
    assert got["steps"] == steps
    assert got["least_norm"] > 2 * got["clip"]
    assert got["difference"] <= 1e-5
    assert got["means_of_two"] == pytest.approx(got["means"], rel=1e-6)
    assert got["losses"][0] != got["losses"][1]
    if scenario != "padded":
        assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)


@pytest.mark.parametrize("kind", ["odd_batches", "crf"])
def test_batches_that_replicas_do_not_divide(two_replicas, kind):
    """Rows of weight 0 fill up; weights and the logged loss stay those of one device. Those of a CRF are documents."""
    got = two_replicas[kind]
    assert (got["rows"], got["rows_of_two"]) == ([9, 9, 3], [10, 10, 4])
    assert got["difference"] <= 1e-6
    assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)


def test_gradual_unfreezing_on_two_replicas(two_replicas):
    """With a rate for each layer: the same weights as on one device, and the embeddings wait for epoch 2."""
    got = two_replicas["gradual"]
    assert got["difference"] <= 1e-5
    assert got["losses_of_two"] == pytest.approx(got["losses"], rel=1e-6)
    first, last = got["embeddings_moved"]
    assert first == 0 < last


def test_rematerialization_on_two_replicas(two_replicas):
    """With dropout, in whole batches and in micro-batches."""
    assert {*two_replicas["rematerialized"]} == {"None", "3"}
    assert max(two_replicas["rematerialized"].values()) <= 1e-6


def test_choices_on_two_replicas(two_replicas):
    results = two_replicas["choices"]
    assert (results["strategy"], results["train_examples"], results["steps"]) == ("mirrored", 33, 5)
    assert np.isfinite(results["history"][0]["loss"])
    assert results["reloaded"] == {"accuracy": results["measures"]["val_accuracy"]}


def test_vectors_on_two_replicas(two_replicas):
    """A feature-based training of choices, in batches of nine: the weights of one device."""
    got = two_replicas["vectors"]
    assert got["steps"] == [4, 4]
    assert got["difference"] <= 1e-6
    assert got["losses"][0] == pytest.approx(got["losses"][1], rel=1e-6)


def test_finetune_on_two_replicas(two_replicas):
    """A run directory as from one device, in batches of nine."""
    results = two_replicas["finetune"]
    assert (results["strategy"], results["train_examples"], results["steps"]) == ("mirrored", 33, 4)
    assert np.isfinite(results["history"][0]["loss"])
    assert results["reloaded"] == {"accuracy": results["measures"]["val_accuracy"]}


def test_evaluate_and_predict_on_two_replicas(two_replicas):
    """In batches of seven: the answers of one device."""
    ((measures, records), (measures_of_two, records_of_two)) = two_replicas["commands"]
    (two,), (one,) = measures_of_two, measures  # the words of the most confident errors have probabilities
    assert two["validation"] == one["validation"]
    assert [table["rows"] for table in two["tables"]["validation"][:2]] == [
        table["rows"] for table in one["tables"]["validation"][:2]
    ]
    assert len(records_of_two) == len(records) > 7
    for two, one in zip(records_of_two, records, strict=True):
        assert two["label"] == one["label"] and two["sentence"] == one["sentence"]
        assert two["probabilities"] == pytest.approx(one["probabilities"], abs=1e-6)
