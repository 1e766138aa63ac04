"""A task and an objective as a user writes them, in a module of his own; tests give them by name."""

import dataclasses
import json
from typing import ClassVar

import keras
import tensorflow as tf

import bert_keras as bk
from bert_keras.fields import Checked, setting
from bert_keras.tasks.data.sources import numbered_lines, split_file
from bert_keras.tasks.pretraining.recipes import Recipe
from bert_keras.tasks.pretraining.samplers import Sampler
from bert_keras.tasks.study.rows import Row

FILES = {"train": ("train.jsonl",), "validation": ("dev.jsonl",)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Checked):
    names_of_labels: tuple[str, ...] = setting(("no", "yes"), help="the labels, in order")


@keras.saving.register_keras_serializable("own_relations")
class Relation(keras.layers.Layer):
    """Statistics of batches, a learned number, and layers that have no names."""

    def __init__(self, count, **how):
        super().__init__(**how)
        self.count, self.norm, self.out = count, keras.layers.BatchNormalization(), keras.layers.Dense(count)

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.norm.build(shape)
        self.out.build(shape)

    def call(self, states, training=False):
        return self.out(self.norm(states, training=training) * self.scale)

    def get_config(self):
        return {**super().get_config(), "count": self.count}


class Relations(bk.Task):
    settings = Settings
    measure = "accuracy"

    @property
    def label_names(self):
        return self.names_of_labels

    def examples(self, split):
        rows = [json.loads(line) for _, line in numbered_lines(split_file(self.source, split, FILES))]
        columns = {"text": [row["text"] for row in rows], "label": [row["label"] for row in rows]}
        return tf.data.Dataset.from_tensor_slices(columns)

    def labels(self, raw, features):
        return raw["label"], tf.ones_like(raw["label"], tf.float32)

    def model(self, encoder):
        inputs = bk.encoder_inputs()
        logits = Relation(len(self.label_names), name="relation")(encoder(inputs)["pooled_output"])
        return keras.Model(inputs, logits)

    def decode_features(self, outputs):
        return {"label": tf.gather(tf.constant(self.label_names), tf.argmax(outputs, -1))}

    def evaluate(self, predictions, raw):
        names = [self.label_names[i].encode() for i in raw["label"]]
        yield "accuracy", float((predictions["label"] == names).mean())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths(bk.Objective):
    """Tells a text of more than `long` tokens from a shorter one."""

    name: ClassVar[str] = "length"
    reads: ClassVar[str] = "sequence_output"

    long: int = setting(12, help="tokens of the longest short text", at_least=1)

    def label(self, features, *, seed, worker_rows=None):
        labels = tf.cast(tf.reduce_sum(features["input_mask"], -1) > self.long, tf.int32)
        return features, labels, tf.ones_like(labels, tf.float32)

    def head(self, encoder):
        made = keras.layers.Dense(2, name=self.name)
        made.build((None, encoder.config.hidden_size))
        return made

    def logits(self, head, outputs, features):
        return head(outputs["sequence_output"][:, 0])


LENGTHS = Recipe(objectives=("masked_lm", Lengths), settings={"long": 10})


def each_line(documents, rng, *, settings):
    """Each line is an instance."""
    for document in documents:
        for start, end in zip(document.bounds, document.bounds[1:], strict=False):
            yield start, min(end, start + settings.room), 0


LINES = Sampler(each_line)
ROW = Row(name="lengths", recipe="own_relations:LENGTHS")
