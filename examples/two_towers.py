"""Trains one encoder so that the vectors of a question and of its answer are near each other, and finds answers with it.

python examples/two_towers.py bert-base-uncased pairs.tsv    (a question and its answer on each line, with a tab between)
"""

import sys

import keras
import tensorflow as tf

import bert_keras as bk

checkpoint, file = sys.argv[1:]
with open(file, encoding="utf-8") as opened:
    questions, answers = zip(*(line.rstrip("\n").split("\t") for line in opened))

preprocess = bk.Preprocessor(bk.load_tokenizer(checkpoint), seq_length=64)
encoder = bk.load_encoder(checkpoint, outputs=["sequence_output"])
inputs = bk.encoder_inputs()
mean = bk.MeanPooling()(encoder(inputs)["sequence_output"])
tower = keras.Model(inputs, keras.layers.UnitNormalization()(mean), name="tower")

batch = 16
asked, given = bk.encoder_inputs(prefix="question_"), bk.encoder_inputs(prefix="answer_")
# [B, B]: each question beside each answer of the batch; the diagonal is right
similarity = keras.ops.matmul(tower(asked), keras.ops.transpose(tower(given))) * 20
model = keras.Model({"question": asked, "answer": given}, similarity)
data = tf.data.Dataset.from_tensor_slices((list(questions), list(answers)))
data = data.shuffle(10_000).batch(batch, drop_remainder=True)
data = data.map(lambda q, a: ({"question": preprocess(q), "answer": preprocess(a)}, tf.range(batch)))
data = bk.without_autotuning(data)  # else tf.data may wait at the start of each epoch
model.compile(bk.AdamW(2e-5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=3, shuffle=False)

vectors = tower.predict(preprocess(tf.constant(answers)))
for question in questions[:5]:
    scores = vectors @ tower.predict(preprocess(tf.constant([question])), verbose=0)[0]
    print(question, "->", answers[scores.argmax()])
tower.save("tower.keras")
