"""Learns a classifier from a few texts of each class, on vectors of an encoder that is not trained.

python examples/few_shot.py minilm examples.csv "a new text" "another one"    (columns: text, label)

With hundreds of texts of each class, examples/classify.py trains the encoder too, and is better.
"""

import csv
import sys

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score

import bert_keras as bk

checkpoint, file, *new = sys.argv[1:]
with open(file, encoding="utf-8", newline="") as opened:
    rows = list(csv.DictReader(opened))
texts, labels = [row["text"] for row in rows], [row["label"] for row in rows]

model = bk.embedder(checkpoint, l2=True)
vectors = model.predict(texts)["embedding"]
classifier = LogisticRegression(C=10, max_iter=1000)
folds = StratifiedKFold(2, shuffle=True, random_state=0)
print(f"accuracy on texts left out: {cross_val_score(classifier, vectors, labels, cv=folds).mean():.2f}")
classifier.fit(vectors, labels)
for text, label in zip(new, classifier.predict(model.predict(new)["embedding"]), strict=True):
    print(f"{label}: {text}")
