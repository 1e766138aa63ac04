"""bert_keras beside the libraries of docs/migrate.md: equal logits after loading, ten equal losses, a training of equal accuracy.

    python benchmarks/old_sides/ours.py material FOLDER --checkpoint bert-tiny --data glue/SST-2
    OLD/bin/python benchmarks/old_sides/transformers_tf.py FOLDER       # each old library in an environment of its own
    python benchmarks/old_sides/ours.py compare FOLDER --json benchmarks/old_sides/recorded.json

`material` writes what all sides read: `start`, a classifier in Hugging Face's form; `dry`, the same without dropout; `google`,
`dry` as a checkpoint of TensorFlow 1; ten batches of ids and labels; and rows of SST-2. An old side writes `OLD.json`: its
versions, the logits of the first batch, the losses of ten steps, and, where it trains, an accuracy on dev for each seed.
"""

import argparse
import csv
import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import bert_keras as bk
from bert_keras import checkpoints

STEPS, ROWS, LENGTH, RATE, WARMUP = 10, 16, 64, 5e-5, 3
TRAINED, EPOCHS, BATCH, PEAK, SEEDS = 4000, 3, 32, 2e-4, (1, 2, 3)
LABELS = ["negative", "positive"]
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def table(path: pathlib.Path) -> tuple[list[str], list[int]]:
    """The sentences and the labels of a file of SST-2."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [row[0].strip() for row in rows], [int(row[1]) for row in rows]


def material(folder: pathlib.Path, checkpoint: str, data: pathlib.Path) -> None:
    """Writes the files that all sides read."""
    folder.mkdir(parents=True)
    keras.utils.set_random_seed(0)
    source = checkpoints.read(checkpoint)
    # Google's code and bert-for-tf2 have the tanh form of gelu alone.
    config = dataclasses.replace(source.config, activation="gelu_tanh")
    encoder = bk.BertEncoder(config)
    checkpoints.assign(source, encoder, fresh=("pooler",))
    whole = checkpoints.with_tokenizer(checkpoints.collect(config, encoder), checkpoints.tokenizer_of(source))
    for name, dropout in (("start", 0.1), ("dry", 0.0)):
        dropouts = {"hidden_dropout": dropout, "attention_dropout": dropout}
        keras.utils.set_random_seed(0)  # the same head
        changed = dataclasses.replace(whole, config=dataclasses.replace(config, **dropouts))
        model = bk.classifier(changed, LABELS)
        head = model.network.get_layer("classifier").dense
        head.kernel.assign(keras.random.normal(head.kernel.shape, stddev=0.3, seed=1))
        model.save(folder / name)
    # keras-bert reads a checkpoint that has both heads of pre-training.
    heads = {"masked_lm": bk.MaskedLMHead(model.encoder), "next_sentence": bk.NextSentenceHead(config=config)}
    heads["classifier"] = model.network.get_layer("classifier")
    google = checkpoints.collect(changed.config, model.encoder, **heads)
    google = checkpoints.with_tokenizer(google, checkpoints.tokenizer_of(source))
    checkpoints.write(google, folder / "google", format="google")
    texts, labels = table(data / "train.tsv")
    drawn = np.random.default_rng(0).permutation(len(texts))[:TRAINED]
    preprocess = bk.Preprocessor(bk.load_tokenizer(folder / "dry"), seq_length=LENGTH)
    used = drawn[: STEPS * ROWS]
    batches = preprocess([texts[i] for i in used]) | {"labels": np.array([labels[i] for i in used], "int32")}
    np.savez(
        folder / "batches.npz",
        **{k: np.array(v).reshape(STEPS, ROWS, *np.shape(v)[1:]) for k, v in batches.items()},
    )
    dev = table(data / "dev.tsv")
    split = {"train": [(texts[i], labels[i]) for i in drawn], "dev": list(zip(*dev, strict=True))}
    for name, rows in split.items():
        lines = [f"{text}\t{label}\n" for text, label in rows]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines), encoding="utf-8")
    settings = {
        "steps": STEPS,
        "rate": RATE,
        "warmup": WARMUP,
        "epochs": EPOCHS,
        "batch": BATCH,
        "peak": PEAK,
    }
    settings |= {"seeds": SEEDS, "length": LENGTH}
    (folder / "settings.json").write_text(json.dumps(settings))


@dataclasses.dataclass(frozen=True)
class OldSide:
    """The settings by which our ten steps repeat an old script.

    optimizer: ours, with the numbers of theirs
    start: the folder that our side reads
    padding_read: True where the old model attends to padding too
    """

    optimizer: Callable[[], keras.optimizers.Optimizer]
    start: str = "dry"
    padding_read: bool = False


def adam() -> keras.optimizers.Optimizer:
    """Keras' own, as in the examples of these libraries."""
    return keras.optimizers.Adam(RATE)


OLD = {
    "transformers_tf": OldSide(
        lambda: bk.AdamW(
            bk.LinearAfterWarmup(RATE, total_steps=STEPS, warmup_steps=WARMUP),
            epsilon=1e-8,
            clip_norm=None,
            bias_correction=True,
        ),
        start="transformers_tf",  # a tf_model.h5
    ),
    "google_bert": OldSide(
        lambda: bk.AdamW(bk.WarmupLinearDecay(RATE, total_steps=STEPS, warmup_steps=WARMUP)), start="google"
    ),
    "kerasbert": OldSide(adam, start="google"),
    "bertfortf2": OldSide(adam, start="google", padding_read=True),
    "ktrain_transformer": OldSide(adam, start="predictor"),
}
# Old side -> what `compile` is told for a training as theirs.
TRAININGS = {
    "transformers_tf": {"schedule": "linear_after_warmup", "bias_correction": True, "clip_norm": None},
    "google_bert": {},
}


def compare(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """The versions of an old side, and its largest differences from ours."""
    theirs = json.loads((folder / f"{name}.json").read_text())
    model = bk.classifier(folder / OLD[name].start, LABELS, seq_length=LENGTH, keep_head=True)
    with np.load(folder / "batches.npz") as file:
        batches = dict(file)
    labels = batches.pop("labels")
    if OLD[name].padding_read:
        batches["input_mask"][:] = 1
    model.compile(OLD[name].optimizer(), LOGITS)
    logits = model.predict_on_batch({key: rows[0] for key, rows in batches.items()})
    losses = []
    for step in range(STEPS):
        features = {key: tf.constant(rows[step]) for key, rows in batches.items()}
        model.reset_metrics()
        losses.append(float(model.train_on_batch(features, labels[step])))
    row = {"versions": theirs["versions"]}
    row["logits_difference"] = float(np.abs(np.array(theirs["logits"]) - logits).max())
    row["largest_logit"] = float(np.abs(logits).max())
    row["losses_difference"] = float(np.abs(np.array(theirs["losses"]) - losses).max())
    if name in TRAININGS:
        row |= {"accuracies": theirs["accuracies"], "our_accuracies": train(folder, TRAININGS[name])}
    return row


def train(folder: pathlib.Path, settings: Mapping[str, Any]) -> list[float]:
    """The accuracy on dev of one training a seed."""
    found = []
    (texts, labels), (dev, gold) = (table(folder / f"{name}.tsv") for name in ("train", "dev"))
    for seed in SEEDS:
        keras.utils.set_random_seed(seed)
        model = bk.classifier(folder / "start", LABELS, seq_length=LENGTH, keep_head=True)
        model.compile(learning_rate=PEAK, **settings)
        model.fit(texts, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)
        predicted = model.predict(dev, verbose=0)["label"]
        found.append(float((predicted == [LABELS[one] for one in gold]).mean()))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("material", "compare"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--checkpoint")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if args.what == "material":
        material(args.folder, args.checkpoint, args.data)
    else:
        rows = {name: compare(args.folder, name) for name in OLD if (args.folder / f"{name}.json").exists()}
        print(text := json.dumps(rows, indent=1))
        if args.json:
            args.json.write_text(text + "\n")
