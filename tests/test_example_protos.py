"""serialize_examples against protobuf's own serialization."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.tasks.pretraining.write_records import serialize_examples


def by_protobuf(columns):
    def feature(values):
        if values.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    rows = len(next(iter(columns.values())))
    for row in range(rows):
        named = {name: feature(np.atleast_1d(values[row])) for name, values in columns.items()}
        example = tf.train.Example(features=tf.train.Features(feature=named))
        yield example.SerializeToString(deterministic=True)


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_the_bytes_are_those_of_protobuf(rows):
    draw = np.random.default_rng(rows)
    columns = {
        "next": draw.integers(0, 2, rows).astype("int32"),
        "ids": draw.integers(0, 1 << 30, (rows, 130)).astype("int32"),  # a length of two bytes
        "below zero": draw.integers(-(1 << 62), 1 << 62, (rows, 2)),
        "weights": draw.normal(size=(rows, 5)).astype("float32"),
        "nothing": np.zeros((rows, 0), "int32"),
    }
    in_graph = tf.function(serialize_examples, autograph=False)
    made = in_graph({name: tf.constant(values) for name, values in columns.items()})
    assert made.numpy().tolist() == [*by_protobuf(columns)]
