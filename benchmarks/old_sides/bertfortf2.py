"""The old side of bert-for-tf2: Python 3.11, TensorFlow 2.15, bert-for-tf2 0.14.9 (built with setuptools under 66). See ours.py.

It loads no pooler: the dense layer on [CLS] of its examples gets the checkpoint's pooler here. It attends to padding, and
with ids alone it adds no type embeddings.
"""

import importlib.metadata
import json
import pathlib
import sys

import bert
import numpy as np
import tensorflow as tf
from patches import patch_bert_for_tf2
from tensorflow import keras

patch_bert_for_tf2()
folder = pathlib.Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
prefix = str(folder / "google/bert_model.ckpt")
batches = np.load(folder / "batches.npz")

# params_from_pretrained_ckpt wants no other *_config.json in the folder.
config = bert.loader.StockBertConfig.from_json_string((folder / "google/bert_config.json").read_text())
params = bert.loader.map_stock_config_to_params(config)
layer = bert.BertModelLayer.from_params(params, name="bert")
inputs = [keras.Input((settings["length"],), dtype="int32") for _ in range(2)]  # ids and types
cls = keras.layers.Lambda(lambda states: states[:, 0])(layer(inputs))
dense, classifier = keras.layers.Dense(params.hidden_size, activation="tanh"), keras.layers.Dense(2)
model = keras.Model(inputs, classifier(dense(cls)))
bert.load_stock_weights(layer, prefix)
dense.set_weights(
    [tf.train.load_variable(prefix, "bert/pooler/dense/" + name) for name in ("kernel", "bias")]
)
head = [tf.train.load_variable(prefix, name) for name in ("output_weights", "output_bias")]
classifier.set_weights([head[0].T, head[1]])
model.compile(
    keras.optimizers.Adam(settings["rate"]), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
found = {
    "losses": [],
    "versions": {"tensorflow": tf.__version__, "bert-for-tf2": importlib.metadata.version("bert-for-tf2")},
}
for step in range(settings["steps"]):
    given = [batches["input_word_ids"][step], batches["input_type_ids"][step]]
    if step == 0:
        found["logits"] = model.predict_on_batch(given).tolist()
    model.reset_metrics()
    found["losses"].append(float(model.train_on_batch(given, batches["labels"][step])))
(folder / "bertfortf2.json").write_text(json.dumps(found))
print(found)
