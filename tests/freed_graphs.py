"""The graphs of the encoder that a finished training leaves in memory. Run as a script, with two replicas on two logical CPUs.

python freed_graphs.py FOLDER    prints [graphs made, graphs left] as JSON
"""

import functools
import gc
import json
import sys
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import runs
import tensorflow as tf


def graphs_made_and_left(folder: Path, strategy: str = "one", **how: Any) -> tuple[int, int]:
    """Fine-tunes a tiny encoder in a folder. how: fields of Hparams."""
    from bert_keras.model.encoder import BertEncoder
    from bert_keras.tasks.finetuning.finetune import finetune
    from bert_keras.tasks.hparams import Hparams
    from bert_keras.tasks.problems.classification import TextClassification
    from bert_keras.tasks.training.task_model import free_memory

    graphs, call = list[weakref.ref](), BertEncoder.call

    @functools.wraps(call)
    def recorded(self: BertEncoder, *given: Any, **options: Any) -> Any:
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return call(self, *given, **options)

    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    runs.write_data(folder / "data", "sst2")
    hparams = Hparams(epochs=1, batch_size=8, learning_rate=1e-3, seq_length=24, **how)
    task = TextClassification.open("sst2", folder / "data")
    with mock.patch.object(BertEncoder, "call", recorded):
        finetune(
            task,
            checkpoint=folder / "checkpoint",
            output=folder / "run",
            hparams=hparams,
            strategy_name=strategy,
            verbose=0,
            log=lambda line: print(line, file=sys.stderr),
        )
    free_memory()
    gc.collect()
    return len(graphs), sum(graph() is not None for graph in graphs)


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(graphs_made_and_left(Path(sys.argv[1]), strategy="mirrored")))
