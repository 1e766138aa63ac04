"""Trains an encoder and a head of your own on all GPUs of a machine, with the optimizer and the schedule of the paper.

python examples/mirrored.py bert-base-uncased    (TensorFlow Datasets fetches SST-2)
"""

import sys

import keras
import tensorflow as tf
import tensorflow_datasets as tfds

import bert_keras as bk

(checkpoint,) = sys.argv[1:]
strategy = tf.distribute.MirroredStrategy()
batch_size, epochs = 32, 3
train, dev = tfds.load("glue/sst2", split=["train", "validation"])

preprocess = bk.Preprocessor(bk.load_tokenizer(checkpoint), seq_length=64)


def batches(examples):
    """Batches of features and labels whose rows the replicas divide."""
    made = examples.batch(batch_size).map(lambda row: (preprocess(row["sentence"]), row["label"]))
    made = bk.pad_batches(made, multiple_of=strategy.num_replicas_in_sync)
    return bk.without_autotuning(made)  # else tf.data may wait at the start of each epoch


data = batches(train.shuffle(100_000))
with strategy.scope():
    encoder = bk.load_encoder(checkpoint, outputs=["pooled_output"])
    inputs = bk.encoder_inputs()
    logits = bk.ClassifierHead(2, config=encoder.config)(encoder(inputs)["pooled_output"])
    model = keras.Model(inputs, logits)
    steps = epochs * int(data.cardinality())
    rate = bk.WarmupLinearDecay(2e-5, total_steps=steps, warmup_steps=steps // 10)
    model.compile(bk.AdamW(rate), bk.GlobalMean(bk.cross_entropy), weighted_metrics=["accuracy"])
model.fit(data, epochs=epochs, validation_data=batches(dev), shuffle=False)
model.save("sst2.keras")
