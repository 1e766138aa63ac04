"""Compares an AdamW step of the word embeddings with a dense gradient, as we take it, to one with the sparse gradient.

    python benchmarks/embedding_gradients.py

In: nothing; ids and gradients are random. Out: for each width and batch, how many times longer than ours the other forms take
(median over the rounds, and the range; all forms take turns), and how far their weights are from ours after the steps:

    sparse  the rows of equal ids are summed, and the moments of all rows decay: the same weights as ours
    lazy    only the rows of the batch have a step, and the moments of the others stay: other weights than BERT's optimizer

A step is the gradient as TensorFlow gives it, a clip by its norm, and the update of weights and moments.
"""

import functools
from collections.abc import Callable

import interleave
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from bert_keras.optimization.update_kernels import adam, dense, square_sum

VOCABULARY, LENGTH = 30522, 128
CASES = ((384, 8), (384, 32), (768, 8), (768, 32))  # width, rows of the batch
RATE, BETA_1, BETA_2, EPSILON, CLIP_NORM = 1e-3, 0.9, 0.999, 1e-6, 1.0
ROUNDS, TURN, THREADS, COMPARED = 7, 0.3, 2, 5

Step = Callable[[tf.Variable, "Moments", tf.IndexedSlices], None]


class Moments:
    """The two moments of a variable; each has a `value`, as Keras' variables have."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.momentum, self.velocity = (_Held(shape) for _ in range(2))


class _Held:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.value = tf.Variable(tf.zeros(shape))


def _scale(values: tf.Tensor) -> tf.Tensor:
    return CLIP_NORM / tf.maximum(tf.sqrt(square_sum(values)), CLIP_NORM)


def dense_step(weights: tf.Variable, moments: Moments, slices: tf.IndexedSlices) -> None:
    """A step as `bert_keras.optimization.optimizers.AdamW` makes it."""
    gradient = dense(slices)
    adam(
        weights,
        moments.momentum,
        moments.velocity,
        gradient * _scale(gradient),
        rate=RATE,
        beta_1=BETA_1,
        beta_2=BETA_2,
        epsilon=EPSILON,
    )


def _summed(slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """The ids of the batch, each once, and their clipped gradients."""
    ids, places = tf.unique(slices.indices)
    gradient = tf.math.unsorted_segment_sum(slices.values, places, tf.size(ids))
    return ids, gradient * _scale(gradient)


def sparse_step(weights: tf.Variable, moments: Moments, slices: tf.IndexedSlices) -> None:
    """Decays the moments of all rows, and adds the gradient to those of the batch."""
    ids, gradient = _summed(slices)
    momentum, velocity = moments.momentum.value, moments.velocity.value
    momentum.assign(BETA_1 * momentum)
    momentum.scatter_add(tf.IndexedSlices((1 - BETA_1) * gradient, ids))
    velocity.assign(BETA_2 * velocity)
    velocity.scatter_add(tf.IndexedSlices((1 - BETA_2) * tf.square(gradient), ids))
    weights.assign_sub(RATE * momentum / (tf.sqrt(velocity) + EPSILON))


def lazy_step(weights: tf.Variable, moments: Moments, slices: tf.IndexedSlices) -> None:
    """Changes the rows of the batch alone."""
    ids, gradient = _summed(slices)
    momentum, velocity = moments.momentum.value, moments.velocity.value
    first = BETA_1 * tf.gather(momentum, ids) + (1 - BETA_1) * gradient
    second = BETA_2 * tf.gather(velocity, ids) + (1 - BETA_2) * tf.square(gradient)
    momentum.scatter_update(tf.IndexedSlices(first, ids))
    velocity.scatter_update(tf.IndexedSlices(second, ids))
    weights.scatter_sub(tf.IndexedSlices(RATE * first / (tf.sqrt(second) + EPSILON), ids))


FORMS: dict[str, Step] = {"dense": dense_step, "sparse": sparse_step, "lazy": lazy_step}


def prepared(step: Step, width: int, rows: int) -> tuple[tf.Variable, Callable[[], None]]:
    """The weights, and a function that makes one step with the next batch."""
    random = np.random.default_rng(1)
    weights = tf.Variable(random.normal(size=(VOCABULARY, width)).astype("float32"))
    moments = Moments(weights.shape)
    ids = tf.constant(random.zipf(1.3, (8, rows * LENGTH)) % VOCABULARY, tf.int32)  # words repeat, as in text
    values = tf.constant(random.normal(0, 0.01, (rows * LENGTH, width)).astype("float32"))
    count = tf.Variable(0, dtype=tf.int32)

    @tf.function(autograph=False)
    def call() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weights, ids[count % 8]) * values)
        step(weights, moments, tape.gradient(loss, weights))
        count.assign_add(1)

    return weights, call


def main() -> None:
    """Compares and prints."""
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    table = Table(
        "width", "batch", "form", "time over dense", "range", f"weights apart after {COMPARED} steps"
    )
    for width, rows in CASES:
        made = {name: prepared(step, width, rows) for name, step in FORMS.items()}
        for _, call in made.values():
            for _ in range(COMPARED):
                call()
        ours = made["dense"][0].numpy()
        apart = {name: float(np.abs(weights.numpy() - ours).max()) for name, (weights, _) in made.items()}
        figures = interleave.take_turns(
            {
                name: functools.partial(interleave.seconds_per_call, call, at_least=TURN, clock="wall")
                for name, (_, call) in made.items()
            },
            rounds=ROUNDS,
        )
        for name in ("sparse", "lazy"):
            ratios = interleave.Ratios.of(figures["dense"], figures[name])
            table.add_row(
                str(width),
                f"{rows} x {LENGTH}",
                name,
                f"{ratios.median:.2f}",
                str(ratios),
                f"{apart[name]:.1e}",
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
