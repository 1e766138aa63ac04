"""Compares the speed of bk.CRF with pytorch-crf, on the same numbers.

    pip install torch pytorch-crf
    python benchmarks/crf.py

In: nothing; emissions, tags and lengths are random. Out: for each size and each part, how many times longer pytorch-crf takes
(median over the rounds, and the range; both take turns), and how far the numbers are apart:

    step     the mean negative log-likelihood and its gradients, of emissions and weights
    decode   the best paths; pytorch-crf makes lists of them

TensorFlow runs a traced graph, PyTorch runs at once: pytorch-crf's own docs show no other form.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import interleave
import numpy as np
import tensorflow as tf
import torch
import torchcrf
from rich.console import Console
from rich.table import Table

import bert_keras as bk

SIZES = ((32, 30, 9), (32, 120, 9), (8, 120, 37))  # sentences, words of the longest, tags
ROUNDS, TURN, THREADS = 7, 0.3, 2
WEIGHTS = {"start": "start_transitions", "end": "end_transitions", "transitions": "transitions"}


def ours(emissions: np.ndarray, tags: np.ndarray, mask: np.ndarray, weights: Mapping[str, np.ndarray]) -> Any:
    """The two parts, as functions without arguments."""
    crf = bk.CRF(emissions.shape[-1])
    for name in WEIGHTS:
        getattr(crf, name).assign(weights[name])
    given, real = tf.constant(emissions), tf.constant(mask)
    labels = tf.where(real, tf.constant(tags, tf.int32), -1)
    variables = [one.value for one in crf.trainable_weights]

    @tf.function(autograph=False)
    def step() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = tf.reduce_mean(bk.crf_loss(labels, crf(given)))
        return loss, tape.gradient(loss, [given, *variables])

    @tf.function(autograph=False)
    def decode() -> tf.Tensor:
        return bk.CRF.best_paths(crf(given), real)

    return step, decode


def theirs(
    emissions: np.ndarray, tags: np.ndarray, mask: np.ndarray, weights: Mapping[str, np.ndarray]
) -> Any:
    """The same parts by pytorch-crf."""
    crf = torchcrf.CRF(emissions.shape[-1], batch_first=True)
    with torch.no_grad():
        for name, their_name in WEIGHTS.items():
            getattr(crf, their_name).copy_(torch.tensor(weights[name]))
    given, real, labels = torch.tensor(emissions, requires_grad=True), torch.tensor(mask), torch.tensor(tags)

    def step() -> tuple[Any, Any]:
        loss = -crf(given, labels, mask=real, reduction="mean")
        return loss.detach(), torch.autograd.grad(loss, [given, *crf.parameters()])

    def decode() -> list[list[int]]:
        with torch.no_grad():
            return crf.decode(given, real)

    return step, decode


def apart(
    found: tuple[Callable[[], Any], ...], wanted: tuple[Callable[[], Any], ...], mask: np.ndarray
) -> tuple[str, str]:
    """The difference of the loss and of the gradient of emissions, and the number of words with another tag."""
    (loss, gradients), (their_loss, their_gradients) = found[0](), wanted[0]()
    loss_apart = abs(float(loss) - float(their_loss)) / abs(float(their_loss))
    gradient_apart = float(np.abs(gradients[0].numpy() - their_gradients[0].numpy()).max())
    paths = found[1]().numpy()[mask]
    others = int((paths != np.concatenate([np.array(path) for path in wanted[1]()])).sum())
    return f"loss {loss_apart:.1e}, gradient {gradient_apart:.1e}", f"{others} of {mask.sum()} words"


def main() -> None:
    """Compares and prints."""
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    torch.set_num_threads(THREADS)
    table = Table("sentences", "words", "tags", "part", "pytorch-crf over ours", "range", "apart")
    for rows, length, count in SIZES:
        draw = np.random.default_rng(rows + length)
        emissions = draw.normal(size=(rows, length, count)).astype("float32")
        tags = draw.integers(0, count, (rows, length))
        mask = np.arange(length) < np.append(draw.integers(1, length + 1, rows - 1), length)[:, None]
        shapes = {"start": count, "end": count, "transitions": (count, count)}
        weights = {name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()}
        made = [form(emissions, tags, mask, weights) for form in (ours, theirs)]
        differences = apart(*made, mask)
        for part, *calls, difference in zip(("step", "decode"), *made, differences, strict=True):
            figures = interleave.take_turns(
                {
                    name: functools.partial(interleave.seconds_per_call, call, at_least=TURN, clock="wall")
                    for name, call in zip(("ours", "theirs"), calls, strict=True)
                },
                rounds=ROUNDS,
            )
            ratios = interleave.Ratios.of(figures["ours"], figures["theirs"])
            row = (rows, length, count, part, f"{ratios.median:.2f}", ratios, difference)
            table.add_row(*map(str, row))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
