"""Which share of fine-tuning's CPU time makes the batches: is a cache of tokens worth its memory?

    python benchmarks/token_share.py --checkpoint bert-tiny --data glue/SST-2 [--task sst2] [--examples 6400]

In: a checkpoint and a task's data. Out: the CPU seconds of an epoch's batches (reading, tokenizing, sorting and padding), of an
epoch of training on them, and their ratio. CPU seconds hardly depend on other work of the machine.
"""

import argparse
import pathlib
import time

from bert_keras.tasks.finetuning.finetune import plan_finetuning
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.runs.task_types import open_task

WARM_UP = 3  # batches, which trace the graphs


def main() -> None:
    """Prints one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--examples", type=int, default=6400)
    args = parser.parse_args()
    hparams = Hparams(max_examples=args.examples)
    plan = plan_finetuning(open_task(args.task, args.data), checkpoint=args.checkpoint, hparams=hparams)
    (stage,) = plan.stages
    batches = stage.batches(0)

    def read(count: int) -> None:
        for _ in batches.take(count):
            pass

    def train(count: int) -> None:
        plan.model.fit(batches, steps_per_epoch=count, verbose=0)

    seconds = []
    for work in (read, train):
        work(WARM_UP)
        began = time.process_time()
        work(stage.steps)
        seconds.append(time.process_time() - began)
    reading, training = seconds
    print(
        f"{stage.steps} steps: {reading:.2f} CPU seconds for the batches, {training:.2f} for the training with them, "
        f"{reading / training:.1%}"
    )


if __name__ == "__main__":
    main()
