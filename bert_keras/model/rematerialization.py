"""Rematerialization: the backward pass computes a block's activations again, so that the forward pass need not keep them.

In: a block and its inputs. Out: its outputs; of its activations, only the inputs stay in memory. The gradients are equal, since
dropout draws its seeds once (Chen et al. 2016). TensorFlow only.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras


def rematerialized(
    block: keras.layers.Layer,
    queries: Any,
    states: Any,
    scores_mask: Any,
    *,
    tokens: Any = None,
    probabilities: bool,
) -> tuple[Any, Any]:
    """`block(queries, states, scores_mask, training=True, tokens=tokens)`, whose gradient computes the block again.

    probabilities: returns the attention probabilities too, else None in their place
    """
    generators = [
        layer.seed_generator
        for layer in block._flatten_layers()
        if isinstance(layer, keras.layers.Dropout) and layer.rate > 0
    ]
    seeds = [generator.next() for generator in generators]
    asks_all = queries is states  # a block tells the two apart by identity

    def compute(states: Any, scores_mask: Any, *asked: Any) -> Any:
        with _drawing(generators, seeds):
            made = block(states if asks_all else asked[0], states, scores_mask, training=True, tokens=tokens)
        return made if probabilities else made[0]

    made = keras.remat(compute)(states, scores_mask, *(() if asks_all else (queries,)))
    return made if probabilities else (made, None)


@contextlib.contextmanager
def _drawing(generators: Sequence[Any], seeds: Sequence[Any]) -> Iterator[None]:
    """Within it, each seed generator gives the seed that was drawn, whenever it is asked."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator.next = lambda ordered=True, seed=seed: seed
    try:
        yield
    finally:
        for generator in generators:
            del generator.next
