"""A TextModel that trains on strings in each worker of a cluster. Run as a script by test_multiworker.py.

In: a checkpoint. Out: a line of JSON with what `fit`, `evaluate` and `predict` returned, a digest of the weights, and the numbers
of texts that `fit` tokenized together.
"""

import hashlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()  # before TensorFlow runs anything

import keras  # noqa: E402
import runs  # noqa: E402

import bert_keras as bk  # noqa: E402
from bert_keras.optimization.training_model import TrainingModel  # noqa: E402
from bert_keras.tasks.problems.classification import TextClassification  # noqa: E402

keras.utils.set_random_seed(1)
random.seed(os.getpid())  # decides the order of the texts: another number in each worker
orders, batches = [], bk.TextModel._batches


def noted(self, *arguments, seed=None, **options):
    orders.append(seed)
    return batches(self, *arguments, seed=seed, **options)


bk.TextModel._batches = noted
tokenized, features_of = [], TextClassification.features


def counted(self, preprocess, raw):
    tf.py_function(lambda texts: tokenized.append(len(texts)), [next(iter(raw.values()))], [])
    return features_of(self, preprocess, raw)


TextClassification.features = counted
texts, labels = runs.texts(23, seed=1), ["bad", "good"] * 11 + ["bad"]
with STRATEGY.scope():
    model = bk.classifier(sys.argv[1], labels=["bad", "good"])
# Outside the scope, as in docs/scale.md.
model.compile(learning_rate=1e-3, micro_batch=3)
validation = texts[:7], labels[:7]
history = model.fit(texts, labels, batch_size=9, epochs=2, verbose=0, validation_data=validation).history
of_fit = sorted(tokenized)
with STRATEGY.scope():
    number = keras.Input((1,))
    doubled = TrainingModel(number, keras.layers.Rescaling(2.0)(number))
with tempfile.TemporaryDirectory() as folder:
    # By default, TensorFlow would give each worker one of the files.
    files = [Path(folder) / name for name in ("first", "second")]
    for file, lines in zip(files, ("0 1 2 3", "4 5 6"), strict=True):
        file.write_text("\n".join(lines.split()))
    numbers = tf.data.TextLineDataset([*map(str, files)]).map(tf.strings.to_number).map(lambda x: x[None])
    doubles = doubled.predict(numbers.batch(3), verbose=0).ravel().tolist()
weights = b"".join(one.numpy().tobytes() for one in model.trainable_weights)
found = {
    "orders": orders,
    "fit": history,
    "evaluate": model.evaluate(texts, labels, verbose=0, return_dict=True),
    "predict": model.predict(texts)["label"].tolist(),
    "doubled": doubles,
    "tokenized": of_fit,
    "weights": hashlib.sha256(weights).hexdigest(),
}
print(json.dumps(found))
