"""Fine-tunes a classifier on a CSV file with the columns text and label, and keeps the best epoch.

python examples/classify.py bert-base-uncased reviews.csv
"""

import csv
import sys

import keras
import numpy as np

import bert_keras as bk

checkpoint, file = sys.argv[1:]
with open(file, encoding="utf-8", newline="") as opened:
    rows = list(csv.DictReader(opened))
np.random.default_rng(0).shuffle(rows)
texts, labels = [row["text"] for row in rows], [row["label"] for row in rows]

model = bk.classifier(checkpoint, labels=sorted({*labels}))
model.compile(learning_rate=2e-5)
best = keras.callbacks.ModelCheckpoint(
    "classifier.keras", monitor="val_accuracy", mode="max", save_best_only=True
)
model.fit(texts, labels, epochs=3, validation_split=0.1, callbacks=[best])

model = bk.load("classifier.keras")
answers = model.predict(texts[:5])
for text, label, probabilities in zip(texts, answers["label"], answers["probabilities"]):
    print(f"{label} ({probabilities.max():.2f}): {text}")
print("for TensorFlow Serving:", model.export("served/classifier"))
