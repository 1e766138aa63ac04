"""Continues masked-LM pre-training on your own text, one text a line, and writes a checkpoint to fine-tune.

python examples/continue_pretraining.py bert-base-uncased text.txt continued
"""

import pathlib
import sys

import tensorflow as tf

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.io.folders import check_folder
from bert_keras.optimization.objectives import label

checkpoint, file, output = sys.argv[1:]
check_folder(pathlib.Path(output))  # before the training, not after it
source = checkpoints.read(checkpoint)
preprocess = bk.Preprocessor(checkpoints.tokenizer_of(source), seq_length=128, pad_to_longest=True)
objective = bk.MaskedLM(pieces=bk.Pieces.of(preprocess.tokenizer), masking=bk.Masking(whole_word=True))
model = bk.Pretrainer(bk.BertEncoder(source.config), [objective])
checkpoints.assign(source, model.encoder, fresh=("pooler", "masked_lm"), **model.heads)  # where it lacks them


def masked(texts, seed):
    """Masks the texts of a batch, in another way in each epoch."""
    return label(preprocess(texts), objectives=[objective], seed=seed)


lines = tf.data.TextLineDataset(file).filter(lambda line: tf.strings.length(line) > 0)
batches = lines.shuffle(10_000).batch(32)
epochs, steps = 3, sum(1 for _ in batches)
seeds = tf.data.Dataset.random(seed=1).batch(2)  # goes on through all epochs
data = tf.data.Dataset.zip(batches.repeat(), seeds).map(masked).prefetch(tf.data.AUTOTUNE)
rate = bk.WarmupLinearDecay(5e-5, total_steps=epochs * steps, warmup_steps=epochs * steps // 10)
model.compile(bk.AdamW(rate))
model.fit(data, epochs=epochs, steps_per_epoch=steps, shuffle=False)
trained = checkpoints.collect(source.config, model.encoder, **model.heads)
checkpoints.write(checkpoints.with_tokenizer(trained, preprocess.tokenizer), output, format="hugging-face")
