"""Compares `bert-keras plan` with a training step here: parameters, and the peak memory of a fresh process.

    PYTHONPATH=. python benchmarks/plan.py                     # sizes up to medium, some minutes
    PYTHONPATH=. python benchmarks/plan.py base,512,2 base,128,8

Each case is SIZE,LENGTH,BATCH. A process takes two steps of the recipe bert on random ids; its memory is its peak resident size
less its resident size before the model is built. Linux only.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

CASES = ("tiny,128,32", "mini,128,32", "small,128,32", "small,512,8", "medium,128,32", "medium,512,8")
STEPS = 2  # the first has the peak


def resident(field: str) -> int:
    """Bytes of a field of this process's status: VmRSS, or VmHWM for the peak."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def measure(size: str, length: int, batch: int) -> None:
    """Prints the parameters and the bytes of two steps."""
    import numpy as np
    import tensorflow as tf

    import bert_keras as bk
    from bert_keras.text.masking import Pieces
    from bert_keras.text.wordpiece import WordPiece
    from tasks.pretraining.recipe_objectives import objectives_for
    from tasks.pretraining.recipes import RECIPES

    recipe = RECIPES["bert"].changed(size=size, batch_size=batch)
    config = recipe.config(vocab_size=30522)
    pieces = Pieces.of(WordPiece("[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split()))
    objectives = objectives_for(recipe, length, pieces=pieces)
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
    data = tf.data.Dataset.from_tensors((features, labels, weights)).repeat(STEPS)
    tf.reduce_sum(tf.random.normal((256, 256)) @ tf.random.normal((256, 256)))  # starts the threads
    before = resident("VmRSS")
    encoder = bk.BertEncoder(config, outputs=("sequence_output", "pooled_output"))
    model = bk.Pretrainer.of(encoder, objectives)
    optimizer = bk.AdamW(1e-4)
    model.compile(optimizer, jit_compile=False)
    model.fit(data, verbose=0)
    print(json.dumps({"parameters": model.count_params(), "bytes": resident("VmHWM") - before}))


def main() -> None:
    """Prints a row for each case."""
    from tasks.pretraining.estimate import estimate
    from tasks.pretraining.recipes import RECIPES

    print("size      length  batch     parameters  exact  planned GiB  measured GiB   error")
    for case in sys.argv[1:] or CASES:
        size, length, batch = case.split(",")
        recipe = RECIPES["bert"].changed(size=size, seq_length=int(length), batch_size=int(batch))
        planned = estimate(recipe, recipe.config(vocab_size=30522))
        command = [sys.executable, __file__, "--measure", size, length, batch]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        found = json.loads(done.stdout.splitlines()[-1])
        total = planned.phases[0].memory.total
        print(
            f"{size:8} {length:>7} {batch:>6} {planned.parameters:14,} {found['parameters'] == planned.parameters!s:>6}"
            f" {total / 2**30:12.2f} {found['bytes'] / 2**30:13.2f} {total / found['bytes'] - 1:+7.1%}",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
