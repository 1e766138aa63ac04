"""The old side of ktrain: Python 3.11, ktrain 0.41, transformers 4.49, TensorFlow 2.15. See ours.py."""

import json
import pathlib
import sys

import ktrain
import numpy as np
import tensorflow as tf
import transformers
from ktrain import text

folder = pathlib.Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
batches = np.load(folder / "batches.npz")
size = len(batches["labels"][0])
lines = (folder / "train.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
rows = [line.rsplit("\t", 1) for line in lines[: settings["steps"] * size]]
names = ["negative", "positive"]
transformer = text.Transformer(str(folder / "dry"), maxlen=settings["length"], class_names=names)
data = transformer.preprocess_train([row[0] for row in rows], [int(row[1]) for row in rows], verbose=0)
learner = ktrain.get_learner(transformer.get_classifier(), train_data=data, batch_size=size)
model, found = learner.model, {"losses": []}
ktrain.get_predictor(model, preproc=transformer).save(str(folder / "predictor"))  # which our side reads
assert type(model.optimizer).__name__ == "Adam"  # ktrain's own choice
model.optimizer.learning_rate.assign(settings["rate"])
for step, (features, labels) in enumerate(data.to_tfdataset(train=False).unbatch().batch(size)):
    if step == 0:
        found["logits"] = model(features, training=False).logits.numpy().tolist()
    model.reset_metrics()
    found["losses"].append(float(model.train_on_batch(features, labels, return_dict=True)["loss"]))
found["versions"] = {
    "ktrain": ktrain.__version__,
    "transformers": transformers.__version__,
    "tensorflow": tf.__version__,
}
(folder / "ktrain_transformer.json").write_text(json.dumps(found))
print(found)
