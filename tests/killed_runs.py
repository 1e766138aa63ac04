"""Pre-training and fine-tuning that are killed, and resumed. Run as a script by test_resume.py.

In: a folder that has `checkpoint` and `data`, and jobs, `kind:output` or `kind:output:step`: a job with a step kills its
process, as `kill -9` does, at the end of that step; "in-save" for the step kills it inside of a save.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import runs
import tensorflow as tf

from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.training.saver import Saver
from bert_keras.text.wordpiece import WordPiece

STEPS, SAVE_EVERY = 24, 5
SETTINGS = {
    "hidden_size": 32,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 64,
    "max_positions": 48,
    "batch_size": 8,
    "steps": STEPS,
    "phases": ((24, 0.5), (40, 0.5)),
    "learning_rate": 1e-3,
    "log_every": 1,
    "eval_every": 4,
    "held_out_instances": 20,
    "strict": True,
}
FINETUNED = Hparams(epochs=3, batch_size=8, learning_rate=1e-3, seq_length=40)  # 6 steps in an epoch


def documents() -> list[list[str]]:
    draw = random.Random(1)
    return [runs.texts(draw.randint(3, 12), seed=seed) for seed in range(40)]


def pretrain_into(output: Path, folder: Path) -> None:
    pretrain(
        Pretraining(
            recipe=RECIPES["bert"].changed(**SETTINGS),
            documents=documents(),
            held_out=0.3,
            tokenizer=WordPiece(runs.VOCABULARY),
        ),
        output,
        save_every=SAVE_EVERY,
        verbose=0,
    )


def finetune_into(output: Path, folder: Path) -> None:
    finetune(
        TextClassification.open("sst2", folder / "data"),
        checkpoint=folder / "checkpoint",
        output=output,
        hparams=FINETUNED,
        save_every=4,
        verbose=0,
    )


KINDS = {"pretrain": pretrain_into, "finetune": finetune_into}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doom(at: str) -> None:
    """Has a run kill its process: at the end of a step, or somewhere in its first save."""
    end, save = Saver.on_train_batch_end, Saver._save

    def dying_end(self, batch, logs=None):
        end(self, batch, logs)
        if str(self.step) == at:
            die()

    def dying_save(self):
        if at == "in-save":
            threading.Timer(random.uniform(0, 0.03), die).start()
        save(self)
        if at == "in-save":
            time.sleep(60)

    Saver.on_train_batch_end, Saver._save = dying_end, dying_save


def main() -> None:
    tf.config.experimental.enable_op_determinism()
    folder = Path(sys.argv[1])
    for job in sys.argv[2:]:
        kind, output, *at = job.split(":")
        if at:
            doom(*at)
        KINDS[kind](folder / output, folder)


if __name__ == "__main__":
    main()
