"""Trains a BiLSTM that tags words by the features of a frozen BERT: the feature-based approach of the paper (section 5.3).

Two LSTMs of 768 units are the paper's; 64 units train several times as fast.

python examples/bilstm_on_frozen_bert.py bert-base-cased words.txt    ("word tag" lines, a blank line after each sentence)
"""

import sys

import bert_keras as bk

checkpoint, file = sys.argv[1:]
with open(file, encoding="utf-8") as opened:
    sentences = [
        [line.split() for line in block.splitlines()] for block in opened.read().strip().split("\n\n")
    ]
words = [[word for word, _ in sentence] for sentence in sentences]
tags = [[tag for _, tag in sentence] for sentence in sentences]  # IOB2: O, B-PER, I-PER, ...

model = bk.tagger(
    checkpoint,
    entities=sorted({tag[2:] for row in tags for tag in row if tag != "O"}),
    feature_layers="concat_last_four",  # frozen; their vectors are computed once, not in every epoch
    lstm_units=768,
)
model.compile(learning_rate=1e-3)
model.fit(words, tags, epochs=10, validation_split=0.1)

print(model.evaluate(words, tags, return_dict=True))
print(" ".join(words[0]), "->", model.predict([" ".join(words[0])])["tags"][0])
model.save("tagger.keras")
print("for TensorFlow Serving:", model.export("served/tagger"))
