"""Runs of one worker of a cluster, or of one process. Run as a script by test_multiworker.py.

In: `strategy folder kind:output[:step]`; the folder has `checkpoint` and `data`. A job with a step kills this process at the end
of that step, or for the step `results` as soon as they are written, if WORKERS_TO_KILL names this worker. Out: the run; a line
with its results.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_keras.tasks.devices.strategies import strategy

NAME, FOLDER, *JOBS = sys.argv[1:]
DISTRIBUTION = strategy(NAME)  # before TensorFlow runs anything
tf.config.experimental.enable_op_determinism()

import killed_runs  # noqa: E402
import runs  # noqa: E402

from bert_keras.cli.console import one_line_errors  # noqa: E402
from bert_keras.io.folders import Folder  # noqa: E402
from bert_keras.tasks.finetuning.finetune import finetune  # noqa: E402
from bert_keras.tasks.hparams import Hparams  # noqa: E402
from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain  # noqa: E402
from bert_keras.tasks.pretraining.recipes import RECIPES  # noqa: E402
from bert_keras.tasks.problems.classification import TextClassification  # noqa: E402
from bert_keras.tasks.study.ablations import run_ablation  # noqa: E402
from bert_keras.tasks.study.rows import ABLATIONS, SCALES, Row, Scale  # noqa: E402
from bert_keras.tasks.training.saver import Saver  # noqa: E402
from bert_keras.text.wordpiece import WordPiece  # noqa: E402

HPARAMS = Hparams(epochs=2, batch_size=9, learning_rate=1e-3, seq_length=40, micro_batch=2)
SAVE_EVERY = 2


def finetune_into(output: Path) -> dict:
    task = TextClassification.open("sst2", Path(FOLDER) / "data")
    return finetune(
        task,
        checkpoint=Path(FOLDER) / "checkpoint",
        output=output,
        hparams=HPARAMS,
        strategy_name=NAME,
        save_every=SAVE_EVERY,
        verbose=0,
    )


def pretrain_into(output: Path, **data: Any) -> dict:
    return pretrain(
        Pretraining(
            recipe=RECIPES["bert"].changed(**killed_runs.SETTINGS | {"steps": 12, "micro_batch": 3}),
            **data or {"documents": killed_runs.documents(), "held_out": 0.3},
            tokenizer=WordPiece(runs.VOCABULARY),
            strategy_name=NAME,
        ),
        output,
        save_every=SAVE_EVERY,
        verbose=0,
    )


def pretrain_on_records_into(output: Path) -> dict:
    """The folders of records are in FOLDER: one for each phase."""
    sets = [Path(FOLDER) / f"records-{length}" for length, _ in killed_runs.SETTINGS["phases"]]
    return pretrain_into(output, records=sets, held_out=sets[0])


def ablate_into(output: Path) -> dict:
    """One pre-training, fine-tuned and as features."""
    SCALES["tiny"] = Scale(
        pretraining=killed_runs.SETTINGS | {"num_layers": 4, "steps": 4, "phases": ((32, 1.0),)},
        finetuning={"seq_length": 32, "epochs": 1, "batch_size": 8},
        features={"lstm_units": 8, "epochs": 1},
        options={"conll2003": {"context": "sentence"}},
        restarts=1,
        rows={"steps": (Row(name="masked LM"),)},
        tasks={"steps": ("sst2", "conll2003-features")},
    )
    ABLATIONS["steps"] = ABLATIONS["steps"]._replace(pairs=())
    found = run_ablation(
        "steps",
        documents=killed_runs.documents(),
        tokenizer=WordPiece(runs.VOCABULARY),
        data={"sst2": Path(FOLDER) / "data", "conll2003": Path(FOLDER) / "entities"},
        output=output,
        scale="tiny",
        strategy_name=NAME,
        verbose=0,
    )
    return {"steps": 4, "measures": found.values}


KINDS = {
    "finetune": finetune_into,
    "pretrain": pretrain_into,
    "records": pretrain_on_records_into,
    "ablate": ablate_into,
}


def doom(step: int) -> None:
    """Has the run kill its process at the end of a step, as `kill -9` does."""
    end = Saver.on_train_batch_end

    def dying_end(self, batch, logs=None):
        if self.step + 1 == step:
            os.kill(os.getpid(), signal.SIGKILL)
        end(self, batch, logs)

    Saver.on_train_batch_end = dying_end


def doom_at_results(output: Path) -> None:
    """Has this process killed as soon as the run has its results."""

    def watch() -> None:
        while not (output / "results.json").is_file():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def linger_at_results() -> None:
    """Has the chief wait after it has written the results, so that another worker is dead when it goes on."""
    finish = Folder.finish

    def lingering_finish(self, results):
        finish(self, results)
        time.sleep(1)

    Folder.finish = lingering_finish


def main() -> None:
    own = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    for job in JOBS:
        kind, output, *step = job.split(":")
        if step == ["results"]:
            linger_at_results()
            if str(own) in os.environ["WORKERS_TO_KILL"].split(","):
                doom_at_results(Path(FOLDER) / output)
        elif step and str(own) in os.environ["WORKERS_TO_KILL"].split(","):
            doom(int(step[0]))
        results = KINDS[kind](Path(FOLDER) / output)
        print(json.dumps({"steps": results["steps"], "measures": results["measures"]}))


if __name__ == "__main__":
    with one_line_errors(debug=False):
        main()
