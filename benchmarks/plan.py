"""Compares `bert-keras plan` with a training step here: parameters, and the peak memory of a fresh process.

    python benchmarks/plan.py                     # sizes up to medium, some minutes
    python benchmarks/plan.py base,512,2 base,128,8
    python benchmarks/plan.py base,512,4 base,512,4,1 base,512,4,4,rematerialize base,512,4,1,rematerialize

Each case is SIZE,LENGTH,BATCH, and may add the rows of a micro-batch and the word rematerialize. A process takes two steps of the
recipe bert on random ids; its memory is its peak resident size less its resident size before the model is built. Linux only.
"""

import json
import subprocess
import sys
from typing import NamedTuple

from machine import resident

CASES = ("tiny,128,32", "mini,128,32", "small,128,32", "small,512,8", "medium,128,32", "medium,512,8")
STEPS = 2  # the first has the peak


class Case(NamedTuple):
    """One training step. rows: of a micro-batch, or all."""

    size: str
    length: int
    batch: int
    rows: int
    rematerialize: bool

    @classmethod
    def of(cls, text: str) -> "Case":
        """The case of SIZE,LENGTH,BATCH[,ROWS[,rematerialize]]."""
        size, length, batch, *rest = text.split(",")
        if rest[1:] not in ([], ["rematerialize"]):
            sys.exit(f"{text} is no case; give SIZE,LENGTH,BATCH[,ROWS[,rematerialize]].")
        return cls(size, int(length), int(batch), int(rest[0] if rest else batch), bool(rest[1:]))


def measure(case: Case) -> None:
    """Prints the parameters, the bytes and the losses of two steps."""
    import numpy as np
    import tensorflow as tf

    import bert_keras as bk
    from bert_keras.tasks.pretraining.model import make_objectives
    from bert_keras.tasks.pretraining.recipes import RECIPES
    from bert_keras.text.masking import Pieces
    from bert_keras.text.wordpiece import WordPiece

    _, length, batch, rows, _ = case
    recipe = RECIPES["bert"].changed(size=case.size, batch_size=batch)
    config = recipe.config(vocab_size=30522)
    pieces = Pieces.of(WordPiece("[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split()))
    objectives = make_objectives(recipe, length, pieces=pieces)
    predictions = recipe.masking(length).max_predictions
    draw = np.random.default_rng(1)
    features = {
        "input_word_ids": draw.integers(5, 30522, (batch, length), dtype=np.int32),
        "input_mask": np.ones((batch, length), np.int32),
        "input_type_ids": np.zeros((batch, length), np.int32),
        "masked_lm_positions": np.tile(np.arange(predictions, dtype=np.int32), (batch, 1)),
    }
    labels = {
        "masked_lm": draw.integers(5, 30522, (batch, predictions), dtype=np.int32),
        "next_sentence": draw.integers(0, 2, batch, dtype=np.int32),
    }
    weights = {name: np.ones(value.shape, np.float32) for name, value in labels.items()}
    data = tf.data.Dataset.from_tensors((features, labels, weights))
    tf.reduce_sum(tf.random.normal((256, 256)) @ tf.random.normal((256, 256)))  # starts the threads
    before = resident("VmRSS")
    encoder = bk.BertEncoder(config, outputs=("sequence_output", "pooled_output"))
    encoder.rematerialize = case.rematerialize
    model = bk.Pretrainer.of(encoder, objectives)
    model.compile(bk.AdamW(1e-4), micro_batch=rows if rows < batch else None, jit_compile=False)
    losses = model.fit(data, epochs=STEPS, verbose=0, shuffle=False).history["loss"]
    found = {"parameters": model.count_params(), "bytes": resident("VmHWM") - before, "losses": losses}
    print(json.dumps(found))


def main() -> None:
    """Prints a row for each case."""
    from bert_keras.tasks.pretraining.estimate import estimate
    from bert_keras.tasks.pretraining.recipes import RECIPES

    print(
        "size      length  batch   rows  again     parameters  exact  planned GiB  measured GiB   error  losses"
    )
    for text in sys.argv[1:] or CASES:
        case = Case.of(text)
        recipe = RECIPES["bert"].changed(
            size=case.size,
            seq_length=case.length,
            batch_size=case.batch,
            micro_batch=case.rows,
            rematerialize=case.rematerialize,
        )
        planned = estimate(recipe, recipe.config(vocab_size=30522))
        command = [sys.executable, __file__, "--measure", text]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        found = json.loads(done.stdout.splitlines()[-1])
        total = planned.phases[0].memory.total
        print(
            f"{case.size:8} {case.length:>7} {case.batch:>6} {case.rows:>6} {'yes' if case.rematerialize else 'no':>6}"
            f" {planned.parameters:14,} {found['parameters'] == planned.parameters!s:>6} {total / 2**30:12.2f}"
            f" {found['bytes'] / 2**30:13.2f} {total / found['bytes'] - 1:+7.1%}  "
            + " ".join(f"{loss:.2f}" for loss in found["losses"]),
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Case.of(sys.argv[2]))
    else:
        main()
