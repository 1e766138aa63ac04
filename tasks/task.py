"""What a task is, and the one dataset() that turns its examples into batches.

In: raw strings and labels. Out: (features, labels, weights) batches of like length; and, for prediction, what
`Task.decode` says of every example, in the examples' order.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from bert_keras.encoder import BertEncoder, encoder_inputs
from bert_keras.features import POOLED_OUTPUT
from bert_keras.heads import ClassifierHead

Features = dict[str, tf.Tensor]
Raw = dict[str, tf.Tensor]

# Batches whose examples are sorted by length together: enough for like lengths, few enough for random order.
POOL = 50
_ROW = "row"  # the example's place in the data set, int64 [B]


class Task(Protocol):
    """One data set with its features, labels, model, loss, decoding and measures.

    kind: what task.json calls the class
    name: what the command line calls it
    outputs: the encoder outputs that its model reads
    measure: the name in `evaluate` by which the best epoch is chosen
    validation_splits: the labelled splits to measure; the first chooses the best epoch
    """

    kind: str
    name: str
    outputs: tuple[str, ...]
    measure: str
    validation_splits: tuple[str, ...]

    def examples(self, split: str) -> tf.data.Dataset:
        """Raw examples, one at a time: a dict of scalar tensors."""
        ...

    def features(self, preprocess: Callable[..., Features], raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S]."""
        ...

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels and weights float32, of the logits' leading shape."""
        ...

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> outputs."""
        ...

    def loss(self) -> keras.losses.Loss:
        """The loss of outputs and labels under weights."""
        ...

    def decode(self, outputs: Any, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """What is served, [B, ...]; in graph."""
        ...

    def signature(self) -> dict[str, tf.TensorSpec]:
        """The raw strings that serving takes."""
        ...

    def evaluate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """Yields (name, value) from what `decode` returned and the raw examples."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What task.json keeps, enough to make the task again without its data."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hparams:
    """The settings of one fine-tuning (defaults: Devlin et al. 2019, sec. 4.1 and A.3)."""

    batch_size: int = 32  # examples, over all replicas
    epochs: int = 3
    learning_rate: float = 5e-5
    warmup_proportion: float = 0.1  # of all steps
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    seq_length: int = 128  # wordpieces, special tokens counted
    seed: int = 12345
    max_examples: int | None = None  # of the training split, after shuffling
    freeze: str | None = None  # "encoder": train the head alone

    def __post_init__(self) -> None:
        wanted = {
            "batch_size": (self.batch_size >= 1, "at least 1"),
            "epochs": (self.epochs >= 1, "at least 1"),
            "learning_rate": (self.learning_rate > 0, "over 0"),
            "warmup_proportion": (0 <= self.warmup_proportion <= 1, "from 0 to 1"),
            "weight_decay": (self.weight_decay >= 0, "at least 0"),
            "seed": (0 <= self.seed < 2**32, "from 0 to 2**32 - 1"),
            "clip_norm": (self.clip_norm > 0, "over 0"),
            "max_examples": (self.max_examples is None or self.max_examples >= 1, "at least 1"),
            "freeze": (self.freeze in (None, "encoder"), "'encoder' or nothing"),
        }
        for name, (good, want) in wanted.items():
            if not good:
                raise ValueError(f"{name} is {getattr(self, name)!r}; {name} must be {want}.")


def classifier_model(encoder: BertEncoder, num_classes: int) -> keras.Model:
    """Features -> pooled output -> logits float32 [B, C]."""
    inputs = encoder_inputs()
    head = ClassifierHead(num_classes, config=encoder.config, dtype=encoder.dtype_policy)
    return keras.Model(inputs, head(encoder(inputs)[POOLED_OUTPUT]), name="classifier_model")


def take_examples(examples: tf.data.Dataset, *, count: int | None, seed: int) -> tf.data.Dataset:
    """`count` examples drawn without replacement, the same for the same seed; all of them where count is None."""
    if count is None:
        return examples
    return examples.shuffle(cardinality(examples), seed=seed, reshuffle_each_iteration=False).take(count)


def cardinality(examples: tf.data.Dataset) -> int:
    """How many examples there are; counted where the data set does not say. Raises ValueError on none."""
    count = int(examples.cardinality())
    if count < 0:
        count = sum(1 for _ in examples)
    if count == 0:
        raise ValueError("the data set is empty; at least one example is wanted.")
    return count


def batches(
    examples: tf.data.Dataset, *, batch_size: int, seed: int | None = None, drop_remainder: bool = False
) -> tf.data.Dataset:
    """Raw [B], examples of like length together.

    With a seed the order is random and another in every epoch, equal for equal seeds; without one it is fixed. Lengths are
    compared in bytes of raw text, so nothing is tokenized twice.
    """
    count = cardinality(examples)
    if seed is not None:
        examples = examples.shuffle(count, seed=seed)
    made = (
        examples.batch(POOL * batch_size)
        .map(_sort_by_length)
        .rebatch(batch_size, drop_remainder=drop_remainder)
    )
    if seed is not None:
        made = made.shuffle(POOL, seed=seed + 1)
    steps = count // batch_size if drop_remainder else -(-count // batch_size)
    return made.apply(tf.data.experimental.assert_cardinality(steps))


def dataset(
    task: Task,
    preprocess: Callable[..., Features],
    examples: tf.data.Dataset,
    *,
    batch_size: int,
    seed: int | None = None,
    drop_remainder: bool = False,
    labelled: bool = True,
) -> tf.data.Dataset:
    """What `fit` takes, (features, labels, weights); where `labelled` is False, (features, raw).

    The order is that of `batches`; `preprocess` pads each batch to its own longest, or to one length.
    """

    def featurize(raw: Raw) -> tuple[Any, ...]:
        features = task.features(preprocess, raw)
        if drop_remainder:  # tokenizing forgets how many rows there are, and a TPU must know
            features = {
                name: tf.ensure_shape(value, [batch_size, *value.shape[1:]])
                for name, value in features.items()
            }
        return (features, *task.labels(raw, features)) if labelled else (features, raw)

    made = batches(examples, batch_size=batch_size, seed=seed, drop_remainder=drop_remainder)
    return made.map(featurize, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(
        tf.data.AUTOTUNE
    )


def _sort_by_length(raw: Raw) -> Raw:
    texts = [tf.strings.length(value) for value in raw.values() if value.dtype == tf.string]
    lengths = tf.add_n([tf.reduce_sum(tf.reshape(text, [tf.shape(text)[0], -1]), axis=1) for text in texts])
    order = tf.argsort(lengths, stable=True)
    return {name: tf.gather(value, order) for name, value in raw.items()}


def predict(
    task: Task,
    preprocess: Callable[..., Features],
    model: keras.Model,
    examples: tf.data.Dataset,
    *,
    batch_size: int = 32,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What `task.decode` says of every example, and the raw examples, both [N, ...] in the examples' order.

    `progress` is called with the number of examples done since its last call.
    """
    numbered = examples.enumerate().map(lambda row, raw: raw | {_ROW: row})

    made = dataset(task, preprocess, numbered, batch_size=batch_size, labelled=False)

    @tf.function(autograph=False)
    def decode(features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        return task.decode(model(features, training=False), features, raw)

    step = decode.get_concrete_function(*made.element_spec)  # of unknown length: one trace for all
    parts = []
    for features, raw in made:
        decoded = {name: value.numpy() for name, value in step(features, raw).items()}
        parts.append((decoded, {name: value.numpy() for name, value in raw.items()}))
        progress(len(parts[-1][1][_ROW]))
    order = np.argsort(np.concatenate([raw[_ROW] for _, raw in parts]))
    decoded, raw = (
        {name: np.concatenate([part[side][name] for part in parts])[order] for name in parts[0][side]}
        for side in (0, 1)
    )
    raw.pop(_ROW)
    return decoded, raw
