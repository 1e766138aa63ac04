"""Lists the texts of a file that say nearly the same, and puts all texts into groups of like meaning.

python examples/near_duplicates.py minilm questions.txt    (a text on each line)
"""

import sys

import numpy as np
from sklearn.cluster import AgglomerativeClustering

import bert_keras as bk

checkpoint, file = sys.argv[1:]
DUPLICATE, GROUP = (
    0.9,
    0.6,
)  # cosines: choose them on pairs that you have judged, with `bert-keras evaluate`
with open(file, encoding="utf-8") as opened:
    texts = list(dict.fromkeys(line.strip() for line in opened if line.strip()))

vectors = bk.embedder(checkpoint, l2=True).predict(texts)["embedding"]
for row, vector in enumerate(vectors):
    cosines = vectors[:row] @ vector  # each pair once
    for other in np.flatnonzero(cosines >= DUPLICATE):
        print(f"{cosines[other]:.2f} {texts[other]} = {texts[row]}")

# The mean cosine of two texts of a group is GROUP or more; the number of groups follows from it.
grouping = AgglomerativeClustering(
    n_clusters=None, metric="cosine", linkage="average", distance_threshold=1 - GROUP
)
groups = grouping.fit_predict(vectors)
for group in range(groups.max() + 1):
    rows = np.flatnonzero(groups == group)
    middle = rows[np.argmax(vectors[rows] @ vectors[rows].mean(axis=0))]  # the most typical text
    print(f"group {group}, {len(rows)} texts, such as: {texts[middle]}")
