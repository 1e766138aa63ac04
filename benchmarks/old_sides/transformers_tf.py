"""The old side of transformers' TensorFlow classes: transformers 4.57, TensorFlow 2.19, tf-keras. See ours.py."""

import json
import os
import pathlib
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
import tf_keras
import transformers
from patches import patch_transformers
from transformers import AutoTokenizer, TFAutoModelForSequenceClassification, create_optimizer

folder = pathlib.Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
patch_transformers()
loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def read(name):
    """Features and labels of a file of rows."""
    lines = (folder / f"{name}.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    rows = [line.rsplit("\t", 1) for line in lines]
    tokenizer = AutoTokenizer.from_pretrained(str(folder / "start"))
    limits = {"padding": "max_length", "truncation": True, "max_length": settings["length"]}
    encoded = tokenizer([row[0] for row in rows], return_tensors="np", **limits)
    return dict(encoded), np.array([row[1] for row in rows], "int32")


model = TFAutoModelForSequenceClassification.from_pretrained(str(folder / "dry"))
model.save_pretrained(str(folder / "transformers_tf"))  # a tf_model.h5, which our side reads
AutoTokenizer.from_pretrained(str(folder / "dry")).save_pretrained(str(folder / "transformers_tf"))
batches = np.load(folder / "batches.npz")
names = {"input_ids": "input_word_ids", "attention_mask": "input_mask", "token_type_ids": "input_type_ids"}
optimizer, _ = create_optimizer(
    settings["rate"], settings["steps"], settings["warmup"], weight_decay_rate=0.01
)
model.compile(optimizer=optimizer, loss=loss)
inputs = [{new: batches[old][step] for new, old in names.items()} for step in range(settings["steps"])]
found = {"logits": model(inputs[0], training=False).logits.numpy().tolist(), "losses": []}
for step, features in enumerate(inputs):
    model.reset_metrics()
    found["losses"].append(
        float(model.train_on_batch(features, batches["labels"][step], return_dict=True)["loss"])
    )

train, dev = read("train"), read("dev")
found["accuracies"] = []
for seed in settings["seeds"]:
    tf_keras.utils.set_random_seed(seed)
    model = TFAutoModelForSequenceClassification.from_pretrained(str(folder / "start"))
    steps = settings["epochs"] * -(-len(train[1]) // settings["batch"])
    optimizer, _ = create_optimizer(settings["peak"], steps, steps // 10, weight_decay_rate=0.01)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[1])).batch(settings["batch"])
    model.fit(data, epochs=settings["epochs"], verbose=0)
    logits = model.predict(tf.data.Dataset.from_tensor_slices(dev[0]).batch(64), verbose=0).logits
    found["accuracies"].append(float((logits.argmax(-1) == dev[1]).mean()))
found["versions"] = {
    "transformers": transformers.__version__,
    "tensorflow": tf.__version__,
    "tf-keras": tf_keras.__version__,
}
(folder / "transformers_tf.json").write_text(json.dumps(found))
print(found)
