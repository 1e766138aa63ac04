"""The old side of keras-bert: Python 3.11, TensorFlow 2.15, keras-bert 0.89. See ours.py.

Its AdamWarmup needs the optimizers of TensorFlow 2.10 and older, so the ten steps are Adam's.
"""

import importlib.metadata
import json
import pathlib
import sys

import numpy as np
import tensorflow as tf
from keras_bert import load_trained_model_from_checkpoint
from tensorflow import keras

folder = pathlib.Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
prefix = str(folder / "google/bert_model.ckpt")
batches = np.load(folder / "batches.npz")

# Its dropout is 0.1, whatever the config says.
options = {"training": True, "trainable": True, "seq_len": settings["length"], "dropout_rate": 0.0}
bert = load_trained_model_from_checkpoint(str(folder / "google/bert_config.json"), prefix, **options)
logits = keras.layers.Dense(2, name="classifier")(bert.get_layer("NSP-Dense").output)
model = keras.Model(bert.inputs[:2], logits)
head = [tf.train.load_variable(prefix, name) for name in ("output_weights", "output_bias")]
model.get_layer("classifier").set_weights([head[0].T, head[1]])
model.compile(
    keras.optimizers.Adam(settings["rate"]), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
found = {
    "losses": [],
    "versions": {"tensorflow": tf.__version__, "keras-bert": importlib.metadata.version("keras-bert")},
}
for step in range(settings["steps"]):
    inputs = [batches["input_word_ids"][step], batches["input_type_ids"][step]]
    if step == 0:
        found["logits"] = model.predict_on_batch(inputs).tolist()
    model.reset_metrics()
    found["losses"].append(float(model.train_on_batch(inputs, batches["labels"][step])))
(folder / "kerasbert.json").write_text(json.dumps(found))
print(found)
