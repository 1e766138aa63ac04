"""Two replicas on two logical CPUs against one device at the same global batches. Run as a script by test_train.py.

Out: one line of JSON on standard output, by scenario: the greatest
difference of a weight, the losses that `fit` logged, the norms of the gradients before clipping; results of a run.
"""

import json
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import runs
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

from bert_keras.config import BertConfig  # noqa: E402
from bert_keras.encoder import BertEncoder  # noqa: E402
from bert_keras.features import ENCODER_INPUTS  # noqa: E402
from bert_keras.optimization import AdamW, GlobalMean, WarmupLinearDecay, cross_entropy  # noqa: E402
from tasks.glue import ROWS, Glue  # noqa: E402
from tasks.task import Hparams, classifier_model  # noqa: E402
from tasks.train import evaluate, finetune, load_run, strategy  # noqa: E402

CONFIG = BertConfig(
    vocab_size=60,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=16,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.2,
)
CLIP = 0.05
# Examples, batch size, epochs.
SCENARIOS = {"even": (80, 8, 2), "last_batch_of_three": (19, 8, 2), "last_batch_of_one": (17, 8, 2)}


class Recording(AdamW):
    """Keeps the norm of what it clips; for eager steps."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.norms = []

    def _clip(self, grads):
        self.norms.append(float(tf.linalg.global_norm(grads)))
        return super()._clip(grads)


def data(count, batch_size):
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


def train(name, batches, epochs):
    """Weights after `fit`, logged losses, recorded norms (on one device)."""
    keras.utils.set_random_seed(1)
    steps = int(batches.cardinality()) * epochs
    optimizer_class = Recording if name == "one" else AdamW
    with strategy(name).scope():
        model = classifier_model(BertEncoder(CONFIG, outputs=("pooled_output",)), 3)
        schedule = WarmupLinearDecay(2e-3, total_steps=2 * steps, warmup_steps=2)
        optimizer = optimizer_class(schedule, clip_norm=CLIP)
        model.compile(optimizer, GlobalMean(cross_entropy), run_eagerly=name == "one", jit_compile=False)
    history = model.fit(batches, epochs=epochs, verbose=0, shuffle=False).history["loss"]
    assert optimizer.iterations.numpy() == steps
    return model.get_weights(), history, getattr(optimizer, "norms", [])


def run_of_two(folder):
    """results.json of a run on two replicas, with the measure of the reloaded run."""
    task = Glue(ROWS["sst2"], runs.write_data(folder / "data", "sst2", count=33))
    results = finetune(
        task,
        checkpoint=runs.write_checkpoint(folder / "checkpoint", num_layers=1),
        output=folder / "run",
        hparams=Hparams(epochs=1, batch_size=8, learning_rate=1e-3, seq_length=40),
        strategy_name="mirrored",
        verbose=0,
        log=lambda line: None,
    )
    return results | {"reloaded": evaluate(load_run(folder / "run", data=folder / "data"), "validation")}


def main():
    results = {}
    for scenario, (count, batch_size, epochs) in SCENARIOS.items():
        one, losses, norms = train("one", data(count, batch_size), epochs)
        two, losses_of_two, _ = train("mirrored", data(count, batch_size), epochs)
        results[scenario] = {
            "steps": len(norms),
            "difference": max(float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True)),
            "clip": CLIP,
            "least_norm": min(norms),
            "losses": losses,
            "losses_of_two": losses_of_two,
        }
    with tempfile.TemporaryDirectory() as folder:
        results["finetune"] = run_of_two(Path(folder))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
