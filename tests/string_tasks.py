"""A model, texts and labels of every task that takes strings, small enough to train in seconds."""

import numpy as np
from runs import texts

import bert_keras as bk

TEXTS, NAMES = texts(8, seed=0), ["bad", "good"]
BILSTM = {"feature_layers": "weighted_sum_all", "lstm_layers": 1, "lstm_units": 8, "lstm_dropout": 0.0}

# By task: the model of a checkpoint, texts, labels; eight of each.
TASKS = {
    "class": (lambda ckpt, **how: bk.classifier(ckpt, NAMES, **how), TEXTS, NAMES * 4),
    "class, concat": (
        lambda ckpt, **how: bk.classifier(ckpt, NAMES, pooling="concat", **how),
        TEXTS,
        NAMES * 4,
    ),
    "class, BiLSTM": (lambda ckpt, **how: bk.classifier(ckpt, NAMES, **BILSTM, **how), TEXTS, NAMES * 4),
    "labels": (lambda ckpt, **how: bk.classifier(ckpt, NAMES, multi=True, **how), TEXTS, [[], ["good"]] * 4),
    "score": (bk.regressor, TEXTS, np.linspace(-1, 1, 8)),
    "choice": (
        lambda ckpt, **how: bk.chooser(ckpt, 2, **how),
        {"context": TEXTS, "endings": [[text, "the film"] for text in TEXTS]},
        [0, 1] * 4,
    ),
    "answer": (
        lambda ckpt, **how: bk.question_answerer(ckpt, unanswerable=True, max_query_length=8, **how),
        {"question": ["the film"] * 8, "context": ["the plot is good and the film very dull"] * 8},
        [{"text": "very dull", "answer_start": 30}, None] * 4,
    ),
    "tags": (
        lambda ckpt, **how: bk.tagger(ckpt, ["PER"], **how),
        [["the", "actor", "is", "good"], ["bad", "plot"]] * 4,
        [["O", "B-PER", "O", "O"], ["O", "O"]] * 4,
    ),
    "masks": (bk.masked_lm, ["the film is [MASK]", "a [MASK] plot"] * 4, ["good", "dull"] * 4),
}
