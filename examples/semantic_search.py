"""Finds the paragraphs of your own documents that are nearest to a question, and writes the prompt for a language model.

python examples/semantic_search.py minilm "how do I reset my password" manual.txt faq.txt    (paragraphs with blank lines between)

For more than some 100,000 paragraphs: `bert-keras index` and `bert-keras search` (docs/search.md).
"""

import pathlib
import re
import sys

import numpy as np

import bert_keras as bk

checkpoint, question, *files = sys.argv[1:]
paragraphs, places = [], []
for file in files:
    for paragraph in re.split(r"\n\s*\n", pathlib.Path(file).read_text(encoding="utf-8")):
        if paragraph.strip():
            paragraphs.append(" ".join(paragraph.split()))
            places.append(file)

model = bk.embedder(checkpoint, l2=True)  # vectors of length 1: their product is the cosine
vectors = model.predict(paragraphs)["embedding"]
scores = vectors @ model.predict([question], verbose=0)["embedding"][0]
best = np.argsort(-scores, kind="stable")[:3]
for row in best:
    print(f"{scores[row]:.2f} {places[row]}: {paragraphs[row]}")

context = "\n".join(f"[{number}] {paragraphs[row]}" for number, row in enumerate(best, start=1))
print(
    f"\nAnswer from these paragraphs alone, and name the number that you used.\n{context}\nQuestion: {question}"
)
